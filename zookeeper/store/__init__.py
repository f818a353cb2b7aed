"""The metadata store port: what the controller asks of ZooKeeper, and nothing of how it is asked.

``zookeeper.KazooStore`` is ZooKeeper through kazoo (the only importer of it); ``memory.MemoryStore`` is its twin in
process. Both are clients with a session of their own. Reads and writes take many at once and answer in order, errors
in place, so that one event of the controller costs one round trip where it can. Watches are one-shot, as ZooKeeper's
are; what fires is told to ``on_watch`` in the trio thread, in the order in which the server said it, and never after
the session that set the watch has ended. A watch may fire for a change that came just before the read that set it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class StoreError(Exception):
    """Base of what a store answers instead of a result."""


class NodeError(StoreError):
    """An error about one node; ``path`` names it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{type(self).__name__}: {path}")
        self.path = path


class NoNode(NodeError):
    pass


class NodeExists(NodeError):
    pass


class BadVersion(NodeError):
    pass


class NotEmpty(NodeError):
    pass


class NoChildrenForEphemerals(NodeError):
    pass


class Unimplemented(NodeError):
    """The server is too old for what was asked of it."""


class NoAuth(NodeError):
    """The node's access control list gives us no permission for that."""


class InvalidAcl(NodeError):
    """An access control list that names nobody: one for the creator, who has not authenticated."""


class SessionExpired(Exception):
    """The session in which the operation was issued has ended; whether the operation took place is not known.

    No StoreError: nothing that is tried next in that session can succeed, so it is never an answer in place.
    """


class StoreUnavailable(StoreError):
    """The store could not be reached in time. The text says where it was looked for."""


class Permission(enum.IntFlag):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Acl(NamedTuple):
    """One entry of an access control list: who may do what."""

    permissions: int
    scheme: str
    id: str


Acls = tuple[Acl, ...]
OPEN_ACL: Acls = (Acl(Permission.ALL, "world", "anyone"),)
#: the server replaces "auth" by all as whom the session has authenticated
CREATOR_ALL_ACL: Acls = (Acl(Permission.ALL, "auth", ""),)
READ_ACL: Acls = (Acl(Permission.READ, "world", "anyone"),)


class Stat(NamedTuple):
    """What ZooKeeper knows of a node besides its data. Times in ms since the epoch."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    pzxid: int


class NodeData(NamedTuple):
    """A node's data and stat. ``data`` is empty for a node without any."""

    data: bytes
    stat: Stat


ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class Create:
    """``container``: the server removes it some time after its last child has gone; persistent where none does that,
    and in a multi or behind a fence."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    container: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


Op = Create | SetData | Delete | Check
#: of Create: the path that was made; of SetData: the new Stat; of Delete and Check: None
OpResult = str | Stat | None


class MultiFailed(StoreError):
    """An atomic group of operations was refused. ``error`` is the first failure, ``index`` the operation's place."""

    def __init__(self, index: int, error: StoreError) -> None:
        super().__init__(f"operation {index} of a multi: {error}")
        self.index = index
        self.error = error


class WatchType(enum.Enum):
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children changed"


class WatchEvent(NamedTuple):
    type: WatchType
    path: str


class SessionState(enum.Enum):
    """``EXPIRED`` is told before anything of a new session; ``ESTABLISHED`` when there is one again.

    ``AUTH_FAILED``: the server does not accept who we say we are, and the session is lost, which is told next. Another
    is tried every `AUTH_RETRY_MS`.
    """

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    ESTABLISHED = "established"
    AUTH_FAILED = "authentication failed"


#: as Kafka waits before it connects anew (rule 1.7)
AUTH_RETRY_MS = 1000


class MetadataStore(Protocol):
    """A client of the store. Paths are absolute, below the chroot. Every method may raise SessionExpired."""

    #: called in the trio thread; must not block
    on_watch: Callable[[WatchEvent], None]
    on_session: Callable[[SessionState], None]

    @property
    def session_id(self) -> int:
        """Of the current session; 0 before the first."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """What was negotiated with the server: after that long without a connection the session is gone."""
        ...

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        """Data of each path, or NoNode in place. A watch is set only on a node that exists."""
        ...

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        """Stat of each path, None where there is no node. A watch is set either way. Raises NoAuth."""
        ...

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        """Names of the children of each path, sorted, or NoNode in place."""
        ...

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        """Each operation by itself, all of them under way at once; errors in place.

        With ``fence`` none of them takes place unless it holds. Raises MultiFailed, index 0, when it does not.
        """
        ...

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        """Each group atomically, all groups under way at once; a group that is refused in place."""
        ...

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        """The access control list of each path, or an error in place. Of digests only the users are certain: who may
        not administrate a node is not shown more."""
        ...

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        """Give each path this access control list, whatever version it has; errors in place."""
        ...

    async def aclose(self) -> None:
        """End the session; its ephemeral nodes vanish."""
        ...


class Session(MetadataStore, Protocol):
    """A store with the session of a node, which may die."""

    def abandon(self) -> None:
        """Break off without ending the session, as a killed process does. No operation works afterwards."""


def value(answer: T | StoreError) -> T:
    """The result, or the error raised."""
    if isinstance(answer, StoreError):
        raise answer
    return answer
