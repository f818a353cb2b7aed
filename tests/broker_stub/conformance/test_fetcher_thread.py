"""AFT: a follower's fetcher and a leader (section 12d of docs/broker-semantics.md; rules B5.4 to B5.25, B5.41).

Upstream runs one round of a thread at a time, against a leader of its own. Here the leader is a node, and the fetcher
runs by itself, with truncation by Fetch and, before 2.7, by OffsetForLeaderEpoch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.log import Log
from kce.broker_stub.replication.fetcher import FetchState, FollowerPort
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.wire import ErrorCode
from tests.broker_stub.log.support import a_log, batch, everything
from tests.broker_stub.replication.support import A0, RecordNode
from tests.broker_stub.replication.test_fetcher import AT_LEADER
from tests.broker_stub.support import ID_A, config, lai_state, leader_and_isr, umr_state, update_metadata

kafka = pytest.mark.kafka
both_protocols = pytest.mark.parametrize("ibp", ["3.9", "2.6"])
LEADER = 2
A1 = A0._replace(partition=1)
BACKOFF_MS = 250


class Link:
    """A connection to the leader; ``pair.change`` may change its answers."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._answers: list[bytes] = []

    async def send_frame(self, payload: bytes) -> None:
        header, request = wire.decode_request(payload)
        self._pair.requests.append(request)
        answer = await self._pair.leader.ask(request, header.api_version)
        answer = self._pair.change(request, answer)
        self._answers.append(
            wire.encode_response(answer, api_version=header.api_version, correlation_id=header.correlation_id)
        )

    async def receive_frame(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._answers.pop(0)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Pair:
    """Broker 2 leads a-0, broker 1 follows with ``log``."""

    def __init__(self, nursery: trio.Nursery, ibp: str) -> None:
        self.leader = RecordNode(nursery, {}, None, ("/logs",), broker_id=LEADER)  # type: ignore[arg-type]
        self.log = a_log()
        self.log.assign_topic_id(ID_A)
        self.requests: list[Any] = []
        #: what becomes of the leader's answer to a request
        self.change: Callable[[Any, Any], Any] = lambda request, answer: answer
        settings = {
            "inter_broker_protocol_version": ibp,
            "log_message_format_version": "0.10.2",  # as old as the oldest of them
            "replica_fetch_backoff_ms": str(BACKOFF_MS),
        }
        self.fetchers = FetcherManager(
            FollowerPort(config(1, **settings), self._dial, lambda: -1, lambda partition: None)
        )

    async def _dial(self, host: str, port: int, *, to: int, listener: str) -> Any:
        await trio.lowlevel.checkpoint()
        return Link(self)

    @property
    def leaders_log(self) -> Log:
        return self.leader.record_logs.logs[A0]

    async def lead(self, epoch: int, *batches: bytes, start: int = 0) -> None:
        """The leader has these batches, and this epoch."""
        log = self.leader.record_logs.get_or_create_log(A0, is_new=True, topic_id=ID_A)
        if start:
            log.truncate_fully(start)
        for one in batches:
            log.append_as_follower(one)
        await self.new_epoch(epoch)

    async def lead_other(self, epoch: int, *batches: bytes) -> None:
        """It leads a-1, too."""
        log = self.leader.record_logs.get_or_create_log(A1, is_new=True, topic_id=ID_A)
        for one in batches:
            log.append_as_follower(one)
        state: dict[str, Any] = {"leader": LEADER, "isr": (LEADER,), "replicas": (1, LEADER), "leader_epoch": epoch}
        await self.leader.ask(update_metadata(umr_state(0, **state), umr_state(1, **state)))
        await self.leader.ask(leader_and_isr(lai_state(1, **state)))

    async def new_epoch(self, epoch: int) -> None:
        known = self.leader.replicas.partitions.get(A0)
        await self.leader.lead(
            leader=LEADER, isr=(LEADER,), replicas=(1, LEADER), epoch=epoch,
            partition_epoch=0 if known is None else known.partition_epoch + 1,
        )  # fmt: skip

    def has(self, *batches: bytes, high_watermark: int = 0) -> None:
        """The follower's log."""
        for one in batches:
            self.log.append_as_follower(one)
        self.log.set_high_watermark(high_watermark)

    def follow(self, epoch: int, topic_id: UUID | None = ID_A) -> None:
        self.fetchers.follow(A0, self.log, LEADER, epoch, AT_LEADER, topic_id)

    @property
    def state(self) -> FetchState | None:
        (fetcher,) = self.fetchers._fetchers.values()
        return fetcher.partitions.get(A0)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not condition():  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.05)

    async def until_equal(self) -> None:
        """Both have the same log, with the same ends."""

        def ends(log: Log) -> tuple[int, int, int, bytes]:
            return log.log_start_offset, log.log_end_offset, log.high_watermark, everything(log)

        await self.until(lambda: ends(self.log) == ends(self.leaders_log))
        assert self.fetchers.failed_partitions == 0

    async def until_failed(self) -> None:
        await self.until(lambda: self.fetchers.failed_partitions == 1)
        assert self.state is None


