"""Effects of the connection's states on contenders and retrievers (section 7, E8.10; FCH, FRC).

Covers: kce.election.session.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.election.information import EMPTY, LeaderInformation
from kce.election.java_stream import encode_leader_node
from kce.election.session import ConnectionState, ElectionSession
from kce.election.zookeeper import ZooKeeperLeaderRetrievalDriver
from kce.zookeeper.store import Check, Create, Op, OpResult, SetData, StoreError, value
from tests.election.conftest import SESSION_TIMEOUT_MS, Backend, Memory
from tests.election.support import COMPONENT, PATHS, Changing, Contender, Retrieved, contend, latch_of, listen

LEADER = PATHS.leader_path(COMPONENT)
LONG_MS = 20_000
ID = uuid4()
ONE, TWO = LeaderInformation(ID, "one:1"), LeaderInformation(ID, "two:1")


class States(Changing):
    def __init__(self, session: ElectionSession) -> None:
        super().__init__()
        self.seen: list[ConnectionState] = []
        self.at: dict[ConnectionState, float] = {}
        session.subscribe(self._changed)

    def _changed(self, state: ConnectionState) -> None:
        self.seen.append(state)
        self.at[state] = trio.current_time()
        self.changed()

    async def reach(self, state: ConnectionState) -> None:
        await self.until(lambda: self.seen and self.seen[-1] is state)


SUSPENDED, RECONNECTED, LOST = ConnectionState.SUSPENDED, ConnectionState.RECONNECTED, ConnectionState.LOST


async def put(session: ElectionSession, information: LeaderInformation) -> None:
    """Write ``information`` as a leader in another process does."""
    data = encode_leader_node(information.address or "", information.session_id or ID)
    if (await session.store.exists([LEADER]))[0] is None:
        await session.make_parents(LEADER)
        value((await session.store.write([Create(LEADER, data)]))[0])
    else:
        value((await session.store.write([SetData(LEADER, data)]))[0])


# states


async def test_states_are_reported_once(backend: Backend) -> None:  # rules E7.8, E7.12
    session = await backend.session(session_timeout_ms=LONG_MS)
    states = States(session)
    assert session.state is ConnectionState.CONNECTED
    session_id = session.session_id
    for _ in range(2):
        await backend.disconnect(session)
        await states.reach(SUSPENDED)
        assert session.session_id == session_id
        await backend.reconnect(session)
        await states.reach(RECONNECTED)
    await backend.expire(session)
    await states.until(lambda: states.seen[-2:] == [LOST, RECONNECTED])
    # ZooKeeper breaks the connection of a session that it ends
    assert states.seen in (
        [SUSPENDED, RECONNECTED] * 2 + [LOST, RECONNECTED],
        [SUSPENDED, RECONNECTED] * 2 + [SUSPENDED, LOST, RECONNECTED],
    )


async def test_a_silent_server_is_lost_after_the_session_timeout(backend: Backend) -> None:  # rules E7.6, E7.13
    session = await backend.session(session_timeout_ms=1000)
    states = States(session)
    await backend.disconnect(session)
    await states.reach(LOST)
    waited = states.at[LOST] - states.at[SUSPENDED]
    assert states.seen == [SUSPENDED, LOST]
    assert waited >= 0.95
    old = session.session_id
    await backend.reconnect(session)
    await states.reach(RECONNECTED)
    assert states.seen == [SUSPENDED, LOST, RECONNECTED]
    if isinstance(backend, Memory):  # whose sessions end only on command; ZooKeeper's end at a tick after the timeout
        assert session.session_id == old


async def test_a_connection_that_comes_back_in_time_is_not_lost(memory: Memory, autojump_clock: MockClock) -> None:
    session = await memory.session()
    states = States(session)
    for _ in range(3):
        await memory.disconnect(session)
        await trio.sleep(SESSION_TIMEOUT_MS / 1000 - 0.001)
        await memory.reconnect(session)
    await trio.sleep(60)
    assert states.seen == [SUSPENDED, RECONNECTED] * 3
    await memory.disconnect(session)
    begin = trio.current_time()
    await states.reach(LOST)
    assert trio.current_time() - begin == pytest.approx(SESSION_TIMEOUT_MS / 1000)


async def test_closing_the_session_reports_nothing(backend: Backend) -> None:  # rule E7.14
    session = await backend.session()
    states = States(session)
    await session.aclose()
    await wait_all_tasks_blocked()
    assert states.seen == []


# election


@pytest.mark.flink("FCH-1")
async def test_a_suspended_leader_is_revoked(backend: Backend, nursery: trio.Nursery) -> None:  # rules E7.2, E7.4
    session = await backend.session(session_timeout_ms=LONG_MS)
    contender = await contend(session, nursery, "leader:1")
    first = await contender.lead()
    states = States(session)
    await backend.disconnect(session)
    await states.reach(SUSPENDED)
    with trio.fail_after(LONG_MS / 2000):  # before its session could end
        await contender.until(lambda: not contender.leads)
    assert contender.service is not None
    assert not contender.service.has_leadership(first)
    node = latch_of(contender)._node
    await backend.reconnect(session)
    second = await contender.lead()
    assert second != first
    assert contender.calls == ["grant", "revoke", "grant"]
    assert latch_of(contender)._node == node  # E11.1: it kept its place
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.leader == ("leader:1", second))


@pytest.mark.flink("FCH-2")
async def test_suspension_is_tolerated(backend: Backend, nursery: trio.Nursery) -> None:  # rules E7.3, E7.5, E11.6
    session = await backend.session(session_timeout_ms=LONG_MS)
    contender = await contend(session, nursery, "leader:1", tolerate=True)
    session_id = await contender.lead()
    states = States(session)
    checks = latch_of(contender).checks
    await backend.disconnect(session)
    await states.reach(SUSPENDED)
    assert contender.service is not None
    assert contender.service.has_leadership(session_id)
    await backend.reconnect(session)
    await states.reach(RECONNECTED)
    with trio.fail_after(60):
        while latch_of(contender).checks == checks:
            await trio.lowlevel.checkpoint()
    await session.store.exists(["/"])
    assert contender.calls == ["grant"]
    assert contender.service.has_leadership(session_id)


@pytest.mark.flink("FCH-3")
async def test_a_lost_leader_is_revoked_although_suspension_is_tolerated(
    backend: Backend, nursery: trio.Nursery
) -> None:
    session = await backend.session(session_timeout_ms=1000)
    contender = await contend(session, nursery, "leader:1", tolerate=True)
    await contender.lead()
    states = States(session)
    await backend.disconnect(session)
    await states.reach(SUSPENDED)
    assert contender.leads
    await contender.until(lambda: contender.calls == ["grant", "revoke"])
    assert states.seen == [SUSPENDED, LOST]


async def test_an_expired_leader_starts_over(backend: Backend, nursery: trio.Nursery) -> None:  # rules E4.12, E7.7
    session = await backend.session()
    contender = await contend(session, nursery, "leader:1")
    first = await contender.lead()
    node, owner = latch_of(contender)._node, session.session_id
    await backend.expire(session)
    await contender.until(lambda: len(contender.granted) == 2)
    assert contender.calls == ["grant", "revoke", "grant"]
    assert contender.granted[1] != first
    assert session.session_id != owner
    assert latch_of(contender)._node != node
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.leader == ("leader:1", contender.granted[1]))
    (stat,) = await session.store.exists([LEADER])
    assert stat is not None
    assert stat.ephemeral_owner == session.session_id


async def test_another_leads_while_the_first_is_cut_off(backend: Backend, nursery: trio.Nursery) -> None:
    """After its reconnection the first joins the end of the queue."""
    session, other = await backend.session(session_timeout_ms=1000), await backend.session(session_timeout_ms=LONG_MS)
    first = await contend(session, nursery, "first:1")
    await first.lead()
    second = await contend(other, nursery, "second:1")
    listener = await listen(other, nursery)
    await backend.disconnect(session)
    await first.until(lambda: not first.leads)
    if isinstance(backend, Memory):
        backend.server.tree.end_session(session.store)  # type: ignore[arg-type]
    session_id = await second.lead()
    await listener.until(lambda: listener.leader == ("second:1", session_id))
    if isinstance(backend, Memory):
        await backend.expire(session)
    await backend.reconnect(session)
    latch = latch_of(first)
    with trio.fail_after(60):
        while (await other.store.get_children([latch.path]))[0] != sorted(
            [latch._node or "", latch_of(second)._node or ""]
        ):
            await trio.lowlevel.checkpoint()
    assert first.calls == ["grant", "revoke"]
    assert second.calls == ["grant"]


async def test_a_contender_that_starts_without_connection_joins_later(
    memory: Memory, nursery: trio.Nursery
) -> None:  # rule E1.13
    session = await memory.session()
    await memory.disconnect(session)
    contender = await contend(session, nursery, "leader:1")
    await wait_all_tasks_blocked()
    assert contender.calls == []
    await memory.reconnect(session)
    await contender.lead()


async def test_stop_without_connection_does_not_wait_and_the_node_is_deleted_later(
    memory: Memory, nursery: trio.Nursery
) -> None:  # rule E1.12: guaranteed deletion
    session, other = await memory.session(), await memory.session()
    for tolerate in (False, True):
        contender = await contend(session, nursery, "leader:1", tolerate=tolerate)
        await contender.lead()
        latch = latch_of(contender)
        await memory.disconnect(session)
        assert contender.service is not None
        with trio.fail_after(60):
            await contender.service.stop()
        assert contender.calls == ["grant", "revoke"]
        assert (await other.store.get_children([latch.path]))[0] == [latch._node]
        await memory.reconnect(session)
        await wait_all_tasks_blocked()
        assert (await other.store.get_children([latch.path]))[0] == []


async def test_a_write_that_waits_for_the_connection_is_not_made_once_leadership_is_lost(
    memory: Memory, nursery: trio.Nursery
) -> None:  # rules E4.10, E11.18
    session, other = await memory.session(), await memory.session()
    contender = await contend(session, nursery, "")
    session_id = await contender.lead()
    assert contender.service is not None
    async with trio.open_nursery() as confirming:
        confirming.start_soon(contender.service.confirm_leadership, session_id, "late:1")
        await wait_all_tasks_blocked(0)
        found = (await other.store.exists([LEADER]))[0]
    assert found is not None
    write, broken = session.store.write, trio.Event()

    async def breaks(ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        if ops[0].path == LEADER and not broken.is_set():
            broken.set()
            await memory.disconnect(session)
        return await write(ops, fence=fence)

    session.store.write = breaks  # type: ignore[method-assign]
    await other.store.write([SetData(LEADER, b"")])  # the correction is being written when the connection breaks
    await wait_all_tasks_blocked()
    assert broken.is_set()
    await put(other, ONE)
    await memory.reconnect(session)
    await wait_all_tasks_blocked()
    (read,) = await other.store.get_data([LEADER])
    assert getattr(read, "data", None) == encode_leader_node("one:1", ID)  # granted again, nothing confirmed (E5.2)
    assert contender.calls == ["grant", "revoke", "grant"]


# retrieval


@pytest.mark.flink("FRC-1")
async def test_a_retrieval_driver_reports_empty_without_having_seen_a_leader(backend: Backend) -> None:  # rule E8.10
    session = await backend.session(session_timeout_ms=LONG_MS)
    states, reported = States(session), Retrieved()
    driver = ZooKeeperLeaderRetrievalDriver(session, LEADER, reported)
    await session.store.exists([LEADER])
    assert reported.events == []
    await backend.disconnect(session)
    await reported.until(lambda: reported.events)
    assert reported.events == [EMPTY]
    await backend.reconnect(session)
    await states.reach(RECONNECTED)
    await driver.aclose()


@pytest.mark.flink("FRC-2")
async def test_a_retriever_forgets_the_leader_with_the_connection(
    backend: Backend, nursery: trio.Nursery
) -> None:  # rules E7.9, E11.7
    session, other = await backend.session(session_timeout_ms=LONG_MS), await backend.session()
    await put(other, ONE)
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.reports)
    await backend.disconnect(session)
    await listener.until(lambda: len(listener.reports) == 2)
    assert listener.reports == [("one:1", ID), (None, None)]


@pytest.mark.flink("FRC-3")
async def test_a_tolerant_retriever_keeps_the_leader(backend: Backend, nursery: trio.Nursery) -> None:
    session, other = await backend.session(session_timeout_ms=1000), await backend.session()
    await put(other, ONE)
    listener = await listen(session, nursery, tolerate=True)
    await listener.until(lambda: listener.reports)
    states = States(session)
    await backend.disconnect(session)
    await states.reach(SUSPENDED)
    await wait_all_tasks_blocked()
    assert listener.reports == [("one:1", ID)]
    await listener.until(lambda: listener.leader == (None, None))  # rule E7.10
    assert states.seen == [SUSPENDED, LOST]


@pytest.mark.flink("FRC-4")
async def test_the_same_leader_is_announced_again(backend: Backend, nursery: trio.Nursery) -> None:  # E7.11, E11.8
    session, other = await backend.session(session_timeout_ms=LONG_MS), await backend.session()
    await put(other, ONE)
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.reports)
    await backend.disconnect(session)
    await listener.until(lambda: listener.leader == (None, None))
    await backend.reconnect(session)
    await listener.until(lambda: len(listener.reports) == 3)
    assert listener.reports == [("one:1", ID), (None, None), ("one:1", ID)]


@pytest.mark.flink("FRC-5")
async def test_a_new_leader_is_announced_after_the_reconnect(backend: Backend, nursery: trio.Nursery) -> None:
    """Flink announces the old leader first, from its cache; this does not (rule E7.11)."""
    session, other = (
        await backend.session(session_timeout_ms=LONG_MS),
        await backend.session(session_timeout_ms=LONG_MS),
    )
    await put(other, ONE)
    listener = await listen(session, nursery)
    await listener.until(lambda: listener.reports)
    await backend.disconnect(session)
    await listener.until(lambda: listener.leader == (None, None))
    await put(other, TWO)
    await backend.reconnect(session)
    await listener.until(lambda: len(listener.reports) == 3)
    assert listener.reports == [("one:1", ID), (None, None), ("two:1", ID)]


async def test_states_are_logged(memory: Memory, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    session = await memory.session()
    contender: Contender = await contend(session, nursery, "leader:1")
    await contender.lead()
    caplog.clear()
    caplog.set_level("INFO")
    await memory.disconnect(session)
    await memory.reconnect(session)
    await memory.expire(session)
    logged = [r.message for r in caplog.records if "the connection to ZooKeeper is" in r.message]
    assert [text.rpartition(" ")[2] for text in logged] == ["suspended", "reconnected", "lost", "reconnected"]
