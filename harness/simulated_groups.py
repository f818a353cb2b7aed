"""Members of a consumer group of a simulated cluster: they join, share partitions, read and commit, and are late.

A member goes on where the group has committed; when it stops heartbeating for longer than its session it is removed,
and then tries to commit as a member of its old generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.harness.cluster import Cluster
from kce.harness.commit_history import MARK_BYTES, CommitHistory
from kce.harness.simulated_client import BACKOFF_S, GROUP, SimulatedClient, records_of
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

GROUP_ID: Final = "readers"
MEMBERS: Final = 2
_JOIN, _SYNC, _HEARTBEAT, _LEAVE, _COMMIT, _OFFSETS = 9, 5, 4, 5, 8, 8
#: shorter than the timeout of requests
_SESSION_MS: Final = 2000
_MOST_PAUSE_S: Final = 1.2
#: how often a member leaves, or stops for longer than its session, at each turn
_LEAVES: Final = 0.05
_STOPS: Final = 0.05
#: version 0 of ConsumerProtocolSubscription: one topic, no user data
_SUBSCRIPTION: Final = b"\0\0\0\0\0\1\0\4data\xff\xff\xff\xff"
_PROTOCOL: Final = wire.JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)
#: errors that say for certain that a commit was not written
_REFUSED: Final = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)


@dataclass(slots=True)
class _Membership:
    """``positions``: where the member reads on, by partition that it owns."""

    generation: int
    node: int
    positions: dict[TopicPartition, int]
    committed: dict[TopicPartition, int] = field(default_factory=dict)


class GroupMember:
    """Reads these ``partitions``, those of one topic, together with the other members."""

    def __init__(
        self, cluster: Cluster, random: Random, history: CommitHistory, partitions: Sequence[TopicPartition]
    ) -> None:
        self._random = random
        self._history = history
        self._partitions = partitions
        self._client = SimulatedClient(cluster, random)
        self._member_id = ""
        self._stopping = False

    def stop(self) -> None:
        """Let `run` end with a commit that is acknowledged."""
        self._stopping = True

    async def run(self) -> None:
        while True:
            membership = await self._join()
            if membership is not None and await self._take_part(membership):
                await self._client.aclose()
                return

    async def _ask(self, message: wire.Message, version: int) -> Any:
        """The coordinator's response, or None."""
        return await self._client.ask_coordinator(GROUP_ID, GROUP, message, version)

    async def _failed(self, code: int) -> None:
        """What follows from an error, before it is tried again."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif code not in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS):
            self._client.forget_coordinator(GROUP_ID, GROUP)
        await trio.sleep(BACKOFF_S)

    # join

    async def _join(self) -> _Membership | None:
        joined = await self._ask(
            wire.JoinGroupRequest(
                group_id=GROUP_ID, session_timeout_ms=_SESSION_MS, rebalance_timeout_ms=_SESSION_MS,
                member_id=self._member_id, protocol_type="consumer", protocols=(_PROTOCOL,),
            ),
            _JOIN,
        )  # fmt: skip
        if joined is None:
            return None
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            return None
        if joined.error_code != ErrorCode.NONE:
            await self._failed(joined.error_code)
            return None
        self._member_id, generation = joined.member_id, joined.generation_id
        assignments: tuple[wire.SyncGroupRequestAssignment, ...] = ()
        mark = b""
        if joined.leader == self._member_id and not joined.skip_assignment:
            mark = self._history.assigning(generation)
            assignments = self._assign([member.member_id for member in joined.members], mark)
        synced = await self._ask(
            wire.SyncGroupRequest(
                group_id=GROUP_ID, generation_id=generation, member_id=self._member_id, protocol_type="consumer",
                protocol_name=_PROTOCOL.name, assignments=assignments,
            ),
            _SYNC,
        )  # fmt: skip
        if synced is None or synced.error_code != ErrorCode.NONE:
            if synced is not None:
                await self._failed(synced.error_code)
            return None
        node = await self._client.coordinator(GROUP_ID, GROUP)  # which has answered
        assert node is not None
        found = bytes(synced.assignment)
        owned = [tp for tp in self._partitions if tp.partition in found[MARK_BYTES:]]
        self._history.owns(found[:MARK_BYTES], self._member_id, owned)
        if mark and mark == found[:MARK_BYTES]:
            self._history.written(generation)
        return _Membership(generation, node, dict.fromkeys(owned, 0))

    def _assign(self, members: Sequence[str], mark: bytes) -> tuple[wire.SyncGroupRequestAssignment, ...]:
        """An assignment is its mark and the numbers of its partitions, a byte each."""
        owned = dict.fromkeys(members, mark)
        for at, tp in enumerate(self._partitions):
            owned[members[at % len(members)]] += bytes((tp.partition,))
        return tuple(wire.SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in owned.items())

    # take part

    async def _take_part(self, membership: _Membership) -> bool:
        """Until the group rebalances; whether it is over."""
        if not await self._find_positions(membership):
            return False
        while True:
            for tp in list(membership.positions):
                await self._read(tp, membership)
            moved = {tp: at for tp, at in membership.positions.items() if at > membership.committed.get(tp, -1)}
            is_committing = bool(moved) and (self._stopping or self._random.random() < 0.7)
            code = await (self._commit(moved, membership) if is_committing else self._heartbeat(membership))
            if code != ErrorCode.NONE:
                await self._failed(code)
                return False
            if self._stopping:
                return True
            if self._random.random() < _LEAVES:
                await self._leave()
                return False
            is_late = self._random.random() < _STOPS
            await trio.sleep(2 * _SESSION_MS / 1000 if is_late else _MOST_PAUSE_S * self._random.random())
            if is_late:  # whatever became of the group
                await self._commit(membership.positions, membership)

    async def _find_positions(self, membership: _Membership) -> bool:
        """Where the group has committed, as the coordinator says that has told of the assignment."""
        found = await fetch_offsets(self._client, GROUP_ID, list(membership.positions), membership.node)
        if found is None:
            self._client.forget_coordinator(GROUP_ID, GROUP)
            await trio.sleep(BACKOFF_S)
            return False
        for tp, offset in found.items():
            self._history.fetched(tp, offset, self._history.assigned(membership.generation))
            membership.positions[tp] = max(offset, 0)
        membership.committed = found
        return True

    async def _read(self, tp: TopicPartition, membership: _Membership) -> None:
        data = await self._client.fetch(tp, membership.positions[tp])
        for record in () if data is None else records_of(data.records or b""):
            if record.offset >= membership.positions[tp]:
                self._history.read(tp, record.offset)
                membership.positions[tp] = record.offset + 1

    async def _commit(self, offsets: dict[TopicPartition, int], membership: _Membership) -> int:
        """The first error. ``offsets`` are not empty unless the member owns nothing."""
        if not offsets:
            return ErrorCode.NONE
        offsets = dict(offsets)
        commits = {tp: self._history.begin(tp, offset, membership.generation) for tp, offset in offsets.items()}
        partitions = tuple(
            wire.OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            for tp, offset in offsets.items()
        )
        response = await self._ask(
            wire.OffsetCommitRequest(
                group_id=GROUP_ID, generation_id_or_member_epoch=membership.generation, member_id=self._member_id,
                topics=(wire.OffsetCommitRequestTopic(name=next(iter(offsets)).topic, partitions=partitions),),
            ),
            _COMMIT,
        )  # fmt: skip
        if response is None:
            return ErrorCode.NETWORK_EXCEPTION
        first = ErrorCode.NONE
        for answer in response.topics[0].partitions:
            tp = next(tp for tp in offsets if tp.partition == answer.partition_index)
            if answer.error_code == ErrorCode.NONE:
                self._history.accepted(tp, commits[tp])
                membership.committed[tp] = offsets[tp]
            else:
                first = first or answer.error_code
                if answer.error_code in _REFUSED:
                    self._history.refused(tp, commits[tp])
        return first

    async def _heartbeat(self, membership: _Membership) -> int:
        request = wire.HeartbeatRequest(
            group_id=GROUP_ID, generation_id=membership.generation, member_id=self._member_id
        )
        response = await self._ask(request, _HEARTBEAT)
        return ErrorCode.NETWORK_EXCEPTION if response is None else int(response.error_code)

    async def _leave(self) -> None:
        """Whether it is heard or not."""
        member = wire.MemberIdentity(member_id=self._member_id)
        self._member_id = ""
        await self._ask(wire.LeaveGroupRequest(group_id=GROUP_ID, members=(member,)), _LEAVE)


async def fetch_offsets(
    client: SimulatedClient,
    group_id: str,
    partitions: Sequence[TopicPartition],
    node: int | None = None,
    *,
    stable: bool = False,
) -> dict[TopicPartition, int] | None:
    """What the coordinator, or this node, says that is committed; None if it says nothing. ``partitions`` are of one
    topic. ``stable``: without commits of transactions that have not ended."""
    if not partitions:
        return {}
    topic = wire.OffsetFetchRequestTopics(
        name=partitions[0].topic, partition_indexes=tuple(tp.partition for tp in partitions)
    )
    request = wire.OffsetFetchRequest(
        groups=(wire.OffsetFetchRequestGroup(group_id=group_id, topics=(topic,)),), require_stable=stable
    )
    if node is None:
        response = await client.ask_coordinator(group_id, GROUP, request, _OFFSETS)
    else:
        response = await client.ask(node, request, _OFFSETS)
    if response is None or response.groups[0].error_code != ErrorCode.NONE:
        return None
    answers = response.groups[0].topics[0].partitions
    if any(answer.error_code != ErrorCode.NONE for answer in answers):
        return None
    return {TopicPartition(topic.name, answer.partition_index): answer.committed_offset for answer in answers}
