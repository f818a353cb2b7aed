"""Cutting captures: whatever the packets hold, the splits together are the file."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.captures.files.formats import MAX_BLOCK_BYTES
from kce.captures.files.index import LEAD_PACKETS, cuts, join, splits, survey
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.split import WHOLE
from kce.captures.tcp.segments import Dissector, Segment
from tests.captures.made_files import START_NS, block, enhanced, interface, ipv4, obsolete, pcap, section, simple, tcp
from tests.captures.samples import CAPTURES, unzipped
from tests.sampling import examples


def whole(path):
    with CaptureFile(path) as capture:
        return list(capture), capture.problems


def in_splits(path, divided):
    packets, problems = [], []
    for split in divided:
        with CaptureFile(path, split=split) as capture:
            packets += [packet for packet in capture if packet.number >= capture.first]
            problems += capture.problems
    return packets, problems


def seams_hold(divided):
    return all(
        (before.end, before.first_packet + before.packets) == (after.begin, after.first_packet)
        for before, after in itertools.pairwise(divided)
    )


@pytest.mark.parametrize("name", CAPTURES)
def test_splits_of_real_captures(name, tmp_path):
    path = tmp_path / "capture"
    path.write_bytes(unzipped(name))
    divided = splits(path, 20_000)
    assert len(divided) >= 8
    assert seams_hold(divided)
    assert in_splits(path, divided) == whole(path)
    for split in divided:
        assert min(split.first_packet - 1, LEAD_PACKETS) <= split.lead_packets


def nested(rng, order, count):
    """A capture inside a packet: whole, and broken off."""
    inner = pcap([(START_NS + i * 10**6, rng.randbytes(rng.randrange(80))) for i in range(count)], order=order)
    inner_ng = section(order=order) + interface(order=order)
    inner_ng += b"".join(enhanced(START_NS // 1000 + i, rng.randbytes(20), order=order) for i in range(count))
    return rng.choice([inner, inner[24:], inner_ng, inner_ng[: len(inner_ng) // 2 // 4 * 4], rng.randbytes(300)])


def packets_of(rng, order):
    return [
        (START_NS + i * 10**7, nested(rng, order, rng.randrange(1, 60)) + rng.randbytes(rng.randrange(4)))
        for i in range(rng.randrange(1, 60))
    ]


def pcapng_of(rng, order):
    blocks = [section(order=order), interface(order=order)]
    for time_ns, data in packets_of(rng, order):
        blocks += rng.choice([
            [enhanced(time_ns // 1000, data, order=order)],
            [simple(data, order=order)],
            [obsolete(time_ns // 1000, data, order=order)],
            [block(9, data, order)],
            [block(0x0BAD, data, order)],
            [interface(101, (9, b"\x09"), order=order), enhanced(time_ns // 1000, data, order=order)],
        ])  # fmt: skip
        if rng.random() < 0.05:
            order = rng.choice("<>")
            blocks += [section(order=order), interface(101, order=order)]
    return b"".join(blocks)


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), order=st.sampled_from("<>"), ng=st.booleans(), cut=st.integers(0, 50))
def test_captures_inside_packets_do_not_mislead(tmp_path_factory, seed, order, ng, cut):
    rng = random.Random(seed)
    data = pcapng_of(rng, order) if ng else pcap(packets_of(rng, order), order=order)
    data = data[: max(28, len(data) - cut)]
    path = tmp_path_factory.mktemp("index") / "x"
    path.write_bytes(data)
    divided = splits(path, rng.randrange(200, 5000))
    assert seams_hold(divided) or divided == [WHOLE]
    assert in_splits(path, divided) == whole(path)


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    ng=st.booleans(),
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
)
def test_splits_of_damaged_files_hold_what_the_whole_does(tmp_path_factory, seed, ng, changes):
    rng = random.Random(seed)
    data = bytearray(pcapng_of(rng, "<") if ng else pcap(packets_of(rng, "<")))
    for where, value in changes:
        data[28 + int(where * (len(data) - 29))] = value  # the head stays: without it there is no capture
    path = tmp_path_factory.mktemp("index") / "x"
    path.write_bytes(data)
    assert in_splits(path, splits(path, rng.randrange(200, 5000)))[0] == whole(path)[0]


def test_a_wrong_guess_is_found_at_the_seam_and_walked_again(tmp_path):
    inner = pcap([(START_NS, bytes(100))] * 100)[24:]
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([(START_NS, inner)] * 10))
    pieces = [survey(path, *cut) for cut in cuts(path, 5000)]
    divided = join(path, pieces)
    wrong = [piece for piece in pieces if piece.begin is not None and all(piece.begin != s.begin for s in divided)]
    assert wrong
    assert sum(split.packets for split in divided) == 10
    assert in_splits(path, divided) == whole(path)


def test_a_packet_longer_than_several_splits(tmp_path):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([(START_NS, bytes(10)), (START_NS, bytes(50_000)), (START_NS, bytes(10))]))
    divided = splits(path, 5000)
    assert len(divided) < 5
    assert in_splits(path, divided) == whole(path)


@pytest.mark.heavy
def test_damage_is_reported_once_by_the_split_that_meets_it(tmp_path):
    path = tmp_path / "x.pcap"
    good = pcap([(START_NS, bytes(500))] * 100)
    path.write_bytes(good + b"\xff" * 16 + good[24:])
    packets, problems = in_splits(path, splits(path, 3000))
    assert (packets, problems) == whole(path)
    assert len(problems) == 1
    assert f"offset {len(good)}" in problems[0]
    path.write_bytes(b"".join([section(), interface(), enhanced(5, b"a") * 50, block(6, bytes(MAX_BLOCK_BYTES))]))
    packets, problems = in_splits(path, splits(path, 100_000))
    assert (packets, problems) == whole(path)
    assert len(problems) == 1


def test_what_cannot_be_cut_is_one_split(tmp_path):
    for name in ("kafka-3.9.1-zombie", "kafka-2.8.2-tour"):
        assert splits(CAPTURES[name], 1000) == [WHOLE]
    path = tmp_path / "small.pcap"
    path.write_bytes(pcap([(START_NS, b"x")]))
    assert splits(path, 1000) == [WHOLE]
    assert splits(f"file://{path}", 30)[0].end == path.stat().st_size


def test_a_file_that_was_changed_is_reported(tmp_path):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([(START_NS, bytes(100))] * 100))
    divided = splits(path, 3000)
    path.write_bytes(pcap([(START_NS, bytes(42))] * 200))
    assert in_splits(path, divided)[1]


def test_fragments_on_either_side_of_a_cut_come_together(tmp_path):
    datagram = tcp(bytes(range(256)))
    packets = []
    for identification in range(200):
        for offset in (0, 96, 192):
            piece, more = datagram[offset : offset + 96], 0x2000 if offset < 192 else 0
            packets.append((START_NS, ipv4(piece, fragment=more | offset // 8, identification=identification)))
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(packets, link_type=101))
    found = []
    for split in splits(path, 1111):
        dissector = Dissector()
        with CaptureFile(path, split=split) as capture:
            for packet in capture:
                segment = dissector.dissect(packet)
                if packet.number >= capture.first and isinstance(segment, Segment):
                    found.append(segment.place.packet)
    assert found == list(range(3, 601, 3))
