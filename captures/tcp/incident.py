"""Several captures of one incident: rotated files of one host, or files of several hosts with different clocks.

    incident = Incident(["host-a.pcapng", "host-b.pcapng"])
    for packet, segment in incident: ...            # merged by time, each packet once
    incident.clocks, incident.duplicates            # clock differences, packets left out

A packet that two hosts captured is in both files. Its times differ by the clock offset plus the network delay from the
first host to the second, or minus the delay in the other direction. Half the sum of both directions' medians is the
clock offset if both delays are equal, as NTP assumes, too. The first file's clock is the reference. A packet that one
host captured twice (a retransmission) is kept twice.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from kce.captures.errors import CaptureError
from kce.captures.files.chronology import StepsBack, chronological
from kce.captures.files.locations import check_location
from kce.captures.files.pcap import CaptureFile, Packet
from kce.captures.tcp.segments import SYN, Dissector, Place, Segment

#: Packets from the beginning of each file that are compared with other files.
MAX_SURVEYED = 200_000

#: Minimum number of common packets to compare clocks.
MIN_IN_COMMON = 4

#: Maximum time between two captures of one packet, clocks corrected.
MAX_WAY_NS = 10_000_000_000


class Clock(NamedTuple):
    """``ahead_ns`` of the first file's clock; ``way_ns`` is the network delay, None if packets went one way only.

    ``in_common`` packets are in this file and in ``reference``.
    """

    file: str
    reference: str
    ahead_ns: int
    way_ns: int | None
    in_common: int

    def __str__(self) -> str:
        ahead = f"{abs(self.ahead_ns) / 1e6:.3f} ms {'ahead of' if self.ahead_ns >= 0 else 'behind'}"
        way = "network delay included" if self.way_ns is None else f"network delay {self.way_ns / 1e6:.3f} ms"
        return (
            f"the clock of {self.file} is {ahead} that of {self.reference} ({self.in_common:,} packets in both, {way})"
        )


class Incident:
    """Opens all ``locations`` and compares their clocks. Iterated once.

    Raises CaptureError if one does not exist or none is a capture; others are left out, and are ``unreadable``.
    Iteration gives packets with times of the first file's clock, and the segment in each (or what it is instead).
    """

    def __init__(self, locations: Sequence[str | os.PathLike[str]]) -> None:
        self.names: list[str] = []
        self.unreadable: list[str] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.dropped = 0
        self.duplicates = 0
        for location in locations:
            check_location(location)
        surveys = []
        for location in locations:
            name = os.fspath(location)
            try:
                surveys.append(_survey(name))
                self.names.append(name)
            except CaptureError as e:
                self.unreadable.append(str(e))
        if not self.names:
            raise CaptureError("; ".join(self.unreadable))
        self.clocks = _clocks(surveys, self.names)
        self.notes += map(str, self.clocks)
        self._ahead_ns = {clock.file: clock.ahead_ns for clock in self.clocks}

    def __iter__(self) -> Iterator[tuple[Packet, Segment | str]]:
        seen = _Seen(len(self.names))
        with ExitStack() as stack:
            captures = [stack.enter_context(CaptureFile(name)) for name in self.names]
            merged = heapq.merge(*(self._corrected(index, c) for index, c in enumerate(captures)), key=_time)
            for order, (time_ns, file, packet, segment) in enumerate(merged, 1):
                if seen.before(file, time_ns, _identity(packet, segment)):
                    self.duplicates += 1
                    continue
                if isinstance(segment, Segment):
                    place = Place(order, time_ns, packet.number, self.names[file])
                    segment = segment._replace(place=place)
                yield packet._replace(time_ns=time_ns), segment
            self.dropped = sum(capture.dropped for capture in captures)
            self.problems = [f"{c.name}: {problem}" for c in captures for problem in c.problems]

    def _corrected(self, index: int, capture: CaptureFile) -> Iterator[tuple[int, int, Packet, Segment | str]]:
        dissector = Dissector(capture.name)
        ahead_ns = self._ahead_ns.get(capture.name, 0)
        segments = ((p.time_ns - ahead_ns, index, p, dissector.dissect(p)) for p in capture)
        steps = StepsBack()
        yield from chronological(segments, _time, steps=steps)
        self.notes += steps.notes(capture.name)


def _time(item: tuple[int, int, Packet, Segment | str]) -> int:
    return item[0]


class _Seen:
    """Counts of recent packets by file."""

    def __init__(self, files: int) -> None:
        self._counts: dict[Hashable, list[int]] = {}
        self._recent: deque[tuple[int, Hashable]] = deque()
        self._files = files

    def before(self, file: int, time_ns: int, identity: Hashable) -> bool:
        """Whether another file already had this occurrence of the packet."""
        while self._recent and time_ns - self._recent[0][0] > MAX_WAY_NS:
            self._counts.pop(self._recent.popleft()[1], None)
        counts = self._counts.get(identity)
        if counts is None:
            counts = self._counts[identity] = [0] * self._files
            self._recent.append((time_ns, identity))
        most = max(counts)
        counts[file] += 1
        return counts[file] <= most


def _identity(packet: Packet, segment: Segment | str) -> Hashable:
    """Equal for all captures of a packet: routers change the link layer and the time to live."""
    if isinstance(segment, str):
        return segment, packet.data
    return (*segment[1:8], hash(segment.payload), len(segment.payload) + segment.cut)


def _survey(name: str) -> OrderedDict[Hashable, tuple[int, bytes, bytes]]:
    """identity -> (time, source, destination) of packets that occur once in a file."""
    found: OrderedDict[Hashable, tuple[int, bytes, bytes]] = OrderedDict()
    times: Counter[Hashable] = Counter()
    with CaptureFile(name) as capture:
        dissector = Dissector(name)
        for packet in capture:
            segment = dissector.dissect(packet)
            if isinstance(segment, Segment) and (segment.payload or segment.flags & SYN):
                identity = _identity(packet, segment)
                times[identity] += 1
                found[identity] = (packet.time_ns, segment.source, segment.destination)
                if len(found) >= MAX_SURVEYED:
                    break
    for identity, count in times.items():
        if count > 1:
            del found[identity]
    return found


def _clocks(surveys: list[OrderedDict[Hashable, tuple[int, bytes, bytes]]], names: list[str]) -> list[Clock]:
    """Clocks of all files that are connected to the first by common packets, directly or not."""
    clocks: list[Clock] = []
    ahead_of_first = {0: 0}
    waiting = deque([0])
    while waiting:
        reference = waiting.popleft()
        for index in range(len(surveys)):
            if index in ahead_of_first:
                continue
            measured = _difference(surveys[reference], surveys[index])
            if measured is not None:
                ahead_ns, way_ns, in_common = measured
                ahead_of_first[index] = ahead_of_first[reference] + ahead_ns
                clocks.append(Clock(names[index], names[0], ahead_of_first[index], way_ns, in_common))
                waiting.append(index)
    return clocks


def _difference(
    one: OrderedDict[Hashable, tuple[int, bytes, bytes]], other: OrderedDict[Hashable, tuple[int, bytes, bytes]]
) -> tuple[int, int | None, int] | None:
    """(how far the clock of ``other`` is ahead, network delay, common packets)."""
    import statistics  # here, as it takes longer to import than a small capture to decode

    by_direction: defaultdict[tuple[bytes, bytes], list[int]] = defaultdict(list)
    in_common = one.keys() & other.keys()
    if len(in_common) < MIN_IN_COMMON:
        return None
    for identity in in_common:
        time_ns, source, destination = one[identity]
        by_direction[source, destination].append(other[identity][0] - time_ns)
    both = [
        (statistics.median(there), statistics.median(by_direction[destination, source]), len(there))
        for (source, destination), there in by_direction.items()
        if source < destination and (destination, source) in by_direction
    ]
    if not both:
        one_way = [difference for some in by_direction.values() for difference in some]
        return round(statistics.median(one_way)), None, len(in_common)
    there, back, _ = max(both, key=lambda pair: pair[2])
    return round((there + back) / 2), round(abs(there - back) / 2), len(in_common)
