"""A fetcher that needs no task while its leader answers (rules B5.10 to B5.19)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.log import Log
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import PARTITION, a_log, append, batch
from tests.broker_stub.replication.support import ID, Leader
from tests.broker_stub.replication.test_fetcher import AT_LEADER, Follower
from tests.connections import DirectConnection


class DirectLeader(DirectConnection, Leader):
    """Answers when it is told to. ``takes``: how much of a frame is sent without waiting; None: nothing."""

    def __init__(self) -> None:
        DirectConnection.__init__(self)
        Leader.__init__(self)
        self.session_id = 44
        self.takes: int | None = 1 << 20
        #: of each request: how it was sent
        self.sent: list[str] = []

    async def dial(self, *args: Any, **more: Any) -> Any:
        self.open()
        self.is_unsent = False
        return await super().dial(*args, **more)

    def _came(self, payload: bytes, how: str) -> None:
        header, request = wire.decode_request(payload)
        self.requests.append(request)
        self.versions.append(header.api_version)
        self._last_id = header.correlation_id
        self.sent.append(how)

    async def send_frame(self, payload: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._came(payload, "task")

    def send_nowait(self, payload: bytes) -> bool:
        if self.takes is None:
            return False
        self._came(payload, "direct")
        self.is_unsent = self.takes < len(payload)
        return True

    async def flush(self) -> None:
        if self.is_unsent:
            self.sent.append("flushed")
            self.is_unsent = False

    async def aclose(self) -> None:
        self.close_here()
        await super().aclose()

    def answers(self, **data: Any) -> None:
        """To the last request; without ``data``: nothing is new."""
        if data:
            self.fetched.append({"aborted_transactions": None, "records": b"", **data})
        response = self._answer(self.requests[-1]) or wire.FetchResponse(session_id=self.session_id)
        self.arrive(wire.encode_response(response, api_version=self.versions[-1], correlation_id=self._last_id))

    def appends(self, offset: int, **more: Any) -> None:
        """It answers with the record of that offset."""
        data = {"records": batch(b"%d" % offset, base_offset=offset, leader_epoch=3), "high_watermark": offset}
        self.answers(**{**data, **more})


def a_log_with_id(*epochs: int) -> Log:
    """With a record of each of these leader epochs."""
    log = a_log()
    log.assign_topic_id(ID)
    for epoch in epochs:
        append(log, b"%d" % epoch, epoch=epoch)
    return log


class DirectFollower(Follower):
    """Its log has two records; it has fetched a third, and so fetches on without a task."""

    leader: DirectLeader

    def __init__(self, nursery: trio.Nursery, log: Log, **properties: str) -> None:
        super().__init__(nursery, log, DirectLeader(), **properties)

    async def start(self) -> None:
        await self.follow()
        self.leader.appends(2)
        await self.settle()
        assert self.log.log_end_offset == 3
        assert self.leader.sent == ["task", "direct"]
        self.leader.sent.clear()


@pytest.fixture
async def f(nursery: trio.Nursery) -> DirectFollower:
    made = DirectFollower(nursery, a_log_with_id(0, 1), replica_socket_timeout_ms="20000")
    await made.start()
    return made


async def test_records_are_appended_and_asked_for_at_once(f: DirectFollower) -> None:  # B5.13
    f.leader.appends(3)
    assert (f.log.log_end_offset, f.log.high_watermark) == (4, 3)
    f.leader.appends(4)
    assert (f.log.log_end_offset, f.log.high_watermark) == (5, 4)
    assert f.leader.sent == ["direct"] * 2
    assert f.leader.fetches()[-3:] == [(3, 3, 3), (4, 3, 3), (5, 3, 3)]
    assert f.leader.requests[-1].session_id == 44
    assert f.leader.requests[-1].session_epoch == f.leader.requests[-2].session_epoch + 1
    (fetcher,) = f.fetchers.fetchers
    assert (fetcher.requests, fetcher.bytes) == (3, 3 * len(batch(b"3")))
    assert f.leader.connections == 1


async def test_without_news_the_task_asks(f: DirectFollower) -> None:
    """A request that lists no partition, and then again without it."""
    f.leader.answers()
    await f.settle()
    assert f.leader.sent == ["task"]
    assert f.leader.requests[-1].topics == ()
    f.leader.appends(3)
    await f.settle()
    assert f.leader.sent == ["task", "direct"]
    assert f.log.log_end_offset == 4


async def test_what_must_wait_is_done_by_the_task(f: DirectFollower) -> None:
    f.leader.takes = None
    f.leader.appends(3)
    assert f.leader.sent == []
    await f.settle()
    assert f.leader.sent == ["task"]
    f.leader.takes = 5
    f.leader.appends(4)
    await f.settle()
    f.leader.appends(5)
    await f.settle()
    assert f.leader.sent == ["task", "task", "direct", "flushed"]
    f.leader.takes = 1 << 20
    f.leader.appends(6)
    await f.settle()
    f.leader.appends(7)
    await f.settle()
    assert f.leader.sent == ["task", "task", "direct", "flushed", "task", "direct"]
    assert f.log.log_end_offset == 8
    assert [offset for offset, _, _ in f.leader.fetches()] == [2, 3, 4, 5, 6, 7, 8]


async def test_records_wait_for_the_settings_of_their_topic(f: DirectFollower) -> None:
    f.settings.unread = {"a"}
    f.leader.appends(3)
    await f.settle()
    assert f.log.log_end_offset == 3
    f.settings.answers.set()
    await f.settle()
    assert f.log.log_end_offset == 4


async def test_a_log_without_files_gets_them_in_the_task(f: DirectFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(type(f.log), "has_files", property(lambda self: bool(made)))
    monkeypatch.setattr(type(f.log), "make_files", lambda self: made.append("files"))
    f.leader.appends(3)
    assert (made, f.log.log_end_offset) == ([], 3)
    await f.settle()
    assert (made, f.log.log_end_offset) == (["files"], 4)


async def test_an_offset_that_is_out_of_range(f: DirectFollower) -> None:  # rule B5.18
    f.leader.answers(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    await f.settle()
    assert [type(request).__name__ for request in f.leader.requests[-1:]] == ["ListOffsetsRequest"]
    f.leader.offsets = [(0, 2)]
    f.leader.answers()
    await f.settle()
    assert f.log.log_end_offset == 2
    assert f.leader.fetches()[-1] == (2, 3, 1)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID])
async def test_an_error_delays_the_partition(autojump_clock: MockClock, f: DirectFollower, code: ErrorCode) -> None:
    """Rules B5.16, B5.17."""
    f.leader.answers(error_code=code)
    await f.settle()
    assert f.leader.sent == []
    await trio.sleep(1.1)  # replica.fetch.backoff.ms
    assert f.leader.sent == ["task"]
    f.leader.appends(3)
    await f.settle()
    assert f.log.log_end_offset == 4


async def test_a_partition_that_is_removed_meanwhile(f: DirectFollower) -> None:  # rule B5.12
    f.fetchers.stop([PARTITION])
    f.leader.appends(3)
    await f.settle()
    assert f.log.log_end_offset == 3
    assert f.leader.sent == []


async def test_another_partition_that_is_removed_meanwhile(f: DirectFollower) -> None:
    """The leader must hear of it, from the task."""
    other = TopicPartition(PARTITION.topic, 1)
    f.fetchers.follow(other, a_log_with_id(), 9, 3, AT_LEADER, ID)
    f.leader.appends(3)
    await f.settle()
    assert f.leader.sent == ["task"]  # which has found where the other one begins
    assert {p.partition for p in f.leader.requests[-1].topics[0].partitions} == {0, 1}
    f.leader.appends(4)
    await f.settle()
    f.fetchers.stop([other])
    f.leader.appends(5)
    await f.settle()
    assert f.leader.sent == ["task", "direct", "task"]
    (forgotten,) = f.leader.requests[-1].forgotten_topics_data
    assert forgotten.partitions == (1,)


async def test_a_new_leader_epoch_meanwhile(f: DirectFollower) -> None:  # rule B5.12
    f.fetchers.follow(PARTITION, f.log, 9, 4, AT_LEADER, ID)
    f.leader.appends(3)
    await f.settle()
    assert f.leader.fetches()[-1][1] == 4


def a_session_error(leader: DirectLeader) -> None:
    leader.whole_errors.append(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    leader.answers()


async def test_a_lost_session_begins_anew(f: DirectFollower) -> None:  # rule B4.28
    a_session_error(f.leader)
    await f.settle()
    assert (f.leader.requests[-1].session_epoch, f.leader.fetches()[-1]) == (0, (3, 3, 3))
    assert f.leader.connections == 1


def garbage(leader: DirectLeader) -> None:
    leader.arrive(leader._last_id.to_bytes(4, "big") + b"\xff")


def another_id(leader: DirectLeader) -> None:
    leader._last_id += 1
    leader.appends(3)


def breaks(leader: DirectLeader) -> None:
    def receive_nowait() -> bytes | None:
        raise trio.BrokenResourceError

    leader.receive_nowait = receive_nowait  # type: ignore[method-assign]
    leader.appends(3)
    del leader.receive_nowait  # type: ignore[method-assign]


def whole_error(leader: DirectLeader) -> None:
    leader.whole_errors.append(ErrorCode.UNKNOWN_SERVER_ERROR)
    leader.answers()


@pytest.mark.parametrize("fault", [DirectLeader.close, garbage, another_id, breaks, whole_error])
async def test_another_connection_after_a_failure(
    autojump_clock: MockClock, f: DirectFollower, fault: Callable[[DirectLeader], None]
) -> None:  # rule B5.11
    fault(f.leader)
    await f.settle()
    assert (f.leader.connections, f.leader.closed, f.leader.sent) == (1, 1, [])
    await trio.sleep(1.1)
    assert (f.leader.connections, f.leader.sent, f.leader.fetches()[-1]) == (2, ["task"], (3, 3, 3))
    f.leader.appends(3)
    await f.settle()
    assert f.log.log_end_offset == 4


async def test_a_leader_that_does_not_answer_in_time(autojump_clock: MockClock, f: DirectFollower) -> None:  # B5.11
    f.leader.appends(3)
    await trio.sleep(19)
    assert f.leader.connections == 1
    await trio.sleep(23)
    assert f.leader.connections > 1
    assert f.leader.fetches()[-1] == (4, 3, 3)


async def test_a_failed_append_stops_only_the_partition(
    f: DirectFollower, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule B5.15
    monkeypatch.setattr(type(f.log), "set_high_watermark", lambda self, offset: 1 // 0)
    f.leader.appends(3)
    await f.settle()
    (fetcher,) = f.fetchers.fetchers
    assert fetcher.failed == {PARTITION}
    assert not fetcher.partitions


async def test_what_is_raised_outside_of_a_partition_is_raised_by_the_task() -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as own:
            follower = DirectFollower(own, a_log_with_id(0, 1))
            await follower.start()
            (fetcher,) = follower.fetchers.fetchers
            fetcher._clock = lambda: 1 // 0
            follower.leader.appends(3)
            await trio.sleep(1)
