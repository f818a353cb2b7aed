"""One incident, several files: report what several hosts saw once, and compare their clocks."""

from __future__ import annotations

import random

import pytest

from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.tcp.incident import Incident
from kce.captures.tcp.segments import Segment
from tests.captures.exchanges.test_decode import decode as kce_decode
from tests.captures.made_files import SECOND, START_NS, ethernet, ipv4, pcap, tcp
from tests.captures.samples import CAPTURES

MS = 1_000_000


def messages_of(capture):
    decoder = Decoder(capture)
    found = [
        (type(m).__name__, *(m if isinstance(m, Request) else m.request).peers.client, m.frame_bytes)
        for m in decoder.messages()
    ]
    return sorted(found), decoder.quality


def write(path, packets):
    packets = sorted(packets, key=lambda packet: packet[0])
    path.write_bytes(pcap(packets, nanoseconds=True))
    return str(path)


def two_hosts(tmp_path, *, ahead_ns, way_ns, keep=lambda: True):
    """What the hosts at either side of each connection saw; the second one's clock is ahead."""
    one, other = [], []
    with CaptureFile(CAPTURES["kafka-3.9.1-tour"]) as capture:
        for packet in capture:
            port = int.from_bytes(packet.data[34:36], "big")
            leaves_one = port > int.from_bytes(packet.data[36:38], "big")
            at_one = packet.time_ns if leaves_one else packet.time_ns + way_ns
            at_other = (packet.time_ns + way_ns if leaves_one else packet.time_ns) + ahead_ns
            routed = bytes(6) + b"router" + packet.data[12:22] + b"\x3f" + packet.data[23:]
            addresses = (b"\x0a\0\0\x01", b"\x0a\0\0\x02")
            source, destination = addresses if leaves_one else addresses[::-1]
            data = [d[:26] + source + destination + d[34:] for d in (packet.data, routed)]
            if keep():
                one.append((at_one, data[0]))
            if keep():
                other.append((at_other, data[1]))
    return write(tmp_path / "one.pcap", one), write(tmp_path / "other.pcap", other)


@pytest.mark.parametrize(("ahead_ns", "way_ns"), [(0, 300_000), (7_654 * MS, 450_000), (-3_210 * MS, 20 * MS)])
def test_two_hosts_and_their_clocks(tmp_path, ahead_ns, way_ns):
    one, other = two_hosts(tmp_path, ahead_ns=ahead_ns, way_ns=way_ns)
    with CaptureFile(one) as capture:
        alone, _ = messages_of(capture)
    together, quality = messages_of(Incident([one, other]))
    assert together == alone
    incident = Incident([one, other])
    (clock,) = incident.clocks
    assert (clock.file, clock.reference) == (other, one)
    assert clock.ahead_ns == pytest.approx(ahead_ns, abs=1000)
    assert clock.way_ns == pytest.approx(way_ns, abs=1000)
    packets = list(incident)
    assert incident.duplicates == quality.duplicates == len(packets)
    assert [p.time_ns for p, _ in packets] == sorted(p.time_ns for p, _ in packets)
    assert any("the clock of" in line for line in quality.lines())


def test_what_one_host_lost_the_other_may_have(tmp_path):
    rng = random.Random(5)
    one, other = two_hosts(tmp_path, ahead_ns=50 * MS, way_ns=MS, keep=lambda: rng.random() > 0.02)
    with CaptureFile(one) as capture:
        alone, worse = messages_of(capture)
    together, quality = messages_of(Incident([one, other]))
    assert worse.gap_bytes > 20 * quality.gap_bytes
    assert len(together) > len(alone)


def conversation(count, *, start=0, source_port=40001):
    return [
        (START_NS + (start + i) * SECOND, ethernet(ipv4(tcp(bytes([i]), sequence=i, source_port=source_port))))
        for i in range(count)
    ]


def test_rotated_files_of_one_host_have_one_clock(tmp_path):
    first = write(tmp_path / "1.pcap", conversation(10))
    second = write(tmp_path / "2.pcap", conversation(10, start=10, source_port=40002))
    incident = Incident([second, first])
    packets = list(incident)
    assert (incident.clocks, incident.duplicates) == ([], 0)
    assert [s.source_port for _, s in packets] == [40001] * 10 + [40002] * 10
    assert [s.place.order for _, s in packets] == list(range(1, 21))
    assert [(s.place.file, s.place.packet) for _, s in packets[9:11]] == [(first, 10), (second, 1)]


def test_what_was_sent_again_stays_sent_again(tmp_path):
    again = conversation(10) + [(time_ns + 300 * MS, data) for time_ns, data in conversation(10)]
    files = [write(tmp_path / f"{name}.pcap", again) for name in "ab"]
    incident = Incident(files)
    assert len(list(incident)) == 20
    assert incident.duplicates == 20


def test_one_direction_only_is_reported_as_such(tmp_path):
    files = [
        write(tmp_path / "a.pcap", conversation(10)),
        write(tmp_path / "b.pcap", [(time_ns + 5 * MS, data) for time_ns, data in conversation(10)]),
    ]
    (clock,) = Incident(files).clocks
    assert (clock.ahead_ns, clock.way_ns, clock.in_common) == (5 * MS, None, 10)
    assert "network delay included" in str(clock)


def test_clocks_are_followed_from_file_to_file(tmp_path):
    files = [
        write(tmp_path / "a.pcap", conversation(10)),
        write(tmp_path / "c.pcap", [(t + 7 * MS, d) for t, d in conversation(10, source_port=40002)]),
        write(
            tmp_path / "b.pcap", [(t + 5 * MS, d) for p in (40001, 40002) for t, d in conversation(10, source_port=p)]
        ),
    ]
    assert [(c.file, c.reference, c.ahead_ns) for c in Incident(files).clocks] == [
        (files[2], files[0], 5 * MS),
        (files[1], files[0], 7 * MS),
    ]


def test_kce_decode_takes_several_files_and_globs(tmp_path):
    two_hosts(tmp_path, ahead_ns=9 * MS, way_ns=MS)
    code, out, err = kce_decode(str(tmp_path / "o*.pcap"), "--api", "LeaderAndIsr")
    assert code == 0
    assert "the clock of" in err
    assert len(out.splitlines()) == len(kce_decode(str(CAPTURES["kafka-3.9.1-tour"]), "--api", "4")[1].splitlines())
    assert all(isinstance(s, (Segment, str)) for _, s in Incident([str(tmp_path / "one.pcap")]))
    code, _, err = kce_decode("-", str(tmp_path / "one.pcap"))
    assert (code, "standard input cannot be one of several files" in err) == (1, True)
