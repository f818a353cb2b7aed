"""Partitions that miss in-sync replicas at the end of the capture."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, as_table, of_those
from kce.captures.spark.analyses.words import MOST, brokers, count, lacks_controls, some
from kce.captures.tables.rows import FILE, INTS, PARTITION, TIME_COLUMN, Column, Table
from kce.wire.vocabulary import LEADER_DURING_DELETE, NO_LEADER

#: A broker that came back needs this long to catch up, and controllers before Kafka 2.7 to learn of it.
CATCH_UP = datetime.timedelta(seconds=10)

TABLE = Table(
    "under_replicated",
    "A partition that was not deleted, and whose last state that any broker was sent misses in-sync replicas.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *PARTITION,
        Column("leader", pa.int32(), "-1 for none"),
        Column("replicas", INTS, ""),
        Column("isr", INTS, ""),
        Column("missing", INTS, "replicas that are not in sync"),
    ),
)


def run(of: Frames) -> DataFrame:
    deleted = of.states.where(f.col("leader") == LEADER_DURING_DELETE)
    following = f.lead("partition_epoch").over(Window.partitionBy(*PARTITION_KEY).orderBy("partition_epoch"))
    last = (
        of_those(of.versions, deleted, *PARTITION_KEY, are_in=False)
        .withColumn("next_version", following)
        .where("next_version is null")
        .withColumn("missing", f.array_except("replicas", "isr"))
        .where("size(missing) > 0")
    )
    return as_table(TABLE, last).orderBy("topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    rows = found.under_replicated
    if not rows:
        return
    names = [f"{row.topic}-{row.partition}" + " without a leader" * (row.leader == NO_LEADER) for row in rows]
    evidence = tuple(dict.fromkeys((row.file, row.packet) for row in rows))
    missing = sorted({broker for row in rows for broker in row.missing})
    # before Kafka 2.7 leaders write to ZooKeeper who is in sync, and brokers are told seconds later
    unknown = lacks_controls(found)
    source = "is whole in the capture" if unknown else "brokers were sent"
    text = (
        f"By the last state that {source}, {count(len(rows), 'partition')} "
        f"{'was' if len(rows) == 1 else 'were'} under-replicated ({some(names, MOST)}): replicas on "
        f"{brokers(map(str, missing))} were not in sync"
    )
    since = max(row.last_time for row in found.controllers) - CATCH_UP if found.controllers else None
    recovering = {row.broker_id for row in found.bounces if since is not None and row.back_time >= since}
    if unknown:
        yield Finding("note", f"{text}; later ones may be missing or incomplete.", evidence)
    elif recovering.issuperset(missing):
        yield Finding("note", f"{text}, and had just come back.", evidence)
    else:
        yield Finding("warning", f"{text}.", evidence)


ANALYSIS = Analysis(table=TABLE, run=run, rank=27, findings=findings)
