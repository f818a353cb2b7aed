"""Leader epochs for which LeaderAndIsr and UpdateMetadata name more than one leader."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, as_table, evidence, numbered, of_those, span
from kce.captures.spark.analyses.words import MOST, count, evidence_of, evidence_of_all, listed, packets
from kce.captures.tables.rows import INTS, PARTITION, SPAN, Column, Table, evidence_columns
from kce.wire.registry import LEADER_AND_ISR, UPDATE_METADATA
from kce.wire.vocabulary import LEADER_DURING_DELETE

TABLE = Table(
    "disagreements",
    "One leader epoch of a partition for which LeaderAndIsr and UpdateMetadata requests name different leaders.",
    (
        *PARTITION,
        Column("leader_epoch", pa.int32(), ""),
        Column("in_leader_and_isr", INTS, "leaders by LeaderAndIsr"),
        Column("in_update_metadata", INTS, "leaders by UpdateMetadata"),
        *SPAN,
        *evidence_columns("packets of these requests, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    keys = (*PARTITION_KEY, "leader_epoch")
    states = of.states.where(f.col("leader") != LEADER_DURING_DELETE)
    leaders = states.groupBy(*keys).agg(f.min("leader").alias("lowest"), f.max("leader").alias("highest"))
    states = of_those(states, leaders.where("lowest < highest"), *keys)
    by = {
        "in_leader_and_isr": f.collect_set(f.when(f.col("api_key") == LEADER_AND_ISR, f.col("leader"))),
        "in_update_metadata": f.collect_set(f.when(f.col("api_key") == UPDATE_METADATA, f.col("leader"))),
    }
    counted = numbered(states, *keys).groupBy(*keys).agg(*(c.alias(n) for n, c in by.items()), *span(), *evidence())
    return as_table(TABLE, counted).orderBy("first_time", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    for row in found.disagreements[:MOST]:
        leaders = sorted({*row.in_leader_and_isr, *row.in_update_metadata})
        yield Finding(
            "alarm",
            f"Brokers were told different leaders of {row.topic}-{row.partition} in leader epoch {row.leader_epoch}: "
            f"{listed([str(leader) for leader in leaders])} ({packets(row.packets)}).",
            evidence_of(row),
        )
    if (more := len(found.disagreements) - MOST) > 0:
        yield Finding(
            "alarm",
            f"{count(more, 'other leader epoch')} with different leaders.",
            evidence_of_all(found.disagreements[MOST:]),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=7, findings=findings)
