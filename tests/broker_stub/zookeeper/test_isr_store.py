"""A leader's own ISR write (rule 1.53), and its notification of the controller (rule 1.32)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from kce.broker_stub.alter_partition_manager import AlterPartitionItem
from kce.broker_stub.zookeeper.isr_store import ZkIsrStore, ZkLogDirEvents
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, LeaderAndIsr, TopicPartition
from kce.zookeeper.store import Delete, StoreError, StoreUnavailable
from tests.controller.support import texts, world

TP = TopicPartition("t", 0)
ITEM = AlterPartitionItem(
    partition=TP,
    topic_id=uuid.UUID(int=0),
    controller_epoch=1,
    leader_and_isr=LeaderAndIsr(BrokerId(2), (BrokerId(2), BrokerId(3))),
)


def changed(**fields: Any) -> AlterPartitionItem:
    return replace(ITEM, leader_and_isr=ITEM.leader_and_isr._replace(**fields))


@pytest.mark.parametrize("ibp", ["0.9.0", "2.6"])
async def test_the_controller_applies_the_leaders_writes(autojump_clock: MockClock, ibp: str) -> None:  # 11.68
    async with world(ibp=MetadataVersion.parse(ibp)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3, 1]})
        store = ZkIsrStore(w.zk)
        assert await store.update_isr(ITEM) == 1
        assert await store.update_isr(ITEM) == 1  # the response was lost: the stored state is ours
        assert await store.update_isr(changed(isr=(2,))) is None
        assert await store.update_isr(replace(ITEM, controller_epoch=2)) is None
        await w.settle()
        assert controller.context.leadership[TP].leader_and_isr.isr == (2, 3, 1)
        w.take()
        await store.notify_isr_changes([TP])
        await w.settle()
        assert controller.context.leadership[TP].leader_and_isr.isr == (2, 3)
        if ibp == "2.6":
            assert texts(w.take(), 3) == ["UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]
        assert await w.zk.get_children(znodes.ISR_CHANGE_NOTIFICATION) == []


@pytest.mark.kafka("RU-1")
async def test_a_version_conflict_with_our_own_content_is_success(autojump_clock: MockClock) -> None:  # rule 1.53
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        store = ZkIsrStore(w.zk)
        assert await store.update_isr(ITEM) == 1
        assert await store.update_isr(ITEM) == 1  # its response was lost
        assert await store.update_isr(changed(partition_epoch=2)) == 1
        for other in (
            changed(leader=3),
            changed(leader_epoch=1),
            changed(isr=(3, 2)),
            replace(ITEM, controller_epoch=2),
        ):
            assert await store.update_isr(other) is None
        assert await w.state("t") == (2, 0, (2, 3))


@pytest.mark.kafka("ZKCT-13")
async def test_writes_depend_on_the_version(autojump_clock: MockClock) -> None:  # rules 1.50, 1.53
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        store = ZkIsrStore(w.zk)
        shrunk = changed(isr=(2,))
        assert await store.update_isr(shrunk) == 1
        assert await store.update_isr(changed(partition_epoch=1)) == 2
        assert await store.update_isr(changed(isr=(2,), partition_epoch=1)) is None
        assert await store.update_isr(changed(isr=(2,), partition_epoch=7)) is None
        assert await w.state("t") == (2, 0, (2, 3))
        await w.store.write([Delete(znodes.partition_state_path(TP))])
        assert await store.update_isr(ITEM) is None


async def test_the_controller_is_notified_of_a_failed_log_directory(
    autojump_clock: MockClock,
) -> None:  # 9.68, 11.65
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        w.take()
        await ZkLogDirEvents(w.zk, 2).log_dir_failed()
        await w.settle()
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]", "UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]
        assert await w.zk.get_children("/log_dir_event_notification") == []


async def test_another_failure_of_a_write_is_raised() -> None:
    class Failing:
        async def write(self, operations: Sequence[object]) -> list[StoreError]:
            return [StoreUnavailable("test")]

    store = ZkIsrStore(SimpleNamespace(store=Failing()))  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await store.update_isr(ITEM)
