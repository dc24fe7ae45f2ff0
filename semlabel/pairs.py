"""Which pairs train, which are judged, and which candidates are in the catalog at all.

Sampling is by entity and by hash: an entity's pairs stay the same when others come or go. Knows nothing of files,
tokens or models; says what a pair means that no reference lists, and nothing else does.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semlabel.settings import Settings, Training
from semlabel.splits import TRAIN

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd


def select_catalog(
    catalog: "pd.DataFrame", references: "pd.DataFrame", train_entity_ids: Collection[str], top: int
) -> tuple["pd.DataFrame", list[str]]:
    """The `top` candidates that most train entities have (0: all), in catalog order, and the ids left out.

    Only train entities count, so that the choice knows nothing of held-out labels. Ties go to the earlier candidate.
    """
    if not top or top >= len(catalog):
        return catalog.reset_index(drop=True), []
    used = references[references["label"] & references["entity_id"].isin(list(train_entity_ids))]
    uses = used.groupby("candidate_id", sort=False)["entity_id"].nunique()
    counts = catalog["candidate_id"].map(uses).fillna(0).to_numpy()
    kept = sorted(range(len(catalog)), key=lambda position: (-counts[position], position))[:top]
    mask = catalog.index.isin(catalog.index[kept])
    return catalog[mask].reset_index(drop=True), list(catalog["candidate_id"][~mask])


def build_training_pairs(
    entities: "pd.DataFrame",
    catalog: "pd.DataFrame",
    references: "pd.DataFrame",
    settings: Settings,
    undecided: "pd.DataFrame | None" = None,
) -> "pd.DataFrame":
    """Pairs to train on: (entity_id, candidate_id, label: bool, split, kind), the rows of an entity together.

    `entities` has entity_id and split, `catalog` candidate_id and group, `references` entity_id, candidate_id, label
    (also those of candidates outside the catalog: they show that the entity was judged). Kinds: "positive"; "listed"
    negatives; "hard" ones, from the group of one of the entity's positives; "random" ones. An entity without any
    reference is not used; with `unlisted` "unknown" only listed pairs are. `undecided` pairs (entity_id, candidate_id)
    are sampled for nothing. Entities come in an order set by the seed; `max_pairs` takes whole entities from the front,
    and cuts the first one only when it alone is larger.
    """
    import numpy as np
    import pandas as pd

    training, unlisted = settings.training, settings.sources.unlisted
    candidate_ids = catalog["candidate_id"].to_numpy(dtype=object)
    groups = _group_codes(catalog)
    listed = _listed(entities, catalog, references, TRAIN)
    without = _left_out(catalog, undecided)
    parts: list[_Round] = []
    total = 0
    for entity_id in sorted(listed, key=lambda entity_id: _seed_of(training.seed, entity_id)):
        positions, labels = listed[entity_id]
        left_out = without.get(entity_id, ())
        part = _sample(entity_id, positions, labels, groups, training, unlisted == "unknown", left_out)
        if training.max_pairs and total + len(part.positions) > training.max_pairs:
            if not parts:
                parts.append(part.cut(training.max_pairs))
            break
        if len(part.positions):
            parts.append(part)
            total += len(part.positions)
    sizes = [len(part.positions) for part in parts]
    positions = np.concatenate([part.positions for part in parts]) if parts else np.zeros(0, dtype=np.int64)
    kinds = np.concatenate([part.kinds for part in parts]) if parts else np.zeros(0, dtype=np.int8)
    return pd.DataFrame(
        {
            "entity_id": pd.Series(
                np.repeat(np.array([part.entity_id for part in parts], dtype=object), sizes), dtype="str"
            ),
            "candidate_id": pd.Series(candidate_ids[positions], dtype="str"),
            "label": kinds == _KINDS.index("positive"),
            "split": pd.Series([TRAIN] * len(positions), dtype="str"),
            "kind": pd.Series(np.array(_KINDS, dtype=object)[kinds], dtype="str"),
        }
    )


def cross_product_labels(
    entities: "pd.DataFrame",
    catalog: "pd.DataFrame",
    references: "pd.DataFrame",
    split: str,
    unlisted: str,
    undecided: "pd.DataFrame | None" = None,
) -> "pd.DataFrame":
    """The judged pairs of one split: (entity_id, candidate_id, label: bool), by entity, then in catalog order.

    With `unlisted` "negative" that is the whole cross product of the entities that have references, but for `undecided`
    pairs (entity_id, candidate_id), of which nobody knows whether they are YES or NO; with "unknown" the listed pairs
    alone, or the randomly drawn ones (`design` "random") where the split has such: they stand for the cross product,
    and listed ones only for themselves. An entity without any reference was not judged and is in none.
    """
    import numpy as np
    import pandas as pd

    if unlisted == "unknown" and "design" in references:
        inside = references["entity_id"].isin(entities["entity_id"][entities["split"] == split])
        drawn = references[inside & (references["design"] == "random")]
        references = references if drawn.empty else drawn

    candidate_ids = catalog["candidate_id"].to_numpy(dtype=object)
    listed = _listed(entities, catalog, references, split)
    if unlisted == "unknown":
        sizes = [len(positions) for positions, _ in listed.values()]
        positions = [position for position, _ in listed.values()]
        columns = np.concatenate(positions) if positions else np.zeros(0, dtype=np.int64)
        labels = np.concatenate([label for _, label in listed.values()]) if listed else np.zeros(0, dtype=bool)
    else:
        without = _left_out(catalog, undecided)
        table = np.zeros((len(listed), len(candidate_ids)), dtype=bool)
        decided = np.ones_like(table)
        for row, (entity_id, (own, label)) in enumerate(listed.items()):
            table[row, own] = label
            decided[row, list(without.get(entity_id, ()))] = False
        sizes = decided.sum(axis=1).tolist()
        columns = np.nonzero(decided)[1]
        labels = table[decided]
    return pd.DataFrame(
        {
            "entity_id": pd.Series(np.repeat(np.array(list(listed), dtype=object), sizes), dtype="str"),
            "candidate_id": pd.Series(candidate_ids[columns], dtype="str"),
            "label": labels,
        }
    )


_KINDS = ("positive", "listed", "hard", "random")
_NO_GROUP = -1  # also the last index of an array, where it cannot collide with a group


@dataclass(frozen=True)
class _Round:
    """The sampled pairs of one entity, shuffled: positions in the catalog, and indices into `_KINDS`."""

    entity_id: str
    positions: "np.ndarray"
    kinds: "np.ndarray"

    def cut(self, size: int) -> "_Round":
        return _Round(self.entity_id, self.positions[:size], self.kinds[:size])


def _listed(
    entities: "pd.DataFrame", catalog: "pd.DataFrame", references: "pd.DataFrame", split: str
) -> "dict[str, tuple[np.ndarray, np.ndarray]]":
    """{entity_id: (positions in the catalog, labels)} of the split's entities that have references, in their order.

    Positions are sorted; both arrays are empty for an entity whose references all lie outside the catalog.
    """
    import numpy as np
    import pandas as pd

    own = entities["entity_id"][entities["split"] == split]
    position_of = pd.Series(np.arange(len(catalog)), index=catalog["candidate_id"])
    rows = references[references["entity_id"].isin(own)]
    positions = rows["candidate_id"].map(position_of)
    judged = pd.DataFrame({"entity_id": rows["entity_id"], "position": positions, "label": rows["label"]})
    inside = judged.dropna(subset=["position"]).sort_values(["entity_id", "position"], kind="stable")
    names = inside["entity_id"].to_numpy(dtype=object)
    edges = np.flatnonzero(names[1:] != names[:-1]) + 1
    columns = np.split(inside["position"].to_numpy(dtype=np.int64), edges)
    labels = np.split(inside["label"].to_numpy(dtype=bool), edges)
    arrays = dict(zip(names[np.append(0, edges)], zip(columns, labels, strict=True), strict=True)) if len(names) else {}
    nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
    known = set(rows["entity_id"])
    return {entity_id: arrays.get(entity_id, nothing) for entity_id in own if entity_id in known}


def _left_out(catalog: "pd.DataFrame", undecided: "pd.DataFrame | None") -> dict[str, list[int]]:
    """{entity_id: positions in the catalog} of the undecided pairs; those of other candidates are in none."""
    found: dict[str, list[int]] = {}
    if undecided is None or undecided.empty:
        return found
    position_of = {candidate_id: position for position, candidate_id in enumerate(catalog["candidate_id"])}
    for entity_id, candidate_id in zip(undecided["entity_id"], undecided["candidate_id"], strict=True):
        if candidate_id in position_of:
            found.setdefault(entity_id, []).append(position_of[candidate_id])
    return found


def _sample(
    entity_id: str,
    listed: "np.ndarray",
    labels: "np.ndarray",
    groups: "np.ndarray",
    training: Training,
    only_listed: bool,
    left_out: Sequence[int],
) -> _Round:
    import numpy as np

    random = np.random.default_rng(_seed_of(training.seed, entity_id))
    positives = listed[labels]
    most = max(1, int(training.items_per_round * training.positive_fraction))
    chosen = random.permutation(positives)[:most]
    room = training.items_per_round - len(chosen)
    negatives = random.permutation(listed[~labels])[:room]
    parts = [chosen, negatives]
    if not only_listed:
        room -= len(negatives)
        free = np.ones(len(groups), dtype=bool)
        free[listed] = False
        free[list(left_out)] = False
        wanted = np.zeros(groups.max(initial=_NO_GROUP) + 2, dtype=bool)
        wanted[groups[positives]] = True
        wanted[_NO_GROUP] = False
        near = wanted[groups]
        hard = random.permutation(np.flatnonzero(free & near))[: round(room * training.hard_fraction)]
        free[hard] = False
        # Where the groups give too few hard ones the rest is random, from everywhere: the round stays full.
        others = random.permutation(np.flatnonzero(free))[: room - len(hard)]
        parts += [hard, others]
    positions = np.concatenate(parts)
    kinds = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part) for part in parts])
    order = random.permutation(len(positions))
    return _Round(entity_id, positions[order], kinds[order])


def _group_codes(catalog: "pd.DataFrame") -> "np.ndarray":
    """One number per candidate for its group, -1 for those without."""
    import numpy as np
    import pandas as pd

    if "group" not in catalog.columns:
        return np.full(len(catalog), _NO_GROUP)
    names = catalog["group"].fillna("")
    codes, _ = pd.factorize(names)
    return np.where(names.to_numpy(dtype=object) == "", _NO_GROUP, codes)


def _seed_of(seed: int, entity_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{entity_id}".encode()).digest()[:8], "big")
