"""Every change of a partition's in-sync replicas."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Frames, Results, Section
from kce.captures.spark.analyses.common import as_table
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


def picture(found: Results) -> str | None:
    """Replicas that left and joined ISRs, by broker over time, and brokers that came back."""
    changes, bounces = found.isr_changes, found.bounces
    all_brokers = {b for c in changes for b in (*c.left, *c.joined)} | {b.broker_id for b in bounces}
    if not all_brokers:
        return None
    from kce.captures.spark import drawing as d  # here, for matplotlib takes a while to import

    brokers = sorted(all_brokers)[: d.MAX_ROWS]
    rows = {broker: row for row, broker in enumerate(brokers)}
    with d.style():
        figure, axes = d.figure(0.5 * len(brokers) + 1.0)
        for attribute, colour, below in (("left", d.ALARM, 0.02), ("joined", d.JOINED, -0.3)):
            ticks = [(d.days(c.time), rows[b] + below) for c in changes for b in getattr(c, attribute) if b in rows]
            axes.vlines(
                [x for x, _ in ticks], [y for _, y in ticks], [y + 0.28 for _, y in ticks], color=colour, linewidth=1.3,
                zorder=2,
            )  # fmt: skip
        back = [b for b in bounces if b.broker_id in rows]
        axes.scatter(
            [d.days(b.back_time) for b in back], [rows[b.broker_id] - 0.38 for b in back], marker="v", s=26,
            color=d.INK, zorder=3,
        )  # fmt: skip
        axes.set_yticks(range(len(brokers)), [f"broker {broker}" for broker in brokers])
        axes.set_ylim(len(brokers) - 0.5, -0.6)
        d.time_axis(axes)
        d.legend(
            axes,
            [
                d.line(d.ALARM, "fell out of an ISR"),
                d.line(d.JOINED, "came into an ISR"),
                d.marker(d.INK, "v", "broker came back", markersize=5),
            ],
        )
        return d.svg(figure, "isr", "Replicas that left and joined in-sync replicas, by broker over time")


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    section=Section(
        position=50,
        heading="In-sync replicas and brokers",
        hint="Each tick is a replica that fell out of an ISR, or came back in, by the broker that it is on; the "
        "triangles are brokers that came back.",
        picture=picture,
    ),
)
