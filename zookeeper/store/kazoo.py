"""The metadata store on a ZooKeeper session: reads, in bulk with multiRead (ZooKeeper 3.6), and writes, in multis."""

from __future__ import annotations

import functools
import itertools
import logging
import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import trio

from kce.zookeeper import store
from kce.zookeeper.store import (
    OPEN_ACL,
    Acls,
    Check,
    Create,
    MultiFailed,
    NodeData,
    Op,
    OpResult,
    Stat,
    StoreError,
    StoreUnavailable,
    jute,
)
from kce.zookeeper.store.armed_watches import Watch
from kce.zookeeper.store.children import Children
from kce.zookeeper.store.kazoo_session import KazooSession

log = logging.getLogger(__name__)

T = TypeVar("T")

# larger requests are not faster
_BULK_FROM = 4
_BULK_FIRST, _GROWTH, _BULK_MOST, _BULK_WINDOW = 32, 8, 1000, 64


class KazooStore(KazooSession, store.MetadataStore):
    """A ZooKeeper session. Create it with ``connect``, and use it in that Trio run's thread."""

    def __init__(self, client: Any, where: str, token: trio.lowlevel.TrioToken) -> None:
        super().__init__(client, where, token)
        self._acls_of: Callable[[str], Acls] = lambda path: OPEN_ACL
        #: what is watched is read again
        self._watched_children: defaultdict[str, Children] = defaultdict(Children)
        self._has_multi_read = True
        self._knows_containers = True
        #: the most bytes of a node, by the connection and the decoder that read it
        self._decoded_bytes: dict[tuple[int, object], float] = {}

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
                await self._set_watches(seen, {Watch.DATA: found})
                return answers

        def body(i: int) -> bytes:
            return jute.read(jute.whole(self._client.chroot, paths[i]), watch=watched[i])

        def read(i: int, buffer: bytes, offset: int) -> NodeData:
            if watched[i]:
                self._arm(Watch.DATA, (paths[i],))
            return jute.read_node(buffer, offset)

        return await self._batch(jute.GET_DATA, paths, body, read)

    async def get_decoded(self, paths: Sequence[str], decode: Callable[[bytes, int], T]) -> list[T | StoreError]:
        if self._client.last_zxid and len(paths) >= _BULK_FROM:
            read = functools.partial(jute.read_decoded, decode)
            answers = await self._in_bulk(jute.GET_DATA, read, paths, (self._connections, decode))
            if answers is not None:
                return answers
        return await super().get_decoded(paths, decode)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        def body(i: int) -> bytes:
            return jute.read(jute.whole(self._client.chroot, paths[i]), watch=watch)

        def read(i: int, buffer: bytes, offset: int) -> Stat:
            if watch:
                self._arm(Watch.DATA, (paths[i],))
            return jute.read_stat(buffer, offset)

        def failed(i: int, code: int) -> StoreError | None:
            if code != jute.NO_NODE:
                return jute.error(code, paths[i])
            if watch:
                self._arm(Watch.EXIST, (paths[i],))
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
            if not watch:
                return jute.read_names(buffer, offset)
            self._arm(Watch.CHILD, (paths[i],))
            return self._watched_children[paths[i]].read(buffer, offset)

        return await self._batch(jute.GET_CHILDREN, paths, body, read)

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        def body(i: int) -> bytes:
            return jute.get_acl(jute.whole(self._client.chroot, paths[i]))

        return await self._batch(jute.GET_ACL, paths, body, lambda i, *answer: jute.read_acls(*answer))

    async def _in_bulk(
        self,
        opcode: int,
        read: Callable[[bytes, int, Sequence[str]], list[T | StoreError]],
        paths: Sequence[str],
        kind: tuple[int, object] | None = None,
    ) -> list[T | StoreError] | None:
        """Read by pipelined multiRead requests. None if the server has no multiRead.

        The first request is small and alone: it shows whether the server has multiRead, and how large its responses
        are. Later requests grow by a limited factor, as far as the size of the responses allows. Nodes of a ``kind``
        that was read before are as large as then.
        """

        def read_part(i: int, buffer: bytes, offset: int) -> tuple[list[T | StoreError], int]:
            return read(buffer, offset, parts[i]), len(buffer)

        answers: list[T | StoreError] = []
        size, window = _BULK_FIRST, 1
        if kind in self._decoded_bytes:
            size, window = _fitting(self._decoded_bytes[kind]), _BULK_WINDOW
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
            size = min(size * _GROWTH, _fitting(largest))
            window = min(window * _GROWTH, _BULK_WINDOW)
            if kind is not None:
                self._decoded_bytes = {kind: largest}
        return answers

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
        sent_sizes = [size for size in sizes if size <= store.MAX_REQUEST_BYTES]
        large = {i for i, size in enumerate(sent_sizes) if size > store.DEFAULT_JUTE_MAXBUFFER}

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


def _fitting(node_bytes: float) -> int:
    """How many nodes of so many bytes fit into a bulk request."""
    return max(1, min(_BULK_MOST, int(jute.REQUEST_BYTES / node_bytes)))
