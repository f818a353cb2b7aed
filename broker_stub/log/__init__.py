"""Kafka's log, in Kafka's file formats, on a `Disk` (sections 3b to 3g, 5c and 6 of the broker's rules).

    log             one partition's log: appends, reads, high watermark, truncation
      files           its folder, made when something is to be written; the rest of a log that nobody uses
      validation      what a leader checks of a batch, and how it gets its offsets
      appending       what else an append changes; its result
      retention       which segments are old
      producer_state  idempotent producers and open transactions; snapshots are their files
      leader_epochs   which leader epoch wrote from which offset on
      segments        the segments in a row
        segment         a file of batches
        indexes         offset -> place, timestamp -> offset, aborted transactions
      compaction      what a cleaner keeps of a batch
      loading         reads a log from its folder, and repairs it after a crash
    manager         all logs of a broker; upkeep: their periodic duties; cleaner: compacts them
    future_logs     logs on their way to another directory
    config          the settings of a log
    checkpoints     small text files; names: what everything is called

Nothing but cleaner, manager and upkeep awaits, and nothing decodes a record unless the topic's settings ask for it.
"""

from __future__ import annotations

from kce.broker_stub.log.appending import Appended, UnexpectedOffset
from kce.broker_stub.log.config import LogConfig
from kce.broker_stub.log.log import Isolation, Log
from kce.broker_stub.log.producer_state import Origin
from kce.broker_stub.log.segments import FetchedRecords, LogContext, OffsetMetadata

__all__ = [
    "Appended",
    "FetchedRecords",
    "Isolation",
    "Log",
    "LogConfig",
    "LogContext",
    "OffsetMetadata",
    "Origin",
    "UnexpectedOffset",
]
