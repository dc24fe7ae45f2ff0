"""Which candidates of a long catalog are worth scoring for an entity: the nearest ones, exactly.

Pure functions from texts to places in the catalog; deliberately knows nothing of tables, plans or models. A shortlist
depends on the entity's text, the candidates' texts in their order, the encoder and the size, and on nothing else: not
on which other entities there are, nor on how many are ranked at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semlabel.bounds import Bound, precision_bound
from semlabel.digests import digest_of
from semlabel.text_tokenizer import repaired

Places = NDArray[np.intp]

_VERSION = 1
_CELLS = 4_000_000
"""Cosines that are held at a time: 32 MB."""
_DIGITS = 9
"""Cosines that agree in so many digits are equal: beyond, the order of a sum decides."""


class Space(Protocol):
    """Texts as rows of length one, dense or sparse (texts, dimensions); a row depends on its own text only."""

    def __call__(self, texts: Sequence[str]) -> Any:
        """The rows of some texts."""
        ...


class Encoder(Protocol):
    """What ranks candidates. `name` is for people, `digest` says everything that its rows depend on but the texts."""

    name: str

    @property
    def digest(self) -> str:
        """The encoder's identity. Raises SettingsError where it is not to be had."""
        ...

    def fitted(self, candidate_texts: Sequence[str]) -> Space:
        """The space of one catalog."""
        ...


@dataclass(frozen=True)
class Rule:
    """How shortlists are made: `size` candidates by an encoder. A threshold is proven for one rule."""

    size: int
    encoder: str
    encoder_digest: str

    @property
    def digest(self) -> str:
        """The identity of the rule; the encoder's name is no part of it."""
        return digest_of(["shortlist", _VERSION, self.size, self.encoder_digest])

    def to_json(self) -> dict[str, Any]:
        """As manifests hold it."""
        return {
            "size": self.size,
            "encoder": self.encoder,
            "encoder_digest": self.encoder_digest,
            "digest": self.digest,
        }


def ranker(encoder: Encoder, candidate_texts: Sequence[str], size: int) -> "Ranker":
    """What makes shortlists of `size` candidates (at least 1) of one catalog."""
    if size < 1:
        raise ValueError(f"a shortlist of {size} candidates is none")
    texts = [repaired(text) for text in candidate_texts]
    space = encoder.fitted(texts) if texts else None
    return Ranker(space, None if space is None else space(texts), len(texts), size)


@dataclass(frozen=True, eq=False)
class Ranker:
    """A catalog in its space, and how many of its candidates are kept."""

    space: Space | None
    candidates: Any
    count: int
    size: int

    def kept(self, entity_texts: Sequence[str]) -> Iterator[Places]:
        """For each entity the places of its nearest candidates by cosine, ascending; ties go to the earlier place."""
        width = min(self.size, self.count)
        for start in range(0, len(entity_texts), self._rows):
            part = entity_texts[start : start + self._rows]
            if self.space is None or width == self.count:
                yield from (np.arange(self.count) for _ in part)
                continue
            chosen = nearest(self._cosines(part), width)
            yield from np.nonzero(chosen)[1].reshape(len(part), width)

    def ranks(self, entity_texts: Sequence[str]) -> Iterator[Places]:
        """For each entity the rank of every candidate, from 0 for the nearest."""
        for start in range(0, len(entity_texts), self._rows):
            order = np.argsort(-self._cosines(entity_texts[start : start + self._rows]), axis=1, kind="stable")
            yield from np.argsort(order, axis=1, kind="stable")

    @property
    def _rows(self) -> int:
        return max(1, _CELLS // max(1, self.count))

    def _cosines(self, entity_texts: Sequence[str]) -> NDArray[np.float64]:
        assert self.space is not None
        rows = self.space([repaired(text) for text in entity_texts])
        product = rows @ self.candidates.T
        dense = product.toarray() if hasattr(product, "toarray") else product
        return np.asarray(dense, dtype=np.float64).round(_DIGITS)


def nearest(cosines: NDArray[np.float64], width: int) -> NDArray[np.bool_]:
    """(entities, candidates): True at exactly the `width` largest of each row; of equal ones the earlier are taken."""
    lowest = np.partition(cosines, cosines.shape[1] - width, axis=1)[:, cosines.shape[1] - width, None]
    above, level = cosines > lowest, cosines == lowest
    room = width - above.sum(axis=1, keepdims=True)
    return above | (level & (np.cumsum(level, axis=1) <= room))


def recall_bound(kept: ArrayLike, positives: ArrayLike, confidence: float) -> Bound:
    """The share of YES that survive, with its lower bound; `kept` of the `positives` (entities,) of each entity do.

    The entity is the unit of chance, as for the error limits: missed YES come together. A share that shall not be too
    small, as precision is, and bounded as that.
    """
    return precision_bound(positives, kept, confidence)
