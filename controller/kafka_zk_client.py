"""Kafka's nodes as typed operations: what the controller and the node's registration ask of ZooKeeper.

Paths and JSON are `zk_data`'s, watches and fencing `zk_client`'s. Errors about single nodes come back in place where
the rules sort them one by one; ControllerMoved and SessionExpired are raised.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controller import zk_data as zd
from controller.errors import ControllerMoved, IllegalState
from controller.model import (
    Broker,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicAssignment,
    TopicPartition,
)
from controller.store import (
    BadVersion,
    Check,
    Create,
    Data,
    Delete,
    MetadataStore,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetData,
    Stat,
    StoreError,
    value,
)
from controller.zk_client import UNFENCED, ZkClient
from wire.metadata_version import MetadataVersion

log = logging.getLogger(__name__)


class BrokerIdInUse(Exception):
    """Another live session has registered that broker id, or those endpoints (rules 1.22, 1.24)."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Rule 1.51: partitions written, those to be tried again for their version, those that failed and why."""

    updated: dict[TopicPartition, LeaderAndIsr]
    retry: list[TopicPartition]
    failed: dict[TopicPartition, StoreError]


class KafkaZkClient(ZkClient):
    """``now_ms`` is wall-clock time for the timestamps in nodes; ``new_uuid`` makes cluster and topic ids."""

    def __init__(
        self, store: MetadataStore, *, now_ms: Callable[[], int], new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    ) -> None:
        super().__init__(store)
        self.now_ms = now_ms
        self.new_uuid = new_uuid
        self._registered_session = 0

    # start-up

    async def ensure_paths(self, paths: Iterable[str]) -> None:
        """Make persistent nodes, parents included; those that exist are left alone."""
        wanted = list(paths)
        missing = [p for p, stat in zip(wanted, await self.store.exists(wanted), strict=True) if stat is None]
        levels: dict[int, dict[str, None]] = {}
        for path in missing:
            parts = path.strip("/").split("/")
            for depth in range(1, len(parts) + 1):
                levels.setdefault(depth, {})["/" + "/".join(parts[:depth])] = None
        for depth in sorted(levels):
            for answer in await self.store.write([Create(path) for path in levels[depth]]):
                if not isinstance(answer, NodeExists):
                    value(answer)

    async def make_top_level_paths(self) -> None:
        await self.ensure_paths(zd.TOP_LEVEL)  # rule 1.3

    async def get_or_create_cluster_id(self) -> str:
        """Rule 1.40: who loses the race reads the winner's."""
        if (found := await self.get_one(zd.CLUSTER_ID)) is not None:
            return zd.decode_cluster_id(found.data)
        await self.ensure_paths(["/cluster"])
        made = zd.encode_topic_id(self.new_uuid())
        answer = (await self.store.write([Create(zd.CLUSTER_ID, zd.encode_cluster_id(made))]))[0]
        if isinstance(answer, NodeExists):
            return await self.get_or_create_cluster_id()
        value(answer)
        return made

    # broker registration

    async def check_endpoints_free(self, broker: Broker) -> None:
        """Rule 1.24. Raises BrokerIdInUse when another broker has registered one of our addresses."""
        ours = {(e.host, e.port) for e in broker.endpoints}
        for other, _ in (await self.get_brokers(watch=False)).values():
            for endpoint in other.endpoints:
                if other.id != broker.id and (endpoint.host, endpoint.port) in ours:
                    raise BrokerIdInUse(
                        f"{endpoint.host}:{endpoint.port} of broker {broker.id} is already registered by broker "
                        f"{other.id} in {zd.broker_path(other.id)}"
                    )

    async def register_broker(self, broker: Broker, ibp: MetadataVersion) -> BrokerEpoch:
        """Register under the current session and return the broker epoch (1.20-1.22). Raises BrokerIdInUse."""
        path = zd.broker_path(broker.id)
        data = zd.encode_broker(broker, ibp, self.now_ms())
        while True:
            session = self.store.session_id
            answer = (await self.store.multi([[Create(path, ephemeral=True), SetData(path, data, 0)]]))[0]
            if not isinstance(answer, MultiFailed):
                stat = answer[1]
                assert isinstance(stat, Stat)
                self._registered_session = session
                return BrokerEpoch(stat.czxid)
            if not isinstance(answer.error, NodeExists):
                raise answer.error
            found = (await self.store.exists([path]))[0]
            if found is None:
                continue
            if found.ephemeral_owner == session:
                self._registered_session = session
                return BrokerEpoch(found.czxid)
            if self._registered_session != found.ephemeral_owner:
                raise BrokerIdInUse(
                    f"broker id {broker.id} is already registered in {path} by another ZooKeeper session "
                    f"(0x{found.ephemeral_owner:x}): stop that broker, or wait until its session has expired"
                )
            await self.store.write([Delete(path)])

    async def get_brokers(self, *, watch: bool = True) -> dict[BrokerId, tuple[Broker, BrokerEpoch]]:
        """Every registered broker with its epoch; unreadable registrations are left out with a warning."""
        ids = [int(name) for name in await self.get_children(zd.BROKER_IDS, watch=watch) if name.isdigit()]
        brokers: dict[BrokerId, tuple[Broker, BrokerEpoch]] = {}
        for broker_id, answer in zip(ids, await self.get_data([zd.broker_path(i) for i in ids]), strict=True):
            if isinstance(answer, NoNode):
                continue
            data = value(answer)
            try:
                brokers[BrokerId(broker_id)] = zd.decode_broker(broker_id, data.data), BrokerEpoch(data.stat.czxid)
            except zd.BadZNode as e:
                log.warning("left out of the brokers: %s", e)
        return brokers

    async def get_broker(self, broker_id: int) -> Broker | None:
        found = await self.get_one(zd.broker_path(broker_id))
        return None if found is None else zd.decode_broker(broker_id, found.data)

    # election

    async def get_controller_id(self) -> BrokerId | None:
        found = await self.get_one(zd.CONTROLLER)
        return None if found is None else zd.decode_controller(found.data)

    async def get_controller_epoch(self) -> tuple[ControllerEpoch, EpochZkVersion] | None:
        found = await self.get_one(zd.CONTROLLER_EPOCH)
        if found is None:
            return None
        return zd.decode_controller_epoch(found.data), EpochZkVersion(found.stat.version)

    async def register_controller(self, broker: BrokerId) -> tuple[ControllerEpoch, EpochZkVersion]:
        """Win /controller and the next epoch in one multi (rules 2.7-2.11). Raises ControllerMoved, IllegalState."""
        current = await self.get_controller_epoch()
        if current is None:
            created = Create(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(zd.INITIAL_CONTROLLER_EPOCH))
            answer = (await self.store.write([created]))[0]
            if not isinstance(answer, NodeExists):
                value(answer)
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} vanished during the election")
        epoch, zk_version = ControllerEpoch(current[0] + 1), current[1]
        claim: list[Op] = [
            Create(zd.CONTROLLER, zd.encode_controller(broker, self.now_ms()), ephemeral=True),
            SetData(zd.CONTROLLER_EPOCH, zd.encode_controller_epoch(epoch), zk_version),
        ]
        won = (await self.store.multi([claim]))[0]
        if not isinstance(won, MultiFailed):
            stat = won[1]
            assert isinstance(stat, Stat)
            return epoch, EpochZkVersion(stat.version)
        if not isinstance(won.error, (NodeExists, BadVersion)):
            raise won.error
        # the answer to an earlier attempt may have been lost (2.10)
        if await self.get_controller_id() == broker:
            current = await self.get_controller_epoch()
            if current is None:
                raise IllegalState(f"{zd.CONTROLLER_EPOCH} vanished during the election")
            if current[0] == epoch:
                return current
        raise ControllerMoved("another controller was elected")

    async def delete_controller(self, expected: EpochZkVersion) -> None:
        await self._delete([zd.CONTROLLER], expected)

    # topics

    async def get_topics(self, *, watch: bool = True) -> set[str]:
        return set(await self.get_children(zd.TOPICS, watch=watch))

    async def get_topic_assignments(self, topics: Iterable[str]) -> dict[str, TopicAssignment]:
        """Topics without a node, or with one that cannot be read, are left out."""
        names = sorted(topics)
        found: dict[str, TopicAssignment] = {}
        for topic, answer in zip(names, await self.get_data([zd.topic_path(t) for t in names]), strict=True):
            if isinstance(answer, NoNode):
                continue
            try:
                found[topic] = zd.decode_topic(topic, value(answer).data)
            except zd.BadZNode as e:
                log.error("left out of the topics: %s", e)
        return found

    async def set_topic_assignments(
        self, topics: Mapping[str, tuple[uuid.UUID | None, Mapping[int, ReplicaAssignment]]], expected: EpochZkVersion
    ) -> None:
        """Rewrite whole topic nodes, whatever their version (rule 1.50)."""
        ops = [SetData(zd.topic_path(t), zd.encode_topic(topic_id, parts)) for t, (topic_id, parts) in topics.items()]
        for answer in await self.fenced(ops, expected):
            value(answer)

    async def get_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str] | StoreError]:
        names = list(topics)
        answers = await self.get_data([zd.topic_config_path(t) for t in names])
        return {
            t: zd.decode_config(a.data) if isinstance(a, Data) else {} if isinstance(a, NoNode) else a
            for t, a in zip(names, answers, strict=True)
        }

    async def get_config(self, kind: str, name: str) -> dict[str, str]:
        """Of ``/config/<kind>/<name>``; empty where there is no node (rule 1.34)."""
        found = await self.get_one(zd.config_path(kind, name))
        return {} if found is None else zd.decode_config(found.data)

    async def put_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Whatever the version, and not fenced: that of a topic which is only about to be (rule 10.7)."""
        await self.set_or_create(zd.config_path(kind, name), zd.encode_config(config))

    async def set_or_create(self, path: str, data: bytes) -> None:
        """Whatever the version, parents included, and not fenced."""
        await self.ensure_paths([path])
        value((await self.store.write([SetData(path, data)]))[0])

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace a configuration while some ZooKeeper controller is in charge, then tell (rules 1.35, 1.54).

        Raises ControllerMoved.
        """
        path, data = zd.config_path(kind, name), zd.encode_config(config)
        while True:
            controller = await self.get_one(zd.CONTROLLER)
            if controller is None:
                raise ControllerMoved(f"there is no {zd.CONTROLLER}: configurations cannot be changed now")
            if zd.is_kraft_controller(controller.data):
                raise ControllerMoved(f"{zd.CONTROLLER} is a KRaft controller's: configurations are its to change")
            in_charge = Check(zd.CONTROLLER, controller.stat.version)
            answer = (await self.store.multi([[in_charge, SetData(path, data)]]))[0]
            if not isinstance(answer, MultiFailed):
                break
            if answer.index == 0:
                raise ControllerMoved(f"{zd.CONTROLLER} changed: {answer.error}")
            if not isinstance(answer.error, NoNode):
                raise answer.error
            await self.ensure_paths([path])
        change = Create(zd.CONFIG_CHANGE_PREFIX, zd.encode_config_change(kind, name), sequential=True)
        value((await self.store.write([change]))[0])

    async def get_topic_deletions(self) -> set[str]:
        return set(await self.get_children(zd.DELETE_TOPICS))

    async def delete_topic_deletions(self, topics: Iterable[str], expected: EpochZkVersion) -> None:
        await self._delete([zd.delete_topic_path(t) for t in sorted(topics)], expected)

    async def delete_topic_nodes(self, topic: str, expected: EpochZkVersion) -> None:
        """Rule 10.48: the topic's node with all below it, its configuration, then the marker."""
        await self._delete_recursive(zd.topic_path(topic), expected)
        await self._delete([zd.topic_config_path(topic)], expected)
        await self._delete([zd.delete_topic_path(topic)], expected)

    async def existing_partitions(self, topic: str) -> set[int]:
        names = await self.get_children(zd.partitions_path(topic), watch=False)
        return {int(name) for name in names if name.isdigit()}

    # partition states

    async def get_partition_states(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Leadership | StoreError | None]:
        """Leadership of each partition; None where the node holds none; NoNode and other errors in place."""
        answers = await self.get_data([zd.partition_state_path(tp) for tp in partitions])
        return {
            tp: a if isinstance(a, StoreError) else zd.decode_partition_state(a.data, a.stat.version)
            for tp, a in zip(partitions, answers, strict=True)
        }

    async def create_partition_states(
        self, states: Mapping[TopicPartition, Leadership], expected: EpochZkVersion
    ) -> dict[TopicPartition, StoreError | None]:
        """Rule 1.30: three passes; only the answers of the last are told, None for success.

        A state that is there already, and is the very one, was written by an attempt whose answer was lost (1.52).
        """
        await self.fenced([Create(zd.partitions_path(t)) for t in dict.fromkeys(tp.topic for tp in states)], expected)
        await self.fenced([Create(zd.partition_path(tp)) for tp in states], expected)
        ops = [Create(zd.partition_state_path(tp), zd.encode_partition_state(s)) for tp, s in states.items()]
        answers = await self.fenced(ops, expected)
        failed = {tp: a for tp, a in zip(states, answers, strict=True) if isinstance(a, StoreError)}
        present = [tp for tp, error in failed.items() if isinstance(error, NodeExists)]
        if present:
            for tp, known in (await self.get_partition_states(present)).items():
                if known == states[tp]:
                    del failed[tp]
        return {tp: failed.get(tp) for tp in states}

    async def update_leader_and_isr(
        self,
        states: Mapping[TopicPartition, LeaderAndIsr],
        controller_epoch: ControllerEpoch,
        expected: EpochZkVersion,
    ) -> UpdateResult:
        """Write each on condition of its partition epoch, and sort the answers (rules 1.50, 1.51).

        A state of the next version that is the very one was written by an attempt whose answer was lost (1.52).
        """
        ops = [
            SetData(
                zd.partition_state_path(tp),
                zd.encode_partition_state(Leadership(state, controller_epoch)),
                state.partition_epoch,
            )
            for tp, state in states.items()
        ]
        result = UpdateResult({}, [], {})
        try:
            answers = await self.fenced(ops, expected)
        except StoreError as e:
            result.failed.update(dict.fromkeys(states, e))
            return result
        refused: list[TopicPartition] = []
        for (tp, state), answer in zip(states.items(), answers, strict=True):
            if isinstance(answer, Stat):
                result.updated[tp] = state.with_partition_epoch(answer.version)
            elif isinstance(answer, BadVersion):
                refused.append(tp)
            else:
                assert isinstance(answer, StoreError)
                result.failed[tp] = answer
        for tp, known in (await self.get_partition_states(refused)).items() if refused else ():
            written = states[tp].with_partition_epoch(states[tp].partition_epoch + 1)
            if known == Leadership(written, controller_epoch):
                result.updated[tp] = written
            else:
                result.retry.append(tp)
        return result

    # notifications

    async def get_notifications(self, parent: str) -> dict[str, bytes]:
        """Data of the children of ``parent`` by path; arms the child watch."""
        paths = [f"{parent}/{name}" for name in await self.get_children(parent)]
        answers = await self.get_data(paths)
        return {path: a.data for path, a in zip(paths, answers, strict=True) if isinstance(a, Data)}

    async def propagate_log_dir_event(self, broker: int) -> None:
        """Tell the controller that a log directory of that broker has failed (rules 1.33, 9.68)."""
        event = Create(zd.LOG_DIR_EVENT_PREFIX, zd.encode_log_dir_event(broker), sequential=True)
        value((await self.store.write([event]))[0])

    async def delete_notifications(self, paths: Iterable[str], expected: EpochZkVersion) -> None:
        await self._delete(list(paths), expected)

    async def delete_all_notifications(self, parent: str, expected: EpochZkVersion) -> None:
        await self._delete([f"{parent}/{name}" for name in await self.get_children(parent)], expected)

    # features

    async def get_feature(self) -> Data | None:
        return await self.get_one(zd.FEATURE)

    async def put_feature(self, data: bytes, *, create: bool) -> int:
        """Unconditional (rule 4.25); the version that the node has now."""
        op = Create(zd.FEATURE, data) if create else SetData(zd.FEATURE, data)
        written = value((await self.store.write([op]))[0])
        return written.version if isinstance(written, Stat) else 0

    # deletion

    async def _delete(self, paths: Sequence[str], expected: EpochZkVersion) -> None:
        """Delete nodes; those that are gone already are fine."""
        for answer in await self.fenced([Delete(path) for path in paths], expected):
            if not isinstance(answer, NoNode):
                value(answer)

    async def _delete_recursive(self, path: str, expected: EpochZkVersion) -> None:
        """Children first, each delete fenced by itself (rule 1.55)."""
        levels = [[path]]
        while levels[-1]:
            below = await self.store.get_children(levels[-1])
            levels.append(
                [
                    f"{parent}/{name}"
                    for parent, names in zip(levels[-1], below, strict=True)
                    if not isinstance(names, StoreError)
                    for name in names
                ]
            )
        for level in reversed(levels):
            for answer in await self.fenced([Delete(p) for p in level], expected):
                if isinstance(answer, NotEmpty):  # a child came between: once more
                    return await self._delete_recursive(path, expected)
                if not isinstance(answer, NoNode):
                    value(answer)
        return None


__all__ = ["UNFENCED", "BrokerIdInUse", "KafkaZkClient", "UpdateResult"]
