"""Records live streams to pcapng without privileges, with synthetic TCP/IP packets.

    recorder = Recorder("capture.pcapng", comment="node 1: control 127.0.0.1:9093, data 127.0.0.1:9092")
    stream = record_accepted(recorder, stream)      # its traffic is recorded from here on

or, without Trio, ``tap = recorder.connection(client, server)`` and ``tap.sent("client", data)``. Record a connection at
one end only, usually the accepting one. ``merge`` joins the files of several processes.

The packets are those of a connection without loss: handshake, segments with correct sequence numbers and checksums,
FIN or RST. Data is recorded before it is sent, so in a file a response never precedes its request. A Recorder belongs
to one thread. If its file cannot be written, it logs that once and stops recording; the traffic goes on.
"""

from __future__ import annotations

import heapq
import ipaddress
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

import trio

from kce.captures.errors import CaptureError
from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.files.pcapng_writer import LINKTYPE_RAW, PcapngWriter
from kce.captures.tcp.segments import ACK, FIN, PSH, RST, SYN

logger = logging.getLogger(__name__)

Side = Literal["client", "server"]

#: Payload of one packet. IPv4 has room for 65,535 bytes with its headers.
MAX_SEGMENT_BYTES = 65_000

#: A pure acknowledgement is written when this much is not acknowledged by data going the other way.
ACKNOWLEDGE_EVERY_BYTES = 1024 * 1024

_MAXIMUM_WINDOW = 65_535
#: maximum segment size, then a window scale of 14, so that recorded data never exceeds a window
_SYN_OPTIONS = struct.pack(">BBH", 2, 4, MAX_SEGMENT_BYTES) + bytes((3, 3, 14, 1))
_TCP_PROTOCOL = 6


