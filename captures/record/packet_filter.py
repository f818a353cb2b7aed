"""A filter for the kernel (classic BPF, as in bpf(4) and Linux' socket filters): TCP to or from given ports."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_INDEXED = 0x48
_LOAD_IP_HEADER_BYTES = 0xB1  # X = 4 * (byte & 15)
_JUMP_IF_EQUAL, _JUMP_IF_SET = 0x15, 0x45
_RETURN = 0x06

#: Linux' extensions: the EtherType, and offsets that count from the network layer, whatever is before it
_ETHERTYPE = 0xFFFFF000
_NETWORK = 0xFFF00000

_ALL, _NOTHING = 0x40000, 0

#: IPv6 extension headers before TCP: such packets pass, and user space filters them
_IPV6_EXTENSIONS = (0, 43, 44, 51, 60)

#: Jumps reach 255 instructions.
MAX_PORTS = 50


def port_filter(ports: Sequence[int]) -> bytes:
    """The instructions, 8 bytes each. Later fragments of a datagram pass, because they do not show their ports.

    Raises ValueError for more than MAX_PORTS.
    """
    if len(ports) > MAX_PORTS:
        raise ValueError(f"{len(ports)} ports, the kernel filter takes up to {MAX_PORTS}")
    program: list[tuple[int, str, str, int] | str] = [
        (_LOAD_WORD, "", "", _ETHERTYPE),
        (_JUMP_IF_EQUAL, "v4", "", 0x0800),
        (_JUMP_IF_EQUAL, "v6", "no", 0x86DD),
        "v4",
        (_LOAD_BYTE, "", "", _NETWORK + 9),
        (_JUMP_IF_EQUAL, "", "no", 6),
        (_LOAD_HALF, "", "", _NETWORK + 6),
        (_JUMP_IF_SET, "yes", "", 0x1FFF),
        (_LOAD_IP_HEADER_BYTES, "", "", _NETWORK),
        *_either_port(_LOAD_HALF_INDEXED, _NETWORK, ports),
        "v6",
        (_LOAD_BYTE, "", "", _NETWORK + 6),
        *((_JUMP_IF_EQUAL, "yes", "", extension) for extension in _IPV6_EXTENSIONS),
        (_JUMP_IF_EQUAL, "", "no", 6),
        *_either_port(_LOAD_HALF, _NETWORK + 40, ports),
        "no",
        (_RETURN, "", "", _NOTHING),
        "yes",
        (_RETURN, "", "", _ALL),
    ]
    places: dict[str, int] = {}
    instructions: list[tuple[int, str, str, int]] = []
    for line in program:
        if isinstance(line, str):
            places[line] = len(instructions)
        else:
            instructions.append(line)
    return b"".join(
        struct.pack("=HBBI", code, places[yes] - at - 1 if yes else 0, places[no] - at - 1 if no else 0, value)
        for at, (code, yes, no, value) in enumerate(instructions)
    )


def _either_port(load: int, offset: int, ports: Sequence[int]) -> list[tuple[int, str, str, int] | str]:
    lines: list[tuple[int, str, str, int] | str] = []
    for place in (0, 2):
        lines.append((load, "", "", offset + place))
        lines += [(_JUMP_IF_EQUAL, "yes", "", port) for port in ports]
    value = ports[-1]
    lines[-1] = (_JUMP_IF_EQUAL, "yes", "no", value)
    return lines


class SocketFilter:
    """``instructions`` as SO_ATTACH_FILTER takes them: ``program`` points into memory that this object owns."""

    def __init__(self, instructions: bytes) -> None:
        self._memory = ctypes.create_string_buffer(instructions, len(instructions))
        self.program = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(self._memory))
