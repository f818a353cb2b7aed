"""CQ: who may connect and when (section 12a of docs/broker-semantics.md; rules B1.45 to B1.52)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce.broker_stub.connection_limits import UNLIMITED, ConnectionLimits
from kce.broker_stub.reactor.quotas import ConnectionQuotas, ListenerMeters
from kce.broker_stub.sampled import now_ms
from kce.zookeeper.znodes import DEFAULT_ENTITY

kafka = pytest.mark.kafka

EXTERNAL, ADMIN, REPLICATION = "EXTERNAL", "ADMIN", "REPLICATION"
ADDRESSES = {EXTERNAL: "192.168.1.1", ADMIN: "192.168.1.2", REPLICATION: "192.168.1.3"}
LISTENERS = tuple(ADDRESSES)
OTHER, ANOTHER = "192.168.10.0", "192.168.2.0"
#: of rates
WINDOW = {"samples": 2, "sample_seconds": 1}


class Throttled(Exception):
    """The rate of the address is exceeded."""


class Acceptors:
    """Accept as `Acceptor` does. By listener: for how many ns it was ``blocked``, for how many ms its connections were
    ``throttled`` on average, and those of addresses ``held``."""

    def __init__(self, **limits: object) -> None:
        self.quotas = ConnectionQuotas(ConnectionLimits(**WINDOW, **limits), REPLICATION)  # type: ignore[arg-type]
        for listener, address in ADDRESSES.items():
            assert not self.quotas.exceeded
            assert self.quotas.open_from(address) == 0
            assert listener not in self.quotas.listeners

    def _each(self, read: Callable[[ListenerMeters], float]) -> dict[str, float]:
        found = self.quotas.listeners
        values = {name: read(found[name]) if name in found else 0.0 for name in LISTENERS}
        return {name: 0.0 if math.isnan(value) else value for name, value in values.items()}

    @property
    def blocked(self) -> dict[str, float]:
        return self._each(lambda meters: meters.blocked_ns)

    @property
    def throttled(self) -> dict[str, float]:
        return self._each(lambda meters: meters.throttle_time.measure(now_ms()))

    @property
    def held(self) -> dict[str, float]:
        return self._each(lambda meters: meters.ip_throttle_time.measure(now_ms()))

    @property
    def rates(self) -> dict[str, float]:
        return self._each(lambda meters: meters.rate.measure(trio.current_time()))

    def count(self, listener: str) -> int:
        return self.quotas.open_from(ADDRESSES[listener])

    def release(self, listener: str, times: int = 1) -> None:
        for _ in range(times):
            self.quotas.release(listener, ADDRESSES[listener])

    async def accept(self, listener: str, count: int, interval_ms: int = 0, *, address: str = "",
                     throttled: bool = False) -> bool:  # fmt: skip
        """Accept one every ``interval_ms``, or as fast as may be; whether the address was throttled.

        Raises Throttled unless ``throttled``.
        """
        address, was_throttled = address or ADDRESSES[listener], False
        due = trio.current_time() + interval_ms / 1000
        for _ in range(count):
            await self.quotas.wait_for_slot(listener)
            if self.quotas.ip_delay(listener, address):
                was_throttled = True
                if not throttled:
                    raise Throttled
            else:
                assert self.quotas.acquire(listener, address)
            await trio.sleep(max(0, due - trio.current_time()))
            due += interval_ms / 1000
        return was_throttled

    async def all_accept(self, count: int, interval_ms: int = 0) -> None:
        async with trio.open_nursery() as nursery:
            for listener in LISTENERS:
                nursery.start_soon(self.accept, listener, count, interval_ms)

    async def rate_of(self, listener: str, count: int, interval_ms: int, *, throttled: bool = False) -> float:
        """Connections a second that were accepted."""
        begin, before = trio.current_time(), self.count(listener)
        await self.accept(listener, count, interval_ms, throttled=throttled)
        return (self.count(listener) - before) / (trio.current_time() - begin)


@kafka("CQ-2")
def test_an_address_without_connections_cannot_lose_one() -> None:
    with pytest.raises(ValueError, match=ANOTHER):
        Acceptors().quotas.release(EXTERNAL, ANOTHER)


@kafka("CQ-3")
async def test_there_are_no_limits_by_default(autojump_clock: MockClock) -> None:
    a = Acceptors()
    await a.all_accept(10_000)
    for listener in LISTENERS:
        assert a.count(listener) == 10_000
        a.release(listener)
        assert a.count(listener) == 9999
    assert a.quotas.rate.measure(trio.current_time()) > 0
    assert all(a.rates.values())
    assert not any(a.blocked.values())


@kafka("CQ-5")
async def test_the_limit_of_the_broker(nursery: trio.Nursery, mock_clock: MockClock) -> None:  # rule B1.48
    """The listener between brokers goes beyond it, and others wait until there are fewer than that."""
    a = Acceptors(total=800)
    await a.accept(EXTERNAL, 800)
    assert (a.count(EXTERNAL), a.quotas.exceeded, a.blocked[EXTERNAL]) == (800, False, 0)

    nursery.start_soon(a.accept, EXTERNAL, 1)
    await wait_all_tasks_blocked()
    assert a.count(EXTERNAL) == 800
    mock_clock.jump(0.1)
    a.release(EXTERNAL)
    await wait_all_tasks_blocked()
    assert (a.count(EXTERNAL), a.quotas.exceeded) == (800, False)
    assert a.blocked[EXTERNAL] == pytest.approx(1e8)

    await a.accept(REPLICATION, 1)
    assert a.quotas.exceeded
    nursery.start_soon(a.accept, ADMIN, 1)
    await wait_all_tasks_blocked()
    await a.accept(REPLICATION, 1)
    assert a.count(ADMIN) == 0
    a.release(EXTERNAL, 2)
    await wait_all_tasks_blocked()
    assert a.count(ADMIN) == 0
    a.release(EXTERNAL)
    await wait_all_tasks_blocked()
    assert a.count(ADMIN) == 1


@kafka("CQ-6")
async def test_the_limit_of_each_listener(nursery: trio.Nursery) -> None:  # rule B1.47
    a = Acceptors(total=800, of_listener=dict.fromkeys(LISTENERS, 200))
    await a.all_accept(200)
    assert [a.count(listener) for listener in LISTENERS] == [200] * 3
    assert not a.quotas.exceeded
    for listener in LISTENERS:
        nursery.start_soon(a.accept, listener, 1)
    await wait_all_tasks_blocked()
    assert [a.count(listener) for listener in LISTENERS] == [200] * 3
    for listener in LISTENERS:
        a.release(listener)
    assert [a.count(listener) for listener in LISTENERS] == [199] * 3
    await wait_all_tasks_blocked()
    assert [a.count(listener) for listener in LISTENERS] == [200] * 3


@pytest.mark.parametrize(
    "of_listeners", [pytest.param(UNLIMITED, marks=kafka("CQ-7")), pytest.param(50, marks=kafka("CQ-9"))]
)
async def test_a_rate_below_the_limits(of_listeners: int, autojump_clock: MockClock) -> None:
    a = Acceptors(rate=125, rate_of_listener=dict.fromkeys(LISTENERS, of_listeners))
    await a.all_accept(200, 25)
    assert not any(a.blocked.values())
    assert [a.count(listener) for listener in LISTENERS] == [200] * 3


@kafka("CQ-8")
async def test_a_rate_above_the_limit_of_the_broker(autojump_clock: MockClock) -> None:  # rule B1.50
    a = Acceptors(rate=90)
    await a.all_accept(400, 10)
    assert a.blocked[EXTERNAL] > 0
    assert a.blocked[ADMIN] > 0
    assert not a.blocked[REPLICATION]
    assert [a.count(listener) for listener in LISTENERS] == [400] * 3


@kafka("CQ-10")
async def test_a_rate_above_the_limits_of_listeners(autojump_clock: MockClock) -> None:
    a = Acceptors(rate=125, rate_of_listener=dict.fromkeys(LISTENERS, 30))
    rates = {}

    async def measure(listener: str) -> None:
        rates[listener] = await a.rate_of(listener, 600, 25)

    async with trio.open_nursery() as nursery:
        for listener in LISTENERS:
            nursery.start_soon(measure, listener)
    assert rates == pytest.approx(dict.fromkeys(LISTENERS, 30), abs=7)
    assert all(a.blocked.values())
    assert all(a.throttled.values())
    assert [a.count(listener) for listener in LISTENERS] == [600] * 3


@kafka("CQ-11")
async def test_an_address_below_its_rate(autojump_clock: MockClock) -> None:
    a = Acceptors()
    a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], 30)
    assert await a.rate_of(EXTERNAL, 200, 40) == pytest.approx(25)
    assert a.count(EXTERNAL) == 200
    assert await a.rate_of(ADMIN, 200, 20) == pytest.approx(50)
    assert a.count(ADMIN) == 200
    assert not any(a.blocked.values())
    assert not any(a.held.values())


@kafka("CQ-12")
async def test_an_address_above_its_rate(autojump_clock: MockClock) -> None:
    a = Acceptors()
    a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], 20)
    assert await a.rate_of(EXTERNAL, 80, 25, throttled=True) == pytest.approx(20, abs=1)
    assert a.held[EXTERNAL] > 0
    a.quotas.ip_config_changed(DEFAULT_ENTITY, 20)
    assert not a.held[ADMIN]
    assert await a.rate_of(ADMIN, 80, 25, throttled=True) == pytest.approx(20, abs=1)
    assert a.held[ADMIN] > 0
    assert not any(a.blocked.values())
    assert not a.held[REPLICATION]


@kafka("CQ-13")
async def test_the_rates_of_addresses_and_of_their_listener(autojump_clock: MockClock) -> None:
    """One address may reach its rate; then the listener reaches its own, and blocks."""
    a = Acceptors(rate_of_listener=dict.fromkeys(LISTENERS, 35))
    a.quotas.ip_config_changed(DEFAULT_ENTITY, 25)
    throttled = []

    async def accept(address: str) -> None:
        throttled.append(await a.accept(EXTERNAL, 35, address=address, throttled=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, OTHER)
        nursery.start_soon(accept, ANOTHER)
    assert a.blocked[EXTERNAL] > 0
    assert sum(throttled) < 2


@kafka("CQ-14")
async def test_what_is_rejected_does_not_count(autojump_clock: MockClock) -> None:
    a = Acceptors(rate=100, rate_of_listener=dict.fromkeys(LISTENERS, 100))
    for listener in (EXTERNAL, REPLICATION):
        a.quotas.ip_config_changed(ADDRESSES[listener], 0)
        with pytest.raises(Throttled):
            await a.accept(listener, 1)
        for rate in (a.quotas.addresses[ADDRESSES[listener]], a.quotas.listeners[listener].rate, a.quotas.rate):
            assert rate.measure(trio.current_time()) == 0


@kafka("CQ-16")
async def test_another_rate_of_a_listener(autojump_clock: MockClock) -> None:
    a = Acceptors(rate_of_listener={EXTERNAL: 20})
    a.quotas.limits = replace(a.quotas.limits, rate_of_listener={})
    await a.accept(EXTERNAL, 1000)
    assert not a.blocked[EXTERNAL]
    a.quotas.limits = replace(a.quotas.limits, rate_of_listener={EXTERNAL: 10})
    assert await a.rate_of(EXTERNAL, 200, 5) == pytest.approx(10, abs=3)
    assert a.blocked[EXTERNAL] > 0


@kafka("CQ-17")
async def test_another_rate_of_the_broker(autojump_clock: MockClock) -> None:
    a = Acceptors()
    a.quotas.limits = replace(a.quotas.limits, rate=50)
    assert await a.rate_of(EXTERNAL, 400, 5) == pytest.approx(50, abs=20)
    assert a.blocked[EXTERNAL] > 0


@kafka("CQ-18")
async def test_the_rate_of_an_address_is_its_own_or_the_default(autojump_clock: MockClock) -> None:
    a = Acceptors()

    def rates() -> tuple[float, float]:
        return a.quotas.ip_rate(ADDRESSES[EXTERNAL]), a.quotas.ip_rate(ADDRESSES[ADMIN])

    a.quotas.ip_config_changed(DEFAULT_ENTITY, 50)
    await a.accept(EXTERNAL, 1)
    await a.accept(ADMIN, 1)
    assert rates() == (50, 50)
    a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], 30)
    assert rates() == (30, 50)
    a.quotas.ip_config_changed(DEFAULT_ENTITY, 20)
    assert rates() == (30, 20)
    a.quotas.ip_config_changed(DEFAULT_ENTITY, None)
    assert rates() == (30, UNLIMITED)
    a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], None)
    assert rates() == (UNLIMITED, UNLIMITED)


@kafka("CQ-19")
async def test_another_rate_of_an_address_counts_at_once(autojump_clock: MockClock) -> None:
    a = Acceptors()
    for limit in (20, 30):
        a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], limit)
        with pytest.raises(Throttled):
            await a.accept(EXTERNAL, 40)
        assert a.count(EXTERNAL) == limit
    a.quotas.ip_config_changed(ADDRESSES[EXTERNAL], None)
    await a.accept(EXTERNAL, 40)
    assert a.count(EXTERNAL) == 70
    await a.accept(ADMIN, 40)
    assert a.count(ADMIN) == 40
    a.quotas.ip_config_changed(DEFAULT_ENTITY, 20)
    with pytest.raises(Throttled):
        await a.accept(ADMIN, 40)
    assert a.count(ADMIN) == 60
    assert not any(a.blocked.values())


@kafka("CQ-20")
async def test_a_limit_and_a_rate_together(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    a = Acceptors(total=350, rate=25)
    assert await a.rate_of(EXTERNAL, 350, 10) == pytest.approx(25, abs=8)
    assert a.blocked[EXTERNAL] > 0
    assert a.count(EXTERNAL) == 350
    nursery.start_soon(a.accept, EXTERNAL, 1)
    await trio.sleep(10)
    assert a.count(EXTERNAL) == 350
    a.release(EXTERNAL)
    assert a.count(EXTERNAL) == 349
    await trio.sleep(1)
    assert a.count(EXTERNAL) == 350
