"""Partitions whose leader changed after the first."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Frames
from kce.captures.spark.analyses.common import as_table, evidence, milliseconds, numbered, span
from kce.captures.tables.rows import INTS, PARTITION, SPAN, Column, Table, evidence_columns
from kce.wire.vocabulary import LEADER_DURING_DELETE, NO_LEADER

TABLE = Table(
    "churn",
    "A partition that changed its leader after its first.",
    (
        *PARTITION,
        Column("changes", pa.int64(), "how often another leader, or none, was announced"),
        Column("leaders", INTS, "all leaders it had, -1 for none"),
        Column("leaderless_ms", pa.float64(), "how long it was announced to have none"),
        *SPAN,
        *evidence_columns("packets that announced the changes first, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    keys = ("topic", "topic_id", "partition")
    following = Window.partitionBy(*keys).orderBy("time", "packet")
    lasting = of.leaders.withColumn("until", f.lead("time").over(following))
    leaderless = f.when(f.col("to_leader") == NO_LEADER, milliseconds("time", "until"))
    counted = (
        numbered(lasting.where(f"from_leader is not null and to_leader != {LEADER_DURING_DELETE}"), *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("changes"),
            f.sort_array(f.array_union(f.collect_set("from_leader"), f.collect_set("to_leader"))).alias("leaders"),
            f.coalesce(f.sum(leaderless), f.lit(0.0)).alias("leaderless_ms"),
            *span(),
            *evidence(),
        )
    )
    return as_table(TABLE, counted).orderBy(f.desc("changes"), "topic", "partition")


ANALYSIS = Analysis(table=TABLE, run=run)
