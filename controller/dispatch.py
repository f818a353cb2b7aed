"""One table of the controller's events and requests: the properties of each, and what processes it.

    state       the controller's state while it processes the event (rule 3.7)
    process     processes the event on the active controller. Other nodes drop the event, or refuse the request (3.8).
                `KafkaController` handles events without it, active or not
    coalesces   equal pending events are processed once: the handler reads ZooKeeper again anyway
    drains      the event preempts all pending ones (3.2, 3.5)
    refused_when_preempted
                a preempted request is refused; without it, it is never answered (3.37, 3.38)
    waits       an inactive node queues the request before it refuses it; without it, it refuses at once

To serve another request, add its row and function here, and add it to broker_stub/handlers/forwarded.py.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kce import wire
from kce.controller import events as ev
from kce.controller.controlled_shutdown import shut_down_broker
from kce.controller.controller_role import ControllerRole
from kce.controller.errors import BrokenBatch, BrokerNotAvailable, OperationResult, StaleBrokerEpoch
from kce.controller.events import ControllerEvent, RequestReceived
from kce.controller.events import ControllerState as State
from kce.pauses import Paced
from kce.wire import ErrorCode
from kce.wire.vocabulary import by_topic
from kce.zookeeper.admin_nodes import allocate_producer_ids
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.model import BrokerId, ElectionType, FeatureUpdate, TopicPartition, UpgradeType
from kce.zookeeper.store import SessionExpired

log = logging.getLogger(__name__)

#: takes the event of its row, for a request `RequestReceived`
Process = Callable[[ControllerRole, Any], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Row:
    """See the module's docstring."""

    state: State
    process: Process | None = None
    coalesces: bool = False
    drains: bool = False
    refused_when_preempted: bool = False
    waits: bool = True


def row(event: ControllerEvent) -> Row:
    """Raises KeyError for a request that the controller does not serve."""
    return EVENTS[type(event.request) if isinstance(event, RequestReceived) else type(event)]


def refuse(event: ControllerEvent) -> None:
    """Reply to a request that this node is not the controller."""
    if isinstance(event, RequestReceived):
        event.reply(None)


def preempt(event: ControllerEvent) -> None:
    if row(event).refused_when_preempted:
        refuse(event)


async def _alter_partition(role: ControllerRole, event: RequestReceived[wire.AlterPartitionRequest]) -> None:
    await role.isr.alter_partition(event.request, event.api_version, event.reply)


_NO_ERROR = OperationResult()
_SHUTDOWN_ERRORS: Mapping[type[Exception], ErrorCode] = {
    StaleBrokerEpoch: ErrorCode.STALE_BROKER_EPOCH,
    BrokerNotAvailable: ErrorCode.BROKER_NOT_AVAILABLE,
}


async def _controlled_shutdown(role: ControllerRole, event: RequestReceived[wire.ControlledShutdownRequest]) -> None:
    """The broker gets a response, even if the shutdown fails (rules 3.27, 11.41, 11.42, 11.44).

    A controller that finds out here that it has moved goes on, as Kafka's does, until it is told by ZooKeeper.
    """
    broker = BrokerId(event.request.broker_id)
    try:
        remaining = await shut_down_broker(role.runtime, broker, event.request.broker_epoch)
    except ControllerMoved as e:
        log.error("controlled shutdown of broker %d: %s", broker, e)
        refuse(event)
    except Exception as e:
        code = _SHUTDOWN_ERRORS.get(type(e), ErrorCode.UNKNOWN_SERVER_ERROR)
        event.reply(wire.ControlledShutdownResponse(error_code=code))
        if isinstance(e, (BrokenBatch, SessionExpired)):
            raise
        log.warning("controlled shutdown of broker %d: %r", broker, e)
    else:
        partitions = tuple(wire.RemainingPartition(topic_name=t, partition_index=p) for t, p in sorted(remaining))
        event.reply(wire.ControlledShutdownResponse(remaining_partitions=partitions))


