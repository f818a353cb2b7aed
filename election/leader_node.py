"""The node that holds a leader: watched, written while leading, and read by retrievers."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from kce.election.session import ConnectionState, ElectionSession, Unsubscribe
from kce.zookeeper.store import (
    Create,
    Delete,
    NodeData,
    NodeExists,
    NoNode,
    Op,
    SessionExpired,
    SetData,
    StoreError,
    WatchType,
    value,
)

log = logging.getLogger(__name__)


class WatchedNode:
    """Tells the node's data when it has changed: None where there is no node. Quick changes are told as one (E8.6).

    Reads again after every reconnection, for a watch may have been missed.
    """

    def __init__(
        self,
        session: ElectionSession,
        path: str,
        *,
        on_data: Callable[[bytes | None], None],
        on_error: Callable[[Exception], None],
        retry_wait_s: float = 5.0,
    ) -> None:
        self.path = path
        self._session = session
        self._on_data = on_data
        self._on_error = on_error
        self._retry_wait_s = retry_wait_s
        #: czxid and mzxid of what was told last; None is no node
        self._told: tuple[int, int] | str | None = None
        self._fired = False
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._cancel: list[Unsubscribe] = []

    def start(self) -> None:
        self._cancel = [
            self._session.watch(self.path, self._watch_fired),
            self._session.subscribe(self._connection_changed),
        ]
        self._session.start_soon(self._run)

    def close(self) -> None:
        """Nothing is told any more."""
        for cancel in self._cancel:
            cancel()
        self._scope.cancel()

    def forget(self) -> None:
        """Tell what the next reading finds, even if it was told before (rule E7.11)."""
        self._told = "nothing was told"

    def _connection_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.RECONNECTED:
            self._wake.set()

    def _watch_fired(self, _: WatchType) -> None:
        self._fired = True
        self._wake.set()

    async def _run(self) -> None:
        with self._scope:
            while True:
                self._wake = trio.Event()
                patience = float("inf")
                try:
                    await self._look()
                except SessionExpired:
                    # a new session brings a reconnection, which wakes us unless it has come already
                    patience = self._retry_wait_s if not self._session.is_connected else 0
                except StoreError as e:
                    self._on_error(e)
                    patience = self._retry_wait_s
                with trio.move_on_after(patience):
                    await self._wake.wait()
                await trio.lowlevel.checkpoint()

    async def _look(self) -> None:
        while True:
            epoch, fired, self._fired = self._session.epoch, self._fired, False
            found = await self._read()
            if epoch == self._session.epoch:
                break
        identity = found and (found.stat.czxid, found.stat.mzxid)
        came_and_went = fired and found is None
        if identity != self._told or came_and_went:
            self._told = identity
            self._on_data(found.data if found else None)

    async def _read(self) -> NodeData | None:
        """A watch is set either way."""
        while True:
            (found,) = await self._session.store.get_data([self.path], watch=True)
            if not isinstance(found, NoNode):
                return value(found)
            if (await self._session.store.exists([self.path], watch=True))[0] is None:
                return None


async def write_leader_node(
    session: ElectionSession, path: str, data: bytes, has_leadership: Callable[[], bool]
) -> None:
    """Make the node ours with this data, as long as we lead (rules E4.9-E4.12).

    What is right already is not written again, so that the echo of a write ends there (E5.5). Raises StoreError.
    """
    while has_leadership():
        (found,) = await session.store.get_data([path])
        op: Op
        if isinstance(found, NoNode):
            op = Create(path, data, ephemeral=True)
        elif value(found).stat.ephemeral_owner != session.session_id:
            op = Delete(path)
        elif value(found).data == data:
            return
        else:
            op = SetData(path, data)
        if not has_leadership():  # looked at again at the moment of writing (E11.11)
            return
        (answer,) = await session.store.write([op])
        if isinstance(answer, NoNode) and isinstance(op, Create):
            await session.make_parents(path)
        elif not isinstance(answer, (NoNode, NodeExists)):
            value(answer)
            if not isinstance(op, Delete):
                return
