"""What is a Kafka request, seen in bytes that may be anything: in a connection's first bytes, or after a gap.

The length must be sane, the API key known, the version one that Kafka has (or will soon), the client id printable.
Nothing here raises on any input.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

import wire
from wire.registry import BY_KEY, ApiKey, message_class

#: `socket.request.max.bytes` of Kafka: no frame is longer (rule B1.34)
MAX_FRAME_BYTES = wire.DEFAULT_MAX_FRAME_BYTES

#: Versions beyond those of Kafka 3.9 that a first request may still have: its sender may be newer.
_NEWER_VERSIONS = 6

#: The longest client id taken for one where there is doubt; Kafka itself would take 32,767 bytes.
_MAX_CLIENT_ID_BYTES = 255

#: Correlation ids rise by one for each request; after a gap the next one is within this.
_MAX_CORRELATION_STEP = 1 << 20

#: Correlation ids sought at any offset, which takes a while for each.
_MAX_SOUGHT = 64

_PRODUCE = 0
_FETCH = 1
_FIXED = struct.Struct(">ihhih").unpack_from
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_LENGTH_AND_ID = struct.Struct(">ii").unpack_from

#: Anything that could be a request header, at any offset: a quick sieve before `_judge`.
_COULD_START = re.compile(
    rb"(?=(?!\x00\x00\x00[\x00-\x09])[\x00-\x06].{3}\x00[\x00-\x5f]\x00[\x00-\x1f][\x00-\x7f].{3}"
    rb"(?:\xff\xff|\x00[\x01-\xff][\x20-\x7e]))",
    re.DOTALL,
)


class Verdict(enum.Enum):
    YES = "yes"
    NO = "no"
    MORE = "more bytes are needed to tell"


class Start(NamedTuple):
    """The beginning of a request: length of its frame, and its header."""

    length: int
    api: ApiKey
    version: int
    correlation_id: int
    client_id: str | None


def request_start(data: bytes, at: int = 0, *, newer: bool = True) -> Start | Verdict:
    """The request header at ``at``, where a frame's length is to stand; NO if that is none, MORE if it is too early."""
    if len(data) - at < 14:
        return _short_start(data, at)
    length, key, version, correlation_id, client_id_bytes = _FIXED(data, at)
    api = BY_KEY.get(key)
    if api is None or not 8 <= length <= MAX_FRAME_BYTES or correlation_id < 0:
        return Verdict.NO
    if not 0 <= version <= api.versions.last + (_NEWER_VERSIONS if newer else 0):
        return Verdict.NO
    if api.request_header_version(version) == 0:  # ControlledShutdown 0: no client id (rule 13.4)
        return Start(length, api, version, correlation_id, None)
    if client_id_bytes == -1:
        return Start(length, api, version, correlation_id, None)
    if not 0 <= client_id_bytes <= min(_MAX_CLIENT_ID_BYTES, length - 10):
        return Verdict.NO
    text = data[at + 14 : at + 14 + client_id_bytes]
    try:
        client_id = text.decode()
    except UnicodeDecodeError:
        return Verdict.NO
    if not client_id.isprintable():
        return Verdict.NO
    if len(text) < client_id_bytes:
        return Verdict.MORE
    return Start(length, api, version, correlation_id, client_id)


def _short_start(data: bytes, at: int) -> Verdict:
    """MORE as long as what is there could become a request."""
    there = len(data) - at
    if there >= 4 and not 8 <= _INT32(data, at)[0] <= MAX_FRAME_BYTES:
        return Verdict.NO
    if there >= 6 and _INT16(data, at + 4)[0] not in BY_KEY:
        return Verdict.NO
    return Verdict.MORE


def first_request(data: bytes) -> Verdict:
    """Whether a connection whose client begins with ``data`` speaks Kafka."""
    start = request_start(data)
    if isinstance(start, Verdict):
        return start
    if is_zookeeper_connect(data):
        return Verdict.NO
    if start.api.key == _PRODUCE and not start.client_id:
        # zeros look like this, too: its body must bear it out
        if len(data) < min(4 + start.length, 64):
            return Verdict.MORE
        return Verdict.NO if produce_acks(data[4 : 4 + start.length]) is None else Verdict.YES
    return Verdict.YES


def is_zookeeper_connect(data: bytes) -> bool:
    """ZooKeeper's ConnectRequest (protocol version 0, a 16-byte password) reads as a Produce request of version 0."""
    return len(data) >= 32 and _INT32(data)[0] in (44, 45) and data[4:8] == bytes(4) and _INT32(data, 28)[0] == 16


def other_protocol(client: bytes, server: bytes) -> str:
    """What a connection that is not Kafka's speaks, for people, by its first bytes."""
    for data in (client, server):
        if data[:2] == b"\x16\x03":
            return "TLS"
        if is_zookeeper_connect(data):
            return "ZooKeeper"
        if data.startswith(b"SSH-"):
            return "SSH"
        if re.match(rb"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH|CONNECT) |HTTP/1\.|PRI \* HTTP/2", data):
            return "HTTP"
    return "unrecognised"


