"""Fetch sessions: what a leader remembers of a fetcher, and what a follower of its leader (rules B4.24 to B4.35).

Covers: broker_stub/replication/follower_session.py.
"""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.replication.fetch_session import FetchSession, Requested, Wanted, next_epoch
from kce.broker_stub.replication.fetch_sessions import FetchContext, FetchSessions
from kce.broker_stub.replication.follower_session import FollowerFetch, FollowerSession
from kce.broker_stub.replication.reading import PartitionFetch, Read
from kce.wire import ErrorCode
from kce.wire.long_messages import SHORT
from kce.wire.single_fetch import MOST
from kce.wire.steps import finish
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.replication.support import A0, RecordNode, a_node, batch, fetch_request, values_of
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    answer_of,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)

FOO = UUID(int=1)


def wanted(number: int, *, topic_id: UUID | None = FOO, offset: int = 0) -> Wanted:
    return Wanted("" if topic_id else "foo", topic_id, number, offset, 100, 0, -1, -1)


class Sessions(FetchSessions):
    """With a clock in ms."""

    def __init__(self, slots: int = 10, eviction_ms: int = 1000) -> None:
        self.ms = 0
        super().__init__(slots, Random(1), lambda: self.ms / 1000, eviction_s=eviction_ms / 1000)

    def create(self, ms: int, size: int, *, follower: bool = False) -> int:
        """The id of a new session with so many partitions; 0 if there is no room."""
        self.ms = ms
        return self.new([wanted(i) for i in range(size)], replica_id=1 if follower else -1).session_id

    def new(self, partitions: list[Wanted], replica_id: int = -1) -> FetchContext:
        """A full fetch, and its answer."""
        context = self.full(partitions, replica_id=replica_id)
        answers(context, **{f"p{one.partition}": Read() for one in partitions})
        return context

    def touch(self, ms: int, session_id: int) -> None:
        self.ms = ms
        session = self.get(session_id)
        assert session is not None
        self.incremental(session_id, session.epoch)

    def full(self, partitions: list[Wanted], session_id: int = 0, epoch: int = 0, replica_id: int = -1) -> FetchContext:
        return finish(self.context(session_id, epoch, replica_id, partitions, (), uses_topic_ids=True))

    def incremental(
        self, session_id: int, epoch: int, partitions: list[Wanted] | None = None, forgotten: Any = (), ids: bool = True
    ) -> FetchContext:
        return finish(self.context(session_id, epoch, -1, partitions or [], forgotten, uses_topic_ids=ids))


def answers(context: FetchContext, **reads: Any) -> list[int]:
    """Answer ``p1=Read(...)``: the partitions that the response has."""
    known = {one.partition: one for one in context.wanted()}
    given = [
        (Requested(known[number], PartitionFetch(TopicPartition("foo", number), FOO, 0, 100), None), read)
        for number, read in ((int(name[1:]), read) for name, read in reads.items())
    ]
    told = finish(context.answered(given))
    return [requested.wanted.partition for requested, _ in told]


@pytest.mark.kafka("FST-1")
def test_ids_are_positive_and_differ() -> None:
    sessions = Sessions(slots=1000)
    ids = {sessions.create(0, 1) for _ in range(1000)}
    assert len(ids) == len(sessions) == 1000
    assert all(0 < session_id < 2**31 for session_id in ids)


@pytest.mark.kafka("FST-2")
def test_who_makes_room() -> None:
    """Rule B4.34."""
    sessions = Sessions(3, eviction_ms=100)
    first, second, third = sessions.create(0, 10), sessions.create(10, 20), sessions.create(20, 30)
    assert sessions.create(30, 40) == sessions.create(40, 5) == 0

    def known() -> set[int]:
        assert len(sessions) == 3
        return set(sessions._sessions)

    assert known() == {first, second, third}
    sessions.touch(200, first)
    fourth = sessions.create(210, 11)
    assert known() == {first, third, fourth}
    sessions.touch(390, third)
    sessions.touch(400, first)
    sessions.touch(400, fourth)
    fifth = sessions.create(410, 50)
    assert known() == {third, fourth, fifth}
    assert sessions.create(410, 5) == 0
    sixth = sessions.create(410, 5, follower=True)
    assert known() == {third, fifth, sixth}
    assert sessions.evictions == 3


