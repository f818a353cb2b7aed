"""A folder that is followed, batch by batch and in Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kce.captures.errors import CaptureError
from kce.captures.spark import tail as tail_module
from kce.captures.spark.tail import FolderTail
from kce.captures.tables.rows import LEVELS
from tests.captures.samples import unzipped
from tests.captures.spark.levels import ZOMBIE, same, table
from tests.tools import require


class TestTail:
    """The stream's reader, batch by batch; in Spark it is tried below."""

    def batches(self, folder, level, steps, fail_fast=False):
        """The rows of each batch, where ``steps`` change the folder in between."""
        tail = FolderTail(folder, level, fail_fast=fail_fast, bodies="none")
        offset = tail.initialOffset()
        found = []
        for step in steps:
            step()
            end = tail.latestOffset(offset, None)
            read = [batch for task in tail.partitions(offset, end) for batch in tail.read(task)]
            found.append(pa.Table.from_batches(read, LEVELS[level].schema))
            offset = end
        return found

    @pytest.mark.parametrize("level", LEVELS)
    def test_batches_make_up_the_whole(self, level, tmp_path):
        whole = unzipped("kafka-3.9.1-zombie")
        file = tmp_path / "x.pcap"
        cuts = [10, 50_000, 50_001, 90_000, len(whole)]
        steps = [lambda end=end: file.write_bytes(whole[:end]) for end in cuts]
        batches = self.batches(tmp_path, level, [*steps, lambda: None])
        assert [batch.num_rows > 0 for batch in batches] == [False, True, False, True, True, False]
        # where a connection is not closed, what waits for an answer goes on waiting
        found, wanted = (
            [
                row
                for row in read.to_pylist()
                if row.get("response_packet", row.get("response_error_code", 0)) is not None
            ]
            for read in (pa.concat_tables(batches), table(level, ZOMBIE))
        )
        assert same(level, found, "file", "request_file", "response_file") == same(
            level, wanted, "file", "request_file", "response_file"
        )

    def test_a_connection_goes_on_in_the_next_file(self, tmp_path, halves):
        later, earlier = (path.read_bytes() for path in halves)
        batches = self.batches(
            tmp_path, "exchanges",
            [lambda: (tmp_path / "x.pcap").write_bytes(earlier), lambda: (tmp_path / "x.pcap1").write_bytes(later)],
        )  # fmt: skip
        across = [
            row for row in batches[1].to_pylist() if row["file"] == "x.pcap" and row["response_file"] == "x.pcap1"
        ]
        assert across
        places = ("file", "packet", "request_file", "request_packet", "response_file", "response_packet")
        answered = [row for row in table("exchanges", ZOMBIE).to_pylist() if row["response_packet"]]
        found = [row for row in pa.concat_tables(batches).to_pylist() if row["response_packet"]]
        assert same("exchanges", found, *places) == same("exchanges", answered, *places)

    def test_a_file_that_a_ring_removes_meanwhile_is_no_failure(self, tmp_path, halves, monkeypatch):
        """It is in the folder's list, but is gone when it is looked at."""
        later, earlier = (path.read_bytes() for path in halves)
        (tmp_path / "x.pcap1").write_bytes(later)
        (tmp_path / "x.pcap0").write_bytes(earlier)

        def scandir(folder):
            for entry in [*os.scandir(folder)]:
                (tmp_path / "x.pcap0").unlink(missing_ok=True)
                yield entry

        monkeypatch.setattr(tail_module, "os", SimpleNamespace(scandir=scandir))
        (batch,) = self.batches(tmp_path, "packets", [lambda: None])
        assert set(batch["file"].to_pylist()) == {"x.pcap1"}

    def test_a_ring_that_starts_over_is_read_again(self, tmp_path, halves):
        later, earlier = (path.read_bytes() for path in halves)
        assert len(later) > len(earlier)
        file = tmp_path / "x.pcap"
        first, second = self.batches(
            tmp_path, "packets", [lambda: file.write_bytes(later), lambda: file.write_bytes(earlier)]
        )
        assert (first.num_rows, second.num_rows) == (583, 400)

    def test_a_file_of_a_ring_that_is_overwritten_by_a_larger_one_is_read_from_its_beginning(self, tmp_path, halves):
        later, earlier = (path.read_bytes() for path in halves)
        file = tmp_path / "x.pcap"
        first, second = self.batches(
            tmp_path, "packets", [lambda: file.write_bytes(earlier), lambda: file.write_bytes(later)]
        )
        assert (first.num_rows, second.num_rows) == (400, 583)

    @pytest.mark.parametrize("level", ["packets", "exchanges"])
    def test_damage_is_reported_once_and_fails_fast(self, level, tmp_path, halves):
        whole = bytearray(halves[1].read_bytes())
        whole[20_000:20_016] = b"\xff" * 16
        at = 24
        while at < 20_000:
            size = 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
            at += size
        whole[at + 8 : at + 12] = b"\xff" * 4  # a packet of 4 GiB
        file = tmp_path / "x.pcap"
        steps = [lambda: file.write_bytes(whole[:15_000]), lambda: file.write_bytes(whole[:30_000])]
        found = self.batches(tmp_path, level, [*steps, lambda: file.write_bytes(whole)])
        corrupt = [[row["_corrupt_record"] for row in batch.to_pylist() if row["_corrupt_record"]] for batch in found]
        assert [len(each) for each in corrupt] == [0, 1, 0]
        assert "announces 4294967295 bytes" in corrupt[1][0]
        with pytest.raises(CaptureError, match="announces"):
            self.batches(tmp_path, level, steps, fail_fast=True)

    def test_what_is_no_capture_is_reported(self, tmp_path):
        (batch,) = self.batches(tmp_path, "frames", [lambda: (tmp_path / "x.pcap").write_bytes(b"x" * 100)])
        assert "not a capture" in batch.to_pylist()[0]["_corrupt_record"]
        with pytest.raises(CaptureError):
            self.batches(tmp_path, "frames", [lambda: None], fail_fast=True)

    def test_compressed_copies_are_left_alone(self, tmp_path):
        (tmp_path / ZOMBIE.name).write_bytes(ZOMBIE.read_bytes())
        assert self.batches(tmp_path, "packets", [lambda: None])[0].num_rows == 0


