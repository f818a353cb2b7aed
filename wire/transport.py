"""Transport of frames between nodes: Protocols that the starter of a node implements. Pure."""

from __future__ import annotations

from collections.abc import Callable
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


class DirectConnection(FramedConnection, Protocol):
    """A connection that sends and receives without a task, as long as nothing must be waited for."""

    def send_nowait(self, payload: bytes, /) -> bool:
        """Send a frame, or begin to, if that need not wait; whether it did. If it ``is_unsent`` then, call ``flush``
        before anything else is sent."""

    @property
    def is_unsent(self) -> bool:
        """Whether there is something to ``flush``."""

    async def flush(self) -> None:
        """Send what ``send_nowait`` could not send without waiting. Raises trio.BrokenResourceError."""

    def receive_nowait(self) -> bytes | None:
        """The next frame, if it has come and nobody but ``receive_frame`` must look at it.

        Raises trio.BrokenResourceError.
        """

    @property
    def has_ended(self) -> bool:
        """The peer has closed, and nothing is left to be received; False if only ``receive_frame`` can tell."""

    async def wait_for_input(self, on_input: Callable[[], bool], /) -> None:
        """Call ``on_input`` outside of this task when there may be something to ``receive_nowait``. It must not raise.

        Returns when it returns False, when ``stop_waiting`` is called, when only ``receive_frame`` can tell what has
        come, and at once if the connection cannot call.
        """

    def stop_waiting(self) -> None:
        """End the ``wait_for_input`` of another task."""


class Dial(Protocol):
    """Opens a connection to the broker with id ``to``, at the address of its listener named ``listener``."""

    async def __call__(self, host: str, port: int, *, to: int, listener: str) -> DirectConnection:
        """Raises OSError (ConnectionLost is one)."""
