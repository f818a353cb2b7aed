"""Packets as Arrow: the rows that ``captures.tables.tabulate`` makes one by one.

with CaptureFile("incident.pcapng") as capture:
    for batch in packet_batches(capture): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kce.captures.fast.blocks import Flows, Rows, packet_at
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.tables.rows import PACKETS, TIME
from kce.captures.tables.tabulate import packet_row
from kce.captures.tcp.segment_kernels import dissect
from kce.captures.tcp.segments import Dissector, Segment

#: columns of PACKETS that are numbers of a packet's row
_NUMBERS = {"packet": k.NUMBER, "time_ns": k.TIME, "sequence": k.SEQUENCE, "acknowledgement": k.ACKNOWLEDGEMENT,
            "flags": k.FLAGS, "cut": k.CUT}  # fmt: skip


def packet_batches(
    capture: CaptureFile,
    names: frozenset[str] | None = None,
    wants: Callable[[Mapping[str, npt.NDArray[np.int64]]], npt.NDArray[np.bool_]] | None = None,
) -> Iterator[pa.RecordBatch]:
    """PACKETS of a capture, or of the split of it that was opened, without rows for what is wrong with it.

    ``names`` selects columns. ``wants`` selects segments by their numeric columns, with ``time`` in microseconds,
    before rows are built; packets that are no segments are always included.
    """
    dissector = Dissector(capture.name)
    flows = Flows()
    table = PACKETS.of(names)
    columns = [column.name for column in table.columns]
    for stretch in capture.stretches():
        if isinstance(stretch, Packet):
            segment = dissector.dissect(stretch)
            if stretch.number >= capture.first:
                yield PACKETS.batch([packet_row(capture.name, stretch, segment)]).select(columns)
            continue
        data, packets = stretch
        unsure: dict[int, Segment | str] = {}
        if dissect(data, packets):
            for index in np.flatnonzero(packets[:, k.KIND] == k.UNSURE).tolist():
                unsure[index] = dissector.dissect(packet_at(data, packets[index]))
        wanted = packets[:, k.NUMBER] >= capture.first
        rows = [
            packet_row(capture.name, packet_at(data, packets[index]), segment)
            for index, segment in unsure.items()
            if wanted[index]
        ]
        wanted &= packets[:, k.KIND] == k.SEGMENT
        if wants is not None:
            numbers = {name: packets[:, column] for name, column in _NUMBERS.items()}
            wanted &= wants(numbers | {"time": packets[:, k.TIME] // 1000})
        segments = packets if wanted.all() else packets[wanted]
        made = _segment_columns(capture.name, data, segments, flows)
        arrays = [
            made[c.name]().cast(c.type) if c.name in made else pa.nulls(len(segments), c.type) for c in table.columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=table.schema)
        yield pa.concat_batches([batch, PACKETS.batch(rows).select(columns)]) if rows else batch


def _segment_columns(
    file: str, data: npt.NDArray[np.uint8], packets: Rows, flows: Flows
) -> dict[str, Callable[[], pa.Array]]:
    indexes, directions = flows.directions(packets)
    place = pa.array(np.ascontiguousarray(indexes))
    times = np.ascontiguousarray(packets[:, k.TIME])

    def payload() -> pa.Array:
        size = packets[:, k.SIZE]
        ends = np.zeros(len(packets) + 1, np.int32)
        np.cumsum(size, out=ends[1:])
        out = np.empty(ends[-1], np.uint8)
        k.gather(data, packets[:, k.PAYLOAD], size, out)
        return pa.Array.from_buffers(pa.binary(), len(packets), [None, pa.py_buffer(ends), pa.py_buffer(out)])

    def of_ends(which: int, kind: pa.DataType) -> pa.Array:
        return pa.array([each[which] for each in directions], kind).take(place)

    def number(column: int) -> pa.Array:
        return pa.array(np.ascontiguousarray(packets[:, column]))

    return {
        "file": lambda: pa.repeat(pa.scalar(file), len(packets)),
        "time": lambda: pa.array(times // 1000).cast(TIME),
        "connection": lambda: of_ends(0, pa.string()),
        "source": lambda: of_ends(1, pa.string()),
        "source_port": lambda: of_ends(2, pa.int32()),
        "destination": lambda: of_ends(3, pa.string()),
        "destination_port": lambda: of_ends(4, pa.int32()),
        "payload": payload,
        **{name: functools.partial(number, column) for name, column in _NUMBERS.items()},
    }
