"""Counters and gauges for Prometheus. Counted as plain numbers where things happen, rendered when asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Metrics:
    """Collects when scraped. The Prometheus library is loaded then, too: a start need not wait for it."""

    def __init__(
        self, streams: Mapping[tuple[str, int], int], store: Callable[[], dict[str, int]], open_tails: Callable[[], int]
    ) -> None:
        self._streams = streams
        self._store = store
        self._open_tails = open_tails
        self._rest: Counter[tuple[str, int]] = Counter()
        self._boxes: Mapping[str, int] = {}

    def count(self, method: str, status: int) -> None:
        self._rest[method, status] += 1

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily(
            "holdfast_requests", "Requests answered.", labels=("surface", "method", "status")
        )
        for surface, counted in (("stream", self._streams), ("rest", self._rest)):
            for (method, status), number in list(counted.items()):
                requests.add_metric((surface, method, str(status)), number)
        yield requests
        boxes = GaugeMetricFamily("holdfast_boxes", "Boxes that are there, by state.", labels=("state",))
        for state, number in self._boxes.items():
            boxes.add_metric((state,), number)
        yield boxes
        yield GaugeMetricFamily("holdfast_open_tails", "Event streams being followed.", value=self._open_tails())
        for name, number in self._store().items():
            yield CounterMetricFamily(f"holdfast_store_{name}", f"Of the stream store: {name}.", value=number)

    def render(self, boxes: Mapping[str, int]) -> tuple[bytes, str]:
        """The exposition and its content type. `boxes` is how many there are in each state."""
        self._boxes = boxes
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.process_collector import ProcessCollector

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST
