"""What each API answers when its request fails as a whole (rules 9.4, B1.41).

Covers: broker_stub/handlers/*.py.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub.handlers import write_txn_markers
from kce.broker_stub.handlers.base import Handler
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.reactor.request import ConnectionContext, RequestContext
from kce.wire import ErrorCode
from kce.wire.long_messages import distinct, joined, parts
from kce.wire.steps import finish
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)
from tests.broker_stub.test_admin_handlers import creatable
from tests.wire.strategies import messages
from tests.wire.test_steps import pauses

ERROR: Final = ErrorCode.KAFKA_STORAGE_ERROR


def error_response(message: wire.Message, version: int) -> Any:
    (handler,) = (handler for handler in HANDLERS if handler.request is type(message))
    return handler.error_response(message, context_of(message, version), ERROR)


def context_of(message: wire.Message, version: int) -> RequestContext:
    header = wire.Header(message.__api_key__, version, 5, "test")
    return RequestContext(header, ConnectionContext("connection", "DATA", "127.0.0.1"))


FETCH: Final = wire.FetchRequest(
    topics=(
        wire.FetchTopic(topic="a", partitions=(wire.FetchPartition(partition=0), wire.FetchPartition(partition=1))),
        wire.FetchTopic(topic="b", partitions=(wire.FetchPartition(partition=2),)),
    )
)
FETCH_REFUSED: Final = wire.FetchResponse(
    error_code=ERROR,
    responses=tuple(
        wire.FetchableTopicResponse(
            topic=topic,
            partitions=tuple(
                wire.FetchResponsePartitionData(partition_index=number, error_code=ERROR, high_watermark=-1)
                for number in numbers
            ),
        )
        for topic, numbers in (("a", (0, 1)), ("b", (2,)))
    ),
)
PRODUCE: Final = wire.ProduceRequest(
    acks=1,
    topic_data=(
        wire.TopicProduceData(
            name="a", partition_data=(wire.PartitionProduceData(index=0), wire.PartitionProduceData(index=3))
        ),
    ),
)
ELECT: Final = wire.ElectLeadersRequest(
    topic_partitions=(
        wire.ElectLeadersRequestTopicPartitions(topic="a", partitions=(0, 1)),
        wire.ElectLeadersRequestTopicPartitions(topic="b", partitions=(2,)),
    )
)
NOT_ELECTED: Final = tuple(
    wire.ReplicaElectionResult(
        topic=topic,
        partition_result=tuple(
            wire.PartitionResult(partition_id=number, error_code=ERROR, error_message=None) for number in numbers
        ),
    )
    for topic, numbers in (("a", (0, 1)), ("b", (2,)))
)
CONFIGS: Final = tuple(wire.DescribeConfigsResource(resource_type=t, resource_name=n) for t, n in ((2, "a"), (4, "1")))

ADDED = (wire.AddPartitionsToTxnTopic(name="a", partitions=(0, 3)),)
NOT_ADDED = (
    wire.AddPartitionsToTxnTopicResult(
        name="a",
        results_by_partition=tuple(
            wire.AddPartitionsToTxnPartitionResult(partition_index=i, partition_error_code=ERROR) for i in (0, 3)
        ),
    ),
)
#: partitions of topics that a request names again
AGAIN: Final = (("a", (0, 0)), ("b", (2,)), ("a", (1,)))
ERRORS: Final = [
    (
        wire.OffsetCommitRequest(
            topics=tuple(
                wire.OffsetCommitRequestTopic(
                    name=name,
                    partitions=tuple(wire.OffsetCommitRequestPartition(partition_index=number) for number in numbers),
                )
                for name, numbers in AGAIN
            )
        ),
        (0, 9),
        wire.OffsetCommitResponse(
            topics=tuple(
                wire.OffsetCommitResponseTopic(
                    name=name,
                    partitions=tuple(
                        wire.OffsetCommitResponsePartition(partition_index=number, error_code=ERROR)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
    ),
    (
        wire.TxnOffsetCommitRequest(
            topics=tuple(
                wire.TxnOffsetCommitRequestTopic(
                    name=name,
                    partitions=tuple(
                        wire.TxnOffsetCommitRequestPartition(partition_index=number) for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
        (0, 4),
        wire.TxnOffsetCommitResponse(
            topics=tuple(
                wire.TxnOffsetCommitResponseTopic(
                    name=name,
                    partitions=tuple(
                        wire.TxnOffsetCommitResponsePartition(partition_index=number, error_code=ERROR)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
    ),
    (
        wire.DeleteRecordsRequest(
            topics=tuple(
                wire.DeleteRecordsTopic(
                    name=name,
                    partitions=tuple(wire.DeleteRecordsPartition(partition_index=number) for number in numbers),
                )
                for name, numbers in AGAIN
            )
        ),
        (0, 2),
        wire.DeleteRecordsResponse(
            topics=tuple(
                wire.DeleteRecordsTopicResult(
                    name=name,
                    partitions=tuple(
                        wire.DeleteRecordsPartitionResult(partition_index=number, low_watermark=-1, error_code=ERROR)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
    ),
    (
        wire.AddPartitionsToTxnRequest(
            v3_and_below_topics=tuple(
                wire.AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in AGAIN
            )
        ),
        (0, 3),
        wire.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=tuple(
                wire.AddPartitionsToTxnTopicResult(
                    name=name,
                    results_by_partition=tuple(
                        wire.AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=ERROR)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
    ),
    (
        wire.ElectLeadersRequest(
            topic_partitions=tuple(
                wire.ElectLeadersRequestTopicPartitions(topic=name, partitions=numbers) for name, numbers in AGAIN
            )
        ),
        (1, 2),
        wire.ElectLeadersResponse(
            error_code=ERROR,
            replica_election_results=tuple(
                wire.ReplicaElectionResult(
                    topic=name,
                    partition_result=tuple(
                        wire.PartitionResult(partition_id=number, error_code=ERROR, error_message=None)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            ),
        ),
    ),
    (
        wire.AlterReplicaLogDirsRequest(
            dirs=tuple(
                wire.AlterReplicaLogDir(
                    path="/d", topics=(wire.AlterReplicaLogDirTopic(name=name, partitions=numbers),)
                )
                for name, numbers in AGAIN
            )
        ),
        (0, 2),
        wire.AlterReplicaLogDirsResponse(
            results=tuple(
                wire.AlterReplicaLogDirTopicResult(
                    topic_name=name,
                    partitions=tuple(
                        wire.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=ERROR)
                        for number in numbers
                    ),
                )
                for name, numbers in AGAIN
            )
        ),
    ),
    (
        wire.MetadataRequest(
            topics=(wire.MetadataRequestTopic(name="a"), wire.MetadataRequestTopic(name=None, topic_id=ID_B))
        ),
        (0, 12),
        wire.MetadataResponse(
            topics=(
                wire.MetadataResponseTopic(error_code=ERROR, name="a"),
                wire.MetadataResponseTopic(error_code=ERROR, name="", topic_id=ID_B),
            )
        ),
    ),
    (wire.MetadataRequest(topics=None), (0, 12), wire.MetadataResponse()),
    (
        leader_and_isr(lai_state(0, topic="a"), lai_state(3, topic="a")),
        (2, 4),
        wire.LeaderAndIsrResponse(
            error_code=ERROR,
            partition_errors=tuple(
                wire.LeaderAndIsrPartitionError(topic_name="a", partition_index=number, error_code=ERROR)
                for number in (0, 3)
            ),
        ),
    ),
    (
        leader_and_isr(lai_state(0), lai_state(3)),
        (5, 7),
        wire.LeaderAndIsrResponse(
            error_code=ERROR,
            topics=(
                wire.LeaderAndIsrTopicError(
                    topic_id=ID_A,
                    partition_errors=tuple(
                        wire.LeaderAndIsrPartitionError(partition_index=number, error_code=ERROR) for number in (0, 3)
                    ),
                ),
            ),
        ),
    ),
    (
        stop_replica((0, 1, True), (4, 1, False)),
        (3, 4),
        wire.StopReplicaResponse(
            error_code=ERROR,
            partition_errors=tuple(
                wire.StopReplicaPartitionError(topic_name="a", partition_index=number, error_code=ERROR)
                for number in (0, 4)
            ),
        ),
    ),
    (update_metadata(umr_state(0)), (0, 8), wire.UpdateMetadataResponse(error_code=ERROR)),
    (wire.ApiVersionsRequest(), (0, 4), wire.ApiVersionsResponse(error_code=ERROR)),
    (
        wire.CreateTopicsRequest(topics=(creatable("a"), creatable("b"))),
        (0, 7),
        wire.CreateTopicsResponse(
            topics=tuple(
                wire.CreatableTopicResult(name=name, error_code=ERROR, error_message=None) for name in ("a", "b")
            )
        ),
    ),
    (
        wire.DeleteTopicsRequest(
            topics=(wire.DeleteTopicState(name="a"), wire.DeleteTopicState(name=None, topic_id=ID_B))
        ),
        (6,),
        wire.DeleteTopicsResponse(
            responses=(
                wire.DeletableTopicResult(name="a", error_code=ERROR),
                wire.DeletableTopicResult(name=None, topic_id=ID_B, error_code=ERROR),
            )
        ),
    ),
    (
        wire.DeleteTopicsRequest(topic_names=("a", "b")),
        (0, 5),
        wire.DeleteTopicsResponse(
            responses=tuple(wire.DeletableTopicResult(name=name, error_code=ERROR) for name in ("a", "b"))
        ),
    ),
    (
        wire.CreatePartitionsRequest(
            topics=tuple(wire.CreatePartitionsTopic(name=name, count=2) for name in ("a", "b", "a"))
        ),
        (0, 3),
        wire.CreatePartitionsResponse(
            results=tuple(wire.CreatePartitionsTopicResult(name=name, error_code=ERROR) for name in ("a", "b"))
        ),
    ),
    (
        wire.DescribeConfigsRequest(resources=CONFIGS),
        (0, 4),
        wire.DescribeConfigsResponse(
            results=tuple(
                wire.DescribeConfigsResult(
                    error_code=ERROR, error_message=None, resource_type=r.resource_type, resource_name=r.resource_name
                )
                for r in CONFIGS
            )
        ),
    ),
    (
        wire.AlterConfigsRequest(
            resources=(wire.AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name="a"),)
        ),
        (0, 2),
        wire.AlterConfigsResponse(
            responses=(
                wire.AlterConfigsResponseAlterConfigsResourceResponse(
                    error_code=ERROR, error_message=None, resource_type=2, resource_name="a"
                ),
            )
        ),
    ),
    (
        wire.IncrementalAlterConfigsRequest(
            resources=(wire.IncrementalAlterConfigsRequestAlterConfigsResource(resource_type=4, resource_name="1"),)
        ),
        (0, 1),
        wire.IncrementalAlterConfigsResponse(
            responses=(
                wire.IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                    error_code=ERROR, error_message=None, resource_type=4, resource_name="1"
                ),
            )
        ),
    ),
    (wire.DescribeClusterRequest(), (0, 1), wire.DescribeClusterResponse(error_code=ERROR)),
    (
        wire.DescribeClientQuotasRequest(),
        (0, 1),
        wire.DescribeClientQuotasResponse(error_code=ERROR, error_message=None, entries=None),
    ),
    (
        wire.AlterClientQuotasRequest(
            entries=tuple(
                wire.AlterClientQuotasRequestEntryData(
                    entity=(wire.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=name),)
                )
                for name in ("u", None)
            )
        ),
        (0, 1),
        wire.AlterClientQuotasResponse(
            entries=tuple(
                wire.AlterClientQuotasResponseEntryData(
                    error_code=ERROR,
                    error_message=None,
                    entity=(wire.AlterClientQuotasResponseEntityData(entity_type="user", entity_name=name),),
                )
                for name in ("u", None)
            )
        ),
    ),
    (ELECT, (0,), wire.ElectLeadersResponse(replica_election_results=NOT_ELECTED)),
    (ELECT, (1, 2), wire.ElectLeadersResponse(error_code=ERROR, replica_election_results=NOT_ELECTED)),
    (wire.ElectLeadersRequest(topic_partitions=None), (1,), wire.ElectLeadersResponse(error_code=ERROR)),
    (
        wire.FindCoordinatorRequest(key="g"),
        (0, 3),
        wire.FindCoordinatorResponse(error_code=ERROR, error_message=ERROR.name, node_id=-1, port=-1),
    ),
    (
        wire.FindCoordinatorRequest(coordinator_keys=("g", "h")),
        (4, 6),
        wire.FindCoordinatorResponse(
            coordinators=tuple(
                wire.Coordinator(key=key, node_id=-1, port=-1, error_code=ERROR, error_message=None) for key in "gh"
            )
        ),
    ),
    (wire.InitProducerIdRequest(), (0, 5), wire.InitProducerIdResponse(error_code=ERROR, producer_epoch=-1)),
    (
        PRODUCE,
        (0, 11),
        wire.ProduceResponse(
            responses=(
                wire.TopicProduceResponse(
                    name="a",
                    partition_responses=tuple(
                        wire.PartitionProduceResponse(index=number, error_code=ERROR, base_offset=-1)
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (replace(PRODUCE, acks=0), (0, 11), None),
    (FETCH, (0, 12), FETCH_REFUSED),
    (FETCH, (13, 17), wire.FetchResponse(error_code=ERROR)),
    (
        wire.ListOffsetsRequest(
            topics=(
                wire.ListOffsetsTopic(
                    name="a", partitions=tuple(wire.ListOffsetsPartition(partition_index=number) for number in (0, 3))
                ),
            )
        ),
        (0, 9),
        wire.ListOffsetsResponse(
            topics=(
                wire.ListOffsetsTopicResponse(
                    name="a",
                    partitions=tuple(
                        wire.ListOffsetsPartitionResponse(partition_index=number, error_code=ERROR)
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (
        wire.OffsetForLeaderEpochRequest(
            topics=(
                wire.OffsetForLeaderTopic(
                    topic="a", partitions=tuple(wire.OffsetForLeaderPartition(partition=number) for number in (0, 3))
                ),
            )
        ),
        (0, 4),
        wire.OffsetForLeaderEpochResponse(
            topics=(
                wire.OffsetForLeaderTopicResult(
                    topic="a",
                    partitions=tuple(
                        wire.OffsetForLeaderEpochResponseEpochEndOffset(partition=number, error_code=ERROR)
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (
        wire.DeleteRecordsRequest(
            topics=(
                wire.DeleteRecordsTopic(
                    name="a",
                    partitions=tuple(wire.DeleteRecordsPartition(partition_index=number) for number in (0, 3)),
                ),
            )
        ),
        (0, 2),
        wire.DeleteRecordsResponse(
            topics=(
                wire.DeleteRecordsTopicResult(
                    name="a",
                    partitions=tuple(
                        wire.DeleteRecordsPartitionResult(partition_index=number, low_watermark=-1, error_code=ERROR)
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (wire.DescribeLogDirsRequest(), (0, 4), wire.DescribeLogDirsResponse(error_code=ERROR)),
    (
        wire.DescribeProducersRequest(topics=(wire.TopicRequest(name="a", partition_indexes=(0, 3)),)),
        (0,),
        wire.DescribeProducersResponse(
            topics=(
                wire.TopicResponse(
                    name="a",
                    partitions=tuple(
                        wire.PartitionResponse(partition_index=number, error_code=ERROR) for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (wire.AllocateProducerIdsRequest(), (0,), wire.AllocateProducerIdsResponse(error_code=ERROR)),
    (wire.AlterPartitionRequest(), (0, 3), wire.AlterPartitionResponse(error_code=ERROR)),
    (
        wire.AlterPartitionReassignmentsRequest(),
        (0,),
        wire.AlterPartitionReassignmentsResponse(error_code=ERROR, error_message=ERROR.name),
    ),
    (
        wire.AlterPartitionReassignmentsRequest(
            topics=(
                wire.ReassignableTopic(
                    name="a", partitions=tuple(wire.ReassignablePartition(partition_index=i) for i in (0, 3))
                ),
            )
        ),
        (0,),
        wire.AlterPartitionReassignmentsResponse(
            error_code=ERROR,
            error_message=ERROR.name,
            responses=(
                wire.ReassignableTopicResponse(
                    name="a",
                    partitions=tuple(
                        wire.ReassignablePartitionResponse(
                            partition_index=i, error_code=ERROR, error_message=ERROR.name
                        )
                        for i in (0, 3)
                    ),
                ),
            ),
        ),
    ),
    (wire.ControlledShutdownRequest(), (0, 3), wire.ControlledShutdownResponse(error_code=ERROR)),
    (
        wire.ListPartitionReassignmentsRequest(),
        (0,),
        wire.ListPartitionReassignmentsResponse(error_code=ERROR, error_message=ERROR.name),
    ),
    (
        wire.ListPartitionReassignmentsRequest(
            topics=(wire.ListPartitionReassignmentsTopics(name="a", partition_indexes=(0, 3)),)
        ),
        (0,),
        wire.ListPartitionReassignmentsResponse(
            error_code=ERROR,
            error_message=ERROR.name,
            topics=(
                wire.OngoingTopicReassignment(
                    name="a",
                    partitions=tuple(wire.OngoingPartitionReassignment(partition_index=i) for i in (0, 3)),
                ),
            ),
        ),
    ),
    (
        wire.UpdateFeaturesRequest(),
        (0, 1),
        wire.UpdateFeaturesResponse(error_code=ERROR, error_message=ERROR.name),
    ),
    (
        wire.AlterReplicaLogDirsRequest(
            dirs=(
                wire.AlterReplicaLogDir(
                    path="/a", topics=(wire.AlterReplicaLogDirTopic(name="a", partitions=(0, 3)),)
                ),
                wire.AlterReplicaLogDir(path="/b", topics=(wire.AlterReplicaLogDirTopic(name="a", partitions=(1,)),)),
            )
        ),
        (0, 2),
        wire.AlterReplicaLogDirsResponse(
            results=tuple(
                wire.AlterReplicaLogDirTopicResult(
                    topic_name="a",
                    partitions=tuple(
                        wire.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=ERROR)
                        for number in numbers
                    ),
                )
                for numbers in ((0, 3), (1,))
            )
        ),
    ),
    (
        wire.JoinGroupRequest(group_id="g"),
        (7, 9),
        wire.JoinGroupResponse(error_code=ERROR, generation_id=-1, protocol_name=None),
    ),
    (
        wire.JoinGroupRequest(group_id="g"),
        (0, 6),
        wire.JoinGroupResponse(error_code=ERROR, generation_id=-1, protocol_name=""),
    ),
    (wire.SyncGroupRequest(group_id="g"), (0, 5), wire.SyncGroupResponse(error_code=ERROR)),
    (wire.SaslHandshakeRequest(mechanism="PLAIN"), (0, 1), wire.SaslHandshakeResponse(error_code=ERROR)),
    (
        wire.DescribeUserScramCredentialsRequest(users=(wire.UserName(name="u"),)),
        (0, 0),
        wire.DescribeUserScramCredentialsResponse(
            error_code=ERROR,
            error_message=None,  # Kafka's tools print an empty one
            results=(wire.DescribeUserScramCredentialsResult(error_code=ERROR, error_message=None),),
        ),
    ),
    (
        wire.AlterUserScramCredentialsRequest(
            deletions=(wire.ScramCredentialDeletion(name="v", mechanism=1),),
            upsertions=(wire.ScramCredentialUpsertion(name="u", mechanism=1), wire.ScramCredentialUpsertion(name="v")),
        ),
        (0, 0),
        wire.AlterUserScramCredentialsResponse(
            results=tuple(
                wire.AlterUserScramCredentialsResult(user=user, error_code=ERROR, error_message=None)
                for user in ("u", "v")
            )
        ),
    ),
    (wire.SaslAuthenticateRequest(), (0, 2), wire.SaslAuthenticateResponse(error_code=ERROR)),
    (wire.HeartbeatRequest(group_id="g"), (0, 4), wire.HeartbeatResponse(error_code=ERROR)),
    (wire.LeaveGroupRequest(group_id="g"), (0, 5), wire.LeaveGroupResponse(error_code=ERROR)),
    (
        wire.OffsetCommitRequest(
            group_id="g",
            topics=(
                wire.OffsetCommitRequestTopic(
                    name="a",
                    partitions=tuple(wire.OffsetCommitRequestPartition(partition_index=number) for number in (0, 3)),
                ),
            ),
        ),
        (0, 9),
        wire.OffsetCommitResponse(
            topics=(
                wire.OffsetCommitResponseTopic(
                    name="a",
                    partitions=tuple(
                        wire.OffsetCommitResponsePartition(partition_index=number, error_code=ERROR)
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (wire.OffsetDeleteRequest(group_id="g"), (0,), wire.OffsetDeleteResponse(error_code=ERROR)),
    (wire.ListGroupsRequest(), (0, 5), wire.ListGroupsResponse(error_code=ERROR)),
    (
        wire.DescribeGroupsRequest(groups=("g", "h")),
        (0, 5),
        wire.DescribeGroupsResponse(
            groups=tuple(
                wire.DescribeGroupsResponseDescribedGroup(group_id=group, error_code=ERROR) for group in ("g", "h")
            )
        ),
    ),
    (
        wire.DeleteGroupsRequest(groups_names=("g", "h")),
        (0, 2),
        wire.DeleteGroupsResponse(
            results=tuple(wire.DeletableGroupResult(group_id=group, error_code=ERROR) for group in ("g", "h"))
        ),
    ),
    (wire.OffsetFetchRequest(group_id="g"), (2, 7), wire.OffsetFetchResponse(error_code=ERROR)),
    (
        wire.OffsetFetchRequest(groups=tuple(wire.OffsetFetchRequestGroup(group_id=group) for group in ("g", "h"))),
        (8, 9),
        wire.OffsetFetchResponse(
            groups=tuple(wire.OffsetFetchResponseGroup(group_id=group, error_code=ERROR) for group in ("g", "h"))
        ),
    ),
    (
        wire.OffsetFetchRequest(
            group_id="g", topics=(wire.OffsetFetchRequestTopic(name="a", partition_indexes=(0, 3)),)
        ),
        (0, 1),
        wire.OffsetFetchResponse(
            topics=(
                wire.OffsetFetchResponseTopic(
                    name="a",
                    partitions=tuple(
                        wire.OffsetFetchResponsePartition(
                            partition_index=number, committed_offset=-1, error_code=ERROR, metadata=""
                        )
                        for number in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (
        wire.AddPartitionsToTxnRequest(v3_and_below_topics=ADDED),
        (0, 3),
        wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=NOT_ADDED),
    ),
    (
        wire.AddPartitionsToTxnRequest(transactions=(wire.AddPartitionsToTxnTransaction(topics=ADDED),)),
        (4, 5),
        wire.AddPartitionsToTxnResponse(error_code=ERROR),
    ),
    (wire.AddOffsetsToTxnRequest(), (0, 4), wire.AddOffsetsToTxnResponse(error_code=ERROR)),
    (wire.EndTxnRequest(), (0, 4), wire.EndTxnResponse(error_code=ERROR)),
    (
        wire.WriteTxnMarkersRequest(
            markers=tuple(
                wire.WritableTxnMarker(
                    producer_id=producer, topics=(wire.WritableTxnMarkerTopic(name="a", partition_indexes=numbers),)
                )
                for producer, numbers in ((7, (0, 3)), (8, (1,)), (7, (2,)))
            )
        ),
        (0, 1),
        wire.WriteTxnMarkersResponse(
            markers=tuple(
                wire.WritableTxnMarkerResult(
                    producer_id=producer,
                    topics=(
                        wire.WritableTxnMarkerTopicResult(
                            name="a",
                            partitions=tuple(
                                wire.WritableTxnMarkerPartitionResult(partition_index=number, error_code=ERROR)
                                for number in numbers
                            ),
                        ),
                    ),
                )
                for producer, numbers in ((7, (2,)), (8, (1,)))  # Kafka forgets what came before
            )
        ),
    ),
    (
        wire.TxnOffsetCommitRequest(
            topics=(
                wire.TxnOffsetCommitRequestTopic(
                    name="a",
                    partitions=tuple(wire.TxnOffsetCommitRequestPartition(partition_index=i, committed_metadata="")
                                     for i in (0, 3)),
                ),
            )
        ),
        (0, 4),
        wire.TxnOffsetCommitResponse(
            topics=(
                wire.TxnOffsetCommitResponseTopic(
                    name="a",
                    partitions=tuple(
                        wire.TxnOffsetCommitResponsePartition(partition_index=i, error_code=ERROR) for i in (0, 3)
                    ),
                ),
            )
        ),
    ),
    (
        wire.DescribeTransactionsRequest(transactional_ids=("t", "u")),
        (0,),
        wire.DescribeTransactionsResponse(
            transaction_states=tuple(
                wire.DescribeTransactionsResponseTransactionState(transactional_id=name, error_code=ERROR)
                for name in ("t", "u")
            )
        ),
    ),
    (wire.ListTransactionsRequest(), (0, 1), wire.ListTransactionsResponse(error_code=ERROR)),
    (
        wire.CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="bob"),
        (3,),
        wire.CreateDelegationTokenResponse(
            error_code=ERROR, principal_type="User", principal_name="bob", issue_timestamp_ms=-1,
            token_requester_principal_type="User", token_requester_principal_name="ANONYMOUS",
            expiry_timestamp_ms=-1, max_timestamp_ms=-1,
        ),
    ),
    (
        wire.RenewDelegationTokenRequest(),
        (0, 2),
        wire.RenewDelegationTokenResponse(error_code=ERROR, expiry_timestamp_ms=-1),
    ),
    (
        wire.ExpireDelegationTokenRequest(),
        (0, 2),
        wire.ExpireDelegationTokenResponse(error_code=ERROR, expiry_timestamp_ms=-1),
    ),
    (wire.DescribeDelegationTokenRequest(), (0, 3), wire.DescribeDelegationTokenResponse(error_code=ERROR)),
    (wire.EnvelopeRequest(), (0,), wire.EnvelopeResponse(error_code=ERROR)),
    (wire.ConsumerGroupHeartbeatRequest(group_id="g"), (0,), wire.ConsumerGroupHeartbeatResponse(error_code=ERROR)),
    (
        wire.ConsumerGroupDescribeRequest(group_ids=("g", "h")),
        (0,),
        wire.ConsumerGroupDescribeResponse(
            groups=tuple(
                wire.ConsumerGroupDescribeResponseDescribedGroup(group_id=group, error_code=ERROR, error_message=None)
                for group in ("g", "h")
            )
        ),
    ),
    (
        wire.DescribeAclsRequest(),
        (0, 3),
        wire.DescribeAclsResponse(error_code=ERROR, error_message=ERROR.name),
    ),
    (
        wire.CreateAclsRequest(creations=(wire.AclCreation(), wire.AclCreation())),
        (0, 3),
        wire.CreateAclsResponse(results=(wire.AclCreationResult(error_code=ERROR, error_message=ERROR.name),) * 2),
    ),
    (
        wire.DeleteAclsRequest(filters=(wire.DeleteAclsFilter(), wire.DeleteAclsFilter())),
        (0, 3),
        wire.DeleteAclsResponse(
            filter_results=(wire.DeleteAclsFilterResult(error_code=ERROR, error_message=ERROR.name),) * 2
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("message", "versions", "expected"), ERRORS)
def test_a_request_that_fails_as_a_whole(message: wire.Message, versions: tuple[int, ...], expected: Any) -> None:
    """Rules 9.4, B1.41, B4.22."""
    for version in versions:
        assert error_response(message, version) == expected


def test_every_api_is_among_them() -> None:
    assert {type(message) for message, _, _ in ERRORS} == {handler.request for handler in HANDLERS}


def error_codes(value: Any, version: int) -> Iterator[int]:
    """Those that this version has."""
    if isinstance(value, tuple):
        for one in value:
            yield from error_codes(one, version)
    for field in getattr(value, "__fields__", ()):
        if version in field.versions:
            found = getattr(value, field.name)
            yield from [found] if field.name == "error_code" else error_codes(found, version)


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.request.__name__)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_every_code_of_an_error_response_is_the_error(handler: Handler[Any], data: st.DataObject) -> None:
    version = data.draw(st.integers(*handler.request.__versions__))
    message = data.draw(messages(handler.request, version))
    header = wire.Header(handler.api_key, version, 5, "test")
    context = RequestContext(header, ConnectionContext("connection", "DATA", "127.0.0.1"))
    response = handler.error_response(message, context, ERROR)
    if response is None:  # rule B1.41: the connection is closed, or nothing was expected
        return
    sent = wire.encode_response(response, api_version=version, correlation_id=5)
    _, received = wire.decode_response(sent, api_key=handler.api_key, api_version=version)
    assert set(error_codes(received, version)) <= {ERROR}


@pytest.mark.parametrize(
    "handler", [h for h in HANDLERS if h.has_errors_of_parts], ids=lambda handler: handler.request.__name__
)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_error_responses_to_parts_make_up_the_one_to_all_of_it(handler: Handler[Any], data: st.DataObject) -> None:
    first, last = handler.request.__versions__
    if handler.request is wire.OffsetFetchRequest:
        first = 2  # before that a partition has one
    version = data.draw(st.integers(first, last))
    message = data.draw(messages(handler.request, version))
    size = data.draw(st.integers(1, 4))
    answers = ((error_response(part, version), depth) for part, depth in parts(message, size))
    made: Any = finish(joined(answers, handler.levels_left_out))
    expected = error_response(message, version)
    if handler.distinct_errors is not None:
        key = operator.attrgetter(handler.distinct_errors)
        made = finish(distinct(made, "results", handler.distinct_errors))
        made, expected = sorted(made.results, key=key), sorted(expected.results, key=key)
    assert made == expected


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_error_responses_in_steps(data: st.DataObject) -> None:
    """As at once: a producer has one, the last."""
    message: Any = data.draw(messages(wire.WriteTxnMarkersRequest, 1))
    assert finish(write_txn_markers._errors(message, context_of(message, 1), ERROR)) == error_response(message, 1)


def test_error_responses_of_very_many_partitions_are_made_with_pauses() -> None:
    topic = wire.WritableTxnMarkerTopic(name="a", partition_indexes=tuple(range(5_000)))
    markers = tuple(wire.WritableTxnMarker(producer_id=number, topics=(topic,)) for number in (1, 2, 1))
    message = wire.WriteTxnMarkersRequest(markers=markers)
    made, count = pauses(write_txn_markers._errors(message, context_of(message, 1), ERROR))
    assert [marker.producer_id for marker in made.markers] == [1, 2]
    assert count > 150
