"""Large connections are cut: tasks look for places, and connections whose places were wrong are done again."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

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
    from kce.captures.fast.cuts import Cuts, Sample

#: Fewer parts are not worth a job.
LEAST_PARTS = 32

#: Most tasks, samples and cuts: of more parts, every other one gives a sample, or fewer; and chunks become larger.
_MOST_TASKS = 10_000
_MOST_SAMPLED = 20_000
_MOST_CUTS = 10_000

#: Bytes of a sample, and of the second one if the first has no place to cut.
_SAMPLE_BYTES = 1024 * 1024, 8 * 1024 * 1024

_Part = tuple[str, Split, int]


def samples(
    spark: SparkSession, files: Sequence[File], splits: Mapping[str, Sequence[Split]], ports: Collection[int]
) -> list[Sample]:
    """The large connections at the beginning of each part of each file; none if there are few parts."""
    parts = list(_parts(files, splits))
    if len(parts) < LEAST_PARTS:
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


class Reassembled(Protocol):
    """Reassembles the connections ``only``, or all; with ``cuts`` rows are CHUNKED, otherwise DECODED."""

    def __call__(self, cuts: Cuts | None = None, only: Sequence[str] = ()) -> DataFrame: ...


def joined(
    spark: SparkSession, reassembled: Reassembled, taken: Sequence[Sample], target_bytes: int, first_bucket: int
) -> DataFrame:
    """DECODED rows of all connections, the large ones in chunks of about ``target_bytes``.

    Connections with refused cuts are reassembled again, first with the other cuts, and then with none.
    """
    # imported late: slow to import, and usually nothing is cut
    from kce.captures.fast.cuts import Cuts, chosen, text_of
    from kce.captures.spark.chunks import Found, verified

    target_bytes = max(target_bytes, sum(sample.size for sample in taken) // _MOST_CUTS)
    cuts = Cuts(chosen(taken, target_bytes), first_bucket)
    only: list[str] = []
    parts: list[DataFrame] = []
    while cuts:
        rows = reassembled(cuts, only)
        found = rows.where(f.col("chunk").isNotNull()).select("chunk").toArrow()
        whole, refused = verified(map(Found.from_json, found.column("chunk").to_pylist()), cuts)
        cuts = Cuts({} if only else refused, first_bucket)
        only = [text_of(flow) for flow in refused]
        is_right = f.col("connection").isNull() | ~f.col("connection").isin(only)
        parts.append(rows.where(f.col("chunk").isNull() & is_right).drop("chunk"))
        made = spark.createDataFrame(pa.Table.from_batches([DECODED.batch(whole)]), spark_schema(DECODED))
        parts.append(made.select(parts[0].columns))
        if not refused:
            return functools.reduce(DataFrame.union, parts)
    return functools.reduce(DataFrame.unionByName, [reassembled(None, only), *parts])
