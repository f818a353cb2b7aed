"""AlterPartitionManager (rules 9.51-9.55, 8.20) with a channel that the test controls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub import TopicPartition
from kce.broker_stub.alter_partition_manager import AlterPartitionItem, AlterPartitionManager, Result
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper.model import LeaderAndIsr
from tests.broker_stub.support import ID_A, ID_B, NO_ID


class Channel:
    """Each request waits until the test answers it; ``version`` is the controller's highest."""

    def __init__(self, version: int = 3) -> None:
        self.version = version
        self.requests: list[wire.AlterPartitionRequest] = []
        self.versions: list[int] = []
        self.error_codes: list[int] = []
        self._answers, self._answered = trio.open_memory_channel[wire.AlterPartitionResponse | Exception](100)

    def answer(self, answer: wire.AlterPartitionResponse | Exception) -> None:
        self._answers.send_nowait(answer)

    async def request(
        self,
        api_key: int,
        max_version: int,
        build: Callable[[int], wire.Message],
        error_codes: Callable[[wire.Message], Iterable[int]],
    ) -> wire.Message:
        assert api_key == 56
        version = min(self.version, max_version)
        encoded = wire.encode_request(build(version), api_version=version, correlation_id=1, client_id="1")
        self.requests.append(wire.decode_request(encoded)[1])
        self.versions.append(version)
        answer = await self._answered.receive()
        if isinstance(answer, Exception):
            raise answer
        self.error_codes.extend(error_codes(answer))
        encoded = wire.encode_response(answer, api_version=version, correlation_id=1)
        return wire.decode_response(encoded, api_key=56, api_version=version)[1]


class Fixture:
    def __init__(self, *, version: int = 3, ibp: str = "3.9") -> None:
        self.channel = Channel(version)
        self.epoch = 70
        self.manager = AlterPartitionManager(1, lambda: self.epoch, self.channel, MetadataVersion.parse(ibp))
        self.results: list[tuple[str, Result]] = []

    def submit(self, partition: int = 0, topic: str = "a", topic_id: uuid.UUID = ID_A, **fields) -> bool:
        item = _item(partition, topic, topic_id, **fields)
        return self.manager.submit(item, lambda result: self.results.append((str(item.partition), result)))

    @property
    def requested(self) -> list[list[int]]:
        """The partitions of each request so far."""
        return [[p.partition_index for t in r.topics for p in t.partitions] for r in self.channel.requests]


def _item(partition=0, topic="a", topic_id=ID_A, *, isr=(1, 2), recovery=0) -> AlterPartitionItem:
    return AlterPartitionItem(
        partition=TopicPartition(topic, partition),
        topic_id=topic_id,
        controller_epoch=3,
        leader_and_isr=LeaderAndIsr(1, isr, leader_epoch=5, recovery_state=recovery, partition_epoch=7),
    )


def _answer(*partitions: int, error: int = 0, topic: str = "a", topic_id=ID_A, **fields) -> wire.AlterPartitionResponse:
    data = tuple(
        wire.AlterPartitionResponsePartitionData(
            partition_index=index,
            error_code=error,
            leader_id=1,
            leader_epoch=5,
            isr=(1, 2),
            partition_epoch=8,
            **fields,
        )
        for index in partitions
    )
    topic_data = wire.AlterPartitionResponseTopicData(topic_name=topic, topic_id=topic_id, partitions=data)
    return wire.AlterPartitionResponse(topics=(topic_data,))


WRITTEN = LeaderAndIsr(1, (1, 2), leader_epoch=5, partition_epoch=8)

#: with broker epochs in the request, with the leader recovery state, with neither and without topic ids
IBPS = ("3.5-IV1", "3.2-IV0", "2.7-IV2")
with_each_ibp = pytest.mark.parametrize("ibp", IBPS)


