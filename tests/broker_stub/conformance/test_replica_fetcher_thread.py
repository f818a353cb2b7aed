"""RFT: how a follower truncates (section 12d of docs/broker-semantics.md; rules B5.7 to B5.25).

Upstream's cases follow two partitions, whose answers differ; here each answer has a run of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.log import Log
from kce.wire import ErrorCode
from kce.wire.metadata_version import LATEST
from tests.broker_stub.log.support import PARTITION, a_log, batch
from tests.broker_stub.replication.support import ID
from tests.broker_stub.replication.test_fetcher import Follower

kafka = pytest.mark.kafka


def log_of(epochs: Mapping[int, int], high_watermark: int = 0) -> Log:
    """So many batches of one record of each leader epoch."""
    log = a_log()
    log.assign_topic_id(ID)
    for epoch, count in epochs.items():
        for _ in range(count):
            log.append_as_follower(batch(b"x", base_offset=log.log_end_offset, leader_epoch=epoch))
    log.set_high_watermark(high_watermark)
    return log


def kinds(f: Follower) -> str:
    """What was asked: E the end of an epoch, F a fetch."""
    return "".join("F" if isinstance(request, wire.FetchRequest) else "E" for request in f.leader.requests)


def end(epoch: int, offset: int) -> dict[str, int]:
    return {"leader_epoch": epoch, "end_offset": offset}


def diverging(epoch: int, offset: int, **more: int) -> dict[str, object]:
    return {"diverging_epoch": wire.FetchResponseEpochEndOffset(epoch=epoch, end_offset=offset), **more}


@kafka("RFT-1")
def test_the_newest_protocol_uses_the_newest_requests() -> None:
    assert LATEST.fetch_version == wire.FetchRequest.__versions__.last
    assert LATEST.offset_for_leader_epoch_version == wire.OffsetForLeaderEpochRequest.__versions__.last
    assert LATEST.list_offsets_version == wire.ListOffsetsRequest.__versions__.last


@kafka("RFT-4")
async def test_the_end_of_an_epoch_is_asked_once(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 3}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(5, 3)]
    f.leader.fetched = [{"high_watermark": 0}, {"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EFFF"


@kafka("RFT-5")
async def test_the_end_of_an_epoch_is_not_asked_where_fetches_tell(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 3}))
    f.leader.fetched = [{"high_watermark": 0}, {"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "FFF"


@kafka("RFT-6")
@pytest.mark.parametrize("offset", [156, 172])
async def test_the_leader_ended_the_epoch_earlier(nursery: trio.Nursery, offset: int) -> None:
    f = Follower(nursery, log_of({5: 200}, 199), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(5, offset)]
    await f.follow(5)
    assert f.log.log_end_offset == offset


@kafka("RFT-7")
@pytest.mark.parametrize(("offset", "expected"), [(156, 156), (202, 200)])
async def test_the_leaders_epoch_says_nothing_to_the_follower(
    nursery: trio.Nursery, offset: int, expected: int
) -> None:
    f = Follower(nursery, log_of({3: 200}, 197), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, offset)]
    await f.follow(5)
    assert f.log.log_end_offset == expected


@kafka("RFT-8")
@pytest.mark.parametrize(("first", "second"), [(155, 101), (143, 102)])
async def test_an_epoch_that_the_follower_lacks_is_asked_about_again(
    nursery: trio.Nursery, first: int, second: int
) -> None:
    f = Follower(nursery, log_of({3: 120, 5: 80}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, first), end(3, second)]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EEFF"
    asked = [r for r in f.leader.requests if isinstance(r, wire.OffsetForLeaderEpochRequest)]
    assert [r.topics[0].partitions[0].leader_epoch for r in asked] == [5, 3]
    assert f.leader.versions[0] >= 3
    assert f.log.log_end_offset == second


@kafka("RFT-9")
@pytest.mark.parametrize("more", [0, 1])
async def test_diverging_epochs_one_after_the_other(nursery: trio.Nursery, more: int) -> None:
    f = Follower(nursery, log_of({1: 119, 2: 10, 4: 20, 5: 51}, 115))
    ends: list[int] = []
    f.leader.meanwhile = [lambda: ends.append(f.log.log_end_offset)] * 5
    f.leader.fetched = [
        {"high_watermark": 0}, diverging(4, 140 + more), diverging(3, 130 + more), diverging(2, 120 + more),
        {"high_watermark": 0},
    ]  # fmt: skip
    await f.follow(5)
    assert ends == [200, 200, 140 + more, 129, 120 + more]
    assert kinds(f) == "FFFFFF"
    (fetcher,) = f.fetchers._fetchers.values()
    assert not fetcher.partitions[PARTITION].is_truncating


@kafka("RFT-10")
async def test_a_truncation_by_fetch_leaves_the_high_watermark(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({4: 149, 5: 1}, 130))
    f.leader.fetched = [diverging(4, 140, high_watermark=160)]
    await f.follow(5)
    assert (f.log.log_end_offset, f.log.high_watermark) == (140, 130)
    assert f.moved == []


@kafka("RFT-12")
@pytest.mark.parametrize("offset", [155, 143])
async def test_an_old_leader_names_no_epoch(nursery: trio.Nursery, offset: int) -> None:
    f = Follower(nursery, log_of({3: 120, 5: 80}), inter_broker_protocol_version="0.11.0")
    f.leader.ends = [end(-1, offset)]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert kinds(f) == "EFF"
    assert f.leader.versions[0] == 0
    assert f.log.log_end_offset == offset


@kafka("RFT-13")
async def test_a_leader_that_knows_no_end(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({5: 150}, 100), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(-1, -1)]
    await f.follow(5)
    assert f.log.log_end_offset == 100


@kafka("RFT-14")
async def test_a_leader_that_fails_is_asked_until_it_answers(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    f = Follower(nursery, log_of({5: 300}, 100), inter_broker_protocol_version="2.6")
    error = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "leader_epoch": -1, "end_offset": -1}
    f.leader.ends = [error, {**error, "error_code": ErrorCode.UNKNOWN_SERVER_ERROR}, error, error, end(5, 156)]
    await f.follow(5)
    await trio.sleep(3.5)  # an attempt a second
    assert (kinds(f), f.log.log_end_offset, f.log.truncations) == ("EEEE", 300, 0)
    await trio.sleep(1)
    assert (kinds(f), f.log.log_end_offset) == ("EEEEEF", 156)


@kafka("RFT-15")
async def test_a_partition_truncates_until_it_knows(nursery: trio.Nursery) -> None:
    f = Follower(nursery, log_of({4: 3}), inter_broker_protocol_version="2.6")
    f.leader.ends = [end(4, 3)]
    states: list[bool] = []

    def look() -> None:
        (fetcher,) = f.fetchers._fetchers.values()
        states.append(fetcher.partitions[PARTITION].is_truncating)

    f.leader.meanwhile = [look, look]
    f.leader.fetched = [{"high_watermark": 0}]
    await f.follow(5)
    assert states == [True, False]
