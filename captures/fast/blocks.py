"""Blocks of TCP segments: read from captures, filtered by connection, merged by time, divided and packed.

    quality = Quality()
    with CaptureFile("incident.pcapng") as capture:
        for block in dissected(capture, quality): ...

``captures.fast.divided`` divides blocks by connection for a shuffle; ``in_time`` merges what comes out of it.
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.quality import OF_OTHER_PORTS, Quality
from kce.captures.fast import block_kernels as b
from kce.captures.fast import frame_kernels as f
from kce.captures.files import packet_kernels as k
from kce.captures.files.chronology import LOOKAHEAD, StepsBack, order_by_time
from kce.captures.files.pcap import WINDOW_BYTES, CaptureFile, Packet
from kce.captures.tcp.segment_kernels import dissect
from kce.captures.tcp.segments import Dissector, Place, Segment, address_text, connection_text

Rows = npt.NDArray[np.int64]

#: Packets that no kernel reads are collected up to this number, or a window's bytes.
_TOGETHER = 1024


class Block(NamedTuple):
    """Segments of a capture, in its order: rows of ``packet_kernels``, their PAYLOAD an offset in ``data``.

    Ignore rows whose KIND is not SEGMENT. ``begin_ns`` is the latest time before them in the capture, or that of the
    first.
    """

    data: npt.NDArray[np.uint8]
    packets: Rows
    begin_ns: int = 0


def dissected(
    capture: CaptureFile, quality: Quality, *, window_bytes: int = WINDOW_BYTES, file: int = 0,
    ports: Collection[int] = (),
) -> Iterator[Block]:  # fmt: skip
    """The segments of a capture (or of the opened split) by time; everything else is counted in ``quality``.

    FILE of each is ``file``. With ``ports``, only segments to and from these.
    """
    steps = StepsBack()
    yield from sorted_by_time(_dissected(capture, quality, window_bytes, file, ports), steps=steps)
    quality.sources += steps.notes(capture.name)


def first_block(capture: CaptureFile, window_bytes: int, ports: Collection[int] = ()) -> Block | None:
    """The first packets of a capture, or of the opened split, in its order; None if there are none."""
    return next(_dissected(capture, Quality(), window_bytes, 0, ports), None)


def _dissected(
    capture: CaptureFile, quality: Quality, window_bytes: int, file: int, ports: Collection[int]
) -> Iterator[Block]:
    dissector = Dissector(capture.name)
    for data, packets in _stretches(capture, window_bytes):
        wanted = packets[:, k.NUMBER] >= capture.first
        quality.packets += int(np.count_nonzero(wanted))
        quality.cut_packets += int(np.count_nonzero(wanted & (packets[:, k.WIRE] > packets[:, k.CAPTURED])))
        if dissect(data, packets):
            data = _dissect_others(dissector, data, packets, wanted, quality)
        if ports:
            _leave_out_others(packets, ports, wanted, quality)
        if not wanted.all():
            packets = packets[wanted]
        if file:
            packets[:, k.FILE] = file
        if len(packets):
            yield Block(data, packets)
    quality.dropped += capture.dropped
    quality.problems += [f"{capture.name}: {problem}" for problem in capture.problems]


def _leave_out_others(packets: Rows, ports: Collection[int], wanted: npt.NDArray[np.bool_], quality: Quality) -> None:
    """Drop and count segments of other ports."""
    of_packets = packets[:, k.PORTS]
    known = np.array(sorted(ports))
    found = np.isin(of_packets >> k.PORT_BITS & 0xFFFF, known) | np.isin(of_packets & 0xFFFF, known)
    others = (packets[:, k.KIND] == k.SEGMENT) & ~found
    packets[others, k.KIND] = k.OTHER
    if count := int(np.count_nonzero(others & wanted)):
        quality.other_packets[OF_OTHER_PORTS] += count


def _stretches(capture: CaptureFile, window_bytes: int) -> Iterator[tuple[npt.NDArray[np.uint8], Rows]]:
    alone: list[Packet] = []
    waiting = 0
    for stretch in capture.stretches(window_bytes):
        if isinstance(stretch, Packet):
            alone.append(stretch)
            waiting += len(stretch.data)
            if len(alone) < _TOGETHER and waiting < window_bytes:
                continue
        if alone:
            yield _as_rows(alone)
            alone, waiting = [], 0
        if not isinstance(stretch, Packet):
            yield stretch
    if alone:
        yield _as_rows(alone)


def _as_rows(packets: list[Packet]) -> tuple[npt.NDArray[np.uint8], Rows]:
    rows = np.zeros((len(packets), k.COLUMNS), np.int64)
    at = 0
    for row, packet in zip(rows, packets, strict=True):
        size = len(packet.data)
        row[k.NUMBER : k.WIRE + 1] = packet.number, packet.time_ns, packet.link_type, at, size, packet.wire_bytes
        at += size
    return np.frombuffer(b"".join(packet.data for packet in packets), np.uint8), rows


def _dissect_others(
    dissector: Dissector, data: npt.NDArray[np.uint8], packets: Rows, wanted: npt.NDArray[np.bool_], quality: Quality
) -> npt.NDArray[np.uint8]:
    """Dissect UNSURE packets on the slow path; returns them with the data that holds their payloads."""
    payloads = [data]
    at = len(data)
    for index in np.flatnonzero(packets[:, k.KIND] == k.UNSURE).tolist():
        packet = packets[index]
        segment = dissector.dissect(packet_at(data, packet))
        if not isinstance(segment, Segment):
            packet[k.KIND] = k.OTHER
            if wanted[index]:
                quality.other_packets[segment] += 1
            continue
        packet[k.SOURCE_HIGH : k.SOURCE_HIGH + 2] = _halves(segment.source)
        packet[k.DESTINATION_HIGH : k.DESTINATION_HIGH + 2] = _halves(segment.destination)
        ports = segment.source_port << k.PORT_BITS | segment.destination_port
        packet[k.PORTS] = ports | (k.IS_IPV6 if len(segment.source) == 16 else 0)
        packet[k.SEQUENCE : k.FLAGS + 1] = segment.sequence, segment.acknowledgement, segment.flags
        packet[k.PAYLOAD : k.CUT + 1] = at, len(segment.payload), segment.cut
        packet[k.KIND] = k.SEGMENT
        payloads.append(np.frombuffer(segment.payload, np.uint8))
        at += len(segment.payload)
    return np.concatenate(payloads) if len(payloads) > 1 else data


def packet_at(data: npt.NDArray[np.uint8], packet: Rows) -> Packet:
    """The packet of a row."""
    number, time_ns, link_type, at, captured, wire_bytes = packet[k.NUMBER : k.WIRE + 1].tolist()
    return Packet(number, time_ns, link_type, data[at : at + captured].tobytes(), wire_bytes)


def _halves(address: bytes) -> tuple[int, int]:
    high, low = struct.unpack(">qq", address) if len(address) == 16 else (0, *struct.unpack(">I", address))
    return high, low


class Flows:
    """The connections of a block, each with its texts in both directions."""

    def __init__(self) -> None:
        self._flows = np.zeros((1024, f.FLOW_COLUMNS), np.int64)

    def number(self, packets: Rows) -> Rows:
        """Give every packet the number of its direction in FLOW; the connections, as ``frame_kernels``."""
        while True:
            table = np.full(4 * len(self._flows), -1, np.int64)
            used = f.number_flows(packets, self._flows, table)
            if used >= 0:
                return self._flows[:used]
            self._flows = np.zeros((2 * len(self._flows), f.FLOW_COLUMNS), np.int64)

    def directions(self, packets: Rows) -> tuple[npt.NDArray[np.int64], list[tuple[str, str, int, str, int]]]:
        """Return each packet's index into the list, and the list of directions: connection and both ends."""
        directions = []
        for flow in self.number(packets)[:, : f.BOTH_PORTS + 1]:
            lower, higher = ends_of(flow)
            text = connection_text(lower, higher)
            low, high = (address_text(lower[0]), lower[1]), (address_text(higher[0]), higher[1])
            directions += [(text, *low, *high), (text, *high, *low)]
        return packets[:, k.FLOW], directions


