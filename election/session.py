"""One client of the metadata store for many latches, leader nodes and retrievers.

Users subscribe to watches by path, and to the connection in Curator's four states (section 7). The store does not
report "lost" while the server is silent; this module does, after the negotiated session timeout (rules E7.6, E7.13).
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import accumulate

import trio

from kce.election.serial_calls import start_unless_over
from kce.zookeeper.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    WatchEvent,
    WatchType,
    value,
)

log = logging.getLogger(__name__)

Unsubscribe = Callable[[], None]
FatalErrorHandler = Callable[[Exception], None]


class ConnectionState(enum.Enum):
    """Subscribers get each change once; SUSPENDED never follows LOST (rule E7.8)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    RECONNECTED = "reconnected"
    LOST = "lost"

    @property
    def is_connected(self) -> bool:
        return self in (ConnectionState.CONNECTED, ConnectionState.RECONNECTED)


#: the store's report -> the state before -> the state after. SUSPENDED also becomes LOST after the session timeout
#: (rule E7.6).
TRANSITIONS: Mapping[SessionState, Mapping[ConnectionState, ConnectionState]] = {
    SessionState.CONNECTED: {
        ConnectionState.SUSPENDED: ConnectionState.RECONNECTED,
        ConnectionState.LOST: ConnectionState.RECONNECTED,
    },
    SessionState.DISCONNECTED: {
        ConnectionState.CONNECTED: ConnectionState.SUSPENDED,
        ConnectionState.RECONNECTED: ConnectionState.SUSPENDED,
    },
    SessionState.EXPIRED: dict.fromkeys(ConnectionState, ConnectionState.LOST),
}


def _log_fatal(error: Exception) -> None:
    log.error("a background task of the ZooKeeper client failed", exc_info=error)


class ElectionSession:
    """Owns the store's callbacks, and closes it. Runs background tasks in ``nursery``; their errors go to
    ``fatal_error_handler`` (rule E3.15)."""

    def __init__(
        self, store: MetadataStore, nursery: trio.Nursery, *, fatal_error_handler: FatalErrorHandler = _log_fatal
    ) -> None:
        self.store = store
        self.state = ConnectionState.CONNECTED
        #: changes with the connection's state: a read under another epoch may be outdated
        self.epoch = 0
        self._nursery = nursery
        self._fatal_error_handler = fatal_error_handler
        self._watchers: dict[str, dict[object, Callable[[WatchType], None]]] = {}
        self._subscribers: dict[object, Callable[[ConnectionState], None]] = {}
        self._closed = False
        store.on_watch = self._on_watch
        store.on_session = self._on_session

    @property
    def session_id(self) -> int:
        return self.store.session_id

    @property
    def is_connected(self) -> bool:
        return self.state.is_connected

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task, independent of its caller."""
        start_unless_over(self._nursery, self._guarded, task)

    async def _guarded(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except SessionExpired as e:
            log.debug("the session ended under %s: %s", task, e)
        except Exception as e:  # noqa: BLE001 - the handler decides
            self._fatal_error_handler(e)

    def watch(self, path: str, fired: Callable[[WatchType], None]) -> Unsubscribe:
        """Call ``fired`` when a watch on the node fires. Reads set watches; this does not."""
        key = object()
        self._watchers.setdefault(path, {})[key] = fired

        def cancel() -> None:
            watchers = self._watchers.get(path, {})
            watchers.pop(key, None)
            if not watchers:
                self._watchers.pop(path, None)

        return cancel

    def subscribe(self, on_change: Callable[[ConnectionState], None]) -> Unsubscribe:
        key = object()
        self._subscribers[key] = on_change

        def cancel() -> None:
            self._subscribers.pop(key, None)

        return cancel

    async def while_connected(self, event: trio.Event) -> None:
        """Wait until the event is set, or the connection is lost."""
        with trio.CancelScope() as scope, self._cancelled_by_disconnection(scope):
            await event.wait()

    @contextlib.contextmanager
    def _cancelled_by_disconnection(self, scope: trio.CancelScope) -> Iterator[None]:
        def changed(state: ConnectionState) -> None:
            if not state.is_connected:
                scope.cancel()

        changed(self.state)
        unsubscribe = self.subscribe(changed)
        try:
            yield
        finally:
            unsubscribe()

    async def aclose(self) -> None:
        """End the session. Subscribers are not notified of its loss (rule E7.14)."""
        self._closed = True
        await self.store.aclose()

    # writes that several users share

    async def make_parents(self, path: str, *, container: bool = False) -> None:
        """Create missing parents of ``path`` (rule E1.15)."""
        names = path.strip("/").split("/")[:-1]
        parents = accumulate(names, lambda parent, name: f"{parent}/{name}", initial="")
        ops = [Create(parent, container=container) for parent in parents if parent]
        for answer in await self.store.write(ops):
            if not isinstance(answer, (NodeExists, NoNode)):  # NoNode: deleted again meanwhile; the caller retries
                value(answer)

    async def delete_tree(self, path: str) -> None:
        """Delete the node and its descendants; others may delete them meanwhile (rule E11.17)."""
        while True:
            (children,) = await self.store.get_children([path])
            if isinstance(children, NoNode):
                return
            for name in value(children):
                await self.delete_tree(f"{path.rstrip('/')}/{name}")
            (answer,) = await self.store.write([Delete(path)])
            if not isinstance(answer, NotEmpty):
                if not isinstance(answer, NoNode):
                    value(answer)
                return

    async def delete_if_there(self, path: str) -> None:
        (answer,) = await self.store.write([Delete(path)])
        if not isinstance(answer, NoNode):
            value(answer)

    # called by the store

    def _on_watch(self, event: WatchEvent) -> None:
        if event.type is not WatchType.CHILDREN:
            for fired in list(self._watchers.get(event.path, {}).values()):
                fired(event.type)

    def _on_session(self, state: SessionState) -> None:
        after = TRANSITIONS.get(state, {}).get(self.state)
        if after is None:
            return
        self._become(after)
        if after is ConnectionState.SUSPENDED and not self._closed:
            start_unless_over(self._nursery, self._presume_lost, self.epoch)

    async def _presume_lost(self, epoch: int) -> None:
        await trio.sleep(self.store.session_timeout_ms / 1000)
        if self.epoch == epoch:
            self._become(ConnectionState.LOST)

    def _become(self, state: ConnectionState) -> None:
        self.epoch += 1
        if state is self.state or self._closed:
            return
        self.state = state
        log.log(
            logging.INFO if state.is_connected else logging.WARNING,
            "the connection to ZooKeeper is %s",
            state.value,
        )
        for on_change in list(self._subscribers.values()):
            on_change(state)
