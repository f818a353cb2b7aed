"""From a capture file, or several of one incident, to their messages, in the order of the packets that complete them.

    with CaptureFile("incident.pcapng") as capture:
        decoder = Decoder(capture)
        for message in decoder.messages():
            print(render.line(message, decoder.cluster))
    print(decoder.quality.lines())

``packet`` and ``time`` of a message are those of the packet with which the last of its bytes was captured. While
something older may still come out of a connection (bytes are missing and may yet arrive), newer messages wait, for
``MAX_WAIT_NS`` of the capture's time at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from captures.cluster import Cluster
from captures.exchanges import Conversation, Message, NoResponse, Request, Response
from captures.pcap import CaptureFile, Packet
from captures.ports import NO_PORTS, Ports
from captures.quality import OF_OTHER_PORTS, Quality
from captures.segments import Dissector, Place, Segment
from captures.tcp_directions import End, Event
from captures.tcp_streams import Connection, Streams

MAX_WAIT_NS = 5_000_000_000
MAX_WAITING_MESSAGES = 20_000


class Source(Protocol):
    """What is decoded: packets with the segment in each (or what it is instead), and afterwards what is to be told."""

    problems: list[str]
    notes: list[str]
    dropped: int
    duplicates: int

    def __iter__(self) -> Iterator[tuple[Packet, Segment | str]]: ...


class Decoder:
    """Reads one capture, or an incident, once. ``ports``: those of listeners, if they are given, and what each is for
    (``captures.ports``); others are left out.

    ``quality`` is complete when ``messages()`` has ended; ``cluster`` grows meanwhile.
    """

    def __init__(self, capture: CaptureFile | Source, ports: Ports = NO_PORTS) -> None:
        self.quality = Quality()
        self.cluster = Cluster(ports)
        self._capture = capture
        self._ports = ports.keys()
        self._streams = Streams()
        self._conversations: dict[Connection, Conversation] = {}
        self._waiting: set[Conversation] = set()
        self._heap: list[tuple[Place, int, Request | Response]] = []
        self._count = 0

    def messages(self) -> Iterator[Request | Response]:
        capture = self._capture
        for packet, segment in _dissected(capture) if isinstance(capture, CaptureFile) else capture:
            self.quality.packets += 1
            self.quality.cut_packets += packet.wire_bytes > len(packet.data)
            if isinstance(segment, str):
                self.quality.other_packets[segment] += 1
                continue
            if self._ports and self._ports.isdisjoint((segment.source_port, segment.destination_port)):
                self.quality.other_packets[OF_OTHER_PORTS] += 1
                continue
            for connection, events in self._streams.receive(segment):
                self._converse(connection, events)
            if self._heap:
                yield from self._due(packet.time_ns)
        for connection, events in self._streams.finish():
            self._converse(connection, events)
        self._waiting.clear()
        yield from self._due(0)
        self.quality.dropped = capture.dropped
        if isinstance(capture, CaptureFile):
            self.quality.problems += [f"{capture.name}: {problem}" for problem in capture.problems]
        else:
            self.quality.problems += capture.problems
            self.quality.duplicates = capture.duplicates
            self.quality.sources += capture.notes

    def _converse(self, connection: Connection, events: list[Event]) -> None:
        conversation = self._conversations.get(connection)
        if conversation is None:
            conversation = self._conversations[connection] = Conversation(connection, self._ports)
        for event in events:
            for message in conversation.receive(event):
                self._take(message)
        if events and isinstance(events[-1], End):
            self.quality.add(conversation.quality)
            del self._conversations[connection]
            self._waiting.discard(conversation)
        elif conversation.waiting:
            self._waiting.add(conversation)
        else:
            self._waiting.discard(conversation)

    def _take(self, message: Message) -> None:
        if isinstance(message, NoResponse):
            return
        if isinstance(message, Request):
            self.cluster.learn(message.body)
            self.cluster.saw(message.peers.server, message.api_key)
        self._count += 1
        heapq.heappush(self._heap, (message.place, self._count, message))

    def _due(self, now_ns: int) -> Iterator[Request | Response]:
        """The messages before which no other can come any more."""
        free = not self._waiting and not self._streams.waiting
        while self._heap:
            place = self._heap[0][0]
            if not (free or now_ns - place.time_ns > MAX_WAIT_NS or len(self._heap) > MAX_WAITING_MESSAGES):
                return
            yield heapq.heappop(self._heap)[2]


def _dissected(capture: CaptureFile) -> Iterator[tuple[Packet, Segment | str]]:
    dissector = Dissector(capture.name)
    for packet in capture:
        yield packet, dissector.dissect(packet)
