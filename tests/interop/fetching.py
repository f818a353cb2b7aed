"""A twin that is asked by fetch sessions and by a producer of transactions, and topics with assigned replicas."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kce import wire
from tests.interop.random_requests import UNKNOWN_ID, Given
from tests.interop.twin import Twin

TRANSACTION: Final = "tx"
CONSUMER, FOLLOWER = -1, 2
#: epochs of sessions that begin and end
FULL, LAST = 0, -1


class FetchingTwin(Twin):
    """Knows the ids of its sessions and topics by their names."""

    def __init__(self, name: str, address: str, path: str, broker_epoch: int = -1) -> None:
        super().__init__(name, address, path, broker_epoch)
        self.sessions: dict[str, int] = {}
        self._named: dict[int, str] = {}
        #: the request by whose answer a session is known
        self._begun: dict[str, int] = {}

    def topic_id(self, name: str) -> uuid.UUID:
        """The last that it had."""
        found = self._given.get(Given("topic", name), uuid.uuid5(UNKNOWN_ID, name))
        assert isinstance(found, uuid.UUID)
        return found

    def producer(self) -> tuple[int, int]:
        return self._given[Given("producer", TRANSACTION)], self._given[Given("epoch", TRANSACTION)]

    def fetch(
        self,
        session_id: int,
        wanted: Mapping[tuple[str, int], wire.FetchPartition],
        forgotten: Iterable[tuple[str, int]],
        **settings: Any,
    ) -> wire.FetchRequest:
        """By topic and number of the partitions."""
        return wire.FetchRequest(
            session_id=session_id,
            topics=tuple(
                wire.FetchTopic(topic=topic, topic_id=self.topic_id(topic), partitions=(partition,))
                for (topic, _), partition in wanted.items()
            ),
            forgotten_topics_data=tuple(
                wire.ForgottenTopic(topic=topic, topic_id=self.topic_id(topic), partitions=(number,))
                for topic, number in forgotten
            ),
            **settings,
        )

    def fetched(self, answer: wire.FetchResponse, asking: str, number: int) -> Any:
        """What is compared of an answer to this session: also the order. ``number``: of the request."""
        if answer.session_id and asking:
            self._named[answer.session_id] = asking
            if number >= self._begun.get(asking, number):
                self.sessions[asking], self._begun[asking] = answer.session_id, number
        entries = [
            [topic.topic, self.comparable(topic.topic_id), self.comparable(entry)]
            for topic in answer.responses
            for entry in topic.partitions
        ]
        session = self._named.get(answer.session_id, answer.session_id)
        return {"error_code": answer.error_code, "session": session, "entries": entries}


def creation(topic: str, assigned: Sequence[tuple[int, ...]]) -> wire.Message:
    assignments = tuple(
        wire.CreatableReplicaAssignment(partition_index=i, broker_ids=replicas) for i, replicas in enumerate(assigned)
    )
    created = wire.CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments)
    return wire.CreateTopicsRequest(topics=(created,), timeout_ms=20_000)
