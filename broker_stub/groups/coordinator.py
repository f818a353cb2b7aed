"""The classic group coordinator of one broker: what each request of a group does (sections 1 to 8).

No method awaits. Those with a callback call it once, before they return or later; an error of Kafka is a result, any
other is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.groups.group import COMPLETING_REBALANCE, CONSUMER, DEAD, EMPTY, PREPARING_REBALANCE, STABLE, Group
from kce.broker_stub.groups.joining import Join, Joining, member_error
from kce.broker_stub.groups.manager import COMMIT_ERRORS, GroupManager, Offsets, Producer
from kce.broker_stub.groups.member import NO_MEMBER, JoinResult, OnJoin, OnSync, SyncResult
from kce.broker_stub.groups.rebalancing import Rebalancing
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log.verification import VerificationGuard
from kce.broker_stub.purgatory import Timer
from kce.wire import (
    DescribedGroupMember,
    DescribeGroupsResponseDescribedGroup,
    ErrorCode,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
)
from kce.wire.errors import NO_ERROR
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

#: the type of every group of this coordinator (rule G7.37)
CLASSIC: Final = "classic"

Codes: TypeAlias = Mapping[TopicPartition, ErrorCode]


class Sync(NamedTuple):
    """A SyncGroup request. Type and name are None before version 5."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = {}


class Committer(NamedTuple):
    """Who commits offsets. ``generation`` is negative outside of a generation."""

    generation: int = -1
    member_id: str = NO_MEMBER
    instance_id: str | None = None


class FetchedOffset(NamedTuple):
    """``committed`` is None if there is nothing, or nothing to tell."""

    committed: CommittedOffset | None
    error: ErrorCode = NO_ERROR


#: of a partition; then calls back with what became of it
Verify: TypeAlias = Callable[[TopicPartition, Callable[[ErrorCode, VerificationGuard | None], None]], None]


