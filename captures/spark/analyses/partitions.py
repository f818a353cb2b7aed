"""What happened to partitions: leaders, in-sync replicas, epochs, and how brokers were told."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from captures.analysis_rows import (
    CHURN,
    DISAGREEMENTS,
    ISR_CHANGES,
    ISR_STORMS,
    LEADERSHIP,
    METADATA_COST,
    PROPAGATION,
    REGRESSIONS,
    RESENDS,
    UNCLEAN_ELECTIONS,
)
from captures.spark.analyses.common import (
    LEADER_DELETED,
    LIFE,
    STALE,
    as_table,
    evidence,
    milliseconds,
    numbered,
    said,
    span,
)
from wire import ErrorCode

#: ISR changes that make a storm, and how long it is quiet between two storms.
STORM_CHANGES = 10
STORM_GAP = "10 seconds"

_LEADER_AND_ISR, _UPDATE_METADATA = 4, 6

#: what a broker answers for a partition of which it has that leader epoch, or a later one (rules 9.18, 9.19)
_STALE_LEADER = ErrorCode.STALE_CONTROLLER_EPOCH


def leadership(partitions: DataFrame) -> DataFrame:
    """Every change of a partition's leader, told once, when it was first sent to any broker.

    Left out is what a broker refused as a whole.
    """
    deleted = f.col("leader") == LEADER_DELETED
    first = Window.partitionBy(*LIFE, "leader", "leader_epoch").orderBy("time", "packet")
    before = Window.partitionBy(*LIFE).orderBy(deleted, "leader_epoch", "time", "packet")
    changes = (
        said(partitions)
        .withColumn("rank", f.row_number().over(first))
        .where("rank = 1")
        .withColumn("from_leader", f.lag("leader").over(before))
        .withColumn("from_epoch", f.lag("leader_epoch").over(before))
        .withColumnsRenamed({"leader": "to_leader", "leader_epoch": "to_epoch"})
        .where("from_leader != to_leader or (from_leader is null and to_leader != -2)")
        .withColumn("to_epoch", f.when(f.col("to_leader") != LEADER_DELETED, f.col("to_epoch")))
    )
    return as_table(LEADERSHIP, changes).orderBy("time", "packet", "topic", "partition")


def churn(leadership: DataFrame) -> DataFrame:
    """Partitions whose leader changed after the first; of ``leadership``."""
    following = Window.partitionBy("topic", "topic_id", "partition").orderBy("time", "packet")
    lasting = leadership.withColumn("until", f.lead("time").over(following)).where("from_leader is not null")
    keys = ("topic", "topic_id", "partition")
    headless = f.when(f.col("to_leader") == -1, milliseconds("time", "until"))
    counted = (
        numbered(lasting.where(f.col("to_leader") != LEADER_DELETED), *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("changes"),
            f.sort_array(f.array_union(f.collect_set("from_leader"), f.collect_set("to_leader"))).alias("leaders"),
            f.coalesce(f.sum(headless), f.lit(0.0)).alias("leaderless_ms"),
            *span(),
            *evidence(),
        )
    )
    return as_table(CHURN, counted).orderBy(f.desc("changes"), "topic", "partition")


def _states(partitions: DataFrame) -> DataFrame:
    """Every version of every partition's state, when it was first sent, after the one before."""
    first = Window.partitionBy(*LIFE, "partition_epoch").orderBy("time", "packet")
    before = Window.partitionBy(*LIFE).orderBy("partition_epoch")
    return (
        said(partitions)
        .where(f.col("leader") != LEADER_DELETED)
        .withColumn("rank", f.row_number().over(first))
        .where("rank = 1")
        .withColumns(
            {
                "from_isr": f.lag("isr").over(before),
                "from_leader": f.lag("leader").over(before),
                "from_version": f.lag("partition_epoch").over(before),
            }
        )
    )


