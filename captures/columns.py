"""Packets, frames, exchanges and partitions as Arrow, by the thousand: the columns of ``captures.rows``.

    with CaptureFile("incident.pcapng") as capture:
        for batch in packet_batches(capture): ...

    reading = Reading(capture)
    for window in reading.windows():
        reading.frames(window), reading.exchanges(window), reading.partitions(window)

The rows are those that ``captures.tabulate`` makes of the exact code's messages, and of these they are made where the
fast lane (``captures.bulk``) has left something to it. Their order is that of completion within a connection, but for
rows of that kind, which come last in their batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import wire
from captures import body_programs as p
from captures import frame_kernels as f
from captures import packet_kernels as k
from captures.bulk import FastLane, Rows, Window, address_of
from captures.exchanges import NoResponse, Peers, Request, Response, read_request, read_response
from captures.framing import Frame
from captures.pcap import CaptureFile, Packet
from captures.rows import EXCHANGES, FRAMES, PACKETS, PARTITIONS, TIME, Table
from captures.segments import Dissector, Place, Segment, address_text
from captures.tabulate import connection_text, exchange_row, frame_row, packet_row, partition_rows
from wire import error_name
from wire.registry import BY_KEY, CONTROL_REQUESTS, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA

_Mask = npt.NDArray[np.bool_]


def read_exchanges(location: str) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """EXCHANGES and PARTITIONS of one capture, some MiB of it at a time. Raises CaptureError for what is none."""
    with CaptureFile(location) as capture:
        reading = Reading(capture)
        for window in reading.windows():
            yield reading.exchanges(window), reading.partitions(window)


class Reading(FastLane):
    """A fast lane whose windows can be had as tables."""

    def frames(self, window: Window) -> pa.RecordBatch:
        """FRAMES, without bodies."""
        requests = _read(window.requests)
        responses = _read(window.responses)
        rows = [frame_row(message) for message in window.messages if not isinstance(message, NoResponse)]
        if not (len(requests) or len(responses)):
            return FRAMES.batch(rows)
        asked = _Frames(window, requests, self.name).columns(FRAMES)
        answered = _Frames(window, responses, self.name)
        of = _Frames(window, window.requests[responses[:, f.PARTNER]], self.name)
        told = of.columns(FRAMES) | answered.place("packet", "time")
        told |= {
            "is_response": pa.repeat(pa.scalar(True), len(responses)),
            "frame_bytes": answered.number(f.LENGTH, pa.int32()),
            "request_file": of.file(),
            "request_packet": of.packet(),
            "error_code": answered.noted(p.ERROR_CODE, pa.int16()),
        }
        return _joined(FRAMES, asked, told, rows)

    def exchanges(self, window: Window) -> pa.RecordBatch:
        """EXCHANGES."""
        responses = _read(window.responses)
        requests = window.requests[responses[:, f.PARTNER]]
        unanswered = window.requests[
            (window.requests[:, f.PARTNER] == f.NOT_ANSWERED) & (window.requests[:, f.PROGRAM] >= 0)
        ]
        rows = [exchange_row(*_pair(message)) for message in window.messages if not isinstance(message, Request)]
        if not (len(responses) or len(unanswered)):
            return EXCHANGES.batch(rows)
        asked, answered = _Frames(window, requests, self.name), _Frames(window, responses, self.name)
        code = answered.noted(p.ERROR_CODE, pa.int16())
        told = asked.columns(EXCHANGES) | answered.place("response_packet", "response_time")
        told |= {
            "generation_id": _first_of(answered, asked),
            "response_file": answered.file(),
            "response_bytes": answered.number(f.LENGTH, pa.int32()),
            "latency_ms": pa.array((answered.time_ns - asked.time_ns) / 1e6),
            "error_code": code,
            "error": _named(code, error_name),
            "partition_errors": answered.number(f.NOTED + p.PARTITION_ERRORS, pa.int32()),
        }
        return _joined(EXCHANGES, told, _Frames(window, unanswered, self.name).columns(EXCHANGES), rows)

    def partitions(self, window: Window) -> pa.RecordBatch:
        """PARTITIONS."""
        responses = _read(window.responses)
        keys = window.requests[responses[:, f.PARTNER], f.KEY]
        batches = self._updates(window, responses[keys == UPDATE_METADATA])
        pairs: list[tuple[Request, Response | None]] = []
        for response in responses[(keys == LEADER_AND_ISR) | (keys == STOP_REPLICA)]:
            row = window.requests[response[f.PARTNER]]
            request = read_request(window.talks[row[f.TALK]], self._frame_of(window, row))
            pairs.append((request, read_response(request, self._frame_of(window, response))))
        pairs += [_pair(message) for message in window.messages if not isinstance(message, Request)]
        rows = [row for pair in pairs for row in partition_rows(*pair)]
        if rows or not batches:
            batches.append(PARTITIONS.batch(rows))
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def _updates(self, window: Window, responses: Rows) -> list[pa.RecordBatch]:
        """What UpdateMetadata requests say, whose responses tell nothing of partitions: each version's at once."""
        batches = []
        for version in np.unique(responses[:, f.VERSION]).tolist():
            of_version = responses[responses[:, f.VERSION] == version]
            requests = window.requests[of_version[:, f.PARTNER]]
            frames = [window.data[row[f.AT] : row[f.AT] + row[f.LENGTH]].tobytes() for row in requests]
            said = wire.columns(UPDATE_METADATA, version, frames)
            request_of = pa.array(said["topic_request"][said["topic"]])
            asked, answered = _Frames(window, requests, self.name), _Frames(window, of_version, self.name)
            told = asked.columns(PARTITIONS)
            told["response_error_code"] = answered.noted(p.ERROR_CODE, pa.int16())
            batches.append(_batch(PARTITIONS, {name: of.take(request_of) for name, of in told.items()} | _states(said)))
        return batches

    def _frame_of(self, window: Window, row: Rows) -> Frame:
        at, length, packet = int(row[f.AT]), int(row[f.LENGTH]), window.packets[row[f.PACKET]]
        number = int(packet[k.NUMBER])
        place = Place(number, int(packet[k.TIME]), number, self.name)
        return Frame(window.data[at : at + length].tobytes(), length, 0, place)


