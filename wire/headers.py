"""Request headers 0-2 and response headers 0-1 (rules 13.3, 13.4).

The client id keeps its two-byte length even in the flexible header 2, so that any broker can decode the header of any
ApiVersions request.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from construct import ConstructError

from kce.wire import errors
from kce.wire.primitives import STRING, TaggedFields, explain
from kce.wire.registry import ApiKey, api

_REQUEST = struct.Struct(">hhi")
_CORRELATION_ID = struct.Struct(">i")
_CLIENT_ID = STRING.construct_for(compact=False, nullable=True)
_TAGGED_FIELDS = TaggedFields({})
_NO_TAGGED_FIELDS = {TaggedFields.UNKNOWN: ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A request or response header. ``client_id`` is None in a response, and in a request without one.

    A response carries only the correlation id: ``api_key`` and ``api_version`` are those of its request.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def read_request_header(stream: io.BytesIO) -> tuple[ApiKey, Header]:
    """Decode a request header; the version may be unknown. Raises DecodeError, UnknownApiKey for example."""
    start = stream.read(_REQUEST.size)
    if len(start) < _REQUEST.size:
        raise errors.Truncated(f"request header: {_REQUEST.size} bytes needed, {len(start)} there")
    api_key, api_version, correlation_id = _REQUEST.unpack(start)
    try:
        known = api(api_key)
        client_id = _rest_of_request_header(stream, known, api_version)
    except errors.DecodeError as e:
        e.api_key, e.api_version, e.correlation_id = api_key, api_version, correlation_id
        raise
    header = Header(api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=client_id)
    return known, header


def _rest_of_request_header(stream: io.BytesIO, known: ApiKey, api_version: int) -> str | None:
    if api_version < 0:
        raise errors.UnsupportedVersion(f"{known.name}: negative version {api_version}")
    header_version = known.request_header_version(api_version)
    client_id: str | None = None
    try:
        if header_version >= 1:
            client_id = _CLIENT_ID._parse(stream, None, "client_id")
        if header_version >= 2:
            _TAGGED_FIELDS._parse(stream, None, "tagged_fields")
    except ConstructError as e:
        kind, reason, where = explain(e)
        message = f"request header of {known.name} {api_version}: {reason} at {where}, offset {stream.tell()}"
        raise kind(message) from None
    return client_id


def write_request_header(stream: io.BytesIO, known: ApiKey, header: Header) -> None:
    """Raises EncodeError for a correlation id or client id that does not fit."""
    try:
        stream.write(_REQUEST.pack(known.key, header.api_version, header.correlation_id))
        header_version = known.request_header_version(header.api_version)
        if header_version >= 1:
            _CLIENT_ID._build(header.client_id, stream, None, "client_id")
        if header_version >= 2:
            _TAGGED_FIELDS._build(_NO_TAGGED_FIELDS, stream, None, "tagged_fields")
    except ConstructError as e:
        _, reason, where = explain(e)
        raise errors.EncodeError(f"request header of {known.name} {header.api_version}: {reason} at {where}") from None
    except struct.error as e:
        raise errors.EncodeError(f"header of {known.name} {header.api_version}: {e}") from None


def read_response_header(stream: io.BytesIO, known: ApiKey, api_version: int) -> Header:
    """Raises DecodeError."""
    start = stream.read(_CORRELATION_ID.size)
    if len(start) < _CORRELATION_ID.size:
        raise errors.Truncated(f"response header: {_CORRELATION_ID.size} bytes needed, {len(start)} there")
    if known.response_header_version(api_version) >= 1:
        try:
            _TAGGED_FIELDS._parse(stream, None, "tagged_fields")
        except ConstructError as e:
            kind, reason, where = explain(e)
            message = f"response header of {known.name} {api_version}: {reason} at {where}, offset {stream.tell()}"
            raise kind(message) from None
    return Header(api_key=known.key, api_version=api_version, correlation_id=_CORRELATION_ID.unpack(start)[0])


def write_response_header(stream: io.BytesIO, known: ApiKey, api_version: int, correlation_id: int) -> None:
    """Raises EncodeError for a correlation id that does not fit."""
    try:
        stream.write(_CORRELATION_ID.pack(correlation_id))
    except struct.error as e:
        raise errors.EncodeError(f"response header of {known.name} {api_version}: {e}") from None
    if known.response_header_version(api_version) >= 1:
        _TAGGED_FIELDS._build(_NO_TAGGED_FIELDS, stream, None, "tagged_fields")
