"""The alarms and warnings that an operator should get from each capture of real Kafka: all of them, and no other.

What happened is known from the scenarios: which broker was killed or stopped when, who was controller, what was created
and deleted under whose eyes.
"""

from __future__ import annotations

import datetime
import random
import re

import pytest

from kce.captures.files.pcap import CaptureFile
from kce.captures.spark import analyze
from kce.captures.spark.incidents import incidents
from tests.captures.made_files import pcap
from tests.captures.samples import CAPTURES, scenario

pytestmark = pytest.mark.slow

#: time without a leader after a kill: ZooKeeper's session timeout, 4 to 6 s in these clusters, less what was left of it
SECONDS = r"[3-6]\.\d\d s"

EXPECTED = {
    "kafka-3.9.1-zombie": [
        r"alarm: Controller 2 \(epoch 1\) acted as a zombie: .* by brokers 3 and 1 .* \(packets 386, 388\)",
        r"warning: 1 partition of broker 2 had no leader \(orders-1\): 4\.40 s, until broker 3 .*"
        r"Last sign of life of broker 2: sent LeaderAndIsr .* announced without a leader for 31 ms",
        r"warning: 2 partitions of broker 1 had no leader \(orders-0, during-0-0\), during-0-0 longest: 4\.35 s",
        r"warning: 1 control request took 1\.00 s or longer; the slowest, LeaderAndIsr to broker 2, 7\.17 s",
        r"warning: Broker 2 came back once",
        r"warning: Broker 1 came back once",
        r"warning: LeaderAndIsr: 4 x UNKNOWN_SERVER_ERROR from broker 2 .*; answered after up to 7\.2 s",
        r"warning: AlterPartition: 3 x NOT_CONTROLLER from brokers 1 and 2",
        r"warning: AlterPartition: 2 x FENCED_LEADER_EPOCH from broker 1",
    ],
    "kafka-3.9.1-load": [
        r"warning: 4 partitions of broker 2 had no leader \(orders-1, orders-4, orders-7, orders-10\).*: 3\.24 s, until"
        r" broker 3 .* Last sign of life of broker 2: closed a connection with FIN at 02:47:35\.847",
        r"warning: Broker 2 came back once, at 02:47:42",
        r"warning: Produce: 12 x UNKNOWN_TOPIC_OR_PARTITION from brokers 2 and 3 to 'tour-producer'",
    ],
    "kafka-3.9.1-tour": [
        rf"warning: 4 partitions of broker 1 had no leader .*: {SECONDS}, until broker 2 .*FIN at 02:44:24\.157",
        r"warning: Broker 1 came back 3 times, .*, 1 of them after a controlled shutdown\.",
        r"warning: AlterPartition: 4 x NOT_CONTROLLER from brokers 1 and 3",
    ],
    "kafka-2.8.2-tour": [
        rf"warning: 3 partitions of broker 1 had no leader .*: {SECONDS}, until broker 2 ",
        r"warning: Broker 1 came back 3 times, .*, 1 of them after a controlled shutdown\.",
        r"warning: StopReplica: 14 x FENCED_LEADER_EPOCH from broker 1",
        r"warning: AlterPartition: 4 x NOT_CONTROLLER from brokers 1 and 3",
        r"warning: Produce: 3 x UNKNOWN_TOPIC_OR_PARTITION from brokers 2 and 3 to 'tour-producer'",
    ],
    "kafka-2.3.1-tour": [
        rf"warning: 3 partitions of broker 1 had no leader .*: {SECONDS}, until broker 2 ",
        r"warning: Broker 1 came back 3 times, .*, 1 of them after a controlled shutdown\.",
        r"warning: LeaderAndIsr: 1 x UNKNOWN_TOPIC_OR_PARTITION from broker 3 to controller 3, for orders-3",
    ],
    "kafka-1.1.1-tour": [
        rf"warning: 3 partitions of broker 1 had no leader .*: {SECONDS}, until broker 2 ",
        rf"warning: 3 partitions of broker 3 had no leader .*: {SECONDS}, until broker 2 ",
        r"warning: Broker 1 came back 2 times, .*, 1 of them after a controlled shutdown\.",
        r"warning: Broker 3 came back once, at \S+\.$",
        r"warning: LeaderAndIsr: 1 x UNKNOWN_TOPIC_OR_PARTITION from broker 3 to controller 2, for orders-3",
        r"warning: 60 control requests shared a listener with 118 others at broker 2; 1 came behind",
        r"warning: Controller 2 \(epoch 1\) sent the same StopReplica 2 times to broker 1; 1 of them got no answer",
    ],
    "kafka-0.10.2.2-tour": [
        rf"warning: 3 partitions of broker 1 had no leader .*: {SECONDS}, until broker 2 ",
        r"warning: Broker 1 came back 3 times, .*, 1 of them after a controlled shutdown\.",
        r"warning: LeaderAndIsr: 1 x UNKNOWN_TOPIC_OR_PARTITION from broker 3 to controller 2, for orders-3",
        r"warning: 67 control requests shared a listener with 71 others at broker 3; 1 came behind",
        r"warning: Controller 2 \(epoch 1\) sent the same StopReplica 2 times to broker 1; 1 of them got no answer",
    ],
}


