"""The whole recipe in this process: it publishes, a night costs what changed, and nothing red is ever published."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import pytest

from pipeline.sensors import run_endings
from resources.operations import OperationsResource
from resources.project import ProjectResource
from resources.scorer import ScorerResource
from resources.settings import SettingsResource
from resources.warehouse import WarehouseResource
from semlabel.gates.registry import ALWAYS
from semlabel.html_report import report_path
from semlabel.published import current_publication, current_version, rollback
from semlabel.warehouse import Warehouse
from tests.pipeline_fixtures import CANDIDATES, ENTITIES, TinyProject, failed, published, run, verdicts

NIGHT = "nightly_labeling"
PUBLISH = ["published_predictions"]


@pytest.fixture
def project(first_run, tmp_path: Path) -> TinyProject:
    """A copy of that project, to be broken."""
    return first_run[0].copied(tmp_path / "labeled")


def figures(project: TinyProject, result: dg.ExecuteInProcessResult) -> tuple[int, int, int]:
    """Pairs scored, pairs reused, models loaded."""
    row = project.operations.run(result.run_id)
    assert row is not None
    return row["pairs_scored"], row["pairs_reused"], row["model_loads"]


def made(result: dg.ExecuteInProcessResult) -> set[str]:
    return {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}


def threshold_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the `threshold` of a run tells of itself."""
    events = {event.asset_key.to_user_string(): event for event in result.get_asset_materialization_events()}
    return dict(events["threshold"].materialization.metadata)


def refusal(result: dg.ExecuteInProcessResult, step: str) -> str:
    """Why a step failed, causes included."""
    (event,) = [event for event in result.get_step_failure_events() if event.step_key == step]
    error = event.step_failure_data.error
    told = []
    while error is not None:
        told.append(error.message)
        error = error.cause
    return " ".join(told)


def daemon_looks(project: TinyProject, instance: dg.DagsterInstance) -> None:
    """One evaluation of the sensor that notes how runs ended."""
    settings = SettingsResource(config_path=str(project.config))
    operations = OperationsResource(settings=settings)
    warehouse = WarehouseResource(settings=settings, operations=operations)
    scorers = ScorerResource(settings=settings, operations=operations)
    parts = {"settings": settings, "operations": operations, "warehouse": warehouse, "scorers": scorers}
    with dg.build_sensor_context(instance=instance, resources={"project": ProjectResource(**parts)}) as context:
        run_endings(context)


def report_of(project: TinyProject, result: dg.ExecuteInProcessResult) -> str:
    return report_path(project.settings, result.run_id).read_text(encoding="utf-8")


def edit_warehouse(project: TinyProject, edit: Callable[[Warehouse], Any]) -> None:
    with Warehouse.open(project.settings.paths.warehouse) as warehouse:
        edit(warehouse)


# --- what a run does


def test_the_first_run_trains_promotes_and_publishes_with_one_model_load(first_run):
    project, result = first_run
    assert result.success
    assert failed(result) == set()
    assert len(verdicts(result)) == len(ALWAYS)
    assert figures(project, result) == (ENTITIES * CANDIDATES, 36 * CANDIDATES + 4 * CANDIDATES, 1)
    version = published(project)
    promoted = project.operations.promoted()
    assert promoted["reason"] == "first labeler, all gates passed"
    assert version["labeler_digest"] == promoted["labeler_digest"]
    assert {row["gate"]: row["verdict"] for row in version["verdicts"]}["held_out_errors"] == "pass"
    with duckdb.connect(str(Path(version["path"]) / "predictions.duckdb"), read_only=True) as copy:
        rows = copy.execute("SELECT count(*), bool_and(label = (margin >= threshold)) FROM predictions").fetchone()
    assert rows == (ENTITIES * CANDIDATES, True)


