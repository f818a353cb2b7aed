"""Random lives of transactions, which both twins must answer alike.

    python -m tests.interop.txn_twins --seed 5 --steps 1000

Unlike those of twins.py the requests of a producer build on its answers: it counts its records, knows its ids and
epochs, earlier ones too, adds partitions before it writes to them or forgets to, and its transactions end, are fenced
by other producers and time out. After each step both coordinators have written their markers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from kce import wire
from kce.wire.registry import BY_KEY
from tests.broker_stub.log.support import batch
from tests.interop.random_requests import TOPICS, Asked, Given, Node, asked, text_of
from tests.interop.twin import PATIENCE_S, Twin, compare
from tests.interop.twins import main_with_restarts, restartable_twins, versions

#: looked for so often, a transaction that times out does so within a step
SETTINGS: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
_IDS: Final = ("tx1", "tx2", "tx3")
_PARTITIONS: Final = [(name, i) for name, count in TOPICS.items() for i in range(count)]
_SHORT_MS: Final = 4000
#: differences, after which many follow
_ENOUGH: Final = 5
#: what has markers written
_ENDING: Final = ("EndTxn", "InitProducerId")
_PREPARED: Final = ("PrepareCommit", "PrepareAbort")


class Producer:
    """Of a transactional id, or one that is only idempotent, by Kafka's answers."""

    def __init__(self) -> None:
        self.ids = [(-1, -1)]
        self.sequences: dict[tuple[int, int, str, int], int] = {}
        self.added: set[tuple[str, int]] = set()

    @property
    def id(self) -> int:
        return self.ids[-1][0]

    @property
    def epoch(self) -> int:
        return self.ids[-1][1]


