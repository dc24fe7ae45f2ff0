"""Runs that the daemon sees fail: told once, whichever sensor looks first, also where no step ever began."""

import dagster as dg
import pytest

from pipeline.sensors import run_endings, run_failures
from resources.operations import OperationsResource
from resources.project import ProjectResource
from resources.scorer import ScorerResource
from resources.settings import SettingsResource
from resources.warehouse import WarehouseResource
from semlabel import outbox
from semlabel.cli import execution
from semlabel.cli.endings import COMMAND_TAG
from semlabel.errors import GateBlocked, SourceError
from semlabel.gates import GateResult
from semlabel.operations import Operations
from tests.cli_settings import smallest

NIGHT = "nightly_labeling"
MISSING = SourceError("entities.csv: no such file")


class Daemon:
    """A project, Dagster's storage beside it, and the two sensors that look at runs."""

    def __init__(self, folder, instance):
        (folder / "pipeline.toml").write_text(smallest())
        settings = SettingsResource(config_path=str(folder / "pipeline.toml"))
        operations = OperationsResource(settings=settings)
        warehouse = WarehouseResource(settings=settings, operations=operations)
        scorers = ScorerResource(settings=settings, operations=operations)
        self.project = ProjectResource(settings=settings, operations=operations, warehouse=warehouse, scorers=scorers)
        self.instance = instance
        self.operations: Operations = operations.get()

    def night(self, error=None, job=NIGHT, tags=None, begins=True, select=None):
        """A run of two assets as the schedule starts it: it only notes its start."""

        @dg.asset
        def entities(context):
            if begins:
                self.operations.start_run(context.run.run_id, context.run.job_name)
            if error is not None:
                raise error

        @dg.asset
        def catalog():
            pass

        jobs = [dg.define_asset_job(job, "*", executor_def=dg.in_process_executor)]
        definition = dg.Definitions(assets=[entities, catalog], jobs=jobs).resolve_job_def(job)
        keys = [dg.AssetKey(name) for name in select] if select else None
        result = definition.execute_in_process(
            instance=self.instance, raise_on_error=False, tags=tags or {}, asset_selection=keys
        )
        return self.instance.get_run_by_id(result.run_id)

    def looks(self):
        """An evaluation of the sensor of endings."""
        resources = {"project": self.project}
        with dg.build_sensor_context(instance=self.instance, resources=resources) as context:
            return run_endings(context).skip_message

    def sees_it_fail(self, run):
        """What Dagster does for a run that failed."""
        (entry,) = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
        with dg.build_run_status_sensor_context(
            sensor_name="run_failures",
            dagster_event=entry.dagster_event,
            dagster_instance=self.instance,
            dagster_run=run,
            resources={"project": self.project},
        ) as context:
            run_failures(context)

    def told(self):
        """Kind and message of everything in the outbox that is about a run."""
        rows = self.operations.file.rows("SELECT kind, message FROM outbox WHERE gate = 'run' ORDER BY id")
        return [(row["kind"], row["message"]) for row in rows]


