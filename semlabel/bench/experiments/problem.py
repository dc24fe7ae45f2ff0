"""What the experiments are about: a project's tables, with held-out entities of the experiments' own.

Only entities that the project itself would train on are used, and split once more: what the project holds out to prove
its labelers stays unseen, however many experiments are made. Knows nothing of models, methods or margins.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from semlabel.digests import digest_of
from semlabel.errors import SettingsError, SourceError
from semlabel.foreseen_splits import foresee
from semlabel.judging.store import read_judgements
from semlabel.pairs import build_training_pairs, cross_product_labels, select_catalog
from semlabel.prompt import Prompt, PromptSpec, load_tokenizer
from semlabel.references import check_references
from semlabel.settings import Settings, Splits
from semlabel.settings_file import merge
from semlabel.sources import read_catalog, read_entities, read_references
from semlabel.splits import TRAIN, assign_splits

if TYPE_CHECKING:
    import pandas as pd

CALIBRATE, TEST = "calibrate", "test"


@dataclass(frozen=True)
class Part:
    """The judged pairs of some entities: every pair's entity (`rows`), candidate (`columns`) and label.

    Rows count in `entity_ids` and `texts`, columns in the catalog.
    """

    entity_ids: list[str]
    texts: list[str]
    rows: npt.NDArray[np.intp]
    columns: npt.NDArray[np.intp]
    labels: npt.NDArray[np.bool_]

    def of(self, table: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The cells of a table (entities, candidates) that are judged pairs."""
        cells: npt.NDArray[Any] = table[self.rows, self.columns]
        return cells

    def first(self, entities: int) -> "Part":
        """The part of the first entities alone."""
        kept = self.rows < entities
        return Part(
            self.entity_ids[:entities], self.texts[:entities], self.rows[kept], self.columns[kept], self.labels[kept]
        )


@dataclass(frozen=True)
class Problem:
    """Tables and held-out parts. `candidates` holds the catalog and what `catalog_top` leaves out of it."""

    settings: Settings
    entities: "pd.DataFrame"
    catalog: "pd.DataFrame"
    candidates: "pd.DataFrame"
    references: "pd.DataFrame"
    undecided: "pd.DataFrame"
    calibrate: Part
    test: Part

    def pairs(self, settings: Settings) -> "pd.DataFrame":
        """The training pairs that `settings` ask for; smaller sizes of one seed are the start of larger ones.

        Raises SettingsError where there are fewer than `max_pairs`, up to one entity's.
        """
        pairs = build_training_pairs(self.entities, self.candidates, self.references, settings, self.undecided)
        wanted, each = settings.training.max_pairs, settings.training.items_per_round
        if wanted and len(pairs) <= wanted - each:
            raise SettingsError(
                f"{wanted:,} training pairs are asked for and {len(pairs):,} are there; ask for fewer pairs, or hold "
                "out fewer entities"
            )
        return pairs

    def with_texts(self, pairs: "pd.DataFrame") -> "pd.DataFrame":
        """The same pairs with `entity_text` and `candidate_text`."""
        entities = dict(zip(self.entities["entity_id"], self.entities["text"], strict=True))
        candidates = dict(zip(self.candidates["candidate_id"], self.candidates["text"], strict=True))
        return pairs.assign(
            entity_text=pairs["entity_id"].map(entities), candidate_text=pairs["candidate_id"].map(candidates)
        )

    def judged(self, part: Part) -> "pd.DataFrame":
        """The judged pairs of a part as a table: entity_id, candidate_id, label."""
        import pandas as pd

        ids = self.catalog["candidate_id"].to_numpy(dtype=object)
        entity_ids = np.array(part.entity_ids, dtype=object)
        return pd.DataFrame(
            {"entity_id": entity_ids[part.rows], "candidate_id": ids[part.columns], "label": part.labels}
        )

    @property
    def held_out(self) -> dict[str, dict[str, int]]:
        """How much is held out, as JSON values."""
        return {
            name: {"entities": len(part.entity_ids), "pairs": len(part.labels), "positives": int(part.labels.sum())}
            for name, part in ((CALIBRATE, self.calibrate), (TEST, self.test))
        }

    @property
    def training_digest(self) -> str:
        """The identity of what can be trained on: texts of entities and candidates, every reference label, and which
        pairs are undecided.
        """
        entities = self.entities[["entity_id", "text", "split"]].astype(str)
        undecided = [] if self.undecided.empty else [self.undecided]
        tables = (entities, self.candidates.astype(str), self.references.astype(str), *undecided)
        return digest_of([sorted(map(list, table.itertuples(index=False))) for table in tables])

    @property
    def held_out_digest(self) -> str:
        """The identity of what is judged: texts and labels of both parts, and the catalog's texts."""
        parts = [[part.texts, part.labels.tolist()] for part in (self.calibrate, self.test)]
        return digest_of([parts, list(self.catalog["text"])])


