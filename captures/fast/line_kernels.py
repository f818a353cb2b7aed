"""Lines of ``exchanges.render.Renderer`` from rows of frames, compiled by numba."""

from __future__ import annotations

import numpy as np

from kce.captures.fast import body_programs as p
from kce.captures.fast import frame_kernels as f
from kce.captures.fast import text_programs as t
from kce.captures.fast.body_kernels import run
from kce.captures.fast.text_kernels import (
    MAX_LINE_BYTES,
    MAX_TEXT_BYTES,
    begin_part,
    put,
    put_digits,
    put_error,
    put_integer,
    put_row,
    put_spaces,
    put_text,
)
from kce.captures.files import packet_kernels as k
from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import copy
from kce.captures.files.prefetching import prefetch

# why `write` stopped: at the end; the line is the renderer's; no program; ends or topic unknown; `out` is full
ALL, OTHER, NO_PROGRAM, NO_ENDS, NO_TOPIC, NO_ROOM = range(6)

#: in place of a text: what a program describes; an item that is not printed
UNSAID, UNWANTED = -1, -2

#: Items between this one and that whose packet is fetched, and from there to that whose row is: connections take turns,
#: and the processor foresees no row.
_AHEAD = 8

#: A longer latency may be rounded otherwise as a float.
_MOST_LATENCY_NS = 1 << 50

_CLIENT = np.frombuffer(b"client ", np.uint8)
_MS = np.frombuffer(b" ms", np.uint8)
_ACKS_0 = np.frombuffer(b"acks 0", np.uint8)
_DAY_S, _SECOND_NS = 86_400, 1_000_000_000
#: characters of a time up to the point behind its seconds
_WHOLE_SECONDS = 20
_NEWLINE, _SPACE, _HASH, _DOT, _MINUS, _COLON, _T, _Z = (np.uint8(ord(c)) for c in "\n #.-:TZ")


