"""The serving benchmark: which rate a server keeps up with, for packed scoring and for packed generation.

For every number of items, and for both methods behind the same fronts, transport and queue: the time of a request
alone, then open-loop rates up to the knee, the highest one at which 99 % of the requests are answered and the p99 is
within the limit. No query is sent twice. Deliberately does not know files or plots.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np

from semlabel.bench.knee import find_knee
from semlabel.bench.load import one_after_another, open_loop, settle
from semlabel.bench.other_engine import Kind
from semlabel.bench.served import Served, served
from semlabel.bench.tasks import Shape, text_ids
from semlabel.bench.throughput import SHAPES
from semlabel.errors import LabelerError, SemlabelError
from semlabel.manifest import MANIFEST_FILE, Manifest, read_manifest
from semlabel.progress import Progress, ProgressSink, silent
from semlabel.prompt import Prompt, load_tokenizer
from semlabel.serving.proto import labeler_pb2

MIS, GENERATION = "mis", "generation"
METHODS = (MIS, GENERATION)
_FIRST_SHARE = 0.6
_SAMPLE, _FITS, _NO_METHOD = 20, 4, 0
_UNCOUNTED = 2  # the first requests of a server also pay for what is set up once
_PLAIN = {"shared_query": True, "skip_forced": True, "packs_per_forward": 8}
Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to measure. A rate keeps up when `achieved` of its requests are answered and the p99 is within the limit.

    The limit is `limit_seconds`, or `slack` times the p50 of a request alone where that is longer: on a slow machine a
    long request takes more than the limit by itself, and still there is a rate that its server keeps up with.
    A rate is measured for `seconds`, and for longer where fewer than `least_requests` would be due in that time.
    `tuning_repetitions` 0 takes a setting of packed generation that is good in most cases instead of searching.
    """

    items: tuple[int, ...] = (1, 20, 50, 100, 200)
    shape: Shape = SHAPES[0]
    seconds: float = 60.0
    warm_up_seconds: float = 10.0
    alone_requests: int = 20
    limit_seconds: float = 1.0
    slack: float = 3.0
    achieved: float = 0.99
    least_requests: int = 20
    bisections: int = 2
    tuning_repetitions: int = 2
    overhead_items: int = 64
    overhead_requests: int = 200
    workers: int = 1
    methods: tuple[str, ...] = METHODS

    def limit(self, alone: float) -> float:
        """Seconds that the p99 may take where a request alone takes `alone` seconds."""
        return max(self.limit_seconds, self.slack * alone)

    @classmethod
    def quick(cls) -> "Plan":
        """Three sizes and seconds a point: a smoke run of minutes, not evidence."""
        return cls(
            items=(1, 20, 200),
            seconds=5.0,
            warm_up_seconds=1.0,
            alone_requests=5,
            bisections=0,
            tuning_repetitions=0,
            overhead_requests=40,
            least_requests=5,
        )


@dataclass
class Records:
    """What is measured so far; `kind` is `lengths`, `tuning`, `alone`, `point`, `knee`, `whole` or `overhead`.

    `kept` is told of every new one.
    """

    known: list[Record] = field(default_factory=list)
    kept: Callable[[], None] = lambda: None

    def find(self, kind: str, **wanted: Any) -> Record | None:
        """The record of this kind with these values, or None."""
        wanted = {"kind": kind} | wanted
        return next((record for record in self.known if wanted.items() <= record.items()), None)

    def once(self, kind: str, make: Callable[[], Record], **named: Any) -> Record:
        """The record of this kind and these values, made where it is missing."""
        found = self.find(kind, **named)
        if found is None:
            found = {"kind": kind} | named | make()
            self.known.append(found)
            self.kept()
        return found


