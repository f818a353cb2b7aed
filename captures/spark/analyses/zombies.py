"""Controllers that were fenced because a later epoch had begun.

A later epoch has begun once a control request of it was sent. Error 11 inside the partitions of an answer makes no
zombie, nor does a late request that no broker refused: it looks like one delayed in transit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results
from kce.captures.spark.analyses.common import as_table, evidence, in_order, numbered, span
from kce.captures.spark.analyses.words import (
    MISSING,
    brokers,
    count,
    evidence_of,
    incomplete_controls,
    lacks_controls,
    packets,
)
from kce.captures.tables.rows import SENDER, TIME, Column, Table, evidence_columns
from kce.wire import ErrorCode

TABLE = Table(
    "zombies",
    "A controller that sent control requests after a later epoch had begun on the wire, and was refused for it.",
    (
        *SENDER,
        Column("later_epoch", pa.int32(), "the latest epoch that had begun by then"),
        Column("requests", pa.int64(), "how many were refused with STALE_CONTROLLER_EPOCH"),
        Column("first_time", TIME, "of the first such request"),
        Column("last_time", TIME, "of the last"),
        Column("brokers", pa.list_(pa.string()), "who refused, in the order of the requests"),
        *evidence_columns("the requests' packets, in order"),
    ),
)


def run(of: Frames) -> DataFrame:
    sent = of.controls.where("controller_epoch is not null")
    began = sent.groupBy(f.col("controller_epoch").alias("later_epoch")).agg(f.min("time").alias("began"))
    late = (
        sent.where(f.col("error_code") == ErrorCode.STALE_CONTROLLER_EPOCH)
        .join(f.broadcast(began), f.expr("later_epoch > controller_epoch and began < time"))
        .groupBy("file", "packet", "server", "server_port", "controller_id", "controller_epoch", "time", "broker")
        .agg(f.max("later_epoch").alias("later_epoch"))
    )
    keys = ("controller_id", "controller_epoch")
    accused = (
        numbered(late, *keys)
        .groupBy(*keys)
        .agg(
            f.max("later_epoch").alias("later_epoch"),
            f.count("*").alias("requests"),
            *span(),
            f.array_distinct(in_order("broker")).alias("brokers"),
            *evidence(),
        )
    )
    return as_table(TABLE, accused).orderBy("first_time")


def _mixed(found: Results) -> list[str]:
    """Brokers that were announced at two addresses of one listener at a time, as of two clusters."""
    places: dict[tuple[int, str], list[Any]] = {}
    for row in found.endpoints:
        places.setdefault((row.broker_id, row.listener), []).append(row)
    return sorted(
        {
            str(broker_id)
            for (broker_id, _), rows in places.items()
            for one, other in combinations(rows, 2)
            if (one.host, one.port) != (other.host, other.port)
            and max(one.first_time, other.first_time) < min(one.last_time, other.last_time)
        }
    )


def in_succession(found: Results) -> list[tuple[Any, Any]]:
    """Controllers of one epoch, one after the other: in one cluster no epoch has two."""
    return [
        (one, other)
        for one, other in combinations(found.controllers, 2)
        if one.controller_epoch == other.controller_epoch and one.last_time < other.first_time
    ]


def findings(found: Results) -> Iterator[Finding]:
    for one, other in in_succession(found)[:1]:
        evidence = (evidence_of(one)[-1], evidence_of(other)[0])
        yield Finding(
            "alarm",
            f"This is the traffic of more than one cluster, one after the other: controllers {one.controller_id} and "
            f"{other.controller_id} both have epoch {one.controller_epoch} "
            f"({packets([packet for _, packet in evidence])}). What follows mixes them up: analyse each by itself, "
            "with --each or --since.",
            evidence,
        )
    if mixed := _mixed(found):
        yield Finding(
            "alarm",
            f"This is the traffic of more than one cluster: {brokers(mixed)} {'was' if len(mixed) == 1 else 'were'} "
            "announced at several addresses at the same time. What follows mixes them up: analyse each by itself, with "
            "--ports.",
        )
    for row in found.zombies:
        requests = "a control request" if row.requests == 1 else f"{row.requests} control requests"
        yield Finding(
            "alarm",
            f"Controller {row.controller_id} (epoch {row.controller_epoch}) acted as a zombie: after epoch "
            f"{row.later_epoch} had begun it sent {requests} and was fenced by {brokers(row.brokers)} with "
            f"STALE_CONTROLLER_EPOCH ({packets(row.packets)}).",
            evidence_of(row),
        )
    explained = {place for row in found.zombies for place in evidence_of(row)}
    for row in found.fenced:
        if row.error == "STALE_CONTROLLER_EPOCH" and not explained.issuperset(evidence_of(row)):
            sender = "A controller that is not known"
            if row.controller_id is not None:
                sender = f"Controller {row.controller_id} (epoch {row.controller_epoch})"
            yield Finding(
                "alarm",
                f"{sender} was fenced: broker {row.broker} answered {count(row.requests, row.api)} with "
                f"STALE_CONTROLLER_EPOCH ({packets(row.packets)}). The later controller is not in the capture.",
                evidence_of(row),
            )
    if lacks_controls(found):
        lost = []
        if incomplete := incomplete_controls(found):
            lost.append(f"{incomplete:,} incomplete")
        if gaps := found.quality.control_gaps:
            lost.append(f"{count(gaps, 'gap')} in connections of controllers")
        yield Finding(
            "warning" if lost else "note",
            f"{MISSING.capitalize()} in the capture ({', '.join(lost) or 'other connections have gaps'}): leaders, "
            "ISRs and metadata are partly unknown, and zombies and outages may be missing here.",
        )
    elif found.controllers and not found.zombies and not any(r.error == "STALE_CONTROLLER_EPOCH" for r in found.fenced):
        yield Finding("note", "No zombie controller: none was fenced after a later epoch had begun.")
    if found.quality.kraft and not found.controllers:
        yield Finding("note", "There is no ZooKeeper-mode controller in this traffic: it is that of KRaft nodes.")


ANALYSIS = Analysis(table=TABLE, run=run, rank=1, findings=findings)
