"""The job of `kce analyze`: captures in; findings, Parquet and a report out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kce.captures.errors import CaptureError
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.exchanges.quality import Quality
from kce.captures.files.locations import check_location, expand, location_bytes
from kce.captures.spark import findings, reassembly, small
from kce.captures.spark.analyses import ANALYSES, inputs
from kce.captures.spark.analyses.analysis import THRESHOLDS, Thresholds
from kce.captures.spark.compare import Comparison, compare
from kce.captures.spark.exports import check_report, write_report
from kce.captures.spark.incidents import incidents
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.session import is_submitted, keep_java_objects, local_session
from kce.captures.spark.source import register
from kce.captures.spark.tables import check_folder, write_tables
from kce.captures.tables.rows import DECODED
from kce.captures.tables.tabulate import Evidence

#: Compressed bytes of capture per reassembly task.
_BYTES_PER_TASK = 64 * 1024 * 1024

#: Decoded requests in a report: per finding, and in all.
_SHOWN_PER_FINDING = 20
_SHOWN = 300

#: Small jobs mostly wait for the driver; a few at a time keep the cores busy.
_JOBS_AT_ONCE = 4

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

    Spark's tasks open the captures. On this machine, small ones are decoded by this process while Spark starts, by the
    same code; an ``event_log`` shows tasks that read, however small the captures are.

    ``report`` is a file to write in one of ``captures.spark.exports.FORMS``; ``out`` is a folder for Parquet, empty
    unless ``overwrite``. ``only`` names the analyses to run (of ``captures.spark.analyses.ANALYSES``; none means
    all). ``evidence`` adds the decoded requests that findings cite, ``payloads`` also their records and secrets.
    With ``ports`` (``captures.exchanges.ports``), only connections to these. Of ``span``, only requests that were sent
    in it and connections that were open; who listens where, and the quality, is of the whole captures. ``event_log``
    is a folder for Spark's event log. ``spark`` is a session to use; by default one is started, on this machine or on
    the cluster ``master``, and stopped. ``thresholds`` decide which findings are warnings. ``progress`` is called with
    each step. Raises CaptureError for a file that is no capture or has no Kafka traffic, and for a span without
    requests.
    """
    names = expand(paths)
    if not names:
        raise CaptureError("no capture given")
    for name in only:
        if name not in ANALYSES:
            raise CaptureError(f"no analysis {name!r}; there are {', '.join(ANALYSES)}")
    if report is not None:  # check the folder before an hour of work
        check_report(report)
    if out is not None:
        check_folder(out, overwrite=overwrite)
    kind: Evidence = "none" if not evidence and report is None else "payloads" if payloads else "redacted"
    with contextlib.ExitStack() as stack:
        for name in names:  # report a missing file before starting the JVM
            check_location(name)
        brief = sum(map(location_bytes, names)) < _BYTES_PER_TASK
        decoding = None
        if brief and event_log is None and _is_here(spark, master):
            pool = stack.enter_context(ThreadPoolExecutor(1))
            decoding = pool.submit(small.decode, names, evidence=kind, ports=ports)
        if spark is None:
            progress("starting Spark")
            spark = stack.enter_context(local_session(event_log, brief=brief, master=master))
            if brief:
                keep_java_objects(spark)
        progress("reading and reassembling")
        decoded = None if decoding is None else decoding.result()
        try:
            job = _Job(spark, names, progress, stack, kind, ports, span, thresholds, decoded)
            found = job.run(only or ANALYSES, out)
        except (PySparkException, Py4JError, ConnectionError) as e:  # ConnectionError: the JVM is gone
            first, *_ = str(e).strip().splitlines() or [type(e).__name__]
            raise CaptureError(f"Spark failed: {first}") from e
    if report is not None:
        progress("writing the report")
        write_report(found, report, form)
    return found


def analyze_both(
    before: str, after: str, *, only: Collection[str] = (), ports: Ports = NO_PORTS, span: Span = ALWAYS,
    master: str | None = None, thresholds: Thresholds = THRESHOLDS,
    progress: Callable[[str], None] = lambda step: None,
) -> Comparison:  # fmt: skip
    """Two captures in one session, compared. Each may be a glob. Raises CaptureError."""
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
    """Each capture by itself, in one session: only the first one waits for Spark to start.

    Each may be a glob. ``options`` are those of ``analyze``. A capture that cannot be analysed gives its error, and the
    others go on. Raises CaptureError before anything is read if one does not exist, or Spark cannot be started.
    """
    files = [expand([each]) for each in captures]
    for name in (name for of_one in files for name in of_one):
        check_location(name)
    brief = max((sum(map(location_bytes, of_one)) for of_one in files), default=0) < _BYTES_PER_TASK
    progress("starting Spark")
    with local_session(brief=brief, master=master) as spark:
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


