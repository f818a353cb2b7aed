"""The metadata store port.

``kazoo.KazooStore`` is ZooKeeper through kazoo; ``memory.MemoryStore`` is a ZooKeeper in memory. Each is a client with
one session. Reads and writes take many paths or operations and return results in order, with errors in place, so that
one event of the controller needs few round trips. Watches are one-shot, as in ZooKeeper. ``on_watch`` gets events in
the Trio thread, in the server's order, and never after the end of the session that set the watch. A watch may fire for
a change just before the read that set it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class StoreError(Exception):
    """Base of the errors that a store returns in place of results."""


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


class TooLarge(NodeError):
    """The request is larger than the server or Kafka's clients accept (`MAX_REQUEST_BYTES`)."""


class Unimplemented(NodeError):
    """The server does not know the operation."""


class NoAuth(NodeError):
    """The node's access control list does not permit the operation."""


class InvalidAcl(NodeError):
    """An empty access control list, or one for the creator, who has not authenticated."""


class SessionExpired(Exception):
    """The session of the operation has ended. The operation may have been executed or not.

    Not a StoreError, and never returned in place: no later operation of that session can succeed.
    """


class StoreUnavailable(StoreError):
    """The store could not be reached in time. The text has its address."""


#: the server's default of jute.maxbuffer: it closes the connection on a larger request
DEFAULT_JUTE_MAXBUFFER = 0xFFFFF
#: no store sends a larger write: Kafka's clients could not read the node, whatever the server's limit (rule 1.6)
MAX_REQUEST_BYTES = 4096 * 1024


class Permission(enum.IntFlag):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Acl(NamedTuple):
    """One entry of an access control list."""

    permissions: int
    scheme: str
    id: str


Acls = tuple[Acl, ...]
OPEN_ACL: Acls = (Acl(Permission.ALL, "world", "anyone"),)
#: the server replaces "auth" by the session's identities
CREATOR_ALL_ACL: Acls = (Acl(Permission.ALL, "auth", ""),)
READ_ACL: Acls = (Acl(Permission.READ, "world", "anyone"),)


class Stat(NamedTuple):
    """A node's metadata. Times in ms since the epoch."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    pzxid: int


class NodeData(NamedTuple):
    """A node's data and stat. ``data`` is empty for a node without data."""

    data: bytes
    stat: Stat


ANY_VERSION = -1


@dataclass(frozen=True, slots=True)
class Create:
    """``container``: the server deletes it after its last child. Persistent on old servers, in a multi or with a
    fence."""

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
#: of Create: the new path; of SetData: the new Stat; of Delete and Check: None
OpResult = str | Stat | None


class MultiFailed(StoreError):
    """An atomic group of operations failed. ``error`` is that of the first failed operation, at ``index``."""

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
    """``EXPIRED`` comes before everything of a new session, ``ESTABLISHED`` when the new session exists.

    ``AUTH_FAILED``: the server refused our authentication; ``EXPIRED`` follows. The store retries every
    `AUTH_RETRY_MS`.
    """

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    ESTABLISHED = "established"
    AUTH_FAILED = "authentication failed"


#: Kafka's delay before it reconnects (rule 1.7)
AUTH_RETRY_MS = 1000


class MetadataStore(Protocol):
    """A client of the store. Paths are absolute, below the chroot. Every method may raise SessionExpired."""

    #: called in the trio thread; must not block
    on_watch: Callable[[WatchEvent], None]
    on_session: Callable[[SessionState], None]

    @property
    def session_id(self) -> int:
        """The current session's id; 0 before the first."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """The negotiated timeout: the session expires after that long without a connection."""
        ...

    async def get_data(
        self, paths: Sequence[str], *, watch: Sequence[bool] | bool = False
    ) -> list[NodeData | StoreError]:
        """Data of each path, or NoNode in place. Sets a watch only on an existing node."""
        ...

    async def get_decoded(self, paths: Sequence[str], decode: Callable[[bytes, int], T]) -> list[T | StoreError]:
        """What ``decode`` makes of each path's data and version, or NoNode in place. It may be called on another
        thread."""
        return decoded(await self.get_data(paths), decode)

    async def exists(self, paths: Sequence[str], *, watch: bool = False) -> list[Stat | None]:
        """Stat of each path, None for a missing node. Sets a watch in both cases. Raises NoAuth."""
        ...

    async def get_children(self, paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
        """Names of the children of each path, sorted, or NoNode in place."""
        ...

    async def write(self, ops: Sequence[Op], *, fence: Check | None = None) -> list[OpResult | StoreError]:
        """Execute each operation separately, all pipelined; errors in place.

        With ``fence``, executes none unless the check succeeds. Raises MultiFailed with index 0 if it fails.
        """
        ...

    async def multi(self, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        """Execute each group atomically, all pipelined; MultiFailed in place."""
        ...

    async def get_acl(self, paths: Sequence[str]) -> list[Acls | StoreError]:
        """The access control list of each path, or an error in place. Digests without their hash, unless we may
        administrate the node."""
        ...

    async def set_acl(self, paths: Sequence[str], acls: Acls) -> list[Stat | StoreError]:
        """Set the access control list of each path unconditionally; errors in place."""
        ...

    async def aclose(self) -> None:
        """End the session, which deletes its ephemeral nodes."""
        ...


class Session(MetadataStore, Protocol):
    """A node's session, which can be abandoned."""

    def abandon(self) -> None:
        """Drop the connection without ending the session, like a killed process. No operation works afterwards."""


def decoded(found: Iterable[NodeData | StoreError], decode: Callable[[bytes, int], T]) -> list[T | StoreError]:
    """What ``decode`` makes of the data and version of each node."""
    return [a if isinstance(a, StoreError) else decode(a.data, a.stat.version) for a in found]


def value(answer: T | StoreError) -> T:
    """Return the result, or raise the error."""
    if isinstance(answer, StoreError):
        raise answer
    return answer
