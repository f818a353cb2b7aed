"""Texts written into arrays of bytes as Python writes them, compiled by numba, and ``say``: what a program prints.

Each ``put`` returns where it ends; the caller has seen to room. A text that Python would escape, or a long one, is
refused: -1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kce.captures.exchanges.render import MAX_PARTITIONS
from kce.captures.fast import body_programs as p
from kce.captures.fast import text_programs as t
from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import copy, uint32

#: Bytes of a text that is put; of a line with all that a program can print.
MAX_TEXT_BYTES, MAX_LINE_BYTES = 1000, 64 * 1024

_AND_MORE = np.frombuffer(b"; and  more", np.uint8)
_RECORDS_IN = np.frombuffer(b" records in ", np.uint8)
_BYTES = np.frombuffer(b" bytes", np.uint8)
_NO_RECORDS = np.frombuffer(b"no records", np.uint8)
_TRUE, _FALSE = np.frombuffer(b"True", np.uint8), np.frombuffer(b"False", np.uint8)

_COMMA, _SEMICOLON, _SPACE, _QUOTE, _BACKSLASH, _MINUS, _0 = (np.uint8(ord(c)) for c in ",; '\\-0")


_10 = np.uint64(10)  # numba divides a uint64 by a signed number as floats


class Words(NamedTuple):
    """``Texts``, and the row of each known topic's id."""

    bytes: Any
    rows: Any
    topics: Any


@compiled
def put(out, cursor, text):
    copy(text, 0, len(text), out, cursor)
    return cursor + len(text)


@compiled
def put_row(out, cursor, words, row):
    size = words.rows[row, t.BYTES]
    if size > MAX_TEXT_BYTES:
        return np.int64(-1)
    copy(words.bytes, words.rows[row, t.AT], size, out, cursor)
    return cursor + size


@compiled
def put_text(out, cursor, b, at, size, quoted):
    """ASCII from ``b``; in quotes if it is ``quoted``."""
    if size > MAX_TEXT_BYTES:
        return np.int64(-1)
    if quoted:
        out[cursor] = _QUOTE
        cursor += 1
    for k in range(at, at + size):
        byte = b[k]
        if not _SPACE <= byte < 127 or (quoted and byte in (_QUOTE, _BACKSLASH)):
            return np.int64(-1)
        out[cursor] = byte
        cursor += 1
    if quoted:
        out[cursor] = _QUOTE
        cursor += 1
    return cursor


@compiled
def put_digits(out, cursor, value, digits):
    """The last digits of a number."""
    left = np.uint64(value)
    for k in range(cursor + digits - 1, cursor - 1, -1):
        out[k] = _0 + np.uint8(left % _10)
        left //= _10
    return cursor + digits


@compiled
def put_integer(out, cursor, value):
    left = np.uint64(value)
    if value < 0:
        out[cursor] = _MINUS
        cursor += 1
        left = np.uint64(0) - left
    digits, power = 1, _10
    while digits < 19 and left >= power:
        digits += 1
        power *= _10
    return put_digits(out, cursor, left, digits)


@compiled
def put_spaces(out, cursor, count):
    for k in range(cursor, cursor + count):
        out[k] = _SPACE
    return cursor + count


@compiled
def begin_part(out, cursor, what):
    """Behind what stands in ``out`` from ``what`` on."""
    if cursor > what:
        out[cursor] = _COMMA
        out[cursor + 1] = _SPACE
        cursor += 2
    return cursor


@compiled
def put_error(out, cursor, code, words):
    if -1 <= code < t.ERRORS - 1:
        return put_row(out, cursor, words, code + 1)
    return put_integer(out, cursor, code)


@compiled
def _put_records(out, cursor, b, at, size):
    """As ``wire.outline`` counts them."""
    if size < 0:
        return put(out, cursor, _NO_RECORDS)
    end, records, counted = at + size, np.int64(0), True
    while end - at > 16:
        length, magic = np.int64(np.int32(uint32(b, at + 8))), b[at + 16]
        if length > end - at - 12 or length < (49 if magic == 2 else 14) or magic > 2:
            break
        if magic == 2:
            records += np.int64(np.int32(uint32(b, at + 57)))
        elif b[at + 17] & 7:
            counted = False  # a compressed message hides their number
        else:
            records += 1
        at += 12 + length
    if counted:
        cursor = put(out, put_integer(out, cursor, records), _RECORDS_IN)
    return put(out, put_integer(out, cursor, size), _BYTES)


@compiled
def topic_place(topics, high, low):
    """Where a topic's id stands in the table, or would."""
    place = (high ^ low) & (len(topics) - 1)
    while topics[place, 2] >= 0 and (topics[place, 0] != high or topics[place, 1] != low):
        place = (place + 1) & (len(topics) - 1)
    return place


@compiled
def half_at(b, at):
    """Eight bytes of an id."""
    return uint32(b, at) << 32 | uint32(b, at + 4)


@compiled
def say(code, pc, b, values, words, out, cursor):
    """Run instructions that print, up to one that does not. (next instruction, cursor or -1)"""
    while cursor >= 0 and code[pc, 0] >= p.PART:
        what, a, expected, target = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        if what == p.LITERAL:
            cursor = put_row(out, cursor, words, a)
        elif what == p.INTEGER:
            cursor = put_integer(out, cursor, values[a])
        elif what == p.STRING:
            cursor = put_text(out, cursor, b, values[a], values[a + 1], False) if values[a + 1] > 0 else np.int64(-1)
        elif what == p.ITEM:
            values[t.ITEMS] += 1
            if values[t.ITEMS] > MAX_PARTITIONS:
                pc = target
            elif values[t.ITEMS] > 1:
                out[cursor] = _SEMICOLON
                out[cursor + 1] = _SPACE
                cursor += 2
            else:
                cursor = begin_part(out, cursor, values[t.WHAT])
        elif what == p.RECORDS:
            cursor = _put_records(out, cursor, b, values[a], values[a + 1])
        elif what == p.ERROR_NAME:
            if values[a]:
                cursor = put_error(out, cursor, values[a], words)
                pc = target
        elif what == p.TOPIC:
            at = values[a]
            row = words.topics[topic_place(words.topics, half_at(b, at), half_at(b, at + 8)), 2]
            if row < 0:
                values[t.UNKNOWN_TOPIC] = at
                return pc, np.int64(-1)
            cursor = put_row(out, cursor, words, row)
        elif what == p.REST:
            if values[t.ITEMS] > MAX_PARTITIONS:
                cursor = put(out, cursor, _AND_MORE[:6])
                cursor = put(out, put_integer(out, cursor, values[t.ITEMS] - MAX_PARTITIONS), _AND_MORE[6:])
        elif what == p.PART:
            cursor = begin_part(out, cursor, values[t.WHAT])
        elif what == p.IF_POSITIVE:
            if values[a] < 0:
                pc = target
        elif what == p.IF_OTHER:
            if values[a] == expected:
                pc = target
        elif what == p.IF_LONGER:
            if values[a + 1] <= expected:
                pc = target
        elif what == p.QUOTED:
            cursor = put_text(out, cursor, b, values[a], values[a + 1], True)
        elif what == p.BOOLEAN:
            cursor = put(out, cursor, _TRUE if values[a] else _FALSE)
        elif what == p.NO_ERRORS and values[p.PARTITION_ERRORS]:
            return pc, np.int64(-1)
    return pc, cursor
