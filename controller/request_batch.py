"""The control requests of one step, collected and sent as a batch (rules of sections 8a and 8b).

A batch is started, added to, and sent: LeaderAndIsr first, then UpdateMetadata, then StopReplica; every broker receives
them in that order. The pure functions ``build_*`` build the messages.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.errors import BrokenBatch
from kce.controller.iteration_order import HashTable, by_topic
from kce.controller.known_replicas import KnownReplicas, LeaderAndIsrState, Topics
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import SECURITY_PROTOCOLS
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import (
    LEADER_DURING_DELETE,
    BrokerEpoch,
    BrokerId,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)

ZERO = uuid.UUID(int=0)
_PROTOCOL_IDS = {name: number for number, name in SECURITY_PROTOCOLS.items()}

_update_metadata_partition_state = wire.maker(wire.UpdateMetadataPartitionState)

#: takes the decoded response
OnResponse = Callable[[wire.Message], None]


class Outbox(Protocol):
    """The channels to the brokers, which enqueue and never wait."""

    def send(self, broker: BrokerId, request: wire.Message, api_version: int, on_response: OnResponse | None) -> None:
        """Enqueue a request for one broker; log and drop it for an unknown broker (rule 8.30)."""
        ...

    def send_update_metadata(
        self,
        brokers: Mapping[BrokerId, BrokerEpoch],
        request: wire.UpdateMetadataRequest,
        api_version: int,
        on_response: Callable[[BrokerId], OnResponse],
    ) -> None:
        """Enqueue a request for several brokers; only its broker epoch differs between them."""
        for broker, epoch in brokers.items():
            self.send(broker, dataclasses.replace(request, broker_epoch=epoch), api_version, on_response(broker))


class Responses(Protocol):
    """Takes responses. Each method only enqueues an event (rule 3.41)."""

    def leader_and_isr(self, response: wire.LeaderAndIsrResponse, broker: BrokerId) -> None: ...
    def update_metadata(self, response: wire.UpdateMetadataResponse, broker: BrokerId) -> None: ...
    def stop_replica(
        self, response: wire.StopReplicaResponse, broker: BrokerId, deleted: frozenset[TopicPartition]
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class StopReplicaState:
    """One partition in a StopReplica request."""

    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """``inter_broker_listener``: of live leaders in LeaderAndIsr, even if the controller uses another listener
    (8.15)."""

    broker_id: BrokerId
    ibp: MetadataVersion
    inter_broker_listener: str


class ControllerRequestBatch:
    """One of Kafka's three independent batches (rule 8.1). Reads the context, never changes it."""

    def __init__(self, config: BatchConfig, context: ControllerContext, outbox: Outbox, responses: Responses) -> None:
        self._config = config
        self._context = context
        self._outbox = outbox
        self._responses = responses
        self._update_metadata: HashTable[TopicPartition, Leadership] = HashTable()
        self.clear()

    def clear(self) -> None:
        self._leader_and_isr: dict[BrokerId, HashTable[TopicPartition, LeaderAndIsrState]] = {}
        # of `add_known_leader_and_isr`, while nothing else is added
        self._known = KnownReplicas()
        self._stop_replica: dict[BrokerId, HashTable[TopicPartition, StopReplicaState]] = {}
        self._update_metadata_brokers: set[BrokerId] = set()
        self._update_metadata.clear()  # it keeps its size, and with it its order

    def problem(self, broker: RegisteredBroker) -> str | None:
        """Why UpdateMetadata cannot contain the broker (8.21)."""
        try:
            _update_metadata_broker(self._config.ibp.update_metadata_version, broker)
        except IllegalState as e:
            return str(e)
        return None

    def new_batch(self) -> None:
        """Raises IllegalState if the last batch was not sent (rule 8.2)."""
        left = {
            "LeaderAndIsr": self._leader_and_isr or self._known,
            "StopReplica": self._stop_replica,
            "UpdateMetadata": self._update_metadata_brokers,
        }
        for name, content in left.items():
            if content:
                raise IllegalState(f"the previous batch has unsent {name} requests: {content}")

    def add_leader_and_isr(
        self,
        brokers: Iterable[BrokerId],
        tp: TopicPartition,
        leadership: Leadership,
        assignment: ReplicaAssignment,
        *,
        is_new: bool,
    ) -> None:
        """Rules 8.3, 8.5: a later addition replaces an earlier one, but is_new stays set. All brokers get its
        metadata."""
        self._settle_known()
        state = LeaderAndIsrState(leadership, assignment, is_new)
        for broker in brokers:
            if broker >= 0:
                states = self._leader_and_isr.setdefault(broker, HashTable())
                before = states.get(tp)
                is_sticky = before is not None and before.is_new and not is_new
                states.put(tp, LeaderAndIsrState(leadership, assignment, True) if is_sticky else state)
        self._update_metadata_brokers |= self._context.live_or_shutting_down_broker_ids
        if (known := self._context.leadership.get(tp)) is not None:
            self._update_metadata.put(tp, known)

    def add_known_leader_and_isr(self, broker: BrokerId, partitions: Sequence[TopicPartition]) -> None:
        """``add_leader_and_isr`` with the cached leadership of many partitions, for an existing replica; skips
        partitions without leadership. The context must not change between such additions to one batch."""
        if broker in self._known:
            self._settle_known()
        added, new = self._known.add(self._context, broker, partitions)
        if not added:
            return
        self._update_metadata.update(new)
        # Kafka's order of replicas is not imitated: of those known from another broker, one is taken to be the last
        self._update_metadata.grow_as_after(last_is_new=len(new) == self._known.size(broker))
        self._update_metadata_brokers |= self._context.live_or_shutting_down_broker_ids
        if self._leader_and_isr:
            self._settle_known()

    def _settle_known(self) -> None:
        """Something else may be added for the same partitions."""
        known, self._known = self._known, KnownReplicas()
        for broker, table in known.tables().items():
            before = self._leader_and_isr.setdefault(broker, HashTable())
            for tp in table.keys() & before.keys():
                if before[tp].is_new:
                    table[tp] = LeaderAndIsrState(table[tp].leadership, table[tp].assignment, True)
            before.put_all(table)

    def add_stop_replica(self, brokers: Iterable[BrokerId], tp: TopicPartition, *, delete: bool) -> None:
        """Rule 8.6: samples the leader epoch now; delete stays set."""
        epoch = self._context.leader_epoch_for_stop_replica(tp)
        for broker in brokers:
            if broker >= 0:
                states = self._stop_replica.setdefault(broker, HashTable())
                sticky = delete or (tp in states and states[tp].delete)
                states.put(tp, StopReplicaState(epoch, sticky))

    def add_update_metadata(self, brokers: Iterable[BrokerId], partitions: Iterable[TopicPartition]) -> None:
        """Rules 8.7, 8.9: all brokers of the batch get all its partitions; skips those without leadership."""
        self._update_metadata_brokers.update(broker for broker in brokers if broker >= 0)
        leadership = self._context.leadership
        self._update_metadata.put_all({tp: known for tp in partitions if (known := leadership.get(tp)) is not None})

    def send(self) -> None:
        """Enqueue the requests of registered brokers (rules 8.12-8.17), and clear the batch, even on failure.

        Raises BrokenBatch. Kafka's batch keeps what it could not send, and is unusable from then on (8.2)."""
        try:
            self._send()
        except Exception as e:
            raise BrokenBatch(f"the requests could not be sent: {e!r}") from e
        finally:
            self.clear()

    def _send(self) -> None:
        live = self._context.live_or_shutting_down_broker_ids
        version = self._config.ibp.leader_and_isr_version
        if version < 2:
            self._settle_known()
        topics = self._known.topics(version)
        for broker in sorted(live & (self._leader_and_isr.keys() | topics.keys())):
            if broker in topics:
                request = build_known_leader_and_isr(self._config, self._context, broker, topics.pop(broker))
            else:
                states = self._leader_and_isr[broker]
                request = build_leader_and_isr(version, self._config, self._context, broker, states)
            self._send_leader_and_isr(broker, request, version)
        if recipients := sorted(live & self._update_metadata_brokers):
            self._send_update_metadata(recipients)
        for broker in sorted(live & self._stop_replica.keys()):
            self._send_stop_replica(broker, self._stop_replica[broker])

    def _send_leader_and_isr(self, broker: BrokerId, request: wire.LeaderAndIsrRequest, version: int) -> None:

        def answered(response: wire.Message) -> None:
            assert isinstance(response, wire.LeaderAndIsrResponse)
            self._responses.leader_and_isr(response, broker)

        self._outbox.send(broker, request, version, answered)

    def _send_update_metadata(self, brokers: Iterable[BrokerId]) -> None:
        version = self._config.ibp.update_metadata_version
        request = build_update_metadata(version, self._config, self._context, self._update_metadata)

        def answered(broker: BrokerId) -> OnResponse:
            def received(response: wire.Message) -> None:
                assert isinstance(response, wire.UpdateMetadataResponse)
                self._responses.update_metadata(response, broker)

            return received

        epochs = {broker: self._context.broker_epochs[broker] for broker in brokers}
        self._outbox.send_update_metadata(epochs, request, version, answered)

    def _send_stop_replica(self, broker: BrokerId, states: HashTable[TopicPartition, StopReplicaState]) -> None:
        version = self._config.ibp.stop_replica_version
        deleted = frozenset(tp for tp, state in states.items() if state.delete)

        def answered(response: wire.Message) -> None:
            assert isinstance(response, wire.StopReplicaResponse)
            self._responses.stop_replica(response, broker, deleted)

        if version >= 3:
            self._outbox.send(
                broker, build_stop_replica(version, self._config, self._context, broker, states), version, answered
            )
            return
        for delete in (True, False):  # rule 8.22: deletions first; only they have a callback
            some = HashTable.of({tp: state for tp, state in states.items() if state.delete is delete})
            if some:
                request = build_stop_replica(version, self._config, self._context, broker, some)
                self._outbox.send(broker, request, version, answered if delete else None)


