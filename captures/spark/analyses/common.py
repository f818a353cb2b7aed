"""Expressions that several analyses share: accepted states, times, evidence, the types of a table."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.running import chunk
from kce.captures.spark.reassembly import STALE as STALE
from kce.captures.spark.schemas import spark_schema
from kce.captures.tables.rows import MAX_EVIDENCE, Table
from kce.wire.vocabulary import LEADER_DURING_DELETE

#: Identifies a partition, also where a deleted topic had the same name.
PARTITION_KEY = ("topic", "topic_id", "partition", "incarnation")


def accepted_states(partitions: DataFrame) -> DataFrame:
    """The states with a leader, without those of requests that were fenced as a whole, with ``incarnation``.

    A topic that is deleted and created again is another topic. Topic ids tell the two apart; before there were any,
    ``incarnation`` counts the deletions, which leader -2 announces (rule 8.9).
    """
    refused = f.coalesce(f.col("response_error_code").isin(*STALE), f.lit(False))
    accepted = partitions.where(f.col("leader").isNotNull() & ~refused)
    without_id = accepted.where("topic_id is null").select("topic").distinct()
    with_ids = accepted.join(without_id, "topic", "left_anti").withColumn("incarnation", f.lit(0))
    # requests are ordered for each broker alone (rule 8.11): one broker may still get states of a topic that another
    # broker has already deleted
    so_far = Window.partitionBy("topic", "partition", "server", "server_port").orderBy("time", "packet")
    deleted = f.col("leader") == LEADER_DURING_DELETE
    deletions_before = f.sum(deleted.cast("int")).over(so_far) - deleted.cast("int")
    return with_ids.unionByName(
        accepted.join(without_id, "topic", "left_semi")
        .withColumn("topic_id", f.coalesce("topic_id", f.last("topic_id", ignorenulls=True).over(so_far)))
        .withColumn("incarnation", f.when(f.col("topic_id").isNull(), deletions_before).otherwise(0))
    )


def leader_changes(states: DataFrame) -> DataFrame:
    """Every change of a partition's leader among accepted states, when it was first sent to any broker."""
    deleted = f.col("leader") == LEADER_DURING_DELETE
    first = Window.partitionBy(*PARTITION_KEY, "leader", "leader_epoch").orderBy("time", "packet")
    before = Window.partitionBy(*PARTITION_KEY).orderBy(deleted, "leader_epoch", "time", "packet")
    return (
        states.withColumn("rank", f.row_number().over(first))
        .where("rank = 1")
        .withColumns({"from_leader": f.lag("leader").over(before), "from_epoch": f.lag("leader_epoch").over(before)})
        .withColumnsRenamed({"leader": "to_leader", "leader_epoch": "to_epoch"})
        .where("from_leader != to_leader or (from_leader is null and to_leader != -2)")
        .withColumn("to_epoch", f.when(f.col("to_leader") != LEADER_DURING_DELETE, f.col("to_epoch")))
        .select(
            "time", "file", "packet", "topic", "topic_id", "partition", "from_leader", "to_leader", "from_epoch",
            "to_epoch", "isr", "decision_epoch",
        )
    )  # fmt: skip


def state_versions(states: DataFrame) -> DataFrame:
    """Every version of every partition's state in ZooKeeper, when it was first sent, with parts of the one before.

    ``states`` are accepted ones.
    """
    first = Window.partitionBy(*PARTITION_KEY, "partition_epoch").orderBy("time", "packet")
    before = Window.partitionBy(*PARTITION_KEY).orderBy("partition_epoch")
    return (
        states.where(f.col("leader") != LEADER_DURING_DELETE)
        .withColumn("rank", f.row_number().over(first))
        .where("rank = 1")
        .withColumns(
            {
                "from_isr": f.lag("isr").over(before),
                "from_leader": f.lag("leader").over(before),
                "from_replicas": f.lag("replicas").over(before),
                "from_version": f.lag("partition_epoch").over(before),
            }
        )
    )


