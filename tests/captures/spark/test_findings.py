"""What `kce analyze` finds in captures of real Kafka, against answers that others gave.

The answers are the truth files (made with dpkt and kio), the scenario files (what ZooKeeper showed), and what the
brokers themselves logged.
"""

from __future__ import annotations

import collections
import datetime
import io
import re
import statistics

import pytest

from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Response
from kce.captures.files.pcap import CaptureFile
from kce.captures.files.pcapng_writer import PcapngWriter
from kce.captures.spark import analyze, job
from tests.captures.samples import CAPTURES, TOURS, scenario, state_change_log, truth

pytestmark = pytest.mark.slow

CONTROL = ("LeaderAndIsr", "StopReplica", "UpdateMetadata")
STALE = "stale_controller_epoch"


def seconds(time):
    return time.timestamp()


@pytest.mark.parametrize("name", CAPTURES)
class TestEverySample:
    def test_requests_by_api_and_version(self, findings_of, name):
        found = findings_of(name).requests
        assert {f"{r.api} v{r.version}": r.requests for r in found} == truth(name)["requests"]
        assert {f"{r.api} v{r.version}": r.responses for r in found} == truth(name)["responses"]

    def test_controllers_by_epoch(self, findings_of, name):
        sent = collections.defaultdict(list)
        for request in truth(name)["control_requests"]:
            if request["api"] in CONTROL:
                body = request["body"]
                sent[body["controller_epoch"], body["controller_id"]].append(request)
        found = {(c.controller_epoch, c.controller_id): c for c in findings_of(name).controllers}
        assert found.keys() == sent.keys()
        for key, requests in sent.items():
            controller = found[key]
            assert controller.requests == len(requests)
            assert seconds(controller.first_time) == pytest.approx(min(r["request_time"] for r in requests), abs=1e-3)
            assert seconds(controller.last_time) == pytest.approx(max(r["request_time"] for r in requests), abs=1e-3)
            assert set(controller.brokers) == {str(r["broker"]) for r in requests}
            refused = [r for r in requests if r.get("response", {}).get("error_code") == STALE]
            assert controller.fenced == len(refused)

    def test_the_controllers_are_those_that_zookeeper_showed(self, findings_of, name):
        shown = {step["epoch"]: step["controller"] for step in scenario(name)["steps"]}
        assert {c.controller_epoch: c.controller_id for c in findings_of(name).controllers} == shown

    def test_brokers_and_listeners(self, findings_of, name):
        wanted = set()
        for broker, ports in scenario(name)["brokers"].items():
            wanted.add((int(broker), "DATA", "127.0.0.1", ports["data"], ports["rack"]))
            if ports["control"] is not None:
                wanted.add((int(broker), "CONTROL", "127.0.0.1", ports["control"], ports["rack"]))
        found = {(e.broker_id, e.listener, e.host, e.port, e.rack) for e in findings_of(name).endpoints}
        assert found == wanted

    def test_latency_by_api_and_listener(self, findings_of, name):
        listener_of = {}
        for ports in scenario(name)["brokers"].values():
            listener_of[ports["data"]] = "DATA"
            listener_of[ports["control"]] = "CONTROL"
        took = collections.defaultdict(list)
        with CaptureFile(CAPTURES[name]) as capture:
            for message in Decoder(capture).messages():
                if isinstance(message, Response):
                    listener = listener_of[message.request.peers.server[1]]
                    took[message.request.api_name, message.request.version, listener].append(message.latency_ns / 1e6)
        found = findings_of(name).latency
        assert {(row.api, row.version, row.listener): row.requests for row in found} == {
            key: len(ms) for key, ms in took.items()
        }
        for row in found:
            values = took[row.api, row.version, row.listener]
            assert row.max_ms == pytest.approx(max(values))
            assert row.p50_ms == pytest.approx(statistics.median(values))
            if len(values) > 1:
                cuts = statistics.quantiles(values, n=100, method="inclusive")
                assert (row.p90_ms, row.p99_ms) == (pytest.approx(cuts[89]), pytest.approx(cuts[98]))

    def test_stale_epochs_inside_partitions_are_counted_apart(self, findings_of, name):
        partitions = collections.Counter()
        requests = collections.Counter()
        for r in truth(name)["control_requests"]:
            response = r.get("response", {})
            if r["api"] != "LeaderAndIsr" or response.get("error_code") != "none":
                continue
            errors = [*response.get("partition_errors", [])]
            errors += [error for topic in response.get("topics", []) for error in topic["partition_errors"]]
            if stale := sum(error["error_code"] == STALE for error in errors):
                key = (r["body"]["controller_id"], r["body"]["controller_epoch"], str(r["broker"]))
                partitions[key] += stale
                requests[key] += 1
        found = findings_of(name).stale_partitions
        keys = {(s.controller_id, s.controller_epoch, s.broker): s for s in found}
        assert {key: s.partitions for key, s in keys.items()} == partitions
        assert {key: s.requests for key, s in keys.items()} == requests

    def test_quality_is_that_of_decode(self, findings_of, name):
        with CaptureFile(CAPTURES[name]) as capture:
            decoder = Decoder(capture)
            for _ in decoder.messages():
                pass
        assert findings_of(name).quality == decoder.quality
        assert findings_of(name).quality.packets == truth(name)["packets"]
        assert findings_of(name).quality.unanswered == truth(name)["unanswered"]


