"""Logs of magic 0 and 1, for brokers whose inter.broker.protocol.version is below 3.0 (rules B3.23, B3.24, B5.22)."""

from __future__ import annotations

import pytest

from kce import wire
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.errors import CorruptMessage, MessageTooLarge, Refused, UnsupportedForMessageFormat
from kce.broker_stub.log import Isolation, Log, LogConfig
from kce.broker_stub.log.cleaner import Cleaner
from kce.broker_stub.log.lookup import find_max_timestamp, find_timestamp
from kce.wire import Codec, Record, RecordBatch, RecordHeader, TimestampType
from kce.wire.batch_header import read_headers
from kce.wire.configuration import ConfigError
from tests.broker_stub.log.support import (
    NOW_MS,
    PARTITION,
    Context,
    base_offsets,
    batch,
    everything,
    produced,
    values,
)

PROTOCOL = {"inter.broker.protocol.version": "2.8"}
FORMATS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}


def old_log(
    magic: int, context: Context | None = None, *, clean: bool = True, recovery_point: int = 0, **settings: object
) -> Log:
    return Log(
        context or Context(), PARTITION, settings_of(magic, **settings), clean=clean, recovery_point=recovery_point
    )


def settings_of(magic: int, **settings: object) -> LogConfig:
    topic = {key.replace("_", "."): str(value) for key, value in settings.items()}
    return LogConfig.of(topic | {"message.format.version": FORMATS[magic]}, PROTOCOL)


def stored(log: Log) -> list[RecordBatch]:
    return list(wire.read_records(everything(log)).batches)


@pytest.mark.parametrize(
    ("magic", "settings", "source"),
    [(0, {}, Codec.NONE), (1, {"compression_type": "gzip"}, Codec.NONE), (1, {"compression_type": "gzip"}, Codec.LZ4)],
)
def test_negative_timestamps_stay_only_where_they_are(magic: int, settings: dict[str, str], source: Codec) -> None:
    """Rule B3.35."""
    data = batch(magic=1, timestamp=-5, codec=source)
    log = old_log(1)
    log.append_as_leader(data, 0)
    assert [record.timestamp for found in stored(log) for record in found.records] == [-5]
    with pytest.raises(Refused, match="again"):
        old_log(magic, **settings).append_as_leader(data, 0)


@pytest.mark.parametrize(
    ("protocol", "broker", "topic", "magic"),
    [
        ("3.0", "0.10.2", "0.9.0", 2),
        ("3.0-IV0", "0.10.2", None, 1),
        ("2.8", None, None, 2),
        ("2.8", None, "0.10.0-IV0", 1),
        ("2.8", None, "0.9.0", 0),
        ("2.8", "0.10.0", "0.11.0", 2),
        ("0.10.2", "0.9.0", "2.8", 0),  # not known to that protocol
        ("0.10.2", "0.9.0", "0.10.2", 1),
    ],
)
def test_the_format_of_a_log(protocol: str, broker: str | None, topic: str | None, magic: int) -> None:
    given = {"inter.broker.protocol.version": protocol} | ({"log.message.format.version": broker} if broker else {})
    config = LogConfig.of({"message.format.version": topic} if topic else {}, given)
    assert config.record_version == magic


@pytest.mark.parametrize("text", ["0.7", "x"])
def test_a_format_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError):
        LogConfig.of({"message.format.version": text}, PROTOCOL)
    with pytest.raises(ConfigError, match=r"log\.message\.format\.version"):
        BrokerConfig.from_properties({"log.message.format.version": text})


