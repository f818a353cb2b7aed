"""Captures that are cut or damaged in ways that real ones are, and analyses by Sail."""

from __future__ import annotations

import random

import pytest

from kce.captures.spark import job, sail
from tests.captures.exchanges.test_exactness import CASES, tap_of
from tests.captures.fast.test_bulk import packets_of
from tests.captures.made_files import pcap
from tests.captures.samples import unzipped
from tests.captures.wiretap import observe


@pytest.fixture
def on_sail(monkeypatch):
    """Analyses go to Sail, although Spark runs in this process, and nowhere else."""

    def refused(*args, **options):
        raise AssertionError("Spark is not needed")

    monkeypatch.setattr(sail, "is_usable", lambda: True)
    monkeypatch.setattr(job, "local_session", refused)


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """One capture as two files, the later one first by name; cut inside connections."""
    folder = tmp_path_factory.mktemp("halves")
    whole = unzipped("kafka-3.9.1-zombie")
    at = 24
    for _ in range(400):
        at += 16 + int.from_bytes(whole[at + 8 : at + 12], "little")
    (folder / "b.pcap").write_bytes(whole[:at])
    (folder / "a.pcap").write_bytes(whole[:24] + whole[at:])
    return folder / "a.pcap", folder / "b.pcap"


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """Packets lost, swapped and in fragments, and bodies that nobody can decode."""
    seen = observe(tap_of(0), 0, **CASES["all of it"])
    rng = random.Random(5)
    packets = []
    for number, (time_ns, packet) in enumerate(packets_of(seen.pcap)):
        data = bytearray(packet)
        if rng.random() < 0.02 and len(data) > 80:
            data[75] ^= 0xFF
        if number % 10 == 3 and len(data) > 60:
            first = 20 + (len(data) - 20) // 16 * 8
            for begin, end in ((20, first), (first, len(data))):
                offset = (begin - 20) // 8 | (0x2000 if end < len(data) else 0)
                header = (
                    data[:2] + (20 + end - begin).to_bytes(2) + number.to_bytes(2) + offset.to_bytes(2) + data[8:20]
                )
                packets.append((time_ns, bytes(header + data[begin:end])))
        else:
            packets.append((time_ns, bytes(data)))
    path = tmp_path_factory.mktemp("awkward") / "awkward.pcap"
    path.write_bytes(pcap(packets, link_type=101))
    return path
