"""The dispatch table: API key -> handler. It is what ApiVersions lists and what the reactor serves."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import wire
from broker_stub.errors import error_code
from broker_stub.finalized_features import FinalizedFeatureCache
from broker_stub.handlers import (
    allocate_producer_ids,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    api_versions,
    controlled_shutdown,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    leader_and_isr,
    list_partition_reassignments,
    metadata,
    stop_replica,
    update_features,
    update_metadata,
)
from broker_stub.handlers.base import Handler, Services
from broker_stub.handlers.served_apis import ServedApis
from broker_stub.reactor import Request

_KEY_AND_VERSION: Final = struct.Struct(">hh")
API_VERSIONS: Final = wire.ApiVersionsRequest.__api_key__

HANDLERS: Final[tuple[Handler[Any], ...]] = (
    metadata.HANDLER,
    leader_and_isr.HANDLER,
    stop_replica.HANDLER,
    update_metadata.HANDLER,
    controlled_shutdown.HANDLER,
    api_versions.HANDLER,
    alter_partition.HANDLER,
    create_topics.HANDLER,
    delete_topics.HANDLER,
    create_partitions.HANDLER,
    describe_configs.HANDLER,
    alter_configs.HANDLER,
    incremental_alter_configs.HANDLER,
    describe_cluster.HANDLER,
    elect_leaders.HANDLER,
    find_coordinator.HANDLER,
    init_producer_id.HANDLER,
    alter_partition_reassignments.HANDLER,
    list_partition_reassignments.HANDLER,
    allocate_producer_ids.HANDLER,
    update_features.HANDLER,
)


def served_apis(
    handlers: Iterable[Handler[Any]] = HANDLERS, features: FinalizedFeatureCache | None = None
) -> ServedApis:
    return ServedApis(tuple(sorted((h.versions for h in handlers), key=lambda entry: entry.api_key)), features)


class KafkaApis:
    """The APIs of one broker, for its reactor; both planes use the same."""

    def __init__(self, services: Services, handlers: Iterable[Handler[Any]] = HANDLERS) -> None:
        self._services = services
        self._handlers = {handler.api_key: handler for handler in handlers}
        self._versions = {key: handler.request.__versions__ for key, handler in self._handlers.items()}

    def decode(self, frame: bytes) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError (rule B1.35)."""
        if len(frame) < _KEY_AND_VERSION.size:
            return wire.decode_request(frame)  # which says what is missing
        api_key, api_version = _KEY_AND_VERSION.unpack_from(frame)
        self.refuse_unserved(api_key, api_version)
        return self._handlers[api_key].decode(frame)

    def refuse_unserved(self, api_key: int, api_version: int) -> None:
        """Raises UnknownApiKey, UnsupportedVersion (rules B1.35, B1.36). ApiVersions is let in in any version."""
        versions = self._versions.get(api_key)
        if versions is not None and (versions.first <= api_version <= versions.last or api_key == API_VERSIONS):
            return
        try:
            name = wire.api(api_key).name
            error: wire.DecodeError = wire.UnsupportedVersion(
                f"{name} is not served by this broker" if versions is None else f"only versions {versions} are served"
            )
        except wire.UnknownApiKey as e:
            error = e
        error.api_key, error.api_version = api_key, api_version
        raise error

    async def handle(self, request: Request) -> None:
        handler = self._handlers[request.context.header.api_key]
        await handler.handle(request, request.message, self._services)

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        handler = self._handlers[request.context.header.api_key]
        return handler.error_response(request.message, request.context, error_code(error))