def test_readers_are_told_the_split_of_the_night(first_run):
    project, _ = first_run
    with Warehouse.open(project.settings.paths.warehouse, read_only=True) as warehouse:
        drawn = dict(warehouse.rows("SELECT entity_id, split FROM entities"))
    with duckdb.connect(str(Path(published(project)["path"]) / "predictions.duckdb"), read_only=True) as copy:
        told = copy.execute("SELECT entity_id, split, count(*) FROM predictions GROUP BY ALL").fetchall()
    assert {(entity_id, split): pairs for entity_id, split, pairs in told} == dict.fromkeys(drawn.items(), CANDIDATES)
    assert {"train", "calibrate", "certify", "test"} <= set(drawn.values())


def test_held_out_quality_is_kept_beside_that_of_the_baselines(first_run):
    project, _ = first_run
    metrics = project.operations.metrics(project.operations.promoted()["labeler_digest"])
    assert set(metrics["baselines"]) == {"tfidf_cosine", "tfidf_logistic"}
    assert 0.5 < metrics["test"]["auc"]["value"] <= 1
    assert metrics["test"]["precision"]["low"] <= metrics["test"]["precision"]["value"]
    assert metrics["ratio"]["against"] in metrics["baselines"]
    # What a promise can be chosen by before certify is looked at: the judged pairs of calibrate.
    (quality,) = (row for row in project.operations.latest_gates() if row["gate"] == "held_out_quality")
    by_flagged = quality["evidence"]["by_flagged"]
    assert 25 <= by_flagged[0]["flagged"] <= by_flagged[-1]["flagged"] <= 14 * CANDIDATES
    assert by_flagged[0]["low"] <= by_flagged[0]["precision"] <= 1 and by_flagged[-1]["recall"] <= 1


def test_the_report_of_a_run_is_written_and_linked(first_run):
    project, result = first_run
    told = report_of(project, result)
    for part in ("Confusing pairs", "precision and recall on certify", "This is the first version", "tfidf_logistic"):
        assert part in told
    linked = {
        event.asset_key.to_user_string(): event.materialization.metadata["report"].value
        for event in result.get_asset_materialization_events()
        if "report" in event.materialization.metadata
    }
    path = str(report_path(project.settings, result.run_id))
    assert linked == dict.fromkeys(("checkpoint", "threshold", "predictions", "published_predictions"), path)


def test_assets_show_content_digests_rows_and_small_pictures(first_run):
    _, result = first_run
    events = {
        event.asset_key.to_user_string(): event.materialization for event in result.get_asset_materialization_events()
    }
    assert events["predictions"].metadata["dagster/row_count"].value == ENTITIES * CANDIDATES
    assert events["entities"].metadata["dagster/row_count"].value == ENTITIES
    for materialization in events.values():
        digest = materialization.metadata["content_digest"].value
        assert materialization.tags["dagster/data_version"] == digest
    for asset, plot in (("checkpoint", "loss"), ("checkpoint", "calibrate"), ("threshold", "walk_precision")):
        picture = events[asset].metadata[plot].value
        assert picture.startswith("![") and "base64," in picture
        assert len(picture) < 100_000


def test_an_unchanged_night_scores_nothing_loads_no_model_and_replays_the_training_gates(project, instance):
    before = published(project)
    result = run(project, instance, NIGHT)
    assert result.success
    assert figures(project, result) == (0, ENTITIES * CANDIDATES, 0)
    assert made(result) == {"entities", "catalog", "reference_labels", "predictions", "published_predictions"}
    assert len(verdicts(result)) == len(ALWAYS)
    rows = {row["gate"]: row for row in project.operations.gates_of_run(result.run_id)}
    assert set(rows) == set(ALWAYS)
    assert all("replayed_from" in rows[gate]["evidence"] for gate in ("held_out_quality", "mis_matches_single_item"))
    after = published(project)
    assert after["version"] == before["version"]
    assert after["checked_at"] > before["checked_at"]


