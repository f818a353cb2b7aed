"""Frames, exchanges and partitions as Arrow, with the columns of ``captures.tables.rows``.

    reading = Reading.of(capture)
    for window in reading.windows():
        reading.frames(window), reading.exchanges(window), reading.partitions(window)

Rows equal those that ``tabulate`` makes on the slow path; messages of the slow path become rows that way. Within a
connection rows are in the order of completion, except that rows of the slow path come last in their batch.
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
from kce.captures.fast.bulk import FastPath, Window
from kce.captures.fast.control_columns import ControlColumns, control_columns
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import CaptureFile
from kce.captures.tables.rows import DECODED, EXCHANGES, FRAMES, PARTITIONS, TIME, Table
from kce.captures.tables.tabulate import (
    LATE_NS,
    Evidence,
    decoded_row,
    error_list,
    evidence_of,
    exchange_row,
    frame_row,
    has_evidence,
    partition_rows,
    partitions_hit,
    peers_columns,
)
from kce.captures.tcp.segments import Place
from kce.wire import error_name
from kce.wire.registry import BY_KEY, CONTROL_REQUESTS

_Mask = npt.NDArray[np.bool_]

#: Maps columns of numbers (times in microseconds) to a mask of the rows to keep.
Wants = Callable[[Mapping[str, npt.NDArray[np.int64]]], _Mask]


def read_exchanges(location: str) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """EXCHANGES and PARTITIONS of one capture, some MiB of it at a time. Raises CaptureError."""
    with CaptureFile(location) as capture:
        reading = Reading.of(capture)
        for window in reading.windows():
            yield reading.exchanges(window), reading.partitions(window)


_Columns = dict[str, Callable[[], pa.Array]]


class _Part(NamedTuple):
    """A number of rows, and functions that make their columns; missing columns are null."""

    rows: int
    made: _Columns


class Reading(FastPath):
    """The fast path with its windows as tables.

    ``names`` selects columns. ``wants`` selects rows by ``api_key``, ``version``, ``correlation_id``, ``packet`` and
    ``time``, before their columns are made; ``wants_api`` names the APIs among them. None selects all. Rows of the slow
    path are not filtered.
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
        requests = self._wanted(_Frames(window, _accepted(window.requests), self.files))
        responses, of = self._answers(window, by_request=False)
        rows = [frame_row(message) for message in window.messages if not isinstance(message, NoResponse)]
        response_columns = of.request_columns() | {
            "is_response": lambda: pa.repeat(pa.scalar(True), len(responses)),
            "packet": responses.packet,
            "time": responses.time,
            "frame_bytes": lambda: responses.number(f.LENGTH, pa.int32()),
            "request_file": of.file,
            "request_packet": of.packet,
            "error_code": lambda: responses.noted(p.ERROR_CODE, pa.int16()),
            "file": responses.file,
        }
        parts = [_Part(len(requests), requests.request_columns()), _Part(len(responses), response_columns)]
        return _joined(FRAMES, self._names, parts, rows)

    def exchanges(self, window: Window) -> pa.RecordBatch:
        """EXCHANGES."""
        responses, requests = self._answers(window)
        rows = [exchange_row(*_pair(message)) for message in window.messages if not isinstance(message, Request)]
        parts = [_Part(len(requests), _exchange(responses, requests)), self._without_response(window)]
        return _joined(EXCHANGES, self._names, parts, rows)

    def partitions(self, window: Window) -> pa.RecordBatch:
        """PARTITIONS."""
        parts = []
        responses, requests = self._answers(window)
        for at, states in self._control_columns(responses, requests):
            some_requests, some_responses = requests.of(at), responses.of(at)
            made: _Columns = dict(some_requests.request_columns())
            made["response_error_code"] = functools.partial(some_responses.noted, p.ERROR_CODE, pa.int16())
            repeated = {name: functools.partial(_taken, make, states.request) for name, make in made.items()}
            parts.append(_Part(len(states.request), repeated | {n: _as_made(c) for n, c in states.columns.items()}))
        pairs = [_pair(message) for message in window.messages if not isinstance(message, Request)]
        rows = [row for pair in pairs for row in partition_rows(*pair)]
        return _joined(PARTITIONS, self._names, parts, rows)

    def decoded(self, window: Window, evidence: Evidence) -> pa.RecordBatch:
        """DECODED: exchanges with their partition states, brokers and evidence."""
        responses, requests = self._answers(window)
        control = functools.cache(lambda: list(self._control_columns(responses, requests)))  # for two columns, or none
        kind = DECODED.schema.field("errors").type
        made = _exchange(responses, requests) | {
            "states": lambda: _scattered(len(requests), [(at, c.states()) for at, c in control()]),
            "live_brokers": lambda: _scattered(len(requests), [(at, c.live_brokers()) for at, c in control()]),
            "errors": lambda: pa.array(list(self._errors(window, responses, requests)), kind),
            "hit": lambda: pa.array(list(self._hit(window, responses, requests)), DECODED.schema.field("hit").type),
        }
        if evidence != "none":
            texts = self._evidence(window, responses, requests, evidence)
            made["evidence"] = lambda: pa.array(list(texts), pa.string())
        rows = [decoded_row(*_pair(m), evidence) for m in window.messages if not isinstance(m, Request)]
        return _joined(DECODED, self._names, [_Part(len(requests), made), self._without_response(window)], rows)

    def _evidence(
        self, window: Window, responses: _Frames, requests: _Frames, evidence: Evidence
    ) -> Iterator[str | None]:
        for response, row in zip(responses.rows, requests.rows, strict=True):
            if not has_evidence(int(row[f.KEY]), evidence):
                yield None
                continue
            answer = self._response_of(window, response, row)
            yield evidence_of(answer.request, answer, evidence)

    def _errors(self, window: Window, responses: _Frames, requests: _Frames) -> Iterator[list[dict[str, Any]] | None]:
        for has_errors, response, row in zip(
            _failed(window, responses).tolist(), responses.rows, requests.rows, strict=True
        ):
            yield error_list(self._response_of(window, response, row)) if has_errors else None

    def _hit(self, window: Window, responses: _Frames, requests: _Frames) -> Iterator[list[dict[str, Any]] | None]:
        latency_ns, keys = responses.time_ns - requests.time_ns, requests.rows[:, f.KEY]
        failed, hit = _failed(window, responses), np.zeros(len(keys), np.bool_)
        for key, late_ns in LATE_NS.items():
            hit |= (keys == key) & (failed | (latency_ns >= late_ns))
        for is_hit, response, row in zip(hit.tolist(), responses.rows, requests.rows, strict=True):
            if not is_hit:
                yield None
                continue
            answer = self._response_of(window, response, row)
            yield partitions_hit(answer.request, answer)

    def _response_of(self, window: Window, response: Rows, request: Rows) -> Response:
        asked = read_request(window.talks[request[f.TALK]], self._frame_of(window, request))
        return read_response(asked, self._frame_of(window, response))

    def _wanted(self, frames: _Frames) -> _Frames:
        if self._wants is None:
            return frames
        return frames.of(np.flatnonzero(self._wants(frames.numbers(frames))))

    def _answers(self, window: Window, *, by_request: bool = True) -> tuple[_Frames, _Frames]:
        """The wanted responses and their requests; ``by_request`` filters by the request."""
        responses = _Frames(window, _accepted(window.responses), self.files)
        requests = _Frames(window, window.requests[responses.rows[:, f.PARTNER]], self.files)
        if self._wants is None:
            return responses, requests
        at = np.flatnonzero(self._wants((requests if by_request else responses).numbers(requests)))
        return responses.of(at), requests.of(at)

    def _without_response(self, window: Window) -> _Part:
        """Exchanges whose requests are not answered."""
        requests = window.requests
        of = requests[(requests[:, f.PARTNER] == f.NOT_ANSWERED) & (requests[:, f.PROGRAM] >= 0)]
        frames = self._wanted(_Frames(window, of, self.files))
        return _Part(len(frames), frames.request_columns())

    def _control_columns(
        self, responses: _Frames, requests: _Frames
    ) -> Iterator[tuple[npt.NDArray[np.int64], ControlColumns]]:
        """(rows, contents) of control requests, by API and version."""
        keys, versions = requests.rows[:, f.KEY], requests.rows[:, f.VERSION]
        control = np.isin(keys, sorted(CONTROL_REQUESTS))
        for key, version in np.unique(np.stack([keys[control], versions[control]], axis=1), axis=0).tolist():
            at = np.flatnonzero((keys == key) & (versions == version))
            bodies = list(requests.of(at).payloads())
            yield at, control_columns(key, version, bodies, responses.of(at).payloads)

    def _frame_of(self, window: Window, row: Rows) -> Frame:
        at, length, packet = int(row[f.AT]), int(row[f.LENGTH]), window.packets[row[f.PACKET]]
        number = int(packet[k.NUMBER])
        place = Place(number, int(packet[k.TIME]), number, self.files[packet[k.FILE]])
        return Frame(window.data[at : at + length].tobytes(), length, 0, place)


