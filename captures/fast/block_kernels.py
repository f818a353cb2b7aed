"""Loops over the rows of blocks, compiled by numba: select, divide and count."""

from __future__ import annotations

import numpy as np

from kce.captures.fast.frame_kernels import BOTH_PORTS, HIGH_HIGH, ends_of, flow_of, mixed_ends
from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import (
    ACKNOWLEDGEMENT,
    CUT,
    DESTINATION_HIGH,
    FILE,
    FLAGS,
    FLOW,
    IS_IPV6,
    KIND,
    NUMBER,
    PAYLOAD,
    PORTS,
    SEGMENT,
    SEQUENCE,
    SIZE,
    SOURCE_HIGH,
    TIME,
    copy,
)

# columns of a packed packet: number, time, two numbers of 32 bits each in the next two, flow and flags
PACKED_COLUMNS = 5

#: columns of a connection that are packed: its ends
PACKED_FLOW = BOTH_PORTS + 1

# columns of a connection's counts; NEXT, KNOWN, SINCE (the first NEXT since the last SYN) and SENT (when the last new
# data was sent) of each side
FIRST_US, LAST_US, SEGMENTS, BYTES, RETRANSMITS, OUT_OF_ORDER, RESETS = range(7)
NEXT, KNOWN, SINCE, SENT = 7, 9, 11, 13
COUNT_COLUMNS = 15

_SYN, _RST = 0x02, 0x04


#: slots of the hash table that are probed
MOST_TRIES = 32
#: estimated cost in bytes of a connection, and of a segment besides its payload
NEW_CONNECTION, OF_A_SEGMENT = 1 << 16, 100


@compiled
def keep_share(packets, number, of, known, loads):
    """Move the segments of a share's connections to the front. Returns their number.

    Without ``known`` a connection's share is a hash of its endpoints. With it, a hash table of (hash, share or -1), a
    new connection gets the share with the least load so far, which is the same for all who process the same packets in
    the same order. ``loads`` are the bytes of each share.
    """
    count = 0
    for index in range(len(packets)):
        packet = packets[index]
        if packet[KIND] != SEGMENT:
            continue
        share = np.int64(0)
        if of > 1:
            _, low_high, low_low, high_high, high_low, ports = ends_of(packet)
            mixed = mixed_ends(low_high, low_low, high_high, high_low, ports)
            share = mixed % of
            if len(known):
                place, tries = mixed % len(known), 0
                while known[place, 1] >= 0 and known[place, 0] != mixed and tries < MOST_TRIES:
                    place, tries = (place + 1) % len(known), tries + 1
                if known[place, 1] < 0:
                    known[place, 0], known[place, 1] = mixed, np.argmin(loads)
                    loads[known[place, 1]] += NEW_CONNECTION
                if known[place, 0] == mixed:  # or the table is full: fall back to the hash
                    share = known[place, 1]
                loads[share] += packet[SIZE] + OF_A_SEGMENT
        if share == number:
            if count < index:
                copy(packet, 0, len(packet), packets[count], 0)
            count += 1
    return count


@compiled
def keep_segments(packets):
    """Move the segments to the front. Returns their number, and whether they are in chronological order."""
    count, in_order = 0, True
    for index in range(len(packets)):
        packet = packets[index]
        if packet[KIND] != SEGMENT:
            continue
        if count < index:
            copy(packet, 0, len(packet), packets[count], 0)
        if count and packets[count, TIME] < packets[count - 1, TIME]:
            in_order = False
        count += 1
    return count, in_order


@compiled
def keep_flows(packets, kept):
    """Move the segments of kept connections (half of FLOW) to the front. Returns their number."""
    count = 0
    for index in range(len(packets)):
        packet = packets[index]
        if packet[KIND] == SEGMENT and kept[packet[FLOW] >> 1]:
            if count < index:
                copy(packet, 0, len(packet), packets[count], 0)
            count += 1
    return count


@compiled
def buckets_of(flows, of, found):
    """Put the bucket of each connection into ``found``."""
    for row in range(len(flows)):
        flow = flows[row]
        found[row] = mixed_ends(flow[0], flow[1], flow[2], flow[3], flow[4]) % of


