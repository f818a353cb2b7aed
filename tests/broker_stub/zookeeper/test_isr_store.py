"""A leader's own ISR write (rule 1.53), and what it tells the controller (rule 1.32)."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from trio.testing import MockClock

from broker_stub.alter_partition_manager import AlterPartitionItem
from controller import zk_data
from controller.model import TopicPartition
from controller.store import Delete
from harness.zk_isr_store import ZkIsrStore, ZkLogDirEvents
from tests.controller.support import texts, world
from wire.metadata_version import MetadataVersion

TP = TopicPartition("t", 0)
ITEM = AlterPartitionItem(
    partition=TP,
    topic_id=uuid.UUID(int=0),
    leader=2,
    controller_epoch=1,
    leader_epoch=0,
    partition_epoch=0,
    isr=(2, 3),
)


@pytest.mark.parametrize("ibp", ["0.9.0", "2.6"])
async def test_the_controller_takes_over_what_leaders_wrote(autojump_clock: MockClock, ibp: str) -> None:  # 11.68
    async with world(ibp=MetadataVersion.parse(ibp)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3, 1]})
        store = ZkIsrStore(w.zk)
        assert await store.update_isr(ITEM) == 1
        assert await store.update_isr(ITEM) == 1  # the answer was lost: what stands there is ours
        assert await store.update_isr(replace(ITEM, isr=(2,))) is None
        assert await store.update_isr(replace(ITEM, controller_epoch=2)) is None
        await w.settle()
        assert controller.context.leadership[TP].leader_and_isr.isr == (2, 3, 1)
        w.take()
        await store.notify_isr_changes([TP])
        await w.settle()
        assert controller.context.leadership[TP].leader_and_isr.isr == (2, 3)
        if ibp == "2.6":
            assert texts(w.take(), 3) == ["UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]
        assert await w.zk.get_children(zk_data.ISR_CHANGE_NOTIFICATION) == []


@pytest.mark.kafka("RU-1")
async def test_a_refused_write_of_the_very_same_content_was_ours(autojump_clock: MockClock) -> None:  # rule 1.53
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        store = ZkIsrStore(w.zk)
        assert await store.update_isr(ITEM) == 1
        assert await store.update_isr(ITEM) == 1  # its answer was lost
        for other in (
            replace(ITEM, leader=3),
            replace(ITEM, leader_epoch=1),
            replace(ITEM, isr=(3, 2)),
            replace(ITEM, controller_epoch=2),
        ):
            assert await store.update_isr(other) is None
        assert await w.state("t") == (2, 0, (2, 3))


@pytest.mark.kafka("ZKCT-13")
async def test_writes_on_condition_of_a_version(autojump_clock: MockClock) -> None:  # rules 1.50, 1.53
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        store = ZkIsrStore(w.zk)
        shrunk = replace(ITEM, isr=(2,))
        assert await store.update_isr(shrunk) == 1
        assert await store.update_isr(replace(ITEM, partition_epoch=1)) == 2
        assert await store.update_isr(replace(shrunk, partition_epoch=1)) is None
        assert await store.update_isr(replace(shrunk, partition_epoch=7)) is None
        assert await w.state("t") == (2, 0, (2, 3))
        await w.store.write([Delete(zk_data.partition_state_path(TP))])
        assert await store.update_isr(ITEM) is None


async def test_the_controller_hears_of_a_failed_log_directory(autojump_clock: MockClock) -> None:  # rules 9.68, 11.65
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        w.take()
        await ZkLogDirEvents(w.zk, 2).log_dir_failed()
        await w.settle()
        assert texts(w.take(), 2) == ["LAI t-0:2@0[2, 3]", "UMR alive=[1, 2, 3] t-0:2@0[2, 3]"]
        assert await w.zk.get_children("/log_dir_event_notification") == []
