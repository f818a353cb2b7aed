"""RACK: placement of replicas (section 14 of docs/controller-semantics.md; rules of section 10c)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from kce.zookeeper.assignment import (
    InconsistentRacks,
    InvalidPartitions,
    InvalidReplicationFactor,
    assign_replicas,
    rack_alternated,
)

#: two brokers in each of three racks
RACKS = dict(enumerate("abbcca"))
#: three in one
UNEVEN = dict(enumerate("abbccb"))
Assigned = Mapping[int, tuple[int, ...]]


def place(racks: Mapping[int, str | None], partitions: int, factor: int, **where: int) -> dict[int, tuple[int, ...]]:
    return assign_replicas(racks, partitions, factor, random=Random(3), **where)


def leaders(made: Assigned) -> list[int]:
    """How many partitions each broker leads that leads any, sorted."""
    return sorted(Counter(replicas[0] for replicas in made.values()).values())


def load(made: Assigned) -> list[int]:
    """How many replicas each broker has that has any, sorted."""
    return sorted(Counter(r for replicas in made.values() for r in replicas).values())


def racks_of(made: Assigned, racks: Mapping[int, str]) -> set[int]:
    """Over how many racks partitions are spread."""
    return {len({racks[r] for r in replicas}) for replicas in made.values()}


def without_duplicates(made: Assigned) -> bool:
    return all(len(set(replicas)) == len(replicas) for replicas in made.values())


@pytest.mark.kafka("RACK-1")
def test_the_rack_alternated_list_and_what_follows_from_it() -> None:  # rules 10.21, 10.24
    racks = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}
    assert rack_alternated(racks) == [0, 3, 1, 5, 4, 2]
    assert rack_alternated({b: r for b, r in racks.items() if b != 5}) == [0, 3, 1, 4, 2]
    made = place(racks, 7, 3, fixed_start=0, start_partition=0)
    assert list(made.values()) == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


@pytest.mark.kafka("RACK-2")
def test_rack_aware_from_a_fixed_start() -> None:
    made = place(RACKS, 6, 3, fixed_start=2, start_partition=0)
    assert leaders(made) == [1] * 6
    assert load(made) == [3] * 6
    assert racks_of(made, RACKS) == {3}
    assert made[0][0] == rack_alternated(RACKS)[2]


@pytest.mark.kafka("RACK-3")
@pytest.mark.parametrize("seed", range(20))
def test_rack_aware_from_a_random_start(seed: int) -> None:
    made = assign_replicas(RACKS, 6, 3, random=Random(seed))
    assert leaders(made) == [1] * 6
    assert load(made) == [3] * 6
    assert racks_of(made, RACKS) == {3}


@pytest.mark.kafka("RACK-4")
def test_rack_aware_with_uneven_replicas() -> None:
    made = place(RACKS, 13, 3, fixed_start=0, start_partition=0)
    assert len(made) == 13
    assert racks_of(made, RACKS) == {3}
    assert without_duplicates(made)


@pytest.mark.kafka("RACK-5")
@pytest.mark.parametrize("seed", range(20))
def test_rack_aware_with_uneven_racks(seed: int) -> None:
    uneven = {0: "a", 1: "a", 2: "b", 3: "c", 4: "c", 5: "a"}
    made = assign_replicas(uneven, 12, 3, random=Random(seed))
    assert leaders(made) == [2] * 6
    assert racks_of(made, uneven) == {3}


@pytest.mark.kafka("RACK-6")
def test_2_replicas() -> None:
    made = place(RACKS, 12, 2)
    assert leaders(made) == [2] * 6
    assert load(made) == [4] * 6
    assert racks_of(made, RACKS) == {2}


@pytest.mark.kafka("RACK-7")
def test_expansion() -> None:
    racks = {broker + 6: rack for broker, rack in RACKS.items()}
    made = place(racks, 12, 2, start_partition=12)
    assert list(made) == list(range(12, 24))
    assert leaders(made) == [2] * 6
    assert load(made) == [4] * 6
    assert racks_of(made, racks) == {2}


@pytest.mark.kafka("RACK-8")
def test_2_replicas_of_6_partitions() -> None:
    made = place(RACKS, 6, 2)
    assert leaders(made) == [1] * 6
    assert load(made) == [2] * 6
    assert racks_of(made, RACKS) == {2}


@pytest.mark.kafka("RACK-9")
def test_2_replicas_of_6_partitions_on_3_brokers() -> None:
    racks = {0: "a", 1: "b", 4: "c"}
    for partitions in (3, 6):
        made = place(racks, partitions, 2)
        assert leaders(made) == [partitions // 3] * 3
        assert load(made) == [partitions // 3 * 2] * 3
        assert racks_of(made, racks) == {2}


@pytest.mark.kafka("RACK-10")
def test_many_partitions() -> None:
    racks = dict(enumerate("abbccaabbcac"))
    made = place(racks, 96, 3)
    assert leaders(made) == [8] * 12
    assert load(made) == [24] * 12
    assert racks_of(made, racks) == {3}


@pytest.mark.kafka("RACK-11")
def test_more_replicas_than_racks() -> None:
    for racks in (RACKS, UNEVEN):
        made = place(racks, 6, 5)
        assert [len(replicas) for replicas in made.values()] == [5] * 6
        assert without_duplicates(made)
        assert racks_of(made, racks) == {3}


@pytest.mark.kafka("RACK-12")
def test_fewer_replicas_than_racks() -> None:
    for racks in (RACKS, UNEVEN):
        made = place(racks, 6, 2)
        assert [len(replicas) for replicas in made.values()] == [2] * 6
        assert racks_of(made, racks) == {2}


@pytest.mark.kafka("RACK-13")
def test_a_single_rack() -> None:
    made = place(dict.fromkeys(range(6), "a"), 6, 3)
    assert leaders(made) == [1] * 6
    assert load(made) == [3] * 6
    assert without_duplicates(made)


@pytest.mark.kafka("RACK-14")
def test_a_broker_that_has_a_replica_already_is_skipped() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "a"}
    for seed in range(20):
        made = assign_replicas(racks, 6, 4, random=Random(seed))
        assert {len(replicas) for replicas in made.values()} == {4}
        assert without_duplicates(made)
        assert racks_of(made, racks) == {3}


@pytest.mark.kafka("RACK-15")
def test_rack_unaware() -> None:  # rules 10.17, 10.23
    brokers = dict.fromkeys(range(5))
    for factor in (0, 6):
        with pytest.raises(InvalidReplicationFactor):
            place(brokers, 10, factor)
    assert list(place(brokers, 10, 3, fixed_start=0).values()) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


@pytest.mark.kafka("RACK-16")
def test_invalid_parameters() -> None:  # rule 10.17
    with pytest.raises(InvalidPartitions):
        place({1: None}, 0, 1)
    for factor in (0, -1, 2):
        with pytest.raises(InvalidReplicationFactor):
            place({1: None}, 1, factor)
    with pytest.raises(InconsistentRacks, match=r"\[2\]"):
        place({1: "a", 2: None}, 1, 1)
    mixed = {0: "a", 1: "c", 2: "c", 3: "b", 4: None}
    for partitions, factor, refused in (
        (0, 0, InvalidPartitions),
        (10, 0, InvalidReplicationFactor),
        (10, 6, InvalidReplicationFactor),
        (10, 5, InconsistentRacks),
    ):
        with pytest.raises(refused):
            place(mixed, partitions, factor)
