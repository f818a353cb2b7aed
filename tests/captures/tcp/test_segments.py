"""Link layers, IP and TCP headers: packets built by hand, and dpkt's reading of the samples."""

from __future__ import annotations

import io
import struct
import subprocess

import dpkt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.tcp.segments import Dissector, Segment, address_text, endpoint_text
from tests.captures.made_files import START_NS, ethernet, ipv4, ipv6, pcap, tcp
from tests.captures.samples import CAPTURES, unzipped
from tests.sampling import examples
from tests.tools import require


def packet(data, link_type=1, wire_bytes=None):
    return Packet(1, 5, link_type, data, len(data) if wire_bytes is None else wire_bytes)


def dissect(data, link_type=1, wire_bytes=None):
    return Dissector("x").dissect(packet(data, link_type, wire_bytes))


PAYLOAD = b"some payload"


@pytest.mark.parametrize(
    ("link_type", "wrap"),
    [
        (1, ethernet),
        (1, lambda ip: ethernet(ip, tags=[0x8100])),
        (1, lambda ip: ethernet(ip, tags=[0x88A8, 0x8100])),
        (113, lambda ip: bytes(14) + b"\x08\x00" + ip),
        (276, lambda ip: b"\x08\x00" + bytes(18) + ip),
        (0, lambda ip: b"\x02\x00\x00\x00" + ip),
        (0, lambda ip: b"\x00\x00\x00\x02" + ip),
        (108, lambda ip: b"\x00\x00\x00\x02" + ip),
        (101, bytes),
        (12, bytes),
        (228, bytes),
    ],
)
def test_link_layers(link_type, wrap):
    segment = dissect(wrap(ipv4(tcp(PAYLOAD, sequence=77, acknowledgement=88, flags=0x19))), link_type)
    assert isinstance(segment, Segment)
    assert (address_text(segment.source), segment.source_port) == ("10.0.0.1", 40001)
    assert (address_text(segment.destination), segment.destination_port) == ("10.0.0.2", 9092)
    assert (segment.sequence, segment.acknowledgement, segment.flags) == (77, 88, 0x19)
    assert (segment.payload, segment.cut) == (PAYLOAD, 0)
    assert (segment.place.packet, segment.place.time_ns, segment.place.file) == (1, 5, "x")


@pytest.mark.parametrize(
    ("link_type", "wrap"),
    [
        (1, lambda ip: ethernet(ip, protocol=0x86DD)),
        (0, lambda ip: b"\x1e\x00\x00\x00" + ip),  # macOS
        (0, lambda ip: b"\x0a\x00\x00\x00" + ip),  # Linux
        (101, bytes),
        (229, bytes),
    ],
)
@pytest.mark.parametrize(
    ("following", "headers"),
    [
        (6, b""),
        (0, b"\x06\x00" + bytes(6)),  # hop-by-hop
        (0, b"\x2b\x01" + bytes(14) + b"\x3c\x00" + bytes(6) + b"\x06\x00" + bytes(6)),  # and routing, destination
        (51, b"\x06\x01" + bytes(10)),  # authentication
        (44, b"\x06\x00\x00\x00\x00\x00\x00\x01"),  # a fragment header, but the whole datagram
    ],
)
def test_ipv6_and_its_extension_headers(link_type, wrap, following, headers):
    segment = dissect(wrap(ipv6(headers + tcp(PAYLOAD), following=following)), link_type)
    assert isinstance(segment, Segment)
    assert endpoint_text(segment.source, segment.source_port) == "[fd00::1]:40001"
    assert segment.payload == PAYLOAD


def udp(payload, port):
    return ipv4(struct.pack(">HHHH", 5555, port, 8 + len(payload), 0) + payload, source="192.0.2.1", protocol=17)


def gre(protocol, payload, *, flags=0):
    options = bytes(4) * (flags >> 15 & 1) + bytes(4) * (flags >> 13 & 1) + bytes(4) * (flags >> 12 & 1)
    return ipv4(struct.pack(">HH", flags, protocol) + options + payload, source="192.0.2.1", protocol=47)


