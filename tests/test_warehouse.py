"""What the warehouse must refuse, keep byte for byte, or leave alone."""

import datetime
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semlabel import warehouse_schema
from semlabel.errors import WarehouseError
from semlabel.warehouse import ScoredRound, Warehouse
from semlabel.warehouse_file import translated
from semlabel.warehouse_scores import ensure_blocks
from tests.storage import Project, Scorer, catalog, entities, margin


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    yield project
    project.close()


def tables(warehouse):
    """Everything but the times of checking, as plain rows."""
    names = [
        name for (name,) in warehouse.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary ORDER BY 1")
    ]
    content = {name: sorted(map(repr, warehouse.rows(f"SELECT * FROM {name}"))) for name in names if name != "meta"}
    content["content_digests"] = warehouse.rows("SELECT * EXCLUDE (checked_at) FROM content_digests ORDER BY 1")
    return content


def a_round(project, position=0, **changes):
    """A correct scored round of the first entity and the first two candidates, with changes."""
    ((text_key,),) = project.warehouse.rows("SELECT text_key FROM entities WHERE entity_id = 'e1'")
    keys = [key for (key,) in project.warehouse.rows("SELECT text_key FROM catalog ORDER BY position LIMIT 2")]
    with project.warehouse.transaction() as connection:
        (block_id,) = ensure_blocks(connection, [keys])
    made = {
        "text_key": text_key,
        "block_id": block_id,
        "candidate_text_keys": keys,
        "margins": np.array([0.5, -1.5], dtype=np.float32),
    }
    return ScoredRound(**(made | changes))


# Sources


def test_equal_content_in_another_order_changes_nothing(project):
    project.refresh()
    before, digests = tables(project.warehouse), project.warehouse.predictions_digest()
    shuffled = entities(Project.ENTITIES).iloc[[2, 0, 1]]
    outcome = project.warehouse.replace_entities(shuffled, "later")
    assert (outcome.changed, outcome.added, outcome.removed, outcome.edited) == (False, 0, 0, 0)
    assert not project.warehouse.replace_catalog(catalog(Project.CATALOG).iloc[::-1], "later").changed
    assert tables(project.warehouse) == before
    assert project.warehouse.predictions_digest() == digests
    assert project.plan().rounds == []


def test_a_replacement_touches_only_the_rows_that_differ(project):
    outcome = project.warehouse.replace_entities(entities({"e1": "alpha", "e2": "BETA", "e4": "delta"}), "later")
    assert (outcome.changed, outcome.rows, outcome.added, outcome.removed, outcome.edited) == (True, 3, 1, 1, 1)
    assert dict(project.warehouse.rows("SELECT entity_id, text FROM entities")) == {
        "e1": "alpha",
        "e2": "BETA",
        "e4": "delta",
    }


def test_a_source_read_again_says_when_it_was_checked_but_not_that_it_changed(project):
    first = project.warehouse.content("entities")
    project.warehouse.replace_entities(entities(Project.ENTITIES), "later", source_digest="new bytes, same rows")
    second = project.warehouse.content("entities")
    assert second["checked_at"] > first["checked_at"]
    assert (second["updated_at"], second["run_id"]) == (first["updated_at"], "run")
    assert second["source_digest"] == "new bytes, same rows"
    assert project.warehouse.content("training_pairs") is None


def test_every_column_of_a_table_is_part_of_its_digest(project):
    frame = entities(Project.ENTITIES).assign(
        text_version=["1", None, "2"], split="train", group_id=[1, None, 3], query_tokens=[5, 6, None], truncated=False
    )
    digests = {project.warehouse.replace_entities(frame, "run").digest}
    for column, value in [
        ("text", "other"),
        ("text_version", "9"),
        ("split", "test"),
        ("group_id", 9),
        ("query_tokens", 9),
        ("truncated", True),
    ]:
        changed = frame.copy()
        changed.loc[0, column] = value
        digests.add(project.warehouse.replace_entities(changed, "run").digest)
    assert len(digests) == 7


def test_rows_whose_columns_only_look_alike_when_joined_have_other_digests(project):
    def digest(split, version):
        frame = entities({"e": "text"}).assign(text_version=version, split=split)
        return project.warehouse.replace_entities(frame, "run").digest

    pairs = [("a", "1:b"), ("a1:b", ""), ("a", None), ("a-", ""), ("", "a"), ("a", "")]
    assert len({digest(*pair) for pair in pairs}) == len(pairs)


