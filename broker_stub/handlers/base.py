"""Shared by all handlers: the state that they use, and the type of an entry in the dispatch table."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import trio

from kce import wire
from kce.broker_stub.client_quotas import ControllerMutationQuotas, MutationQuota
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.errors import ApiException
from kce.broker_stub.handlers.served_apis import ServedApis
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import AdminPort, ControllerPort
from kce.broker_stub.producer_ids import ProducerIdManager
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.replica_manager import ReplicaManager
from kce.broker_stub.replication.data_plane import DataPlane
from kce.wire import ErrorCode

log = logging.getLogger(__name__)

R = TypeVar("R", bound=wire.Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a broker that handlers use."""

    config: BrokerConfig
    cluster_id: str
    served_apis: ServedApis
    metadata_cache: MetadataCache
    replica_manager: ReplicaManager
    controller: ControllerPort
    admin: AdminPort
    broker_epoch: Callable[[], int]
    producer_ids: ProducerIdManager
    mutation_quotas: ControllerMutationQuotas
    data_plane: DataPlane
    #: starts a background task of the broker
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    #: gets the settings of topics whose logs are about to be made; None: nobody needs them
    prepare_topics: Callable[[Collection[str]], Awaitable[None]] | None = None

    def is_stale_broker_epoch(self, epoch: int) -> bool:
        """Rule 9.5: -1 is never stale, nor is a newer epoch, which the controller may know first."""
        return epoch != -1 and epoch < self.broker_epoch()

    def mutation_quota(self, context: RequestContext, *, strict_from: int) -> MutationQuota:
        """For a request that creates or deletes partitions (rule 10.11)."""
        header = context.header
        strict = header.api_version >= strict_from
        return self.mutation_quotas.of_request(header.client_id, trio.current_time(), strict=strict)


@dataclass(frozen=True, slots=True)
class Handler(Generic[R]):
    """One API of this broker; each module of this package defines one.

    ``handle`` answers the request, or parks it to answer later. ``error_response`` is the API's generic error response
    (rule 9.4); None if there is none for the request.
    """

    request: type[R]
    handle: Callable[[Request, Any, Services], Awaitable[None]]  # Any: R, which the table of all APIs cannot express
    error_response: Callable[[Any, RequestContext, ErrorCode], wire.Message | None]
    decode: Callable[[bytes], tuple[wire.Header, wire.Message]] = wire.decode_request

    @property
    def api_key(self) -> int:
        return self.request.__api_key__

    @property
    def versions(self) -> wire.ApiVersion:
        """All versions of Kafka 3.9, because controllers and brokers do not negotiate (rule B1.62)."""
        first, last = self.request.__versions__
        return wire.ApiVersion(api_key=self.api_key, min_version=first, max_version=last)


def respond_to(request: Request, make: Callable[[], wire.Message]) -> None:
    """Answer a request that has waited. Whoever completed it is not concerned by a failure (rule B1.31)."""
    try:
        request.respond(make())
    except Exception as e:
        log.exception("%r failed", request)
        request.fail(e)


def answering(
    respond: Callable[[R, RequestContext, Services], wire.Message],
) -> Callable[[Request, R, Services], Awaitable[None]]:
    """Make a handler from a function of request and broker state."""

    async def handle(request: Request, message: R, services: Services) -> None:
        request.respond(respond(message, request.context, services))

    return handle


def answering_later(
    respond: Callable[[R, RequestContext, Services], Awaitable[wire.Message]],
) -> Callable[[Request, R, Services], Awaitable[None]]:
    """Make a handler from an async function; the request is parked while it runs, and the handler task is free."""

    async def handle(request: Request, message: R, services: Services) -> None:
        async def answer() -> None:
            try:
                request.respond(await respond(message, request.context, services))
            except Exception as e:  # any error becomes an error response (rule B1.31)
                if not isinstance(e, ApiException):
                    log.exception("%r failed", request)
                request.fail(e)

        services.spawn(answer)

    return handle