class _Job:
    """One run. It caches the DataFrames that several analyses share."""

    def __init__(
        self,
        spark: SparkSession,
        names: Sequence[str],
        progress: Callable[[str], None],
        stack: contextlib.ExitStack,
        evidence: Evidence,
        ports: Ports,
        span: Span,
        thresholds: Thresholds,
        decoded: pa.Table | None,
    ) -> None:
        self._names = names
        self._thresholds = thresholds
        self._ports = ports
        self._span = span
        self._progress = progress
        self._evidence = evidence
        self._stack = stack
        self._spark = spark
        size = sum(map(location_bytes, names))
        self._small = size < _BYTES_PER_TASK
        self._table = decoded
        if decoded is not None:
            self._decoded = spark.createDataFrame(decoded, spark_schema(DECODED))
            return
        register(spark)
        tasks = max(spark.sparkContext.defaultParallelism, size // _BYTES_PER_TASK)
        self._decoded = reassembly.decode(
            spark, names, tasks, evidence=evidence, ports=ports, keep=self._persisted, folder=str(Path.cwd())
        )

    def run(self, only: Collection[str], out: str | os.PathLike[str] | None) -> findings.Findings:
        quality = self._quality()
        self._progress("analysing")
        endpoints = self._keep(reassembly.endpoints(self._decoded))
        decoded = self._in_span()
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            exchanges, partitions, live_brokers, connections = pool.map(
                self._keep,
                (
                    reassembly.at_listeners(reassembly.exchanges(decoded), endpoints, self._ports),
                    reassembly.at_listeners(reassembly.partitions(decoded), endpoints, self._ports),
                    reassembly.live_brokers(decoded),
                    reassembly.connections(decoded),
                ),
            )
        frames = inputs.frames(exchanges, partitions, live_brokers, connections, self._keep, is_long=not self._small)
        wanted = {name: analysis for name, analysis in ANALYSES.items() if name in only}
        queries = {name: analysis.run for name, analysis in wanted.items()}
        queries["endpoints"] = lambda _: endpoints.orderBy("broker_id", "listener", "first_time")
        queries |= {extra.table.name: extra.run for a in wanted.values() for extra in a.auxiliary}
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            tables = pool.map(lambda query: query(frames).toArrow(), queries.values())
            collected = dict(zip(queries, tables, strict=True))
        if out is not None:
            self._progress("writing Parquet")
            large = {"exchanges": frames.exchanges, "partitions": frames.partitions, "connections": connections}
            write_tables(out, large, collected)
        rows = {name: _rows(findings.ROWS[name], table) for name, table in collected.items()}
        found = findings.Findings(
            files=tuple(self._names), quality=quality, tables=rows, ran=frozenset(queries), thresholds=self._thresholds
        )
        if self._evidence == "none":
            return found
        return replace(found, exchanges=self._exchanges(found, frames.exchanges))

    def _exchanges(self, found: findings.Findings, exchanges: DataFrame) -> tuple[findings.Exchange, ...]:
        """The requests that findings and incidents cite."""
        places = {place for finding in found.findings() for place in finding.evidence[:_SHOWN_PER_FINDING]}
        places |= {place for incident in incidents(found) for place in incident.places}
        if not places:
            return ()
        wanted = self._spark.createDataFrame(sorted(places)[:_SHOWN], "file string, packet bigint")
        columns = [field.name for field in fields(findings.Exchange)]
        shown = (
            exchanges.join(f.broadcast(wanted), ["file", "packet"])
            .withColumn("bodies", f.coalesce("evidence", f.lit("")))
            .select(*columns)
            .orderBy("file", "packet")
        )
        return _rows(findings.Exchange, shown.toArrow())

    def _in_span(self) -> DataFrame:
        """Raises CaptureError for a span without requests."""
        since_ns, until_ns = self._span
        decoded = self._decoded
        if since_ns is not None:
            since = f.timestamp_micros(f.lit(since_ns // 1000))
            decoded = decoded.where(f.coalesce("time", "tcp.last_time") >= since)
        if until_ns is not None:
            until = f.timestamp_micros(f.lit(until_ns // 1000))
            decoded = decoded.where(f.coalesce("time", "tcp.first_time") < until)
        if self._span != ALWAYS and decoded.where("time is not null").isEmpty():
            ((first, last),) = self._decoded.select(*(g("time").cast("string") for g in (f.min, f.max))).collect()
            raise CaptureError(f"no request in that time; there are requests from {first} to {last} UTC")
        return decoded

    def _quality(self) -> Quality:
        """The counts; without a table, the first action of the job."""
        table = self._table
        if table is None:
            table = self._decoded.where(f.col("quality").isNotNull()).select("quality").toArrow()
        quality = Quality()
        for counted in table.column("quality").drop_null().to_pylist():
            quality.add(Quality.from_json(counted))
        if quality.unreadable and not quality.packets:
            raise CaptureError("; ".join(sorted(quality.unreadable)))
        if not quality.requests:
            raise CaptureError(f"{', '.join(self._names)}: {'; '.join(quality.lines())}")
        return quality

    def _keep(self, frame: DataFrame) -> DataFrame:
        if self._small:
            # for little data, shuffles and planning cost most: one partition makes every analysis one stage, and a
            # checkpoint cuts the plan
            return frame.coalesce(1).localCheckpoint()
        return self._persisted(frame)

    def _persisted(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._stack.callback(kept.unpersist)
        return kept


def _rows(cls: type[T], table: pa.Table) -> tuple[T, ...]:
    """The rows of a small table. Arrow keeps times in UTC."""
    return tuple(
        cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
        for row in table.to_pylist()
    )
