"""The decoder of `wire.columnar`, compiled by numba: topics and partition states from bytes into flat arrays.

A plan lists the kinds of a structure's fields in order. A partition state is a row. ``numbers[k]`` is the address of
the column of the k-th number of a state, ``lists[k]`` that of the values of its k-th array, ``ends[k]`` that of their
offsets: the caller owns those arrays, and makes them long enough. Every read is checked against the remaining bytes; a
position of -1 means rejected.

Most partitions of a topic have arrays of the same lengths. Such a run is copied field by field, in loops without
branches, instead of state by state.
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

compiled = numba.njit(cache=True, nogil=True)


#: shorter runs are decoded state by state
LEAST_RUN = 4


@intrinsic
def _int32(typing_context, b, at):
    """The big-endian int32 at ``b[at]``: a load and a swap. The caller checks the bounds."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        return builder.bswap(builder.load(word, align=1))

    return types.int32(b, types.int64), generate


@intrinsic
def put_int32(typing_context, out, at, value):
    """Store a big-endian int32 at ``out[at]``. The caller checks the bounds."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        builder.store(builder.bswap(arguments[2]), word, align=1)
        return context.get_dummy_value()

    return types.none(out, types.int64, types.int32), generate


def _word_at(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(32).as_pointer())


def _at_address(kind):
    """(load, store) of a number of that type at an address, in native byte order."""

    def pointer(context, builder, address):
        return builder.inttoptr(address, context.get_value_type(kind).as_pointer())

    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            return builder.load(pointer(context, builder, arguments[0]))

        return kind(types.int64), generate

    @intrinsic
    def store(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], pointer(context, builder, arguments[0]))
            return context.get_dummy_value()

        return types.none(types.int64, kind), generate

    return load, store


load_int64, store_int64 = _at_address(types.int64)
load_int32, store_int32 = _at_address(types.int32)
load_uint8, store_uint8 = _at_address(types.uint8)


@compiled
def _uvarint(b, at, end):
    """(value, next position); rejected if longer than five bytes, 32 bits, or the remaining bytes."""
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


@compiled
def length(b, at, end, compact, size):
    """(count or length, next position); null is rejected: none of these fields is nullable."""
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


@compiled
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


@compiled
def _same(b, one, other, n):
    while n >= 4:
        if _int32(b, one) != _int32(b, other):
            return False
        one, other, n = one + 4, other + 4, n - 4
    for i in range(n):  # noqa: SIM110 - numba compiles no generators
        if b[one + i] != b[other + i]:
            return False
    return True


@compiled
def read_partitions(b, at, end, count, plan, compact, row, numbers, lists, filled, ends, names):
    """Decode ``count`` partition states at ``at``: (next position, next row, number of topics).

    If states carry topic names (versions that do not group by topic), a topic begins where the name changes.
    """
    # of the last state: offsets of its fields; (offset, length) of the bytes that are equal throughout a run
    shape, equal = np.empty(len(plan), np.int64), np.empty((len(plan), 2), np.int64)
    return _read_partitions(b, at, end, count, plan, compact, row, numbers, lists, filled, ends, names, shape, equal)


@compiled
def _read_partitions(b, at, end, count, plan, compact, row, numbers, lists, filled, ends, names, shape, equal):
    topic = np.int64(0)
    while count > 0:
        n_numbers = n_lists = 0
        start = at
        for k in range(len(plan)):
            kind = plan[k]
            shape[k] = at - start
            if kind == INT32:
                if at + 4 > end:
                    return REFUSED, row, topic
                store_int32(numbers[n_numbers] + 4 * row, _int32(b, at))
                n_numbers += 1
                at += 4
            elif kind == INTS:
                n, at = length(b, at, end, compact, 4)
                if at < 0 or n > (end - at) >> 2:
                    return REFUSED, row, topic
                into = lists[n_lists] + 4 * filled[n_lists]
                for i in range(n):
                    store_int32(into + 4 * i, _int32(b, at + 4 * i))
                at += 4 * n
                filled[n_lists] += n
                store_int64(ends[n_lists] + 8 * (row + 1), filled[n_lists])
                n_lists += 1
            elif kind == TAGS:
                at = _skip_tags(b, at, end)
                if at < 0:
                    return REFUSED, row, topic
            elif kind == NAME:
                n, at = length(b, at, end, compact, 2)
                if at < 0 or n > min(end - at, MAX_NAME_BYTES):
                    return REFUSED, row, topic
                if topic == 0 or names[topic - 1, 1] != n or not _same(b, names[topic - 1, 0], at, n):
                    names[topic, 0], names[topic, 1], names[topic, 2] = at, n, row
                    topic += 1
                at += n
            else:  # INT8, BOOL
                if at >= end:
                    return REFUSED, row, topic
                store_uint8(numbers[n_numbers] + row, np.uint8(b[at] if kind == INT8 else b[at] != 0))
                n_numbers += 1
                at += 1
        row += 1
        count -= 1
        size = at - start
        run = _same_shape(b, start, min(count, (end - at) // size), size, plan, compact, shape, equal)
        if run >= LEAST_RUN:
            _read_run(b, at, run, size, plan, compact, shape, row, numbers, lists, filled, ends)
            at += run * size
            row += run
            count -= run
    return at, row, topic


@compiled
def _same_shape(b, start, most, size, plan, compact, shape, equal):
    """How many of the next ``most`` states have the same field offsets as the state at ``start``."""
    n = 0
    for k in range(len(plan)):
        kind, at = plan[k], start + shape[k]
        if kind == NAME:
            equal[n, 1] = (shape[k + 1] if k + 1 < len(plan) else size) - shape[k]
        elif kind == INTS:
            equal[n, 1] = 1 if compact else 4
        elif kind == TAGS:
            equal[n, 1] = 1
        else:
            continue
        if (kind == TAGS and b[at] != 0) or (kind == INTS and compact and b[at] >= 0x80):
            return 0  # tagged fields and multi-byte lengths are decoded state by state
        equal[n, 0] = shape[k]
        n += 1
    for run in range(most):
        ahead = (run + 1) * size
        for k in range(n):
            at = start + equal[k, 0]
            if b[at + ahead] != b[at] or (equal[k, 1] > 1 and not _same(b, at, at + ahead, equal[k, 1])):
                return run
    return most


@compiled
def _read_run(b, start, run, size, plan, compact, shape, row, numbers, lists, filled, ends):
    """Decode ``run`` states of that shape at ``start``. The caller checks the bounds."""
    n_numbers = n_lists = 0
    for k in range(len(plan)):
        kind, at = plan[k], start + shape[k]
        if kind == INT32:
            into = numbers[n_numbers] + 4 * row
            for j in range(run):
                store_int32(into + 4 * j, _int32(b, at + j * size))
            n_numbers += 1
        elif kind == INTS:
            n = np.int64(b[at]) - 1 if compact else np.int64(_int32(b, at))
            at += 1 if compact else 4
            before = filled[n_lists]
            into = lists[n_lists] + 4 * before
            for i in range(n):
                for j in range(run):
                    store_int32(into + 4 * (j * n + i), _int32(b, at + j * size + 4 * i))
            into = ends[n_lists] + 8 * (row + 1)
            for j in range(run):
                store_int64(into + 8 * j, before + (j + 1) * n)
            filled[n_lists] = before + run * n
            n_lists += 1
        elif kind in (INT8, BOOL):
            into = numbers[n_numbers] + row
            for j in range(run):
                byte = b[at + j * size]
                store_uint8(into + j, np.uint8(byte if kind == INT8 else byte != 0))
            n_numbers += 1


@compiled
def read_topics(
    b, at, end, count, topic_plan, plan, least, compact, row, numbers, lists, filled, ends, names, ids
):  # fmt: skip
    """Decode ``count`` topics at ``at``: (next position, next row, topics). Fills ``names``: (start, length, row)."""
    shape, equal = np.empty(len(plan), np.int64), np.empty((len(plan), 2), np.int64)
    for topic in range(count):
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
                at, row, _ = _read_partitions(
                    b, at, end, n, plan, compact, row, numbers, lists, filled, ends, names, shape, equal
                )
            else:
                at = _skip_tags(b, at, end)
            if at < 0:
                return REFUSED, row, topic
    return at, row, count


@compiled
def joined(b, names):
    """The bytes at (start, length, ...) of each row of ``names``, joined."""
    out = np.empty(np.sum(names[:, 1]), np.uint8)
    at = 0
    for start, n, _ in names:
        out[at : at + n] = b[start : start + n]
        at += n
    return out