def test_a_night_ends_with_the_upkeep_of_the_warehouse(project, instance):
    project.change(warehouse={"retention_days": 0.0, "compact_factor": 1.01})
    rows = project.entities()
    project.write_entities(rows[1:])
    run(project, instance, "nightly_labeling")
    with project.warehouse() as warehouse:
        assert warehouse.rows("SELECT count(*) FROM texts WHERE unused_since IS NOT NULL") == [(0,)]
        assert warehouse.rows("SELECT count(*) FROM compactions") == [(1,)]
        assert warehouse.coverage().missing == []
    assert not list(project.settings.paths.state.glob(".warehouse*"))


def test_an_erased_entity_stays_away_and_the_night_after_it_is_published(project, instance, first_run):
    from semlabel.digests import text_id
    from semlabel.erasure import erase

    project.operations.finish_run(first_run[1].run_id, "SUCCESS")
    with project.warehouse() as warehouse:
        ((gone,),) = warehouse.rows("SELECT min(entity_id) FROM entities WHERE split = 'train'")
    receipt = erase(gone, project.settings, project.operations)
    assert receipt.source_lists_it and receipt.counts["warehouse: margins"] == 8 and receipt.trained_labelers
    result = run(project, instance, "nightly_labeling")
    assert result.success and failed(result) == set()
    with project.warehouse() as warehouse:
        assert warehouse.rows("SELECT count(*) FROM entities WHERE entity_id = ?", [gone]) == [(0,)]
        assert warehouse.rows("SELECT count(*) FROM reference_labels WHERE entity_id = ?", [gone]) == [(0,)]
        refused = warehouse.rows("SELECT DISTINCT row_id, reason FROM refused_rows WHERE reason = 'erased'")
    assert refused == [(f"sha256:{text_id(gone)}", "erased")]
    assert published(project)["rows"] == (len(project.entities()) - 1) * len(project.catalog())


def test_an_edited_entity_costs_its_own_row_only(project, instance):
    rows = project.entities()
    rows[0]["text"] += " and the records of the office"
    project.write_entities(rows)
    result = run(project, instance, NIGHT)
    assert result.success
    assert figures(project, result) == (CANDIDATES, (ENTITIES - 1) * CANDIDATES, 1)
    changes = Path(published(project)["path"]) / "changes.parquet"
    assert duckdb.sql(f"SELECT DISTINCT entity_id FROM '{changes}'").fetchall() in ([], [(rows[0]["entity_id"],)])


def test_a_new_candidate_costs_one_column_and_is_not_certified(project, instance):
    project.write_catalog([*project.catalog(), {"candidate_id": "c8", "text": "keep other goods", "group": "g0"}])
    result = run(project, instance, NIGHT)
    assert result.success
    assert figures(project, result) == (ENTITIES, ENTITIES * CANDIDATES, 1)
    table = Path(published(project)["path"]) / "predictions" / "*.parquet"
    rows = duckdb.sql(f"SELECT candidate_id = 'c8', bool_or(certified) FROM '{table}' GROUP BY 1 ORDER BY 1").fetchall()
    assert rows == [(False, True), (True, False)]


def test_a_limited_run_is_a_preview_and_the_next_full_one_equals_a_cold_one(project, instance):
    before = published(project)
    limited = run(project, instance, NIGHT, tags={"semlabel/entities_limit": "5"})
    assert limited.success
    preview = current_publication(project.settings.paths.preview)
    assert (preview["rows"], preview["preview"]) == (5 * CANDIDATES, True)
    alone = run(project, instance, select=PUBLISH)
    assert alone.success
    assert current_publication(project.settings.paths.preview)["version"] == preview["version"]
    full = run(project, instance, NIGHT)
    assert full.success
    after = published(project)
    assert (after["rows"], after["content_hash"]) == (before["rows"], before["content_hash"])
    assert figures(project, full)[0] == 0


def test_an_environment_of_previews_never_moves_what_others_read(project, instance):
    before = current_version(project.settings.paths.published)
    project.change(publish={"preview": True})
    assert run(project, instance, NIGHT).success
    assert current_publication(project.settings.paths.preview)["rows"] == ENTITIES * CANDIDATES
    assert current_version(project.settings.paths.published) == before


