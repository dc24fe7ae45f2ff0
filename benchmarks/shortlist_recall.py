"""How many candidates a shortlist must keep: the share of reference YES that survive, by size, and what ranking costs.

Reference labels only, no model: what a labeler's own YES lose is measured by the gate `shortlist_recall` of a project.
Run `PYTHONPATH=. .venv/bin/python benchmarks/shortlist_recall.py --out benchmarks/results/shortlist_recall.json` after
`make demo`; `--encoder` names an embedding model instead of the built-in TF-IDF. The whole catalog of the settings
counts, `catalog_top` or not.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from semlabel.bench.environment import environment
from semlabel.settings import load_settings
from semlabel.shortlist import ranker, recall_bound
from semlabel.shortlist_encoders import HuggingFace, Tfidf
from semlabel.sources import read_catalog, read_entities, read_references

SIZES = (10, 25, 50, 100, 200, 400, 800)


def main() -> None:
    """Rank, count, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("demo/pipeline.toml"))
    parser.add_argument("--encoder", default="tfidf")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    settings = load_settings(arguments.config)
    entities, catalog = read_entities(settings).frame, read_catalog(settings).frame
    references = read_references(settings).frame
    place_of = {candidate: place for place, candidate in enumerate(catalog["candidate_id"])}
    known = references[references["label"] & references["candidate_id"].isin(place_of)]
    yes = known.groupby("entity_id")["candidate_id"].apply(lambda ids: np.array([place_of[name] for name in ids]))
    entities = entities[entities["entity_id"].isin(yes.index)]
    encoder = Tfidf() if arguments.encoder == "tfidf" else HuggingFace(arguments.encoder)

    started = time.perf_counter()
    lists = ranker(encoder, list(catalog["text"]), 1)
    fitted = time.perf_counter() - started
    started = time.perf_counter()
    ranks = [
        of_entity[yes[entity_id]]
        for entity_id, of_entity in zip(entities["entity_id"], lists.ranks(list(entities["text"])), strict=True)
    ]
    seconds = time.perf_counter() - started
    totals = np.array([len(own) for own in ranks])
    cells = []
    for size in [size for size in SIZES if size < len(catalog)]:
        found = recall_bound(np.array([(own < size).sum() for own in ranks]), totals, 0.95)
        share = size / len(catalog)
        cells.append({"size": size, "share_scored": share, "recall": found.point, "lower_bound": found.bound})
        print(f"{size:6,} of {len(catalog):,}: recall {found.point:.3f}, at least {found.bound:.3f}")
    result = {
        "environment": environment(),
        "encoder": encoder.name,
        "entities": len(entities),
        "candidates": len(catalog),
        "reference_yes": int(totals.sum()),
        "seconds_to_fit": fitted,
        "seconds_to_rank": seconds,
        "cells": cells,
    }
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
