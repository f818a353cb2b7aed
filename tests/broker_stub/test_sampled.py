"""Rates, averages and token buckets over time, to Kafka's millisecond (rules B8.6, B8.13).

QUT: `unit/kafka/utils/QuotaUtilsTest.scala` (section 12 of docs/broker-semantics.md).
"""

from __future__ import annotations

import math

import pytest

from kce.broker_stub.sampled import Average, Rate, SimpleRate, TokenBucket, java_int, throttle_ms

kafka = pytest.mark.kafka
NOW = 1_000_000


def throttled(observed: float, quota: float, samples: int) -> int:
    """With a window of all but one of the samples, as when nothing has been recorded."""
    return java_int(throttle_ms(Rate(samples, 1000), observed, quota, NOW))


def bounded(observed: float, quota: float, samples: int, most: int = 500) -> int:
    return java_int(min(throttle_ms(Rate(samples, 1000), observed, quota, NOW), most))


@kafka("QUT-1")
def test_a_rate_that_equals_the_quota() -> None:
    assert [throttled(16.5, 16.5, samples) for samples in (10, 11)] == [0, 0]


@kafka("QUT-2")
def test_a_rate_below_the_quota() -> None:
    assert all(throttled(16.5, 20.4, samples) < 0 for samples in (10, 11))


@kafka("QUT-3")
def test_a_rate_above_the_quota() -> None:
    assert throttled(100, 50, 3) == 2000


@kafka("QUT-4")
def test_a_bounded_time_of_a_rate_that_equals_the_quota() -> None:
    assert [bounded(18.2, 18.2, samples) for samples in (10, 11)] == [0, 0]


@kafka("QUT-5")
def test_a_bounded_time_of_a_rate_below_the_quota() -> None:
    assert all(bounded(16.5, 22.4, samples) < 0 for samples in (10, 11))


@kafka("QUT-6")
def test_a_time_below_its_bound() -> None:
    assert bounded(55, 50, 2) == 100


@kafka("QUT-7")
def test_a_time_at_its_bound() -> None:
    assert bounded(100, 50, 10) == 500


def test_a_rate_forgets_a_sample_when_its_last_value_is_a_window_old() -> None:
    rate = Rate(3, 1000)
    rate.record(10, NOW)
    rate.record(20, NOW + 999)  # in the same sample
    rate.record(30, NOW + 1500)
    assert rate.total(NOW + 3998) == 60
    assert rate.window(NOW + 3998) == 3998
    assert rate.total(NOW + 3999) == 30
    assert rate.window(NOW + 3999) == 3999 - 1500
    assert rate.measure(NOW + 3999) == 30 / 2.499
    assert rate.total(NOW + 4500) == 0


def test_a_rate_that_is_not_full_counts_as_all_but_one_of_its_samples() -> None:
    rate = Rate(11, 1000)
    assert rate.window(NOW) == 10_000
    rate.record(100, NOW)
    assert rate.measure(NOW) == 10
    assert rate.window(NOW + 500) == 10_500
    assert rate.window(NOW + 1000) == 10_000
    assert Rate(1, 1000).window(NOW) == 1


def test_samples_are_used_again() -> None:
    rate = Rate(2, 1000)
    for second in range(100):
        rate.record(1, NOW + 1000 * second)
    assert rate.total(NOW + 99_000) == 2
    assert rate.total(NOW + 99_999) == 2


def test_a_simple_rate_lasts_one_sample_at_least() -> None:
    rate = SimpleRate(10, 1000)
    rate.record(500, NOW)
    assert rate.measure(NOW + 10) == 500
    assert rate.measure(NOW + 2000) == 250


def test_an_average() -> None:
    average = Average()
    assert math.isnan(average.measure(NOW))
    average.record(10, NOW)
    average.record(20, NOW + 40_000)
    assert average.measure(NOW + 40_000) == 15
    assert average.measure(NOW + 60_000) == 20
    assert math.isnan(average.measure(NOW + 100_000))


def test_a_bucket_is_full_at_first_and_no_fuller_later() -> None:
    bucket = TokenBucket(2, 10, 1000)
    assert bucket.measure(0) == 20
    bucket.record(25, 0)
    assert (bucket.measure(0), bucket.measure(1500), bucket.measure(10**9)) == (-5, -2, 20)
    bucket.record(-5, 10**9)
    assert bucket.measure(10**9) == 20


@pytest.mark.parametrize(("rate", "first"), [(math.inf, math.inf), (-math.inf, -math.inf), (math.nan, math.nan)])
def test_a_bucket_whose_rate_was_no_number_has_none_for_good(rate: float, first: float) -> None:
    """So nothing is refused any more. Measured."""
    bucket = TokenBucket(rate, 2, 1000)
    assert bucket.measure(NOW) == pytest.approx(first, nan_ok=True)
    bucket.record(5, NOW)
    bucket.rate = 1
    bucket.record(100, NOW + 1000)
    assert math.isnan(bucket.measure(NOW + 1000))
    assert java_int(-bucket.measure(NOW + 1000)) == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2.5, 3),
        (-2.5, -2),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)),
        (math.inf, -1),
        (1e300, -1),
        (-math.inf, 0),
        (math.nan, 0),
    ],
)
def test_numbers_as_java_rounds_and_cuts_them(value: float, expected: int) -> None:  # rule B8.13
    assert java_int(value) == expected


def test_a_bound_of_zero() -> None:
    assert throttle_ms(Rate(2, 1000), 1, 0, NOW) == math.inf
    assert throttle_ms(Rate(2, 1000), 1, -0.0, NOW) == -math.inf
