"""Appends the commits of consumers to `__consumer_offsets`; those that arrive together share a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.groups.storage import OffsetsLog
from kce.broker_stub.internal_log import OnAppended
from kce.wire import ErrorCode

log = logging.getLogger(__name__)

#: keys and values
Records: TypeAlias = Sequence[tuple[bytes, bytes]]

#: what is refused with them for its size, and not at all appended
TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)


class _Commit(NamedTuple):
    records: Records
    on_appended: OnAppended


class CommitLog:
    """``batch`` makes one of the records of commits."""

    def __init__(self, offsets_log: OffsetsLog, batch: Callable[[Records], bytes]) -> None:
        self._log = offsets_log
        self._batch = batch
        #: by partition, what is to be appended; None unless commits are handled together
        self._together: dict[int, list[_Commit]] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is appended within shares one batch for each partition, which is appended at the end."""
        waiting: dict[int, list[_Commit]] = {}
        self._together = waiting
        try:
            yield
        finally:
            self._together = None
            for partition, commits in waiting.items():
                self._append(partition, commits)

    def append(self, partition: int, records: Records, on_appended: OnAppended) -> None:
        """``on_appended`` gets the offset of the first record, or what became of it."""
        commit = _Commit(records, on_appended)
        if self._together is None:
            self._append(partition, (commit,))
        else:
            self._together.setdefault(partition, []).append(commit)

    def _append(self, partition: int, commits: Sequence[_Commit]) -> None:
        def appended(first_offset: int, code: ErrorCode) -> None:
            if code in TOO_LARGE and len(commits) > 1:  # each of them may be small enough
                for commit in commits:
                    self._append(partition, (commit,))
                return
            for commit in commits:
                try:
                    commit.on_appended(first_offset, code)
                except Exception:  # the others are not concerned
                    log.exception("the end of a commit to partition %d could not be processed", partition)
                first_offset += len(commit.records)

        self._log.append(partition, self._batch([record for commit in commits for record in commit.records]), appended)
