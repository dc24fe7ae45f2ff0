"""Shortlists in the recipe: kept for the predictions, NO for what they leave out where tau is proven, and their gate.

Knows the rule of the settings and that of a labeler, and that both must be one. Knows nothing of how candidates are
ranked. The gate looks at `certify` entities: which candidates they keep was fixed by texts alone, and a labeler that
was proven with another rule is another look at them, which the ledger counts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assets.checks import GateCheck, gate_check
from assets.evaluation import judged_pairs, split_ids
from assets.labelers import needed_labeler
from assets.ledger import RESULT
from resources.project import Step
from semlabel.errors import GateBlocked

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from semlabel.gates import GateResult
    from semlabel.manifest import Manifest
    from semlabel.shortlist import Ranker, Rule
    from semlabel.warehouse import Warehouse

_KEYS = ["entity_id", "candidate_id"]
_SIZES = (0.25, 0.5, 1.0, 2.0, 4.0)


def rule_for(step: Step, manifest: "Manifest") -> "Rule | None":
    """The rule to predict by, None without shortlists. Raises GateBlocked when the labeler was proven with another."""
    from semlabel.shortlist_encoders import rule_of

    rule, proven = rule_of(step.settings), manifest.shortlist
    if (rule.digest if rule else None) != (proven.digest if proven else None):
        raise GateBlocked(
            f"labeler {manifest.digest[:12]} was proven with {_told(proven)}, and the settings say {_told(rule)}: "
            "run `semlabel run --select threshold` and promote the labeler it makes, or take [shortlist] back"
        )
    return rule


def keep_shortlists(step: Step, warehouse: "Warehouse", rule: "Rule | None", scope: Sequence[str] | None) -> None:
    """Make the shortlists of the scope and of what gates judge be there; without a rule, none."""
    from semlabel import shortlist_store
    from semlabel.shortlist_encoders import encoder_of

    if rule is None:
        shortlist_store.drop(warehouse)
        return
    wanted = None if scope is None else [*scope, *judged_ids(warehouse)]
    made = shortlist_store.keep(warehouse, rule, lambda: encoder_of(step.settings), wanted, step.progress)
    step.log.info(f"{made} shortlists of {rule.size} candidates made ({rule.encoder}); the others are as they were")


def judged_ids(warehouse: "Warehouse") -> list[str]:
    """The held-out entities that have references: their every pair is scored, shortlisted or not."""
    rows = warehouse.rows(
        "SELECT entity_id FROM entities SEMI JOIN reference_labels USING (entity_id) "
        "WHERE split IN ('calibrate', 'certify', 'test') ORDER BY 1"
    )
    return [row[0] for row in rows]


def with_shortlists(
    step: Step, warehouse: "Warehouse", rule: "Rule | None", *tables: "pd.DataFrame"
) -> "tuple[tuple[pd.DataFrame, ...], list[dict[str, Any]]]":
    """The tables of pairs, each with a column `shortlisted`; and the recall of the first one's YES by size.

    Without a rule they are as they were, and nothing is measured.
    """
    from semlabel.shortlist import ranker
    from semlabel.shortlist_encoders import encoder_of
    from semlabel.shortlist_store import candidates

    if rule is None:
        return tables, []
    found = candidates(warehouse)
    lists = ranker(encoder_of(step.settings), found.texts, rule.size)
    ranks = [_ranks(warehouse, pairs, lists, found.places) for pairs in tables]
    listed = tuple(pairs.assign(shortlisted=own < rule.size) for pairs, own in zip(tables, ranks, strict=True))
    return listed, _recall_by_size(tables[0], ranks[0], rule.size)


def _ranks(warehouse: "Warehouse", pairs: "pd.DataFrame", lists: "Ranker", place_of: dict[str, int]) -> "np.ndarray":
    """The rank (pairs,) of each pair's candidate for its entity, 0 for the nearest."""
    import numpy as np

    ids = list(pairs["entity_id"].unique())
    with warehouse.ids("wanted_entities", ids):
        texts = dict(warehouse.rows("SELECT entity_id, text FROM entities SEMI JOIN wanted_entities ON id = entity_id"))
    places = pairs["candidate_id"].map(place_of).to_numpy()
    rows = pairs.groupby("entity_id", sort=False).indices
    ranks = np.empty(len(pairs), dtype=np.intp)
    for entity_id, of_entity in zip(ids, lists.ranks([texts[name] for name in ids]), strict=True):
        ranks[rows[entity_id]] = of_entity[places[rows[entity_id]]]
    return ranks


