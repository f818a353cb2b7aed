"""Captured requests and responses, decoded from their frames with ``wire``.

A message that cannot be decoded has ``body`` None and the reason in ``error``. ``left_over`` counts bytes behind a
whole body, which some clients send and Kafka ignores. Nothing here raises, whatever the bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from kce import wire
from kce.captures.exchanges.framing import Frame
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.recognise import PRODUCE, Start, produce_acks
from kce.captures.tcp.segments import Endpoint, Place
from kce.wire.registry import (
    ALTER_PARTITION,
    BY_KEY,
    BY_NAME,
    CONTROL_REQUESTS,
    CONTROLLED_SHUTDOWN,
    ApiKey,
    message_class,
)

#: requests of a broker to the controller that carry its id and epoch
BROKERS_TO_CONTROLLER = frozenset({CONTROLLED_SHUTDOWN, ALTER_PARTITION, BY_NAME["AllocateProducerIds"].key})

_KEY_AND_VERSION = struct.Struct(">hhi").unpack_from
_INT16 = struct.Struct(">h").unpack_from

#: fields at the beginning of control requests
_HEAD_STRUCTS = {"controller_id": ">i", "is_kraft_controller": "?", "controller_epoch": ">i", "broker_epoch": ">q"}
_HEAD_FIELDS = {name: struct.Struct(form).unpack_from for name, form in _HEAD_STRUCTS.items()}
_HEAD_SIZES = {name: struct.calcsize(form) for name, form in _HEAD_STRUCTS.items()}


@dataclass(frozen=True, slots=True)
class Peers:
    """Client and server. ``connection`` numbers the connections of a capture."""

    connection: int
    client: Endpoint
    server: Endpoint


class ControlHead(NamedTuple):
    """The first fields of a control request; ``broker_epoch`` is None where it is missing."""

    controller_id: int
    controller_epoch: int
    is_kraft_controller: bool | None
    broker_epoch: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request. ``api`` is None for an unknown key. ``frame_bytes`` excludes the length field."""

    peers: Peers
    place: Place
    api_key: int
    api: ApiKey | None
    version: int
    correlation_id: int
    client_id: str | None
    body: wire.Message | None
    error: str | None
    frame_bytes: int
    left_over: int
    answered: bool  # whether Kafka sends a response
    head: ControlHead | None = None  # of a control request whose body is incomplete

    @property
    def api_name(self) -> str:
        return f"Unknown({self.api_key})" if self.api is None else self.api.name


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """The response to ``request``. ``version`` is that of its body: 0 if an ApiVersions version was refused."""

    request: Request
    place: Place
    version: int
    body: wire.Message | None
    error: str | None
    frame_bytes: int
    left_over: int

    @property
    def error_code(self) -> int | None:
        """The top-level error; None if its version has none or it was not decoded."""
        body = self.body
        if body is None or not any(f.name == "error_code" and self.version in f.versions for f in body.__fields__):
            return None
        code: int = body.error_code  # type: ignore[attr-defined]  # the line above has seen it
        return code

    @property
    def latency_ns(self) -> int:
        return self.place.time_ns - self.request.place.time_ns


@dataclass(frozen=True, slots=True, eq=False)
class NoResponse:
    """There is no response to ``request``: Kafka sends none, or none was captured."""

    request: Request


Message = Request | Response | NoResponse


def read_request(peers: Peers, frame: Frame) -> Request:
    """Decode the request in ``frame``, which has at least eight bytes."""
    payload = frame.payload
    key, version, correlation_id = _KEY_AND_VERSION(payload)
    client_id, body, error, left_over = _decode_request(frame, key)
    answered = key != PRODUCE or produce_acks(payload) != 0
    head = control_head(payload, key, version) if frame.lost and key in CONTROL_REQUESTS else None
    return Request(
        peers, frame.place, key, BY_KEY.get(key), version, correlation_id, client_id, body, error, frame.length,
        left_over, answered, head,
    )  # fmt: skip


