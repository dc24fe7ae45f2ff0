"""What a run will cost: pairs and tokens of every stage, and the time they take on this machine.

Counts before anything is done, so it knows nothing of plans, margins or what a text says. The time is a sum of matrix
products: tokens, times the operations of the model's linear layers, over the rate that this machine just showed in one
second of such products. That leaves out attention and everything elementwise; `SCORING_SHARE` and `TRAINING_SHARE` say
how much of the rate a whole pass keeps.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from semlabel.errors import ModelRefused
from semlabel.settings import Settings
from semlabel.splits import held_out_sizes

SCORING_SHARE = 0.7
TRAINING_SHARE = 0.7
LONG_SECONDS = 20 * 60
"""From here on a smaller profile is offered."""

_FULL_TRAINING, _LORA_TRAINING = 3.0, 2.0  # passes worth of work per token: forward and one or two backward products
_SAMPLE = 200
_BUSY = 0.1
_CHARACTERS_PER_TOKEN = 4.0
_NOT_LINEAR = ("embed", "lm_head", "wte.", "wpe.")


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of one query (after cutting) and of one item. `counted` is False where characters had to stand in."""

    query: float
    item: float
    counted: bool


@dataclass(frozen=True)
class Sizes:
    """How much there is: entities in all, those with references in each use, candidates in the catalog."""

    entities: int
    candidates: int
    train: int
    held_out: int


@dataclass(frozen=True)
class Work:
    """One stage's pairs and tokens; `passes` is its work per token in forward passes, `share` of the rate it keeps."""

    stage: str
    pairs: int
    tokens: int
    passes: float = 1.0
    share: float = SCORING_SHARE


@dataclass(frozen=True)
class Speed:
    """What the machine showed: operations per second in the linear layers' shapes, in the precision that is served.

    `taken` is the share of the cores that other work had meanwhile.
    """

    operations_per_second: float
    precision: str
    device: str
    taken: float = 0.0


@dataclass(frozen=True)
class Estimate:
    """Work with the seconds it should take; `seconds` is None where model or machine are unknown."""

    work: tuple[Work, ...]
    lengths: Lengths
    parameters: int | None
    speed: Speed | None
    fixed_seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def seconds_of(self, work: Work) -> float | None:
        """Seconds of one stage."""
        if self.parameters is None or self.speed is None:
            return None
        operations = 2.0 * self.parameters * work.tokens * work.passes
        return operations / (self.speed.operations_per_second * work.share)

    @property
    def seconds(self) -> float | None:
        """Seconds of everything, the fixed part included; 0 where nothing is to be done."""
        if not any(work.tokens for work in self.work):
            return 0.0
        parts = [self.seconds_of(work) for work in self.work]
        return None if None in parts else sum(part or 0.0 for part in parts) + self.fixed_seconds

    @property
    def pairs_to_score(self) -> int:
        """Pairs that need a margin: everything but training."""
        return sum(work.pairs for work in self.work if work.stage != "train")

    def to_json(self) -> dict[str, Any]:
        """All numbers as JSON values, with the seconds of every stage."""
        stages = [asdict(work) | {"seconds": self.seconds_of(work)} for work in self.work]
        return {
            "stages": stages,
            "seconds": self.seconds,
            "fixed_seconds": self.fixed_seconds,
            "pairs_to_score": self.pairs_to_score,
            "query_tokens": self.lengths.query,
            "item_tokens": self.lengths.item,
            "tokens_counted": self.lengths.counted,
            "linear_parameters": self.parameters,
            "speed": asdict(self.speed) if self.speed else None,
            "notes": list(self.notes),
        }

    def sentence(self) -> str:
        """One sentence: how long, and what that rests on."""
        seconds = self.seconds
        if seconds is None:
            return "No time can be estimated: " + "; ".join(self.notes or ("the base model is not on this disk",)) + "."
        if seconds == 0:
            return "Nothing to train and nothing to score."
        assert self.speed is not None
        busy = f" Other work took {self.speed.taken:.0%} of its cores meanwhile." if self.speed.taken > _BUSY else ""
        return (
            f"About {duration(seconds)} for {sum(w.pairs for w in self.work):,} pairs "
            f"({sum(w.tokens for w in self.work):,} tokens) at the "
            f"{self.speed.operations_per_second / 1e9:,.0f} GFLOP/s this machine just showed "
            f"in {self.speed.precision} on {self.speed.device}.{busy}"
        )


