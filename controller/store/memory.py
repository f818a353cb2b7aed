"""ZooKeeper's twin in process: nodes, versions, sessions, ephemerals, sequences, one-shot watches and multi.

``MemoryZooKeeper`` is the server; ``server.connect()`` gives a ``MemoryStore``, a client with a session. What the
real one leaves to chance happens here on command: ``expire(store)``, ``disconnect(store)``, ``reconnect(store)``.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from controller import store
from controller.store import (
    ANY_VERSION,
    BadVersion,
    Check,
    Create,
    Data,
    Delete,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreError,
    WatchEvent,
    WatchType,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    cversion: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version, self.cversion, self.owner, self.pzxid
        )  # fmt: skip


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class MemoryZooKeeper:
    """The server side. ``now_ms`` gives creation and modification times."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._zxid = 0
        self._sessions = itertools.count(0x1000)
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, 0, 0)}
        #: (children?, path) -> the stores that watch, in the order in which they set the watch
        self._watches: dict[tuple[bool, str], dict[MemoryStore, None]] = {}

    def connect(self, *, session_timeout_ms: int = 6000) -> MemoryStore:
        """A client with a session that ends only on command, whatever its timeout."""
        return MemoryStore(self, next(self._sessions), session_timeout_ms)

    def expire(self, client: MemoryStore) -> None:
        """End the client's session as a server does whose client was silent for too long, and give it a new one."""
        self._end(client)
        client._expired(next(self._sessions))

    def disconnect(self, client: MemoryStore) -> None:
        """Break the connection; the session goes on. Operations wait until ``reconnect`` or ``expire``."""
        client._disconnected()

    def reconnect(self, client: MemoryStore) -> None:
        client._reconnected()

    def _end(self, client: MemoryStore) -> None:
        for watchers in self._watches.values():
            watchers.pop(client, None)
        owned = [path for path, node in self._nodes.items() if node.owner == client.session_id]
        for path in owned:
            self._multi(client, [Delete(path)])

    # reads

    def _read(self, path: str) -> _Node:
        try:
            return self._nodes[path]
        except KeyError:
            raise NoNode(path) from None

    def _watch(self, client: MemoryStore, children: bool, path: str) -> None:
        self._watches.setdefault((children, path), {})[client] = None

    def _fire(self, kind: WatchType, path: str) -> None:
        both = {WatchType.DELETED: (False, True), WatchType.CHILDREN: (True,)}.get(kind, (False,))
        told: dict[MemoryStore, None] = {}
        for children in both:
            told.update(self._watches.pop((children, path), {}))
        for client in told:
            client._fired(WatchEvent(kind, path))

    # writes

    def _multi(self, client: MemoryStore, ops: Sequence[Op]) -> list[OpResult]:
        """All of ``ops`` or none. Raises MultiFailed."""
        undo: list[Callable[[], None]] = []
        fires: list[Callable[[], None]] = []
        results: list[OpResult] = []
        self._zxid += 1
        for index, op in enumerate(ops):
            results.append(None)
            try:
                fires.append(self._apply(client, op, undo, results))
            except NodeError as e:
                for step in reversed(undo):
                    step()
                raise MultiFailed(index, e) from None
        for fire in fires:
            fire()
        return results

    def _apply(
        self, client: MemoryStore, op: Op, undo: list[Callable[[], None]], results: list[OpResult]
    ) -> Callable[[], None]:
        """Do ``op``; leave how to take it back in ``undo`` and its result in ``results``; return what fires watches."""
        match op:
            case Create():
                return self._create(client, op, undo, results)
            case SetData(path, data, version):
                node = self._versioned(path, version)
                before = (node.data, node.mzxid, node.mtime, node.version)

                def restore() -> None:
                    node.data, node.mzxid, node.mtime, node.version = before

                undo.append(restore)
                node.data, node.mzxid, node.mtime, node.version = data, self._zxid, self._now_ms(), node.version + 1
                results[-1] = node.stat()
                return lambda: self._fire(WatchType.CHANGED, path)
            case Delete(path, version):
                return self._delete(path, self._versioned(path, version), undo)
            case Check(path, version):
                self._versioned(path, version)
                return lambda: None

    def _versioned(self, path: str, version: int) -> _Node:
        node = self._read(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _create(
        self, client: MemoryStore, op: Create, undo: list[Callable[[], None]], results: list[OpResult]
    ) -> Callable[[], None]:
        parent_path, name = _split(op.path)
        parent = self._read(parent_path)
        if parent.owner:
            raise NoChildrenForEphemerals(op.path)
        if op.sequential:
            name = f"{name}{parent.cversion:010d}"
        path = f"{parent_path.rstrip('/')}/{name}"
        if path in self._nodes:
            raise NodeExists(path)
        before = (parent.cversion, parent.pzxid)
        now = self._now_ms()
        owner = client.session_id if op.ephemeral else 0
        self._nodes[path] = _Node(op.data, self._zxid, self._zxid, self._zxid, now, now, owner)
        parent.children.add(name)
        parent.cversion, parent.pzxid = parent.cversion + 1, self._zxid

        def remove() -> None:
            del self._nodes[path]
            parent.children.discard(name)
            parent.cversion, parent.pzxid = before

        undo.append(remove)
        results[-1] = path

        def fire() -> None:
            self._fire(WatchType.CREATED, path)
            self._fire(WatchType.CHILDREN, parent_path)

        return fire

    def _delete(self, path: str, node: _Node, undo: list[Callable[[], None]]) -> Callable[[], None]:
        if node.children:
            raise NotEmpty(path)
        parent_path, name = _split(path)
        parent = self._nodes[parent_path]
        before = (parent.cversion, parent.pzxid)
        del self._nodes[path]
        parent.children.discard(name)
        parent.cversion, parent.pzxid = parent.cversion + 1, self._zxid

        def restore() -> None:
            self._nodes[path] = node
            parent.children.add(name)
            parent.cversion, parent.pzxid = before

        undo.append(restore)

        def fire() -> None:
            self._fire(WatchType.DELETED, path)
            self._fire(WatchType.CHILDREN, parent_path)

        return fire


class MemoryStore(store.MetadataStore):
    """A client of a MemoryZooKeeper. Every operation is a trio checkpoint."""

    def __init__(self, server: MemoryZooKeeper, session_id: int, session_timeout_ms: int = 6000) -> None:
        self.on_watch: Callable[[WatchEvent], None] = lambda event: None
        self.on_session: Callable[[SessionState], None] = lambda state: None
        self._server = server
        self._session_id = session_id
        self._session_timeout_ms = session_timeout_ms
        self._connected = trio.Event()
        self._connected.set()
        self._held_back: list[WatchEvent] = []

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    async def _turn(self) -> None:
        """A chance for others to run, and for a broken connection to come back within the session."""
        session = self._session_id
        await trio.lowlevel.checkpoint()
        await self._connected.wait()
        if session != self._session_id or not session:
            raise SessionExpired("the session has ended")

    async def get_data(self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False) -> list[Data | StoreError]:
        await self._turn()
        watched = [watch] * len(paths) if isinstance(watch, bool) else watch
        answers: list[Data | StoreError] = []
        for path, wanted in zip(paths, watched, strict=True):
            try:
                node = self._server._read(path)
            except NoNode as e:
                answers.append(e)
                continue
            if wanted:
                self._server._watch(self, False, path)
            answers.append(Data(node.data, node.stat()))
        return answers

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        await self._turn()
        for path in paths if watch else ():
            self._server._watch(self, False, path)
        nodes = (self._server._nodes.get(path) for path in paths)
        return [None if node is None else node.stat() for node in nodes]

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        await self._turn()
        answers: list[list[str] | StoreError] = []
        for path in paths:
            try:
                answers.append(sorted(self._server._read(path).children))
            except NoNode as e:
                answers.append(e)
                continue
            if watch:
                self._server._watch(self, True, path)
        return answers

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        await self._turn()
        head = [] if fence is None else [fence]
        answers: list[OpResult | StoreError] = []
        for op in ops:
            try:
                answers.append(self._server._multi(self, [*head, op])[-1])
            except MultiFailed as e:
                if e.index < len(head):
                    raise
                answers.append(e.error)
        return answers

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        await self._turn()
        answers: list[list[OpResult] | MultiFailed] = []
        for group in groups:
            try:
                answers.append(self._server._multi(self, group))
            except MultiFailed as e:
                answers.append(e)
        return answers

    async def aclose(self) -> None:
        if self._session_id:
            self._server._end(self)
        self._session_id = 0
        self._connected.set()

    # told by the server

    def _fired(self, event: WatchEvent) -> None:
        if self._connected.is_set():
            self.on_watch(event)
        else:
            self._held_back.append(event)

    def _tell_session(self, state: SessionState) -> None:
        try:
            self.on_session(state)
        except Exception:
            log.exception("a handler of session state %s failed", state)

    def _disconnected(self) -> None:
        if self._connected.is_set():
            self._connected = trio.Event()
            self._tell_session(SessionState.DISCONNECTED)

    def _reconnected(self) -> None:
        if not self._connected.is_set():
            self._connected.set()
            self._tell_session(SessionState.CONNECTED)
            held_back, self._held_back = self._held_back, []
            for event in held_back:
                self.on_watch(event)

    def _expired(self, new_session_id: int) -> None:
        self._held_back.clear()
        self._tell_session(SessionState.EXPIRED)
        self._session_id = new_session_id
        self._connected.set()
        self._tell_session(SessionState.ESTABLISHED)
        self._tell_session(SessionState.CONNECTED)
