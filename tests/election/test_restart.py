"""A ZooKeeper of the test's own, stopped and started again under a leader and a retriever."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import trio

from kce.election.session import ConnectionState, ElectionSession
from kce.harness.embedded_zookeeper import embedded_zookeeper
from kce.harness.guard import Guard
from kce.zookeeper.store.kazoo import KazooStore
from tests.election.support import contend, listen

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("timeout_ms", "outlives"), [(30_000, True), (1000, False)])
async def test_zookeeper_is_restarted(
    tmp_path: Path, nursery: trio.Nursery, timeout_ms: int, outlives: bool
) -> None:  # rules E7.2, E7.4, E7.6, E7.11
    """Within the session and after it: one leads again, and the retriever gets no leader, then the new one.

    A server that starts may drop a connection without closing it (NullPointerException in NIOServerCnxn.close). Its
    client connects again after the session's timeout by the number of servers: hence the same server twice.
    """
    guard = Guard()
    try:
        async with embedded_zookeeper(tmp_path, guard) as address:
            session, other = [
                ElectionSession(
                    await KazooStore.connect(
                        f"{address},{address}", session_timeout_ms=timeout_ms, connection_timeout_ms=10_000
                    ),
                    nursery,
                )
                for _ in range(2)
            ]
            contender = await contend(session, nursery, "leader:1")
            listener = await listen(other, nursery)
            first = await contender.lead()
            await listener.until(lambda: listener.reports)
            old = session.session_id
            states: list[ConnectionState] = []
            session.subscribe(states.append)
        await contender.until(lambda: not contender.leads)
        await listener.until(lambda: listener.leader == (None, None))
        if not outlives:
            with trio.fail_after(60):
                while ConnectionState.LOST not in states:
                    await trio.lowlevel.checkpoint()
        async with embedded_zookeeper(tmp_path, guard, port=int(address.rpartition(":")[2])):
            await contender.until(lambda: len(contender.granted) == 2)
            second = contender.granted[1]
            assert second != first
            await listener.until(lambda: listener.leader == ("leader:1", second))
            assert contender.calls == ["grant", "revoke", "grant"]
            assert (ConnectionState.LOST in states) is not outlives
            assert session.session_id == old or not outlives  # the server keeps sessions, but restarts its counter
            # nobody was announced that did not lead; the first one again after each reconnection, from what was stored
            leaders = [pair for pair in listener.reports if pair != (None, None)]
            assert [pair for pair, _ in itertools.groupby(leaders)] == [("leader:1", first), ("leader:1", second)]
            for used in (session, other):
                await used.aclose()
    finally:
        guard.close()
