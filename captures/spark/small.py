"""Captures of few requests are decoded in the driver, by the code of the tasks: no worker starts; Sail or Java does
meanwhile. They are read in one pass, in bounded memory, whatever their size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from kce.captures.spark.source import files
from kce.captures.spark.work import File
from kce.captures.tables.rows import DECODED
from kce.captures.tables.tabulate import Evidence

#: Maximum bytes of the files, or else tasks on all cores do it sooner.
MAX_BYTES = 1024 * 1024 * 1024
#: Maximum bytes of decoded rows, which are kept: some 500,000 requests. Analyses need a multiple of that.
MAX_DECODED_BYTES = 192 * 1024 * 1024
#: Maximum bytes of partition states among them, of which analyses make rows: some 1,000,000.
MAX_STATES_BYTES = 128 * 1024 * 1024
#: The same for one task of Spark, which takes ten times as long for a row as Sail: some 100,000.
_STATES_BYTES_OF_ONE_TASK = 12 * 1024 * 1024


def decode(paths: Sequence[str], *, evidence: Evidence = "none", ports: Collection[int] = ()) -> pa.Table | None:
    """DECODED rows of captures, equal to ``reassembly.decode``; None if they are too many for one process."""
    rows: list[pa.RecordBatch] = []
    size = of_states = 0
    for batch in _decoded(files(paths, str(Path.cwd())), evidence, ports):
        rows.append(batch.select(DECODED.schema.names))
        size += batch.nbytes
        of_states += batch.column("states").nbytes
        if size > MAX_DECODED_BYTES or of_states > MAX_STATES_BYTES:
            return None
    return pa.Table.from_batches(rows, DECODED.schema)


def is_for_one_task(table: pa.Table) -> bool:
    """Whether Spark is to analyse these rows in one task, without compiling queries."""
    return bool(table.column("states").nbytes <= _STATES_BYTES_OF_ONE_TASK)


def _decoded(captures: Sequence[File], evidence: Evidence, ports: Collection[int]) -> Iterator[pa.RecordBatch]:
    from kce.captures.exchanges.quality import Quality  # what follows is slow to import
    from kce.captures.fast.columns import Reading
    from kce.captures.fast.segment_counts import SegmentCounts
    from kce.captures.spark.buckets import of_connections
    from kce.captures.spark.levels import counted_blocks
    from kce.captures.tables.tabulate import quality_row

    quality = Quality()
    names = [capture.name for capture in captures]
    counts = SegmentCounts(names)
    blocks = counts.passing(counted_blocks(captures, ports, quality))
    yield from of_connections(Reading(blocks, names, quality, ports=ports), counts, evidence)
    yield DECODED.batch([quality_row(quality.to_json())])