class DyingScorers(ScorerResource):
    """Loads a model that breaks after three batches of one round."""

    def get(self, directory: Path, run_id: str) -> Any:
        scorer, rounds = super().get(directory, run_id), iter(range(3))
        margins_of = scorer.margins_of

        def dying(*parts: Any) -> Any:
            if next(rounds, None) is None:
                raise RuntimeError("the power went out")
            return margins_of(*parts)

        scorer.margins_of = dying
        return scorer


def test_an_interrupted_night_goes_on_where_it_was(project, instance):
    project.write_catalog([*project.catalog(), {"candidate_id": "c8", "text": "keep other goods", "group": "g0"}])
    settings = SettingsResource(config_path=str(project.config))
    dying = DyingScorers(settings=settings, operations=OperationsResource(settings=settings))
    night = run(project, instance, NIGHT, scorers=dying)
    assert "the power went out" in refusal(night, "predictions")
    assert figures(project, night)[0] == 3
    again = run(project, instance, NIGHT)
    assert again.success
    assert figures(project, again)[0] == ENTITIES - 3


def test_a_wrong_limit_is_refused_by_name(project, instance):
    result = run(project, instance, NIGHT, tags={"semlabel/entities_limit": "ten"})
    assert "expected a whole number" in refusal(result, "predictions")


def test_held_out_entities_alone_are_labeled_where_the_settings_say_so(project, instance):
    project.change(scoring={"entities": "held_out"}, gates={"max_removed_fraction": 1.0})
    assert run(project, instance, NIGHT).success
    assert published(project)["rows"] == 40 * CANDIDATES
    assert run(project, instance, NIGHT, tags={"semlabel/entities_limit": "0"}).success
    assert published(project)["rows"] == ENTITIES * CANDIDATES


# --- nothing red is published


def break_entities(project: TinyProject) -> None:
    project.write_entities([*project.entities(), {"entity_id": "999", "text": "   "}])


def break_catalog(project: TinyProject) -> None:
    project.change(gates={"min_candidates": 100})


def break_quality(project: TinyProject) -> None:
    project.change(gates={"min_auc": 0.9999})


def break_margins(project: TinyProject) -> None:
    edit_warehouse(
        project,
        lambda warehouse: warehouse.rows("UPDATE scores SET margins = list_transform(margins, lambda m: m + 1)"),
    )
    # Another limit, so that the stored verdicts are not shown again.
    project.change(gates={"max_label_flips_fp32": 0.02, "max_label_flips_bf16": 0.06})


def break_predictions(project: TinyProject) -> None:
    edit_warehouse(
        project,
        lambda warehouse: warehouse.rows("UPDATE scores SET margins = list_transform(margins, lambda m: 'nan'::FLOAT)"),
    )
    # The rows have the same identity as before: only a gate that is judged anew sees them.
    with project.operations.file.transaction() as connection:
        connection.execute("DELETE FROM gate_results WHERE gate = 'predictions_contract'")


def break_coverage(project: TinyProject) -> None:
    project.write_catalog([*project.catalog(), {"candidate_id": "c8", "text": "keep other goods", "group": "g0"}])
    project.change(scoring={"max_pairs": 8})


def break_volume(project: TinyProject) -> None:
    project.write_entities(project.entities()[:40])


def break_promotion(project: TinyProject) -> None:
    project.operations.promote("f" * 64, "somebody", "another labeler")


RED = [
    (break_entities, {"entities_contract"}),
    (break_catalog, {"catalog_contract"}),
    (break_quality, {"held_out_quality"}),
    (break_margins, {"mis_matches_single_item", "order_invariance"}),
    (break_predictions, {"predictions_contract"}),
    (break_coverage, {"coverage_is_complete"}),
    (break_volume, {"volume_change"}),
    (break_promotion, {"one_labeler_everywhere"}),
]


