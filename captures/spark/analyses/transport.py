"""Kafka connections with retransmitted segments, or that were reset."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import count, evidence_of_all, first_places
from kce.captures.tables.rows import SPAN, Column, Table, evidence_columns

#: More retransmitted segments than this share are worth a warning.
LOSSY_SHARE = 0.01

TABLE = Table(
    "transport",
    "A Kafka connection with retransmitted segments, or that was reset.",
    (
        Column("connection", pa.string(), ""),
        Column("segments", pa.int64(), ""),
        Column("retransmits", pa.int64(), ""),
        Column("out_of_order", pa.int64(), ""),
        Column("resets", pa.int64(), ""),
        *SPAN,
        *evidence_columns("packets that reset it, in order", "reset_"),
        *evidence_columns("packets that were retransmitted, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    troubled = of.connections.where("is_kafka and (retransmits > 0 or resets > 0)")
    return as_table(TABLE, troubled).orderBy("first_time", "connection")


def findings(found: Results) -> Iterator[Finding]:
    retransmits = sum(row.retransmits for row in found.transport)
    segments = sum(row.segments for row in found.transport)
    if retransmits:
        worst = max(found.transport, key=lambda row: row.retransmits)
        yield Finding(
            "warning" if retransmits > LOSSY_SHARE * segments else "note",
            f"{count(retransmits, 'segment')} of Kafka connections sent again; most on {worst.connection}, "
            f"{worst.retransmits} of {worst.segments}.",
            evidence_of_all(sorted(found.transport, key=lambda row: -row.retransmits)),
        )
    if resets := [row for row in found.transport if row.resets]:
        yield Finding(
            "note",
            f"{count(len(resets), 'Kafka connection')} reset.",
            first_places(place for row in resets for place in zip(row.reset_files, row.reset_packets, strict=True)),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=22, findings=findings)