def test_the_protocol_between_brokers_must_know_the_format() -> None:
    with pytest.raises(ConfigError, match=r"log\.message\.format\.version.*at most 0\.10\.2-IV0"):
        BrokerConfig.from_properties({"inter.broker.protocol.version": "0.10.2"})
    BrokerConfig.from_properties({"inter.broker.protocol.version": "0.10.2", "log.message.format.version": "0.10.0"})


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_records_become_messages(target: int, source: int, codec: Codec) -> None:
    log = old_log(target)
    for i in range(3):
        appended = log.append_as_leader(
            batch(b"a", b"b", b"c", key=b"k", magic=source, codec=codec, timestamp=NOW_MS + i if source else -1), 5
        )
        assert (appended.first_offset, appended.last_offset) == (3 * i, 3 * i + 2)
        assert appended.size == len(everything(log, 3 * i))
    assert {found.magic for found in stored(log)} == {target}
    assert {found.codec for found in stored(log)} == {codec}
    assert len(stored(log)) == (3 if codec else 9)
    assert values(log) == [(i, b"abc"[i % 3 : i % 3 + 1]) for i in range(9)]
    times = [record.timestamp for found in stored(log) for record in found.records]
    assert times == [NOW_MS + i // 3 if source and target else -1 for i in range(9)]
    assert log.leader_epochs == ()  # rule B5.22


def test_what_is_compressed_already_is_not_compressed_again() -> None:
    log = old_log(1)
    data = batch(b"a", b"b", magic=1, codec=Codec.GZIP)
    log.append_as_leader(batch(b"x", magic=1), 0)
    log.append_as_leader(data, 0)
    assert everything(log)[-len(data) :][16:] == data[16:]
    assert values(log) == [(0, b"x"), (1, b"a"), (2, b"b")]


def test_the_time_of_the_append() -> None:
    log = old_log(1, message_timestamp_type="LogAppendTime")
    for codec in (Codec.NONE, Codec.GZIP):
        appended = log.append_as_leader(batch(b"a", b"b", magic=1, codec=codec, timestamp=7), 0)
        assert appended.log_append_time == NOW_MS
    assert {found.timestamp_type for found in stored(log)} == {TimestampType.LOG_APPEND_TIME}
    assert {record.timestamp for found in stored(log) for record in found.records} == {NOW_MS}


def test_limits_are_those_of_one_message() -> None:
    log = old_log(1, max_message_bytes=200)
    log.append_as_leader(batch(*[b"v" * 20] * 5, codec=Codec.GZIP), 0)
    plain = old_log(1, max_message_bytes=200, compression_type="uncompressed")
    plain.append_as_leader(batch(*[b"v" * 20] * 30, codec=Codec.GZIP), 0)
    assert plain.size > 200
    with pytest.raises(MessageTooLarge):
        plain.append_as_leader(batch(b"v" * 200, codec=Codec.GZIP), 0)


def test_what_the_old_formats_lack() -> None:
    log = old_log(1)
    with pytest.raises(UnsupportedForMessageFormat):
        log.append_as_leader(produced(7, 0), 0)
    header = Record(offset=0, timestamp=NOW_MS, value=b"v", headers=(RecordHeader("h", b""),))
    for data in (batch(b"v", codec=Codec.ZSTD), wire.write_records(RecordBatch.of(header))):
        with pytest.raises(Refused) as refused:
            log.append_as_leader(data, 0)
        assert refused.value.code == wire.ErrorCode.UNKNOWN_SERVER_ERROR
    assert log.log_end_offset == 0


@pytest.mark.parametrize("target", [0, 1, 2])
def test_checksums_inside_are_checked(target: int) -> None:  # rule B3.27
    inner = bytearray(batch(b"hello", magic=1))
    inner[12] ^= 1
    outer = Record(offset=0, timestamp=NOW_MS, value=wire.compression.compress(Codec.GZIP, bytes(inner), magic=1))
    data = bytearray(wire.write_records(RecordBatch.of(outer, magic=1)))
    data[17] = Codec.GZIP
    data[12:16] = wire.message_set.zlib.crc32(data[16:]).to_bytes(4, "big")
    with pytest.raises(CorruptMessage, match="wrong CRC"):
        old_log(target).append_as_leader(bytes(data), 0)


def test_epochs_go_with_the_format_and_come_back() -> None:  # rule B5.22
    context = Context()
    log = old_log(2, context)
    log.append_as_leader(batch(b"a"), 3)
    log.update_config(settings_of(1))
    assert log.leader_epochs == ()
    log.assign_epoch(4)
    log.append_as_leader(batch(b"b"), 4)
    log.append_as_follower(batch(b"c", base_offset=2, leader_epoch=4))
    assert log.leader_epochs == ()
    assert not context.disk.exists(f"{log.folder}/leader-epoch-checkpoint")
    log.update_config(settings_of(2))
    log.assign_epoch(5)
    log.append_as_leader(batch(b"d"), 5)
    assert log.leader_epochs == ((5, 3),)
    assert [found.magic for found in stored(log)] == [2, 1, 2, 2]
    log.close()
    assert old_log(1, context).leader_epochs == ()


def test_offsets_by_time() -> None:
    log = old_log(1, index_interval_bytes=100)
    for i in range(50):
        log.append_as_leader(batch(b"v", b"w", magic=1, timestamp=NOW_MS + i, codec=Codec(i % 3)), 0)
    for i in (0, 7, 24, 49):
        found = find_timestamp(log, NOW_MS + i)
        assert found is not None
        assert (found.offset, found.timestamp, found.leader_epoch) == (2 * i, NOW_MS + i, -1)
    newest = find_max_timestamp(log)
    assert newest is not None
    assert newest.offset == 98
    for look_up in (lambda found: find_timestamp(found, 0), find_max_timestamp):
        with pytest.raises(UnsupportedForMessageFormat):
            look_up(old_log(0))


@pytest.mark.parametrize("magic", [0, 1])
def test_recovery(magic: int) -> None:
    """A torn message goes, and the indexes are made again."""
    context = Context()
    log = old_log(magic, context, segment_bytes=1000, index_interval_bytes=100)
    for i in range(60):
        log.append_as_leader(batch(b"%d" % i, b"x", magic=magic, codec=Codec(i % 3)), 0)
    assert len(base_offsets(log)) > 2
    before = everything(log)
    context.disk.open(log.segments.active.path(".log")).append(batch(b"torn", base_offset=120, magic=magic)[:-1])
    again = old_log(magic, context, clean=False, segment_bytes=1000, index_interval_bytes=100)
    assert everything(again) == before
    for offset in (0, 17, 119):
        data = again.read(offset, 2**20, Isolation.LOG_END).records
        assert next(read_headers(data))[1].last_offset in (offset, offset + 1)
    again.append_as_leader(batch(b"more"), 0)
    assert values(again)[-1] == (120, b"more")


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_compaction(magic: int, codec: Codec) -> None:
    """A tombstone stays for delete.retention.ms after its segment was compacted first."""
    context = Context()
    log = old_log(
        magic, context, cleanup_policy="compact", min_cleanable_dirty_ratio=0, segment_bytes=400,
        delete_retention_ms=1000,
    )  # fmt: skip

    def put(*pairs: tuple[bytes, bytes | None]) -> None:
        made = [Record(offset=i, timestamp=NOW_MS, key=key, value=value) for i, (key, value) in enumerate(pairs)]
        log.append_as_leader(wire.write_records(RecordBatch.of(*made, magic=1, codec=codec)), 0)
        log.set_high_watermark(log.log_end_offset)

    def contents() -> dict[int, tuple[bytes | None, bytes | None]]:
        return {r.offset: (r.key, r.value) for found in stored(log) for r in found.records}

    cleaner = Cleaner({PARTITION: log}, context.now_ms, 2**20)
    put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    put((b"a", b"2"), (b"b", None))
    for i in range(20):
        put((b"filler", b"%d" % i))
    assert await cleaner.clean_next() is log
    found = contents()
    assert {0, 1}.isdisjoint(found)
    assert (found[2], found[3], found[4]) == ((b"c", b"1"), (b"a", b"2"), (b"b", None))
    assert {one.magic for one in stored(log)} == {magic}
    for passed, expected in ((1000, True), (1, False)):
        context.time_ms += passed
        for i in range(20):
            put((b"filler", b"%d" % i))
        assert await cleaner.clean_next() is log
        assert (4 in contents()) is expected
    assert contents()[2] == (b"c", b"1")
