"""ZooKeeper through kazoo: the only file that imports it.

kazoo runs a connection thread. Its handler here runs every completion, watch and state change on that thread, in the
order in which the server sent them, and each only hands a small callback to the trio thread; nothing waits in kazoo's
thread, and nothing of kazoo is seen outside this file.

What kazoo does not do by itself is done here: operations whose connection broke are sent again once it is back (rule
1.52), watches are set again on a reconnect within the session, telling what changed meanwhile, and what belonged to
an ended session is dropped. The file is long because nothing of this may be elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import kazoo.exceptions as kz
import trio
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from controller import store
from controller.store import (
    ANY_VERSION,
    Check,
    Create,
    Data,
    Delete,
    MultiFailed,
    NodeError,
    Op,
    OpResult,
    SessionExpired,
    SessionState,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
    WatchEvent,
    WatchType,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
_NODE_ERRORS: dict[type[Exception], type[NodeError]] = {
    kz.NoNodeError: store.NoNode,
    kz.NodeExistsError: store.NodeExists,
    kz.BadVersionError: store.BadVersion,
    kz.NotEmptyError: store.NotEmpty,
    kz.NoChildrenForEphemeralsError: store.NoChildrenForEphemerals,
    kz.UnimplementedError: store.Unimplemented,
}
_WATCH_TYPES = {
    EventType.CREATED: WatchType.CREATED,
    EventType.CHANGED: WatchType.CHANGED,
    EventType.DELETED: WatchType.DELETED,
    EventType.CHILD: WatchType.CHILDREN,
}


class _CreateContainer(Create2):
    """What kazoo lacks: ZooKeeper's createContainer, since 3.6."""

    type = 19
    FLAGS = 4


