"""STALE_CONTROLLER_EPOCH inside answers that were not refused as a whole (rules 9.18 and 9.19)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table, evidence, numbered
from kce.captures.spark.analyses.words import evidence_of_all
from kce.captures.tables.rows import SENDER, Column, Table, evidence_columns
from kce.wire import ErrorCode

TABLE = Table(
    "stale_partitions",
    "STALE_CONTROLLER_EPOCH inside LeaderAndIsr answers that were not refused as a whole: the broker has that leader "
    "epoch already (rules 9.18, 9.19). No sign of a zombie.",
    (
        *SENDER,
        Column("broker", pa.string(), "who answered"),
        Column("requests", pa.int64(), ""),
        Column("partitions", pa.int64(), ""),
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    stale = of.partitions.where(
        (f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH) & (f.col("response_error_code") == 0)
    )
    request = ["file", "packet", "time", "server", "server_port", "controller_id", "controller_epoch"]
    keys = ("controller_id", "controller_epoch", "broker")
    who = of.controls.select(*request, "broker").distinct()
    requests = stale.groupBy(*request).agg(f.count("*").alias("partitions")).join(who, request)
    counted = (
        numbered(requests, *keys)
        .groupBy(*keys)
        .agg(f.count("*").alias("requests"), f.sum("partitions").alias("partitions"), *evidence())
    )
    return as_table(TABLE, counted).orderBy("controller_epoch", "controller_id", "broker")


def findings(found: Results) -> Iterator[Finding]:
    if found.stale_partitions:
        requests = sum(row.requests for row in found.stale_partitions)
        yield Finding(
            "note",
            f"{requests} LeaderAndIsr answer{'s carry' if requests > 1 else ' carries'} STALE_CONTROLLER_EPOCH for "
            "single partitions: the brokers had those leader epochs already. That is no fencing.",
            evidence_of_all(found.stale_partitions),
        )


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=26,
    findings=findings,
    section=Section(
        position=30,
        heading="STALE_CONTROLLER_EPOCH for single partitions",
        hint="The broker has that leader epoch already, as after a controller change. That is no fencing.",
        columns=(
            Shown("controller", "number", lambda r: r.controller_id),
            Shown("epoch", "number", lambda r: r.controller_epoch),
            Shown("answered by", "text", lambda r: r.broker),
            Shown("requests", "count", lambda r: r.requests),
            Shown("partitions", "count", lambda r: r.partitions),
        ),
    ),
)