@pytest.mark.parametrize(("breaking", "gates"), RED, ids=[case[0].__name__ for case in RED])
def test_a_red_gate_leaves_the_published_version_however_it_is_launched(project, instance, breaking, gates):
    before = current_version(project.settings.paths.published)
    breaking(project)
    night = run(project, instance, NIGHT)
    assert not night.success
    assert failed(night) >= gates
    assert "published_predictions" not in made(night)
    alone = run(project, instance, select=PUBLISH)
    assert not alone.success
    assert "Not published, the current version stays" in refusal(alone, "published_predictions")
    assert current_version(project.settings.paths.published) == before
    alerts = {row["gate"] for row in project.operations.undelivered_alerts("somebody")}
    assert alerts >= gates


def test_a_verdict_that_is_missing_blocks_like_a_red_one(project, instance):
    with project.operations.file.transaction() as connection:
        connection.execute("DELETE FROM gate_results WHERE gate = 'order_invariance'")
    alone = run(project, instance, select=PUBLISH)
    assert "order_invariance has no verdict for the current content" in refusal(alone, "published_predictions")


def test_a_verdict_under_another_limit_is_no_verdict(project, instance):
    project.change(gates={"max_removed_fraction": 0.01})
    alone = run(project, instance, select=PUBLISH)
    assert "volume_change has no verdict for the current content" in refusal(alone, "published_predictions")


def test_a_red_gate_blocks_a_selected_part_of_the_recipe_too(project, instance):
    break_volume(project)
    assert run(project, instance, select=["entities", "catalog", "reference_labels"]).success
    part = run(project, instance, select=["predictions", "published_predictions"])
    assert failed(part) == {"volume_change"}
    assert "published_predictions" not in made(part)