def test_a_newcomer_of_the_same_size_is_refused_and_followers_stay_longest() -> None:
    sessions = Sessions(1, eviction_ms=100)
    first = sessions.create(0, 10, follower=True)
    sessions.touch(150, first)
    assert sessions.create(160, 1000) == sessions.create(160, 10, follower=True) == 0
    assert sessions.create(160, 11, follower=True) > 0
    assert Sessions(0).create(0, 1) == 0
    sessions = Sessions(1)
    sessions.create(0, 10)
    assert sessions.create(1, 3) == 0
    assert sessions.create(1, 3, follower=True) > 0


def test_a_session_is_made_by_its_first_response() -> None:
    """Rules B4.25, B4.26, B4.32: while the fetch waits, others have the place; a throttled one takes none."""
    sessions = Sessions(1, eviction_ms=100)
    waits, throttled = sessions.full([wanted(0)]), sessions.full([wanted(0)])
    assert (len(sessions), waits.session_id) == (0, 0)
    first = sessions.create(50, 1)
    assert first > 0
    assert (answers(waits, p0=Read()), waits.session_id) == ([0], 0)
    follower = sessions.full([wanted(0)], replica_id=2)
    assert (throttled.throttled(), follower.throttled(), sessions.evictions) == (0, 0, 0)
    assert sessions.get(first) is not None
    sessions.ms = 70
    assert (answers(follower, p0=Read()), sessions.evictions) == ([0], 1)
    assert follower.session is not None
    assert (sessions.get(first), follower.session.created_at) == (None, 0.07)


def test_what_is_touched_while_a_first_response_is_made_is_not_idle() -> None:
    sessions, many = Sessions(), [wanted(i) for i in range(2 * SHORT)]
    context = sessions.full(many)
    context.begins_answer()
    reads = [
        (Requested(one, PartitionFetch(TopicPartition("foo", one.partition), FOO, 0, 100), None), Read(bound=0))
        for one in many
    ]
    making = context.answered(reads)
    next(making)
    assert len(sessions) == 0  # its place is taken when all is there
    sessions.touched(TopicPartition("foo", 1))
    finish(making)
    context.ends_answer()
    assert context.session is not None
    assert list(context.session.awake) == [wanted(1).key]
    assert sessions.touched(TopicPartition("foo", 2)) == [context.session]


def test_a_session_is_old_once_it_is_used_late() -> None:  # rule B4.34
    """Of its age only that at its last use counts."""
    sessions = Sessions(1, eviction_ms=100)
    first = sessions.create(0, 1)
    sessions.touch(90, first)
    assert sessions.create(150, 9) == 0
    sessions.touch(150, first)
    assert sessions.create(160, 9) > 0


@pytest.mark.kafka("FST-18")
def test_a_session_without_partitions_is_closed() -> None:
    sessions = Sessions()
    context = sessions.full([wanted(0), wanted(1, offset=10)])
    assert answers(context, p0=Read(high_watermark=100, log_start_offset=100), p1=Read(high_watermark=10)) == [0, 1]
    assert context.session is not None
    closed = sessions.incremental(context.session.id, 1, [], [wanted(0).key, wanted(1).key])
    assert (closed.session, closed.wanted(), answers(closed), len(sessions)) == (None, [], [], 0)


def test_a_fetch_that_closes_its_session_reads_what_it_lists() -> None:
    """Rule B4.28: it is treated as sessionless."""
    sessions = Sessions()
    session_id = sessions.create(0, 1)
    closes = finish(sessions.context(session_id, 1, -1, [wanted(0, offset=3)], [wanted(0).key], uses_topic_ids=True))
    assert (closes.session, [one.offset for one in closes.wanted()], len(sessions)) == (None, [3], 0)


