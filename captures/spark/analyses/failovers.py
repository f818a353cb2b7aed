"""What clients felt of a failover: latency before, during and after it, and which topics were hit for how long."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses import outages
from kce.captures.spark.analyses.analysis import THRESHOLDS, Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table, is_replica, topic_names
from kce.captures.spark.analyses.words import (
    MOST,
    clock,
    count,
    duration,
    evidence_of,
    evidence_of_all,
    lacks_packets,
    packets,
    some,
)
from kce.captures.tables.rows import TIME, Column, Table, evidence_columns
from kce.wire import ErrorCode

#: Before and after a failover are so long.
_AROUND_S = 10

#: How long a request may be in flight, and how long a failover without a new leader is looked at.
_MOST_IN_FLIGHT_S, _OPEN_S = 120, 60

#: A request of the last second of the capture may be answered after it.
_UNDER_WAY_S = 1

#: Errors of requests to brokers that do not lead, or whose followers are gone.
_OF_LEADERSHIP = (
    ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_ID,
)  # fmt: skip

#: Requests that a row names.
_NAMED = 20

TABLE = Table(
    "failovers",
    "A client and one API around a failover: before and after it (10 s each), and during it, which is from the last "
    "sign of life of the old leader to the last announcement of a next one, and for all requests in flight meanwhile.",
    (
        Column("from_leader", pa.int32(), "the old leader"),
        Column("begin", TIME, "its last sign of life, or the first announcement, if there was none"),
        Column("until", TIME, "the last announcement of a next leader; null if a partition got none"),
        Column("moved", pa.int64(), "partitions that changed their leader"),
        Column("client_id", pa.string(), ""),
        Column("client", pa.string(), "IP address"),
        Column("api", pa.string(), "Produce or Fetch"),
        Column("is_replica", pa.bool_(), "whether it is a broker that replicates"),
        *(
            column
            for phase in ("before", "during", "after")
            for column in (
                Column(f"{phase}_requests", pa.int64(), f"requests {phase} it"),
                Column(f"{phase}_p50_ms", pa.float64(), "median latency"),
                Column(f"{phase}_p99_ms", pa.float64(), "99th percentile"),
                Column(f"{phase}_max_ms", pa.float64(), "longest"),
            )
        ),
        Column("failed", pa.int64(), "requests during it with an error that a change of leaders explains, and such "
               "requests to the old leader in the 10 s after it"),
        Column("unanswered", pa.int64(), "requests during it without a response, and those to the old leader in the "
               "10 s after it"),
        Column("hit", pa.list_(pa.string()), "topics whose requests failed, were late or got no response during it, "
               "the longest hit first"),
        Column("hit_ms", pa.list_(pa.float64()), "of each topic, from the first such request to the last one's "
               "response or, without one, the last announcement of a next leader of this topic, or ``begin`` "
               "if it did not move in it"),
        *evidence_columns("requests during it that failed, got no response or were late, the worst first"),
    ),
)  # fmt: skip

_OF_FAILOVER = ("from_leader", "begin", "until", "moved")
_KEY = (*_OF_FAILOVER, "client_id", "client", "api")


def run(of: Frames) -> DataFrame:
    moves = _moves(of)
    calls = _calls(of, moves)
    during = f.col("phase") == "during"
    is_bad = f.col("errors").isNotNull() | f.col("response_time").isNull()
    is_hit = during & (is_bad | f.col("hit").isNotNull())
    shares = f.percentile("latency_ms", f.array(f.lit(0.5), f.lit(0.99)))
    counted = (
        calls.groupBy(*_KEY)
        .pivot("phase", ["before", "during", "after"])
        .agg(
            f.count(f.lit(1)).alias("requests"),
            shares[0].alias("p50_ms"),
            shares[1].alias("p99_ms"),
            f.max("latency_ms").alias("max_ms"),
            f.count("errors").alias("failed"),
            f.count_if(f.col("response_time").isNull()).alias("unanswered"),
        )
        .where("during_requests > 0")
        .withColumnsRenamed({"during_failed": "failed", "during_unanswered": "unanswered"})
        .fillna(0, ["before_requests", "after_requests"])
        .withColumn("is_replica", is_replica())
    )
    damage = f.when(is_bad, 1e12).otherwise(f.col("latency_ms"))
    hits = _hits(calls.where(is_hit).withColumn("damage", damage), topic_names(of.partitions), _next_leaders(moves))
    joined = counted.join(hits, [counted[name].eqNullSafe(hits[name]) for name in _KEY], "left").select(
        *(counted[name] for name in counted.columns),
        *(f.coalesce(hits[name], f.array()).alias(name) for name in ("hit", "hit_ms", "packets", "files")),
    )
    lost = f.col("failed") + f.col("unanswered")
    worst_first = (lost.desc(), f.desc_nulls_last("during_max_ms"))
    return as_table(TABLE, joined).orderBy("begin", "is_replica", *worst_first, "client_id", "client", "api")


#: of a move: which failover it belongs to
_OF_MOVE = ("from_leader", "is_planned", "number")


def _moves(of: Frames) -> DataFrame:
    """The moves of leaders with the ``number`` of their failover, among those of one leader that are planned or not."""
    in_order = Window.partitionBy("from_leader", "is_planned").orderBy("began")
    together_us = outages.TOGETHER / datetime.timedelta(microseconds=1)
    apart = f.unix_micros("began") - f.unix_micros(f.lag("began").over(in_order)) > together_us
    return (
        of.moves.where("from_leader is not null")
        .withColumns(
            {
                "moment": f.coalesce("leader_time", "leaderless_time"),
                "began": f.coalesce("sign_time", "leaderless_time", "leader_time"),
                "is_planned": ~outages.was_outage(),
            }
        )
        .withColumn("apart", f.coalesce(apart, f.lit(False)).cast("int"))
        .withColumn("number", f.sum("apart").over(in_order))
    )


def _failovers(moves: DataFrame) -> DataFrame:
    """Each failover with the times between which it lasts; ``until`` is null if a partition got no leader."""
    return (
        moves.groupBy(*_OF_MOVE)
        .agg(
            f.bool_and("is_planned").alias("planned"),
            f.least(f.max("sign_time"), f.min("moment")).alias("begin"),
            f.max("moment").alias("last"),
            f.bool_or(f.col("leader_time").isNull()).alias("is_open"),
            f.sum(f.lit(1)).alias("moved"),  # not count: Sail takes only columns that may be null into a lambda
        )
        .withColumn("until", f.when(~f.col("is_open"), f.col("last")))
    )


def _next_leaders(moves: DataFrame) -> DataFrame:
    """When each topic of a failover had all its next leaders (``led``)."""
    by_topic = moves.groupBy(*_OF_MOVE, f.col("topic").alias("led_topic")).agg(f.max("moment").alias("led"))
    return by_topic.join(_failovers(moves), list(_OF_MOVE)).select(*_OF_FAILOVER, "led_topic", "led")


def _calls(of: Frames, moves: DataFrame) -> DataFrame:
    """Requests of clients around each failover, with its columns and their ``phase``."""
    of_one_leader = Window.partitionBy("from_leader", "planned").orderBy("begin")
    failovers = (
        _failovers(moves)
        .withColumn("end", f.coalesce("until", _later("last", _OPEN_S)))
        .withColumn("earliest", f.greatest(_later("begin", -_AROUND_S), f.lag("begin").over(of_one_leader)))
        .drop("is_planned", "number", "last", "is_open")
        .crossJoin(of.exchanges.agg(f.max(f.coalesce("response_time", "time")).alias("capture_end")))
    )
    # joined by slots of time, for there may be many of both: a request gets all failovers of its slot at once
    slot = f.sequence(
        _slot(_later("begin", -_AROUND_S - _MOST_IN_FLIGHT_S)), _slot(_later("end", _AROUND_S)), f.lit(1).cast("bigint")
    )
    around = (
        failovers.select(f.explode(slot).alias("slot"), f.struct(*failovers.columns).alias("failover"))
        .groupBy("slot")
        .agg(f.collect_list("failover").alias("failovers"))
    )
    last = of.connections.select(f.col("connection").alias("used"), f.col("last_time").alias("open_until"))
    exchanges = of.exchanges.where("api in ('Produce', 'Fetch') and answered")
    # a broker answers in order: the capture lost the response to what was sent before an answered request
    answers = exchanges.groupBy(f.col("connection").alias("answering")).agg(
        f.max(f.when(f.col("response_time").isNotNull(), f.col("time"))).alias("last_answered")
    )
    calls = exchanges.join(last, f.col("connection") == f.col("used"), "left").join(
        answers, f.col("connection") == f.col("answering")
    ).where("response_time is not null or last_answered is null or time >= last_answered").select(
        "client_id", "client", "api", "time", "packet", "file", "response_time", "latency_ms",
        f.when(f.size(_of_leadership()) > 0, _of_leadership()).alias("errors"), "hit", "broker_id",
        f.coalesce("open_until", f.col("time")).alias("open_until"), _slot("time").alias("slot"),
    )  # fmt: skip
    return (
        calls.join(f.broadcast(around), "slot")
        .withColumn("roles", f.expr(f"filter({_ROLES}, role -> role.phase is not null)"))
        .selectExpr(
            "*",
            "exists(roles, role -> role.phase = 'during' and role.is_lost and role.is_own) as lost_with_own",
            "exists(roles, role -> role.phase = 'during' and not role.of.planned) as in_outage",
            "array_max(transform(filter(roles, role -> role.phase = 'during' and role.is_lost and role.is_own), "
            "role -> role.of.begin)) as lost_in",
        )
        # outer: for any other explosion, Spark makes the array once more, to leave out rows where it is empty
        .withColumn("role", f.explode_outer("roles"))
        .where("role is not null")
        .where("not (lost_with_own and role.is_lost and not role.is_own) and (role.phase = 'during' or not in_outage)")
        # lost once: in the last failover of its broker, until which its connection was open
        .where("not coalesce(role.is_lost and role.is_own and role.of.begin < lost_in, false)")
        .select("*", "role.phase", "role.of.*")
    )  # fmt: skip


_LOST_IN = f"""
    response_time is null and time < of.capture_end - interval {_UNDER_WAY_S} seconds and (
        time >= of.begin
        -- what was sent before got lost with the old leader, not with a client's connection or in an earlier failover
        or coalesce(broker_id = of.from_leader, true) and time >= of.earliest
            and (open_until >= of.begin - interval {_UNDER_WAY_S} seconds or open_until = time)
    )"""

#: What a request is to each of ``failovers``: whether it was sent to the old leader (``is_own``), whether it got lost,
#: and the phase in which it counts, null if in none.
_ROLES = f"""
transform(
    transform(failovers, of -> named_struct(
        'of', of, 'is_own', coalesce(broker_id = of.from_leader, false), 'is_lost', {_LOST_IN}
    )),
    role -> named_struct('of', role.of, 'is_own', role.is_own, 'is_lost', role.is_lost, 'phase', case
        when time > role.of.end + interval {_AROUND_S} seconds then null
        -- it waited for something else long before the leaders moved
        when role.of.planned and response_time >= role.of.begin
            and unix_micros(role.of.begin) - unix_micros(time) > {THRESHOLDS.outage_ms} * 1000 then null
        when role.is_own and time > role.of.begin and (
            role.is_lost or errors is not null and (not role.of.planned or latency_ms >= {THRESHOLDS.outage_ms})
        ) and (
            not role.of.planned
            or time < role.of.end + interval {outages.TOGETHER // datetime.timedelta(seconds=1)} seconds
        ) then 'during'
        when time > role.of.end then 'after'
        when role.is_lost then 'during'
        when response_time is null then null
        when response_time >= role.of.begin then 'during'
        when time >= role.of.begin - interval {_AROUND_S} seconds then 'before'
    end)
)"""


def _of_leadership() -> SqlColumn:
    """The errors of a request that a change of leaders explains."""
    return f.filter("errors", lambda error: error.getField("error_code").isin(*_OF_LEADERSHIP))


def _later(time: str, seconds: int) -> SqlColumn:
    return f.col(time) + f.expr(f"interval {seconds} seconds")


def _slot(time: str | SqlColumn) -> SqlColumn:
    return f.floor(f.unix_seconds(time) / _AROUND_S)


def _hits(calls: DataFrame, names: DataFrame, next_leaders: DataFrame) -> DataFrame:
    """Which topics were hit, and how long; and the worst of ``calls``."""
    worst = Window.partitionBy(*_KEY).orderBy(f.desc("damage"), "time", "packet")
    # a topic that did not move has its leaders while others wait for theirs: its request is lost with the old leader
    end = f.coalesce("response_time", f.greatest(f.coalesce("led", "begin"), "time"))
    lasting = (f.unix_micros(f.max(end)) - f.unix_micros(f.min("time"))) / 1000.0
    named = f.when(f.col("nth") <= _NAMED, f.struct("nth", "packet", "file"))
    hit = (
        calls.withColumn("nth", f.row_number().over(worst))
        .select(*_KEY, "time", "response_time", "nth", "packet", "file", f.explode_outer("hit.topic").alias("topic"))
        .join(names, f.col("topic") == f.col("topic_id"), "left")
        .withColumn("topic", f.coalesce("topic_name", "topic"))
    )
    same = [hit[name].eqNullSafe(next_leaders[name]) for name in _OF_FAILOVER]
    by_topic = (
        hit.join(f.broadcast(next_leaders), [*same, f.col("topic") == f.col("led_topic")], "left")
        .select(*(hit[name] for name in hit.columns), "led")
        .groupBy(*_KEY, "topic")
        .agg(lasting.alias("ms"), f.collect_set(named).alias("named"))
        .groupBy(*_KEY)
        .agg(
            f.array_sort(
                f.collect_list(f.when(f.col("topic").isNotNull(), f.struct((-f.col("ms")).alias("less"), "topic")))
            ).alias("topics"),
            f.array_sort(f.array_distinct(f.flatten(f.collect_list("named")))).alias("places"),
        )
    )
    return by_topic.select(
        *_KEY, f.col("topics.topic").alias("hit"), f.transform("topics.less", lambda less: -less).alias("hit_ms"),
        f.col("places.packet").alias("packets"), f.col("places.file").alias("files"),
    )  # fmt: skip


def suffered(row: Any) -> bool:
    """Whether a client lost requests, or waited twice as long as before."""
    if row.is_replica:
        return False
    if row.failed or row.unanswered:
        return True
    return bool(row.hit) and (row.before_max_ms is None or row.during_max_ms >= 2 * row.before_max_ms)


def of_outage(found: Results, leader: int | None, rows: list[Any]) -> list[Any]:
    """What clients suffered of an outage of ``outages.incidents``, the worst first."""
    moments = [row.leader_time or row.leaderless_time for row in rows]
    return [
        row for row in found.failovers
        if row.from_leader == leader and suffered(row)
        and row.begin <= max(moments) and (row.until is None or row.until + outages.TOGETHER >= min(moments))
    ]  # fmt: skip


def findings(found: Results) -> Iterator[Finding]:
    told = []
    for leader, rows in outages.incidents(found)[:MOST]:
        if outages.is_guess(rows, found):
            continue
        hit = of_outage(found, leader, rows)
        told += hit
        yield from _findings(f"Failover of broker {leader}", hit, found)
    # a planned move, too, may cost clients more than the errors by which they learn of it
    least = found.thresholds.outage_ms
    others: dict[tuple[int, datetime.datetime], list[Any]] = {}
    for row in found.failovers:
        if row not in told and suffered(row) and max((row.during_max_ms or 0, *row.hit_ms)) >= least:
            others.setdefault((row.from_leader, row.begin), []).append(row)
    for leader, begin in list(others)[:MOST]:
        yield from _findings(f"Leaders moved from broker {leader}", others[leader, begin], found)


def _findings(what: str, hit: list[Any], found: Results) -> Iterator[Finding]:
    for row in hit[:MOST]:
        unknown = "; responses may be missing in the capture" if row.unanswered and lacks_packets(found) else ""
        text = f"{what} at {clock(row.begin)}: {text_of(row)}{unknown} ({packets(row.packets)})."
        yield Finding("note", text, evidence_of(row))
    if len(hit) > MOST:
        text = f"{what}: {count(len(hit) - MOST, 'other client')} suffered, too: see the table."
        yield Finding("note", text, evidence_of_all(hit[MOST:]))


def text_of(row: Any) -> str:
    """What the client suffered."""
    text = f"{row.api} of {row.client_id or row.client}"
    if row.during_max_ms is not None:
        text += f" took up to {duration(row.during_max_ms)}"
        usual = [
            f"{duration(value)} {when}"
            for value, when in ((row.before_p50_ms, "before"), (row.after_p50_ms, "after")) if value is not None
        ]  # fmt: skip
        text += f" (median {', '.join(usual)})" if usual else ""
        text += f", {row.failed:,} failed, {row.unanswered:,} got no response"
    else:
        text += f": {row.failed:,} failed, {row.unanswered:,} got no response"
    if row.hit:
        hit = [f"{topic} for {duration(ms)}" for topic, ms in zip(row.hit, row.hit_ms, strict=True)]
        text += f"; hit: {some(hit, MOST)}"
    return text


def _latency(median: float | None, longest: float | None) -> str:
    return "–" if median is None or longest is None else f"{duration(median)}, {duration(longest)}"


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=24,
    findings=findings,
    section=Section(
        position=46,
        heading="Clients around failovers",
        hint="Median and longest latency of Produce and Fetch 10 s before, during and 10 s after each change of "
        "leaders, and the topics whose requests failed, were late or got no response meanwhile.",
        columns=(
            Shown("leader lost", "number", lambda r: r.from_leader),
            Shown("at", "time", lambda r: r.begin),
            Shown("client", "text", lambda r: r.client_id or r.client),
            Shown("API", "text", lambda r: r.api),
            Shown("before", "text", lambda r: _latency(r.before_p50_ms, r.before_max_ms)),
            Shown("during", "text", lambda r: _latency(r.during_p50_ms, r.during_max_ms)),
            Shown("after", "text", lambda r: _latency(r.after_p50_ms, r.after_max_ms)),
            Shown("failed", "count", lambda r: r.failed),
            Shown("no response", "count", lambda r: r.unanswered),
            Shown("topics hit", "text", lambda r: some(r.hit, MOST) or "–"),
        ),
    ),
)
