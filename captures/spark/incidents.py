"""The story of each incident: trigger, detection, election, news, clients back. Plain values in, plain values out."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from kce.captures.spark.analyses import failovers, outages, silences
from kce.captures.spark.analyses.analysis import Look, Place, Results
from kce.captures.spark.analyses.clients import is_open
from kce.captures.spark.analyses.words import (
    MISSING,
    MOST,
    brokers,
    clock,
    count,
    duration,
    evidence_of,
    lacks_controls,
    some,
)

#: A controller that begins within this time of an outage belongs to it.
_NEAR = datetime.timedelta(seconds=5)


class Step(NamedTuple):
    """One moment of an incident, with the packet that shows it."""

    name: str
    time: datetime.datetime
    text: str
    look: Look  #: of the time since the step before
    place: Place | None = None


class Suffering(NamedTuple):
    """What one client suffered, with the worst requests."""

    text: str
    places: tuple[Place, ...]


class Incident(NamedTuple):
    """``steps`` are in the order of time, the first is the trigger. ``clients`` tells what they suffered."""

    heading: str
    text: str
    steps: tuple[Step, ...]
    clients: tuple[Suffering, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        told = [step.place for step in self.steps if step.place is not None]
        return tuple(dict.fromkeys([*told, *(place for each in self.clients for place in each.places)]))


def incidents(found: Results) -> list[Incident]:
    """Outages of partitions, other silences of brokers and changes of the controller, in the order of time."""
    told: list[Incident] = []
    explained: set[tuple[int, int]] = set()
    for leader, rows in outages.incidents(found):
        steps, controller = _steps(found, leader, rows)
        if controller is not None:
            explained.add((controller.controller_epoch, controller.controller_id))
        hit = failovers.of_outage(found, leader, rows)[:MOST]
        clients = tuple(Suffering(failovers.text_of(row), evidence_of(row)[:MOST]) for row in hit)
        shutdown = _shutdown(found, leader, steps)
        incident = _incident(leader, rows, steps, controller, shutdown)
        if lacks_controls(found):
            incident = incident._replace(text=f"{incident.text} It may have been otherwise: {MISSING} in the capture.")
        told.append(incident._replace(clients=clients))
    for row in silences.untold(found):
        incident = _of_silence(row)
        if silences.is_guess([row], found):
            incident = incident._replace(text=f"{incident.text} {silences.UNHEARD}")
        told.append(incident)
    for before, after in pairwise(found.controllers):
        if (after.controller_epoch, after.controller_id) not in explained:
            told.append(_of_controllers(before, after, list(_fenced(found, before))))
    return sorted(told, key=lambda incident: incident.steps[0].time)


def _steps(found: Results, leader: int | None, rows: list[Any]) -> tuple[list[Step], Any]:
    """The steps of a leader's outage, and the controller that was elected meanwhile, if one was."""
    steps: list[Step] = []
    signs = [row for row in rows if row.sign_time is not None]
    if signs:
        last = max(signs, key=lambda row: row.sign_time)
        steps.append(
            Step(
                "trigger", last.sign_time, f"last sign of life of broker {leader}: {last.sign}", "silence",
                (last.files[0], last.packets[0]),
            )
        )  # fmt: skip
    begin = steps[0].time if steps else min(row.leaderless_time or row.leader_time for row in rows)
    end = max(row.leader_time or row.leaderless_time for row in rows)
    turned = (
        (before, after)
        for before, after in pairwise(found.controllers)
        if begin <= after.first_time <= end + _NEAR and before.controller_id == leader
    )
    former, controller = next(turned, (None, None))
    if controller is not None:
        what = f"first request of controller {controller.controller_id}, epoch {controller.controller_epoch}"
        steps.append(Step("election", controller.first_time, what, "silence", evidence_of(controller)[0]))
    leaderless = [row for row in rows if row.leaderless_time is not None]
    if leaderless:
        first = min(leaderless, key=lambda row: row.leaderless_time)
        at = 1 if first.sign_time is not None else 0
        steps.append(
            Step(
                "detection", first.leaderless_time, f"{first.topic}-{first.partition} announced without a leader",
                "silence", (first.files[at], first.packets[at]),
            )
        )  # fmt: skip
    steps += _news(found, begin, [row for row in rows if row.leader_time is not None])
    announced = min(row.leader_time or row.leaderless_time for row in rows)
    steps += _clients_back(found, begin, announced, max(step.time for step in steps))
    back = [row for row in found.silences if row.broker_id == leader and row.begin == begin and row.end is not None]
    for row in back:
        text = f"broker {leader} showed life again, after {duration(row.silent_ms)}"
        steps.append(Step("old leader back", row.end, text, "wait", evidence_of(row)[-1]))
    steps += _fenced(found, former)
    steps.sort(key=lambda step: step.time)
    if len(steps) > 1 and steps[0].name == "trigger":
        steps[1] = steps[1]._replace(look="silence")
    return steps, controller


