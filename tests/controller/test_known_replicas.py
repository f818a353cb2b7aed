"""LeaderAndIsr of many existing replicas has the content and the order of a table for every broker (rules 8.3, 8.4).

With numpy and without. Covers: controller/vectorised.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kce import wire
from kce.controller import known_replicas
from kce.controller.context import ControllerContext
from kce.controller.control_requests import BatchConfig, build_leader_and_isr, build_update_metadata
from kce.controller.iteration_order import HashTable
from kce.controller.known_replicas import KnownReplicas, LeaderAndIsrState
from kce.controller.request_batch import ControllerRequestBatch
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicPartition,
)
from tests.controller.support import as_received, broker

VERSION = 7
#: "Aa" and "BB" have the same hash, and so have t10's partition 0 and t00's partition 1
NAMES = st.sampled_from(["Aa", "BB", "t00", "t10", "t20", "orders", "x"])
PARTITIONS = st.lists(
    st.tuples(NAMES, st.integers(0, 40), st.sets(st.integers(1, 4), min_size=1), st.booleans()),
    unique_by=lambda one: one[:2],
    max_size=60,
)


@pytest.fixture(params=[False, True], ids=["plain", "numpy"], scope="module", autouse=True)
def with_numpy(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_replicas, "_MANY", 0 if request.param else 1 << 30)
        yield request.param


def context_of(partitions: list[tuple[str, int, set[int], bool]]) -> ControllerContext:
    """The last field: whether the partition has a leader."""
    context = ControllerContext()
    context.set_live_brokers((broker(i), BrokerEpoch(i)) for i in (1, 2, 3))  # 4 is not alive
    for topic, number, replicas, has_leader in partitions:
        tp, ids = TopicPartition(topic, number), tuple(map(BrokerId, sorted(replicas)))
        context.set_assignment(tp, ReplicaAssignment(ids))
        if has_leader:
            context.put_leadership(tp, Leadership(LeaderAndIsr(ids[0], ids, number), ControllerEpoch(3)))
    return context


def lists_of(context: ControllerContext, *, twice: bool = False) -> dict[BrokerId, list[TopicPartition]]:
    lists = {BrokerId(i): context.partitions_on_broker(BrokerId(i)) for i in (4, 2, 1, 3)}
    return {i: [*found, *found[:1]] if twice else found for i, found in lists.items()}


@example([("Aa", 0, {1, 2}, True), ("BB", 0, {1, 2}, True)], False, False)
@example([("BB", 0, {1, 2}, True), ("Aa", 0, {1, 2}, True)], False, True)
@example([("orders", 0, {1}, True), ("t18", 4, {1}, True)], False, True)  # one bucket, and one hash is negative
@settings(deadline=None)
@given(PARTITIONS, st.booleans(), st.booleans())
def test_states_are_dealt_out_as_tables_are_grouped(
    partitions: list[tuple[str, int, set[int], bool]], twice: bool, at_once: bool
) -> None:
    partitions.sort(key=lambda one: one[0])  # as a failover loads them, topic by topic
    context, known = context_of(partitions), KnownReplicas()
    lists = lists_of(context, twice=twice)
    if at_once:
        known.add(context, context.assignments, lambda tp, replicas: replicas)
    else:
        for one, found in lists.items():
            known.add(context, found, lambda tp, replicas, one=one: (one,))
    expected = {}
    for one, found in lists.items():
        table: HashTable[TopicPartition, LeaderAndIsrState] = HashTable()
        for tp in found:
            if (leadership := context.leadership.get(tp)) is not None:
                table[tp] = LeaderAndIsrState(leadership, context.assignment(tp), False)
        table.grow_as_after(last_is_new=True)
        if table:
            config = BatchConfig(broker_id=BrokerId(1), ibp=LATEST, inter_broker_listener="DATA")
            expected[one] = build_leader_and_isr(VERSION, config, context, BrokerId(1), table).topic_states
    found_topics = {one: topics for one, (topics, _) in known.topics(context, VERSION).items()}
    assert {one: _whole(topics) for one, topics in found_topics.items()} == {
        one: _whole(topics) for one, topics in expected.items()
    }
    for one, table in known.tables().items():
        assert list(table) == [tp for tp in dict.fromkeys(lists[one]) if tp in context.leadership]
        leaders = {state.leadership.leader_and_isr.leader for state in table.values()}
        assert known.topics(context, VERSION)[one].leaders == leaders


def _whole(topics: Any) -> tuple[int, bytes]:
    return topics.elements, b"".join(topics.pieces)


@settings(deadline=None)
@given(PARTITIONS, st.sets(NAMES, max_size=2), st.booleans(), st.sampled_from([5, 8]))
def test_metadata_does_not_depend_on_numpy(
    partitions: list[tuple[str, int, set[int], bool]], deleted: set[str], with_offline_dirs: bool, version: int
) -> None:  # rules 8.8-8.10
    context, known = context_of(partitions), KnownReplicas()
    context.queue_for_deletion(deleted)
    if with_offline_dirs:
        context.replicas_on_offline_dirs[BrokerId(1)] = set(list(context.assignments)[::2])
    known.add(context, context.assignments, lambda tp, replicas: replicas)
    config = BatchConfig(broker_id=BrokerId(1), ibp=LATEST, inter_broker_listener="DATA")
    table = HashTable.of(dict(context.leadership))
    built = [
        _whole(build_update_metadata(version, config, context, table, rows).topic_states)
        for rows in (known.rows_of(table), None)
        if table
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_replicas, "_MANY", 1 << 30)
        plain = [_whole(build_update_metadata(version, config, context, table).topic_states) for _ in built]
    assert built == plain


def test_what_was_added_is_reused_for_metadata_that_is_the_same(with_numpy: bool) -> None:
    context, known = context_of([("t", n, {1, 2}, True) for n in range(3)]), KnownReplicas()
    known.add(context, context.assignments, lambda tp, replicas: replicas)
    whole = dict(context.leadership)
    assert (known.rows_of(whole) is not None) is with_numpy
    (first, its), *others = whole.items()
    for different in ({first: its}, dict([*others, (first, its)]), {**whole, first: Leadership(*its)}):
        assert known.rows_of(different) is None
    known.add(context, [], lambda tp, replicas: replicas)
    assert (known.rows_of(whole) is not None) is with_numpy


class Sent:
    """An outbox."""

    def __init__(self) -> None:
        self.requests: list[tuple[BrokerId, wire.Message]] = []

    def send(self, to: BrokerId, request: wire.Message, api_version: int, on_response: object) -> None:
        self.requests.append((to, as_received(request, api_version)))

    def send_update_metadata(
        self, brokers: dict[BrokerId, BrokerEpoch], request: wire.Message, api_version: int, on_response: object
    ) -> None:
        self.requests += [(to, as_received(request, api_version)) for to in brokers]


@settings(deadline=None)
@given(PARTITIONS, st.sampled_from(["2.8-IV0", "0.11.0"]), st.booleans())
def test_a_batch_with_something_else_sends_the_same(
    partitions: list[tuple[str, int, set[int], bool]], ibp: str, new_first: bool
) -> None:
    """A new replica, before or after the known ones: its is_new stays set only if it came first (rule 8.5)."""
    context = context_of(partitions)
    led = list(context.leadership)

    def batch() -> tuple[ControllerRequestBatch, Sent]:
        sent = Sent()
        config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener="DATA")
        return ControllerRequestBatch(config, context, sent, None), sent  # type: ignore[arg-type]

    def add_new(to: ControllerRequestBatch) -> None:
        if led:
            tp = led[0]
            to.add_leader_and_isr([BrokerId(2)], tp, context.leadership[tp], context.assignment(tp), is_new=new_first)

    many, sent_by_many = batch()
    each, sent_by_each = batch()
    if new_first:
        add_new(many)
        add_new(each)
    for one, found in lists_of(context).items():
        many.add_known_leader_and_isr(one, found)
        for tp in found:
            if tp in context.leadership:
                each.add_leader_and_isr([one], tp, context.leadership[tp], context.assignment(tp), is_new=False)
    if not new_first:
        add_new(many)
        add_new(each)
    many.send()
    each.send()
    mine, theirs = (
        [r for r in s.requests if isinstance(r[1], wire.LeaderAndIsrRequest)] for s in (sent_by_many, sent_by_each)
    )
    assert mine == theirs
    if led:
        assert len(sent_by_many.requests) == len(sent_by_each.requests)


@settings(deadline=None)
@given(PARTITIONS, st.sampled_from(["2.8-IV0", "0.11.0"]), st.booleans(), st.booleans())
def test_what_is_added_at_once_is_what_is_added_one_by_one(
    partitions: list[tuple[str, int, set[int], bool]], ibp: str, new_first: bool, twice: bool
) -> None:
    """To all replicas but broker 1, and with ``twice`` then to all but broker 2 what has become of them."""
    partitions.sort(key=lambda one: one[0])  # else topics of equal hash may come in another order
    context = context_of(partitions)
    sent = []
    for at_once in (True, False):
        sent.append(Sent())
        config = BatchConfig(broker_id=BrokerId(1), ibp=MetadataVersion.parse(ibp), inter_broker_listener="DATA")
        batch = ControllerRequestBatch(config, context, sent[-1], None)  # type: ignore[arg-type]
        led = dict(context.leadership)
        if new_first and led:
            tp = next(iter(led))
            batch.add_leader_and_isr([BrokerId(3)], tp, led[tp], context.assignment(tp), is_new=True)
        for gone in (1, 2) if twice else (1,):
            if at_once:
                batch.add_all_leader_and_isr(led, lambda tp, rs, gone=gone: (-1, *(r for r in rs if r != gone)))  # type: ignore[misc]
            else:
                for tp in led:
                    others = [r for r in context.replicas(tp) if r != gone]
                    batch.add_leader_and_isr(others, tp, context.leadership[tp], context.assignment(tp), is_new=False)
            context.put_all_leadership({tp: Leadership(known[0].new_epoch(), known[1]) for tp, known in led.items()})
        batch.send()
        context.put_all_leadership(led)
    assert sent[0].requests == sent[1].requests
