"""Which brokers of a recording ended and came back, with nothing left of what they had been told.

A broker that registers again gets a new broker epoch (KIP-380, rule 1.20), which the controllers' requests carry. It
did so in a new process; or in the old one, whose ZooKeeper session had expired, and that one still knows its
partitions. Connections tell which: none outlives the process that accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kce.captures.replay.recording import Step
from kce.captures.tcp.segments import Place
from kce.wire.registry import CONTROL_REQUESTS


class Restart(NamedTuple):
    """Broker ``broker_id`` was a new process when the request at ``place`` reached it, as the first of a controller."""

    place: Place
    broker_id: int


def restarts(steps: Iterable[Step]) -> list[Restart]:
    """In their order, from all ``steps`` of a recording: its other requests tell who lived on.

    A broker of which no connection is seen to outlive the change of its epoch is taken for restarted. Before Kafka 2.2
    there were no broker epochs: of such a recording nothing is found.
    """
    by_broker: dict[int, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.request.place):
        if step.broker_id is not None:
            by_broker.setdefault(step.broker_id, []).append(step)
    return sorted(Restart(place, broker_id) for broker_id, told in by_broker.items() for place in _of_one(told))


def needed(restarts: Iterable[Restart], steps: Iterable[Step]) -> list[Restart]:
    """Those of ``restarts`` before and after which their brokers are sent something by ``steps``."""
    first: dict[int | None, Place] = {}
    last: dict[int | None, Place] = {}
    for step in steps:
        place = step.request.place
        first[step.broker_id] = min(first.get(step.broker_id, place), place)
        last[step.broker_id] = max(last.get(step.broker_id, place), place)
    return [
        each
        for each in restarts
        if each.broker_id in first and first[each.broker_id] < each.place <= last[each.broker_id]
    ]


def _of_one(told: Sequence[Step]) -> list[Place]:
    """``told``: what one broker was told, by whomever, in order."""
    opened: dict[int, Place] = {}
    answered: dict[int, Place] = {}
    for step in told:
        connection = step.request.peers.connection
        opened.setdefault(connection, step.request.place)
        if step.response is not None:
            answered[connection] = max(step.response.place, answered.get(connection, step.response.place))
    found = []
    newest = -1
    known_alive: Place | None = None  # when the process of the newest epoch is last known to have answered
    for step in told:
        if step.request.api_key not in CONTROL_REQUESTS:
            continue
        place, epoch = step.request.place, getattr(step.request.body, "broker_epoch", -1)
        if epoch > newest:
            if newest != -1 and not (
                known_alive and any(opened[c] <= known_alive and last > place for c, last in answered.items())
            ):
                found.append(place)
            newest, known_alive = epoch, None
        if epoch == newest and step.response is not None:
            known_alive = place
    return found
