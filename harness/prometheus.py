"""Kafka's metrics over HTTP, for Prometheus to scrape.

`kafka.controller:type=KafkaController,name=ActiveControllerCount` becomes
`kafka_controller_kafkacontroller_activecontrollercount`: the naming of the JMX exporter's rules for Kafka, so that
existing dashboards and alerts work. Meters are counters; histograms and timers are summaries, in ms.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from kce.harness.world import World
from kce.metrics import Gauge, Histogram, Meter, Metric, MetricName

log = logging.getLogger(__name__)

Source = Callable[[], Iterable[tuple[MetricName, Metric]]]

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)

#: a request for metrics is a few lines
MAX_REQUEST_BYTES = 16_384
REQUEST_TIMEOUT_SECONDS = 10.0
BACKLOG = 50
ACCEPT_RETRY_SECONDS = 0.1


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

    async def handle(stream: trio.abc.Stream) -> None:
        try:
            async with stream:
                with trio.move_on_after(REQUEST_TIMEOUT_SECONDS):
                    await _answer(stream, source)
        except trio.BrokenResourceError:
            pass
        except Exception:
            log.exception("a request for metrics failed")

    listener = await world.bind("127.0.0.1", port)
    try:
        listener.listen(BACKLOG)
        task_status.started(listener.address[1])
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    accepted = await listener.accept()
                except OSError as e:
                    log.warning("a request for metrics cannot be accepted: %s", e)
                    await trio.sleep(ACCEPT_RETRY_SECONDS)
                else:
                    nursery.start_soon(handle, accepted.stream)
    finally:
        listener.close()


async def _answer(stream: trio.abc.Stream, source: Source) -> None:
    """One request, one answer, and the connection is closed."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > MAX_REQUEST_BYTES or not (more := await stream.receive_some(4096)):
            return
        head += more
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"GET /metrics\n"
    elif path not in (b"/metrics", b"/"):
        status, body = "404 Not Found", b"GET /metrics\n"
    else:
        status, body = "200 OK", exposition(source)
    kind = CONTENT_TYPE_LATEST if status.startswith("200") else "text/plain"
    headers = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    await stream.send_all(headers.encode() + (b"" if method == b"HEAD" else body))
