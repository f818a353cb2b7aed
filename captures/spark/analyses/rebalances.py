"""Generations of consumer groups: each is a rebalance, which stops all members (rule G4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import clock, count, duration, evidence_of
from kce.captures.tables.rows import SPAN, TIME, Column, Table, evidence_columns
from kce.captures.tables.tabulate import JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

#: So many generations of a group within a minute are a storm.
STORM = 5

TABLE = Table(
    "rebalances",
    "A consumer group, by its JoinGroup, SyncGroup and LeaveGroup requests.",
    (
        Column("group_id", pa.string(), ""),
        Column("generations", pa.int64(), "how many different ones JoinGroup responses gave"),
        Column("joins", pa.int64(), "JoinGroup requests"),
        Column("leaves", pa.int64(), "LeaveGroup requests"),
        Column("longest_ms", pa.float64(), "longest time that a JoinGroup waited for the other members"),
        Column("longest_time", TIME, "when that was sent"),
        Column("most_in_a_minute", pa.int64(), "generations that began within 60 seconds; a storm from five on"),
        *SPAN,
        *evidence_columns("packets of the JoinGroup requests, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    requests = of.exchanges.where(
        f.col("group_id").isNotNull() & f.col("api_key").isin(JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP)
    )
    generations = (
        requests.where((f.col("api_key") == JOIN_GROUP) & (f.col("generation_id") > 0))
        .groupBy("group_id", "generation_id")
        .agg(f.min("response_time").alias("began"))
    )
    minute = Window.partitionBy("group_id").orderBy(f.unix_micros("began")).rangeBetween(-60_000_000, 0)
    counted = (
        generations.withColumn("within", f.count("*").over(minute))
        .groupBy("group_id")
        .agg(f.count("*").alias("generations"), f.max("within").alias("most_in_a_minute"))
    )
    is_join = f.col("api_key") == JOIN_GROUP
    of_group = (
        numbered(requests.withColumn("is_join", is_join), "group_id", "is_join")
        .withColumn("nth", f.when(is_join, f.col("nth")))
        .groupBy("group_id")
        .agg(
            f.count_if(is_join).alias("joins"),
            f.count_if(f.col("api_key") == LEAVE_GROUP).alias("leaves"),
            f.max(f.when(is_join & f.col("latency_ms").isNotNull(), f.struct("latency_ms", "time"))).alias("longest"),
            *span(),
            *evidence(),
        )
        .withColumns({"longest_ms": f.col("longest.latency_ms"), "longest_time": f.col("longest.time")})
    )
    joined = of_group.join(counted, "group_id", "left").fillna(0, ["generations", "most_in_a_minute"])
    return as_table(TABLE, joined).orderBy("group_id")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.rebalances:
        storm = row.most_in_a_minute >= STORM
        text = f"{'Rebalance storm: group' if storm else 'Group'} {row.group_id}: "
        text += count(row.generations, "generation") if row.generations else "no new generation"
        if row.generations > 1:
            text += f", {row.most_in_a_minute} within a minute"
        text += f" ({count(row.joins, 'JoinGroup')}, {count(row.leaves, 'LeaveGroup')}){_waited(row)}."
        yield Finding("warning" if storm else "note", text, evidence_of(row))


def _waited(row: Any) -> str:
    if row.longest_ms is None:
        return ""
    return f"; a member waited for the others for up to {duration(row.longest_ms)}, from {clock(row.longest_time)}"


ANALYSIS = Analysis(table=TABLE, run=run, rank=21, findings=findings)
