"""CID: the id of the cluster (section 14 of docs/controller-semantics.md; rule 1.40).

The rest of the suite, what a node stores of it, is in tests/broker_stub/zookeeper/test_broker_metadata.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pytest
import trio

from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.store import NodeData, StoreError
from kce.zookeeper.store.memory import MemoryZooKeeper
from kce.zookeeper.znodes import decode_topic_id


async def boot(server: MemoryZooKeeper) -> str:
    """A node starts, asks for the id of its cluster and goes."""
    zk = KafkaZkClient(server.connect(), now_ms=lambda: 0, new_uuid=uuid.uuid4)
    found = await zk.get_or_create_cluster_id()
    await zk.store.aclose()
    return found


async def stored(server: MemoryZooKeeper) -> str | None:
    found = await KafkaZkClient(server.connect(), now_ms=lambda: 0).get_one("/cluster/id")
    return None if found is None else json.loads(found.data)["id"]


def is_valid(cluster_id: str) -> bool:
    return len(cluster_id) == 22 and decode_topic_id(cluster_id).int != 0


@pytest.mark.kafka("CID-1")
async def test_a_cluster_id_is_made_once() -> None:  # rule 1.40
    server = MemoryZooKeeper()
    assert await stored(server) is None
    made = await boot(server)
    assert is_valid(made)
    assert await stored(server) == made
    assert await boot(server) == made
    assert await stored(server) == made


@pytest.mark.kafka("CID-2")
async def test_nodes_that_start_in_turn_have_one_cluster_id() -> None:
    server = MemoryZooKeeper()
    found = [await boot(server) for _ in range(3)]
    assert is_valid(found[0])
    assert set(found) == {found[0]}
    assert [await boot(server) for _ in range(3)] == found  # again


class Slow(KafkaZkClient):
    """A node that goes on from what it has read only when all ``others`` have read it too."""

    others: list[trio.Event]

    async def get_data(self, paths: Sequence[str]) -> list[NodeData | StoreError]:
        answers = await super().get_data(paths)
        mine = next((event for event in self.others if not event.is_set()), None)
        if mine is not None:
            mine.set()
        for event in self.others:
            await event.wait()
        return answers


@pytest.mark.kafka("CID-3")
async def test_nodes_that_race_have_one_cluster_id() -> None:
    server = MemoryZooKeeper()
    found: list[str] = []

    async def start(others: list[trio.Event]) -> None:
        zk = Slow(server.connect(), now_ms=lambda: 0, new_uuid=uuid.uuid4)
        zk.others = others
        found.append(await zk.get_or_create_cluster_id())
        await zk.store.aclose()

    for boots in (1, 2):
        others = [trio.Event() for _ in range(3)]
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(start, others)
        assert len(found) == 3 * boots
    assert is_valid(found[0])
    assert set(found) == {found[0]}
    assert await stored(server) == found[0]
