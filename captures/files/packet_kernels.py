"""Loops over many packets, compiled by numba: records of pcap, blocks of pcapng, headers up to TCP's.

They take what is plain (an ordinary record; Ethernet with VLAN tags, cooked, loopback or raw IP; an IP header and a TCP
header that are whole) exactly as ``captures.pcap`` and ``captures.segments`` do, and leave everything else to those:
the walkers stop there, and ``dissect`` marks such a packet ``UNSURE``.

A packet is a row of an int64 array; what its columns hold is said below. Addresses are two big-endian halves, those of
IPv4 in the second one. FOLLOWING, FLOW and FILE are for whoever has the packets.
"""

from __future__ import annotations

import numba
import numpy as np

# columns of a packet
KIND, NUMBER, TIME, LINK, OFFSET, CAPTURED, WIRE = range(7)
SOURCE_HIGH, SOURCE_LOW, DESTINATION_HIGH, DESTINATION_LOW, PORTS = range(7, 12)
SEQUENCE, ACKNOWLEDGEMENT, FLAGS, PAYLOAD, SIZE, CUT, FOLLOWING, FLOW, FILE = range(12, 21)
COLUMNS = 21

# kinds of packets
UNSURE, SEGMENT, OTHER = range(3)

#: in PORTS: the source's port, the destination's, and whether the addresses are IPv6's
PORT_BITS = 16
IS_IPV6 = 1 << 32

# columns of a pcapng interface
LINK_TYPE, NUMERATOR, DENOMINATOR, OFFSET_NS = range(4)
INTERFACE_COLUMNS = 4

# numba looks whether a signed index counts from the end, but not an unsigned one
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)

_MAX_BLOCK_BYTES = 16 * 1024 * 1024
_MAX_TIME_NS = np.int64(2**63 - 1)


