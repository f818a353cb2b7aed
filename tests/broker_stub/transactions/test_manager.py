"""What the manager of transactional ids does in the background, and when.

Covers: broker_stub/transactions/manager.py.
"""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.transactions.manager import TransactionManager
from kce.wire import ErrorCode as E
from tests.broker_stub.transactions.support import ID, START_MS, Host, S


async def test_what_happens_regularly(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """First after one interval (rules T8.1, T8.7)."""
    host = Host(
        transaction_abort_timed_out_transaction_cleanup_interval_ms="70000",
        transaction_remove_expired_transaction_cleanup_interval_ms="50000",
    )
    began, times = trio.current_time(), []

    def note(what: str) -> None:
        times.append((what, round(trio.current_time() - began)))

    host.manager.abort_timed_out = lambda: note("abort")
    monkeypatch.setattr(TransactionManager, "remove_expired", lambda manager: note("expire"))
    with trio.move_on_after(145):
        await host.manager.run()
    assert times == [("expire", 50), ("abort", 70), ("expire", 100), ("abort", 140)]


async def test_a_load_is_measured_from_its_order(mock_clock: MockClock) -> None:  # rule T9.18
    host = Host(owns=False, partitions=2)
    host.lead(0, 4)
    assert (host.manager.is_loading, math.isnan(host.manager.load_times.max)) == (True, True)
    host.now += 70
    await host.work()
    assert (host.manager.is_loading, host.manager.load_times.max) == (False, 70)
    host.lead(1, 5)
    host.resign(1)
    await host.work()
    assert (host.manager.is_loading, sorted(host.manager._owned)) == (False, [0])
    assert host.manager._owned[0].coordinator_epoch == 4


async def test_what_an_expiry_leaves_alone() -> None:  # rules T8.8 to T8.11
    host = await Host(partitions=2, transactional_id_expiration_ms="1000").started()
    kept = host.put(S.EMPTY, transactional_id="kept", last_update_ms=START_MS + 1)
    gone = host.put(S.EMPTY, transactional_id="gone")
    changed = host.put(S.COMPLETE_ABORT, transactional_id="changed")
    host.now = START_MS + 1000
    host.log.held = True
    host.manager.remove_expired()
    assert [metadata.pending for metadata in (kept, gone, changed)] == [None, S.DEAD, S.DEAD]
    changed.values = host.put(S.EMPTY, transactional_id="x", producer_epoch=9).values
    assert set(host.log.timeouts) == {30_000}
    host.log.release()
    assert changed.pending is None
    assert {metadata.transactional_id for metadata in host.manager.all_ids()} == {"kept", "changed", "x"}
    assert sorted(host.log.written, key=str) == [("changed", None), ("gone", None)]


@pytest.mark.parametrize("error", [E.NOT_ENOUGH_REPLICAS, E.NONE])
async def test_an_expiry_that_ends_after_a_resignation(error: E) -> None:  # rule T8.11
    host = await Host(partitions=1, transactional_id_expiration_ms="1000").started()
    metadata = host.put(S.EMPTY)
    host.now += 1000
    host.log.held = True
    host.manager.remove_expired()
    owned = host.manager._owned[0]
    host.resign(0)
    host.lead(0, 8)
    await host.work()
    host.log.release(error)
    assert (metadata.pending, list(owned.ids)) == (S.DEAD, [ID])


async def test_nothing_expires_where_there_is_no_log_or_a_load() -> None:  # rule T8.8
    host = await Host(partitions=2, transactional_id_expiration_ms="1000").started()
    other = next(str(i) for i in range(99) if host.manager.partition_of(str(i)) != host.manager.partition_of(ID))
    host.put(S.EMPTY)
    host.put(S.EMPTY, transactional_id=other)
    host.now += 1000
    host.log.limit = None
    host.manager.remove_expired()
    assert host.log.written == []
    host.log.limit = 1000
    host.lead(host.manager.partition_of(ID), 8)
    host.manager.remove_expired()
    assert host.log.written == [(other, None)]
