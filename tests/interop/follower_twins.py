"""A real broker and ours follow the same scripted leaders: both must ask them the same, and have the same logs.

    python -m tests.interop.follower_twins --seed 5 --steps 100 [--protocol 2.6]

Leaders are played (``scripted_leaders.py``). What they have of each partition changes at random from step to step:
records of several leader epochs, tails that are replaced, where the log starts, the high watermark, who leads, and
faults. In some steps the twins lead themselves, and are given records that nobody else has. After each step what the
twins have asked of every partition is compared, without what was only asked again, and where their logs start and end;
at the end, their files.
"""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.wire import ErrorCode
from kce.wire.control import NO_TOPIC_ID
from tests.interop.played_controller import State, leader_and_isr, stop_replica, update_metadata
from tests.interop.scripted_leaders import (
    EARLIEST,
    LATEST,
    LEADERS,
    PARTITIONS,
    TOPIC,
    TOPIC_ID,
    Fault,
    Leaders,
    Led,
    a_batch,
)
from tests.interop.twin import Twin
from tests.interop.twins import broker_epoch, clusters, command, directory, finish

#: the twins are broker 1
_FOLLOWER: Final = 1
_SETTINGS: Final = {
    "replica.fetch.backoff.ms": "40", "replica.fetch.wait.max.ms": "40", "replica.fetch.max.bytes": "300",
    "log.retention.ms": "-1",
}  # fmt: skip
#: a replica that is told where a log ends, whoever leads
_DEBUGGING: Final = -2
_PATIENCE_S: Final = 30.0
_ERRORS: Final = (
    ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.CORRUPT_MESSAGE,
)  # fmt: skip
_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)  # fmt: skip


class Follower:
    """A twin, and the leaders that it follows."""

    def __init__(self, twin: Twin, broker_epoch: int, *, has_ids: bool) -> None:
        self.twin = twin
        self.leaders = Leaders()
        self._broker_epoch = broker_epoch
        self._has_ids = has_ids
        self._topic_id = TOPIC_ID if has_ids else NO_TOPIC_ID

    async def introduce(self) -> None:
        """The leaders are alive, and there is the topic."""
        state = State(_FOLLOWER, 0, (_FOLLOWER,), (_FOLLOWER, *LEADERS))
        request = update_metadata(
            self._broker_epoch, TOPIC, self._topic_id, dict.fromkeys(PARTITIONS, state), self.leaders.ports
        )
        answer = await self.twin.ask(request, 7 if self._has_ids else 6)
        assert isinstance(answer, wire.UpdateMetadataResponse)
        assert answer.error_code == ErrorCode.NONE

    async def become(self, states: Mapping[int, tuple[int, int, Sequence[int]]]) -> None:
        """Of each partition: who leads, in which epoch, and who is in sync."""
        led = {
            number: State(leader, epoch, isr, (_FOLLOWER, *LEADERS)) for number, (leader, epoch, isr) in states.items()
        }
        request = leader_and_isr(self._broker_epoch, TOPIC, self._topic_id, led, self.leaders.ports)
        answer = await self.twin.ask(request, 6 if self._has_ids else 4)
        assert isinstance(answer, wire.LeaderAndIsrResponse)
        errors = [one for topic in answer.topics for one in topic.partition_errors] + [*answer.partition_errors]
        assert not answer.error_code, answer
        assert not any(one.error_code for one in errors), answer

    async def stop(self, epochs: Mapping[int, int], *, delete: bool) -> None:
        """Be no replica of these partitions, in their leader epochs."""
        request = stop_replica(self._broker_epoch, TOPIC, epochs, delete=delete)
        answer = await self.twin.ask(request, 3)
        assert isinstance(answer, wire.StopReplicaResponse)
        assert not any(one.error_code for one in answer.partition_errors), answer

    async def produce(self, number: int, batches: Sequence[bytes]) -> None:
        for records in batches:
            data = wire.PartitionProduceData(index=number, records=records)
            topic = wire.TopicProduceData(name=TOPIC, partition_data=(data,))
            answer = await self.twin.ask(wire.ProduceRequest(acks=1, timeout_ms=10_000, topic_data=(topic,)), 9)
            assert isinstance(answer, wire.ProduceResponse)
            assert not answer.responses[0].partition_responses[0].error_code, answer

    async def settled(self) -> None:
        with trio.fail_after(_PATIENCE_S):
            while not all(part.is_settled for part in self.leaders.parts.values()):  # noqa: ASYNC110 - or time has passed
                await trio.sleep(0.02)

    async def state(self) -> dict[str, Any]:
        """Of each partition: where the log starts and ends, and the high watermark."""
        found = {}
        for number in PARTITIONS:
            offsets = []
            for timestamp in (EARLIEST, LATEST):
                asked = wire.ListOffsetsPartition(partition_index=number, timestamp=timestamp)
                topic = wire.ListOffsetsTopic(name=TOPIC, partitions=(asked,))
                listed = await self.twin.ask(wire.ListOffsetsRequest(replica_id=_DEBUGGING, topics=(topic,)), 7)
                assert isinstance(listed, wire.ListOffsetsResponse)
                offsets.append(listed.topics[0].partitions[0].offset)
            wanted = wire.FetchPartition(partition=number, fetch_offset=offsets[0], partition_max_bytes=1)
            of_topic = wire.FetchTopic(topic=TOPIC, partitions=(wanted,))
            fetched = await self.twin.ask(wire.FetchRequest(topics=(of_topic,), min_bytes=0), 12)
            assert isinstance(fetched, wire.FetchResponse)
            data = fetched.responses[0].partitions[0]
            assert not data.error_code, data
            found[f"{number}"] = {
                "start": offsets[0], "end": offsets[1], "high watermark": data.high_watermark,
            }  # fmt: skip
        return found


