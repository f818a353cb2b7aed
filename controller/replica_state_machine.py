"""The states of replicas, and what each transition does (rules of section 6c).

    NonExistent -> New -> Online <-> Offline -> DeletionStarted -> DeletionSuccessful -> NonExistent
                                        ^              |
                                        +- DeletionIneligible

- A transition that is not in `TRANSITIONS` is logged and skipped (5.22).
- ADD is refused for a replica that leads the partition (6.22). STOP needs a state in ZooKeeper that no later controller
  has written (6.28-6.30). A replica whose transition fails is logged and stays as it is.
- The deletion states belong to `topic_deletion` and `reassignment`, which drive replicas through them.
- Only ControllerMoved and SessionExpired end the transitions of the other replicas.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kce.controller.context import ControllerContext
from kce.controller.errors import StateChangeFailed
from kce.controller.iteration_order import trie_order
from kce.controller.partition_states import update_leader_and_isr, with_epoch
from kce.controller.request_batch import ControllerRequestBatch
from kce.controller.states import ReplicaState
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import NO_LEADER, BrokerId, LeaderAndIsr, Leadership, PartitionReplica, TopicPartition
from kce.zookeeper.store import NoNode, SessionExpired, StoreError

log = logging.getLogger(__name__)
state_change_log = logging.getLogger("state.change.logger")


class ReplicaAction(enum.Enum):
    """The action of a transition, in addition to the state change."""

    NOTHING = enum.auto()
    #: send the broker the partition's state, as that of a new replica (6.22)
    ADD = enum.auto()
    #: put the replica into the assignment if it is not there (6.23)
    COMPLETE = enum.auto()
    #: send the broker the partition's state (6.24)
    RESUME = enum.auto()
    #: stop the replica, and take it out of the ISR in ZooKeeper (6.25-6.30)
    STOP = enum.auto()
    #: stop the replica, and delete its log
    DELETE = enum.auto()
    #: take the replica out of the assignment (6.31)
    REMOVE = enum.auto()


#: new state -> states that lead to it -> what the transition does
TRANSITIONS: Mapping[ReplicaState, Mapping[ReplicaState, ReplicaAction]] = {
    ReplicaState.NEW: {ReplicaState.NON_EXISTENT: ReplicaAction.ADD},
    ReplicaState.ONLINE: {
        ReplicaState.NEW: ReplicaAction.COMPLETE,
        ReplicaState.ONLINE: ReplicaAction.RESUME,
        ReplicaState.OFFLINE: ReplicaAction.RESUME,
        ReplicaState.DELETION_INELIGIBLE: ReplicaAction.RESUME,
    },
    ReplicaState.OFFLINE: {
        ReplicaState.NEW: ReplicaAction.STOP,
        ReplicaState.ONLINE: ReplicaAction.STOP,
        ReplicaState.OFFLINE: ReplicaAction.STOP,
        ReplicaState.DELETION_INELIGIBLE: ReplicaAction.STOP,
    },
    ReplicaState.DELETION_STARTED: {ReplicaState.OFFLINE: ReplicaAction.DELETE},
    ReplicaState.DELETION_SUCCESSFUL: {ReplicaState.DELETION_STARTED: ReplicaAction.NOTHING},
    ReplicaState.DELETION_INELIGIBLE: {
        ReplicaState.OFFLINE: ReplicaAction.NOTHING,
        ReplicaState.DELETION_STARTED: ReplicaAction.NOTHING,
    },
    ReplicaState.NON_EXISTENT: {ReplicaState.DELETION_SUCCESSFUL: ReplicaAction.REMOVE},
}


class ReplicaStateMachine:
    def __init__(self, context: ControllerContext, zk: KafkaZkClient, batch: ControllerRequestBatch) -> None:
        self._context = context
        self._zk = zk
        self._batch = batch

    async def startup(self) -> None:
        """Notify online replicas, then remove offline ones from their ISRs; all have their states (rule 6.32)."""
        context = self._context
        if context.replicas_on_offline_dirs:
            online, offline = context.replicas_by_broker(context.assignments)
            await self.move(online, ReplicaState.ONLINE)
            await self.move(offline, ReplicaState.OFFLINE)
            return
        with self._one_batch(ReplicaState.ONLINE):  # every transition is RESUME
            # partitions with equal replicas have the same that are online
            self._batch.add_all_known_leader_and_isr(context.assignments, context.online_among)
            if state_change_log.isEnabledFor(logging.DEBUG):
                for broker, partitions in context.replicas_by_broker(context.assignments)[0].items():
                    self._log_changes(broker, partitions, ReplicaState.ONLINE)
        if context.has_replicas_offline():
            await self.move(context.replicas_by_broker(context.assignments)[1], ReplicaState.OFFLINE)

    async def handle_state_changes(self, replicas: Iterable[PartitionReplica], target: ReplicaState) -> None:
        """Move replicas to ``target`` in one batch (rule 6.21).

        Raises ControllerMoved and SessionExpired. Any other failure is logged and changes no state.
        """
        by_broker: dict[BrokerId, list[TopicPartition]] = {}
        for tp, broker in replicas:
            by_broker.setdefault(broker, []).append(tp)
        await self.move(by_broker, target)

    async def move(self, by_broker: Mapping[BrokerId, Sequence[TopicPartition]], target: ReplicaState) -> None:
        """``handle_state_changes`` of replicas by broker."""
        if not by_broker:
            return
        with self._one_batch(target):
            for broker in trie_order(by_broker):  # as Kafka's groupBy; it decides who stays in an ISR, and so who leads
                await self._change(broker, by_broker[broker], target)

    @contextmanager
    def _one_batch(self, target: ReplicaState) -> Iterator[None]:
        """Sent at the end. Logs failures, except that the controller moved."""
        try:
            self._batch.new_batch()
            yield
            self._batch.send()
        except (ControllerMoved, SessionExpired):
            log.error("the controller moved while it moved replicas to %s", target.name)
            self._batch.clear()
            raise
        except Exception:
            self._batch.clear()  # Kafka leaves it unusable (6.4)
            log.exception("moving replicas to %s failed", target.name)

    async def _change(self, broker: BrokerId, partitions: Sequence[TopicPartition], target: ReplicaState) -> None:
        current = self._context.replica_states.on(broker, partitions)
        for action, some in self._by_action(broker, partitions, target, current).items():
            match action:
                case ReplicaAction.ADD:
                    some = self._add(broker, some)
                case ReplicaAction.COMPLETE:
                    self._complete(broker, some)
                case ReplicaAction.RESUME:
                    self._batch.add_known_leader_and_isr(broker, some)
                case ReplicaAction.STOP:
                    some = await self._stop(broker, some)
                case ReplicaAction.DELETE:
                    for tp in some:
                        self._batch.add_stop_replica([broker], tp, delete=True)
                case ReplicaAction.REMOVE:
                    for tp in some:
                        self._context.set_assignment(tp, self._context.assignment(tp).remove_replica(broker))
            self._log_changes(broker, some, target)
            if set(current) != {target}:
                self._context.replica_states.put(broker, some, target)

    def _by_action(
        self,
        broker: BrokerId,
        partitions: Sequence[TopicPartition],
        target: ReplicaState,
        current: Sequence[ReplicaState],
    ) -> Mapping[ReplicaAction, Sequence[TopicPartition]]:
        """Partitions whose replica may move to ``target``, by the action of the transition."""
        actions = TRANSITIONS[target]
        found = set(map(actions.get, set(current)))
        if len(found) == 1 and (only := found.pop()) is not None:
            return {only: partitions}
        todo: dict[ReplicaAction, list[TopicPartition]] = {}
        for tp, state in zip(partitions, current, strict=True):
            action = actions.get(state)
            if action is None:
                log.error("invalid transition of replica %d of %s from %s to %s", broker, tp, state, target)
            else:
                todo.setdefault(action, []).append(tp)
        return todo

    def _log_changes(self, broker: BrokerId, partitions: Sequence[TopicPartition], target: ReplicaState) -> None:
        if not state_change_log.isEnabledFor(logging.DEBUG):
            return
        for tp, before in zip(partitions, self._context.replica_states.on(broker, partitions), strict=True):
            state_change_log.debug(
                "controller epoch %d: replica %d of %s from %s to %s",
                self._context.epoch,
                broker,
                tp,
                before.name,
                target.name,
            )

    def _add(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        added = []
        for tp in partitions:
            known = self._context.leadership.get(tp)
            if known is not None and known.leader_and_isr.leader == broker:
                log.error("replica %d of %s cannot become New: it leads the partition", broker, tp)
                continue
            if known is not None:
                self._batch.add_leader_and_isr([broker], tp, known, self._context.assignment(tp), is_new=True)
            added.append(tp)
        return added

    def _complete(self, broker: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            assignment = self._context.assignment(tp)
            if broker not in assignment.replicas:
                log.error("adding replica %d to the assignment of %s", broker, tp)
                self._context.set_assignment(tp, replace(assignment, replicas=(*assignment.replicas, broker)))

    async def _stop(self, broker: BrokerId, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        if broker in self._context.broker_epochs:  # another is sent nothing (8.13)
            for tp in partitions:  # rule 6.25: with the leader epoch before the ISR changes
                self._batch.add_stop_replica([broker], tp, delete=False)
        known = self._context.leadership_of(partitions)
        without_leadership = [tp for tp in partitions if tp not in known] if len(known) < len(partitions) else []
        removed = await self._remove_from_isr(broker, known)
        deleted = self._context.topics_to_delete
        told = {tp: known for tp, known in removed.items() if tp.topic not in deleted} if deleted else removed
        self._batch.add_all_leader_and_isr(told, lambda tp, rs: tuple(r for r in rs if r != broker))  # rule 6.26
        if without_leadership:  # rule 6.27
            everyone = self._context.live_or_shutting_down_broker_ids
            self._batch.add_update_metadata(everyone, without_leadership)
        return [*removed, *without_leadership]

    async def _remove_from_isr(
        self, broker: BrokerId, partitions: Mapping[TopicPartition, Leadership]
    ) -> dict[TopicPartition, Leadership]:
        """Remove the replica from ISRs in ZooKeeper (rules 6.28-6.30). Failed partitions are logged and left out."""
        done: dict[TopicPartition, Leadership] = {}
        epoch = self._context.epoch
        cached = {tp: known for tp, known in partitions.items() if broker in known[0][1] and known[1] <= epoch}
        remaining = await self._remove_from_isr_once(broker, partitions, cached, done)
        while remaining:
            remaining = await self._remove_from_isr_once(broker, remaining, {}, done)
        return done

    async def _remove_from_isr_once(
        self,
        broker: BrokerId,
        partitions: Collection[TopicPartition],
        cached: Mapping[TopicPartition, Leadership],
        done: dict[TopicPartition, Leadership],
    ) -> list[TopicPartition]:
        """States that are ``cached`` are written at their version. Returns the partitions that must be read."""
        context = self._context
        shrunk: dict[TopicPartition, LeaderAndIsr] = {}
        unchanged: dict[TopicPartition, LeaderAndIsr] = {}
        alike: dict[int, LeaderAndIsr] = {}  # of equal states, which are one object
        found: Mapping[TopicPartition, Leadership | StoreError | None] = cached
        if len(cached) < len(partitions):
            unread = [tp for tp in partitions if tp not in cached]
            try:
                read = await self._zk.get_partition_states(unread)
            except StoreError as e:
                read = dict.fromkeys(unread, e)
            found = {tp: cached[tp] if tp in cached else read[tp] for tp in partitions}
        for tp, known in found.items():
            if (after := alike.get(id(known))) is not None:
                shrunk[tp] = after
            elif known is None or isinstance(known, NoNode):
                if not context.is_queued_for_deletion(tp.topic):
                    self._failed(broker, tp, StateChangeFailed(f"{tp} has no leader and ISR in ZooKeeper"))
            elif isinstance(known, StoreError):
                self._failed(broker, tp, known)
            elif known.controller_epoch > context.epoch:
                self._failed(
                    broker, tp, StateChangeFailed(f"last written by controller epoch {known.controller_epoch}")
                )
            elif broker in known.leader_and_isr.isr:
                state = known.leader_and_isr
                leader = NO_LEADER if state.leader == broker else state.leader
                # the last member stays in the ISR, even dead (7.18)
                isr = state.isr if len(state.isr) == 1 else tuple(r for r in state.isr if r != broker)
                shrunk[tp] = alike[id(known)] = state.new_leader_and_isr(leader, isr)
            else:
                unchanged[tp] = known.leader_and_isr
        written = await update_leader_and_isr(self._zk, shrunk, context.epoch, context.epoch_zk_version)
        finished = with_epoch({**unchanged, **written.updated}, context.epoch)
        context.put_all_leadership(finished)
        done.update(finished)
        again = [*written.retry]
        for tp, error in written.failed.items():
            if isinstance(error, NoNode) and tp in cached:
                again.append(tp)
            else:
                self._failed(broker, tp, error)
        return again

    def _failed(self, broker: BrokerId, tp: TopicPartition, error: Exception) -> None:
        log.error(
            "replica %d of %s stays %s: %s",
            broker,
            tp,
            self._context.replica_states.of(PartitionReplica(tp, broker)),
            error,
        )