def test_a_check_that_cannot_be_computed_fails_with_its_reason_and_is_tried_again(project, instance, monkeypatch):
    from semlabel import gates

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no rows to divide by")

    break_entities(project)
    project.change(sources={"max_refused_fraction": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr(gates, "entities_contract", broken)
        night = run(project, instance, NIGHT)
    assert failed(night) == {"entities_contract"}
    (row,) = [row for row in project.operations.gates_of_run(night.run_id) if row["gate"] == "entities_contract"]
    assert (row["verdict"], row["computed"]) == ("fail", False)
    assert "ZeroDivisionError: no rows to divide by" in row["sentence"]
    assert "predictions" not in made(night)
    assert run(project, instance, NIGHT).success


def test_a_held_warehouse_is_an_error_of_the_machine_that_names_the_holder(project, instance):
    project.change(environment={"lease_wait_seconds": 0.1})
    with project.operations.lease("warehouse", "the-other-run", 0.0):
        night = run(project, instance, NIGHT)
    assert "the-other-run" in refusal(night, "entities")
    # What a check could not look at leaves no verdict behind.
    recorded = {row["gate"] for row in project.operations.gates_of_run(night.run_id)}
    assert "entities_contract" not in recorded


def test_an_approved_change_is_published_once_and_not_again_after_it_was_rolled_back(project, instance):
    first = published(project)["version"]
    break_volume(project)
    assert not run(project, instance, NIGHT).success
    (red,) = [row for row in project.operations.latest_gates() if row["gate"] == "volume_change"]
    project.operations.approve(red["subject_digest"], "nina")
    assert run(project, instance, NIGHT).success
    assert published(project)["rows"] == 40 * CANDIDATES
    rollback(project.settings.paths.published, first, project.operations)
    project.operations.set_publishing_paused(False)
    assert failed(run(project, instance, NIGHT)) == {"volume_change"}
    project.write_entities(project.entities()[:20])
    assert failed(run(project, instance, NIGHT)) == {"volume_change"}


def test_a_snapshot_that_is_not_the_warehouse_is_told(project, instance, monkeypatch):
    from semlabel import publish

    genuine = publish.snapshot_check
    monkeypatch.setattr(publish, "snapshot_check", lambda *parts: genuine(*parts)._replace(found_hash="0" * 64))
    rows = project.entities()
    rows[0]["text"] += " and the records of the office"
    project.write_entities(rows)
    assert failed(run(project, instance, NIGHT)) == {"snapshot_matches_warehouse"}


def test_runs_of_the_daemon_are_closed_in_the_books(project, instance):
    night = run(project, instance, select=["reference_labels"])
    assert project.operations.run(night.run_id)["status"] == "STARTED"
    daemon_looks(project, instance)
    assert project.operations.run(night.run_id)["status"] == "SUCCESS"
    assert "SUCCESS</h1>" in report_of(project, night)


def test_a_red_run_of_the_daemon_has_a_report(project, instance):
    project.change(gates={"min_candidates": 99})
    night = run(project, instance, NIGHT)
    assert "catalog_contract" in failed(night)
    daemon_looks(project, instance)
    told = report_of(project, night)
    assert "FAILURE</h1>" in told and '<bdi>catalog_contract</bdi></strong> <span class="verdict">' in told
    assert "This run published no new version" in told and "semlabel report --run" in told


# --- a labeler is made


TRAIN = ["entities", "catalog", "reference_labels", "training_pairs"]


def test_answers_of_several_tokens_are_refused_before_training(project, instance):
    project.change(prompt={"yes": "YES"})
    result = run(project, instance, "train_labeler")
    assert "answers_are_single_tokens" in failed(result)
    assert made(result) <= {"entities", "catalog"}


def test_a_template_that_glues_the_candidate_to_its_words_is_refused_before_training(project, instance):
    project.change(prompt={"template": "Profile: {entity}\nAnswer N{candidate}"})
    project.write_catalog([*project.catalog(), {"candidate_id": "c8", "text": "o", "group": ""}])
    result = run(project, instance, "train_labeler")
    assert failed(result) == {"split_tokens_match"}
    assert "checkpoint" not in made(result)


def test_references_that_name_nobody_are_refused_before_training(project, instance):
    strangers = [{"entity_id": f"x{n}", "candidate_id": "c0", "label": "yes"} for n in range(40)]
    project.write_references([*project.references(), *strangers])
    result = run(project, instance, "train_labeler")
    assert failed(result) == {"pairs_contract"}
    assert "checkpoint" not in made(result)


def test_a_leak_between_splits_is_refused_before_training(project, instance):
    def leak(warehouse: Warehouse) -> None:
        frame = warehouse.entities()
        (train, *_), (test, *_) = (frame.index[frame["split"] == name] for name in ("train", "test"))
        frame.loc[train, "text"] = frame.loc[test, "text"] + " again"
        warehouse.replace_entities(frame.drop(columns="text_id"), "a careless script")

    assert run(project, instance, select=["reference_labels"]).success
    edit_warehouse(project, leak)
    result = run(project, instance, select=["training_pairs", "checkpoint"])
    assert failed(result) == {"splits_do_not_leak"}
    assert "checkpoint" not in made(result)


def test_candidates_that_the_catalog_leaves_out_are_learned_from_and_never_labeled(project, instance):
    project.change(sources={"catalog_top": 3}, gates={"min_candidates": 3})
    result = run(project, instance, select=["catalog", "reference_labels", "training_pairs"])
    assert result.success
    assert failed(result) == set()
    with Warehouse.open(project.settings.paths.warehouse, read_only=True) as warehouse:
        labeled = set(warehouse.catalog()["candidate_id"])
        learned = set(warehouse.training_pairs()["candidate_id"])
    assert (len(labeled), len(learned)) == (3, CANDIDATES)


def test_training_again_on_unchanged_input_trains_and_scores_nothing(project, instance):
    result = run(project, instance)
    assert result.success
    assert "checkpoint" in made(result)
    assert figures(project, result)[0::2] == (0, 0)
    assert threshold_of(result)["certify_uses"].value == 1
    assert len(list(project.settings.paths.labelers.glob("?" * 64))) == 1


def test_a_new_labeler_labels_nothing_before_it_is_promoted(project, instance):
    before = published(project)
    project.change(calibration={"min_precision": 0.4})
    result = run(project, instance, "train_labeler")
    assert result.success
    told = threshold_of(result)
    assert told["labeler_digest"].value != before["labeler_digest"]
    # Both questions to the same certify entities together are held to the declared error.
    assert (told["certify_uses"].value, told["confidence"].value) == (2, pytest.approx(1 - 0.07 * 3 / 16))
    assert run(project, instance, NIGHT).success
    assert published(project)["labeler_digest"] == before["labeler_digest"]


def test_a_certify_set_that_lost_an_entity_is_looked_at_again_not_anew(project, instance):
    with project.warehouse() as warehouse:
        ((gone,),) = warehouse.rows("SELECT min(entity_id) FROM entities WHERE split = 'certify'")
    project.write_entities([row for row in project.entities() if row["entity_id"] != gone])
    result = run(project, instance, "train_labeler")
    told = threshold_of(result)
    assert (told["certify_uses"].value, told["confidence"].value) == (2, pytest.approx(1 - 0.07 * 3 / 16))


def test_a_floor_that_cannot_be_shown_makes_a_labeler_that_never_decides(project, instance):
    before = published(project)
    project.change(calibration={"min_precision": 0.99})
    result = run(project, instance, "train_labeler")
    assert failed(result) == {"held_out_errors"}
    assert published(project) == before
    assert run(project, instance, NIGHT).success


def test_the_first_labeler_is_not_promoted_while_a_gate_is_red(project, instance):
    (project.settings.paths.labelers / "current").unlink()
    shutil.rmtree(project.settings.paths.published)
    break_quality(project)
    result = run(project, instance)
    assert failed(result) == {"held_out_quality"}
    assert run(project, instance, select=["threshold"]).success
    alone = run(project, instance, select=["predictions"])
    assert "The first labeler is not promoted: Held-out AUC is" in refusal(alone, "predictions")
    assert not (project.settings.paths.labelers / "current").exists()


def test_without_any_labeler_a_night_says_what_to_run(project, instance):
    (project.settings.paths.labelers / "current").unlink()
    night = run(project, instance, NIGHT)
    assert not night.success
    sentences = [row["sentence"] for row in project.operations.gates_of_run(night.run_id) if row["verdict"] == "fail"]
    assert any("no labeler is promoted yet; run the whole recipe" in sentence for sentence in sentences)


def test_evidence_stays_small_whatever_is_wrong(project, instance):
    strangers = [{"entity_id": f"x{n}", "candidate_id": "c0", "label": "yes"} for n in range(300)]
    project.write_references([*project.references(), *strangers])
    result = run(project, instance, select=TRAIN)
    for event in result.get_asset_materialization_events():
        for value in event.materialization.metadata.values():
            if isinstance(value, dg.TableMetadataValue):
                assert len(value.records) <= 50
    for row in project.operations.gates_of_run(result.run_id):
        assert len(json.dumps(row["evidence"])) < 20_000


def test_what_was_trained_on_never_judges_after_a_night_on_which_the_source_was_cut_short(project, instance):
    with project.warehouse() as warehouse:
        split = dict(warehouse.rows("SELECT entity_id, split FROM entities"))
        trained = {row[0] for row in warehouse.rows("SELECT entity_id FROM training_pairs")}
    assert {split[entity_id] for entity_id in trained} == {"train"}
    whole = project.entities()
    # First nearly everything that trained is away, then it is back while others stay away: places to judge are free.
    one = min(trained)
    for present in ({"certify"}, {"certify", "train"}):
        project.write_entities(row for row in whole if split[row["entity_id"]] in present or row["entity_id"] == one)
        run(project, instance, NIGHT)
        with project.warehouse() as warehouse:
            after = dict(warehouse.rows("SELECT entity_id, split FROM entities"))
        assert {split[entity_id] for entity_id in after} == {"certify", "train"}
    assert {after[entity_id] for entity_id in trained} == {"train"}
    assert {after[name] for name, was in split.items() if was == "certify"} == {"certify"}
