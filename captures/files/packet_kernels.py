"""Loops over many packets, compiled by numba: records of pcap, blocks of pcapng.

Walkers read ordinary records exactly as ``pcap`` does, and stop at anything else.

A packet is a row of an int64 array with the columns below. Addresses are two big-endian halves; IPv4 uses the second.
FOLLOWING, FLOW and FILE belong to the caller.
"""

from __future__ import annotations

import numpy as np

from kce.captures.files.formats import ENHANCED_PACKET, MAX_BLOCK_BYTES, MAX_TIME_NS
from kce.captures.files.machine_code import compiled

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

# unsigned indexes save numba the test for negative ones
_1, _2, _3 = np.uint64(1), np.uint64(2), np.uint64(3)


@compiled
def uint16(b, at):
    at = np.uint64(at)
    return np.int64(b[at]) << 8 | np.int64(b[at + _1])


@compiled
def uint32(b, at):
    at = np.uint64(at)
    return np.int64(b[at]) << 24 | np.int64(b[at + _1]) << 16 | np.int64(b[at + _2]) << 8 | np.int64(b[at + _3])


@compiled
def word(b, at, big):
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
        captured = word(b, at + 8, big)
        needed = 16 + captured if captured <= MAX_BLOCK_BYTES else 0
        after = at + needed
        if after > len(b) or not needed:
            break
        packet = packets[count]
        packet[NUMBER] = number + count
        packet[TIME] = word(b, at, big) * 1_000_000_000 + word(b, at + 4, big) * ns_per_unit
        packet[LINK] = link_type
        packet[OFFSET] = at + 16
        packet[CAPTURED] = captured
        packet[WIRE] = max(word(b, at + 12, big), captured)
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
        length = word(b, at + 4, big)
        if word(b, at, big) != ENHANCED_PACKET or length < 32 or length % 4 or length > MAX_BLOCK_BYTES:
            break
        needed = length
        after = at + length
        if after > len(b):
            break
        needed = 0
        interface = word(b, at + 8, big)
        captured = word(b, at + 20, big)
        ticks = word(b, at + 12, big) << 32 | word(b, at + 16, big)
        if word(b, after - 4, big) != length or captured > length - 32 or interface >= len(interfaces):
            break
        numerator = interfaces[interface, NUMERATOR]
        if numerator == 0 or ticks < 0 or ticks > MAX_TIME_NS // numerator:
            break
        time_ns = ticks * numerator // interfaces[interface, DENOMINATOR]
        offset_ns = interfaces[interface, OFFSET_NS]
        if time_ns + offset_ns < 0 or (offset_ns > 0 and time_ns > MAX_TIME_NS - offset_ns):
            break
        packet = packets[count]
        packet[NUMBER] = number + count
        packet[TIME] = time_ns + offset_ns
        packet[LINK] = interfaces[interface, LINK_TYPE]
        packet[OFFSET] = at + 28
        packet[CAPTURED] = captured
        packet[WIRE] = max(word(b, at + 24, big), captured)
        at = after
        count += 1
    return at, count, needed


@compiled
def pass_pcap(b, at, limit, big, passed, every, marks):
    """Pass whole records that begin from ``at`` up to ``limit``; ``passed`` precede them.

    ``marks`` are (offset, packets before) of the last two with a multiple of ``every`` packets before them.
    Returns (offset, passed).
    """
    limit = min(limit, len(b) - 16)
    while at <= limit:
        captured = word(b, at + 8, big)
        after = at + 16 + captured
        if captured > MAX_BLOCK_BYTES or after > len(b):
            break
        if passed % every == 0:
            copy(marks[1], 0, 2, marks[0], 0)
            marks[1, 0], marks[1, 1] = at, passed
        passed += 1
        at = after
    return at, passed


@compiled
def pass_pcapng(b, at, limit, big, passed, every, marks):
    """The same of enhanced packet blocks, until one of another kind."""
    limit = min(limit, len(b) - 12)
    while at <= limit:
        length = word(b, at + 4, big)
        after = at + length
        if (
            word(b, at, big) != ENHANCED_PACKET
            or length < 12
            or length % 4
            or length > MAX_BLOCK_BYTES
            or after > len(b)
        ):
            break
        if word(b, after - 4, big) != length:
            break
        if passed % every == 0:
            copy(marks[1], 0, 2, marks[0], 0)
            marks[1, 0], marks[1, 1] = at, passed
        passed += 1
        at = after
    return at, passed


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
