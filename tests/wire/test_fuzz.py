"""Fuzzes every decoder with damaged messages: 10^4 in the suite, 10^6 and more with `make fuzz`.

Decoders raise only WireErrors, with message, version, field and offset. They allocate at most 64 bytes per input byte.
Input that they accept is accepted by the reference, too, and round-trips.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import re
import struct

import construct
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.wire import Codec, Record, RecordBatch, RecordHeader
from kce.wire.compression import compress
from kce.wire.primitives import Primitive, explain, remaining
from kce.wire.registry import BY_KEY
from kce.wire.schema import Struct, struct_for
from tests.sampling import examples
from tests.wire import seeded
from tests.wire.frames import decode, encode, header_bytes
from tests.wire.fuzzing import SPARE_BYTES, checked, damaged
from tests.wire.strategies import MESSAGE_IDS, MESSAGES
from tests.wire.test_rule_13_2 import at, paths

#: inputs of all tests together, the same number for each message of each version
INPUTS = examples(int(os.environ.get("KCE_FUZZ_INPUTS", "12000")))
EACH = 10
MESSAGE_EXAMPLES = max(1, round(0.9 * INPUTS / len(MESSAGES) / EACH))
OTHER_EXAMPLES = max(1, INPUTS // 20 // EACH)

SEEDS = st.integers(0, 2**64 - 1)
BODY_ERROR = re.compile(r".+ at ([\w.\[\]]+|the start), offset \d+|\d+ bytes left over after offset \d+", re.DOTALL)


def test_there_are_enough_inputs() -> None:
    assert MESSAGE_EXAMPLES * EACH * len(MESSAGES) + 3 * OTHER_EXAMPLES * EACH >= min(INPUTS, 10_000)


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
@given(seed=SEEDS)
@settings(max_examples=MESSAGE_EXAMPLES, deadline=None)
def test_bodies(cls: type[wire.Message], version: int, seed: int) -> None:
    chance = random.Random(seed)
    frame = encode(seeded.message(chance, cls, version), version)
    decode(frame, cls, version)  # what is built when first used is not this input's
    start = header_bytes(cls, version)
    for i in range(EACH):
        data = damaged(chance, frame, least=start)
        result = checked(lambda: decode(data, cls, version), data, measured=i == 0)  # noqa: B023
        expected = reference(data[start:], cls, version)
        if isinstance(result, wire.WireError):
            assert type(result) is expected, (result, expected, data.hex())
            message, _, text = str(result).partition(": ")
            assert message == f"{cls.__name__} {version}", data.hex()
            assert BODY_ERROR.fullmatch(text), (text, data.hex())
        else:
            assert isinstance(expected, cls), (expected, data.hex())
            again = encode(result, version)
            assert again == encode(expected, version), data.hex()  # their bytes: a NaN is not equal to itself
            assert encode(decode(again, cls, version), version) == again, data.hex()


def reference(body: bytes, cls: type[wire.Message], version: int) -> wire.Message | type[wire.WireError]:
    """What the construct Struct of that version makes of a body: a message, or the kind of its refusal."""
    stream = io.BytesIO(body)
    try:
        message: wire.Message = struct_for(cls, version, version in BY_KEY[cls.__api_key__].flexible).parse_stream(
            stream
        )
    except construct.ConstructError as e:
        return explain(e)[0]
    return wire.TrailingBytes if remaining(stream) else message


@given(seed=SEEDS)
@settings(max_examples=OTHER_EXAMPLES, deadline=None)
def test_headers(seed: int) -> None:
    """Requests damaged from their first byte on, and responses in their headers; of any API, in any version."""
    chance = random.Random(seed)
    for i in range(EACH):
        cls, version = chance.choice(MESSAGES)
        frame = encode(cls(), version)
        decode(frame, cls, version)
        data = damaged(chance, frame)[: chance.choice((6, 12, 200))]
        if cls.__direction__ == "request":
            checked(lambda: wire.decode_request_header(data), data, measured=i == 0)  # noqa: B023
            checked(lambda: wire.decode_request(data), data, measured=False)  # noqa: B023
        else:
            checked(lambda: decode(data, cls, version), data, measured=i == 0)  # noqa: B023


@given(seed=SEEDS, check_crc=st.booleans())
@settings(max_examples=OTHER_EXAMPLES, deadline=None)
def test_records(seed: int, check_crc: bool) -> None:
    chance = random.Random(seed)
    codec, magic = chance.choice([(c, m) for c in Codec for m in (0, 1, 2) if m == 2 or c is not Codec.ZSTD])
    batch = RecordBatch.of(*some_records(chance, magic), magic=magic, codec=codec)
    data = wire.write_records(batch)
    wire.read_records(data)
    room = 10_000
    for i in range(EACH):
        if magic == 2 and chance.random() < 0.5:
            input_bytes = packed(
                codec, damaged(chance, wire.write_records(dataclasses.replace(batch, codec=Codec.NONE))[61:])
            )
        else:
            input_bytes = damaged(chance, data, least=chance.choice((0, 16, 21, 61)))
        # what may be unpacked is the caller's to say; the records in that, and in the input, have their 64 bytes each
        allowed = 64 * (len(input_bytes) + room) + SPARE_BYTES
        result = checked(
            lambda: wire.read_records(input_bytes, max_bytes=room, check_crc=check_crc),  # noqa: B023
            input_bytes, measured=i == 0, allowed=allowed,
        )  # fmt: skip
        if isinstance(result, wire.WireError):
            assert isinstance(result, (wire.CorruptRecord, wire.LimitExceeded))
            assert re.match(r"batch (of offset -?\d+ )?at byte \d+: ", str(result)), input_bytes.hex()


def packed(codec: Codec, payload: bytes) -> bytes:
    """A batch of two records whose checksum and compression are in order, whatever the payload is."""
    payload = compress(codec, payload)
    covered = struct.pack(">hiqqqhii", codec, 1, 0, 0, -1, -1, -1, 2) + payload
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c(covered)) + covered


def some_records(chance: random.Random, magic: int) -> list[Record]:
    header = RecordHeader("häder", chance.choice((None, b"", b"value")))
    return [
        Record(
            offset=i, timestamp=-1 if magic == 0 else chance.randrange(2**40), key=chance.choice((None, b"key")),
            value=chance.choice((None, b"", b"value", chance.randbytes(50), bytes(900))),
            headers=(header,) * chance.randrange(3) if magic == 2 else (),
        )
        for i in range(chance.randrange(1, 5))
    ]  # fmt: skip


@given(seed=SEEDS)
@settings(max_examples=OTHER_EXAMPLES, deadline=None)
def test_consumer_protocol(seed: int) -> None:
    chance = random.Random(seed)
    version = chance.randrange(4)
    kind = chance.choice((wire.ConsumerProtocolSubscription, wire.ConsumerProtocolAssignment))
    read = wire.decode_subscription if kind is wire.ConsumerProtocolSubscription else wire.decode_assignment
    data = wire.encode_consumer_protocol(seeded.message(chance, kind, version), version)
    read(data)
    for i in range(EACH):
        input_bytes = damaged(chance, data)
        result = checked(lambda: read(input_bytes), input_bytes, measured=i == 0)  # noqa: B023
        if isinstance(result, wire.WireError):
            assert str(result).startswith(kind.__name__), input_bytes.hex()
        elif result[0] in range(4):
            again = wire.encode_consumer_protocol(result[1], result[0])
            assert read(again) == result, input_bytes.hex()


@given(seed=SEEDS)
@settings(max_examples=OTHER_EXAMPLES, deadline=None)
def test_frames(seed: int) -> None:
    """Any bytes in any chunks: frames are complete or the length is rejected, and only received bytes are buffered."""
    chance = random.Random(seed)
    stream = b"".join(wire.frame(chance.randbytes(chance.randrange(30))) for _ in range(5))
    data = damaged(chance, stream)

    def cut() -> int:
        buffer = wire.FrameBuffer(max_frame_bytes=1000)
        at = taken = 0
        while at < len(data):
            size = chance.randrange(1, 40)
            buffer.receive_data(data[at : at + size])
            at += size
            while (frame := buffer.next_frame()) is not None:
                taken += len(frame) + 4
        assert taken + len(buffer) == len(data)
        return taken

    checked(cut, data, measured=True)


@pytest.mark.parametrize("cls", dict.fromkeys(cls for cls, _ in MESSAGES), ids=lambda cls: cls.__name__)
def test_arrays_of_minimal_elements(cls: type[wire.Message]) -> None:
    """Every array of the message, filled with elements of the fewest bytes: the most memory that a byte can take."""
    version, count = cls.__versions__.last, 500
    for path in paths(cls, version):
        f = path[-1]
        if f.array and version in f.versions:
            one = f.type.zero if isinstance(f.type, Primitive) else least(f.type, version)
            frame = encode(at(cls, path, (one,) * count), version)
            decode(encode(at(cls, path, (one,)), version), cls, version)
            allowed = 64 * len(frame) + SPARE_BYTES // 4  # less is spared than elsewhere: these are small
            checked(lambda: decode(frame, cls, version), frame, measured=True, allowed=allowed)  # noqa: B023


def least(cls: type[Struct], version: int) -> Struct:
    """A structure in which all that may be null is, and all that may be empty."""
    present = [f for f in cls.__fields__ if version in f.versions and version not in f.tagged]
    return cls(**{f.name: None if version in f.nullable else () for f in present if version in f.nullable or f.array})


def test_empty_tagged_fields() -> None:
    frame = wire.encode_response(wire.ControlledShutdownResponse(), api_version=3, correlation_id=1)
    count = 2000
    tags = b"".join(bytes((tag & 0x7F | 0x80, tag >> 7, 0)) for tag in range(128, 128 + count))
    data = frame[:-1] + bytes((count & 0x7F | 0x80, count >> 7)) + tags
    message = checked(lambda: wire.decode_response(data, api_key=7, api_version=3)[1], data, measured=True)
    assert len(message.unknown_tagged_fields) == count