def estimate(
    settings: Settings,
    sizes: Sizes,
    lengths: Lengths,
    parameters: int | None,
    speed: Speed | None,
    *,
    training: bool = True,
    stored: Mapping[int, int] | None = None,
    entities_limit: int | None = None,
) -> Estimate:
    """The cost of the whole recipe (`training`) or of a night with a promoted labeler.

    `stored` says how many entities have how many margins already (pairs -> entities). `entities_limit`: that many
    entities, 0 all of them, None as the settings say (all of them, or the held-out ones).
    """
    work = list(_training_work(settings, sizes, lengths)) if training else []
    scope = scope_of(settings, sizes, entities_limit)
    # A run that trains has scored what it holds out by then.
    have = {sizes.candidates: min(sizes.held_out, scope)} if training else dict(stored or {})
    work.append(_remaining_work(settings, sizes, lengths, scope, have))
    # Loading, baselines, contracts, metrics and publication: seconds that hardly depend on the model.
    return Estimate(tuple(work), lengths, parameters, speed, fixed_seconds=90.0 if training else 5.0)


def _remaining_work(settings: Settings, sizes: Sizes, lengths: Lengths, scope: int, have: Mapping[int, int]) -> Work:
    """What `scope` entities lack: an entity that lacks one candidate reads its whole query for it."""
    each = min(settings.shortlist.size or sizes.candidates, sizes.candidates)
    missing = wanted_pairs(settings, sizes, scope) - sum(pairs * entities for pairs, entities in have.items())
    pairs = max(0, min(missing, settings.scoring.max_pairs or missing))
    if not pairs:
        return Work("score predictions", 0, 0)
    lacking = Counter({each: scope - sum(have.values())})
    for stored, entities in have.items():
        lacking[max(0, each - stored)] += entities
    per_round = _items_of_a_round(settings, lengths, each)
    rounds = sum(max(0, entities) * math.ceil(lacks / per_round) for lacks, entities in lacking.items())
    rounds = math.ceil(rounds * pairs / missing)  # a cap takes its share of them
    return Work("score predictions", pairs, int(rounds * lengths.query + pairs * lengths.item))


def everybody(settings: Settings, entities_limit: int | None) -> bool:
    """Whether a run labels, or chooses from, all entities, and not the held-out ones alone."""
    return entities_limit == 0 or settings.scoring.entities == "all"


def scope_of(settings: Settings, sizes: Sizes, entities_limit: int | None) -> int:
    """How many entities are labeled."""
    entities = sizes.entities if everybody(settings, entities_limit) else sizes.held_out
    return min(entities_limit, entities) if entities_limit else entities


def wanted_pairs(settings: Settings, sizes: Sizes, scope: int) -> int:
    """Pairs that predictions of `scope` entities need margins of: with shortlists, all only of what gates judge."""
    kept = min(settings.shortlist.size or sizes.candidates, sizes.candidates)
    if kept == sizes.candidates:
        return scope * kept
    return sizes.held_out * sizes.candidates + max(0, scope - sizes.held_out) * kept


def _training_work(settings: Settings, sizes: Sizes, lengths: Lengths) -> Iterable[Work]:
    plan = settings.training
    per_entity = min(plan.items_per_round, sizes.candidates)
    pairs = sizes.train * per_entity
    if plan.max_pairs:
        pairs = min(pairs, plan.max_pairs)
    rounds = math.ceil(pairs / per_entity) if per_entity else 0
    query = min(lengths.query, plan.max_query_tokens or lengths.query)
    tokens = plan.epochs * (rounds * query + pairs * lengths.item)
    passes = _FULL_TRAINING if plan.method == "full" else _LORA_TRAINING
    yield Work("train", int(pairs * plan.epochs), int(tokens), passes, TRAINING_SHARE)
    held_out = sizes.held_out * sizes.candidates
    yield scoring_work("score held-out entities", held_out, sizes.candidates, settings, lengths)
    single, ordered = settings.gates.parity_pairs, settings.gates.order_pairs
    whole_prompts = int(single * (lengths.query + lengths.item))
    yield Work("parity gate", single, whole_prompts)
    yield scoring_work("order gate", ordered, sizes.candidates, settings, lengths)


def scoring_work(stage: str, pairs: int, candidates: int, settings: Settings, lengths: Lengths) -> Work:
    """The work of `pairs` scored in rounds as long as they may be: every round reads its query once."""
    rounds = math.ceil(pairs / _items_of_a_round(settings, lengths, candidates))
    return Work(stage, pairs, int(rounds * lengths.query + pairs * lengths.item))


