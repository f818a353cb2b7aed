"""The small text files, as Kafka writes them. Covers: broker_stub/log/names.py."""

from __future__ import annotations

import uuid

import pytest

from kce.broker_stub.log import checkpoints
from kce.broker_stub.log.checkpoints import BadCheckpoint
from kce.broker_stub.log.names import marked_folder, offset_name, parse_folder, parse_offset_name
from kce.harness.world.memory_disk import MemoryDisk
from kce.wire.vocabulary import TopicPartition

OFFSETS = {TopicPartition("a", 0): 5, TopicPartition("b.c-d", 12): 2**40}


def test_offsets() -> None:
    disk = MemoryDisk()
    assert checkpoints.read_offsets(disk, "/d/x") == {}
    checkpoints.write_offsets(disk, "/d/x", OFFSETS)
    assert disk.read("/d/x") == b"0\n2\na 0 5\nb.c-d 12 1099511627776\n"
    assert checkpoints.read_offsets(disk, "/d/x") == OFFSETS
    for content in (b"", b"0\n"):
        disk.write("/d/x", content)
        assert checkpoints.read_offsets(disk, "/d/x") == {}
    disk.write("/d/x", b"0\r\n2\r\na  0\t5\r\nb.c-d 12 1099511627776 \n")
    assert checkpoints.read_offsets(disk, "/d/x") == OFFSETS


def test_leader_epochs() -> None:
    disk = MemoryDisk()
    checkpoints.write_leader_epochs(disk, "/d/x", [(0, 0), (4, 17)])
    assert disk.read("/d/x") == b"0\n2\n0 0\n4 17\n"
    assert checkpoints.read_leader_epochs(disk, "/d/x") == [(0, 0), (4, 17)]


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",
        b"x",
        b"0\n2\na 0 5\n",
        b"0\n1\na\n",
        b"0\n1\na 0 x y\n",
        b"0\nx\n",
        b"\xff\n",
        b"0\n1\n\n",
        b"0\n1\n a 0 5\n",
    ],
)
def test_bad_checkpoints(content: bytes) -> None:
    disk = MemoryDisk()
    disk.write("/d/x", content)
    with pytest.raises(BadCheckpoint, match="/d/x"):
        checkpoints.read_offsets(disk, "/d/x")
    with pytest.raises(BadCheckpoint, match="/d/x"):
        checkpoints.read_leader_epochs(disk, "/d/x")


@pytest.mark.parametrize("content", [b"0\n1\na %s 5\n", b"0\n1\na 0 %s\n"])
@pytest.mark.parametrize("number", [b"x", b"", b"9223372036854775808", b"1.5"])
def test_bad_numbers(content: bytes, number: bytes) -> None:  # rule B6.6
    disk = MemoryDisk()
    disk.write("/d/x", content % (number or b"-"))
    with pytest.raises(BadCheckpoint, match="/d/x"):
        checkpoints.read_offsets(disk, "/d/x")
    disk.write("/d/x", (content % (number or b"-")).replace(b"a ", b""))
    with pytest.raises(BadCheckpoint, match="/d/x"):
        checkpoints.read_leader_epochs(disk, "/d/x")


def test_topic_ids() -> None:
    disk, topic_id = MemoryDisk(), uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
    assert checkpoints.read_topic_id(disk, "/d/x") is None
    checkpoints.write_topic_id(disk, "/d/x", topic_id)
    assert disk.read("/d/x") == b"version: 0\ntopic_id: Ej5FZ-ibEtOkVkJmFBdAAA"
    found = checkpoints.read_topic_id(disk, "/d/x")
    assert found == topic_id
    assert checkpoints.read_topic_id(disk, "/d/x") is found  # of many partitions
    for content in (
        b"",
        b"version: 1\ntopic_id: Ej5FZ-ibEtOkVkJmFBdAAA",
        b"version: 0\ntopic_id: AAA",
        b"version: 0\n",
        b"version: 0\ntopic_id: Ej5FZ-ibEtOkVkJmFBdAAA: ",
    ):
        disk.write("/d/x", content)
        with pytest.raises(BadCheckpoint, match="/d/x"):
            checkpoints.read_topic_id(disk, "/d/x")


def test_clean_shutdown() -> None:
    disk = MemoryDisk()
    checkpoints.write_clean_shutdown(disk, "/d/x", 12)
    assert disk.read("/d/x") == b'{"version":0,"brokerEpoch":12}'


def test_names_of_files() -> None:
    assert offset_name(12, ".log") == "00000000000000000012.log"
    assert parse_offset_name("00000000000000000012.timeindex") == (12, ".timeindex")
    for name in ("00000000000000000012.log.deleted", "leader-epoch-checkpoint", "12.log"):
        assert parse_offset_name(name) is None


def test_names_of_folders() -> None:
    assert parse_folder("a.b-c-12") == (TopicPartition("a.b-c", 12), None)
    for kind in ("delete", "future", "stray"):
        for topic in ("a.b-c", "x" * 249):
            name = marked_folder(TopicPartition(topic, 12), kind, "0" * 32)
            found = parse_folder(name)
            assert found is not None
            assert (found.kind, found.partition.partition) == (kind, 12)
            assert len(name) <= 255 or kind == "future"
            assert topic.startswith(found.partition.topic)
    first, second = parse_folder("many-0"), parse_folder("many-1")
    assert first is not None
    assert second is not None
    assert first.partition.topic is second.partition.topic
    for name in ("a", "a-", "-0", "a-x", "a-0-delete", "a-0.x-other", "a b-0", "a-2147483648"):
        assert parse_folder(name) is None