def read_response(request: Request, frame: Frame) -> Response:
    """Decode the response to ``request`` in ``frame``."""
    version, body, error, left_over = _decode_response(frame, request)
    return Response(request, frame.place, version, body, error, frame.length, left_over)


def count_decoding(quality: Quality, message: Request | Response, *, lost: bool) -> None:
    """Count whether a message was decoded; ``lost``: bytes of it are missing."""
    quality.left_over += message.left_over > 0
    request = message if isinstance(message, Request) else message.request
    of_no_api = request is message and request.api is None
    if lost:
        quality.incomplete[f"{request.api_name} {'request' if request is message else 'response'}"] += 1
    quality.undecodable += of_no_api or (message.error is not None and not lost)


def start_of(request: Request) -> Start | None:
    if request.api is None:
        return None
    return Start(request.frame_bytes, request.api, request.version, request.correlation_id, request.client_id)


def control_head(payload: bytes, key: int, version: int) -> ControlHead | None:
    """The first fields of a control request of which only the beginning was captured; None if not even these were."""
    api, cls = BY_KEY[key], message_class(key, "request")
    if cls is None or version not in api.versions:
        return None
    found: dict[str, int | bool] = {}
    try:
        header_version = api.request_header_version(version)
        at = 8 if header_version == 0 else 10 + max(0, _INT16(payload, 8)[0])
        if header_version >= 2:
            at += 1  # no tagged fields
        for field in cls.__fields__:
            if version not in field.versions or field.tag is not None:
                continue
            if field.name not in _HEAD_FIELDS:
                break
            (found[field.name],) = _HEAD_FIELDS[field.name](payload, at)
            at += _HEAD_SIZES[field.name]
    except struct.error:
        pass
    if "controller_epoch" not in found:
        return None
    return ControlHead(**{name: found.get(name) for name in ControlHead._fields})  # type: ignore[arg-type]


def _decode_request(frame: Frame, key: int) -> tuple[str | None, wire.Message | None, str | None, int]:
    """(client id, body, error, bytes left over)."""
    body, error, left_over = None, None, 0
    if frame.lost:
        error = f"{frame.lost} of its {frame.length} bytes are not in the capture"
    elif key not in BY_KEY or message_class(key, "request") is not None:
        try:
            header, body = wire.decode_request(frame.payload)
        except wire.TrailingBytes as e:
            body, error, left_over = _with_trailing_bytes(e)
        except wire.DecodeError as e:
            error = str(e)
        else:
            return header.client_id, body, None, 0
    try:
        return wire.decode_request_header(frame.payload).client_id, body, error, left_over
    except wire.DecodeError as e:
        return None, None, error or str(e), 0


def _decode_response(frame: Frame, request: Request) -> tuple[int, wire.Message | None, str | None, int]:
    """(version of the body, body, error, bytes left over)."""
    if frame.lost:
        return request.version, None, f"{frame.lost} of its {frame.length} bytes are not in the capture", 0
    if request.api is None or message_class(request.api_key, "response") is None:
        return request.version, None, None, 0
    if len(frame.payload) < frame.length:
        return request.version, None, f"{frame.length} bytes, too many to keep until its request came", 0
    try:
        header, body = wire.decode_response(frame.payload, api_key=request.api_key, api_version=request.version)
    except wire.TrailingBytes as e:
        return request.version, *_with_trailing_bytes(e)
    except wire.DecodeError as e:
        return request.version, None, str(e), 0
    return header.api_version, body, None, 0


def _with_trailing_bytes(e: wire.TrailingBytes) -> tuple[wire.Message | None, str | None, int]:
    """(body, error, bytes left over): no body if the extra bytes are inside a tagged field."""
    if isinstance(e.message, wire.Message):
        return e.message, None, len(e.left_over)
    return None, str(e), 0
