"""The quota of partitions that a client creates and deletes (KIP-599; rules 10.11, B8.10)."""

from __future__ import annotations

from collections.abc import Callable

from kce.broker_stub.quotas.client_quota import ClientQuota, Sensors
from kce.broker_stub.sampled import Rate, TokenBucket, java_int


class Mutations:
    """What a client created and deleted: its tokens, and its rate over two samples of 30 s, a metric only."""

    __slots__ = ("bucket", "rate")

    def __init__(self, bucket: TokenBucket) -> None:
        self.bucket = bucket
        self.rate = Rate(2, 30_000)


class MutationQuota:
    """The quota of one request; no request is refused without ``sensors``. ``now_ms`` is the clock.

    A strict one refuses what comes while the bucket is overdrawn, a permissive one only throttles.
    """

    def __init__(self, sensors: Sensors[Mutations] | None, now_ms: Callable[[], int], *, strict: bool) -> None:
        self._sensors = sensors
        self._now_ms = now_ms
        self._strict = strict
        self._throttle_ms = 0
        self._recorded_at = 0

    @property
    def is_exceeded(self) -> bool:
        return self._strict and self._throttle_ms > 0

    @property
    def throttle_time_ms(self) -> int:
        """How long the client must wait from now on."""
        return max(0, self._throttle_ms - (self._now_ms() - self._recorded_at))

    def record(self, partitions: int) -> bool:
        """Whether so many partitions may be created or deleted."""
        if self._sensors is None:
            return True
        now = self._now_ms()
        mutations = self._sensors.measured
        if self._strict and mutations.bucket.measure(now) < 0:
            self._throttle(mutations.bucket, now)
            return False
        mutations.bucket.record(partitions, now)
        mutations.rate.record(partitions, now)
        if not self._strict and mutations.bucket.measure(now) < 0:
            self._throttle(mutations.bucket, now)
        return True

    def _throttle(self, bucket: TokenBucket, now: int) -> None:
        self._throttle_ms = throttle_ms(bucket, now)
        self._recorded_at = now


def throttle_ms(bucket: TokenBucket, now: int) -> int:
    """Milliseconds until an overdrawn bucket has no debt."""
    debt = -bucket.measure(now)
    return java_int(debt / bucket.rate * 1000 if bucket.rate else float("inf"))


class ControllerMutationQuota(ClientQuota[Mutations]):
    """A bucket for each client."""

    def _measured(self, limit: float) -> Mutations:
        return Mutations(TokenBucket(limit, self.samples, self.window_ms))

    def _limit_changed(self, sensors: Sensors[Mutations]) -> None:
        sensors.measured.bucket.rate = sensors.limit

    def of_request(self, user: str, client_id: str, now_ms: Callable[[], int], *, strict: bool) -> MutationQuota:
        """``strict``: the request's version has THROTTLING_QUOTA_EXCEEDED."""
        sensors = self.sensors(user, client_id, now_ms()) if self.enabled else None
        return MutationQuota(sensors, now_ms, strict=strict)

    def record(self, user: str, client_id: str, partitions: int, now: int) -> int:
        """Like a strict quota: for how many ms the client is to be throttled, and then nothing is recorded."""
        quota = self.of_request(user, client_id, lambda: now, strict=True)
        quota.record(partitions)
        return quota.throttle_time_ms