def _shutdown(found: Results, leader: int | None, steps: list[Step]) -> datetime.datetime | None:
    """When the old leader was granted the controlled shutdown that began the incident."""
    granted = [row.shutdown_time for row in (*found.bounces, *found.departures) if row.broker_id == leader]
    begin, end = steps[0].time - 2 * _NEAR, steps[-1].time
    return max((time for time in granted if time is not None and begin <= time <= end), default=None)


def _fenced(found: Results, controller: Any) -> Iterator[Step]:
    """The first request of a zombie that brokers refused."""
    for row in found.zombies:
        if controller is not None and row.controller_epoch == controller.controller_epoch:
            text = f"controller {row.controller_id} (epoch {row.controller_epoch}) acted as a zombie: "
            text += f"{count(row.requests, 'control request')} of it refused by {brokers(row.brokers)}"
            if row.requests > 1:
                text += f", the last at {clock(row.last_time)}"
            yield Step("zombie fenced", row.first_time, text, "wait", evidence_of(row)[0])


def _news(found: Results, begin: datetime.datetime, rows: list[Any]) -> Iterator[Step]:
    """First and last news of the new leaders. What brokers learn because they come back, maybe much later, is none."""
    if not rows:
        return
    first = min(rows, key=lambda row: row.leader_time)
    text = f"first new leader: broker {first.to_leader} for {first.topic}-{first.partition}"
    yield Step("first LeaderAndIsr", first.leader_time, text, "change", (first.files[-1], first.packets[-1]))
    leader = rows[0].from_leader
    wanted = {(row.topic, row.topic_id, row.partition, row.to_leader, row.leader_time) for row in rows}
    for name, api, look in (
        ("last LeaderAndIsr", "LeaderAndIsr", "change"), ("metadata spread", "UpdateMetadata", "spread"),
    ):  # fmt: skip
        told = [
            n for n in found.news
            if n.api == api and n.broker_id != leader and not _is_by_return(found, begin, n)
            and (n.topic, n.topic_id, n.partition, n.leader, n.began) in wanted
        ]  # fmt: skip
        if told:
            last = max(told, key=lambda n: n.time)
            text = f"broker {last.broker_id} was the last other broker to be sent {api} of a new leader"
            yield Step(name, last.time, text, look, (last.file, last.packet))  # type: ignore[arg-type]


def _is_by_return(found: Results, begin: datetime.datetime, news: Any) -> bool:
    """Whether a broker was told because it came back after ``begin``, since it was last addressed before it went."""
    return any(
        row.broker_id == news.broker_id and row.back_time > begin and news.time > (row.last_time or begin)
        and news.time > row.back_time - _NEAR  # where lists of brokers show that it was gone, these may come later
        for row in found.bounces
    )  # fmt: skip


def _clients_back(
    found: Results, begin: datetime.datetime, announced: datetime.datetime, end: datetime.datetime
) -> Iterator[Step]:
    """The last client whose gap spans the time without a leader gets good responses again."""
    back = []
    for row in found.clients:
        if row.is_replica or row.gap_ms is None or is_open(row) or not (row.failed or row.unanswered):
            continue
        until = row.gap_time + datetime.timedelta(milliseconds=row.gap_ms)
        if begin - _NEAR <= row.gap_time <= announced <= until <= end + 2 * _NEAR:
            back.append((until, row))
    if back:
        until, row = max(back, key=lambda each: each[0])
        text = f"client {row.client_id or row.client}: first good {row.api} response after {duration(row.gap_ms)}"
        yield Step("clients back", until, text, "wait", (row.files[-1], row.packets[-1]))


