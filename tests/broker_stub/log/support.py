"""Logs and batches for the tests of the log."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from kce import wire
from kce.broker_stub.disk import Disk
from kce.broker_stub.log import Log, LogConfig, LogContext
from kce.broker_stub.log.segments import NOTHING_RECENT, FlushableLog, RestingLog
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire import Codec, EndTransactionMarker, Record, RecordBatch
from kce.wire.batch_header import read_headers
from kce.wire.vocabulary import TopicPartition

FOLDER = "/logs/a-0"
PARTITION = TopicPartition("a", 0)
#: the clock of a `Context` at its start
NOW_MS = 1_700_000_000_000


class Context(LogContext):
    """Flushes and deletes at once. ``failures``: of its log directory. ``woken``: so often a log woke or was loaded."""

    def __init__(
        self, disk: Disk | None = None, producer_id_expiration_ms: int = 86_400_000, path: str = "/logs"
    ) -> None:
        self.path = path
        self.time_ms = NOW_MS
        self.disk = disk or MemoryDisk(self.now_ms)
        self.random = Random(7)
        self.producer_id_expiration_ms = producer_id_expiration_ms
        self.recent = NOTHING_RECENT
        self.failures: list[OSError] = []
        self.woken = 0

    def now_ms(self) -> int:
        return self.time_ms

    def delete_later(self, paths: list[str], delay_ms: int) -> None:
        for path in paths:
            self.disk.delete(path)

    def flush_later(self, log: FlushableLog, end_offset: int) -> None:
        assert isinstance(log, Log)
        log.flush(end_offset)

    def was_cut(self) -> None:
        pass

    def woke(self, log: RestingLog) -> None:
        self.woken += 1

    def failed(self, error: OSError) -> None:
        self.failures.append(error)


def config(**settings: object) -> LogConfig:
    """Underscores become dots: ``segment_bytes=100``."""
    return LogConfig.of({key.replace("_", "."): str(value) for key, value in settings.items()})


def a_log(
    context: Context | None = None,
    *,
    clean: bool = True,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    **settings: object,
) -> Log:
    return Log(
        context or Context(), PARTITION, config(**settings), clean=clean, log_start_offset=log_start_offset,
        recovery_point=recovery_point,
    )  # fmt: skip


def records(*values: bytes, key: bytes | None = None, timestamp: int = NOW_MS) -> tuple[Record, ...]:
    return tuple(Record(offset=i, timestamp=timestamp, key=key, value=value) for i, value in enumerate(values))


def batch(
    *values: bytes,
    key: bytes | None = None,
    timestamp: int = NOW_MS,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    magic: int = 2,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> bytes:
    """One batch of records with these values."""
    made = tuple(
        Record(offset=base_offset + i, timestamp=timestamp, key=key, value=value)
        for i, value in enumerate(values or (b"v",))
    )
    return wire.write_records(
        RecordBatch.of(
            *made,
            magic=magic,
            codec=codec,
            partition_leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch if producer_id < 0 or producer_epoch >= 0 else 0,
            base_sequence=base_sequence if producer_id < 0 or base_sequence >= 0 else 0,
            is_transactional=is_transactional,
        )
    )


def produced(
    producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False, **more: int
) -> bytes:
    """A batch of an idempotent producer."""
    return batch(
        *[b"%d" % i for i in range(count)], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        is_transactional=transactional, **more,
    )  # fmt: skip


def marker(
    producer_id: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 0, base_offset: int = 0,
    leader_epoch: int = -1, timestamp: int = NOW_MS,
) -> bytes:  # fmt: skip
    """The end of a transaction."""
    end = EndTransactionMarker(committed=committed, coordinator_epoch=coordinator_epoch)
    return wire.write_records(
        RecordBatch.of(
            end.to_record(offset=base_offset, timestamp=timestamp),
            producer_id=producer_id,
            producer_epoch=epoch,
            is_transactional=True,
            is_control=True,
            partition_leader_epoch=leader_epoch,
        )
    )


def append(log: Log, *values: bytes, epoch: int = 0, **more: object) -> int:
    """Append a batch as the leader; its base offset."""
    return log.append_as_leader(batch(*values, **more), epoch).first_offset  # type: ignore[arg-type]


def everything(log: Log, offset: int | None = None) -> bytes:
    """All bytes from an offset on."""
    at = log.log_start_offset if offset is None else offset
    found = b""
    while at < log.log_end_offset:
        data = log.read_bytes(at, 2**20)
        headers = [header for _, header in read_headers(data)]
        assert headers
        found += bytes(data)
        at = headers[-1].last_offset + 1
    return found


def values(log: Log, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of all records from an offset on, control records left out."""
    batches = wire.read_records(everything(log, offset)).batches
    return [(record.offset, record.value) for batch in batches if not batch.is_control for record in batch.records]


def base_offsets(log: Log) -> Sequence[int]:
    return [segment.base_offset for segment in log.segments]