def build_leader_and_isr(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, LeaderAndIsrState],
) -> wire.LeaderAndIsrRequest:
    """Rules 8.4, 8.14-8.16, 13.7-13.11."""
    grouped = version >= 2
    topic_states = [
        (topic, [state.build(tp, version) for tp, state in of_topic])
        for topic, of_topic in (by_topic(states, java=True).items() if grouped else ())
    ]
    ungrouped = () if grouped else tuple(states[tp].build(tp, version) for tp in states.order())
    leaders = {state.leadership.leader_and_isr.leader for state in states.values()}
    return _leader_and_isr(config, context, broker, leaders, topic_states, ungrouped)


def build_known_leader_and_isr(
    config: BatchConfig, context: ControllerContext, broker: BrokerId, topics: Topics
) -> wire.LeaderAndIsrRequest:
    """The same of a version that groups partitions by topic."""
    leaders = {state.leader for _, of_topic in topics for state in of_topic}
    return _leader_and_isr(config, context, broker, leaders, topics, ())


def _leader_and_isr(
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    leaders: Collection[int],
    topics: Topics,
    ungrouped: tuple[wire.LeaderAndIsrPartitionState, ...],
) -> wire.LeaderAndIsrRequest:
    live_leaders = []
    for live in context.live_or_shutting_down_brokers:
        endpoint = live.endpoint(config.inter_broker_listener)
        if live.id in leaders and endpoint is not None:
            live_leaders.append(
                wire.LeaderAndIsrLiveLeader(broker_id=live.id, host_name=endpoint.host, port=endpoint.port)
            )
    return wire.LeaderAndIsrRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        ungrouped_partition_states=ungrouped,
        topic_states=tuple(
            wire.LeaderAndIsrTopicState(
                topic_name=topic, topic_id=context.topic_ids.get(topic, ZERO), partition_states=tuple(of_topic)
            )
            for topic, of_topic in topics
        ),
        live_leaders=tuple(live_leaders),
    )


