"""The scenario of `kce demo`: several failures in one recording, on real sockets with a real ZooKeeper.

Three nodes, each a process; two topics; the active controller is killed; the next one is cut off from ZooKeeper while
its requests are in flight, another is elected, and the zombie's requests arrive late and are fenced; a broker is
restarted; /controller is deleted by hand. The state of each step is read from ZooKeeper at the time, the figures of
each failover from the recording afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Response
from kce.captures.files.pcap import CaptureFile
from kce.harness.cluster import Cluster
from kce.harness.settling import ActiveController
from kce.wire.registry import CONTROL_REQUESTS

NODES = 3
TOPICS = {"orders": (4, 3), "payments": (2, 2)}
SESSION_TIMEOUT_MS = 3000

#: leader of each partition, by "topic-partition"
Leaders = dict[str, int]


@dataclass(slots=True)
class Step:
    """One step and its outcome. ``gone_ns``: when /controller was deleted, in ns since 1970; 0 if it was not."""

    title: str
    before: ActiveController | None = None
    after: ActiveController | None = None
    leaders_before: Leaders = field(default_factory=dict)
    leaders_after: Leaders = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gone_ns: int = 0
    failover_ms: float | None = None
    control_requests: int = 0
    #: in the step that shows fencing: the epoch of the zombie, and how many of its requests were fenced
    zombie_epoch: int = 0
    fenced: int = 0

    @property
    def moved(self) -> dict[str, tuple[int, int]]:
        """Partitions whose leader changed: (before, after)."""
        after = self.leaders_after
        return {p: (was, after[p]) for p, was in sorted(self.leaders_before.items()) if p in after and after[p] != was}


class Story:
    """Plays the steps on a running cluster; ``progress`` is called with the title of each as it begins."""

    def __init__(self, cluster: Cluster, progress: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._progress = progress
        self.steps: list[Step] = []

    async def play(self) -> None:
        await self._first_election()
        await self._topics()
        await self._kill_the_controller()
        await self._zombie()
        await self._restart_a_broker()
        await self._delete_controller()

    @asynccontextmanager
    async def _step(self, title: str) -> AsyncIterator[Step]:
        self._progress(title)
        step = Step(title, before=await self._cluster.controller(), leaders_before=await self._leaders())
        gone_before = self._cluster.controller_gone_ns
        yield step
        await self._settle()
        step.after = await self._cluster.controller()
        step.leaders_after = await self._leaders()
        if self._cluster.controller_gone_ns != gone_before:
            step.gone_ns = self._cluster.controller_gone_ns
        self.steps.append(step)

    async def _leaders(self) -> Leaders:
        return {
            f"{t.name}-{p.partition}": p.state.leader
            for t in await self._cluster.describe_topics()
            for p in t.partitions
            if p.state is not None
        }

    async def _settle(self) -> None:
        """Wait until no control request is pending and every ISR holds exactly the live replicas."""

        async def settled() -> bool:
            active = await self._cluster.controller()
            if active is None or not await self._has_no_pending_requests(active):
                return False
            alive = await self._cluster.registered()
            return all(
                p.state is not None and set(p.state.isr) == set(p.assignment.replicas) & alive
                for t in await self._cluster.describe_topics()
                for p in t.partitions
            )

        await self._cluster.wait_until(settled, "the cluster to settle")

    async def _first_election(self) -> None:
        async with self._step("Three nodes start and contend for /controller") as step:
            await self._cluster.wait_for_controller()
        step.before = None

    async def _topics(self) -> None:
        named = " and ".join(f"{t} ({p} partitions x {r})" for t, (p, r) in TOPICS.items())
        async with self._step(f"Topics are created: {named}"):
            for topic, (partitions, replication_factor) in TOPICS.items():
                await self._cluster.create_topic(topic, partitions=partitions, replication_factor=replication_factor)

    async def _active(self) -> ActiveController:
        return await self._cluster.wait_for_controller()

    async def _kill_the_controller(self) -> None:
        old = await self._active()
        async with self._step(f"The active controller, node {old.id}, is killed (kill -9)") as step:
            await self._cluster.kill(old.id)
            await self._cluster.wait_for_controller(other_than=old)
        step.notes.append(f"ZooKeeper noticed when its session of {SESSION_TIMEOUT_MS} ms expired")
        async with self._step(f"Node {old.id} comes back and rejoins the ISRs"):
            await self._cluster.start(old.id)

    async def _zombie(self) -> None:
        old = await self._active()
        async with self._step(
            f"Node {old.id}, now controller, is cut off from ZooKeeper with requests in flight"
        ) as step:
            await self._cluster.hold_control_requests(old.id)
            await self._cluster.create_topic("audit", replication_factor=3)
            await self._cluster.wait_until(
                lambda: self._has_requests_for_all(old), f"requests of node {old.id} to be in flight"
            )
            await self._cluster.cut_from_zookeeper(old.id)
            new = await self._cluster.wait_for_controller(other_than=old)
            await self._cluster.wait_until(lambda: self._has_no_pending_requests(new), f"responses to node {new.id}")
            believes = await self._cluster.node_status(old.id)
        step.notes.append(
            f"node {old.id} still believes that it is controller of epoch {believes.controller_epoch}"
            if believes.believes_active
            else f"node {old.id} knows that it is no longer controller"
        )
        async with self._step(f"The requests of node {old.id} from epoch {old.epoch} arrive late") as step:
            step.zombie_epoch = old.epoch
            await self._cluster.release_control_requests(old.id)
            await self._cluster.wait_until(lambda: self._has_no_pending_requests(old), f"responses to node {old.id}")
        async with self._step(f"Node {old.id} reaches ZooKeeper again, finds its session expired, and resigns"):
            await self._cluster.heal(old.id)
            await self._cluster.wait_until(lambda: self._has_resigned(old), f"node {old.id} to resign and return")

    async def _has_requests_for_all(self, controller: ActiveController) -> bool:
        """Whether a control request to every broker is pending."""
        unanswered = (await self._cluster.node_status(controller.id)).unanswered
        return len(unanswered) == NODES and all(unanswered.values())

    async def _has_no_pending_requests(self, controller: ActiveController) -> bool:
        status = await self._cluster.node_status(controller.id)
        return status.controller_epoch == controller.epoch and not any(status.unanswered.values())

    async def _has_resigned(self, controller: ActiveController) -> bool:
        status = await self._cluster.node_status(controller.id)
        return status.controller_epoch != controller.epoch and controller.id in await self._cluster.registered()

    async def _restart_a_broker(self) -> None:
        active = await self._active()
        follower = next(m.id for m in self._cluster.members if m.id != active.id)
        async with self._step(f"Broker {follower} is restarted, with controlled shutdown"):
            await self._cluster.restart(follower)

    async def _delete_controller(self) -> None:
        old = await self._active()
        async with self._step("/controller is deleted by hand"):
            await self._cluster.delete_controller()
            await self._cluster.wait_for_controller(other_than=old)


async def play(record: Path, progress: Callable[[str], None]) -> list[Step]:
    """Play all steps and record them to ``record``; returns the steps with their figures. Raises HarnessError."""
    properties = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
    async with Cluster(NODES, processes=True, record=record, properties=properties) as cluster:
        story = Story(cluster, progress)
        await story.play()
    await trio.lowlevel.checkpoint()  # the end of a cluster is not cancelled: a signal may have come meanwhile
    progress("Merging the recording")
    await trio.to_thread.run_sync(measure, record, story.steps)
    return story.steps


def measure(record: Path, steps: list[Step]) -> None:
    """Fill in the figures of each step from the recording.

    A failover lasts from the deletion of /controller to the last response in the new controller's first burst. The
    burst ends with the first pause of more than _SILENCE_NS.
    """
    answers: dict[int, list[int]] = {}
    fenced: Counter[int] = Counter()
    with CaptureFile(record) as capture:
        for message in Decoder(capture).messages():
            if isinstance(message, Response) and message.request.api_key in CONTROL_REQUESTS:
                request = message.request.body
                assert isinstance(
                    request, (wire.LeaderAndIsrRequest, wire.UpdateMetadataRequest, wire.StopReplicaRequest)
                )
                answers.setdefault(request.controller_epoch, []).append(message.place.time_ns)
                code = getattr(message.body, "error_code", wire.ErrorCode.NONE)
                fenced[request.controller_epoch] += code == wire.ErrorCode.STALE_CONTROLLER_EPOCH
    for step in steps:
        step.fenced = fenced[step.zombie_epoch]
        if step.gone_ns and step.after is not None:
            times = sorted(t for t in answers.get(step.after.epoch, []) if t >= step.gone_ns)
            burst = times[:1]
            for at in times[1:]:
                if at - burst[-1] > _SILENCE_NS:
                    break
                burst.append(at)
            if burst:
                step.failover_ms = (burst[-1] - step.gone_ns) / 1e6
                step.control_requests = len(burst)


_SILENCE_NS = 250_000_000
