"""The loops of `wire.columnar`, compiled by numba: topics and partition states between bytes and flat arrays.

Structures are described by plans: the kind of each field in order. A partition state is a row: its numbers go to
``numbers[k, row]``, where k counts the numbers of a state, its arrays to ``lists[k]``, where ``ends[k, row + 1]`` is
the end of the row's. Every read is held against the bytes that are left; a position of -1 says that they are refused.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# kinds of fields
INT32, INT8, BOOL, INTS, NAME, ID, PARTITIONS, TAGS = range(8)

MAX_NAME_BYTES = 32767
REFUSED = np.int64(-1)

_compiled = numba.njit(cache=True, nogil=True)


@intrinsic
def _int32(typing_context, b, at):
    """The big-endian int32 at ``b[at]``: one load, one swap. The caller has checked the bound."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        return builder.bswap(builder.load(word, align=1))

    return types.int32(b, types.int64), generate


@intrinsic
def _put_int32(typing_context, out, at, value):
    """Write it so; the caller has made room."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        builder.store(builder.bswap(arguments[2]), word, align=1)
        return context.get_dummy_value()

    return types.none(out, types.int64, types.int32), generate


def _word_at(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(32).as_pointer())


@_compiled
def _uvarint(b, at, end):
    """(value, next position); refused when it is longer than five bytes, than 32 bits, or than what is left."""
    value = np.int64(0)
    for shift in range(0, 35, 7):
        if at >= end:
            break
        byte = np.int64(b[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, at) if value <= 0xFFFFFFFF else (value, REFUSED)
    return value, REFUSED


@_compiled
def length(b, at, end, compact, size):
    """(count or length, next position); null is refused: no field that is read here may be null."""
    if compact:
        if at < end and b[at] < 0x80:
            n, at = np.int64(b[at]), at + 1
        else:
            n, at = _uvarint(b, at, end)
        n -= 1
    elif at + size > end:
        return np.int64(0), REFUSED
    elif size == 2:
        n, at = np.int64(np.int16((np.uint16(b[at]) << np.uint16(8)) | np.uint16(b[at + 1]))), at + 2
    else:
        n, at = np.int64(_int32(b, at)), at + 4
    return (n, at) if n >= 0 else (n, REFUSED)


@_compiled
def _skip_tags(b, at, end):
    if at < end and b[at] == 0:
        return at + 1
    count, at = _uvarint(b, at, end)
    if at < 0 or count > (end - at) // 2:
        return REFUSED
    last = np.int64(-1)
    for _ in range(count):
        tag, at = _uvarint(b, at, end)
        if at < 0 or tag <= last:
            return REFUSED
        last = tag
        size, at = _uvarint(b, at, end)
        if at < 0 or size > end - at:
            return REFUSED
        at += size
    return at


@_compiled
def _same(b, one, other, n):
    for i in range(n):  # noqa: SIM110 - numba compiles no generators
        if b[one + i] != b[other + i]:
            return False
    return True


@_compiled
def read_partitions(b, at, end, count, plan, compact, row, topic, first_topic, numbers, lists, filled, ends, names):
    """``count`` partition states from ``at`` on: (next position, next row, next topic).

    States that name their topic themselves (before topics were grouped) begin a topic wherever the name changes.
    """
    for _ in range(count):
        n_numbers = n_lists = 0
        for k in range(len(plan)):
            kind = plan[k]
            if kind == INT32:
                if at + 4 > end:
                    return REFUSED, row, topic
                numbers[n_numbers, row] = _int32(b, at)
                n_numbers += 1
                at += 4
            elif kind == INTS:
                if compact and at < end and 0 < b[at] < 0x80:
                    n = np.int64(b[at]) - 1
                    at += 1
                elif not compact and at + 4 <= end:
                    n = np.int64(_int32(b, at))
                    at += 4
                else:
                    n, at = length(b, at, end, compact, 4)
                if at < 0 or n < 0 or n > (end - at) >> 2:
                    return REFUSED, row, topic
                start = filled[n_lists]
                for i in range(n):
                    lists[n_lists, start + i] = _int32(b, at + 4 * i)
                at += 4 * n
                filled[n_lists] = start + n
                ends[n_lists, row + 1] = start + n
                n_lists += 1
            elif kind == TAGS:
                if at < end and b[at] == 0:
                    at += 1
                else:
                    at = _skip_tags(b, at, end)
                    if at < 0:
                        return REFUSED, row, topic
            elif kind == NAME:
                n, at = length(b, at, end, compact, 2)
                if at < 0 or n > min(end - at, MAX_NAME_BYTES):
                    return REFUSED, row, topic
                if topic == first_topic or names[topic - 1, 1] != n or not _same(b, names[topic - 1, 0], at, n):
                    names[topic, 0], names[topic, 1], names[topic, 2] = at, n, row
                    topic += 1
                at += n
            else:  # INT8, BOOL
                if at >= end:
                    return REFUSED, row, topic
                numbers[n_numbers, row] = np.int8(b[at]) if kind == INT8 else b[at] != 0
                n_numbers += 1
                at += 1
        row += 1
    return at, row, topic


@_compiled
def read_topics(
    b, at, end, count, topic_plan, plan, least, compact, row, topic, numbers, lists, filled, ends, names, ids
):  # fmt: skip
    """``count`` topics from ``at`` on: (next position, next row, next topic). ``names`` gets (start, length, row)."""
    for _ in range(count):
        names[topic, 2] = row
        for kind in topic_plan:
            if kind == NAME:
                n, at = length(b, at, end, compact, 2)
                if at < 0 or n > min(end - at, MAX_NAME_BYTES):
                    return REFUSED, row, topic
                names[topic, 0], names[topic, 1] = at, n
                at += n
            elif kind == ID:
                if at + 16 > end:
                    return REFUSED, row, topic
                for i in range(16):
                    ids[topic, i] = b[at + i]
                at += 16
            elif kind == PARTITIONS:
                n, at = length(b, at, end, compact, 4)
                if at < 0 or n > (end - at) // least:
                    return REFUSED, row, topic
                at, row, _ = read_partitions(
                    b, at, end, n, plan, compact, row, topic, topic, numbers, lists, filled, ends, names
                )
            else:
                at = _skip_tags(b, at, end)
            if at < 0:
                return REFUSED, row, topic
        topic += 1
    return at, row, topic


# writing


@_compiled
def put_length(out, at, n, compact, size):
    if not compact:
        if size == 4:
            _put_int32(out, at, n)
            return at + 4
        out[at], out[at + 1] = np.uint8(n >> 8), np.uint8(n & 0xFF)
        return at + 2
    value = n + 1
    while value > 0x7F:
        out[at] = np.uint8(value & 0x7F | 0x80)
        value >>= 7
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@_compiled
def _put_name(out, at, names, start, end, compact):
    at = put_length(out, at, end - start, compact, 2)
    out[at : at + end - start] = names[start:end]
    return at + end - start


@_compiled
def write_partitions(out, at, first, last, plan, topics, compact, numbers, lists, ends, names, name_ends):
    """Rows ``first`` to ``last``, of which each names its topic if the plan says so; the next position."""
    for row in range(first, last):
        n_numbers = n_lists = 0
        for kind in plan:
            if kind == INT32:
                _put_int32(out, at, numbers[n_numbers, row])
                at += 4
                n_numbers += 1
            elif kind == INTS:
                start, end = ends[n_lists, row], ends[n_lists, row + 1]
                at = put_length(out, at, end - start, compact, 4)
                for i in range(start, end):
                    _put_int32(out, at, lists[n_lists, i])
                    at += 4
                n_lists += 1
            elif kind == TAGS:
                out[at] = 0
                at += 1
            elif kind == NAME:
                topic = topics[row]
                at = _put_name(out, at, names, name_ends[topic], name_ends[topic + 1], compact)
            else:
                out[at] = np.uint8(numbers[n_numbers, row])
                n_numbers += 1
                at += 1
    return at


@_compiled
def write_topics(
    out, at, first, last, topic_plan, plan, rows, compact, numbers, lists, ends, names, name_ends, ids
):  # fmt: skip
    """Topics ``first`` to ``last``, whose rows begin at ``rows[topic]``; the next position."""
    for topic in range(first, last):
        for kind in topic_plan:
            if kind == NAME:
                at = _put_name(out, at, names, name_ends[topic], name_ends[topic + 1], compact)
            elif kind == ID:
                for i in range(16):
                    out[at + i] = ids[topic, i]
                at += 16
            elif kind == PARTITIONS:
                at = put_length(out, at, rows[topic + 1] - rows[topic], compact, 4)
                at = write_partitions(
                    out, at, rows[topic], rows[topic + 1], plan, rows, compact, numbers, lists, ends, names, name_ends
                )
            else:
                out[at] = 0
                at += 1
    return at
