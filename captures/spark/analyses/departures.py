"""Brokers that left the live brokers and did not come back before the end of the capture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, shutdowns, with_shutdowns
from kce.captures.spark.analyses.words import clock, incomplete_controls
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

_RECEIVER = ("server", "server_port")


def run(of: Frames) -> DataFrame:
    news = of.live_brokers.select(*_RECEIVER, "time", "packet", "file", "controller_epoch", "brokers")
    named = news.select("*", f.explode("brokers").alias("broker_id"))
    alive = named.groupBy("broker_id").agg(
        f.max("time").alias("last_time"), f.max("controller_epoch").alias("last_epoch")
    )  # fmt: skip
    without = (
        news.join(f.broadcast(alive), f.expr("time > last_time and controller_epoch >= last_epoch"))
        .where(~f.array_contains("brokers", f.col("broker_id")))
        .groupBy("broker_id", "last_time")
        .agg(f.min(f.struct("time", "packet", "file")).alias("first"))
        .select(
            "broker_id", "last_time", f.col("first.time").alias("gone_time"), f.col("first.file").alias("file"),
            f.col("first.packet").alias("packet"),
        )
    )  # fmt: skip
    granted = _without_return(shutdowns(of.exchanges), news, named)
    without = with_shutdowns(without, granted, since="last_time", until="gone_time")
    return as_table(TABLE, without).orderBy("gone_time", "broker_id")


def _without_return(granted: DataFrame, news: DataFrame, named: DataFrame) -> DataFrame:
    """The controlled shutdowns after which no receiver was told that the broker was missing, and then that it lives."""
    last = named.groupBy(*_RECEIVER, f.col("broker_id").alias("sender")).agg(f.max("time").alias("named_time"))
    returned = (
        news.join(f.broadcast(granted), f.expr("time > granted and not array_contains(brokers, sender)"))
        .groupBy(*_RECEIVER, "sender", "granted")
        .agg(f.min("time").alias("missing_time"))
        .join(last, [*_RECEIVER, "sender"])
        .where("named_time > missing_time")
        .select("sender", "granted")
        .distinct()
    )
    return granted.join(f.broadcast(returned), ["sender", "granted"], "left_anti")


def findings(found: Results) -> Iterator[Finding]:
    unknown = "; whether it came back is unknown, as control requests are incomplete" * bool(incomplete_controls(found))
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