@pytest.fixture
def daemon(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        yield Daemon(tmp_path, instance)


FAILED = ("failed", f"{NIGHT} failed: entities: entities.csv: no such file")


@pytest.mark.parametrize("first", ["looks", "sees_it_fail"])
def test_a_failure_is_told_once_whichever_sensor_looks_first_and_closed_by_a_good_night(daemon, first):
    run = daemon.night(MISSING)
    for _ in range(2):
        if first == "looks":
            daemon.looks()
        daemon.sees_it_fail(run)
        daemon.looks()
    assert daemon.told() == [FAILED]
    assert daemon.operations.run(run.run_id)["status"] == "FAILURE"
    again = daemon.night(MISSING)  # tried once more, by hand or by a retry
    daemon.sees_it_fail(again)
    assert daemon.told() == [FAILED]
    daemon.night()
    daemon.looks()
    assert daemon.told() == [FAILED, ("recovered", f"{NIGHT} went well to its end.")]
    daemon.sees_it_fail(run)  # a cursor that was cleared
    assert len(daemon.told()) == 2


def test_a_run_that_failed_before_its_first_step_is_told_and_stands_in_the_list_of_runs(daemon):
    run = daemon.night(MISSING, begins=False)
    assert daemon.operations.run(run.run_id) is None
    daemon.sees_it_fail(run)
    assert daemon.told() == [FAILED]
    assert daemon.operations.last_run()["job"] == NIGHT
    assert daemon.operations.last_run()["status"] == "FAILURE"
    assert (daemon.project.settings.get().paths.reports / f"{run.run_id}.html").exists()


def test_a_run_that_the_daemon_gave_up_is_told_in_the_words_of_who_closed_it(daemon):
    run = daemon.instance.create_run_for_job(one_asset().resolve_job_def(NIGHT))
    daemon.instance.report_run_failed(run, "Exceeded maximum runtime of 86400 seconds.")
    daemon.sees_it_fail(daemon.instance.get_run_by_id(run.run_id))
    assert daemon.told() == [("failed", f"{NIGHT} failed: the run: Exceeded maximum runtime of 86400 seconds.")]


def one_asset():
    @dg.asset
    def entities():
        pass

    return dg.Definitions(assets=[entities], jobs=[dg.define_asset_job(NIGHT, "*")])


def test_an_error_that_may_quote_a_text_is_only_named(daemon):
    daemon.night(ValueError("Nina Example, 12 Main Street"))
    daemon.looks()
    ((_, said),) = daemon.told()
    assert said.startswith(f"{NIGHT} failed: entities failed (ValueError): look into the log")


def test_a_refusal_is_told_unless_a_gate_has_told_why(daemon):
    result = GateResult("volume_change", "predictions", "ERROR", "fail", 0.2, 0.05, "20 % would vanish.")
    daemon.operations.record_gate("earlier", result, None, "s", "1")
    daemon.night(GateBlocked("20 % would vanish."))
    daemon.looks()
    assert daemon.told() == []
    assert [row["gate"] for row in outbox.open_incidents(daemon.operations.file)] == ["volume_change"]
    daemon.night(dg.Failure("Not published, the current version stays: publishing is paused (wrong tau)"))
    daemon.looks()
    assert daemon.told() == []
    daemon.night(MISSING)
    daemon.looks()
    assert daemon.told() == [FAILED]


def test_paused_publishing_is_told_where_no_gate_is_red(daemon):
    daemon.night(dg.Failure("Not published, the current version stays: publishing is paused (wrong tau)"))
    daemon.looks()
    said = f"{NIGHT} failed: entities: Not published, the current version stays: publishing is paused (wrong tau)"
    assert daemon.told() == [("failed", said)]


def test_a_preview_is_told_to_nobody(daemon):
    run = daemon.night(MISSING, tags={"semlabel/entities_limit": "5"})
    daemon.sees_it_fail(run)
    daemon.looks()
    assert daemon.told() == []
    assert daemon.operations.run(run.run_id)["status"] == "FAILURE"


def test_a_part_that_goes_well_does_not_close_what_the_night_left_open(daemon):
    daemon.night(MISSING)
    daemon.looks()
    part = daemon.night(select=["entities"])
    daemon.looks()
    assert daemon.operations.run(part.run_id)["status"] == "SUCCESS"
    assert daemon.told() == [FAILED]


def test_the_end_of_a_run_of_the_command_is_left_to_it_while_it_lives(daemon):
    run = daemon.night(MISSING, tags={COMMAND_TAG: "run"})
    daemon.sees_it_fail(run)
    daemon.looks()
    assert daemon.operations.run(run.run_id)["status"] == "STARTED" and daemon.told() == []
    die(daemon)
    daemon.looks()
    assert daemon.operations.run(run.run_id)["status"] == "FAILURE" and daemon.told() == [FAILED]


def borrowed(instance):
    """The instance for code that would close it."""

    class Open:
        def __enter__(self):
            return instance

        def __exit__(self, *_):
            return None

    return Open


def die(daemon):
    with daemon.operations.file.transaction() as connection:
        connection.execute("UPDATE runs SET process_start = '12345'")


def test_a_night_that_ended_well_before_anybody_noted_it_is_not_taken_for_a_killed_one(daemon):
    run = daemon.night()
    die(daemon)
    assert execution.reap(daemon.operations, borrowed(daemon.instance)) == []
    assert daemon.operations.run(run.run_id)["status"] == "SUCCESS"
    assert daemon.told() == []


def test_a_run_killed_before_dagster_heard_of_it_is_told(daemon):
    daemon.operations.start_run("gone", f"{NIGHT} until catalog")
    daemon.operations.start_run("preview", f"{NIGHT} of 5 entities")
    die(daemon)
    assert sorted(execution.reap(daemon.operations, borrowed(daemon.instance))) == ["gone", "preview"]
    said = f"a part of {NIGHT} failed: its process died: the next run goes on with its work"
    assert daemon.told() == [("failed", said)]


def test_a_run_whose_process_was_killed_is_ended_by_the_daemon_and_told(daemon):
    run = daemon.instance.create_run_for_job(one_asset().resolve_job_def(NIGHT), status="STARTED")
    daemon.operations.start_run(run.run_id, NIGHT)
    assert daemon.looks() == "no run ended"
    die(daemon)
    assert daemon.looks() == f"closed {run.run_id[:8]}"
    assert daemon.instance.get_run_by_id(run.run_id).status.value == "FAILURE"
    assert daemon.operations.run(run.run_id)["status"] == "FAILURE"
    assert daemon.told() == [("failed", f"{NIGHT} failed: its process died: the next run goes on with its work")]
    assert (daemon.project.settings.get().paths.reports / f"{run.run_id}.html").exists()


def test_the_sensor_of_failures_runs_by_itself_and_finds_what_failed_since_it_last_looked(daemon):
    assert run_failures.default_status == dg.DefaultSensorStatus.RUNNING
    cursor, resources = None, {"project": daemon.project}
    for error in (None, MISSING):
        daemon.night(error, begins=False)
        with dg.build_sensor_context(instance=daemon.instance, cursor=cursor, resources=resources) as context:
            cursor = run_failures.evaluate_tick(context).cursor
    assert daemon.told() == [FAILED]
