"""The analyses one by one, on rows made up for what they must tell apart."""

from __future__ import annotations

import datetime

import pytest

from captures.rows import ANALYSES, ENDPOINTS, EXCHANGES, PARTITIONS
from captures.spark import analyses
from captures.spark.schemas import spark_schema, spark_type

pytestmark = pytest.mark.slow

START = datetime.datetime(2026, 11, 21, 2, 45, tzinfo=datetime.UTC)


def frame(spark, table, rows, **common):
    """A frame of ``table``; what a row does not say is null. ``time`` is seconds after START."""
    schema = spark_schema(table)
    values = []
    for i, row in enumerate(rows, 1):
        row = {"packet": i, "file": "x", "time": i, **common, **row}
        for name in ("time", "first_time", "last_time"):
            if isinstance(row.get(name), (int, float)):
                row[name] = START + datetime.timedelta(seconds=row[name])
        values.append(tuple(row.get(field.name) for field in schema))
    return spark.createDataFrame(values, schema)


def exchanges(spark, *rows):
    made = frame(
        spark, EXCHANGES, rows, api_key=6, api="UpdateMetadata", is_control=True, server="10.0.0.1", server_port=9093
    )
    return analyses.at_listeners(made, frame(spark, ENDPOINTS, []))


def sent(controller, epoch, error=0, **more):
    names = {0: "NONE", 11: "STALE_CONTROLLER_EPOCH", 77: "STALE_BROKER_EPOCH"}
    return {
        "controller_id": controller, "controller_epoch": epoch, "error_code": error, "error": names[error], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("requests", "accused"),
    [
        ([sent(1, 4), sent(2, 5), sent(1, 4, 11)], [(1, 4, 5, 1)]),
        ([sent(1, 4), sent(2, 5), sent(1, 4)], []),  # late, but nobody refused it
        ([sent(1, 4, 11), sent(2, 5)], []),  # refused, but no later epoch was seen to have begun
        ([sent(2, 5), sent(1, 4, 77)], []),  # a stale broker epoch is something else
        ([sent(2, 5), sent(2, 5, 11)], []),  # its own epoch is no later one
        ([sent(2, 6), sent(1, 4, 11), sent(3, 3, 11), sent(1, 4, 11)], [(1, 4, 6, 2), (3, 3, 6, 1)]),
        ([], []),
    ],
)
def test_who_is_a_zombie_and_who_is_not(spark, requests, accused):
    rows = analyses.zombies(exchanges(spark, *requests)).collect()
    assert [(r.controller_id, r.controller_epoch, r.later_epoch, r.requests) for r in rows] == accused


def test_a_zombies_brokers_and_packets_are_in_the_order_of_its_requests(spark):
    late = [sent(1, 4, 11, server=f"10.0.0.{n}", time=20 - i) for i, n in enumerate((3, 1, 3))]
    (zombie,) = analyses.zombies(exchanges(spark, sent(2, 5), *late)).collect()
    assert zombie.packets == [4, 3, 2]
    assert zombie.brokers == ["10.0.0.3:9093", "10.0.0.1:9093"]
    assert zombie.last_time - zombie.first_time == datetime.timedelta(seconds=2)


def test_fenced_by_sender(spark):
    rows = analyses.fenced(
        exchanges(
            spark, sent(1, 4, 77), sent(1, 4, 77), sent(1, 4),
            {"api": "AlterPartition", "is_control": False, "sender_broker_id": 3, "error_code": 77,
             "error": "STALE_BROKER_EPOCH"},
        )
    ).collect()  # fmt: skip
    assert [(r.error, r.controller_id, r.sender_broker_id, r.api, r.requests, r.packets) for r in rows] == [
        ("STALE_BROKER_EPOCH", 1, None, "UpdateMetadata", 2, [1, 2]),
        ("STALE_BROKER_EPOCH", None, 3, "AlterPartition", 1, [4]),
    ]


