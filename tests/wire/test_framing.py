from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kce import wire


@given(payloads=st.lists(st.binary(max_size=50), max_size=8), cuts=st.lists(st.integers(1, 20), min_size=1))
def test_frames_are_independent_of_chunking(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(wire.frame(p) for p in payloads)
    buffer, seen, at, turn = wire.FrameBuffer(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        data = stream[at : at + step]
        at, turn = at + step, turn + 1
        if turn % 2:
            buffer.receive_data(data)
        elif (first := buffer.receive_frame(data)) is not None:
            seen.append(first)
        while (got := buffer.next_frame()) is not None:
            seen.append(got)
    assert seen == payloads
    assert len(buffer) == 0


@given(
    sizes=st.lists(st.sampled_from([0, 1, 3, 4091, 4092, 4096, 9000]), max_size=6),
    pieces=st.lists(st.tuples(st.sampled_from([1, 3, 4, 4095, 4096, 5000, 20_000]), st.booleans()), min_size=1),
)
def test_large_frames_in_any_pieces(sizes: list[int], pieces: list[tuple[int, bool]]) -> None:
    """``pieces``: and whether the frames are taken after that one."""
    payloads = [bytes([1 + i]) * size for i, size in enumerate(sizes)]
    stream = b"".join(wire.frame(p) for p in payloads)
    buffer, seen, at, turn = wire.FrameBuffer(), [], 0, 0
    while at < len(stream):
        size, takes = pieces[turn % len(pieces)]
        buffer.receive_data(memoryview(stream)[at : at + size])
        at, turn = at + size, turn + 1
        left = stream[sum(len(p) + 4 for p in seen) : at]
        assert (len(buffer), buffer.rest()) == (len(left), left)
        while takes and (got := buffer.next_frame()) is not None:
            seen.append(got)
    while (got := buffer.next_frame()) is not None:
        seen.append(got)
    assert seen == payloads
    assert len(buffer) == 0


def test_a_frame_that_comes_byte_by_byte_takes_little_more_memory() -> None:
    buffer = wire.FrameBuffer()
    frame = wire.frame(bytes(100_000))
    tracemalloc.start()
    try:
        for i in range(len(frame) - 1):
            buffer.receive_data(frame[i : i + 1])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 150_000
    buffer.receive_data(b"\0")
    assert buffer.next_frame() == bytes(100_000)


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, wire.DEFAULT_MAX_FRAME_BYTES + 1])
def test_invalid_frame_length_is_rejected_before_buffering(length: int) -> None:
    buffer = wire.FrameBuffer()
    buffer.receive_data(struct.pack(">i", length) + b"xyz")
    with pytest.raises(wire.LimitExceeded, match=str(length)):
        buffer.next_frame()


def test_a_frame_that_comes_alone() -> None:
    buffer = wire.FrameBuffer(max_frame_bytes=3)
    assert buffer.receive_frame(b"\0\0\0\3abc") == b"abc"
    assert type(buffer.receive_frame(bytearray(b"\0\0\0\0"))) is bytes
    assert buffer.receive_frame(b"\0\0\0") is None
    assert buffer.receive_frame(b"\2ab") == b"ab"
    with pytest.raises(wire.LimitExceeded):
        buffer.receive_frame(b"\0\0\0\4abcd")


def test_incomplete_frame_is_pending() -> None:
    buffer = wire.FrameBuffer(max_frame_bytes=10)
    for part in (b"\0\0", b"\0\3", b"ab"):
        buffer.receive_data(part)
        assert buffer.next_frame() is None
    buffer.receive_data(b"c\0")
    assert buffer.next_frame() == b"abc"
    assert buffer.next_frame() is None
    assert len(buffer) == 1


def test_buffer_releases_returned_frames() -> None:
    buffer = wire.FrameBuffer()
    for _ in range(50):
        buffer.receive_data(wire.frame(bytes(10_000)) + b"\0")
        assert buffer.next_frame() is not None
        buffer.receive_data(b"\0\0\0")
        assert buffer.next_frame() == b""
    assert len(buffer) == 0


def test_the_length_of_a_frame_is_known_before_it_is_complete() -> None:
    buffer = wire.FrameBuffer()
    assert buffer.announced_bytes() is None
    buffer.receive_data(b"\0\0\0")
    assert buffer.announced_bytes() is None
    buffer.receive_data(b"\7ab")
    assert buffer.announced_bytes() == 7
    assert buffer.next_frame() is None
    buffer.receive_data(b"cdefg")
    assert buffer.next_frame() == b"abcdefg"
    assert buffer.announced_bytes() is None


@pytest.mark.parametrize("begin", [b"\x15\x03\x03\0", b"\x16\x03\x01\x02"])
def test_bytes_of_tls_are_called_so(begin: bytes) -> None:
    buffer = wire.FrameBuffer()
    buffer.receive_data(begin)
    with pytest.raises(wire.SpeaksTls, match="bytes of TLS"):
        buffer.next_frame()
