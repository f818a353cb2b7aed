"""The races of section 11, step by step, in the memory store."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.election.information import LeaderInformation
from kce.election.java_stream import encode_leader_node
from kce.election.latch import LeaderLatch
from kce.election.leader_node import WatchedNode, write_leader_node
from kce.election.service import MultipleComponentLeaderElectionService
from kce.election.session import ElectionSession
from kce.zookeeper.store import (
    Create,
    Delete,
    NodeData,
    NoNode,
    Op,
    OpResult,
    SessionExpired,
    SetData,
    StoreError,
    WatchEvent,
    value,
)
from kce.zookeeper.store.memory import MemoryStore
from tests.election.conftest import Backend, Memory
from tests.election.support import COMPONENT, PATHS, Changing, Contender, ManualBackend, contend, latch_of

LATCH, LEADER = PATHS.latch_path(COMPONENT), PATHS.leader_path(COMPONENT)


class Latch(Changing):
    """A latch, and its reports."""

    def __init__(self, session: ElectionSession, *, tolerate: bool = False) -> None:
        super().__init__()
        self.reports: list[bool] = []
        self.errors: list[Exception] = []
        self.latch = LeaderLatch(
            session, LATCH, on_change=self._change, on_error=self.errors.append,
            tolerate_suspended_connections=tolerate, retry_wait_s=0.1,
        )  # fmt: skip
        self.latch.start()

    def _change(self, leads: bool) -> None:
        self.reports.append(leads)
        self.changed()


async def joined(session: ElectionSession) -> Latch:
    made = Latch(session)
    await wait_all_tasks_blocked()
    return made


async def names(session: ElectionSession) -> list[str]:
    return value((await session.store.get_children([LATCH]))[0])


def sequence(name: str | None) -> int:
    return int((name or "").rpartition("-")[2])


async def test_two_that_lose_their_predecessor_do_not_chase_each_other(memory: Memory) -> None:  # rule E11.1
    sessions = [await memory.session() for _ in range(4)]
    latches = [await joined(s) for s in sessions]
    before = [latch.latch._node for latch in latches]
    checks = [latch.latch.checks for latch in latches]
    await latches[1].latch.aclose()
    await latches[2].latch.aclose()
    for session in (sessions[0], sessions[3]):
        await memory.disconnect(session)
        await memory.reconnect(session)
    await wait_all_tasks_blocked()
    assert [latches[i].latch._node for i in (0, 3)] == [before[0], before[3]]
    assert latches[3].latch.checks - checks[3] <= 5
    assert [latches[i].latch.has_leadership for i in (0, 3)] == [True, False]


async def test_a_predecessor_that_goes_between_listing_and_watching(memory: Memory) -> None:  # rules E1.11, E11.1
    first, session = await joined(await memory.session()), await memory.session()
    read = session.store.get_data

    async def too_late(paths: Sequence[str], *, watch: Sequence[bool] | bool = False) -> list[NodeData | StoreError]:
        await first.latch.aclose()
        return await read(paths, watch=watch)

    session.store.get_data = too_late  # type: ignore[method-assign]
    second = await joined(session)
    assert second.reports == [True]
    assert sequence(second.latch._node) == 1  # its first node


async def test_the_reply_to_a_create_is_lost(memory: Memory) -> None:  # rules E1.8, E11.2
    """The resent create made two nodes: the first is ours, the second is deleted."""
    session = await memory.session()
    write = session.store.write

    async def twice(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        if isinstance(ops[0], Create) and ops[0].sequential:
            await write(ops)
        return await write(ops)

    session.store.write = twice  # type: ignore[method-assign]
    latch = await joined(session)
    assert latch.reports == [True]
    (left,) = await names(session)
    assert sequence(left) == 0
    await latch.latch.aclose()
    assert await names(session) == []


async def test_a_late_reply_of_an_earlier_session_is_not_ours(memory: Memory) -> None:  # rule E11.2
    """The create is carried out in the new session, its reply belongs to an attempt of the old one."""
    session = await memory.session()
    store = session.store
    assert isinstance(store, MemoryStore)
    write, late = store.write, []

    async def overtaken(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        if isinstance(ops[0], Create) and ops[0].sequential and not late:
            late.append(ops)
            answers = await write(ops)
            if isinstance(answers[0], StoreError):  # the directory is not there yet
                late.clear()
                return answers
            memory.server.expire(store)
            await write(ops)  # as if it had been under way
            return answers
        return await write(ops)

    store.write = overtaken  # type: ignore[method-assign]
    latch = await joined(session)
    assert latch.reports == [True]
    (left,) = await names(session)
    assert left == latch.latch._node
    (stat,) = await store.exists([f"{LATCH}/{left}"])
    assert stat is not None
    assert stat.ephemeral_owner == session.session_id


async def test_the_node_of_a_dead_session_is_first(memory: Memory) -> None:  # rules E4.12, E11.3
    session, other = await memory.session(), await memory.session()
    store = session.store
    listed: list[str] = []

    async def exists(paths: Sequence[str], *, watch: bool = False) -> list[object]:
        """Once the node is one that another session owns."""
        if not listed:
            listed.append(paths[0])
            await other.store.multi([[Delete(paths[0]), Create(paths[0], ephemeral=True)]])
        return await MemoryStore.exists(store, paths, watch=watch)  # type: ignore[arg-type,return-value]

    store.exists = exists  # type: ignore[method-assign,assignment]
    latch = await joined(session)
    assert latch.reports == [True]
    assert f"{LATCH}/{latch.latch._node}" != listed[0]
    assert await names(session) == [latch.latch._node]


async def test_the_directory_is_gone_after_a_reconnect(memory: Memory) -> None:  # rule E11.4
    session, other = await memory.session(), await memory.session()
    latch = await joined(session)
    await memory.disconnect(session)
    await other.delete_tree(LATCH)
    await memory.reconnect(session)
    await wait_all_tasks_blocked()
    assert latch.reports == [True, False, True]
    assert await names(other) == [latch.latch._node]


async def test_a_leader_whose_node_is_deleted_withdraws(backend: Backend) -> None:  # rule E11.5
    session, other = await backend.session(), await backend.session()
    first = Latch(session)
    await first.until(lambda: first.reports == [True])
    second = Latch(other)
    while not second.latch._node:
        await trio.lowlevel.checkpoint()
    await other.store.write([Delete(f"{LATCH}/{first.latch._node}")])
    await second.until(lambda: second.reports == [True])
    await first.until(lambda: first.reports == [True, False])
    with trio.fail_after(60):
        while len(await names(other)) != 2:
            await trio.lowlevel.checkpoint()
    assert first.reports == [True, False]


async def test_a_leader_whose_check_finds_the_session_expired_withdraws(memory: Memory) -> None:
    """Before the session itself reports it."""
    session, other = await memory.session(), await memory.session()
    latch = await joined(session)
    assert latch.reports == [True]

    async def expired(*_: object) -> list[list[str] | StoreError]:
        raise SessionExpired

    session.store.get_children = expired  # type: ignore[method-assign,assignment]
    await other.delete_if_there(f"{LATCH}/{latch.latch._node}")
    await wait_all_tasks_blocked()
    assert latch.reports == [True, False]
    assert not latch.latch.has_leadership


async def test_leadership_is_withdrawn_before_another_node_is_made(memory: Memory) -> None:  # rule E11.5
    session, other = await memory.session(), await memory.session()
    latch = await joined(session)
    write, leading = session.store.write, []

    async def watched(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        leading.append(latch.latch.has_leadership)
        return await write(ops)

    session.store.write = watched  # type: ignore[method-assign]
    await other.store.write([Delete(f"{LATCH}/{latch.latch._node}")])
    await wait_all_tasks_blocked()
    assert True not in leading
    assert latch.reports == [True, False, True]


async def test_a_leader_that_is_not_first_any_more_withdraws(memory: Memory) -> None:  # rules E7.5, E11.5
    session, other = await memory.session(), await memory.session()
    latch = Latch(session, tolerate=True)
    await wait_all_tasks_blocked()
    await other.store.write([Create(f"{LATCH}/!")])
    await memory.disconnect(session)
    await memory.reconnect(session)
    await wait_all_tasks_blocked()
    assert latch.reports == [True, False]


async def test_data_of_the_predecessor_is_ignored(memory: Memory) -> None:  # rule E1.11
    session, other = await memory.session(), await memory.session()
    first, second = await joined(session), await joined(other)
    checks = second.latch.checks
    for _ in range(3):
        await session.store.write([SetData(f"{LATCH}/{first.latch._node}", b"x")])
        await wait_all_tasks_blocked()
    assert second.latch.checks == checks
    await first.latch.aclose()
    await wait_all_tasks_blocked()
    assert second.reports == [True]


async def test_children_that_are_no_contenders_of_ours(memory: Memory) -> None:  # rule E1.9
    """Sorted by their whole name, hence after the digits; one that sorts before them is a predecessor."""
    session, other = await memory.session(), await memory.session()
    await other.make_parents(f"{LATCH}/x")
    await other.store.write(
        [Create(f"{LATCH}/zoo"), Create(f"{LATCH}/!"), Create(f"{LATCH}/a-latch-b-latch-0000000009")]
    )
    latch = await joined(session)
    assert latch.reports == []
    await other.store.write([Delete(f"{LATCH}/!")])
    await wait_all_tasks_blocked()
    assert latch.reports == [True]  # 3, before 9


async def test_a_store_that_refuses_is_reported_and_retried(memory: Memory) -> None:
    session = await memory.session()
    write, refusals = session.store.write, [StoreError("NoAuth")]

    async def refuse(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        return [refusals.pop()] if refusals else await write(ops)

    session.store.write = refuse  # type: ignore[method-assign]
    latch = Latch(session)
    await latch.until(lambda: latch.reports)
    assert latch.reports == [True]
    assert [str(e) for e in latch.errors] == ["NoAuth"]


async def test_a_leader_whose_check_is_refused_withdraws_until_it_is_not(memory: Memory) -> None:
    session, other = await memory.session(), await memory.session()
    latch = await joined(session)
    get_children, refusals = session.store.get_children, [StoreError("NoAuth")]

    async def refuse(paths: Sequence[str], *, watch: bool = False) -> list[object]:
        return [refusals.pop()] if refusals else list(await get_children(paths, watch=watch))

    session.store.get_children = refuse  # type: ignore[method-assign,assignment]
    await other.store.write([SetData(f"{LATCH}/{latch.latch._node}", b"x"), Delete(f"{LATCH}/{latch.latch._node}")])
    await latch.until(lambda: latch.reports == [True, False, True])
    assert [str(e) for e in latch.errors] == ["NoAuth"]


async def test_a_predecessor_that_cannot_be_read_is_reported(memory: Memory) -> None:
    session, other = await memory.session(), await memory.session()
    first = await joined(session)

    async def refuse(paths: Sequence[str], *, watch: bool = False) -> list[StoreError]:
        return [StoreError("NoAuth")]

    other.store.get_data = refuse  # type: ignore[method-assign,assignment]
    second = await joined(other)
    assert (first.reports, second.reports, [str(e) for e in second.errors]) == ([True], [], ["NoAuth"])


async def test_a_leader_node_that_cannot_be_read_is_read_again(memory: Memory, autojump_clock: MockClock) -> None:
    session = await memory.session()
    get_data, refusals, errors = session.store.get_data, [StoreError("NoAuth")], []
    seen: list[bytes | None] = []

    async def refuse(paths: Sequence[str], *, watch: bool = False) -> list[object]:
        return [refusals.pop()] if refusals else list(await get_data(paths, watch=watch))

    session.store.get_data = refuse  # type: ignore[method-assign,assignment]
    watched = WatchedNode(session, LEADER, on_data=seen.append, on_error=errors.append, retry_wait_s=5.0)
    watched.start()
    await trio.sleep(4.9)
    assert (seen, [str(e) for e in errors]) == ([], ["NoAuth"])
    await session.make_parents(LEADER)
    await session.store.write([Create(LEADER, b"x")])
    assert seen == []  # it has no watch yet
    await trio.sleep(0.2)
    assert seen == [b"x"]
    watched.close()


async def test_leaving_deletes_the_nodes_of_lost_replies(memory: Memory) -> None:  # rules E1.8, E11.2
    session, other = await memory.session(), await memory.session()
    write, calls = session.store.write, []

    async def lost(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        answers = await write(ops)
        if isinstance(ops[0], Create) and ops[0].sequential and not isinstance(answers[0], NoNode) and not calls:
            calls.append(ops)
            raise StoreError("the reply is lost")
        return answers

    session.store.write = lost  # type: ignore[method-assign]
    latch = LeaderLatch(
        session, LATCH, on_change=lambda leads: None, on_error=lambda e: None, retry_wait_s=float("inf")
    )
    latch.start()
    await wait_all_tasks_blocked()
    assert len(await names(other)) == 1
    await latch.aclose()
    assert await names(other) == []
    await other.delete_tree(LATCH)
    await latch._leave()  # the directory is gone, too


async def test_closing_before_the_first_check(memory: Memory) -> None:
    session = await memory.session()
    latch = Latch(session)
    await latch.latch.aclose()
    await wait_all_tasks_blocked()
    assert (latch.reports, latch.latch.checks) == ([], 0)


async def test_who_unsubscribed_hears_nothing(memory: Memory) -> None:
    session = await memory.session()
    seen: list[object] = []
    unsubscribe, unwatch = session.subscribe(seen.append), session.watch("/x", seen.append)
    unsubscribe()
    unwatch()
    await session.store.exists(["/x"], watch=True)
    await session.store.write([Create("/x")])
    await memory.disconnect(session)
    await wait_all_tasks_blocked()
    assert seen == []


async def test_closing_while_the_create_is_under_way(memory: Memory) -> None:  # rule E1.12
    session = await memory.session()
    proceed = trio.Event()
    write = session.store.write

    async def slowly(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        answers = await write(ops)
        if isinstance(ops[0], Create) and ops[0].sequential:
            await proceed.wait()
        return answers

    session.store.write = slowly  # type: ignore[method-assign]
    latch = await joined(session)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(latch.latch.aclose)
        await wait_all_tasks_blocked()
        proceed.set()
    assert latch.reports == []
    assert await names(session) == []


async def test_a_disconnection_overtakes_a_check(memory: Memory) -> None:
    """A read from before the disconnection does not decide who leads."""
    session = await memory.session()
    exists = session.store.exists

    async def broken_meanwhile(paths: Sequence[str], *, watch: bool = False) -> list[object]:
        answers = await exists(paths, watch=watch)
        if not broke:
            broke.append(True)
            await memory.disconnect(session)
        return list(answers)

    broke: list[bool] = []
    session.store.exists = broken_meanwhile  # type: ignore[method-assign,assignment]
    latch = await joined(session)
    assert latch.reports == []
    await memory.reconnect(session)
    await wait_all_tasks_blocked()
    assert latch.reports == [True]


async def test_leadership_is_checked_again_before_the_write(
    memory: Memory, nursery: trio.Nursery
) -> None:  # rules E4.9, E11.11, E11.14
    session, other = await memory.session(), await memory.session()
    contender = await contend(session, nursery, "")
    session_id = await contender.lead()
    latch = latch_of(contender)
    read = session.store.get_data

    async def lost_meanwhile(
        paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        answers = await read(paths, watch=watch)
        if paths[0] == LEADER and not watch:
            await other.store.write([Delete(f"{LATCH}/{latch._node}")])
            latch._set(False)
        return answers

    await other.make_parents(LEADER)  # the write would succeed
    session.store.get_data = lost_meanwhile  # type: ignore[method-assign]
    assert contender.service is not None
    await contender.service.confirm_leadership(session_id, "late:1")
    assert (await other.store.exists([LEADER])) == [None]


async def test_a_leader_node_is_not_written_after_a_loss_during_its_read(memory: Memory) -> None:  # rule E11.11
    """Without a task to cancel: the write itself checks."""
    session = await memory.session()
    await session.make_parents(LEADER)
    leads = iter((True, False, False))
    await write_leader_node(session, LEADER, b"late", lambda: next(leads))
    assert await session.store.exists([LEADER]) == [None]
    await write_leader_node(session, LEADER, b"leader", lambda: True)
    assert await session.store.exists([LEADER]) != [None]


async def test_an_ex_leader_overwrites_and_the_leader_repairs(memory: Memory, nursery: trio.Nursery) -> None:
    """Rule E11.18: stat-then-set is not atomic."""
    session, other = await memory.session(), await memory.session()
    leader = await contend(session, nursery, "leader:1")
    session_id = await leader.lead()
    late = encode_leader_node("late:1", uuid4())
    await other.store.multi([[Delete(LEADER), Create(LEADER, late, ephemeral=True)]])
    await wait_all_tasks_blocked()
    (found,) = await session.store.get_data([LEADER])
    assert isinstance(found, NodeData)
    assert (found.data, found.stat.ephemeral_owner) == (encode_leader_node("leader:1", session_id), session.session_id)


async def test_leader_nodes_that_come_and_go_while_written(memory: Memory, nursery: trio.Nursery) -> None:  # rule E4.9
    """NONODE on set and delete, NODEEXISTS on create: the write goes round again."""
    session, other = await memory.session(), await memory.session()
    write = session.store.write
    spoil: list[Callable[[], Awaitable[object]]] = [
        lambda: other.store.write([Delete(LEADER)]),  # of the foreign node that it wants to delete
        lambda: other.store.write([Create(LEADER, b"foreign")]),  # before it creates
    ]
    await other.make_parents(LEADER)
    await other.store.write([Create(LEADER, b"foreign")])

    async def spoiled(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        if ops[0].path == LEADER and spoil:
            await spoil.pop(0)()
        return await write(ops)

    session.store.write = spoiled  # type: ignore[method-assign]
    contender = await contend(session, nursery, "leader:1")
    session_id = await contender.lead()
    await wait_all_tasks_blocked()
    (found,) = await other.store.get_data([LEADER])
    assert isinstance(found, NodeData)
    assert found.data == encode_leader_node("leader:1", session_id)
    assert spoil == contender.errors == []


@pytest.mark.parametrize("change", ["altered", "emptied", "deleted"])
async def test_nothing_is_erased_while_a_confirmation_is_pending(
    memory: Memory, nursery: trio.Nursery, change: str
) -> None:  # rules E5.2, E11.12
    session, other = await memory.session(), await memory.session()
    old = encode_leader_node("old:1", uuid4())
    await other.make_parents(LEADER)
    await other.store.write([Create(LEADER, old)])
    contender = await contend(session, nursery, "")
    session_id = await contender.lead()
    data = {"altered": encode_leader_node("other:1", uuid4()), "emptied": b"", "deleted": None}[change]
    await other.store.write([Delete(LEADER) if data is None else SetData(LEADER, data)])
    await wait_all_tasks_blocked()
    (found,) = await other.store.get_data([LEADER])
    assert (found.data if isinstance(found, NodeData) else None) == data
    assert contender.service is not None
    assert await contender.service.confirm_leadership(session_id, "new:1")
    (found,) = await other.store.get_data([LEADER])
    assert isinstance(found, NodeData)
    assert found.data == encode_leader_node("new:1", session_id)


async def test_events_after_close_are_dropped_by_a_nursery_that_is_left() -> None:  # rules E3.8, E11.16
    backend = ManualBackend()
    contender = Contender()
    async with trio.open_nursery() as nursery:
        service = MultipleComponentLeaderElectionService(backend, nursery)
        await service.create_leader_election("a").start(contender)
    backend.driver.grant(uuid4())
    backend.driver.change("a", LeaderInformation(uuid4(), "x:1"))
    backend.driver.listener.on_error(OSError("late"))
    assert contender.calls == contender.errors == []


async def test_two_delete_the_same_tree(memory: Memory) -> None:  # rule E11.17
    one, two = await memory.session(), await memory.session()
    paths = ["/t", *(f"/t/{i}" for i in range(5)), *(f"/t/{i}/{j}" for i in range(5) for j in range(5))]
    await one.store.write([Create(path) for path in paths])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.delete_tree, "/t")
        nursery.start_soon(two.delete_tree, "/t")
    assert await one.store.exists(["/t"]) == [None]


async def test_a_child_is_made_while_the_tree_is_deleted(memory: Memory) -> None:  # rule E11.17
    one, two = await memory.session(), await memory.session()
    await one.store.write([Create("/t"), Create("/t/a")])
    write = one.store.write
    again = ["/t/b"]

    async def interrupted(ops: Sequence[Op]) -> list[OpResult | StoreError]:
        if ops[0].path == "/t" and again:
            await two.store.write([Create(again.pop())])
        return await write(ops)

    one.store.write = interrupted  # type: ignore[method-assign]
    await one.delete_tree("/t")
    assert await one.store.exists(["/t"]) == [None]


async def test_a_hand_over_wakes_one(backend: Backend) -> None:  # rules E1.10, E1.11
    """Counted at each contender's store: contenders further back get no event and send no request."""
    sessions = [await backend.session() for _ in range(6)]
    latches = []
    for session in sessions:
        latches.append(Latch(session))
        while not latches[-1].latch._node:
            await trio.lowlevel.checkpoint()
    await latches[0].until(lambda: latches[0].reports)
    for session in sessions:  # afterwards, earlier requests have been answered
        await session.store.exists(["/"])
    events: list[int] = []
    for i, session in enumerate(sessions):
        watch = session.store.on_watch

        def record(event: object, i: int = i, watch: Callable[..., None] = watch) -> None:
            events.append(i)
            watch(event)

        session.store.on_watch = record
    for leaver, heir in itertools.pairwise(latches):
        checks = [latch.latch.checks for latch in latches]
        events.clear()
        await leaver.latch.aclose()
        await heir.until(lambda heir=heir: heir.reports)
        for session in sessions:
            await session.store.exists(["/"])
        woken = [latches[i] for i, latch in enumerate(latches) if latch.latch.checks != checks[i]]
        assert woken == [heir]
        assert set(events) - {latches.index(leaver)} == {latches.index(heir)}


