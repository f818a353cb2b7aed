"""The analyses one by one, on rows made up for what they must tell apart.

Covers: kce.captures.spark.analyses.analysis, kce.captures.spark.analyses.controllers,
kce.captures.spark.analyses.control_behind_data, kce.captures.spark.analyses.latency,
kce.captures.spark.analyses.leadership, kce.captures.spark.analyses.regressions,
kce.captures.spark.analyses.errors, kce.captures.spark.analyses.outages, kce.captures.spark.analyses.clients,
kce.captures.spark.analyses.common, kce.captures.spark.analyses.failovers, kce.captures.spark.analyses.bounces,
kce.captures.spark.analyses.reassignments, kce.captures.spark.analyses.under_replicated,
kce.captures.spark.analyses.propagation, kce.captures.spark.analyses.isr_storms
"""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql import is_remote

from kce.captures.spark import analyses, sail
from kce.captures.spark.analyses import ANALYSES, inputs, outages, silences
from kce.captures.spark.reassembly import at_listeners
from kce.captures.spark.schemas import spark_type
from kce.captures.tables.rows import CONNECTIONS, DECODED, ENDPOINTS, EXCHANGES, PARTITIONS
from tests.captures.spark.test_incidents import client, found
from tests.captures.spark.test_incidents import row as row_of

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(engine):
    """Each test is for Spark and for Sail."""
    return engine


START = datetime.datetime(2026, 11, 21, 2, 45, tzinfo=datetime.UTC)


def frame(spark, table, rows, **common):
    """A frame of ``table``; what a row does not say is null. ``time`` is seconds after START."""
    values = []
    for i, row in enumerate(rows, 1):
        row = {"packet": i, "file": "x", "time": i, **common, **row}
        for name in ("time", "first_time", "last_time", "response_time"):
            if isinstance(row.get(name), (int, float)):
                row[name] = START + datetime.timedelta(seconds=row[name])
        values.append(row)
    made = sail.frame_of(spark, pa.Table.from_pylist(values, schema=table.schema))
    return made.coalesce(1)  # no shuffles: they would take most of the time


def kept(frame):
    """As in a job: shorter plans."""
    return sail.kept(frame) if is_remote() else frame.localCheckpoint(eager=False)


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
    rows = run("zombies", of(spark, requests))
    assert [(r.controller_id, r.controller_epoch, r.later_epoch, r.requests) for r in rows] == accused


def test_a_zombies_brokers_and_packets_are_in_the_order_of_its_requests(spark):
    late = [sent(1, 4, 11, server=f"10.0.0.{n}", time=20 - i) for i, n in enumerate((3, 1, 3))]
    (zombie,) = run("zombies", of(spark, [sent(2, 5), *late]))
    assert zombie.packets == [4, 3, 2]
    assert zombie.brokers == ["10.0.0.3:9093", "10.0.0.1:9093"]
    assert zombie.last_time - zombie.first_time == datetime.timedelta(seconds=2)


def test_fenced_by_sender(spark):
    of_broker = {"api": "AlterPartition", "is_control": False, "sender_broker_id": 3, "error_code": 77,
                 "error": "STALE_BROKER_EPOCH"}  # fmt: skip
    rows = run("fenced", of(spark, [sent(1, 4, 77), sent(1, 4, 77), sent(1, 4), of_broker]))
    assert [(r.error, r.controller_id, r.sender_broker_id, r.api, r.requests, r.packets) for r in rows] == [
        ("STALE_BROKER_EPOCH", 1, None, "UpdateMetadata", 2, [1, 2]),
        ("STALE_BROKER_EPOCH", None, 3, "AlterPartition", 1, [4]),
    ]


def leaders(spark, *states):
    """(leader, leader epoch, more) of partition orders-0, in order."""
    rows = [{"leader": leader, "leader_epoch": epoch, **more} for leader, epoch, more in states]
    found = run("leadership", of(spark, states=rows))
    return [(r.from_leader, r.to_leader, r.from_epoch, r.to_epoch) for r in found]


