"""The control requests of one step, collected and sent as a batch (rules of sections 8a and 8b).

A batch is started, added to, and sent: LeaderAndIsr first, then UpdateMetadata, then StopReplica; every broker receives
them in that order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from kce import wire
from kce.controller.context import ControllerContext
from kce.controller.control_requests import (
    BatchConfig,
    StopReplicaState,
    build_known_leader_and_isr,
    build_leader_and_isr,
    build_stop_replica,
    build_update_metadata,
    update_metadata_broker,
)
from kce.controller.errors import BrokenBatch
from kce.controller.iteration_order import HashTable
from kce.controller.known_replicas import KnownReplicas, LeaderAndIsrState, Recipients
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.model import (
    BrokerEpoch,
    BrokerId,
    Leadership,
    RegisteredBroker,
    ReplicaAssignment,
    TopicPartition,
)

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
        self._metadata_for_all = False
        self._update_metadata.clear()  # it keeps its size, and with it its order

    def problem(self, broker: RegisteredBroker) -> str | None:
        """Why UpdateMetadata cannot contain the broker (8.21)."""
        try:
            update_metadata_broker(self._config.ibp.update_metadata_version, broker)
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
        if self._known:
            self._settle_known()
        state = LeaderAndIsrState(leadership, assignment, is_new)
        for broker in brokers:
            if broker >= 0:
                states = self._leader_and_isr.get(broker)
                if states is None:
                    states = self._leader_and_isr[broker] = HashTable()
                before = states.get(tp)
                is_sticky = before is not None and before.is_new and not is_new
                states.put(tp, LeaderAndIsrState(leadership, assignment, True) if is_sticky else state)
        self._add_metadata_for_all()
        if (known := self._context.leadership.get(tp)) is not None:
            self._update_metadata.put(tp, known)

    def _add_metadata_for_all(self) -> None:
        """Brokers do not come and go while a batch is collected."""
        if not self._metadata_for_all:
            self._metadata_for_all = True
            self._update_metadata_brokers |= self._context.live_or_shutting_down_broker_ids

    def add_known_leader_and_isr(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """``add_leader_and_isr`` with the cached leadership of many partitions, for an existing replica; skips
        partitions without leadership. The context must not change between such additions to one batch."""
        if broker in self._known:
            self._settle_known()
        self.add_all_known_leader_and_isr(partitions, lambda tp, replicas: (broker,))

    def add_all_known_leader_and_isr(self, partitions: Iterable[TopicPartition], recipients: Recipients) -> None:
        """The same for all brokers that get a partition, to a batch that has nothing for them."""
        added, last_is_alone = self._known.add(self._context, partitions, recipients)
        if not added:
            return
        before = len(self._update_metadata)
        self._update_metadata.update(added)
        # Kafka's order of replicas is not imitated: of those known from another broker, one is taken to be the last
        all_are_new = len(self._update_metadata) - before == len(added)
        self._update_metadata.grow_as_after(last_is_new=last_is_alone and all_are_new)
        self._add_metadata_for_all()
        if self._leader_and_isr:
            self._settle_known()

    def add_all_leader_and_isr(self, partitions: Collection[TopicPartition], recipients: Recipients) -> None:
        """``add_leader_and_isr`` of each partition with its cached leadership, for existing replicas."""
        if not partitions:
            return
        if self._known:
            self._settle_known()
        added, _ = self._known.add(self._context, partitions, recipients)
        if self._leader_and_isr:
            self._settle_known()
        self._add_metadata_for_all()
        if len(added) == len(partitions):
            self._update_metadata.put_all(added)
        else:  # some have no recipient
            self.add_update_metadata((), partitions)

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
        topics = self._known.topics(self._context, version)
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
        rows = self._known.rows_of(self._update_metadata)
        request = build_update_metadata(version, self._config, self._context, self._update_metadata, rows)

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
