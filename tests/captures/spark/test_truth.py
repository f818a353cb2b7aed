"""The analyses of captures of real Kafka, against plain Python over truth.json, the scenarios, and tshark.

truth.json was made with dpkt and kio, scenario.json by the script that drove the cluster: neither knows this project.
"""

from __future__ import annotations

import collections
import itertools
import json
import subprocess

import pytest

from kce.captures.spark.findings import MAX_CITED
from tests.captures.samples import CAPTURES, scenario, truth
from tests.tools import require

pytestmark = pytest.mark.slow

CONTROL = ("LeaderAndIsr", "StopReplica", "UpdateMetadata")
STALE = "stale_controller_epoch"

#: before this Kafka's controller raised leader epochs in reassignments without sending them everywhere
OLD = [name for name in CAPTURES if name.split("-")[1] in ("0.10.2.2", "1.1.1", "2.3.1")]


def control(name):
    """Control requests in the order of their packets."""
    requests = [r for r in truth(name)["control_requests"] if r["api"] in CONTROL]
    return sorted(requests, key=lambda r: r["request_packet"])


def refused(request):
    return request.get("response", {}).get("error_code") == STALE


def states(name):
    """(request, topic, partition state) of all LeaderAndIsr and UpdateMetadata requests that were not refused."""
    for request in control(name):
        body = request["body"]
        if request["api"] == "StopReplica" or refused(request):
            continue
        for state in body.get("ungrouped_partition_states", ()):
            yield request, state["topic_name"], state
        for topic in body.get("topic_states", ()):
            for state in topic["partition_states"]:
                yield request, topic["topic_name"], state


def version(state):
    return state["zk_version"] if "zk_version" in state else state["partition_epoch"]


