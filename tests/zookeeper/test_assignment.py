"""Placement of replicas (section 10c of docs/controller-semantics.md)."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kce.zookeeper.assignment import assign_replicas


@given(
    racks=st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9),
    partitions=st.integers(1, 30),
    data=st.data(),
    seed=st.integers(0, 99),
)
def test_placement_spreads_over_brokers_and_racks(
    racks: list[str], partitions: int, data: st.DataObject, seed: int
) -> None:
    factor = data.draw(st.integers(1, len(racks)))
    made = assign_replicas(dict(enumerate(racks)), partitions, factor, random=Random(seed))
    assert list(made) == list(range(partitions))
    for replicas in made.values():
        assert len(set(replicas)) == factor
        assert len({racks[r] for r in replicas}) == min(factor, len(set(racks)))
