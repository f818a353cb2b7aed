"""When brokers lived, as the analyses tell it: silences, deaths, returns, and what was done after a death.

Covers: kce.captures.spark.analyses.silences, kce.captures.spark.analyses.zombie_leaders,
kce.captures.spark.analyses.zombies
"""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql import functions as f

from kce.captures.spark.analyses import ANALYSES, outages, silences
from kce.captures.spark.incidents import incidents
from tests.captures.spark.test_analyses import START, columns, moves, of, outage, run, told_rows
from tests.captures.spark.test_incidents import found
from tests.captures.spark.test_incidents import row as row_of

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(engine):
    """Each test is for Spark and for Sail."""
    return engine


FETCH = {"api": "Fetch", "api_key": 1, "is_control": False, "answered": True}
REPLICA = {**FETCH, "client_id": "broker-2-fetcher-0"}


def known(frames, broker_id=1):
    """The frames with a broker that is known at all addresses."""
    return frames._replace(exchanges=frames.exchanges.withColumn("broker_id", f.lit(broker_id)))


def answer(at, seconds, packet):
    return {"response_time": at + seconds, "latency_ms": seconds * 1000.0, "response_packet": packet,
            "response_file": "x"}  # fmt: skip


def fetches(begin, end):
    """A replica's fetches, each answered after half a second."""
    return [{**REPLICA, "time": begin + n / 2, **answer(begin + n / 2, 0.5, 100 + n)} for n in range(2 * (end - begin))]


def silent(frames):
    signs = silences.signs(frames.exchanges, frames.connections)
    found = silences.silences(frames.exchanges, signs, is_long=False)
    return told_rows("silences", run_with(found, frames))


def run_with(found, frames):
    return ANALYSES["silences"].run(frames._replace(silences=found))


def seconds(moment):
    return (moment.astimezone(datetime.UTC) - START).total_seconds()


@pytest.mark.parametrize(
    ("meanwhile", "is_silent"),
    [
        ({**REPLICA, "time": 10, **answer(10, 3, 7)}, True),
        ({**REPLICA, "time": 10, "connection": "w"}, True),  # the capture may lack its answer, but not for so long
        ({**REPLICA, "time": 11, "connection": "w"}, True),
        # its answer is missing in the capture only, as a later request of its connection was answered
        ({**REPLICA, "time": 11}, False),
        ({**FETCH, "client_id": "c", "time": 10, **answer(10, 3, 7)}, False),  # a consumer waits for records
        (
            {**FETCH, "api": "Produce", "client_id": "c", "time": 10, **answer(10, 3, 7)},
            False,
        ),  # and Produce for replicas
        ({**FETCH, "api": "Metadata", "client_id": "c", "time": 11, **answer(11, 2, 7)}, True),
        ({**FETCH, "api": "Metadata", "client_id": "c", "time": 12.7, **answer(12.7, 0.3, 7)}, False),
        ({"time": 2}, False),
        ({"time": 5, **answer(5, 8, 7)}, False),  # it waited before for something else
    ],
)
def test_a_broker_is_silent_if_requests_wait_that_it_usually_answers(spark, meanwhile, is_silent):
    quick = [{**FETCH, "api": "Metadata", "client_id": "c", "time": n, **answer(n, 0.01, 50 + n)} for n in range(10)]
    rows = silent(known(of(spark, [*fetches(0, 10), *quick, {"packet": 200, **meanwhile}, *fetches(13, 15)])))
    assert [(row.broker_id, seconds(row.begin), row.waiting) for row in rows] == [(1, 10, 1)] * is_silent
    if is_silent:
        (row,) = rows
        assert 13 <= seconds(row.end) <= 13.5
        assert row.sign == "answered Fetch"
        assert row.packets[1] == 200  # the request that waited


def test_a_broker_that_is_down_is_not_silent(spark):
    ended = {"end": "RST", "end_time": START + datetime.timedelta(seconds=10.1), "end_packet": 77, "end_file": "x",
             "end_address": "10.0.0.1", "end_port": 9093, "connection": "d"}  # fmt: skip
    given = [*fetches(0, 10), {**REPLICA, "time": 11, **answer(11, 2, 7)}, *fetches(13, 15)]
    assert silent(known(of(spark, given, connections=[ended]))) == []
    to_itself = {"api": "AlterPartition", "is_control": False, "answered": True, "sender_broker_id": 1, "time": 10}
    assert silent(known(of(spark, [*fetches(0, 10), to_itself, *fetches(13, 15)]))) == []
    as_controller = {"controller_id": 1, "time": 10.5, "packet": 300}  # which may go on for a moment
    assert silent(known(of(spark, [*given, as_controller], connections=[ended]))) == []
    long_before = ended | {"end_time": START + datetime.timedelta(seconds=8)}
    assert len(silent(known(of(spark, given, connections=[long_before])))) == 1


