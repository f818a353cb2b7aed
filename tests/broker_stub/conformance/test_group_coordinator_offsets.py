"""Kafka's GroupCoordinatorTest: offsets, and listing, describing and deleting groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from trio.testing import MockClock

from kce.broker_stub.groups.coordinator import Committer
from kce.broker_stub.groups.group import GroupState
from kce.broker_stub.groups.manager import Producer
from kce.broker_stub.groups.records import CommittedOffset
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.log.verification import VerificationGuard
from kce.wire import ErrorCode
from kce.wire.consumer_protocol import ConsumerProtocolSubscription, encode_consumer_protocol
from kce.wire.steps import finish
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.conformance.test_group_coordinator_join import dead_group, two_joined
from tests.broker_stub.groups.support import CONSUMER, DELAY_MS, GROUP, RANGE, TIMEOUT_MS, A, Host

kafka = pytest.mark.kafka

NONE, UNKNOWN, MOVED = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR
ILLEGAL, FENCED, UNSTABLE = (
    ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNSTABLE_OFFSET_COMMIT,
)  # fmt: skip
B, OTHER = TopicPartition("topic", 1), TopicPartition("other", 0)
NOTHING = (-1, NONE)
PRODUCER = Producer(1000, 2)


async def end(host: Host, *, committed: bool, producer: Producer = PRODUCER, group_id: str = GROUP) -> None:
    host.manager.transaction_ended(producer.id, [host.manager.partition_of(group_id)], committed=committed)
    await host.work()


# commit and fetch


@kafka("GC-51")
async def test_offset_commit_dead_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host)
    assert host.commit({A: 0}, "memberId", 1, group_id="deadGroup") == {A: ErrorCode.COORDINATOR_NOT_AVAILABLE}


@kafka("GC-96")
async def test_commit_offset_from_unknown_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 0}, "consumer", 1) == {A: ILLEGAL}
    assert GROUP not in host.manager.groups


@kafka("GC-97")
async def test_commit_offset_with_default_generation(mock_clock: MockClock) -> None:
    assert Host(mock_clock).commit({A: 0}) == {A: NONE}


@kafka("GC-98")
async def test_commit_offsets_after_group_is_empty(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.leave(joined.member_id) == (NONE, [NONE])
    assert host.commit({A: 97}) == {A: NONE}
    assert host.fetch(A) == {A: (97, NONE)}


@kafka("GC-99")
async def test_fetch_offsets(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    committed = host.offset(97, metadata="some metadata", leader_epoch=15)
    assert host.commit({A: committed}) == {A: NONE}
    error, found = host.coordinator.fetch_offsets(GROUP, [A])
    assert (error, found[A].error, found[A].committed) == (NONE, NONE, committed)


@kafka("GC-100")
async def test_commit_and_fetch_offsets_with_empty_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 97}, group_id="") == {A: NONE}
    assert host.fetch(A, group_id="") == {A: (97, NONE)}
    described = host.coordinator.describe("")
    assert (described.error_code, described.group_state) == (NONE, "Empty")
    assert host.coordinator.delete([""]) == {"": NONE}
    assert host.fetch(A, group_id="") == {A: NOTHING}


@kafka("GC-101")
async def test_basic_fetch_txn_offsets(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 97}, producer=PRODUCER) == {A: NONE}
    assert host.fetch(A) == {A: NOTHING}
    await end(host, committed=True)
    assert host.fetch(A) == {A: (97, NONE)}


@kafka("GC-102")
async def test_fetch_txn_offsets_with_abort(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 97}, producer=PRODUCER) == {A: NONE}
    assert host.fetch(A) == {A: NOTHING}
    await end(host, committed=False)
    assert host.fetch(A) == {A: NOTHING}


@pytest.mark.parametrize(
    ("committed", "afterwards"),
    [pytest.param(False, NOTHING, marks=kafka("GC-103")), pytest.param(True, (25, NONE), marks=kafka("GC-104"))],
)
async def test_fetch_pending_txn_offsets(mock_clock: MockClock, committed: bool, afterwards: tuple[int, int]) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 25}, producer=PRODUCER) == {A: NONE}
    assert host.fetch(A, OTHER, require_stable=True) == {A: (-1, UNSTABLE), OTHER: NOTHING}
    assert host.fetch(A, OTHER) == {A: NOTHING, OTHER: NOTHING}
    await end(host, committed=committed)
    assert host.fetch(A, OTHER, require_stable=True) == {A: afterwards, OTHER: NOTHING}


@kafka("GC-105")
async def test_fetch_txn_offsets_ignore_spurious_commit(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.commit({A: 25}, producer=PRODUCER)
    await end(host, committed=False)
    await end(host, committed=True)
    assert host.fetch(A) == {A: NOTHING}


@kafka("GC-106")
async def test_fetch_txn_offsets_one_producer_multiple_groups(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    other = "otherGroup"
    assert host.manager.partition_of(GROUP) != host.manager.partition_of(other)
    for group_id in (GROUP, other):
        assert host.commit({A: 25}, producer=PRODUCER, group_id=group_id) == {A: NONE}
    await end(host, committed=True)
    assert (host.fetch(A), host.fetch(A, group_id=other)) == ({A: (25, NONE)}, {A: NOTHING})
    await end(host, committed=True, group_id=other)
    assert host.fetch(A, group_id=other) == {A: (25, NONE)}


@kafka("GC-107")
async def test_fetch_txn_offsets_multiple_producers_one_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    second = Producer(1005, 3)
    host.commit({A: 15}, producer=PRODUCER)
    host.commit({B: 16}, producer=second)
    await end(host, committed=True)
    assert host.fetch(A, B) == {A: (15, NONE), B: NOTHING}
    await end(host, committed=True, producer=second)
    assert host.fetch(A, B) == {A: (15, NONE), B: (16, NONE)}


@kafka("GC-108")
async def test_fetch_offset_for_unknown_partition(mock_clock: MockClock) -> None:
    assert Host(mock_clock).fetch(A) == {A: NOTHING}


@kafka("GC-109")
async def test_fetch_offset_not_coordinator_for_group(mock_clock: MockClock) -> None:
    assert Host(mock_clock, owns=False).coordinator.fetch_offsets("otherGroup", [A]) == (MOVED, {})


@kafka("GC-110")
async def test_fetch_all_offsets(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.fetch() == {}
    assert host.commit({A: 15, B: 16, OTHER: 17}) == {A: NONE, B: NONE, OTHER: NONE}
    assert host.fetch() == {A: (15, NONE), B: (16, NONE), OTHER: (17, NONE)}


@pytest.mark.parametrize(
    ("member_id", "ahead", "error"),
    [
        pytest.param(None, 0, ErrorCode.REBALANCE_IN_PROGRESS, marks=kafka("GC-111")),
        pytest.param("unknown", 0, UNKNOWN, marks=kafka("GC-112")),
        pytest.param(None, 1, ILLEGAL, marks=kafka("GC-113")),
    ],
)
async def test_commit_offset_in_completing_rebalance(
    mock_clock: MockClock, member_id: str | None, ahead: int, error: ErrorCode
) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.state() is GroupState.COMPLETING_REBALANCE
    assert host.commit({A: 0}, member_id or joined.member_id, joined.generation + ahead) == {A: error}
    assert host.fetch(A) == {A: NOTHING}


@kafka("GC-114")
async def test_manual_commit_offset_should_not_validate_member_id_and_instance_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    assert host.commit({A: 0}, "", instance_id="instance") == {A: NONE}
    assert host.commit({A: 0}, "unknown", instance_id=None) == {A: NONE}
    assert host.commit({A: 0}, "unknown", instance_id="instance") == {A: NONE}


def txn(host: Host, member_id: str, generation: int, instance_id: str | None = None) -> int:
    return host.commit({A: 0}, member_id, generation, instance_id=instance_id, producer=PRODUCER)[A]


@kafka("GC-115")
async def test_txn_commit_offset_with_fenced_instance_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined(instance_id="leader")
    assert txn(host, "", -1, "leader") == FENCED
    assert txn(host, "unknown", joined.generation, "leader") == FENCED
    assert txn(host, joined.member_id, joined.generation, "leader") == NONE


@kafka("GC-116")
async def test_txn_commit_offset_with_invalid_member_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert txn(host, "invalid", joined.generation) == UNKNOWN


@kafka("GC-117")
async def test_txn_commit_offset_with_known_member_id(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert host.state() is GroupState.COMPLETING_REBALANCE
    assert txn(host, joined.member_id, joined.generation) == NONE


@kafka("GC-118")
async def test_txn_commit_offset_with_illegal_generation(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert txn(host, joined.member_id, joined.generation + 5) == ILLEGAL


@kafka("GC-119")
async def test_txn_commit_offset_with_legal_generation(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert txn(host, joined.member_id, joined.generation) == NONE
    host.advance(TIMEOUT_MS - 1)
    assert txn(host, joined.member_id, joined.generation) == NONE
    host.advance(1)
    assert txn(host, joined.member_id, joined.generation) == UNKNOWN, "it does not keep the session alive (rule G7.19)"


@kafka("GC-163")
async def test_txn_offset_metadata_too_large(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    too_long = host.offset(0, metadata="s" * 4097)
    assert host.commit({A: too_long}, producer=PRODUCER) == {A: ErrorCode.OFFSET_METADATA_TOO_LARGE}


async def test_a_commit_of_a_member_that_gives_no_generation(mock_clock: MockClock) -> None:  # rules G7.5, G7.6
    host = Host(mock_clock)
    joined = host.stable()
    assert host.commit({A: 0}, joined.member_id, -1) == {A: ILLEGAL}
    assert host.commit({A: 0}) == {A: UNKNOWN}


async def test_an_append_that_ends_late_sees_what_happened_meanwhile(mock_clock: MockClock) -> None:  # G4.6, G7.12
    host = Host(mock_clock)
    joined = host.joined()
    host.log.held = True
    sync = host.sync(joined.generation, joined.member_id, {joined.member_id: b"x"})
    assert sync.is_parked
    assert host.state() is GroupState.COMPLETING_REBALANCE
    host.join()  # a rebalance
    assert sync.error == ErrorCode.REBALANCE_IN_PROGRESS
    host.log.release()
    assert host.state() is GroupState.PREPARING_REBALANCE


async def test_an_append_of_an_earlier_generation_assigns_nothing(mock_clock: MockClock) -> None:  # rule G4.6
    host = Host(mock_clock)
    joined = host.joined()
    host.log.held = True
    host.sync(1, joined.member_id, {joined.member_id: b"old"})
    assert host.join(joined.member_id, protocols=(*RANGE, ("other", b""))).answer.generation == 2
    host.log.release()
    assert (host.state(), host.group().members[joined.member_id].assignment) == (GroupState.COMPLETING_REBALANCE, b"")


async def test_an_assignment_that_cannot_be_stored_begins_a_rebalance(mock_clock: MockClock) -> None:  # rule G4.7
    host = Host(mock_clock)
    leader, follower = await two_joined(host)
    waits = host.sync(2, follower)
    host.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
    sync = host.sync(2, leader, {leader: b"x", follower: b"y"})
    assert [waits.error, sync.error] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert host.state() is GroupState.PREPARING_REBALANCE


async def test_partitions_of_deleted_topics_are_forgotten(mock_clock: MockClock) -> None:  # rules G13.5, G13.6
    host = Host(mock_clock)
    joined = host.stable()
    host.commit({A: 1, OTHER: 2}, joined.member_id, joined.generation)
    host.commit({A: 1}, group_id="simple")
    host.coordinator.partitions_deleted([A, B])
    assert host.fetch() == {OTHER: (2, NONE)}
    assert list(host.manager.groups) == [GROUP]
    assert [str(key.partition) for key, value in host.log.records() if value is None] == ["topic-0", "topic-0"]


# listing and describing


def listed(host: Host, *states: str, types: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    error, groups = finish(host.coordinator.list_groups(states, types))
    assert error == NONE
    return [(group.group_id, group.protocol_type, group.group_state, group.group_type) for group in groups]


@kafka("GC-136")
async def test_list_groups_includes_stable_groups(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable()
    assert listed(host) == [(GROUP, CONSUMER, "Stable", "classic")]


@kafka("GC-137")
async def test_list_groups_includes_rebalancing_groups(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined()
    assert listed(host) == [(GROUP, CONSUMER, "CompletingRebalance", "classic")]


STATES = {state.value for state in GroupState}


def states_of(host: Host) -> set[str]:
    """The filters that match the group."""
    return {state for state in STATES if listed(host, state.upper())}


@kafka("GC-138")
async def test_list_groups_with_states(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    assert states_of(host) == {"CompletingRebalance"}
    host.synced(joined.generation, joined.member_id, {})
    assert states_of(host) == {"Stable"}
    assert listed(host, *STATES) == listed(host)
    host.leave(joined.member_id)
    assert states_of(host) == {"Empty"}


@kafka("GC-139")
async def test_list_groups_with_types(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable()
    everything = listed(host)
    assert everything
    for types, found in (((), everything), (("classic",), everything), (("CLASSIC", "Consumer"), everything)):
        assert listed(host, types=types) == found
    for nothing in ("consumer", "Invalid"):
        assert listed(host, types=(nothing,)) == []


async def test_a_stopped_coordinator(mock_clock: MockClock) -> None:  # rules G1.12, G7.36
    host = Host(mock_clock)
    joined = host.stable()
    host.coordinator.is_active = False
    assert finish(host.coordinator.list_groups()) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())
    assert host.heartbeat(joined.member_id, 1) == ErrorCode.COORDINATOR_NOT_AVAILABLE


@kafka("GC-140")
async def test_describe_group_wrong_coordinator(mock_clock: MockClock) -> None:
    assert Host(mock_clock, owns=False).coordinator.describe(GROUP).error_code == MOVED


@kafka("GC-141")
async def test_describe_group_inactive_group(mock_clock: MockClock) -> None:
    described = Host(mock_clock).coordinator.describe(GROUP)
    assert (described.error_code, described.group_state, described.members) == (NONE, "Dead", ())
    assert (described.protocol_type, described.protocol_data) == ("", "")


@pytest.mark.parametrize(
    "instance_id", [pytest.param(None, marks=kafka("GC-142")), pytest.param("leader", marks=kafka("GC-143"))]
)
async def test_describe_group_stable(mock_clock: MockClock, instance_id: str | None) -> None:
    host = Host(mock_clock)
    joined = host.stable(instance_id=instance_id)
    described = host.coordinator.describe(GROUP)
    assert (described.error_code, described.group_state) == (NONE, "Stable")
    assert (described.protocol_type, described.protocol_data) == (CONSUMER, "range")
    (member,) = described.members
    assert (member.member_id, member.group_instance_id) == (joined.member_id, instance_id)
    assert (member.client_id, member.client_host) == ("consumer-test", "/localhost")
    assert member.member_metadata == b"metadata"


@kafka("GC-144")
async def test_describe_group_rebalancing(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    described = host.coordinator.describe(GROUP)
    assert (described.group_state, described.protocol_type) == ("CompletingRebalance", CONSUMER)
    assert described.protocol_data == ""
    (member,) = described.members
    assert (member.member_id, member.member_metadata, member.member_assignment) == (joined.member_id, b"", b"")


# deleting


@kafka("GC-145")
async def test_delete_non_empty_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.joined()
    assert host.coordinator.delete([GROUP]) == {GROUP: ErrorCode.NON_EMPTY_GROUP}


@kafka("GC-147")
async def test_delete_group_with_wrong_coordinator(mock_clock: MockClock) -> None:
    assert Host(mock_clock, owns=False).coordinator.delete(["otherGroup"]) == {"otherGroup": MOVED}


@kafka("GC-148")
async def test_delete_empty_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.joined()
    host.leave(joined.member_id)
    assert host.coordinator.delete([GROUP]) == {GROUP: NONE}
    assert host.coordinator.delete([GROUP]) == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}


@kafka("GC-149")
async def test_delete_empty_group_with_stored_offsets(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    assert host.commit({A: 0}, joined.member_id, 1) == {A: NONE}
    assert host.coordinator.describe(GROUP).group_state == "Stable"
    host.leave(joined.member_id)
    assert host.coordinator.delete([GROUP]) == {GROUP: NONE}
    assert host.coordinator.describe(GROUP).group_state == "Dead"
    assert len([key for key, value in host.log.records() if value is None]) == 2


def delete(host: Host, *partitions: TopicPartition) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
    error, codes = host.coordinator.delete_offsets(GROUP, partitions)
    return error, dict(codes)


@kafka("GC-150")
async def test_delete_offset_of_non_existing_group(mock_clock: MockClock) -> None:
    assert delete(Host(mock_clock), A) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


@kafka("GC-151")
async def test_delete_offset_of_non_empty_non_consumer_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    host.stable(protocol_type="My Protocol", protocols=(("My Protocol", b""),))
    assert delete(host, A) == (ErrorCode.NON_EMPTY_GROUP, {})


@pytest.mark.parametrize(
    "kind", [pytest.param("My Protocol", marks=kafka("GC-152")), pytest.param(CONSUMER, marks=kafka("GC-155"))]
)
async def test_delete_offset_of_empty_group(mock_clock: MockClock, kind: str) -> None:
    host = Host(mock_clock)
    joined = host.stable(protocol_type=kind, protocols=((kind, b""),))
    host.commit({A: 1, B: 2}, joined.member_id, 1)
    host.leave(joined.member_id)
    assert host.state() is GroupState.EMPTY
    assert delete(host, A) == (NONE, {A: NONE})
    assert host.fetch(A, B) == {A: NOTHING, B: (2, NONE)}


@kafka("GC-153")
async def test_delete_offset_of_consumer_group_with_unparsable_protocol(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    joined = host.stable()
    host.commit({A: 1}, joined.member_id, 1)
    assert delete(host, A) == (NONE, {A: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC})
    assert host.fetch(A) == {A: (1, NONE)}


@kafka("GC-154")
async def test_delete_offset_of_dead_consumer_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    dead_group(host, GROUP).protocol_type = CONSUMER
    assert delete(host, A) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


@kafka("GC-156")
async def test_delete_offset_of_stable_consumer_group(mock_clock: MockClock) -> None:
    host = Host(mock_clock)
    subscription = encode_consumer_protocol(ConsumerProtocolSubscription(topics=("topic",)), 1)
    joined = host.stable(protocols=(("range", subscription),))
    host.commit({A: 1, OTHER: 2}, joined.member_id, 1)
    assert host.coordinator.offset_deletions == 0
    assert delete(host, A, OTHER) == (NONE, {A: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, OTHER: NONE})
    assert (host.coordinator.offset_deletions, host.coordinator.completed_rebalances) == (1, 1)
    assert host.fetch(A, OTHER) == {A: (1, NONE), OTHER: NOTHING}


# loading


async def test_members_that_are_loaded_have_a_full_session(mock_clock: MockClock) -> None:  # rules G9.17, G9.18
    first = Host(mock_clock)
    joined = first.stable()
    first.commit({A: 5}, joined.member_id, 1)
    second = Host(mock_clock, owns=False)
    second.log = second.manager._log = first.log  # type: ignore[assignment]
    second.manager.load(second.manager.partition_of(GROUP), 1)
    await second.work()
    assert second.fetch(A) == {A: (5, NONE)}
    second.advance(TIMEOUT_MS - 1)
    assert second.state() is GroupState.STABLE
    second.advance(1)
    assert second.state() is GroupState.EMPTY, "it was silent"
    assert second.fetch(A) == {A: (5, NONE)}


async def test_a_group_that_is_too_large_when_it_is_loaded_rebalances(mock_clock: MockClock) -> None:  # rule G9.18
    first = Host(mock_clock)
    joins = [first.join(protocols=RANGE) for _ in range(2)]
    first.advance(2 * DELAY_MS)
    leader = joins[0].answer
    first.synced(1, leader.member_id, {})
    second = Host(mock_clock, owns=False, group_max_size="1")
    second.log = second.manager._log = first.log  # type: ignore[assignment]
    second.manager.load(second.manager.partition_of(GROUP), 1)
    await second.work()
    assert second.state() is GroupState.PREPARING_REBALANCE


@kafka("GC-162")
@pytest.mark.parametrize(
    ("found", "answered"),
    [
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, MOVED),
        (ErrorCode.KAFKA_STORAGE_ERROR, MOVED),
    ],
)
async def test_verification_errors(mock_clock: MockClock, found: ErrorCode, answered: ErrorCode) -> None:
    host = Host(mock_clock)
    offsets = {partition: CommittedOffset(offset=0, commit_timestamp=0) for partition in (A, B)}
    results: list[Mapping[TopicPartition, ErrorCode]] = []
    host.coordinator.verify_and_commit(
        GROUP, Committer(), offsets, results.append, PRODUCER, lambda partition, done: done(found, None)
    )
    assert results == [{A: answered, B: answered}]
    assert host.log.batches == {}


async def test_a_group_that_goes_while_its_transaction_is_verified(mock_clock: MockClock) -> None:  # rule G7.18
    host = Host(mock_clock)
    questions: list[tuple[TopicPartition, Callable[[ErrorCode, VerificationGuard | None], None]]] = []
    results: list[Mapping[TopicPartition, ErrorCode]] = []

    def commit() -> VerificationGuard:
        host.coordinator.verify_and_commit(
            GROUP, Committer(), {A: CommittedOffset(offset=1, commit_timestamp=0)}, results.append, PRODUCER,
            lambda *question: questions.append(question),
        )  # fmt: skip
        return VerificationGuard()

    guard = commit()
    assert questions[0][0] == TopicPartition(GROUP_METADATA_TOPIC, host.manager.partition_of(GROUP))
    questions[0][1](NONE, guard)
    assert results == [{A: NONE}]
    assert host.log.guards[-1] is guard
    commit()
    host.manager.groups.pop(GROUP).move_to(GroupState.DEAD)
    questions[1][1](NONE, None)
    assert results[1:] == [{A: ErrorCode.COORDINATOR_NOT_AVAILABLE}]