@compiled
def pack(data, packets, buckets, ranks, rows, row_ends, payload, byte_ends):
    """Divide segments, whose FLOW was numbered, by the bucket of their connection.

    ``ranks`` are indexes of connections within their bucket. Fills ``rows`` and ``payload``, and puts the end of each
    bucket's part behind a zero; there must be room for one end more, and zeros.
    """
    for index in range(len(packets)):
        bucket = buckets[packets[index, FLOW] >> 1]
        row_ends[bucket + 2] += 1
        byte_ends[bucket + 2] += packets[index, SIZE]
    for bucket in range(2, len(row_ends)):
        row_ends[bucket] += row_ends[bucket - 1]
        byte_ends[bucket] += byte_ends[bucket - 1]
    for index in range(len(packets)):
        packet = packets[index]
        connection = packet[FLOW] >> 1
        bucket = buckets[connection]
        row = rows[row_ends[bucket + 1]]
        row_ends[bucket + 1] += 1
        row[0], row[1] = packet[NUMBER], packet[TIME]
        row[2] = packet[SEQUENCE] << 32 | packet[ACKNOWLEDGEMENT]
        row[3] = packet[SIZE] << 32 | packet[CUT]
        row[4] = (2 * ranks[connection] + (packet[FLOW] & 1)) << 8 | packet[FLAGS]
        copy(data, packet[PAYLOAD], packet[SIZE], payload, byte_ends[bucket + 1])
        byte_ends[bucket + 1] += packet[SIZE]


@compiled
def unpack(rows, flows, file, packets):
    """Unpack segments whose payloads are concatenated."""
    at = 0
    for index in range(len(rows)):
        row, packet = rows[index], packets[index]
        flow = flows[row[4] >> 9]
        turned = row[4] >> 8 & 1
        packet[KIND], packet[FILE] = SEGMENT, file
        packet[NUMBER], packet[TIME] = row[0], row[1]
        packet[SEQUENCE], packet[ACKNOWLEDGEMENT] = row[2] >> 32 & 0xFFFFFFFF, row[2] & 0xFFFFFFFF
        packet[SIZE], packet[CUT] = row[3] >> 32, row[3] & 0xFFFFFFFF
        packet[FLAGS] = row[4] & 0xFF
        low, high = (DESTINATION_HIGH, SOURCE_HIGH) if turned else (SOURCE_HIGH, DESTINATION_HIGH)
        packet[low], packet[low + 1] = flow[0], flow[1]
        packet[high], packet[high + 1] = flow[HIGH_HIGH], flow[HIGH_HIGH + 1]
        ports = flow[BOTH_PORTS]
        if turned:
            ports = (ports & IS_IPV6) | (ports & 0xFFFF) << 16 | (ports >> 16 & 0xFFFF)
        packet[PORTS] = ports
        packet[PAYLOAD] = at
        at += packet[SIZE]


@compiled
def count(packets, first, flows, table, used, counts):
    """Count segments from ``first`` on by connection, until one is out of order or its connection does not fit.

    Returns (its index, its connection or -1 if it does not fit, its side, connections so far).
    """
    for index in range(first, len(packets)):
        packet = packets[index]
        if packet[KIND] != SEGMENT:
            continue
        if used == len(flows):
            return index, np.int64(-1), np.int64(0), used
        row, used, turned = flow_of(flows, table, used, packet)
        of = counts[row]
        side = np.int64(turned)
        size = packet[SIZE] + packet[CUT]
        syn = packet[FLAGS] & _SYN
        if of[SEGMENTS] == 0:
            of[FIRST_US] = packet[TIME] // 1000
        of[LAST_US] = packet[TIME] // 1000
        of[SEGMENTS] += 1
        of[BYTES] += size
        known = of[KNOWN + side]
        if packet[FLAGS] & _RST or (syn and (known or size)):
            return index, row, side, used
        if not known:
            of[KNOWN + side] = 1
            of[NEXT + side] = of[SINCE + side] = packet[SEQUENCE] + (1 if syn else 0)
        if size:
            if (of[NEXT + side] - packet[SEQUENCE]) & 0xFFFFFFFF:
                return index, row, side, used
            of[NEXT + side] += size
            of[SENT + side] = packet[TIME]
    return len(packets), np.int64(-1), np.int64(0), used