@pytest.mark.parametrize(
    ("states", "changes"),
    [
        ([(1, 0, {}), (1, 0, {}), (2, 1, {}), (2, 1, {})], [(None, 1, None, 0), (1, 2, 0, 1)]),
        ([(1, 0, {}), (1, 1, {}), (1, 2, {})], [(None, 1, None, 0)]),  # the same leader in a new epoch
        ([(1, 0, {}), (-1, 1, {}), (3, 2, {})], [(None, 1, None, 0), (1, -1, 0, 1), (-1, 3, 1, 2)]),
        ([(2, 1, {}), (1, 0, {}), (2, 1, {})], [(1, 2, 0, 1), (None, 1, None, 0)]),  # arrives late: the epoch decides
        ([(1, 5, {}), (9, 6, {"response_error_code": 11})], [(None, 1, None, 5)]),  # refused as a whole
        ([(1, 5, {}), (2, 6, {"response_error_code": None})], [(None, 1, None, 5), (1, 2, 5, 6)]),  # not answered
        (
            # deleted and created again without topic ids; one broker receives all of it later than the other
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
    servers = [("10.0.0.1", 9092), ("10.0.0.9", 19092), ("10.0.0.9", 29092), ("10.0.0.9", 1), ("10.0.0.5", 9092)]
    made = at_listeners(
        frame(spark, EXCHANGES, [{"server": server, "server_port": port} for server, port in servers]),
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


def of(spark, given=(), states=(), live=(), connections=()):
    """What analyses are made of, out of a few rows."""
    made = frame(
        spark, EXCHANGES, given, api_key=6, api="UpdateMetadata", is_control=True, answered=True, server="10.0.0.1",
        server_port=9093, connection="c",
    )  # fmt: skip
    content = f.col("partition_count") if given else f.lit(None)
    partitions = frame(
        spark, PARTITIONS, states, api_key=6, api="UpdateMetadata", topic="orders", partition=0, isr=[1, 2],
        decision_epoch=1, response_error_code=0, server="10.0.0.1", server_port=9093, connection="c",
    )  # fmt: skip
    none = frame(spark, ENDPOINTS, [])
    named = spark.createDataFrame(
        [("x", i, START + datetime.timedelta(seconds=i), *row[:-1], 1, row[-1]) for i, row in enumerate(live, 1)],
        "file string, packet bigint, time timestamp, server string, server_port int, controller_epoch int, "
        "brokers array<int>",
    )
    errors = spark_type(DECODED.schema.field("errors").type)
    given_errors = f.array(f.struct(f.lit("t").alias("topic"), f.lit(1).alias("partition"), f.col("error_code")))
    failed = f.when(f.col("error_code") != 0, given_errors).cast(errors)
    hit_partitions = f.array(f.struct(f.lit("t").alias("topic"), f.lit(1).alias("partition")))
    is_hit = failed.isNotNull() | (f.col("latency_ms") >= 100) | f.col("response_time").isNull()
    hit = f.when(is_hit, hit_partitions).cast(spark_type(DECODED.schema.field("hit").type))
    return inputs.frames(
        at_listeners(made, none).withColumns({"content": content.cast("bigint"), "errors": failed, "hit": hit}),
        at_listeners(partitions, none), named, frame(spark, CONNECTIONS, connections),
        kept,
    )  # fmt: skip


def columns(rows, names):
    return [tuple(row[name] for name in names.split()) for row in rows]


def run(name, frames):
    return ANALYSES[name].run(frames).collect()


def told_rows(name, query):
    """Rows as findings have them, with times in UTC."""
    made = [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in query.toArrow().to_pylist()]
    return [row_of(name, **row) for row in made]


def moves(frames):
    """The outages of frames that were changed after they were made."""
    signs = kept(silences.signs(frames.exchanges, frames.connections))
    silent = kept(silences.silences(frames.exchanges, signs, is_long=frames.is_long))
    found = outages.moves(signs, silent, frames.leaders, is_long=frames.is_long)
    return run("outages", frames._replace(moves=found))


def test_an_outage_lasts_from_the_last_sign_of_life_to_the_next_leader(spark):
    answered = {"api": "Fetch", "is_control": False, "response_packet": 7, "response_file": "x"}
    exchanges = [
        {"time": 1, "response_time": 2, **answered, "server": "10.0.0.1"},
        {"time": 3, "api": "AlterPartition", "is_control": False, "sender_broker_id": 1, "server": "10.0.0.2"},
        {"time": 1, "response_time": 20, **answered, "server": "10.0.0.2"},  # another broker's
        {"time": 30, "response_time": 31, **answered, "server": "10.0.0.1"},  # it came back
    ]
    states = [
        {"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 9, "leader": -1, "leader_epoch": 1},
        {"time": 10, "leader": 2, "leader_epoch": 2}, {"time": 40, "leader": -1, "leader_epoch": 3},
    ]  # fmt: skip
    frames = of(spark, exchanges, states)
    known = f.when(f.col("server") == "10.0.0.1", 1).otherwise(2)
    frames = frames._replace(exchanges=frames.exchanges.withColumn("broker_id", known))
    first, last = moves(frames)
    assert (first.from_leader, first.to_leader, first.sign) == (1, 2, "sent AlterPartition")
    assert (first.announced_ms, first.real_ms) == (1000, 7000)
    assert (last.from_leader, last.to_leader, last.sign, last.real_ms) == (2, None, "answered Fetch", None)
    ended = {"end": "RST", "end_time": START + datetime.timedelta(seconds=5), "end_packet": 77, "end_file": "x",
             "end_address": "10.0.0.1", "end_port": 9093}  # fmt: skip
    closed = frames._replace(connections=frame(spark, CONNECTIONS, [{"connection": "c", **ended}]))
    first, _ = moves(closed)
    assert (first.sign, first.real_ms) == ("closed a connection with RST", 5000)
    assert first.packets == [77, 2, 3]


def test_a_broker_that_was_only_cut_off_was_no_leader_meanwhile(spark):
    """Stopped from 2 on, it answers again at 12, before it leads its partition again."""
    answered = {"api": "Fetch", "is_control": False, "response_packet": 7, "response_file": "x"}
    exchanges = [{"time": 1, "response_time": at, **answered} for at in (2, 12)]
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 8, "leader": -1, "leader_epoch": 1},
              {"time": 13, "leader": 1, "leader_epoch": 2}]  # fmt: skip
    frames = of(spark, exchanges, states)
    (move,) = moves(frames._replace(exchanges=frames.exchanges.withColumn("broker_id", f.lit(1))))
    assert (move.sign, move.announced_ms, move.real_ms) == ("answered Fetch", 5000, 11_000)


def test_a_deleted_partition_misses_no_leader(spark):
    """A replica that was away while its topic was deleted is told that it has no leader, before it is deleted."""
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 9, "leader": -2, "leader_epoch": None},
              {"time": 12, "leader": -1, "leader_epoch": 2}]  # fmt: skip
    assert moves(of(spark, [], states)) == []
    created = {"time": 20, "leader": 2, "leader_epoch": 0}
    assert moves(of(spark, [], [*states, created])) == []
    died = [{"time": 30, "leader": -1, "leader_epoch": 1}, {"time": 31, "leader": 3, "leader_epoch": 2}]
    (move,) = moves(of(spark, [], [*states, created, *died]))
    assert (move.from_leader, move.to_leader, move.announced_ms) == (2, 3, 1000)


def outage(partition, sign, leader, to_leader=2, of=1):
    began = START + datetime.timedelta(seconds=sign)
    ends = None if leader is None else START + datetime.timedelta(seconds=leader)
    return row_of(
        "outages", topic="orders", partition=partition, from_leader=of, to_leader=to_leader, sign="answered Fetch",
        sign_time=began, leaderless_time=began, leader_time=ends, packets=(partition,), files=("x",),
        real_ms=None if leader is None else (leader - sign) * 1000.0,
    )  # fmt: skip


def test_partitions_that_one_broker_left_alone_are_one_outage_however_long_each_lasted():
    rows = [outage(0, 10, 13), outage(1, 10, 60), outage(2, 10, None, None), outage(3, 10, 12, of=2), outage(4, 30, 32)]
    texts = [finding.text for finding in ANALYSES["outages"].findings(found(outages=rows)) if "had no" in finding.text]
    assert texts == [
        "3 partitions of broker 1 had no leader (orders-0, orders-1), orders-1 longest: 50.00 s, until broker 2 was "
        "announced at 02:46:00.000; 1 of them has none at the end: orders-2. Last sign of life of broker 1: answered "
        "Fetch at 02:45:10.000 (packets 1, 2).",
        "1 partition of broker 2 had no leader (orders-3): 2.00 s, until broker 2 was announced at 02:45:12.000. Last "
        "sign of life of broker 2: answered Fetch at 02:45:10.000 (packet 3).",
        "1 partition of broker 1 had no leader (orders-4): 2.00 s, until broker 2 was announced at 02:45:32.000. Last "
        "sign of life of broker 1: answered Fetch at 02:45:30.000 (packet 4).",
    ]


def test_a_leader_that_comes_back_or_has_no_successor_did_not_move():
    moved, back, gone = outage(0, 1, 2), outage(1, 1, 2, to_leader=1), outage(2, 1, None, to_leader=None)
    unknown = outage(3, 1, 2, of=None)
    texts = [finding.text for finding in ANALYSES["outages"].findings(found(outages=[back, moved, gone, unknown]))]
    assert texts[0] == "Leaders moved 1 time."
    texts = [finding.text for finding in ANALYSES["outages"].findings(found(outages=[back, gone, unknown]))]
    assert not any("moved" in text for text in texts)


def test_the_longest_outages_come_first():
    rows = [outage(leader, 100 * leader, 100 * leader + 2 + leader, of=leader) for leader in range(9)]
    *shown, others = [finding.text for finding in ANALYSES["outages"].findings(found(outages=rows))][1:]
    assert [text.split()[4] for text in shown] == ["8", "7", "6", "5", "4"]
    assert others == "4 other outages, see the table of outages."


def test_a_planned_move_is_no_outage(spark):
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 9, "leader": 2, "leader_epoch": 1}]
    exchanges = [{"time": 8, "api": "ControlledShutdown", "is_control": False, "sender_broker_id": 1}]
    (move,) = run("outages", of(spark, exchanges, states))
    assert (move.sign, move.real_ms, move.leaderless_time) == ("sent ControlledShutdown", 1000, None)
    assert not outages.is_outage(move, 1001)
    assert outages.is_outage(move, 1000)


