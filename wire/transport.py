"""Transport of frames between nodes: Protocols that the starter of a node implements. Pure."""

from __future__ import annotations

from typing import Protocol


class ConnectionLost(ConnectionError):
    """The peer closed the connection, or it broke."""


class AuthenticationRefused(ConnectionLost):
    """The peer closed the connection because it does not accept who we are. ``code``: what it answered."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class FramedConnection(Protocol):
    """A connection to another node that carries whole frames, without their length prefixes."""

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        """Send ``payload`` and ``rest`` as one frame. ``rest`` is not copied if nobody looks. Raises ConnectionLost."""

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, also when the peer has closed; LimitExceeded for a length out of bounds."""

    async def aclose(self) -> None:
        """Never fails and does not wait for the peer."""


class Dial(Protocol):
    """Opens a connection to the broker with id ``to``, at the address of its listener named ``listener``."""

    async def __call__(self, host: str, port: int, *, to: int, listener: str) -> FramedConnection:
        """Raises OSError (ConnectionLost is one)."""
