"""Typed operations on Kafka's znodes: topics, partition states, configurations, notifications, features.

`znodes` has paths and JSON, `client` watches and fencing. Errors of single nodes are returned in place where the rules
treat them one by one; ControllerMoved and SessionExpired are raised.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import outcome
import trio

from kce.zookeeper import cluster_nodes
from kce.zookeeper import znodes as zd
from kce.zookeeper.client import UNFENCED
from kce.zookeeper.errors import ControllerMoved
from kce.zookeeper.model import (
    ControllerEpoch,
    EpochZkVersion,
    LeaderAndIsr,
    Leadership,
    ReplicaAssignment,
    TopicAssignment,
    TopicPartition,
)
from kce.zookeeper.registration import RegistrationClient, no_uuid
from kce.zookeeper.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    MultiFailed,
    NoAuth,
    NodeData,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetData,
    Stat,
    StoreError,
    value,
)

log = logging.getLogger(__name__)

#: so many topics are deleted in one step
_TOPICS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Partitions that were written, those to retry after a version conflict, and those that failed (rule 1.51)."""

    updated: dict[TopicPartition, LeaderAndIsr]
    retry: list[TopicPartition]
    failed: dict[TopicPartition, StoreError]


@dataclass(slots=True)
class Creation:
    """A write of new topics, by name."""

    topics: Mapping[str, TopicAssignment]
    #: by topic, written with it if /controller_epoch has the version ``expected``
    states: Mapping[str, Mapping[TopicPartition, Leadership]] = field(default_factory=dict)
    expected: EpochZkVersion = UNFENCED
    #: the write has been answered, or will not be
    ended: trio.Event = field(default_factory=trio.Event)
    #: and all topics were written by it, at its first attempt
    is_written: bool = False


class CreationHandler:
    """What a controller does with the topics that its own node creates; here, nothing."""

    def prepare(self, creation: Creation) -> None:
        """Called before the write is sent: may add states."""

    async def sent(self, creation: Creation) -> None:
        """Called when the write was sent, and awaited as the write is."""


