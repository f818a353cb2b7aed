"""TLS connections in a capture, decrypted by tshark with a key log of one side (SSLKEYLOGFILE).

    for packet, segment in Decrypted("incident.pcapng", "keys.log"): ...

tshark prints, for each packet, the plaintext of the TLS records that end in it. Segments of TLS connections get that as
payload, with matching sequence numbers; other segments are unchanged. Connections without keys in the log, or whose
beginning was not captured, give empty segments and are counted in ``sealed``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO

from kce.captures.errors import CaptureError
from kce.captures.files.locations import is_uri
from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.tcp.segments import ACK, SYN, Dissector, Segment

_FIELDS = ("frame.number", "data.data")

#: How a TLS connection begins: a handshake record of SSL 3.0 or any TLS.
HANDSHAKE = b"\x16\x03"

_Ends = tuple[bytes, int, bytes, int]


class Decrypted:
    """Iterated once. ``name`` is a local capture, ``keys`` a key log. Raises CaptureError, also without tshark."""

    def __init__(self, name: str, keys: str | os.PathLike[str]) -> None:
        if is_uri(name) or name == "-":
            raise CaptureError(f"{name}: TLS is decrypted by tshark, which reads local files only")
        if not os.access(keys, os.R_OK):
            raise CaptureError(f"{os.fspath(keys)}: the TLS key log cannot be read")
        tshark = shutil.which("tshark")
        if tshark is None:
            raise CaptureError("decrypting TLS needs tshark (of Wireshark), which is not installed")
        self.name = name
        self.unreadable: list[str] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.dropped = self.duplicates = 0
        # without Kafka's dissector tshark prints the plain bytes
        self._command = [
            tshark, "-n", "-r", name, "-o", f"tls.keylog_file:{os.fspath(keys)}", "--disable-protocol", "kafka",
            "-Y", "tls", "-T", "fields", *(part for field in _FIELDS for part in ("-e", field)),
        ]  # fmt: skip

    def __iter__(self) -> Iterator[tuple[Packet, Segment | str]]:
        connections: dict[_Ends, _Connection] = {}
        with CaptureFile(self.name) as capture, _Opened(self._command) as opened:
            dissector = Dissector(self.name)
            for packet in capture:
                segment = dissector.dissect(packet)
                if isinstance(segment, Segment):
                    segment = self._plain(connections, segment, opened)
                yield packet, segment
            self.problems += capture.problems
            self.dropped = capture.dropped
        self._count(connections)

    def _plain(self, connections: dict[_Ends, _Connection], segment: Segment, opened: _Opened) -> Segment:
        ends = (segment.source, segment.source_port, segment.destination, segment.destination_port)
        connection = connections.get(ends)
        if connection is None or (segment.flags & (SYN | ACK) == SYN and segment.sequence != connection.isn):
            if connection is not None:
                self._count({ends: connection})
            connection = connections[ends] = connections[(*ends[2:], *ends[:2])] = _Connection(ends, segment)
        if connection.is_tls is None and segment.payload:
            connection.is_tls = segment.payload.startswith(HANDSHAKE)
        if connection.is_tls:
            return connection.plain(segment, opened.of(segment.place.packet))
        connection.pass_by(segment)
        return segment

    def _count(self, connections: dict[_Ends, _Connection]) -> None:
        sealed = sum(1 for each in set(connections.values()) if each.is_tls and not each.opened)
        if sealed:
            self.notes.append(f"{sealed} TLS connections stay encrypted: the key log has no keys for them")


class _Connection:
    """A TLS connection with new sequence numbers for its plaintext."""

    def __init__(self, ends: _Ends, first: Segment) -> None:
        self.is_tls: bool | None = None
        self.opened = False
        self.isn = first.sequence
        self._one = ends
        self._next = [first.sequence, first.acknowledgement]  # by side: the next sequence number

    def pass_by(self, segment: Segment) -> None:
        """Note a segment from before any data."""
        self._next[self._side(segment)] = (segment.sequence + bool(segment.flags & SYN)) & 0xFFFFFFFF

    def plain(self, segment: Segment, payload: bytes) -> Segment:
        side = self._side(segment)
        self.opened = self.opened or bool(payload)
        sequence = self._next[side]
        self._next[side] = (sequence + len(payload)) & 0xFFFFFFFF
        acknowledgement = self._next[1 - side]
        return segment._replace(sequence=sequence, acknowledgement=acknowledgement, payload=payload, cut=0)

    def _side(self, segment: Segment) -> int:
        return 0 if (segment.source, segment.source_port) == self._one[:2] else 1


class _Opened:
    """tshark's output, packet by packet."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving
        self._process: subprocess.Popen[str] | None = None
        self._lines: Iterator[str] = iter(())
        self._coming: tuple[int, bytes] | None = None

    def __enter__(self) -> _Opened:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._stderr, text=True)
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self._coming = self._next()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        self._process.stdout.close()
        code = self._process.wait()
        self._stderr.seek(0)
        messages = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._stderr.close()
        # tshark also reads a truncated capture to its end; CaptureFile reports that
        if kind is None and code not in (0, 2):
            raise CaptureError(f"tshark failed to decrypt TLS: {messages[-1] if messages else f'exit code {code}'}")

    def of(self, number: int) -> bytes:
        """The plaintext of packet ``number``; call in ascending order."""
        while self._coming is not None and self._coming[0] < number:
            self._coming = self._next()
        return self._coming[1] if self._coming is not None and self._coming[0] == number else b""

    def _next(self) -> tuple[int, bytes] | None:
        for line in self._lines:
            number, _, data = line.rstrip("\n").partition("\t")
            if number.isdecimal():
                return int(number), bytes.fromhex(data.replace(",", ""))
        return None
