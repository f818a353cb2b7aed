"""The fast path: exchanges by the thousand, equal to those of the slow path (``assembly``).

    with CaptureFile("incident.pcapng") as capture:
        path = FastPath.of(capture)
        for window in path.windows():           # completed in one block of the file
            window.requests, window.responses   # rows of frame_kernels
            window.messages                     # from the slow path
    path.quality

The slow path is the reference and owns the state of every connection. While a connection is steady (segments in order,
valid Kafka frames, responses in the order of requests), kernels process its segments, one block of the file at a time.
At anything unusual the connection's position is handed back to the slow path, until it is steady again. If the kernels
find something unusual inside frames, the slow path processes the same segments again.
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

#: Limit of an incomplete frame kept between blocks; longer ones go to the slow path.
_MAX_REST_BYTES = 1024 * 1024

#: Rows that there is room for at first.
_FRAMES = 16_384

_NOTHING = np.zeros(0, np.uint8)
_NONE_IN_FLIGHT = np.zeros((0, 3), np.int64)


@dataclass(slots=True)
class Window:
    """Messages completed in one block of the file. Valid until the next window.

    Rows of ``requests`` and ``responses`` are those of ``captures.fast.frame_kernels``; their PACKET is a row of
    ``packets``, their AT an offset in ``data``, their TALK a place in ``talks``. A request whose response is in
    ``messages``, or still to come, is IN_FLIGHT. ``first`` is the order (``Place.order``) of the first packet.
    """

    packets: Rows
    data: npt.NDArray[np.uint8]
    requests: Rows
    responses: Rows
    talks: list[Peers]
    present: npt.NDArray[np.bool_]
    first: int
    messages: list[Message] = field(default_factory=list)


@dataclass(slots=True)
class _FastFlow:
    """A connection on the fast path. ``rest`` holds the bytes of incomplete frames, by side."""

    connection: Connection
    conversation: Conversation
    client: int
    rest: list[npt.NDArray[np.uint8]] = field(default_factory=lambda: [_NOTHING, _NOTHING])
    rest_places: list[Place | None] = field(default_factory=lambda: [None, None])


class FastPath:
    """Read blocks once; their FILE is an index into ``files``. ``quality`` is complete when ``windows`` has ended.

    ``ports``: ports of listeners, if known.
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
        self._fast_flows: dict[int, _FastFlow] = {}
        self._stack = np.zeros((16, 6), np.int64)
        self._requests = np.empty((_FRAMES, f.FRAME_COLUMNS), np.int64)
        self._responses = np.empty((_FRAMES, f.FRAME_COLUMNS), np.int64)
        self._request_count = self._response_count = 0
        self._data = self._out = _NOTHING
        self._cursor = 0
        self._packets = np.empty((0, k.COLUMNS), np.int64)
        self._messages: list[Message] = []

    @classmethod
    def of(cls, capture: CaptureFile, *, window_bytes: int = WINDOW_BYTES, ports: Collection[int] = ()) -> Self:
        """A whole capture, or its traffic from and to ``ports``."""
        quality = Quality()
        blocks = dissected(capture, quality, window_bytes=window_bytes, ports=ports)
        return cls(blocks, [capture.name], quality, ports=ports)

    def windows(self) -> Iterator[Window]:
        for block in self._blocks:
            self._take_block(block)
            if self._request_count or self._response_count or self._messages:
                yield self._window()
        self._packets = self._packets[:0]
        self._request_count = self._response_count = 0
        for row in list(self._fast_flows):
            self._leave(row)
        self._messages = [*self._messages, *self.assembly.finish()]
        yield self._window()

    def _window(self) -> Window:
        messages, self._messages = self._messages, []
        requests, responses = self._requests[: self._request_count], self._responses[: self._response_count]
        talks, self._talks = list(self._talks), {}
        return Window(
            self._packets, self._out, requests, responses, talks, self.programs.present, self._passed, messages
        )  # fmt: skip

    def _take_block(self, block: Block) -> None:
        self._passed += len(self._packets)
        packets = self._packets = block.packets
        self._data = block.data
        self._request_count = self._response_count = self._cursor = 0
        rests = sum(len(rest) for fast in self._fast_flows.values() for rest in fast.rest)
        needed = int(np.sum(packets[:, k.SIZE], where=packets[:, k.KIND] == k.SEGMENT)) + rests
        if len(self._out) < needed:
            self._out = np.empty(needed + needed // 8, np.uint8)
        index = 0
        while (index := f.route(packets, index, self._flows, self._table)) < len(packets):
            self._take_slow_path(self._segment(index), packets[index])
            index += 1
        for row in np.flatnonzero(self._flows[: self._used, f.FIRST] != f.NONE).tolist():
            if not self._take(row) or self._is_large(row):
                self._leave(row)

    # between fast and slow path

    def _take_slow_path(self, segment: Segment, packet: Rows) -> None:
        """Process a segment, and from here on its connection, on the slow path."""
        if self._used == len(self._flows):
            self._make_room()
        row, self._used, is_higher = f.flow_of(self._flows, self._table, self._used, packet)
        if row in self._fast_flows:
            self._take(row)
            self._leave(row)
        self._messages += self.assembly.receive(segment)
        under_way = self.assembly.under_way(connection_key(segment))
        if under_way is not None and under_way[0].steady and under_way[1].steady:
            side = int((segment.source, segment.source_port) != under_way[0].endpoints[0])
            self._flows[row, f.TURNED] = side ^ is_higher
            self._enter(row, *under_way)

    def _enter(self, row: int, connection: Connection, conversation: Conversation) -> None:
        """Move the connection to the fast path."""
        flow, peers = self._flows[row], conversation.peers
        client = 0 if peers is None else int(connection.endpoints[1] == peers.client)
        flow[f.MODE] = f.NOTHING if peers is None else f.FRAMES
        for side in range(2):
            expected = connection.expected(side)
            flow[f.EXPECTED + side] = f.NONE if expected is None else expected
            flow[f.ACKED + side] = f.NONE
            since = connection.since(side)
            flow[f.SINCE + side] = f.NONE if since is None else since
        self._fast_flows[row] = _FastFlow(connection, conversation, client)

    def _leave(self, row: int) -> None:
        """Move the connection back to the slow path."""
        fast, flow = self._fast_flows.pop(row), self._flows[row]
        flow[f.MODE] = f.SLOW
        for side in range(2):
            expected, acked = int(flow[f.EXPECTED + side]), int(flow[f.ACKED + side])
            fast.connection.passed(side, None if expected < 0 else expected, None if acked < 0 else acked)
        self._flush_rests(fast)

    def _flush_rests(self, fast: _FastFlow) -> None:
        rests = [(place, side) for side, place in enumerate(fast.rest_places) if place is not None]
        for place, side in sorted(rests):
            self._messages += fast.conversation.receive(Data(side, fast.rest[side].tobytes(), place))
        fast.rest, fast.rest_places = [_NOTHING, _NOTHING], [None, None]

    def _is_large(self, row: int) -> bool:
        return any(len(rest) > _MAX_REST_BYTES for rest in self._fast_flows[row].rest)

    def _take(self, row: int) -> bool:
        """Process a connection's linked segments. False if the slow path had to, and the connection is not steady."""
        flow, fast = self._flows[row], self._fast_flows[row]
        if flow[f.FIRST] == f.NONE:
            return True
        in_flight, peers = fast.conversation.in_flight, fast.conversation.peers
        assert peers is not None
        talk = self._talks.setdefault(peers, len(self._talks))
        waiting = np.array([_key_of(r) for r in in_flight], np.int64) if in_flight else _NONE_IN_FLIGHT
        while True:
            programs = self.programs
            outcome, cursor, request_count, response_count, *rest = f.take(
                self._data, self._packets, flow, talk, fast.client, fast.rest[0], fast.rest[1],
                self._out, self._cursor, waiting,
                programs.ids, programs.starts, programs.code, programs.values,
                self._requests, self._request_count, self._responses, self._response_count, self._stack,
            )  # fmt: skip
            if outcome == f.NO_PROGRAM:
                programs.write(rest[0], rest[1])
            elif outcome == f.NO_ROOM:
                self._requests, self._responses = _doubled(self._requests), _doubled(self._responses)
            else:
                break
        if outcome == f.TAKEN:
            self._advance(fast, peers, request_count, response_count)
            self._keep_rests(fast, flow, rest)
            self._cursor, self._request_count, self._response_count = cursor, request_count, response_count
        else:
            self._flush_rests(fast)
            index = int(flow[f.FIRST])
            while index != f.NONE:
                row_of = self._packets[index]
                data = self._data[row_of[k.PAYLOAD] : row_of[k.PAYLOAD] + row_of[k.SIZE]].tobytes()
                self._messages += fast.conversation.receive(Data(int(row_of[k.FLOW]), data, self._place(index)))
                index = int(row_of[k.FOLLOWING])
        flow[f.FIRST] = flow[f.LAST] = flow[f.LAST_OF] = flow[f.LAST_OF + 1] = f.NONE
        return outcome == f.TAKEN or fast.conversation.steady

    def _keep_rests(self, fast: _FastFlow, flow: Rows, rest: list[int]) -> None:
        for side in range(2):
            at, size = rest[2 * side], rest[2 * side + 1]
            last = int(flow[f.LAST_OF + side])
            fast.rest[side] = self._out[at : at + size].copy() if size else _NOTHING
            if last != f.NONE:
                fast.rest_places[side] = self._place(last)
            if not size:
                fast.rest_places[side] = None

    def _advance(self, fast: _FastFlow, peers: Peers, request_count: int, response_count: int) -> None:
        """Update the conversation. Decode here what programs refused, and exchanges that span blocks."""
        conversation = fast.conversation
        requests, responses = (
            self._requests[self._request_count : request_count],
            self._responses[self._response_count : response_count],
        )
        read: dict[int, Request] = {}

        def request_at(index: int) -> Request:
            if index not in read:
                read[index] = read_request(peers, self._frame(self._requests[index]))
            return read[index]

        for index in (np.flatnonzero(requests[:, f.PROGRAM] < 0) + self._request_count).tolist():
            partner = int(self._requests[index, f.PARTNER])
            if partner >= 0:
                self._responses[partner, f.PROGRAM] = REFUSED
            count_decoding(conversation.quality, request_at(index), lost=False)
            self._messages.append(request_at(index))
        waiting = list(conversation.in_flight)
        from_before = 0
        for index in np.flatnonzero((responses[:, f.PROGRAM] < 0) | (responses[:, f.PARTNER] < 0)).tolist():
            frame = responses[index]
            partner = int(frame[f.PARTNER])
            if partner < 0:
                frame[f.PROGRAM] = REFUSED
                from_before += 1
            elif self._requests[partner, f.PROGRAM] >= 0:
                self._requests[partner, f.PROGRAM] = REFUSED
                self._messages.append(request_at(partner))
            request = waiting[-1 - partner] if partner < 0 else request_at(partner)
            response = read_response(request, self._frame(frame))
            count_decoding(conversation.quality, response, lost=False)
            self._messages.append(response)
        pending = np.flatnonzero(requests[:, f.PARTNER] == f.IN_FLIGHT) + self._request_count
        waiting = waiting[from_before:] + [request_at(index) for index in pending.tolist()]
        last = self._start_at(request_count - 1, request_at) if len(requests) else None
        conversation.advance(len(requests), len(responses), last, waiting)

    def _start_at(self, index: int, request_at: Callable[[int], Request]) -> Start | None:
        """The header of a request, without decoding it if a program accepted it."""
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
        """Drop rows of closed connections; if they are few, double the table."""
        rows = [row for row in range(self._used) if row in self._fast_flows or self.assembly.under_way(self._key(row))]
        size = len(self._flows) * (2 if 2 * len(rows) > len(self._flows) else 1)
        flows = np.zeros((size, f.FLOW_COLUMNS), np.int64)
        flows[: len(rows)] = self._flows[rows]
        self._flows, self._used = flows, len(rows)
        self._table = np.full(4 * size, -1, np.int64)
        f.fill_table(self._flows, self._table, self._used, np.zeros(k.COLUMNS, np.int64))
        self._fast_flows = {new: self._fast_flows[old] for new, old in enumerate(rows) if old in self._fast_flows}

    def _key(self, row: int) -> tuple[bytes, int, bytes, int]:
        """The same key as ``connection_key`` makes."""
        lower, higher = ends_of(self._flows[row])
        return (*lower, *higher) if lower < higher else (*higher, *lower)


def _key_of(request: Request) -> tuple[int, int, int]:
    return request.correlation_id, request.api_key, request.version


def _doubled(rows: Rows) -> Rows:
    return np.concatenate([rows, np.empty_like(rows)])
