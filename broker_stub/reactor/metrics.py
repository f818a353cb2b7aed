"""The metrics of the reactor, named as in rule B1.33; times are sums in seconds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from kce import wire
from kce.metrics import RESERVOIR_SIZE, Histogram
from kce.wire.registry import BY_NAME

#: of a request, in seconds: in the queue, in its handler, parked, in the queue of responses, being sent; and throttled
Times: TypeAlias = tuple[float, float, float, float, float, float]
#: the names of their histograms
_NAMES: Final = (
    "RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "ResponseQueueTimeMs", "ResponseSendTimeMs", "ThrottleTimeMs",
)  # fmt: skip

#: the last deprecated version of a request in Kafka 3.9 (KIP-896)
_DEPRECATED: Final = {
    BY_NAME[name].key: version
    for version, names in (
        (6, ("Produce",)),
        (3, ("Fetch", "Metadata")),
        (1, ("CreateTopics", "JoinGroup", "OffsetCommit", "OffsetForLeaderEpoch")),
        (0, (
            "AlterReplicaLogDirs", "CreateAcls", "CreateDelegationToken", "DeleteAcls", "DeleteGroups", "DeleteTopics",
            "DescribeAcls", "DescribeConfigs", "DescribeDelegationToken", "DescribeLogDirs", "ExpireDelegationToken",
            "FindCoordinator", "ListOffsets", "OffsetFetch", "RenewDelegationToken", "SaslHandshake",
        )),
    )
    for name in names
}  # fmt: skip
#: versions and clients that are counted for an API: clients give themselves names
_MAX_DEPRECATED: Final = 1000

_FETCH: Final = wire.FetchRequest.__api_key__
_ADD_PARTITIONS_TO_TXN: Final = wire.AddPartitionsToTxnRequest.__api_key__


class Sender(Protocol):
    """The part of a request's connection that this module uses."""

    client_software_name: str
    client_software_version: str


@dataclass(slots=True)
class ApiMetrics:
    """The requests of one API. A mean is a sum divided by ``requests``; the five parts add up to ``total_time``."""

    requests: int = 0
    request_queue_time: float = 0.0
    local_time: float = 0.0  # in the handler
    remote_time: float = 0.0  # parked: after the handler returned, until the response
    response_queue_time: float = 0.0
    response_send_time: float = 0.0
    throttle_time: float = 0.0  # for how long connections were not read afterwards
    versions: Counter[int] = field(default_factory=Counter)  # how many requests were of each
    #: requests of deprecated versions, by version and by the client's software and its version
    deprecated: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)  # by error code, NONE included: `wire.error_counts`
    latest: deque[Times] = field(default_factory=lambda: deque(maxlen=RESERVOIR_SIZE), compare=False)

    @property
    def total_time(self) -> float:
        waited = self.request_queue_time + self.response_queue_time + self.response_send_time
        return waited + self.local_time + self.remote_time

    def add(self, header: wire.Header, sender: Sender, times: Times) -> None:
        """One more request."""
        version = header.api_version
        queued, handled, parked, responded, sent, throttled = times
        self.requests += 1
        self.versions[version] += 1
        if version <= _DEPRECATED.get(header.api_key, -1):
            client = version, sender.client_software_name, sender.client_software_version
            if client in self.deprecated or len(self.deprecated) < _MAX_DEPRECATED:
                self.deprecated[client] += 1
        self.request_queue_time += queued
        self.local_time += handled
        self.remote_time += parked
        self.response_queue_time += responded
        self.response_send_time += sent
        self.throttle_time += throttled
        self.latest.append(times)

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """In ms, by Kafka's names."""
        sums = (
            self.request_queue_time, self.local_time, self.remote_time, self.response_queue_time,
            self.response_send_time, self.throttle_time,
        )  # fmt: skip
        for i, name in enumerate(_NAMES):
            yield name, Histogram.of(self.requests, sums[i] * 1000, [times[i] * 1000 for times in self.latest])
        totals = [sum(times[:-1]) * 1000 for times in self.latest]
        yield "TotalTimeMs", Histogram.of(self.requests, self.total_time * 1000, totals)


@dataclass(slots=True)
class RequestMetrics:
    """The metrics of one socket server."""

    apis: dict[str, ApiMetrics] = field(default_factory=dict)  # by API name and kind of request, once requested
    connections_accepted: int = 0
    connections_open: int = 0
    connections_refused: int = 0  # over max.connections.per.ip
    connections_closed_for_bad_requests: int = 0
    connections_expired: int = 0
    successful_authentications: int = 0
    failed_authentications: int = 0
    successful_reauthentications: int = 0
    failed_reauthentications: int = 0
    expired_connections_killed: int = 0  # sessions that ended without re-authentication (rule B9.25)
    handler_errors: int = 0  # exceptions that escaped from handlers
    _by_key: dict[int, ApiMetrics] = field(default_factory=dict)  # the same as ``apis``

    def of(self, name: str) -> ApiMetrics:
        found = self.apis.get(name)
        if found is None:
            found = self.apis[name] = ApiMetrics()
        return found

    def of_key(self, api_key: int) -> ApiMetrics:
        found = self._by_key.get(api_key)
        if found is None:
            found = self._by_key[api_key] = self.of(wire.api(api_key).name)
        return found

    def add(
        self, header: wire.Header, sender: Sender, message: object, times: Times, errors: Mapping[int, int]
    ) -> None:
        """A finished request, and how often each error code is in its response.

        A Fetch counts for its kind, too; what only verifies counts for its kind alone, but for its errors.
        """
        key = header.api_key
        if key == _FETCH:
            self.of("FetchFollower" if _is_of_follower(message) else "FetchConsumer").add(header, sender, times)
        if key == _ADD_PARTITIONS_TO_TXN and _only_verifies(message):
            self.of("AddPartitionsToTxnVerification").add(header, sender, times)
        else:
            self.of_key(key).add(header, sender, times)
        for code, count in errors.items():
            self.of_key(key).errors[code] += count


def _is_of_follower(message: object) -> bool:
    if not isinstance(message, wire.FetchRequest):
        return True  # the short form of what followers send
    return max(message.replica_id, message.replica_state.replica_id) >= 0


def _only_verifies(message: object) -> bool:
    if not isinstance(message, wire.AddPartitionsToTxnRequest) or not message.transactions:
        return False
    return all(transaction.verify_only for transaction in message.transactions)
