"""Proves, before anything is served, that a scorer gives the margins of its model.

Whatever a config says or hides: a few items are scored together in two orders, beside a replaced neighbour, and
alone by the untouched model with its own head; behind a short query, and behind one as long as the prompt allows
and longer than the sliding window, so that a fault there shows. Deliberately does not know which faults exist.
"""

from typing import TYPE_CHECKING

import numpy as np

from semlabel.errors import LabelerError, ModelRefused, PromptError
from semlabel.models import has_experts
from semlabel.prompt_length import longest_query

if TYPE_CHECKING:
    from semlabel.scorer import Scorer

# Margins by two exact methods differ by rounding alone: about 1e-5 in fp32. In bf16 one rounding step of a logit
# of 16 to 32 is 0.125, and the plain head rounds both logits.
TOLERANCE = {"fp32": 1e-4, "bf16": 0.5}
_ENTITY = "Keeps the records of a small office, plans the work of others and answers the telephone. "
_CANDIDATES = ("keep records", "repair machines of all kinds", "a", "teach other people", "sell")
_LEAST_CANDIDATES = 2


def check(scorer: "Scorer") -> float:
    """The largest difference between a margin by the scorer's method and by the plain model.

    Raises ModelRefused when it exceeds the tolerance of the precision or a neighbour moves a margin, LabelerError
    when margins do not vary or the prompt starts with two beginning-of-sequence tokens, PromptError when no
    candidate fits the limits.
    """
    prompt = scorer.prompt
    query = prompt.query(_ENTITY)
    long_text = _ENTITY * (1 + prompt.spec.max_query_tokens // 10)
    long_ids = prompt.query(long_text).ids
    fitting = [
        text for text, problem in zip(_CANDIDATES, prompt.item_problems(_CANDIDATES), strict=True) if not problem
    ]
    if len(fitting) < _LEAST_CANDIDATES:
        raise PromptError(f"[prompt] max_item_tokens = {prompt.spec.max_item_tokens} leaves no room for a candidate")
    items = prompt.items(fitting)
    _check_one_start(scorer, query.ids, items)
    short, together = _compare(scorer, query.ids, items)
    _check_neighbours(scorer, query.ids, items, together)
    # Up to the longest prompt that is ever scored: a window that reaches past it never bites.
    room = scorer.longest_prompt - max(map(len, items[:2]))
    longest = min(longest_query(scorer.model.config, prompt.spec.max_query_tokens), room)
    while len(long_ids) < longest:
        long_ids = [*long_ids, *long_ids[-(longest - len(long_ids)) :]]
    long, _ = _compare(scorer, long_ids, items[:2])
    return max(short, long)


def _check_one_start(scorer: "Scorer", query: list[int], items: list[list[int]]) -> None:
    start = scorer.tokenizer.bos_token_id
    if start is None:
        return
    if query[:2] == [start, start] or any(item[0] == start for item in items):
        raise LabelerError("the prompt has more than one beginning-of-sequence token; mend the chat template")


def _compare(scorer: "Scorer", query: list[int], items: list[list[int]]) -> tuple[float, np.ndarray]:
    """The largest difference from the plain model in either order, and the margins in the given order."""
    tolerance = TOLERANCE[scorer.precision]
    alone = np.array([scorer.plain_margin([*query, *item]) for item in items], dtype=np.float32)
    together = scorer.margins(query, items)
    # Not of `alone`: the plain head rounds logits to the precision, where two margins are soon the same.
    if np.ptp(together) == 0:
        raise LabelerError("different candidates all have the same margin; the weights or the head were not loaded")
    backwards = scorer.margins(query, items[::-1])[::-1]
    largest = float(max(np.abs(together - alone).max(), np.abs(backwards - alone).max()))
    if not largest <= tolerance:
        raise ModelRefused(
            f"{scorer.model.config.model_type} by {scorer.method} differs by {largest:.2g} from single prompts of "
            f"{len(query)} + up to {max(map(len, items))} tokens (limit {tolerance:g}); use another method"
        )
    return largest, together


def _check_neighbours(scorer: "Scorer", query: list[int], items: list[list[int]], together: np.ndarray) -> None:
    # At equal shapes nothing may move in any precision; experts alone compute in shapes that depend on the neighbours.
    yes, no = scorer.prompt.yes_id, scorer.prompt.no_id
    neighbour = [no if token != no else yes for token in items[0]]
    moved = float(np.abs(scorer.margins(query, [neighbour, *items[1:]])[1:] - together[1:]).max())
    if moved > TOLERANCE[scorer.precision if has_experts(scorer.model.config) else "fp32"]:
        raise ModelRefused(
            f"{scorer.model.config.model_type} by {scorer.method}: replacing one item moved another's margin by "
            f"{moved:.2g}; use another method"
        )
