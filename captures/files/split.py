"""One split of a capture file, as ``index`` makes them and ``pcap`` reads them."""

from __future__ import annotations

from typing import NamedTuple


class Split(NamedTuple):
    """The packets from ``begin`` to ``end``, numbered from ``first_packet``; all there is where ``end`` is None.

    A reader begins at ``lead``, with ``lead_packets`` packets that belong to what is before the split. ``head`` is what
    it must know there: pcap's header, or the section header and interfaces in force.
    """

    begin: int
    end: int | None
    first_packet: int
    packets: int | None
    head: bytes
    lead: int
    lead_packets: int


WHOLE = Split(0, None, 1, None, b"", 0, 0)
