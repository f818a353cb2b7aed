"""``kafka-capture``: the same rows at any level, however files are cut and tasks share them, filtered or not."""

from __future__ import annotations

import datetime
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, ShortType, StructField, StructType

from captures import body_programs
from captures.decode import Decoder
from captures.errors import CaptureError
from captures.exchanges import Request, Response
from captures.index import WHOLE
from captures.pcap import CaptureFile
from captures.rows import LEVELS, PACKETS
from captures.spark.levels import message_batches, packet_batches
from captures.spark.pushdown import Wanted, conditions
from captures.spark.schemas import spark_schema
from captures.spark.source import KafkaCapture, files
from captures.spark.tail import FolderTail
from captures.spark.work import File, Share
from captures.tabulate import decoded_row, frame_row
from tests.captures.files import pcap
from tests.captures.samples import CAPTURES, scenario, unzipped
from tests.captures.test_bulk import packets_of
from tests.captures.test_exactness import CASES, tap_of
from tests.captures.wiretap import observe
from tests.tools import require

ZOMBIE = CAPTURES["kafka-3.9.1-zombie"]
TOUR = CAPTURES["kafka-2.8.2-tour"]
EVERYTHING = Share(0, 1)


def table(level, *paths, share=EVERYTHING, wanted=None, bodies="none", fail_fast=False, names=None, ports=()):
    given = [File(str(path), str(path)) for path in paths]
    wanted = wanted or Wanted()
    if level == "packets":
        batches = [b for file in given for b in packet_batches(file, WHOLE, wanted, fail_fast=fail_fast, names=names)]
    else:
        batches = list(
            message_batches(level, given, share, wanted, bodies=bodies, fail_fast=fail_fast, names=names, ports=ports)
        )
    schema = LEVELS[level].schema
    return pa.Table.from_batches(batches, schema if names is None else pa.schema([schema.field(n) for n in names]))


def rows(read, *but):
    """As a set that can be compared, without the columns ``but``."""
    return sorted(repr([v for k, v in row.items() if k not in but]) for row in read.to_pylist())


def same(level, given, *but):
    return rows(pa.Table.from_pylist(given, LEVELS[level].schema), *but)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """One capture as two files, the later one first by name; cut inside connections."""
    folder = tmp_path_factory.mktemp("halves")
    whole = unzipped("kafka-3.9.1-zombie")
    at = 24
    for _ in range(400):
        at += 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
    (folder / "b.pcap").write_bytes(whole[:at])
    (folder / "a.pcap").write_bytes(whole[:24] + whole[at:])
    return folder / "a.pcap", folder / "b.pcap"


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """Packets lost, swapped and in fragments, and bodies that nobody can decode."""
    seen = observe(tap_of(0), 0, **CASES["all of it"])
    rng = random.Random(5)
    packets = []
    for number, (time_ns, packet) in enumerate(packets_of(seen.pcap)):
        data = bytearray(packet)
        if rng.random() < 0.02 and len(data) > 80:
            data[75] ^= 0xFF
        if number % 10 == 3 and len(data) > 60:
            first = 20 + (len(data) - 20) // 16 * 8
            for begin, end in ((20, first), (first, len(data))):
                offset = (begin - 20) // 8 | (0x2000 if end < len(data) else 0)
                header = (
                    data[:2] + (20 + end - begin).to_bytes(2) + number.to_bytes(2) + offset.to_bytes(2) + data[8:20]
                )
                packets.append((time_ns, bytes(header + data[begin:end])))
        else:
            packets.append((time_ns, bytes(data)))
    path = tmp_path_factory.mktemp("awkward") / "awkward.pcap"
    path.write_bytes(pcap(packets, link_type=101))
    return path