class Script:
    """What happens, at random; the same to both."""

    def __init__(self, chance: Random, both: Sequence[Follower]) -> None:
        self._chance = chance
        self._both = both
        self._led = {number: Led() for number in PARTITIONS}
        self._values = count()
        #: records of a batch, at most. Where one is cut in two, a read in Kafka moves the high watermark to its end
        self._most = chance.choice((1, 4))

    def _new_values(self) -> list[bytes]:
        size = self._chance.randint(1, self._most)
        return [b"%d" % next(self._values) * self._chance.choice((1, 1, 20)) for _ in range(size)]

    async def begin(self) -> str:
        for led in self._led.values():
            self._append(led, led.epoch)
        return await self._lead(PARTITIONS)

    async def step(self) -> str:
        chosen = sorted(self._chance.sample(PARTITIONS, self._chance.randint(1, len(PARTITIONS))))
        kind = self._chance.choice(("more", "more", "leader", "leader", "leader", "own", "stop"))
        if kind == "more":
            for number in chosen:
                self._change(self._led[number])
            faults = self._tell(chosen)
            for follower in self._both:
                for number in chosen:
                    part = follower.leaders.parts[number]
                    part.idle = 0
                    part.last_asked = trio.current_time()
            return f"more {self._text(chosen)} {faults}"
        if kind in ("own", "stop"):
            said = await (self._own(chosen) if kind == "own" else self._stop(chosen))
            return f"{said}; {await self._lead(chosen)}"
        for number in chosen:
            led = self._led[number]
            if self._chance.random() < 0.7:
                led.cut(self._chance.randint(led.start, led.end))
            led.high_watermark = min(led.high_watermark, led.end)
            led.epoch += self._chance.randint(1, 3)
            if self._chance.random() < 0.8:
                self._append(led, led.epoch)
            self._change(led)
        return await self._lead(chosen)

    def _append(self, led: Led, epoch: int) -> None:
        for _ in range(self._chance.randint(1, 4)):
            led.append(epoch, self._new_values())

    def _change(self, led: Led) -> None:
        if self._chance.random() < 0.6:
            self._append(led, led.epoch)
        what = self._chance.random()
        if what < 0.15:
            led.raise_start(self._chance.randint(led.start, led.end))
        elif what < 0.2:
            led.raise_start(led.end + self._chance.randint(1, 9))
            self._append(led, led.epoch)
        if self._chance.random() < 0.7:
            led.high_watermark = self._chance.randint(led.start, led.end)
        led.high_watermark = max(led.start, led.high_watermark)

    async def _own(self, chosen: Sequence[int]) -> str:
        """The twins lead, and take records."""
        given = {}
        for number in chosen:
            led = self._led[number]
            led.epoch += self._chance.randint(1, 2)
            batches = [a_batch(0, -1, self._new_values()).data for _ in range(self._chance.randint(0, 3))]
            isr = self._chance.choice(((_FOLLOWER,), (_FOLLOWER, 2)))
            given[number] = led.epoch, isr, batches
        for follower in self._both:
            await follower.become({number: (_FOLLOWER, epoch, isr) for number, (epoch, isr, _) in given.items()})
            for number, (_, _, batches) in given.items():
                await follower.produce(number, batches)
        for number in chosen:
            led = self._led[number]
            led.epoch += 1
            if self._chance.random() < 0.7:
                self._append(led, led.epoch)
        return "own " + ", ".join(f"{n}: epoch {epoch}, isr {isr}, {len(b)}" for n, (epoch, isr, b) in given.items())

    async def _stop(self, chosen: Sequence[int]) -> str:
        """The twins are no replicas for a moment, with their records or without."""
        delete = self._chance.random() < 0.5
        for number in chosen:
            self._led[number].epoch += 1
        for follower in self._both:
            await follower.stop({number: self._led[number].epoch for number in chosen}, delete=delete)
        for number in chosen:
            self._led[number].epoch += 1
            self._change(self._led[number])
        return f"stop {chosen} {'with' if delete else 'without'} deletion"

    async def _lead(self, chosen: Sequence[int]) -> str:
        """Others lead."""
        for number in chosen:
            self._led[number].leader = self._chance.choice(LEADERS)
        for follower in self._both:
            leaders = follower.leaders
            leaders.thawed = trio.Event()
        states = {
            number: (self._led[number].leader, self._led[number].epoch, (self._led[number].leader,))
            for number in chosen
        }
        faults = self._tell(chosen)
        for follower in self._both:
            for number in chosen:
                part = follower.leaders.parts[number]
                part.asked.clear()
                part.idle = 0
                part.last_asked = trio.current_time()
            await follower.become(states)
            follower.leaders.thawed.set()
        return f"lead {self._text(chosen)} {faults}"

    def _tell(self, chosen: Sequence[int]) -> str:
        """The leaders have that now, and faults."""
        said = []
        for number in chosen:
            led = self._led[number]
            fetches = [self._fault() for _ in range(self._chance.choice((0, 0, 1, 1, 2, 3)))]
            offsets, ends = ([self._other_fault() for _ in range(self._chance.choice((0, 0, 1, 2)))] for _ in range(2))
            for follower in self._both:
                part = follower.leaders.parts[number]
                part.led = Led(led.leader, led.epoch, led.start, led.end, led.high_watermark, [*led.batches])
                part.fetches, part.offsets, part.ends = deque(fetches), deque(offsets), deque(ends)
            said.append(f"{number}: {fetches} {offsets} {ends}")
        return "; ".join(said)

    def _text(self, chosen: Sequence[int]) -> str:
        return "; ".join(
            f"{number}: leader {led.leader} epoch {led.epoch} [{led.start}, {led.end}) hw {led.high_watermark} "
            f"{[(batch.base, batch.epoch) for batch in led.batches]}"
            for number, led in self._led.items()
            if number in chosen
        )

    def _fault(self) -> Fault:
        chance = self._chance
        match chance.randrange(12 if self._most == 1 else 11):
            case 0 | 1 | 2:
                return "error", chance.choice(_ERRORS)
            case 3:
                return "error", ErrorCode.OFFSET_OUT_OF_RANGE
            case 4:
                return ("close",)
            case 5:
                return "whole", chance.choice(_SESSION_ERRORS)
            case 6:
                return "marks", chance.randint(-6, 6), chance.choice((0, 0, chance.randint(-3, 3)))
            case 7:
                return "damage", chance.randrange(1000)
            case 8:
                return "part", chance.randrange(1000)
            case 9:
                return "later", chance.choice((-3, -1, 1, 2, 5))
            case 10:
                return chance.choice((("error", ErrorCode.FENCED_LEADER_EPOCH), ("newer",)))
            case _:
                return "diverge", chance.randint(0, 2), chance.randint(0, 8)

    def _other_fault(self) -> Fault:
        match self._chance.randrange(8):
            case 0:
                return ("close",)
            case 1:
                return "error", ErrorCode.FENCED_LEADER_EPOCH
            case 2 | 3 | 4 if self._most == 1:
                return "value", self._chance.randint(-6, 6)
            case _:
                return "error", self._chance.choice(_ERRORS)


