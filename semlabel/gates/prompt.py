"""Gates of the prompt stage: the answers are single tokens, and the split into query and item changes no token.

They know nothing of tokenizers: they judge token ids that others produced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from semlabel.gates.registry import decide
from semlabel.gates.result import GateResult


def answers_are_single_tokens(yes: str, no: str, yes_ids: Sequence[int], no_ids: Sequence[int]) -> GateResult:
    """Passes when `yes` and `no` are one token each (`yes_ids`, `no_ids`: their ids in place) and not the same."""
    gate = "answers_are_single_tokens"
    evidence = {"yes": yes, "no": no, "yes_ids": list(yes_ids), "no_ids": list(no_ids)}
    longest = max(len(yes_ids), len(no_ids))
    for answer, ids in ((yes, yes_ids), (no, no_ids)):
        if len(ids) != 1:
            found = f"{len(ids)} tokens {list(ids)}" if ids else "no token at all"
            sentence = f"The answer {answer!r} is {found}: choose an answer that is a single token of this model."
            return decide(gate, "fail", sentence, longest, 1, evidence)
    if list(yes_ids) == list(no_ids):
        sentence = f"The answers {yes!r} and {no!r} are the same token {yes_ids[0]}: choose two that differ."
        return decide(gate, "fail", sentence, longest, 1, evidence)
    sentence = f"The answers {yes!r} and {no!r} are one token each and differ."
    return decide(gate, "pass", sentence, longest, 1, evidence)


def split_tokens_match(mismatches: Sequence[str | Mapping[str, Any]], checked: int) -> GateResult:
    """Passes when none of the `checked` pairs has query and item tokens that differ from the whole prompt's."""
    gate = "split_tokens_match"
    evidence = {"mismatches": list(mismatches), "checked": checked}
    if mismatches:
        sentence = (
            f"{len(mismatches)} of {checked} prompts have other tokens when split before the candidate: "
            "put a line break or a blank before {candidate} in the template."
        )
        return decide(gate, "fail", sentence, len(mismatches), 0, evidence)
    if checked <= 0:
        sentence = "No prompt was compared: give the catalog and the entities at least one row each."
        return decide(gate, "not_enough_data", sentence, None, 0, evidence)
    sentence = f"All {checked} prompts have the same tokens whole and split."
    return decide(gate, "pass", sentence, 0, 0, evidence)