class Script:
    """Makes requests, and learns from Kafka's answers."""

    def __init__(self, random: Random, versions: Mapping[str, tuple[int, int]], now_ms: int) -> None:
        self._random = random
        self._versions = versions
        self._now_ms = now_ms
        self._is_short = dict.fromkeys(_IDS, False)
        self._producers: dict[str | None, Producer] = {name: Producer() for name in (*_IDS, None)}

    def next(self) -> Asked:
        random = self._random
        name = random.choice(_IDS)
        if self._producers[name].id < 0:
            return self._init(name)
        kinds = {
            self._init: 1.5, self._add: 5, self._produce: 8, self._end: 4, self._add_offsets: 1.5, self._commit: 2,
            self._ask_about: 5,
        }  # fmt: skip
        kind = random.choices(list(kinds), list(kinds.values()))[0]
        return kind(name)

    def answered(self, request: Asked, answer: wire.Message) -> None:
        match answer:
            case wire.InitProducerIdResponse() if not answer.error_code:
                producer = self._producers[request.body.values["transactional_id"]]
                producer.ids.append((answer.producer_id, answer.producer_epoch))
                producer.added.clear()
                if request.body.values["transactional_id"] is not None:
                    is_short = request.body.values["transaction_timeout_ms"] == _SHORT_MS
                    self._is_short[request.body.values["transactional_id"]] = is_short
            case wire.EndTxnResponse() if not answer.error_code:
                self._producers[request.body.values["transactional_id"]].added.clear()

    def timed_out(self) -> list[str]:
        """Transactions with a short time, which is to pass now: requests do not race with it."""
        return [name for name in self.short() if self._random.random() < 0.3]

    def short(self) -> list[str]:
        return [name for name in _IDS if self._is_short[name]]

    # requests

    def _ask(self, cls: type[Any], version: int | None = None, **values: Any) -> Asked:
        api = BY_KEY[cls.__api_key__].name
        chosen = self._random.randint(*self._versions[api]) if version is None else version
        return asked(api, chosen, Node(cls, values))

    def _who(self, name: str | None, *, writes: bool = False) -> tuple[int, int]:
        """Mostly the last id and epoch; or earlier ones, of another, or none that was given."""
        random, producer = self._random, self._producers[name]
        match random.choices(("last", "earlier", "other", "next", "none"), (20, 1, 0.5, 0.5, 0.5))[0]:
            case "earlier":
                return random.choice(producer.ids)
            case "other":
                return self._producers[random.choice(_IDS)].ids[-1]
            case "next" if not writes:  # the log would refuse the markers
                return producer.id, producer.epoch + 1
            case "none":
                return random.choice([(12345, 0), (producer.id, -1), (-1, producer.epoch)])
        return producer.ids[-1]

    def _init(self, name: str) -> Asked:
        random = self._random
        chosen = None if random.random() < 0.15 else name
        who = self._who(name) if random.random() < 0.5 else (-1, -1)
        return self._ask(
            wire.InitProducerIdRequest, transactional_id=chosen, producer_id=who[0], producer_epoch=who[1],
            transaction_timeout_ms=random.choice([60_000] * 12 + [_SHORT_MS] * 3 + [0, 900_001, 900_000]),
        )  # fmt: skip

    def _some(self, name: str, count: int = 2) -> list[tuple[str, int]]:
        random, added = self._random, sorted(self._producers[name].added)
        found = random.sample(_PARTITIONS, random.randint(1, count))
        if added and random.random() < 0.6:
            found = random.sample(added, min(len(added), count))
        if random.random() < 0.05:
            found.append(random.choice([("missing", 0), ("t1", 9)]))
        return found

    def _add(self, name: str) -> Asked:
        random = self._random
        topics = _by_topic(wire.AddPartitionsToTxnTopic, self._some(name), lambda numbers, _: {"partitions": numbers})
        version = random.choice([*range(4), 3, 3, 4, 4, 5])
        if version < 4:
            producer_id, epoch = self._who(name)
            self._producers[name].added.update(_pairs(topics))
            return self._ask(
                wire.AddPartitionsToTxnRequest, version, v3_and_below_transactional_id=name,
                v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch, v3_and_below_topics=topics,
            )  # fmt: skip
        transactions = []
        for one in random.sample(_IDS, random.choice([1, 1, 2, 3])):
            producer_id, epoch = self._who(one)
            verify_only = random.random() < 0.5
            topics = _by_topic(
                wire.AddPartitionsToTxnTopic, self._some(one), lambda numbers, _: {"partitions": numbers}
            )
            if not verify_only:
                self._producers[one].added.update(_pairs(topics))
            transactions.append(
                Node(
                    wire.AddPartitionsToTxnTransaction,
                    {"transactional_id": one, "producer_id": producer_id, "producer_epoch": epoch,
                     "verify_only": verify_only, "topics": topics},
                )
            )  # fmt: skip
        return self._ask(wire.AddPartitionsToTxnRequest, version, transactions=transactions)

    def _produce(self, name: str) -> Asked:
        random = self._random
        is_transactional = random.random() < 0.92
        who = None if not is_transactional and random.random() < 0.5 else name
        producer_id, epoch = self._who(who, writes=True)
        partitions = self._some(name, random.choice([1, 1, 2]))
        sequences = self._producers[name].sequences

        def one(numbers: list[int], topic: str) -> dict[str, Any]:
            made = []
            for number in numbers:
                place = (producer_id, epoch, topic, number)
                sequence = max(sequences.get(place, 0) + random.choices((0, -2, 1), (20, 1, 1))[0], 0)
                if producer_id < 0 or epoch < 0:
                    sequence = -1 if random.random() < 0.8 else 0
                sequences[place] = sequence + 2
                data = batch(
                    b"a", b"b", timestamp=self._now_ms, producer_id=producer_id, producer_epoch=epoch,
                    base_sequence=sequence, is_transactional=is_transactional,
                )  # fmt: skip
                made.append(Node(wire.PartitionProduceData, {"index": number, "records": data}))
            return {"partition_data": made}

        found = random.choices((name, None, random.choice(_IDS)), (20, 1 if is_transactional else 15, 1))[0]
        return self._ask(
            wire.ProduceRequest, random.randint(3, 11), transactional_id=found, acks=random.choice([*[-1] * 9, 1]),
            timeout_ms=5000, topic_data=_by_topic(wire.TopicProduceData, partitions, one),
        )  # fmt: skip

    def _end(self, name: str) -> Asked:
        producer_id, epoch = self._who(name)
        return self._ask(
            wire.EndTxnRequest, transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
            committed=self._random.random() < 0.5,
        )  # fmt: skip

    def _add_offsets(self, name: str) -> Asked:
        producer_id, epoch = self._who(name)
        return self._ask(
            wire.AddOffsetsToTxnRequest, transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
            group_id=self._random.choice(["g1", "g2", ""]),
        )  # fmt: skip

    def _commit(self, name: str) -> Asked:
        random, (producer_id, epoch) = self._random, self._who(name)
        topics = _by_topic(
            wire.TxnOffsetCommitRequestTopic, self._some(name),
            lambda numbers, _: {
                "partitions": [
                    Node(
                        wire.TxnOffsetCommitRequestPartition,
                        {"partition_index": i, "committed_offset": random.randrange(50), "committed_metadata": ""},
                    )
                    for i in numbers
                ]
            },
        )  # fmt: skip
        return self._ask(
            wire.TxnOffsetCommitRequest, transactional_id=name, producer_id=producer_id, producer_epoch=epoch,
            group_id=random.choice(["g1", "g2", ""]), topics=topics,
            generation_id=random.choice([-1, -1, -1, 0, 3]), member_id=random.choice(["", "", "", "unknown"]),
        )  # fmt: skip

    def _ask_about(self, name: str) -> Asked:
        random = self._random
        kinds = ("describe", "list", "producers", "fetch", "offsets", "committed")
        match random.choices(kinds, (3, 2, 3, 4, 2, 2))[0]:
            case "describe":
                return self._ask(wire.DescribeTransactionsRequest, transactional_ids=[*_IDS, "missing"])
            case "list":
                states = ["Ongoing", "Empty", "CompleteCommit", "CompleteAbort", "ongoing", "Dead", "PrepareEpochFence"]
                return self._ask(
                    wire.ListTransactionsRequest,
                    state_filters=random.sample(states, random.choice([0, 0, 1, 2])),
                    producer_id_filters=random.choice([[], [], [self._producers[name].id], [12345, -1]]),
                    duration_filter=random.choice([-1, -1, 0, -5, 3_600_000]),
                )
            case "producers":
                topics = _by_topic(wire.TopicRequest, _PARTITIONS, lambda numbers, _: {"partition_indexes": numbers})
                return self._ask(wire.DescribeProducersRequest, topics=topics)
            case "fetch":
                return self._fetch(random.randint(4, 17))
            case "offsets":
                topics = _by_topic(
                    wire.ListOffsetsTopic, _PARTITIONS,
                    lambda numbers, _: {
                        "partitions": [
                            Node(
                                wire.ListOffsetsPartition,
                                {"partition_index": i, "timestamp": random.choice([-1, -1, -2, -3, self._now_ms])},
                            )
                            for i in numbers
                        ]
                    },
                )  # fmt: skip
                isolation = random.choice([0, 1, 1])
                return self._ask(
                    wire.ListOffsetsRequest,
                    random.randint(2, 9),
                    replica_id=-1,
                    isolation_level=isolation,
                    topics=topics,
                )
        groups = [Node(wire.OffsetFetchRequestGroup, {"group_id": g, "topics": None}) for g in ("g1", "g2")]
        return self._ask(wire.OffsetFetchRequest, 8, groups=groups, require_stable=random.random() < 0.5)

    def _fetch(self, version: int) -> Asked:
        random = self._random
        topics = _by_topic(
            wire.FetchTopic, random.sample(_PARTITIONS, 3),
            lambda numbers, topic: {
                "topic_id": Given("topic", topic),
                "partitions": [
                    Node(
                        wire.FetchPartition,
                        {"partition": i, "current_leader_epoch": -1, "fetch_offset": random.choice([0, 0, 0, 2, 5, 9]),
                         "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20},
                    )
                    for i in numbers
                ],
            },
        )  # fmt: skip
        return self._ask(
            wire.FetchRequest, version, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 30,
            isolation_level=random.choice([0, 1, 1, 1]), session_id=0, session_epoch=-1, topics=topics,
            forgotten_topics_data=[],
        )  # fmt: skip


def text(request: Asked) -> str:
    return f"{request.api} {request.version} {text_of(request.body)}"


def _pairs(topics: Sequence[Node]) -> list[tuple[str, int]]:
    return [(topic.values["name"], number) for topic in topics for number in topic.values["partitions"]]


def _by_topic(
    cls: type[Any], pairs: Sequence[tuple[str, int]], more: Callable[[list[int], str], Mapping[str, Any]]
) -> list[Node]:
    """A struct for each topic, which has ``more`` of the numbers of its partitions."""
    topics: dict[str, list[int]] = {}
    for topic, number in pairs:
        topics.setdefault(topic, []).append(number)
    field = cls.__fields__[0].name
    return [Node(cls, {field: topic, **more(numbers, topic)}) for topic, numbers in topics.items()]


async def _settle(both: tuple[Twin, Twin], name: str, *, times_out: bool) -> list[str]:
    """Wait until the markers of a transaction are written; also until it ``times_out``. Tells of whom that is not."""
    late = []
    for twin in both:
        state = "not known"
        with trio.move_on_after(PATIENCE_S) as scope:
            while True:
                answer = await twin.ask(wire.DescribeTransactionsRequest(transactional_ids=(name,)), 0)
                assert isinstance(answer, wire.DescribeTransactionsResponse)
                state = answer.transaction_states[0].transaction_state
                if state not in _PREPARED and not (times_out and state == "Ongoing"):
                    break
                await trio.sleep(0.01)
        if scope.cancelled_caught:
            late.append(f"{twin.name}: {name} remains in {state}")
    return late


class LearningTwin(Twin):
    """Tells the script what Kafka has answered."""

    last: wire.Message | None = None

    def _learn(self, message: wire.Message, answer: wire.Message) -> None:
        super()._learn(message, answer)
        self.last = answer


async def run(folder: Path, *, seed: int, steps: int, restarts: int = 0) -> list[str]:
    """A report on each request whose answers differ. The brokers are killed and shut down so often, in turn."""
    reports: list[str] = []
    random = Random(seed)
    async with restartable_twins(folder, properties=SETTINGS, kind=LearningTwin) as (both, restart):
        known = {BY_KEY[key].name: found for key, found in (await versions(both)).items()}
        script = Script(random, known, int(time.time() * 1000))
        for step in range(steps):
            if restarts and step and step % (steps // (restarts + 1)) == 0:
                for name in script.short():
                    await _settle(both, name, times_out=True)
                await restart(random.random() < 0.5)
            request = script.next()
            found = await compare(both, request)
            assert both[0].last is not None
            script.answered(request, both[0].last)
            for name in script.timed_out():
                found += await _settle(both, name, times_out=True)
            for name in _IDS if request.api in _ENDING else ():
                found += await _settle(both, name, times_out=False)
            if found:
                lines = "\n    ".join(found)
                reports.append(f"seed {seed}, step {step}: {text(request)}\n    {lines}")
                if len(reports) == _ENOUGH:
                    break
    return reports


if __name__ == "__main__":
    sys.exit(main_with_restarts("python -m tests.interop.txn_twins", __doc__, run))
