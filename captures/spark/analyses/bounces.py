"""Brokers that came back: with a new broker epoch or, where there are none, named alive again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import STALE, as_table, with_shutdowns
from kce.captures.spark.analyses.running import LAST, TOTAL, with_running
from kce.captures.spark.analyses.words import MOST, count, lacks_controls, some
from kce.captures.tables.rows import FILE, TIME, Column, Table

TABLE = Table(
    "bounces",
    "A broker that came back: its epoch rose, or (before brokers had epochs, Kafka 2.2) UpdateMetadata named it again, "
    "or named it for the first time, though partitions had replicas on it.",
    (
        Column("broker_id", pa.int32(), ""),
        Column("from_epoch", pa.int64(), "its broker epoch before; null where that is not known"),
        Column("to_epoch", pa.int64(), "and after"),
        Column(
            "last_time", TIME, "when it was last addressed, or named, as it was before; null if it was down at first"
        ),
        Column("shutdown_time", TIME, "when it was granted a controlled shutdown in between; null if it was not"),
        Column("back_time", TIME, "when requests or broker lists first included it again"),
        FILE,
        Column("packet", pa.int64(), "number of the packet that does so"),
    ),
)


def run(of: Frames) -> DataFrame:
    refused = f.coalesce(f.col("error_code").isin(*STALE), f.lit(False))
    with_epochs = of.controls.where("broker_epoch >= 0 and broker_id is not null").where(~refused)
    known = with_epochs.select("broker_id").distinct()
    named = _named(of)
    by_name = _by_name(named, is_long=of.is_long).join(known, "broker_id", "left_anti")
    by_epoch = _by_epoch(with_epochs)
    # what was addressed before it was down, as a zombie does with itself, comes back with another epoch
    earlier = by_epoch.groupBy(f.col("broker_id").alias("id")).agg(f.min("last_time").alias("earlier"))
    was_addressed = (f.col("broker_id") == f.col("id")) & (f.col("earlier") < f.col("back_time"))
    down = _down_at_first(named, of.states).join(f.broadcast(earlier), was_addressed, "left_anti")
    found = by_epoch.unionByName(by_name).unionByName(down)
    found = with_shutdowns(found, of.exchanges, since="last_time", until="back_time")
    # a shutdown that it came back from already did not end its next life
    before = f.lag("back_time").over(Window.partitionBy("broker_id").orderBy("last_time"))
    is_later = before.isNull() | (f.col("shutdown_time") > before)
    found = found.withColumn("shutdown_time", f.when(is_later, f.col("shutdown_time")))
    return as_table(TABLE, found).orderBy("back_time", "broker_id")


def _by_epoch(with_epochs: DataFrame) -> DataFrame:
    """Broker epochs rise (they are ZooKeeper's czxid), so their order needs no clock."""
    first = f.min(f.struct("time", "packet", "file"))
    lives = with_epochs.groupBy("broker_id", "broker_epoch").agg(first.alias("first"), f.max("time").alias("last"))
    before = Window.partitionBy("broker_id").orderBy("broker_epoch")
    return (
        lives.withColumns({"from_epoch": f.lag("broker_epoch").over(before), "last_time": f.lag("last").over(before)})
        .where("from_epoch is not null")
        .select(
            "broker_id", "from_epoch", f.col("broker_epoch").alias("to_epoch"), "last_time",
            f.col("first.time").alias("back_time"), f.col("first.file").alias("file"),
            f.col("first.packet").alias("packet"),
        )
    )  # fmt: skip


_RECEIVER = ("server", "server_port")


def _named(of: Frames) -> DataFrame:
    """The live brokers of each request, with its ``number`` among those to its receiver."""
    order = ("time", "packet")
    return with_running(
        of.live_brokers, TOTAL, f.lit(1), "number", keys=_RECEIVER, order=order, is_long=of.is_long
    ).withColumn("broker_id", f.explode("brokers"))


def _by_name(named: DataFrame, *, is_long: bool) -> DataFrame:
    """Each receiver gets its requests in order (rule 8.11), so each sees for itself who was missing for a while.

    The nth return that one receiver sees is the nth of any that saw them all; the first to see it gives the time.
    """
    seen = (
        with_running(
            named, LAST, f.struct("number", "time"), "before", keys=(*_RECEIVER, "broker_id"),
            order=("time", "packet"), before=True, is_long=is_long,
        )
        .where("number > before.number + 1")
        .withColumn("last_time", f.col("before.time"))
        .withColumn("nth", f.row_number().over(Window.partitionBy(*_RECEIVER, "broker_id").orderBy("number")))
    )  # fmt: skip
    return _first_seen(seen, "nth")


def _down_at_first(named: DataFrame, states: DataFrame) -> DataFrame:
    """Brokers that have replicas, that were not alive when the capture began, and were later."""
    key = (*_RECEIVER, "broker_id")
    has_replicas = (
        states.groupBy(*_RECEIVER, "replicas")  # of which there are few
        .agg(f.min("time").alias("time"))
        .select(*_RECEIVER, "time", f.explode("replicas").alias("broker_id"))
        .groupBy(*key)
        .agg(f.min("time").alias("replica_time"))
    )
    first = named.groupBy(*key).agg(f.min(f.struct("number", "time", "packet", "file")).alias("first"))
    back = first.select(*key, "first.*").where("number > 1").join(has_replicas, [*key]).where("replica_time < time")
    return _first_seen(back.withColumn("last_time", f.lit(None).cast("timestamp")))


def _first_seen(seen: DataFrame, *of_broker: str) -> DataFrame:
    return (
        seen.groupBy("broker_id", *of_broker)
        .agg(f.min(f.struct("time", "packet", "file", "last_time")).alias("first"))
        .select(
            "broker_id", f.lit(None).cast("bigint").alias("from_epoch"), f.lit(None).cast("bigint").alias("to_epoch"),
            f.col("first.last_time").alias("last_time"), f.col("first.time").alias("back_time"),
            f.col("first.file").alias("file"), f.col("first.packet").alias("packet"),
        )
    )  # fmt: skip


def findings(found: Results) -> Iterator[Finding]:
    unknown = lacks_controls(found)
    # one that is named for the first time may have been named before in a request that is missing
    bounces = [row for row in found.bounces if row.last_time is not None or not unknown]
    for broker_id in dict.fromkeys(row.broker_id for row in bounces):
        rows = [row for row in bounces if row.broker_id == broker_id]
        times = ", ".join(f"{row.back_time:%H:%M:%S}" for row in rows[:MOST])
        often = "once" if len(rows) == 1 else count(len(rows), "time")
        often = f"{'at least ' * unknown}{often}"
        text = f"Broker {broker_id} came back {often}, at {times}{' and later' * (len(rows) > MOST)}"
        if planned := sum(row.shutdown_time is not None for row in rows):
            text += f", {'' if planned == len(rows) else f'{planned} of them '}after a controlled shutdown"
        for row in rows[:MOST]:
            if kept := _kept(found, row):
                text += f"; at {row.back_time:%H:%M:%S} it was the leader of {count(len(kept), 'partition')} still, as "
                text += f"nobody took over ({some(kept, MOST)})"
        yield Finding("warning", f"{text}.", tuple((row.file, row.packet) for row in rows))


def _kept(found: Results, bounce: Any) -> list[str]:
    """The partitions that a broker led before it went and when it came back, as when all brokers were down."""
    if bounce.last_time is None or lacks_controls(found):
        return []
    latest = {(row.topic, row.topic_id, row.partition): row for row in found.leadership if row.time < bounce.back_time}
    return [
        f"{row.topic}-{row.partition}" for row in latest.values()
        if row.to_leader == bounce.broker_id and row.time <= bounce.last_time
    ]  # fmt: skip


ANALYSIS = Analysis(table=TABLE, run=run, rank=12, findings=findings)
