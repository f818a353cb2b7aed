"""From packets to exchanges inside Spark: by connection, in order, through the same code as `kce decode`.

Packets are brought together by connection and sorted by time, so a connection that runs across several files is whole;
each task then streams through its connections one after the other. It holds one connection's state at a time.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from captures.assembly import Assembly
from captures.exchanges import Message, NoResponse, Response
from captures.quality import Quality
from captures.rows import DECODED, ENDPOINTS, EXCHANGES, PARTITION_STATE, PARTITIONS
from captures.segments import Place, Segment
from captures.spark.schemas import spark_schema
from captures.spark.segment_counts import SegmentCounts
from captures.tabulate import connection_row, decoded_row, quality_row

_BATCH_ROWS = 2000


def decode(packets: DataFrame, partitions: int, *, payloads: bool = False) -> DataFrame:
    """DECODED rows of PACKETS rows, in ``partitions`` tasks: exchanges, and one row of counts per task."""
    # what is no TCP segment is only counted: any task of its file will do
    key = f.coalesce("connection", "file")
    return (
        packets.repartition(partitions, key)
        .sortWithinPartitions(key, "time_ns", "file", "packet")
        .mapInArrow(functools.partial(_decode, payloads=payloads), spark_schema(DECODED))
    )


def exchanges(decoded: DataFrame) -> DataFrame:
    """EXCHANGES, and with ``content`` a number that control requests have in common if they say the same."""
    said = f.transform("states", lambda state: state.dropFields("error_code", "error"))
    return decoded.where(f.col("quality").isNull() & f.col("tcp").isNull()).select(
        *(c.name for c in EXCHANGES.columns),
        f.when(f.col("is_control"), f.xxhash64("api_key", said, "live_brokers")).alias("content"),
        "evidence",
    )


def partitions(decoded: DataFrame) -> DataFrame:
    """One row for each partition state in a control request."""
    request = [c.name for c in PARTITIONS.columns[: -len(PARTITION_STATE)] if c.name != "response_error_code"]
    return (
        decoded.where(f.col("states").isNotNull())
        .select(*request, f.col("error_code").alias("response_error_code"), f.explode("states").alias("state"))
        .select(*request, "response_error_code", "state.*")
    )


def live_brokers(decoded: DataFrame) -> DataFrame:
    """Whom each UpdateMetadata request named alive: ``brokers`` are their ids."""
    return decoded.where(f.col("live_brokers").isNotNull()).select(
        "file", "packet", "time", "server", "server_port", "controller_epoch",
        f.array_distinct(f.col("live_brokers.broker_id")).alias("brokers"),
    )  # fmt: skip


def connections(decoded: DataFrame) -> DataFrame:
    """CONNECTIONS."""
    return decoded.where(f.col("tcp").isNotNull()).select("tcp.*")


def endpoints(decoded: DataFrame) -> DataFrame:
    """Every listener that was announced, with the time of its first and last announcement."""
    listener = [c.name for c in ENDPOINTS.columns[:-2]]
    return (
        decoded.where(f.col("live_brokers").isNotNull())
        .select("time", f.explode("live_brokers").alias("broker"))
        .select("time", "broker.*")
        .groupBy(*listener)
        .agg(f.min("time").alias("first_time"), f.max("time").alias("last_time"))
    )


def _decode(batches: Iterable[pa.RecordBatch], *, payloads: bool) -> Iterator[pa.RecordBatch]:
    task = _Task(payloads)
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in _INPUT]
        for row in zip(*columns, strict=True):
            task.packet(*row)
            if len(task.rows) >= _BATCH_ROWS:
                yield DECODED.batch(task.rows)
                task.rows.clear()
    task.end_of_connection()
    task.rows.append(quality_row(task.quality.to_json()))
    yield DECODED.batch(task.rows)


_INPUT = (
    "file", "packet", "time_ns", "other", "connection", "source", "source_port", "destination", "destination_port",
    "sequence", "acknowledgement", "flags", "payload", "cut", "_corrupt_record",
)  # fmt: skip


class _Task:
    """What one Spark task does: takes PACKETS rows in order, collects DECODED rows and counts."""

    def __init__(self, payloads: bool) -> None:
        self._payloads = payloads
        self.rows: list[tuple[Any, ...]] = []
        self.quality = Quality()
        self._connection: str | None = None
        self._counts = SegmentCounts()
        self._kafka = 0
        self._order = 0
        self._assembly = Assembly(self.quality)

    def packet(
        self, file: str, packet: int | None, time_ns: int, other: str | None, connection: str | None, source: str,
        source_port: int, destination: str, destination_port: int, sequence: int, acknowledgement: int, flags: int,
        payload: bytes, cut: int, corrupt: str | None,
    ) -> None:  # fmt: skip
        if corrupt is not None:
            (self.quality.unreadable if packet is None else self.quality.problems).append(corrupt)
            return
        self.quality.packets += 1
        self.quality.cut_packets += cut > 0
        if connection is None:
            self.quality.other_packets[other or ""] += 1
            return
        if connection != self._connection:
            self.end_of_connection()
            self._connection = connection
        self._order += 1
        segment = Segment(
            Place(self._order, time_ns, packet or 0, file), _packed(source), source_port, _packed(destination),
            destination_port, sequence, acknowledgement, flags, payload, cut,
        )  # fmt: skip
        self._counts.add(segment)
        for message in self._assembly.receive(segment):
            self._message(message)

    def end_of_connection(self) -> None:
        """All packets between two endpoints are through."""
        for message in self._assembly.finish():
            self._message(message)
        if self._connection is not None:
            is_kafka = self.quality.connections > self._kafka
            self.rows.append(connection_row((self._connection, is_kafka, *self._counts.columns())))
        self._counts = SegmentCounts()
        self._kafka = self.quality.connections

    def _message(self, message: Message) -> None:
        if isinstance(message, Response):
            self.rows.append(decoded_row(message.request, message, payloads=self._payloads))
        elif isinstance(message, NoResponse):
            self.rows.append(decoded_row(message.request, None, payloads=self._payloads))


@functools.lru_cache(maxsize=4096)
def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed
