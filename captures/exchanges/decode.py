"""Decodes captures to messages, in the order of the packets that complete them.

    with CaptureFile("incident.pcapng") as capture:
        decoder = Decoder(capture)
        for message in decoder.messages():
            print(render.line(message, decoder.cluster))
    print(decoder.quality.lines())

``packet`` and ``time`` of a message are those of the packet that completed it. While a connection may still give an
older message (a hole in it may be filled), newer ones are held, for at most ``MAX_WAIT_NS`` of capture time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from kce.captures.exchanges.assembly import Assembly
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.pairing import Message, NoResponse, Request, Response
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.exchanges.quality import OF_OTHER_PORTS, Quality
from kce.captures.files.chronology import StepsBack, chronological
from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.tcp.segments import Dissector, Place, Segment

MAX_WAIT_NS = 5_000_000_000
MAX_WAITING_MESSAGES = 20_000


class Source(Protocol):
    """Input of ``Decoder``: packets with the segment in each (or what it is instead), then notes and problems."""

    unreadable: list[str]
    problems: list[str]
    notes: list[str]
    dropped: int
    duplicates: int

    def __iter__(self) -> Iterator[tuple[Packet, Segment | str]]: ...


class Decoder:
    """Decodes one capture or incident, once. With ``ports``, only connections to and from these.

    ``quality`` is complete when ``messages()`` has ended; ``cluster`` is learnt meanwhile.
    """

    def __init__(self, capture: CaptureFile | Source, ports: Ports = NO_PORTS) -> None:
        self.quality = Quality()
        self.cluster = Cluster(ports)
        self._capture = capture
        self._ports = ports.keys()
        self._assembly = Assembly(self.quality, self._ports)
        self._heap: list[tuple[Place, int, Request | Response]] = []
        self._count = 0

    def messages(self) -> Iterator[Request | Response]:
        for segment in self._segments():
            for message in self._assembly.receive(segment):
                self._push(message)
            if self._heap:
                yield from self._due(segment.place.time_ns)
        for message in self._assembly.finish():
            self._push(message)
        yield from self._due(0)

    def _segments(self) -> Iterator[Segment]:
        """Segments to decode; counts everything else."""
        capture, quality, steps = self._capture, self.quality, StepsBack()
        for packet, segment in by_time(capture, steps) if isinstance(capture, CaptureFile) else capture:
            quality.packets += 1
            quality.cut_packets += packet.wire_bytes > len(packet.data)
            if isinstance(segment, str):
                quality.other_packets[segment] += 1
            elif self._ports and self._ports.isdisjoint((segment.source_port, segment.destination_port)):
                quality.other_packets[OF_OTHER_PORTS] += 1
            else:
                yield segment
        quality.dropped = capture.dropped
        if isinstance(capture, CaptureFile):
            quality.problems += [f"{capture.name}: {problem}" for problem in capture.problems]
            quality.sources += steps.notes(capture.name)
        else:
            quality.unreadable += capture.unreadable
            quality.problems += capture.problems
            quality.duplicates = capture.duplicates
            quality.sources += capture.notes

    def _push(self, message: Message) -> None:
        if isinstance(message, NoResponse):
            return
        self._count += 1
        heapq.heappush(self._heap, (message.place, self._count, message))

    def _due(self, now_ns: int) -> Iterator[Request | Response]:
        """Messages that no older one can precede any more."""
        free = not self._assembly.waiting
        while self._heap:
            place = self._heap[0][0]
            if not (free or now_ns - place.time_ns > MAX_WAIT_NS or len(self._heap) > MAX_WAITING_MESSAGES):
                return
            message = heapq.heappop(self._heap)[2]
            self.cluster.observe(message)
            yield message


def by_time(capture: CaptureFile, steps: StepsBack | None = None) -> Iterator[tuple[Packet, Segment | str]]:
    """Dissected packets, sorted by time unless the capture is a stream that may still grow."""
    dissector = Dissector(capture.name)
    segments = ((packet, dissector.dissect(packet)) for packet in capture)
    if not capture.is_complete:
        yield from segments
        return
    for order, (packet, segment) in enumerate(chronological(segments, _time_of, steps=steps), capture.first):
        if packet.number != order and isinstance(segment, Segment):
            yield packet, segment._replace(place=segment.place._replace(order=order))
        else:
            yield packet, segment


def _time_of(item: tuple[Packet, Segment | str]) -> int:
    return item[0].time_ns
