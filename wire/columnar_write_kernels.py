"""The encoder of `wire.columnar`: topics and partition states from flat arrays into bytes (see `columnar_kernels`)."""

from __future__ import annotations

import numpy as np

from kce.wire.columnar_kernels import (
    ID,
    INT32,
    INTS,
    LEAST_RUN,
    NAME,
    PARTITIONS,
    TAGS,
    compiled,
    load_int32,
    load_int64,
    load_uint8,
    put_int32,
)


@compiled
def put_length(out, at, n, compact, size):
    if not compact:
        if size == 4:
            put_int32(out, at, n)
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


@compiled
def _put_name(out, at, names, start, end, compact):
    at = put_length(out, at, end - start, compact, 2)
    out[at : at + end - start] = names[start:end]
    return at + end - start


@compiled
def ascends(ends, count, most):
    """Whether ``count`` offsets ascend within 0 .. ``most``."""
    before = np.int64(0)
    for i in range(count):
        if ends[i] < before:
            return False
        before = ends[i]
    return before <= most


@compiled
def write_partitions(out, at, first, last, plan, topics, compact, numbers, lists, ends, names, name_ends):
    """Encode rows ``first`` to ``last``, with topic names if the plan has them; returns the next position."""
    shape = np.empty(len(plan), np.int64)
    row = first
    while row < last:
        run = _same_lengths(row, last, plan, topics, compact, ends)
        if run >= LEAST_RUN:
            at = _write_run(out, at, row, run, plan, topics, compact, shape, numbers, lists, ends, names, name_ends)
            row += run
            continue
        n_numbers = n_lists = 0
        for kind in plan:
            if kind == INT32:
                put_int32(out, at, load_int32(numbers[n_numbers] + 4 * row))
                at += 4
                n_numbers += 1
            elif kind == INTS:
                begin, n = load_int64(ends[n_lists] + 8 * row), _length_of(ends[n_lists], row)
                at = put_length(out, at, n, compact, 4)
                for i in range(begin, begin + n):
                    put_int32(out, at, load_int32(lists[n_lists] + 4 * i))
                    at += 4
                n_lists += 1
            elif kind == TAGS:
                out[at] = 0
                at += 1
            elif kind == NAME:
                topic = topics[row]
                at = _put_name(out, at, names, name_ends[topic], name_ends[topic + 1], compact)
            else:
                out[at] = load_uint8(numbers[n_numbers] + row)
                n_numbers += 1
                at += 1
        row += 1
    return at


@compiled
def _same_lengths(row, last, plan, topics, compact, ends):
    """How many rows from ``row`` have arrays of the same lengths and, if the plan has names, the same topic."""
    n_lists, named = 0, False
    for kind in plan:
        named |= kind == NAME
        if kind == INTS:
            if compact and _length_of(ends[n_lists], row) > 126:
                return 0  # multi-byte lengths are encoded row by row
            n_lists += 1
    for other in range(row + 1, last):
        if named and topics[other] != topics[row]:
            return other - row
        for k in range(n_lists):
            if _length_of(ends[k], other) != _length_of(ends[k], row):
                return other - row
    return last - row


@compiled
def _length_of(ends, row):
    return load_int64(ends + 8 * row + 8) - load_int64(ends + 8 * row)


@compiled
def _write_run(out, start, row, run, plan, topics, compact, shape, numbers, lists, ends, names, name_ends):
    """Encode ``run`` rows whose arrays have the same lengths; returns the next position."""
    size = n_lists = 0
    for k in range(len(plan)):
        shape[k] = size
        if plan[k] == INT32:
            size += 4
        elif plan[k] == INTS:
            size += (1 if compact else 4) + 4 * _length_of(ends[n_lists], row)
            n_lists += 1
        elif plan[k] == NAME:
            begin, end = name_ends[topics[row]], name_ends[topics[row] + 1]
            size = _put_name(out, start + size, names, begin, end, compact) - start
        else:
            size += 1
    n_numbers = n_lists = 0
    for k in range(len(plan)):
        kind, at = plan[k], start + shape[k]
        if kind == INT32:
            values = numbers[n_numbers] + 4 * row
            for j in range(run):
                put_int32(out, at + j * size, load_int32(values + 4 * j))
            n_numbers += 1
        elif kind == INTS:
            begin, n = load_int64(ends[n_lists] + 8 * row), _length_of(ends[n_lists], row)
            for j in range(run):
                put_length(out, at + j * size, n, compact, 4)
            at += 1 if compact else 4
            values = lists[n_lists] + 4 * begin
            for i in range(n):
                for j in range(run):
                    put_int32(out, at + j * size + 4 * i, load_int32(values + 4 * (j * n + i)))
            n_lists += 1
        elif kind == NAME:
            n = (shape[k + 1] if k + 1 < len(plan) else size) - shape[k]
            for j in range(1, run):
                for i in range(n):
                    out[at + j * size + i] = out[at + i]
        elif kind == TAGS:
            for j in range(run):
                out[at + j * size] = 0
        else:
            values = numbers[n_numbers] + row
            for j in range(run):
                out[at + j * size] = load_uint8(values + j)
            n_numbers += 1
    return start + run * size


@compiled
def write_topics(
    out, at, first, last, topic_plan, plan, rows, compact, numbers, lists, ends, names, name_ends, ids
):  # fmt: skip
    """Encode topics ``first`` to ``last``, whose rows begin at ``rows[topic]``; returns the next position."""
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
