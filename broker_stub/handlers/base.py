"""What the handlers share: the state they may use, and the shape of an entry in the dispatch table."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import trio

import wire
from broker_stub.client_quotas import ControllerMutationQuotas, MutationQuota
from broker_stub.config import BrokerConfig
from broker_stub.errors import ApiError
from broker_stub.handlers.served_apis import ServedApis
from broker_stub.metadata_cache import MetadataCache
from broker_stub.ports import AdminPort, ControllerPort
from broker_stub.producer_ids import ProducerIdManager
from broker_stub.reactor import Request, RequestContext
from broker_stub.replica_manager import ReplicaManager
from wire import ErrorCode

logger = logging.getLogger("broker_stub.handlers")

R = TypeVar("R", bound=wire.Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a broker that handlers work on."""

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
    #: runs something in the background for as long as the broker runs
    spawn: Callable[[Callable[[], Awaitable[None]]], None]

    def is_stale_broker_epoch(self, epoch: int) -> bool:
        """Rule 9.5: -1 is never stale, and a newer epoch than our own is not either: the controller may know first."""
        return epoch != -1 and epoch < self.broker_epoch()

    def mutation_quota(self, context: RequestContext, *, strict_from: int) -> MutationQuota:
        """Of a request that creates or deletes partitions (rule 10.11)."""
        header = context.header
        strict = header.api_version >= strict_from
        return self.mutation_quotas.of_request(header.client_id, trio.current_time(), strict=strict)


@dataclass(frozen=True, slots=True)
class Handler(Generic[R]):
    """One API as this broker serves it; each module of this package defines one.

    ``handle`` answers the request or keeps it to be answered later. ``error_response`` is the API's generic error form
    (rule 9.4), None where it has none for that request.
    """

    request: type[R]
    handle: Callable[[Request, Any, Services], Awaitable[None]]  # Any: R, which a table of all APIs cannot say
    error_response: Callable[[Any, RequestContext, ErrorCode], wire.Message | None]
    decode: Callable[[bytes], tuple[wire.Header, wire.Message]] = wire.decode_request

    @property
    def api_key(self) -> int:
        return self.request.__api_key__

    @property
    def versions(self) -> wire.ApiVersion:
        """All that Kafka 3.9 has, for controllers and brokers do not ask (rule B1.62)."""
        first, last = self.request.__versions__
        return wire.ApiVersion(api_key=self.api_key, min_version=first, max_version=last)


def answering(
    respond: Callable[[R, RequestContext, Services], wire.Message],
) -> Callable[[Request, R, Services], Awaitable[None]]:
    """A handler of a function from request and broker state to response."""

    async def handle(request: Request, message: R, services: Services) -> None:
        request.respond(respond(message, request.context, services))

    return handle


def answering_later(
    respond: Callable[[R, RequestContext, Services], Awaitable[wire.Message]],
) -> Callable[[Request, R, Services], Awaitable[None]]:
    """A handler of a function that has to wait; the request is parked meanwhile, and the handler free."""

    async def handle(request: Request, message: R, services: Services) -> None:
        async def answer() -> None:
            try:
                request.respond(await respond(message, request.context, services))
            except Exception as e:  # whatever it is, the requester is to hear of it (rule B1.31)
                if not isinstance(e, ApiError):
                    logger.exception("%r failed", request)
                request.fail(e)

        services.spawn(answer)

    return handle


def replying(request: Request) -> Callable[[wire.Message], None]:
    """For whoever answers later: a response that cannot be written becomes the API's error, not the caller's."""

    def reply(message: wire.Message) -> None:
        try:
            request.respond(message)
        except wire.EncodeError as e:
            request.fail(e)

    return reply