def compiled(function):
    """What is compiled once is kept on disk, where there is a place to be had (numba asks for one when it is told)."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@compiled
def uint16(b, at):
    at = np.uint64(at)
    return np.int64(b[at]) << 8 | np.int64(b[at + _1])


@compiled
def uint32(b, at):
    at = np.uint64(at)
    return np.int64(b[at]) << 24 | np.int64(b[at + _1]) << 16 | np.int64(b[at + _2]) << 8 | np.int64(b[at + _3])


@compiled
def _word(b, at, big):
    if big:
        return uint32(b, at)
    at = np.uint64(at)
    return np.int64(b[at + _3]) << 24 | np.int64(b[at + _2]) << 16 | np.int64(b[at + _1]) << 8 | np.int64(b[at])


@compiled
def walk_pcap(b, at, big, ns_per_unit, link_type, number, packets):
    """Records from ``at`` on, the first of number ``number``, until one is not whole.

    (where, how many, bytes that the next one takes; 0 if it is not for this)
    """
    count = needed = 0
    while count < len(packets):
        needed = 16
        if at + 16 > len(b):
            break
        captured = _word(b, at + 8, big)
        needed = 16 + captured if captured <= _MAX_BLOCK_BYTES else 0
        after = at + needed
        if after > len(b) or not needed:
            break
        packet = packets[count]
        packet[NUMBER] = number + count
        packet[TIME] = _word(b, at, big) * 1_000_000_000 + _word(b, at + 4, big) * ns_per_unit
        packet[LINK] = link_type
        packet[OFFSET] = at + 16
        packet[CAPTURED] = captured
        packet[WIRE] = max(_word(b, at + 12, big), captured)
        at = after
        count += 1
    return at, count, needed


@compiled
def walk_pcapng(b, at, big, interfaces, number, packets):
    """Enhanced packet blocks from ``at`` on, until another block, or one that is not as it should be."""
    count = needed = 0
    while count < len(packets):
        needed = 12
        if at + 12 > len(b):
            break
        needed = 0
        length = _word(b, at + 4, big)
        if _word(b, at, big) != 6 or length < 32 or length % 4 or length > _MAX_BLOCK_BYTES:
            break
        needed = length
        after = at + length
        if after > len(b):
            break
        needed = 0
        interface = _word(b, at + 8, big)
        captured = _word(b, at + 20, big)
        ticks = _word(b, at + 12, big) << 32 | _word(b, at + 16, big)
        if _word(b, after - 4, big) != length or captured > length - 32 or interface >= len(interfaces):
            break
        numerator = interfaces[interface, NUMERATOR]
        if numerator == 0 or ticks < 0 or ticks > _MAX_TIME_NS // numerator:
            break
        time_ns = ticks * numerator // interfaces[interface, DENOMINATOR]
        offset_ns = interfaces[interface, OFFSET_NS]
        if time_ns + offset_ns < 0 or (offset_ns > 0 and time_ns > _MAX_TIME_NS - offset_ns):
            break
        packet = packets[count]
        packet[NUMBER] = number + count
        packet[TIME] = time_ns + offset_ns
        packet[LINK] = interfaces[interface, LINK_TYPE]
        packet[OFFSET] = at + 28
        packet[CAPTURED] = captured
        packet[WIRE] = max(_word(b, at + 24, big), captured)
        at = after
        count += 1
    return at, count, needed


@compiled
def pass_pcap(b, at, limit, big, passed, every, marks):
    """Pass the whole records that begin at ``at`` and up to ``limit``; ``passed`` were before them.

    ``marks`` are the places of the last two of which a multiple of ``every`` came before, and how many that were.
    (where, passed)
    """
    limit = min(limit, len(b) - 16)
    while at <= limit:
        captured = _word(b, at + 8, big)
        after = at + 16 + captured
        if captured > _MAX_BLOCK_BYTES or after > len(b):
            break
        if passed % every == 0:
            marks[0] = marks[1]
            marks[1, 0], marks[1, 1] = at, passed
        passed += 1
        at = after
    return at, passed


@compiled
def pass_pcapng(b, at, limit, big, passed, every, marks):
    """The same of enhanced packet blocks, until one of another kind."""
    limit = min(limit, len(b) - 12)
    while at <= limit:
        length = _word(b, at + 4, big)
        after = at + length
        if _word(b, at, big) != 6 or length < 12 or length % 4 or length > _MAX_BLOCK_BYTES or after > len(b):
            break
        if _word(b, after - 4, big) != length:
            break
        if passed % every == 0:
            marks[0] = marks[1]
            marks[1, 0], marks[1, 1] = at, passed
        passed += 1
        at = after
    return at, passed


@compiled
def _network(b, at, end, link_type):
    """(where the IP header begins, its ethertype); 0 as the type where that is to be left alone."""
    if link_type == 1:
        if at + 14 > end:
            return at, 0
        protocol = uint16(b, at + 12)
        at += 14
        while protocol == 0x8100 or protocol == 0x88A8 or protocol == 0x9100:
            if at + 4 > end:
                return at, 0
            protocol = uint16(b, at + 2)
            at += 4
        return at, protocol
    if link_type == 113:
        return at + 16, uint16(b, at + 14) if at + 16 <= end else 0
    if link_type == 276:
        return at + 20, uint16(b, at) if at + 20 <= end else 0
    if link_type == 101 or link_type == 12:
        return at, 0 if at >= end else 0x86DD if b[at] >> 4 == 6 else 0x0800
    if link_type == 0 and at + 4 <= end:
        family = max(uint32(b, at), _word(b, at, False))
        least = min(uint32(b, at), _word(b, at, False))
        if least == 2 and family > 255:
            return at + 4, 0x0800
        if (least == 10 or least == 24 or least == 28 or least == 30) and family > 255:
            return at + 4, 0x86DD
    return at, 0


@compiled
def dissect(b, packets):
    """Fill in what the segments are; the others stay UNSURE. How many those are."""
    unsure = 0
    for k in range(len(packets)):
        packet = packets[k]
        packet[KIND] = UNSURE
        packet[FILE] = 0
        unsure += 1
        begin = packet[OFFSET]
        there = begin + packet[CAPTURED]
        on_wire = begin + packet[WIRE]
        at, protocol = _network(b, begin, there, packet[LINK])
        if protocol == 0x0800:
            if at + 20 > there or b[at + 9] != 6:
                continue
            header = np.int64(b[at] & 0x0F) * 4
            if header < 20 or uint16(b, at + 6) & 0x3FFF:
                continue
            total = uint16(b, at + 2)
            packet[SOURCE_HIGH] = packet[DESTINATION_HIGH] = 0
            packet[SOURCE_LOW], packet[DESTINATION_LOW] = uint32(b, at + 12), uint32(b, at + 16)
            end = min(at + total, on_wire) if total else on_wire
            family = 0
        elif protocol == 0x86DD:
            if at + 40 > there or b[at + 6] != 6:
                continue
            header = 40
            length = uint16(b, at + 4)
            packet[SOURCE_HIGH] = uint32(b, at + 8) << 32 | uint32(b, at + 12)
            packet[SOURCE_LOW] = uint32(b, at + 16) << 32 | uint32(b, at + 20)
            packet[DESTINATION_HIGH] = uint32(b, at + 24) << 32 | uint32(b, at + 28)
            packet[DESTINATION_LOW] = uint32(b, at + 32) << 32 | uint32(b, at + 36)
            end = min(at + 40 + length, on_wire) if length else on_wire
            family = IS_IPV6
        else:
            continue
        at += header
        limit = min(end, there)
        if at + 20 > limit:
            continue
        header = np.int64(b[at + 12] >> 4) * 4
        if header < 20 or at + header > limit:
            continue
        packet[PORTS] = uint32(b, at) | family
        packet[SEQUENCE] = uint32(b, at + 4)
        packet[ACKNOWLEDGEMENT] = uint32(b, at + 8)
        packet[FLAGS] = b[at + 13]
        packet[PAYLOAD] = at + header
        packet[SIZE] = limit - at - header
        packet[CUT] = max(0, end - max(at, there))
        packet[KIND] = SEGMENT
        unsure -= 1
    return unsure


@compiled
def copy(b, begin, size, out, at):
    """Put ``size`` bytes of ``b`` to ``at`` in another array."""
    begin, at = np.uint64(begin), np.uint64(at)
    for j in range(np.uint64(size)):
        out[at + j] = b[begin + j]


@compiled
def gather(b, at, size, out):
    """Put pieces of ``b`` one behind the other; of a size below 0 there is nothing."""
    cursor = 0
    for index in range(len(at)):
        n = max(size[index], 0)
        copy(b, at[index], n, out, cursor)
        cursor += n
