"""Counters and gauges for Prometheus, kept as plain numbers and rendered on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from holdfast.boxes.service.pool import PoolStatistics
    from holdfast.server.telemetry.box_metrics import Usages

_GAUGES: Final = {
    "memory": ("memory_bytes", "Memory that a box uses."),
    "disk": ("disk_bytes", "What a box has on disk."),
    "processes": ("processes", "Processes in a box."),
    "connections": ("connections", "Open execs, channels and streams."),
    "listening": ("listening_ports", "Ports that something in a box listens on."),
    "outgoing": ("outgoing_connections", "Connections to the network that a box has open."),
}
_COUNTERS: Final = {
    "cpu_seconds": ("cpu_seconds", "Processor time of a box."),
    "sent": ("network_sent_bytes", "Bytes from a box to the network."),
    "received": ("network_received_bytes", "Bytes from the network to a box."),
    "out_of_memory": ("out_of_memory", "How often a box ran out of memory."),
}


class Metrics:
    """Collects metrics when scraped. Loads the Prometheus library only then, so that the start does not wait."""

    def __init__(
        self, streams: Mapping[tuple[str, int], int], store: Callable[[], dict[str, int]], open_tails: Callable[[], int]
    ) -> None:
        self._streams = streams
        self._store = store
        self._open_tails = open_tails
        self._rest: Counter[tuple[str, int]] = Counter()
        self._boxes: Mapping[str, int] = {}
        self._usages: Usages | None = None
        self._pool: PoolStatistics | None = None

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
        boxes = GaugeMetricFamily("holdfast_boxes", "Boxes by state.", labels=("state",))
        for state, number in self._boxes.items():
            boxes.add_metric((state,), number)
        yield boxes
        if self._usages is not None:
            yield from _of_each_box(self._usages)
        if self._pool is not None:
            yield from _of_the_pool(self._pool)
        yield GaugeMetricFamily("holdfast_open_tails", "Event streams being followed.", value=self._open_tails())
        for name, number in self._store().items():
            yield CounterMetricFamily(f"holdfast_store_{name}", f"Of the stream store: {name}.", value=number)

    def render(
        self, boxes: Mapping[str, int], usages: Usages | None = None, pool: PoolStatistics | None = None
    ) -> tuple[bytes, str]:
        """Return the exposition and its content type. `boxes` has the number of boxes in each state."""
        self._boxes = boxes
        self._usages = usages
        self._pool = pool
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.process_collector import ProcessCollector

        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry), CONTENT_TYPE_LATEST


def _of_the_pool(pool: PoolStatistics) -> Iterable[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily("holdfast_pool_boxes", "Boxes of the pool that are ready.", value=pool.size)
    yield GaugeMetricFamily("holdfast_pool_wanted", "Boxes that the pool should have, by demand.", value=pool.wanted)
    taken = CounterMetricFamily(
        "holdfast_pool_takes", "New boxes that could be pooled, by outcome.", labels=("outcome",)
    )
    taken.add_metric(("hit",), pool.hits)
    taken.add_metric(("miss",), pool.misses)
    yield taken
    yield CounterMetricFamily("holdfast_pool_made", "Boxes that were made for the pool.", value=pool.made)
    yield CounterMetricFamily("holdfast_pool_drained", "Boxes of the pool removed unused.", value=pool.drained)


def _of_each_box(usages: Usages) -> Iterable[Metric]:
    """A series for each box and resource. A resource without a measurement has none."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for kind, families in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for field, (name, help) in families.items():
            family = kind(f"holdfast_box_{name}", help, labels=("box", "provider"))
            for usage in usages.usages:
                value = None if usage.metrics is None else getattr(usage.metrics, field)
                if value is not None:
                    family.add_metric((usage.row.id, usage.row.provider), value)
            yield family
    yield GaugeMetricFamily(
        "holdfast_boxes_left_out",
        "Boxes without series of their own, because there are too many.",
        value=usages.left_out,
    )
