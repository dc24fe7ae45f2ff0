"""One decision rule: whatever decides in SQL says what Python says, at tau exactly and one float32 step beside it."""

from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semlabel.cli.churn import churn
from semlabel.decision import decide, decision_sql
from semlabel.errors import SourceError, WarehouseError
from semlabel.label_differences import compare
from semlabel.warehouse import ScoredRound
from semlabel.warehouse_scores import ensure_blocks
from tests.storage import Project

# Float32 numbers, as the walk finds them; and numbers that float32 would move to one side or to the other.
TAUS = [0.0, 0.25, -3.5, float(np.float32(0.1)), float(np.float32(-1e-30)), float(np.float32(7.9e5)), 0.1, 0.7, -0.3]


def beside(tau: float) -> np.ndarray:
    """The float32 margin next to tau, and one step below and above it."""
    at = np.float32(tau)
    return np.array([np.nextafter(at, np.float32(-np.inf)), at, np.nextafter(at, np.float32(np.inf))])


@pytest.mark.parametrize("tau", TAUS)
def test_sql_says_what_python_says_at_tau_and_one_step_beside_it(tau):
    margins = beside(tau)
    expected = decide(margins, tau).tolist()
    assert expected == [float(margin) >= tau for margin in margins] and expected[0] is False and expected[2] is True
    with duckdb.connect() as connection:
        connection.register("rows", pa.table({"margin": pa.array(margins, pa.float32()), "tau": [tau] * 3}))
        for threshold, parameters in (("tau", []), (tau, []), ("?", [tau])):
            found = connection.execute(f"SELECT {decision_sql('margin', threshold)} FROM rows", parameters).fetchall()
            assert [label for (label,) in found] == expected


@pytest.mark.parametrize("tau", [float(np.float32(0.1)), 0.7])
def test_the_table_the_churn_and_a_comparison_say_what_python_says(tmp_path, tau):
    """Where tau is no float32 number, float32(tau) is on one side of it: 0.7 rounds to a margin that is a NO."""
    project = Project(tmp_path)
    project.put(new_catalog={"c0": "below", "c1": "at", "c2": "above"})
    warehouse = project.warehouse
    warehouse.activate_labeler("another", "scorer", tau)
    expected = decide(beside(tau), tau).tolist()
    store(project, {"alpha": beside(tau), "beta": beside(tau), "gamma": beside(tau)})
    assert project.predictions()["label"].tolist() == expected * 3
    published = tmp_path / "published" / "current" / "predictions.duckdb"
    published.parent.mkdir(parents=True)
    with duckdb.connect(str(published)) as connection:
        connection.execute("CREATE TABLE predictions (entity_id VARCHAR, candidate_id VARCHAR, label BOOLEAN)")
        connection.execute("INSERT INTO predictions SELECT 'e1', unnest(['c0', 'c1', 'c2']), false")
    project.close()
    paths = SimpleNamespace(
        published=tmp_path / "published",
        warehouse=tmp_path / "warehouse.duckdb",
        ops=tmp_path / "ops.sqlite",
        temporary=tmp_path / "temporary",
    )
    settings = SimpleNamespace(
        paths=paths,
        scoring=SimpleNamespace(memory_limit="500MB", threads=1),
        environment=SimpleNamespace(lease_wait_seconds=0.0),
    )
    told = churn(settings, SimpleNamespace(threshold=tau, scorer_digest="scorer"))
    assert (told.pairs_compared, told.changed, told.yes_in_either) == (3, sum(expected), sum(expected))

    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    written(first, beside(tau))
    written(second, [-1e9] * 3)
    assert compare(first, first, tau, 0.0).yes == compare(first, second, tau, 0.0).changed == sum(expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_margin_that_is_no_number_is_refused_before_sql_would_read_it_as_a_label(tmp_path, value):
    with pytest.raises(ValueError, match="not finite"):
        decide([0.0, value], 0.5)
    project = Project(tmp_path)
    with pytest.raises(WarehouseError, match="not finite"):
        store(project, {"alpha": np.array([0.0, value, 1.0, 1.0, 1.0], dtype=np.float32)})
    assert len(project.predictions()) == 0
    project.close()
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    written(good, [0.0, 1.0])
    written(bad, [0.0, value])
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(SourceError, match="entity 'e1' with candidate 'c1' has a margin that is not finite"):
            compare(*pair, 0.5, 0.1)


def store(project: Project, margins: dict[str, np.ndarray]) -> None:
    """Store one round over the whole catalog for each entity text."""
    rows = project.warehouse.rows("SELECT text_key FROM catalog ORDER BY position")
    keys = [key for (key,) in rows]
    with project.warehouse.transaction() as connection:
        (block,) = ensure_blocks(connection, [keys])
    entity = dict(project.warehouse.rows("SELECT text, text_key FROM entities"))
    rounds = [ScoredRound(entity[text], block, keys, row) for text, row in margins.items()]
    project.warehouse.commit_scores(rounds, "scorer", "run")


def written(path, margins) -> None:
    candidates = [f"c{number}" for number in range(len(margins))]
    values = pa.array(margins, pa.float32())
    pq.write_table(pa.table({"entity_id": ["e1"] * len(margins), "candidate_id": candidates, "margin": values}), path)
