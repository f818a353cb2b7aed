"""Kernels: loops compiled by numba, whose machine code is kept on disk and runs without numba.

Loading numba, and what it caches, takes half a second of each process; linking kept machine code takes a tenth of that.
A kernel takes integers, booleans, arrays of numbers and NamedTuples of these, returns integers, booleans or a tuple of
them, and allocates nothing: so its code needs nothing of numba's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from kce.cache import cache_folder

log = logging.getLogger(__name__)

#: What a kernel is specialised for: an integer or a boolean; of an array (dtype, dimensions, whether it is contiguous,
#: whether it is read-only); of a NamedTuple its class and its members' kinds.
Kind = Any

#: Machine code that was not written again for so long is removed.
_KEPT_S = 60 * 86400

_DIGEST_BYTES = hashlib.sha256().digest_size

#: Of the C library; all other code that a kernel calls must be its own.
_KNOWN = frozenset({"memcpy", "memmove", "memset"})

_CONSTANTS = (int, float, str, bytes, np.generic)


def compiled(function: Callable[..., Any]) -> Kernel:
    return Kernel(function)


class Kernel:
    """Compiled for the kinds of arguments that it is called with. Other kernels call it as a function of numba."""

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, FunctionType)
        functools.update_wrapper(self, function)
        self._function = function
        self._linked: dict[Kind, Callable[..., Any]] = {}
        self._last: list[tuple[Any, Kind, tuple[int, ...]]] = []

    def __call__(self, *arguments: Any) -> Any:
        kinds, values = [], []
        last = self._last
        if len(last) != len(arguments):
            last = self._last = [(None, None, ())] * len(arguments)
        for index, argument in enumerate(arguments):
            if type(argument) is int:
                kinds.append(int)
                values.append(argument)
                continue
            known = last[index]
            if known[0] is not argument:
                known = last[index] = (argument, *_lowered(argument))
            kinds.append(known[1])
            values += known[2]
        of = tuple(kinds)
        run = self._linked.get(of)
        if run is None:
            run = self._linked[of] = self._link(of)
        return run(*values)

    @functools.cached_property
    def dispatcher(self) -> Any:
        import numba

        njit: Any = numba.njit
        return njit(nogil=True, _nrt=False)(self._function)  # without what allocates

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    @functools.cached_property
    def content(self) -> bytes:
        """A hash of what machine code depends on besides the kinds of arguments: bytecode, constants and callees."""
        code, known = self._function.__code__, self._function.__globals__
        found = hashlib.sha256(repr((code.co_code, code.co_varnames, code.co_names)).encode())
        for constant in code.co_consts:
            found.update(_text(constant))
        found.update(_text(self._function.__defaults__))
        for name in code.co_names:
            value = known.get(name)
            found.update(value.content if isinstance(value, Kernel) else _text(value))
            if isinstance(value, ModuleType):
                for attribute in code.co_names:
                    found.update(_text(vars(value).get(attribute)))
        return found.digest()

    def _link(self, kinds: tuple[Kind, ...]) -> Callable[..., Any]:
        what = hashlib.sha256(self.content + repr((_platform(), kinds)).encode()).hexdigest()
        path = _folder() / f"{self._function.__module__}.{self._function.__name__}-{what[:32]}"
        kept = _read(path)
        if kept is None:
            _announce()
            kept = self._compile(kinds)
            try:
                _write(path, kept)
            except OSError as e:
                _announce_loss(e.strerror or str(e))
        return _callable(*kept, kinds)

    def _compile(self, kinds: tuple[Kind, ...]) -> tuple[str, str, bytes]:
        """(symbol, types of what it returns, an object file)"""
        import numba.core.compiler
        from numba.core.compiler_lock import global_compiler_lock
        from numba.core.registry import cpu_target

        compiler: Any = numba.core.compiler
        typing, target = cpu_target.typing_context, cpu_target.target_context
        flags = compiler.Flags()
        flags.release_gil = flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        types = tuple(map(self._numba_type_of, kinds))
        with global_compiler_lock:
            made = compiler.compile_extra(typing, target, self._function, types, None, flags, {})
            made.library.get_pointer_to_function(made.fndesc.llvm_func_name)  # writes the object file
            code = made.library._get_compiled_object()
        foreign = {f.name for f in made.library._final_module.functions if f.is_declaration and f.name[:5] != "llvm."}
        if foreign - _KNOWN:
            raise TypeError(f"the machine code of {self._function.__name__} needs {sorted(foreign - _KNOWN)}")
        return made.fndesc.llvm_func_name, _letters(made.fndesc.restype), code

    def _numba_type_of(self, kind: Kind) -> Any:
        import numba.core.types
        from numba.np import numpy_support

        types: Any = numba.core.types
        if kind in (int, bool):
            return types.int64 if kind is int else types.boolean
        if isinstance(kind[0], type):
            members = [self._numba_type_of(member) for member in kind[1]]
            return types.NamedTuple(members, kind[0])
        dtype, dimensions, is_contiguous, is_readonly = kind
        of = numpy_support.from_dtype(np.dtype(dtype))
        return types.Array(of, dimensions, "C" if is_contiguous else "A", readonly=is_readonly)


@functools.cache
def _announce() -> None:
    log.warning("compiling what reads large captures, which is kept in %s: some 15 seconds, once", _folder())


@functools.cache
def _announce_loss(why: str) -> None:
    log.warning(
        "%s cannot be written (%s): every process compiles again, unless XDG_CACHE_HOME names a folder that can be",
        _folder(), why,
    )  # fmt: skip


def _lowered(argument: Any) -> tuple[Kind, tuple[int, ...]]:
    """The kind of an argument, and the numbers that stand for it in a call of machine code."""
    if isinstance(argument, np.ndarray):
        of = argument.__array_interface__
        shape = argument.shape
        address, is_readonly = of["data"]
        of_array = argument.dtype.str, len(shape), of["strides"] is None, is_readonly
        return of_array, (0, 0, argument.size, argument.itemsize, address, *shape, *argument.strides)
    if isinstance(argument, (bool, np.bool_)):
        return bool, (int(argument),)
    if isinstance(argument, (int, np.integer)):
        return int, (int(argument),)
    lowered = [_lowered(member) for member in argument]
    kind = type(argument), tuple(kind for kind, _ in lowered)
    return kind, tuple(value for _, values in lowered for value in values)


def _letters(returned: Any) -> str:
    """A letter for each member of what numba says a function returns."""
    from numba import types

    if isinstance(returned, types.BaseTuple):
        members: Any = returned
        return "".join(map(_letters, members))
    return {types.none: "", types.boolean: "?", types.int64: "q"}[returned]


def _callable(symbol: str, returned: str, code: bytes, kinds: tuple[Kind, ...]) -> Callable[..., Any]:
    """Link an object file. The function takes the numbers that stand for arguments of these kinds."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    passed = [each for kind in kinds for each in _passed(kind)]
    # numba's calling convention: where to put what is returned, and an exception; a status
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *passed)
    function = prototype(engine.get_function_address(symbol))
    result = struct.Struct(returned)

    def run(*values: int) -> Any:
        put = ctypes.create_string_buffer(result.size)
        if function(put, ctypes.byref(ctypes.c_void_p()), *values):
            raise RuntimeError(f"{symbol} failed")
        unpacked = result.unpack_from(put)
        return unpacked[0] if len(unpacked) == 1 else unpacked or None

    return run


