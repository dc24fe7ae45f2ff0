"""Evidence that packed scoring changes nothing: against every pair alone, and against another order of the candidates.

The packed margins are the stored ones, which is what is published; only the other side is scored here. Knows nothing
of what the margins are worth.
"""

import math
from typing import TYPE_CHECKING

from assets.evaluation import ensure_scored, judged_pairs, judged_with
from assets.labelers import judged_checkpoint
from resources.project import Step
from semlabel.gates import GateResult, mis_matches_single_item, order_invariance

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from semlabel.manifest import Manifest
    from semlabel.scorer import Scorer

_SEED = 7


def packed_against_single(step: Step) -> GateResult:
    """`parity_pairs` stored margins of calibrate, half of them near the top, against the same pairs scored alone."""
    from semlabel.scorer import Scorer

    wanted = step.settings.gates.parity_pairs
    pairs, cut, scorer, manifest = _stored(step)
    sample = _sample(pairs, cut, wanted)
    alone = Scorer(
        scorer.model,
        scorer.tokenizer,
        scorer.prompt,
        method="independent",
        precision=scorer.precision,
        max_round_tokens=scorer.max_round_tokens,
    )
    other = _rescored(alone, sample)
    compared = _comparison(step, sample, other, cut, manifest)
    return judged_with(mis_matches_single_item(**compared, min_pairs=min(wanted, len(pairs))), manifest)


def order_against_order(step: Step) -> GateResult:
    """All stored margins of as many calibrate entities as `order_pairs` needs, against a shuffled round."""
    import numpy as np

    wanted = step.settings.gates.order_pairs
    pairs, cut, scorer, manifest = _stored(step)
    # Entities with the clearest YES first: without one, no label could change.
    best = pairs.groupby("entity_id")["margin"].max().sort_values(ascending=False, kind="stable")
    per_entity = max(1, len(pairs) // max(1, len(best)))
    chosen = best.index[: math.ceil(wanted / per_entity)]
    sample = pairs[pairs["entity_id"].isin(chosen)]
    order = np.random.default_rng(_SEED).permutation(len(sample))
    other = _rescored(scorer, sample.iloc[order])[np.argsort(order)]
    compared = _comparison(step, sample, other, cut, manifest)
    return judged_with(order_invariance(**compared, min_pairs=min(wanted, len(pairs))), manifest)


def _stored(step: Step) -> "tuple[pd.DataFrame, float, Scorer, Manifest]":
    """The stored calibrate pairs with their texts, a working cut, the model, and its manifest."""
    directory, manifest = judged_checkpoint(step)
    with step.writer() as warehouse:
        ensure_scored(step, warehouse, directory, manifest, "calibrate")
        pairs = judged_pairs(step, warehouse, manifest, "calibrate")
        entities, catalog = warehouse.entities(), warehouse.catalog()
    texts = dict(zip(entities["entity_id"], entities["text"], strict=True))
    candidates = dict(zip(catalog["candidate_id"], catalog["text"], strict=True))
    pairs = pairs.assign(text=pairs["entity_id"].map(texts), candidate=pairs["candidate_id"].map(candidates))
    cut = manifest.threshold
    if cut is None:
        cut = best_f1_cut(pairs["label"].to_numpy(), pairs["margin"].to_numpy())
    return pairs, cut, step.scorer(directory), manifest


def best_f1_cut(labels: "np.ndarray", margins: "np.ndarray") -> float:
    """The margin from which calling a pair YES gives the best F1; above every margin when nothing is YES.

    It lies half-way to the next lower margin: on a pair's own margin every rounding would change that pair's label.
    """
    import numpy as np

    if not labels.any():
        return float(np.inf)
    order = np.argsort(-margins, kind="stable")
    found = np.cumsum(labels[order])
    f1 = 2 * found / (np.arange(1, len(order) + 1) + labels.sum())
    best = margins[order].astype(np.float64)
    chosen = best[int(np.argmax(f1))]
    lower = best[best < chosen]
    return float((chosen + lower[0]) / 2) if len(lower) else float(chosen)


def _sample(pairs: "pd.DataFrame", cut: float, wanted: int) -> "pd.DataFrame":
    """Half YES at the cut as far as there are such, the rest from everywhere; sorted by entity."""
    yes = pairs[pairs["margin"] >= cut]
    top = yes.sample(n=min(len(yes), wanted // 2), random_state=_SEED)
    others = pairs.drop(top.index)
    rest = others.sample(n=min(len(others), wanted - len(top)), random_state=_SEED)
    return pairs.loc[sorted([*top.index, *rest.index])]


def _rescored(scorer: "Scorer", sample: "pd.DataFrame") -> "np.ndarray":
    """Margins of the sample's pairs, one call per entity with its candidates in the sample's order."""
    import numpy as np

    margins = np.empty(len(sample), dtype=np.float32)
    places = sample.reset_index(drop=True).groupby("entity_id", sort=False)
    for _, part in places:
        query = scorer.prompt.query(part["text"].iloc[0]).ids
        margins[part.index] = scorer.margins(query, scorer.prompt.items(list(part["candidate"])))
    return margins


def _comparison(
    step: Step, sample: "pd.DataFrame", other: "np.ndarray", cut: float, manifest: "Manifest"
) -> dict[str, object]:
    import numpy as np

    from semlabel.metrics import label_flips

    gates = step.settings.gates
    stored = sample["margin"].to_numpy(dtype=np.float64)
    changed = label_flips(stored, other, cut)
    tolerance = gates.parity_tolerance(manifest.precision)
    return {
        "differences": np.abs(stored - other.astype(np.float64)),
        "flips": changed.flips,
        "yes_either": changed.yes_either,
        "tolerance": tolerance,
        "pairs": len(sample),
        "max_label_flips": gates.max_label_flips(manifest.precision),
    }
