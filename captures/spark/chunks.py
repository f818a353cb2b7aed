"""The chunks of cut connections: reassembled each by itself, and joined if every cut was a ``Seam``.

A task of a chunk begins with the seam that the cut promises. What it finds is right if the chunk before it ends with
that seam, and if nothing in it looks further back. So by induction all chunks give what the whole connection would
give, or the cuts at which they do not are refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa

from kce.captures.exchanges.pairing import Conversation, Peers
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.seams import Seam, seam_of
from kce.captures.fast.blocks import Block, Rows
from kce.captures.fast.columns import Reading
from kce.captures.fast.cuts import Chunk, Cut, Flow, chunks_of, ends, text_of
from kce.captures.fast.segment_counts import SegmentCounts
from kce.captures.files import packet_kernels as k
from kce.captures.tables.rows import CHUNKED, MAX_EVIDENCE
from kce.captures.tables.tabulate import Evidence, connection_row, quality_row
from kce.captures.tcp.segments import FIN, RST, SYN
from kce.captures.tcp.streams import Connection

#: Columns of CONNECTIONS from ``first_time`` on that are sums, and those of the connection's end.
_SUMS, _END = slice(2, 7), slice(7, 13)


class Found(NamedTuple):
    """What a chunk found besides exchanges.

    ``connection`` are its columns of CONNECTIONS from ``first_time`` on. ``client_first``: whether the client's is
    the first packet. ``doubt``: there is something that the past may decide. ``end`` is where it ends, if it is clean.
    ``looked_back`` is how many bytes before the chunk were sent again, ``unbroken`` how many were sent in it since the
    last hole: each of client and server.
    """

    bucket: int
    quality: Quality
    connection: Sequence[Any]
    is_kafka: bool
    client_first: bool
    doubt: bool
    end: Seam | None
    looked_back: Sequence[int]
    unbroken: Sequence[int]

    def to_json(self) -> str:
        end = None if self.end is None else self.end.to_json()
        return json.dumps(self._replace(quality=self.quality.to_json(), end=end))  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = cls(*json.loads(text))
        end = None if found.end is None else Seam.from_json(list(found.end))
        return found._replace(quality=Quality.from_json(str(found.quality)), end=end)


class Watch:
    """Looks for what a chunk cannot decide without the past. A chunk that begins with its connection decides all."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.doubt = False
        self._latest_ns = 0 if chunk.begin is None else chunk.begin.time_ns
        self._over = [False, False]  # by side: after its FIN, or any RST

    def passing(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self._look(block.packets)
            yield block

    def _look(self, packets: Rows) -> None:
        """Each time is after the cut and before the next, and clocks do not go back."""
        times = packets[:, k.TIME]
        end = self.chunk.end
        self.doubt |= bool(times[0] < self._latest_ns or (times[1:] < times[:-1]).any())
        self._latest_ns = int(times[-1])
        self.doubt |= end is not None and self._latest_ns >= end.time_ns
        if self.chunk.begin is None:
            return
        flags = packets[:, k.FLAGS]
        self.doubt |= bool((flags & SYN).any())
        if any(self._over) or (flags & (FIN | RST)).any():
            for packet in packets:
                self._look_at_end(packet)

    def _look_at_end(self, packet: Rows) -> None:
        """Data after the end may belong to another connection."""
        flow = self.chunk.flow
        lower = int(packet[k.SOURCE_HIGH]), int(packet[k.SOURCE_LOW]), int(packet[k.PORTS]) >> k.PORT_BITS & 0xFFFF
        side = int(lower != (flow[0], flow[1], flow[-1] >> k.PORT_BITS & 0xFFFF))
        if self._over[side] and packet[k.SIZE] + packet[k.CUT]:
            self.doubt = True
        if packet[k.FLAGS] & RST:
            self._over = [True, True]
        elif packet[k.FLAGS] & FIN:
            self._over[side] = True


def exchanges(reading: Reading, evidence: Evidence) -> Iterator[pa.RecordBatch]:
    """The exchanges of a bucket, as DECODED."""
    for window in reading.windows():
        if len(window.responses) or len(window.requests) or window.messages:
            yield reading.decoded(window, evidence)


def of_chunk(
    bucket: int, watch: Watch, reading: Reading, counts: SegmentCounts, evidence: Evidence
) -> Iterator[pa.RecordBatch]:
    """The exchanges of a chunk, and a row with what else was found."""
    chunk = watch.chunk
    spoke: list[Peers] = []
    seams: list[Seam | None] = []
    first: list[bool] = []

    def open_at_end(connection: Connection, conversation: Conversation) -> None:
        seams.append(seam_of(connection, conversation))
        first.append(conversation.peers is not None and connection.endpoints[0] == conversation.peers.client)

    assembly = reading.assembly
    assembly.ended, assembly.open_at_end = spoke.append, open_at_end
    if chunk.begin is not None:
        seam = chunk.begin.seam
        of_client, of_server = seam.sequences
        turned = ends(chunk.flow)[0] != seam.client
        counts.resume(chunk.flow, (of_server, of_client) if turned else (of_client, of_server))
        assembly.resume(seam, chunk.begin.time_ns)
    yield from exchanges(reading, evidence)
    ((lower, _), columns), *_ = counts.connections()
    sides = (1, 0) if spoke and spoke[-1].client != lower else (0, 1)
    end = seams[-1] if seams and counts.is_open(0) else None
    if end is not None and end.sequences != tuple(counts.following(0, side) for side in sides):
        end = None
    found = Found(
        bucket, reading.quality, columns, bool(spoke), all(first),
        doubt=watch.doubt or bool(reading.quality.notes),
        end=end,
        looked_back=[counts.looked_back(0, side) for side in sides],
        unbroken=[counts.unbroken(0, side) for side in sides],
    )  # fmt: skip
    yield CHUNKED.batch([(*(None,) * (len(CHUNKED.columns) - 2), bucket, found.to_json())])


def holding(cuts: Mapping[Flow, Sequence[Cut]], found: Mapping[Chunk, Found]) -> dict[Flow, Sequence[Cut]]:
    """The cuts that hold. All chunks between them are right, except those of which nothing is known yet."""
    held: dict[Flow, Sequence[Cut]] = {}
    for flow, of_flow in cuts.items():
        chunks = [found.get(chunk) for chunk in chunks_of(flow, of_flow)]
        holds = [_holds(cut, *sides) for cut, sides in zip(of_flow, itertools.pairwise(chunks), strict=True)]
        begun = [chunk for chunk, is_right in zip(chunks[1:], holds, strict=True) if chunk is not None and is_right]
        held[flow] = [] if _is_doubtful(chunks[0], begun) else list(itertools.compress(of_flow, holds))
    return held


def _holds(cut: Cut, before: Found | None, after: Found | None) -> bool:
    if before is None or after is None or before.end != cut.seam:
        return False
    return all(back <= there for back, there in zip(after.looked_back, before.unbroken, strict=True))


def _is_doubtful(first: Found | None, others: Sequence[Found]) -> bool:
    """Gaps of both sides that end at once are taken in the order in which the sides were first seen."""
    if first is None or first.doubt or any(other.doubt for other in others):
        return True
    return not first.client_first and any(other.quality.gaps for other in others)


def rows_of(flow: Flow, chunks: Sequence[Found]) -> list[tuple[Any, ...]]:
    """Rows of DECODED for a connection: itself, and its counts."""
    quality = Quality()
    for each in chunks:
        quality.add(each.quality)
    quality.gap_connections = min(quality.gap_connections, quality.connections)  # each chunk counts it
    of_chunks = [each.connection for each in chunks]
    first, last = of_chunks[0], of_chunks[-1]
    sums = [sum(column) for column in list(zip(*of_chunks, strict=True))[_SUMS]]
    evidence = ([value for each in of_chunks for value in each[at]][:MAX_EVIDENCE] for at in range(-4, 0))
    is_kafka = any(each.is_kafka for each in chunks)
    connection = (text_of(flow), is_kafka, first[0], last[1], *sums, *last[_END], *evidence)
    return [connection_row(connection), quality_row(quality.to_json())]
