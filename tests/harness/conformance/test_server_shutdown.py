"""SHD: the end of a node (section 14 of docs/controller-semantics.md; rules 11.48, 11.49, B11.18)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from kce.harness import HarnessError
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.harness.node import Node
from tests.controller.support import texts, world
from tests.harness.conformance.test_server_startup import properties

#: a controlled shutdown is tried again after 0.1 s
SOON = {"controlled_shutdown_retry_backoff_ms": "100"}


@pytest.mark.slow
@pytest.mark.kafka("SHD-2")
async def test_a_node_that_could_not_start_can_be_shut_down() -> None:
    node = Node(properties(f"127.0.0.1:{free_port()}", zookeeper_connection_timeout_ms="50"))
    with pytest.raises(HarnessError, match="no ZooKeeper answers"):
        await node.run()
    with trio.fail_after(5):
        await node.shutdown()


@pytest.mark.slow
@pytest.mark.kafka("SHD-4")
async def test_shutdown_without_zookeeper(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with embedded_zookeeper(tmp_path / "zookeeper") as address:
            node = Node(properties(address, **SOON))
            await nursery.start(node.run)
        with trio.fail_after(30):
            await node.shutdown()


@pytest.mark.slow
@pytest.mark.kafka("SHD-6")
async def test_a_second_shutdown_does_nothing(zookeeper: str) -> None:  # rule B11.18
    node = Node(properties(f"{zookeeper}/twice", **SOON))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await node.shutdown()
    with trio.fail_after(5):
        await node.shutdown()


@pytest.mark.kafka("SHD-7")
async def test_a_controller_ends_while_a_broker_does_not_answer(autojump_clock: MockClock) -> None:
    """A request is not given up before 30 s, the controller's end does not wait for that."""
    async with world() as w:
        controller = await w.start_controller(1, request_timeout_ms=30_000)
        w.take()
        w.brokers[2].mute = True
        await w.create_topic("t", {0: [2]})
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2]new"]
        controller.close()
        with trio.fail_after(10):
            await controller.stopped.wait()
        w.brokers[2].mute = False
        w.brokers[2].break_connections()
        await trio.sleep(60)
        assert texts(w.take(), 2) == []  # an unanswered request is sent again while its channel lives (rule 8.31)
