"""Packets as scapy builds them: its innermost TCP segment is the one that is to be found."""

from __future__ import annotations

import random
import struct

import pytest
from scapy.contrib import erspan
from scapy.layers import inet, inet6, l2, vxlan

from kce.captures.files.pcap import Packet
from kce.captures.tcp.segments import Dissector, Segment, endpoint_text

ETHERNET, RAW, COOKED_V1 = 1, 101, 113


def segment(rng, size=None):
    return inet.TCP(
        sport=rng.randrange(1, 65536), dport=rng.randrange(1, 65536), seq=rng.randrange(1 << 32), flags="PA",
        options=rng.choice([[], [("Timestamp", (1, 2))], [("NOP", None), ("NOP", None), ("SAck", (1, 2))]]),
    ) / rng.randbytes(rng.randrange(300) if size is None else size)  # fmt: skip


def ip(rng, payload):
    if rng.random() < 0.5:
        option = rng.choice([[], [inet.IPOption_NOP()], [inet.IPOption_RR()]])
        return inet.IP(src="10.0.0.1", dst="10.0.0.2", options=option) / payload
    extension = rng.choice([
        None, inet6.IPv6ExtHdrHopByHop(), inet6.IPv6ExtHdrRouting(addresses=["fd00::9"]),
        inet6.IPv6ExtHdrHopByHop() / inet6.IPv6ExtHdrDestOpt(),
    ])  # fmt: skip
    header = inet6.IPv6(src="fd00::1", dst="fd00::2")
    return header / payload if extension is None else header / extension / payload


def ethernet(rng, payload):
    tags = rng.choice([None, l2.Dot1Q(vlan=5), l2.Dot1AD(vlan=7) / l2.Dot1Q(vlan=5)])
    # with addresses, or scapy asks the network for them
    head = l2.Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    return head / payload if tags is None else head / tags / payload


def tunnelled(rng, payload):
    """``payload``, an IP packet, in one of the tunnels, or in one in another."""
    outer = inet.IP(src="192.0.2.1", dst="192.0.2.2")
    made = rng.choice([
        lambda: outer / inet.UDP(sport=5, dport=4789) / vxlan.VXLAN(vni=42) / ethernet(rng, payload),
        lambda: outer / l2.GRE(key_present=rng.randrange(2), seqnum_present=rng.randrange(2)) / payload,
        lambda: outer / l2.GRE() / ethernet(rng, payload),
        lambda: outer / l2.GRE(seqnum_present=1) / erspan.ERSPAN_II() / ethernet(rng, payload),
        lambda: outer / l2.GRE(seqnum_present=1) / erspan.ERSPAN_III() / ethernet(rng, payload),
        lambda: outer / payload,
    ])()  # fmt: skip
    return tunnelled(rng, made) if rng.random() < 0.2 else made


def read(dissector, data, link_type):
    return dissector.dissect(Packet(1, 0, link_type, data, len(data)))


def expected(tcp):
    """Source port, destination port, sequence number, payload."""
    data = bytes(tcp)
    source, destination, sequence = struct.unpack_from(">HHI", data)
    return source, destination, sequence, data[(data[12] >> 4) * 4 :]


def found(result):
    assert isinstance(result, Segment), result
    return result.source_port, result.destination_port, result.sequence, result.payload


@pytest.mark.parametrize("seed", range(150))
def test_the_innermost_segment_is_found(seed):
    rng = random.Random(seed)
    tcp = segment(rng)
    packet = ip(rng, tcp)
    if rng.random() < 0.7:
        packet = tunnelled(rng, packet)
    link_type = rng.choice([ETHERNET, RAW, COOKED_V1])
    if link_type == ETHERNET:
        packet = ethernet(rng, packet)
    elif link_type == COOKED_V1:
        packet = l2.CookedLinux() / packet
    result = read(Dissector(), bytes(packet), link_type)
    assert found(result) == expected(tcp)
    assert endpoint_text(result.source, 1) in ("10.0.0.1:1", "[fd00::1]:1")


@pytest.mark.parametrize("seed", range(30))
def test_fragments_in_any_order(seed):
    rng = random.Random(seed)
    tcp = segment(rng, 3000)
    if seed % 2:
        pieces = inet.fragment(inet.IP(src="10.0.0.1", dst="10.0.0.2", id=seed) / tcp, fragsize=rng.choice([64, 576]))
    else:
        header = inet6.IPv6(src="fd00::1", dst="fd00::2") / inet6.IPv6ExtHdrFragment(id=seed)
        pieces = inet6.fragment6(header / tcp, rng.choice([200, 1280]))
    assert len(pieces) > 2
    rng.shuffle(pieces)
    dissector = Dissector()
    results = [read(dissector, bytes(piece), RAW) for piece in pieces]
    assert found(results[-1]) == expected(tcp)
    assert set(results[:-1]) == {"IP fragment before the last of its datagram"}
