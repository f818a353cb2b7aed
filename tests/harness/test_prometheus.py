"""What Prometheus is shown: Kafka's names, over HTTP on the loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from broker_stub import Broker, TopicPartition
from controller.metrics import Gauge, Histogram, Meter, Metric, MetricName, Timer
from controller.store.memory import MemoryZooKeeper
from controller.store.metered import MeteredStore
from harness import prometheus
from harness.broker_metrics import broker_metrics
from harness.errors import HarnessError
from harness.node import Node
from tests.broker_stub.support import config, lai_state, leader_and_isr, no_dial, update_metadata

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


async def ask(port: int, request: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        answer = b""
        with contextlib.suppress(trio.BrokenResourceError):  # closed before it had read all
            await stream.send_all(request)
            while more := await stream.receive_some():
                answer += more
        return answer


async def test_over_http() -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(prometheus.serve, source, 0)
        head, _, body = (await ask(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        assert f"Content-Length: {len(body)}".encode() in head
        assert body == prometheus.exposition(source)
        assert (await ask(port, b"HEAD / HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
        assert (await ask(port, b"GET /metrics?name=x HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await ask(port, b"GET /secret HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await ask(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await ask(port, b"x" * 30_000) == b""
        with pytest.raises(OSError, match="in use"):
            await prometheus.serve(source, port)
        nursery.cancel_scope.cancel()


async def test_a_source_that_fails_costs_one_answer() -> None:
    fails = [True]

    def sometimes() -> Iterator[tuple[MetricName, Metric]]:
        if fails.pop():
            raise ZeroDivisionError
        return source()

    async with trio.open_nursery() as nursery:
        port = await nursery.start(prometheus.serve, sometimes, 0)
        assert await ask(port, b"GET / HTTP/1.1\r\n\r\n") == b""
        fails.append(False)
        assert b"200 OK" in await ask(port, b"GET / HTTP/1.1\r\n\r\n")
        nursery.cancel_scope.cancel()


def test_a_brokers_own() -> None:  # rules 12.9-12.12
    broker = Broker(config(), dial=no_dial, cluster_id="cluster")

    def shown() -> dict[tuple[str, str], float]:
        return samples(prometheus.exposition(lambda: broker_metrics(broker, 2)).decode())

    assert shown()["kafka_server_metadataloader_currentcontrollerid", ""] == -1
    manager = broker.replica_manager
    manager.maybe_update_metadata_cache(update_metadata(alive=(1, 2)), 1)
    states = (
        lai_state(0, isr=(1, 2)),
        lai_state(1, isr=(1, 2), replicas=(3, 1, 2), adding_replicas=(3,)),
        lai_state(2, isr=(1,)),
        lai_state(3, leader=2),
    )
    manager.become_leader_or_follower(leader_and_isr(*states), 2)
    manager.offline_partitions.add(TopicPartition("a", 9))
    found = shown()
    replica_manager = {
        name.rpartition("_")[2]: value for (name, _), value in found.items() if name.startswith("kafka_server_replicam")
    }
    assert replica_manager == {
        "leadercount": 3,
        "partitioncount": 4,
        "offlinereplicacount": 1,
        "underreplicatedpartitions": 2,
        "underminisrpartitioncount": 1,
        "atminisrpartitioncount": 2,
        "reassigningpartitions": 1,
        "total": 0,
    }
    assert found["kafka_server_metadataloader_currentcontrollerid", ""] == 9
    assert found["kafka_cluster_partition_insyncreplicascount", "partition=2,topic=a"] == 1
    assert found["kafka_cluster_partition_underminisr", "partition=2,topic=a"] == 1
    assert found["kafka_cluster_partition_replicascount", "partition=3,topic=a"] == 0  # a follower's
    assert found["kafka_network_requestchannel_controlplanerequestqueuesize", ""] == 0


async def test_latency_of_the_store() -> None:  # rule 12.8
    store = MeteredStore(MemoryZooKeeper().connect())
    seen: list[object] = []
    store.on_watch = seen.append
    await store.exists(["/a"], watch=True)
    await store.write([])
    assert store.latency.count == 2
    assert isinstance(store.latency, Histogram)
    assert (store.session_id, store.on_watch) == (store._store.session_id, seen.append)


@pytest.mark.parametrize("port", ["x", "-1", "65536"])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(HarnessError, match=f"kce.metrics.port={port} is no port"):
        Node({"broker.id": "1", "kce.metrics.port": port})
