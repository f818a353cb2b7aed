"""Requests to a controller, submitted as a broker does, and their responses in the controller's own values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kce import wire
from kce.controller.errors import OperationResult
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.vocabulary import by_topic
from kce.zookeeper.model import (
    BrokerId,
    ElectionType,
    FeatureUpdate,
    ProducerIdsBlock,
    ReplicaAssignment,
    TopicPartition,
)

_REFUSED = OperationResult(ErrorCode.NOT_CONTROLLER)


def _submit(
    controller: KafkaController, request: wire.Message, decode: Callable[[Any], Any], refused: Any, reply: Any
) -> None:
    version = request.__versions__.last
    controller.submit(request, version, lambda answer: reply(refused if answer is None else decode(answer)))


def _result(entry: Any) -> OperationResult:
    return OperationResult(ErrorCode(entry.error_code), entry.error_message or "")


def alter_partition(
    controller: KafkaController,
    request: wire.AlterPartitionRequest,
    version: int,
    reply: Callable[[wire.AlterPartitionResponse], None],
) -> None:
    refused = wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    controller.submit(request, version, lambda answer: reply(answer or refused))  # type: ignore[arg-type]


def controlled_shutdown(
    controller: KafkaController,
    broker_id: int,
    broker_epoch: int,
    reply: Callable[[wire.ControlledShutdownResponse], None],
) -> None:
    refused = wire.ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    request = wire.ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    _submit(controller, request, lambda answer: answer, refused, reply)


def alter_partition_reassignments(
    controller: KafkaController,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    reply: Callable[[dict[TopicPartition, OperationResult] | OperationResult], None],
) -> None:
    topics = tuple(
        wire.ReassignableTopic(
            name=topic,
            partitions=tuple(
                wire.ReassignablePartition(partition_index=number, replicas=None if t is None else tuple(t))
                for number, t in partitions.items()
            ),
        )
        for topic, partitions in by_topic(targets).items()
    )

    def decode(answer: wire.AlterPartitionReassignmentsResponse) -> dict[TopicPartition, OperationResult]:
        return {TopicPartition(t.name, p.partition_index): _result(p) for t in answer.responses for p in t.partitions}

    request = wire.AlterPartitionReassignmentsRequest(topics=topics)
    _submit(controller, request, decode, _REFUSED, reply)


def list_partition_reassignments(
    controller: KafkaController,
    partitions: Collection[TopicPartition] | None,
    reply: Callable[[dict[TopicPartition, ReplicaAssignment] | OperationResult], None],
) -> None:
    topics = None
    if partitions is not None:
        numbers = by_topic(dict.fromkeys(partitions, True))
        topics = tuple(
            wire.ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(ps))
            for topic, ps in numbers.items()
        )

    def decode(answer: wire.ListPartitionReassignmentsResponse) -> dict[TopicPartition, ReplicaAssignment]:
        return {
            TopicPartition(t.name, p.partition_index): ReplicaAssignment(
                tuple(map(BrokerId, p.replicas)),
                tuple(map(BrokerId, p.adding_replicas)),
                tuple(map(BrokerId, p.removing_replicas)),
            )
            for t in answer.topics
            for p in t.partitions
        }

    _submit(controller, wire.ListPartitionReassignmentsRequest(topics=topics), decode, _REFUSED, reply)


def elect_leaders(
    controller: KafkaController,
    partitions: Collection[TopicPartition],
    election_type: ElectionType,
    reply: Callable[[dict[TopicPartition, BrokerId | OperationResult]], None],
) -> None:
    topics = tuple(
        wire.ElectLeadersRequestTopicPartitions(topic=topic, partitions=tuple(numbers))
        for topic, numbers in by_topic(dict.fromkeys(partitions, True)).items()
    )

    def decode(answer: wire.ElectLeadersResponse) -> dict[TopicPartition, BrokerId | OperationResult]:
        results = {
            TopicPartition(r.topic, p.partition_id): _result(p)
            for r in answer.replica_election_results
            for p in r.partition_result
        }
        return {tp: result if result.code else BrokerId(controller.leader(tp)) for tp, result in results.items()}

    request = wire.ElectLeadersRequest(election_type=election_type.value, topic_partitions=topics)
    _submit(controller, request, decode, dict.fromkeys(partitions, _REFUSED), reply)


def allocate_producer_ids(
    controller: KafkaController,
    broker_id: int,
    broker_epoch: int,
    reply: Callable[[ProducerIdsBlock | ErrorCode], None],
) -> None:
    def decode(answer: wire.AllocateProducerIdsResponse) -> ProducerIdsBlock | ErrorCode:
        first = answer.producer_id_start
        block = ProducerIdsBlock(BrokerId(broker_id), first, first + answer.producer_id_len - 1)
        return ErrorCode(answer.error_code) if answer.error_code else block

    request = wire.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    _submit(controller, request, decode, ErrorCode.NOT_CONTROLLER, reply)


def update_features(
    controller: KafkaController,
    updates: Sequence[FeatureUpdate],
    reply: Callable[[dict[str, OperationResult] | OperationResult], None],
    *,
    validate_only: bool = False,
) -> None:
    keys = tuple(
        wire.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind.value)
        for feature, level, kind in updates
    )

    def decode(answer: wire.UpdateFeaturesResponse) -> dict[str, OperationResult]:
        return {result.feature: _result(result) for result in answer.results}

    request = wire.UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
    _submit(controller, request, decode, _REFUSED, reply)
