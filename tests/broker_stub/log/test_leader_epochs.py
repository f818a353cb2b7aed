"""Which epoch wrote from which offset on, after random changes, beside a list (rules B5.21 to B5.23, B5.28)."""

from __future__ import annotations

from random import Random

import pytest

from kce.broker_stub.log.checkpoints import BadCheckpoint
from kce.broker_stub.log.leader_epochs import UNDEFINED_END, LeaderEpochCache
from kce.harness.world.memory_disk import MemoryDisk

KNOWN = ((1, 0), (3, 10), (5, 20))


def cache(entries: tuple[tuple[int, int], ...] = KNOWN) -> LeaderEpochCache:
    made = LeaderEpochCache(MemoryDisk(), "/l")
    for entry in entries:
        made.assign(*entry)
    return made


@pytest.mark.parametrize(
    ("epoch", "offset", "entries"),
    [
        (5, 20, KNOWN), (5, 25, KNOWN), (6, 30, (*KNOWN, (6, 30))), (6, 20, ((1, 0), (3, 10), (6, 20))),
        (5, 19, ((1, 0), (3, 10), (5, 19))), (3, 30, ((1, 0), (3, 30))), (4, 30, ((1, 0), (3, 10), (4, 30))),
        (9, 5, ((1, 0), (9, 5))), (9, 0, ((9, 0),)), (0, 30, ((0, 30),)), (1, 30, ((1, 30),)),
    ],
)  # fmt: skip
def test_an_epoch_replaces_what_is_not_before_it(epoch: int, offset: int, entries: tuple[tuple[int, int], ...]) -> None:
    disk = MemoryDisk()
    made = LeaderEpochCache(disk, "/l")
    for entry in (*KNOWN, (epoch, offset)):
        made.assign(*entry)
    assert made.entries == LeaderEpochCache(disk, "/l").entries == entries
    assert made.latest == entries[-1][0]


@pytest.mark.parametrize("entry", [b"-1 5", b"3 -5"])
def test_a_file_with_what_is_no_epoch(entry: bytes) -> None:  # rule B6.6
    disk = MemoryDisk()
    disk.write("/l/leader-epoch-checkpoint", b"0\n1\n%s\n" % entry)
    with pytest.raises(BadCheckpoint, match="/l/leader-epoch-checkpoint"):
        LeaderEpochCache(disk, "/l")


def test_what_is_no_epoch() -> None:
    for entry in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="leader epoch"):
            cache(()).assign(*entry)
    assert cache(((0, 0),)).entries == ((0, 0),)


def test_ends_of_epochs() -> None:  # rule B5.23
    made = cache()
    ends = {epoch: tuple(made.end_offset(epoch, 30)) for epoch in range(-1, 7)}
    assert ends == {
        -1: UNDEFINED_END, 0: (0, 0), 1: (1, 10), 2: (1, 10), 3: (3, 20), 4: (3, 20), 5: (5, 30), 6: UNDEFINED_END,
    }  # fmt: skip
    assert [made.epoch_at(offset) for offset in (0, 9, 10, 19, 20, 99)] == [1, 1, 3, 3, 5, 5]
    assert (cache(()).end_offset(0, 5), cache(()).epoch_at(5), cache(((1, 5),)).epoch_at(4)) == (
        UNDEFINED_END, None, None,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_cuts(seed: int) -> None:  # rules B5.27, B5.28
    chance, disk = Random(seed), MemoryDisk()
    made = LeaderEpochCache(disk, "/l")
    epoch_of: dict[int, int] = {}
    epoch = 0
    for _ in range(60):
        offset = chance.randrange(40)
        if chance.random() < 0.3:
            made.truncate_from_end(offset)
            epoch_of = {at: known for at, known in epoch_of.items() if at < offset}
        elif chance.random() < 0.3:
            made.truncate_from_start(offset)
            epoch_of = {at: known for at, known in epoch_of.items() if at >= offset}
        else:
            epoch += chance.randrange(1, 3)
            made.assign(epoch, offset)
            epoch_of = {at: known for at, known in epoch_of.items() if at < offset}
            epoch_of |= dict.fromkeys(range(offset, 41), epoch)
        found = {at: made.epoch_at(at) for at in epoch_of}
        assert found == epoch_of
        assert LeaderEpochCache(disk, "/l").entries == made.entries
        assert [one for one, _ in made.entries] == sorted({one for one, _ in made.entries})


def test_nothing_is_written_that_has_not_changed() -> None:
    disk = MemoryDisk()
    made = LeaderEpochCache(disk, "/l")
    for entry in KNOWN:
        made.assign(*entry)
    disk.delete("/l/leader-epoch-checkpoint")
    made.assign(5, 22)
    made.truncate_from_end(21)
    made.truncate_from_end(-1)
    made.truncate_from_start(-1)
    made.truncate_from_start(0)
    made.replace(KNOWN)
    assert (made.entries, disk.exists("/l/leader-epoch-checkpoint")) == (KNOWN, False)
    made.truncate_from_end(20)
    assert (made.entries, LeaderEpochCache(disk, "/l").entries) == (KNOWN[:2], KNOWN[:2])
    made.truncate_from_start(12)
    assert LeaderEpochCache(disk, "/l").entries == made.entries == ((3, 12),)
    made.replace(KNOWN)
    assert LeaderEpochCache(disk, "/l").entries == KNOWN
    made.clear()
    assert LeaderEpochCache(disk, "/l").entries == ()
    disk.delete("/l/leader-epoch-checkpoint")
    made.clear()
    assert not disk.exists("/l/leader-epoch-checkpoint")
    made.moved("/m")
    made.assign(1, 1)
    assert disk.exists("/m/leader-epoch-checkpoint")
