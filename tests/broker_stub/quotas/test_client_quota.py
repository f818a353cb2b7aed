"""One kind of quota (rules B8.5, B8.6, B8.9), with a clock of the test.

CQM, CRQ: `unit/kafka/server/` ClientQuotaManagerTest, ClientRequestQuotaManagerTest (section 12 of
docs/broker-semantics.md).
"""

from __future__ import annotations

import math

import pytest

from kce.broker_stub.quotas import client_quota
from kce.broker_stub.quotas.client_quota import INACTIVE_MS, UNLIMITED, Levels, RateQuota
from kce.broker_stub.quotas.entities import DEFAULT, Client, Entity, entity, sanitize

kafka = pytest.mark.kafka
SAMPLES = 11
#: everyone, by the kind of quota
DEFAULT_CLIENT, DEFAULT_USER, DEFAULT_BOTH = Entity(None, DEFAULT), Entity(DEFAULT, None), Entity(DEFAULT, DEFAULT)


class Clock:
    """A quota at a time of its own."""

    def __init__(self, quota: RateQuota) -> None:
        self.quota = quota
        self.now = 1_000_000

    def record(self, user: str, client_id: str, value: float) -> int:
        return self.quota.record(user, client_id, value, self.now)

    def check(self, user: str, client_id: str, bound: float, value: float, *, throttled: bool) -> None:
        """The limit is ``bound``; whether ``value`` in each sample, all at once, throttles the client."""
        assert self.quota.limit_of(user, client_id) == bound
        most = UNLIMITED if bound == UNLIMITED else bound * (SAMPLES - 1)
        assert self.quota.max_in_window(user, client_id) == pytest.approx(most, abs=0.01)
        assert (self.record(user, client_id, value * SAMPLES) > 0) == throttled


@pytest.fixture
def clock() -> Clock:
    return Clock(RateQuota(SAMPLES, 1))


@pytest.mark.parametrize(
    ("one", "two", "default", "users"),
    [
        pytest.param(
            Entity(None, "p1"), Entity(None, "p2"), DEFAULT_CLIENT, ("ANONYMOUS",) * 3, marks=kafka("CQM-1"),
        ),
        pytest.param(
            Entity("User1", None), Entity("User2", None), DEFAULT_USER, ("User1", "User2", "RandomUser"),
            marks=[kafka("CQM-2"), kafka("CQM-4")],
        ),
        pytest.param(
            Entity("User1", "p1"), Entity("User2", "p2"), DEFAULT_BOTH, ("User1", "User2", "RandomUser"),
            marks=[kafka("CQM-3"), kafka("CQM-5")],
        ),
    ],
)  # fmt: skip
def test_limits_change_while_clients_work(
    clock: Clock, one: Entity, two: Entity, default: Entity, users: tuple[str, str, str]
) -> None:
    first, second, other = zip(users, ("p1", "p2", "random-client-id"), strict=True)
    quota = clock.quota
    quota.update(one, 2000)
    quota.update(two, 4000)
    assert [quota.limit_of(*who) for who in (other, first, second)] == [UNLIMITED, 2000, 4000]
    assert clock.record(*first, 2500 * SAMPLES) > 0
    quota.update(one, 3000)
    assert quota.limit_of(*first) == 3000
    assert clock.record(*first, 0) == 0
    quota.update(one, 500)
    assert quota.limit_of(*first) == 500
    assert clock.record(*first, 0) > 0
    quota.update(one, None)
    quota.update(default, 4000)
    assert quota.limit_of(*first) == 4000
    assert clock.record(*first, 1000 * SAMPLES) == 0


@kafka("CQM-6")
def test_what_fits_into_a_window_of_another_length() -> None:
    quota = RateQuota(4, 1)
    assert quota.max_in_window("userA", "client1") == UNLIMITED
    quota.update(DEFAULT_USER, 10)
    assert quota.max_in_window("userA", "client1") == 10 * 3


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(DEFAULT_USER, marks=kafka("CQM-7")),
        pytest.param(Entity("userA", None), marks=kafka("CQM-8")),
        pytest.param(Entity("userA", "client1"), marks=kafka("CQM-9")),
    ],
)
def test_a_quota_is_set_and_removed(clock: Clock, of: Entity) -> None:
    clock.check("userA", "client1", UNLIMITED, 1000, throttled=False)
    clock.quota.update(of, 10)
    clock.check("userA", "client1", 10, 1000, throttled=True)
    clock.quota.update(of, None)
    clock.check("userA", "client1", UNLIMITED, 1000, throttled=False)


