"""Quotas of clients: which one applies to whom (rule B8.9), and the one that a broker without records can enforce, on
the partitions that are created and deleted (rules 10.11, B8.10; KIP-599).

All others that may be set are known, and limit nothing here.
"""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Mapping
from typing import Final, NamedTuple

#: as whom a connection without authentication asks
ANONYMOUS: Final = "ANONYMOUS"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
_DEFAULT: Final = "<default>"


class Entity(NamedTuple):
    """Whom a quota is for, "<default>" standing for all that have none of their own; None: it does not matter who."""

    user: str | None
    client_id: str | None


class ClientQuotas:
    """What is configured for users and clients, told by ``changed`` at the start and whenever it changes."""

    def __init__(self) -> None:
        self._quotas: dict[Entity, dict[str, float]] = {}

    def changed(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """``kind`` and ``name`` as in `/config/<kind>/<name>`: ("clients", "c"), ("users", "u/clients/c").

        Values that are no numbers, such as credentials, are no quotas.
        """
        quotas = {key: number for key, text in config.items() if (number := _number(text)) is not None}
        entity = _entity(kind, name)
        if quotas:
            self._quotas[entity] = quotas
        else:
            self._quotas.pop(entity, None)

    def quota(self, key: str, user: str, client_id: str) -> tuple[Entity, float] | None:
        """The limit and who shares it; None for no limit (rule B8.9)."""
        for entity, shared_by in (
            (Entity(user, client_id), Entity(user, client_id)),
            (Entity(user, _DEFAULT), Entity(user, client_id)),
            (Entity(user, None), Entity(user, None)),
            (Entity(_DEFAULT, client_id), Entity(user, client_id)),
            (Entity(_DEFAULT, _DEFAULT), Entity(user, client_id)),
            (Entity(_DEFAULT, None), Entity(user, None)),
            (Entity(None, client_id), Entity(None, client_id)),
            (Entity(None, _DEFAULT), Entity(None, client_id)),
        ):
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return shared_by, limit
        return None


def _entity(kind: str, name: str) -> Entity:
    """Names are URL-encoded, each by itself."""
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
    """Fills at a rate, up to what the windows hold; may be overdrawn once, and is then in debt."""

    def __init__(self, now: float) -> None:
        self._tokens = math.inf  # full, whatever that is
        self._filled_at = now

    def fill(self, rate: float, burst: float, now: float) -> float:
        """The tokens there are now."""
        self._tokens = min(burst, self._tokens + rate * (now - self._filled_at))
        self._filled_at = now
        return self._tokens

    def take(self, count: int) -> float:
        self._tokens -= count
        return self._tokens


class MutationQuota:
    """Of one request. ``throttle_time_ms`` is for its response: how long until the debt is paid."""

    def __init__(self, bucket: _TokenBucket | None, rate: float, *, strict: bool) -> None:
        self._bucket = bucket
        self._rate = rate
        self._strict = strict
        self.throttle_time_ms = 0

    def record(self, partitions: int) -> bool:
        """Whether so many may be created or deleted. A request whose version knows no refusal always may."""
        if self._bucket is None:
            return True
        if self._strict and self._bucket.take(0) < 0:
            self._owe(self._bucket.take(0))
            return False
        left = self._bucket.take(partitions)
        if left < 0 and not self._strict:
            self._owe(left)
        return True

    def _owe(self, tokens: float) -> None:
        self.throttle_time_ms = max(self.throttle_time_ms, round(-tokens / self._rate * 1000))


class ControllerMutationQuotas:
    """A bucket for each user or client that a quota is for. ``samples`` windows of ``window_seconds`` may be spent at
    once: `controller.quota.window.num` and `controller.quota.window.size.seconds`."""

    def __init__(self, quotas: ClientQuotas, samples: int, window_seconds: int) -> None:
        self._quotas = quotas
        self._seconds = samples * window_seconds
        self._buckets: dict[Entity, _TokenBucket] = {}

    def of_request(self, client_id: str | None, now: float, *, strict: bool) -> MutationQuota:
        """``strict``: its version knows THROTTLING_QUOTA_EXCEEDED. ``now`` is in seconds."""
        found = self._quotas.quota(CONTROLLER_MUTATION_RATE, ANONYMOUS, client_id or "")
        if found is None or found[1] <= 0:
            return MutationQuota(None, 0, strict=strict)
        entity, rate = found
        bucket = self._buckets.setdefault(entity, _TokenBucket(now))
        bucket.fill(rate, rate * self._seconds, now)
        return MutationQuota(bucket, rate, strict=strict)
