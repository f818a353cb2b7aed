"""Who was controller in which epoch, as far as control requests show."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import (
    MOST_LANES,
    Analysis,
    Auxiliary,
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
from kce.captures.spark.analyses.common import as_table, each_field
from kce.captures.spark.analyses.words import brokers, clock, count, evidence_of, first_places, lacks_controls
from kce.captures.tables.rows import SENDER, TIME, TIME_COLUMN, Column, Table, evidence_columns
from kce.wire import ErrorCode

TABLE = Table(
    "controllers",
    "One controller in one epoch, by the control requests it sent.",
    (
        Column("controller_epoch", pa.int32(), ""),
        Column("controller_id", pa.int32(), ""),
        Column("is_kraft_controller", pa.bool_(), ""),
        Column("first_time", TIME, "of its first control request"),
        Column("last_time", TIME, "of its last"),
        Column("requests", pa.int64(), "control requests"),
        Column("brokers", pa.list_(pa.string()), "whom it reached: broker ids, or addresses where they are not known"),
        Column("decisions", pa.int64(), "partition states of its own epoch that it sent, each counted once"),
        Column("fenced", pa.int64(), "requests answered STALE_CONTROLLER_EPOCH"),
        *evidence_columns("its first and its last request"),
    ),
)

TICKS = Table(
    "ticks",
    "Control requests of one kind and controller within a short while: for the timeline.",
    (
        *reversed(SENDER),
        Column("api", pa.string(), ""),
        Column("fenced", pa.bool_(), ""),
        TIME_COLUMN,
        Column("requests", pa.int64(), ""),
    ),
)

#: How many steps of time the picture has.
_STEPS = 1000


def run(of: Frames) -> DataFrame:
    sent = of.controls.where("controller_epoch is not null")
    place = f.struct("time", "packet", "file")
    ends = f.array(f.min(place), f.max(place))
    seen = sent.groupBy("controller_epoch", "controller_id").agg(
        f.max("is_kraft_controller").alias("is_kraft_controller"),
        f.min("time").alias("first_time"),
        f.max("time").alias("last_time"),
        f.count("*").alias("requests"),
        f.sort_array(f.collect_set("broker")).alias("brokers"),
        f.count_if(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH).alias("fenced"),
        each_field(ends, "packet").alias("packets"),
        each_field(ends, "file").alias("files"),
    )
    decision = ("topic", "topic_id", "partition", "leader", "leader_epoch", "partition_epoch")
    decided = (
        of.partitions.where("decision_epoch = controller_epoch")
        .select("controller_epoch", "controller_id", *decision)
        .distinct()
        .groupBy("controller_epoch", "controller_id")
        .agg(f.count("*").alias("decisions"))
    )
    joined = seen.join(decided, ["controller_epoch", "controller_id"], "left").fillna(0, ["decisions"])
    return as_table(TABLE, joined).orderBy("controller_epoch", "first_time")


def ticks(of: Frames) -> DataFrame:
    """Control requests over time: those of one kind within one step are one row."""
    sent = of.controls.where("controller_epoch is not null")
    micros = f.unix_micros("time")
    step = sent.agg(((f.max(micros) - f.min(micros)) / _STEPS + 1).cast("bigint").alias("step"))
    counted = (
        sent.crossJoin(f.broadcast(step))
        .withColumn("fenced", f.coalesce(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH, f.lit(False)))
        .groupBy("controller_epoch", "controller_id", "api", "fenced", f.floor(micros / f.col("step")))
        .agg(f.min("time").alias("time"), f.count("*").alias("requests"))
    )
    return as_table(TICKS, counted).orderBy("time", "controller_epoch", "api")


def findings(found: Results) -> Iterator[Finding]:
    if len(found.controllers) == 1:
        (only,) = found.controllers
        yield Finding(
            "note",
            f"Controller {only.controller_id} (epoch {only.controller_epoch}) was the only one seen: "
            f"{count(only.requests, 'control request')} to {brokers(only.brokers)}.",
            evidence_of(only),
        )
    elif found.controllers:
        turns = ", ".join(
            f"{c.controller_id} in epoch {c.controller_epoch} from {c.first_time:%H:%M:%S}" for c in found.controllers
        )
        begun = first_places(evidence_of(c)[0] for c in found.controllers)
        number = "At least " * lacks_controls(found) + str(len(found.controllers))
        yield Finding("note", f"{number} controllers took turns: {turns}.", begun)


def chart(found: Results) -> Chart | None:
    """Epochs as bars over time, their control requests as ticks, refused ones marked."""
    lanes = []
    for controller in found.controllers[-MOST_LANES:]:
        epoch = controller.controller_epoch
        title = f"controller {controller.controller_id}, epoch {epoch}: {count(controller.requests, 'control request')}"
        marks = [Mark("bar", controller.first_time, controller.last_time, title)]
        for tick in found.ticks:
            if (tick.controller_epoch, tick.controller_id) == (epoch, controller.controller_id):
                refused = ", refused as stale" if tick.fenced else ""
                what = f"{count(tick.requests, tick.api)} at {clock(tick.time)}{refused}"
                marks.append(Mark("refused" if tick.fenced else tick.api, tick.time, None, what))
        lanes.append(Lane(f"epoch {epoch}: controller {controller.controller_id}", tuple(marks)))
    if not lanes:
        return None
    looks = {mark.look for lane in lanes for mark in lane.marks}
    legend: tuple[tuple[Look, str], ...] = (
        ("LeaderAndIsr", "LeaderAndIsr"), ("UpdateMetadata", "UpdateMetadata"), ("StopReplica", "StopReplica"),
        ("refused", "refused as stale"),
    )  # fmt: skip
    return Chart(tuple(lanes), tuple(entry for entry in legend if entry[0] in looks))


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=16,
    findings=findings,
    section=Section(
        position=10,
        heading="Controllers by epoch",
        hint="Each bar is one controller's epoch, from its first control request to its last; the ticks are the "
        "requests. Two bars at one time are two controllers that both believed to be the one.",
        columns=(
            Shown("epoch", "number", lambda r: r.controller_epoch),
            Shown("id", "number", lambda r: f"{r.controller_id}{' (KRaft)' if r.is_kraft_controller else ''}"),
            Shown("first request", "time", lambda r: r.first_time),
            Shown("last request", "time", lambda r: r.last_time),
            Shown("requests", "count", lambda r: r.requests),
            Shown("brokers", "text", lambda r: r.brokers),
            Shown("decisions", "count", lambda r: r.decisions),
            Shown("refused", "count", lambda r: r.fenced),
        ),
        chart=chart,
        without_rows="No control requests were seen.",
    ),
    auxiliary=(Auxiliary(TICKS, ticks),),
)
