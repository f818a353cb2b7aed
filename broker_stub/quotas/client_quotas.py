"""The four quotas of clients of one broker, and how requests are charged (rules B8.1-B8.14, KIP-13, KIP-124, KIP-599).

Nothing is measured before a quota of a kind is set: a request then costs one look at a field.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kce import wire
from kce.broker_stub.errors import error_code
from kce.broker_stub.quotas.client_quota import ClientQuota, RateQuota
from kce.broker_stub.quotas.entities import entity
from kce.broker_stub.quotas.mutations import ControllerMutationQuota, MutationQuota
from kce.broker_stub.reactor import Request, RequestContext
from kce.broker_stub.sampled import Rate, now_ms
from kce.wire import ErrorCode

log = logging.getLogger(__name__)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"

#: requests of brokers and controllers are not charged (rule B8.8)
EXEMPT: Final = frozenset(
    message.__api_key__
    for message in (
        wire.LeaderAndIsrRequest,
        wire.StopReplicaRequest,
        wire.UpdateMetadataRequest,
        wire.ControlledShutdownRequest,
        wire.WriteTxnMarkersRequest,
        wire.AlterPartitionRequest,
    )
)
#: nor is one of these that fails
CLUSTER_ACTIONS: Final = EXEMPT | {
    message.__api_key__ for message in (wire.UpdateFeaturesRequest, wire.AllocateProducerIdsRequest)
}


class ClientQuotas:
    """``changed`` sets the quotas at startup and after each change; they apply at once.

    ``samples`` and ``window_seconds``: `quota.window.num` and `quota.window.size.seconds`; ``mutation_...``: those of
    `controller.quota`.
    """

    def __init__(
        self,
        samples: int = 11,
        window_seconds: int = 1,
        mutation_samples: int = 11,
        mutation_window_seconds: int = 1,
    ) -> None:
        self.produce = RateQuota(samples, window_seconds)
        self.fetch = RateQuota(samples, window_seconds)
        self.request = RateQuota(samples, window_seconds, self._requests_limited, window_seconds * 1000)
        self.controller_mutation = ControllerMutationQuota(mutation_samples, mutation_window_seconds)
        #: the time of exempt requests, in percent of a second
        self.exempt_time = Rate(2, 30_000)
        #: called when the first quota of request time is set
        self.on_requests_limited: Callable[[], None] = lambda: None

    def _requests_limited(self) -> None:
        self.on_requests_limited()

    def changed(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """``kind`` and ``name`` as in `/config/<kind>/<name>`: ("clients", "c"), ("users", "u/clients/c").

        What cannot be read is logged, and changes nothing.
        """
        try:
            of = entity(kind, name)
            limits: list[tuple[ClientQuota[Any], float | None]] = [
                (self.produce, _integer(config, PRODUCER_BYTE_RATE)),
                (self.fetch, _integer(config, CONSUMER_BYTE_RATE)),
                (self.request, _number(config, REQUEST_PERCENTAGE)),
                (self.controller_mutation, _number(config, CONTROLLER_MUTATION_RATE)),
            ]
        except ValueError as e:
            log.error("quotas of /config/%s/%s are not used: %s", kind, name, e)
            return
        for quota, limit in limits:
            quota.update(of, limit)

    def mutations(self, context: RequestContext, *, strict: bool) -> MutationQuota:
        """The quota of a request that creates or deletes partitions (rule 10.11)."""
        return self.controller_mutation.of_request(*client(context), now_ms, strict=strict)

    def throttle_mutations(self, request: Request, ms: int) -> None:
        """The answer to a request whose ``mutations`` are throttled so long is about to be sent (rule B8.5)."""
        if ms > request.charge():
            self.controller_mutation.throttled(*client(request.context), ms, now_ms())

    def charge_produce(self, request: Request) -> int:
        """For how many ms the client is throttled for the size of its request (rules B8.5, B8.7)."""
        who, now = client(request.context), now_ms()
        ms = self.produce.record(*who, request.size, now)
        if ms > (0 if request.is_exempt else request.charge()):
            self.produce.throttled(*who, ms, now)
        return max(ms, 0)

    def charge_fetch(self, request: Request, size: int) -> int:
        """For how many ms the client is throttled for a response of so many bytes, and for the time that it took.

        If it is, it must not get them (rule B8.7).
        """
        who, now = client(request.context), now_ms()
        by_time = request.charge()
        by_size = self.fetch.record(*who, size, now)
        ms = max(by_time, by_size)
        if ms > 0:
            self.fetch.record_only(*who, -size, now)
            if by_size > by_time:
                self.fetch.throttled(*who, by_size, now)
        return ms

    # the reactor's RequestQuota

    def charge(self, request: Request, seconds: float) -> int:
        """Rule B8.5."""
        return max(0, self.request.record(*client(request.context), _percent(seconds), now_ms()))

    def charge_network(self, request: Request, seconds: float) -> None:
        now = now_ms()
        if request.is_exempt:
            self.exempt_time.record(_percent(seconds), now)
        else:
            self.request.record_only(*client(request.context), _percent(seconds), now)

    def charge_exempt(self, seconds: float) -> None:
        self.exempt_time.record(_percent(seconds), now_ms())

    def is_exempt(self, request: Request, error: int) -> bool:
        """Rules B8.8, B1.41: ``error`` is that of the whole response."""
        return request.context.header.api_key in EXEMPT and error != ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def is_failure_exempt(self, request: Request, error: Exception) -> bool:
        key = request.context.header.api_key
        return key in CLUSTER_ACTIONS and error_code(error) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def throttled(self, request: Request, ms: int) -> None:
        self.request.throttled(*client(request.context), ms, now_ms())


def client(context: RequestContext) -> tuple[str, str]:
    """User and client id of a request."""
    return context.principal.name, context.header.client_id or ""


def _percent(seconds: float) -> float:
    """Of one second of one thread."""
    return seconds * 100


def _integer(config: Mapping[str, str], key: str) -> float | None:
    """Raises ValueError."""
    return float(int(config[key])) if key in config else None


def _number(config: Mapping[str, str], key: str) -> float | None:
    """Raises ValueError. NaN is a limit that throttles nobody."""
    return float(config[key]) if key in config else None