def test_errors_by_client_and_partition(spark):
    given = [
        sent(1, 4, 11), sent(1, 4, 11), sent(1, 4),
        {"api": "Produce", "is_control": False, "client_id": "p", "error_code": 6, "latency_ms": 7.0},
    ]  # fmt: skip
    for row in given:
        row |= {"response_time": START, "response_packet": 9, "response_file": "x"}
    rows = run("errors", of(spark, given))
    assert columns(rows, "api error client_id topic partition count max_latency_ms") == [
        ("UpdateMetadata", "STALE_CONTROLLER_EPOCH", None, "t", 1, 2, None),
        ("Produce", "NOT_LEADER_OR_FOLLOWER", "p", "t", 1, 1, 7.0),
    ]


def test_what_a_client_suffered(spark):
    good = {
        "api": "Produce",
        "is_control": False,
        "client_id": "p",
        "client": "a",
        "response_file": "x",
        "answered": True,
    }
    given = [
        {**good, "time": 1, "response_time": 2, "response_packet": 1, "latency_ms": 1.0},
        {**good, "time": 3, "response_time": 4, "response_packet": 2, "latency_ms": 3.0, "error_code": 6},
        {**good, "time": 5, "connection": "other"},
        {**good, "time": 8, "response_time": 9, "response_packet": 4, "latency_ms": 2.0},
        {**good, "time": 9, "response_time": 10, "response_packet": 5, "latency_ms": 2.0},
        {**good, "client_id": "broker-1-fetcher-0", "api": "Fetch", "time": 2, "response_time": 3,
         "response_packet": 6},
    ]  # fmt: skip
    producer, replica = run("clients", of(spark, given))
    assert (producer.requests, producer.failed, producer.unanswered, producer.connections) == (5, 1, 1, 2)
    assert (producer.gap_ms, producer.packets, producer.p50_ms, producer.max_ms) == (7000, [1, 4], 2, 3)
    assert (replica.is_replica, replica.gap_ms, replica.packets) == (True, None, [])


def test_a_client_without_a_response_at_the_end_has_had_a_gap_since_the_last_good_one(spark):
    good = {"api": "Produce", "is_control": False, "client_id": "p", "client": "a", "answered": True}
    given = [
        {**good, "time": at, "response_time": at + 0.1, "response_packet": at, "response_file": "x"} for at in (1, 2)
    ]
    (row,) = run("clients", of(spark, [*given, {**good, "time": 2.5}, {**good, "time": 9}]))
    assert (row.gap_ms, row.packets, row.unanswered) == (6900, [2], 2)
    later = {**good, "time": 9.5, "response_time": 9.6, "response_packet": 5, "response_file": "x"}
    (row,) = run("clients", of(spark, [*given, {**good, "time": 9}, later]))
    assert (row.gap_ms, row.packets) == (7500, [2, 4])


def test_a_consumer_that_looks_for_its_coordinator_until_the_end_gets_no_records(spark):
    good = {"api": "Fetch", "is_control": False, "client_id": "c", "client": "a", "answered": True}
    given = [
        {**good, "time": at, "response_time": at + 0.1, "response_packet": at, "response_file": "x"} for at in (1, 2)
    ]
    looks = {"is_control": False, "client_id": "c", "client": "a", "api": "FindCoordinator", "response_time": 30}
    (row,) = run("clients", of(spark, [*given, {**looks, "time": 9}, {**looks, "time": 29, "client": "b"}]))
    assert (row.api, row.gap_ms, row.packets, row.requests) == ("Fetch", 6900, [2], 2)
    idle = [{**each, "api": "Produce"} for each in given]
    (row,) = run("clients", of(spark, [*idle, {**looks, "api": "Metadata", "time": 9}]))
    assert (row.api, row.gap_ms, row.packets) == ("Produce", 1000, [1, 2])


def test_a_gap_that_lasts_until_the_end_is_said_to():
    lost = client("c", 3, 6900, unanswered=1, requests=9, connections=1, packets=(2,))
    (told,) = ANALYSES["clients"].findings(found(clients=[lost]))
    expected = "longest time without a good response 6.90 s, from 02:45:03.000 until its last request (packet 2)."
    assert expected in told.text


def test_a_producer_that_waited_has_suffered_although_nothing_failed():
    calm = {"failed": 0, "unanswered": 0, "requests": 9, "connections": 1}
    told = found(
        clients=[
            client("slow", 3, 4000, **calm, p50_ms=20.0, max_ms=10_500.0),
            client("quick", 3, 4000, **calm, p50_ms=20.0, max_ms=999.0),
            client("reader", 3, 4000, **calm, api="Fetch", p50_ms=20.0, max_ms=30_000.0),
        ]
    )
    (finding,) = ANALYSES["clients"].findings(told)
    assert finding.text.startswith(
        "Client slow: 9 Produce requests, 0 failed, 0 without a response, on 1 connection; answered after up to 10.50 s"
        " (median 20 ms); longest time without a good response 4.00 s"
    )


def test_clients_are_told_in_the_order_of_damage():
    def suffered(name, failed, gap_ms):
        return client(name, 3, gap_ms, failed=failed, requests=9, connections=1)

    def error(partition, name="NOT_LEADER_OR_FOLLOWER", of="worst"):
        return row_of(
            "errors", api="Produce", client_id=of, client=None, error=name, count=2, topic="orders", partition=partition
        )

    told = found(
        clients=[
            suffered("gap", 1, 9000),
            suffered("none", 0, 99_000),
            suffered("worst", 4, 10),
            suffered("also", 1, 8),
        ],
        errors=[error(1), error(0), error(None, "REQUEST_TIMED_OUT"), error(7, of="gap")],
    )
    texts = [finding.text for finding in ANALYSES["clients"].findings(told)]
    assert [text.split()[1].rstrip(":") for text in texts] == ["worst", "gap", "also"]
    errors = "Errors: 4 NOT_LEADER_OR_FOLLOWER (orders-0, orders-1), 2 REQUEST_TIMED_OUT (packets 5, 50)."
    assert texts[0].endswith(errors)