def _incident(
    leader: int | None, rows: list[Any], steps: list[Step], controller: Any, shutdown: datetime.datetime | None
) -> Incident:
    names = some([f"{row.topic}-{row.partition}" for row in rows], 5)
    ended = [row for row in rows if row.leader_time is not None]
    whose = "" if leader is None else f" led by broker {leader}"
    text = f"{count(len(rows), 'partition')}{whose} lost {'its' if len(rows) == 1 else 'their'} leader ({names})."
    if steps and steps[0].name == "trigger":
        text += f" {_sentence(steps[0])} at {clock(steps[0].time)}."
    if shutdown is not None:
        text += f" It was granted a controlled shutdown at {clock(shutdown)}."
    if controller is not None:
        text += (
            f" It was the controller, too: controller {controller.controller_id} took over in epoch "
            f"{controller.controller_epoch} at {clock(controller.first_time)}."
        )
    if len(ended) < len(rows):
        text += f" {count(len(rows) - len(ended), 'partition')} had no leader until the end of the capture."
    real = [row.real_ms for row in ended if row.real_ms is not None]
    if real:
        text += f" Time without a leader: up to {duration(max(real))}"
        announced = [row.announced_ms for row in ended if row.announced_ms is not None]
        text += f", announced for {duration(max(announced))}." if announced else "."
    for step in steps:
        if step.name in ("metadata spread", "old leader back", "clients back"):
            text += f" {_sentence(step)} at {clock(step.time)}."
        elif step.name == "zombie fenced":
            text += f" {_sentence(step)}."
    what = f"Broker {leader} silent"
    if steps[0].name != "trigger":  # the capture began later
        what = f"Partitions{'' if leader is None else f' of broker {leader}'} without a leader"
    return Incident(f"{what} from {clock(steps[0].time)}", text, tuple(steps))


def _sentence(step: Step) -> str:
    return step.text[:1].upper() + step.text[1:]


def _of_silence(row: Any) -> Incident:
    """A broker that was silent and did not lose partitions by it."""
    first, *_, last = evidence_of(row)
    steps = [Step("trigger", row.begin, f"last sign of life of broker {row.broker_id}: {row.sign}", "silence", first)]
    if row.end is not None:
        steps.append(Step("back", row.end, f"broker {row.broker_id} showed life again", "silence", last))
    text = f"Broker {row.broker_id} showed no sign of life for {duration(row.silent_ms)}"
    text += ", to the end of the capture" * (row.end is None)
    text += f", while {count(row.waiting, 'request')} of {some(row.clients, MOST)} waited. No leader changed by it."
    return Incident(f"Broker {row.broker_id} silent from {clock(row.begin)}", text, tuple(steps))


def _of_controllers(before: Any, after: Any, fenced: list[Step]) -> Incident:
    """A change of the controller without an outage of partitions."""
    steps = sorted(
        (
            Step(
                "old controller", before.last_time, f"last request of controller {before.controller_id}, epoch "
                f"{before.controller_epoch}", "silence", evidence_of(before)[-1],
            ),
            Step(
                "election", after.first_time, f"first request of controller {after.controller_id}, epoch "
                f"{after.controller_epoch}", "change", evidence_of(after)[0],
            ),
            *fenced,
        ),
        key=lambda step: step.time,
    )  # fmt: skip
    gap = (after.first_time - before.last_time).total_seconds() * 1000
    text = (
        f"Controller {before.controller_id} (epoch {before.controller_epoch}) sent its last request at "
        f"{clock(before.last_time)}, controller {after.controller_id} (epoch {after.controller_epoch}) its first at "
        f"{clock(after.first_time)}"
    )
    text += f", {duration(gap)} later." if gap >= 0 else ": both sent requests at the same time."
    text += "".join(f" {_sentence(step)}." for step in fenced)
    moved = "again" if before.controller_id == after.controller_id else f"from broker {before.controller_id}"
    return Incident(
        f"Controller {after.controller_id} takes over {moved} at {clock(after.first_time)}", text, tuple(steps)
    )
