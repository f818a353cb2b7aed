"""LI: LeaderAndIsr values (section 14 of docs/controller-semantics.md; rule 7.1)."""

from __future__ import annotations

import pytest

from kce.wire.vocabulary import RECOVERED, RECOVERING
from kce.zookeeper.model import NO_LEADER, BrokerId, LeaderAndIsr
from tests.controller.conformance.bench import ids

BEFORE = LeaderAndIsr(BrokerId(1), ids(1, 2), 4, RECOVERED, 7)


@pytest.mark.kafka("LI-1")
def test_recovering() -> None:
    assert BEFORE.new_recovering(BrokerId(3), ids(3)) == LeaderAndIsr(BrokerId(3), ids(3), 5, RECOVERING, 7)


@pytest.mark.kafka("LI-2")
@pytest.mark.parametrize("recovery", [RECOVERED, RECOVERING])
def test_new_leader_and_isr(recovery: int) -> None:
    before = LeaderAndIsr(BrokerId(1), ids(1, 2), 4, recovery, 7)
    assert before.new_leader_and_isr(BrokerId(2), ids(2)) == LeaderAndIsr(BrokerId(2), ids(2), 5, recovery, 7)


@pytest.mark.kafka("LI-3")
def test_new_leader() -> None:
    assert BEFORE.new_leader(BrokerId(2)) == LeaderAndIsr(BrokerId(2), ids(1, 2), 5, RECOVERED, 7)


@pytest.mark.kafka("LI-4")
def test_new_epoch() -> None:
    assert BEFORE.new_epoch() == LeaderAndIsr(BrokerId(1), ids(1, 2), 5, RECOVERED, 7)


@pytest.mark.kafka("LI-5")
def test_no_leader() -> None:
    assert BEFORE.elected == 1
    assert BEFORE.new_leader(NO_LEADER).elected is None
