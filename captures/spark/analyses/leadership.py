"""Every change of a partition's leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from kce.captures.spark.analyses.analysis import (
    BROKER_LOOKS,
    MOST_LANES,
    Analysis,
    Chart,
    Finding,
    Frames,
    Lane,
    Look,
    Mark,
    Results,
    Section,
    Shown,
)
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import clock, count, first_places
from kce.captures.tables.rows import FILE, INTS, TIME_COLUMN, Column, Table
from kce.wire.vocabulary import LEADER_DURING_DELETE, NO_LEADER

TABLE = Table(
    "leadership",
    "One change of a partition's leader, when it was first sent to any broker, in order.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the packet that first says so"),
        Column("topic", pa.string(), ""),
        Column("topic_id", pa.string(), ""),
        Column("partition", pa.int32(), ""),
        Column("from_leader", pa.int32(), "null for the first leader seen; -1 where there was none"),
        Column("to_leader", pa.int32(), "-1 where there is none any more, -2 where the partition was deleted"),
        Column("from_epoch", pa.int32(), "leader epoch before"),
        Column("to_epoch", pa.int32(), "leader epoch after; null where the partition was deleted"),
        Column("isr", INTS, "after the change"),
        Column("decision_epoch", pa.int32(), "epoch of the controller that decided it"),
    ),
)


def run(of: Frames) -> DataFrame:
    return as_table(TABLE, of.leaders).orderBy("time", "packet", "topic", "partition")


def findings(found: Results) -> Iterator[Finding]:
    if not found.leadership:
        return
    first = [c for c in found.leadership if c.from_leader is None]
    deleted = [c for c in found.leadership if c.to_leader == LEADER_DURING_DELETE]
    text = f"{count(len(first), 'partition')} {'was' if len(first) == 1 else 'were'} announced with a first leader"
    if deleted:
        text += f"; {count(len(deleted), 'partition')} {'was' if len(deleted) == 1 else 'were'} deleted"
    yield Finding("note", f"{text}.", first_places((row.file, row.packet) for row in (*first, *deleted)))


def chart(found: Results) -> Chart | None:
    """Who led each partition when, of the partitions whose leader changed, coloured by leader."""
    changes = found.leadership
    moved = {
        (c.topic, c.topic_id, c.partition)
        for c in changes
        if c.from_leader is not None and c.to_leader != LEADER_DURING_DELETE
    }
    if not moved:
        return None
    keys = sorted(moved, key=lambda key: (key[0], key[2], key[1] or ""))[:MOST_LANES]
    leaders = sorted({c.to_leader for c in changes if c.to_leader >= 0})
    looks = {leader: BROKER_LOOKS[i % len(BROKER_LOOKS)] for i, leader in enumerate(leaders)}
    last = max([c.time for c in changes] + [c.last_time for c in found.controllers])
    lanes = []
    for topic, topic_id, partition in keys:
        of_key = [c for c in changes if (c.topic, c.topic_id, c.partition) == (topic, topic_id, partition)]
        marks = []
        for change, until in zip(of_key, [*(c.time for c in of_key[1:]), last], strict=True):
            if change.to_leader == LEADER_DURING_DELETE:
                continue  # nothing is drawn of what is deleted
            who = "no leader" if change.to_leader < 0 else f"leader {change.to_leader}"
            title = f"{topic}-{partition}: {who} from {clock(change.time)}, epoch {change.to_epoch}"
            look = "none" if change.to_leader < 0 else looks[change.to_leader]
            marks.append(Mark(look, change.time, until, title, (change.file, change.packet)))
        lanes.append(Lane(f"{topic}-{partition}", tuple(marks)))
    legend: list[tuple[Look, str]] = [(looks[leader], f"broker {leader}") for leader in leaders]
    if any(c.to_leader == NO_LEADER for c in changes):
        legend.append(("none", "no leader"))
    return Chart(tuple(lanes), tuple(legend))


def _epochs(row: Any) -> str:
    return " → ".join(str(epoch) for epoch in (row.from_epoch, row.to_epoch) if epoch is not None)


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=17,
    findings=findings,
    section=Section(
        position=40,
        heading="Leadership",
        hint="Partitions whose leader changed, and who led them when.",
        columns=(
            Shown("time", "time", lambda r: r.time),
            Shown("packet", "packets", lambda r: ((r.file, r.packet),)),
            Shown("partition", "text", lambda r: f"{r.topic}-{r.partition}"),
            Shown("from", "leader", lambda r: r.from_leader),
            Shown("to", "leader", lambda r: r.to_leader),
            Shown("leader epoch", "number", _epochs),
            Shown("in sync", "text", lambda r: r.isr),
            Shown("by epoch", "number", lambda r: r.decision_epoch),
        ),
        chart=chart,
        without_rows="No leaders were announced.",
        without_picture="No leader changed after the first was elected.",
    ),
)
