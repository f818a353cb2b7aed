"""A split of a capture file: made by ``index``, read by ``pcap``."""

from __future__ import annotations

from typing import NamedTuple


class Split(NamedTuple):
    """The packets from ``begin`` to ``end``, numbered from ``first_packet``; ``end`` None is the end of the file.

    A reader begins at ``lead``, with ``lead_packets`` packets that belong to the split before. ``head`` is what it
    needs to know there: the pcap header, or the current section header and interfaces.
    """

    begin: int
    end: int | None
    first_packet: int
    packets: int | None
    head: bytes
    lead: int
    lead_packets: int


WHOLE = Split(0, None, 1, None, b"", 0, 0)
