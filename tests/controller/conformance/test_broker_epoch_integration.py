"""BEP-1, BEP-2: broker epochs in a cluster (section 14 of docs/controller-semantics.md).

The rest of the suite, fencing by brokers, is in tests/broker_stub/test_fencing.py."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from kce.controller.kafka_controller import KafkaController
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId
from tests.controller.conformance.cluster import start, stop
from tests.controller.support import World, broker, world


async def czxid(w: World, broker_id: int) -> int:
    (stat,) = await w.store.exists([f"/brokers/ids/{broker_id}"])
    assert stat is not None
    return stat.czxid


@pytest.mark.kafka("BEP-1")
async def test_a_brokers_own_epoch(autojump_clock: MockClock) -> None:  # rules 1.20, 9.7
    async with world([]) as w:
        store = w.server.connect()
        zk = KafkaZkClient(store, now_ms=lambda: 0)
        assert await zk.register_broker(broker(5), w.ibp) == await czxid(w, 5)
        w.server.expire(store)
        epoch = await zk.register_broker(broker(5), w.ibp)
        assert epoch == await czxid(w, 5)


async def knows_all_epochs(w: World, controller: KafkaController) -> bool:
    registered = {int(name): await czxid(w, int(name)) for name in await w.zk.get_children("/brokers/ids")}
    return dict(controller.context.broker_epochs) == registered


@pytest.mark.kafka("BEP-2")
async def test_the_controllers_broker_epochs(autojump_clock: MockClock) -> None:  # rules 1.20, 11.50
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        assert set(controller.context.broker_epochs) == {0, 1, 2}
        assert await knows_all_epochs(w, controller)
        first = controller.context.broker_epochs[BrokerId(2)]
        await stop(w, 2)
        assert set(controller.context.broker_epochs) == {0, 1}
        assert await knows_all_epochs(w, controller)
        await start(w, 2)
        assert controller.context.broker_epochs[BrokerId(2)] > first
        assert await knows_all_epochs(w, controller)