def topic_names(partitions: DataFrame) -> DataFrame:
    """(topic_id, topic_name) of the topics with an id that control requests name."""
    named = partitions.where("topic_id is not null").select("topic_id", "topic").distinct()  # by hash, without a sort
    return named.groupBy("topic_id").agg(f.first("topic").alias("topic_name"))


def of_those(frame: DataFrame, those: DataFrame, *keys: str, are_in: bool = True) -> DataFrame:
    """The rows of ``frame`` whose ``keys``, which may be null, are in ``those``, or are not."""
    known = those.select(*(f.col(key).alias(f"{key}_known") for key in keys))
    same = [f.col(key).eqNullSafe(f.col(f"{key}_known")) for key in keys]
    return frame.join(known, same, "left_semi" if are_in else "left_anti")


def with_shutdowns(brokers: DataFrame, exchanges: DataFrame, *, since: str, until: str) -> DataFrame:
    """Add ``shutdown_time``: when a broker was last granted a controlled shutdown between these times."""
    granted = exchanges.where("api = 'ControlledShutdown' and error_code = 0 and sender_broker_id is not null").select(
        f.col("sender_broker_id").alias("sender"), f.col("time").alias("granted")
    )
    within = (f.col("granted") >= f.col(since) - f.expr("interval 10 seconds")) & (f.col("granted") <= f.col(until))
    joined = brokers.join(f.broadcast(granted), (f.col("broker_id") == f.col("sender")) & within, "left")
    return joined.groupBy(*brokers.columns).agg(f.max("granted").alias("shutdown_time"))


def milliseconds(earlier: str, later: str) -> Column:
    return (f.unix_micros(later) - f.unix_micros(earlier)) / 1000.0


def span() -> tuple[Column, Column]:
    return f.min("time").alias("first_time"), f.max("time").alias("last_time")


def numbered(frame: DataFrame, *keys: str) -> DataFrame:
    """Add ``nth``, the number of a row among those of the same ``keys`` and chunk, by time. ``evidence`` needs it."""
    in_chunk = Window.partitionBy(*keys, "chunk").orderBy("time", "packet")
    return frame.withColumn("chunk", chunk("time")).withColumn("nth", f.row_number().over(in_chunk))


def evidence() -> tuple[Column, Column]:
    """The first MAX_EVIDENCE packets of a group, in order, and their files."""
    place = f.when(f.col("nth") <= MAX_EVIDENCE, f.struct("time", "packet", "file"))
    places = _first(f.collect_set(place))  # a packet may hold many partitions
    return each_field(places, "packet").alias("packets"), each_field(places, "file").alias("files")


def in_order(column: str) -> Column:
    """The first MAX_EVIDENCE values of a column, in the order of the requests."""
    value = f.when(f.col("nth") <= MAX_EVIDENCE, f.struct("time", "packet", f.col(column).alias("value")))
    return each_field(_first(f.collect_list(value)), "value")


def each_field(structs: Column, name: str) -> Column:
    """An array of one field of an array of structs."""
    return f.transform(structs, lambda each: each.getField(name))


def _first(places: Column) -> Column:
    """Those of the whole history, out of the first ones of each of its chunks."""
    return f.slice(f.array_sort(places), 1, MAX_EVIDENCE)


#: Client ids of replicas, before Kafka 0.11 and since.
FETCHER = r"^(broker-\d+-fetcher-|ReplicaFetcherThread-)"


def is_replica() -> Column:
    """Whether the client of a request is a broker that replicates."""
    return f.coalesce(f.col("client_id").rlike(FETCHER), f.lit(False))


def as_table(table: Table, frame: DataFrame) -> DataFrame:
    """The columns of ``table``, cast to its types. Raises AnalysisException for a type that does not fit."""
    return frame.to(spark_schema(table))
