"""The fair latch: ephemeral sequential nodes in one directory; the lowest one leads (sections 1 and 11).

Each contender watches one node: its predecessor's, and its own while it leads. So a hand-over wakes one contender, and
a leader notices the deletion of its node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import trio

from kce.election.session import ConnectionState, ElectionSession, Unsubscribe
from kce.zookeeper.store import Create, NoNode, SessionExpired, StoreError, WatchType, value

log = logging.getLogger(__name__)

_MARK = "latch-"


class LeaderLatch:
    """One contender. Calls ``on_change`` with whether it leads, at once, and only on a change.

    One task does everything; watches and changes of the connection only wake it.
    """

    def __init__(
        self,
        session: ElectionSession,
        path: str,
        *,
        on_change: Callable[[bool], None],
        on_error: Callable[[Exception], None],
        tolerate_suspended_connections: bool = False,
        retry_wait_s: float = 5.0,
    ) -> None:
        self.path = path
        self.has_leadership = False
        #: counts reads of the queue
        self.checks = 0
        self._session = session
        self._on_change = on_change
        self._on_error = on_error
        self._tolerate = tolerate_suspended_connections
        self._retry_wait_s = retry_wait_s
        self._wake = trio.Event()
        self._closed = False
        self._ended = trio.Event()
        #: the id of the attempt to create a node (E1.8), the session of the attempt, and the node's name once known
        self._attempt = ""
        self._attempt_session: int | None = None
        self._node: str | None = None
        #: abandoned attempts, whose nodes may still appear (E11.2)
        self._abandoned: set[str] = set()
        self._unwatch: Unsubscribe = lambda: None
        self._unsubscribe: Unsubscribe = lambda: None

    def start(self) -> None:
        """Never blocks. Without a connection, it joins the queue on the next one (rule E1.13)."""
        self._unsubscribe = self._session.subscribe(self._connection_changed)
        self._session.start_soon(self._run)

    async def aclose(self) -> None:
        """Leave the queue without reporting a loss of leadership (rule E1.14).

        Without a connection, the node is deleted after the next connection, or with its session.
        """
        if not self._closed:
            self._closed = True
            self.has_leadership = False
            self._unsubscribe()
            self._unwatch()
            self._wake.set()
        await self._session.while_connected(self._ended)

    def _connection_changed(self, state: ConnectionState) -> None:
        if state is ConnectionState.LOST or (state is ConnectionState.SUSPENDED and not self._tolerate):
            self._set(False)
        self._wake.set()

    def _set(self, leads: bool) -> None:
        if leads is not self.has_leadership and not self._closed:
            self.has_leadership = leads
            self._on_change(leads)

    async def _run(self) -> None:
        try:
            while not self._closed:
                self._wake = trio.Event()
                patience = float("inf")
                try:
                    if self._session.is_connected:
                        await self._check()
                except SessionExpired:
                    self._set(False)
                    # the next attempt needs another session, which may exist already
                    patience = 0 if self._session.session_id != self._attempt_session else self._retry_wait_s
                except StoreError as e:
                    log.error("latch %s: %s", self.path, e)
                    self._set(False)
                    self._on_error(e)
                    patience = self._retry_wait_s
                with trio.move_on_after(patience):
                    await self._wake.wait()
            await self._leave()
        finally:
            self._ended.set()

    async def _check(self) -> None:
        """Repeat until it leads or watches its predecessor (rules E1.10-E1.12)."""
        while not self._closed:
            epoch = self._session.epoch
            if not self._attempt or self._attempt_session != self._session.session_id:
                await self._join()
            self.checks += 1
            (names,) = await self._session.store.get_children([self.path])
            if isinstance(names, NoNode):  # E11.4
                self._start_over()
                continue
            mine, before = self._place(value(names))
            if mine is None:
                self._start_over()
                continue
            self._node = mine
            if before is not None:
                self._set(False)  # E11.5
                if await self._follow(before):
                    return
            elif not await self._own():
                self._start_over()
            elif self._session.epoch == epoch:
                self._set(True)
                return

    def _place(self, names: list[str]) -> tuple[str | None, str | None]:
        """Our node and its predecessor among the names, ordered by what follows the last ``latch-`` (rule E1.9).

        A create that was resent after a lost response may have created two nodes: the first is ours (E1.8). Deletes the
        other one, and those of abandoned attempts.
        """
        mine = sorted((name for name in names if self._attempt in name), key=_order)
        given_up = {attempt: [name for name in names if attempt in name] for attempt in self._abandoned}
        stray = mine[1:] + [name for found in given_up.values() for name in found]
        self._abandoned = {attempt for attempt, found in given_up.items() if found}
        for name in stray:
            self._session.start_soon(partial(self._session.delete_if_there, f"{self.path}/{name}"))
        if not mine:
            return None, None
        place = _order(mine[0])
        before = max(((order, name) for name in names if (order := _order(name)) < place), default=None)
        return mine[0], before and before[1]

    async def _join(self) -> None:
        """Create a node. The attempt's id identifies it, even if the response is lost."""
        self._abandon()
        self._attempt, self._attempt_session = str(uuid4()), self._session.session_id
        create = Create(f"{self.path}/_c_{self._attempt}-{_MARK}", ephemeral=True, sequential=True)
        while True:
            (answer,) = await self._session.store.write([create])
            if not isinstance(answer, NoNode):
                self._node = str(value(answer)).rpartition("/")[2]
                return
            await self._session.make_parents(create.path, container=True)

    def _start_over(self) -> None:
        """Rule E1.12."""
        self._set(False)
        if self._node is not None:
            self._session.start_soon(partial(self._session.delete_if_there, f"{self.path}/{self._node}"))
        self._abandon()

    def _abandon(self) -> None:
        if self._attempt:
            self._abandoned.add(self._attempt)
        self._attempt, self._node = "", None

    async def _own(self) -> bool:
        """Watch our node. Returns whether it exists and belongs to this session (rule E11.3)."""
        path = f"{self.path}/{self._node}"
        self._watch(path)
        (stat,) = await self._session.store.exists([path], watch=True)
        return stat is not None and stat.ephemeral_owner == self._session.session_id

    async def _follow(self, predecessor: str) -> bool:
        """Watch the predecessor. Returns whether it exists."""
        path = f"{self.path}/{predecessor}"
        self._watch(path)
        (answer,) = await self._session.store.get_data([path], watch=True)
        if isinstance(answer, NoNode):
            return False
        value(answer)
        return True

    def _watch(self, path: str) -> None:
        self._unwatch()

        def fired(kind: WatchType) -> None:
            if kind is WatchType.CHANGED:  # irrelevant (E1.11), but it used up the watch
                self._session.start_soon(partial(self._watch_again, path))
            else:
                self._wake.set()

        self._unwatch = self._session.watch(path, fired)

    async def _watch_again(self, path: str) -> None:
        if (await self._session.store.exists([path], watch=True))[0] is None:
            self._wake.set()

    async def _leave(self) -> None:
        """Delete our nodes. If the session ends, the server does it."""
        try:
            if self._node is not None:
                await self._session.delete_if_there(f"{self.path}/{self._node}")
            if self._abandoned or (self._attempt and self._node is None):
                (names,) = await self._session.store.get_children([self.path])
                attempts = self._abandoned | {self._attempt}
                for name in names if isinstance(names, list) else []:
                    if any(attempt and attempt in name for attempt in attempts):
                        await self._session.delete_if_there(f"{self.path}/{name}")
        except SessionExpired:
            log.debug("latch %s: the session ended, and our nodes with it", self.path)


def _order(name: str) -> str:
    """The sequence number; of a name without the mark, the whole name (rule E1.9)."""
    return name.rpartition(_MARK)[2]
