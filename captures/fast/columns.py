"""Frames, exchanges and partitions as Arrow, by the thousand: the columns of ``captures.tables.rows``.

    reading = Reading.of(capture)
    for window in reading.windows():
        reading.frames(window), reading.exchanges(window), reading.partitions(window)

The rows are those that ``tabulate`` makes of the exact code's messages, and of these they are made where the
fast lane (``bulk``) has left something to it. Their order is that of completion within a connection, but for
rows of that kind, which come last in their batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kce.captures.exchanges.framing import Frame
from kce.captures.exchanges.pairing import NoResponse, Request, Response, read_request, read_response
from kce.captures.exchanges.quality import Quality
from kce.captures.fast import body_programs as p
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.blocks import Block, Rows
from kce.captures.fast.body_programs import Programs
from kce.captures.fast.bulk import FastLane, Window
from kce.captures.fast.control_columns import Said, said
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import CaptureFile
from kce.captures.tables.rows import DECODED, EXCHANGES, FRAMES, PARTITIONS, TIME, Table
from kce.captures.tables.tabulate import (
    Evidence,
    decoded_row,
    evidence_of,
    exchange_row,
    frame_row,
    has_evidence,
    partition_rows,
    peers_columns,
)
from kce.captures.tcp.segments import Place
from kce.wire import error_name
from kce.wire.registry import BY_KEY, CONTROL_REQUESTS

_Mask = npt.NDArray[np.bool_]

#: Given some numbers of rows by the columns' names (times in microseconds), which of them are wanted.
Wants = Callable[[Mapping[str, npt.NDArray[np.int64]]], _Mask]


def read_exchanges(location: str) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """EXCHANGES and PARTITIONS of one capture, some MiB of it at a time. Raises CaptureError for what is none."""
    with CaptureFile(location) as capture:
        reading = Reading.of(capture)
        for window in reading.windows():
            yield reading.exchanges(window), reading.partitions(window)


_Makes = dict[str, Callable[[], pa.Array]]


class _Part(NamedTuple):
    """Rows of a table, and how their columns are made; those that are missing are null."""

    rows: int
    made: _Makes


class Reading(FastLane):
    """A fast lane whose windows can be had as tables.

    ``names`` are the columns that are wanted, ``wants`` tells which rows are, by ``api_key``, ``version``,
    ``correlation_id``, ``packet`` and ``time``, before more is made of them, ``wants_api`` which APIs may be among
    these; None: all. Rows that are the exact code's are not chosen among.
    """

    def __init__(
        self, blocks: Iterable[Block], files: Sequence[str], quality: Quality, *, names: frozenset[str] | None = None,
        wants: Wants | None = None, wants_api: Callable[[int], bool] | None = None, ports: Collection[int] = (),
    ) -> None:  # fmt: skip
        super().__init__(blocks, files, quality, ports=ports)
        self.programs = Programs(wants_api)
        self._names = names
        self._wants = wants

    def frames(self, window: Window) -> pa.RecordBatch:
        """FRAMES, without bodies."""
        asked = self._wanted(_Frames(window, _read(window.requests), self.files))
        answered, of = self._answers(window, by_request=False)
        rows = [frame_row(message) for message in window.messages if not isinstance(message, NoResponse)]
        told = of.made() | {
            "is_response": lambda: pa.repeat(pa.scalar(True), len(answered)),
            "packet": answered.packet,
            "time": answered.time,
            "frame_bytes": lambda: answered.number(f.LENGTH, pa.int32()),
            "request_file": of.file,
            "request_packet": of.packet,
            "error_code": lambda: answered.noted(p.ERROR_CODE, pa.int16()),
            "file": answered.file,
        }
        return _joined(FRAMES, self._names, [_Part(len(asked), asked.made()), _Part(len(answered), told)], rows)

    def exchanges(self, window: Window) -> pa.RecordBatch:
        """EXCHANGES."""
        answered, asked = self._answers(window)
        rows = [exchange_row(*_pair(message)) for message in window.messages if not isinstance(message, Request)]
        parts = [_Part(len(asked), _exchange(answered, asked)), self._unanswered(window)]
        return _joined(EXCHANGES, self._names, parts, rows)

    def partitions(self, window: Window) -> pa.RecordBatch:
        """PARTITIONS."""
        parts = []
        answered, asked = self._answers(window)
        for at, told in self._said(answered, asked):
            requests, responses = asked.of(at), answered.of(at)
            made: _Makes = dict(requests.made())
            made["response_error_code"] = functools.partial(responses.noted, p.ERROR_CODE, pa.int16())
            repeated = {name: functools.partial(_taken, make, told.request) for name, make in made.items()}
            parts.append(_Part(len(told.request), repeated | {n: _as_made(c) for n, c in told.columns.items()}))
        pairs = [_pair(message) for message in window.messages if not isinstance(message, Request)]
        rows = [row for pair in pairs for row in partition_rows(*pair)]
        return _joined(PARTITIONS, self._names, parts, rows)

    def decoded(self, window: Window, evidence: Evidence) -> pa.RecordBatch:
        """DECODED: exchanges with what they hold."""
        answered, asked = self._answers(window)
        control = functools.cache(lambda: list(self._said(answered, asked)))  # two columns are made of it, or none
        made = _exchange(answered, asked) | {
            "states": lambda: _scattered(len(asked), [(at, told.states()) for at, told in control()]),
            "live_brokers": lambda: _scattered(len(asked), [(at, told.live_brokers()) for at, told in control()]),
        }
        if evidence != "none":
            told = self._evidence(window, answered, asked, evidence)
            made["evidence"] = lambda: pa.array(list(told), pa.string())
        rows = [decoded_row(*_pair(m), evidence) for m in window.messages if not isinstance(m, Request)]
        return _joined(DECODED, self._names, [_Part(len(asked), made), self._unanswered(window)], rows)

    def _evidence(self, window: Window, answered: _Frames, asked: _Frames, evidence: Evidence) -> Iterator[str | None]:
        for response, row in zip(answered.rows, asked.rows, strict=True):
            if not has_evidence(int(row[f.KEY]), evidence):
                yield None
                continue
            request = read_request(window.talks[row[f.TALK]], self._frame_of(window, row))
            yield evidence_of(request, read_response(request, self._frame_of(window, response)), evidence)

    def _wanted(self, frames: _Frames) -> _Frames:
        if self._wants is None:
            return frames
        return frames.of(np.flatnonzero(self._wants(frames.numbers(frames))))

    def _answers(self, window: Window, *, by_request: bool = True) -> tuple[_Frames, _Frames]:
        """Responses and their requests, where those (or the responses themselves) are wanted."""
        answered = _Frames(window, _read(window.responses), self.files)
        asked = _Frames(window, window.requests[answered.rows[:, f.PARTNER]], self.files)
        if self._wants is None:
            return answered, asked
        at = np.flatnonzero(self._wants((asked if by_request else answered).numbers(asked)))
        return answered.of(at), asked.of(at)

    def _unanswered(self, window: Window) -> _Part:
        """Exchanges whose requests are not answered."""
        requests = window.requests
        of = requests[(requests[:, f.PARTNER] == f.NOT_ANSWERED) & (requests[:, f.PROGRAM] >= 0)]
        frames = self._wanted(_Frames(window, of, self.files))
        return _Part(len(frames), frames.made())

    def _said(self, answered: _Frames, asked: _Frames) -> Iterator[tuple[npt.NDArray[np.int64], Said]]:
        """What control requests say, those of an API and version at once, and which rows these are."""
        keys, versions = asked.rows[:, f.KEY], asked.rows[:, f.VERSION]
        control = np.isin(keys, sorted(CONTROL_REQUESTS))
        for key, version in np.unique(np.stack([keys[control], versions[control]], axis=1), axis=0).tolist():
            at = np.flatnonzero((keys == key) & (versions == version))
            requests, responses = asked.of(at), answered.of(at)
            yield at, said(key, version, list(requests.payloads()), responses.payloads)

    def _frame_of(self, window: Window, row: Rows) -> Frame:
        at, length, packet = int(row[f.AT]), int(row[f.LENGTH]), window.packets[row[f.PACKET]]
        number = int(packet[k.NUMBER])
        place = Place(number, int(packet[k.TIME]), number, self.files[packet[k.FILE]])
        return Frame(window.data[at : at + length].tobytes(), length, 0, place)


def _read(rows: Rows) -> Rows:
    """Those that were not left to the exact code."""
    read = rows[:, f.PROGRAM] >= 0
    return rows if read.all() else rows[read]


def _pair(message: Response | NoResponse) -> tuple[Request, Response | None]:
    return message.request, message if isinstance(message, Response) else None


class _Frames:
    """Rows of one kind, and the columns that they have in common."""

    def __init__(self, window: Window, rows: Rows, files: Sequence[str]) -> None:
        self.rows = rows
        self._window = window
        self._files = files
        self._packets = rows[:, f.PACKET]
        self._numbers = window.packets[self._packets, k.NUMBER]
        self.time_ns = window.packets[self._packets, k.TIME]

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, at: npt.NDArray[np.int64]) -> _Frames:
        """Some of them."""
        return self if len(at) == len(self) else _Frames(self._window, self.rows[at], self._files)

    def numbers(self, asked: _Frames) -> dict[str, npt.NDArray[np.int64]]:
        """What rows are chosen by; ``asked`` are the requests."""
        of_request = {"api_key": f.KEY, "version": f.VERSION, "correlation_id": f.CORRELATION}
        told = {name: asked.rows[:, column] for name, column in of_request.items()}
        return told | {"packet": self._numbers, "time": self.time_ns // 1000}

    def payloads(self) -> Iterator[bytes]:
        """The frames, without their lengths."""
        for at, length in self.rows[:, [f.AT, f.LENGTH]].tolist():
            yield self._window.data[at : at + length].tobytes()

    def made(self) -> _Makes:
        """The columns that a request tells."""
        rows = self.rows
        keys = rows[:, f.KEY]
        return {
            "file": self.file,
            "packet": self.packet,
            "time": self.time,
            "connection": lambda: self._of_ends(0, pa.string()),
            "client": lambda: self._of_ends(1, pa.string()),
            "client_port": lambda: self._of_ends(2, pa.int32()),
            "server": lambda: self._of_ends(3, pa.string()),
            "server_port": lambda: self._of_ends(4, pa.int32()),
            "is_response": lambda: pa.repeat(pa.scalar(False), len(rows)),
            "api_key": lambda: self.number(f.KEY, pa.int16()),
            "api": lambda: _named(pa.array(keys), lambda key: BY_KEY[key].name),
            "version": lambda: self.number(f.VERSION, pa.int16()),
            "correlation_id": lambda: self.number(f.CORRELATION, pa.int32()),
            "client_id": lambda: self.text(p.CLIENT_ID),
            "frame_bytes": lambda: self.number(f.LENGTH, pa.int32()),
            "request_bytes": lambda: self.number(f.LENGTH, pa.int32()),
            "answered": lambda: pa.array(rows[:, f.PARTNER] != f.NOT_ANSWERED),
            "is_control": lambda: pa.array(np.isin(keys, sorted(CONTROL_REQUESTS))),
            "controller_id": lambda: self.noted(p.CONTROLLER_ID, pa.int32()),
            "controller_epoch": lambda: self.noted(p.CONTROLLER_EPOCH, pa.int32()),
            "is_kraft_controller": lambda: self.noted(p.IS_KRAFT, pa.bool_()),
            "sender_broker_id": lambda: self.noted(p.BROKER_ID, pa.int32()),
            "broker_epoch": lambda: self.noted(p.BROKER_EPOCH, pa.int64()),
            "partition_count": lambda: self.noted(p.PARTITIONS, pa.int32()),
            "group_id": lambda: self.text(p.GROUP_ID),
            "generation_id": lambda: self.noted(p.GENERATION_ID, pa.int32()),
        }

    def _of_ends(self, place: int, kind: pa.DataType) -> pa.Array:
        told = pa.array([peers_columns(peers)[place] for peers in self._window.talks], kind)
        return told.take(pa.array(self.rows[:, f.TALK]))

    def file(self) -> pa.Array:
        if len(self._files) == 1:
            return pa.repeat(pa.scalar(self._files[0]), len(self))
        return pa.array(self._files, pa.string()).take(pa.array(self._window.packets[self._packets, k.FILE]))

    def packet(self) -> pa.Array:
        return pa.array(self._numbers)

    def time(self) -> pa.Array:
        return pa.array(self.time_ns // 1000).cast(TIME)

    def number(self, column: int, kind: pa.DataType) -> pa.Array:
        return pa.array(np.ascontiguousarray(self.rows[:, column])).cast(kind)

    def noted(self, value: int, kind: pa.DataType) -> pa.Array:
        """Null where messages of that kind have no such value."""
        has = self._window.present[self.rows[:, f.PROGRAM], value]
        if not has.any():
            return pa.nulls(len(self), kind)
        return pa.array(np.ascontiguousarray(self.rows[:, f.NOTED + value]), mask=~has).cast(kind)

    def text(self, value: int) -> pa.Array:
        at, size = self.rows[:, f.NOTED + value], self.rows[:, f.NOTED + value + 1]
        ends = np.zeros(len(at) + 1, np.int32)
        np.cumsum(np.maximum(size, 0), out=ends[1:])
        data = np.empty(ends[-1], np.uint8)
        k.gather(self._window.data, at, size, data)
        null = size < 0
        valid = pa.array(~null).buffers()[1] if null.any() else None
        return pa.Array.from_buffers(pa.string(), len(at), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def _exchange(answered: _Frames, asked: _Frames) -> _Makes:
    """The columns of requests with their responses."""

    def code() -> pa.Array:
        return answered.noted(p.ERROR_CODE, pa.int16())

    return asked.made() | {
        "generation_id": lambda: _first_of(answered, asked),
        "response_file": answered.file,
        "response_packet": answered.packet,
        "response_time": answered.time,
        "response_bytes": lambda: answered.number(f.LENGTH, pa.int32()),
        "latency_ms": lambda: pa.array((answered.time_ns - asked.time_ns) / 1e6),
        "error_code": code,
        "error": lambda: _named(code(), error_name),
        "partition_errors": lambda: answered.number(f.NOTED + p.PARTITION_ERRORS, pa.int32()),
    }


def _first_of(answered: _Frames, asked: _Frames) -> pa.Array:
    """The generation that a response tells or, if it tells none, its request."""
    import pyarrow.compute  # here, for it takes a while to import

    return pyarrow.compute.coalesce(*(frames.noted(p.GENERATION_ID, pa.int32()) for frames in (answered, asked)))


def _named(numbers: pa.Array, name: Callable[[int], str]) -> pa.Array:
    """A name for each number; null for null."""
    encoded = numbers.dictionary_encode()
    names = pa.array([name(number) for number in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def _as_made(column: pa.Array) -> Callable[[], pa.Array]:
    return lambda: column


def _taken(make: Callable[[], pa.Array], at: npt.NDArray[np.int64]) -> pa.Array:
    return make().take(pa.array(at))


def _scattered(count: int, pieces: Sequence[tuple[npt.NDArray[np.int64], pa.Array]]) -> pa.Array:
    """An array of ``count`` lists that has each piece's lists at their places, and null elsewhere."""
    if not pieces:
        return pa.nulls(count)
    lists = pa.concat_arrays([lists for _, lists in pieces])
    at = np.concatenate([at for at, _ in pieces])
    order = np.argsort(at)
    if (order[1:] < order[:-1]).any():
        at, lists = at[order], lists.take(pa.array(order))
    there = np.zeros(count, np.bool_)
    there[at] = np.asarray(lists.is_valid())
    sizes = np.zeros(count + 1, np.int32)
    sizes[at + 1] = np.asarray(lists.value_lengths().fill_null(0))
    ends = pa.array(np.cumsum(sizes, dtype=np.int32))
    return pa.ListArray.from_arrays(ends, lists.flatten(), mask=pa.array(~there))


def _joined(
    table: Table, names: frozenset[str] | None, parts: Sequence[_Part], rows: list[tuple[Any, ...]]
) -> pa.RecordBatch:
    """A batch of the parts, and of rows of the table."""
    wanted = table.of(names)
    batches = [_batch(wanted, part) for part in parts if part.rows]
    if rows or not batches:
        batches.append(table.batch(rows).select([column.name for column in wanted.columns]))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batch(table: Table, part: _Part) -> pa.RecordBatch:
    made = part.made
    arrays = [made[c.name]().cast(c.type) if c.name in made else pa.nulls(part.rows, c.type) for c in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
