"""TCP segments out of packets: link layers, VLAN tags, tunnels, IPv4 and IPv6 with extension headers and fragments.

Mirrored traffic is encapsulated: VXLAN (RFC 7348), Geneve (RFC 8926), GRE (RFC 2784, 2890), ERSPAN (types I to III) and
IP in IP are decapsulated, up to ``MAX_DEPTH`` levels; the segment is the innermost.

Checksums are ignored: with checksum offload, packets are captured before the network card fills them in. For the same
reason an IP length of 0 (segmentation offload) means "to the end of the packet".
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from collections import OrderedDict
from typing import NamedTuple

from kce.captures.files.pcap import Packet

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

#: Fragmented datagrams kept at one time, and the maximum size of one (IP's limit).
MAX_FRAGMENTED = 64
MAX_DATAGRAM_BYTES = 65_535

#: Fragments further apart belong to two datagrams with the same identification (RFC 8200, 4.5).
MAX_FRAGMENTED_NS = 60_000_000_000

#: Maximum number of nested IP headers.
MAX_DEPTH = 6

_LINK_ETHERNET = 1
_LINK_NULL = 0
_LINK_LOOP = 108
_LINK_COOKED_V1 = 113
_LINK_COOKED_V2 = 276
_LINK_RAW = frozenset({12, 14, 101, 228, 229})

_ETHERTYPE_IPV4 = 0x0800
_ETHERTYPE_IPV6 = 0x86DD
_VLAN_TAGS = frozenset({0x8100, 0x88A8, 0x9100})
#: AF_INET, and what AF_INET6 is on Linux, the BSDs and macOS
_NULL_FAMILIES = {2: _ETHERTYPE_IPV4, **dict.fromkeys((10, 24, 28, 30), _ETHERTYPE_IPV6)}
_ETHERTYPE_NAMES = {0x0806: "ARP", 0x88CC: "LLDP"}

_TCP = 6
_UDP = 17
_GRE = 47
_IP_IN_IP = {4: _ETHERTYPE_IPV4, 41: _ETHERTYPE_IPV6}
_ETHERTYPE_ETHERNET = 0x6558
_ETHERTYPE_ERSPAN_I_OR_II = 0x88BE
_ETHERTYPE_ERSPAN_III = 0x22EB
#: Linux used 8472 for VXLAN before IANA assigned a port
_VXLAN_PORTS = frozenset({4789, 8472})
_GENEVE_PORT = 6081
_PROTOCOL_NAMES = {1: "ICMP", 17: "UDP", 58: "ICMPv6", 132: "SCTP"}
_HOP_BY_HOP, _ROUTING, _FRAGMENT, _AUTHENTICATION, _DESTINATION = 0, 43, 44, 51, 60

#: IP protocols that are dissected
_OPENED = frozenset({_TCP, _UDP, _GRE, *_IP_IN_IP})

#: Identity of a fragmented datagram: source, destination, protocol, identification.
_Datagram = tuple[bytes, bytes, int, int]

_MALFORMED = "malformed or cut inside its headers"

_TCP_HEADER = struct.Struct(">HHIIBB").unpack_from


Endpoint = tuple[bytes, int]
"""Packed address and port."""


class Place(NamedTuple):
    """The position of a captured packet: ``packet`` of ``file``, at ``time_ns``. Places compare by ``order`` first.

    Within one file the order is the packet number; over several files it is whatever order their packets are read in.
    """

    order: int
    time_ns: int
    packet: int
    file: str


class Segment(NamedTuple):
    """One TCP segment. Addresses are packed, 4 or 16 bytes. ``cut`` bytes of its payload were not captured."""

    place: Place
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    sequence: int
    acknowledgement: int
    flags: int
    payload: bytes
    cut: int


class _NotASegment(Exception):
    """``what`` the packet is instead."""

    def __init__(self, what: str) -> None:
        self.what = what


class Dissector:
    """Takes packets in the order of the file. Owns the fragments whose datagrams are not complete yet."""

    def __init__(self, file: str = "") -> None:
        self._file = file
        self._fragmented: OrderedDict[_Datagram, _Fragments] = OrderedDict()

    def dissect(self, packet: Packet) -> Segment | str:
        """The TCP segment in it, or what the packet is instead. Never raises, whatever the bytes."""
        try:
            return self._link_layer(packet)
        except _NotASegment as e:
            return e.what
        except (struct.error, IndexError):
            return _MALFORMED

    def _link_layer(self, packet: Packet) -> Segment:
        data = packet.data
        link_type = packet.link_type
        if link_type == _LINK_ETHERNET:
            return self._ethernet(packet, 0, 0)
        if link_type in _LINK_RAW:
            return self._ip(packet, 0, 0)
        if link_type == _LINK_COOKED_V1:
            return self._network_layer(packet, 16, data[14] << 8 | data[15], 0)
        if link_type == _LINK_COOKED_V2:
            return self._network_layer(packet, 20, data[0] << 8 | data[1], 0)
        if link_type in (_LINK_NULL, _LINK_LOOP):
            # the address family in the byte order of the host that captured; it is below 256 either way
            family = int.from_bytes(data[:4], "big")
            family = family if family < 256 else int.from_bytes(data[:4], "little")
            return self._network_layer(packet, 4, _NULL_FAMILIES.get(family, 0), 0)
        raise _NotASegment(f"link type {link_type}, which is not known here")

    def _ethernet(self, packet: Packet, at: int, depth: int) -> Segment:
        return self._network_layer(packet, at + 14, packet.data[at + 12] << 8 | packet.data[at + 13], depth)

    def _ip(self, packet: Packet, at: int, depth: int) -> Segment:
        return self._ipv6(packet, at, depth) if packet.data[at] >> 4 == 6 else self._ipv4(packet, at, depth)

    def _network_layer(self, packet: Packet, at: int, protocol: int, depth: int) -> Segment:
        data = packet.data
        while protocol in _VLAN_TAGS:
            protocol = data[at + 2] << 8 | data[at + 3]
            at += 4
        if protocol == _ETHERTYPE_IPV4:
            return self._ipv4(packet, at, depth)
        if protocol == _ETHERTYPE_IPV6:
            return self._ipv6(packet, at, depth)
        raise _NotASegment(_ETHERTYPE_NAMES.get(protocol, f"link-layer protocol 0x{protocol:04x}"))

    def _ipv4(self, packet: Packet, at: int, depth: int) -> Segment:
        data = packet.data
        header_bytes = (data[at] & 0x0F) * 4
        total = data[at + 2] << 8 | data[at + 3]
        fragment = data[at + 6] << 8 | data[at + 7]
        protocol = data[at + 9]
        source, destination = data[at + 12 : at + 16], data[at + 16 : at + 20]
        if header_bytes < 20 or len(destination) < 4:
            raise _NotASegment(_MALFORMED)
        end = min(at + total, packet.wire_bytes) if total else packet.wire_bytes
        begin = at + header_bytes
        if fragment & 0x3FFF:
            identification = data[at + 4] << 8 | data[at + 5]
            piece = (source, destination, protocol, identification), (fragment & 0x1FFF) * 8, bool(fragment & 0x2000)
            return self._fragment(packet, *piece, begin, end, depth)
        return self._transport(packet, protocol, source, destination, begin, end, depth)

    def _ipv6(self, packet: Packet, at: int, depth: int) -> Segment:
        data = packet.data
        length = data[at + 4] << 8 | data[at + 5]
        following = data[at + 6]
        source, destination = data[at + 8 : at + 24], data[at + 24 : at + 40]
        if len(destination) < 16:
            raise _NotASegment(_MALFORMED)
        begin = at + 40
        end = min(begin + length, packet.wire_bytes) if length else packet.wire_bytes
        while following != _TCP:
            if following in (_HOP_BY_HOP, _ROUTING, _DESTINATION):
                following, begin = data[begin], begin + 8 + data[begin + 1] * 8
            elif following == _AUTHENTICATION:
                following, begin = data[begin], begin + 8 + data[begin + 1] * 4
            elif following == _FRAGMENT:
                inner = data[begin]
                offset = data[begin + 2] << 8 | data[begin + 3]
                identification = int.from_bytes(data[begin + 4 : begin + 8], "big")
                begin += 8
                if offset & 0xFFF9:
                    piece = (source, destination, inner, identification), offset & 0xFFF8, bool(offset & 1)
                    return self._fragment(packet, *piece, begin, end, depth)
                following = inner
            else:
                break
        return self._transport(packet, following, source, destination, begin, end, depth)

    def _fragment(
        self, packet: Packet, key: _Datagram, offset: int, more: bool, begin: int, end: int, depth: int
    ) -> Segment:
        source, destination, protocol, _ = key
        if protocol not in _OPENED:
            raise _NotASegment(_PROTOCOL_NAMES.get(protocol, f"IP protocol {protocol}"))
        piece = packet.data[begin:end]
        if len(piece) < end - begin or offset + len(piece) > MAX_DATAGRAM_BYTES:
            raise _NotASegment("IP fragment that is cut or beyond the end of a datagram")
        fragments = self._fragmented.get(key)
        if fragments is None or packet.time_ns - fragments.began_ns > MAX_FRAGMENTED_NS:
            fragments = self._fragmented[key] = _Fragments(packet.time_ns)
            if len(self._fragmented) > MAX_FRAGMENTED:
                self._fragmented.popitem(last=False)
        datagram = fragments.add(offset, piece, more)
        if datagram is None:
            raise _NotASegment("IP fragment before the last of its datagram")
        del self._fragmented[key]
        whole = packet._replace(data=datagram, wire_bytes=len(datagram))
        return self._transport(whole, protocol, source, destination, 0, len(datagram), depth)

    def _transport(
        self, packet: Packet, protocol: int, source: bytes, destination: bytes, begin: int, end: int, depth: int
    ) -> Segment:
        """Dissect the payload of an IP packet, from ``begin`` to ``end`` (the capture may have truncated it)."""
        data = packet.data
        if protocol == _TCP:
            return self._tcp(packet, source, destination, data[begin:end], max(0, end - max(begin, len(data))))
        if protocol not in _OPENED or depth == MAX_DEPTH:
            raise _NotASegment(_PROTOCOL_NAMES.get(protocol, f"IP protocol {protocol}"))
        depth += 1
        if protocol == _GRE:
            return self._gre(packet, begin, depth)
        if protocol == _UDP:
            port = data[begin + 2] << 8 | data[begin + 3]
            if port in _VXLAN_PORTS and data[begin + 8] & 0x08:
                return self._ethernet(packet, begin + 16, depth)
            if port == _GENEVE_PORT:
                inner = begin + 16 + (data[begin + 8] & 0x3F) * 4
                return self._tunnelled(packet, inner, data[begin + 10] << 8 | data[begin + 11], depth)
            raise _NotASegment(_PROTOCOL_NAMES[_UDP])
        return self._network_layer(packet, begin, _IP_IN_IP[protocol], depth)

    def _gre(self, packet: Packet, at: int, depth: int) -> Segment:
        data = packet.data
        flags, version = data[at], data[at + 1] & 0x07
        if version:
            raise _NotASegment(f"GRE version {version}")
        protocol = data[at + 2] << 8 | data[at + 3]
        sequenced = bool(flags & 0x10)
        at += 4 + sum(4 for flag in (0x80, 0x20, 0x10) if flags & flag)  # checksum, key, sequence number
        if protocol == _ETHERTYPE_ERSPAN_I_OR_II:
            return self._ethernet(packet, at + (8 if sequenced else 0), depth)
        if protocol == _ETHERTYPE_ERSPAN_III:
            inner = at + (20 if data[at + 11] & 1 else 12)
            carries_ip = data[at + 10] >> 2 & 0x1F == 2  # the frame type: 0 is Ethernet, 2 IP
            return self._ip(packet, inner, depth) if carries_ip else self._ethernet(packet, inner, depth)
        return self._tunnelled(packet, at, protocol, depth)

    def _tunnelled(self, packet: Packet, at: int, protocol: int, depth: int) -> Segment:
        if protocol == _ETHERTYPE_ETHERNET:
            return self._ethernet(packet, at, depth)
        return self._network_layer(packet, at, protocol, depth)

    def _tcp(self, packet: Packet, source: bytes, destination: bytes, data: bytes, cut: int) -> Segment:
        source_port, destination_port, sequence, acknowledgement, offset, flags = _TCP_HEADER(data)
        header_bytes = (offset >> 4) * 4
        if header_bytes < 20 or header_bytes > len(data):
            raise _NotASegment(_MALFORMED)
        place = Place(packet.number, packet.time_ns, packet.number, self._file)
        return Segment(
            place, source, source_port, destination, destination_port,
            sequence, acknowledgement, flags, data[header_bytes:], cut,
        )  # fmt: skip


class _Fragments:
    """The fragments of one datagram, first bytes winning where they overlap."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self._pieces: dict[int, bytes] = {}
        self._end: int | None = None

    def add(self, offset: int, piece: bytes, more: bool) -> bytes | None:
        """The whole datagram once it is there."""
        self._pieces.setdefault(offset, piece)
        if not more:
            self._end = offset + len(piece)
        if self._end is None:
            return None
        whole = bytearray()
        for begin, data in sorted(self._pieces.items()):
            if begin > len(whole):
                return None
            whole += data[len(whole) - begin :]
        return bytes(whole[: self._end]) if len(whole) >= self._end else None


@functools.lru_cache(maxsize=4096)
def address_text(packed: bytes) -> str:
    """An address as people write it."""
    return str(ipaddress.ip_address(packed))


def endpoint_text(address: bytes, port: int) -> str:
    """``127.0.0.1:9092``, ``[::1]:9092``."""
    return f"[{address_text(address)}]:{port}" if len(address) == 16 else f"{address_text(address)}:{port}"


def connection_text(one: Endpoint, other: Endpoint) -> str:
    """``10.0.0.1:40001 - 10.0.0.2:9092``, the same for both directions."""
    return " - ".join(_endpoint(*end) for end in sorted((one, other)))


_endpoint = functools.lru_cache(maxsize=4096)(endpoint_text)