async def _compare(both: Sequence[Follower]) -> list[str]:
    async with trio.open_nursery() as nursery:
        for follower in both:
            nursery.start_soon(follower.settled)
    kafka, ours = both
    found = [
        f"after {fault}: Kafka's {asked}, ours {ours.leaders.renewed[fault]}"
        for fault, asked in kafka.leaders.renewed.items()
        if asked != ours.leaders.renewed.get(fault, asked)
    ]
    for number in PARTITIONS:
        one, other = (follower.leaders.parts[number].asked for follower in both)
        if one != other:
            found.append(f"{number} asked:\n      Kafka {one}\n      ours  {other}")
    kafkas, own = await kafka.state(), await ours.state()
    found += [
        f"{number}: Kafka's {kafkas[number]}, ours {own[number]}" for number in kafkas if kafkas[number] != own[number]
    ]
    for follower in both:
        for part in follower.leaders.parts.values():
            del part.asked[:-1]
    return found


def _files(folder: Path) -> dict[str, Any]:
    """Logs that have never had a record are left out: ours have no files."""
    found: dict[str, Any] = {}
    for log in folder.glob(f"{TOPIC}-?"):
        segments = {path.name: path.read_bytes() for path in log.glob("*.log")}
        if [*segments.items()] != [("00000000000000000000.log", b"")]:
            epochs = log / "leader-epoch-checkpoint"
            found[log.name] = segments, epochs.read_text() if epochs.exists() else "0\n0\n"
    for name in ("replication-offset", "log-start-offset", "recovery-point-offset"):
        path = folder / f"{name}-checkpoint"
        lines = path.read_text().splitlines() if path.exists() else []
        found[path.name] = sorted(line for line in lines if line.startswith(f"{TOPIC} ") and not line.endswith(" 0"))
    return found


