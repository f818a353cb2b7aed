"""LEC: Kafka's own LeaderElectionCommand, and what it makes our cluster do (section 14 of
docs/controller-semantics.md; rules of section 11d). What the command asks for over the wire is LEC-1 to LEC-7 in
tests/controller/conformance/test_leader_election_command.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kce.harness import Cluster
from tests.background import InBackground
from tests.clusters import leaders_and_isrs, node
from tests.interop.tools import ELECTION, Tools

pytestmark = pytest.mark.slow


def admin_config(folder: Path, timeout_ms: int) -> list[str]:
    path = folder / "admin.properties"
    path.write_text(f"default.api.timeout.ms={timeout_ms}\nrequest.timeout.ms={timeout_ms // 2}\n")
    return ["--admin.config", str(path)]


class Nodes:
    """Three nodes of ours; ``a`` and ``b`` are those that are not the controller."""

    def __init__(self, cluster: Cluster, controller: int) -> None:
        self.cluster = cluster
        self.controller = controller
        self.a, self.b = sorted({1, 2, 3} - {controller})

    @property
    def bootstrap(self) -> str:
        return self.cluster.member(self.controller).addresses["DATA"]

    async def state(self, topic: str) -> tuple[int, set[int]]:
        """Leader and ISR."""
        return (await leaders_and_isrs(self.cluster, topic))[0]

    async def leave_without_leader(self, *topics: str) -> None:
        """For each topic, the ISR is a alone, which is dead; b is alive."""
        for topic in topics:
            await self.cluster.create_topic(topic, assignment={0: [self.a, self.b]})
        await self.cluster.stop(self.b)
        await self._until(topics, (self.a, {self.a}))
        await self.cluster.stop(self.a)
        await self._until(topics, (-1, {self.a}))
        await self.cluster.start(self.b)
        controller = node(self.cluster, self.controller).controller

        async def known() -> bool:
            return self.b in controller.context.broker_epochs

        await self.cluster.wait_until(known, f"broker {self.b} to be known to the controller")

    async def _until(self, topics: Sequence[str], state: tuple[int, set[int]]) -> None:
        async def holds() -> bool:
            return [await self.state(topic) for topic in topics] == [state] * len(topics)

        await self.cluster.wait_until(holds, f"{', '.join(topics)}: {state}")

    async def recover(self) -> None:
        await self.cluster.start(self.a)


@asynccontextmanager
async def three_nodes(zookeeper: str) -> AsyncIterator[Nodes]:
    # the last member of an ISR would try in vain to hand leadership over
    properties = {"controlled.shutdown.enable": "false"}
    async with Cluster(brokers=3, zookeeper=zookeeper, properties=properties) as cluster:
        yield Nodes(cluster, (await cluster.wait_for_controller()).id)


@pytest.fixture(scope="module")
def nodes(zookeeper: str) -> Iterator[InBackground[Nodes]]:
    with InBackground(lambda: three_nodes(f"{zookeeper}/elections")) as running:
        yield running


def test_custom_timeouts(tools: Tools, nodes: InBackground[Nodes], tmp_path: Path) -> None:  # rule 11.32
    n = nodes.value
    nodes.call(n.leave_without_leader, "timeouts")
    printed = tools.run(
        ELECTION, "--bootstrap-server", n.bootstrap, *admin_config(tmp_path, 30_000),
        "--election-type", "unclean", "--all-topic-partitions",
    )  # fmt: skip
    assert "Successfully completed leader election (UNCLEAN) for partitions timeouts-0" in printed
    assert nodes.call(n.state, "timeouts") == (n.b, {n.b})
    nodes.call(n.recover)


@pytest.mark.kafka("LEC-4")
def test_partitions_from_a_file(tools: Tools, nodes: InBackground[Nodes], tmp_path: Path) -> None:  # rule 11.32
    n = nodes.value
    nodes.call(n.leave_without_leader, "named", "other")
    path = tmp_path / "partitions.json"
    path.write_text(json.dumps({"partitions": [{"topic": "named", "partition": 0}]}))
    printed = tools.run(
        ELECTION, "--bootstrap-server", n.bootstrap, "--election-type", "unclean", "--path-to-json-file", str(path)
    )
    assert "Successfully completed leader election (UNCLEAN) for partitions named-0" in printed
    assert nodes.call(n.state, "named") == (n.b, {n.b})
    assert nodes.call(n.state, "other") == (-1, {n.a})
    nodes.call(n.recover)
