"""One control request for many brokers, encoded once.

The requests to different brokers differ only in the correlation id, in the header, and in the broker epoch, one of the
first fields of the body. The rest, which grows with the cluster, is encoded once and shared.
"""

from __future__ import annotations

import functools
import struct

from kce.wire import errors
from kce.wire.codegen import Run, code_of, parts_of
from kce.wire.headers import Header, request_header
from kce.wire.protocol import encode_request
from kce.wire.registry import api
from kce.wire.schema import Message, struct_for

_CORRELATION_ID = struct.Struct(">i")
_CORRELATION_ID_AT = 4
_BROKER_EPOCH = struct.Struct(">q")


class SharedRequest:
    """A LeaderAndIsr, UpdateMetadata or StopReplica with a ``broker_epoch`` per broker.

    ``rest`` is shared by all brokers. Raises EncodeError, UnsupportedVersion.
    """

    def __init__(self, message: Message, *, api_version: int, client_id: str | None) -> None:
        self._name = type(message).__name__
        self.api_version = api_version
        whole = encode_request(message, api_version=api_version, correlation_id=0, client_id=client_id)
        known = api(message.__api_key__)
        header = request_header(known, Header(known.key, api_version, correlation_id=0, client_id=client_id))
        # mypy takes a class's own __hash__ for that of its instances
        offset = _offset_of_broker_epoch(type(message), api_version, api_version in known.flexible)  # type: ignore[arg-type]
        self._broker_epoch_at = None if offset is None else len(header) + offset
        cut = len(header) if self._broker_epoch_at is None else self._broker_epoch_at + _BROKER_EPOCH.size
        self._start = whole[:cut]
        self.rest = memoryview(whole)[cut:]

    def __len__(self) -> int:
        """Size of the request in bytes, without the frame length."""
        return len(self._start) + len(self.rest)

    def start(self, *, correlation_id: int, broker_epoch: int) -> bytes:
        """The bytes before ``rest`` for one broker; versions without broker epochs ignore it. Raises EncodeError."""
        start = bytearray(self._start)
        try:
            _CORRELATION_ID.pack_into(start, _CORRELATION_ID_AT, correlation_id)
            if self._broker_epoch_at is not None:
                _BROKER_EPOCH.pack_into(start, self._broker_epoch_at, broker_epoch)
        except struct.error as e:
            raise errors.EncodeError(f"{self._name} {self.api_version}: {e}") from None
        return bytes(start)


@functools.cache
def _offset_of_broker_epoch(cls: type[Message], version: int, flexible: bool) -> int | None:
    """Its offset in the body, or None if the version has no broker epoch."""
    offset = 0
    first = next(parts_of(struct_for(cls, version, flexible)), None)
    for name, construct in first.fields if isinstance(first, Run) else ():
        if name == "broker_epoch":
            return offset
        offset += struct.calcsize(f">{code_of(construct)}")
    return None
