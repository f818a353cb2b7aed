"""Requests that wait in both twins, which the same others must answer alike.

    python -m tests.interop.waiting_twins --seed 5 --steps 500

Fetches of consumers, of sessions and of a follower, writes that all in sync must have, and deletions of records wait on
connections of their own, while records, markers of transactions, deletions, and what the follower fetches come, leaders
and who is in sync change, and partitions come and go. The test plays the follower, and the controller, which takes each
ISR that is proposed. After each step both have answered the same requests with the same, have proposed the same, and
have the same offsets and producers. In answers to fetches the order counts; in others Kafka's is that of hash tables.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.wire import ErrorCode
from tests.interop.fetching import CONSUMER, TRANSACTION, creation
from tests.interop.played_controller import take_over
from tests.interop.twin import PATIENCE_S, differences
from tests.interop.twins import broker_epoch, clusters, command, directory, finish, prepare
from tests.interop.waiting_script import ASKED, COUNTS, REPLICAS, STAYING, TRANSACTIONAL, Known, Script
from tests.interop.waiting_twin import Partition, Step, WaitingTwin

#: of an answer of all partitions, also to followers
_SETTINGS: Final = {"fetch.max.bytes": "1024"}
#: a replica that is told where a log ends, whoever leads
_DEBUGGING: Final = -2
_EARLIEST, _LATEST = -2, -1
#: nothing is answered for so long after a step, where both have answered the same, or else so much longer
_QUIET_S, _LATE_S = 0.02, 2.0


@dataclass
class Seen:
    """What is observed of a twin."""

    compared: Any
    known: Known


async def _observe(twin: WaitingTwin) -> Seen:
    """Offsets, also of committed records and where logs end; producers; and the state of the transaction."""
    known = Known()
    compared: dict[str, Any] = {"proposed": sorted(twin.controller.proposed)}
    for name, replica_id, timestamp, isolation in (
        ("starts", _DEBUGGING, _EARLIEST, 0), ("ends", _DEBUGGING, _LATEST, 0), ("high", CONSUMER, _LATEST, 0),
        ("stable", CONSUMER, _LATEST, 1),
    ):  # fmt: skip
        asked = wire.ListOffsetsPartition
        topics = tuple(
            wire.ListOffsetsTopic(name=topic, partitions=(asked(partition_index=number, timestamp=timestamp),))
            for topic, number in ASKED
        )
        answer = await twin.ask(
            wire.ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=topics), 7
        )
        assert isinstance(answer, wire.ListOffsetsResponse), answer
        found = {
            (topic.name, part.partition_index): (part.error_code, part.offset)
            for topic in answer.topics
            for part in topic.partitions
        }
        compared[name] = {str(place): value for place, value in sorted(found.items())}
        getattr(known, name).update({place: offset for place, (error, offset) in found.items() if not error})
    request = wire.DescribeProducersRequest(
        topics=tuple(wire.TopicRequest(name=topic, partition_indexes=(number,)) for topic, number in TRANSACTIONAL)
    )
    producers = await twin.ask(request, 0)
    assert isinstance(producers, wire.DescribeProducersResponse), producers
    compared["producers"] = twin.comparable(producers)
    for topic in producers.topics:
        for part in topic.partitions:
            for producer in part.active_producers:
                if (producer.producer_id, producer.producer_epoch) == twin.producer():
                    known.sequences[topic.name, part.partition_index] = producer.last_sequence + 1
    described = await twin.ask(wire.DescribeTransactionsRequest(transactional_ids=(TRANSACTION,)), 0)
    assert isinstance(described, wire.DescribeTransactionsResponse), described
    known.transaction = described.transaction_states[0].transaction_state
    compared["transaction"] = known.transaction
    return Seen(compared, known)


@dataclass
class Asked:
    number: int
    step: Step
    text: str


async def _settled(both: Sequence[WaitingTwin], asked: Asked, marked: Mapping[Partition, int]) -> list[Seen]:
    """Wait until all is answered that this step answers, and look at both."""
    if not asked.step.waits:
        with trio.move_on_after(PATIENCE_S):
            while any(asked.number not in twin.answers for twin in both):  # noqa: ASYNC110 - of two
                await trio.sleep(0.002)
    await trio.sleep(asked.step.pause_s + _QUIET_S)
    begun, last = trio.current_time(), None
    while True:
        counts = [len(twin.answers) for twin in both]
        seen = [await _observe(twin) for twin in both]
        state = counts, [one.compared for one in seen]
        is_same = counts[0] == counts[1] and seen[0].compared == seen[1].compared
        is_marked = all(seen[0].known.ends.get(place, 0) > end for place, end in marked.items())
        if last == state and is_same and is_marked:
            return seen
        if trio.current_time() - begun > _LATE_S:
            return seen
        last = state
        await trio.sleep(_QUIET_S)


async def _prepare(twin: WaitingTwin) -> None:
    """Topics in ZooKeeper, and a producer."""
    for topic, count in COUNTS.items():
        await twin.ask(creation(topic, (REPLICAS[topic],) * count), 5)
    topics = tuple(
        wire.ListOffsetsTopic(name=name, partitions=(wire.ListOffsetsPartition(partition_index=i, timestamp=_LATEST),))
        for name, i in STAYING
    )
    with trio.fail_after(PATIENCE_S):
        while True:
            await twin.ask(
                wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name=name) for name in COUNTS)), 12
            )
            listed = await twin.ask(wire.ListOffsetsRequest(topics=topics), 7)
            assert isinstance(listed, wire.ListOffsetsResponse)
            if not any(topic.partitions[0].error_code for topic in listed.topics):
                break
            await trio.sleep(0.02)
        request = wire.InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=900_000)
        while True:
            answer = await twin.ask(request, 4)
            assert isinstance(answer, wire.InitProducerIdResponse)
            if not answer.error_code:
                return
            assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            await trio.sleep(0.02)


class Play:
    """The steps, and what is compared after each."""

    def __init__(self, both: Sequence[WaitingTwin], script: Script, nursery: trio.Nursery) -> None:
        self._both = both
        self._script = script
        self._nursery = nursery
        self._waiting: dict[int, Asked] = {}

    async def step(self, number: int) -> list[str]:
        """How the twins differ."""
        script = self._script
        step = script.next(len(self._waiting))
        script.sent(step, number)
        asked = Asked(number, step, f"{number}: {step.version} {step.made(self._both[0])}")
        self._waiting[number] = asked
        marked = {place: script.known.ends.get(place, 0) for place in step.ends}
        for twin in self._both:
            self._nursery.start_soon(twin.wait_for, number, step)
        seen = await _settled(self._both, asked, marked)
        script.known = seen[0].known
        for twin in self._both:
            twin.controller.proposed.clear()
        found = list(differences(*(one.compared for one in seen)))
        answers = [{one: twin.answers.pop(one) for one in sorted(twin.answers)} for twin in self._both]
        for one in sorted({*answers[0], *answers[1]}):
            waiting = self._waiting.pop(one)
            kafkas, ours = (of.get(one, "no answer") for of in answers)
            if lines := list(differences(kafkas, ours)):
                found += [f"answer to {waiting.text}", *(f"  {line}" for line in lines)]
            script.learn(waiting.step, one, kafkas)
        return [f"after {asked.text}", *found] if found else []


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on the first step after which the twins differ, if there is one."""
    async with clusters(folder, _SETTINGS) as (kafka, zookeeper, cluster), trio.open_nursery() as nursery:
        bootstrap = cluster.bootstrap_servers()
        places = (
            ("Kafka", kafka.address, str(kafka.folder / "data"), zookeeper),
            ("ours", bootstrap, await directory(bootstrap), cluster.zookeeper),
        )
        both = []
        for name, address, path, at in places:
            twin = WaitingTwin(name, address, path, await broker_epoch(at))
            await nursery.start(twin.controller.serve)
            await prepare(twin)
            await _prepare(twin)
            await take_over(at)
            both.append(twin)
        script = Script(Random(seed), int(time.time() * 1000))
        script.begin()
        play = Play(both, script, nursery)
        reports: list[str] = []
        for number in range(steps):
            if found := await play.step(number):
                reports = [f"seed {seed}, step {number}:", *found]
                break
        for twin in both:
            await twin.disconnect()
        nursery.cancel_scope.cancel()
    return ["\n    ".join(reports)] if reports else []


def main() -> int:
    arguments = command("python -m tests.interop.waiting_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