def find_request(buffer: bytes, begin: int, borders: Collection[int], last: Start | None) -> tuple[Verdict, int]:
    """Where from ``begin`` on a request starts, beyond doubt: (YES, its offset), else (MORE, where to look again).

    ``borders`` are the offsets in ``buffer`` at which a packet's bytes begin. ``last`` is the connection's last request
    seen, if any: the next one has its client id and a somewhat higher correlation id.
    """
    undecided: int | None = None
    for match in _COULD_START.finditer(buffer, begin):
        at = match.start()
        verdict = _judge(buffer, at, borders, last)
        if verdict is Verdict.YES:
            return Verdict.YES, at
        if verdict is Verdict.MORE:
            undecided = at if undecided is None else undecided
            if at in borders:
                break  # where a packet begins, a request that fills several begins more likely than inside one
    if undecided is not None:
        return Verdict.MORE, undecided
    return Verdict.MORE, max(begin, len(buffer) - 14)


def _judge(buffer: bytes, at: int, borders: Collection[int], last: Start | None) -> Verdict:
    start = request_start(buffer, at, newer=False)
    if isinstance(start, Verdict):
        return start
    if last is not None:
        step = start.correlation_id - last.correlation_id
        if start.client_id != last.client_id or not 0 < step < _MAX_CORRELATION_STEP:
            return Verdict.NO
        if at in borders:
            return Verdict.YES
    elif not start.client_id and at not in borders:
        return Verdict.NO
    end = at + 4 + start.length
    if end > len(buffer):
        return Verdict.MORE
    frame = buffer[at + 4 : end]
    if message_class(start.api.key, "request") is not None:
        try:
            wire.decode_request(frame)
        except wire.TrailingBytes:
            pass  # some clients send more than they should: what comes behind the frame must bear it out
        except wire.DecodeError:
            return Verdict.NO
        else:
            return Verdict.YES
    if end == len(buffer) or end in borders:
        return Verdict.YES
    following = request_start(buffer, end, newer=False)
    return Verdict.YES if isinstance(following, Start) else following


def find_response(buffer: bytes, begin: int, borders: Collection[int], awaited: Sequence[int]) -> tuple[Verdict, int]:
    """Where from ``begin`` on a response to one of the ``awaited`` correlation ids starts; as ``find_request``.

    As a rule a response begins with a packet. Elsewhere only the oldest ids are sought, and the response must end
    where a packet does.
    """
    wanted = frozenset(awaited)
    size = len(buffer)
    for at in sorted(border for border in borders if begin <= border <= size - 8):
        length, correlation_id = _LENGTH_AND_ID(buffer, at)
        end = at + 4 + length
        if correlation_id in wanted and 4 <= length <= MAX_FRAME_BYTES and (end >= size or end in borders):
            return Verdict.YES, at
    for correlation_id in awaited[:_MAX_SOUGHT]:
        sought = struct.pack(">i", correlation_id)
        at = buffer.find(sought, begin + 4)
        while at >= 0:
            length = _INT32(buffer, at - 4)[0]
            if 4 <= length <= MAX_FRAME_BYTES and (at + length == size or at + length in borders):
                return Verdict.YES, at - 4
            at = buffer.find(sought, at + 1)
    # a response that is not awaited yet may be so later: nothing is ruled out but by its age
    return Verdict.MORE, begin


def produce_acks(frame: bytes) -> int | None:
    """``acks`` of a Produce request (without its length): 0 is not answered. None if it is none that can be.

    Reads no further than acks and timeout, so the beginning of the frame is enough.
    """
    try:
        version = _INT16(frame, 2)[0]
        at = 10 + max(0, _INT16(frame, 8)[0])
        if version >= 9:
            count, at = _uvarint(frame, at)
            for _ in range(count):
                _, at = _uvarint(frame, at)
                size, at = _uvarint(frame, at)
                at += size
            size, at = _uvarint(frame, at)
            at += max(0, size - 1)
        elif version >= 3:
            at += 2 + max(0, _INT16(frame, at)[0])
        acks: int = _INT16(frame, at)[0]
        timeout_ms = _INT32(frame, at + 2)[0]
    except (struct.error, IndexError):
        return None
    return acks if acks in (-1, 0, 1) and timeout_ms >= 0 else None


def is_quorum_fetch(frame: bytes, version: int, client_id: str | None) -> bool:
    """Whether a Fetch request is a KRaft node's, of ``__cluster_metadata``, the only topic its quorum has."""
    if version < 13:
        return b"__cluster_metadata" in frame
    # header (with its empty tagged fields), then max_wait .. session_epoch, preceded by replica_id before version 15
    at = 10 + len((client_id or "").encode()) + 1 + (25 if version < 15 else 21)
    return frame[at : at + 17] == b"\x02" + bytes(15) + b"\x01"


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise IndexError
