"""How `wire.columnar` reads, compiled by numba: topics and partition states from bytes into flat arrays.

Structures are described by plans: the kind of each field in order. A partition state is a row. ``numbers[k]`` is the
address of the column of a state's k-th number, ``lists[k]`` that of the values of its k-th array, and ``ends[k]`` that
of their offsets: the caller keeps those arrays, and has made them long enough. Every read is held against the bytes
that are left; a position of -1 says that they are refused.

Partitions of one topic mostly have arrays of the same lengths. Such a run is moved field by field, each in a loop that
decides nothing, instead of state by state.
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


#: a run shorter than this is read state by state
LEAST_RUN = 4


@intrinsic
def _int32(typing_context, b, at):
    """The big-endian int32 at ``b[at]``: one load, one swap. The caller has checked the bound."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        return builder.bswap(builder.load(word, align=1))

    return types.int32(b, types.int64), generate


@intrinsic
def put_int32(typing_context, out, at, value):
    """Write it so; the caller has made room."""

    def generate(context, builder, signature, arguments):
        word = _word_at(context, builder, signature, arguments)
        builder.store(builder.bswap(arguments[2]), word, align=1)
        return context.get_dummy_value()

    return types.none(out, types.int64, types.int32), generate


def _word_at(context, builder, signature, arguments):
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(32).as_pointer())


def _at_address(kind):
    """(load, store) of a number of that type at an address, in this machine's order."""

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


@compiled
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
    """``count`` partition states from ``at`` on: (next position, next row, how many topics).

    States that name their topic themselves (before topics were grouped) begin a topic wherever the name changes.
    """
    # where each field of the last state began, and where and how long those are that states alike have alike
    shape, told = np.empty(len(plan), np.int64), np.empty((len(plan), 2), np.int64)
    return _read_partitions(b, at, end, count, plan, compact, row, numbers, lists, filled, ends, names, shape, told)


@compiled
def _read_partitions(b, at, end, count, plan, compact, row, numbers, lists, filled, ends, names, shape, told):
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
        run = _alike(b, start, min(count, (end - at) // size), size, plan, compact, shape, told)
        if run >= LEAST_RUN:
            _read_run(b, at, run, size, plan, compact, shape, row, numbers, lists, filled, ends)
            at += run * size
            row += run
            count -= run
    return at, row, topic


@compiled
def _alike(b, start, most, size, plan, compact, shape, told):
    """How many states, of ``most`` that follow the one at ``start``, have their fields at the same places as it has."""
    n = 0
    for k in range(len(plan)):
        kind, at = plan[k], start + shape[k]
        if kind == NAME:
            told[n, 1] = (shape[k + 1] if k + 1 < len(plan) else size) - shape[k]
        elif kind == INTS:
            told[n, 1] = 1 if compact else 4
        elif kind == TAGS:
            told[n, 1] = 1
        else:
            continue
        if (kind == TAGS and b[at] != 0) or (kind == INTS and compact and b[at] >= 0x80):
            return 0  # tags, and a length of more than a byte, are read each for itself
        told[n, 0] = shape[k]
        n += 1
    for run in range(most):
        ahead = (run + 1) * size
        for k in range(n):
            at = start + told[k, 0]
            if b[at + ahead] != b[at] or (told[k, 1] > 1 and not _same(b, at, at + ahead, told[k, 1])):
                return run
    return most


@compiled
def _read_run(b, start, run, size, plan, compact, shape, row, numbers, lists, filled, ends):
    """``run`` states from ``start`` on, all of that shape: it is known that they are there."""
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
    """``count`` topics from ``at`` on: (next position, next row, how many). ``names`` gets (start, length, row)."""
    shape, told = np.empty(len(plan), np.int64), np.empty((len(plan), 2), np.int64)
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
                    b, at, end, n, plan, compact, row, numbers, lists, filled, ends, names, shape, told
                )
            else:
                at = _skip_tags(b, at, end)
            if at < 0:
                return REFUSED, row, topic
    return at, row, count


@compiled
def joined(b, names):
    """The bytes at the rows (start, length, ...) of ``names``, one behind the other."""
    out = np.empty(np.sum(names[:, 1]), np.uint8)
    at = 0
    for start, n, _ in names:
        out[at : at + n] = b[start : start + n]
        at += n
    return out
