"""Leaders that were not in sync. Only elections of which the state before was seen count."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import MOST, count, first_places, some
from kce.captures.tables.rows import FILE, INTS, PARTITION, TIME_COLUMN, Column, Table

TABLE = Table(
    "unclean_elections",
    "A leader that was not in sync: it is missing in the ISR of the state before.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *PARTITION,
        Column("leader", pa.int32(), "who was elected"),
        Column("leader_epoch", pa.int32(), ""),
        Column("isr_before", INTS, "who was in sync"),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)


def run(of: Frames) -> DataFrame:
    unclean = (
        of.versions.where("leader >= 0 and leader != from_leader and from_version = partition_epoch - 1")
        .where(~f.array_contains("from_isr", f.col("leader")))
        .withColumnRenamed("from_isr", "isr_before")
    )
    return as_table(TABLE, unclean).orderBy("time", "packet", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.unclean_elections[:MOST]:
        yield Finding(
            "alarm",
            f"Unclean election: {row.topic}-{row.partition} got broker {row.leader} as leader in leader epoch "
            f"{row.leader_epoch}, while in sync were {some(row.isr_before) or 'none'} (packet {row.packet}). What only "
            "those had is lost.",
            ((row.file, row.packet),),
        )
    if (more := len(found.unclean_elections) - MOST) > 0:
        others = first_places((row.file, row.packet) for row in found.unclean_elections[MOST:])
        yield Finding("alarm", f"{count(more, 'other unclean election')}, see the table.", others)


ANALYSIS = Analysis(table=TABLE, run=run, rank=4, findings=findings)
