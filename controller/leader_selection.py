"""Kafka's five leader election algorithms, as pure functions (rules of section 7).

Each takes a partition's replicas in assignment order, its stored state and which replicas are online. It returns the
new state and the brokers to notify, or None if no replica may lead. A new state has the stored leader epoch plus 1, and
the stored partition epoch, on which its write is conditional (7.1).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kce.zookeeper.model import BrokerId, LeaderAndIsr

IsOnline = Callable[[BrokerId], bool]


class Strategy(enum.Enum):
    """Kafka's PartitionLeaderElectionStrategy. ``UNCLEAN`` is Offline with unclean election forced (11.32)."""

    OFFLINE = "OfflinePartitionLeaderElectionStrategy"
    UNCLEAN = "OfflinePartitionLeaderElectionStrategy(allowUnclean=true)"
    REASSIGN = "ReassignPartitionLeaderElectionStrategy"
    PREFERRED = "PreferredReplicaPartitionLeaderElectionStrategy"
    CONTROLLED_SHUTDOWN = "ControlledShutdownPartitionLeaderElectionStrategy"


class Elected(NamedTuple):
    """``unclean``: the leader was not in the ISR."""

    state: LeaderAndIsr
    recipients: tuple[BrokerId, ...]
    unclean: bool = False


def elect_offline(
    state: LeaderAndIsr,
    replicas: Sequence[BrokerId],
    is_online: IsOnline,
    *,
    unclean_allowed: bool,
    recovery_supported: bool,
) -> Elected | None:
    """Rules 7.3-7.8. Never elects uncleanly while an ISR member is online, even if that is allowed."""
    online = tuple(r for r in replicas if is_online(r))
    for leader in online:
        if leader in state.isr:
            return Elected(state.new_leader_and_isr(leader, filter(is_online, state.isr)), online)
    if not unclean_allowed or not online or any(is_online(r) for r in state.isr):
        return None
    leader = online[0]
    change = state.new_recovering if recovery_supported else state.new_leader_and_isr
    return Elected(change(leader, (leader,)), online, unclean=True)


def elect_reassigned(state: LeaderAndIsr, target: Sequence[BrokerId], is_online: IsOnline) -> Elected | None:
    """Rules 7.10, 7.11: keeps the ISR, offline members included; notifies all target replicas."""
    for leader in target:
        if is_online(leader) and leader in state.isr:
            return Elected(state.new_leader(leader), tuple(target))
    return None


def elect_preferred(state: LeaderAndIsr, replicas: Sequence[BrokerId], is_online: IsOnline) -> Elected | None:
    """Rules 7.12, 7.13: elects the first replica or nobody, even if it leads already."""
    if replicas and is_online(replicas[0]) and replicas[0] in state.isr:
        return Elected(state.new_leader(replicas[0]), tuple(replicas))
    return None


def elect_for_controlled_shutdown(
    state: LeaderAndIsr,
    replicas: Sequence[BrokerId],
    is_online_or_shutting_down: IsOnline,
    shutting_down: set[BrokerId],
) -> Elected | None:
    """Rules 7.14, 7.15: removes brokers that shut down from the ISR; notifies the old leader too."""
    present = tuple(r for r in replicas if is_online_or_shutting_down(r))
    for leader in present:
        if leader in state.isr and leader not in shutting_down:
            isr = (r for r in state.isr if r not in shutting_down)
            return Elected(state.new_leader_and_isr(leader, isr), present)
    return None
