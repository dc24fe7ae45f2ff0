"""Gate of the shortlist: of what is YES, enough must survive it.

Knows nothing of encoders, texts or tables: which YES stand in a shortlist was counted elsewhere. It exists only where
there are shortlists.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult


def shortlist_recall(
    claims: Sequence[Mapping[str, Any]], size: int, min_recall: float, confidence: float
) -> GateResult:
    """Passes when every claim's lower bound reaches `min_recall`; each was counted on entities that gates judge.

    A claim has `of` (whose YES), `kept` and `total` YES, `entities`, `recall`, its lower `bound` at `confidence`,
    whether the bound is `shown` to hold for so many entities, and `more_entities` (that would do if recall stayed).
    """
    gate = "shortlist_recall"
    evidence = {"claims": [dict(claim) for claim in claims], "size": size, "confidence": confidence}
    bounds = [claim["bound"] for claim in claims if claim["total"] > 0]
    worst = min(bounds, default=None)
    if not claims or len(bounds) < len(claims):
        empty = ", ".join(str(claim["of"]) for claim in claims if claim["total"] <= 0) or "YES"
        sentence = f"There is no {empty} on held-out entities to measure the shortlists by: judge more entities."
        return decide(gate, "not_enough_data", sentence, worst, min_recall, evidence)
    told = " and ".join(_told(claim) for claim in claims)
    word = "" if all(claim["shown"] for claim in claims) else ", estimated on few entities"
    found = f"{told} stand in the shortlists of {size} with {100 * confidence:.4g}% confidence{word}"
    if any(not claim["recall"] >= min_recall for claim in claims):
        cure = "raise [shortlist] size, or name a better encoder"
        return decide(gate, "fail", f"Only {found} (limit {min_recall:.1%}): {cure}.", worst, min_recall, evidence)
    if any(not claim["bound"] >= min_recall for claim in claims):
        more = max(claim["more_entities"] or 1 for claim in claims)
        cure = f"judge about {more} more entities for the certify split, or raise [shortlist] size"
        sentence = f"Too little data: {found} (limit {min_recall:.1%}); {cure}."
        return decide(gate, "not_enough_data", sentence, worst, min_recall, evidence)
    sentence = f"{found[0].upper()}{found[1:]} (limit {min_recall:.1%})."
    return decide(gate, "pass", sentence, worst, min_recall, evidence)


def _told(claim: Mapping[str, Any]) -> str:
    return f"{claim['recall']:.1%} (at least {claim['bound']:.1%}) of {claim['total']} {claim['of']}"
