"""Days of a cluster in memory, of which a transcript is taken (tests/transcripts.py)."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from kce import wire
from kce.broker_stub.metrics import broker_metrics
from kce.broker_stub.node_client import NodeClient
from kce.harness import Cluster
from kce.harness.links import FrameEvent, Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.harness.world.memory_world import MemoryClusterWorld
from kce.harness.world.virtual_time import deterministic
from kce.metrics import Histogram
from tests import transcripts
from tests.clusters import node

#: of the cluster's time, after each step
REST_S = 3.0
LONGEST_BYTES = 24
PROPERTIES = {
    "log.dirs": "/logs-{id},/more-{id}", "auto.leader.rebalance.enable": "false",
    "zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000",
    "offsets.topic.num.partitions": "2", "offsets.topic.replication.factor": "2",
    "transaction.state.log.num.partitions": "2", "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1", "group.initial.rebalance.delay.ms": "0",
    "controlled.shutdown.retry.backoff.ms": "100",
}  # fmt: skip


class Day:
    """Three nodes; the controller is on the first."""

    def __init__(self, cluster: Cluster, world: MemoryClusterWorld) -> None:
        self.cluster = cluster
        self.lines: list[str] = []
        self._links = NodeLinks(world.observer(), Links(set()), -1)
        self._frames: list[FrameEvent] = []
        self._known: dict[str, str] = {}
        #: (who, what) of followers
        self._fetches: set[tuple[str, str]] = set()
        #: what UpdateMetadata said of live brokers
        self._brokers: list[str] = []

    def passed(self, event: FrameEvent) -> None:
        self._frames.append(event)

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        """What happens until three seconds later, in the same order in each run."""
        self.lines.append(f"# {name}")
        with deterministic(1):
            yield
            await trio.sleep(REST_S)
        frames, self._frames = self._frames, []
        self._between_nodes(frames)
        now = self._states()
        self.lines += [f"{key}: {now[key]}" for key in now if now[key] != self._known.get(key)]
        self.lines += [f"no {key}" for key in self._known if key not in now]
        self._known = now

    def _between_nodes(self, frames: Sequence[FrameEvent]) -> None:
        """Of each two nodes what they said, in order; of what followers fetch, what differs from all before."""
        by_pair: dict[str, list[str]] = {}
        for event in frames:
            if event.source is None or event.destination is None:
                continue
            first, last = event.source, event.destination
            pair = f"{first} -> {last}" if event.is_request else f"{last} <- {first}"
            said = by_pair.setdefault(f"{pair} {event.listener}", [])
            fields = wire.as_dict(event.message(), event.header.api_version)
            for name in ("session_epoch", "throttle_time_ms"):
                fields.pop(name, None)
            if "live_brokers" in fields:
                brokers = transcripts.text(fields["live_brokers"])
                if brokers not in self._brokers:
                    self._brokers.append(brokers)
                    self.lines.append(f"brokers {len(self._brokers)}: {brokers}")
                fields["live_brokers"] = f"brokers {self._brokers.index(brokers) + 1}"
            text = f"{event.api} {event.header.api_version} {transcripts.text(shortened(fields))}"
            if event.api != "Fetch":
                said.append(text)
            elif (pair, text) not in self._fetches:
                self._fetches.add((pair, text))
                said.append(text)
        for pair in sorted(by_pair):
            self.lines += [f"{pair}: {text}" for text in by_pair[pair]]

    def _states(self) -> dict[str, str]:
        found: dict[str, object] = {}
        for member in self.cluster.members:
            if member.state != "running":
                continue
            broker = node(self.cluster, member.id).broker
            manager = broker.replica_manager
            found[f"{member.id}"] = (
                broker.state.name, manager.controller_epoch, broker.metadata_cache.snapshot.controller_id
            )  # fmt: skip
            found[f"{member.id} offline"] = sorted(manager.offline_partitions)
            for tp in sorted(manager.partitions):
                partition = manager.partitions[tp]
                log = partition.log
                found[f"{member.id} {tp}"] = (
                    f"{partition} controller {partition.controller_epoch}, {partition.replicas}"
                    f" +{partition.adding_replicas} -{partition.removing_replicas}, {partition.pending}"
                    f", {log and (log.log_start_offset, log.high_watermark, log.log_end_offset)}"
                    f" {partition.epoch_start_offset}"
                )
        return {key: str(value) for key, value in found.items()}

    def metrics(self, node_id: int) -> None:
        """Note all of a broker, but those of time."""
        for name, metric in broker_metrics(node(self.cluster, node_id).broker):
            value = metric.count if isinstance(metric, Histogram) else metric.read()
            if value and "time" not in name.name.lower():
                self.lines.append(f"metric {node_id} {name}: {value if isinstance(value, int) else round(value, 3)}")

    # operations

    async def ask(self, node_id: int, message: wire.Message, version: int | None = None, *, step: bool = True) -> Any:
        """The answer; None if the node closes the connection. ``step``: it is one."""
        version = message.__versions__.last if version is None else version
        name = f"{node_id}: {transcripts.message(message, version)}"
        if not step:
            return await self._ask(node_id, message, version)
        async with self.step(name):
            return await self._ask(node_id, message, version)

    async def _ask(self, node_id: int, message: wire.Message, version: int) -> Any:
        host, port = self.cluster.member(node_id).addresses["DATA"].rsplit(":", 1)
        client = NodeClient(await self._links.dial(host, int(port), to=node_id, listener="DATA"), "client")
        try:
            answer = await client.request(message, version)
        except OSError:
            self.lines.append(f"{node_id}: closes the connection")
            return None
        finally:
            await client.aclose()
        fields = transcripts.text(shortened(wire.as_dict(answer, version)))
        self.lines.append(f"{node_id} answers: {type(answer).__name__} {fields}")
        return answer

    async def controller(self) -> int:
        return (await self.cluster.wait_for_controller()).id

    async def kill(self, node_id: int) -> None:
        async with self.step(f"kill {node_id}"):
            await self.cluster.kill(node_id)

    async def stop(self, node_id: int) -> None:
        async with self.step(f"stop {node_id}"):
            await self.cluster.stop(node_id)

    async def start(self, node_id: int) -> None:
        async with self.step(f"start {node_id}"):
            await self.cluster.start(node_id)


def shortened(value: Any) -> Any:
    """With long bytes as their length and checksum."""
    if isinstance(value, Mapping):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > LONGEST_BYTES:
        return f"<{len(value)} bytes {zlib.crc32(value):08x}>"
    return value


@asynccontextmanager
async def a_day(properties: Mapping[str, str] | None = None) -> AsyncIterator[Day]:
    world = memory(7)
    with deterministic(7):
        async with Cluster(
            3, world=world, racks=("a", "b", "c"), properties={**PROPERTIES, **(properties or {})}
        ) as cluster:
            day = Day(cluster, world)
            with cluster.links.listen(day.passed):
                async with day.step("all are there"):
                    while (await cluster.wait_for_controller()).id != 1:
                        await cluster.delete_controller()
                yield day
