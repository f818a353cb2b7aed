"""Whole answers of the controller, each field of them, of partitions that are not the first.

Covers: controller/dispatch.py.
"""

from __future__ import annotations

import uuid
from typing import Any

from trio.testing import MockClock

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.zookeeper.model import BrokerId
from tests.controller.support import World, world

ASSIGNMENT = {0: [1, 2], 1: [2, 3], 2: [3, 1], 3: [2, 1]}


async def answered(w: World, controller: KafkaController, request: wire.Message, version: int | None = None) -> Any:
    answers: list[Any] = []
    controller.submit(request, request.__versions__.last if version is None else version, answers.append)
    await w.settle()
    (answer,) = answers
    return answer


async def test_elections(autojump_clock: MockClock) -> None:  # rules 11.30, 11.33
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", ASSIGNMENT)
        await w.stop_broker(3)
        await w.settle()
        asked = wire.ElectLeadersRequestTopicPartitions(topic="t", partitions=(2, 3, 9))
        answer = await answered(w, controller, wire.ElectLeadersRequest(topic_partitions=(asked,)))
        (topic,) = answer.replica_election_results
        unavailable = next(p for p in topic.partition_result if p.partition_id == 2)
        assert "t-2" in (unavailable.error_message or "")
        result = wire.PartitionResult
        assert answer == wire.ElectLeadersResponse(
            replica_election_results=(
                wire.ReplicaElectionResult(
                    topic="t",
                    partition_result=(
                        result(
                            partition_id=3,
                            error_code=ErrorCode.ELECTION_NOT_NEEDED,
                            error_message="Leader election not needed for topic partition.",
                        ),
                        result(
                            partition_id=9,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message="The partition does not exist.",
                        ),
                        result(
                            partition_id=2,
                            error_code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                            error_message=unavailable.error_message,
                        ),
                    ),
                ),
            )
        )


async def test_reassignments(autojump_clock: MockClock) -> None:  # rules 3.24, 11.25 to 11.28
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", ASSIGNMENT)
        w.brokers[3].mute = True  # so that it goes on
        asked = tuple(
            wire.ReassignablePartition(partition_index=number, replicas=replicas)
            for number, replicas in ((2, ()), (3, (3, 1)), (1, None), (9, (1,)))
        )
        request = wire.AlterPartitionReassignmentsRequest(topics=(wire.ReassignableTopic(name="t", partitions=asked),))
        answer = await answered(w, controller, request)
        found = {p.partition_index: (p.error_code, p.error_message) for p in answer.responses[0].partitions}
        assert found == {
            2: (ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The list of replicas is empty."),
            3: (ErrorCode.NONE, None),
            1: (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is in progress."),
            9: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."),
        }
        assert answer == wire.AlterPartitionReassignmentsResponse(
            error_message=answer.error_message,
            responses=(wire.ReassignableTopicResponse(name="t", partitions=answer.responses[0].partitions),),
        )
        ongoing = wire.ListPartitionReassignmentsResponse(
            topics=(
                wire.OngoingTopicReassignment(
                    name="t",
                    partitions=(
                        wire.OngoingPartitionReassignment(
                            partition_index=3, replicas=(3, 1, 2), adding_replicas=(3,), removing_replicas=(2,)
                        ),
                    ),
                ),
            )
        )
        for topics in (None, (wire.ListPartitionReassignmentsTopics(name="t", partition_indexes=(1, 3)),)):
            assert await answered(w, controller, wire.ListPartitionReassignmentsRequest(topics=topics)) == ongoing
        others = wire.ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 1))
        none = await answered(w, controller, wire.ListPartitionReassignmentsRequest(topics=(others,)))
        assert none == wire.ListPartitionReassignmentsResponse()


async def test_changes_of_isrs(autojump_clock: MockClock) -> None:  # rules 11.72 to 11.81
    async with world() as w:
        controller = await w.start_controller(1)
        await w.create_topic("t", ASSIGNMENT)
        topic_id, unknown = controller.context.topic_ids["t"], uuid.UUID(int=99)
        partition, data = wire.AlterPartitionRequestPartitionData, wire.AlterPartitionRequestTopicData
        found = wire.AlterPartitionResponsePartitionData
        for version in (1, 2):
            epoch = version - 1
            asked = (
                partition(
                    partition_index=3, leader_epoch=0, new_isr=(2,) if version == 1 else (2, 1), partition_epoch=epoch
                ),
                partition(partition_index=1, leader_epoch=7, new_isr=(2,), partition_epoch=0),
            )
            named = data(topic_name="t", partitions=asked) if version < 2 else data(topic_id=topic_id, partitions=asked)
            topics = [named]
            if version >= 2:
                topics.append(data(topic_id=unknown, partitions=(partition(partition_index=5),)))
            request = wire.AlterPartitionRequest(
                broker_id=2, broker_epoch=controller.context.broker_epochs[BrokerId(2)], topics=tuple(topics)
            )
            of_topic = {"topic_name": "t"} if version < 2 else {"topic_id": topic_id}
            expected = [
                wire.AlterPartitionResponseTopicData(
                    partitions=(
                        found(partition_index=1, error_code=ErrorCode.NOT_CONTROLLER),
                        found(
                            partition_index=3, leader_id=2, leader_epoch=0, isr=(2,) if version == 1 else (2, 1),
                            leader_recovery_state=0, partition_epoch=epoch + 1,
                        ),
                    ),
                    **of_topic,
                )
            ]  # fmt: skip
            if version >= 2:
                of_unknown = (found(partition_index=5, error_code=ErrorCode.UNKNOWN_TOPIC_ID),)
                expected.append(wire.AlterPartitionResponseTopicData(topic_id=unknown, partitions=of_unknown))
            answer = await answered(w, controller, request, version)
            assert answer == wire.AlterPartitionResponse(topics=tuple(expected))


async def test_blocks_of_producer_ids(autojump_clock: MockClock) -> None:  # rule 11.82
    async with world() as w:
        controller = await w.start_controller(1)
        epoch = controller.context.broker_epochs[BrokerId(2)]
        answer = wire.AllocateProducerIdsResponse
        for broker, broker_epoch, expected in (
            (9, epoch, answer(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)),
            (2, epoch - 1, answer(error_code=ErrorCode.STALE_BROKER_EPOCH)),
            (2, epoch + 1, answer(error_code=ErrorCode.STALE_BROKER_EPOCH)),
            (2, epoch, answer(producer_id_start=0, producer_id_len=1000)),
            (2, epoch, answer(producer_id_start=1000, producer_id_len=1000)),
        ):
            request = wire.AllocateProducerIdsRequest(broker_id=broker, broker_epoch=broker_epoch)
            assert await answered(w, controller, request) == expected