def unclean_elections(partitions: DataFrame) -> DataFrame:
    """Leaders that were not in sync. Only where the state before was seen, too, is anybody accused."""
    unclean = (
        _states(partitions)
        .where("leader >= 0 and leader != from_leader and from_version = partition_epoch - 1")
        .where(~f.array_contains("from_isr", f.col("leader")))
        .withColumnRenamed("from_isr", "isr_before")
    )
    return as_table(UNCLEAN_ELECTIONS, unclean).orderBy("time", "packet", "topic", "partition")


def isr_changes(partitions: DataFrame) -> DataFrame:
    """Every change of a partition's in-sync replicas, told once."""
    changes = (
        _states(partitions)
        .withColumnRenamed("isr", "to_isr")
        .withColumns({"left": f.array_except("from_isr", "to_isr"), "joined": f.array_except("to_isr", "from_isr")})
        .where("size(left) > 0 or size(joined) > 0")
    )
    return as_table(ISR_CHANGES, changes).orderBy("time", "packet", "topic", "partition")


def isr_storms(isr_changes: DataFrame) -> DataFrame:
    """Many changes at once, of ``isr_changes``: replicas that cannot keep up, or a broker that is gone."""
    storm = f.session_window("time", STORM_GAP)
    begins = (
        isr_changes.groupBy(storm.alias("storm"))
        .agg(f.count("*").alias("changes"))
        .where(f"changes >= {STORM_CHANGES}")
    )
    bounds = begins.select(f.col("storm.start").alias("begin"), f.col("storm.end").alias("end"))
    inside = isr_changes.join(f.broadcast(bounds), f.expr("time >= begin and time < end"))
    counted = (
        numbered(inside, "begin")
        .groupBy("begin")
        .agg(
            *span(),
            f.count("*").alias("changes"),
            f.count_if(f.size("left") > 0).alias("shrinks"),
            f.count_if(f.size("joined") > 0).alias("expansions"),
            f.count_distinct("topic", f.coalesce("topic_id", f.lit("")), "partition").alias("partitions"),
            f.sort_array(f.array_distinct(f.flatten(f.collect_set("left")))).alias("brokers"),
            *evidence(),
        )
    )
    return as_table(ISR_STORMS, counted).orderBy("first_time")


def metadata_cost(exchanges: DataFrame, partitions: DataFrame) -> DataFrame:
    """UpdateMetadata bytes per different partition state."""
    who = ["controller_id", "controller_epoch"]
    sent = (
        exchanges.where((f.col("api_key") == _UPDATE_METADATA) & f.col("controller_epoch").isNotNull())
        .groupBy(*who)
        .agg(
            f.count("*").alias("requests"),
            f.sum("request_bytes").alias("request_bytes"),
            f.sum("partition_count").alias("states"),
        )
    )
    state = ("topic", "topic_id", "partition", "leader", "leader_epoch", "partition_epoch", "isr", "replicas",
             "offline_replicas")  # fmt: skip
    different = (
        partitions.where(f.col("api_key") == _UPDATE_METADATA)
        .select(*who, *state)
        .distinct()
        .groupBy(*who)
        .agg(f.count("*").alias("changes"))
    )
    joined = sent.join(different, who, "left").fillna(0, ["changes"])
    per_change = f.when(f.col("changes") > 0, f.col("request_bytes") / f.col("changes"))
    return as_table(METADATA_COST, joined.withColumn("bytes_per_change", per_change)).orderBy("controller_epoch")


