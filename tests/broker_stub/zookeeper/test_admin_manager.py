"""Admin requests in ZooKeeper: topics, partitions and configurations (rules 10.3-10.16, 1.54)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from random import Random

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.zookeeper import admin_manager
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.wire import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
)
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, RegisteredBroker, ReplicaAssignment
from kce.zookeeper.store import Create, MultiFailed, Op, OpResult, SetData
from kce.zookeeper.store.memory import MemoryZooKeeper

BROKERS: dict[int, str | None] = {1: None, 2: None, 3: None}


class World:
    """ZooKeeper with three registered brokers, and the manager of one of them."""

    def __init__(self, ibp: MetadataVersion = LATEST) -> None:
        self.store = MemoryZooKeeper().connect()
        self.zk = KafkaZkClient(self.store, now_ms=lambda: 0, new_uuid=uuid.uuid4)
        self.admin = ZkAdminManager(self.zk, ibp, Random(1))

    async def start(self) -> World:
        await self.zk.create_top_level_paths()
        for broker in BROKERS:
            await self.store.write(
                [
                    Create(
                        znodes.broker_path(broker),
                        znodes.encode_broker(RegisteredBroker(BrokerId(broker), ()), LATEST, 0),
                    )
                ]
            )
        return self

    async def create(self, topic: CreatableTopic, *, validate_only: bool = False) -> CreatableTopicResult:
        (result,) = await self.admin.create_topics([topic], BROKERS, validate_only=validate_only)
        return result

    async def grow(
        self, topic: CreatePartitionsTopic, *, validate_only: bool = False
    ) -> tuple[CreatePartitionsTopicResult, Collection[int]]:
        (result,) = await self.admin.create_partitions([topic], validate_only=validate_only)
        return result

    async def assignment(self, topic: str) -> dict[int, tuple[int, ...]]:
        found = (await self.zk.get_topic_assignments([topic])).get(topic)
        return {} if found is None else {p: tuple(a.replicas) for p, a in found.partitions.items()}


def assigned(*replicas: tuple[int, ...], first: int = 0) -> tuple[CreatableReplicaAssignment, ...]:
    return tuple(CreatableReplicaAssignment(partition_index=first + i, broker_ids=r) for i, r in enumerate(replicas))


def topic(name: str = "t", partitions: int = -1, factor: int = -1, **more: object) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, **more)  # type: ignore[arg-type]


async def test_a_creation_succeeds_if_its_response_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 1.52
    w = await World().start()
    multi = w.store.multi

    async def written_twice(groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        await multi(groups)
        return await multi(groups)

    monkeypatch.setattr(w.store, "multi", written_twice)
    result = await w.create(topic(partitions=1, factor=1))
    assert result.error_code == ErrorCode.NONE
    assert (await w.zk.get_topic_assignments(["t"]))["t"].topic_id == result.topic_id
    assert (await w.create(topic(partitions=1, factor=1))).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_a_topic_is_created_with_its_configuration() -> None:  # rules 10.4, 10.7
    w = await World().start()
    configs = (CreatableTopicConfig(name="retention.ms", value="1"),)
    result = await w.create(topic(partitions=4, factor=2, configs=configs))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.NONE, 4, 2)
    assert sorted(await w.assignment("t")) == [0, 1, 2, 3]
    assert await w.admin.config("topics", "t") == {"retention.ms": "1"}
    found = (await w.zk.get_topic_assignments(["t"]))["t"]
    assert found.topic_id == result.topic_id
    assert (await w.create(topic(partitions=1, factor=1))).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_topics_of_one_request_are_judged_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 10.5
    w = await World().start()
    monkeypatch.setattr(admin_manager, "_TOPICS_AT_ONCE", 3)
    names = ["a.b", "c", "a_b", "d", "a/b", "e.f", "g"]
    permitted: list[int] = []

    def permit(partitions: int) -> bool:
        permitted.append(partitions)
        return partitions != 6

    wanted = [
        topic(name, 1 + i, 1, configs=(CreatableTopicConfig(name="retention.ms", value=str(i)),))
        for i, name in enumerate(names)
    ]
    wanted += [topic("e_f", 1, 1)]  # e.f was refused, so its name is free
    results = await w.admin.create_topics(wanted, BROKERS, validate_only=False, permit=permit)
    assert [(r.name, r.error_code) for r in results] == [
        ("a.b", ErrorCode.NONE), ("c", ErrorCode.NONE), ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("d", ErrorCode.NONE), ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("e.f", ErrorCode.THROTTLING_QUOTA_EXCEEDED), ("g", ErrorCode.NONE), ("e_f", ErrorCode.NONE),
    ]  # fmt: skip
    assert permitted == [1, 2, 4, 6, 7, 1]  # rule 10.11: in the order of the request, only of what would be written
    made = {"a.b": 1, "c": 2, "d": 4, "g": 7, "e_f": 1}
    found = await w.zk.get_topic_assignments(await w.zk.get_topics(watch=False))
    assert {name: len(one.partitions) for name, one in found.items()} == made
    assert {r.name: r.topic_id for r in results if r.name in made} == {n: one.topic_id for n, one in found.items()}
    assert await w.zk.get_children("/config/topics") == sorted(made)
    assert await w.admin.config("topics", "g") == {"retention.ms": "6"}


async def test_a_topic_that_appears_meanwhile_does_not_spoil_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # rule 10.7
    w = await World().start()
    multi = w.store.multi

    async def later(groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        for path in (znodes.topic_path("b"), znodes.topic_config_path("c")):
            await w.store.write([Create(path, znodes.encode_topic(None, {}))])
        return await multi(groups)

    monkeypatch.setattr(w.store, "multi", later)
    results = await w.admin.create_topics([topic(name, 1, 1) for name in "abc"], BROKERS, validate_only=False)
    assert [r.error_code for r in results] == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.NONE]
    assert await w.assignment("b") == {}
    assert len(await w.assignment("c")) == 1
    assert await w.admin.config("topics", "c") == {}  # what was left over is replaced


async def test_partitions_of_many_topics_are_added_at_once() -> None:  # rules 10.13, 10.16
    w = await World().start()
    await w.admin.create_topics([topic(n, 1, 1) for n in ("a", "b")], BROKERS, validate_only=False)
    wanted = [CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("a", "none", "b")]
    results = await w.admin.create_partitions(wanted, validate_only=False, permit=lambda partitions: True)
    assert [(r.name, r.error_code, set(numbers)) for r, numbers in results] == [
        ("a", ErrorCode.NONE, {0, 1, 2}), ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, set()),
        ("b", ErrorCode.NONE, {0, 1, 2}),
    ]  # fmt: skip
    assert [len(await w.assignment(name)) for name in ("a", "b")] == [3, 3]


async def test_topics_have_no_id_before_2_8() -> None:  # rule 10.7
    w = await World(MetadataVersion.parse("2.7")).start()
    result = await w.create(topic(assignments=assigned((2, 9))))  # unknown brokers are allowed: 10.4
    assert (result.error_code, result.topic_id.int) == (ErrorCode.NONE, 0)
    assert (await w.zk.get_topic_assignments(["t"]))["t"].topic_id is None
    assert await w.assignment("t") == {0: (2, 9)}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (topic(partitions=0, factor=1), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=1, factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(partitions=1, factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("a/b", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("..", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250, 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("old_name", 1, 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("old.name", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic("going", 1, 1), ErrorCode.TOPIC_ALREADY_EXISTS),
        (topic(partitions=1, assignments=assigned((1,))), ErrorCode.INVALID_REQUEST),
        (topic(factor=1, assignments=assigned((1,))), ErrorCode.INVALID_REQUEST),
        (topic(assignments=assigned((1, 1))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((1, 2), (1,))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((1,), first=1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned((1,)) * 2), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic(assignments=assigned(())), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", 1, 1, configs=(CreatableTopicConfig(name="x", value=None),)), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 1, configs=(CreatableTopicConfig(name="bad", value="why"),)), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, 1, configs=(CreatableTopicConfig(name="segment.bytes", value="13"),)), ErrorCode.INVALID_CONFIG),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
async def test_invalid_topics_are_refused(
    message: CreatableTopic, error: ErrorCode, validate_only: bool
) -> None:  # 10.3-10.6
    w = await World().start()
    own = (CreatableTopicConfig(name="retention.ms", value="7"),)
    for name in ("old.name", "going"):
        await w.create(topic(name, 1, 1, configs=own))
    await w.zk.ensure_paths([znodes.delete_topic_path("going")])
    before = await w.zk.get_topics(watch=False)
    result = await w.create(message, validate_only=validate_only)
    assert result.error_code == error
    assert result.error_message
    assert ("deletion" in result.error_message) is (message.name == "going")
    assert await w.zk.get_topics(watch=False) == before
    assert await w.zk.get_configs("topics") == {key: {"retention.ms": "7"} for key in ("going", "old.name")}


async def test_a_setting_that_is_refused_is_told_in_kafkas_words() -> None:  # rule 10.5
    w = await World().start()
    for name, value, text in (
        ("remote.storage.enable", "true", "Tiered Storage functionality is disabled in the broker. "),
        ("segment.bytes", "13", "Invalid value 13 for configuration segment.bytes: Value must be at least 14"),
        ("bad", "why", "Unknown topic config name: bad"),
    ):
        result = await w.create(topic("t", 1, 1, configs=(CreatableTopicConfig(name=name, value=value),)))
        assert (result.error_message or "").startswith(text)


@pytest.mark.parametrize("validate_only", [True, False])
async def test_a_replication_factor_that_no_answer_can_hold_is_refused(validate_only: bool) -> None:  # rule 10.5
    w = await World().start()
    most = await w.create(topic(assignments=assigned(range(1, 2**15))), validate_only=True)
    assert (most.error_code, most.replication_factor) == (ErrorCode.NONE, 2**15 - 1)
    result = await w.create(topic(assignments=assigned(range(2**15))), validate_only=validate_only)
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await w.zk.get_topics(watch=False) == set()


@pytest.mark.parametrize(
    "assignments",
    [assigned(*((1,),) * 10_000, first=1), assigned(*((1,),) * 10_000) * 2, assigned((1, 2) * 10_000)],
    ids=["gap", "twice", "a replica twice"],
)
async def test_a_refusal_of_very_many_elements_fits_into_the_answer(
    assignments: tuple[CreatableReplicaAssignment, ...],
) -> None:  # rule 10.5
    w = await World().start()
    result = await w.create(topic(assignments=assignments))
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert 0 < len(result.error_message or "") < 2**15


async def test_validate_only_writes_nothing() -> None:  # rule 10.6
    w = await World().start()
    result = await w.create(topic(partitions=2, factor=1), validate_only=True)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)
    assert await w.zk.get_topics(watch=False) == set()
    assert await w.zk.get_children("/config/topics") == []


async def test_the_quota_is_checked_only_for_writes() -> None:  # rule 10.11
    w = await World().start()
    checked: list[int] = []

    def refuse(partitions: int) -> bool:
        checked.append(partitions)
        return False

    (tried,) = await w.admin.create_topics([topic(partitions=2, factor=1)], BROKERS, validate_only=True, permit=refuse)
    (refused,) = await w.admin.create_topics(
        [topic(partitions=2, factor=1)], BROKERS, validate_only=False, permit=refuse
    )
    assert (tried.error_code, refused.error_code) == (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert await w.zk.get_topics(watch=False) == set()
    assert await w.zk.get_children("/config/topics") == []
    await w.create(topic(partitions=2, factor=1))
    ((result, numbers),) = await w.admin.create_partitions([more(5)], validate_only=False, permit=refuse)
    assert (result.error_code, len(numbers)) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 0)
    assert len(await w.assignment("t")) == 2
    assert (refused.error_message, result.error_message) == (None, None)  # measured
    assert checked == [2, 3]


def more(count: int, *assignments: tuple[int, ...]) -> CreatePartitionsTopic:
    given = tuple(CreatePartitionsAssignment(broker_ids=r) for r in assignments)
    return CreatePartitionsTopic(name="t", count=count, assignments=given or None)


async def test_partitions_are_added() -> None:  # rules 10.15, 10.16
    w = await World().start()
    created = await w.create(topic(assignments=assigned((3, 1))))
    tried, numbers = await w.grow(more(3), validate_only=True)
    assert (tried.error_code, len(numbers), await w.assignment("t")) == (ErrorCode.NONE, 0, {0: (3, 1)})
    result, numbers = await w.grow(more(3))
    assert (result.error_code, set(numbers)) == (ErrorCode.NONE, {0, 1, 2})  # those that it had before, too
    assert (tried.name, result.name, created.name) == ("t", "t", "t")
    # start and shift are 2, the position of broker 3; partition numbers continue from 1
    assert await w.assignment("t") == {0: (3, 1), 1: (1, 2), 2: (2, 3)}
    await w.grow(more(5, (2, 1), (1, 3)))
    assert await w.assignment("t") == {0: (3, 1), 1: (1, 2), 2: (2, 3), 3: (2, 1), 4: (1, 3)}
    assert (await w.zk.get_topic_assignments(["t"]))["t"].topic_id == created.topic_id


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (more(2), ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partitions."),
        (more(1), ErrorCode.INVALID_PARTITIONS, "Topic currently has 2 partitions, which is higher than the requested"),
        (more(3, (1, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Unknown broker(s) in replica assignment: 9."),
        (
            more(4, (1, 2)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Increasing the number of partitions by 2 but 1 assignments provided.",
        ),
        (
            more(3, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Cannot have replication factor of 0 for partition id 2.",
        ),
        (
            more(3, (1, 1)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Duplicate brokers not allowed in replica assignment: 1, 1 for partition id 2.",
        ),
        (
            more(4, (1, 2, 3), (1,)), ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Inconsistent replication factor between partitions, partition 0 has 2 while partitions [2, 3] have "
            "replication factors [3, 1], respectively.",
        ),
        (
            CreatePartitionsTopic(name="nobody", count=3, assignments=None), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "The topic 'nobody' does not exist.",
        ),
    ],
)  # fmt: skip
async def test_invalid_partitions_are_refused_in_kafkas_words(
    message: CreatePartitionsTopic, error: ErrorCode, text: str
) -> None:  # rules 10.13, 10.14
    w = await World().start()
    await w.create(topic(assignments=assigned((1, 2), (2, 3))))
    result, numbers = await w.grow(message)
    assert (result.name, result.error_code, len(numbers)) == (message.name, error, 0)
    assert (result.error_message or "").startswith(text)
    assert await w.assignment("t") == {0: (1, 2), 1: (2, 3)}


async def test_no_partitions_are_added_during_a_reassignment() -> None:  # rule 10.13
    w = await World().start()
    moving = {0: ReplicaAssignment((BrokerId(1), BrokerId(2)), (BrokerId(1),), (BrokerId(2),))}
    await w.store.write([Create(znodes.topic_path("t"), znodes.encode_topic(None, moving))])
    result, _ = await w.grow(more(3))
    assert result.error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS


async def test_a_topic_is_marked_for_deletion() -> None:  # rule 10.36
    w = await World().start()
    await w.create(topic(assignments=assigned((1,))))
    marked = {"t": ErrorCode.NONE, "nobody": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert await w.admin.delete_topics(["t", "nobody"]) == marked
    assert await w.admin.delete_topics(["nobody", "t"]) == marked
    assert await w.zk.get_topic_deletions() == {"t"}


async def test_configurations_change_only_with_an_active_controller() -> None:  # rules 1.35, 1.54
    w = await World().start()
    with pytest.raises(Refused) as refused:
        await w.admin.change_config("topics", "t", {"a": "1"})
    assert refused.value.code == ErrorCode.STALE_CONTROLLER_EPOCH
    with pytest.raises(Refused) as refused:
        await w.admin.change_client_config("users", "u", {"a": "1"})
    assert refused.value.code == ErrorCode.STALE_CONTROLLER_EPOCH
    await w.store.write([Create(znodes.CONTROLLER, znodes.encode_controller(BrokerId(1), 0))])
    for value in ("1", "2"):
        await w.admin.change_config("topics", "t", {"a": value})
        assert await w.admin.config("topics", "t") == {"a": value}
    await w.admin.change_config("brokers", "<default>", {})
    changes = sorted((await w.zk.get_notifications("/config/changes")).items())
    assert [data for _, data in changes] == [
        cluster_nodes.encode_config_change("topics", "t"),
        cluster_nodes.encode_config_change("topics", "t"),
        cluster_nodes.encode_config_change("brokers", "<default>"),
    ]
    await w.store.write([SetData(znodes.CONTROLLER, b'{"version":2,"brokerid":9,"kraftControllerEpoch":3}')])
    with pytest.raises(Refused, match="KRaft"):
        await w.admin.change_config("topics", "t", {"a": "3"})
    assert await w.admin.config("topics", "t") == {"a": "2"}


async def test_a_controller_that_moves_during_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # rule 1.54
    w = await World().start()
    await w.store.write([Create(znodes.CONTROLLER, znodes.encode_controller(BrokerId(1), 0))])
    await w.admin.change_config("topics", "t", {"a": "1"})
    real = w.store.multi

    async def late(groups):  # type: ignore[no-untyped-def]
        await w.store.write([SetData(znodes.CONTROLLER, znodes.encode_controller(BrokerId(2), 0))])
        return await real(groups)

    monkeypatch.setattr(w.store, "multi", late)
    with pytest.raises(Refused, match="changed"):
        await w.admin.change_config("topics", "t", {"a": "2"})
    assert await w.admin.config("topics", "t") == {"a": "1"}


async def test_a_new_topics_lags_go_with_those_of_the_broker() -> None:  # rule 10.5
    w = await World().start()
    admin = ZkAdminManager(w.zk, LATEST, Random(1), inherited=lambda: {"max.compaction.lag.ms": "1000"})
    configs = (CreatableTopicConfig(name="min.compaction.lag.ms", value="2000"),)
    wanted = [topic("a", 1, 1, configs=configs), topic("b", 1, 1)]
    results = await admin.create_topics(wanted, BROKERS, validate_only=False)
    assert [result.error_code for result in results] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]


async def test_nodes_that_are_only_controllers_take_no_replicas() -> None:
    w = await World().start()
    admin = ZkAdminManager(w.zk, LATEST, Random(1), lambda: {3})
    chosen = CreatableTopic(
        name="a", num_partitions=-1, replication_factor=-1,
        assignments=(CreatableReplicaAssignment(partition_index=0, broker_ids=(2, 3)),),
    )  # fmt: skip
    placed = CreatableTopic(name="b", num_partitions=8, replication_factor=2)
    too_many = CreatableTopic(name="c", num_partitions=1, replication_factor=3)
    results = await admin.create_topics([chosen, placed, too_many], BROKERS, validate_only=False)
    assert [(result.error_code, result.error_message) for result in results[:2]] == [
        (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "topic a: nodes [3] are controllers only and take no replicas"),
        (ErrorCode.NONE, ""),
    ]
    assert results[2].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    found = (await w.zk.get_topic_assignments(["b"]))["b"]
    assert {replica for assignment in found.partitions.values() for replica in assignment.replicas} == {1, 2}


@pytest.mark.kafka("ZKCT-4")
async def test_set_and_get_consumer_offset() -> None:
    admin = World().admin
    await admin.put_consumer_offset("group", TopicPartition("topic", 0), 123)
    assert await admin.consumer_offset("group", TopicPartition("topic", 0)) == 123
    await admin.put_consumer_offset("group", TopicPartition("topic", 0), 12)
    assert await admin.consumer_offset("group", TopicPartition("topic", 0)) == 12


@pytest.mark.kafka("ZKCT-5")
async def test_get_consumer_offset_no_data() -> None:
    assert await World().admin.consumer_offset("group", TopicPartition("topic", 0)) is None


@pytest.mark.kafka("ZKCT-53")
def test_consumer_offset_path() -> None:
    path = znodes.consumer_offset_path("my-group", TopicPartition("topic-a", 0))
    assert path == "/consumers/my-group/offsets/topic-a/0"


@pytest.mark.parametrize(
    "group", ["", "a//b", ".", "a/..", "a\0", "\x1f", "\x7f", "\x9f", "\ue000", "\ufffd", "\U0001f600"]
)
def test_groups_that_zookeeper_allows_in_no_path(group: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a path"):
        znodes.consumer_offset_path(group, TopicPartition("topic-a", 0))


@pytest.mark.parametrize("group", ["a/b", " ", "~", "\xa0", "\ud7ff", "\uf900", "\uffef"])
def test_groups_that_it_allows(group: str) -> None:
    assert znodes.consumer_offset_path(group, TopicPartition("t", 7)) == f"/consumers/{group}/offsets/t/7"


async def test_partitions_are_added_to_no_topic_while_only_some_brokers_have_racks() -> None:  # rule 10.14
    w = await World().start()
    for name in ("t", "u"):
        await w.create(topic(name, partitions=1, factor=1))
    with_rack = znodes.encode_broker(RegisteredBroker(BrokerId(2), (), rack="r"), LATEST, 0)
    await w.store.write([SetData(znodes.broker_path(2), with_rack)])
    wanted = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("t", "u")]
    error = ErrorCode.UNKNOWN_SERVER_ERROR
    assert await w.admin.create_partitions(wanted, validate_only=False) == [
        (CreatePartitionsTopicResult(name=name, error_code=error, error_message=None), ()) for name in ("t", "u")
    ]
    assert [len(await w.assignment(name)) for name in ("t", "u")] == [1, 1]