def test_an_empty_table_has_content_and_is_not_a_table_never_filled(project):
    assert project.warehouse.content_digest("reference_labels") is None
    empty = pd.DataFrame({"entity_id": [], "candidate_id": [], "label": []})
    outcome = project.warehouse.replace_references(empty, "run")
    assert outcome.rows == 0 and project.warehouse.content_digest("reference_labels") == outcome.digest
    columns = ["entity_id", "candidate_id", "label", "design", "inclusion_probability"]
    assert list(project.warehouse.reference_labels().columns) == columns


def test_training_pairs_keep_their_order(project):
    order = [("e2", "c1"), ("e2", "c0"), ("e1", "c4"), ("e3", "c2")]
    frame = pd.DataFrame(order, columns=["entity_id", "candidate_id"]).assign(label=[True, False, True, True], kind="x")
    first = project.warehouse.replace_training_pairs(frame, "run")
    stored = project.warehouse.training_pairs()
    assert list(zip(stored["entity_id"], stored["candidate_id"], strict=True)) == order
    assert stored["label"].tolist() == [True, False, True, True] and set(stored["split"]) == {"train"}
    assert project.warehouse.replace_training_pairs(frame.iloc[::-1], "run").digest != first.digest
    assert project.warehouse.training_pairs()["entity_id"].tolist() == ["e3", "e1", "e2", "e2"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"entity_id": ["007", "007"], "text": ["a", "b"]}), "'007'"),
        (pd.DataFrame({"entity_id": ["a", None], "text": ["a", "b"]}), "1 rows without entity_id"),
        (pd.DataFrame({"entity_id": ["a"], "text": [None]}), "1 rows without text"),
        (pd.DataFrame({"entity_id": ["a"], "text": [7]}), "no varchar"),
        (pd.DataFrame({"entity_id": ["a"], "text": ["\ud800"]}, dtype=object), "no varchar"),
    ],
)
def test_a_bad_frame_is_refused_and_nothing_is_changed(project, frame, message):
    before = tables(project.warehouse)
    with pytest.raises(WarehouseError, match=message) as refused:
        project.warehouse.replace_entities(frame, "later")
    assert "\n" not in str(refused.value)
    assert tables(project.warehouse) == before
    project.put({"e1": "still usable"})


def test_a_frame_with_wrong_columns_is_a_mistake_of_the_caller(project):
    with pytest.raises(ValueError, match=r"missing columns \['text'\], unknown columns \['txt'\]"):
        project.warehouse.replace_entities(pd.DataFrame({"entity_id": ["a"], "txt": ["b"]}), "run")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("unicode"))
    yield project
    project.close()


@settings(max_examples=12)
@given(
    texts=st.dictionaries(TEXT, TEXT, min_size=1, max_size=4),
    other=st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
)
def test_any_text_goes_in_and_comes_out_byte_for_byte(long_lived, texts, other):
    project = long_lived
    project.put(texts, other)
    score = Scorer()
    project.refresh(score)
    stored = project.warehouse.entities()
    assert dict(zip(stored["entity_id"], stored["text"], strict=True)) == texts
    stored = project.warehouse.catalog()
    assert dict(zip(stored["candidate_id"], stored["text"], strict=True)) == other
    assert set(score.pairs) <= {(entity, candidate) for entity in texts.values() for candidate in other.values()}
    found = project.predictions()
    assert set(zip(found["entity_id"], found["candidate_id"], strict=True)) == {(e, c) for e in texts for c in other}


@pytest.mark.parametrize(
    "nasty", ["a\0b", "'); DROP TABLE scores; --", "007", "1e5", " x ", "nan", "NULL", '"', "<|im_end|>"]
)
def test_ids_that_look_like_something_else_stay_what_they_are(project, nasty):
    project.put({nasty: nasty, "e1": "alpha"}, {nasty: nasty})
    project.refresh()
    project.warehouse.set_scope([nasty], nasty)
    rows = project.warehouse.rows("SELECT entity_id, candidate_id, margin FROM predictions")
    assert rows == [(nasty, nasty, float(margin(nasty, nasty)))]
    assert project.warehouse.add_refused(nasty, nasty, [(nasty, nasty)]) == 1
    assert project.warehouse.rows("SELECT run_id, source, row_id, reason FROM refused_rows") == [(nasty,) * 4]


