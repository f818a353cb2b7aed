"""The rows of each level of the data source, as Arrow batches: what a task does with the files it was given.

A task of the level packets has one file, or a split of one. A task of the other levels has all of them, in the order of
their time, and one share of the connections: so a connection that runs across files is whole, and no task waits for
another.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import pyarrow as pa

from captures.assembly import Assembly
from captures.errors import CaptureError
from captures.exchanges import Message, NoResponse, Request, Response
from captures.index import Split
from captures.pcap import CaptureFile
from captures.quality import Quality
from captures.rows import LEVELS, PACKETS, Table
from captures.segments import Dissector, Segment
from captures.spark import bulk_levels
from captures.spark.pushdown import Wanted
from captures.tabulate import body_json, connection_text, exchange_row, frame_row, partition_rows

#: An Arrow batch is handed to Spark when it has this many rows or bytes of payload.
BATCH_ROWS = 4096
BATCH_BYTES = 4 * 1024 * 1024


class File(NamedTuple):
    """A capture: ``name`` is what rows call it."""

    name: str
    path: str


#: Whether frames come with their decoded bodies, and those with the payloads and secrets in them.
Bodies = Literal["none", "redacted", "payloads"]


class Share(NamedTuple):
    """One of ``of`` shares of all connections."""

    number: int
    of: int


def packet_batches(file: File, split: Split, wanted: Wanted, *, fail_fast: bool) -> Iterator[pa.RecordBatch]:
    """The rows of PACKETS of one file, or of a split of it. Raises CaptureError only with ``fail_fast``."""
    batches = Batches(PACKETS, wanted, fail_fast)
    yield from _in_bulk(
        batches, file, lambda: CaptureFile(file.path, file.name, split=split), bulk_levels.packets, tell=True
    )


def message_batches(
    level: str, files: Sequence[File], share: Share, wanted: Wanted, *, bodies: Bodies, fail_fast: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of frames, exchanges or partitions. Raises CaptureError only with ``fail_fast``.

    Rows for what is wrong with a file are told by the first share alone.
    """
    batches = Batches(LEVELS[level], wanted, fail_fast)
    chosen = _chosen(share, wanted)
    if len(files) == 1 and bodies == "none":
        (file,) = files
        yield from _in_bulk(
            batches, file, lambda: bulk_levels.ChosenConnections(file.path, file.name, chosen),
            functools.partial(bulk_levels.messages, level), tell=share.number == 0,
        )  # fmt: skip
        return
    assembly = Assembly(Quality())
    rows = ROWS[level](bodies)
    for packet in in_order(files):
        if isinstance(packet, _Corrupt):
            if share.number == 0:
                yield from batches.corrupt(packet.problem, packet.file, packet.packets)
            continue
        if chosen is not None and not chosen(_connection(packet)):
            continue
        for message in assembly.receive(packet):
            for row in rows(message):
                yield from batches.add(row)
    for message in assembly.finish():
        for row in rows(message):
            yield from batches.add(row)
    yield from batches.rest()


_Capture = TypeVar("_Capture", bound=CaptureFile)


