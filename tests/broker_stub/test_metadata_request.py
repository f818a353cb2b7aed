"""Metadata responses (rules B7.1-B7.10) of broker 1, by default on listener DATA.

Covers: broker_stub/handlers/metadata.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub import metadata_cache
from kce.broker_stub.metadata_cache import EncodedTopics
from kce.wire import ErrorCode
from kce.wire.vocabulary import is_valid_topic_name
from tests.broker_stub.support import ID_A, ID_B, NO_ID, Node, answer_of, umr_broker, umr_state, update_metadata

INT32_MIN = -(2**31)


def _named(*names: str | None) -> tuple[wire.MetadataRequestTopic, ...]:
    return tuple(wire.MetadataRequestTopic(name=name) for name in names)


async def _node(*states: wire.UpdateMetadataPartitionState, **more) -> Node:
    node = Node(auto_create_topics_enable="false")
    await node.ask(update_metadata(*(states or (umr_state(),)), **more))
    return node


async def _partition(node: Node, version: int, listener: str = "DATA") -> wire.MetadataResponsePartition:
    answer = await node.ask(wire.MetadataRequest(topics=_named("a")), version, listener=listener)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(13))
async def test_a_new_broker_has_no_metadata(version) -> None:  # rule B7.1
    answer = await Node().ask(wire.MetadataRequest(topics=()), version)
    assert (answer.brokers, answer.topics, answer.controller_id) == ((), (), -1)


@pytest.mark.kafka("MDR-10")
@pytest.mark.parametrize("version", range(13))
async def test_null_and_in_version_0_empty_mean_all_topics(version) -> None:  # rule B7.1
    node = await _node()
    await node.ask(update_metadata(umr_state(), topic="b", topic_id=ID_B))
    answer = await node.ask(wire.MetadataRequest(topics=() if version == 0 else None), version)
    assert sorted(topic.name for topic in answer.topics) == ["a", "b"]


ALL_TOPICS_OF_LIBRDKAFKA = bytes.fromhex("0003 000c 00000002 0007 72646b61666b61 00 00000000 01 00 00")


@pytest.mark.parametrize("version", [11, 12])
async def test_librdkafkas_three_extra_bytes_are_accepted(version) -> None:
    frame = ALL_TOPICS_OF_LIBRDKAFKA[:3] + bytes((version,)) + ALL_TOPICS_OF_LIBRDKAFKA[4:]
    header, message = Node().apis.decode(frame)
    assert isinstance(message, wire.MetadataRequest)
    assert (header.api_version, header.client_id, message.topics) == (version, "rdkafka", None)


@pytest.mark.kafka("MDR-6")
@pytest.mark.kafka("MDR-15")
@pytest.mark.parametrize("version", range(1, 13))
async def test_an_empty_list_means_no_topics(version) -> None:  # rule B7.1
    answer = await (await _node()).ask(wire.MetadataRequest(topics=()), version)
    assert answer.topics == ()
    assert [broker.node_id for broker in answer.brokers] == [1, 2, 3]


@pytest.mark.kafka("MC-2")
@pytest.mark.parametrize("listener", ["CONTROL", "DATA"])
async def test_partitions_of_two_topics(listener) -> None:  # rules B7.5, B7.8
    of_a = (
        umr_state(0, leader=0, leader_epoch=0, isr=(0, 1, 3), replicas=(0, 1, 3), zk_version=3),
        umr_state(1, leader=1, leader_epoch=1, isr=(1, 0), replicas=(1, 2, 0, 4), zk_version=3),
    )
    of_b = (umr_state(0, leader=2, leader_epoch=2, isr=(2, 1), replicas=(2, 1, 3), zk_version=3),)
    node = await _node(*of_a, alive=range(5))
    await node.ask(update_metadata(*of_b, topic="b", topic_id=ID_B, alive=range(5)))
    for name, topic_id, states in (("a", ID_A, of_a), ("b", ID_B, of_b)):
        (topic,) = (await node.ask(wire.MetadataRequest(topics=_named(name)), listener=listener)).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.NONE, name, topic_id)
        assert [
            (p.error_code, p.partition_index, p.leader_id, p.leader_epoch, p.isr_nodes, p.replica_nodes)
            for p in topic.partitions
        ] == [(ErrorCode.NONE, s.partition_index, s.leader, s.leader_epoch, s.isr, s.replicas) for s in states]


@pytest.mark.kafka("MDR-12")
@pytest.mark.parametrize("version", range(13))
async def test_topics_are_described_as_in_update_metadata(version) -> None:  # rules B7.5, B7.8
    state = umr_state(4, leader=2, leader_epoch=7, isr=(2, 1), replicas=(2, 1, 3), offline_replicas=(3,))
    answer = await (await _node(state)).ask(wire.MetadataRequest(topics=_named("a")), version)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "a")
    assert topic.topic_id == (ID_A if version >= 10 else NO_ID)
    assert topic.topic_authorized_operations == INT32_MIN
    (partition,) = topic.partitions
    assert (partition.error_code, partition.partition_index, partition.leader_id) == (0, 4, 2)
    assert (partition.replica_nodes, partition.isr_nodes) == ((2, 1, 3), (2, 1))
    assert partition.leader_epoch == (7 if version >= 7 else -1)
    assert partition.offline_replicas == ((3,) if version >= 5 else ())


@pytest.mark.kafka("MC-1")
@pytest.mark.parametrize("version", range(13))
@pytest.mark.parametrize("allowed", [True, False])
async def test_an_unknown_topic_is_not_created_unless_the_setting_says_so(version, allowed) -> None:  # rule B7.4
    message = wire.MetadataRequest(topics=_named("nope"), allow_auto_topic_creation=allowed or version < 4)
    (topic,) = (await (await _node()).ask(message, version)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nope", NO_ID)
    assert topic.partitions == ()


@pytest.mark.kafka("TKA-6")
async def test_the_topic_of_transactions_is_internal_though_it_does_not_exist() -> None:  # rule B7.4
    message = wire.MetadataRequest(topics=_named("__transaction_state"), allow_auto_topic_creation=False)
    (topic,) = (await (await _node()).ask(message, 12)).topics
    assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "__transaction_state")
    assert (topic.is_internal, topic.partitions) == (True, ())


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
async def test_an_invalid_name(name) -> None:  # rule B7.4
    (topic,) = (await (await _node()).ask(wire.MetadataRequest(topics=_named(name)))).topics
    assert (topic.error_code, topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    assert not is_valid_topic_name(name)


@pytest.mark.parametrize("name", ["a", "...", "a.b_c-D9", "x" * 249])
def test_a_valid_name(name) -> None:
    assert is_valid_topic_name(name)


async def test_a_duplicate_name_is_answered_once() -> None:
    answer = await (await _node()).ask(wire.MetadataRequest(topics=_named("a", "b", "a")))
    assert [topic.name for topic in answer.topics] == ["a", "b"]


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(
    "topic", [wire.MetadataRequestTopic(name=None), wire.MetadataRequestTopic(topic_id=ID_A, name="a")]
)
async def test_ids_and_null_names_are_refused_before_version_12(version, topic) -> None:  # rule B7.2
    answer = await (await _node()).ask(wire.MetadataRequest(topics=(topic, *_named("b"))), version)
    assert [t.error_code for t in answer.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert [t.name for t in answer.topics] == [topic.name or "", "b"]
    assert answer.brokers == ()


async def test_names_are_ignored_in_requests_by_id() -> None:  # rule B7.2
    topics = (
        wire.MetadataRequestTopic(topic_id=ID_A, name=None),
        wire.MetadataRequestTopic(topic_id=ID_B, name=None),
        wire.MetadataRequestTopic(name=None),
        *_named("a"),
    )
    known, unknown = (await (await _node()).ask(wire.MetadataRequest(topics=topics))).topics
    assert (known.error_code, known.name, known.topic_id, len(known.partitions)) == (0, "a", ID_A, 1)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, ID_B)


async def test_a_topic_without_name_and_id_fails_a_request_by_name() -> None:  # rule B7.2
    topics = (wire.MetadataRequestTopic(name=None), *_named("a"))
    answer = await (await _node()).ask(wire.MetadataRequest(topics=topics), 12)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("", ErrorCode.UNKNOWN_SERVER_ERROR), ("a", ErrorCode.UNKNOWN_SERVER_ERROR),
    ]  # fmt: skip


async def test_an_id_of_a_topic_without_partitions_is_unknown() -> None:
    bare = wire.UpdateMetadataTopicState(topic_name="b", topic_id=ID_B)
    node = Node()
    await node.ask(wire.UpdateMetadataRequest(controller_epoch=1, topic_states=(bare,)))
    (topic,) = (
        await node.ask(wire.MetadataRequest(topics=(wire.MetadataRequestTopic(topic_id=ID_B, name=None),)))
    ).topics
    assert (topic.error_code, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, ID_B)


@pytest.mark.kafka("MC-3")
@pytest.mark.parametrize("leader", [-1, 2])
@pytest.mark.parametrize("version", range(13))
async def test_no_leader_or_a_dead_one_is_leader_not_available(version, leader) -> None:  # rule B7.5
    node = await _node(umr_state(leader=leader, leader_epoch=7, isr=(1,), replicas=(1, 3)), alive=(1, 3))
    partition = await _partition(node, version)
    assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert partition.leader_epoch == (7 if version >= 7 else -1)
    assert (partition.replica_nodes, partition.isr_nodes) == ((1, 3), (1,))


@pytest.mark.parametrize("version", range(13))
@pytest.mark.parametrize(
    "isr",
    [pytest.param((1, 2), marks=pytest.mark.kafka("MC-4")), pytest.param((1, 2, 3), marks=pytest.mark.kafka("MC-7"))],
)
async def test_a_leader_without_the_listener_is_listener_not_found(version, isr) -> None:  # rule B7.5
    node = await _node(umr_state(leader=2, isr=isr, replicas=(1, 2)), alive=(1, umr_broker(2, ("DATA",))))
    partition = await _partition(node, version, "CONTROL")
    expected = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    assert (partition.error_code, partition.leader_id) == (expected, -1)
    assert partition.isr_nodes == ((1,) if version == 0 else isr)
    assert partition.replica_nodes == ((1,) if version == 0 else (1, 2))
    assert (await _partition(node, version, "DATA")).leader_id == 2


@pytest.mark.kafka("MDR-13")
@pytest.mark.parametrize("version", range(13))
@pytest.mark.parametrize(
    ("replicas", "isr"),
    [
        pytest.param((1, 2, 3), (1, 3), marks=pytest.mark.kafka("MC-5")),
        pytest.param((1, 3), (1, 2, 3), marks=pytest.mark.kafka("MC-6")),
    ],
)
async def test_only_version_0_omits_dead_replicas(version, replicas, isr) -> None:  # rule B7.6
    node = await _node(umr_state(replicas=replicas, isr=isr), alive=(1, 3))
    partition = await _partition(node, version)
    assert partition.leader_id == 1
    if version == 0:
        assert partition.error_code == ErrorCode.REPLICA_NOT_AVAILABLE
        assert (partition.replica_nodes, partition.isr_nodes) == ((1, 3), (1, 3))
    else:
        assert partition.error_code == ErrorCode.NONE
        assert (partition.replica_nodes, partition.isr_nodes) == (replicas, isr)


@pytest.mark.kafka("MDR-4")
@pytest.mark.parametrize("version", range(13))
async def test_only_brokers_with_the_request_listener_are_listed(version) -> None:  # rules B7.7, 9.67
    node = await _node(alive=(umr_broker(1, rack="r"), umr_broker(2, ("DATA",))))

    async def brokers(listener: str) -> list[tuple[int, str, int]]:
        answer = await node.ask(wire.MetadataRequest(topics=()), version, listener=listener)
        assert answer.brokers[0].rack == ("r" if version >= 1 else None)
        return [(b.node_id, b.host, b.port) for b in answer.brokers]

    assert await brokers("CONTROL") == [(1, "host1", 9010)]
    assert await brokers("DATA") == [(1, "host1", 9011), (2, "host2", 9020)]


@pytest.mark.kafka("MDR-1")
@pytest.mark.kafka("MDR-2")
@pytest.mark.kafka("MDR-3")
@pytest.mark.parametrize("version", range(13))
async def test_cluster_id_and_controller_id(version) -> None:  # rules B7.7, B7.8
    node = await _node(controller_id=2)
    answer = await node.ask(wire.MetadataRequest(topics=()), version)
    assert answer.cluster_id == ("cluster" if version >= 2 else None)
    assert answer.controller_id == (2 if version >= 1 else -1)
    await node.ask(update_metadata(controller_id=77))  # not alive, which is not checked
    assert (await node.ask(wire.MetadataRequest(topics=()), 12)).controller_id == 77


@pytest.mark.kafka("MDR-5")
@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__other"])
async def test_internal_topics_are_flagged(name) -> None:  # rule B7.9
    node = await _node(topic=name)
    for topics in (None, _named(name)):
        (topic,) = (await node.ask(wire.MetadataRequest(topics=topics))).topics
        assert topic.is_internal is (name != "__other")
    (unknown,) = (await (await _node()).ask(wire.MetadataRequest(topics=_named(name)))).topics
    assert unknown.is_internal is (name != "__other")


@pytest.mark.kafka("MDR-11")
async def test_a_topic_without_id_has_the_zero_id() -> None:
    node = await _node(topic_id=NO_ID)
    (topic,) = (await node.ask(wire.MetadataRequest(topics=_named("a")))).topics
    assert topic.topic_id == NO_ID


async def test_all_authorized_operations_are_returned_on_request() -> None:  # rule B7.8
    node = await _node()
    for version in range(8, 13):
        message = wire.MetadataRequest(
            topics=_named("a"),
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=version <= 10,
        )
        answer = await node.ask(message, version)
        # READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS are 3 to 8, 10 and 11
        assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000
        # CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS IDEMPOTENT_WRITE: 5, 7 to 12
        assert answer.cluster_authorized_operations == (0b1_1111_1010_0000 if version <= 10 else INT32_MIN)


async def _topic(node: Node, listener: str = "DATA", version: int = 12, **more) -> wire.MetadataResponseTopic:
    answer = await node.ask(wire.MetadataRequest(topics=_named("a"), **more), version, listener=listener)
    return answer.topics[0]


async def test_unchanged_topics_are_encoded_once(monkeypatch) -> None:
    node = await _node(*(umr_state(i) for i in range(5)))
    encoded = []
    monkeypatch.setattr(
        wire, "encode_part", lambda part, real=wire.encode_part, **how: encoded.append(part) or real(part, **how)
    )
    first = await _topic(node)
    assert len(encoded) == 9  # a topic, its partitions, and three brokers
    await node.ask(update_metadata(umr_state(), topic="b", topic_id=ID_B))  # changes another topic
    assert await _topic(node) == first
    assert len(encoded) == 9  # a topic, its partitions, and three brokers


async def test_a_changed_topic_is_encoded_again() -> None:
    node = await _node(umr_state(leader=2))
    assert (await _topic(node)).partitions[0].leader_id == 2
    await node.ask(update_metadata(umr_state(leader=3)))
    assert (await _topic(node)).partitions[0].leader_id == 3
    await node.ask(update_metadata(alive=(1, 2)))  # no partition changes, but the leader is gone
    assert (await _topic(node)).partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    await node.ask(update_metadata(alive=(1, 2, umr_broker(3, ("DATA",)))))
    assert (await _topic(node)).partitions[0].leader_id == 3
    assert (await _topic(node, "CONTROL")).partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
    await node.ask(update_metadata(umr_state(leader=3), topic_id=ID_B))
    assert (await _topic(node)).topic_id == ID_B
    assert (await _topic(node, include_topic_authorized_operations=True)).topic_authorized_operations > 0
    assert (await _topic(node)).topic_authorized_operations == INT32_MIN
    assert (await _topic(node, version=4)).partitions[0].leader_epoch == -1


def test_encoded_topics_take_bounded_memory(monkeypatch) -> None:
    monkeypatch.setattr(metadata_cache, "MAX_ENCODED_BYTES", 1000)
    encoded, fact = EncodedTopics(), object()
    for i in range(100):
        encoded.put(i, (fact,), (bytes(100), {0: i}))
        assert encoded.get(i, (fact,)) == (bytes(100), {0: i})
        assert encoded.get(i, (object(),)) is None
    assert sum(encoded.get(i, (fact,)) is not None for i in range(100)) <= 10


@pytest.mark.parametrize("version", [0, 9, 12])
async def test_a_long_request_is_answered_in_steps(version) -> None:
    names = ["a", *(f"unknown{i}" for i in range(3000)), "not valid"]
    node = await _node()
    request, captured = node.request(wire.MetadataRequest(topics=_named(*names)), version)
    rest = node.apis.handle(request)
    assert rest is not None
    assert captured.response is None
    await rest
    topics = answer_of(captured, 3, version).topics
    assert [topic.name for topic in topics] == names
    unknown, invalid = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [topic.error_code for topic in topics] == [0, *[unknown] * 3000, invalid]
    assert request._errors == {0: 2, unknown: 3000, invalid: 1}  # the one topic that there is has a partition


async def test_all_topics_of_a_large_cluster_are_answered_in_steps() -> None:
    node = await _node(*(umr_state(i) for i in range(5000)))
    request, captured = node.request(wire.MetadataRequest(topics=None), 12)
    rest = node.apis.handle(request)
    assert rest is not None
    await rest
    ((topic,),) = [answer_of(captured, 3, 12).topics]
    assert [partition.partition_index for partition in topic.partitions] == list(range(5000))
    again, captured = node.request(wire.MetadataRequest(topics=None), 12)
    assert node.apis.handle(again) is None  # it is encoded by now
    assert answer_of(captured, 3, 12).topics == (topic,)


async def test_a_long_refused_request_lists_every_topic() -> None:  # rule B7.2
    node = await _node()
    topics = (*_named(*(f"t{i}" for i in range(3000))), wire.MetadataRequestTopic(name=None))
    answer = await node.ask(wire.MetadataRequest(topics=topics), 10)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.INVALID_REQUEST}
    assert [topic.name for topic in answer.topics] == [*(f"t{i}" for i in range(3000)), ""]
