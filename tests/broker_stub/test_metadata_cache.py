"""Effects of UpdateMetadata on the cache (rules 9.35-9.42)."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace

import pytest
import trio

from kce import wire
from kce.broker_stub import Endpoint, TopicPartition
from kce.broker_stub.metadata_cache import MetadataCache, MetadataSnapshot
from kce.wire import ErrorCode
from tests.broker_stub.support import ID_A, ID_B, NO_ID, Node, umr_broker, umr_state, update_metadata

A0 = TopicPartition("a", 0)
LEADER_DURING_DELETE = -2


async def _updated(*requests: tuple[wire.UpdateMetadataRequest, int] | wire.UpdateMetadataRequest) -> MetadataSnapshot:
    node = Node()
    for request in requests:
        message, version = request if isinstance(request, tuple) else (request, 8)
        assert (await node.ask(message, version)).error_code == ErrorCode.NONE
    return node.cache.snapshot


def test_a_fresh_cache_is_empty() -> None:  # rule B7.1
    snapshot = MetadataCache(1).snapshot
    assert (snapshot.controller_id, dict(snapshot.alive_brokers), dict(snapshot.topics)) == (None, {}, {})


async def test_brokers_and_controller_are_replaced() -> None:  # rule 9.35
    snapshot = await _updated(
        update_metadata(alive=(1, 2, umr_broker(3, rack="r")), controller_id=1),
        update_metadata(alive=(umr_broker(2, ("DATA",)), 4), controller_id=2),
    )
    assert sorted(snapshot.alive_brokers) == [2, 4]
    assert dict(snapshot.alive_brokers[2].endpoints) == {"DATA": Endpoint("DATA", "PLAINTEXT", "host2", 9020)}
    assert snapshot.controller_id == 2


@pytest.mark.parametrize(("sent", "expected"), [(-2, None), (-1, None), (0, 0), (7, 7)])
async def test_a_negative_controller_id_is_none(sent, expected) -> None:  # rule 9.35
    assert (await _updated(update_metadata(controller_id=sent))).controller_id == expected


@pytest.mark.kafka("MC-15")
async def test_a_partition_state_is_kept_as_it_was_sent() -> None:  # rule 9.36
    state = umr_state(
        leader=0, leader_epoch=0, isr=(2, 3, 0), zk_version=3, replicas=(2, 3, 0, 1, 4), offline_replicas=(0,)
    )
    snapshot = await _updated(update_metadata(state, alive=(0,)))
    assert state.controller_epoch == 1
    assert snapshot.partition(A0) == state


@pytest.mark.kafka("MC-9")
async def test_a_leader_that_is_offline_and_unreachable_is_kept() -> None:  # rules 9.35, 9.36
    """Broker 1 is alive without a listener."""
    state = umr_state(leader=1, isr=(0, 1), zk_version=3, replicas=(0, 1), offline_replicas=(1,))
    brokers = (umr_broker(0, ("DATA",), rack="r"), umr_broker(1, ()))
    snapshot = await _updated(update_metadata(state, alive=brokers, topic_id=NO_ID))
    assert snapshot.endpoint(0, "DATA") == Endpoint("DATA", "PLAINTEXT", "host0", 9000)
    assert snapshot.alive_brokers[0].rack == "r"
    assert snapshot.endpoint(1, "DATA") is None
    assert [broker.broker_id for broker, _ in snapshot.reachable_brokers("DATA")] == [0]
    known = snapshot.partition(A0)
    assert known is not None
    assert (known.leader, known.replicas, known.isr, known.offline_replicas) == (1, (0, 1), (0, 1), (1,))


async def test_partition_states_are_merged_unchanged() -> None:  # rule 9.36
    first = umr_state(0, leader_epoch=5, zk_version=9, offline_replicas=(3,))
    snapshot = await _updated(update_metadata(first, umr_state(1)), update_metadata(umr_state(1, leader=2)))
    assert snapshot.partition(A0) == first
    assert snapshot.partition(TopicPartition("a", 1)).leader == 2
    assert snapshot.partition(TopicPartition("a", 2)) is None
    assert snapshot.partition(TopicPartition("b", 0)) is None


async def test_the_last_request_wins_with_any_leader_epoch() -> None:  # rule 9.36
    snapshot = await _updated(
        update_metadata(umr_state(leader_epoch=9, zk_version=9)),
        update_metadata(umr_state(leader_epoch=2, zk_version=1)),
    )
    assert snapshot.partition(A0).leader_epoch == 2


async def test_leader_minus_2_deletes_partitions_and_finally_topic_and_id() -> None:  # rule 9.36
    both = update_metadata(umr_state(0), umr_state(1))
    one_gone = update_metadata(umr_state(0, leader=LEADER_DURING_DELETE))
    snapshot = await _updated(both, one_gone)
    assert list(snapshot.topics["a"]) == [1]
    assert snapshot.topic_id("a") == ID_A
    snapshot = await _updated(both, one_gone, update_metadata(umr_state(1, leader=LEADER_DURING_DELETE)))
    assert dict(snapshot.topics) == {}
    assert dict(snapshot.topic_ids) == dict(snapshot.topic_names) == {}


async def test_deleting_an_unknown_partition_is_accepted() -> None:  # rule 9.36
    snapshot = await _updated(update_metadata(umr_state(0, leader=LEADER_DURING_DELETE), topic="x"))
    assert (dict(snapshot.topics), dict(snapshot.topic_ids)) == ({}, {})


def test_update_returns_the_deleted_partitions() -> None:  # rule 9.40
    cache = MetadataCache(1)
    assert cache.update(update_metadata(umr_state(0), umr_state(1))) == []
    assert cache.update(update_metadata(umr_state(0, leader=-2), umr_state(1))) == [A0]


@pytest.mark.parametrize(("version", "expected"), [(8, ID_B), (7, ID_B), (6, NO_ID), (5, NO_ID)])
async def test_topic_ids_follow_the_request_and_are_removed_by_versions_without(version, expected) -> None:  # rule 9.37
    second = update_metadata(umr_state(), topic_id=ID_B)
    snapshot = await _updated(update_metadata(umr_state()), (second, version))
    assert snapshot.topic_id("a") == expected
    assert dict(snapshot.topic_names) == ({} if expected == NO_ID else {ID_B: "a"})


@pytest.mark.parametrize("version", range(5))
async def test_ungrouped_versions_keep_topic_ids(version) -> None:  # rule 9.37
    old = wire.UpdateMetadataRequest(
        controller_epoch=1, ungrouped_partition_states=(umr_state(topic_name="a", leader_epoch=8),)
    )
    snapshot = await _updated(update_metadata(umr_state()), (old, version))
    assert snapshot.topic_id("a") == ID_A
    assert snapshot.partition(A0).leader_epoch == 8


async def test_ids_of_unlisted_topics_stay() -> None:  # rule 9.37
    snapshot = await _updated(
        update_metadata(umr_state()), (update_metadata(umr_state(), topic="b", topic_id=NO_ID), 5)
    )
    assert (snapshot.topic_id("a"), snapshot.topic_id("b")) == (ID_A, NO_ID)


async def test_a_topic_without_partitions_only_gets_its_id() -> None:  # rule 9.37
    bare = wire.UpdateMetadataRequest(
        controller_epoch=1, topic_states=(wire.UpdateMetadataTopicState(topic_name="a", topic_id=ID_B),)
    )
    snapshot = await _updated(update_metadata(umr_state()), bare)
    assert snapshot.topic_id("a") == ID_B
    assert snapshot.partition(A0) is not None


def _of_kraft(*topics: wire.UpdateMetadataTopicState) -> wire.UpdateMetadataRequest:
    return wire.UpdateMetadataRequest(
        controller_id=0, is_kraft_controller=True, controller_epoch=123, broker_epoch=456, topic_states=topics
    )


def _topic(name: str, topic_id: uuid.UUID, *states: wire.UpdateMetadataPartitionState) -> wire.UpdateMetadataTopicState:
    return wire.UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=states)


FOO = (umr_state(0, leader=5, isr=(4, 5, 6)), umr_state(1, leader=5, isr=(4, 5, 6)))
BAR = (umr_state(0, leader=7, isr=(7, 8)), umr_state(1, leader=5, isr=(4, 5, 6)))


@pytest.mark.kafka("MC-23")
async def test_a_kraft_controllers_request_is_applied() -> None:
    snapshot = await _updated(_of_kraft(_topic("foo", ID_A, *FOO), _topic("bar", ID_B, *BAR)))
    assert dict(snapshot.topic_ids) == {"foo": ID_A, "bar": ID_B}
    assert dict(snapshot.topic_names) == {ID_A: "foo", ID_B: "bar"}
    assert {name: dict(states) for name, states in snapshot.topics.items()} == {
        "foo": dict(enumerate(FOO)),
        "bar": dict(enumerate(BAR)),
    }


@pytest.mark.kafka("MC-24")
async def test_a_kraft_controllers_second_request_is_applied() -> None:
    changed = (umr_state(0, leader=4, isr=(4, 5)), umr_state(1, leader=4, isr=(4, 5)))
    snapshot = await _updated(
        _of_kraft(_topic("foo", ID_A, *FOO), _topic("bar", ID_B, *BAR)),
        _of_kraft(_topic("foo", ID_A, *changed), _topic("bar", ID_B, *BAR)),
    )
    assert dict(snapshot.topic_ids) == {"foo": ID_A, "bar": ID_B}
    assert dict(snapshot.topic_names) == {ID_A: "foo", ID_B: "bar"}
    assert {name: dict(states) for name, states in snapshot.topics.items()} == {
        "foo": dict(enumerate(changed)),
        "bar": dict(enumerate(BAR)),
    }


async def test_a_topic_deleted_and_created_again_in_one_request_has_its_new_id() -> None:
    topics = tuple(
        wire.UpdateMetadataTopicState(topic_name="a", topic_id=topic_id, partition_states=(state,))
        for topic_id, state in ((ID_A, umr_state(leader=LEADER_DURING_DELETE)), (ID_B, umr_state(leader=2)))
    )
    recreated = wire.UpdateMetadataRequest(controller_epoch=1, topic_states=topics)
    snapshot = await _updated(update_metadata(umr_state()), recreated)
    assert snapshot.topic_id("a") == ID_B
    assert snapshot.partition(A0).leader == 2


async def test_a_request_without_partitions_still_replaces_brokers_and_controller() -> None:  # rule 9.38
    snapshot = await _updated(update_metadata(umr_state()), update_metadata(alive=(2,), controller_id=2))
    assert (list(snapshot.alive_brokers), snapshot.controller_id) == ([2], 2)
    assert snapshot.partition(A0) is not None


async def test_different_listeners_are_accepted_and_logged_as_an_error(caplog) -> None:  # rule 9.39
    await _updated(update_metadata(alive=(1, 2)))
    assert not caplog.records
    snapshot = await _updated(update_metadata(alive=(1, umr_broker(2, ("DATA",)))))
    assert sorted(snapshot.alive_brokers) == [1, 2]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "Listeners are not the same" in record.getMessage()


@pytest.mark.parametrize("version", range(9))
async def test_every_version_updates_brokers_and_partitions(version) -> None:  # rules 13.16-13.21
    endpoint = wire.UpdateMetadataEndpoint(host="h", port=1, listener="DATA")
    plaintext = wire.UpdateMetadataEndpoint(host="h", port=1, listener="PLAINTEXT")
    broker = wire.UpdateMetadataBroker(
        id=1,
        v0_host="h" if version == 0 else "",
        v0_port=1 if version == 0 else 0,
        endpoints=(endpoint if version >= 3 else plaintext,),
        rack="r",
    )
    state = umr_state(offline_replicas=(3,), topic_name="a" if version < 5 else "")
    if version < 5:
        fields = {"ungrouped_partition_states": (state,)}
    else:
        topic = wire.UpdateMetadataTopicState(topic_name="a", topic_id=ID_A, partition_states=(state,))
        fields = {"topic_states": (topic,)}
    request = wire.UpdateMetadataRequest(controller_epoch=1, live_brokers=(broker,), **fields)
    snapshot = await _updated((request, version))
    name = "DATA" if version >= 3 else "PLAINTEXT"
    assert snapshot.endpoint(1, name) == Endpoint(name, "PLAINTEXT", "h", 1)
    assert snapshot.alive_brokers[1].rack == ("r" if version >= 2 else "")
    assert snapshot.partition(A0).isr == (1, 2, 3)
    assert snapshot.partition(A0).offline_replicas == ((3,) if version >= 4 else ())
    assert snapshot.topic_id("a") == (ID_A if version >= 7 else NO_ID)


async def test_old_versions_name_listeners_after_their_protocols() -> None:  # rule 13.21
    endpoints = tuple(wire.UpdateMetadataEndpoint(host="h", port=port, security_protocol=port) for port in range(4))
    broker = wire.UpdateMetadataBroker(id=1, endpoints=endpoints)
    snapshot = await _updated((wire.UpdateMetadataRequest(controller_epoch=1, live_brokers=(broker,)), 2))
    assert list(snapshot.alive_brokers[1].endpoints) == ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]


@pytest.mark.parametrize("version", [1, 2, 3, 8])
async def test_two_endpoints_of_one_listener_fail_and_change_nothing(version) -> None:  # rule 13.21
    """In versions 1 and 2 the listeners of a broker are the same if their protocols are."""
    twice = tuple(wire.UpdateMetadataEndpoint(host="h", port=port, listener="A") for port in (1, 2))
    other = wire.UpdateMetadataBroker(id=2, endpoints=twice[:1])
    node = Node()
    accepted = update_metadata(alive=(1,), controller_epoch=4)
    assert await node.ask(accepted, 8) == wire.UpdateMetadataResponse()
    before = node.cache.snapshot
    bad = wire.UpdateMetadataRequest(
        controller_epoch=5, live_brokers=(other, wire.UpdateMetadataBroker(id=1, endpoints=twice))
    )
    answer = await node.ask(bad, version)
    assert answer == wire.UpdateMetadataResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    assert node.cache.snapshot is before
    assert node.replicas.controller_epoch == 4


@pytest.mark.parametrize("version", [0, 8])
async def test_a_broker_without_endpoints_is_alive_but_unreachable(version) -> None:
    request = wire.UpdateMetadataRequest(controller_epoch=1, live_brokers=(wire.UpdateMetadataBroker(id=1),))
    snapshot = await _updated((request, version))
    assert dict(snapshot.alive_brokers[1].endpoints) == {}


async def test_a_full_update_deletes_nothing_without_migration() -> None:  # rule 9.42
    full = wire.UpdateMetadataRequest(controller_epoch=1, type=2)
    assert (await _updated(update_metadata(umr_state()), full)).partition(A0) is not None


@pytest.mark.kafka("MC-8")
async def test_snapshots_are_immutable() -> None:
    node = Node()
    await node.ask(update_metadata(umr_state(0), alive=(1, 2)))
    held = node.cache.snapshot
    await node.ask(update_metadata(umr_state(0, leader=2), umr_state(1), alive=(1,), topic_id=uuid.uuid4()))
    assert sorted(node.cache.snapshot.alive_brokers) == [1]
    assert (sorted(held.alive_brokers), held.partition(A0).leader, list(held.topics["a"])) == ([1, 2], 1, [0])
    assert held.topic_id("a") == ID_A
    with pytest.raises(TypeError):
        held.topics["a"][5] = umr_state()  # type: ignore[index]


def test_endpoints_are_found_by_broker_and_listener() -> None:
    cache = MetadataCache(1)
    assert cache.snapshot.controller_endpoint("DATA") is None
    cache.update(update_metadata(alive=(1, umr_broker(2, ("DATA",))), controller_id=2))
    assert cache.snapshot.controller_endpoint("DATA") == Endpoint("DATA", "PLAINTEXT", "host2", 9020)
    assert cache.snapshot.controller_endpoint("CONTROL") is None
    assert cache.snapshot.endpoint(3, "DATA") is None


async def test_wait_until_returns_when_the_condition_becomes_true(autojump_clock) -> None:
    cache = MetadataCache(1)
    seen = []

    async def wait() -> None:
        seen.append(await cache.wait_until(lambda snapshot: len(snapshot.alive_brokers) == 2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        cache.update(update_metadata(alive=(1,)))
        await trio.testing.wait_all_tasks_blocked()
        assert not seen
        cache.update(update_metadata(alive=(1, 2)))
    assert seen == [cache.snapshot]
    assert await cache.wait_until(lambda snapshot: True) is cache.snapshot


def test_two_topics_with_one_id_get_ids_of_their_own() -> None:
    cache = MetadataCache(1)
    for ids in ((ID_A, ID_A), (ID_B, uuid.UUID(int=99))):
        topics = tuple(
            wire.UpdateMetadataTopicState(topic_name=name, topic_id=topic_id, partition_states=(umr_state(0),))
            for name, topic_id in zip("ab", ids, strict=True)
        )
        cache.update(replace(update_metadata(), topic_states=topics))
    assert cache.snapshot.topic_names == {ID_B: "a", uuid.UUID(int=99): "b"}
    assert [cache.snapshot.topic_id(name) for name in "ab"] == [ID_B, uuid.UUID(int=99)]


def test_a_topic_keeps_the_id_that_another_gives_up() -> None:
    cache = MetadataCache(1)
    for name, topic_id in (("a", ID_A), ("b", ID_A), ("b", ID_B)):
        cache.update(update_metadata(umr_state(0), topic=name, topic_id=topic_id))
    assert cache.snapshot.topic_names == {ID_A: "a", ID_B: "b"}
