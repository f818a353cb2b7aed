"""What each API needs, and what it answers without it (the table in section 9 of docs/broker-semantics.md).

Covers: broker_stub/authorization.py, broker_stub/handlers/*.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
import trio

from kce import wire
from kce.broker_stub.alter_partition_manager import ControllerChannel
from kce.broker_stub.authorization import DENIED, Authorization
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor.request import Action
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.operations import CLUSTER_NAME, NO_OPERATIONS, Operation, ResourceType, bit_field
from kce.broker_stub.zookeeper.acl_store import ZkAclStore
from kce.pauses import Paced
from kce.wire import ErrorCode
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.security_nodes import PatternType, ResourcePattern, VersionedAcls
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.broker_stub.replication.support import batch, fetch_request, produce_request
from tests.broker_stub.security.authorizers import ALICE, authorizer_config, entry
from tests.broker_stub.support import (
    ID_A,
    NO_ID,
    NoChannel,
    Node,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_broker,
    umr_state,
    update_metadata,
)
from tests.broker_stub.test_admin_handlers import Active, Store, creatable
from tests.wire.test_steps import pauses

DENIALS: Final = frozenset(DENIED.values())
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip


class Need(NamedTuple):
    operation: Operation
    kind: ResourceType
    name: str

    @property
    def code(self) -> ErrorCode:
        return DENIED[self.kind]


def need(operation: str, kind: ResourceType, name: str = "") -> Need:
    names = {TOPIC: "a", GROUP: "g", TXN: "t", CLUSTER: CLUSTER_NAME}
    return Need(Operation[operation], kind, name or names[kind])


class Answering(Active):
    """A controller that is asked, and has moved."""

    def submit(self, request, api_version, reply) -> None:
        super().submit(request, api_version, reply)
        reply(None)


class Silent(NoChannel):
    async def request(self, *args: Any) -> wire.Message:
        await trio.sleep_forever()
        raise AssertionError


class Guarded(Node):
    """A broker with an authorizer, which leads partition 0 of topic a."""

    def __init__(
        self, nursery: trio.Nursery, channel: ControllerChannel | None = None, of_node: Mapping[str, str] | None = None,
        **properties: str,
    ) -> None:  # fmt: skip
        """``of_node``: settings of the broker beside those of the authorizer; dots are underscores."""
        zk = KafkaZkClient(MemoryZooKeeper().connect(), now_ms=lambda: 0)
        self.authorizer = AclAuthorizer(
            authorizer_config(**properties), ZkAclStore(zk), jitter=lambda: 0, has_prefixed=True
        )
        super().__init__(
            controller=Answering(),
            admin=Store(),
            nursery=nursery,
            channel=channel or Silent(),
            authorizer=self.authorizer,
            **{"transaction_state_log_num_partitions": "1", "offsets_topic_num_partitions": "1", **(of_node or {})},
        )
        self.principal = ALICE
        self.cache.update(update_metadata(umr_state(0), alive=(umr_broker(1), umr_broker(2))))

    def grant(self, *needs: Need, permission: str = "Allow") -> None:
        for operation, kind, name in needs:
            self.grant_on(ResourcePattern(kind.label, name), operation, permission)

    def grant_on(self, resource: ResourcePattern, operation: Operation, permission: str = "Allow") -> None:
        known = self.authorizer.cache.get(resource)
        acls = known.acls | {entry(operation, permission, ALICE)}
        self.authorizer.cache.put(resource, VersionedAcls(acls, known.version + 1))


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def node(nursery: trio.Nursery) -> Guarded:
    return Guarded(nursery)


def codes(value: Any) -> Iterator[ErrorCode]:
    """All error codes in a response."""
    if isinstance(value, tuple):
        for one in value:
            yield from codes(one)
    for field in getattr(value, "__fields__", ()):
        found = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code", "topic_config_error_code"):
            yield ErrorCode(found)
        else:
            yield from codes(found)


def denials(answer: Any) -> set[ErrorCode]:
    return DENIALS & set(codes(answer))


def a_topic(kind: type, **fields: Any) -> tuple[Any, ...]:
    return (kind(name="a", **fields),)


ACTS = need("CLUSTER_ACTION", CLUSTER)
ALTERS, DESCRIBES = need("ALTER", CLUSTER), need("DESCRIBE", CLUSTER)
READS_GROUP, DESCRIBES_GROUP = need("READ", GROUP), need("DESCRIBE", GROUP)
WRITES_TXN = need("WRITE", TXN)
IN_TXN = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
TRANSACTIONAL = wire.ProduceRequest(transactional_id="t", acks=1, topic_data=produce_request(IN_TXN).topic_data)
MARKERS = wire.WriteTxnMarkersRequest(
    markers=(wire.WritableTxnMarker(topics=(wire.WritableTxnMarkerTopic(name="a", partition_indexes=(7,)),)),)
)
NEEDED: Final[list[tuple[wire.Message, int, tuple[Need, ...]]]] = [
    (produce_request(batch()), 9, (need("WRITE", TOPIC),)),
    (TRANSACTIONAL, 9, (need("WRITE", TOPIC), WRITES_TXN)),
    (fetch_request(version=12), 12, (need("READ", TOPIC),)),
    (fetch_request(version=13), 13, (need("READ", TOPIC),)),
    (
        wire.ListOffsetsRequest(
            topics=a_topic(
                wire.ListOffsetsTopic, partitions=(wire.ListOffsetsPartition(partition_index=0, timestamp=-1),)
            )
        ),
        7,
        (need("DESCRIBE", TOPIC),),
    ),
    (wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="a"),)), 12, (need("DESCRIBE", TOPIC),)),
    (wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="no"),)), 12,
     (need("DESCRIBE", TOPIC, "no"), need("CREATE", TOPIC, "no"))),
    (
        wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=None, topic_id=ID_A),)),
        12,
        (need("DESCRIBE", TOPIC),),
    ),
    (leader_and_isr(lai_state(0)), 7, (ACTS,)),
    (stop_replica((0, 1, False)), 4, (ACTS,)),
    (update_metadata(umr_state(0)), 8, (ACTS,)),
    (wire.ControlledShutdownRequest(broker_id=1), 3, (ACTS,)),
    (wire.AlterPartitionRequest(broker_id=1), 3, (ACTS,)),
    (wire.AllocateProducerIdsRequest(broker_id=1), 0, (ACTS,)),
    (
        wire.OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=(
                wire.OffsetForLeaderTopic(
                    topic="a", partitions=(wire.OffsetForLeaderPartition(partition=0, leader_epoch=0),)
                ),
            ),
        ),
        4,
        (need("DESCRIBE", TOPIC),),
    ),
    (MARKERS, 1, (ACTS,)),
    (
        wire.CreateTopicsRequest(topics=(creatable("new"),), validate_only=True),
        7,
        (need("CREATE", TOPIC, "new"), need("DESCRIBE_CONFIGS", TOPIC, "new")),
    ),
    (wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name="a"),)), 6, (need("DELETE", TOPIC),)),
    (wire.DeleteTopicsRequest(topic_names=("a",)), 5, (need("DELETE", TOPIC),)),
    (
        wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name=None, topic_id=ID_A),)),
        6,
        (need("DELETE", TOPIC),),
    ),
    (
        wire.CreatePartitionsRequest(topics=(wire.CreatePartitionsTopic(name="a", count=2),)),
        3,
        (need("ALTER", TOPIC),),
    ),
    (
        wire.DeleteRecordsRequest(
            topics=a_topic(
                wire.DeleteRecordsTopic, partitions=(wire.DeleteRecordsPartition(partition_index=0, offset=0),)
            )
        ),
        2,
        (need("DELETE", TOPIC),),
    ),
    (
        wire.DescribeConfigsRequest(resources=(wire.DescribeConfigsResource(resource_type=2, resource_name="a"),)),
        4,
        (need("DESCRIBE_CONFIGS", TOPIC),),
    ),
    (
        wire.DescribeConfigsRequest(resources=(wire.DescribeConfigsResource(resource_type=4, resource_name="1"),)),
        4,
        (need("DESCRIBE_CONFIGS", CLUSTER),),
    ),
    (
        wire.AlterConfigsRequest(
            resources=(wire.AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name="a"),)
        ),
        2,
        (need("ALTER_CONFIGS", TOPIC),),
    ),
    (
        wire.AlterConfigsRequest(
            resources=(wire.AlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name=""),)
        ),
        2,
        (need("ALTER_CONFIGS", CLUSTER),),
    ),
    (
        wire.IncrementalAlterConfigsRequest(
            resources=(wire.IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name="a"),)
        ),
        1,
        (need("ALTER_CONFIGS", TOPIC),),
    ),
    (wire.DescribeLogDirsRequest(topics=None), 4, (DESCRIBES,)),
    (
        wire.AlterReplicaLogDirsRequest(
            dirs=(
                wire.AlterReplicaLogDir(
                    path="/x", topics=a_topic(wire.AlterReplicaLogDirTopic, partitions=(0,))
                ),
            )
        ),
        2,
        (ALTERS,),
    ),
    (
        wire.DescribeProducersRequest(topics=a_topic(wire.TopicRequest, partition_indexes=(0,))),
        0,
        (need("READ", TOPIC),),
    ),
    (wire.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000), 4, (WRITES_TXN,)),
    (wire.InitProducerIdRequest(transactional_id=None), 4, (need("IDEMPOTENT_WRITE", CLUSTER),)),
    (
        wire.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_topics=a_topic(wire.AddPartitionsToTxnTopic, partitions=(0,)),
        ),
        3,
        (WRITES_TXN, need("WRITE", TOPIC)),
    ),
    (wire.AddPartitionsToTxnRequest(transactions=()), 4, (ACTS,)),
    (wire.AddOffsetsToTxnRequest(transactional_id="t", group_id="g"), 3, (WRITES_TXN, READS_GROUP)),
    (wire.EndTxnRequest(transactional_id="t"), 3, (WRITES_TXN,)),
    (
        wire.TxnOffsetCommitRequest(
            transactional_id="t",
            group_id="g",
            topics=a_topic(
                wire.TxnOffsetCommitRequestTopic,
                partitions=(wire.TxnOffsetCommitRequestPartition(partition_index=0, committed_metadata=""),),
            ),
        ),
        3,
        (WRITES_TXN, READS_GROUP, need("READ", TOPIC)),
    ),
    (wire.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)), 4, (DESCRIBES_GROUP,)),
    (wire.FindCoordinatorRequest(key_type=0, key="g"), 3, (DESCRIBES_GROUP,)),
    (wire.FindCoordinatorRequest(key_type=1, coordinator_keys=("t",)), 4, (need("DESCRIBE", TXN),)),
    (wire.FindCoordinatorRequest(key_type=2, coordinator_keys=("g:x:0",)), 6, (ACTS,)),
    (
        wire.OffsetCommitRequest(
            group_id="g",
            topics=a_topic(
                wire.OffsetCommitRequestTopic, partitions=(wire.OffsetCommitRequestPartition(partition_index=0),)
            ),
        ),
        8,
        (READS_GROUP, need("READ", TOPIC)),
    ),
    (
        wire.OffsetFetchRequest(
            groups=(
                wire.OffsetFetchRequestGroup(
                    group_id="g", topics=a_topic(wire.OffsetFetchRequestTopics, partition_indexes=(0,))
                ),
            )
        ),
        8,
        (DESCRIBES_GROUP,),
    ),
    (
        wire.OffsetFetchRequest(group_id="g", topics=a_topic(wire.OffsetFetchRequestTopic, partition_indexes=(0,))),
        5,
        (DESCRIBES_GROUP,),
    ),
    (wire.JoinGroupRequest(group_id="g", session_timeout_ms=6000), 7, (READS_GROUP,)),
    (wire.SyncGroupRequest(group_id="g"), 4, (READS_GROUP,)),
    (wire.HeartbeatRequest(group_id="g"), 4, (READS_GROUP,)),
    (wire.LeaveGroupRequest(group_id="g"), 5, (READS_GROUP,)),
    (wire.DescribeGroupsRequest(groups=("g",)), 5, (DESCRIBES_GROUP,)),
    (wire.DeleteGroupsRequest(groups_names=("g",)), 2, (need("DELETE", GROUP),)),
    (
        wire.OffsetDeleteRequest(
            group_id="g",
            topics=a_topic(
                wire.OffsetDeleteRequestTopic, partitions=(wire.OffsetDeleteRequestPartition(partition_index=0),)
            ),
        ),
        0,
        (need("DELETE", GROUP),),
    ),
    (
        wire.DescribeAclsRequest(
            resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
            resource_name_filter=None, principal_filter=None, host_filter=None,
        ),
        3,
        (DESCRIBES,),
    ),
    (
        wire.CreateAclsRequest(
            creations=(
                wire.AclCreation(
                    resource_type=2, resource_name="z", principal="User:z", host="*", operation=3, permission_type=3
                ),
            )
        ),
        3,
        (ALTERS,),
    ),
    (
        wire.DeleteAclsRequest(
            filters=(
                wire.DeleteAclsFilter(
                    resource_type_filter=2, pattern_type_filter=3, operation=1, permission_type=1,
                    resource_name_filter="z", principal_filter=None, host_filter=None,
                ),
            )
        ),
        3,
        (ALTERS,),
    ),
    (
        wire.ElectLeadersRequest(
            topic_partitions=(wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0,)),), timeout_ms=0
        ),
        2,
        (ALTERS,),
    ),
    (wire.DescribeUserScramCredentialsRequest(users=None), 0, (DESCRIBES,)),
    (
        wire.AlterUserScramCredentialsRequest(deletions=(wire.ScramCredentialDeletion(name="u", mechanism=1),)),
        0,
        (ALTERS,),
    ),
    (wire.AlterPartitionReassignmentsRequest(), 0, (ALTERS,)),
    (wire.ListPartitionReassignmentsRequest(topics=None), 0, (DESCRIBES,)),
    (wire.UpdateFeaturesRequest(), 1, (ALTERS,)),
    (wire.DescribeClientQuotasRequest(), 1, (need("DESCRIBE_CONFIGS", CLUSTER),)),
    (
        wire.AlterClientQuotasRequest(
            entries=(
                wire.AlterClientQuotasRequestEntryData(
                    entity=(wire.AlterClientQuotasRequestEntityData(entity_type="user", entity_name="u"),)
                ),
            ),
            validate_only=True,
        ),
        1,
        (need("ALTER_CONFIGS", CLUSTER),),
    ),
    (wire.DescribeTransactionsRequest(transactional_ids=("t",)), 0, (need("DESCRIBE", TXN),)),
]  # fmt: skip
#: they filter what they answer, or need nothing
OTHERS: Final = {
    wire.ApiVersionsRequest, wire.DescribeClusterRequest, wire.ListGroupsRequest, wire.ListTransactionsRequest,
    wire.CreateDelegationTokenRequest, wire.RenewDelegationTokenRequest, wire.ExpireDelegationTokenRequest,
    wire.DescribeDelegationTokenRequest,
    wire.SaslHandshakeRequest, wire.SaslAuthenticateRequest,
    wire.EnvelopeRequest, wire.ConsumerGroupHeartbeatRequest, wire.ConsumerGroupDescribeRequest,
}  # fmt: skip


def test_every_api_is_among_them() -> None:
    assert {type(message) for message, _, _ in NEEDED} | OTHERS == {handler.request for handler in HANDLERS}


def named(value: object) -> str:
    return type(value).__name__ if isinstance(value, wire.Message) else ""


@pytest.mark.parametrize(("message", "version", "needs"), NEEDED, ids=named)
async def test_without_one_of_the_acls_it_is_denied(
    node: Guarded, message: wire.Message, version: int, needs: tuple[Need, ...]
) -> None:
    denied = await node.ask(message, version)
    assert denials(denied)
    assert denials(denied) <= {one.code for one in needs}
    for missing in needs:
        guarded = Guarded(node._nursery)  # type: ignore[arg-type]
        guarded.grant(*(one for one in needs if one != missing))
        assert missing.code in denials(await guarded.ask(message, version))


@pytest.mark.parametrize(("message", "version", "needs"), NEEDED, ids=named)
async def test_with_the_acls_it_is_served(
    node: Guarded, message: wire.Message, version: int, needs: tuple[Need, ...]
) -> None:
    node.grant(*needs)
    if isinstance(message, (wire.OffsetFetchRequest, wire.OffsetDeleteRequest)):
        node.grant(need("READ", TOPIC))
    assert not denials(await node.ask(message, version))


@pytest.mark.parametrize(("message", "version", "needs"), NEEDED, ids=named)
async def test_a_super_user_is_served(
    node: Guarded, message: wire.Message, version: int, needs: tuple[Need, ...]
) -> None:
    node.principal = ALICE._replace(name="superuser1")
    node.grant(*needs, permission="Deny")
    assert not denials(await node.ask(message, version))


async def test_apis_that_need_nothing(node: Guarded) -> None:
    assert (await node.ask(wire.ApiVersionsRequest(), 2)).error_code == ErrorCode.NONE
    answer = await node.ask(wire.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    assert (answer.error_code, len(answer.brokers), answer.cluster_authorized_operations) == (0, 2, 0)


def bits(*operations: str) -> int:
    return bit_field(Operation[name] for name in operations)


async def test_authorized_operations_are_those_of_the_client(node: Guarded) -> None:  # rules B7.8, B9.37
    node.grant(DESCRIBES, need("ALTER_CONFIGS", CLUSTER), need("DELETE", TOPIC))
    of_cluster = bits("DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
    request = wire.MetadataRequest(
        topics=tuple(wire.MetadataRequestTopic(name=name) for name in ("a", "other")),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = await node.ask(request, 10)
    assert answer.cluster_authorized_operations == of_cluster
    operations = {topic.name: topic.topic_authorized_operations for topic in answer.topics}
    assert operations == {"a": bits("DELETE", "DESCRIBE"), "other": NO_OPERATIONS}
    answer = await node.ask(wire.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    assert answer.cluster_authorized_operations == of_cluster
    node.grant(need("READ", TOPIC))
    answer = await node.ask(request, 10)
    assert answer.topics[0].topic_authorized_operations == bits("DELETE", "DESCRIBE", "READ")


async def test_metadata_of_all_topics_hides_those_that_may_not_be_described(node: Guarded) -> None:
    """And says nothing of them; asked for by id, a topic keeps its name to itself."""
    node.cache.update(update_metadata(umr_state(0), topic="b", topic_id=NO_ID, alive=(1, 2)))
    node.grant(need("DESCRIBE", TOPIC, "b"))
    answer = await node.ask(wire.MetadataRequest(topics=None), 12)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("b", 0)]
    by_id = wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name=None, topic_id=ID_A),))
    (topic,) = (await node.ask(by_id, 12)).topics
    assert (topic.name, topic.topic_id, topic.error_code) == (None, ID_A, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    (topic,) = (await node.ask(wire.MetadataRequest(topics=(wire.MetadataRequestTopic(name="a"),)), 12)).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("a", NO_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def test_a_topic_deleted_by_id_hides_its_name(node: Guarded) -> None:
    by_id = wire.DeleteTopicsRequest(topics=(wire.DeleteTopicState(name=None, topic_id=ID_A),))
    (result,) = (await node.ask(by_id, 6)).responses
    assert (result.name, result.topic_id, result.error_code) == (None, ID_A, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    node.grant(need("DESCRIBE", TOPIC))
    (result,) = (await node.ask(by_id, 6)).responses
    assert (result.name, result.topic_id, result.error_code) == ("a", ID_A, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    node.grant(need("DELETE", TOPIC))
    (result,) = (await node.ask(by_id, 6)).responses
    assert (result.name, result.error_code) == ("a", ErrorCode.REQUEST_TIMED_OUT)  # nobody deletes it


async def test_create_on_the_cluster_creates_any_topic(node: Guarded) -> None:
    node.grant(need("CREATE", CLUSTER))
    request = wire.CreateTopicsRequest(topics=(creatable("new"), creatable("a")), validate_only=True)
    created, refused = (await node.ask(request, 7)).topics
    hidden = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert created == wire.CreatableTopicResult(
        name="new", error_code=0, error_message=None, topic_config_error_code=hidden
    )
    assert refused == wire.CreatableTopicResult(
        name="a", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="Topic 'a' already exists."
    )
    node.grant(need("DESCRIBE_CONFIGS", TOPIC, "new"))
    result, _ = (await node.ask(request, 7)).topics
    assert (result.error_code, result.topic_config_error_code, result.num_partitions) == (0, 0, 1)
    assert result.configs


async def test_groups_are_listed_without_any_right(node: Guarded) -> None:
    """But only those that may be described."""
    assert await node.ask(wire.ListGroupsRequest(), 5) == wire.ListGroupsResponse()


@pytest.mark.parametrize("kind", list(PatternType))
async def test_write_on_any_topic_is_enough_for_an_idempotent_producer(node: Guarded, kind: PatternType) -> None:
    request = wire.InitProducerIdRequest(transactional_id=None)  # rule B9.34
    node.grant_on(ResourcePattern("Topic", "some", kind), Operation.WRITE)
    assert not denials(await node.ask(request, 4))


async def test_alter_on_the_cluster_is_enough_to_write_markers(node: Guarded) -> None:
    node.grant(ALTERS)
    assert not denials(await node.ask(MARKERS, 1))


async def test_settings_of_brokers_are_checked_before_the_rights(node: Guarded) -> None:  # rule B7.27
    def resource(name: str, key: str, value: str) -> Any:
        config = wire.AlterConfigsRequestAlterableConfig(name=key, value=value)
        return wire.AlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name=name, configs=(config,))

    cases = (
        (resource("x", "num.io.threads", "5"), ErrorCode.INVALID_REQUEST),
        (resource("", "num.io.threads", "many"), ErrorCode.INVALID_REQUEST),
        (resource("", "num.io.threads", "5"), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    )
    for asked, code in cases:
        answer = await node.ask(wire.AlterConfigsRequest(resources=(asked,)), 2)
        assert [result.error_code for result in answer.responses] == [code]
    assert not node.services.admin.configs


async def test_a_follower_needs_cluster_action_to_fetch(node: Guarded) -> None:
    request = fetch_request(version=12, replica=2)
    node.grant(need("READ", TOPIC))
    assert denials(await node.ask(request, 12)) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    node.grant(ACTS)
    assert not denials(await node.ask(request, 12))


async def test_cluster_action_is_enough_for_the_ends_of_epochs(node: Guarded) -> None:
    topics = (wire.OffsetForLeaderTopic(topic="a", partitions=(wire.OffsetForLeaderPartition(partition=0),)),)
    request = wire.OffsetForLeaderEpochRequest(replica_id=2, topics=topics)
    node.grant(ACTS)
    assert not denials(await node.ask(request, 4))


async def test_a_transactional_id_is_only_needed_for_transactional_records(node: Guarded) -> None:
    node.grant(need("WRITE", TOPIC))
    request = wire.ProduceRequest(transactional_id="t", acks=1, topic_data=produce_request(batch()).topic_data)
    assert not denials(await node.ask(request, 9))


def audit(records: Iterable[Any]) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in records if r.name == "kafka.authorizer.logger"]


async def test_decisions_are_logged_as_kafka_logs_them(node: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Rule B9.36: denied at INFO, allowed at DEBUG, what only filters below both."""
    caplog.set_level("DEBUG", "kafka.authorizer.logger")
    await node.ask(wire.HeartbeatRequest(group_id="g"), 4)
    node.grant(READS_GROUP)
    await node.ask(wire.HeartbeatRequest(group_id="g"), 4)
    text = (
        "Principal = User:alice is {} Operation = Read from host = 127.0.0.1 on resource = Group:LITERAL:g"
        " for request = Heartbeat with resourceRefCount = 1"
    )
    assert audit(caplog.records) == [("INFO", text.format("Denied")), ("DEBUG", text.format("Allowed"))]
    caplog.clear()
    await node.ask(wire.MetadataRequest(topics=None), 12)
    assert audit(caplog.records) == []


