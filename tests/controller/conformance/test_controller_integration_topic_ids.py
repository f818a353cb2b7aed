"""CI-45 to CI-53: topic ids (section 14 of docs/controller-semantics.md; rules 4.7, 5.5, 8.16, 10.27)."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from trio.testing import MockClock

from kce import wire
from kce.controller.kafka_controller import KafkaController
from kce.wire.metadata_version import MetadataVersion
from kce.zookeeper import znodes
from tests.broker_stub.support import Node, update_metadata
from tests.controller.conformance.cluster import add_partitions, create, start, stop
from tests.controller.support import World, world

OLD, NEW = MetadataVersion.parse("2.7"), MetadataVersion.parse("3.9")


async def stored_id(w: World, topic: str = "t") -> uuid.UUID | None:
    return (await w.zk.get_topic_assignments([topic]))[topic].topic_id


def known_id(controller: KafkaController, topic: str = "t") -> uuid.UUID | None:
    topic_id = controller.context.topic_ids.get(topic)
    assert {i: t for t, i in controller.context.topic_ids.items()} == controller.context.topic_names
    return topic_id


async def delete(w: World, controller: KafkaController, topic: str) -> None:
    await w.zk.ensure_paths([znodes.delete_topic_path(topic)])
    await w.settle()
    assert await w.get(znodes.topic_path(topic)) is None
    assert topic not in controller.context.topics
    assert known_id(controller, topic) is None


async def next_controller(w: World, controller: KafkaController, ibp: MetadataVersion | None = None) -> KafkaController:
    """The broker goes and comes again, with another version if one is given."""
    broker = controller.config.broker_id
    await stop(w, broker)
    w.ibp = ibp or w.ibp
    return await w.start_controller(broker)


async def log_ids(w: World, broker: int) -> dict[str, uuid.UUID]:
    """What a broker that obeys all it was sent has as topic ids in its logs."""
    node = Node(broker_id=broker)
    await node.ask(update_metadata(alive=w.brokers))
    for sent in w.brokers[broker].received:
        if isinstance(sent.message, wire.LeaderAndIsrRequest):
            answer = await node.ask(_without_broker_epoch(sent.message), sent.header.api_version)
            assert answer.error_code == 0
    return {tp.topic: i for tp in node.replicas.partitions if (i := node.replicas.partitions[tp].topic_id)}


def _without_broker_epoch(message: wire.LeaderAndIsrRequest) -> wire.LeaderAndIsrRequest:
    return dataclasses.replace(message, broker_epoch=-1)


@pytest.mark.kafka("CI-45")
async def test_ids_are_added(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        controller = await w.start_controller(0)
        for topic in ("t", "u"):
            assert known_id(controller, topic) is None
            await create(w, topic, {0: [0, 1]})
            assert await w.state(topic) == (0, 0, (0, 1))
        made = {topic: known_id(controller, topic) for topic in ("t", "u")}
        assert None not in made.values()
        assert made["t"] != made["u"]
        assert {topic: await stored_id(w, topic) for topic in made} == made
        await create(w, "v", {0: [0]})
        assert {topic: known_id(controller, topic) for topic in made} == made


@pytest.mark.kafka("CI-46")
async def test_ids_are_not_added_by_an_old_version(autojump_clock: MockClock) -> None:
    async with world([1], ibp=OLD) as w:
        controller = await w.start_controller(0)
        for topic in ("t", "u"):
            await create(w, topic, {0: [0, 1]})
            assert await w.state(topic) == (0, 0, (0, 1))
            assert (known_id(controller, topic), await stored_id(w, topic)) == (None, None)


@pytest.mark.kafka("CI-47")
async def test_an_id_is_kept_when_partitions_are_added_and_goes_with_the_topic(autojump_clock: MockClock) -> None:
    async with world([1]) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0]})
        topic_id = known_id(controller)
        assert topic_id is not None
        await add_partitions(w, "t", {1: [1]})
        assert await w.state("t", 1) == (1, 0, (1,))
        assert (known_id(controller), await stored_id(w)) == (topic_id, topic_id)
        await delete(w, controller, "t")
        assert topic_id not in controller.context.topic_names


@pytest.mark.kafka("CI-48")
async def test_an_old_version_never_makes_ids(autojump_clock: MockClock) -> None:
    async with world([1], ibp=OLD) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0]})
        await add_partitions(w, "t", {1: [1]})
        assert await w.state("t", 1) == (1, 0, (1,))
        assert (known_id(controller), await stored_id(w)) == (None, None)
        await delete(w, controller, "t")


@pytest.mark.kafka("CI-49")
async def test_an_id_outlives_its_controller(autojump_clock: MockClock) -> None:
    async with world([]) as w:
        first = await w.start_controller(0)
        second = await w.start_controller(1)
        await create(w, "t", {0: [0, 1]})
        topic_id = known_id(first)
        assert topic_id is not None
        await stop(w, 0)
        assert second.is_active
        assert (known_id(second), await stored_id(w)) == (topic_id, topic_id)


@pytest.mark.kafka("CI-50")
async def test_the_next_controller_of_an_old_version_makes_no_id(autojump_clock: MockClock) -> None:
    async with world([], ibp=OLD) as w:
        await w.start_controller(0)
        second = await w.start_controller(1)
        await create(w, "t", {0: [0, 1]})
        await stop(w, 0)
        assert second.is_active
        assert (known_id(second), await stored_id(w)) == (None, None)


@pytest.mark.kafka("CI-51")
async def test_an_id_outlives_a_restart(autojump_clock: MockClock) -> None:
    async with world([]) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0]})
        topic_id = known_id(controller)
        assert topic_id is not None
        again = await next_controller(w, controller)
        assert (known_id(again), await stored_id(w)) == (topic_id, topic_id)


@pytest.mark.kafka("CI-52")
async def test_an_upgrade_gives_an_id(autojump_clock: MockClock) -> None:
    async with world([], ibp=OLD) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [0]})
        assert (known_id(controller), await log_ids(w, 0)) == (None, {})
        upgraded = await next_controller(w, controller, NEW)
        topic_id = await stored_id(w)
        assert topic_id is not None
        assert known_id(upgraded) == topic_id
        assert await log_ids(w, 0) == {"t": topic_id}
        await delete(w, upgraded, "t")


@pytest.mark.kafka("CI-53")
async def test_an_upgrade_of_the_controller_gives_an_id_to_all_replicas(autojump_clock: MockClock) -> None:
    async with world([1, 2], ibp=OLD) as w:
        controller = await w.start_controller(0)
        await create(w, "t", {0: [1, 2]})
        assert (known_id(controller), await stored_id(w)) == (None, None)
        assert [await log_ids(w, broker) for broker in (1, 2)] == [{}, {}]
        upgraded = await next_controller(w, controller, NEW)
        topic_id = await stored_id(w)
        assert topic_id is not None
        assert known_id(upgraded) == topic_id
        assert await w.state("t") == (1, 0, (1, 2))  # at the leader epoch that the brokers have already (rule 9.19)
        for broker in (1, 2):
            assert await log_ids(w, broker) == {"t": topic_id}
        await start(w, 3)
        assert await stored_id(w) == topic_id
        await delete(w, upgraded, "t")
