"""Record sets of all three formats. test_records_against_kafka.py compares them with Kafka's.

Covers: wire/compression.py, wire/lz4_frame.py, wire/message_set.py, wire/record.py, wire/record_batch.py.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc
import zlib
from dataclasses import replace

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire import Codec, EndTransactionMarker, Record, RecordBatch, RecordHeader, TimestampType
from kce.wire.lz4_frame import xxh32
from kce.wire.record_batch import read_varint, varint, write_values
from kce.wire.records import spans
from tests.captures.samples import CAPTURES
from tests.sampling import examples

FORMATS = [(magic, codec) for magic in (0, 1, 2) for codec in Codec if magic == 2 or codec is not Codec.ZSTD]
SOME = tuple(Record(offset=5 + i, timestamp=1000 + i, key=b"k%d" % i, value=b"v" * i) for i in range(4))

INT64 = st.integers(-(2**62), 2**62)
DATA = st.none() | st.binary(max_size=40) | st.binary(min_size=1, max_size=3).map(lambda b: b * 500)
HEADERS = st.lists(
    st.builds(RecordHeader, st.text(st.characters(exclude_categories=["Cs"]), max_size=5), DATA), max_size=3
)


@st.composite
def record_batches(draw: st.DrawFn) -> RecordBatch:
    """Any batch that can be written and comes back equal."""
    magic, codec = draw(st.sampled_from(FORMATS))
    kind = draw(st.sampled_from(TimestampType)) if magic else TimestampType.CREATE_TIME
    count = draw(st.integers(1, 6)) if magic == 2 or codec else 1
    base, time = draw(st.integers(0, 2**40)), draw(INT64)
    records = [
        Record(
            offset=base + i,
            timestamp=-1 if magic == 0 else time if kind else draw(INT64),
            key=draw(DATA),
            value=draw(DATA),
            headers=tuple(draw(HEADERS)) if magic == 2 else (),
        )
        for i in range(count)
    ]
    return RecordBatch.of(
        *records, magic=magic, codec=codec, timestamp_type=kind,
        **{
            "partition_leader_epoch": draw(st.integers(-1, 2**31 - 1)), "producer_id": draw(INT64),
            "producer_epoch": draw(st.integers(-1, 2**15 - 1)), "base_sequence": draw(st.integers(-1, 2**31 - 1)),
            "is_transactional": draw(st.booleans()), "is_control": draw(st.booleans()),
        } if magic == 2 else {},
    )  # fmt: skip


@given(st.lists(record_batches(), max_size=3))
@example([RecordBatch.of(*(Record(offset=i, timestamp=time) for i, time in enumerate((-(2**63), 0, 2**63 - 1))))])
@settings(max_examples=examples(200), deadline=None)
def test_round_trip(batches: list[RecordBatch]) -> None:
    read, rest = wire.read_records(wire.write_records(*batches))
    assert read == tuple(batches)
    assert not rest


@given(record_batches(), record_batches(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_truncated_record_set_returns_complete_batches(
    first: RecordBatch, second: RecordBatch, data: st.DataObject
) -> None:
    """Rule B4.16: a Fetch may end inside a batch."""
    whole, cut = wire.write_records(first), wire.write_records(second)
    cut = cut[: data.draw(st.integers(0, len(cut) - 1))]
    read, rest = wire.read_records(memoryview(whole + cut))
    assert (read, bytes(rest)) == ((first,), cut)


@given(record_batches(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damage_is_detected(batch: RecordBatch, data: st.DataObject) -> None:
    """All but base offset and leader epoch is covered by the CRC (rule B3.66), length and magic by their checks."""
    written = bytearray(wire.write_records(batch))
    at = data.draw(st.integers(8, len(written) - 1).filter(lambda at: batch.magic < 2 or not 12 <= at < 16))
    written[at] ^= data.draw(st.integers(1, 255))
    try:
        read, rest = wire.read_records(bytes(written))
    except wire.CorruptRecord as e:
        assert str(e).startswith("batch ")  # noqa: PT017
    else:  # a length that is larger now
        assert at < 12
        assert len(rest) == len(written)
        assert read == ()


@pytest.mark.heavy
@given(
    st.binary(max_size=300),
    st.sampled_from(
        [b"", b"\0" * 11 + b"\x40\0\0\0\0\2", b"\0" * 11 + b"\x20\0\0\0\0\1\0", b"\0" * 11 + b"\x20\0\0\0\0\0\0"]
    ),
    st.booleans(),
)
@settings(max_examples=examples(1000), deadline=None)
def test_noise_raises_only_wire_errors(noise: bytes, start: bytes, check_crc: bool) -> None:
    with contextlib.suppress(wire.WireError):
        wire.read_records(start + noise, max_bytes=1000, check_crc=check_crc)


@pytest.mark.heavy
@given(record_batches(), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_damage_with_valid_checksum_raises_only_wire_errors(batch: RecordBatch, data: st.DataObject) -> None:
    written = bytearray(wire.write_records(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        written[data.draw(st.integers(16, len(written) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(wire.CorruptRecord, wire.LimitExceeded):
        wire.read_records(bytes(written), max_bytes=100_000, check_crc=False)


# bounds


@pytest.mark.heavy
@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[1]])
def test_decompression_is_limited(magic: int, codec: Codec) -> None:
    one = Record(offset=0, timestamp=-1 if magic == 0 else 0, value=bytes(30_000_000))
    data = wire.write_records(RecordBatch.of(one, magic=magic, codec=codec))
    tracemalloc.start()
    with pytest.raises(
        wire.LimitExceeded, match=r"batch of offset 0 at byte 0: \w+: \d+ bytes decompress to more than 1000000"
    ):
        wire.read_records(data, max_bytes=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000 + 4 * len(data)
    assert wire.read_records(data).batches[0].records[0] == one


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_limit_applies_to_all_batches_together(codec: Codec) -> None:
    batch = RecordBatch.of(Record(offset=0, timestamp=0, value=bytes(1000)), codec=codec)
    assert len(wire.read_records(wire.write_records(*[batch] * 9), max_bytes=9200).batches) == 9
    with pytest.raises(wire.LimitExceeded, match="at byte"):
        wire.read_records(wire.write_records(*[batch] * 10), max_bytes=9200)


@pytest.mark.parametrize(("magic", "codec"), [f for f in FORMATS if f[1]])
def test_elements_of_a_compressed_batch_are_limited(magic: int, codec: Codec) -> None:
    made = [Record(offset=i, timestamp=-1 if magic == 0 else 0) for i in range(300)]
    data = wire.write_records(RecordBatch.of(*made, magic=magic, codec=codec))
    assert len(data) < 7 * 299
    assert len(wire.read_records(data, max_elements=300).batches[0].records) == 300
    with pytest.raises(wire.LimitExceeded, match="299"):
        wire.read_records(data, max_elements=299)


def test_headers_count_as_elements_and_small_records_without_compression_do_not() -> None:
    many = Record(offset=0, timestamp=0, headers=(RecordHeader("h", None),) * 100)
    data = wire.write_records(RecordBatch.of(many, replace(many, offset=1), codec=Codec.GZIP))
    assert len(wire.read_records(data, max_elements=202).batches[0].records) == 2
    for limit in (201, 100):
        with pytest.raises(wire.LimitExceeded, match="100 headers"):
            wire.read_records(data, max_elements=limit)
    plain = wire.write_records(RecordBatch.of(*(Record(offset=i, timestamp=0) for i in range(100))))
    assert len(wire.read_records(plain, max_elements=0).batches[0].records) == 100


def sealed(header: bytes, payload: bytes) -> bytes:
    """A batch of magic 2 with these attributes..count, and the CRC that belongs to it."""
    covered = header + payload
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c(covered)) + covered


def v2(count: int, payload: bytes, attributes: int = 0) -> bytes:
    return sealed(struct.pack(">hiqqqhii", attributes, 0, 0, 0, -1, -1, -1, count), payload)


RECORD = bytes.fromhex("0c00000001010000")[:7]  # length 6: attributes, timestamp, offset, no key, no value, no headers
assert len(RECORD) == 7


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (v2(2**31 - 1, b""), "2147483647 records announced in 0 bytes"),
        (v2(-1, b""), "-1 records announced"),
        (v2(1, RECORD * 2), "7 bytes left over after 1 records"),
        (v2(2, RECORD + b"\x0e" + RECORD[1:]), "record 1 of 2: 7 bytes announced, 6 left"),
        (v2(1, b"\x0c\0\0\0\x7e\1\0"), "record 0 of 1: 63 bytes announced, 2 left"),
        (v2(1, b"\x0c\0\0\0\1\1\x08"), "record 0 of 1: 4 headers announced in 0 bytes"),
        (v2(1, b"\x10\0\0\0\1\1\2\1\1"), "record 0 of 1: a header without a key"),
        (v2(1, b"\x0c" + b"\xff" * 6), "record 0 of 1"),
        (v2(1, RECORD, attributes=5), "unknown compression codec 5"),
        (v2(1, b"\x1f\x8b", attributes=1), "gzip: the data ends before its trailer"),
        (v2(1, b"no gzip", attributes=1), "gzip: "),
        (v2(1, b"\xff\xff\xff\xff\x07x", attributes=2), "snappy: 2147483647 bytes announced by a block of 6"),
        (v2(1, b"\x82SNAPPY\0" + bytes(8) + b"\x7f\0\0\0", attributes=2), "snappy: a block of 2130706432 bytes"),
        (v2(1, b"\x04\x22\x4d\x18\x60\x40\x00", attributes=3), "lz4: the checksum of the frame's header is wrong"),
        (v2(1, b"\x04\x22\x4d\x18\x40\x40\xc0", attributes=3), "lz4: linked blocks"),
        (v2(1, b"no frame", attributes=3), "lz4: not a frame"),
        (v2(1, b"no zstd", attributes=4), "zstd: "),
        (struct.pack(">qi", 7, 5) + bytes(4) + b"\2", "batch at byte 0: length 5 is below the minimum of magic 2, 49"),
        (struct.pack(">qi", 7, -5) + bytes(5), "batch at byte 0: length -5 is below"),
        (struct.pack(">qi", 7, 500) + bytes(4) + b"\3", "batch at byte 0: unknown magic 3"),
    ],
)  # fmt: skip
def test_damage_is_reported_with_position(data: bytes, error: str) -> None:
    before = wire.write_records(RecordBatch.of(*SOME))
    for prefix, place in ((b"", 0), (before, len(before))):
        with pytest.raises(wire.CorruptRecord) as caught:
            wire.read_records(prefix + data)
        assert error.replace("at byte 0", f"at byte {place}") in str(caught.value)
        assert f"at byte {place}:" in str(caught.value)


# what others write


def test_header_checksum_of_old_lz4_frames() -> None:
    """Magic 0 has it over the frame's magic, too (KAFKA-3160), and is read with either."""
    record = Record(offset=0, value=b"x" * 100)
    old = wire.write_records(RecordBatch.of(record, magic=0, codec=Codec.LZ4))
    at = old.index(b"\x04\x22\x4d\x18")
    wrong, right = (xxh32(data) >> 8 & 0xFF for data in (old[at : at + 6], old[at + 4 : at + 6]))
    assert old[at + 6] == wrong != right
    mended = bytearray(old)
    mended[at + 6] = right
    mended[12:16] = struct.pack(">I", zlib.crc32(mended[16:]))
    for data in (old, bytes(mended)):
        assert wire.read_records(data).batches[0].records == (record,)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_xxh32_of_published_vectors(data: bytes, value: int) -> None:
    assert xxh32(data) == value


