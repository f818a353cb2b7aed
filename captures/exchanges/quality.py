"""How much of a capture could be read and what could not: counted while decoding, told before any conclusion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

#: Notes kept; what they tell one by one is counted in full besides.
MAX_NOTES = 20

#: What packets are that go to no port that was asked for, and come from none.
OF_OTHER_PORTS = "TCP of other ports"


@dataclass(slots=True)
class Quality:
    """Counts of one connection, one file, or all of them; they add up.

    ``gaps``/``gap_bytes`` are stretches missing from connections that speak Kafka; ``skipped_bytes`` those in which no
    frame could be recognised; ``unfinished`` frames begin and do not end before their connection does. ``unanswered``
    requests should have been answered, and their answers were not seen; ``unmatched_responses`` answer no request that
    was seen. ``undecodable`` messages are of an API and version that ``wire`` defines and still could not be decoded,
    or of none that exists; ``left_over`` messages have bytes behind their body, which Kafka ignores. ``other_packets``
    carried no TCP, ``other_connections`` no Kafka; ``kraft`` are the APIs met that only KRaft nodes speak.
    ``dropped`` packets were missed while capturing, as the file itself says;
    ``duplicates`` were seen by several hosts and are left out, ``sources`` tell how files were
    read: how far apart their clocks are, what stayed encrypted.
    ``unreadable`` files are no captures, ``problems`` those of others, ``notes`` tell single cases.
    """

    packets: int = 0
    dropped: int = 0
    duplicates: int = 0
    cut_packets: int = 0
    connections: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    skipped_bytes: int = 0
    bad_lengths: int = 0
    unfinished: int = 0
    requests: int = 0
    responses: int = 0
    undecodable: int = 0
    left_over: int = 0
    unanswered: int = 0
    unmatched_responses: int = 0
    other_packets: Counter[str] = field(default_factory=Counter)
    other_connections: Counter[str] = field(default_factory=Counter)
    kraft: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keep ``text`` for people to read, unless there are many already."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def add(self, other: Quality) -> None:
        """Add the counts of ``other`` to these."""
        for f in fields(self):
            mine = getattr(self, f.name)
            theirs = getattr(other, f.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(self, f.name, mine + theirs)
        del self.notes[MAX_NOTES:]

    def to_json(self) -> str:
        return json.dumps({f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> Quality:
        quality = cls()
        for name, value in json.loads(text).items():
            setattr(quality, name, Counter(value) if isinstance(value, dict) else value)
        return quality

    @property
    def sound(self) -> bool:
        """Whether all that is in the capture was read, and is a ZooKeeper-mode cluster's. (Losses do not count.)"""
        return not (self.problems or self.kraft or self.bad_lengths or self.undecodable) and self.requests > 0

    def summary(self) -> str:
        """The counts that any reader should know before all else, also where they are 0."""
        return (
            f"{_count(self.packets, 'packet')}, {_count(self.requests, 'request')}, "
            f"{_count(self.responses, 'response')}; {_count(self.gaps, 'gap')} ({_count(self.gap_bytes, 'byte')}), "
            f"{_count(self.skipped_bytes, 'byte')} skipped, {self.cut_packets:,} cut short, "
            f"{self.undecodable:,} not decoded"
        )

    def lines(self) -> list[str]:
        """What is to be told, in words, worst first. Empty where all is well."""
        said = list(self.problems)
        if self.kraft:
            said.append(
                f"this capture holds KRaft traffic ({_names(self.kraft)}): there is no ZooKeeper-mode controller in it"
            )
        if not self.requests:
            what = _counted(self.other_connections, "connection") or _counted(self.other_packets, "packet")
            said.append("no Kafka traffic was found" + (f", but {what}" if what else ""))
        elif self.other_connections:
            said.append(f"left alone, for they are not Kafka: {_counted(self.other_connections, 'connection')}")
        if self.dropped:
            said.append(f"{_count(self.dropped, 'packet')} dropped while capturing, by the capture's own count")
        if self.duplicates:
            said.append(f"{_count(self.duplicates, 'packet')} seen on several hosts, and counted once")
        said += self.sources
        if self.other_connections["TLS"]:
            said.append("TLS is encrypted: kce decode --tls-keys opens it with a key log (SSLKEYLOGFILE)")
        if self.cut_packets:
            said.append(f"{_count(self.cut_packets, 'packet')} cut short when captured (snaplen)")
        if self.gaps:
            said.append(f"{_count(self.gaps, 'gap')} in connections, {_count(self.gap_bytes, 'byte')} missing")
        if self.bad_lengths:
            said.append(f"{_count(self.bad_lengths, 'frame length')} negative or above the limit")
        said += self.notes
        if self.skipped_bytes:
            said.append(f"{_count(self.skipped_bytes, 'byte')} skipped in which no frame could be recognised")
        if self.unfinished:
            said.append(f"{_count(self.unfinished, 'frame')} broken off at the end of a connection")
        if self.undecodable:
            said.append(f"{_count(self.undecodable, 'message')} that could not be decoded")
        if self.left_over:
            said.append(f"{_count(self.left_over, 'message')} with bytes behind the body, which Kafka ignores")
        if self.unmatched_responses:
            said.append(f"{_count(self.unmatched_responses, 'response')} to requests that were not captured")
        if self.unanswered:
            said.append(f"{_count(self.unanswered, 'request')} without an answer in the capture")
        return said


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _counted(counter: Counter[str], noun: str) -> str:
    return ", ".join(f"{_count(number, noun)} of {what}" for what, number in counter.most_common())


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
