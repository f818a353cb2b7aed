"""Spark reassembles one connection in several tasks, and finds what it finds in one."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

from kce.captures.exchanges.quality import Quality
from kce.captures.files.index import splits
from kce.captures.spark import cutting, indexing, reassembly
from kce.captures.spark.work import File
from tests.captures.fast.test_bulk import rows_of
from tests.captures.made_files import pcap
from tests.captures.wiretap import Wiretap, observe

TASKS = 4


@pytest.fixture
def capture(tmp_path):
    """One connection, which fetches."""
    tap = Wiretap(5, talks=3, exchanges=200, retransmits=0)
    fetching = next(packet.talk for packet in tap.packets if packet.talk.client[1] == 40_002)
    tap.packets = [packet for packet in tap.packets if packet.talk is fetching]
    path = tmp_path / "one.pcap"
    path.write_bytes(observe(tap, 5).pcap)
    return path


@pytest.fixture
def decoded(spark, capture, monkeypatch):
    """A function that decodes the capture: all rows, the sum of the counts, and what was passed to ``keep``."""
    monkeypatch.setattr(indexing, "LEAST_PIECES", 2)
    monkeypatch.setattr(cutting, "LEAST_PARTS", 2)

    def decode(names=None):
        kept = []
        size = str(capture.stat().st_size // 20)
        rows = reassembly.decode(
            spark, [str(capture)], TASKS, names=names, keep=lambda frame: kept.append(frame.cache()) or kept[-1],
            maxPartitionBytes=size,
        )  # fmt: skip
        table = rows.toArrow()
        quality = Quality()
        for text in table["quality"].drop_null().to_pylist():
            quality.add(Quality.from_json(text))
        found = rows_of(table.filter(table["quality"].is_null()).to_batches())
        return found, quality, kept

    return decode


@pytest.fixture
def whole(decoded, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(cutting, "LEAST_PARTS", 10**9)
        found, quality, (kept,) = decoded()
    assert "bucket" not in kept.columns
    assert quality.connections == 1
    return found, quality


@pytest.mark.slow
def test_one_connection_is_several_tasks(decoded, whole):
    found, quality, (kept,) = decoded()
    assert (found, quality) == whole
    chunks = kept.where("chunk is not null").select("bucket", f.spark_partition_id().alias("task")).toArrow()
    assert len(chunks) > 10
    assert len(set(chunks["task"].to_pylist())) == TASKS
    exchanges = kept.where("api is not null").groupBy("bucket").count().toArrow()
    assert sum(exchanges["count"].to_pylist()) > 190
    assert len(exchanges) > 10
    assert max(exchanges["count"].to_pylist()) < 100


@pytest.mark.slow
def test_some_columns(decoded):
    found, _, _ = decoded(["api", "packet"])
    assert sum(number for row, number in found.items() if "Fetch" in row) == 200


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [1, 5])
def test_chunks_at_refused_cuts_are_done_again_as_one(wrong, decoded, whole, monkeypatch):
    """Every so-manieth proposal is of another place."""

    def samples(*given):
        taken = cutting.samples(*given)
        for at in range(0, len(taken), wrong):
            if (cut := taken[at].cut) is not None:
                sequences = cut.seam.sequences[0], cut.seam.sequences[1] ^ 1
                taken[at] = taken[at]._replace(cut=cut._replace(seam=cut.seam._replace(sequences=sequences)))
        return taken

    monkeypatch.setattr(reassembly, "samples", samples)
    found, quality, kept = decoded()
    assert (found, quality) == whole
    assert len(kept) > 1


def test_few_files_and_small_ones_have_no_samples(capture):
    spark = None  # no task is needed
    assert cutting.samples(spark, [], {}, 1, ()) == []
    few = [File("x", str(capture))] * (cutting.LEAST_PARTS - 1)
    assert cutting.samples(spark, few, {}, 1, ()) == []
    parts = {str(capture): splits(capture, capture.stat().st_size // (2 * cutting.LEAST_PARTS))}
    assert len(parts[str(capture)]) >= cutting.LEAST_PARTS
    assert cutting.samples(spark, few, parts, capture.stat().st_size, ()) == []


def test_what_cannot_be_read_has_no_samples(tmp_path):
    (tmp_path / "x.pcap").write_bytes(b"no capture")
    (tmp_path / "y.pcap").write_bytes(pcap([]))
    for name in ("x.pcap", "y.pcap", "missing.pcap"):
        assert cutting._sampled((str(tmp_path / name), cutting.WHOLE, 100), ()) == []