def test_refused_rows_are_kept_by_run_and_not_for_ever(project):
    for number in range(25):
        project.warehouse.add_refused(f"run {number}", "entities", [("e9", "empty text"), ("e8", "no id")])
    project.warehouse.add_refused("run 24", "entities", [("e9", "empty text")])
    project.warehouse.add_refused("run 24", "catalog", [("c9", "too long")])
    project.warehouse.add_refused("run 24", "catalog", [("c8", "too long")], more=True)
    counts = dict(project.warehouse.rows("SELECT run_id, count(*) FROM refused_rows GROUP BY run_id"))
    assert len(counts) == 20 and counts["run 24"] == 3 and counts["run 23"] == 2 and "run 4" not in counts


# Scores


def test_surrogates_are_integers_and_no_text_identity_is_stored_with_a_score(project):
    project.refresh()
    types = dict(
        project.warehouse.rows(
            "SELECT table_name || '.' || column_name, data_type FROM duckdb_columns() "
            "WHERE table_name IN ('scores', 'blocks', 'texts')"
        )
    )
    assert {name: types[name] for name in types if name.endswith(("_key", "block_id", "position"))} == {
        "blocks.block_id": "INTEGER",
        "blocks.position": "INTEGER",
        "blocks.candidate_text_key": "INTEGER",
        "scores.text_key": "INTEGER",
        "scores.block_id": "INTEGER",
        "scores.scorer_key": "INTEGER",
        "texts.text_key": "INTEGER",
    }
    assert types["scores.margins"] == "FLOAT[]"


BAD_MARGINS = [
    np.array([0.5, np.nan], dtype=np.float32),
    np.array([np.inf, 0.5], dtype=np.float32),
    np.array([0.5], dtype=np.float32),
    np.array([0.5, 0.5, 0.5], dtype=np.float32),
    np.array([[0.5, 0.5]], dtype=np.float32),
    np.array([0.5, 0.5], dtype=np.float64),
    np.array([1, 2]),
]


@pytest.mark.parametrize("margins", BAD_MARGINS, ids=lambda margins: f"{margins.dtype} {margins.tolist()}")
def test_margins_that_cannot_be_right_are_refused_on_write(project, margins):
    with pytest.raises(WarehouseError, match="nothing was stored"):
        project.warehouse.commit_scores([a_round(project, margins=margins)], "scorer", "run")
    assert project.warehouse.rows("SELECT * FROM scores") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"candidate_text_keys": [999_999, 4]},
        {"block_id": 999_999},
        {"text_key": 999_999},
    ],
    ids=["corrupt candidate id", "unknown block", "unknown text"],
)
def test_a_corrupt_identity_between_scorer_and_store_is_refused(project, changes):
    good = a_round(
        project, text_key=project.warehouse.rows("SELECT text_key FROM entities WHERE entity_id = 'e2'")[0][0]
    )
    with pytest.raises(WarehouseError, match="nothing was stored"):
        project.warehouse.commit_scores([good, a_round(project, **changes)], "scorer", "run")
    assert project.warehouse.rows("SELECT * FROM scores") == []


def test_candidates_of_a_block_in_another_order_are_refused(project):
    right = a_round(project)
    swapped = a_round(project, candidate_text_keys=right.candidate_text_keys[::-1])
    with pytest.raises(WarehouseError, match="not those of block"):
        project.warehouse.commit_scores([swapped], "scorer", "run")


def test_two_margins_for_one_pair_in_one_commit_are_refused(project):
    with pytest.raises(WarehouseError, match="two margins for one pair"):
        project.warehouse.commit_scores([a_round(project), a_round(project)], "scorer", "run")


def test_what_was_stored_first_stays_and_only_what_is_new_is_added(project):
    assert project.warehouse.commit_scores([a_round(project)], "scorer", "first") == 2
    again = a_round(project, margins=np.array([9, 9], dtype=np.float32))
    assert project.warehouse.commit_scores([again], "scorer", "second") == 0
    keys = [key for (key,) in project.warehouse.rows("SELECT text_key FROM catalog ORDER BY position LIMIT 3")]
    with project.warehouse.transaction() as connection:
        (block_id,) = ensure_blocks(connection, [keys[::-1]])
    wider = a_round(
        project, block_id=block_id, candidate_text_keys=keys[::-1], margins=np.array([7, 8, 9], dtype=np.float32)
    )
    assert project.warehouse.commit_scores([wider], "scorer", "third") == 1
    rows = project.warehouse.rows("SELECT candidate_id, margin, run_id FROM predictions ORDER BY 1")
    assert rows == [("c0", 0.5, "first"), ("c1", -1.5, "first"), ("c2", 7.0, "third")]
    assert project.warehouse.predictions_count() == 3


