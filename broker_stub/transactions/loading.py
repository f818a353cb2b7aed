"""Transactional ids from the records of a partition of `__transaction_state` (rules T9.1, T9.13, T9.20)."""

from __future__ import annotations

import logging

from kce.broker_stub.transactions.metadata import TransactionMetadata
from kce.broker_stub.transactions.records import read_key, read_value
from kce.wire.errors import CorruptRecord
from kce.wire.record import RecordBatch

log = logging.getLogger(__name__)


class Fold:
    """Takes the batches of a partition in the order of its log. ``found`` is what they say so far."""

    def __init__(self) -> None:
        self.found: dict[str, TransactionMetadata] = {}

    def add(self, batch: RecordBatch) -> None:
        """Raises DecodeError, CorruptRecord; the records before are taken."""
        for record in batch.records:
            if record.key is None:
                raise CorruptRecord(f"record at offset {record.offset}: without a key")
            transactional_id = read_key(record.key)
            if transactional_id is None:
                log.warning("the record at offset %d is of an unknown type, and ignored", record.offset)
            elif record.value is None:
                self.found.pop(transactional_id, None)
            else:
                self.found[transactional_id] = TransactionMetadata(transactional_id, read_value(record.value))