def test_what_clients_felt_of_a_failover(spark):
    """The old leader's last sign of life is at 20, the next is announced at 23."""

    def call(client_id, time, seconds=None, **more):
        answer = {} if seconds is None else {"response_time": time + seconds, "latency_ms": seconds * 1000.0,
                                             "response_packet": 1, "response_file": "x"}  # fmt: skip
        return {"api": "Produce", "is_control": False, "client_id": client_id, "client": "a", "time": time,
                "connection": f"{client_id} {time}", **answer, **more}  # fmt: skip

    given = [
        {"time": 20, "api": "AlterPartition", "is_control": False, "sender_broker_id": 1},
        call("p", 5, 1), call("p", 12, 0.01), call("p", 13, 0.03), call("p", 14, 0.02),  # the first is too old
        call("p", 19.5, 4.0), call("p", 21), call("p", 22, 0.1, error_code=6), call("p", 22.5, 0.002),
        call("p", 24, 0.005), call("p", 40, 9),  # the last is too late
        call("calm", 12, 0.15), call("calm", 21, 0.2), call("early", 12, 0.01),
        call("broker-3-fetcher-0", 21, api="Fetch"),
    ]  # fmt: skip
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 22, "leader": -1, "leader_epoch": 1},
              {"time": 23, "leader": 2, "leader_epoch": 2}]  # fmt: skip
    frames = of(spark, given, states)
    rows, moved = (told_rows(name, ANALYSES[name].run(frames)) for name in ("failovers", "outages"))
    counts = ["client_id", "before_requests", "during_requests", "after_requests", "failed", "unanswered"]
    assert [tuple(getattr(row, name) for name in counts) for row in rows] == [
        ("p", 3, 4, 1, 1, 1), ("calm", 1, 1, 0, 0, 0), ("broker-3-fetcher-0", 0, 1, 0, 0, 1),
    ]  # fmt: skip
    producer, calm, _ = rows
    assert (producer.from_leader, producer.moved) == (1, 1)
    assert [(moment - START).total_seconds() for moment in (producer.begin, producer.until)] == [20, 23]
    assert (producer.before_p50_ms, producer.before_max_ms) == (20, 30)
    assert (producer.during_max_ms, producer.after_p50_ms) == (4000, 5)
    assert (producer.hit, producer.hit_ms) == (("t",), (4000.0,))  # from 19.5 to 23.5
    assert producer.packets == (7, 8, 6)  # no answer, an error, the late one
    told = found(failovers=rows, outages=moved)
    assert [finding.text for finding in ANALYSES["failovers"].findings(told)] == [
        "Failover of broker 1 at 02:45:20.000: Produce of p took up to 4.00 s (median 20 ms before, 5.0 ms after), 1 "
        "failed, 1 got no response; hit: t for 4.00 s (packets 7, 8, 6)."
    ]
    assert calm.hit == ("t",)  # late, but as ever


def test_a_request_that_hit_two_topics_is_cited_once(spark):
    given = [
        {"time": 20, "api": "AlterPartition", "is_control": False, "sender_broker_id": 1},
        {"time": 21, "api": "Produce", "is_control": False, "client_id": "p", "client": "a"},
        {"time": 30, "api": "Metadata", "is_control": False},
    ]
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 23, "leader": 2, "leader_epoch": 1}]
    frames = of(spark, given, states)
    topics = [f.struct(f.lit(topic).alias("topic"), f.lit(1).alias("partition")) for topic in "tu"]
    both = f.array(*topics).cast(spark_type(DECODED.schema.field("hit").type))
    exchanges = frames.exchanges.withColumn("hit", f.when(f.col("api") == "Produce", both))
    (row,) = told_rows("failovers", ANALYSES["failovers"].run(frames._replace(exchanges=exchanges)))
    assert (row.hit, row.packets) == (("t", "u"), (2,))


def test_what_is_under_way_when_the_capture_ends_is_not_lost(spark):
    """No leader follows the one that died at 20."""
    asked = {"api": "Fetch", "is_control": False, "client_id": "c", "client": "a"}
    given = [
        {"time": 20, "api": "AlterPartition", "is_control": False, "sender_broker_id": 1},
        {**asked, "time": 21, "response_time": 21.5, "latency_ms": 500.0, "response_packet": 1, "response_file": "x"},
        {**asked, "time": 22}, {**asked, "time": 28.5}, {"time": 29, "api": "Metadata", "is_control": False},
    ]  # fmt: skip
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 23, "leader": -1, "leader_epoch": 1}]
    (row,) = told_rows("failovers", ANALYSES["failovers"].run(of(spark, given, states)))
    assert (row.until, row.before_requests, row.during_requests, row.unanswered) == (None, 0, 2, 1)
    assert row.packets == (3, 2)