def overridden(settings: Settings, *overrides: dict[str, Any]) -> Settings:
    """The settings with some tables laid over them. Raises SettingsError for what is not a setting."""
    from pydantic import ValidationError

    tables = settings.model_dump(exclude_unset=True)  # what was not set must not look as if it had been
    for override in overrides:
        tables = merge(tables, override)
    try:
        changed = Settings.model_validate(tables)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise SettingsError(f"{where} = {problem.get('input')!r}: {problem['msg']}; mend the override") from None
    changed._path = settings.path
    return changed


def load_problem(settings: Settings, calibrate: int, test: int, erased: Collection[str] = ()) -> Problem:
    """Read the sources of `settings` and hold out that many entities (a few more where near-duplicates straddle).

    `erased` are digests of erased ids. Raises SourceError or SettingsError where the tables cannot give that, or where
    a run holds the warehouse that knows who is held out.
    """
    entities = read_entities(settings, erased).frame
    listed = read_references(settings, erased)
    references = listed.frame
    prompt = Prompt(PromptSpec.from_settings(settings.prompt), load_tokenizer(settings.model.base))
    source = read_catalog(settings).frame
    fits = [problem is None for problem in prompt.item_problems(list(source["text"]))]
    candidates = source[fits].reset_index(drop=True)
    trained = set(_train_ids(settings, entities, references))
    own = entities[entities["entity_id"].isin(trained & set(references["entity_id"]))]
    # A split cannot be empty: one entity is set aside as `certify` and looked at by nobody.
    sizes = Splits(calibrate=calibrate, certify=1, test=test, seed=settings.splits.seed + 1)
    own = own.assign(split=own["entity_id"].map(assign_splits(own, sizes).split)).reset_index(drop=True)
    train_ids = list(own["entity_id"][own["split"] == TRAIN])
    catalog, left_out = select_catalog(candidates, references, train_ids, settings.sources.catalog_top)
    ids = list(own["entity_id"]), list(catalog["candidate_id"]), left_out
    checked = check_references(references, *ids, listed.unreadable)
    tables, unlisted, undecided = (own, catalog, checked.kept), settings.sources.unlisted, checked.undecided
    judged = [cross_product_labels(*tables, name, unlisted, undecided) for name in _HELD_OUT]
    parts = [_part(own, catalog, pairs) for pairs in judged]
    return Problem(settings, own, catalog, candidates, checked.kept, undecided, *parts)


_HELD_OUT: Sequence[str] = (CALIBRATE, TEST)


def _train_ids(settings: Settings, entities: "pd.DataFrame", references: "pd.DataFrame") -> list[str]:
    """The entities that the project's next run would train on."""
    found = foresee(settings, entities, references, read_judgements(settings), thorough=True)
    if found.split_of is None:
        raise SourceError(found.problem or "no reference names an entity: there is nothing to train on")
    return [entity_id for entity_id, split in found.split_of.items() if split == TRAIN]


def _part(entities: "pd.DataFrame", catalog: "pd.DataFrame", judged: "pd.DataFrame") -> Part:
    ids = list(dict.fromkeys(judged["entity_id"]))
    texts = dict(zip(entities["entity_id"], entities["text"], strict=True))
    place = {entity_id: row for row, entity_id in enumerate(ids)}
    column = {candidate_id: number for number, candidate_id in enumerate(catalog["candidate_id"])}
    return Part(
        entity_ids=ids,
        texts=[texts[entity_id] for entity_id in ids],
        rows=judged["entity_id"].map(place).to_numpy(dtype=np.intp),
        columns=judged["candidate_id"].map(column).to_numpy(dtype=np.intp),
        labels=judged["label"].to_numpy(dtype=bool),
    )
