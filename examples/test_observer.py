"""A test of an observer that reads packets: it must see every leader that there was, from a recording alone.

    pytest examples/test_observer.py

The cluster runs in memory, in virtual time, so that the recording is the same in every run; `kce capture` and tcpdump
write such files of real clusters. The observer here is twenty lines; replace `leaders_seen` with yours.
"""

from itertools import groupby
from pathlib import Path

import kce
from kce.captures.exchanges.decode import Decoder
from kce.captures.files.pcap import CaptureFile
from kce.wire import LeaderAndIsrRequest

Leaders = dict[tuple[str, int], list[int]]


def leaders_seen(recording: Path) -> Leaders:
    """The leaders of each partition, one after the other, from the LeaderAndIsr requests in the packets.

    Each leader epoch has one leader; requests to different brokers come in any order.
    """
    by_epoch: dict[tuple[str, int], dict[int, int]] = {}
    with CaptureFile(recording) as capture:
        for message in Decoder(capture).messages():
            if isinstance(message.body, LeaderAndIsrRequest):
                for topic in message.body.topic_states:
                    for state in topic.partition_states:
                        if state.leader >= 0:
                            epochs = by_epoch.setdefault((topic.topic_name, state.partition_index), {})
                            epochs[state.leader_epoch] = state.leader
    return {key: [leader for leader, _ in groupby(v for _, v in sorted(e.items()))] for key, e in by_epoch.items()}


def test_the_observer_sees_every_leader(tmp_path):
    recording = tmp_path / "traffic.pcapng"
    truth: Leaders = {("orders", 0): [1], ("orders", 1): [2]}
    with kce.SyncCluster(3, world=kce.memory(seed=7), record=recording) as cluster:
        cluster.create_topic("orders", assignment={0: [1, 2, 3], 1: [2, 3, 1]})
        for node in (1, 2):
            cluster.kill(node)
            cluster.expire_session(node)
            cluster.wait_until_settled()
            (topic,) = cluster.describe_topics(["orders"])
            for partition in topic.partitions:
                leaders = truth["orders", partition.partition]
                if leaders[-1] != partition.state.leader:
                    leaders.append(partition.state.leader)
            cluster.start(node)
            cluster.wait_until_settled()
    assert leaders_seen(recording) == truth
    assert max(map(len, truth.values())) > 1
