"""UnifiedLogTest and VerificationGuardTest of Kafka: what a log demands of transactional batches (TLG, TIX).

Covers: broker_stub/log/verification.py.
"""

from __future__ import annotations

import pytest

from kce.broker_stub.errors import InvalidTxnState
from kce.broker_stub.log import Log, Origin
from kce.broker_stub.log.verification import EXEMPT, VerificationGuard, Verifications
from tests.broker_stub.log.support import a_log, marker, produced

case = pytest.mark.kafka
PID, EPOCH = 23, 1


def write(
    log: Log, sequence: int, guard: VerificationGuard | None = None, *, transactional: bool = True,
    origin: Origin = Origin.CLIENT,
) -> None:  # fmt: skip
    """Two records, where verification is on."""
    records = produced(PID, sequence, 2, epoch=EPOCH, transactional=transactional)
    log.append_as_leader(records, 0, origin=origin, guard=guard)


def end(log: Log) -> None:
    log.append_as_leader(marker(PID, committed=True, epoch=EPOCH), 0, origin=Origin.COORDINATOR, guard=None)


def waiting(log: Log) -> VerificationGuard | None:
    entry = log.producers.verifications.get(PID)
    return None if entry is None else entry.guard


@case("TIX-12")
@case("TIX-13")
def test_guards_are_equal_to_themselves_only() -> None:
    one, other = VerificationGuard(), VerificationGuard()
    assert one == one
    assert len({one, other, EXEMPT}) == 3
    verifications = Verifications()
    assert not verifications.accepts(PID, None)
    assert not verifications.accepts(PID, one)
    guard = verifications.start(PID, EPOCH, 0, 0)
    assert verifications.accepts(PID, guard)
    assert not verifications.accepts(PID, other)
    assert not verifications.accepts(PID, None)


@case("TLG-16")
@pytest.mark.parametrize("origin", [Origin.CLIENT, Origin.COORDINATOR])
def test_a_guard_until_the_first_transactional_batch(origin: Origin) -> None:  # rules T10.5, T10.15, T10.18
    log = a_log(segment_bytes=2048 * 5)
    sequence = 3 if origin is Origin.CLIENT else 0
    assert not log.producers.has_open_transaction(PID)
    assert waiting(log) is None
    after = sequence + 2 if origin is Origin.CLIENT else 0
    guard = log.start_verification(PID, EPOCH, after)
    assert guard is not None
    write(log, sequence, transactional=False, origin=origin)
    assert not log.producers.has_open_transaction(PID)
    assert waiting(log) is guard
    write(log, after, guard, origin=origin)
    assert log.producers.has_open_transaction(PID)
    assert waiting(log) is None
    assert log.start_verification(PID, EPOCH, after) is None
    end(log)
    assert not log.producers.has_open_transaction(PID)
    assert waiting(log) is None
    new = log.start_verification(PID, EPOCH, after + 1)
    assert new not in (None, guard)


@case("TLG-17")
def test_a_marker_ends_a_verification() -> None:  # rule T10.18
    log = a_log()
    assert log.start_verification(PID, EPOCH, 0) is not None
    end(log)
    assert not log.producers.has_open_transaction(PID)
    assert waiting(log) is None


@case("TLG-18")
def test_turned_off_meanwhile() -> None:  # rule T10.19
    log = a_log()
    assert log.start_verification(PID, EPOCH, 0) is not None
    write(log, 0, EXEMPT)
    assert log.producers.has_open_transaction(PID)
    assert waiting(log) is None


@case("TLG-19")
def test_turned_on_while_a_request_is_on_its_way() -> None:  # rules T10.15, T10.19
    log = a_log()
    with pytest.raises(InvalidTxnState):
        write(log, 4)
    assert not log.producers.has_open_transaction(PID)
    assert waiting(log) is None
    guard = log.start_verification(PID, EPOCH, 4)
    write(log, 4, guard)
    assert log.producers.has_open_transaction(PID)
    assert waiting(log) is None


@case("TLG-20")
def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = a_log()
    write(log, 3, log.start_verification(PID, EPOCH, 3))
    assert log.log_end_offset == 2


def test_replicated_batches_need_no_verification_and_end_one() -> None:  # rules T10.15, T10.18, T12.19
    leader, follower = a_log(), a_log()
    write(leader, 0, leader.start_verification(PID, EPOCH, 0))
    assert follower.start_verification(PID, EPOCH, 0) is not None
    follower.append_as_follower(produced(PID, 0, 2, epoch=EPOCH, transactional=True, leader_epoch=0))
    assert follower.producers.has_open_transaction(PID)
    assert waiting(follower) is None


def test_a_duplicate_needs_no_verification() -> None:  # rule T10.16
    log = a_log()
    write(log, 0, log.start_verification(PID, EPOCH, 0))
    end(log)
    write(log, 0)
    assert log.log_end_offset == 3