@pytest.mark.kafka("FST-20")
def test_only_partitions_with_records_go_to_the_end() -> None:
    """Rule B4.30."""
    sessions, listed = Sessions(), [wanted(i, offset=100) for i in (1, 2, 3)]
    context = sessions.full(listed)
    same = Read(high_watermark=50, last_stable_offset=50, log_start_offset=0)
    assert answers(context, p1=same, p2=same, p3=same) == [1, 2, 3]
    assert context.session is not None
    context = sessions.incremental(context.session.id, 1, listed)
    assert [one.partition for one in context.wanted()] == [1, 2, 3]
    assert answers(context) == []
    moved = same._replace(high_watermark=60)
    assert answers(context, p1=moved, p2=moved._replace(records=b"x"), p3=same) == [1, 2]
    assert [one.partition for one in context.wanted()] == [1, 3, 2]


def test_a_new_session_has_the_order_of_its_first_response() -> None:
    """Rules B4.26, B4.30: what was refused comes last there, and records send no partition to the end yet."""
    sessions = Sessions()
    context = sessions.full([wanted(i) for i in (1, 2, 3)])
    assert answers(context, p2=Read(records=b"r"), p3=Read(records=b"r"), p1=Read(ErrorCode.UNKNOWN_TOPIC_ID)) == [
        2,
        3,
        1,
    ]
    assert context.session is not None
    context = sessions.incremental(context.session.id, 1)
    assert [one.partition for one in context.wanted()] == [2, 3, 1]


def test_a_partition_that_was_idle_is_read_in_its_turn() -> None:
    """Rule B4.30: only records send a partition to the end."""
    sessions = Sessions()
    session_id = sessions.create(0, 4)
    context = sessions.incremental(session_id, 1)
    answers(context, p0=Read(bound=0), p1=Read(bound=0), p2=Read(records=b"r"))
    woken = sessions.incremental(session_id, 2)
    assert [one.partition for one in woken.wanted()] == [3, 2]  # the others are idle
    assert sessions.touched(TopicPartition("foo", 1)) == [woken.session]
    again = sessions.incremental(session_id, 3, [wanted(4), wanted(0, offset=7)])
    assert [(one.partition, one.offset) for one in again.wanted()] == [(0, 7), (1, 0), (3, 0), (2, 0), (4, 0)]


def test_what_an_incremental_response_has() -> None:
    """Rule B4.29."""
    sessions = Sessions()
    context = sessions.full([wanted(0)])
    read = Read(high_watermark=5, log_start_offset=1)
    assert answers(context, p0=read) == [0]
    assert context.session is not None
    known = [
        (read, False),
        (read._replace(high_watermark=6), True),
        (read._replace(high_watermark=6), False),
        (read._replace(high_watermark=6, log_start_offset=2), True),
        (Read(ErrorCode.FENCED_LEADER_EPOCH), True),
        (Read(ErrorCode.FENCED_LEADER_EPOCH), True),
        (read._replace(high_watermark=6, log_start_offset=-1), True),  # it is back
        (read._replace(high_watermark=6, log_start_offset=-1, preferred_replica=2), True),
    ]
    for epoch, (given, is_told) in enumerate(known, 1):
        context = sessions.incremental(context.session.id, epoch)  # type: ignore[union-attr]
        assert answers(context, p0=given) == [0] * is_told, epoch