class TestLevels:
    def test_frames_are_the_messages_of_decode(self):
        with CaptureFile(ZOMBIE) as capture:
            messages = list(Decoder(capture).messages())
        found = table("frames", ZOMBIE).to_pylist()
        assert sorted(repr(tuple(row.values())[:2] + tuple(row.values())[3:-1]) for row in found) == sorted(
            repr(row[:2] + row[3:]) for row in map(frame_row, messages)
        )
        assert {row["is_response"] for row in found} == {True, False}
        asked = {(row["request_file"], row["request_packet"]) for row in found if row["is_response"]}
        assert asked <= {(row["file"], row["packet"]) for row in found if not row["is_response"]}

    def test_bodies_are_there_when_asked_for(self):
        assert set(table("frames", ZOMBIE).column("body").to_pylist()) == {None}
        bodies = [
            r
            for r in table("frames", ZOMBIE, bodies="redacted").to_pylist()
            if r["packet"] == 386 and r["api_key"] == 6
        ]
        assert '"controller_epoch":1,' in bodies[0]["body"]

    def test_exchanges_and_partitions_are_those_of_a_request_with_its_response(self):
        with CaptureFile(ZOMBIE) as capture:
            messages = list(Decoder(capture).messages())
        answered = {m.request for m in messages if isinstance(m, Response)}
        wanted = [decoded_row(m.request, m) for m in messages if isinstance(m, Response)]
        wanted += [decoded_row(m, None) for m in messages if isinstance(m, Request) and m not in answered]
        exchanges = table("exchanges", ZOMBIE)
        columns = [name for name in exchanges.column_names if not name.endswith("time")]
        at = [exchanges.column_names.index(name) for name in columns[:-1]]
        found = sorted(repr([row[name] for name in columns[:-1]]) for row in exchanges.to_pylist())
        assert found == sorted(repr([row[i] for i in at]) for row in wanted)
        partitions = table("partitions", ZOMBIE)
        assert partitions.num_rows == sum(row["partition_count"] or 0 for row in exchanges.to_pylist())

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    @pytest.mark.parametrize("given", [(ZOMBIE, TOUR), (ZOMBIE,)], ids=["two files", "one file"])
    def test_shares_make_up_the_whole(self, level, given):
        whole = table(level, *given)
        shares = [table(level, *given, share=Share(number, 3)) for number in range(3)]
        assert all(share.num_rows for share in shares)
        assert rows(pa.concat_tables(shares)) == rows(whole)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_in_bulk_or_one_by_one_rows_are_the_same(self, level, awkward):
        """Bodies are made one by one; so are the rows that have them."""
        for share in (EVERYTHING, Share(0, 2), Share(1, 2)):
            in_bulk = table(level, awkward, share=share)
            one_by_one = table(level, awkward, share=share, bodies="redacted")
            assert in_bulk.num_rows > 100 * (level != "partitions")
            assert rows(in_bulk, "body") == rows(one_by_one, "body")
            assert level != "frames" or any(row["decode_error"] for row in in_bulk.to_pylist())
        with pytest.raises(CaptureError, match=r"^.*awkward\.pcap: packet \d+: "):
            table("frames", awkward, fail_fast=True)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_in_bulk_or_one_by_one_rows_of_several_files_are_the_same(self, level, halves, awkward):
        in_bulk = table(level, *halves, awkward)
        assert rows(in_bulk, "body") == rows(table(level, *halves, awkward, bodies="redacted"), "body")
        assert set(in_bulk.column("file").to_pylist()) <= {str(path) for path in (*halves, awkward)}

    @pytest.mark.parametrize(
        ("level", "names"),
        [
            ("packets", ["payload", "packet"]),
            ("frames", ["_corrupt_record", "api", "time"]),
            ("exchanges", ["response_packet", "api", "client_id", "server_port"]),
            ("partitions", ["isr", "packet", "error", "topic"]),
        ],
    )
    def test_only_the_columns_that_are_wanted(self, level, names, awkward, tmp_path):
        (tmp_path / "cut.pcap").write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
        given = [awkward, tmp_path / "cut.pcap"]
        everything = table(level, *given)
        if "_corrupt_record" not in names:  # then there are no rows that are nothing else
            told = everything["_corrupt_record"].is_null() if level == "packets" else everything["api_key"].is_valid()
            everything = everything.filter(told)
        assert rows(table(level, *given, names=names)) == rows(everything.select(names))
        if level in ("frames", "exchanges"):
            with pytest.raises(CaptureError, match=r"awkward\.pcap: packet \d+: "):
                table(level, awkward, fail_fast=True, names=names)

    def test_columns_that_there_are_not(self):
        options = {"path": str(ZOMBIE), "level": "exchanges"}
        for name, told in (("offset", "offset of level exchanges is unknown"), ("api", "api .* is string, not int")):
            schema = StructType([StructField("version", ShortType()), StructField(name, IntegerType())])
            with pytest.raises(ValueError, match=told):
                KafkaCapture(options).reader(schema)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_a_connection_that_runs_across_files_is_whole(self, level, halves):
        places = ("file", "packet", "request_file", "request_packet", "response_file", "response_packet")
        assert rows(table(level, *halves), *places) == rows(table(level, ZOMBIE), *places)

    @pytest.mark.parametrize("level", LEVELS)
    def test_what_cannot_be_read_is_a_row_or_a_failure(self, level, tmp_path):
        (tmp_path / "cut.pcap").write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
        (tmp_path / "bad.pcap").write_bytes(b"no capture")
        given = [tmp_path / "cut.pcap", tmp_path / "bad.pcap"]
        told = [row for row in table(level, *given).to_pylist() if row["_corrupt_record"]]
        about = [row["_corrupt_record"] for row in told if row.get("api_key") is None]
        assert sorted(text.split("/")[-1][:20] for text in about) == ["bad.pcap: not a capt", "cut.pcap: ends insid"]
        assert {row["packet"] is None for row in told if "bad.pcap" in row["file"]} == {True}
        for path in given:
            with pytest.raises(CaptureError, match=path.name):
                table(level, path, fail_fast=True)


