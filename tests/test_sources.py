"""Sources: whatever people's files hold, no row is lost, shifted or changed without a word."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semlabel.errors import SourceError
from semlabel.references import check_references
from semlabel.settings import Settings
from semlabel.source_readers import Wanted, read_delimited, read_duckdb
from semlabel.sources import RefusedRow, SourceTable, read_catalog, read_entities, read_references

AWKWARD_IDS = ["007", "1e5", "nan", "9912140633506421", "trailing  ", " leading", "NULL", "-0", "1.0", "True", "Kantō"]


def settings_for(folder: Path, **sources: object) -> Settings:
    values = {"entities": "entities.csv", "catalog": "catalog.csv", "references": "references.csv"} | sources
    for name in ("entities", "catalog", "references"):
        if not str(values[name]).startswith("duckdb:"):
            values[name] = str(folder / str(values[name]))
    return Settings.model_validate(
        {
            "sources": values,
            "model": {"base": "base"},
            "prompt": {"template": "{entity} {candidate}"},
            "calibration": {"min_precision": 0.5},
        }
    )


def entities_of(folder: Path, content: bytes, name: str = "entities.csv", **sources: object) -> SourceTable:
    (folder / name).write_bytes(content)
    table = read_entities(settings_for(folder, entities=name, **sources))
    assert table.rows_in == len(table.frame) + len(table.refused) + table.redundant
    return table


def rows(table: SourceTable) -> list[tuple[str, str]]:
    return list(zip(table.frame["entity_id"], table.frame["text"], strict=True))


def reasons(table: SourceTable) -> list[str]:
    return [refused.reason for refused in table.refused]


def refusal(folder: Path, content: bytes, name: str = "entities.csv", **sources: object) -> str:
    with pytest.raises(SourceError) as caught:
        entities_of(folder, content, name, **sources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what a file may look like


@pytest.mark.parametrize(
    "content",
    [
        b"entity_id,text\n1,one\n2,two\n",
        b"\xef\xbb\xbfentity_id,text\n1,one\n2,two\n",
        b"entity_id,text\r\n1,one\r\n2,two\r\n",
        b"entity_id,text\r1,one\r2,two\r",
        b"entity_id;text\n1;one\n2;two",
        b"entity_id\ttext\n1\tone\n2\ttwo\n",
        b"sep=;\r\nentity_id;text\r\n1;one\r\n2;two\r\n",
        b'"entity_id";"text"\n"1";"one"\n"2";"two"\n',
        b"\n\nentity_id,text\n\n1,one\n\n2,two\n\n",
        b"text,other,entity_id\none,x,1\ntwo,,2\n",
        "entity_id\ttext\r\n1\tone\r\n2\ttwo\r\n".encode("utf-16"),
    ],
)
def test_the_same_table_is_read_from_every_dialect(tmp_path, content):
    assert rows(entities_of(tmp_path, content)) == [("1", "one"), ("2", "two")]


def test_a_delimiter_inside_the_texts_does_not_decide_the_dialect(tmp_path):
    content = b"entity_id;text\n1;a, b, c, d\n2;e, f, g, h\n"
    assert rows(entities_of(tmp_path, content)) == [("1", "a, b, c, d"), ("2", "e, f, g, h")]


def test_quotes_newlines_and_delimiters_in_cells_stay_in_their_cell(tmp_path):
    texts = ['say "hi"', "two\nlines", "two\r\nlines", "a,b;c\td", '"', "", "  padded  ", "\u2028\x85\x0b"]
    stream = io.StringIO(newline="")
    csv.writer(stream).writerows([("entity_id", "text"), *((f"e{n}", text) for n, text in enumerate(texts))])
    table = entities_of(tmp_path, stream.getvalue().encode())
    assert rows(table) == [(f"e{n}", text) for n, text in enumerate(texts[:5])] + [("e6", "  padded  ")]
    assert reasons(table) == ["line 9: text is empty", "line 11: text is blank"]


@pytest.mark.parametrize("name", ["entities.csv", "entities.jsonl", "entities.parquet", "duckdb"])
def test_awkward_ids_are_kept_byte_for_byte(tmp_path, name):
    frame = pd.DataFrame({"entity_id": AWKWARD_IDS, "text": [f"text of {key!r}" for key in AWKWARD_IDS]}, dtype="str")
    sources = {}
    if name == "duckdb":
        with duckdb.connect(str(tmp_path / "in.duckdb")) as connection:
            connection.execute("CREATE TABLE t AS SELECT * FROM frame")
        sources["entities"] = f"duckdb:{tmp_path / 'in.duckdb'}#SELECT * FROM t"
    elif name.endswith(".csv"):
        frame.to_csv(tmp_path / name, index=False)
    elif name.endswith(".jsonl"):
        frame.to_json(tmp_path / name, orient="records", lines=True)
    else:
        frame.to_parquet(tmp_path / name)
    table = read_entities(settings_for(tmp_path, **(sources or {"entities": name})))
    assert list(table.frame["entity_id"]) == AWKWARD_IDS
    assert list(table.frame["text"]) == list(frame["text"])
    assert table.refused == []


def test_cp1252_is_read_right_and_said(tmp_path):
    table = entities_of(tmp_path, "entity_id,text\n1,Caf\u00e9 \u20ac \u2013 na\u00efve\n".encode("cp1252"))
    assert rows(table) == [("1", "Café € – naïve")]
    assert "read as cp1252" in table.warnings[0]


def test_a_stray_byte_in_a_utf8_file_refuses_its_row_and_garbles_no_other(tmp_path):
    content = "entity_id,text\n1,Kantō\n2,bad \udce9\n3,München\n".encode("utf-8", "surrogateescape")
    table = entities_of(tmp_path, content)
    assert rows(table) == [("1", "Kantō"), ("3", "München")]
    assert reasons(table) == ["line 3: byte 0xE9 is not UTF-8"]


def test_bytes_that_no_encoding_explains_refuse_their_row(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n1,fine\n2,\x81\x8d\n")
    assert rows(table) == [("1", "fine")]
    assert reasons(table) == ["line 3: byte 0x81 is not UTF-8"]


def test_lone_surrogates_become_replacement_characters_and_are_counted(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n1,a\xed\xa0\x80b\n2,fine\n")
    assert rows(table) == [("1", "a\ufffdb"), ("2", "fine")]
    assert "1 encoded lone surrogates became U+FFFD" in table.warnings[0]
    table = entities_of(
        tmp_path, b'{"entity_id": "1", "text": "a\\ud800b"}\n{"entity_id": "\\ud800", "text": "b"}\n', "a.jsonl"
    )
    assert rows(table) == [("1", "a\ufffdb")]
    assert "1 texts hold lone surrogates" in table.warnings[0]
    assert reasons(table) == ["line 2: entity_id holds a lone surrogate, which no id can"]


def test_nul_and_control_characters_are_plain_text(tmp_path):
    assert rows(entities_of(tmp_path, b"entity_id,text\n1,a\x00b\x07\n")) == [("1", "a\x00b\x07")]


def test_a_long_row_is_kept_whole_among_others(tmp_path):
    long = "word " * 40_000
    content = "entity_id,text\n" + "".join(f"{n},{long if n == 500 else 'short'} {n}\n" for n in range(1000))
    table = entities_of(tmp_path, content.encode())
    assert (table.rows_in, len(table.frame), table.refused) == (1000, 1000, [])
    assert table.frame["text"][500] == f"{long} 500"


def test_a_column_that_is_numeric_for_20_000_rows_and_then_text_stays_text(tmp_path):
    content = "entity_id,text,text_version\n" + "".join(f"{n:06d},{n},1\n" for n in range(20_000)) + "x1,later,1\n"
    table = entities_of(tmp_path, content.encode())
    assert len(table.frame) == table.rows_in == 20_001
    assert list(table.frame.iloc[[0, 7, -1]]["entity_id"]) == ["000000", "000007", "x1"]


def test_a_first_bad_row_after_5_000_good_ones_is_refused_alone(tmp_path):
    content = "entity_id,text\n" + "".join(f"{n},text {n}\n" for n in range(6_000)) + "6000,\n6001,ok\n"
    table = entities_of(tmp_path, content.encode())
    assert table.refused == [RefusedRow("entities", "6000", "line 6002: text is empty")]
    assert len(table.frame) == 6_001


# --- what is refused


def test_ragged_rows_are_refused_with_their_line_and_shift_nothing(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n1,one\n2\n3,three,3\n4,four\n")
    assert rows(table) == [("1", "one"), ("4", "four")]
    assert reasons(table) == [
        "line 3: has 1 cells where the header has 2",
        "line 4: has 3 cells where the header has 2",
    ]


def test_line_numbers_stay_right_after_cells_with_newlines(tmp_path):
    table = entities_of(tmp_path, b'entity_id,text\n1,"a\nb\nc"\n2,\n')
    assert reasons(table) == ["line 5: text is empty"]


def test_a_broken_quote_refuses_its_row_only_where_the_next_row_is_certain(tmp_path):
    table = entities_of(tmp_path, b'entity_id,text\n1,"ab"c\n2,two\n')
    assert rows(table) == [("2", "two")]
    assert reasons(table)[0].startswith("line 2: has broken quotes")
    for open_quote in (
        b'entity_id,text\n1,"text "quoted" more\nline two",x\n',
        b'entity_id,text\n1,one\n2,"two\n3,three\n',
    ):
        message = refusal(tmp_path, open_quote)
        assert "double the quotes" in message
    # The inch mark makes the quotes even; the cell is open all the same, and takes the rest of the file with it.
    assert "line 2" in refusal(tmp_path, b'entity_id,text\n5" pipe,"abc\n2,two\n3,three\n')


@pytest.mark.parametrize("cell", ["", " ", "\t", "\u200b", "\u00a0\ufeff", "\x00"])
def test_empty_and_blank_ids_and_texts_are_refused(tmp_path, cell):
    lines = [{"entity_id": "1", "text": cell}, {"entity_id": cell, "text": "x"}, {"entity_id": "3", "text": "ok"}]
    table = entities_of(tmp_path, "\n".join(map(json.dumps, lines)).encode(), "a.jsonl")
    word = "empty" if not cell else "blank"
    assert reasons(table) == [f"line 1: text is {word}", f"line 2: entity_id is {word}"]
    assert [refused.row_id for refused in table.refused] == ["1", "line 2"]


def test_json_values_that_are_not_text_are_refused_and_whole_number_ids_kept_as_written(tmp_path):
    lines = [
        '{"entity_id": 9912140633506421, "text": "a"}',
        '{"entity_id": 123456789012345678901234567890, "text": "b"}',
        '{"entity_id": 1e5, "text": "c"}',
        '{"entity_id": 1.0, "text": "d"}',
        '{"entity_id": true, "text": "e"}',
        '{"entity_id": null, "text": "f"}',
        '{"entity_id": "7", "text": 7}',
        '{"entity_id": "8", "text": ["x"]}',
        '{"entity_id": "9", "text": null}',
        '{"entity_id": NaN, "text": "g"}',
        '{"entity_id": "10"}',
        '{"entity_id": "11", "text": "x", "text": "y"}',
        "[1]",
        "{",
        "[" * 100_000,
    ]
    table = entities_of(tmp_path, "\r\n".join(lines).encode(), "a.jsonl")
    assert rows(table) == [("9912140633506421", "a"), ("123456789012345678901234567890", "b")]
    assert sorted(reasons(table)) == sorted(
        [
            "line 3: entity_id is a number, not text",
            "line 4: entity_id is a number, not text",
            "line 5: entity_id is true/false, not text",
            "line 6: entity_id is null",
            "line 7: text is a whole number, not text",
            "line 8: text is a list, not text",
            "line 9: text is null",
            "line 10: entity_id is NaN, not text",
            "line 11: has no text",
            "line 12: says text twice",
            "line 13: is no JSON object",
            "line 14: is no JSON: Expecting property name enclosed in double quotes at character 3",
            "line 15: is nested too deeply",
        ]
    )


def test_a_missing_file_or_format_is_one_line(tmp_path):
    settings = settings_for(tmp_path)
    with pytest.raises(SourceError, match=r"entities\.csv: no such file"):
        read_entities(settings)
    assert "expected .csv" in refusal(tmp_path, b"x", "entities.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SourceError, match="cannot be read"):
        read_entities(settings_for(tmp_path, entities="folder.csv"))
    assert "not a readable Parquet file" in refusal(tmp_path, b"entity_id,text\n", "a.parquet")
    assert "is empty; expected a header" in refusal(tmp_path, b"")
    assert "line 1: is no JSON" in refusal(tmp_path, b"entity_id,text\n1,x\n", "a.jsonl")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"id,text\n1,x\n"),
        ("a.jsonl", b'{"id": "1", "text": "x"}\n'),
        ("a.csv", b"\xef\xbb\xbfid;text\n1;x\n"),
    ],
)
def test_wrong_columns_name_the_file_what_was_found_and_what_was_expected(tmp_path, name, content):
    message = refusal(tmp_path, content, name)
    assert str(tmp_path / name) in message
    assert "found columns id, text; expected entity_id, text" in message


def test_a_column_that_stands_twice_is_refused_not_guessed(tmp_path):
    assert '"text" stands 2 times' in refusal(tmp_path, b"entity_id,text,text\n1,a,b\n")


def test_other_column_names_are_mapped_and_a_mapped_one_must_be_there(tmp_path):
    columns = {"entities": {"entity_id": "code", "text": "profile"}}
    table = entities_of(tmp_path, b"code,profile,text\n1,right,wrong\n", columns=columns)
    assert rows(table) == [("1", "right")]
    versioned = {"entities": {"text_version": "edited"}}
    assert "expected entity_id, text, edited" in refusal(tmp_path, b"entity_id,text\n1,x\n", columns=versioned)


def test_a_header_alone_is_an_empty_table_with_its_columns(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n")
    assert (list(table.frame.columns), table.rows_in) == (["entity_id", "text", "text_version"], 0)
    assert [str(kind) for kind in table.frame.dtypes] == ["str"] * 3


# --- duplicates and versions


def test_a_duplicate_id_with_other_text_refuses_both_rows_and_names_them(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n1,one\n2,two\n1,uno\n")
    assert rows(table) == [("2", "two")]
    assert reasons(table) == [
        "line 2: duplicate entity_id: says something else than line 4",
        "line 4: duplicate entity_id: says something else than line 2",
    ]


def test_a_repeated_row_is_refused_and_the_first_one_kept(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text\n1,one\n1,one\n")
    assert rows(table) == [("1", "one")]
    assert reasons(table) == ["line 3: duplicate entity_id: says the same again as line 2"]


def test_a_constant_column_taken_for_the_id_does_not_take_for_ever(tmp_path):
    content = "entity_id,text\n" + "".join(f"same,{n}\n" for n in range(30_000))
    table = entities_of(tmp_path, content.encode())
    assert len(table.refused) == 30_000
    assert reasons(table)[0].endswith("line 3, line 4, line 5, line 6, line 7 and 29994 more")


def test_same_text_under_two_ids_and_look_alike_ids_are_warned_of_not_refused(tmp_path):
    table = entities_of(tmp_path, "entity_id,text\nab,one\nAB,two\na b,one\nx\u0301,three\ną,four\n".encode())
    assert len(table.frame) == 5
    assert any("1 texts stand under several ids: 'ab' (line 2) and 'a b' (line 4)" in said for said in table.warnings)
    assert any("1 sets of ids differ only by case, blanks" in said for said in table.warnings)


def test_the_highest_version_counts_as_a_number_and_older_ones_are_no_fault(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text,text_version\n1,old,9\n1,new,10\n2,only,\n")
    assert rows(table) == [("1", "new"), ("2", "only")]
    assert (table.redundant, table.refused) == (1, [])


def test_equal_versions_with_different_texts_are_refused(tmp_path):
    table = entities_of(tmp_path, b"entity_id,text,text_version\n1,a,2024-01-02\n1,b,2024-01-02\n1,c,2023-12-31\n")
    assert rows(table) == []
    assert (len(table.refused), table.redundant) == (2, 1)


# --- catalog and references


def test_the_catalog_keeps_its_order_and_groups(tmp_path):
    (tmp_path / "catalog.csv").write_text("candidate_id,text,group\nb,Second,g\na,First,\n", encoding="utf-8")
    frame = read_catalog(settings_for(tmp_path)).frame
    assert frame.to_numpy().tolist() == [["b", "Second", "g"], ["a", "First", ""]]
    (tmp_path / "catalog.csv").write_text("candidate_id,text\nb,Second\n", encoding="utf-8")
    assert read_catalog(settings_for(tmp_path)).frame["group"].tolist() == [""]


def references_of(folder: Path, content: str, **sources: object) -> SourceTable:
    (folder / "references.csv").write_text(content, encoding="utf-8")
    return read_references(settings_for(folder, **sources))


def test_labels_are_read_in_every_spelling_and_nothing_else_is_guessed(tmp_path):
    spelled = ["1", "true", "YES", " Yes ", "TRUE", "0", "false", "No", "maybe", "2", "", "y"]
    table = references_of(
        tmp_path, "entity_id,candidate_id,label\n" + "".join(f"e{n},c,{s}\n" for n, s in enumerate(spelled))
    )
    assert table.frame["label"].tolist() == [True] * 5 + [False] * 3
    assert table.frame["label"].dtype == bool
    assert [refused.row_id for refused in table.refused] == ["e8 / c", "e9 / c", "e10 / c", "e11 / c"]
    assert table.refused[0].reason == "line 10: label is 'maybe'; expected 1/0, true/false or yes/no"


def test_without_a_label_column_every_row_is_yes_unless_negatives_must_be_listed(tmp_path):
    assert references_of(tmp_path, "entity_id,candidate_id\ne,c\n").frame["label"].tolist() == [True]
    with pytest.raises(SourceError, match="expected entity_id, candidate_id, label"):
        references_of(tmp_path, "entity_id,candidate_id\ne,c\n", unlisted="unknown")


def test_a_reference_listed_again_is_counted_and_neither_kept_twice_nor_refused(tmp_path):
    table = references_of(tmp_path, "entity_id,candidate_id,label\ne,c,1\ne,c,yes\ne,c,0\n")
    assert table.frame["label"].tolist() == [True, False]
    assert (table.rows_in, table.redundant, table.refused) == (3, 1, [])


def test_references_that_cannot_be_used_are_refused_with_their_reason():
    frame = pd.DataFrame(
        {
            "entity_id": ["e", "x", "e", "e", "e", "e", "007", "7"],
            "candidate_id": ["c", "c", "x", "left", "d", "d", "c", "c"],
            "label": [True, True, True, True, True, False, True, True],
        }
    )
    check = check_references(frame, {"e", "007"}, ["c", "d"], ["left"])
    assert check.kept[["entity_id", "candidate_id"]].to_numpy().tolist() == [["e", "c"], ["e", "left"], ["007", "c"]]
    assert check.left_out == 1
    assert [(refused.row_id, refused.reason) for refused in check.refused] == [
        ("x / c", "unknown entity"),
        ("e / x", "unknown candidate"),
        ("e / d", "contradictory: listed as YES and as NO"),
        ("e / d", "contradictory: listed as YES and as NO"),
        ("7 / c", "unknown entity"),
    ]


def test_no_references_at_all_are_checked_without_complaint():
    empty = pd.DataFrame({"entity_id": [], "candidate_id": [], "label": []}).astype({"label": bool})
    check = check_references(empty, ["e"], ["c"])
    assert (len(check.kept), check.refused, check.left_out) == (0, [], 0)


# --- Parquet and DuckDB


def test_parquet_types_that_are_no_ids_or_texts_are_refused_row_by_row(tmp_path):
    table = pa.table(
        {
            "entity_id": pa.array([7, None, 9912140633506421], pa.int64()),
            "text": pa.array(["a", "b", None], pa.dictionary(pa.int32(), pa.string())),
            "other": pa.array([[1], [2], [3]]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    read = read_entities(settings_for(tmp_path, entities="a.parquet"))
    assert rows(read) == [("7", "a")]
    assert reasons(read) == ["row 2: entity_id is null", "row 3: text is null"]
    pq.write_table(pa.table({"entity_id": [1.0, 2.5], "text": ["a", "b"]}), tmp_path / "b.parquet")
    assert reasons(read_entities(settings_for(tmp_path, entities="b.parquet"))) == [
        "row 1: entity_id is a number, not text",
        "row 2: entity_id is a number, not text",
    ]
    pq.write_table(pa.table({"entity_id": ["1"], "text": [b"bytes"]}), tmp_path / "c.parquet")
    assert reasons(read_entities(settings_for(tmp_path, entities="c.parquet"))) == [
        "row 1: text is of type binary, not text"
    ]


def test_a_parquet_string_that_is_not_utf8_refuses_its_row(tmp_path):
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xe9\xff"], pa.binary()).buffers())
    pq.write_table(pa.table({"entity_id": ["1", "2"], "text": text}), tmp_path / "a.parquet")
    table = read_entities(settings_for(tmp_path, entities="a.parquet"))
    assert (rows(table), reasons(table)) == ([("1", "ok")], ["row 2: is not UTF-8"])


def database(folder: Path) -> Path:
    path = folder / "in.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT * FROM (VALUES ('007', 'one'), ('1e5', 'two')) AS v(code, body)")
    return path


def test_a_duckdb_query_is_read_and_its_digest_ignores_the_order_of_rows(tmp_path):
    path = database(tmp_path)
    tables = [
        read_entities(
            settings_for(tmp_path, entities=f"duckdb:{path}#SELECT code AS entity_id, body AS text FROM t {order}")
        )
        for order in ("ORDER BY code", "ORDER BY code DESC", "WHERE code <> '007'")
    ]
    assert sorted(rows(tables[0])) == sorted(rows(tables[1])) == [("007", "one"), ("1e5", "two")]
    assert tables[0].digest == tables[1].digest != tables[2].digest


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("{path}#SELECT code AS entity_id FROM t", "expected entity_id, text"),
        ("{path}#SELECT nothing FROM t", "nothing"),
        ("{path}#DROP TABLE t", "exactly one SELECT"),
        ("{path}#SELECT 1 AS entity_id, 2 AS text; SELECT 3", "exactly one SELECT"),
        ("{path}#SELEC", "syntax error"),
        ("{path}#", "expected duckdb:PATH#SELECT"),
        ("{path}", "expected duckdb:PATH#SELECT"),
        ("{path}.none#SELECT 1", "no such database file"),
    ],
)
def test_a_query_that_cannot_be_used_is_one_line_and_changes_nothing(tmp_path, location, said):
    path = database(tmp_path)
    with pytest.raises(SourceError, match=said) as caught:
        read_entities(settings_for(tmp_path, entities="duckdb:" + location.format(path=path)))
    assert "\n" not in str(caught.value)
    with duckdb.connect(str(path), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_a_file_that_is_no_database_is_one_line(tmp_path):
    (tmp_path / "a.duckdb").write_bytes(b"entity_id,text\n" * 1000)
    with pytest.raises(SourceError, match="not a readable DuckDB file"):
        read_entities(settings_for(tmp_path, entities=f"duckdb:{tmp_path}/a.duckdb#SELECT 1"))


HOLDER = """
import sys, duckdb
with duckdb.connect(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_database_held_by_a_writer_is_waited_for_and_then_named(tmp_path):
    path = str(database(tmp_path))
    wanted = Wanted(("code", "body"))
    command = [sys.executable, "-c", HOLDER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"held\n"
        with pytest.raises(SourceError, match=rf"locked by a writer for 0.3 s.*\b{writer.pid}\b"):
            read_duckdb(f"{path}#SELECT * FROM t", wanted, "1GB", tmp_path / "spill", wait_seconds=0.3)
        writer.stdin.close()
        raw, _ = read_duckdb(f"{path}#SELECT * FROM t", wanted, "1GB", tmp_path / "spill", wait_seconds=60)
        assert len(raw.rows) == 2


# --- nothing is lost, whatever happens to the bytes


def test_a_table_that_lost_a_row_cannot_be_made():
    with pytest.raises(AssertionError, match="3 rows in, but 1 kept, 0 refused, 0 redundant"):
        SourceTable(pd.DataFrame({"entity_id": ["1"]}), [], [], 3, "", "x.csv")


PIECES = [
    b'"',
    b",",
    b";",
    b"\n",
    b"\r",
    b"\r\n",
    b"\t",
    b"\x00",
    b"\xe9",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"x",
]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 2_000), st.integers(0, 3), st.sampled_from(PIECES)), min_size=1, max_size=4
    ),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    name=st.sampled_from(["entities.csv", "entities.jsonl"]),
)
def test_damaged_bytes_are_refused_and_never_shift_a_row(tmp_path, edits, quoting, name):
    original = [
        (f"id{n:02d}", f'id{n:02d} says, "well"\nand more' if n % 3 == 0 else f"id{n:02d} plain") for n in range(20)
    ]
    if name.endswith("csv"):
        stream = io.StringIO(newline="")
        csv.writer(stream, quoting=quoting).writerows([("entity_id", "text"), *original])
        content = stream.getvalue().encode()
    else:
        content = "\n".join(json.dumps({"entity_id": key, "text": text}) for key, text in original).encode()
    for position, removed, piece in edits:
        at = position % (len(content) + 1)
        content = content[:at] + piece + content[at + removed :]
    try:
        table = entities_of(tmp_path, content, name)
    except SourceError as error:
        assert "\n" not in str(error)
        return
    # A text names its id, so a shifted row shows. An edit can spoil the rows it touches: two, where it ate a line end.
    spoiled = [row for row in rows(table) if row not in original]
    assert len(spoiled) <= 2 * len(edits)
    shifted = [
        row for row in spoiled if row[0] in dict(original) and row[1][:4] in dict(original) and row[0] != row[1][:4]
    ]
    assert len(shifted) <= len(edits)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_rows_or_one_line(content):
    try:
        table = read_delimited(b"entity_id,text\n" + content, Wanted(("entity_id", "text")), "any.csv")
    except SourceError as error:
        assert "\n" not in str(error)
    else:
        assert all(len(cells) == 2 and all(isinstance(cell, str) for cell in cells) for _, cells in table.rows)
