"""Kafka's GroupMetadataTest and MemberMetadataTest: the state machine, protocols, offsets of one group.

Covers: broker_stub/groups/group.py, broker_stub/groups/offsets.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kce.broker_stub.groups.group import Group, GroupState, IllegalState
from kce.broker_stub.groups.member import Client, JoinResult, Member, SyncResult
from kce.broker_stub.groups.records import CommittedOffset
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import subscribed

kafka = pytest.mark.kafka

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
CONSUMER = "consumer"
A, B = TopicPartition("foo", 0), TopicPartition("foo", 1)
MEMBER = "memberId"


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def group(*path: GroupState) -> Group:
    """Empty at first, then moved along ``path``."""
    made = Group("groupId", Clock())
    for state in path:
        made.move_to(state)
    return made


def member(
    member_id: str = MEMBER, *protocols: str, instance_id: str | None = None, protocol_type: str = CONSUMER, **more: Any
) -> Member:
    return Member(
        member_id=member_id, instance_id=instance_id, client=Client("c", "/h"), protocol_type=protocol_type,
        protocols=tuple((name, b"") for name in protocols or ("range", "roundrobin")),
        **{"rebalance_timeout_ms": 60_000, "session_timeout_ms": 10_000, **more},
    )  # fmt: skip


def ignored(result: object) -> None:
    pass


PATHS = {
    EMPTY: (),
    PREPARING: (PREPARING,),
    COMPLETING: (PREPARING, COMPLETING),
    STABLE: (PREPARING, COMPLETING, STABLE),
    DEAD: (DEAD,),
}


@pytest.mark.parametrize(
    ("state", "can"),
    [
        pytest.param(EMPTY, True, marks=kafka("GM-1")),
        pytest.param(STABLE, True, marks=kafka("GM-1")),
        pytest.param(COMPLETING, True, marks=kafka("GM-2")),
        pytest.param(PREPARING, False, marks=kafka("GM-3")),
        pytest.param(DEAD, False, marks=kafka("GM-4")),
    ],
)
def test_can_rebalance(state: GroupState, can: bool) -> None:
    assert group(*PATHS[state]).can_rebalance is can


LEGAL = {
    (EMPTY, PREPARING): "GM-5", (EMPTY, DEAD): "GM-6", (COMPLETING, PREPARING): "GM-7", (PREPARING, DEAD): "GM-8",
    (PREPARING, EMPTY): "GM-9", (COMPLETING, STABLE): "GM-11", (DEAD, DEAD): "GM-18", (STABLE, PREPARING): None,
    (STABLE, DEAD): None, (PREPARING, COMPLETING): None, (COMPLETING, DEAD): None,
}  # fmt: skip
ILLEGAL = {
    (EMPTY, STABLE): "GM-12", (STABLE, STABLE): "GM-13", (EMPTY, COMPLETING): "GM-14", (PREPARING, PREPARING): "GM-15",
    (PREPARING, STABLE): "GM-16", (COMPLETING, COMPLETING): "GM-17", (DEAD, STABLE): "GM-19",
    (DEAD, PREPARING): "GM-20", (DEAD, COMPLETING): "GM-21",
}  # fmt: skip


@kafka("GM-10")
@pytest.mark.parametrize("before", GroupState)
@pytest.mark.parametrize("after", GroupState)
def test_transitions(before: GroupState, after: GroupState) -> None:  # rule G2.3
    made = group(*PATHS[before])
    made._now_ms.now = 2000  # type: ignore[attr-defined]
    if (before, after) in LEGAL:
        made.move_to(after)
        assert (made.state, made.state_since_ms) == (after, 2000)
    else:
        with pytest.raises(IllegalState):
            made.move_to(after)
        assert (made.state, made.state_since_ms) == (before, 1000)


def _transition(pair: tuple[GroupState, GroupState], case: str) -> Any:
    return pytest.param(*pair, marks=kafka(case), id=case)


@pytest.mark.parametrize(("before", "after"), [_transition(*item) for item in LEGAL.items() if item[1]])  # type: ignore[arg-type]
def test_legal_transition(before: GroupState, after: GroupState) -> None:
    made = group(*PATHS[before])
    made.move_to(after)
    assert made.state is after


@pytest.mark.parametrize(("before", "after"), [_transition(*item) for item in ILLEGAL.items()])
def test_illegal_transition(before: GroupState, after: GroupState) -> None:
    with pytest.raises(IllegalState):
        group(*PATHS[before]).move_to(after)


@kafka("GM-22")
def test_select_protocol() -> None:
    made = group()
    made.add(member("a", "range", "roundrobin"))
    assert made.select_protocol() == "range"
    made.move_to(PREPARING)
    made.add(member("b", "roundrobin", "range"))
    assert made.select_protocol() in ("range", "roundrobin")
    made.add(member("c", "roundrobin", "range"))
    assert made.select_protocol() == "roundrobin"


def test_most_votes_win_whatever_the_names() -> None:  # rule G3.42
    made = group()
    for name in "ab":
        made.add(member(name, "range", "roundrobin"))
    made.add(member("c", "roundrobin", "range"))
    assert made.select_protocol() == "range"


@kafka("GM-23")
def test_select_protocol_raises_if_no_members() -> None:
    with pytest.raises(IllegalState):
        group().select_protocol()


@kafka("GM-24")
def test_select_protocol_chooses_compatible_protocol() -> None:
    made = group(PREPARING)
    made.protocol_type = CONSUMER
    made.add(member("a", "range", "roundrobin"))
    made.add(member("b", "roundrobin", "blah"))
    assert made.select_protocol() == "roundrobin"


@kafka("GM-25")
def test_supports_protocols() -> None:
    made = group()

    def supports(protocol_type: str, *protocols: str) -> bool:
        return made.supports(protocol_type, tuple((name, b"") for name in protocols))

    assert supports(CONSUMER, "roundrobin", "range")
    made.add(member("a", "range", "roundrobin"))
    made.move_to(PREPARING)
    assert supports(CONSUMER, "roundrobin", "foo")
    assert supports(CONSUMER, "range", "foo")
    assert not supports(CONSUMER, "foo", "bar")
    made.add(member("b", "roundrobin", "blah"))
    assert supports(CONSUMER, "roundrobin", "foo")
    assert not supports("invalid_type", "roundrobin", "foo")
    assert not supports(CONSUMER, "range", "foo")


@kafka("GM-26")
def test_offset_removal_during_transition_from_empty_to_non_empty() -> None:
    made = group()
    clock: Any = made._now_ms
    made.add(member("a", "range"))
    made.move_to(PREPARING)
    made.next_generation()
    made.remove("a")
    commit(made, {A: committed(37, timestamp=clock.now)}, 0)
    clock.now += 100
    made.move_to(PREPARING)
    made.next_generation()
    assert made.state is EMPTY
    assert list(made.expire_offsets(clock.now, 50)) == []
    made.move_to(PREPARING)
    clock.now += 1000
    assert list(made.expire_offsets(clock.now, 50)) == []
    assert made.offsets.get(A) is not None


@kafka("GM-27")
def test_subscribed_topics() -> None:
    made = group()
    assert made.subscribed_topics is None
    made.add(member("a", "range"))
    made.members["a"].protocols = (("range", subscribed("foo")),)
    made.move_to(PREPARING)
    made.next_generation()
    assert made.subscribed_topics == {"foo"}
    made.move_to(PREPARING)
    made.remove("a")
    made.next_generation()
    assert made.subscribed_topics == frozenset()
    unparsable = member("b", "range")
    unparsable.protocols = (("range", b""),)
    made.add(unparsable)
    made.move_to(PREPARING)
    made.next_generation()
    assert made.subscribed_topics is None
    assert made.is_subscribed_to("anything")


@kafka("GM-28")
def test_subscribed_topics_non_consumer_group() -> None:
    made = group()
    made.add(member("a", "range", protocol_type="My Protocol"))
    made.move_to(PREPARING)
    made.next_generation()
    assert made.subscribed_topics is None


@kafka("GM-29")
def test_init_next_generation() -> None:
    made = group()
    made.add(member(), ignored)
    assert (made.generation, made.protocol_name) == (0, None)
    made.move_to(PREPARING)
    made.next_generation()
    assert (made.generation, made.protocol_name) == (1, "range")


@kafka("GM-30")
def test_init_next_generation_empty_group() -> None:
    made = group(PREPARING)
    assert (made.generation, made.protocol_name) == (0, None)
    made.next_generation()
    assert (made.generation, made.protocol_name, made.state) == (1, None, EMPTY)


# offsets


def committed(offset: int, metadata: str = "", timestamp: int = 0) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_timestamp=timestamp, metadata=metadata)


def commit(made: Group, offsets: dict[TopicPartition, CommittedOffset], at: int) -> None:
    made.offsets.prepare(offsets)
    made.offsets.appended(offsets, at)


@kafka("GM-31")
def test_offset_commit() -> None:
    offsets = group().offsets
    offsets.prepare({A: committed(37)})
    assert (offsets.is_empty, offsets.get(A)) == (False, None)
    offsets.appended({A: committed(37)}, 3)
    assert (offsets.is_empty, offsets.get(A)) == (False, committed(37))


@kafka("GM-32")
def test_offset_commit_failure() -> None:
    offsets = group().offsets
    offsets.prepare({A: committed(37)})
    offsets.failed({A: committed(37)})
    assert (offsets.is_empty, offsets.get(A)) == (True, None)


@kafka("GM-33")
def test_offset_commit_failure_with_another_pending() -> None:
    offsets = group().offsets
    offsets.prepare({A: committed(37)})
    offsets.prepare({A: committed(57)})
    offsets.failed({A: committed(37)})
    assert (offsets.is_empty, offsets.get(A)) == (False, None)
    offsets.appended({A: committed(57)}, 3)
    assert offsets.get(A) == committed(57)


@kafka("GM-34")
def test_offset_commit_with_another_pending() -> None:
    offsets = group().offsets
    offsets.prepare({A: committed(37)})
    offsets.prepare({A: committed(57)})
    offsets.appended({A: committed(37)}, 4)
    assert (offsets.is_empty, offsets.get(A)) == (False, committed(37))
    offsets.appended({A: committed(57)}, 5)
    assert offsets.get(A) == committed(57)


@kafka("GM-35")
def test_consumer_beats_transactional_offset_commit() -> None:
    offsets = group().offsets
    offsets.prepare_in_transaction(13, {A: committed(37)})
    offsets.prepare({A: committed(57)})
    offsets.appended_in_transaction(13, {A: committed(37)}, 3)
    offsets.appended({A: committed(57)}, 4)
    assert offsets.get(A) == committed(57)
    offsets.transaction_ended(13, committed=True)
    assert offsets.get(A) == committed(57)


@kafka("GM-36")
def test_transaction_beats_consumer_offset_commit() -> None:
    offsets = group().offsets
    offsets.prepare_in_transaction(13, {A: committed(37)})
    offsets.prepare({A: committed(57)})
    offsets.appended({A: committed(57)}, 3)
    offsets.appended_in_transaction(13, {A: committed(37)}, 4)
    assert offsets.get(A) == committed(57)
    offsets.transaction_ended(13, committed=True)
    assert offsets.get(A) == committed(37)


@kafka("GM-37")
def test_transactional_commit_is_aborted_and_consumer_commit_wins() -> None:
    offsets = group().offsets
    offsets.prepare_in_transaction(13, {A: committed(37)})
    offsets.prepare({A: committed(57)})
    offsets.appended({A: committed(57)}, 3)
    offsets.appended_in_transaction(13, {A: committed(37)}, 4)
    offsets.transaction_ended(13, committed=False)
    assert offsets.get(A) == committed(57)
    assert 13 not in offsets.pending_of_producers


@kafka("GM-38")
def test_failed_txn_offset_commit_leaves_no_pending_state() -> None:
    offsets = group().offsets
    offsets.prepare_in_transaction(13, {A: committed(37)})
    assert (13 in offsets.pending_of_producers, offsets.is_empty) == (True, False)
    offsets.failed_in_transaction(13, [A])
    assert (offsets.is_empty, offsets.get(A), 13 in offsets.pending_of_producers) == (True, None, False)
    offsets.transaction_ended(13, committed=False)
    assert offsets.is_empty


@kafka("GM-48")
def test_has_pending_non_txn_offsets() -> None:
    offsets = group().offsets
    offsets.prepare({A: committed(37)})
    assert (offsets.is_unstable(A), offsets.is_unstable(B)) == (True, False)


@kafka("GM-49")
def test_has_pending_txn_offsets() -> None:
    offsets = group().offsets
    offsets.prepare_in_transaction(5, {A: committed(37)})
    assert (offsets.is_unstable(A), offsets.is_unstable(B)) == (True, False)


# members


@kafka("GM-39")
def test_update_member() -> None:
    made = group()
    made.add(member("a"))
    made.update(made.members["a"], made.members["a"].protocols, 40_000, 20_000, None)
    assert (made.rebalance_timeout_ms, made.members["a"].session_timeout_ms) == (40_000, 20_000)


@kafka("GM-40")
def test_replace_group_instance_with_non_existing_member() -> None:
    with pytest.raises(IllegalState):
        group().replace_static_member("instance", MEMBER, "newMemberId")


@kafka("GM-41")
def test_replace_group_instance() -> None:
    made = group()
    joins: list[JoinResult] = []
    syncs: list[SyncResult] = []
    made.add(member(instance_id="instance"), joins.append)
    made.members[MEMBER].on_sync = syncs.append
    assert (made.leader, made.static_members) == (MEMBER, {"instance": MEMBER})
    made.replace_static_member("instance", MEMBER, "newMemberId")
    assert (made.leader, made.static_members) == ("newMemberId", {"instance": "newMemberId"})
    assert [join.error for join in joins] == [ErrorCode.FENCED_INSTANCE_ID]
    assert [sync.error for sync in syncs] == [ErrorCode.FENCED_INSTANCE_ID]
    assert made.members["newMemberId"].on_join is None
    assert made.awaiting_join == 0


JOINED = JoinResult(member_id=MEMBER)
SYNCED = SyncResult(ErrorCode.NONE)


@kafka("GM-42")
def test_invoke_join_callback() -> None:
    made, answers = group(), list[Any]()
    made.add(member(), answers.append)
    assert made.has_all_joined
    made.answer_join(made.members[MEMBER], JOINED)
    assert (answers, made.members[MEMBER].on_join, made.awaiting_join) == ([JOINED], None, 0)
    assert not made.has_all_joined


class FailsOnce:
    def __init__(self) -> None:
        self.results: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.results.append(result)
        if len(self.results) == 1:
            raise RuntimeError("it fails")


@kafka("GM-43")
def test_invoke_join_callback_fails() -> None:
    made, answer = group(), FailsOnce()
    made.add(member(), answer)
    made.answer_join(made.members[MEMBER], JOINED)
    assert [result.error for result in answer.results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]
    assert made.members[MEMBER].on_join is None


@kafka("GM-44")
def test_not_invoke_join_callback() -> None:
    made = group()
    made.add(member())
    made.answer_join(made.members[MEMBER], JOINED)
    assert made.awaiting_join == 0


@kafka("GM-45")
def test_invoke_sync_callback_fails() -> None:
    made, answer = group(), FailsOnce()
    made.add(member())
    made.members[MEMBER].on_sync = answer
    assert made.answer_sync(made.members[MEMBER], SYNCED) is True
    assert [result.error for result in answer.results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]


@kafka("GM-46")
def test_invoke_sync_callback() -> None:
    made, answers = group(), list[Any]()
    made.add(member())
    made.members[MEMBER].on_sync = answers.append
    assert made.answer_sync(made.members[MEMBER], SYNCED) is True
    assert (answers, made.members[MEMBER].on_sync) == ([SYNCED], None)


@kafka("GM-47")
def test_not_invoke_sync_callback() -> None:
    made = group()
    made.add(member())
    assert made.answer_sync(made.members[MEMBER], SYNCED) is False


@kafka("GM-50")
def test_cannot_add_pending_member_if_stable() -> None:
    made = group()
    made.add(member())
    with pytest.raises(IllegalState):
        made.add_pending_member(MEMBER)


@kafka("GM-51")
def test_removal_from_pending_after_member_is_stable() -> None:
    made = group()
    made.add_pending_member(MEMBER)
    assert (MEMBER in made.members, made.pending_members) == (False, {MEMBER})
    made.add(member())
    assert (MEMBER in made.members, made.pending_members) == (True, set())


@kafka("GM-52")
def test_removal_from_pending_when_member_is_removed() -> None:
    made = group()
    made.add_pending_member(MEMBER)
    made.remove(MEMBER)
    assert (MEMBER in made.members, made.pending_members) == (False, set())


@kafka("GM-53")
def test_cannot_add_static_member_if_already_present() -> None:
    made = group()
    made.add(member("a", instance_id="instance"))
    with pytest.raises(IllegalState):
        made.add(member("b", instance_id="instance"))
    assert (list(made.members), made.static_members) == (["a"], {"instance": "a"})


@kafka("GM-54")
def test_cannot_add_pending_sync_of_unknown_member() -> None:
    with pytest.raises(IllegalState):
        group().add_pending_sync(MEMBER)


@kafka("GM-55")
def test_cannot_remove_pending_sync_of_unknown_member() -> None:
    with pytest.raises(IllegalState):
        group().remove_pending_sync(MEMBER)


@kafka("GM-56")
def test_can_add_and_remove_pending_sync_member() -> None:
    made = group()
    made.add(member())
    made.add_pending_sync(MEMBER)
    assert made.pending_syncs == {MEMBER}
    made.remove_pending_sync(MEMBER)
    assert made.pending_syncs == set()


@kafka("GM-57")
def test_removal_from_pending_sync_when_member_is_removed() -> None:
    made = group()
    made.add(member())
    made.add_pending_sync(MEMBER)
    made.remove(MEMBER)
    assert made.pending_syncs == set()


@kafka("GM-58")
def test_new_generation_clears_pending_sync_members() -> None:
    made = group()
    made.add(member())
    made.move_to(PREPARING)
    made.add_pending_sync(MEMBER)
    made.next_generation()
    assert made.pending_syncs == set()


# MemberMetadataTest


@kafka("MM-2")
def test_vote_for_preferred_protocol() -> None:
    one = member("a", "range", "roundrobin")
    assert one.vote({"range", "roundrobin"}) == "range"
    assert one.vote({"blah", "roundrobin"}) == "roundrobin"


@kafka("MM-3")
def test_metadata() -> None:
    one = member()
    one.protocols = (("range", b"\0"), ("roundrobin", b"\1"))
    assert (one.metadata("range"), one.metadata("roundrobin")) == (b"\0", b"\1")


@kafka("MM-4")
def test_metadata_raises_on_unsupported_protocol() -> None:
    with pytest.raises(KeyError):
        member().metadata("blah")


@kafka("MM-5")
def test_vote_raises_on_no_supported_protocols() -> None:
    with pytest.raises(KeyError):
        member().vote({"blah"})


@kafka("MM-6")
def test_has_valid_group_instance_id() -> None:
    assert member(instance_id="instance").is_static
    assert not member().is_static
