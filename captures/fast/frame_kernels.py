"""Loops over TCP segments and frames, compiled by numba: for connections on which nothing unusual happens.

``route`` follows each connection as long as its segments come in order, and links them; ``take`` cuts the segments
linked so far into frames, pairs responses with requests, and has ``captures.fast.body_kernels`` look into them.
Both stop at whatever is out of the ordinary, and have changed nothing then that the exact code (``tcp_streams``,
``framing``, ``exchanges``) would have to know. ``captures.fast.bulk`` drives them.
"""

from __future__ import annotations

import numpy as np

from kce.captures.exchanges.pairing import MAX_AWAITED
from kce.captures.exchanges.recognise import FETCH, MAX_FRAME_BYTES, PRODUCE, QUORUM_TOPIC
from kce.captures.fast import body_programs as p
from kce.captures.fast.body_kernels import run
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
    compiled,
    copy,
    uint16,
    uint32,
)
from kce.wire.registry import API_VERSIONS

# columns of a connection: its ends (the lower first), what is done with it, whether side 0 is the higher end, the exact
# code's view of both sides, the segments that were linked (the first, the last, the last of each side), and where sides
# begin that did so before the capture
LOW_HIGH, LOW_LOW, HIGH_HIGH, HIGH_LOW, BOTH_PORTS = range(5)
MODE, TURNED, EXPECTED, ACKED, FIRST, LAST, LAST_OF, SINCE = 5, 6, 7, 9, 11, 12, 13, 15
FLOW_COLUMNS = 17

# modes: every segment is the exact code's; Kafka's; something that is left alone
EXACTLY, FRAMES, NOTHING = range(3)

#: of an EXPECTED, ACKED or SINCE that is not known
NONE = -1

# columns of a frame, before the VALUES of its program
TALK, PACKET, AT, LENGTH, KEY, VERSION, CORRELATION, PROGRAM, PARTNER = range(9)
NOTED = 9
FRAME_COLUMNS = NOTED + p.VALUES

# partners of a request, if no response's number; of a response to a request of before, -1 - that request's place
AWAITED, NOT_ANSWERED = -1, -2

# what comes of `take`
TOOK, UNUSUAL, NO_PROGRAM, NO_ROOM = range(4)

_FIN_SYN_RST, _ACK = 0x07, 0x10

#: Of sequence numbers those so far behind, and no others, were there before.
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
    """A number below 2**44 that is the connection's, and looks like any other."""
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
    """The row of a segment's connection, which is made if there is none. There must be room.

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
    flow[MODE] = EXACTLY
    flow[FIRST] = flow[LAST] = flow[LAST_OF] = flow[LAST_OF + 1] = NONE
    return row, used + 1, turned


@compiled
def fill_table(flows, table, used):
    """Put the first ``used`` rows into an empty table."""
    packet = np.zeros(PORTS + 1, np.int64)
    for row in range(used):
        flow = flows[row]
        packet[SOURCE_HIGH], packet[SOURCE_LOW] = flow[LOW_HIGH], flow[LOW_LOW]
        packet[DESTINATION_HIGH], packet[DESTINATION_LOW] = flow[HIGH_HIGH], flow[HIGH_LOW]
        packet[PORTS] = flow[BOTH_PORTS]
        _, place, _ = _find(flows, table, packet)
        table[place] = row


@compiled
def number_flows(packets, flows, table):
    """Give every packet the number of its direction: twice its connection's, and 1 more if its source is the higher
    end. How many connections there are; -1 if they have no room. ``flows`` and ``table`` are filled from empty.
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
    """Link the segments from ``first`` on to those before them, until one is for the exact code: its index."""
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
        if flow[MODE] == EXACTLY or packet[FLAGS] & _FIN_SYN_RST or packet[CUT]:
            return index
        side = np.int64(turned) ^ flow[TURNED]
        size = packet[SIZE]
        again = False
        if size:
            expected = flow[EXPECTED + side]
            if expected < 0:
                return index
            behind = (expected - packet[SEQUENCE]) & 0xFFFFFFFF
            # nothing in it is new, and nothing from before the capture
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
    """As ``recognise.is_quorum_fetch``; ``client_id_bytes`` is at most 0 where there is no client id."""
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
    """Run a program over a frame, from behind its correlation id; what it noted, or that it refused."""
    for k in range(p.VALUES):
        frame[NOTED + k] = defaults[program, k]
    at = frame[AT]
    begin = at + (8 if frame[KEY] >= 0 else 4)
    accepted = run(code, starts[program], out, begin, at + frame[LENGTH], frame[NOTED:], stack)
    frame[PROGRAM] = program if accepted else -1
    return accepted


