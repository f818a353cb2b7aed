"""How what comes from a leader, or from a log that moves to another directory, is appended (rule B5.19)."""

from __future__ import annotations

from kce.broker_stub.disk import Buffer
from kce.broker_stub.log import Appended, Log, UnexpectedOffset
from kce.broker_stub.log.validation import ANY_EPOCH


def append_copied(found: Log, records: Buffer, leader_epoch: int = ANY_EPOCH) -> Appended:
    """An empty log whose start is within the first batch begins with that batch; the caller moves its start on again.

    ``leader_epoch``: that of the leader who was asked, if it is another broker.

    Raises ApiException.
    """
    try:
        return found.append_as_follower(records, leader_epoch)
    except UnexpectedOffset as e:
        straddles = e.first_offset < found.log_end_offset <= e.last_offset
        if found.log_end_offset != found.log_start_offset or not straddles:
            raise
        found.truncate_fully(e.first_offset)
        return found.append_as_follower(records, leader_epoch)