def test_the_zombie(findings_of):
    (zombie,) = findings_of("kafka-3.9.1-zombie").zombies
    assert (zombie.controller_id, zombie.controller_epoch, zombie.later_epoch) == (2, 1, 2)
    assert (zombie.brokers, zombie.packets, zombie.requests) == (("3", "1"), (386, 388), 2)
    (alarm,) = [f for f in findings_of("kafka-3.9.1-zombie").findings() if f.severity == "alarm"]
    assert alarm.text == (
        "Controller 2 (epoch 1) acted as a zombie: after epoch 2 had begun it sent 2 control requests and was fenced "
        "by brokers 3 and 1 with STALE_CONTROLLER_EPOCH (packets 386, 388)."
    )
    assert [packet for _, packet in alarm.evidence] == [386, 388]
    fenced = findings_of("kafka-3.9.1-zombie").fenced
    assert [(f.error, f.controller_id, f.controller_epoch, f.broker, f.api, f.packets) for f in fenced] == [
        ("STALE_CONTROLLER_EPOCH", 2, 1, "3", "UpdateMetadata", (386,)),
        ("STALE_CONTROLLER_EPOCH", 2, 1, "1", "UpdateMetadata", (388,)),
    ]


@pytest.mark.parametrize("name", [name for name in CAPTURES if not name.endswith("-zombie")])
def test_nobody_else_is_accused(findings_of, name):
    assert findings_of(name).zombies == ()
    assert findings_of(name).fenced == ()
    assert [f for f in findings_of(name).findings() if f.severity == "alarm"] == []
    assert "No zombie controller: none was fenced after a later epoch had begun." in findings_of(name).sentences()


_LOGGED = (
    r"LeaderAndIsrPartitionState\(topicName='(?P<topic>[^']+)', partitionIndex=(?P<partition>\d+), "
    r"controllerEpoch=(?P<epoch>\d+), leader=(?P<leader>-?\d+), leaderEpoch=(?P<leader_epoch>\d+)",
    r"eceived LeaderAndIsr request PartitionState\(controllerEpoch=(?P<epoch>\d+), leader=(?P<leader>-?\d+), "
    r"leaderEpoch=(?P<leader_epoch>\d+).* for partition \[?(?P<topic>.+)[,-](?P<partition>\d+)\]? ?\(",
)