def test_errors_of_sessions() -> None:
    """Rules B4.27, B4.31."""
    sessions = Sessions()

    def refused(session_id: int, epoch: int, **more: Any) -> ErrorCode:
        with pytest.raises(Refused) as error:
            sessions.incremental(session_id, epoch, **more)
        return error.value.code

    assert refused(7, 1) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session_id = sessions.create(0, 1)
    assert refused(session_id, 2) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refused(session_id, 1, ids=False) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    overtaken = sessions.incremental(session_id, 1)
    sessions.incremental(session_id, 2)
    with pytest.raises(Refused) as error:
        answers(overtaken, p0=Read())
    assert error.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.full([wanted(0)], session_id, epoch=-1).session is None  # closed
    assert (len(sessions), refused(session_id, 3)) == (0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 1)] == [1, 2, 1]


def test_partitions_are_added_replaced_and_forgotten() -> None:
    """Rule B4.28."""
    sessions = Sessions()
    context = sessions.new([wanted(0), wanted(1)])
    context = sessions.incremental(context.session_id, 1, [wanted(1, offset=8), wanted(2)], [wanted(0).key])
    assert [(one.partition, one.offset) for one in context.wanted()] == [(1, 8), (2, 0)]


def test_an_idle_partition_that_is_forgotten() -> None:
    sessions = Sessions()
    session_id = sessions.create(0, 2)
    answers(sessions.incremental(session_id, 1), p0=Read(bound=0), p1=Read(bound=0))
    context = sessions.incremental(session_id, 2, [], [wanted(0).key, wanted(9).key])
    assert context.wanted() == []
    assert sessions.touched(TopicPartition("foo", 0)) == []
    assert sessions.touched(TopicPartition("foo", 1)) == [context.session]


# a broker with sessions


class Fetcher:
    """Sends incremental fetches of a-0 and others to a node."""

    def __init__(self, node: RecordNode, version: int = 12, **more: Any) -> None:
        self.node, self.version, self.more = node, version, more
        self.session_id = self.epoch = 0

    async def fetch(self, *offsets: int, **more: Any) -> wire.FetchResponse:
        """Offsets of a-0, a-1, ...; none: those that are known."""
        request = fetch_request(
            version=self.version, session_id=self.session_id, session_epoch=self.epoch, **{**self.more, **more}
        )
        (topic,) = request.topics
        (entry,) = topic.partitions
        partitions = tuple(
            dataclasses.replace(entry, partition=number, fetch_offset=offset) for number, offset in enumerate(offsets)
        )
        topics = (dataclasses.replace(topic, partitions=partitions),) if offsets else ()
        answer = await self.node.ask(dataclasses.replace(request, topics=topics), self.version)
        assert isinstance(answer, wire.FetchResponse)
        if answer.error_code == 0:
            self.session_id, self.epoch = answer.session_id, next_epoch(self.epoch)
        return answer


def found(answer: wire.FetchResponse) -> dict[int, list[bytes | None]]:
    return {data.partition_index: values_of(data) for topic in answer.responses for data in topic.partitions}


async def two_partitions(node: RecordNode, isr: tuple[int, ...] = (1, 2)) -> None:
    await node.ask(update_metadata(umr_state(0, isr=isr), umr_state(1, isr=isr)))
    await node.ask(leader_and_isr(lai_state(0, isr=isr, is_new=True), lai_state(1, isr=isr, is_new=True)))