def test_lz4_frames_with_all_checksums_and_block_types() -> None:
    payload = b"".join(b"\x0c\0\0" + varint(i)[:1] + b"\1\1\0" for i in range(60))
    block = bytes(cramjam.lz4.compress_block(payload, store_size=False))
    descriptor = bytes((0x7C, 0x70)) + struct.pack("<Q", len(payload))  # block and content checksums, content size
    frame = (
        b"\x04\x22\x4d\x18" + descriptor + bytes((xxh32(descriptor) >> 8 & 0xFF,))
        + struct.pack("<I", len(block)) + block + struct.pack("<I", xxh32(block)) + bytes(4) + b"????"
    )  # fmt: skip
    assert len(wire.read_records(v2(60, frame, attributes=3)).batches[0].records) == 60
    damaged = frame.replace(struct.pack("<I", xxh32(block)), b"\1\2\3\4")
    with pytest.raises(wire.CorruptRecord, match="lz4: the checksum of the block before byte"):
        wire.read_records(v2(60, damaged, attributes=3))


def test_raw_snappy_and_gzip_members() -> None:
    assert (
        len(wire.read_records(v2(9, bytes(cramjam.snappy.compress_raw(RECORD * 9)), attributes=2)).batches[0].records)
        == 9
    )
    members = gzip.compress(RECORD * 4) + gzip.compress(RECORD * 5)
    assert len(wire.read_records(v2(9, members, attributes=1)).batches[0].records) == 9


