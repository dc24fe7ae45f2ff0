"""OpenVINO: the whole graph converted, the packed sequence under an explicit mask, precision by its own hint.

Searched: items per round, because the mask grows with the square of a round, and queries side by side in streams of
OpenVINO's own. Imports `openvino`, so import it only where that is installed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import openvino
import torch

from semlabel.bench.methods import Account, Scored, Setting, in_lanes
from semlabel.bench.peers import PeerAbsent
from semlabel.bench.tasks import Task
from semlabel.models import load_model
from semlabel.packing import pack

_HINTS = {"fp32": "f32", "bf16": "bf16"}


class OpenVino:
    """One model as a compiled graph."""

    name = "openvino"
    has_lanes = True
    sets_up = True  # kernels for the shapes

    def __init__(self, path: str, precision: str, answer_ids: tuple[int, int]) -> None:
        if precision not in _HINTS:
            raise PeerAbsent(f"the converted graph has no {precision}")
        self._hint = _HINTS[precision]
        graph = _TwoRows(path, answer_ids).eval()
        with torch.no_grad():
            self._converted = openvino.convert_model(graph, example_input=_inputs([1, 2, 3], [[4, 5], [6]]))
        # Compiled now, so that no timed call has to wait for it.
        threads = torch.get_num_threads()
        self._graphs: dict[int, Any] = {streams: self._compiled(streams) for streams in {1, threads}}
        taken = self._graphs[1].get_property("INFERENCE_PRECISION_HINT")
        self.engine = f"{openvino.get_version()}; asked for {self._hint}, computes in {taken.to_string()}"

    def ladders(self, tasks: Sequence[Task]) -> list[list[Setting]]:
        items = max(len(task.items) for task in tasks)
        sizes = [size for size in (25, 50, 100, 200) if size < items]
        return [[{"items_per_round": size} for size in [*sizes, min(items, 400)]]]

    def run(self, tasks: Sequence[Task], setting: Setting) -> Scored:
        lanes = min(setting.get("lanes", 1), len(tasks))
        if lanes not in self._graphs:
            self._graphs[lanes] = self._compiled(lanes)
        run = partial(self._tasks, graph=self._graphs[lanes], size=setting["items_per_round"])
        return in_lanes(run, tasks, lanes)

    def _compiled(self, streams: int) -> Any:
        """The graph for so many requests at once, which share the threads between them."""
        return openvino.Core().compile_model(
            self._converted,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": self._hint,
                "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
                "NUM_STREAMS": streams,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            },
        )

    def _tasks(self, tasks: Sequence[Task], graph: Any, size: int) -> Scored:
        request = graph.create_infer_request()
        account = Account()
        margins = []
        for task in tasks:
            parts = []
            for start in range(0, len(task.items), size):
                items = task.items[start : start + size]
                request.infer([part.numpy() for part in _inputs(task.query, items)])
                logits = request.get_output_tensor().data
                parts.append((logits[:, 0] - logits[:, 1]).astype(np.float32))
                account.prefill_tokens += len(task.query) + sum(map(len, items))
                account.forwards += 1
            margins.append(np.concatenate(parts))
        return Scored(margins, account=account)


class _TwoRows(torch.nn.Module):
    """The model up to the two rows of its head that a margin needs."""

    def __init__(self, path: str, answer_ids: tuple[int, int]) -> None:
        super().__init__()
        model = load_model(path, "fp32", "cpu")
        head: Any = model.get_output_embeddings()
        self.body: Any = model.base_model
        self.rows = torch.nn.Parameter(head.weight[list(answer_ids)].detach().clone())

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, bias: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        """Logits (items, 2) of yes and no."""
        hidden = self.body(
            input_ids=ids, position_ids=positions, attention_mask=bias, use_cache=False
        ).last_hidden_state
        logits: torch.Tensor = hidden[0].index_select(0, last) @ self.rows.T
        return logits


def _inputs(query: list[int], items: list[list[int]]) -> tuple[torch.Tensor, ...]:
    packed = pack(query, items)
    layout = packed.layout
    # A large number, not infinity: the bf16 graph must not meet the difference of two infinities.
    bias = torch.where(layout.mask(), 0.0, -1e9)[None, None]
    return packed.input_ids, layout.positions, bias, layout.last