def ends_of(flow: Rows) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """The lower end and the higher one, as the kernels compare them, of a connection's row."""
    low_high, low_low, high_high, high_low, ports = flow[: f.BOTH_PORTS + 1].tolist()
    return (
        (address_of(low_high, low_low, ports), ports >> k.PORT_BITS & 0xFFFF),
        (address_of(high_high, high_low, ports), ports & 0xFFFF),
    )


@functools.lru_cache(maxsize=4096)
def address_of(high: int, low: int, ports: int) -> bytes:
    """The packed address, from its halves."""
    return struct.pack(">qq", high, low) if ports & k.IS_IPV6 else struct.pack(">I", low)


class Shares:
    """Assigns connections to ``of`` shares of about equal size; see `keep_share`.

    Every user must process the same packets in the same order.
    """

    def __init__(self, of: int) -> None:
        self.known = np.full((_CONNECTIONS, 2), -1, np.int64)
        self.loads = np.zeros(of, np.int64)


_CONNECTIONS = 1 << 16
#: of `keep_share`, for all connections
NOTHING_KNOWN = np.empty((0, 2), np.int64), np.empty(0, np.int64)


class Chosen(NamedTuple):
    """A selection of connections: share ``number`` of ``of`` (by ``shares``, or else by their ends), and among
    them those whose text passes ``test``."""

    number: int = 0
    of: int = 1
    test: Callable[[str], bool] | None = None
    shares: Shares | None = None

    def of_block(self, block: Block, flows: Flows) -> Block:
        """The segments of selected connections, in the rows of ``block``."""
        packets = block.packets
        if self.of > 1:
            by = NOTHING_KNOWN if self.shares is None else (self.shares.known, self.shares.loads)
            packets = packets[: b.keep_share(packets, self.number, self.of, *by)]
        if self.test is not None:
            if self.of == 1:
                packets = packets[: b.keep_share(packets, 0, 1, *NOTHING_KNOWN)]  # what is no segment has no ends
            _, directions = flows.directions(packets)
            kept = np.array([self.test(text) for text, *_ in directions[::2]], np.bool_)
            packets = packets[: b.keep_flows(packets, kept)]
        return block._replace(packets=packets)