@pytest.mark.parametrize(
    ("message", "version", "operation", "count"),
    [
        (
            wire.OffsetFetchRequest(
                group_id="g", topics=a_topic(wire.OffsetFetchRequestTopic, partition_indexes=(0, 1))
            ),
            5, "Describe", 1,
        ),
        (
            wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_topics=a_topic(wire.AddPartitionsToTxnTopic, partitions=(0, 1)),
            ),
            3, "Write", 2,
        ),
    ],
    ids=named,
)  # fmt: skip
async def test_a_denied_topic_is_logged_once_with_how_often_it_is_named(
    node: Guarded, caplog: pytest.LogCaptureFixture, message: wire.Message, version: int, operation: str, count: int
) -> None:
    """Rule B9.36: by topic or by partition, as Kafka counts."""
    node.grant(DESCRIBES_GROUP, need("WRITE", TXN))
    caplog.set_level("INFO", "kafka.authorizer.logger")
    await node.ask(message, version)
    api = type(message).__name__.removesuffix("Request")
    assert audit(caplog.records) == [
        (
            "INFO",
            f"Principal = User:alice is Denied Operation = {operation} from host = 127.0.0.1"
            f" on resource = Topic:LITERAL:a for request = {api} with resourceRefCount = {count}",
        )
    ]


