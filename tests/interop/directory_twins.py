"""Replicas move between log directories, and both twins must tell of it alike.

    python -m tests.interop.directory_twins --seed 5 --steps 1000

Moves are repeated, change their minds, go back, go to what is no directory or offline, concern what is not there or is
made later; they are held up by a quota, or go on while records are written. In the end a directory fails.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.log.support import batch
from tests.interop.random_requests import Given
from tests.interop.twin import PATIENCE_S, Twin, differences
from tests.interop.twins import command, finish, twins

_DIRECTORIES: Final = ("a", "b", "c")
_TOPICS: Final = {"d1": 3, "d2": 2}
_FLEETING: Final = "d3"
_OURS: Final = (*_TOPICS, _FLEETING)
_PARTITIONS: Final = [(name, i) for name, count in _TOPICS.items() for i in range(count)]
#: is not in the directory that fails
_STAYING: Final = _PARTITIONS[0]
_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
#: what was copied in the beginning exceeds a rate of 1 for hours
SETTINGS: Final = {
    "log.dirs": ",".join(f"{{folder}}/dirs-{name}" for name in _DIRECTORIES),
    "alter.log.dirs.replication.quota.window.num": "36000", "replica.fetch.backoff.ms": "20",
}  # fmt: skip
_COPIED: Final = 300_000
_BROKER: Final = 4
_SET, _DELETE = 0, 1
#: of the steps those before a directory fails
_ONLINE_PART: Final = 0.8
#: after these moves need not be done, in so many of the cases
_HASTY: Final = (wire.AlterReplicaLogDirsRequest, wire.ProduceRequest)
_HASTY_PART: Final = 0.5
_ENOUGH: Final = 5
_ATTEMPTS: Final = 5


class Request:
    """One that each twin makes with its own directories."""

    def __init__(self, version: int, made: Callable[[Twin], wire.Message]) -> None:
        self.version = version
        self.made = made


def _root(twin: Twin) -> str:
    return str(twin.made(Given("directory")))


def _same(version: int, message: wire.Message) -> Request:
    return Request(version, lambda _: message)


class Script:
    """Random requests. ``waits``: moves are held up."""

    def __init__(self, random: Random, now_ms: int) -> None:
        self._random = random
        self._now_ms = now_ms
        self.waits = False
        self.has_fleeting = False
        #: a directory has failed: nobody can delete what was there
        self.is_over = False
        self._next: list[Request] = []

    def next(self, *, moves: bool) -> Request:
        """``moves``: replicas may be on their way."""
        if self._next:
            return self._next.pop()
        kinds = {self.alter: 8, self.produce: 5}
        if not moves:
            # a replica that moves keeps what its place has still to delete, or brings it back (Kafka: for good)
            kinds[self._delete] = 0 if self.waits else 1
            kinds |= {self.describe: 6, self.toggle: 0.7, self._come_or_go: 0 if self.is_over else 0.5}
        return self._random.choices(list(kinds), list(kinds.values()))[0]()

    def alter(self) -> Request:
        random = self._random
        strange = [("d1", 9), ("missing", 0), ("m" * 220, 0), (_FLEETING, 0), (_FLEETING, 1)]
        return placement(
            {
                random.choice(_PARTITIONS * 3 + strange): random.choice(["a", "b", "c"] * 5 + ["a/", "x", "a/../b", ""])
                for _ in range(random.choice([1, 1, 2, 3]))
            },
            random.choice([1, 2]),
        )

    def describe(self) -> Request:
        random = self._random
        topics = tuple(
            wire.DescribableLogDirTopic(topic=name, partitions=tuple(random.sample(range(4), 2)))
            for name in random.sample([*_OURS, "missing"], 2)
        )
        return _same(
            random.randint(1, 4), wire.DescribeLogDirsRequest(topics=None if random.random() < 0.7 else topics)
        )

    def produce(self) -> Request:
        topic, number = self._random.choice(_PARTITIONS + [(_FLEETING, 0)] * self.has_fleeting)
        return self.write(topic, number, self._random.choice([1, 100, 3000]))

    def write(self, topic: str, number: int, size: int) -> Request:
        data = wire.PartitionProduceData(index=number, records=batch(b"x" * size, timestamp=self._now_ms))
        topics = (wire.TopicProduceData(name=topic, partition_data=(data,)),)
        return _same(9, wire.ProduceRequest(acks=1, timeout_ms=5000, topic_data=topics))

    def _delete(self) -> Request:
        topic, number = self._random.choice(_PARTITIONS)
        partition = wire.DeleteRecordsPartition(partition_index=number, offset=self._random.choice([1, 3, 6, -1]))
        topics = (wire.DeleteRecordsTopic(name=topic, partitions=(partition,)),)
        return _same(2, wire.DeleteRecordsRequest(topics=topics, timeout_ms=5000))

    def _come_or_go(self) -> Request:
        if not self.has_fleeting:  # without a preference its place would be anybody's choice
            self._next = [
                creation({_FLEETING: 2}),
                placement({(_FLEETING, i): self._random.choice(_DIRECTORIES) for i in (0, 1)}),
            ]
            return self._next.pop()
        self.has_fleeting = False
        return _same(5, wire.DeleteTopicsRequest(topic_names=(_FLEETING,), timeout_ms=20_000))

    def toggle(self) -> Request:
        self.waits = not self.waits
        config = wire.IncrementalAlterConfigsRequestAlterableConfig(
            name=_RATE, config_operation=_SET if self.waits else _DELETE, value="1" if self.waits else None
        )
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=_BROKER, resource_name="1", configs=(config,)
        )
        return _same(1, wire.IncrementalAlterConfigsRequest(resources=(resource,)))


def placement(wanted: Mapping[tuple[str, int], str], version: int = 2) -> Request:
    def made(twin: Twin) -> wire.Message:
        return wire.AlterReplicaLogDirsRequest(
            dirs=tuple(
                wire.AlterReplicaLogDir(
                    path=f"{_root(twin)}/dirs-{name}" if name else "",
                    topics=(wire.AlterReplicaLogDirTopic(name=topic, partitions=(number,)),),
                )
                for (topic, number), name in wanted.items()
            )
        )

    return Request(version, made)


def creation(topics: Mapping[str, int]) -> Request:
    made = tuple(
        wire.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics.items()
    )
    return _same(5, wire.CreateTopicsRequest(topics=made, timeout_ms=20_000))


class DirectoryTwin(Twin):
    async def answer(self, request: Request) -> Any:
        """What is compared."""
        message = request.made(self)
        answer = await self.ask(message, request.version)
        while _is_being_deleted(answer):
            await trio.sleep(0.01)
            answer = await self.ask(message, request.version)
        found = self.comparable(answer)
        if isinstance(answer, wire.DescribeLogDirsResponse):
            for result in found["results"]:
                result["topics"] = [topic for topic in result["topics"] if topic["name"] in _OURS]
        return found

    async def described(self) -> list[Any]:
        found: list[Any] = (await self.answer(_same(4, wire.DescribeLogDirsRequest(topics=None))))["results"]
        return found

    async def settled(self, script: Script) -> None:
        """Wait until moves are done, or are held up, and topics are there, or not."""
        listed = tuple(
            wire.ListOffsetsTopic(
                name=name, partitions=(wire.ListOffsetsPartition(partition_index=number, timestamp=-1),)
            )
            for name, number in (("d1", 0), ("d2", 1), (_FLEETING, 0), (_FLEETING, 1))
        )
        names = tuple(wire.MetadataRequestTopic(name=name) for name in _OURS)
        config = wire.DescribeConfigsResource(resource_type=_BROKER, resource_name="1", configuration_keys=(_RATE,))
        with trio.fail_after(PATIENCE_S):
            while True:
                await self.ask(wire.MetadataRequest(topics=names), 12)
                offsets = await self.ask(wire.ListOffsetsRequest(topics=listed), 7)
                assert isinstance(offsets, wire.ListOffsetsResponse)
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                are_there = {topic.partitions[0].error_code != unknown for topic in offsets.topics[2:]}
                configs = await self.ask(wire.DescribeConfigsRequest(resources=(config,)), 4)
                assert isinstance(configs, wire.DescribeConfigsResponse)
                waits = any(entry.value == "1" for entry in configs.results[0].configs)
                moves = any(
                    partition["is_future_key"]
                    for result in await self.described()
                    for topic in result["topics"]
                    for partition in topic["partitions"]
                )
                if are_there == {script.has_fleeting} and waits == script.waits and (waits or not moves):
                    return
                await trio.sleep(0.01)

    async def fails(self, name: str) -> None:
        """A directory; nobody leads what was there."""
        path = Path(_root(self)) / f"dirs-{name}"
        found = {
            (topic["name"], partition["partition_index"]): partition["is_future_key"]
            for result in await self.described()
            for topic in result["topics"]
            for partition in topic["partitions"]
            if result["log_dir"].endswith(path.name)
        }
        lost = {place for place, is_future in found.items() if not is_future}
        shutil.rmtree(path)
        path.write_bytes(b"")
        await self.answer(placement({_STAYING: name}))  # notices it
        names = tuple(wire.MetadataRequestTopic(name=topic) for topic in _OURS)
        with trio.fail_after(PATIENCE_S):
            while True:
                known = await self.ask(wire.MetadataRequest(topics=names), 12)
                assert isinstance(known, wire.MetadataResponse)
                led = {
                    (topic.name, partition.partition_index)
                    for topic in known.topics
                    for partition in topic.partitions
                    if not partition.error_code
                }
                if not led & lost and any(result["error_code"] for result in await self.described()):
                    return
                await trio.sleep(0.01)


def _is_being_deleted(answer: wire.Message | str) -> bool:
    return (
        isinstance(answer, wire.CreateTopicsResponse) and answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    )


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on each request whose answers differ."""
    reports: list[str] = []
    async with twins(folder, kind=DirectoryTwin, properties=SETTINGS) as both:
        random = Random(seed)
        script = Script(random, int(time.time() * 1000))
        for twin, name in zip(both, ("kafka", "ours"), strict=True):
            twin._given[Given("directory")] = str(folder / name)
        first = [
            placement(dict.fromkeys(_PARTITIONS, "a")), creation(_TOPICS), script.write("d1", 0, _COPIED),
            placement({("d1", 0): "b"}),
        ]  # fmt: skip
        moves, over = False, int(steps * _ONLINE_PART)
        for step in range(steps):
            if step == over:
                script.is_over = True
                changes = [script.toggle()] if script.waits else []
                for request in [*changes, placement({_STAYING: "a"})]:
                    for twin in both:
                        await twin.answer(request)
                        await twin.settled(script)
                if not script.has_fleeting:
                    first = [creation({_FLEETING: 2})]
                    for twin in both:
                        await twin.answer(placement({(_FLEETING, 0): "c", (_FLEETING, 1): "a"}))
                for twin in both:
                    await twin.fails("c")
            request = first.pop(0) if first else script.next(moves=moves)
            sent = request.made(both[0])
            if isinstance(sent, wire.CreateTopicsRequest) and sent.topics[0].name == _FLEETING:
                script.has_fleeting = True
            for attempt in range(_ATTEMPTS):
                kafkas, ours = [await twin.answer(request) for twin in both]
                found = list(differences(kafkas, ours))
                if not found or not isinstance(sent, wire.DescribeLogDirsRequest):
                    break
                await trio.sleep(0.05 * attempt)  # what is deleted goes after its topic
            if found:
                lines = "\n    ".join(found)
                reports.append(f"seed {seed}, step {step}: {request.version} {str(sent)[:1500]}\n    {lines}")
                if len(reports) == _ENOUGH:
                    break
            moves = not first and step != over - 1 and isinstance(sent, _HASTY) and random.random() < _HASTY_PART
            for twin in both if not moves else ():
                await twin.settled(script)
    return reports


def main() -> int:
    arguments = command("python -m tests.interop.directory_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
