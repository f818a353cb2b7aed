"""pcap and pcapng files, well formed and otherwise.

Covers: kce.captures.files.byte_source
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import itertools
import os
import random
import struct
import subprocess
import tracemalloc

import cramjam
import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.captures.errors import CaptureError
from kce.captures.files.pcap import MAX_BLOCK_BYTES, CaptureFile
from tests.captures.made_files import START_NS, block, enhanced, interface, obsolete, pcap, section, simple
from tests.captures.samples import CAPTURES, unzipped
from tests.sampling import examples
from tests.tools import require

PACKETS = [(START_NS + 123_456_000, b"first"), (START_NS + 123_457_000, b"second packet"), (START_NS + 2 * 10**9, b"")]


def read(data, name="x.pcap"):
    capture = CaptureFile(io.BytesIO(data), name)
    return capture, list(capture)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_pcap_of_either_order_and_unit(order, nanoseconds):
    capture, packets = read(pcap(PACKETS, order=order, nanoseconds=nanoseconds, link_type=113))
    assert [(p.number, p.time_ns, p.data, p.link_type) for p in packets] == [
        (i, time_ns, data, 113) for i, (time_ns, data) in enumerate(PACKETS, 1)
    ]
    assert capture.problems == []


def test_nanoseconds_are_kept():
    _, packets = read(pcap([(START_NS + 1, b"x")], nanoseconds=True))
    assert packets[0].time_ns == START_NS + 1


def test_the_length_on_the_wire_is_kept():
    _, packets = read(pcap([(START_NS, b"cut", 1500), (START_NS, b"whole", 2)]))
    assert [packet.wire_bytes for packet in packets] == [1500, 5]  # it cannot have been shorter than what is there


def test_a_link_type_with_checksum_flags():
    data = bytearray(pcap(PACKETS))
    data[20:24] = struct.pack("<I", 1 | 0x5000_0000)
    assert read(bytes(data))[1][0].link_type == 1


@pytest.mark.parametrize("name", CAPTURES)
def test_reads_what_dpkt_reads(name):
    data = unzipped(name)
    reader = (dpkt.pcapng if data[:4] == b"\n\r\r\n" else dpkt.pcap).Reader(io.BytesIO(data))
    wanted = [(round(time * 1e6), packet) for time, packet in reader]
    with CaptureFile(CAPTURES[name]) as capture:
        assert [(round(p.time_ns / 1e3), p.data) for p in capture] == wanted
    assert capture.problems == []


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcapng_with_every_kind_of_packet_block(order):
    data = b"".join((
        section((1, b"a comment"), (4, b"an application"), (1, "zweiter Kommentar: ü".encode()), order=order),
        interface(1, order=order),
        interface(101, (9, b"\x09"), (1, b"of the interface"), order=order),
        interface(101, (9, b"\x8a"), (14, struct.pack(order + "q", 100)), order=order),
        enhanced(START_NS // 1000, b"one", order=order),
        enhanced(START_NS + 7, b"two", interface_id=1, wire_bytes=1500, order=order),
        enhanced(3 << 10, b"three", interface_id=2, order=order),
        block(5, bytes(20), order),  # interface statistics
        simple(b"four", order=order),
        obsolete(START_NS // 1000 + 5, b"fives", order=order),
        block(0x80000001, b"somebody's own", order),
    ))  # fmt: skip
    capture, packets = read(data)
    assert [(p.number, p.time_ns, p.link_type, p.data, p.wire_bytes) for p in packets] == [
        (1, START_NS, 1, b"one", 3),
        (2, START_NS + 7, 101, b"two", 1500),
        (3, 103 * 10**9, 101, b"three", 5),
        (4, 103 * 10**9, 1, b"four", 4),
        (5, START_NS + 5000, 1, b"fives", 5),
    ]
    assert capture.comments == ["a comment", "zweiter Kommentar: ü", "of the interface"]
    assert capture.problems == []


def test_a_simple_packet_is_cut_by_its_interface():
    body = struct.pack("<I", 100) + b"four"
    _, packets = read(section() + interface(1, snaplen=4) + block(3, body))
    assert [(p.data, p.wire_bytes) for p in packets] == [(b"four", 100)]


def test_sections_of_different_orders_have_their_own_interfaces():
    data = section() + interface(1) + enhanced(1, b"a") + section(order=">") + interface(101, order=">")
    _, packets = read(data + enhanced(2, b"b", order=">"))
    assert [(p.number, p.link_type, p.data) for p in packets] == [(1, 1, b"a"), (2, 101, b"b")]


def test_journal_entries_are_numbered_as_wireshark_does():
    _, packets = read(section() + interface(1) + block(9, b"MESSAGE=x\n") + enhanced(1, b"a"))
    assert [p.number for p in packets] == [2]


# gzip, by what it is


def test_gzip_is_known_by_its_content(tmp_path):
    path = tmp_path / "misnamed.txt"
    path.write_bytes(gzip.compress(pcap(PACKETS[:1])) + gzip.compress(pcap(PACKETS[1:])[24:]))  # two members
    with CaptureFile(path) as capture:
        assert [p.data for p in capture] == [data for _, data in PACKETS]


def test_truncated_gzip_gives_what_is_there():
    packets = [(START_NS + i, os.urandom(1000)) for i in range(1000)]
    data = gzip.compress(pcap(packets))
    capture, got = read(data[: len(data) // 2])
    assert 400 < len(got) < 600
    assert [p.data for p in got] == [data for _, data in packets[: len(got)]]
    assert any("gzip data is cut short" in problem for problem in capture.problems)


def test_damaged_gzip_gives_what_is_before_the_damage():
    packets = [(START_NS + 1000 * i, random.Random(i).randbytes(1000)) for i in range(3000)]
    data = bytearray(gzip.compress(pcap(packets), mtime=0))
    data[-6] ^= 0xFF  # the checksum at the end
    capture, got = read(bytes(data))
    assert [p.data for p in got] == [data for _, data in packets]
    assert len(capture.problems) == 1
    assert capture.problems[0].startswith("the gzip data is damaged (CRC check failed")
    data[len(data) // 2 : len(data) // 2 + 50_000] = bytes(50_000)
    capture, got = read(bytes(data))
    assert [p.data for p in got[:1000]] == [data for _, data in packets[:1000]]
    assert capture.problems


class Trickle(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data, step):
        self.data, self.step = data, step

    def readable(self):
        return True

    def read(self, size=-1):
        piece, self.data = self.data[: self.step], self.data[self.step :]
        return piece


def zstd(data):
    return bytes(cramjam.zstd.compress(data))


def test_zstd_is_known_by_its_content(tmp_path):
    path = tmp_path / "misnamed.txt"
    path.write_bytes(zstd(pcap(PACKETS[:1])) + zstd(pcap(PACKETS[1:])[24:]))  # two frames
    with CaptureFile(path) as capture:
        assert [p.data for p in capture] == [data for _, data in PACKETS]
    assert not capture.problems


def test_zstd_cut_short_or_damaged_gives_what_is_before():
    packets = [(START_NS + 1000 * i, random.Random(i).randbytes(1000)) for i in range(3000)]
    data = zstd(pcap(packets))
    capture, got = read(data[: len(data) // 2])
    assert 1350 < len(got) < 1500
    assert [p.data for p in got] == [data for _, data in packets[: len(got)]]
    assert any("the zstd data is cut short" in problem for problem in capture.problems)
    capture, got = read(zstd(pcap(packets[:2000])) + b"no zstd frame")
    assert len(got) in (1999, 2000)  # less than a piece of 1 KiB may go with the damage
    assert [p.data for p in got] == [data for _, data in packets[: len(got)]]
    assert any("the zstd data is damaged" in problem for problem in capture.problems)


def test_the_zstd_program_packs_what_is_read(tmp_path):
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(PACKETS * 1000))
    subprocess.run([require("zstd"), "-q", "-19", "--long=27", path], check=True)
    with CaptureFile(tmp_path / "x.pcap.zst") as capture:
        assert [p.data for p in capture] == [data for _, data in PACKETS * 1000]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_a_pipe_that_trickles(compress):
    capture = CaptureFile(Trickle(compress(pcap(PACKETS)), 3), "standard input")
    assert [p.data for p in capture] == [data for _, data in PACKETS]


def test_memory_does_not_grow_with_the_file():
    class Repeating(io.RawIOBase):
        """The same 500 packets again and again."""

        def __init__(self):
            packets = pcap([(START_NS, bytes(1400))] * 500)
            self.left = [packets] + [packets[24:]] * 79

        def read(self, size=-1):
            return self.left.pop(0) if self.left else b""

    source = Repeating()
    tracemalloc.start()
    try:
        assert sum(1 for _ in CaptureFile(source, "x")) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 5 * 1024 * 1024
    finally:
        tracemalloc.stop()


# files cut short and files damaged


def test_every_truncation_of_a_pcap_gives_what_is_before_it():
    data = pcap(PACKETS)
    ends = [24]
    for _, packet in PACKETS:
        ends.append(ends[-1] + 16 + len(packet))
    for size in range(24, len(data)):
        capture, packets = read(data[:size])
        assert len(packets) == sum(1 for end in ends[1:] if end <= size)
        assert bool(capture.problems) == (size not in ends), size
        if capture.problems:
            assert f"packet {len(packets) + 1}" in capture.problems[0]
            assert f"offset {max(end for end in ends if end <= size)}" in capture.problems[0]


def test_every_truncation_of_a_pcapng_gives_what_is_before_it():
    blocks = [section(), interface(1), enhanced(1, b"one"), enhanced(2, b"second"), enhanced(3, b"")]
    data = b"".join(blocks)
    ends = [sum(map(len, blocks[: i + 1])) for i in range(len(blocks))]
    for size in range(28, len(data)):
        capture, packets = read(data[:size])
        assert len(packets) == sum(1 for end in ends[2:] if end <= size)
        assert bool(capture.problems) == (size not in ends), size


ZIPPED = gzip.compress(b"x" * 999, mtime=0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a capture: the file is empty"),
        (b"\x7fELF\x02\x01\x01", "not a capture: it is an ELF program"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a capture: it is text"),
        ("grüße an alle\n".encode() * 60, "not a capture: it is text"),
        (b"\x28\xb5\x2f\xfd\x00", "not a capture: the zstd data is cut short at offset 0"),
        (b"PK\x03\x04", "not a capture: it is a ZIP archive"),
        (ZIPPED, "not a capture: gzip data that holds text"),
        (gzip.compress(b"", mtime=0), "not a capture: gzip data with nothing in it"),
        (ZIPPED[:11], "not a capture: the gzip data is cut short at offset 0"),
        (ZIPPED[:10] + b"\xff" * 9, "not a capture: the gzip data is damaged"),
        (bytes(40), "begins with 00 00 00 00 00 00 00 00 at offset 0, which neither pcap nor pcapng do"),
        (pcap([])[:20], "ends inside the pcap header, at offset 20 of 24"),
        (section()[:20], "ends inside its first pcapng block, at offset 20"),
        (b"\n\r\r\n" + bytes(24), "no pcapng byte-order magic at offset 8, but 00 00 00 00"),
        (pcap([])[:4] + b"\x09\x00" + pcap([])[6:], "pcap version 9.4 at offset 4, known is 2.4"),
    ],
    ids=itertools.count(),
)
def test_what_is_no_capture_is_refused_and_named(data, expected):
    with pytest.raises(CaptureError) as e:
        read(data, "x")
    assert str(e.value).startswith("x: ")
    assert expected in str(e.value)
    assert "\n" not in str(e.value)


def test_an_empty_capture_is_a_capture():
    capture, packets = read(pcap([]))
    assert (packets, capture.problems) == ([], [])


def test_paths_that_cannot_be_read(tmp_path):
    with pytest.raises(CaptureError, match=r"missing\.pcap: there is no such file$"):
        CaptureFile(tmp_path / "missing.pcap")
    with pytest.raises(CaptureError, match=r"a directory, not a capture$"):
        CaptureFile(tmp_path)
    with pytest.raises(CaptureError, match="cannot be opened"):
        CaptureFile(tmp_path / ("long" * 200))


def test_a_file_without_permission(tmp_path):
    path = tmp_path / "secret.pcap"
    path.write_bytes(pcap(PACKETS))
    path.chmod(0)
    before = os.geteuid()
    if before == 0:  # root may read everything: be nobody for a moment
        os.seteuid(65534)
    try:
        with pytest.raises(CaptureError, match=r"secret\.pcap: permission to read it is denied$"):
            CaptureFile(path)
    finally:
        os.seteuid(before)


def test_a_disk_that_fails_while_reading():
    class Failing(io.RawIOBase):
        def __init__(self):
            self.once = pcap(PACKETS)

        def read(self, size=-1):
            if not self.once:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            data, self.once = self.once, b""
            return data

    capture = CaptureFile(Failing(), "x")
    assert len(list(capture)) == 3
    assert capture.problems == ["reading failed (Input/output error) after packet 3"]


def test_an_absurd_length_is_not_allocated():
    data = pcap(PACKETS[:2]) + struct.pack("<IIII", 1, 2, 0x7FFFFFFF, 0x7FFFFFFF) + b"rest"
    capture, packets = read(data)
    assert len(packets) == 2
    assert capture.problems == [
        f"packet 3 at offset {len(data) - 20} announces 2147483647 bytes, above {MAX_BLOCK_BYTES}: "
        "what follows is not read"
    ]


def test_an_oversized_pcapng_block_is_skipped_without_being_kept():
    huge = MAX_BLOCK_BYTES + 4
    data = section() + interface(1) + enhanced(1, b"a")
    length = struct.pack("<I", huge + 12)
    capture, packets = read(data + struct.pack("<I", 0x0BAD) + length + bytes(huge) + length + enhanced(2, b"b"))
    assert [p.data for p in packets] == [b"a", b"b"]
    assert "above 16777216: it is skipped" in capture.problems[0]
    capture, packets = read(data + struct.pack("<I", 0x0BAD) + struct.pack("<I", 0xFFFFFFF0) + bytes(9))
    assert len(packets) == 1
    assert capture.problems[1].startswith("ends inside the block at offset")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (block(6, bytes(8)), "packet 2: a packet block of 20 bytes"),
        (enhanced(1, b"x", interface_id=3), "packet 2 is of interface 3, which its section does not describe"),
        (block(6, struct.pack("<5I", 0, 0, 0, 99, 99) + b"abcd"), "packet 2 announces 99 bytes, more than its block"),
        (interface(1, (9, b"\x00")) + enhanced(2**63, b"b", interface_id=1), "packet 2 has a time that no clock shows"),
        (block(1, b""), "an interface description of 12 bytes after packet 1"),
    ],
)  # fmt: skip
def test_a_damaged_block_is_reported_and_skipped(blocks, expected):
    capture, packets = read(section() + interface(1) + enhanced(1, b"a") + blocks + enhanced(3, b"c"))
    assert [p.data for p in packets if p.data != b"b"] == [b"a", b"c"]
    assert len(capture.problems) == 1
    assert capture.problems[0].startswith(expected)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (struct.pack("<II", 6, 13) + bytes(20), "announces 13 bytes, which no block has"),
        (struct.pack("<II", 6, 8) + bytes(20), "announces 8 bytes, which no block has"),
        (struct.pack("<4I", 6, 16, 0, 20) + bytes(12), "says its length twice and differently"),
        (b"\n\r\r\n" + bytes(24), "no byte-order magic in the section"),
    ],
)  # fmt: skip
def test_damage_after_which_nothing_can_be_trusted_ends_the_reading(tail, expected):
    capture, packets = read(section() + interface(1) + enhanced(1, b"a") + tail)
    assert [p.data for p in packets] == [b"a"]
    assert expected in capture.problems[0]


# whatever the bytes


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=400), st.sampled_from([b"", pcap([])[:24], section(), section() + interface(1), b"\x1f\x8b"]))
def test_random_bytes_raise_nothing_but_capture_error(data, head):
    try:
        capture, packets = read(head + data)
    except CaptureError:
        return
    assert all(p.number >= 1 and len(p.data) <= p.wire_bytes for p in packets)
    assert len(capture.problems) <= 20


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_mutated_files_raise_nothing_but_capture_error(data):
    whole = data.draw(st.sampled_from([
        pcap(PACKETS, order=">"),
        gzip.compress(pcap(PACKETS)),
        zstd(pcap(PACKETS)),
        section((1, b"c")) + interface(1, (9, b"\x06")) + enhanced(1, b"one") + simple(b"x") + obsolete(1, b"two"),
    ]))  # fmt: skip
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CaptureError):
        read(bytes(mutated))
