"""The table of work: what each method does for one query with N items, from the cells of the throughput benchmark.

Requests and the query's prefill follow from the method and its setting, decoded tokens and labels/s were counted and
measured. Knows nothing of how cells are measured.
"""

from collections.abc import Sequence
from typing import Any

from semlabel.bench.output import markdown_table
from semlabel.generation.prompt import PACK_SIZE

Cell = dict[str, Any]
SIZES = (20, 200)
_HEADERS = [
    "method",
    "N",
    "requests",
    "query tokens prefilled",
    "tokens prefilled",
    "tokens decoded",
    "labels/s",
    "setting",
]


def work_table(cells: Sequence[Cell], sizes: Sequence[int] = SIZES) -> str:
    """One Markdown table per precision and shape, for the sizes that are there."""
    parts = []
    for precision, query, item in dict.fromkeys((c["precision"], c["query_tokens"], c["item_tokens"]) for c in cells):
        mine = [c for c in cells if (c["precision"], c["query_tokens"], c["item_tokens"]) == (precision, query, item)]
        largest = max(cell["items"] for cell in mine)
        shown = [cell for cell in mine if cell["items"] in sizes] or [c for c in mine if c["items"] == largest]
        rows = [work_row(cell) for cell in shown]
        parts.append(f"{precision}, query {query} tokens, items {item} tokens:\n\n{markdown_table(_HEADERS, rows)}")
    return "\n".join(parts)


def work_row(cell: Cell) -> list[str]:
    """One method and size: everything for one query, tokens as they were counted."""
    # Some methods are timed on fewer items than N, because their cost per item does not depend on it.
    scale = cell["items"] * cell["queries"] / cell["items_measured"]
    setting = dict(part.split("=", 1) for part in cell["setting"].split(", ") if "=" in part)
    requests, queries = _requests(cell, setting)
    return [
        cell["method"],
        str(cell["items"]),
        str(requests),
        f"{queries * cell['query_tokens']:,}",
        f"{cell['prefill_tokens'] * scale / cell['queries']:,.0f}",
        f"{cell['decoded_tokens'] * scale / cell['queries']:,.0f}",
        f"{cell['labels_per_s']:.1f}",
        cell["setting"],
    ]


def _requests(cell: Cell, setting: dict[str, str]) -> tuple[int, int]:
    """Prompts that a server would be sent for one query, and how many times the query's tokens are run for them."""
    items = cell["items"]
    if cell["method"] == "generation":
        packs = -(-items // PACK_SIZE)
        return packs, 1 if setting.get("shared_query") == "True" else packs
    if cell["method"] == "mis":
        rounds = -(-items // int(setting.get("items_per_round", str(items))))
        return rounds, rounds
    return items, 1 if cell["method"] == "prefix_cache" else items
