"""Listeners on which control requests queue with others (KIP-291 gives them their own).

A control request came behind others if, when it was complete, requests before it on the same listener had no answer
yet. Those that the capture shows no answer to at all are left out, as are Fetch, JoinGroup and SyncGroup, which wait by
design.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.exchanges.cluster import CONTROL_PLANE_APIS, PREAMBLE_APIS
from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered
from kce.captures.spark.analyses.running import TOTAL, with_running
from kce.captures.spark.analyses.words import brokers, count, evidence_of
from kce.captures.tables.rows import BROKER, BROKER_TEXT, Column, Table, evidence_columns

TABLE = Table(
    "control_behind_data",
    "A listener that takes control requests and others: what KIP-291 keeps apart.",
    (
        BROKER_TEXT,
        BROKER[1],
        Column("control_requests", pa.int64(), ""),
        Column("data_requests", pa.int64(), "all others"),
        Column(
            "behind", pa.int64(), "control requests that came while others, Fetch and JoinGroup aside, had no answer"
        ),
        Column("most_ahead", pa.int64(), "how many of those there were at most"),
        Column("shared_connections", pa.int64(), "connections that carried both"),
        *evidence_columns("packets of the control requests that came behind others, in order"),
    ),
)

#: Fetch, JoinGroup and SyncGroup wait in a purgatory and block nobody meanwhile.
_WAITING = (1, 11, 14)


def run(of: Frames) -> DataFrame:
    exchanges = of.exchanges.withColumn("is_data", ~f.col("api_key").isin(*CONTROL_PLANE_APIS, *PREAMBLE_APIS))
    both = (
        exchanges.groupBy("server", "server_port")
        .agg(f.count_if("is_control").alias("control_requests"), f.count_if("is_data").alias("data_requests"))
        .where("control_requests > 0 and data_requests > 0")
    )
    at = ["server", "server_port"]
    there = exchanges.join(f.broadcast(both), at)
    shared = (
        there.groupBy(*at, "connection")
        .agg(f.max("is_control").alias("control"), f.max("is_data").alias("data"))
        .groupBy(*at)
        .agg(f.count_if(f.col("control") & f.col("data")).alias("shared_connections"))
    )
    queued = there.where(f.col("is_data") & ~f.col("api_key").isin(*_WAITING) & f.col("response_time").isNotNull())
    # the length of the queue is a sum: 1 when a request comes, -1 when it is answered
    events = (
        queued.select(*at, "time", "packet", f.lit(1).alias("step"))
        .unionByName(queued.select(*at, f.col("response_time").alias("time"), "packet", f.lit(-1).alias("step")))
        .withColumns(dict.fromkeys(("file", "broker", "listener"), f.lit(None).cast("string")))
        .unionByName(
            there.where("is_control").select(
                *at, "time", "packet", "file", "broker", "listener", f.lit(0).alias("step")
            )
        )
    )
    waited = with_running(
        events, TOTAL, f.col("step"), "ahead", keys=at, order=["time", "packet", "step"], is_long=of.is_long
    ).where("step = 0")
    behind = f.col("ahead") > 0
    counted = (
        numbered(waited.withColumn("behind", behind), *at, "behind")
        .withColumn("nth", f.when(behind, f.col("nth")))
        .groupBy(*at, "broker", "listener")
        .agg(f.count_if(behind).alias("behind"), f.max("ahead").alias("most_ahead"), *evidence())
        .join(both, at)
        .join(shared, at)
    )
    return as_table(TABLE, counted).orderBy("broker", "listener")


def findings(found: Results) -> Iterator[Finding]:
    if rows := [row for row in found.control_behind_data if row.behind]:
        control = sum(row.control_requests for row in rows)
        data = sum(row.data_requests for row in rows)
        behind = sum(row.behind for row in rows)
        most = max(row.most_ahead for row in rows)
        yield Finding(
            "warning",
            f"{count(control, 'control request')} shared a listener with {count(data, 'other')} at "
            f"{brokers(dict.fromkeys(row.broker for row in rows))}; {behind:,} came behind up to {most} "
            "others without a response yet. A control.plane.listener.name separates them (KIP-291).",
            tuple(place for row in rows for place in evidence_of(row)),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=15, findings=findings)
