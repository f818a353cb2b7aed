"""Small captures are decoded in the driver, by the code of the tasks: no worker starts; Sail or Java does meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from kce.captures.spark.source import files
from kce.captures.tables.rows import BLOCKS, DECODED
from kce.captures.tables.tabulate import Evidence

#: Maximum bytes of segments that are kept at once, and of decoded rows: a compressed file may hold far more than its
#: size.
MAX_SEGMENT_BYTES = 256 * 1024 * 1024
MAX_DECODED_BYTES = 48 * 1024 * 1024

_ORDER = [(name, "ascending") for name in ("bucket", "begin_ns", "number", "packet")]


def decode(paths: Sequence[str], *, evidence: Evidence = "none", ports: Collection[int] = ()) -> pa.Table | None:
    """DECODED rows of captures, equal to ``reassembly.decode``; None if they are too many for one process."""
    from kce.captures.spark.buckets import decoded  # slow to import

    blocks: list[pa.RecordBatch] = []
    for batch in _blocks(paths, ports):
        blocks.append(batch)
        if sum(each.nbytes for each in blocks) > MAX_SEGMENT_BYTES:
            return None
    rows: list[pa.RecordBatch] = []
    size = 0
    for batch in decoded(
        pa.Table.from_batches(blocks, BLOCKS.schema).sort_by(_ORDER).to_batches(), evidence, None, ports
    ):
        rows.append(batch)
        size += batch.nbytes
        if size > MAX_DECODED_BYTES:
            return None
    return pa.Table.from_batches(rows, DECODED.schema)


def _blocks(paths: Sequence[str], ports: Collection[int]) -> Iterator[pa.RecordBatch]:
    from kce.captures.files.split import WHOLE
    from kce.captures.spark.levels import block_batches

    for number, file in enumerate(files(paths, str(Path.cwd()))):
        yield from block_batches(file, number, WHOLE, 1, ports)
