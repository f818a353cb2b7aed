"""Many ISR changes at once: replicas that cannot keep up, or a broker that is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses import isr_changes
from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import MISSING, MOST, brokers, count, evidence_of, lacks_controls
from kce.captures.tables.rows import INTS, SPAN, Column, Table, evidence_columns

#: ISR changes that make a storm, and between two storms it is quiet for longer than that.
STORM_CHANGES = 10
STORM_GAP_S = 10

TABLE = Table(
    "isr_storms",
    "At least ten ISR changes, none more than ten seconds after the one before.",
    (
        *SPAN,
        Column("changes", pa.int64(), ""),
        Column("shrinks", pa.int64(), "changes in which a replica fell out"),
        Column("expansions", pa.int64(), "changes in which one came in"),
        Column("partitions", pa.int64(), "how many partitions were concerned"),
        Column("max_shrinks", pa.int64(), "how often one replica left the ISR of one partition at most"),
        Column("brokers", INTS, "whose replicas fell out"),
        *evidence_columns("packets that announced the changes first, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    changes = isr_changes.run(of)
    # in a slot as long as the gap, no change is quiet: only slots are to be put together
    slots = changes.groupBy(f.floor(f.unix_micros("time") / (STORM_GAP_S * 1_000_000)).alias("slot")).agg(
        f.min("time").alias("begin"), f.max("time").alias("end"), f.count("*").alias("changes")
    )
    in_order = Window.partitionBy(f.lit(0)).orderBy("begin")
    quiet = f.unix_micros("begin") - f.unix_micros(f.lag("end").over(in_order))
    bounds = (
        slots.withColumn("is_first", f.when(quiet <= STORM_GAP_S * 1_000_000, 0).otherwise(1))
        .withColumn("storm", f.sum("is_first").over(in_order))
        .groupBy("storm")
        .agg(f.min("begin").alias("begin"), f.max("end").alias("end"), f.sum("changes").alias("changes"))
        .where(f"changes >= {STORM_CHANGES}")
        .select("begin", "end")
    )
    inside = changes.join(f.broadcast(bounds), f.expr("time between begin and end")).withColumn(
        "shrinks_so_far",
        f.sum((f.size("left") > 0).cast("int")).over(
            Window.partitionBy("begin", "topic", "topic_id", "partition", "left").orderBy("time", "packet")
        ),
    )
    counted = (
        numbered(inside, "begin")
        .groupBy("begin")
        .agg(
            *span(),
            f.count("*").alias("changes"),
            f.count_if(f.size("left") > 0).alias("shrinks"),
            f.count_if(f.size("joined") > 0).alias("expansions"),
            f.count_distinct("topic", f.coalesce("topic_id", f.lit("")), "partition").alias("partitions"),
            f.max("shrinks_so_far").alias("max_shrinks"),
            f.sort_array(f.array_distinct(f.flatten(f.collect_set("left")))).alias("brokers"),
            *evidence(),
        )
    )
    return as_table(TABLE, counted).orderBy("first_time")


def _flaps(row: Any, found: Results) -> bool:
    """Whether a replica left more often than its broker was restarted."""
    restarts = Counter(b.broker_id for b in found.bounces if (b.last_time or b.back_time) <= row.last_time)
    most = max((restarts[broker] for broker in row.brokers), default=0)
    return bool(row.max_shrinks >= found.thresholds.isr_storm_shrinks and row.max_shrinks > most)


def findings(found: Results) -> Iterator[Finding]:
    storms = [row for row in found.isr_storms if _flaps(row, found)]
    unknown = lacks_controls(found)
    for row in storms[:MOST]:
        lasted = (row.last_time - row.first_time).total_seconds()
        whose = f", of {brokers(map(str, row.brokers))}" if row.brokers else ""
        yield Finding(
            "note" if unknown else "warning",
            f"ISR storm at {row.first_time:%H:%M:%S}: {row.changes} changes of {count(row.partitions, 'partition')} "
            f"within {lasted:.1f} s, one replica left up to {row.max_shrinks} times; "
            f"{count(row.shrinks, 'shrink')}{whose}, {count(row.expansions, 'expansion')}"
            f"{f'. Its brokers may have been restarted more often than is known: {MISSING}' * unknown}.",
            evidence_of(row),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=14, findings=findings)
