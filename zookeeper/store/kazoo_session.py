"""A session with ZooKeeper through kazoo; only this file and `kazoo_handler` import it.

kazoo runs a connection thread. Completions, watches and state changes come from it or from the Trio thread (`pipeline`
says when), in the server's order. Each only asks for a small call on the Trio thread, and waits for nothing.

This module adds to kazoo: batches of pipelined requests, a retry of requests after a connection loss (rule 1.52),
watches that survive a reconnection and report changes meanwhile, and a generation count that drops events of an ended
session. `kazoo` makes requests of it; `jute` has the serialization.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from random import Random
from typing import Any, Self, TypeVar

import kazoo.exceptions as kz
import kazoo.protocol.connection
import kazoo.retry
import kazoo.version
import trio
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState

from kce.zookeeper import store
from kce.zookeeper.store import (
    AUTH_RETRY_MS,
    SessionExpired,
    SessionState,
    StoreError,
    StoreUnavailable,
    WatchEvent,
    WatchType,
    jute,
)
from kce.zookeeper.store.armed_watches import ArmedWatches, Watch, in_parts
from kce.zookeeper.store.buffered_socket import BufferedSocket
from kce.zookeeper.store.interruptions import Interruptions, Verdict
from kce.zookeeper.store.kazoo_handler import Handler
from kce.zookeeper.store.pipeline import Pipeline
from kce.zookeeper.store.requests import Requests
from kce.zookeeper.store.trio_calls import TrioCalls

log = logging.getLogger(__name__)

T = TypeVar("T")

# its threads draw random numbers, which must not disturb those that the program has seeded
kazoo.protocol.connection.random = kazoo.retry.random = Random()

KAZOO_VERSION: str = kazoo.version.__version__
#: how long closing may take; a server that does not answer ends the session later
CLOSE_TIMEOUT_S = 10.0
#: the release whose private methods this file and `pipeline` replace; pyproject.toml requires it
TESTED_KAZOO = "2.11"

_WATCH_TYPES = {1: WatchType.CREATED, 2: WatchType.DELETED, 3: WatchType.CHANGED, 4: WatchType.CHILDREN}


class KazooSession:
    """A ZooKeeper session, of one Trio run's thread."""

    def __init__(self, client: KazooClient, where: str, token: trio.lowlevel.TrioToken) -> None:
        self.on_watch: Callable[[WatchEvent], None] = lambda event: None
        self.on_session: Callable[[SessionState], None] = lambda state: None
        self._client = client
        self._where = where
        self._calls = TrioCalls(token)
        self._pipeline = Pipeline(client, self._fired, self._calls)
        # of whoever reads
        self._armed = ArmedWatches()
        # after a connection loss, the zxid from which the server must report changes; None when all watches are set
        self._armed_until: int | None = None
        self._generation = 0
        self._connected_once = False
        self._lost = False
        self._was_refused = False
        self._session_timeout_ms: int = client._session_timeout
        # of the trio thread
        self._live_generation = 0
        self._connected = trio.Event()
        self._disconnected = trio.Event()
        #: counts connections
        self._connections = 0
        self._expired = trio.Event()
        self._restart_scope: trio.CancelScope | None = None
        self._is_replacing = False
        self._is_closing = False

    @classmethod
    async def _started(
        cls,
        hosts: str,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        auth: Sequence[tuple[str, str]],
        tls: ssl.SSLContext | None,
    ) -> Self:
        """Connect to ``hosts``. Raises StoreUnavailable as ``KazooStore.connect``."""
        if not f"{KAZOO_VERSION}.".startswith(f"{TESTED_KAZOO}."):
            raise StoreUnavailable(
                f"kazoo {KAZOO_VERSION} is installed: ZooKeeper is reached through kazoo {TESTED_KAZOO} only; "
                f"pip install 'kazoo=={TESTED_KAZOO}.*'"
            )
        try:
            client = KazooClient(
                hosts=hosts,
                timeout=session_timeout_ms / 1000,
                handler=Handler(tls),
                # reconnect quickly, and without end
                connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0},
                logger=logging.getLogger("kazoo"),
                auth_data=list(auth),
            )
        except ValueError as e:
            raise StoreUnavailable(
                f"zookeeper.connect {hosts!r} is not host:port[,host:port...][/chroot]: {e}"
            ) from None
        made = cls(client, hosts, trio.lowlevel.current_trio_token())
        client.add_listener(made._state_changed)
        made._note_connections()
        started = client.start_async()  # not in a thread: whoever is cancelled then finds it started, and stops it
        try:
            await trio.to_thread.run_sync(started.wait, connection_timeout_ms / 1000, abandon_on_cancel=True)
            if answered := client.connected:
                await made._settled()
        except BaseException:  # trio.Cancelled, or a group of them
            await made.aclose()
            raise
        if answered and not made._was_refused:
            return made
        await made.aclose()
        if made._was_refused:
            schemes = ", ".join(scheme for scheme, _ in auth)
            raise StoreUnavailable(f"ZooKeeper at {hosts} does not accept our authentication ({schemes})")
        encrypted = "" if tls is None else ", does it speak TLS, and do the certificates fit"
        raise StoreUnavailable(
            f"no ZooKeeper answers at {hosts} within {connection_timeout_ms} ms: is it running at that "
            f"address{encrypted}?"
        )

    @property
    def session_id(self) -> int:
        known: int | None = self._client._session_id  # the public client_id is None while there is no connection
        return known or 0

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    def _note_connections(self) -> None:
        """Learn the negotiated session timeout, of which kazoo's read timeout is two thirds, and when the server has
        accepted our authentication: kazoo reports CONNECTED before that."""
        connection = self._client._connection
        connect = connection._connect

        def noted(*args: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*args)
            self._session_timeout_ms = round(read_timeout * 1.5)
            self._connection_made()
            self._pipeline.opened()
            return read_timeout, connect_timeout

        connection._connect = noted

    async def aclose(self) -> None:
        """End the session; ``on_session`` is not called any more."""
        self._is_closing = True
        if self._restart_scope is not None:
            self._restart_scope.cancel()

        def stop() -> None:
            if self._client._stopped.is_set():  # abandoned, or refused
                self._client._connection.stop(10)
            else:
                self._client.stop()
            self._client.close()

        with trio.CancelScope(shield=True), trio.move_on_after(CLOSE_TIMEOUT_S):
            await trio.to_thread.run_sync(stop, abandon_on_cancel=True)

    def abandon(self) -> None:
        """Drop the connection without ending the session, like a killed process. No operation works afterwards."""
        self._client._stopped.set()
        connected: BufferedSocket | None = self._client._connection._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        self._pipeline.hand_over()

    # watches

    def _arm(self, kind: Watch, paths: Sequence[str]) -> None:
        """Register watches before the next response is read."""
        self._armed.add(kind, paths)

    async def _set_watches(self, seen: int, paths: Mapping[Watch, Sequence[str]]) -> None:
        """Watch all paths; watches of changes after zxid ``seen`` fire at once."""
        parts = list(in_parts(paths))
        body = self._watches(seen, parts)
        for answer in await self._batch(jute.SET_WATCHES, ["/"] * len(parts), body, _nothing):
            store.value(answer)

    def _watches(self, seen: int, parts: Sequence[Mapping[Watch, Sequence[str]]]) -> Callable[[int], bytes]:
        """Bodies of setWatches. Registers the watches when it is sent, because they may fire before its response."""

        def body(i: int) -> bytes:
            for kind, watched in parts[i].items():
                self._arm(kind, watched)
            whole = ([jute.whole(self._client.chroot, path) for path in parts[i].get(kind, ())] for kind in Watch)
            return jute.set_watches(seen, *whole)

        return body

    # batches and retries

    async def _batch(
        self,
        opcode: int,
        paths: Sequence[str],
        body: Callable[[int], bytes],
        read: Callable[[int, bytes, int], T],
        failed: Callable[[int, int], Any] | None = None,
        large: Container[int] = (),
    ) -> list[T | StoreError]:
        """Send the requests of all paths, and resend those that a connection loss interrupted. The callables are those
        of Requests, with indexes of ``paths``.

        If connections break repeatedly without an answer, requests in ``large`` fail with TooLarge; if that does not
        help, the session ends, with SessionExpired: then another node, or this one in its next session, can go on.
        """

        def error(i: int, code: int) -> StoreError:
            return jute.error(code, paths[i])

        generation = self._live_generation
        answers: list[Any] = [None] * len(paths)
        todo: Sequence[int] = range(len(paths))
        interruptions = Interruptions(self._session_timeout_ms)
        while todo:
            done, connection = trio.Event(), self._connections
            requests = Requests(
                opcode, todo, body, read, failed or error, functools.partial(self._calls.soon, done.set)
            )
            self._pipeline.call(requests)
            await done.wait()
            if requests.fault is not None:
                raise requests.fault
            again = []
            for index, answer in zip(todo, requests.answers, strict=True):
                if isinstance(answer, (kz.ConnectionLoss, kz.ConnectionClosedError)):
                    again.append(index)
                elif isinstance(answer, (SessionExpired, kz.SessionExpiredError, kz.AuthFailedError)):
                    raise SessionExpired(f"the ZooKeeper session at {self._where} has ended")
                elif isinstance(answer, Exception) and not isinstance(answer, StoreError):
                    answers[index] = StoreError(f"{type(answer).__name__} on {paths[index]}: {answer}")
                else:
                    answers[index] = answer
            todo = again
            if todo:
                if connection == self._connections and self._connected.is_set():
                    await self._disconnected.wait()  # kazoo fails requests before it reports the loss
                todo = self._after_interruption(interruptions, todo, paths, answers, large)
                await self._reconnected(generation)
        return answers

    def _after_interruption(
        self,
        interruptions: Interruptions,
        unanswered: Sequence[int],
        paths: Sequence[str],
        answers: list[Any],
        large: Container[int],
    ) -> Sequence[int]:
        """The requests to resend; fails others in ``answers``. Raises SessionExpired."""
        verdict = interruptions.add(len(unanswered), trio.current_time())
        what = f"{len(unanswered)} operations (on {paths[unanswered[0]]}, ...)"
        log.warning("the connection to ZooKeeper at %s broke under %s", self._where, what)
        if verdict is Verdict.REFUSE_LARGE and (refused := [i for i in unanswered if i in large]):
            for i in refused:
                log.error("ZooKeeper at %s refuses a write as large as that of %s", self._where, paths[i])
                answers[i] = store.TooLarge(paths[i])
            return [i for i in unanswered if i not in large]
        if verdict is Verdict.GIVE_UP:
            log.error(
                "ZooKeeper at %s is unusable: %d connections broke under %s; ending the session",
                self._where, interruptions.count, what,
            )  # fmt: skip
            if not self._is_replacing:
                self._is_replacing = True
                self._restart_soon(self._replace_session)
            raise SessionExpired(f"ZooKeeper at {self._where} did not execute {what}")
        return unanswered

    async def _reconnected(self, generation: int) -> None:
        """Wait for a reconnection. Raises SessionExpired if it has another session."""
        if self._client._stopped.is_set():
            raise SessionExpired(f"the ZooKeeper session at {self._where} was closed")
        await self._settled()
        if self._live_generation != generation or self._expired.is_set():
            raise SessionExpired(f"the ZooKeeper session at {self._where} has ended")

    async def _settled(self) -> None:
        """Wait until the store is connected, or the session is lost."""
        async with trio.open_nursery() as nursery:
            for event in (self._connected, self._expired):

                async def first(event: trio.Event = event) -> None:
                    await event.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(first)

    # on kazoo's connection thread, _fired also on the Trio thread

    def _fired(self, frame: bytes, offset: int) -> None:
        """A watch has fired; a session that is being closed reports none. Raises ValueError, struct.error."""
        event, whole_path = jute.read_watch(frame, offset)
        kind, path = _WATCH_TYPES.get(event), jute.below(self._client.chroot, whole_path)
        if kind is not None and self._armed.use_up(kind, path) and not self._client._stopped.is_set():
            self._calls.soon(self._report_watch, self._generation, WatchEvent(kind, path))

    def _connection_made(self) -> None:
        if self._lost:
            self._lost = False
            self._calls.soon(self._report_session, SessionState.ESTABLISHED)
        elif self._connected_once:
            self._rearm()
        self._connected_once = True
        self._calls.soon(self._report_session, SessionState.CONNECTED)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:  # see _note_connections
            return
        if state == KazooState.SUSPENDED:
            if self._armed_until is None:
                self._armed_until = self._client.last_zxid
            self._calls.soon(self._report_session, SessionState.DISCONNECTED)
        else:
            self._lost = True
            self._generation += 1
            self._armed_until = None
            self._armed.clear()
            if self._client._state == KeeperState.AUTH_FAILED:
                self._was_refused = True
                self._calls.soon(self._refused)
            self._calls.soon(self._report_session, SessionState.EXPIRED)

    def _rearm(self) -> None:
        """Set every watch again after a reconnection within the session; the server reports changes meanwhile."""
        seen = self._armed_until
        assert seen is not None
        parts = self._armed.parts()
        if not parts:
            self._armed_until = None
            return

        def done() -> None:  # after an error, the next reconnection tries again
            if not any(isinstance(answer, Exception) for answer in requests.answers):
                self._armed_until = None

        requests = Requests(jute.SET_WATCHES, range(len(parts)), self._watches(seen, parts), _nothing, _refusal, done)
        self._client._call(requests, requests)

    # in trio

    def _report_watch(self, generation: int, event: WatchEvent) -> None:
        if generation != self._live_generation:
            return
        try:
            self.on_watch(event)
        except Exception:
            log.exception("a handler of %s failed", event)

    def _report_session(self, state: SessionState) -> None:
        self._connections += state is SessionState.CONNECTED
        if state in (SessionState.CONNECTED, SessionState.ESTABLISHED):
            self._connected.set()
            self._disconnected = trio.Event() if self._disconnected.is_set() else self._disconnected
            self._expired = trio.Event() if self._expired.is_set() else self._expired
        else:
            self._connected = trio.Event() if self._connected.is_set() else self._connected
            self._disconnected.set()
        if state is SessionState.EXPIRED:
            self._live_generation += 1
            self._expired.set()
        if self._is_closing:
            return
        try:
            self.on_session(state)
        except Exception:
            log.exception("a handler of session state %s failed", state)

    def _refused(self) -> None:
        """kazoo ends its thread when authentication fails, and does not reconnect."""
        self._report_session(SessionState.AUTH_FAILED)
        if self._connected_once:
            log.info("authenticating with ZooKeeper at %s again in %d ms", self._where, AUTH_RETRY_MS)
            self._restart_soon(self._restart)

    def _restart_soon(self, restart: Callable[[], Awaitable[None]]) -> None:
        async def run(scope: trio.CancelScope) -> None:
            with scope:
                await restart()

        self._restart_scope = trio.CancelScope()
        trio.lowlevel.spawn_system_task(run, self._restart_scope)

    async def _replace_session(self) -> None:
        """Close the session, and start another one after a delay."""
        with trio.move_on_after(self._session_timeout_ms / 1000):
            await self._settled()  # without a connection, the session would last until its timeout
        self._is_replacing = False
        if not self._expired.is_set():
            await trio.to_thread.run_sync(self._client.stop)
            await self._restart()

    async def _restart(self) -> None:
        """Start kazoo's thread again after a delay."""
        await trio.sleep(AUTH_RETRY_MS / 1000)
        try:
            await trio.to_thread.run_sync(self._client.start_async)
        except Exception:
            log.exception("ZooKeeper at %s: the connection could not be started again", self._where)


def _nothing(i: int, buffer: bytes, offset: int) -> None:
    """Ignore the content of a response."""


def _refusal(i: int, code: int) -> StoreError:
    return jute.error(code, "/")
