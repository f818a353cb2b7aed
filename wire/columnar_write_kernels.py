"""The encoder of `wire.columnar`: topics and partition states from flat arrays into bytes (see `columnar_kernels`).

The caller makes room for a request of the greatest size: five bytes for a number or a length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kce.wire.columnar_memory import (
    INLINED,
    MAX_NAME_BYTES,
    compiled,
    inlined,
    load_byte,
    load_int32,
    load_int64,
    move_4_swapped,
    move_16_bytes,
    move_bytes,
    store_byte,
    store_network_int32,
)

# A table of int64 addresses: offsets of the topics' names, the names, their end, ids, the first row of each topic (one
# more than topics), the topic of each row; then the columns of arrays' values, the ends of these, the columns of
# arrays' offsets, of numbers.
NAME_ENDS, NAMES, NAMES_END, IDS, TOPIC_ROWS, ROW_TOPICS = range(0, 48, 8)
COLUMNS = 48


#: what is wrong with the columns; other numbers are those of an array field
GOOD, LONG_NAME, NAME_ORDER, TOPIC_ORDER, REQUEST_ORDER = -1, -2, -3, -4, -5


@compiled
def prepare(table, topic, first_rows, topic_request, first_topics, name_ends, names, ids):
    """Check the columns of topics, and fill their part of ``table``, ``first_rows`` of each topic, and ``first_topics``
    of each request, both with the total at the end. Returns GOOD, or what is wrong."""
    table[NAME_ENDS // 8] = name_ends.ctypes.data
    table[NAMES // 8] = names.ctypes.data
    table[NAMES_END // 8] = names.ctypes.data + len(names)
    table[IDS // 8] = ids.ctypes.data
    table[TOPIC_ROWS // 8] = first_rows.ctypes.data
    table[ROW_TOPICS // 8] = topic.ctypes.data
    if not _ascends(name_ends, len(names)):
        return NAME_ORDER
    for i in range(1, len(name_ends)):
        if name_ends[i] - name_ends[i - 1] > MAX_NAME_BYTES:
            return LONG_NAME
    if not _find_begins(topic, first_rows):
        return TOPIC_ORDER
    return GOOD if _find_begins(topic_request, first_topics) else REQUEST_ORDER


@compiled
def prepare_lists(table, values, ends):
    """Check the array fields, and fill their part of ``table``. Returns GOOD, or the number of one that is wrong."""
    count, first = len(values), COLUMNS // 8
    for k in range(count):
        table[first + k] = values[k].ctypes.data
        table[first + count + k] = values[k].ctypes.data + 4 * len(values[k])
        table[first + 2 * count + k] = ends[k].ctypes.data
        if not _ascends(ends[k], len(values[k])):
            return k
    return GOOD


@compiled
def _ascends(ends, most):
    """Whether offsets ascend within 0 .. ``most``."""
    before = np.int64(0)
    for i in range(len(ends)):
        if ends[i] < before:
            return False
        before = ends[i]
    return before <= most


@compiled
def _find_begins(owners, begins):
    """Fill ``begins`` with the first row of each owner, and the number of rows. False if ``owners`` do not ascend
    within 0 .. len(begins) - 2."""
    next_owner = 0
    for row in range(len(owners)):
        owner = owners[row]
        if owner < max(next_owner - 1, 0) or owner >= len(begins) - 1:
            return False
        while next_owner <= owner:
            begins[next_owner] = row
            next_owner += 1
    while next_owner < len(begins):
        begins[next_owner] = len(owners)
        next_owner += 1
    return True


@inlined
def _put_compact(out, n):
    value = n + 1
    while value > 0x7F:
        store_byte(out, np.uint8(value & 0x7F | 0x80))
        value >>= 7
        out += 1
    store_byte(out, np.uint8(value))
    return out + 1


@inlined
def _put_name(out, table, topic, compact):
    ends = load_int64(table + NAME_ENDS) + 8 * topic
    begin = load_int64(ends)
    n = load_int64(ends + 8) - begin
    if compact:
        out = _put_compact(out, n)
    else:
        store_byte(out, np.uint8(n >> 8))
        store_byte(out + 1, np.uint8(n & 0xFF))
        out += 2
    name = load_int64(table + NAMES) + begin
    if load_int64(table + NAMES_END) - name >= n + 16:
        move_bytes(name, out, n)
    else:
        for i in range(n):
            store_byte(out + i, load_byte(name + i))
    return out + n


def _fields(kinds, out, row, table, numbers, lists, n, m):
    """Encode the fields of a state to ``out``: the next position. Arguments as in the decoder."""
    raise NotImplementedError


@overload(_fields, jit_options=INLINED)
def _specialised_fields(kinds, out, row, table, numbers, lists, n, m):
    if not len(kinds):
        return lambda kinds, out, row, table, numbers, lists, n, m: out
    kind = kinds.types[0]
    if kind == types.int32:

        def of_number(kinds, out, row, table, numbers, lists, n, m):
            store_network_int32(out, load_int32(load_int64(numbers + 8 * n) + 4 * row))
            return _fields(kinds[1:], out + 4, row, table, numbers, lists, n + 1, m)

        return of_number
    if kind in (types.int8, types.boolean):

        def of_byte(kinds, out, row, table, numbers, lists, n, m):
            store_byte(out, load_byte(load_int64(numbers + 8 * n) + row))
            return _fields(kinds[1:], out + 1, row, table, numbers, lists, n + 1, m)

        return of_byte
    if kind in (types.float32, types.float64):
        is_compact = kind == types.float64

        def of_ints(kinds, out, row, table, numbers, lists, n, m):
            ends = load_int64(table + COLUMNS + 8 * (2 * lists + m)) + 8 * row
            begin = load_int64(ends)
            count = load_int64(ends + 8) - begin
            values = load_int64(table + COLUMNS + 8 * m) + 4 * begin
            if is_compact:
                out = _put_compact(out, count)
            else:
                store_network_int32(out, np.int32(count))
                out += 4
            if load_int64(table + COLUMNS + 8 * (lists + m)) - values >= 4 * count + 16:
                for i in range(0, count, 4):
                    move_4_swapped(values + 4 * i, out + 4 * i)
            else:
                for i in range(count):
                    store_network_int32(out + 4 * i, load_int32(values + 4 * i))
            return _fields(kinds[1:], out + 4 * count, row, table, numbers, lists, n, m + 1)

        return of_ints
    if kind in (types.uint8, types.uint16):
        is_compact = kind == types.uint16

        def of_name(kinds, out, row, table, numbers, lists, n, m):
            out = _put_name(out, table, load_int64(load_int64(table + ROW_TOPICS) + 8 * row), is_compact)
            return _fields(kinds[1:], out, row, table, numbers, lists, n, m)

        return of_name

    def of_tags(kinds, out, row, table, numbers, lists, n, m):
        store_byte(out, np.uint8(0))
        return _fields(kinds[1:], out + 1, row, table, numbers, lists, n, m)

    return of_tags


@inlined
def _states(kinds, lists, out, first, last, table):
    numbers = table + COLUMNS + 24 * lists
    for row in range(first, last):
        out = _fields(kinds, out, row, table, numbers, lists, 0, 0)
    return out


def _topic(topic_kinds, kinds, lists, out, topic, table):
    """Encode the fields of a topic to ``out``: the next position."""
    raise NotImplementedError


@overload(_topic, jit_options=INLINED)
def _specialised_topic(topic_kinds, kinds, lists, out, topic, table):
    if not len(topic_kinds):
        return lambda topic_kinds, kinds, lists, out, topic, table: out
    kind = topic_kinds.types[0]
    if kind in (types.uint8, types.uint16):
        is_compact = kind == types.uint16

        def of_name(topic_kinds, kinds, lists, out, topic, table):
            out = _put_name(out, table, topic, is_compact)
            return _topic(topic_kinds[1:], kinds, lists, out, topic, table)

        return of_name
    if kind == types.complex128:

        def of_id(topic_kinds, kinds, lists, out, topic, table):
            move_16_bytes(load_int64(table + IDS) + 16 * topic, out)
            return _topic(topic_kinds[1:], kinds, lists, out + 16, topic, table)

        return of_id
    if kind in (types.uint32, types.uint64):
        is_compact = kind == types.uint64

        def of_partitions(topic_kinds, kinds, lists, out, topic, table):
            rows = load_int64(table + TOPIC_ROWS) + 8 * topic
            first, last = load_int64(rows), load_int64(rows + 8)
            if is_compact:
                out = _put_compact(out, last - first)
            else:
                store_network_int32(out, np.int32(last - first))
                out += 4
            out = _states(kinds, lists, out, first, last, table)
            return _topic(topic_kinds[1:], kinds, lists, out, topic, table)

        return of_partitions

    def of_tags(topic_kinds, kinds, lists, out, topic, table):
        store_byte(out, np.uint8(0))
        return _topic(topic_kinds[1:], kinds, lists, out + 1, topic, table)

    return of_tags


def writer(topic_kinds: tuple[Any, ...], kinds: tuple[Any, ...], compact: bool) -> Callable[[int, int, int, int], int]:
    """A function of (address, first, last, table) that encodes an array of these topics, or of these rows if
    ``topic_kinds`` is empty: the next position."""
    lists = sum(type(kind) in (np.float32, np.float64) for kind in kinds)

    @compiled
    def write(out, first, last, table):
        if compact:
            out = _put_compact(out, last - first)
        else:
            store_network_int32(out, np.int32(last - first))
            out += 4
        if len(topic_kinds) == 0:
            return _states(kinds, lists, out, first, last, table)
        for topic in range(first, last):
            out = _topic(topic_kinds, kinds, lists, out, topic, table)
        return out

    return write
