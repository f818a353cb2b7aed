"""Error codes of responses by API, broker, client and partition: what brokers and clients suffered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import MOST, clock, count, evidence_of, listed, packets, some
from kce.captures.tables.rows import BROKER_TEXT, SPAN, Column, Table, evidence_columns
from kce.wire import ErrorCode, error_name

TABLE = Table(
    "errors",
    "One error code of one API, at the top level or of one partition, from one broker to one client.",
    (
        Column("api", pa.string(), ""),
        Column("error", pa.string(), ""),
        Column("error_code", pa.int16(), ""),
        BROKER_TEXT,
        Column("client_id", pa.string(), ""),
        Column("client", pa.string(), "IP address"),
        Column("topic", pa.string(), "null for an error at the top level; the topic id if its name is unknown"),
        Column("partition", pa.int32(), ""),
        Column("is_control", pa.bool_(), "whether the request is one of a controller"),
        Column("count", pa.int64(), "how often"),
        Column("max_latency_ms", pa.float64(), "longest latency of these requests"),
        *SPAN,
        *evidence_columns("the requests' packets, in order"),
    ),
)

#: Errors that are part of a protocol, not of an incident.
_ORDINARY = (
    ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)  # fmt: skip

#: Errors that other analyses explain: fenced requests, and leader epochs that a broker already has.
_EXPLAINED = (ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH)


#: Clients look for topics and coordinators that are being created.
_LOOKUPS = frozenset({"Metadata", "FindCoordinator"})

#: Requests of brokers to the controller.
_OF_BROKERS = frozenset({"AlterPartition", "ControlledShutdown", "AllocateProducerIds", "UpdateFeatures"})

#: Client ids of replicas, before Kafka 0.11 and since.
_FETCHER = re.compile(r"broker-\d+-fetcher-|ReplicaFetcherThread-")


def run(of: Frames) -> DataFrame:
    names = (
        of.partitions.where("topic_id is not null").groupBy("topic_id").agg(f.first("topic").alias("topic_name"))
    )  # fmt: skip
    failed = (
        of.exchanges.where("errors is not null")
        .select(
            "api", "broker", "client_id", "client", "is_control", "latency_ms", f.col("response_time").alias("time"),
            "packet", "file",
            f.explode("errors").alias("of"),
        )
        .select("*", "of.topic", "of.partition", "of.error_code")
        .join(f.broadcast(names), f.col("topic") == f.col("topic_id"), "left")
        .withColumn("topic", f.coalesce("topic_name", "topic"))
    )  # fmt: skip
    keys = ("api", "error_code", "broker", "client_id", "client", "topic", "partition", "is_control")
    counted = (
        numbered(failed, *keys)
        .groupBy(*keys)
        .agg(f.count("*").alias("count"), f.max("latency_ms").alias("max_latency_ms"), *span(), *evidence())
    )
    codes = {int(code): error_name(code) for code in ErrorCode}
    text = f.create_map(*(f.lit(each) for pair in codes.items() for each in pair))
    named = counted.withColumn("error", f.coalesce(text[f.col("error_code").cast("int")], f.lit("unknown")))
    return as_table(TABLE, named).orderBy(f.desc("count"), "first_time", "api", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    groups: dict[tuple[str, str, bool], list[Any]] = {}
    for row in found.errors:
        if row.error_code not in (*_ORDINARY, *_EXPLAINED):
            groups.setdefault((row.api, row.error, _is_replica(row)), []).append(row)
    by_damage = sorted(groups.items(), key=lambda group: -sum(row.count for row in group[1]))
    for (api, error, of_replicas), rows in by_damage[: 2 * MOST]:
        yield _finding(api, error, of_replicas, rows)
    if len(by_damage) > 2 * MOST:
        yield Finding("note", f"{count(len(by_damage) - 2 * MOST, 'other error')}, see the table of errors.")


def _is_replica(row: Any) -> bool:
    return _FETCHER.match(row.client_id or "") is not None


def _finding(api: str, error: str, of_replicas: bool, rows: list[Any]) -> Finding:
    first, last = min(row.first_time for row in rows), max(row.last_time for row in rows)
    who = "replicas" if of_replicas else listed(sorted({_who(row) for row in rows})[:MOST])
    partitions = sorted(
        {f"{row.topic}-{row.partition}" for row in rows if row.topic is not None and row.partition is not None}
    )
    text = f"{api}: {sum(row.count for row in rows):,} x {error} from {_brokers(rows)} to {who}"
    if partitions:
        text += f", for {some(partitions, MOST)}"
    text += f", at {clock(first)}" if first == last else f", from {clock(first)} to {clock(last)}"
    slowest = max((row.max_latency_ms or 0.0) for row in rows)
    if slowest >= 1000:
        text += f"; answered after up to {slowest / 1000:.1f} s"
    places = sorted({place for row in rows for place in evidence_of(row)})
    return Finding(
        "note" if of_replicas or api in _LOOKUPS else "warning",
        f"{text} ({packets([packet for _, packet in places])}).",
        tuple(places),
    )


def _who(row: Any) -> str:
    """Brokers and controllers send requests under their broker id."""
    name = row.client_id or row.client
    if row.is_control or row.api in _OF_BROKERS:
        return f"{'controller' if row.is_control else 'broker'} {name}"
    return repr(name)


def _brokers(rows: list[Any]) -> str:
    ids = sorted({row.broker for row in rows})
    return f"broker{'s' * (len(ids) > 1)} {listed(ids)}"


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=11,
    findings=findings,
    section=Section(
        position=47,
        heading="Errors",
        hint="Error codes in responses, at the top level and of partitions, the most frequent first.",
        columns=(
            Shown("API", "text", lambda r: r.api),
            Shown("error", "text", lambda r: r.error),
            Shown("broker", "text", lambda r: r.broker),
            Shown("client", "text", lambda r: r.client_id or r.client),
            Shown("partition", "text", lambda r: "–" if r.topic is None else f"{r.topic}-{r.partition}"),
            Shown("count", "count", lambda r: r.count),
            Shown("first", "time", lambda r: r.first_time),
            Shown("last", "time", lambda r: r.last_time),
        ),
    ),
)
