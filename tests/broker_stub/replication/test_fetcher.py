"""A follower's fetcher against a scripted leader (rules B5.4 to B5.19).

Covers: broker_stub/replication/fetcher.py, broker_stub/replication/fetcher_manager.py,
broker_stub/replication/leader_connection.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.log import Log
from kce.broker_stub.ports import NoTopicSettings
from kce.broker_stub.replication.fetcher import FollowerPort
from kce.broker_stub.replication.fetcher_manager import FetcherManager
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost
from kce.wire.vocabulary import Endpoint, TopicPartition
from tests.broker_stub.log.support import PARTITION, Context, a_log, append, batch, values
from tests.broker_stub.log.support import config as log_config
from tests.broker_stub.replication.support import ID, Leader
from tests.broker_stub.support import config

AT_LEADER = Endpoint("DATA", "PLAINTEXT", "leader", 9)
OTHER = TopicPartition("b", 1)


class Settings(NoTopicSettings):
    """Topics in ``unread`` are read when ``answers`` is set."""

    def __init__(self) -> None:
        self.unread: set[str] = set()
        self.answers = trio.Event()

    async def read(self, topics: Collection[str]) -> None:
        await self.answers.wait()
        self.unread.difference_update(topics)


class Follower:
    """Broker 1, which has the log ``log`` of a-0, and follows broker 9."""

    def __init__(self, nursery: trio.Nursery, log: Log, **properties: str) -> None:
        self.leader = Leader()
        self.log = log
        self.moved: list[TopicPartition] = []
        self.held: set[TopicPartition] = set()
        self.settings = Settings()
        port = FollowerPort(
            config(1, **properties), self.leader.dial, lambda: 77, self.moved.append, lambda tp: tp in self.held,
            topic_settings=self.settings,
        )  # fmt: skip
        self.fetchers = FetcherManager(port)
        nursery.start_soon(self.fetchers.run)

    async def follow(self, epoch: int = 3) -> None:
        self.fetchers.follow(PARTITION, self.log, 9, epoch, AT_LEADER, self.log.topic_id)
        await trio.testing.wait_all_tasks_blocked()

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()


MakeFollower = Callable[..., Follower]


@pytest.fixture
def follower(nursery: trio.Nursery) -> MakeFollower:
    def make(epochs: tuple[int, ...] = (0, 1), *, with_id: bool = True, **properties: str) -> Follower:
        """Its log has one record of each of these leader epochs."""
        log = a_log()
        if with_id:
            log.assign_topic_id(ID)
        for epoch in epochs:
            append(log, b"%d" % epoch, epoch=epoch)
        return Follower(nursery, log, **properties)

    return make


async def test_records_are_appended_and_the_high_watermark_follows(follower: MakeFollower) -> None:  # B5.13
    f = follower()
    f.leader.fetched = [
        {"records": batch(b"x", b"y", base_offset=2, leader_epoch=3), "high_watermark": 3, "log_start_offset": 0},
        {"high_watermark": 4, "log_start_offset": 2},
        {"high_watermark": 4, "log_start_offset": 2},
    ]
    await f.follow()
    assert [value for _, value in values(f.log)][-2:] == [b"x", b"y"]
    assert (f.log.log_end_offset, f.log.high_watermark, f.log.log_start_offset) == (4, 4, 2)
    assert f.moved == [PARTITION, PARTITION]  # not after the last, which moves nothing
    assert f.leader.fetches() == [(2, 3, 1), (4, 3, 3), (4, 3, 3), (4, 3, 3)]
    assert f.leader.connections == 1
    assert set(f.leader.clients) == {"broker-1-fetcher-0"}


async def test_what_a_later_leader_wrote_is_not_taken_from_the_old_one(follower: MakeFollower) -> None:  # rule B5.19
    f = follower()
    records = batch(b"x", base_offset=2, leader_epoch=3) + batch(b"y", base_offset=3, leader_epoch=4)
    f.leader.fetched = [{"records": records, "high_watermark": 4}, {"records": records[len(records) // 2 :]}]
    await f.follow()
    assert [value for _, value in values(f.log)][-1] == b"x"
    assert [fetch[0] for fetch in f.leader.fetches()] == [2, 3, 3]
    assert f.fetchers.failed_partitions == 0


async def test_a_start_beyond_the_high_watermark_ends_fetching(follower: MakeFollower) -> None:  # rule B5.13
    f = follower()
    f.leader.fetched = [
        {"high_watermark": 1, "log_start_offset": 1},
        {"records": batch(base_offset=2, leader_epoch=3), "high_watermark": 2, "log_start_offset": 3},
    ]
    await f.follow()
    assert (f.log.log_start_offset, f.log.high_watermark, f.log.log_end_offset) == (1, 2, 3)
    assert (f.fetchers.failed_partitions, f.moved) == (1, [PARTITION, PARTITION])


async def test_batches_out_of_order_end_fetching(follower: MakeFollower) -> None:  # rules B5.15, B5.19
    f = follower()
    f.leader.fetched = [{"records": batch(base_offset=9, leader_epoch=3) + batch(base_offset=2, leader_epoch=3)}]
    await f.follow()
    assert (f.log.log_end_offset, f.fetchers.failed_partitions) == (2, 1)


async def test_records_wait_for_the_settings_of_their_topic(follower: MakeFollower) -> None:
    f = follower()
    f.settings.unread = {"a", "other"}
    f.leader.fetched = [{"high_watermark": 2}, {"records": batch(b"x", base_offset=2, leader_epoch=3)}]
    await f.follow()
    assert (f.log.high_watermark, f.log.log_end_offset) == (2, 2)
    f.settings.answers.set()
    await f.settle()
    assert f.log.log_end_offset == 3
    assert f.settings.unread == {"other"}


async def test_a_fetch_says_who_asks_and_for_how_much(follower: MakeFollower) -> None:  # rules B5.10, B5.11
    f = follower(
        replica_fetch_wait_max_ms="123", replica_fetch_min_bytes="7", replica_fetch_response_max_bytes="9999",
        replica_fetch_max_bytes="888",
    )  # fmt: skip
    await f.follow()
    (request,), (version,) = f.leader.requests, f.leader.versions
    assert version == 17
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (1, 77)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (123, 7, 9999)
    assert (request.topics[0].topic_id, request.topics[0].partitions[0].partition_max_bytes) == (ID, 888)


async def test_an_older_protocol_names_topics_and_the_replica(follower: MakeFollower) -> None:  # rule B5.11
    f = follower(inter_broker_protocol_version="2.8")
    await f.follow()
    (request,), (version,) = f.leader.requests, f.leader.versions
    assert (version, request.replica_id, request.topics[0].topic) == (12, 1, "a")
    nameless = follower(with_id=False)
    await nameless.follow()
    assert nameless.leader.versions == [12]


@pytest.mark.parametrize(
    ("own", "epoch", "end", "cut"),
    [
        ((0, 1, 1), 0, 1, 1),  # the leader ends an epoch of ours earlier
        ((0, 0, 2), 0, 9, 2),  # we end it earlier
        ((0, 0, 2), 0, 1, 1),  # both end it, the leader earlier
        ((0, 2, 2), 1, 2, 1),  # an epoch that is not ours: the end of the one below
        ((5, 5, 5), 1, 2, 0),  # all our epochs are newer
        ((0, 1, 1), 4, 2, 2),  # all our epochs are older
        ((0, 1, 1), 1, 9, 3),  # nothing diverges
    ],
)
async def test_a_diverging_epoch_truncates(
    follower: MakeFollower, own: tuple[int, ...], epoch: int, end: int, cut: int
) -> None:  # rules B5.8, B5.25
    f = follower(own)
    f.leader.fetched = [{"diverging_epoch": wire.FetchResponseEpochEndOffset(epoch=epoch, end_offset=end)}]
    await f.follow(epoch=6)
    assert f.log.log_end_offset == cut
    assert f.leader.fetches()[1:] == [(cut, 6, own[cut - 1] if cut else -1)]


@pytest.mark.parametrize(
    ("own", "answers", "cut"),
    [
        ((0, 1, 1), [(1, 2)], 2),  # the leader has less of our last epoch
        ((0, 1, 1), [(1, 9)], 3),  # more: nothing is cut
        ((0, 1, 1), [(-1, 2)], 2),  # an old leader, which names no epoch
        ((0, 1, 1), [(-1, -1)], 0),  # it knows nothing of the epoch: the high watermark
        ((0, 2, 2), [(1, 1), (0, 1)], 1),  # an epoch that we lack: asked again for the one below
        ((5, 5, 5), [(1, 2)], 0),  # all our epochs are newer
        ((0, 1, 1), [(4, 2)], 2),  # all our epochs are older
    ],
)
async def test_truncation_before_2_7_asks_for_the_end_of_an_epoch(
    follower: MakeFollower, own: tuple[int, ...], answers: list[tuple[int, int]], cut: int
) -> None:  # rules B5.9, B5.25
    f = follower(own, inter_broker_protocol_version="2.6")
    f.leader.ends = [{"leader_epoch": epoch, "end_offset": end} for epoch, end in answers]
    await f.follow(epoch=6)
    asked = [r.topics[0].partitions[0] for r in f.leader.requests if isinstance(r, wire.OffsetForLeaderEpochRequest)]
    assert [(p.current_leader_epoch, p.leader_epoch) for p in asked] == [(6, own[-1]), (6, own[0])][: len(answers)]
    assert {r.replica_id for r in f.leader.requests} == {1}
    assert f.log.log_end_offset == cut
    assert f.leader.fetches() == [(cut, 6, -1)]


async def test_a_leader_that_refuses_to_say_where_an_epoch_ends(
    follower: MakeFollower, autojump_clock: MockClock
) -> None:  # rules B5.16, B5.17
    f = follower(inter_broker_protocol_version="2.6", replica_fetch_backoff_ms="700")
    f.leader.ends = [
        {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER},
        {"error_code": ErrorCode.FENCED_LEADER_EPOCH, "leader_epoch": 1, "end_offset": 1},
    ]
    await f.follow()
    assert (len(f.leader.requests), f.fetchers.failed_partitions) == (1, 0)
    await trio.sleep(0.6)
    assert len(f.leader.requests) == 1
    await trio.sleep(0.2)
    assert (len(f.leader.requests), f.fetchers.failed_partitions) == (2, 1)
    assert f.log.log_end_offset == 2


async def test_a_log_without_epochs_starts_at_its_high_watermark(follower: MakeFollower) -> None:  # rules B5.8, B5.9
    f = follower(())
    await f.follow()
    assert f.leader.fetches() == [(0, 3, -1)]


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_only_a_fenced_epoch_ends_fetching(
    follower: MakeFollower, code: ErrorCode, autojump_clock: MockClock
) -> None:  # rules B5.16, B5.17
    f = follower(replica_fetch_backoff_ms="700")
    f.leader.fetched = [{"error_code": code}]
    await f.follow()
    fenced = code == ErrorCode.FENCED_LEADER_EPOCH
    assert f.fetchers.failed_partitions == fenced
    assert len(f.leader.fetches()) == 1
    await trio.sleep(0.6)
    assert len(f.leader.fetches()) == 1
    await trio.sleep(0.2)
    assert len(f.leader.fetches()) == (1 if fenced else 2)
    await f.follow(epoch=4)  # the next LeaderAndIsr
    assert f.fetchers.failed_partitions == 0
    assert f.leader.fetches()[-1][1] == (4 if fenced else 3)  # the second fetch of the other is under way


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([(0, 1)], 1),  # the leader's log ends before ours: it was elected uncleanly
        ([(0, 9), (0, 5)], 5),  # it starts after ours
        ([(0, 9), (0, 0)], 2),
    ],
)
async def test_an_offset_out_of_range(
    follower: MakeFollower, answers: list[tuple[int, int]], expected: int
) -> None:  # rule B5.18
    f = follower()
    f.leader.fetched = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}]
    f.leader.offsets = list(answers)
    await f.follow()
    asked = [r.topics[0].partitions[0] for r in f.leader.requests if isinstance(r, wire.ListOffsetsRequest)]
    assert [(p.timestamp, p.current_leader_epoch) for p in asked] == [(-1, 3), (-2, 3)][: len(answers)]
    assert f.log.log_end_offset == expected
    assert f.leader.fetches()[1][0] == expected


async def test_a_leader_that_refuses_offsets_is_asked_again_later(
    follower: MakeFollower, autojump_clock: MockClock
) -> None:  # rules B5.16, B5.18
    f = follower()
    f.leader.fetched = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}] * 2
    f.leader.offsets = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1), (0, 9), (ErrorCode.UNKNOWN_SERVER_ERROR, -1)]
    await f.follow()
    await trio.sleep(0.9)
    assert len(f.leader.fetches()) == 1
    await trio.sleep(5)
    assert f.leader.fetches() == [(2, 3, 1)] * 3
    assert f.log.log_end_offset == 2


async def test_a_partition_is_given_up_while_the_leader_is_asked_for_its_offsets(follower: MakeFollower) -> None:
    """Rule B5.18: the leader has just changed, so it refuses."""
    f = follower()
    f.leader.fetched = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}]
    f.leader.offsets = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    f.leader.meanwhile = [lambda: None, lambda: f.fetchers.stop([PARTITION])]
    await f.follow()
    await f.follow(epoch=4)
    assert f.leader.fetches() == [(2, 3, 1), (2, 4, 1)]


async def test_a_new_epoch_begins_while_the_leader_is_asked_for_offsets_of_the_old_one(follower: MakeFollower) -> None:
    f = follower()  # rules B5.16, B5.18
    f.leader.fetched = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}]
    f.leader.offsets = [(ErrorCode.FENCED_LEADER_EPOCH, -1)]
    f.leader.meanwhile = [lambda: None, lambda: f.fetchers.follow(PARTITION, f.log, 9, 4, AT_LEADER, ID)]
    await f.follow()
    assert f.fetchers.failed_partitions == 0
    assert f.leader.fetches() == [(2, 3, 1), (2, 4, 1)]


async def test_a_log_that_cannot_take_the_records_is_given_up(follower: MakeFollower) -> None:  # rule B5.15
    f = follower()
    f.leader.fetched = [{"records": batch(b"x", base_offset=1, leader_epoch=3)}]
    await f.follow()
    assert f.fetchers.failed_partitions == 1
    assert len(f.leader.fetches()) == 1


async def test_an_empty_log_takes_a_batch_that_begins_before_it(follower: MakeFollower) -> None:  # rule B5.19
    f = follower(())
    f.log.truncate_fully(3)
    records = batch(b"x", b"y", b"z", base_offset=2, leader_epoch=3)
    f.leader.fetched = [{"records": records, "high_watermark": 5, "log_start_offset": 3}]
    await f.follow()
    assert (f.log.log_start_offset, f.log.log_end_offset, f.log.leader_epochs) == (3, 5, ((3, 3),))
    assert f.fetchers.failed_partitions == 0


async def test_an_empty_log_does_not_begin_before_0(follower: MakeFollower) -> None:  # rule B5.15
    f = follower()
    f.log.set_high_watermark(2)
    f.log.increment_log_start_offset(2)
    records = batch(b"x", base_offset=-9, leader_epoch=3) + batch(b"y", base_offset=2, leader_epoch=3)
    f.leader.fetched = [{"records": records, "high_watermark": 2}]
    await f.follow()
    assert (f.log.log_start_offset, f.log.log_end_offset, f.fetchers.failed_partitions) == (2, 2, 1)


async def test_damaged_records_are_fetched_again(follower: MakeFollower, autojump_clock: MockClock) -> None:  # B5.15
    f = follower()
    good = batch(b"x", base_offset=2, leader_epoch=3)
    f.leader.fetched = [{"records": good[:-1] + bytes([good[-1] ^ 1])}, {"records": good}]
    await f.follow()
    await trio.sleep(5)
    assert (f.fetchers.failed_partitions, f.log.log_end_offset) == (0, 3)


@pytest.mark.parametrize("protocol", ["3.9", "2.6"])
async def test_a_leader_that_is_gone_when_asked_about_one_partition(
    follower: MakeFollower, protocol: str, autojump_clock: MockClock
) -> None:  # rules B5.9, B5.11, B5.18
    """That one waits, and nothing is lost of the others."""

    def lose() -> None:
        raise ConnectionLost("gone")

    f = follower(inter_broker_protocol_version=protocol)
    other = a_log()
    other.assign_topic_id(ID)
    of_other = {"records": batch(base_offset=0, leader_epoch=3)}
    if protocol == "3.9":
        f.leader.fetched = [[{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}, of_other]]
        f.leader.offsets = [(0, 9)]
        f.leader.meanwhile = [lambda: None, lose]
    else:
        f.leader.ends = [{}, {"leader_epoch": 1, "end_offset": 9}]
        f.leader.fetched = [[{"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}, of_other]]
        f.leader.meanwhile = [lose]
    f.fetchers.follow(TopicPartition("a", 1), other, 9, 3, AT_LEADER, ID)
    await f.follow()
    assert (other.log_end_offset, f.leader.connections) == (1, 2)
    fetches = [r for r in f.leader.requests if isinstance(r, wire.FetchRequest)]
    assert [p.partition for p in fetches[-1].topics[0].partitions] == [1]
    f.leader.end_wait()
    await trio.sleep(1.1)
    f.leader.end_wait()
    await f.settle()
    assert f.leader.fetches()[-1][0] == 2


async def test_a_leader_that_is_gone_is_dialed_after_the_backoff(
    follower: MakeFollower, autojump_clock: MockClock
) -> None:  # rule B5.11
    f = follower()
    f.leader.refuse = True
    await f.follow()
    await trio.sleep(0.5)
    f.leader.refuse = False
    await trio.sleep(0.4)
    assert f.leader.connections == 0
    await trio.sleep(0.2)
    assert (f.leader.connections, len(f.leader.fetches())) == (1, 1)


async def test_a_held_partition_is_not_fetched(follower: MakeFollower) -> None:
    f = follower()
    f.held.add(PARTITION)
    await f.follow()
    assert f.leader.requests == []
    f.held.clear()
    f.fetchers.reconsider(PARTITION)
    await f.settle()
    assert len(f.leader.fetches()) == 1


async def test_idle_tasks_end(follower: MakeFollower) -> None:  # rule B5.3
    f = follower()
    await f.follow()
    f.fetchers.stop_idle()
    assert len(f.fetchers._fetchers) == 1
    f.fetchers.stop([OTHER])
    f.fetchers.stop_idle()
    assert len(f.fetchers._fetchers) == 1
    f.fetchers.stop([PARTITION])
    assert f.leader.closed == 0
    f.fetchers.stop_idle()
    assert f.fetchers._fetchers == {}
    await f.settle()
    assert f.leader.closed == 1


async def test_a_leader_at_another_address_or_another_leader(follower: MakeFollower) -> None:  # rules B5.2, B5.4
    f = follower()
    f.held.add(PARTITION)
    await f.follow()
    (first,) = f.fetchers._fetchers.values()
    moved = Endpoint("DATA", "PLAINTEXT", "leader", 10)
    f.fetchers.follow(PARTITION, f.log, 9, 4, moved, ID)
    (second,) = f.fetchers._fetchers.values()
    assert (second.endpoint, second.partitions[PARTITION].leader_epoch) == (moved, 4)
    assert first.scope.cancel_called
    f.fetchers.follow(PARTITION, f.log, 8, 5, AT_LEADER, ID)
    assert PARTITION not in second.partitions
    assert [fetcher.leader for fetcher in f.fetchers._fetchers.values() if fetcher.partitions] == [8]
    state = f.fetchers._fetchers[8, 0].partitions[PARTITION]
    f.fetchers.follow(PARTITION, f.log, 8, 5, AT_LEADER, ID)  # the same epoch again (rule B5.4)
    assert f.fetchers._fetchers[8, 0].partitions[PARTITION] is state


async def test_a_disk_that_fails_ends_fetching(follower: MakeFollower, monkeypatch: pytest.MonkeyPatch) -> None:
    f = follower()
    f.leader.fetched = [{"records": batch(b"x", base_offset=2, leader_epoch=3)}]

    def fails(records: bytes) -> None:
        raise KafkaStorageError("the disk is full")

    monkeypatch.setattr(Log, "append_as_follower", lambda log, *_, **__: fails(b""))
    await f.follow()
    assert (f.fetchers.failed_partitions, len(f.leader.fetches())) == (1, 1)


RECORDS = {"records": batch(b"x", base_offset=2, leader_epoch=3), "high_watermark": 3}


async def test_an_answer_for_a_partition_that_is_not_followed_any_more_is_ignored(follower: MakeFollower) -> None:
    f = follower()  # rule B5.12
    f.leader.fetched, f.leader.meanwhile = [RECORDS], [lambda: f.fetchers.stop([PARTITION])]
    await f.follow()
    assert (f.log.log_end_offset, f.moved, f.fetchers.failed_partitions) == (2, [], 0)


async def test_what_happens_while_the_files_of_a_log_are_made(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first records are appended others run: here a StopReplica comes."""
    f = Follower(nursery, Log(Context(), PARTITION, log_config(), is_new=True))
    make = Log.make_files

    def slowly(log: Log) -> None:
        make(log)
        f.fetchers.stop([PARTITION])

    monkeypatch.setattr(Log, "make_files", slowly)
    f.leader.fetched = [{"records": batch(b"x", leader_epoch=3), "high_watermark": 1}]
    await f.follow()
    assert (f.log.log_end_offset, f.moved, f.fetchers.failed_partitions) == (0, [], 0)


