"""Turns an entity and up to `pack_size` candidates into one prompt, and labels into the answer list that completes it.

The query (everything before the list) is the single prompt's own, so that several packs of an entity share it. Every
part of the list is tokenised by itself, so a candidate's ids are the same wherever it stands and no text can join
with a number. Texts go through the project's one tokenisation: they stay text. Deliberately does not know models.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semlabel.errors import PromptError
from semlabel.prompt import Prompt, PromptSpec, Query
from semlabel.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PACK_SIZE = 20
_INSTRUCTION = "\n\nFor every number below, write the number and {yes} or {no}, one a line.\n"
_CLOSING = "\nAnswers:\n"


@dataclass(frozen=True)
class Grammar:
    """What a well-formed answer list is made of, as token ids.

    A line is its number, `stem`, then either `yes` or `no`; these two differ in their first token, and that token is
    the only choice there is. Lines are joined by `newline`, and `end` follows the last one.
    """

    numbers: tuple[tuple[int, ...], ...]
    stem: tuple[int, ...]
    yes: tuple[int, ...]
    no: tuple[int, ...]
    newline: tuple[int, ...]
    end: int

    def lead(self, line: int) -> list[int]:
        """The forced ids from the start of line `line` (from 0) to its choice; a line after the first brings the end
        of the one before it.
        """
        return [*(self.newline if line else ()), *self.numbers[line], *self.stem]

    def answer(self, labels: Sequence[bool]) -> list[int]:
        """The ids of the well-formed list of `labels`, its end included."""
        ids: list[int] = []
        for line, label in enumerate(labels):
            ids += [*self.lead(line), *(self.yes if label else self.no)]
        return [*ids, self.end]


class PackPrompt:
    """The packed prompt of one tokenizer, made from the specification of the single prompt it is compared with.

    `spec` gives the text before the entity, the question between entity and candidate, the format, the answer words and
    the limits; the entity keeps as many tokens as in the single prompt. Raises PromptError where the single prompt
    would, and for a tokenizer without an end token.
    """

    def __init__(self, spec: PromptSpec, tokenizer: "PreTrainedTokenizerFast", pack_size: int = PACK_SIZE) -> None:
        if pack_size < 1:
            raise PromptError(f"a pack of {pack_size} candidates cannot be asked for; use at least 1")
        self.yes, self.no, self.pack_size = spec.yes, spec.no, pack_size
        self._texts = TextTokenizer(tokenizer)
        self._max_candidate_tokens = spec.max_item_tokens
        single = Prompt(spec, tokenizer)
        self._prompt = Prompt(self._packed_spec(spec, spec.max_query_tokens + len(self._instruction_ids())), tokenizer)
        grown = len(self._prompt.query("a").ids) - len(single.query("a").ids)
        self._prompt = Prompt(self._packed_spec(spec, spec.max_query_tokens + grown), tokenizer)
        # The readout token is where a single answer is read; a list is written, so there it has no place.
        self._closing = self._prompt.closing[:-1] if spec.format == "readout" else self._prompt.closing
        self.grammar = self._grammar(tokenizer)

    def _instruction(self) -> str:
        return _INSTRUCTION.format(yes=self.yes, no=self.no)

    def _instruction_ids(self) -> list[int]:
        return self._texts.ids(self._instruction())

    def _packed_spec(self, spec: PromptSpec, max_query_tokens: int) -> PromptSpec:
        head, rest = spec.template.split("{entity}", maxsplit=1)
        question = rest.split("{candidate}", maxsplit=1)[0].rstrip()
        template = f"{head}{{entity}}{question}{self._instruction()}{{candidate}}{_CLOSING}"
        return replace(spec, template=template, max_query_tokens=max_query_tokens)

    def _grammar(self, tokenizer: "PreTrainedTokenizerFast") -> Grammar:
        if tokenizer.eos_token_id is None:
            raise PromptError("the tokenizer has no end token, so that an answer list would never end; set eos_token")
        yes, no = (self._texts.ids(f" {word}") for word in (self.yes, self.no))
        shared = next((n for n, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if shared is None:
            raise PromptError(f"the answer {self.yes!r} begins with {self.no!r} or the other way round; change one")
        numbers = tuple(tuple(self._texts.ids(str(number + 1))) for number in range(self.pack_size))
        newline = tuple(self._texts.ids("\n"))
        end = int(tokenizer.eos_token_id)
        return Grammar(numbers, tuple(yes[:shared]), tuple(yes[shared:]), tuple(no[shared:]), newline, end)

    def query(self, entity_text: str) -> Query:
        """Everything before the list. Raises PromptError when the entity's text is blank."""
        return self._prompt.query(entity_text)

    def candidates(self, texts: Sequence[str]) -> list[list[int]]:
        """Each candidate's ids, the same in every place of a list; line breaks inside become blanks.

        Raises PromptError for a candidate that is blank or longer than the single prompt's `max_item_tokens`.
        """
        encodings = self._texts.encodings([" " + " ".join(text.split()) for text in texts])
        for text, encoding in zip(texts, encodings, strict=True):
            if not text.strip():
                raise PromptError("the candidate's text is blank")
            if len(encoding.ids) > self._max_candidate_tokens:
                raise PromptError(
                    f"the candidate takes {len(encoding.ids)} tokens, more than max_item_tokens = "
                    f"{self._max_candidate_tokens}: {text[:60]!r}"
                )
        return [list(encoding.ids) for encoding in encodings]

    def listed(self, candidates: Sequence[Sequence[int]]) -> list[int]:
        """The numbered list of one pack of candidates (token ids each) and what follows it, up to the answer list."""
        if not 1 <= len(candidates) <= self.pack_size:
            raise PromptError(f"a pack of {len(candidates)} candidates; this prompt takes 1 to {self.pack_size}")
        ids: list[int] = []
        for number, candidate in enumerate(candidates):
            point = self._texts.ids(".")
            newline = self.grammar.newline if number else ()
            ids += [*newline, *self.grammar.numbers[number], *point, *candidate]
        return [*ids, *self._closing]

    def text_of(self, ids: Sequence[int]) -> str:
        """What some generated ids spell, control tokens by their names."""
        return self._texts.text_of(ids)
