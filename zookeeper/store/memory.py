"""ZooKeeper in memory: sessions and their connections; ``data_tree.py`` has the nodes.

``MemoryZooKeeper`` is the server; ``server.connect()`` returns a ``MemoryStore``, a client with a session. Faults
happen on command: ``expire(store)``, ``disconnect(store)``, ``mute(store)``, ``freeze(store)``, ``reconnect(store)``.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from kce.zookeeper import store
from kce.zookeeper.store import (
    AUTH_RETRY_MS,
    OPEN_ACL,
    Acls,
    Check,
    MultiFailed,
    NodeData,
    NodeError,
    Op,
    OpResult,
    Permission,
    SessionExpired,
    SessionState,
    Stat,
    StoreError,
    WatchEvent,
    WatchType,
)
from kce.zookeeper.store.data_tree import DataTree

log = logging.getLogger(__name__)

T = TypeVar("T")


def _identity(scheme: str, credential: str) -> tuple[str, str]:
    """The identity of a credential. Raises ValueError for an unknown scheme."""
    if scheme != "digest":
        raise ValueError(f"there is no authentication by {scheme!r}")
    digest = base64.b64encode(hashlib.sha1(credential.encode(), usedforsecurity=False).digest()).decode()
    return scheme, f"{credential.partition(':')[0]}:{digest}"


def _order_of_rearmed_watches(event: WatchEvent) -> tuple[bool, bool, str]:
    """A server fires the watches of a reconnected client in the order of its setWatches request: on existing nodes, on
    missing nodes, on children; each sorted by path."""
    return event.type is WatchType.CHILDREN, event.type is WatchType.CREATED, event.path


class MemoryZooKeeper:
    """The server. ``now_ms`` is the clock of creation and modification times.

    With a ``nursery``, a session expires after its timeout without a connection; without one, only on command.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: 0, nursery: trio.Nursery | None = None) -> None:
        self.tree = DataTree(now_ms)
        self._nursery = nursery
        self._sessions = itertools.count(0x1000)

    def connect(
        self,
        *,
        session_timeout_ms: int = 6000,
        auth: Sequence[tuple[str, str]] = (),
        acls_of: Callable[[str], Acls] = lambda path: OPEN_ACL,
    ) -> MemoryStore:
        """A client with a new session. ``auth`` supports only digests."""
        identities = frozenset(_identity(scheme, credential) for scheme, credential in auth)
        return MemoryStore(self, next(self._sessions), session_timeout_ms, identities, acls_of)

    def peek(self, path: str) -> tuple[bytes, int] | None:
        """Content and version of a node, without a session and without a delay."""
        node = self.tree.nodes.get(path)
        return None if node is None else (node.data, node.version)

    def expire(self, client: MemoryStore) -> None:
        """Expire the client's session, and give it a new one."""
        self.tree.end_session(client)
        client._expired(next(self._sessions))

    def end_session(self, client: MemoryStore) -> None:
        """Expire the session of a client that hears nothing: it notices when it is connected again."""
        self.tree.end_session(client)
        client._lost = True
        client._unreachable()

    def refuse(self, client: MemoryStore) -> None:
        """Refuse the client's authentication: its session ends, and it retries after a delay. Needs a Trio run."""
        self.tree.end_session(client)
        client._refused(next(self._sessions))

    def disconnect(self, client: MemoryStore) -> None:
        """Break the connection; the session continues. Operations wait until ``reconnect`` or ``expire``."""
        client._disconnected()
        self._expire_in_time(client)

    def mute(self, client: MemoryStore) -> None:
        """What the server says does not arrive until ``reconnect``; what the client asks for is done.

        A client that hears nothing for two thirds of its session's timeout gives the connection up. Needs a nursery.
        """

        async def give_up() -> None:
            await trio.sleep(client.session_timeout_ms / 1000 * 2 / 3)
            if client._muted is muted:
                self.disconnect(client)

        assert self._nursery is not None
        if client._connected.is_set() and client._muted is None:
            muted = client._muted = trio.Event()
            self._nursery.start_soon(give_up)

    def freeze(self, client: MemoryStore) -> None:
        """The client's process stands still: as `disconnect`, but it does not notice before ``reconnect``."""
        client._unreachable()
        self._expire_in_time(client)

    def reconnect(self, client: MemoryStore) -> None:
        """Restore the connection; a client whose session has expired gets a new one."""
        if client._lost:
            client._expired(next(self._sessions))
        else:
            client._reconnected()

    def _expire_in_time(self, client: MemoryStore) -> None:
        """Start the session's timeout. A disconnected client does not notice the expiration."""

        async def expire() -> None:
            await trio.sleep(client.session_timeout_ms / 1000)
            if client.session_id == session and client._connection is connection and not client._lost:
                self.end_session(client)

        session, connection = client.session_id, client._connection
        if self._nursery is not None and session:
            self._nursery.start_soon(expire)


