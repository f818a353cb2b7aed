"""Partitions whose replicas were moved to other brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import MOST, count, duration, lacks_controls, some
from kce.captures.tables.rows import FILE, INTS, PARTITION, TIME_COLUMN, Column, Table

TABLE = Table(
    "reassignments",
    "One change of a partition's replicas, when it was first sent to any broker, in order. A reassignment that moves "
    "replicas has two: it adds the new ones, and removes the old ones when those are in sync (rule 11.5).",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *PARTITION,
        Column("from_replicas", INTS, "the preferred one first"),
        Column("to_replicas", INTS, ""),
        Column("adding_replicas", INTS, "null where the request does not tell"),
        Column("removing_replicas", INTS, "null where the request does not tell"),
        Column("isr", INTS, "after the change"),
        Column("leader", pa.int32(), ""),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)


def run(of: Frames) -> DataFrame:
    changes = of.versions.where("from_replicas != replicas").withColumnRenamed("replicas", "to_replicas")
    return as_table(TABLE, changes).orderBy("time", "packet", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    changes: dict[tuple[str, str | None, int], list[Any]] = {}
    for row in found.reassignments:
        changes.setdefault((row.topic, row.topic_id, row.partition), []).append(row)
    if not changes:
        return
    yield Finding(
        "note",
        f"Replicas of {count(len(changes), 'partition')} were reassigned: "
        f"{some(map(_described, changes.values()), MOST)}"
        f"{'; later changes may be missing' * lacks_controls(found)}.",
        tuple(dict.fromkeys((row.file, row.packet) for row in found.reassignments)),
    )


def _described(rows: list[Any]) -> str:
    first, last = rows[0], rows[-1]
    text = f"{first.topic}-{first.partition} from [{some(first.from_replicas)}] to [{some(last.to_replicas)}]"
    if last.adding_replicas or last.removing_replicas:
        return f"{text} (not finished in the capture)"
    return text if len(rows) == 1 else f"{text} in {duration((last.time - first.time).total_seconds() * 1000)}"


ANALYSIS = Analysis(table=TABLE, run=run, rank=28, findings=findings)
