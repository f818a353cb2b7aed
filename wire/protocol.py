"""Encode and decode whole frames: header and body. The other rooms call these functions.

Everything is pure. All failures are ``WireError``: ``EncodeError`` for our own messages, ``DecodeError`` for bytes from
a peer. A decoder consumes the whole frame or raises.
"""

from __future__ import annotations

import functools
import io
import struct
from typing import Final, NamedTuple

import construct

from kce.garbage import let_go, no_collection
from kce.wire import errors
from kce.wire.codec import REFUSALS, codec_for, step_decoder_for
from kce.wire.codegen import Decode, Encode
from kce.wire.headers import (
    Header,
    read_request_header,
    read_response_header,
    request_header,
    request_header_in_steps,
    response_header,
)
from kce.wire.payload import Parts, Payload
from kce.wire.primitives import UNLIMITED, explain
from kce.wire.registry import API_VERSIONS, ApiKey, Direction, api, check_version, message_class
from kce.wire.schema import Message, Struct, struct_for
from kce.wire.steps import Steps, finish


def encode_request(message: Message, *, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request, without the frame length (``wire.frame`` adds it). Raises EncodeError, UnsupportedVersion."""
    form = _form(type(message), "request", api_version)
    header = request_header(form.api, Header(form.api.key, api_version, correlation_id, client_id))
    return _in_memory(_with_body(header, form, message), message)


def decode_request(frame: bytes, max_elements: int = UNLIMITED) -> tuple[Header, Message]:
    """Decode a request; ``frame`` has no length prefix.

    An ApiVersions request of an unknown version returns that version in its header and an empty body (rule B1.37); any
    other unknown version raises UnsupportedVersion. Raises DecodeError; TooManyElements if all arrays of structures
    and tagged fields together announce more elements than ``max_elements``.
    """
    usual = _usual.get(frame[:4])
    if usual is not None:
        api_key, api_version, has_tags, decode = usual
        try:
            correlation_id, length = _ID_AND_LENGTH.unpack_from(frame, 4)
            at = 10 + length
            if length >= 0 and not (has_tags and frame[at]):
                client_id = frame[10:at].decode()
                decoded = decode if len(frame) < _LARGE_BYTES else _large(decode)
                message, end = decoded(frame, at + has_tags, max_elements)
                if end == len(frame):
                    return _new(Header, (api_key, api_version, correlation_id, client_id)), message
        except REFUSALS:  # explained below
            pass
    known, header, body = read_request_header(frame, max_elements)
    try:
        if known.key == API_VERSIONS and header.api_version not in known.versions:
            return header, _class_of(known, "request")()
        check_version(known, header.api_version)
        message = _read_body(frame, body, known, "request", header.api_version, max_elements)
    except errors.DecodeError as e:
        e.api_key, e.api_version, e.correlation_id = known.key, header.api_version, header.correlation_id
        raise
    _remember(frame[:4], known, type(message), header.api_version)
    return header, message


class _Usual(NamedTuple):
    """How to read most requests of an API and version: with a client id, and without tagged fields in the header."""

    api_key: int
    api_version: int
    has_tags: bool
    decode: Decode


#: by their first four bytes
_usual: Final[dict[bytes, _Usual]] = {}
_ID_AND_LENGTH: Final = struct.Struct(">ih")
#: makes a NamedTuple in half the time
_new: Final = tuple.__new__


def _remember(key_and_version: bytes, known: ApiKey, cls: type[Message], version: int) -> None:
    header_version = known.request_header_version(version)
    if header_version > 0:
        decode = codec_for(cls, version, version in known.flexible).decode
        _usual[key_and_version] = _Usual(known.key, version, header_version > 1, decode)


def decode_request_in_steps(
    frame: bytes, max_elements: int = UNLIMITED, *, like_kafka: bool = False
) -> Steps[tuple[Header, Message]]:
    """``decode_request`` with pauses, for long frames (see ``wire.steps``).

    ``like_kafka``: also of what only Kafka's brokers read, see `decode_like_kafka`.
    """
    known, header, body = yield from request_header_in_steps(frame, max_elements, like_kafka=like_kafka)
    try:
        cls, version = _class_of(known, "request"), header.api_version
        if known.key == API_VERSIONS and version not in known.versions:
            return header, cls()
        check_version(known, version)
        try:
            decode = step_decoder_for(cls, version, version in known.flexible, like_kafka=like_kafka)
            message, end = yield from decode(frame, body, max_elements)
        except REFUSALS:
            raise _damaged(cls, version) from None
        _check_end(cls, version, message, end, frame)
    except errors.DecodeError as e:
        e.api_key, e.api_version, e.correlation_id = known.key, header.api_version, header.correlation_id
        raise
    return header, message


def decode_like_kafka(
    frame: bytes, refused: errors.DecodeError, max_elements: int = UNLIMITED
) -> Steps[tuple[Header, Message]]:
    """A request that ``decode_request`` has ``refused``, if Kafka's brokers read it (rule B1.35). They ignore bytes
    after it, which librdkafka sends; read text that is not UTF-8 with U+FFFD in it; take every negative length of what
    may be null for null; take tagged fields in any order, and read those that they know whatever length is announced.
    Raises what was refused, TooManyElements.
    """
    let_go(refused)
    found = refused
    if isinstance(refused, (errors.InvalidValue, errors.LimitExceeded, errors.Truncated)):
        try:
            return (yield from decode_request_in_steps(frame, max_elements, like_kafka=True))
        except errors.TrailingBytes as e:
            let_go(e)
            found = e
        except errors.DecodeError as e:
            let_go(e)
    if isinstance(found, errors.TrailingBytes) and isinstance(found.message, Message):
        return decode_request_header(frame, like_kafka=True), found.message
    raise refused


def decode_request_header(frame: bytes, *, like_kafka: bool = False) -> Header:
    """Decode only the header, also of APIs without a body definition, and of any version. Raises DecodeError.

    ``like_kafka``: as in `decode_like_kafka`.
    """
    return finish(request_header_in_steps(frame, like_kafka=like_kafka))[1]


def encode_response(message: Message, *, api_version: int, correlation_id: int) -> bytes:
    """Encode a response, without the frame length. Unknown versions of ApiVersions get version 0 (rule B1.37).

    Raises EncodeError, UnsupportedVersion.
    """
    payload = encode_payload(message, api_version=api_version, correlation_id=correlation_id)
    return _in_memory(payload, message)


def encode_payload(message: Message, *, api_version: int, correlation_id: int) -> Payload:
    """``encode_response`` of a message whose records may be `Stored`: they stay where they are."""
    form = _forms.get((message.__class__, "response", api_version)) or _form(type(message), "response", api_version)
    try:
        header = _CORRELATION_ID.pack(correlation_id) + form.tags
    except struct.error:
        header = response_header(form.api, form.version, correlation_id)  # raises the error
    return _with_body(header, form, message)


def encode_part(part: Struct, *, api_key: int, api_version: int) -> bytes:
    """Encode one structure of a message of that API and version, for `Encoded`. Raises EncodeError."""
    pieces: list[bytes] = []
    try:
        codec_for(type(part), api_version, api_version in api(api_key).flexible).encode(part, pieces.append)
    except REFUSALS as e:
        raise errors.EncodeError(f"{type(part).__name__} {api_version}: {e}") from None
    return b"".join(pieces)


def decode_response(frame: bytes, *, api_key: int, api_version: int) -> tuple[Header, Message]:
    """Decode the response to a request of that API and version; ``frame`` has no length prefix.

    An UNSUPPORTED_VERSION response to ApiVersions is always in version 0; the header then has version 0. Raises
    DecodeError.
    """
    known = api(api_key)
    if known.key == API_VERSIONS and _refused_version(frame):
        api_version = 0
    check_version(known, api_version)
    header, body = read_response_header(frame, known, api_version)
    try:
        return header, _read_body(frame, body, known, "response", api_version)
    except errors.DecodeError as e:
        e.api_key, e.api_version, e.correlation_id = known.key, header.api_version, header.correlation_id
        raise


def _refused_version(frame: bytes) -> bool:
    """Whether this is an UNSUPPORTED_VERSION response to ApiVersions: error 35, an int32 count, that many entries."""
    if len(frame) < 10 or frame[4:6] != b"\x00\x23":
        return False
    return len(frame) == 10 + 6 * int.from_bytes(frame[6:10], "big", signed=True)


class _Form(NamedTuple):
    """How messages of a class are encoded in a version. ``tags``: of a response, after the correlation id."""

    api: ApiKey
    version: int
    encode: Encode
    tags: bytes


_CORRELATION_ID: Final = struct.Struct(">i")
_forms: Final[dict[tuple[type[Message], Direction, int], _Form]] = {}


def _form(cls: type[Message], direction: Direction, version: int) -> _Form:
    """Raises EncodeError, UnsupportedVersion."""
    key = cls, direction, version
    found = _forms.get(key)
    if found is None:
        found = _forms[key] = _new_form(cls, direction, version)
    return found


def _new_form(cls: type[Message], direction: Direction, version: int) -> _Form:
    if not issubclass(cls, Message) or cls.__direction__ != direction:
        raise errors.EncodeError(f"a {direction} expected, not {cls.__qualname__}")
    known = api(cls.__api_key__)
    if known.key == API_VERSIONS and direction == "response" and version not in known.versions:
        version = 0
    check_version(known, version)
    tags = response_header(known, version, 0)[_CORRELATION_ID.size :] if direction == "response" else b""
    return _Form(known, version, codec_for(cls, version, version in known.flexible).encode, tags)


def _class_of(known: ApiKey, direction: Direction) -> type[Message]:
    cls = message_class(known.key, direction)
    if cls is None:
        raise errors.UnsupportedVersion(f"the body of {known.name} is not defined here")
    return cls


def _with_body(header: bytes, form: _Form, message: Message) -> Payload:
    pieces = [header]
    try:
        form.encode(message, pieces.append)
    except REFUSALS:
        return header + _body_by_reference(form.api, message, form.version)
    try:
        return b"".join(pieces)
    except TypeError:  # by a piece that is stored
        return Parts(pieces)


def _in_memory(payload: Payload, message: Message) -> bytes:
    if isinstance(payload, Parts):
        raise errors.EncodeError(f"{type(message).__name__} has records that are not in memory")
    return payload


def _body_by_reference(known: ApiKey, message: Message, version: int) -> bytes:
    body = struct_for(type(message), version, version in known.flexible)
    try:
        return bytes(body.build(message))
    except construct.ConstructError as e:
        _, reason, where = explain(e)
        raise errors.EncodeError(f"{type(message).__name__} {version}: {reason} at {where}") from None
    except (struct.error, TypeError, ValueError, AttributeError) as e:
        raise errors.EncodeError(f"{type(message).__name__} {version}: {e}") from e


def _read_body(
    frame: bytes, at: int, known: ApiKey, direction: Direction, version: int, max_elements: int = UNLIMITED
) -> Message:
    cls = _class_of(known, direction)
    try:
        decode = codec_for(cls, version, version in known.flexible).decode
        message, end = (decode if len(frame) < _LARGE_BYTES else _large(decode))(frame, at, max_elements)
    except REFUSALS:
        if len(frame) > _EXPLAINED_BYTES:
            raise _damaged(cls, version) from None
        return _read_body_by_reference(frame, at, known, cls, version)
    _check_end(cls, version, message, end, frame)
    return message  # type: ignore[no-any-return]  # the codec of cls makes a cls


def _damaged(cls: type[Message], version: int) -> errors.DecodeError:
    return errors.InvalidValue(f"{cls.__name__} {version}: damaged, and too long to say where")


def _check_end(cls: type[Message], version: int, message: Message, end: int, frame: bytes) -> None:
    if end < len(frame):
        text = f"{cls.__name__} {version}: {len(frame) - end} bytes left over after offset {end}"
        trailing = errors.TrailingBytes(text)
        trailing.message, trailing.left_over = message, frame[end:]
        raise trailing


@functools.cache
def _large(decode: Decode) -> Decode:
    """``decode`` without garbage collection."""
    return no_collection()(decode)


#: frames of at least this size are decoded without garbage collection
_LARGE_BYTES = 1 << 15
#: the reference, which finds the place of a damage, takes 30 times as long: a peer must not choose how long
_EXPLAINED_BYTES = 1 << 16


def _read_body_by_reference(frame: bytes, at: int, known: ApiKey, cls: type[Message], version: int) -> Message:
    """Decode with the slower reference decoder what the generated decoder refused."""
    body = struct_for(cls, version, version in known.flexible)
    stream = io.BytesIO(frame)
    stream.seek(at)
    try:
        message: Message = body.parse_stream(stream)
    except construct.ConstructError as e:
        kind, reason, where = explain(e)
        raise kind(f"{cls.__name__} {version}: {reason} at {where}, offset {stream.tell()}") from None
    return message
