"""Partitions without a working leader: from the last sign of life of the old leader to the first news of the next.

Signs of life of a broker: it answered a request, it sent one in its own name, or a connection to it ended.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import (
    THRESHOLDS,
    Analysis,
    Auxiliary,
    Finding,
    Frames,
    Results,
    Section,
    Shown,
)
from kce.captures.spark.analyses.common import as_table, milliseconds
from kce.captures.spark.analyses.running import LAST, with_running
from kce.captures.spark.analyses.words import MOST, clock, count, duration, evidence_of, packets, some
from kce.captures.tables.rows import FILE, PARTITION, TIME, TIME_COLUMN, Column, Table, evidence_columns
from kce.wire.vocabulary import NO_LEADER

_CLOSED = "closed a connection"

#: Outages of one leader that began within this time are one incident, however long each lasts.
TOGETHER: Final = datetime.timedelta(seconds=5)

TABLE = Table(
    "outages",
    "A change of a partition's leader, and how long the partition was without one.",
    (
        *PARTITION,
        Column("from_leader", pa.int32(), ""),
        Column("to_leader", pa.int32(), "null if there was none until the end of the capture"),
        Column("sign", pa.string(), "the last sign of life of the old leader before these; null if unknown"),
        Column("sign_time", TIME, "when that was"),
        Column("leaderless_time", TIME, "when the partition was announced to have no leader; null if it was not"),
        Column("leader_time", TIME, "when the next leader was first announced"),
        Column("announced_ms", pa.float64(), "from the announcement of no leader to that of the next"),
        Column("real_ms", pa.float64(), "from the last sign of life to the announcement of the next leader"),
        *evidence_columns("the last sign of life, the announcement of no leader, and that of the next"),
    ),
)


NEWS = Table(
    "news",
    "When a broker was first told of a leader in one leader epoch: for the story of an incident.",
    (
        *PARTITION,
        Column("leader", pa.int32(), ""),
        Column("began", TIME, "when the first broker was told"),
        Column("broker_id", pa.int32(), "who was told; null if not known"),
        Column("api", pa.string(), "LeaderAndIsr or UpdateMetadata"),
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), ""),
    ),
)


def news(of: Frames) -> DataFrame:
    """What a controller repeats after its election is no news."""
    key = ("topic", "topic_id", "partition", "incarnation", "leader", "leader_epoch")
    told = (
        of.states.where("leader >= 0")
        .groupBy(*key, "api", "server", "server_port", "broker_id")
        .agg(f.min(f.struct("time", "packet", "file")).alias("first"))
        .select("*", "first.*", f.min("first.time").over(Window.partitionBy(*key)).alias("began"))
    )
    return as_table(NEWS, told).orderBy("began", "time", "packet", "topic", "partition")


def run(of: Frames) -> DataFrame:
    return of.moves.orderBy(f.coalesce("leader_time", "leaderless_time"), "topic", "partition")


def moves(exchanges: DataFrame, connections: DataFrame, leaders: DataFrame, *, is_long: bool) -> DataFrame:
    """Each change of a leader; ``leaders`` are ``common.leader_changes``."""
    key = Window.partitionBy("topic", "topic_id", "partition").orderBy("time", "packet")
    before = key.rowsBetween(Window.unboundedPreceding, -1)
    # a deleted partition has no leader whose successor would be missed
    leader = f.when(f.col("to_leader") != NO_LEADER, f.col("to_leader"))
    place = f.struct("time", "packet", "file")
    changed = (
        leaders.withColumns(
            {
                "old": f.last(leader, ignorenulls=True).over(before),
                "none": f.when(f.col("from_leader") == NO_LEADER, f.lag(place).over(key)),
                "is_last": f.lead("time").over(key).isNull(),
                "news": place,
            }
        )
        .where(f"old >= 0 and (to_leader >= 0 or (to_leader = {NO_LEADER} and is_last))")
        .withColumns(
            {
                "none": f.when(f.col("to_leader") == NO_LEADER, f.col("news")).otherwise(f.col("none")),
                "news": f.when(f.col("to_leader") >= 0, f.col("news")),
                "new": f.when(f.col("to_leader") >= 0, f.col("to_leader")),
            }
        )
        .select("topic", "topic_id", "partition", "old", "new", "none", "news")
        # a broker that comes back, or was only cut off, shows signs of life before it leads again
        .withColumn("end", f.coalesce("none", "news"))
    )
    # the last sign before a move is found by one pass over both, by broker
    life = f.struct("time", "packet", "file", "kind")
    signs = _signs(exchanges, connections).select(
        f.col("broker_id").alias("old"), f.col("time").alias("at"), "packet", f.lit(False).alias("is_move"),
        life.alias("life"), f.lit(None).alias("move"),
    )  # fmt: skip
    moved = changed.select(
        "old", f.col("end.time").alias("at"), "end.packet", f.lit(True).alias("is_move"), f.lit(None).alias("life"),
        f.struct("topic", "topic_id", "partition", "new", "none", "news").alias("move"),
    )  # fmt: skip
    found = (
        with_running(
            signs.unionByName(moved), LAST, f.col("life"), "life", keys=["old"], order=["at", "packet", "is_move"],
            is_long=is_long,
        )
        .where("move is not null")
        .select("old", "life", "move.*")
    )  # fmt: skip
    places = f.filter(f.array(_place("life"), _place("none"), _place("news")), lambda each: each.isNotNull())
    return as_table(
        TABLE,
        found.withColumns(
            {
                "from_leader": f.col("old"),
                "to_leader": f.col("new"),
                "sign": f.col("life.kind"),
                "sign_time": f.col("life.time"),
                "leaderless_time": f.col("none.time"),
                "leader_time": f.col("news.time"),
                "announced_ms": milliseconds("none.time", "news.time"),
                "real_ms": milliseconds("life.time", "news.time"),
                "packets": f.transform(places, lambda each: each.getField("packet")),
                "files": f.transform(places, lambda each: each.getField("file")),
            }
        ),
    )


def _place(name: str) -> SqlColumn:
    place = f.struct(f.col(f"{name}.packet").alias("packet"), f.col(f"{name}.file").alias("file"))
    return f.when(f.col(name).isNotNull(), place)


def _signs(exchanges: DataFrame, connections: DataFrame) -> DataFrame:
    """(broker_id, time, packet, file, kind) of everything that a broker did."""
    answers = exchanges.where("response_time is not null and broker_id is not null").select(
        "broker_id", f.col("response_time").alias("time"), f.col("response_packet").alias("packet"),
        f.col("response_file").alias("file"), f.concat(f.lit("answered "), "api").alias("kind"),
    )  # fmt: skip
    fetcher = f.regexp_extract("client_id", r"^broker-(\d+)-fetcher-\d+$", 1)
    sender = f.coalesce(
        "sender_broker_id", f.when(f.col("is_control"), f.col("controller_id")),
        f.when(fetcher != "", fetcher.cast("int")),
    )  # fmt: skip
    requests = exchanges.withColumn("sender", sender).where("sender is not null").select(
        f.col("sender").alias("broker_id"), "time", "packet", "file", f.concat(f.lit("sent "), "api").alias("kind")
    )  # fmt: skip
    # only addresses that received requests have a known broker
    listeners = exchanges.where("broker_id is not null").select("server", "server_port", "broker_id").distinct()
    ended = connections.where("end is not null")
    at_listener = (f.col("end_address") == f.col("server")) & (f.col("end_port") == f.col("server_port"))
    ends = ended.join(f.broadcast(listeners), at_listener).select(
        "broker_id", f.col("end_time").alias("time"), f.col("end_packet").alias("packet"),
        f.col("end_file").alias("file"), f.concat(f.lit(f"{_CLOSED} with "), "end").alias("kind"),
    )  # fmt: skip
    return answers.unionByName(requests).unionByName(ends)


def is_outage(row: Any, outage_ms: float) -> bool:
    """Whether a move was not planned: there was no leader for a while, or the old leader had died."""
    if row.to_leader is None or row.leaderless_time is not None:
        return True
    return row.real_ms is not None and (row.real_ms >= outage_ms or row.sign.startswith(_CLOSED))


def was_outage() -> SqlColumn:
    """``is_outage`` of rows of the table, with the default threshold."""
    late = (f.col("real_ms") >= THRESHOLDS.outage_ms) | f.col("sign").startswith(_CLOSED)
    return f.col("to_leader").isNull() | f.col("leaderless_time").isNotNull() | f.coalesce(late, f.lit(False))


def findings(found: Results) -> Iterator[Finding]:
    if found.outages:
        yield Finding("note", f"Leaders moved {count(len(found.outages), 'time')}.")
    shown = sorted(incidents(found), key=lambda incident: max(map(_length, incident[1])), reverse=True)
    for leader, rows in shown[:MOST]:
        yield _finding(leader, rows)
    if len(shown) > MOST:
        yield Finding("warning", f"{count(len(shown) - MOST, 'other outage')}, see the table of outages.")


def incidents(found: Results) -> list[tuple[int, list[Any]]]:
    """(old leader, its outages) for outages that began at about the same time."""
    groups: dict[tuple[int, datetime.datetime], list[Any]] = {}
    for row in found.outages:
        if is_outage(row, found.thresholds.outage_ms):
            began = row.sign_time or row.leaderless_time or row.leader_time
            known = (key for key in groups if key[0] == row.from_leader and abs(key[1] - began) < TOGETHER)
            groups.setdefault(next(known, (row.from_leader, began)), []).append(row)
    return [(leader, rows) for (leader, _), rows in groups.items()]


def _length(row: Any) -> float:
    return math.inf if row.to_leader is None else row.real_ms or 0.0


def _finding(leader: int, rows: list[Any]) -> Finding:
    ended, never = [row for row in rows if row.to_leader is not None], [row for row in rows if row.to_leader is None]
    worst = max(ended or never, key=_length)
    text = f"{count(len(rows), 'partition')} of broker {leader} had no leader"
    if not ended:
        text += f" at the end: {_names(never)}"
    else:
        lasting = f", {worst.topic}-{worst.partition} longest: " if len(ended) > 1 else ": "
        real = "for an unknown time" if worst.real_ms is None else duration(worst.real_ms)
        text += f" ({_names(ended)}){lasting}{real}, until broker {worst.to_leader} was announced at "
        text += clock(worst.leader_time)
        if never:
            text += f"; {len(never):,} of them {'has' if len(never) == 1 else 'have'} none at the end: {_names(never)}"
    if worst.sign_time is not None:
        text += f". Last sign of life of broker {leader}: {worst.sign} at {clock(worst.sign_time)}"
    if worst.announced_ms is not None:
        text += f"; announced without a leader for {duration(worst.announced_ms)}"
    evidence = tuple(dict.fromkeys(place for row in [worst, *never[:1]] for place in evidence_of(row)))
    return Finding("warning", f"{text} ({packets([packet for _, packet in evidence])}).", evidence)


def _names(rows: list[Any]) -> str:
    return some([f"{row.topic}-{row.partition}" for row in rows], MOST)


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=4,
    findings=findings,
    section=Section(
        position=45,
        heading="Outages",
        hint="Each change of a leader. Announced: from the announcement of no leader to that of the next. Real: from "
        "the last sign of life of the old leader to the announcement of the next.",
        columns=(
            Shown("partition", "text", lambda r: f"{r.topic}-{r.partition}"),
            Shown("from", "leader", lambda r: r.from_leader),
            Shown("to", "leader", lambda r: -1 if r.to_leader is None else r.to_leader),
            Shown("last sign of life", "text", lambda r: r.sign or "–"),
            Shown("at", "time", lambda r: r.sign_time),
            Shown("next leader", "time", lambda r: r.leader_time),
            Shown("announced", "ms", lambda r: r.announced_ms),
            Shown("real", "ms", lambda r: r.real_ms),
        ),
    ),
    auxiliary=(Auxiliary(NEWS, news),),
)
