"""Matches responses with requests on one TCP connection.

A connection is Kafka's if its client's first bytes are a request or, in a connection older than the capture, if
requests are recognised in it. Others are counted. Kafka answers in order, so a response belongs to the oldest request
in flight; the correlation id confirms it or, after a gap, finds the right one. Produce requests with acks=0 have no
response.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from kce.captures.exchanges.framing import ID_BYTES, Frame, Framer
from kce.captures.exchanges.messages import (
    Message,
    NoResponse,
    Peers,
    Request,
    Response,
    count_decoding,
    read_request,
    read_response,
    start_of,
)
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.recognise import (
    FETCH,
    InFlight,
    Start,
    Verdict,
    find_request,
    find_response,
    is_quorum_fetch,
    request_start,
)
from kce.captures.exchanges.undecided import Decision, Undecided
from kce.captures.tcp.directions import Data, Earlier, End, Event, Gap
from kce.captures.tcp.streams import Connection
from kce.wire.registry import BY_KEY, BY_NAME, CONTROL_REQUESTS, message_class

__all__ = [
    "Conversation", "Message", "NoResponse", "Peers", "Request", "Response", "count_decoding", "read_request",
    "read_response", "start_of",
]  # fmt: skip

#: Maximum of requests in flight; maximum bytes of responses captured before their request, or while the stream of
#: requests waits for a gap to be filled; overhead that each of them counts beyond its payload.
MAX_IN_FLIGHT = 10_000
MAX_EARLY_BYTES = 16 * 1024 * 1024
_EARLY_OVERHEAD = 256

_SASL_HANDSHAKE = BY_NAME["SaslHandshake"].key
_KEY_AND_VERSION = struct.Struct(">hhi").unpack_from
_CORRELATION_ID = struct.Struct(">i").unpack_from


class Conversation:
    """One connection: takes events, returns messages, counts in ``quality``.

    ``ports`` are listener ports, if known; they show which side is the client.
    """

    def __init__(self, connection: Connection, ports: Collection[int] = ()) -> None:
        self.quality = Quality()
        self._connection = connection
        self._peers: Peers | None = None
        self._client: int | None = None
        self._undecided: Undecided | None = Undecided(connection, ports)
        self._first_id: int | None = None  # of the first request that a response confirmed
        self._requests: Framer
        self._responses: Framer
        self._last: Start | None = None
        self._in_flight: deque[Request] = deque()
        self._early: OrderedDict[int, Frame] = OrderedDict()  # in the order of the response stream
        self._early_bytes = 0
        self._is_control = False  # whether a request of a controller was seen
        self._sasl_tokens: int | None = None  # bare tokens in flight, while SASL may exchange them

    @classmethod
    def resumed(cls, connection: Connection, last: Start) -> Conversation:
        """One whose next byte of either side begins a frame, with nothing in flight; ``last`` is its last request."""
        conversation = cls(connection)
        conversation._undecided = None
        conversation._speak(0, lost=False, of_server=False)
        conversation._last = last
        return conversation

    @property
    def waiting(self) -> bool:
        """Whether events so far may still complete messages."""
        if self._peers is None:
            return self._undecided is not None and bool(self._undecided.events)
        return bool(self._early) or self._requests.waiting or self._responses.waiting

    @property
    def peers(self) -> Peers | None:
        """Client and server; None while or because the connection is not known to be Kafka's."""
        return self._peers

    @property
    def steady(self) -> bool:
        """Whether frames are whole and in order, or the connection is not Kafka's. Then ``captures.fast.bulk`` may
        process its segments, and reports its progress with ``advance``."""
        if self._peers is None:
            return self._undecided is None
        return self._sasl_tokens is None and not self._early and self._requests.idle and self._responses.idle

    @property
    def last(self) -> Start | None:
        """The header of the last request."""
        return self._last

    @property
    def in_flight(self) -> Sequence[Request]:
        """Requests without a response so far."""
        return self._in_flight

    def advance(self, requests: int, responses: int, last: Start | None, in_flight: Iterable[Request]) -> None:
        """The fast path processed these; ``last`` is its last request."""
        self.quality.requests += requests
        self.quality.responses += responses
        self._heard(last)
        self._in_flight = deque(in_flight)

    def _heard(self, last: Start | None) -> None:
        if last is not None:
            self._last = last
            self._is_control |= last.api.key in CONTROL_REQUESTS

    def receive(self, event: Event) -> list[Message]:
        """The messages that ``event`` completes, in order."""
        if isinstance(event, End):
            return self._finish()
        if isinstance(event, Earlier):
            return self._earlier(event)
        if self._peers is not None:
            return self._continue(event)
        if self._undecided is None:
            return []
        decision = self._undecided.receive(event)
        return [] if decision is None else self._begin(self._undecided, decision)

    def _begin(self, undecided: Undecided, decision: Decision) -> list[Message]:
        """Process the kept events if the connection is Kafka's; else leave it alone."""
        self._undecided = None
        messages: list[Message] = []
        client, lost = decision
        if client is not None:
            of_server = lost and not (self._connection.begins(1 - client) and undecided.is_whole)
            self._first_id = undecided.first_id
            self._speak(client, lost=lost, of_server=of_server)
            self.quality.connections += 1
            for event in undecided.events:
                messages += self._continue(event)
        elif undecided.events:
            self.quality.other_connections[undecided.other_protocol] += 1
        return messages

    def _speak(self, client: int, *, lost: bool, of_server: bool) -> None:
        """Know who is the client, and whether its first byte begins a frame, and that ``of_server``."""
        endpoints = self._connection.endpoints
        self._client = client
        self._peers = Peers(self._connection.number, endpoints[client], endpoints[1 - client])
        self._requests = Framer(self._find_request, self._wants_request, lost=lost)
        self._responses = Framer(
            self._find_response, self._wants_response, lost=of_server, patient=True, believes=self._believes_response
        )

    def _continue(self, event: Data | Gap) -> list[Message]:
        messages: list[Message] = []
        framer = self._requests if event.side == self._client else self._responses
        if isinstance(event, Gap):
            self.quality.gaps += 1
            self.quality.gap_bytes += event.size
            frames = framer.gap(event.size)
        else:
            frames = framer.data(event.data, event.place)
        if framer is self._requests:
            for frame in frames:
                self._request(frame, messages)
            if frames and self._responses.searching:
                for frame in self._responses.search():
                    self._response(frame, messages)
        else:
            for frame in frames:
                self._response(frame, messages)
        return messages

    def _earlier(self, event: Earlier) -> list[Message]:
        """Whole requests from before the capture that were retransmitted; their responses precede it."""
        messages: list[Message] = []
        if self._peers is None or event.side != self._client or self._last is None:
            return messages
        data = event.data
        verdict, at = find_request(data, 0, (0,), None)
        while verdict is Verdict.YES and isinstance(start := request_start(data, at), Start):
            end = at + 4 + start.length
            if end > len(data) or start.client_id != self._last.client_id:
                break
            request = read_request(self._peers, Frame(data[at + 4 : end], start.length, 0, event.place))
            request = replace(request, answered=False)
            self.quality.requests += 1
            count_decoding(self.quality, request, lost=False)
            messages += [request, NoResponse(request)]
            at = end
        return messages

    def _request(self, frame: Frame, messages: list[Message]) -> None:
        assert self._peers is not None
        payload = frame.payload
        if len(payload) < 8:
            self.quality.undecodable += 1
            self.quality.skipped_bytes += len(payload)
            return
        if self._sasl_tokens is not None:
            if not isinstance(request_start(frame.length.to_bytes(4, "big") + payload), Start):
                self._sasl_tokens += 1
                return
            self._sasl_tokens = None
        key, version, correlation_id = _KEY_AND_VERSION(payload)
        api = BY_KEY.get(key)
        if key == _SASL_HANDSHAKE and version == 0:
            self._sasl_tokens = 0  # bare tokens follow, not SaslAuthenticate requests
        request = read_request(self._peers, frame)
        self.quality.requests += 1
        count_decoding(self.quality, request, lost=frame.lost > 0)
        if not frame.lost or isinstance(request_start(frame.length.to_bytes(4, "big") + payload), Start):
            self._heard(start_of(request))
        if api is not None and (
            not api.zk_broker or (key == FETCH and is_quorum_fetch(payload, version, request.client_id))
        ):
            self.quality.kraft[api.name] += 1
        messages.append(request)
        if not request.answered:
            messages.append(NoResponse(request))
            return
        self._in_flight.append(request)
        if len(self._in_flight) > MAX_IN_FLIGHT:
            self._unanswered(messages)
        if correlation_id in self._early:
            self._drop_early(until=correlation_id)
            self._answer(correlation_id, self._take_early(correlation_id), messages)

    def _response(self, frame: Frame, messages: list[Message]) -> None:
        if len(frame.payload) < 4:
            self.quality.skipped_bytes += len(frame.payload)
            return
        (correlation_id,) = _CORRELATION_ID(frame.payload)
        if not any(request.correlation_id == correlation_id for request in self._in_flight):
            if self._sasl_tokens:
                self._sasl_tokens -= 1
                return
            self._keep_early(correlation_id, frame)
            return
        self._drop_early()
        self._answer(correlation_id, frame, messages)

    def _answer(self, correlation_id: int, frame: Frame, messages: list[Message]) -> None:
        while self._in_flight[0].correlation_id != correlation_id:
            self._unanswered(messages)  # Kafka answers in order: their responses were not captured
        request = self._in_flight.popleft()
        response = read_response(request, frame)
        self.quality.responses += 1
        count_decoding(self.quality, response, lost=frame.lost > 0)
        messages.append(response)

    def _keep_early(self, correlation_id: int, frame: Frame) -> None:
        """Keep a response whose request may still come; only its beginning if many bytes are kept already."""
        if correlation_id in self._early:  # the client reused the id
            self._take_early(correlation_id)
            self.quality.unmatched_responses += 1
        if self._early_bytes + len(frame.payload) > MAX_EARLY_BYTES:
            frame = frame._replace(payload=frame.payload[:ID_BYTES])
        self._early[correlation_id] = frame
        self._early_bytes += len(frame.payload) + _EARLY_OVERHEAD
        while self._early_bytes > MAX_EARLY_BYTES:
            self._take_early(next(iter(self._early)))
            self.quality.unmatched_responses += 1

    def _take_early(self, correlation_id: int) -> Frame:
        frame = self._early.pop(correlation_id)
        self._early_bytes -= len(frame.payload) + _EARLY_OVERHEAD
        return frame

    def _drop_early(self, until: int | None = None) -> None:
        """Drop early responses that precede a matched one: their requests precede its request and were not captured."""
        while self._early and (correlation_id := next(iter(self._early))) != until:
            self._take_early(correlation_id)
            self.quality.unmatched_responses += 1

    def _unanswered(self, messages: list[Message]) -> None:
        messages.append(NoResponse(self._in_flight.popleft()))
        self.quality.unanswered += 1

    def _finish(self) -> list[Message]:
        messages: list[Message] = []
        if self._peers is None:
            if self._undecided is not None:
                messages = self._begin(self._undecided, self._undecided.finish())
            if self._peers is None:
                return messages
        for framer, take in ((self._requests, self._request), (self._responses, self._response)):
            for frame in framer.finish():
                take(frame, messages)
            self.quality.skipped_bytes += framer.skipped
            self.quality.unfinished += framer.unfinished
            for length, place in framer.bad_lengths:
                self.quality.bad_lengths += 1
                self.quality.note(f"packet {place.packet} of {place.file}: a frame that announces {length} bytes")
        self.quality.gap_connections += self.quality.gaps > 0
        self.quality.control_gaps += self.quality.gaps * self._is_control
        self.quality.unmatched_responses += len(self._early)
        self._early.clear()
        while self._in_flight:
            self._unanswered(messages)
        return messages

    # callbacks of the framers

    def _find_request(
        self, buffer: bytes, begin: int, borders: Collection[int], gap: int | None
    ) -> tuple[Verdict, int]:
        verdict, at = find_request(buffer, begin, borders, self._last, gap=gap)
        while verdict is Verdict.YES and self._last is None and self._first_id is not None:
            start = request_start(buffer, at)
            if isinstance(start, Start) and start.correlation_id == self._first_id:
                break
            verdict, at = find_request(buffer, at + 1, borders, None, gap=gap)
        return verdict, at

    def _find_response(
        self, buffer: bytes, begin: int, borders: Collection[int], _gap: int | None
    ) -> tuple[Verdict, int]:
        in_flight = [InFlight(request.correlation_id, request.api_key, request.version) for request in self._in_flight]
        return find_response(buffer, begin, borders, in_flight)

    def _wants_request(self, head: bytes, _length: int) -> bool:
        key = _KEY_AND_VERSION(head)[0]
        return key in BY_KEY and message_class(key, "request") is not None

    def _believes_response(self, head: bytes) -> bool:
        """Whether a response may have this correlation id: that of a request in flight, or a near one."""
        (correlation_id,) = _CORRELATION_ID(head)
        if self._sasl_tokens is not None or self._last is None:
            return True
        if abs(correlation_id - self._last.correlation_id) <= MAX_IN_FLIGHT:
            return True
        return any(request.correlation_id == correlation_id for request in self._in_flight)

    def _wants_response(self, head: bytes, length: int) -> bool:
        (correlation_id,) = _CORRELATION_ID(head)
        for request in self._in_flight:
            if request.correlation_id == correlation_id:
                return request.api is not None and message_class(request.api.key, "response") is not None
        # its request may come yet
        return length + self._early_bytes <= MAX_EARLY_BYTES