def at_bottom(pairs: "pd.DataFrame", threshold: float | None) -> "pd.DataFrame":
    """The pairs with margins as readers see them: those outside the shortlists lie below all others, and below tau."""
    if "shortlisted" not in pairs:
        return pairs
    floor = min(pairs["margin"].min(), threshold if threshold is not None else 0.0) - 1.0
    return pairs.assign(margin=pairs["margin"].where(pairs["shortlisted"], floor)).drop(columns="shortlisted")


def _recall_by_size(pairs: "pd.DataFrame", ranks: "np.ndarray", size: int) -> list[dict[str, Any]]:
    """The share of reference YES that shortlists of several sizes hold."""
    own = ranks[pairs["label"].to_numpy(dtype=bool)]
    sizes = sorted({max(1, round(size * factor)) for factor in _SIZES})
    return [{"size": some, "recall": float((own < some).mean()) if len(own) else None} for some in sizes]


def _told(rule: Any) -> str:
    return "no shortlist" if rule is None else f"shortlists of {rule.size} ({rule.encoder}, {rule.digest[:12]})"


def _recall(step: Step) -> "GateResult":
    from semlabel import gates

    _, manifest = needed_labeler(step)
    rule = rule_for(step, manifest)
    if rule is None:
        raise GateBlocked("there are no shortlists; set [shortlist] size, or leave this check out")
    confidence = manifest.evidence.get(RESULT, {}).get("confidence", step.settings.calibration.confidence)
    with step.reader() as warehouse:
        if not warehouse.shortlists_are_current():
            raise GateBlocked("the shortlists are of another catalog; run predictions first")
        judged = judged_pairs(step, warehouse, manifest, "certify")
        full = set(judged_ids(warehouse))
        every = _every_pair(warehouse, [name for name in split_ids(warehouse, "certify") if name in full])
    limit = step.settings.shortlist.min_recall
    yes = judged[judged["label"]].merge(every[[*_KEYS, "kept"]], on=_KEYS)
    claims = [
        _claim("reference YES", yes, judged["entity_id"].unique(), confidence, limit),
        _claim("YES of the labeler", every[every["label"]], every["entity_id"].unique(), confidence, limit),
    ]
    return gates.shortlist_recall(claims, rule.size, limit, confidence)


def _every_pair(warehouse: "Warehouse", entity_ids: Sequence[str]) -> "pd.DataFrame":
    """Every pair of these entities, whether the labeler says YES and whether it is `kept` in a shortlist.

    Raises GateBlocked where one has no margin yet.
    """
    from semlabel.warehouse_schema import predictions_query, shortlisted_pairs

    with warehouse.ids("measured_entities", entity_ids):
        entities = "(SELECT * FROM entities SEMI JOIN measured_entities ON measured_entities.id = entity_id)"
        every = warehouse.frame(
            f"""SELECT p.entity_id, p.candidate_id, p.label, k.text_key IS NOT NULL AS kept
            FROM ({predictions_query(entities)}) p JOIN entities e USING (entity_id) JOIN catalog c USING (candidate_id)
            LEFT JOIN ({shortlisted_pairs(entities)}) k
                ON k.text_key = e.text_key AND k.candidate_text_key = c.text_key"""
        )
    ((candidates,),) = warehouse.rows("SELECT count(*) FROM catalog")
    missing = len(entity_ids) * candidates - len(every)
    if missing:
        raise GateBlocked(f"{missing} pairs of certify have no margin yet; run predictions first")
    return every


def _claim(of: str, yes: "pd.DataFrame", entity_ids: Any, confidence: float, limit: float) -> dict[str, Any]:
    """What some YES (entity_id, kept) of these entities tell of those that survive."""
    from semlabel.bounds import more_entities
    from semlabel.shortlist import recall_bound

    counts = yes.groupby("entity_id")["kept"].agg(["sum", "count"]).reindex(entity_ids, fill_value=0)
    kept, total = counts["sum"].to_numpy(dtype=float), counts["count"].to_numpy(dtype=float)
    told = {"of": of, "kept": int(kept.sum()), "total": int(total.sum()), "entities": len(counts)}
    if not told["total"]:
        return told | {"recall": None, "bound": None, "shown": False, "more_entities": None}
    found = recall_bound(kept, total, confidence)
    more = more_entities(len(counts), 1 - found.point, 1 - found.bound, 1 - limit)
    return told | {"recall": found.point, "bound": found.bound, "shown": found.shown, "more_entities": more}


def _basis(step: Step) -> Any:
    return step.labels_digest()


shortlist_recall = gate_check(
    GateCheck(
        "shortlist_recall",
        subject=Step.predictions_digest,
        evidence=_recall,
        limits=("shortlist.min_recall",),
        also=_basis,
        one_look=True,
    )
)
