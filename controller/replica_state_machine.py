"""Replica states: NonExistent -> New -> Online <-> Offline -> deletion (rules of section 6c).

The transitions are `context.VALID_PREVIOUS_REPLICA_STATES`. Going offline takes the replica out of the ISR in
ZooKeeper; the deletion states belong to `topic_deletion`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from controller.context import VALID_PREVIOUS_REPLICA_STATES, ControllerContext, ReplicaState
from controller.errors import ControllerMoved, StateChangeFailed
from controller.kafka_zk_client import KafkaZkClient
from controller.model import (
    NO_LEADER,
    BrokerId,
    LeaderAndIsr,
    Leadership,
    PartitionReplica,
    TopicPartition,
)
from controller.request_batch import ControllerRequestBatch
from controller.store import NoNode, SessionExpired, StoreError

log = logging.getLogger(__name__)
state_change_log = logging.getLogger("state.change.logger")


class ReplicaStateMachine:
    def __init__(self, context: ControllerContext, zk: KafkaZkClient, batch: ControllerRequestBatch) -> None:
        self._context = context
        self._zk = zk
        self._batch = batch

    async def startup(self) -> None:
        """Rule 6.32: states first, then online replicas are told, then offline ones leave their ISRs."""
        online, offline = self._context.all_replicas()
        for by_broker, state in ((online, ReplicaState.ONLINE), (offline, ReplicaState.DELETION_INELIGIBLE)):
            for broker, partitions in by_broker.items():
                self._context.replica_states_of(broker).update(dict.fromkeys(partitions, state))
        await self._handle(online, ReplicaState.ONLINE)
        await self._handle(offline, ReplicaState.OFFLINE)

    async def handle_state_changes(self, replicas: Iterable[PartitionReplica], target: ReplicaState) -> None:
        """Move replicas to ``target`` in one batch (rule 6.21).

        Raises ControllerMoved and SessionExpired; any other failure is logged and leaves states as they are.
        """
        by_broker: dict[BrokerId, list[TopicPartition]] = {}
        for tp, broker in replicas:
            by_broker.setdefault(broker, []).append(tp)
        await self._handle(by_broker, target)

    async def _handle(self, by_broker: Mapping[BrokerId, Sequence[TopicPartition]], target: ReplicaState) -> None:
        if not by_broker:
            return
        try:
            self._batch.new_batch()
            for broker, partitions in by_broker.items():
                await self._change(broker, partitions, target)
            self._batch.send()
        except (ControllerMoved, SessionExpired):
            log.error("controller moved while moving replicas to %s", target.name)
            raise
        except Exception:
            log.exception("moving replicas to %s failed", target.name)

    async def _change(self, broker: BrokerId, partitions: Sequence[TopicPartition], target: ReplicaState) -> None:
        allowed = VALID_PREVIOUS_REPLICA_STATES[target]
        states = self._context.replica_states_of(broker)
        valid = partitions
        if not set(map(states.get, partitions)) <= allowed:
            valid = []
            for tp in partitions:
                current = states.get(tp, ReplicaState.NON_EXISTENT)
                if current in allowed:
                    valid.append(tp)
                else:
                    log.error("replica %d of %s cannot go from %s to %s", broker, tp, current, target)
        match target:
            case ReplicaState.NEW:
                self._to_new(broker, valid)
            case ReplicaState.ONLINE:
                self._to_online(broker, valid)
            case ReplicaState.OFFLINE:
                await self._to_offline(broker, valid)
            case ReplicaState.NON_EXISTENT:
                self._log_changes(broker, valid, target)
                for tp in valid:  # rule 6.31
                    self._context.set_assignment(tp, self._context.assignment(tp).remove_replica(broker))
                    states.pop(tp, None)
            case _:
                self._put(broker, valid, target)
                if target is ReplicaState.DELETION_STARTED:
                    for tp in valid:
                        self._batch.add_stop_replica([broker], tp, delete=True)

    def _put(self, broker: BrokerId, partitions: Sequence[TopicPartition], target: ReplicaState) -> None:
        self._log_changes(broker, partitions, target)
        self._context.replica_states_of(broker).update(dict.fromkeys(partitions, target))

    def _log_changes(self, broker: BrokerId, partitions: Sequence[TopicPartition], target: ReplicaState) -> None:
        if not state_change_log.isEnabledFor(logging.DEBUG):
            return
        states = self._context.replica_states_of(broker)
        for tp in partitions:
            before = states.get(tp, ReplicaState.NON_EXISTENT)
            state_change_log.debug(
                "controller epoch %d: replica %d of %s from %s to %s",
                self._context.epoch,
                broker,
                tp,
                before.name,
                target.name,
            )

    def _to_new(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        new = []
        for tp in partitions:  # rule 6.22
            known = self._context.leadership.get(tp)
            if known is not None and known.leader_and_isr.leader == broker:
                log.error("replica %d of %s cannot become New, it is the leader", broker, tp)
                continue
            if known is not None:
                self._batch.add_leader_and_isr([broker], tp, known, self._context.assignment(tp), is_new=True)
            new.append(tp)
        self._put(broker, new, ReplicaState.NEW)

    def _to_online(self, broker: BrokerId, partitions: Sequence[TopicPartition]) -> None:
        states = self._context.replica_states_of(broker)
        new = [tp for tp in partitions if states[tp] is ReplicaState.NEW]
        for tp in new:  # rule 6.23
            assignment = self._context.assignment(tp)
            if broker not in assignment.replicas:
                log.error("adding replica %d to the assignment of %s", broker, tp)
                self._context.set_assignment(tp, replace(assignment, replicas=(*assignment.replicas, broker)))
        old = [tp for tp in partitions if states[tp] is not ReplicaState.NEW] if new else partitions
        self._batch.add_known_leader_and_isr(broker, old)  # rule 6.24
        self._put(broker, partitions, ReplicaState.ONLINE)

    # -> Offline

    async def _to_offline(self, broker: BrokerId, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:  # rule 6.25: with the epoch from before the ISR changes
            self._batch.add_stop_replica([broker], tp, delete=False)
        with_leadership = [tp for tp in partitions if tp in self._context.leadership]
        without_leadership = [tp for tp in partitions if tp not in self._context.leadership]
        removed = await self._remove_from_isr(broker, with_leadership)
        for tp, known in removed.items():  # rule 6.26
            if not self._context.is_queued_for_deletion(tp.topic):
                others = [r for r in self._context.replicas(tp) if r != broker]
                self._batch.add_leader_and_isr(others, tp, known, self._context.assignment(tp), is_new=False)
        self._put(broker, list(removed), ReplicaState.OFFLINE)
        if without_leadership:  # rule 6.27
            everyone = self._context.live_or_shutting_down_broker_ids
            self._batch.add_update_metadata(everyone, without_leadership)
            self._put(broker, without_leadership, ReplicaState.OFFLINE)

    async def _remove_from_isr(
        self, broker: BrokerId, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Leadership]:
        """Rules 6.28-6.30; partitions that failed are logged and left out."""
        done: dict[TopicPartition, Leadership] = {}
        remaining = list(partitions)
        while remaining:
            remaining = await self._remove_from_isr_once(broker, remaining, done)
        return done

    async def _remove_from_isr_once(
        self, broker: BrokerId, partitions: Sequence[TopicPartition], done: dict[TopicPartition, Leadership]
    ) -> list[TopicPartition]:
        context = self._context
        shrunk: dict[TopicPartition, LeaderAndIsr] = {}
        try:
            found = await self._zk.get_partition_states(partitions)
        except StoreError as e:
            found = dict.fromkeys(partitions, e)
        for tp, known in found.items():
            if known is None or isinstance(known, NoNode):
                if not context.is_queued_for_deletion(tp.topic):
                    self._failed(broker, tp, StateChangeFailed(f"there is no leader and ISR information of {tp}"))
            elif isinstance(known, StoreError):
                self._failed(broker, tp, known)
            elif known.controller_epoch > context.epoch:
                self._failed(broker, tp, StateChangeFailed(f"written by controller epoch {known.controller_epoch}"))
            elif broker in known.leader_and_isr.isr:
                state = known.leader_and_isr
                leader = NO_LEADER if state.leader == broker else state.leader
                # the last member stays, even dead (7.18)
                isr = state.isr if len(state.isr) == 1 else tuple(r for r in state.isr if r != broker)
                shrunk[tp] = state.new_leader_and_isr(leader, isr)
            else:
                done[tp] = Leadership(known.leader_and_isr, context.epoch)
                context.put_leadership(tp, done[tp])
        written = await self._zk.update_leader_and_isr(shrunk, context.epoch, context.epoch_zk_version)
        for tp, state in written.updated.items():
            done[tp] = Leadership(state, context.epoch)
            context.put_leadership(tp, done[tp])
        for tp, error in written.failed.items():
            self._failed(broker, tp, error)
        return written.retry

    def _failed(self, broker: BrokerId, tp: TopicPartition, error: Exception) -> None:
        log.error(
            "replica %d of %s stays %s: %s",
            broker,
            tp,
            self._context.replica_state(PartitionReplica(tp, broker)),
            error,
        )
