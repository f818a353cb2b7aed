"""Fetches of followers in sync are answered as all others are, only with less work.

Covers: broker_stub/handlers/in_sync.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kce import wire
from kce.broker_stub.handlers.in_sync import InSyncFetch
from kce.broker_stub.reactor import Request
from kce.wire import single_fetch
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.replication.support import RecordNode, a_node, batch, produce_request
from tests.broker_stub.support import (
    ID_A,
    Captured,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)

VERSION = 17
STEPS = {
    "follower": (2, 3),
    "produce": (0, 1, 4),
    "produce twice": (0,),
    "consume": (0,),
    "small": (2,),
    "sleep": (1, 600, 40_000),
    "lead": (1,),
    "lead the other": (1,),
    "resign": (1,),
    "isr": (0, 1),
    "replicas": (0, 1),
    "adding": (0, 1),
    "throttle": (0, 1),
    "trim": (0,),
    "roll": (0,),
    "truncate": (0,),
    "again": (2,),
    "ahead": (2,),
    "delete records": (0, 1),
    "delete": (0,),
    "unknown": (0,),
}
SCRIPTS = st.lists(
    st.one_of(
        [st.tuples(st.just(step), st.sampled_from(which)) for step, which in STEPS.items()]
        # what happens most of the time
        + [st.tuples(st.sampled_from(["follower", "produce"]), st.sampled_from([2, 3, 0]))] * 10
    ),
    min_size=5,
    max_size=60,
)
USUAL = [("follower", 2), ("follower", 3)] * 2


class Follower:
    """As far as a leader can tell."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.session = (0, 0)
        self.offsets = {0: 0, 1: 0}
        self.starts = {0: 0, 1: 0}
        self.sent: dict[int, tuple[int, ...]] = {}
        self.last_epochs = {0: -1, 1: -1}
        self.request: wire.FetchRequest | None = None
        self.captured: Captured | None = None

    def next_request(self, leader_epoch: int, min_bytes: int) -> wire.FetchRequest:
        current = {0: leader_epoch, 1: 0}
        wanted = {i: (current[i], offset, self.last_epochs[i], self.starts[i]) for i, offset in self.offsets.items()}
        session_id, epoch = self.session
        changed = {i: found for i, found in wanted.items() if epoch == 0 or self.sent.get(i) != found}
        self.sent = wanted
        entries = tuple(
            wire.FetchPartition(
                partition=i, fetch_offset=offset, partition_max_bytes=2**20, current_leader_epoch=leader_epoch,
                last_fetched_epoch=last, log_start_offset=start,
            )
            for i, (leader_epoch, offset, last, start) in changed.items()
        )  # fmt: skip
        self.request = wire.FetchRequest(
            max_wait_ms=500, min_bytes=min_bytes, max_bytes=2**20, session_id=session_id, session_epoch=epoch,
            topics=(wire.FetchTopic(topic_id=ID_A, partitions=entries),) if entries else (),
            replica_state=wire.ReplicaState(replica_id=self.broker_id),
        )  # fmt: skip
        return self.request

    def answered(self, answer: wire.FetchResponse) -> None:
        self.session = (answer.session_id, self.session[1] + 1) if answer.session_id else (0, 0)
        for topic in answer.responses:
            for data in topic.partitions:
                if data.error_code:
                    self.session = (0, 0)
                if data.diverging_epoch.epoch >= 0:
                    self.offsets[data.partition_index] = data.diverging_epoch.end_offset
                self.starts[data.partition_index] = max(0, data.log_start_offset)
                for found in wire.read_records(data.records or b"").batches:
                    self.offsets[data.partition_index] = found.last_offset + 1
                    self.last_epochs[data.partition_index] = found.partition_leader_epoch


