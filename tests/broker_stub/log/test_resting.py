"""Logs that nobody uses give back the memory of their segments; `test_model` has what is asked of them meanwhile."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log import Log, directory
from kce.broker_stub.log.directory import LogDirectory
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import NOW_MS, Context, a_log, append, config, produced, values

DAY_MS = 86_400_000


def test_the_index_is_complete_afterwards() -> None:
    log = a_log(index_interval_bytes=0)
    for value in (b"a", b"b", b"c", b"d"):
        append(log, value)
    entries = len(log.segments.active.index), len(log.segments.active.time_index)
    assert entries[0] == 3
    assert log.rest()
    assert (len(log.segments.active.index), len(log.segments.active.time_index)) == entries


@pytest.mark.parametrize(
    "settings",
    [{"cleanup_policy": "compact"}, {"cleanup_policy": "compact,delete"}],
)
def test_a_compacted_log_stays_awake(settings: dict[str, str]) -> None:
    log = a_log(**settings)
    append(log, b"v", key=b"k")
    assert not log.rest()


def test_a_log_with_producers_stays_awake_until_they_expire() -> None:
    log = a_log()
    log.append_as_leader(produced(1, 0), 0)
    assert not log.rest()
    log.context.time_ms += DAY_MS  # type: ignore[attr-defined]
    log.remove_expired_producers()
    assert log.rest()
    assert log.known_producers() == {}


def test_a_log_without_batches_or_with_several_segments_stays_awake() -> None:
    log = a_log()
    assert not log.rest()
    append(log)
    log.roll()
    assert not log.rest()


def test_a_new_log_needs_none() -> None:
    log = Log(Context(), TopicPartition("a", 0), config(), is_new=True)
    log.assign_epoch(4)
    assert log.rest()
    assert (log.leader_epochs, log.has_files) == (((4, 0),), False)
    append(log, epoch=4)
    assert log.leader_epochs == ((4, 0),)


@pytest.mark.parametrize(
    ("settings", "age_ms", "wakes"),
    [
        ({}, 6 * DAY_MS, False),
        ({}, 8 * DAY_MS, True),
        ({"retention_ms": -1}, 800 * DAY_MS, False),
        ({"retention_bytes": 10}, 0, False),  # one segment is never too large
        ({"retention_bytes": 0}, 0, True),
    ],
)
def test_retention_wakes_whom_it_deletes(settings: dict[str, int], age_ms: int, wakes: bool) -> None:
    context = Context()
    log = a_log(context, **settings)
    append(log)
    log.set_high_watermark(1)
    assert log.rest()
    before = context.woken
    context.time_ms += age_ms
    assert log.delete_old_segments() == wakes
    assert context.woken == before + wakes
    assert log.log_start_offset == wakes


def test_what_is_asked_often_does_not_wake_it() -> None:
    context = Context()
    log = a_log(context)
    append(log, b"a", b"b")
    log.flush()
    assert log.rest()
    before = context.woken
    assert (log.log_end_offset, log.end.segment, log.size > 0, log.latest_epoch) == (2, 0, True, 0)
    assert (log.end_offset_of(0), log.epoch_at(1)) == ((0, 2), 0)
    assert log.set_high_watermark(2) == 2
    assert (log.high_watermark, log.last_stable_offset, log.known_producers()) == (2, 2, {})
    assert not log.has_late_transaction(0)
    log.remove_expired_producers()
    log.flush()
    assert log.rest()
    assert context.woken == before
    assert values(log) == [(0, b"a"), (1, b"b")]
    assert context.woken == before + 1


def test_the_format_of_a_log_that_rests_changes() -> None:  # rule B5.22
    log = a_log()
    append(log)
    assert log.rest()
    log.update_config(replace(log.config, record_version=1))
    assert log.leader_epochs == ()
    assert log.rest()
    append(log)
    assert (log.leader_epochs, [offset for offset, _ in values(log)]) == ((), [0, 1])


def of_directory(disk: MemoryDisk) -> tuple[LogDirectory, list[Log]]:
    failed: list[LogDirectory] = []
    made = LogDirectory(
        "/l", disk, now_ms=lambda: NOW_MS, random=Random(1), producer_id_expiration_ms=DAY_MS, delete_delay_ms=0,
        on_failure=failed.append, wake=lambda: None,
    )  # fmt: skip
    return made, [Log(made, TopicPartition("a", i), config(), is_new=True) for i in range(4)]


def awake(logs: list[Log]) -> list[int]:
    return [log.partition.partition for log in logs if log._segments is not None]


def test_those_that_woke_first_and_are_not_used_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_AWAKE", 2)
    _, logs = of_directory(MemoryDisk())
    for log in logs[:3]:
        append(log)
    assert awake(logs) == [0, 1, 2]  # 0 and 1 were used, and are asked again
    append(logs[0])
    append(logs[3])
    assert awake(logs) == [0, 2, 3]
    assert values(logs[1]) == [(0, b"v")]


def test_one_that_cannot_rest_has_its_turn_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_AWAKE", 1)
    _, logs = of_directory(MemoryDisk())

    def wake_others() -> None:
        for log in logs[1:] * 3:
            log.rest()
            append(log)

    logs[0].append_as_leader(produced(1, 0), 0)
    wake_others()
    assert 0 in awake(logs)
    logs[0].context.producer_id_expiration_ms = 0
    logs[0].remove_expired_producers()
    wake_others()
    assert 0 not in awake(logs)


def test_a_deleted_log_rests_without_files() -> None:
    disk = MemoryDisk()
    made, _ = of_directory(disk)
    log = Log(made, TopicPartition("a", 0), config(index_interval_bytes=0), is_new=True)
    for _ in range(3):
        append(log)  # the index has entries that are not in its file
    log.move("/l/a-0.x-delete")
    disk.delete("/l/a-0.x-delete")
    assert log.rest()
    assert disk.folders("/l") == []
    assert not made.is_offline


def test_a_disk_that_fails_is_that_of_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    made, logs = of_directory(disk)
    append(logs[0])
    assert logs[0].rest()

    def fails(path: str) -> list[str]:
        raise OSError("no disk")

    monkeypatch.setattr(disk, "files", fails)
    with pytest.raises(KafkaStorageError):
        append(logs[0])
    assert made.is_offline
