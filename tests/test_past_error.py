"""An estimate that was wrong before says by how much, and one that cannot know says nothing."""

import json

import pytest

from semlabel.cli import run_command
from semlabel.labeler_files import switch_current
from semlabel.manifest import read_manifest
from semlabel.operations import Operations
from semlabel.past_error import PastError, past_error
from tests.cli_settings import smallest
from tests.serving_fixtures import make_labelers


def plan(pairs=1000, seconds=30.0, scorer="scorer", rounds=10):
    return {"pairs": pairs, "rounds_total": rounds, "measured_seconds": seconds, "scorer_digest": scorer}


def test_the_error_is_measured_over_estimated_seconds_of_as_many_tokens():
    # 10 queries of 100 tokens and 1,000 items of 9 are 10,000 tokens, 20 s for this estimate.
    given = ("scorer", 100.0, 9.0, 0.002)
    found = past_error([plan(seconds=30.0), plan(2000, 20.0, rounds=20), plan(seconds=60.0)], *given)
    assert found == PastError(plans=3, typical=1.5, low=0.5, high=3.0)
    assert found.sentence() == (
        "The last 3 refreshes took 1.5 times what this estimate gives for their tokens (0.5 to 3)."
    )
    assert "The last refresh took 1.5 times" in past_error([plan()], *given).sentence()


def test_a_night_of_one_candidate_is_no_wild_miss_because_every_round_read_a_query():
    night = plan(pairs=1000, rounds=1000, seconds=1.5 * 0.002 * (1000 * 100 + 1000 * 9))
    assert past_error([night], "scorer", 100.0, 9.0, 0.002).typical == pytest.approx(1.5)


@pytest.mark.parametrize("finished", [[], [plan(scorer="another")], [plan(pairs=199)], [plan(seconds=0.0)]], ids=str)
def test_plans_of_other_models_and_those_too_small_for_a_rate_tell_nothing(finished):
    assert past_error(finished, "scorer", 100.0, 9.0, 0.002) is None


def test_check_tells_what_the_estimate_missed_by(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    labeler = make_labelers(tmp_path)[0]
    settings = smallest("Profile: {entity} Activity: {candidate}", str(labeler))
    (tmp_path / "pipeline.toml").write_text(settings)
    (tmp_path / "entities.csv").write_text("entity_id,text\n" + "".join(f"e{n},text {n}\n" for n in range(12)))
    (tmp_path / "catalog.csv").write_text("candidate_id,text\na,keep records\nb,repair machines\n")
    (tmp_path / "references.csv").write_text(
        "entity_id,candidate_id,label\n" + "".join(f"e{n},a,1\n" for n in range(12))
    )
    (tmp_path / "workspace.yaml").write_text("load_from:\n  - python_module:\n      module_name: toy.definitions\n")
    manifest = read_manifest(labeler)
    home = tmp_path / "run" / "labelers"
    home.mkdir(parents=True)
    labeler.rename(home / manifest.digest)
    (tmp_path / "pipeline.toml").write_text(settings.replace(str(labeler), str(home / manifest.digest)))
    switch_current(home, manifest.digest)
    operations = Operations(tmp_path / "run" / "ops.sqlite")
    operations.save_plan("p1", manifest.scorer_digest, "subject", 10, b"", pairs=1000)
    operations.update_plan("p1", 10, "done", 30.0)
    assert run_command(["check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["estimate"]
    scoring = told["stages"][-1]
    tokens = 10 * told["query_tokens"] + 1000 * told["item_tokens"]
    expected = 30.0 / (tokens * scoring["seconds"] / scoring["tokens"])
    assert told["past_error"] == pytest.approx({"plans": 1, "typical": expected, "low": expected, "high": expected})
    assert run_command(["check"]) == 0
    assert "The last refresh took" in capsys.readouterr().out
