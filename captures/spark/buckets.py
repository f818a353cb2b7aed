"""A reassembly task: BLOCKS rows in, sorted by bucket and time; DECODED rows out."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from kce.captures.exchanges.pairing import Peers
from kce.captures.exchanges.quality import Quality
from kce.captures.fast.blocks import in_time
from kce.captures.fast.columns import Reading
from kce.captures.fast.cuts import Cuts
from kce.captures.fast.divided import Buffer, undivided
from kce.captures.fast.segment_counts import SegmentCounts
from kce.captures.spark.chunks import Watch, exchanges, of_chunk
from kce.captures.tables.rows import CHUNKED, DECODED
from kce.captures.tables.tabulate import Evidence, connection_row, quality_row
from kce.captures.tcp.segments import connection_text

_BATCH_ROWS = 2000


class _Row(NamedTuple):
    """One of BLOCKS."""

    bucket: int
    begin_ns: int
    number: int
    rows: Buffer
    flows: Buffer
    payload: Buffer


def decoded(
    batches: Iterable[pa.RecordBatch], evidence: Evidence, names: frozenset[str] | None = None,
    ports: Collection[int] = (), cuts: Cuts | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """DECODED rows with the columns ``names`` (None: all), or CHUNKED ones where there are ``cuts``.

    ``ports`` are listener ports, if known.
    """
    given = [column.name for column in (DECODED if cuts is None else CHUNKED).of(names).columns]
    for bucket, batch in _decoded(batches, evidence, names, ports, cuts):
        if cuts is not None and "bucket" not in batch.schema.names:
            batch = batch.append_column("bucket", pa.array([bucket] * len(batch), pa.int32()))
            batch = batch.append_column("chunk", pa.nulls(len(batch), pa.string()))
        yield batch.select(given)


def _decoded(
    batches: Iterable[pa.RecordBatch], evidence: Evidence, names: frozenset[str] | None, ports: Collection[int],
    cuts: Cuts | None,
) -> Iterator[tuple[int | None, pa.RecordBatch]]:  # fmt: skip
    """(bucket of the chunk, if any, rows)"""
    quality = Quality()
    files: list[str] = []
    for bucket, of_bucket in itertools.groupby(_rows(batches, files, quality), key=lambda row: row.bucket):
        blocks = in_time(undivided(row.rows, row.flows, row.payload, row.begin_ns, row.number) for row in of_bucket)
        counts = SegmentCounts(files)
        chunk = None if cuts is None else cuts.chunk(bucket)
        if chunk is None:
            reading = Reading(counts.passing(blocks), files, quality, names=names, ports=ports)
            for batch in of_connections(reading, counts, evidence):
                yield None, batch
        else:
            watch = Watch(chunk)
            reading = Reading(counts.passing(watch.passing(blocks)), files, Quality(), names=names, ports=ports)
            for batch in of_chunk(bucket, watch, reading, counts, evidence):
                yield bucket, batch
    yield None, DECODED.batch([quality_row(quality.to_json())])


def _rows(batches: Iterable[pa.RecordBatch], files: list[str], quality: Quality) -> Iterator[_Row]:
    """The blocks; collects file names and the counts of reading tasks on the way."""
    for batch in batches:
        numbers = [batch.column(name).to_pylist() for name in ("bucket", "begin_ns", "number", "file", "quality")]
        data = [batch.column(name) for name in ("rows", "flows", "payload")]
        for at, (bucket, begin_ns, number, file, counted) in enumerate(zip(*numbers, strict=True)):
            if counted is not None:
                quality.add(Quality.from_json(counted))
                continue
            files += [""] * (number + 1 - len(files))
            files[number] = file
            yield _Row(bucket, begin_ns, number, *(column[at].as_buffer() for column in data))


def of_connections(reading: Reading, counts: SegmentCounts, evidence: Evidence) -> Iterator[pa.RecordBatch]:
    """DECODED rows of the connections that are read: their exchanges, and then a row for each."""
    of_kafka: set[str] = set()

    def ended(peers: Peers) -> None:
        of_kafka.add(connection_text(peers.client, peers.server))

    reading.assembly.ended = ended
    yield from exchanges(reading, evidence)
    rows = []
    for ends, columns in counts.connections():
        text = connection_text(*ends)
        rows.append(connection_row((text, text in of_kafka, *columns)))
        if len(rows) >= _BATCH_ROWS:
            yield DECODED.batch(rows)
            rows.clear()
    if rows:
        yield DECODED.batch(rows)
