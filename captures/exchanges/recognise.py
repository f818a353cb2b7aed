"""Recognises Kafka requests in arbitrary bytes: at the beginning of a connection, or after a gap.

The length must be possible, the API key known, the version one of Kafka's (or soon to be), the client id without
control characters, or the body one that decodes.
Nothing here raises on any input.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

from kce import wire
from kce.wire.registry import BY_KEY, BY_NAME, ApiKey, message_class

#: `socket.request.max.bytes` of Kafka: no frame is longer (rule B1.34)
MAX_FRAME_BYTES = wire.DEFAULT_MAX_FRAME_BYTES

#: Versions beyond those of Kafka 3.9 that a first request may have, because its sender may be newer.
_NEWER_VERSIONS = 6

#: The longest client id that is believed at an uncertain place; Kafka allows 32,767 bytes.
_MAX_CLIENT_ID_BYTES = 1023
_MAX_STRING_BYTES = 32_767

#: Correlation ids rise by one per request; after a gap the next one is within this.
_MAX_CORRELATION_STEP = 1 << 20

#: An incomplete response is checked if no more than this is missing.
_MAX_IMAGINED = 1 << 20

#: Correlation ids that are searched at every offset, which is slow.
_MAX_SOUGHT = 64

#: The protocol of a connection that none is recognised in.
UNRECOGNISED = "unrecognised"

PRODUCE, FETCH = BY_NAME["Produce"].key, BY_NAME["Fetch"].key

#: The only topic of a KRaft quorum.
QUORUM_TOPIC = b"__cluster_metadata"

_FIXED = struct.Struct(">ihhih").unpack_from
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_LENGTH_AND_ID = struct.Struct(">ii").unpack_from

#: What no client id has that is believed without the whole request. Kafka allows it, but bytes of other protocols are
#: full of it.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

#: Anything that could be a request header, at any offset: a quick filter before `_judge`.
_HEADER = rb"(?!\x00\x00\x00[\x00-\x09])[\x00-\x06].{3}\x00[\x00-\x5f]\x00[\x00-\x1f][\x00-\x7f].{3}"
_COULD_START = re.compile(rb"(?=%b(?:\xff\xff|\x00\x00|[\x00-\x03].[^\x00-\x1f\x7f]))" % _HEADER, re.DOTALL)
#: the same of a client whose id begins with a control character
_COULD_FOLLOW = re.compile(rb"(?=%b[\x00-\x03].[\x00-\x1f\x7f])" % _HEADER, re.DOTALL)


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


def request_start(data: bytes, at: int = 0, *, certain: bool = True, known: str | None = None) -> Start | Verdict:
    """The request header of the frame at ``at``; NO if it is none, MORE if bytes are missing.

    Where a frame begins for ``certain``, versions may be newer than known, and client ids long. A client id other than
    the ``known`` one may have control characters only if the request is there as a whole.
    """
    if len(data) - at < 14:
        return _short_start(data, at)
    length, key, version, correlation_id, client_id_bytes = _FIXED(data, at)
    api = BY_KEY.get(key)
    if api is None or not 8 <= length <= MAX_FRAME_BYTES or correlation_id < 0:
        return Verdict.NO
    if not 0 <= version <= api.versions.last + (_NEWER_VERSIONS if certain else 0):
        return Verdict.NO
    if api.request_header_version(version) == 0:  # ControlledShutdown 0: no client id (rule 13.4)
        return Start(length, api, version, correlation_id, None)
    if client_id_bytes == -1:
        return Start(length, api, version, correlation_id, None)
    if not 0 <= client_id_bytes <= min(_MAX_STRING_BYTES if certain else _MAX_CLIENT_ID_BYTES, length - 10):
        return Verdict.NO
    text = data[at + 14 : at + 14 + client_id_bytes]
    try:
        client_id = text.decode()
    except UnicodeDecodeError:
        return Verdict.NO
    if not client_id.isprintable() and _CONTROL.search(client_id) and not (known or "").startswith(client_id):
        frame = data[at + 4 : at + 4 + length]
        if len(frame) < length:
            return Verdict.MORE if certain else Verdict.NO
        if not _decodes(frame, api):
            return Verdict.NO
    if len(text) < client_id_bytes:
        return Verdict.MORE
    return Start(length, api, version, correlation_id, client_id)


def _decodes(frame: bytes, api: ApiKey) -> bool:
    """Whether a whole request is one to its last byte."""
    if message_class(api.key, "request") is None:
        return False
    try:
        wire.decode_request(frame)
    except wire.DecodeError:
        return False
    return True


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
    if start.api.key == PRODUCE and not start.client_id:
        # zeros look like this, too: check the body
        if len(data) < min(4 + start.length, 64):
            return Verdict.MORE
        return Verdict.NO if produce_acks(data[4 : 4 + start.length]) is None else Verdict.YES
    return Verdict.YES


def is_zookeeper_connect(data: bytes) -> bool:
    """ZooKeeper's ConnectRequest (protocol version 0, a 16-byte password) reads as a Produce request of version 0."""
    return len(data) >= 32 and _INT32(data)[0] in (44, 45) and data[4:8] == bytes(4) and _INT32(data, 28)[0] == 16