@pytest.mark.parametrize("version", [7, 12, 13, 17])
async def test_an_idle_partition_is_told_of_when_it_changes(version: int, autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await two_partitions(node, isr=(1,))
        fetcher = Fetcher(node, version, max_wait_ms=500)
        assert found(await fetcher.fetch(0, 0, max_wait_ms=0)) == {0: [], 1: []}
        assert fetcher.session_id > 0
        begin = trio.current_time()
        assert found(await fetcher.fetch()) == {}
        assert trio.current_time() - begin == pytest.approx(0.5)
        session = node.replication.data_plane.sessions.get(fetcher.session_id)
        assert session is not None
        assert len(session.idle) == 2
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert found(await fetcher.fetch()) == {1: [b"x"]}

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await node.produce(batch(b"x"), partition=1)
        assert trio.current_time() - begin == pytest.approx(0.5)  # at once
        await node.produce(batch(b"y"))  # while no fetch waits
        assert found(await fetcher.fetch()) == {0: [b"y"], 1: [b"x"]}


async def test_an_idle_partition_that_is_deleted_is_told_of(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await two_partitions(node)
        fetcher = Fetcher(node, 12, replica=2, max_wait_ms=10_000, epoch=0)
        await fetcher.fetch(0, 0, max_wait_ms=0)
        await fetcher.fetch(max_wait_ms=0)
        answer: list[wire.FetchResponse] = []
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                answer.append(await fetcher.fetch())

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await node.ask(stop_replica((1, 0, True)))
        (data,) = answer[0].responses[0].partitions
        assert (data.partition_index, data.error_code) == (1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert trio.current_time() < 10


async def test_a_follower_with_idle_partitions_stays_in_the_isr(autojump_clock: MockClock) -> None:
    """It is not read, but it fetches: its lag begins when something is appended (rule 9.45)."""
    async with a_node(replica_lag_time_max_ms="2000") as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        fetcher = Fetcher(node, 12, replica=2, max_wait_ms=500, epoch=0)
        await fetcher.fetch(0)
        for _ in range(20):
            assert found(await fetcher.fetch()) == {}
        await node.produce(batch(b"x"))
        follower = node.partition().followers.get(2)
        assert follower is not None
        assert trio.current_time() * 1000 - follower.caught_up_ms < 600
        assert not node.partition().followers.lagging((2,), 1, trio.current_time() * 1000, 2000)
        await trio.sleep(4)
        assert node.submitter.proposed == [(1,)]  # it has not fetched since


async def test_an_idle_follower_deletes_records(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(b"x"))
        fetcher = Fetcher(node, 12, replica=2, max_wait_ms=500, epoch=0)
        await fetcher.fetch(1)
        await fetcher.fetch()
        async with trio.open_nursery() as nursery:
            entry = wire.DeleteRecordsPartition(partition_index=0, offset=1)
            topic = wire.DeleteRecordsTopic(name="a", partitions=(entry,))
            nursery.start_soon(node.ask, wire.DeleteRecordsRequest(topics=(topic,), timeout_ms=60_000), 2)
            await trio.testing.wait_all_tasks_blocked()
            answer = await fetcher.fetch()
            assert [data.log_start_offset for data in answer.responses[0].partitions] == [1]
            fetcher.more["log_start_offset"] = 1
            await fetcher.fetch(1, max_wait_ms=0)
        assert trio.current_time() < 2


async def test_what_happens_to_an_idle_log_by_itself_is_told_in_the_end(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await node.lead(isr=(1,), replicas=(1,))
        await node.produce(batch(b"x"))
        fetcher = Fetcher(node, 12)
        await fetcher.fetch(1)
        node.log.increment_log_start_offset(1)  # as the retention does
        assert found(await fetcher.fetch()) == {}
        await trio.sleep(31)
        assert found(await fetcher.fetch()) == {0: []}


async def test_a_follower_is_told_how_far_its_own_fetch_moves_the_high_watermark(autojump_clock: MockClock) -> None:
    """Rule B4.29: also where the answer was made before, because another partition had something to read."""
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"a"))
        fetcher = Fetcher(node, 12, replica=2, max_wait_ms=500, epoch=0)
        assert found(await fetcher.fetch(0, 0)) == {0: [b"a"], 1: []}
        await node.produce(batch(b"b"), partition=1)
        assert found(await fetcher.fetch(1, 0)) == {1: [b"b"]}
        assert node.log.high_watermark == 1
        answer = await fetcher.fetch(max_wait_ms=0)
        told = {data.partition_index: data.high_watermark for data in answer.responses[0].partitions}
        assert told[0] == 1


@pytest.mark.parametrize("max_wait_ms", [0, 500])
async def test_an_idle_follower_outside_the_isr_is_read_with_each_fetch(
    max_wait_ms: int, autojump_clock: MockClock
) -> None:
    """It joins as soon as it may."""
    async with a_node() as node:
        await node.lead(isr=(1,), replicas=(1, 2))
        await node.ask(update_metadata(umr_state(isr=(1,)), alive=(1,)))
        fetcher = Fetcher(node, 12, replica=2, epoch=0, max_wait_ms=max_wait_ms)
        await fetcher.fetch(0)
        await fetcher.fetch()
        assert node.submitter.proposed == []
        await node.ask(update_metadata(umr_state(isr=(1,)), alive=(1, 2)))
        await fetcher.fetch()
        assert node.submitter.proposed == [(1, 2)]


async def test_a_topic_that_comes_later_is_resolved_in_the_session() -> None:
    """Rule B4.2."""
    async with a_node() as node:
        fetcher = Fetcher(node, 13)
        answer = await fetcher.fetch(0)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert fetcher.session_id > 0
        await node.lead()
        answer = await fetcher.fetch()
        assert (answer.responses[0].topic_id, answer.responses[0].partitions[0].error_code) == (ID_A, ErrorCode.NONE)
        assert found(await fetcher.fetch()) == {}


# the follower's side


def a_fetch(offset: int = 0, topic_id: UUID | None = ID_A) -> FollowerFetch:
    return FollowerFetch(topic_id, offset, 0, 3, 3)


def listed(request: wire.FetchRequest) -> dict[int, int]:
    return {entry.partition: entry.fetch_offset for topic in request.topics for entry in topic.partitions}


A1 = TopicPartition("a", 1)


def test_a_follower_sends_what_has_changed() -> None:
    session = FollowerSession(100)
    request, version = session.request({A0: a_fetch(), A1: a_fetch(5)}, (), 17)
    assert (version, request.session_id, request.session_epoch, listed(request)) == (17, 0, 0, {0: 0, 1: 5})
    session.answered(77)
    request, _ = session.request({A0: a_fetch(), A1: a_fetch(6)}, (), 17)
    assert (request.session_id, request.session_epoch, listed(request)) == (77, 1, {1: 6})
    session.answered(77)
    request, _ = session.request({}, [A0], 17)
    assert (request.session_epoch, listed(request), request.forgotten_topics_data) == (
        2, {}, (wire.ForgottenTopic(topic_id=ID_A, partitions=(0,)),),
    )  # fmt: skip
    session.answered(77)
    request, _ = session.request({A1: a_fetch(6, ID_B)}, [A0, A1], 17)  # another topic of that name
    assert (listed(request), request.forgotten_topics_data) == (
        {1: 6}, (wire.ForgottenTopic(topic_id=ID_A, partitions=(1,)),),
    )  # fmt: skip
    session.end()
    request, _ = session.request({}, (), 17)
    assert (request.session_id, request.session_epoch, listed(request)) == (77, 0, {1: 6})
    session.answered(0)  # the leader has no room
    request, _ = session.request({A1: a_fetch(7, ID_B)}, (), 17)
    assert (request.session_id, request.session_epoch, listed(request)) == (0, 0, {1: 7})
    session.lost()
    assert session.sent == {}


B0 = TopicPartition("b", 0)
SENT = {A0: a_fetch(), A1: a_fetch(5), B0: a_fetch(1, ID_B)}


@pytest.mark.parametrize(
    ("changed", "forgotten", "version", "is_alone"),
    [
        ({A1: a_fetch(6)}, [], 17, True),
        ({A0: a_fetch(), A1: a_fetch(6)}, [], 17, True),  # one of them is as it was
        ({A1: a_fetch(6), B0: a_fetch(1, ID_B), A0: a_fetch(9)}, [], 17, True),
        ({A1: a_fetch(6), B0: a_fetch(2, ID_B)}, [], 17, False),
        ({A0: a_fetch(), A1: a_fetch(5)}, [], 17, False),
        ({}, [], 17, False),
        ({A1: a_fetch(6)}, [A0], 17, False),
        ({A1: a_fetch(6, ID_B)}, [], 17, False),  # another topic of that name
        ({TopicPartition("a", 2): a_fetch()}, [], 17, False),
        ({A1: a_fetch(6)}, [], 16, False),
    ],
)
def test_what_changes_in_a_single_topic(
    changed: dict[TopicPartition, FollowerFetch], forgotten: list[TopicPartition], version: int, is_alone: bool
) -> None:
    sessions = FollowerSession(100), FollowerSession(100)
    for session in sessions:
        session.request(SENT, (), 17)
        assert session.changes_of_a_topic({A1: a_fetch(6)}, (), 17) is None  # not as long as there is no session
        session.answered(77)
    found = sessions[0].changes_of_a_topic(changed, forgotten, version)
    if not is_alone:
        assert (found, sessions[0].sent) == (None, SENT)
        return
    request, _ = sessions[1].request(changed, forgotten, version)
    assert found is not None
    assert {tp.partition: fetch.offset for tp, fetch in found.items()} == listed(request)
    assert [topic.topic_id for topic in request.topics] == [ID_A]
    assert sessions[0].sent == sessions[1].sent


def test_a_long_list_of_changes_is_for_the_general_codec() -> None:
    session = FollowerSession(100)
    many = {TopicPartition("a", i): a_fetch() for i in range(MOST + 1)}
    session.request(many, (), 17)
    session.answered(77)
    moved = {tp: a_fetch(1) for tp in many}
    assert session.changes_of_a_topic(moved, (), 17) is None
    del moved[A0]
    assert session.changes_of_a_topic(moved, (), 17) == moved


def test_the_version_of_a_session_depends_on_the_ids() -> None:
    session = FollowerSession(100)
    session.request({A0: a_fetch()}, (), 17)
    session.answered(77)
    request, version = session.request({A1: a_fetch(2, None)}, (), 17)
    assert (version, request.session_epoch, listed(request)) == (12, 0, {0: 0, 1: 2})
    session.answered(78)
    assert {topic.topic for topic in request.topics} == {"a"}
    request, version = session.request({}, [A1], 17)
    assert (version, request.session_epoch, listed(request)) == (17, 0, {0: 0})
    request, version = FollowerSession(100).request({A0: a_fetch()}, (), 5)
    assert (version, request.session_epoch, listed(request)) == (5, -1, {0: 0})


def test_a_new_session_tells_of_everything() -> None:
    sessions = Sessions()
    context = sessions.full([wanted(0)])
    assert answers(context, p0=Read()) == [0]  # although it says nothing


def test_a_partition_that_is_forgotten_meanwhile_is_not_told_of() -> None:
    sessions = Sessions()
    context = sessions.incremental(sessions.create(0, 2), 1)
    session = context.session
    assert session is not None
    del session.partitions[wanted(0).key]
    assert answers(context, p1=Read(high_watermark=1)) == [1]
    known = Requested(wanted(0), PartitionFetch(TopicPartition("foo", 0), FOO, 0, 100), None)
    assert finish(context.answered([(known, Read())])) == []


def test_nothing_is_kept_of_a_removed_session() -> None:
    sessions = Sessions()
    context = sessions.new([wanted(0)])
    assert context.session is not None
    sessions.rests(context.session, wanted(0).key, A0)
    sessions._touched[context.session.id] = {wanted(0).key: None}
    sessions.remove(context.session.id)
    assert (sessions._touched, sessions.resting, len(sessions)) == ({}, {}, 0)


async def waits_with_an_idle_partition(
    node: RecordNode, nursery: trio.Nursery, **fetcher_is: Any
) -> list[wire.FetchResponse]:
    """What a fetcher gets that waits for long."""
    await two_partitions(node)
    fetcher = Fetcher(node, 12, **fetcher_is)
    await fetcher.fetch(0, 0)
    await fetcher.fetch()
    answers: list[wire.FetchResponse] = []

    async def wait() -> None:
        answers.append(await fetcher.fetch(max_wait_ms=60_000))

    nursery.start_soon(wait)
    await trio.sleep(1)
    return answers


async def test_a_follower_that_waits_learns_of_records_before_they_are_replicated(autojump_clock: MockClock) -> None:
    """Its partition was idle, and the high watermark does not move."""
    async with a_node() as node, trio.open_nursery() as nursery:
        answers = await waits_with_an_idle_partition(node, nursery, replica=2, epoch=0)
        assert answers == []
        await node.produce(batch(b"x"))
        await trio.sleep(1)
        assert [found(answer) for answer in answers] == [{0: [b"x"]}]


async def test_a_consumer_that_waits_learns_of_records_once_they_are_replicated(autojump_clock: MockClock) -> None:
    """Its partition was idle when they were appended, and the high watermark moved later."""
    async with a_node() as node, trio.open_nursery() as nursery:
        answers = await waits_with_an_idle_partition(node, nursery)
        await node.produce(batch(b"x"))
        await trio.sleep(1)
        assert answers == []
        await node.fetch(1, replica=2, epoch=0)
        await trio.sleep(1)
        assert [found(answer) for answer in answers] == [{0: [b"x"]}]


def test_broker_0_is_a_follower() -> None:
    """Whose sessions stay longest (rule B4.34)."""
    assert FetchSession(9, 0, True, 0.0).rank > FetchSession(9, -1, True, 0.0).rank


async def test_a_fetch_that_waits_has_no_session_yet(autojump_clock: MockClock) -> None:  # rule B4.25
    async with a_node(max_incremental_fetch_session_cache_slots="1") as node, trio.open_nursery() as nursery:
        await node.lead()
        waiting = Fetcher(node, 12, max_wait_ms=1000)
        nursery.start_soon(waiting.fetch, 0)
        await trio.testing.wait_all_tasks_blocked()
        assert (await Fetcher(node, 12).fetch(0)).session_id > 0
        await trio.sleep(2)
        assert (waiting.epoch, waiting.session_id) == (1, 0)


async def test_a_broker_without_room_for_sessions_makes_none() -> None:  # rule B4.25
    async with a_node(max_incremental_fetch_session_cache_slots="0") as node:
        await node.lead()
        assert (await Fetcher(node, 12).fetch(0)).session_id == 0


def test_what_older_versions_of_a_follower_say() -> None:
    """The last epoch since version 12, the topic's id since version 13."""
    for version in (11, 12, 13):
        request, _ = FollowerSession(100).request({A0: a_fetch()}, (), version)
        (topic,) = request.topics
        assert (topic.topic, topic.partitions[0].last_fetched_epoch) == ("a", 3 if version >= 12 else -1)
        assert topic.topic_id == (ID_A if version >= 13 else UUID(int=0))


async def test_what_is_appended_while_a_long_answer_is_made_is_not_idle(autojump_clock: MockClock) -> None:
    async with a_node() as node:
        await node.lead(replicas=(1,))
        many = tuple(wire.FetchPartition(partition=i, partition_max_bytes=1000) for i in range(SHORT + 1))
        topic = wire.FetchTopic(topic="a", partitions=many)
        first = wire.FetchRequest(session_epoch=0, topics=(topic,), max_bytes=1000)
        request, captured = node.request(first, 12)
        waits = node.apis.handle(request)
        assert waits is not None
        await waits
        assert not captured.answered.is_set()  # all is read
        await node.produce(batch())
        await captured.answered.wait()
        answer = answer_of(captured, first.__api_key__, 12)
        assert not answer.responses[0].partitions[0].records
        again = wire.FetchRequest(session_id=answer.session_id, session_epoch=1, max_bytes=1000)
        (topic,) = (await node.ask(again, 12)).responses
        assert [values_of(one) for one in topic.partitions if one.partition_index == 0] == [[b"v"]]
