"""ZooKeeper's serialization (jute) of operations that kazoo lacks or encodes slowly. Pure.

Requests are bodies, without length, xid and opcode; responses are read at an offset behind the header. Paths contain
the chroot, which callers add and remove. Names and numbers are those of ZooKeeper's zookeeper.jute and ZooDefs.OpCode.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from kce.zookeeper.store import (
    ANY_VERSION,
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
    NodeData,
    NodeError,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    OpResult,
    SessionExpired,
    SetData,
    Stat,
    StoreError,
    TooLarge,
    Unimplemented,
)

T = TypeVar("T")

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL, GET_CHILDREN, CHECK = 1, 2, 3, 4, 5, 6, 7, 8, 13
CREATE_CONTAINER = 19
MULTI, MULTI_READ, SET_WATCHES = 14, 22, 101

#: servers and clients refuse packets above jute.maxbuffer, 1 MB by default: bulk requests and responses stay below
REQUEST_BYTES = 700_000
#: operations in a multi; more are not faster
_MULTI_MOST = 500
#: upper bound of an operation's size in a request, without its path and data
_OVERHEAD_BYTES = 64

_EPHEMERAL, _SEQUENTIAL, _CONTAINER = 1, 2, 4
_ERROR_TYPE = -1
_HEADER = struct.Struct(">i?i")  # MultiHeader: opcode, whether this is the end, error
_HEADER_AND_INT = struct.Struct(">i?ii")
_INT = struct.Struct(">i")
#: the length of a buffer that is null
_NULL = -1
# czxid mzxid ctime mtime version cversion (aversion) ephemeralOwner (dataLength numChildren) pzxid
_STAT = struct.Struct(">qqqqii4xq8xq")
_VERSION_AT = 32
_END = _HEADER.pack(-1, True, -1)

NO_NODE = -101
#: session expired, authentication failed, session moved
_SESSION_ENDED = (-112, -115, -118)
_ERRORS: dict[int, type[NodeError]] = {
    -6: Unimplemented,
    NO_NODE: NoNode,
    -102: NoAuth,
    -103: BadVersion,
    -108: NoChildrenForEphemerals,
    -110: NodeExists,
    -111: NotEmpty,
    -114: InvalidAcl,
}
_stat: Callable[[tuple[Any, ...]], Stat] = functools.partial(tuple.__new__, Stat)
_data: Callable[[tuple[Any, ...]], NodeData] = functools.partial(tuple.__new__, NodeData)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT.pack(len(encoded)) + encoded


def whole(chroot: str, path: str) -> str:
    """The path on the server; ``chroot`` is empty or does not end with a slash."""
    return chroot + path if path != "/" else chroot or path


def below(chroot: str, path: str) -> str:
    """The path without ``chroot``."""
    return path.removeprefix(chroot) or "/"


def error(code: int, path: str) -> StoreError:
    """The exception for ZooKeeper's error ``code``. Raises SessionExpired if the session has ended."""
    if code in _SESSION_ENDED:
        raise SessionExpired(f"ZooKeeper error {code}")
    known = _ERRORS.get(code)
    return known(path) if known else StoreError(f"ZooKeeper error {code} on {path}")


# requests


def read(path: str, *, watch: bool = False) -> bytes:
    """The request of EXISTS, GET_DATA and GET_CHILDREN."""
    return _string(path) + bytes([watch])


def op_bytes(op: Op) -> int:
    """Upper bound of the operation's size in a request, without the chroot."""
    return _OVERHEAD_BYTES + len(op.path) + (len(op.data) if isinstance(op, (Create, SetData)) else 0)


def too_large(ops: Sequence[Op]) -> MultiFailed:
    """The failure of a multi that is too large, at its largest operation."""
    largest = max(range(len(ops)), key=lambda i: op_bytes(ops[i]))
    return MultiFailed(largest, TooLarge(ops[largest].path))


def batches(ops: Sequence[Op]) -> Iterator[range]:
    """Split operations into multis of limited count and size; an oversized operation is a part of its own."""
    begin, size = 0, 0
    for i, op in enumerate(ops):
        needed = op_bytes(op)
        if i > begin and (i - begin == _MULTI_MOST or size + needed > REQUEST_BYTES):
            yield range(begin, i)
            begin, size = i, 0
        size += needed
    if begin < len(ops):
        yield range(begin, len(ops))


@functools.lru_cache(maxsize=64)
def _acls(acls: Acls) -> bytes:
    entries = b"".join(_INT.pack(permissions) + _string(scheme) + _string(id) for permissions, scheme, id in acls)
    return _INT.pack(len(acls)) + entries


