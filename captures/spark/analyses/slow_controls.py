"""Control requests by their latency: a broker that answers late leads and follows late."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table
from kce.captures.spark.analyses.words import MOST, count, duration, packets
from kce.captures.tables.rows import BROKER_TEXT, FILE, SENDER, TIME_COLUMN, Column, Table

#: Rows of each API and broker.
_ROWS = 20

TABLE = Table(
    "slow_controls",
    f"The {_ROWS} slowest control requests of each API and broker.",
    (
        TIME_COLUMN,
        FILE,
        Column("packet", pa.int64(), "number of the request's packet"),
        Column("api", pa.string(), ""),
        BROKER_TEXT,
        *SENDER,
        Column("latency_ms", pa.float64(), ""),
        Column("response_packet", pa.int64(), ""),
    ),
)


def run(of: Frames) -> DataFrame:
    slowest = Window.partitionBy("api", "broker").orderBy(f.desc("latency_ms"), "time", "packet")
    ranked = of.controls.where("latency_ms is not null").withColumn("rank", f.row_number().over(slowest))
    return as_table(TABLE, ranked.where(f"rank <= {_ROWS}")).orderBy(f.desc("latency_ms"), "time", "packet")


def findings(found: Results) -> Iterator[Finding]:
    slow = [row for row in found.slow_controls if row.latency_ms >= found.thresholds.slow_control_ms]
    if slow:
        worst = slow[0]
        yield Finding(
            "warning",
            f"{count(len(slow), 'control request')} took {duration(found.thresholds.slow_control_ms)} or longer; the "
            f"slowest, {worst.api} to broker {worst.broker}, {duration(worst.latency_ms)} "
            f"({packets([row.packet for row in slow])}).",
            tuple((row.file, row.packet) for row in slow[: 4 * MOST]),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=10, findings=findings)