def segment_of(block: Block, index: int, order: int, files: Sequence[str]) -> Segment:
    """One of a block's segments for the slow path; FILE is an index of ``files``."""
    packet = block.packets[index].tolist()
    ports, at = packet[k.PORTS], packet[k.PAYLOAD]
    return Segment(
        Place(order, packet[k.TIME], packet[k.NUMBER], files[packet[k.FILE]]),
        address_of(packet[k.SOURCE_HIGH], packet[k.SOURCE_LOW], ports), ports >> k.PORT_BITS & 0xFFFF,
        address_of(packet[k.DESTINATION_HIGH], packet[k.DESTINATION_LOW], ports), ports & 0xFFFF,
        packet[k.SEQUENCE], packet[k.ACKNOWLEDGEMENT], packet[k.FLAGS],
        block.data[at : at + packet[k.SIZE]].tobytes(), packet[k.CUT],
    )  # fmt: skip


# by time


def sorted_by_time(
    blocks: Iterable[Block], lookahead: int = LOOKAHEAD, steps: StepsBack | None = None
) -> Iterator[Block]:
    """The blocks of one capture with its segments in chronological order (``captures.files.chronology``)."""
    begin_ns = 0
    for block in _reordered(blocks, lookahead, steps):
        begin_ns = max(begin_ns, int(block.packets[0, k.TIME]))
        yield block._replace(begin_ns=begin_ns)
        begin_ns = max(begin_ns, int(block.packets[:, k.TIME].max()))


def _reordered(blocks: Iterable[Block], lookahead: int, steps: StepsBack | None) -> Iterator[Block]:
    held: deque[Block] = deque()
    count = 0
    for block in blocks:
        kept, in_order = b.keep_segments(block.packets)
        if not kept:
            continue
        packets = block.packets[:kept]
        if held:
            in_order = in_order and packets[0, k.TIME] >= held[-1].packets[-1, k.TIME]
        held.append(block._replace(packets=packets))
        count += kept
        if not in_order:
            held = deque([_merged(held, steps)])
        while held and count - len(held[0].packets) >= lookahead:
            count -= len(held[0].packets)
            yield held.popleft()
        if not in_order and held and count > 2 * lookahead:
            whole = held.pop()
            yield whole._replace(packets=whole.packets[:-lookahead])
            held.append(whole._replace(packets=whole.packets[-lookahead:]))
            count = lookahead
    yield from held