@pytest.mark.kafka("APM-1")
@with_each_ibp
async def test_a_submitted_item_is_sent_and_completed(nursery, ibp) -> None:
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    await wait_all_tasks_blocked()
    assert f.channel.requests == []
    assert f.submit()
    await wait_all_tasks_blocked()
    assert len(f.channel.requests) == 1
    f.channel.answer(_answer(0))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", WRITTEN)]
    assert len(f.channel.requests) == 1


@pytest.mark.kafka("APM-2")
@with_each_ibp
async def test_the_request_has_the_items_and_epochs(nursery, ibp) -> None:  # rule 9.53
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    f.submit()
    await wait_all_tasks_blocked()
    (request,) = f.channel.requests
    assert (request.broker_id, request.broker_epoch) == (1, 70)
    with_ids = ibp != "2.7-IV2"
    members = (wire.BrokerState(broker_id=1, broker_epoch=-1), wire.BrokerState(broker_id=2, broker_epoch=-1))
    partition = wire.AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=5,
        new_isr=() if with_ids else (1, 2),
        new_isr_with_epochs=members if with_ids else (),
        leader_recovery_state=0,
        partition_epoch=7,
    )
    named = {"topic_id": ID_A} if with_ids else {"topic_name": "a"}
    assert request.topics == (wire.AlterPartitionRequestTopicData(**named, partitions=(partition,)),)


@pytest.mark.kafka("APREQ-1")
@pytest.mark.parametrize("version", range(4))
async def test_each_version_has_its_own_layout(nursery, version) -> None:  # rules 13.28, 13.29, 11.81
    f = Fixture(version=version)
    nursery.start_soon(f.manager.run)
    f.submit(0, "a", ID_A)
    f.submit(4, "b", ID_B)
    await wait_all_tasks_blocked()
    (request,) = f.channel.requests
    assert [t.topic_name for t in request.topics] == (["a", "b"] if version < 2 else ["", ""])
    assert [t.topic_id for t in request.topics] == ([NO_ID, NO_ID] if version < 2 else [ID_A, ID_B])
    partition = request.topics[1].partitions[0]
    assert partition.new_isr == ((1, 2) if version < 3 else ())
    assert [s.broker_id for s in partition.new_isr_with_epochs] == ([1, 2] if version == 3 else [])
    f.channel.answer(_answer(4, topic="b", topic_id=ID_B))
    await wait_all_tasks_blocked()
    assert f.results == [("b-4", WRITTEN)]


@pytest.mark.kafka("APM-18")
@pytest.mark.parametrize(("ibp", "with_ids"), [("3.5-IV1", 3), ("3.2-IV0", 3), ("2.8-IV0", 3), ("2.7-IV2", 1)])
async def test_topic_ids_are_sent_if_all_items_have_one_and_the_ibp_allows_them(
    nursery, ibp, with_ids
) -> None:  # rule 8.20
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    f.submit(0, "z", ID_A)
    await wait_all_tasks_blocked()
    assert f.channel.versions == [with_ids]
    f.submit(1, "foo", NO_ID)
    f.submit(2, "bar", ID_B)
    f.channel.answer(_answer(0, topic="z"))
    await wait_all_tasks_blocked()
    assert f.results == [("z-0", WRITTEN)]
    assert f.requested == [[0], [1, 2]]
    assert f.channel.versions == [with_ids, 1]
    answers = _answer(1, topic="foo", topic_id=NO_ID).topics + _answer(2, topic="bar", topic_id=ID_B).topics
    f.channel.answer(wire.AlterPartitionResponse(topics=answers))
    await wait_all_tasks_blocked()
    assert f.results == [("z-0", WRITTEN), ("foo-1", WRITTEN), ("bar-2", WRITTEN)]


