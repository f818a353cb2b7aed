"""Kafka's metrics over HTTP, for Prometheus to scrape.

`kafka.controller:type=KafkaController,name=ActiveControllerCount` becomes
`kafka_controller_kafkacontroller_activecontrollercount`: the naming of the JMX exporter's rules for Kafka, so that
existing dashboards and alerts work. Meters are counters; histograms and timers are summaries, in ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kce.harness import http_server
from kce.harness.http_server import HttpRequest, HttpResponse
from kce.harness.world import World
from kce.metrics import Gauge, Histogram, Meter, Metric, MetricName

Source = Callable[[], Iterable[tuple[MetricName, Metric]]]

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


def families(metrics: Iterable[tuple[MetricName, Metric]]) -> list[Family]:
    """One family for each name, whatever its tags."""
    found: dict[str, Family] = {}
    for name, metric in metrics:
        labels = {_identifier(key): value for key, value in name.tags}
        kind = "gauge" if isinstance(metric, Gauge) else "counter" if isinstance(metric, Meter) else "summary"
        title = name.name.removesuffix("PerSec") if isinstance(metric, Meter) else name.name
        full = _identifier(f"{name.group}_{name.type}_{title}").lower()
        family = found.get(full)
        if family is None:
            family = found[full] = Family(full, str(name._replace(tags=())), kind)
        match metric:
            case Gauge():
                family.add_sample(full, labels, metric.read())
            case Meter():
                family.add_sample(f"{full}_total", labels, metric.read())
            case Histogram():
                for q in QUANTILES:
                    family.add_sample(full, {**labels, "quantile": str(q)}, metric.quantile(q))
                family.add_sample(f"{full}_count", labels, metric.count)
                family.add_sample(f"{full}_sum", labels, metric.sum)
    return list(found.values())


def _identifier(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", text)


class _Collector(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Family]:
        return families(self._source())


def exposition(source: Source) -> bytes:
    """All metrics of ``source`` in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(source))
    return generate_latest(registry)


async def serve(
    source: Source, world: World, port: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer GET /metrics on 127.0.0.1 until cancelled; port 0 is an ephemeral one. Starts with the port.

    Raises OSError for a port that is taken.
    """

    async def answer(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, "text/plain", b"GET /metrics\n")
        if request.path not in ("/metrics", "/"):
            return HttpResponse(404, "text/plain", b"GET /metrics\n")
        return HttpResponse(200, CONTENT_TYPE_LATEST, exposition(source))

    await http_server.serve(answer, world, port, task_status)
