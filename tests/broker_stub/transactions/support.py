"""A transaction coordinator on a log in memory, with markers that the test sends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kce.broker_stub.errors import ApiException
from kce.broker_stub.internal_log import OnAppended
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.transaction_config import TransactionConfig
from kce.broker_stub.transactions.coordinator import InitResult, TransactionCoordinator
from kce.broker_stub.transactions.manager import TransactionManager
from kce.broker_stub.transactions.markers import Ending
from kce.broker_stub.transactions.metadata import TransactionMetadata, TransactionState, Values
from kce.broker_stub.transactions.records import read_key, read_value, write_key, write_value
from kce.wire import ErrorCode
from kce.wire.configuration import Properties
from kce.wire.record import Record, RecordBatch
from kce.wire.records import read_records, write_records
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.groups.support import Result, moved

START_MS = 1_700_000_000_000
ID, PID, EPOCH, COORDINATOR_EPOCH = "known", 10, 1, 7
A, B = TopicPartition("topic1", 0), TopicPartition("topic2", 1)
PARTITIONS = frozenset({A, B})
TIMEOUT_MS = 60_000
S = TransactionState


class MemoryTransactionLog:
    """Appends to lists. ``error`` fails the next appends; with ``held`` they end when ``release`` is called."""

    def __init__(self) -> None:
        self.batches: dict[int, list[RecordBatch]] = {}
        self.limit: int | None = 1_000_000
        self.error = ErrorCode.NONE
        self.held = False
        self.timeouts: list[int] = []
        self._waiting: list[tuple[OnAppended, int, bytes]] = []

    def max_batch_bytes(self, partition: int) -> int | None:
        return self.limit

    def append(self, partition: int, records: bytes, timeout_ms: int, on_appended: OnAppended) -> None:
        self.timeouts.append(timeout_ms)
        self._waiting.append((on_appended, partition, records))
        if not self.held:
            self.release(self.error)

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self._waiting = self._waiting, []
        for on_appended, partition, records in waiting:
            if error is ErrorCode.NONE:
                self.put(partition, records)
            on_appended(-1, error)

    def put(self, partition: int, records: bytes) -> None:
        batches = self.batches.setdefault(partition, [])
        (batch,) = read_records(records).batches
        batches.append(moved(batch, batches[-1].last_offset + 1 if batches else 0))

    def put_values(self, partition: int, transactional_id: str, values: Values | None) -> None:
        value = None if values is None else write_value(values)
        self.put(
            partition, write_records(RecordBatch.of(Record(offset=0, key=write_key(transactional_id), value=value)))
        )

    def read(self, partition: int) -> Iterator[RecordBatch]:
        if self.limit is None:
            raise ApiException("there is no log")
        yield from list(self.batches.get(partition, []))

    @property
    def written(self) -> list[tuple[str | None, Values | None]]:
        """Id and value of each record."""
        return [
            (read_key(record.key or b""), None if record.value is None else read_value(record.value))
            for batches in self.batches.values()
            for batch in batches
            for record in batch.records
        ]

    @property
    def states(self) -> list[TransactionState | None]:
        return [None if value is None else value.state for _, value in self.written]


class Ids:
    """Producer ids from ``first`` on, until there are none."""

    def __init__(self, first: int = 0, count: int = 1000) -> None:
        self.left = list(range(first, first + count))

    def next_id(self) -> int | None:
        return self.left.pop(0) if self.left else None


class Markers:
    """What is to be sent."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []
        self.retried: list[Ending] = []
        self.forgotten: list[int] = []

    def send(self, ending: Ending) -> None:
        self.endings.append(ending)
        if not ending.remaining:
            ending.finished()

    def finish_later(self, ending: Ending) -> None:
        self.retried.append(ending)

    def forget(self, state_partition: int) -> None:
        self.forgotten.append(state_partition)

    def write(self, ending: Ending | None = None) -> None:
        """Of the last transaction: all markers are written."""
        ending = ending or self.endings[-1]
        for partition in list(ending.remaining):
            ending.marker_written(partition)
        ending.finished()


class Host:
    """It owns every partition since epoch 7, but those of ``state`` and what a test loads."""

    def __init__(self, *, owns: bool = True, partitions: int = 2, first_id: int = 100, **properties: str) -> None:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        self.config = TransactionConfig.from_properties(Properties(given))
        self.log = MemoryTransactionLog()
        self.now = START_MS
        self.ids = Ids(first_id)
        self.markers = Markers()
        self.manager = TransactionManager(self.config, self.log, lambda: self.now, partitions, 30_000)
        fakes: Any = (self.markers, self.ids)
        self.coordinator = TransactionCoordinator(self.config, self.manager, *fakes)
        self._partitions = partitions
        self.owns = owns

    async def started(self) -> Host:
        if self.owns:
            for number in range(self._partitions):
                self.lead(number)
        await self.work()
        return self

    def lead(self, number: int, epoch: int = COORDINATOR_EPOCH) -> None:
        self.coordinator.became_leader(TopicPartition(TRANSACTION_STATE_TOPIC, number), epoch)

    def resign(self, number: int, epoch: int | None = None) -> None:
        self.coordinator.resigned(TopicPartition(TRANSACTION_STATE_TOPIC, number), epoch)

    async def work(self) -> None:
        """Do what waits in the background."""
        while self.manager._work:
            await self.manager._work.do_next()

    def put(
        self, state: TransactionState = S.EMPTY, *, transactional_id: str = ID, pending: TransactionState | None = None,
        **more: Any,
    ) -> TransactionMetadata:  # fmt: skip
        """In memory only."""
        values = Values(
            producer_id=PID, producer_epoch=EPOCH, timeout_ms=TIMEOUT_MS, last_update_ms=self.now, state=state,
            partitions=frozenset() if state.is_at_rest else PARTITIONS,
            start_ms=-1 if state is S.EMPTY else self.now,
        )  # fmt: skip
        metadata = TransactionMetadata(transactional_id, values._replace(**more))
        metadata.pending = pending
        self.manager.owned(transactional_id).ids[transactional_id] = metadata
        return metadata

    def metadata(self, transactional_id: str = ID) -> TransactionMetadata:
        return self.manager.owned(transactional_id).ids[transactional_id]

    # requests

    def init(
        self, transactional_id: str = ID, timeout_ms: int = TIMEOUT_MS, expected: tuple[int, int] | None = None
    ) -> Any:
        """Error, producer id, epoch; what is parked has no answer."""
        result = Result()
        self.coordinator.init_producer_id(transactional_id, timeout_ms, expected, result)
        return result if result.is_parked else tuple(result.answer)

    def add(
        self, partitions: Iterable[TopicPartition] = PARTITIONS, *, transactional_id: str = ID, pid: int = PID,
        epoch: int = EPOCH,
    ) -> Any:  # fmt: skip
        result = Result()
        self.coordinator.add_partitions(transactional_id, pid, epoch, list(partitions), result)
        return result if result.is_parked else result.answer

    def verify(
        self, partitions: Iterable[TopicPartition] = PARTITIONS, *, pid: int = PID, epoch: int = EPOCH
    ) -> list[ErrorCode]:
        return list(self.coordinator.verify_partitions(ID, pid, epoch, list(partitions)).values())

    def end(self, *, commit: bool = True, transactional_id: str = ID, pid: int = PID, epoch: int = EPOCH) -> Any:
        result = Result()
        self.coordinator.end(transactional_id, pid, epoch, commit=commit, on_done=result)
        return result if result.is_parked else result.answer


def refusal(code: ErrorCode) -> tuple[Any, ...]:
    return tuple(InitResult(code))
