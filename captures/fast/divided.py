"""Blocks of TCP segments, divided by connection for a shuffle, and restored on the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kce.captures.fast import block_kernels as b
from kce.captures.fast.blocks import NOTHING_KNOWN, Block, Flows, Rows
from kce.captures.files import packet_kernels as k

#: Bytes that numpy can map.
Buffer = Any


class Divided(NamedTuple):
    """The segments of a block by bucket of their connection. ``buckets`` are the nonempty ones.

    Bucket i's are ``rows[row_ends[i] : row_ends[i + 1]]``, and so on; ``flows`` are its connections, ``payload`` the
    data of its segments one behind the other. ``begin_ns`` and ``first`` belong to the first row.
    """

    buckets: npt.NDArray[np.int64]
    begin_ns: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    rows: Rows
    row_ends: npt.NDArray[np.int64]
    flows: Rows
    flow_ends: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]
    payload_ends: npt.NDArray[np.int64]


#: (packets, connections, bucket of each, begin_ns) -> the first three: see ``cuts``
Cutting = Callable[[Rows, Rows, Rows, int], tuple[Rows, Rows, Rows]]


class Divider:
    """Divides blocks among ``count`` buckets; a connection has the same bucket in every capture, unless it is cut."""

    def __init__(self, count: int, cutting: Cutting | None = None) -> None:
        self._count = count
        self._cutting = cutting
        self._flows = Flows()

    def divide(self, block: Block) -> Divided:
        packets = block.packets[: b.keep_share(block.packets, 0, 1, *NOTHING_KNOWN)]
        flows = self._flows.number(packets)[:, : b.PACKED_FLOW]
        of_flow = np.empty(len(flows), np.int64)
        b.buckets_of(flows, self._count, of_flow)
        if self._cutting is not None:
            packets, flows, of_flow = self._cutting(packets, flows, of_flow, block.begin_ns)
        order = np.argsort(of_flow, kind="stable")
        buckets, flow_begins = np.unique(of_flow[order], return_index=True)
        places = np.searchsorted(buckets, of_flow)
        ranks = np.empty(len(flows), np.int64)
        ranks[order] = np.arange(len(flows)) - flow_begins[places[order]]
        rows = np.empty((len(packets), b.PACKED_COLUMNS), np.int64)
        payload = np.empty(int(packets[:, k.SIZE].sum()), np.uint8)
        row_ends, payload_ends = np.zeros((2, len(buckets) + 2), np.int64)
        b.pack(block.data, packets, places, ranks, rows, row_ends, payload, payload_ends)
        row_ends, payload_ends = row_ends[:-1], payload_ends[:-1]
        first, begin_ns = rows[row_ends[:-1], 0], np.maximum(rows[row_ends[:-1], 1], block.begin_ns)
        flow_ends = np.append(flow_begins, len(flows))
        return Divided(
            buckets, begin_ns, first, rows, row_ends, np.ascontiguousarray(flows[order]), flow_ends, payload,
            payload_ends,
        )  # fmt: skip


def undivided(rows: Buffer, flows: Buffer, payload: Buffer, begin_ns: int, file: int) -> Block:
    """The block of one bucket, from its parts of ``Divided``."""
    packed = np.frombuffer(rows, np.int64).reshape(-1, b.PACKED_COLUMNS)
    packets = np.empty((len(packed), k.COLUMNS), np.int64)
    b.unpack(packed, np.frombuffer(flows, np.int64).reshape(-1, b.PACKED_FLOW), file, packets)
    return Block(np.frombuffer(payload, np.uint8), packets, begin_ns)
