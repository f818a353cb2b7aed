"""ZooKeeper through kazoo: the only file that imports it.

kazoo runs a connection thread. Our handler runs completions, watches and state changes on that thread, in the server's
order. Each only passes a small callback to the Trio thread, and nothing waits on kazoo's thread.

This module adds to kazoo: bulk reads with multiRead (ZooKeeper 3.6), writes in multis, a retry of operations after a
connection loss (rule 1.52), watches that survive a reconnection and report changes meanwhile, and a generation count
that drops events of an ended session. It is long because only this module may use kazoo; `jute` has the serialization.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import logging
import queue
import socket
import ssl
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import kazoo.exceptions as kz
import kazoo.protocol.connection
import kazoo.retry
import kazoo.version
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent

from kce.zookeeper import store
from kce.zookeeper.store import (
    AUTH_RETRY_MS,
    OPEN_ACL,
    Acls,
    Check,
    Create,
    MultiFailed,
    NodeData,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    Stat,
    StoreError,
    StoreUnavailable,
    WatchEvent,
    WatchType,
    jute,
)
from kce.zookeeper.store.buffered_socket import BufferedSocket, Poller, WakeUp
from kce.zookeeper.store.interruptions import Interruptions, Verdict
from kce.zookeeper.store.pipeline import Requests, in_trio, take_over

log = logging.getLogger(__name__)

T = TypeVar("T")

# larger requests are not faster
_BULK_FROM = 4
_BULK_FIRST, _GROWTH, _BULK_MOST, _BULK_WINDOW = 32, 8, 1000, 16

# its threads draw random numbers, which must not disturb those that the program has seeded
kazoo.protocol.connection.random = kazoo.retry.random = Random()

KAZOO_VERSION: str = kazoo.version.__version__
#: how long closing may take; a server that does not answer ends the session later
CLOSE_TIMEOUT_S = 10.0
#: the release whose private methods this file and `pipeline` replace; pyproject.toml requires it
TESTED_KAZOO = "2.11"

_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.CHANGED: WatchType.CHANGED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHILD: WatchType.CHILDREN,
}


class _Inline(queue.Queue):  # type: ignore[type-arg]
    """A queue that runs the functions put into it, and ignores kazoo's stop marker."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if callable(item):
            try:
                item()
            except Exception:
                log.exception("a ZooKeeper callback failed")


class _Handler(SequentialThreadingHandler):
    """Runs callbacks on kazoo's connection thread, and gives it buffered sockets."""

    queue_impl = _Inline

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.poller = Poller()
        self._tls = tls

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> BufferedSocket:
        """Use our TLS context: kazoo's would trust all certificates of the machine."""
        connected = socket.create_connection(address, timeout)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return BufferedSocket(connected)
        try:
            return BufferedSocket(self._tls.wrap_socket(connected, server_hostname=hostname))
        except BaseException:
            connected.close()
            raise

    def create_socket_pair(self) -> tuple[WakeUp, WakeUp]:
        wake_up = WakeUp()
        return wake_up, wake_up

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        return self.poller.wait(rlist, wlist, timeout)


class _Watch(enum.Enum):
    """Kinds of watches in setWatches: on an existing node, on a missing node, on children."""

    DATA = "data"
    EXIST = "exist"
    CHILD = "child"


#: the watches that an event uses up
_USED_UP = {
    WatchType.CREATED: (_Watch.EXIST,),
    WatchType.CHANGED: (_Watch.DATA,),
    WatchType.DELETED: (_Watch.DATA, _Watch.CHILD),
    WatchType.CHILDREN: (_Watch.CHILD,),
}


