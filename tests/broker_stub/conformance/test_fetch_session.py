"""FST: fetch sessions on the leader's side (section 12c of docs/broker-semantics.md; rules B4.24 to B4.35).

What a session resolves and remembers of topics is asked of a node by requests, because its handler resolves names.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kce import wire
from kce.broker_stub.errors import Refused
from kce.broker_stub.log.leader_epochs import EpochEnd
from kce.broker_stub.replication.fetch_session import Wanted
from kce.broker_stub.replication.fetch_sessions import FetchContext
from kce.broker_stub.replication.reading import Read
from kce.wire import ErrorCode
from kce.wire.steps import finish
from kce.wire.vocabulary import LEADER_DURING_DELETE
from tests.broker_stub.replication.support import RecordNode, a_node
from tests.broker_stub.replication.test_fetch_sessions import FOO, Sessions, answers, wanted
from tests.broker_stub.support import lai_state, leader_and_isr, stop_replica, umr_state, update_metadata

kafka = pytest.mark.kafka

IDS = {"foo": UUID(int=11), "bar": UUID(int=12), "zar": UUID(int=13)}
UNKNOWN_ID, UNKNOWN = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
CHANGED = Read(high_watermark=10, last_stable_offset=10, log_start_offset=10)


def with_epochs(number: int, leader: int, last_fetched: int = -1) -> Wanted:
    return wanted(number)._replace(leader_epoch=leader, last_fetched_epoch=last_fetched)


def epochs(context: FetchContext) -> dict[int, tuple[int, int]]:
    """Leader epoch and last fetched epoch by partition; -1: none."""
    return {one.partition: (one.leader_epoch, one.last_fetched_epoch) for one in context.wanted()}


def session_id(context: FetchContext) -> int:
    assert context.session is not None
    return context.session.id


@kafka("FST-3")
def test_the_number_of_partitions_follows_the_sessions() -> None:
    sessions = Sessions(2, eviction_ms=100)

    def counts() -> tuple[int, int, int]:
        return sum(len(found.partitions) for found in sessions._sessions.values()), len(sessions), sessions.evictions

    assert counts() == (0, 0, 0)
    first = sessions.create(0, 2)
    assert (first > 0, counts()) == (True, (2, 1, 0))
    second = sessions.create(0, 4)
    assert (second > 0, counts()) == (True, (6, 2, 0))
    sessions.touch(200, first)
    sessions.touch(200, second)
    third = sessions.create(200, 5)
    assert (third > 0, counts()) == (True, (9, 2, 1))
    assert sessions.get(first) is None
    sessions.remove(third)
    assert counts() == (4, 1, 1)
    found = sessions.get(second)
    assert found is not None
    del found.partitions[next(iter(found.partitions))]
    sessions.touch(200, second)
    assert counts() == (3, 1, 1)


@kafka("FST-4")
@kafka("FST-5")
def test_epochs_are_those_of_the_last_request() -> None:
    sessions = Sessions()
    context = sessions.full([with_epochs(0, -1), with_epochs(1, 1), with_epochs(2, 2, 1)])
    known = {0: (-1, -1), 1: (1, -1), 2: (2, 1)}
    assert epochs(context) == known
    given = {"p0": CHANGED, "p1": CHANGED, "p2": CHANGED}
    answers(context, **given)
    context = sessions.incremental(session_id(context), 1)
    assert epochs(context) == known
    answers(context, **given)
    changed = [with_epochs(0, 6, 5), with_epochs(1, -1), with_epochs(2, 3, 3)]
    assert epochs(sessions.incremental(session_id(context), 2, changed)) == {0: (6, 5), 1: (-1, -1), 2: (3, 3)}


@kafka("FST-6")
def test_kinds_of_requests() -> None:
    sessions = Sessions()
    assert finish(sessions.context(0, -1, 1, [], (), uses_topic_ids=True)).session is None
    listed = [wanted(0), wanted(1, offset=10)]
    full = sessions.full(listed)
    assert full.wanted() == listed
    given = {"p0": Read(high_watermark=100, last_stable_offset=100, log_start_offset=100), "p1": CHANGED}
    assert answers(full, **given) == [0, 1]
    known = session_id(full)
    for which, epoch, code in (
        (known, 5, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (known + 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ):
        with pytest.raises(Refused) as refused:
            sessions.incremental(which, epoch, listed)
        assert refused.value.code == code
    more = sessions.incremental(known, 1)
    assert (session_id(more), more.wanted()) == (known, [one._replace(topic="foo") for one in listed])
    assert answers(more, **given) == []
    with pytest.raises(Refused) as refused:
        sessions.incremental(known, 5, listed)
    assert refused.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    throttled = sessions.incremental(known, 2)
    assert (throttled.throttled(), finish(throttled.told([]))) == (known, [])  # rule B4.32
    with pytest.raises(Refused):
        more.throttled()
    final = sessions.full([wanted(2), wanted(3, offset=10)], known, epoch=-1)
    assert (final.session, len(sessions)) == (None, 0)
    assert answers(final, p2=CHANGED, p3=CHANGED) == [2, 3]


@kafka("FST-7")
@pytest.mark.parametrize("uses_ids", [True, False])
def test_partitions_come_and_go(uses_ids: bool) -> None:
    sessions = Sessions()
    topic_id = FOO if uses_ids else None
    foo0, foo1 = wanted(0, topic_id=topic_id), wanted(1, topic_id=topic_id, offset=10)
    bar0 = Wanted("" if uses_ids else "bar", IDS["bar"] if uses_ids else None, 2, 15, 100, 0, -1, -1)
    context = finish(sessions.context(0, 0, -1, [foo0, foo1], (), uses_topic_ids=uses_ids))
    assert answers(context, p0=Read(high_watermark=100, log_start_offset=100), p1=CHANGED) == [0, 1]
    context = sessions.incremental(session_id(context), 1, [bar0], [foo0.key], ids=uses_ids)
    assert [(one.key, one.offset) for one in context.wanted()] == [(foo1.key, 10), (bar0.key, 15)]
    assert answers(context, p1=CHANGED, p2=CHANGED) == [2]


@kafka("FST-10")
@kafka("FST-11")
@pytest.mark.parametrize("uses_ids", [True, False])
def test_a_session_keeps_to_ids_or_names(uses_ids: bool) -> None:
    sessions = Sessions()
    one = wanted(0, topic_id=FOO if uses_ids else None)
    context = finish(sessions.context(0, 0, -1, [one], (), uses_topic_ids=uses_ids))
    assert answers(context, p0=CHANGED) == [0]
    with pytest.raises(Refused) as refused:
        sessions.incremental(session_id(context), 1, ids=not uses_ids)
    assert refused.value.code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@kafka("FST-16")
def test_the_session_that_is_unused_for_longest_makes_room() -> None:
    """The first was used again, the second was not."""
    sessions = Sessions(2, eviction_ms=1000)
    first, second = sessions.create(0, 2), sessions.create(500, 2)
    assert {first, second} == set(sessions._sessions)
    sessions.touch(1000, first)
    third = sessions.create(1501, 2)
    assert {first, third} == set(sessions._sessions)


@kafka("FST-17")
def test_followers_stay_until_they_are_old() -> None:
    sessions = Sessions(2, eviction_ms=1000)
    first = sessions.create(0, 2, follower=True)
    second = sessions.create(500, 2)
    assert {first, second} == set(sessions._sessions)
    third = sessions.create(1000, 2, follower=True)  # the consumer's is younger, and goes
    assert {first, third} == set(sessions._sessions)
    fourth = sessions.create(1501, 2, follower=True)  # a follower's goes by its age
    assert {third, fourth} == set(sessions._sessions)


@kafka("FST-19")
def test_a_diverging_epoch_is_told() -> None:
    sessions = Sessions()
    listed = [with_epochs(i, 5, 4)._replace(offset=100) for i in (1, 2)]
    context = sessions.full(listed)
    same = Read(high_watermark=105, last_stable_offset=105, log_start_offset=0)
    diverging = same._replace(diverging=EpochEnd(3, 90))
    assert answers(context, p1=same, p2=diverging) == [1, 2]
    context = sessions.incremental(session_id(context), 1, listed)
    assert answers(context, p1=same, p2=diverging) == [2]
    assert answers(context, p1=diverging, p2=diverging) == [1, 2]
    assert answers(context, p1=same._replace(high_watermark=110), p2=diverging) == [1, 2]


@kafka("FST-21")
def test_a_partition_is_named_by_its_id_or_else_its_name() -> None:
    named = wanted(0)._replace(topic="foo")
    assert named.key == wanted(0).key != wanted(0, topic_id=UUID(int=2)).key
    by_name = wanted(0, topic_id=None)
    assert by_name.key not in (named.key, by_name._replace(topic="other").key, by_name._replace(partition=1).key)


# a node, whose handler resolves the ids of topics


async def learn(node: RecordNode, *topics: str, hosted: bool = True, **other_ids: UUID) -> None:
    """The node hears of these topics, and leads their partitions 0."""
    for topic in topics:
        topic_id = other_ids.get(topic, IDS[topic])
        state: dict[str, Any] = {"isr": (1,), "replicas": (1,)}
        await node.ask(update_metadata(umr_state(**state), topic=topic, topic_id=topic_id))
        if hosted:
            await node.ask(leader_and_isr(lai_state(is_new=True, **state), topic=topic, topic_id=topic_id))


class Consumer:
    """Fetches partition 0 of topics by their ids, or before version 13 by their names."""

    def __init__(self, node: RecordNode, version: int = 17) -> None:
        self.node = node
        self.version = version
        self.session_id = self.epoch = 0

    async def fetch(self, *topics: str, forget: tuple[str, ...] = ()) -> dict[str, int]:
        """The error codes in the answer."""
        by_id = self.version >= 13
        entry = wire.FetchPartition(partition=0, partition_max_bytes=100)
        request = wire.FetchRequest(
            session_id=self.session_id, session_epoch=self.epoch, max_bytes=1000,
            topics=tuple(
                wire.FetchTopic(topic_id=IDS[name], partitions=(entry,))
                if by_id
                else wire.FetchTopic(topic=name, partitions=(entry,))
                for name in topics
            ),
            forgotten_topics_data=tuple(
                wire.ForgottenTopic(topic_id=IDS[name], partitions=(0,))
                if by_id
                else wire.ForgottenTopic(topic=name, partitions=(0,))
                for name in forget
            ),
        )  # fmt: skip
        answer = await self.node.ask(request, self.version)
        if answer.error_code != ErrorCode.NONE:
            assert answer.responses == ()
            return {"": answer.error_code}
        self.session_id = answer.session_id
        self.epoch += 1
        names = {topic_id: name for name, topic_id in IDS.items()}
        return {
            names[topic.topic_id] if by_id else topic.topic: data.error_code
            for topic in answer.responses
            for data in topic.partitions
        }


@kafka("FST-8")
async def test_names_need_no_ids() -> None:
    async with a_node() as node:
        await learn(node, "bar")
        await learn(node, "foo")
        consumer = Consumer(node, 12)
        assert await consumer.fetch("foo", "bar") == {"foo": 0, "bar": 0}
        assert consumer.session_id > 0


@kafka("FST-9")
@kafka("FST-13")
@kafka("FST-22")
async def test_ids_are_resolved_when_they_become_known() -> None:
    """Each time, what is not resolved yet is told. What is resolved stays so when the topic is gone."""
    async with a_node() as node:
        consumer = Consumer(node)
        assert await consumer.fetch("foo", "bar", "zar") == dict.fromkeys(IDS, UNKNOWN_ID)
        assert consumer.session_id > 0
        await learn(node, "foo")
        assert await consumer.fetch() == {"foo": 0, "bar": UNKNOWN_ID, "zar": UNKNOWN_ID}
        await learn(node, "bar")
        assert await consumer.fetch("bar") == {"bar": 0, "zar": UNKNOWN_ID}
        await learn(node, "zar")
        assert await consumer.fetch() == {"zar": 0}
        assert await consumer.fetch() == {}
        deleted = umr_state(leader=LEADER_DURING_DELETE)
        for topic in IDS:
            await node.ask(update_metadata(deleted, topic=topic, topic_id=IDS[topic]))
            await node.ask(stop_replica((0, -2, True), topic=topic))
        assert await consumer.fetch() == dict.fromkeys(IDS, UNKNOWN)
        assert await consumer.fetch("foo", "bar") == dict.fromkeys(IDS, UNKNOWN)  # also those asked for again


@kafka("FST-12")
async def test_a_topic_that_is_created_again() -> None:
    async with a_node() as node:
        await learn(node, "bar")
        await learn(node, "foo", hosted=False)
        consumer = Consumer(node)
        assert await consumer.fetch("foo", "bar") == {"foo": ErrorCode.NOT_LEADER_OR_FOLLOWER, "bar": 0}
        await learn(node, "foo", foo=UUID(int=99))
        assert await consumer.fetch() == {"foo": ErrorCode.INCONSISTENT_TOPIC_ID}
        assert consumer.session_id > 0


@kafka("FST-14")
@pytest.mark.parametrize("known_first", [True, False])
@pytest.mark.parametrize("known_then", [True, False])
async def test_partitions_are_forgotten_whether_or_not_they_are_known(known_first: bool, known_then: bool) -> None:
    async with a_node() as node:
        if known_first:
            await learn(node, "foo")
        consumer = Consumer(node)
        assert await consumer.fetch("foo", "bar") == {"foo": 0 if known_first else UNKNOWN_ID, "bar": UNKNOWN_ID}
        if known_then:
            await learn(node, "foo")
        assert await consumer.fetch(forget=("foo",)) == {"bar": UNKNOWN_ID}
        assert await consumer.fetch(forget=("bar",)) == {}
        assert consumer.session_id == 0


@kafka("FST-15")
async def test_answers_have_the_ids_of_the_request() -> None:
    async with a_node() as node:
        await learn(node, "foo", hosted=False)
        expected = {"foo": ErrorCode.NOT_LEADER_OR_FOLLOWER, "bar": UNKNOWN_ID}
        without = Consumer(node)
        without.epoch = -1
        assert await without.fetch("foo", "bar") == expected
        assert without.session_id == 0
        consumer = Consumer(node)
        assert await consumer.fetch("foo", "bar") == expected
        assert await consumer.fetch() == expected
        consumer.epoch -= 1
        assert await consumer.fetch() == {"": ErrorCode.INVALID_FETCH_SESSION_EPOCH}