class TestFilters:
    TIME = datetime.datetime(2026, 11, 21, 2, 45, 22, tzinfo=datetime.UTC)
    SOMETHING = "127.0.0.1:37324 - 127.0.0.1:39235"

    @pytest.mark.parametrize(
        ("given", "holds"),
        [
            (datasource.EqualTo(("api_key",), 6), lambda r: r["api_key"] == 6),
            (datasource.In(("api_key",), (4, 6)), lambda r: r["api_key"] in (4, 6)),
            (datasource.Not(datasource.In(("api_key",), (4, 6))), lambda r: r["api_key"] not in (4, 6)),
            (datasource.GreaterThanOrEqual(("time",), TIME), lambda r: r["time"] >= TestFilters.TIME),
            (datasource.LessThan(("time",), TIME.replace(tzinfo=None)), lambda r: r["time"] < TestFilters.TIME),
            (datasource.EqualTo(("connection",), SOMETHING), lambda r: r["connection"] == TestFilters.SOMETHING),
            (datasource.StringStartsWith(("client_id",), "1"), lambda r: (r["client_id"] or "").startswith("1")),
            (datasource.IsNull(("controller_epoch",)), lambda r: r["controller_epoch"] is None),
            (datasource.IsNotNull(("controller_epoch",)), lambda r: r["controller_epoch"] is not None),
            # what is null is not unequal
            (datasource.Not(datasource.EqualTo(("error_code",), 0)), lambda r: r["error_code"] not in (None, 0)),
            (datasource.Not(datasource.EqualNullSafe(("error_code",), 0)), lambda r: r["error_code"] != 0),
            (datasource.EqualNullSafe(("error_code",), None), lambda r: r["error_code"] is None),
            (datasource.EqualTo(("is_control",), True), lambda r: r["is_control"]),
        ],
    )
    def test_taken_filters_are_exact(self, given, holds):
        taken, left = conditions([given], LEVELS["exchanges"])
        assert left == []
        found = table("exchanges", ZOMBIE, wanted=Wanted(taken))
        everything = table("exchanges", ZOMBIE)
        wanted = [row for row in everything.to_pylist() if holds(row)]
        assert 0 < len(wanted) < everything.num_rows
        assert rows(found) == rows(pa.Table.from_pylist(wanted, everything.schema))

    @pytest.mark.parametrize(
        "given",
        [
            datasource.EqualTo(("latency_ms",), 1.0),
            datasource.EqualTo(("no such column",), 1),
            datasource.EqualTo(("states", "topic"), "x"),
            datasource.In(("api_key",), (6, None)),
        ],
    )
    def test_others_are_left_to_spark(self, given):
        assert conditions([given], LEVELS["exchanges"]) == ([], [given])
        assert conditions([datasource.EqualTo(("payload",), b"x")], PACKETS)[0] == []

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions", "packets"])
    @pytest.mark.parametrize(
        "given",
        [
            datasource.EqualTo(("packet",), 386),
            datasource.Not(datasource.EqualTo(("packet",), 386)),
            datasource.In(("packet",), (386, 388)),
            datasource.GreaterThan(("time",), TIME),
            datasource.EqualNullSafe(("packet",), None),
            datasource.IsNull(("packet",)),
            datasource.IsNotNull(("packet",)),
        ],
        ids=str,
    )
    def test_rows_that_are_left_out_early_are_those_that_are_not_wanted(self, level, given, awkward):
        taken, _ = conditions([given], LEVELS[level])
        for path in (ZOMBIE, awkward):
            everything = table(level, path)
            at = [column.name for column in LEVELS[level].columns].index(taken[0].column)
            values = everything.column(at)
            values = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
            wanted = everything.filter(pa.array([taken[0].holds(value) for value in values.to_pylist()], pa.bool_()))
            assert rows(table(level, path, wanted=Wanted(taken))) == rows(wanted)

    def test_bodies_of_other_apis_are_not_looked_into(self, monkeypatch):
        looked_into = set()
        program = body_programs._program

        def watched(api, version, direction):
            looked_into.add(api.name)
            return program(api, version, direction)

        monkeypatch.setattr(body_programs, "_program", watched)
        taken, _ = conditions([datasource.In(("api_key",), (4, 6))], LEVELS["exchanges"])
        found = table("exchanges", TOUR, wanted=Wanted(taken))
        assert "UpdateMetadata" in looked_into <= {"LeaderAndIsr", "UpdateMetadata", "Produce", "Fetch"}
        everything = table("exchanges", TOUR)
        assert rows(found) == rows(
            everything.filter(pa.array([key in (4, 6) for key in everything["api_key"].to_pylist()]))
        )

    def test_other_connections_are_not_put_together(self, monkeypatch):
        from captures.spark import levels

        seen = set()
        receive = levels.Assembly.receive

        def watched(self, segment):
            seen.add(frozenset((segment.source_port, segment.destination_port)))
            return receive(self, segment)

        monkeypatch.setattr(levels.Assembly, "receive", watched)
        taken, _ = conditions([datasource.EqualTo(("connection",), self.SOMETHING)], LEVELS["frames"])
        assert table("frames", ZOMBIE, wanted=Wanted(taken)).num_rows
        assert seen == {frozenset((37324, 39235))}


