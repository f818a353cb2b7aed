"""Compiles the kernels that ordinary captures need, and keeps them below $XDG_CACHE_HOME; `make setup` does.

python -m kce.captures.spark.compile_kernels
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from kce.captures.exchanges.render import Renderer
from kce.captures.exchanges.selection import Selection
from kce.captures.fast.lines import lines
from kce.captures.fast.messages import BulkDecoder
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.split import WHOLE
from kce.captures.spark import small
from kce.captures.spark.buckets import decoded
from kce.captures.spark.levels import block_batches
from kce.captures.spark.work import File

SAMPLES = Path(__file__).parents[1] / "samples"
#: both formats, with and without topic ids
OF_BOTH_FORMATS = ("kafka-3.9.1-tour.pcap.gz", "kafka-2.8.2-tour.pcapng.gz")


def main() -> None:
    names = [str(SAMPLES / name) for name in OF_BOTH_FORMATS]
    for name in names:
        with CaptureFile(name) as capture:
            decoder = BulkDecoder(capture)
            for _ in lines(decoder, Renderer(decoder.cluster, colour=False), Selection()):
                pass
    small.decode(names)
    decode_as_tasks(names)


def decode_as_tasks(names: list[str]) -> int:
    """Read as Spark's tasks do, and reassemble as others do. Returns the number of rows."""
    blocks: list[pa.RecordBatch] = []
    for number, name in enumerate(names):
        blocks += block_batches(File(name, name), number, WHOLE, 1)
    table = pa.Table.from_batches(blocks).sort_by(
        [(column, "ascending") for column in ("begin_ns", "number", "packet")]
    )
    return sum(map(len, decoded(table.to_batches(), "none")))


if __name__ == "__main__":
    main()
