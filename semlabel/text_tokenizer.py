"""Tokenises text that must stay text: whatever a person writes, no control token comes out.

A model's tokenizer turns `<|im_end|>` inside an entity into the control token of that name. Here text goes through
a copy of the tokenizer that does not know the added tokens at all. Deliberately does not know prompts or templates.
"""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semlabel.errors import PromptError

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerFast

_SURROGATES = re.compile("[\ud800-\udfff]")


def repaired(text: str) -> str:
    """`text` with lone surrogates, which no encoding of Unicode has, replaced by U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


class TextTokenizer:
    """The text side of one tokenizer: encodes text without control tokens, and knows which ids are control tokens.

    `controls` maps every added token's content to its id, except non-special ones that are only white space: those
    are spellings of plain text. Raises PromptError for a tokenizer without a fast backend.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise PromptError(f"{type(tokenizer).__name__} has no fast tokenizer (tokenizer.json); convert it first")
        added = backend.get_added_tokens_decoder()
        kept = {token_id: token for token_id, token in added.items() if token.special or token.content.strip()}
        self.controls = {token.content: token_id for token_id, token in kept.items()}
        self._stripping = {token.content: (token.lstrip, token.rstrip) for token in kept.values()}
        self._tokenizer = tokenizer
        state = json.loads(backend.to_str())
        # A model's own unknown token is what it makes of letters it lacks: text, not control.
        self._control_ids = frozenset(kept) - {_unknown_id(state["model"])}
        self._at_start = _without_controls(state, set(self.controls))
        inside = _without_prefix(state)
        self._inside = self._at_start if inside == state else _without_controls(inside, set(self.controls))

    def encodings(self, texts: Sequence[str], at_start: bool = False) -> list["Encoding"]:
        """Each text's tokens with character offsets; `at_start` is for text that begins a prompt.

        Raises PromptError if a control token came out after all.
        """
        encoder = self._at_start if at_start else self._inside
        encodings: list[Encoding] = encoder.encode_batch([repaired(text) for text in texts], add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            if not self._control_ids.isdisjoint(encoding.ids):
                raise PromptError(f"a control token would come out of the text {text[:80]!r}; change that text")
        return encodings

    def ids(self, text: str, at_start: bool = False) -> list[int]:
        """Token ids of one text."""
        return list(self.encodings([text], at_start)[0].ids)

    def token_ids(self, text: str) -> list[int]:
        """Ids of a word set by the owner of the labeler: an added token by its name, else as text inside a prompt."""
        return [self.controls[text]] if text in self.controls else self.ids(text)

    def segments(self, rendered: str) -> list[str | int]:
        """A rendered chat template cut into texts and control token ids, as the tokenizer itself would cut it."""
        if not self.controls:
            return [rendered] if rendered else []
        by_length = sorted(self.controls, key=len, reverse=True)
        pieces: list[str | int] = []
        strip_next = False
        for piece in re.split("(" + "|".join(map(re.escape, by_length)) + ")", rendered):
            if piece in self.controls:
                strips_left, strip_next = self._stripping[piece]
                if strips_left and pieces and isinstance(pieces[-1], str):
                    pieces[-1] = pieces[-1].rstrip()
                pieces.append(self.controls[piece])
            else:
                pieces.append(piece.lstrip() if strip_next else piece)
                strip_next = False
        return [piece for piece in pieces if piece != ""]

    def start_ids(self) -> list[int]:
        """What the tokenizer itself puts before a text: its beginning-of-sequence token, or nothing."""
        plain = self._tokenizer("a", add_special_tokens=False).input_ids
        full = self._tokenizer("a").input_ids
        bos = self._tokenizer.bos_token_id
        return [bos] if bos is not None and full[:1] == [bos] and plain[:1] != [bos] else []

    def text_of(self, ids: Sequence[int]) -> str:
        """Readable text of some ids, for messages."""
        return str(self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _unknown_id(model: dict[str, Any]) -> int | None:
    if isinstance(model["vocab"], dict):
        return model["vocab"].get(model.get("unk_token"))
    return model.get("unk_id")


def _without_controls(state: dict[str, Any], controls: set[str]) -> "Tokenizer":
    """The tokenizer of a serialised state, with no added tokens and no way for its vocabulary to spell one."""
    from tokenizers import Tokenizer

    model = dict(state["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {_unreachable(token, number, controls): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [[_unreachable(row[0], n, controls), *row[1:]] for n, row in enumerate(vocabulary)]
    if model.get("unk_token") in controls and isinstance(vocabulary, dict):
        model["unk_token"] = _unreachable(model["unk_token"], vocabulary[model["unk_token"]], controls)
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _spells_control(merge, controls)]
    bare: dict[str, Any] = {
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": model,
    }
    return Tokenizer.from_str(json.dumps(state | bare))


def _unreachable(token: str, number: int, controls: set[str]) -> str:
    return f"\ue000{number}\ue001" if token in controls else token


def _spells_control(merge: str | list[str], controls: set[str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in controls or right in controls or left + right in controls


def _without_prefix(state: Any) -> Any:
    """The state without the blank some tokenizers put before every text: inside a prompt there is none."""
    if isinstance(state, list):
        return [_without_prefix(value) for value in state if not _prepends(value)]
    if not isinstance(state, dict):
        return state
    changed = {
        key: value if key in ("model", "added_tokens") else None if _prepends(value) else _without_prefix(value)
        for key, value in state.items()
    }
    if "prepend_scheme" in changed:
        changed["prepend_scheme"] = "never"
    if "add_prefix_space" in changed and "decoder" not in changed:
        changed["add_prefix_space"] = False
    return changed


def _prepends(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "Prepend"
