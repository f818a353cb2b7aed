"""Replica placement: Kafka's algorithm, rack-aware and rack-unaware (rules 10.17-10.25). Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from random import Random


class InvalidPartitions(ValueError):
    """Kafka's INVALID_PARTITIONS."""


class InvalidReplicationFactor(ValueError):
    """Kafka's INVALID_REPLICATION_FACTOR."""


class InconsistentRacks(ValueError):
    """Some brokers have a rack and others have none."""


class RackAwareMode(enum.Enum):
    """Kafka's modes of rack awareness."""

    DISABLED = "Disabled"
    ENFORCED = "Enforced"
    SAFE = "Safe"


def usable_racks(
    brokers: Mapping[int, str | None], mode: RackAwareMode, among: Collection[int] | None = None
) -> dict[int, str | None]:
    """The brokers, or those in ``among``, with the racks that placement uses: broker id -> rack.

    ENFORCED needs racks on all brokers or on none; SAFE uses racks if all brokers have one. Raises InconsistentRacks.
    """
    chosen = {broker: brokers[broker] for broker in sorted(brokers) if among is None or broker in among}
    lacking = [broker for broker, rack in chosen.items() if rack is None]
    if mode is RackAwareMode.ENFORCED and 0 < len(lacking) < len(chosen):
        raise InconsistentRacks(f"brokers {lacking} have no rack, others have one")
    if mode is RackAwareMode.DISABLED or lacking:
        return dict.fromkeys(chosen)
    return chosen


def assign_replicas(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    fixed_start: int = -1,
    start_partition: int = -1,
    random: Random,
) -> dict[int, tuple[int, ...]]:
    """Place new partitions: partition -> replicas.

    ``brokers``: id -> rack, in the order of rack-unaware placement. ``fixed_start`` determines the first replica and
    the shift (10.25); -1 draws them from ``random``. ``start_partition``: number of the first new partition. Raises
    InvalidPartitions, InvalidReplicationFactor, InconsistentRacks.
    """
    if partitions <= 0:
        raise InvalidPartitions("Number of partitions must be larger than 0.")
    if replication_factor <= 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0.")
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"Replication factor: {replication_factor} larger than available brokers: {len(brokers)}."
        )
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    usable_racks(brokers, RackAwareMode.ENFORCED)
    order = rack_alternated(racks) if racks else list(brokers)
    n = len(order)
    start = fixed_start if fixed_start >= 0 else random.randrange(n)
    shift = fixed_start if fixed_start >= 0 else random.randrange(n)
    first_partition = max(0, start_partition)
    assigned = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % n == 0:
            shift += 1
        first = (partition + start) % n
        if racks:
            assigned[partition] = _rack_aware(order, racks, first, shift, replication_factor)
        else:
            others = (order[_replica_index(first, shift, j, n)] for j in range(replication_factor - 1))
            assigned[partition] = (order[first], *others)
    return assigned


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """Brokers ordered so that their racks alternate (rule 10.21)."""
    by_rack: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        by_rack.setdefault(rack, []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    rounds = max((len(queue) for queue in queues), default=0)
    return [queue[i] for i in range(rounds) for queue in queues if i < len(queue)]


def _replica_index(first: int, shift: int, j: int, n: int) -> int:
    return (first + 1 + (shift + j) % (n - 1)) % n  # rule 10.19


def _rack_aware(
    order: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    n, rack_count = len(order), len(set(racks.values()))
    replicas = [order[first]]
    used_racks = {racks[order[first]]}
    k = 0
    while len(replicas) < replication_factor:
        candidate = order[_replica_index(first, shift * rack_count, k, n)]
        k += 1
        rack_fits = racks[candidate] not in used_racks or len(used_racks) == rack_count
        broker_fits = candidate not in replicas or len(set(replicas)) == n
        if rack_fits and broker_fits:
            replicas.append(candidate)
            used_racks.add(racks[candidate])
    return tuple(replicas)
