"""Machine code that is linked once, when it is compiled, and then only copied to memory: no linker has to be loaded.

Of ELF object files for x86-64 (System V ABI, AMD64 supplement, chapter 4), those that numba's compiler
writes: code and constants, with absolute addresses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from typing import NamedTuple

_HEADER = struct.Struct("<16s2HI3QI6H")
_SECTION = struct.Struct("<2I4Q2I2Q")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_ADDRESS = struct.Struct("<Q")

_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4
_WRITABLE, _LOADED = 1, 2
_UNDEFINED, _RESERVED = 0, 0xFF00
_R_X86_64_64 = 1


class CannotLink(Exception):
    """An object file of another kind than those described above."""


class Image(NamedTuple):
    """Code and constants, to be placed at the beginning of a page."""

    entry: int  # offset of the function
    addresses: list[tuple[int, int]]  # (where, offset of what it is the address of)
    functions: list[tuple[int, str]]  # (where, the function of the C library that it is the address of)
    content: bytes


def link(symbol: str, file: bytes) -> Image:
    """Link the function ``symbol`` of an object file.

    Raises CannotLink.
    """
    if file[:6] != _ELF64_LITTLE_ENDIAN:
        raise CannotLink("not a little-endian ELF file of 64 bits")
    _, kind, machine, _, _, _, first, _, _, _, _, size, number, _ = _HEADER.unpack_from(file)
    if (kind, machine, size) != (_RELOCATABLE, _X86_64, _SECTION.size):
        raise CannotLink("not an object file for x86-64")
    sections = [_SECTION.unpack_from(file, first + index * size) for index in range(number)]

    content, places = bytearray(), {}
    for index, (_, kind, flags, _, offset, length, _, _, alignment, _) in enumerate(sections):
        if not flags & _LOADED:
            continue
        if kind != _PROGBITS or flags & _WRITABLE or alignment > mmap.PAGESIZE:
            raise CannotLink("a section that is neither code nor constants")
        content += bytes(-len(content) % max(1, alignment))
        places[index] = len(content)
        content += file[offset : offset + length]

    (table,) = (section for section in sections if section[1] == _SYMTAB)
    names = sections[table[6]][4]
    symbols = list(_SYMBOL.iter_unpack(file[table[4] : table[4] + table[5]]))

    def name_of(of: int) -> str:
        return file[names + of : file.index(b"\0", names + of)].decode()

    addresses, functions = [], []
    for _, kind, _, _, offset, length, _, target, _, _ in sections:
        if kind != _RELA or target not in places:
            continue
        for place, relocation, index, addend in _RELOCATION.iter_unpack(file[offset : offset + length]):
            name, _, _, section, value, _ = symbols[index]
            where = places[target] + place
            if relocation != _R_X86_64_64 or (section == _UNDEFINED and addend):
                raise CannotLink(f"a relocation of type {relocation}")
            if section == _UNDEFINED:
                functions.append((where, name_of(name)))
            elif section in places:
                addresses.append((where, places[section] + value + addend))
            else:
                raise CannotLink("the address of what is not loaded")
    for name, _, _, section, value, _ in symbols:
        if _UNDEFINED < section < _RESERVED and name_of(name) == symbol:
            return Image(places[section] + value, addresses, functions, bytes(content))
    raise CannotLink(f"no function {symbol}")


def is_allowed() -> bool:
    """Whether the system lets this process run code that it has written, which SELinux or systemd may forbid."""
    try:
        load(Image(0, [], [], b"\xc3"))
    except OSError:
        return False
    return True


def load(image: Image) -> int:
    """The address of the function. Its memory is never given back: another thread may run it until the process ends.

    Raises OSError if the system forbids to run it.
    """
    size = len(image.content)
    base = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base == _FAILED:
        raise _error()
    content = bytearray(image.content)
    for where, offset in image.addresses:
        _ADDRESS.pack_into(content, where, base + offset)
    for where, name in image.functions:
        _ADDRESS.pack_into(content, where, ctypes.cast(_library[name], ctypes.c_void_p).value)
    ctypes.memmove(base, bytes(content), size)
    if _mprotect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
        raise _error()
    return int(base) + image.entry


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"no memory for machine code: {os.strerror(code)}")


_library = ctypes.CDLL(None, use_errno=True)
_mmap, _mprotect = _library.mmap, _library.mprotect
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
_mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FAILED = ctypes.c_void_p(-1).value