class Recorder:
    """One pcapng file. ``comment`` (or several) names the node's control and data ports.

    ``target`` is a path or a binary stream; ``clock`` gives nanoseconds since 1970. Raises CaptureError when the file
    cannot be created. ``failure`` is why recording stopped, None while it runs.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        comment: str | Sequence[str] = (),
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.failure: str | None = None
        self._clock = clock
        self._connections = 0
        self._datagrams = 0
        self._writer = PcapngWriter(target, [comment] if isinstance(comment, str) else comment)

    def connection(
        self,
        client: tuple[str, int],
        server: tuple[str, int],
        *,
        sequence_numbers: tuple[int, int] | None = None,
    ) -> ConnectionTap:
        """Record a handshake. Both addresses are IPv4, or both IPv6 (ValueError).

        ``sequence_numbers`` are the initial ones of client and server, for tests.
        """
        self._connections += 1
        if sequence_numbers is None:
            # different for every connection, to distinguish two between the same ports
            first = zlib.crc32(f"{client} {server} {self._connections} {self._clock()}".encode())
            sequence_numbers = first, first ^ 0x5A5A5A5A
        return ConnectionTap(self, _Path(client, server), sequence_numbers)

    def close(self) -> None:
        """Close the file (a stream that was given stays open). Nothing can be recorded after that."""
        self.failure = self.failure or "closed"
        try:
            self._writer.close()
        except OSError as e:
            logger.error("%s: closing failed: %s", self._writer.name, e.strerror or e)

    def write(self, packet: Callable[[int], bytes]) -> None:
        """Write the packet that ``packet`` makes for an IP identification."""
        if self.failure is not None:
            return
        self._datagrams = (self._datagrams + 1) & 0xFFFF
        try:
            self._writer.packet(self._clock(), LINKTYPE_RAW, packet(self._datagrams))
        except OSError as e:
            self.failure = e.strerror or str(e)
            logger.error("%s: recording stops, writing failed: %s", self._writer.name, self.failure)


class ConnectionTap:
    """Records one connection; made by ``Recorder.connection``. Ignores everything after its end."""

    def __init__(self, recorder: Recorder, path: _Path, sequence_numbers: tuple[int, int]) -> None:
        self._recorder = recorder
        self._path = path
        # by side, 0 the client: next sequence number, acknowledged by the other side, finished
        self._next = list(sequence_numbers)
        self._acknowledged = list(sequence_numbers)
        self._finished = [False, False]
        self._over = False
        self._segment(0, SYN, options=_SYN_OPTIONS)
        self._segment(1, SYN | ACK, options=_SYN_OPTIONS)
        self._segment(0, ACK)

    def sent(self, side: Side, data: bytes | bytearray | memoryview) -> None:
        """``side`` sends ``data``."""
        sender = _INDEX[side]
        if self._over or self._finished[sender]:
            return
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), MAX_SEGMENT_BYTES):
            piece = bytes(view[begin : begin + MAX_SEGMENT_BYTES])
            last = begin + MAX_SEGMENT_BYTES >= len(view)
            self._segment(sender, PSH | ACK if last else ACK, piece)
            if (self._next[sender] - self._acknowledged[sender]) & 0xFFFFFFFF >= ACKNOWLEDGE_EVERY_BYTES:
                self._segment(1 - sender, ACK)

    def finish(self, side: Side) -> None:
        """``side`` sends nothing more (a half-close)."""
        sender = _INDEX[side]
        if self._over or self._finished[sender]:
            return
        self._finished[sender] = True
        self._segment(sender, FIN | ACK)
        if all(self._finished):
            self._over = True
            self._segment(1 - sender, ACK)

    def close(self, side: Side = "client") -> None:
        """Close with FIN; ``side`` closes first."""
        self.finish(side)
        self.finish("server" if side == "client" else "client")

    def abort(self, side: Side = "client") -> None:
        """``side`` resets the connection."""
        if not self._over:
            self._over = True
            self._segment(_INDEX[side], RST | ACK)

    def _segment(self, sender: int, flags: int, payload: bytes = b"", options: bytes = b"") -> None:
        sequence = self._next[sender]
        acknowledgement = self._next[1 - sender] if flags & ACK else 0
        if flags & ACK:
            self._acknowledged[1 - sender] = acknowledgement
        self._next[sender] = (sequence + len(payload) + (1 if flags & (SYN | FIN) else 0)) & 0xFFFFFFFF
        self._recorder.write(
            lambda identification: self._path.packet(
                sender, identification, sequence, acknowledgement, flags, payload, options
            )
        )


_INDEX: dict[Side, int] = {"client": 0, "server": 1}


class _Path:
    """The two ends of a connection; makes the packets between them."""

    def __init__(self, client: tuple[str, int], server: tuple[str, int]) -> None:
        addresses = [_address(host) for host, _ in (client, server)]
        if addresses[0].version != addresses[1].version:
            raise ValueError(f"{client[0]} and {server[0]} are addresses of two kinds")
        self._version = addresses[0].version
        self._addresses = [address.packed for address in addresses]
        self._ports = (client[1], server[1])

    def packet(
        self,
        sender: int,
        identification: int,
        sequence: int,
        acknowledgement: int,
        flags: int,
        payload: bytes,
        options: bytes,
    ) -> bytes:
        source, destination = self._addresses[sender], self._addresses[1 - sender]
        size = 20 + len(options) + len(payload)
        header = struct.pack(
            ">HHIIBBHHH", self._ports[sender], self._ports[1 - sender], sequence, acknowledgement,
            (20 + len(options)) // 4 << 4, flags, _MAXIMUM_WINDOW, 0, 0,
        )  # fmt: skip
        pseudo_header = source + destination + struct.pack(">IBBBB", size, 0, 0, 0, _TCP_PROTOCOL)
        checksum = _checksum(pseudo_header + header + options + payload)
        tcp = header[:16] + checksum + header[18:] + options + payload
        if self._version == 6:
            return struct.pack(">IHBB", 6 << 28, size, _TCP_PROTOCOL, 64) + source + destination + tcp
        ip = struct.pack(">BBHHHBB", 0x45, 0, 20 + size, identification, 0x4000, 64, _TCP_PROTOCOL)
        return ip + _checksum(ip + bytes(2) + source + destination) + source + destination + tcp


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])  # without the zone of a link-local address
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _checksum(data: bytes) -> bytes:
    """The Internet checksum (RFC 1071): ones' complement addition is addition modulo 65,535."""
    if len(data) % 2:
        data += b"\x00"
    total = int.from_bytes(data, "big") % 0xFFFF or 0xFFFF
    return (0xFFFF - total).to_bytes(2, "big")