def test_a_silence_may_last_until_the_end(spark):
    (row,) = silent(known(of(spark, [*fetches(0, 10), {**REPLICA, "time": 11}, {**REPLICA, "time": 14}])))
    assert (row.end, row.silent_ms, row.waiting, row.clients) == (None, 4000, 1, ("replicas",))
    (finding,) = ANALYSES["silences"].findings(found(silences=[row]))
    assert finding.text == (
        "Broker 1 was silent for 4.00 s, from 02:45:10.000 to the end of the capture: 1 request of replicas waited "
        "(packets 21, 119)."
    )


def test_silences_of_one_broker_are_one_finding_without_those_that_are_told_as_outages():
    rows = [
        row_of("silences", broker_id=1, sign="answered Fetch", begin=START + datetime.timedelta(seconds=at),
               end=START + datetime.timedelta(seconds=at + 2), silent_ms=ms, waiting=2, clients=("replicas", who),
               packets=(at, at + 1), files=("x", "x"))
        for at, ms, who in ((10, 2000.0, "c"), (20, 900.0, "c"), (30, 1500.0, "p"), (40, 3000.0, "c"))
    ]  # fmt: skip
    (finding,) = ANALYSES["silences"].findings(
        found(silences=rows, outages=[outage(0, 40, 43), outage(0, 10, 43, of=2)])
    )
    assert finding.text == (
        "Broker 1 was silent 2 times, for up to 2.00 s, from 02:45:10.000, 02:45:30.000: 4 requests of c, p, replicas "
        "waited (packets 10, 11, 30, 31)."
    )


def test_a_leader_that_shows_life_again_before_its_successor_is_announced(spark):
    """It was stopped from 10 to 13, its session expired all the same, and 2 leads from 14.2 on."""
    states = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 14.2, "leader": 2, "leader_epoch": 1}]
    given = [*fetches(0, 10), {**REPLICA, "time": 10, **answer(10, 3, 7)}, *fetches(13, 15)]
    (move,) = moves(known(of(spark, given, states)))
    assert (move.sign, seconds(move.sign_time), seconds(move.back_time)) == ("answered Fetch", 10, 13)
    assert (move.real_ms, seconds(move.leader_time), move.packets) == (3000, 14.2, [119, 2])
    assert outages.is_outage(move, 1000)
    (told,) = [
        each for each in ANALYSES["outages"].findings(found(outages=told_moves(move))) if each.severity == "warning"
    ]
    assert told.text == (
        "1 partition of broker 1 had no leader (orders-0): 3.00 s, until broker 1 showed life again at 02:45:13.000; "
        "broker 2 was announced at 02:45:14.200. Last sign of life of broker 1: answered Fetch at 02:45:10.000 "
        "(packets 119, 2)."
    )
    # long after a silence, or before its leadership, a move has nothing to do with it
    later = [{"time": 1, "leader": 1, "leader_epoch": 0}, {"time": 19, "leader": 2, "leader_epoch": 1}]
    (move,) = moves(known(of(spark, [*given, *fetches(15, 20)], later)))
    assert (move.back_time, move.real_ms) == (None, 500)
    since = [{"time": 1, "leader": 2, "leader_epoch": 0}, {"time": 13.1, "leader": 1, "leader_epoch": 1},
             {"time": 14.2, "leader": 2, "leader_epoch": 2}]  # fmt: skip
    _, move = moves(known(of(spark, given, since)))
    assert move.back_time is None


def told_moves(*rows):
    values = [{name: getattr(row, name) for name in row.__fields__} for row in rows]
    return [
        row_of("outages", **{k: tuple(v) if isinstance(v, list) else v for k, v in each.items()}) for each in values
    ]


def test_a_leader_that_had_died_before_it_was_announced_ends_no_outage(spark):
    """1 is gone from 10 on, 3 from 11 on; 3 is announced at 14, 2 at 15."""
    states = [{"time": at, "leader": leader, "leader_epoch": epoch}
              for epoch, (at, leader) in enumerate([(1, 1), (14, 3), (15, 2), (30, 3)])]  # fmt: skip
    ended = [
        {"end": "RST", "end_time": START + datetime.timedelta(seconds=at), "end_packet": packet, "end_file": "x",
         "end_address": f"10.0.0.{broker}", "end_port": 9093, "connection": str(broker)}
        for broker, at, packet in ((1, 10, 70), (3, 11, 71))
    ]  # fmt: skip
    given = [{**FETCH, "server": f"10.0.0.{broker}", "time": 2} for broker in (1, 3)]
    frames = of(spark, given, states, connections=ended)
    broker = f.substring("server", 8, 1).cast("int")
    first, later = moves(frames._replace(exchanges=frames.exchanges.withColumn("broker_id", broker)))
    assert (first.from_leader, first.to_leader, first.real_ms, first.packets) == (1, 2, 5000, [70, 3])
    assert (later.from_leader, later.to_leader) == (2, 3)


