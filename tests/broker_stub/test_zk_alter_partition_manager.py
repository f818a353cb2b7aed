"""ISR changes that a leader writes to ZooKeeper itself (rules 9.60, 9.61)."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub import TopicPartition
from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Result
from kce.broker_stub.zk_alter_partition_manager import ZkAlterPartitionManager
from kce.wire import ErrorCode
from kce.zookeeper.model import LeaderAndIsr
from tests.broker_stub.replication.support import follower_fetches
from tests.broker_stub.support import ID_A, config, lai_state, leader_and_isr, make_broker, umr_state, update_metadata


class Store:
    """Versions by partition; ``notifications``: time and partitions of each."""

    def __init__(self) -> None:
        self.versions: dict[TopicPartition, int] = {}
        self.written: list[AlterPartitionItem] = []
        self.notifications: list[tuple[float, list[int]]] = []
        self.fails = False

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("gone")
        partition_epoch = item.leader_and_isr.partition_epoch
        if partition_epoch != self.versions.get(item.partition, 7):
            return None
        self.written.append(item)
        self.versions[item.partition] = partition_epoch + 1
        return partition_epoch + 1

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("gone")
        self.notifications.append((trio.current_time(), [tp.partition for tp in partitions]))


def item(partition: int = 0, *, partition_epoch: int = 7, isr: tuple[int, ...] = (1, 2)) -> AlterPartitionItem:
    return AlterPartitionItem(
        partition=TopicPartition("a", partition),
        topic_id=ID_A,
        controller_epoch=3,
        leader_and_isr=LeaderAndIsr(1, isr, leader_epoch=5, partition_epoch=partition_epoch),
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
async def test_a_change_is_written_if_the_partition_epoch_matches(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 9.60
    h = Harness(nursery)
    assert h.submit(item())
    assert not h.submit(item())  # one pending item per partition
    assert h.submit(item(1, partition_epoch=6))
    await trio.sleep(0.1)
    assert h.results == [
        LeaderAndIsr(1, (1, 2), leader_epoch=5, partition_epoch=8),
        ErrorCode.INVALID_UPDATE_VERSION,
    ]
    h.store.fails = True
    assert h.submit(item(2))
    await trio.sleep(0.1)
    assert h.results[2] == ErrorCode.INVALID_UPDATE_VERSION


async def test_the_controller_is_notified_after_a_lull(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:  # rule 9.61
    h = Harness(nursery)
    start = trio.current_time()
    await trio.sleep(70)  # nothing changed, so there is no notification
    for partition in range(3):
        h.submit(item(partition))
        await trio.sleep(1)
    h.submit(item(9, partition_epoch=0))  # not written, so not notified
    await trio.sleep(20)
    assert [(round(at - start, 1), partitions) for at, partitions in h.store.notifications] == [(72.5, [0, 1, 2])]


async def test_changes_without_a_lull_wait_a_minute(autojump_clock: MockClock, nursery: trio.Nursery) -> None:  # 9.61
    h = Harness(nursery)
    await trio.sleep(61)
    for partition in range(200):
        h.submit(item(partition))
        await trio.sleep(1)
    first, second, third, *_ = (at for at, _ in h.store.notifications)
    assert first - second == second - third == -62.5  # the first check after a minute
    notified = sorted(p for _, partitions in h.store.notifications for p in partitions)
    assert notified == list(range(h.store.notifications[-1][1][-1] + 1))


async def test_a_failed_notification_is_resent(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    h = Harness(nursery)
    h.submit(item())
    await trio.sleep(1)
    h.store.fails = True
    await trio.sleep(20)
    h.store.fails = False
    await trio.sleep(65)
    assert [partitions for _, partitions in h.store.notifications] == [[0]]


async def test_an_old_protocol_makes_brokers_write_isrs(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    store = Store()
    broker = make_broker(
        config(inter_broker_protocol_version="2.6"),
        isr_store=store,
    )
    nursery.start_soon(broker.alter_partition_manager.run)
    manager = broker.replica_manager
    manager.maybe_update_metadata_cache(update_metadata(umr_state(), alive=(1, 2, 3)), 1)
    manager.become_leader_or_follower(leader_and_isr(lai_state(leader_epoch=4, partition_epoch=7, isr=(1, 2))), 2)
    follower_fetches(broker.replication.data_plane, 3, epoch=4)
    await trio.sleep(0.1)
    (written,) = store.written
    assert written.controller_epoch == 1
    assert written.leader_and_isr == LeaderAndIsr(1, (1, 2, 3), leader_epoch=4, partition_epoch=7)
    hosted = manager.partitions[TopicPartition("a", 0)]
    assert (hosted.isr, hosted.partition_epoch, hosted.pending) == ((1, 2, 3), 8, None)
