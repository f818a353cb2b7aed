"""Partition states that the controller's node writes together with new topics, a round trip earlier than Kafka's.

The controller chooses them before the write (rule 6.7), and uses them if it chooses the same when it creates the
partitions. Otherwise it replaces them: no broker has been told of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final
from uuid import UUID

from kce.controller.partition_states import create_partition_states
from kce.zookeeper.kafka_zk_client import Creation, KafkaZkClient
from kce.zookeeper.model import BrokerId, EpochZkVersion, Leadership, TopicPartition
from kce.zookeeper.store import NodeExists, StoreError
from kce.zookeeper.znodes import partition_state_path

#: with more partitions to create, another round trip does not matter
MOST: Final = 100

#: a partition of the topic with this id: several clients may create a topic of that name at a time, and one succeeds
Prepared = tuple[UUID | None, TopicPartition]

#: the state of a new partition with these replicas; None if none of them is alive
Choose = Callable[[TopicPartition, Iterable[BrokerId]], Leadership | None]


class PreparedStates:
    """Of partitions that are not created yet."""

    def __init__(self, zk: KafkaZkClient) -> None:
        self._zk = zk
        self._creations: dict[Prepared, Creation] = {}
        #: whose states are taken to be written
        self.under_way: Creation | None = None

    def prepare(self, creation: Creation, choose: Choose, expected: EpochZkVersion) -> None:
        """Add a state for every partition of ``creation``, or none."""
        if len(self._creations) + sum(len(topic.partitions) for topic in creation.topics.values()) > MOST:
            return
        states: dict[str, dict[TopicPartition, Leadership]] = {}
        for topic, assignment in creation.topics.items():
            chosen = states[topic] = {}
            for partition, replicas in assignment.partitions.items():
                tp = TopicPartition(topic, partition)
                state = choose(tp, replicas.replicas)
                if state is None:
                    return
                chosen[tp] = state
        creation.states, creation.expected = states, expected
        for topic, chosen in states.items():
            topic_id = creation.topics[topic].topic_id
            self._creations.update(((topic_id, tp), creation) for tp in chosen)

    async def create(
        self, states: Mapping[TopicPartition, Leadership], topic_ids: Mapping[str, UUID], expected: EpochZkVersion
    ) -> dict[TopicPartition, StoreError | None]:
        """``create_partition_states`` of those that are not written as they are to be. Raises StoreError."""
        creations = {tp: creation for tp in states if (creation := self._creations.get((topic_ids.get(tp.topic), tp)))}
        prepared = {tp: creation.states[tp.topic][tp] for tp, creation in creations.items()}
        created: dict[TopicPartition, StoreError | None] = {
            tp: None
            for tp, state in prepared.items()
            if state == states[tp] and (creations[tp].is_written or creations[tp] is self.under_way)
        }
        if rest := {tp: state for tp, state in states.items() if tp not in created}:
            created |= await create_partition_states(self._zk, rest, expected)
            if replaced := await self._only_prepared(prepared, created):
                await self._zk.delete(list(map(partition_state_path, replaced)), expected)
                created |= await create_partition_states(self._zk, {tp: states[tp] for tp in replaced}, expected)
        done = [tp for tp, error in created.items() if error is None]
        self.forget([(topic_ids.get(tp.topic), tp) for tp in done if tp not in creations or creations[tp].is_written])
        return created

    async def _only_prepared(
        self, prepared: Mapping[TopicPartition, Leadership], created: Mapping[TopicPartition, StoreError | None]
    ) -> list[TopicPartition]:
        """Those whose state in ZooKeeper is the one that was prepared, and is not the one that is to be."""
        exist = [tp for tp in prepared if isinstance(created[tp], NodeExists)]
        found = await self._zk.get_partition_states(exist) if exist else {}
        return [tp for tp, state in found.items() if state == prepared[tp]]

    def ended(self) -> Collection[Prepared]:
        """Those whose topics were written, or were not: later reads have them, or they never will."""
        return [prepared for prepared, creation in self._creations.items() if creation.ended.is_set()]

    def forget(self, some: Iterable[Prepared]) -> None:
        for prepared in some:
            self._creations.pop(prepared, None)

    def clear(self) -> None:
        self._creations.clear()
