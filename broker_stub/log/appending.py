"""What an append changes besides the segment: where its batches are, and what they say of producers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from kce.broker_stub.disk import Buffer
from kce.broker_stub.errors import ApiException, CorruptMessage
from kce.broker_stub.log.loading import end_of_transaction
from kce.broker_stub.log.producer_state import (
    CompletedTransaction,
    Origin,
    ProducerAppend,
    ProducerStateManager,
)
from kce.broker_stub.log.validation import CheckedRecords
from kce.wire import errors
from kce.wire.batch_header import BatchHeader
from kce.wire.record import NO_TIMESTAMP

_MAX_INT32: Final = 2**31 - 1


class UnexpectedOffset(ApiException):
    """A follower's append that does not begin at the end of the log (rule B5.19)."""

    def __init__(self, text: str, first_offset: int, last_offset: int) -> None:
        super().__init__(text)
        self.first_offset = first_offset
        self.last_offset = last_offset


@dataclass(slots=True)
class Appended:
    """The result of an append; the first offset is -1 if it was empty. A duplicate has the original's offsets.

    ``converted``: how many records came in another format, or compressed otherwise.
    """

    first_offset: int
    last_offset: int
    log_start_offset: int
    log_append_time: int = NO_TIMESTAMP
    size: int = 0
    is_duplicate: bool = False
    converted: int = 0


class Extent(NamedTuple):
    """The offsets of batches that a follower appends. ``roll_offset``: of a segment that begins with them."""

    first_offset: int
    last_offset: int
    roll_offset: int
    max_timestamp: int


def extent_of(checked: CheckedRecords) -> Extent:
    """Of at least one batch. Raises ApiException if offsets do not ascend."""
    (_, first), *more = checked.batches
    max_timestamp = first.max_timestamp
    first_offset = last_offset = first.last_offset
    for _, header in more:
        before, last_offset = last_offset, header.last_offset
        if before >= last_offset:
            raise ApiException(f"offset {last_offset} follows {before}")
        max_timestamp = max(max_timestamp, header.max_timestamp)
    roll_offset = last_offset - _MAX_INT32
    if first.magic == 2:
        first_offset = roll_offset = first.base_offset
    return Extent(first_offset, last_offset, roll_offset, max_timestamp)


class ProducerUpdates:
    """What batches change in the state of producers, once they are in the log."""

    __slots__ = ("appends", "completed")

    def __init__(self) -> None:
        self.appends: dict[int, ProducerAppend] = {}
        #: transactions that end with these batches
        self.completed: list[CompletedTransaction] = []

    def add(
        self, producers: ProducerStateManager, header: BatchHeader, parts: tuple[Buffer, ...], origin: Origin
    ) -> None:
        """Check and remember a batch, which may come in parts.

        What waits for a verification need not wait any more (rule T10.18). Raises ApiException (section 3e).
        """
        append = self.appends.get(header.producer_id)
        if append is None:
            append = self.appends[header.producer_id] = producers.prepare(header.producer_id, origin)
        if header.is_control:
            try:
                marker = end_of_transaction(header, b"".join(parts))
            except errors.CorruptRecord as e:
                raise CorruptMessage(str(e)) from None
            if (transaction := append.append(header, marker)) is not None:
                self.completed.append(transaction)
        else:
            append.append_data(header)
        if header.is_transactional:
            producers.verifications.end(header.producer_id)

    @classmethod
    def replicated(cls, producers: ProducerStateManager, checked: CheckedRecords) -> ProducerUpdates:
        """Rule B3.55. Raises CorruptMessage."""
        updates = cls()
        for at, header in checked.batches:
            if header.has_producer:
                updates.add(producers, header, (checked.data[at : at + header.size],), Origin.REPLICATION)
        return updates