INNER = ipv4(tcp(PAYLOAD, sequence=77), source="10.0.0.1")
TUNNELS = {
    "vxlan": udp(b"\x08\0\0\0\0\0\x2a\0" + ethernet(INNER), 4789),
    "vxlan on Linux's first port": udp(b"\x08\0\0\0\0\0\x2a\0" + ethernet(INNER, tags=[0x8100]), 8472),
    "geneve": udp(b"\x02\0\x65\x58" + bytes(12) + ethernet(INNER), 6081),
    "gre": gre(0x0800, INNER),
    "gre with checksum, key and sequence": gre(0x0800, INNER, flags=0xB000),
    "gre with ethernet": gre(0x6558, ethernet(INNER), flags=0x2000),
    "gre with IPv6": gre(0x86DD, ipv6(tcp(PAYLOAD, sequence=77))),
    "erspan I": gre(0x88BE, ethernet(INNER)),
    "erspan II": gre(0x88BE, bytes.fromhex("1001000100000000") + ethernet(INNER), flags=0x1000),
    "erspan III": gre(0x22EB, bytes.fromhex("200100010000000000000000") + ethernet(INNER), flags=0x1000),
    "erspan III of IP": gre(0x22EB, bytes.fromhex("200100010000000000000800") + INNER, flags=0x1000),
    "erspan III with a subheader": gre(
        0x22EB, bytes.fromhex("200100010000000000000001") + bytes(8) + ethernet(INNER), flags=0x1000
    ),
    "IP in IP": ipv4(INNER, source="192.0.2.1", protocol=4),
    "IPv4 in IPv6": ipv6(INNER, following=4),
    "IPv6 in IPv4": ipv4(ipv6(tcp(PAYLOAD, sequence=77)), protocol=41),
    "a tunnel in a tunnel": gre(0x88BE, ethernet(udp(b"\x08" + bytes(7) + ethernet(INNER), 4789))),
}


@pytest.mark.parametrize("tunnel", TUNNELS)
def test_tunnels_are_opened(tunnel):
    data = ethernet(TUNNELS[tunnel], protocol=0x86DD if TUNNELS[tunnel][0] >> 4 == 6 else 0x0800)
    segment = dissect(data)
    assert isinstance(segment, Segment), segment
    assert address_text(segment.source) in ("10.0.0.1", "fd00::1")
    assert (segment.source_port, segment.sequence, segment.payload, segment.cut) == (40001, 77, PAYLOAD, 0)
    cut = dissect(data[:-5], wire_bytes=len(data))
    assert isinstance(cut, Segment)
    assert (cut.payload, cut.cut) == (PAYLOAD[:-5], 5)


