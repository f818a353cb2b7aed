"""``spark.read.format("kafka-capture")``: paths, options, schemas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from kce.captures.errors import CaptureError
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.source import KafkaCapture, files
from kce.captures.spark.work import File
from kce.captures.tables.rows import PACKETS
from tests.captures.spark.levels import TOUR, ZOMBIE, table
from tests.tools import require


class TestPaths:
    def test_files_patterns_and_folders(self, halves, tmp_path):
        folder = str(halves[0].parent)
        assert [file.name for file in files([f"{folder}/*.pcap"], "")] == [f"{folder}/a.pcap", f"{folder}/b.pcap"]
        assert [file.name for file in files([folder], "")] == [f"{folder}/a.pcap", f"{folder}/b.pcap"]
        assert files(["a.pcap"], folder) == [File("a.pcap", str(halves[0]))]
        assert [file.name for file in files(["*.pcap", "a.pcap"], folder)] == ["a.pcap", "b.pcap", "a.pcap"]
        assert files([halves[0].as_uri()], "elsewhere") == [File(halves[0].as_uri(), halves[0].as_uri())]
        with pytest.raises(CaptureError, match="there is no capture in this folder"):
            files([str(tmp_path)], "")

    def test_a_path_that_does_not_exist_is_an_error(self, tmp_path):
        with pytest.raises(CaptureError, match=r"missing\.pcap: there is no such file"):
            files(["missing.pcap"], str(tmp_path))

    def test_tasks(self, halves):
        options = {"path": str(halves[0]), "level": "exchanges"}
        assert len(KafkaCapture(options).reader(None).partitions()) == 1
        assert len(KafkaCapture({**options, "tasks": "5"}).reader(None).partitions()) == 5
        packets = {"path": str(halves[0].parent), "level": "packets"}
        assert len(KafkaCapture(packets).reader(None).partitions()) == 2

    def test_splits_make_up_the_whole_packet_for_packet(self, halves):
        given = {"path": str(halves[0]), "maxPartitionBytes": "10000"}
        reader = KafkaCapture(given).reader(None)
        tasks = reader.partitions()
        assert len(tasks) > 5
        read = pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)], PACKETS.schema)
        assert read.to_pylist() == table("packets", halves[0]).to_pylist()

    @pytest.mark.parametrize(
        ("option", "value", "error"),
        [
            ("level", "bytes", "no level 'bytes': it is packets, frames, exchanges or partitions"),
            ("mode", "SOMETIMES", "no mode 'SOMETIMES'"),
            ("tasks", "0", "tasks is a number"),
            ("bodies", "perhaps", "bodies is true or false"),
        ],
    )
    def test_options_that_there_are_not(self, option, value, error):
        with pytest.raises(ValueError, match=error):
            KafkaCapture({"path": str(ZOMBIE), option: value}).reader(None)


ONE_LINE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for enabled in ("false", "true"):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    exchanges = spark.read.format("kafka-capture").option("level", "exchanges").load({path!r})
    print("found", enabled, exchanges.where("api_key = 6 and controller_epoch = 1").count())
"""


@pytest.mark.slow
def test_the_one_line_read_works_in_a_fresh_session(tmp_path):
    require("java")
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}  # as in an activated environment
    environment.pop("PYSPARK_PYTHON", None)
    root = Path(__file__).parents[3]
    environment["PYTHONPATH"] = str(root)
    result = subprocess.run(
        [sys.executable, "-c", ONE_LINE.format(path=str(ZOMBIE))], capture_output=True, text=True, timeout=180,
        cwd=tmp_path, env=environment, check=True,
    )  # fmt: skip
    wanted = [r for r in table("exchanges", ZOMBIE).to_pylist() if (r["api_key"], r["controller_epoch"]) == (6, 1)]
    found = [line for line in result.stdout.splitlines() if line.startswith("found")]
    assert found == [f"found false {len(wanted)}", f"found true {len(wanted)}"]


@pytest.mark.slow
def test_in_spark_packets_are_arrow_with_the_documented_columns(spark):
    packets = spark.read.format("kafka-capture").load([str(ZOMBIE), str(TOUR)])
    assert packets.schema == spark_schema(PACKETS)
    counts = {row["file"]: row["count"] for row in packets.groupBy("file").count().collect()}
    assert counts == {str(ZOMBIE): 983, str(TOUR): 2204}
    row = packets.where("packet = 386 and file like '%zombie%'").collect()[0]
    assert (row["source_port"], row["destination"], row["destination_port"]) == (37360, "127.0.0.1", 41875)
    assert bytes(row["payload"])[4:8] == b"\x00\x06\x00\x08"  # UpdateMetadata 8


@pytest.mark.slow
def test_in_spark_a_failure_names_the_file(spark, tmp_path):
    bad = tmp_path / "bad.pcap"
    bad.write_text("no capture")
    load = spark.read.format("kafka-capture")
    (row,) = load.load(str(bad)).collect()
    assert row["_corrupt_record"] == f"{bad}: not a capture: it is text"
    with pytest.raises(Exception, match="not a capture: it is text"):
        load.option("mode", "FAILFAST").load(str(bad)).collect()
    with pytest.raises(Exception, match="kafka-capture has no level 'bytes'"):
        load.option("level", "bytes").load(str(bad))
