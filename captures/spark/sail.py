"""Sail analyses small captures: an engine for Spark's DataFrames in Rust, which serves the protocol of Spark Connect.

The queries are those of Spark. Java does not start, a query is planned in a tenth of the time, and Spark does what Sail
cannot. Sail runs in a process of its own (``sail_server``), with bounded memory. Like Spark's driver, it listens on a
port of 127.0.0.1 meanwhile, and whoever has an account on this machine can connect to it.

What Sail 0.7 does otherwise than Spark, so that queries avoid it (tests run each analysis on both):

- ``f.lit(None)`` without a cast has a type of its own; a union with it is wrong or takes all memory
- ``getField`` of an array of structs fails: ``common.each_field``
- ``f.when(condition, column)`` of a struct makes it null, but not its fields: make the struct there
- a lambda over structs fails if one of their fields cannot be null: ``count``, ``isNotNull``
- an inner join after one by ``eqNullSafe`` loses the rows whose keys are null: that one comes last
- there is no ``session_window``
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kce.garbage import no_collection

if TYPE_CHECKING:
    from pyspark.sql.connect.client.retries import RetryPolicy

#: Bytes of address space that Sail may take. At its start it takes 1.7 GB of it, and uses 50 MB.
MAX_BYTES = 6 * 1024**3

#: Maximum bytes of rows that are sent at once; pyspark sends messages of up to 128 MiB.
MAX_SENT_BYTES = 64 * 1024**2

#: Maximum rows of a batch: a message has at least one.
_MAX_SENT_ROWS = 16_384

#: More would not help, and each takes address space.
MAX_THREADS = 8

#: The first Spark whose clients Sail refuses.
TOO_NEW = (4, 3)

#: While this is set, pyspark makes columns and windows for Spark Connect.
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"


class SailError(Exception):
    """Sail does not start, or cannot answer a query. Spark does the same."""


def is_usable() -> bool:
    """Whether Sail is installed and speaks this pyspark's protocol, and nobody uses Spark in this process."""
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    return (
        version < TOO_NEW
        and all(importlib.util.find_spec(name) is not None for name in ("pysail", "grpc", "pandas"))
        and SparkContext._active_spark_context is None
        and not os.environ.keys() & {_CONNECT_MODE, "SPARK_REMOTE"}
    )


@contextlib.contextmanager
def sail_session() -> Iterator[SparkSession]:
    """A session of Spark Connect, with a Sail that ends with it. Its DataFrames need ``connect_mode``.

    Raises SailError if it does not start, and for whatever Spark would raise meanwhile.
    """
    from pyspark.sql.connect.client.core import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    with _server() as port:
        channel = DefaultChannelBuilder(f"sc://127.0.0.1:{port}")
        channel.setChannelOption("grpc.enable_http_proxy", 0)
        channel.setChannelOption("grpc.max_receive_message_length", -1)  # a batch of exploded rows is one message
        try:
            spark = ConnectSession.builder.channelBuilder(channel).create()
            with contextlib.closing(spark.client) as client:
                client.set_retry_policies([_unreadable_answers()])
                client.disable_reattachable_execute()
                spark.conf.set("spark.sql.session.timeZone", "UTC")
                yield spark  # type: ignore[misc]  # it has all of Spark's methods that analyses use
        except PySparkException as e:
            details = re.search(r'details = "(.*)"', str(e))  # of gRPC; the lines around it say nothing
            raise SailError(details[1] if details else str(e).strip().partition("\n")[0] or type(e).__name__) from e


def _unreadable_answers() -> RetryPolicy:
    """Repeats a call whose answer gRPC cannot read, which was seen once; not one whose answers come in a stream.

    By default, pyspark repeats what failed for up to ten minutes, also if Sail has ended.
    """
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client.retries import RetryPolicy

    class UnreadableAnswers(RetryPolicy):
        def can_retry(self, exception: BaseException) -> bool:
            return (
                isinstance(exception, grpc.RpcError)
                and not isinstance(exception, Iterator)
                and "deserializing" in str(exception)
            )

    return UnreadableAnswers(max_retries=3, initial_backoff=1)


@contextlib.contextmanager
def connect_mode() -> Iterator[None]:
    """Columns and windows are made for Spark Connect, in all threads. One at a time.

    Without collections, for a finalizer that runs within a call of gRPC may call it again (SPARK-58268).
    """
    with _one_at_a_time, no_collection():
        os.environ[_CONNECT_MODE] = "1"
        try:
            yield
        finally:
            del os.environ[_CONNECT_MODE]


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame of a table. Its columns may be null, those of structs too."""
    if table.num_rows:
        return functools.reduce(DataFrame.unionAll, [_sent(spark, part) for part in _parts(table)])
    # of no rows, Spark Connect wants to be told a schema, which Sail then takes for another than that of rows
    fields = [pa.field(field.name, field.type) for field in table.schema]
    nulls = [pa.nulls(1, field.type) for field in fields]
    return spark.createDataFrame(pa.Table.from_arrays(nulls, schema=pa.schema(fields))).where(f.lit(False))


def kept(frame: DataFrame) -> DataFrame:
    """The rows of ``frame``, computed once."""
    return frame_of(frame.sparkSession, frame.toArrow())


def _sent(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A view, for each query would send the rows again, as often as it names them."""
    name = f"rows_{uuid.uuid4().hex}"
    spark.createDataFrame(table).createOrReplaceTempView(name)
    return spark.table(name)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Its batches, as many at once as can be sent."""
    part: list[pa.RecordBatch] = []
    size = 0
    for batch in table.to_batches(max_chunksize=_MAX_SENT_ROWS):
        if part and size + batch.nbytes > MAX_SENT_BYTES:
            yield pa.Table.from_batches(part)
            part, size = [], 0
        part.append(batch)
        size += batch.nbytes
    yield pa.Table.from_batches(part)


@contextlib.contextmanager
def _server() -> Iterator[int]:
    """The port of a process that serves Spark Connect. Raises SailError."""
    with tempfile.TemporaryFile() as errors:
        server = subprocess.Popen(
            # -P: it must not find modules where it is started
            [sys.executable, "-P", "-m", "kce.captures.spark.sail_server", str(MAX_BYTES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            env=os.environ | {"RUST_LOG": "error", "TOKIO_WORKER_THREADS": str(min(os.cpu_count() or 1, MAX_THREADS))},
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )  # fmt: skip
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line.strip().isdigit():
                server.wait()
                errors.seek(0)
                messages = errors.read().decode(errors="replace").strip().splitlines()
                raise SailError(messages[-1] if messages else f"it ended with {server.returncode}")
            yield int(line)
        finally:
            server.kill()
            server.communicate()


_one_at_a_time = threading.Lock()