def _failed(window: Window, responses: _Frames) -> _Mask:
    """Which responses have an error, at the top level or below."""
    rows = responses.rows
    failed: _Mask = window.present[rows[:, f.PROGRAM], p.ERROR_CODE] & (rows[:, f.NOTED + p.ERROR_CODE] != 0)
    failed |= rows[:, f.NOTED + p.PARTITION_ERRORS] != 0
    return failed


def _accepted(rows: Rows) -> Rows:
    """Rows that were not left to the slow path."""
    accepted = rows[:, f.PROGRAM] >= 0
    return rows if accepted.all() else rows[accepted]


def _pair(message: Response | NoResponse) -> tuple[Request, Response | None]:
    return message.request, message if isinstance(message, Response) else None


class _Frames:
    """Requests or responses of a window, and their common columns."""

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

    def numbers(self, requests: _Frames) -> dict[str, npt.NDArray[np.int64]]:
        """The columns that ``Wants`` sees."""
        of_request = {"api_key": f.KEY, "version": f.VERSION, "correlation_id": f.CORRELATION}
        values = {name: requests.rows[:, column] for name, column in of_request.items()}
        return values | {"packet": self._numbers, "time": self.time_ns // 1000}

    def payloads(self) -> Iterator[bytes]:
        """The frames, without their lengths."""
        for at, length in self.rows[:, [f.AT, f.LENGTH]].tolist():
            yield self._window.data[at : at + length].tobytes()

    def request_columns(self) -> _Columns:
        """Columns that come from the request."""
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
        values = pa.array([peers_columns(peers)[place] for peers in self._window.talks], kind)
        return values.take(pa.array(self.rows[:, f.TALK]))

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


def _exchange(responses: _Frames, requests: _Frames) -> _Columns:
    """The columns of requests with their responses."""

    def code() -> pa.Array:
        return responses.noted(p.ERROR_CODE, pa.int16())

    return requests.request_columns() | {
        "generation_id": lambda: _first_of(responses, requests),
        "response_file": responses.file,
        "response_packet": responses.packet,
        "response_time": responses.time,
        "response_bytes": lambda: responses.number(f.LENGTH, pa.int32()),
        "latency_ms": lambda: pa.array((responses.time_ns - requests.time_ns) / 1e6),
        "error_code": code,
        "error": lambda: _named(code(), error_name),
        "partition_errors": lambda: responses.number(f.NOTED + p.PARTITION_ERRORS, pa.int32()),
    }


def _first_of(responses: _Frames, requests: _Frames) -> pa.Array:
    """The generation in the response or, if there is none, in the request."""
    import pyarrow.compute  # here, for it takes a while to import

    return pyarrow.compute.coalesce(*(frames.noted(p.GENERATION_ID, pa.int32()) for frames in (responses, requests)))


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