def build_update_metadata(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    leadership: HashTable[TopicPartition, Leadership],
) -> wire.UpdateMetadataRequest:
    """The request for all brokers, without broker epoch (rules 8.8-8.10, 13.16-13.21)."""
    offline = context.offline_replicas()

    def built(tp: TopicPartition, known: Leadership, deleting: bool) -> wire.UpdateMetadataPartitionState:
        state, controller_epoch = known
        replicas = context.replicas(tp)
        built_state: wire.UpdateMetadataPartitionState = _update_metadata_partition_state(
            topic_name=tp.topic if version < 5 else "",
            partition_index=tp.partition,
            controller_epoch=controller_epoch,
            leader=LEADER_DURING_DELETE if deleting else state.leader,
            leader_epoch=0 if deleting else state.leader_epoch,
            isr=state.isr,
            zk_version=0 if deleting else state.partition_epoch,
            replicas=replicas,
            offline_replicas=offline(tp, replicas),
        )
        return built_state

    ungrouped: tuple[wire.UpdateMetadataPartitionState, ...] = ()
    topic_states = []
    if version < 5:
        is_deleting = context.is_queued_for_deletion
        ungrouped = tuple(built(tp, leadership[tp], is_deleting(tp.topic)) for tp in leadership.order())
    else:
        for topic, of_topic in by_topic(leadership, java=True).items():
            deleting = context.is_queued_for_deletion(topic)
            topic_states.append(
                wire.UpdateMetadataTopicState(
                    topic_name=topic,
                    topic_id=context.topic_ids.get(topic, ZERO),
                    partition_states=tuple([built(tp, known, deleting) for tp, known in of_topic]),
                )
            )
    return wire.UpdateMetadataRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        ungrouped_partition_states=ungrouped,
        topic_states=tuple(topic_states),
        live_brokers=tuple(_update_metadata_broker(version, b) for b in context.live_or_shutting_down_brokers),
    )


