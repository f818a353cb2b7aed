"""Clients and what they suffered: errors, connections, the longest time without a good response."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import FETCHER, as_table, milliseconds
from kce.captures.spark.analyses.running import LAST, with_running
from kce.captures.spark.analyses.words import MOST, clock, count, duration, evidence_of_all, packets, some
from kce.captures.tables.rows import SPAN, TIME, Column, Table, evidence_columns

TABLE = Table(
    "clients",
    "A client and one API: its requests, errors and connections, and its longest gap between good responses.",
    (
        Column("client_id", pa.string(), ""),
        Column("client", pa.string(), "IP address"),
        Column("api", pa.string(), "Produce or Fetch"),
        Column("is_replica", pa.bool_(), "whether it is a broker that replicates"),
        Column("requests", pa.int64(), ""),
        Column("failed", pa.int64(), "requests with an error, at the top level or of a partition"),
        Column("unanswered", pa.int64(), ""),
        Column("connections", pa.int64(), "how many it used"),
        Column("p50_ms", pa.float64(), "median latency"),
        Column("max_ms", pa.float64(), "longest latency"),
        Column(
            "gap_ms",
            pa.float64(),
            "longest time between two good responses, or from the last good one to the last request that got "
            "no response; of Fetch, to the client's last request of any API",
        ),
        Column("gap_time", TIME, "when that gap began"),
        *SPAN,
        *evidence_columns("the requests of the good responses before and after the gap; one if none came after it"),
    ),
)

_APIS = "api in ('Produce', 'Fetch')"


def run(of: Frames) -> DataFrame:
    key = ("client_id", "client", "api")
    good = "response_time is not null and errors is null"
    of_clients = of.exchanges.where(_APIS)
    place = f.struct("packet", "file")
    answers = of_clients.where(good).withColumn("place", place)
    gaps = (
        with_running(
            answers, LAST, f.struct("response_time", "place"), "last", keys=key,
            order=["response_time", "response_packet", "packet", "correlation_id"], before=True, is_long=of.is_long,
        )
        .withColumns({"before": f.col("last.response_time"), "place_before": f.col("last.place")})
        .where("before is not null")
        .withColumn("gap_ms", milliseconds("before", "response_time"))
        .groupBy(*key)
        .agg(f.max(f.struct("gap_ms", "before", "place_before", "place")).alias("gap"))
    )  # fmt: skip
    counted = of.exchanges.groupBy(*key).agg(
        f.count("*").alias("requests"),
        f.count_if(f.col("errors").isNotNull()).alias("failed"),
        f.count_if(f.expr("answered and response_time is null")).alias("unanswered"),
        f.count_distinct("connection").alias("connections"),
        f.percentile("latency_ms", f.lit(0.5)).alias("p50_ms"),
        f.max("latency_ms").alias("max_ms"),
        f.min("time").alias("first_time"),
        f.max("time").alias("last_time"),
        f.max(f.when(f.expr("answered and response_time is null"), f.col("time"))).alias("last_lost"),
        f.max(f.when(f.expr(good), f.struct("response_time", place.alias("place")))).alias("last_good"),
    )
    # a consumer that looks for its coordinator is still there, though it asks for no records; a producer may be idle
    of_apis = f.collect_list(f.struct(*counted.columns)).alias("apis")
    of_all = counted.groupBy("client_id", "client").agg(f.max("last_time").alias("seen"), of_apis)
    counted = of_all.select("seen", f.inline("apis")).where(_APIS)
    until = f.when(f.col("api") == "Fetch", f.col("seen")).otherwise(f.col("last_lost"))
    counted = counted.withColumn("until", until)
    open_gap = f.struct(
        milliseconds("last_good.response_time", "until").alias("gap_ms"),
        f.col("last_good.response_time").alias("before"), f.col("last_good.place").alias("place_before"),
        f.lit(None).cast("struct<packet: bigint, file: string>").alias("place"),
    )  # fmt: skip
    is_longer = f.coalesce(open_gap.getField("gap_ms") > f.coalesce("gap.gap_ms", f.lit(0)), f.lit(False))
    both = f.filter(f.array("gap.place_before", "gap.place"), lambda each: each.isNotNull())
    joined = counted.join(gaps, [counted[name].eqNullSafe(gaps[name]) for name in key], "left").select(
        *(counted[name] for name in counted.columns), f.when(is_longer, open_gap).otherwise(f.col("gap")).alias("gap")
    )
    joined = joined.select(
        *joined.columns,
        f.coalesce(joined["client_id"].rlike(FETCHER), f.lit(False)).alias("is_replica"),
        f.col("gap.gap_ms").alias("gap_ms"),
        f.col("gap.before").alias("gap_time"),
        f.coalesce(f.transform(both, lambda each: each.getField("packet")), f.array()).alias("packets"),
        f.coalesce(f.transform(both, lambda each: each.getField("file")), f.array()).alias("files"),
    )
    return as_table(TABLE, joined).orderBy(f.desc_nulls_last("gap_ms"), "client_id", "client", "api")


def findings(found: Results) -> Iterator[Finding]:
    slow_ms = found.thresholds.outage_ms
    suffered = [r for r in found.clients if not r.is_replica and (r.failed or r.unanswered or _is_slow(r, slow_ms))]
    suffered.sort(key=_damage, reverse=True)
    for row in suffered[:MOST]:
        text = (
            f"Client {row.client_id or row.client}: {count(row.requests, row.api + ' request')}, {row.failed:,} failed"
            f", {row.unanswered:,} without a response, on {count(row.connections, 'connection')}"
        )
        if _is_slow(row, slow_ms):
            text += f"; answered after up to {duration(row.max_ms)} (median {duration(row.p50_ms)})"
        if row.gap_ms is not None:
            text += f"; longest time without a good response {duration(row.gap_ms)}, from {clock(row.gap_time)}"
            text += " until its last request" if is_open(row) else ""
        if errors := _errors(found, row):
            text += f". Errors: {errors}"
        text += f" ({packets(row.packets)})" if row.packets else ""
        yield Finding("note", f"{text}.", tuple(zip(row.files, row.packets, strict=True)))
    if len(suffered) > MOST:
        others = evidence_of_all(suffered[MOST:])
        text = f"{count(len(suffered) - MOST, 'other client')} that suffered, see the table of clients."
        yield Finding("note", text, others)


def _is_slow(row: Any, slow_ms: float) -> bool:
    """A Fetch waits as long as its client likes."""
    return row.api == "Produce" and row.max_ms is not None and row.max_ms >= slow_ms


def is_open(row: Any) -> bool:
    """Whether no good response came after the longest gap."""
    return len(row.packets) == 1


def _damage(row: Any) -> tuple[int, float]:
    """Lost requests first, for a client may pause on its own."""
    return row.failed + row.unanswered, row.gap_ms or 0.0


def _errors(found: Results, row: Any) -> str:
    """Which error how often, and of which partitions."""
    counts: Counter[str] = Counter()
    where: dict[str, set[str]] = {}
    for each in found.errors:
        if (each.client_id, each.client, each.api) == (row.client_id, row.client, row.api):
            counts[each.error] += each.count
            if each.topic is not None and each.partition is not None:
                where.setdefault(each.error, set()).add(f"{each.topic}-{each.partition}")
    return ", ".join(
        f"{number:,} {error}" + (f" ({some(sorted(where[error]), MOST)})" if error in where else "")
        for error, number in counts.most_common(MOST)
    )


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=25,
    findings=findings,
    section=Section(
        position=48,
        heading="Clients",
        hint="Producers, consumers and replicas, by the longest time without a good response.",
        columns=(
            Shown("client", "text", lambda r: r.client_id or r.client),
            Shown("API", "text", lambda r: r.api),
            Shown("requests", "count", lambda r: r.requests),
            Shown("failed", "count", lambda r: r.failed),
            Shown("unanswered", "count", lambda r: r.unanswered),
            Shown("connections", "count", lambda r: r.connections),
            Shown("50 %", "ms", lambda r: r.p50_ms),
            Shown("longest", "ms", lambda r: r.max_ms),
            Shown("longest gap", "ms", lambda r: r.gap_ms),
            Shown("from", "time", lambda r: r.gap_time),
        ),
    ),
)