@asynccontextmanager
async def pair(ibp: str = "3.9") -> AsyncIterator[Pair]:
    async with trio.open_nursery() as nursery:
        made = Pair(nursery, ibp)
        nursery.start_soon(made.leader.replication.run)
        nursery.start_soon(made.fetchers.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


def at(offset: int, epoch: int, *values: bytes) -> bytes:
    return batch(*values, base_offset=offset, leader_epoch=epoch)


A, B, C = (at(0, 0, b"a"), at(1, 2, b"b"), at(2, 4, b"c"))


def is_fetch(request: Any) -> bool:
    return isinstance(request, wire.FetchRequest)


def with_data(answer: wire.FetchResponse, **fields: Any) -> wire.FetchResponse:
    """The answer, with these fields in the data of its partition."""
    (topic,) = answer.responses
    data = dataclasses.replace(topic.partitions[0], **fields)
    return dataclasses.replace(answer, responses=(dataclasses.replace(topic, partitions=(data,)),))


def once(kind: type[wire.Message], change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Change the first answer of a kind."""
    done: list[bool] = []

    def changed(request: Any, answer: Any) -> Any:
        if isinstance(request, kind) and not done:
            done.append(True)
            return change(answer)
        return answer

    return changed


@kafka("AFT-3")
@both_protocols
async def test_records_and_the_high_watermark_arrive(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(0, at(0, 0, b"a", b"b"))
        p.follow(0)
        await p.until_equal()
        assert (p.log.log_end_offset, p.log.high_watermark) == (2, 2)


@kafka("AFT-4")
@both_protocols
async def test_a_failure_delays_the_next_fetch(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(0, at(0, 0, b"a", b"b"))
        p.change = once(wire.FetchRequest, lambda answer: wire.FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_ID))
        began = trio.current_time()
        p.follow(0)
        await wait_all_tasks_blocked()
        assert len(list(filter(is_fetch, p.requests))) == 1
        await p.until_equal()
        assert trio.current_time() - began >= BACKOFF_MS / 1000


@kafka("AFT-5")
@both_protocols
@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID])
async def test_only_a_partition_in_error_is_delayed(ibp: str, code: ErrorCode, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(0, A)
        await p.lead_other(0, A)
        other = a_log()
        other.assign_topic_id(ID_A)

        def refuse(answer: Any) -> Any:
            (topic,) = answer.responses
            data = tuple(
                dataclasses.replace(one, error_code=code, records=b"") if one.partition_index == 0 else one
                for one in topic.partitions
            )
            assert len(data) == 2
            return dataclasses.replace(answer, responses=(dataclasses.replace(topic, partitions=data),))

        p.change = once(wire.FetchRequest, refuse)
        p.follow(0)
        p.fetchers.follow(A1, other, LEADER, 0, AT_LEADER, ID_A)
        await p.until(lambda: other.log_end_offset == 1)
        (fetcher,) = p.fetchers._fetchers.values()
        now = trio.current_time()
        assert [fetcher.partitions[tp].delayed_until > now for tp in (A0, A1)] == [True, False]
        assert p.log.log_end_offset == 0
        await p.until_equal()


@kafka("AFT-6")
@both_protocols
async def test_a_fenced_epoch_when_the_follower_begins(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(1, at(0, 1, b"a", b"b"))
        p.follow(0)
        await p.until_failed()
        assert (p.log.log_end_offset, p.log.high_watermark) == (0, 0)


@kafka("AFT-7")
@both_protocols
async def test_an_epoch_that_is_fenced_later(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(0, at(0, 0, b"a", b"b"))
        p.follow(0)
        await p.until_equal()
        await p.new_epoch(1)
        await p.until_failed()


@kafka("AFT-8")
async def test_the_leader_learns_of_the_epoch_while_the_follower_truncates(autojump_clock: MockClock) -> None:
    async with pair("2.6") as p:
        await p.lead(0, at(0, 0, b"a"))
        p.has(at(0, 0, b"a"))  # only a log with epochs asks
        p.follow(1)
        await trio.sleep(2 * BACKOFF_MS / 1000)
        assert p.state is not None
        assert p.state.is_truncating
        assert not any(map(is_fetch, p.requests))
        await p.new_epoch(1)
        await p.until(lambda: p.state is not None and not p.state.is_truncating)
        await p.until_equal()


@kafka("AFT-9")
@both_protocols
async def test_the_leader_learns_of_the_epoch_while_the_follower_fetches(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(1, at(0, 0, b"a"))
        p.follow(1)
        await p.until_equal()
        rewound = [True]

        def unknown(request: Any, answer: Any) -> Any:
            if not (is_fetch(request) and rewound and answer.responses):
                return answer
            return with_data(answer, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, records=b"", high_watermark=-1)

        p.change = unknown
        p.leaders_log.append_as_follower(at(1, 0, b"b"))
        p.leader.replication.data_plane.appended([p.leader.partition()])
        await trio.sleep(3)
        assert p.log.log_end_offset == 1
        assert p.state is not None
        assert not p.state.is_truncating
        rewound.clear()
        await p.until(lambda: p.log.log_end_offset == 2)


@kafka("AFT-10")
@both_protocols
async def test_logs_without_an_epoch_in_common(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(5, at(0, 1, b"a"), at(1, 3, b"b"), at(2, 5, b"c"))
        p.has(A, B, C)
        p.follow(5)
        await p.until_equal()


@kafka("AFT-11")
async def test_without_requests_for_epochs_the_high_watermark_counts(autojump_clock: MockClock) -> None:
    async with pair("0.10.2") as p:
        await p.lead(5)
        p.has(A, B, C, high_watermark=2)
        ends: list[int] = []
        p.change = lambda request, answer: (ends.append(p.log.log_end_offset), answer)[1]
        p.follow(5)
        await p.until(lambda: bool(p.requests))
        assert is_fetch(p.requests[0])
        assert p.requests[0].topics[0].partitions[0].fetch_offset == 2
        assert ends[0] == 2


@kafka("AFT-12")
@both_protocols
async def test_without_epochs_the_high_watermark_counts(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(5)
        p.has(A, B, C, high_watermark=2)
        p.log._epochs.clear()
        ends: list[int] = []
        p.change = lambda request, answer: (ends.append(p.log.log_end_offset), answer)[1]
        p.follow(5)
        await p.until(lambda: bool(p.requests))
        assert is_fetch(p.requests[0])
        assert p.requests[0].topics[0].partitions[0].fetch_offset == 2
        assert ends[0] == 2


@kafka("AFT-14")
@both_protocols
async def test_the_same_epoch_again_changes_nothing(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(5, at(0, 1, b"a"), at(1, 3, b"b"), at(2, 5, b"c"))
        p.follow(5)
        await p.until_equal()
        state, truncations = p.state, p.log.truncations
        p.follow(5)
        await trio.sleep(1)
        assert p.state is state
        assert p.log.truncations == truncations
        await p.until_equal()


@kafka("AFT-15")
async def test_a_diverging_epoch_of_a_partition_that_is_removed_meanwhile(autojump_clock: MockClock) -> None:
    async with pair() as p:
        await p.lead(5, A, B, at(2, 5, b"d"))
        p.has(A, B, C, high_watermark=2)

        def removes(answer: Any) -> Any:
            assert answer.responses[0].partitions[0].diverging_epoch.end_offset == 2
            p.fetchers.stop([A0])
            return answer

        p.change = once(wire.FetchRequest, removes)
        p.follow(5)
        await trio.sleep(1)
        assert (p.log.log_end_offset, p.log.truncations) == (3, 0)
        p.follow(5)
        await p.until_equal()
        assert p.log.truncations == 1


@kafka("AFT-16")
@both_protocols
async def test_the_leaders_log_is_shorter(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(4, A, B, C)
        p.has(A, B, C)
        p.follow(4)
        await p.until_equal()
        p.leaders_log.truncate_fully(0)  # without a new epoch
        p.leader.partition().epoch_start_offset = 0
        p.leader.replication.data_plane.role_changed(p.leader.partition())
        await p.until(lambda: p.log.log_end_offset == 0)
        assert (p.log.log_start_offset, p.log.high_watermark) == (0, 0)


@kafka("AFT-17")
@both_protocols
async def test_a_fenced_epoch_in_a_request_for_offsets(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(4, at(1, 2, b"b"), at(2, 4, b"c"), start=1)

        def fenced(request: Any, answer: Any) -> Any:
            if not isinstance(request, wire.ListOffsetsRequest) or request.topics[0].partitions[0].timestamp != -2:
                return answer
            (topic,) = answer.topics
            data = dataclasses.replace(topic.partitions[0], error_code=ErrorCode.FENCED_LEADER_EPOCH, offset=-1)
            return dataclasses.replace(answer, topics=(dataclasses.replace(topic, partitions=(data,)),))

        p.change = fenced
        p.follow(4)
        await p.until_failed()
        assert p.log.log_end_offset == 0
        assert isinstance(p.requests[-1], wire.ListOffsetsRequest)


@kafka("AFT-18")
@both_protocols
async def test_the_leaders_log_starts_later(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(4, at(2, 4, b"c"), start=2)
        p.has(A)
        p.follow(4)
        await p.until_equal()
        assert (p.log.log_start_offset, p.log.log_end_offset) == (2, 3)


@kafka("AFT-19")
@both_protocols
async def test_an_unknown_epoch_in_a_request_for_offsets(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(4, at(2, 4, b"c"), start=2)
        p.has(A)

        def unknown(answer: Any) -> Any:
            (topic,) = answer.topics
            data = dataclasses.replace(topic.partitions[0], error_code=ErrorCode.UNKNOWN_LEADER_EPOCH, offset=-1)
            return dataclasses.replace(answer, topics=(dataclasses.replace(topic, partitions=(data,)),))

        p.change = once(wire.ListOffsetsRequest, unknown)
        p.follow(4)
        await p.until_equal()
        assert sum(isinstance(request, wire.ListOffsetsRequest) for request in p.requests) == 3


@kafka("AFT-20")
@both_protocols
async def test_a_damaged_batch_is_fetched_again(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(0, at(0, 0, b"a", b"b"))

        def damage(answer: Any) -> Any:
            records = bytearray(answer.responses[0].partitions[0].records)
            for place in (15, 30):
                records[place] ^= 0x5B
            return with_data(answer, records=bytes(records))

        p.change = once(wire.FetchRequest, damage)
        p.follow(0)
        await p.until_equal()
        assert p.log.log_end_offset == 2


@pytest.mark.parametrize(
    "epoch_of_leader",
    [pytest.param(1, marks=kafka("AFT-21")), pytest.param(0, marks=kafka("AFT-22"))],
)
async def test_the_epoch_changes_while_the_end_of_an_epoch_is_asked(
    epoch_of_leader: int, autojump_clock: MockClock
) -> None:
    """Its answer, or that it is fenced, is about the epoch before."""
    async with pair("2.6") as p:
        await p.lead(epoch_of_leader, at(0, 0, b"c"))
        p.has(at(0, 0, b"c"))

        def changes(answer: Any) -> Any:
            p.fetchers.stop([A0])
            p.follow(1)
            return answer

        p.change = once(wire.OffsetForLeaderEpochRequest, changes)
        p.follow(0)
        await p.until(lambda: p.state is not None and p.state.leader_epoch == 1)
        assert p.fetchers.failed_partitions == 0
        if epoch_of_leader == 0:
            await p.new_epoch(1)
        await p.until_equal()
        assert p.state is not None
        assert not p.state.is_truncating


@kafka("AFT-23")
async def test_a_partition_that_is_removed_while_the_end_of_an_epoch_is_asked(autojump_clock: MockClock) -> None:
    async with pair("2.6") as p:
        await p.lead(0, at(0, 0, b"c"))
        p.has(at(0, 0, b"c"), at(1, 0, b"d"))

        def removes(answer: Any) -> Any:
            p.fetchers.stop([A0])
            return answer

        p.change = once(wire.OffsetForLeaderEpochRequest, removes)
        p.follow(0)
        await trio.sleep(2)
        assert p.state is None
        assert (p.log.truncations, p.fetchers.failed_partitions) == (0, 0)
        assert not any(map(is_fetch, p.requests))


@pytest.mark.parametrize(
    ("method", "ibp"),
    [
        pytest.param("append_as_follower", "3.9", marks=kafka("AFT-25")),
        pytest.param("append_as_follower", "2.6", marks=kafka("AFT-25")),
        pytest.param("truncate_to", "2.6", marks=kafka("AFT-26")),
    ],
)
async def test_one_partition_fails(
    method: str, ibp: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Others are fetched, and a new epoch revives it."""
    async with pair(ibp) as p:
        await p.lead(0, A)
        await p.lead_other(0, A)
        other = a_log()
        other.assign_topic_id(ID_A)
        working = getattr(Log, method)

        def fails(log: Log, *args: Any, **more: Any) -> Any:
            if log is p.log:
                raise RuntimeError("it fails")
            return working(log, *args, **more)

        with monkeypatch.context() as patched:
            patched.setattr(Log, method, fails)
            p.follow(0)
            p.fetchers.follow(A1, other, LEADER, 0, AT_LEADER, ID_A)
            await p.until_failed()
            await p.until(lambda: other.log_end_offset == 1)
            assert p.fetchers.failed_partitions == 1
        await p.new_epoch(1)
        p.follow(1)
        assert (p.state is not None, p.fetchers.failed_partitions) == (True, 0)
        await p.until_equal()


@kafka("AFT-27")
@both_protocols
async def test_a_diverging_epoch(ibp: str, autojump_clock: MockClock) -> None:
    async with pair(ibp) as p:
        await p.lead(5, A, B, at(2, 5, b"d"))
        p.has(A, B, C)
        assert p.log.latest_epoch == 4
        p.follow(5)
        await p.until_equal()
        assert p.log.leader_epochs == ((0, 0), (2, 1), (5, 2))


@kafka("AFT-28")
async def test_an_answer_with_a_diverging_epoch_only_truncates(autojump_clock: MockClock) -> None:
    async with pair() as p:
        common = (A, at(1, 0, b"b"), at(2, 2, b"c"))
        await p.lead(5, *common, at(3, 5, b"g"), at(4, 5, b"h"))
        p.has(*common, at(3, 4, b"d"), at(4, 4, b"e"), at(5, 4, b"f"), high_watermark=1)
        ends: list[tuple[int, int]] = []
        p.change = lambda request, answer: (ends.append((p.log.log_end_offset, p.log.high_watermark)), answer)[1]
        p.follow(5)
        await p.until_equal()
        assert ends[:2] == [(6, 1), (3, 1)]
        assert p.log.truncations == 1
        assert (p.log.log_end_offset, p.log.high_watermark) == (5, 5)


@kafka("AFT-29")
async def test_a_topic_gets_its_id(autojump_clock: MockClock) -> None:
    async with pair() as p:
        await p.lead(0)
        p.follow(0, topic_id=None)
        assert p.state is not None
        assert p.state.topic_id is None
        p.fetchers.update_topic_id(A0, ID_A)
        assert p.state.topic_id == ID_A
        p.fetchers.update_topic_id(A0._replace(topic="unknown"), ID_A)
        (fetcher,) = p.fetchers._fetchers.values()
        assert set(fetcher.partitions) == {A0}