class Script:
    """Runs steps. ``is_special``: fetches are handled as all others are."""

    def __init__(self, node: RecordNode, *, is_special: bool) -> None:
        self.node = node
        self.followers = {i: Follower(i) for i in (2, 3)}
        #: (step, what is answered)
        self.answers: list[Any] = []
        self._is_special = is_special
        self._waiting: list[tuple[Captured, int, Follower | None]] = []
        self._epoch = self._partition_epoch = self._epoch_of_other = 0
        self._isr: tuple[int, ...] = (1, 2, 3)
        self._replicas: tuple[int, ...] = (1, 2, 3)
        self._adding: tuple[int, ...] = ()

    def _handle(self, message: wire.Message, version: int, follower: Follower | None = None) -> Captured:
        request, captured = self.node.request(message, version)
        frame = wire.encode_request(message, api_version=version, correlation_id=5, client_id="test")
        single = single_fetch.decode_request(frame)
        if single is not None and not self._is_special:
            request.message = single[1]  # type: ignore[assignment]  # as its handler decodes it
        try:
            self.node.apis.handle(request)
        except Exception as e:  # noqa: BLE001 - as in the handler pool
            request.fail(e)
        self._waiting.append((captured, version, follower))
        return captured

    def collect(self, step: object) -> None:
        for waiting in list(self._waiting):
            captured, version, follower = waiting
            if captured.response is None:
                continue
            self._waiting.remove(waiting)
            payload = bytes(captured.response.payload)  # type: ignore[arg-type]
            self.answers.append((step, trio.current_time(), payload, captured.response.error_codes))
            if follower is not None:
                follower.captured = None
                answer = wire.decode_response(payload, api_key=1, api_version=version)[1]
                assert isinstance(answer, wire.FetchResponse)
                follower.answered(answer)

    async def begin(self) -> None:
        await self.node.ask(update_metadata(umr_state(1), alive=(1, 2, 3)))
        await self.node.ask(leader_and_isr(lai_state(1, is_new=True)))
        await self.state()

    async def state(self, leader: int = 1) -> None:
        """Of partition 0."""
        self._partition_epoch += 1
        state = lai_state(
            0, leader=leader, leader_epoch=self._epoch, isr=self._isr, replicas=self._replicas,
            partition_epoch=self._partition_epoch, is_new=True, adding_replicas=self._adding,
        )  # fmt: skip
        known = umr_state(0, leader=leader, leader_epoch=self._epoch, isr=self._isr)
        await self.node.ask(update_metadata(known, alive=(1, 2, 3)))
        await self.node.ask(leader_and_isr(state))

    async def step(self, step: str, which: int) -> None:
        node, name = self.node, TopicPartition("a", 0)
        quota = node.replication.quotas.leader
        log = node.record_logs.logs.get(name)
        match step:
            case "follower" | "small" if which in self.followers:
                follower = self.followers[which]
                if follower.captured is None:
                    message = follower.next_request(self._epoch, 1 if step == "follower" else 300)
                    follower.captured = self._handle(message, VERSION, follower)
            case "again":  # on another connection
                if (request := self.followers[which].request) is not None:
                    self._handle(request, VERSION)
            case "ahead":  # so is its next one
                session_id, epoch = self.followers[which].session
                request = wire.FetchRequest(
                    max_wait_ms=600, min_bytes=1, session_id=session_id, session_epoch=epoch + 1,
                    replica_state=wire.ReplicaState(replica_id=which),
                )  # fmt: skip
                self._handle(request, VERSION)
            case "delete records":
                entry = wire.DeleteRecordsPartition(partition_index=which, offset=-1)
                topics = (wire.DeleteRecordsTopic(name="a", partitions=(entry,)),)
                self._handle(wire.DeleteRecordsRequest(topics=topics, timeout_ms=5000), 2)
            case "produce":
                self._handle(produce_request(batch(b"v" * (20 + which * 50)), -1, 3000, partition=which % 2), 9)
            case "produce twice":  # once more as soon as the first is acknowledged
                append = node.replication.appends.append
                more = {name: batch(b"more")}
                append({name: batch(b"v")}, -1, 3000, lambda _: append(more, 1, 0, lambda _: None))
            case "consume":
                entry = wire.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
                topic = wire.FetchTopic(topic_id=ID_A, partitions=(entry,))
                self._handle(wire.FetchRequest(max_bytes=1000, topics=(topic,), session_epoch=-1), VERSION)
            case "sleep":
                await trio.sleep(which / 1000)
            case "lead" | "resign":
                self._epoch += 1
                await self.state(1 if step == "lead" else 2)
            case "lead the other":
                self._epoch_of_other += 1
                epochs = {"leader_epoch": self._epoch_of_other, "partition_epoch": self._epoch_of_other}
                answer = await node.ask(leader_and_isr(lai_state(1, **epochs)))
                assert answer.error_code == 0
            case "isr" | "replicas":
                chosen = (1, 2, 3) if which else (1, 3)
                self._isr = tuple(i for i in self._isr if i in chosen) if step == "replicas" else chosen
                self._replicas = chosen if step == "replicas" else self._replicas
                self._epoch += 1
                await self.state()
            case "adding":
                self._adding = (2,) if which else ()
                self._epoch += 1
                await self.state()
            case "throttle":
                quota.set_throttled("a", {0, 1} if which else None)
                quota.rate = 1
            case "trim" if log is not None:
                log.increment_log_start_offset(log.high_watermark)
            case "roll" if log is not None and log.size:
                log.roll()
            case "truncate" if log is not None and log.log_end_offset > 1:
                log.truncate_to(log.log_end_offset - 1)
                node.replication.data_plane.appended([node.partition()])
            case "delete":
                await node.ask(stop_replica((0, -2, True)))
            case "unknown":
                await node.ask(update_metadata(umr_state(0, leader=-2), alive=(1, 2, 3)))


async def trace(script: Iterable[tuple[str, int]], *, is_special: bool) -> tuple[list[Any], list[Any]]:
    async with a_node() as node:
        running = Script(node, is_special=is_special)
        await running.begin()
        for number, (step, which) in enumerate(script):
            await running.step(step, which)
            await trio.testing.wait_all_tasks_blocked()
            running.collect((number, step, which))
        await trio.sleep(60)
        running.collect("end")
        followers = [
            follower and (follower.end, follower.log_start_offset, follower.caught_up_ms, follower.fetched_ms)
            for partition in node.replicas.partitions.values()
            for follower in (partition.followers.get(i) for i in (2, 3))
        ]
        moved = node.replication.data_plane.stats.reassignment_bytes_out
        return running.answers, [followers, node.submitter.proposed, moved]


