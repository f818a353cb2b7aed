"""A follower's connection to its leader: whole requests, and when it is closed (rules B5.10, B5.11, B5.40)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.broker_stub import Endpoint
from kce.broker_stub.log.leader_epochs import EpochEnd
from kce.broker_stub.replication.follower_session import FollowerFetch
from kce.broker_stub.replication.leader_connection import EpochAnswer, LeaderConnection
from kce.wire import ErrorCode
from kce.wire.transport import ConnectionLost, FramedConnection
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.replication.support import A0, ID, Leader
from tests.broker_stub.support import config

WANTED = FollowerFetch(ID, 5, 1, 3, 2)
PARTITION = wire.FetchPartition(
    partition=0, current_leader_epoch=3, fetch_offset=5, last_fetched_epoch=2, log_start_offset=1,
    partition_max_bytes=700,
)  # fmt: skip


def connection(leader: Leader, **properties: str) -> LeaderConnection:
    settings = {
        "replica_fetch_max_bytes": "700", "replica_fetch_wait_max_ms": "300", "replica_fetch_min_bytes": "4",
        "replica_fetch_response_max_bytes": "9000", "replica_socket_timeout_ms": "20000", **properties,
    }  # fmt: skip
    return LeaderConnection(2, Endpoint("DATA", "PLAINTEXT", "leader", 9), leader.dial, config(**settings), "me")


def a_leader(**fetched: Any) -> Leader:
    made = Leader(("leader", 9, 2, "DATA"))
    made.fetched = [fetched or {"high_watermark": 9}]
    return made


async def test_a_fetch_of_3_9() -> None:
    leader = a_leader(high_watermark=9)
    leader.session_id = 44
    made = connection(leader)
    answer = await made.fetch({A0: WANTED}, (), 77)
    assert {tp: data.high_watermark for tp, data in answer.items()} == {A0: 9}
    limits = {"max_wait_ms": 300, "min_bytes": 4, "max_bytes": 9000}
    state = wire.ReplicaState(replica_id=1, replica_epoch=77)
    topic = wire.FetchTopic(topic_id=ID, partitions=(PARTITION,))
    assert leader.requests == [wire.FetchRequest(replica_state=state, topics=(topic,), session_epoch=0, **limits)]
    assert (leader.versions, leader.clients, dict(made.sent)) == ([17], ["me"], {A0: WANTED})
    leader.fetched = [{}]
    await made.fetch({}, [A0], 78)
    state = wire.ReplicaState(replica_id=1, replica_epoch=78)
    forgotten = (wire.ForgottenTopic(topic_id=ID, partitions=(0,)),)
    assert leader.requests[1:] == [
        wire.FetchRequest(
            replica_state=state, session_id=44, session_epoch=1, forgotten_topics_data=forgotten, **limits
        )
    ]
    assert (leader.connections, leader.closed) == (1, 0)
    await made.aclose()
    await made.aclose()
    assert leader.closed == 1


async def test_a_session_in_which_one_partition_changes() -> None:
    leader = a_leader()
    leader.session_id = 44
    made = connection(leader)
    await made.fetch({A0: WANTED}, (), 77)
    leader.fetched = [{"high_watermark": 10, "log_start_offset": 2, "records": b"abc"}, {"error_code": 6}]
    (data,) = (await made.fetch({A0: WANTED._replace(offset=6)}, (), 77)).values()
    assert (data.error_code, data.high_watermark, data.log_start_offset, data.records) == (0, 10, 2, b"abc")
    assert dict(made.sent) == {A0: WANTED._replace(offset=6)}
    answer = await made.fetch({A0: WANTED._replace(offset=7)}, (), 78)
    assert {tp: data.error_code for tp, data in answer.items()} == {A0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    states = [wire.ReplicaState(replica_id=1, replica_epoch=epoch) for epoch in (77, 77, 78)]
    assert leader.requests == [
        wire.FetchRequest(
            replica_state=states[i], session_id=44 if i else 0, session_epoch=i, max_wait_ms=300, min_bytes=4,
            max_bytes=9000,
            topics=(wire.FetchTopic(topic_id=ID, partitions=(replace(PARTITION, fetch_offset=5 + i),)),),
        )
        for i in range(3)
    ]  # fmt: skip
    assert (leader.versions, leader.clients) == ([17] * 3, ["me"] * 3)
    leader.whole_errors = [ErrorCode.INVALID_FETCH_SESSION_EPOCH]
    assert await made.fetch({A0: WANTED._replace(offset=8)}, (), 78) == {}
    leader.fetched = [{}]
    await made.fetch({}, (), 78)
    assert (leader.requests[4].session_epoch, leader.requests[4].topics[0].partitions[0].fetch_offset) == (0, 8)


async def test_a_fetch_of_2_6() -> None:
    leader = a_leader()
    await connection(leader, inter_broker_protocol_version="2.6").fetch({A0: WANTED}, (), 77)
    (request,) = leader.requests
    old = wire.FetchPartition(
        partition=0, current_leader_epoch=3, fetch_offset=5, log_start_offset=1, partition_max_bytes=700
    )
    assert request == wire.FetchRequest(
        replica_id=1, session_epoch=0, max_wait_ms=300, min_bytes=4, max_bytes=9000,
        topics=(wire.FetchTopic(topic="a", partitions=(old,)),),
    )  # fmt: skip
    leader.session_id, leader.fetched = 44, [{}, {}]
    made = connection(leader, inter_broker_protocol_version="2.6")
    await made.fetch({A0: WANTED}, (), 77)
    await made.fetch({}, [A0], 77)
    assert leader.requests[2].forgotten_topics_data == (wire.ForgottenTopic(topic="a", partitions=(0,)),)
    assert leader.versions == [11] * 3


@pytest.mark.parametrize(
    ("code", "closes"), [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 44)]
)
async def test_a_session_that_is_over_begins_again(code: ErrorCode, closes: int) -> None:  # rule B5.40
    leader = a_leader()
    leader.session_id, leader.fetched = 44, [{}, {}]
    made = connection(leader)
    await made.fetch({A0: WANTED}, (), 77)
    leader.whole_errors = [code]
    assert await made.fetch({}, (), 77) == {}
    assert (leader.closed, leader.requests[1].session_epoch) == (0, 1)
    await made.fetch({}, (), 77)
    again = leader.requests[2]
    assert [p.partition for t in again.topics for p in t.partitions] == [0]
    assert (again.session_id, again.session_epoch) == (closes, 0)


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR])
async def test_another_error_of_a_whole_fetch_closes_the_connection(code: ErrorCode) -> None:  # rules B5.11, B5.40
    leader = a_leader()
    leader.whole_errors = [code]
    made = connection(leader)
    with pytest.raises(ConnectionLost, match=f"Fetch failed with {code.name}"):
        await made.fetch({A0: WANTED}, (), 77)
    assert (leader.closed, dict(made.sent)) == (1, {})


async def test_a_leader_that_does_not_answer(autojump_clock: MockClock) -> None:  # rule B5.11
    leader = a_leader()
    leader.fetched = []
    made = connection(leader)

    async def give_up() -> None:
        await trio.sleep(1)
        assert made.deadline == 20
        await made.give_up()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up)
        with pytest.raises(ConnectionLost):
            await made.fetch({A0: WANTED}, (), 77)
    assert made.deadline == math.inf
    assert (leader.connections, dict(made.sent)) == (1, {})
    assert leader.closed
    await made.give_up()  # of nothing
    leader.closed, leader.refuse = 1, True
    with pytest.raises(ConnectionRefusedError):
        await made.fetch({A0: WANTED}, (), 77)
    assert (leader.closed, dict(made.sent)) == (1, {})


async def test_a_leader_that_cannot_be_reached(autojump_clock: MockClock) -> None:
    async def dial(host: str, port: int, *, to: int, listener: str) -> FramedConnection:
        await trio.sleep_forever()

    made = LeaderConnection(2, Endpoint("DATA", "PLAINTEXT", "leader", 9), dial, config(), "me")
    with pytest.raises(trio.TooSlowError):
        await made.fetch({A0: WANTED}, (), 77)
    assert (trio.current_time(), made.deadline) == (30, math.inf)


async def test_where_epochs_end() -> None:  # rules B5.9, B5.10
    leader = a_leader()
    leader.ends = [{"error_code": ErrorCode.FENCED_LEADER_EPOCH, "leader_epoch": 4, "end_offset": 12}]
    wanted = {A0: (3, 2), TopicPartition("a", 7): (5, 4), TopicPartition("b", 1): (6, 1)}
    assert await connection(leader).end_offsets(wanted) == {
        A0: EpochAnswer(ErrorCode.FENCED_LEADER_EPOCH, EpochEnd(4, 12))
    }
    asked = (("a", ((0, 3, 2), (7, 5, 4))), ("b", ((1, 6, 1),)))
    assert leader.requests == [
        wire.OffsetForLeaderEpochRequest(
            replica_id=1,
            topics=tuple(
                wire.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=tuple(
                        wire.OffsetForLeaderPartition(
                            partition=number, current_leader_epoch=current, leader_epoch=epoch
                        )
                        for number, current, epoch in partitions
                    ),
                )
                for topic, partitions in asked
            ),
        )
    ]


@pytest.mark.parametrize(("protocol", "version"), [("3.9", 9), ("2.8", 6), ("0.10.1", 1)])
async def test_an_offset(protocol: str, version: int) -> None:  # rule B5.18
    leader = a_leader()
    leader.offsets = [(ErrorCode.NOT_LEADER_OR_FOLLOWER, 31)]
    made = connection(leader, inter_broker_protocol_version=protocol, log_message_format_version="0.10.1")
    assert await made.offset(TopicPartition("a", 7), 3, -2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 31)
    epoch = {"current_leader_epoch": 3} if version >= 4 else {}
    entry = wire.ListOffsetsPartition(partition_index=7, timestamp=-2, **epoch)
    assert leader.requests == [
        wire.ListOffsetsRequest(replica_id=1, topics=(wire.ListOffsetsTopic(name="a", partitions=(entry,)),))
    ]
    assert leader.versions == [version]
