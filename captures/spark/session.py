"""A quiet local Spark session whose files are in one temporary folder, removed at the end."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark.accumulators
import pyspark.core.context
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from kce.captures.errors import CaptureError
from kce.captures.spark.versions import check_versions
from kce.java import JavaMissing, find_java

logger = logging.getLogger(__name__)

#: the paths of Unix sockets end at 104 bytes on macOS, at 108 elsewhere; Spark's names for them take 43 of these
_LONGEST_SOCKET_FOLDER = 60

_LOOPBACK = re.compile(r"^local|://(127\.0\.0\.1|localhost)\b")

#: JVM options of a brief session, and of a longer one that shares cores with the workers. The JVM only passes rows on,
#: which does not repay the second compiler. With one compiler its code cache is 48 MB by default, which a dozen
#: analyses fill; then the JVM would interpret.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
BRIEF_JVM = f"{_ONE_COMPILER} -XX:+UseSerialGC -Xmn256m -XX:MetaspaceSize=256m"  # hardly ever collects garbage
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


def _remember_names() -> None:
    """Make py4j ask Java for a package, class or static method once: it asks each time, and Java searches all jars."""
    for kind in (JVMView, JavaPackage, JavaClass):
        ask = kind.__getattr__

        def remembered(self: Any, name: str, ask: Callable[[Any, str], Any] = ask) -> Any:
            found = ask(self, name)
            if isinstance(found, (JavaPackage, JavaClass, JavaMember)):
                vars(self)[name] = found
            return found

        kind.__getattr__ = remembered


_remember_names()


@contextlib.contextmanager
def local_session(
    event_log: str | os.PathLike[str] | None = None, *, brief: bool = False, master: str | None = None
) -> Iterator[SparkSession]:
    """A session on all cores of this machine, or on the cluster ``master``, stopped at the end. One per process.

    In a program run by spark-submit, without ``master``, it runs where spark-submit decides.

    ``event_log`` is a folder for Spark's event log. A ``brief`` session is for little data: it saves time on compiling
    and planning. The JVM's stderr goes to a file in the session's folder. Raises CaptureError with its last
    message if Spark cannot be started, and without a Java or for versions that do not fit.
    """
    check_versions()
    try:
        find_java()  # Spark finds the same one
    except JavaMissing as e:
        raise CaptureError(str(e)) from None
    with tempfile.TemporaryDirectory(prefix="kce-spark-", ignore_cleanup_errors=True) as folder:
        log4j = Path(folder, "log4j2.properties")
        log4j.write_text(_LOG4J)
        if master is None and not is_submitted():
            master = "local[*]"
        is_local = master is not None and master.startswith("local")
        jvm = BRIEF_JVM if brief else _LOCAL_JVM if is_local else ""
        builder = (
            SparkSession.builder.appName("kce analyze")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            # the Python call site of each column costs two JVM calls
            .config("spark.python.sql.dataFrameDebugging.enabled", "false")
            .config(
                "spark.driver.extraJavaOptions",
                f"-Dlog4j2.configurationFile={log4j.as_uri()} {jvm}",
            )
            .config(map=_planning(brief=brief, is_local=is_local))
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", Path(folder, "warehouse").as_uri())
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            # a row may have a segment of 64 kB: limit batches by bytes, too
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
            .config("spark.sql.execution.arrow.maxBytesPerBatch", str(16 * 1024 * 1024))
        )
        if brief:
            builder = builder.config("spark.executor.extraJavaOptions", BRIEF_JVM)
            # each sort and each aggregation takes a page, by default of 8 MB or more, for few rows
            builder = builder.config("spark.buffer.pageSize", "1m")
        if master is not None:
            builder = builder.master(master)
            if _LOOPBACK.search(master):  # executors elsewhere must reach the driver
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
        if is_local:
            builder = builder.config(map=unix_sockets(folder))
        output = Path(folder, "jvm.log")
        try:
            with _stderr_to(output), _workers_run(sys.executable, master), _sigint_kept():
                log_accumulator_errors()
                spark = builder.getOrCreate()
        except Exception as e:  # anything may keep a JVM from starting
            lines = output.read_text(errors="replace").splitlines()
            messages = [line for line in lines if line.strip() and not line.startswith("\tat ")]
            raise CaptureError(f"Spark cannot be started: {messages[-1] if messages else e}") from e
        try:
            yield spark
        finally:
            spark.stop()


def _planning(*, brief: bool, is_local: bool) -> dict[str, Any]:
    """Settings of queries; they can be changed while a session runs."""
    # of little data, a second partition costs more than it gains
    partitions = 1 if brief else os.cpu_count() or 1
    return {
        "spark.sql.codegen.wholeStage": str(not brief).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if brief else "FALLBACK",
        "spark.sql.adaptive.enabled": str(not brief).lower(),
        **({"spark.sql.shuffle.partitions": str(partitions)} if brief or is_local else {}),
    }


def lengthen(spark: SparkSession) -> None:
    """Have a brief session of this machine, which gets more data than was thought, plan its queries for that."""
    for name, value in _planning(brief=False, is_local=True).items():
        spark.conf.set(name, value)


def unix_sockets(folder: str) -> dict[str, Any]:
    """Settings that put the sockets between Spark's JVM and Python in ``folder``, instead of on ports.

    A stranger that connects to a port, such as a client of the process that had it before, would keep Spark waiting for
    its token. No settings if the folder's path is too long.
    """
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


def log_accumulator_errors() -> None:
    """Have pyspark's servers of accumulators log errors of a connection at DEBUG. By themselves they print tracebacks.

    The peer is the JVM, which a signal may end at any moment, or a stranger, who does not know the token.
    """

    def handle_error(server: object, request: object, client_address: object) -> None:
        logger.debug("Connection of %s to Spark's accumulators failed", client_address, exc_info=True)

    for server in (pyspark.accumulators.AccumulatorTCPServer, pyspark.accumulators.AccumulatorUnixServer):
        server.handle_error = handle_error  # type: ignore[method-assign,assignment]


def is_submitted() -> bool:
    """Whether spark-submit started this program and its JVM."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextlib.contextmanager
def _workers_run(python: str, master: str | None) -> Iterator[None]:
    """Make Spark start its workers with ``python``, through the environment, which also reaches data source planners.

    On a cluster PYSPARK_PYTHON wins, if it is set.
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
    """Keep pyspark from replacing the handler of SIGINT, which it never restores."""
    module = vars(pyspark.core.context)
    kept = module["signal"]
    module["signal"] = SimpleNamespace(signal=lambda number, handler: None, SIGINT=signal.SIGINT)
    try:
        yield
    finally:
        module["signal"] = kept


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give child processes ``path`` as their stderr; the JVM keeps it."""
    with _one_at_a_time, path.open("wb") as file:
        kept = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


_one_at_a_time = threading.Lock()