def other_protocol(client: bytes, server: bytes) -> str:
    """The name of another protocol, by the first bytes of a connection."""
    for data in (client, server):
        if data[:2] == b"\x16\x03":
            return "TLS"
        if is_zookeeper_connect(data):
            return "ZooKeeper"
        if data.startswith(b"SSH-"):
            return "SSH"
        if re.match(rb"(GET|POST|PUT|DELETE|HEAD|OPTIONS|PATCH|CONNECT) |HTTP/1\.|PRI \* HTTP/2", data):
            return "HTTP"
    return UNRECOGNISED


def find_request(
    buffer: bytes, begin: int, borders: Collection[int], last: Start | None, *, gap: int | None = None
) -> tuple[Verdict, int]:
    """The offset from ``begin`` on at which a request certainly starts: (YES, offset), else (MORE, where to go on).

    ``borders`` are the offsets in ``buffer`` at which packets begin. ``last`` is the connection's last request, if any:
    the next one has its client id and a higher correlation id. ``gap``: so many bytes that are missing follow the
    buffer, 0 at the end of the stream; None: more may come.
    """
    undecided: int | None = None
    could_start = _COULD_START
    if last is not None and _CONTROL.match(last.client_id or ""):
        could_start = _COULD_FOLLOW
    for match in could_start.finditer(buffer, begin):
        at = match.start()
        verdict = _judge(buffer, at, borders, last, gap=gap)
        if verdict is Verdict.YES:
            return Verdict.YES, at
        if verdict is Verdict.MORE and gap is None:
            undecided = at if undecided is None else undecided
            if at in borders:
                break  # a long request begins more likely at the start of a packet
    if undecided is not None:
        return Verdict.MORE, undecided
    return Verdict.MORE, max(begin, len(buffer) - 14)


def _judge(buffer: bytes, at: int, borders: Collection[int], last: Start | None, *, gap: int | None) -> Verdict:
    start = request_start(buffer, at, certain=False, known=None if last is None else last.client_id)
    if isinstance(start, Verdict):
        return start
    if is_zookeeper_connect(buffer[at : at + 32]):
        return Verdict.NO
    if last is not None:
        if not follows(last, start):
            return Verdict.NO
        if at in borders and start.client_id:
            return Verdict.YES
    end = at + 4 + start.length
    frame = buffer[at + 4 : end]
    if end > len(buffer):
        if at not in borders or end != len(buffer) + (gap or 0):
            return Verdict.MORE
        # the snap length cut the packet of this frame
        is_request = start.client_id and (start.api.key != PRODUCE or produce_acks(frame) is not None)
        return Verdict.YES if is_request else Verdict.NO
    if start.api.key == PRODUCE and produce_acks(frame) is None:
        return Verdict.NO
    borne_out = False
    if message_class(start.api.key, "request") is not None:
        try:
            wire.decode_request(frame)
        except wire.TrailingBytes:
            # some clients send too many bytes: check what follows the frame
            if last is None and not start.client_id:
                return Verdict.NO
        except wire.DecodeError:
            return Verdict.NO
        else:
            borne_out = last is not None
    if borne_out:
        return Verdict.YES
    return _leads_to_a_border(buffer, start, end, borders, broken_off=gap is not None and at in borders)


