"""Real Kafka 3.9.1 reads what our log writes, and ours what it writes: folders pass from one to the other."""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest
import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kce.broker_stub.log import Isolation, Log, LogConfig, Origin
from kce.broker_stub.log.cleaner import Cleaner
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.harness.world.real_disk import RealDisk
from kce.wire import Codec, Record, RecordBatch
from kce.wire.batch_header import read_headers
from kce.wire.records import read_records, write_records
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper import znodes
from kce.zookeeper.store.kazoo import KazooStore
from tests.broker_stub.log.support import NOW_MS, Context, append, base_offsets, batch, marker, produced, values
from tests.clusters import know_each_other
from tests.interop.real_kafka import real_brokers
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

DUMP = "kafka.tools.DumpLogSegments"
SETTINGS = {"segment.bytes": "20000", "index.interval.bytes": "200", "segment.index.bytes": "4096"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_seconds = 30.0


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    with Tools() as running:
        yield running


def dump(tools: Tools, path: Path, *, gaps: bool = False) -> str:
    """The output of DumpLogSegments for a file; it must report no fault. ``gaps``: offsets may be missing."""
    printed = tools.run(DUMP, "--files", str(path), *(["--deep-iteration"] if path.suffix == ".log" else []))
    if path.suffix == ".index":
        printed += tools.run(DUMP, "--files", str(path), "--index-sanity-check")
    for complaint in (
        "Found",
        "Mismatches",
        *(() if gaps else ("Non-consecutive",)),
        "should be",
        "Could not",
        "isvalid: false",
        "Exception",
    ):
        assert complaint not in printed, f"{path.name}:\n{printed}"
    return printed


def every_file(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
    )


@pytest.mark.parametrize("codec", Codec)
def test_kafka_dumps_every_file(tools: Tools, tmp_path: Path, codec: Codec) -> None:
    """All kinds of batches, several segments, leader epochs; also after recovery has rebuilt the indexes."""
    folder, chance = tmp_path / "a-0", Random(3)
    settings = LogConfig.of(SETTINGS)
    context = Context(RealDisk(), path=str(tmp_path))
    log = Log(context, TopicPartition("a", 0), settings)
    sequences = dict.fromkeys((5, 6, 2**40), 0)
    for i in range(120):
        epoch, when = i // 30, NOW_MS + chance.randrange(10_000)
        append(log, *[chance.randbytes(chance.randrange(300)) for _ in range(chance.randrange(1, 5))], epoch=epoch,
               codec=codec, timestamp=when)  # fmt: skip
        producer_id = chance.choice(list(sequences))
        log.append_as_leader(produced(producer_id, sequences[producer_id], 3, transactional=True, codec=codec), epoch)
        sequences[producer_id] += 3
        if i % 5 == 4:
            log.append_as_leader(marker(producer_id, committed=i % 2 == 0), epoch, origin=Origin.COORDINATOR)
        log.set_high_watermark(log.log_end_offset)
    log.truncate_to(log.log_end_offset - 5)
    expected = values(log)
    log.close()
    assert len(base_offsets(log)) > 3 or codec is not Codec.NONE
    kinds = set()
    for _ in range(2):
        offsets: list[int] = []
        for path in every_file(folder):
            printed = dump(tools, path)
            kinds.add(path.suffix)
            if path.suffix == ".snapshot" and path.stat().st_size > 10:
                assert "producerId: 5 " in printed
            if path.suffix == ".log":
                offsets += [int(offset) for offset in re.findall(r"\| offset: (\d+) ", printed)]
        assert offsets == list(range(log.log_end_offset))
        log = Log(context, TopicPartition("a", 0), settings, clean=False)
        assert values(log) == expected
        log.close()
    assert kinds == {".log", ".index", ".timeindex", ".snapshot", ".txnindex"}


class Numbered:
    """Records of one partition: each produced with a number, and all consumed again."""

    def __init__(self, address: str, *, is_idempotent: bool = True) -> None:
        self.address = address
        self._is_idempotent = is_idempotent

    def produce(self, first: int, how_many: int, codec: str = "none") -> None:
        failed = []
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": self._is_idempotent, "compression.type": codec,
             "log_level": 0, "batch.num.messages": 10, "linger.ms": 1}
        )  # fmt: skip
        for number in range(first, first + how_many):
            producer.produce(
                "t", key=str(number), value=f"{number} " * 30, partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
            if number % 50 == 0:
                producer.flush(_seconds)
        assert producer.flush(_seconds) == 0
        assert not failed

    def consume(self, offset: int = 0, isolation: str = "read_committed") -> list[str]:
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "g", "enable.auto.commit": False, "log_level": 0,
             "enable.partition.eof": True, "isolation.level": isolation, "check.crcs": True}
        )  # fmt: skip
        consumer.assign([ClientPartition("t", 0, offset)])
        found = []
        while (message := consumer.poll(_seconds)) is not None and not message.error():
            found.append(message.value().decode())
        assert message is not None
        consumer.close()
        return found


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def manager(folder: Path, settings: dict[str, str] = SETTINGS) -> LogManager:
    return LogManager(
        RealDisk(),
        [str(folder)],
        LogManagerConfig.of({}),
        now_ms=_clock_ms,
        random=Random(1),
        config_of=lambda topic: LogConfig.of(settings if topic == "t" else {}),
    )


