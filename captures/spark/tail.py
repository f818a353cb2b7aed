"""``spark.readStream.format("kafka-capture")``: follows a folder of rotating captures.

The stream's offset is the number of bytes read of each file. A batch has the messages completed between two offsets. To
know the open connections it reads its first file from the start, and the file before that. So a response is matched if
its request is at most one file away, and memory is that of two files' connections, however long the stream runs.
Compressed copies are ignored: they contain what was read before.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kce.captures.errors import CaptureError
from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.quality import Quality
from kce.captures.files.formats import MAX_TIME_NS
from kce.captures.files.pcap import TRUNCATED, CaptureFile, first_time_ns
from kce.captures.spark.levels import ROWS, Batches, Corrupt
from kce.captures.spark.pushdown import Wanted
from kce.captures.spark.work import Bodies
from kce.captures.tables.rows import LEVELS
from kce.captures.tables.tabulate import packet_row
from kce.captures.tcp.segments import Dissector, Segment

#: Names of captures; tcpdump -C appends numbers.
_ENDINGS = (".pcap", ".pcapng", ".cap")

#: Bytes needed to recognise a capture.
_LEAST_BYTES = 28


class Piece(NamedTuple):
    """A file: packets that end in its bytes ``begin`` to ``end`` are new.

    ``first_ns`` is the time of its first packet, by which a file is recognised. The ``newest`` may end inside a packet.
    """

    name: str
    begin: int
    end: int
    first_ns: int
    newest: bool


class _Batch(InputPartition):
    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces


class FolderTail(DataSourceStreamReader):
    def __init__(
        self, folder: Path, level: str, *, fail_fast: bool, bodies: Bodies, ports: frozenset[int] = frozenset()
    ) -> None:
        self._folder = folder
        self._level = level
        self._fail_fast = fail_fast
        self._bodies = bodies
        self._ports = ports

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"files": []}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Files in the order of their first packets, with their sizes.

        Spark before 4.2 passes no arguments; batches are not limited.
        """
        found = []
        for entry in os.scandir(self._folder):
            if not entry.name.rstrip("0123456789").endswith(_ENDINGS) or not entry.is_file():
                continue
            try:
                stat = entry.stat()
            except FileNotFoundError:  # a ring buffer has removed it meanwhile
                continue
            if stat.st_size >= _LEAST_BYTES:
                begun_ns = first_time_ns(entry.path)
                # a file without a packet is the newest
                begun_ns = MAX_TIME_NS if begun_ns is None else begun_ns
                found.append((begun_ns, _natural(entry.name), entry.name, stat.st_size))
        return {"files": [[name, size, begun_ns] for begun_ns, _, name, size in sorted(found)]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before = {name: (size, first_ns) for name, size, first_ns in start["files"]}
        pieces = []
        for name, size, first_ns in end["files"]:
            # a ring buffer overwrites its oldest file: then the first packet is another one
            seen, seen_ns = before.get(name, (0, first_ns))
            begin = seen if seen <= size and seen_ns in (first_ns, MAX_TIME_NS) else 0
            pieces.append(Piece(name, begin, size, first_ns, name == end["files"][-1][0]))
        fresh = [at for at, piece in enumerate(pieces) if piece.begin < piece.end]
        if not fresh:
            return []
        first = fresh[0] if self._level == "packets" else max(0, fresh[0] - 1)
        if self._level == "packets":
            return [_Batch([pieces[at]]) for at in fresh]
        return [_Batch(pieces[first:])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Batch)
        batches = Batches(LEVELS[self._level], Wanted(), self._fail_fast)
        assembly = Assembly(Quality(), self._ports)
        rows = None if self._level == "packets" else ROWS[self._level](self._bodies)
        order = 0
        for piece in partition.pieces:
            dissector = Dissector(piece.name)
            try:
                with open(self._folder / piece.name, "rb", buffering=0) as file:
                    capture = CaptureFile(cast(BinaryIO, _Beginning(file, piece.end)), piece.name)
                    for packet in capture:
                        segment = dissector.dissect(packet)
                        fresh = capture.offset > piece.begin
                        if rows is None:
                            if fresh:
                                yield from batches.add(packet_row(piece.name, packet, segment), len(packet.data))
                        elif isinstance(segment, Segment) and self._is_wanted(segment):
                            order += 1
                            placed = segment._replace(place=segment.place._replace(order=order))
                            for message in assembly.receive(placed):
                                for row in rows(message) if fresh else ():
                                    yield from batches.add(row)
                    yield from batches.corrupt(_new_problems(capture, piece))
            except OSError as e:
                problem = f"{piece.name}: cannot be read ({e.strerror or e})"
                yield from batches.corrupt([Corrupt(piece.name, None, problem)])
            except CaptureError as e:
                yield from batches.corrupt([Corrupt(piece.name, None, str(e))])
        yield from batches.rest()

    def _is_wanted(self, segment: Segment) -> bool:
        return not self._ports or not self._ports.isdisjoint((segment.source_port, segment.destination_port))


def _new_problems(capture: CaptureFile, piece: Piece) -> Iterator[Corrupt]:
    """Damage in the new bytes of a file."""
    if capture.offset < piece.begin:
        return
    for problem in capture.problems:
        if not (piece.newest and problem.startswith(TRUNCATED)):
            yield Corrupt(piece.name, capture.packets, f"{piece.name}: {problem}")


class _Beginning(io.RawIOBase):
    """The first ``size`` bytes of a file; later ones belong to the next batch."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._left = size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data: bytes = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _natural(name: str) -> tuple[str, int]:
    """``x.pcap2`` before ``x.pcap10``."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