@pytest.mark.kafka("APM-3")
@pytest.mark.parametrize("state", [0, 1])
@pytest.mark.parametrize(
    ("ibp", "version", "is_sent"),
    [
        ("3.5-IV1", 3, True),
        ("3.2-IV0", 3, True),
        ("3.2-IV0", 1, True),
        ("3.2-IV0", 0, False),
        ("3.1-IV0", 3, False),
        ("2.7-IV2", 3, False),
    ],
)
async def test_the_recovery_state_needs_a_recent_ibp_and_version(
    nursery, ibp, version, is_sent, state
) -> None:  # rule 9.53
    f = Fixture(ibp=ibp, version=version)
    expected = state if is_sent else 0
    nursery.start_soon(f.manager.run)
    f.submit(isr=(1,), recovery=state)
    await wait_all_tasks_blocked()
    assert f.channel.requests[0].topics[0].partitions[0].leader_recovery_state == expected


@pytest.mark.kafka("APM-4")
@with_each_ibp
async def test_a_partition_has_one_pending_item(nursery, ibp) -> None:  # 9.51
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    assert f.submit(0)
    assert not f.submit(0)
    assert f.submit(1)
    await wait_all_tasks_blocked()
    assert not f.submit(0)
    f.channel.answer(_answer(0, 1))
    await wait_all_tasks_blocked()
    assert f.submit(0, isr=(1,))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", WRITTEN), ("a-1", WRITTEN)]
    first, second = f.channel.requests
    assert len(first.topics[0].partitions) == 2
    ((partition,),) = [topic.partitions for topic in second.topics]
    assert (partition.new_isr or tuple(member.broker_id for member in partition.new_isr_with_epochs)) == (1,)


@pytest.mark.kafka("APM-16")
@with_each_ibp
async def test_one_request_in_flight(nursery, ibp) -> None:  # rule 9.52
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    for partition in range(3):
        f.submit(partition)
        await wait_all_tasks_blocked()
    assert f.requested == [[0]]
    f.channel.answer(_answer(0))
    await wait_all_tasks_blocked()
    assert f.requested == [[0], [1, 2]]


@pytest.mark.kafka("APM-5")
@with_each_ibp
@pytest.mark.parametrize("answered", [True, False])
async def test_items_submitted_during_a_request_are_sent_together(nursery, ibp, answered) -> None:  # rules 9.52, 9.55
    f = Fixture(ibp=ibp)
    nursery.start_soon(f.manager.run)
    f.submit(0)
    await wait_all_tasks_blocked()
    for partition in range(1, 10):
        f.submit(partition)
        await wait_all_tasks_blocked()
    assert f.requested == [[0]]
    f.channel.answer(_answer(0) if answered else wire.AlterPartitionResponse())
    await wait_all_tasks_blocked()
    assert f.requested == [[0], list(range(1 if answered else 0, 10))]


