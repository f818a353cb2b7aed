"""What the analyses share: times, evidence, the life of a topic, the types of a table."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from captures.rows import MAX_EVIDENCE, Table
from captures.spark.schemas import spark_schema
from wire import ErrorCode

STALE = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH
LEADER_DELETED = -2

#: One partition of one topic, also where another topic had its name before.
LIFE = ("topic", "topic_id", "partition", "life")


def said(partitions: DataFrame) -> DataFrame:
    """The states with a leader that no broker refused as a whole, with ``life``.

    A topic that is deleted and created anew begins anew: topic ids tell that, and before there were any the leader -2
    of its deletion (rule 8.9): ``life`` counts these.
    """
    refused = f.coalesce(f.col("response_error_code").isin(*STALE), f.lit(False))
    # the order of requests holds for each broker alone (rule 8.11): one may hear of a topic when another was already
    # told of its deletion
    so_far = Window.partitionBy("topic", "partition", "server", "server_port").orderBy("time", "packet")
    deleted = f.col("leader") == LEADER_DELETED
    deletions_before = f.sum(deleted.cast("int")).over(so_far) - deleted.cast("int")
    return (
        partitions.where(f.col("leader").isNotNull() & ~refused)
        .withColumn("topic_id", f.coalesce("topic_id", f.last("topic_id", ignorenulls=True).over(so_far)))
        .withColumn("life", f.when(f.col("topic_id").isNull(), deletions_before).otherwise(0))
    )


def micros(column: str = "time") -> Column:
    return f.unix_micros(column)


def milliseconds(earlier: str, later: str) -> Column:
    return (micros(later) - micros(earlier)) / 1000.0


def span() -> tuple[Column, Column]:
    return f.min("time").alias("first_time"), f.max("time").alias("last_time")


def numbered(frame: DataFrame, *keys: str) -> DataFrame:
    """With ``nth``, the number of a row among those of the same ``keys``, by time: ``evidence`` needs it."""
    return frame.withColumn("nth", f.row_number().over(Window.partitionBy(*keys).orderBy("time", "packet")))


def evidence() -> tuple[Column, Column]:
    """The first packets of a group, in order, and their files. However large the group, this is not."""
    place = f.when(f.col("nth") <= MAX_EVIDENCE, f.struct("time", "packet", "file"))
    places = f.array_sort(f.collect_set(place))  # a packet may hold many partitions
    return places.getField("packet").alias("packets"), places.getField("file").alias("files")


def in_order(column: str) -> Column:
    """The values of a column, in the order of the requests."""
    value = f.when(f.col("nth") <= MAX_EVIDENCE, f.struct("time", "packet", f.col(column).alias("value")))
    return f.array_sort(f.collect_list(value)).getField("value")


def as_table(table: Table, frame: DataFrame) -> DataFrame:
    """The columns of ``table``, in its types."""
    return frame.select(*(f.col(field.name).cast(field.dataType).alias(field.name) for field in spark_schema(table)))