class _Inline(queue.Queue):  # type: ignore[type-arg]
    """A queue that runs what is put into it. kazoo's stop marker is no function, and means nothing here."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if callable(item):
            try:
                item()
            except Exception:
                log.exception("a ZooKeeper callback failed")


class _Handler(SequentialThreadingHandler):
    """Runs callbacks on kazoo's connection thread, and waits for sockets by poll(): one system call where the selector
    that kazoo makes for every packet takes five (60% of its time in a bulk read)."""

    queue_impl = _Inline

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poller = select.poll()
        by_fd: dict[int, Any] = {}
        for items, mask in ((rlist, select.POLLIN | select.POLLPRI), (wlist, select.POLLOUT)):
            for item in items:
                fd = item if isinstance(item, int) else item.fileno()
                if fd < 0:
                    raise OSError("closed")
                by_fd[fd] = item
                poller.register(fd, mask)
        ready = poller.poll(None if timeout is None else max(0.0, timeout * 1000))
        broken = select.POLLHUP | select.POLLERR
        readable = [by_fd[fd] for fd, event in ready if event & (select.POLLIN | select.POLLPRI | broken)]
        writable = [by_fd[fd] for fd, event in ready if event & (select.POLLOUT | broken)]
        return [r for r in readable if r in rlist], [w for w in writable if w in wlist], []


class _Pending:
    """The answers to one batch of asynchronous calls; wakes its trio task once, when the last has come."""

    def __init__(self, token: trio.lowlevel.TrioToken, count: int) -> None:
        self.answers: list[Any] = [None] * count
        self._token = token
        self._missing = count
        self._lock = threading.Lock()
        self.done = trio.Event()

    def expect(self, index: int, result: Any, read: Callable[[Any], Any]) -> None:
        def completed(finished: Any) -> None:
            try:
                self.answers[index] = read(finished.get_nowait())
            except Exception as e:  # noqa: BLE001 - kazoo raises what it pleases here; the waiting task sorts it
                self.answers[index] = e
            with self._lock:
                self._missing -= 1
                if self._missing:
                    return
            _in_trio(self._token, self.done.set)

        result.rawlink(completed)


def _in_trio(token: trio.lowlevel.TrioToken, call: Callable[..., object], *args: object) -> None:
    try:
        token.run_sync_soon(call, *args)
    except trio.RunFinishedError:
        log.debug("ZooKeeper said something after the end: %s", call)


def _stat(s: ZnodeStat) -> Stat:
    return Stat(
        czxid=s.czxid, mzxid=s.mzxid, ctime=s.ctime, mtime=s.mtime, version=s.version, cversion=s.cversion,
        ephemeral_owner=s.ephemeralOwner, pzxid=s.pzxid,
    )  # fmt: skip


class KazooStore(store.MetadataStore):
    """A ZooKeeper session. Made by ``connect``; all methods belong to the trio thread that called it."""

    def __init__(self, client: KazooClient, where: str, token: trio.lowlevel.TrioToken) -> None:
        self.on_watch: Callable[[WatchEvent], None] = lambda event: None
        self.on_session: Callable[[SessionState], None] = lambda state: None
        self._client = client
        self._where = where
        self._token = token
        # of the connection thread: (children?, path) -> (czxid, mzxid or pzxid) when the watch was set, None if absent
        self._armed: dict[tuple[bool, str], tuple[int, int] | None] = {}
        # (children?, path) -> the one function that kazoo is given for it: it tells each of a path's functions
        self._watchers: dict[tuple[bool, str], Callable[[WatchedEvent], None]] = {}
        self._generation = 0
        self._connected_once = False
        self._lost = False
        self._session_timeout_ms: int = client._session_timeout
        self._knows_containers = True
        # of the trio thread
        self._live_generation = 0
        self._connected = trio.Event()
        self._expired = trio.Event()

    @classmethod
    async def connect(
        cls,
        connect_string: str,
        *,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        auth: Sequence[tuple[str, str]] = (),
        creator_only: bool = False,
    ) -> KazooStore:
        """Connect to ``host:port[,host:port...][/chroot]``, making the chroot if it is missing (rule 1.4).

        ``auth`` are pairs of scheme and credential, such as ("digest", "user:password"); with ``creator_only`` the
        nodes that are made belong to that identity alone, and to everyone otherwise (rule E1.17).

        Raises StoreUnavailable when no server has answered within ``connection_timeout_ms``.
        """
        hosts, slash, chroot = connect_string.partition("/")
        if slash and chroot.strip("/"):
            root = await cls._started(hosts, session_timeout_ms, connection_timeout_ms, auth, creator_only)
            try:
                await trio.to_thread.run_sync(root._client.ensure_path, "/" + chroot.strip("/"))
            finally:
                await root.aclose()
            hosts = f"{hosts}/{chroot.strip('/')}"
        return await cls._started(hosts, session_timeout_ms, connection_timeout_ms, auth, creator_only)

    @classmethod
    async def _started(
        cls,
        hosts: str,
        session_timeout_ms: int,
        connection_timeout_ms: int,
        auth: Sequence[tuple[str, str]],
        creator_only: bool,
    ) -> KazooStore:
        try:
            client = KazooClient(
                hosts=hosts,
                timeout=session_timeout_ms / 1000,
                handler=_Handler(),
                # a lost connection is sought again quickly, for as long as it takes
                connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 1.0},
                logger=logging.getLogger("kazoo"),
                auth_data=list(auth),
                default_acl=CREATOR_ALL_ACL if creator_only else None,
            )
        except ValueError as e:
            raise StoreUnavailable(
                f"zookeeper.connect {hosts!r} is not host:port[,host:port...][/chroot]: {e}"
            ) from None
        made = cls(client, hosts, trio.lowlevel.current_trio_token())
        client.add_listener(made._state_changed)
        made._note_negotiated_timeout()
        try:
            await trio.to_thread.run_sync(client.start, connection_timeout_ms / 1000, abandon_on_cancel=True)
        except KazooTimeoutError:
            raise StoreUnavailable(
                f"no ZooKeeper answers at {hosts} within {connection_timeout_ms} ms: is it running at that address?"
            ) from None
        await made._connected.wait()
        return made

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return client_id[0] if client_id else 0

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    def _note_negotiated_timeout(self) -> None:
        """kazoo keeps what it asked for; of what the server granted it only tells two thirds, as its read timeout."""
        connection = self._client._connection
        connect = connection._connect

        def noted(*args: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*args)
            self._session_timeout_ms = round(read_timeout * 1.5)
            return read_timeout, connect_timeout

        connection._connect = noted

    async def aclose(self) -> None:
        def stop() -> None:
            if self._client._stopped.is_set():  # abandoned
                self._client._connection.stop(10)
            else:
                self._client.stop()
            self._client.close()

        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(stop)

    def abandon(self) -> None:
        """Break off without ending the session, as the death of a process does; nothing can be asked afterwards."""
        self._client._stopped.set()
        connected: socket.socket | None = self._client._connection._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    # reads

    async def get_data(self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False) -> list[Data | StoreError]:
        watched = [watch] * len(paths) if isinstance(watch, bool) else watch

        def call(i: int) -> Any:
            return self._client.get_async(paths[i], watch=self._watcher(False, paths[i]) if watched[i] else None)

        def read(i: int) -> Callable[[Any], Data]:
            def made(answer: tuple[bytes | None, ZnodeStat]) -> Data:
                data, stat = answer
                if watched[i]:
                    self._armed[False, paths[i]] = (stat.czxid, stat.mzxid)
                return Data(data or b"", _stat(stat))

            return made

        return await self._batch(paths, call, read)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        def call(i: int) -> Any:
            return self._client.exists_async(paths[i], watch=self._watcher(False, paths[i]) if watch else None)

        def read(i: int) -> Callable[[Any], Stat | None]:
            def made(answer: ZnodeStat | None) -> Stat | None:
                if watch:
                    self._armed[False, paths[i]] = answer and (answer.czxid, answer.mzxid)
                return answer and _stat(answer)

            return made

        return [store.value(answer) for answer in await self._batch(paths, call, read)]

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        def call(i: int) -> Any:
            watcher = self._watcher(True, paths[i]) if watch else None
            return self._client.get_children_async(paths[i], watch=watcher, include_data=True)

        def read(i: int) -> Callable[[Any], list[str]]:
            def made(answer: tuple[list[str], ZnodeStat]) -> list[str]:
                names, stat = answer
                if watch:
                    self._armed[True, paths[i]] = (stat.czxid, stat.pzxid)
                return sorted(names)

            return made

        return await self._batch(paths, call, read)

    # writes

    async def write(self, ops: Sequence[Op]) -> list[OpResult | StoreError]:
        def call(i: int) -> Any:
            op = ops[i]
            match op:
                case Create(container=True) if self._knows_containers:
                    return self._create_container(op)
                case Create():
                    return self._client.create_async(op.path, op.data, ephemeral=op.ephemeral, sequence=op.sequential)
                case SetData():
                    return self._client.set_async(op.path, op.data, version=op.version)
                case Delete():
                    return self._client.delete_async(op.path, version=op.version)
                case Check():
                    return self._commit([op])

        def read(i: int) -> Callable[[Any], OpResult]:
            match ops[i]:
                case Check():
                    return lambda answer: _op_result(answer[0])
                case Create(container=True) if self._knows_containers:
                    return lambda answer: str(self._client.unchroot(answer[0]))
            return _op_result

        answers = await self._batch([op.path for op in ops], call, read)
        if any(isinstance(answer, store.Unimplemented) for answer in answers) and self._knows_containers:
            self._knows_containers = False
            todo = [i for i, answer in enumerate(answers) if isinstance(answer, store.Unimplemented)]
            for i, answer in zip(todo, await self.write([ops[i] for i in todo]), strict=True):
                answers[i] = answer
        return answers

    def _create_container(self, op: Create) -> Any:
        result = self._client.handler.async_result()
        acl = self._client.default_acl or OPEN_ACL_UNSAFE
        path = _prefix_root(self._client.chroot, op.path)
        self._client._call(_CreateContainer(path, op.data, acl, _CreateContainer.FLAGS), result)
        return result

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        def read(i: int) -> Callable[[Any], list[OpResult] | MultiFailed]:
            def made(answers: list[Any]) -> list[OpResult] | MultiFailed:
                for index, answer in enumerate(answers):
                    # operations before the failing one are told RolledBack, those after it RuntimeInconsistency
                    if isinstance(answer, Exception) and not isinstance(answer, kz.RolledBackError):
                        return MultiFailed(index, _translate(answer, groups[i][index].path))
                return [_op_result(answer) for answer in answers]

            return made

        answers = await self._batch([group[0].path for group in groups], lambda i: self._commit(groups[i]), read)
        return [answer if isinstance(answer, MultiFailed) else store.value(answer) for answer in answers]

    def _commit(self, ops: Sequence[Op]) -> Any:
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create():
                    transaction.create(op.path, op.data, ephemeral=op.ephemeral, sequence=op.sequential)
                case SetData():
                    transaction.set_data(op.path, op.data, version=op.version)
                case Delete():
                    transaction.delete(op.path, version=op.version)
                case Check():
                    transaction.check(op.path, op.version)
        return transaction.commit_async()

    # the batch and its repetition

    async def _batch(
        self, paths: Sequence[str], call: Callable[[int], Any], read: Callable[[int], Callable[[Any], T]]
    ) -> list[T | StoreError]:
        """Call for every index at once; what a broken connection took is called again when there is a new one."""
        generation = self._live_generation
        answers: list[Any] = [None] * len(paths)
        todo = list(range(len(paths)))
        while todo:
            pending = _Pending(self._token, len(todo))
            for place, index in enumerate(todo):
                pending.expect(place, call(index), read(index))
            await pending.done.wait()
            again = []
            for index, answer in zip(todo, pending.answers, strict=True):
                if isinstance(answer, (kz.ConnectionLoss, kz.ConnectionClosedError)):
                    again.append(index)
                elif isinstance(answer, (kz.SessionExpiredError, kz.SessionMovedError)):
                    raise SessionExpired(f"the ZooKeeper session at {self._where} has ended")
                elif isinstance(answer, Exception) and not isinstance(answer, StoreError):
                    answers[index] = _translate(answer, paths[index])
                else:
                    answers[index] = answer
            todo = again
            if todo:
                await self._reconnected(generation)
        return answers

    async def _reconnected(self, generation: int) -> None:
        """Wait until there is a connection again. Raises SessionExpired if it belongs to another session."""
        if self._client._stopped.is_set():
            raise SessionExpired(f"the ZooKeeper session at {self._where} was closed")
        async with trio.open_nursery() as nursery:
            for event in (self._connected, self._expired):

                async def first(event: trio.Event = event) -> None:
                    await event.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(first)
        if self._live_generation != generation or self._expired.is_set():
            raise SessionExpired(f"the ZooKeeper session at {self._where} has ended")

    # on kazoo's connection thread

    def _watcher(self, children: bool, path: str) -> Callable[[WatchedEvent], None]:
        known = self._watchers.get((children, path))
        if known is not None:
            return known
        generation = self._generation

        def fired(event: WatchedEvent) -> None:
            kind = _WATCH_TYPES.get(event.type)
            if kind is None:  # kazoo drops its watches with the connection; see _rearm
                return
            self._armed.pop((children, path), None)
            self._watchers.pop((children, path), None)
            _in_trio(self._token, self._tell_watch, generation, WatchEvent(kind, path))

        return self._watchers.setdefault((children, path), fired)

    def _state_changed(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            if not self._connected_once:
                self._connected_once = True
            elif self._lost:
                self._lost = False
                _in_trio(self._token, self._tell_session, SessionState.ESTABLISHED)
            else:
                self._rearm()
            _in_trio(self._token, self._tell_session, SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            _in_trio(self._token, self._tell_session, SessionState.DISCONNECTED)
        else:
            self._lost = True
            self._generation += 1
            self._armed.clear()
            self._watchers.clear()
            _in_trio(self._token, self._tell_session, SessionState.EXPIRED)

    def _rearm(self) -> None:
        """After a reconnect within the session: set every watch again, and tell those whose node changed meanwhile."""
        armed, self._armed = self._armed, {}
        for (children, path), seen in armed.items():
            watcher = self._watcher(children, path)
            looked = self._client.exists_async(path, watch=None if children else watcher)
            looked.rawlink(self._compare(children, path, seen, watcher))

    def _compare(
        self, children: bool, path: str, seen: tuple[int, int] | None, watcher: Callable[[WatchedEvent], None]
    ) -> Callable[[Any], None]:
        def completed(finished: Any) -> None:
            try:
                stat = finished.get_nowait()
            except Exception as e:  # noqa: BLE001 - the next reconnect, or the end of the session, settles it
                log.debug("watch on %s not set again: %s", path, e)
                self._armed[children, path] = seen
                return
            now = stat and (stat.czxid, stat.pzxid if children else stat.mzxid)
            if now == seen:
                self._armed[children, path] = seen
                if children:
                    self._client.get_children_async(path, watch=watcher)
                return
            kind = WatchType.DELETED if now is None else WatchType.CHILDREN if children else WatchType.CHANGED
            if seen is None:
                kind = WatchType.CREATED
            _in_trio(self._token, self._tell_watch, self._generation, WatchEvent(kind, path))

        return completed

    # in trio

    def _tell_watch(self, generation: int, event: WatchEvent) -> None:
        if generation != self._live_generation:
            return
        try:
            self.on_watch(event)
        except Exception:
            log.exception("a handler of %s failed", event)

    def _tell_session(self, state: SessionState) -> None:
        if state in (SessionState.CONNECTED, SessionState.ESTABLISHED):
            self._connected.set()
            self._expired = trio.Event() if self._expired.is_set() else self._expired
        else:
            self._connected = trio.Event() if self._connected.is_set() else self._connected
        if state is SessionState.EXPIRED:
            self._live_generation += 1
            self._expired.set()
        try:
            self.on_session(state)
        except Exception:
            log.exception("a handler of session state %s failed", state)


def _translate(error: Exception, path: str) -> StoreError:
    known = _NODE_ERRORS.get(type(error))
    return known(path) if known else StoreError(f"{type(error).__name__} on {path}: {error}")


def _op_result(answer: Any) -> OpResult:
    if isinstance(answer, ZnodeStat):
        return _stat(answer)
    return answer if isinstance(answer, str) else None


assert ANY_VERSION == -1  # what kazoo takes for "any" as well
