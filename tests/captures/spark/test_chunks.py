"""Connections that are cut give what they give whole, wherever somebody proposes to cut them.

Covers: kce.captures.fast.cuts, kce.captures.exchanges.seams, kce.captures.spark.cutting
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.seams import Header, Seam
from kce.captures.fast.blocks import Flows, first_block
from kce.captures.fast.cuts import Cut, Cuts, chosen, chunks_of, ends, sampled
from kce.captures.files import packet_kernels as k
from kce.captures.files.index import splits
from kce.captures.files.pcap import CaptureFile
from kce.captures.spark.buckets import decoded
from kce.captures.spark.chunks import Found, holding
from kce.captures.spark.chunks import rows_of as rows_of_chunks
from kce.captures.spark.levels import block_batches
from kce.captures.spark.work import File
from kce.captures.tables.rows import BLOCKS, CHUNKED, DECODED
from tests.captures.exchanges.test_exactness import CASES
from tests.captures.fast.test_bulk import packets_of, rows_of
from tests.captures.made_files import pcap
from tests.captures.wiretap import Wiretap, observe

BUCKETS = 5
ORDER = [(name, "ascending") for name in ("bucket", "begin_ns", "number", "packet")]


def reassembled(files, cut_bytes, cuts=None):
    """DECODED rows, or CHUNKED ones, as Spark's tasks would make them."""
    batches = [
        batch
        for number, file in enumerate(files)
        for part in splits(file, cut_bytes)
        for batch in block_batches(File(file.name, str(file)), number, part, BUCKETS, (), cuts)
    ]
    random.Random(1).shuffle(batches)  # as blocks arrive from tasks
    blocks = pa.Table.from_batches(batches, BLOCKS.schema).sort_by(ORDER)
    if cuts is not None and cuts.only is not None:
        blocks = blocks.filter(pc.is_null(blocks["quality"]))
    made = decoded(blocks.to_batches(max_chunksize=7), "redacted", cuts=cuts)
    return pa.Table.from_batches(made, (DECODED if cuts is None else CHUNKED).schema)


def in_chunks(files, cut_bytes, of):
    """DECODED rows by chunks, the cuts that hold, and how many passes that took."""
    known, passes = {}, []
    cuts = Cuts(of, BUCKETS)
    while True:
        rows, chunks = reassembled(files, cut_bytes, Cuts.from_json(cuts.to_json())), cuts.chunks()
        passes.append((rows, chunks))
        found = [Found.from_json(text) for text in rows["chunk"].drop_null().to_pylist()]
        assert {each.bucket for each in found} <= chunks.keys()
        known |= {chunks[each.bucket]: each for each in found}
        of = holding(of, known)
        right = {chunk for flow, some in of.items() for chunk in chunks_of(flow, some)}
        if right <= known.keys():
            break
        cuts = Cuts(of, BUCKETS).of_chunks(right - known.keys())
    parts = []
    for rows, chunks in passes:
        wrong = pa.array([bucket for bucket, chunk in chunks.items() if chunk not in right], pa.int32())
        kept = pc.and_(pc.is_null(rows["chunk"]), pc.invert(pc.is_in(rows["bucket"], wrong)))
        parts.append(rows.filter(kept).drop_columns(["bucket", "chunk"]))
    for flow, some in of.items():
        made = rows_of_chunks(flow, [known[chunk] for chunk in chunks_of(flow, some)])
        parts.append(pa.Table.from_batches([DECODED.batch(made)]))
    return pa.concat_tables(parts), of, len(passes)


def facts(rows):
    """All rows, and the sum of the counts."""
    quality = Quality()
    for text in rows["quality"].drop_null().to_pylist():
        quality.add(Quality.from_json(text))
    quality.notes.sort()
    return rows_of(rows.filter(pc.is_null(rows["quality"])).to_batches()), quality


def check(files, cut_bytes, of):
    """Chunks give what whole connections give. Returns the cuts that hold, and the number of passes."""
    rows, held, passes = in_chunks(files, cut_bytes, of)
    found, wanted = facts(rows), facts(reassembled(files, cut_bytes))
    assert found[1] == wanted[1]
    assert found[0] == wanted[0]
    return held, passes


def proposed(files, cut_bytes):
    """The cuts that samples of each part propose."""
    samples = []
    for file in files:
        for part in splits(file, cut_bytes):
            with CaptureFile(file, split=part) as capture:
                block = first_block(capture, 1 << 20)
            samples += [] if block is None else sampled(block, part.end - part.begin)
    return chosen(samples, cut_bytes)


def count(cuts):
    return sum(len(of_flow) for of_flow in cuts.values())


@pytest.fixture
def file(tmp_path):
    def write(data, name="x.pcap"):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_equal_where_samples_propose_to_cut(case, seed, file):
    tap = Wiretap(seed, talks=5, exchanges=150)
    path = file(observe(tap, seed, **CASES[case]).pcap)
    size = path.stat().st_size // 40
    of = proposed([path], size)
    held, passes = check([path], size, of)
    print("XX", case, seed, "proposed", count(of), "held", count(held), "passes", passes)