def get_acl(path: str) -> bytes:
    """GetACLRequest."""
    return _string(path)


def set_acl(path: str, acls: Acls) -> bytes:
    """SetACLRequest for any version."""
    return _string(path) + _acls(acls) + _INT.pack(ANY_VERSION)


def create_container(op: Create, chroot: str, acls: Acls) -> bytes:
    """CreateRequest for CREATE_CONTAINER."""
    path = _string(whole(chroot, op.path))
    return path + _INT.pack(len(op.data)) + op.data + _acls(acls) + _INT.pack(_CONTAINER)


def multi(ops: Iterable[Op], chroot: str = "", acls_of: Callable[[str], Acls] = lambda path: OPEN_ACL) -> bytes:
    """A MultiTransactionRecord of writes. ``acls_of`` takes a path below the chroot. Creates no container."""
    parts: list[bytes] = []
    for op in ops:
        path = _string(whole(chroot, op.path))
        match op:
            case SetData():
                parts += (_HEADERS[SET_DATA], path, _INT.pack(len(op.data)), op.data, _INT.pack(op.version))
            case Check():
                parts += (_HEADERS[CHECK], path, _INT.pack(op.version))
            case Create():
                flags = _EPHEMERAL * op.ephemeral + _SEQUENTIAL * op.sequential
                # null, as Kafka creates such nodes: it would parse empty data, and fail
                size = len(op.data) or _NULL
                rights = _acls(acls_of(op.path))
                parts += (_HEADERS[CREATE], path, _INT.pack(size), op.data, rights, _INT.pack(flags))
            case Delete():
                parts += (_HEADERS[DELETE], path, _INT.pack(op.version))
    parts.append(_END)
    return b"".join(parts)


def multi_read(opcode: int, paths: Iterable[str], chroot: str = "") -> bytes:
    """A MultiOperationRecord of GET_DATA or GET_CHILDREN; multiRead cannot set watches."""
    encoded = [whole(chroot, path).encode() for path in paths]
    heads = {size: _HEADERS[opcode] + _INT.pack(size) for size in set(map(len, encoded))}
    return b"\0".join([*[heads[len(path)] + path for path in encoded], _END])


def set_watches(relative_zxid: int, data: Sequence[str], exist: Sequence[str], child: Sequence[str]) -> bytes:
    """SetWatches. The server fires watches of changes after ``relative_zxid`` at once, and sets the others."""
    parts = [relative_zxid.to_bytes(8, "big", signed=True)]
    for paths in (data, exist, child):
        parts.append(_INT.pack(len(paths)))
        parts += map(_string, paths)
    return b"".join(parts)


_HEADERS = {op: _HEADER.pack(op, False, -1) for op in (CREATE, DELETE, GET_DATA, SET_DATA, GET_CHILDREN, CHECK)}


# answers


def read_stat(buffer: bytes, offset: int) -> Stat:
    """The answer to EXISTS. Raises struct.error."""
    return _stat(_STAT.unpack_from(buffer, offset))


def read_path(buffer: bytes, offset: int) -> str:
    """The answer to CREATE_CONTAINER, without the stat behind it. Raises ValueError, struct.error."""
    return _read_string(buffer, offset)[0]


def read_node(buffer: bytes, offset: int) -> NodeData:
    """The answer to GET_DATA. Raises struct.error."""
    (size,) = _INT.unpack_from(buffer, offset)
    begin = offset + _INT.size
    end = begin + max(size, 0)
    return _data((buffer[begin:end], _stat(_STAT.unpack_from(buffer, end))))


