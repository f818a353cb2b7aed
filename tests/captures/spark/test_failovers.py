"""Which requests a failover explains: those of other failovers, and of clients' own doing, are not its.

Covers: kce.captures.spark.analyses.failovers
"""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f

from kce.captures.spark.analyses import ANALYSES
from tests.captures.spark.test_analyses import CONNECTIONS, frame, kept, of, told_rows
from tests.captures.spark.test_incidents import found

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(engine):
    """Each test is for Spark and for Sail."""
    return engine


LIFE = {"api": "AlterPartition", "is_control": False}
ASKED = {"api": "Produce", "is_control": False, "client_id": "p", "client": "a"}


def answered(time, seconds, **more):
    return {**ASKED, "time": time, "response_time": time + seconds, "latency_ms": seconds * 1000.0,
            "response_packet": 1, "response_file": "x", **more}  # fmt: skip


def failovers(spark, given, states, connections=()):
    """Port 1 is broker 1, port 2 is broker 2. Requests have connections of their own, unless they say otherwise."""
    frames = of(spark, [{"connection": str(n), **each} for n, each in enumerate(given)], states)
    exchanges = frames.exchanges.withColumn("broker_id", f.when(f.col("server_port") < 9, f.col("server_port")))
    frames = frames._replace(exchanges=kept(exchanges), connections=frame(spark, CONNECTIONS, connections))
    return told_rows("failovers", ANALYSES["failovers"].run(frames))


def states_of(*leaders):
    return [{"time": time, "leader": leader, "leader_epoch": n} for n, (time, leader) in enumerate(leaders)]


MOVED = states_of((1, 1), (22, -1), (23, 3))


def test_what_a_client_lost_by_closing_its_connection_is_not_of_a_failover(spark):
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, {**ASKED, "time": 15, "server_port": 1, "connection": "closed"},
        {**ASKED, "time": 16, "server_port": 1, "connection": "open"}, {**LIFE, "time": 40},
    ]  # fmt: skip
    ends = [{"connection": name, "last_time": at} for name, at in (("closed", 17), ("open", 20))]
    (row,) = failovers(spark, given, MOVED, ends)
    assert (row.unanswered, row.packets) == (1, (3,))


def test_what_the_capture_lost_is_not_lost_by_a_failover(spark):
    """A broker answers in order: it answered the second request of its connection, so it answered the first."""
    to = {"server_port": 1, "connection": "c"}
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, {**ASKED, **to, "time": 18}, answered(18.5, 0.1, **to),
        {**ASKED, **to, "time": 19}, {**LIFE, "time": 40},
    ]  # fmt: skip
    (row,) = failovers(spark, given, MOVED)
    assert (row.unanswered, row.packets) == (1, (4,))


def test_errors_that_a_change_of_leaders_does_not_explain_are_not_of_a_failover(spark):
    too_large, not_leader = 10, 6
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, answered(21, 0.01, error_code=too_large),
        answered(21.5, 0.01, error_code=not_leader), {**LIFE, "time": 40},
    ]  # fmt: skip
    (row,) = failovers(spark, given, MOVED)
    assert (row.during_requests, row.failed) == (2, 1)


def test_what_went_to_the_old_leader_afterwards_counts_if_it_was_lost_or_failed(spark):
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, {**ASKED, "time": 25, "server_port": 1},
        answered(26, 0.5, server_port=1, error_code=6), answered(27, 0.01, server_port=1),
        {**ASKED, "time": 28, "server_port": 2}, {**LIFE, "time": 60},
    ]  # fmt: skip
    (row,) = failovers(spark, given, MOVED)
    assert (row.failed, row.unanswered, row.after_requests, row.packets) == (1, 1, 2, (2, 3))
    # a planned move: clients learn of it by errors, which are quick
    (row,) = failovers(spark, [{**LIFE, "time": 22.9, "sender_broker_id": 1}, *given[1:]], states_of((1, 1), (23, 3)))
    assert (row.failed, row.unanswered) == (0, 1)


def test_a_request_that_another_broker_lost_by_its_own_death_is_of_that_failover_only(spark):
    """Broker 1 is gone from 20 on, 2 from 21 on."""
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, {**LIFE, "time": 21, "sender_broker_id": 2},
        {**ASKED, "time": 20.5, "server_port": 1}, {**ASKED, "time": 21.5, "server_port": 2}, {**LIFE, "time": 60},
    ]  # fmt: skip
    other = [{**state, "partition": 9} for state in states_of((1, 2), (25, 3))]
    rows = failovers(spark, given, [*states_of((1, 1), (24, 3)), *other])
    assert [(row.from_leader, row.unanswered, row.packets) for row in rows] == [(1, 1, (3,)), (2, 1, (4,))]


def test_what_was_hit_by_one_outage_is_not_the_usual_latency_before_the_next(spark):
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, answered(15, 0.01), answered(21, 2.5, server_port=2),
        {**LIFE, "time": 26, "sender_broker_id": 3}, answered(27, 1.5, server_port=2), {**LIFE, "time": 60},
    ]  # fmt: skip
    rows = failovers(spark, given, states_of((1, 1), (22, -1), (23, 3), (28, -1), (29, 2)))
    assert [(row.from_leader, row.before_max_ms, row.during_max_ms) for row in rows] == [(1, 10, 2500), (3, None, 1500)]