T0 = TopicPartition("t", 0)
COMPACT = {**SETTINGS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


def write_for_compaction(log: Log, chance: Random) -> None:
    """Few keys, tombstones, all codecs, idempotent and transactional producers, commits and aborts."""
    sequences = dict.fromkeys((5, 6, 7), 0)
    for _ in range(300):
        pairs = [
            (
                b"key %d" % chance.randrange(30),
                None if chance.random() < 0.2 else chance.randbytes(chance.randrange(200)),
            )
            for _ in range(chance.randrange(1, 6))
        ]
        records = [
            Record(offset=n, timestamp=_clock_ms(), key=key, value=value) for n, (key, value) in enumerate(pairs)
        ]
        codec, producer = chance.choice(list(Codec)), chance.choice((None, 5, 6, 7))
        if producer is None:
            made = RecordBatch.of(*records, codec=codec)
        else:
            made = RecordBatch.of(
                *records, codec=codec, producer_id=producer, producer_epoch=0, base_sequence=sequences[producer],
                is_transactional=producer != 5,
            )  # fmt: skip
            sequences[producer] += len(records)
        log.append_as_leader(write_records(made), 1)
        if producer in (6, 7) and chance.random() < 0.7:
            end = marker(producer, committed=chance.random() < 0.5, timestamp=_clock_ms())
            log.append_as_leader(end, 1, origin=Origin.COORDINATOR)
        log.set_high_watermark(log.log_end_offset)
    for producer in (6, 7):
        if log.known_producers()[producer].transaction is not None:
            end = marker(producer, committed=True, timestamp=_clock_ms())
            log.append_as_leader(end, 1, origin=Origin.COORDINATOR)
    log.set_high_watermark(log.log_end_offset)
    log.roll()


def shape(log: Log) -> list[object]:
    """Segments and batches; of the horizon only whether there is one."""
    found: list[object] = base_offsets(log)
    for segment in log.segments:
        for place in segment.scan(0):
            one = read_records(segment.read(place.position, place.header.size)).batches[0]
            found.append(dataclasses.replace(one, base_timestamp=0) if one.has_delete_horizon else one)
    return found


async def test_kafka_compacts_to_the_same_records(tools: Tools, tmp_path: Path, zookeeper: str) -> None:
    """One folder, twice: Kafka's cleaner and ours leave the same segments with the same batches."""
    settings = {"offsets_topic_num_partitions": "1", "log_cleaner_backoff_ms": "100"}
    async with real_brokers([1], f"{zookeeper}/compaction", tmp_path, **settings) as brokers:
        broker = brokers[1]
        theirs, ours = tmp_path / "kafka-1" / "data", tmp_path / "ours"
        await know_each_other(broker.address)
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        await trio.to_thread.run_sync(admin.create_topics([NewTopic("t", 1, 1, config=COMPACT)])["t"].result, _seconds)
        await trio.to_thread.run_sync(Numbered(broker.address).produce, 0, 1)
        await broker.shut_down()
        logs = manager(theirs, COMPACT)
        await logs.load()
        write_for_compaction(logs.logs[T0], Random(5))
        end = logs.logs[T0].segments.active.base_offset
        before = len(shape(logs.logs[T0]))
        logs.close()
        shutil.copytree(theirs, ours)
        await unregistered(f"{zookeeper}/compaction", 1)
        await broker.start()
        with trio.fail_after(60):
            while f"t 0 {end}" not in read_text(theirs / "cleaner-offset-checkpoint"):  # noqa: ASYNC110 - Kafka's cleaner
                await trio.sleep(0.1)
        await broker.shut_down()

        logs = manager(ours, COMPACT)
        await logs.load()
        cleaner = Cleaner(logs.logs, _clock_ms, 4_000_000)
        assert await cleaner.clean_next() is logs.logs[T0]
        assert cleaner.ends == {T0: end}
        our_shape = shape(logs.logs[T0])
        logs.close()
        for path in every_file(ours / "t-0"):
            dump(tools, path, gaps=True)
        logs = manager(theirs, COMPACT)
        await logs.load()
        assert our_shape == shape(logs.logs[T0])
        assert len(our_shape) < before / 2
        logs.close()


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def texts(log: Log) -> list[str]:
    return [(value or b"").decode() for _, value in values(log)]


def expected(numbers: range) -> list[str]:
    return [f"{number} " * 30 for number in numbers]


async def unregistered(zookeeper: str, broker: int) -> None:
    """Wait until the session of a killed broker has expired."""
    store = await KazooStore.connect(zookeeper, session_timeout_ms=10_000, connection_timeout_ms=10_000)
    try:
        with trio.fail_after(30):
            while (await store.exists([znodes.broker_path(broker)]))[0] is not None:  # noqa: ASYNC110 - a session expires in ZooKeeper
                await trio.sleep(0.1)
    finally:
        await store.aclose()


async def test_a_folder_passes_to_and_fro(tools: Tools, tmp_path: Path, zookeeper: str) -> None:
    """Kafka writes and is killed, we recover and write; Kafka serves all, and ends cleanly; we read, and are killed."""
    numbers = count()
    settings = {"offsets_topic_num_partitions": "1", "log_cleaner_enable": "false"}
    async with real_brokers([1], f"{zookeeper}/folder", tmp_path, **settings) as brokers:
        broker, clients = brokers[1], Numbered(brokers[1].address)
        data = tmp_path / "kafka-1" / "data"
        await know_each_other(broker.address)
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        admin.create_topics([NewTopic("t", 1, 1, config=SETTINGS)])["t"].result(_seconds)
        for codec in CODECS:
            clients.produce(next(numbers) * 200, 200, codec)
        broker.kill()

        logs = manager(data)
        await logs.load()
        log = logs.logs[T0]
        assert texts(log) == expected(range(1000))
        assert log.topic_id is not None
        their_epochs = log.leader_epochs
        assert [entry[1] for entry in their_epochs] == [0]
        ours = Random(1)
        for first in range(1000, 1600, 20):
            chunk = [text.encode() for text in expected(range(first, first + 20))]
            log.append_as_leader(batch(*chunk, codec=ours.choice(list(Codec)), timestamp=_clock_ms()), 7)
        log.append_as_leader(produced(77, 0, 2, transactional=True, timestamp=_clock_ms()), 7)
        log.append_as_leader(marker(77, committed=False, timestamp=_clock_ms()), 7, origin=Origin.COORDINATOR)
        log.set_high_watermark(log.log_end_offset)
        end = log.log_end_offset
        logs.close()
        for path in every_file(data / "t-0"):
            dump(tools, path)

        await unregistered(f"{zookeeper}/folder", 1)
        await broker.start()
        assert clients.consume() == expected(range(1600))
        assert clients.consume(offset=1490) == expected(range(1490, 1600))
        assert len(clients.consume(isolation="read_uncommitted")) == 1602
        clients.produce(1600, 100)
        await broker.shut_down()

        logs = manager(data)
        await logs.load()
        log = logs.logs[T0]
        assert logs.directories[0].had_clean_shutdown
        assert log.high_watermark == log.log_end_offset == end + 100
        assert [text for text in texts(log) if text not in ("0", "1")] == expected(range(1700))
        assert log.read(1590, 10**6, Isolation.COMMITTED).aborted[0][:2] == (77, 1600)
        assert 77 in log.producers.producers
        log.append_as_leader(batch(*[text.encode() for text in expected(range(1700, 1710))]), 9)
        assert len(list(read_headers(log.read(end + 100, 10**6, Isolation.LOG_END).records))) == 1
        logs.abandon()  # nothing is flushed, and no clean shutdown is recorded

        await broker.start()
        assert clients.consume() == expected(range(1710))
