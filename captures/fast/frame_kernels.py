"""Loops over TCP segments and frames of steady connections, compiled by numba.

``route`` links the segments of each connection while they arrive in order. ``take`` cuts the linked segments into
frames, pairs responses with requests, and checks bodies with ``body_kernels``. Both stop at anything unusual, and have
then changed nothing that the slow path (``streams``, ``framing``, ``pairing``) needs to know. ``bulk`` drives them.
"""

from __future__ import annotations

import numpy as np

from kce.captures.exchanges.pairing import MAX_IN_FLIGHT
from kce.captures.exchanges.recognise import FETCH, MAX_FRAME_BYTES, PRODUCE, QUORUM_TOPIC
from kce.captures.fast import body_programs as p
from kce.captures.fast.body_kernels import run
from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import (
    ACKNOWLEDGEMENT,
    CUT,
    DESTINATION_HIGH,
    DESTINATION_LOW,
    FLAGS,
    FLOW,
    FOLLOWING,
    IS_IPV6,
    KIND,
    OTHER,
    PAYLOAD,
    PORTS,
    SEGMENT,
    SEQUENCE,
    SIZE,
    SOURCE_HIGH,
    SOURCE_LOW,
    copy,
    uint16,
    uint32,
)
from kce.wire.registry import API_VERSIONS

# columns of the flow table: endpoints (the lower first), mode, whether side 0 is the higher endpoint, next sequence
# number and last acknowledgement by side, linked segments (first, last, last by side), and by side where the capture
# begins, if the connection is older
LOW_HIGH, LOW_LOW, HIGH_HIGH, HIGH_LOW, BOTH_PORTS = range(5)
MODE, TURNED, EXPECTED, ACKED, FIRST, LAST, LAST_OF, SINCE = 5, 6, 7, 9, 11, 12, 13, 15
FLOW_COLUMNS = 17

# modes: slow path; Kafka on the fast path; not Kafka
SLOW, FRAMES, NOTHING = range(3)

#: an unknown EXPECTED, ACKED or SINCE
NONE = -1

# columns of a frame; the VALUES of its program follow
TALK, PACKET, AT, LENGTH, KEY, VERSION, CORRELATION, PROGRAM, PARTNER = range(9)
NOTED = 9
FRAME_COLUMNS = NOTED + p.VALUES

# PARTNER of a request: index of its response, or one of these; of a response to a request of an earlier block:
# -1 - index among those in flight
IN_FLIGHT, NOT_ANSWERED = -1, -2

# outcomes of `take`
TAKEN, UNUSUAL, NO_PROGRAM, NO_ROOM = range(4)

_FIN_SYN_RST, _ACK = 0x07, 0x10

#: Sequence numbers up to this far behind are retransmissions.
_MOST_BEHIND = 0x80000000
_QUORUM_TOPIC = np.frombuffer(QUORUM_TOPIC, np.uint8)


@compiled
def ends_of(packet):
    """(whether the source is the higher end, the lower end's address and the higher's, in halves, and both ports)"""
    source_port, destination_port = packet[PORTS] >> 16 & 0xFFFF, packet[PORTS] & 0xFFFF
    turned = packet[SOURCE_HIGH] > packet[DESTINATION_HIGH]
    if packet[SOURCE_HIGH] == packet[DESTINATION_HIGH]:
        turned = packet[SOURCE_LOW] > packet[DESTINATION_LOW]
        if packet[SOURCE_LOW] == packet[DESTINATION_LOW]:
            turned = source_port > destination_port
    family = packet[PORTS] & IS_IPV6
    if turned:
        ports = destination_port << 16 | source_port | family
        return turned, packet[DESTINATION_HIGH], packet[DESTINATION_LOW], packet[SOURCE_HIGH], packet[SOURCE_LOW], ports
    ports = source_port << 16 | destination_port | family
    return turned, packet[SOURCE_HIGH], packet[SOURCE_LOW], packet[DESTINATION_HIGH], packet[DESTINATION_LOW], ports


@compiled
def mixed_ends(low_high, low_low, high_high, high_low, ports):
    """A hash of the connection's endpoints, below 2**44."""
    mixed = np.uint64(low_high) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(low_low)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) ^ np.uint64(high_high)
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB) ^ np.uint64(high_low)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(ports)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(20))


@compiled
def _find(flows, table, packet):
    """(row of the packet's connection or -1, its place in the table, whether the source is the higher end)."""
    turned, low_high, low_low, high_high, high_low, ports = ends_of(packet)
    place = mixed_ends(low_high, low_low, high_high, high_low, ports) & (len(table) - 1)
    while table[place] >= 0:
        flow = flows[table[place]]
        if (
            flow[BOTH_PORTS] == ports
            and flow[HIGH_LOW] == high_low
            and flow[LOW_LOW] == low_low
            and flow[HIGH_HIGH] == high_high
            and flow[LOW_HIGH] == low_high
        ):
            return table[place], place, turned
        place = (place + 1) & (len(table) - 1)
    return np.int64(-1), place, turned