@asynccontextmanager
async def _followers(
    folder: Path, protocol: str
) -> AsyncIterator[tuple[tuple[Follower, Follower], Callable[[], Awaitable[list[Path]]]]]:
    properties = {**_SETTINGS, "inter.broker.protocol.version": protocol}
    async with clusters(folder, properties) as (kafka, zookeeper, cluster), trio.open_nursery() as nursery:
        has_ids = protocol >= "2.8"
        bootstrap = cluster.bootstrap_servers()
        own = await directory(bootstrap)
        places = {
            "Kafka": (kafka.address, str(kafka.folder / "data"), zookeeper),
            "ours": (bootstrap, own, cluster.zookeeper),
        }
        followers = []
        for name, (address, path, at) in places.items():
            epoch = await broker_epoch(at)
            follower = Follower(Twin(name, address, path, epoch), epoch, has_ids=has_ids)
            await nursery.start(follower.leaders.serve)
            await follower.introduce()
            followers.append(follower)

        async def stop() -> list[Path]:
            for follower in followers:
                await follower.twin.disconnect()
            await kafka.shut_down()
            await cluster.stop(1)
            return [kafka.folder / "data", Path(own)]

        yield (followers[0], followers[1]), stop
        for follower in followers:
            await follower.twin.disconnect()
        nursery.cancel_scope.cancel()


async def run(folder: Path, *, seed: int, steps: int, protocol: str = "3.9") -> list[str]:
    """A report on the first step after which the twins differ, if there is one."""
    async with _followers(folder, protocol) as (both, stop):
        script = Script(Random(f"{seed} {protocol}"), both)
        said = [await script.begin()]
        for step in range(steps):
            found = await _compare(both)
            if found:
                return [f"seed {seed}, step {step}:", *said[-2:], *(f"    {line}" for line in found)]
            said.append(await script.step())
        await _compare(both)
        kafkas, ours = (_files(path) for path in await stop())
    return [
        f"{name}: Kafka's {kafkas.get(name)}, ours {ours.get(name)}"
        for name in sorted({*kafkas, *ours})
        if kafkas.get(name) != ours.get(name)
    ]


def main() -> int:
    parser = command("python -m tests.interop.follower_twins", __doc__)
    parser.add_argument("--protocol", default="3.9", help="inter.broker.protocol.version (default: 3.9)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(partial(run, Path(folder), seed=given.seed, steps=given.steps, protocol=given.protocol))
    return finish(reports, given.steps)


if __name__ == "__main__":
    sys.exit(main())