def traced(script: list[tuple[str, int]], *, is_special: bool) -> tuple[list[Any], list[Any]]:
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def run() -> tuple[list[Any], list[Any]]:
        return await trace(script, is_special=is_special)

    return trio.run(run, clock=clock)


@settings(deadline=None, max_examples=60)
@example([*USUAL, ("produce", 0), *USUAL, ("produce", 1), *USUAL, ("produce", 0), ("produce", 1), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("throttle", 1), ("produce", 0), *USUAL, ("isr", 0), ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("again", 2), ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("produce twice", 0), *USUAL, ("sleep", 600), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("ahead", 2), ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("delete", 0), ("sleep", 600), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("lead the other", 1), ("produce", 0), *USUAL, ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("produce", 0), ("truncate", 0), ("lead", 1), ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("produce", 0), *USUAL, ("truncate", 0), ("sleep", 1), *USUAL])
@example([*USUAL, ("produce", 0), ("small", 2), ("roll", 0), ("produce", 4), ("sleep", 600)])
@example([*USUAL, ("produce", 0), *USUAL, ("delete records", 0), ("produce", 0), *USUAL, ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("roll", 0), ("produce", 0), *USUAL, ("truncate", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("replicas", 0), ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), *USUAL, ("adding", 1), *USUAL, ("produce", 0), *USUAL, ("produce", 0), *USUAL])
@example([*USUAL, ("produce", 0), ("small", 2), ("produce", 0), ("produce", 0), ("produce", 0), ("sleep", 600)])
@example([*USUAL, ("produce", 0), *USUAL, ("unknown", 0), ("produce", 1), ("sleep", 600)])
@given(SCRIPTS)
def test_they_are_answered_as_others_are(script: list[tuple[str, int]]) -> None:
    found, expected = traced(script, is_special=False), traced(script, is_special=True)
    for one, other in zip(found[0], expected[0], strict=False):
        assert one == other
    assert found == expected


@pytest.mark.parametrize(
    ("before", "is_in_sync"),
    [
        ([], True),
        ([("isr", 0)], False),
        ([("isr", 0), ("produce", 0), ("follower", 2)], False),  # each of its fetches may let it join
        ([("throttle", 1)], True),  # that is asked when there is something to read
        ([("trim", 0)], True),
        ([("sleep", 40_000)], False),
    ],
)
def test_when_they_wait_as_those_in_sync(
    before: list[tuple[str, int]], is_in_sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked: list[Request] = []
    waits = InSyncFetch.__init__

    def init(self: InSyncFetch, request: Request, *args: Any) -> None:
        parked.append(request)
        waits(self, request, *args)

    monkeypatch.setattr(InSyncFetch, "__init__", init)
    traced([*USUAL, ("produce", 0), *before, ("follower", 2)], is_special=False)
    assert len(parked) == is_in_sync


async def test_who_asks_for_more_than_may_be_fetched_waits_as_others(monkeypatch: pytest.MonkeyPatch) -> None:  # B4.5
    parked: list[Request] = []
    monkeypatch.setattr(InSyncFetch, "try_complete", lambda self: parked.append(self))
    for limit, are_parked in (("1024", False), (str(2**20), True)):
        async with a_node(fetch_max_bytes=limit) as node:
            running = Script(node, is_special=False)
            await running.begin()
            for number, (step, which) in enumerate([*USUAL, ("produce", 0), *USUAL, ("produce", 0)]):
                await running.step(step, which)
                running.collect(number)
        assert bool(parked) == are_parked


async def test_a_request_for_two_partitions_is_fetched_as_one() -> None:
    """Also where a session took one of them to be idle (rules B2.19, B2.23)."""
    async with a_node() as node:
        running = Script(node, is_special=False)
        await running.begin()
        for number, (step, which) in enumerate([*USUAL, ("produce", 0), *USUAL]):
            await running.step(step, which)
            running.collect(number)
        one = produce_request(batch(b"0"), -1, 3000).topic_data[0].partition_data[0]
        both = wire.TopicProduceData(
            name="a", partition_data=(one, wire.PartitionProduceData(index=1, records=one.records))
        )
        running._handle(wire.ProduceRequest(acks=-1, timeout_ms=3000, topic_data=(both,)), 9)
        for follower in running.followers.values():
            captured = follower.captured
            assert captured is not None
            assert captured.response is not None
            answer = wire.decode_response(bytes(captured.response.payload), api_key=1, api_version=VERSION)[1]  # type: ignore[arg-type]
            assert isinstance(answer, wire.FetchResponse)
            assert sorted(data.partition_index for data in answer.responses[0].partitions if data.records) == [0, 1]
