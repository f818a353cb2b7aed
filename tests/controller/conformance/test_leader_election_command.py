"""LEC: the requests of kafka-leader-election, through their bytes (section 14 of docs/controller-semantics.md;
rules of section 11d)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.vocabulary import ElectionType
from kce.zookeeper.model import TopicPartition
from tests.broker_stub.support import Node
from tests.controller.conformance.bench import TP
from tests.controller.conformance.cluster import propose_isr, stop
from tests.controller.conformance.served import restart, served_cluster
from tests.controller.support import World, world


async def elect(
    node: Node, partitions: Sequence[TopicPartition] | None, kind: ElectionType = ElectionType.PREFERRED
) -> dict[TopicPartition, int]:
    """ElectLeaders, of all partitions for None: the code of each that the answer names."""
    requested = None
    if partitions is not None:
        requested = tuple(
            wire.ElectLeadersRequestTopicPartitions(
                topic=topic, partitions=tuple(tp.partition for tp in partitions if tp.topic == topic)
            )
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
    answer = await node.ask(
        wire.ElectLeadersRequest(election_type=kind.value, topic_partitions=requested, timeout_ms=1000)
    )
    assert answer.error_code == 0
    return {
        TopicPartition(r.topic, p.partition_id): p.error_code
        for r in answer.replica_election_results
        for p in r.partition_result
    }


async def led_uncleanly_or_not_at_all(w: World, topic: str = "t") -> None:
    """Replicas [1, 2]: 2 fell out of the ISR, 1 is dead, and 2 is back."""
    await w.create_topic(topic, {0: [1, 2]})
    await stop(w, 2)
    await stop(w, 1)
    await restart(w, 2)
    assert await w.state(topic) == (-1, 2, (1,))


async def led_by_the_second(w: World, controller: KafkaController) -> None:
    """Partition 0 with replicas [1, 2], partition 1 with [2, 1]: 2 leads both, all are in the ISRs."""
    await w.create_topic("t", {0: [1, 2], 1: [2, 1]})
    await stop(w, 1)
    await restart(w, 1)
    for partition in (0, 1):
        await propose_isr(w, controller, [2, 1], partition=partition)
        assert (await w.state("t", partition))[::2] == (2, (2, 1))


@pytest.mark.kafka("LEC-1")
async def test_unclean_election_of_all_partitions(autojump_clock: MockClock) -> None:  # rules 11.32, 11.35
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await led_uncleanly_or_not_at_all(w)
        await w.create_topic("u", {0: [0]})
        assert await elect(nodes[0], None, ElectionType.UNCLEAN) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (2, 3, (2,))


@pytest.mark.kafka("LEC-3")
async def test_unclean_election_of_one_partition(autojump_clock: MockClock) -> None:  # rule 11.32
    async with world([1, 2]) as w:
        _, nodes = await served_cluster(w)
        await w.create_topic("u", {0: [1]})
        await led_uncleanly_or_not_at_all(w)
        assert await elect(nodes[0], [TP], ElectionType.UNCLEAN) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (2, 3, (2,))
        assert await w.state("u") == (-1, 1, (1,))


@pytest.mark.kafka("LEC-5")
async def test_preferred_election(autojump_clock: MockClock) -> None:  # rules 7.12, 11.36
    async with world([1, 2]) as w:
        controller, nodes = await served_cluster(w)
        await led_by_the_second(w, controller)
        assert await elect(nodes[0], None) == {TP: ErrorCode.NONE}
        assert await w.state("t") == (1, 2, (2, 1))
        known = nodes[0].cache.snapshot.partition(TP)
        assert known is not None
        assert known.leader == 1


@pytest.mark.kafka("LEC-6")
async def test_election_of_a_topic_that_does_not_exist(autojump_clock: MockClock) -> None:  # rule 11.30
    async with world([1]) as w:
        _, nodes = await served_cluster(w)
        unknown = TopicPartition("unknown", 0)
        assert await elect(nodes[0], [unknown]) == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.kafka("LEC-7")
async def test_elections_of_which_some_are_not_needed(autojump_clock: MockClock) -> None:  # rules 11.30, 11.33
    async with world([1, 2]) as w:
        controller, nodes = await served_cluster(w)
        await led_by_the_second(w, controller)
        await w.create_topic("u", {0: [9, 1]})
        t1, u0 = TopicPartition("t", 1), TopicPartition("u", 0)
        assert await elect(nodes[0], [TP, t1, u0]) == {
            TP: ErrorCode.NONE,
            t1: ErrorCode.ELECTION_NOT_NEEDED,
            u0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        }
        assert [(await w.state("t", partition))[0] for partition in (0, 1)] == [1, 2]
