"""Turns an entity and a candidate into the token ids of one prompt: the query, and the item that completes it.

There is one way to tokenise, and everything uses it: training, scoring, serving, checks. The query is everything
before the candidate; the item is the candidate and what follows it up to the token whose successor is the answer.
Control tokens come from the chat template and the readout token alone; the entity, the candidate and the
template's own words are text. Deliberately does not know models, and imports no torch.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.digests import digest_of
from semlabel.errors import PromptError, first_line
from semlabel.text_tokenizer import TextTokenizer, repaired

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SENTINEL = "\ue000the-message\ue001"
# A template that prints today's date would score differently every day: it gets the same day every time.
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"
_LEAST_ENTITY_TOKENS = 8


@dataclass(frozen=True)
class PromptSpec:
    """What a prompt depends on besides the tokenizer. Limits are in tokens, of the whole query and the whole item."""

    template: str
    format: str = "readout"
    yes: str = "Yes"
    no: str = "No"
    readout_token: str | None = None
    max_query_tokens: int = 256
    max_item_tokens: int = 64

    @classmethod
    def from_settings(cls, prompt: Any) -> "PromptSpec":
        """From the `[prompt]` section of the settings, or anything with the same attributes."""
        return cls(**{name: getattr(prompt, name) for name in cls.__dataclass_fields__})

    def digest(self) -> str:
        """sha256 (hex) of every field."""
        return digest_of(asdict(self))


@dataclass(frozen=True)
class AnswerTokens:
    """The ids the two answers are made of; `problem` says why they cannot be read out, None when they can."""

    yes_ids: list[int]
    no_ids: list[int]
    problem: str | None = None


@dataclass(frozen=True)
class Query:
    """Token ids of everything before the candidate; `truncated` when the entity's text was cut to fit."""

    ids: list[int]
    truncated: bool


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerFast":
    """The tokenizer of a model directory (or hub name). Raises PromptError when there is none to be read."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise PromptError(f"{path}: no tokenizer can be loaded: {reason}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise PromptError(f"{path}: {type(tokenizer).__name__} is no fast tokenizer (tokenizer.json); convert it")
    loaded: PreTrainedTokenizerFast = tokenizer
    return loaded


def tokenizer_digest(tokenizer: "PreTrainedTokenizerFast | str | Path") -> str:
    """sha256 (hex) of all that tokenisation depends on: the fast tokenizer, the chat template, the named tokens."""
    if isinstance(tokenizer, str | Path):
        tokenizer = load_tokenizer(tokenizer)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state |= {"truncation": None, "padding": None}
    return digest_of([state, tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token])


def answer_tokens(spec: PromptSpec, tokenizer: "PreTrainedTokenizerFast") -> AnswerTokens:
    """The tokens of `yes` and `no` as they would follow the prompt, and whether they are two single tokens."""
    return _answers(spec, TextTokenizer(tokenizer))


def _answers(spec: PromptSpec, texts: TextTokenizer) -> AnswerTokens:
    ids = {word: texts.token_ids(word) for word in (spec.yes, spec.no)}
    problem = None
    for name, word in (("yes", spec.yes), ("no", spec.no)):
        if len(ids[word]) != 1:
            parts = " + ".join(repr(texts.text_of([token])) for token in ids[word]) or "nothing"
            problem = problem or (
                f"[prompt] {name} = {word!r} is {len(ids[word])} tokens ({parts}) of this tokenizer; "
                f"the answers must be single tokens: try another spelling, such as 'Yes' and 'No'"
            )
    if problem is None and ids[spec.yes] == ids[spec.no]:
        problem = f"[prompt] yes = {spec.yes!r} and no = {spec.no!r} are the same token; choose two different words"
    return AnswerTokens(ids[spec.yes], ids[spec.no], problem)


class Prompt:
    """One prompt of one tokenizer.

    Raises PromptError when the template lacks its placeholders, the answers are not two distinct single tokens, the
    readout token is none, the tokenizer has no chat template (format `chat`), or the template fills the limits.
    """

    def __init__(self, spec: PromptSpec, tokenizer: "PreTrainedTokenizerFast") -> None:
        self.spec = spec
        self._texts = TextTokenizer(tokenizer)
        answers = _answers(spec, self._texts)
        if answers.problem:
            raise PromptError(answers.problem)
        self.yes_id, self.no_id = answers.yes_ids[0], answers.no_ids[0]
        head, middle, tail = _template_parts(spec.template)
        if spec.format == "readout":
            self._before, self._after = self._texts.start_ids(), [self._readout_id(tokenizer)]
        elif spec.format == "chat":
            before, lead, trail, self._after = self._chat_parts(tokenizer)
            self._before, head, tail = before, lead + head, tail + trail
        else:
            raise PromptError(f"[prompt] format = {spec.format!r} is not known; use 'readout' or 'chat'")
        self._at_start = all(token in self._texts.start_ids() for token in self._before)
        # "Activity: keep" is "Activity", ":", " keep" to most tokenizers: the blank must travel with the candidate.
        self._head, self._middle, self._tail = head, middle.rstrip(" \t"), tail
        self._blank = middle[len(self._middle) :]
        self._check_limits()

    def _readout_id(self, tokenizer: "PreTrainedTokenizerFast") -> int:
        token = self.spec.readout_token if self.spec.readout_token is not None else tokenizer.eos_token
        if token is None:
            raise PromptError("the tokenizer has no end token to read the answer from; set [prompt] readout_token")
        ids = self._texts.token_ids(token)
        if len(ids) != 1:
            raise PromptError(f"[prompt] readout_token = {token!r} is {len(ids)} tokens; it must be exactly one")
        return ids[0]

    def _chat_parts(self, tokenizer: "PreTrainedTokenizerFast") -> tuple[list[int], str, str, list[int]]:
        """Ids before the message's text, the text it is glued to on either side, and the ids after it."""
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        if not template:
            raise PromptError("the tokenizer has no chat template; use [prompt] format = 'readout'")
        rendered: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": _SENTINEL}],
            tokenize=False,
            add_generation_prompt=True,
            chat_template=_SAME_DAY + template if "strftime_now" in template else template,
        )
        if rendered.count(_SENTINEL) != 1:
            raise PromptError("the chat template does not show the message exactly once; use format = 'readout'")
        before, after = (self._texts.segments(part) for part in rendered.split(_SENTINEL))
        lead = before.pop() if before and isinstance(before[-1], str) else ""
        trail = after.pop(0) if after and isinstance(after[0], str) else ""
        return self._fixed_ids(before), str(lead), str(trail), self._fixed_ids(after)

    def _fixed_ids(self, segments: Sequence[str | int]) -> list[int]:
        ids: list[int] = []
        for segment in segments:
            ids.extend([segment] if isinstance(segment, int) else self._texts.ids(segment, at_start=not ids))
        return ids

    def _check_limits(self) -> None:
        fixed = len(self._before) + len(self._texts.ids(self._head + self._middle, self._at_start))
        if fixed + _LEAST_ENTITY_TOKENS > self.spec.max_query_tokens:
            raise PromptError(
                f"the template alone takes {fixed} of [prompt] max_query_tokens = {self.spec.max_query_tokens}; "
                f"raise it to at least {fixed + _LEAST_ENTITY_TOKENS}"
            )

    @property
    def closing(self) -> list[int]:
        """Ids of what follows a candidate that is tokenised by itself: the template's last words and an item's end.

        That end is the readout token, or the end of the user's message and the assistant's header.
        """
        return [*self._texts.ids(self._tail), *self._after]

    def query(self, entity_text: str) -> Query:
        """The query of one entity. Raises PromptError when its text is blank."""
        return self.queries([entity_text])[0]

    def queries(self, entity_texts: Sequence[str]) -> list[Query]:
        """The queries of many entities, tokenised together.

        A text that does not fit `max_query_tokens` is cut at a token boundary and marked; nothing else is cut.
        """
        return [query for query, _ in self._fit(entity_texts)]

    def _fit(self, entity_texts: Sequence[str]) -> list[tuple[Query, str]]:
        """Each entity's query and the part of its text that is in it."""
        for number, text in enumerate(entity_texts):
            if not text.strip():
                raise PromptError(f"the text of entity {number + 1} of {len(entity_texts)} is blank; refuse that row")
        fitted: dict[int, tuple[Query, str]] = {}
        pending = [(number, repaired(text), False) for number, text in enumerate(entity_texts)]
        while pending:
            spans = [self._head + text + self._middle for _, text, _ in pending]
            too_long = []
            for (number, text, truncated), encoding in zip(
                pending, self._texts.encodings(spans, self._at_start), strict=True
            ):
                excess = len(self._before) + len(encoding.ids) - self.spec.max_query_tokens
                if excess > 0:
                    too_long.append((number, text[: self._cut(text, encoding.offsets, excess)], True))
                else:
                    fitted[number] = Query([*self._before, *encoding.ids], truncated), text
            pending = too_long
        return [fitted[number] for number in range(len(entity_texts))]

    def _cut(self, text: str, offsets: list[tuple[int, int]], excess: int) -> int:
        """How many characters of the entity to keep so that at least `excess` tokens go; always fewer than before."""
        starts = [start for start, _ in offsets]
        end = bisect_left(starts, len(self._head) + len(text))
        keep = min(starts[max(end - excess, 0)] - len(self._head), len(text) - 1)
        if keep <= 0:
            raise PromptError("the entity's text cannot be cut to fit max_query_tokens; raise max_query_tokens")
        return keep

    def item(self, candidate_text: str) -> list[int]:
        """The item of one candidate. Raises PromptError when it is blank or longer than `max_item_tokens`."""
        return self.items([candidate_text])[0]

    def items(self, candidate_texts: Sequence[str]) -> list[list[int]]:
        """The items of many candidates, tokenised together; raises PromptError for the first that cannot be used."""
        items = self._items(candidate_texts)
        for text, ids in zip(candidate_texts, items, strict=True):
            if problem := self._item_problem(text, ids):
                raise PromptError(problem)
        return items

    def item_problems(self, candidate_texts: Sequence[str]) -> list[str | None]:
        """For each candidate why `item` would refuse it, None where it would not."""
        return self.items_or_problems(candidate_texts)[1]

    def items_or_problems(self, candidate_texts: Sequence[str]) -> tuple[list[list[int]], list[str | None]]:
        """The items of many candidates, empty where `item` would refuse one, and for each why it would, or None."""
        items = self._items(candidate_texts)
        problems = [self._item_problem(text, ids) for text, ids in zip(candidate_texts, items, strict=True)]
        return [[] if problem else ids for ids, problem in zip(items, problems, strict=True)], problems

    def _items(self, candidate_texts: Sequence[str]) -> list[list[int]]:
        encodings = self._texts.encodings([self._blank + text + self._tail for text in candidate_texts])
        return [[*encoding.ids, *self._after] for encoding in encodings]

    def _item_problem(self, text: str, ids: list[int]) -> str | None:
        if not text.strip():
            return "the candidate's text is blank"
        if len(ids) > self.spec.max_item_tokens:
            return (
                f"the candidate takes {len(ids)} tokens, more than max_item_tokens = {self.spec.max_item_tokens}: "
                f"{text[:60]!r}"
            )
        return None

    def whole(self, entity_text: str, candidate_text: str) -> list[int]:
        """The same prompt tokenised in one go: what query and item must add up to."""
        ((_, kept),) = self._fit([entity_text])
        span = self._head + kept + self._middle + self._blank + candidate_text + self._tail
        return [*self._before, *self._texts.ids(span, self._at_start), *self._after]

    def split_mismatch(self, entity_text: str, candidate_text: str) -> str | None:
        """How the split prompt differs from the whole one, None when their tokens are the same."""
        query, item = self.query(entity_text).ids, self.item(candidate_text)
        split, whole = [*query, *item], self.whole(entity_text, candidate_text)
        if split == whole:
            return None
        shortest = min(len(split), len(whole))
        at = next((n for n in range(shortest) if split[n] != whole[n]), shortest)
        return (
            f"token {at} is {self._texts.text_of(split[at : at + 1])!r} in query + item "
            f"(the query has {len(query)} tokens) but {self._texts.text_of(whole[at : at + 1])!r} in the whole prompt"
        )


def _template_parts(template: str) -> tuple[str, str, str]:
    """The template's text before the entity, between entity and candidate, and after the candidate."""
    places = re.findall(r"\{(entity|candidate)\}", template)
    if places != ["entity", "candidate"]:
        found = " then ".join(f"{{{place}}}" for place in places) or "neither"
        raise PromptError(
            f"[prompt] template must have {{entity}} once and then {{candidate}} once; found {found}. "
            f"The entity comes first because all its candidates share it"
        )
    head, rest = repaired(template).split("{entity}")
    middle, tail = rest.split("{candidate}")
    return head, middle, tail
