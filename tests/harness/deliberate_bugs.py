"""Bugs for the simulation to find: each patches the code under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kce.broker_stub.handlers.base import Services
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.replica_manager import ReplicaManager
from kce.controller import partition_state_machine
from kce.controller.brokers import Brokers
from kce.controller.topics import Topics
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


def partition_states_obeyed_in_any_order(patch: Patch) -> None:
    """A broker accepts a LeaderAndIsr of an older leader epoch, or of a partition that it does not host."""
    patch.setattr(ReplicaManager, "_validate", lambda self, *arguments: None)


def new_topics_not_noticed(patch: Patch) -> None:
    async def changed(self: Topics) -> None:
        return

    patch.setattr(Topics, "changed", changed)


#: each with a seed that found it, which is tried first
BUGS: tuple[tuple[Callable[[Patch], None], int], ...] = (
    (no_broker_epoch_check, 208), (no_controller_epoch_check, 19), (leader_epoch_not_raised, 2),
    (dead_leader_elected, 3), (sent_without_being_persisted, 2), (new_partitions_not_persisted, 0),
    (isr_not_persisted, 2), (broker_outside_the_assignment_in_the_isr, 2), (stale_version_is_success, 2),
    (deaths_not_noticed, 21), (returns_not_noticed, 1), (controller_epoch_not_raised, 3), (metadata_not_updated, 0),
    (new_topics_not_noticed, 0), (partition_states_obeyed_in_any_order, 190),
)  # fmt: skip
