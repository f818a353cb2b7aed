"""Reassembly in Spark: from captures to exchanges, by connection, equal to `kce decode`.

Reading tasks divide segments among buckets by connection. A shuffle brings each bucket together, so that connections
that span files are whole, and sorts its blocks by time. Reassembly tasks stream through their buckets one after the
other and hold the state of one bucket's open connections.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.spark.cutting import joined, samples
from kce.captures.spark.indexing import as_option, indexed
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.source import BYTES_PER_TASK, KafkaCapture, files
from kce.captures.tables.rows import BLOCKS, CHUNKED, DECODED, ENDPOINTS, EXCHANGES, PARTITION_STATE, PARTITIONS
from kce.captures.tables.tabulate import Evidence
from kce.wire import ErrorCode

if TYPE_CHECKING:
    from kce.captures.fast.cuts import Cuts

#: Errors of requests that were fenced as a whole.
STALE = ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH

#: More buckets mean fewer open connections per task, and smaller blocks.
_BUCKETS_PER_TASK = 16


def decode(
    spark: SparkSession,
    paths: Sequence[str],
    tasks: int,
    *,
    evidence: Evidence = "none",
    names: Collection[str] | None = None,
    ports: Ports = NO_PORTS,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    **options: str,
) -> DataFrame:
    """DECODED rows of captures, reassembled in ``tasks`` tasks: exchanges, connections, and rows of counts.

    ``evidence``: whether exchanges come with decoded bodies for the report. ``names`` are the columns to make, None all
    (``tcp`` and ``quality`` always). With ``ports``, only connections to these. What is used more than once is passed
    to ``keep``. ``options`` are the data source's.
    """
    if ports:
        options["ports"] = ",".join(map(str, ports))
    wanted = None if names is None else frozenset({*names, "tcp", "quality"})
    bytes_per_task = int(options.get("maxPartitionBytes", BYTES_PER_TASK))
    given = files(paths, options.get("folder", ""))
    splits = indexed(spark, given, bytes_per_task)
    source = spark.read.format(KafkaCapture.name()).options(**options, splits=as_option(splits))
    source = source.option("level", BLOCKS.name).option("buckets", tasks * _BUCKETS_PER_TASK)

    def reassembled(cuts: Cuts | None) -> DataFrame:
        table, blocks = DECODED.of(wanted), source
        if cuts is not None:
            table = CHUNKED.of(None if wanted is None else wanted | {"bucket", "chunk"})
            blocks = blocks.option("cuts", cuts.to_json())
        read = blocks.load(list(paths))
        if cuts is not None and cuts.only is not None:  # the packets were counted before
            read = read.where(f.col("quality").isNull())
        task = functools.partial(
            _decode, evidence=evidence, names=frozenset(table.schema.names), ports=frozenset(ports), cuts=cuts
        )
        return keep(
            read.repartitionById(tasks, f.col("bucket") % tasks)
            .sortWithinPartitions("bucket", "begin_ns", "number", "packet")
            .mapInArrow(task, spark_schema(table))
        )

    taken = samples(spark, given, splits, bytes_per_task, ports)
    if not taken:
        return reassembled(None)
    return joined(spark, reassembled, taken, bytes_per_task, tasks * _BUCKETS_PER_TASK).select(
        DECODED.of(wanted).schema.names
    )


def exchanges(decoded: DataFrame) -> DataFrame:
    """EXCHANGES, with ``content``, a hash of the contents of control requests, and what DECODED adds."""
    # field by field: Spark compiles no lambdas
    states = [f.col(f"states.{c.name}") for c in PARTITION_STATE if c.name not in {"error_code", "error"}]
    contents = f.xxhash64("api_key", *states, "live_brokers")
    return decoded.where(f.col("quality").isNull() & f.col("tcp").isNull()).select(
        *(c.name for c in EXCHANGES.columns),
        f.when(f.col("is_control") & f.col("request_error").isNull(), contents).alias("content"),
        "errors",
        "hit",
        "evidence",
    )


def partitions(decoded: DataFrame) -> DataFrame:
    """One row for each partition state in a control request."""
    request = [c.name for c in PARTITIONS.columns[: -len(PARTITION_STATE)] if c.name != "response_error_code"]
    return (
        decoded.where(f.col("states").isNotNull())
        .select(*request, f.col("error_code").alias("response_error_code"), f.explode("states").alias("state"))
        .select(*request, "response_error_code", "state.*")
    )


def live_brokers(decoded: DataFrame) -> DataFrame:
    """The live ``brokers`` of each UpdateMetadata request that was not fenced, by id."""
    refused = f.coalesce(f.col("error_code").isin(*STALE), f.lit(False))
    return decoded.where(f.col("live_brokers").isNotNull() & ~refused).select(
        "file", "packet", "time", "server", "server_port", "controller_epoch",
        f.array_distinct(f.col("live_brokers.broker_id")).alias("brokers"),
    )  # fmt: skip


def connections(decoded: DataFrame) -> DataFrame:
    """CONNECTIONS."""
    return decoded.where(f.col("tcp").isNotNull()).select("tcp.*")


def endpoints(decoded: DataFrame) -> DataFrame:
    """All announced listeners with the times of the first and last announcement."""
    listener = [c.name for c in ENDPOINTS.columns[:-2]]
    return (
        decoded.where(f.col("live_brokers").isNotNull())
        .select("time", f.explode("live_brokers").alias("broker"))
        .select("time", "broker.*")
        .groupBy(*listener)
        .agg(f.min("time").alias("first_time"), f.max("time").alias("last_time"))
    )


def at_listeners(exchanges: DataFrame, endpoints: DataFrame, ports: Ports = NO_PORTS) -> DataFrame:
    """Add ``broker_id``, ``listener`` (or its port) and ``broker`` (id, or else address) of the server.

    Brokers may be announced by host name, which packets do not show; then a port of one broker alone decides. If
    brokers reused a port, the announcement that was the last one at that time counts. ``ports`` may name the plane of a
    port that was never announced.
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


def _decode(
    batches: Iterable[pa.RecordBatch], *, evidence: Evidence, names: frozenset[str] | None, ports: Collection[int],
    cuts: Cuts | None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    from kce.captures.spark.buckets import (
        decoded,  # imported late: slow to import, and only workers need it
    )

    return decoded(batches, evidence, names, ports, cuts)
