"""A local Spark that is quiet, keeps its files in one temporary folder, and takes that away with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark.sql.pandas.functions
from pyspark.sql import SparkSession

from kce.captures.errors import CaptureError

if importlib.util.find_spec("pandas") is None:
    # mapInArrow hands Arrow batches through and never touches pandas, yet asks for it when it is called
    vars(pyspark.sql.pandas.functions)["require_minimum_pandas_version"] = lambda: None

_LOOPBACK = re.compile(r"^local|://(127\.0\.0\.1|localhost)\b")

#: A JVM that is to be done soon; one that shares a machine's cores with the workers. Its own work is to hand on rows,
#: which repays neither what the second compiler takes, nor collecting garbage meanwhile. With one compiler the JVM
#: reserves 48 MB for code, which a dozen analyses in one session fill; from then on it would interpret.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
_BRIEF_JVM = f"{_ONE_COMPILER} -XX:+UseSerialGC"
_LOCAL_JVM = f"{_ONE_COMPILER} -XX:+UseParallelGC"

_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def local_session(
    event_log: str | os.PathLike[str] | None = None, *, brief: bool = False, master: str | None = None
) -> Iterator[SparkSession]:
    """A session on all cores of this machine, or on the cluster ``master``, stopped at the end. One in a process.

    In a program that spark-submit runs, without ``master``, it is where that was told to run.

    ``event_log`` is a folder for Spark's event log. A ``brief`` session is for little data: it spends no time on
    compiling and planning that only much data would repay. What the JVM writes to stderr goes to a file in the
    session's folder. Raises CaptureError when Spark cannot be started, with the last line of that.
    """
    with tempfile.TemporaryDirectory(prefix="kce-spark-", ignore_cleanup_errors=True) as folder:
        log4j = Path(folder, "log4j2.properties")
        log4j.write_text(_LOG4J)
        if master is None and not _is_submitted():
            master = "local[*]"
        is_local = master is not None and master.startswith("local")
        jvm = _BRIEF_JVM if brief else _LOCAL_JVM if is_local else ""
        builder = (
            SparkSession.builder.appName("kce analyze")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            # which line of Python made which column: two calls into the JVM for each, for errors that are our own
            .config("spark.python.sql.dataFrameDebugging.enabled", "false")
            .config(
                "spark.driver.extraJavaOptions",
                f"-Dlog4j2.configurationFile={log4j.as_uri()} {jvm}",
            )
            .config("spark.sql.codegen.wholeStage", str(not brief).lower())
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN" if brief else "FALLBACK")
            .config("spark.sql.adaptive.enabled", str(not brief).lower())
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", Path(folder, "warehouse").as_uri())
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            # a row may carry a segment of 64 kB: bound the batches by bytes, not only by rows
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
            .config("spark.sql.execution.arrow.maxBytesPerBatch", str(16 * 1024 * 1024))
        )
        if brief or is_local:
            builder = builder.config("spark.sql.shuffle.partitions", str(os.cpu_count() or 1))
        if brief:
            builder = builder.config("spark.executor.extraJavaOptions", _BRIEF_JVM)
        if master is not None:
            builder = builder.master(master)
            if _LOOPBACK.search(master):  # elsewhere executors have to find their driver
                builder = builder.config("spark.driver.host", "127.0.0.1")
                builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        if event_log is not None:
            log_folder = Path(event_log)
            log_folder.mkdir(parents=True, exist_ok=True)
            builder = (
                builder.config("spark.eventLog.enabled", "true")
                .config("spark.eventLog.dir", log_folder.absolute().as_uri())
                .config("spark.eventLog.compress", "false")  # one file of JSON lines, that any tool can read
                .config("spark.eventLog.rolling.enabled", "false")
            )
        output = Path(folder, "jvm.log")
        try:
            with _stderr_to(output), _workers_run(sys.executable, master), _sigint_kept():
                spark = builder.getOrCreate()
        except Exception as e:  # whatever keeps a JVM from starting; it is told in one line
            said = output.read_text(errors="replace").strip().splitlines()
            raise CaptureError(f"Spark cannot be started: {said[-1] if said else e}") from e
        try:
            yield spark
        finally:
            spark.stop()


def _is_submitted() -> bool:
    """Whether this program was started by spark-submit, whose JVM is there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def _workers_run(python: str, master: str | None) -> Iterator[None]:
    """Have Spark start its workers with ``python``: only the environment reaches those that plan a data source.

    Other machines may have theirs elsewhere: on a cluster PYSPARK_PYTHON counts, if it is set.
    """
    kept = os.environ.get("PYSPARK_PYTHON")
    if kept is None or (master is not None and master.startswith("local")):
        os.environ["PYSPARK_PYTHON"] = python
    try:
        yield
    finally:
        if kept is None:
            del os.environ["PYSPARK_PYTHON"]
        else:
            os.environ["PYSPARK_PYTHON"] = kept


@contextlib.contextmanager
def _sigint_kept() -> Iterator[None]:
    """Leave Ctrl-C to those who have it: pyspark takes it, and never gives it back."""
    if threading.current_thread() is not threading.main_thread():
        yield  # there pyspark cannot take it
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give children that are started meanwhile ``path`` as their stderr: the JVM keeps it for all its life."""
    with _one_at_a_time, path.open("wb") as file:
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


_one_at_a_time = threading.Lock()
