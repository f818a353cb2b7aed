"""The counts of Kafka's BrokerTopicMetrics: records, bytes and requests, by topic and of all topics."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

#: a broker that leads no partition of a topic has no such counts of it
OF_LEADERS: Final = (
    "bytes_in", "bytes_rejected", "failed_produces", "messages_in", "produce_conversions", "produces",
)  # fmt: skip


class TopicStats:
    """Counts of one topic; bytes are those of batches as they came, or as they are stored."""

    __slots__ = (
        "bytes_in", "bytes_out", "bytes_rejected", "failed_fetches", "failed_produces", "fetch_conversions",
        "messages_in", "produce_conversions", "produces",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    #: appended where this broker leads, by clients and coordinators
    messages_in: int
    bytes_in: int
    #: of batches that are too large
    bytes_rejected: int
    #: to consumers
    bytes_out: int
    #: of partitions, in requests; those that failed for another reason than an ordinary one
    produces: int
    failed_produces: int
    failed_fetches: int
    #: records that were converted when they were written, and when they were read
    produce_conversions: int
    fetch_conversions: int

    def take(self, other: TopicStats, names: Iterable[str] = __slots__) -> None:
        """Add the other's counts, which begin anew."""
        for name in names:
            setattr(self, name, getattr(self, name) + getattr(other, name))
            setattr(other, name, 0)


class BrokerTopicStats:
    """``replication_bytes_in``: fetched by this broker; ``_out``: by its followers. The others are a reassignment's."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicStats] = {}
        self._gone = TopicStats()
        self.replication_bytes_in = self.replication_bytes_out = 0
        self.reassignment_bytes_in = self.reassignment_bytes_out = 0

    def of(self, topic: str) -> TopicStats:
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicStats()
        return found

    def keep(self, hosted: Collection[str], led: Collection[str]) -> None:
        """Forget counts of topics that are not hosted, or not led, any more; they remain part of the totals."""
        for topic in self.topics.keys() - hosted:
            self._gone.take(self.topics.pop(topic))
        for topic in self.topics.keys() - led:
            self._gone.take(self.topics[topic], OF_LEADERS)

    def total(self, name: str) -> int:
        """Of all topics that there are or were, one of the counts."""
        return sum(getattr(stats, name) for stats in (self._gone, *self.topics.values()))
