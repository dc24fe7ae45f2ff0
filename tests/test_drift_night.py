"""What a night is counted as, from real files: every figure against a plain count over the two tables."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from semlabel.drift import night
from semlabel.drift.quality import LENGTH
from semlabel.drift.state import History, read_history, write_history
from semlabel.drift.sums import Sums
from semlabel.erase_versions import erase_from_versions
from semlabel.published import verify_version
from semlabel.sources import ERASED
from tests.storage import Project
from tests.test_publish import Publisher

TEXTS = {f"e{number}": f"text of entity {number}" for number in range(40)}
EDITED = {**TEXTS, **{f"e{number}": f"another text of entity {number}" for number in range(10)}}
CANDIDATES = dict(Project.CATALOG)


@pytest.fixture
def publisher(tmp_path):
    made = Publisher(tmp_path / "project")
    made.put(new_entities=TEXTS)
    yield made
    made.close()


def table(publisher) -> pd.DataFrame:
    return publisher.predictions().set_index(["entity_id", "candidate_id"])["label"].unstack()


def test_flips_and_arrivals_are_those_of_the_two_tables(publisher):
    version = publisher.publish().path
    before = table(publisher)
    after_texts = {name: text for name, text in EDITED.items() if name not in ("e38", "e39")}
    publisher.put(new_entities=after_texts | {f"n{number}": f"new {number}" for number in range(7)})
    publisher.refresh()
    now = table(publisher)
    found = night.night_against(publisher.warehouse, version)
    stayed = now.loc[[name for name in before.index if name in now.index]].astype(int)
    step = stayed - before.loc[stayed.index].astype(int)
    new = now.loc[[name for name in now.index if name.startswith("n")]]
    span = found.span
    assert found.candidates == tuple(CANDIDATES)
    assert span.entities.tolist() == [40] * 5 and span.yes.tolist() == before.sum().tolist()
    assert span.up.tolist() == (step > 0).sum().tolist() and span.down.tolist() == (step < 0).sum().tolist()
    assert span.new.tolist() == [7] * 5 and span.new_yes.tolist() == new.sum().tolist()
    per_entity = step.sum(axis=1)
    assert (span.flip_sum, span.flip_squares) == (per_entity.sum(), (per_entity**2).sum())
    assert span.before == Sums.of(before.sum(axis=1), 5)
    arrived, expected = span.surplus, Sums.of(new.sum(axis=1), 5).less(span.before.share)
    assert vars(arrived) == pytest.approx(vars(expected))
    flips = int((step != 0).sum().sum())
    assert flips > 0 and found.reasons == {"entity_text": flips}
    assert found.share_changed == pytest.approx(
        flips / int((before.loc[stayed.index] | stayed.astype(bool)).sum().sum()), rel=0.1
    )


def test_a_candidate_with_another_text_is_a_reason_of_its_own_and_a_new_one_has_no_past(publisher):
    version = publisher.publish().path
    publisher.put(new_catalog=CANDIDATES | {"c1": "another candidate", "c9": "a new candidate"})
    publisher.refresh()
    found = night.night_against(publisher.warehouse, version)
    place = found.candidates.index("c9")
    assert (found.span.entities[place], found.span.new[place]) == (0, 0)
    assert set(found.reasons) == {"candidate_text"}
    moved = found.span.up + found.span.down
    assert [name for name, count in zip(found.candidates, moved, strict=True) if count] == ["c1"]


def test_a_night_without_changes_moves_nothing(publisher):
    version = publisher.publish().path
    found = night.night_against(publisher.warehouse, version)
    assert found.span.up.sum() == found.span.down.sum() == found.span.new.sum() == 0
    assert (found.reasons, found.share_changed) == ({}, 0.0)


def test_margins_are_measured_per_entity_in_ten_equal_parts(publisher):
    publisher.refresh()
    cuts = night.margin_cuts(publisher.warehouse)
    found = night.measures_now(publisher.warehouse, cuts, 0.5)
    frame = publisher.predictions()
    assert len(cuts) == 9
    parts = [found[f"margins, part {number} of 10"] for number in range(1, 11)]
    assert [part.hits for part in parts] == pytest.approx([len(frame) / 10] * 10, abs=1)
    assert sum(part.hits for part in parts) == len(frame)
    near = (frame["margin"].astype(float) - 0.5).abs() <= 0.5
    assert found["within rounding of tau"] == Sums.of(near.groupby(frame["entity_id"]).sum(), 5)


def test_lengths_scripts_and_refusals_are_counted(publisher):
    texts = {"e1": "straße", "e2": "привет", "e3": "日本語 かな", "e4": "plain words"}
    publisher.put(new_entities=texts)
    publisher.warehouse.add_refused("run", "entities", [("x", "blank text"), ("y", ERASED)])
    publisher.refresh()
    found = night.measures_now(publisher.warehouse, night.margin_cuts(publisher.warehouse), 0.1)
    assert np.exp(found[LENGTH].share) == pytest.approx(np.exp(np.mean(np.log([len(text) for text in texts.values()]))))
    letters = 6 + 6 + 5 + 10
    assert found["letters in Latin"].share == pytest.approx(15 / letters)
    assert found["letters in Latin with marks"].hits == 1
    assert (found["letters in Cyrillic"].hits, found["letters in Han"].hits, found["letters in kana"].hits) == (6, 3, 2)
    assert (found["refused"].hits, found["refused"].entities) == (1, 5)


def references(publisher, rows) -> None:
    frame = pd.DataFrame(rows, columns=["entity_id", "candidate_id", "label"])
    publisher.warehouse.replace_references(frame, "run")


def test_only_references_that_arrived_and_may_be_seen_are_asked(publisher):
    frame = pd.DataFrame({"entity_id": list(TEXTS), "text": list(TEXTS.values())}, dtype=str)
    publisher.warehouse.replace_entities(frame.assign(split=["test", "certify", "calibrate", *[""] * 37]), "run")
    known = [("e2", "c0", True), ("e5", "c0", True)]
    references(publisher, known)
    publisher.warehouse.replace_training_pairs(
        pd.DataFrame({"entity_id": ["e6"], "candidate_id": ["c0"], "label": [True], "split": ["train"]}), "run"
    )
    version = publisher.publish().path
    night.write_references(publisher.warehouse, version)
    assert night.agreement_of_arrivals(publisher.warehouse, version) == {}
    labels = table(publisher)
    assert night.agreement_at_first(publisher.warehouse)["agreement with references of YES"] == Sums.of(
        [int(labels.loc["e2", "c0"])], [1]
    )
    arrived = [("e7", "c0", True), ("e7", "c1", True), ("e8", "c2", True)]
    references(publisher, [*known, *arrived, ("e0", "c0", True), ("e1", "c0", True), ("e6", "c0", True)])
    found = night.agreement_of_arrivals(publisher.warehouse, version)
    hits = [int(labels.loc["e7", "c0"]) + int(labels.loc["e7", "c1"]), int(labels.loc["e8", "c2"])]
    assert found == {"agreement with references of YES": Sums.of(hits, [2, 1])}


def test_an_erased_entity_is_gone_from_the_known_references_and_the_history_stays(publisher):
    references(publisher, [("e2", "c0", True), ("e5", "c0", True)])

    def carry(staged, version, previous):
        assert previous is None
        night.write_references(publisher.warehouse, staged)
        write_history(staged, History("labeler", version, tuple(CANDIDATES), (), {}, {}))

    version = publisher.publish(add_files=carry).path
    erase_from_versions(publisher.target, "e2")
    kept = pq.read_table(version / "drift" / "references.parquet")["entity_id"].to_pylist()
    assert kept == ["e5"]
    assert read_history(version).first_version == version.name
    verify_version(version)
