"""The decoder of `wire.columnar`, compiled by numba: topics and partition states from bytes into flat arrays.

A partition state is a row. All memory is given as addresses, in a `Table`: the caller makes the arrays long enough for
any input of that size. Every read is checked against the remaining bytes: where a field begins, at least the least
size of it and of those after it remains. A position of -1 means rejected.
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
    SLACK_BYTES,
    are_equal,
    compiled,
    inlined,
    load_byte,
    load_int64,
    load_network_int32,
    move_4_swapped,
    move_16_bytes,
    move_bytes,
    store_byte,
    store_int32,
    store_int64,
)

REFUSED = np.int64(-1)
#: as a position: an array field has more values than the columns have room for
NO_ROOM = np.int64(-2)

# A table of int64: counters, and the greatest number of values of an array field; then addresses. A topic's rows begin
# at TOPIC_ROWS, its name ends at TOPIC_NAME_ENDS within TOPIC_NAMES, its id is in TOPIC_IDS; ROW_TOPICS has the topic
# of each row. Then come the addresses of the columns of arrays' values, of arrays' offsets, how many values each of
# them has, and the addresses of the columns of numbers.
ROWS, TOPICS, NAME_BYTES, LAST_NAME, LAST_NAME_BYTES, MOST_VALUES = range(0, 48, 8)
TOPIC_ROWS, TOPIC_NAMES, TOPIC_NAME_ENDS, TOPIC_IDS, ROW_TOPICS = range(48, 88, 8)
COLUMNS = 88


@compiled
def _uvarint(at, end):
    """(value, next position); rejected if longer than five bytes, 32 bits, or the remaining bytes."""
    value = np.int64(0)
    for shift in range(0, 35, 7):
        if at >= end:
            break
        byte = np.int64(load_byte(at))
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, at) if value <= 0xFFFFFFFF else (value, REFUSED)
    return value, REFUSED


@inlined
def compact_length(at, end):
    """(count or length, next position); null is rejected: none of these fields is nullable."""
    if at < end and load_byte(at) < 0x80:
        n, at = np.int64(load_byte(at)) - 1, at + 1
    else:
        n, at = _uvarint(at, end)
        n -= 1
    return (n, at) if n >= 0 else (n, REFUSED)


@inlined
def array_length(at, end):
    """As ``compact_length``, of four bytes."""
    if at + 4 > end:
        return np.int64(0), REFUSED
    n = np.int64(load_network_int32(at))
    return (n, at + 4) if n >= 0 else (n, REFUSED)


@inlined
def _string_length(at, end):
    if at + 2 > end:
        return np.int64(0), REFUSED
    n = (np.int64(load_byte(at)) << 8) | np.int64(load_byte(at + 1))
    return (n, at + 2) if n <= MAX_NAME_BYTES else (n, REFUSED)


@compiled
def _skip_tags(at, end):
    if at < end and load_byte(at) == 0:
        return at + 1
    count, at = _uvarint(at, end)
    if at < 0 or count > (end - at) // 2:
        return REFUSED
    last = np.int64(-1)
    for _ in range(count):
        tag, at = _uvarint(at, end)
        if at < 0 or tag <= last:
            return REFUSED
        last = tag
        size, at = _uvarint(at, end)
        if at < 0 or size > end - at:
            return REFUSED
        at += size
    return at


@inlined
def _begin_topic(table, row):
    topic = load_int64(table + TOPICS)
    store_int64(load_int64(table + TOPIC_ROWS) + 8 * topic, row)
    store_int64(table + TOPICS, topic + 1)
    return topic


@inlined
def _put_name(table, topic, at, n, end):
    filled = load_int64(table + NAME_BYTES)
    target = load_int64(table + TOPIC_NAMES) + filled
    if end - at >= n + 16:
        move_bytes(at, target, n)
    else:
        for i in range(n):
            store_byte(target + i, load_byte(at + i))
    store_int64(table + NAME_BYTES, filled + n)
    store_int64(load_int64(table + TOPIC_NAME_ENDS) + 8 * (topic + 1), filled + n)


@compiled
def _state_name(table, at, n, end, row):
    """The topic of a state that carries its name: a topic begins where the name changes."""
    before, before_bytes = load_int64(table + LAST_NAME), load_int64(table + LAST_NAME_BYTES)
    if before == 0 or before_bytes != n or not are_equal(before, at, n):
        _put_name(table, _begin_topic(table, row), at, n, end)
        store_int64(table + LAST_NAME, at)
        store_int64(table + LAST_NAME_BYTES, n)


@inlined
def _put_ints(table, columns, lists, m, at, n, end, row):
    """Copy the values of an array field, and store its offset. False without room for them."""
    counter = columns + 8 * (2 * lists + m)
    filled = load_int64(counter)
    if filled + n > load_int64(table + MOST_VALUES):
        return False
    target = load_int64(columns + 8 * m) + 4 * filled
    if n <= 4 and end - at >= 16:
        move_4_swapped(at, target)
    else:
        for i in range(n):
            store_int32(target + 4 * i, load_network_int32(at + 4 * i))
    store_int64(counter, filled + n)
    store_int64(load_int64(columns + 8 * (lists + m)) + 8 * (row + 1), filled + n)
    return True


def _fields(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
    """Decode the fields of a state at ``at``: the next position.

    ``least`` is the least size of ``kinds``; ``numbers`` the address of the n-th number's column's address, ``columns``
    that of the first of ``lists`` array fields; n and m count the numbers and array fields before."""
    raise NotImplementedError


@overload(_fields, jit_options=INLINED)
def _specialised_fields(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
    if not len(kinds):
        return lambda kinds, at, end, least, row, table, numbers, columns, lists, n, m: at
    kind = kinds.types[0]
    if kind == types.int32:

        def of_number(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
            store_int32(load_int64(numbers + 8 * n) + 4 * row, load_network_int32(at))
            return _fields(kinds[1:], at + 4, end, least - 4, row, table, numbers, columns, lists, n + 1, m)

        return of_number
    if kind in (types.int8, types.boolean):
        is_bool = kind == types.boolean

        def of_byte(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
            byte = load_byte(at)
            store_byte(load_int64(numbers + 8 * n) + row, np.uint8(byte != 0) if is_bool else byte)
            return _fields(kinds[1:], at + 1, end, least - 1, row, table, numbers, columns, lists, n + 1, m)

        return of_byte
    if kind in (types.float32, types.float64):
        size, length = (4, array_length) if kind == types.float32 else (1, compact_length)

        def of_ints(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
            count, at = length(at, end)
            if at < 0 or 4 * count > end - at - (least - size):
                return REFUSED
            if not _put_ints(table, columns, lists, m, at, count, end, row):
                return NO_ROOM
            at += 4 * count
            return _fields(kinds[1:], at, end, least - size, row, table, numbers, columns, lists, n, m + 1)

        return of_ints
    if kind in (types.uint8, types.uint16):
        size, length = (2, _string_length) if kind == types.uint8 else (1, compact_length)

        def of_name(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
            count, at = length(at, end)
            if at < 0 or count > MAX_NAME_BYTES or count > end - at - (least - size):
                return REFUSED
            _state_name(table, at, count, end, row)
            return _fields(kinds[1:], at + count, end, least - size, row, table, numbers, columns, lists, n, m)

        return of_name

    def of_tags(kinds, at, end, least, row, table, numbers, columns, lists, n, m):
        at = _skip_tags(at, end)
        if at < 0 or end - at < least - 1:
            return REFUSED
        return _fields(kinds[1:], at, end, least - 1, row, table, numbers, columns, lists, n, m)

    return of_tags


@inlined
def _states(kinds, least, lists, at, end, count, table):
    """Decode ``count`` states at ``at``: the next position."""
    row = load_int64(table + ROWS)
    numbers = table + COLUMNS + 24 * lists
    columns = table + COLUMNS
    row_topics = load_int64(table + ROW_TOPICS)
    for _ in range(count):
        if end - at < least:
            return REFUSED
        at = _fields(kinds, at, end, least, row, table, numbers, columns, lists, 0, 0)
        if at < 0:
            return at
        store_int64(row_topics + 8 * row, load_int64(table + TOPICS) - 1)
        row += 1
    store_int64(table + ROWS, row)
    return at


def _topic(topic_kinds, kinds, least, lists, at, end, topic, table):
    """Decode the fields of a topic at ``at``: the next position."""
    raise NotImplementedError


@overload(_topic, jit_options=INLINED)
def _specialised_topic(topic_kinds, kinds, least, lists, at, end, topic, table):
    if not len(topic_kinds):
        return lambda topic_kinds, kinds, least, lists, at, end, topic, table: at
    kind = topic_kinds.types[0]
    if kind in (types.uint8, types.uint16):
        length = _string_length if kind == types.uint8 else compact_length

        def of_name(topic_kinds, kinds, least, lists, at, end, topic, table):
            count, at = length(at, end)
            if at < 0 or count > min(end - at, MAX_NAME_BYTES):
                return REFUSED
            _put_name(table, topic, at, count, end)
            return _topic(topic_kinds[1:], kinds, least, lists, at + count, end, topic, table)

        return of_name
    if kind == types.complex128:

        def of_id(topic_kinds, kinds, least, lists, at, end, topic, table):
            if end - at < 16:
                return REFUSED
            move_16_bytes(at, load_int64(table + TOPIC_IDS) + 16 * topic)
            return _topic(topic_kinds[1:], kinds, least, lists, at + 16, end, topic, table)

        return of_id
    if kind in (types.uint32, types.uint64):
        length = array_length if kind == types.uint32 else compact_length

        def of_partitions(topic_kinds, kinds, least, lists, at, end, topic, table):
            count, at = length(at, end)
            if at < 0 or count > (end - at) // least:
                return REFUSED
            at = _states(kinds, least, lists, at, end, count, table)
            if at < 0:
                return at
            return _topic(topic_kinds[1:], kinds, least, lists, at, end, topic, table)

        return of_partitions

    def of_tags(topic_kinds, kinds, least, lists, at, end, topic, table):
        at = _skip_tags(at, end)
        if at < 0:
            return REFUSED
        return _topic(topic_kinds[1:], kinds, least, lists, at, end, topic, table)

    return of_tags


def reader(
    topic_kinds: tuple[Any, ...], kinds: tuple[Any, ...], least: int, least_state: int, compact: bool
) -> Callable[[int, int, int], int]:
    """A function of (start, end, table) that decodes the array of topics, or of states if ``topic_kinds`` is empty, at
    the address ``start``: the next position. ``least`` and ``least_state``: least sizes of an element and a state."""
    lists = sum(type(kind) in (np.float32, np.float64) for kind in kinds)
    if not topic_kinds:

        @compiled
        def read_states(at, end, table):
            count, at = compact_length(at, end) if compact else array_length(at, end)
            if at < 0 or count > (end - at) // least:
                return REFUSED
            store_int64(table + LAST_NAME, 0)
            return _states(kinds, least_state, lists, at, end, count, table)

        return read_states

    @compiled
    def read_topics(at, end, table):
        count, at = compact_length(at, end) if compact else array_length(at, end)
        if at < 0 or count > (end - at) // least:
            return REFUSED
        for _ in range(count):
            topic = _begin_topic(table, load_int64(table + ROWS))
            at = _topic(topic_kinds, kinds, least_state, lists, at, end, topic, table)
            if at < 0:
                return at
        return at

    return read_topics


@compiled
def announced(at, end, compact):
    """The length of the array at ``at``; 0 if it has none."""
    count, at = compact_length(at, end) if compact else array_length(at, end)
    return count if at >= 0 else np.int64(0)


@compiled
def address(array):
    return array.ctypes.data


@compiled
def lay_out(table, memory, names, rows, values, topics, numbers, lists, has_ids):
    """Fill ``table`` with addresses in ``memory``, for at most so many rows, values of an array field, and topics.

    Returns the address of ``memory``. Every column begins at a multiple of eight bytes.
    """
    base = at = memory.ctypes.data
    first = COLUMNS // 8
    table[TOPIC_NAMES // 8] = names.ctypes.data
    table[MOST_VALUES // 8] = values
    for k in range(lists):
        table[first + lists + k] = at
        store_int64(at, 0)
        at += 8 * (rows + 1)
    table[ROW_TOPICS // 8] = at
    at += 8 * rows
    table[TOPIC_ROWS // 8] = at
    at += 8 * topics
    table[TOPIC_NAME_ENDS // 8] = at
    store_int64(at, 0)
    at += 8 * (topics + 1)
    table[TOPIC_IDS // 8] = at
    at += 16 * topics * has_ids
    for k in range(lists):
        table[first + k] = at
        at += 4 * values // 8 * 8 + SLACK_BYTES + 8
    for k in range(numbers):
        table[first + 3 * lists + k] = at
        at += (4 * rows + 7) // 8 * 8
    return base
