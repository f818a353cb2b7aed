"""Kafka's nodes in memory, and a client of them that has won an election."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import pytest

from kce.zookeeper import znodes
from kce.zookeeper.client import UNFENCED
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import (
    BrokerId,
    EpochZkVersion,
    ReplicaAssignment,
    TopicPartition,
)
from kce.zookeeper.store import Create, value
from kce.zookeeper.store.memory import MemoryZooKeeper

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


WRONG = EpochZkVersion(7)


class Fixture:
    """A client that has won an election, so that ``fence`` is the version of /controller_epoch."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.zk = self.client()
        self.fence = UNFENCED

    def client(self) -> KafkaZkClient:
        return KafkaZkClient(self.server.connect(), now_ms=lambda: 1234, new_uuid=uuid.uuid4)

    async def put(self, path: str, data: bytes = b"") -> None:
        parent = path.rpartition("/")[0]
        if parent:
            await self.zk.ensure_paths([parent])
        value((await self.zk.store.write([Create(path, data)]))[0])

    async def data(self, path: str) -> bytes | None:
        found = await self.zk.get_one(path)
        return None if found is None else found.data

    async def moved(self, write: Callable[[EpochZkVersion], Awaitable[object]]) -> None:
        """With another version of the epoch the write is refused and nothing changes; with the right one it is
        done."""
        before = self.tree()
        with pytest.raises(ControllerMoved):
            await write(WRONG)
        assert self.tree() == before
        await write(self.fence)
        assert self.tree() != before

    def tree(self) -> dict[str, tuple[bytes, int]]:
        """Data and version of every node."""
        return {path: (node.data, node.stat().version) for path, node in self.server.tree.nodes.items()}


@pytest.fixture
async def f() -> Fixture:
    made = Fixture()
    _, made.fence = await made.zk.register_controller(BrokerId(1))
    await made.zk.create_top_level_paths()
    return made


# topics


async def topic(f: Fixture, name: str, **partitions: ReplicaAssignment) -> uuid.UUID:
    topic_id = uuid.uuid4()
    numbered = {int(p.removeprefix("p")): assignment for p, assignment in partitions.items()}
    await f.put(znodes.topic_path(name), znodes.encode_topic(topic_id, numbered))
    return topic_id
