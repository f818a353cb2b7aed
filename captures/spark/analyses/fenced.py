"""Requests refused as a whole for a stale controller or broker epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import STALE, as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import evidence_of, packets
from kce.captures.tables.rows import SENDER, TIME, Column, Table, evidence_columns

TABLE = Table(
    "fenced",
    "Requests refused as a whole for a stale epoch, by sender and refusing broker.",
    (
        Column("error", pa.string(), "STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH"),
        *SENDER,
        Column("sender_broker_id", pa.int32(), "the sender, if it is no controller"),
        Column("broker", pa.string(), "who refused: broker id, or address where it is not known"),
        Column("api", pa.string(), ""),
        Column("requests", pa.int64(), ""),
        Column("first_time", TIME, "of the first such request"),
        Column("last_time", TIME, "of the last"),
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    refused = of.exchanges.where(f.col("error_code").isin(*STALE))
    keys = ("error", "controller_id", "controller_epoch", "sender_broker_id", "broker", "api")
    counted = numbered(refused, *keys).groupBy(*keys).agg(f.count("*").alias("requests"), *span(), *evidence())
    return as_table(TABLE, counted).orderBy("first_time", "broker", "api")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.fenced:
        if row.error == "STALE_BROKER_EPOCH":
            sender = (
                f"controller {row.controller_id} (epoch {row.controller_epoch})"
                if row.controller_id is not None
                else f"broker {row.sender_broker_id}"
            )
            yield Finding(
                "warning",
                f"Broker {row.broker} refused {row.requests} {row.api} of {sender} with STALE_BROKER_EPOCH "
                f"({packets(row.packets)}): {_why(row)}.",
                evidence_of(row),
            )


def _why(row: Any) -> str:
    if row.controller_id is not None:
        return "the receiver had registered again since"
    return "the sender's registration had expired, or it had registered again since"


def _sender(row: Any) -> str:
    if row.controller_id is None:
        return f"broker {row.sender_broker_id}"
    return f"{row.controller_id} in epoch {row.controller_epoch}"


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=9,
    findings=findings,
    section=Section(
        position=20,
        heading="Refused for a stale epoch",
        columns=(
            Shown("error", "text", lambda r: r.error),
            Shown("sender", "text", _sender),
            Shown("refused by", "text", lambda r: r.broker),
            Shown("API", "text", lambda r: r.api),
            Shown("requests", "count", lambda r: r.requests, wide=True),
            Shown("first", "time", lambda r: r.first_time, wide=True),
            Shown("last", "time", lambda r: r.last_time, wide=True),
            Shown("packets", "packets", evidence_of),
        ),
    ),
)
