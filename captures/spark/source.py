"""``spark.read.format("kafka-capture")``: captures as rows of packets, frames, exchanges or partitions, as Arrow.

    spark.read.format("kafka-capture").option("level", "exchanges").load(["a.pcapng", "b.pcap.gz"])
    spark.readStream.format("kafka-capture").option("level", "frames").load("folder-that-is-captured-to/")

Spark discovers it (``pyspark_kafka_capture``). Only tasks open files. In the default ``mode`` PERMISSIVE, damage gives
a row with ``_corrupt_record``; with ``option("mode", "FAILFAST")`` the task fails. docs/schema.md lists the columns of
each level. With ``schema`` only the named columns are made (Spark does not tell a Python source which it needs), and
without ``_corrupt_record`` among them there are no rows for damaged files. With option ``pushFilters`` and
``spark.sql.python.filterPushdown.enabled``, filters are applied while reading: on ``connection`` before reassembly, on
APIs and times before bodies are decoded.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from kce.captures.errors import CaptureError
from kce.captures.exchanges.ports import listener_ports
from kce.captures.files.index import splits
from kce.captures.files.locations import check_location, expand, is_uri, location_bytes
from kce.captures.files.split import WHOLE, Split
from kce.captures.spark.indexing import from_option
from kce.captures.spark.pushdown import Wanted, conditions
from kce.captures.spark.schemas import spark_schema
from kce.captures.spark.work import Bodies, File, Share
from kce.captures.tables.rows import BLOCKS, LEVELS, Table

#: Bytes of capture per task; maximum number of tasks that share connections, since each reads all files; maximum of
#: option ``tasks``.
BYTES_PER_TASK = 64 * 1024 * 1024
MAX_TASKS = 64
MAX_TASKS_OPTION = 10_000

#: Names of captures in a folder.
SUFFIXES = (".pcap", ".pcapng", ".cap", ".pcap.gz", ".pcapng.gz", ".cap.gz", ".pcap.zst", ".pcapng.zst")


class KafkaCapture(DataSource):
    """Options: ``path`` (or paths given to ``load``): files, globs, folders, URIs of any file
    system that pyarrow knows.

    ``level``: packets (the default), frames, exchanges or partitions. ``mode``: PERMISSIVE or FAILFAST. ``tasks``:
    number of tasks that share the connections, for levels other than packets. ``maxPartitionBytes``: bytes of capture
    per task, or per split of a file for packets. ``bodies``: whether frames have their decoded bodies; ``payloads``:
    the same with records and credentials instead of their sizes. ``ports``: listener ports, ``9092,9093``; other
    connections are left out, and the client side is certain also in connections older than the capture (levels other
    than packets). ``pushFilters``: apply filters while reading. Only for a DataFrame with a single query: Spark 4 keeps
    the filters of one query in the DataFrame, and later queries would get them, too. ``splits`` are those that
    ``captures.spark.indexing`` made; without them the planner makes them. ``folder`` is where relative paths
    start; by default the working directory of the workers. ``cuts`` are those of ``captures.spark.cutting``.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka-capture"

    def schema(self) -> StructType:
        return spark_schema(self._table())

    def reader(self, schema: StructType) -> DataSourceReader:
        return CaptureReader(
            self._table().name, files(self._paths(), self.options.get("folder", "")),
            fail_fast=self._fail_fast(), bodies=self._bodies(), tasks=self._number("tasks", MAX_TASKS_OPTION),
            bytes_per_task=self._number("maxPartitionBytes", 2**62) or BYTES_PER_TASK,
            buckets=self._number("buckets", 2**31 - 1) or 1, names=self._names(schema), ports=self._ports(),
            takes_filters=self._flag("pushFilters"), splits=from_option(self.options.get("splits", "{}")),
            cuts=self.options.get("cuts"),
        )  # fmt: skip

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from kce.captures.spark.tail import FolderTail

        (folder, *more) = self._paths()
        if more:
            raise ValueError("kafka-capture reads a stream from one folder")
        return FolderTail(
            Path(self.options.get("folder", ""), folder), self._choice("level", tuple(LEVELS)),
            fail_fast=self._fail_fast(), bodies=self._bodies(), ports=self._ports(),
        )  # fmt: skip

    def _table(self) -> Table:
        if self.options.get("level") == BLOCKS.name:
            return BLOCKS
        return LEVELS[self._choice("level", tuple(LEVELS))]

    def _names(self, schema: StructType | None) -> list[str] | None:
        """The wanted columns; None means all."""
        table = self._table()
        known = spark_schema(table)
        if schema is None or schema == known:
            return None
        types = {field.name: field.dataType for field in known}
        for field in schema:
            if types.get(field.name) != field.dataType:
                expected = types[field.name].simpleString() if field.name in types else "unknown"
                raise ValueError(
                    f"kafka-capture: column {field.name} of level {table.name} is {expected}, not "
                    f"{field.dataType.simpleString()}"
                )
        return list(schema.names)

    def _choice(self, option: str, known: tuple[str, ...]) -> str:
        value: str = self.options.get(option, known[0])
        if value not in known:
            raise ValueError(f"kafka-capture has no {option} {value!r}: it is {', '.join(known[:-1])} or {known[-1]}")
        return value

    def _fail_fast(self) -> bool:
        mode = self.options.get("mode", "PERMISSIVE").upper()
        if mode not in ("PERMISSIVE", "FAILFAST"):
            raise ValueError(f"kafka-capture has no mode {mode!r}: it is PERMISSIVE or FAILFAST")
        return bool(mode == "FAILFAST")

    def _bodies(self) -> Bodies:
        bodies, payloads = self._flag("bodies"), self._flag("payloads")
        return "payloads" if payloads else "redacted" if bodies else "none"

    def _flag(self, option: str) -> bool:
        value = self.options.get(option, "false").lower()
        if value not in ("true", "false"):
            raise ValueError(f"kafka-capture: {option} is true or false, not {value!r}")
        return bool(value == "true")

    def _ports(self) -> frozenset[int]:
        value = self.options.get("ports")
        try:
            return frozenset(listener_ports(value)) if value else frozenset()
        except ValueError as e:
            raise ValueError(f"kafka-capture: ports: {e}") from None

    def _number(self, option: str, most: int) -> int | None:
        value = self.options.get(option)
        if value is None:
            return None
        if not value.isdecimal() or not 1 <= int(value) <= most:
            raise ValueError(f"kafka-capture: {option} is a number from 1 to {most}, not {value!r}")
        return int(value)

    def _paths(self) -> list[str]:
        if "paths" in self.options:
            return list(json.loads(self.options["paths"]))
        if "path" in self.options:
            return [self.options["path"]]
        raise ValueError("kafka-capture needs a path")


