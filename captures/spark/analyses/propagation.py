"""How long UpdateMetadata takes to bring a new leader epoch to each broker.

The clock starts with the first control request to any broker that carries the leader epoch. A broker that was not there
at that moment was not late to hear of it: what comes on a connection that was opened later does not count. Nor does
what a controller sends after a later epoch has begun: a zombie has no news, even where no broker refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, as_table, milliseconds
from kce.captures.spark.analyses.words import MISSING, duration, evidence_of, lacks_controls, packets
from kce.captures.tables.rows import BROKER_TEXT, Column, Table, evidence_columns
from kce.wire.registry import UPDATE_METADATA
from kce.wire.vocabulary import LEADER_DURING_DELETE

TABLE = Table(
    "propagation",
    "How long a broker waited for UpdateMetadata of a new leader, from the first request to any broker.",
    (
        BROKER_TEXT,
        Column("states", pa.int64(), "new leaders that it was told of"),
        Column("p50_ms", pa.float64(), ""),
        Column("p99_ms", pa.float64(), ""),
        Column("max_ms", pa.float64(), ""),
        *evidence_columns("the packet with the longest delay"),
    ),
)

#: Less is not told.
_WORTH_MS = 1


def run(of: Frames) -> DataFrame:
    key, receiver = (*PARTITION_KEY, "leader_epoch"), ("server", "server_port")
    states = _of_rightful_controllers(of)
    before = Window.partitionBy(*PARTITION_KEY).orderBy("leader_epoch")
    begun = (
        states.groupBy(*key)
        .agg(
            f.min("time").alias("began"),
            f.max("leader").alias("leader"),
            f.coalesce(f.min("partition_epoch"), f.lit(0)).alias("version"),
        )
        .withColumn("former", f.lag("leader").over(before))
        # an epoch may have the leader of the one before, and the first one in the capture is new if the partition is
        .where("former != leader or (former is null and version = 0)")
        .select(*(f.col(name).alias(f"{name}_begun") for name in key), "began")
    )
    opened = states.groupBy(*receiver, "connection").agg(f.min("time").alias("opened"))
    first = Window.partitionBy(*key, *receiver).orderBy("time", "packet")
    arrived = (
        states.where(f.col("api_key") == UPDATE_METADATA)
        .join(f.broadcast(opened), [*receiver, "connection"])
        .join(begun, [f.col(name).eqNullSafe(f.col(f"{name}_begun")) for name in key])
        .withColumn("rank", f.row_number().over(first))
        .where("rank = 1 and began >= opened")
        .withColumn("lag_ms", milliseconds("began", "time"))
    )  # fmt: skip
    slowest = f.min(f.struct((-f.col("lag_ms")).alias("less"), "time", "packet", "file"))
    shares = f.percentile("lag_ms", f.array(f.lit(0.5), f.lit(0.99)))
    measured = (
        arrived.groupBy("broker")
        .agg(f.count("*").alias("states"), shares.alias("p"), f.max("lag_ms").alias("max_ms"), slowest.alias("slowest"))
        .withColumns(
            {
                "p50_ms": f.col("p")[0],
                "p99_ms": f.col("p")[1],
                "packets": f.array("slowest.packet"),
                "files": f.array("slowest.file"),
            }
        )
    )
    return as_table(TABLE, measured).orderBy("broker")


def _of_rightful_controllers(of: Frames) -> DataFrame:
    began = of.controls.groupBy(f.col("controller_epoch").alias("later")).agg(f.min("time").alias("later_time"))
    overtaken = f.expr("later > controller_epoch and later_time < time")
    states = of.states.where(f.col("leader") != LEADER_DURING_DELETE)
    return states.join(f.broadcast(began), overtaken, "left_anti")


def findings(found: Results) -> Iterator[Finding]:
    slowest = max(found.propagation, key=lambda row: row.max_ms, default=None)
    if slowest is not None and slowest.max_ms >= _WORTH_MS:
        unknown = lacks_controls(found)
        yield Finding(
            "warning" if slowest.max_ms >= found.thresholds.slow_news_ms and not unknown else "note",
            f"Metadata propagation to broker {slowest.broker}: median {duration(slowest.p50_ms)}, slowest "
            f"{duration(slowest.max_ms)} ({packets(slowest.packets)})"
            f"{f', or less: {MISSING}' * unknown}.",
            evidence_of(slowest),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=18, findings=findings)