@kafka("CQM-10")
def test_the_most_specific_quota_applies(clock: Clock) -> None:  # rule B8.9
    update, check = clock.quota.update, clock.check
    for of, limit in (
        (DEFAULT_USER, 1000), (DEFAULT_CLIENT, 2000), (DEFAULT_BOTH, 3000), (Entity("userA", None), 4000),
        (Entity("userA", "client1"), 5000), (Entity("userB", None), 6000), (Entity("userB", "client1"), 7000),
        (Entity("userB", DEFAULT), 8000), (Entity("userC", None), 10000), (Entity(None, "client1"), 9000),
    ):  # fmt: skip
        update(of, limit)
    check("userA", "client1", 5000, 4500, throttled=False)
    check("userA", "client2", 4000, 4500, throttled=True)
    check("userA", "client3", 4000, 0, throttled=True)  # shares the user's limit
    check("userA", "client1", 5000, 0, throttled=False)
    check("userB", "client1", 7000, 8000, throttled=True)
    check("userB", "client2", 8000, 7000, throttled=False)
    check("userB", "client3", 8000, 7000, throttled=False)
    check("userD", "client1", 3000, 3500, throttled=True)
    check("userD", "client2", 3000, 2500, throttled=False)
    check("userE", "client1", 3000, 2500, throttled=False)
    update(DEFAULT_BOTH, None)
    check("userD", "client1", 1000, 0, throttled=False)  # another limit, another sum
    check("userE", "client4", 1000, 1500, throttled=True)
    check("userF", "client4", 1000, 800, throttled=False)
    check("userF", "client5", 1000, 800, throttled=True)  # shared by the user's clients
    update(DEFAULT_USER, None)
    check("userF", "client4", 2000, 0, throttled=False)
    check("userF", "client5", 2000, 0, throttled=False)
    check("userF", "client5", 2000, 2500, throttled=True)
    check("userG", "client5", 2000, 0, throttled=True)  # shared by all users
    update(Entity("userA", None), 8000)
    update(Entity("userA", "client1"), 10000)
    check("userA", "client2", 8000, 0, throttled=False)
    check("userA", "client2", 8000, 4500, throttled=True)
    check("userA", "client1", 10000, 0, throttled=False)
    check("userA", "client1", 10000, 6000, throttled=True)
    update(Entity("userA", "client1"), None)
    check("userA", "client6", 8000, 0, throttled=True)
    update(Entity("userA", "client6"), 11000)
    check("userA", "client6", 11000, 8500, throttled=False)
    update(Entity("userA", DEFAULT), 12000)
    update(Entity("userA", "client6"), None)
    check("userA", "client6", 12000, 4000, throttled=True)


@kafka("CQM-11")
def test_a_spike(clock: Clock) -> None:  # rule B8.6
    quota = clock.quota
    quota.update(DEFAULT_CLIENT, 500)
    who = "ANONYMOUS", "unknown"
    for _ in range(10):
        assert clock.record(*who, 400) == 0
        clock.now += 1000
    assert quota.queue_size(clock.now) == 0
    clock.now += 500
    throttled = clock.record(*who, 2300)
    assert throttled == 2100  # 6300 in 10.5 s, of which 500 a second are allowed
    quota.throttled(*who, throttled, clock.now)
    assert quota.queue_size(clock.now) == 1
    clock.now += throttled - 1
    assert quota.queue_size(clock.now) == 1
    clock.now += 1
    assert quota.queue_size(clock.now) == 0
    for _ in range(10):
        clock.record(*who, 400)
        clock.now += 1000
    assert clock.record(*who, 0) == 0


@kafka("CQM-12")
@kafka("CQM-13")
def test_what_was_forgotten_begins_anew(clock: Clock) -> None:
    clock.quota.update(DEFAULT_CLIENT, 500)
    clock.record("ANONYMOUS", "client1", 100)
    clock.quota.clients.clear()
    assert clock.record("ANONYMOUS", "client1", 10_000) > 0
    found = clock.quota.clients[Client("", "client1")]
    assert found.measured.total(clock.now) == 10_000
    assert math.isnan(found.throttle_time.measure(clock.now))


@kafka("CQM-14")
def test_client_ids_are_kept_as_they_are(clock: Clock) -> None:
    clock.quota.update(DEFAULT_CLIENT, 500)
    clock.record("ANONYMOUS", "client@#$%", 100)
    assert list(clock.quota.clients) == [Client("", "client@#$%")]


