"""What a broker needs of others, as Protocols that whoever starts it hands in: connections, taps, a controller.

Nothing in this package opens an outgoing socket or knows the controller; both come through here, so that recording and
faults can be put in between and the same broker runs with any controller, or none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

from wire import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownResponse,
    ErrorCode,
)


class ConnectionLost(ConnectionError):
    """The other side closed the connection, or it broke."""


class FramedConnection(Protocol):
    """A connection to another node on which whole frames travel (without their lengths)."""

    async def send_frame(self, payload: bytes) -> None:
        """Raises ConnectionLost."""

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, also when the peer has closed."""

    async def aclose(self) -> None:
        """Never fails and does not wait for the peer."""


#: Opens a connection to (host, port); raises OSError (ConnectionLost is one) where that is not possible.
Dial: TypeAlias = Callable[[str, int], Awaitable[FramedConnection]]

#: Wraps an accepted connection, say to record it. Whatever it returns is read, written and closed in its place.
Tap: TypeAlias = Callable[[trio.SocketStream], trio.abc.Stream]


def no_tap(stream: trio.SocketStream) -> trio.abc.Stream:
    """The connection as it is."""
    return stream


class ControllerPort(Protocol):
    """This node's controller module, as its request handlers see it.

    Both return at once and raise nothing. ``reply`` is called at most once, later or before they return, from a task
    of the same trio run; never when the controller dropped the event (rule 3.38), and the requester then times out.
    """

    def alter_partition(
        self, request: AlterPartitionRequest, api_version: int, reply: Callable[[AlterPartitionResponse], None]
    ) -> None: ...

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ControlledShutdownResponse], None]
    ) -> None: ...


class NoController:
    """A controller module that is not active, and never will be."""

    def alter_partition(
        self, request: AlterPartitionRequest, api_version: int, reply: Callable[[AlterPartitionResponse], None]
    ) -> None:
        reply(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))  # rule 9.70

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ControlledShutdownResponse], None]
    ) -> None:
        reply(ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH))  # rules 9.69, 11.41
