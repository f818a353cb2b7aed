"""Request headers 0-2 and response headers 0-1 (rules 13.3, 13.4).

The client id keeps its two-byte length even in the flexible header 2, so that any broker can decode the header of any
ApiVersions request. Tagged fields of headers are checked and skipped, in time linear in their number.
"""

from __future__ import annotations

import functools
import struct
from typing import NamedTuple

from kce.wire import errors
from kce.wire.java_text import decode_like_java
from kce.wire.primitives import MAX_STRING_BYTES, UNLIMITED
from kce.wire.registry import ApiKey, api
from kce.wire.steps import STEP_MASK, Steps, finish

_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_LENGTH = struct.Struct(">h")
_NO_TAGGED_FIELDS = b"\0"


class Header(NamedTuple):
    """A request or response header. ``client_id`` is None in a response, and in a request without one.

    A response carries only the correlation id: ``api_key`` and ``api_version`` are those of its request.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def read_request_header(frame: bytes, max_elements: int = UNLIMITED) -> tuple[ApiKey, Header, int]:
    """Decode a request header; the version may be unknown. Returns also the position of the body.

    Raises DecodeError, UnknownApiKey for example; TooManyElements for more tagged fields than ``max_elements``.
    """
    return finish(request_header_in_steps(frame, max_elements))


def request_header_in_steps(
    frame: bytes, max_elements: int = UNLIMITED, *, like_kafka: bool = False
) -> Steps[tuple[ApiKey, Header, int]]:
    """``read_request_header`` with pauses. ``like_kafka``: see `decode_like_kafka`."""
    if len(frame) < _REQUEST.size:
        raise errors.Truncated(f"request header: {_REQUEST.size} bytes needed, {len(frame)} there")
    api_key, api_version, correlation_id = _REQUEST.unpack_from(frame)
    try:
        known = api(api_key)
        header_version = known.request_header_version(api_version)
        client_id, at = None, _REQUEST.size
        try:
            if header_version >= 1:
                client_id, at = _read_client_id(frame, at, like_kafka=like_kafka)
            if header_version >= 2:
                at = yield from _tagged_fields_in_steps(frame, at, max_elements, in_any_order=like_kafka)
        except errors.DecodeError as e:
            raise type(e)(f"request header of {known.name} {api_version}: {e}") from None
    except errors.DecodeError as e:
        e.api_key, e.api_version, e.correlation_id = api_key, api_version, correlation_id
        raise
    return known, Header(api_key, api_version, correlation_id, client_id), at


def _read_client_id(frame: bytes, at: int, *, like_kafka: bool) -> tuple[str | None, int]:
    begin = at + _LENGTH.size
    if len(frame) < begin:
        raise errors.Truncated("the frame ends inside the field at client_id")
    (length,) = _LENGTH.unpack_from(frame, at)
    if length < 0:
        if length == -1 or like_kafka:
            return None, begin
        raise errors.LimitExceeded(f"negative length {length} at client_id")
    end = begin + length
    if end > len(frame):
        raise errors.Truncated(f"{length} bytes announced, {len(frame) - begin} left at client_id")
    if like_kafka:
        return decode_like_java(frame[begin:end]), end
    try:
        return frame[begin:end].decode(), end
    except UnicodeDecodeError as e:
        raise errors.InvalidValue(f"not UTF-8: {e.reason} at byte {e.start} at client_id") from None


def skip_tagged_fields(frame: bytes, at: int, max_elements: int = UNLIMITED) -> int:
    """The position after a section of tagged fields, none of which is known. Raises DecodeError, TooManyElements."""
    return finish(_tagged_fields_in_steps(frame, at, max_elements))


def _tagged_fields_in_steps(frame: bytes, at: int, max_elements: int, *, in_any_order: bool = False) -> Steps[int]:
    try:
        if frame[at] == 0:
            return at + 1
        count, at = _read_uvarint(frame, at)
        most = (len(frame) - at) // 2
        if count > most:
            raise errors.LimitExceeded(f"{count} tagged fields announced, at most {most} can follow")
        if count > max_elements:
            raise errors.TooManyElements(f"{count} tagged fields in a header")
        last = -1
        for i in range(count):
            if not i & STEP_MASK:
                yield
            # varints of up to three bytes are read here: calls would double the time
            tag = frame[at]
            at += 1
            if tag > 127:
                if (second := frame[at]) < 128:
                    tag += (second << 7) - 128
                    at += 1
                elif (third := frame[at + 1]) < 128:
                    tag += (second << 7) + (third << 14) - 16512
                    at += 2
                else:
                    tag, at = _read_uvarint(frame, at - 1)
            if tag <= last and not in_any_order:
                raise errors.InvalidValue(f"tag {tag} follows tag {last}")
            last = tag
            size = frame[at]
            at += 1
            if size:
                if size > 127:
                    size, at = _read_uvarint(frame, at - 1)
                at += size
    except IndexError:
        raise errors.Truncated("the frame ends inside the tagged fields") from None
    if at > len(frame):
        raise errors.Truncated("the frame ends inside the tagged fields")
    return at


def _read_uvarint(frame: bytes, at: int) -> tuple[int, int]:
    """(value, next position). Raises InvalidValue; IndexError at the end of the frame."""
    value = shift = 0
    while (byte := frame[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 28:
            raise errors.InvalidValue("varint longer than 5 bytes")
    value |= byte << shift
    if value > 0xFFFFFFFF:
        raise errors.InvalidValue("varint larger than 32 bits")
    return value, at + 1


def request_header(known: ApiKey, header: Header) -> bytes:
    """Encode a request header. Raises EncodeError for a correlation id or client id that does not fit."""
    where = f"header of {known.name} {header.api_version}"
    header_version = known.request_header_version(header.api_version)
    try:
        encoded = _REQUEST.pack(known.key, header.api_version, header.correlation_id)
    except struct.error as e:
        raise errors.EncodeError(f"{where}: {e}") from None
    if header_version >= 1:
        encoded += _encoded_client_id(header.client_id, where)
    if header_version >= 2:
        encoded += _NO_TAGGED_FIELDS
    return encoded


def _encoded_client_id(client_id: str | None, where: str) -> bytes:
    if client_id is None:
        return _LENGTH.pack(-1)
    try:
        text = client_id.encode()
    except UnicodeEncodeError as e:
        raise errors.EncodeError(f"{where}: not encodable as UTF-8: {e.reason} at client_id") from None
    except AttributeError:
        raise errors.EncodeError(f"{where}: str expected, not {type(client_id).__name__} at client_id") from None
    if len(text) > MAX_STRING_BYTES:
        raise errors.EncodeError(f"{where}: string of {len(text)} bytes, at most {MAX_STRING_BYTES} at client_id")
    return _LENGTH.pack(len(text)) + text


def read_response_header(frame: bytes, known: ApiKey, api_version: int) -> tuple[Header, int]:
    """Also the position of the body. Raises DecodeError."""
    if len(frame) < _CORRELATION_ID.size:
        raise errors.Truncated(f"response header: {_CORRELATION_ID.size} bytes needed, {len(frame)} there")
    (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
    at = _CORRELATION_ID.size
    if known.response_header_version(api_version) >= 1:
        try:
            at = skip_tagged_fields(frame, at)
        except errors.DecodeError as e:
            raise type(e)(f"response header of {known.name} {api_version}: {e}") from None
    return Header(known.key, api_version, correlation_id), at


def response_header(known: ApiKey, api_version: int, correlation_id: int) -> bytes:
    """Encode a response header. Raises EncodeError for a correlation id that does not fit."""
    try:
        encoded = _CORRELATION_ID.pack(correlation_id)
    except struct.error as e:
        raise errors.EncodeError(f"response header of {known.name} {api_version}: {e}") from None
    return encoded + _response_tags(known, api_version)


@functools.cache
def _response_tags(known: ApiKey, api_version: int) -> bytes:
    return _NO_TAGGED_FIELDS if known.response_header_version(api_version) >= 1 else b""
