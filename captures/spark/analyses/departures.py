"""Brokers that left the live brokers and did not come back before the end of the capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, with_shutdowns
from kce.captures.spark.analyses.words import MISSING, clock, lacks_controls
from kce.captures.tables.rows import FILE, TIME, Column, Table

TABLE = Table(
    "departures",
    "A broker that UpdateMetadata no longer names alive.",
    (
        Column("broker_id", pa.int32(), ""),
        Column("last_time", TIME, "when it was last named alive"),
        Column("shutdown_time", TIME, "when it was granted a controlled shutdown; null if it was not"),
        Column("gone_time", TIME, "when it was first missing after that"),
        FILE,
        Column("packet", pa.int64(), "number of the packet without it"),
    ),
)

#: so much later than the first receiver the last one may hear that a broker is gone
_SPREAD = "interval 500 milliseconds"


def run(of: Frames) -> DataFrame:
    news = of.live_brokers.select("time", "packet", "file", "controller_epoch", "brokers")
    alive = news.select("*", f.explode("brokers").alias("broker_id")).groupBy("broker_id").agg(
        f.max("time").alias("last_time"), f.max("controller_epoch").alias("last_epoch")
    )  # fmt: skip
    is_gone = f.expr("time > last_time and controller_epoch >= last_epoch")
    was_missing = f.col("time") < f.col("last_time") - f.expr(_SPREAD)
    without = (
        news.join(f.broadcast(alive), f.expr("not array_contains(brokers, broker_id)"))
        .groupBy("broker_id", "last_time")
        .agg(
            f.min(f.when(is_gone, f.struct("time", "packet", "file"))).alias("first"),
            f.max(f.when(was_missing, f.col("time"))).alias("missing_time"),
        )
        .where("first is not null")
        .select(
            "broker_id", "last_time", "missing_time", f.col("first.time").alias("gone_time"),
            f.col("first.file").alias("file"), f.col("first.packet").alias("packet"),
        )
    )  # fmt: skip
    without = with_shutdowns(without, of.exchanges, since="last_time", until="gone_time")
    # one that it came back from is not why it left
    is_latest = f.col("missing_time").isNull() | (f.col("shutdown_time") > f.col("missing_time"))
    without = without.withColumn("shutdown_time", f.when(is_latest, f.col("shutdown_time")))
    return as_table(TABLE, without).orderBy("gone_time", "broker_id")


def findings(found: Results) -> Iterator[Finding]:
    unknown = f"; whether it came back is unknown, as {MISSING}" * lacks_controls(found)
    for row in found.departures:
        yield Finding(
            "warning",
            f"Broker {row.broker_id} left the cluster{_how(row)}{'' if unknown else ' and did not come back'}: first "
            f"missing among the live brokers at {clock(row.gone_time)} (packet {row.packet}){unknown}.",
            ((row.file, row.packet),),
        )


def _how(row: Any) -> str:
    return "" if row.shutdown_time is None else f" by a controlled shutdown at {clock(row.shutdown_time)}"


ANALYSIS = Analysis(table=TABLE, run=run, rank=11, findings=findings)
