"""``spark.read.format("kafka-capture")``: the packets of captures, one partition per file, as Arrow.

    spark.dataSource.register(KafkaCapture)
    spark.read.format("kafka-capture").load(["a.pcapng", "b.pcap.gz"])

Only tasks open files. What cannot be read gives, in the default ``mode`` PERMISSIVE, a row with ``_corrupt_record``;
with ``option("mode", "FAILFAST")`` the task fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from captures.errors import CaptureError
from captures.pcap import CaptureFile, Packet
from captures.rows import PACKETS
from captures.segments import Dissector, Segment, address_text, endpoint_text
from captures.spark.schemas import spark_schema

#: An Arrow batch is handed to Spark when it has this many rows or bytes of payload.
BATCH_ROWS = 4096
BATCH_BYTES = 4 * 1024 * 1024


class KafkaCapture(DataSource):
    """Options: ``path`` (or paths given to ``load``); ``level``, "packets"; ``mode``, PERMISSIVE or FAILFAST.

    ``folder`` is where relative paths start; without it, where the workers happen to run.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka-capture"

    def schema(self) -> StructType:
        return spark_schema(PACKETS)

    def reader(self, schema: StructType) -> DataSourceReader:
        if (level := self.options.get("level", "packets")) != "packets":
            raise ValueError(f"kafka-capture has no level {level!r}: it is packets")
        if (mode := self.options.get("mode", "PERMISSIVE").upper()) not in ("PERMISSIVE", "FAILFAST"):
            raise ValueError(f"kafka-capture has no mode {mode!r}: it is PERMISSIVE or FAILFAST")
        if "paths" in self.options:
            paths = json.loads(self.options["paths"])
        elif "path" in self.options:
            paths = [self.options["path"]]
        else:
            raise ValueError("kafka-capture needs a path")
        return _Reader([_File(path, Path(self.options.get("folder", ""), path)) for path in paths], mode == "FAILFAST")


class _File(InputPartition):
    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path


class _Reader(DataSourceReader):
    def __init__(self, files: Sequence[_File], fail_fast: bool) -> None:
        self._files = files
        self._fail_fast = fail_fast

    def partitions(self) -> Sequence[InputPartition]:
        return self._files

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        return packet_batches(partition.path, partition.name, fail_fast=self._fail_fast)


def packet_batches(path: Path, name: str, *, fail_fast: bool = False) -> Iterator[pa.RecordBatch]:
    """The rows of PACKETS of one file, which is called ``name``. Raises CaptureError only with ``fail_fast``."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    try:
        with CaptureFile(path, name) as capture:
            dissector = Dissector(name)
            for packet in capture:
                segment = dissector.dissect(packet)
                rows.append(_row(name, packet, segment))
                size += 0 if isinstance(segment, str) else len(segment.payload)
                if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield PACKETS.batch(rows)
                    rows, size = [], 0
        corrupt = [_corrupt(name, capture.packets, f"{name}: {problem}") for problem in capture.problems]
    except CaptureError as e:
        corrupt = [_corrupt(name, None, str(e))]
    if corrupt and fail_fast:
        raise CaptureError(corrupt[0][-1])
    rows += corrupt
    if rows:
        yield PACKETS.batch(rows)


def _row(file: str, packet: Packet, segment: Segment | str) -> tuple[Any, ...]:
    common = (file, packet.number, packet.time_ns // 1000, packet.time_ns)
    cut = packet.wire_bytes - len(packet.data)
    if isinstance(segment, str):
        return (*common, segment, *(None,) * 9, cut, None)
    ends = (segment.source, segment.source_port), (segment.destination, segment.destination_port)
    return (
        *common,
        None,
        " - ".join(endpoint_text(*end) for end in sorted(ends)),
        address_text(segment.source),
        segment.source_port,
        address_text(segment.destination),
        segment.destination_port,
        segment.sequence,
        segment.acknowledgement,
        segment.flags,
        segment.payload,
        segment.cut,
        None,
    )


def _corrupt(file: str, packets: int | None, problem: str) -> tuple[Any, ...]:
    """``packets`` is None for a file that is no capture at all."""
    return (file, packets, *(None,) * 13, problem)
