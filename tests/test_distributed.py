"""Rounds through Ray: the local margins bit for bit, every pair once whatever dies, plain words when it cannot be."""

import builtins
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pytest
import yaml

from semlabel.cli import run_command
from semlabel.distributed import (
    MisConfig,
    Pool,
    RaySettings,
    build_mis_processor,
    check_exactly_once,
    ray_session,
    runtime,
)
from semlabel.distributed.accounting import same_rounds
from semlabel.distributed.plan_rounds import config_of, plan_scorer
from semlabel.distributed.prepare import prepare_rounds
from semlabel.distributed.runtime import RaySession, require_ray
from semlabel.distributed.schemas import ENTITIES, PAIRS, PREPARED, table
from semlabel.distributed.score import Score, load_scorer
from semlabel.distributed.tokenise import Tokenise
from semlabel.distributed.unpack import Decision, unpack_entities, unpack_pairs
from semlabel.errors import DistributedError, LabelerError, PromptError, WarehouseError
from semlabel.labeler import CURRENT, Labeler, switch_current
from semlabel.round_stream import Round, WantedRound
from semlabel.settings import Scoring
from tests.cli_settings import smallest
from tests.pipeline_fixtures import published, run
from tests.serving_fixtures import SPEC, make_labelers

EXAMPLES = Path(__file__).parents[1] / "examples"
CATALOG = {f"c{number}": f"keep records number {number}" for number in range(12)}
LOOKED_AT = RaySession("http://127.0.0.1:8265")
SMALL = {"device": "cpu", "threads": 1, "tokenizers": Pool(cpus=0.25)}


@pytest.fixture(scope="module")
def labeler_dir(tmp_path_factory):
    return make_labelers(tmp_path_factory.mktemp("labelers"))[0]


@pytest.fixture
def promoted(tmp_path):
    """The link to the promoted labeler, that labeler, and another one that may be promoted: other weights."""
    first, second = (make_labelers(tmp_path, seed=seed)[0] for seed in (0, 1))
    switch_current(first.parent, first.name)
    return first.parent / CURRENT, first, second


@pytest.fixture(scope="module")
def ending():
    """What ends this process before there is Ray; not as at import, for another test's Dagster may have changed it."""
    return signal.getsignal(signal.SIGTERM)


@pytest.fixture(scope="module")
def local_ray(ending):
    with ray_session(RaySettings(cpus=4, object_store_bytes=80_000_000)):
        yield require_ray()


def entities(count=40):
    return pa.table({"entity_id": [f"e{n}" for n in range(count)], "text": [f"plans work {n}" for n in range(count)]})


def loaded(directory):
    return Labeler.load(directory, device="cpu", self_check=False)


def scorer_processes():
    workers = psutil.Process().children(recursive=True)
    return [worker for worker in workers if "MapWorker(MapBatches(Score))" in " ".join(worker.cmdline())]


# Without any Ray


def test_an_installation_without_ray_says_what_to_install(monkeypatch, labeler_dir):
    real = builtins.__import__

    def absent(name, *rest):
        if name.split(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'")
        return real(name, *rest)

    for module in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", absent)
    session = ray_session(RaySettings())
    for attempt in (require_ray, session.__enter__, lambda: build_mis_processor(MisConfig(labeler=labeler_dir))):
        with pytest.raises(DistributedError, match=r'install "semlabel\[ray\]"'):
            attempt()


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_project_on_ray_without_ray_stops_before_any_work(tmp_path, monkeypatch, capsys, command):
    config = tmp_path / "pipeline.toml"
    config.write_text(f'{smallest()}\n[scoring]\nbackend = "ray"\n')
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_command([command, "--config", str(config)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert 'install "semlabel[ray]", or use [scoring] backend = "local"' in said.err
    assert [file.name for file in tmp_path.iterdir()] == ["pipeline.toml"]


def test_the_rest_is_imported_and_configured_without_ray(labeler_dir):
    code = f"""
import sys
sys.modules["ray"] = None
import pipeline.definitions, semlabel.cli, semlabel.serving.engine
from semlabel.distributed import MisConfig
from semlabel import Labeler
assert MisConfig(labeler={str(labeler_dir)!r}).manifest.threshold == 0.25
print(len(Labeler.load({str(labeler_dir)!r}, device="cpu").score("plans work", ["keep records", "sell"])))
"""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_the_dashboard_of_a_ray_that_has_one_is_its_address(monkeypatch):
    stub = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setattr(runtime, "require_ray", lambda alone: stub)
    monkeypatch.setattr(runtime, "_quieten", lambda ray: None)
    for told, expected in (("127.0.0.1:8265", "http://127.0.0.1:8265"), ("", None), (None, None)):
        context = SimpleNamespace(dashboard_url=told)
        monkeypatch.setattr(runtime, "_connected", lambda ray, settings, context=context: context)
        with ray_session(RaySettings("auto")) as session:
            assert session == RaySession(expected)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"entity_id": "e", "text": "t", "candidate_ids": ["a"], "candidate_texts": []}, "two lists of one length"),
        ({"entity_id": "e", "text": "t", "candidate_ids": ["a"], "candidate_texts": None}, "two lists of one length"),
        ({"entity_id": "e", "text": "t"}, "no shared catalog"),
    ],
)
def test_an_entity_without_candidates_to_pair_is_kept_with_its_reason(row, reason):
    prepared = prepare_rounds(pa.Table.from_pylist([row]), 2, None)
    assert prepared.schema == PREPARED and prepared.num_rows == 1 and reason in prepared["error"][0].as_py()
    scored = prepared.to_pylist()[0] | {"margins": [], "problems": None, "truncated": None}
    (pair,) = unpack_pairs(pa.Table.from_pylist([scored]), Decision(), False).to_pylist()
    assert (pair["entity_id"], pair["candidate_id"], pair["margin"]) == ("e", None, None) and reason in pair["error"]


