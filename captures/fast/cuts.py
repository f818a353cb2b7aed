"""Where large connections are cut, so that several tasks can reassemble one; nothing here is believed unchecked.

    block = first_block(capture, window_bytes)
    samples = sampled(block, of_bytes)              # here and there: who sends much, and where it may be cut
    cuts = Cuts(chosen(samples, target_bytes), first_bucket)
    Divider(first_bucket, cuts.divide)              # each chunk has a bucket of its own
    cuts.chunk(bucket)                              # what the bucket holds

A cut is a time and the ``Seam`` that is expected there: the border between two exchanges, of which the first is in
sight. Whether it is one is known when the chunk before it was reassembled (``captures.spark.chunks``).
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.recognise import Start, follows, request_start
from kce.captures.exchanges.seams import Header, Seam
from kce.captures.fast import block_kernels as b
from kce.captures.fast.blocks import Block, Flows, Rows, ends_of
from kce.captures.files import packet_kernels as k
from kce.captures.tcp.segments import ACK, FIN, RST, SYN, Endpoint, connection_text

#: A sample is of the largest connections, so many at most, but none with less than this share.
_MOST_CONNECTIONS = 16
_LEAST_SHARE = 1 / 256

#: Turns of the two sides that are looked at.
_MOST_TURNS = 1000

_LENGTH_AND_ID = struct.Struct(">ii").unpack_from

#: The ends of a connection, as ``frame_kernels`` has them.
Flow = tuple[int, ...]


class Cut(NamedTuple):
    """Packets from ``time_ns`` on are behind it."""

    time_ns: int
    seam: Seam


class Sample(NamedTuple):
    """A large connection in a part of a capture that begins at ``time_ns``; it has about ``size`` bytes of the part."""

    flow: Flow
    time_ns: int
    size: int
    cut: Cut | None


class Chunk(NamedTuple):
    """A part of a connection, between two cuts; None is an end of the capture."""

    flow: Flow
    begin: Cut | None
    end: Cut | None


def chunks_of(flow: Flow, cuts: Sequence[Cut]) -> list[Chunk]:
    """The chunks of a connection, in the order of time."""
    return [Chunk(flow, begin, end) for begin, end in itertools.pairwise((None, *cuts, None))]


class Cuts:
    """The cuts of some connections, in the order of time, and the buckets of the chunks: from ``first_bucket`` on.

    With ``only``, all but these buckets are left out.
    """

    def __init__(
        self, of: Mapping[Flow, Sequence[Cut]], first_bucket: int, only: Collection[int] | None = None
    ) -> None:
        self.of = dict(of)
        self.only = None if only is None else sorted(only)
        self._first = first_bucket
        self._chunks = [chunk for flow, cuts in self.of.items() for chunk in chunks_of(flow, cuts)]
        self._places: dict[bytes, tuple[int, Rows]] = {}
        for flow, cuts in self.of.items():
            times_ns = np.array([cut.time_ns for cut in cuts], np.int64)
            self._places[np.array(flow, np.int64).tobytes()] = first_bucket, times_ns
            first_bucket += len(cuts) + 1

    def of_chunks(self, wanted: Collection[Chunk]) -> Cuts:
        """Only these chunks."""
        flows = {chunk.flow for chunk in wanted}
        cuts = Cuts({flow: cuts for flow, cuts in self.of.items() if flow in flows}, self._first)
        return Cuts(cuts.of, self._first, [bucket for bucket, chunk in cuts.chunks().items() if chunk in wanted])

    def chunk(self, bucket: int) -> Chunk | None:
        """What the bucket holds; None if it holds whole connections."""
        return self._chunks[bucket - self._first] if bucket >= self._first else None

    def chunks(self) -> dict[int, Chunk]:
        """Bucket -> chunk."""
        of_buckets = enumerate(self._chunks, self._first)
        return {bucket: chunk for bucket, chunk in of_buckets if self.only is None or bucket in self.only}

    def divide(self, packets: Rows, flows: Rows, buckets: Rows, begin_ns: int) -> tuple[Rows, Rows, Rows]:
        """Put packets of chunks into their buckets.

        ``flows`` are the ends of connections, numbered in FLOW, ``buckets`` theirs. Returns all three, with a row of
        the latter two for each chunk, and FLOW its number.
        """
        flows, buckets = self._divide(packets, flows, buckets, begin_ns)
        if self.only is None:
            return packets, flows, buckets
        kept = np.isin(buckets, self.only)
        packets = packets[: b.keep_flows(packets, kept)]
        packets[:, k.FLOW] = 2 * (np.cumsum(kept) - 1)[packets[:, k.FLOW] >> 1] | packets[:, k.FLOW] & 1
        return packets, flows[kept], buckets[kept]

    def _divide(self, packets: Rows, flows: Rows, buckets: Rows, begin_ns: int) -> tuple[Rows, Rows]:
        more_flows, more_buckets, count = [flows], [buckets], len(flows)
        of_packets = packets[:, k.FLOW] >> 1
        behind: Rows | None = None
        for number, flow in enumerate(flows):
            found = self._places.get(flow.tobytes())
            if found is None:
                continue
            first, times_ns = found
            if behind is None:
                behind = np.maximum(np.maximum.accumulate(packets[:, k.TIME]), begin_ns)
            rows = np.flatnonzero(of_packets == number)
            there, chunks = np.unique(np.searchsorted(times_ns, behind[rows], "right"), return_inverse=True)
            numbers = np.append(number, np.arange(count, count + len(there) - 1))
            packets[rows, k.FLOW] = 2 * numbers[chunks] | packets[rows, k.FLOW] & 1
            buckets[number] = first + there[0]
            more_flows.append(np.repeat(flow[None], len(there) - 1, axis=0))
            more_buckets.append(first + there[1:])
            count += len(there) - 1
        return np.concatenate(more_flows), np.concatenate(more_buckets)

    def to_json(self) -> str:
        cuts = [[flow, [[cut.time_ns, cut.seam.to_json()] for cut in of_flow]] for flow, of_flow in self.of.items()]
        return json.dumps([self._first, self.only, cuts])

    @staticmethod
    @functools.lru_cache(maxsize=1)  # for all tasks of a worker
    def from_json(text: str) -> Cuts:
        first_bucket, only, cuts = json.loads(text)
        of = {tuple(flow): [Cut(time_ns, Seam.from_json(seam)) for time_ns, seam in some] for flow, some in cuts}
        return Cuts(of, first_bucket, only)


def ends(flow: Flow) -> tuple[Endpoint, Endpoint]:
    """The lower end and the higher one."""
    return ends_of(np.array(flow, np.int64))


def text_of(flow: Flow) -> str:
    """The connection, as in all tables."""
    return connection_text(*ends(flow))


def chosen(samples: Iterable[Sample], target_bytes: int) -> dict[Flow, list[Cut]]:
    """Cuts that leave chunks of about ``target_bytes``, as far as the samples offer them."""
    since: dict[Flow, int] = {}
    cuts: dict[Flow, list[Cut]] = {}
    for flow, _, size, cut in sorted(samples, key=lambda sample: sample.time_ns):
        there = cuts.setdefault(flow, [])
        enough = 2 * since.get(flow, 0) >= target_bytes
        if cut is not None and enough and (not there or there[-1].time_ns < cut.time_ns):
            there.append(cut)
            since[flow] = 0
        since[flow] = since.get(flow, 0) + size
    return {flow: some for flow, some in cuts.items() if some}


def sampled(block: Block, of_bytes: int) -> list[Sample]:
    """The large connections of a block that is the beginning of a part with ``of_bytes``."""
    packets = block.packets[block.packets[:, k.KIND] == k.SEGMENT]
    if not len(packets):
        return []
    flows = Flows().number(packets)
    of_packets = packets[:, k.FLOW] >> 1
    sizes = np.bincount(of_packets, packets[:, k.SIZE], len(flows))
    shares = sizes / max(1, packets[:, k.SIZE].sum())
    time_ns = int(packets[0, k.TIME])
    samples = []
    for number in np.argsort(-shares, kind="stable")[:_MOST_CONNECTIONS].tolist():
        if shares[number] < _LEAST_SHARE:
            break
        flow = tuple(flows[number, : b.PACKED_FLOW].tolist())
        cut = _cut(block.data, packets[of_packets == number], flows[number])
        samples.append(Sample(flow, time_ns, int(shares[number] * of_bytes), cut))
    return samples


def _cut(data: npt.NDArray[np.uint8], packets: Rows, flow: Rows) -> Cut | None:
    """The first place where nothing is outstanding: requests, responses up to that of the last, and another request."""
    if (packets[:, k.FLAGS] & (FIN | SYN | RST)).any():
        return None
    latest_ns = np.maximum.accumulate(packets[:, k.TIME])
    rows = np.flatnonzero(packets[:, k.SIZE] + packets[:, k.CUT])
    sent = packets[rows]
    sides = sent[:, k.FLOW] & 1
    turns = np.flatnonzero(np.diff(sides, prepend=-1))[:_MOST_TURNS].tolist()
    good = _in_order(sent, sides)
    for asked, answered, following in zip(turns, turns[1:], turns[2:], strict=False):
        packet, at = sent[following], int(rows[following])
        if not good[asked + 1 : following + 1].all() or packets[at, k.TIME] <= latest_ns[at - 1]:
            continue
        if not packet[k.FLAGS] & ACK or packet[k.ACKNOWLEDGEMENT] != _end(sent[following - 1]):
            continue
        last, next_one = _last_request(_text(data, sent[asked:answered])), request_start(_text(data, packet[None]))
        if last is None or not (isinstance(next_one, Start) and follows(last, next_one)):
            continue
        if _last_response(_text(data, sent[answered:following])) != last.correlation_id:
            continue
        lower, higher = ends_of(flow)
        client, server = (higher, lower) if sides[following] else (lower, higher)
        sequences = int(packet[k.SEQUENCE]), int(packet[k.ACKNOWLEDGEMENT])
        return Cut(int(packet[k.TIME]), Seam(client, server, sequences, Header.of(last)))
    return None


def _last_request(data: bytes) -> Start | None:
    """The last of the requests that fill ``data``; None if it is something else."""
    at, last = 0, None
    while at < len(data):
        start = request_start(data, at)
        if not isinstance(start, Start):
            return None
        at, last = at + 4 + start.length, start
    return last if at == len(data) else None


def _last_response(data: bytes) -> int | None:
    """The correlation id of the last of the responses that fill ``data``; None if it is something else."""
    at, last = 0, None
    while len(data) - at >= 8:
        length, last = _LENGTH_AND_ID(data, at)
        if length < 4:
            return None
        at += 4 + length
    return last if at == len(data) else None


def _in_order(sent: Rows, sides: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether each segment is whole, and follows the one that its side sent before."""
    good: npt.NDArray[np.bool_] = np.equal(sent[:, k.CUT], 0)
    for side in range(2):
        own = np.flatnonzero(sides == side)
        good[own[1:]] &= sent[own[1:], k.SEQUENCE] == _end(sent[own[:-1]].T)
    return good


def _end(packet: Any) -> Any:
    """The sequence number behind a segment, or segments."""
    return (packet[k.SEQUENCE] + packet[k.SIZE]) & 0xFFFFFFFF


def _text(data: npt.NDArray[np.uint8], packets: Rows) -> bytes:
    return b"".join(data[at : at + size].tobytes() for at, size in packets[:, [k.PAYLOAD, k.SIZE]].tolist())
