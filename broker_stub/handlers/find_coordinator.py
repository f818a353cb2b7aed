"""FindCoordinator (key 10), versions 0-6, from the metadata cache (rules G1.3-G1.11).

The coordinator is the leader of the key's partition of an internal topic. Without that topic, which is not
auto-created, the error is COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import Final

from kce.broker_stub.errors import InvalidRequest
from kce.broker_stub.handlers.base import Handler, Services, answering
from kce.broker_stub.metadata_cache import MetadataSnapshot
from kce.broker_stub.reactor import RequestContext
from kce.wire import Coordinator, ErrorCode, FindCoordinatorRequest, FindCoordinatorResponse
from kce.wire.vocabulary import TopicPartition

_FIRST_BATCHED_VERSION: Final = 4
#: internal topic by key type: group, transaction
_TOPICS: Final = {0: "__consumer_offsets", 1: "__transaction_state"}
_SHARE_GROUP: Final = 2
_SIGN: Final = 2**31
_FIRST_VERSION_WITH_SHARE_GROUPS: Final = 6


def respond(message: FindCoordinatorRequest, context: RequestContext, services: Services) -> FindCoordinatorResponse:
    """Raises InvalidRequest."""
    is_share_group = message.key_type == _SHARE_GROUP and context.api_version >= _FIRST_VERSION_WITH_SHARE_GROUPS
    if message.key_type not in _TOPICS and not is_share_group:  # rule G1.5
        raise InvalidRequest(f"key type {message.key_type} is not supported in version {context.api_version}")
    batched = context.api_version >= _FIRST_BATCHED_VERSION
    keys = message.coordinator_keys if batched else (message.key,)
    snapshot = services.metadata_cache.snapshot
    found = tuple(_coordinator(key, message.key_type, snapshot, context.listener) for key in keys)
    return FindCoordinatorResponse(coordinators=found) if batched else _single(found[0])


def _coordinator(key: str, key_type: int, snapshot: MetadataSnapshot, listener: str) -> Coordinator:
    topic = _TOPICS.get(key_type, "")
    partitions = snapshot.topics.get(topic)
    if not partitions:
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    state = snapshot.partition(TopicPartition(topic, partition_for(key, len(partitions))))
    endpoint = None if state is None else snapshot.endpoint(state.leader, listener)
    if state is None or endpoint is None:
        return _refusal(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)  # rule G1.9
    return Coordinator(key=key, node_id=state.leader, host=endpoint.host, port=endpoint.port)


def partition_for(key: str, count: int) -> int:
    """The key's partition of ``count``, from the absolute value of Java's hash, not its low bits (rules G1.1, G1.2)."""
    hashed = _java_hash(key)
    if hashed >= _SIGN:
        hashed = (2 * _SIGN - hashed) % _SIGN  # -2^31 has no absolute value: Kafka uses 0
    return hashed % count


def _java_hash(text: str) -> int:
    """Java's String.hashCode as an unsigned number, over UTF-16 code units."""
    encoded = text.encode("utf-16-be")
    result = 0
    for i in range(0, len(encoded), 2):
        result = (31 * result + int.from_bytes(encoded[i : i + 2])) & 0xFFFFFFFF
    return result


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
    return FindCoordinatorResponse(coordinators=tuple(_refusal(key, error) for key in message.coordinator_keys))


HANDLER: Final = Handler(FindCoordinatorRequest, answering(respond), error_response)