@pytest.mark.kafka("APM-6")
async def test_an_item_submitted_by_a_callback_is_sent_next(nursery) -> None:
    f = Fixture()
    nursery.start_soon(f.manager.run)
    item = _item()
    results: list[Result] = []

    def again(result: Result) -> None:
        results.append(result)
        assert f.manager.submit(item, results.append)

    f.manager.submit(item, again)
    f.channel.answer(_answer(0, error=ErrorCode.UNKNOWN_SERVER_ERROR))
    f.channel.answer(_answer(0))
    await wait_all_tasks_blocked()
    assert results == [ErrorCode.UNKNOWN_SERVER_ERROR, WRITTEN]
    assert len(f.channel.requests) == 2
    assert f.manager.submit(item, results.append)  # nothing is pending


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, marks=pytest.mark.kafka("APM-7")),
        pytest.param(ErrorCode.STALE_BROKER_EPOCH, marks=pytest.mark.kafka("APM-8")),
        pytest.param(ErrorCode.UNKNOWN_SERVER_ERROR, marks=pytest.mark.kafka("APM-9")),
        pytest.param(wire.UnsupportedVersion("not known there"), marks=pytest.mark.kafka("APM-11")),
    ],
)
async def test_a_top_level_error_is_retried_after_50_ms(
    nursery, autojump_clock: MockClock, failure
) -> None:  # rules 9.52, 9.54
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.submit(0)
    is_code = isinstance(failure, ErrorCode)
    f.channel.answer(wire.AlterPartitionResponse(error_code=failure) if is_code else failure)
    begin = trio.current_time()
    await trio.sleep(0.049)
    assert len(f.channel.requests) == 1
    assert not f.submit(0)  # still pending
    f.submit(1)
    f.epoch = 80  # after another registration
    await trio.sleep(0.002)
    assert f.requested == [[0], [0, 1]]
    assert f.channel.requests[1].broker_epoch == 80
    assert f.results == []
    f.channel.answer(_answer(0, 1))
    await wait_all_tasks_blocked()
    assert [name for name, _ in f.results] == ["a-0", "a-1"]
    assert trio.current_time() - begin < 0.06
    assert f.submit(0)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ErrorCode.INVALID_UPDATE_VERSION, marks=pytest.mark.kafka("APM-12")),
        pytest.param(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=pytest.mark.kafka("APM-13")),
        pytest.param(ErrorCode.NOT_LEADER_OR_FOLLOWER, marks=pytest.mark.kafka("APM-14")),
        pytest.param(ErrorCode.INVALID_REQUEST, marks=pytest.mark.kafka("APM-15")),
    ],
)
async def test_a_partition_error_completes_its_item(nursery, error) -> None:
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.submit(0)
    f.channel.answer(_answer(0, error=error))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", error)]
    assert f.submit(0)


@pytest.mark.kafka("APM-17")
@with_each_ibp
async def test_a_partition_missing_from_the_response_is_resent(nursery, ibp) -> None:  # rule 9.55
    f = Fixture(ibp=ibp)
    refused = ErrorCode.UNKNOWN_SERVER_ERROR
    nursery.start_soon(f.manager.run)
    f.submit(0)
    await wait_all_tasks_blocked()
    f.submit(1)
    f.submit(2)
    f.channel.answer(_answer(0, error=refused))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", refused)]
    assert f.requested == [[0], [1, 2]]
    f.channel.answer(_answer(2, error=refused))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", refused), ("a-2", refused)]
    assert f.requested == [[0], [1, 2], [1]]
    f.channel.answer(_answer(1, error=refused))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", refused), ("a-2", refused), ("a-1", refused)]
    assert len(f.channel.requests) == 3
    assert set(f.channel.versions) == {1 if ibp == "2.7-IV2" else 3}


async def test_unknown_topics_and_partitions_in_the_response_are_ignored(nursery) -> None:  # rule 9.55
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.submit(0)
    f.channel.answer(_answer(0, topic="z", topic_id=ID_B))
    f.channel.answer(_answer(0, 7))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", WRITTEN)]


async def test_an_invalid_recovery_state_in_the_response_is_an_unknown_error(nursery) -> None:  # rule 9.55
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.submit(0)
    f.channel.answer(_answer(0, leader_recovery_state=2))
    await wait_all_tasks_blocked()
    assert f.results == [("a-0", ErrorCode.UNKNOWN_SERVER_ERROR)]


async def test_a_failing_callback_does_not_stop_the_manager(nursery, caplog) -> None:
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.manager.submit(_item(0), lambda result: 1 / 0)  # type: ignore[func-returns-value]
    f.submit(1)
    f.channel.answer(_answer(0, 1))
    await wait_all_tasks_blocked()
    assert [name for name, _ in f.results] == ["a-1"]
    assert "a-0 could not be applied" in caplog.text


async def test_the_channel_sees_every_error_code(nursery) -> None:  # rule 9.56
    f = Fixture()
    nursery.start_soon(f.manager.run)
    f.submit(0)
    f.channel.answer(_answer(0, error=41))
    await wait_all_tasks_blocked()
    assert f.channel.error_codes == [0, 41]
