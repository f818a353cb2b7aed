"""Random lives of fetch sessions, which both twins must answer alike, in the same order.

    python -m tests.interop.session_twins --seed 5 --steps 1000

Sessions of consumers and of a follower, by name and by id, are begun, go on with their next epoch or a wrong one, get
and lose partitions, and end; meanwhile records are written, in transactions too, and deleted, and a topic comes and
goes. Limits of bytes, also of those that are waited for, are such that not everything fits. First, one place for a
session is left, and fetches wait that ask for one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import trio

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.log.support import batch
from tests.interop.fetching import CONSUMER, FOLLOWER, FULL, LAST, TRANSACTION, FetchingTwin, creation
from tests.interop.twin import PATIENCE_S, differences, is_concurrent
from tests.interop.twins import command, finish, twins

Partition = tuple[str, int]

#: what all partitions of an answer may have together, of followers too
SETTINGS: Final = {"fetch.max.bytes": "1024"}
#: replicas of the partitions of topics that stay. Broker 2, which is not there, asks as a follower
_ASSIGNED: Final[Mapping[str, Sequence[tuple[int, ...]]]] = {"s1": ((1,),) * 3, "s2": ((1,),) * 2, "f1": ((1, 2),) * 2}
#: comes and goes
_FLEETING: Final = "s3"
_PARTITIONS: Final = [(name, i) for name, of in _ASSIGNED.items() for i in range(len(of))]
_ASKED: Final = [*_PARTITIONS, ("s1", 9), ("missing", 0), (_FLEETING, 0)]
_FOLLOWED: Final = [("f1", 0), ("f1", 1)]
#: whose sessions they are, and whether they name topics by id
_SESSIONS: Final = {
    "a": (CONSUMER, True), "b": (CONSUMER, False), "c": (CONSUMER, True), "d": (FOLLOWER, True),
    "e": (FOLLOWER, False),
}  # fmt: skip
_BY_ID: Final = 13
_TRANSACTIONAL: Final = ("s1", 0)
#: by default, of Kafka's shards together, each of which is given a session in turn
_PLACES: Final = 1000
#: differences, after which many follow
_ENOUGH: Final = 5
#: after that a Fetch waits for records, and that long
_PARKED_S, _WAIT_MS = 0.03, 250


class Step(NamedTuple):
    """A request, which each twin makes with what it knows. ``asking``: the session of a Fetch."""

    version: int
    made: Callable[[SessionTwin], wire.Message]
    asking: str = ""
    epoch: int = 0
    waits: bool = False


class SessionTwin(FetchingTwin):
    """Is also asked while a Fetch waits."""

    @cached_property
    def writing(self) -> SessionTwin:
        """A connection for what is written meanwhile."""
        return self.another()

    async def disconnect(self) -> None:
        await super().disconnect()
        if "writing" in self.__dict__:
            await self.__dict__.pop("writing").disconnect()

    async def answer(self, step: Step) -> Any:
        """What is compared, and what the script learns."""
        message = step.made(self)
        answer = await self.ask(message, step.version)
        while is_concurrent(answer) or _is_being_deleted(answer):
            await trio.sleep(0.01)
            answer = await self.ask(message, step.version)
        if isinstance(answer, wire.FetchResponse):
            return self.fetched(answer, step.asking, 0)
        return self.comparable(answer)


class Script:
    """Makes requests, and knows by Kafka's answers which epochs are next."""

    def __init__(self, random: Random, now_ms: int) -> None:
        self._random = random
        self._now_ms = now_ms
        self._epochs = dict.fromkeys(_SESSIONS, FULL)
        #: partitions of the last answer
        self._told: dict[str, list[Partition]] = {name: [] for name in _SESSIONS}
        self._ends: dict[Partition, int] = {}
        self._sequence = 0
        self.is_open = False
        self.has_fleeting = False

    def next(self) -> Step:
        kinds = {
            self._fetch: 20,
            self._wait: 1.5,
            self.produce: 5,
            self._transaction: 2,
            self._delete: 0.7,
            self._come_or_go: 0.4,
        }
        return self._random.choices(list(kinds), list(kinds.values()))[0]()

    def _wait(self) -> Step:
        """A Fetch that finds what is written meanwhile, or nothing."""
        return self._fetch(max_wait_ms=_WAIT_MS, min_bytes=self._random.choice([1, 1, 300]))

    def _fetch(self, **given: int) -> Step:
        random = self._random
        name = random.choice(list(_SESSIONS))
        replica_id, by_id = _SESSIONS[name]
        if random.random() < 0.02:
            by_id = not by_id
        expected = self._epochs[name]
        kind = random.choices(("next", "full", "last", "wrong", "strange"), (30, 2, 1, 1, 0.5))[0]
        epoch = {"next": expected, "full": FULL, "last": LAST, "strange": 1}.get(kind, expected + random.choice([1, 5]))
        is_full = epoch in (FULL, LAST)
        asked = _FOLLOWED if replica_id >= 0 and random.random() < 0.9 else _ASKED
        count = random.randint(0, 6) if is_full else random.choice([0, 0, 0, 1, 2])
        wanted = {place: self._wanted(place, by_id=by_id) for place in random.sample(asked, min(count, len(asked)))}
        if not is_full and random.random() < 0.7:
            wanted |= {place: self._wanted(place, by_id=by_id) for place in self._told[name]}
        forgotten = [] if is_full else random.sample(_ASKED, random.choice([0] * 12 + [1, 2, 6]))
        drops_earlier = random.random() < 0.5
        settings = {
            "replica_id": replica_id, "replica_state": wire.ReplicaState(replica_id=replica_id),
            "max_wait_ms": random.choice([0, 0, 0, 20]), "min_bytes": random.choice([0, 1, 1, 300]),
            "max_bytes": random.choice([1 << 20] * 4 + [0, 1, 100, 250, 400]),
            "isolation_level": random.choice([0, 1, 1]), "session_epoch": epoch, **given,
        }  # fmt: skip
        version = random.randint(*((_BY_ID, 17) if by_id else (7, _BY_ID - 1)))
        del settings["replica_id" if version >= 15 else "replica_state"]

        def made(twin: SessionTwin) -> wire.Message:
            session = twin.sessions.get(name, 0) if epoch != FULL or drops_earlier else 0
            return twin.fetch(77 if kind == "strange" else session, wanted, forgotten, **settings)

        return Step(version, made, name, epoch, waits=bool(given))

    def _wanted(self, place: Partition, *, by_id: bool) -> wire.FetchPartition:
        random = self._random
        offset = self._ends.get(place, 0) - random.choice([0, 0, 0, 1, 1, 2, 4])
        return wire.FetchPartition(
            partition=place[1],
            current_leader_epoch=random.choice([-1] * 12 + [0] * 4 + [1]),
            fetch_offset=random.choice([0, 3, 1000]) if random.random() < 0.1 else max(offset, 0),
            last_fetched_epoch=random.choice([-1] * 20 + [0, 5]) if by_id else -1,
            partition_max_bytes=random.choice([1 << 20] * 6 + [0, 1, 100, 250]),
        )

    def learn(self, step: Step, answer: Any) -> None:
        """Kafka's answer to a Fetch or a Produce."""
        if isinstance(answer, str):
            return
        if not step.asking:
            for topic in answer.get("responses", ()):
                for partition in topic.get("partition_responses", ()):
                    self._ends[topic["name"], partition["index"]] = partition["base_offset"] + 1
            return
        name, error = step.asking, answer["error_code"]
        told = [(name or topic_id, entry["partition_index"]) for name, topic_id, entry in answer["entries"]]
        self._told[step.asking] = [place for place in told if place in _PARTITIONS]
        if step.epoch == FULL or not error:
            self._epochs[name] = step.epoch + 1 if answer["session"] else FULL
        elif self._random.random() < 0.3:
            self._epochs[name] = FULL

    def produce(self) -> Step:
        random = self._random
        topic, number = random.choice(_PARTITIONS + [(_FLEETING, 0)] * self.has_fleeting)
        value = b"x" * random.choice([1, 50, 150, 500])
        is_transactional = self.is_open and (topic, number) == _TRANSACTIONAL
        sequence = self._sequence
        self._sequence += is_transactional

        def made(twin: SessionTwin) -> wire.Message:
            producer_id, epoch = twin.producer() if is_transactional else (-1, -1)
            records = batch(
                value, timestamp=self._now_ms, producer_id=producer_id, producer_epoch=epoch,
                base_sequence=sequence if is_transactional else -1, is_transactional=is_transactional,
            )  # fmt: skip
            data = wire.PartitionProduceData(index=number, records=records)
            return wire.ProduceRequest(
                transactional_id=TRANSACTION if is_transactional else None, acks=1, timeout_ms=5000,
                topic_data=(wire.TopicProduceData(name=topic, partition_data=(data,)),),
            )  # fmt: skip

        return Step(9, made)

    def _transaction(self) -> Step:
        self.is_open = not self.is_open
        topic, number = _TRANSACTIONAL
        commits = self._random.random() < 0.5

        def made(twin: SessionTwin) -> wire.Message:
            producer_id, epoch = twin.producer()
            who = {"producer_id": producer_id, "producer_epoch": epoch}
            if not self.is_open:
                return wire.EndTxnRequest(transactional_id=TRANSACTION, committed=commits, **who)
            return wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION, v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=(wire.AddPartitionsToTxnTopic(name=topic, partitions=(number,)),),
            )  # fmt: skip

        return Step(3, made)

    def _delete(self) -> Step:
        topic, number = self._random.choice(_PARTITIONS)
        offset = self._random.choice([0, 1, 3, 6, 12, -1])
        partition = wire.DeleteRecordsPartition(partition_index=number, offset=offset)
        topics = (wire.DeleteRecordsTopic(name=topic, partitions=(partition,)),)
        return Step(2, lambda _: wire.DeleteRecordsRequest(topics=topics, timeout_ms=5000))

    def _come_or_go(self) -> Step:
        self.has_fleeting = not self.has_fleeting
        request = creation(_FLEETING, ((1,),)) if self.has_fleeting else _deletion(_FLEETING)
        return Step(5, lambda _: request)