class GroupCoordinator:
    """``run`` of its manager runs what is not done within a request. It serves once ``is_active`` is set."""

    def __init__(self, config: GroupConfig, manager: GroupManager, timer: Timer, random: Random) -> None:
        self.config = config
        self.manager = manager
        self.is_active = True
        #: by request
        self.offset_deletions = 0
        #: how many leaders have sent assignments
        self.completed_rebalances = 0
        self.rebalancing = Rebalancing(config, manager, timer)
        self._joining = Joining(config, manager, self.rebalancing, random)
        manager.on_loaded = self.rebalancing.loaded
        manager.on_unloaded = self.rebalancing.unloaded

    def _refusal(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode | None:
        """The gate of every request (rules G1.12, G1.13)."""
        if not group_id and not may_be_empty:
            return ErrorCode.INVALID_GROUP_ID
        if not self.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.manager.refusal(group_id)

    # the partitions of __consumer_offsets

    def became_leader(self, partition: TopicPartition, leader_epoch: int) -> None:
        """Rule G13.1."""
        if partition.topic == GROUP_METADATA_TOPIC:
            self.manager.load(partition.partition, leader_epoch)

    def resigned(self, partition: TopicPartition, leader_epoch: int | None) -> None:
        """It follows, or the partition is deleted (rules G13.2, G13.4)."""
        if partition.topic == GROUP_METADATA_TOPIC:
            self.manager.unload(partition.partition, leader_epoch)

    def partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """Rules G13.5, G13.6."""
        removed = self.manager.clean_up(
            list(self.manager.groups.values()), lambda group: group.offsets.remove(partitions)
        )
        log.info("removed %d offsets of deleted partitions", removed)

    # members

    def join(self, request: Join, on_join: OnJoin) -> None:
        """Rules G3.1 to G3.3. Raises IllegalState."""
        group_id, member_id = request.group_id, request.member_id
        error = self._refusal(group_id)
        if error is not None:
            on_join(JoinResult(member_id=member_id, error=error))
            return
        least, most = self.config.group_min_session_timeout_ms, self.config.group_max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            on_join(JoinResult(member_id=member_id, error=ErrorCode.INVALID_SESSION_TIMEOUT))
            return
        group = self.manager.get_or_create(group_id) if request.is_unknown else self.manager.groups.get(group_id)
        if group is None:
            on_join(JoinResult(member_id=member_id, error=ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._joining.join(group, request, on_join)

    def sync(self, request: Sync, on_sync: OnSync) -> None:
        """Section 4. Raises IllegalState, EncodeError."""
        error = self._refusal(request.group_id)
        group = self.manager.groups.get(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            error = ErrorCode.REBALANCE_IN_PROGRESS  # rule G1.14
        elif error is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _sync_error(group, request)
        if error is not None or group is None:
            on_sync(SyncResult(error or ErrorCode.UNKNOWN_MEMBER_ID))
            return
        member = group.members[request.member_id]
        if group.state is COMPLETING_REBALANCE:
            member.on_sync = on_sync
            self.rebalancing.received_sync(group, request.member_id)
            if group.leader == request.member_id:
                self._store_assignment(group, request)
        else:  # rule G4.9
            self.rebalancing.received_sync(group, request.member_id)
            on_sync(SyncResult(NO_ERROR, group.protocol_type, group.protocol_name, member.assignment))
            self.rebalancing.restart_timer(group, member)

    def _store_assignment(self, group: Group, request: Sync) -> None:
        """Rules G4.5 to G4.8."""
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in group.members}

        def stored(code: ErrorCode) -> None:
            if group.state is not COMPLETING_REBALANCE or group.generation != request.generation:
                return
            if code is NO_ERROR:
                self.rebalancing.assign(group, assignments)
                group.move_to(STABLE)
            else:
                self.rebalancing.fail_assignment(group, code)
                self.rebalancing.maybe_prepare(group, f"the assignment could not be stored: {code.name}")

        self.manager.store_group(group, assignments, stored)
        self.completed_rebalances += 1

    def heartbeat(self, group_id: str, committer: Committer) -> ErrorCode:
        """Section 5."""
        error = self._refusal(group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return NO_ERROR  # rule G1.14
        if error is not None:
            return error
        group = self.manager.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _generation_error(group, committer)
        if error is not None:
            return error
        if group.state is EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self.rebalancing.restart_timer(group, group.members[committer.member_id])
        is_preparing = group.state is PREPARING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else NO_ERROR

    def leave(self, group_id: str, members: Sequence[MemberIdentity]) -> tuple[ErrorCode, tuple[MemberResponse, ...]]:
        """Section 6."""
        error = self._refusal(group_id)
        group = self.manager.groups.get(group_id)
        if error is None and group is not None and group.is_dead:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error is not None:
            return error, ()
        return NO_ERROR, tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave(group, member),
            )
            for member in members
        )

    def _leave(self, group: Group, leaving: MemberIdentity) -> ErrorCode:
        """Rules G6.4, G6.5."""
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER:
            found = None if instance_id is None else group.static_members.get(instance_id)
            if found is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in group.pending_members:
            self.rebalancing.remove_pending_member(group, member_id)
            return NO_ERROR
        elif (error := member_error(group, member_id, instance_id)) is not None:
            return error
        reason = f"{member_id} leaves; its reason: {leaving.reason or 'not provided'}"
        self.rebalancing.remove_member(group, group.members[member_id], reason)
        return NO_ERROR

    # offsets

    def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        on_committed: Callable[[Codes], None],
        producer: Producer | None = None,
    ) -> None:
        """Sections 7a and, with a ``producer``, 7b. Raises EncodeError."""
        error = self._refusal(group_id, may_be_empty=producer is None)
        group = self.manager.groups.get(group_id)
        if error is None and group is None:
            if committer.generation >= 0 and producer is None:
                error = ErrorCode.ILLEGAL_GENERATION
            else:
                group = self.manager.get_or_create(group_id)
        if error is None and group is not None:
            error = _commit_error(group, committer, is_transactional=producer is not None)
        if error is not None or group is None:
            on_committed(dict.fromkeys(offsets, error or ErrorCode.ILLEGAL_GENERATION))
            return
        member = group.members.get(committer.member_id)
        if producer is None and member is not None and group.state is not EMPTY:
            self.rebalancing.restart_timer(group, member)
        self.manager.store_offsets(group, offsets, on_committed, producer)

    def verify_and_commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Offsets,
        on_committed: Callable[[Codes], None],
        producer: Producer,
        verify: Verify,
    ) -> None:
        """Section 7b, once the transaction is known to contain the group's partition (rule G7.18)."""
        error = self._refusal(group_id)
        if error is not None:
            on_committed(dict.fromkeys(offsets, error))
            return
        group = self.manager.get_or_create(group_id)

        def verified(code: ErrorCode, guard: VerificationGuard | None) -> None:
            if code is NO_ERROR and group.is_dead:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if code is NO_ERROR:
                self.commit(group_id, committer, offsets, on_committed, Producer(producer.id, producer.epoch, guard))
            else:
                on_committed(dict.fromkeys(offsets, COMMIT_ERRORS.get(code, code)))

        verify(TopicPartition(GROUP_METADATA_TOPIC, self.manager.partition_of(group_id)), verified)

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool = False
    ) -> tuple[ErrorCode, Mapping[TopicPartition, FetchedOffset]]:
        """Section 7c. ``partitions``: None for all that were committed."""
        error = self._refusal(group_id, may_be_empty=True)
        if error is not None:
            return error, {}
        group = self.manager.groups.get(group_id)
        if group is None or group.is_dead:
            return NO_ERROR, dict.fromkeys(partitions or (), FetchedOffset(None))
        offsets = group.offsets
        return NO_ERROR, {
            partition: FetchedOffset(None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if require_stable and offsets.is_unstable(partition)
            else FetchedOffset(offsets.get(partition))
            for partition in (tuple(offsets.stored) if partitions is None else partitions)
        }

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> tuple[ErrorCode, Codes]:
        """Rules G7.31, G7.32."""
        error = self._refusal(group_id)
        if error is not None:
            return error, {}
        group = self.manager.groups.get(group_id)
        if group is None or group.is_dead:
            return self._missing(group_id), {}
        if group.state is EMPTY:
            kept: set[TopicPartition] = set()
        elif group.protocol_type == CONSUMER:
            kept = {partition for partition in partitions if group.is_subscribed_to(partition.topic)}
        else:
            return ErrorCode.NON_EMPTY_GROUP, {}
        deleted = [partition for partition in partitions if partition not in kept]
        if deleted:
            self.offset_deletions += self.manager.clean_up([group], lambda group: group.offsets.remove(deleted))
        return NO_ERROR, {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if partition in kept else NO_ERROR
            for partition in partitions
        }

    # groups

    def _missing(self, group_id: str) -> ErrorCode:
        is_known = self.manager.does_not_exist(group_id)
        return ErrorCode.GROUP_ID_NOT_FOUND if is_known else ErrorCode.NOT_COORDINATOR

    def delete(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """Rule G7.33."""
        return {group_id: self._delete(group_id) for group_id in group_ids}

    def _delete(self, group_id: str) -> ErrorCode:
        error = self._refusal(group_id, may_be_empty=True)
        if error is not None:
            return error
        group = self.manager.groups.get(group_id)
        if group is None or group.is_dead:
            return self._missing(group_id)
        if group.state is not EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        group.move_to(DEAD)
        self.manager.clean_up([group], lambda group: group.offsets.remove(tuple(group.offsets.stored)))
        return NO_ERROR

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Steps[tuple[ErrorCode, tuple[ListedGroup, ...]]]:
        """Rules G7.36, G7.37."""
        if not self.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        wanted = []
        for names in (states, types):
            lowered = set()
            for i, name in enumerate(names, 1):
                lowered.add(name.lower())
                if not i & STEP_MASK:
                    yield
            wanted.append(lowered)
        wanted_states, wanted_types = wanted
        listed = []
        is_any = not wanted_types or CLASSIC in wanted_types
        for i, group in enumerate(tuple(self.manager.groups.values()) if is_any else (), 1):
            if not wanted_states or group.state.value.lower() in wanted_states:
                entry = ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=CLASSIC,
                )
                listed.append(entry)
            if not i & STEP_MASK:
                yield
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.manager.is_loading else NO_ERROR, tuple(listed)

    def describe(self, group_id: str) -> DescribeGroupsResponseDescribedGroup:
        """Rule G7.34."""
        error = self._refusal(group_id, may_be_empty=True)
        if error is not None:
            return DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error)
        group = self.manager.groups.get(group_id)
        if group is None:
            return DescribeGroupsResponseDescribedGroup(group_id=group_id, group_state=DEAD.value)
        protocol = group.protocol_name if group.state is STABLE else None
        return DescribeGroupsResponseDescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client.client_id,
                    client_host=member.client.host,
                    member_metadata=b"" if protocol is None else member.metadata(protocol),
                    member_assignment=b"" if protocol is None else member.assignment,
                )
                for member in group.members.values()
            ),
        )


def _generation_error(group: Group, committer: Committer | Sync) -> ErrorCode | None:
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = member_error(group, committer.member_id, committer.instance_id)
    if error is None and committer.generation != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    return error


def _sync_error(group: Group, request: Sync) -> ErrorCode | None:
    """Rules G4.2, G4.3."""
    error = _generation_error(group, request)
    if error is not None:
        return error
    if request.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if request.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.UNKNOWN_MEMBER_ID if group.state is EMPTY else None


def _commit_error(group: Group, committer: Committer, *, is_transactional: bool) -> ErrorCode | None:
    """Rules G7.3 to G7.7, G7.19."""
    if group.is_dead:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    is_empty = group.state is EMPTY
    if committer.generation < 0 and is_empty:
        return None
    if committer.generation >= 0 or committer.member_id != NO_MEMBER or committer.instance_id is not None:
        error = _generation_error(group, committer)
        if error is not None:
            return error
    elif not is_transactional:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is COMPLETING_REBALANCE and not is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return None