def propagation(partitions: DataFrame) -> DataFrame:
    """How much later than the first of all control requests UpdateMetadata told a broker of a leader epoch.

    A broker that was not there when an epoch began was not late to hear of it: what it is told on a connection that was
    opened later does not count.
    """
    key = (*LIFE, "leader_epoch")
    first = Window.partitionBy(*key, "server", "server_port").orderBy("time", "packet")
    connection = Window.partitionBy("server", "server_port", "connection")
    told = (
        said(partitions)
        .where(f.col("leader") != LEADER_DELETED)
        .withColumns({"began": f.min("time").over(Window.partitionBy(*key)), "opened": f.min("time").over(connection)})
        .where(f.col("api_key") == _UPDATE_METADATA)
        .withColumn("rank", f.row_number().over(first))
        .where("rank = 1 and began >= opened")
        .withColumn("lag_ms", milliseconds("began", "time"))
    )
    slowest = f.max_by(f.struct("packet", "file"), "lag_ms")
    shares = f.percentile("lag_ms", f.array(f.lit(0.5), f.lit(0.99)))
    measured = (
        told.groupBy("broker")
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
    return as_table(PROPAGATION, measured).orderBy("broker")


def disagreements(partitions: DataFrame) -> DataFrame:
    """Leader epochs with more than one leader, by LeaderAndIsr and UpdateMetadata."""
    keys = (*LIFE, "leader_epoch")
    states = said(partitions).where(f.col("leader") != LEADER_DELETED)
    by = {
        "in_leader_and_isr": f.collect_set(f.when(f.col("api_key") == _LEADER_AND_ISR, f.col("leader"))),
        "in_update_metadata": f.collect_set(f.when(f.col("api_key") == _UPDATE_METADATA, f.col("leader"))),
    }
    counted = (
        numbered(states, *keys)
        .groupBy(*keys)
        .agg(f.count_distinct("leader").alias("leaders"), *(c.alias(n) for n, c in by.items()), *span(), *evidence())
        .where("leaders > 1")
    )
    return as_table(DISAGREEMENTS, counted).orderBy("first_time", "topic", "partition")


def resends(exchanges: DataFrame) -> DataFrame:
    """Control requests that say again, to the same broker in the same epochs, what was said before."""
    keys = ("api", "broker", "controller_id", "controller_epoch", "broker_epoch", "content")
    control = exchanges.where("is_control and content is not null")
    counted = (
        numbered(control, *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("requests"),
            f.count_if(f.col("response_packet").isNull()).alias("unanswered"),
            *span(),
            *evidence(),
        )
        .where("requests > 1")
    )
    return as_table(RESENDS, counted).orderBy("first_time", "broker", "api")


def regressions(exchanges: DataFrame, partitions: DataFrame) -> DataFrame:
    """Controller epochs and leader epochs that went down, as each broker got them (rule 8.11)."""
    refused = f.coalesce(f.col("error_code").isin(*STALE), f.lit(False))
    got = Window.partitionBy("server", "server_port").orderBy("time", "packet")
    control = (
        exchanges.where("is_control and controller_epoch is not null")
        .withColumns({"refused": refused, "found": f.col("controller_epoch")})
        .withColumn(
            "highest",
            f.max(f.when(~f.col("refused"), f.col("found"))).over(got.rowsBetween(Window.unboundedPreceding, -1)),
        )
        .withColumns({"epoch": f.lit("controller_epoch"), "topic": f.lit(None), "partition": f.lit(None)})
    )
    of_partition = Window.partitionBy("server", "server_port", *LIFE).orderBy("time", "packet")
    leaders = (
        said(partitions)
        .where((f.col("leader") != LEADER_DELETED) & (f.col("leader_epoch") >= 0))
        .withColumns(
            {
                "refused": f.coalesce(f.col("error_code") == _STALE_LEADER, f.lit(False)),
                "found": f.col("leader_epoch"),
                "epoch": f.lit("leader_epoch"),
            }
        )
        .withColumn("highest", f.max("found").over(of_partition.rowsBetween(Window.unboundedPreceding, -1)))
    )
    columns = [column.name for column in REGRESSIONS.columns]
    down = control.select(*columns).unionByName(leaders.select(*columns)).where("found < highest")
    return as_table(REGRESSIONS, down).orderBy("time", "packet", "topic", "partition")