def _items_of_a_round(settings: Settings, lengths: Lengths, candidates: int) -> int:
    room = max(1, int((settings.scoring.max_round_tokens - lengths.query) // max(lengths.item, 1)))
    return max(1, min(settings.scoring.items_per_round, candidates or 1, room))


def sizes_of(settings: Settings, entities: int, candidates: int, split: int) -> Sizes:
    """How many of the `split` entities train and how many are held out in a first run, as `[splits]` says.

    `split` are those that references or judgements name. Near-duplicates and what a warehouse remembers shift some.
    """
    held_out = min(sum(held_out_sizes(settings.splits, split).values()), split)
    return Sizes(entities, catalog_size(settings, candidates), split - held_out, held_out)


def catalog_size(settings: Settings, candidates: int) -> int:
    """How many candidates are labeled."""
    return min(candidates, settings.sources.catalog_top or candidates)


def lengths_of(settings: Settings, entity_texts: Sequence[str], candidate_texts: Sequence[str]) -> Lengths:
    """Mean token counts from an even sample of at most 200 texts each, by the base model's own tokenizer."""
    prompt = settings.prompt
    frame = prompt.template.replace("{entity}", "").replace("{candidate}", "")
    count, counted = token_counter(settings)
    control = 12.0 if prompt.format == "chat" else 1.0
    fixed = float(count([frame])[0])
    queries = [min(n + fixed, prompt.max_query_tokens) for n in count(_evenly(entity_texts))]
    items = [n + control for n in count(_evenly(candidate_texts))]
    return Lengths(_mean(queries), _mean(items), counted)


def token_counter(settings: Settings) -> tuple[Any, bool]:
    """Texts -> token counts, by the base model's tokenizer (True) or guessed from characters where it is not here."""
    file = Path(settings.model.base) / "tokenizer.json"
    if not file.is_file():
        return lambda texts: [len(text) / _CHARACTERS_PER_TOKEN for text in texts], False
    # The tokenizer alone, not transformers: a hundredth of a second instead of several.
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda texts: [len(code.ids) for code in tokenizer.encode_batch(texts, add_special_tokens=False)], True


def _evenly(texts: Sequence[str]) -> list[str]:
    step = max(1, len(texts) // _SAMPLE)
    # The count of a broken text is that of its readable rest; it is refused or mended where it is read for real.
    return [str(text).encode("utf-8", "replace").decode("utf-8") for text in list(texts)[::step][:_SAMPLE]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def linear_parameters(model: Path) -> int | None:
    """Parameters of the linear layers, from the headers of the safetensors files; None where there are none.

    Embedding and head are left out: a scored item meets two rows of the head. Raises ModelRefused for a broken file.
    """
    files = sorted(model.glob("*.safetensors")) if model.is_dir() else []
    if not files:
        return None
    total = 0
    for file in files:
        for name, tensor in _safetensors_header(file).items():
            shape = tensor.get("shape", []) if isinstance(tensor, Mapping) else []
            if len(shape) == 2 and not any(part in name for part in _NOT_LINEAR):
                total += math.prod(shape)
    return total or None


def _safetensors_header(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < 100_000_000:
            raise ModelRefused(f"{file}: not a safetensors file; fetch or convert the model again")
        try:
            header = json.loads(stream.read(length))
        except ValueError:
            raise ModelRefused(f"{file}: its header is cut short; fetch or convert the model again") from None
    header.pop("__metadata__", None)
    return header


def measure_speed(precision: str, device: str, seconds: float = 1.0) -> Speed:
    """Operations per second of matrix products in the shapes of a small model's linear layers.

    `precision` is "fp32" or "bf16", `device` a torch device. Imports torch.
    """
    import torch

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left = torch.randn(2048, 576, dtype=dtype, device=device)
    right = torch.randn(576, 1536, dtype=dtype, device=device)
    wait = torch.cuda.synchronize if device.startswith("cuda") else _nothing
    with torch.inference_mode():
        torch.mm(left, right)
        wait()
        products, start, worked = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            for _ in range(8):
                torch.mm(left, right)
            wait()
            products += 8
        elapsed, worked = time.perf_counter() - start, time.process_time() - worked
    # A thread that waits for another one spins, so what this process did not get, other work had.
    taken = max(0.0, 1 - worked / (elapsed * torch.get_num_threads())) if device == "cpu" else 0.0
    return Speed(2.0 * 2048 * 576 * 1536 * products / elapsed, precision, device, taken)


def _nothing() -> None:
    return None


def duration(seconds: float) -> str:
    """A time as people say it: `8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 3600:
        return f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
