"""The state shared by the controller's capabilities: context, store, state machines, batches and channels."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
        """Read partition states into the context; absent ones change nothing (rule 4.10). ``partitions`` are looked at
        while ZooKeeper answers."""
        unread = iter(partitions)
        want, wanted = trio.open_memory_channel[list[TopicPartition]](2)
        send, receive = trio.open_memory_channel[dict[TopicPartition, Leadership | StoreError | None]](1)
        failure: Exception | None = None

        def want_more() -> None:
            if part := list(itertools.islice(unread, _READ_AT_ONCE)):
                want.send_nowait(part)
            else:
                want.close()

        async def read() -> None:
            nonlocal failure
            with send:
                try:
                    async for part in wanted:
                        await send.send(await self.zk.get_partition_states(part))
                except Exception as e:  # noqa: BLE001 - raised outside the nursery, which would wrap it
                    failure = e

        async with trio.open_nursery() as nursery:  # ZooKeeper answers while the context takes the last answer
            nursery.start_soon(read)
            want_more()
            want_more()
            async for found in receive:
                known = {tp: state for tp, state in found.items() if isinstance(state, Leadership)}
                self.context.put_all_leadership(known)
                want_more()
        if failure is not None:
            raise failure
