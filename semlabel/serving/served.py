"""What a front answers with at one moment: a labeler's prompt and rule, and the published catalog that belongs to it.

One immutable value, replaced as a whole, so that a request never mixes two labelers or two catalogs. Knows files of
labelers and publications; knows nothing of weights, engines or transports.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.digests import text_id
from semlabel.errors import PromptError
from semlabel.manifest import Manifest, read_manifest
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.serving.faults import Fault, Kind, invalid
from semlabel.serving.score_request import Part
from semlabel.text_tokenizer import TextTokenizer, repaired

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_CHARACTERS_TOGETHER = 200_000


@dataclass(frozen=True, eq=False)
class FrontLabeler:
    """A labeler without its weights: what turns texts into token ids, and margins into labels."""

    manifest: Manifest
    prompt: Prompt
    tokenizer: "PreTrainedTokenizerFast"
    vocabulary: int
    longest_prompt: int

    @classmethod
    def load(cls, path: Path, vocabulary: int, longest_prompt: int) -> "FrontLabeler":
        """The labeler in a directory that the engine has verified and loaded. Raises LabelerError or PromptError."""
        manifest = read_manifest(path)
        tokenizer = load_tokenizer(path)
        return cls(manifest, Prompt(manifest.prompt.spec(), tokenizer), tokenizer, vocabulary, longest_prompt)

    @property
    def digest(self) -> str:
        """The labeler's digest."""
        return self.manifest.digest

    @property
    def answer_ids(self) -> list[int]:
        """Yes and no."""
        return [self.prompt.yes_id, self.prompt.no_id]

    @cached_property
    def texts(self) -> TextTokenizer:
        """Tokenises text as text."""
        return TextTokenizer(self.tokenizer)

    def tokens(
        self, query: Part, items: list[Any], parse_special: bool, most: int
    ) -> tuple[list[int], list[list[int]]]:
        """Token ids of a query and its items, which are texts or ids already.

        Raises Fault naming what does not fit, or for more than `most` tokens.
        """
        if items and isinstance(items[0], str):
            prefix, found = self._of_texts(query if isinstance(query, str) else "", items, parse_special, most)
        else:
            prefix = list(query) if not isinstance(query, str) else self._of_texts(query, [], parse_special, most)[0]
            found = items
        refuse_tokens(len(prefix) + sum(map(len, found)), most)
        self._check(prefix, found)
        return prefix, found

    def _of_texts(
        self, query: str, items: list[str], parse_special: bool, most: int
    ) -> tuple[list[int], list[list[int]]]:
        if parse_special:
            # A rendered template brings its own control tokens, the first one too.
            (prefix,) = self._rendered([query])
            return prefix, in_parts(items, self._rendered, most)
        # Whatever stands first in the prompt is tokenised as a beginning, with what the tokenizer puts before it.
        start = self.texts.start_ids()
        prefix = [*start, *self.texts.ids(query, at_start=True)] if query else []

        def of(texts: list[str]) -> list[list[int]]:
            return [list(encoding.ids) for encoding in self.texts.encodings(texts, at_start=not query)]

        found = in_parts(items, of, most)
        return prefix, found if query else [[*start, *ids] if ids else [] for ids in found]

    def _rendered(self, texts: list[str]) -> list[list[int]]:
        repaired_texts = [repaired(text) for text in texts]
        return [list(ids) for ids in self.tokenizer(repaired_texts, add_special_tokens=False).input_ids]

    def _check(self, query: list[int], items: list[list[int]]) -> None:
        longest = self.longest_prompt
        if len(query) > longest:
            raise invalid("query", f"{len(query)} tokens; at most {longest} with an item", longest)
        if query and max(query) >= self.vocabulary:
            raise invalid("query", f"token id {max(query)} is outside the vocabulary", self.vocabulary)
        for index, item in enumerate(items):
            if len(query) + len(item) > longest:
                total = len(query) + len(item)
                raise invalid(f"items[{index}]", f"{total} tokens with the query; at most {longest}", longest)
            if item and max(item) >= self.vocabulary:
                raise invalid(f"items[{index}]", f"token id {max(item)} is outside the vocabulary", self.vocabulary)
            if not item and not query:
                raise invalid(f"items[{index}]", "is empty and so is the query: there is no token to score at")

    def check_labels(self, labels: list[list[int]], by_item: bool) -> None:
        """Raise Fault for a label token that the model has no row for."""
        for index, ids in enumerate(labels if by_item else labels[:1]):
            if ids and max(ids) >= self.vocabulary:
                field = f"label_token_ids[{index}]" if by_item else "label_token_ids"
                raise invalid(field, f"token id {max(ids)} is outside the model's vocabulary", self.vocabulary)


