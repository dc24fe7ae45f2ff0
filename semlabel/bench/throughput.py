"""The throughput benchmark: labels per second of every method, with its distance from single prompts beside it.

One group is one precision and one shape: every method is tuned, then all methods and sizes are timed in turn,
several times over, and the machine's matrix-product ceiling is measured before and after. A group's cells come from
one process; an interrupted run goes on with the next group. Deliberately does not know files or plots.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from transformers import PreTrainedModel

from semlabel.bench.exactness import SinglePrompts, compared_part, difference
from semlabel.bench.gemm import Ceiling, linear_shapes, rungs_up_to
from semlabel.bench.generating import Generation
from semlabel.bench.memory import peak_mb
from semlabel.bench.methods import Independent, Method, Mis, PrefixCache, Scored, Setting
from semlabel.bench.peers import peer_methods
from semlabel.bench.subject import Subject
from semlabel.bench.tasks import Shape, Task, random_tasks, text_ids
from semlabel.bench.tuning import spelled, timed, tune
from semlabel.errors import SettingsError
from semlabel.models import DTYPES, load_model, resolve_device, resolve_precision
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.scorer import Scorer

METHODS = ("generation", "independent", "prefix_cache", "mis")
SHAPES = (Shape(170, 8), Shape(60, 8), Shape(560, 30))


@dataclass(frozen=True)
class Plan:
    """What to measure. `tuned_at_most` is the largest N a setting is searched at; larger N take that setting.

    `independent_items` bounds the prompts of one timed call of `independent`, whose cost per label does not depend on
    N; `compared_items` the single prompts a cell is compared with. `gguf` is the same model for llama.cpp.
    """

    items: tuple[int, ...] = (1, 5, 20, 50, 100, 200, 500)
    shapes: tuple[Shape, ...] = SHAPES
    precisions: tuple[str, ...] = ("fp32", "bf16", "int8")
    methods: tuple[str, ...] = METHODS
    repetitions: int = 5
    tuning_repetitions: int = 2
    tuned_at_most: int = 200
    independent_items: int = 100
    compared_items: int = 100
    peers: bool = False
    gguf: str | None = None

    @classmethod
    def quick(cls) -> "Plan":
        """One shape, three sizes: a smoke run of minutes, not evidence."""
        return cls(
            items=(1, 20, 100),
            shapes=SHAPES[:1],
            tuning_repetitions=1,
            independent_items=20,
            compared_items=20,
        )

    def queries(self, items: int) -> int:
        """Queries of one call: more where each has few items, for methods that batch over queries; two at least, for
        methods that can have several at work at once. At N = 1, a new candidate's night, so many that a batch over
        them is no exception."""
        return max(2, min(32, 160 // items))


@dataclass(frozen=True)
class Group:
    """The cells of one precision and shape, what was tuned for them, and the ceiling; all flat records."""

    precision: str
    shape: str
    cells: list[dict[str, Any]]
    tuning: list[dict[str, Any]]
    gemm: list[dict[str, Any]]


def left_out(precisions: Sequence[str], device: str) -> list[dict[str, str]]:
    """Those of the precisions that this version or machine does not score in, each with the reason."""
    missing = []
    for precision in precisions:
        try:
            resolve_precision(precision, device)
        except SettingsError:
            missing.append({"method": "all", "precision": precision, "reason": "the scorer does not have it yet"})
    return missing


def measure(
    subject: Subject,
    plan: Plan,
    device: str = "auto",
    done: Sequence[tuple[str, str]] = (),
    progress: ProgressSink = silent,
    missing: list[dict[str, str]] | None = None,
) -> Iterator[Group]:
    """Measure group by group, leaving out those named in `done` as (precision, shape name).

    Methods that cannot be run are added to `missing`. Raises ModelRefused or LabelerError for a model that does not
    load.
    """
    device = resolve_device(device)
    absent = {entry["precision"] for entry in left_out(plan.precisions, device)}
    todo = [(p, s) for p in plan.precisions for s in plan.shapes if p not in absent and (p, s.name) not in done]
    if not todo:
        return
    bench = _Bench(subject, plan, device, missing if missing is not None else [])
    for number, (precision, shape) in enumerate(todo):
        progress(Progress(f"throughput {precision} {shape.name}", number, len(todo), "groups"))
        yield bench.group(precision, shape, progress)
    progress(Progress("throughput", len(todo), len(todo), "groups"))


@dataclass(frozen=True)
class _Loaded:
    precision: str
    scorer: Scorer
    stock: PreTrainedModel
    methods: list[Method]
    alone: SinglePrompts


class _Bench:
    def __init__(self, subject: Subject, plan: Plan, device: str, missing: list[dict[str, str]]) -> None:
        self._subject, self._plan, self._device, self._missing = subject, plan, device, missing
        self._loaded: _Loaded | None = None
        stock = load_model(subject.path, "fp32", device)
        self._tokenizer = load_tokenizer(subject.path)
        prompt = Prompt(subject.spec, self._tokenizer)
        self._answers = (prompt.yes_id, prompt.no_id)
        embeddings: Any = stock.get_input_embeddings()
        self._text_ids = text_ids(self._tokenizer, int(embeddings.num_embeddings))
        self._last_id = prompt.item("a")[-1]
        self._exact = self._exact_margins(stock)
        self._shapes_of_layers = linear_shapes(stock)

    def _exact_margins(self, stock: PreTrainedModel) -> SinglePrompts:
        """Every fp32 single prompt that will be compared with, before the fp32 model goes."""
        exact = SinglePrompts(stock, self._answers)
        for shape in self._plan.shapes:
            for items in self._plan.items:
                for task in compared_part(self._tasks(shape, items), self._plan.compared_items):
                    exact.margins(task)
        return exact

    def _tasks(self, shape: Shape, items: int) -> list[Task]:
        return random_tasks(shape, items, self._plan.queries(items), self._text_ids, self._last_id)

    def _tasks_for(self, method: Method, shape: Shape, items: int) -> list[Task]:
        tasks = self._tasks(shape, items)
        if method.name == "independent":
            return [task.first(max(1, self._plan.independent_items // len(tasks))) for task in tasks]
        return tasks

    def _threshold(self, shape: Shape) -> float:
        """The middle of the fp32 margins: half of the labels are YES, and as many as can be lie close to the cut."""
        tasks = compared_part(self._tasks(shape, max(self._plan.items)), self._plan.compared_items)
        return median(float(margin) for task in tasks for margin in self._exact.margins(task))

    def _load(self, precision: str) -> _Loaded:
        if self._loaded is None or self._loaded.precision != precision:
            self._loaded = None  # the old weights go before the new ones come
            scorer = Scorer.load(self._subject.path, self._subject.spec, precision, self._device)
            stock = load_model(self._subject.path, precision, self._device)
            methods: list[Method] = [
                Generation(stock, self._tokenizer, self._subject.spec),
                Independent(stock, self._answers),
                PrefixCache(stock, self._answers),
                Mis(scorer),
            ]
            methods = [method for method in methods if method.name in self._plan.methods]
            if self._plan.peers:
                found, absent = peer_methods(self._subject.path, precision, self._answers, self._plan.gguf)
                methods += found
                self._missing += [entry for entry in absent if entry not in self._missing]
            self._loaded = _Loaded(precision, scorer, stock, methods, SinglePrompts(stock, self._answers))
        return self._loaded

    def group(self, precision: str, shape: Shape, progress: ProgressSink) -> Group:
        loaded, plan = self._load(precision), self._plan
        largest = max(plan.items)
        ceiling = self._ceiling(precision)
        rungs = rungs_up_to(max(task.tokens for task in self._tasks(shape, largest)))
        if ceiling is not None:
            ceiling.measure(rungs)
        settings, tuning = self._tune(loaded, shape, progress)
        times = self._time(loaded, shape, settings, progress)
        if ceiling is not None:
            ceiling.measure(rungs)
        cells = [
            self._cell(loaded, method, shape, items, settings[method.name, items], times[method.name, items], ceiling)
            for items in plan.items
            for method in loaded.methods
        ]
        _compare_with_independent(cells)
        return Group(precision, shape.name, cells, tuning, ceiling.to_json() if ceiling else [])

    def _ceiling(self, precision: str) -> Ceiling | None:
        dtype = DTYPES.get(precision)
        return None if dtype is None else Ceiling(self._shapes_of_layers, dtype, self._device)

    def _tune(
        self, loaded: _Loaded, shape: Shape, progress: ProgressSink
    ) -> tuple[dict[tuple[str, int], Setting], list[dict[str, Any]]]:
        """The setting of every method and N, and the log of the search."""
        settings: dict[tuple[str, int], Setting] = {}
        log: list[dict[str, Any]] = []
        searched = [n for n in self._plan.items if n <= self._plan.tuned_at_most] or [min(self._plan.items)]
        for method in loaded.methods:
            earlier: tuple[list[Task], int] = [], 0
            for items in sorted(searched):
                tasks = self._tasks_for(method, shape, items)
                if tasks == earlier[0]:  # `independent` is given no more prompts from some N on
                    settings[method.name, items] = settings[method.name, earlier[1]]
                    continue
                earlier = tasks, items
                progress(Progress(f"tuning {method.name} {loaded.precision} {shape.name} N={items}", 0, 0, "settings"))
                tuned = tune(method, tasks, self._plan.tuning_repetitions, self._device)
                settings[method.name, items] = tuned.setting
                about = {"method": method.name, "precision": loaded.precision, "shape": shape.name, "items": items}
                log += [about | tried for tried in tuned.log]
            for items in self._plan.items:
                last = settings[method.name, max(searched)]
                if (method.name, items) not in settings:
                    whole_rounds = "items_per_round" in last and last["items_per_round"] == max(searched)
                    settings[method.name, items] = last | ({"items_per_round": items} if whole_rounds else {})
        return settings, log

    def _time(
        self, loaded: _Loaded, shape: Shape, settings: dict[tuple[str, int], Setting], progress: ProgressSink
    ) -> dict[tuple[str, int], list[tuple[float, float | None, float | None]]]:
        """(seconds, prefill, decode) of every method and N, all of them once before any of them again."""
        times: dict[tuple[str, int], list[tuple[float, float | None, float | None]]] = {key: [] for key in settings}
        for repetition in range(self._plan.repetitions):
            progress(
                Progress(f"timing {loaded.precision} {shape.name}", repetition, self._plan.repetitions, "repetitions")
            )
            for items in self._plan.items:
                turn = repetition % len(loaded.methods)  # nobody is always the one after the heaviest
                for method in [*loaded.methods[turn:], *loaded.methods[:turn]]:
                    tasks = self._tasks_for(method, shape, items)
                    seconds, scored = timed(method, tasks, settings[method.name, items], self._device)
                    account = scored.account
                    times[method.name, items].append((seconds, account.prefill_seconds, account.decode_seconds))
        return times

    def _cell(
        self,
        loaded: _Loaded,
        method: Method,
        shape: Shape,
        items: int,
        setting: Setting,
        times: list[tuple[float, float | None, float | None]],
        ceiling: Ceiling | None,
    ) -> dict[str, Any]:
        tasks = self._tasks_for(method, shape, items)
        seconds = median(total for total, _, _ in times)
        labels = sum(len(task.items) for task in tasks)
        kept: list[Scored] = []
        peak = peak_mb(lambda: kept.append(method.run(tasks, setting)), self._device)
        scored = kept[0]
        part = compared_part(tasks, self._plan.compared_items)
        threshold = self._threshold(shape)
        here = difference(scored, [loaded.alone.margins(task) for task in part], threshold)
        exact = difference(scored, [self._exact.margins(task) for task in part], threshold)
        tokens = scored.account.prefill_tokens + scored.account.decoded_tokens
        known = ceiling is not None and method.name in METHODS
        return {
            "method": method.name,
            "engine": getattr(method, "engine", None),
            "precision": loaded.precision,
            "items": items,
            "query_tokens": shape.query_tokens,
            "item_tokens": shape.item_tokens,
            "labels_per_s": labels / seconds,
            "peak_mb": peak,
            **here.to_json(),
            **exact.to_json("_fp32"),
            "gemm_share": ceiling.share(tokens, seconds) if ceiling is not None and known else None,
            "ceiling_gflops": ceiling.best(tokens) / 1e9 if ceiling is not None and known else None,
            "compared_items": here.compared,
            "queries": len(tasks),
            "items_measured": labels,
            "seconds": seconds,
            "fastest_seconds": min(total for total, _, _ in times),
            "repetitions": len(times),
            "prefill_seconds": _median_of(prefill for _, prefill, _ in times),
            "decode_seconds": _median_of(decode for _, _, decode in times),
            "prefill_tokens": scored.account.prefill_tokens,
            "decoded_tokens": scored.account.decoded_tokens,
            "forwards": scored.account.forwards,
            "setting": spelled(setting),
            "token_ratio": shape.token_ratio(items),
            "over_independent": None,
        }


def _median_of(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _compare_with_independent(cells: list[dict[str, Any]]) -> None:
    """Fill in each cell's speed over `independent` at the same N, which is what R(N) bounds."""
    base = {cell["items"]: cell["labels_per_s"] for cell in cells if cell["method"] == "independent"}
    for cell in cells:
        if cell["items"] in base:
            cell["over_independent"] = cell["labels_per_s"] / base[cell["items"]]