@pytest.mark.parametrize("name", CAPTURES)
def test_all_findings_that_should_be_and_no_other(findings_of, name):
    found = [f"{f.severity}: {f.text}" for f in findings_of(name).findings() if f.severity != "note"]
    unmatched = [pattern for pattern in EXPECTED[name] if not any(re.match(pattern, text) for text in found)]
    invented = [text for text in found if not any(re.match(pattern, text) for pattern in EXPECTED[name])]
    assert (unmatched, invented) == ([], [])
    assert len(found) == len(EXPECTED[name])


@pytest.mark.parametrize("name", CAPTURES)
def test_the_reassignment_of_a_tour_is_told(findings_of, name):
    found = [f.text for f in findings_of(name).findings() if f.analysis == "reassignments"]
    if not any(step["step"] == "reassigned" for step in scenario(name)["steps"]):
        assert found == []
        return
    (text,) = found
    assert re.fullmatch(
        r"Replicas of 2 partitions were reassigned: solo-0 from \[2\] to \[1, 3\] in (\d\d\d ms|\d\.\d\d s), "
        r"orders-3 from \[1, 3, 2\] to \[2, 1\]\.",
        text,
    )


def test_the_outages_of_the_zombies_began_when_they_were_stopped(findings_of):
    name = "kafka-3.9.1-zombie"
    stopped = [
        (step["old"], datetime.datetime.fromtimestamp(step["at"], datetime.UTC))
        for step in scenario(name)["steps"]
        if step["step"] == "paused controller"
    ]
    for broker, moment in stopped:
        rows = [row for row in findings_of(name).outages if row.from_leader == broker]
        assert rows
        for row in rows:
            assert abs((row.sign_time - moment).total_seconds()) < 0.2


@pytest.mark.parametrize("name", CAPTURES)
def test_every_broker_that_was_killed_has_an_outage_or_led_nothing(findings_of, name):
    for step in scenario(name)["steps"]:
        if step["step"].startswith("killed broker"):
            moment = datetime.datetime.fromtimestamp(step["at"], datetime.UTC)
            rows = [
                row for row in findings_of(name).outages
                if row.from_leader == step["broker"] and row.sign.startswith("closed")
            ]  # fmt: skip
            assert rows
            for row in rows:
                assert row.sign_time < row.leader_time < moment
                assert 3000 < row.real_ms < 7000


@pytest.mark.parametrize("name", CAPTURES)
def test_a_finding_cites_packets_that_there_are(findings_of, name):
    """It cites no more packets than it counts, and they contain what it states."""
    found = findings_of(name)
    for finding in found.findings():
        assert all(1 <= packet <= found.quality.packets for _, packet in finding.evidence)
        assert len(set(finding.evidence)) == len(finding.evidence)


def test_what_the_producer_suffered_of_the_failover_under_load(findings_of):
    """It wrote to the killed broker until its last sign of life, and again to the next leader."""
    found = [f for f in findings_of("kafka-3.9.1-load").findings() if f.analysis == "failovers"]
    (finding,) = found
    assert re.match(
        r"Failover of broker 2 at 02:47:35\.847: Produce of tour-producer took up to 3\.34 s \(median 49 ms before, "
        r"17 ms after\), 0 failed, 1 got no response; hit: orders for 3\.34 s \(packets 1565, 1609\)\.",
        finding.text,
    )


