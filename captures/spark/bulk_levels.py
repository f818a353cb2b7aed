"""The rows of one capture at each level, by the thousand (``captures.columns``): equal to what ``levels`` makes one by
one, which it does for several captures and for bodies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from captures import packet_kernels as kernels
from captures.columns import Flows, Reading
from captures.columns import packet_batches as packet_columns
from captures.pcap import WINDOW_BYTES, CaptureFile, Packet
from captures.walkers import Stretch

#: How a level's row tells why something was not decoded, and the place of that.
_WRONG = {
    "frames": (("decode_error", "file", "packet"),),
    "exchanges": (("request_error", "file", "packet"), ("response_error", "response_file", "response_packet")),
    "partitions": (),
}


def packets(capture: CaptureFile) -> Iterator[pa.RecordBatch]:
    """PACKETS."""
    return packet_columns(capture)


def messages(level: str, capture: ChosenConnections) -> Iterator[pa.RecordBatch]:
    """Frames, exchanges or partitions of the chosen connections, with ``_corrupt_record``."""
    reading = Reading(capture)
    make: Callable[..., pa.RecordBatch] = getattr(reading, level)
    for window in reading.windows():
        if len(window.requests) or len(window.responses) or window.messages:
            yield _with_corrupt(level, capture.of(make(window)))


class ChosenConnections(CaptureFile):
    """A capture of which those packets are given that are of a connection (by its text) that is ``chosen``.

    What is no plain segment is given, too: fragments may be of any connection. So rows have to be chosen again.
    """

    def __init__(self, path: str, name: str, chosen: Callable[[str], bool] | None) -> None:
        super().__init__(path, name)
        self._chosen = chosen
        self._flows = Flows()

    def stretches(self, window_bytes: int = WINDOW_BYTES) -> Iterator[Stretch | Packet]:
        for stretch in super().stretches(window_bytes):
            if self._chosen is None or isinstance(stretch, Packet):
                yield stretch
            else:
                yield stretch._replace(packets=self._of(stretch.data, stretch.packets))

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those rows that are of a chosen connection."""
        if self._chosen is None:
            return rows
        return rows.filter(matching(rows.column("connection"), self._chosen))

    def _of(self, data: npt.NDArray[np.uint8], packets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        assert self._chosen is not None
        if kernels.dissect(data, packets):
            packets[packets[:, kernels.KIND] != kernels.SEGMENT, kernels.SOURCE_HIGH : kernels.PORTS + 1] = 0
        _, told = self._flows.directions(packets)
        kept = np.array([self._chosen(text) for text, *_ in told[::2]], np.bool_)
        return packets[: _choose(packets, kept)]


@kernels.compiled
def _choose(packets, kept):  # type: ignore[no-untyped-def]
    """Move the packets that are no segments, or of connections that are kept, to the front. How many they are."""
    count = 0
    for index in range(len(packets)):
        packet = packets[index]
        if packet[kernels.KIND] != kernels.SEGMENT or kept[packet[kernels.FLOW] >> 1]:
            if count < index:
                packets[count] = packet
            count += 1
    return count


def is_of(share: tuple[int, int], connection: str) -> bool:
    """Whether the connection is of that share (number, of how many)."""
    number, of = share
    return zlib.crc32(connection.encode()) % of == number


def matching(column: pa.Array, holds: Callable[..., bool]) -> pa.Array:
    """For each value whether it ``holds``, which is asked once of each value that there is."""
    encoded = column.dictionary_encode()
    verdicts = pa.array([holds(value) for value in encoded.dictionary.to_pylist()], pa.bool_())
    found = verdicts.take(encoded.indices)
    return found.fill_null(holds(None)) if column.null_count else found


def _with_corrupt(level: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    told: list[str | None] | None = None
    for error, file, packet in _WRONG[level]:
        column = rows.column(error)
        if column.null_count == len(column):
            continue
        told = told or [None] * len(column)
        names, numbers = rows.column(file), rows.column(packet)
        for at in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
            told[at] = told[at] or f"{names[at]}: packet {numbers[at]}: {column[at]}"
    corrupt = pa.nulls(len(rows), pa.string()) if told is None else pa.array(told, pa.string())
    return rows.append_column("_corrupt_record", corrupt)
