"""Runs the programs of ``captures.fast.body_programs`` over frames, compiled by numba."""

from __future__ import annotations

import numpy as np

from kce.captures.fast import body_programs as p
from kce.captures.fast.text_kernels import say
from kce.captures.files.machine_code import compiled
from kce.captures.files.packet_kernels import uint16, uint32
from kce.wire.primitives import MAX_STRING_BYTES


@compiled
def _uvarint(b, at, end):
    value = np.int64(0)
    for shift in range(0, 35, 7):
        if at >= end:
            return value, np.int64(-1)
        byte = np.int64(b[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at if value <= 0xFFFFFFFF else np.int64(-1)
    return value, np.int64(-1)


@compiled
def _length(b, at, end, flags, size):
    """(length or -1 for null, next position or -1)"""
    if flags & p.COMPACT:
        n, at = _uvarint(b, at, end)
        n -= 1
    elif at + size > end:
        return np.int64(0), np.int64(-1)
    elif size == 2:
        n, at = np.int64(np.int16(uint16(b, at))), at + 2
    else:
        n, at = np.int64(np.int32(uint32(b, at))), at + 4
    if n < -1 or (n == -1 and not flags & p.NULLABLE):
        return n, np.int64(-1)
    return n, at


@compiled
def _number(b, at, size):
    value = np.int64(np.int8(b[at]))
    for k in range(1, size):
        value = value << 8 | np.int64(b[at + k])
    return value


@compiled
def run(code, pc, b, at, end, values, stack, words=None, out=None, cursor=0):
    """Run a program over what is from ``at`` to ``end``; fills in ``values``, and prints to ``out`` from ``cursor`` on.

    Returns where the text ends; -1 if the program does not accept what it sees.
    """
    depth = tags = 0  # on the stack: from below where arrays stand, from above tagged fields
    between = False
    while True:
        if between:  # tagged fields: the next one, unless there is none
            inside = stack[len(stack) - tags]
            if inside[1] == 0:
                pc = inside[0]
                tags -= 1
                between = False
                continue
            inside[1] -= 1
            tag, at = _uvarint(b, at, end)
            if at < 0 or tag <= inside[2]:
                return -1
            inside[2] = tag
            n, at = _uvarint(b, at, end)
            if at < 0 or n > end - at:
                return -1
            place = np.int64(-1)
            for k in range(inside[4], inside[4] + inside[5]):
                if code[k, 1] == tag:
                    place = code[k, 3]
            if place < 0:
                at += n
            else:
                inside[3], end, pc = end, at + n, place
                between = False
            continue
        what, flags, size, target = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3]
        pc += 1
        if what == p.SKIP:
            at += flags
            if at > end:
                return -1
        elif what == p.TEXT:
            n, at = _length(b, at, end, flags, 2)
            if at < 0 or n > end - at or n > MAX_STRING_BYTES:
                return -1
            if size >= 0:
                values[size], values[size + 1] = at, n
            for k in range(at, at + n):
                if b[k] > 127:
                    return -1
            at += max(n, 0)
        elif what == p.OCTETS:
            n, at = _length(b, at, end, flags, 4)
            if at < 0 or n > end - at:
                return -1
            if size >= 0:
                values[size], values[size + 1] = at, n
            at += max(n, 0)
        elif what == p.NUMBERS:
            n, at = _length(b, at, end, flags, 4)
            if at < 0 or n > (end - at) // size:
                return -1
            if flags & p.COUNTED:
                values[p.PARTITIONS] += max(n, 0)
            at += max(n, 0) * size
        elif what == p.ARRAY:
            n, at = _length(b, at, end, flags, 4)
            if at < 0 or n > (end - at) // size:
                return -1
            if flags & p.COUNTED:
                values[p.PARTITIONS] += max(n, 0)
            if n <= 0:
                pc = target
            elif depth + tags == len(stack):
                return -1
            else:
                stack[depth, 0], stack[depth, 1] = pc, n
                depth += 1
        elif what == p.END:
            stack[depth - 1, 1] -= 1
            if stack[depth - 1, 1]:
                pc = stack[depth - 1, 0]
            else:
                depth -= 1
        elif what == p.TAGS:
            if at >= end:
                return -1
            if b[at] == 0:
                at += 1
                continue
            n, at = _uvarint(b, at, end)
            if at < 0 or n > (end - at) // 2 or depth + tags == len(stack):
                return -1
            tags += 1
            inside = stack[len(stack) - tags]
            inside[0], inside[1], inside[2], inside[4], inside[5] = pc, n, -1, target, flags
            between = True
        elif what == p.END_TAG:
            if at != end:
                return -1
            end = stack[len(stack) - tags, 3]
            between = True
        elif what == p.MAYBE:
            if at >= end:
                return -1
            if b[at] > 127:
                pc = target
            at += 1
        elif what == p.NUMBER:
            if at + flags > end:
                return -1
            value = _number(b, at, flags)
            if size == p.ACKS and value == 0 and at + 2 < end and b[at + 2] > 127:
                value = 1  # with a timeout below zero it is no such request, and answered
            values[size] = value
            at += flags
        elif what == p.NONZERO:
            if at + 2 > end:
                return -1
            values[p.PARTITION_ERRORS] += b[at] != 0 or b[at + 1] != 0
            at += 2
        elif what == p.DONE:
            return cursor if flags == 1 or at == end else -1
        elif what == p.PLACE:
            if at + flags > end:
                return -1
            values[size] = at
            at += flags
        elif words is None or what == p.REFUSE:
            return -1
        else:
            pc, cursor = say(code, pc - 1, b, values, words, out, cursor)
            if cursor < 0:
                return cursor
