"""A fetch session on the follower's side (KIP-227, rules B4.24 to B4.29)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from kce.broker_stub.log.leader_epochs import UNDEFINED
from kce.broker_stub.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, next_epoch
from kce.wire import FetchPartition, FetchRequest, FetchResponse, FetchResponsePartitionData, FetchTopic, ForgottenTopic
from kce.wire.control import NO_TOPIC_ID
from kce.wire.single_fetch import MOST
from kce.wire.vocabulary import TopicPartition, by_topic

#: the first version of Fetch with topic ids, and with sessions
IDS_SINCE: Final = 13
SESSIONS_SINCE: Final = 7


class FollowerFetch(NamedTuple):
    """A follower's fetch of one partition."""

    topic_id: UUID | None
    offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


def _forgotten_topic(partition: TopicPartition, fetch: FollowerFetch, *, by_id: bool) -> ForgottenTopic:
    numbers = (partition.partition,)
    if by_id and fetch.topic_id is not None:
        return ForgottenTopic(topic_id=fetch.topic_id, partitions=numbers)
    return ForgottenTopic(topic=partition.topic, partitions=numbers)


class FollowerSession:
    """A fetch session on the follower's side: what the leader knows, and what the next request must say (KIP-227)."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: of each partition."""
        self.sent: dict[TopicPartition, FollowerFetch] = {}
        self._max_bytes = max_bytes
        self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
        self._version = -1
        self._names: dict[UUID | None, str] = {}

    def request(
        self, changed: Mapping[TopicPartition, FollowerFetch], forgotten: Collection[TopicPartition], latest: int
    ) -> tuple[FetchRequest, int]:
        """The request, and its version: ``latest``, or one without ids if a partition has none (rule B5.11)."""
        gone = {tp: self.sent.pop(tp) for tp in forgotten if tp in self.sent and tp not in changed}
        listed = {}
        for partition, fetch in changed.items():
            known = self.sent.get(partition)
            if known is not None and known.topic_id != fetch.topic_id:
                gone[partition] = known
            if known != fetch:
                listed[partition] = self.sent[partition] = fetch
                self._names[fetch.topic_id] = partition.topic
        lacks_ids = None in self._names and any(fetch.topic_id is None for fetch in self.sent.values())
        version = min(latest, IDS_SINCE - 1) if lacks_ids else latest
        if version < SESSIONS_SINCE or version != self._version:
            self._epoch = INITIAL_EPOCH
        self._version = version
        if self._epoch == INITIAL_EPOCH:
            listed, gone = self.sent, {}
        has_sessions = version >= SESSIONS_SINCE
        by_id = version >= IDS_SINCE
        request = FetchRequest(
            topics=tuple(self._topics(listed, by_id, version)),
            forgotten_topics_data=tuple(_forgotten_topic(tp, fetch, by_id=by_id) for tp, fetch in gone.items()),
            session_id=self._id if has_sessions else NO_SESSION,
            session_epoch=self._epoch if has_sessions else FINAL_EPOCH,
        )
        return request, version

    def changes_of_a_topic(
        self, changed: Mapping[TopicPartition, FollowerFetch], forgotten: Collection[TopicPartition], version: int
    ) -> dict[TopicPartition, FollowerFetch] | None:
        """The partitions that the next request lists, if they are of one topic, which goes by its id as before, and it
        says nothing else. They are sent then."""
        if forgotten or self._epoch == INITIAL_EPOCH or version != self._version:
            return None
        sent = self.sent
        listed = {partition: fetch for partition, fetch in changed.items() if sent.get(partition) != fetch}
        if not 0 < len(listed) <= MOST:
            return None
        first = next(iter(listed))
        ids = (listed[first].topic_id,) * 2  # compared as pairs: an object equals itself without a look at it
        for partition, fetch in listed.items():
            known = sent.get(partition)
            if known is None or partition.topic != first.topic or (known[0], fetch[0]) != ids:
                return None
        sent.update(listed)
        return listed

    @property
    def id_and_epoch(self) -> tuple[int, int]:
        """Of the next request."""
        return self._id, self._epoch

    def _topics(
        self, listed: Mapping[TopicPartition, FollowerFetch], by_id: bool, version: int
    ) -> Iterator[FetchTopic]:
        for topic, numbered in by_topic(listed).items():
            topic_id = next(iter(numbered.values())).topic_id if by_id else None
            yield FetchTopic(
                topic=topic,
                topic_id=topic_id or NO_TOPIC_ID,
                partitions=tuple(
                    FetchPartition(
                        partition=number,
                        current_leader_epoch=fetch.leader_epoch,
                        fetch_offset=fetch.offset,
                        last_fetched_epoch=fetch.last_fetched_epoch if version >= 12 else UNDEFINED,
                        log_start_offset=fetch.log_start_offset,
                        partition_max_bytes=self._max_bytes,
                    )
                    for number, fetch in numbered.items()
                ),
            )

    def answered(self, session_id: int) -> None:
        """The leader has a session of that id, or none if it is 0."""
        self._id = session_id
        self._epoch = INITIAL_EPOCH if session_id == NO_SESSION else next_epoch(self._epoch)

    def end(self) -> None:
        """The next request is a full one, and closes the session."""
        self._epoch = INITIAL_EPOCH

    def lost(self) -> None:
        """Nobody knows what the leader knows."""
        self.end()
        self.sent = {}  # whoever handles an answer has the former
        self._names.clear()

    def partitions_of(self, response: FetchResponse, version: int) -> dict[TopicPartition, FetchResponsePartitionData]:
        by_id = version >= IDS_SINCE
        return {
            TopicPartition(self._names[topic.topic_id] if by_id else topic.topic, data.partition_index): data
            for topic in response.responses
            if not by_id or topic.topic_id in self._names
            for data in topic.partitions
        }