@pytest.mark.parametrize("name", CAPTURES)
class TestEverySample:
    def test_brokers_that_came_back(self, findings_of, name):
        back = {"restarted broker": "broker", "back": "broker", "broker back": "broker", "old controller back": "old",
                "resumed old controller": "old"}  # fmt: skip
        steps = [(s[back[s["step"]]], s["at"]) for s in scenario(name)["steps"] if s["step"] in back]
        found = findings_of(name).bounces
        if name.endswith("-zombie"):
            # broker 1 was resumed at the end of the capture's last second but one
            assert [b.broker_id for b in found] == [2, 1]
        else:
            assert [b.broker_id for b in found] == [broker for broker, _ in steps]
            for bounce, (_, at) in zip(found, steps, strict=True):
                assert abs(bounce.back_time.timestamp() - at) < 4
        assert all(b.to_epoch > b.from_epoch for b in found if b.to_epoch is not None)
        assert {b.to_epoch is None for b in found} == {name.split("-")[1] in ("0.10.2.2", "1.1.1")}

    def test_two_controllers_at_once(self, findings_of, name):
        wanted = collections.Counter()
        for early, late in itertools.combinations(control(name), 2):
            if late["body"]["controller_epoch"] < early["body"]["controller_epoch"]:
                wanted[late["body"]["controller_id"], late["body"]["controller_epoch"], late["request_packet"]] += 1
        found = {
            (o.controller_id, o.controller_epoch, p) for o in findings_of(name).overlaps for p in o.packets
        }  # fmt: skip
        assert found == set(wanted)

    def test_changes_of_isr(self, findings_of, name):
        versions = {}
        for _, topic, state in states(name):
            if state["leader"] != -2:
                versions.setdefault((topic, state["partition_index"]), {}).setdefault(version(state), state["isr"])
        wanted = set()
        for (topic, partition), of_version in versions.items():
            for (_, before), (number, after) in itertools.pairwise(sorted(of_version.items())):
                if set(before) != set(after):
                    left, joined = sorted(set(before) - set(after)), sorted(set(after) - set(before))
                    wanted.add((topic, partition, number, tuple(left), tuple(joined)))
        found = findings_of(name).isr_changes
        assert {
            (c.topic, c.partition, c.partition_epoch, tuple(sorted(c.left)), tuple(sorted(c.joined))) for c in found
        } == wanted
        assert len(found) == len(wanted) > 10
        assert sum(storm.changes for storm in findings_of(name).isr_storms) <= len(found)

    def test_nobody_was_elected_uncleanly_and_nobody_disagrees(self, findings_of, name):
        assert findings_of(name).unclean_elections == ()
        leaders = collections.defaultdict(set)
        for _, topic, state in states(name):
            if state["leader"] != -2:
                leaders[topic, state["partition_index"], state["leader_epoch"]].add(state["leader"])
        wanted = {key for key, of_epoch in leaders.items() if len(of_epoch) > 1}
        assert {(d.topic, d.partition, d.leader_epoch) for d in findings_of(name).disagreements} == wanted

    def test_epochs_that_went_down(self, findings_of, name):
        wanted = collections.Counter()
        highest = {}
        for request in control(name):
            epoch = request["body"]["controller_epoch"]
            if epoch < highest.get(request["broker"], 0):
                wanted["controller_epoch", request["request_packet"]] += 1
            elif not refused(request):
                highest[request["broker"]] = epoch
        epochs = {}
        for request, topic, state in states(name):
            if state["leader"] == -2:
                # before topic ids, what follows a deletion is another topic
                epochs.pop((request["broker"], topic, state["partition_index"]), None)
                continue
            key = request["broker"], topic, state["partition_index"]
            if state["leader_epoch"] < epochs.get(key, 0):
                wanted["leader_epoch", request["request_packet"]] += 1
            epochs[key] = max(epochs.get(key, 0), state["leader_epoch"])
        found = collections.Counter((r.epoch, r.packet) for r in findings_of(name).regressions)
        assert found == wanted
        assert any(epoch == "leader_epoch" for epoch, _ in wanted) == (name in OLD)

    def test_control_requests_that_share_a_listener(self, findings_of, name):
        found = {row.broker: row for row in findings_of(name).control_behind_data}
        if scenario(name)["control_listener"]:
            assert found == {}
            return
        wanted = collections.Counter(str(r["broker"]) for r in control(name))
        assert {broker: row.control_requests for broker, row in found.items()} == wanted
        assert {row.listener for row in found.values()} == {"DATA"}
        assert all(row.shared_connections == 0 for row in found.values())

    def test_what_metadata_cost(self, findings_of, name):
        requests, sent, changes = collections.Counter(), collections.Counter(), collections.defaultdict(set)
        for request in control(name):
            if request["api"] == "UpdateMetadata":
                requests[request["body"]["controller_epoch"]] += 1
        for request, topic, state in states(name):
            if request["api"] == "UpdateMetadata":
                sent[request["body"]["controller_epoch"]] += 1
                changes[request["body"]["controller_epoch"]].add((topic, json.dumps(state, sort_keys=True)))
        found = {c.controller_epoch: c for c in findings_of(name).metadata_cost}
        fenced = {z.controller_epoch for z in findings_of(name).zombies}  # what was refused cost all the same
        assert {epoch: c.requests for epoch, c in found.items()} == requests
        for epoch in found.keys() - fenced:
            assert found[epoch].states == sent[epoch]
            # older versions do not say what decides a change of these alone: the epoch of the deciding controller
            assert len({(t, s) for t, s in changes[epoch]}) >= found[epoch].changes > 0
            assert found[epoch].bytes_per_change == pytest.approx(found[epoch].request_bytes / found[epoch].changes)

    def test_what_was_sent_again(self, findings_of, name):
        same = collections.defaultdict(list)
        for request in control(name):
            body = json.loads(json.dumps(request["body"], sort_keys=True))
            body.pop("type_", None)
            body["live_brokers"] = sorted(map(json.dumps, body.get("live_brokers", ())))
            for states_of in ("ungrouped_partition_states", "topic_states", "topics", "ungrouped_partitions"):
                body[states_of] = sorted(map(json.dumps, body.get(states_of, ())))
            same[request["api"], str(request["broker"]), json.dumps(body, sort_keys=True)].append(
                request["request_packet"]
            )
        # requests that differ only in an order without meaning may count as different
        at_most = {(api, broker): [] for api, broker, _ in same}
        for (api, broker, _), packets in same.items():
            if len(packets) > 1:
                at_most[api, broker].append(set(packets))
        for row in findings_of(name).resends:
            assert any(set(row.packets) <= packets for packets in at_most[row.api, row.broker])
            assert row.requests == len(row.packets) > 1

    def test_requests_without_an_answer(self, findings_of, name):
        assert sum(row.requests for row in findings_of(name).unanswered) == truth(name)["unanswered"]

    def test_propagation(self, findings_of, name):
        # one leader epoch, sent once to each of three brokers at the beginning, can be checked by hand
        first = {}
        received = collections.defaultdict(dict)
        for request, topic, state in states(name):
            key = topic, state["partition_index"], state["leader_epoch"]
            if state["leader"] == -2:
                continue
            first.setdefault(key, request["request_time"])
            if request["api"] == "UpdateMetadata":
                received[str(request["broker"])].setdefault(key, request["request_time"])
        for row in findings_of(name).propagation:
            lags = [(at - first[key]) * 1000 for key, at in received[row.broker].items()]
            assert row.states <= len(lags)
            assert min(abs(row.max_ms - lag) for lag in lags) < 0.01

    def test_groups(self, findings_of, name):
        joins = truth(name)["requests"]
        wanted = sum(count for api, count in joins.items() if api.startswith("JoinGroup "))
        assert sum(row.joins for row in findings_of(name).rebalances) == wanted
        assert all(row.most_in_a_minute <= row.generations <= row.joins for row in findings_of(name).rebalances)
        if name.endswith("-tour"):
            assert "tour-group" in {row.group_id for row in findings_of(name).rebalances}

    def test_retransmits_and_resets_are_those_of_tshark(self, findings_of, name):
        def packets(display_filter):
            out = subprocess.run(
                [require("tshark"), "-r", CAPTURES[name], "-Y", display_filter, "-T", "fields", "-e", "frame.number"],
                check=True, capture_output=True, text=True, timeout=60,
            ).stdout  # fmt: skip
            return set(map(int, out.split()))

        again = packets("tcp.analysis.retransmission && tcp.len > 0")
        resets = packets("tcp.flags.reset == 1")
        found = findings_of(name).transport
        assert sum(row.retransmits for row in found) == len(again)
        assert {packet for row in found for packet in row.packets} == again
        assert {packet for row in found for packet in row.reset_packets} <= resets
        assert all(len(row.reset_packets) == row.resets for row in found)

    def test_every_finding_names_packets(self, findings_of, name):
        """But that there was no zombie."""
        without = [f.text for f in findings_of(name).findings() if not f.evidence]
        assert all(text.startswith("No zombie controller") for text in without), without

    def test_every_packet_that_a_finding_names_is_there_to_be_looked_at(self, findings_of, name):
        found = findings_of(name)
        shown = {(e.file, e.packet) for e in found.exchanges}
        named = {
            p
            for f in found.findings()
            if f.analysis not in ("transport", "outages", "silences")
            for p in f.evidence[:MAX_CITED]
        }
        assert named <= shown
        assert all(e.bodies for e in found.exchanges if e.api in CONTROL)
