"""Connections that are cut give what they give whole, wherever somebody proposes to cut them.

Covers: kce.captures.fast.cuts, kce.captures.exchanges.seams
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.seams import Header, Seam
from kce.captures.fast.blocks import Flows, dissected, ends_of
from kce.captures.fast.cuts import Cut, Cuts, chosen, text_of
from kce.captures.files import packet_kernels as k
from kce.captures.files.index import splits
from kce.captures.files.pcap import CaptureFile
from kce.captures.spark.buckets import decoded
from kce.captures.spark.chunks import Found, verified
from kce.captures.spark.cutting import _sampled
from kce.captures.spark.levels import block_batches
from kce.captures.spark.work import File
from kce.captures.tables.rows import BLOCKS, CHUNKED, DECODED
from tests.captures.exchanges.test_exactness import CASES
from tests.captures.fast.test_bulk import rows_of
from tests.captures.wiretap import Wiretap, observe

BUCKETS = 5
ORDER = [(name, "ascending") for name in ("bucket", "begin_ns", "number", "packet")]


def reassembled(files, cut_bytes, cuts=None, only=()):
    """DECODED rows, or CHUNKED ones, as Spark's tasks would make them."""
    batches = [
        batch
        for number, file in enumerate(files)
        for part in splits(file, cut_bytes)
        for batch in block_batches(File(file.name, str(file)), number, part, BUCKETS, (), cuts, only)
    ]
    random.Random(1).shuffle(batches)  # as blocks arrive from tasks
    blocks = pa.Table.from_batches(batches, BLOCKS.schema)
    if only:
        blocks = blocks.filter(pa.compute.is_null(blocks["quality"]))
    made = decoded(blocks.sort_by(ORDER).to_batches(max_chunksize=7), "redacted", cuts=cuts)
    return pa.Table.from_batches(made, (DECODED if cuts is None else CHUNKED).schema)


def in_chunks(files, cut_bytes, cuts):
    """What ``cutting.joined`` makes of the same: its rows, the chunks that held, and the connections that were refused."""
    rows = reassembled(files, cut_bytes, cuts)
    found = [Found.from_json(text) for text in rows["chunk"].drop_null().to_pylist()]
    whole, refused = verified(found, cuts)
    only = [text_of(flow) for flow in refused]
    rows = rows.filter(pa.compute.is_null(rows["chunk"])).drop_columns("chunk")
    kept = pa.compute.is_in(rows["connection"], pa.array(only, pa.string()))
    parts = [rows.filter(pa.compute.invert(kept)), pa.Table.from_batches([DECODED.batch(whole)])]
    if refused:
        parts.append(reassembled(files, cut_bytes, only=only))
    return pa.concat_tables(parts), found, refused


def facts(rows):
    """All rows, and the sum of the counts."""
    quality = Quality()
    for text in rows["quality"].drop_null().to_pylist():
        quality.add(Quality.from_json(text))
    quality.notes.sort()
    return rows_of(rows.filter(pa.compute.is_null(rows["quality"])).to_batches()), quality


def samples_of(files, cut_bytes):
    return [
        sample
        for file in files
        for part in splits(file, cut_bytes)
        for sample in _sampled((str(file), part, part.end - part.begin), frozenset())
    ]


def check(files, cut_bytes, cuts):
    """Equal; how many cuts held, and how many connections were refused."""
    wanted = facts(reassembled(files, cut_bytes))
    rows, found, refused = in_chunks(files, cut_bytes, cuts)
    assert facts(rows) == wanted
    held = sum(len(of_flow) for flow, of_flow in cuts.of.items() if flow not in refused)
    assert len(found) <= sum(len(of_flow) + 1 for of_flow in cuts.of.values())
    return held, len(refused)


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
    cuts = Cuts(chosen(samples_of([path], size), size), BUCKETS)
    held, refused = check([path], size, cuts)
    print("XX", case, seed, "held", held, "refused", refused)
