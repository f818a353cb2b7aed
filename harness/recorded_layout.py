"""The topics of a recording, created in a live cluster with the leaders that they had.

    layout = layout_of(recording.steps, steps)
    notes = await create_topics(layout, ("127.0.0.1", 9092), trio.open_tcp_stream)

The requests of a replayed client go to the brokers with the recorded numbers. There they find leaders and coordinators
if each partition is led by the broker that led it when the recording showed it first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from kce import wire
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, partition_for
from kce.captures.replay.asking import Dial, Target, ask
from kce.captures.replay.identities import leaves
from kce.captures.replay.recording import Step
from kce.harness.errors import HarnessError
from kce.wire.errors import error_name

#: topic -> partition -> replicas, the leader first
Topics: TypeAlias = dict[str, dict[int, tuple[int, ...]]]

#: `offsets.topic.num.partitions` and `transaction.state.log.num.partitions`
_COORDINATING_PARTITIONS: Final = 50
_REPLICAS: Final = 3
#: more partitions of one topic are taken for a damaged recording
_MAX_PARTITIONS: Final = 200_000
#: by FindCoordinator's type of key
_COORDINATED: Final = {0: GROUP_METADATA_TOPIC, 1: TRANSACTION_STATE_TOPIC}
#: as brokers create them
_SETTINGS: Final = {
    GROUP_METADATA_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600",
    },
    TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    },
}  # fmt: skip
#: versions that Kafka has from 0.10.2 to 3.9 (transactions: from 0.11 on); the first of Metadata that names the
#: controller, and creates nothing if it asks for all topics
_METADATA, _CREATE_TOPICS, _DESCRIBE_GROUPS, _END_TXN, _INIT_PRODUCER_ID = 1, 1, 0, 0, 0
_LOADING: Final = (wire.ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, wire.ErrorCode.COORDINATOR_NOT_AVAILABLE)
_POLL_SECONDS: Final = 0.05


class Layout(NamedTuple):
    """``coordinators``: brokers by internal topic and key, a group or a transactional id.

    ``producer_id_brokers``: were asked for a producer id. A broker that has none yet gets a block of them first.
    """

    topics: Topics
    coordinators: dict[tuple[str, str], int]
    producer_id_brokers: frozenset[int] = frozenset()


class _Seen(NamedTuple):
    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]


def layout_of(recorded: Iterable[Step], steps: Collection[Step]) -> Layout:
    """Of the topics that ``steps`` name and do not create, and of those that their coordinators need.

    ``recorded``: all of the recording, in which control requests may show partitions that the client has not asked for.
    """
    seen: Topics = {}
    for step in sorted(recorded, key=lambda step: step.request.place):
        for body in _bodies(step):
            for topic, partition, leader, replicas in _partitions(body):
                if not replicas or not 0 <= partition < _MAX_PARTITIONS:
                    continue
                led = (leader, *(replica for replica in replicas if replica != leader)) if leader >= 0 else replicas
                seen.setdefault(topic, {}).setdefault(partition, led)
    named = {text for step in steps for body in _bodies(step) for text in leaves(body) if isinstance(text, str)}
    created = {
        topic.name for step in steps if isinstance(step.request.body, wire.CreateTopicsRequest)
        for topic in step.request.body.topics
    }  # fmt: skip
    topics = {topic: partitions for topic, partitions in seen.items() if topic in named - created}
    coordinators = dict(found for step in steps for found in _coordinators(step))
    for topic in _COORDINATED.values():
        of_topic = {key: broker for (coordinated, key), broker in coordinators.items() if coordinated == topic}
        if topic in seen and (of_topic or topic in topics):
            topics[topic] = seen[topic]
        elif of_topic:
            topics[topic] = _coordinating(of_topic, sorted({broker for led in _all_replicas(seen) for broker in led}))
    asked = (step.broker_id for step in steps if isinstance(step.request.body, wire.InitProducerIdRequest))
    return Layout(topics, coordinators, frozenset(broker for broker in asked if broker is not None))


def _bodies(step: Step) -> Iterator[wire.Message]:
    for message in (step.request, step.response):
        if message is not None and message.body is not None:
            yield message.body


def _partitions(body: wire.Message) -> Iterator[_Seen]:
    """What a message shows of partitions."""
    if isinstance(body, wire.MetadataResponse):
        for topic in body.topics:
            for shown in topic.partitions:
                if topic.name is not None:
                    yield _Seen(topic.name, shown.partition_index, shown.leader_id, shown.replica_nodes)
    elif isinstance(body, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest)):
        for state in body.ungrouped_partition_states:
            yield _Seen(state.topic_name, state.partition_index, state.leader, state.replicas)
        for grouped in body.topic_states:
            for state in grouped.partition_states:
                yield _Seen(grouped.topic_name, state.partition_index, state.leader, state.replicas)


def _coordinators(step: Step) -> Iterator[tuple[tuple[str, str], int]]:
    """((internal topic, key), broker) of a response that found them."""
    request, answer = step.request.body, step.response and step.response.body
    if not isinstance(request, wire.FindCoordinatorRequest) or not isinstance(answer, wire.FindCoordinatorResponse):
        return
    topic = _COORDINATED.get(request.key_type)
    if topic is None:
        return
    if answer.node_id >= 0 and request.key:
        yield (topic, request.key), answer.node_id
    for found in answer.coordinators:
        if found.node_id >= 0:
            yield (topic, found.key), found.node_id


def _coordinating(brokers_of_keys: Mapping[str, int], brokers: Iterable[int]) -> dict[int, tuple[int, ...]]:
    """An internal topic whose partitions are led by the coordinators of their keys, the others by each in turn."""
    known = sorted({*brokers, *brokers_of_keys.values()})
    leaders = {partition_for(key, _COORDINATING_PARTITIONS): broker for key, broker in brokers_of_keys.items()}
    layout = {}
    for partition in range(_COORDINATING_PARTITIONS):
        leader = leaders.get(partition, known[partition % len(known)])
        at = known.index(leader)
        layout[partition] = (*known[at:], *known[:at])[:_REPLICAS]
    return layout


def _all_replicas(topics: Topics) -> Iterator[tuple[int, ...]]:
    for partitions in topics.values():
        yield from partitions.values()


async def create_topics(
    layout: Layout,
    target: Target,
    dial: Dial,
    seconds: float = 30.0,
    targets: Mapping[int | None, Target] = MappingProxyType({}),
) -> list[str]:
    """Create those that the cluster of ``target`` does not have; wait for their leaders, and for coordinators to load.

    Brokers are asked at their addresses in ``targets``, or else at those that they advertise. Returns what was done,
    and in what the cluster differs from the recording. Raises CaptureError if a broker does not answer, HarnessError if
    a topic cannot be created.
    """
    known = await _metadata(target, dial, seconds)
    brokers = {broker.node_id: targets.get(broker.node_id, (broker.host, broker.port)) for broker in known.brokers}
    if known.controller_id not in brokers:
        raise HarnessError("the live cluster has no controller yet, or knows of none: no topic can be created")
    existing = {topic.name: topic for topic in known.topics if topic.name is not None}
    notes = []
    if absent := {broker for led in _all_replicas(layout.topics) for broker in led} - brokers.keys():
        ids = ", ".join(map(str, sorted(absent)))
        notes.append(f"the live cluster has no broker {ids}: others lead the partitions that it led")
    wanted = {topic: _with_brokers(partitions, sorted(brokers)) for topic, partitions in layout.topics.items()}
    for topic in sorted(wanted.keys() & existing.keys()):
        now = {shown.partition_index: shown.leader_id for shown in existing[topic].partitions}
        then = {partition: replicas[0] for partition, replicas in wanted[topic].items()}
        if others := [partition for partition in then if now.get(partition) != then[partition]]:
            notes.append(
                f"topic {topic} exists already, with other leaders of {len(others)} partitions; "
                f"partition {others[0]}: {now.get(others[0])} instead of {then[others[0]]}"
            )
    missing = {topic: wanted[topic] for topic in sorted(wanted.keys() - existing.keys())}
    with trio.move_on_after(seconds) as waiting:
        if missing:
            await _create(missing, brokers[known.controller_id], dial, seconds)
            for broker in brokers.values():
                await _until_known(missing, broker, dial, seconds)
            notes.append(
                f"created: {', '.join(f'{topic} ({len(found)} partitions)' for topic, found in missing.items())}"
            )
        take_id = wire.InitProducerIdRequest(transactional_id=None)
        for broker_id in layout.producer_id_brokers & brokers.keys():
            await _when_loaded(take_id, _INIT_PRODUCER_ID, brokers[broker_id], dial, seconds)
        for (topic, key), broker_id in layout.coordinators.items():
            if broker_id in brokers and not await _coordinates(topic, key, brokers[broker_id], dial, seconds):
                notes.append(f"broker {broker_id} is not the coordinator of {key}, which it was")
    if waiting.cancelled_caught:
        raise HarnessError(f"the created topics have not all their leaders and coordinators after {seconds:g} s")
    return notes


async def _metadata(target: Target, dial: Dial, seconds: float) -> wire.MetadataResponse:
    answer = await ask(dial, target, wire.MetadataRequest(topics=None), _METADATA, seconds)
    assert isinstance(answer, wire.MetadataResponse)
    return answer


def _with_brokers(partitions: Mapping[int, tuple[int, ...]], brokers: list[int]) -> dict[int, tuple[int, ...]]:
    """The partitions, with the brokers that are there.

    Kafka takes only partitions that are numbered from 0 without gaps and have the same number of replicas.
    """
    count = min(len(brokers), *map(len, partitions.values()))
    layout = {}
    for partition in range(max(partitions) + 1):
        first = partition % len(brokers)
        of_partition = [broker for broker in partitions.get(partition, ()) if broker in brokers]
        others = [broker for broker in brokers[first:] + brokers[:first] if broker not in of_partition]
        layout[partition] = (*of_partition, *others)[:count]
    return layout


async def _create(topics: Topics, controller: Target, dial: Dial, seconds: float) -> None:
    creatable = tuple(_creatable(topic, partitions) for topic, partitions in topics.items())
    request = wire.CreateTopicsRequest(topics=creatable, timeout_ms=int(seconds * 1000))
    answer = await ask(dial, controller, request, _CREATE_TOPICS, seconds)
    assert isinstance(answer, wire.CreateTopicsResponse)
    for result in answer.topics:
        if result.error_code not in (wire.ErrorCode.NONE, wire.ErrorCode.TOPIC_ALREADY_EXISTS):
            reason = result.error_message or error_name(result.error_code)
            raise HarnessError(f"topic {result.name} cannot be created: {reason}")


def _creatable(topic: str, partitions: Mapping[int, tuple[int, ...]]) -> wire.CreatableTopic:
    settings = _SETTINGS.get(topic, {}).items()
    return wire.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=tuple(
            wire.CreatableReplicaAssignment(partition_index=partition, broker_ids=replicas)
            for partition, replicas in partitions.items()
        ),
        configs=tuple(wire.CreatableTopicConfig(name=name, value=value) for name, value in settings),
    )


async def _until_known(topics: Topics, broker: Target, dial: Dial, seconds: float) -> None:
    expected = {
        (topic, partition): replicas[0] for topic, partitions in topics.items()
        for partition, replicas in partitions.items()
    }  # fmt: skip
    while True:
        known = await _metadata(broker, dial, seconds)
        found = {
            (topic.name, shown.partition_index): shown.leader_id for topic in known.topics for shown in topic.partitions
        }
        if expected.items() <= found.items():
            return
        await trio.sleep(_POLL_SECONDS)


async def _coordinates(topic: str, key: str, broker: Target, dial: Dial, seconds: float) -> bool:
    """Whether the broker coordinates the key. Waits until it has loaded what it coordinates."""
    request: wire.Message = wire.EndTxnRequest(transactional_id=key, producer_id=-1, producer_epoch=-1)  # of nobody
    version = _END_TXN
    if topic == GROUP_METADATA_TOPIC:
        request, version = wire.DescribeGroupsRequest(groups=(key,)), _DESCRIBE_GROUPS
    return await _when_loaded(request, version, broker, dial, seconds) != wire.ErrorCode.NOT_COORDINATOR


async def _when_loaded(request: wire.Message, version: int, broker: Target, dial: Dial, seconds: float) -> int:
    """The error code once it does not say that something is loaded."""
    while True:
        answer = await ask(dial, broker, request, version, seconds)
        answered: Any = answer.groups if isinstance(answer, wire.DescribeGroupsResponse) else (answer,)
        codes: list[int] = [each.error_code for each in answered]
        if not any(code in _LOADING for code in codes):
            return max(codes, default=0)
        await trio.sleep(_POLL_SECONDS)