def test_a_topic_is_hit_until_it_has_its_leaders_though_other_topics_have_none_yet(spark):
    """The lost request was for topic t, which is led again from 24 on; another topic is not before 50."""
    given = [{**LIFE, "time": 20, "sender_broker_id": 1}, {**ASKED, "time": 21, "server_port": 1}, {**LIFE, "time": 60}]
    of_t = [{**state, "topic": "t"} for state in states_of((1, 1), (23, -1), (24, 3))]
    (row,) = failovers(spark, given, [*of_t, *[{**s, "topic": "u"} for s in states_of((1, 1), (23, -1), (50, 3))]])
    assert (row.unanswered, row.hit, row.hit_ms) == (1, ("t",), (3000.0,))
    assert (row.until - row.begin).total_seconds() == 30


def test_a_topic_that_moved_before_is_hit_until_the_old_leader_is_gone(spark):
    """Topic t is moved by a controlled shutdown at 22, a lone replica of u is left without a leader until 50."""
    given = [
        {**LIFE, "time": 23.5, "sender_broker_id": 1}, {**ASKED, "time": 21.5, "server_port": 1, "connection": "c"},
        {**LIFE, "time": 60},
    ]  # fmt: skip
    of_t = [{**state, "topic": "t"} for state in states_of((1, 1), (22, 3))]
    of_u = [{**state, "topic": "u"} for state in states_of((1, 1), (24, -1), (50, 1))]
    rows = failovers(spark, given, [*of_t, *of_u], [{"connection": "c", "last_time": 23.5}])
    assert [(row.unanswered, row.hit, row.hit_ms) for row in rows if row.unanswered] == [(1, ("t",), (2000.0,))]


def test_a_planned_move_that_cost_clients_a_second_is_told(spark):
    given = [{**LIFE, "time": 22.9, "sender_broker_id": 1}, answered(22, 0.01), answered(23.5, 3, server_port=1,
                                                                                          error_code=6)]  # fmt: skip
    rows = failovers(spark, given, states_of((1, 1), (23, 3)))
    (finding,) = ANALYSES["failovers"].findings(found(failovers=rows))
    assert finding.text == (
        "Leaders moved from broker 1 at 02:45:22.900: Produce of p took up to 3.00 s (median 10 ms before), 1 failed, "
        "0 got no response; hit: t for 3.00 s (packet 3)."
    )


def test_a_planned_move_is_not_to_blame_for_what_had_waited_long_before(spark):
    """As for a follower that is gone but in sync still: the leader answers when it is back, moments after a move."""
    given = [
        {**LIFE, "time": 22.9, "sender_broker_id": 1}, answered(10, 13.5, server_port=2),
        answered(22.5, 1, server_port=2), {**LIFE, "time": 60},
    ]  # fmt: skip
    (row,) = failovers(spark, given, states_of((1, 1), (23, 3)))
    assert (row.during_requests, row.during_max_ms) == (1, 1000)


def test_a_request_that_an_outage_lost_is_not_of_a_planned_move_of_that_broker(spark):
    """One partition of broker 1 moves at 23, the broker is gone from 27 on."""
    given = [
        {**LIFE, "time": 27, "sender_broker_id": 1}, {**ASKED, "time": 22.5, "server_port": 1, "connection": "c"},
        {**ASKED, "time": 26, "server_port": 1, "connection": "c"}, answered(24, 0.01, server_port=2),
        {**LIFE, "time": 60},
    ]  # fmt: skip
    other = [{**state, "partition": 9} for state in states_of((1, 1), (30, -1), (31, 3))]
    rows = failovers(spark, given, [*states_of((1, 1), (23, 3)), *other], [{"connection": "c", "last_time": 27}])
    assert [(row.until - row.begin).total_seconds() > 1 for row in rows if row.unanswered] == [True]
    assert [row.unanswered for row in rows if row.unanswered] == [2]


def test_a_lost_request_is_of_the_last_failover_of_its_broker_only(spark):
    """Broker 1 leads again after the first; a request of another partition is lost when it is gone for good."""
    given = [
        {**LIFE, "time": 20, "sender_broker_id": 1}, {**ASKED, "time": 20.5, "server_port": 1, "connection": "old"},
        {**LIFE, "time": 26, "sender_broker_id": 1}, {**ASKED, "time": 25.9, "server_port": 1, "connection": "new"},
        {**LIFE, "time": 60},
    ]  # fmt: skip
    ends = [{"connection": name, "last_time": at} for name, at in (("old", 20.6), ("new", 26))]
    other = [{**state, "partition": 9} for state in states_of((1, 1), (29, -1), (30, 3))]
    rows = failovers(spark, given, [*states_of((1, 1), (22, -1), (23, 3)), *other], ends)
    assert [(row.unanswered, row.packets) for row in rows] == [(1, (2,)), (1, (4,))]


def test_what_is_lost_long_after_a_planned_move_is_none_of_its_doing(spark):
    given = [{**LIFE, "time": 22.9, "sender_broker_id": 1}, {**ASKED, "time": 29, "server_port": 1},
             {**ASKED, "time": 25, "server_port": 1}, {**LIFE, "time": 60}]  # fmt: skip
    (row,) = failovers(spark, given, states_of((1, 1), (23, 3)))
    assert (row.unanswered, row.packets) == (1, (3,))