def test_tunnels_are_what_tshark_takes_them_for(tmp_path):
    path = tmp_path / "tunnels.pcap"
    others = ("vxlan on Linux's first port", "erspan III of IP")  # which tshark does not open
    known = [data for name, data in TUNNELS.items() if data[0] >> 4 == 4 and name not in others]
    path.write_bytes(pcap([(START_NS, ethernet(data)) for data in known]))
    fields = ["-T", "fields", "-e", "tcp.seq_raw", "-e", "tcp.payload"]
    out = subprocess.run([require("tshark"), "-r", path, *fields], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["77", PAYLOAD.hex()] * len(known)


@pytest.mark.parametrize("whole", [TUNNELS["vxlan"], TUNNELS["gre"]])
def test_a_tunnel_in_fragments(whole):
    body = whole[20:]
    pieces = [
        ipv4(body[:48], protocol=whole[9], fragment=0x2000),
        ipv4(body[48:], protocol=whole[9], fragment=6),
    ]
    dissector = Dissector()
    assert "fragment" in dissector.dissect(packet(pieces[1], 101))
    assert dissector.dissect(packet(pieces[0], 101)).payload == PAYLOAD


def test_tunnels_without_end_are_not_followed():
    data = INNER
    for _ in range(20):
        data = gre(0x0800, data)
    assert dissect(ethernet(data)) == "IP protocol 47"
    assert dissect(ethernet(udp(b"\x08", 4789))) == "malformed or cut inside its headers"
    assert dissect(ethernet(udp(bytes(8), 53))) == "UDP"


def test_options_and_padding():
    data = ethernet(ipv4(tcp(PAYLOAD, option=bytes(12)), option=bytes(8))) + bytes(6)  # Ethernet pads short frames
    assert dissect(data).payload == PAYLOAD


@pytest.mark.parametrize("ip", [ipv4(tcp(PAYLOAD), total=0), ipv6(tcp(PAYLOAD), length=0)])
def test_a_length_of_zero_means_to_the_end(ip):
    assert dissect(ip, 101).payload == PAYLOAD


def test_what_the_capture_cut_off_is_counted():
    data = ethernet(ipv4(tcp(bytes(1000))))
    segment = dissect(data[:100], wire_bytes=len(data))
    assert len(segment.payload) == 100 - 14 - 40
    assert segment.cut == 1000 - len(segment.payload)
    assert dissect(ethernet(ipv4(tcp(bytes(10)), total=900))).cut == 0  # a length that is a lie


FRAGMENTED = tcp(bytes(range(256)) * 12)


def fragments(size=800):
    for begin in range(0, len(FRAGMENTED), size):
        more = 0x2000 if begin + size < len(FRAGMENTED) else 0
        yield ipv4(FRAGMENTED[begin : begin + size], fragment=more | begin // 8)


def fragments6(size=800):
    for begin in range(0, len(FRAGMENTED), size):
        more = begin + size < len(FRAGMENTED)
        header = struct.pack(">BBHI", 6, 0, begin | more, 99)
        yield ipv6(header + FRAGMENTED[begin : begin + size], following=44)


@pytest.mark.parametrize("pieces", [list(fragments()), list(fragments6())], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["in order", "backwards"])
def test_fragments_are_put_together(pieces, order):
    dissector = Dissector()
    results = [dissector.dissect(packet(piece, 101)) for piece in pieces[order]]
    assert results[:-1] == ["IP fragment before the last of its datagram"] * (len(pieces) - 1)
    assert results[-1].payload == FRAGMENTED[20:]


def test_fragments_that_never_complete_are_forgotten():
    dissector = Dissector()
    for identification in range(1000):
        piece = ipv4(FRAGMENTED[:800], fragment=0x2000, identification=identification)
        assert "fragment" in dissector.dissect(packet(piece, 101))
    assert len(dissector._fragmented) == 64


def test_fragments_of_two_datagrams_with_one_identification_are_not_mixed():
    first, second, *rest = [packet(piece, 101) for piece in fragments()]
    dissector = Dissector()
    hour_ns = 3600 * 10**9
    dissector.dissect(first._replace(data=first.data[:-800] + bytes(800)))  # of a datagram that was never completed
    later = [each._replace(time_ns=each.time_ns + hour_ns) for each in (second, first, *rest)]
    assert [dissector.dissect(each) for each in later][-1].payload == dissect(ipv4(FRAGMENTED), 101).payload


def test_a_fragment_beyond_the_end_of_any_datagram():
    assert "beyond" in dissect(ipv4(bytes(800), fragment=0x1FFF), 101)


@pytest.mark.parametrize(
    ("data", "link_type", "what"),
    [
        (ethernet(bytes(28), protocol=0x0806), 1, "ARP"),
        (ethernet(bytes(28), protocol=0x1234), 1, "link-layer protocol 0x1234"),
        (ethernet(ipv4(bytes(8), protocol=17)), 1, "UDP"),
        (ethernet(ipv4(bytes(8), protocol=1)), 1, "ICMP"),
        (ipv6(bytes(8), following=58), 101, "ICMPv6"),
        (ipv6(bytes(8), following=59), 101, "IP protocol 59"),
        (bytes(60), 147, "link type 147, which is not known here"),
        (b"", 1, "malformed or cut inside its headers"),
        (ethernet(ipv4(tcp())[:22]), 1, "malformed or cut inside its headers"),
        (ethernet(ipv4(tcp()))[:20], 1, "malformed or cut inside its headers"),
        (ethernet(b"\x41" + ipv4(tcp())[1:]), 1, "malformed or cut inside its headers"),
        (ethernet(ipv4(tcp()[:12] + b"\xf0" + tcp()[13:])), 1, "malformed or cut inside its headers"),
    ],
)
def test_what_is_no_segment_is_named(data, link_type, what):
    assert dissect(data, link_type) == what


@pytest.mark.parametrize("name", CAPTURES)
def test_reads_what_dpkt_reads(name):
    data = unzipped(name)
    reader = (dpkt.pcapng if data[:4] == b"\n\r\r\n" else dpkt.pcap).Reader(io.BytesIO(data))
    wanted = []
    for _, frame in reader:
        ip = dpkt.ethernet.Ethernet(frame).data
        wanted.append(
            (ip.src, ip.data.sport, ip.dst, ip.data.dport, ip.data.seq, ip.data.ack, ip.data.flags, ip.data.data)
        )
    dissector = Dissector()
    with CaptureFile(CAPTURES[name]) as capture:
        assert [tuple(dissector.dissect(p)[1:9]) for p in capture] == wanted


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from([0, 1, 101, 108, 113, 147, 276]), st.binary(max_size=120), st.sampled_from([0, 1, 100000]))
def test_random_packets_never_raise(link_type, data, more):
    result = dissect(data, link_type, len(data) + more)
    assert isinstance(result, (Segment, str))


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from([
        ethernet(ipv4(tcp(PAYLOAD), option=bytes(4)), tags=[0x8100]),
        ethernet(ipv6(b"\x06\x00" + bytes(6) + tcp(PAYLOAD), following=0), protocol=0x86DD),
        ethernet(next(fragments())),
        *(ethernet(tunnel) for tunnel in TUNNELS.values()),
    ]),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=5),
    st.integers(0, 120),
)  # fmt: skip
def test_mutated_packets_never_raise(data, changes, size):
    mutated = bytearray(data)
    for at, value in changes:
        if at < len(mutated):
            mutated[at] = value
    assert isinstance(dissect(bytes(mutated[:size]), wire_bytes=len(data)), (Segment, str))
