"""Random lives of a cluster: after any sequence of faults, the controller's state is ZooKeeper's, no event fails,
and once everybody is back everything that was begun is finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
from trio.testing import MockClock

from kce.controller.events import LeaderRebalanceDue
from kce.controller.kafka_controller import KafkaController
from kce.controller.states import PartitionState
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, ElectionType, Leadership, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, Delete, SetData
from tests.controller import requests
from tests.controller.support import World, join_isr, world

BROKERS = (1, 2, 3, 4, 5)
#: contenders; they live as long as the world, apart from their sessions
CONTROLLERS = (1, 2)


class Life:
    def __init__(self, w: World, random: Random) -> None:
        self.w = w
        self.random = random
        self.topics = 0
        self.actions: list[Callable[[], Awaitable[None]]] = [
            self.create_topic, self.delete_topic, self.add_partition, self.stop_broker, self.start_broker,
            self.bounce_broker, self.controlled_shutdown, self.reassign, self.reassign, self.reassign_by_znode,
            self.cancel, self.elect, self.elect_by_znode, self.grow_isrs, self.grow_isrs, self.lose_controller,
            self.expire_controller, self.rebalance,
        ]  # fmt: skip

    @property
    def controller(self) -> KafkaController:
        (active,) = (n.controller for n in self.w.nodes.values() if n.controller.is_active)
        return active

    async def partitions(self) -> dict[TopicPartition, ReplicaAssignment]:
        topics = await self.w.zk.get_topic_assignments(await self.w.zk.get_topics())
        return {TopicPartition(t, p): a for t, found in topics.items() for p, a in found.partitions.items()}

    async def some_partition(self) -> TopicPartition | None:
        known = sorted(await self.partitions())
        return self.random.choice(known) if known else None

    def some_brokers(self) -> list[int]:
        return self.random.sample(BROKERS, self.random.randint(1, 3))

    def mortal(self, alive: bool) -> list[int]:
        return [b for b in BROKERS if b not in CONTROLLERS and (b in self.w.registrations) == alive]

    # what may happen

    async def create_topic(self) -> None:
        self.topics += 1
        replicas = [self.some_brokers() for _ in range(self.random.randint(1, 3))]
        await self.w.create_topic(f"t{self.topics}", dict(enumerate(replicas)))

    async def delete_topic(self) -> None:
        moving = {tp.topic for tp in self.controller.context.being_reassigned}
        topics = sorted(await self.w.zk.get_topics() - moving)
        if topics and self.random.random() < 0.5:
            await self.w.zk.ensure_paths([znodes.delete_topic_path(self.random.choice(topics))])

    async def add_partition(self) -> None:
        tp = await self.some_partition()
        if tp is not None and not self.controller.context.is_queued_for_deletion(tp.topic):  # else it is undone (10.32)
            found = (await self.w.zk.get_topic_assignments([tp.topic]))[tp.topic]
            added = ReplicaAssignment(tuple(BrokerId(b) for b in self.some_brokers()))
            grown = found.partitions | {len(found.partitions): added}
            await self.w.store.write([SetData(znodes.topic_path(tp.topic), znodes.encode_topic(found.topic_id, grown))])

    async def stop_broker(self) -> None:
        if alive := self.mortal(True):
            await self.w.stop_broker(self.random.choice(alive))

    async def start_broker(self) -> None:
        if dead := self.mortal(False):
            await self.w.start_broker(self.random.choice(dead))

    async def bounce_broker(self) -> None:
        if alive := self.mortal(True):
            await self.w.bounce_broker(self.random.choice(alive))

    async def controlled_shutdown(self) -> None:
        if alive := self.mortal(True):
            broker = self.random.choice(alive)
            requests.controlled_shutdown(self.controller, broker, -1, lambda _: None)
            await self.w.settle()
            await self.w.stop_broker(broker)

    async def reassign(self) -> None:
        tp, target = await self.some_partition(), self.some_brokers()
        if tp is not None and self.may_move(tp, target):
            requests.alter_partition_reassignments(self.controller, {tp: target}, lambda _: None)

    async def reassign_by_znode(self) -> None:
        tp, target = await self.some_partition(), self.some_brokers()
        if tp is not None and self.may_move(tp, target):
            data = cluster_nodes.encode_partition_reassignment({tp: [BrokerId(b) for b in target]})
            await self.w.store.write([Create(znodes.REASSIGN_PARTITIONS, data)])

    async def cancel(self) -> None:
        movable = [tp for tp in await self.partitions() if self.may_move(tp, ())]
        requests.alter_partition_reassignments(self.controller, dict.fromkeys(movable), lambda _: None)

    def may_move(self, tp: TopicPartition, target: Sequence[int]) -> bool:
        """Exclude what ends badly in Kafka too: without a leader, the new assignment is written but not sent (11.2,
        11.12); if only adding replicas are in the ISR and are stopped, no leader remains (11.9); a topic deleted
        during its reassignment leaves its entry in the znode (10.39)."""
        context = self.controller.context
        known = context.leadership.get(tp)
        if known is None or context.is_queued_for_deletion(tp.topic):
            return False
        return bool(set(known.leader_and_isr.isr) & {*target, *context.assignment(tp).origin})

    async def elect(self) -> None:
        known = [tp for tp in await self.partitions() if tp in self.controller.context.leadership]
        requests.elect_leaders(self.controller, known, self.random.choice(list(ElectionType)), lambda _: None)

    async def elect_by_znode(self) -> None:
        known = [tp for tp in await self.partitions() if tp in self.controller.context.leadership]
        data = cluster_nodes.encode_partition_list(known)
        await self.w.store.write([Create(znodes.PREFERRED_REPLICA_ELECTION, data)])

    async def grow_isrs(self) -> None:
        """Every leader adds missing live replicas to its ISR, and removes dead ones."""
        for tp in await self.partitions():
            context = self.controller.context
            known = context.leadership.get(tp)
            if known is None or known.leader_and_isr.leader not in context.live_broker_ids:
                continue
            now, live = known.leader_and_isr.isr, context.live_broker_ids
            isr = tuple(r for r in dict.fromkeys((*now, *context.replicas(tp))) if r in live)
            if isr != now:
                assert await join_isr(self.w, self.controller, tp, isr) == 0

    async def lose_controller(self) -> None:
        await self.w.store.write([Delete(znodes.CONTROLLER)])

    async def expire_controller(self) -> None:
        self.w.server.expire(self.w.nodes[self.controller.config.broker_id].store)

    async def rebalance(self) -> None:
        self.controller.loop.put(LeaderRebalanceDue())

    # what must hold

    async def check(self) -> None:
        context = self.controller.context
        for node in self.w.nodes.values():
            assert node.controller.loop.failures == {}
        stored = await self.partitions()
        assert {tp: context.assignment(tp) for tp in context.all_partitions()} == stored
        states = await self.w.zk.get_partition_states(list(stored))
        for tp, state in states.items():
            known = context.leadership.get(tp)  # its controller epoch may be ours where nothing was written (6.28)
            stored_state = state.leader_and_isr if isinstance(state, Leadership) else None
            assert (known.leader_and_isr if known else None) == stored_state, tp
        moving = {tp for tp, a in stored.items() if a.is_being_reassigned}
        assert moving <= context.being_reassigned
        live = [tp for tp in context.leadership if not context.is_queued_for_deletion(tp.topic)]
        assert context.preferred_replica_imbalance_count == sum(
            state.isr.count(first) if first in stored[tp].adding else state.leader != first
            for tp in live
            for first, state in [(stored[tp].replicas[0], context.leadership[tp].leader_and_isr)]
        )
        assert context.offline_partition_count == len(context.partitions_in_state(PartitionState.OFFLINE))
        for tp in live:
            state = context.leadership[tp].leader_and_isr
            online = set(state.isr) & set(stored[tp].replicas) & context.live_broker_ids
            assert (state.leader in online) == bool(online), (tp, state, context.live_broker_ids)

    async def finish(self) -> None:
        """All brokers return, all leaders complete their ISRs: then nothing is pending."""
        for broker in self.mortal(False):
            await self.w.start_broker(broker)
            await self.w.settle()
        for _ in range(3):
            await self.grow_isrs()
            await self.w.settle()
        await self.check()
        stored = await self.partitions()
        states = await self.w.zk.get_partition_states(list(stored))
        for tp, assignment in stored.items():
            assert not assignment.is_being_reassigned, tp
            state = states[tp]
            assert isinstance(state, Leadership), (tp, state)
            assert set(state.leader_and_isr.isr) == set(assignment.replicas), tp
        for path in (znodes.REASSIGN_PARTITIONS, znodes.PREFERRED_REPLICA_ELECTION):
            assert await self.w.get(path) is None
        assert await self.w.zk.get_topic_deletions() == set()


@pytest.mark.parametrize("seed", range(10))
async def test_a_random_life(autojump_clock: MockClock, seed: int) -> None:
    async with world(brokers=BROKERS) as w:
        for broker_id in CONTROLLERS:
            await w.start_controller(broker_id)
        life = Life(w, Random(seed))
        done = []
        for _ in range(40):
            action = life.random.choice(life.actions)
            done.append(action.__name__)
            try:
                await action()
                await w.settle()
                await life.check()
            except BaseException as e:
                e.add_note(f"after {done}")
                raise
        await life.finish()
