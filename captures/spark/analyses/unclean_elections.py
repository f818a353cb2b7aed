"""Leaders that were not in sync. Only elections of which the states before were seen count.

Before Kafka 0.11 the ISR became empty with the death of its last member, where unclean elections were allowed, as they
were by default. Who was in it before that was in sync.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, as_table, of_those
from kce.captures.spark.analyses.words import MOST, count, first_places, some
from kce.captures.tables.rows import FILE, INTS, PARTITION, TIME_COLUMN, Column, Table

TABLE = Table(
    "unclean_elections",
    "A leader that was not in sync: it is missing in the last ISR before that was not empty.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *PARTITION,
        Column("leader", pa.int32(), "who was elected"),
        Column("leader_epoch", pa.int32(), ""),
        Column("isr_before", INTS, "who was in sync last"),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)


def run(of: Frames) -> DataFrame:
    in_order = Window.partitionBy(*PARTITION_KEY).orderBy("partition_epoch")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)

    def last(name: str) -> SqlColumn:
        return f.last(f.when(f.size("isr") > 0, f.col(name)), ignorenulls=True).over(before)

    elections = of.versions.where("leader >= 0 and leader != from_leader")
    unclean = (
        of_those(of.versions, elections, *PARTITION_KEY)
        .withColumn("nth", f.row_number().over(in_order))
        .withColumns({"isr_before": last("isr"), "last_version": last("partition_epoch"), "last_nth": last("nth")})
        .where("leader >= 0 and leader != from_leader and partition_epoch - last_version = nth - last_nth")
        .where(~f.array_contains("isr_before", f.col("leader")))
    )
    return as_table(TABLE, unclean).orderBy("time", "packet", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.unclean_elections[:MOST]:
        yield Finding(
            "alarm",
            f"Unclean election: {row.topic}-{row.partition} got broker {row.leader} as leader in leader epoch "
            f"{row.leader_epoch}, while the last in sync were {some(row.isr_before)} (packet {row.packet}). What only "
            "those had is lost.",
            ((row.file, row.packet),),
        )
    if (more := len(found.unclean_elections) - MOST) > 0:
        others = first_places((row.file, row.packet) for row in found.unclean_elections[MOST:])
        yield Finding("alarm", f"{count(more, 'other unclean election')}, see the table.", others)


ANALYSIS = Analysis(table=TABLE, run=run, rank=4, findings=findings)
