"""Load a log from its folder, and repair it after an unclean shutdown (rules B6.26 to B6.29)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kce.broker_stub.disk import Buffer
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.indexes import AbortedTransaction, CorruptIndex
from kce.broker_stub.log.leader_epochs import LeaderEpochCache
from kce.broker_stub.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_FILES,
    SWAP,
    TXN_INDEX,
    parse_offset_name,
)
from kce.broker_stub.log.producer_state import CompletedTransaction, Origin, ProducerAppend, ProducerStateManager
from kce.broker_stub.log.segment import Segment, scan
from kce.broker_stub.log.segments import LogContext, Segments
from kce.wire import errors
from kce.wire.batch_header import BatchHeader
from kce.wire.record import EndTransactionMarker
from kce.wire.records import read_records

log = logging.getLogger(__name__)


class LoadedLog(NamedTuple):
    segments: Segments
    log_start_offset: int
    recovery_point: int


def end_of_transaction(header: BatchHeader, batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch; None if it is of another kind or empty. Raises CorruptRecord."""
    if not header.is_control:
        return None
    records = read_records(batch, check_crc=False).batches[0].records
    return EndTransactionMarker.from_record(records[0]) if records else None


def load(
    context: LogContext,
    folder: str,
    config: LogConfig,
    *,
    clean: bool,
    log_start_offset: int,
    recovery_point: int,
    epochs: LeaderEpochCache,
    producers: ProducerStateManager,
) -> LoadedLog:
    """``clean``: the broker before has ended well, and nothing needs to be recovered. Raises OSError."""
    return _Loader(context, folder, config, epochs, producers, log_start_offset).load(clean, recovery_point)


class _Loader:
    def __init__(
        self,
        context: LogContext,
        folder: str,
        config: LogConfig,
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        log_start_offset: int,
    ) -> None:
        self._context = context
        self._disk = context.disk
        self._folder = folder
        self._config = config
        self._epochs = epochs
        self._producers = producers
        self._log_start_offset = log_start_offset

    def load(self, clean: bool, recovery_point: int) -> LoadedLog:
        names = self._complete_swaps(self._disk.files(self._folder))
        segments = self._open(names)
        if not clean:
            segments = self._recover(segments, recovery_point)
        end = segments[-1].next_offset() if segments else self._log_start_offset
        if segments and end < self._log_start_offset:  # rule B6.28
            log.warning("%s ends at %d, before its start at %d", self._folder, end, self._log_start_offset)
            self._producers.truncate_fully(self._log_start_offset)
            self._delete(segments)
            self._epochs.clear()
            segments, end = [], self._log_start_offset
        if not segments:
            segments = [self._segment(self._log_start_offset, Segment.create)]
        self._epochs.truncate_from_end(end)
        start = max(self._log_start_offset, segments[0].base_offset)
        self._epochs.truncate_from_start(self._log_start_offset)
        self._producers.reload_snapshots()  # those of recovered segments are new
        self._producers.remove_stray({segment.base_offset for segment in segments})
        rebuild_producers(self._producers, segments, start, end, clean=clean, now_ms=self._context.now_ms())
        flushed = end if clean else max(start, min(recovery_point, end))
        return LoadedLog(Segments(self._context, self._folder, segments, end), start, flushed)

    def _complete_swaps(self, names: list[str]) -> list[str]:
        """Remove what was to be removed, and finish the compaction that a crash has interrupted; the files then."""
        cleaned = [name for name in names if name.endswith(CLEANED)]
        least_cleaned = min((_offset(name, CLEANED) for name in cleaned), default=None)
        swaps = [name for name in names if name.endswith(SWAP)]
        invalid = [name for name in swaps if least_cleaned is not None and _offset(name, SWAP) >= least_cleaned]
        temporary = [name for name in names if name.endswith(DELETED)] + cleaned + invalid
        for name in temporary:
            self._disk.delete(f"{self._folder}/{name}")
        swaps = [name for name in swaps if name not in invalid]
        logs = [name for name in swaps if name.endswith(LOG + SWAP)]
        if not swaps:
            return [name for name in names if name not in temporary]
        if logs:
            self._delete_replaced(names, logs)
        for name in swaps:
            self._disk.rename(f"{self._folder}/{name}", f"{self._folder}/{name.removesuffix(SWAP)}")
        return self._disk.files(self._folder)

    def _delete_replaced(self, names: list[str], swaps: list[str]) -> None:
        """Delete the segments that the swapped-in ones replace, and the snapshots in their range."""
        least = end = _offset(swaps[0], SWAP)
        for name in swaps:
            path, base_offset = f"{self._folder}/{name}", _offset(name, SWAP)
            file = self._disk.open(path)
            least = min(least, base_offset)
            end = max([end, base_offset, *(place.header.last_offset + 1 for place in scan(file, path, file.size))])
        for name in names:
            parsed = parse_offset_name(name)
            if parsed and least <= parsed[0] < end:
                self._disk.delete(f"{self._folder}/{name}")

    def _segment(self, base_offset: int, made: Callable[..., Segment] = Segment) -> Segment:
        context, config = self._context, self._config
        jitter_ms = config.jitter_ms(context.random)
        return made(self._disk, self._folder, base_offset, config, now_ms=context.now_ms(), jitter_ms=jitter_ms)

    def _open(self, names: list[str]) -> list[Segment]:
        parsed = [(name, found) for name in names if (found := parse_offset_name(name)) is not None]
        offsets = sorted(offset for _, (offset, suffix) in parsed if suffix == LOG)
        known = set(offsets)
        for name, (offset, suffix) in parsed:
            if suffix in SEGMENT_FILES and offset not in known:
                log.warning("%s/%s belongs to no segment", self._folder, name)
                self._disk.delete(f"{self._folder}/{name}")
        segments: list[Segment] = []
        present = set(names)
        for offset in offsets:
            segment = self._segment(offset)
            if not self._is_sane(segment, present):
                log.warning("rebuilding the indexes of %s in %s", segment, self._folder)
                self._recover_segment(segment, segments)
            segments.append(segment)
        return segments

    def _is_sane(self, segment: Segment, names: set[str]) -> bool:
        """A time index that is missing is made on first use: to recover the segment here would hide damage."""
        if segment.path(INDEX).rpartition("/")[2] not in names:
            return False
        try:
            if segment.path(TXN_INDEX).rpartition("/")[2] in names:
                return segment.txn_index is not None
        except CorruptIndex:
            return False
        return True

    def _recover(self, segments: list[Segment], recovery_point: int) -> list[Segment]:
        """Rule B6.27: the segments from that of the recovery point on are checked."""
        first = max([i for i, segment in enumerate(segments) if segment.base_offset <= recovery_point], default=0)
        for i in range(first, len(segments)):
            cut = self._recover_segment(segments[i], segments)
            if cut:
                log.warning("%s in %s: %d bytes of damage are cut off", segments[i], self._folder, cut)
                self._delete(segments[i + 1 :])
                return segments[: i + 1]
        return segments

    def _recover_segment(self, segment: Segment, known: list[Segment]) -> int:
        """The state of producers and epochs is made from its batches, too. ``known``: among them those before it."""
        producers = ProducerStateManager(
            self._disk, self._folder, expiration_ms=self._context.producer_id_expiration_ms
        )
        now_ms = self._context.now_ms()
        start = self._log_start_offset
        rebuild_producers(producers, known, start, segment.base_offset, clean=False, now_ms=now_ms)

        def each(header: BatchHeader, batch: memoryview) -> None:
            if header.magic < 2:
                return
            latest = self._epochs.latest
            if header.partition_leader_epoch > (-1 if latest is None else latest):
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            if header.has_producer:
                append = producers.prepare(header.producer_id, Origin.REPLICATION)
                completed = append.append(header, end_of_transaction(header, batch))
                producers.update(header.producer_id, append)
                if completed is not None:
                    stable = producers.last_stable_offset(completed)
                    if completed.is_aborted:
                        segment.txn_index.append(aborted_transaction(completed, stable))
                    producers.complete(completed)
            producers.map_end_offset = header.last_offset + 1

        cut = segment.recover(each)
        producers.take_snapshot()
        return cut

    def _delete(self, segments: list[Segment]) -> None:
        paths = [path for segment in segments for path in segment.delete_later()]
        for segment in segments:
            paths += self._producers.delete_later(segment.base_offset)
        if paths:
            self._context.delete_later(paths, self._config.file_delete_delay_ms)