def _is_being_deleted(answer: wire.Message | str) -> bool:
    return (
        isinstance(answer, wire.CreateTopicsResponse) and answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    )


def _deletion(topic: str) -> wire.Message:
    return wire.DeleteTopicsRequest(topic_names=(topic,), timeout_ms=20_000)


async def _settled(twin: SessionTwin, *, has_fleeting: bool, is_open: bool) -> None:
    """Wait until the broker leads what is there, and until the markers of a transaction are written."""
    listed = tuple(
        wire.ListOffsetsTopic(name=name, partitions=(wire.ListOffsetsPartition(partition_index=number, timestamp=-1),))
        for name, number in [*_PARTITIONS, (_FLEETING, 0)]
    )
    names = tuple(wire.MetadataRequestTopic(name=name) for name in (*_ASSIGNED, _FLEETING))
    with trio.fail_after(PATIENCE_S):
        while True:
            offsets = await twin.ask(wire.ListOffsetsRequest(topics=listed), 7)
            assert isinstance(offsets, wire.ListOffsetsResponse)
            *errors, error = [bool(topic.partitions[0].error_code) for topic in offsets.topics]
            await twin.ask(wire.MetadataRequest(topics=names), 12)
            described = await twin.ask(wire.DescribeTransactionsRequest(transactional_ids=(TRANSACTION,)), 0)
            assert isinstance(described, wire.DescribeTransactionsResponse)
            state = described.transaction_states[0].transaction_state
            if not any(errors) and error != has_fleeting and (is_open or not state.startswith("Prepare")):
                return
            await trio.sleep(0.01)