def test_rounds_cut_every_candidate_once_and_in_order():
    rows = [{"entity_id": 6, "text": "t"}, {"entity_id": 7, "text": "u"}]
    prepared = prepare_rounds(pa.Table.from_pylist(rows), 5, 12)
    found = [(row["entity_id"], row["round"], row["positions"]) for row in prepared.to_pylist()]
    cuts = [(0, [0, 1, 2, 3, 4]), (1, [5, 6, 7, 8, 9]), (2, [10, 11])]
    assert found == [(entity, *cut) for entity in ("6", "7") for cut in cuts]
    assert prepare_rounds(pa.Table.from_pylist(rows[:1]), None, 12)["positions"].to_pylist() == [list(range(12))]
    with pytest.raises(DistributedError, match="no column 'text'"):
        prepare_rounds(pa.table({"entity_id": ["a"]}), 5, 12)


def test_a_stage_that_loses_or_doubles_a_round_fails_with_its_name():
    before = table([{"entity_id": "a", "round": 0}, {"entity_id": "b", "round": 3}], PREPARED)
    assert same_rounds("score", before, before) is before
    for after in (before.slice(0, 1), pa.concat_tables([before, before.slice(1)])):
        with pytest.raises(DistributedError, match=r"score: 2 rounds became [13]; first that differs: \('b', 3\)"):
            same_rounds("score", before, after)
    with pytest.raises(DistributedError, match="their order"):
        same_rounds("score", before, before.take([1, 0]))