async def test_the_first_records_of_a_log_whose_disk_fails(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = Follower(nursery, Log(Context(), PARTITION, log_config(), is_new=True))

    def fails(log: Log, *_: object) -> None:
        raise KafkaStorageError("the disk is full")

    monkeypatch.setattr(Log, "make_files", fails)
    monkeypatch.setattr(Log, "append_as_follower", fails)
    f.leader.fetched = [{"records": batch(b"x", leader_epoch=3), "high_watermark": 1}]
    await f.follow()
    assert (f.fetchers.failed_partitions, len(f.leader.fetches())) == (1, 1)


async def test_an_answer_for_an_earlier_epoch_is_ignored(follower: MakeFollower) -> None:  # rule B5.12
    f = follower()
    f.leader.fetched = [RECORDS]
    f.leader.meanwhile = [lambda: f.fetchers.follow(PARTITION, f.log, 9, 4, AT_LEADER, ID)]
    await f.follow()
    assert f.log.log_end_offset == 2
    assert f.leader.fetches() == [(2, 3, 1), (2, 4, 1)]


async def test_an_answer_for_another_offset_is_ignored(follower: MakeFollower) -> None:  # rule B5.12
    f = follower()

    def cut() -> None:
        (fetcher,) = f.fetchers._fetchers.values()
        f.log.truncate_to(1)
        fetcher.partitions[PARTITION].offset = 1

    f.leader.fetched, f.leader.meanwhile = [RECORDS], [cut]
    await f.follow()
    assert (f.log.log_end_offset, f.moved, f.fetchers.failed_partitions) == (1, [], 0)


async def test_a_log_that_others_write_is_given_up(follower: MakeFollower) -> None:  # rule B5.13
    f = follower()
    f.leader.fetched, f.leader.meanwhile = [{"high_watermark": 2}], [lambda: append(f.log, epoch=3) and None]
    await f.follow()
    assert (f.fetchers.failed_partitions, f.log.high_watermark) == (1, 0)


NO_OFFSET = (
    wire.ListOffsetsResponse(),
    wire.ListOffsetsResponse(topics=(wire.ListOffsetsTopicResponse(name="a", partitions=()),)),
    wire.ListOffsetsResponse(
        topics=(
            wire.ListOffsetsTopicResponse(
                name="a", partitions=(wire.ListOffsetsPartitionResponse(partition_index=0, offset=-1),)
            ),
        )
    ),
)


@pytest.mark.parametrize("answer", NO_OFFSET)
async def test_an_answer_without_an_offset_is_asked_for_again(
    follower: MakeFollower, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, answer: wire.ListOffsetsResponse
) -> None:  # rule B5.18
    f = follower()
    f.leader.fetched = [{"error_code": ErrorCode.OFFSET_OUT_OF_RANGE}]
    others = f.leader._answer
    monkeypatch.setattr(
        f.leader,
        "_answer",
        lambda request: answer if isinstance(request, wire.ListOffsetsRequest) else others(request),
    )
    await f.follow()
    await trio.sleep(1.5)
    assert (f.log.log_end_offset, f.fetchers.failed_partitions) == (2, 0)
    assert f.leader.fetches() == [(2, 3, 1)] * 2


async def test_an_answer_without_the_end_of_an_epoch_is_not_asked_for_at_once(
    follower: MakeFollower, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule B5.9
    f = follower(inter_broker_protocol_version="2.6", with_id=False)
    monkeypatch.setattr(f.leader, "_answer", lambda request: wire.OffsetForLeaderEpochResponse())
    f.fetchers.follow(PARTITION, f.log, 9, 3, AT_LEADER, None)
    await trio.sleep(1.5)
    assert len(f.leader.requests) == 2


async def test_a_log_is_not_truncated_to_a_negative_offset(follower: MakeFollower) -> None:
    f = follower()
    f.leader.fetched = [{"diverging_epoch": wire.FetchResponseEpochEndOffset(epoch=1, end_offset=-5)}]
    await f.follow()
    assert (f.log.log_end_offset, f.fetchers.failed_partitions) == (2, 1)


async def test_a_partition_that_goes_offline_while_it_is_written(
    follower: MakeFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever learns of the failure of the disk stops the fetcher first; it then fetches others."""
    f = follower()
    f.leader.fetched = [RECORDS]

    def fails(*_: object) -> None:
        f.fetchers.stop([PARTITION])
        raise KafkaStorageError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Log, "append_as_follower", fails)
        await f.follow()
    f.leader.fetched = [RECORDS]
    await f.follow(epoch=4)
    assert (f.log.log_end_offset, f.fetchers.failed_partitions) == (3, 0)


async def test_a_request_lists_what_has_changed_only(follower: MakeFollower, autojump_clock: MockClock) -> None:
    """Rule B4.29; what changes by itself, such as the start of the log, within 30 s."""
    f = follower()
    f.leader.session_id = 7
    await f.follow()
    assert len(f.leader.fetches()) == 1
    f.fetchers.update_topic_id(PARTITION, ID)  # the same (rule B5.41)
    f.fetchers.update_topic_id(OTHER, ID)  # not followed
    f.leader.end_wait()
    await f.settle()
    assert (len(f.leader.requests), len(f.leader.fetches())) == (2, 1)
    f.log.set_high_watermark(2)
    f.log.increment_log_start_offset(1)
    await trio.sleep(29)
    f.leader.end_wait()
    await f.settle()
    assert (len(f.leader.requests), len(f.leader.fetches())) == (3, 1)
    await trio.sleep(2)
    f.leader.end_wait()
    await f.settle()
    assert (len(f.leader.requests), len(f.leader.fetches())) == (4, 2)
    assert f.leader.requests[-1].topics[0].partitions[0].log_start_offset == 1


async def test_the_end_of_an_epoch_is_asked_by_topic_partition_and_both_epochs(follower: MakeFollower) -> None:  # B5.9
    f = follower((0, 1, 1), inter_broker_protocol_version="2.6")
    f.leader.ends = [{"leader_epoch": 1, "end_offset": 3}]
    await f.follow()
    (topic,) = f.leader.requests[0].topics
    (entry,) = topic.partitions
    assert (topic.topic, entry.partition, entry.current_leader_epoch, entry.leader_epoch) == ("a", 0, 3, 1)
    assert f.leader.requests[0].replica_id == 1


async def test_an_error_of_the_whole_fetch_closes_the_connection(
    follower: MakeFollower, autojump_clock: MockClock
) -> None:
    f = follower()
    f.leader.whole_errors = [ErrorCode.UNKNOWN_SERVER_ERROR]
    await f.follow()
    assert (f.leader.connections, f.leader.closed) == (1, 1)
    await trio.sleep(5)
    assert f.leader.connections == 2
    f.leader.whole_errors = [ErrorCode.INVALID_FETCH_SESSION_EPOCH]  # only another session begins
    f.leader.end_wait()
    await f.settle()
    assert (f.leader.connections, f.leader.closed, f.leader.requests[-1].session_epoch) == (2, 1, 0)


async def test_a_partition_that_is_held_while_it_is_fetched_is_not_asked_for_again(follower: MakeFollower) -> None:
    f = follower()
    f.leader.session_id = 7
    await f.follow()
    f.held.add(PARTITION)
    f.fetchers.reconsider(PARTITION)
    f.leader.end_wait()
    await f.settle()
    assert len(f.leader.requests) == 1  # nothing else is followed
    f.held.clear()
    f.fetchers.reconsider(PARTITION)
    await f.settle()
    assert len(f.leader.requests) == 2


async def test_what_is_truncated_is_fetched_with_the_rest(follower: MakeFollower) -> None:  # rules B5.8, B5.9
    """A log without epochs is truncated first, then both are fetched in one request."""
    f = follower()
    f.fetchers.follow(PARTITION, f.log, 9, 3, AT_LEADER, ID)
    f.fetchers.follow(OTHER, a_log(), 9, 3, AT_LEADER, UUID(int=6))
    await f.settle()
    (request,) = f.leader.requests
    assert [(topic.topic_id, p.partition) for topic in request.topics for p in topic.partitions] == [
        (ID, 0), (UUID(int=6), 1)
    ]  # fmt: skip


async def test_a_request_that_takes_too_long_is_given_up(follower: MakeFollower, autojump_clock: MockClock) -> None:
    """Rule B5.11: exactly then, whenever it began."""
    f = follower(replica_socket_timeout_ms="20000", replica_fetch_backoff_ms="1000")
    await trio.sleep(5)
    await f.follow()
    await trio.sleep(19)
    f.leader.end_wait()
    await trio.sleep(19)
    assert f.leader.connections == 1
    await trio.sleep(1.5)
    assert (f.leader.connections, bool(f.leader.closed)) == (1, True)
    await trio.sleep(1)
    assert f.leader.connections == 2
