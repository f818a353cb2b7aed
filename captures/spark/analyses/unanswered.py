"""Requests that should have been answered; Produce with acks=0 should not (rule B1.19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import MOST, count, evidence_of_all
from kce.captures.tables.rows import BROKER_TEXT, SPAN, Column, Table, evidence_columns

TABLE = Table(
    "unanswered",
    "Requests that Kafka answers and that have no answer in the capture.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        BROKER_TEXT,
        Column("client_id", pa.string(), ""),
        Column("requests", pa.int64(), ""),
        *SPAN,
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    keys = ("api_key", "api", "broker", "client_id")
    missing = of.exchanges.where("answered and response_packet is null")
    counted = numbered(missing, *keys).groupBy(*keys).agg(f.count("*").alias("requests"), *span(), *evidence())
    return as_table(TABLE, counted).orderBy("api_key", "broker", "client_id")


def findings(found: Results) -> Iterator[Finding]:
    if found.unanswered:
        missing: Counter[tuple[str, str]] = Counter()
        for row in found.unanswered:
            missing[row.api, row.broker] += row.requests
        by_api = ", ".join(f"{n} {api} to broker {broker}" for (api, broker), n in missing.most_common(MOST))
        more = " and others" * (len(missing) > MOST)
        yield Finding(
            "note",
            f"{count(missing.total(), 'request')} without an answer in the capture: {by_api}{more}.",
            evidence_of_all(found.unanswered),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=23, findings=findings)