def test_the_same_pair_of_another_scorer_is_another_fact(project):
    project.warehouse.commit_scores([a_round(project)], "scorer", "run")
    other = a_round(project, margins=np.array([3, 4], dtype=np.float32))
    assert project.warehouse.commit_scores([other], "other scorer", "run") == 2
    assert project.warehouse.margins("other scorer", ["e1"])["margin"].tolist() == [3, 4]
    assert project.warehouse.margins("scorer", ["e1"])["margin"].tolist() == [0.5, -1.5]


def test_margins_are_read_for_the_asked_entities_and_candidates_only(project):
    project.refresh()
    found = project.warehouse.margins("scorer", ["e3", "e1", "nobody"], ["c2", "c0"])
    assert found["margin"].dtype == np.float32
    assert list(found.itertuples(index=False, name=None)) == [
        (entity, candidate, margin(Project.ENTITIES[entity], Project.CATALOG[candidate]))
        for entity in ("e1", "e3")
        for candidate in ("c0", "c2")
    ]
    assert len(project.warehouse.margins("unknown scorer", ["e1"])) == 0
    assert len(project.warehouse.margins("scorer", [], None)) == 0


# Predictions


def test_label_and_probability_come_from_the_active_labeler_by_sql(project):
    project.refresh()
    found = project.predictions()
    names = (
        "entity_id candidate_id margin probability label threshold labeler_digest scored_at run_id certified truncated"
    )
    assert list(found.columns) == names.split()
    assert len(found) == 15
    margins = found["margin"].to_numpy(dtype=np.float64)
    assert found["label"].tolist() == (margins >= 0.5).tolist()
    np.testing.assert_array_equal(found["probability"], 1 / (1 + np.exp(-(1.5 * margins - 0.25))))
    assert 0 < found["label"].sum() < 15
    assert set(found["labeler_digest"]) == {"labeler"} and found["certified"].all() and not found["truncated"].any()


def test_a_margin_equal_to_the_threshold_is_a_yes_and_the_next_lower_one_is_not(project):
    tau = np.float32(0.1)
    below = np.nextafter(tau, np.float32(-1))
    project.warehouse.activate_labeler("at", "scorer", float(tau))
    project.warehouse.commit_scores([a_round(project, margins=np.array([tau, below]))], "scorer", "run")
    assert project.predictions()["label"].tolist() == [True, False]


def test_an_uncertified_labeler_gives_no_labels_rather_than_all_no(project):
    project.refresh()
    project.warehouse.activate_labeler("uncertified", "scorer", None)
    rows = project.warehouse.rows("SELECT DISTINCT label, threshold, probability FROM predictions")
    assert rows == [(None, None, None)]


def test_extreme_margins_have_probabilities_and_not_errors(project):
    project.warehouse.activate_labeler("steep", "scorer", 0.0, 1000.0, 0.0)
    margins = np.array([3e38, -3e38], dtype=np.float32)
    project.warehouse.commit_scores([a_round(project, margins=margins)], "scorer", "run")
    assert project.predictions()["probability"].tolist() == [1.0, 0.0]


def test_a_labeler_digest_cannot_change_its_meaning(project):
    with pytest.raises(WarehouseError, match="another scorer, threshold"):
        project.warehouse.activate_labeler("labeler", "scorer", 0.75, 1.5, -0.25)
    project.warehouse.activate_labeler("labeler", "scorer", 0.5, 1.5, -0.25)
    assert project.warehouse.active_labeler()["threshold"] == 0.5


def test_an_entity_without_a_passing_candidate_differs_from_one_not_scored(project):
    project.warehouse.activate_labeler("strict", "scorer", 1000.0)
    project.refresh(ids=["e1"])
    found = project.predictions()
    assert found["entity_id"].unique().tolist() == ["e1"] and not found["label"].any()
    coverage = project.warehouse.coverage()
    assert (coverage.expected, coverage.stored) == (15, 5)
    assert coverage.missing == [(entity, f"c{number}") for entity in ("e2", "e3") for number in range(5)]


