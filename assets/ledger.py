"""What a look at the certify set costs: every use is entered, and each further one is held to a smaller error.

Knows the ledger of `ops.sqlite`. Knows nothing of how a threshold is certified. The first labeler that a certify set
proves may be wrong with probability 3/4 alpha, the next one with 3/4 of what is left, and so on: together they never
spend more than alpha, so whoever tries again and again until it passes does not get there by luck.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from resources.project import Step

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.manifest import Manifest
    from semlabel.shortlist import Rule
    from semlabel.thresholds import Policy

# Most sets are looked at once, so most of alpha goes to the first look.
_SHARE = 0.75
RESULT, JUDGED = "threshold_result", "judged_digest"
"""Where a labeler keeps how its threshold was found, and by which labels."""


@dataclass(frozen=True)
class CertifyUse:
    """The `number`-th look at a set (from 1) and the confidence that is left for it; `known` when it was entered.

    The set is its entities. A set that shares an entity with an earlier one is no other set: one entity more, or less,
    is a further look. `judged_digest` is what they were judged by: whoever judges more pairs of the same entities until
    it passes has looked again. `next_confidence` is what would be left for one more look.
    """

    set_digest: str
    entity_digests: tuple[str, ...]
    judged_digest: str
    number: int
    confidence: float
    next_confidence: float
    known: bool

    def record(self, step: Step, labeler_digest: str, verdict: str) -> None:
        """Enter this use into the ledger, unless it repeats one that is there."""
        if not self.known:
            step.operations.record_certify(
                self.set_digest,
                labeler_digest,
                self.entity_digests,
                confidence=self.confidence,
                verdict=verdict,
                run_id=step.run_id,
            )


def certify_use(
    step: Step,
    checkpoint: "Manifest",
    policy: "Policy",
    certify: "pd.DataFrame",
    entity_ids: Sequence[str],
    rule: "Rule | None" = None,
) -> CertifyUse:
    """The use of the certify set by this checkpoint under this policy: the one in the ledger, or the next one.

    `certify` are its judged pairs, `entity_ids` all entities of the split: a random sample that grows reaches some of
    them later, and must not count as another set for that. `rule`: by which candidates are shortlisted.
    """
    from semlabel.digests import digest_of, text_id

    set_digest, looked_at = digest_of(sorted(entity_ids)), tuple(text_id(entity_id) for entity_id in entity_ids)
    rows = zip(certify["entity_id"], certify["candidate_id"], certify["label"].map(bool), strict=True)
    judged = digest_of(sorted(map(list, rows)))
    uses = step.operations.certify_looks(looked_at)
    number, known = len(uses) + 1, False
    for earlier, use in enumerate(uses, start=1):
        same_set = use["set_digest"] == set_digest and use["confidence"] == _confidence(step, earlier)
        if same_set and _same(step, use["labeler_digest"], checkpoint, policy, judged, rule):
            number, known = earlier, True
            break
    left = [_confidence(step, look) for look in (number, number + 1)]
    return CertifyUse(set_digest, looked_at, judged, number, *left, known=known)


def _confidence(step: Step, number: int) -> float:
    alpha = 1 - step.settings.calibration.confidence
    return float(1 - alpha * _SHARE * (1 - _SHARE) ** (number - 1))


def _same(
    step: Step, labeler_digest: str, checkpoint: "Manifest", policy: "Policy", judged: str, rule: "Rule | None"
) -> bool:
    """Whether an earlier use was of the same question: these margins, labels and shortlists under this policy."""
    from semlabel.errors import LabelerError
    from semlabel.manifest import read_manifest

    try:
        earlier = read_manifest(step.settings.paths.labelers / labeler_digest)
    except LabelerError:
        return False
    # A labeler of an earlier version did not tell what it was judged by.
    same_labels = earlier.evidence.get(RESULT, {}).get(JUDGED, judged) == judged
    same_lists = (earlier.shortlist.digest if earlier.shortlist else None) == (rule.digest if rule else None)
    return (
        same_labels
        and same_lists
        and earlier.scorer_digest == checkpoint.scorer_digest
        and earlier.policy == asdict(policy)
    )
