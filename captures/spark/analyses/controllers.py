"""Who was controller, who was no more, and who was told that."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from captures.analysis_rows import CONTROLLERS, FENCED, OVERLAPS, STALE_PARTITIONS, ZOMBIES
from captures.spark.analyses.common import STALE, as_table, evidence, in_order, micros, numbered, span
from wire import ErrorCode

#: How finely the picture divides the time.
_TIMELINE_STEPS = 1000


def controllers(exchanges: DataFrame, partitions: DataFrame) -> DataFrame:
    """Who was controller in which epoch, as far as control requests show."""
    sent = exchanges.where("is_control and controller_epoch is not null")
    seen = sent.groupBy("controller_epoch", "controller_id").agg(
        f.max("is_kraft_controller").alias("is_kraft_controller"),
        f.min("time").alias("first_time"),
        f.max("time").alias("last_time"),
        f.count("*").alias("requests"),
        f.sort_array(f.collect_set("broker")).alias("brokers"),
        f.count_if(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH).alias("fenced"),
    )
    decided = (
        partitions.where("decision_epoch = controller_epoch")
        .select(
            "controller_epoch",
            "controller_id",
            "topic",
            "topic_id",
            "partition",
            "leader",
            "leader_epoch",
            "partition_epoch",
        )
        .distinct()
        .groupBy("controller_epoch", "controller_id")
        .agg(f.count("*").alias("decisions"))
    )
    joined = seen.join(decided, ["controller_epoch", "controller_id"], "left").fillna(0, ["decisions"])
    return as_table(CONTROLLERS, joined).orderBy("controller_epoch", "first_time")


def fenced(exchanges: DataFrame) -> DataFrame:
    """Requests refused as a whole for a stale controller or broker epoch."""
    refused = exchanges.where(f.col("error_code").isin(*STALE))
    keys = ("error", "controller_id", "controller_epoch", "sender_broker_id", "broker", "api")
    counted = numbered(refused, *keys).groupBy(*keys).agg(f.count("*").alias("requests"), *span(), *evidence())
    return as_table(FENCED, counted).orderBy("first_time", "broker")


def stale_partitions(exchanges: DataFrame, partitions: DataFrame) -> DataFrame:
    """STALE_CONTROLLER_EPOCH inside answers that were not refused as a whole (rules 9.18 and 9.19)."""
    stale = partitions.where(
        (f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH) & (f.col("response_error_code") == 0)
    )
    of = ["file", "packet", "server", "server_port", "controller_id", "controller_epoch"]
    who = exchanges.where("is_control").select(*of, "broker").distinct()
    counted = (
        stale.groupBy(*of)
        .agg(f.count("*").alias("partitions"))
        .join(who, of)
        .groupBy("controller_id", "controller_epoch", "broker")
        .agg(f.count("*").alias("requests"), f.sum("partitions").alias("partitions"))
    )
    return as_table(STALE_PARTITIONS, counted).orderBy("controller_epoch", "controller_id", "broker")


def zombies(exchanges: DataFrame) -> DataFrame:
    """Controllers that sent control requests after a later epoch had begun, and were refused for it.

    A later epoch has begun when a control request of it was sent. Error 11 inside the partitions of an answer makes no
    zombie, nor does a late request that no broker refused: it cannot be told from one that was on its way.
    """
    sent = exchanges.where("is_control and controller_epoch is not null")
    began = sent.groupBy(f.col("controller_epoch").alias("later_epoch")).agg(f.min("time").alias("began"))
    late = (
        sent.where(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH)
        .join(f.broadcast(began), f.expr("later_epoch > controller_epoch and began < time"))
        .groupBy("file", "packet", "server", "server_port", "controller_id", "controller_epoch", "time", "broker")
        .agg(f.max("later_epoch").alias("later_epoch"))
    )
    keys = ("controller_id", "controller_epoch")
    accused = (
        numbered(late, *keys)
        .groupBy(*keys)
        .agg(
            f.max("later_epoch").alias("later_epoch"),
            f.count("*").alias("requests"),
            *span(),
            f.array_distinct(in_order("broker")).alias("brokers"),
            *evidence(),
        )
    )
    return as_table(ZOMBIES, accused).orderBy("first_time")


def overlaps(exchanges: DataFrame) -> DataFrame:
    """Two controllers at once: what one sent after another's later epoch had begun, whether it was refused or not."""
    sent = exchanges.where("is_control and controller_epoch is not null")
    began = sent.groupBy(f.col("controller_id").alias("later_id"), f.col("controller_epoch").alias("later_epoch")).agg(
        f.min("time").alias("began")
    )
    another = "later_epoch > controller_epoch or (later_epoch = controller_epoch and later_id != controller_id)"
    keys = ("controller_id", "controller_epoch", "later_id", "later_epoch")
    late = sent.join(f.broadcast(began), f.expr(f"began < time and ({another})"))
    counted = (
        numbered(late, *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("requests"),
            f.count_if(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH).alias("refused"),
            *span(),
            *evidence(),
        )
    )
    return as_table(OVERLAPS, counted).orderBy("first_time", "later_epoch")


def ticks(exchanges: DataFrame) -> DataFrame:
    """Control requests over time, for a picture: those of one kind within a thousandth of the time told together."""
    sent = exchanges.where("is_control and controller_epoch is not null")
    step = sent.agg(((f.max(micros()) - f.min(micros())) / _TIMELINE_STEPS + 1).cast("bigint").alias("step"))
    return (
        sent.crossJoin(f.broadcast(step))
        .withColumn("fenced", f.coalesce(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH, f.lit(False)))
        .groupBy("controller_epoch", "controller_id", "api", "fenced", f.floor(micros() / f.col("step")))
        .agg(f.min("time").alias("time"), f.count("*").alias("requests"))
        .select("controller_epoch", "controller_id", "api", "fenced", "time", "requests")
        .orderBy("time", "controller_epoch", "api")
    )