def test_partitions_that_had_lost_their_leader_when_the_capture_began(spark):
    states = [{"time": 5, "leader": -1, "leader_epoch": 3}, {"time": 9, "leader": 1, "leader_epoch": 4},
              {"time": 6, "leader": -1, "leader_epoch": 3, "partition": 1}]  # fmt: skip
    rows = moves(of(spark, [], states))
    assert columns(rows, "from_leader to_leader announced_ms real_ms") == [
        (None, None, None, None),
        (None, 1, 4000, None),
    ]
    told = [
        each.text for each in ANALYSES["outages"].findings(found(outages=told_moves(*rows))) if "had no" in each.text
    ]
    assert told == [
        "2 partitions had no leader (orders-0): 4.00 s or longer, until broker 1 was announced at 02:45:09.000; 1 of "
        "them has none at the end: orders-1 (packets 1, 2, 3)."
    ]
    assert [incident.heading for incident in incidents(found(outages=told_moves(rows[1])))] == [
        "Partitions without a leader from 02:45:05.000"
    ]


def test_what_a_broker_acknowledges_after_it_was_given_up_is_lost(spark):
    """Missing from 2 on, as 10.0.0.2 learns; back from 3 on."""
    live = [("10.0.0.2", 1, [1, 2]), ("10.0.0.2", 1, [2]), ("10.0.0.2", 1, [1, 2]), ("10.0.0.1", 1, [1, 2])]
    asked = {"api": "Produce", "api_key": 0, "is_control": False, "client_id": "p", "client": "a"}
    given = [
        {**asked, "time": at, "error_code": error, "packet": packet, **answer(at, 0.1, 9)}
        for packet, (at, error) in enumerate(
            [(1.5, 0), (2.05, 0), (2.2, 0), (2.5, 0), (2.6, 6), (2.95, 0), (3.5, 0)], 1
        )
    ] + [{**asked, "time": 2.7, "packet": 8}]  # fmt: skip
    (row,) = told_rows("zombie_leaders", ANALYSES["zombie_leaders"].run(known(of(spark, given, live=live))))
    assert (row.broker_id, seconds(row.gone_time), row.client_id, row.requests, row.packets) == (1, 2, "p", 2, (3, 4))
    (finding,) = ANALYSES["zombie_leaders"].findings(found(zombie_leaders=[row]))
    assert finding.severity == "alarm"
    assert finding.text == (
        "Broker 1 acknowledged 2 Produce requests of p, from 02:45:02.200 to 02:45:02.500, after it had been declared "
        "dead at 02:45:02.000: records of partitions that had another leader by then are lost (packets 3, 4)."
    )
    assert run("zombie_leaders", known(of(spark, given, live=live), broker_id=2)) == []


@pytest.mark.parametrize("back", ["another", "itself"])
def test_a_broker_is_not_given_up_any_more_though_who_was_told_so_has_died(spark, back):
    """10.0.0.2 learns that 1 is gone, and is gone itself before 1 is back at 5."""
    live = [("10.0.0.2", 1, [1, 2, 3]), ("10.0.0.3", 1, [1, 2, 3]), ("10.0.0.2", 1, [2, 3])]
    if back == "another":
        live += [("10.0.0.3", 1, [2, 3]), ("10.0.0.3", 1, [1, 3])]
    asked = {"api": "Produce", "api_key": 0, "is_control": False, "client_id": "p", "client": "a"}
    given = [
        {**asked, "time": at, "packet": packet, **answer(at, 0.1, 9)} for packet, at in enumerate((2.5, 4.5, 5.5), 1)
    ]
    given.append({"time": 1, "broker_epoch": 7, "packet": 21})
    if back == "itself":
        given.append({"time": 5, "broker_epoch": 8, "packet": 22})
    frames = known(of(spark, given, live=live))
    frames = frames._replace(controls=frames.exchanges.where("is_control"))
    assert columns(run("zombie_leaders", frames), "broker_id requests packets") == [(1, 1, [2])]


def test_a_controlled_shutdown_is_told_of_a_broker_that_leaves_and_of_one_that_comes_back(spark):
    asked = {"api": "ControlledShutdown", "is_control": False, "server": "c", "error_code": 0}
    given = [
        {**asked, "time": 1.5, "sender_broker_id": 3}, {**asked, "time": 3.5, "sender_broker_id": 2},
        {**asked, "time": 1.6, "sender_broker_id": 3, "error_code": 11},
    ]  # fmt: skip
    live = [("a", 1, [1, 2, 3]), ("a", 1, [1, 2]), ("a", 1, [1, 2, 3]), ("a", 1, [1, 3])]
    frames = of(spark, given, live=live)
    (back,), (gone,) = run("bounces", frames), run("departures", frames)
    assert (back.broker_id, seconds(back.shutdown_time)) == (3, 1.5)
    assert (gone.broker_id, seconds(gone.shutdown_time)) == (2, 3.5)


