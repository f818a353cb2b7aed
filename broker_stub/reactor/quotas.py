"""Counts connections, and decides who may connect and when (rules B1.45-B1.52)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import trio

from kce.broker_stub import sampled
from kce.broker_stub.connection_limits import UNLIMITED, ConnectionLimits
from kce.zookeeper.znodes import DEFAULT_ENTITY


class Rate:
    """Connections a second over a window of samples. Times are in seconds."""

    def __init__(self, samples: int, sample_seconds: int) -> None:
        self._measured = sampled.Rate(samples, sample_seconds * 1000)

    def record(self, now: float, count: int = 1) -> None:
        self._measured.record(count, int(now * 1000))

    def measure(self, now: float) -> float:
        return self._measured.measure(int(now * 1000))

    def delay(self, now: float, bound: float) -> float:
        """Seconds without connections until the rate is down to ``bound``, at most a sample's."""
        if bound >= UNLIMITED or (rate := self.measure(now)) <= bound:
            return 0.0
        wait = sampled.throttle_ms(self._measured, rate, bound, int(now * 1000))
        return round(min(wait, self._measured.window_ms)) / 1000


class ListenerMeters:
    """Of the connections of one listener. Times of throttling are in ms."""

    def __init__(self, limits: ConnectionLimits) -> None:
        window = limits.samples, limits.sample_seconds
        self.rate = Rate(*window)
        #: for how long its acceptor waited before it accepted more
        self.blocked_ns = 0
        #: because of the rate of the listener or the broker, and of an address
        self.throttle_time = sampled.Average(limits.samples, limits.sample_seconds * 1000)
        self.ip_throttle_time = sampled.Average(limits.samples, limits.sample_seconds * 1000)


class ConnectionQuotas:
    """Counts the connections of a server by address and listener. ``limits`` may change while it runs.

    ``protected`` is the inter-broker listener, if there are others: the broker's limits do not apply to it.
    """

    def __init__(self, limits: ConnectionLimits, protected: str | None = None) -> None:
        self._limits = limits
        self.protected = protected
        self._of_address: Counter[str] = Counter()
        self._of_listener: Counter[str] = Counter()
        self._changed = trio.Event()
        self.rate = Rate(limits.samples, limits.sample_seconds)
        #: by listener that has had a connection
        self.listeners: dict[str, ListenerMeters] = {}
        #: by address, while it has a limit
        self.addresses: dict[str, Rate] = {}
        self._ip_rates: dict[str, float] = {}
        #: called when there are more connections than `max.connections`
        self.on_excess: Callable[[], None] = lambda: None

    @property
    def limits(self) -> ConnectionLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._wake()

    @property
    def total(self) -> int:
        return self._of_listener.total()

    @property
    def exceeded(self) -> bool:
        return self.total > self._limits.total

    def open_from(self, address: str) -> int:
        return self._of_address[address]

    def is_protected(self, listener: str) -> bool:
        return listener == self.protected

    def ip_config_changed(self, address: str, rate: float | None) -> None:
        """`connection_creation_rate` in `/config/ips/<address>`; None if there is none."""
        if rate is None:
            self._ip_rates.pop(address, None)
        else:
            self._ip_rates[address] = rate

    def ip_rate(self, address: str) -> float:
        """Connections per second from one address (rule B1.50)."""
        return self._ip_rates.get(address, self._ip_rates.get(DEFAULT_ENTITY, UNLIMITED))

    async def wait_for_slot(self, listener: str) -> None:
        """Wait until one more connection may be served (rules B1.47, B1.48, B1.50)."""
        began, meters = trio.current_time(), self._meters(listener)
        meters.rate.record(began)
        delay = meters.rate.delay(began, self._limits.rate_of_listener.get(listener, UNLIMITED))
        if not self.is_protected(listener):
            self.rate.record(began)
            delay = max(delay, self.rate.delay(began, self._limits.rate))
        if delay:
            meters.throttle_time.record(delay * 1000, int(began * 1000))
        elif self._has_slot(listener):
            return
        try:
            await trio.sleep(delay)
            while not self._has_slot(listener):
                await self._changed.wait()
        finally:
            meters.blocked_ns += int((trio.current_time() - began) * 1e9)

    def _meters(self, listener: str) -> ListenerMeters:
        found = self.listeners.get(listener)
        if found is None:
            found = self.listeners[listener] = ListenerMeters(self._limits)
        return found

    def _has_slot(self, listener: str) -> bool:
        if self._of_listener[listener] >= self._limits.of_listener.get(listener, UNLIMITED):
            return False
        return self.is_protected(listener) or self.total < self._limits.total

    def ip_delay(self, listener: str, address: str) -> float:
        """Seconds after which a connection from ``address`` is to be closed unserved; 0 if it may be served (B1.50)."""
        bound = self.ip_rate(address)
        if bound >= UNLIMITED:
            self.addresses.pop(address, None)
            return 0.0
        rate = self.addresses.get(address)
        if rate is None:
            rate = self.addresses[address] = Rate(self._limits.samples, self._limits.sample_seconds)
        now = trio.current_time()
        rate.record(now)
        delay = rate.delay(now, bound)
        if delay:  # it does not count
            meters = self._meters(listener)
            meters.ip_throttle_time.record(delay * 1000, int(now * 1000))
            for counted in (rate, meters.rate):
                counted.record(now, -1)
            if not self.is_protected(listener):
                self.rate.record(now, -1)
        return delay

    def acquire(self, listener: str, address: str) -> bool:
        """Count a connection; False if it exceeds the limit of its address, and then not counted (rule B1.46)."""
        if self._of_address[address] >= self._limits.per_ip_overrides.get(address, self._limits.per_ip):
            return False
        self._of_address[address] += 1
        self._of_listener[listener] += 1
        if self.exceeded:
            self.on_excess()
        return True

    def release(self, listener: str, address: str) -> None:
        """Raises ValueError for an address without connections."""
        if address not in self._of_address:
            raise ValueError(f"there is no connection from {address}")
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]
        self._of_listener[listener] -= 1
        self._wake()

    def _wake(self) -> None:
        if self._changed.statistics().tasks_waiting:
            self._changed.set()
            self._changed = trio.Event()
