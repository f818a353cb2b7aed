"""FindCoordinator and InitProducerId (rules G1.1-G1.10, T1.1-T1.4, B3.57-B3.59, T4.1)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kce import wire
from kce.broker_stub.internal_topics import partition_for
from kce.broker_stub.ports import NoStore
from kce.wire import ErrorCode
from tests.broker_stub.support import Node, umr_broker, umr_state, update_metadata

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"


@pytest.mark.parametrize(
    ("group", "partition"),
    [
        ("", 0), ("foo", 24), ("groupId", 18), ("otherGroup", 13), ("my-group", 12), ("grp", 29),
        ("connect-cluster", 13), ("消费者组", 38), ("g😀", 32), ("polygenelubricants", 0),
    ],
)  # fmt: skip
def test_a_group_belongs_to_the_partition_of_its_hash(group: str, partition: int) -> None:  # rule G1.2
    assert partition_for(group, 50) == partition


async def test_a_negative_hash_uses_its_absolute_value() -> None:  # rules G1.1, G1.2
    node = Node(offsets_topic_num_partitions="5")
    states = [umr_state(number, leader=number) for number in range(5)]
    node.cache.update(update_metadata(*states, topic=OFFSETS, alive=tuple(umr_broker(b) for b in range(5))))
    request = wire.FindCoordinatorRequest(coordinator_keys=("readers-0", "readers-4", "polygenelubricants"))
    found = (await node.ask(request, 4)).coordinators
    assert [c.node_id for c in found] == [1, 2, 0]


def node_with_coordinators() -> Node:
    """Leaders of __consumer_offsets: broker 1 of partition 0; 2, only on CONTROL, of 1; a dead broker of 2."""
    node = Node(offsets_topic_num_partitions="3")
    states = (umr_state(0, leader=1), umr_state(1, leader=2), umr_state(2, leader=7))
    node.cache.update(update_metadata(*states, topic=OFFSETS, alive=(umr_broker(1), umr_broker(2, ["CONTROL"]))))
    return node


#: "b" hashes to 98, "c" to 99, "d" to 100
LED_BY_1, LED_BY_2, LED_BY_7 = "c", "d", "b"


@pytest.mark.parametrize("version", range(4))
async def test_find_one_coordinator(version: int) -> None:  # rules G1.4, G1.9, G1.10
    node = node_with_coordinators()
    found = await node.ask(wire.FindCoordinatorRequest(key=LED_BY_1), version)
    assert (found.error_code, found.node_id, found.port) == (ErrorCode.NONE, 1, 9011)
    for key in (LED_BY_2, LED_BY_7):
        found = await node.ask(wire.FindCoordinatorRequest(key=key), version)
        assert (found.error_code, found.node_id, found.host, found.port) == (
            ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1,
        )  # fmt: skip
    found = await node.ask(wire.FindCoordinatorRequest(key=LED_BY_2), version, listener="CONTROL")
    assert found.node_id == 2


@pytest.mark.parametrize("version", range(4, 7))
async def test_find_several_coordinators(version: int) -> None:  # rules G1.4, G1.10
    request = wire.FindCoordinatorRequest(coordinator_keys=(LED_BY_7, LED_BY_1))
    found = (await node_with_coordinators().ask(request, version)).coordinators
    assert [(c.key, c.node_id, c.error_code, c.error_message) for c in found] == [
        (LED_BY_7, -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, ""),
        (LED_BY_1, 1, ErrorCode.NONE, ""),
    ]


class Topics(NoStore):
    """Creates topics, or fails."""

    def __init__(self, *answers: wire.CreatableTopicResult | Exception) -> None:
        self.asked: list[tuple[Any, dict[int, str | None]]] = []
        self.answers = list(answers)

    async def create_topics(self, topics: Any, brokers: Any, **more: Any) -> list[wire.CreatableTopicResult]:
        self.asked.append((list(topics), dict(brokers)))
        answer = self.answers.pop(0)
        await trio.sleep(1)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


async def test_the_first_look_up_creates_the_topic(autojump_clock: trio.testing.MockClock) -> None:  # G1.6 to G1.8
    too_few = wire.CreatableTopicResult(name=OFFSETS, error_code=ErrorCode.INVALID_REPLICATION_FACTOR)
    topics = Topics(RuntimeError("no ZooKeeper"), too_few, wire.CreatableTopicResult(name=OFFSETS))
    settings = {"offsets_topic_num_partitions": "7", "offsets_topic_replication_factor": "2"}
    async with trio.open_nursery() as nursery:
        node = Node(nursery=nursery, admin=topics, offsets_topic_segment_bytes="1234", **settings)
        node.cache.update(update_metadata(alive=(1, umr_broker(2, rack="r"))))
        for _ in range(3):
            for _ in range(2):  # only one creation is under way
                (found,) = (await node.ask(wire.FindCoordinatorRequest(coordinator_keys=("g",)), 4)).coordinators
                assert (found.error_code, found.node_id, found.host, found.port) == (15, -1, "", -1)
            await trio.sleep(2)
    assert len(topics.asked) == 3
    ((topic,), brokers) = topics.asked[-1]
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (OFFSETS, 7, 2)
    configs = {config.name: config.value for config in topic.configs}
    assert configs == {"cleanup.policy": "compact", "segment.bytes": "1234", "compression.type": "producer"}
    assert brokers == {1: None, 2: "r"}


@pytest.mark.parametrize(
    ("version", "brokers"),
    [
        pytest.param(6, 3, marks=pytest.mark.kafka("TKA-1")),
        pytest.param(6, 1, marks=pytest.mark.kafka("TKA-2")),
        pytest.param(3, 3, marks=pytest.mark.kafka("TKA-3")),
        pytest.param(3, 1, marks=pytest.mark.kafka("TKA-4")),
    ],
)
async def test_a_look_up_asks_for_the_topic_of_transactions(
    autojump_clock: trio.testing.MockClock, version: int, brokers: int
) -> None:  # rules T1.4, G1.10
    """With too few brokers too; each time the topic is not there yet."""
    error = ErrorCode.NONE if brokers == 3 else ErrorCode.INVALID_REPLICATION_FACTOR
    topics = Topics(wire.CreatableTopicResult(name=TRANSACTIONS, error_code=error))
    settings = {"transaction.state.log.num.partitions": "3", "transaction.state.log.replication.factor": "3"}
    async with trio.open_nursery() as nursery:
        node = Node(nursery=nursery, admin=topics, **settings)
        node.cache.update(update_metadata(topic="other", alive=tuple(umr_broker(b) for b in range(brokers))))
        if version >= 4:
            request = wire.FindCoordinatorRequest(key_type=1, coordinator_keys=("group",))
            (found,) = (await node.ask(request, version)).coordinators
            assert found.key == "group"
        else:
            found = await node.ask(wire.FindCoordinatorRequest(key_type=1, key="group"), version)
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    (((topic,), known),) = topics.asked
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (TRANSACTIONS, 3, 3)
    assert len(known) == brokers


@pytest.mark.kafka("TAC-1")
async def test_a_look_up_creates_the_topic_of_transactions(
    autojump_clock: trio.testing.MockClock,
) -> None:  # rule T1.4
    topics = Topics(wire.CreatableTopicResult(name=TRANSACTIONS))
    settings = {
        "transaction.state.log.num.partitions": "7", "transaction.state.log.replication.factor": "2",
        "transaction.state.log.segment.bytes": "1234", "transaction.state.log.min.isr": "3",
    }  # fmt: skip
    async with trio.open_nursery() as nursery:
        node = Node(nursery=nursery, admin=topics, **settings)
        for _ in range(2):
            request = wire.FindCoordinatorRequest(coordinator_keys=("t",), key_type=1)
            (found,) = (await node.ask(request, 4)).coordinators
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (((topic,), _),) = topics.asked
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (TRANSACTIONS, 7, 2)
    assert {config.name: config.value for config in topic.configs} == {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false",
        "min.insync.replicas": "3", "segment.bytes": "1234",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("transactional_id", "partition"),
    [("foobar", 13), ("barfoo", 13), ("known", 27), ("txn1", 35), ("test-txn", 31), ("a", 47), ("b", 48)],
)
async def test_a_transactional_id_belongs_to_the_partition_of_its_hash(
    transactional_id: str, partition: int
) -> None:  # rule T1.1
    node = Node()
    states = [umr_state(number, leader=2 if number == partition else 1) for number in range(50)]
    node.cache.update(update_metadata(*states, topic=TRANSACTIONS, alive=(umr_broker(1), umr_broker(2))))
    request = wire.FindCoordinatorRequest(coordinator_keys=(transactional_id,), key_type=1)
    (found,) = (await node.ask(request, 4)).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 2)


async def test_key_types() -> None:  # rules G1.5, G1.6
    node = node_with_coordinators()
    node.cache.update(update_metadata(umr_state(0, leader=7), topic=TRANSACTIONS, alive=(1,)))

    async def errors(kind: int, version: int) -> set[tuple[int, str | None]]:
        request = wire.FindCoordinatorRequest(coordinator_keys=("c",), key_type=kind)
        return {(c.error_code, c.error_message) for c in (await node.ask(request, version)).coordinators}

    assert await errors(1, 5) == {(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")}  # its leader is not alive
    assert await errors(2, 5) == {(ErrorCode.INVALID_REQUEST, "")}
    assert await errors(2, 6) == {(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")}
    assert await errors(3, 6) == {(ErrorCode.INVALID_REQUEST, None)}


class Blocks:
    """A controller that refuses the first request, then allocates blocks of two ids."""

    def __init__(self) -> None:
        self.requests: list[wire.Message] = []

    async def request(self, api_key: int, max_version: int, build: Any, error_codes: Any) -> wire.Message:
        assert (api_key, max_version) == (67, 0)
        self.requests.append(build(0))
        if len(self.requests) == 1:
            return wire.AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        return wire.AllocateProducerIdsResponse(producer_id_start=1000 * len(self.requests), producer_id_len=2)


async def test_producer_ids_come_from_blocks(
    autojump_clock: trio.testing.MockClock,
) -> None:  # rules B3.57-B3.59
    async with trio.open_nursery() as nursery:
        blocks = Blocks()
        node = Node(nursery=nursery, channel=blocks)
        node.broker_epoch = 70

        async def ask() -> tuple[int, int, int]:
            answer = await node.ask(wire.InitProducerIdRequest(transactional_id=None), 5)
            return answer.error_code, answer.producer_id, answer.producer_epoch

        loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        assert [await ask(), await ask()] == [loading, loading]
        await trio.sleep(1)
        assert [await ask(), await ask(), await ask()] == [(0, 2000, 0), (0, 2001, 0), loading]
        await trio.sleep(1)
        assert await ask() == (0, 3000, 0)
        assert blocks.requests == [wire.AllocateProducerIdsRequest(broker_id=1, broker_epoch=70)] * 3


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (wire.InitProducerIdRequest(transactional_id="t"), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (wire.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1), ErrorCode.NOT_COORDINATOR),
        (wire.InitProducerIdRequest(transactional_id=""), ErrorCode.INVALID_REQUEST),
        (wire.InitProducerIdRequest(transactional_id=None, producer_id=3), ErrorCode.INVALID_REQUEST),
        (wire.InitProducerIdRequest(transactional_id="t", producer_epoch=3), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_refused_ids(message: wire.Message, error: ErrorCode) -> None:  # rules B3.58, T4.1
    answer = await Node().ask(message, 5)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (error, -1, -1)