def _read(rows: Rows) -> Rows:
    """Those that were not left to the exact code."""
    read = rows[:, f.PROGRAM] >= 0
    return rows if read.all() else rows[read]


def _pair(message: Response | NoResponse) -> tuple[Request, Response | None]:
    return message.request, message if isinstance(message, Response) else None


class _Frames:
    """Rows of one kind, and the columns that they have in common."""

    def __init__(self, window: Window, rows: Rows, file: str) -> None:
        self._window = window
        self._rows = rows
        self._file = file
        packets = rows[:, f.PACKET]
        self._numbers, self.time_ns = window.packets[packets, k.NUMBER], window.packets[packets, k.TIME]

    def columns(self, table: Table) -> dict[str, pa.Array]:
        """Those of ``table`` that a request tells."""
        rows = self._rows
        keys = rows[:, f.KEY]
        made: dict[str, Callable[[], pa.Array]] = {
            "file": self.file,
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
        found = {name: made[name]() for name in (column.name for column in table.columns) if name in made}
        return found | self.place("packet", "time") | self._ends()

    def _ends(self) -> dict[str, pa.Array]:
        talks = pa.array(self._rows[:, f.TALK])
        told = [_told(peers) for peers in self._window.talks]
        kinds = {"connection": pa.string(), "client": pa.string(), "client_port": pa.int32(), "server": pa.string(),
                 "server_port": pa.int32()}  # fmt: skip
        return {
            name: pa.array([each[place] for each in told], kind).take(talks)
            for place, (name, kind) in enumerate(kinds.items())
        }

    def file(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._file), len(self._rows))

    def packet(self) -> pa.Array:
        return pa.array(self._numbers)

    def place(self, packet: str, time: str) -> dict[str, pa.Array]:
        return {packet: self.packet(), time: pa.array(self.time_ns // 1000).cast(TIME)}

    def number(self, column: int, kind: pa.DataType) -> pa.Array:
        return pa.array(np.ascontiguousarray(self._rows[:, column])).cast(kind)

    def has(self, value: int) -> _Mask:
        """Whether messages of that kind have the value at all."""
        found: _Mask = self._window.present[self._rows[:, f.PROGRAM], value]
        return found

    def noted(self, value: int, kind: pa.DataType) -> pa.Array:
        return pa.array(np.ascontiguousarray(self._rows[:, f.NOTED + value]), mask=~self.has(value)).cast(kind)

    def text(self, value: int) -> pa.Array:
        at, size = self._rows[:, f.NOTED + value], self._rows[:, f.NOTED + value + 1]
        ends = np.zeros(len(at) + 1, np.int32)
        np.cumsum(np.maximum(size, 0), out=ends[1:])
        data = np.empty(ends[-1], np.uint8)
        k.gather(self._window.data, at, size, data)
        null = size < 0
        valid = pa.array(~null).buffers()[1] if null.any() else None
        return pa.Array.from_buffers(pa.string(), len(at), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def _told(peers: Peers) -> tuple[str, str, int, str, int]:
    client, server = peers.client, peers.server
    return connection_text(client, server), address_text(client[0]), client[1], address_text(server[0]), server[1]


def _first_of(answered: _Frames, asked: _Frames) -> pa.Array:
    """The generation that a response tells or, if it tells none, its request."""
    import pyarrow.compute  # here, for it takes a while to import

    return pyarrow.compute.coalesce(*(frames.noted(p.GENERATION_ID, pa.int32()) for frames in (answered, asked)))


def _named(numbers: pa.Array, name: Callable[[int], str]) -> pa.Array:
    """A name for each number; null for null."""
    encoded = numbers.dictionary_encode()
    names = pa.array([name(number) for number in encoded.dictionary.to_pylist()], pa.string())
    return names.take(encoded.indices)


def _states(said: dict[str, npt.NDArray[Any]]) -> dict[str, pa.Array]:
    """The states of partitions in UpdateMetadata requests."""
    topics = pa.array(said["topic"])
    ids = said.get("topic_id")
    texts = [None] * len(said["topic_name"]) if ids is None else [_topic_id(bytes(each)) for each in ids]
    numbers = {"partition": "partition_index", "decision_epoch": "controller_epoch", "leader": "leader",
               "leader_epoch": "leader_epoch", "partition_epoch": "zk_version"}  # fmt: skip
    nobody = np.zeros(len(topics) + 1, np.int32)
    return {
        "topic": pa.array(said["topic_name"], pa.string()).take(topics),
        "topic_id": pa.array(texts, pa.string()).take(topics),
        **{name: pa.array(said[field]) for name, field in numbers.items()},
        **{
            name: pa.ListArray.from_arrays(
                said.get(f"{name}_offsets", nobody).astype(np.int32), said.get(name, np.zeros(0, np.int32))
            )
            for name in ("isr", "replicas", "offline_replicas")
        },
    }


def _topic_id(data: bytes) -> str | None:
    return str(uuid.UUID(bytes=data)) if any(data) else None


def _batch(table: Table, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """Missing columns are null."""
    count = len(columns["packet"])
    arrays = [columns[c.name].cast(c.type) if c.name in columns else pa.nulls(count, c.type) for c in table.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _joined(
    table: Table, one: dict[str, pa.Array], other: dict[str, pa.Array], rows: list[tuple[Any, ...]]
) -> pa.RecordBatch:
    """A batch of both and of rows."""
    batches = [_batch(table, part) for part in (one, other) if len(part["packet"])]
    if rows or not batches:
        batches.append(table.batch(rows))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# packets


def packet_batches(capture: CaptureFile) -> Iterator[pa.RecordBatch]:
    """PACKETS of a capture, or of the split of it that was opened, without rows for what is wrong with it."""
    dissector = Dissector(capture.name)
    flows = Flows()
    for stretch in capture.stretches():
        if isinstance(stretch, Packet):
            segment = dissector.dissect(stretch)
            if stretch.number >= capture.first:
                yield PACKETS.batch([packet_row(capture.name, stretch, segment)])
            continue
        data, packets = stretch
        unsure: dict[int, Segment | str] = {}
        if k.dissect(data, packets):
            for index in np.flatnonzero(packets[:, k.KIND] == k.UNSURE).tolist():
                unsure[index] = dissector.dissect(packet_at(data, packets[index]))
        wanted = packets[:, k.NUMBER] >= capture.first
        rows = [
            packet_row(capture.name, packet_at(data, packets[index]), segment)
            for index, segment in unsure.items()
            if wanted[index]
        ]
        segments = packets[wanted & (packets[:, k.KIND] == k.SEGMENT)]
        yield _joined(PACKETS, _segment_columns(capture.name, data, segments, flows), {"packet": pa.nulls(0)}, rows)


def packet_at(data: npt.NDArray[np.uint8], packet: Rows) -> Packet:
    """The packet of a row."""
    number, time_ns, link_type, at, captured, wire_bytes = packet[k.NUMBER : k.WIRE + 1].tolist()
    return Packet(number, time_ns, link_type, data[at : at + captured].tobytes(), wire_bytes)


class Flows:
    """The connections of a stretch, each with its texts in both directions."""

    def __init__(self) -> None:
        self._flows = np.zeros((1024, f.FLOW_COLUMNS), np.int64)

    def directions(self, packets: Rows) -> tuple[npt.NDArray[np.int64], list[tuple[str, str, int, str, int]]]:
        """(for each packet the place of its direction among these, their connection and ends)."""
        while True:
            table = np.full(4 * len(self._flows), -1, np.int64)
            used = f.number_flows(packets, self._flows, table)
            if used >= 0:
                break
            self._flows = np.zeros((2 * len(self._flows), f.FLOW_COLUMNS), np.int64)
        told = []
        for low_high, low_low, high_high, high_low, ports in self._flows[:used, : f.BOTH_PORTS + 1].tolist():
            lower = address_of(low_high, low_low, ports), ports >> k.PORT_BITS & 0xFFFF
            higher = address_of(high_high, high_low, ports), ports & 0xFFFF
            text = connection_text(lower, higher)
            low, high = (address_text(lower[0]), lower[1]), (address_text(higher[0]), higher[1])
            told += [(text, *low, *high), (text, *high, *low)]
        return packets[:, k.FLOW], told


def _segment_columns(
    file: str, data: npt.NDArray[np.uint8], packets: Rows, flows: Flows
) -> dict[str, pa.Array]:  # fmt: skip
    directions, told = flows.directions(packets)
    place = pa.array(np.ascontiguousarray(directions))
    size = packets[:, k.SIZE]
    ends = np.zeros(len(packets) + 1, np.int32)
    np.cumsum(size, out=ends[1:])
    payload = np.empty(ends[-1], np.uint8)
    k.gather(data, packets[:, k.PAYLOAD], size, payload)
    times = np.ascontiguousarray(packets[:, k.TIME])
    kinds = {"connection": pa.string(), "source": pa.string(), "source_port": pa.int32(),
             "destination": pa.string(), "destination_port": pa.int32()}  # fmt: skip
    numbers = {"packet": k.NUMBER, "sequence": k.SEQUENCE, "acknowledgement": k.ACKNOWLEDGEMENT, "flags": k.FLAGS,
               "cut": k.CUT}  # fmt: skip
    return {
        "file": pa.repeat(pa.scalar(file), len(packets)),
        "time": pa.array(times // 1000).cast(TIME),
        "time_ns": pa.array(times),
        "payload": pa.Array.from_buffers(
            pa.binary(), len(packets), [None, pa.py_buffer(ends), pa.py_buffer(payload)]
        ),
        **{name: pa.array([each[i] for each in told], kinds[name]).take(place) for i, name in enumerate(kinds)},
        **{name: pa.array(np.ascontiguousarray(packets[:, column])) for name, column in numbers.items()},
    }  # fmt: skip
