"""Packets from a network interface into pcapng files (`kce capture`): Linux' AF_PACKET, which needs CAP_NET_RAW.

    with LiveSource("lo", ports=[9092]) as source, RotatingWriter("traffic.pcapng", max_bytes=100 << 20) as writer:
        record(source, writer, stop=stop_fd)

Packets dropped by the kernel are counted, reported and written to the file (an interface statistics block), where
``CaptureFile.dropped`` reads it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

from kce.captures.errors import CaptureError
from kce.captures.files.pcapng_writer import PcapngWriter
from kce.captures.record.packet_filter import SocketFilter, port_filter

#: The longest packet: 64 KiB with segmentation offload, 256 KiB with jumbograms.
MAX_PACKET_BYTES = 262_144

#: Kernel buffer: 60 ms of traffic at 1 GB/s.
BUFFER_BYTES = 64 * 1024 * 1024

ANY = "any"

_ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_PACKET_OUTGOING = 4
_LOOPBACK = 772
#: ARPHRD_ -> LINKTYPE_: Ethernet, loopback (which has Ethernet's headers), and tunnels without a link layer
_LINK_TYPES = {1: 1, _LOOPBACK: 1, 65534: 101, 512: 101}
_LINKTYPE_COOKED_V2 = 276


class LivePacket(NamedTuple):
    time_ns: int
    link_type: int
    data: bytes
    wire_bytes: int


class LiveSource:
    """All packets of ``interface`` (or of ``any``), or those of TCP connections to and from ``ports``.

    Raises CaptureError without Linux, the privilege, or such an interface. What is in tunnels is only captured without
    ``ports``. A packet that a host sends to itself is seen once.
    """

    def __init__(self, interface: str, ports: Sequence[int] = (), *, buffer_bytes: int = BUFFER_BYTES) -> None:
        if not hasattr(socket, "AF_PACKET"):
            raise CaptureError("capturing needs Linux; elsewhere, pipe: tcpdump -w - | kce decode -")
        self.interface = interface
        self.received = 0
        self.dropped = 0
        self.went_down = 0
        # cooked if interfaces have different link layers; no protocol yet, so that no packet precedes the filter
        kind = socket.SOCK_DGRAM if interface == ANY else socket.SOCK_RAW
        try:
            self._socket = socket.socket(socket.AF_PACKET, kind, 0)
        except PermissionError:
            raise CaptureError(
                f"capturing on {interface} needs a privilege: run as root, or with CAP_NET_RAW "
                "(setcap cap_net_raw+ep on the Python interpreter)"
            ) from None
        try:
            self._prepare(ports, buffer_bytes)
        except OSError as e:
            self._socket.close()
            if e.errno == errno.ENODEV:
                there = ", ".join(name for _, name in socket.if_nameindex())
                raise CaptureError(f"no interface {interface}; there are {there}, and {ANY}") from None
            raise CaptureError(f"capturing on {interface} failed ({e.strerror or e})") from None
        except BaseException:
            self._socket.close()
            raise
        self._buffer = bytearray(MAX_PACKET_BYTES)

    def _prepare(self, ports: Sequence[int], buffer_bytes: int) -> None:
        sock = self._socket
        if ports:
            program = SocketFilter(port_filter(ports))
            sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program.program)
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:  # CAP_NET_RAW without CAP_NET_ADMIN: as much as everybody may have
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        sock.setblocking(False)
        if self.interface == ANY:
            _bind_to_all(sock)
        else:
            sock.bind((self.interface, _ETH_P_ALL))
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ENETDOWN:
            raise CaptureError(f"{self.interface} is down")
        hardware = sock.getsockname()[3]
        if self.interface != ANY and hardware not in _LINK_TYPES:
            raise CaptureError(f"{self.interface} has a link layer (ARPHRD {hardware}) that is not known here")

    def fileno(self) -> int:
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def waiting(self) -> Iterator[LivePacket]:
        """Packets in the kernel buffer. Raises CaptureError if the interface is gone, not if it is down."""
        view = memoryview(self._buffer)
        while True:
            try:
                size, ancillary, _, address = self._socket.recvmsg_into([view], 64, socket.MSG_TRUNC)
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno == errno.ENETDOWN:
                    if not self._is_there():
                        raise CaptureError(f"capturing ended: {self.interface} is gone") from None
                    self.went_down += 1
                    continue
                raise CaptureError(f"capturing on {self.interface} failed ({e.strerror or e})") from None
            name, protocol, kind, hardware, link_address = address
            if kind == _PACKET_OUTGOING and hardware == _LOOPBACK:
                continue  # it will be received as well
            self.received += 1
            data = bytes(view[: min(size, MAX_PACKET_BYTES)])
            link_type = _LINK_TYPES.get(hardware, 1)
            if self.interface == ANY:
                link_type = _LINKTYPE_COOKED_V2
                header = struct.pack(
                    ">HHIHBB8s", protocol, 0, _index(name), hardware, kind, len(link_address), link_address[:8]
                )
                data, size = header + data, size + len(header)
            yield LivePacket(_time_ns(ancillary), link_type, data, size)

    def _is_there(self) -> bool:
        name: str = self._socket.getsockname()[0]  # none if it was removed
        return name == self.interface

    def count_dropped(self) -> int:
        """How many packets the kernel dropped since the source was opened."""
        _, dropped = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        self.dropped += dropped  # reading the kernel's counter resets it
        return self.dropped


def _bind_to_all(sock: socket.socket) -> None:
    """Bind to a sockaddr_ll with index 0, which Python's ``bind`` cannot."""
    address = struct.pack("=HHiHBB8s", socket.AF_PACKET, socket.htons(_ETH_P_ALL), 0, 0, 0, 0, b"")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.bind(sock.fileno(), address, len(address)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class RotatingWriter:
    """One pcapng file, or with ``max_bytes`` or ``max_seconds`` several: NAME-00001.pcapng and so on.

    Of several, the one being written ends in ``.part`` until it is complete, so that watchers of the folder see whole
    files only; the last ``keep`` complete ones stay. Times are those of packets. A stream is written as one file, and
    is the caller's to close.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        comments: Iterable[str] = (),
        *,
        max_bytes: int | None = None,
        max_seconds: float | None = None,
        keep: int | None = None,
    ) -> None:
        self.files: deque[Path] = deque()
        self._target = Path(target) if isinstance(target, (str, os.PathLike)) else target
        self._comments = tuple(comments)
        self._max_bytes = max_bytes
        self._max_ns = None if max_seconds is None else max_seconds * 1e9
        self._keep = keep
        self._rotates = max_bytes is not None or max_seconds is not None
        self._number = 0
        self._began_ns: int | None = None
        self._link_types: set[int] = set()
        self._counted = (0, 0)
        self._writer = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def packet(self, packet: LivePacket, counted: tuple[int, int] = (0, 0)) -> None:
        """``counted`` is (packets received, packets dropped) so far.

        Raises CaptureError when the disk is full, BrokenPipeError when nobody reads the stream any more.
        """
        try:
            if self._is_full(packet.time_ns):
                self._finish(*counted)
                self._writer = self._open()
            if self._began_ns is None:
                self._began_ns = packet.time_ns
            self._link_types.add(packet.link_type)
            self._writer.packet(packet.time_ns, packet.link_type, packet.data, packet.wire_bytes)
        except BrokenPipeError:
            raise
        except OSError as e:
            raise CaptureError(f"{self._writer.name}: cannot be written ({e.strerror or e})") from None

    def close(self, counted: tuple[int, int] = (0, 0)) -> None:
        """Complete the last file. Does nothing the second time."""
        if self._writer.closed:
            return
        try:
            self._finish(*counted)
        except BrokenPipeError:
            raise
        except OSError as e:
            raise CaptureError(f"{self._writer.name}: cannot be written ({e.strerror or e})") from None

    def _open(self) -> PcapngWriter:
        self._number += 1
        self._began_ns = None
        self._link_types.clear()
        name = self._target
        if self._rotates and isinstance(name, Path):
            name = name.with_name(f"{name.stem}-{self._number:05}{name.suffix or '.pcapng'}.part")
        try:
            return PcapngWriter(name, self._comments)
        except OSError as e:
            raise CaptureError(f"{name}: cannot be written ({e.strerror or e})") from None

    def _is_full(self, time_ns: int) -> bool:
        if self._began_ns is None:
            return False
        if self._max_bytes is not None and self._writer.written_bytes >= self._max_bytes:
            return True
        return self._max_ns is not None and time_ns - self._began_ns >= self._max_ns

    def _finish(self, received: int, dropped: int) -> None:
        before = self._counted
        self._counted = max(before[0], received), max(before[1], dropped)
        # of all interfaces together: AF_PACKET counts by socket
        for link_type in sorted(self._link_types)[:1]:
            self._writer.statistics(link_type, self._counted[0] - before[0], self._counted[1] - before[1])
        self._writer.close()
        path = Path(self._writer.name)
        if self._rotates and isinstance(self._target, Path):
            path = path.rename(path.with_suffix(""))
        self.files.append(path)
        while self._keep is not None and len(self.files) > self._keep:
            self.files.popleft().unlink(missing_ok=True)


def record(source: LiveSource, writer: RotatingWriter, *, stop: int, max_packets: int | None = None) -> int:
    """Write packets until the file descriptor ``stop`` becomes readable, or ``max_packets`` are written.

    Returns the number written, including those that arrived before the stop. Raises CaptureError.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(stop, select.POLLIN)
    written = 0
    stopped = False
    try:
        while not stopped and written != max_packets:
            stopped = any(fd == stop for fd, _ in poll.poll())
            for packet in source.waiting():
                writer.packet(packet, (source.received, source.dropped))
                written += 1
                if written == max_packets:
                    break
                if not written % 1000:
                    source.count_dropped()
                    stopped = stopped or bool(select.select([stop], [], [], 0)[0])
                    if stopped:
                        break  # more may keep arriving
    finally:
        writer.close((source.received, source.count_dropped()))
    return written


def _time_ns(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("@ll", data[:16])
            return int(seconds) * 1_000_000_000 + int(ns)
    raise CaptureError("the kernel gives packets no time")


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0  # it is gone