def _in_bulk(
    batches: Batches, file: File, opened: Callable[[], _Capture],
    read: Callable[[_Capture], Iterable[pa.RecordBatch]], *, tell: bool,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """What ``read`` gives of one capture and, if it is to be told here, what is wrong with the file."""
    problems: list[tuple[str, int | None]] = []
    try:
        with opened() as capture:
            for batch in read(capture):
                yield from batches.of(batch)
            problems = [(f"{file.name}: {problem}", capture.packets) for problem in capture.problems]
    except Refused:
        raise
    except CaptureError as e:
        problems = [(str(e), None)]
    for problem, packets in problems if tell else ():
        yield from batches.corrupt(problem, file.name, packets)
    yield from batches.rest()


def _chosen(share: Share, wanted: Wanted) -> Callable[[str], bool] | None:
    """Whether a connection is of the share and wanted; None if all are."""
    test = wanted.values("connection")
    if share.of == 1:
        return test
    return lambda connection: bulk_levels.is_of(share, connection) and (test is None or test(connection))


def _connection(segment: Segment) -> str:
    return connection_text((segment.source, segment.source_port), (segment.destination, segment.destination_port))


def _frames(bodies: Bodies) -> Callable[[Message], Iterable[tuple[Any, ...]]]:
    def rows(message: Message) -> Iterable[tuple[Any, ...]]:
        if not isinstance(message, NoResponse):
            body = None if bodies == "none" else body_json(message, payloads=bodies == "payloads")
            yield (*frame_row(message, body), _wrong(message))

    return rows


def _exchanges(_: Bodies) -> Callable[[Message], Iterable[tuple[Any, ...]]]:
    def rows(message: Message) -> Iterable[tuple[Any, ...]]:
        if not isinstance(message, Request):
            response = message if isinstance(message, Response) else None
            problem = _wrong(message.request) or (response and _wrong(response))
            yield (*exchange_row(message.request, response), problem)

    return rows


def _partitions(_: Bodies) -> Callable[[Message], Iterable[tuple[Any, ...]]]:
    def rows(message: Message) -> Iterable[tuple[Any, ...]]:
        if not isinstance(message, Request):
            response = message if isinstance(message, Response) else None
            for row in partition_rows(message.request, response):
                yield (*row, None)

    return rows


#: level -> which bodies are asked for -> the rows that a message gives
ROWS = {"frames": _frames, "exchanges": _exchanges, "partitions": _partitions}


def _wrong(message: Request | Response) -> str | None:
    if message.error is None:
        return None
    return f"{message.place.file}: packet {message.place.packet}: {message.error}"


class _Corrupt(NamedTuple):
    """``packets`` is None for a file that is no capture at all."""

    file: str
    packets: int | None
    problem: str


def in_order(files: Sequence[File]) -> Iterator[Segment | _Corrupt]:
    """The segments of all files by time, as far as each file is in order itself; what is no segment is left out.

    A file is opened when its time has come, so that those of a rotation are open one or two at a time.
    """
    if len(files) == 1:
        yield from _segments(files[0])
        return
    waiting: list[tuple[int, int]] = []
    for at, file in enumerate(files):
        first = next((s for s in _segments(file) if isinstance(s, Segment)), None)
        waiting.append((first.place.time_ns if first is not None else 0, at))
    waiting.sort()
    merged: list[tuple[int, int, Segment, Iterator[Segment | _Corrupt]]] = []
    order = 0
    while waiting or merged:
        if waiting and (not merged or waiting[0][0] <= merged[0][0]):
            _, at = waiting.pop(0)
            segments = _segments(files[at])
        else:
            _, at, segment, segments = heapq.heappop(merged)
            order += 1
            yield segment._replace(place=segment.place._replace(order=order))
        for following in segments:
            if isinstance(following, Segment):
                heapq.heappush(merged, (following.place.time_ns, at, following, segments))
                break
            yield following


def _segments(file: File) -> Iterator[Segment | _Corrupt]:
    try:
        with CaptureFile(file.path, file.name) as capture:
            dissector = Dissector(file.name)
            for packet in capture:
                segment = dissector.dissect(packet)
                if isinstance(segment, Segment):
                    yield segment
            for problem in capture.problems:
                yield _Corrupt(file.name, capture.packets, f"{file.name}: {problem}")
    except CaptureError as e:
        yield _Corrupt(file.name, None, str(e))


class Refused(CaptureError):
    """What FAILFAST does not let pass."""


class Batches:
    """Collects the wanted rows of ``table``; gives them as batches when there are enough."""

    def __init__(self, table: Table, wanted: Wanted, fail_fast: bool) -> None:
        self._table = table
        self._wanted = wanted.rows(table)
        self._conditions = [(condition.column, condition.holds) for condition in wanted.conditions]
        self._fail_fast = fail_fast
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._names = [column.name for column in table.columns]

    def add(self, row: tuple[Any, ...], size: int = 0) -> Iterator[pa.RecordBatch]:
        if self._fail_fast and row[-1] is not None:
            raise Refused(row[-1])
        if self._wanted is not None and not self._wanted(row):
            return
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            yield from self.rest()

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The wanted rows of a batch."""
        corrupt = batch.column("_corrupt_record")
        if self._fail_fast and corrupt.null_count < len(corrupt):
            raise Refused(corrupt.drop_null()[0].as_py())
        for column, holds in self._conditions:
            values = batch.column(column)
            if pa.types.is_timestamp(values.type):
                values = values.cast(pa.int64())
            batch = batch.filter(bulk_levels.matching(values, holds))
        if len(batch):
            yield batch

    def corrupt(self, problem: str, file: str, packets: int | None) -> Iterator[pa.RecordBatch]:
        told = {"file": file, "packet": packets, "_corrupt_record": problem}
        return self.add(tuple(told.get(name) for name in self._names))

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield self._table.batch(self._rows)
            self._rows, self._bytes = [], 0
