"""A consumer's own code location: a table that follows the published predictions and runs after each publication.

Knows the folder of published versions and nothing of semlabel. Load it beside the pipeline in one Dagster deployment,
or alone; the database is the consumer's.
"""

import os
from pathlib import Path

import dagster as dg
import duckdb

FOLLOW = Path(__file__).with_name("follow.sql")

published_predictions = dg.AssetSpec("published_predictions", description="Made by the labeling team's code location.")


def follow(database: Path, published: Path) -> tuple[str, str, int]:
    """Bring the consumer's `labels` up to date: what was done, the version held now, its rows."""
    with duckdb.connect(str(database)) as connection:
        connection.execute("SET VARIABLE published = ?", [str(published)])
        mode, version, pairs = connection.execute(FOLLOW.read_text(encoding="utf-8")).fetchall()[0]
    return mode, version, pairs


@dg.asset(deps=[published_predictions], automation_condition=dg.AutomationCondition.eager(), kinds={"duckdb"})
def followed_labels() -> dg.MaterializeResult:
    """The consumer's copy of the labels, at the cost of what changed since the version it held."""
    mode, version, pairs = follow(Path(os.environ["CONSUMER_DATABASE"]), Path(os.environ["CONSUMER_PUBLISHED"]))
    return dg.MaterializeResult(
        metadata={"mode": mode, "published_version": version, "dagster/row_count": pairs},
        data_version=dg.DataVersion(version),
    )


defs = dg.Definitions(assets=[published_predictions, followed_labels])