def test_predictions_are_for_the_scope_and_the_scope_can_be_lifted(project):
    project.refresh()
    everything = project.warehouse.predictions_digest()
    project.warehouse.set_scope(["e2", "e1", "e2"], "held out")
    assert project.warehouse.predictions_count() == len(project.predictions()) == 10
    assert project.warehouse.scope() | {"digest": ""} == {
        "everything": False,
        "description": "held out",
        "digest": "",
        "entities": 2,
    }
    assert project.warehouse.predictions_digest() != everything
    project.warehouse.set_scope(None, "all entities")
    assert project.warehouse.predictions_count() == 15 and project.warehouse.predictions_digest() == everything
    with pytest.raises(WarehouseError, match="'nobody'"):
        project.warehouse.set_scope(["nobody"], "wrong")


def test_a_scope_of_no_entities_is_not_all_of_them(project):
    project.refresh()
    project.warehouse.set_scope([], "none")
    assert project.warehouse.predictions_count() == 0 and len(project.predictions()) == 0
    assert project.warehouse.coverage().expected == 0


def test_the_content_hash_sees_every_bit_and_not_the_order_nor_the_run(project):
    def hash_of(*rows):
        values = ", ".join(f"('{e}', '{c}', '{m}'::FLOAT, {label})" for e, c, m, label in rows)
        return project.warehouse.content_hash(f"(FROM (VALUES {values}) AS v(entity_id, candidate_id, margin, label))")

    base = [
        ("e1", "c1", 0.5, "true"),
        ("e1", "c2", -0.25, "false"),
        ("e2", "c1", 0.1, "false"),
        ("e2", "c2", 0.3, "NULL"),
    ]
    assert hash_of(*base[::-1]) == hash_of(*base)
    variants = [
        base[:3],
        [*base, ("e3", "c1", 0.5, "true")],
        [("e1", "c1", 0.5000001, "true"), *base[1:]],
        [("e1", "c1", 0.5, "false"), *base[1:]],
        [("e1", "c1", 0.5, "NULL"), *base[1:]],
        [("e1", "c1", -0.25, "true"), ("e1", "c2", 0.5, "false"), *base[2:]],  # two margins swapped
        [("e2", "c1", 0.5, "true"), ("e1", "c2", -0.25, "false"), ("e1", "c1", 0.1, "false"), base[3]],
        [("e11", "c", 0.5, "true"), *base[1:]],
        [("e1", "c1", -0.0, "true"), *base[1:]],
        [("e1", "c1", 0.0, "true"), *base[1:]],
    ]
    assert len({hash_of(*rows) for rows in [base, *variants]}) == len(variants) + 1
    project.refresh()
    relation = project.warehouse.content_hash()
    project.warehouse.rows("UPDATE scores SET run_id = 'other', scored_at = '2030-01-01'")
    assert project.warehouse.content_hash() == relation


def test_two_entities_with_equal_text_have_equal_predictions(project):
    project.put({"e1": "same", "e2": "same"})
    project.refresh()
    found = project.predictions()
    assert len(found) == 10
    margins = found.groupby("entity_id")["margin"].apply(list)
    assert margins["e1"] == margins["e2"]


# The file


def test_a_failed_transaction_leaves_nothing_behind(project):
    before = tables(project.warehouse)
    with pytest.raises(RuntimeError), project.warehouse.transaction() as connection:
        connection.execute("DELETE FROM entities")
        raise RuntimeError
    assert tables(project.warehouse) == before


def test_a_newer_warehouse_is_refused_and_left_as_it_is(tmp_path):
    project = Project(tmp_path)
    project.warehouse.rows("UPDATE meta SET schema_version = 99")
    project.close()
    with pytest.raises(WarehouseError, match="newer semlabel"):
        Warehouse.open(tmp_path / "warehouse.duckdb")
    with duckdb.connect(str(tmp_path / "warehouse.duckdb")) as connection:
        assert connection.execute("SELECT count(*) FROM entities").fetchall() == [(3,)]


