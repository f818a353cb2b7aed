"""Two captures side by side: what differs is said, what is incidental is not."""

from __future__ import annotations

import json
import re

import pytest

from kce.captures.exchanges.quality import Quality
from kce.captures.spark.compare import FORMS, compare
from kce.captures.spark.findings import ROWS, Findings
from tests.captures.samples import CAPTURES
from tests.captures.spark.test_incidents import at, row


def requests(api, version, count):
    return ROWS["requests"](6, api, version, count, count, 0, 10, 10)


def change(seconds, partition, before, after):
    return row("leadership", time=at(seconds), topic="orders", partition=partition, from_leader=before, to_leader=after)


def latency(api, version, count, *ms):
    return ROWS["latency"](6, api, version, "CONTROL", count, ms[0], ms[0], *ms[1:])


def error(name, count, broker="1"):
    return row(
        "errors", api="Fetch", error=name, error_code=74, count=count, broker=broker, client_id="c", is_control=False,
        first_time=at(count), last_time=at(count + 1), packets=tuple(range(1, count + 1)), files=("x",) * count,
    )  # fmt: skip


BEFORE = Findings(
    files=("before.pcap",), quality=Quality(packets=10, requests=5, responses=5),
    tables={
        "requests": (requests("LeaderAndIsr", 4, 3), requests("Fetch", 11, 7)),
        "leadership": (change(1, 0, None, 1), change(2, 0, 1, 2), change(3, 1, 2, -1)),
        "latency": (latency("LeaderAndIsr", 4, 9, 2.0, 4.0, 10.0), latency("LeaderAndIsr", 3, 2, 9e9, 9e9, 9e9)),
        "errors": (error("FENCED_LEADER_EPOCH", 3),),
    },
)  # fmt: skip
AFTER = Findings(
    files=("<after>.pcap",), quality=Quality(packets=10, requests=6, responses=5),
    tables={
        "requests": (requests("LeaderAndIsr", 7, 3), requests("Fetch", 11, 9)),
        "leadership": (change(5, 0, None, 1), change(6, 1, 2, -1), change(7, 0, 1, 2)),
        "latency": (latency("LeaderAndIsr", 7, 9, 2.1, 4.1, 30.0),),
        "errors": (error("FENCED_LEADER_EPOCH", 8), error("NOT_LEADER_OR_FOLLOWER", 1)),
    },
)  # fmt: skip


def parts(compared):
    return {part.heading: [tuple(each) for each in part.rows] for part in compared.parts}


def test_what_differs():
    compared = compare(BEFORE, AFTER)
    assert parts(compared) == {
        "Counts": [
            ("requests", "5", "6"), ("Fetch requests", "7", "9"), ("Fetch: FENCED_LEADER_EPOCH", "3", "8"),
            ("Fetch: NOT_LEADER_OR_FOLLOWER", "0", "1"),
        ],
        "Versions": [("LeaderAndIsr", "4", "7")],
        "Order of leader changes": [
            ("at the beginning", None, "orders-1 2 → none"), ("after orders-0 1 → 2", "orders-1 2 → none", None),
        ],
        "Latencies": [("LeaderAndIsr at CONTROL, longest", "10 ms", "30 ms (3 times)")],
    }  # fmt: skip
    assert [finding.text.split(" from")[0] for finding in compared.new if finding.analysis == "errors"] == [
        "Fetch: 1 x NOT_LEADER_OR_FOLLOWER"
    ]
    assert [finding for finding in compared.gone if finding.analysis == "errors"] == []  # more often is not another


def test_what_is_the_same():
    compared = compare(BEFORE, BEFORE)
    assert all(not part.rows for part in compared.parts)
    assert (compared.gone, compared.new) == ((), ())
    assert compared.kept == len(BEFORE.findings()) > 0


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_says_it(form):
    text = FORMS[form](compare(BEFORE, AFTER))
    for part in ("Fetch requests", "orders-1 2", "NOT_LEADER", "before.pcap"):
        assert part in text.replace("\\_", "_")
    if form == "json":
        assert json.loads(text)["differences"]["Counts"][0] == {"what": "requests", "before": "5", "after": "6"}
    if form == "html":
        assert "&lt;after&gt;.pcap" in text
        assert not re.search(r"<script|href=|src=", text)


@pytest.mark.slow
def test_two_eras_in_one_session(spark, monkeypatch):
    import contextlib

    from kce.captures.spark import job

    monkeypatch.setattr(job, "local_session", lambda **options: contextlib.nullcontext(spark))
    compared = job.analyze_both(
        str(CAPTURES["kafka-2.3.1-tour"]), str(CAPTURES["kafka-3.9.1-tour"]), only=["requests", "controllers"]
    )
    versions = parts(compared)["Versions"]
    assert ("LeaderAndIsr", "2", "7") in versions
    assert ("UpdateMetadata", "5", "8") in versions
    assert ("AlterPartition", None, "3") in versions
