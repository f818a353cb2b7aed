"""Frames cut out of a stream that may have gaps."""

from __future__ import annotations

import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from kce import wire
from kce.captures.exchanges import framing
from kce.captures.exchanges.recognise import Verdict
from tests.captures.exchanges.dialogue import place


def never(*_):
    raise AssertionError("the stream was never lost")


@settings(deadline=None)
@given(st.lists(st.binary(min_size=4, max_size=60), max_size=8), st.lists(st.integers(1, 9), min_size=1))
def test_frames_come_out_however_the_bytes_come_in(payloads, sizes):
    stream = b"".join(wire.frame(payload) for payload in payloads)
    framer = framing.Framer(never, never)
    frames, at = [], 0
    for number, size in enumerate(itertools.cycle(sizes), 1):
        if at >= len(stream):
            break
        frames += framer.data(stream[at : at + size], place(number))
        at += size
    assert [frame.payload for frame in frames] == payloads
    framer.finish()
    assert not framer.unfinished


def test_of_a_long_frame_that_nobody_reads_only_the_head_is_kept(monkeypatch):
    monkeypatch.setattr(framing, "HEAD_BYTES", 100)
    offered = []
    for wanted in (True, False):
        framer = framing.Framer(
            never, lambda head, length, wanted=wanted: offered.append((len(head), length)) or wanted
        )
        stream = wire.frame(bytes(1000))
        frames = []
        for i in range(0, len(stream), 70):
            frames += framer.data(stream[i : i + 70], place(i))
        assert [(len(frame.payload), frame.length, frame.lost) for frame in frames] == [
            (1000 if wanted else 100, 1000, 0)
        ]
    assert offered == [(100, 1000), (100, 1000)]


def test_what_was_passed_over_before_a_gap_is_recognised_when_its_requests_have_come(monkeypatch):
    known = []

    def find(buffer, _begin, _borders, _gap):
        at = [buffer.find(frame) for frame in known if frame in buffer]
        return (Verdict.YES, min(at)) if at else (Verdict.MORE, len(buffer))

    frames = [wire.frame(bytes([i]) * 8) for i in range(5)]

    def fed():
        known.clear()
        framer = framing.Framer(find, lambda _head, _length: True, lost=True, patient=True)
        for number, piece in enumerate([b"xy" + frames[0] + frames[1][:-3], 5, 6, frames[2] + frames[3], 7, frames[4]]):
            assert (framer.gap(piece) if isinstance(piece, int) else framer.data(piece, place(number))) == []
        return framer

    framer = fed()
    assert framer.search() == []
    known[:] = frames
    assert [(frame.payload[0], frame.lost) for frame in framer.search()] == [(0, 0), (1, 3), (2, 0), (3, 0), (4, 0)]
    assert (framer.skipped, framer.waiting) == (2, False)
    framer = fed()
    known[:] = frames[3:]  # what is before it will not be recognised any more: Kafka answers in order
    assert [frame.payload[0] for frame in framer.search()] == [3, 4]
    assert framer.skipped == 2 + 12 + 9 + 12
    monkeypatch.setattr(framing, "MAX_LOST_BYTES", 30)
    framer = fed()
    assert framer.finish() == []
    assert framer.skipped == 2 + 12 + 9 + 12 * 3


def test_what_cannot_be_a_frame_does_not_swallow_what_follows():
    def find(buffer, _begin, _borders, _gap):
        at = buffer.find(b"good") - 4
        return (Verdict.YES, at) if at >= 0 else (Verdict.MORE, len(buffer))

    framer = framing.Framer(find, lambda _head, _length: True, believes=lambda head: head == b"good")
    good = wire.frame(b"good" + bytes(60))
    taken = framer.data(good + struct.pack(">i", 1_000_000) + b"ba", place(1))
    assert [frame.payload for frame in taken] == [good[4:]]
    assert framer.data(b"d!" + bytes(40), place(2)) == []
    assert framer.searching
    taken = framer.data(bytes(10) + good[:9], place(3)) + framer.data(good[9:], place(4))
    assert [(frame.payload, frame.place.packet) for frame in taken] == [(good[4:], 4)]
    assert framer.skipped == 4 + 4 + 40 + 10


def test_the_place_of_a_frame_is_the_last_packet_that_carried_a_byte_of_it():
    framer = framing.Framer(never, never)
    data = wire.frame(b"abcdefgh")
    assert framer.data(data[:6], place(9)) == []
    (frame,) = framer.data(data[6:], place(4))  # retransmitted out of order
    assert frame.place.packet == 9