def test_a_migration_keeps_the_rows_of_an_older_warehouse(tmp_path, monkeypatch):
    project = Project(tmp_path)
    project.refresh()
    before = project.warehouse.content_hash()
    project.close()
    later = (*warehouse_schema.MIGRATIONS, ("ALTER TABLE entities ADD COLUMN colour VARCHAR",))
    monkeypatch.setattr(warehouse_schema, "MIGRATIONS", later)
    with pytest.raises(WarehouseError, match="older"):
        Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True)
    with Warehouse.open(tmp_path / "warehouse.duckdb") as warehouse:
        assert warehouse.content_hash() == before
        assert warehouse.rows("SELECT DISTINCT colour FROM entities") == [(None,)]
        assert warehouse.rows("SELECT schema_version FROM meta") == [(len(later),)]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_process_that_has_it_open_is_named_after_a_bounded_wait(tmp_path, read_only):
    Project(tmp_path).close()
    path = tmp_path / "warehouse.duckdb"
    code = f"import duckdb, sys; c = duckdb.connect({str(path)!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(WarehouseError, match=rf"process {child.pid} .* has it open") as refused:
            Warehouse.open(path, read_only=read_only, wait_seconds=0.3)
        assert "\n" not in str(refused.value)
        child.stdin.close()
    Warehouse.open(path, read_only=read_only, wait_seconds=30).close()


def test_a_missing_and_a_damaged_warehouse_are_told_apart(tmp_path):
    with pytest.raises(WarehouseError, match="no warehouse there yet"):
        Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True)
    (tmp_path / "damaged.duckdb").write_text("this is not a database " * 1000)
    with pytest.raises(WarehouseError, match="no warehouse this DuckDB can read"):
        Warehouse.open(tmp_path / "damaged.duckdb")


@pytest.mark.parametrize("kind", [duckdb.IOException, duckdb.TransactionException, duckdb.FatalException, duckdb.Error])
def test_a_full_disk_is_said_in_one_line_whatever_step_met_it(tmp_path, kind):
    message = 'Failed to commit: Could not write file "x.wal": No space left on device\nstack trace'
    with pytest.raises(WarehouseError, match="the disk is full") as refused, translated(tmp_path / "w", "2GB"):
        raise kind(message)
    assert "\n" not in str(refused.value)


def test_a_mistake_in_a_query_keeps_its_traceback(project):
    with pytest.raises(duckdb.CatalogException):
        project.warehouse.rows("SELECT * FROM no_such_table")


def test_a_damaged_write_ahead_log_is_named_with_what_to_do_and_nothing_is_changed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from tests.storage import Project\n"
        "project = Project(Path(sys.argv[1])); project.refresh(); os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=False)
    log = tmp_path / "warehouse.duckdb.wal"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0xFF
    log.write_bytes(content)
    with pytest.raises(WarehouseError, match=r"move warehouse.duckdb.wal away") as refused:
        Warehouse.open(tmp_path / "warehouse.duckdb")
    assert "\n" not in str(refused.value) and log.read_bytes() == content
    log.rename(tmp_path / "aside")
    project = Project(tmp_path)
    project.refresh()
    assert project.warehouse.coverage().missing == []
    project.close()


def test_running_out_of_memory_is_said_in_one_line_and_loses_nothing(tmp_path):
    project = Project(tmp_path)
    project.refresh()
    expected = project.warehouse.content_hash()
    project.warehouse.rows("SET memory_limit = '10MB'")
    project.warehouse.rows("SET max_temp_directory_size = '0MB'")
    with pytest.raises(WarehouseError, match="memory_limit") as refused:
        project.warehouse.rows("SELECT list(md5(i::VARCHAR)) FROM range(1000000) t(i)")
    assert "\n" not in str(refused.value)
    project.close()
    with Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True) as warehouse:
        assert warehouse.content_hash() == expected


def test_a_read_only_warehouse_can_be_asked_everything(tmp_path):
    project = Project(tmp_path)
    project.refresh()
    expected = (project.warehouse.content_hash(), project.warehouse.coverage(), project.warehouse.predictions_digest())
    project.close()
    with Warehouse.open(tmp_path / "warehouse.duckdb", read_only=True) as warehouse:
        assert (warehouse.content_hash(), warehouse.coverage(), warehouse.predictions_digest()) == expected
        assert len(warehouse.margins("scorer", ["e1"])) == 5


def test_times_are_utc(project):
    project.refresh()
    ((scored_at,),) = project.warehouse.rows("SELECT max(scored_at) FROM predictions")
    age = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) - scored_at
    assert abs(age.total_seconds()) < 600
