"""RFT: how a follower truncates (section 12d of docs/broker-semantics.md; rules B5.7 to B5.25).

Upstream's cases follow two partitions, whose answers differ; here each answer has a run of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.log import Log
from kce.broker_stub.replication.follower_session import FollowerFetch, FollowerSession
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import PARTITION, a_log, batch
from tests.broker_stub.replication.support import ID, Leader, a_node
from tests.broker_stub.replication.test_fetcher import AT_LEADER, Follower
from tests.broker_stub.support import ID_A, lai_state, leader_and_isr, update_metadata

kafka = pytest.mark.kafka


def log_of(epochs: Mapping[int, int], high_watermark: int = 0) -> Log:
    """So many batches of one record of each leader epoch."""
    log = a_log()
    log.assign_topic_id(ID)
    for epoch, count in epochs.items():
        for _ in range(count):
            log.append_as_follower(batch(b"x", base_offset=log.log_end_offset, leader_epoch=epoch))
    log.set_high_watermark(high_watermark)
    return log


def kinds(f: Follower) -> str:
    """What was asked: E the end of an epoch, F a fetch."""
    return "".join("F" if isinstance(request, wire.FetchRequest) else "E" for request in f.leader.requests)


def end(epoch: int, offset: int) -> dict[str, int]:
    return {"leader_epoch": epoch, "end_offset": offset}


def diverging(epoch: int, offset: int, **more: int) -> dict[str, object]:
    return {"diverging_epoch": wire.FetchResponseEpochEndOffset(epoch=epoch, end_offset=offset), **more}


@kafka("RFT-1")
def test_the_newest_protocol_uses_the_newest_requests() -> None:
    assert LATEST.fetch_version == wire.FetchRequest.__versions__.last
    assert LATEST.offset_for_leader_epoch_version == wire.OffsetForLeaderEpochRequest.__versions__.last
    assert LATEST.list_offsets_version == wire.ListOffsetsRequest.__versions__.last


@kafka("RFT-4")
async def test_the_end_of_an_epoch_is_asked_once(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 3}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(5, 3)]
    f.leader.fetched = [{"high_watermark": 0}, {"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EFFF"


@kafka("RFT-5")
async def test_the_end_of_an_epoch_is_not_asked_where_fetches_tell(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 3}))
    f.leader.fetched = [{"high_watermark": 0}, {"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "FFF"


@kafka("RFT-6")
@pytest.mark.parametrize("offset", [156, 172])
async def test_the_leader_ended_the_epoch_earlier(nursery: trio.Nursery, offset: int) -> None:
    f = Follower(nursery, log_of({5: 200}, 199), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(5, offset)]
    await f.follow(5)
    assert f.log.log_end_offset == offset


@kafka("RFT-7")
@pytest.mark.parametrize(("offset", "expected"), [(156, 156), (202, 200)])
async def test_the_leaders_epoch_says_nothing_to_the_follower(
    nursery: trio.Nursery, offset: int, expected: int
) -> None:
    f = Follower(nursery, log_of({3: 200}, 197), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, offset)]
    await f.follow(5)
    assert f.log.log_end_offset == expected


@kafka("RFT-8")
@pytest.mark.parametrize(("first", "second"), [(155, 101), (143, 102)])
async def test_an_epoch_that_the_follower_lacks_is_asked_about_again(
    nursery: trio.Nursery, first: int, second: int
) -> None:
    f = Follower(nursery, log_of({3: 120, 5: 80}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, first), end(3, second)]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EEFF"
    asked = [r for r in f.leader.requests if isinstance(r, wire.OffsetForLeaderEpochRequest)]
    assert [r.topics[0].partitions[0].leader_epoch for r in asked] == [5, 3]
    assert f.leader.versions[0] >= 3
    assert f.log.log_end_offset == second


@kafka("RFT-9")
@pytest.mark.parametrize("more", [0, 1])
async def test_diverging_epochs_one_after_the_other(nursery: trio.Nursery, more: int) -> None:
    f = Follower(nursery, log_of({1: 119, 2: 10, 4: 20, 5: 51}, 115))
    ends: list[int] = []
    f.leader.meanwhile = [lambda: ends.append(f.log.log_end_offset)] * 5
    f.leader.fetched = [
        {"high_watermark": 0}, diverging(4, 140 + more), diverging(3, 130 + more), diverging(2, 120 + more),
        {"high_watermark": 0},
    ]  # fmt: skip
    await f.follow(5)
    assert ends == [200, 200, 140 + more, 129, 120 + more]
    assert kinds(f) == "FFFFFF"
    (fetcher,) = f.fetchers._fetchers.values()
    assert not fetcher.partitions[PARTITION].is_truncating


@kafka("RFT-10")
async def test_a_truncation_by_fetch_leaves_the_high_watermark(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({4: 149, 5: 1}, 130))
    f.leader.fetched = [diverging(4, 140, high_watermark=160)]
    await f.follow(5)
    assert (f.log.log_end_offset, f.log.high_watermark) == (140, 130)
    assert f.moved == []


@kafka("RFT-11")
async def test_the_lag_is_known_without_records(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({2: 0}))
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    (fetcher,) = f.fetchers.fetchers
    assert fetcher.partitions[PARTITION].lag == 0


@kafka("RFT-12")
@pytest.mark.parametrize("offset", [155, 143])
async def test_an_old_leader_names_no_epoch(nursery: trio.Nursery, offset: int) -> None:
    f = Follower(nursery, log_of({3: 120, 5: 80}), inter_broker_protocol_version="0.11.0")
    f.leader.ends = [end(-1, offset)]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EFF"
    assert f.leader.versions[0] == 0
    assert f.log.log_end_offset == offset


@kafka("RFT-13")
async def test_a_leader_that_knows_no_end(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 150}, 100), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(-1, -1)]
    await f.follow(5)
    assert f.log.log_end_offset == 100


@kafka("RFT-3")
async def test_who_cannot_be_asked_is_asked_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Upstream gives each partition an unknown error; here none is truncated, and both are delayed (rule B5.15)."""
    logs = {PARTITION: log_of({5: 100}, 98), A1: log_of({5: 100}, 98)}
    f = Follower(nursery, logs[PARTITION], inter_broker_protocol_version="2.6")
    f.leader = Two(52, 49)
    f.fetchers = type(f.fetchers)(dataclasses.replace(f.fetchers._port, dial=f.leader.dial))
    nursery.start_soon(f.fetchers.run)
    f.leader.refuse = True
    for partition, log in logs.items():
        f.fetchers.follow(partition, log, 9, 5, AT_LEADER, ID)
    await f.settle()
    (fetcher,) = f.fetchers._fetchers.values()
    assert all(fetcher.partitions[partition].is_truncating for partition in logs)
    assert [log.log_end_offset for log in logs.values()] == [100, 100]
    f.leader.refuse = False
    await trio.sleep(2)
    assert kinds(f)[0] == "E"
    assert [log.log_end_offset for log in logs.values()] == [52, 49]


