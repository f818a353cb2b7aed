"""Reassignment of partitions, by request or by /admin/reassign_partitions (rules 11.1-11.28, KIP-455).

During a reassignment the topic's znode lists all replicas, old and new, and which of them are being added and removed,
so the next controller can continue it. Phase A lasts until the ISR contains all target replicas; phase B then completes
it. Nothing here waits: ISR changes, brokers that start and failovers check whether a reassignment is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Final
from uuid import UUID

from kce.controller.errors import SUCCESS, BrokenBatch, OperationResult, StateChangeFailed
from kce.controller.events import (
    ReassignedPartitionStateChanged,
    ReassignPartitionsCreated,
)
from kce.controller.iteration_order import table_order
from kce.controller.leader_selection import Strategy
from kce.controller.partition_states import update_leader_and_isr
from kce.controller.runtime import ControllerRuntime
from kce.controller.states import PartitionState, ReplicaState
from kce.controller.topic_deletion import TopicDeletion
from kce.pauses import Paced
from kce.wire import ErrorCode
from kce.zookeeper import znodes
from kce.zookeeper.admin_nodes import (
    delete_partition_reassignment,
    get_partition_reassignment,
    set_partition_reassignment,
)
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved, IllegalState
from kce.zookeeper.model import BrokerId, LeaderAndIsr, Leadership, PartitionReplica, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import NoNode, SessionExpired, StoreError

log = logging.getLogger(__name__)

#: of a partition, from ZooKeeper; None if it was not read, or makes no sense
KnownState = Leadership | StoreError | None

#: from so many partitions on, reassignments share their requests: with as many others at most
TOGETHER_FROM: Final = 32
AT_ONCE: Final = 256

_NOTHING: Final[Mapping[TopicPartition, KnownState]] = MappingProxyType({})
_UNKNOWN = OperationResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
_NOT_IN_PROGRESS = OperationResult(
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is in progress."
)


class Reassignment:
    def __init__(self, runtime: ControllerRuntime, deletion: TopicDeletion) -> None:
        self._runtime = runtime
        self._context = runtime.context
        self._deletion = deletion

    # starting

    async def requested_by_znode(self) -> set[TopicPartition]:
        """Start what /admin/reassign_partitions requests, if it exists (rules 11.21-11.24). Returns what was started.

        Only creation of the node is watched. Failed entries are removed from it now, the others when they complete.
        """
        if not await self.watch():
            return set()
        wanted = await get_partition_reassignment(self._runtime.zk) or {}
        results = await self._trigger({tp: self._context.assignment(tp).reassign_to(t) for tp, t in wanted.items()})
        failed = {tp: error for tp, error in results.items() if error.code is not ErrorCode.NONE}
        if failed:
            log.warning("reassignments that failed: %s", failed)
            await self._remove_from_znode(lambda tp, _: tp in failed)
        return results.keys() - failed.keys()

    async def watch(self) -> bool:
        """Watch /admin/reassign_partitions. Returns whether it exists."""
        created = ChangeHandler(created=lambda: self._runtime.put(ReassignPartitionsCreated()))
        return await self._runtime.zk.register_and_check(znodes.REASSIGN_PARTITIONS, created)

    async def requested(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, OperationResult]:
        """Start or cancel reassignments (rules 11.25-11.28). ``targets``: partition -> target replicas, None to cancel.

        The results report submission, not completion."""
        results: dict[TopicPartition, OperationResult] = {}
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        async for tp, replicas in Paced(targets.items()):
            current = self._context.assignment(tp)
            error = None if replicas is None else self._validation_error(current, replicas)
            target = None if replicas is None or error is not None else tuple(map(BrokerId, replicas))
            if error is not None:
                results[tp] = OperationResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, error)
            elif target is not None and not current.replicas:
                results[tp] = _UNKNOWN
            elif target is not None:
                accepted[tp] = current.reassign_to(target)
            elif current.is_being_reassigned:
                accepted[tp] = current.reassign_to(current.origin)
            else:
                results[tp] = _NOT_IN_PROGRESS
        await self._remove_from_znode(lambda tp, _: tp in accepted)
        return results | await self._trigger(accepted)

    def _validation_error(self, current: ReplicaAssignment, target: Sequence[int]) -> str | None:
        """Rule 11.26. A client decides how long the target is: most of it is never looked at."""
        if not target:
            return "The list of replicas is empty."
        possible = len(current.origin) + len(self._context.live_broker_ids)
        if len(target) > possible:
            return f"{len(target)} replicas, where {possible} brokers are possible."
        if len(set(target)) < len(target):
            return f"Duplicate replicas: {list(target)}."
        if min(target) < 0:
            return f"Negative broker ids: {list(target)}."
        added = set(target).difference(current.origin)
        if dead := added - self._context.live_broker_ids:
            return f"Brokers {sorted(dead)} are not alive."
        controllers = added & self._context.controller_only_ids
        return f"Nodes {sorted(controllers)} are controllers only and take no replicas." if controllers else None

    def list(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, ReplicaAssignment]:
        """The current reassignments of ``partitions``, or all of them for None (rule 3.24)."""
        wanted = self._context.being_reassigned if partitions is None else partitions
        found = {tp: self._context.assignment(tp) for tp in sorted(wanted)}
        return {tp: assignment for tp, assignment in found.items() if assignment.is_being_reassigned}

    async def resume_at_failover(self) -> None:
        """Rule 4.15."""
        resumed = await self.requested_by_znode()
        for tp in self._context.being_reassigned.order():
            if tp not in resumed:
                await self._resume(tp)

    async def resume_on(self, brokers: Collection[BrokerId]) -> None:
        """Continue reassignments to brokers that have started (rules 11.17, 11.20)."""
        for tp in self._context.being_reassigned.order():
            assignment = self._context.assignment(tp)
            if any(replica in brokers for replica in assignment.target):
                await self._resume(tp)

    async def _resume(self, tp: TopicPartition) -> None:
        """Continue one; a partition without leader and ISR must not end the failover, and so every next one."""
        try:
            await self._reassign({tp: self._context.assignment(tp)})
        except BrokenBatch:
            raise
        except (IllegalState, StateChangeFailed) as e:
            log.error("the reassignment of %s cannot be resumed: %s", tp, e)

    async def complete(self, partitions: Iterable[TopicPartition]) -> None:
        """Complete the reassignments of ``partitions`` whose target is in the ISR now (rule 11.17).

        Raises the first failure.
        """
        waiting = {tp: self._context.assignment(tp) for tp in partitions if tp in self._context.being_reassigned}
        for group in _groups(waiting):
            known = await self._runtime.zk.get_partition_states(list(group))
            caught_up = {tp: assignment for tp, assignment in group.items() if _is_complete(assignment, known[tp])}
            if caught_up:
                log.info("the target replicas of %s have caught up", ", ".join(map(str, caught_up)))
                for error in (await self._reassign_group(caught_up, known)).values():
                    raise error

    def unwatch(self) -> None:
        """At resignation (rules 4.26, 4.28)."""
        self._runtime.zk.unregister_change_handler(znodes.REASSIGN_PARTITIONS)
        for tp in self._context.being_reassigned:
            self._unwatch_state(tp)

    # the phases

    async def _trigger(self, wanted: dict[TopicPartition, ReplicaAssignment]) -> dict[TopicPartition, OperationResult]:
        """Start each; a failure does not affect the others (rule 11.21).

        Raises ControllerMoved, SessionExpired, BrokenBatch."""
        results: dict[TopicPartition, OperationResult] = {}
        known: dict[TopicPartition, ReplicaAssignment] = {}
        for tp in table_order(wanted):
            if self._context.is_queued_for_deletion(tp.topic) or not self._context.replicas(tp):
                results[tp] = _UNKNOWN
            else:
                known[tp] = wanted[tp]
                results[tp] = SUCCESS
        for group in _groups(known):
            for tp, error in (await self._reassign_group(group)).items():
                log.error("reassignment of %s to %s failed", tp, wanted[tp], exc_info=error)
                results[tp] = OperationResult(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return results

    async def _reassign_group(
        self, wanted: Mapping[TopicPartition, ReplicaAssignment], known: Mapping[TopicPartition, KnownState] = _NOTHING
    ) -> dict[TopicPartition, Exception]:
        """Reassign a group; the errors of those that failed. When a group fails, each is tried on its own: whatever a
        reassignment has done already, it can be resumed, as after a failover.

        Raises ControllerMoved, SessionExpired, BrokenBatch.
        """
        todo = dict(wanted)
        try:
            await self._reassign(todo, known)
        except (ControllerMoved, SessionExpired, BrokenBatch):
            raise
        except Exception as e:  # noqa: BLE001 - it is for the caller, or each is tried again
            if len(wanted) == 1:
                return dict.fromkeys(wanted, e)
            log.warning("%d reassignments go on one after the other: %s", len(todo), e)
            failed: dict[TopicPartition, Exception] = {}
            for tp, assignment in todo.items():
                failed |= await self._reassign_group({tp: assignment})
            return failed
        return {}

    async def _reassign(
        self, wanted: dict[TopicPartition, ReplicaAssignment], known: Mapping[TopicPartition, KnownState] = _NOTHING
    ) -> None:
        """Rules 11.1-11.8, with their step numbers, for partitions that share their requests. Takes out of ``wanted``
        what is completed. ``known``: what ZooKeeper has now, if it was just read."""
        replicas = self._runtime.replicas
        topics = list(dict.fromkeys(tp.topic for tp in wanted))
        self._deletion.mark_ineligible(topics, "topic reassignment in progress")
        await self._update_current(wanted)
        unread = [tp for tp, assignment in wanted.items() if tp not in known and assignment.is_being_reassigned]
        if unread:
            known = {**known, **await self._runtime.zk.get_partition_states(unread)}
        begun = {tp: assignment for tp, assignment in wanted.items() if not _is_complete(assignment, known.get(tp))}
        if begun:
            await self._send_new_epoch(begun, known)  # A1
            added = ([PartitionReplica(tp, replica) for replica in a.adding] for tp, a in begun.items())
            for turn in zip_longest(*added):  # A2, one replica of each partition after the other
                await replicas.handle_state_changes(filter(None, turn), ReplicaState.NEW)
        completed = {tp: ReplicaAssignment(wanted[tp].target) for tp in wanted if tp not in begun}
        if not completed:
            return
        adding = [PartitionReplica(tp, replica) for tp in completed for replica in wanted[tp].adding]
        await replicas.handle_state_changes(adding, ReplicaState.ONLINE)  # B1
        for tp, assignment in completed.items():
            self._context.set_assignment(tp, assignment)  # B2
        await self._move_leaders(completed, known)  # B3
        await self._stop([PartitionReplica(tp, r) for tp in completed for r in wanted[tp].removing])  # B4, B5
        await self._write(completed)  # B6
        await self._finished(completed)  # B7
        for tp in completed:
            del wanted[tp]
        self._runtime.send_update_metadata_to_all(completed)  # B8
        for tp, assignment in completed.items():
            log.info("%s is reassigned to %s", tp, list(assignment.replicas))
        await self._deletion.resume(list(dict.fromkeys(tp.topic for tp in completed)))

    async def _update_current(self, wanted: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """U1-U3, and 11.3."""
        changed = {tp: now for tp, now in wanted.items() if self._context.assignment(tp) != now}
        if changed:
            before = {tp: self._context.assignment(tp) for tp in changed}
            for tp, assignment in changed.items():
                log.info("%s is reassigned from %s to %s", tp, before[tp], assignment)
            await self._write(changed)
            for tp, assignment in changed.items():
                self._context.set_assignment(tp, assignment)
            await self._stop(
                [
                    PartitionReplica(tp, replica)
                    for tp, assignment in changed.items()
                    for replica in before[tp].replicas
                    if replica not in assignment.replicas
                ]
            )
        for tp in wanted:
            self._watch_state(tp)
            self._context.being_reassigned.add(tp)

    async def _move_leaders(
        self, completed: Mapping[TopicPartition, ReplicaAssignment], known: Mapping[TopicPartition, KnownState]
    ) -> None:
        """Rules 11.7, 11.8."""
        staying, moving = {}, []
        for tp, assignment in completed.items():
            leader = self._context.leadership[tp].leader_and_isr.leader
            if leader in assignment.replicas and self._context.is_replica_online(leader, tp):
                staying[tp] = assignment
            else:
                moving.append(tp)
        if staying:
            await self._send_new_epoch(staying, known)
        if moving:
            await self._runtime.partitions.handle_state_changes(moving, PartitionState.ONLINE, Strategy.REASSIGN)

    async def _send_new_epoch(
        self, assignments: Mapping[TopicPartition, ReplicaAssignment], known: Mapping[TopicPartition, KnownState]
    ) -> None:
        raised = await self._raise_epochs({tp: known.get(tp) for tp in assignments})
        with self._runtime.new_batch() as batch:
            for tp, leadership in raised.items():
                assignment = assignments[tp]
                batch.add_leader_and_isr(assignment.origin, tp, leadership, assignment, is_new=False)
                batch.add_leader_and_isr(assignment.adding, tp, leadership, assignment, is_new=True)

    async def _raise_epochs(self, known: Mapping[TopicPartition, KnownState]) -> dict[TopicPartition, Leadership]:
        """Rule 11.12. What somebody else has changed since ``known`` is read again.

        Raises StateChangeFailed, IllegalState, StoreError.
        """
        zk, context = self._runtime.zk, self._context
        raised: dict[TopicPartition, Leadership] = {}
        remaining = dict(known)
        while remaining:
            if unread := [tp for tp, state in remaining.items() if state is None]:
                remaining.update(await zk.get_partition_states(unread))
            wanted = {tp: self._with_new_epoch(tp, state) for tp, state in remaining.items()}
            written = await update_leader_and_isr(zk, wanted, context.epoch, context.epoch_zk_version)
            for tp, state in written.updated.items():
                raised[tp] = Leadership(state, context.epoch)
                context.put_leadership(tp, raised[tp])
            for error in written.failed.values():
                raise error
            remaining = dict.fromkeys(written.retry)
        return {tp: raised[tp] for tp in known}

    def _with_new_epoch(self, tp: TopicPartition, known: KnownState) -> LeaderAndIsr:
        """Raises StateChangeFailed, IllegalState, StoreError."""
        if isinstance(known, Exception) and not isinstance(known, NoNode):
            raise known
        if not isinstance(known, Leadership):
            raise IllegalState(f"the leader epoch of {tp} cannot be incremented: no leader and ISR in ZooKeeper")
        if known.controller_epoch > self._context.epoch:
            raise StateChangeFailed(
                f"{tp} was last written by controller epoch {known.controller_epoch}, ours is {self._context.epoch}"
            )
        return known.leader_and_isr.new_epoch()

    async def _stop(self, removed: Sequence[PartitionReplica]) -> None:
        """Move removed replicas through the deletion states, without waiting for the broker (rules 11.9-11.11)."""
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self._runtime.replicas.handle_state_changes(removed, state)

    async def _write(self, assignments: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Write the topics' znodes with these assignments. Raises IllegalState if a znode is gone."""
        context = self._context
        topics: dict[str, tuple[UUID | None, dict[int, ReplicaAssignment]]] = {}
        for tp, assignment in assignments.items():
            if tp.topic not in topics:
                topics[tp.topic] = context.topic_ids.get(tp.topic), dict(context.topic_assignments(tp.topic))
            topics[tp.topic][1][tp.partition] = assignment
        try:
            await self._runtime.zk.set_topic_assignments(topics, context.epoch_zk_version)
        except NoNode as e:
            raise IllegalState(f"{', '.join(map(str, assignments))} cannot be reassigned: {e}") from e

    async def _finished(self, completed: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        """Rule 11.16."""
        for tp in completed:
            self._unwatch_state(tp)
        await self._remove_from_znode(lambda tp, target: tp in completed and target == completed[tp].replicas)
        for tp in completed:
            self._context.being_reassigned.discard(tp)

    def _watch_state(self, tp: TopicPartition) -> None:
        """Without AlterPartition only ZooKeeper shows that the ISR has changed."""
        if not self._runtime.config.inter_broker_protocol_version.supports_alter_partition:
            changed = ChangeHandler(changed=lambda: self._runtime.put(ReassignedPartitionStateChanged(tp)))
            self._runtime.zk.register_change_handler(znodes.partition_state_path(tp), changed)

    def _unwatch_state(self, tp: TopicPartition) -> None:
        if not self._runtime.config.inter_broker_protocol_version.supports_alter_partition:
            self._runtime.zk.unregister_change_handler(znodes.partition_state_path(tp))

    async def _remove_from_znode(self, is_removed: Callable[[TopicPartition, tuple[BrokerId, ...]], bool]) -> None:
        """Remove entries from /admin/reassign_partitions, and the node with the last one (rules 11.16, 11.23)."""
        zk, expected = self._runtime.zk, self._context.epoch_zk_version
        wanted = await get_partition_reassignment(zk)
        if wanted is None:
            return
        remaining = {tp: target for tp, target in wanted.items() if not is_removed(tp, target)}
        if remaining:
            await set_partition_reassignment(zk, remaining, expected)
        else:
            await delete_partition_reassignment(zk, expected)
            self._runtime.put(ReassignPartitionsCreated())  # somebody may have created it again


def _groups(
    wanted: Mapping[TopicPartition, ReplicaAssignment],
) -> Iterator[dict[TopicPartition, ReplicaAssignment]]:
    """Partitions whose reassignments share their requests: each on its own, as with Kafka, unless they are many."""
    size = AT_ONCE if len(wanted) >= TOGETHER_FROM else 1
    items = list(wanted.items())
    return (dict(items[begin : begin + size]) for begin in range(0, len(items), size))


def _is_complete(assignment: ReplicaAssignment, known: KnownState) -> bool:
    """Whether ZooKeeper has all target replicas in the ISR (rule 11.4)."""
    if not assignment.is_being_reassigned:
        return True
    return isinstance(known, Leadership) and set(assignment.target) <= set(known.leader_and_isr.isr)
