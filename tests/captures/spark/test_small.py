"""Small captures: decoded by the driver, in few jobs.

Covers: kce.captures.spark.small
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from py4j.java_gateway import GatewayClient

from kce.captures.spark import analyze, job, small
from tests.captures.samples import CAPTURES

ZOMBIE = str(CAPTURES["kafka-3.9.1-zombie"])

#: One for each analysis (some join with a broadcast table), and some that prepare.
MAX_JOBS = 100


@pytest.mark.slow
def test_the_driver_finds_what_tasks_find_in_few_jobs(spark, monkeypatch, awkward):
    jobs = spark.sparkContext.statusTracker()
    for path in (ZOMBIE, str(awkward)):
        before = max(jobs.getJobIdsForGroup(), default=-1)  # Spark forgets old jobs, and numbers all
        here = analyze([path], spark=spark, evidence=True)
        assert 0 < max(jobs.getJobIdsForGroup()) - before <= MAX_JOBS
        with monkeypatch.context() as patched:
            patched.setattr(job, "_is_here", lambda *where: False)
            by_tasks = analyze([path], spark=spark, evidence=True)
        for field in dataclasses.fields(here):
            assert getattr(here, field.name) == getattr(by_tasks, field.name), field.name


@pytest.mark.slow
@pytest.mark.parametrize("is_known_first", [True, False])
def test_many_partition_states_are_not_for_one_task(spark, monkeypatch, is_known_first):
    """Tasks decode them, and queries are compiled, also in a session that was started for a small capture."""
    names = ("spark.sql.codegen.wholeStage", "spark.sql.adaptive.enabled", "spark.sql.codegen.factoryMode")
    brief, only = {name: spark.conf.get(name) for name in names}, ["controllers", "leadership"]
    expected = analyze([ZOMBIE], spark=spark, only=only)
    started, of_tasks = threading.Event(), []
    decode, reassemble = small.decode, job.reassembly.decode

    def decoded(*args, **options):
        started.wait()
        return decode(*args, **options)

    @contextlib.contextmanager
    def local_session(event_log, *, brief, master):
        assert brief != is_known_first
        started.set()
        if not brief:
            job.lengthen(spark)
        yield spark

    monkeypatch.setattr(small, "_STATES_BYTES_OF_ONE_TASK", 1000)
    monkeypatch.setattr(small, "decode", decoded)
    monkeypatch.setattr(job, "local_session", local_session)
    monkeypatch.setattr(job.reassembly, "decode", lambda *a, **o: of_tasks.append(1) or reassemble(*a, **o))
    if is_known_first:  # as after Sail
        started.set()
        monkeypatch.setattr(job, "ThreadPoolExecutor", _AtOnce)
    try:
        found = analyze([ZOMBIE], master="local[2]", only=only)
        assert {name: spark.conf.get(name) for name in names} == {
            names[0]: "true", names[1]: "true", names[2]: "FALLBACK",
        }  # fmt: skip
    finally:
        for name, value in brief.items():
            spark.conf.set(name, value)
    assert of_tasks
    assert found.tables == expected.tables


class _AtOnce(ThreadPoolExecutor):
    """What is submitted is done when that returns."""

    def submit(self, *args, **options):
        future = super().submit(*args, **options)
        wait([future])
        return future


@pytest.mark.parametrize("limit", ["MAX_STATES_BYTES", "MAX_DECODED_BYTES"])
def test_what_is_too_large_for_one_process_is_left_to_tasks(monkeypatch, limit):
    assert small.decode([ZOMBIE]).num_rows > 100
    monkeypatch.setattr(small, limit, 1000)
    assert small.decode([ZOMBIE]) is None


@pytest.mark.slow
def test_java_is_asked_for_a_name_once(spark, monkeypatch):
    asked = []
    send = GatewayClient.send_command

    def counted(self, command, *args, **options):
        asked.append(command)
        return send(self, command, *args, **options)

    monkeypatch.setattr(GatewayClient, "send_command", counted)
    for _ in range(2):
        asked.clear()
        spark._jvm.org.apache.spark.sql.expressions.Window.partitionBy  # noqa: B018 - only the lookup
    assert [command for command in asked if command.startswith("r\n")] == []
