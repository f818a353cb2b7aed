"""The reading side of a connection: the frame that has come, and the requests in progress, whose frames are held."""

from __future__ import annotations

from typing import Any, Protocol

from kce import wire
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.authentication import Owner
from kce.broker_stub.reactor.outgoing import Outgoing
from kce.broker_stub.reactor.request import Apis, Request, Sharing, describe
from kce.broker_stub.reactor.request_channel import RequestChannel, Sender
from kce.broker_stub.reactor.turns import Turns
from kce.garbage import let_go


class BadRequest(Exception):
    """The text says what is wrong."""


def bad_request(error: wire.DecodeError) -> BadRequest:
    let_go(error)
    return BadRequest(describe(error))


class ConnectionOwner(Sender, Owner, Protocol):
    """The processor of a connection."""

    apis: Apis
    channel: RequestChannel
    turns: Turns
    #: rule B1.22
    is_blocked: bool

    def parse(self, connection: Any, frame: bytes, now: float) -> Request:
        """A request on that connection, a Requester. Raises wire.DecodeError (rule B1.35), wire.TooManyElements."""

    async def parse_in_turns(self, connection: Any, frame: bytes, now: float) -> Request:
        """Parse a long request. Raises wire.DecodeError."""

    async def unblocked(self) -> None:
        """Wait while the processor is blocked (rule B1.22)."""


class Incoming(Outgoing):
    """Memory for frames is given back once the handler is done with their requests (rule B1.25)."""

    __slots__ = ("_frame", "_held", "_owner")

    def __init__(self, link: Link, owner: ConnectionOwner) -> None:
        super().__init__(link, owner.metrics)
        self._owner = owner
        #: of the next request
        self._frame: bytes | None = None
        #: bytes of frames of requests in progress that are not given back yet
        self._held = 0

    def _begin(self, request: Request) -> None:
        """The request that was parsed from the frame is in progress."""
        self._frame = None
        self._held += request.size
        self._in_progress.append(request)

    def _handle_at_once(self, request: Request, now: float) -> bool:
        """Handle the request, with those that share its work and arrived with it, if it need not wait for a handler."""
        owner = self._owner
        channel, sharing = owner.channel, owner.apis.sharing
        if channel.free <= 0:
            return False
        shares = sharing.get(request.context.header.api_key)
        if shares is not None and shares.may(request.message):
            self._read_ahead(request, shares, now)
            if len(self._in_progress) > 1:
                with shares.together():
                    for each in self._in_progress:
                        channel.begin(each)  # none of them waits in its handler
                return True
        return channel.begin(request)

    def _read_ahead(self, first: Request, shares: Sharing, now: float) -> None:
        """Begin the requests that arrived after the ``first`` and share its work. What follows is the next frame."""
        size = first.size
        while size < shares.most_bytes and (frame := self._link.receive_nowait()) is not None:
            self._frame = frame
            if int.from_bytes(frame[:2], "big") != first.context.header.api_key:
                return
            try:
                request = self._owner.parse(self, frame, now)
            except (wire.DecodeError, wire.TooManyElements):  # raised again when it is its turn
                return
            if not shares.may(request.message):
                return
            self._begin(request)
            size += len(frame)

    def _drop_frame(self) -> None:
        """The frame is not handled."""
        if self._frame is not None:
            self._give_back(len(self._frame))
            self._frame = None

    def _drop_frames(self) -> None:
        """The handler is done with the requests in progress, and so with their frames (rule B1.25)."""
        self._give_back(self._held)
        self._held = 0

    def _give_back(self, count: int) -> None:
        if self._owner.memory is not None:
            self._owner.memory.give_back(count)