class TappedStream(trio.abc.HalfCloseableStream):
    """A stream whose bytes are recorded. ``side`` is the end of the connection that ``transport_stream`` is.

    After a send that fails or is cancelled it is unknown how much arrived: the recorded connection ends with a reset,
    and the stream must be closed, as Trio requires anyway.
    """

    def __init__(self, transport_stream: trio.abc.Stream, tap: ConnectionTap, side: Side) -> None:
        self.transport_stream = transport_stream
        self.tap = tap
        self._side = side
        self._peer: Side = "server" if side == "client" else "client"
        self._sending = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._sending = True
        try:
            self.tap.sent(self._side, data)
            await self.transport_stream.send_all(data)
        except BaseException:
            self.tap.abort(self._side)
            raise
        finally:
            self._sending = False

    async def wait_send_all_might_not_block(self) -> None:
        await self.transport_stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self.transport_stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self.tap.abort(self._peer)
            raise
        if data:
            self.tap.sent(self._peer, data)
        else:
            self.tap.finish(self._peer)
        return data

    async def send_eof(self) -> None:
        """Raises AttributeError where the stream below cannot half-close."""
        self.tap.finish(self._side)
        await self.transport_stream.send_eof()  # type: ignore[attr-defined]  # only some streams have it

    async def aclose(self) -> None:
        self.tap.close(self._side)
        await self.transport_stream.aclose()


def record_accepted(recorder: Recorder, stream: trio.SocketStream) -> trio.abc.HalfCloseableStream:
    """Record a stream that was just accepted; unchanged if the client is already gone."""
    try:
        client, server = stream.socket.getpeername(), stream.socket.getsockname()
    except OSError:
        return stream
    return TappedStream(stream, recorder.connection(client[:2], server[:2]), "server")


def merge(
    paths: Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    comment: str | Sequence[str] = (),
) -> list[str]:
    """One pcapng file of several captures, by the time of their packets, in constant memory.

    The output has ``comment``, then the comments of all files. Each file must be sorted by time, as recordings are;
    each may be truncated. Returns their problems. Raises CaptureError for a file that is no capture, and if writing
    fails.
    """
    paths = list(paths)
    comments = [comment] if isinstance(comment, str) else list(comment)
    problems = []
    for path in paths:
        with CaptureFile(path) as capture:
            for _ in capture:
                pass
            comments += [text for text in capture.comments if text not in comments]
            problems += [f"{capture.name}: {problem}" for problem in capture.problems]
    part = f"{os.fspath(output)}.part"  # a whole file or none, even if it is among the inputs
    with ExitStack() as stack:
        captures = [stack.enter_context(CaptureFile(path)) for path in paths]
        try:
            writer = stack.enter_context(PcapngWriter(part, comments))
            for packet in heapq.merge(*captures, key=_time):
                writer.packet(packet.time_ns, packet.link_type, packet.data, packet.wire_bytes)
            Path(part).replace(output)
        except OSError as e:
            Path(part).unlink(missing_ok=True)
            raise CaptureError(f"{os.fspath(output)}: cannot be written ({e.strerror or e})") from None
    return problems


def _time(packet: Packet) -> int:
    return packet.time_ns
