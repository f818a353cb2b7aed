"""Sail: what it finds is what Spark finds; when it is used; and what happens if it fails.

Covers: kce.captures.spark.sail, kce.captures.spark.sail_server
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import subprocess
import sys

import grpc
import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql import is_remote

from kce.captures.spark import analyze, analyze_each, job, sail, small
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.samples import CAPTURES
from tests.captures.wiretap import observe

pytestmark = pytest.mark.slow

ZOMBIE = str(CAPTURES["kafka-3.9.1-zombie"])

KCE = [sys.executable, "-P", "-c", "import sys; from kce.harness.cli import main; sys.exit(main())"]

#: A program that has no Java, and shows it if its analysis wants one.
WITHOUT_JAVA = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": ""}


def alike(one, other):
    """Equal but for the last digits of percentiles, which Spark and Sail interpolate in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    if dataclasses.is_dataclass(one):
        one, other = vars(one), vars(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def assert_same(sails, sparks):
    assert sails.sentences() == sparks.sentences()
    for name, rows in sparks.tables.items():
        assert alike([dataclasses.asdict(row) for row in sails.tables[name]],
                     [dataclasses.asdict(row) for row in rows]), name  # fmt: skip
    assert sails.quality == sparks.quality
    assert sails.exchanges == sparks.exchanges


@pytest.mark.parametrize("name", CAPTURES)
def test_sail_finds_what_spark_finds_in_captures_of_real_kafka(findings_of, on_sail, name):
    assert_same(analyze([CAPTURES[name]], evidence=True), findings_of(name))


@pytest.mark.parametrize("seed", [1, 13])
def test_sail_finds_what_spark_finds_in_damaged_captures(spark, on_sail, tmp_path, seed):
    capture = tmp_path / "made.pcap"
    capture.write_bytes(observe(tap_of(seed), seed, **CASES["all of it"]).pcap)
    assert_same(analyze([capture], evidence=True), analyze([capture], spark=spark, evidence=True))


def test_sail_finds_what_spark_finds_in_a_span(spark, on_sail, findings_of):
    middle_ns = int(findings_of("kafka-3.9.1-zombie").controllers[0].last_time.timestamp() * 1e9)
    for span in (job.Span(until_ns=middle_ns), job.Span(since_ns=middle_ns)):
        assert_same(
            analyze([ZOMBIE], span=span, evidence=True), analyze([ZOMBIE], spark=spark, span=span, evidence=True)
        )


def test_small_captures_need_no_java_and_no_module_of_the_current_folder(tmp_path):
    (tmp_path / "resource.py").write_text("raise RuntimeError('a stranger')")
    command = [*KCE, "analyze", ZOMBIE, "--report", str(tmp_path / "r.html"), "--out",
               str(tmp_path / "tables")]  # fmt: skip
    ran = subprocess.run(
        command, capture_output=True, text=True, env=WITHOUT_JAVA, cwd=tmp_path, timeout=120, check=True
    )
    assert "Sail failed" not in ran.stderr
    assert "acted as a zombie" in ran.stdout
    assert (tmp_path / "r.html").stat().st_size > 100_000
    ran = subprocess.run([*command, "--overwrite", "--master", "local[1]"], capture_output=True, text=True,
                         env=WITHOUT_JAVA, timeout=120, check=False)  # fmt: skip
    assert ran.returncode == 1
    assert "Java 17 or later is needed" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_large_captures_of_few_requests_need_no_spark(on_sail, monkeypatch, findings_of):
    """Rows are sent in parts, and histories are whole."""
    monkeypatch.setattr(job, "_BYTES_PER_TASK", 1000)
    monkeypatch.setattr(sail, "MAX_SENT_BYTES", 1000)
    assert_same(analyze([ZOMBIE], evidence=True), findings_of("kafka-3.9.1-zombie"))
    ((_, found),) = analyze_each([ZOMBIE], evidence=True)
    assert_same(found, findings_of("kafka-3.9.1-zombie"))


@pytest.mark.parametrize("limit", ["MAX_BYTES", "MAX_STATES_BYTES"])
def test_larger_ones_and_those_of_many_requests_are_for_spark(on_sail, monkeypatch, limit):
    monkeypatch.setattr(small, limit, 1000)
    with pytest.raises(AssertionError, match="Spark is not needed"):
        analyze([ZOMBIE])


def test_rows_are_sent_in_parts_of_a_bounded_size(monkeypatch):
    rows = pa.Table.from_batches([pa.record_batch({"a": list(range(at, at + 100))}) for at in range(0, 1000, 100)])
    monkeypatch.setattr(sail, "MAX_SENT_BYTES", 2 * rows.nbytes // 10)
    parts = list(sail._parts(rows))
    assert [part.num_rows for part in parts] == [200] * 5
    assert pa.concat_tables(parts) == rows
    monkeypatch.setattr(sail, "MAX_SENT_BYTES", 1)  # no batch is divided
    assert [part.num_rows for part in sail._parts(rows)] == [100] * 10


def test_a_proxy_of_the_environment_is_not_asked(on_sail, monkeypatch):
    for name in ("http_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert analyze([ZOMBIE], only=["zombies"]).zombies


def test_sail_is_for_processes_without_spark_and_for_versions_that_it_speaks(monkeypatch):
    monkeypatch.setattr(sail.SparkContext, "_active_spark_context", None)
    assert sail.is_usable()
    with monkeypatch.context() as patched:
        patched.setattr(pyspark, "__version__", "4.3.0")
        assert not sail.is_usable()
    with monkeypatch.context() as patched:
        patched.setattr(sail.SparkContext, "_active_spark_context", object())
        assert not sail.is_usable()
    with sail.connect_mode():
        assert not sail.is_usable()
    assert not is_remote()


@pytest.mark.parametrize("failing", ["a query", "its start", "its end"])
def test_spark_goes_on_where_sail_fails(spark, monkeypatch, caplog, failing):
    monkeypatch.setattr(sail, "is_usable", lambda: True)
    monkeypatch.setattr(job, "local_session", lambda *args, **options: contextlib.nullcontext(spark))
    match failing:
        case "a query":
            monkeypatch.setattr(sail, "kept", lambda frame: frame.select(f.java_method(f.lit("a"), f.lit("b"))).count())
        case "its start":
            monkeypatch.setattr(sail, "MAX_BYTES", 1)
        case "its end":

            def killed(frame):
                servers = [each for each in psutil.Process().children() if "sail_server" in " ".join(each.cmdline())]
                max(servers, key=psutil.Process.create_time).kill()
                return frame.toArrow()

            monkeypatch.setattr(sail, "kept", killed)
    with caplog.at_level(logging.WARNING, "kce.captures.spark.job"):
        assert analyze([ZOMBIE], only=["zombies"]).zombies
    (record,) = caplog.records
    assert record.getMessage().startswith("Sail failed, Spark goes on: ")
    assert not is_remote()


def test_an_answer_that_cannot_be_read_is_asked_for_again(sail_of_session, monkeypatch):
    read, failures = grpc._common.deserialize, [True, True]
    monkeypatch.setattr(
        grpc._common, "deserialize", lambda data, of: None if failures and failures.pop() else read(data, of)
    )
    assert sail_of_session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert not failures
    failures += [True] * 9
    with pytest.warns(UserWarning, match="retries"), pytest.raises(PySparkException):
        sail_of_session.conf.get("spark.sql.session.timeZone")
    assert len(failures) == 5  # four tries


def test_a_query_that_needs_too_much_memory_ends_sail_alone(monkeypatch):
    monkeypatch.setattr(sail, "MAX_BYTES", 2 * 1024**3)
    with pytest.raises(sail.SailError), sail.sail_session() as session, sail.connect_mode():
        session.range(60_000_000).select(f.collect_list("id")).toArrow()


def test_sail_ends_with_its_process_however_that_ends():
    program = (
        "from kce.captures.spark.sail import sail_session\nwith sail_session(): print('ready', flush=True); input()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"ready\n"
        (server,) = psutil.Process(parent.pid).children()
        parent.kill()
        server.wait(30)


def test_each_of_several_captures(on_sail, tmp_path):
    bad = tmp_path / "bad.pcap"
    bad.write_bytes(b"no capture")
    names = [ZOMBIE, str(bad), ZOMBIE]
    first, error, last = (found for _, found in analyze_each(names, only=["zombies"]))
    assert first.zombies == last.zombies != ()
    assert "bad.pcap" in str(error)
