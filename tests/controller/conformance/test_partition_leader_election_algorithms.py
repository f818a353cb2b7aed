"""PLE: who is elected (section 14 of docs/controller-semantics.md; rules of section 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trio.testing import MockClock

from kce.controller.leader_selection import (
    Elected,
    Strategy,
    elect_for_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassigned,
)
from kce.controller.states import PartitionState
from kce.wire.vocabulary import RECOVERED
from kce.zookeeper.model import BrokerId, LeaderAndIsr
from tests.controller.conformance.bench import TP, bench, ids, leadership, put_config, stored
from tests.controller.support import world


def live(*brokers: int) -> Callable[[BrokerId], bool]:
    return set(brokers).__contains__


def state(*isr: int, leader: int = -1) -> LeaderAndIsr:
    return LeaderAndIsr(BrokerId(leader), ids(*isr), 5, RECOVERED, 3)


def to(leader: int, isr: tuple[int, ...], recipients: tuple[int, ...]) -> Elected:
    """A clean election from ``state``: the epoch goes up, the version of the write stays (rule 7.1)."""
    return Elected(LeaderAndIsr(BrokerId(leader), ids(*isr), 6, RECOVERED, 3), ids(*recipients))


@pytest.mark.kafka("PLE-1")
def test_offline() -> None:  # rules 7.5, 7.8
    elected = elect_offline(state(2, 4), ids(2, 4), live(4), unclean_allowed=False, recovery_supported=True)
    assert elected == to(4, (4,), (4,))


async def unclean_election(*, allowed: bool) -> tuple[tuple[int, int, tuple[int, ...]], int]:
    """Replicas [2, 4], ISR [2], 4 alone is alive: the state in ZooKeeper and the unclean elections counted."""
    async with world([1, 4]) as w:
        runtime = await bench(w, {0: [2, 4]})
        await put_config(w, "t", unclean_leader_election_enable=str(allowed).lower())
        await stored(w, runtime, TP, leadership(-1, [2], 5))
        runtime.context.put_partition_state(TP, PartitionState.OFFLINE)
        await runtime.partitions.handle_state_changes([TP], PartitionState.ONLINE, Strategy.OFFLINE)
        return await w.state("t"), runtime.partitions.unclean_elections


@pytest.mark.kafka("PLE-2")
async def test_offline_when_the_last_isr_member_is_dead_and_unclean_election_is_off(autojump_clock: MockClock) -> None:
    assert await unclean_election(allowed=False) == ((-1, 5, (2,)), 0)


@pytest.mark.kafka("PLE-3")
async def test_offline_when_the_last_isr_member_is_dead_and_unclean_election_is_on(autojump_clock: MockClock) -> None:
    assert await unclean_election(allowed=True) == ((4, 6, (4,)), 1)  # rule 7.6


@pytest.mark.kafka("PLE-4")
def test_reassign() -> None:  # rule 7.10
    assert elect_reassigned(state(2, 4), ids(2, 4), live(4)) == to(4, (2, 4), (2, 4))


@pytest.mark.kafka("PLE-5")
def test_reassign_without_live_isr_member() -> None:
    assert elect_reassigned(state(2, 4), ids(2, 4), live()) is None


@pytest.mark.kafka("PLE-6")
def test_reassign_with_an_empty_isr() -> None:
    assert elect_reassigned(state(), ids(2, 4), live(2, 4)) is None


@pytest.mark.kafka("PLE-7")
def test_preferred() -> None:  # rule 7.12
    assert elect_preferred(state(2, 4, leader=4), ids(2, 4), live(2, 4)) == to(2, (2, 4), (2, 4))


@pytest.mark.kafka("PLE-8")
def test_preferred_in_isr_and_dead() -> None:
    assert elect_preferred(state(2), ids(2, 4), live(4)) is None


@pytest.mark.kafka("PLE-9")
def test_preferred_alive_and_not_in_isr() -> None:
    assert elect_preferred(state(4), ids(2, 4), live(2, 4)) is None


@pytest.mark.kafka("PLE-10")
def test_preferred_dead_and_not_in_isr() -> None:
    assert elect_preferred(state(), ids(2, 4), live()) is None


@pytest.mark.kafka("PLE-11")
def test_controlled_shutdown() -> None:  # rule 7.14
    elected = elect_for_controlled_shutdown(state(2, 4, leader=2), ids(2, 4), live(2, 4), set(ids(2)))
    assert elected == to(4, (4,), (2, 4))


@pytest.mark.kafka("PLE-12")
def test_controlled_shutdown_of_the_last_isr_member() -> None:
    assert elect_for_controlled_shutdown(state(2, leader=2), ids(2, 4), live(2, 4), set(ids(2))) is None


@pytest.mark.kafka("PLE-13")
def test_controlled_shutdown_of_the_whole_isr() -> None:
    assert elect_for_controlled_shutdown(state(2, 4, leader=2), ids(2, 4), live(2, 4), set(ids(2, 4))) is None
