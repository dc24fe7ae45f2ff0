"""A downstream reader in a process of its own: reads the current version again and again, and says what it saw.

`python published_reader.py FOLDER READS OFFSET`: one JSON line per read. Knows the published layout and nothing of
semlabel, as any reader does: it resolves `current` once per read and trusts what lies there.
"""

import json
import sys
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.dataset

COLUMNS = ["label", "threshold", "labeler_digest"]


def with_duckdb(path: Path) -> list[object]:
    """Rows, YES labels and whose they are, from the DuckDB copy."""
    with duckdb.connect(str(path / "predictions.duckdb"), read_only=True, config={"threads": 1}) as connection:
        (found,) = connection.execute(
            "SELECT count(*), count(*) FILTER (label), list_sort(list(DISTINCT labeler_digest)), "
            "list_sort(list(DISTINCT threshold)) FROM predictions"
        ).fetchall()
    return list(found)


def with_pyarrow(path: Path) -> list[object]:
    """The same from the Parquet files, through Arrow."""
    table = pyarrow.dataset.dataset(path / "predictions", format="parquet").to_table(columns=COLUMNS)
    return _told(table.to_pandas())


def with_pandas(path: Path) -> list[object]:
    """The same through pandas."""
    return _told(pd.read_parquet(path / "predictions", columns=COLUMNS))


def _told(frame: pd.DataFrame) -> list[object]:
    digests, thresholds = (sorted(frame[name].unique().tolist()) for name in ("labeler_digest", "threshold"))
    return [len(frame), int(frame["label"].sum()), digests, thresholds]


def main(folder: Path, reads: int, offset: int) -> None:
    """Read, and compare each read with the manifest of the version it was of."""
    ways = [with_duckdb, with_pyarrow, with_pandas]
    for read in range(reads):
        way = ways[(read + offset) % len(ways)]
        path = (folder / "current").resolve(strict=True)
        manifest = json.loads((path / "manifest.json").read_text())
        promised = [manifest["rows"], manifest["labels"], [manifest["labeler_digest"]], [manifest["threshold"]]]
        found = way(path)
        seen = {"version": manifest["version"], "way": way.__name__, "equal": found == promised}
        print(json.dumps(seen | {"found": found, "promised": promised}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
