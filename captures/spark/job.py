"""The job of `kce analyze`: captures in; findings, Parquet and a report out."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kce.captures.errors import CaptureError
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.exchanges.quality import Quality
from kce.captures.files.locations import check_location, expand, location_bytes
from kce.captures.spark import findings, reassembly, sail, small
from kce.captures.spark.analyses import ANALYSES, inputs
from kce.captures.spark.analyses.analysis import THRESHOLDS, Thresholds
from kce.captures.spark.compare import Comparison, compare
from kce.captures.spark.exports import check_report, write_report
from kce.captures.spark.incidents import incidents
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.session import is_submitted, lengthen, local_session
from kce.captures.spark.source import register
from kce.captures.spark.tables import check_folder, write_tables
from kce.captures.tables.rows import DECODED
from kce.captures.tables.tabulate import Evidence

#: Compressed bytes of capture per reassembly task.
_BYTES_PER_TASK = 64 * 1024 * 1024

#: Decoded requests in a report.
_SHOWN = 300

#: Small jobs mostly wait for the driver; a few at a time keep the cores busy.
_JOBS_AT_ONCE = 4

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Span(NamedTuple):
    """From a time, inclusive, to another, exclusive, in ns since 1970."""

    since_ns: int | None = None
    until_ns: int | None = None


ALWAYS = Span()


def analyze(
    paths: Iterable[str | os.PathLike[str]],
    *,
    report: str | os.PathLike[str] | None = None,
    form: str = "html",
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    only: Collection[str] = (),
    evidence: bool = False,
    payloads: bool = False,
    ports: Ports = NO_PORTS,
    span: Span = ALWAYS,
    master: str | None = None,
    event_log: str | os.PathLike[str] | None = None,
    thresholds: Thresholds = THRESHOLDS,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> findings.Findings:
    """Analyse what the control plane in ``paths`` did.

    Captures of few requests (``captures.spark.small``) are decoded by this process and analysed by Sail
    (``captures.spark.sail``), which runs the queries of Spark without Java. Spark analyses what is large, what is given
    a ``spark``, a ``master`` or an ``event_log``, and whatever Sail cannot. Its tasks open the captures; on this
    machine, those of up to 64 MB are decoded by this process while Spark starts, by the same code; an ``event_log``
    shows tasks that read, however small the captures are.

    ``report`` is a file to write in one of ``captures.spark.exports.FORMS``; ``out`` is a folder for Parquet, empty
    unless ``overwrite``. ``only`` names the analyses to run (of ``captures.spark.analyses.ANALYSES``; none means
    all). ``evidence`` adds the decoded requests that findings cite, ``payloads`` also their records and secrets.
    With ``ports`` (``captures.exchanges.ports``), only connections to these. Of ``span``, only requests that were sent
    in it and connections that were open; who listens where, and the quality, is of the whole captures. ``event_log``
    is a folder for Spark's event log. ``spark`` is a session to use; by default one is started if it is needed, on this
    machine or on the cluster ``master``, and stopped. ``thresholds`` decide which findings are warnings. ``progress``
    is called with each step. Raises CaptureError for a file that is no capture or has no Kafka traffic, and for a span
    without requests.
    """
    names = expand(paths)
    if not names:
        raise CaptureError("no capture given")
    for name in only:
        if name not in ANALYSES:
            raise CaptureError(f"no analysis {name!r}; there are {', '.join(ANALYSES)}")
    if report is not None:  # check the folder before an hour of work
        check_report(report, names)
    if out is not None:
        check_folder(out, overwrite=overwrite)
    kind: Evidence = "none" if not evidence and report is None else "payloads" if payloads else "redacted"
    with contextlib.ExitStack() as stack:
        for name in names:  # report a missing file before starting the JVM
            check_location(name)
            _check_name(name)
        job = _Job(names, only or ANALYSES, out, kind, ports, span, thresholds, progress, stack)
        for_sail = spark is None and master is None and sail.is_usable()
        most_bytes = small.MAX_BYTES if for_sail else _BYTES_PER_TASK
        decoding = None
        if job.size < most_bytes and event_log is None and _is_here(spark, master):
            pool = stack.enter_context(ThreadPoolExecutor(1))
            decoding = pool.submit(small.decode, names, evidence=kind, ports=ports)
        found = None
        if decoding is not None and for_sail:
            found = _on_sail(job, decoding)
        if found is None:
            found = _on_spark(job, decoding, spark, event_log=event_log, master=master)
    if report is not None:
        progress("writing the report")
        write_report(found, report, form)
    return found


def _check_name(name: str) -> None:
    """Raises CaptureError if the name of a file cannot be text of a row."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CaptureError(f"{name}: its name is not UTF-8: rename the file, or make a link to it") from None