class KafkaZkClient(RegistrationClient):
    """All typed operations: registrations, topics, partition states, notifications."""

    def __init__(
        self, store: MetadataStore, *, now_ms: Callable[[], int], new_uuid: Callable[[], uuid.UUID] = no_uuid
    ) -> None:
        super().__init__(store, now_ms=now_ms, new_uuid=new_uuid)
        self.creation_handler = CreationHandler()

    # topics

    async def get_topics(self, *, watch: bool = True) -> set[str]:
        return set(await self.get_children(zd.TOPICS, watch=watch))

    async def get_topics_and(self, expected: Collection[str]) -> tuple[set[str], dict[str, TopicAssignment]]:
        """All topics, and the assignments of those expected that are there, in one round trip."""
        found: list[outcome.Outcome[dict[str, TopicAssignment]]] = []

        async def read() -> None:
            found.append(await outcome.acapture(self.get_topic_assignments, expected))

        async with trio.open_nursery() as nursery:  # errors leave it as they are, not in a group
            nursery.start_soon(read)  # which is sent behind the request for the names
            names = await outcome.acapture(self.get_topics)
        return names.unwrap(), found[0].unwrap()

    async def get_topic_assignments(self, topics: Iterable[str]) -> dict[str, TopicAssignment]:
        """Assignments by topic. Skips topics without a znode, and logs and skips malformed ones."""
        names = sorted(topics)
        found: dict[str, TopicAssignment] = {}
        for topic, answer in zip(names, await self.get_data([zd.topic_path(t) for t in names]), strict=True):
            if isinstance(answer, NoNode):
                continue
            try:
                found[topic] = zd.decode_topic(topic, value(answer).data)
            except zd.BadZNode as e:
                log.error("ignoring a malformed topic: %s", e)
        return found

    async def set_topic_assignments(
        self, topics: Mapping[str, tuple[uuid.UUID | None, Mapping[int, ReplicaAssignment]]], expected: EpochZkVersion
    ) -> None:
        """Rewrite topic znodes unconditionally (rule 1.50)."""
        for error in (await self.try_set_topic_assignments(topics, expected)).values():
            raise error

    async def try_set_topic_assignments(
        self, topics: Mapping[str, tuple[uuid.UUID | None, Mapping[int, ReplicaAssignment]]], expected: EpochZkVersion
    ) -> dict[str, StoreError]:
        """``set_topic_assignments``; returns the errors by topic."""
        ops = [SetData(zd.topic_path(t), zd.encode_topic(topic_id, parts)) for t, (topic_id, parts) in topics.items()]
        answers = zip(topics, await self.fenced(ops, expected), strict=True)
        return {t: answer for t, answer in answers if isinstance(answer, StoreError)}

    async def get_topic_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str] | StoreError | zd.BadZNode]:
        """Configurations by topic, empty without a node; errors in place."""
        paths = {t: zd.topic_config_path(t) for t in topics}
        configs: dict[str, dict[str, str] | StoreError | zd.BadZNode] = {}
        for (topic, path), answer in zip(paths.items(), await self.get_data(list(paths.values())), strict=True):
            if isinstance(answer, NodeData):
                try:
                    configs[topic] = cluster_nodes.decode_config(path, answer.data)
                except zd.BadZNode as e:
                    configs[topic] = e
            else:
                configs[topic] = {} if isinstance(answer, NoNode) else answer
        return configs

    async def get_config(self, kind: str, name: str) -> dict[str, str]:
        """The configuration in ``/config/<kind>/<name>``; empty without a node (rule 1.34). Raises BadZNode."""
        path = zd.config_path(kind, name)
        found = await self.get_one(path)
        return {} if found is None else cluster_nodes.decode_config(path, found.data)

    async def get_configs(self, kind: str) -> dict[str, dict[str, str]]:
        """The configurations below ``/config/<kind>``, by name (rule 1.34). Raises BadZNode."""
        names = await self.get_children(f"/config/{kind}")
        paths = [zd.config_path(kind, name) for name in names]
        found = dict(zip(names, await self.get_data(paths), strict=True))
        return {
            name: cluster_nodes.decode_config(zd.config_path(kind, name), data.data)
            for name, data in found.items()
            if isinstance(data, NodeData)
        }

    async def put_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Write a configuration unconditionally, not fenced: that of a topic before its creation (rule 10.7)."""
        await self.set_or_create(zd.config_path(kind, name), cluster_nodes.encode_config(config))

    async def set_or_create(self, path: str, data: bytes) -> None:
        """Write a node unconditionally, not fenced; creates it and its parents if missing, as version 0."""
        while True:
            answer = (await self.store.write([SetData(path, data)]))[0]
            if isinstance(answer, NoNode):
                if parent := path.rpartition("/")[0]:
                    await self.ensure_paths([parent])
                answer = (await self.store.write([Create(path, data)]))[0]
            if not isinstance(answer, NodeExists):
                value(answer)
                return

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace a configuration while a ZooKeeper controller exists, then notify brokers (rules 1.35, 1.54).

        Raises ControllerMoved.
        """
        path, data = zd.config_path(kind, name), cluster_nodes.encode_config(config)
        change: SetData | Create = SetData(path, data)
        while True:
            controller = await self.get_one(zd.CONTROLLER)
            if controller is None:
                raise ControllerMoved(f"{zd.CONTROLLER} does not exist: configurations cannot be changed now")
            if zd.kraft_controller_epoch(controller.data) > 0:
                raise ControllerMoved(
                    f"{zd.CONTROLLER} belongs to a KRaft controller, which must change configurations"
                )
            same_controller = Check(zd.CONTROLLER, controller.stat.version)
            answer = (await self.store.multi([[same_controller, change]]))[0]
            if not isinstance(answer, MultiFailed):
                break
            if answer.index == 0:
                raise ControllerMoved(f"{zd.CONTROLLER} changed: {answer.error}")
            if isinstance(answer.error, NoNode):
                await self.ensure_paths([path.rpartition("/")[0]])
                change = Create(path, data)
            elif isinstance(answer.error, NodeExists):
                change = SetData(path, data)
            else:
                raise answer.error
        await self.notify_config_change(kind, name)

    async def notify_config_change(self, kind: str, name: str) -> None:
        """Rule 1.35."""
        await self.ensure_paths([zd.CONFIG_CHANGES])
        change = Create(zd.CONFIG_CHANGE_PREFIX, cluster_nodes.encode_config_change(kind, name), sequential=True)
        value((await self.store.write([change]))[0])

    async def get_topic_deletions(self) -> set[str]:
        return set(await self.get_children(zd.DELETE_TOPICS))

    async def delete_topic_deletions(self, topics: Iterable[str], expected: EpochZkVersion) -> None:
        await self.delete([zd.delete_topic_path(t) for t in sorted(topics)], expected)

    async def delete_topic_nodes(self, topics: Sequence[str], expected: EpochZkVersion) -> None:
        """Delete each topic's znode recursively, its configuration, and the deletion marker (rule 10.48).

        The last three go together, so that nothing is left over; if one is missing or must not be deleted, in that
        order.
        """
        levels = await self._levels_below([zd.topic_path(topic) for topic in topics])
        below = [Delete(path) for level in reversed(levels[1:]) for path in level]
        for answer in await self.fenced(below, expected):
            if not isinstance(answer, (NoNode, NotEmpty)):
                value(answer)
        last = [(zd.topic_path(topic), zd.topic_config_path(topic), zd.delete_topic_path(topic)) for topic in topics]
        for begin in range(0, len(last), _TOPICS_AT_ONCE):
            some = last[begin : begin + _TOPICS_AT_ONCE]
            (together,) = await self.fenced_together([[Delete(path) for paths in some for path in paths]], expected)
            if not isinstance(together, MultiFailed):
                continue
            if not isinstance(together.error, (NoAuth, NoNode, NotEmpty)):
                raise together.error
            for topic, config, marker in some:
                await self._delete_recursive(topic, expected)
                await self.delete([config], expected)
                await self.delete([marker], expected)

    async def existing_partitions(self, topic: str) -> set[int]:
        names = await self.get_children(zd.partitions_path(topic))
        return set(zd.numbered(names))

    # partition states

    async def get_partition_states(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Leadership | StoreError | None]:
        """Leadership of each partition; None for malformed content; NoNode and other errors in place."""
        paths = list(map(zd.partition_state_path, partitions))
        return dict(zip(partitions, await self.get_decoded(paths, zd.decode_partition_state), strict=True))

    async def create_partition_states(
        self, states: Mapping[TopicPartition, Leadership], expected: EpochZkVersion
    ) -> dict[TopicPartition, StoreError | None]:
        """Create partition states in three passes (rule 1.30). Returns the errors of the last one, None for success.

        The passes are sent together, and parents only of new topics: an operation that fails lets those sent with it
        be repeated one by one.
        """
        new = dict.fromkeys(tp.topic for tp in states if tp.partition == 0)
        answers = await self._create_partition_states(new, states, expected)
        orphans = {tp: states[tp] for tp, answer in answers.items() if isinstance(answer, NoNode)}
        if orphans:
            parents = dict.fromkeys(tp.topic for tp in orphans)
            answers |= await self._create_partition_states(parents, orphans, expected)
        return answers

    async def _create_partition_states(
        self, parents: Iterable[str], states: Mapping[TopicPartition, Leadership], expected: EpochZkVersion
    ) -> dict[TopicPartition, StoreError | None]:
        answers = (await self.fenced(state_creations(parents, states), expected))[-len(states) :]
        return {tp: a if isinstance(a, StoreError) else None for tp, a in zip(states, answers, strict=True)}

    async def update_leader_and_isr(
        self,
        states: Mapping[TopicPartition, LeaderAndIsr],
        controller_epoch: ControllerEpoch,
        expected: EpochZkVersion,
    ) -> UpdateResult:
        """Write each state if its partition epoch is current, and sort the results (rules 1.50, 1.51)."""
        encoded: dict[int, bytes] = {}  # of states that are one object
        ops = []
        for tp, state in states.items():
            data = encoded.get(id(state))
            if data is None:
                data = encoded[id(state)] = zd.encode_partition_state(Leadership(state, controller_epoch))
            ops.append(SetData(zd.partition_state_path(tp), data, state.partition_epoch))
        result = UpdateResult({}, [], {})
        try:
            answers = await self.fenced(ops, expected)
        except StoreError as e:
            result.failed.update(dict.fromkeys(states, e))
            return result
        updated: dict[tuple[int, int], LeaderAndIsr] = {}  # of states that are one object, by version
        for (tp, state), answer in zip(states.items(), answers, strict=True):
            if isinstance(answer, Stat):
                kind = id(state), answer.version
                after = updated.get(kind)
                if after is None:
                    after = updated[kind] = state.with_partition_epoch(answer.version)
                result.updated[tp] = after
            elif isinstance(answer, BadVersion):
                result.retry.append(tp)
            else:
                assert isinstance(answer, StoreError)
                result.failed[tp] = answer
        return result

    # notifications

    async def get_notifications(self, parent: str) -> dict[str, bytes]:
        """Data of the children of ``parent``, by path. Sets the child watch."""
        paths = [f"{parent}/{name}" for name in await self.get_children(parent)]
        answers = await self.get_data(paths)
        return {path: a.data for path, a in zip(paths, answers, strict=True) if isinstance(a, NodeData)}

    async def propagate_log_dir_event(self, broker: int) -> None:
        """Notify the controller that a log directory of the broker has failed (rules 1.33, 9.68)."""
        event = Create(zd.LOG_DIR_EVENT_PREFIX, cluster_nodes.encode_log_dir_event(broker), sequential=True)
        value((await self.store.write([event]))[0])

    async def delete_notifications(self, paths: Iterable[str], expected: EpochZkVersion) -> None:
        await self.delete(list(paths), expected)

    async def delete_all_notifications(self, parent: str, expected: EpochZkVersion) -> None:
        await self.delete([f"{parent}/{name}" for name in await self.get_children(parent)], expected)

    # features

    async def get_feature(self) -> NodeData | None:
        return await self.get_one(zd.FEATURE)

    async def put_feature(self, data: bytes, *, create: bool) -> int:
        """Write /feature unconditionally (rule 4.25). Returns its new version."""
        op = Create(zd.FEATURE, data) if create else SetData(zd.FEATURE, data)
        written = value((await self.store.write([op]))[0])
        return written.version if isinstance(written, Stat) else 0

    # deletion

    async def delete_path(self, path: str) -> None:
        """Delete a node and what is below it, not fenced."""
        await self._delete_recursive(path, UNFENCED)

    async def _delete_recursive(self, path: str, expected: EpochZkVersion) -> None:
        """Delete children first, each delete fenced (rule 1.55)."""
        for level in reversed(await self._levels_below([zd.absolute(path)])):
            for answer in await self.fenced([Delete(p) for p in level], expected):
                if isinstance(answer, NotEmpty):  # a child was created meanwhile: retry
                    return await self._delete_recursive(path, expected)
                if not isinstance(answer, NoNode):
                    value(answer)
        return None

    async def _levels_below(self, paths: list[str]) -> list[list[str]]:
        """``paths``, their children, the children of those, and so on."""
        levels = [paths]
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
        return levels


def state_creations(parents: Iterable[str], states: Mapping[TopicPartition, Leadership]) -> list[Op]:
    """Create partition states, last, and the nodes above them: ``parents`` are topics (rule 1.30)."""
    return [
        *(Create(zd.partitions_path(topic)) for topic in parents),
        *(Create(zd.partition_path(tp)) for tp in states),
        *(Create(zd.partition_state_path(tp), zd.encode_partition_state(s)) for tp, s in states.items()),
    ]


__all__ = ["UNFENCED", "KafkaZkClient", "UpdateResult"]
