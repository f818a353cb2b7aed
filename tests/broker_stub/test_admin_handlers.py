"""What administrators ask of a broker: who may answer, in which words, and when (rules 10.1-10.16, 10.35, 10.36)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import trio
import trio.testing

import wire
from broker_stub.ports import NoController, NoStore
from tests.broker_stub.support import ID_A, NO_ID, Node, answer_of, umr_broker, umr_state, update_metadata
from wire import ErrorCode
from wire.vocabulary import ElectionType, FeatureUpdate, TopicPartition, UpgradeType

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Active(NoController):
    """An active controller that keeps what it is asked."""

    is_active = True

    def __init__(self) -> None:
        self.deleting: set[str] = set()
        self.asked: list[tuple[Any, ...]] = []

    def is_queued_for_deletion(self, topic: str) -> bool:
        return topic in self.deleting

    def alter_partition_reassignments(self, targets, reply) -> None:
        self.asked.append((targets, reply))

    def list_partition_reassignments(self, partitions, reply) -> None:
        self.asked.append((partitions, reply))

    def elect_leaders(self, partitions, election_type, reply) -> None:
        self.asked.append((partitions, election_type, reply))

    def allocate_producer_ids(self, broker_id, broker_epoch, reply) -> None:
        self.asked.append((broker_id, broker_epoch, reply))

    def update_features(self, updates, reply, *, validate_only) -> None:
        self.asked.append((updates, validate_only, reply))


class Store(NoStore):
    """A metadata store that agrees to everything and keeps it."""

    def __init__(self) -> None:
        self.created: list[tuple[wire.CreatableTopic, dict[int, str | None], bool]] = []
        self.deleted: list[str] = []
        self.configs: dict[tuple[str, str], dict[str, str]] = {}

    async def create_topic(self, topic, brokers, *, validate_only, config_error, permit) -> wire.CreatableTopicResult:
        problem = config_error({c.name: c.value or "" for c in topic.configs})
        if problem is not None:
            return wire.CreatableTopicResult(
                name=topic.name, error_code=ErrorCode.INVALID_CONFIG, error_message=problem
            )
        if not validate_only and not permit(topic.num_partitions):
            return wire.CreatableTopicResult(name=topic.name, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self.created.append((topic, dict(brokers), validate_only))
        return wire.CreatableTopicResult(name=topic.name, num_partitions=topic.num_partitions, replication_factor=1)

    async def create_partitions(
        self, topic, *, validate_only, permit
    ) -> tuple[wire.CreatePartitionsTopicResult, range]:
        if not validate_only and not permit(topic.count):
            refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            return wire.CreatePartitionsTopicResult(name=topic.name, error_code=refused), range(0)
        return wire.CreatePartitionsTopicResult(name=topic.name), range(0 if validate_only else topic.count)

    async def delete_topic(self, topic: str) -> ErrorCode:
        self.deleted.append(topic)
        return ErrorCode.NONE

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
    """The request under way and waiting; call what is returned for its answer."""
    request, captured = node.request(message, version)
    await node.apis.handle(request)
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


async def test_what_is_asked_twice_or_wrongly_is_refused_and_the_rest_is_created(node) -> None:  # rules 10.2, 10.3
    topics = (
        creatable("twice"), creatable("b", -1, -1), creatable("twice"), creatable("a"),
        creatable("__cluster_metadata"), creatable("odd", segment_bytes="13"), creatable("none", nothing_such="1"),
    )  # fmt: skip
    answer = await node.ask(wire.CreateTopicsRequest(topics=topics, timeout_ms=0), 7)
    assert results(answer) == {
        "twice": ErrorCode.INVALID_REQUEST,
        "b": ErrorCode.REQUEST_TIMED_OUT,  # rule 10.8
        "a": ErrorCode.TOPIC_ALREADY_EXISTS,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
        "odd": ErrorCode.INVALID_CONFIG,
        "none": ErrorCode.INVALID_CONFIG,
    }
    ((created, brokers, validate_only),) = node.services.admin.created
    assert (created.name, created.num_partitions, created.replication_factor) == ("b", 1, 1)
    assert (brokers, validate_only) == ({1: "x", 2: None}, False)


async def test_a_creation_is_answered_when_every_partition_has_a_leader(node) -> None:  # rule 10.8
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


async def test_time_runs_out(node, autojump_clock) -> None:  # rules 10.8, 10.36, B2.28
    created = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),), timeout_ms=10_000), 7)
    assert results(created) == {"b": ErrorCode.REQUEST_TIMED_OUT}
    assert trio.current_time() == pytest.approx(10, abs=0.1)
    asked = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="a"),), timeout_ms=5000)
    assert results(await node.ask(asked, 6)) == {"a": ErrorCode.REQUEST_TIMED_OUT}
    more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),), timeout_ms=1)
    assert results(await node.ask(more, 3)) == {"a": ErrorCode.REQUEST_TIMED_OUT}


async def test_only_validating_waits_for_nothing(node) -> None:  # rule 10.6
    answer = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),), validate_only=True), 7)
    assert results(answer) == {"b": ErrorCode.NONE}
    assert [validate_only for _, _, validate_only in node.services.admin.created] == [True]
    more = wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),), validate_only=True)
    assert results(await node.ask(more, 3)) == {"a": ErrorCode.NONE}


async def test_partitions_of_topics_that_go_are_not_added(node) -> None:  # rule 10.12
    node.services.controller.deleting = {"a"}
    topics = tuple(wire.CreatePartitionsTopic(name=name, count=2) for name in ("a", "b", "b"))
    answer = await node.ask(wire.CreatePartitionsRequest(topics=topics, timeout_ms=1000), 3)
    assert results(answer) == {"a": ErrorCode.INVALID_TOPIC_EXCEPTION, "b": ErrorCode.INVALID_REQUEST}


async def test_deletion_by_name_and_by_id(node) -> None:  # rules 10.35, 10.36
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


async def test_the_store_failing_is_answered(nursery) -> None:  # rule B1.31
    node = Node(controller=Active(), nursery=nursery)
    answer = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),)), 7)
    assert results(answer) == {"b": ErrorCode.UNKNOWN_SERVER_ERROR}


async def test_reassignments_are_the_controllers(node) -> None:  # rules 11.25-11.28
    partitions = (wire.ReassignablePartition(partition_index=0, replicas=(2, 3)), wire.ReassignablePartition())
    topic = wire.ReassignableTopic(name="a", partitions=partitions)
    answer = await parked(node, wire.AlterPartitionReassignmentsRequest(topics=(topic,)), 0)
    targets, reply = node.services.controller.asked.pop()
    assert targets == {A0: None}  # the last word on a partition counts
    reply({A0: (ErrorCode.NONE, ""), A1: (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "why")})
    (told,) = answer().responses
    assert [(p.partition_index, p.error_code, p.error_message) for p in told.partitions] == [
        (0, ErrorCode.NONE, None),
        (1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "why"),
    ]
    answer = await parked(node, wire.AlterPartitionReassignmentsRequest(), 0)
    node.services.controller.asked.pop()[-1]((ErrorCode.NOT_CONTROLLER, "gone"))
    assert (answer().error_code, answer().error_message) == (ErrorCode.NOT_CONTROLLER, "gone")


async def test_reassignments_listed(node) -> None:  # rule 3.24
    class Moving:
        replicas, adding, removing = (3, 1), (3,), (1,)

    answer = await parked(node, wire.ListPartitionReassignmentsRequest(), 0)
    asked, reply = node.services.controller.asked.pop()
    assert asked is None
    reply({A1: Moving()})
    ((partition,),) = (t.partitions for t in answer().topics)
    assert (partition.partition_index, partition.replicas) == (1, (3, 1))
    assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (1,))
    topics = (wire.ListPartitionReassignmentsTopics(name="a", partition_indexes=(0,)),)
    answer = await parked(node, wire.ListPartitionReassignmentsRequest(topics=topics), 0)
    asked, reply = node.services.controller.asked.pop()
    assert asked == {A0}
    reply((ErrorCode.NOT_CONTROLLER, ""))
    assert answer().error_code == ErrorCode.NOT_CONTROLLER


def elections(answer: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(t.topic, p.partition_id): p.error_code
        for t in answer.replica_election_results
        for p in t.partition_result
    }


async def test_an_election_is_answered_when_this_broker_knows_the_leader(node) -> None:  # rules 11.35, 11.36
    topics = (wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0, 1)),)
    answer = await parked(node, wire.ElectLeadersRequest(election_type=1, topic_partitions=topics), 2)
    asked, kind, reply = node.services.controller.asked.pop()
    assert (asked, kind) == ({A0, A1}, ElectionType.UNCLEAN)
    reply({A0: 2, A1: (ErrorCode.ELECTION_NOT_NEEDED, "")})
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(AssertionError, match="not answered"):
        answer()
    node.cache.update(update_metadata(umr_state(0, leader=2)))
    await trio.testing.wait_all_tasks_blocked()
    assert elections(answer()) == {A0: ErrorCode.NONE, A1: ErrorCode.ELECTION_NOT_NEEDED}


async def test_elections_everywhere_leave_out_what_needed_none(node, autojump_clock) -> None:  # rules 11.35, 11.36
    node.cache.update(update_metadata(umr_state(1)))
    message = wire.ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    answer = await parked(node, message, 1)
    asked, kind, reply = node.services.controller.asked.pop()
    assert (asked, kind) == ({A0, A1}, ElectionType.PREFERRED)
    reply({A0: (ErrorCode.ELECTION_NOT_NEEDED, ""), A1: 3})
    await trio.sleep(2)
    assert elections(answer()) == {A1: ErrorCode.REQUEST_TIMED_OUT}


async def test_an_unknown_kind_of_election(node) -> None:
    topics = (wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0,)),)
    answer = await node.ask(wire.ElectLeadersRequest(election_type=7, topic_partitions=topics), 2)
    assert (answer.error_code, elections(answer)) == (ErrorCode.INVALID_REQUEST, {A0: ErrorCode.INVALID_REQUEST})


async def test_producer_ids_are_the_controllers(node) -> None:  # rule 11.82
    class Block:
        first, last = 3000, 3999

    message = wire.AllocateProducerIdsRequest(broker_id=2, broker_epoch=70)
    answer = await parked(node, message, 0)
    broker_id, epoch, reply = node.services.controller.asked.pop()
    assert (broker_id, epoch) == (2, 70)
    reply(Block())
    assert (answer().error_code, answer().producer_id_start, answer().producer_id_len) == (0, 3000, 1000)
    answer = await parked(node, message, 0)
    node.services.controller.asked.pop()[-1](ErrorCode.STALE_BROKER_EPOCH)
    assert answer().error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("version", "fields", "kind"),
    [
        (0, {"allow_downgrade": False}, UpgradeType.UPGRADE),
        (0, {"allow_downgrade": True}, UpgradeType.SAFE_DOWNGRADE),
        (1, {"upgrade_type": 1}, UpgradeType.UPGRADE),
        (1, {"upgrade_type": 2}, UpgradeType.SAFE_DOWNGRADE),
        (1, {"upgrade_type": 3}, UpgradeType.UNSAFE_DOWNGRADE),
        (1, {"upgrade_type": 77}, UpgradeType.UNKNOWN),
    ],
)
async def test_features_are_the_controllers(node, version, fields, kind) -> None:  # rule 11.83
    keys = (wire.FeatureUpdateKey(feature="f", max_version_level=4, **fields),)
    message = wire.UpdateFeaturesRequest(feature_updates=keys, validate_only=version == 1)
    answer = await parked(node, message, version)
    updates, validate_only, reply = node.services.controller.asked.pop()
    assert (updates, validate_only) == ([FeatureUpdate("f", 4, kind)], version == 1)
    reply({"f": (ErrorCode.INVALID_REQUEST, "no"), "g": (ErrorCode.NONE, "")})
    assert answer().error_code == ErrorCode.NONE
    assert [(r.feature, r.error_code, r.error_message) for r in answer().results] == [
        ("f", ErrorCode.INVALID_REQUEST, "no"),
        ("g", ErrorCode.NONE, None),
    ]


async def test_features_before_they_were_versioned() -> None:  # rule 4.24
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
async def test_without_an_active_controller(message, version) -> None:  # rules 11.25, 11.82
    assert (await Node().ask(message, version)).error_code == ErrorCode.NOT_CONTROLLER


async def test_the_cluster_as_a_listener_sees_it(node) -> None:  # rule B7.21
    node.cache.update(update_metadata(alive=(umr_broker(1), umr_broker(9, ["CONTROL"]))))
    answer = await node.ask(wire.DescribeClusterRequest(), 1)
    assert ([b.broker_id for b in answer.brokers], answer.controller_id) == ([1], -1)  # 9 is not on this listener
    asked = wire.DescribeClusterRequest(include_cluster_authorized_operations=True)
    answer = await node.ask(asked, 1, listener="CONTROL")
    assert ([b.broker_id for b in answer.brokers], answer.controller_id) == ([1, 9], 9)
    assert answer.cluster_authorized_operations > 0
    for version, kind, error in (
        (1, 2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (1, 3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ):
        asked = wire.DescribeClusterRequest(endpoint_type=kind)
        assert (await node.ask(asked, version)).error_code == error