def test_compacted_batch_keeps_its_offset_range() -> None:
    batch = RecordBatch(base_offset=3, last_offset=30, base_timestamp=500, max_timestamp=1003, records=SOME[1:3])
    assert wire.read_records(wire.write_records(batch)).batches == (batch,)
    emptied = RecordBatch(base_offset=3, last_offset=30, base_timestamp=-1, max_timestamp=-1, records=(), producer_id=9)
    assert wire.read_records(wire.write_records(emptied)).batches == (emptied,)


def test_relative_offsets_of_magic_1() -> None:
    """The outer message has the offset of the last inside it (KIP-31); a producer's counts from 0."""
    batch = RecordBatch.of(*SOME, magic=1, codec=Codec.GZIP)
    data = bytearray(wire.write_records(batch))
    assert struct.unpack_from(">q", data)[0] == 8
    struct.pack_into(">q", data, 0, 108)  # as a broker assigns offsets, without opening it
    assert [r.offset for r in wire.read_records(data).batches[0].records] == [105, 106, 107, 108]


def test_nested_compressed_message_is_rejected() -> None:
    inner = wire.write_records(RecordBatch.of(*SOME, magic=1, codec=Codec.GZIP))
    body = b"\1\1" + bytes(8) + struct.pack(">i", -1)
    packed = gzip.compress(inner)
    body += struct.pack(">i", len(packed)) + packed
    data = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    with pytest.raises(wire.CorruptRecord, match="message 0 inside a compressed one: magic 1 in 1, attributes 0x1"):
        wire.read_records(data)


