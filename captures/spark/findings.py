"""What an analysis found, as plain values: no Spark is needed to look at them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from captures.analysis_rows import ANALYSES
from captures.quality import Quality
from captures.rows import Table


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
    version: int
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
    files: tuple[str, ...] = ()


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
    files: tuple[str, ...] = ()


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
    version: int
    listener: str
    ms: float
    requests: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that something is concluded from. ``bodies`` are what was decoded of it and of its response."""

    file: str
    packet: int
    time: datetime.datetime
    api: str
    version: int
    client_id: str | None
    broker: str
    listener: str
    error: str | None
    latency_ms: float | None
    response_packet: int | None
    bodies: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A conclusion in words. ``severity`` is alarm, warning or note; ``evidence`` are (file, packet).

    ``analysis`` is the table that it is drawn from.
    """

    analysis: str
    severity: str
    text: str
    evidence: tuple[tuple[str, int], ...] = ()


def row_class(table: Table) -> type[Any]:
    """A class for the rows of ``table``, with its columns as attributes."""
    return make_dataclass(table.name, [column.name for column in table.columns], frozen=True, slots=True)


#: The rows of these are as ``captures.analysis_rows`` says; lists are tuples.
_OTHERS = (
    "overlaps", "churn", "unclean_elections", "isr_changes", "isr_storms", "bounces", "control_behind_data",
    "metadata_cost", "propagation", "disagreements", "resends", "unanswered", "rebalances", "regressions", "transport",
)  # fmt: skip

#: name of a table -> the class of its rows
ROWS: dict[str, type[Any]] = {
    "requests": RequestCount,
    "controllers": Controller,
    "leadership": LeadershipChange,
    "latency": Latency,
    "fenced": Fenced,
    "stale_partitions": StalePartitions,
    "zombies": Zombie,
    **{table.name: row_class(table) for table in ANALYSES if table.name in _OTHERS},
    "endpoints": Endpoint,
    "ticks": Tick,
    "latency_counts": LatencyCount,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that `kce analyze` tells: the tables, and with ``findings()`` what they mean."""

    files: tuple[str, ...]
    quality: Quality
    requests: tuple[RequestCount, ...] = ()
    controllers: tuple[Controller, ...] = ()
    leadership: tuple[LeadershipChange, ...] = ()
    latency: tuple[Latency, ...] = ()
    fenced: tuple[Fenced, ...] = ()
    stale_partitions: tuple[StalePartitions, ...] = ()
    zombies: tuple[Zombie, ...] = ()
    overlaps: tuple[Any, ...] = ()
    churn: tuple[Any, ...] = ()
    unclean_elections: tuple[Any, ...] = ()
    isr_changes: tuple[Any, ...] = ()
    isr_storms: tuple[Any, ...] = ()
    bounces: tuple[Any, ...] = ()
    control_behind_data: tuple[Any, ...] = ()
    metadata_cost: tuple[Any, ...] = ()
    propagation: tuple[Any, ...] = ()
    disagreements: tuple[Any, ...] = ()
    resends: tuple[Any, ...] = ()
    unanswered: tuple[Any, ...] = ()
    rebalances: tuple[Any, ...] = ()
    regressions: tuple[Any, ...] = ()
    transport: tuple[Any, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    ticks: tuple[Tick, ...] = field(default=(), repr=False)
    latency_counts: tuple[LatencyCount, ...] = field(default=(), repr=False)
    exchanges: tuple[Exchange, ...] = field(default=(), repr=False)
    ran: frozenset[str] = frozenset(ROWS)  # the tables that were asked for

    def findings(self) -> list[Finding]:
        """The findings in words, most serious first."""
        from captures.spark.sentences import sentences

        return sentences(self)

    def sentences(self) -> list[str]:
        """The same, only the words."""
        return [finding.text for finding in self.findings()]
