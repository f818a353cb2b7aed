"""Control requests with the same content, to the same broker, in the same epochs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, numbered, span
from kce.captures.spark.analyses.words import MOST, count, evidence_of, evidence_of_all, packets
from kce.captures.tables.rows import BROKER_TEXT, SENDER, SPAN, Column, Table, evidence_columns

TABLE = Table(
    "resends",
    "A control request that was sent more than once to one broker, with the same content and epochs.",
    (
        Column("api", pa.string(), ""),
        BROKER_TEXT,
        *SENDER,
        Column("requests", pa.int64(), "how often it was sent"),
        Column(
            "unanswered",
            pa.int64(),
            "how many of these got no answer, so that they had to be resent; without those "
            "whose answer only the capture lacks, as later requests on their connection were answered",
        ),
        *SPAN,
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    keys = ("api", "broker", "controller_id", "controller_epoch", "broker_epoch", "content")
    # a broker answers in order: the capture lost the response to what was sent before an answered request
    answers = of.controls.groupBy(f.col("connection").alias("answering")).agg(
        f.max(f.when(f.col("response_packet").isNotNull(), f.col("time"))).alias("last_answered")
    )
    control = of.controls.where("content is not null").join(answers, f.col("connection") == f.col("answering"))
    is_unanswered = f.expr("response_packet is null and (last_answered is null or time > last_answered)")
    counted = (
        numbered(control, *keys)
        .groupBy(*keys)
        .agg(
            f.count("*").alias("requests"),
            f.count_if(is_unanswered).alias("unanswered"),
            *span(),
            *evidence(),
        )
        .where("requests > 1")
    )
    return as_table(TABLE, counted).orderBy("first_time", "broker", "api", "packets")


def findings(found: Results) -> Iterator[Finding]:
    resent = [row for row in found.resends if row.unanswered]
    for row in resent[:MOST]:
        yield Finding(
            "warning",
            f"Controller {row.controller_id} (epoch {row.controller_epoch}) sent the same {row.api} {row.requests} "
            f"times to broker {row.broker}; {row.unanswered} of them got no answer ({packets(row.packets)}).",
            evidence_of(row),
        )
    if (more := len(resent) - MOST) > 0:
        yield Finding(
            "warning", f"{count(more, 'other control request')} had to be resent.", evidence_of_all(resent[MOST:])
        )
    if again := [row for row in found.resends if not row.unanswered]:
        requests = sum(row.requests - 1 for row in again)
        yield Finding(
            "note",
            f"{count(requests, 'control request')} repeated what the broker already had.",
            evidence_of_all(again),
        )


ANALYSIS = Analysis(table=TABLE, run=run, rank=19, findings=findings)