# control records


@given(st.booleans(), st.integers(-1, 2**31 - 1))
def test_end_transaction_marker(committed: bool, epoch: int) -> None:
    marker = EndTransactionMarker(committed=committed, coordinator_epoch=epoch)
    record = marker.to_record(offset=4, timestamp=9)
    assert (record.offset, record.timestamp, record.key) == (4, 9, bytes((0, 0, 0, committed)))
    assert EndTransactionMarker.from_record(record) == marker
    assert wire.control_record_type(record).name == ("COMMIT" if committed else "ABORT")  # type: ignore[union-attr]


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\0"])
def test_control_record_without_type_is_rejected(key: bytes | None) -> None:
    with pytest.raises(wire.CorruptRecord, match="record at offset 3: a control record"):
        wire.control_record_type(Record(offset=3, key=key))


def test_invalid_end_transaction_marker_is_rejected() -> None:
    assert wire.control_record_type(Record(offset=0, key=b"\0\0\0\x63")) == 99
    for key, value in (
        (b"\0\0\0\2", bytes(6)),
        (b"\0\0\0\1", bytes(5)),
        (b"\0\0\0\1", None),
        (b"\0\0\0\1", b"\xff" * 6),
    ):
        with pytest.raises(wire.CorruptRecord):
            EndTransactionMarker.from_record(Record(offset=0, key=key, value=value))