async def _reassign_partitions(
    role: ControllerRole, event: RequestReceived[wire.AlterPartitionReassignmentsRequest]
) -> None:
    named = ((topic.name, partition) for topic in event.request.topics for partition in topic.partitions)
    targets = {TopicPartition(name, p.partition_index): p.replicas async for name, p in Paced(named)}
    try:
        results = await role.reassignment.requested(targets)
    except (ControllerMoved, SessionExpired):
        refuse(event)
        raise
    responses: dict[str, list[wire.ReassignablePartitionResponse]] = {}
    async for (topic, number), result in Paced(results.items()):
        made = wire.ReassignablePartitionResponse(
            partition_index=number, error_code=result.code, error_message=result.message or None
        )
        responses.setdefault(topic, []).append(made)
    topics = [
        wire.ReassignableTopicResponse(name=topic, partitions=tuple(partitions))
        async for topic, partitions in Paced(responses.items())
    ]
    event.reply(wire.AlterPartitionReassignmentsResponse(responses=tuple(topics)))


async def _list_reassignments(
    role: ControllerRole, event: RequestReceived[wire.ListPartitionReassignmentsRequest]
) -> None:
    topics = event.request.topics
    partitions = None
    if topics is not None:  # of those that are named very few are being reassigned
        named = (TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes)
        partitions = {tp async for tp in Paced(named) if role.runtime.context.assignment(tp).is_being_reassigned}
    ongoing = tuple(
        wire.OngoingTopicReassignment(
            name=topic,
            partitions=tuple(
                wire.OngoingPartitionReassignment(
                    partition_index=number,
                    replicas=assignment.replicas,
                    adding_replicas=assignment.adding,
                    removing_replicas=assignment.removing,
                )
                for number, assignment in assignments.items()
            ),
        )
        for topic, assignments in by_topic(role.reassignment.list(partitions)).items()
    )
    event.reply(wire.ListPartitionReassignmentsResponse(topics=ongoing))


async def _elect_leaders(role: ControllerRole, event: RequestReceived[wire.ElectLeadersRequest]) -> None:
    """Elect leaders of the named partitions; where a client names none, the broker has named all (rule 11.35).

    Fails without a response if a partition has no leadership (11.31). A controller that finds out here that it is none
    any more says so; Kafka's does not answer."""
    named = (TopicPartition(t.topic, p) for t in event.request.topic_partitions or () for p in t.partitions)
    partitions = {tp: None async for tp in Paced(named)}
    try:
        results = await role.elections.requested(partitions, ElectionType(event.request.election_type))
    except (ControllerMoved, SessionExpired):
        refuse(event)
        raise
    errors: dict[str, list[wire.PartitionResult]] = {}
    async for (topic, number), result in Paced(results.items()):
        error = result if isinstance(result, OperationResult) else _NO_ERROR
        made = wire.PartitionResult(partition_id=number, error_code=error.code, error_message=error.message or None)
        errors.setdefault(topic, []).append(made)
    topics = [
        wire.ReplicaElectionResult(topic=topic, partition_result=tuple(partitions))
        async for topic, partitions in Paced(errors.items())
    ]
    event.reply(wire.ElectLeadersResponse(replica_election_results=tuple(topics)))