async def test_a_thousand_contenders_and_one_is_woken(memory: Memory) -> None:  # rules E1.10, E1.11
    """One watch event and one read of the queue for each hand-over, and one watch each."""
    sessions = [await memory.session() for _ in range(10)]
    latches = []
    for i in range(1000):
        latches.append(Latch(sessions[i % 10]))
        while not latches[-1].latch.checks:
            await trio.lowlevel.checkpoint()
    await wait_all_tasks_blocked()
    assert sum(len(watchers) for watchers in memory.server.tree.watches.values()) == 1000
    fired: list[str] = []
    for session in sessions:
        watch = session.store.on_watch

        def record(event: WatchEvent, watch: Callable[[WatchEvent], None] = watch) -> None:
            fired.append(event.path)
            watch(event)

        session.store.on_watch = record
    for place in range(20):
        assert [i for i, latch in enumerate(latches) if latch.latch.has_leadership] == [place]
        before = [latch.latch.checks for latch in latches]
        fired.clear()
        await latches[place].latch.aclose()
        await wait_all_tasks_blocked()
        assert [i for i, latch in enumerate(latches) if latch.latch.checks != before[i]] == [place + 1]
        # for the successor, and for the session that left, which no longer listens
        assert set(fired) == {f"{LATCH}/{latches[place].latch._node}"}
        assert len(fired) <= 2


async def test_who_leaves_deletes_no_nodes_of_others(memory: Memory) -> None:  # rules E1.14, E11.2
    """Even if it does not know which node is its own."""
    first, second = await memory.session(), await memory.session()
    leader, leaving = await joined(first), await joined(second)
    before = await names(first)
    for attempt, left in (("", before), (leaving.latch._attempt, [leader.latch._node])):
        leaving.latch._abandoned, leaving.latch._attempt, leaving.latch._node = {"given up"}, attempt, None
        await leaving.latch._leave()
        assert await names(first) == left
