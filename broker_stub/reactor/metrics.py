"""The metrics of the reactor, named as in rule B1.33; times are sums in seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kce import wire


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
    errors: Counter[int] = field(default_factory=Counter)  # by error code, NONE included: `wire.error_counts`

    @property
    def total_time(self) -> float:
        waited = self.request_queue_time + self.response_queue_time + self.response_send_time
        return waited + self.local_time + self.remote_time


@dataclass(slots=True)
class RequestMetrics:
    """The metrics of one socket server."""

    apis: dict[str, ApiMetrics] = field(default_factory=dict)  # by API name, once requested
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

    def of(self, api_name: str) -> ApiMetrics:
        found = self.apis.get(api_name)
        if found is None:
            found = self.apis[api_name] = ApiMetrics()
        return found

    def of_key(self, api_key: int) -> ApiMetrics:
        found = self._by_key.get(api_key)
        if found is None:
            found = self._by_key[api_key] = self.of(wire.api(api_key).name)
        return found
