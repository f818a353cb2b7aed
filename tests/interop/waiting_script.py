"""The random requests of `waiting_twins`, made with what Kafka has told so far."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kce import wire
from tests.broker_stub.log.support import batch
from tests.interop.fetching import CONSUMER, FOLLOWER, FULL, LAST, TRANSACTION
from tests.interop.played_controller import State, leader_and_isr, stop_replica, update_metadata
from tests.interop.random_requests import UNKNOWN_ID
from tests.interop.waiting_twin import LONG_MS, SELF, SHORT_MS, Partition, Step, WaitingTwin

#: topics that stay, and their replicas
REPLICAS: Final[Mapping[str, tuple[int, ...]]] = {"w1": (SELF, FOLLOWER), "w2": (SELF,), "w3": (SELF, FOLLOWER)}
COUNTS: Final = {"w1": 3, "w2": 2}
#: comes and goes
_FLEETING: Final = "w3"
#: comes when the others wait for it
_MORE: Final = ("w1", 3)
STAYING: Final = [(name, i) for name, count in COUNTS.items() for i in range(count)]
ASKED: Final = [*STAYING, _MORE, (_FLEETING, 0), (_FLEETING, 1)]
_UNKNOWN: Final = [("w1", 9), ("missing", 0)]
_FOLLOWED: Final = [place for place in ASKED if FOLLOWER in REPLICAS[place[0]]]
TRANSACTIONAL: Final = [("w1", 0), ("w2", 0), ("w1", 1)]
#: whose sessions they are, and whether they name topics by id
_SESSIONS: Final = {"a": (CONSUMER, True), "b": (CONSUMER, False), "c": (FOLLOWER, True), "d": (FOLLOWER, False)}
_BY_ID: Final = 13
#: that leader and epoch a topic has while it is deleted
_BEING_DELETED: Final = -2
#: requests that wait, at most
_MOST: Final = 8
#: until a setting is obeyed
_EFFECT_S: Final = 0.25


@dataclass
class Known:
    """What Kafka tells after each step, by partition."""

    ends: dict[Partition, int] = field(default_factory=dict)
    #: to where consumers read, without and with transactions that are open
    high: dict[Partition, int] = field(default_factory=dict)
    stable: dict[Partition, int] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    #: next sequence numbers
    sequences: dict[Partition, int] = field(default_factory=dict)
    transaction: str = "Empty"


class Script:
    """Makes requests."""

    def __init__(self, random: Random, now_ms: int) -> None:
        self._random = random
        self._now_ms = now_ms
        self.known = Known()
        self.states: dict[Partition, State] = {}
        self._epochs = dict.fromkeys(_SESSIONS, FULL)
        self._asked_last: dict[str, int] = {}
        #: partitions of the last answer of a session
        self._told: dict[str, list[Partition]] = {name: [] for name in _SESSIONS}
        self._due: deque[Step] = deque()
        self._added: list[Partition] = []
        self._recreated = 0
        self._epoch = 1

    def begin(self) -> None:
        """The played controller takes over."""
        for name, count in COUNTS.items():
            self._become({(name, i): (SELF, REPLICAS[name]) for i in range(count)})

    def next(self, waiting: int) -> Step:
        if self._due:
            return self._due.popleft()
        kinds: dict[Callable[[], Step], float] = {
            self._produce: 14, self._follow: 8, self._transaction: 3, self._delete: 2, self._lead: 2,
            self._stop: 0.3, self._come_or_go: 0.8, self._configure: 0.3, self._expire: 0.7,
        }  # fmt: skip
        if waiting < _MOST:
            kinds |= {self._wait: 18, self._write_and_wait: 7, self._delete_and_wait: 3}
        return self._random.choices(list(kinds), list(kinds.values()))[0]()

    # fetches

    def _wait(self) -> Step:
        return self._fetch(max_wait_ms=LONG_MS, min_bytes=self._random.choice([1, 1, 200, 400, 900]))

    def _follow(self) -> Step:
        """What the follower has."""
        return self._fetch(name=self._random.choice(["", "", "c", "d"]), replica_id=FOLLOWER, max_wait_ms=0)

    def _fetch(
        self, *, max_wait_ms: int, name: str | None = None, replica_id: int = CONSUMER, min_bytes: int = 0
    ) -> Step:
        random = self._random
        name = random.choice([*_SESSIONS, "", "", "", ""]) if name is None else name
        by_id = random.random() < 0.5
        if name:
            replica_id, by_id = _SESSIONS[name]
        elif replica_id == CONSUMER and random.random() < 0.2:
            replica_id = FOLLOWER
        epoch = self._epochs[name] if name else LAST
        places = _FOLLOWED if replica_id == FOLLOWER else ASKED
        if random.random() < 0.9:
            places = [place for place in places if place in self.known.high]
        is_full = epoch in (FULL, LAST)
        count = random.randint(1, 5) if is_full else random.choice([0, 0, 1, 2])
        chosen = random.sample(places, min(count, len(places)))
        if random.random() < 0.04:
            chosen.insert(random.randrange(len(chosen) + 1), random.choice(_UNKNOWN))
        if not is_full and random.random() < 0.8:
            chosen = list(dict.fromkeys([*self._told[name], *chosen]))
        goes_on = max_wait_ms > 0 and random.random() < 0.85
        is_committed = random.random() < 0.5
        limits = None
        if goes_on:
            limits = (
                self.known.ends if replica_id == FOLLOWER else self.known.stable if is_committed else self.known.high
            )
        wanted = {place: self._wanted(place, replica_id, limits, by_id=by_id) for place in chosen}
        forgotten = random.sample(ASKED, random.choice([0, 0, 0, 0, 1])) if not is_full else []
        settings = {
            "replica_id": replica_id, "replica_state": wire.ReplicaState(replica_id=replica_id),
            "max_wait_ms": max_wait_ms, "min_bytes": min_bytes,
            "max_bytes": random.choice([1 << 20] * 6 + [100, 250, 600]),
            "isolation_level": int(is_committed), "session_epoch": epoch,
        }  # fmt: skip
        version = random.randint(*((_BY_ID, 17) if by_id else (7, _BY_ID - 1)))
        del settings["replica_id" if version >= 15 else "replica_state"]
        if name:
            self._epochs[name] = epoch + 1

        def made(twin: WaitingTwin) -> wire.Message:
            session = twin.sessions.get(name, 0) if name and epoch != FULL else 0
            return twin.fetch(session, wanted, forgotten, **settings)

        return Step(version, made, waits=max_wait_ms == LONG_MS, asking=name, epoch=epoch)

    def _wanted(
        self, place: Partition, replica_id: int, limits: Mapping[Partition, int] | None, *, by_id: bool
    ) -> wire.FetchPartition:
        """``limits``: to where it has been read."""
        random, known = self._random, self.known
        if limits is None:
            offset = known.ends.get(place, 0) - random.choice([0, 0, 0, 0, 0, 1, 1, 2, 4])
        else:
            offset = limits.get(place, 0) - random.choice([0] * 16 + [1, -1])
        start = known.starts.get(place, 0)
        state = self.states.get(place)
        epoch = state.epoch if state is not None else 0
        return wire.FetchPartition(
            partition=place[1],
            current_leader_epoch=random.choice([-1] * 60 + [epoch] * 20 + [epoch + 1]),
            fetch_offset=random.choice([0, 3, 1000]) if random.random() < 0.02 else max(offset, start, 0),
            last_fetched_epoch=epoch if by_id and random.random() < 0.05 else -1,
            log_start_offset=-1 if replica_id == CONSUMER else max(start - random.choice([0, 0, 1]), 0),
            partition_max_bytes=random.choice([1 << 20] * 8 + [1, 100, 250]),
        )

    def learn(self, step: Step, number: int, answer: Any) -> None:
        """Kafka's answer."""
        if not step.asking or isinstance(answer, str):
            return
        name = step.asking
        places = {(topic, entry["partition_index"]) for topic, _, entry in answer["entries"]}
        self._told[name] = [place for place in ASKED if place in places]
        if self._asked_last.get(name, -1) <= number and (answer["error_code"] or not answer["session"]):
            self._epochs[name] = FULL

    def sent(self, step: Step, number: int) -> None:
        if step.asking:
            self._asked_last[step.asking] = number

    # what is written

    def _produce(self) -> Step:
        return self._write(acks=self._random.choice([0, 1, 1, 1]), timeout_ms=5000)

    def _write_and_wait(self) -> Step:
        return self._write(acks=-1, timeout_ms=LONG_MS)

    def _expire(self) -> Step:
        """Not answered by anything that comes: it is waited for."""
        if self._random.random() < 0.5:
            return self._write(acks=-1, timeout_ms=SHORT_MS)
        return self._fetch(name="", max_wait_ms=SHORT_MS, min_bytes=1)

    def _write(self, *, acks: int, timeout_ms: int) -> Step:
        random, known = self._random, self.known
        is_open = known.transaction == "Ongoing" and bool(self._added) and acks != 0
        is_transactional = is_open and random.random() < 0.6
        places = self._added if is_transactional else [place for place in ASKED if place in self.states]
        chosen = random.sample(places, min(len(places), random.choice([1, 1, 2, 3])))
        if not is_transactional and random.random() < 0.04:
            chosen.append(random.choice(_UNKNOWN))
        values = {place: b"x" * random.choice([1, 50, 150, 400]) for place in chosen}
        sequences = {place: known.sequences.get(place, 0) for place in chosen}

        def made(twin: WaitingTwin) -> wire.Message:
            producer_id, epoch = twin.producer() if is_transactional else (-1, -1)
            topics = []
            for (topic, number), value in values.items():
                records = batch(
                    value, timestamp=self._now_ms, producer_id=producer_id, producer_epoch=epoch,
                    base_sequence=sequences[topic, number] if is_transactional else -1,
                    is_transactional=is_transactional,
                )  # fmt: skip
                data = wire.PartitionProduceData(index=number, records=records)
                topics.append(wire.TopicProduceData(name=topic, partition_data=(data,)))
            return wire.ProduceRequest(
                transactional_id=TRANSACTION if is_transactional else None, acks=acks, timeout_ms=timeout_ms,
                topic_data=tuple(topics),
            )  # fmt: skip

        return Step(random.choice([9, 10]), made, waits=timeout_ms == LONG_MS)

    def _transaction(self) -> Step:
        if self.known.transaction.startswith("Prepare"):
            return self._produce()
        if self.known.transaction == "Ongoing":
            led = [place for place in self._added if self.states[place].leader == SELF]
            if led != self._added:  # the markers would be sent again and again
                return self._produce()
            commits, self._added = self._random.random() < 0.5, []

            def ended(twin: WaitingTwin) -> wire.Message:
                producer_id, epoch = twin.producer()
                return wire.EndTxnRequest(
                    transactional_id=TRANSACTION, committed=commits, producer_id=producer_id, producer_epoch=epoch
                )

            return Step(3, ended, ends=led)
        self._added = self._random.sample(TRANSACTIONAL, self._random.randint(1, 3))
        topics: dict[str, list[int]] = {}
        for topic, number in self._added:
            topics.setdefault(topic, []).append(number)

        def added(twin: WaitingTwin) -> wire.Message:
            producer_id, epoch = twin.producer()
            return wire.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION, v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=tuple(
                    wire.AddPartitionsToTxnTopic(name=topic, partitions=tuple(numbers))
                    for topic, numbers in topics.items()
                ),
            )  # fmt: skip

        return Step(3, added)

    def _delete(self) -> Step:
        return self._delete_records([place for place in ASKED if FOLLOWER not in REPLICAS[place[0]]], 5000)

    def _delete_and_wait(self) -> Step:
        return self._delete_records(_FOLLOWED, LONG_MS)

    def _delete_records(self, places: Sequence[Partition], timeout_ms: int) -> Step:
        random = self._random
        topics = tuple(
            wire.DeleteRecordsTopic(
                name=place[0],
                partitions=(
                    wire.DeleteRecordsPartition(
                        partition_index=place[1],
                        offset=random.choice([-1, self.known.starts.get(place, 0) + random.choice([0, 1, 1, 2, 5])]),
                    ),
                ),
            )
            for place in random.sample(places, random.choice([1, 1, 2]))
        )
        request = wire.DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
        return Step(2, lambda _: request, waits=timeout_ms == LONG_MS)

    # what controllers do

    def _become(self, changes: Mapping[Partition, tuple[int, Sequence[int]]], *, is_new: bool = False) -> None:
        """Leaders and who is in sync, of one topic: two steps."""
        self._epoch += 1
        epoch = 0 if is_new else self._epoch
        states = {
            number: State(leader, epoch, isr, REPLICAS[topic]) for (topic, number), (leader, isr) in changes.items()
        }
        (topic,) = {topic for topic, _ in changes}
        self.states.update({(topic, number): state for number, state in states.items()})
        self._due.append(
            Step(6, lambda t: leader_and_isr(t.epoch, topic, t.topic_id(topic), states, t.alive())),
        )
        self._due.append(self._told_all(topic, states))

    def _told_all(self, topic: str, states: Mapping[int, State]) -> Step:
        return Step(7, lambda t: update_metadata(t.epoch, topic, t.topic_id(topic), states, t.alive()))

    def _led(self) -> list[Partition]:
        """Partitions whose leaders may change."""
        is_ending = self.known.transaction.startswith("Prepare")
        return [p for p in ASKED if p in self.states and not (is_ending and p in TRANSACTIONAL)]

    def _lead(self) -> Step:
        random = self._random
        led = self._led()
        elsewhere = [place for place in led if self.states[place].leader != SELF]
        place = random.choice(elsewhere if elsewhere and random.random() < 0.7 else led)
        many = [p for p in self._led() if p[0] == place[0]]
        chosen = many if random.random() < 0.2 else [place]
        changes = {}
        for topic, number in chosen:
            if FOLLOWER not in REPLICAS[topic]:
                leader, isr = (SELF, (SELF,))
            elif self.states[topic, number].leader != SELF or random.random() < 0.6:
                leader, isr = SELF, random.choice([(SELF,), (SELF, FOLLOWER)])
            else:
                leader, isr = FOLLOWER, random.choice([(FOLLOWER,), (SELF, FOLLOWER)])
            changes[topic, number] = (leader, isr)
        self._become(changes)
        return self._due.popleft()

    def _stop(self) -> Step:
        """A replica stops, and leads again later."""
        place = self._random.choice(self._led())
        topic, number = place
        self._epoch += 1
        epochs = {number: self._epoch}
        step = Step(3, lambda t: stop_replica(t.epoch, topic, epochs, delete=False))
        if self._random.random() < 0.5:
            self._due.append(self._produce())
        self._become({place: (SELF, REPLICAS[topic])})
        return step

    def _come_or_go(self) -> Step:
        random = self._random
        if _MORE not in self.states and random.random() < 0.4:
            self._become({_MORE: (SELF, REPLICAS[_MORE[0]])}, is_new=True)
            return self._due.popleft()
        places = [(_FLEETING, 0), (_FLEETING, 1)]
        if places[0] not in self.states:
            self._recreated += 1
            topic_id = uuid.uuid5(UNKNOWN_ID, f"{_FLEETING} {self._recreated}")
            self._become({place: (SELF, random.choice([(SELF,), (SELF, FOLLOWER)])) for place in places}, is_new=True)
            begin = self._due.popleft()

            def made(twin: WaitingTwin) -> wire.Message:
                twin.knows(_FLEETING, topic_id)
                return begin.made(twin)

            return Step(begin.version, made)
        gone = {number: State(_BEING_DELETED, _BEING_DELETED, (), REPLICAS[_FLEETING]) for _, number in places}
        epochs = dict.fromkeys(gone, _BEING_DELETED)
        steps = [
            self._told_all(_FLEETING, gone),
            Step(3, lambda t: stop_replica(t.epoch, _FLEETING, epochs, delete=False)),
            Step(3, lambda t: stop_replica(t.epoch, _FLEETING, epochs, delete=True)),
        ]
        for place in places:
            del self.states[place]
        if random.random() < 0.5:
            del steps[1]
        if random.random() < 0.3:
            steps.reverse()
        self._due.extend(steps)
        return self._due.popleft()

    def _configure(self) -> Step:
        change = wire.IncrementalAlterConfigsRequestAlterableConfig(
            name="min.insync.replicas", config_operation=0, value=self._random.choice(["1", "2"])
        )
        resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name="w1", configs=(change,)
        )
        request = wire.IncrementalAlterConfigsRequest(resources=(resource,))
        return Step(1, lambda _: request, pause_s=_EFFECT_S)
