"""Dissects many packets up to the TCP header, compiled by numba.

Ordinary packets (Ethernet with VLAN tags, cooked, loopback or raw IP, with whole IP and TCP headers) are dissected
exactly as in ``segments``; all others are UNSURE and left to it.
"""

from __future__ import annotations

import numpy as np

from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import (
    ACKNOWLEDGEMENT,
    CAPTURED,
    CUT,
    DESTINATION_HIGH,
    DESTINATION_LOW,
    FILE,
    FLAGS,
    IS_IPV6,
    KIND,
    LINK,
    OFFSET,
    PAYLOAD,
    PORTS,
    SEGMENT,
    SEQUENCE,
    SIZE,
    SOURCE_HIGH,
    SOURCE_LOW,
    UNSURE,
    WIRE,
    uint16,
    uint32,
    word,
)


@compiled
def _network(b, at, end, link_type):
    """(offset of the IP header, its ethertype); ethertype 0 for a packet that is left alone."""
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
        family = max(uint32(b, at), word(b, at, False))
        least = min(uint32(b, at), word(b, at, False))
        if least == 2 and family > 255:
            return at + 4, 0x0800
        if (least == 10 or least == 24 or least == 28 or least == 30) and family > 255:
            return at + 4, 0x86DD
    return at, 0


@compiled
def dissect(b, packets):
    """Fill in segments; others stay UNSURE. Returns the number of those."""
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
