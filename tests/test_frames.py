"""Data frames in and out: every pair once, as the labeler scores it alone, and nothing unusable taken in silence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from semlabel.errors import LabelerError, SourceError
from semlabel.labeler import Labeler
from tests.serving_fixtures import make_labelers

ENTITIES = pd.DataFrame(
    {
        "entity_id": ["007", "1e5", "nan"],
        "text": ["gives the patient medicine", "joins metal parts " * 40, "keeps records"],
    }
)
CATALOG = pd.DataFrame({"candidate_id": ["b", "a"], "text": ["weld metal parts", "keep the records of a small office"]})


@pytest.fixture(scope="module")
def labelers(tmp_path_factory):
    folders = make_labelers(tmp_path_factory.mktemp("frames"), thresholds=(0.25, None))
    return [Labeler.load(folder, device="cpu") for folder in folders]


def test_every_pair_stands_once_with_the_margin_it_has_alone(labelers):
    labeler = labelers[0]
    frame = labeler.label_frame(ENTITIES, CATALOG)
    assert list(frame.columns) == ["entity_id", "candidate_id", "margin", "probability", "label", "truncated"]
    assert list(frame["entity_id"]) == ["007", "007", "1e5", "1e5", "nan", "nan"]
    assert list(frame["candidate_id"]) == ["b", "a"] * 3
    assert list(frame["truncated"]) == [False, False, True, True, False, False]
    alone = np.concatenate([labeler.score(text, list(CATALOG["text"])) for text in ENTITIES["text"]])
    assert list(frame["margin"]) == list(alone)
    assert list(frame["label"]) == [bool(margin >= 0.25) for margin in alone.astype(np.float64)]
    assert frame["label"].dtype == bool
    assert list(frame["probability"]) == list(labeler.probabilities(alone))


def test_an_uncertified_labeler_leaves_labels_open_and_does_not_decide(labelers):
    frame = labelers[1].score_frame(ENTITIES, CATALOG)
    assert frame["label"].isna().all() and frame["probability"].isna().all()
    assert frame["margin"].notna().all()
    with pytest.raises(LabelerError, match="use score_frame"):
        labelers[1].label_frame(ENTITIES, CATALOG)


def test_an_empty_table_gives_an_empty_table_with_its_columns(labelers):
    for entities, catalog in ((ENTITIES[:0], CATALOG), (ENTITIES, CATALOG[:0])):
        frame = labelers[0].label_frame(entities, catalog)
        assert len(frame) == 0
        assert frame.dtypes.astype(str).to_dict()["margin"] == "float32"


def test_plain_columns_are_enough(labelers):
    plain = {"entity_id": ["x"], "text": ["keeps records"]}, {"candidate_id": ["a"], "text": ["weld"]}
    assert len(labelers[0].label_frame(*plain)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ["x"], "text": ["y"]}, "entities: no column entity_id among id, text; rename yours"),
        ({"entity_id": ["x", None], "text": ["y", "z"]}, "entities: entity_id is blank or no text in row 1 "),
        ({"entity_id": [7], "text": ["y"]}, "entity_id is blank or no text in row 0 "),
        ({"entity_id": ["x", "z"], "text": ["y", " "]}, "entities: text is blank or no text in row 1 "),
        ({"entity_id": ["x", "z", "x"], "text": ["y"] * 3}, "entity_id 'x' stands there before, in row 2 "),
    ],
)
def test_what_cannot_be_used_is_named_by_row(labelers, change, said):
    with pytest.raises(SourceError) as error:
        labelers[0].score_frame(pd.DataFrame(change), CATALOG)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_candidate_that_is_too_long_is_named(labelers):
    with pytest.raises(SourceError, match=r"catalog: b: .*tokens"):
        labelers[0].score_frame(ENTITIES, CATALOG.assign(text=["weld " * 300, "keep"]))


def test_a_notebook_shows_what_a_labeler_is_and_runs_nothing_of_it(labelers):
    labeler = labelers[0]
    shown = labeler._repr_html_()
    for words in (labeler.digest[:12], "0.25", "min_precision 0.5", "calibrated", "Profile: {entity}"):
        assert words in shown
    hostile = Labeler(
        labeler.path,
        labeler.manifest.model_copy(update={"base_model": "<script>alert(1)</script>", "certified": "<img src=x>"}),
        labeler.scorer,
    )
    shown = hostile._repr_html_()
    assert "<script" not in shown and "<img" not in shown
    assert "&lt;script&gt;" in shown
    assert "it scores but does not decide" in labelers[1]._repr_html_()


def test_a_labeler_that_scores_single_texts_needs_no_pandas():
    code = "import sys; import semlabel.labeler; print('pandas' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    assert found.stdout.strip() == "False", found.stderr
