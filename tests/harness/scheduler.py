"""What the kernel's scheduler knows of a thread."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import Any, Final

_SCHED_GETATTR: Final = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")

#: whether a thread can ask for slices
HAS_SLICES: Final = (
    sys.platform == "linux"
    and platform.machine() in _SCHED_GETATTR
    and tuple(map(int, platform.release().split(".")[:2])) >= (6, 12)
)


def attributes(thread: int = 0) -> dict[str, Any]:
    """Of a thread or the main thread of a process; without a number, of this thread."""
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    number = _SCHED_GETATTR[platform.machine()]
    assert ctypes.CDLL(None).syscall(number, thread, found, _ATTRIBUTES.size, 0) == 0
    _, policy, _, nice, _, slice_ns, _, _ = _ATTRIBUTES.unpack(found.raw)
    return {"policy": policy, "nice": nice, "slice": slice_ns}