def register(spark: SparkSession) -> None:
    """Register the source where Spark does not discover it."""
    with contextlib.suppress(AnalysisException):  # it is already registered
        spark.dataSource.register(KafkaCapture)


def files(paths: Iterable[str], folder: str) -> list[File]:
    """Captures by name; a folder stands for the captures in it. Raises CaptureError if there is none."""
    found: list[File] = []
    for name in paths:
        if is_uri(name):
            found += [File(uri, uri) for uri in expand([name])]
        elif (path := Path(folder, name)).is_dir():
            inside = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIXES))
            if not inside:
                raise CaptureError(f"{name}: there is no capture in this folder")
            found += [File(os.path.join(name, entry), str(path / entry)) for entry in inside]
        else:
            ahead = len(str(path)) - len(str(Path(name)))  # rows have the name as given, not the absolute path
            matches = expand([path])
            for match in matches:
                check_location(match)
            found += [File(match[ahead:], match) for match in matches]
    return found


class _Task(InputPartition):
    """A split of one file for packets, a share of all files' connections for the other levels.

    ``number`` is the file's.
    """

    def __init__(self, files: Sequence[File], part: Split | Share, number: int = 0) -> None:
        self.files = files
        self.part = part
        self.number = number


class CaptureReader(DataSourceReader):
    def __init__(
        self, level: str, files: Sequence[File], *, fail_fast: bool, bodies: Bodies, tasks: int | None,
        bytes_per_task: int, buckets: int = 1, names: Sequence[str] | None = None, ports: Collection[int] = (),
        takes_filters: bool = False, splits: Mapping[str, Sequence[Split]] = MappingProxyType({}),
        cuts: str | None = None,
    ) -> None:  # fmt: skip
        self._cuts = cuts
        self._takes_filters = takes_filters
        self._splits = splits
        self._buckets = buckets
        self._ports = ports
        self._names = names
        self._level = level
        self._bytes_per_task = bytes_per_task
        self._files = files
        self._fail_fast = fail_fast
        self._bodies = bodies
        self._tasks = tasks
        self._wanted = Wanted()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802
        """Takes filters; returns those that Spark must apply.

        While push-down is disabled, the default, Spark refuses a source that overrides this method. It compares the
        function behind the method, so that of the base class is shown.
        """
        push = functools.partial(self._push)
        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._takes_filters or self._level == BLOCKS.name:
            return filters
        taken, left = conditions(filters, LEVELS[self._level])
        self._wanted = Wanted(taken)
        return left

    def partitions(self) -> list[InputPartition]:
        if self._level in ("packets", BLOCKS.name):
            return [
                _Task([file], split, number)
                for number, file in enumerate(self._files)
                for split in self._splits.get(file.path) or _splits(file, self._bytes_per_task)
            ]
        size = sum(location_bytes(file.path) for file in self._files)
        tasks = self._tasks or max(1, min(MAX_TASKS, size // self._bytes_per_task))
        return [_Task(self._files, Share(index, tasks)) for index in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # imported late: slow to import, and planners do not need it
        from kce.captures.fast.cuts import Cuts
        from kce.captures.spark.levels import block_batches, message_batches, packet_batches

        assert isinstance(partition, _Task)
        if isinstance(partition.part, Share):
            return message_batches(
                self._level, partition.files, partition.part, self._wanted, bodies=self._bodies,
                fail_fast=self._fail_fast, names=self._names, ports=self._ports,
            )  # fmt: skip
        (file,) = partition.files
        if self._level == BLOCKS.name:
            cuts = None if self._cuts is None else Cuts.from_json(self._cuts)
            return block_batches(file, partition.number, partition.part, self._buckets, self._ports, cuts)
        return packet_batches(file, partition.part, self._wanted, fail_fast=self._fail_fast, names=self._names)


def _splits(file: File, target_bytes: int) -> list[Split]:
    """Exact splits (``index``): every packet is in one, with its number in the file."""
    if location_bytes(file.path) <= target_bytes:
        return [WHOLE]
    try:
        return splits(file.path, target_bytes)
    except CaptureError:
        return [WHOLE]  # the task that opens it reports the error
