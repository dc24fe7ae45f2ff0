"""Versions of a text: the later text is kept however versions are written, or people are told that it is a guess."""

import random
from datetime import timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semlabel.text_versions import number_of, order_of
from tests.test_sources import entities_of, rows

IN_ORDER = {
    "numbers": ["-3", "0", "2", "9", "10", "10.5", "11", "100", "9" * 5_000],
    "release names": ["v9", "v9.1", "v9.10", "v10", "v10.0.1", "v101"],
    "dotted": ["1.9", "1.9.9", "1.10", "1.10.1", "2.0", "10.0"],
    "three parts": ["1.2.1034", "1.9.1034", "1.10.2", "1.10.11"],
    "counted drafts": ["draft 2 of 2024", "draft 9 of 2024", "draft 10 of 2023"],
    "dates": ["1999-12-31", "2023-12-31", "2024-01-02", "2024-10-01", "2024-11-01"],
    "dates without zeros": ["2023-12-31", "2024-1-2", "2024-9-30", "2024-10-1"],
    "times": [
        "2024-01-02",
        "2024-01-02T09:00",
        "2024-01-02 09:00:00.25",
        "2024-01-02T09:00:00.5Z",
        "2024-01-02T11:00Z",
    ],
    "zones": ["2024-01-02T10:00+02:00", "2024-01-02T09:00Z", "2024-01-02T09:30", "2024-01-02T05:00-05:00"],
    "nanoseconds": ["2024-01-02T09:00:00Z", "2024-01-02T09:00:00.000000001Z", "2024-01-02T09:00:00.000000002Z"],
}


@pytest.mark.parametrize("kind", IN_ORDER)
def test_the_later_version_ranks_higher_however_it_is_written(kind):
    versions = IN_ORDER[kind]
    order = order_of(random.Random(kind).sample(versions, k=len(versions)))
    ranks = [order.rank(version) for version in versions]
    assert all(earlier < later for earlier, later in pairwise(ranks))
    assert order.warning is None


@given(st.sets(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=2, max_size=20))
def test_names_that_differ_in_numbers_alone_compare_by_these(numbers):
    versions = {f"rev {a}.{b}-{c}": (a, b, c) for a, b, c in numbers}
    order = order_of(versions)
    assert order.warning is None
    assert [versions[each] for each in sorted(versions, key=order.rank)] == sorted(numbers)


@given(st.lists(st.tuples(st.datetimes(), st.integers(-12, 12)), min_size=2, max_size=20))
def test_times_compare_as_moments_whatever_their_zones(given_times):
    times = [moment.replace(tzinfo=timezone(timedelta(hours=hours))) for moment, hours in given_times]
    order = order_of([moment.isoformat() for moment in times])
    assert order.warning is None
    for first in times:
        for second in times:
            assert (order.rank(first.isoformat()) < order.rank(second.isoformat())) == (first < second)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        (["v9", "10"], "versions are compared as text, '10' before 'v9': written in several ways"),
        (["1.10.0", "1.9.0-rc1"], "versions are compared as text, '1.10.0' before '1.9.0-rc1': written in"),
        (["2024-01-02", "7"], "versions are compared as text, '2024-01-02' before '7': written in"),
        (["31.12.2023", "01.02.2024"], "dates with the year last have no order, write 2024-12-31"),
        (["12/31/2023", "01/02/2024"], "dates with the year last have no order, write 2024-12-31"),
        (["1.9", "1.10"], "versions are compared as decimal numbers, '1.10' not after '1.9'; if they count on after"),
    ],
)
def test_an_order_that_may_not_be_meant_is_told_in_one_line(versions, said):
    warning = order_of(versions).warning
    assert said in warning and "\n" not in warning


def test_numbers_with_a_point_are_not_complained_of_where_both_readings_agree():
    assert order_of(["1.5", "1.75", "2.0", "10.25"]).warning is None
    assert order_of(["1700000000.125", "1700000000.250"]).warning is None


@pytest.mark.parametrize(
    ("older", "newer"), [("v9", "v10"), ("1.9.0", "1.10.0"), ("9", "10"), ("2023-12-31", "2024-01-02")]
)
def test_the_older_text_is_never_kept_for_its_larger_digit(tmp_path, older, newer):
    table = entities_of(tmp_path, f"entity_id,text,text_version\n1,new,{newer}\n1,old,{older}\n2,only,\n".encode())
    assert rows(table) == [("1", "new"), ("2", "only")]
    assert (table.redundant, table.refused, table.warnings) == (1, [], [])


def test_a_source_is_warned_of_an_order_by_text_only_where_it_decided(tmp_path):
    mixed = entities_of(tmp_path, b"entity_id,text,text_version\n1,a,v9\n1,b,10\n2,c,final\n")
    assert rows(mixed) == [("1", "a"), ("2", "c")]
    assert len(mixed.warnings) == 1 and "versions are compared as text" in mixed.warnings[0]
    assert entities_of(tmp_path, b"entity_id,text,text_version\n1,a,v9\n3,b,10\n2,c,final\n").warnings == []


def test_what_counts_as_a_number_beside_a_version_that_came_online_is_what_counts_in_the_source():
    assert [number_of(version) for version in ("7", "7.5", "-1", "007")] == [7, 7.5, -1, 7]
    assert [number_of(version) for version in ("", "v7", "1.2.3", "٧", "1e5", "+1", " 1")] == [None] * 7
    assert number_of("9" * 5_000) > 10**300
