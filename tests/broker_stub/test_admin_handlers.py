"""Admin requests: which broker answers, with which errors, and when (rules 10.1-10.16, 10.35, 10.36).

Covers: broker_stub/handlers/create_topics.py, broker_stub/handlers/elect_leaders.py.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from kce import wire
from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.ports import NoController, NoStore
from kce.wire import ErrorCode
from kce.wire.vocabulary import ElectionType, TopicPartition
from tests.broker_stub.support import ID_A, ID_B, NO_ID, Node, answer_of, umr_broker, umr_state, update_metadata

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Active(NoController):
    """An active controller that records submitted requests."""

    is_active = True

    def __init__(self) -> None:
        self.deleting: set[str] = set()
        self.leaders: dict[TopicPartition, int] = {}
        self.submitted: list[tuple[Any, ...]] = []

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.deleting

    def leader(self, partition: TopicPartition) -> int:
        return self.leaders[partition]

    def submit(self, request, api_version, reply) -> None:
        self.submitted.append((request, api_version, reply))


class Store(NoStore):
    """A metadata store that accepts and records every change."""

    def __init__(self) -> None:
        self.created: list[tuple[wire.CreatableTopic, dict[int, str | None], bool]] = []
        self.deleted: list[str] = []
        self.configs: dict[tuple[str, str], dict[str, str]] = {}

    async def create_topics(self, topics, brokers, *, validate_only, permit) -> list[wire.CreatableTopicResult]:
        return [self._create(topic, brokers, validate_only, permit) for topic in topics]

    def _create(self, topic, brokers, validate_only, permit) -> wire.CreatableTopicResult:
        if not validate_only and not permit(topic.num_partitions):
            return wire.CreatableTopicResult(name=topic.name, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self.created.append((topic, dict(brokers), validate_only))
        return wire.CreatableTopicResult(
            name=topic.name, topic_id=ID_B, num_partitions=topic.num_partitions, replication_factor=1
        )

    async def create_partitions(
        self, topics, *, validate_only, permit
    ) -> list[tuple[wire.CreatePartitionsTopicResult, range]]:
        return [self._grow(topic, validate_only, permit) for topic in topics]

    def _grow(self, topic, validate_only, permit) -> tuple[wire.CreatePartitionsTopicResult, range]:
        if not validate_only and not permit(topic.count):
            refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            return wire.CreatePartitionsTopicResult(name=topic.name, error_code=refused), range(0)
        return wire.CreatePartitionsTopicResult(name=topic.name), range(0 if validate_only else topic.count)

    async def delete_topics(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
        self.deleted += topics
        return dict.fromkeys(topics, ErrorCode.NONE)

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        return self.configs.get((kind, name), {})

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        self.configs[kind, name] = dict(config)


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def node(nursery: trio.Nursery) -> Node:
    made = Node(controller=Active(), admin=Store(), nursery=nursery)
    made.cache.update(update_metadata(umr_state(0), alive=(umr_broker(1, rack="x"), umr_broker(2))))
    return made


def creatable(name: str, partitions: int = 1, replication_factor: int = 1, **config: str) -> wire.CreatableTopic:
    configs = tuple(wire.CreatableTopicConfig(name=k.replace("_", "."), value=v) for k, v in config.items())
    return wire.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, configs=configs
    )


def results(answer: Any) -> dict[str | None, ErrorCode]:
    topics = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    return {topic.name: ErrorCode(topic.error_code) for topic in topics}


async def parked(node: Node, message: wire.Message, version: int) -> Callable[[], Any]:
    """Start a request that is then parked; the returned function gives its response."""
    request, captured = node.request(message, version)
    node.apis.handle(request)
    await trio.testing.wait_all_tasks_blocked()
    assert not request.answered
    return lambda: answer_of(captured, message.__api_key__, version)


NOT_FOR_OTHERS = [
    (wire.CreateTopicsRequest(topics=(creatable("t"), creatable("t"))), range(8)),
    (wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="t"),)), (6,)),
    (wire.DeleteTopicsRequest(topic_names=("t",)), range(6)),
    (wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="t", count=2),)), range(4)),
]


@pytest.mark.parametrize(("message", "versions"), NOT_FOR_OTHERS)
async def test_only_the_controller_changes_topics(message, versions, nursery) -> None:  # rules 10.1, 10.12, 10.35
    node = Node(admin=Store(), nursery=nursery)
    for version in versions:
        assert results(await node.ask(message, version)) == {"t": ErrorCode.NOT_CONTROLLER}


async def test_duplicate_and_invalid_topics_are_refused_and_the_rest_is_created(node) -> None:  # rules 10.2, 10.3
    topics = (
        creatable("twice"), creatable("b", -1, -1), creatable("twice"), creatable("a"),
        creatable("__cluster_metadata"),
    )  # fmt: skip
    answer = await node.ask(wire.CreateTopicsRequest(topics=topics, timeout_ms=0), 7)
    assert results(answer) == {
        "twice": ErrorCode.INVALID_REQUEST,
        "b": ErrorCode.REQUEST_TIMED_OUT,  # rule 10.8
        "a": ErrorCode.TOPIC_ALREADY_EXISTS,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
    }
    assert [topic.name for topic in answer.topics] == [topic.name for topic in topics]  # "twice" is answered twice
    assert {topic.name: topic.error_message for topic in answer.topics} == {
        "twice": "Found multiple entries for this topic.", "b": None, "a": "Topic 'a' already exists.",
        "__cluster_metadata": "Creation of internal topic __cluster_metadata is prohibited.",
    }  # fmt: skip
    ((created, brokers, validate_only),) = node.services.admin.created
    assert (created.name, created.num_partitions, created.replication_factor) == ("b", 1, 1)
    assert (brokers, validate_only) == ({1: "x", 2: None}, False)


async def test_create_topics_responds_when_every_partition_has_a_leader(node) -> None:  # rule 10.8
    message = wire.CreateTopicsRequest(topics=(creatable("b", 2),), timeout_ms=60_000)
    answer = await parked(node, message, 7)
    node.cache.update(update_metadata(umr_state(0), umr_state(1, leader=-1), topic="b"))
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(AssertionError, match="not answered"):
        answer()
    node.cache.update(update_metadata(umr_state(1), topic="b"))
    await trio.testing.wait_all_tasks_blocked()
    (topic,) = answer().topics
    assert (topic.error_code, topic.num_partitions, topic.replication_factor) == (ErrorCode.NONE, 2, 1)
    assert {c.name: c.value for c in topic.configs}["segment.bytes"] == "1073741824"


async def test_a_new_topic_inherits_the_brokers_dynamic_settings(node) -> None:  # rules B1.52, B7.26
    own, default = {"log.segment.bytes": "2000"}, {"log.segment.bytes": "1000", "log.retention.ms": "7"}
    node.services.dynamic_config.by_source = BrokerSettings({}, own, default)
    topics = creatable("b"), creatable("c", retention_ms="8")
    answer = await parked(node, wire.CreateTopicsRequest(topics=topics, timeout_ms=60_000), 7)
    for topic in topics:
        node.cache.update(update_metadata(umr_state(0), topic=topic.name))
    await trio.testing.wait_all_tasks_blocked()
    found = [
        {c.name: (c.value, c.config_source) for c in topic.configs if c.name in ("segment.bytes", "retention.ms")}
        for topic in answer().topics
    ]
    assert found == [
        {"segment.bytes": ("2000", 2), "retention.ms": ("7", 3)},
        {"segment.bytes": ("2000", 2), "retention.ms": ("8", 1)},
    ]


async def test_create_and_delete_topics_time_out(node, autojump_clock) -> None:  # rules 10.8, 10.36, B2.28
    created = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),), timeout_ms=10_000), 7)
    assert results(created) == {"b": ErrorCode.REQUEST_TIMED_OUT}
    assert trio.current_time() == pytest.approx(10, abs=0.1)
    request = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="a"),), timeout_ms=5000)
    assert results(await node.ask(request, 6)) == {"a": ErrorCode.REQUEST_TIMED_OUT}
    more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),), timeout_ms=1)
    assert results(await node.ask(more, 3)) == {"a": ErrorCode.REQUEST_TIMED_OUT}


def said(answer: Any) -> list[tuple[int, uuid.UUID, str | None]]:
    """Error code, topic id (zero where the answer has none) and message of each result."""
    topics = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    return [(t.error_code, getattr(t, "topic_id", NO_ID), t.error_message) for t in topics]


async def test_ids_and_messages_of_answers_are_as_kafkas(node, autojump_clock, nursery) -> None:  # 10.8, 10.16, 10.36
    """Null is not "", and an id is in the answer where Kafka puts it."""
    late = ErrorCode.REQUEST_TIMED_OUT
    created = wire.CreateTopicsRequest(topics=(creatable("b", 2),), timeout_ms=0)
    (timed_out,) = (await node.ask(created, 7)).topics
    assert (timed_out.num_partitions, timed_out.replication_factor, timed_out.configs) == (-1, -1, ())
    assert said(await node.ask(created, 7)) == [(late, ID_B, None)]
    answer = await parked(node, wire.CreateTopicsRequest(topics=(creatable("b"),), timeout_ms=60_000), 7)
    node.cache.update(update_metadata(umr_state(0), topic="b", topic_id=ID_B))
    await trio.testing.wait_all_tasks_blocked()
    assert said(answer()) == [(ErrorCode.NONE, ID_B, None)]
    more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),), timeout_ms=0)
    assert said(await node.ask(more, 3)) == [(late, NO_ID, None)]
    by_name = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="a"),), timeout_ms=0)
    by_id = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name=None, topic_id=ID_A),), timeout_ms=0)
    unknown = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name=None, topic_id=uuid.UUID(int=9)),))
    assert said(await node.ask(by_name, 6)) == [(late, NO_ID, None)]
    assert said(await node.ask(by_id, 6)) == [(late, ID_A, None)]
    assert said(await node.ask(unknown, 6)) == [(ErrorCode.UNKNOWN_TOPIC_ID, uuid.UUID(int=9), None)]
    other = Node(admin=Store(), nursery=nursery)
    refused = ErrorCode.NOT_CONTROLLER
    assert said(await other.ask(created, 7)) == [(refused, NO_ID, "")]
    assert said(await other.ask(by_name, 6)) == [(refused, NO_ID, None)]
    assert said(await other.ask(more, 3)) == [(refused, NO_ID, None)]


async def test_validate_only_does_not_wait(node) -> None:  # rule 10.6
    answer = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),), validate_only=True), 7)
    assert results(answer) == {"b": ErrorCode.NONE}
    assert [validate_only for _, _, validate_only in node.services.admin.created] == [True]
    more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),), validate_only=True)
    assert results(await node.ask(more, 3)) == {"a": ErrorCode.NONE}


async def test_a_topic_that_is_being_deleted_is_not_created(node) -> None:  # rule 10.5
    node.services.controller.deleting = {"new"}
    answer = await node.ask(wire.CreateTopicsRequest(topics=(creatable("new"),), timeout_ms=0), 7)
    (result,) = answer.topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert result.error_message == "Topic 'new' is marked for deletion."


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a/", "a//b", "a/../b", "\ufffd"])
async def test_create_partitions_of_what_cannot_be_a_path(node, name: str) -> None:  # rule 10.13
    topics = [wire.CreatePartitionsTopic(name=name, count=2), wire.CreatePartitionsTopic(name="a/b", count=2)]
    request = wire.CreatePartitionsRequest(topics=tuple(topics), timeout_ms=1000, validate_only=True)
    assert [r.error_code for r in (await node.ask(request, 3)).results] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    request = dataclasses.replace(request, topics=tuple(topics[1:]))
    assert [r.error_code for r in (await node.ask(request, 3)).results] != [ErrorCode.UNKNOWN_SERVER_ERROR]


async def test_create_partitions_refuses_topics_that_are_being_deleted(node) -> None:  # rule 10.12
    node.services.controller.deleting = {"a"}
    topics = tuple(wire.CreatePartitionsTopic(name=name, count=2) for name in ("a", "b", "b"))
    answer = await node.ask(wire.CreatePartitionsRequest(topics=topics, timeout_ms=1000), 3)
    assert results(answer) == {"a": ErrorCode.INVALID_TOPIC_EXCEPTION, "b": ErrorCode.INVALID_REQUEST}


async def test_topics_are_deleted_by_name_and_by_id(node) -> None:  # rules 10.35, 10.36
    unknown = uuid.UUID(int=99)
    topics = (
        wire.DeleteTopicState(name=None, topic_id=ID_A),
        wire.DeleteTopicState(name=None, topic_id=unknown),
        wire.DeleteTopicState(name="b"),
    )
    answer = await parked(node, wire.DeleteTopicsRequest(topics=topics, timeout_ms=60_000), 6)
    node.cache.update(update_metadata(umr_state(0, leader=-2)))
    await trio.testing.wait_all_tasks_blocked()
    assert [(r.name, r.topic_id, r.error_code) for r in answer().responses] == [
        ("a", ID_A, ErrorCode.NONE),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID),
        ("b", NO_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert node.services.admin.deleted == ["a"]
    both = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="a", topic_id=ID_A),))
    assert [r.error_code for r in (await node.ask(both, 6)).responses] == [ErrorCode.INVALID_REQUEST]


async def test_a_failing_store_is_an_unknown_server_error(nursery) -> None:  # rule B1.31
    node = Node(controller=Active(), nursery=nursery)
    answer = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),)), 7)
    assert results(answer) == {"b": ErrorCode.UNKNOWN_SERVER_ERROR}


FORWARDED = [
    (
        wire.AllocateProducerIdsRequest(broker_id=2, broker_epoch=70),
        wire.AllocateProducerIdsResponse(producer_id_len=9),
    ),
    (
        wire.AlterPartitionReassignmentsRequest(topics=(wire.ReassignableTopic(name="a"),)),
        wire.AlterPartitionReassignmentsResponse(responses=(wire.ReassignableTopicResponse(name="a"),)),
    ),
    (
        wire.ListPartitionReassignmentsRequest(topics=(wire.ListPartitionReassignmentsTopics(name="a"),)),
        wire.ListPartitionReassignmentsResponse(topics=(wire.OngoingTopicReassignment(name="a"),)),
    ),
    (
        wire.UpdateFeaturesRequest(feature_updates=(wire.FeatureUpdateKey(feature="f", max_version_level=4),)),
        wire.UpdateFeaturesResponse(results=(wire.UpdatableFeatureResult(feature="f"),)),
    ),
]


@pytest.mark.parametrize(("message", "response"), FORWARDED)
async def test_forwarded_requests_get_the_controllers_response(node, message, response) -> None:  # 3.24, 11.25, 11.82
    version = message.__versions__.last
    answer = await parked(node, message, version)
    request, submitted_version, reply = node.services.controller.submitted.pop()
    assert (request, submitted_version) == (message, version)
    reply(response)
    assert answer() == response


@pytest.mark.parametrize("message", [message for message, _ in FORWARDED])
async def test_forwarded_requests_fail_if_the_controller_moved(node, message) -> None:  # rule 3.37
    answer = await parked(node, message, message.__versions__.last)
    _, _, reply = node.services.controller.submitted.pop()
    reply(None)
    assert answer().error_code == ErrorCode.NOT_CONTROLLER


def elections(answer: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(t.topic, p.partition_id): p.error_code
        for t in answer.replica_election_results
        for p in t.partition_result
    }


def named(request: wire.ElectLeadersRequest) -> set[TopicPartition]:
    assert request.topic_partitions is not None
    return {TopicPartition(t.topic, p) for t in request.topic_partitions for p in t.partitions}


def elected(codes: Mapping[TopicPartition, ErrorCode]) -> wire.ElectLeadersResponse:
    results = tuple(
        wire.ReplicaElectionResult(
            topic=tp.topic,
            partition_result=(
                wire.PartitionResult(
                    partition_id=tp.partition,
                    error_code=code,
                    error_message="not needed" if code is ErrorCode.ELECTION_NOT_NEEDED else None,
                ),
            ),
        )
        for tp, code in codes.items()
    )
    return wire.ElectLeadersResponse(replica_election_results=results)


async def test_elect_leaders_responds_when_this_broker_knows_the_leader(node) -> None:  # rules 11.35, 11.36
    topics = (wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0, 1)),)
    answer = await parked(node, wire.ElectLeadersRequest(election_type=1, topic_partitions=topics), 2)
    request, _, reply = node.services.controller.submitted.pop()
    assert (named(request), request.election_type) == ({A0, A1}, ElectionType.UNCLEAN.value)
    node.services.controller.leaders[A0] = 2
    reply(elected({A0: ErrorCode.NONE, A1: ErrorCode.ELECTION_NOT_NEEDED}))
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(AssertionError, match="not answered"):
        answer()
    node.cache.update(update_metadata(umr_state(0, leader=2)))
    await trio.testing.wait_all_tasks_blocked()
    assert elections(answer()) == {A0: ErrorCode.NONE, A1: ErrorCode.ELECTION_NOT_NEEDED}
    (topic,) = answer().replica_election_results
    assert topic.topic == "a"
    assert [p.error_message for p in topic.partition_result] == [None, "not needed"]


async def test_an_election_everywhere_omits_those_without_need(node, autojump_clock) -> None:  # rules 11.35, 11.36
    node.cache.update(update_metadata(umr_state(1)))
    message = wire.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    answer = await parked(node, message, 1)
    request, _, reply = node.services.controller.submitted.pop()
    assert (named(request), request.election_type) == ({A0, A1}, ElectionType.PREFERRED.value)
    node.services.controller.leaders[A1] = 3
    reply(elected({A0: ErrorCode.ELECTION_NOT_NEEDED, A1: ErrorCode.NONE}))
    await trio.sleep(2)
    assert elections(answer()) == {A1: ErrorCode.REQUEST_TIMED_OUT}


async def test_an_unknown_election_type_is_an_unknown_error(node) -> None:
    topics = (wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0,)),)
    answer = await node.ask(wire.ElectLeadersRequest(election_type=7, topic_partitions=topics), 2)
    assert (answer.error_code, elections(answer)) == (
        ErrorCode.UNKNOWN_SERVER_ERROR, {A0: ErrorCode.UNKNOWN_SERVER_ERROR},
    )  # fmt: skip


async def test_an_election_fails_if_the_controller_moved(node) -> None:  # rules 3.37, 11.30
    topics = (wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0, 1)),)
    answer = await parked(node, wire.ElectLeadersRequest(topic_partitions=topics), 2)
    _, _, reply = node.services.controller.submitted.pop()
    reply(None)
    await trio.testing.wait_all_tasks_blocked()
    assert (answer().error_code, elections(answer())) == (
        ErrorCode.NONE,
        dict.fromkeys((A0, A1), ErrorCode.NOT_CONTROLLER),
    )


async def test_update_features_needs_a_recent_inter_broker_protocol() -> None:  # rule 4.24
    node = Node(controller=Active(), inter_broker_protocol_version="2.6")
    assert (await node.ask(wire.UpdateFeaturesRequest(), 0)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (wire.AlterPartitionReassignmentsRequest(), 0),
        (wire.ListPartitionReassignmentsRequest(), 0),
        (wire.AllocateProducerIdsRequest(broker_id=1), 0),
        (wire.UpdateFeaturesRequest(), 0),
        (wire.UpdateFeaturesRequest(), 1),
    ],
)
async def test_requests_fail_without_an_active_controller(message, version) -> None:  # rules 11.25, 11.82
    assert (await Node().ask(message, version)).error_code == ErrorCode.NOT_CONTROLLER


async def test_describe_cluster_shows_the_endpoints_of_the_request_listener(node) -> None:  # rule B7.21
    node.cache.update(update_metadata(alive=(umr_broker(1, rack="x"), umr_broker(9, ["CONTROL"]))))
    answer = await node.ask(wire.DescribeClusterRequest(), 1)
    assert ([b.broker_id for b in answer.brokers], answer.controller_id) == ([1], -1)  # 9 lacks this listener
    (shown,) = answer.brokers
    assert (shown.host, shown.port, shown.rack) == ("host1", 9011, "x")
    assert (answer.cluster_id, answer.error_code, answer.cluster_authorized_operations) == ("cluster", 0, -(2**31))
    request = wire.DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = await node.ask(request, 1, listener="CONTROL")
    assert ([b.broker_id for b in answer.brokers], answer.controller_id) == ([1, 9], 9)
    assert answer.cluster_authorized_operations > 0
    for version, kind, error in (
        (1, 2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        request = wire.DescribeClusterRequest(endpoint_type=kind)
        refused = await node.ask(request, version)
        assert (refused.error_code, refused.endpoint_type, refused.brokers) == (error, 1, ())
        assert refused.error_message == f"this listener serves brokers, not endpoint type {kind}"
