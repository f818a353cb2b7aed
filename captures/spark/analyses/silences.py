"""Signs of life of brokers, and times without any while requests waited: a pause, a cut network, a long collection.

Signs of life of a broker: it answered a request, it sent one in its own name, or a connection to it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column as SqlColumn
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Finding, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table, is_replica, milliseconds
from kce.captures.spark.analyses.running import LAST, with_running
from kce.captures.spark.analyses.words import MOST, clock, count, duration, evidence_of, lacks_packets, packets, some
from kce.captures.tables.rows import TIME, Column, Table, evidence_columns

#: A sign of life that may be the last one.
CLOSED: Final = "closed a connection"

#: A shorter time without a sign of life is none.
_SHORTEST_MS = 500

#: A request that was sent earlier before a silence waits for something else, and a broker that closed connections less
#: than this before it went down.
_IN_FLIGHT_MS = 1000

#: Why a silence may be none.
UNHEARD: Final = "Its signs of life may be missing in the capture."

#: Of the requests that wait so many are named.
_NAMED = 3

TABLE = Table(
    "silences",
    "A broker without a sign of life for half a second or longer, while requests waited for it that it usually answers "
    "in a third of that time. Consumers' fetches, Produce, which waits for replicas, JoinGroup and SyncGroup do "
    "not count.",
    (
        Column("broker_id", pa.int32(), ""),
        Column("sign", pa.string(), "the last sign of life before it"),
        Column("begin", TIME, "when that was"),
        Column("end", TIME, "the next sign of life; null if there was none until the end of the capture"),
        Column("silent_ms", pa.float64(), "how long it was silent, or until the end of the capture"),
        Column("waiting", pa.int64(), "requests that waited"),
        Column("answered", pa.int64(), "how many of them it answered later: of the others the capture may lack that"),
        Column("clients", pa.list_(pa.string()), "whose they were"),
        *evidence_columns("the sign before it, the first requests that waited, the sign after it"),
    ),
)


def signs(exchanges: DataFrame, connections: DataFrame) -> DataFrame:
    """(broker_id, time, packet, file, kind) of everything that a broker did."""
    answers = exchanges.where("response_time is not null and broker_id is not null").select(
        "broker_id", f.col("response_time").alias("time"), f.col("response_packet").alias("packet"),
        f.col("response_file").alias("file"), f.concat(f.lit("answered "), "api").alias("kind"),
    )  # fmt: skip
    fetcher = f.regexp_extract("client_id", r"^broker-(\d+)-fetcher-\d+$", 1)
    sender = f.coalesce(
        "sender_broker_id", f.when(f.col("is_control"), f.col("controller_id")),
        f.when(fetcher != "", fetcher.cast("int")),
    )  # fmt: skip
    requests = exchanges.withColumn("sender", sender).where("sender is not null").select(
        f.col("sender").alias("broker_id"), "time", "packet", "file", f.concat(f.lit("sent "), "api").alias("kind")
    )  # fmt: skip
    # only addresses that received requests have a known broker
    listeners = exchanges.where("broker_id is not null").select("server", "server_port", "broker_id").distinct()
    ended = connections.where("end is not null")
    at_listener = (f.col("end_address") == f.col("server")) & (f.col("end_port") == f.col("server_port"))
    ends = ended.join(f.broadcast(listeners), at_listener).select(
        "broker_id", f.col("end_time").alias("time"), f.col("end_packet").alias("packet"),
        f.col("end_file").alias("file"), f.concat(f.lit(f"{CLOSED} with "), "end").alias("kind"),
    )  # fmt: skip
    return answers.unionByName(requests).unionByName(ends)


def silences(exchanges: DataFrame, shown: DataFrame, *, is_long: bool) -> DataFrame:
    """The table; ``shown`` are ``signs``. A broker whose connections were closed was down: that is no silence."""
    capture_end = exchanges.agg(f.max(f.coalesce("response_time", "time")).alias("time"))
    lasts = shown.select("broker_id").distinct().crossJoin(capture_end)
    gaps = shown.unionByName(lasts, allowMissingColumns=True)
    closed = f.when(f.col("kind").startswith(CLOSED), f.col("time"))
    for value, name in ((f.struct("time", "packet", "file", "kind"), "last"), (closed, "closed")):
        gaps = with_running(
            gaps, LAST, value, name, keys=["broker_id"], order=["time", "packet", "kind"], before=True, is_long=is_long
        )
    was_closing = f.coalesce(milliseconds("closed", "last.time") <= _IN_FLIGHT_MS, f.lit(False))
    gaps = (
        gaps.withColumn("silent_ms", milliseconds("last.time", "time"))
        .where((f.col("silent_ms") >= _SHORTEST_MS) & ~was_closing)
        .select("broker_id", "last", "silent_ms", f.struct("time", "packet", "file").alias("next"))
    )
    requests = exchanges.where(f.col("answered") & f.col("broker_id").isNotNull() & _is_prompt())
    usual = requests.groupBy(f.col("api").alias("same_api")).agg(
        f.percentile("latency_ms", f.lit(0.9)).alias("usual_ms")
    )
    of_others = f.col("sender_broker_id").isNull() | (f.col("sender_broker_id") != f.col("broker_id"))
    asked = (
        requests.where(of_others)
        .join(f.broadcast(usual), f.col("api") == f.col("same_api"))
        .select(
            f.col("broker_id").alias("asked"),
            _who().alias("who"),
            "time",
            "packet",
            "file",
            "response_time",
            "usual_ms",
            "connection",
        )
    )
    # a broker answers in order: the capture lost the response to what was sent before an answered request
    last_answered = (
        exchanges.where("response_time is not null")
        .groupBy(f.col("connection").alias("answering"))
        .agg(f.max("time").alias("last_answered"))
    )
    asked = asked.join(last_answered, f.col("connection") == f.col("answering"), "left").where(
        "response_time is not null or last_answered is null or time > last_answered"
    )
    waited = asked.join(
        f.broadcast(gaps),
        (f.col("asked") == f.col("broker_id"))
        & (f.col("time") < f.col("next.time"))
        & (milliseconds("time", "last.time") <= _IN_FLIGHT_MS)
        # a response may be missing in the capture only
        & f.coalesce(
            f.col("response_time") >= f.col("next.time"),
            (f.col("time") > f.col("last.time")) | (f.col("silent_ms") >= 4 * _SHORTEST_MS),
        )
        & (milliseconds("time", "next.time") >= f.greatest(f.lit(_SHORTEST_MS), 3 * f.coalesce("usual_ms", f.lit(0)))),
    )
    first = Window.partitionBy("broker_id", "last").orderBy("time", "packet")
    named = f.when(f.col("nth") <= _NAMED, f.struct("nth", "packet", "file"))
    found = (
        waited.withColumn("nth", f.row_number().over(first))
        .groupBy("broker_id", "last", "next", "silent_ms")
        .agg(
            f.count("*").alias("waiting"),
            f.count_if(f.col("response_time").isNotNull()).alias("answered"),
            f.sort_array(f.collect_set("who")).alias("clients"),
            f.array_sort(f.collect_list(named)).alias("named"),
        )
    )
    waiting = f.transform("named", lambda each: f.struct(each.getField("packet").alias("packet"),
                                                         each.getField("file").alias("file")))  # fmt: skip
    places = f.concat(f.array(_place("last")), waiting, f.array(_place("next")))
    places = f.filter(places, lambda each: each.getField("packet").isNotNull())
    return as_table(
        TABLE,
        found.withColumns(
            {
                "sign": f.col("last.kind"),
                "begin": f.col("last.time"),
                "end": f.when(f.col("next.packet").isNotNull(), f.col("next.time")),
                "packets": f.transform(places, lambda each: each.getField("packet")),
                "files": f.transform(places, lambda each: each.getField("file")),
            }
        ),
    )


def _is_prompt() -> SqlColumn:
    """Whether a request does not wait for others by design, or, as replicas' fetches, always as long."""
    waits = f.col("api").isin("Produce", "JoinGroup", "SyncGroup") | ((f.col("api") == "Fetch") & ~is_replica())
    return ~waits


