"""FindCoordinator (key 10), versions 0-6: from the metadata cache alone (rules G1.3-G1.11).

A coordinator is whoever leads the key's partition of an internal topic. That topic is not created on request here:
while it is missing the answer is COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

from typing import Final

from broker_stub.errors import InvalidRequest
from broker_stub.handlers.base import Handler, Services, answering
from broker_stub.metadata_cache import MetadataSnapshot
from broker_stub.reactor import RequestContext
from wire import Coordinator, ErrorCode, FindCoordinatorRequest, FindCoordinatorResponse
from wire.vocabulary import TopicPartition

_FIRST_BATCHED_VERSION: Final = 4
#: internal topics by the kind of key: a group, a transaction
_TOPICS: Final = {0: "__consumer_offsets", 1: "__transaction_state"}
_SHARE: Final = 2
_SIGN: Final = 2**31
_FIRST_VERSION_WITH_SHARES: Final = 6


def respond(message: FindCoordinatorRequest, context: RequestContext, services: Services) -> FindCoordinatorResponse:
    """Raises InvalidRequest."""
    shared = message.key_type == _SHARE and context.api_version >= _FIRST_VERSION_WITH_SHARES
    if message.key_type not in _TOPICS and not shared:  # rule G1.5
        raise InvalidRequest(f"keys of type {message.key_type} have no coordinator in version {context.api_version}")
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
    return Coordinator(key=key, node_id=state.leader, host=endpoint.host, port=endpoint.port, error_message="")


def partition_for(key: str, count: int) -> int:
    """Which of ``count`` partitions the key belongs to: by the absolute value of Java's hash, not by its low bits
    (rules G1.1, G1.2)."""
    hashed = _java_hash(key)
    if hashed >= _SIGN:
        hashed = (2 * _SIGN - hashed) % _SIGN  # -2^31 has no absolute value, 0 stands for it
    return hashed % count


def _java_hash(text: str) -> int:
    """Java's String.hashCode, unsigned: by UTF-16 code units."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for i in range(0, len(encoded), 2):
        result = (31 * result + int.from_bytes(encoded[i : i + 2], "big")) & 0xFFFFFFFF
    return result


def _refusal(key: str, error: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message="")


def _single(found: Coordinator) -> FindCoordinatorResponse:
    """Here the text is the error's name, also when there is none (rule G1.10)."""
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
