"""The steps of `trace_scripts`: how each is done to a cluster whose brokers only record.

The brokers are registered in the driver's session, so that several can come or go in one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kce import wire
from kce.wire import control
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import cluster_nodes, znodes
from kce.zookeeper.model import BrokerId, LeaderAndIsr, Leadership, ReplicaAssignment, TopicPartition
from kce.zookeeper.store import Create, Delete, MetadataStore, NodeExists, SetData, Stat, value
from tests.interop.recording_brokers import RecordingBroker
from tests.interop.trace_driver import NOW_MS, Driver
from tests.interop.trace_scripts import Assignment, Partitions

_PREFERRED, _UNCLEAN = 0, 1
_TOPIC = 2
_SET, _DELETE = 0, 1
#: results of DeleteTopics, with or without a timeout, where the topic is marked now
_MARKED = (wire.ErrorCode.NONE, wire.ErrorCode.REQUEST_TIMED_OUT)


class Operations(Driver):
    """A method for each operation."""

    def __init__(
        self, store: MetadataStore, brokers: Mapping[int, RecordingBroker], address: str, ibp: MetadataVersion
    ) -> None:
        super().__init__(store, brokers, address)
        self._ibp = ibp
        self._moved = 0

    # brokers

    def _registrations(self, brokers: Iterable[int]) -> list[Create]:
        return [
            Create(
                znodes.broker_path(i),
                znodes.encode_broker(self.brokers[i].registration(), self._ibp, NOW_MS),
                ephemeral=True,
            )
            for i in brokers
        ]

    async def _multi(self, operations: Sequence[Create | Delete]) -> None:
        (answer,) = await self.store.multi([operations])
        value(answer)

    async def start(self, brokers: Sequence[int]) -> None:
        for i in brokers:
            self.brokers[i].failed.clear()
        self.alive |= set(brokers)
        self.expect_metadata()
        await self._multi(self._registrations(brokers))

    async def kill(self, brokers: Sequence[int]) -> None:
        self.alive -= set(brokers)
        self.expect_metadata()
        await self._multi([Delete(znodes.broker_path(i)) for i in brokers])

    async def bounce(self, brokers: Sequence[int]) -> None:
        """Gone and there again in one event."""
        for i in brokers:
            self.brokers[i].failed.clear()
        self.expect_metadata()
        await self._multi([*(Delete(znodes.broker_path(i)) for i in brokers), *self._registrations(brokers)])

    async def move_endpoint(self, broker: int) -> None:
        """Its registration is rewritten, with another address for clients."""
        self._moved += 1
        self.brokers[broker].data_port = 200 + self._moved
        self.expect_metadata()
        (create,) = self._registrations([broker])
        value((await self.store.write([SetData(create.path, create.data)]))[0])

    async def shut_down(self, broker: int, stale: bool = False) -> None:
        message = wire.ControlledShutdownRequest(broker_id=broker, broker_epoch=await self._epoch(broker) - stale)
        await self.ask(message, 3)

    async def _epoch(self, broker: int) -> int:
        stat = (await self.store.exists([znodes.broker_path(broker)]))[0]
        assert isinstance(stat, Stat)
        return stat.czxid

    async def failover(self) -> None:
        epoch = await self._controller_epoch()

        self.expect_metadata()
        all_know = self.expected
        assert all_know is not None

        async def elected() -> bool:
            return await self._controller_epoch() > epoch and await all_know()

        self.expected = elected
        value((await self.store.write([Delete(znodes.CONTROLLER)]))[0])

    async def _controller_epoch(self) -> int:
        found = await self.zk.get_controller_epoch()
        assert found is not None
        return found[0]

    # requests

    async def create(
        self,
        topic: str,
        assignment: Assignment,
        configs: Mapping[str, str] | None = None,
        timeout_ms: int = 60_000,
        times: int = 1,
    ) -> None:
        created = wire.CreatableTopic(
            name=topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                wire.CreatableReplicaAssignment(partition_index=p, broker_ids=replicas)
                for p, replicas in assignment.items()
            ),
            configs=tuple(wire.CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()),
        )
        await self.ask(wire.CreateTopicsRequest(topics=(created,) * times, timeout_ms=timeout_ms), 7)

    async def create_twice(self, topic: str, assignment: Assignment) -> None:
        await self.create(topic, assignment, times=2)

    async def create_in_zookeeper(self, topic: str, assignment: Assignment) -> None:
        """As an old tool does, without topic id."""
        partitions = {p: ReplicaAssignment(tuple(map(BrokerId, replicas))) for p, replicas in assignment.items()}
        create = Create(znodes.topic_path(topic), znodes.encode_topic(None, partitions))
        config = Create(znodes.topic_config_path(topic), cluster_nodes.encode_config({}))
        for answer in await self.store.write([config, create]):
            value(answer)
        path = znodes.topic_path(topic)

        async def has_id() -> bool:
            stat = (await self.store.exists([path]))[0]
            return stat is not None and stat.version > 0

        if self._ibp.supports_topic_ids:
            self.expected = has_id
        else:
            self.expect_reaction()

    async def add_partitions(self, topic: str, assignment: Assignment, timeout_ms: int = 60_000) -> None:
        added = wire.CreatePartitionsTopic(
            name=topic,
            count=max(assignment) + 1,
            assignments=tuple(wire.CreatePartitionsAssignment(broker_ids=assignment[p]) for p in sorted(assignment)),
        )
        await self.ask(wire.CreatePartitionsRequest(topics=(added,), timeout_ms=timeout_ms), 3)

    async def delete(self, topics: Sequence[str], timeout_ms: int = 0) -> None:
        states = tuple(wire.DeleteTopicState(name=topic) for topic in topics)
        answer = await self.ask(wire.DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms), 6)
        assert isinstance(answer, wire.DeleteTopicsResponse)
        if any(one.error_code in _MARKED for one in answer.responses):
            self.expect_reaction()

    async def delete_in_zookeeper(self, topics: Sequence[str]) -> None:
        markers = [znodes.delete_topic_path(topic) for topic in topics]
        await self._multi([Create(marker) for marker in markers])
        self.expect_reaction(*markers)

    async def configure(self, topic: str, name: str, value: str | None) -> None:
        change = wire.IncrementalAlterConfigsRequestAlterableConfig(
            name=name, config_operation=_DELETE if value is None else _SET, value=value
        )
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configs=(change,)
        )
        await self.ask(wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)

    async def reassign(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        topics = tuple(
            wire.ReassignableTopic(
                name=topic,
                partitions=tuple(
                    wire.ReassignablePartition(
                        partition_index=p, replicas=None if (to := targets[topic, p]) is None else tuple(to)
                    )
                    for p in partitions
                ),
            )
            for topic, partitions in _by_topic(targets).items()
        )
        await self.ask(wire.AlterPartitionReassignmentsRequest(topics=topics), 0)

    async def reassign_in_zookeeper(self, targets: Mapping[tuple[str, int], Sequence[int]]) -> None:
        wanted = {TopicPartition(*tp): tuple(map(BrokerId, replicas)) for tp, replicas in targets.items()}
        data = cluster_nodes.encode_partition_reassignment(wanted)
        (created,) = await self.store.write([Create(znodes.REASSIGN_PARTITIONS, data)])
        if not isinstance(created, NodeExists):  # of an earlier step that still waits for replicas
            value(created)
            self.expect_reaction(znodes.REASSIGN_PARTITIONS)

    async def elect(self, partitions: Partitions | None, preferred: bool) -> None:
        wanted = None
        if partitions is not None:
            wanted = tuple(
                wire.ElectLeadersRequestTopicPartitions(topic=topic, partitions=tuple(numbers))
                for topic, numbers in _by_topic(partitions).items()
            )
        message = wire.ElectLeadersRequest(
            election_type=_PREFERRED if preferred else _UNCLEAN, topic_partitions=wanted, timeout_ms=60_000
        )
        await self.ask(message, 2)

    async def elect_in_zookeeper(self, partitions: Partitions) -> None:
        data = cluster_nodes.encode_partition_list([TopicPartition(*tp) for tp in partitions])
        path = znodes.PREFERRED_REPLICA_ELECTION
        value((await self.store.write([Create(path, data)]))[0])

        async def gone() -> bool:
            return not any(await self.store.exists([path]))

        self.expected = gone

    async def allocate_producer_ids(self, broker: int) -> None:
        await self.ask(wire.AllocateProducerIdsRequest(broker_id=broker, broker_epoch=await self._epoch(broker)), 0)

    # what brokers do

    async def join_isr(self, partitions: Partitions) -> None:
        """Leaders ask for ISRs of all live replicas."""

        def joined(replicas: Sequence[int], state: LeaderAndIsr) -> list[int]:
            return [*state.isr, *sorted(r for r in replicas if r not in state.isr and r in self.alive)]

        await self._alter_isr(partitions, joined, stale=False)

    async def shrink_isr(self, partitions: Partitions, stale: bool = False) -> None:
        """Leaders ask for ISRs of themselves alone; ``stale``: from a state that is no longer theirs."""
        await self._alter_isr(partitions, lambda replicas, state: [state.leader], stale=stale)

    async def _alter_isr(
        self, partitions: Partitions, isr: Callable[[Sequence[int], LeaderAndIsr], list[int]], *, stale: bool
    ) -> None:
        """One AlterPartition of each live leader."""
        wanted = [TopicPartition(*tp) for tp in partitions]
        topics = await self.zk.get_topic_assignments({tp.topic for tp in wanted})
        states = await self.zk.get_partition_states([tp for tp in wanted if tp.topic in topics])
        by_leader: dict[int, dict[TopicPartition, list[int]]] = {}
        known: dict[TopicPartition, LeaderAndIsr] = {}
        for tp, found in states.items():
            if isinstance(found, Leadership) and found.leader_and_isr.leader in self.alive:
                known[tp] = found.leader_and_isr
                replicas = topics[tp.topic].partitions[tp.partition].replicas
                by_leader.setdefault(known[tp].leader, {})[tp] = isr(replicas, known[tp])
        for leader, isrs in sorted(by_leader.items()):
            asked = []
            for topic in dict.fromkeys(tp.topic for tp in isrs):
                topic_id = topics[topic].topic_id
                data = tuple(
                    wire.AlterPartitionRequestPartitionData(
                        partition_index=tp.partition,
                        leader_epoch=known[tp].leader_epoch,
                        new_isr=() if topic_id else tuple(isrs[tp]),
                        new_isr_with_epochs=tuple(wire.BrokerState(broker_id=i) for i in isrs[tp] if topic_id),
                        partition_epoch=known[tp].partition_epoch - stale,
                    )
                    for tp in isrs
                    if tp.topic == topic
                )
                asked.append(
                    wire.AlterPartitionRequestTopicData(
                        topic_name=topic, topic_id=topic_id or control.NO_TOPIC_ID, partitions=data
                    )
                )
            message = wire.AlterPartitionRequest(
                broker_id=leader, broker_epoch=await self._epoch(leader), topics=tuple(asked)
            )
            await self.ask(message, 3 if self._ibp.supports_topic_ids else 1)

    async def notify_isr_change(self, partition: tuple[str, int]) -> None:
        """As brokers before AlterPartition: the leader writes the ISR, here of itself alone, and notifies."""
        tp = TopicPartition(*partition)
        known = (await self.zk.get_partition_states([tp]))[tp]
        assert isinstance(known, Leadership)
        state = known.leader_and_isr
        shrunk = Leadership(state._replace(isr=(state.leader,)), known.controller_epoch)
        notification = f"{znodes.ISR_CHANGE_PREFIX}"
        for answer in await self.store.write(
            [
                SetData(znodes.partition_state_path(tp), znodes.encode_partition_state(shrunk)),
                Create(notification, cluster_nodes.encode_partition_list([tp]), sequential=True),
            ]
        ):
            value(answer)
        self.expect_reaction()

    async def log_dir_failure(self, broker: int, partitions: Partitions) -> None:
        """The broker answers LeaderAndIsr of these partitions with an error from now on, and notifies."""
        self.brokers[broker].failed |= {TopicPartition(*tp) for tp in partitions}
        created = Create(znodes.LOG_DIR_EVENT_PREFIX, cluster_nodes.encode_log_dir_event(broker), sequential=True)
        value((await self.store.write([created]))[0])
        self.expect_reaction()

    async def refuse_deletion(self, broker: int) -> None:
        self.brokers[broker].refuses_deletion = True

    async def accept_deletion(self, broker: int) -> None:
        self.brokers[broker].refuses_deletion = False


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found