def refuse_tokens(tokens: int, most: int) -> None:
    """Raise Fault for more tokens than one request may have."""
    if tokens > most:
        raise invalid("items", f"more than {most} tokens in one request", most)


def in_parts(texts: list[str], encode: Callable[[list[str]], list[list[int]]], most: int) -> list[list[int]]:
    """Token ids of many texts, a part of them at a time: what a tokenizer returns takes hundreds of bytes a token.

    Raises Fault as soon as there are more than `most`.
    """
    found: list[list[int]] = []
    tokens = 0
    for part in _parts(texts):
        encoded = encode(part)
        tokens += sum(map(len, encoded))
        refuse_tokens(tokens, most)
        found += encoded
    return found


def _parts(texts: list[str]) -> Iterator[list[str]]:
    start = characters = 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters > _CHARACTERS_TOGETHER:
            yield texts[start : index + 1]
            start, characters = index + 1, 0
    if start < len(texts):
        yield texts[start:]


@dataclass(frozen=True)
class PublishedCatalog:
    """The candidates of one publication in their order."""

    version: str
    labeler_digest: str
    candidate_ids: tuple[str, ...]
    texts: tuple[str, ...]
    certified: tuple[bool, ...]
    path: Path

    @cached_property
    def text_ids(self) -> list[str]:
        """The content identities of the texts, in their order."""
        return [text_id(text) for text in self.texts]

    @cached_property
    def certified_pairs(self) -> dict[tuple[str | None, str | None], bool]:
        """Whether the threshold was proven for a candidate, by its id and its text: another text was never judged."""
        rows = zip(self.candidate_ids, self.texts, self.certified, strict=True)
        return {(candidate_id, text): certified for candidate_id, text, certified in rows}

    def has_entity(self, entity_id: str) -> bool:
        """Whether the publication has this entity. Raises OSError when its files are gone."""
        import pyarrow.parquet as pq

        # The file is sorted by id: only the row group that may hold it is read.
        file, wanted = self.path / "entities.parquet", [("entity_id", "=", entity_id)]
        return bool(pq.read_table(file, columns=["entity_id"], filters=wanted).num_rows)

    @classmethod
    def load(cls, publication: dict[str, Any]) -> "PublishedCatalog":
        """The catalog of a publication, as `published.current_publication` tells of it."""
        import pyarrow.parquet as pq

        path = Path(publication["path"])
        columns = ["candidate_id", "text", "certified", "position"]
        rows = pq.read_table(path / "catalog.parquet", columns=columns).sort_by("position").to_pydict()
        return cls(
            publication["version"],
            publication["labeler_digest"],
            tuple(rows["candidate_id"]),
            tuple(rows["text"]),
            tuple(rows["certified"]),
            path,
        )


@dataclass(frozen=True, eq=False)
class Served:
    """A labeler and the catalog that goes with it (None: nothing is published). `ready`: digests loaded beside it."""

    labeler: FrontLabeler
    catalog: PublishedCatalog | None
    loaded: tuple[str, ...]

    @cached_property
    def catalog_items(self) -> list[list[int]]:
        """The catalog's items, tokenised once. Raises PromptError for a candidate the prompt refuses."""
        assert self.catalog is not None
        return self.labeler.prompt.items(list(self.catalog.texts))

    def needed_items(self) -> list[list[int]]:
        """The catalog's items. Raises Fault where this labeler's prompt refuses one, as one held ready may."""
        try:
            return self.catalog_items
        except PromptError:
            # The error names the candidate's text, which is none of a client's business.
            told = f"labeler {self.labeler.digest[:12]} refuses one of the current catalog; name candidates"
            raise Fault(Kind.CONFLICT, f"candidates: {told}", "candidates") from None

    def needed_catalog(self) -> PublishedCatalog:
        """The catalog. Raises Fault before anything is published."""
        if self.catalog is None:
            raise Fault(Kind.CONFLICT, "candidates: nothing is published here, so send candidates", "candidates")
        return self.catalog
