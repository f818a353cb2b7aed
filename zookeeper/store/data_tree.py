"""The nodes of a ZooKeeper in memory: versions, ACLs, ephemerals, sequences, one-shot watches and multi.

As ZooKeeper's own DataTree it knows no connections: ``memory.py`` has the sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kce.zookeeper.store import (
    ANY_VERSION,
    MAX_REQUEST_BYTES,
    OPEN_ACL,
    Acl,
    Acls,
    BadVersion,
    Check,
    Create,
    Delete,
    InvalidAcl,
    MultiFailed,
    NoAuth,
    NoChildrenForEphemerals,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    Permission,
    SetData,
    Stat,
    WatchEvent,
    WatchType,
    jute,
)


@dataclass(slots=True)
class Node:
    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    acls: Acls = OPEN_ACL
    owner: int = 0
    version: int = 0
    cversion: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            self.czxid, self.mzxid, self.ctime, self.mtime, self.version, self.cversion, self.owner, self.pzxid
        )  # fmt: skip


#: everybody's identity: (scheme, id)
_ANYONE = ("world", "anyone")


class Client(Protocol):
    """Who reads, writes and watches."""

    #: (scheme, id) of each credential
    identities: frozenset[tuple[str, str]]
    #: ACLs of the nodes that it creates
    acls_of: Callable[[str], Acls]

    @property
    def session_id(self) -> int: ...

    def fired(self, event: WatchEvent) -> None: ...


def _split(path: str) -> tuple[str, str]:
    parent, _, name = path.rpartition("/")
    return parent or "/", name


class DataTree:
    """``now_ms`` is the clock of creation and modification times."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._now_ms = now_ms
        self._zxid = 0
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0, 0, 0)}
        #: called with each path whose data has changed
        self.on_set: Callable[[str], None] = lambda path: None
        #: (children?, path) -> who watches, in the order of their reads
        self.watches: dict[tuple[bool, str], dict[Client, None]] = {}

    def end_session(self, client: Client) -> None:
        """Remove the session's watches and ephemeral nodes."""
        for watchers in self.watches.values():
            watchers.pop(client, None)
        owned = [path for path, node in self.nodes.items() if node.owner == client.session_id]
        self._zxid += 1
        for path in owned:  # whatever the ACL
            self._delete(path, self.nodes[path], [])()

    # reads

    def read(self, path: str) -> Node:
        try:
            return self.nodes[path]
        except KeyError:
            raise NoNode(path) from None

    def permit(self, client: Client, node: Node, permission: Permission, path: str) -> None:
        """Raises NoAuth."""
        if node.acls is OPEN_ACL:
            return
        for permissions, *who in node.acls:
            if permissions & permission and (tuple(who) == _ANYONE or tuple(who) in client.identities):
                return
        raise NoAuth(path)

    def _resolved(self, client: Client, acls: Acls, path: str) -> Acls:
        """``acls`` with "auth" replaced. Raises InvalidAcl."""
        if acls is OPEN_ACL:
            return acls
        for_creator = any(entry.scheme == "auth" for entry in acls)
        if not acls or (for_creator and not client.identities):
            raise InvalidAcl(path)
        return tuple(
            Acl(entry.permissions, *who)
            for entry in acls
            for who in (sorted(client.identities) if entry.scheme == "auth" else [entry[1:]])
        )

    def set_acl(self, client: Client, path: str, acls: Acls) -> Stat:
        node = self.read(path)
        self.permit(client, node, Permission.ADMIN, path)
        node.acls = self._resolved(client, acls, path)
        return node.stat()

    def watch(self, client: Client, children: bool, path: str) -> None:
        self.watches.setdefault((children, path), {})[client] = None

    def _fire(self, kind: WatchType, path: str) -> None:
        both = {WatchType.DELETED: (False, True), WatchType.CHILDREN: (True,)}.get(kind, (False,))
        watchers: dict[Client, None] = {}
        for children in both:
            watchers.update(self.watches.pop((children, path), {}))
        for client in watchers:
            client.fired(WatchEvent(kind, path))

    # writes

    def multi(self, client: Client, ops: Sequence[Op]) -> list[OpResult]:
        """Execute all of ``ops`` or none. Raises MultiFailed."""
        if sum(map(jute.op_bytes, ops)) > MAX_REQUEST_BYTES:
            raise jute.too_large(ops)
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
        self, client: Client, op: Op, undo: list[Callable[[], None]], results: list[OpResult]
    ) -> Callable[[], None]:
        """Execute ``op``: append its reversal to ``undo``, set the last of ``results``, return what fires watches."""
        match op:
            case Create():
                return self._create(client, op, undo, results)
            case SetData(path, data, version):
                self.permit(client, self.read(path), Permission.WRITE, path)
                node = self._versioned(path, version)
                before = (node.data, node.mzxid, node.mtime, node.version)

                def restore() -> None:
                    node.data, node.mzxid, node.mtime, node.version = before

                undo.append(restore)
                node.data, node.mzxid, node.mtime, node.version = data, self._zxid, self._now_ms(), node.version + 1
                results[-1] = node.stat()

                def changed() -> None:
                    self.on_set(path)
                    self._fire(WatchType.CHANGED, path)

                return changed
            case Delete(path, version):
                self.read(path)
                self.permit(client, self.nodes[_split(path)[0]], Permission.DELETE, path)
                return self._delete(path, self._versioned(path, version), undo)
            case Check(path, version):
                self.permit(client, self.read(path), Permission.READ, path)
                self._versioned(path, version)
                return lambda: None

    def _versioned(self, path: str, version: int) -> Node:
        node = self.read(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersion(path)
        return node

    def _create(
        self, client: Client, op: Create, undo: list[Callable[[], None]], results: list[OpResult]
    ) -> Callable[[], None]:
        parent_path, name = _split(op.path)
        parent = self.read(parent_path)
        self.permit(client, parent, Permission.CREATE, op.path)
        acls = self._resolved(client, client.acls_of(op.path), op.path)
        if parent.owner:
            raise NoChildrenForEphemerals(op.path)
        if op.sequential:
            name = f"{name}{parent.cversion:010d}"
        path = f"{parent_path.rstrip('/')}/{name}"
        if path in self.nodes:
            raise NodeExists(path)
        before = (parent.cversion, parent.pzxid)
        now = self._now_ms()
        owner = client.session_id if op.ephemeral else 0
        self.nodes[path] = Node(op.data, self._zxid, self._zxid, self._zxid, now, now, acls, owner)
        parent.children.add(name)
        parent.cversion, parent.pzxid = parent.cversion + 1, self._zxid

        def remove() -> None:
            del self.nodes[path]
            parent.children.discard(name)
            parent.cversion, parent.pzxid = before

        undo.append(remove)
        results[-1] = path

        def fire() -> None:
            self._fire(WatchType.CREATED, path)
            self._fire(WatchType.CHILDREN, parent_path)

        return fire

    def _delete(self, path: str, node: Node, undo: list[Callable[[], None]]) -> Callable[[], None]:
        if node.children:
            raise NotEmpty(path)
        parent_path, name = _split(path)
        parent = self.nodes[parent_path]
        before = (parent.cversion, parent.pzxid)
        del self.nodes[path]
        parent.children.discard(name)
        parent.cversion, parent.pzxid = parent.cversion + 1, self._zxid

        def restore() -> None:
            self.nodes[path] = node
            parent.children.add(name)
            parent.cversion, parent.pzxid = before

        undo.append(restore)

        def fire() -> None:
            self._fire(WatchType.DELETED, path)
            self._fire(WatchType.CHILDREN, parent_path)

        return fire