def test_a_controlled_shutdown_is_none_of_the_deaths_after_the_return_from_it(spark):
    """Brokers 2 and 3 are granted one at 1.5, are back at 3, and then die; 3 comes back from that, too."""
    asked = {"api": "ControlledShutdown", "is_control": False, "server": "c", "error_code": 0, "time": 1.5}
    given = [{**asked, "sender_broker_id": 2}, {**asked, "sender_broker_id": 3}]
    live = [("a", 1, [1, 2, 3]), ("a", 1, [1]), ("a", 1, [1, 2, 3]), ("a", 1, [1]), ("a", 1, [1, 3])]
    frames = of(spark, given, live=live)
    told = [
        (row.broker_id, seconds(row.back_time), row.shutdown_time and seconds(row.shutdown_time))
        for row in run("bounces", frames)
    ]
    assert told == [(2, 3, 1.5), (3, 3, 1.5), (3, 5, None)]
    (gone,) = run("departures", frames)
    assert (gone.broker_id, seconds(gone.gone_time), gone.shutdown_time) == (2, 4, None)


def test_a_lookup_that_fails_again_and_again_is_a_warning():
    def error(client_id, topic, last, count):
        until = START + datetime.timedelta(seconds=last)
        return row_of("errors", api="Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", error_code=3, broker="1",
                      client_id=client_id, topic=topic, count=count, first_time=START, last_time=until, packets=(1,),
                      files=("x",))  # fmt: skip

    rows = [error("lost", "nosuch", 30, 4), error("lost", "nosuch", 29, 1), error("new", "orders", 1, 50),
            error("slow", "orders", 60, 2)]  # fmt: skip
    texts = {each.severity: each.text for each in ANALYSES["errors"].findings(found(errors=rows))}
    assert texts["warning"].startswith(
        "Metadata: 5 x UNKNOWN_TOPIC_OR_PARTITION from broker 1 to 'lost', for nosuch, from"
    )
    assert texts["note"].startswith(
        "Metadata: 52 x UNKNOWN_TOPIC_OR_PARTITION from broker 1 to 'new' and 'slow', for orders,"
    )


def test_two_clusters_in_one_capture_are_told_first():
    def endpoint(broker_id, port, first, last):
        return row_of("endpoints", broker_id=broker_id, listener="DATA", host="h", port=port,
                      first_time=START + datetime.timedelta(seconds=first),
                      last_time=START + datetime.timedelta(seconds=last))  # fmt: skip

    apart = [endpoint(1, 9092, 0, 10), endpoint(2, 9093, 0, 10), endpoint(2, 9094, 11, 20)]  # 2 moved
    assert list(ANALYSES["zombies"].findings(found(endpoints=apart))) == []
    (finding,) = ANALYSES["zombies"].findings(found(endpoints=[*apart, endpoint(1, 1092, 5, 6)]))
    assert finding.text == (
        "This is the traffic of more than one cluster: broker 1 was announced at several addresses at the same time. "
        "What follows mixes them up: analyse each by itself, with --ports."
    )


def test_two_clusters_one_after_the_other_are_told_and_are_no_two_controllers_at_once():
    def controller(id, first, last):
        return row_of("controllers", controller_id=id, controller_epoch=1, first_time=START + datetime.timedelta(
                      seconds=first), last_time=START + datetime.timedelta(seconds=last), packets=(first, last),
                      files=("x", "x"))  # fmt: skip

    def both(name, *controllers):
        overlap = row_of("overlaps", controller_id=1, controller_epoch=1, later_id=2, later_epoch=1, requests=3,
                         refused=0, unanswered=0, packets=(12,), files=("x",))  # fmt: skip
        return [each.text for each in ANALYSES[name].findings(found(controllers=controllers, overlaps=[overlap]))]

    told, _ = both("zombies", controller(2, 0, 10), controller(1, 11, 20))
    assert told == (
        "This is the traffic of more than one cluster, one after the other: controllers 2 and 1 both have epoch 1 "
        "(packets 10, 11). What follows mixes them up: analyse each by itself, with --each or --since."
    )
    assert both("overlaps", controller(2, 0, 10), controller(1, 11, 20)) == []
    # in one cluster two controllers of one epoch are a fault of it
    assert len(both("zombies", controller(2, 0, 15), controller(1, 11, 20))) == 1
    assert len(both("overlaps", controller(2, 0, 15), controller(1, 11, 20))) == 1
