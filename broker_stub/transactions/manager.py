"""The transactional ids of a broker: which partitions of `__transaction_state` it owns, what it writes (section 9).

Loads, timeouts and expiry happen one after the other, in the task of ``run`` (rule T1.8).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

import trio

from kce.broker_stub.background_work import BackgroundWork, LoadTimes, fold
from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.internal_topics import partition_for
from kce.broker_stub.transaction_config import TransactionConfig
from kce.broker_stub.transactions.loading import Fold
from kce.broker_stub.transactions.metadata import TransactionMetadata, Values
from kce.broker_stub.transactions.records import write_key, write_value
from kce.broker_stub.transactions.storage import TransactionLog
from kce.wire import ErrorCode, WireError
from kce.wire.record_batch import write_values

log = logging.getLogger(__name__)

#: what an append's code becomes; others stay (rule T9.7)
APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
#: of a batch, and of a record beside its key
_BATCH_OVERHEAD: Final = 61
_RECORD_OVERHEAD: Final = 32


@dataclass(slots=True)
class Owned:
    """A partition of `__transaction_state` that is led here, since that leader epoch."""

    coordinator_epoch: int
    ids: dict[str, TransactionMetadata]


class TransactionManager:
    """``on_loaded`` is told of each id whose markers are to be sent again, with the coordinator epoch."""

    def __init__(
        self,
        config: TransactionConfig,
        transaction_log: TransactionLog,
        now_ms: Callable[[], int],
        partition_count: int,
        request_timeout_ms: int,
    ) -> None:
        """``partition_count``: of `__transaction_state`, as of the broker's start (rule T1.2)."""
        self.on_loaded: Callable[[int, TransactionMetadata], None] = lambda epoch, metadata: None
        #: aborts what is timed out; the coordinator's
        self.abort_timed_out: Callable[[], None] = lambda: None
        self.partition_count = partition_count
        self.now_ms = now_ms
        self._config = config
        self._log = transaction_log
        self._request_timeout_ms = request_timeout_ms
        self._owned: dict[int, Owned] = {}
        #: partition -> leader epoch
        self._loading: dict[int, int] = {}
        self._work = BackgroundWork(log)
        self.load_times = LoadTimes(now_ms)

    # which ids there are

    def partition_of(self, transactional_id: str) -> int:
        return partition_for(transactional_id, self.partition_count)

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def owned(self, transactional_id: str) -> Owned:
        """The gate of every call with an id (rule T1.6). Raises Refused."""
        partition = self.partition_of(transactional_id)
        if partition in self._loading:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        found = self._owned.get(partition)
        if found is None:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        return found

    def is_current(self, transactional_id: str, coordinator_epoch: int) -> bool:
        """Whether this broker coordinates the id in that epoch."""
        partition = self.partition_of(transactional_id)
        found = self._owned.get(partition)
        return partition not in self._loading and found is not None and found.coordinator_epoch == coordinator_epoch

    def all_ids(self) -> Iterator[TransactionMetadata]:
        for owned in self._owned.values():
            yield from owned.ids.values()

    # what runs in the background

    async def run(self) -> None:
        """Until cancelled."""
        config = self._config
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._regularly, config.abort_interval_ms, self._abort_timed_out)
            nursery.start_soon(self._regularly, config.expiry_interval_ms, self._remove_expired)
            await self._work.run()

    async def _regularly(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:  # first after one interval (rules T8.1, T8.7)
            await trio.sleep(interval_ms / 1000)
            self._work.later(work)

    async def _abort_timed_out(self) -> None:
        self.abort_timed_out()

    async def _remove_expired(self) -> None:
        self.remove_expired()

    def load(self, partition: int, leader_epoch: int) -> None:
        """This broker leads the partition now; it is loading from this moment (rules T9.12, T9.18, T13.1)."""
        self._loading[partition] = leader_epoch
        started_ms = self.now_ms()

        async def work() -> None:
            await self._load(partition, leader_epoch, started_ms)

        self._work.later(work)

    def unload(self, partition: int) -> None:
        """This broker does not lead the partition any more; a load that runs is dropped (rule T9.16)."""
        self._loading.pop(partition, None)
        if self._owned.pop(partition, None) is not None:
            log.info("unloaded partition %d of transactions", partition)

    async def _load(self, partition: int, leader_epoch: int, started_ms: int) -> None:
        """Rules T9.13 to T9.17."""
        loaded = Fold()
        try:
            await fold(self._log.read(partition), loaded.add)
        except (ApiException, WireError) as e:
            log.error("partition %d of transactions is not loaded to its end: %s", partition, e)
        self.load_times.add(started_ms)
        if self._loading.get(partition) != leader_epoch:
            return  # it is led by another broker meanwhile, or in a later epoch
        self._owned[partition] = Owned(leader_epoch, loaded.found)
        del self._loading[partition]
        log.info("loaded %d ids of partition %d in leader epoch %d", len(loaded.found), partition, leader_epoch)
        for metadata in list(loaded.found.values()):
            if metadata.values.state.is_preparing:  # rule T9.14
                self.on_loaded(leader_epoch, metadata)

    # what is written

    def append(
        self,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        new: Values,
        on_appended: Callable[[ErrorCode], None],
        *,
        retries: Callable[[ErrorCode], bool] = lambda code: False,
    ) -> None:
        """Write what was prepared, and apply it once it is there; ``on_appended`` gets what to answer.

        ``retries``: whether it will be appended again after that error, so that it stays pending (rules T9.5 to T9.8).
        """
        transactional_id = metadata.transactional_id
        try:
            self._check_unchanged(metadata, coordinator_epoch)
            records = self._batch({write_key(transactional_id): write_value(new)})
        except Refused as e:
            on_appended(e.code)
            return
        except WireError as e:
            log.error("%r cannot be written: %s", metadata, e)
            metadata.pending = None
            on_appended(ErrorCode.UNKNOWN_SERVER_ERROR)
            return

        def appended(first_offset: int, code: ErrorCode) -> None:
            on_appended(self._appended(metadata, coordinator_epoch, new, code, retries))

        self._log.append(self.partition_of(transactional_id), records, new.timeout_ms, appended)

    def _check_unchanged(self, metadata: TransactionMetadata, coordinator_epoch: int) -> None:
        """Raises Refused (rules T9.6, T9.8)."""
        owned = self.owned(metadata.transactional_id)
        if owned.coordinator_epoch != coordinator_epoch or owned.ids.get(metadata.transactional_id) is not metadata:
            raise Refused(ErrorCode.NOT_COORDINATOR)

    def _appended(
        self,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        new: Values,
        code: ErrorCode,
        retries: Callable[[ErrorCode], bool],
    ) -> ErrorCode:
        error = APPEND_ERRORS.get(code, code)
        try:
            self._check_unchanged(metadata, coordinator_epoch)
        except Refused as e:
            return e.code if code is ErrorCode.NONE else error
        if code is ErrorCode.NONE:
            try:
                metadata.complete(new)
            except Exception:  # rule T2.7
                log.exception("%r cannot become what is in the log", metadata)
                return ErrorCode.UNKNOWN_SERVER_ERROR
            return ErrorCode.NONE
        log.warning("the record of %r could not be appended: %s", metadata, code.name)
        if not retries(error):
            metadata.pending = None
        return error

    def _batch(self, values: dict[bytes, bytes | None]) -> bytes:
        """Rule T9.5."""
        return write_values(values.items(), self.now_ms())

    # what is removed

    def remove_expired(self) -> None:
        """Bury ids that were not used for long (rules T8.7 to T8.11)."""
        now, expiration = self.now_ms(), self._config.transactional_id_expiration_ms
        for partition, owned in list(self._owned.items()):
            limit = self._log.max_batch_bytes(partition)
            if partition in self._loading or limit is None:
                continue
            expired = [metadata for metadata in owned.ids.values() if metadata.is_expired(now, expiration)]
            for some in _by_size(expired, limit):
                self._bury(partition, owned, some)

    def _bury(self, partition: int, owned: Owned, expired: list[TransactionMetadata]) -> None:
        epochs = [metadata.values.producer_epoch for metadata in expired]
        for metadata in expired:
            metadata.prepare_dead()
        tombstones: dict[bytes, bytes | None] = {write_key(metadata.transactional_id): None for metadata in expired}

        def appended(first_offset: int, code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                log.warning("%d tombstones could not be appended: %s", len(expired), code.name)
            for metadata, epoch in zip(expired, epochs, strict=True):
                if self._owned.get(partition) is not owned:
                    return
                if code is ErrorCode.NONE and metadata.values.producer_epoch == epoch:
                    owned.ids.pop(metadata.transactional_id, None)
                else:
                    metadata.pending = None

        self._log.append(partition, self._batch(tombstones), self._request_timeout_ms, appended)


def _by_size(expired: list[TransactionMetadata], limit: int) -> Iterator[list[TransactionMetadata]]:
    """Those whose tombstones fit into one batch; at least one (rule T8.9)."""
    some: list[TransactionMetadata] = []
    size = _BATCH_OVERHEAD
    for metadata in expired:
        own = len(write_key(metadata.transactional_id)) + _RECORD_OVERHEAD
        if some and size + own > limit:
            yield some
            some, size = [], _BATCH_OVERHEAD
        some.append(metadata)
        size += own
    if some:
        yield some