def leaders(spark, *states):
    """(leader, leader epoch, more) of partition orders-0, in order."""
    rows = [{"leader": leader, "leader_epoch": epoch, **more} for leader, epoch, more in states]
    made = frame(spark, PARTITIONS, rows, topic="orders", partition=0, isr=[1], decision_epoch=1, response_error_code=0)
    return [(r.from_leader, r.to_leader, r.from_epoch, r.to_epoch) for r in analyses.leadership(made).collect()]


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        ([(1, 0, {}), (1, 0, {}), (2, 1, {}), (2, 1, {})], [(None, 1, None, 0), (1, 2, 0, 1)]),
        ([(1, 0, {}), (1, 1, {}), (1, 2, {})], [(None, 1, None, 0)]),  # the same leader in a new epoch
        ([(1, 0, {}), (-1, 1, {}), (3, 2, {})], [(None, 1, None, 0), (1, -1, 0, 1), (-1, 3, 1, 2)]),
        ([(2, 1, {}), (1, 0, {}), (2, 1, {})], [(1, 2, 0, 1), (None, 1, None, 0)]),  # told late: the epoch decides
        ([(1, 5, {}), (9, 6, {"response_error_code": 11})], [(None, 1, None, 5)]),  # refused as a whole
        ([(1, 5, {}), (2, 6, {"response_error_code": None})], [(None, 1, None, 5), (1, 2, 5, 6)]),  # not answered
        (
            # deleted and created anew without topic ids; one broker hears all of it later than the other
            [
                (1, 3, {"server": "a"}), (-2, 0, {"server": "a"}), (1, 3, {"server": "b"}), (1, 0, {"server": "a"}),
                (-2, 0, {"server": "b"}), (1, 0, {"server": "b"}),
            ],
            [(None, 1, None, 3), (1, -2, 3, None), (None, 1, None, 0)],
        ),
        (
            # the same with topic ids, which the deletion itself may lack
            [
                (1, 3, {"server": "a", "topic_id": "t"}), (-2, 0, {"server": "a"}),
                (1, 3, {"server": "b", "topic_id": "t"}), (-2, 0, {"server": "b"}),
            ],
            [(None, 1, None, 3), (1, -2, 3, None)],
        ),
        (
            # another topic of that name
            [(1, 3, {"topic_id": "a"}), (2, 0, {"topic_id": "b"})],
            [(None, 1, None, 3), (None, 2, None, 0)],
        ),
        ([], []),
    ],
)  # fmt: skip
def test_leadership(spark, states, changes):
    assert leaders(spark, *states) == changes


def test_listeners_by_address_by_port_and_not_at_all(spark):
    endpoints = [
        {"broker_id": 1, "listener": "DATA", "host": "10.0.0.1", "port": 9092, "last_time": 1},
        {"broker_id": 2, "listener": "DATA", "host": "kafka-2", "port": 19092, "last_time": 1},
        {"broker_id": 3, "listener": "DATA", "host": "kafka-3", "port": 29092, "last_time": 1},
        {"broker_id": 4, "listener": "DATA", "host": "kafka-4", "port": 29092, "last_time": 1},
        {"broker_id": 5, "listener": "OLD", "host": "10.0.0.5", "port": 9092, "last_time": 1},
        {"broker_id": 6, "listener": "NEW", "host": "10.0.0.5", "port": 9092, "last_time": 2},  # came later
    ]
    asked = [("10.0.0.1", 9092), ("10.0.0.9", 19092), ("10.0.0.9", 29092), ("10.0.0.9", 1), ("10.0.0.5", 9092)]
    made = analyses.at_listeners(
        frame(spark, EXCHANGES, [{"server": server, "server_port": port} for server, port in asked]),
        frame(spark, ENDPOINTS, endpoints),
    )
    rows = made.orderBy("packet").collect()
    assert [(r.broker_id, r.listener, r.broker) for r in rows] == [
        (1, "DATA", "1"),
        (2, "DATA", "2"),
        (None, "29092", "10.0.0.9:29092"),
        (None, "1", "10.0.0.9:1"),
        (6, "NEW", "6"),
    ]


def test_nothing_gives_nothing(spark):
    none, no_partitions = exchanges(spark), frame(spark, PARTITIONS, [])
    for made in (
        analyses.requests(none), analyses.controllers(none, no_partitions), analyses.latency(none),
        analyses.fenced(none), analyses.stale_partitions(none, no_partitions), analyses.ticks(none),
        analyses.latency_counts(none),
    ):  # fmt: skip
        assert made.collect() == []


def test_every_analysis_has_the_columns_it_promises(spark):
    none, no_partitions = exchanges(spark), frame(spark, PARTITIONS, [])
    made = (
        analyses.requests(none), analyses.controllers(none, no_partitions), analyses.leadership(no_partitions),
        analyses.latency(none), analyses.fenced(none), analyses.stale_partitions(none, no_partitions),
        analyses.zombies(none),
    )  # fmt: skip
    for table, analysis in zip(ANALYSES, made, strict=True):
        wanted = [(c.name, spark_type(c.type).simpleString()) for c in table.columns]
        assert [(f.name, f.dataType.simpleString()) for f in analysis.schema] == wanted