def test_a_round_that_is_lost_or_comes_twice_ends_the_refresh_naming_a_pair(tmp_path):
    from semlabel import refresh
    from tests.storage import Project, Scorer

    scored = refresh.one_by_one(Scorer())
    for wrong, reason in (
        (lambda found: found[:-1], "1 of 6 rounds never came back, the pair of entity 'e2' and candidate 'c3'"),
        (lambda found: [*found[:2], found[1], *found[2:]], "entity 'e1' and candidate 'c3' came back twice"),
    ):
        project = Project(tmp_path / str(len(reason)))

        def score_rounds(wanted, wrong=wrong):
            return wrong(list(scored(wanted)))

        with pytest.raises(WarehouseError, match=reason):
            plan = project.plan(items=3)
            refresh.execute_rounds(plan, project.warehouse, project.operations, score_rounds, "run")
        project.close()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "either labeler"),
        ({"model": "m"}, "prompt goes with model"),
        ({"labeler": "d", "precision": "bf16"}, "certified in"),
        ({"labeler": "d", "catalog": {}}, "catalog is empty"),
        ({"labeler": "d", "scorers": {"min": 3, "max": 2}}, "min must not exceed max"),
        ({"labeler": "d", "scorer": {}}, "Extra inputs"),
        ({"model": "m", "prompt": SPEC, "digest": "0" * 64}, "digest goes with labeler"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        MisConfig(**fields)


def test_a_config_keeps_the_labeler_that_was_promoted_when_it_was_made(promoted):
    current, first, second = promoted
    config = MisConfig(labeler=current, **SMALL)
    switch_current(current.parent, second.name)
    assert (config.path, config.manifest.digest) == (str(first), first.name)
    assert load_scorer(config.for_actors()).margins([5], [[7]]) == loaded(first).scorer.margins([5], [[7]])
    assert MisConfig(labeler=current).manifest.digest == second.name
    with pytest.raises(LabelerError, match=f"holds labeler {second.name[:12]} on this node, the job is one of"):
        _ = MisConfig(labeler=current, digest=first.name).manifest


def test_a_link_that_leads_nowhere_is_one_line(tmp_path):
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")
    for name in ("gone", "round"):
        with pytest.raises(LabelerError, match=name):
            _ = MisConfig(labeler=tmp_path / name).manifest


def test_a_plain_model_behind_a_link_stays_the_one_it_was(labeler_dir, tmp_path):
    (tmp_path / "link").symlink_to(labeler_dir)
    assert MisConfig(model=str(tmp_path / "link"), prompt=SPEC).path == str(labeler_dir)


@pytest.mark.parametrize("actor", [Tokenise, Score])
def test_an_actor_that_finds_another_labeler_under_the_path_does_not_start(promoted, tmp_path, actor):
    _, first, second = promoted
    shared = tmp_path / "shared"
    shutil.copytree(first, shared)
    told = MisConfig(labeler=shared, **SMALL).for_actors()
    assert actor(told) is not None
    shutil.rmtree(shared)
    shutil.copytree(second, shared)
    with pytest.raises(LabelerError, match="give every node the same directory"):
        actor(told)


def test_a_bad_row_keeps_its_pairs_and_their_reason_beside_good_ones(labeler_dir):
    config = MisConfig(model=str(labeler_dir), prompt=SPEC, precision="fp32", **SMALL)
    rows = [
        {"entity_id": "good", "text": "question", "candidate_ids": ["a", "b"], "candidate_texts": ["one", None]},
        {"entity_id": "none", "text": "question", "candidate_ids": [], "candidate_texts": []},
        {"entity_id": "blank", "text": " ", "candidate_ids": ["a"], "candidate_texts": ["one"]},
        {"entity_id": "null", "text": None, "candidate_ids": ["a"], "candidate_texts": ["one"]},
        {"entity_id": "long", "text": "question", "candidate_ids": ["a"], "candidate_texts": ["one " * 99]},
    ]
    scored = Score(config)(Tokenise(config)(prepare_rounds(pa.Table.from_pylist(rows), 2, None)))
    pairs = unpack_pairs(scored, Decision(), False)
    assert pairs.schema == PAIRS and unpack_pairs(scored.slice(0, 0), Decision(), False).schema == PAIRS
    found = {(row["entity_id"], row["candidate_id"]): row for row in pairs.to_pylist()}
    assert list(found) == [("good", "a"), ("good", "b"), ("blank", "a"), ("null", "a"), ("long", "a")]
    assert [key for key, row in found.items() if row["error"] is None] == [("good", "a")]
    assert [key for key, row in found.items() if row["margin"] is not None] == [("good", "a")]
    assert "more than max_item_tokens" in found["long", "a"]["error"] and "blank" in found["null", "a"]["error"]
    whole = unpack_entities(scored, Decision(), False)
    assert whole.schema == ENTITIES and [len(ids) for ids in whole["candidate_ids"]] == [2, 0, 1, 1, 1]
    with pytest.raises(DistributedError, match="entity 'good', candidate 'b': the candidate's text is blank"):
        unpack_pairs(scored, Decision(), True)


# With a local Ray


def test_ray_listens_on_loopback_only_and_takes_neither_statistics_nor_signals(local_ray, ending):
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [c.laddr.ip for process in family for c in process.net_connections() if c.status == "LISTEN"]
    assert listening and set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    from ray._common.usage.usage_lib import usage_stats_enabled

    assert not usage_stats_enabled()
    assert signal.getsignal(signal.SIGTERM) is ending


def test_a_lost_or_doubled_pair_is_named(local_ray, labeler_dir):
    config = MisConfig(labeler=labeler_dir, catalog=dict(list(CATALOG.items())[:3]))
    rows = [{"entity_id": f"e{n}", "candidate_id": c, "error": None} for n in range(4) for c in config.catalog]
    inputs = local_ray.data.from_arrow(entities(4))

    def check(found):
        return check_exactly_once(inputs, local_ray.data.from_arrow(pa.Table.from_pylist(found, PAIRS)), config)

    assert check(rows[::-1]) == 12
    with pytest.raises(DistributedError, match="entity 'e1' and candidate 'c2' never came out"):
        check(rows[:5] + rows[6:])
    with pytest.raises(DistributedError, match="entity 'e1' and candidate 'c2' came out 2 times"):
        check([*rows, rows[5]])
    with pytest.raises(DistributedError, match=r"entity 'e0' and candidate 'c0' came out 2 times \(none in sum\)"):
        check(rows[:5] + rows[6:] + rows[:1])


def test_a_killed_actor_loses_and_doubles_nothing_and_margins_are_the_local_ones(local_ray, labeler_dir):
    config = MisConfig(
        labeler=labeler_dir,
        catalog=CATALOG | {"blank": " "},
        items_per_round=5,
        entities_per_block=1,
        rounds_per_batch=1,
        scorers=Pool(min=2, max=2, cpus=0.5),
        exactly_once=False,
        **SMALL,
    )
    inputs = local_ray.data.from_arrow(entities())
    batches, killed = [], []
    for batch in build_mis_processor(config)(inputs).iter_batches(batch_size=None, batch_format="pyarrow"):
        if not killed:
            killed = scorer_processes()
            killed[0].kill()
        batches.append(batch)
    assert len(killed) == 2 and not killed[0].is_running() and len(batches) > 1
    assert all(batch.schema == PAIRS for batch in batches)
    found = pa.concat_tables(batches)
    assert check_exactly_once(inputs, local_ray.data.from_arrow(found), config) == 40 * 13
    labeler = Labeler.load(labeler_dir, device="cpu", self_check=False, items_per_round=5)
    items = labeler.prompt.items(list(CATALOG.values()))
    by_entity = {}
    for row in found.to_pylist():
        by_entity.setdefault(row["entity_id"], {})[row["candidate_id"]] = row
    for row in entities().to_pylist()[::8]:
        query = labeler.prompt.query(row["text"]).ids
        expected = [labeler.scorer.margins(query, items[start : start + 5]) for start in range(0, 12, 5)]
        pairs = by_entity[row["entity_id"]]
        margins = np.array([pairs[candidate]["margin"] for candidate in CATALOG], dtype=np.float32)
        assert margins.tobytes() == np.concatenate(expected).tobytes()
        assert [pairs[candidate]["label"] for candidate in CATALOG] == (margins >= 0.25).tolist()
        assert pairs["c0"]["probability"] == pytest.approx(float(labeler.probabilities(margins[:1])[0]))
        assert (pairs["blank"]["margin"], pairs["blank"]["error"]) == (None, "the candidate's text is blank")


def test_a_directory_that_is_no_labeler_is_one_line(tmp_path):
    with pytest.raises(LabelerError, match="not a labeler directory"):
        plan_scorer(config_of(Scoring(backend="ray"), tmp_path, "cpu"))


def test_a_promotion_before_the_actors_start_changes_nothing_of_a_job(local_ray, promoted):
    current, first, second = promoted
    settings = {"scorers": Pool(cpus=0.5), "exactly_once": False} | SMALL
    process = build_mis_processor(MisConfig(labeler=current, catalog=CATALOG, **settings))
    lazy = process(local_ray.data.from_arrow(entities(3)))
    switch_current(current.parent, second.name)
    found = {(row["entity_id"], row["candidate_id"]): row["margin"] for row in lazy.take_all()}
    expected, other = (
        {
            (row["entity_id"], candidate_id): margin
            for row in entities(3).to_pylist()
            for candidate_id, margin in zip(CATALOG, labeler.score(row["text"], list(CATALOG.values())), strict=True)
        }
        for labeler in map(loaded, (first, second))
    )
    assert found == pytest.approx(expected, abs=1e-4)
    assert found != pytest.approx(other, abs=1e-2)


def test_a_candidate_that_the_prompt_refuses_takes_no_other_out_of_a_plans_round(local_ray, labeler_dir):
    config = config_of(Scoring(backend="ray", threads=1, ray_cpus=0.5), labeler_dir, "cpu")
    texts = ["keep records", "sell " * 99, "teach people"]
    wanted = [WantedRound(Round(0, 0), "plans work", [7, 8, 9], texts), WantedRound(Round(1, 0), " ", [7], texts[:1])]
    found = dict(plan_scorer(config)(wanted))
    part = found[Round(0, 0)]
    assert [problem is None for problem in part.problems] == [True, False, True]
    assert part.margins == pytest.approx(loaded(labeler_dir).score("plans work", [texts[0], texts[2]]), abs=1e-4)
    assert isinstance(found[Round(1, 0)], PromptError)


class DriverKilled(Exception):
    pass


@pytest.mark.slow  # three nights; that killed actors lose nothing is shown above
def test_a_night_on_ray_that_was_killed_publishes_what_an_undisturbed_local_one_does(
    local_ray, first_run, tmp_path, instance, monkeypatch
):
    def dying(config):
        def score_rounds(wanted):
            for number, scored in enumerate(plan_scorer(config)(wanted)):
                if number == 5:
                    raise DriverKilled
                yield scored

        return score_rounds

    original, _ = first_run
    hashes = {}
    for backend in ("local", "ray"):
        project = original.copied(tmp_path / backend)
        rows = project.entities()
        for row in rows[:12]:
            row["text"] = f"{row['text']} and more plans"
        project.write_entities(rows)
        settings = {"backend": backend, "threads": 1, "ray_cpus": 0.5}
        project.change(scoring=settings, gates={"max_candidate_flip_fraction": 1.0})
        if backend == "ray":
            with monkeypatch.context() as patched:
                patched.setattr("semlabel.distributed.plan_rounds.plan_scorer", dying)
                killed = run(project, instance, "nightly_labeling")
            assert not killed.success and project.operations.run(killed.run_id)["pairs_scored"] == 5 * 8
            monkeypatch.setattr("semlabel.distributed.plan_rounds.session_for", lambda _: nullcontext(LOOKED_AT))
        result = run(project, instance, "nightly_labeling")
        assert result.success
        assert project.operations.run(result.run_id)["pairs_scored"] == (12 * 8 if backend == "local" else 7 * 8)
        hashes[backend] = published(project)["content_hash"]
        made = {event.asset_key.path[-1]: event.materialization for event in result.get_asset_materialization_events()}
        linked = made["predictions"].metadata.get("ray_dashboard")
        assert (linked and linked.value) == (LOOKED_AT.dashboard if backend == "ray" else None)
    assert hashes["local"] == hashes["ray"]


@pytest.mark.slow  # a Ray of its own
def test_the_example_ranks_every_query_as_written(local_ray, labeler_dir, capsys):
    spec = importlib.util.spec_from_file_location("rerank", EXAMPLES / "reranking" / "rerank.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(["--model", str(labeler_dir)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["q1", "q2", "q3", "q4"]
    assert [len(line.split()) - 1 for line in lines[:4]] == [3, 2, 3, 0]
    assert re.fullmatch(r"first document relevant: \d of 3 queries", lines[4])


def test_the_manifests_hold_what_kubernetes_asks_for_and_the_settings_exist():
    documents = [
        document
        for file in sorted((EXAMPLES / "k8s").glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
    ]
    assert sorted(document["kind"] for document in documents) == ["Deployment", "PersistentVolumeClaim", "RayCluster"]
    pods = []
    for document in documents:
        assert document["apiVersion"] and document["metadata"]["name"]
        if document["kind"] == "RayCluster":
            groups = [document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]]
            pods += [group["template"]["spec"] for group in groups]
            assert document["spec"]["rayVersion"] == version("ray")
            (workers,) = document["spec"]["workerGroupSpecs"]
            assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
        elif document["kind"] == "Deployment":
            labels = document["spec"]["template"]["metadata"]["labels"]
            assert document["spec"]["selector"]["matchLabels"] == labels
            assert (document["spec"]["replicas"], document["spec"]["strategy"]["type"]) == (1, "Recreate")
            pods.append(document["spec"]["template"]["spec"])
    claims = {document["metadata"]["name"] for document in documents if document["kind"] == "PersistentVolumeClaim"}
    assert len(pods) == 3
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {
            v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v
        } == claims
        for container in pod["containers"]:
            assert container["image"] and set(container["resources"]) == {"limits", "requests"}
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
            given = {entry["name"]: entry["value"] for entry in container["env"]}
            assert given["RAY_USAGE_STATS_ENABLED"] == "0" and all(isinstance(value, str) for value in given.values())
            for name in given:
                if name.startswith("SEMLABEL__SCORING__"):
                    assert name.removeprefix("SEMLABEL__SCORING__").lower() in Scoring.model_fields
