"""One kind of quota: who has which limit, who shares it, and by how much it is exceeded (rules B8.5, B8.6, B8.9)."""

from __future__ import annotations

import enum
import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from kce.broker_stub.quotas.entities import DEFAULT, Client, Default, Entity
from kce.broker_stub.sampled import Average, Rate, java_int, throttle_ms

#: a limit that nobody reaches
UNLIMITED: Final = float(2**63 - 1)
#: what is known of a client that was quiet for so long is forgotten
INACTIVE_MS: Final = 3600 * 1000
#: of so many clients at once what they used is known; peers choose their ids
MAX_CLIENTS: Final = 10_000


class Levels(enum.IntFlag):
    """What quotas are set for, or were since the start."""

    NONE = 0
    CLIENT_ID = 1
    USER = 2
    USER_CLIENT_ID = 4


M = TypeVar("M")


class Sensors(Generic[M]):
    """What one client used, and how long it was throttled."""

    __slots__ = ("limit", "measured", "throttle_time", "used_at")

    #: in ms; set by whoever uses them
    used_at: int

    def __init__(self, limit: float, measured: M) -> None:
        self.limit = limit
        self.measured = measured
        self.throttle_time = Average()


class ClientQuota(ABC, Generic[M]):
    """The quota of one kind. ``limited``: called when the first limit is set.

    A kind without limits since the start is not ``enabled``: nothing is measured then. Times are in ms.
    """

    def __init__(self, samples: int, window_seconds: int, limited: Callable[[], None] = lambda: None) -> None:
        self.samples = samples
        self.window_ms = window_seconds * 1000
        self.levels = Levels.NONE
        self.clients: dict[Client, Sensors[M]] = {}
        self._limited = limited
        self._limits: dict[Entity, float] = {}
        #: when throttled connections are read again
        self._throttled_until: list[int] = []

    @property
    def enabled(self) -> bool:
        return bool(self.levels)

    def update(self, entity: Entity, limit: float | None) -> None:
        """None removes the limit. What clients have used counts for the new one."""
        if limit is None:
            if self._limits.pop(entity, None) is None:
                return
        else:
            was_enabled = self.enabled
            self._limits[entity] = limit
            if entity.user is None:
                self.levels |= Levels.CLIENT_ID
            else:
                self.levels |= Levels.USER if entity.client_id is None else Levels.USER_CLIENT_ID
            if not was_enabled:
                self._limited()
        for client, sensors in self.clients.items():
            sensors.limit = self.limit(client)
            self._limit_changed(sensors)

    def shared_by(self, user: str, client_id: str) -> Client:
        """Who shares the limit of a connection of that user and client id."""
        if self.levels <= Levels.CLIENT_ID:
            return Client("", client_id)
        if self.levels == Levels.USER:
            return Client(user, "")
        if self.levels == Levels.USER_CLIENT_ID:
            return Client(user, client_id)
        limits = self._limits
        if Entity(user, client_id) in limits or Entity(user, DEFAULT) in limits:
            return Client(user, client_id)
        if Entity(user, None) in limits:
            return Client(user, "")
        if Entity(DEFAULT, client_id) in limits or Entity(DEFAULT, DEFAULT) in limits:
            return Client(user, client_id)
        return Client(user, "") if Entity(DEFAULT, None) in limits else Client("", client_id)

    def limit(self, client: Client) -> float:
        """`UNLIMITED` without one."""
        user, client_id = client
        candidates: tuple[tuple[str | Default | None, str | Default | None], ...] = ()
        if user and client_id:
            candidates = (user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)
        elif user:
            candidates = (user, None), (DEFAULT, None)
        elif client_id:
            candidates = (None, client_id), (None, DEFAULT)
        for candidate in candidates:
            limit = self._limits.get(Entity(*candidate))
            if limit is not None:
                return limit
        return UNLIMITED

    def limit_of(self, user: str, client_id: str) -> float:
        return self.limit(self.shared_by(user, client_id))

    def sensors(self, user: str, client_id: str, now: int) -> Sensors[M]:
        """Those of the client; made when it is seen first."""
        client = self.shared_by(user, client_id)
        found = self.clients.pop(client, None)
        if found is None:
            limit = self.limit(client)
            found = Sensors(limit, self._measured(limit))
            self._make_room(now)
        found.used_at = now
        self.clients[client] = found  # the last in the order of use
        return found

    def _make_room(self, now: int) -> None:
        for client, sensors in list(self._longest_unused(2)):
            if now - sensors.used_at > INACTIVE_MS or len(self.clients) >= MAX_CLIENTS:
                del self.clients[client]

    def _longest_unused(self, count: int) -> Iterator[tuple[Client, Sensors[M]]]:
        for _, item in zip(range(count), self.clients.items(), strict=False):
            yield item

    @abstractmethod
    def _measured(self, limit: float) -> M:
        """What a client of that limit has used: nothing yet."""

    def _limit_changed(self, sensors: Sensors[M]) -> None:
        """``sensors.limit`` may be another now."""

    def throttled(self, user: str, client_id: str, ms: int, now: int) -> None:
        """A connection of the client is not read for so long."""
        self.sensors(user, client_id, now).throttle_time.record(ms, now)
        self.queue_size(now)
        heapq.heappush(self._throttled_until, now + ms)

    def queue_size(self, now: int) -> int:
        """How many connections are throttled."""
        while self._throttled_until and self._throttled_until[0] <= now:
            heapq.heappop(self._throttled_until)
        return len(self._throttled_until)


class RateQuota(ClientQuota[Rate]):
    """Of so much a second. ``max_throttle_ms`` bounds how long one request is throttled."""

    def __init__(
        self,
        samples: int,
        window_seconds: int,
        limited: Callable[[], None] = lambda: None,
        max_throttle_ms: int | None = None,
    ) -> None:
        super().__init__(samples, window_seconds, limited)
        self._max_throttle_ms = max_throttle_ms

    def _measured(self, limit: float) -> Rate:
        return Rate(self.samples, self.window_ms)

    def record(self, user: str, client_id: str, value: float, now: int) -> int:
        """For how many ms the client is to be throttled; 0 below its limit, or without limits."""
        if not self.enabled:
            return 0
        sensors = self.sensors(user, client_id, now)
        rate = sensors.measured
        rate.record(value, now)
        if sensors.limit == UNLIMITED:
            return 0
        measured = rate.measure(now)
        if measured <= sensors.limit:
            return 0
        wait = throttle_ms(rate, measured, sensors.limit, now)
        return java_int(wait if self._max_throttle_ms is None else min(wait, self._max_throttle_ms))

    def record_only(self, user: str, client_id: str, value: float, now: int) -> None:
        """It counts for the next request. A negative value takes back what has been recorded."""
        if self.enabled:
            self.sensors(user, client_id, now).measured.record(value, now)

    def max_in_window(self, user: str, client_id: str) -> float:
        """More than this at once is always throttled; `UNLIMITED` without a limit."""
        limit = self.limit_of(user, client_id) if self.enabled else UNLIMITED
        return UNLIMITED if limit == UNLIMITED else limit * (self.samples - 1) * self.window_ms / 1000