class Texts:
    """Entities and candidates of about the wanted lengths: random words of the labeler's vocabulary, as text."""

    def __init__(self, labeler: Path, manifest: Manifest, shape: Shape, seed: int = 7) -> None:
        tokenizer = load_tokenizer(labeler)
        self._prompt = Prompt(manifest.prompt.spec(), tokenizer)
        self._words = text_ids(tokenizer, len(tokenizer))
        self._decode = tokenizer.decode
        self._seed = seed
        self._query_words = self._fitted(shape.query_tokens, self._query_lengths)
        self._item_words = self._fitted(shape.item_tokens, self._item_lengths)

    def entity(self, *number: int) -> str:
        """The text of one number; another number has another text."""
        return self._text(self._query_words, 0, *number)

    def candidates(self, items: int) -> list[str]:
        """The first `items` candidates."""
        return [self._text(self._item_words, 1, number) for number in range(items)]

    def tokenised(self, request: labeler_pb2.LabelRequest) -> tuple[Any, Any]:
        """The query and the items of a request, as a front makes them."""
        return self._prompt.query(request.text), self._prompt.items([each.text for each in request.candidates])

    def lengths(self, items: int) -> Record:
        """Mean tokens of a query and of an item, as they are served."""
        queries = self._query_lengths([self.entity(_NO_METHOD, number) for number in range(_SAMPLE)])
        return {"query_tokens": queries, "item_tokens": self._item_lengths(self.candidates(items))}

    def _query_lengths(self, texts: list[str]) -> float:
        return float(np.mean([len(query.ids) for query in self._prompt.queries(texts)]))

    def _item_lengths(self, texts: list[str]) -> float:
        return float(np.mean([len(item) for item in self._prompt.items(texts)]))

    def _fitted(self, wanted: int, mean_tokens: Callable[[list[str]], float]) -> int:
        """How many ids to draw for texts of `wanted` tokens: as text they are tokenised again, and differently."""
        words = max(1, wanted // 2)
        for _ in range(_FITS):
            found = mean_tokens([self._text(words, 2, number) for number in range(_SAMPLE)])
            words = max(1, round(words * wanted / found))
        return words

    def _text(self, tokens: int, *number: int) -> str:
        rng = np.random.default_rng([self._seed, *number])
        # A letter first: a text of blanks alone would be refused.
        return f"a{self._decode(rng.choice(self._words, tokens).tolist())}"


def measure(
    labeler: Path, plan: Plan, device: str, threads: int, records: Records, progress: ProgressSink = silent
) -> None:
    """Measure what is not in `records` yet. Raises LabelerError for what is no labeler."""
    if not (labeler / MANIFEST_FILE).exists():
        raise LabelerError(f"{labeler}: is no labeler directory, and only labelers are served; promote one first")
    manifest = read_manifest(labeler)
    _Bench(labeler, manifest, plan, device, threads, records, progress).run()


class _Bench:
    def __init__(
        self,
        labeler: Path,
        manifest: Manifest,
        plan: Plan,
        device: str,
        threads: int,
        records: Records,
        progress: ProgressSink,
    ) -> None:
        self.labeler, self.manifest, self.plan = labeler, manifest, plan
        self.device, self.threads, self.records, self.progress = device, threads, records, progress
        self.texts = Texts(labeler, manifest, plan.shape)

    def run(self) -> None:
        self.records.once("lengths", lambda: self.texts.lengths(max(self.plan.items)))
        if MIS in self.plan.methods:
            self._method(MIS, None, self.plan.items)
        if GENERATION in self.plan.methods:
            for setting, items in self._settings():
                self._method(GENERATION, Kind(name=GENERATION, setting=setting), items)
        if MIS in self.plan.methods:
            self._overhead()

    def _method(self, method: str, other: Kind | None, sizes: Sequence[int]) -> None:
        """One server for all of these sizes, where one of them is still to be measured."""
        todo = [items for items in sizes if self.records.find("knee", method=method, items=items) is None]
        whole = method == MIS and self.records.find("whole") is None
        if not todo and not whole:
            return
        self._say(f"{method}: the server starts")
        with self._served(other) as server:
            for items in todo:
                self._size(server, method, items)
            if whole:
                self.records.once("whole", lambda: self._alone(server, method, self.plan.overhead_items))

    def _size(self, server: Served, method: str, items: int) -> None:
        """The time alone, the rates up to the knee, and the knee."""
        named: Record = {"method": method, "items": items}
        self._say(f"{method}, N = {items}: alone")
        alone = self.records.once("alone", lambda: self._alone(server, method, items), **named)["p50"]
        limit = None if alone is None else self.plan.limit(alone)

        def keeps_up(rate: float) -> bool:
            assert limit is not None
            self._say(f"{method}, N = {items}: {rate:g} requests/s")
            point = self.records.once(
                "point", lambda: self._point(server, method, items, rate, limit), **named, offered_per_s=rate
            )
            return bool(point["keeps_up"])

        knee = None
        if limit is not None and alone <= limit:
            knee = find_knee(_FIRST_SHARE / alone, keeps_up, self.plan.bisections)
        labels = None if knee is None else knee * items
        self.records.once("knee", lambda: {"limit": limit, "per_s": knee, "labels_per_s": labels}, **named)

    def _settings(self) -> list[tuple[dict[str, Any], list[int]]]:
        """The tuned settings of packed generation, each with the sizes it is best for."""
        found: list[tuple[dict[str, Any], list[int]]] = []
        for items in self.plan.items:
            self._say(f"{GENERATION}, N = {items}: setting")
            setting = self.records.once("tuning", partial(self._tuned, items), items=items)["setting"]
            same = next((sizes for known, sizes in found if known == setting), None)
            if same is None:
                found.append((setting, [items]))
            else:
                same.append(items)
        return found

    def _alone(self, server: Served, method: str, items: int) -> Record:
        requests = self._requests(method, items, 0.0)
        sent = [next(requests) for _ in range(self.plan.alone_requests + _UNCOUNTED)]
        try:
            times = one_after_another(server.grpc, sent)[_UNCOUNTED:]
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
            return {"p50": None, "slowest": None, "labels_per_s": None}  # longer than a server gives any request
        return {"p50": median(times), "slowest": max(times), "labels_per_s": items / median(times)}

    def _point(self, server: Served, method: str, items: int, rate: float, limit: float) -> Record:
        plan, requests = self.plan, self._requests(method, items, rate)
        # What the rate before left in the queue goes first.
        settle(server.grpc, next(requests))
        # The same chance at every rate: a higher one brings the same arrivals closer together, so no knee is mere luck.
        seed = [items]
        seconds = max(plan.seconds, plan.least_requests / rate)
        point = open_loop(server.grpc, requests, rate, plan.warm_up_seconds, seconds, limit, seed)
        in_time = point.p99 is not None and point.p99 <= limit
        return vars(point) | {
            "achieved": point.achieved,
            "seconds": seconds,
            "achieved_per_s": point.answered / seconds,
            "labels_per_s": point.answered * items / seconds,
            "keeps_up": in_time and point.achieved >= plan.achieved,
        }

    def _tuned(self, items: int) -> Record:
        if not self.plan.tuning_repetitions:
            return {"setting": _PLAIN, "tried": []}
        from semlabel.bench.generating import Generation
        from semlabel.bench.tasks import random_tasks
        from semlabel.bench.tuning import tune
        from semlabel.models import load_model

        model, tokenizer = load_model(self.labeler, self.manifest.precision, self.device), load_tokenizer(self.labeler)
        generation = Generation(model, tokenizer, self.manifest.prompt.spec())
        words = text_ids(tokenizer, len(tokenizer))
        tasks = random_tasks(self.plan.shape, items, 1, words, words[0])
        found = tune(generation, tasks, self.plan.tuning_repetitions, self.device)
        return {"setting": found.setting, "tried": found.log}

    def _overhead(self) -> None:
        """What the fronts take of a request: its time around an engine that computes nothing, over the real one."""
        items, number, transports = self.plan.overhead_items, self.plan.overhead_requests, ("grpc", "http")
        if all(self.records.find("overhead", transport=transport) for transport in transports):
            return
        self._say(f"fronts, N = {items}")
        request = self.records.once("whole", dict)["p50"]
        if request is None:
            return
        with self._served(Kind(name="nothing")) as server:
            requests = self._requests(MIS, items, 0.0)
            sent = [next(requests) for _ in range(number + _UNCOUNTED)]
            times = {"grpc": one_after_another(server.grpc, sent), "http": _over_http(server.http, sent)}
        tokenise = _median_seconds(self.texts.tokenised, sent[_UNCOUNTED:])
        for transport in transports:
            fronts = median(times[transport][_UNCOUNTED:])
            parse = _median_seconds(_PARSERS[transport], [_BODIES[transport](each) for each in sent[_UNCOUNTED:]])
            parts = {"parse_p50": parse, "tokenise_p50": tokenise, "transport_p50": fronts - parse - tokenise}
            made = {"items": items, "fronts_p50": fronts, "request_p50": request, "share": fronts / request} | parts
            self.records.once("overhead", partial(dict, made), transport=transport)

    def _requests(self, method: str, items: int, rate: float) -> Iterator[labeler_pb2.LabelRequest]:
        """Requests with the same candidates and a query that no other one has."""
        candidates = [labeler_pb2.Candidate(text=text) for text in self.texts.candidates(items)]
        for number in count():
            text = self.texts.entity(1 + METHODS.index(method), items, round(rate * 1000), number)
            yield labeler_pb2.LabelRequest(text=text, candidates=candidates)

    def _served(self, other: Kind | None) -> AbstractContextManager[Served]:
        return served(self.labeler, self.device, self.threads, self.plan.workers, other)

    def _say(self, stage: str) -> None:
        self.progress(Progress(f"serving: {stage}", 0, 0, ""))


def _over_http(address: str, requests: Sequence[labeler_pb2.LabelRequest]) -> list[float]:
    """Seconds of the same requests over HTTP, on one connection, each sent when the one before it was answered."""
    connection, times = HTTPConnection(address, timeout=60), []
    for request in requests:
        body = _json_body(request)
        clock = time.perf_counter()
        connection.request("POST", "/v1/label", body)
        answer = connection.getresponse()
        answer.read()
        times.append(time.perf_counter() - clock)
        if answer.status != 200:
            raise SemlabelError(f"the server answered {answer.status} to a good request; look into its log")
    connection.close()
    return times


def _json_body(request: labeler_pb2.LabelRequest) -> bytes:
    document = {"text": request.text, "candidates": [each.text for each in request.candidates]}
    return json.dumps(document).encode()


_BODIES: dict[str, Callable[[labeler_pb2.LabelRequest], bytes]] = {
    "grpc": labeler_pb2.LabelRequest.SerializeToString,
    "http": _json_body,
}
_PARSERS: dict[str, Callable[[bytes], Any]] = {"grpc": labeler_pb2.LabelRequest.FromString, "http": json.loads}


def _median_seconds(call: Callable[[Any], Any], arguments: Sequence[Any]) -> float:
    """The median time of a call, made once with each of these."""
    times = []
    for argument in arguments:
        clock = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - clock)
    return median(times)
