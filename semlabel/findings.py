"""What three tables hold, in plain words: lengths, duplicates, positives per candidate, splits, and what is too thin.

Judges nothing: gates do that, on what a run makes. Here people learn beforehand which gate will have too little to go
by, and which setting to look at. Knows nothing of models, of the warehouse or of how findings are shown.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from semlabel.bounds import SHOWN_FROM_ENTITIES, binomial_upper
from semlabel.digests import text_id
from semlabel.estimate import token_counter
from semlabel.foreseen_splits import Foreseen, foresee
from semlabel.judging.labels import reference_labels
from semlabel.settings import Settings
from semlabel.splits import HELD_OUT, LEFT_OUT, TRAIN

if TYPE_CHECKING:
    import pandas as pd

    from semlabel.judging.store import Judgement

FEW_POSITIVES = 5
_PROVE = "semlabel sample --random " + " ".join(f"--split {name}" for name in HELD_OUT)
_FEW_TRAIN_POSITIVES = 200
_AUC_ROOM = 0.025  # what a labeler may be expected to have to spare
_SAMPLE = 2_000
_NAMED = 5


@dataclass(frozen=True)
class Lengths:
    """Tokens of the texts of one table; `over_limit` of `texts` are longer than the prompt leaves room for."""

    median: float
    longest: float
    over_limit: int
    texts: int
    counted: bool


@dataclass(frozen=True)
class Findings:
    """What was found. `splits`: entities and YES pairs of each, None where they are not known before a run, and what a
    run will say of them.
    """

    entity_lengths: Lengths
    candidate_lengths: Lengths
    scripts: dict[str, float]
    same_texts: dict[str, int]
    positives: int
    negatives: int
    unusable: dict[str, int]
    judged_entities: int
    judgements: int
    judgements_not_used: dict[str, int]
    positives_per_candidate: dict[str, int]
    splits: dict[str, dict[str, int]] | None
    split_problem: str | None
    split_notes: list[str]
    largest_family: dict[str, Any] | None
    advice: list[str]

    def to_json(self) -> dict[str, Any]:
        """The findings as plain values."""
        few = [name for name, count in self.positives_per_candidate.items() if count < FEW_POSITIVES]
        values = {name: value for name, value in vars(self).items() if name != "positives_per_candidate"}
        values |= {name: vars(getattr(self, name)) for name in ("entity_lengths", "candidate_lengths")}
        return values | {"candidates_with_few_positives": few}

    def sentences(self) -> list[str]:
        """One line for each thing that was found."""
        counts = sorted(self.positives_per_candidate.values())
        lines = [
            f"Lengths: {_told(self.entity_lengths, 'entity')}; {_told(self.candidate_lengths, 'candidate')}",
            "Writing: " + ", ".join(f"{name} {share:.0%}" for name, share in self.scripts.items()),
            "Same text under several ids: " + ", ".join(f"{n:,} {name}" for name, n in self.same_texts.items()),
            f"References: {self.positives:,} YES and {self.negatives:,} NO of {self.judged_entities:,} entities"
            + "".join(f"; {count:,} not usable ({reason})" for reason, count in self.unusable.items()),
        ]
        if self.judgements:
            not_used = (f"; {count:,} not used ({reason})" for reason, count in self.judgements_not_used.items())
            lines.append(f"Judgements among them: {self.judgements:,}" + "".join(not_used))
        if counts:
            none = sum(count == 0 for count in counts)
            middle = counts[len(counts) // 2]
            lines.append(f"YES per candidate: {counts[0]:,} to {counts[-1]:,}, median {middle:,}; {none:,} have none")
        if self.splits is not None:
            told = (f"{name} {s['entities']:,} ({_answers(s)})" for name, s in self.splits.items())
            lines.append("Split sizes, in entities: " + ", ".join(told))
        return lines


def find(
    settings: Settings,
    entities: "pd.DataFrame",
    catalog: "pd.DataFrame",
    references: "pd.DataFrame",
    judgements: "Sequence[Judgement]" = (),
    foreseen: Foreseen | None = None,
) -> Findings:
    """Look at the three tables as `sources` reads them, and at people's judgements, with the splits that the next run
    will give (`foreseen`, told anew where not given). Reads nothing else but the base model's tokenizer file.
    """
    unlisted = settings.sources.unlisted
    foreseen = foreseen or foresee(settings, entities, references, judgements)
    split_of = foreseen.split_of
    found_labels = reference_labels(
        references,
        judgements,
        # Without splits, what may not prove cannot be told from what may: all of it counts then.
        _known(entities, TRAIN if split_of is None else LEFT_OUT, split_of or {}, with_text=bool(judgements)),
        {name: text_id(text) for name, text in zip(catalog["candidate_id"], catalog["text"], strict=True)},
        list(catalog["candidate_id"]),
        unlisted,
    )
    kept = found_labels.kept
    yes = kept[kept["label"]]
    per_candidate = catalog["candidate_id"].map(yes.groupby("candidate_id").size()).fillna(0).astype(int)
    judged = set(kept["entity_id"])
    splits = _counted(split_of, kept) if split_of is not None and foreseen.exact else None
    prompt = settings.prompt
    frame = prompt.template.replace("{entity}", "").replace("{candidate}", "")
    count, counted = token_counter(settings)
    room = prompt.max_query_tokens - float(count([frame])[0])
    found = Findings(
        entity_lengths=_lengths(count, list(entities["text"]), room, counted),
        candidate_lengths=_lengths(count, list(catalog["text"]), prompt.max_item_tokens - 1.0, counted),
        scripts=_scripts(_evenly(list(entities["text"]))),
        same_texts={
            "entities": int(entities["text"].duplicated().sum()),
            "candidates": int(catalog["text"].duplicated().sum()),
        },
        positives=len(yes),
        negatives=len(kept) - len(yes),
        unusable=dict(Counter(row.reason for row in found_labels.references)),
        judged_entities=len(judged),
        judgements=len(judgements),
        judgements_not_used=dict(Counter(row.reason for row in found_labels.judgements)),
        positives_per_candidate=dict(zip(catalog["candidate_id"], per_candidate, strict=True)),
        splits=splits,
        split_problem=foreseen.problem,
        split_notes=list(foreseen.notes),
        largest_family=asdict(foreseen.family) if foreseen.family else None,
        advice=[],
    )
    found.advice.extend(_advice(settings, found))
    if foreseen.family and foreseen.family.large:
        found.advice.append(foreseen.family.sentence())
    return found


def _advice(settings: Settings, found: Findings) -> Iterable[str]:
    """What is too thin or odd, each with the setting to look at."""
    if found.split_problem:
        yield f"{found.split_problem}."
    yield from found.split_notes[:_NAMED]
    if len(found.split_notes) > _NAMED:
        yield f"{len(found.split_notes) - _NAMED:,} more such lines about splits: a run logs them all."
    if found.unusable:
        yield (
            f"{sum(found.unusable.values()):,} references cannot be used: check the ids in both files and "
            "[sources.columns]."
        )
    if found.positives + found.negatives == 0:
        yield from _nobody_judged(settings)
        return
    if found.positives == 0:
        yield "No reference says YES: nothing can be learned. Check the label column in [sources.columns]."
        return
    if settings.sources.unlisted == "unknown" and found.negatives == 0:
        yield '[sources] unlisted = "unknown", but no reference says NO: list NOs, or say "negative" if people looked.'
    lengths = found.entity_lengths
    share = lengths.over_limit / max(1, lengths.texts)
    if share > settings.gates.max_truncated_fraction:
        yield (
            f"{share:.0%} of the entities are longer than [prompt] max_query_tokens = "
            f"{settings.prompt.max_query_tokens} leaves room for and would be cut: raise it, or shorten the texts."
        )
    if found.candidate_lengths.over_limit:
        yield (
            f"{found.candidate_lengths.over_limit:,} candidates are longer than [prompt] max_item_tokens = "
            f"{settings.prompt.max_item_tokens} and would be refused: raise it."
        )
    few = [name for name, count in found.positives_per_candidate.items() if count < FEW_POSITIVES]
    if few:
        named = ", ".join(few[:_NAMED]) + (f" and {len(few) - _NAMED:,} more" if len(few) > _NAMED else "")
        yield (
            f"{len(few):,} candidates have fewer than {FEW_POSITIVES} YES ({named}): their quality can hardly be told. "
            "Judge more (`semlabel sample`), or label the common ones only ([sources] catalog_top)."
        )
    yield from _thin_splits(settings, found)


def _nobody_judged(settings: Settings) -> Iterable[str]:
    yield (
        "Nobody has judged anything that can be used. `semlabel sample --count 200 --out teach.csv` picks pairs to "
        f"learn from, `{_PROVE} --count 400 --out prove.csv` pairs to choose and prove a threshold by. People fill in "
        "`judgement`; `semlabel judgements import FILE` takes it over."
    )
    if settings.sources.unlisted == "negative":
        yield '[sources] unlisted = "negative" needs references; set "unknown", so that judgements count by themselves.'
    if settings.sources.judgements is None:
        yield 'Judgements have no place yet: set [sources] judgements = "judgements.csv".'


def _share_of_yes(settings: Settings, found: Findings) -> float | None:
    """YES among the pairs that count as judged; None where there are none."""
    judged = found.positives + found.negatives
    if settings.sources.unlisted == "negative":
        judged = found.judged_entities * len(found.positives_per_candidate)
    return found.positives / judged if judged else None


def _thin_splits(settings: Settings, found: Findings) -> Iterable[str]:
    splits = found.splits
    if not splits:
        return
    train, certify, calibrate = (splits[name] for name in (TRAIN, "certify", "calibrate"))
    blind = [name for name in HELD_OUT if not splits[name]["positives"] or not splits[name]["negatives"]]
    if settings.sources.unlisted == "unknown" and blind:
        options = " ".join(f"--split {name}" for name in blind)
        yield (
            f"{', '.join(blind)}: no YES or no NO is judged there, so nothing can be measured: "
            f"`semlabel sample --random {options} --count 400 --out prove.csv` picks pairs for people to judge."
        )
    if train["positives"] < _FEW_TRAIN_POSITIVES:
        yield (
            f"Only {train['positives']:,} YES to train on; from a few hundred on a small model learns more than word "
            "overlap. Bring more references, or raise [training] epochs."
        )
    if certify["entities"] < SHOWN_FROM_ENTITIES:
        yield (
            f"certify has {certify['entities']:,} entities: a bound counts as shown from {SHOWN_FROM_ENTITIES} on. "
            "Raise [splits] certify."
        )
    yield from _auc_to_show(settings, calibrate, len(found.positives_per_candidate))
    policy = settings.calibration
    share = _share_of_yes(settings, found)
    if policy.min_precision is not None and share is not None and policy.min_precision <= share:
        yield (
            f"min_precision = {policy.min_precision:g} is kept by saying YES to everything ({share:.1%} of the pairs "
            "are YES): good for a first look, no promise to readers."
        )
    elif policy.min_precision is not None:
        needed = faultless_labels(1 - policy.min_precision, policy.confidence)
        if certify["positives"] < needed:
            yield (
                f"min_precision = {policy.min_precision:g} needs {needed:,} correct labels in certify even if not one "
                f"is wrong, and there are {certify['positives']:,} YES: expect not_enough_data."
            )
    if calibrate["positives"] < policy.min_expected_flagged:
        yield (
            f"calibrate has {calibrate['positives']:,} YES, fewer than [calibration] min_expected_flagged = "
            f"{policy.min_expected_flagged}: the search for a threshold may find no cut to start at."
        )


def _auc_to_show(settings: Settings, calibrate: Mapping[str, int], candidates: int) -> Iterable[str]:
    limit, no = settings.gates.min_auc, calibrate["negatives"]
    if settings.sources.unlisted == "negative":
        no = calibrate["entities"] * candidates - calibrate["positives"]
    needed = least_auc(limit, calibrate["positives"], no, settings.calibration.confidence)
    if needed is not None and needed > limit + _AUC_ROOM:
        yield (
            f"calibrate has {calibrate['positives']:,} YES: an AUC of about {needed:.2f} is needed there to show "
            f"[gates] min_auc = {limit:g}. Raise [splits] calibrate, or ask for less, before the first run."
        )


def least_auc(limit: float, positives: int, negatives: int, confidence: float) -> float | None:
    """The smallest AUC (in steps of 0.005) whose interval lies above `limit`; 1.0 where none does, None without pairs.

    The standard error is Hanley's and McNeil's (Radiology 143, 1982, 29-36), as if pairs were independent: with several
    pairs of an entity it takes a little more.
    """
    if not positives or not negatives:
        return None
    reach = NormalDist().inv_cdf((1 + confidence) / 2)
    for step in range(math.ceil(limit * 200), 200):
        auc = step / 200
        above, below = auc / (2 - auc), 2 * auc**2 / (1 + auc)
        spread = auc * (1 - auc) + (positives - 1) * (above - auc**2) + (negatives - 1) * (below - auc**2)
        if auc - reach * math.sqrt(spread / (positives * negatives)) >= limit:
            return auc
    return 1.0


def faultless_labels(ceiling: float, confidence: float) -> int:
    """How many independent labels without one error show an error rate of at most `ceiling`."""
    count = max(1, math.ceil(math.log(1 - confidence) / math.log(1 - ceiling)))
    # The logarithm is the rule of three; the bound itself decides at the edge.
    while float(binomial_upper(0.0, float(count), 1 - confidence)) > ceiling + 1e-9:
        count += 1
    return count


def _known(
    entities: "pd.DataFrame", split: str, split_of: Mapping[str, str], with_text: bool
) -> dict[str, tuple[str, str]]:
    """Split and text id of every entity; only judgements ask for the text."""
    names, texts = entities["entity_id"], entities["text"]
    return {
        name: (split_of.get(name, split), text_id(text) if with_text else "")
        for name, text in zip(names, texts, strict=True)
    }


def _counted(split_of: Mapping[str, str], labels: "pd.DataFrame") -> dict[str, dict[str, int]]:
    """Entities, YES and NO of every split."""
    entities = Counter(split_of.values())
    said = Counter(zip(labels["entity_id"].map(split_of), labels["label"], strict=True))
    return {
        name: {"entities": entities[name], "positives": said[name, True], "negatives": said[name, False]}
        for name in (TRAIN, *HELD_OUT)
    }


def _answers(split: Mapping[str, int]) -> str:
    return f"{split['positives']:,} YES" + (f", {split['negatives']:,} NO" if split["negatives"] else "")


def _lengths(count: Any, texts: Sequence[str], room: float, counted: bool) -> Lengths:
    tokens = sorted(count(_evenly(texts)))
    if not tokens:
        return Lengths(0.0, 0.0, 0, 0, counted)
    over = sum(n > room for n in tokens)
    return Lengths(float(tokens[len(tokens) // 2]), float(tokens[-1]), over, len(tokens), counted)


def _told(lengths: Lengths, what: str) -> str:
    about = "" if lengths.counted else "about "
    sample = "" if lengths.texts < _SAMPLE else f" of {lengths.texts:,} looked at"
    return f"{what} {about}{lengths.median:.0f} tokens (median), {about}{lengths.longest:.0f} at most{sample}"


def _evenly(texts: Sequence[str]) -> list[str]:
    step = -(-len(texts) // _SAMPLE) or 1
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts[::step]]


def _scripts(texts: Iterable[str]) -> dict[str, float]:
    """Shares of letters by writing system, the largest first; a language cannot be told from a short text."""
    letters = Counter(character for text in texts for character in text[:500] if character.isalpha())
    counts: Counter[str] = Counter()
    for character, number in letters.items():
        counts[unicodedata.name(character, "UNKNOWN").split()[0].split("-")[0].capitalize()] += number
    total = counts.total() or 1
    return {name: round(number / total, 3) for name, number in counts.most_common(_NAMED) if number / total >= 0.005}
