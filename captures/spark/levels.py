"""The rows of each level of the data source, as Arrow batches: the work of its tasks.

A task of level packets has a file or a split of one. A task of the other levels has all files, sorted by time, and one
share of the connections: a connection that spans files is whole, and tasks are independent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kce.captures.errors import CaptureError
from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.pairing import Message, NoResponse, Request, Response
from kce.captures.exchanges.quality import Quality
from kce.captures.fast.blocks import Block, Chosen, Flows, Shares, dissected, in_time, segment_of
from kce.captures.fast.bulk import Window
from kce.captures.fast.columns import Reading
from kce.captures.fast.cuts import Cuts
from kce.captures.fast.divided import Divided, Divider
from kce.captures.fast.packet_columns import packet_batches as packet_columns
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import WINDOW_BYTES, CaptureFile, first_time_ns
from kce.captures.files.split import Split
from kce.captures.spark.pushdown import Wanted
from kce.captures.spark.work import Bodies, File, Share
from kce.captures.tables.rows import BLOCKS, LEVELS, PACKETS, Table
from kce.captures.tables.tabulate import body_json, exchange_row, frame_row, partition_rows
from kce.wire.registry import CONTROL_REQUESTS

#: Rows and payload bytes of an Arrow batch.
BATCH_ROWS = 4096
BATCH_BYTES = 4 * 1024 * 1024


def packet_batches(
    file: File, split: Split, wanted: Wanted, *, fail_fast: bool, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of PACKETS of one file, or of a split of it. Raises CaptureError only with ``fail_fast``."""
    batches = Batches(PACKETS, wanted, fail_fast, names)
    problems: list[Corrupt] = []
    yield from batches.each(_packets(file, split, wanted, batches.needed, problems))
    yield from batches.corrupt(problems)


