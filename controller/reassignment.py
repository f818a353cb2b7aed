"""Reassignment of partitions, by request or by /admin/reassign_partitions (rules 11.1-11.28, KIP-455).

During a reassignment the topic's znode lists all replicas, old and new, and which of them are being added and removed,
so the next controller can continue it. Phase A lasts until the ISR contains all target replicas; phase B then completes
it. Nothing here waits: ISR changes, brokers that start and failovers check whether a reassignment is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kce.controller.context import PartitionState, ReplicaState
from kce.controller.errors import SUCCESS, BrokenBatch, OperationResult, StateChangeFailed
from kce.controller.events import (
    ReassignedPartitionStateChanged,
    ReassignPartitionsCreated,
)
from kce.controller.iteration_order import table_order
from kce.controller.leader_selection import Strategy
from kce.controller.partition_states import update_leader_and_isr
from kce.controller.runtime import ControllerRuntime
from kce.controller.topic_deletion import TopicDeletion
from kce.wire import ErrorCode
from kce.zookeeper import znodes
from kce.zookeeper.admin_nodes import (
    delete_partition_reassignment,
    get_partition_reassignment,
    set_partition_reassignment,
)
from kce.zookeeper.client import ChangeHandler
from kce.zookeeper.errors import ControllerMoved, IllegalState
from kce.zookeeper.model import BrokerId, Leadership, PartitionReplica, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import NoNode, SessionExpired, StoreError

log = logging.getLogger(__name__)

#: of a partition, from ZooKeeper; None if it was not read, or makes no sense
KnownState = Leadership | StoreError | None

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
        for tp, replicas in targets.items():
            current = self._context.assignment(tp)
            target = None if replicas is None else tuple(BrokerId(r) for r in replicas)
            error = None if target is None else self._validation_error(current, target)
            if error is not None:
                results[tp] = OperationResult(ErrorCode.INVALID_REPLICA_ASSIGNMENT, error)
            elif target is not None:
                accepted[tp] = current.reassign_to(target)
            elif current.is_being_reassigned:
                accepted[tp] = current.reassign_to(current.origin)
            else:
                results[tp] = _NOT_IN_PROGRESS
        await self._remove_from_znode(lambda tp, _: tp in accepted)
        return results | await self._trigger(accepted)

    def _validation_error(self, current: ReplicaAssignment, target: Sequence[BrokerId]) -> str | None:
        """Rule 11.26."""
        if not target:
            return "The list of replicas is empty."
        if len(set(target)) < len(target):
            return f"Duplicate replicas: {list(target)}."
        if any(replica < 0 for replica in target):
            return f"Negative broker ids: {list(target)}."
        added = set(current.reassign_to(target).adding)
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
            await self._reassign(tp, self._context.assignment(tp))
        except BrokenBatch:
            raise
        except (IllegalState, StateChangeFailed) as e:
            log.error("the reassignment of %s cannot be resumed: %s", tp, e)

    async def complete(self, partitions: Iterable[TopicPartition]) -> None:
        """Complete the reassignments of ``partitions`` whose target is in the ISR now (rule 11.17)."""
        for tp in partitions:
            if tp in self._context.being_reassigned:
                assignment = self._context.assignment(tp)
                known = await self._known(tp)
                if _is_complete(assignment, known):
                    log.info("the target replicas of %s have caught up", tp)
                    await self._reassign(tp, assignment, known)

    def unwatch(self) -> None:
        """At resignation (rules 4.26, 4.28)."""
        self._runtime.zk.unregister_change_handler(znodes.REASSIGN_PARTITIONS)
        for tp in self._context.being_reassigned:
            self._unwatch_state(tp)

    # the phases

    async def _trigger(self, wanted: dict[TopicPartition, ReplicaAssignment]) -> dict[TopicPartition, OperationResult]:
        """Start each; a failure does not affect the others (rule 11.21).

        Raises ControllerMoved, SessionExpired, BrokenBatch."""
        results = {}
        for tp in table_order(wanted):
            assignment = wanted[tp]
            if self._context.is_queued_for_deletion(tp.topic) or not self._context.replicas(tp):
                results[tp] = _UNKNOWN
                continue
            try:
                await self._reassign(tp, assignment)
            except (ControllerMoved, SessionExpired, BrokenBatch):
                raise
            except Exception as e:
                log.exception("reassignment of %s to %s failed", tp, assignment)
                results[tp] = OperationResult(ErrorCode.UNKNOWN_SERVER_ERROR, str(e))
            else:
                results[tp] = SUCCESS
        return results

    async def _reassign(
        self, tp: TopicPartition, assignment: ReplicaAssignment, known: KnownState | None = None
    ) -> None:
        """Rules 11.1-11.8, with their step numbers. ``known``: what ZooKeeper has now, if it was just read."""
        replicas = self._runtime.replicas
        self._deletion.mark_ineligible([tp.topic], "topic reassignment in progress")
        await self._update_current(tp, assignment)
        if known is None and assignment.is_being_reassigned:
            known = await self._known(tp)
        if not _is_complete(assignment, known):
            await self._send_new_epoch(tp, assignment, known)  # A1
            for replica in assignment.adding:  # A2
                await replicas.handle_state_changes([PartitionReplica(tp, replica)], ReplicaState.NEW)
            return
        adding = [PartitionReplica(tp, replica) for replica in assignment.adding]
        await replicas.handle_state_changes(adding, ReplicaState.ONLINE)  # B1
        completed = ReplicaAssignment(assignment.target)
        self._context.set_assignment(tp, completed)  # B2
        await self._move_leader(tp, completed, known)  # B3
        await self._stop(tp, assignment.removing)  # B4, B5
        await self._write(tp, completed)  # B6
        await self._finished(tp, completed)  # B7
        self._runtime.send_update_metadata_to_all([tp])  # B8
        log.info("%s is reassigned to %s", tp, list(completed.replicas))
        await self._deletion.resume([tp.topic])

    async def _update_current(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        """U1-U3, and 11.3."""
        current = self._context.assignment(tp)
        if current != assignment:
            log.info("%s is reassigned from %s to %s", tp, current, assignment)
            await self._write(tp, assignment)
            self._context.set_assignment(tp, assignment)
            await self._stop(tp, [r for r in current.replicas if r not in assignment.replicas])
        if not self._runtime.config.inter_broker_protocol_version.supports_alter_partition:
            changed = ChangeHandler(changed=lambda: self._runtime.put(ReassignedPartitionStateChanged(tp)))
            self._runtime.zk.register_change_handler(znodes.partition_state_path(tp), changed)
        self._context.being_reassigned.add(tp)

    async def _known(self, tp: TopicPartition) -> KnownState:
        return (await self._runtime.zk.get_partition_states([tp]))[tp]

    async def _move_leader(self, tp: TopicPartition, completed: ReplicaAssignment, known: KnownState) -> None:
        """Rules 11.7, 11.8."""
        leader = self._context.leadership[tp].leader_and_isr.leader
        if leader in completed.replicas and self._context.is_replica_online(leader, tp):
            await self._send_new_epoch(tp, completed, known)
        else:
            await self._runtime.partitions.handle_state_changes([tp], PartitionState.ONLINE, Strategy.REASSIGN)

    async def _send_new_epoch(self, tp: TopicPartition, assignment: ReplicaAssignment, known: KnownState) -> None:
        leadership = await self._bump_epoch(tp, known)
        with self._runtime.new_batch() as batch:
            batch.add_leader_and_isr(assignment.origin, tp, leadership, assignment, is_new=False)
            batch.add_leader_and_isr(assignment.adding, tp, leadership, assignment, is_new=True)

    async def _bump_epoch(self, tp: TopicPartition, known: KnownState) -> Leadership:
        """Rule 11.12. ``known`` is read again if somebody else has changed it since.

        Raises StateChangeFailed, IllegalState, StoreError.
        """
        zk, context = self._runtime.zk, self._context
        while True:
            if known is None:
                known = await self._known(tp)
            if isinstance(known, Exception) and not isinstance(known, NoNode):
                raise known
            if not isinstance(known, Leadership):
                raise IllegalState(f"the leader epoch of {tp} cannot be incremented: no leader and ISR in ZooKeeper")
            if known.controller_epoch > context.epoch:
                raise StateChangeFailed(
                    f"{tp} was last written by controller epoch {known.controller_epoch}, ours is {context.epoch}"
                )
            wanted = known.leader_and_isr.new_epoch()
            written = await update_leader_and_isr(zk, {tp: wanted}, context.epoch, context.epoch_zk_version)
            if tp in written.failed:
                raise written.failed[tp]
            if tp in written.updated:
                leadership = Leadership(written.updated[tp], context.epoch)
                context.put_leadership(tp, leadership)
                return leadership
            known = None

    async def _stop(self, tp: TopicPartition, removed: Iterable[BrokerId]) -> None:
        """Move removed replicas through the deletion states, without waiting for the broker (rules 11.9-11.11)."""
        replicas = [PartitionReplica(tp, replica) for replica in removed]
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self._runtime.replicas.handle_state_changes(replicas, state)

    async def _write(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        """Write the topic's znode with this assignment. Raises IllegalState if the znode is gone."""
        context = self._context
        partitions = context.topic_assignments(tp.topic) | {tp.partition: assignment}
        topic = {tp.topic: (context.topic_ids.get(tp.topic), partitions)}
        try:
            await self._runtime.zk.set_topic_assignments(topic, context.epoch_zk_version)
        except NoNode as e:
            raise IllegalState(f"{tp} cannot be reassigned: {e}") from e

    async def _finished(self, tp: TopicPartition, completed: ReplicaAssignment) -> None:
        """Rule 11.16."""
        self._unwatch_state(tp)
        await self._remove_from_znode(lambda other, target: other == tp and target == completed.replicas)
        self._context.being_reassigned.discard(tp)

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


def _is_complete(assignment: ReplicaAssignment, known: KnownState) -> bool:
    """Whether ZooKeeper has all target replicas in the ISR (rule 11.4)."""
    if not assignment.is_being_reassigned:
        return True
    return isinstance(known, Leadership) and set(assignment.target) <= set(known.leader_and_isr.isr)
