"""Metrics for Prometheus: Kafka's names, over HTTP on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from kce.harness import prometheus
from kce.harness.errors import HarnessError
from kce.harness.node import Node
from kce.harness.world import RealWorld
from kce.metrics import Gauge, Histogram, Meter, Metric, MetricName, Timer
from kce.zookeeper.store.memory import MemoryZooKeeper
from kce.zookeeper.store.metered import MeteredStore

SIZE = MetricName("kafka.controller", "ControllerChannelManager", "QueueSize", (("broker-id", "3"),))


def source() -> Iterator[tuple[MetricName, Metric]]:
    yield MetricName("kafka.controller", "KafkaController", "ActiveControllerCount"), Gauge(lambda: 1)
    yield SIZE, Gauge(lambda: 4)
    yield SIZE._replace(tags=(("broker-id", "5"),)), Gauge(lambda: 0)
    yield MetricName("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec"), Meter(lambda: 7)
    timer = Timer()
    for value in (10, 20, 30):
        timer.update(value)
    yield MetricName("kafka.controller", "ControllerStats", "LeaderElectionRateAndTimeMs"), timer


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, labels in short) -> value."""
    return {
        (s.name, ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_names_and_kinds() -> None:
    text = prometheus.exposition(source).decode()
    shown = samples(text)
    assert shown["kafka_controller_kafkacontroller_activecontrollercount", ""] == 1
    assert shown["kafka_controller_controllerchannelmanager_queuesize", "broker_id=3"] == 4
    assert shown["kafka_controller_controllerchannelmanager_queuesize", "broker_id=5"] == 0
    assert shown["kafka_controller_controllerstats_uncleanleaderelections_total", ""] == 7
    timer = "kafka_controller_controllerstats_leaderelectionrateandtimems"
    assert shown[timer, "quantile=0.5"] == 20
    assert (shown[f"{timer}_count", ""], shown[f"{timer}_sum", ""]) == (3, 60)
    assert "# TYPE kafka_controller_controllerstats_leaderelectionrateandtimems summary" in text
    assert "kafka.controller:type=KafkaController,name=ActiveControllerCount" in text


async def http(port: int, request: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        answer = b""
        with contextlib.suppress(trio.BrokenResourceError):  # closed before it had read all
            await stream.send_all(request)
            while more := await stream.receive_some():
                answer += more
        return answer


async def test_over_http() -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(prometheus.serve, source, RealWorld(), 0)
        head, _, body = (await http(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).partition(
            b"\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body == prometheus.exposition(source)
        assert (await http(port, b"HEAD / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await http(port, b"GET /metrics?name=x HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        assert (await http(port, b"GET /secret HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await http(port, b"POST /metrics HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 405")
        with pytest.raises(OSError, match="in use"):
            await prometheus.serve(source, RealWorld(), port)
        nursery.cancel_scope.cancel()


async def test_a_source_that_fails_costs_one_answer() -> None:
    fails = [True]

    def sometimes() -> Iterator[tuple[MetricName, Metric]]:
        if fails.pop():
            raise ZeroDivisionError
        return source()

    async with trio.open_nursery() as nursery:
        port = await nursery.start(prometheus.serve, sometimes, RealWorld(), 0)
        assert b" 500 " in await http(port, b"GET / HTTP/1.0\r\n\r\n")
        fails.append(False)
        assert b"200 OK" in await http(port, b"GET / HTTP/1.0\r\n\r\n")
        nursery.cancel_scope.cancel()


async def test_latency_of_the_store() -> None:  # rule 12.8
    latency = Histogram()
    store = MeteredStore(MemoryZooKeeper().connect(), latency.update)
    seen: list[object] = []
    store.on_watch = seen.append
    await store.exists(["/a"], watch=True)
    await store.write([])
    assert latency.count == 2
    assert (store.session_id, store.on_watch) == (store._store.session_id, seen.append)


@pytest.mark.parametrize("port", ["x", "-1", "65536"])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(HarnessError, match=f"kce.metrics.port={port}: must be a whole number from 0 to 65535"):
        Node({"broker.id": "1", "kce.metrics.port": port})