def _reason(text: str) -> str:
    """One line of the text of an error: what failed and, of Java's stack trace, the first cause, as a full disk."""
    first, *others = text.strip().splitlines() or [""]
    top = next((line.removeprefix(": ") for line in others if line.startswith(": ")), None)
    if top is None:
        return first
    causes = [line.removeprefix("Caused by: ") for line in others if line.startswith("Caused by: ")]
    what = top.removeprefix("org.apache.spark.SparkException: ").rstrip(": ")
    return ": ".join(dict.fromkeys([what, *causes[-1:]]))


def analyze_both(
    before: str, after: str, *, only: Collection[str] = (), ports: Ports = NO_PORTS, span: Span = ALWAYS,
    master: str | None = None, thresholds: Thresholds = THRESHOLDS,
    progress: Callable[[str], None] = lambda step: None,
) -> Comparison:  # fmt: skip
    """Two captures, compared. Each may be a glob. Raises CaptureError."""
    found = []
    for _, each in analyze_each(
        [before, after], only=only, ports=ports, span=span, master=master, thresholds=thresholds, progress=progress
    ):
        if isinstance(each, CaptureError):
            raise each
        found.append(each)
    return compare(*found)


def analyze_each(
    captures: Sequence[str], *, master: str | None = None, progress: Callable[[str], None] = lambda step: None,
    **options: Any,
) -> Iterator[tuple[str, findings.Findings | CaptureError]]:  # fmt: skip
    """Each capture by itself. If any is not small, all are analysed in one session of Spark.

    Each may be a glob. ``options`` are those of ``analyze``. A capture that cannot be analysed gives its error, and the
    others go on. Raises CaptureError before anything is read if one does not exist, or Spark cannot be started.
    """
    files = [expand([each]) for each in captures]
    for name in (name for of_one in files for name in of_one):
        check_location(name)
    largest = max((sum(map(location_bytes, of_one)) for of_one in files), default=0)
    with contextlib.ExitStack() as stack:
        spark = None
        if largest >= small.MAX_BYTES or master is not None or not sail.is_usable():
            progress("starting Spark")
            spark = stack.enter_context(local_session(brief=largest < _BYTES_PER_TASK, master=master))
        for each in captures:
            found: findings.Findings | CaptureError
            try:
                found = analyze([each], spark=spark, progress=progress, **options)
            except CaptureError as e:
                found = e
            yield each, found


def _is_here(spark: SparkSession | None, master: str | None) -> bool:
    """Whether Spark's tasks are to run on this machine."""
    if spark is not None:
        master = str(spark.sparkContext.master)
    return not is_submitted() if master is None else master.startswith("local")


def _on_sail(job: _Job, decoding: Future[pa.Table | None]) -> findings.Findings | None:
    """None if Spark has to do it."""
    try:
        with sail.sail_session() as session, sail.connect_mode():
            job.progress("reading and reassembling")
            table = decoding.result()
            return None if table is None else job.run(_Sail(session, table))
    except sail.SailError as e:
        logger.warning("Sail failed, Spark goes on: %s", e)
        return None