@compiled
def put_time(out, cursor, ns):
    """As ``render.time_text``; not before 1970."""
    seconds, micros = ns // _SECOND_NS, ns % _SECOND_NS // 1000
    day, second = seconds // _DAY_S, seconds % _DAY_S
    # years from March on, in eras of 400
    day += 719_468
    era, of_era = day // 146_097, day % 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    out[cursor + 4] = out[cursor + 7] = _MINUS
    out[cursor + 10] = _T
    out[cursor + 13] = out[cursor + 16] = _COLON
    out[cursor + 19] = _DOT
    out[cursor + 26] = _Z
    put_digits(out, cursor, year + 400 * era + (month >= 10), 4)
    put_digits(out, cursor + 5, month + 3 if month < 10 else month - 9, 2)
    put_digits(out, cursor + 8, of_year - (153 * month + 2) // 5 + 1, 2)
    put_digits(out, cursor + 11, second // 3600, 2)
    put_digits(out, cursor + 14, second // 60 % 60, 2)
    put_digits(out, cursor + 17, second % 60, 2)
    put_digits(out, cursor + 20, micros, 6)
    return cursor + 27


@compiled
def put_latency(out, cursor, ns):
    """Milliseconds with three digits; -1 if a float may round it otherwise."""
    micros, rest = ns // 1000, ns % 1000
    if not 0 <= ns < _MOST_LATENCY_NS or rest == 500:
        return np.int64(-1)
    micros += rest > 500
    cursor = put_integer(out, cursor, micros // 1000)
    out[cursor] = _DOT
    return put(out, put_digits(out, cursor + 1, micros % 1000, 3), _MS)


@compiled
def put_number(out, cursor, value):
    """In seven places at least, to the right."""
    end = put_integer(out, cursor, value)
    size = end - cursor
    if size < 7:
        for j in range(1, size + 1):
            out[cursor + 7 - j] = out[end - j]
        put_spaces(out, cursor, 7 - size)
        end = cursor + 7
    return end


@compiled
def _end_of_line(out, cursor, begin):
    """Without spaces at its end."""
    while cursor > begin and out[cursor - 1] == _SPACE:
        cursor -= 1
    return cursor


@compiled
def _describe(frame, asks, waited_ns, program, data, starts, code, defaults, words, out, what, values, stack):
    """Put what a request or response says behind ``what``. Its end; -1 if the renderer must say it."""
    noted, cursor = frame[f.NOTED :], what
    for j in range(len(values)):
        values[j] = defaults[program, j]
    if asks:
        if noted[p.CLIENT_ID + 1] >= 0:
            cursor = put(out, cursor, _CLIENT)
            cursor = put_text(out, cursor, data, noted[p.CLIENT_ID], noted[p.CLIENT_ID + 1], True)
    else:
        if values[t.HAS_ERROR]:
            cursor = begin_part(out, put_error(out, cursor, noted[p.ERROR_CODE], words), what)
        cursor = put_latency(out, cursor, waited_ns)
    if cursor < 0:
        return cursor
    begin = frame[f.AT] + (8 if asks else 4)
    details = cursor
    for _ in range(1 + values[t.TWICE]):
        values[t.WHAT], values[t.ITEMS] = what, 0
        end = frame[f.AT] + frame[f.LENGTH]
        cursor = run(code, starts[program], data, begin, end, values, stack, words, out, details)
        if cursor < 0:
            return cursor
    if asks and frame[f.PARTNER] == f.NOT_ANSWERED:
        cursor = put(out, begin_part(out, cursor, what), _ACKS_0)
    return cursor


@compiled
def _fetch_row(item, requests, responses):
    if item >= len(requests):
        prefetch(responses, item - len(requests))
    elif item >= 0:
        prefetch(requests, item)


@compiled
def _fetch_packet(item, requests, responses, packets, data):
    if item >= len(requests):
        prefetch(packets, responses[item - len(requests), f.PACKET])
        prefetch(data, responses[item - len(requests), f.AT])
    elif item >= 0:
        prefetch(packets, requests[item, f.PACKET])
        prefetch(data, requests[item, f.AT])


@compiled
def write(
    items, said, index, packets, requests, responses, data, ends, ids, starts, code, defaults, words, out, width,
    values, stack,
):  # fmt: skip
    """Put lines of ``items`` into ``out``, from ``index`` on, until something is not for this.

    An item is a row of ``requests``, or behind these of ``responses``; of others (below 0) the lines are OTHER.
    ``said`` are texts of what the renderer describes, UNSAID or UNWANTED; ``ends`` by connection and direction.
    Returns (why, index, cursor, width).
    """
    cursor, line, second = 0, np.int64(-1), np.int64(0)
    while index < len(items):
        if index + 2 * _AHEAD < len(items):
            _fetch_row(items[index + 2 * _AHEAD], requests, responses)
            _fetch_packet(items[index + _AHEAD], requests, responses, packets, data)
        item = items[index]
        if said[index] == UNWANTED:
            index += 1
            continue
        if len(out) - cursor < MAX_LINE_BYTES + width:
            return NO_ROOM, index, cursor, width
        if item < 0:
            return OTHER, index, cursor, width
        asks = item < len(requests)
        frame = requests[item] if asks else responses[item - len(requests)]
        request = frame if asks else requests[frame[f.PARTNER]]
        program = ids[0 if asks else 1, request[f.KEY], request[f.VERSION]]
        if program == p.UNKNOWN:
            return NO_PROGRAM, index, cursor, width
        if program == p.REFUSED:
            return OTHER, index, cursor, width
        end = ends[frame[f.TALK], 0 if asks else 1]
        if end < 0:
            return NO_ENDS, index, cursor, width
        time = packets[frame[f.PACKET], k.TIME]
        characters = words.rows[end, t.CHARACTERS]
        if time < 0 or words.rows[end, t.BYTES] > MAX_TEXT_BYTES:
            return OTHER, index, cursor, width
        widest = max(width, characters)
        if line >= 0 and time // _SECOND_NS == second:
            copy(out, line, _WHOLE_SECONDS, out, cursor)
            put_digits(out, cursor + _WHOLE_SECONDS, time % _SECOND_NS // 1000, 6)
            out[cursor + 26] = _Z
        else:
            put_time(out, cursor, time)
        line, second = cursor, time // _SECOND_NS
        at = put_spaces(out, cursor + 27, 1)
        at = put_spaces(out, put_number(out, at, packets[frame[f.PACKET], k.NUMBER]), 1)
        at = put_spaces(out, put_row(out, at, words, end), widest - characters + 1)
        at = put_spaces(out, put_row(out, at, words, defaults[program, t.KIND]), 1)
        out[at] = _HASH
        number = at + 1
        at = put_integer(out, number, frame[f.CORRELATION])
        what = put_spaces(out, at, max(5 - (at - number), 0) + 1)
        if said[index] >= 0:
            at = put_row(out, what, words, said[index])
            if at < 0:
                return OTHER, index, cursor, width
        else:
            waited_ns = time - packets[request[f.PACKET], k.TIME]
            at = _describe(
                frame, asks, waited_ns, program, data, starts, code, defaults, words, out, what, values, stack
            )  # fmt: skip
            if at < 0:
                return NO_TOPIC if values[t.UNKNOWN_TOPIC] >= 0 else OTHER, index, cursor, width
        cursor = at if at > what else _end_of_line(out, at, cursor)
        out[cursor] = _NEWLINE
        cursor += 1
        width = widest
        index += 1
    return ALL, index, cursor, width
