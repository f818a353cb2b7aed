"""Shared by all handlers: the state that they use, and the type of an entry in the dispatch table."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, TypeVarTuple

import trio

from kce import wire
from kce.broker_stub.authorization import NO_AUTHORIZATION, Authorization
from kce.broker_stub.auto_topic_creation import AutoTopicCreation
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.dynamic_config import DynamicConfig
from kce.broker_stub.errors import ApiException
from kce.broker_stub.groups.coordinator import GroupCoordinator
from kce.broker_stub.handlers.served_apis import ServedApis
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import AdminPort, ControllerPort, NoTopicSettings, TopicSettings
from kce.broker_stub.producer_ids import ProducerIdManager
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.reactor.request import Sharing
from kce.broker_stub.reactor.request_channel import failed_again
from kce.broker_stub.replica_manager import ReplicaManager
from kce.broker_stub.replication.appends import Appends
from kce.broker_stub.replication.data_plane import DataPlane
from kce.broker_stub.replication.log_dir_moves import LogDirMoves
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.broker_stub.security.operations import Operation
from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.transactions.coordinator import TransactionCoordinator
from kce.broker_stub.transactions.verification import TransactionVerification
from kce.garbage import no_collection
from kce.wire import ErrorCode
from kce.wire.steps import Steps

log = logging.getLogger(__name__)
state_change_log = logging.getLogger("state.change.logger")

R = TypeVar("R", bound=wire.Message)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: how long collections rest for a long request at most
_REST_SECONDS: Final = 60
#: steps of an answer that is given at once
STEPS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a broker that handlers use."""

    config: BrokerConfig
    dynamic_config: DynamicConfig
    cluster_id: str
    served_apis: ServedApis
    metadata_cache: MetadataCache
    replica_manager: ReplicaManager
    log_manager: LogManager
    controller: ControllerPort
    admin: AdminPort
    broker_epoch: Callable[[], int]
    producer_ids: ProducerIdManager
    quotas: ClientQuotas
    data_plane: DataPlane
    appends: Appends
    log_dir_moves: LogDirMoves
    #: of what followers fetch here
    leader_quota: ReplicationQuota
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verification: TransactionVerification
    topic_creation: AutoTopicCreation
    #: starts a background task of the broker
    spawn: Callable[[Callable[[], Awaitable[None]]], None]
    authorization: Authorization = NO_AUTHORIZATION
    #: None without `delegation.token.secret.key`
    tokens: DelegationTokenManager | None = None
    topic_settings: TopicSettings = field(default_factory=NoTopicSettings)

    def is_stale_broker_epoch(self, epoch: int) -> bool:
        """Rule 9.5: -1 is never stale, nor is a newer epoch, which the controller may know first."""
        return epoch != -1 and epoch < self.broker_epoch()


