"""Small captures: decoded by the driver, in few jobs.

Covers: kce.captures.spark.small
"""

from __future__ import annotations

import dataclasses

import pytest
from py4j.java_gateway import GatewayClient

from kce.captures.spark import analyze, job, small
from tests.captures.samples import CAPTURES

ZOMBIE = str(CAPTURES["kafka-3.9.1-zombie"])

#: One for each analysis (some join with a broadcast table), and some that prepare.
MAX_JOBS = 92


@pytest.mark.slow
def test_the_driver_finds_what_tasks_find_in_few_jobs(spark, monkeypatch, awkward):
    jobs = spark.sparkContext.statusTracker()
    for path in (ZOMBIE, str(awkward)):
        before = max(jobs.getJobIdsForGroup(), default=-1)  # Spark forgets old jobs, and numbers all
        here = analyze([path], spark=spark, evidence=True)
        assert 0 < max(jobs.getJobIdsForGroup()) - before <= MAX_JOBS
        with monkeypatch.context() as patched:
            patched.setattr(job.small, "decode", lambda *args, **options: None)
            by_tasks = analyze([path], spark=spark, evidence=True)
        for field in dataclasses.fields(here):
            assert getattr(here, field.name) == getattr(by_tasks, field.name), field.name


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
