"""What a look at the certify set costs: every use is entered, and each further one is held to a smaller error.

Knows the ledger of `ops.sqlite`. Knows nothing of how a threshold is certified. The first labeler that a certify set
proves may be wrong with probability 3/4 alpha, the next one with 3/4 of what is left, and so on: together they never
spend more than alpha, so whoever tries again and again until it passes does not get there by luck. A use is entered
before its look: a run that is killed while it looks, or after it, has looked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

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
class Question:
    """What is asked of a certify set: these margins and labels (`judged`) and shortlists under this policy."""

    set_digest: str
    scorer: str
    policy: Mapping[str, Any]
    judged: str
    rule: str | None

    @property
    def digest(self) -> str:
        """By which the ledger knows the question again."""
        from semlabel.digests import digest_of

        return digest_of(asdict(self))


@dataclass(frozen=True)
class CertifyUse:
    """The `number`-th look at a set (from 1) and the confidence that is left for it.

    The set is its entities. A set that shares an entity with an earlier one is no other set: one entity more, or less,
    is a further look. `question` is what is asked of it: whoever judges more pairs of the same entities until it passes
    has looked again. `next_confidence` is what would be left for one more look, `entry` where the ledger has this one.
    """

    set_digest: str
    entity_digests: tuple[str, ...]
    question: Question
    number: int
    confidence: float
    next_confidence: float
    entry: int | None = None

    def begun(self, step: Step) -> "CertifyUse":
        """Enter this use into the ledger, unless it repeats one that is there; to be called before the look."""
        if self.entry is not None:
            return self
        entry = step.operations.begin_certify(
            self.set_digest,
            self.question.digest,
            self.entity_digests,
            confidence=self.confidence,
            run_id=step.run_id,
        )
        return replace(self, entry=entry)

    def complete(self, step: Step, labeler_digest: str, verdict: str) -> None:
        """Enter what came of it, unless that is there already."""
        if self.entry is None:
            raise ValueError("a look that was not entered before it began cannot be completed")
        step.operations.complete_certify(self.entry, labeler_digest, verdict)


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
    question = Question(
        set_digest, checkpoint.scorer_digest, asdict(policy), judged, rule.digest if rule is not None else None
    )
    uses = step.operations.certify_looks(looked_at)
    number = len(uses) + 1
    entry: int | None = None
    for earlier, use in enumerate(uses, start=1):
        if use["confidence"] == _confidence(step, earlier) and _same(step, use, question):
            number, entry = earlier, int(use["id"])
            break
    left = [_confidence(step, look) for look in (number, number + 1)]
    return CertifyUse(set_digest, looked_at, question, number, *left, entry=entry)


def _confidence(step: Step, number: int) -> float:
    alpha = 1 - step.settings.calibration.confidence
    return float(1 - alpha * _SHARE * (1 - _SHARE) ** (number - 1))


def _same(step: Step, use: Mapping[str, Any], question: Question) -> bool:
    """Whether an earlier use was of the same question; one that an earlier version entered is asked by its labeler."""
    if use["question_digest"] is not None:
        return bool(use["question_digest"] == question.digest)
    return bool(use["set_digest"] == question.set_digest) and _asked(step, use["labeler_digest"], question)


def _asked(step: Step, labeler_digest: str, question: Question) -> bool:
    """Whether a labeler came of the same question, as far as its manifest tells."""
    from semlabel.errors import LabelerError
    from semlabel.manifest import read_manifest

    try:
        earlier = read_manifest(step.settings.paths.labelers / labeler_digest)
    except LabelerError:
        return False
    # A labeler of an earlier version did not tell what it was judged by.
    same_labels = earlier.evidence.get(RESULT, {}).get(JUDGED, question.judged) == question.judged
    same_lists = (earlier.shortlist.digest if earlier.shortlist else None) == question.rule
    return same_labels and same_lists and earlier.scorer_digest == question.scorer and earlier.policy == question.policy
