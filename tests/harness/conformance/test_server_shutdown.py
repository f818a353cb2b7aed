"""SHD: the end of a node (section 14 of docs/controller-semantics.md; rules 11.48, 11.49, B11.18)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.log.checkpoints import read_offsets
from kce.harness import HarnessError
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.node import Node
from kce.wire import ErrorCode
from tests.controller.support import texts, world
from tests.harness.conformance.records import T0, clients
from tests.harness.conformance.test_server_startup import properties

kafka = pytest.mark.kafka
#: a controlled shutdown is tried again after 0.1 s
SOON = {"controlled_shutdown_retry_backoff_ms": "100"}


@kafka("SHD-1")
async def test_records_outlive_a_shutdown() -> None:  # rules B6.9, B11.15
    async with clients(1) as c:
        await c.create({0: [1]})
        for sent in (b"hello", b"there"):
            assert await c.produce(1, sent) == ErrorCode.NONE
        await c.cluster.stop(1)
        disk = c.world.disks["node-1"]
        assert read_offsets(disk, "/logs-1/recovery-point-offset-checkpoint") == {T0: 2}
        assert disk.exists("/logs-1/.kafka_cleanshutdown")
        await c.cluster.start(1)
        await c.wait_for_leader(1)
        assert await c.consume(1) == (ErrorCode.NONE, [b"hello", b"there"])
        for sent in (b"more", b"messages"):
            assert await c.produce(1, sent) == ErrorCode.NONE
        assert await c.consume(1) == (ErrorCode.NONE, [b"hello", b"there", b"more", b"messages"])


@kafka("SHD-3")
@pytest.mark.parametrize("seed", range(5))
async def test_damaged_logs_end_the_start(seed: int) -> None:  # rules B6.6, B11.10
    """Every file of the log has nonsense at its end: the log directory is offline, and none is left."""
    random = Random(seed)
    async with clients(1) as c:
        await c.create({0: [1]})
        assert await c.produce(1, b"hello") == ErrorCode.NONE
        await c.cluster.stop(1)
        disk = c.world.disks["node-1"]
        names = disk.files("/logs-1/t-0")
        assert {"leader-epoch-checkpoint", "partition.metadata"} <= {*names}
        for name in names:
            file = disk.open(f"/logs-1/t-0/{name}")
            file.append(random.randbytes(random.randint(1, 1024)))
            file.close()
        with pytest.raises(HarnessError, match="no log directory can be used: /logs-1"):
            await c.cluster.start(1)
        assert not disk.exists("/logs-1/.kafka_cleanshutdown")


@pytest.mark.slow
@kafka("SHD-2")
async def test_a_node_that_could_not_start_can_be_shut_down() -> None:
    node = Node(properties(f"127.0.0.1:{free_port()}", zookeeper_connection_timeout_ms="50"))
    with pytest.raises(HarnessError, match="no ZooKeeper answers"):
        await node.run()
    with trio.fail_after(60):
        await node.shutdown()


@pytest.mark.slow
@kafka("SHD-4")
async def test_shutdown_without_zookeeper(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with embedded_zookeeper(tmp_path / "zookeeper") as address:
            node = Node(properties(address, **SOON))
            await nursery.start(node.run)
        with trio.fail_after(30):
            await node.shutdown()


@pytest.mark.slow
@kafka("SHD-6")
async def test_a_second_shutdown_does_nothing(zookeeper: str) -> None:  # rule B11.18
    node = Node(properties(f"{zookeeper}/twice", **SOON))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await node.shutdown()
    with trio.fail_after(60):
        await node.shutdown()


@kafka("SHD-7")
async def test_a_controller_ends_while_a_broker_does_not_answer(autojump_clock: MockClock) -> None:
    """A request is not given up before 30 s, the controller's end does not wait for that."""
    async with world() as w:
        controller = await w.start_controller(1, request_timeout_ms=30_000)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new"]
        controller.close()
        with trio.fail_after(60):
            await controller.stopped.wait()
        w.brokers[2].mute = False
        w.brokers[2].break_connections()
        await trio.sleep(60)
        assert texts(w.take(), 2) == []  # an unanswered request is sent again while its channel lives (rule 8.31)
