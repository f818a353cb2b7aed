"""The topics of a `Cluster`: created, deleted and described in ZooKeeper, as an administrator does it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random

from kce.harness.errors import HarnessError
from kce.harness.waiting import Waiting
from kce.zookeeper import admin, znodes
from kce.zookeeper.admin import TopicDescription
from kce.zookeeper.topic_plans import AdminError


class Topics(Waiting):
    """What waits raises HarnessError after `WAIT_TIMEOUT_S`."""

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        assignment: Mapping[int, Sequence[int]] | None = None,
        config: Mapping[str, str] | None = None,
        random: Random | None = None,
        wait: bool = True,
    ) -> uuid.UUID:
        """Create it in ZooKeeper and wait until every partition has a leader. Raises HarnessError, also for a partition
        whose replicas no broker is: Kafka creates it (rule 10.4), and so does ``wait=False``, but none can lead it.

        Unless there are rules, which may keep it from them, all nodes know the leaders then.

        ``assignment`` gives the replicas of each partition; otherwise they are placed as Kafka places them.
        """
        if wait and assignment is not None:
            await self._check_can_lead(topic, assignment)
        with _admin_errors():
            topic_id = await admin.create_topic(
                self.zk, topic, partitions=partitions, replication_factor=replication_factor,
                assignment=assignment, config=config, random=random or self._observer.random(f"placement of {topic}"),
            )  # fmt: skip
        if wait:
            await self.wait_until(lambda: self._has_leaders(topic), f"leaders of topic {topic}")
            await self._wait_until_known(topic, partitions if assignment is None else len(assignment))
        return topic_id

    async def _check_can_lead(self, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
        """A node that does not run may start while we wait; an id that nobody has may not. Raises HarnessError."""
        brokers = await self.registered() | self._members.keys()
        for partition, replicas in assignment.items():
            if replicas and brokers.isdisjoint(replicas):
                known = ", ".join(map(str, sorted(brokers)))
                raise HarnessError(
                    f"topic {topic}: partition {partition} would have no leader, as there is no broker "
                    f"{', '.join(map(str, replicas))}; brokers are {known}"
                )

    async def _has_leaders(self, topic: str) -> bool:
        (described,) = await admin.describe_topics(self.zk, [topic])
        return described.has_leaders

    async def delete_topic(self, topic: str, *, wait: bool = True) -> None:
        """Mark the topic for deletion and wait until it is deleted. Raises HarnessError."""
        with _admin_errors():
            await admin.delete_topic(self.zk, topic)
        if wait:
            await self.wait_until(lambda: self._is_gone(topic), f"topic {topic} to be deleted")

    async def _is_gone(self, topic: str) -> bool:
        return not await self.exists(znodes.topic_path(topic))

    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[TopicDescription]:
        """The topics in ZooKeeper. Raises HarnessError for one that does not exist."""
        with _admin_errors():
            return await admin.describe_topics(self.zk, topics)


@contextmanager
def _admin_errors() -> Iterator[None]:
    """Raise AdminError as HarnessError."""
    try:
        yield
    except AdminError as e:
        raise HarnessError(str(e)) from None
