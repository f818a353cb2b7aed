"""`kce analyze` as a whole: files in, tables, Parquet and report out; what it does with bad files.

Covers: kce.captures.spark.session
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys

import pyarrow.parquet
import pytest

from kce import wire
from kce.captures.errors import CaptureError
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.captures.spark import analyze, job
from kce.captures.spark.findings import PRINTED
from kce.captures.tables.rows import SCHEMA_VERSION, WRITTEN
from tests.captures.made_files import START_NS, ethernet, ipv4, pcap, record_kraft
from tests.captures.samples import CAPTURES, unzipped
from tests.tools import require

pytestmark = pytest.mark.slow

ZOMBIE = str(CAPTURES["kafka-3.9.1-zombie"])


def kce(*arguments, cwd, timeout=400, **environment):
    require("java")
    return subprocess.run(
        [sys.executable, "-c", "import sys; from kce.harness.cli import main; sys.exit(main())", "analyze", *arguments],
        capture_output=True, text=True, timeout=timeout, cwd=cwd, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """`kce analyze` of two files, with everything it can write."""
    folder = tmp_path_factory.mktemp("analyze")
    names = ["kafka-3.9.1-zombie", "kafka-2.3.1-tour"]
    for name in names:
        (folder / CAPTURES[name].name).symlink_to(CAPTURES[name])
    temporary = tmp_path_factory.mktemp("temporary")
    result = kce(
        *(CAPTURES[name].name for name in names), "--report", "report.html", "--out", "tables", "--event-log", "events",
        cwd=folder, TMPDIR=str(temporary),
    )  # fmt: skip
    assert not list(temporary.glob("kce-spark-*"))
    return result, folder


class TestTheCommand:
    def test_succeeds_and_leaves_nothing_behind(self, ran):
        result, folder = ran
        assert result.returncode == 0, result.stderr
        kept = {path.name for path in folder.iterdir() if not path.is_symlink()}
        assert kept == {"report.html", "tables", "events"}

    def test_stderr_is_free_of_sparks_noise(self, ran):
        assert ran[0].stderr == "kce: report in report.html\nkce: tables in tables\n"

    def test_stdout_is_for_people_and_for_programs(self, ran):
        out = ran[0].stdout
        sections = dict(re.findall(r"^# (\w+)\n(.*?)(?=^# |\Z)", out, re.DOTALL | re.MULTILINE))
        assert list(sections) == ["quality", "findings", *PRINTED]
        assert "Controller 2 (epoch 1) acted as a zombie" in sections["findings"]
        assert "…" not in out
        assert "..." not in out
        assert "\x1b" not in out
        header, row = (re.split(r"\s{2,}", line) for line in sections["zombies"].strip().splitlines())
        zombie = dict(zip(header, row, strict=True))
        assert (zombie["controller_id"], zombie["brokers"], zombie["packets"]) == ("2", "3,1", "386,388")
        for section in list(sections)[2:]:
            lines = sections[section].strip().splitlines()
            assert len({len(re.split(r"\s{2,}", line)) for line in lines}) == 1, section

    def test_the_event_log_shows_tasks_that_read_the_files(self, ran):
        (log,) = (ran[1] / "events").glob("local-*")
        events = [json.loads(line) for line in log.read_text().splitlines()]
        stages = {
            event["Stage Info"]["Stage ID"]: event["Stage Info"]
            for event in events
            if event["Event"] == "SparkListenerStageCompleted"
        }
        # Spark runs a stage that reads the packets, then one that puts the connections together
        first = min(stages)
        tasks = [e for e in events if e["Event"] == "SparkListenerTaskEnd" and e["Stage ID"] == first]
        assert stages[first]["Number of Tasks"] == len(tasks) == 2
        assert all(task["Task End Reason"]["Reason"] == "Success" for task in tasks)
        plans = [e for e in events if e["Event"].endswith("SparkListenerSQLExecutionStart")]
        assert any("BatchScan kafka-capture" in plan["physicalPlanDescription"] for plan in plans)
        assert any("MapInArrow" in plan["physicalPlanDescription"] for plan in plans)

    def test_parquet_has_the_documented_columns_and_their_version(self, ran):
        tables = ran[1] / "tables"
        schema = json.loads((tables / "_schema.json").read_text())
        assert schema["schema_version"] == SCHEMA_VERSION
        written = {path.name for path in tables.iterdir()} - {"_schema.json"}
        analyses = [analysis.table for analysis in job.ANALYSES.values()]
        assert written == set(schema["tables"]) == {table.name for table in (*WRITTEN, *analyses)}
        for table in (*WRITTEN, *analyses):
            read = pyarrow.parquet.read_table(tables / table.name)
            assert read.schema.names == [column.name for column in table.columns]
            for column in table.columns:
                found = read.schema.field(column.name).type
                # Spark names the elements of its lists otherwise
                assert str(found).replace("element:", "item:") == str(column.type), (table.name, column.name)
        zombies = pyarrow.parquet.read_table(tables / "zombies").to_pylist()
        assert [(z["controller_id"], z["brokers"]) for z in zombies] == [(2, ["3", "1"])]

    def test_the_exchanges_are_those_that_decode_prints(self, ran):
        rows = pyarrow.parquet.read_table(ran[1] / "tables" / "exchanges").to_pylist()
        wanted = set()
        for name in ("kafka-3.9.1-zombie", "kafka-2.3.1-tour"):
            with CaptureFile(CAPTURES[name]) as capture:
                answers = {}
                messages = list(Decoder(capture).messages())
            for message in messages:
                if not isinstance(message, Request):
                    answers[message.request] = message
            for message in messages:
                if isinstance(message, Request):
                    answer = answers.get(message)
                    body = message.body
                    wanted.add((
                        CAPTURES[name].name, message.place.packet, message.api_name, message.version,
                        message.correlation_id, message.client_id, message.peers.client[1], message.peers.server[1],
                        getattr(body, "controller_epoch", None), answer and answer.place.packet,
                        answer and answer.frame_bytes, getattr(answer and answer.body, "error_code", None),
                    ))  # fmt: skip
        columns = (
            "file", "packet", "api", "version", "correlation_id", "client_id", "client_port", "server_port",
            "controller_epoch", "response_packet", "response_bytes", "error_code",
        )  # fmt: skip
        assert {tuple(row[column] for column in columns) for row in rows} == wanted
        assert len(rows) == len(wanted)

    def test_the_partitions_are_those_of_the_requests(self, ran):
        rows = pyarrow.parquet.read_table(ran[1] / "tables" / "partitions").to_pylist()
        in_packet = [r for r in rows if r["packet"] == 333 and "zombie" in r["file"]]
        assert [
            (r["api"], r["topic"], r["partition"], r["leader"], r["leader_epoch"], r["isr"], r["replicas"], r["error"])
            for r in in_packet
        ] == [
            ("LeaderAndIsr", "orders", 0, 1, 1, [1, 3], [1, 2, 3], "NONE"),
            ("LeaderAndIsr", "orders", 1, -1, 1, [3, 1], [2, 3, 1], "NONE"),
            ("LeaderAndIsr", "orders", 2, 3, 1, [3, 1], [3, 1, 2], "NONE"),
        ]
        stopped = [r for r in rows if r["api"] == "StopReplica" and r["delete"]]
        assert {(r["topic"], r["partition"]) for r in stopped} >= {("solo", 0), ("solo", 1), ("solo", 2)}

    def test_the_report_tells_the_same(self, ran):
        page = (ran[1] / "report.html").read_text()
        assert "Controller 2 (epoch 1) acted as a zombie" in page


# bad input


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "there is no such file"),
        (b"", "not a capture: the file is empty"),
        (b"hello, world", "not a capture: it is text"),
    ],
)
def test_a_file_that_is_no_capture_is_named_in_one_line(spark, tmp_path, content, error):
    path = tmp_path / "bad.pcap"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CaptureError) as e:
        analyze([path], spark=spark)
    assert str(e.value) == f"{path}: {error}"
    if content is not None:  # the others are analysed
        found = analyze([ZOMBIE, path], spark=spark, only=["zombies"])
        assert len(found.zombies) == 1
        assert found.quality.lines()[0] == f"{path}: {error}"
        assert not found.quality.sound


def test_the_command_fails_in_one_line(tmp_path):
    result = kce("missing.pcap", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "kce: missing.pcap: there is no such file\n"


def test_a_report_does_not_overwrite_a_capture(tmp_path):
    capture = tmp_path / "my.pcap"
    capture.write_bytes(before := unzipped("kafka-3.9.1-zombie")[:100_000])
    for options in ([], ["my.pcap", "--compare"]):
        result = kce("./my.pcap", *options, "--report", "my.pcap", cwd=tmp_path)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == "kce: my.pcap: the report would overwrite this capture\n"
    assert capture.read_bytes() == before


def test_a_name_that_is_not_utf_8_is_said_in_one_line(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.pcap")).write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
    result = kce("*.pcap", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "kce: caf\\udce9.pcap: its name is not UTF-8: rename the file, or make a link to it\n"


def test_why_spark_cannot_be_started_is_said_in_one_line(tmp_path):
    result = kce(ZOMBIE, "--master", "nowhere", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("kce: Spark cannot be started: ")
    assert line.endswith("Master must either be yarn or start with spark, k8s, or local")


def test_each_file_by_itself_and_one_that_is_empty_stops_no_other(tmp_path):
    for name in ("kafka-3.9.1-zombie", "kafka-2.3.1-tour"):
        (tmp_path / CAPTURES[name].name).symlink_to(CAPTURES[name])
    (tmp_path / "empty.pcap").touch()
    result = kce("--each", "*.pcap*", "--report", "reports", "--fail-on", "alarm", cwd=tmp_path)
    assert result.returncode == 1
    assert re.findall("^# capture (.*)$", result.stdout, re.MULTILINE) == [
        "kafka-2.3.1-tour.pcap.gz", "kafka-3.9.1-zombie.pcap.gz"
    ]  # fmt: skip
    _, tour, zombie = result.stdout.split("# capture ")
    assert ("acted as a zombie" in tour, "acted as a zombie" in zombie) == (False, True)
    assert "kce: empty.pcap: not a capture: the file is empty" in result.stderr.splitlines()
    reports = {path.name: path.read_text() for path in (tmp_path / "reports").iterdir()}
    assert reports.keys() == {"kafka-2.3.1-tour.pcap.gz.html", "kafka-3.9.1-zombie.pcap.gz.html"}
    assert "acted as a zombie" not in reports["kafka-2.3.1-tour.pcap.gz.html"]


def test_a_truncated_file_is_analysed_as_far_as_it_goes(spark, tmp_path):
    path = tmp_path / "cut.pcap"
    path.write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
    found = analyze([path], spark=spark, only=["zombies"])
    assert len(found.zombies) == 1
    assert len(found.quality.problems) == 1
    assert found.quality.problems[0].startswith(f"{path}: ends inside packet")
    assert not found.quality.sound


def test_a_capture_of_something_else(spark, tmp_path):
    dns = ethernet(ipv4(b"\x12\x34\x00\x35\x00\x14\x00\x00" + bytes(12), protocol=17))
    (tmp_path / "dns.pcap").write_bytes(pcap([(START_NS, dns)] * 3))
    with pytest.raises(CaptureError, match=r"dns\.pcap: no Kafka traffic was found, but 3 packets of UDP$"):
        analyze([tmp_path / "dns.pcap"], spark=spark)


def test_kraft_traffic_is_named(spark, tmp_path):
    record_kraft(tmp_path / "kraft.pcapng")
    found = analyze([tmp_path / "kraft.pcapng"], spark=spark, report=tmp_path / "report.html", only=["controllers"])
    assert found.controllers == ()
    sentence = "there is no ZooKeeper-mode controller in it"
    assert any(sentence in line for line in found.quality.lines())
    assert sentence in (tmp_path / "report.html").read_text()


def test_ports_that_are_given(spark, tmp_path):
    ports = (9091, 9092, 9093)
    recorder = Recorder(tmp_path / "no-update-metadata.pcapng")
    for correlation_id, port in enumerate(ports):
        tap = recorder.connection(("127.0.0.1", 40001 + correlation_id), ("127.0.0.1", port))
        request = wire.encode_request(
            wire.MetadataRequest(topics=[]), api_version=9, correlation_id=correlation_id, client_id="me"
        )
        tap.sent("client", wire.frame(request))
        answer = wire.encode_response(wire.MetadataResponse(), api_version=9, correlation_id=correlation_id)
        tap.sent("server", wire.frame(answer))
        tap.close()
    recorder.close()

    def listeners(**given):
        found = analyze([tmp_path / "no-update-metadata.pcapng"], spark=spark, only=["latency"], **given)
        return [row.listener for row in found.latency], found.quality

    assert listeners()[0] == ["9091", "9092", "9093"]
    found, quality = listeners(ports={9091: "", 9092: "data"})
    assert found == ["9091", "data"]
    assert 0 < quality.other_packets["TCP of other ports"] < quality.packets
    assert quality.requests == 2


def test_only_a_span_of_a_capture(spark):
    """Its findings are those of a capture that begins and ends in the middle; who listens where is known."""
    with CaptureFile(ZOMBIE) as capture:
        requests = [message for message in Decoder(capture).messages() if isinstance(message, Request)]
    times = sorted(request.place.time_ns // 1000 * 1000 for request in requests)
    since_ns, until_ns = times[len(times) // 3], times[2 * len(times) // 3]
    whole = analyze([ZOMBIE], spark=spark, only=["requests", "transport"])

    def analyzed(*span):
        return analyze([ZOMBIE], spark=spark, only=["requests", "transport"], span=job.Span(*span))

    def count(found):
        return sum(row.requests for row in found.requests)

    def in_span(since, until):
        return sum(since <= time < until for time in times)

    part = analyzed(since_ns, until_ns)
    assert 0 < count(part) == in_span(since_ns, until_ns) < len(times)
    assert count(analyzed(since_ns, None)) == in_span(since_ns, math.inf)
    assert count(analyzed(None, until_ns)) == in_span(0, until_ns)
    assert part.endpoints == whole.endpoints
    assert part.quality == whole.quality
    assert count(whole) == len(times)
    with pytest.raises(CaptureError, match=r"no request in that time; there are requests from 2026-\S+ \S+ to 2026-"):
        analyzed(times[-1] + 1_000_000_000, None)


def test_a_folder_that_is_not_empty_is_not_overwritten_unasked(spark, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(CaptureError, match="the folder is not empty; --overwrite replaces the tables in it"):
        analyze([ZOMBIE], spark=spark, out=tmp_path)
    (tmp_path / "zombies").mkdir()
    (tmp_path / "zombies" / "old.parquet").write_text("stale")
    analyze([ZOMBIE], spark=spark, out=tmp_path, overwrite=True, only=["zombies"])
    assert (tmp_path / "mine.txt").read_text() == "precious"
    assert [path.name for path in (tmp_path / "zombies").iterdir()] == ["part-0.parquet"]


def test_ctrl_c_stays_with_those_who_have_it(spark):
    # a process that was started in the background may ignore it from the beginning
    assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)


def test_a_failure_of_spark_is_reported_in_one_line(spark, monkeypatch):
    failing = dataclasses.replace(job.ANALYSES["requests"], run=lambda of: of.exchanges.select("no_such_column"))
    monkeypatch.setitem(job.ANALYSES, "requests", failing)
    with pytest.raises(CaptureError, match=r"^Spark failed: .*no_such_column.*$"):
        analyze([ZOMBIE], spark=spark)


AWAITED = """An error occurred while calling o128.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\x20
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2935)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


