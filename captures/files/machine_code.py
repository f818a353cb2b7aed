"""Kernels: loops compiled by numba, whose machine code is kept on disk and runs without numba.

Loading numba, and what it caches, takes half a second of each process; loading LLVM, which links, a tenth of that. So
what is kept is linked already, but for processors and systems that `linking` does not know.

A kernel takes integers, booleans, arrays of numbers and NamedTuples of these, returns integers, booleans or a tuple of
them, and allocates nothing: so its code needs nothing of numba's.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import logging
import os
import platform
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from kce.cache import cache_folder
from kce.captures.errors import CaptureError
from kce.captures.files.linking import CannotLink, Image, link, load

log = logging.getLogger(__name__)

#: What a kernel is specialised for: an integer or a boolean; of an array (dtype, dimensions, whether it is contiguous,
#: whether it is read-only); of a NamedTuple its class and its members' kinds.
Kind = Any

#: Machine code that was not written again for so long is removed.
_KEPT_S = 60 * 86400

_DIGEST_BYTES = hashlib.sha256().digest_size

#: Of the C library; all other code that a kernel calls must be its own.
_KNOWN = frozenset({"memcpy", "memmove", "memset"})

#: Nothing allocates. Callees are inlined: an array is passed as seven numbers or more.
_OPTIONS = {"nogil": True, "_nrt": False, "forceinline": True}

_CONSTANTS = (int, float, str, bytes, np.generic)


class Code(NamedTuple):
    """What is kept of a kernel: an image, or what LLVM makes it from."""

    returned: str  # a letter for each member of what the kernel returns
    image: Image | None
    symbol: str = ""
    object_file: bytes = b""


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
        return njit(**_OPTIONS)(self._function)

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
        what = hashlib.sha256(self.content + repr((_platform(), *map(_described, kinds))).encode()).hexdigest()
        path = _folder() / f"{self._function.__module__}.{self._function.__name__}-{what[:32]}"
        kept = _read(path)
        if kept is None:
            _announce()
            with _allowed():
                kept = self._compile(kinds)
            try:
                _write(path, kept)
            except OSError as e:
                _announce_loss(e.strerror or str(e))
        with _allowed():
            return _callable(kept, kinds)

    def _compile(self, kinds: tuple[Kind, ...]) -> Code:
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
        symbol, returned = made.fndesc.llvm_func_name, _letters(made.fndesc.restype)
        try:
            return Code(returned, link(symbol, code))
        except CannotLink as e:  # of another processor or system
            log.debug("LLVM will link %s: %s", self._function.__name__, e)
            return Code(returned, None, symbol, code)

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


@contextlib.contextmanager
def _allowed() -> Iterator[None]:
    """Raises CaptureError where the system forbids memory that is written and then executed."""
    try:
        yield
    except PermissionError as e:
        raise CaptureError(
            "this system forbids machine code that a process has compiled, as SELinux does: "
            "captures cannot be read in bulk, nor analysed; kce decode needs none"
        ) from e


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


def _described(kind: Kind) -> Any:
    """What machine code depends on of a kind of argument: a member is passed in the place of its field."""
    if kind in (int, bool) or not isinstance(kind[0], type):
        return kind
    of: Any = kind[0]
    return of, of._fields, *map(_described, kind[1])


def _letters(returned: Any) -> str:
    """A letter for each member of what numba says a function returns."""
    from numba import types

    if isinstance(returned, types.BaseTuple):
        members: Any = returned
        return "".join(map(_letters, members))
    return {types.none: "", types.boolean: "?", types.int64: "q"}[returned]


def _callable(code: Code, kinds: tuple[Kind, ...]) -> Callable[..., Any]:
    """The function takes the numbers that stand for arguments of these kinds."""
    address = load(code.image) if code.image else _linked_by_llvm(code)
    passed = [each for kind in kinds for each in _passed(kind)]
    # numba's calling convention: where to put what is returned, and an exception; a status
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *passed)
    function = prototype(address)
    result = struct.Struct(code.returned)

    def run(*values: int) -> Any:
        put = ctypes.create_string_buffer(result.size)
        if function(put, ctypes.byref(ctypes.c_void_p()), *values):
            raise RuntimeError(f"machine code failed, called for {kinds}")
        unpacked = result.unpack_from(put)
        return unpacked[0] if len(unpacked) == 1 else unpacked or None

    return run


def _linked_by_llvm(code: Code) -> int:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object_file))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(code.symbol))


#: they own the code that LLVM has linked
_engines: list[Any] = []


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
    """What machine code depends on besides the kernel."""
    changed_ns = []
    for library in ("numba", "llvmlite"):
        found = importlib.util.find_spec(library)
        changed_ns.append(os.stat(found.origin).st_mtime_ns if found is not None and found.origin else 0)
    return _OPTIONS, sys.implementation.cache_tag, sys.platform, *changed_ns, *_processor()


def _processor() -> tuple[str, ...]:
    """Its name and features. Linux is asked for them, as it takes 50 ms to load LLVM."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            first = file.read(8192).decode(errors="replace").split("\n\n")[0]
        return platform.machine(), *(line for line in first.splitlines() if line.startswith(_OF_PROCESSOR))
    except OSError:
        import llvmlite.binding as llvm

        return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


#: in /proc/cpuinfo of x86 and of ARM
_OF_PROCESSOR = "vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU variant", "CPU part", "Features"


def _folder() -> Path:
    return cache_folder() / "kernels"


def _read(path: Path) -> Code | None:
    """What is kept there, if it is whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
        return None
    header, _, code = content.partition(b"\n")
    returned, symbol, image = json.loads(header)
    if image is None:
        return Code(returned, None, symbol, code)
    entry, addresses, functions = image
    return Code(returned, Image(entry, addresses, functions, code))


def _write(path: Path, kept: Code) -> None:
    import tempfile

    image = kept.image
    header = json.dumps((kept.returned, kept.symbol, image and image[:-1])).encode()
    content = header + b"\n" + (image.content if image else kept.object_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(hashlib.sha256(content).digest() + content)
    Path(file.name).replace(path)
    for other in path.parent.iterdir():
        with contextlib.suppress(OSError):  # another process renamed or removed it, or it is none of ours
            if time.time() - other.stat().st_mtime > _KEPT_S:
                other.unlink()
