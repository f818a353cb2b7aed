"""Who is elected (section 7 of docs/controller-semantics.md)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kce.controller.leader_selection import elect_offline
from kce.zookeeper.model import (
    RECOVERED,
    BrokerId,
    LeaderAndIsr,
)
from tests.controller.conformance.bench import ids


def state(isr: tuple[int, ...], leader: int = -1, epoch: int = 5) -> LeaderAndIsr:
    return LeaderAndIsr(BrokerId(leader), ids(*isr), epoch, RECOVERED, 3)


def test_unclean_is_never_used_where_a_clean_leader_is_to_be_had() -> None:  # rule 7.3
    elected = elect_offline(state((4,)), ids(2, 4), {2, 4}.__contains__, unclean_allowed=True, recovery_supported=True)
    assert elected is not None
    assert (elected.state.leader, elected.unclean) == (4, False)
    outside = elect_offline(
        state((8, 9)), ids(2, 4), {2, 9}.__contains__, unclean_allowed=True, recovery_supported=True
    )
    assert outside is None


@given(
    replicas=st.lists(st.integers(0, 6), unique=True, min_size=1, max_size=5),
    isr=st.lists(st.integers(0, 6), unique=True, max_size=5),
    online=st.sets(st.integers(0, 6)),
    unclean=st.booleans(),
)
def test_offline_election_never_elects_a_dead_or_foreign_leader(
    replicas: list[int], isr: list[int], online: set[int], unclean: bool
) -> None:
    elected = elect_offline(
        state(tuple(isr)), ids(*replicas), online.__contains__, unclean_allowed=unclean, recovery_supported=True
    )
    clean_possible = any(r in online and r in isr for r in replicas)
    if elected is None:
        assert not clean_possible
    else:
        assert elected.state.leader in online
        assert elected.state.leader in replicas
        assert elected.state.leader in elected.state.isr
        assert elected.unclean != (elected.state.leader in isr)
        assert not (elected.unclean and clean_possible)
        assert elected.state.leader_epoch == 6
