"""What an analysis found, as plain values: no Spark is needed to look at them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field

from captures.quality import Quality


@dataclass(frozen=True, slots=True)
class RequestCount:
    """A row of ``requests``."""

    api_key: int
    api: str
    version: int
    requests: int
    responses: int
    errors: int
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True)
class Controller:
    """A row of ``controllers``: one controller in one epoch."""

    controller_epoch: int
    controller_id: int
    is_kraft_controller: bool
    first_time: datetime.datetime
    last_time: datetime.datetime
    requests: int
    brokers: tuple[str, ...]
    decisions: int
    fenced: int


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """A row of ``leadership``. ``from_leader`` is None for the first leader seen; -1 is no leader, -2 a deletion."""

    time: datetime.datetime
    file: str
    packet: int
    topic: str
    topic_id: str | None
    partition: int
    from_leader: int | None
    to_leader: int
    from_epoch: int | None
    to_epoch: int | None
    isr: tuple[int, ...]
    decision_epoch: int


@dataclass(frozen=True, slots=True)
class Latency:
    """A row of ``latency``; milliseconds."""

    api_key: int
    api: str
    listener: str
    requests: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Fenced:
    """A row of ``fenced``: requests refused as a whole for a stale epoch."""

    error: str
    controller_id: int | None
    controller_epoch: int | None
    sender_broker_id: int | None
    broker: str
    api: str
    requests: int
    first_time: datetime.datetime
    last_time: datetime.datetime
    packets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StalePartitions:
    """A row of ``stale_partitions``."""

    controller_id: int
    controller_epoch: int
    broker: str
    requests: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Zombie:
    """A row of ``zombies``."""

    controller_id: int
    controller_epoch: int
    later_epoch: int
    requests: int
    first_time: datetime.datetime
    last_time: datetime.datetime
    brokers: tuple[str, ...]
    packets: tuple[int, ...]

    def __str__(self) -> str:
        requests = "a control request" if self.requests == 1 else f"{self.requests} control requests"
        return (
            f"Controller {self.controller_id} (epoch {self.controller_epoch}) acted as a zombie: after epoch "
            f"{self.later_epoch} had begun it sent {requests} and was fenced by {_brokers(self.brokers)} with "
            f"STALE_CONTROLLER_EPOCH (packets {_some(self.packets)})."
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of ``endpoints``."""

    broker_id: int
    listener: str
    host: str
    port: int
    rack: str | None
    first_time: datetime.datetime
    last_time: datetime.datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """Control requests of one controller within a short while: for the timeline."""

    controller_epoch: int
    controller_id: int
    api: str
    fenced: bool
    time: datetime.datetime
    requests: int


@dataclass(frozen=True, slots=True)
class LatencyCount:
    """How many requests took about ``ms``: for the distribution."""

    api: str
    listener: str
    ms: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that `kce analyze` tells. ``str()`` of a Zombie is a sentence; ``sentences()`` tells the rest."""

    files: tuple[str, ...]
    quality: Quality
    requests: tuple[RequestCount, ...] = ()
    controllers: tuple[Controller, ...] = ()
    leadership: tuple[LeadershipChange, ...] = ()
    latency: tuple[Latency, ...] = ()
    fenced: tuple[Fenced, ...] = ()
    stale_partitions: tuple[StalePartitions, ...] = ()
    zombies: tuple[Zombie, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    ticks: tuple[Tick, ...] = field(default=(), repr=False)
    latency_counts: tuple[LatencyCount, ...] = field(default=(), repr=False)

    def sentences(self) -> list[str]:
        """The findings in words, most serious first."""
        said = [str(zombie) for zombie in self.zombies]
        if self.controllers and not self.zombies:
            said.append("No zombie controller: none was fenced after a later epoch had begun.")
        if self.quality.kraft and not self.controllers:
            said.append("There is no ZooKeeper-mode controller in this traffic: it is that of KRaft nodes.")
        said += self._fenced_brokers()
        said += self._controller_changes()
        said += self._leaderships()
        if self.stale_partitions:
            requests = sum(row.requests for row in self.stale_partitions)
            said.append(
                f"{requests} LeaderAndIsr answer{'s carry' if requests > 1 else ' carries'} STALE_CONTROLLER_EPOCH for "
                "single partitions: the brokers had those leader epochs already. That is no fencing."
            )
        return said

    def _fenced_brokers(self) -> list[str]:
        said = []
        for row in self.fenced:
            if row.error == "STALE_BROKER_EPOCH":
                sender = (
                    f"controller {row.controller_id} (epoch {row.controller_epoch})"
                    if row.controller_id is not None
                    else f"broker {row.sender_broker_id}"
                )
                said.append(
                    f"Broker {row.broker} refused {row.requests} {row.api} of {sender} with STALE_BROKER_EPOCH "
                    f"(packets {_some(row.packets)}): a broker came back in between."
                )
        return said

    def _controller_changes(self) -> list[str]:
        if not self.controllers:
            return []
        if len(self.controllers) == 1:
            only = self.controllers[0]
            return [
                f"Controller {only.controller_id} (epoch {only.controller_epoch}) was the only one: "
                f"{only.requests} control requests to {_brokers(only.brokers)}."
            ]
        turns = ", ".join(
            f"{c.controller_id} in epoch {c.controller_epoch} from {c.first_time:%H:%M:%S}" for c in self.controllers
        )
        return [f"{len(self.controllers)} controllers took turns: {turns}."]

    def _leaderships(self) -> list[str]:
        if not self.leadership:
            return []
        first = [c for c in self.leadership if c.from_leader is None]
        deleted = [c for c in self.leadership if c.to_leader == -2]
        moved = len(self.leadership) - len(first) - len(deleted)
        said = [
            f"{len(first)} partition{'s' * (len(first) != 1)} got a leader; "
            f"leaders changed {moved} time{'s' * (moved != 1)} after that"
            + (f"; {len(deleted)} partition{'s' * (len(deleted) != 1)} were deleted." if deleted else ".")
        ]
        last = {(c.topic, c.topic_id, c.partition): c for c in self.leadership}
        if headless := [f"{c.topic}-{c.partition}" for c in last.values() if c.to_leader == -1]:
            said.append(f"Without a leader at the end: {_some(headless)}.")
        return said


def _brokers(brokers: Iterable[str]) -> str:
    brokers = list(brokers)
    return f"broker{'s' * (len(brokers) != 1)} {_and(brokers)}"


def _and(items: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1] if items else "")))


def _some(items: Iterable[object], most: int = 10) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
