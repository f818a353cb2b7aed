"""Brokers that the cluster had given up, and that acknowledged records all the same: those are lost.

A broker whose session expired goes on as the leader that it was until it registers again, and then it follows: it
truncates what the next leader does not have. With acks=all it acknowledges nothing, unless it was in sync alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.running import LAST, with_running
from kce.captures.spark.analyses.words import (
    MISSING,
    MOST,
    clock,
    count,
    evidence_of,
    evidence_of_all,
    lacks_controls,
    packets,
)
from kce.captures.tables.rows import SPAN, TIME, Column, Table, evidence_columns

#: What is on its way while a broker is given up is not counted.
_UNDER_WAY = "100 milliseconds"

TABLE = Table(
    "zombie_leaders",
    "A client whose Produce requests were acknowledged by a broker that UpdateMetadata no longer named alive.",
    (
        Column("broker_id", pa.int32(), ""),
        Column("gone_time", TIME, "when the broker was first missing among the live ones"),
        Column("client_id", pa.string(), ""),
        Column("client", pa.string(), "IP address"),
        Column("requests", pa.int64(), "Produce requests that were sent to it after that and answered without error"),
        *SPAN,
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    missing = _missing(of)
    answered = of.exchanges.where("api = 'Produce' and response_time is not null and errors is null")
    acknowledged = answered.withColumnRenamed("broker_id", "asked")
    late = (f.col("time") > f.col("gone") + f.expr(f"interval {_UNDER_WAY}")) & (
        f.col("back").isNull() | (f.col("response_time") < f.col("back"))
    )
    key = ("broker_id", "gone_time", "client_id", "client")
    each = ("file", "packet", "correlation_id", "time", "broker_id", "client_id", "client")
    lost = (
        acknowledged.join(f.broadcast(missing), (f.col("asked") == f.col("broker_id")) & late)
        .groupBy(*each)
        .agg(f.min("gone").alias("gone_time"))
    )
    counted = numbered(lost, *key).groupBy(*key).agg(f.count("*").alias("requests"), *span(), *evidence())
    return as_table(TABLE, counted).orderBy("first_time", "client_id", "client")


def _missing(of: Frames) -> DataFrame:
    """(broker_id, gone, back): when one receiver was told that a broker is not alive, and when it was again.

    It is back when any receiver is told so, for the one that was told that it is gone may be gone itself, or when it
    is first addressed with a new broker epoch.
    """
    key = ("server", "server_port", "broker_id")
    brokers = of.live_brokers.select(f.explode("brokers").alias("broker_id")).distinct()
    told = of.live_brokers.crossJoin(f.broadcast(brokers)).withColumn(
        "alive", f.array_contains("brokers", f.col("broker_id"))
    )
    changes = with_running(
        told, LAST, f.col("alive"), "was_alive", keys=key, order=("time", "packet"), before=True, is_long=of.is_long
    ).where("alive != was_alive")
    lives = (
        of.controls.where("broker_epoch >= 0 and broker_id is not null")
        .groupBy("broker_id", "broker_epoch")
        .agg(f.min("time").alias("last_time"))
        .select("broker_id", "last_time", f.lit(True).alias("alive"))
    )
    later = Window.partitionBy("broker_id").orderBy("last_time").rowsBetween(1, Window.unboundedFollowing)
    return (
        changes.select("broker_id", f.col("time").alias("last_time"), "alive")
        .unionByName(lives)
        .withColumn("back", f.min(f.when(f.col("alive"), f.col("last_time"))).over(later))
        .where("not alive")
        .select("broker_id", f.col("last_time").alias("gone"), "back")
    )


def findings(found: Results) -> Iterator[Finding]:
    unknown = f". It may have been back by then: {MISSING}" * lacks_controls(found)
    for row in found.zombie_leaders[:MOST]:
        yield Finding(
            "alarm",
            f"Broker {row.broker_id} acknowledged {count(row.requests, 'Produce request')} of "
            f"{row.client_id or row.client}, from {clock(row.first_time)} to {clock(row.last_time)}, after it had been "
            f"declared dead at {clock(row.gone_time)}: records of partitions that had another leader by then are lost "
            f"({packets(row.packets)}){unknown}.",
            evidence_of(row),
        )
    if (more := len(found.zombie_leaders) - MOST) > 0:
        text = f"{count(more, 'other client')} of brokers that had been declared dead, see the table."
        yield Finding("alarm", text, evidence_of_all(found.zombie_leaders[MOST:]))


ANALYSIS = Analysis(table=TABLE, run=run, rank=3, findings=findings)