def test_a_death_soon_after_a_planned_move_is_a_failover_of_its_own(spark):
    """The broker hands one partition over at 20, and is gone from 22 on."""
    life = {"api": "AlterPartition", "is_control": False, "sender_broker_id": 1}
    asked = {"api": "Produce", "is_control": False, "client_id": "p", "client": "a"}
    given = [{"time": 19.9, **life}, {"time": 22, **life}, {"time": 19.95, **asked}, {"time": 24, **asked}]
    states = [
        {"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 20, "leader": 2, "leader_epoch": 1},
        {"time": 1, "leader": 1, "leader_epoch": 0, "partition": 9},
        {"time": 25, "leader": 2, "leader_epoch": 1, "partition": 9},
    ]  # fmt: skip
    rows = told_rows("failovers", ANALYSES["failovers"].run(of(spark, given, states)))
    spans = [tuple((moment - START).total_seconds() for moment in (row.begin, row.until)) for row in rows]
    assert spans == [(19.9, 20), (22, 25)]


def test_a_lost_request_counts_in_the_failover_of_its_broker(spark):
    """Broker 1 is gone from 20 on, its successor 2 from 25 on: each loses one that was sent before, and one later."""
    life = {"api": "AlterPartition", "is_control": False}
    asked = {"api": "Produce", "is_control": False, "client_id": "p", "client": "a"}
    given = [
        {"time": 20, **life, "sender_broker_id": 1}, {"time": 25, **life, "sender_broker_id": 2},
        {"time": 18, **asked, "server_port": 1, "packet": 1}, {"time": 21, **asked, "server_port": 1, "packet": 2},
        {"time": 24, **asked, "server_port": 2, "packet": 3}, {"time": 26, **asked, "server_port": 2, "packet": 4},
        {"time": 32, **asked, "server_port": 2, "packet": 5, "response_time": 33, "response_packet": 6,
         "response_file": "x", "latency_ms": 1000.0, "connection": "d"},
    ]  # fmt: skip
    states = [{"time": time, "leader": leader, "leader_epoch": i} for i, (time, leader) in
              enumerate([(1, 1), (23, 2), (29, 1)])]  # fmt: skip
    frames = of(spark, given, states)
    exchanges = frames.exchanges.withColumn("broker_id", f.when(f.col("server_port") < 9, f.col("server_port")))
    rows = told_rows("failovers", ANALYSES["failovers"].run(frames._replace(exchanges=exchanges)))
    assert [(row.from_leader, row.unanswered, row.packets) for row in rows] == [(1, 2, (1, 2)), (2, 2, (3, 4))]


def test_errors_over_time(spark):
    answered = {"api": "Produce", "is_control": False, "response_packet": 1, "response_file": "x"}
    moments = [(1, 6), (1.1, 6), (1.25, 6), (1.3, 3), (1.6, 6)]
    frames = of(
        spark, [{**answered, "time": at - 0.5, "response_time": at, "error_code": code} for at, code in moments]
    )
    (bursts,) = [extra for extra in ANALYSES["errors"].auxiliary if extra.table.name == "error_bursts"]
    rows = told_rows("error_bursts", bursts.run(frames))
    assert [(r.error, r.count, r.packet, (r.last_time - r.first_time).total_seconds()) for r in rows] == [
        ("NOT_LEADER_OR_FOLLOWER", 3, 1, 0.25), ("UNKNOWN_TOPIC_OR_PARTITION", 1, 4, 0),
        ("NOT_LEADER_OR_FOLLOWER", 1, 5, 0),  # after a pause
    ]  # fmt: skip
    of_chart = ANALYSES["errors"].section.chart(found(error_bursts=rows))
    (lane,) = of_chart.lanes
    assert lane.label == "Produce t-1"
    assert [(mark.look, mark.end is None, mark.place) for mark in lane.marks] == [
        ("leader-0", False, ("x", 1)), ("leader-1", True, ("x", 4)), ("leader-0", True, ("x", 5)),
    ]  # fmt: skip
    assert of_chart.legend == (("leader-0", "NOT_LEADER_OR_FOLLOWER"), ("leader-1", "UNKNOWN_TOPIC_OR_PARTITION"))


def test_a_lane_of_errors_has_the_name_of_what_they_are_of():
    def lane(topic, partition):
        row = row_of("error_bursts", api="Metadata", topic=topic, partition=partition, error="X", count=1,
                     first_time=START, last_time=START, file="x", packet=1)  # fmt: skip
        return ANALYSES["errors"].section.chart(found(error_bursts=[row])).lanes[0].label

    assert [lane("t", 1), lane("t", None), lane(None, None)] == ["Metadata t-1", "Metadata t", "Metadata"]


def test_a_broker_that_leaves_and_stays_away(spark):
    live = [("a", 1, [1, 2, 3]), ("a", 1, [1, 3]), ("a", 1, [1, 2]), ("b", 1, [1, 2])]
    rows = run("departures", of(spark, live=live))
    assert columns(rows, "broker_id packet") == [(3, 3)]


def test_the_slowest_control_requests(spark):
    rows = run("slow_controls", of(spark, [sent(1, 4, latency_ms=float(n)) for n in range(30)]))
    assert [row.latency_ms for row in rows] == [float(n) for n in range(29, 9, -1)]


def test_two_controllers_at_once(spark):
    given = [sent(1, 4), sent(2, 5), sent(1, 4), sent(1, 4, 11), sent(2, 5), sent(3, 5)]
    given += [{"controller_id": 1, "controller_epoch": 4}]  # perhaps refused: the capture lacks the response
    overlaps = ANALYSES["overlaps"].run(of(spark, given))
    assert columns(
        overlaps.collect(), "controller_id controller_epoch later_id later_epoch requests refused unanswered packets"
    ) == [
        (1, 4, 2, 5, 3, 1, 1, [3, 4, 7]),
        (3, 5, 2, 5, 1, 0, 0, [6]),  # two of one epoch
        (1, 4, 3, 5, 1, 0, 1, [7]),
    ]
    first, *_ = ANALYSES["overlaps"].findings(found(overlaps=told_rows("overlaps", overlaps)))
    assert "sent 3 control requests" in first.text
    assert "; 1 of them no broker refused, 1 got no answer (packets 3, 4, 7)." in first.text


@pytest.mark.parametrize(
    ("states", "unclean"),
    [
        ([(1, 0, [1, 2], 0), (2, 1, [2], 1)], []),
        ([(1, 0, [1, 2], 0), (3, 1, [3], 1)], [(3, 1, [1, 2])]),
        ([(1, 0, [1], 0), (-1, 1, [1], 1), (2, 2, [2], 2)], [(2, 2, [1])]),  # nobody led meanwhile
        # before Kafka 0.11 the death of the last one in sync may empty the ISR
        ([(1, 0, [1], 0), (-1, 1, [], 1), (1, 2, [1], 2)], []),
        ([(1, 0, [1], 0), (-1, 1, [], 1), (2, 2, [2], 2)], [(2, 2, [1])]),
        ([(1, 0, [1], 0), (-1, 2, [], 2), (2, 3, [2], 3)], []),
        ([(1, 0, [1], 0), (1, 0, [1, 2], 1), (2, 1, [2], 2)], []),
        ([(1, 0, [1], 0), (2, 1, [2], 2)], []),  # a state is missing between: it cannot be known
        ([(1, 0, [1], 0), (2, 1, [2], 1), (2, 1, [2], 1)], [(2, 1, [1])]),  # sent twice
    ],
)
def test_unclean_elections(spark, states, unclean):
    rows = run("unclean_elections", of(spark, states=[
        {"leader": leader, "leader_epoch": epoch, "isr": isr, "partition_epoch": version}
        for leader, epoch, isr, version in states
    ]))  # fmt: skip
    assert columns(rows, "leader leader_epoch isr_before") == unclean


def test_isr_changes_and_the_storm_that_they_make(spark):
    flapping = [
        {
            "leader": 1,
            "leader_epoch": 0,
            "isr": [1, 2] if version % 2 else [1],
            "partition_epoch": version,
            "time": version,
        }
        for version in range(12)
    ]
    later = {"leader": 1, "leader_epoch": 0, "isr": [1], "partition_epoch": 12, "time": 100}
    frames = of(spark, states=[*flapping, later])
    changes = run("isr_changes", frames)
    assert columns(changes, "left joined") == [([], [2]), ([2], [])] * 6
    (storm,) = run("isr_storms", frames)
    assert (storm.changes, storm.shrinks, storm.expansions, storm.partitions, storm.brokers) == (11, 5, 6, 1, [2])
    assert storm.last_time - storm.first_time == datetime.timedelta(seconds=10)
    assert run("isr_storms", of(spark, states=flapping[:10])) == []


@pytest.mark.parametrize(("pause", "storms"), [(10, [20]), (10.001, [10, 10])])
def test_a_storm_ends_when_it_is_quiet_for_more_than_ten_seconds(spark, pause, storms):
    times = [*range(-1, 10), *(9 + pause + second for second in range(10))]
    states = [
        {"leader": 1, "leader_epoch": 0, "isr": [1, 2][: 1 + version % 2], "partition_epoch": version, "time": time}
        for version, time in enumerate(times)
    ]
    assert [storm.changes for storm in run("isr_storms", of(spark, states=states))] == storms


def test_a_storm_while_a_broker_comes_back_that_was_down_at_first():
    """Nothing is known of it before: the capture may begin in the middle."""

    def told(back_s):
        storm = row_of(
            "isr_storms", first_time=START, last_time=START + datetime.timedelta(seconds=9), changes=12, shrinks=3,
            expansions=9, partitions=1, max_shrinks=3, brokers=(2,),
        )  # fmt: skip
        bounces = [
            row_of("bounces", broker_id=2, back_time=START + datetime.timedelta(seconds=second)) for second in back_s
        ]
        return [f.severity for f in ANALYSES["isr_storms"].findings(found(isr_storms=[storm], bounces=bounces))]

    assert told([1]) == ["warning"]
    assert told([1, 2, 3]) == []
    assert told([1, 2, 30]) == ["warning"]


def test_reassignments_from_where_to_where(spark):
    def version(number, replicas, adding=(), removing=(), **more):
        return {
            "partition_epoch": number, "leader": 1, "leader_epoch": number, "replicas": replicas,
            "adding_replicas": list(adding), "removing_replicas": list(removing), "time": number, **more,
        }  # fmt: skip

    states = [
        version(0, [1, 2]), version(1, [3, 1, 2], [3], [2]), version(1, [3, 1, 2], [3], [2], server="10.0.0.2"),
        version(2, [3, 1, 2], [3], [2], isr=[1, 2, 3]), version(3, [3, 1]),
        version(0, [2, 3], partition=1), version(1, [2, 3], partition=1),  # its leader changed
        version(0, [1, 2], partition=2), version(4, [2, 1], partition=2),  # another preferred leader
        version(0, [1], partition=3), version(5, [1, 2], [2], partition=3),
        version(6, [1], partition=4),  # the first that is known of it
    ]  # fmt: skip
    query = ANALYSES["reassignments"].run(of(spark, states=states))
    rows = query.collect()
    assert columns(rows, "partition from_replicas to_replicas adding_replicas removing_replicas") == [
        (0, [1, 2], [3, 1, 2], [3], [2]),
        (0, [3, 1, 2], [3, 1], [], []),
        (2, [1, 2], [2, 1], [], []),
        (3, [1], [1, 2], [2], []),
    ]
    (finding,) = ANALYSES["reassignments"].findings(found(reassignments=told_rows("reassignments", query)))
    assert (finding.severity, finding.text) == (
        "note",
        "Replicas of 3 partitions were reassigned: orders-0 from [1, 2] to [3, 1] in 2.00 s, orders-2 from [1, 2] to "
        "[2, 1], orders-3 from [1] to [1, 2] (not finished in the capture).",
    )
    assert finding.evidence == (("x", 2), ("x", 5), ("x", 9), ("x", 11))


def test_partitions_that_miss_replicas_at_the_end(spark):
    def state(number, isr, leader=1, **more):
        return {
            "partition_epoch": number, "leader": leader, "leader_epoch": 0, "isr": isr, "replicas": [1, 2, 3],
            "time": number, **more,
        }  # fmt: skip

    states = [
        state(0, [1, 2, 3]), state(1, [1, 2]), state(1, [1, 2], server="10.0.0.2", time=5),
        state(0, [1, 2, 3], server="10.0.0.2", time=9),  # comes late
        state(0, [1, 2], partition=1), state(1, [1, 2, 3], partition=1),
        state(0, [1], partition=2), state(-1, [], -2, partition=2, time=9),  # was deleted
        state(0, [3], partition=3, leader=-1),
    ]  # fmt: skip
    query = ANALYSES["under_replicated"].run(of(spark, states=states))
    assert columns(query.collect(), "packet partition leader replicas isr missing") == [
        (2, 0, 1, [1, 2, 3], [1, 2], [3]),
        (9, 3, -1, [1, 2, 3], [3], [1, 2]),
    ]
    (finding,) = ANALYSES["under_replicated"].findings(found(under_replicated=told_rows("under_replicated", query)))
    assert (finding.severity, finding.text) == (
        "warning",
        "By the last state that brokers were sent, 2 partitions were under-replicated (orders-0, orders-3 without a "
        "leader): replicas on brokers 1, 2 and 3 were not in sync.",
    )
    assert finding.evidence == (("x", 2), ("x", 9))

    def severity(back):
        lives = [row_of("bounces", broker_id=broker, back_time=START + back) for broker in (1, 2, 3)]
        end = row_of("controllers", last_time=START + datetime.timedelta(seconds=60))
        rows = told_rows("under_replicated", query)
        (finding,) = ANALYSES["under_replicated"].findings(
            found(under_replicated=rows, bounces=lives, controllers=[end])
        )
        return finding.severity

    assert severity(datetime.timedelta(seconds=40)) == "warning"
    assert severity(datetime.timedelta(seconds=55)) == "note"


def test_churn_and_how_long_nobody_led(spark):
    leaders = [(1, 0), (2, 3), (-1, 5), (1, 9)]
    frames = of(spark, states=[
        {"leader": leader, "leader_epoch": epoch, "time": time} for epoch, (leader, time) in enumerate(leaders)
    ])  # fmt: skip
    (row,) = run("churn", frames)
    assert (row.changes, row.leaders, row.leaderless_ms, row.packets) == (3, [-1, 1, 2], 4000.0, [2, 3, 4])


def test_bounces_by_broker_epoch_and_by_name(spark):
    given = [
        {"broker_epoch": 10, "server": "a"}, {"broker_epoch": 10, "server": "a"}, {"broker_epoch": 40, "server": "a"},
        {"broker_epoch": 11, "server": "b"},
    ]  # fmt: skip
    endpoints = frame(spark, ENDPOINTS, [
        {"broker_id": 1, "host": "a", "port": 9093}, {"broker_id": 2, "host": "b", "port": 9093},
    ])  # fmt: skip
    made = frame(spark, EXCHANGES, given, api_key=6, is_control=True, server_port=9093)
    epochs = at_listeners(made, endpoints)
    # broker 2 hears of each change later than broker 1, and both of 3, which has no epochs
    live = [
        ("a", 1, [1, 3]),
        ("a", 1, [1]),
        ("a", 1, [1, 3]),
        ("b", 1, [1, 3]),
        ("b", 1, [1]),
        ("b", 1, [1, 3]),
        ("a", 1, [3]),
    ]
    rows = run("bounces", of(spark, live=live)._replace(controls=epochs))
    assert columns(rows, "broker_id from_epoch to_epoch packet") == [(1, 10, 40, 3), (3, None, None, 3)]


def test_a_broker_that_was_down_when_the_capture_began_comes_back(spark):
    """Broker 3 has replicas before it is named; 4 is new, and 5 was alive, but not in the first request to 10.0.0.2."""
    told = [(1.5, 3), (9, 4), (0.5, 5)]
    states = [{"time": time, "replicas": [broker], "leader": 1, "leader_epoch": 1} for time, broker in told]
    live = [("10.0.0.1", 9093, [1, 5]), ("10.0.0.1", 9093, [1, 3, 4, 5]), ("10.0.0.2", 9093, [1]),
            ("10.0.0.2", 9093, [1, 3, 4, 5])]  # fmt: skip
    rows = run("bounces", of(spark, states=states, live=live))
    assert columns(rows, "broker_id from_epoch last_time packet") == [(3, None, None, 2)]
    (finding,) = ANALYSES["bounces"].findings(found(bounces=[row_of("bounces", **rows[0].asDict())], leadership=[]))
    assert finding.text.startswith("Broker 3 came back once, at ")


def test_a_broker_that_a_zombie_addressed_comes_back_once(spark):
    """Broker 3 is a controller that was given up before the capture began, and told itself something at 1."""
    given = [{"broker_epoch": 10, "time": 1}, {"broker_epoch": 40, "time": 2.1}]
    states = [{"time": 0.5, "replicas": [3], "leader": 1, "leader_epoch": 1}]
    live = [("10.0.0.1", 9093, [1]), ("10.0.0.1", 9093, [1, 3])]
    frames = of(spark, states=states, live=live)
    epochs = frame(spark, EXCHANGES, given, api_key=6, is_control=True, server="c", server_port=9093)
    epochs = epochs.withColumn("broker_id", f.lit(3))
    assert columns(run("bounces", frames._replace(controls=epochs)), "broker_id from_epoch to_epoch") == [(3, 10, 40)]
    # it may be addressed a moment before others are told of it
    early = epochs.withColumn("time", f.col("time") + f.expr("interval 900 milliseconds"))
    rows = run("bounces", frames._replace(controls=early.where("broker_epoch = 10")))
    assert columns(rows, "broker_id from_epoch to_epoch") == [(3, None, None)]


def test_what_a_broker_still_leads_when_it_comes_back_is_told():
    """Partition 0 kept its leader; 1 was taken over, 2 had none for a while, 3 was never its own."""

    def moment(seconds):
        return START + datetime.timedelta(seconds=seconds)

    def change(seconds, partition, leader):
        return row_of("leadership", topic="orders", partition=partition, time=moment(seconds), to_leader=leader)

    leadership = [
        change(1, 0, 1), change(1, 1, 1), change(1, 2, 1), change(1, 3, 2), change(12, 1, 2), change(12, 2, -1),
        change(19, 2, 1), change(30, 0, 2),
    ]  # fmt: skip
    bounces = [row_of("bounces", broker_id=1, last_time=moment(10), back_time=moment(20), file="x", packet=5)]
    (told,) = ANALYSES["bounces"].findings(found(bounces=bounces, leadership=leadership))
    assert told.text == (
        "Broker 1 came back once, at 02:45:20; at 02:45:20 it was the leader of 1 partition still, as nobody took over "
        "(orders-0)."
    )
    assert told.evidence == (("x", 5),)
    (told,) = ANALYSES["bounces"].findings(found(bounces=bounces, leadership=leadership[1:-1]))
    assert told.text == "Broker 1 came back once, at 02:45:20."


def test_control_requests_behind_data(spark):
    data = {"is_control": False, "api_key": 0, "api": "Produce", "connection": "d"}
    given = [
        {**data, "time": 1, "response_time": 5}, {**data, "time": 2, "response_time": 3},
        {"time": 2.5},  # behind both
        {"time": 4},  # behind the first
        {"time": 6},  # behind none
        {**data, "api_key": 1, "time": 7, "response_time": 9}, {"time": 8},  # a Fetch waits, and nobody behind it
        {"time": 8, "server_port": 1},  # another listener, where nothing else comes
    ]  # fmt: skip
    rows = run("control_behind_data", of(spark, given))
    assert [
        (r.control_requests, r.data_requests, r.behind, r.most_ahead, r.shared_connections, r.packets) for r in rows
    ] == [(4, 3, 2, 2, 0, [3, 4])]


def test_what_metadata_cost(spark):
    given = [sent(1, 1, request_bytes=100, partition_count=2), sent(1, 1, request_bytes=50, partition_count=1)]
    state = sent(1, 1, leader=1, leader_epoch=0, partition_epoch=0)
    frames = of(spark, given, [state, {**state, "partition": 1}, state])
    (row,) = run("metadata_cost", frames)
    assert (row.requests, row.request_bytes, row.states, row.changes, row.bytes_per_change) == (2, 150, 3, 2, 75.0)


def test_propagation_counts_only_who_was_there(spark):
    state = {"leader": 1, "leader_epoch": 0}
    frames = of(spark, states=[
        {**state, "api_key": 4, "time": 0, "server": "a", "connection": "a"},
        {**state, "leader_epoch": 7, "topic": "other", "time": 0, "server": "b", "connection": "b"},
        {**state, "time": 1, "server": "a", "connection": "a"}, {**state, "time": 3, "server": "b", "connection": "b"},
        {**state, "time": 3.5, "server": "b", "connection": "b"},  # sent again
        {**state, "time": 9, "server": "c", "connection": "c"},  # came later
    ])  # fmt: skip
    rows = run("propagation", frames)
    assert columns(rows, "broker states max_ms packets") == [
        ("a:9093", 1, 1000.0, [3]),
        ("b:9093", 2, 3000.0, [4]),
    ]


def test_propagation_is_that_of_new_leaders(spark):
    """Before Kafka 2.4 a reassignment raises the leader epoch alone, and tells of it later."""

    def state(time, leader, epoch, version, **more):
        return {"time": time, "leader": leader, "leader_epoch": epoch, "partition_epoch": version, "server": "a",
                "connection": "a", **more}  # fmt: skip

    known = {"topic": "known before"}
    frames = of(spark, states=[
        state(0, 1, 0, 0), state(1, 1, 1, 1, api_key=4), state(8, 1, 1, 1),
        state(10, 2, 2, 2, api_key=4), state(10.5, 2, 2, 2),
        state(0, 1, 3, 5, **known, server="b"), state(8, 1, 3, 5, **known),
        state(10, 2, 4, 6, **known, server="b"), state(10.25, 2, 4, 6, **known),
    ])  # fmt: skip
    rows = run("propagation", frames)
    assert columns(rows, "broker states max_ms packets") == [("a:9093", 3, 500.0, [5]), ("b:9093", 1, 0.0, [8])]


def test_a_zombie_has_no_news(spark):
    """What it tells itself, nobody refuses."""
    first = {"leader": 1, "leader_epoch": 0, "controller_id": 1, "controller_epoch": 1}
    second = {"leader": 2, "leader_epoch": 1, "controller_id": 2, "controller_epoch": 2}
    frames = of(
        spark,
        [sent(1, 1, time=0), sent(2, 2, time=1)],
        [
            {**first, "api_key": 4, "time": 0, "server": "b", "connection": "b"},
            {**first, "topic": "other", "time": 0, "server": "a", "connection": "a"},
            {**first, "time": 0.5, "server": "b", "connection": "b"},
            {**second, "time": 2, "server": "a", "connection": "a"},
            {**first, "time": 9, "server": "a", "connection": "a"},
        ],
    )
    rows = run("propagation", frames)
    assert columns(rows, "broker states max_ms") == [("a:9093", 2, 0.0), ("b:9093", 1, 500.0)]


def test_leader_and_isr_and_update_metadata_disagree(spark):
    frames = of(spark, states=[
        {"leader": 1, "leader_epoch": 3, "api_key": 4}, {"leader": 1, "leader_epoch": 3},
        {"leader": 1, "leader_epoch": 4, "api_key": 4}, {"leader": 2, "leader_epoch": 4},
        {"leader": -2, "leader_epoch": 4},
    ])  # fmt: skip
    rows = run("disagreements", frames)
    assert columns(rows, "leader_epoch in_leader_and_isr in_update_metadata packets") == [(4, [1], [2], [3, 4])]


def test_resends(spark):
    # the number of partitions stands for the content here
    given = [
        sent(1, 1, partition_count=5, connection="broken"), sent(1, 1, partition_count=5, response_packet=9),
        sent(1, 1, partition_count=6),
        sent(1, 2, partition_count=5), sent(1, 1, partition_count=5, server="other"),
    ]  # fmt: skip
    rows = run("resends", of(spark, given))
    assert columns(rows, "controller_epoch requests unanswered packets") == [(1, 2, 1, [1, 2])]


def test_a_request_whose_answer_the_capture_lost_was_not_resent(spark):
    """A broker answers in order: the second request on the connection has an answer, so the first had one."""
    given = [sent(1, 1, partition_count=5), sent(1, 1, partition_count=5, response_packet=9)]
    rows = run("resends", of(spark, given))
    assert columns(rows, "requests unanswered packets") == [(2, 0, [1, 2])]


def test_unanswered(spark):
    given = [{"response_packet": 3}, {}, {"answered": False}, {"client_id": "x"}]
    rows = run("unanswered", of(spark, given))
    assert columns(rows, "api client_id requests packets") == [
        ("UpdateMetadata", None, 1, [2]), ("UpdateMetadata", "x", 1, [4]),
    ]  # fmt: skip


def test_a_rebalance_storm(spark):
    join = {"is_control": False, "api_key": 11, "api": "JoinGroup", "group_id": "g"}
    given = [{**join, "generation_id": g, "time": 10 * g, "response_time": 10 * g + 1} for g in range(1, 8)]
    given += [{**join, "generation_id": 7, "time": 71, "response_time": 72}]  # another member of that generation
    given += [
        {**join, "generation_id": 8, "time": 500, "response_time": 501},
        {**join, "generation_id": -1, "time": 600},
    ]
    given += [{**join, "api_key": 13, "time": 700}]
    (row,) = run("rebalances", of(spark, given))
    assert (row.generations, row.most_in_a_minute, row.joins, row.leaves) == (8, 7, 10, 1)
    ended = ANALYSES["rebalances"].run(of(spark, [{**join, "api_key": 13, "time": 700}]))
    texts = [
        finding.text
        for rows in (ANALYSES["rebalances"].run(of(spark, given)), ended)
        for finding in ANALYSES["rebalances"].findings(found(rebalances=told_rows("rebalances", rows)))
    ]
    assert texts == [
        "Rebalance storm: group g: 8 generations, 7 within a minute (10 JoinGroups, 1 LeaveGroup).",
        "Group g: no new generation (0 JoinGroups, 1 LeaveGroup).",
    ]


def test_epochs_that_go_down(spark):
    unanswered = {"controller_id": 1, "controller_epoch": 4}  # perhaps refused: the capture lacks the response
    given = [sent(1, 4), sent(2, 5), sent(1, 4, 11), sent(1, 4), sent(1, 4, server="other"), unanswered]
    states = [
        {"leader": 1, "leader_epoch": 3}, {"leader": 1, "leader_epoch": 2, "server": "other"},
        {"leader": 2, "leader_epoch": 2}, {"leader": 2, "leader_epoch": 2, "api_key": 4, "error_code": 11},
        {"leader": 2, "leader_epoch": 1, "response_error_code": 11}, {"leader": -2, "leader_epoch": 0},
        {"leader": 1, "leader_epoch": 0},  # after its deletion the topic is created again
        {"leader": 1, "leader_epoch": 1, "partition": 1},
        {"leader": 1, "leader_epoch": 0, "partition": 1, "response_error_code": None},
    ]  # fmt: skip
    rows = run("regressions", of(spark, given, states))
    told = found(regressions=told_rows("regressions", ANALYSES["regressions"].run(of(spark, given, states))))
    assert [each.text for each in ANALYSES["regressions"].findings(told) if each.severity == "alarm"] == [
        "The controller epoch went down for broker 10.0.0.1:9093, which did not refuse it: 4 after 5 (packet 4).",
    ]
    assert columns(rows, "epoch packet highest found refused") == [
        ("controller_epoch", 3, 5, 4, True), ("leader_epoch", 3, 3, 2, False), ("controller_epoch", 4, 5, 4, False),
        ("leader_epoch", 4, 3, 2, True), ("controller_epoch", 6, 5, 4, None),
    ]  # fmt: skip


def test_trouble_with_tcp(spark):
    quiet = {"connection": "q", "is_kafka": True, "segments": 9, "retransmits": 0, "out_of_order": 3, "resets": 0}
    frames = of(spark, connections=[
        quiet | {"packets": []}, quiet | {"connection": "r", "resets": 1, "packets": [], "reset_packets": [7]},
        quiet | {"connection": "s", "retransmits": 1, "packets": [8], "reset_packets": []},
        quiet | {"connection": "t", "retransmits": 1, "packets": [9], "is_kafka": False},
    ])  # fmt: skip
    assert columns(run("transport", frames), "connection resets packets reset_packets") == [
        ("r", 1, [], [7]), ("s", 0, [8], []),
    ]  # fmt: skip


def test_a_row_names_a_hundred_packets_at_most(spark):
    (row,) = run("unanswered", of(spark, [{}] * 150))
    assert (row.requests, row.packets) == (150, list(range(1, 101)))


def test_nothing_gives_nothing(spark):
    frames = of(spark)
    for name, analysis in ANALYSES.items():
        assert run(name, frames) == [], name
        assert all(auxiliary.run(frames).collect() == [] for auxiliary in analysis.auxiliary)


def test_every_analysis_has_the_columns_it_promises(spark):
    frames = of(spark)
    made = [(a.table, a.run) for a in ANALYSES.values()]
    for table, query in made + [auxiliary for a in ANALYSES.values() for auxiliary in a.auxiliary]:
        wanted = [(c.name, spark_type(c.type).simpleString()) for c in table.columns]
        assert [(f.name, f.dataType.simpleString()) for f in query(frames).schema] == wanted


def test_every_module_that_declares_an_analysis_is_registered_under_its_name():
    shared = {"__init__", "analysis", "common", "inputs", "running", "words"}
    modules = {path.stem for path in Path(analyses.__file__).parent.glob("*.py")} - shared
    assert modules == set(ANALYSES)
    assert [analysis.table.name for analysis in ANALYSES.values()] == list(ANALYSES)
    ranks = [analysis.rank for analysis in ANALYSES.values() if analysis.rank]
    assert len(ranks) == len(set(ranks))
