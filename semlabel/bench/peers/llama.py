"""llama.cpp at its best for this work: a query and all its items in one batch, the query's tokens in every sequence.

Weights are requantised from the GGUF that is given. Searched: the physical batch, flash attention, and queries side by
side in contexts of their own. Imports `llama_cpp`, so import it only where that is installed. Deliberately does not
know the tokenizer of the GGUF: token ids go in.
"""

import ctypes
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from semlabel.bench.methods import Account, Scored, Setting, in_lanes
from semlabel.bench.peers import PeerAbsent
from semlabel.bench.tasks import Task

_FILE_TYPES = {"fp32": "LLAMA_FTYPE_ALL_F32", "bf16": "LLAMA_FTYPE_MOSTLY_BF16", "q8_0": "LLAMA_FTYPE_MOSTLY_Q8_0"}
_SEQUENCES = 256
"""llama.cpp's own bound on the sequences of a context, and with it on the items of a round."""
_UBATCHES = (128, 256, 512, 1024, 2048)
_CELLS = 256  # llama.cpp pads its cache to a multiple of this

Place = tuple[int, int, Sequence[int], bool]
"""A token of a batch: its id, its position, the sequences it belongs to, whether its logits are read."""


def batch_of(query: Sequence[int], items: Sequence[Sequence[int]]) -> list[Place]:
    """The query once, in every item's sequence, then each item in its own; logits at the items' last tokens."""
    every = range(len(items))
    places: list[Place] = [(token, position, every, False) for position, token in enumerate(query)]
    for sequence, item in enumerate(items):
        last = len(item) - 1
        places += [(token, len(query) + n, (sequence,), n == last) for n, token in enumerate(item)]
    return places


class LlamaCpp:
    """One GGUF in one weight format (`fp32`, `bf16` or `q8_0`)."""

    has_lanes = True
    sets_up = True  # a context

    def __init__(self, gguf: str, weights: str, answer_ids: tuple[int, int], name: str = "llama_cpp") -> None:
        self.name, self._answer_ids, self._exact = name, answer_ids, weights == "fp32"
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        self.engine = f"{weights} weights; {llama_cpp.llama_print_system_info().decode().strip()}"
        self._model: Any = _requantised(gguf, weights)
        # Contexts by (ubatch, flash, threads), those not in use: making one is no part of scoring.
        self._contexts: dict[tuple[int, bool, int], list[Any]] = {}
        self._capacity = 0

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        tokens = max(_tokens(task) for task in tasks)
        sizes = [size for size in _UBATCHES if size < tokens]
        sizes += [size for size in _UBATCHES if size >= tokens][:1]
        return [[{"ubatch": size, "flash": flash} for size in sizes] for flash in (True, False)]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        self._make_room(max(_tokens(task) for task in tasks))
        run = partial(self._tasks, ubatch=setting["ubatch"], flash=setting["flash"])
        return in_lanes(run, tasks, setting.get("lanes", 1))

    def _make_room(self, tokens: int) -> None:
        if tokens <= self._capacity:
            return
        for context in [one for unused in self._contexts.values() for one in unused]:
            llama_cpp.llama_free(context)
        self._contexts.clear()
        self._capacity = -(-tokens // _CELLS) * _CELLS

    def _tasks(self, tasks: Sequence[Task], ubatch: int, flash: bool) -> Scored:
        account = Account()
        with self._context(ubatch, flash) as context:
            margins = [
                np.concatenate(
                    [
                        self._round(context, task.query, task.items[start : start + _SEQUENCES], account)
                        for start in range(0, len(task.items), _SEQUENCES)
                    ]
                )
                for task in tasks
            ]
        return Scored(margins, account=account)

    @contextmanager
    def _context(self, ubatch: int, flash: bool) -> Iterator[Any]:
        """A context that nobody else uses meanwhile, with the threads of the lane that asks."""
        threads = torch.get_num_threads()
        unused = self._contexts.setdefault((ubatch, flash, threads), [])
        context = unused.pop() if unused else self._new_context(ubatch, flash, threads)
        yield context
        unused.append(context)

    def _new_context(self, ubatch: int, flash: bool, threads: int) -> Any:
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = self._capacity
        parameters.n_ubatch = min(ubatch, self._capacity)
        parameters.n_seq_max = _SEQUENCES
        parameters.kv_unified = True
        if self._exact:  # else halves, llama.cpp's default
            parameters.type_k = parameters.type_v = llama_cpp.GGML_TYPE_F32
        kind = "LLAMA_FLASH_ATTN_TYPE_ENABLED" if flash else "LLAMA_FLASH_ATTN_TYPE_DISABLED"
        parameters.flash_attn_type = getattr(llama_cpp, kind)
        parameters.n_threads = parameters.n_threads_batch = threads
        context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {self._capacity} tokens with ubatch={ubatch}")
        return context

    def _round(self, context: Any, query: list[int], items: list[list[int]], account: Account) -> np.ndarray:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        places = batch_of(query, items)
        batch = llama_cpp.llama_batch_init(len(places), 0, len(items))
        try:
            _fill(batch, places)
            code = llama_cpp.llama_decode(context, batch)
        finally:
            llama_cpp.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(places)} tokens")
        account.prefill_tokens += len(places)
        account.forwards += 1
        yes, no = self._answer_ids
        rows = [llama_cpp.llama_get_logits_ith(context, n) for n, place in enumerate(places) if place[3]]
        return np.array([row[yes] - row[no] for row in rows], dtype=np.float32)


def _fill(batch: Any, places: Sequence[Place]) -> None:
    batch.n_tokens = len(places)
    for number, (token, position, sequences, read) in enumerate(places):
        batch.token[number], batch.pos[number], batch.logits[number] = token, position, read
        batch.n_seq_id[number] = len(sequences)
        row = batch.seq_id[number]
        for place, sequence in enumerate(sequences):
            row[place] = sequence


def _tokens(task: Task) -> int:
    """Tokens of a task's largest round."""
    starts = range(0, len(task.items), _SEQUENCES)
    return len(task.query) + max(sum(map(len, task.items[start : start + _SEQUENCES])) for start in starts)


def _requantised(gguf: str, weights: str) -> Any:
    """The model of a GGUF with its weights in another format. Raises PeerAbsent where llama.cpp cannot do it."""
    if not Path(gguf).is_file():
        raise PeerAbsent(f"{gguf} is no file; docs/engine.md says how to make a GGUF of a labeler")
    with tempfile.TemporaryDirectory(prefix="semlabel-gguf-") as folder:
        file = Path(folder) / f"{weights}.gguf"
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = getattr(llama_cpp, _FILE_TYPES[weights])
        parameters.allow_requantize = True
        parameters.nthread = torch.get_num_threads()
        if llama_cpp.llama_model_quantize(gguf.encode(), str(file).encode(), ctypes.byref(parameters)):
            raise PeerAbsent(f"llama.cpp cannot requantise {gguf} to {_FILE_TYPES[weights]}")
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(str(file).encode(), loading)
    if not model:
        raise PeerAbsent(f"llama.cpp cannot load {gguf}")
    return model


@llama_cpp.llama_log_callback
def _silent(_level: int, _text: bytes, _data: Any) -> None:
    """Drops what llama.cpp tells about every tensor."""
