"""JoinGroup once the coordinator knows the group (section 3)."""

from __future__ import annotations

import logging
from random import Random
from typing import Final, NamedTuple

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.groups.group import PREPARING_REBALANCE, Group, GroupState, IllegalState
from kce.broker_stub.groups.manager import GroupManager
from kce.broker_stub.groups.member import NO_MEMBER, Client, JoinResult, Member, OnJoin, Protocols
from kce.broker_stub.groups.rebalancing import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalancing, current_result
from kce.wire import ErrorCode
from kce.wire.errors import NO_ERROR

log = logging.getLogger(__name__)

#: of a random UUID: the bits that are given, and what they say: version 4 of RFC 9562
_UUID_GIVEN: Final = 0xF << 76 | 0x3 << 62
_UUID_4: Final = 0x4 << 76 | 0x2 << 62
_NO_REASON: Final = "not provided"


class Join(NamedTuple):
    """A JoinGroup request. The two flags follow from its version (rules G3.11, G3.29)."""

    group_id: str
    member_id: str
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    instance_id: str | None = None
    reason: str | None = None
    requires_member_id: bool = False
    can_skip_assignment: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether it comes without a member id."""
        return self.member_id == NO_MEMBER


class Joining:
    """``random`` makes member ids."""

    def __init__(self, config: GroupConfig, manager: GroupManager, rebalancing: Rebalancing, random: Random) -> None:
        self._config = config
        self._manager = manager
        self._rebalancing = rebalancing
        self._random = random

    def join(self, group: Group, request: Join, on_join: OnJoin) -> None:
        """Answer, or park. Raises IllegalState."""
        if not self._has_room(group, request.member_id):
            group.remove(request.member_id)  # rule G3.5
            on_join(JoinResult(member_id=NO_MEMBER, error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif group.is_dead:
            on_join(JoinResult(member_id=request.member_id, error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        elif not group.supports(request.protocol_type, request.protocols):
            on_join(JoinResult(member_id=request.member_id, error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif request.is_unknown:
            self._join_as_new(group, request, on_join)
        else:
            self._join_as_known(group, request, on_join)
        if group.state is PREPARING_REBALANCE:
            self._rebalancing.joins.check_and_complete(group.group_id)

    def _has_room(self, group: Group, member_id: str) -> bool:
        """Rules G3.4, G3.6."""
        member = group.members.get(member_id)
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return True
            case GroupState.PREPARING_REBALANCE:
                is_parked = member is not None and member.on_join is not None
                return is_parked or group.awaiting_join < self._config.group_max_size
            case _:
                return member is not None or len(group.members) < self._config.group_max_size

    def _new_id(self, prefix: str) -> str:
        """Rule G3.10."""
        digits = f"{self._random.getrandbits(128) & ~_UUID_GIVEN | _UUID_4:032x}"
        return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def _join_as_new(self, group: Group, request: Join, on_join: OnJoin) -> None:
        """Without a member id (rules G3.11, G3.14, G3.25)."""
        instance_id = request.instance_id
        if instance_id is not None:
            new_id = self._new_id(instance_id)
            old_id = group.static_members.get(instance_id)
            if old_id is None:
                self._add(group, new_id, request, on_join)
            else:
                log.info("%r: %s replaces %s, with instance id %s", group, new_id, old_id, instance_id)
                self._replace(group, instance_id, old_id, new_id, request, on_join)
            return
        new_id = self._new_id(request.client.client_id)
        if request.requires_member_id:
            group.add_pending_member(new_id)
            self._rebalancing.expire_pending_member(group, new_id, request.session_timeout_ms)
            on_join(JoinResult(member_id=new_id, error=ErrorCode.MEMBER_ID_REQUIRED))
        else:
            self._add(group, new_id, request, on_join)

    def _join_as_known(self, group: Group, request: Join, on_join: OnJoin) -> None:
        """With a member id (rules G3.13, G3.18 to G3.22)."""
        member_id = request.member_id
        if member_id in group.pending_members:
            if request.instance_id is not None:
                raise IllegalState(
                    f"{member_id} of {group!r} joins with an instance id, but was given to a dynamic one"
                )
            self._add(group, member_id, request, on_join)
            return
        error = member_error(group, member_id, request.instance_id)
        if error is not None:
            on_join(JoinResult(member_id=member_id, error=error))
            return
        member = group.members[member_id]
        is_leader = member_id == group.leader
        is_same = member.protocols == request.protocols
        match group.state:
            case GroupState.EMPTY:
                on_join(JoinResult(member_id=member_id, error=ErrorCode.UNKNOWN_MEMBER_ID))
            case GroupState.COMPLETING_REBALANCE if is_same:
                on_join(current_result(group, member_id, with_members=is_leader))
            case GroupState.STABLE if is_same and not is_leader:
                on_join(current_result(group, member_id, with_members=False))
            case _:
                _update(group, member, request, on_join)
                what = "leader" if is_leader else "member"
                self._rebalancing.maybe_prepare(group, f"{what} {member_id} rejoins; its reason: {_reason(request)}")

    def _add(self, group: Group, member_id: str, request: Join, on_join: OnJoin) -> None:
        """Rules G3.15, G3.16."""
        member = Member(
            member_id=member_id,
            instance_id=request.instance_id,
            client=request.client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=request.protocols,
            is_new=True,
        )
        if group.state is PREPARING_REBALANCE and group.generation == 0:
            group.is_member_added = True  # rule G3.35
        group.add(member, on_join)
        self._rebalancing.restart_timer(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalancing.maybe_prepare(group, f"{member_id} joins; its reason: {_reason(request)}")

    # static replacement

    def _replace(
        self, group: Group, instance_id: str, old_id: str, new_id: str, request: Join, on_join: OnJoin
    ) -> None:
        """Rules G3.25 to G3.31."""
        old_leader = group.leader
        member = group.replace_static_member(instance_id, old_id, new_id)
        self._rebalancing.restart_timer(group, member)
        old_timeouts = member.rebalance_timeout_ms, member.session_timeout_ms
        _update(group, member, request, on_join)

        def stored(code: ErrorCode) -> None:
            if code is not NO_ERROR:
                log.warning("%r: the replacement of %s is undone: %s", group, old_id, code.name)
                group.update(member, member.protocols, *old_timeouts, None)
                self._rebalancing.restart_timer(group, group.replace_static_member(instance_id, new_id, old_id))
                on_join(_failed_replacement(group, old_leader, code))
                return
            skips = request.can_skip_assignment
            is_leader = skips and group.leader == new_id
            result = current_result(group, new_id, with_members=is_leader, skip_assignment=is_leader)
            group.answer_join(member, result if skips else _with_leader(result, old_leader))

        match group.state:
            case GroupState.STABLE if group.select_protocol() == group.protocol_name:
                assignments = {each.member_id: each.assignment for each in group.members.values()}
                self._manager.store_group(group, assignments, stored)
            case GroupState.STABLE | GroupState.COMPLETING_REBALANCE:
                self._rebalancing.prepare(group, f"{new_id} replaces {old_id}; its reason: {_reason(request)}")
            case GroupState.PREPARING_REBALANCE:
                pass
            case _:
                raise IllegalState(f"{group!r} has static member {instance_id}")


def member_error(group: Group, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Why a request is not one of that member (rules G3.18, G3.19)."""
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return None if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _update(group: Group, member: Member, request: Join, on_join: OnJoin) -> None:
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms, on_join)


def _reason(request: Join) -> str:
    return request.reason or _NO_REASON


def _with_leader(result: JoinResult, leader: str | None) -> JoinResult:
    """Rule G3.30: who replaces the leader must not take itself for one."""
    return JoinResult(
        member_id=result.member_id,
        generation=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        leader=leader,
    )


def _failed_replacement(group: Group, leader: str | None, code: ErrorCode) -> JoinResult:
    """Rule G3.31."""
    return JoinResult(
        member_id=NO_MEMBER,
        error=code,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader,
    )
