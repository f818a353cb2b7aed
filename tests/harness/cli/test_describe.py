"""`kce describe` on a ZooKeeper in memory; `test_cli` runs the command."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from trio.testing import MockClock

from kce.harness.cli.describe import _print, problems, read_cluster
from kce.harness.errors import HarnessError
from kce.zookeeper.model import TopicPartition
from kce.zookeeper.store import Create, value
from tests.controller import requests
from tests.controller.support import World, world


async def shown(w: World, *, show_all: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    _print(console, await read_cluster(w.zk, "zk:2181"), show_all=show_all)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


async def test_a_cluster_with_much_pending(autojump_clock: MockClock) -> None:
    async with world(brokers=(1, 2, 3, 4)) as w:
        controller = await w.start_controller(1)
        await w.create_topic("orders", {0: [2, 3], 1: [3, 1], 2: [9]})
        await w.create_topic("gone", {0: [4, 3]})
        await w.stop_broker(3)
        await w.settle()
        requests.alter_partition_reassignments(controller, {TopicPartition("orders", 0): [4, 2]}, lambda _: None)
        await w.zk.ensure_paths(["/admin/delete_topics/gone"])
        await w.settle()
        controller.close()
        await w.settle()
        wanted = b'{"version":1,"partitions":[{"topic":"orders","partition":1,"replicas":[4]}]}'
        election = b'{"version":1,"partitions":[{"topic":"orders","partition":1}]}'
        for path, content in (
            ("/admin/reassign_partitions", wanted),
            ("/admin/preferred_replica_election", election),
        ):
            value((await w.store.write([Create(path, content)]))[0])
        lines = (await shown(w)).splitlines()
        assert lines[:11] == [
            "ZooKeeper zk:2181",
            "Controller node 1, epoch 1",
            "Topics 2, partitions 4, without leader 2, under-replicated 4",
            "Unhealthy Brokers 3,9 have replicas, but are not registered.",
            "2 of 4 partitions are without a leader.",
            "4 of 4 partitions are under-replicated.",
            "Moving orders-0",
            "To move orders-1 to 4",
            "To delete gone",
            "To elect orders-1",
            "",
        ]
        assert "Topic Partition Leader Epoch Replicas ISR" in lines
        assert "gone 0 -1 2 4,3 4 no leader; to be deleted" in lines
        assert "orders 0 2 2 4,2,3 2 under-replicated; moving: adding 4, removing 3" in lines
        assert "orders 1 1 1 3,1 1 under-replicated" in lines
        assert "orders 2 - - 9 - new" in lines


async def test_a_large_cluster_shows_what_needs_a_look(autojump_clock: MockClock) -> None:
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {**{p: [1, 2] for p in range(60)}, 60: [2, 9]})
        short = await shown(w)
        assert "t 60 2 0 2,9 2 under-replicated" in short
        assert "t 7 1 0 1,2 1,2" not in short
        assert "60 partitions are healthy; --all shows them" in short
        assert "t 7 1 0 1,2 1,2" in await shown(w, show_all=True)


@pytest.mark.parametrize(
    ("controller", "broker", "topic"),
    [
        (
            b'{"version":1,"brokerid":0,"timestamp":"1"}',
            b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}',
            b'{"version":1,"partitions":{"0":[0]}}',
        ),
        (
            b'{"version":2,"brokerid":0,"timestamp":"1","kraftControllerEpoch":-1}',
            b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://h:9092"]'
            b',"jmx_port":-1,"port":9092,"host":"h","version":5,"timestamp":"1"}',
            b'{"partitions":{"0":[0]},"topic_id":"ZRMnDiaeTTeyp03kUua0OA","adding_replicas":{},"removing_replicas":{},'
            b'"version":3}',
        ),
    ],
)
async def test_what_kafka_of_any_age_wrote(
    autojump_clock: MockClock, controller: bytes, broker: bytes, topic: bytes
) -> None:
    async with world(brokers=()) as w:
        with pytest.raises(HarnessError, match="there is no Kafka cluster in ZooKeeper at zk:2181"):
            await read_cluster(w.zk, "zk:2181")
        state = b'{"controller_epoch":4,"leader":0,"version":1,"leader_epoch":2,"isr":[0]}'
        await w.zk.ensure_paths(["/brokers/topics/t/partitions/0"])
        for path, content in (
            ("/controller", controller),
            ("/controller_epoch", b"4"),
            ("/brokers/ids/0", broker),
            ("/brokers/topics/u", topic),
            ("/brokers/topics/t/partitions/0/state", state),
        ):
            value((await w.store.write([Create(path, content)]))[0])
        found = await read_cluster(w.zk, "zk:2181")
        assert (found["controller"], found["controller_epoch"]) == (0, 4)
        assert found["brokers"][0]["listeners"] == {"PLAINTEXT": "h:9092"}
        assert found["partition_states"][0]["replicas"] == [0]
        assert json.loads(json.dumps(found))["partitions"] == 1


async def test_what_is_unhealthy_is_described_in_sentences() -> None:
    brokers = {
        1: {"broker_epoch": 5, "state": "running"}, 2: {"broker_epoch": 6, "state": "paused"},
        3: {"broker_epoch": None, "state": "running"}, 4: {"broker_epoch": None, "state": "stopped"},
    }  # fmt: skip
    found: dict[str, Any] = {
        "controller": 4, "brokers": brokers, "partition_states": [], "leaderless": 0, "under_replicated": 1,
        "partitions": 8,
    }  # fmt: skip
    assert problems(found) == [
        "The controller, node 4, is not registered in /brokers/ids.",
        "Node 2 is paused.",
        "Node 3 is running, but not registered in /brokers/ids.",
        "Node 4 is stopped.",
        "1 of 8 partitions is under-replicated.",
    ]
    healthy = {**found, "controller": 1, "brokers": {1: brokers[1]}, "under_replicated": 0}
    assert problems(healthy) == []
    assert problems(healthy | {"controller": None}) == ["There is no controller: nobody owns /controller."]
