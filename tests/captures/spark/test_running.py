"""Histories that are cut into chunks of time give what they give as a whole, and none is one task.

Covers: kce.captures.spark.analyses.running
"""

from __future__ import annotations

import datetime
import itertools
import random
import re

import pytest
from pyspark.sql import functions as f

from kce.captures.spark import analyze, job
from kce.captures.spark.analyses import ANALYSES, inputs, running
from tests.captures.samples import CAPTURES
from tests.captures.spark.test_analyses import of

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

#: analyses that look at all that came before, of a broker, a listener, a client or a connection
HISTORIES = (
    "outages",
    "silences",
    "zombie_leaders",
    "regressions",
    "control_behind_data",
    "clients",
    "bounces",
    "propagation",
)

#: what a window may be about, however long the capture: a partition, a group, a failover, a silence, a request, a chunk
KEYS = {"partition", "group_id", "from_leader", "last", "packet", "chunk"}

#: what a window may go through: rows that were counted together before: chunks, lives of brokers, listeners, failovers,
#: silences
ORDERS = {"chunk", "broker_epoch", "number", "last_time", "moment", "begin"}


def test_chunks_and_the_whole_agree(spark, monkeypatch):
    monkeypatch.setattr(running, "CHUNK_S", 10)
    rng = random.Random(7)
    rows = [
        (rng.choice(["a", "b", None]), START + datetime.timedelta(seconds=rng.randrange(200)), packet,
         rng.choice([None, rng.randrange(-50, 50)]))
        for packet in range(300)
    ]  # fmt: skip
    given = spark.createDataFrame(rows, "key string, time timestamp, packet int, value int")
    found = []
    for is_long in (False, True):
        frame = given
        for kind, before in itertools.product(("LAST", "HIGHEST", "LOWEST", "TOTAL"), (False, True)):
            frame = running.with_running(
                frame, getattr(running, kind), f.col("value"), f"{kind}_{before}", keys=["key"],
                order=["time", "packet"], before=before, is_long=is_long,
            )  # fmt: skip
        found.append(frame.orderBy("packet").collect())
    whole, chunked = found
    assert chunked == whole
    for column in whole[0].__fields__[4:]:
        assert len({row[column] for row in whole}) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kafka-1.1.1-tour", "kafka-3.9.1-zombie"])
def test_analyses_of_a_large_capture_find_the_same(spark, findings_of, monkeypatch, name):
    small = findings_of(name)
    monkeypatch.setattr(running, "CHUNK_S", 1)
    monkeypatch.setattr(job, "_BYTES_PER_TASK", CAPTURES[name].stat().st_size // 2)
    large = analyze([CAPTURES[name]], spark=spark, only=HISTORIES)
    for table in HISTORIES:
        assert getattr(large, table) == getattr(small, table), table


def test_no_window_of_a_large_capture_is_over_a_whole_history(spark):
    live = [("10.0.0.1", 9093, [1])]
    given = of(spark, [{"time": 1, "response_time": 2}], [{"time": 1, "leader": 1, "leader_epoch": 0}], live)
    frames = inputs.frames(given.exchanges, given.partitions, given.live_brokers, given.connections, is_long=True)
    seen = 0
    found = []
    for name, analysis in ANALYSES.items():
        for window in windows(analysis.run(frames)._jdf.queryExecution().optimizedPlan()):
            keys, orders = names(window.partitionSpec()), names(window.orderSpec())
            seen += 1
            # of the rows with the highest rank, tasks pass on no more than these
            is_limited = window.children().apply(0).nodeName() == "WindowGroupLimit"
            if not (is_limited or KEYS & set(keys) or (orders[:1] and orders[0] in ORDERS)):
                found.append((name, keys, orders))
    assert found == [], found
    assert seen > 50


def windows(plan):
    """All nodes of a plan that are windows."""
    if plan.nodeName() == "Window":
        yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from windows(children.apply(at))


def names(expressions):
    """The columns of a window's keys or of its order."""
    return [re.match(r"'?(\w+)", expressions.apply(at).toString())[1] for at in range(expressions.size())]
