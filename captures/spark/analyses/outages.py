"""Partitions without a working leader: from the last sign of life of the old leader to the first news of the next."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses import silences
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
from kce.captures.spark.analyses.common import as_table, milliseconds, of_those
from kce.captures.spark.analyses.running import LAST, with_running
from kce.captures.spark.analyses.words import (
    MISSING,
    MOST,
    clock,
    count,
    duration,
    evidence_of,
    evidence_of_all,
    first_places,
    lacks_controls,
    packets,
    some,
)
from kce.captures.tables.rows import FILE, PARTITION, TIME, TIME_COLUMN, Column, Table, evidence_columns
from kce.wire.vocabulary import NO_LEADER

#: Outages of one leader that began within this time are one incident, however long each lasts.
TOGETHER: Final = datetime.timedelta(seconds=5)

TABLE = Table(
    "outages",
    "A change of a partition's leader, and how long the partition was without one.",
    (
        *PARTITION,
        Column("from_leader", pa.int32(), "null if the capture does not show it"),
        Column("to_leader", pa.int32(), "null if there was none until the end of the capture"),
        Column("sign", pa.string(), "the last sign of life of the old leader before these; null if unknown"),
        Column("sign_time", TIME, "when that was"),
        Column("back_time", TIME, "when it showed life again before the next was announced; null if it did not"),
        Column("leaderless_time", TIME, "when the partition was announced to have no leader; null if it was not"),
        Column("leader_time", TIME, "when the next leader was first announced"),
        Column("announced_ms", pa.float64(), "from the announcement of no leader to that of the next"),
        Column("real_ms", pa.float64(), "from the last sign of life to the next one, or else to the next leader"),
        *evidence_columns("the last sign of life, the announcement of no leader, and that of the next"),
    ),
)

_PLACE = "time: timestamp, packet: bigint, file: string"
_LIFE = f"struct<{_PLACE}, kind: string>"
_MOVE = (
    "struct<topic: string, topic_id: string, partition: int, since: timestamp, new: int, "
    f"none: struct<{_PLACE}>, news: struct<{_PLACE}>, end: struct<{_PLACE}>>"
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
    """What a controller repeats after its election is no news. Only of leaders that others made way for."""
    key = ("topic", "topic_id", "partition", "incarnation", "leader", "leader_epoch")
    moved = of.moves.where("to_leader is not null").withColumnRenamed("to_leader", "leader")
    told = (
        of_those(of.states.where("leader >= 0"), moved, "topic", "topic_id", "partition", "leader")
        .groupBy(*key, "api", "server", "server_port", "broker_id")
        .agg(f.min(f.struct("time", "packet", "file")).alias("first"))
        .select("*", "first.*", f.min("first.time").over(Window.partitionBy(*key)).alias("began"))
    )
    return as_table(NEWS, told).orderBy("began", "time", "packet", "topic", "partition")


def run(of: Frames) -> DataFrame:
    return of.moves.orderBy(f.coalesce("leader_time", "leaderless_time"), "topic", "partition")


def moves(signs: DataFrame, silent: DataFrame, leaders: DataFrame, *, is_long: bool) -> DataFrame:
    """Each change of a leader: ``signs`` and ``silent`` are of ``silences``, ``leaders`` ``common.leader_changes``."""
    key = Window.partitionBy("topic", "topic_id", "partition").orderBy("time", "packet")
    before = key.rowsBetween(Window.unboundedPreceding, -1)
    # a deleted partition has no leader whose successor would be missed
    leader = f.when(f.col("to_leader") != NO_LEADER, f.col("to_leader"))
    place = f.struct("time", "packet", "file")
    # structs are made only where they are not null: of a column that `when` makes null, Sail keeps the fields
    place_before = f.struct(*(f.lag(name).over(key).alias(name) for name in ("time", "packet", "file")))
    was_leaderless = (f.col("from_leader") == NO_LEADER) & f.lag("time").over(key).isNotNull()
    changed = (
        leaders.withColumns(
            {
                "old": f.last(leader, ignorenulls=True).over(before),
                "since": f.last(f.when(leader.isNotNull(), f.col("time")), ignorenulls=True).over(before),
                "none": f.when(was_leaderless, place_before),
                "is_last": f.lead("time").over(key).isNull(),
                "news": place,
            }
        )
        .where(f"(old >= 0 and to_leader >= 0) or (old is null and from_leader = {NO_LEADER} and to_leader >= 0) "
               f"or (coalesce(old, 0) >= 0 and to_leader = {NO_LEADER} and is_last)")
        .withColumns(
            {
                "none": f.when(f.col("to_leader") == NO_LEADER, f.col("news")).otherwise(f.col("none")),
                "news": f.when(f.col("to_leader") >= 0, place),
                "new": f.when(f.col("to_leader") >= 0, f.col("to_leader")),
            }
        )
        .select("topic", "topic_id", "partition", "old", "since", "new", "none", "news")
        # a broker that comes back, or was only cut off, shows signs of life before it leads again
        .withColumn("end", f.coalesce("none", "news"))
    )  # fmt: skip
    # the last sign before a move is found by one pass over both, by broker
    moved = f.struct("topic", "topic_id", "partition", "since", "new", "none", "news", "end")
    found = (
        with_running(
            signs.select(
                f.col("broker_id").alias("old"), f.col("time").alias("at"), "packet", f.lit(False).alias("is_move"),
                f.struct("time", "packet", "file", "kind").alias("life"), f.lit(None).cast(_MOVE).alias("move"), "kind",
            ).unionByName(changed.select(
                "old", f.col("end.time").alias("at"), "end.packet", f.lit(True).alias("is_move"),
                f.lit(None).cast(_LIFE).alias("life"), moved.alias("move"), f.lit(None).cast("string").alias("kind"),
            )),
            LAST, f.col("life"), "life", keys=["old"], order=["at", "packet", "is_move", "kind"], is_long=is_long,
        )
        .where("move is not null")
        .select("old", "life", "move.*")
    )  # fmt: skip
    found = _without_the_dead(_with_silences(found, silent))
    places = f.filter(f.array(_place("life"), _place("none"), _place("news")), lambda each: each.isNotNull())
    return as_table(
        TABLE,
        found.withColumns(
            {
                "from_leader": f.col("old"),
                "to_leader": f.col("new"),
                "sign": f.col("life.kind"),
                "sign_time": f.col("life.time"),
                "back_time": f.col("back"),
                "leaderless_time": f.col("none.time"),
                "leader_time": f.col("news.time"),
                "announced_ms": milliseconds("none.time", "news.time"),
                "real_ms": f.coalesce(milliseconds("life.time", "back"), milliseconds("life.time", "news.time")),
                "packets": f.transform(places, lambda each: each.getField("packet")),
                "files": f.transform(places, lambda each: each.getField("file")),
            }
        ),
    )


def _with_silences(found: DataFrame, silent: DataFrame) -> DataFrame:
    """Add ``back``: a broker whose session expires may show life again before its successor is announced."""
    following = f.lead("end").over(Window.partitionBy("broker_id").orderBy("begin"))
    ended = silent.where(f"end is not null and silent_ms >= {THRESHOLDS.outage_ms}").select(
        "broker_id", "begin", "silent_ms", f.col("end").alias("back"), following.alias("next_back"),
        f.struct(f.col("begin").alias("time"), f.col("packets")[0].alias("packet"), f.col("files")[0].alias("file"),
                 f.col("sign").alias("kind")).alias("before"),
    )  # fmt: skip
    at = f.col("end.time")
    is_longer = f.col("silent_ms") > f.coalesce(milliseconds("life.time", "end.time"), f.lit(0))
    last_before = (
        (f.col("old") == f.col("broker_id")) & (f.col("begin") >= f.col("since")) & (f.col("back") < at)
        & (f.unix_micros(at) - f.unix_micros("back") < TOGETHER / datetime.timedelta(microseconds=1))
        & (f.col("next_back").isNull() | (f.col("next_back") >= at))
    )  # fmt: skip
    return (
        found.join(
            f.broadcast(ended), last_before & is_longer & ~f.col("life.kind").startswith(silences.CLOSED), "left"
        )
        .withColumn("life", f.coalesce("before", "life"))
        .drop("broker_id", "begin", "silent_ms", "next_back", "before")
    )


def _without_the_dead(found: DataFrame) -> DataFrame:
    """One move of those in a row whose next leaders had died before they were announced."""
    is_dead = f.col("life.kind").startswith(silences.CLOSED) & (f.col("life.time") < f.col("since"))
    key = ("topic", "topic_id", "partition")
    in_order = Window.partitionBy(*key).orderBy("end.time", "end.packet")
    begins = f.when(f.coalesce(is_dead, f.lit(False)), 0).otherwise(1)
    return (
        found.withColumn("number", f.sum(begins).over(in_order))
        .groupBy(*key, "number")
        .agg(
            f.min_by(f.struct("old", "life", "back"), "end").alias("first"), f.min("none").alias("none"),
            f.max_by(f.struct("new", "news"), "end").alias("last"),
        )
        .select(*key, "first.*", "none", "last.*")
    )  # fmt: skip


def _place(name: str) -> SqlColumn:
    place = f.struct(f.col(f"{name}.packet").alias("packet"), f.col(f"{name}.file").alias("file"))
    return f.when(f.col(name).isNotNull(), place)


def is_outage(row: Any, outage_ms: float) -> bool:
    """Whether a move was not planned: there was no leader for a while, or the old leader had died."""
    if row.to_leader is None or row.leaderless_time is not None:
        return True
    return row.real_ms is not None and (row.real_ms >= outage_ms or row.sign.startswith(silences.CLOSED))


def was_outage() -> SqlColumn:
    """``is_outage`` of rows of the table, with the default threshold."""
    late = (f.col("real_ms") >= THRESHOLDS.outage_ms) | f.col("sign").startswith(silences.CLOSED)
    return f.col("to_leader").isNull() | f.col("leaderless_time").isNotNull() | f.coalesce(late, f.lit(False))


def findings(found: Results) -> Iterator[Finding]:
    moved = [
        row
        for row in found.outages
        if None not in (row.from_leader, row.to_leader) and row.from_leader != row.to_leader
    ]
    if moved:
        news = first_places((row.files[-1], row.packets[-1]) for row in moved)
        yield Finding("note", f"Leaders moved {count(len(moved), 'time')}.", news)
    shown = sorted(incidents(found), key=lambda incident: max(map(_length, incident[1])), reverse=True)
    for leader, rows in shown[:MOST]:
        yield _finding(leader, rows, found)
    if len(shown) > MOST:
        others = evidence_of_all(row for _, rows in shown[MOST:] for row in rows)
        yield Finding("warning", f"{count(len(shown) - MOST, 'other outage')}, see the table of outages.", others)


def incidents(found: Results) -> list[tuple[int | None, list[Any]]]:
    """(old leader, its outages) for outages that began at about the same time."""
    groups: dict[tuple[int | None, datetime.datetime], list[Any]] = {}
    for row in found.outages:
        if is_outage(row, found.thresholds.outage_ms):
            began = row.sign_time or row.leaderless_time or row.leader_time
            known = (key for key in groups if key[0] == row.from_leader and abs(key[1] - began) < TOGETHER)
            groups.setdefault(next(known, (row.from_leader, began)), []).append(row)
    return [(leader, rows) for (leader, _), rows in groups.items()]


def _length(row: Any) -> float:
    return math.inf if row.to_leader is None else row.real_ms or row.announced_ms or 0.0


def _finding(leader: int | None, rows: list[Any], found: Results) -> Finding:
    ended, never = [row for row in rows if row.to_leader is not None], [row for row in rows if row.to_leader is None]
    worst = max(ended or never, key=_length)
    back = [row for row in found.silences if (row.broker_id, row.begin) == (leader, worst.sign_time) and row.end]
    had = "may have had" if is_guess(rows, found) else "had"
    text = f"{count(len(rows), 'partition')}{'' if leader is None else f' of broker {leader}'} {had} no leader"
    if not ended:
        text += f" at the end: {_names(never)}"
    else:
        lasting = f", {worst.topic}-{worst.partition} longest: " if len(ended) > 1 else ": "
        text += f" ({_names(ended)}){lasting}{_lasted(worst)}, until "
        if worst.back_time is not None:
            text += f"broker {leader} showed life again at {clock(worst.back_time)}; "
        text += f"broker {worst.to_leader} was announced at {clock(worst.leader_time)}"
        if never:
            text += f"; {len(never):,} of them {'has' if len(never) == 1 else 'have'} none at the end: {_names(never)}"
    if worst.sign_time is not None:
        text += f". Last sign of life of broker {leader}: {worst.sign} at {clock(worst.sign_time)}"
        if worst.back_time is None and back:
            text += f", the next at {clock(back[0].end)}"
    if worst.announced_ms is not None and worst.real_ms is not None:
        text += f"; announced without a leader for {duration(worst.announced_ms)}"
    shown = [place for row in [worst, *never[:1]] for place in evidence_of(row)]
    evidence = tuple(dict.fromkeys([*shown, *(evidence_of(row)[-1] for row in back)]))
    text += f" ({packets([packet for _, packet in evidence])})."
    if lacks_controls(found):
        text += f" The next leader may have been announced earlier: {MISSING}."
    return Finding("note" if is_guess(rows, found) else "warning", text, evidence)


def is_guess(rows: list[Any], found: Results) -> bool:
    """Whether nothing says that there was no leader, but that nothing was heard, and packets are missing."""
    return lacks_controls(found) and all(map(_is_inferred, rows))


def _is_inferred(row: Any) -> bool:
    return row.to_leader is not None and row.leaderless_time is None and not row.sign.startswith(silences.CLOSED)


def _lasted(row: Any) -> str:
    if row.real_ms is not None:
        return duration(row.real_ms)
    return "for an unknown time" if row.announced_ms is None else f"{duration(row.announced_ms)} or longer"


def _names(rows: list[Any]) -> str:
    return some([f"{row.topic}-{row.partition}" for row in rows], MOST)


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=5,
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
