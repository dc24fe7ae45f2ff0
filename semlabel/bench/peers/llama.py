"""llama.cpp at its best for this work: the query's cache shared by one sequence per item, all items in one batch.

Weights are requantised from the GGUF that is given, to what comes closest to the precision asked for. Searched: the
physical batch. Imports `llama_cpp`, so import it only where that is installed.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from semlabel.bench.methods import Account, Scored, Setting
from semlabel.bench.peers import PeerAbsent
from semlabel.bench.tasks import Task

_FILE_TYPES = {"fp32": "LLAMA_FTYPE_ALL_F32", "bf16": "LLAMA_FTYPE_MOSTLY_BF16", "int8": "LLAMA_FTYPE_MOSTLY_Q8_0"}
_SEQUENCES = 256  # llama.cpp's own bound; one of them is the query
_TOKENS = 16384


class LlamaCpp:
    """One GGUF in one weight format."""

    name = "llama_cpp"
    has_lanes = False

    def __init__(self, gguf: str, precision: str, answer_ids: tuple[int, int]) -> None:
        if precision not in _FILE_TYPES:
            raise PeerAbsent(f"no weight format of llama.cpp stands for {precision}")
        self._answer_ids = answer_ids
        self._folder = tempfile.TemporaryDirectory(prefix="semlabel-gguf-")
        file = Path(self._folder.name) / f"{precision}.gguf"
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = getattr(llama_cpp, _FILE_TYPES[precision])
        parameters.allow_requantize = True
        parameters.nthread = torch.get_num_threads()
        llama_cpp.llama_backend_init()
        if llama_cpp.llama_model_quantize(str(gguf).encode(), str(file).encode(), parameters):
            raise PeerAbsent(f"llama.cpp cannot requantise {gguf} to {_FILE_TYPES[precision]}")
        loading = llama_cpp.llama_model_default_params()
        loading.n_gpu_layers = 0
        self._model: Any = llama_cpp.llama_model_load_from_file(str(file).encode(), loading)
        if not self._model:
            raise PeerAbsent(f"llama.cpp cannot load {gguf}")
        self._context: tuple[int, Any] | None = None

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        return [[{"ubatch": size} for size in (128, 256, 512, 1024, 2048)]]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        context = self._context_for(setting["ubatch"])
        account = Account()
        margins = [
            np.concatenate(
                [
                    self._round(context, task.query, task.items[start : start + _SEQUENCES - 1], account)
                    for start in range(0, len(task.items), _SEQUENCES - 1)
                ]
            )
            for task in tasks
        ]
        return Scored(margins, account=account)

    def _context_for(self, ubatch: int) -> Any:
        if self._context is None or self._context[0] != ubatch:
            if self._context is not None:
                llama_cpp.llama_free(self._context[1])
            parameters = llama_cpp.llama_context_default_params()
            parameters.n_ctx = parameters.n_batch = _TOKENS
            parameters.n_ubatch = ubatch
            parameters.n_seq_max = _SEQUENCES
            parameters.kv_unified = True
            parameters.n_threads = parameters.n_threads_batch = torch.get_num_threads()
            self._context = ubatch, llama_cpp.llama_init_from_model(self._model, parameters)
        return self._context[1]

    def _round(self, context: Any, query: list[int], items: list[list[int]], account: Account) -> np.ndarray:
        memory = llama_cpp.llama_get_memory(context)
        llama_cpp.llama_memory_clear(memory, True)
        self._decode(context, [(0, 0, query)], account)
        for sequence in range(1, len(items) + 1):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        blocks = [(sequence, len(query), item) for sequence, item in enumerate(items, start=1)]
        ends = self._decode(context, blocks, account)
        yes, no = self._answer_ids
        rows = [llama_cpp.llama_get_logits_ith(context, end) for end in ends]
        return np.array([row[yes] - row[no] for row in rows], dtype=np.float32)

    def _decode(self, context: Any, blocks: list[tuple[int, int, list[int]]], account: Account) -> list[int]:
        """Run (sequence, first position, ids) blocks in one batch; the index of each block's last token."""
        batch = llama_cpp.llama_batch_init(sum(len(ids) for _, _, ids in blocks), 0, 1)
        ends, place = [], 0
        for sequence, first, ids in blocks:
            for offset, token in enumerate(ids):
                batch.token[place], batch.pos[place] = token, first + offset
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
                batch.logits[place] = offset == len(ids) - 1
                place += 1
            ends.append(place - 1)
        batch.n_tokens = place
        code = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {place} tokens")
        account.prefill_tokens += place
        account.forwards += 1
        return ends