@kafka("CRQ-1")
def test_a_spike_of_request_time() -> None:  # rule B8.6
    clock = Clock(RateQuota(SAMPLES, 1, max_throttle_ms=1000))
    clock.quota.update(Entity("ANONYMOUS", "test-client"), 1)
    who = "ANONYMOUS", "test-client"

    def record_ms(ms: float) -> int:
        return clock.record(*who, ms / 1000 * 100)

    for _ in range(10):
        assert record_ms(4) == 0
        clock.now += 1000
    assert clock.quota.queue_size(clock.now) == 0
    clock.now += 500
    throttled = record_ms(67.1)
    assert throttled == 210
    clock.quota.throttled(*who, throttled, clock.now)
    assert clock.quota.queue_size(clock.now) == 1
    clock.now += throttled
    assert clock.quota.queue_size(clock.now) == 0
    for _ in range(11):
        record_ms(4)
        clock.now += 1000
    assert record_ms(0) == 0
    assert record_ms(500) == 1000
    for _ in range(10):
        clock.now += 1000
        assert record_ms(0) == 1000
    clock.now += 1000
    assert record_ms(0) == 0


# ours


def test_nothing_is_measured_before_a_limit_is_set() -> None:  # rule B8.9
    told: list[str] = []
    clock = Clock(RateQuota(SAMPLES, 1, limited=lambda: told.append("limited")))
    assert clock.record("u", "c", 1e9) == 0
    clock.quota.record_only("u", "c", 1e9, clock.now)
    clock.quota.update(Entity("u", None), None)
    assert (clock.quota.enabled, clock.quota.clients, told) == (False, {}, [])
    clock.quota.update(Entity("u", None), 1)
    clock.quota.update(Entity(None, "c"), 1)
    assert told == ["limited"]
    clock.quota.update(Entity("u", None), None)
    assert clock.quota.levels == Levels.USER | Levels.CLIENT_ID  # remembered


def test_negative_values_take_back(clock: Clock) -> None:  # rule B8.7
    clock.quota.update(DEFAULT_CLIENT, 10)
    assert clock.record("", "c", 200) == 10_000
    clock.quota.record_only("", "c", -200, clock.now)
    assert clock.record("", "c", 100) == 0


def test_a_limit_of_zero_throttles_nobody(clock: Clock) -> None:  # rule B8.13
    clock.quota.update(DEFAULT_CLIENT, 0)
    assert clock.record("", "c", 200) == -1
    assert clock.quota.max_in_window("", "c") == 0


def test_quiet_clients_are_forgotten(clock: Clock) -> None:
    clock.quota.update(DEFAULT_CLIENT, 10)
    for client_id in "ab":
        clock.record("", client_id, 1)
    clock.now += 1
    clock.record("", "a", 1)
    clock.now += INACTIVE_MS
    clock.record("", "c", 1)
    assert list(clock.quota.clients) == [("", "a"), ("", "c")]


def test_so_many_clients_are_known(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quota, "MAX_CLIENTS", 3)
    clock.quota.update(DEFAULT_CLIENT, 10)
    for client_id in "abcadea":
        clock.record("", client_id, 1)
    assert list(clock.quota.clients) == [("", "d"), ("", "e"), ("", "a")]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("clients", "<default>", Entity(None, DEFAULT)),
        ("clients", "%3Cdefault%3E", Entity(None, "<default>")),
        ("users", "a%20b", Entity("a b", None)),
        ("users", "<default>/clients/c%2F", Entity(DEFAULT, "c/")),
    ],
)
def test_entities_of_paths(kind: str, name: str, expected: Entity) -> None:
    assert entity(kind, name) == expected


@pytest.mark.parametrize("name", ["u/clients", "u/clients/c/d", "u/others/c"])
def test_paths_of_no_entity(name: str) -> None:
    with pytest.raises(ValueError, match="neither a user nor the client of one"):
        entity("users", name)


def test_names_as_parts_of_paths() -> None:
    assert sanitize("user with spaces, *~<default>é") == "user%20with%20spaces%2C%20%2A~%3Cdefault%3E%C3%A9"


def test_what_is_over_is_not_kept() -> None:
    quota = RateQuota(11, 1)
    for now in range(0, 1000, 10):
        quota.throttled("u", "c", 15, now)
        assert len(quota._throttled_until) <= 2
    assert [quota.queue_size(now) for now in (990, 1004, 1005)] == [2, 1, 0]


def test_two_of_those_that_were_quiet_are_forgotten_at_a_time() -> None:
    quota = RateQuota(11, 1)
    quota.update(Entity(None, DEFAULT), 5)
    for i in range(5):
        quota.record("", str(i), 1, 0)
    quota.record("", "3", 1, 1)
    for now, left in ((INACTIVE_MS, 6), (INACTIVE_MS + 1, 5), (INACTIVE_MS + 1, 4), (INACTIVE_MS + 1, 5)):
        quota.record("", f"new{len(quota.clients)}{now}{left}", 1, now)
        assert len(quota.clients) == left
    assert next(client.client_id for client in quota.clients) == "3"
