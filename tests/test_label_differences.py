"""Two machines' labels: differing by rounding is counted, anything more is not called the same."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semlabel.cli import run_command
from semlabel.errors import SourceError
from semlabel.label_differences import DifferingPair, compare, rounding_of
from semlabel.manifest import read_manifest
from semlabel.metrics import label_flips
from tests.serving_fixtures import make_labelers

CUT = 0.25


def written(path, margins, **columns):
    """A Parquet file of e0..eN with one candidate each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = [f"e{number:04}" for number in range(len(margins))]
    values = pa.array([None if one is None else np.float32(one) for one in margins], pa.float32())
    pq.write_table(pa.table({"entity_id": ids, "candidate_id": ["c"] * len(ids), "margin": values} | columns), path)
    return path


def test_only_labels_beyond_rounding_make_two_scorings_different(tmp_path):
    first = written(tmp_path / "a.parquet", [0.2, 0.3, 0.26, 3.0, 0.25, -1.0])
    near = compare(first, written(tmp_path / "b.parquet", [0.27, 0.3, 0.24, 3.1, 0.25, -1.0]), CUT, 0.1)
    assert near.same and (near.pairs, near.moved, near.near, near.changed_near, near.changed) == (6, 3, 4, 2, 0)
    assert near.largest == pytest.approx(0.1, abs=1e-6) and (near.yes, near.examples) == (5, ())
    far = compare(first, written(tmp_path / "c.parquet", [0.2, 0.3, 0.26, 0.1, 0.25, 1.0]), CUT, 0.1)
    assert not far.same and (far.changed, far.changed_near) == (2, 0)
    assert far.examples == (DifferingPair("e0003", "c", 3.0, np.float32(0.1)), DifferingPair("e0005", "c", -1.0, 1.0))


def test_a_margin_on_the_cut_is_yes_and_equal_files_are_equal_bit_for_bit(tmp_path):
    first = written(tmp_path / "a.parquet", [CUT, np.nextafter(np.float32(CUT), np.float32(0))])
    found = compare(first, first, CUT, 0.0)
    assert found.same and (found.moved, found.largest, found.yes, found.near) == (0, 0.0, 1, 0)


def test_the_counts_are_those_of_the_one_rule_for_flips(tmp_path):
    chance = np.random.default_rng(1)
    one = chance.normal(0, 1, 5000).astype(np.float32)
    two = (one + chance.normal(0, 0.1, 5000)).astype(np.float32)
    found = compare(written(tmp_path / "a.parquet", one), written(tmp_path / "b.parquet", two), CUT, 0.05)
    expected = label_flips(one, two, CUT, 0.05)
    assert (found.changed, found.changed_near, found.yes, found.pairs) == (
        *(expected.flips, expected.within_rounding, expected.yes_either, expected.pairs),
    )
    assert found.changed > 20 and len(found.examples) == 20


def test_pairs_that_one_side_lacks_are_no_rounding(tmp_path):
    whole = written(tmp_path / "whole.parquet", [1.0, 2.0, 3.0])
    for other in ([1.0, 2.0], [1.0, 2.0, None]):
        found = compare(whole, written(tmp_path / "part.parquet", other), CUT, 0.1)
        assert not found.same and (found.pairs, found.only_first, found.only_second) == (2, 1, 0)
        assert "1 are only in the first" in found.sentence()
    nothing = written(tmp_path / "nothing.parquet", [])
    assert not compare(nothing, nothing, CUT, 0.1).same


def test_a_published_version_is_its_predictions_and_a_folder_all_its_files(tmp_path):
    version = tmp_path / "version"
    written(version / "predictions" / "part.parquet", [1.0, 2.0])
    written(version / "labels" / "part.parquet", [1.0])
    written(version / "changes.parquet", [9.0])
    assert (
        compare(version, written(tmp_path / "folder" / "x" / "a.parquet", [1.0, 2.0]).parents[1], CUT, 0.1).pairs == 2
    )


def test_what_holds_no_predictions_or_one_pair_twice_is_one_line(tmp_path):
    good = written(tmp_path / "good" / "a.parquet", [1.0])
    bad, other = tmp_path / "bad.parquet", tmp_path / "other.parquet"
    bad.write_text("no parquet")
    pq.write_table(pa.table({"entity_id": ["e"]}), other)
    written(tmp_path / "good" / "b.parquet", [1.0])
    for path, said in (
        (tmp_path / "none", "no Parquet file there"),
        (bad, "cannot be read"),
        (other, "no column candidate_id, margin among entity_id"),
        (tmp_path / "good", "entity 'e0000' with candidate 'c' stands there twice"),
    ):
        with pytest.raises(SourceError, match=said) as refused:
            compare(path, good, CUT, 0.1)
        assert "\n" not in str(refused.value)


def test_the_command_takes_cut_and_rounding_from_the_labeler(tmp_path, capsys):
    labeler = make_labelers(tmp_path)[0]
    manifest = read_manifest(labeler)
    assert manifest.threshold == CUT and rounding_of(manifest, 0.5) == 0.5
    seen = manifest.model_copy(update={"evidence": {"mis_matches_single_item": {"value": 0.05}}})
    assert (rounding_of(seen, 0.5), rounding_of(seen, 0.01)) == (0.05, 0.01)
    first = written(tmp_path / "a.parquet", [1.0, 0.2501])
    second = written(tmp_path / "b.parquet", [1.0, 0.2499])
    command = ["bench", "compare", str(first), str(second), "--labeler", str(labeler)]
    assert run_command([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same"] and told["changed_near"] == 1 and told["rounding"] > 0
    assert run_command([*command, "--rounding", "0"]) == 1
    out, err = capsys.readouterr()
    assert "e0001" in out and "are not the same labels" in err
