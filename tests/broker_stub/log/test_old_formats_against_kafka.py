"""Logs of magic 0 and 1 pass between real Kafka 2.8.2 and ours (rule B3.23)."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic

from kce import wire
from kce.broker_stub.log import Log, LogConfig
from kce.broker_stub.log.cleaner import Cleaner
from kce.broker_stub.log.lookup import find_timestamp
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.harness.world.real_disk import RealDisk
from kce.wire import Codec, Record, RecordBatch
from kce.wire.batch_header import read_headers
from tests.broker_stub.log.support import batch, everything
from tests.broker_stub.log.test_against_kafka import (
    SETTINGS,
    T0,
    Numbered,
    dump,
    every_file,
    expected,
    read_text,
    shape,
    texts,
    unregistered,
)
from tests.clusters import know_each_other
from tests.interop.kafka_jars import RELEASES
from tests.interop.real_kafka import real_brokers as started_brokers
from tests.interop.tools import Tools

pytestmark = pytest.mark.slow

CODECS = ("none", "gzip", "snappy", "lz4")
MAGIC = {"0.9.0": 0, "0.10.2": 1}
BROKER = {
    "offsets_topic_num_partitions": "1", "log_cleaner_backoff_ms": "100", "log_index_size_max_bytes": "4096",
}  # fmt: skip
_seconds = 30.0


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    with Tools() as running:
        yield running


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def manager(folder: Path, settings: dict[str, str]) -> LogManager:
    protocol = {"inter.broker.protocol.version": "2.8"}
    return LogManager(
        RealDisk(), [str(folder)], LogManagerConfig.of({}), now_ms=_clock_ms, random=Random(1),
        config_of=lambda topic: LogConfig.of(settings if topic == "t" else {}, protocol),
    )  # fmt: skip


async def create_topic(address: str, settings: dict[str, str]) -> None:
    await know_each_other(address)
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    await trio.to_thread.run_sync(admin.create_topics([NewTopic("t", 1, 1, config=settings)])["t"].result, _seconds)


def magics(log: Log) -> set[int]:
    return {header.magic for _, header in read_headers(everything(log))}


@pytest.mark.parametrize("version", MAGIC)
async def test_a_folder_passes_to_and_fro(tools: Tools, tmp_path: Path, zookeeper: str, version: str) -> None:
    """Kafka writes and is killed, we recover and write; Kafka serves all and is killed; we read all."""
    settings, chroot = SETTINGS | {"message.format.version": version}, f"{zookeeper}/old-{version}"
    async with started_brokers([1], chroot, tmp_path, RELEASES["2.8.2"], **BROKER) as brokers:
        broker, clients = brokers[1], Numbered(brokers[1].address, is_idempotent=False)
        data = tmp_path / "kafka-1" / "data"
        await create_topic(broker.address, settings)
        for i, codec in enumerate(CODECS):
            await trio.to_thread.run_sync(clients.produce, i * 200, 200, codec)
        broker.kill()

        logs = manager(data, settings)
        await logs.load()
        log = logs.logs[T0]
        assert texts(log) == expected(range(800))
        assert magics(log) == {MAGIC[version]}
        assert log.leader_epochs == ()
        ours = Random(1)
        times = []
        for first in range(800, 1400, 20):
            chunk = [text.encode() for text in expected(range(first, first + 20))]
            codec = ours.choice((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
            times.append(2_000_000_000_000 + first)
            # DumpLogSegments complains of Kafka's own indexes, too, where an append has several plain messages
            for values in [chunk] if codec else [[value] for value in chunk]:
                log.append_as_leader(batch(*values, codec=codec, magic=ours.randrange(3), timestamp=times[-1]), 7)
        log.set_high_watermark(log.log_end_offset)
        assert magics(log) == {MAGIC[version]}
        for path in every_file(data / "t-0"):
            if path.suffix == ".log":
                dump(tools, path)
        logs.close()
        for path in every_file(data / "t-0"):
            dump(tools, path)

        await unregistered(chroot, 1)
        await broker.start()
        assert await trio.to_thread.run_sync(clients.consume) == expected(range(1400))
        await trio.to_thread.run_sync(clients.produce, 1400, 200, "lz4")
        broker.kill()
        logs = manager(data, settings)
        await logs.load()
        log = logs.logs[T0]
        assert texts(log) == expected(range(1600))
        if MAGIC[version]:
            for i, when in enumerate(times):
                found = find_timestamp(log, when)
                # produced as magic 0, a batch has no time
                assert found is None or (found.offset >= 800 + 20 * i and found.timestamp >= when)
        logs.close()


def write_for_compaction(log: Log, chance: Random) -> None:
    """Few keys, tombstones, all codecs and formats."""
    for _ in range(300):
        pairs = [
            (
                b"key %d" % chance.randrange(30),
                None if chance.random() < 0.2 else chance.randbytes(chance.randrange(200)),
            )
            for _ in range(chance.randrange(1, 6))
        ]
        records = [
            Record(offset=i, timestamp=_clock_ms(), key=key, value=value) for i, (key, value) in enumerate(pairs)
        ]
        codec = chance.choice((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
        log.append_as_leader(wire.write_records(RecordBatch.of(*records, magic=chance.randrange(1, 3), codec=codec)), 1)
    log.set_high_watermark(log.log_end_offset)
    log.roll()


@pytest.mark.parametrize("version", MAGIC)
async def test_kafka_compacts_to_the_same_records(tools: Tools, tmp_path: Path, zookeeper: str, version: str) -> None:
    """One folder, twice: Kafka's cleaner and ours leave the same segments with the same messages."""
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "message.format.version": version}
    settings, chroot = SETTINGS | compact, f"{zookeeper}/old-compaction-{version}"
    async with started_brokers([1], chroot, tmp_path, RELEASES["2.8.2"], **BROKER) as brokers:
        broker = brokers[1]
        theirs, ours = tmp_path / "kafka-1" / "data", tmp_path / "ours"
        await create_topic(broker.address, settings)
        await trio.to_thread.run_sync(Numbered(broker.address, is_idempotent=False).produce, 0, 1)
        await broker.shut_down()
        logs = manager(theirs, settings)
        await logs.load()
        write_for_compaction(logs.logs[T0], Random(5))
        end = logs.logs[T0].segments.active.base_offset
        before = len(shape(logs.logs[T0]))
        logs.close()
        shutil.copytree(theirs, ours)
        await unregistered(chroot, 1)
        await broker.start()
        with trio.fail_after(60):
            while f"t 0 {end}" not in read_text(theirs / "cleaner-offset-checkpoint"):  # noqa: ASYNC110 - Kafka's cleaner
                await trio.sleep(0.1)
        await broker.shut_down()

        logs = manager(ours, settings)
        await logs.load()
        cleaner = Cleaner(logs.logs, _clock_ms, 4_000_000)
        assert await cleaner.clean_next() is logs.logs[T0]
        our_shape = shape(logs.logs[T0])
        logs.close()
        for path in every_file(ours / "t-0"):
            dump(tools, path, gaps=True)
        logs = manager(theirs, settings)
        await logs.load()
        assert our_shape == shape(logs.logs[T0])
        assert len(our_shape) < before / 2
        logs.close()
