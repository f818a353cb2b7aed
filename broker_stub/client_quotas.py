"""Client quotas: which quota applies to which client (rule B8.9), and the controller mutation quota (KIP-599; rules
10.11, B8.10).

Other quotas are stored but not enforced.
"""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Mapping
from typing import Final, NamedTuple

from kce.zookeeper.znodes import DEFAULT_ENTITY

#: the user of a connection without authentication
ANONYMOUS: Final = "ANONYMOUS"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"


class Entity(NamedTuple):
    """Who a quota is for. "<default>" matches everyone without a quota of their own; None matches everyone."""

    user: str | None
    client_id: str | None


class ClientQuotas:
    """The configured quotas of users and clients. ``changed`` sets them at startup and after each change."""

    def __init__(self) -> None:
        self._quotas: dict[Entity, dict[str, float]] = {}

    def changed(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """``kind`` and ``name`` as in `/config/<kind>/<name>`: ("clients", "c"), ("users", "u/clients/c").

        Values that are not numbers, such as credentials, are ignored.
        """
        quotas = {key: number for key, text in config.items() if (number := _number(text)) is not None}
        entity = _entity(kind, name)
        if quotas:
            self._quotas[entity] = quotas
        else:
            self._quotas.pop(entity, None)

    def quota(self, key: str, user: str, client_id: str) -> tuple[Entity, float] | None:
        """The limit and the entity that shares it; None if there is no limit (rule B8.9)."""
        for entity, shared_by in (
            (Entity(user, client_id), Entity(user, client_id)),
            (Entity(user, DEFAULT_ENTITY), Entity(user, client_id)),
            (Entity(user, None), Entity(user, None)),
            (Entity(DEFAULT_ENTITY, client_id), Entity(user, client_id)),
            (Entity(DEFAULT_ENTITY, DEFAULT_ENTITY), Entity(user, client_id)),
            (Entity(DEFAULT_ENTITY, None), Entity(user, None)),
            (Entity(None, client_id), Entity(None, client_id)),
            (Entity(None, DEFAULT_ENTITY), Entity(None, client_id)),
        ):
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return shared_by, limit
        return None


def _entity(kind: str, name: str) -> Entity:
    """Each name is URL-encoded on its own."""
    if kind == "clients":
        return Entity(None, urllib.parse.unquote(name))
    user, _, client_id = name.partition("/clients/")
    return Entity(urllib.parse.unquote(user), urllib.parse.unquote(client_id) if client_id else None)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class _TokenBucket:
    """Fills at a constant rate up to a burst size. One request may overdraw it; the balance is then negative."""

    def __init__(self, now: float) -> None:
        self.balance = math.inf  # `fill` caps it at the burst size
        self._filled_at = now

    def fill(self, rate: float, burst: float, now: float) -> float:
        """Add the tokens since the last call and return the balance."""
        self.balance = min(burst, self.balance + rate * (now - self._filled_at))
        self._filled_at = now
        return self.balance

    def take(self, count: int) -> float:
        self.balance -= count
        return self.balance


class MutationQuota:
    """The quota for one request. ``throttle_time_ms``, for its response, is the time until the balance is positive."""

    def __init__(self, bucket: _TokenBucket | None, rate: float, *, strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._strict = strict
        self.throttle_time_ms = 0

    def record(self, partitions: int) -> bool:
        """Whether so many partitions may be created or deleted. Always true for versions without the error code."""
        if self._bucket is None:
            return True
        balance = self._bucket.balance
        if self._strict and balance < 0:
            self._throttle(balance)
            return False
        balance = self._bucket.take(partitions)
        if balance < 0 and not self._strict:
            self._throttle(balance)
        return True

    def _throttle(self, balance: float) -> None:
        self.throttle_time_ms = max(self.throttle_time_ms, round(-balance / self._rate * 1000))


class ControllerMutationQuotas:
    """One bucket for each user or client with a quota. A burst may use ``samples`` windows of ``window_seconds``:
    `controller.quota.window.num` and `controller.quota.window.size.seconds`."""

    def __init__(self, quotas: ClientQuotas, samples: int, window_seconds: int) -> None:
        self._quotas = quotas
        self._seconds = samples * window_seconds
        self._buckets: dict[Entity, _TokenBucket] = {}

    def of_request(self, client_id: str | None, now: float, *, strict: bool) -> MutationQuota:
        """``strict``: the request's version has THROTTLING_QUOTA_EXCEEDED. ``now`` is in seconds."""
        found = self._quotas.quota(CONTROLLER_MUTATION_RATE, ANONYMOUS, client_id or "")
        if found is None or found[1] <= 0:
            return MutationQuota(None, 0, strict=strict)
        entity, rate = found
        bucket = self._buckets.setdefault(entity, _TokenBucket(now))
        bucket.fill(rate, rate * self._seconds, now)
        return MutationQuota(bucket, rate, strict=strict)