def log_answer(message: Any, error: ErrorCode, context: RequestContext, services: Services) -> None:
    """One line for each request of a controller, at WARNING if it is fenced."""
    level = logging.INFO if error == ErrorCode.NONE else logging.WARNING
    if state_change_log.isEnabledFor(level):
        state_change_log.log(
            level,
            "[Broker id=%d] %s of controller %d epoch %d, broker epoch %d, correlation id %d, connection %s: %s",
            services.config.broker_id, type(message).__name__.removesuffix("Request"), message.controller_id,
            message.controller_epoch, message.broker_epoch, context.header.correlation_id,
            context.connection.connection_id,
            "accepted" if error == ErrorCode.NONE else f"fenced with {error.name}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Handler(Generic[R]):
    """One API of this broker; each module of this package defines one.

    ``handle`` answers the request, or parks it to answer later. Only a request that must wait in its handler, and so
    occupy it, has an ``async def handle``. ``error_response`` is the API's generic error response (rule 9.4); None if
    there is none for the request.
    """

    request: type[R]
    handle: Callable[[Request, Any, Services], Awaitable[None] | None]  # Any: R, which no table of all APIs can express
    error_response: Callable[[Any, RequestContext, ErrorCode], wire.Message | None]
    #: raises wire.TooManyElements for more elements than the second argument
    decode: Callable[[bytes, int], tuple[wire.Header, wire.Message]] = wire.decode_request
    #: of a version and a decoded request: raises wire.DecodeError for what Kafka refuses as it parses
    check: Callable[[int, wire.Message], None] | None = None
    #: how requests that came together share work, if they can
    sharing: Callable[[Services], Sharing] | None = None
    #: on the cluster, for the whole request; whoever may not gets the error response, and is not handled
    needs: Operation | None = None
    #: the field that tells the entries of an error response apart, if a thing that is named again has one entry
    distinct_errors: str | None = None
    #: whether the error responses to parts of a request make up the one to all of it
    has_errors_of_parts: bool = True
    #: otherwise: ``error_response`` with pauses, if there is one
    errors_in_steps: Callable[[Any, RequestContext, ErrorCode], Steps[wire.Message]] | None = None
    #: levels of nested elements of a request that its error response does not have
    levels_left_out: int = 0

    @property
    def api_key(self) -> int:
        return self.request.__api_key__

    @property
    def versions(self) -> wire.ApiVersion:
        """All versions of Kafka 3.9, because controllers and brokers do not negotiate (rule B1.62)."""
        first, last = self.request.__versions__
        return wire.ApiVersion(api_key=self.api_key, min_version=first, max_version=last)


def respond_to(request: Request, make: Callable[[*Ts], wire.Message], *args: *Ts) -> None:
    """Answer a request that has waited. Whoever completed it is not concerned by a failure (rule B1.31)."""
    try:
        request.respond(make(*args))
    except Exception as e:  # noqa: BLE001 - logged there
        _failed(request, e)


def answer_by(request: Request, answer: Callable[[], None]) -> None:
    """``respond_to`` where ``answer`` responds by itself."""
    try:
        answer()
    except Exception as e:  # noqa: BLE001 - logged there
        _failed(request, e)


def _failed(request: Request, error: Exception) -> None:
    log.exception("%r failed", request, exc_info=error)
    try:
        request.fail(error)
    except Exception:  # noqa: BLE001 - logged there
        failed_again(request)


def answering(
    respond: Callable[[R, RequestContext, Services], wire.Message],
) -> Callable[[Request, R, Services], None]:
    """Make a handler from a function of request and broker state."""

    def handle(request: Request, message: R, services: Services) -> None:
        request.respond(respond(message, request.context, services))

    return handle


class Answer(NamedTuple):
    """A response, and its error codes if it holds parts that are encoded already."""

    message: wire.Message
    errors: Mapping[int, int] | None = None


#: makes an answer that needs something which takes time
Later = Callable[[], Awaitable[Answer]]


def answering_in_steps(
    respond: Callable[[R, RequestContext, Services], Steps[Answer | Later]],
) -> Callable[[Request, R, Services], Awaitable[None] | None]:
    """Make a handler from a generator that yields after each bounded piece of work (see ``wire.steps``).

    A short answer is given at once. A long one is worked on in turns with other requests, and occupies its handler.
    One that is made later parks the request.
    """

    def handle(request: Request, message: R, services: Services) -> Awaitable[None] | None:
        steps = respond(message, request.context, services)
        try:
            for _ in range(STEPS_AT_ONCE):
                next(steps)
        except StopIteration as e:
            finish(request, e.value, services)
            return None
        return rest(request, steps, services)

    async def rest(request: Request, steps: Steps[Answer | Later], services: Services) -> None:
        finish(request, await request.in_turns(steps), services)

    def finish(request: Request, answer: Answer | Later, services: Services) -> None:
        if isinstance(answer, Answer):
            request.respond(*answer)
        else:
            answer_later(request, answer, services)

    return handle


def after_steps(request: Request, steps: Steps[T], then: Callable[[T], None]) -> Awaitable[None] | None:
    """Handle a request by ``then`` with the result of ``steps``, which are taken at once if they are few."""
    try:
        for _ in range(STEPS_AT_ONCE):
            next(steps)
    except StopIteration as e:
        then(e.value)
        return None

    async def rest() -> None:
        then(await request.in_turns(steps))

    return rest()


def with_settings(
    handle: Callable[[Request, R, Services], Awaitable[None] | None], topics: Callable[[R], Iterable[str]]
) -> Callable[[Request, R, Services], Awaitable[None] | None]:
    """Make a handler that has the settings of ``topics`` read first, if they are not known yet."""

    def handle_with_settings(request: Request, message: R, services: Services) -> Awaitable[None] | None:
        unread = services.topic_settings.unread
        if unread and (needed := {topic for topic in topics(message) if topic in unread}):
            return after_reading(needed, handle, request, message, services)
        return handle(request, message, services)

    return handle_with_settings


async def after_reading(
    topics: Collection[str],
    handle: Callable[[Request, R, Services], Awaitable[None] | None],
    request: Request,
    message: R,
    services: Services,
) -> None:
    """Handle a request once the settings of ``topics`` are read."""
    await services.topic_settings.read(topics)
    rest = handle(request, message, services)
    if rest is not None:
        await rest


def answering_later(
    respond: Callable[[R, RequestContext, Services], Awaitable[wire.Message]],
) -> Callable[[Request, R, Services], None]:
    """Make a handler from an async function; the request is parked while it runs, and the handler is free."""

    def handle(request: Request, message: R, services: Services) -> None:
        async def answer() -> Answer:
            return Answer(await respond(message, request.context, services))

        answer_later(request, answer, services)

    return handle


def answer_later(request: Request, make: Later, services: Services, *, is_long: bool = False) -> None:
    """Park the request until its answer is made. ``is_long``: the answer, and maybe not the request."""
    ended = trio.Event() if is_long or request.is_long else None

    async def answer() -> None:
        try:
            await request.respond_in_turns(*await make())
        except Exception as e:  # any error becomes an error response (rule B1.31)
            if not isinstance(e, ApiException):
                log.exception("%r failed", request)
            try:
                await request.fail_in_turns(e)
            except Exception:  # noqa: BLE001 - logged there
                failed_again(request)
        finally:
            if ended is not None:
                ended.set()

    if ended is not None:
        services.spawn(partial(_rest_from_collection, ended))
    services.spawn(answer)


async def _rest_from_collection(ended: trio.Event) -> None:
    """To scan the objects of a long request would stall the broker. It may wait for as long as its client wants."""
    with no_collection(), trio.move_on_after(_REST_SECONDS):
        await ended.wait()
