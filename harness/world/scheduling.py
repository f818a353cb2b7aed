"""What a node asks of the kernel's scheduler."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

#: of a process that is to run soon after it is woken; the kernel's least. It has no larger a share of the processor.
_SLICE_NS: Final = 100_000
#: the number of sched_setattr, which the C library does not offer everywhere
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
_KEEP_POLICY: Final = 0x08
#: struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")


def ask_for_short_slices() -> bool:
    """Have the scheduler run this thread in short slices, and so sooner; whether it does. Linux does from 6.12 on."""
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, nice, 0, _SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
