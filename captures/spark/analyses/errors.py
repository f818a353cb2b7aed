"""Error codes of responses by API, broker, client and partition: what brokers and clients suffered."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import (
    BROKER_LOOKS,
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
    Severity,
    Shown,
)
from kce.captures.spark.analyses.common import FETCHER, as_table, evidence, numbered, span, topic_names
from kce.captures.spark.analyses.words import MOST, clock, count, evidence_of, evidence_of_all, listed, packets, some
from kce.captures.tables.rows import BROKER_TEXT, FILE, SPAN, Column, Table, evidence_columns
from kce.wire import ErrorCode, error_name

TABLE = Table(
    "errors",
    "One error code of one API, at the top level or of one partition, from one broker to one client.",
    (
        Column("api", pa.string(), ""),
        Column("error", pa.string(), ""),
        Column("error_code", pa.int16(), ""),
        BROKER_TEXT,
        Column("client_id", pa.string(), ""),
        Column("client", pa.string(), "IP address"),
        Column("topic", pa.string(), "null for an error at the top level; the topic id if its name is unknown"),
        Column("partition", pa.int32(), ""),
        Column("is_control", pa.bool_(), "whether the request is one of a controller"),
        Column("count", pa.int64(), "how often"),
        Column("max_latency_ms", pa.float64(), "longest latency of these requests"),
        *SPAN,
        *evidence_columns("the requests' packets, in order"),
    ),
)

BURSTS = Table(
    "error_bursts",
    "Errors of one API and partition without a pause between them: for the chart.",
    (
        Column("api", pa.string(), ""),
        Column("topic", pa.string(), ""),
        Column("partition", pa.int32(), ""),
        Column("error", pa.string(), ""),
        Column("count", pa.int64(), ""),
        *SPAN,
        FILE,
        Column("packet", pa.int64(), "the first request's"),
    ),
)

#: Errors with a longer pause between them are two bursts; and how many bursts are drawn.
_PAUSE_MS, _MOST_BURSTS = 200, 2000

#: Errors that are part of a protocol, not of an incident.
_ORDINARY = (
    ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)  # fmt: skip

#: Errors that other analyses explain: fenced requests, and leader epochs that a broker already has.
_EXPLAINED = (ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH)


#: Clients look for topics and coordinators that are being created.
_LOOKUPS = frozenset({"Metadata", "FindCoordinator"})

#: A lookup that still fails after so many tries and seconds looks for what nobody creates.
_TRIES, _PATIENCE = 5, datetime.timedelta(seconds=5)

#: Errors of coordinators that are not ready yet, after which clients try again at once.
_NOT_YET = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS"})

#: Requests of brokers to the controller.
_OF_BROKERS = frozenset({"AlterPartition", "ControlledShutdown", "AllocateProducerIds", "UpdateFeatures"})

_FETCHER = re.compile(FETCHER)


def run(of: Frames) -> DataFrame:
    keys = ("api", "error_code", "broker", "client_id", "client", "topic", "partition", "is_control")
    counted = (
        numbered(_failed(of), *keys)
        .groupBy(*keys)
        .agg(f.count("*").alias("count"), f.max("latency_ms").alias("max_latency_ms"), *span(), *evidence())
    )
    in_order = (f.desc("count"), "first_time", "api", "topic", "partition", "error", "broker", "client_id", "client")
    return as_table(TABLE, _with_names(counted)).orderBy(*in_order)


def bursts(of: Frames) -> DataFrame:
    """Errors without a pause between them, the longest bursts of a large capture."""
    keys = ("api", "topic", "partition", "error_code")
    in_order = Window.partitionBy(*keys).orderBy("time", "packet")
    pause = f.unix_micros("time") - f.unix_micros(f.lag("time").over(in_order)) > _PAUSE_MS * 1000
    counted = (
        _failed(of)
        .where("time is not null")
        .withColumn("apart", f.coalesce(pause, f.lit(False)).cast("int"))
        .withColumn("number", f.sum("apart").over(in_order))
        .groupBy(*keys, "number")
        .agg(f.count("*").alias("count"), f.min(f.struct("time", "packet", "file")).alias("first"), span()[1])
        .orderBy(f.desc("count"), "first", *keys)
        .limit(_MOST_BURSTS)
        .withColumn("first_time", f.col("first.time"))
        .select("*", "first.packet", "first.file")
    )
    return as_table(BURSTS, _with_names(counted)).orderBy("first_time", "packet", *keys)


def _failed(of: Frames) -> DataFrame:
    """Each error of each response, at its time."""
    return (
        of.exchanges.where("errors is not null")
        .select(
            "api", "broker", "client_id", "client", "is_control", "latency_ms", f.col("response_time").alias("time"),
            "packet", "file",
            f.explode("errors").alias("of"),
        )
        .select("*", "of.topic", "of.partition", "of.error_code")
        .join(topic_names(of.partitions), f.col("topic") == f.col("topic_id"), "left")
        .withColumn("topic", f.coalesce("topic_name", "topic"))
    )  # fmt: skip


def _with_names(counted: DataFrame) -> DataFrame:
    names = ", ".join(f"{int(code)}, '{error_name(code)}'" for code in ErrorCode)
    return counted.withColumn("error", f.expr(f"coalesce(map({names})[cast(error_code as int)], 'unknown')"))


def _is_shown(row: Any) -> bool:
    """What ``stale_partitions`` tells is no failure, and would fill the chart and the table."""
    return row.topic is None or (row.api, row.error) != ("LeaderAndIsr", "STALE_CONTROLLER_EPOCH")


def chart(found: Results) -> Chart | None:
    """Errors over time: a lane for each API and partition, the most errors first; a colour for each error."""
    rows = list(filter(_is_shown, found.error_bursts))
    lanes: dict[str, list[Any]] = {}
    errors: Counter[str] = Counter()
    for row in rows:
        lanes.setdefault(_lane(row), []).append(row)
        errors[row.error] += row.count
    if not lanes:
        return None
    colours = dict(zip((error for error, _ in errors.most_common()), BROKER_LOOKS[:-1], strict=False))
    drawn = sorted(lanes.items(), key=lambda lane: (-sum(row.count for row in lane[1]), lane[0]))[:MOST_LANES]
    legend = [(look, error) for error, look in colours.items()]
    if len(errors) > len(colours):
        legend.append((BROKER_LOOKS[-1], "other errors"))
    return Chart(
        tuple(Lane(name, tuple(_mark(row, colours.get(row.error, BROKER_LOOKS[-1])) for row in of_it))
              for name, of_it in drawn),
        tuple(legend),
    )  # fmt: skip


def _lane(row: Any) -> str:
    return row.api if row.topic is None else f"{row.api} {_partition(row)}"


def _partition(row: Any) -> str:
    if row.topic is None:
        return "–"
    return str(row.topic) if row.partition is None else f"{row.topic}-{row.partition}"


def _mark(row: Any, look: Look) -> Mark:
    title = f"{_lane(row)}: {row.count:,} x {row.error} from {clock(row.first_time)}"
    if row.last_time == row.first_time:
        return Mark(look, row.first_time, None, title, (row.file, row.packet))
    return Mark(look, row.first_time, row.last_time, f"{title} to {clock(row.last_time)}", (row.file, row.packet))


def findings(found: Results) -> Iterator[Finding]:
    told = [row for row in found.errors if row.error_code not in (*_ORDINARY, *_EXPLAINED)]
    vain = _vain(told)
    groups: dict[tuple[str, str, Severity], list[Any]] = {}
    for row in told:
        groups.setdefault((row.api, row.error, _severity(row, vain)), []).append(row)
    by_damage = sorted(groups.items(), key=lambda group: -sum(row.count for row in group[1]))
    for (api, error, severity), rows in by_damage[: 2 * MOST]:
        yield _finding(api, error, severity, rows)
    if len(by_damage) > 2 * MOST:
        others = evidence_of_all(row for _, rows in by_damage[2 * MOST :] for row in rows)
        yield Finding("note", f"{count(len(by_damage) - 2 * MOST, 'other error')}, see the table of errors.", others)


def _vain(rows: list[Any]) -> set[tuple[Any, ...]]:
    """What clients look up again and again, of whatever broker they ask."""
    of_one: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        if row.api in _LOOKUPS:
            of_one.setdefault(_lookup(row), []).append(row)
    return {
        lookup for lookup, each in of_one.items()
        if sum(row.count for row in each) >= _TRIES
        and max(row.last_time for row in each) - min(row.first_time for row in each) >= _PATIENCE
    }  # fmt: skip


def _lookup(row: Any) -> tuple[Any, ...]:
    return row.api, row.client_id, row.client, row.topic, row.error


def _severity(row: Any, vain: set[tuple[Any, ...]]) -> Severity:
    if _is_replica(row) or row.error in _NOT_YET or (row.api in _LOOKUPS and _lookup(row) not in vain):
        return "note"
    return "warning"


def _is_replica(row: Any) -> bool:
    return _FETCHER.match(row.client_id or "") is not None


def _finding(api: str, error: str, severity: Severity, rows: list[Any]) -> Finding:
    first, last = min(row.first_time for row in rows), max(row.last_time for row in rows)
    who = listed(sorted({_who(row) for row in rows})[:MOST])
    partitions = sorted({_partition(row) for row in rows if row.topic is not None})
    text = f"{api}: {sum(row.count for row in rows):,} x {error} from {_brokers(rows)} to {who}"
    if partitions:
        text += f", for {some(partitions, MOST)}"
    text += f", at {clock(first)}" if first == last else f", from {clock(first)} to {clock(last)}"
    slowest = max((row.max_latency_ms or 0.0) for row in rows)
    if slowest >= 1000:
        text += f"; answered after up to {slowest / 1000:.1f} s"
    places = sorted({place for row in rows for place in evidence_of(row)})
    return Finding(
        severity,
        f"{text} ({packets([packet for _, packet in places])}).",
        tuple(places),
    )


def _who(row: Any) -> str:
    """Brokers and controllers send requests under their broker id."""
    name = row.client_id or row.client
    if _is_replica(row):
        return "replicas"
    if row.is_control or row.api in _OF_BROKERS:
        return f"{'controller' if row.is_control else 'broker'} {name}"
    return repr(name)


def _brokers(rows: list[Any]) -> str:
    ids = sorted({row.broker for row in rows})
    return f"broker{'s' * (len(ids) > 1)} {listed(ids)}"


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    rank=13,
    findings=findings,
    section=Section(
        position=47,
        heading="Errors",
        hint="Error codes in responses, at the top level and of partitions, the most frequent first. A bar of the "
        "chart is a burst of one error, without a pause of 0.2 s. STALE_CONTROLLER_EPOCH for single partitions has a "
        "section of its own.",
        wanted=_is_shown,
        chart=chart,
        columns=(
            Shown("API", "text", lambda r: r.api),
            Shown("error", "text", lambda r: r.error),
            Shown("broker", "text", lambda r: r.broker),
            Shown("client", "text", lambda r: r.client_id or r.client),
            Shown("partition", "text", _partition),
            Shown("count", "count", lambda r: r.count),
            Shown("first", "time", lambda r: r.first_time),
            Shown("last", "time", lambda r: r.last_time),
        ),
    ),
    auxiliary=(Auxiliary(BURSTS, bursts),),
)