@pytest.mark.slow
def test_in_spark_a_folder_is_followed(spark, tmp_path, halves):
    folder = tmp_path / "captured"
    folder.mkdir()
    later, earlier = (path.read_bytes() for path in halves)
    (folder / "x.pcap0").write_bytes(earlier[:30_000])
    stream = spark.readStream.format("kafka-capture").option("level", "frames").load(str(folder))
    query = stream.writeStream.format("memory").queryName("followed").option("checkpointLocation", str(tmp_path / "c"))
    running = query.start()
    try:
        running.processAllAvailable()
        first = spark.table("followed").count()
        with (folder / "x.pcap0").open("ab") as growing:  # never shorter than before: a ring would have started over
            growing.write(earlier[30_000:])
        (folder / "x.pcap1").write_bytes(later)
        running.processAllAvailable()
        found = spark.table("followed").collect()
    finally:
        running.stop()
    wanted = table("frames", ZOMBIE)
    assert 0 < first < len(found) == wanted.num_rows
    assert sorted((r.time, r.api, r.correlation_id) for r in found) == sorted(
        (r["time"].replace(tzinfo=None), r["api"], r["correlation_id"]) for r in wanted.to_pylist()
    )


#: A driver whose sink has a file for each batch, as sinks that are exactly once do. It kills itself while the batch
#: that is given is written but not committed.
DRIVER = """
import os, signal, sys
from pathlib import Path
import pyarrow.parquet
from kce.captures.spark.session import local_session
from kce.captures.spark.source import register

folder, checkpoint, sink, dies_in = sys.argv[1:]

def write(rows, batch):
    pyarrow.parquet.write_table(rows.toArrow(), Path(sink, f"{batch}.parquet"))
    if batch == int(dies_in):
        os.kill(os.getpid(), signal.SIGKILL)
    if batch == 0:  # the capture goes on
        whole = Path(folder, "x.pcap.rest").read_bytes()
        with Path(folder, "x.pcap").open("ab") as file:
            file.write(whole)

with local_session(brief=True) as spark:
    register(spark)
    stream = spark.readStream.format("kafka-capture").option("level", "frames").load(folder)
    query = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.processAllAvailable()
    query.stop()
"""


@pytest.mark.slow
def test_a_stream_goes_on_after_kill_9_of_its_driver_exactly_once(tmp_path):
    """Batch 1 was written, but not committed: it comes again with the same rows, though the capture has grown since."""
    require("java")
    folder, sink = tmp_path / "captured", tmp_path / "sink"
    folder.mkdir()
    sink.mkdir()
    whole = unzipped("kafka-3.9.1-zombie")
    (folder / "x.pcap").write_bytes(whole[:50_000])
    (folder / "x.pcap.rest").write_bytes(whole[50_000:100_001])

    def run(dies_in):
        command = [sys.executable, "-c", DRIVER, str(folder), str(tmp_path / "checkpoint"), str(sink), str(dies_in)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    killed = run(1)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before = pq.read_table(sink / "1.parquet")
    (sink / "1.parquet").unlink()
    with (folder / "x.pcap").open("ab") as file:
        file.write(whole[100_001:])
    ended = run(-1)
    assert ended.returncode == 0, ended.stderr
    written = {path.stem: pq.read_table(path) for path in sink.iterdir()}
    assert written["1"].to_pylist() == before.to_pylist() != []
    found = [row for batch in written.values() for row in batch.to_pylist()]
    places = ("file", "request_file")
    assert same("frames", found, *places) == same("frames", table("frames", ZOMBIE).to_pylist(), *places)
