"""The machine's ceiling: the best rate of the very matrix products a model is made of, over the layouts tried.

`gemm_share` is what remains of it in a whole call: operations of the linear layers, over the call's wall time, over
the best rate found for those shapes. Knows nothing of attention, items or methods.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.functional import linear

from semlabel.linear_layers import packed_product, packed_weight

_LEAST_ROWS, _MOST_ROWS = 64, 8192
_RUNS = 3


def linear_shapes(model: torch.nn.Module) -> Counter[tuple[int, int]]:
    """How many linear layers of each (in, out) a model has, its embeddings and its head left out."""
    from transformers.pytorch_utils import Conv1D

    base: Any = getattr(model, "base_model", model)
    shapes: Counter[tuple[int, int]] = Counter()
    for module in base.modules():
        if isinstance(module, torch.nn.Linear):
            shapes[module.in_features, module.out_features] += 1
        elif isinstance(module, Conv1D):
            shapes[module.weight.shape[0], module.weight.shape[1]] += 1
    return shapes


def rungs_up_to(tokens: int) -> list[int]:
    """Row counts to measure: powers of two from 64 until `tokens` fit, at most 8,192 (rates have levelled by then)."""
    rungs = [_LEAST_ROWS]
    while rungs[-1] < min(tokens, _MOST_ROWS):
        rungs.append(rungs[-1] * 2)
    return rungs


class Ceiling:
    """Best rates found so far for the linear layers of one model in one precision; measuring again can only raise them.

    `operations_per_token` counts a multiply-add as two.
    """

    def __init__(self, shapes: Counter[tuple[int, int]], dtype: torch.dtype, device: str = "cpu") -> None:
        self._shapes, self._dtype, self._device = shapes, dtype, device
        self.operations_per_token = 2 * sum(inner * outer * count for (inner, outer), count in shapes.items())
        self._seconds: dict[tuple[int, tuple[int, int]], tuple[float, str]] = {}

    def measure(self, rungs: Iterable[int]) -> None:
        """Time every shape at every number of rows in every layout, and keep what is faster than before."""
        with torch.inference_mode():
            for rows in rungs:
                for shape in self._shapes:
                    for layout, product in _products(rows, *shape, self._dtype, self._device).items():
                        seconds = self._best_time(product)
                        known = self._seconds.get((rows, shape))
                        if known is None or seconds < known[0]:
                            self._seconds[rows, shape] = (seconds, layout)

    def _best_time(self, product: Callable[[], object]) -> float:
        product()
        times = []
        for _ in range(_RUNS):
            start = self._now()
            product()
            times.append(self._now() - start)
        return min(times)

    def _now(self) -> float:
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    def rate(self, rows: int) -> float:
        """Operations per second of all linear layers at a number of rows that was measured."""
        seconds = sum(self._seconds[rows, shape][0] * count for shape, count in self._shapes.items())
        return self.operations_per_token * rows / seconds

    def best(self, tokens: int) -> float:
        """The best rate of any rung up to the first that `tokens` fit in: what one product over all could have had."""
        measured = sorted({rows for rows, _ in self._seconds})
        enough = [rows for rows in measured if rows >= tokens]
        return max(self.rate(rows) for rows in measured if not enough or rows <= enough[0])

    def share(self, tokens: int, seconds: float) -> float:
        """`gemm_share` of a call that took `tokens` tokens through the linear layers in `seconds`."""
        return self.operations_per_token * tokens / seconds / self.best(tokens)

    def to_json(self) -> list[dict[str, Any]]:
        """One record for every shape and number of rows: layers, rate, the layout that was best."""
        return [
            {
                "rows": rows,
                "in": inner,
                "out": outer,
                "layers": self._shapes[inner, outer],
                "gflops": 2 * rows * inner * outer / seconds / 1e9,
                "layout": layout,
            }
            for (rows, (inner, outer)), (seconds, layout) in sorted(self._seconds.items())
        ]


def _products(rows: int, inner: int, outer: int, dtype: torch.dtype, device: str) -> dict[str, Callable[[], object]]:
    """The same product in the layouts a library could choose from."""
    states = torch.randn(rows, inner, dtype=dtype, device=device)
    weight = torch.randn(outer, inner, dtype=dtype, device=device)
    turned_weight, turned_states = weight.T.contiguous(), states.T.contiguous()
    products: dict[str, Callable[[], object]] = {
        "states @ weight.T": lambda: linear(states, weight),
        "states @ turned weight": lambda: states @ turned_weight,
        "weight @ states.T": lambda: weight @ states.T,
        "weight @ turned states": lambda: weight @ turned_states,
    }
    if (packed := packed_weight(weight, rows)) is not None:
        products["packed weight"] = lambda: packed_product(states, packed)
    return products