def block_batches(
    file: File, number: int, split: Split, buckets: int, ports: Collection[int] = (), cuts: Cuts | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of BLOCKS of one file, or of a split of it."""
    quality = Quality()
    divider = Divider(buckets, None if cuts is None else cuts.divide)
    try:
        with CaptureFile(file.path, file.name, split=split) as capture:
            for block in dissected(capture, quality, window_bytes=BATCH_BYTES, ports=ports):
                yield _divided(divider.divide(block), file.name, number)
    except CaptureError as e:
        quality.unreadable.append(str(e))
    messages = {"bucket": number % buckets, "begin_ns": 0, "number": number, "packet": 0, "quality": quality.to_json()}
    yield BLOCKS.batch([tuple(messages.get(column.name) for column in BLOCKS.columns)])


def _divided(divided: Divided, file: str, number: int) -> pa.RecordBatch:
    count = len(divided.buckets)

    def binary(data: npt.NDArray[Any], ends: npt.NDArray[np.int64], size: int = 1) -> pa.Array:
        offsets = pa.py_buffer((ends * size).astype(np.int32))
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data)])

    arrays = {
        "bucket": pa.array(divided.buckets),
        "begin_ns": pa.array(divided.begin_ns),
        "number": pa.repeat(pa.scalar(number), count),
        "packet": pa.array(divided.first),
        "file": pa.repeat(pa.scalar(file), count),
        "rows": binary(divided.rows, divided.row_ends, divided.rows.itemsize * divided.rows.shape[1]),
        "flows": binary(divided.flows, divided.flow_ends, divided.flows.itemsize * divided.flows.shape[1]),
        "payload": binary(divided.payload, divided.payload_ends),
        "quality": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_arrays(
        [arrays[column.name].cast(column.type) for column in BLOCKS.columns], schema=BLOCKS.schema
    )


def message_batches(
    level: str, files: Sequence[File], share: Share, wanted: Wanted, *, bodies: Bodies, fail_fast: bool,
    names: Sequence[str] | None = None, ports: Collection[int] = (),
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of frames, exchanges or partitions. Raises CaptureError only with ``fail_fast``.

    Only the first share emits rows for damaged files. ``names`` selects columns; ``ports`` are listener ports, if
    known.
    """
    batches = Batches(LEVELS[level], wanted, fail_fast, names)
    problems: list[Corrupt] = []
    of_share: list[Corrupt] = []
    # of several files, which packets come first depends on those that were kept
    shares = Shares(share.of) if len(files) == 1 else None
    blocks = _blocks(files, Chosen(share.number, share.of, wanted.values("connection"), shares), ports, problems)
    named = [file.name for file in files]
    if bodies == "none":
        yield from batches.each(_in_bulk(level, blocks, named, wanted, batches.needed, ports, of_share))
    else:
        yield from _one_by_one(batches, blocks, named, ROWS[level](bodies), ports)
    yield from batches.corrupt([*of_share, *(problems if share.number == 0 else ())])


def _packets(
    file: File, split: Split, wanted: Wanted, names: frozenset[str] | None, problems: list[Corrupt]
) -> Iterator[pa.RecordBatch]:
    try:
        with CaptureFile(file.path, file.name, split=split) as capture:
            yield from packet_columns(capture, names, wanted.numbers if wanted.conditions else None)
            problems += [Corrupt(file.name, capture.packets, f"{file.name}: {problem}") for problem in capture.problems]
    except CaptureError as e:
        problems.append(Corrupt(file.name, None, str(e)))


def _in_bulk(
    level: str, blocks: Iterable[Block], files: Sequence[str], wanted: Wanted, names: frozenset[str] | None,
    ports: Collection[int], problems: list[Corrupt],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Frames, exchanges or partitions by the thousand, with ``_corrupt_record``."""
    wants = wanted.numbers if wanted.conditions else None
    reading = Reading(
        blocks, files, Quality(), names=names, wants=wants, wants_api=wanted.values("api_key"), ports=ports
    )
    make: Callable[[Window], pa.RecordBatch] = getattr(reading, level)
    for window in reading.windows():
        if len(window.requests) or len(window.responses) or window.messages:
            rows = make(window)
            yield rows.append_column("_corrupt_record", _corrupt_records(level, rows))
            if level == "partitions":
                problems += _without_states(window.messages)


def _one_by_one(
    batches: Batches,
    blocks: Iterable[Block],
    files: Sequence[str],
    rows: Callable[[Message], Iterable[tuple[Any, ...]]],
    ports: Collection[int],
) -> Iterator[pa.RecordBatch]:
    assembly = Assembly(Quality(), ports)
    order = 0
    for block in blocks:
        for index in np.flatnonzero(block.packets[:, k.KIND] == k.SEGMENT).tolist():
            order += 1
            for message in assembly.receive(segment_of(block, index, order, files)):
                for row in rows(message):
                    yield from batches.add(row)
    for message in assembly.finish():
        for row in rows(message):
            yield from batches.add(row)
    yield from batches.rest()


#: Bytes kept of each file when several are read at once.
_BLOCK_BYTES = WINDOW_BYTES // 4


def _blocks(files: Sequence[File], chosen: Chosen, ports: Collection[int], problems: list[Corrupt]) -> Iterator[Block]:
    """The wanted segments of all files, merged by time; FILE is the index in ``files``.

    A file is opened when its time comes, so only one or two of a rotation are open.
    """
    if len(files) == 1:
        return _blocks_of(files[0], 0, chosen, ports, WINDOW_BYTES, problems, Quality())
    return _merged(files, chosen, ports, problems, Quality())


def counted_blocks(files: Sequence[File], ports: Collection[int], quality: Quality) -> Iterator[Block]:
    """All segments of all files, merged by time; FILE is the index in ``files``. Counts the rest in ``quality``."""
    problems: list[Corrupt] = []
    yield from _merged(files, Chosen(), ports, problems, quality)
    quality.unreadable += [each.problem for each in problems if each.packets is None]


def _merged(
    files: Sequence[File], chosen: Chosen, ports: Collection[int], problems: list[Corrupt], quality: Quality
) -> Iterator[Block]:
    of_files = [_blocks_of(file, at, chosen, ports, _BLOCK_BYTES, problems, quality) for at, file in enumerate(files)]
    return in_time(_by_begin(of_files, [first_time_ns(file.path) or 0 for file in files]))


def _blocks_of(
    file: File, number: int, chosen: Chosen, ports: Collection[int], window_bytes: int, problems: list[Corrupt],
    quality: Quality,
) -> Iterator[Block]:  # fmt: skip
    flows = Flows()
    try:
        with CaptureFile(file.path, file.name) as capture:
            for block in dissected(capture, quality, window_bytes=window_bytes, file=number, ports=ports):
                yield chosen.of_block(block, flows)
            problems += [Corrupt(file.name, capture.packets, f"{file.name}: {problem}") for problem in capture.problems]
    except CaptureError as e:
        problems.append(Corrupt(file.name, None, str(e)))


def _by_begin(captures: Sequence[Iterator[Block]], begins_ns: Sequence[int]) -> Iterator[Block]:
    """The blocks of several captures, sorted for ``in_time``."""
    waiting: list[tuple[int, int, Block | None]] = [(begin_ns, at, None) for at, begin_ns in enumerate(begins_ns)]
    heapq.heapify(waiting)
    while waiting:
        _, at, block = heapq.heappop(waiting)
        if block is not None:
            yield block
        following = next(captures[at], None)
        if following is not None:
            following = following._replace(packets=following.packets.copy())  # its array is reused
            heapq.heappush(waiting, (following.begin_ns, at, following))


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
        else:
            for file, packet, problem in _without_states([message]):
                yield tuple({"file": file, "packet": packet, "_corrupt_record": problem}.get(c) for c in _PARTITIONS)

    return rows


_PARTITIONS = [column.name for column in LEVELS["partitions"].columns]

#: level -> option ``bodies`` -> rows of a message
ROWS = {"frames": _frames, "exchanges": _exchanges, "partitions": _partitions}


def _without_states(messages: Iterable[Message]) -> Iterator[Corrupt]:
    """Control requests that were not decoded: their partitions are unknown."""
    for message in messages:
        if isinstance(message, Request) and message.api_key in CONTROL_REQUESTS and (problem := _wrong(message)):
            yield Corrupt(message.place.file, message.place.packet, problem)


def _wrong(message: Request | Response) -> str | None:
    if message.error is None:
        return None
    return f"{message.place.file}: packet {message.place.packet}: {message.error}"


#: Columns of a level's row with a decoding error, its file and its packet.
_WRONG: dict[str, tuple[tuple[str, str, str], ...]] = {
    "packets": (),
    "frames": (("decode_error", "file", "packet"),),
    "exchanges": (("request_error", "file", "packet"), ("response_error", "response_file", "response_packet")),
    "partitions": (),
}


def _corrupt_records(level: str, rows: pa.RecordBatch) -> pa.Array:
    messages: list[str | None] | None = None
    for error, file, packet in _WRONG[level]:
        if not {error, file, packet} <= set(rows.schema.names):
            continue
        column = rows.column(error)
        if column.null_count == len(column):
            continue
        messages = messages or [None] * len(column)
        names, numbers = rows.column(file), rows.column(packet)
        for at in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
            messages[at] = messages[at] or f"{names[at]}: packet {numbers[at]}: {column[at]}"
    return pa.nulls(len(rows), pa.string()) if messages is None else pa.array(messages, pa.string())


class Corrupt(NamedTuple):
    """``packets`` is None for a file that is no capture at all."""

    file: str
    packets: int | None
    problem: str


class Refused(CaptureError):
    """A problem, in mode FAILFAST."""


class Batches:
    """Collects the wanted rows of ``table`` into batches with the columns ``names``.

    Rows for damaged files need ``_corrupt_record`` among these.
    """

    def __init__(self, table: Table, wanted: Wanted, fail_fast: bool, names: Sequence[str] | None = None) -> None:
        self._table = table
        self._wanted = wanted.rows(table)
        self._conditions = [(condition.column, condition.holds) for condition in wanted.conditions]
        self._fail_fast = fail_fast
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._all = [column.name for column in table.columns]
        self._names = self._all if names is None else list(names)
        #: columns that batches must have; None: all
        self.needed: frozenset[str] | None = None
        if names is not None:
            self.needed = frozenset(names).union(column for column, _ in self._conditions)
            if fail_fast or "_corrupt_record" in names:
                self.needed = self.needed.union(*_WRONG[table.name])

    def add(self, row: tuple[Any, ...], size: int = 0) -> Iterator[pa.RecordBatch]:
        if self._fail_fast and row[-1] is not None:
            raise Refused(row[-1])
        if self._wanted is not None and not self._wanted(row):
            return
        self._rows.append(row)
        self._bytes += size
        if len(self._rows) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            yield from self.rest()

    def each(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The wanted rows of batches that have the columns ``needed``."""
        for batch in batches:
            if self._fail_fast and "_corrupt_record" in batch.schema.names:
                corrupt = batch.column("_corrupt_record")
                if corrupt.null_count < len(corrupt):
                    raise Refused(corrupt.drop_null()[0].as_py())
            for column, holds in self._conditions:
                values = batch.column(column)
                if pa.types.is_timestamp(values.type):
                    values = values.cast(pa.int64())
                batch = batch.filter(_matching(values, holds))
            if len(batch):
                yield batch.select(self._names)

    def corrupt(self, problems: Iterable[Corrupt]) -> Iterator[pa.RecordBatch]:
        """Rows for damaged files."""
        for file, packets, problem in problems:
            messages = {"file": file, "packet": packets, "_corrupt_record": problem}
            if self._fail_fast or "_corrupt_record" in self._names:
                yield from self.add(tuple(messages.get(name) for name in self._all))
        yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._rows:
            yield self._table.batch(self._rows).select(self._names)
            self._rows, self._bytes = [], 0


def _matching(column: pa.Array, holds: Callable[..., bool]) -> pa.Array:
    """A mask of the values that ``holds`` accepts; called once per distinct value."""
    encoded = column.dictionary_encode()
    verdicts = pa.array([holds(value) for value in encoded.dictionary.to_pylist()], pa.bool_())
    found = verdicts.take(encoded.indices)
    return found.fill_null(holds(None)) if column.null_count else found
