"""The node with the leader's address: the leader writes it, all watch it."""

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
    """Reports the node's data on each change, None if the node does not exist. Quick changes become one report (E8.6).

    Reads again after every reconnection, which may have lost a watch.
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
        #: czxid and mzxid of the last report; None is no node
        self._reported: tuple[int, int] | str | None = None
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
        """Stop reporting."""
        for cancel in self._cancel:
            cancel()
        self._scope.cancel()

    def forget(self) -> None:
        """Report the next read, even if nothing changed (rule E7.11)."""
        self._reported = "nothing"

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
                    # the next session's reconnection wakes us, unless it has happened already
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
        if identity != self._reported or came_and_went:
            self._reported = identity
            self._on_data(found.data if found else None)

    async def _read(self) -> NodeData | None:
        """Set a watch, whether the node exists or not."""
        while True:
            (found,) = await self._session.store.get_data([self.path], watch=True)
            if not isinstance(found, NoNode):
                return value(found)
            if (await self._session.store.exists([self.path], watch=True))[0] is None:
                return None


async def write_leader_node(
    session: ElectionSession, path: str, data: bytes, has_leadership: Callable[[], bool]
) -> None:
    """Write this data to a node of our session, while we lead (rules E4.9-E4.12).

    Does not write correct data again, so our own write's watch has no effect (E5.5). Raises StoreError.
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
        if not has_leadership():  # it may be lost since the read (E11.11)
            return
        (answer,) = await session.store.write([op])
        if isinstance(answer, NoNode) and isinstance(op, Create):
            await session.make_parents(path)
        elif not isinstance(answer, (NoNode, NodeExists)):
            value(answer)
            if not isinstance(op, Delete):
                return
