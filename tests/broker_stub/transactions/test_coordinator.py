"""What the coordinator does beside answering: what it aborts by itself, and what it does when that is not possible."""

from __future__ import annotations

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.transactions.metadata import TransactionMetadata
from kce.wire import ErrorCode as E
from kce.wire.steps import finish
from tests.broker_stub.transactions.support import EPOCH, ID, PID, TIMEOUT_MS, A, Host, S

LAST = 2**15 - 1


@pytest.mark.parametrize("stuck_first", [True, False])
async def test_one_that_cannot_be_aborted_does_not_hold_others_up(
    stuck_first: bool, caplog: pytest.LogCaptureFixture
) -> None:  # rules T8.1, T8.4
    host = await Host(partitions=1).started()
    found = {}
    for name in ("stuck", "other") if stuck_first else ("other", "stuck"):
        found[name] = host.put(
            S.ONGOING, transactional_id=name, producer_epoch=LAST if name == "stuck" else EPOCH, producer_id=PID
        )
    stuck = found["stuck"].values
    host.now += TIMEOUT_MS + 1
    host.coordinator.abort_timed_out()
    assert [(name, value.producer_epoch, value.state) for name, value in host.log.written if value] == [
        ("other", EPOCH + 1, S.PREPARE_ABORT)
    ]
    assert (found["stuck"].values, found["stuck"].pending) == (stuck, None)
    assert [message.partition(" is timed out")[2] for message in caplog.messages] == [
        f" and cannot be aborted: {found['stuck']!r} has no epochs left"
    ]
    assert [(ending.transactional_id, ending.committed) for ending in host.markers.endings] == [("other", False)]


async def test_what_is_led_elsewhere_is_not_aborted() -> None:  # rules T1.6, T8.1
    host = await Host(partitions=1).started()
    metadata = host.put(S.ONGOING)
    host.now += TIMEOUT_MS + 1
    host.coordinator.is_active = False
    host.coordinator.abort_timed_out()
    assert (metadata.pending, host.log.written) == (None, [])


async def test_what_the_sender_of_markers_is_told() -> None:  # rules T2.5, T6.11, T6.12, T6.13
    host = await Host(partitions=3).started()
    metadata = host.put(S.ONGOING, partitions=frozenset({A}))
    assert host.end(commit=True) is E.NONE
    (ending,) = host.markers.endings
    partition = host.manager.partition_of(ID)
    assert (
        ending.transactional_id, ending.state_partition, ending.producer_id, ending.producer_epoch, ending.committed,
        ending.coordinator_epoch, ending.is_current, set(ending.remaining),
    ) == (ID, partition, PID, EPOCH, True, 7, True, {A})  # fmt: skip
    ending.marker_written(A)
    assert not ending.remaining
    for code, retried in ((E.NOT_ENOUGH_REPLICAS, 1), (E.UNKNOWN_TOPIC_OR_PARTITION, 2)):
        host.log.error = code
        ending.finished()
        assert (len(host.markers.retried), metadata.pending) == (retried, S.COMPLETE_COMMIT)
    host.log.error = E.NOT_LEADER_OR_FOLLOWER
    ending.finished()
    assert (len(host.markers.retried), metadata.pending) == (2, None)


async def test_an_append_that_ends_after_a_resignation_is_not_retried() -> None:  # rule T6.13
    host = await Host(partitions=1).started()
    host.put(S.ONGOING, partitions=frozenset({A}))
    host.end(commit=False)
    (ending,) = host.markers.endings
    ending.marker_written(A)
    host.log.held = True
    ending.finished()
    host.resign(0)
    assert not ending.is_current
    host.log.release(E.NOT_ENOUGH_REPLICAS)
    assert host.markers.retried == []


async def test_only_its_own_topic_concerns_it() -> None:  # rule T13.1
    host = await Host(partitions=1).started()
    host.put()
    host.coordinator.resigned(A, 8)
    host.coordinator.became_leader(A, 8)
    assert (host.markers.forgotten, host.metadata().values.producer_id) == ([0], PID)
    host.resign(0)
    assert host.markers.forgotten == [0, 0]
    with pytest.raises(Refused):
        host.metadata()


@pytest.mark.parametrize("is_current", [True, False])
async def test_a_fence_that_could_not_be_written(is_current: bool) -> None:  # rule T4.12
    host = await Host(partitions=1).started()
    metadata = host.put(S.ONGOING)
    host.log.held = True
    result = host.init()
    assert result.is_parked
    if not is_current:
        host.resign(0)
    host.log.release(E.NOT_ENOUGH_REPLICAS)
    assert result.answer == (E.COORDINATOR_NOT_AVAILABLE, -1, -1)
    assert metadata.fence_failed is is_current
    assert host.log.timeouts == [TIMEOUT_MS]


async def test_what_is_not_this_coordinators_is_not_written() -> None:  # rules T9.6, T9.8
    host = await Host(partitions=1).started()
    metadata = host.put(S.ONGOING)
    new = metadata.prepare_end(commit=True, now_ms=host.now)
    answers: list[E] = []
    host.manager.append(metadata, 6, new, answers.append)
    other = TransactionMetadata(ID, metadata.values)
    host.manager.append(other, 7, new, answers.append)
    host.lead(0)
    host.manager.append(metadata, 7, new, answers.append)
    assert answers == [E.NOT_COORDINATOR, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS]
    assert (host.log.written, metadata.pending) == ([], S.PREPARE_COMMIT)


async def test_very_many_producer_ids_are_no_more_work_for_each_transaction() -> None:  # rule T11.4
    compared = 0

    class ProducerId(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    host = await Host(partitions=1).started()
    metadata = host.put(S.ONGOING)
    ids = [*map(ProducerId, range(10_000, 20_000)), ProducerId(metadata.values.producer_id)]
    assert finish(host.coordinator.list_transactions((), ids)).found == (metadata,)
    assert compared < 100


async def test_very_many_filters_are_looked_at_in_steps() -> None:
    host = await Host(partitions=1).started()
    host.put(S.ONGOING)
    steps = host.coordinator.list_transactions(["Ongoing"] * 1000, [1] * 1000)
    assert sum(1 for _ in steps) == 2 * (1000 // 128)


async def test_who_is_listed_by_time() -> None:  # rule T11.5
    host = await Host(partitions=1).started()
    host.put(S.ONGOING)
    assert [len(finish(host.coordinator.list_transactions((), (), limit)).found) for limit in (-1, 0)] == [1, 0]
    host.now += 1
    assert [len(finish(host.coordinator.list_transactions((), (), limit)).found) for limit in (0, 1)] == [1, 0]


async def test_one_that_was_written_as_dead_is_not_shown() -> None:  # rules T11.2, T11.4
    host = await Host(partitions=1).started()
    host.put(S.DEAD)
    assert finish(host.coordinator.list_transactions()).found == ()
    assert finish(host.coordinator.list_transactions(["Dead"])).found == ()
    with pytest.raises(Refused) as refused:
        host.coordinator.describe(ID)
    assert refused.value.code == E.TRANSACTIONAL_ID_NOT_FOUND
