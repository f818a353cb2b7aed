"""Large connections are cut: tasks look for places, and connections whose places were wrong are done again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kce.captures.errors import CaptureError
from kce.captures.files.locations import location_bytes
from kce.captures.files.split import WHOLE, Split
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.work import File
from kce.captures.tables.rows import DECODED

if TYPE_CHECKING:
    from kce.captures.fast.cuts import Chunk, Cut, Cuts, Flow, Sample

#: Fewer parts, or bytes of half as many, are not worth a job.
LEAST_PARTS = 32

#: Most tasks, samples and cuts: of more parts, every other one gives a sample, or fewer; and chunks become larger.
_MOST_TASKS = 10_000
_MOST_SAMPLED = 10_000
_MOST_CUTS = 10_000

#: How often chunks are reassembled again before a connection with refused cuts is not cut at all.
_MOST_AGAIN = 3

#: Bytes of a sample, and of the second one if the first has no place to cut.
_SAMPLE_BYTES = 1024 * 1024, 8 * 1024 * 1024

_Part = tuple[str, Split, int]


def samples(
    spark: SparkSession,
    files: Sequence[File],
    splits: Mapping[str, Sequence[Split]],
    target_bytes: int,
    ports: Collection[int],
) -> list[Sample]:
    """The large connections at the beginning of each part of each file; none if there are few parts, or small ones."""
    parts = list(_parts(files, splits))
    if len(parts) < LEAST_PARTS or sum(size for *_, size in parts) < LEAST_PARTS * target_bytes // 2:
        return []
    known = frozenset(ports)
    each = -(-len(parts) // _MOST_SAMPLED)
    parts = [(path, split, size * each) for path, split, size in parts[::each]]
    tasks = spark.sparkContext.parallelize(parts, min(len(parts), _MOST_TASKS))
    return tasks.flatMap(lambda part: _sampled(part, known)).collect()


def _parts(files: Sequence[File], splits: Mapping[str, Sequence[Split]]) -> Iterator[_Part]:
    for path in dict.fromkeys(file.path for file in files):
        size = location_bytes(path)
        for split in splits.get(path, [WHOLE]):
            yield path, split, (size if split.end is None else split.end) - split.begin


def _sampled(part: _Part, ports: Collection[int]) -> list[Sample]:
    # imported late: slow to import, and the driver does not need it
    from kce.captures.fast.blocks import first_block
    from kce.captures.fast.cuts import sampled
    from kce.captures.files.pcap import CaptureFile

    path, split, size = part
    found: list[Sample] = []
    try:
        for window_bytes in _SAMPLE_BYTES:
            with CaptureFile(path, split=split) as capture:
                block = first_block(capture, window_bytes, ports)
            found = [] if block is None else sampled(block, size)
            if all(sample.cut is not None for sample in found):
                break
    except CaptureError:
        return []  # the task that reads it reports the error
    return found


def joined(
    spark: SparkSession,
    reassembled: Callable[[Cuts | None], DataFrame],
    taken: Sequence[Sample],
    target_bytes: int,
    first_bucket: int,
) -> DataFrame:
    """DECODED rows of all connections, the large ones in chunks of about ``target_bytes``.

    ``reassembled`` makes CHUNKED rows of some chunks, and of what is not cut. Where a cut is refused, the chunks on
    both sides are reassembled again as one, until all cuts hold, or there are none.
    """
    # imported late: slow to import, and usually nothing is cut
    from kce.captures.fast.cuts import Cuts, chosen, chunks_of
    from kce.captures.spark.chunks import Found, holding, rows_of

    target_bytes = max(target_bytes, sum(sample.size for sample in taken) // _MOST_CUTS)
    held: Mapping[Flow, Sequence[Cut]] = chosen(taken, target_bytes)
    if not held:
        return reassembled(None)
    known: dict[Chunk, Found] = {}
    passes: list[tuple[DataFrame, dict[int, Chunk]]] = []
    cuts = Cuts(held, first_bucket)
    while True:
        rows, chunks = reassembled(cuts), cuts.chunks()
        passes.append((rows, chunks))
        texts = rows.where(f.col("chunk").isNotNull()).select("chunk").toArrow().column("chunk").to_pylist()
        known |= {chunks[found.bucket]: found for found in map(Found.from_json, texts)}
        held = holding(held, known)
        of_flows = {flow: chunks_of(flow, some) for flow, some in held.items()}
        if len(passes) > _MOST_AGAIN:
            held = {flow: some if known.keys() >= set(of_flows[flow]) else [] for flow, some in held.items()}
            of_flows = {flow: chunks_of(flow, some) for flow, some in held.items()}
        right = {chunk for of_flow in of_flows.values() for chunk in of_flow}
        if right <= known.keys():
            break
        cuts = Cuts(held, first_bucket).of_chunks(right - known.keys())
    parts = [
        _right(rows, [bucket for bucket, chunk in chunks.items() if chunk not in right]) for rows, chunks in passes
    ]
    whole = [row for flow, of_flow in of_flows.items() for row in rows_of(flow, [known[chunk] for chunk in of_flow])]
    made = spark.createDataFrame(pa.Table.from_batches([DECODED.batch(whole)]), spark_schema(DECODED))
    return functools.reduce(DataFrame.union, [*parts, made.select(parts[0].columns)])


def _right(rows: DataFrame, wrong: Sequence[int]) -> DataFrame:
    """The exchanges of chunks, except those of ``wrong`` buckets, and all of what is not cut."""
    kept = rows.where(f.col("chunk").isNull())
    if wrong:
        kept = kept.where(f.col("bucket").isNull() | ~f.col("bucket").isin(list(wrong)))
    return kept.drop("bucket", "chunk")