def follows(last: Start, start: Start) -> bool:
    """Whether one client may have sent both, in this order."""
    return start.client_id == last.client_id and 0 < start.correlation_id - last.correlation_id < _MAX_CORRELATION_STEP


def _leads_to_a_border(buffer: bytes, start: Start, end: int, borders: Collection[int], *, broken_off: bool) -> Verdict:
    """Whether requests of one client fill ``buffer`` from ``end`` to the end of a packet. The last may be incomplete if
    the buffer is ``broken_off``.

    Records may contain Kafka requests, but the last one hardly ends with a packet.
    """
    while end < len(buffer) and end not in borders:
        following = request_start(buffer, end, certain=False, known=start.client_id)
        if isinstance(following, Verdict):
            return following
        if not follows(start, following):
            return Verdict.NO
        start = following
        end += 4 + start.length
    return Verdict.MORE if end > len(buffer) and not broken_off else Verdict.YES


class InFlight(NamedTuple):
    """A request without a response so far."""

    correlation_id: int
    api_key: int
    version: int


def find_response(
    buffer: bytes, begin: int, borders: Collection[int], in_flight: Sequence[InFlight]
) -> tuple[Verdict, int]:
    """The offset from ``begin`` on of a response to a request ``in_flight``; as ``find_request``.

    Searched where packets begin, where responses usually do; those to the oldest requests at every offset.
    """
    if not in_flight or len(buffer) - begin < 8:
        return Verdict.MORE, begin
    requests = {request.correlation_id: request for request in in_flight}
    pattern = b"|".join(re.escape(struct.pack(">i", request.correlation_id)) for request in in_flight[:_MAX_SOUGHT])
    places = {match.start(1) - 4 for match in re.finditer(rb"(?=(%b))" % pattern, buffer[begin + 4 :], re.DOTALL)}
    places = {begin + 4 + place for place in places if place >= -4}
    places.update(border for border in borders if begin <= border <= len(buffer) - 8)
    undecided: int | None = None
    for at in sorted(places):
        length, correlation_id = _LENGTH_AND_ID(buffer, at)
        request = requests.get(correlation_id)
        if request is None or not 4 <= length <= MAX_FRAME_BYTES:
            continue
        end = at + 4 + length
        if end > len(buffer):
            if at in borders and _could_be_response(buffer[at + 4 :], length, request):
                return Verdict.YES, at
            undecided = at if undecided is None else undecided
        elif _is_response(buffer[at + 4 : end], request, at in borders and (end == len(buffer) or end in borders)):
            return Verdict.YES, at
    return Verdict.MORE, len(buffer) - 7 if undecided is None else undecided


def is_response(begun: bytes, length: int, request: InFlight) -> bool:
    """Whether a frame of that length, of which ``begun`` may be only the beginning, is a response to ``request``."""
    if len(begun) >= length:
        return _is_response(begun[:length], request, fills_packets=True)
    return _could_be_response(begun, length, request)


def _could_be_response(begun: bytes, length: int, request: InFlight) -> bool:
    """Whether a response of that length may begin like this: it decodes if zeros follow."""
    missing = length - len(begun)
    return missing > _MAX_IMAGINED or _is_response(begun + bytes(missing), request, fills_packets=True)


def _is_response(frame: bytes, request: InFlight, fills_packets: bool) -> bool:
    if request.api_key not in BY_KEY or message_class(request.api_key, "response") is None:
        return fills_packets
    try:
        wire.decode_response(frame, api_key=request.api_key, api_version=request.version)
    except wire.TrailingBytes:
        return fills_packets
    except wire.DecodeError:
        return False
    return True


def produce_acks(frame: bytes) -> int | None:
    """``acks`` of a Produce request without its length; None if it is not valid. With 0 there is no response.

    The beginning of the frame is enough.
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
    """Whether a Fetch request is a KRaft node's: of ``__cluster_metadata``, the only topic of its quorum."""
    if version < 13:
        return QUORUM_TOPIC in frame
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
