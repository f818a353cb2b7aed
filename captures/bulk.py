"""A capture's exchanges by the thousand: the fast lane beside the exact code, and equal to it.

    with CaptureFile("incident.pcapng") as capture:
        lane = FastLane(capture)
        for taken in lane.windows():            # what a stretch of the file completes
            taken.requests, taken.responses     # rows, of captures.frame_kernels
            taken.messages                      # what the exact code had to read
    lane.quality

The exact code (``captures.assembly``) is the reference and keeps the state of every connection. While a connection is
steady (its segments come in order, its frames are Kafka's, its responses follow its requests) kernels take its
segments, a stretch of the file at a time; where something else comes, the exact code is told how far they have come,
and takes over, until the connection is steady again. Where the kernels find something odd in the frames themselves,
the exact code gets the same segments once more.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from captures import frame_kernels as f
from captures import packet_kernels as k
from captures.assembly import Assembly
from captures.body_programs import REFUSED, Programs
from captures.exchanges import (
    Conversation,
    Message,
    Peers,
    Request,
    count_decoding,
    read_request,
    read_response,
    start_of,
)
from captures.framing import Frame
from captures.pcap import CaptureFile, Packet
from captures.quality import Quality
from captures.segments import Dissector, Place, Segment
from captures.tcp_streams import Connection, Data, connection_key
from captures.walkers import Stretch

Rows = npt.NDArray[np.int64]

#: Of a frame that is not whole yet at the end of a stretch so much is kept here; a longer one is the exact code's.
_MAX_REST_BYTES = 1024 * 1024

_NOTHING = np.zeros(0, np.uint8)
_NO_ONE = np.zeros((0, 3), np.int64)


@dataclass(slots=True)
class Window:
    """What a stretch of the file has completed. Valid until the next one.

    Rows of ``requests`` and ``responses`` are those of ``captures.frame_kernels``; their PACKET is a row of
    ``packets``, their AT an offset in ``data``, their TALK a place in ``talks``. A request whose response is in
    ``messages``, or still to come, is AWAITED.
    """

    packets: Rows
    data: npt.NDArray[np.uint8]
    requests: Rows
    responses: Rows
    talks: list[Peers]
    present: npt.NDArray[np.bool_]
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class _Lane:
    """A connection that the kernels take care of. ``rest`` are bytes of frames that are not whole yet."""

    connection: Connection
    conversation: Conversation
    client: int
    rest: list[npt.NDArray[np.uint8]] = field(default_factory=lambda: [_NOTHING, _NOTHING])
    rest_places: list[Place | None] = field(default_factory=lambda: [None, None])


class FastLane:
    """Reads one capture, once. ``quality`` is complete when ``windows`` has ended."""

    def __init__(self, capture: CaptureFile, *, window_bytes: int | None = None) -> None:
        self.quality = Quality()
        self._talks: dict[Peers, int] = {}
        self.name = capture.name
        self._capture = capture
        self._window_bytes = window_bytes
        self._dissector = Dissector(capture.name)
        self._assembly = Assembly(self.quality)
        self._programs = Programs()
        self._flows = np.zeros((1024, f.FLOW_COLUMNS), np.int64)
        self._table = np.full(4096, -1, np.int64)
        self._used = 0
        self._lanes: dict[int, _Lane] = {}
        self._stack = np.zeros((16, 6), np.int64)
        self._requests = np.empty((4096, f.FRAME_COLUMNS), np.int64)
        self._responses = np.empty((4096, f.FRAME_COLUMNS), np.int64)
        self._asked = self._answered = 0
        self._data = self._out = _NOTHING
        self._cursor = 0
        self._packets = np.empty((0, k.COLUMNS), np.int64)
        self._dissected: dict[int, Segment] = {}
        self._messages: list[Message] = []

    def windows(self) -> Iterator[Window]:
        capture = self._capture
        stretches = capture.stretches() if self._window_bytes is None else capture.stretches(self._window_bytes)
        for stretch in stretches:
            if isinstance(stretch, Packet):
                self._one(stretch)
            else:
                self._many(stretch)
            if self._asked or self._answered or self._messages:
                yield self._window()
        self._packets = self._packets[:0]
        self._asked = self._answered = 0
        for row in list(self._lanes):
            self._leave(row)
        self._messages = [*self._messages, *self._assembly.finish()]
        yield self._window()
        self.quality.dropped = capture.dropped
        self.quality.problems += [f"{capture.name}: {problem}" for problem in capture.problems]

    def _window(self) -> Window:
        messages, self._messages = self._messages, []
        requests, responses = self._requests[: self._asked], self._responses[: self._answered]
        talks, self._talks = list(self._talks), {}
        return Window(self._packets, self._out, requests, responses, talks, self._programs.present, messages)

    def _one(self, packet: Packet) -> None:
        self._packets = self._packets[:0]
        self._asked = self._answered = 0
        self.quality.packets += 1
        self.quality.cut_packets += packet.wire_bytes > len(packet.data)
        segment = self._dissector.dissect(packet)
        if isinstance(segment, Segment):
            self._exactly(segment, _row_of(segment))
        else:
            self.quality.other_packets[segment] += 1

    def _many(self, stretch: Stretch) -> None:
        packets = self._packets = stretch.packets
        self._data = stretch.data
        self._asked = self._answered = self._cursor = 0
        self.quality.packets += len(packets)
        self.quality.cut_packets += int(np.count_nonzero(packets[:, k.WIRE] > packets[:, k.CAPTURED]))
        if k.dissect(stretch.data, packets):
            self._dissect_others()
        rests = sum(len(rest) for lane in self._lanes.values() for rest in lane.rest)
        segments = packets[:, k.KIND] == k.SEGMENT
        needed = int(packets[segments, k.SIZE].sum()) + rests
        if len(self._out) < needed:
            self._out = np.empty(needed + needed // 8, np.uint8)
        index = 0
        while (index := f.route(packets, index, self._flows, self._table)) < len(packets):
            segment = self._dissected.pop(index, None)
            if segment is None:
                self._exactly(self._segment(index), packets[index])
            else:
                self._exactly(segment, _row_of(segment))
            index += 1
        for row in np.flatnonzero(self._flows[: self._used, f.FIRST] != f.NONE).tolist():
            if not self._take(row) or self._is_large(row):
                self._leave(row)

    def _dissect_others(self) -> None:
        packets = self._packets
        for index in np.flatnonzero(packets[:, k.KIND] == k.UNSURE).tolist():
            number, time_ns, link_type, at, captured, wire_bytes = packets[index, k.NUMBER : k.WIRE + 1].tolist()
            data = self._data[at : at + captured].tobytes()
            segment = self._dissector.dissect(Packet(number, time_ns, link_type, data, wire_bytes))
            if isinstance(segment, Segment):
                packets[index, k.KIND] = k.EXACT
                self._dissected[index] = segment
            else:
                packets[index, k.KIND] = k.OTHER
                self.quality.other_packets[segment] += 1

    # between the kernels and the exact code

    def _exactly(self, segment: Segment, packet: Rows) -> None:
        """The exact code takes a segment, and its connection."""
        if self._used == len(self._flows):
            self._make_room()
        row, self._used, is_higher = f.flow_of(self._flows, self._table, self._used, packet)
        if row in self._lanes:
            self._take(row)
            self._leave(row)
        self._messages += self._assembly.receive(segment)
        under_way = self._assembly.under_way(connection_key(segment))
        if under_way is not None and under_way[0].steady and under_way[1].steady:
            side = int((segment.source, segment.source_port) != under_way[0].endpoints[0])
            self._flows[row, f.TURNED] = side ^ is_higher
            self._enter(row, *under_way)

    def _enter(self, row: int, connection: Connection, conversation: Conversation) -> None:
        """The kernels take the connection from here on."""
        flow, peers = self._flows[row], conversation.peers
        client = 0 if peers is None else int(connection.endpoints[1] == peers.client)
        flow[f.MODE] = f.NOTHING if peers is None else f.FRAMES
        for side in range(2):
            expected = connection.expected(side)
            flow[f.EXPECTED + side] = f.NONE if expected is None else expected
            flow[f.ACKED + side] = f.NONE
        self._lanes[row] = _Lane(connection, conversation, client)

    def _leave(self, row: int) -> None:
        """The exact code learns how far the kernels have come."""
        lane, flow = self._lanes.pop(row), self._flows[row]
        flow[f.MODE] = f.EXACTLY
        for side in range(2):
            expected, acked = int(flow[f.EXPECTED + side]), int(flow[f.ACKED + side])
            lane.connection.passed(side, None if expected < 0 else expected, None if acked < 0 else acked)
        self._give_rests(lane)

    def _give_rests(self, lane: _Lane) -> None:
        rests = [(place, side) for side, place in enumerate(lane.rest_places) if place is not None]
        for place, side in sorted(rests):
            self._messages += lane.conversation.receive(Data(side, lane.rest[side].tobytes(), place))
        lane.rest, lane.rest_places = [_NOTHING, _NOTHING], [None, None]

    def _is_large(self, row: int) -> bool:
        return any(len(rest) > _MAX_REST_BYTES for rest in self._lanes[row].rest)

    def _take(self, row: int) -> bool:
        """What the kernels make of the segments linked to a connection; False if the exact code had to take them."""
        flow, lane = self._flows[row], self._lanes[row]
        if flow[f.FIRST] == f.NONE:
            return True
        awaited, peers = lane.conversation.awaited, lane.conversation.peers
        assert peers is not None
        talk = self._talks.setdefault(peers, len(self._talks))
        waiting = np.array([_expectation(r) for r in awaited], np.int64) if awaited else _NO_ONE
        while True:
            programs = self._programs
            came, cursor, asked, answered, *rest = f.take(
                self._data, self._packets, flow, talk, lane.client, lane.rest[0], lane.rest[1],
                self._out, self._cursor, waiting,
                programs.ids, programs.starts, programs.code, programs.values,
                self._requests, self._asked, self._responses, self._answered, self._stack,
            )  # fmt: skip
            if came == f.NO_PROGRAM:
                programs.write(rest[0], rest[1])
            elif came == f.NO_ROOM:
                self._requests, self._responses = _doubled(self._requests), _doubled(self._responses)
            else:
                break
        if came == f.TOOK:
            self._took(lane, peers, asked, answered)
            self._keep_rests(lane, flow, rest)
            self._cursor, self._asked, self._answered = cursor, asked, answered
        else:
            self._give_rests(lane)
            index = int(flow[f.FIRST])
            while index != f.NONE:
                row_of = self._packets[index]
                data = self._data[row_of[k.PAYLOAD] : row_of[k.PAYLOAD] + row_of[k.SIZE]].tobytes()
                self._messages += lane.conversation.receive(Data(int(row_of[k.FLOW]), data, self._place(index)))
                index = int(row_of[k.FOLLOWING])
        flow[f.FIRST] = flow[f.LAST] = flow[f.LAST_OF] = flow[f.LAST_OF + 1] = f.NONE
        return came == f.TOOK or lane.conversation.steady

    def _keep_rests(self, lane: _Lane, flow: Rows, rest: list[int]) -> None:
        for side in range(2):
            at, size = rest[2 * side], rest[2 * side + 1]
            last = int(flow[f.LAST_OF + side])
            lane.rest[side] = self._out[at : at + size].copy() if size else _NOTHING
            if last != f.NONE:
                lane.rest_places[side] = self._place(last)
            if not size:
                lane.rest_places[side] = None

    def _took(self, lane: _Lane, peers: Peers, asked: int, answered: int) -> None:
        """Tell the conversation; read exactly what the programs refused, and what runs across stretches."""
        conversation = lane.conversation
        requests, responses = self._requests[self._asked : asked], self._responses[self._answered : answered]
        read: dict[int, Request] = {}

        def request_at(index: int) -> Request:
            if index not in read:
                read[index] = read_request(peers, self._frame(self._requests[index]))
            return read[index]

        for index in (np.flatnonzero(requests[:, f.PROGRAM] < 0) + self._asked).tolist():
            partner = int(self._requests[index, f.PARTNER])
            if partner >= 0:
                self._responses[partner, f.PROGRAM] = REFUSED
            count_decoding(conversation.quality, request_at(index), lost=False)
            self._messages.append(request_at(index))
        waiting = list(conversation.awaited)
        of_before = 0
        for index in np.flatnonzero((responses[:, f.PROGRAM] < 0) | (responses[:, f.PARTNER] < 0)).tolist():
            frame = responses[index]
            partner = int(frame[f.PARTNER])
            if partner < 0:
                frame[f.PROGRAM] = REFUSED
                of_before += 1
            elif self._requests[partner, f.PROGRAM] >= 0:
                self._requests[partner, f.PROGRAM] = REFUSED
                self._messages.append(request_at(partner))
            request = waiting[-1 - partner] if partner < 0 else request_at(partner)
            response = read_response(request, self._frame(frame))
            count_decoding(conversation.quality, response, lost=False)
            self._messages.append(response)
        pending = np.flatnonzero(requests[:, f.PARTNER] == f.AWAITED) + self._asked
        waiting = waiting[of_before:] + [request_at(index) for index in pending.tolist()]
        last = start_of(request_at(asked - 1)) if len(requests) else None
        conversation.took(len(requests), len(responses), last, waiting)

    def _frame(self, frame: Rows) -> Frame:
        at, length = int(frame[f.AT]), int(frame[f.LENGTH])
        return Frame(self._out[at : at + length].tobytes(), length, 0, self._place(int(frame[f.PACKET])))

    def _place(self, index: int) -> Place:
        packet = self._packets[index]
        number = int(packet[k.NUMBER])
        return Place(number, int(packet[k.TIME]), number, self._capture.name)

    def _segment(self, index: int) -> Segment:
        packet = self._packets[index].tolist()
        ports = packet[k.PORTS]
        at = packet[k.PAYLOAD]
        return Segment(
            self._place(index),
            address_of(packet[k.SOURCE_HIGH], packet[k.SOURCE_LOW], ports), ports >> k.PORT_BITS & 0xFFFF,
            address_of(packet[k.DESTINATION_HIGH], packet[k.DESTINATION_LOW], ports), ports & 0xFFFF,
            packet[k.SEQUENCE], packet[k.ACKNOWLEDGEMENT], packet[k.FLAGS],
            self._data[at : at + packet[k.SIZE]].tobytes(), packet[k.CUT],
        )  # fmt: skip

    def _make_room(self) -> None:
        """Forget connections that are over; if that are few, have more rows."""
        rows = [row for row in range(self._used) if row in self._lanes or self._assembly.under_way(self._key(row))]
        size = len(self._flows) * (2 if 2 * len(rows) > len(self._flows) else 1)
        flows = np.zeros((size, f.FLOW_COLUMNS), np.int64)
        flows[: len(rows)] = self._flows[rows]
        self._flows, self._used = flows, len(rows)
        self._table = np.full(4 * size, -1, np.int64)
        f.fill_table(self._flows, self._table, self._used)
        self._lanes = {new: self._lanes[old] for new, old in enumerate(rows) if old in self._lanes}

    def _key(self, row: int) -> tuple[bytes, int, bytes, int]:
        """As ``connection_key``."""
        low_high, low_low, high_high, high_low, ports = self._flows[row, : f.BOTH_PORTS + 1].tolist()
        lower = address_of(low_high, low_low, ports), ports >> k.PORT_BITS & 0xFFFF
        higher = address_of(high_high, high_low, ports), ports & 0xFFFF
        return (*lower, *higher) if lower < higher else (*higher, *lower)


@functools.lru_cache(maxsize=4096)
def address_of(high: int, low: int, ports: int) -> bytes:
    """As packets have it, of its halves."""
    if ports & k.IS_IPV6:
        return struct.pack(">qq", high, low)
    return struct.pack(">I", low)


def _row_of(segment: Segment) -> Rows:
    """Its ends, as a packet's row has them."""
    row = np.zeros(k.COLUMNS, np.int64)
    ports = segment.source_port << k.PORT_BITS | segment.destination_port
    for column, address in ((k.SOURCE_HIGH, segment.source), (k.DESTINATION_HIGH, segment.destination)):
        row[column : column + 2] = (
            struct.unpack(">qq", address) if len(address) == 16 else (0, *struct.unpack(">I", address))
        )
    row[k.PORTS] = ports | (k.IS_IPV6 if len(segment.source) == 16 else 0)
    return row


def _expectation(request: Request) -> tuple[int, int, int]:
    return request.correlation_id, request.api_key, request.version


def _doubled(rows: Rows) -> Rows:
    return np.concatenate([rows, np.empty_like(rows)])