class KazooStore(store.MetadataStore):
    """A ZooKeeper session. Create it with ``connect``, and use it in that Trio run's thread."""

    def __init__(self, client: KazooClient, where: str, token: trio.lowlevel.TrioToken) -> None:
        self.on_watch: Callable[[WatchEvent], None] = lambda event: None
        self.on_session: Callable[[SessionState], None] = lambda state: None
        self._client = client
        self._where = where
        self._token = token
        # of the connection thread: watched paths by kind
        self._armed: dict[_Watch, set[str]] = {kind: set() for kind in _Watch}
        # after a connection loss, the zxid from which the server must report changes; None when all watches are set
        self._armed_until: int | None = None
        self._last_fired: WatchedEvent | None = None
        self._generation = 0
        self._connected_once = False
        self._lost = False
        self._was_refused = False
        self._session_timeout_ms: int = client._session_timeout
        self._knows_containers = True
        # of the trio thread
        self._live_generation = 0
        self._connected = trio.Event()
        self._disconnected = trio.Event()
        #: counts connections
        self._connections = 0
        self._expired = trio.Event()
        self._has_multi_read = True
        self._acls_of: Callable[[str], Acls] = _open
        self._restart_scope: trio.CancelScope | None = None
        self._is_replacing = False

    @classmethod
    async def connect(
        cls,
        connect_string: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        auth: Sequence[tuple[str, str]] = (),
        acls_of: Callable[[str], Acls] | None = None,
        tls: ssl.SSLContext | None = None,
        create_chroot: bool = True,
    ) -> KazooStore:
        """Connect to ``host:port[,host:port...][/chroot]``. Creates a missing chroot (rule 1.4) if ``create_chroot``.

        ``auth``: pairs of scheme and credential, such as ("digest", "user:password"). With ``tls`` the connection is
        encrypted, and our certificate is an identity too. ``acls_of`` gives the ACL of a new node, by its path below
        the chroot; the default is open.

        Raises StoreUnavailable if no server answers within ``connection_timeout_ms``, if it refuses ``auth``, if the
        chroot is missing, and for an untested version of kazoo.
        """
        if not f"{KAZOO_VERSION}.".startswith(f"{TESTED_KAZOO}."):
            raise StoreUnavailable(
                f"kazoo {KAZOO_VERSION} is installed: ZooKeeper is reached through kazoo {TESTED_KAZOO} only; "
                f"pip install 'kazoo=={TESTED_KAZOO}.*'"
            )
        timeouts = session_timeout_ms, connection_timeout_ms
        hosts, slash, chroot = connect_string.partition("/")
        if slash and chroot.strip("/"):
            root = await cls._started(hosts, *timeouts, auth, tls)
            if acls_of is not None:
                root._acls_of = acls_of
            try:
                await root._enter("/" + chroot.strip("/"), create=create_chroot)
            finally:
                await root.aclose()
            hosts = f"{hosts}/{chroot.strip('/')}"
        made = await cls._started(hosts, *timeouts, auth, tls)
        if acls_of is not None:
            made._acls_of = acls_of
        return made

    async def _enter(self, chroot: str, *, create: bool) -> None:
        """Create missing nodes of the chroot. Raises StoreUnavailable."""
        names = chroot.strip("/").split("/")
        paths = ["/" + "/".join(names[: i + 1]) for i in range(len(names))]
        there = await self.exists(paths)
        if not create and there[-1] is None:
            raise StoreUnavailable(f"there is no {chroot} in ZooKeeper at {self._where}")
        missing = [path for path, stat in zip(paths, there, strict=True) if stat is None]
        for path, answer in zip(missing, await self.write([Create(path) for path in missing]), strict=True):
            if isinstance(answer, StoreError) and not isinstance(answer, store.NodeExists):
                why = "it is not allowed" if isinstance(answer, store.NoAuth) else answer
                raise StoreUnavailable(f"{path} cannot be made in ZooKeeper at {self._where}: {why}")

    @classmethod
    async def _started(
        cls,
        hosts: str,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        auth: Sequence[tuple[str, str]],
        tls: ssl.SSLContext | None,
    ) -> KazooStore:
        try:
            client = KazooClient(
                hosts=hosts,
                timeout=session_timeout_ms / 1000,
                handler=_Handler(tls),
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
        take_over(client)
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
            return read_timeout, connect_timeout

        connection._connect = noted

    async def aclose(self) -> None:
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

    # reads

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        watched = [watch] * len(paths) if isinstance(watch, bool) else watch
        seen = self._client.last_zxid
        if seen and len(paths) >= _BULK_FROM:
            answers = await self._in_bulk(jute.GET_DATA, jute.read_data, paths)
            if answers is not None:
                found = [p for p, w, a in zip(paths, watched, answers, strict=True) if w and isinstance(a, NodeData)]
                await self._set_watches(seen, {_Watch.DATA: found})
                return answers

        def body(i: int) -> bytes:
            return jute.read(jute.whole(self._client.chroot, paths[i]), watch=watched[i])

        def read(i: int, buffer: bytes, offset: int) -> NodeData:
            if watched[i]:
                self._arm(_Watch.DATA, (paths[i],))
            return jute.read_node(buffer, offset)

        return await self._batch(jute.GET_DATA, paths, body, read)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        def body(i: int) -> bytes:
            return jute.read(jute.whole(self._client.chroot, paths[i]), watch=watch)

        def read(i: int, buffer: bytes, offset: int) -> Stat:
            if watch:
                self._arm(_Watch.DATA, (paths[i],))
            return jute.read_stat(buffer, offset)

        def failed(i: int, code: int) -> StoreError | None:
            if code != jute.NO_NODE:
                return jute.error(code, paths[i])
            if watch:
                self._arm(_Watch.EXIST, (paths[i],))
            return None

        return [store.value(answer) for answer in await self._batch(jute.EXISTS, paths, body, read, failed)]

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        if not watch and len(paths) >= _BULK_FROM:
            answers = await self._in_bulk(jute.GET_CHILDREN, jute.read_children, paths)
            if answers is not None:
                return answers

        def body(i: int) -> bytes:
            return jute.read(jute.whole(self._client.chroot, paths[i]), watch=watch)

        def read(i: int, buffer: bytes, offset: int) -> list[str]:
            if watch:
                self._arm(_Watch.CHILD, (paths[i],))
            return jute.read_names(buffer, offset)

        return await self._batch(jute.GET_CHILDREN, paths, body, read)

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        def body(i: int) -> bytes:
            return jute.get_acl(jute.whole(self._client.chroot, paths[i]))

        return await self._batch(jute.GET_ACL, paths, body, lambda i, *answer: jute.read_acls(*answer))

    def _arm(self, kind: _Watch, paths: Sequence[str]) -> None:
        """Register watches, on the connection thread, before the next response is read."""
        self._armed[kind].update(paths)
        watchers = self._client._child_watchers if kind is _Watch.CHILD else self._client._data_watchers
        for path in paths:
            watchers[jute.whole(self._client.chroot, path)].add(self._fired)

    async def _in_bulk(
        self, opcode: int, read: Callable[[bytes, int, Sequence[str]], list[T | StoreError]], paths: Sequence[str]
    ) -> list[T | StoreError] | None:
        """Read by pipelined multiRead requests. None if the server has no multiRead.

        The first request is small and alone: it shows whether the server has multiRead, and how large its responses
        are. Later requests grow by a limited factor, as far as the size of the responses allows.
        """

        def read_part(i: int, buffer: bytes, offset: int) -> tuple[list[T | StoreError], int]:
            return read(buffer, offset, parts[i]), len(buffer)

        answers: list[T | StoreError] = []
        size, window = _BULK_FIRST, 1
        while len(answers) < len(paths):
            if not self._has_multi_read:
                return None
            begins = range(len(answers), min(len(answers) + window * size, len(paths)), size)
            parts = [paths[begin : begin + size] for begin in begins]
            bodies = [jute.multi_read(opcode, part, self._client.chroot) for part in parts]
            firsts = [part[0] for part in parts]
            read_parts = await self._batch(jute.MULTI_READ, firsts, bodies.__getitem__, read_part)
            if isinstance(read_parts[0], store.Unimplemented):
                # servers before 3.6 close the connection after this response; the session continues
                log.info("ZooKeeper at %s has no multiRead: reading nodes one by one", self._where)
                self._has_multi_read = False
                continue
            largest = 1.0
            for part, body, got in zip(parts, bodies, read_parts, strict=True):
                answer, answer_bytes = store.value(got)
                answers += answer
                largest = max(largest, len(body) / len(part), answer_bytes / len(part))
            size = max(1, min(size * _GROWTH, _BULK_MOST, int(jute.REQUEST_BYTES / largest)))
            window = min(window * _GROWTH, _BULK_WINDOW)
        return answers

    async def _set_watches(self, seen: int, paths: Mapping[_Watch, Sequence[str]]) -> None:
        """Watch all paths; watches of changes after zxid ``seen`` fire at once."""
        parts = list(_watch_parts(paths))
        body = self._watches(seen, parts)
        for answer in await self._batch(jute.SET_WATCHES, ["/"] * len(parts), body, _nothing):
            store.value(answer)

    def _watches(self, seen: int, parts: Sequence[Mapping[_Watch, Sequence[str]]]) -> Callable[[int], bytes]:
        """Bodies of setWatches. Registers the watches when it is sent, because they may fire before its response."""

        def body(i: int) -> bytes:
            for kind, watched in parts[i].items():
                self._arm(kind, watched)
            whole = ([jute.whole(self._client.chroot, path) for path in parts[i].get(kind, ())] for kind in _Watch)
            return jute.set_watches(seen, *whole)

        return body

    # writes

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        if fence is not None:
            return await self._write_batches(ops, [fence])
        results: list[OpResult | StoreError] = []
        for container, run in itertools.groupby(ops, lambda op: isinstance(op, Create) and op.container):
            part = list(run)
            results += await (self._create_containers(part) if container else self._write_batches(part, []))
        return results

    async def _write_batches(self, ops: Sequence[Op], head: list[Op]) -> list[OpResult | StoreError]:
        """Write many operations in each multi, behind ``head``; split a multi in which an operation fails."""
        results: dict[int, OpResult | StoreError] = {}
        batches = list(jute.batches(ops))
        groups = [[*head, *ops[b.start : b.stop]] for b in batches]
        apart: list[int] = []
        for indexes, answer in zip(batches, await self.multi(groups), strict=True):
            if not isinstance(answer, MultiFailed):
                results.update(zip(indexes, answer[len(head) :], strict=True))
            elif answer.index < len(head):
                raise answer
            elif len(indexes) == 1:
                results[indexes[0]] = answer.error
            else:
                apart += indexes
        for index, answer in zip(apart, await self.multi([[*head, ops[i]] for i in apart]), strict=True):
            if not isinstance(answer, MultiFailed):
                results[index] = answer[-1]
            elif answer.index < len(head):
                raise answer
            else:
                results[index] = answer.error
        return [results[i] for i in range(len(ops))]

    async def _create_containers(self, ops: Sequence[Op]) -> list[OpResult | StoreError]:
        """Create containers outside a multi, since older servers cannot parse such a multi."""
        made = [op for op in ops if isinstance(op, Create)]
        if not self._knows_containers:
            return await self._write_batches(made, [])

        chroot = self._client.chroot

        def body(i: int) -> bytes:
            return jute.create_container(made[i], chroot, self._acls_of(made[i].path))

        def read(i: int, buffer: bytes, offset: int) -> OpResult:
            return jute.read_path(buffer, offset)[len(chroot) :]

        answers = await self._batch(jute.CREATE_CONTAINER, [op.path for op in made], body, read)
        if not any(isinstance(answer, store.Unimplemented) for answer in answers):
            return answers
        self._knows_containers = False
        again = await self._write_batches(made, [])
        return [b if isinstance(a, store.Unimplemented) else a for a, b in zip(answers, again, strict=True)]

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        chroot = self._client.chroot
        sizes = [sum(map(jute.op_bytes, group)) for group in groups]
        sent = [group for group, size in zip(groups, sizes, strict=True) if size <= store.MAX_REQUEST_BYTES]
        large = {i for i, group in enumerate(sent) if sum(map(jute.op_bytes, group)) > store.DEFAULT_JUTE_MAXBUFFER}

        def body(i: int) -> bytes:
            return jute.multi(sent[i], chroot, self._acls_of)

        def read(i: int, buffer: bytes, offset: int) -> list[OpResult] | MultiFailed:
            return jute.read_multi(buffer, offset, sent[i], chroot)

        paths = [group[-1].path for group in sent]  # not of the fence, which is the first
        answers = iter(await self._batch(jute.MULTI, paths, body, read, large=large))
        results: list[list[OpResult] | MultiFailed] = []
        for group, size in zip(groups, sizes, strict=True):
            answer = store.TooLarge(group[-1].path) if size > store.MAX_REQUEST_BYTES else next(answers)
            if isinstance(answer, store.TooLarge):
                answer = jute.too_large(group)
            results.append(answer if isinstance(answer, MultiFailed) else store.value(answer))
        return results

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        def body(i: int) -> bytes:
            return jute.set_acl(jute.whole(self._client.chroot, paths[i]), acls)

        return await self._batch(jute.SET_ACL, paths, body, lambda i, *answer: jute.read_stat(*answer))

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
                opcode, todo, body, read, failed or error, functools.partial(in_trio, self._token, done.set)
            )
            self._client._call(requests, requests)
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

    # on kazoo's connection thread

    def _fired(self, event: WatchedEvent) -> None:
        """The only watcher that kazoo gets, for every path. kazoo calls it twice with one event if data and
        children of a deleted node were watched."""
        kind = _WATCH_TYPES.get(event.type)
        if kind is None or event is self._last_fired:  # None: kazoo drops its watches on a disconnection; see _rearm
            return
        self._last_fired = event
        for used_up in _USED_UP[kind]:
            self._armed[used_up].discard(event.path)
        in_trio(self._token, self._report_watch, self._generation, WatchEvent(kind, event.path))

    def _connection_made(self) -> None:
        if self._lost:
            self._lost = False
            in_trio(self._token, self._report_session, SessionState.ESTABLISHED)
        elif self._connected_once:
            self._rearm()
        self._connected_once = True
        in_trio(self._token, self._report_session, SessionState.CONNECTED)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:  # see _note_connections
            return
        if state == KazooState.SUSPENDED:
            if self._armed_until is None:
                self._armed_until = self._client.last_zxid
            in_trio(self._token, self._report_session, SessionState.DISCONNECTED)
        else:
            self._lost = True
            self._generation += 1
            self._armed_until = None
            for watched in self._armed.values():
                watched.clear()
            if self._client._state == KeeperState.AUTH_FAILED:
                self._was_refused = True
                in_trio(self._token, self._refused)
            in_trio(self._token, self._report_session, SessionState.EXPIRED)

    def _rearm(self) -> None:
        """Set every watch again after a reconnection within the session; the server reports changes meanwhile."""
        seen = self._armed_until
        assert seen is not None
        parts = list(_watch_parts({kind: sorted(watched) for kind, watched in self._armed.items()}))
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


def _open(path: str) -> Acls:
    return OPEN_ACL


def _nothing(i: int, buffer: bytes, offset: int) -> None:
    """Ignore the content of a response."""


def _refusal(i: int, code: int) -> StoreError:
    return jute.error(code, "/")


def _watch_parts(paths: Mapping[_Watch, Sequence[str]]) -> Iterator[dict[_Watch, Sequence[str]]]:
    for kind, watched in paths.items():
        for begin in range(0, len(watched), _BULK_MOST):
            yield {kind: watched[begin : begin + _BULK_MOST]}