def _on_spark(
    job: _Job, decoding: Future[pa.Table | None] | None, given: SparkSession | None, *,
    event_log: str | os.PathLike[str] | None, master: str | None,
) -> findings.Findings:  # fmt: skip
    """Raises CaptureError."""
    is_small, spark = job.is_small, given
    if decoding is not None and decoding.done():
        is_small = is_small and _few(decoding) is not None
    if spark is None:
        job.progress("starting Spark")
        spark = job.stack.enter_context(local_session(event_log, brief=is_small, master=master))
    job.progress("reading and reassembling")
    table = None if decoding is None else _few(decoding)
    if is_small and decoding is not None and table is None:
        is_small = False
        if given is None:
            lengthen(spark)
    try:
        return job.run(_Spark(job, spark, table, is_small=is_small))
    except (PySparkException, Py4JError, ConnectionError) as e:  # ConnectionError: the JVM is gone
        raise CaptureError(f"Spark failed: {_reason(str(e)) or type(e).__name__}") from e


def _few(decoding: Future[pa.Table | None]) -> pa.Table | None:
    """The rows, if one task of Spark can analyse them in reasonable time."""
    table = decoding.result()
    return table if table is not None and small.is_for_one_task(table) else None


class _Engine(Protocol):
    """What runs the queries, on rows that are decoded there."""

    has_tasks: bool  #: whether tasks of it write Parquet
    is_long: bool  #: whether the history of a connection may be too long for one task
    session: SparkSession
    decoded: DataFrame
    table: pa.Table | None  #: the same rows, if this process has decoded them

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed once."""


class _Sail:
    has_tasks = False
    is_long = False

    def __init__(self, session: SparkSession, table: pa.Table) -> None:
        self.session, self.table = session, table
        self.decoded = sail.frame_of(session, table)

    def keep(self, frame: DataFrame) -> DataFrame:
        return sail.kept(frame)


class _Spark:
    has_tasks = True

    def __init__(self, job: _Job, session: SparkSession, table: pa.Table | None, *, is_small: bool) -> None:
        self.session, self.table = session, table
        self._is_small, self._stack = is_small, job.stack
        self.is_long = not is_small
        if table is not None:
            self.decoded = session.createDataFrame(table, spark_schema(DECODED))
            return
        register(session)
        tasks = max(session.sparkContext.defaultParallelism, job.size // _BYTES_PER_TASK)
        self.decoded = reassembly.decode(
            session, job.names, tasks, evidence=job.evidence, ports=job.ports, keep=self._persisted,
            folder=str(Path.cwd()),
        )  # fmt: skip

    def keep(self, frame: DataFrame) -> DataFrame:
        if self._is_small:
            # for little data, shuffles and planning cost most: one partition makes every analysis one stage, and a
            # checkpoint cuts the plan
            return frame.coalesce(1).localCheckpoint()
        return self._persisted(frame)

    def _persisted(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._stack.callback(kept.unpersist)
        return kept


@dataclass(frozen=True)
class _Job:
    """What to find out. What several analyses share is computed once."""

    names: Sequence[str]
    only: Collection[str]
    out: str | os.PathLike[str] | None
    evidence: Evidence
    ports: Ports
    span: Span
    thresholds: Thresholds
    progress: Callable[[str], None]
    stack: contextlib.ExitStack

    @functools.cached_property
    def size(self) -> int:
        """Bytes of the captures."""
        return sum(map(location_bytes, self.names))

    @property
    def is_small(self) -> bool:
        return self.size < _BYTES_PER_TASK

    def run(self, engine: _Engine) -> findings.Findings:
        quality = self._quality(engine)
        self.progress("analysing")
        endpoints = engine.keep(reassembly.endpoints(engine.decoded))
        decoded = self._in_span(engine.decoded)
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            exchanges, live_brokers, connections = pool.map(
                engine.keep,
                (
                    reassembly.at_listeners(reassembly.exchanges(decoded), endpoints, self.ports),
                    reassembly.live_brokers(decoded),
                    reassembly.connections(decoded),
                ),
            )
        # to make these rows again takes less time than to keep a million
        partitions = reassembly.at_listeners(reassembly.partitions(decoded), endpoints, self.ports)
        frames = inputs.frames(exchanges, partitions, live_brokers, connections, engine.keep, is_long=engine.is_long)
        wanted = {name: analysis for name, analysis in ANALYSES.items() if name in self.only}
        queries = {name: analysis.run for name, analysis in wanted.items()}
        queries["endpoints"] = lambda _: endpoints.orderBy("broker_id", "listener", "first_time")
        queries |= {extra.table.name: extra.run for a in wanted.values() for extra in a.auxiliary}
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            tables = pool.map(lambda query: query(frames).toArrow(), queries.values())
            collected = dict(zip(queries, tables, strict=True))
        if self.out is not None:
            self.progress("writing Parquet")
            large = {"exchanges": frames.exchanges, "partitions": frames.partitions, "connections": connections}
            if engine.has_tasks:
                write_tables(self.out, large, collected)
            else:
                write_tables(self.out, {}, collected | {name: frame.toArrow() for name, frame in large.items()})
        rows = {name: _rows(findings.ROWS[name], table) for name, table in collected.items()}
        found = findings.Findings(
            files=tuple(self.names), quality=quality, tables=rows, ran=frozenset(queries), thresholds=self.thresholds
        )
        if self.evidence == "none":
            return found
        return replace(found, exchanges=self._exchanges(engine.session, found, frames.exchanges))

    def _exchanges(
        self, session: SparkSession, found: findings.Findings, exchanges: DataFrame
    ) -> tuple[findings.Exchange, ...]:
        """The requests that incidents and findings cite; of many those of the most serious."""
        places = [place for incident in incidents(found) for place in incident.places]
        places += (place for finding in found.findings() for place in finding.evidence[: findings.MAX_CITED])
        if not places:
            return ()
        wanted = session.createDataFrame(list(dict.fromkeys(places))[:_SHOWN], "file string, packet bigint")
        columns = [field.name for field in fields(findings.Exchange)]
        shown = (
            exchanges.join(f.broadcast(wanted), ["file", "packet"])
            .withColumn("bodies", f.coalesce("evidence", f.lit("")))
            .orderBy("file", "packet", "correlation_id")
            .select(*columns)
        )
        return _rows(findings.Exchange, shown.toArrow())

    def _in_span(self, everything: DataFrame) -> DataFrame:
        """Raises CaptureError for a span without requests."""
        since_ns, until_ns = self.span
        decoded = everything
        if since_ns is not None:
            since = f.timestamp_micros(f.lit(since_ns // 1000))
            decoded = decoded.where(f.coalesce("time", "tcp.last_time") >= since)
        if until_ns is not None:
            until = f.timestamp_micros(f.lit(until_ns // 1000))
            decoded = decoded.where(f.coalesce("time", "tcp.first_time") < until)
        if self.span != ALWAYS and decoded.where("time is not null").isEmpty():
            ((first, last),) = everything.select(*(g("time").cast("string") for g in (f.min, f.max))).collect()
            raise CaptureError(f"no request in that time; there are requests from {first} to {last} UTC")
        return decoded

    def _quality(self, engine: _Engine) -> Quality:
        """The counts; without a table, the first action of the job."""
        table = engine.table
        if table is None:
            table = engine.decoded.where(f.col("quality").isNotNull()).select("quality").toArrow()
        quality = Quality()
        for counted in table.column("quality").drop_null().to_pylist():
            quality.add(Quality.from_json(counted))
        if quality.unreadable and not quality.packets:
            raise CaptureError("; ".join(sorted(quality.unreadable)))
        if not quality.requests:
            raise CaptureError(f"{', '.join(self.names)}: {'; '.join(quality.lines())}")
        return quality


def _rows(cls: type[T], table: pa.Table) -> tuple[T, ...]:
    """The rows of a small table. Arrow keeps times in UTC."""
    return tuple(
        cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
        for row in table.to_pylist()
    )
