"""Counters and gauges for Prometheus. Counted as plain numbers where things happen, rendered when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

_CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Metrics(Collector):
    content_type = _CONTENT_TYPE

    def __init__(
        self, streams: Mapping[tuple[str, int], int], store: Callable[[], dict[str, int]], open_tails: Callable[[], int]
    ) -> None:
        self._streams = streams
        self._store = store
        self._open_tails = open_tails
        self._rest: Counter[tuple[str, int]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count(self, method: str, status: int) -> None:
        self._rest[method, status] += 1

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "holdfast_requests", "Requests answered.", labels=("surface", "method", "status")
        )
        for surface, counted in (("stream", self._streams), ("rest", self._rest)):
            for (method, status), number in list(counted.items()):
                requests.add_metric((surface, method, str(status)), number)
        yield requests
        yield GaugeMetricFamily("holdfast_open_tails", "Event streams being followed.", value=self._open_tails())
        for name, number in self._store().items():
            yield CounterMetricFamily(f"holdfast_store_{name}", f"Of the stream store: {name}.", value=number)

    def render(self) -> bytes:
        return generate_latest(self._registry)