@kafka("RFT-20")
def test_a_session_says_what_is_new_and_what_is_gone() -> None:
    def fetch(offset: int, topic_id: UUID) -> FollowerFetch:
        return FollowerFetch(topic_id, offset, 0, 1, -1)

    first, second, new = UUID(int=1), UUID(int=2), UUID(int=3)
    t1p0, t1p1, t2p1 = TopicPartition("t1", 0), TopicPartition("t1", 1), TopicPartition("t2", 1)
    session = FollowerSession(1000)
    wanted = {t1p0: fetch(150, first), t1p1: fetch(155, first), t2p1: fetch(160, second)}
    request, version = session.request(wanted, (), LATEST.fetch_version)
    assert version == LATEST.fetch_version
    assert session.sent == wanted
    assert [(topic.topic_id, [p.partition for p in topic.partitions]) for topic in request.topics] == [
        (first, [0, 1]), (second, [1]),
    ]  # fmt: skip
    assert [(p.fetch_offset, p.current_leader_epoch, p.log_start_offset, p.partition_max_bytes, p.last_fetched_epoch)
            for topic in request.topics for p in topic.partitions] == [
        (offset, 1, 0, 1000, -1) for offset in (150, 155, 160)
    ]  # fmt: skip
    assert request.forgotten_topics_data == ()
    session.answered(123)

    kept = {t1p1: fetch(155, first), t2p1: fetch(160, new)}
    request, _ = session.request(kept, (t1p0,), LATEST.fetch_version)
    assert session.sent == kept
    (replaced,) = request.topics
    assert (replaced.topic_id, [(p.partition, p.fetch_offset) for p in replaced.partitions]) == (new, [(1, 160)])
    assert {(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data} == {
        (first, (0,)), (second, (1,)),
    }  # fmt: skip
    assert (request.session_id, request.session_epoch) == (123, 1)


@kafka("RFT-14")
async def test_a_leader_that_fails_is_asked_until_it_answers(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    f = Follower(nursery, log_of({5: 300}, 100), inter_broker_protocol_version="2.6")
    error = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "leader_epoch": -1, "end_offset": -1}
    f.leader.ends = [error, {**error, "error_code": ErrorCode.UNKNOWN_SERVER_ERROR}, error, error, end(5, 156)]
    await f.follow(5)
    await trio.sleep(3.5)  # an attempt a second
    assert (kinds(f), f.log.log_end_offset, f.log.truncations) == ("EEEE", 300, 0)
    await trio.sleep(1)
    assert (kinds(f), f.log.log_end_offset) == ("EEEEEF", 156)


@kafka("RFT-15")
async def test_a_partition_truncates_until_it_knows(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({4: 3}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, 3)]
    states: list[bool] = []

    def look() -> None:
        (fetcher,) = f.fetchers._fetchers.values()
        states.append(fetcher.partitions[PARTITION].is_truncating)

    f.leader.meanwhile = [look, look]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert states == [True, False]


class Two(Leader):
    """It leads partitions 0 and 1, and knows where their epochs end."""

    def __init__(self, *end_offsets: int) -> None:
        super().__init__()
        self._end_offsets = end_offsets

    def _answer(self, request: object) -> wire.Message | None:
        if not isinstance(request, wire.OffsetForLeaderEpochRequest):
            return super()._answer(request)
        ends = tuple(
            wire.OffsetForLeaderEpochResponseEpochEndOffset(
                partition=entry.partition, leader_epoch=5, end_offset=self._end_offsets[entry.partition]
            )
            for topic in request.topics
            for entry in topic.partitions
        )
        return wire.OffsetForLeaderEpochResponse(topics=(wire.OffsetForLeaderTopicResult(topic="a", partitions=ends),))


A1 = PARTITION._replace(partition=1)


@kafka("RFT-2")
async def test_the_end_is_asked_of_partitions_with_epochs_only(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 1}), inter_broker_protocol_version="2.6")
    f.leader = Two(1, 1)
    f.fetchers = type(f.fetchers)(dataclasses.replace(f.fetchers._port, dial=f.leader.dial))
    nursery.start_soon(f.fetchers.run)
    f.leader.fetched = [{"high_watermark": 0}] * 2
    for partition, log in ((PARTITION, f.log), (A1, a_log())):
        f.fetchers.follow(partition, log, 9, 5, AT_LEADER, ID)
    await f.settle()
    assert kinds(f) == "EFFF"
    (asked,) = f.leader.requests[0].topics
    assert [entry.partition for entry in asked.partitions] == [0]
    assert {p.partition for p in f.leader.requests[1].topics[0].partitions} == {0, 1}


