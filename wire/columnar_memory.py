"""Loads and stores at addresses, for the kernels of `wire.columnar`. Whoever calls a kernel keeps the memory alive.

A field's kind is a number of a type of its own, because numba specialises by type: the fields of a structure are a
tuple of kinds, and a kernel for such a tuple is straight code without a loop over fields.
"""

from __future__ import annotations

import contextlib

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kce.cache import user_cache

INT32, INT8, BOOL = np.int32(0), np.int8(0), np.bool_(False)
#: an array of int32; a string; the partitions of a topic: each with a length of 4, 2 and 4 bytes, or a compact one
INTS, COMPACT_INTS = np.float32(0), np.float64(0)
NAME, COMPACT_NAME = np.uint8(0), np.uint16(0)
PARTITIONS, COMPACT_PARTITIONS = np.uint32(0), np.uint64(0)
#: a uuid; tagged fields
ID, TAGS = np.complex128(0), np.complex64(0)

MAX_NAME_BYTES = 32767
#: at least so many bytes after each column can be written, as four numbers or 16 bytes are moved at once
SLACK_BYTES = 16


def compiled(function):
    """Kept in a folder of numba's choice, beside its module or in the user's cache, if one can be written."""
    if user_cache() is not None:  # numba would make a folder called `~`
        with contextlib.suppress(RuntimeError):
            return numba.njit(cache=True, nogil=True)(function)
    return numba.njit(nogil=True)(function)


#: part of its callers: a call for each field of a state would take most of the time
inlined = numba.njit(forceinline=True)
INLINED = {"forceinline": True}

_BYTE, _WORD, _LONG = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_BYTES = ir.VectorType(_BYTE, 16)
#: reverses the bytes of each of four numbers
_SWAP = ir.Constant(ir.VectorType(_WORD, 16), [4 * (i // 4) + 3 - i % 4 for i in range(16)])


def _load(kind, of, swap=False):
    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            value = builder.load(builder.inttoptr(arguments[0], of.as_pointer()), align=1)
            return builder.bswap(value) if swap else value

        return kind(types.int64), generate

    return load


def _store(kind, of, swap=False):
    @intrinsic
    def store(typing_context, address, value):
        def generate(context, builder, signature, arguments):
            value = builder.bswap(arguments[1]) if swap else arguments[1]
            builder.store(value, builder.inttoptr(arguments[0], of.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, kind), generate

    return store


load_byte, store_byte = _load(types.uint8, _BYTE), _store(types.uint8, _BYTE)
load_int32, store_int32 = _load(types.int32, _WORD), _store(types.int32, _WORD)
load_int64, store_int64 = _load(types.int64, _LONG), _store(types.int64, _LONG)
#: big-endian
load_network_int32, store_network_int32 = _load(types.int32, _WORD, swap=True), _store(types.int32, _WORD, swap=True)


def _move(swap):
    @intrinsic
    def move(typing_context, source, target):
        def generate(context, builder, signature, arguments):
            source, target = (builder.inttoptr(address, _BYTES.as_pointer()) for address in arguments)
            value = builder.load(source, align=1)
            if swap:
                value = builder.shuffle_vector(value, ir.Constant(_BYTES, ir.Undefined), _SWAP)
            builder.store(value, target, align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    return move


#: copy 16 bytes; copy four numbers and reverse the bytes of each
move_16_bytes, move_4_swapped = _move(swap=False), _move(swap=True)


@inlined
def move_bytes(source, target, count):
    """Copy bytes; up to 15 more are read and written behind them."""
    for i in range(0, count, 16):
        move_16_bytes(source + i, target + i)


@compiled
def are_equal(one, other, count):
    for i in range(count):  # noqa: SIM110 - numba compiles no generators
        if load_byte(one + i) != load_byte(other + i):
            return False
    return True