@compiled
def flow_of(flows, table, used, packet):
    """The row of a segment's connection; a new one if there is none. The table must have room.

    (row, rows used, whether the source is the higher end)
    """
    row, place, turned = _find(flows, table, packet)
    if row >= 0:
        return row, used, turned
    table[place] = row = used
    flow = flows[row]
    one, other = (DESTINATION_HIGH, SOURCE_HIGH) if turned else (SOURCE_HIGH, DESTINATION_HIGH)
    flow[LOW_HIGH], flow[LOW_LOW] = packet[one], packet[one + 1]
    flow[HIGH_HIGH], flow[HIGH_LOW] = packet[other], packet[other + 1]
    ports = packet[PORTS] & 0xFFFFFFFF
    flow[BOTH_PORTS] = (packet[PORTS] & IS_IPV6) | ((ports & 0xFFFF) << 16 | ports >> 16 if turned else ports)
    flow[MODE] = SLOW
    flow[FIRST] = flow[LAST] = flow[LAST_OF] = flow[LAST_OF + 1] = NONE
    return row, used + 1, turned


@compiled
def fill_table(flows, table, used, packet):
    """Put the first ``used`` rows into an empty table. ``packet`` is any row, and overwritten."""
    for row in range(used):
        flow = flows[row]
        packet[SOURCE_HIGH], packet[SOURCE_LOW] = flow[LOW_HIGH], flow[LOW_LOW]
        packet[DESTINATION_HIGH], packet[DESTINATION_LOW] = flow[HIGH_HIGH], flow[HIGH_LOW]
        packet[PORTS] = flow[BOTH_PORTS]
        _, place, _ = _find(flows, table, packet)
        table[place] = row


@compiled
def number_flows(packets, flows, table):
    """Set FLOW of every packet to twice the index of its connection, plus 1 if its source is the higher endpoint.

    Returns the number of connections, -1 if they do not fit. ``flows`` and ``table`` are filled from empty.
    """
    used = np.int64(0)
    for index in range(len(packets)):
        if used == len(flows):
            return np.int64(-1)
        row, used, turned = flow_of(flows, table, used, packets[index])
        packets[index, FLOW] = 2 * row + turned
    return used


@compiled
def route(packets, first, flows, table):
    """Link segments from ``first`` on to their connections. Returns the index of the first for the slow path."""
    for index in range(first, len(packets)):
        packet = packets[index]
        if packet[KIND] == OTHER:
            continue
        if packet[KIND] != SEGMENT:
            return index
        row, _, turned = _find(flows, table, packet)
        if row < 0:
            return index
        flow = flows[row]
        if flow[MODE] == SLOW or packet[FLAGS] & _FIN_SYN_RST or packet[CUT]:
            return index
        side = np.int64(turned) ^ flow[TURNED]
        size = packet[SIZE]
        again = False
        if size:
            expected = flow[EXPECTED + side]
            if expected < 0:
                return index
            behind = (expected - packet[SEQUENCE]) & 0xFFFFFFFF
            # a retransmission, not from before the capture
            again = size <= behind < _MOST_BEHIND and expected - behind >= flow[SINCE + side]
            if behind and not again:
                return index
        if size and not again:
            flow[EXPECTED + side] = expected + size
            if flow[MODE] == FRAMES:
                packet[FLOW] = side
                packet[FOLLOWING] = NONE
                if flow[LAST] == NONE:
                    flow[FIRST] = index
                else:
                    packets[flow[LAST], FOLLOWING] = index
                flow[LAST] = flow[LAST_OF + side] = index
        if packet[FLAGS] & _ACK:
            flow[ACKED + 1 - side] = packet[ACKNOWLEDGEMENT]
    return len(packets)


@compiled
def _is_quorum_fetch(b, at, end, version, client_id_bytes):
    """As ``recognise.is_quorum_fetch``; ``client_id_bytes`` is at most 0 without a client id."""
    if version < 13:
        for k in range(at, end - len(_QUORUM_TOPIC) + 1):
            if b[k] == _QUORUM_TOPIC[0]:
                same = True
                for j in range(len(_QUORUM_TOPIC)):
                    same = same and b[k + j] == _QUORUM_TOPIC[j]
                if same:
                    return True
        return False
    at += 10 + max(client_id_bytes, 0) + 1 + (25 if version < 15 else 21)
    if at + 17 > end or b[at] != 2 or b[at + 16] != 1:
        return False
    for k in range(at + 1, at + 16):  # noqa: SIM110 - numba compiles no generators
        if b[k]:
            return False
    return True


@compiled
def _accept(frame, program, out, starts, code, defaults, stack):
    """Run a program over a frame behind its correlation id; store its values, or that it refused the frame."""
    for k in range(p.VALUES):
        frame[NOTED + k] = defaults[program, k]
    at = frame[AT]
    begin = at + (8 if frame[KEY] >= 0 else 4)
    accepted = run(code, starts[program], out, begin, at + frame[LENGTH], frame[NOTED:], stack) >= 0
    frame[PROGRAM] = program if accepted else -1
    return accepted


