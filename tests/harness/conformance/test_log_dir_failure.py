"""LDF: log directories that fail (section 14 of docs/controller-semantics.md; rules 9.68, B3.20).

Brokers 1 and 2 have three log directories each and both replicas of twelve partitions; node 3 is the controller.

Covers: harness/node_logs.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kce.broker_stub.errors import KafkaStorageError
from kce.controller.states import ReplicaState
from kce.harness import HarnessError
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, PartitionReplica
from tests.harness.conformance.records import T0, TOPIC, Clients, clients

kafka = pytest.mark.kafka
DIRS = ["/one", "/two", "/three"]
PROPERTIES = {
    "log.dirs": ",".join(DIRS),
    "replica.high.watermark.checkpoint.interval.ms": "60000",
    "controlled.shutdown.enable": "false",
}
LEADERS = {number: (1, 2) if number % 2 == 0 else (2, 1) for number in range(12)}


@asynccontextmanager
async def cluster() -> AsyncIterator[Clients]:
    async with clients(2, controllers=1, properties=PROPERTIES) as c:
        await c.create(LEADERS)
        yield c


def break_folder(c: Clients, monkeypatch: pytest.MonkeyPatch, node_id: int, folder: str) -> None:
    disk = c.world.disks[f"node-{node_id}"]

    def before(path: str, size: int) -> None:
        if path.startswith(f"{folder}/"):
            raise OSError(f"{folder} is broken")

    monkeypatch.setattr(disk, "before", before)


async def fail(c: Clients, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The log directory of t-0 at its leader fails, and the node notices it."""
    node, log = c.node(1), c.log(1)
    folder = log.folder.rpartition("/")[0]
    assert folder in DIRS
    break_folder(c, monkeypatch, 1, folder)
    assert node.logs is not None
    if how == "roll":
        with pytest.raises(KafkaStorageError):
            log.roll()
    else:
        await node.logs.checkpoint_high_watermarks()
    assert [directory.path for directory in node.logs.directories if directory.is_offline] == [folder]
    assert not node.logs.has_log(T0)


@pytest.mark.parametrize(
    "how", [pytest.param("roll", marks=kafka("LDF-1")), pytest.param("checkpoint", marks=kafka("LDF-5"))]
)
async def test_a_producer_learns_of_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c:
        assert await c.produce(1, b"before") == ErrorCode.NONE
        await fail(c, monkeypatch, how)
        assert await c.produce(1, b"value") == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    "how", [pytest.param("roll", marks=kafka("LDF-3")), pytest.param("checkpoint", marks=kafka("LDF-6"))]
)
async def test_leadership_moves(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c:
        assert await c.produce(1, b"before") == ErrorCode.NONE
        assert await c.consume(1) == (ErrorCode.NONE, [b"before"])
        await fail(c, monkeypatch, how)
        await c.wait_for_leader(2)
        assert await c.produce(2, b"after") == ErrorCode.NONE
        assert await c.consume(2) == (ErrorCode.NONE, [b"before", b"after"])

        async def has_no_notifications() -> bool:
            return await c.cluster.zk.get_children(znodes.LOG_DIR_EVENT_NOTIFICATION) == []

        await c.cluster.wait_until(has_no_notifications, "the notification to be deleted")
        context = c.node(3).controller.context
        offline = context.replicas_in_state(TOPIC, ReplicaState.OFFLINE)
        assert PartitionReplica(T0, BrokerId(1)) in offline


@kafka("LDF-4")
async def test_an_old_protocol_cannot_say_so() -> None:
    """The folder of the node's first log directory is broken at its start."""
    async with clients(1, properties={"inter.broker.protocol.version": "0.11.0", "log.dirs": ",".join(DIRS)}) as c:
        await c.cluster.stop(1)
        with pytest.MonkeyPatch.context() as monkeypatch:
            break_folder(c, monkeypatch, 1, DIRS[0])
            with pytest.raises(HarnessError, match=r"log directory /one has failed, and 1\.0-IV0 is needed"):
                await c.cluster.start(1)
        await c.cluster.start(1)


async def test_a_node_starts_without_a_broken_log_directory(monkeypatch: pytest.MonkeyPatch) -> None:  # rule B11.9
    async with clients(1, properties=PROPERTIES) as c:
        await c.cluster.stop(1)
        break_folder(c, monkeypatch, 1, DIRS[0])
        await c.cluster.start(1)
        await c.create({0: [1], 1: [1], 2: [1]})
        logs = c.node(1).logs
        assert logs is not None
        assert {log.folder.rpartition("/")[0] for log in logs.logs.values()} == {*DIRS[1:]}


@kafka("LDF-7")
async def test_the_other_partitions_are_fetched() -> None:
    async with cluster() as c:
        c.node(2).broker.replica_manager.mark_offline(T0)
        another = next(number for number in range(1, 12) if LEADERS[number][0] == 1)
        assert await c.produce(1, b"message", partition=another) == ErrorCode.NONE
        partition = c.node(1).broker.replica_manager.partitions[TopicPartition(TOPIC, another)]
        assert partition.isr == (1, 2)
        fetchers = c.node(2).broker.replication.fetchers._fetchers.values()
        assert fetchers
        assert not any(fetcher.scope.cancel_called for fetcher in fetchers)