@compiled
def take(
    data, packets, flow, talk, client, rest_0, rest_1, out, cursor, waiting,
    ids, starts, code, defaults, requests, asked, responses, answered, stack,
):  # fmt: skip
    """The frames in the segments that are linked to ``flow``.

    Both sides' bytes are put behind one another into ``out`` from ``cursor`` on, each behind what was left of it
    (``rest_0``, ``rest_1``); ``waiting`` are (correlation id, API, version) of requests that wait already. Rows of
    ``requests`` from ``asked`` on and of ``responses`` from ``answered`` on are filled in.

    (what came of it, cursor, asked, answered, where and how much is left of side 0, of side 1; or, if a program is
    missing, API and version in their place)
    """
    first_request, first_response = asked, answered
    left_at = np.zeros(2, np.int64)
    left = np.zeros(2, np.int64)
    for side in range(2):
        rest = rest_0 if side == 0 else rest_1
        base = cursor
        out[cursor : cursor + len(rest)] = rest
        cursor += len(rest)
        at = base
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
                    return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
                if cursor - at - 4 < length:
                    break
                if side == client:
                    if asked == len(requests):
                        return NO_ROOM, cursor, asked, answered, 0, 0, 0, 0
                    frame = requests[asked]
                    asked += 1
                    frame[KEY] = np.int64(np.int16(uint16(out, at + 4)))
                    frame[VERSION] = np.int64(np.int16(uint16(out, at + 6)))
                    frame[CORRELATION] = np.int64(np.int32(uint32(out, at + 8)))
                    frame[PARTNER] = AWAITED
                else:
                    if answered == len(responses):
                        return NO_ROOM, cursor, asked, answered, 0, 0, 0, 0
                    frame = responses[answered]
                    answered += 1
                    frame[KEY] = -1
                    frame[CORRELATION] = np.int64(np.int32(uint32(out, at + 4)))
                frame[TALK] = talk
                frame[PACKET] = index
                frame[AT] = at + 4
                frame[LENGTH] = length
                at += 4 + length
            index = packet[FOLLOWING]
        left_at[side], left[side] = at, cursor - at

    unanswered = 0
    for k in range(first_request, asked):
        frame = requests[k]
        key, version = frame[KEY], frame[VERSION]
        if not (0 <= key < p.MOST_KEYS and 0 <= version < p.MOST_VERSIONS):
            return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
        program = ids[0, key, version]
        if program == p.UNKNOWN:
            return NO_PROGRAM, cursor, asked, answered, key, version, 0, 0
        if program == p.REFUSED:
            return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
        accepted = _accept(frame, program, out, starts, code, defaults, stack)
        if key == PRODUCE:
            if not accepted:
                return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
            if frame[NOTED + p.ACKS] == 0:
                frame[PARTNER] = NOT_ANSWERED
                unanswered += 1
        elif key == FETCH:
            end = frame[AT] + frame[LENGTH]
            if not accepted or _is_quorum_fetch(out, frame[AT], end, version, frame[NOTED + p.CLIENT_ID + 1]):
                return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0

    came = taken = 0  # of all that wait, first those of before
    following, seen = first_request, first_request  # the next to be answered; those before `seen` came before
    before = len(waiting)
    for k in range(first_response, answered):
        frame = responses[k]
        while seen < asked and requests[seen, PACKET] < frame[PACKET]:
            came += requests[seen, PARTNER] != NOT_ANSWERED
            seen += 1
        if before + came - taken > MAX_AWAITED:
            return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
        if taken < before:
            correlation_id, key, version = waiting[taken, 0], waiting[taken, 1], waiting[taken, 2]
            frame[PARTNER] = -1 - taken
        else:
            while following < seen and requests[following, PARTNER] == NOT_ANSWERED:
                following += 1
            if following == seen:
                return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
            request = requests[following]
            correlation_id, key, version = request[CORRELATION], request[KEY], request[VERSION]
            request[PARTNER] = k
            frame[PARTNER] = following
            following += 1
        if correlation_id != frame[CORRELATION]:
            return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
        taken += 1
        program = np.int64(p.REFUSED)
        if 0 <= key < p.MOST_KEYS and 0 <= version < p.MOST_VERSIONS:
            program = ids[1, key, version]
        if program == p.UNKNOWN:
            return NO_PROGRAM, cursor, asked, answered, key, version, 0, 0
        if program < 0 or (key == API_VERSIONS and frame[LENGTH] >= 6 and uint16(out, frame[AT] + 4) == 35):
            frame[PROGRAM] = -1
        else:
            _accept(frame, program, out, starts, code, defaults, stack)
        frame[VERSION] = version
    if before + (asked - first_request) - unanswered - taken > MAX_AWAITED:
        return UNUSUAL, cursor, asked, answered, 0, 0, 0, 0
    return TOOK, cursor, asked, answered, left_at[0], left[0], left_at[1], left[1]