#: they own the linked code
_engines: list[Any] = []


@functools.cache
def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(jit=True)


def _passed(kind: Kind) -> list[type[ctypes._SimpleCData[Any]]]:
    if kind in (int, bool):
        return [ctypes.c_int64 if kind is int else ctypes.c_bool]
    if isinstance(kind[0], type):
        return [each for member in kind[1] for each in _passed(member)]
    return [ctypes.c_int64] * (5 + 2 * kind[1])


def _text(value: Any) -> bytes:
    """A constant; nothing of other values."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}".encode() + value.tobytes()
    if isinstance(value, tuple):
        return b"(%b)" % b"".join(map(_text, value))
    return b"%b," % (repr(value).encode() if isinstance(value, _CONSTANTS) else b"")


@functools.cache
def _platform() -> tuple[Any, ...]:
    numba = importlib.util.find_spec("numba")
    changed_ns = os.stat(numba.origin).st_mtime_ns if numba is not None and numba.origin else 0
    processor = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return sys.implementation.cache_tag, llvmlite.__version__, changed_ns, *processor


def _folder() -> Path:
    return cache_folder() / "kernels"


def _read(path: Path) -> tuple[str, str, bytes] | None:
    """(symbol, types of what it returns, an object file), if it is there and whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
        return None
    symbol, returned, code = content.split(b"\n", 2)
    return symbol.decode(), returned.decode(), code


def _write(path: Path, kept: tuple[str, str, bytes]) -> None:
    symbol, returned, code = kept
    content = f"{symbol}\n{returned}\n".encode() + code
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(hashlib.sha256(content).digest() + content)
    Path(file.name).replace(path)
    for other in path.parent.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT_S:
            other.unlink()
