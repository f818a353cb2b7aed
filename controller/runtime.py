"""What the controller's capabilities share: the state, the store, the state machines and the way to the brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from controller.channel_manager import ChannelManager
from controller.config import ControllerConfig
from controller.context import ControllerContext
from controller.errors import BrokenBatch, IllegalState
from controller.events import ControllerEvent
from controller.kafka_zk_client import KafkaZkClient
from controller.model import BrokerId, Leadership, TopicPartition
from controller.partition_state_machine import PartitionStateMachine
from controller.replica_state_machine import ReplicaStateMachine
from controller.request_batch import ControllerRequestBatch

#: of a version of /feature, for so many seconds; raises TimeoutError
WaitForFeatures = Callable[[int, float], Awaitable[None]]


async def no_feature_cache(version: int, timeout_s: float) -> None:
    """Of a controller without a broker that could know features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Made once per controller; the context is emptied, not replaced, when the role is given up."""

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
        """The controller's own batch, sent at the end. Raises BrokenBatch, after emptying it (rule 2.20)."""
        try:
            self.batch.new_batch()
            yield self.batch
            self.batch.send()
        except IllegalState as e:
            self.batch.clear()
            raise BrokenBatch(str(e)) from e

    def send_update_metadata(self, brokers: Iterable[BrokerId], partitions: Iterable[TopicPartition] = ()) -> None:
        """One UpdateMetadata to each broker, in a batch of its own. Raises BrokenBatch."""
        with self.new_batch() as batch:
            batch.add_update_metadata(brokers, partitions)

    def send_update_metadata_to_all(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.send_update_metadata(self.context.live_or_shutting_down_broker_ids, partitions)

    async def refresh_leadership(self, partitions: Iterable[TopicPartition]) -> None:
        """Read partition states into the cache; absent ones stay as they are (rule 4.10)."""
        for tp, known in (await self.zk.get_partition_states(list(partitions))).items():
            if isinstance(known, Leadership):
                self.context.put_leadership(tp, known)
