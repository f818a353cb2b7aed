"""One request to a live broker on a connection of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import trio

from kce import wire
from kce.captures.errors import CaptureError

CHUNK_BYTES: Final = 65536
_CLIENT_ID: Final = "kce replay"

#: host and port
Target: TypeAlias = tuple[str, int]

#: Opens a connection; raises OSError. The stream may be wrapped, for example to record it.
Dial: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]


async def ask(dial: Dial, target: Target, request: wire.Message, version: int, seconds: float) -> wire.Message:
    """The response. Raises CaptureError if there is none within that time."""
    host, port = target
    asked = wire.encode_request(request, api_version=version, correlation_id=0, client_id=_CLIENT_ID)
    buffer = wire.FrameBuffer()
    why = f"no response within {seconds:g} s"
    try:
        with trio.move_on_after(seconds):
            async with await dial(host, port) as stream:
                await stream.send_all(wire.frame(asked))
                while data := await stream.receive_some(CHUNK_BYTES):
                    buffer.receive_data(data)
                    if (frame := buffer.next_frame()) is not None:
                        return wire.decode_response(frame, api_key=request.__api_key__, api_version=version)[1]
                why = "the connection was closed"
    except (OSError, trio.BrokenResourceError, wire.WireError) as e:
        why = str(e) or "the connection broke"
    raise CaptureError(f"{type(request).__name__} to {host}:{port}: {why}")
