"""Brokers that went and came back."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from captures.analysis_rows import BOUNCES
from captures.spark.analyses.common import as_table


def bounces(exchanges: DataFrame, live_brokers: DataFrame) -> DataFrame:
    """Brokers that came back: with a new broker epoch or, where there are none, named alive again."""
    by_epoch = _by_epoch(exchanges)
    with_epochs = _with_epochs(exchanges).select("broker_id").distinct()
    by_name = _by_name(live_brokers).join(with_epochs, "broker_id", "left_anti")
    return as_table(BOUNCES, by_epoch.unionByName(by_name)).orderBy("back_time", "broker_id")


def _with_epochs(exchanges: DataFrame) -> DataFrame:
    return exchanges.where("is_control and broker_epoch >= 0 and broker_id is not null")


def _by_epoch(exchanges: DataFrame) -> DataFrame:
    """Broker epochs rise (they are ZooKeeper's czxid), so their order needs no clock."""
    first = f.min(f.struct("time", "packet", "file"))
    lives = (
        _with_epochs(exchanges)
        .groupBy("broker_id", "broker_epoch")
        .agg(first.alias("first"), f.max("time").alias("last"))
    )
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


def _by_name(live_brokers: DataFrame) -> DataFrame:
    """Each receiver is told in order (rule 8.11), so each sees for itself who was missing for a while.

    The nth return that one receiver sees is the nth of any that saw them all; the first to see it tells when.
    """
    receiver = ("server", "server_port")
    in_order = Window.partitionBy(*receiver).orderBy("time", "packet")
    of_broker = Window.partitionBy(*receiver, "broker_id").orderBy("number")
    seen = (
        live_brokers.withColumn("number", f.row_number().over(in_order))
        .withColumn("broker_id", f.explode("brokers"))
        .withColumns({"before": f.lag("number").over(of_broker), "last_time": f.lag("time").over(of_broker)})
        .where("number > before + 1")
        .withColumn("nth", f.row_number().over(of_broker))
    )
    return (
        seen.groupBy("broker_id", "nth")
        .agg(f.min(f.struct("time", "packet", "file", "last_time")).alias("first"))
        .select(
            "broker_id", f.lit(None).cast("bigint").alias("from_epoch"), f.lit(None).cast("bigint").alias("to_epoch"),
            f.col("first.last_time").alias("last_time"), f.col("first.time").alias("back_time"),
            f.col("first.file").alias("file"), f.col("first.packet").alias("packet"),
        )
    )  # fmt: skip
