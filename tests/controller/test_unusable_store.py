"""A controller to which ZooKeeper has become unusable resigns, and another takes over."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
import trio

from kce.controller.config import ControllerConfig
from kce.controller.elector import ControllerToken
from kce.controller.kafka_controller import KafkaController
from kce.wire.metadata_version import LATEST
from kce.wire.transport import FramedConnection
from kce.zookeeper import znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create
from kce.zookeeper.store.kazoo import KazooStore
from tests.controller import requests
from tests.controller.support import CONTROL, DATA, broker
from tests.zookeeper.store.picky_proxy import PickyProxy

LIMIT = 300_000
_chroots = itertools.count()


class Contender(KafkaController):
    """Sets ``granted`` and ``revoked``."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.granted, self.revoked = trio.Event(), trio.Event()

    async def grant_leadership(self, token: ControllerToken) -> None:
        await super().grant_leadership(token)
        self.granted.set()

    async def revoke_leadership(self) -> None:
        await super().revoke_leadership()
        self.revoked.set()


async def unreachable(host: str, port: int, *, to: int, listener: str) -> FramedConnection:
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError(f"{host}:{port}")


async def connect(address: str) -> KazooStore:
    return await KazooStore.connect(address, session_timeout_ms=3000, connection_timeout_ms=10_000)


def client(store: KazooStore) -> KafkaZkClient:
    return KafkaZkClient(store, now_ms=lambda: 0, new_uuid=uuid.uuid4)


async def contend(broker_id: int, store: KazooStore, nursery: trio.Nursery) -> Contender:
    zk = client(store)

    async def register() -> object:
        return await zk.register_broker(broker(broker_id), LATEST)

    await register()
    config = ControllerConfig(
        broker_id=BrokerId(broker_id), inter_broker_listener_name=DATA, control_plane_listener_name=CONTROL
    )
    controller = Contender(config, zk, unreachable, nursery, register=register)
    nursery.start_soon(controller.run)
    return controller


def large_topic() -> bytes:
    """A znode just below `LIMIT`: 104 partitions, with replicas on broker 1 and on many dead ones."""
    dead = range(2_000_000_000, 2_000_000_260)
    partitions = {p: ReplicaAssignment((BrokerId(1), *map(BrokerId, dead))) for p in range(104)}
    data = znodes.encode_topic(uuid.UUID(int=1), partitions)
    assert LIMIT - 3000 < len(data) < LIMIT - 500
    return data


@pytest.mark.slow
async def test_the_controller_resigns(zookeeper: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its ZooKeeper refuses the rewritten znode of a topic whose reassignment starts."""
    chroot = f"/unusable-{next(_chroots)}"
    async with trio.open_nursery() as nursery:
        proxy = PickyProxy(zookeeper, LIMIT)
        address = await nursery.start(proxy.run)
        stores = [await connect(f"{address}{chroot}"), await connect(f"{zookeeper}{chroot}")]
        await client(stores[1]).create_top_level_paths()
        await stores[1].write([Create(znodes.topic_path("t"), large_topic())])
        with trio.fail_after(120):
            first = await contend(1, stores[0], nursery)
            await first.granted.wait()
            second = await contend(2, stores[1], nursery)
            requests.alter_partition_reassignments(first, {TopicPartition("t", 0): (1,)}, lambda _: None)
            await second.granted.wait()
        assert first.revoked.is_set()
        assert not first.is_active
        assert "is unusable" in caplog.text
        assert proxy.refused >= 3
        for store in stores:
            await store.aclose()
        nursery.cancel_scope.cancel()