@pytest.mark.parametrize("name", TOURS)
def test_leadership_is_what_the_brokers_logged(findings_of, name):
    states = {}
    for line in sorted(state_change_log(name)):  # each begins with its time
        if "eceived LeaderAndIsr request" not in line:
            continue
        match = next(filter(None, (re.search(pattern, line) for pattern in _LOGGED)))
        partition = (match["topic"], int(match["partition"]))
        by_epoch = states.setdefault(partition, {})
        by_epoch.setdefault(int(match["leader_epoch"]), (int(match["leader"]), int(match["epoch"])))
    wanted = set()
    for (topic, partition), by_epoch in states.items():
        leader = None
        for leader_epoch, (new, controller_epoch) in sorted(by_epoch.items()):
            if new != leader:
                wanted.add((topic, partition, leader, new, leader_epoch, controller_epoch))
            leader = new
    found = [c for c in findings_of(name).leadership if c.to_leader != -2]
    assert {(c.topic, c.partition, c.from_leader, c.to_leader, c.to_epoch, c.decision_epoch) for c in found} == wanted
    assert len(found) == len(wanted) > 15
    assert [c.time for c in found] == sorted(c.time for c in found)


def test_before_topic_ids_leader_minus_2_marks_a_deletion(findings_of):
    deleted = [c for c in findings_of("kafka-0.10.2.2-tour").leadership if c.to_leader == -2]
    assert {(c.topic, c.partition) for c in deleted} == {("solo", 0), ("solo", 1), ("solo", 2)}
    assert len(deleted) == 3
    step = next(s for s in scenario("kafka-0.10.2.2-tour")["steps"] if s["step"] == "deleted solo")
    assert all(abs(seconds(c.time) - step["at"]) < 1 for c in deleted)


def test_under_load_every_topic_is_created_and_deleted_once(findings_of):
    changes = [c for c in findings_of("kafka-3.9.1-load").leadership if c.topic in ("t0", "t1", "t2")]
    steps = [step["step"] for step in scenario("kafka-3.9.1-load")["steps"]]
    assert steps.count("created under load") == steps.count("deleted under load") == 3
    for topic in ("t0", "t1", "t2"):
        of_topic = [c for c in changes if c.topic == topic]
        assert sorted(c.partition for c in of_topic if c.from_leader is None) == list(range(6))
        assert sorted(c.partition for c in of_topic if c.to_leader == -2) == list(range(6))
        assert len(of_topic) == 12


def write(path, packets):
    with PcapngWriter(path) as writer:
        for packet in packets:
            writer.packet(packet.time_ns, packet.link_type, packet.data)


def test_a_connection_that_runs_across_files_is_whole(findings_of, spark, tmp_path):
    name = "kafka-3.9.1-zombie"
    with CaptureFile(CAPTURES[name]) as capture:
        packets = list(capture)
    write(tmp_path / "b.pcapng", packets[:389])  # the names are in the wrong order: time counts
    write(tmp_path / "a.pcapng", packets[389:])
    only = ("requests", "latency", "stale_partitions", "zombies", "leadership")
    found = analyze([tmp_path / "a.pcapng", tmp_path / "b.pcapng"], spark=spark, only=only)
    whole = findings_of(name)
    assert (found.requests, found.latency) == (whole.requests, whole.latency)

    def counted(stale):
        return [(row.controller_epoch, row.broker, row.requests, row.partitions) for row in stale]

    assert counted(found.stale_partitions) == counted(whole.stale_partitions) != []
    assert found.quality == whole.quality
    assert [z.packets for z in found.zombies] == [z.packets for z in whole.zombies]
    changes = [(c.time, c.topic, c.partition, c.from_leader, c.to_leader) for c in found.leadership]
    assert changes == [(c.time, c.topic, c.partition, c.from_leader, c.to_leader) for c in whole.leadership]
    assert {c.file for c in found.leadership} == {str(tmp_path / "a.pcapng"), str(tmp_path / "b.pcapng")}


def test_times_are_utc(findings_of):
    first = findings_of("kafka-3.9.1-zombie").controllers[0].first_time
    assert first == datetime.datetime(2026, 11, 21, 2, 45, 15, 811664, tzinfo=datetime.UTC)


def test_of_what_tasks_read_the_driver_opens_no_file(spark, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the driver opened a capture")

    monkeypatch.setattr(job, "_is_here", lambda *_: False)  # as on a cluster
    monkeypatch.setattr(CaptureFile, "__init__", refuse)
    assert analyze([CAPTURES["kafka-3.9.1-zombie"]], spark=spark, only=["zombies"]).zombies
    with pytest.raises(AssertionError, match="the driver opened"):
        CaptureFile(io.BytesIO())