def read_names(buffer: bytes, offset: int) -> list[str]:
    """The answer to GET_CHILDREN, sorted. Raises ValueError, struct.error."""
    (count,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    short = _short_names(buffer[offset:])
    return _names(buffer, offset, count)[0] if short is None or len(short) != count else sorted(short)


def read_watch(buffer: bytes, offset: int) -> tuple[int, str]:
    """What a watch reports: the type of its event, and the path. Raises ValueError, struct.error."""
    (event,) = _INT.unpack_from(buffer, offset)
    return event, _read_string(buffer, offset + 2 * _INT.size)[0]  # between them the state of the session


def read_acls(buffer: bytes, offset: int) -> Acls:
    """The answer to GET_ACL, without the stat behind it. Raises ValueError, struct.error."""
    (count,) = _INT.unpack_from(buffer, offset)
    offset += _INT.size
    acls = []
    for _ in range(count):
        (permissions,) = _INT.unpack_from(buffer, offset)
        scheme, offset = _read_string(buffer, offset + _INT.size)
        name, offset = _read_string(buffer, offset)
        acls.append(Acl(permissions, scheme, name))
    return tuple(acls)


def read_multi(buffer: bytes, offset: int, ops: Sequence[Op], chroot: str = "") -> list[OpResult] | MultiFailed:
    """The answer to ``multi``. Raises ValueError, struct.error for what is none."""
    results: list[OpResult] = []
    failed: MultiFailed | None = None
    for index, op in enumerate(ops):
        opcode, done, _ = _HEADER.unpack_from(buffer, offset)
        offset += _HEADER.size
        if done:
            raise ValueError(f"a multi of {len(ops)} has {index} answers")
        if opcode == _ERROR_TYPE:
            (code,) = _INT.unpack_from(buffer, offset)
            offset += _INT.size
            # operations before the failed one have code 0, those after it -2
            if code and failed is None:
                failed = MultiFailed(index, error(code, op.path))
        elif opcode == SET_DATA:
            results.append(_stat(_STAT.unpack_from(buffer, offset)))
            offset += _STAT.size
        elif opcode == CREATE:
            path, offset = _read_string(buffer, offset)
            results.append(path[len(chroot) :])
        else:
            results.append(None)
    return failed or results


def read_data(buffer: bytes, offset: int, paths: Sequence[str]) -> list[NodeData | StoreError]:
    """The answer to a ``multi_read`` of GET_DATA. Raises ValueError, struct.error for what is none."""
    stat = _STAT.unpack_from
    return _read_nodes(lambda data, at: _data((data, _stat(stat(buffer, at)))), buffer, offset, paths)


def read_decoded(
    decode: Callable[[bytes, int], T], buffer: bytes, offset: int, paths: Sequence[str]
) -> list[T | StoreError]:
    """The same; of each node only what ``decode`` makes of its data and version, because there may be a million."""
    version = _INT.unpack_from
    return _read_nodes(lambda data, at: decode(data, version(buffer, at + _VERSION_AT)[0]), buffer, offset, paths)


def _read_nodes(
    make: Callable[[bytes, int], T], buffer: bytes, offset: int, paths: Sequence[str]
) -> list[T | StoreError]:
    """``make`` gets each node's data, and where its stat is in the buffer."""
    answers: list[T | StoreError] = []
    header = _HEADER_AND_INT.unpack_from
    for path in paths:
        opcode, done, _, number = header(buffer, offset)
        offset += _HEADER_AND_INT.size
        if opcode == GET_DATA:
            end = offset + number if number > 0 else offset
            answers.append(make(buffer[offset:end], end))
            offset = end + _STAT.size
        elif done:
            raise ValueError(f"a multiRead of {len(paths)} has {len(answers)} answers")
        else:
            answers.append(error(number, path))
    return answers


def read_children(buffer: bytes, offset: int, paths: Sequence[str]) -> list[list[str] | StoreError]:
    """The answer to a ``multi_read`` of GET_CHILDREN, names sorted. Raises ValueError, struct.error."""
    answers: list[list[str] | StoreError] = []
    for path in paths:
        opcode, done, _, number = _HEADER_AND_INT.unpack_from(buffer, offset)
        offset += _HEADER_AND_INT.size
        if done:
            raise ValueError(f"a multiRead of {len(paths)} has {len(answers)} answers")
        if opcode == _ERROR_TYPE:
            answers.append(error(number, path))
            continue
        names, offset = _names(buffer, offset, number)
        answers.append(names)
    return answers


def _names(buffer: bytes, offset: int, count: int) -> tuple[list[str], int]:
    names = []
    for _ in range(count):
        name, offset = _read_string(buffer, offset)
        names.append(name)
    return sorted(names), offset


def _short_names(strings: bytes) -> list[str] | None:
    """All strings, faster than one by one; None unless all are of ASCII and 1 to 127 bytes long."""
    first, *parts = strings.decode("latin-1").split("\0\0\0")
    if first or "" in parts or not strings.isascii() or [ord(part[0]) + 1 for part in parts] != [*map(len, parts)]:
        return None
    return [part[1:] for part in parts]


def _read_string(buffer: bytes, offset: int) -> tuple[str, int]:
    (length,) = _INT.unpack_from(buffer, offset)
    begin = offset + _INT.size
    if not 0 <= length <= len(buffer) - begin:
        raise ValueError(f"a string of {length} bytes at offset {offset} of {len(buffer)}")
    return buffer[begin : begin + length].decode(), begin + length
