"""Whether a connection is Kafka's and, if its SYN was not captured, which side is the client.

A connection is Kafka's if its client's first bytes are a request. One that is older than the capture may begin inside
records that contain Kafka requests: requests are believed when a response answers one of them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

from kce.captures.exchanges.framing import ID_BYTES, Frame, Framer
from kce.captures.exchanges.quality import INCOMPLETE
from kce.captures.exchanges.recognise import (
    MAX_FRAME_BYTES,
    UNRECOGNISED,
    InFlight,
    Verdict,
    find_request,
    first_request,
    is_response,
    other_protocol,
)
from kce.captures.tcp.directions import Data, Gap
from kce.captures.tcp.streams import Connection

#: Bytes kept of a connection while it is unknown whether it is Kafka's.
MAX_UNDECIDED_BYTES = 2 * 1024 * 1024

#: Bytes searched before a connection is declared not to be Kafka's. One that is older than the capture may begin in the
#: middle of Kafka's longest frame.
MAX_LOOKED_AT_BYTES = MAX_FRAME_BYTES + MAX_UNDECIDED_BYTES

#: Requests on a connection older than the capture that are believed without a response (acks=0).
MIN_UNCONFIRMED = 8

#: Maximum of frames noted that may be responses to requests that were not found yet.
_MAX_HEADS = 10_000

#: Bytes by which another protocol is named.
_OPENING_BYTES = 64

_KEY_AND_VERSION = struct.Struct(">hhi").unpack_from
_LENGTH_AND_ID = struct.Struct(">ii").unpack_from


class Decision(NamedTuple):
    """``client``: its side; None if the connection is not Kafka's. ``lost``: the first byte of this side's events may
    be in the middle of a frame."""

    client: int | None
    lost: bool = False


NOT_KAFKA = Decision(None)


class Undecided:
    """One connection: takes events until it returns a decision. ``ports`` are listener ports, if known."""

    def __init__(self, connection: Connection, ports: Collection[int]) -> None:
        #: all of them, or the last `MAX_UNDECIDED_BYTES`
        self.events: deque[Data | Gap] = deque()
        self.is_whole = True
        #: the correlation id of the first request that a response confirmed
        self.first_id: int | None = None
        self._connection = connection
        self._server_ports = [port in ports for _, port in connection.endpoints]
        self._bytes = 0
        self._looked_at = 0
        self._opening = [b"", b""]
        self._candidates: tuple[Framer, Framer] | None = None
        self._unconfirmed: tuple[dict[int, InFlight], dict[int, InFlight]] = ({}, {})
        self._heads: tuple[dict[int, tuple[bytes, int]], dict[int, tuple[bytes, int]]] = ({}, {})

    def receive(self, event: Data | Gap) -> Decision | None:
        """None: undecided."""
        client = self._connection.client
        self.events.append(event)
        if isinstance(event, Data):
            self._bytes += len(event.data)
            self._looked_at += len(event.data)
            self._opening[event.side] += event.data[: _OPENING_BYTES - len(self._opening[event.side])]
        if self._candidates is None and client is not None and not (isinstance(event, Gap) and event.side == client):
            if isinstance(event, Data) and event.side == client:
                verdict = first_request(
                    b"".join(e.data for e in self.events if e.side == client and isinstance(e, Data))
                )
                if verdict is Verdict.YES:
                    return Decision(client)
                if verdict is Verdict.NO:
                    return NOT_KAFKA
            return NOT_KAFKA if self._bytes > MAX_UNDECIDED_BYTES else None
        if client is None and sum(self._server_ports) == 1:
            client = self._server_ports.index(False)
        if self._candidates is None:
            self._candidates = (_searching(), _searching())
            new = list(self.events)
        else:
            new = [event]
        for event in new:
            framer, side = self._candidates[event.side], event.side
            if isinstance(event, Data) and self._confirms(event) and client in (None, 1 - side):
                return Decision(1 - side, lost=True)
            if client not in (None, side):
                continue
            frames = framer.gap(event.size) if isinstance(event, Gap) else framer.data(event.data, event.place)
            if self._is_confirmed(side, frames):
                return Decision(side, lost=True)
            if framer.searching:
                self._unconfirmed[side].clear()  # these were no requests: what follows them is none
            elif len(self._unconfirmed[side]) >= MIN_UNCONFIRMED and not self._opening[1 - side]:
                return Decision(side, lost=True)
        while self._bytes > MAX_UNDECIDED_BYTES:
            oldest = self.events.popleft()
            self.is_whole = False
            self._bytes -= len(oldest.data) if isinstance(oldest, Data) else 0
        return NOT_KAFKA if self._looked_at > MAX_LOOKED_AT_BYTES else None

    def finish(self) -> Decision:
        """The connection has ended."""
        for side, framer in enumerate(self._candidates or ()):
            found = self._is_confirmed(side, framer.finish()) or self._unconfirmed[side]
            if found and (self.first_id is not None or not self._opening[1 - side]):
                return Decision(side, lost=True)
        return NOT_KAFKA

    @property
    def other_protocol(self) -> str:
        """What it is, as far as its first bytes tell."""
        client = 0 if self._connection.client is None else self._connection.client
        name = other_protocol(self._opening[client], self._opening[1 - client])
        is_incomplete = any(isinstance(event, Gap) for event in self.events)
        return INCOMPLETE if name == UNRECOGNISED and is_incomplete else name

    def _confirms(self, event: Data) -> bool:
        """Whether a packet has a response to an unconfirmed request. Notes what may be responses to later ones."""
        requests, heads = self._unconfirmed[1 - event.side], self._heads[event.side]
        at = 0
        while len(event.data) - at >= 8:
            length, correlation_id = _LENGTH_AND_ID(event.data, at)
            if not ID_BYTES <= length <= MAX_FRAME_BYTES:
                break
            begun = event.data[at + 4 : at + 4 + length]
            if correlation_id in requests and is_response(begun, length, requests[correlation_id]):
                self.first_id = correlation_id
                return True
            if len(heads) < _MAX_HEADS:
                heads[correlation_id] = begun, length
            at += 4 + length
        return False

    def _is_confirmed(self, side: int, frames: Iterable[Frame]) -> bool:
        """Whether one of these requests was answered. Notes the others as unconfirmed."""
        for frame in frames:
            if len(frame.payload) < 8:
                continue
            key, version, correlation_id = _KEY_AND_VERSION(frame.payload)
            request = InFlight(correlation_id, key, version)
            head = self._heads[1 - side].get(correlation_id)
            if head is not None and is_response(*head, request):
                self.first_id = correlation_id
                return True
            self._unconfirmed[side][correlation_id] = request
        return False


def _find_first(buffer: bytes, begin: int, borders: Collection[int], gap: int | None) -> tuple[Verdict, int]:
    return find_request(buffer, begin, borders, None, gap=gap)


def _searching() -> Framer:
    """A framer that only searches for the first frame."""
    return Framer(_find_first, lambda _head, _length: False, lost=True)