@kafka("RFT-16")
async def test_who_becomes_leader_meanwhile_is_not_truncated(nursery: trio.Nursery) -> None:
    logs = {PARTITION: log_of({5: 100}, 98), A1: log_of({5: 100}, 98)}
    f = Follower(nursery, logs[PARTITION], inter_broker_protocol_version="2.6")
    f.leader = Two(52, 49)
    f.fetchers = type(f.fetchers)(dataclasses.replace(f.fetchers._port, dial=f.leader.dial))
    nursery.start_soon(f.fetchers.run)
    f.leader.meanwhile = [lambda: f.fetchers.stop([PARTITION])]
    for partition, log in logs.items():
        f.fetchers.follow(partition, log, 9, 5, AT_LEADER, ID)
    await f.settle()
    assert [log.log_end_offset for log in logs.values()] == [100, 49]


@kafka("RFT-17")
async def test_an_error_when_the_connection_is_closed_goes_no_further(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 3}))

    async def fail() -> None:
        f.leader.closed += 1
        await trio.lowlevel.checkpoint()
        raise OSError("it cannot be closed")

    f.leader.aclose = fail  # type: ignore[method-assign]
    await f.follow(5)
    assert f.leader.connections == 1
    f.fetchers.stop([PARTITION])
    f.fetchers.stop_idle()
    await f.settle()
    assert f.leader.closed == 1


@kafka("RFT-21")
@pytest.mark.parametrize("is_new", [True, False])
async def test_consumers_are_woken_by_a_new_high_watermark(nursery: trio.Nursery, *, is_new: bool) -> None:
    """Rule B2.23."""
    log = log_of({5: 100}, 50 if is_new else 100)
    f = Follower(nursery, log)
    f.leader.fetched = [{"high_watermark": 100}]
    await f.follow(5)
    assert f.moved == ([PARTITION] if is_new else [])
    assert log.high_watermark == 100


@pytest.mark.parametrize(
    ("adding", "counted"),
    [pytest.param((1,), True, marks=kafka("RFT-18")), pytest.param((), False, marks=kafka("RFT-19"))],
)
async def test_what_a_reassignment_brings_here_is_counted(adding: tuple[int, ...], counted: bool) -> None:
    """The replica that it removes is another; upstream tells the fetcher whether this one is added."""
    leader = Leader(("host2", 9021, 2, "DATA"), ID_A)
    records = batch(b"x", leader_epoch=0)
    leader.fetched = [{"records": records, "high_watermark": 0}]
    async with a_node(dial=leader.dial) as node:
        await node.ask(update_metadata())
        state = lai_state(
            leader=2, isr=(2, 3), replicas=(1, 2, 3), is_new=True, adding_replicas=adding, removing_replicas=(3,)
        )
        await node.ask(leader_and_isr(state))
        await trio.testing.wait_all_tasks_blocked()
        assert node.log.log_end_offset == 1
        stats = node.replication.data_plane.stats
        assert (stats.reassignment_bytes_in, stats.reassignment_bytes_out) == (len(records) if counted else 0, 0)
        assert (stats.replication_bytes_in, stats.replication_bytes_out) == (len(records), 0)