class MemoryStore(store.Session):
    """A client of a MemoryZooKeeper. Every operation is a trio checkpoint."""

    def __init__(
        self,
        server: MemoryZooKeeper,
        session_id: int,
        session_timeout_ms: int = 6000,
        identities: frozenset[tuple[str, str]] = frozenset(),
        acls_of: Callable[[str], Acls] = lambda path: OPEN_ACL,
    ) -> None:
        self.on_watch: Callable[[WatchEvent], None] = lambda event: None
        self.on_session: Callable[[SessionState], None] = lambda state: None
        self.identities = identities
        self.acls_of = acls_of
        #: how long an operation takes to reach the server
        self.delay_s = 0.0
        self._server = server
        self._tree = server.tree
        self._session_id = session_id
        self._session_timeout_ms = session_timeout_ms
        self._connected = trio.Event()
        self._connected.set()
        self._held_back: list[WatchEvent] = []
        #: of operations that wait for the connection or for their turn, in their order
        self._turns: deque[trio.Event] = deque()
        #: set when what the server says arrives again, or is lost with the connection; None: it arrives
        self._muted: trio.Event | None = None
        self._abandoned = False
        #: the session expired while there was no connection
        self._lost = False
        #: another one from each reconnection on: a timeout of an earlier disconnection is void
        self._connection = object()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    async def _do(self, work: Callable[[], T]) -> T:
        """A checkpoint; waits for the connection, lets the server work, and waits for the answer.

        The server does the work of a session in its order. Work whose answer was lost with the connection is done
        again. Raises SessionExpired.
        """
        session = self._session_id
        while True:
            async with self._turn():
                if self.delay_s:
                    await trio.sleep(self.delay_s)
                await trio.lowlevel.checkpoint()
                await self._connected.wait()
            if self._abandoned:
                raise SessionExpired("the session was abandoned")
            if session != self._session_id or not session:
                raise SessionExpired("the session has ended")
            answer = work()
            if self._muted is None:
                return answer
            connection = self._connection
            await self._muted.wait()
            if connection is self._connection and self._connected.is_set() and session == self._session_id:
                return answer

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Leave it when the server has done all that this session asked for before."""
        turn = trio.Event()
        self._turns.append(turn)
        try:
            yield
            if self._turns[0] is not turn:
                await turn.wait()
        finally:
            is_next = self._turns[0] is turn
            self._turns.remove(turn)
            if is_next and self._turns:
                self._turns[0].set()

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        watched = [watch] * len(paths) if isinstance(watch, bool) else watch

        def read() -> list[NodeData | StoreError]:
            answers: list[NodeData | StoreError] = []
            for path, wanted in zip(paths, watched, strict=True):
                try:
                    node = self._tree.read(path)
                    self._tree.permit(self, node, Permission.READ, path)
                except NodeError as e:
                    answers.append(e)
                    continue
                if wanted:
                    self._tree.watch(self, False, path)
                answers.append(NodeData(node.data, node.stat()))
            return answers

        return await self._do(read)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        def read() -> list[Stat | None]:
            nodes = {path: node for path in paths if (node := self._tree.nodes.get(path)) is not None}
            for path, node in nodes.items():
                self._tree.permit(self, node, Permission.READ, path)
            for path in paths if watch else ():
                self._tree.watch(self, False, path)
            return [nodes[path].stat() if path in nodes else None for path in paths]

        return await self._do(read)

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        def read() -> list[list[str] | StoreError]:
            answers: list[list[str] | StoreError] = []
            for path in paths:
                try:
                    node = self._tree.read(path)
                    self._tree.permit(self, node, Permission.READ, path)
                except NodeError as e:
                    answers.append(e)
                    continue
                answers.append(sorted(node.children))
                if watch:
                    self._tree.watch(self, True, path)
            return answers

        return await self._do(read)

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        head = [] if fence is None else [fence]

        def write() -> list[OpResult | StoreError]:
            answers: list[OpResult | StoreError] = []
            for op in ops:
                try:
                    answers.append(self._tree.multi(self, [*head, op])[-1])
                except MultiFailed as e:
                    if e.index < len(head):
                        raise
                    answers.append(e.error)
            return answers

        return await self._do(write)

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        def write() -> list[list[OpResult] | MultiFailed]:
            answers: list[list[OpResult] | MultiFailed] = []
            for group in groups:
                try:
                    answers.append(self._tree.multi(self, group))
                except MultiFailed as e:
                    answers.append(e)
            return answers

        return await self._do(write)

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        def read() -> list[Acls | StoreError]:
            answers: list[Acls | StoreError] = []
            for path in paths:
                try:
                    node = self._tree.read(path)
                    self._tree.permit(self, node, Permission.READ | Permission.ADMIN, path)
                    answers.append(node.acls)
                except NodeError as e:
                    answers.append(e)
            return answers

        return await self._do(read)

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        def write() -> list[Stat | StoreError]:
            answers: list[Stat | StoreError] = []
            for path in paths:
                try:
                    answers.append(self._tree.set_acl(self, path, acls))
                except NodeError as e:
                    answers.append(e)
            return answers

        return await self._do(write)

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed or abandoned: no operation works."""
        return self._abandoned or not self._session_id

    @property
    def is_abandoned(self) -> bool:
        """Its client is dead: nothing reconnects it."""
        return self._abandoned

    def abandon(self) -> None:
        self._abandoned = True
        self._hear()
        self._connected.set()  # what waits for a connection fails
        self._connection = object()
        self._server._expire_in_time(self)

    async def aclose(self) -> None:
        if self._abandoned:
            return
        if self._session_id and not self._lost:
            self._tree.end_session(self)
        self._session_id = 0
        self._hear()
        self._connected.set()

    # called by the server

    def fired(self, event: WatchEvent) -> None:
        if self._abandoned:
            return
        if self._connected.is_set() and self._muted is None:
            self.on_watch(event)
        else:
            self._held_back.append(event)

    def _report_session(self, state: SessionState) -> None:
        try:
            self.on_session(state)
        except Exception:
            log.exception("a handler of session state %s failed", state)

    def _hear(self) -> None:
        """What waits for answers goes on."""
        if self._muted is not None:
            self._muted.set()
            self._muted = None

    def _unreachable(self) -> None:
        if self._connected.is_set():
            self._connected = trio.Event()
        self._hear()

    def _disconnected(self) -> None:
        if self._connected.is_set():
            self._unreachable()
            self._report_session(SessionState.DISCONNECTED)

    def _reconnected(self) -> None:
        was_connected = self._connected.is_set()
        self._hear()
        if not was_connected:
            self._connected.set()
            self._connection = object()
            self._report_session(SessionState.CONNECTED)
        held_back, self._held_back = self._held_back, []
        for event in held_back if was_connected else sorted(held_back, key=_order_of_rearmed_watches):
            self.on_watch(event)

    def _expired(self, new_session_id: int) -> None:
        self._lost = False
        self._held_back = []
        self._report_session(SessionState.EXPIRED)
        self._begin(new_session_id)

    def _refused(self, new_session_id: int) -> None:
        async def retry() -> None:
            await trio.sleep(AUTH_RETRY_MS / 1000)
            if self._session_id == refused:  # not closed meanwhile
                self._begin(new_session_id)

        refused = self._session_id
        self._connected = trio.Event()
        self._held_back = []
        self._report_session(SessionState.AUTH_FAILED)
        self._report_session(SessionState.EXPIRED)
        trio.lowlevel.spawn_system_task(retry)

    def _begin(self, new_session_id: int) -> None:
        self._session_id = new_session_id
        self._hear()
        self._connected.set()
        self._report_session(SessionState.ESTABLISHED)
        self._report_session(SessionState.CONNECTED)
