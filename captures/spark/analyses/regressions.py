"""Controller epochs and leader epochs that went down, as each broker got them (rule 8.11)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import PARTITION_KEY, STALE, accepted_states, as_table
from kce.captures.spark.analyses.words import count, some
from kce.captures.tables.rows import BROKER_TEXT, FILE, TIME_COLUMN, Column, Table
from kce.wire import ErrorCode
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
        Column("refused", pa.bool_(), "whether the broker refused the request as a whole"),
    ),
)

#: The answer for a partition of which the broker has that leader epoch, or a later one (rules 9.18, 9.19).
_STALE_LEADER = ErrorCode.STALE_CONTROLLER_EPOCH


def run(of: Frames) -> DataFrame:
    columns = [column.name for column in TABLE.columns]
    controllers, leaders = _controller_epochs(of.exchanges), _leader_epochs(of.partitions)
    down = controllers.select(*columns).unionByName(leaders.select(*columns)).where("found < highest")
    return as_table(TABLE, down).orderBy("time", "packet", "topic", "partition")


def _controller_epochs(exchanges: DataFrame) -> DataFrame:
    received = Window.partitionBy("server", "server_port").orderBy("time", "packet")
    before = received.rowsBetween(Window.unboundedPreceding, -1)
    return (
        exchanges.where("is_control and controller_epoch is not null")
        .withColumns(
            {
                "refused": f.coalesce(f.col("error_code").isin(*STALE), f.lit(False)),
                "found": f.col("controller_epoch"),
            }
        )
        .withColumn("highest", f.max(f.when(~f.col("refused"), f.col("found"))).over(before))
        .withColumns({"epoch": f.lit("controller_epoch"), "topic": f.lit(None), "partition": f.lit(None)})
    )


def _leader_epochs(partitions: DataFrame) -> DataFrame:
    received = Window.partitionBy("server", "server_port", *PARTITION_KEY).orderBy("time", "packet")
    before = received.rowsBetween(Window.unboundedPreceding, -1)
    return (
        accepted_states(partitions)
        .where((f.col("leader") != LEADER_DURING_DELETE) & (f.col("leader_epoch") >= 0))
        .withColumns(
            {
                "refused": f.coalesce(f.col("error_code") == _STALE_LEADER, f.lit(False)),
                "found": f.col("leader_epoch"),
                "epoch": f.lit("leader_epoch"),
            }
        )
        .withColumn("highest", f.max("found").over(before))
    )


def findings(found: Results) -> Iterator[Finding]:
    for row in found.regressions:
        if row.epoch == "controller_epoch" and not row.refused:
            yield Finding(
                "alarm",
                f"The controller epoch went down for broker {row.broker}, which did not refuse it: {row.found} after "
                f"{row.highest} (packet {row.packet}).",
                ((row.file, row.packet),),
            )
    # before Kafka 2.4 reassignment raised leader epochs that the controller's later requests do not know
    leaders = [row for row in found.regressions if row.epoch == "leader_epoch"]
    if leaders:
        partitions = list(dict.fromkeys(f"{row.topic}-{row.partition}" for row in leaders))
        yield Finding(
            "warning",
            f"Leader epochs went down {count(len(leaders), 'time')} in what brokers were told, of "
            f"{some(partitions, 5)}: first from {leaders[0].highest} to {leaders[0].found} for broker "
            f"{leaders[0].broker} (packet {leaders[0].packet}).",
            tuple(dict.fromkeys((row.file, row.packet) for row in leaders)),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=5, findings=findings)
