"""ISR changes that a leader writes into ZooKeeper itself (rules 9.60, 9.61)."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import trio
from trio.testing import MockClock

from broker_stub import Broker, TopicPartition
from broker_stub.alter_partition_manager import AlterPartitionItem, LeaderAndIsr, Result
from broker_stub.isr import LiveReplicasJoin
from broker_stub.zk_alter_partition_manager import ZkAlterPartitionManager
from tests.broker_stub.support import ID_A, config, lai_state, leader_and_isr, no_dial, update_metadata
from wire import ErrorCode


class Store:
    """Versions by partition; ``told`` holds notifications with the time of each."""

    def __init__(self) -> None:
        self.versions: dict[TopicPartition, int] = {}
        self.written: list[AlterPartitionItem] = []
        self.told: list[tuple[float, list[int]]] = []
        self.fails = False

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("gone")
        if item.partition_epoch != self.versions.get(item.partition, 7):
            return None
        self.written.append(item)
        self.versions[item.partition] = item.partition_epoch + 1
        return item.partition_epoch + 1

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("gone")
        self.told.append((trio.current_time(), [tp.partition for tp in partitions]))


def item(partition: int = 0, *, partition_epoch: int = 7, isr: tuple[int, ...] = (1, 2)) -> AlterPartitionItem:
    return AlterPartitionItem(
        partition=TopicPartition("a", partition),
        topic_id=ID_A,
        leader=1,
        controller_epoch=3,
        leader_epoch=5,
        partition_epoch=partition_epoch,
        isr=isr,
    )


class Harness:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = Store()
        self.manager = ZkAlterPartitionManager(self.store)
        self.results: list[Result] = []
        nursery.start_soon(self.manager.run)

    def submit(self, wanted: AlterPartitionItem) -> bool:
        return self.manager.submit(wanted, self.results.append)


@pytest.mark.kafka("APM-19")
async def test_a_change_is_written_under_its_partition_epoch(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 9.60
    h = Harness(nursery)
    assert h.submit(item())
    assert not h.submit(item())  # one at a time for a partition
    assert h.submit(item(1, partition_epoch=6))
    await trio.sleep(0.1)
    assert h.results == [
        LeaderAndIsr(leader=1, leader_epoch=5, isr=(1, 2), leader_recovery_state=0, partition_epoch=8),
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    h.store.fails = True
    assert h.submit(item(2))
    await trio.sleep(0.1)
    assert h.results[2] == ErrorCode.INVALID_UPDATE_VERSION


async def test_the_controller_is_told_after_a_lull(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 9.61
    h = Harness(nursery)
    begun = trio.current_time()
    await trio.sleep(70)  # nothing has changed: nobody is told
    for partition in range(3):
        h.submit(item(partition))
        await trio.sleep(1)
    h.submit(item(9, partition_epoch=0))  # what was not written is not told of
    await trio.sleep(20)
    assert [(round(at - begun, 1), told) for at, told in h.store.told] == [(72.5, [0, 1, 2])]


async def test_changes_without_a_lull_wait_a_minute(autojump_clock: MockClock, nursery: trio.Nursery) -> None:  # 9.61
    h = Harness(nursery)
    await trio.sleep(61)
    for partition in range(200):
        h.submit(item(partition))
        await trio.sleep(1)
    first, second, third, *_ = (at for at, _ in h.store.told)
    assert first - second == second - third == -62.5  # the first check after a minute
    assert sorted(p for _, told in h.store.told for p in told) == list(range(h.store.told[-1][1][-1] + 1))


async def test_a_notification_that_fails_is_sent_later(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    h = Harness(nursery)
    h.submit(item())
    await trio.sleep(1)
    h.store.fails = True
    await trio.sleep(20)
    h.store.fails = False
    await trio.sleep(65)
    assert [told for _, told in h.store.told] == [[0]]


async def test_a_broker_of_an_old_protocol_writes_isrs_itself(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    store = Store()
    broker = Broker(config(inter_broker_protocol_version="2.6"), dial=no_dial, cluster_id="cluster", isr_store=store)
    assert isinstance(broker.replica_manager._isr_policy, LiveReplicasJoin)
    nursery.start_soon(broker.alter_partition_manager.run)
    manager = broker.replica_manager
    manager.maybe_update_metadata_cache(update_metadata(alive=(1, 2, 3)), 1)
    manager.become_leader_or_follower(leader_and_isr(lai_state(leader_epoch=4, partition_epoch=7, isr=(1, 2))), 2)
    manager.maybe_update_metadata_cache(update_metadata(alive=(1, 2, 3)), 3)
    await trio.sleep(0.1)
    (written,) = store.written
    assert (written.leader, written.controller_epoch, written.leader_epoch, written.isr) == (1, 1, 4, (1, 2, 3))
    hosted = manager.partitions[TopicPartition("a", 0)]
    assert (hosted.isr, hosted.partition_epoch, hosted.pending) == ((1, 2, 3), 8, None)