@pytest.mark.parametrize("name", CAPTURES)
def test_every_step_of_an_incident_names_its_packet(findings_of, name):
    found = findings_of(name)
    told = incidents(found)
    assert told
    for step in (step for incident in told for step in incident.steps):
        assert step.place is not None, step
        assert 1 <= step.place[1] <= found.quality.packets


@pytest.mark.parametrize(("name", "snap_length"), [
    ("kafka-1.1.1-tour", 400), ("kafka-2.8.2-tour", 400), ("kafka-3.9.1-load", 400), ("kafka-3.9.1-zombie", 250),
])  # fmt: skip
def test_nothing_follows_from_what_a_snap_length_cut_off(on_sail, tmp_path, name, snap_length):
    """All brokers came back, had been replaced as leaders, and were in sync in the end."""
    with CaptureFile(CAPTURES[name]) as capture:
        packets = [(each.time_ns, each.data[:snap_length], each.wire_bytes) for each in capture]
    path = tmp_path / "cut.pcap"
    path.write_bytes(pcap(packets))
    found = analyze([path]).findings()
    assert any("Control requests may be missing or incomplete in the capture" in each.text for each in found)
    told = [each.text for each in found if each.severity != "note"]
    false = "did not come back", "nobody took over", "under-replicated", "propagation", "at the end"
    assert [text for text in told if any(words in text for words in false)] == []
    for text in told:
        if "had no leader" in text:
            assert text.endswith(
                " The next leader may have been announced earlier: control requests may be missing or incomplete."
            )
        if "left the cluster" in text:
            assert "; whether it came back is unknown, as control requests may be missing" in text
    for each in found:
        if each.analysis == "under_replicated":
            assert "By the last state that is whole in the capture, " in each.text
            assert each.text.endswith(" were not in sync; later ones may be missing or incomplete.")
        if each.analysis == "propagation":
            assert each.text.endswith(", or less: control requests may be missing or incomplete.")


@pytest.mark.parametrize(("name", "lost"), [
    ("kafka-0.10.2.2-tour", 0.03), ("kafka-0.10.2.2-tour", 20), ("kafka-2.3.1-tour", 20), ("kafka-3.9.1-tour", 20),
    ("kafka-3.9.1-zombie", 0.1),
])  # fmt: skip
def test_nothing_follows_from_packets_that_are_missing(on_sail, tmp_path, findings_of, name, lost):
    """A share of the packets at random, or so many windows of half a second, with whole requests."""
    chance = random.Random(1)
    with CaptureFile(CAPTURES[name]) as capture:
        packets = [(each.time_ns, each.data, each.wire_bytes) for each in capture]
    if lost < 1:
        kept = [packet for packet in packets if chance.random() >= lost]
    else:
        windows = [chance.uniform(packets[0][0], packets[-1][0]) for _ in range(lost)]
        kept = [packet for packet in packets if not any(begin <= packet[0] < begin + 5e8 for begin in windows)]
    path = tmp_path / "lossy.pcap"
    path.write_bytes(pcap(kept))
    found = analyze([path])
    assert any("gaps in " in line and "connections, " in line for line in found.quality.lines())
    whole = [(each.analysis, each.severity) for each in findings_of(name).findings()]
    for each in found.findings():
        if each.analysis in ("silences", "isr_storms", "propagation", "regressions", "zombie_leaders", "departures"):
            assert each.severity == "note" or (each.analysis, each.severity) in whole, each.text
        if each.analysis == "bounces":
            assert "came back at least" in each.text
            assert "nobody took over" not in each.text
        if each.analysis == "outages" and "leader" in each.text:
            assert each.text.startswith("Leaders moved") or each.text.endswith(" may be missing or incomplete.")
        assert not each.text.startswith("No zombie controller")


def test_a_lost_packet_of_one_client_casts_no_doubt(on_sail, tmp_path):
    with CaptureFile(CAPTURES["kafka-3.9.1-tour"]) as capture:
        packets = [(each.time_ns, each.data, each.wire_bytes) for each in capture]
    number = next(n for n, packet in enumerate(packets) if n > len(packets) // 2 and b"tour-consumer" in packet[1])
    path = tmp_path / "lossy.pcap"
    path.write_bytes(pcap(packets[:number] + packets[number + 1 :]))
    found = analyze([path])
    assert (found.quality.gap_connections, found.quality.control_gaps) == (1, 0)
    assert not any("missing" in each.text for each in found.findings() if each.severity != "note")