def _merged(blocks: Iterable[Block], steps: StepsBack | None) -> Block:
    """One block of the segments of several, in chronological order."""
    blocks = list(blocks)
    packets = np.concatenate([block.packets for block in blocks])
    data = np.empty(int(packets[:, k.SIZE].sum()), np.uint8)
    at = 0
    for block in blocks:
        size = int(block.packets[:, k.SIZE].sum())
        k.gather(block.data, block.packets[:, k.PAYLOAD], block.packets[:, k.SIZE], data[at : at + size])
        at += size
    packets[0, k.PAYLOAD] = 0
    np.cumsum(packets[:-1, k.SIZE], out=packets[1:, k.PAYLOAD])
    return Block(data, packets[order_by_time(packets[:, k.TIME].tolist(), steps)])


# several captures


def in_time(blocks: Iterable[Block], least_bytes: int = WINDOW_BYTES) -> Iterator[Block]:
    """Merge blocks by time; segments of one capture keep their order.

    Input is sorted by ``begin_ns``, then FILE. Output blocks have about ``least_bytes`` or more; blocks that overlap
    in time are held.
    """
    pool: list[_Waiting] = []
    there = 0
    for block in blocks:
        packets = block.packets[block.packets[:, k.KIND] == k.SEGMENT]
        if not len(packets):
            continue
        file = int(packets[0, k.FILE])
        if there >= least_bytes:
            yield from _before(pool, block.begin_ns, file)
            pool = [waiting for waiting in pool if waiting.at < len(waiting.block.packets)]
            there = sum(waiting.bytes for waiting in pool)
        times = np.maximum(np.maximum.accumulate(packets[:, k.TIME]), block.begin_ns)
        pool.append(_Waiting(block._replace(packets=packets), times, file))
        there += pool[-1].bytes
    yield from _before(pool, None, 0)


class _Waiting:
    """A block that was emitted up to ``at``."""

    def __init__(self, block: Block, times: Rows, file: int) -> None:
        self.block = block
        self.times = times
        self.file = file
        self.at = 0
        self.bytes = int(block.packets[:, k.SIZE].sum()) + block.packets.nbytes

    def take(self, time_ns: int | None, file: int) -> tuple[Rows, Rows]:
        """(times, rows) before a block of ``file`` that begins at ``time_ns``; all of them if that is None."""
        end = len(self.times)
        if time_ns is not None:
            end = int(np.searchsorted(self.times, time_ns, "right" if self.file <= file else "left"))
        begin, self.at = self.at, max(self.at, end)
        return self.times[begin : self.at], self.block.packets[begin : self.at]


def _before(pool: list[_Waiting], time_ns: int | None, file: int) -> Iterator[Block]:
    taken = [(waiting, *waiting.take(time_ns, file)) for waiting in sorted(pool, key=lambda waiting: waiting.file)]
    taken = [each for each in taken if len(each[1])]
    if not taken:
        return
    rows = np.concatenate([packets for _, _, packets in taken])
    data = np.empty(int(rows[:, k.SIZE].sum()), np.uint8)
    at = 0
    for waiting, _, packets in taken:
        size = int(packets[:, k.SIZE].sum())
        k.gather(waiting.block.data, packets[:, k.PAYLOAD], packets[:, k.SIZE], data[at : at + size])
        at += size
    np.cumsum(rows[:-1, k.SIZE], out=rows[1:, k.PAYLOAD])
    rows[0, k.PAYLOAD] = 0
    if len(taken) > 1:
        times = np.concatenate([times for _, times, _ in taken])
        if not (times[1:] >= times[:-1]).all():
            rows = rows[np.argsort(times, kind="stable")]
    yield Block(data, rows, int(rows[0, k.TIME]))
