"""Rebalances and session timers of groups, on the purgatory (sections 3e, 4, 5 and 12)."""

from __future__ import annotations

import logging
from typing import Final

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.groups.group import COMPLETING_REBALANCE, DEAD, EMPTY, PREPARING_REBALANCE, STABLE, Group
from kce.broker_stub.groups.manager import GroupManager
from kce.broker_stub.groups.member import NO_MEMBER, JoinResult, Member, SyncResult
from kce.broker_stub.purgatory import DelayedOperation, Purgatory, Timer
from kce.wire import ErrorCode
from kce.wire.errors import NO_ERROR

log = logging.getLogger(__name__)

#: how long the first JoinGroup of a member may be parked (rule G3.16)
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000

_REBALANCED: Final = (STABLE, COMPLETING_REBALANCE)


class Rebalancing:
    """What changes who is in a group, and what begins and ends a rebalance."""

    def __init__(self, config: GroupConfig, manager: GroupManager, timer: Timer) -> None:
        self._config = config
        self._manager = manager
        #: by group and member (rule G12.1)
        self.heartbeats: Purgatory[tuple[str, str], DelayedHeartbeat] = Purgatory(timer)
        self.joins: Purgatory[str, DelayedJoin] = Purgatory(timer)
        self.syncs: Purgatory[str, DelayedSync] = Purgatory(timer)

    # session timers

    def restart_timer(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """Of the member's session, unless there is another ``timeout_ms`` (rule G12.9)."""
        delay = member.session_timeout_ms if timeout_ms is None else timeout_ms
        session = member.session  # isinstance asks the ABC each time
        if type(session) is DelayedHeartbeat and not session.is_completed and not session.is_over():
            self.heartbeats.restart(session, delay)
            return
        key = group.group_id, member.member_id
        member.was_heard = True
        self.heartbeats.check_and_complete(key)
        member.was_heard = False
        session = member.session = DelayedHeartbeat(self, group, member.member_id, delay)
        if not session.try_complete():
            self.heartbeats.watch(session, [key])

    def expire_pending_member(self, group: Group, member_id: str, timeout_ms: int) -> None:
        """Forget a pending id after that time (rule G3.12)."""
        operation = DelayedHeartbeat(self, group, member_id, timeout_ms, is_pending=True)
        self.heartbeats.try_complete_or_watch(operation, [(group.group_id, member_id)])

    def timer_expired(self, group: Group, member_id: str, *, is_pending: bool) -> None:
        """Rules G5.4 to G5.7."""
        if group.is_dead:
            return
        if is_pending:
            self.remove_pending_member(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.is_alive():
            log.info("%r: member %s has failed", group, member_id)
            self.remove_member(group, member, f"the session of {member_id} expired")

    # members come and go

    def remove_member(self, group: Group, member: Member, reason: str) -> None:
        """Rules G5.5, G6.6, G6.7."""
        group.answer_join(member, JoinResult(member_id=NO_MEMBER, error=ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member.member_id)
        self.heartbeats.check_and_complete((group.group_id, member.member_id))
        if group.state in _REBALANCED:
            self.prepare(group, reason)
        elif group.state is PREPARING_REBALANCE:
            self.joins.check_and_complete(group.group_id)

    def remove_pending_member(self, group: Group, member_id: str) -> None:
        """Rules G5.6, G6.5."""
        group.remove(member_id)
        self.heartbeats.check_and_complete((group.group_id, member_id))
        if group.state is PREPARING_REBALANCE:
            self.joins.check_and_complete(group.group_id)

    # the join phase

    def maybe_prepare(self, group: Group, reason: str) -> None:
        if group.can_rebalance:
            self.prepare(group, reason)

    def prepare(self, group: Group, reason: str) -> None:
        """Begin the join phase (rules G3.33 to G3.37). Raises IllegalState."""
        if group.state is COMPLETING_REBALANCE:
            self.fail_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self.drop_sync_deadline(group)
        timeout, is_first = group.rebalance_timeout_ms, group.state is EMPTY
        group.move_to(PREPARING_REBALANCE)
        log.info("%r: rebalance, because %s", group, reason)
        if is_first:
            delay = self._config.group_initial_rebalance_delay_ms
            self.joins.watch(InitialDelayedJoin(self, group, delay, max(timeout - delay, 0)), [group.group_id])
        else:
            self.joins.try_complete_or_watch(DelayedJoin(self, group, timeout), [group.group_id])

    def extend_initial_delay(self, group: Group, waited_ms: float, left_ms: float) -> bool:
        """Wait once more if a member came meanwhile (rule G3.35); whether we do."""
        if not group.is_member_added or not left_ms:
            return False
        group.is_member_added = False
        delay = min(self._config.group_initial_rebalance_delay_ms, left_ms)
        self.joins.watch(InitialDelayedJoin(self, group, delay, max(left_ms - waited_ms, 0)), [group.group_id])
        return True

    def end_join_phase(self, group: Group) -> None:
        """Rules G3.38 to G3.44."""
        for member in group.not_rejoined:
            if not member.is_static:
                log.info("%r: %s has not rejoined", group, member.member_id)
                group.remove(member.member_id)
                self.heartbeats.check_and_complete((group.group_id, member.member_id))
        if group.is_dead:
            return
        if not group.elect_joined_leader() and group.members:
            log.warning("%r: no member has rejoined", group)  # rule G3.40
            operation = DelayedJoin(self, group, group.rebalance_timeout_ms)
            self.joins.try_complete_or_watch(operation, [group.group_id])
            return
        group.next_generation()
        if group.state is EMPTY:
            log.info("%r is empty", group)
            self._manager.store_group(group, {}, lambda code: None)  # rule G3.41
        else:
            self._answer_joins(group)

    def _answer_joins(self, group: Group) -> None:
        """Rules G3.43, G3.44."""
        log.info("%r: the join phase has ended, %s leads", group, group.leader)
        for member in list(group.members.values()):
            is_leader = member.member_id == group.leader
            group.answer_join(member, current_result(group, member.member_id, with_members=is_leader))
            self.restart_timer(group, member)
            member.is_new = False
            group.add_pending_sync(member.member_id)
        self.syncs.watch(DelayedSync(self, group, group.rebalance_timeout_ms), [group.group_id])

    # the sync phase

    def received_sync(self, group: Group, member_id: str) -> None:
        """Raises IllegalState."""
        group.remove_pending_sync(member_id)
        self.syncs.check_and_complete(group.group_id)

    def drop_sync_deadline(self, group: Group) -> None:
        group.pending_syncs.clear()
        self.syncs.check_and_complete(group.group_id)

    def sync_deadline_passed(self, group: Group, generation: int) -> None:
        """Rule G4.10."""
        if generation != group.generation or group.state not in _REBALANCED or not group.pending_syncs:
            return
        late = sorted(group.pending_syncs)
        for member_id in late:
            group.remove(member_id)
            self.heartbeats.check_and_complete((group.group_id, member_id))
        self.prepare(group, f"{', '.join(late)} did not send SyncGroup in time")

    def assign(self, group: Group, assignments: dict[str, bytes]) -> None:
        """Give each member its assignment (rule G4.6)."""
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        self._answer_syncs(group, NO_ERROR)

    def fail_assignment(self, group: Group, error: ErrorCode) -> None:
        """Rules G3.33, G4.7."""
        for member in group.members.values():
            member.assignment = b""
        self._answer_syncs(group, error)

    def _answer_syncs(self, group: Group, error: ErrorCode) -> None:
        for member in list(group.members.values()):
            result = (
                SyncResult(error, group.protocol_type, group.protocol_name, member.assignment)
                if error is NO_ERROR
                else SyncResult(error)
            )
            if group.answer_sync(member, result):
                self.restart_timer(group, member)

    # the partition comes and goes

    def loaded(self, group: Group) -> None:
        """Rule G9.18."""
        if len(group.members) > self._config.group_max_size:
            self.prepare(group, f"it has more than {self._config.group_max_size} members")
        for member in list(group.members.values()):
            self.restart_timer(group, member)

    def unloaded(self, group: Group) -> None:
        """Rule G9.20."""
        before = group.state
        group.move_to(DEAD)
        for member in list(group.members.values()):
            if before is PREPARING_REBALANCE:
                result = JoinResult(member_id=member.member_id, error=ErrorCode.NOT_COORDINATOR)
                group.answer_join(member, result)
            else:
                group.answer_sync(member, SyncResult(ErrorCode.NOT_COORDINATOR))
            self.heartbeats.check_and_complete((group.group_id, member.member_id))
        self.drop_sync_deadline(group)


def current_result(group: Group, member_id: str, *, with_members: bool, skip_assignment: bool = False) -> JoinResult:
    """What a member of the current generation gets."""
    return JoinResult(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader,
        skip_assignment=skip_assignment,
        members=group.member_list() if with_members else (),
    )


class _GroupOperation(DelayedOperation):
    """A timeout of 0 passes soon, not in the call that begins to wait (rule G12.2)."""

    __slots__ = ("_rebalancing", "group")

    expires_at_once = False

    def __init__(self, rebalancing: Rebalancing, group: Group, delay_ms: float) -> None:
        DelayedOperation.__init__(self, delay_ms)  # super() takes longer, and there are many
        self._rebalancing = rebalancing
        self.group = group


class DelayedJoin(_GroupOperation):
    """Rule G12.5."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return self.group.has_all_joined and self.force_complete()

    def on_complete(self) -> None:
        self._rebalancing.end_join_phase(self.group)


class InitialDelayedJoin(DelayedJoin):
    """Rule G12.6."""

    __slots__ = ("_left_ms", "_wait_ms")

    def __init__(self, rebalancing: Rebalancing, group: Group, delay_ms: float, left_ms: float) -> None:
        _GroupOperation.__init__(self, rebalancing, group, delay_ms)
        self._wait_ms = delay_ms
        self._left_ms = left_ms

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        if not self._rebalancing.extend_initial_delay(self.group, self._wait_ms, self._left_ms):
            super().on_complete()


class DelayedSync(_GroupOperation):
    """Rule G12.7."""

    __slots__ = ("_generation",)

    def __init__(self, rebalancing: Rebalancing, group: Group, delay_ms: float) -> None:
        _GroupOperation.__init__(self, rebalancing, group, delay_ms)
        self._generation = group.generation

    def try_complete(self) -> bool:
        group = self.group
        is_open = self._generation == group.generation and group.state in _REBALANCED and group.pending_syncs
        return not is_open and self.force_complete()

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self._rebalancing.sync_deadline_passed(self.group, self._generation)


class DelayedHeartbeat(_GroupOperation):
    """The session timer of a member, or the time that a pending id lasts (rule G12.8)."""

    __slots__ = ("_is_pending", "_member_id")

    def __init__(
        self, rebalancing: Rebalancing, group: Group, member_id: str, delay_ms: float, *, is_pending: bool = False
    ) -> None:
        _GroupOperation.__init__(self, rebalancing, group, delay_ms)
        self._member_id = member_id
        self._is_pending = is_pending

    def try_complete(self) -> bool:
        return self.is_over() and self.force_complete()

    def is_over(self) -> bool:
        """Whether it does not matter any more when it ends."""
        group = self.group
        if group.state is DEAD:
            return True
        member = group.members.get(self._member_id)
        if self._is_pending:
            return member is not None
        return member is None or member.is_alive()

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self._rebalancing.timer_expired(self.group, self._member_id, is_pending=self._is_pending)
