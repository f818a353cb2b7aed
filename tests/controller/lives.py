"""Lives of a controller, of which a transcript is taken (tests/transcripts.py)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.harness.world.virtual_time import deterministic
from kce.metrics import Histogram
from kce.wire.metadata_version import LATEST, MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ElectionType, TopicPartition, UpgradeType
from kce.zookeeper.store import Create, Delete, SetData
from tests import transcripts
from tests.controller.support import Sent, World, alter_partition_request, texts, world
from tests.transcripts import RecordedStore, RecordedZooKeeper

BROKERS = (1, 2, 3, 4, 5)

_OF_BROKER = ("zk read /config/brokers/", "zk children /config/")


def tp(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


def state_of(controller: KafkaController) -> dict[str, str]:
    """All that the controller knows, by name."""
    context = controller.context
    found: dict[str, Any] = {
        "active": controller.active_controller_id,
        "settled": controller.is_settled,
        "epoch": (context.epoch, context.epoch_zk_version),
        "failures": {event: repr(e) for event, e in controller.loop.failures.items()},
        "finalized features": controller._role.features.finalized,
        "watched brokers": sorted(controller._role.brokers._watched),
        "watched topics": sorted(controller._role.topics._watched),
        "change handlers": sorted(controller._runtime.zk._change_handlers),
        "child handlers": sorted(controller._runtime.zk._child_handlers),
        "channels": sorted(controller.channels.queue_sizes().items()),
    }
    for name in (
        "shutting_down", "topics", "topic_ids", "topic_names", "preferred_replica_imbalance_count",
        "offline_partition_count", "topics_to_delete", "topics_with_deletion_started",
        "topics_ineligible_for_deletion",
    ):  # fmt: skip
        value = getattr(context, name)
        found[name] = sorted(value) if isinstance(value, set) else value
    found["replicas_on_offline_dirs"] = {b: sorted(tps) for b, tps in context.replicas_on_offline_dirs.items()}
    found["being_reassigned"] = list(map(str, context.being_reassigned.order()))
    for broker in context.live_or_shutting_down_brokers:
        found[f"broker {broker.id}"] = (broker.endpoints, broker.rack, dict(broker.features))
    states = {
        partition: [f"{broker_id} {state.name}" for broker_id, state in sorted(of_partition.items())]
        for partition, of_partition in context.replica_states
    }
    for partition in dict.fromkeys((*context.all_partitions(), *context.partition_states, *states)):
        assignment, known = context.assignment(partition), context.leadership.get(partition)
        found[str(partition)] = (
            f"{list(assignment.replicas)} +{list(assignment.adding)} -{list(assignment.removing)}, "
            f"{known and (*known.leader_and_isr, known.controller_epoch)}, "
            f"{context.partition_state(partition).name}, {states.get(partition)}"
        )
    for name, metric in controller.metrics.items():
        found[str(name)] = metric.count if isinstance(metric, Histogram) else metric.read()
    return {name: str(value) for name, value in found.items()}


class Life:
    """A cluster whose controller is on node 1, or on 2 where that has taken over."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.lines: list[str] = []
        #: of ZooKeeper only the operations and their first paths, of requests only partitions and leaders
        self.is_brief = False
        self._known: dict[int, dict[str, str]] = {}
        self._live_brokers: object = None

    @property
    def controller(self) -> KafkaController:
        return next(n.controller for n in self.w.nodes.values() if n.controller.is_active)

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        """What happens until nothing is pending, in the same order in each run."""
        self.lines.append(f"# {name}")
        begun = len(self.lines)
        with deterministic(1):
            yield
            await self.w.settle()
        # the node's broker, which shares the session, reads its own settings
        self.lines[begun:] = [line for line in self.lines[begun:] if not line.startswith(_OF_BROKER)]
        if self.is_brief:
            self._briefly_sent(begun)
            return
        self._sent()
        for node, of in self.w.nodes.items():
            now, before = state_of(of.controller), self._known.get(node, {})
            self.lines += [f"{node}: {name}: {now[name]}" for name in now if now[name] != before.get(name)]
            self.lines += [f"{node}: no {name}" for name in before if name not in now]
            self._known[node] = now

    def _briefly_sent(self, begun: int) -> None:
        self.lines[begun:] = [line[:200] for line in self.lines[begun:]]
        for broker in self.w.brokers:
            self.lines += [f"-> {broker}: {text}" for text in texts(self.w.log, broker)]
        self.w.take()

    def _sent(self) -> None:
        """Each request once, with the brokers that received it, and as their how manieth."""
        found: dict[str, list[str]] = {}
        for broker, fake in self.w.brokers.items():
            for number, sent in enumerate(fake.received, start=1):
                found.setdefault(self._text(sent), []).append(f"{broker}#{number}")
        self.lines += [f"-> {' '.join(to)}: {text}" for text, to in found.items()]
        self.w.take()

    def _text(self, sent: Sent) -> str:
        """Without the broker's epoch if it is right, and the brokers if they are as in the request before."""
        fields = wire.as_dict(sent.message, sent.header.api_version)
        if "live_brokers" in fields:
            known, self._live_brokers = self._live_brokers, fields["live_brokers"]
            if known == self._live_brokers:
                fields["live_brokers"] = "the same"
        epochs = [n.controller.context.broker_epochs.get(BrokerId(sent.broker)) for n in self.w.nodes.values()]
        if fields.get("broker_epoch") in epochs:
            del fields["broker_epoch"]
        return f"{type(sent.message).__name__} {sent.header.api_version} {transcripts.text(fields)}"

    def record(self, node: int) -> None:
        store = self.w.registrations[node]
        assert isinstance(store, RecordedStore)
        store.lines = self.lines

    # operations

    async def ask(self, name: str, request: wire.Message, version: int | None = None) -> None:
        version = request.__versions__.last if version is None else version

        def answered(response: wire.Message | None) -> None:
            self.lines.append("<- refused" if response is None else f"<- {transcripts.message(response, version)}")

        async with self.step(f"{name}: {transcripts.message(request, version)}"):
            self.controller.submit(request, version, answered)

    async def create(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        async with self.step(f"create {topic} {assignment}"):
            await self.w.create_topic(topic, dict(assignment))

    async def reassign(self, targets: Mapping[str, Sequence[int] | None]) -> None:
        topics: dict[str, list[wire.ReassignablePartition]] = {}
        for name, replicas in targets.items():
            asked = wire.ReassignablePartition(
                partition_index=tp(name).partition, replicas=None if replicas is None else tuple(replicas)
            )
            topics.setdefault(tp(name).topic, []).append(asked)
        await self.ask(
            "reassign",
            wire.AlterPartitionReassignmentsRequest(
                topics=tuple(wire.ReassignableTopic(name=t, partitions=tuple(ps)) for t, ps in topics.items())
            ),
        )

    async def reassign_in_zookeeper(self, targets: Mapping[str, Sequence[int]]) -> None:
        async with self.step(f"reassign in ZooKeeper {targets}"):
            wanted = {tp(name): tuple(map(BrokerId, replicas)) for name, replicas in targets.items()}
            data = cluster_nodes.encode_partition_reassignment(wanted)
            await self.w.store.write([Create(znodes.REASSIGN_PARTITIONS, data)])

    async def join_isr(self, name: str, isr: Sequence[int], version: int = 1) -> None:
        request = alter_partition_request(self.controller, tp(name), isr)
        await self.ask("join ISR", request, version)

    async def elect(self, names: Collection[str] | None, kind: ElectionType = ElectionType.PREFERRED) -> None:
        topics: dict[str, list[int]] = {}
        for name in names or ():
            topics.setdefault(tp(name).topic, []).append(tp(name).partition)
        asked = tuple(wire.ElectLeadersRequestTopicPartitions(topic=t, partitions=tuple(p)) for t, p in topics.items())
        await self.ask("elect", wire.ElectLeadersRequest(election_type=kind.value, topic_partitions=asked))

    async def update_features(
        self, updates: Sequence[tuple[str, int, UpgradeType]], *, validate_only: bool = False
    ) -> None:
        keys = tuple(
            wire.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind.value)
            for name, level, kind in updates
        )
        request = wire.UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
        await self.ask("update features", request)

    async def stop(self, *brokers: int) -> None:
        async with self.step(f"stop {brokers}"):
            for broker in brokers:
                await self.w.stop_broker(broker)

    async def start(self, *brokers: int) -> None:
        async with self.step(f"start {brokers}"):
            for broker in brokers:
                await self.w.start_broker(broker)

    async def write(self, *ops: Create | SetData | Delete) -> None:
        async with self.step(f"write {'; '.join(map(transcripts.operation, ops))}"):
            for result in await self.w.store.write(ops):
                assert not isinstance(result, Exception), result

    async def shut_down(self, broker: int, epoch: int | None = None) -> None:
        if epoch is None:
            epoch = self.controller.context.broker_epochs[BrokerId(broker)]
        await self.ask("shut down", wire.ControlledShutdownRequest(broker_id=broker, broker_epoch=epoch))


@asynccontextmanager
async def living(
    ibp: MetadataVersion = LATEST, features: Mapping[str, tuple[int, int]] | None = None, **settings: Any
) -> AsyncIterator[Life]:
    """Nodes 1 to 5, the controller on 1, which is recorded from its election on. ``features``: of all brokers."""
    async with world(brokers=BROKERS, ibp=ibp, features=features, server=RecordedZooKeeper()) as w:
        life = Life(w)
        life.record(1)
        async with life.step("start the controller"):
            w.spawn_controller(1, **settings)
        yield life