def aborted_transaction(completed: CompletedTransaction, last_stable_offset: int) -> AbortedTransaction:
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset)


def _offset(name: str, suffix: str) -> int:
    found = parse_offset_name(name.removesuffix(suffix))
    return -1 if found is None else found[0]


def rebuild_producers(
    producers: ProducerStateManager,
    segments: Iterable[Segment],
    log_start_offset: int,
    end_offset: int,
    *,
    clean: bool,
    now_ms: int,
) -> None:
    """Make the state at the end of the log: the newest snapshot, and the batches after it."""
    known = list(segments)
    to_snapshot = [segment.base_offset for segment in known[-2:]]
    if clean and not producers.snapshots:
        for offset in (*to_snapshot, end_offset):  # written before there were snapshots: nothing is known
            producers.map_end_offset = offset
            producers.take_snapshot()
        return
    was_empty = producers.is_empty and producers.map_end_offset >= end_offset
    producers.truncate_and_reload(log_start_offset, end_offset, now_ms)
    if end_offset > producers.map_end_offset and not was_empty:
        for i, segment in enumerate(known):
            following = known[i + 1].base_offset if i + 1 < len(known) else end_offset
            if following <= producers.map_end_offset or segment.base_offset >= end_offset:
                continue
            start = max(segment.base_offset, producers.map_end_offset, log_start_offset)
            producers.map_end_offset = start
            if segment.base_offset in to_snapshot:
                producers.take_snapshot()
            _replay(producers, segment, start, end_offset)
    producers.map_end_offset = end_offset
    producers.take_snapshot()


def _replay(producers: ProducerStateManager, segment: Segment, start: int, end: int) -> None:
    appends: dict[int, ProducerAppend] = {}
    completed = []
    for header, batch in _batches(segment, start, end):
        if header.has_producer:
            append = appends.get(header.producer_id)
            if append is None:
                append = appends[header.producer_id] = producers.prepare(header.producer_id, Origin.REPLICATION)
            if (transaction := append.append(header, end_of_transaction(header, batch))) is not None:
                completed.append(transaction)
    for producer_id, append in appends.items():
        producers.update(producer_id, append)
    for transaction in completed:
        producers.complete(transaction)


def _batches(segment: Segment, start: int, end: int) -> Iterator[tuple[BatchHeader, Buffer]]:
    """The batches with offsets in a range; of data batches only the headers."""
    first = segment.find(start)
    if first is None:
        return
    try:
        for place in segment.scan(first.position):
            if place.header.base_offset >= end:
                return
            is_control = place.header.is_control
            yield place.header, segment.read(place.position, place.header.size) if is_control else b""
    except errors.CorruptRecord as e:
        log.warning("%s: %s", segment, e)
