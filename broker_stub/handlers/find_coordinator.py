"""FindCoordinator (key 10), versions 0-6, from the metadata cache (rules G1.3-G1.11, T1.3).

The coordinator is the leader of the key's partition of an internal topic. Without that topic the error is
COORDINATOR_NOT_AVAILABLE, and it is created.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kce.broker_stub.authorization import DENIED
from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.long_answers import Arrays, answering_each
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kce.broker_stub.reactor import RequestContext
from kce.broker_stub.security.operations import CLUSTER_NAME, Operation, ResourceType
from kce.wire import Coordinator, ErrorCode, FindCoordinatorRequest, FindCoordinatorResponse
from kce.wire.vocabulary import TopicPartition

_FIRST_BATCHED_VERSION: Final = 4
#: internal topic by key type: group, transaction
_TOPICS: Final = {0: GROUP_METADATA_TOPIC, 1: TRANSACTION_STATE_TOPIC}
_TYPES: Final = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_SHARE_GROUP: Final = 2
_FIRST_VERSION_WITH_SHARE_GROUPS: Final = 6


def respond(message: FindCoordinatorRequest, context: RequestContext, services: Services) -> FindCoordinatorResponse:
    """Raises InvalidRequest."""
    if message.key_type not in (*_TOPICS, _SHARE_GROUP):  # rule G1.5
        raise InvalidRequest(f"there is no key type {message.key_type}")
    batched = context.api_version >= _FIRST_BATCHED_VERSION
    keys = message.coordinator_keys if batched else (message.key,)
    found = tuple(_coordinator(key, message.key_type, services, context) for key in keys)
    return FindCoordinatorResponse(coordinators=found) if batched else _single(found[0])


def _denied(key: str, key_type: int, services: Services, context: RequestContext) -> ErrorCode | None:
    kind, name, operation = ResourceType.CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION
    if key_type in _TYPES:
        kind, name, operation = _TYPES[key_type], key, Operation.DESCRIBE
    return None if services.authorization.allows(context, operation, kind, name) else DENIED[kind]


def _coordinator(key: str, key_type: int, services: Services, context: RequestContext) -> Coordinator:
    if key_type == _SHARE_GROUP and context.api_version < _FIRST_VERSION_WITH_SHARE_GROUPS:  # rule G1.5
        return _refusal(key, ErrorCode.INVALID_REQUEST)
    denied = _denied(key, key_type, services, context)
    if denied is not None:
        return _refusal(key, denied)
    snapshot = services.metadata_cache.snapshot
    topic = _TOPICS.get(key_type, "")
    partitions = snapshot.topics.get(topic)
    if not partitions:
        services.topic_creation.create_internal(topic)
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    coordinator = services.groups if topic == GROUP_METADATA_TOPIC else services.transactions
    number = coordinator.manager.partition_of(key)
    state = snapshot.partition(TopicPartition(topic, number))
    endpoint = None if state is None else snapshot.endpoint(state.leader, context.listener)
    if state is None or endpoint is None:
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)  # rule G1.9
    return Coordinator(key=key, node_id=state.leader, host=endpoint.host, port=endpoint.port)


def _refusal(key: str, error: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error)


def _single(found: Coordinator) -> FindCoordinatorResponse:
    """The message is the name of the error code, NONE included (rule G1.10)."""
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=ErrorCode(found.error_code).name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def error_response(
    message: FindCoordinatorRequest, context: RequestContext, error: ErrorCode
) -> FindCoordinatorResponse:
    if context.api_version < _FIRST_BATCHED_VERSION:
        return _single(_refusal(message.key, error))
    refusals = (replace(_refusal(key, error), error_message=None) for key in message.coordinator_keys)
    return FindCoordinatorResponse(coordinators=tuple(refusals))


_answer_each: Final = answering_each(respond, Arrays("coordinator_keys", "coordinators"))
HANDLER: Final = Handler(FindCoordinatorRequest, _answer_each, error_response)