async def _answers(both: Sequence[SessionTwin], step: Step, during: Callable[[], Step] | None) -> list[Any]:
    """``during``: makes a request that comes on other connections if the first one waits."""
    answers: dict[str, Any] = {}
    answered = trio.Event()

    async def ask(twin: SessionTwin) -> None:
        answers[twin.name] = await twin.answer(step)
        if len(answers) == len(both):
            answered.set()

    async with trio.open_nursery() as nursery:
        for twin in both:
            nursery.start_soon(ask, twin)
        if during is not None:
            with trio.move_on_after(_PARKED_S):
                await answered.wait()
            if not answered.is_set():
                written = during()
                for twin in both:
                    await twin.writing.answer(written)
    return [answers[twin.name] for twin in both]


def _asking(session_id: int, epoch: int, replica_id: int = CONSUMER, max_wait_ms: int = 0) -> wire.FetchRequest:
    """A Fetch of an empty partition, which waits that long."""
    topic = wire.FetchTopic(topic="f1", partitions=(wire.FetchPartition(partition=0, partition_max_bytes=1),))
    return wire.FetchRequest(
        replica_id=replica_id, session_id=session_id, session_epoch=epoch, max_wait_ms=max_wait_ms, min_bytes=1,
        topics=(topic,),
    )  # fmt: skip


