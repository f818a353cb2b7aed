"""The quota of partitions that are created and deleted (rules 10.11, B8.10), with a clock of the test.

CMQ: `unit/kafka/server/ControllerMutationQuotaManagerTest.scala` (section 12 of docs/broker-semantics.md).
"""

from __future__ import annotations

import pytest

from kce.broker_stub.quotas.entities import Client, Entity
from kce.broker_stub.quotas.mutations import ControllerMutationQuota, MutationQuota, throttle_ms
from kce.broker_stub.sampled import TokenBucket

kafka = pytest.mark.kafka
WHO = "ANONYMOUS", "test-client"


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000
        self.quota = ControllerMutationQuota(10, 1)

    def __call__(self) -> int:
        return self.ms

    def of_request(self, *, strict: bool) -> MutationQuota:
        return self.quota.of_request(*WHO, self, strict=strict)

    def record(self, partitions: int) -> int:
        return self.quota.record(*WHO, partitions, self.ms)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@kafka("CMQ-1")
def test_a_strict_quota_refuses_what_comes_after_the_burst(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    quota = clock.of_request(strict=True)
    assert not quota.is_exceeded
    for _ in range(2):
        assert quota.record(90)
        assert (quota.is_exceeded, quota.throttle_time_ms) == (False, 0)
    assert not quota.record(90)
    assert (quota.is_exceeded, quota.throttle_time_ms) == (True, 8000)
    clock.ms += 5000
    assert quota.throttle_time_ms == 3000
    clock.ms += 5000
    assert quota.throttle_time_ms == 0


@kafka("CMQ-2")
def test_a_permissive_quota_throttles_what_comes_after_the_burst(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    quota = clock.of_request(strict=False)
    assert not quota.is_exceeded
    for expected in (0, 8000, 17000):
        assert quota.record(90)
        assert (quota.is_exceeded, quota.throttle_time_ms) == (False, expected)
    clock.ms += 5000
    assert quota.throttle_time_ms == 12000


@kafka("CMQ-3")
@pytest.mark.parametrize(("debt", "expected"), [(0, 0), (5, 500), (10, 1000)])
def test_how_long_a_debt_lasts(debt: float, expected: int) -> None:
    bucket = TokenBucket(10, 10, 1000)
    bucket.record(100 + debt, 0)
    assert throttle_ms(bucket, 0) == expected


@kafka("CMQ-4")
def test_a_spike(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    for _ in range(10):
        assert clock.record(10) == 0
        clock.ms += 1000
    assert clock.quota.queue_size(clock.ms) == 0
    assert clock.record(110) == 0
    throttled = clock.record(110)
    assert throttled == 1000
    clock.quota.throttled(*WHO, throttled, clock.ms)
    assert clock.quota.queue_size(clock.ms) == 1
    clock.ms += throttled
    assert clock.quota.queue_size(clock.ms) == 0
    assert clock.record(110) == 0


@kafka("CMQ-5")
@kafka("CMQ-7")
@pytest.mark.parametrize("strict", [True, False])
def test_without_a_quota_everything_is_permitted(clock: Clock, strict: bool) -> None:
    quota = clock.of_request(strict=strict)
    assert all(quota.record(10**9) for _ in range(3))
    assert (quota.is_exceeded, quota.throttle_time_ms, clock.quota.clients) == (False, 0, {})


@kafka("CMQ-6")
@kafka("CMQ-8")
@pytest.mark.parametrize("strict", [True, False])
def test_with_a_quota_the_version_decides(clock: Clock, strict: bool) -> None:
    clock.quota.update(Entity(*WHO), 10)
    quota = clock.of_request(strict=strict)
    assert [quota.record(101), quota.record(1)] == [True, not strict]


# ours


def test_another_limit_applies_at_once(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    assert clock.record(120) == 0
    clock.quota.update(Entity(*WHO), 40)
    assert clock.record(1) == 500
    clock.ms += 500
    assert clock.record(1) == 0
    clock.quota.update(Entity(*WHO), None)
    assert clock.record(10**9) == 0


def test_a_limit_of_zero_refuses_after_the_first_and_names_no_time(clock: Clock) -> None:  # rule B8.13
    clock.quota.update(Entity(*WHO), 0)
    quota = clock.of_request(strict=True)
    assert [quota.record(1), quota.record(1)] == [True, False]
    assert quota.throttle_time_ms == 0


def test_the_rate_of_mutations_is_measured(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    clock.record(60)
    assert clock.quota.clients[Client(*WHO)].measured.rate.measure(clock.ms) == 2


@pytest.mark.parametrize(("rate", "ms"), [(2000, 1), (1000, 1), (500, 2), (4000, 0)])
def test_a_strict_quota_is_exceeded_for_any_time(clock: Clock, rate: float, ms: int) -> None:
    clock.quota.update(Entity(*WHO), rate)
    quota = clock.of_request(strict=True)
    assert quota.record(int(rate * 10) + 1)
    assert not quota.record(1)
    assert (quota.throttle_time_ms, quota.is_exceeded) == (ms, ms > 0)


def test_the_rate_of_mutations_is_that_of_a_minute(clock: Clock) -> None:
    clock.quota.update(Entity(*WHO), 10)
    clock.of_request(strict=True).record(90)
    rate = clock.quota.clients[Client(*WHO)].measured.rate
    assert [rate.total(clock.ms + ms) for ms in (0, 59_999, 60_001)] == [90, 90, 0]
