"""The state shared by the controller's capabilities: context, store, state machines, batches and channels."""

from __future__ import annotations

import collections
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import trio

from kce.controller.channel_manager import ChannelManager
from kce.controller.config import ControllerConfig
from kce.controller.context import ControllerContext
from kce.controller.errors import BrokenBatch
from kce.controller.events import ControllerEvent
from kce.controller.partition_state_machine import PartitionStateMachine
from kce.controller.replica_state_machine import ReplicaStateMachine
from kce.controller.request_batch import ControllerRequestBatch
from kce.zookeeper.errors import IllegalState
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerEpoch, BrokerId, Leadership, RegisteredBroker, TopicPartition
from kce.zookeeper.store import StoreError

log = logging.getLogger(__name__)

#: partition states that are read from ZooKeeper before they are put into the context, to bound memory
_READ_AT_ONCE = 50_000
#: so many such reads, so that ZooKeeper always has one to answer
_READS_UNDER_WAY = 3

#: waits until the broker has read a version of /feature, at most so many seconds; raises TimeoutError
WaitForFeatures = Callable[[int, float], Awaitable[None]]


async def no_feature_cache(version: int, timeout_s: float) -> None:
    """Do not wait: the controller has no broker that reads /feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRuntime:
    """One per controller module. Resigning clears the context and keeps the object."""

    config: ControllerConfig
    context: ControllerContext
    zk: KafkaZkClient
    channels: ChannelManager
    batch: ControllerRequestBatch
    partitions: PartitionStateMachine
    replicas: ReplicaStateMachine
    put: Callable[[ControllerEvent], None]
    #: whether an event would be processed at once
    is_idle: Callable[[], bool]
    wait_for_features: WaitForFeatures

    @contextmanager
    def new_batch(self) -> Iterator[ControllerRequestBatch]:
        """The controller's own batch, sent at the end. Clears it on failure, and raises BrokenBatch (rule 2.20)."""
        try:
            self.batch.new_batch()
            yield self.batch
            self.batch.send()
        except BrokenBatch:
            raise
        except IllegalState as e:
            self.batch.clear()
            raise BrokenBatch(str(e)) from e
        except BaseException:
            self.batch.clear()
            raise

    def send_update_metadata(self, brokers: Iterable[BrokerId], partitions: Iterable[TopicPartition] = ()) -> None:
        """Send UpdateMetadata to brokers, as a batch of its own. Raises BrokenBatch."""
        with self.new_batch() as batch:
            batch.add_update_metadata(brokers, partitions)

    def send_update_metadata_to_all(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.send_update_metadata(self.context.live_or_shutting_down_broker_ids, partitions)

    def problem(self, broker: RegisteredBroker) -> str | None:
        return self.channels.problem(broker) or self.batch.problem(broker)

    async def get_brokers(self) -> dict[BrokerId, tuple[RegisteredBroker, BrokerEpoch]]:
        """Registered brokers with their epochs, except those that no request can reach, or no request can name.

        Kafka fails on them, and so on every change of the brokers (rules 8.21, 8.28)."""
        registered = await self.zk.get_brokers()
        for broker_id, (broker, _) in list(registered.items()):
            if (problem := self.problem(broker)) is not None:
                log.error("ignoring broker %d: %s", broker_id, problem)
                del registered[broker_id]
        return registered

    async def refresh_leadership(self, partitions: Iterable[TopicPartition]) -> None:
        """Read states of distinct partitions into the context; absent ones change nothing (rule 4.10). ``partitions``
        are looked at while ZooKeeper answers."""
        unread = iter(partitions)
        reads: collections.deque[_Read] = collections.deque()
        failure: Exception | None = None
        are_new = not self.context.leadership

        async with trio.open_nursery() as nursery:
            while True:
                while len(reads) < _READS_UNDER_WAY and (part := list(itertools.islice(unread, _READ_AT_ONCE))):
                    reads.append(_Read(part))
                    await nursery.start(reads[-1].run, self.zk)
                if not reads:
                    break
                first = reads.popleft()
                await first.done.wait()
                if (failure := first.failure) is not None:  # raised outside the nursery, which would wrap it
                    nursery.cancel_scope.cancel()
                    break
                self.context.put_all_leadership(_known(first.found), are_new=are_new)
        if failure is not None:
            raise failure


class _Read:
    """A read of partition states. ``run`` has sent it when it is started."""

    def __init__(self, partitions: list[TopicPartition]) -> None:
        self.found: dict[TopicPartition, Leadership | StoreError | None] = {}
        self.failure: Exception | None = None
        self.done = trio.Event()
        self._partitions = partitions

    async def run(self, zk: KafkaZkClient, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            self.found = await zk.get_partition_states(self._partitions)
        except Exception as e:  # noqa: BLE001 - raised by who waits for it
            self.failure = e
        self.done.set()


def _known(found: dict[TopicPartition, Leadership | StoreError | None]) -> Mapping[TopicPartition, Leadership]:
    """Those with leadership: mostly all."""
    if set(map(type, found.values())) == {Leadership}:
        return cast("Mapping[TopicPartition, Leadership]", found)
    return {tp: state for tp, state in found.items() if isinstance(state, Leadership)}
