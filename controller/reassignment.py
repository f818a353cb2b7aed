"""Moving partitions to other brokers, by request or by /admin/reassign_partitions (rules 11.1-11.28, KIP-455).

The assignment during a move names all replicas, old and new, with those being added and removed; it is in the topic's
node, so whoever becomes controller goes on with it. A move is complete when all of its target is in the ISR (phase
A until then, phase B at once when it is). Nothing here waits: AlterPartition, ISR notifications, brokers that start
and failovers look whether it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from controller import zk_data
from controller.admin_nodes import (
    delete_partition_reassignment,
    get_partition_reassignment,
    set_partition_reassignment,
)
from controller.context import PartitionState, ReplicaState
from controller.core import Core
from controller.errors import NO_ERROR, ApiError, BrokenBatch, ControllerMoved, IllegalState, StateChangeFailed
from controller.events import (
    AlterPartitionReassignmentsReceived,
    ListPartitionReassignmentsReceived,
    ReassignedPartitionStateChanged,
    ReassignPartitionsCreated,
)
from controller.leader_selection import Strategy
from controller.model import BrokerId, Leadership, PartitionReplica, ReplicaAssignment, TopicPartition
from controller.store import NoNode, SessionExpired
from controller.topic_deletion import TopicDeletion
from controller.zk_client import ChangeHandler
from wire import ErrorCode

log = logging.getLogger(__name__)

_UNKNOWN = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
_NOT_IN_PROGRESS = ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment of the partition is in progress.")


class Reassignment:
    def __init__(self, core: Core, deletion: TopicDeletion) -> None:
        self._core = core
        self._context = core.context
        self._deletion = deletion

    # what starts it

    async def requested_by_znode(self) -> set[TopicPartition]:
        """/admin/reassign_partitions may be there (rules 11.21-11.24); gives the partitions that were taken up.

        Only the creation of the node is watched. Entries that fail are taken out of it, the others when they are done.
        """
        if not await self.watch():
            return set()
        wanted = await get_partition_reassignment(self._core.zk) or {}
        results = await self._trigger({tp: self._context.assignment(tp).reassign_to(t) for tp, t in wanted.items()})
        failed = {tp: error for tp, error in results.items() if error.code is not ErrorCode.NONE}
        if failed:
            log.warning("partitions that are not reassigned: %s", failed)
            await self._remove_from_znode(lambda tp, _: tp in failed)
        return results.keys() - failed.keys()

    async def watch(self) -> bool:
        """Whether the node of reassignments exists, which arms the watch."""
        created = ChangeHandler(created=lambda: self._core.put(ReassignPartitionsCreated()))
        return await self._core.zk.register_and_check(zk_data.REASSIGN_PARTITIONS, created)

    async def requested(self, event: AlterPartitionReassignmentsReceived) -> None:
        """Rules 11.25-11.28. The answer tells of submission, not of completion."""
        results: dict[TopicPartition, ApiError] = {}
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        for tp, target in event.targets.items():
            current = self._context.assignment(tp)
            error = None if target is None else self._why_invalid(current, target)
            if error is not None:
                results[tp] = ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, error)
            elif target is not None:
                accepted[tp] = current.reassign_to(target)
            elif current.is_being_reassigned:
                accepted[tp] = current.reassign_to(current.origin)
            else:
                results[tp] = _NOT_IN_PROGRESS
        try:
            await self._remove_from_znode(lambda tp, _: tp in accepted)
            results |= await self._trigger(accepted)
        except ControllerMoved:
            event.refuse()
            raise
        event.reply(results)

    def _why_invalid(self, current: ReplicaAssignment, target: Sequence[BrokerId]) -> str | None:
        """Rule 11.26."""
        if not target:
            return "The list of replicas is empty."
        if len(set(target)) < len(target):
            return f"A replica is named twice: {list(target)}."
        if any(replica < 0 for replica in target):
            return f"A broker id is negative: {list(target)}."
        dead = set(current.reassign_to(target).adding) - self._context.live_broker_ids
        return f"Brokers {sorted(dead)} are not alive." if dead else None

    def list(self, event: ListPartitionReassignmentsReceived) -> None:
        """Rule 3.24: what is not in progress is left out, whether asked about or not."""
        asked = self._context.being_reassigned if event.partitions is None else event.partitions
        found = {tp: self._context.assignment(tp) for tp in sorted(asked)}
        event.reply({tp: assignment for tp, assignment in found.items() if assignment.is_being_reassigned})

    async def resume_at_failover(self) -> None:
        """Rule 4.15."""
        resumed = await self.requested_by_znode()
        for tp in sorted(self._context.being_reassigned - resumed):
            await self._reassign(tp, self._context.assignment(tp))

    async def resume_on(self, brokers: Collection[BrokerId]) -> None:
        """Brokers started: moves to them may go on (rules 11.17, 11.20)."""
        for tp in sorted(self._context.being_reassigned):
            assignment = self._context.assignment(tp)
            if any(replica in brokers for replica in assignment.target):
                await self._reassign(tp, assignment)

    async def complete(self, partitions: Iterable[TopicPartition]) -> None:
        """ISRs changed: finish the moves among ``partitions`` that are complete now (rule 11.17)."""
        for tp in partitions:
            if tp in self._context.being_reassigned:
                assignment = self._context.assignment(tp)
                if await self._is_complete(tp, assignment):
                    log.info("the target replicas of %s have caught up", tp)
                    await self._reassign(tp, assignment)

    def unwatch(self) -> None:
        """At resignation (rules 4.26, 4.28)."""
        self._core.zk.unregister_change_handler(zk_data.REASSIGN_PARTITIONS)
        for tp in self._context.being_reassigned:
            self._unwatch_state(tp)

    # the work

    async def _trigger(self, wanted: dict[TopicPartition, ReplicaAssignment]) -> dict[TopicPartition, ApiError]:
        """Rule 11.21: one that fails leaves the others alone. Raises ControllerMoved, SessionExpired, BrokenBatch."""
        results = {}
        for tp, assignment in wanted.items():
            if self._context.is_queued_for_deletion(tp.topic) or not self._context.replicas(tp):
                results[tp] = _UNKNOWN
                continue
            try:
                await self._reassign(tp, assignment)
            except (ControllerMoved, SessionExpired, BrokenBatch):
                raise
            except Exception as e:
                log.exception("reassignment of %s to %s failed", tp, assignment)
                results[tp] = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(e))
            else:
                results[tp] = NO_ERROR
        return results

    async def _reassign(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        """Rules 11.1-11.8; the letters are those of the rules."""
        replicas = self._core.replicas
        self._deletion.mark_ineligible([tp.topic], "topic reassignment in progress")
        await self._update_current(tp, assignment)
        if not await self._is_complete(tp, assignment):
            await self._tell_new_epoch(tp, assignment)  # A1
            for replica in assignment.adding:  # A2
                await replicas.handle_state_changes([PartitionReplica(tp, replica)], ReplicaState.NEW)
            return
        adding = [PartitionReplica(tp, replica) for replica in assignment.adding]
        await replicas.handle_state_changes(adding, ReplicaState.ONLINE)  # B1
        completed = ReplicaAssignment(assignment.target)
        self._context.set_assignment(tp, completed)  # B2
        await self._move_leader(tp, completed)  # B3
        await self._stop(tp, assignment.removing)  # B4, B5
        await self._write(tp, completed)  # B6
        await self._finished(tp, completed)  # B7
        self._core.send_update_metadata_to_all([tp])  # B8
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
        if not self._core.config.inter_broker_protocol_version.supports_alter_partition:
            changed = ChangeHandler(changed=lambda: self._core.put(ReassignedPartitionStateChanged(tp)))
            self._core.zk.register_change_handler(zk_data.partition_state_path(tp), changed)
        self._context.being_reassigned.add(tp)

    async def _is_complete(self, tp: TopicPartition, assignment: ReplicaAssignment) -> bool:
        """Rule 11.4, by what ZooKeeper says."""
        if not assignment.is_being_reassigned:
            return True
        known = (await self._core.zk.get_partition_states([tp]))[tp]
        return isinstance(known, Leadership) and set(assignment.target) <= set(known.leader_and_isr.isr)

    async def _move_leader(self, tp: TopicPartition, completed: ReplicaAssignment) -> None:
        """Rules 11.7, 11.8."""
        leader = self._context.leadership[tp].leader_and_isr.leader
        if leader in completed.replicas and self._context.is_replica_online(leader, tp):
            await self._tell_new_epoch(tp, completed)
        else:
            await self._core.partitions.handle_state_changes([tp], PartitionState.ONLINE, Strategy.REASSIGN)

    async def _tell_new_epoch(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        leadership = await self._bump_epoch(tp)
        with self._core.new_batch() as batch:
            batch.add_leader_and_isr(assignment.origin, tp, leadership, assignment, is_new=False)
            batch.add_leader_and_isr(assignment.adding, tp, leadership, assignment, is_new=True)

    async def _bump_epoch(self, tp: TopicPartition) -> Leadership:
        """Rule 11.12. Raises StateChangeFailed, IllegalState, StoreError."""
        zk, context = self._core.zk, self._context
        while True:
            known = (await zk.get_partition_states([tp]))[tp]
            if isinstance(known, Exception) and not isinstance(known, NoNode):
                raise known
            if not isinstance(known, Leadership):
                raise IllegalState(f"the leader epoch of {tp} cannot be raised: there is no leader and ISR of it")
            if known.controller_epoch > context.epoch:
                raise StateChangeFailed(
                    f"{tp} was last written by controller epoch {known.controller_epoch}, ours is {context.epoch}"
                )
            wanted = known.leader_and_isr.new_epoch()
            written = await zk.update_leader_and_isr({tp: wanted}, context.epoch, context.epoch_zk_version)
            if tp in written.failed:
                raise written.failed[tp]
            if tp in written.updated:
                leadership = Leadership(written.updated[tp], context.epoch)
                context.put_leadership(tp, leadership)
                return leadership

    async def _stop(self, tp: TopicPartition, removed: Iterable[BrokerId]) -> None:
        """Rules 11.9-11.11: one state after the other, without waiting for the broker."""
        replicas = [PartitionReplica(tp, replica) for replica in removed]
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self._core.replicas.handle_state_changes(replicas, state)

    async def _write(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        """The whole topic with this partition's assignment. Raises IllegalState where its node is gone."""
        context = self._context
        partitions = context.topic_assignments(tp.topic) | {tp.partition: assignment}
        topic = {tp.topic: (context.topic_ids.get(tp.topic), partitions)}
        try:
            await self._core.zk.set_topic_assignments(topic, context.epoch_zk_version)
        except NoNode as e:
            raise IllegalState(f"{tp} cannot be reassigned: {e}") from e

    async def _finished(self, tp: TopicPartition, completed: ReplicaAssignment) -> None:
        """Rule 11.16."""
        if tp not in self._context.being_reassigned:
            raise IllegalState(f"{tp} is not being reassigned")
        self._unwatch_state(tp)
        await self._remove_from_znode(lambda other, target: other == tp and target == completed.replicas)
        self._context.being_reassigned.discard(tp)

    def _unwatch_state(self, tp: TopicPartition) -> None:
        if not self._core.config.inter_broker_protocol_version.supports_alter_partition:
            self._core.zk.unregister_change_handler(zk_data.partition_state_path(tp))

    async def _remove_from_znode(self, is_removed: Callable[[TopicPartition, tuple[BrokerId, ...]], bool]) -> None:
        """Rewrite /admin/reassign_partitions; the last entry takes the node with it (rules 11.16, 11.23)."""
        zk, expected = self._core.zk, self._context.epoch_zk_version
        wanted = await get_partition_reassignment(zk)
        if wanted is None:
            return
        left = {tp: target for tp, target in wanted.items() if not is_removed(tp, target)}
        if left:
            await set_partition_reassignment(zk, left, expected)
        else:
            await delete_partition_reassignment(zk, expected)
            self._core.put(ReassignPartitionsCreated())  # it may have been made again between
