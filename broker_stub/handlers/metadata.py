"""Metadata (key 3), versions 0-12, from the metadata cache (rules B7.1-B7.9).

Topics that a request names and that do not exist are created with `auto.create.topics.enable`, if the request allows it
(rules B7.11-B7.13); then it is answered when they are in the metadata store.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

from kce import wire
from kce.broker_stub.errors import ApiException, InvalidRequest, Refused
from kce.broker_stub.handlers.base import Answer, Handler, Later, Services, answering_in_steps
from kce.broker_stub.internal_topics import INTERNAL_TOPICS
from kce.broker_stub.metadata_cache import EncodedBrokers, MetadataSnapshot
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import NO_OPERATIONS, Operation, ResourceType
from kce.wire import (
    ErrorCode,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    UpdateMetadataPartitionState,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.registry import METADATA
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import NO_LEADER, is_valid_topic_name

T = TypeVar("T")


_FIRST_VERSION_WITH_LISTENER_NOT_FOUND: Final = 6
_FIRST_VERSION_BY_ID: Final = 12
_NO_BROKERS: Final = wire.Encoded(0, ())


def respond(message: MetadataRequest, context: RequestContext, services: Services) -> Steps[Answer | Later]:
    snapshot = services.metadata_cache.snapshot
    topics = _Topics(message, context, snapshot, services)
    try:
        yield from topics.add_requested()
    except ApiException as e:
        topics = _Topics(message, context, snapshot, services)
        yield from topics.add_refused(e.code)
        return Answer(MetadataResponse(topics=topics.encoded()), topics.errors)
    if not topics.missing:
        return _answer(message, context, services, topics)

    async def created() -> Answer:
        quota = services.quotas.mutations(context, strict=False)
        topics.add_missing(await services.topic_creation.create(topics.missing, quota.record))
        return _answer(message, context, services, topics)

    return created


def _answer(message: MetadataRequest, context: RequestContext, services: Services, topics: _Topics) -> Answer:
    snapshot = topics.snapshot
    include_operations = message.include_cluster_authorized_operations
    response = MetadataResponse(
        brokers=_brokers(snapshot, context, services.metadata_cache.encoded_brokers),  # type: ignore[arg-type]
        cluster_id=services.cluster_id,
        controller_id=-1 if snapshot.controller_id is None else snapshot.controller_id,
        topics=topics.encoded(),
        cluster_authorized_operations=(
            services.authorization.cluster_operations(context) if include_operations else NO_OPERATIONS
        ),
    )
    return Answer(response, topics.errors)


def _brokers(snapshot: MetadataSnapshot, context: RequestContext, known: EncodedBrokers) -> wire.Encoded:
    """Those that have the listener of the request (rule B7.7), encoded once for as long as they do not change."""
    key = context.api_version, context.listener
    alive, encoded = known.get(key, (None, _NO_BROKERS))
    if alive is not snapshot.alive_brokers:
        described = [
            MetadataResponseBroker(node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            for broker, endpoint in snapshot.reachable_brokers(context.listener)
        ]
        version = context.api_version
        pieces = [wire.encode_part(one, api_key=MetadataRequest.__api_key__, api_version=version) for one in described]
        encoded = wire.Encoded(len(pieces), pieces)
        known[key] = snapshot.alive_brokers, encoded
    return encoded


class _Topics:
    """The topics of one response, encoded, from one snapshot. Topics that have not changed are encoded once.

    ``missing`` are to be created; ``add_missing`` tells what came of that.
    """

    def __init__(
        self, request: MetadataRequest, context: RequestContext, snapshot: MetadataSnapshot, services: Services
    ) -> None:
        self.errors: Counter[int] = Counter()
        self._request = request
        self._version = context.api_version
        self._listener = context.listener
        self.snapshot = snapshot
        self._encoded = services.metadata_cache.encoded_topics
        self._context = context
        self._authorization = services.authorization
        self._creates = services.config.auto_create_topics_enable and request.allow_auto_topic_creation
        self.missing: list[str] = []
        self._pieces: list[bytes] = []
        self._count = 0

    def encoded(self) -> Any:
        """The encoded topics, in place of the tuple of topics."""
        return wire.Encoded(self._count, self._pieces)

    def add_requested(self) -> Steps[None]:
        """Raises InvalidRequest, Refused."""
        requested = self._request.topics
        if requested is None or (self._version == 0 and not requested):  # rule B7.1
            yield from self._add(self.snapshot.topics, self._of_all if self._authorization.is_on else self._known)
            return
        yield from self._check(requested)
        names: dict[str | None, None] = {}
        ids: dict[uuid.UUID, None] = {}
        for i, topic in enumerate(requested):
            if topic.topic_id != NO_TOPIC_ID:
                ids[topic.topic_id] = None
            else:
                names[topic.name] = None
            if not i & STEP_MASK:
                yield
        if ids:
            yield from self._add(ids, self._by_id)
        elif None in names:  # on which Kafka stumbles
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            yield from self._add(cast(dict[str, None], names), self._by_name)

    def add_missing(self, errors: Mapping[str, ErrorCode]) -> None:
        self._pieces += [self._unknown(name, errors[name]) for name in self.missing]
        self._count += len(self.missing)

    def add_refused(self, error: ErrorCode) -> Steps[None]:
        def refused(topic: MetadataRequestTopic) -> Steps[bytes]:
            yield from ()
            return self._one(error, name=topic.name or "", topic_id=topic.topic_id)

        yield from self._add(self._request.topics or (), refused)

    def _add(self, keys: Iterable[T], encode: Callable[[T], Steps[bytes]]) -> Steps[None]:
        joined: list[bytes] = []
        for key in keys:
            encoded = yield from encode(key)
            joined.append(encoded)
            self._count += bool(encoded)
            if len(joined) > STEP_MASK:
                self._pieces.append(b"".join(joined))
                joined.clear()
                yield
        self._pieces += joined

    def _check(self, requested: tuple[MetadataRequestTopic, ...]) -> Steps[None]:  # rule B7.2
        by_id = self._version >= _FIRST_VERSION_BY_ID
        for i, topic in enumerate(requested):
            if topic.topic_id != NO_TOPIC_ID and not by_id:
                raise InvalidRequest(f"topic ids are not supported in version {self._version}")
            if topic.name is None and not by_id:
                raise InvalidRequest(f"a topic needs a name in version {self._version}")
            if not i & STEP_MASK:
                yield

    def _may_describe(self, name: str, *, log_denied: bool = True) -> bool:
        authorization = self._authorization
        return not authorization.is_on or authorization.allows(
            self._context, Operation.DESCRIBE, ResourceType.TOPIC, name, log_denied=log_denied
        )

    def _of_all(self, name: str) -> Steps[bytes]:
        """Nothing of a topic that the client may not describe."""
        return (yield from self._known(name)) if self._may_describe(name, log_denied=False) else b""

    def _by_id(self, topic_id: uuid.UUID) -> Steps[bytes]:
        name = self.snapshot.topic_names.get(topic_id)
        if name is None or name not in self.snapshot.topics:
            return self._one(ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        if not self._may_describe(name):
            return self._one(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=topic_id)
        return (yield from self._known(name))

    def _by_name(self, name: str) -> Steps[bytes]:
        if not self._may_describe(name):  # whether or not it exists
            return self._one(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        if name in self.snapshot.topics:
            return (yield from self._known(name))
        if not self._creates:
            valid = is_valid_topic_name(name)  # rule B7.4
            return self._unknown(
                name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if valid else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
        if not self._may_create(name):
            return self._one(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, is_internal=name in INTERNAL_TOPICS)
        self.missing.append(name)
        return b""

    def _may_create(self, name: str) -> bool:
        authorization = self._authorization
        return (
            not authorization.is_on
            or authorization.allows_on_cluster(self._context, Operation.CREATE, log_denied=False)
            or authorization.allows(self._context, Operation.CREATE, ResourceType.TOPIC, name)
        )

    def _unknown(self, name: str, error: ErrorCode) -> bytes:
        return self._one(
            error,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=self._operations(name),
        )

    def _operations(self, name: str) -> int:
        if not self._request.include_topic_authorized_operations:
            return NO_OPERATIONS
        return self._authorization.operations(self._context, ResourceType.TOPIC, name)

    def _one(self, error: ErrorCode, **fields: Any) -> bytes:
        self.errors[error] += 1
        return self._encode(error, **fields)

    def _encode(self, error: ErrorCode, **fields: Any) -> bytes:
        topic = MetadataResponseTopic(error_code=error, **fields)
        return wire.encode_part(topic, api_key=METADATA, api_version=self._version)

    def _known(self, name: str) -> Steps[bytes]:
        operations = self._operations(name)
        states, topic_id = self.snapshot.topics[name], self.snapshot.topic_id(name)
        key = name, self._listener, self._version, operations
        facts = states, self.snapshot.alive_brokers, topic_id
        found = self._encoded.get(key, facts)
        if found is None:
            errors = Counter({int(ErrorCode.NONE): 1})
            partitions = yield from self._partitions(states.values(), errors)
            part = self._encode(
                ErrorCode.NONE,
                name=name,
                topic_id=topic_id,
                is_internal=name in INTERNAL_TOPICS,
                partitions=wire.Encoded(len(states), partitions),
                topic_authorized_operations=operations,
            )
            found = part, errors
            self._encoded.put(key, facts, found)
        self.errors.update(found[1])
        return found[0]

    def _partitions(self, states: Iterable[UpdateMetadataPartitionState], errors: Counter[int]) -> Steps[list[bytes]]:
        pieces = []
        for i, state in enumerate(states):
            partition = self._partition(state)
            errors[partition.error_code] += 1
            pieces.append(wire.encode_part(partition, api_key=METADATA, api_version=self._version))
            if i & STEP_MASK == STEP_MASK:
                yield
        return pieces

    def _partition(self, state: UpdateMetadataPartitionState) -> MetadataResponsePartition:
        """Rules B7.5, B7.6."""
        replicas, isr = self._listed(state.replicas), self._listed(state.isr)
        if self._is_reachable(state.leader):
            complete = len(replicas) == len(state.replicas) and len(isr) == len(state.isr)
            error, leader = (ErrorCode.NONE if complete else ErrorCode.REPLICA_NOT_AVAILABLE), state.leader
        else:
            error, leader = self._unreachable_error(state.leader), NO_LEADER
        return MetadataResponsePartition(
            error_code=error,
            partition_index=state.partition_index,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=state.offline_replicas,
        )

    def _listed(self, brokers: tuple[int, ...]) -> tuple[int, ...]:
        """Only version 0 omits brokers that cannot be reached."""
        return tuple(i for i in brokers if self._is_reachable(i)) if self._version == 0 else brokers

    def _is_reachable(self, broker_id: int) -> bool:
        return self.snapshot.endpoint(broker_id, self._listener) is not None

    def _unreachable_error(self, leader: int) -> ErrorCode:
        if leader in self.snapshot.alive_brokers and self._version >= _FIRST_VERSION_WITH_LISTENER_NOT_FOUND:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE


def error_response(message: MetadataRequest, context: RequestContext, error: ErrorCode) -> MetadataResponse:
    topics = tuple(
        MetadataResponseTopic(error_code=error, name=topic.name or "", topic_id=topic.topic_id)
        for topic in message.topics or ()
    )
    return MetadataResponse(topics=topics)


HANDLER: Final = Handler(MetadataRequest, answering_in_steps(respond), error_response)