async def test_the_listing_of_groups_is_not_denied(node: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kafka.authorizer.logger")
    await node.ask(wire.ListGroupsRequest(), 5)
    assert audit(caplog.records) == []


async def test_what_a_broker_lists_and_refuses(node: Guarded) -> None:  # rule B1.62
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    assert (await node.ask(wire.ConsumerGroupHeartbeatRequest(group_id="g"), 0)).error_code == unsupported
    answer = await node.ask(wire.ConsumerGroupDescribeRequest(group_ids=("g", "h")), 0)
    assert [(group.group_id, group.error_code) for group in answer.groups] == [("g", unsupported), ("h", unsupported)]
    request, captured = node.request(wire.EnvelopeRequest(), 0)
    node.apis.handle(request)
    assert captured.response is not None
    assert captured.response.action is Action.CLOSE_CONNECTION


async def test_refused_groups_come_first(node: Guarded) -> None:  # rule G7.35
    node.grant(need("DESCRIBE", GROUP, "g"))
    answer = await node.ask(wire.DescribeGroupsRequest(groups=("g", "other")), 5)
    assert [group.group_id for group in answer.groups] == ["other", "g"]
    assert answer.groups[0].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


async def test_very_many_names_are_judged_with_pauses() -> None:
    """Each once, as at once, with how often it is there."""
    judged: list[tuple[str, int]] = []
    paused = 0

    def authorize(context: Any, operation: Operation, kind: ResourceType, name: str, **more: Any) -> bool:
        judged.append((name, more["count"]))
        return int(name) % 3 > 0

    async def pause(began: float) -> float:
        nonlocal paused
        paused += 1
        return began

    authorizer: Any = SimpleNamespace(authorize=authorize)
    context: Any = SimpleNamespace(paced=lambda items: Paced(items, pause))
    authorization = Authorization(authorizer)
    names = [*map(str, range(3000)), "0", "1"]
    expected = authorization.denied(context, Operation.READ, TOPIC, names)
    once, judged = judged, []
    found, pauses_in_steps = pauses(authorization.denied_in_steps(context, Operation.READ, TOPIC, names))
    assert (found, judged, pauses_in_steps > 40) == (expected, once, True)
    judged = []
    assert await authorization.denied_in_turns(context, Operation.READ, names) == expected
    assert (judged, paused > 300) == (once, True)