def _who() -> SqlColumn:
    """Controllers and brokers send requests under their broker id."""
    return (
        f.when(f.col("is_control"), f.concat(f.lit("controller "), "controller_id"))
        .when(f.col("sender_broker_id").isNotNull(), f.concat(f.lit("broker "), "sender_broker_id"))
        .when(is_replica(), f.lit("replicas"))
        .otherwise(f.coalesce("client_id", "client"))
    )


def _place(name: str) -> SqlColumn:
    return f.struct(f.col(f"{name}.packet").alias("packet"), f.col(f"{name}.file").alias("file"))


def run(of: Frames) -> DataFrame:
    return of.silences.orderBy("begin", "broker_id")


def untold(found: Results) -> list[Any]:
    """The silences that are not told as outages."""
    least = found.thresholds.outage_ms
    told = {
        (row.from_leader, row.sign_time) for row in found.outages
        if row.to_leader is None or (row.real_ms is not None and row.real_ms >= least)
    }  # fmt: skip
    return [row for row in found.silences if row.silent_ms >= least and (row.broker_id, row.begin) not in told]


def is_guess(rows: list[Any], found: Results) -> bool:
    """Whether packets are missing, and no request shows by its late answer that the broker was silent."""
    return lacks_packets(found) and not any(row.answered for row in rows)


def findings(found: Results) -> Iterator[Finding]:
    brokers: dict[int, list[Any]] = {}
    for row in untold(found):
        brokers.setdefault(row.broker_id, []).append(row)
    for broker_id, rows in brokers.items():
        worst = max(rows, key=lambda row: row.silent_ms)
        text = f"Broker {broker_id} was silent for {duration(worst.silent_ms)}, {_span(worst)}"
        if len(rows) > 1:
            text = f"Broker {broker_id} was silent {len(rows)} times, for up to {duration(worst.silent_ms)}, from "
            text += some([clock(row.begin) for row in rows], MOST)
        clients = sorted({client for row in rows for client in row.clients})
        text += f": {count(sum(row.waiting for row in rows), 'request')} of {some(clients, MOST)} waited"
        evidence = tuple(sorted({place for row in rows for place in evidence_of(row)}))
        text += f" ({packets([packet for _, packet in evidence])})."
        if is_guess(rows, found):
            yield Finding("note", f"{text} {UNHEARD}", evidence)
        else:
            yield Finding("warning", text, evidence)


def _span(row: Any) -> str:
    return f"from {clock(row.begin)} to " + ("the end of the capture" if row.end is None else clock(row.end))


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=6,
    findings=findings,
    section=Section(
        position=49,
        heading="Silent brokers",
        hint="Half a second or longer without a sign of life, while requests waited that are usually answered sooner.",
        columns=(
            Shown("broker", "number", lambda r: r.broker_id),
            Shown("last sign of life", "text", lambda r: r.sign),
            Shown("at", "time", lambda r: r.begin),
            Shown("next", "time", lambda r: r.end),
            Shown("silent", "ms", lambda r: r.silent_ms),
            Shown("waiting", "count", lambda r: r.waiting),
            Shown("clients", "text", lambda r: some(r.clients, MOST)),
        ),
    ),
)