@compiled
def take(
    data, packets, flow, talk, client, rest_0, rest_1, out, cursor, waiting,
    ids, starts, code, defaults, requests, request_count, responses, response_count, stack,
):  # fmt: skip
    """The frames in the segments that are linked to ``flow``.

    The bytes of each side are appended to its rest (``rest_0``, ``rest_1``) in ``out`` from ``cursor`` on. ``waiting``
    are (correlation id, API, version) of requests in flight. Rows are appended to ``requests`` and ``responses``.

    Returns (outcome, cursor, request_count, response_count, offset and size of the rest of side 0, of side 1). With
    NO_PROGRAM, API key and version stand in place of the rests.
    """
    first_request, first_response = request_count, response_count
    at_0 = left_0 = at = cursor
    for side in range(2):
        at_0, left_0 = at, cursor - at
        rest = rest_0 if side == 0 else rest_1
        at = cursor
        copy(rest, 0, len(rest), out, cursor)
        cursor += len(rest)
        index = flow[FIRST]
        while index != NONE:
            packet = packets[index]
            if packet[FLOW] != side:
                index = packet[FOLLOWING]
                continue
            size = packet[SIZE]
            begin = packet[PAYLOAD]
            copy(data, begin, size, out, cursor)
            cursor += size
            while cursor - at >= 4:
                length = uint32(out, at)
                if not 8 * (side == client) <= length <= MAX_FRAME_BYTES or length < 4:
                    return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
                if cursor - at - 4 < length:
                    break
                if side == client:
                    if request_count == len(requests):
                        return NO_ROOM, cursor, request_count, response_count, 0, 0, 0, 0
                    frame = requests[request_count]
                    request_count += 1
                    frame[KEY] = np.int64(np.int16(uint16(out, at + 4)))
                    frame[VERSION] = np.int64(np.int16(uint16(out, at + 6)))
                    frame[CORRELATION] = np.int64(np.int32(uint32(out, at + 8)))
                    frame[PARTNER] = IN_FLIGHT
                else:
                    if response_count == len(responses):
                        return NO_ROOM, cursor, request_count, response_count, 0, 0, 0, 0
                    frame = responses[response_count]
                    response_count += 1
                    frame[KEY] = -1
                    frame[CORRELATION] = np.int64(np.int32(uint32(out, at + 4)))
                frame[TALK] = talk
                frame[PACKET] = index
                frame[AT] = at + 4
                frame[LENGTH] = length
                at += 4 + length
            index = packet[FOLLOWING]

    unanswered = 0
    for k in range(first_request, request_count):
        frame = requests[k]
        key, version = frame[KEY], frame[VERSION]
        if not (0 <= key < p.MOST_KEYS and 0 <= version < p.MOST_VERSIONS):
            return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
        program = ids[0, key, version]
        if program == p.UNKNOWN:
            return NO_PROGRAM, cursor, request_count, response_count, key, version, 0, 0
        if program == p.REFUSED:
            return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
        accepted = _accept(frame, program, out, starts, code, defaults, stack)
        if key == PRODUCE:
            if not accepted:
                return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
            if frame[NOTED + p.ACKS] == 0:
                frame[PARTNER] = NOT_ANSWERED
                unanswered += 1
        elif key == FETCH:
            end = frame[AT] + frame[LENGTH]
            if not accepted or _is_quorum_fetch(out, frame[AT], end, version, frame[NOTED + p.CLIENT_ID + 1]):
                return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0

    sent = taken = 0  # requests seen so far, and answered so far
    following, seen = first_request, first_request  # the oldest in flight; the first sent after this response
    before = len(waiting)
    for k in range(first_response, response_count):
        frame = responses[k]
        while seen < request_count and requests[seen, PACKET] < frame[PACKET]:
            sent += requests[seen, PARTNER] != NOT_ANSWERED
            seen += 1
        if before + sent - taken > MAX_IN_FLIGHT:
            return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
        if taken < before:
            correlation_id, key, version = waiting[taken, 0], waiting[taken, 1], waiting[taken, 2]
            frame[PARTNER] = -1 - taken
        else:
            while following < seen and requests[following, PARTNER] == NOT_ANSWERED:
                following += 1
            if following == seen:
                return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
            request = requests[following]
            correlation_id, key, version = request[CORRELATION], request[KEY], request[VERSION]
            request[PARTNER] = k
            frame[PARTNER] = following
            following += 1
        if correlation_id != frame[CORRELATION]:
            return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
        taken += 1
        program = np.int64(p.REFUSED)
        if 0 <= key < p.MOST_KEYS and 0 <= version < p.MOST_VERSIONS:
            program = ids[1, key, version]
        if program == p.UNKNOWN:
            return NO_PROGRAM, cursor, request_count, response_count, key, version, 0, 0
        if program < 0 or (key == API_VERSIONS and frame[LENGTH] >= 6 and uint16(out, frame[AT] + 4) == 35):
            frame[PROGRAM] = -1
        else:
            _accept(frame, program, out, starts, code, defaults, stack)
        frame[VERSION] = version
    if before + (request_count - first_request) - unanswered - taken > MAX_IN_FLIGHT:
        return UNUSUAL, cursor, request_count, response_count, 0, 0, 0, 0
    return TAKEN, cursor, request_count, response_count, at_0, left_0, at, cursor - at
