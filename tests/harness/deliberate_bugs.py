"""Bugs for the simulation to find: each patches the code under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kce.broker_stub.followers import Followers
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.log.leader_epochs import UNDEFINED
from kce.broker_stub.log.producer_state import ProducerAppend, ProducerState
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.partition import Partition
from kce.broker_stub.purgatory.purgatory import DelayedOperation
from kce.broker_stub.replica_manager import ReplicaManager
from kce.broker_stub.replication.fetcher import FetchState, ReplicaFetcher
from kce.controller import partition_state_machine
from kce.controller.brokers import Brokers
from kce.controller.topics import Topics
from kce.wire import ErrorCode
from kce.zookeeper.kafka_zk_client import KafkaZkClient, UpdateResult
from kce.zookeeper.model import LeaderAndIsr

Patch = pytest.MonkeyPatch


def no_broker_epoch_check(patch: Patch) -> None:
    """A bounced broker obeys requests for its earlier life (KIP-380)."""
    patch.setattr(Services, "is_stale_broker_epoch", lambda self, epoch: False)


def no_controller_epoch_check(patch: Patch) -> None:
    """A broker obeys a zombie."""

    def is_stale(self: ReplicaManager, controller_epoch: int) -> bool:
        self.controller_epoch = controller_epoch
        return False

    patch.setattr(ReplicaManager, "_is_stale", is_stale)


def leader_epoch_not_raised(patch: Patch) -> None:
    def new(self: LeaderAndIsr, leader: Any, isr: Any) -> LeaderAndIsr:
        return self._replace(leader=leader, isr=tuple(isr))

    patch.setattr(LeaderAndIsr, "new_leader_and_isr", new)


def dead_leader_elected(patch: Patch) -> None:
    """Whether a replica is alive does not matter."""
    elect = partition_state_machine.elect_offline

    def any_replica(state: LeaderAndIsr, replicas: Any, online: Any, **more: Any) -> Any:
        return elect(state, replicas, lambda broker: True, **more)

    patch.setattr(partition_state_machine, "elect_offline", any_replica)


def sent_without_being_persisted(patch: Patch) -> None:
    async def update(self: KafkaZkClient, states: Mapping[Any, LeaderAndIsr], *_: Any) -> UpdateResult:
        return UpdateResult({tp: s.with_partition_epoch(s.partition_epoch + 1) for tp, s in states.items()}, [], {})

    patch.setattr(KafkaZkClient, "update_leader_and_isr", update)


def new_partitions_not_persisted(patch: Patch) -> None:
    async def create(self: KafkaZkClient, states: Mapping[Any, Any], expected: Any) -> dict[Any, None]:
        return dict.fromkeys(states)

    patch.setattr(KafkaZkClient, "create_partition_states", create)


def isr_not_persisted(patch: Patch) -> None:
    """The leader is written, with the ISR of before."""
    update = KafkaZkClient.update_leader_and_isr

    async def write(self: KafkaZkClient, states: Mapping[Any, LeaderAndIsr], *more: Any) -> UpdateResult:
        found = await update(self, {tp: s._replace(isr=(*s.isr, 7)) for tp, s in states.items()}, *more)
        kept = {tp: states[tp].with_partition_epoch(s.partition_epoch) for tp, s in found.updated.items()}
        return UpdateResult(kept, found.retry, found.failed)

    patch.setattr(KafkaZkClient, "update_leader_and_isr", write)


def broker_outside_the_assignment_in_the_isr(patch: Patch) -> None:
    new = LeaderAndIsr.new_leader_and_isr
    patch.setattr(LeaderAndIsr, "new_leader_and_isr", lambda self, leader, isr: new(self, leader, (*isr, 9)))


def stale_version_is_success(patch: Patch) -> None:
    """A state that was not written because of a version conflict counts as written."""
    update = KafkaZkClient.update_leader_and_isr

    async def write(self: KafkaZkClient, states: Mapping[Any, LeaderAndIsr], *more: Any) -> UpdateResult:
        found = await update(
            self, {tp: s.with_partition_epoch(s.partition_epoch + 5) for tp, s in states.items()}, *more
        )
        return UpdateResult({tp: states[tp] for tp in found.retry} | found.updated, [], found.failed)

    patch.setattr(KafkaZkClient, "update_leader_and_isr", write)


def deaths_not_noticed(patch: Patch) -> None:
    async def failed(self: Brokers, brokers: Any) -> None:
        return

    patch.setattr(Brokers, "failed", failed)


def returns_not_noticed(patch: Patch) -> None:
    async def started(self: Brokers, brokers: Any) -> None:
        return

    patch.setattr(Brokers, "started", started)


def controller_epoch_not_raised(patch: Patch) -> None:
    register = KafkaZkClient.register_controller

    async def claim(self: KafkaZkClient, broker: Any) -> Any:
        epoch, version = await register(self, broker)
        return type(epoch)(1), version

    patch.setattr(KafkaZkClient, "register_controller", claim)


def metadata_not_updated(patch: Patch) -> None:
    """Every third UpdateMetadata is answered, and changes nothing."""
    update, count = MetadataCache.update, [0]

    def sometimes(self: MetadataCache, *arguments: Any, **more: Any) -> Any:
        count[0] += 1
        return [] if count[0] % 3 == 0 else update(self, *arguments, **more)

    patch.setattr(MetadataCache, "update", sometimes)


def new_topics_not_noticed(patch: Patch) -> None:
    async def changed(self: Topics) -> None:
        return

    patch.setattr(Topics, "changed", changed)


def zombie_writes_unfenced(patch: Patch) -> None:
    """Writes of a controller are executed whatever the version of /controller_epoch (rule 1.55)."""

    async def write(self: KafkaZkClient, ops: Any, expected: Any) -> Any:
        return await self.store.write(ops)

    patch.setattr(KafkaZkClient, "fenced", write)


def high_watermark_too_early(patch: Patch) -> None:
    """A leader does not wait for its followers (rule 9.50)."""
    patch.setattr(Followers, "high_watermark", lambda self, end, *_: end)


def truncation_to_the_high_watermark_only(patch: Patch) -> None:
    """A follower does not ask the leader where their logs diverge (KIP-101)."""
    add = ReplicaFetcher.add

    def add_at_high_watermark(self: ReplicaFetcher, partition: Any, log: Any, epoch: int, topic_id: Any) -> None:
        is_known = partition in self.partitions and self.partitions[partition].leader_epoch == epoch
        add(self, partition, log, epoch, topic_id)
        if not is_known:
            state = self.partitions[partition]
            state.offset, state.is_truncating = log.high_watermark, True

    patch.setattr(ReplicaFetcher, "add", add_at_high_watermark)
    patch.setattr(FetchState, "last_fetched_epoch", property(lambda self: UNDEFINED))


def nothing_is_truncated(patch: Patch) -> None:
    """A follower keeps what the leader does not have."""

    def ignore(self: ReplicaFetcher, partition: Any, state: FetchState, *_: Any) -> None:
        state.is_truncating = False

    patch.setattr(ReplicaFetcher, "_truncate_by_epoch", ignore)
    patch.setattr(FetchState, "last_fetched_epoch", property(lambda self: UNDEFINED))


def acknowledged_at_once(patch: Patch) -> None:
    """With acks=all a leader answers without its followers (rule B2.14)."""
    patch.setattr(Partition, "is_acknowledged", lambda self, end_offset: ErrorCode.NONE)


def duplicates_appended(patch: Patch) -> None:
    """A leader appends what an idempotent producer sends again (rules B3.45, B3.48)."""
    patch.setattr(ProducerState, "duplicate_of", lambda self, header: None)
    patch.setattr(ProducerAppend, "_check_sequence", lambda self, header: None)


def leader_outside_the_isr(patch: Patch) -> None:
    """Unclean election, though it is off (rule 7.6)."""
    elect = partition_state_machine.elect_offline

    def elect_any(state: LeaderAndIsr, replicas: Any, online: Any, **more: Any) -> Any:
        return elect(state, replicas, online, **(more | {"unclean_allowed": True}))

    patch.setattr(partition_state_machine, "elect_offline", elect_any)


def consumers_read_beyond_the_high_watermark(patch: Patch) -> None:
    """A consumer sees what not all of the ISR has (rule B4.1)."""
    located = Log.located_end
    patch.setattr(Log, "located_end", lambda self, isolation: located(self, Isolation.LOG_END))


def isr_shrinks_without_the_controller(patch: Patch) -> None:
    """A leader counts on an ISR that it has only proposed (rule 9.48)."""
    propose = Partition.propose_isr

    def at_once(self: Partition, isr: tuple[int, ...]) -> Any:
        item = propose(self, isr)
        self.isr = isr
        return item

    patch.setattr(Partition, "propose_isr", at_once)


def timeouts_unanswered(patch: Patch) -> None:
    """A request that waits in a purgatory gets no response when its time is over (rule B2.16)."""
    patch.setattr(DelayedOperation, "run", lambda self: None)


#: each with a seed that found it, which is tried first
BUGS: tuple[tuple[Callable[[Patch], None], int], ...] = (
    (no_broker_epoch_check, 72), (no_controller_epoch_check, 30), (leader_epoch_not_raised, 0),
    (dead_leader_elected, 0), (sent_without_being_persisted, 0), (new_partitions_not_persisted, 0),
    (isr_not_persisted, 0), (broker_outside_the_assignment_in_the_isr, 0), (stale_version_is_success, 0),
    (deaths_not_noticed, 4), (returns_not_noticed, 0), (controller_epoch_not_raised, 0), (metadata_not_updated, 0),
    (new_topics_not_noticed, 0), (zombie_writes_unfenced, 0),
    (high_watermark_too_early, 0), (truncation_to_the_high_watermark_only, 0), (nothing_is_truncated, 12),
    (acknowledged_at_once, 1), (duplicates_appended, 3), (leader_outside_the_isr, 15),
    (consumers_read_beyond_the_high_watermark, 44),
    (isr_shrinks_without_the_controller, 2), (timeouts_unanswered, 0),
)  # fmt: skip
