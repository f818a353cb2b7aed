"""The job behind `kce analyze`: captures in, findings, Parquet and a report out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from captures.errors import CaptureError
from captures.locations import check_location
from captures.quality import Quality
from captures.spark import analyses, findings, reassembly
from captures.spark.session import local_session
from captures.spark.source import KafkaCapture, register
from captures.spark.tables import check_folder, write_tables

#: Compressed bytes of capture that one task puts together again.
_BYTES_PER_TASK = 64 * 1024 * 1024

#: Small jobs are mostly waiting for the driver: a few at a time keep the cores busy.
_JOBS_AT_ONCE = 4

T = TypeVar("T")


def analyze(
    paths: Iterable[str | os.PathLike[str]],
    *,
    report: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    event_log: str | os.PathLike[str] | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> findings.Findings:
    """Find out what the control plane in ``paths`` did. The captures are opened by Spark's tasks alone.

    ``report`` is an HTML file to write, ``out`` a folder for Parquet, which must be empty unless ``overwrite``.
    ``event_log`` is a folder for Spark's event log. ``spark`` is a session to use; without one a local one is started
    and stopped. ``progress`` is told each step. Raises CaptureError for what is no capture, or holds no Kafka traffic.
    """
    names = [os.fspath(path) for path in paths]
    if not names:
        raise CaptureError("no capture is given")
    if report is not None:  # before anything is read: an hour's work is not to end in a folder that is not there
        _check_report(report)
    if out is not None:
        check_folder(out, overwrite=overwrite)
    with contextlib.ExitStack() as stack:
        if spark is None:
            for name in names:  # only asked whether it is there, so that nobody waits for a JVM to hear that it is not
                check_location(name)
            progress("starting Spark")
            brief = sum(map(_size, names)) < _BYTES_PER_TASK
            spark = stack.enter_context(local_session(event_log, brief=brief))
        try:
            found = _Job(spark, names, progress, stack).run(out)
        except (PySparkException, Py4JError, ConnectionError) as e:  # the last when the JVM is gone
            first, *_ = str(e).strip().splitlines() or [type(e).__name__]
            raise CaptureError(f"Spark failed: {first}") from e
    if report is not None:
        progress("drawing the report")
        from captures.spark.report import write_report  # here, for matplotlib takes a while to import

        write_report(found, report)
    return found


class _Job:
    """One run: the frames that several analyses share are kept until its end."""

    def __init__(
        self, spark: SparkSession, names: Sequence[str], progress: Callable[[str], None], stack: contextlib.ExitStack
    ) -> None:
        self._names = names
        self._progress = progress
        self._stack = stack
        register(spark)
        packets = spark.read.format(KafkaCapture.name()).option("folder", str(Path.cwd())).load(list(names))
        tasks = max(spark.sparkContext.defaultParallelism, sum(map(_size, names)) // _BYTES_PER_TASK)
        self._decoded = self._keep(reassembly.decode(packets, tasks))

    def run(self, out: str | os.PathLike[str] | None) -> findings.Findings:
        self._progress("reading, and putting connections together")
        quality = self._quality()
        self._progress("analysing")
        endpoints = self._keep(reassembly.endpoints(self._decoded))
        partitions = self._keep(reassembly.partitions(self._decoded))
        exchanges = self._keep(analyses.at_listeners(reassembly.exchanges(self._decoded), endpoints))
        small = {
            "requests": analyses.requests(exchanges),
            "controllers": analyses.controllers(exchanges, partitions),
            "leadership": analyses.leadership(partitions),
            "latency": analyses.latency(exchanges),
            "fenced": analyses.fenced(exchanges),
            "stale_partitions": analyses.stale_partitions(exchanges, partitions),
            "zombies": analyses.zombies(exchanges),
            "endpoints": endpoints.orderBy("broker_id", "listener", "first_time"),
            "ticks": analyses.ticks(exchanges),
            "latency_counts": analyses.latency_counts(exchanges),
        }
        with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
            collected = dict(zip(small, pool.map(DataFrame.toArrow, small.values()), strict=True))
        if out is not None:
            self._progress("writing Parquet")
            write_tables(out, {"exchanges": exchanges, "partitions": partitions}, collected)
        rows = {name: _rows(_CLASSES[name], table) for name, table in collected.items()}
        return findings.Findings(files=tuple(self._names), quality=quality, **rows)

    def _quality(self) -> Quality:
        """What the tasks counted; the first to ask of them to run at all."""
        quality = Quality()
        for row in self._decoded.where(f.col("quality").isNotNull()).select("quality").collect():
            quality.add(Quality.from_json(row["quality"]))
        if quality.unreadable:
            raise CaptureError("; ".join(sorted(quality.unreadable)))
        if not quality.requests:
            raise CaptureError(f"{', '.join(self._names)}: {'; '.join(quality.lines())}")
        return quality

    def _keep(self, frame: DataFrame) -> DataFrame:
        kept = frame.persist()
        self._stack.callback(kept.unpersist)
        return kept


_CLASSES: dict[str, type[Any]] = {
    "requests": findings.RequestCount,
    "controllers": findings.Controller,
    "leadership": findings.LeadershipChange,
    "latency": findings.Latency,
    "fenced": findings.Fenced,
    "stale_partitions": findings.StalePartitions,
    "zombies": findings.Zombie,
    "endpoints": findings.Endpoint,
    "ticks": findings.Tick,
    "latency_counts": findings.LatencyCount,
}


def _rows(cls: type[T], table: pa.Table) -> tuple[T, ...]:
    """The rows of a small table; Arrow keeps times in UTC, wherever this runs."""
    return tuple(
        cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
        for row in table.to_pylist()
    )


def _check_report(report: str | os.PathLike[str]) -> None:
    folder = Path(report).absolute().parent
    if not folder.is_dir():
        raise CaptureError(f"{os.fspath(report)}: there is no folder {folder} for the report")


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0  # the task that opens it will say what is wrong
