"""A capture's exchanges by the thousand: the fast lane beside the exact code, and equal to it.

    with CaptureFile("incident.pcapng") as capture:
        lane = FastLane.of(capture)
        for taken in lane.windows():            # what a stretch of the file completes
            taken.requests, taken.responses     # rows, of captures.frame_kernels
            taken.messages                      # what the exact code had to read
    lane.quality

The exact code (``assembly``) is the reference and keeps the state of every connection. While a connection is
steady (its segments come in order, its frames are Kafka's, its responses follow its requests) kernels take its
segments, a stretch of the file at a time; where something else comes, the exact code is told how far they have come,
and takes over, until the connection is steady again. Where the kernels find something odd in the frames themselves,
the exact code gets the same segments once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.framing import Frame
from kce.captures.exchanges.pairing import (
    Conversation,
    Message,
    Peers,
    Request,
    count_decoding,
    read_request,
    read_response,
    start_of,
)
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.recognise import Start
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.blocks import Block, dissected, ends_of, segment_of
from kce.captures.fast.body_programs import CLIENT_ID, REFUSED, Programs
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import WINDOW_BYTES, CaptureFile
from kce.captures.tcp.directions import Data
from kce.captures.tcp.segments import Place, Segment
from kce.captures.tcp.streams import Connection, connection_key
from kce.wire.registry import BY_KEY

Rows = npt.NDArray[np.int64]

#: Of a frame that is not whole yet at the end of a stretch so much is kept here; a longer one is the exact code's.
_MAX_REST_BYTES = 1024 * 1024

_NOTHING = np.zeros(0, np.uint8)
_NO_ONE = np.zeros((0, 3), np.int64)


@dataclass(slots=True)
class Window:
    """What a stretch of the file has completed. Valid until the next one.

    Rows of ``requests`` and ``responses`` are those of ``captures.fast.frame_kernels``; their PACKET is a row of
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
    """Reads blocks, whose FILE is a place in ``files``, once. ``quality`` is complete when ``windows`` has ended.

    ``ports`` are those of listeners, if they are known.
    """

    def __init__(
        self, blocks: Iterable[Block], files: Sequence[str], quality: Quality, *, ports: Collection[int] = ()
    ) -> None:
        self.quality = quality
        self.files = files
        self.assembly = Assembly(quality, ports)
        self.programs = Programs()
        self._blocks = blocks
        self._passed = 0
        self._talks: dict[Peers, int] = {}
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
        self._messages: list[Message] = []

    @classmethod
    def of(cls, capture: CaptureFile, *, window_bytes: int = WINDOW_BYTES, ports: Collection[int] = ()) -> Self:
        """All of one capture, or all of it that goes to ``ports`` and comes from them."""
        quality = Quality()
        blocks = dissected(capture, quality, window_bytes=window_bytes, ports=ports)
        return cls(blocks, [capture.name], quality, ports=ports)

    def windows(self) -> Iterator[Window]:
        for block in self._blocks:
            self._take_block(block)
            if self._asked or self._answered or self._messages:
                yield self._window()
        self._packets = self._packets[:0]
        self._asked = self._answered = 0
        for row in list(self._lanes):
            self._leave(row)
        self._messages = [*self._messages, *self.assembly.finish()]
        yield self._window()

    def _window(self) -> Window:
        messages, self._messages = self._messages, []
        requests, responses = self._requests[: self._asked], self._responses[: self._answered]
        talks, self._talks = list(self._talks), {}
        return Window(self._packets, self._out, requests, responses, talks, self.programs.present, messages)

    def _take_block(self, block: Block) -> None:
        self._passed += len(self._packets)
        packets = self._packets = block.packets
        self._data = block.data
        self._asked = self._answered = self._cursor = 0
        rests = sum(len(rest) for lane in self._lanes.values() for rest in lane.rest)
        segments = packets[:, k.KIND] == k.SEGMENT
        needed = int(packets[segments, k.SIZE].sum()) + rests
        if len(self._out) < needed:
            self._out = np.empty(needed + needed // 8, np.uint8)
        index = 0
        while (index := f.route(packets, index, self._flows, self._table)) < len(packets):
            self._exactly(self._segment(index), packets[index])
            index += 1
        for row in np.flatnonzero(self._flows[: self._used, f.FIRST] != f.NONE).tolist():
            if not self._take(row) or self._is_large(row):
                self._leave(row)

    # between the kernels and the exact code

    def _exactly(self, segment: Segment, packet: Rows) -> None:
        """The exact code takes a segment, and its connection."""
        if self._used == len(self._flows):
            self._make_room()
        row, self._used, is_higher = f.flow_of(self._flows, self._table, self._used, packet)
        if row in self._lanes:
            self._take(row)
            self._leave(row)
        self._messages += self.assembly.receive(segment)
        under_way = self.assembly.under_way(connection_key(segment))
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
            since = connection.since(side)
            flow[f.SINCE + side] = f.NONE if since is None else since
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
            programs = self.programs
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
        last = self._start_at(asked - 1, request_at) if len(requests) else None
        conversation.took(len(requests), len(responses), last, waiting)

    def _start_at(self, index: int, request_at: Callable[[int], Request]) -> Start | None:
        """How a request begins, which is known without reading it."""
        row = self._requests[index]
        if row[f.PROGRAM] < 0:
            return start_of(request_at(index))
        key, version, correlation_id = row[f.KEY : f.CORRELATION + 1].tolist()
        at, size = row[f.NOTED + CLIENT_ID : f.NOTED + CLIENT_ID + 2].tolist()
        client_id = None if size < 0 else self._out[at : at + size].tobytes().decode()
        return Start(int(row[f.LENGTH]), BY_KEY[key], version, correlation_id, client_id)

    def _frame(self, frame: Rows) -> Frame:
        at, length = int(frame[f.AT]), int(frame[f.LENGTH])
        return Frame(self._out[at : at + length].tobytes(), length, 0, self._place(int(frame[f.PACKET])))

    def _place(self, index: int) -> Place:
        packet = self._packets[index]
        order = self._passed + index
        return Place(order, int(packet[k.TIME]), int(packet[k.NUMBER]), self.files[packet[k.FILE]])

    def _segment(self, index: int) -> Segment:
        return segment_of(Block(self._data, self._packets), index, self._passed + index, self.files)

    def _make_room(self) -> None:
        """Forget connections that are over; if that are few, have more rows."""
        rows = [row for row in range(self._used) if row in self._lanes or self.assembly.under_way(self._key(row))]
        size = len(self._flows) * (2 if 2 * len(rows) > len(self._flows) else 1)
        flows = np.zeros((size, f.FLOW_COLUMNS), np.int64)
        flows[: len(rows)] = self._flows[rows]
        self._flows, self._used = flows, len(rows)
        self._table = np.full(4 * size, -1, np.int64)
        f.fill_table(self._flows, self._table, self._used)
        self._lanes = {new: self._lanes[old] for new, old in enumerate(rows) if old in self._lanes}

    def _key(self, row: int) -> tuple[bytes, int, bytes, int]:
        """As ``connection_key``."""
        lower, higher = ends_of(self._flows[row])
        return (*lower, *higher) if lower < higher else (*higher, *lower)


def _expectation(request: Request) -> tuple[int, int, int]:
    return request.correlation_id, request.api_key, request.version


def _doubled(rows: Rows) -> Rows:
    return np.concatenate([rows, np.empty_like(rows)])
