"""Upstream's LeaderEpochFileCacheTest. Covers: broker_stub/log/leader_epochs.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kce.broker_stub.log.checkpoints import read_leader_epochs
from kce.broker_stub.log.leader_epochs import UNDEFINED, LeaderEpochCache
from kce.harness.world.memory_disk import MemoryDisk

kafka = pytest.mark.kafka
UNDEFINED_END = (UNDEFINED, UNDEFINED)


def cache(*entries: tuple[int, int], disk: MemoryDisk | None = None) -> LeaderEpochCache:
    """A cache with these epochs, assigned in this order."""
    made = LeaderEpochCache(disk or MemoryDisk(), "/a-0")
    for entry in entries:
        made.assign(*entry)
    return made


THREE = ((2, 6), (3, 8), (4, 11))


@pytest.mark.parametrize(
    ("assigned", "entries"),
    [
        pytest.param([(2, 9), (2, 10)], [(2, 9)], marks=kafka("EPC-5")),
        pytest.param([(2, 9), (3, 9)], [(3, 9)], marks=kafka("EPC-6")),
        pytest.param([(2, 6), (2, 10)], [(2, 6)], marks=kafka("EPC-7")),
        pytest.param([(2, 6), (2, 7)], [(2, 6)], marks=kafka("EPC-14")),
        pytest.param([(2, 6), (3, 5)], [(3, 5)], marks=kafka("EPC-19")),
    ],
)
def test_assigned(assigned: Sequence[tuple[int, int]], entries: Sequence[tuple[int, int]]) -> None:
    assert list(cache(*assigned).entries) == entries


@pytest.mark.parametrize(
    ("assigned", "log_end_offset", "ends"),
    [
        pytest.param([(2, 11), (2, 12)], 14, {2: (2, 14)}, marks=kafka("EPC-3")),
        pytest.param([(2, 11), (3, 12)], 0, {UNDEFINED: UNDEFINED_END}, marks=kafka("EPC-4")),
        pytest.param([], 0, {0: UNDEFINED_END}, marks=kafka("EPC-8")),
        pytest.param([], 73, {UNDEFINED: UNDEFINED_END}, marks=kafka("EPC-9")),
        pytest.param([(5, 11), (6, 12), (7, 13)], 0, {4: (4, 11)}, marks=kafka("EPC-10")),
        pytest.param([(5, 11), (6, 12), (7, 13), (7, 12)], 0, {5: (5, 12), 6: (5, 12)}, marks=kafka("EPC-11")),
        pytest.param([(1, 11), (1, 12), (2, 13), (2, 14), (3, 15), (3, 16)], 17, {2: (2, 15)}, marks=kafka("EPC-12")),
        pytest.param([(0, 10), (2, 13), (4, 17)], 0, {1: (0, 13), 2: (2, 17), 3: (2, 17)}, marks=kafka("EPC-13")),
        pytest.param([(2, 100)], 100, {3: UNDEFINED_END}, marks=kafka("EPC-15")),
        pytest.param([], 0, {7: UNDEFINED_END}, marks=kafka("EPC-36")),
    ],
)
def test_end_offsets(
    assigned: Sequence[tuple[int, int]], log_end_offset: int, ends: dict[int, tuple[int, int]]
) -> None:
    found = cache(*assigned)
    assert {epoch: found.end_offset(epoch, log_end_offset) for epoch in ends} == ends


@kafka("EPC-2")
def test_should_add_epoch_and_message_offset_to_cache() -> None:
    found = cache((2, 10))
    assert (found.latest, found.entries, found.end_offset(2, 11)) == (2, ((2, 10),), (2, 11))


@kafka("EPC-16")
def test_should_support_epochs_that_do_not_start_from_zero() -> None:
    found = cache((2, 6))
    assert (found.end_offset(2, 7), found.entries) == ((2, 7), ((2, 6),))


@kafka("EPC-18")
def test_should_enforce_monotonically_increasing_epochs() -> None:
    found = cache((1, 5), (2, 6), (1, 7))
    assert found.latest == 1
    assert (found.end_offset(1, 8), found.end_offset(2, 8)) == ((1, 8), UNDEFINED_END)
    assert found.entries == ((1, 7),)


@kafka("EPC-17")
def test_should_persist_epochs_between_instances() -> None:
    disk = MemoryDisk()
    cache((2, 6), disk=disk)
    assert cache(disk=disk).entries == ((2, 6),)


@kafka("EPC-20")
def test_should_increase_and_track_epochs_as_leaders_change_many_times() -> None:
    found = cache((0, 0), (1, 0))
    assert found.latest == 1
    assert (found.end_offset(1, 0), found.end_offset(0, 0)) == ((1, 0), (0, 0))
    assert (found.end_offset(1, 5), found.end_offset(0, 5)) == ((1, 5), (0, 0))
    found.assign(2, 5)
    assert [found.end_offset(epoch, 10) for epoch in (2, 1, 0)] == [(2, 10), (1, 5), (0, 0)]


@kafka("EPC-21")
def test_should_increase_and_track_epochs_as_follower_receives_many_messages() -> None:
    found = cache()
    for offset in range(9):
        epoch = offset // 3
        found.assign(epoch, offset)
        assert (found.latest, found.end_offset(epoch, offset + 1)) == (epoch, (epoch, offset + 1))
    assert (found.end_offset(0, 9), found.end_offset(1, 9)) == ((0, 3), (1, 6))


@pytest.mark.parametrize(
    ("start", "entries"),
    [
        pytest.param(8, [(3, 8), (4, 11)], marks=kafka("EPC-23")),
        pytest.param(9, [(3, 9), (4, 11)], marks=kafka("EPC-24")),
        pytest.param(1, [*THREE], marks=kafka("EPC-25")),
        pytest.param(6, [*THREE], marks=kafka("EPC-26")),
        pytest.param(11, [(4, 11)], marks=kafka("EPC-27")),
        pytest.param(15, [(4, 15)], marks=kafka("EPC-30")),
        pytest.param(UNDEFINED, [*THREE], marks=kafka("EPC-33")),
    ],
)
def test_truncated_from_the_start(start: int, entries: Sequence[tuple[int, int]]) -> None:
    found = cache(*THREE)
    found.truncate_from_start(start)
    assert list(found.entries) == entries


@kafka("EPC-28")
def test_should_update_offset_between_epoch_boundaries_on_clear_earliest() -> None:
    found = cache(*THREE)
    found.truncate_from_start(9)
    assert found.entries == ((3, 9), (4, 11))


@kafka("EPC-29")
def test_should_update_offset_between_epoch_boundaries_on_clear_earliest_2() -> None:
    found = cache((0, 0), (1, 7), (2, 10))
    found.truncate_from_start(5)
    assert found.entries == ((0, 5), (1, 7), (2, 10))


@pytest.mark.parametrize(
    ("end", "entries"),
    [
        pytest.param(8, [(2, 6)], marks=kafka("EPC-22")),
        pytest.param(9, [(2, 6), (3, 8)], marks=kafka("EPC-31")),
        pytest.param(UNDEFINED, [*THREE], marks=kafka("EPC-34")),
    ],
)
def test_truncated_from_the_end(end: int, entries: Sequence[tuple[int, int]]) -> None:
    found = cache(*THREE)
    found.truncate_from_end(end)
    assert list(found.entries) == entries
    assert found.latest == entries[-1][0]


@kafka("EPC-32")
def test_should_clear_all_entries() -> None:
    found = cache(*THREE)
    found.clear()
    assert found.entries == ()


@kafka("EPC-35")
def test_should_fetch_latest_epoch_of_empty_cache() -> None:
    assert cache().latest is None


@kafka("EPC-37")
def test_should_clear_earliest_on_empty_cache() -> None:
    found = cache()
    found.truncate_from_start(7)
    assert found.entries == ()


@kafka("EPC-38")
def test_should_clear_latest_on_empty_cache() -> None:
    found = cache()
    found.truncate_from_end(7)
    assert found.entries == ()


@kafka("EPC-43")
def test_should_fetch_epoch_for_given_offset() -> None:
    found = cache((0, 10), (1, 20), (5, 30))
    assert [found.epoch_at(offset) for offset in (25, 20, 30, 50, 5)] == [1, 1, 5, 5, None]


@kafka("EPC-44")
def test_should_write_checkpoint_on_truncation() -> None:
    disk = MemoryDisk()
    found = cache(*THREE, disk=disk)
    found.truncate_from_end(11)
    found.truncate_from_start(8)
    assert read_leader_epochs(disk, "/a-0/leader-epoch-checkpoint") == [(3, 8)]


def test_what_cannot_be_an_epoch_is_refused() -> None:
    for epoch, offset in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="leader epoch"):
            cache((epoch, offset))
