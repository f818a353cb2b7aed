"""STA: the start of a node (section 14 of docs/controller-semantics.md; rules 1.3, 1.22, 1.24, B11.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from kce.harness import HarnessError
from kce.harness.node import Node

pytestmark = pytest.mark.slow


def properties(zookeeper: str, broker_id: int = 0, **more: str) -> dict[str, str]:
    given = {key.replace("_", "."): text for key, text in more.items()}
    return {
        "zookeeper.connect": zookeeper,
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        **given,
    }


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield node
        await node.shutdown(controlled=False)


@pytest.mark.kafka("STA-1")
async def test_the_chroot_is_created(zookeeper: str) -> None:
    async with running(Node(properties(zookeeper, 7))) as outside:
        assert await outside._zk.store.exists(["/made/by/a/broker"]) == [None]
        async with running(Node(properties(f"{zookeeper}/made/by/a/broker"))):
            assert await outside._zk.get_children("/made/by/a/broker/brokers/ids") == ["0"]


@pytest.mark.kafka("STA-2")
async def test_an_address_of_another_broker_is_refused(zookeeper: str) -> None:  # rule 1.24
    chroot = f"{zookeeper}/same-port"
    async with running(Node(properties(chroot))) as first:
        address = first.addresses()["PLAINTEXT"]
        with pytest.raises(HarnessError, match=address.replace(".", r"\.")):
            await Node(properties(chroot, 1, listeners=f"PLAINTEXT://{address}")).run()
        with pytest.raises(HarnessError, match=f"{address} of broker 1 is already registered by broker 0"):
            await Node(properties(chroot, 1, advertised_listeners=f"PLAINTEXT://{address}")).run()
        assert await first._zk.get_children("/brokers/ids") == ["0"]


@pytest.mark.kafka("STA-5")
async def test_a_registration_survives_another_brokers_try(zookeeper: str) -> None:  # rule 1.22
    chroot = f"{zookeeper}/same-id"
    async with running(Node(properties(chroot))) as first:
        before = await first._zk.get_one("/brokers/ids/0")
        assert before is not None
        with pytest.raises(HarnessError, match="broker id 0 is already registered"):
            await Node(properties(chroot)).run()
        assert await first._zk.get_one("/brokers/ids/0") == before


@pytest.mark.kafka("STA-6")
async def test_a_broker_knows_itself(zookeeper: str) -> None:
    async with running(Node(properties(f"{zookeeper}/self-aware"))) as node:
        cache = node.broker.metadata_cache
        with trio.fail_after(60):
            snapshot = await cache.wait_until(lambda snapshot: bool(snapshot.alive_brokers))
        assert list(snapshot.alive_brokers) == [0]


@pytest.mark.kafka("STA-7")
async def test_a_broker_that_serves_is_registered(zookeeper: str) -> None:
    """``run`` says that it has started when requests are processed."""
    async with running(Node(properties(f"{zookeeper}/running"))) as node:
        assert list(await node._zk.get_brokers(watch=False)) == [0]
