"""What Prometheus reads: requests, items and seconds of every front, the engine's queue, which labeler answers.

Several fronts of one server add up through `prometheus_client`'s shared files (`PROMETHEUS_MULTIPROC_DIR`). No label
holds anything a client sent.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one front."""

    def __init__(self) -> None:
        self._own = CollectorRegistry()
        self.requests = Counter(
            "semlabel_requests", "Requests by call and outcome.", ["call", "status"], registry=self._own
        )
        self.items = Counter("semlabel_items", "Items scored.", ["call"], registry=self._own)
        self.seconds = Histogram(
            "semlabel_request_seconds", "Seconds of a request.", ["call"], buckets=_SECONDS, registry=self._own
        )
        self.waiting = Gauge(
            "semlabel_engine_waiting", "Requests in the engine.", registry=self._own, multiprocess_mode="livemax"
        )
        self.ready = Gauge(
            "semlabel_ready", "1 while this server answers.", registry=self._own, multiprocess_mode="livemin"
        )

    def observe(self, call: str, status: str, seconds: float, items: int) -> None:
        """One finished request."""
        self.requests.labels(call, status).inc()
        self.seconds.labels(call).observe(seconds)
        if items:
            self.items.labels(call).inc(items)

    def gauge(self, waiting: int, ready: bool) -> None:
        """What this front sees now. The gauges of a front that died count no more."""
        self.waiting.set(waiting)
        self.ready.set(ready)

    def render(self) -> bytes:
        """The text Prometheus reads, of all fronts where there are several."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._own)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)
