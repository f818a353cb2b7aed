"""TransactionCoordinatorTest of Kafka (docs/transaction-semantics.md, 16a: TC).

Covers: broker_stub/transactions/coordinator.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.transactions.metadata import TransactionState as S
from kce.wire import ErrorCode as E
from kce.wire.steps import finish
from tests.broker_stub.transactions.support import (
    COORDINATOR_EPOCH,
    EPOCH,
    ID,
    PARTITIONS,
    PID,
    TIMEOUT_MS,
    A,
    B,
    Host,
    Result,
    refusal,
)

case = pytest.mark.kafka
LAST = 2**15 - 1


@case("TC-1")
@case("TC-9")
@case("TC-35")
@case("TC-36")
@case("TC-62")
async def test_an_empty_id() -> None:  # rules T4.1, T5.4, T5.8, T11.1
    host = await Host().started()
    assert host.init("") == host.init("") == refusal(E.INVALID_REQUEST)
    assert host.add(transactional_id="") is E.INVALID_REQUEST
    assert host.end(transactional_id="") is E.INVALID_REQUEST
    with pytest.raises(Refused) as refused:
        host.coordinator.describe("")
    assert refused.value.code is E.INVALID_REQUEST


@case("TC-3")
@case("TC-4")
@pytest.mark.parametrize("expected", [None, (5, 3)])
async def test_a_new_id(expected: tuple[int, int] | None) -> None:  # rules T4.3, T4.6
    host = await Host().started()
    assert host.init(expected=expected) == (E.NONE, 100, 0)
    assert host.log.states == [S.EMPTY]
    assert host.log.timeouts == [TIMEOUT_MS], "rule T9.5"


async def test_without_a_producer_id_nothing_is_kept() -> None:  # rules T3.2, T4.3
    host = await Host().started()
    host.ids.left = []
    assert host.init() == refusal(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert not list(host.manager.all_ids())


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
@case("TSM-1")
async def test_timeouts(timeout_ms: int) -> None:  # rule T4.1
    host = await Host().started()
    assert host.init(timeout_ms=timeout_ms) == refusal(E.INVALID_TRANSACTION_TIMEOUT)
    assert [host.init(timeout_ms=good)[0] for good in (1, 900_000)] == [E.NONE] * 2


@case("TC-5")
async def test_an_exhausted_epoch() -> None:  # rule T4.13
    host = await Host().started()
    host.put(producer_epoch=LAST - 1)
    assert host.init() == (E.NONE, 100, 0)


@case("TC-6")
@case("TC-7")
@case("TC-11")
@case("TC-12")
@case("TC-37")
@case("TC-38")
@case("TC-64")
@pytest.mark.parametrize("code", [E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS])
async def test_the_gate(code: E) -> None:  # rule T1.6
    host = await Host(owns=False).started()
    if code is E.COORDINATOR_LOAD_IN_PROGRESS:
        for number in (0, 1):
            host.lead(number)
    assert host.init() == refusal(code)
    assert [host.add(), host.end(), *host.verify()] == [code] * 4
    with pytest.raises(Refused) as refused:
        host.coordinator.describe(ID)
    assert refused.value.code is code


@case("TC-8")
@case("TC-24")
@case("TC-25")
async def test_an_unknown_id_or_another_producer() -> None:  # rules T5.4, T5.8
    host = await Host().started()
    assert [host.add(), host.end(), *host.verify()] == [E.INVALID_PRODUCER_ID_MAPPING] * 4
    host.put(S.ONGOING)
    assert [host.add(pid=9), host.end(pid=9), *host.verify(pid=9)] == [E.INVALID_PRODUCER_ID_MAPPING] * 4


@case("TC-13")
@case("TC-22")
@case("TC-23")
async def test_verification() -> None:  # rule T10.9
    host = await Host().started()
    host.put(S.PREPARE_COMMIT)
    assert host.verify(pid=9) == [E.INVALID_PRODUCER_ID_MAPPING] * 2
    assert host.verify(epoch=0) == [E.PRODUCER_FENCED] * 2
    assert host.verify() == [E.CONCURRENT_TRANSACTIONS] * 2
    host.put(S.ONGOING, partitions=frozenset({A}), pending=S.ONGOING)
    assert host.verify([A, B]) == [E.NONE, E.TRANSACTION_ABORTABLE]
    host.put(S.COMPLETE_COMMIT)
    assert host.verify([A]) == [E.TRANSACTION_ABORTABLE]
    assert not host.log.written


@case("TC-14")
@case("TC-15")
@case("TC-16")
@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
async def test_no_partitions_while_markers_are_written(state: S) -> None:  # rule T2.6
    host = await Host().started()
    host.put(state)
    assert host.add() is E.CONCURRENT_TRANSACTIONS
    assert host.add(epoch=EPOCH - 1) is host.add(epoch=EPOCH + 1) is E.PRODUCER_FENCED


@case("TC-17")
@case("TC-18")
@case("TC-19")
@case("TC-20")
@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
async def test_partitions_are_added(state: S) -> None:  # rule T2.6
    host = await Host().started()
    metadata = host.put(state, **({"partitions": frozenset({A})} if state is S.ONGOING else {}))
    host.now += 5
    assert host.add() is E.NONE
    assert (metadata.values.partitions, host.log.states) == (PARTITIONS, [S.ONGOING])
    assert metadata.values.start_ms == host.now - 5 * (state is S.ONGOING)


@case("TC-21")
async def test_known_partitions_need_no_record() -> None:  # rule T5.4
    host = await Host().started()
    host.put(S.ONGOING)
    assert host.add() is host.add([A]) is host.add([]) is E.NONE
    assert not host.log.written
    host.put(S.EMPTY)
    assert host.add([]) is E.NONE
    assert host.log.states == [S.ONGOING], "rule T5.5"


@case("TC-26")
@case("TC-39")
@case("TC-40")
async def test_another_epoch_ends_nothing() -> None:  # rule T5.8
    host = await Host().started()
    host.put(S.ONGOING)
    assert host.end(epoch=EPOCH + 1) is host.end(epoch=EPOCH - 1) is E.PRODUCER_FENCED


@case("TC-27")
@case("TC-28")
@case("TC-29")
@case("TC-30")
@case("TC-31")
@case("TC-32")
@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (S.EMPTY, E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (S.PREPARE_COMMIT, E.CONCURRENT_TRANSACTIONS, E.INVALID_TXN_STATE),
        (S.PREPARE_ABORT, E.INVALID_TXN_STATE, E.CONCURRENT_TRANSACTIONS),
        (S.COMPLETE_COMMIT, E.NONE, E.INVALID_TXN_STATE),
        (S.COMPLETE_ABORT, E.INVALID_TXN_STATE, E.NONE),
    ],
)
async def test_what_has_ended_or_ends(state: S, commit: E, abort: E) -> None:  # rules T2.6, T5.12
    host = await Host().started()
    metadata = host.put(state)
    assert (host.end(commit=True), host.end(commit=False)) == (commit, abort)
    metadata.pending = S.COMPLETE_COMMIT
    assert host.end(commit=True) is host.end(commit=False) is E.CONCURRENT_TRANSACTIONS
    assert not host.log.written


@case("TC-33")
@case("TC-34")
@pytest.mark.parametrize("commit", [True, False])
async def test_an_end(commit: bool) -> None:  # rules T2.5, T5.10
    host = await Host().started()
    metadata = host.put(S.ONGOING)
    host.log.held = True
    parked = host.end(commit=commit)
    assert isinstance(parked, Result)
    assert not host.markers.endings, "the decision is not durable yet"
    host.log.release()
    prepared = S.PREPARE_COMMIT if commit else S.PREPARE_ABORT
    assert (parked.answer, host.log.states) == (E.NONE, [prepared])
    (ending,) = host.markers.endings
    assert (ending.producer_id, ending.producer_epoch, ending.committed) == (PID, EPOCH, commit)
    assert (ending.coordinator_epoch, set(ending.remaining)) == (COORDINATOR_EPOCH, PARTITIONS)
    assert host.end(commit=not commit) is E.CONCURRENT_TRANSACTIONS
    host.log.held = False
    host.markers.write()
    assert host.log.states == [prepared, prepared.completed]
    assert (metadata.values.state, metadata.pending) == (prepared.completed, None)


@case("TC-41")
@case("TC-42")
@case("TC-43")
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
async def test_the_epoch_grows(state: S) -> None:  # rules T2.10, T4.6
    host = await Host().started()
    metadata = host.put(state)
    host.now += 9
    assert host.init(timeout_ms=5) == (E.NONE, PID, EPOCH + 1)
    values = metadata.values
    assert (values.timeout_ms, values.last_update_ms, values.state) == (5, host.now, S.EMPTY)


@case("TC-44")
@case("TC-45")
@case("TC-61")
@pytest.mark.parametrize(
    ("state", "pending"), [(S.PREPARE_COMMIT, None), (S.PREPARE_ABORT, None), (S.ONGOING, S.PREPARE_COMMIT)]
)
async def test_init_waits_for_the_markers(state: S, pending: S | None) -> None:  # rules T4.5, T4.8
    host = await Host().started()
    metadata = host.put(state, pending=pending)
    assert host.init() == refusal(E.CONCURRENT_TRANSACTIONS)
    assert metadata.values.producer_epoch == EPOCH


@case("TC-46")
@case("TC-49")
@pytest.mark.parametrize("epoch", [EPOCH, LAST - 1])
async def test_init_aborts_an_ongoing_transaction(epoch: int) -> None:  # rules T4.9, T4.10, T4.14
    host = await Host().started()
    metadata = host.put(S.ONGOING, producer_epoch=epoch)
    assert host.init(expected=(PID, 0)) == refusal(E.CONCURRENT_TRANSACTIONS)  # rule T4.11
    ((_, written),) = host.log.written
    assert written is not None
    assert (written.state, written.producer_epoch) == (S.PREPARE_ABORT, epoch + 1)
    assert (host.markers.endings[0].producer_epoch, host.markers.endings[0].committed) == (epoch + 1, False)
    host.markers.write()
    expected = (E.NONE, 100, 0) if epoch == LAST - 1 else (E.NONE, PID, epoch + 2)
    assert host.init() == expected
    assert metadata.values.producer_epoch == expected[2]


@case("TC-48")
async def test_a_fence_that_cannot_be_written_takes_one_epoch() -> None:  # rule T4.12
    host = await Host().started()
    metadata = host.put(S.ONGOING)
    host.log.error = E.NOT_ENOUGH_REPLICAS
    for _ in range(2):
        assert host.init() == refusal(E.COORDINATOR_NOT_AVAILABLE)
        assert (metadata.values.producer_epoch, metadata.fence_failed, metadata.pending) == (EPOCH + 1, True, None)
    host.log.error = E.NONE
    assert host.init() == refusal(E.CONCURRENT_TRANSACTIONS)
    assert (metadata.values.producer_epoch, metadata.fence_failed) == (EPOCH + 1, False)


@case("TC-50")
@case("TC-51")
@case("TC-53")
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"producer_epoch": 6}, (PID, 5)),
        ({"last_producer_id": 9, "producer_epoch": 6}, (9, 5)),
        ({"producer_epoch": 11}, (PID, 10)),
    ],
)
async def test_a_stale_producer(known: dict[str, Any], expected: tuple[int, int]) -> None:  # rule T4.5
    host = await Host().started()
    host.put(S.EMPTY, **known)
    assert host.init(expected=expected) == refusal(E.PRODUCER_FENCED)


@case("TC-52")
async def test_the_current_epoch_is_given_and_given_again() -> None:  # rule T4.6
    host = await Host().started()
    host.put(S.EMPTY, producer_epoch=10)
    assert host.init(expected=(PID, 10)) == host.init(expected=(PID, 10)) == (E.NONE, PID, 11)


@case("TC-54")
@case("TC-55")
async def test_the_retry_of_a_rotation() -> None:  # rule T4.16
    host = await Host().started()
    host.put(S.EMPTY, producer_epoch=LAST - 1)
    assert host.init(expected=(PID, LAST - 1)) == (E.NONE, 100, 0)
    assert host.init(expected=(PID, LAST - 2)) == refusal(E.PRODUCER_FENCED)
    assert host.init(expected=(PID, LAST - 1)) == (E.NONE, 100, 0)


@case("TC-56")
async def test_resignation() -> None:  # rules T6.15, T9.16
    host = await Host().started()
    host.put(S.ONGOING)
    number = host.manager.partition_of(ID)
    host.markers.forgotten.clear()
    host.resign(number, 8)
    assert host.markers.forgotten == [number]
    assert host.end() is E.NOT_COORDINATOR


@case("TC-57")
@case("TC-59")
@case("TC-60")
async def test_timed_out_transactions() -> None:  # rules T8.1 to T8.4
    host = await Host().started()
    metadata = host.put(S.ONGOING, last_producer_epoch=0)
    host.put(S.ONGOING, transactional_id="busy", pending=S.ONGOING)
    host.put(S.ONGOING, transactional_id="young", start_ms=host.now + 1)
    host.put(S.EMPTY, transactional_id="empty")
    host.now += TIMEOUT_MS
    host.coordinator.abort_timed_out()
    assert not host.log.written
    host.now += 1
    host.log.error = E.NOT_ENOUGH_REPLICAS
    host.coordinator.abort_timed_out()
    assert (metadata.values.producer_epoch, metadata.fence_failed, metadata.values.state) == (
        EPOCH + 1, True, S.ONGOING,
    )  # fmt: skip
    host.log.error = E.NONE
    host.coordinator.abort_timed_out()
    ((name, written),) = host.log.written
    assert written is not None
    assert (name, written.state, written.producer_epoch) == (ID, S.PREPARE_ABORT, EPOCH + 1)
    assert written.start_ms == host.now - TIMEOUT_MS - 1
    assert (metadata.values.last_producer_epoch, metadata.pending) == (-1, S.COMPLETE_ABORT)
    assert host.end(commit=True) is E.PRODUCER_FENCED


@case("TC-65")
@case("TSM-16")
async def test_describe_and_list() -> None:  # rules T11.1 to T11.5
    host = await Host().started()
    host.put(S.ONGOING)
    host.put(S.EMPTY, transactional_id="other", producer_id=11)
    values = host.coordinator.describe(ID).values
    assert (values.producer_id, values.producer_epoch, values.partitions) == (PID, EPOCH, PARTITIONS)
    with pytest.raises(Refused) as refused:
        host.coordinator.describe("unknown")
    assert refused.value.code is E.TRANSACTIONAL_ID_NOT_FOUND

    def listed(*args: Any) -> tuple[set[str], tuple[str, ...]]:
        found = finish(host.coordinator.list_transactions(*args))
        return {metadata.transactional_id for metadata in found.found}, found.unknown_states

    host.now += 100
    assert listed() == ({ID, "other"}, ())
    assert listed(("Ongoing",)) == ({ID}, ())
    assert listed(("ongoing", "Dead")) == (set(), ("ongoing",))
    assert listed((), (11,)) == ({"other"}, ())
    assert listed((), (), 100) == ({"other"}, ()), "an id without a start is kept"
    assert listed((), (), 99) == ({ID, "other"}, ())
    assert listed(("Ongoing", "Empty"), (PID, 11), 100) == ({"other"}, ())


@case("TSM-15")
async def test_nothing_is_listed_while_one_partition_is_loading() -> None:  # rules T1.10, T11.3
    host = await Host().started()
    host.put(S.ONGOING)
    host.lead(1 - host.manager.partition_of(ID), 8)
    assert finish(host.coordinator.list_transactions()) == (E.COORDINATOR_LOAD_IN_PROGRESS, (), ())
    await host.work()
    assert finish(host.coordinator.list_transactions()).error is E.NONE
    host.coordinator.is_active = False
    assert finish(host.coordinator.list_transactions()).error is E.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(Refused) as refused:
        host.coordinator.describe(ID)
    assert refused.value.code is E.COORDINATOR_NOT_AVAILABLE
    assert host.init() == refusal(E.NOT_COORDINATOR)
