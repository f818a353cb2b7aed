"""Finds broker restarts in a recording: a restarted broker has lost its in-memory state.

A broker that registers again gets a new broker epoch (KIP-380, rule 1.20), which controllers' requests carry. Either
its process is new, or only its ZooKeeper session expired, and then it still knows its partitions. Connections show
which: none outlives the process that accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kce.captures.replay.recording import Step
from kce.captures.tcp.segments import Place
from kce.wire.registry import CONTROL_REQUESTS


class Restart(NamedTuple):
    """Broker ``broker_id`` was a new process when the request at ``place``, the first of a controller, reached it."""

    place: Place
    broker_id: int


def restarts(steps: Iterable[Step]) -> list[Restart]:
    """All restarts in order. Needs all ``steps`` of a recording, because other requests show which connections live on.

    A broker counts as restarted if none of its connections outlives the change of its epoch. Kafka before 2.2 had no
    broker epochs, so nothing is found in such a recording.
    """
    by_broker: dict[int, list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.request.place):
        if step.broker_id is not None:
            by_broker.setdefault(step.broker_id, []).append(step)
    return sorted(Restart(place, broker_id) for broker_id, received in by_broker.items() for place in _of_one(received))


def can_be_found(steps: Iterable[Step]) -> bool:
    """Whether requests of controllers carry broker epochs, or there are none: then there is nothing to find."""
    epochs = [
        getattr(step.request.body, "broker_epoch", -1) for step in steps if step.request.api_key in CONTROL_REQUESTS
    ]
    return not epochs or max(epochs) >= 0


def needed(restarts: Iterable[Restart], steps: Iterable[Step]) -> list[Restart]:
    """The restarts of brokers that receive ``steps`` both before and after them."""
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


def _of_one(received: Sequence[Step]) -> list[Place]:
    """Restarts of one broker, given all requests sent to it, in order."""
    opened: dict[int, Place] = {}
    answered: dict[int, Place] = {}
    for step in received:
        connection = step.request.peers.connection
        opened.setdefault(connection, step.request.place)
        if step.response is not None:
            answered[connection] = max(step.response.place, answered.get(connection, step.response.place))
    found = []
    newest = -1
    known_alive: Place | None = None  # last response of the process that has the newest epoch
    for step in received:
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
