"""Whole answers of the group coordinator, and what it answers before it looks at a group (rules G1.12 to G1.14).

Covers: broker_stub/groups/coordinator.py, broker_stub/groups/joining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.groups.joining import Join
from kce.broker_stub.groups.manager import Producer
from kce.broker_stub.groups.member import Client, JoinResult, Member, SyncResult
from kce.broker_stub.handlers import join_group
from kce.wire import (
    DescribedGroupMember,
    DescribeGroupsResponseDescribedGroup,
    ErrorCode,
    JoinGroupResponseMember,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
)
from kce.wire.steps import finish
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import CONSUMER, DELAY_MS, GROUP, RANGE, TIMEOUT_MS, A, Host

NONE = ErrorCode.NONE
LOADING, REBALANCING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS
UNAVAILABLE, INVALID, MOVED = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.INVALID_GROUP_ID, ErrorCode.NOT_COORDINATOR,
)  # fmt: skip
PRODUCER = Producer(5, 0)

#: of each request: what it is answered, as a code
REQUESTS: dict[str, Callable[[Host, str], Any]] = {
    "join": lambda h, g: h.join(group_id=g).answer,
    "sync": lambda h, g: h.sync(1, "m", group_id=g).answer,
    "heartbeat": lambda h, g: h.heartbeat("m", 1, group_id=g),
    "leave": lambda h, g: h.leave("m", group_id=g),
    "commit": lambda h, g: h.commit({A: 1}, group_id=g),
    "transactional commit": lambda h, g: h.commit({A: 1}, group_id=g, producer=PRODUCER),
    "fetch": lambda h, g: h.coordinator.fetch_offsets(g, [A]),
    "delete offsets": lambda h, g: h.coordinator.delete_offsets(g, [A]),
    "delete": lambda h, g: h.coordinator.delete([g]),
    "describe": lambda h, g: h.coordinator.describe(g),
}
#: what may be asked of the group without a name
NAMELESS = ("commit", "fetch", "delete", "describe")


def refused(request: str, group_id: str, code: ErrorCode) -> Any:
    return {
        "join": JoinResult(member_id="", error=code),
        "sync": SyncResult(code),
        "heartbeat": code,
        "leave": (code, []),
        "commit": {A: code},
        "transactional commit": {A: code},
        "fetch": (code, {}),
        "delete offsets": (code, {}),
        "delete": {group_id: code},
        "describe": DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=code),
    }[request]


@pytest.mark.parametrize("request_", REQUESTS)
async def test_what_is_refused_before_a_group_is_looked_at(mock_clock: MockClock, request_: str) -> None:
    ask = REQUESTS[request_]
    host = Host(mock_clock, owns=False)
    assert ask(host, GROUP) == refused(request_, GROUP, MOVED)
    partition = host.manager.partition_of(GROUP)
    host.manager._loading.add(partition)
    while_loading = {"sync": REBALANCING, "heartbeat": NONE}.get(request_, LOADING)  # rule G1.14
    assert ask(host, GROUP) == refused(request_, GROUP, while_loading)
    host.coordinator.is_active = False
    assert ask(host, GROUP) == refused(request_, GROUP, UNAVAILABLE)
    expected = UNAVAILABLE if request_ in NAMELESS else INVALID
    assert ask(host, "") == refused(request_, "", expected)
    assert host.manager.groups == {}


async def test_groups_are_listed_while_others_are_loaded(mock_clock: MockClock) -> None:  # rule G7.36
    host = Host(mock_clock)
    host.stable()
    host.manager.get_or_create("other")
    host.manager._loading.add(49)
    assert finish(host.coordinator.list_groups()) == (
        LOADING,
        (
            ListedGroup(group_id=GROUP, protocol_type=CONSUMER, group_state="Stable", group_type="classic"),
            ListedGroup(group_id="other", protocol_type="", group_state="Empty", group_type="classic"),
        ),
    )


async def test_very_many_groups_and_filters_are_looked_at_in_steps(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    for i in range(1000):
        host.manager.get_or_create(f"g{i}")
    assert sum(1 for _ in host.coordinator.list_groups(["Dead"] * 1000, ["classic"] * 1000)) == 3 * (1000 // 128)
    steps = host.coordinator.list_groups()
    next(steps)
    host.manager.get_or_create("another")  # in a pause
    error, groups = finish(steps)
    assert (error, len(groups)) == (NONE, 1000)


async def test_a_group_is_described_as_a_whole(mock_clock: MockClock) -> None:  # rule G7.34
    host = Host(mock_clock)
    assert host.coordinator.describe(GROUP) == DescribeGroupsResponseDescribedGroup(group_id=GROUP, group_state="Dead")
    host.manager.get_or_create("simple")
    assert host.coordinator.describe("simple") == DescribeGroupsResponseDescribedGroup(
        group_id="simple", group_state="Empty"
    )
    joined = host.joined(instance_id="i")

    def described(state: str, protocol: str, metadata: bytes, assignment: bytes) -> Any:
        member = DescribedGroupMember(
            member_id=joined.member_id, group_instance_id="i", client_id="consumer-test", client_host="/localhost",
            member_metadata=metadata, member_assignment=assignment,
        )  # fmt: skip
        return DescribeGroupsResponseDescribedGroup(
            group_id=GROUP, group_state=state, protocol_type=CONSUMER, protocol_data=protocol, members=(member,)
        )

    assert host.coordinator.describe(GROUP) == described("CompletingRebalance", "", b"", b"")
    host.synced(1, joined.member_id, {joined.member_id: b"mine"})
    assert host.coordinator.describe(GROUP) == described("Stable", "range", b"metadata", b"mine")


async def test_each_member_that_leaves_is_answered(mock_clock: MockClock) -> None:  # rule G6.3
    host = Host(mock_clock)
    joined = host.stable(instance_id="i")
    pending = host.join(requires_member_id=True).answer.member_id
    leaving = [("", None), ("", "j"), (pending, None), (joined.member_id, "j"), ("", "i"), (joined.member_id, None)]
    answer = host.coordinator.leave(
        GROUP, [MemberIdentity(member_id=one, group_instance_id=other) for one, other in leaving]
    )
    codes = [ErrorCode.UNKNOWN_MEMBER_ID] * 2 + [NONE, ErrorCode.UNKNOWN_MEMBER_ID, NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert answer == (
        NONE,
        tuple(
            MemberResponse(member_id=one, group_instance_id=other, error_code=code)
            for (one, other), code in zip(leaving, codes, strict=True)
        ),
    )
    assert (host.state(), host.group().members) == (GroupState.EMPTY, {})


# JoinGroup


def member(answer: JoinResult, instance_id: str | None = None) -> JoinGroupResponseMember:
    return JoinGroupResponseMember(member_id=answer.member_id, group_instance_id=instance_id, metadata=b"metadata")


@pytest.mark.parametrize(("version", "nothing"), [(6, ""), (7, None)])
def test_a_protocol_without_a_name_is_null_where_it_can_be(version: int, nothing: str | None) -> None:
    for name, told in (("range", "range"), ("", nothing), (None, nothing)):
        assert join_group._response(JoinResult(member_id="m", protocol_name=name), version).protocol_name == told


async def test_what_members_are_answered(mock_clock: MockClock) -> None:  # rules G3.20, G3.21, G3.43
    host = Host(mock_clock)
    joins = [host.join() for _ in range(2)]
    host.advance(2 * DELAY_MS)
    one, other = (join.answer for join in joins)
    known = {"generation": 1, "protocol_type": CONSUMER, "protocol_name": "range", "leader": one.member_id}
    leads = JoinResult(member_id=one.member_id, members=(member(one), member(other)), **known)
    follows = JoinResult(member_id=other.member_id, **known)
    assert (one, other) == (leads, follows)
    assert [m.is_new for m in host.group().members.values()] == [False, False]
    # again, because the answer was lost
    assert [host.join(answer.member_id).answer for answer in (one, other)] == [leads, follows]
    host.synced(1, one.member_id, {})
    assert host.join(other.member_id).answer == follows
    assert host.state() is GroupState.STABLE
    # a rebalance: the leader joins again, or what a member offers has changed
    assert host.join(one.member_id).is_parked
    assert host.state() is GroupState.PREPARING_REBALANCE


async def test_who_joins_is_remembered_as_it_says(mock_clock: MockClock) -> None:  # rules G3.15 to G3.17
    host = Host(mock_clock)
    result = host.join(instance_id="i", rebalance_timeout_ms=700, session_timeout_ms=600)
    assert result.is_parked
    (found,) = host.group().members.values()
    assert isinstance(found, Member)
    assert found.member_id.startswith("i-")
    assert (
        found.instance_id, found.client, found.rebalance_timeout_ms, found.session_timeout_ms, found.protocol_type,
        found.protocols, found.assignment, found.is_new,
    ) == ("i", Client("consumer-test", "/localhost"), 700, 600, CONSUMER, RANGE, b"", True)  # fmt: skip


@pytest.mark.parametrize(("timeout_ms", "error"), [
    (9, ErrorCode.INVALID_SESSION_TIMEOUT), (10, None), (600_000, None), (600_001, ErrorCode.INVALID_SESSION_TIMEOUT),
])  # fmt: skip
async def test_session_timeouts(mock_clock: MockClock, timeout_ms: int, error: ErrorCode | None) -> None:  # rule G3.2
    result = Host(mock_clock).join(session_timeout_ms=timeout_ms)
    assert result.is_parked if error is None else result.answer == JoinResult(member_id="", error=error)


async def test_a_pending_id_lasts_for_the_session_timeout(mock_clock: MockClock) -> None:  # rules G3.11, G3.12
    host = Host(mock_clock)
    answer = host.join(requires_member_id=True, session_timeout_ms=300).answer
    assert answer == JoinResult(member_id=answer.member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
    assert answer.member_id.startswith("consumer-test-")
    host.advance(299)
    assert host.group().pending_members == {answer.member_id}
    host.advance(1)
    assert host.group().pending_members == set()
    assert host.join(answer.member_id).answer == JoinResult(
        member_id=answer.member_id, error=ErrorCode.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize("can_skip", [True, False])
async def test_who_replaces_a_static_leader(mock_clock: MockClock, can_skip: bool) -> None:  # rules G3.29, G3.30
    host = Host(mock_clock)
    old = host.stable(instance_id="i")
    answer = host.join(instance_id="i", can_skip_assignment=can_skip).answer
    assert answer.member_id != old.member_id
    known = {"member_id": answer.member_id, "generation": 1, "protocol_type": CONSUMER, "protocol_name": "range"}
    if can_skip:
        leader = {"leader": answer.member_id, "skip_assignment": True, "members": (member(answer, "i"),)}
        assert answer == JoinResult(**known, **leader)
    else:
        assert answer == JoinResult(**known, leader=old.member_id)
    assert host.state() is GroupState.STABLE
    assert host.heartbeat(old.member_id, 1, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID


async def test_a_replacement_that_cannot_be_written_is_undone(mock_clock: MockClock) -> None:  # rule G3.31
    host = Host(mock_clock)
    old = host.stable(instance_id="i", rebalance_timeout_ms=TIMEOUT_MS + 1)
    host.log.error = ErrorCode.MESSAGE_TOO_LARGE
    answer = host.join(instance_id="i", rebalance_timeout_ms=7, session_timeout_ms=70).answer
    assert answer == JoinResult(
        member_id="", error=ErrorCode.UNKNOWN_SERVER_ERROR, generation=1, protocol_type=CONSUMER,
        protocol_name="range", leader=old.member_id,
    )  # fmt: skip
    found = host.group().members[old.member_id]
    assert (found.rebalance_timeout_ms, found.session_timeout_ms, found.on_join) == (TIMEOUT_MS + 1, TIMEOUT_MS, None)
    assert (host.group().static_members, host.group().awaiting_join) == ({"i": old.member_id}, 0)
    host.advance(TIMEOUT_MS - 1)
    assert host.heartbeat(old.member_id, 1, instance_id="i") == NONE


# SyncGroup and commits


async def test_what_a_sync_is_answered(mock_clock: MockClock) -> None:  # rules G4.4 to G4.9
    host = Host(mock_clock)
    joined = host.joined()
    expected = SyncResult(NONE, CONSUMER, "range", b"mine")
    assert host.sync(1, joined.member_id, {joined.member_id: b"mine", "other": b"x"}).answer == expected
    assert host.sync(1, joined.member_id).answer == expected
    assert host.group().members[joined.member_id].on_sync is None
    host.join()
    assert host.sync(1, joined.member_id).answer == SyncResult(REBALANCING)


async def test_each_partition_is_answered(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    second = TopicPartition("topic", 1)
    for generation, member_id, error in (
        (2, joined.member_id, ErrorCode.ILLEGAL_GENERATION), (1, "other", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "", ErrorCode.UNKNOWN_MEMBER_ID), (1, joined.member_id, NONE),
    ):  # fmt: skip
        assert host.commit({A: 1, second: 2}, member_id, generation) == {A: error, second: error}


async def test_a_group_ends_though_a_transaction_has_not(mock_clock: MockClock) -> None:  # rule G7.33
    host = Host(mock_clock)
    assert host.commit({A: 1}) == {A: NONE}
    host.commit({A: 2}, producer=PRODUCER)
    group = host.group()
    assert host.coordinator.delete([GROUP, "other"]) == {GROUP: NONE, "other": ErrorCode.GROUP_ID_NOT_FOUND}
    assert (group.is_dead, host.manager.groups) == (True, {})
    assert [value for _, value in host.log.records()][-1] is None


async def test_a_group_that_is_dead_and_still_there(mock_clock: MockClock) -> None:  # rules G7.31, G7.33
    host = Host(mock_clock)
    host.commit({A: 1})
    host.log.online = False
    assert [host.coordinator.delete([GROUP]) for _ in range(2)] == [
        {GROUP: NONE}, {GROUP: ErrorCode.GROUP_ID_NOT_FOUND},
    ]  # fmt: skip
    assert host.coordinator.delete_offsets(GROUP, [A]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
    assert host.leave("m") == (UNAVAILABLE, [])
    assert host.heartbeat("m", 0) == UNAVAILABLE
    assert host.commit({A: 1}) == {A: UNAVAILABLE}
    assert host.join().answer == JoinResult(member_id="", error=UNAVAILABLE)
    assert host.fetch(A) == {A: (-1, NONE)}
    assert host.sync(0, "m").answer == SyncResult(UNAVAILABLE)
    assert host.coordinator.describe(GROUP).group_state == "Dead"


async def test_who_finds_no_room_is_forgotten_first(mock_clock: MockClock) -> None:  # rules G3.5, G3.6
    host = Host(mock_clock, group_max_size="1")
    pending = host.join(requires_member_id=True).answer.member_id
    host.stable()
    seen: list[Any] = []
    group = host.group()
    assert group.pending_members == {pending}
    host.coordinator._joining.join(
        group,
        Join(
            group_id=GROUP, member_id=pending, client=Client("c", "/h"), session_timeout_ms=100,
            rebalance_timeout_ms=100, protocol_type=CONSUMER, protocols=RANGE,
        ),
        lambda result: seen.append((result, set(group.pending_members))),
    )  # fmt: skip
    assert seen == [(JoinResult(member_id="", error=ErrorCode.GROUP_MAX_SIZE_REACHED), set())]


async def test_generation_0_is_a_generation(mock_clock: MockClock) -> None:  # rules G7.3, G7.19
    host = Host(mock_clock)
    host.manager.get_or_create(GROUP)
    for producer in (None, PRODUCER):
        assert host.commit({A: 1}, generation=0, producer=producer) == {A: ErrorCode.UNKNOWN_MEMBER_ID}
        assert host.commit({A: 1}, generation=-1, producer=producer) == {A: NONE}
    host.joined()
    assert host.commit({A: 1}, generation=-1) == {A: ErrorCode.UNKNOWN_MEMBER_ID}
    assert host.commit({A: 1}, generation=0, producer=PRODUCER) == {A: ErrorCode.UNKNOWN_MEMBER_ID}
    assert host.commit({A: 1}, generation=-1, producer=PRODUCER) == {A: NONE}