def _update_metadata_broker(version: int, broker: RegisteredBroker) -> wire.UpdateMetadataBroker:
    """Rule 8.21. Raises IllegalState if the version cannot express the broker's listeners."""
    endpoints = broker.endpoints
    if version == 0:
        plaintext = next((e for e in endpoints if e.security_protocol == "PLAINTEXT"), None)
        if plaintext is None:
            raise IllegalState(f"broker {broker.id} has no PLAINTEXT endpoint, which UpdateMetadata 0 needs")
        return wire.UpdateMetadataBroker(id=broker.id, v0_host=plaintext.host, v0_port=plaintext.port)
    for endpoint in endpoints:
        if version < 3 and endpoint.listener != endpoint.security_protocol:
            raise IllegalState(
                f"UpdateMetadata {version} has no listener names; broker {broker.id} has {endpoint.listener}"
            )
    return wire.UpdateMetadataBroker(
        id=broker.id,
        endpoints=tuple(
            wire.UpdateMetadataEndpoint(
                port=e.port,
                host=e.host,
                listener=e.listener,
                security_protocol=_PROTOCOL_IDS[e.security_protocol],
            )
            for e in endpoints
        ),
        rack=broker.rack,
    )


def build_stop_replica(
    version: int,
    config: BatchConfig,
    context: ControllerContext,
    broker: BrokerId,
    states: HashTable[TopicPartition, StopReplicaState],
) -> wire.StopReplicaRequest:
    """Rules 8.22, 13.23. Below version 3 all states have the same ``delete``."""
    topics = by_topic(states, java=False)
    ungrouped: tuple[wire.StopReplicaPartitionV0, ...] = ()
    topics_v1: tuple[wire.StopReplicaTopicV1, ...] = ()
    topic_states: tuple[wire.StopReplicaTopicState, ...] = ()
    if version == 0:
        ungrouped = tuple(
            wire.StopReplicaPartitionV0(topic_name=topic, partition_index=tp.partition)
            for topic, of_topic in topics.items()
            for tp, _ in of_topic
        )
    elif version < 3:
        topics_v1 = tuple(
            wire.StopReplicaTopicV1(name=topic, partition_indexes=tuple(tp.partition for tp, _ in of_topic))
            for topic, of_topic in topics.items()
        )
    else:
        topic_states = tuple(
            wire.StopReplicaTopicState(
                topic_name=topic,
                partition_states=tuple(
                    wire.StopReplicaPartitionState(
                        partition_index=tp.partition, leader_epoch=state.leader_epoch, delete_partition=state.delete
                    )
                    for tp, state in of_topic
                ),
            )
            for topic, of_topic in topics.items()
        )
    return wire.StopReplicaRequest(
        controller_id=config.broker_id,
        controller_epoch=context.epoch,
        broker_epoch=context.broker_epochs[broker],
        delete_partitions=version < 3 and any(state.delete for state in states.values()),
        ungrouped_partitions=ungrouped,
        topics=topics_v1,
        topic_states=topic_states,
    )
