"""Counts of what could and could not be read, reported before any conclusion."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

#: Single cases that are listed; all are counted.
MAX_NOTES = 20

#: Name of connections that may be Kafka's: bytes are missing where they would tell.
INCOMPLETE = "unrecognised, incomplete"

#: Name of packets to and from other ports than the given ones.
OF_OTHER_PORTS = "TCP of other ports"


@dataclass(slots=True)
class Quality:
    """Counts of one connection, one file, or all of them; they add up.

    ``gaps`` and ``gap_bytes`` are missing from ``gap_connections`` of Kafka, ``control_gaps`` from those of
    controllers to brokers, where they may hide whole requests; in ``skipped_bytes`` no frame could be recognised;
    ``unfinished`` frames do not end before their connection does. ``unanswered`` requests lack the response that Kafka
    sends; ``unmatched_responses`` lack their request. ``incomplete`` messages, by API and kind, lack bytes.
    ``undecodable`` messages are malformed, or of an unknown API or version; ``left_over`` messages have bytes behind
    their body, which Kafka ignores. ``other_packets`` carry no TCP, ``other_connections`` no Kafka; ``kraft`` are APIs
    that only KRaft nodes use. ``dropped`` packets were lost while capturing, as the file says; ``duplicates`` were
    captured by several hosts. ``sources`` are remarks on how files were read, such as clock differences. ``unreadable``
    files are no captures; ``problems`` are damage in others; ``notes`` are single cases.
    """

    packets: int = 0
    dropped: int = 0
    duplicates: int = 0
    cut_packets: int = 0
    connections: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    gap_connections: int = 0
    control_gaps: int = 0
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
    incomplete: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note, unless there are many."""
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
        """Whether everything in the capture was read and belongs to a ZooKeeper-mode cluster. Losses do not count."""
        damage = self.unreadable or self.problems or self.bad_lengths or self.undecodable
        return not (damage or self.truncated or self.kraft) and self.requests > 0

    @property
    def lossy(self) -> bool:
        """Whether requests may lack here that were made."""
        lost = self.gaps or self.dropped or self.skipped_bytes or self.incomplete or self.unmatched_responses
        return bool(lost or self.other_connections["TLS"] or self.other_connections[INCOMPLETE])

    @property
    def truncated(self) -> bool:
        """Whether the snap length hides messages: then findings may be missing."""
        return self.cut_packets > 0 and bool(self.incomplete or self.other_connections[INCOMPLETE])

    def summary(self) -> str:
        """The main counts, including zeros."""
        return (
            f"{_count(self.packets, 'packet')}, {_count(self.requests, 'request')}, "
            f"{_count(self.responses, 'response')}; {_count(self.gaps, 'gap')} ({_count(self.gap_bytes, 'byte')}), "
            f"{_count(self.skipped_bytes, 'byte')} skipped, {self.cut_packets:,} cut short, "
            f"{self.incomplete.total():,} incomplete, {self.undecodable:,} not decoded"
        )

    def lines(self) -> list[str]:
        """Remarks, worst first; empty if all is well."""
        lines = [*self.unreadable, *self.problems]
        if self.kraft:
            lines.append(
                f"this capture holds KRaft traffic ({_names(self.kraft)}): there is no ZooKeeper-mode controller in it"
            )
        if not self.requests:
            what = _counted(self.other_connections, "connection") or _counted(self.other_packets, "packet")
            lines.append("no Kafka traffic was found" + (f", but {what}" if what else ""))
        elif others := Counter({name: number for name, number in self.other_connections.items() if name != INCOMPLETE}):
            lines.append(f"not Kafka: {_counted(others, 'connection')}")
        if hidden := self.other_connections[INCOMPLETE]:
            cut = ", as after a short snap length" if self.cut_packets else ""
            lines.append(f"{_count(hidden, 'connection')} perhaps of Kafka: bytes that would tell are missing{cut}")
        if self.dropped:
            lines.append(f"{_count(self.dropped, 'packet')} dropped while capturing, by the capture's own count")
        if self.duplicates:
            lines.append(f"{_count(self.duplicates, 'packet')} captured on several hosts, counted once")
        lines += self.sources
        if self.other_connections["TLS"]:
            lines.append("TLS is encrypted: kce decode --tls-keys decrypts it with a key log (SSLKEYLOGFILE)")
        if self.incomplete:
            lines.append(f"{_count(self.incomplete.total(), 'message')} incomplete: {_kinds(self.incomplete)}")
        if self.cut_packets:
            lines.append(f"{_count(self.cut_packets, 'packet')} truncated by the snap length")
        if self.gaps:
            of_all = f"{self.gap_connections:,} of {_count(self.connections, 'connection')}"
            lines.append(f"{_count(self.gaps, 'gap')} in {of_all}, {_count(self.gap_bytes, 'byte')} missing")
        if self.bad_lengths:
            lines.append(f"{_count(self.bad_lengths, 'frame length')} negative or above the limit")
        lines += self.notes
        if self.skipped_bytes:
            lines.append(f"{_count(self.skipped_bytes, 'byte')} skipped, no frame recognised")
        if self.unfinished:
            lines.append(f"{_count(self.unfinished, 'frame')} incomplete at the end of a connection")
        if self.undecodable:
            lines.append(f"{_count(self.undecodable, 'message')} that could not be decoded")
        if self.left_over:
            lines.append(f"{_count(self.left_over, 'message')} with bytes behind the body, which Kafka ignores")
        if self.unmatched_responses:
            lines.append(f"{_count(self.unmatched_responses, 'response')} to requests that were not captured")
        if self.unanswered:
            lines.append(f"{_count(self.unanswered, 'request')} without an answer in the capture")
        return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _kinds(counter: Counter[str]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in counter.most_common())


def _counted(counter: Counter[str], noun: str) -> str:
    said = ((number, what.replace("unrecognised", "an unknown protocol")) for what, number in counter.most_common())
    return ", ".join(f"{_count(number, noun)} of {what}" for number, what in said)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