async def _allocate_producer_ids(role: ControllerRole, event: RequestReceived[wire.AllocateProducerIdsRequest]) -> None:
    """Rule 11.82. Raises SessionExpired without a response: the broker retries with the next controller."""
    request, context = event.request, role.runtime.context
    registered = context.broker_epochs.get(BrokerId(request.broker_id))
    if registered is None:
        event.reply(wire.AllocateProducerIdsResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED))
        return
    if registered != request.broker_epoch:
        event.reply(wire.AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        return
    try:
        block = await allocate_producer_ids(role.runtime.zk, BrokerId(request.broker_id))
    except SessionExpired:
        raise
    except Exception:
        event.reply(wire.AllocateProducerIdsResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
        raise
    length = block.last - block.first + 1
    event.reply(wire.AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=length))


async def _update_features(role: ControllerRole, event: RequestReceived[wire.UpdateFeaturesRequest]) -> None:
    updates = [_feature_update(key, event.api_version) async for key in Paced(event.request.feature_updates)]
    results = await role.features.update(updates, validate_only=event.request.validate_only)
    response = [
        wire.UpdatableFeatureResult(feature=feature, error_code=result.code, error_message=result.message or None)
        async for feature, result in Paced(results.items())
    ]
    event.reply(wire.UpdateFeaturesResponse(error_message=None, results=tuple(response)))


def _feature_update(key: wire.FeatureUpdateKey, version: int) -> FeatureUpdate:
    if version == 0:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if key.allow_downgrade else UpgradeType.UPGRADE
    else:
        known = {kind.value for kind in UpgradeType}
        upgrade_type = UpgradeType(key.upgrade_type) if key.upgrade_type in known else UpgradeType.UNKNOWN
    return FeatureUpdate(key.feature, key.max_version_level, upgrade_type)


EVENTS: Mapping[type[ControllerEvent] | type[wire.Message], Row] = {
    # handled by KafkaController
    ev.Started: Row(State.CONTROLLER_CHANGE),
    ev.ControllerChanged: Row(State.CONTROLLER_CHANGE, coalesces=True),
    ev.ControllerDeleted: Row(State.CONTROLLER_CHANGE),
    ev.SessionEstablished: Row(State.CONTROLLER_CHANGE),
    ev.SessionExpiredEvent: Row(State.CONTROLLER_CHANGE, drains=True),
    ev.ShutdownRequested: Row(State.CONTROLLER_SHUTDOWN, drains=True),
    # from ZooKeeper
    ev.BrokersChanged: Row(State.BROKER_CHANGE, lambda role, e: role.brokers.changed(), coalesces=True),
    ev.BrokerModified: Row(State.BROKER_CHANGE, lambda role, e: role.brokers.modified(e.broker), coalesces=True),
    ev.TopicsChanged: Row(State.TOPIC_CHANGE, lambda role, e: role.topics.changed(), coalesces=True),
    ev.PartitionsModified: Row(
        State.TOPIC_CHANGE, lambda role, e: role.topics.partitions_modified(e.topic), coalesces=True
    ),
    ev.TopicDeletionRequested: Row(
        State.TOPIC_DELETION, lambda role, e: role.deletion.requested(role.topics.changed), coalesces=True
    ),
    ev.IsrChangeNotified: Row(State.ISR_CHANGE, lambda role, e: role.isr.notified(), coalesces=True),
    ev.LogDirEventNotified: Row(State.LOG_DIR_CHANGE, lambda role, e: role.brokers.log_dirs_failed(), coalesces=True),
    ev.ReassignPartitionsCreated: Row(
        State.ALTER_PARTITION_REASSIGNMENT, lambda role, e: role.reassignment.requested_by_znode(), coalesces=True
    ),
    ev.ReassignedPartitionStateChanged: Row(
        State.ALTER_PARTITION_REASSIGNMENT, lambda role, e: role.reassignment.complete([e.partition]), coalesces=True
    ),
    ev.PreferredReplicaElectionCreated: Row(
        State.MANUAL_LEADER_BALANCE, lambda role, e: role.elections.requested_by_znode(), coalesces=True
    ),
    # from brokers, in response to control requests
    ev.LeaderAndIsrAnswered: Row(
        State.LEADER_AND_ISR_RESPONSE_RECEIVED, lambda role, e: role.brokers.leader_and_isr_answered(e)
    ),
    ev.UpdateMetadataAnswered: Row(
        State.UPDATE_METADATA_RESPONSE_RECEIVED, lambda role, e: role.brokers.update_metadata_answered(e)
    ),
    ev.ReplicaDeletionAnswered: Row(State.TOPIC_DELETION, lambda role, e: role.deletion.answered(e)),
    # from this node
    ev.LeaderRebalanceDue: Row(State.AUTO_LEADER_BALANCE, lambda role, e: role.rebalance()),
    ev.UncleanLeaderElectionEnabled: Row(
        State.UNCLEAN_LEADER_ELECTION_ENABLE, lambda role, e: role.runtime.partitions.trigger_online()
    ),
    ev.TopicUncleanLeaderElectionEnabled: Row(
        State.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE, lambda role, e: role.runtime.partitions.trigger_online(e.topic)
    ),
    # requests
    wire.AllocateProducerIdsRequest: Row(State.IDLE, _allocate_producer_ids),
    wire.AlterPartitionReassignmentsRequest: Row(
        State.ALTER_PARTITION_REASSIGNMENT, _reassign_partitions, refused_when_preempted=True
    ),
    wire.AlterPartitionRequest: Row(State.ISR_CHANGE, _alter_partition, waits=False),  # rule 9.70
    wire.ControlledShutdownRequest: Row(State.CONTROLLED_SHUTDOWN, _controlled_shutdown, refused_when_preempted=True),
    wire.ElectLeadersRequest: Row(State.MANUAL_LEADER_BALANCE, _elect_leaders, refused_when_preempted=True),
    wire.ListPartitionReassignmentsRequest: Row(
        State.LIST_PARTITION_REASSIGNMENT, _list_reassignments, refused_when_preempted=True
    ),
    wire.UpdateFeaturesRequest: Row(State.UPDATE_FEATURES, _update_features),
}