def test_a_failure_of_java_is_said_with_its_first_cause():
    assert job._reason(AWAITED) == "Exception thrown in awaitResult: java.io.IOException: No space left on device"
    alone = "An error occurred while calling o1.count.\n: java.lang.OutOfMemoryError: Java heap space\n\tat x\n"
    assert job._reason(alone) == "java.lang.OutOfMemoryError: Java heap space"
    assert job._reason("\n[X] no_such_column\nmore") == "[X] no_such_column"
    assert job._reason("") == ""


def test_targets_are_checked_before_anything_is_read(tmp_path):
    with pytest.raises(CaptureError, match="there is no folder"):
        analyze([ZOMBIE], report=tmp_path / "nowhere" / "report.html")
    with pytest.raises(CaptureError, match="a folder, not a file for the report"):
        analyze([tmp_path / "nowhere"], report=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="cannot be written"):
        analyze([ZOMBIE], out=tmp_path / "file")
    with pytest.raises(CaptureError, match="no capture given"):
        analyze([])


def test_topics_of_any_name_do_no_harm(spark, tmp_path):
    recorder = Recorder(tmp_path / "x.pcapng")
    tap = recorder.connection(("127.0.0.1", 40001), ("127.0.0.1", 9093))
    topic = "<script>alert(1)</script>$x^2$&"
    state = wire.UpdateMetadataPartitionState(partition_index=0, controller_epoch=1, leader=1)
    moved = wire.UpdateMetadataPartitionState(partition_index=0, controller_epoch=1, leader=2, leader_epoch=1)
    for correlation_id, partition in enumerate((state, moved)):
        body = wire.UpdateMetadataRequest(
            controller_id=1, controller_epoch=1,
            topic_states=(wire.UpdateMetadataTopicState(topic_name=topic, partition_states=(partition,)),),
        )  # fmt: skip
        frame = wire.encode_request(body, api_version=5, correlation_id=correlation_id, client_id="1")
        tap.sent("client", wire.frame(frame))
    recorder.close()
    found = analyze([tmp_path / "x.pcapng"], spark=spark, report=tmp_path / "report.html", only=["leadership"])
    assert {change.topic for change in found.leadership} == {topic}
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
