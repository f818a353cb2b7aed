"""Ends a ZooKeeper session from outside, so that its client finds it expired.

A server gives every session a password that it computes from the session's id, so that each server of an ensemble can
check it: ZooKeeperServer.generatePasswd. Whoever knows the id, which nodes in ZooKeeper name as their owner, can
connect to that session and close it. Its client may be dead, suspended, cut off, or a real broker.
"""

from __future__ import annotations

import ssl
import struct
from typing import Final

import trio

from kce.harness.errors import HarnessError

#: of ZooKeeperServer
_SUPER_SECRET: Final = 0xB3415C00
_PASSWORD_BYTES: Final = 16
# java.util.Random
_MULTIPLIER, _INCREMENT, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1
# ConnectRequest: version, last zxid, timeout ms, session; the password follows, and whether it is read-only
_CONNECT: Final = struct.Struct(">iqiq")
#: RequestHeader of a close: xid, opcode
_CLOSE: Final = struct.pack(">ii", 1, -11)
_LENGTH: Final = struct.Struct(">i")
# ConnectResponse: version, timeout ms, session
_CONNECTED: Final = struct.Struct(">iiq")
_TIMEOUT_S: Final = 10.0


def password(session_id: int) -> bytes:
    """The password of a session."""
    state = ((session_id ^ _SUPER_SECRET) ^ _MULTIPLIER) & _MASK
    found = b""
    while len(found) < _PASSWORD_BYTES:
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        found += (state >> 16).to_bytes(4, "little")
    return found


def requests(session_id: int) -> bytes:
    """What connects to the session and closes it, in one write, so that its client cannot come between."""
    connect = _CONNECT.pack(0, 0, int(_TIMEOUT_S * 1000), session_id) + _buffer(password(session_id)) + b"\0"
    return _buffer(connect) + _buffer(_CLOSE)


def _buffer(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content


async def end_session(host: str, port: int, session_id: int, tls: ssl.SSLContext | None) -> None:
    """Raises HarnessError where no server answers, or the server does not know the session."""
    try:
        with trio.fail_after(_TIMEOUT_S):
            stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
            if tls is not None:
                stream = trio.SSLStream(stream, tls, server_hostname=host, https_compatible=True)
            async with stream:
                await stream.send_all(requests(session_id))
                answer = await _first(stream)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as e:
        why = str(e) or type(e).__name__
        raise HarnessError(f"ZooKeeper at {host}:{port} does not close session {session_id:#x}: {why}") from None
    if len(answer) < _CONNECTED.size or _CONNECTED.unpack_from(answer)[2] != session_id:
        raise HarnessError(f"ZooKeeper at {host}:{port} does not know session {session_id:#x}")


async def _first(stream: trio.abc.Stream) -> bytes:
    """The beginning of the first response, after its length; then wait until the server has closed."""
    received = bytearray()
    while data := await stream.receive_some(4096):
        if len(received) < 4096:
            received += data
    return bytes(received[_LENGTH.size :])
