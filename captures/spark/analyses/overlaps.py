"""Two controllers at once: what one sent after another's later epoch had begun, whether it was refused or not."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses import zombies
from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import count, evidence_of, packets
from kce.captures.tables.rows import SENDER, SPAN, Column, Table, evidence_columns
from kce.wire import ErrorCode

TABLE = Table(
    "overlaps",
    "Two controllers at once: control requests that one sent after another's later epoch had begun on the wire, "
    "refused or not. (In one epoch there is one controller: two ids in one epoch are here, too.)",
    (
        *SENDER,
        Column("later_id", pa.int32(), "the other controller"),
        Column("later_epoch", pa.int32(), "its epoch"),
        Column("requests", pa.int64(), "how many of the earlier one came after that"),
        Column("refused", pa.int64(), "how many of them a broker answered STALE_CONTROLLER_EPOCH"),
        Column("unanswered", pa.int64(), "how many have no answer in the capture"),
        *SPAN,
        *evidence_columns("these requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    sent = of.controls.where("controller_epoch is not null")
    began = sent.groupBy(f.col("controller_id").alias("later_id"), f.col("controller_epoch").alias("later_epoch")).agg(
        f.min("time").alias("began")
    )
    another = "later_epoch > controller_epoch or (later_epoch = controller_epoch and later_id != controller_id)"
    keys = ("controller_id", "controller_epoch", "later_id", "later_epoch")
    late = sent.join(f.broadcast(began), f.expr(f"began < time and ({another})"))
    counted = (
        numbered(late, *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("requests"),
            f.count_if(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH).alias("refused"),
            f.count_if(f.col("error_code").isNull()).alias("unanswered"),
            *span(),
            *evidence(),
        )
    )
    return as_table(TABLE, counted).orderBy("first_time", "later_epoch")


def findings(found: Results) -> Iterator[Finding]:
    apart = {
        tuple((each.controller_id, each.controller_epoch) for each in pair) for pair in zombies.in_succession(found)
    }
    for row in found.overlaps:
        if ((row.later_id, row.later_epoch), (row.controller_id, row.controller_epoch)) in apart:
            continue  # of two clusters
        accepted = row.requests - row.refused - row.unanswered
        if not accepted and row.refused:
            continue  # a zombie, which has a finding of its own
        same = row.later_epoch == row.controller_epoch
        unknown = f", {row.unanswered} got no answer" if row.unanswered else ""
        yield Finding(
            "alarm" if same else "warning",
            f"Two controllers at once: controller {row.controller_id} (epoch {row.controller_epoch}) sent "
            f"{count(row.requests, 'control request')} after controller {row.later_id} had begun epoch "
            f"{row.later_epoch}; {accepted} of them no broker refused{unknown} ({packets(row.packets)}).",
            evidence_of(row),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=2, findings=findings)
