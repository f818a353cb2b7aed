"""UpdateMetadata bytes per different partition state."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered
from kce.captures.spark.analyses.words import count, evidence_of
from kce.captures.tables.rows import SENDER, Column, Table, evidence_columns
from kce.wire.registry import UPDATE_METADATA

TABLE = Table(
    "metadata_cost",
    "The cost of the UpdateMetadata requests of one controller epoch, compared with the changes that they carry.",
    (
        *SENDER,
        Column("requests", pa.int64(), ""),
        Column("request_bytes", pa.int64(), ""),
        Column("states", pa.int64(), "partition states in them"),
        Column("changes", pa.int64(), "different ones among them"),
        Column("bytes_per_change", pa.float64(), "null if they carry no states"),
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    who = ["controller_id", "controller_epoch"]
    sent = (
        numbered(of.controls.where((f.col("api_key") == UPDATE_METADATA) & f.col("controller_epoch").isNotNull()), *who)
        .groupBy(*who)
        .agg(
            f.count("*").alias("requests"),
            f.sum("request_bytes").alias("request_bytes"),
            f.sum("partition_count").alias("states"),
            *evidence(),
        )
    )
    state = ("topic", "topic_id", "partition", "leader", "leader_epoch", "partition_epoch", "isr", "replicas",
             "offline_replicas")  # fmt: skip
    different = (
        of.partitions.where(f.col("api_key") == UPDATE_METADATA)
        .select(*who, *state)
        .distinct()
        .groupBy(*who)
        .agg(f.count("*").alias("changes"))
    )
    joined = sent.join(different, who, "left").fillna(0, ["changes"])
    per_change = f.when(f.col("changes") > 0, f.col("request_bytes") / f.col("changes"))
    return as_table(TABLE, joined.withColumn("bytes_per_change", per_change)).orderBy("controller_epoch")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.metadata_cost:
        if row.changes:
            yield Finding(
                "note",
                f"UpdateMetadata of controller {row.controller_id} (epoch {row.controller_epoch}): {row.states:,} "
                f"states in {count(row.requests, 'request')} told {count(row.changes, 'change')}, "
                f"{row.bytes_per_change:,.0f} bytes each.",
                evidence_of(row),
            )


ANALYSIS = Analysis(table=TABLE, run=run, rank=20, findings=findings)