# what cannot be written


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (RecordBatch.of(*SOME, magic=3), "batch of offset 5: unknown magic 3"),
        (RecordBatch.of(*SOME, magic=1, codec=Codec.ZSTD), "magic 1 has no zstd"),
        (RecordBatch.of(*SOME, magic=1, producer_id=3), "magic 1 has no producer id"),
        (RecordBatch.of(*SOME, magic=1, is_transactional=True), "magic 1 has no is_transactional"),
        (RecordBatch.of(Record(offset=0, headers=(RecordHeader("a", b""),)), magic=0), "magic 0 has no record headers"),
        (RecordBatch.of(*SOME, magic=0, timestamp_type=TimestampType.LOG_APPEND_TIME), "magic 0 has no timestamps"),
        (RecordBatch.of(*SOME, producer_epoch=2**15), "batch of offset 5: "),
        (RecordBatch.of(SOME[1], SOME[0]), "record at offset 5: outside a batch that begins at 6"),
        (RecordBatch.of(Record(offset=0, timestamp=2**63)), "batch of offset 0: "),
        (RecordBatch.of(Record(offset=0, value="text")), "batch of offset 0: "),  # type: ignore[arg-type]
        (RecordBatch.of(Record(offset=0, headers=(RecordHeader("\ud800", b""),))), "batch of offset 0: "),
    ],
)
def test_invalid_batches_are_rejected(batch: RecordBatch, error: str) -> None:
    with pytest.raises(wire.EncodeError, match=error):
        wire.write_records(batch)


def test_empty_batch_needs_explicit_offsets() -> None:
    with pytest.raises(wire.EncodeError):
        RecordBatch.of()
    with pytest.raises(wire.EncodeError, match="without records"):
        wire.write_records(
            RecordBatch(base_offset=0, last_offset=0, base_timestamp=0, max_timestamp=0, records=(), magic=1)
        )


# varints


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    assert read_varint(memoryview(varint(value)), 0, 64) == (value, len(varint(value)))


@pytest.mark.parametrize(
    ("data", "bits"), [(b"\xff" * 5, 32), (b"\xff" * 4 + b"\x1f", 32), (b"\xff" * 9 + b"\x02", 64)]
)
def test_long_varints_are_rejected(data: bytes, bits: int) -> None:
    with pytest.raises(wire.CorruptRecord, match="varint"):
        read_varint(memoryview(data), 0, bits)


# real ones


@pytest.mark.heavy
@pytest.mark.parametrize("name", CAPTURES)
def test_record_sets_in_captures_round_trip(name: str) -> None:
    """Record sets of Kafka 0.10.2 to 3.9: all whole batches; uncompressed ones are byte-identical."""
    from kce.captures.exchanges.decode import Decoder
    from kce.captures.files.pcap import CaptureFile

    found = 0
    with CaptureFile(str(CAPTURES[name])) as capture:
        for message in Decoder(capture).messages():
            match message.body:
                case wire.ProduceRequest() as body:
                    sets = [p.records for t in body.topic_data for p in t.partition_data]
                case wire.FetchResponse() as body:
                    sets = [p.records for t in body.responses for p in t.partitions]
                case _:
                    continue
            for data in sets:
                batches, rest = wire.read_records(data or b"")
                found += sum(len(batch.records) for batch in batches)
                for batch, span in zip(batches, spans(data or b""), strict=True):
                    if not batch.codec:
                        assert wire.write_records(batch) == bytes(data or b"")[span.start : span.end]
                assert not rest
    assert found > 20


# values by key


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("count", [1, 2, 400])
@pytest.mark.parametrize("is_transactional", [False, True])
def test_values_are_written_as_their_records_are(count: int, codec: Codec, is_transactional: bool) -> None:
    values = {b"key-%d" % i: None if i % 5 == 4 else b"v" * i * 3 for i in range(count)}
    producer = {"producer_id": 2**40, "producer_epoch": 7, "base_sequence": 0} if is_transactional else {}
    records = (Record(offset=i, timestamp=1_700_000_000_000, key=k, value=v) for i, (k, v) in enumerate(values.items()))
    expected = RecordBatch.of(*records, codec=codec, is_transactional=is_transactional, **producer)
    written = write_values(values.items(), 1_700_000_000_000, codec, is_transactional=is_transactional, **producer)
    assert written == wire.write_records(expected)


@pytest.mark.parametrize(("values", "epoch"), [({}, 0), ({b"k": b"v"}, 2**15)])
def test_values_that_make_no_batch(values: dict[bytes, bytes | None], epoch: int) -> None:
    with pytest.raises(wire.EncodeError):
        write_values(values.items(), 0, producer_epoch=epoch)
