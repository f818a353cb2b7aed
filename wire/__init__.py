"""Bytes <-> frozen messages of Kafka's protocol. Pure: no event loop, no sockets, no clocks.

    header, message = wire.decode_request(frame)
    reply = wire.encode_response(wire.LeaderAndIsrResponse(), api_version=header.api_version,
                                 correlation_id=header.correlation_id)
    stream.send_all(wire.frame(reply))

Messages are named as Kafka's own definitions name them, with fields in snake_case, arrays as tuples and Kafka's
defaults: ``wire.LeaderAndIsrRequest``, and inside it ``wire.LeaderAndIsrTopicState``. Where Kafka gives several
messages a structure of one name, the message's name stands before it: ``wire.AlterPartitionRequestTopicData``.

primitives   Kafka's types as Construct classes        schema     tables -> dataclasses and a Struct per version
messages/    one table file per API                    headers    request and response headers
registry     API keys, names, versions                 protocol   whole frames: the four functions above
framing      the length before each frame              errors     error codes; the WireError tree
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wire.errors import (
    DecodeError,
    EncodeError,
    ErrorCode,
    InvalidValue,
    LimitExceeded,
    TrailingBytes,
    Truncated,
    UnknownApiKey,
    UnsupportedVersion,
    WireError,
    error_name,
)
from wire.framing import DEFAULT_MAX_FRAME_BYTES, FrameBuffer, frame
from wire.headers import Header
from wire.protocol import decode_request, decode_request_header, decode_response, encode_request, encode_response
from wire.registry import API_KEYS, ApiKey, api, message_module
from wire.schema import Message, Struct, as_dict

if TYPE_CHECKING:
    from wire.messages.alter_partition import *
    from wire.messages.api_versions import *
    from wire.messages.controlled_shutdown import *
    from wire.messages.leader_and_isr import *
    from wire.messages.metadata import *
    from wire.messages.stop_replica import *
    from wire.messages.update_metadata import *

__all__ = [
    "API_KEYS",
    "DEFAULT_MAX_FRAME_BYTES",
    "ApiKey",
    "DecodeError",
    "EncodeError",
    "ErrorCode",
    "FrameBuffer",
    "Header",
    "InvalidValue",
    "LimitExceeded",
    "Message",
    "Struct",
    "TrailingBytes",
    "Truncated",
    "UnknownApiKey",
    "UnsupportedVersion",
    "WireError",
    "api",
    "as_dict",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_response",
    "error_name",
    "frame",
]


def __getattr__(name: str) -> Any:
    """A message or structure by name; its module is imported when it is first asked for."""
    if name[:1].isupper():
        # the API whose name begins the structure's first, so that as a rule one module is imported
        for known in sorted(API_KEYS, key=lambda known: (not name.startswith(known.name), -len(known.name))):
            module = message_module(known.key)
            if module is not None and name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'wire' has no attribute {name!r}")
