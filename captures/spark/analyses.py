"""What exchanges mean: DataFrame -> DataFrame, composed with ``DataFrame.transform``.

Input are ``exchanges`` with the columns ``broker_id`` and ``listener`` that ``at_listeners`` adds, and ``partitions``;
output are the tables of the same names in ``captures.rows``. Nothing here reads or writes files.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from captures.rows import CONTROLLERS, FENCED, LATENCY, LEADERSHIP, REQUESTS, STALE_PARTITIONS, ZOMBIES, Table
from captures.spark.schemas import spark_schema
from wire import ErrorCode

_STALE = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH
_LEADER_DELETED = -2

#: How finely the pictures divide the time, and a factor of ten in latency.
_TIMELINE_STEPS = 1000
_STEPS_PER_DECADE = 8


def at_listeners(exchanges: DataFrame, endpoints: DataFrame) -> DataFrame:
    """Add what is known of the server: ``broker_id``, ``listener`` (or its port) and ``broker`` (id, or else address).

    A broker may be announced by a name that packets do not show: then its port tells, if no other broker has it. Where
    a port was one broker's and later another's, the announcement that was the last one then counts.
    """
    last = Window.partitionBy("host", "port").orderBy(f.desc("last_time"))
    listeners = endpoints.withColumn("rank", f.row_number().over(last)).where("rank = 1")
    by_address = listeners.select(
        f.col("host").alias("server"),
        f.col("port").alias("server_port"),
        f.col("broker_id").alias("exact_id"),
        f.col("listener").alias("exact_listener"),
    )
    by_port = (
        listeners.groupBy(f.col("port").alias("server_port"))
        .agg(
            f.min("broker_id").alias("port_id"),
            f.max("broker_id").alias("port_id_2"),
            f.first("listener").alias("name"),
        )
        .where("port_id = port_id_2")
        .drop("port_id_2")
    )
    return (
        exchanges.join(f.broadcast(by_address), ["server", "server_port"], "left")
        .join(f.broadcast(by_port), ["server_port"], "left")
        .withColumn("broker_id", f.coalesce("exact_id", "port_id"))
        .withColumn("listener", f.coalesce("exact_listener", "name", f.col("server_port").cast("string")))
        .withColumn("broker", f.coalesce(f.col("broker_id").cast("string"), f.concat_ws(":", "server", "server_port")))
        .drop("exact_id", "exact_listener", "port_id", "name")
    )


def requests(exchanges: DataFrame) -> DataFrame:
    """Requests by API and version."""
    counted = exchanges.groupBy("api_key", "api", "version").agg(
        f.count("*").alias("requests"),
        f.count("response_packet").alias("responses"),
        f.count_if(f.col("error_code") != 0).alias("errors"),
        f.sum("request_bytes").alias("request_bytes"),
        f.coalesce(f.sum("response_bytes"), f.lit(0)).alias("response_bytes"),
    )
    return _as(REQUESTS, counted).orderBy("api_key", "version")


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
        .select("controller_epoch", "controller_id", *_STATE, "partition_epoch")
        .distinct()
        .groupBy("controller_epoch", "controller_id")
        .agg(f.count("*").alias("decisions"))
    )
    joined = seen.join(decided, ["controller_epoch", "controller_id"], "left").fillna(0, ["decisions"])
    return _as(CONTROLLERS, joined).orderBy("controller_epoch", "first_time")


_STATE = ("topic", "topic_id", "partition", "leader", "leader_epoch")


def leadership(partitions: DataFrame) -> DataFrame:
    """Every change of a partition's leader, told once, when it was first sent to any broker.

    Left out is what a broker refused as a whole. A topic that is deleted and created anew begins anew: topic ids tell
    that, and before there were any the leader -2 of its deletion (rule 8.9).
    """
    refused = f.coalesce(f.col("response_error_code").isin(*_STALE), f.lit(False))
    # the order of requests holds for each broker alone (rule 8.11): one may hear of a topic when another was already
    # told of its deletion
    so_far = Window.partitionBy("topic", "partition", "server", "server_port").orderBy("time", "packet")
    deleted = f.col("leader") == _LEADER_DELETED
    deletions_before = f.sum(deleted.cast("int")).over(so_far) - deleted.cast("int")
    said = (
        partitions.where(f.col("leader").isNotNull() & ~refused)
        .withColumn("topic_id", f.coalesce("topic_id", f.last("topic_id", ignorenulls=True).over(so_far)))
        .withColumn("life", f.when(f.col("topic_id").isNull(), deletions_before).otherwise(0))
    )
    life = ("topic", "topic_id", "partition", "life")
    first = Window.partitionBy(*life, "leader", "leader_epoch").orderBy("time", "packet")
    before = Window.partitionBy(*life).orderBy(deleted, "leader_epoch", "time", "packet")
    changes = (
        said.withColumn("rank", f.row_number().over(first))
        .where("rank = 1")
        .withColumn("from_leader", f.lag("leader").over(before))
        .withColumn("from_epoch", f.lag("leader_epoch").over(before))
        .withColumnsRenamed({"leader": "to_leader", "leader_epoch": "to_epoch"})
        .where("from_leader != to_leader or (from_leader is null and to_leader != -2)")
        .withColumn("to_epoch", f.when(f.col("to_leader") != _LEADER_DELETED, f.col("to_epoch")))
    )
    return _as(LEADERSHIP, changes).orderBy("time", "packet", "topic", "partition")


def latency(exchanges: DataFrame) -> DataFrame:
    """Percentiles of the time from request to response, by API and listener."""
    answered = exchanges.where("latency_ms is not null")
    shares = f.percentile("latency_ms", f.array(f.lit(0.5), f.lit(0.9), f.lit(0.99)))
    measured = (
        answered.groupBy("api_key", "api", "listener")
        .agg(f.count("*").alias("requests"), shares.alias("p"), f.max("latency_ms").alias("max_ms"))
        .withColumns({name: f.col("p")[i] for i, name in enumerate(("p50_ms", "p90_ms", "p99_ms"))})
    )
    return _as(LATENCY, measured).orderBy("api_key", "listener")


def fenced(exchanges: DataFrame) -> DataFrame:
    """Requests refused as a whole for a stale controller or broker epoch."""
    refused = exchanges.where(f.col("error_code").isin(*_STALE))
    counted = refused.groupBy("error", "controller_id", "controller_epoch", "sender_broker_id", "broker", "api").agg(
        f.count("*").alias("requests"), *_when(), _in_order("packet").alias("packets")
    )
    return _as(FENCED, counted).orderBy("first_time", "broker")


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
    return _as(STALE_PARTITIONS, counted).orderBy("controller_epoch", "controller_id", "broker")


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
    accused = late.groupBy("controller_id", "controller_epoch").agg(
        f.max("later_epoch").alias("later_epoch"),
        f.count("*").alias("requests"),
        *_when(),
        f.array_distinct(_in_order("broker")).alias("brokers"),
        _in_order("packet").alias("packets"),
    )
    return _as(ZOMBIES, accused).orderBy("first_time")


def ticks(exchanges: DataFrame) -> DataFrame:
    """Control requests over time, for a picture: those of one kind within a thousandth of the time told together."""
    sent = exchanges.where("is_control and controller_epoch is not null")
    span = sent.agg(((f.max(_micros()) - f.min(_micros())) / _TIMELINE_STEPS + 1).cast("bigint").alias("step"))
    return (
        sent.crossJoin(f.broadcast(span))
        .withColumn("fenced", f.coalesce(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH, f.lit(False)))
        .groupBy("controller_epoch", "controller_id", "api", "fenced", f.floor(_micros() / f.col("step")))
        .agg(f.min("time").alias("time"), f.count("*").alias("requests"))
        .select("controller_epoch", "controller_id", "api", "fenced", "time", "requests")
        .orderBy("time", "controller_epoch", "api")
    )


def latency_counts(exchanges: DataFrame) -> DataFrame:
    """How many requests took about how long, in steps of a logarithmic scale."""
    step = f.floor(f.log10(f.greatest("latency_ms", f.lit(1e-3))) * _STEPS_PER_DECADE)
    return (
        exchanges.where("latency_ms is not null")
        .groupBy("api", "listener", step.alias("step"))
        .agg(f.count("*").alias("requests"))
        .withColumn("ms", f.pow(f.lit(10.0), (f.col("step") + 0.5) / _STEPS_PER_DECADE))
        .select("api", "listener", "ms", "requests")
        .orderBy("api", "listener", "ms")
    )


def _micros() -> Column:
    return f.unix_micros("time")


def _when() -> tuple[Column, Column]:
    return f.min("time").alias("first_time"), f.max("time").alias("last_time")


def _in_order(column: str) -> Column:
    """The values of a column, in the order of the requests."""
    value = f.col(column).alias("value")
    return f.array_sort(f.collect_list(f.struct("time", "packet", value))).getField("value")


def _as(table: Table, frame: DataFrame) -> DataFrame:
    """The columns of ``table``, in its types."""
    return frame.select(*(f.col(field.name).cast(field.dataType).alias(field.name) for field in spark_schema(table)))
