"""TransactionStateManagerTest of Kafka (docs/transaction-semantics.md, 16a: TSM).

Covers: broker_stub/transactions/manager.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kce.broker_stub.transactions.metadata import TransactionState as S
from kce.broker_stub.transactions.metadata import Values
from kce.wire import ErrorCode as E
from kce.wire.record import Record, RecordBatch
from kce.wire.records import write_records
from tests.broker_stub.transactions.support import COORDINATOR_EPOCH, ID, PARTITIONS, PID, A, Host, Result, refusal

case = pytest.mark.kafka
VALUES = Values(producer_id=PID, producer_epoch=3, timeout_ms=1000, last_update_ms=5)
ONGOING = VALUES._replace(state=S.ONGOING, partitions=PARTITIONS, start_ms=4)
OLD = {"transactional.id.expiration.ms": "100"}


async def loaded(*values: tuple[str, Values | None], extra: bytes = b"") -> Host:
    """One partition with these records."""
    host = Host(owns=False, partitions=1)
    for name, value in values:
        host.log.put_values(0, name, value)
    if extra:
        host.log.put(0, extra)
    host.lead(0)
    return host


@case("TSM-5")
@case("TSM-31")
async def test_load_and_resign() -> None:  # rules T9.13, T9.16, T9.18
    host = await loaded(("a", VALUES), ("b", VALUES), ("a", ONGOING), ("b", None), ("c", VALUES))
    assert host.init("a") == refusal(E.COORDINATOR_LOAD_IN_PROGRESS), "from the very call (rule T9.12)"
    await host.work()
    assert {m.transactional_id: m.values for m in host.manager.all_ids()} == {"a": ONGOING, "c": VALUES}
    host.resign(0, 8)
    assert host.init("a") == refusal(E.NOT_COORDINATOR)
    host.lead(0, 9)
    await host.work()
    assert host.manager.is_current("a", 9)
    assert not host.manager.is_current("a", COORDINATOR_EPOCH)


@case("TSM-3")
async def test_a_resignation_clears_one_partition() -> None:  # rule T9.16
    host = await Host().started()
    names = {host.manager.partition_of(name): name for name in ("a", "b")}
    for name in names.values():
        host.put(transactional_id=name)
    host.resign(0)
    assert [m.transactional_id for m in host.manager.all_ids()] == [names[1]]


@case("TSM-4")
async def test_a_resignation_drops_a_load() -> None:  # rule T9.16
    host = await loaded(("a", VALUES))
    host.resign(0, 8)
    await host.work()
    assert not host.manager.is_loading
    assert host.init("a") == refusal(E.NOT_COORDINATOR)


async def test_the_load_of_an_older_epoch_is_dropped() -> None:  # rule T9.16
    host = await loaded(("a", VALUES))
    host.lead(0, 9)
    await host.manager._work.do_next()
    assert host.manager.is_loading
    await host.work()
    assert host.manager.is_current("a", 9)


@case("TSM-18")
@case("TSM-19")
@pytest.mark.parametrize("state", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
async def test_a_load_sends_markers(state: S) -> None:  # rule T9.14
    host = await loaded(("a", ONGOING._replace(state=state)), ("b", ONGOING))
    await host.work()
    (ending,) = host.markers.endings
    assert (ending.transactional_id, ending.committed) == ("a", state is S.PREPARE_COMMIT)
    assert (set(ending.remaining), ending.coordinator_epoch) == (PARTITIONS, COORDINATOR_EPOCH)
    host.markers.write()
    assert host.log.written[-1][1] == ONGOING._replace(
        state=state.completed, partitions=frozenset(), last_update_ms=host.now
    )


@case("TSM-32")
@case("TSM-34")
@pytest.mark.parametrize(
    ("key", "value", "found"),
    [(b"\x7f\xff\0\1x", b"", {"a", "z"}), (None, b"", {"a"}), (b"\0\0\0\1x", b"\0\2", {"a"})],
)
async def test_what_cannot_be_read(key: bytes | None, value: bytes, found: set[str]) -> None:  # rules T9.1, T9.13
    bad = write_records(RecordBatch.of(Record(offset=0, key=key, value=value)))
    host = await loaded(("a", VALUES), extra=bad)
    host.log.put_values(0, "z", VALUES)
    await host.work()
    assert not host.manager.is_loading
    assert {m.transactional_id for m in host.manager.all_ids()} == found


async def test_a_load_without_a_log() -> None:  # rule T9.17
    host = await loaded()
    host.log.limit = None
    await host.work()
    assert host.manager.is_current("a", COORDINATOR_EPOCH)


@case("TSM-6")
@case("TSM-7")
@case("TSM-8")
@case("TSM-10")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (E.NONE, E.NONE),
        (E.UNKNOWN_TOPIC_OR_PARTITION, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.RECORD_LIST_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.CORRUPT_MESSAGE, E.CORRUPT_MESSAGE),
    ],
)
async def test_the_end_of_an_append(code: E, error: E) -> None:  # rules T2.4, T9.7
    host = await Host().started()
    metadata = host.put()
    before = metadata.values
    host.log.held = True
    parked = host.add()
    assert (metadata.values, metadata.pending, host.add()) == (before, S.ONGOING, E.CONCURRENT_TRANSACTIONS)
    host.log.release(code)
    assert parked.answer is error
    assert metadata.pending is None
    assert (metadata.values == before) == (code is not E.NONE)


@case("TSM-9")
@case("TSM-12")
@pytest.mark.parametrize("moved", ["resigned", "loading", "loaded", "gone"])
async def test_what_changed_while_it_was_appended(moved: str) -> None:  # rule T9.8
    host = await Host().started()
    metadata = host.put()
    number = host.manager.partition_of(ID)
    host.log.held = True
    parked = host.add()
    if moved == "gone":
        del host.manager.owned(ID).ids[ID]
    else:
        host.resign(number, 8)
    if moved.startswith("load"):
        host.lead(number, 9)
    if moved == "loaded":
        await host.work()
    host.log.release()
    assert parked.answer is (E.COORDINATOR_LOAD_IN_PROGRESS if moved == "loading" else E.NOT_COORDINATOR)
    assert metadata.values.state is S.EMPTY


@case("TSM-11")
async def test_a_completion_that_is_retried_stays_pending() -> None:  # rules T6.12, T6.13
    host = await Host().started()
    metadata = host.put(S.ONGOING)
    host.end()
    for code, pending, retried in (
        (E.NOT_ENOUGH_REPLICAS, S.COMPLETE_COMMIT, 1),
        (E.NOT_LEADER_OR_FOLLOWER, None, 1),
    ):
        host.log.error = code
        host.markers.write()
        assert (metadata.values.state, metadata.pending, len(host.markers.retried)) == (
            S.PREPARE_COMMIT, pending, retried,
        )  # fmt: skip


@case("TSM-13")
async def test_nothing_is_applied_that_was_not_pending() -> None:  # rule T2.7
    host = await Host().started()
    metadata = host.put()
    host.log.held = True
    parked = host.add()
    metadata.pending = None
    host.log.release()
    assert parked.answer is E.UNKNOWN_SERVER_ERROR


@case("TSM-17")
async def test_who_is_timed_out() -> None:  # rule T8.1
    host = await Host().started()
    for state in (S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        host.put(state, transactional_id=state.label, start_ms=0)
    host.coordinator.abort_timed_out()
    assert [name for name, _ in host.log.written] == ["Ongoing"]


@case("TSM-20")
@case("TSM-21")
@case("TSM-22")
@case("TSM-23")
@case("TSM-30")
@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
async def test_expired_ids(state: S) -> None:  # rules T8.8 to T8.10
    host = await Host(**OLD).started()
    old = host.put(state, producer_epoch=-1 if state is S.EMPTY else 3)
    host.now += 100
    host.put(state, transactional_id="young", last_update_ms=host.now - 99)
    host.log.error = E.NOT_ENOUGH_REPLICAS
    host.manager.remove_expired()
    assert (len(list(host.manager.all_ids())), old.pending) == (2, None)
    host.log.error, host.log.held = E.NONE, True
    host.manager.remove_expired()
    assert host.init() == refusal(E.CONCURRENT_TRANSACTIONS)
    host.log.release()
    assert [m.transactional_id for m in host.manager.all_ids()] == ["young"]
    assert host.log.written == [(ID, None)]


@case("TSM-24")
@case("TSM-25")
@case("TSM-26")
@pytest.mark.parametrize("state", [S.ONGOING, S.PREPARE_ABORT, S.PREPARE_COMMIT])
async def test_transactions_do_not_expire(state: S) -> None:  # rule T8.8
    host = await Host(**OLD).started()
    host.put(state, last_update_ms=0)
    host.manager.remove_expired()
    assert not host.log.timeouts


@case("TSM-27")
@case("TSM-28")
@case("TSM-29")
async def test_tombstones_in_batches() -> None:  # rules T8.9, T8.11
    host = await Host(partitions=1, **OLD).started()
    for i in range(1000):
        host.put(transactional_id=f"id-{i}", last_update_ms=0)
    host.log.limit = None
    host.manager.remove_expired()
    assert not host.log.timeouts, "no log"
    sizes: list[int] = []
    append = host.log.append

    def measured(partition: int, records: bytes, *args: Any) -> None:
        sizes.append(len(records))
        append(partition, records, *args)

    host.log.append = measured  # type: ignore[method-assign]
    host.log.limit, host.log.error = 16, E.MESSAGE_TOO_LARGE
    host.manager.remove_expired()
    assert (len(sizes), len(list(host.manager.all_ids()))) == (1000, 1000)
    sizes.clear()
    host.log.limit, host.log.error = 512, E.NONE
    host.manager.remove_expired()
    assert not list(host.manager.all_ids())
    assert 1 < len(sizes) < 1000
    assert max(sizes) <= 512


async def test_an_id_that_fits_no_record() -> None:
    host = await Host(partitions=1).started()
    name = "x" * 40_000
    assert host.init(name) == refusal(E.UNKNOWN_SERVER_ERROR)
    assert host.metadata(name).pending is None


async def test_an_append_that_has_not_ended_parks_its_request() -> None:  # rule T2.4
    host = await Host().started()
    host.log.held = True
    parked = host.init()
    assert isinstance(parked, Result)
    assert host.init() == refusal(E.CONCURRENT_TRANSACTIONS)
    host.log.release()
    assert tuple(parked.answer) == (E.NONE, 100, 0)
    host.log.held = False
    assert host.add([A], pid=100, epoch=0) is E.NONE
