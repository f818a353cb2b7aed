"""Controller epochs and leader epochs that went down, as each broker got them (rule 8.11)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, STALE, as_table, of_those
from kce.captures.spark.analyses.running import HIGHEST, with_running
from kce.captures.spark.analyses.words import MOST, count, first_places, some
from kce.captures.tables.rows import BROKER_TEXT, FILE, TIME_COLUMN, Column, Table
from kce.wire import ErrorCode
from kce.wire.registry import LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from kce.wire.vocabulary import LEADER_DURING_DELETE

TABLE = Table(
    "regressions",
    "An epoch that went down, in the order in which one broker got its requests: it never should.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the request's packet"),
        Column("epoch", pa.string(), "controller_epoch or leader_epoch"),
        BROKER_TEXT,
        Column("api", pa.string(), ""),
        Column("topic", pa.string(), "null for controller_epoch"),
        Column("partition", pa.int32(), "null for controller_epoch"),
        Column("highest", pa.int32(), "the highest epoch that the broker had got"),
        Column("found", pa.int32(), "the one that it got after that"),
        Column(
            "refused",
            pa.bool_(),
            "whether the broker refused the request as a whole; null if the capture has no answer",
        ),
        Column("is_old", pa.bool_(), "whether the request is of a controller before Kafka 2.4"),
    ),
)

#: The answer for a partition of which the broker has that leader epoch, or a later one (rules 9.18, 9.19).
_STALE_LEADER = ErrorCode.STALE_CONTROLLER_EPOCH


def run(of: Frames) -> DataFrame:
    columns = [column.name for column in TABLE.columns]
    controllers, leaders = _controller_epochs(of.controls, is_long=of.is_long), _leader_epochs(of.states)
    down = controllers.select(*columns).unionByName(leaders.select(*columns)).where("found < highest")
    return as_table(TABLE, down).orderBy("time", "packet", "topic", "partition")


def _controller_epochs(controls: DataFrame, *, is_long: bool) -> DataFrame:
    requests = controls.where("controller_epoch is not null").withColumns(
        {
            "refused": f.col("error_code").isin(*STALE),
            "found": f.col("controller_epoch"),
            "is_old": f.lit(False),
            "epoch": f.lit("controller_epoch"),
            "topic": f.lit(None).cast("string"),
            "partition": f.lit(None).cast("int"),
        }
    )
    accepted = f.when(~f.col("refused"), f.col("found"))
    return with_running(
        requests, HIGHEST, accepted, "highest", keys=["server", "server_port"], order=["time", "packet"], before=True,
        is_long=is_long,
    )  # fmt: skip


def _leader_epochs(states: DataFrame) -> DataFrame:
    keys = ("server", "server_port", *PARTITION_KEY)
    before = Window.partitionBy(*keys).orderBy("time", "packet").rowsBetween(Window.unboundedPreceding, -1)
    answered = (
        states.where((f.col("leader") != LEADER_DURING_DELETE) & (f.col("leader_epoch") >= 0))
        # without an answer, nobody knows whether the broker refused the request
        .where("response_error_code is not null")
    )
    epochs = answered.groupBy(*keys).agg(f.min("leader_epoch").alias("first"), f.max("leader_epoch").alias("last"))
    return (
        of_those(answered, epochs.where("first < last"), *keys)
        .withColumns(
            {
                "refused": f.coalesce(f.col("error_code") == _STALE_LEADER, f.lit(False)),
                "found": f.col("leader_epoch"),
                "epoch": f.lit("leader_epoch"),
                "is_old": _is_old(),
            }
        )
        .withColumn("highest", f.max("found").over(before))
    )


def _is_old() -> SqlColumn:
    versions = {LEADER_AND_ISR: 4, UPDATE_METADATA: 6, STOP_REPLICA: 2}  # of Kafka 2.4
    return reduce(or_, [(f.col("api_key") == key) & (f.col("version") < version) for key, version in versions.items()])


def findings(found: Results) -> Iterator[Finding]:
    accepted = [row for row in found.regressions if row.epoch == "controller_epoch" and row.refused is False]
    for row in accepted[:MOST]:
        yield Finding(
            "alarm",
            f"The controller epoch went down for broker {row.broker}, which did not refuse it: {row.found} after "
            f"{row.highest} (packet {row.packet}).",
            ((row.file, row.packet),),
        )
    if (more := len(accepted) - MOST) > 0:
        others = first_places((row.file, row.packet) for row in accepted[MOST:])
        text = f"{count(more, 'other request')} with a lower controller epoch, not refused either."
        yield Finding("alarm", text, others)
    # before Kafka 2.4 reassignment raised leader epochs that the controller's later requests do not know: harmless
    leaders = [row for row in found.regressions if row.epoch == "leader_epoch" and not row.is_old]
    if leaders:
        partitions = list(dict.fromkeys(f"{row.topic}-{row.partition}" for row in leaders))
        yield Finding(
            "warning",
            f"Leader epochs went down {count(len(leaders), 'time')} in what brokers were told, of "
            f"{some(partitions, 5)}: first from {leaders[0].highest} to {leaders[0].found} for broker "
            f"{leaders[0].broker} (packet {leaders[0].packet}).",
            tuple(dict.fromkeys((row.file, row.packet) for row in leaders)),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=8, findings=findings)
