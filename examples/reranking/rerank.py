"""A reranking data set through Ray: each query with its own documents, scored by any decoder, no labeler needed.

Reads JSON lines (`query_id`, `query`, `documents` of `id` and `text`, `relevant`), prints each query's documents with
their margins, best first, and how often the first one is relevant.

    python examples/reranking/rerank.py --model MODEL_DIR [--data FILE] [--address local|auto|HOST:PORT]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semlabel.distributed import MisConfig, Pool, RaySettings, build_mis_processor, ray_session
from semlabel.distributed.runtime import require_ray
from semlabel.prompt import PromptSpec

DATA = Path(__file__).with_name("queries.jsonl")
PROMPT = PromptSpec(template="Query: {entity}\nDocument: {candidate}\nIs the document about the query?")


def entity_row(row: dict[str, Any]) -> dict[str, Any]:
    """What the processor reads, made of a row of the data set: a query is an entity, its documents the candidates."""
    documents = list(row["documents"])
    return {
        "entity_id": row["query_id"],
        "text": row["query"],
        "candidate_ids": [document["id"] for document in documents],
        "candidate_texts": [document["text"] for document in documents],
    }


def rerank(model: str, data: Path, address: str = "local", scorers: int = 1) -> dict[str, list[tuple[str, float]]]:
    """{query id: its documents with their margins, best first}."""
    config = MisConfig(model=model, prompt=PROMPT, output="entities", scorers=Pool(max=scorers), on_error="raise")
    with ray_session(RaySettings(address, cpus=scorers + 2)):
        queries = require_ray().data.from_items([json.loads(line) for line in data.read_text("utf-8").splitlines()])
        rows = build_mis_processor(config, preprocess=entity_row)(queries).take_all()
    return {
        row["entity_id"]: sorted(
            zip(row["candidate_ids"], map(float, row["margins"]), strict=True), key=lambda found: -found[1]
        )
        for row in rows
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--address", default="local")
    parser.add_argument("--scorers", type=int, default=1)
    given = parser.parse_args(arguments)
    ranked = rerank(given.model, given.data, given.address, given.scorers)
    relevant = {row["query_id"]: row["relevant"] for row in map(json.loads, given.data.read_text("utf-8").splitlines())}
    for query, documents in sorted(ranked.items()):
        print(query, *(f"{document}:{margin:.3f}" for document, margin in documents))
    judged = [query for query in ranked if relevant[query]]
    hits = sum(ranked[query][0][0] in relevant[query] for query in judged)
    print(f"first document relevant: {hits} of {len(judged)} queries")


if __name__ == "__main__":
    main()
