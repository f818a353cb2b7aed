"""Replication quotas (rule B8.11), and DCC: where they come from (section 14 of docs/controller-semantics.md)."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.replication.fetcher import FollowerPort
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.broker_stub.replication.throttle import (
    ALL_PARTITIONS,
    ReplicationQuota,
    ReplicationQuotas,
    throttled_partitions,
)
from kce.broker_stub.sampled import now_ms
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import PARTITION, a_log
from tests.broker_stub.replication.support import Leader, RecordNode, a_node, batch
from tests.broker_stub.replication.test_fetcher import AT_LEADER
from tests.broker_stub.support import config, lai_state, leader_and_isr

kafka = pytest.mark.kafka


# what is configured


@kafka("DCC-22")
def test_a_list_of_replicas() -> None:
    value = "0:101,0:102,1:101,1:102"
    assert throttled_partitions(value, 102) == {0, 1}
    assert throttled_partitions(value, 103) == frozenset()


@kafka("DCC-23")
def test_all_replicas() -> None:
    assert throttled_partitions("*", 102) is ALL_PARTITIONS


@kafka("DCC-24")
@pytest.mark.parametrize(
    ("value", "partitions"),
    [("* ", ALL_PARTITIONS), (" ", set()), ("6:102", {6}), ("6:102 ", {6}), (" 6:102", {6})],
)
def test_white_space_around_values(value: str, partitions: object) -> None:
    assert throttled_partitions(value, 102) == partitions


@kafka("DCC-25")
def test_an_empty_list() -> None:
    assert throttled_partitions("", 102) == frozenset()


@pytest.mark.parametrize("value", ["0", "0:1:2", "a:1", "0:b", "*,0:1"])
def test_what_is_no_list_throttles_nothing(value: str, caplog: pytest.LogCaptureFixture) -> None:
    quotas = ReplicationQuotas(config(1))
    quotas.topic_config_changed("t", {"leader.replication.throttled.replicas": "*"})
    with caplog.at_level(logging.ERROR):
        quotas.topic_config_changed("t", {"leader.replication.throttled.replicas": value})
    assert "leader.replication.throttled.replicas" in caplog.text
    assert not quotas.leader.is_throttled(TopicPartition("t", 0))


def test_topics_say_which_partitions_are_throttled() -> None:
    quotas = ReplicationQuotas(config(1))
    quotas.topic_config_changed(
        "t", {"leader.replication.throttled.replicas": "0:1,1:2", "follower.replication.throttled.replicas": "*"}
    )
    throttled = [
        [quota.is_throttled(TopicPartition(*tp)) for tp in (("t", 0), ("t", 1), ("u", 0))]
        for quota in (quotas.leader, quotas.follower)
    ]
    assert throttled == [[True, False, False], [True, True, False]]
    quotas.topic_config_changed("t", {"follower.replication.throttled.replicas": ""})
    assert not any(q.is_throttled(TopicPartition("t", 0)) for q in (quotas.leader, quotas.follower))


# what is measured


async def test_the_rate_is_that_of_a_window(autojump_clock: MockClock) -> None:
    quota = ReplicationQuota(10, 1)
    quota.rate = 100
    assert not quota.is_exceeded
    quota.record(100)
    assert not quota.is_exceeded  # 100 in the first second
    quota.record(1)
    assert quota.is_exceeded
    assert quota.delay() > 0
    await trio.sleep(1.02)  # 101 in 1.02 s
    assert not quota.is_exceeded
    assert quota.delay() == 0
    quota.record(800)
    await trio.sleep(7.9)
    assert quota.is_exceeded  # 901 in 8.92 s
    await trio.sleep(0.2)
    assert not quota.is_exceeded
    quota.record(600)
    await trio.sleep(0.88)
    assert quota.is_exceeded  # 1400 in 9.12 s without the first second's 101
    await trio.sleep(9.2)
    assert not quota.is_exceeded  # the window is over for all but the last


@kafka("RQM-1")
@kafka("RQM-3")
def test_only_the_replicas_that_are_named_are_throttled() -> None:
    quota = ReplicationQuota(11, 1)
    quota.set_throttled("topic1", {1, 2, 3})
    assert [quota.is_throttled(TopicPartition("topic1", number)) for number in (1, 2, 3, 4)] == [True] * 3 + [False]
    quota.set_throttled("MyTopic", ALL_PARTITIONS)
    assert quota.is_throttled(TopicPartition("MyTopic", 0))
    assert not quota.is_throttled(TopicPartition("MyOtherTopic", 0))


@kafka("RQM-2")
async def test_a_quota_is_exceeded_until_time_passes(mock_clock: MockClock) -> None:
    quota = ReplicationQuota(10, 1)
    quota.rate = 100

    def measured() -> float:
        return quota.measured.measure(now_ms())

    assert not quota.is_exceeded
    mock_clock.jump(1.5)
    quota.record(1)
    assert not quota.is_exceeded
    quota.record(149)
    assert (quota.is_exceeded, quota.delay()) == (False, 0)
    quota.record(1)
    assert (quota.is_exceeded, quota.delay(), measured()) == (True, 0.1, 151 / 1.5)
    mock_clock.jump(0.5)
    assert (quota.is_exceeded, measured()) == (False, 151 / 2)
    mock_clock.jump(0.5)
    quota.record(99)
    assert (quota.is_exceeded, measured()) == (False, 250 / 2.5)
    quota.record(1)
    assert (quota.is_exceeded, measured()) == (True, 251 / 2.5)
    mock_clock.jump(2)
    assert (quota.is_exceeded, measured()) == (False, 251 / 4.5)


def test_what_a_broker_is_configured_to() -> None:
    quotas = ReplicationQuotas(
        config(
            1,
            replication_quota_window_num="3",
            replication_quota_window_size_seconds="4",
            alter_log_dirs_replication_quota_window_num="5",
            alter_log_dirs_replication_quota_window_size_seconds="6",
        )
    )
    every = (quotas.leader, quotas.follower, quotas.log_dirs)
    assert [(quota.measured.samples, quota.measured.window_ms) for quota in every] == [(3, 4000), (3, 4000), (5, 6000)]
    quotas.broker_config_changed(
        {
            "leader.replication.throttled.rate": "7", "follower.replication.throttled.rate": "8",
            "replica.alter.log.dirs.io.max.bytes.per.second": "9",
        }
    )  # fmt: skip
    assert [quota.rate for quota in every] == [7, 8, 9]
    quotas.broker_config_changed({"follower.replication.throttled.rate": "10"})
    assert [quota.rate for quota in every] == [math.inf, 10, math.inf]


async def test_without_a_rate_nothing_is_exceeded(autojump_clock: MockClock) -> None:
    quota = ReplicationQuota(10, 1)
    quota.record(10**12)
    assert not quota.is_exceeded


# the leader


@asynccontextmanager
async def a_leader(isr: tuple[int, ...] = (1,)) -> AsyncIterator[RecordNode]:
    async with a_node() as node:
        await node.lead(isr=isr)
        for _ in range(3):
            await node.produce(batch(b"x" * 1000))
        node.replication.quotas.topic_config_changed("a", {"leader.replication.throttled.replicas": "0:1"})
        node.replication.quotas.leader.rate = 100
        yield node


async def take(node: RecordNode, offset: int, replica: int = 2, **more: Any) -> int:
    """How many bytes the follower gets."""
    data = await node.fetch(offset, replica=replica, epoch=0, partition_max_bytes=1000, **more)
    assert data.error_code == 0
    return len(data.records or b"")


async def test_a_follower_out_of_sync_waits(autojump_clock: MockClock) -> None:
    async with a_leader() as node:
        assert await take(node, 0) > 1000
        before = trio.current_time()
        assert await take(node, 1, max_wait_ms=700) == 0
        assert trio.current_time() - before == pytest.approx(0.7)
        await trio.sleep(11)
        assert await take(node, 1) > 1000


async def test_what_the_follower_says_counts_although_it_gets_nothing(autojump_clock: MockClock) -> None:
    async with a_leader() as node:
        await take(node, 0)
        await take(node, 2)
        follower = node.replicas.partitions[TopicPartition("a", 0)].followers.get(2)
        assert follower is not None
        assert follower.end.offset == 2


async def test_a_follower_in_sync_does_not_wait(autojump_clock: MockClock) -> None:
    async with a_leader(isr=(1, 2)) as node:
        assert [await take(node, offset) > 1000 for offset in range(3)] == [True] * 3
        assert node.replication.quotas.leader.is_exceeded  # but it counts


async def test_a_consumer_neither_waits_nor_counts(autojump_clock: MockClock) -> None:
    async with a_leader() as node:
        for _ in range(3):
            assert (await node.fetch(0)).records
        assert not node.replication.quotas.leader.is_exceeded


async def test_partitions_that_are_not_throttled_do_not_wait(autojump_clock: MockClock) -> None:
    async with a_leader() as node:
        node.replication.quotas.topic_config_changed("a", {"leader.replication.throttled.replicas": "1:1"})
        assert [await take(node, offset) > 1000 for offset in range(3)] == [True] * 3
        assert not node.replication.quotas.leader.is_exceeded


# the follower


async def test_a_follower_that_is_behind_waits(autojump_clock: MockClock) -> None:
    leader, log, quota = Leader(), a_log(), ReplicationQuota(11, 1)
    quota.rate = 100
    quota.set_throttled(PARTITION.topic, ALL_PARTITIONS)
    sent = [{"records": batch(b"x" * 1000, base_offset=i, leader_epoch=3), "high_watermark": 3} for i in range(3)]
    leader.fetched = list(sent)
    async with trio.open_nursery() as nursery:
        fetchers = FetcherManager(FollowerPort(config(1), leader.dial, lambda: 1, lambda tp: None, quota=quota))
        nursery.start_soon(fetchers.run)
        fetchers.follow(PARTITION, log, 9, 3, AT_LEADER, None)
        await trio.testing.wait_all_tasks_blocked()
        assert log.log_end_offset == 1
        began = trio.current_time()
        while log.log_end_offset < 3:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)
        assert 15 < trio.current_time() - began < 25  # 2 kB at 100 B a second
        nursery.cancel_scope.cancel()


async def test_a_follower_in_sync_goes_on(autojump_clock: MockClock) -> None:
    leader, log, quota = Leader(), a_log(), ReplicationQuota(11, 1)
    quota.rate = 100
    quota.set_throttled(PARTITION.topic, ALL_PARTITIONS)
    leader.fetched = [
        {"records": batch(b"x" * 1000, base_offset=i, leader_epoch=3), "high_watermark": i} for i in range(3)
    ]
    async with trio.open_nursery() as nursery:
        fetchers = FetcherManager(FollowerPort(config(1), leader.dial, lambda: 1, lambda tp: None, quota=quota))
        nursery.start_soon(fetchers.run)
        fetchers.follow(PARTITION, log, 9, 3, AT_LEADER, None)
        await trio.testing.wait_all_tasks_blocked()
        assert (log.log_end_offset, quota.is_exceeded) == (3, True)
        nursery.cancel_scope.cancel()


# what a reassignment moves


async def test_what_a_reassignment_takes_from_here_is_counted() -> None:
    async with a_node() as node:
        await node.lead(isr=(1,))
        await node.produce(batch(b"x"))
        plane = node.replication.data_plane
        assert await take(node, 0)
        assert plane.stats.reassignment_bytes_out == 0
        await node.ask(leader_and_isr(lai_state(isr=(1,), leader_epoch=1, replicas=(1, 2, 3), adding_replicas=(2,))))
        for replica in (2, 3, -1):
            assert (await node.fetch(0, replica=replica)).records
        assert (plane.stats.reassignment_bytes_in, plane.stats.reassignment_bytes_out) == (0, len(batch(b"x")))