async def _last_place(twin: SessionTwin, waits_as: int) -> list[tuple[int, bool]]:
    """Who gets the last place for a session: the error and whether there is one, of a Fetch that waits, and of others.

    The first of the others comes meanwhile. The next ones come when both are answered.
    """
    made: list[int] = []
    results: list[tuple[int, bool]] = []

    async def ask(asking: SessionTwin, request: wire.FetchRequest) -> None:
        answer = await asking.ask(request, 12)
        assert isinstance(answer, wire.FetchResponse)
        results.append((answer.error_code, answer.session_id > 0))
        made.append(answer.session_id)

    for _ in range(_PLACES - 1):
        await ask(twin, _asking(0, FULL))
    results.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, twin, _asking(0, FULL, waits_as, _WAIT_MS))
        await trio.sleep(_PARKED_S)
        await ask(twin.writing, _asking(0, FULL))
        await ask(twin.writing, _asking(made[-1], FULL + 1))
    await ask(twin, _asking(0, FULL))
    found = list(results)
    for session_id in set(made):
        await ask(twin, _asking(session_id, LAST))
    return found


async def run(folder: Path, *, seed: int, steps: int) -> list[str]:
    """A report on each request whose answers differ."""
    reports: list[str] = []
    async with twins(folder, kind=SessionTwin, properties=SETTINGS) as both:
        for twin in both:
            for topic, assigned in _ASSIGNED.items():
                await twin.ask(creation(topic, assigned), 5)
            opening = wire.InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=900_000)
            await twin.answer(Step(4, lambda _, opening=opening: opening))
            await _settled(twin, has_fleeting=False, is_open=False)
        for waits_as in (CONSUMER, FOLLOWER):
            places = [await _last_place(twin, waits_as) for twin in both]
            if found := list(differences(*places)):
                reports.append(f"the last place for a session, of {waits_as}\n    " + "\n    ".join(found))
        script = Script(Random(seed), int(time.time() * 1000))
        for number in range(steps):
            step = script.next()
            sent = step.made(both[0])
            answers = await _answers(both, step, script.produce if step.waits else None)
            script.learn(step, answers[0])
            if not step.asking:
                for twin in both:
                    await _settled(twin, has_fleeting=script.has_fleeting, is_open=script.is_open)
            if found := list(differences(*answers)):
                lines = "\n    ".join(found)
                reports.append(f"seed {seed}, step {number}: {step.asking} {step.version} {sent}\n    {lines}")
                if len(reports) == _ENOUGH:
                    break
    return reports


def main() -> int:
    arguments = command("python -m tests.interop.session_twins", __doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reports = trio.run(lambda: run(Path(folder), seed=arguments.seed, steps=arguments.steps))
    return finish(reports, arguments.steps)


if __name__ == "__main__":
    sys.exit(main())