class TestPorts:
    OF_3 = scenario("kafka-3.9.1-zombie")["brokers"]["3"]
    PORTS = frozenset({OF_3["control"], OF_3["data"]})

    @pytest.mark.parametrize("bodies", ["none", "redacted"])
    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_other_connections_are_left_out(self, level, bodies):
        of_3 = table(level, ZOMBIE, ports=self.PORTS, bodies=bodies)
        wanted = table(level, ZOMBIE, bodies=bodies)
        kept = [at for at, port in enumerate(wanted.column("server_port").to_pylist()) if port in self.PORTS]
        assert 0 < len(kept) < wanted.num_rows
        assert rows(of_3) == rows(wanted.take(kept))

    def test_in_a_folder_that_is_followed(self, halves, tmp_path):
        later, earlier = halves
        (tmp_path / "x.pcap0").symlink_to(earlier)
        (tmp_path / "x.pcap1").symlink_to(later)
        tail = FolderTail(tmp_path, "frames", fail_fast=False, bodies="none", ports=self.PORTS)
        (partition,) = tail.partitions(tail.initialOffset(), tail.latestOffset())
        found = pa.Table.from_batches(tail.read(partition))
        assert rows(found, "file", "request_file") == rows(
            table("frames", earlier, later, ports=self.PORTS), "file", "request_file"
        )

    @pytest.mark.parametrize("ports", ["kafka", "0"])
    def test_what_is_no_port(self, ports):
        with pytest.raises(ValueError, match=f"kafka-capture: ports: '{ports}'"):
            KafkaCapture({"path": str(ZOMBIE), "ports": ports}).reader(None)


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
        ("option", "value", "told"),
        [
            ("level", "bytes", "no level 'bytes': it is packets, frames, exchanges or partitions"),
            ("mode", "SOMETIMES", "no mode 'SOMETIMES'"),
            ("tasks", "0", "tasks is a number"),
            ("bodies", "perhaps", "bodies is true or false"),
        ],
    )
    def test_options_that_there_are_not(self, option, value, told):
        with pytest.raises(ValueError, match=told):
            KafkaCapture({"path": str(ZOMBIE), option: value}).reader(None)


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
        told, wanted = (
            [
                row
                for row in read.to_pylist()
                if row.get("response_packet", row.get("response_error_code", 0)) is not None
            ]
            for read in (pa.concat_tables(batches), table(level, ZOMBIE))
        )
        assert same(level, told, "file", "request_file", "response_file") == same(
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
        told = [row for row in pa.concat_tables(batches).to_pylist() if row["response_packet"]]
        assert same("exchanges", told, *places) == same("exchanges", answered, *places)

    def test_a_ring_that_begins_anew_is_read_anew(self, tmp_path, halves):
        later, earlier = (path.read_bytes() for path in halves)
        assert len(later) > len(earlier)
        file = tmp_path / "x.pcap"
        first, second = self.batches(
            tmp_path, "packets", [lambda: file.write_bytes(later), lambda: file.write_bytes(earlier)]
        )
        assert (first.num_rows, second.num_rows) == (583, 400)

    def test_what_is_no_capture_is_told(self, tmp_path):
        (told,) = self.batches(tmp_path, "frames", [lambda: (tmp_path / "x.pcap").write_bytes(b"x" * 100)])
        assert "not a capture" in told.to_pylist()[0]["_corrupt_record"]
        with pytest.raises(CaptureError):
            self.batches(tmp_path, "frames", [lambda: None], fail_fast=True)

    def test_compressed_copies_are_left_alone(self, tmp_path):
        (tmp_path / ZOMBIE.name).write_bytes(ZOMBIE.read_bytes())
        assert self.batches(tmp_path, "packets", [lambda: None])[0].num_rows == 0


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
@pytest.mark.parametrize("enabled", ["false", "true"])
def test_in_spark_filters_find_the_same_with_and_without_push_down(spark, enabled):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        read = spark.read.format("kafka-capture").option("level", "exchanges").option("tasks", 2).load(str(ZOMBIE))
        assert read.schema == spark_schema(LEVELS["exchanges"])
        moment = f.lit(TestFilters.TIME)
        found = read.where(
            (f.col("time") >= moment) & f.col("api_key").isin(4, 6) & f.col("connection").contains(":39235")
        )
        pushed = "Filter (" not in found._jdf.queryExecution().executedPlan().toString()
        assert pushed == (enabled == "true")
        wanted = [
            row["packet"] for row in table("exchanges", ZOMBIE).to_pylist()
            if row["time"] >= TestFilters.TIME and row["api_key"] in (4, 6) and ":39235" in row["connection"]
        ]  # fmt: skip
        assert sorted(row.packet for row in found.collect()) == sorted(wanted) != []
        some = spark.read.format("kafka-capture").schema("api_key short, packet bigint").option("level", "exchanges")
        of_some = some.load(str(ZOMBIE)).where("api_key = 6").collect()
        assert sorted(of_some) == sorted(read.where("api_key = 6").select("api_key", "packet").collect()) != []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


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
        with (folder / "x.pcap0").open("ab") as growing:  # never shorter than it was: that would be a ring begun anew
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
