"""Kafka's own classes decode our record sets, and we decode theirs."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from crc32c import crc32c

from kce import wire
from kce.wire import Codec, EndTransactionMarker, Record, RecordBatch, RecordHeader, TimestampType
from kce.wire.record_batch import varint
from tests.interop.kafka_java import kafka_java

pytestmark = pytest.mark.slow

JAVA = Path(__file__).parent / "java"
NOT_UTF_8 = "\ufffd".encode().hex()
COUNTS = (1, 2, 40)


def cases() -> dict[str, tuple[RecordBatch, ...]]:
    """One record set for every magic, codec and timestamp type, and for what else a batch can be."""
    chance = random.Random(4)
    found: dict[str, tuple[RecordBatch, ...]] = {}
    for magic in (0, 1, 2):
        for codec in Codec:
            if codec is Codec.ZSTD and magic < 2:
                continue
            for kind in TimestampType:
                if kind is TimestampType.LOG_APPEND_TIME and magic == 0:
                    continue
                batches = [
                    RecordBatch.of(*records(chance, magic, base, count), magic=magic, codec=codec, timestamp_type=kind)
                    for base, count in ((0, 1), (10, 2), (1000, 40), (2**40, 300))
                ]
                found[f"{magic}-{codec.name}-{kind.name}"] = tuple(batches)
    some = records(chance, 2, 5, 3)
    for codec in Codec:
        found[f"transactional-{codec.name}"] = (
            RecordBatch.of(
                *some, codec=codec, partition_leader_epoch=7, producer_id=2**50, producer_epoch=3, base_sequence=99,
                is_transactional=True,
            ),
        )  # fmt: skip
    for committed in (True, False):
        marker = EndTransactionMarker(committed=committed, coordinator_epoch=12).to_record(
            offset=8, timestamp=1_700_000
        )
        found[f"end of transaction {committed}"] = (
            RecordBatch.of(marker, producer_id=4, producer_epoch=1, is_transactional=True, is_control=True),
        )
    return found


def records(chance: random.Random, magic: int, base: int, count: int) -> list[Record]:
    def text(most: int) -> bytes | None:
        kind = chance.randrange(5)
        if kind == 0:
            return None
        size = chance.randrange(most)
        return chance.randbytes(size) if kind == 1 else bytes(chance.choices(b"kafka", k=size))

    return [
        Record(
            offset=base + i,
            timestamp=-1 if magic == 0 else 1_700_000_000_000 + chance.randrange(-1000, 1000),
            key=text(20),
            value=text(3000),
            headers=tuple(RecordHeader(f"h{chance.choice('äb')}", text(9)) for _ in range(chance.randrange(3)))
            if magic == 2
            else (),
        )
        for i in range(count)
    ]


def lines_of(batch: RecordBatch) -> list[str]:
    """The lines that Records.java must print for the batch."""
    log_append = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    kind = "NoTimestampType" if batch.magic == 0 else "LogAppendTime" if log_append else "CreateTime"
    sequence = -1 if batch.producer_id < 0 else batch.base_sequence
    flags = (batch.is_transactional, batch.is_control, batch.has_delete_horizon)
    head = (
        batch.magic, batch.codec.name.lower(), kind, batch.base_offset, batch.last_offset, batch.max_timestamp,
        batch.partition_leader_epoch, batch.producer_id, batch.producer_epoch, sequence,
        *(str(flag).lower() for flag in flags),
    )  # fmt: skip
    lines = ["B " + " ".join(map(str, head))]
    for r in batch.records:
        headers = [f"{h.key.encode().hex()}={'null' if h.value is None else h.value.hex()}" for h in r.headers]
        key, value = ("null" if data is None else "x" + data.hex() for data in (r.key, r.value))
        timestamp = batch.max_timestamp if log_append else r.timestamp
        lines.append(" ".join(["R", str(r.offset), str(timestamp), key, value, *headers]))
    return lines


def messages_of(batch: RecordBatch) -> list[RecordBatch]:
    """The batch as read back: without compression, magic 0 and 1 have messages, no batches."""
    if batch.magic == 2 or batch.codec:
        return [batch]
    return [RecordBatch.of(r, magic=batch.magic, timestamp_type=batch.timestamp_type) for r in batch.records]


def in_kafka(*sets: bytes) -> list[list[str]]:
    """The lines that Records.java prints for each record set."""
    ran = subprocess.run(
        [*kafka_java(), str(JAVA / "Records.java")],
        input="\n".join(data.hex() for data in sets), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [chunk.splitlines() for chunk in ran.stdout.split(".\n")[:-1]]


@pytest.fixture(scope="module")
def exchanged() -> dict[str, tuple[tuple[RecordBatch, ...], bytes, list[str]]]:
    """name -> (batches, our encoding, Kafka's output), from one run of the JVM."""
    wanted = cases()
    written = [wire.write_records(*batches) for batches in wanted.values()]
    answers = in_kafka(*written)
    assert len(answers) == len(wanted)
    return {
        name: (batches, data, answer)
        for (name, batches), data, answer in zip(wanted.items(), written, answers, strict=True)
    }


@pytest.mark.parametrize("name", cases())
def test_kafka_decodes_our_records(
    name: str, exchanged: dict[str, tuple[tuple[RecordBatch, ...], bytes, list[str]]]
) -> None:
    batches, _, answer = exchanged[name]
    assert answer[:-1] == [line for batch in batches for message in messages_of(batch) for line in lines_of(message)]


@pytest.mark.parametrize("name", cases())
def test_we_decode_kafkas_records(
    name: str, exchanged: dict[str, tuple[tuple[RecordBatch, ...], bytes, list[str]]]
) -> None:
    batches, ours, answer = exchanged[name]
    theirs = bytes.fromhex(answer[-1].removeprefix("W "))
    read, rest = wire.read_records(theirs)
    assert not rest
    expected = answer[:-1]
    if name == "1-NONE-LOG_APPEND_TIME":  # Kafka's builder calls them CreateTime when it writes them one by one
        expected = [line.replace(" LogAppendTime ", " CreateTime ") for line in expected]
    assert [line for batch in read for line in lines_of(batch)] == expected
    if not any(batch.codec for batch in batches) and "LOG_APPEND" not in name:
        assert theirs == ours  # nothing here is left to taste


def test_kafka_rejects_what_we_reject() -> None:
    """Damage to bytes under the CRC and to lengths: both sides accept or reject the same sets."""
    chance = random.Random(7)
    damaged_sets = []
    for batches in cases().values():
        data = wire.write_records(batches[0])
        for _ in range(6):
            damaged = bytearray(data)
            damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            damaged_sets.append(bytes(damaged))
    answers = in_kafka(*damaged_sets)
    rejected = 0
    for data, answer in zip(damaged_sets, answers, strict=True):
        try:
            read, _ = wire.read_records(data)
        except wire.CorruptRecord:
            rejected += 1
            assert answer[0].startswith("E "), data.hex()
        else:
            assert answer[:-1] == [line for batch in read for line in lines_of(batch)], data.hex()
    assert rejected > len(damaged_sets) // 2


def test_header_keys_that_are_not_utf_8_are_read_alike() -> None:
    chance = random.Random(9)
    units = bytes.fromhex("41 7f 80 8f 90 9f a0 b0 bf c0 c3 e0 e2 ed ef f0 f1 f4 f5 ff")
    keys = [bytes(chance.choices(units, k=chance.randrange(1, 8))) for _ in range(5000)]
    headers = tuple(RecordHeader("k" * len(key), None) for key in keys)
    data = wire.write_records(RecordBatch.of(Record(offset=0, timestamp=1, headers=headers)))

    def written(texts: list[bytes]) -> bytes:
        return b"".join(varint(len(text)) + text + varint(-1) for text in texts)

    replaced = bytearray(data.replace(written([b"k" * len(key) for key in keys]), written(keys)))
    replaced[17:21] = crc32c(replaced[21:]).to_bytes(4)
    (answer,) = in_kafka(bytes(replaced))
    read, _ = wire.read_records(bytes(replaced))
    assert [line for batch in read for line in lines_of(batch)] == answer[:-1]
    assert NOT_UTF_8 in answer[1]
