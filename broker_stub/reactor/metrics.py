"""The metrics of the reactor, named as in rule B1.33; times are sums in seconds."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from kce import wire
from kce.metrics import RESERVOIR_SIZE, Histogram
from kce.wire.registry import BY_NAME

#: a finished request: its version, and how often each error code is in its response; when it came, left the queue, left
#: its handler, was answered, left the queue of responses, and was sent, by trio.current_time(); then for how many ms it
#: was throttled
Finished: TypeAlias = tuple[int, Mapping[int, int], float, float, float, float, float, float, float]
#: in seconds: in the queue, in its handler, parked, in the queue of responses, being sent; and throttled
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
_NO_ERRORS: Final[Mapping[int, int]] = {}
#: requests of a kind that are not counted at once
_MOST_UNCOUNTED: Final = 1000

_FETCH: Final = wire.FetchRequest.__api_key__
_ADD_PARTITIONS_TO_TXN: Final = wire.AddPartitionsToTxnRequest.__api_key__
#: APIs whose requests are of different kinds
OF_KINDS: Final = frozenset((_FETCH, _ADD_PARTITIONS_TO_TXN))


class Sender(Protocol):
    """The part of a request's connection that this module uses."""

    client_software_name: str
    client_software_version: str


def _columns(requests: Collection[Finished]) -> tuple[Iterable[float], ...]:
    """The `Times` of requests, by column: that takes a fraction of making each."""
    if not requests:
        return ((),) * len(_NAMES)
    _, _, arrived, dequeued, returned, answered, taken, sent, muted_ms = zip(*requests, strict=True)
    handled = list(map(min, returned, answered))  # a response from within the handler has no remote time
    pairs = (dequeued, arrived), (handled, dequeued), (answered, handled), (taken, answered), (sent, taken)
    muted = [ms / 1000 for ms in muted_ms] if any(muted_ms) else muted_ms
    return *(map(operator.sub, end, begin) for end, begin in pairs), muted


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
    latest: deque[Finished] = field(default_factory=lambda: deque(maxlen=RESERVOIR_SIZE), compare=False)

    @property
    def total_time(self) -> float:
        waited = self.request_queue_time + self.response_queue_time + self.response_send_time
        return waited + self.local_time + self.remote_time

    def add(self, requests: Sequence[Finished]) -> None:
        """More requests."""
        versions, responses, *_ = zip(*requests, strict=True)
        self.requests += len(versions)
        self.versions.update(versions)
        queued, handled, parked, responded, sent, throttled = map(sum, _columns(requests))
        self.request_queue_time += queued
        self.local_time += handled
        self.remote_time += parked
        self.response_queue_time += responded
        self.response_send_time += sent
        self.throttle_time += throttled
        self.latest.extend(requests)
        self.count_errors(responses)

    def add_deprecated(self, version: int, sender: Sender) -> None:
        """A request of a deprecated version."""
        client = version, sender.client_software_name, sender.client_software_version
        if client in self.deprecated or len(self.deprecated) < _MAX_DEPRECATED:
            self.deprecated[client] += 1

    def count_errors(self, responses: Sequence[Mapping[int, int]]) -> None:
        """Of each response, how often each code is in it. Most share one mapping: see `wire.error_counts`."""
        distinct = dict(zip(map(id, responses), responses, strict=True))
        for known, times in Counter(map(id, responses)).items():
            for code, count in distinct[known].items():
                self.errors[code] += count * times

    def histograms(self) -> Iterator[tuple[str, Histogram]]:
        """In ms, by Kafka's names."""
        sums = (
            self.request_queue_time, self.local_time, self.remote_time, self.response_queue_time,
            self.response_send_time, self.throttle_time,
        )  # fmt: skip
        columns = [[seconds * 1000 for seconds in column] for column in _columns(self.latest)]
        for name, seconds, latest in zip(_NAMES, sums, columns, strict=True):
            yield name, Histogram.of(self.requests, seconds * 1000, latest)
        totals = list(map(sum, zip(*columns[:-1], strict=True)))
        yield "TotalTimeMs", Histogram.of(self.requests, self.total_time * 1000, totals)


@dataclass(slots=True)
class RequestMetrics:
    """The metrics of one socket server."""

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
    _apis: dict[str, ApiMetrics] = field(default_factory=dict)
    #: by API key, or by the name of a kind: to count requests together costs a fraction of counting each
    _uncounted: defaultdict[int | str, list[Finished]] = field(default_factory=lambda: defaultdict(list))

    @property
    def apis(self) -> Mapping[str, ApiMetrics]:
        """By API name and kind of request, once requested."""
        for kind, requests in self._uncounted.items():
            self._of(kind).add(requests)
        self._uncounted.clear()
        return self._apis

    def of(self, name: str) -> ApiMetrics:
        return self.apis.get(name) or self._of(name)

    def _of(self, kind: int | str) -> ApiMetrics:
        name = kind if isinstance(kind, str) else wire.api(kind).name
        found = self._apis.get(name)
        if found is None:
            found = self._apis[name] = ApiMetrics()
        return found

    def add(self, key: int, finished: Finished, sender: Sender, message: object) -> None:
        """A finished request of that API.

        A Fetch counts for its kind, too; what only verifies counts for its kind alone, but for its errors.
        """
        plain = finished[0], _NO_ERRORS, *finished[2:]
        if key == _FETCH:
            kind = "FetchFollower" if _is_of_follower(message) else "FetchConsumer"
            self.count(kind, key, plain, sender)
        elif key == _ADD_PARTITIONS_TO_TXN and _only_verifies(message):
            self.count("AddPartitionsToTxnVerification", key, plain, sender)
            if finished[1]:
                self._of(key).count_errors(finished[1:2])
            return
        self.count(key, key, finished, sender)

    def count(self, kind: int | str, key: int, finished: Finished, sender: Sender) -> None:
        """`add` to that kind alone."""
        requests = self._uncounted[kind]
        requests.append(finished)
        if finished[0] <= _DEPRECATED.get(key, -1):
            self._of(kind).add_deprecated(finished[0], sender)
        if len(requests) >= _MOST_UNCOUNTED:
            self._of(kind).add(self._uncounted.pop(kind))


def _is_of_follower(message: object) -> bool:
    if not isinstance(message, wire.FetchRequest):
        return True  # the short form of what followers send
    return max(message.replica_id, message.replica_state.replica_id) >= 0


def _only_verifies(message: object) -> bool:
    if not isinstance(message, wire.AddPartitionsToTxnRequest) or not message.transactions:
        return False
    return all(transaction.verify_only for transaction in message.transactions)
