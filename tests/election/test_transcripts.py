"""All that contenders and listeners hear, are granted and ask ZooKeeper, in lives of elections."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce.election.embedded import EmbeddedLeaderService
from kce.election.errors import IllegalElectionState
from kce.election.java_stream import encode_leader_node
from kce.election.latch import LeaderLatch
from kce.election.leader_node import WatchedNode
from kce.election.paths import ElectionPaths, PathLayout
from kce.election.retrieval import DefaultLeaderRetrievalService
from kce.election.service import MultipleComponentLeaderElectionService, _Registration
from kce.election.session import ElectionSession
from kce.election.zookeeper import election_driver_factory, retrieval_driver_factory
from kce.harness.world.virtual_time import deterministic
from kce.zookeeper.store import Check, Create, Delete, NoAuth, NodeData, Op, OpResult, SetData, StoreError
from tests import transcripts
from tests.election.support import Contender, Listener
from tests.transcripts import RecordedStore, RecordedZooKeeper

FOLDER = Path(__file__).parent / "transcripts"
FOREIGN = encode_leader_node("elsewhere:1", UUID(int=7))


class FailingStore(RecordedStore):
    """Answers operations on what ``refused`` is part of with NoAuth."""

    refused = "?"

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        answers = await super().get_data(paths, watch=watch)
        return [NoAuth(p) if self.refused in p else a for p, a in zip(paths, answers, strict=True)]

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        if any(self.refused in op.path for op in ops):
            return [NoAuth(op.path) for op in ops]
        return await super().write(ops, fence=fence)


class Server(RecordedZooKeeper):
    def connect(self, *, session_timeout_ms: int = 6000, **_: Any) -> FailingStore:
        return FailingStore(self, next(self._sessions), session_timeout_ms)


class Life:
    """Contenders and listeners, each with a session of its own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.server = Server()
        self.lines: list[str] = []
        self.sessions: dict[str, ElectionSession] = {}
        self.services: dict[str, MultipleComponentLeaderElectionService] = {}
        self.retrievals: dict[str, DefaultLeaderRetrievalService] = {}
        self.store = self.server.connect()
        self._known: dict[str, str] = {}
        self._began = 0.0

    def note(self, who: str, what: str) -> None:
        self.lines.append(f"{trio.current_time() - self._began:g} s: {who}: {what}")

    @asynccontextmanager
    async def step(self, name: str, seconds: float = 20) -> AsyncIterator[None]:
        self.lines.append(f"# {name}")
        self._began = trio.current_time()
        with deterministic(1):
            yield
            await trio.sleep(seconds)
        now = self._states()
        self.lines += [f"{key}: {now[key]}" for key in now if now[key] != self._known.get(key)]
        self.lines += [f"no {key}" for key in self._known if key not in now]
        self._known = now

    def session(self, name: str, timeout_ms: int = 6000) -> ElectionSession:
        store = self.server.connect(session_timeout_ms=timeout_ms)
        store.lines = Named(name, self.lines)

        def fatal(error: Exception) -> None:
            self.note(name, f"fatal: {error!r}")

        session = self.sessions[name] = ElectionSession(store, self.nursery, fatal_error_handler=fatal)
        session.subscribe(lambda state: self.note(name, f"the connection is {state.value}"))
        return session

    def contenders(
        self, name: str, paths: ElectionPaths, *, tolerate: bool = False, retry_wait_s: float = 5.0
    ) -> MultipleComponentLeaderElectionService:
        factory = election_driver_factory(
            self.session(name), paths, "a", tolerate_suspended_connections=tolerate, retry_wait_s=retry_wait_s
        )
        made = self.services[name] = MultipleComponentLeaderElectionService(
            factory, self.nursery, fallback_error_handler=lambda e: self.note(name, f"nobody's error: {e!r}")
        )
        return made

    async def contend(self, name: str, component: str, address: str = "") -> Any:
        """The election service of one component, which confirms ``address`` as soon as it leads."""
        election = self.services[name].create_leader_election(component)
        await election.start(Noted(self, f"{name}/{component}", election, address))
        return election

    async def listen(self, name: str, path: str, *, tolerate: bool = False) -> DefaultLeaderRetrievalService:
        factory = retrieval_driver_factory(self.session(name), path, tolerate_suspended_connections=tolerate)
        made = self.retrievals[name] = DefaultLeaderRetrievalService(factory, self.nursery)
        await made.start(NotedListener(self, name))
        return made

    def _states(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, session in self.sessions.items():
            found[name] = f"{plain(session)} watched {sorted(session._watchers)} {len(session._subscribers)} subscribed"
        for name, service in self.services.items():
            found[f"{name} service"] = plain(service)
            for component, registration in service._contenders.items():
                values = {n: getattr(registration, n) for n in _Registration.__slots__}
                found[f"{name}/{component}"] = str({n: str(v) for n, v in values.items() if is_plain(v)})
            driver: Any = service._driver
            if driver is not None:
                found[f"{name} driver"] = plain(driver)
                found[f"{name} latch"] = plain(driver.latch)
                for component, node in driver._nodes.items():
                    found[f"{name} node {component}"] = plain(node)
        for name, retrieval in self.retrievals.items():
            found[f"{name} retrieval"] = plain(retrieval)
        for path, node in sorted(self.server.tree.nodes.items()):
            found[f"node {path}"] = f"{node.data!r} {node.version}"
        return found

    async def write(self, *ops: Op) -> None:
        async with self.step(f"write {'; '.join(map(transcripts.operation, ops))}"):
            for answer in await self.store.write(ops):
                assert not isinstance(answer, Exception), answer

    async def remove(self, part: str) -> None:
        """Delete the nodes whose paths end so."""
        found = [path for path in sorted(self.server.tree.nodes) if path.endswith(part)]
        assert found, part
        await self.write(*map(Delete, found))


class Named(list[str]):
    """Passes lines on, with the name of whose they are."""

    def __init__(self, name: str, lines: list[str]) -> None:
        super().__init__()
        self._name, self._lines = name, lines

    def append(self, line: str) -> None:
        self._lines.append(f"{self._name} {line}")


def is_plain(value: object) -> bool:
    kinds = (str, int, float, bytes, UUID, type(None), tuple, set, frozenset)
    return isinstance(value, kinds) or type(value).__name__ in ("LeaderInformation", "ConnectionState")


def plain(of: LeaderLatch | WatchedNode | ElectionSession | object) -> str:
    """The values of its attributes that are no objects, and the sizes of those that hold such."""
    found: dict[str, str] = {}
    for name, value in vars(of).items():
        if isinstance(value, (set, list, tuple)) and not all(map(is_plain, value)):
            found[name] = f"{len(value)}"
        elif is_plain(value) or isinstance(value, list):
            found[name] = str(sorted(value) if isinstance(value, set) else value)
    return str(found)


class Noted(Contender):
    def __init__(self, life: Life, name: str, election: Any, address: str) -> None:
        super().__init__(election, address)
        self._life, self._name = life, name

    async def grant_leadership(self, session_id: UUID) -> None:
        self._life.note(self._name, f"granted {session_id}")
        await super().grant_leadership(session_id)
        self._life.note(self._name, f"leads {self.service.has_leadership(session_id)}")  # type: ignore[union-attr]

    async def revoke_leadership(self) -> None:
        self._life.note(self._name, "revoked")
        await super().revoke_leadership()

    async def handle_error(self, error: Exception) -> None:
        self._life.note(self._name, f"error {error!r}, because of {error.__cause__!r}")

    @property
    def description(self) -> str:
        return self._name


class NotedListener(Listener):
    def __init__(self, life: Life, name: str) -> None:
        super().__init__()
        self._life, self._name = life, name

    async def notify_leader_address(self, address: str | None, session_id: UUID | None) -> None:
        self._life.note(self._name, f"the leader is {address} {session_id}")

    async def handle_error(self, error: Exception) -> None:
        self._life.note(self._name, f"error {error!r}, because of {error.__cause__!r}")


async def one_latch(life: Life) -> None:
    """Three processes; the first two have two components each."""
    paths = ElectionPaths()
    leader = paths.leader_path("a")
    first, second = life.contenders("first", paths), life.contenders("second", paths, tolerate=True)
    third = life.contenders("third", paths)
    async with life.step("listeners"):
        await life.listen("patient", leader, tolerate=True)
        await life.listen("listener", leader)
    async with life.step("the first contends"):
        a = await life.contend("first", "a", "first:1")
        b = await life.contend("first", "b", "first:2")
    async with life.step("the others contend"):
        await life.contend("second", "a", "second:1")
        await life.contend("third", "a", "third:1")
    for data in (FOREIGN, b"nonsense", b""):
        await life.write(SetData(leader, data))
    await life.write(Delete(leader))
    await life.write(Delete(leader), Create(leader, FOREIGN))
    async with life.step("confirms again, and another id"):
        for election, session_id in ((a, first._won), (b, UUID(int=9)), (b, first._won)):
            try:
                life.note("first", f"confirms {await election.confirm_leadership(session_id, 'again:1')}")
            except IllegalElectionState as e:
                life.note("first", repr(e))

    async def work() -> None:
        life.note("first", "works")

    async with life.step("works as the leader"):
        for session_id in (first._won, UUID(int=9)):
            try:
                await a.run_if_leader(session_id, work)
            except Exception as e:  # noqa: BLE001 - it is noted
                life.note("first", repr(e))
    async with life.step("the first is disconnected", 3):
        life.server.disconnect(store_of(life, "first"))
    async with life.step("and reconnected"):
        life.server.reconnect(store_of(life, "first"))
    async with life.step("all are disconnected", 3):
        for name in life.sessions:
            life.server.disconnect(store_of(life, name))
    async with life.step("and reconnected"):
        for name in life.sessions:
            life.server.reconnect(store_of(life, name))
    leading = next(n for n, s in life.services.items() if s._won)
    async with life.step(f"the leader, {leading}, is disconnected for longer than its session lasts"):
        life.server.disconnect(store_of(life, leading))
    async with life.step("and its session has expired"):
        life.server.expire(store_of(life, leading))
    leading = next(n for n, s in life.services.items() if s._won)
    async with life.step(f"the session of {leading} expires"):
        life.server.expire(store_of(life, leading))
    latch = next(s._driver.latch for s in life.services.values() if s._won)  # type: ignore[union-attr]
    await life.remove(latch._node)
    waiting = next(s._driver.latch for s in life.services.values() if not s._won)  # type: ignore[union-attr]
    path = f"{waiting.path}/{waiting._node}"
    await life.write(SetData(path, b"changed"), Delete(path))
    await life.write(Create(f"{waiting.path}/another"), Create(f"{waiting.path}/latch-0000000000"))
    await life.remove("latch-0000000000")
    async with life.step("nobody may write"):
        for name in life.sessions:
            store_of(life, name).refused = "connection_info"
    await life.remove(leader)
    async with life.step("the queue may not be read"):
        for name in life.sessions:
            store_of(life, name).refused = "latch"
    leading = next(n for n, s in life.services.items() if s._won)
    async with life.step("the session of the leader expires"):
        life.server.expire(store_of(life, leading))
    async with life.step("all is allowed again"):
        for name in life.sessions:
            store_of(life, name).refused = "?"
    async with life.step("one component stops"):
        await b.stop()
    async with life.step("and the other"):
        await a.stop()
    async with life.step("all end"):
        for service in (second, third, first):
            await service.terminate()
        for retrieval in life.retrievals.values():
            await retrieval.stop()
    async with life.step("sessions end"):
        for session in life.sessions.values():
            await session.aclose()


async def old_layouts(life: Life) -> None:
    """A latch for each component."""
    for layout in (PathLayout.TWO_DIRECTORIES, PathLayout.SIDE_BY_SIDE):
        paths = ElectionPaths(root=f"/{layout.name}", layout=layout)
        for name in ("one", "other"):
            life.contenders(f"{layout.value} {name}", paths, retry_wait_s=1)
        async with life.step(f"layout {layout.value}"):
            election = await life.contend(f"{layout.value} one", "a", "one:1")
            await life.contend(f"{layout.value} other", "a", "other:1")
            await life.listen(f"{layout.value} listener", paths.leader_path("a"))
        await life.remove(paths.leader_path("a"))
        latch = paths.latch_path("a")
        below = [path for path in sorted(life.server.tree.nodes, reverse=True) if path.startswith(latch)]
        await life.write(*map(Delete, below))
        async with life.step("one stops"):
            await election.stop()
        async with life.step("and contends anew"):
            await life.contend(f"{layout.value} one", "a", "one:2")


async def embedded(life: Life) -> None:
    """Without ZooKeeper."""
    service = EmbeddedLeaderService(life.nursery)
    elections, retrievals = [], []

    async def join(name: str) -> None:
        election = service.create_leader_election_service()
        elections.append(election)
        await election.start(Noted(life, name, election, f"{name}:1"))

    async def listen(name: str) -> None:
        retrieval = service.create_leader_retrieval_service()
        retrievals.append(retrieval)
        await retrieval.start(NotedListener(life, name))

    async def attempt(what: Callable[[], Awaitable[object]]) -> None:
        try:
            life.note("attempt", repr(await what()))
        except Exception as e:  # noqa: BLE001 - it is noted
            life.note("attempt", repr(e))

    leader = service.create_leader_election_service()
    steps: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("not started", lambda: attempt(lambda: leader.confirm_leadership(UUID(int=1), "x"))),
        ("first", lambda: join("first")),
        ("listen", lambda: listen("listener")),
        ("second", lambda: join("second")),
        ("again", lambda: attempt(lambda: elections[0].start(Noted(life, "again", elections[0], "")))),
        ("twice", lambda: attempt(lambda: retrievals[0].start(NotedListener(life, "twice")))),
        ("listen later", lambda: listen("later")),
        ("the leader stops", lambda: elections[0].stop()),
        ("the leader stops again", lambda: elections[0].stop()),
        ("third", lambda: join("third")),
        ("the listener stops", lambda: retrievals[0].stop()),
        ("second stops", lambda: elections[1].stop()),
        ("shut down", service.shutdown),
        ("after it", lambda: attempt(lambda: join("late"))),
        ("listen after it", lambda: attempt(lambda: listen("late"))),
    ]
    for name, act in steps:
        async with life.step(name):
            await act()
        life.lines.append(plain(service))
        if name in ("listen later", "third"):
            async with life.step("revoke"):
                service.revoke_leadership()
            life.lines.append(plain(service))
            async with life.step("grant"):
                service.grant_leadership()
            life.lines.append(plain(service))


def store_of(life: Life, name: str) -> FailingStore:
    store = life.sessions[name].store
    assert isinstance(store, FailingStore)
    return store


@pytest.mark.parametrize("live", [one_latch, old_layouts, embedded])
async def test_a_life(
    live: Callable[[Life], Awaitable[None]], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)
    for module in ("latch", "zookeeper", "embedded"):
        monkeypatch.setattr(f"kce.election.{module}.uuid4", lambda: UUID(int=next(numbers)))
    async with trio.open_nursery() as nursery:
        life = Life(nursery)
        await live(life)
        nursery.cancel_scope.cancel()
    transcripts.check(FOLDER / f"{live.__name__}.txt", life.lines)
