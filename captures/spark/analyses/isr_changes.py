"""Every change of a partition's in-sync replicas."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import (
    MOST_LANES,
    Analysis,
    Chart,
    Frames,
    Lane,
    Look,
    Mark,
    Results,
    Section,
)
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import clock
from kce.captures.tables.rows import FILE, INTS, PARTITION, TIME_COLUMN, Column, Table

TABLE = Table(
    "isr_changes",
    "One change of a partition's in-sync replicas, when it was first sent to any broker, in order.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        *PARTITION,
        Column("from_isr", INTS, ""),
        Column("to_isr", INTS, ""),
        Column("left", INTS, "who fell out"),
        Column("joined", INTS, "who came in"),
        Column("leader_epoch", pa.int32(), ""),
        Column("partition_epoch", pa.int32(), "version of the state in ZooKeeper"),
    ),
)


def run(of: Frames) -> DataFrame:
    changes = (
        of.versions.withColumnRenamed("isr", "to_isr")
        .withColumns({"left": f.array_except("from_isr", "to_isr"), "joined": f.array_except("to_isr", "from_isr")})
        .where("size(left) > 0 or size(joined) > 0")
    )
    return as_table(TABLE, changes).orderBy("time", "packet", "topic", "partition")


def chart(found: Results) -> Chart | None:
    """Replicas that left and joined ISRs, by broker over time, and brokers that came back."""
    marks: dict[int, list[Mark]] = {}
    for change in found.isr_changes:
        place = (change.file, change.packet)
        which = f"the ISR of {change.topic}-{change.partition} at {clock(change.time)}"
        for broker in change.left:
            marks.setdefault(broker, []).append(Mark("left", change.time, None, f"{broker} left {which}", place))
        for broker in change.joined:
            marks.setdefault(broker, []).append(Mark("joined", change.time, None, f"{broker} joined {which}", place))
    for row in found.bounces:
        title = f"broker {row.broker_id} came back at {clock(row.back_time)}"
        back = Mark("back", row.back_time, None, title, (row.file, row.packet))
        marks.setdefault(row.broker_id, []).append(back)
    if not marks:
        return None
    lanes = (Lane(f"broker {broker}", tuple(of_it)) for broker, of_it in sorted(marks.items())[:MOST_LANES])
    legend: tuple[tuple[Look, str], ...] = (
        ("left", "left an ISR"), ("joined", "joined an ISR"), ("back", "broker came back"),
    )  # fmt: skip
    return Chart(tuple(lanes), legend)


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    section=Section(
        position=50,
        heading="In-sync replicas and brokers",
        hint="Each tick is a replica that left an ISR, or joined it again, by the broker that it is on.",
        chart=chart,
    ),
)
