"""A network namespace of its own for a process of the suite: no other takes the port of a node that is down.

``python -m tests.own_network COMMAND...`` runs the command in one, which has a loopback interface and nothing else.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def enter() -> None:
    """Moves this process. A user other than root gets a user namespace, too. Raises OSError where that is denied."""
    uid, gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | (_CLONE_NEWUSER if uid else 0)):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def is_allowed() -> bool:
    """Whether a process like this one may enter one."""
    probe = [sys.executable, "-m", __spec__.name, "true"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def main(command: list[str]) -> None:
    enter()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
