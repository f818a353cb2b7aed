"""Requests as such: how many, how long, unanswered, in each other's way."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from captures.analysis_rows import CONTROL_BEHIND_DATA, LATENCY, REBALANCES, REQUESTS, TRANSPORT, UNANSWERED
from captures.ports import NO_PORTS, Ports
from captures.spark.analyses.common import as_table, evidence, numbered, span

#: How finely the picture divides a factor of ten in latency.
_STEPS_PER_DECADE = 8

#: What the control plane itself needs beside control requests: ControlledShutdown, SASL, ApiVersions, AlterPartition,
#: Envelope, AllocateProducerIds.
_OF_THE_CONTROL_PLANE = (7, 17, 18, 36, 56, 58, 67)

#: Fetch, JoinGroup and SyncGroup wait by design, in a purgatory, and keep nobody waiting meanwhile.
_WAITING = (1, 11, 14)

_JOIN_GROUP, _LEAVE_GROUP = 11, 13


def at_listeners(exchanges: DataFrame, endpoints: DataFrame, ports: Ports = NO_PORTS) -> DataFrame:
    """Add what is known of the server: ``broker_id``, ``listener`` (or its port) and ``broker`` (id, or else address).

    A broker may be announced by a name that packets do not show: then its port tells, if no other broker has it. Where
    a port was one broker's and later another's, the announcement that was the last one then counts. Of a port that was
    never announced, ``ports`` may tell what it is for.
    """
    given = [f.when(f.col("server_port") == port, plane) for port, plane in ports.items() if plane]
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
        .withColumn("listener", f.coalesce("exact_listener", "name", *given, f.col("server_port").cast("string")))
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
    return as_table(REQUESTS, counted).orderBy("api_key", "version")


def latency(exchanges: DataFrame) -> DataFrame:
    """Percentiles of the time from request to response, by API, version and listener."""
    answered = exchanges.where("latency_ms is not null")
    shares = f.percentile("latency_ms", f.array(f.lit(0.5), f.lit(0.9), f.lit(0.99)))
    measured = (
        answered.groupBy("api_key", "api", "version", "listener")
        .agg(f.count("*").alias("requests"), shares.alias("p"), f.max("latency_ms").alias("max_ms"))
        .withColumns({name: f.col("p")[i] for i, name in enumerate(("p50_ms", "p90_ms", "p99_ms"))})
    )
    return as_table(LATENCY, measured).orderBy("api_key", "version", "listener")


def latency_counts(exchanges: DataFrame) -> DataFrame:
    """How many requests took about how long, in steps of a logarithmic scale."""
    step = f.floor(f.log10(f.greatest("latency_ms", f.lit(1e-3))) * _STEPS_PER_DECADE)
    return (
        exchanges.where("latency_ms is not null")
        .groupBy("api", "version", "listener", step.alias("step"))
        .agg(f.count("*").alias("requests"))
        .withColumn("ms", f.pow(f.lit(10.0), (f.col("step") + 0.5) / _STEPS_PER_DECADE))
        .select("api", "version", "listener", "ms", "requests")
        .orderBy("api", "version", "listener", "ms")
    )


def unanswered(exchanges: DataFrame) -> DataFrame:
    """Requests that should have been answered; Produce with acks=0 should not (rule B1.19)."""
    keys = ("api_key", "api", "broker", "client_id")
    missing = exchanges.where("answered and response_packet is null")
    counted = numbered(missing, *keys).groupBy(*keys).agg(f.count("*").alias("requests"), *span(), *evidence())
    return as_table(UNANSWERED, counted).orderBy("api_key", "broker", "client_id")


def control_behind_data(exchanges: DataFrame) -> DataFrame:
    """Listeners on which control requests queue with others (KIP-291 gives them their own).

    A control request came behind others if, when it was complete, requests before it on the same listener had no answer
    yet. Those that the capture shows no answer to at all are left out, as are Fetch and JoinGroup, which may wait long.
    """
    of_plane = f.col("is_control") | f.col("api_key").isin(*_OF_THE_CONTROL_PLANE)
    told = exchanges.withColumn("is_data", ~of_plane)
    both = (
        told.groupBy("server", "server_port")
        .agg(f.count_if("is_control").alias("control_requests"), f.count_if("is_data").alias("data_requests"))
        .where("control_requests > 0 and data_requests > 0")
    )
    at = ["server", "server_port"]
    there = told.join(f.broadcast(both), at)
    shared = (
        there.groupBy(*at, "connection")
        .agg(f.max("is_control").alias("control"), f.max("is_data").alias("data"))
        .groupBy(*at)
        .agg(f.count_if(f.col("control") & f.col("data")).alias("shared_connections"))
    )
    queued = there.where(f.col("is_data") & ~f.col("api_key").isin(*_WAITING) & f.col("response_time").isNotNull())
    events = (
        queued.select(*at, "time", "packet", f.lit(1).alias("step"))
        .unionByName(queued.select(*at, f.col("response_time").alias("time"), "packet", f.lit(-1).alias("step")))
        .withColumns({"file": f.lit(None), "broker": f.lit(None), "listener": f.lit(None)})
        .unionByName(
            there.where("is_control").select(
                *at, "time", "packet", "file", "broker", "listener", f.lit(0).alias("step")
            )
        )
    )
    so_far = Window.partitionBy(*at).orderBy("time", "packet").rowsBetween(Window.unboundedPreceding, 0)
    waited = events.withColumn("ahead", f.sum("step").over(so_far)).where("step = 0")
    behind = f.col("ahead") > 0
    counted = (
        numbered(waited.withColumn("behind", behind), *at, "behind")
        .withColumn("nth", f.when(behind, f.col("nth")))
        .groupBy(*at, "broker", "listener")
        .agg(f.count_if(behind).alias("behind"), f.max("ahead").alias("most_ahead"), *evidence())
        .join(both, at)
        .join(shared, at)
    )
    return as_table(CONTROL_BEHIND_DATA, counted).orderBy("broker", "listener")


def rebalances(exchanges: DataFrame) -> DataFrame:
    """Generations of consumer groups: each is a rebalance, which stops all members (rule G4)."""
    asked = exchanges.where("group_id is not null and api_key in (11, 13, 14)")
    generations = (
        asked.where((f.col("api_key") == _JOIN_GROUP) & (f.col("generation_id") > 0))
        .groupBy("group_id", "generation_id")
        .agg(f.min("response_time").alias("began"))
    )
    minute = Window.partitionBy("group_id").orderBy(f.unix_micros("began")).rangeBetween(-60_000_000, 0)
    counted = (
        generations.withColumn("within", f.count("*").over(minute))
        .groupBy("group_id")
        .agg(f.count("*").alias("generations"), f.max("within").alias("most_in_a_minute"))
    )
    is_join = f.col("api_key") == _JOIN_GROUP
    of_group = (
        numbered(asked.withColumn("is_join", is_join), "group_id", "is_join")
        .withColumn("nth", f.when(is_join, f.col("nth")))
        .groupBy("group_id")
        .agg(
            f.count_if(is_join).alias("joins"),
            f.count_if(f.col("api_key") == _LEAVE_GROUP).alias("leaves"),
            *span(),
            *evidence(),
        )
    )
    joined = of_group.join(counted, "group_id", "left").fillna(0, ["generations", "most_in_a_minute"])
    return as_table(REBALANCES, joined).orderBy("group_id")


def transport(connections: DataFrame) -> DataFrame:
    """Kafka connections that TCP had trouble with, or that were reset."""
    troubled = connections.where("is_kafka and (retransmits > 0 or resets > 0)")
    return as_table(TRANSPORT, troubled).orderBy("first_time")
