"""Topics that the controller's node creates itself: read right behind the write (rules 1.56, 1.57, 10.26)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from random import Random
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import MockClock

from kce.controller.topics_ahead import MOST, TopicsAhead, TopicsRead
from kce.zookeeper import admin, znodes
from kce.zookeeper.admin import NewTopic
from kce.zookeeper.kafka_zk_client import Creation, KafkaZkClient
from kce.zookeeper.model import TopicAssignment, TopicPartition
from kce.zookeeper.store import NoNode, StoreError
from kce.zookeeper.store.memory import MemoryZooKeeper
from tests.controller.support import world

A, B = uuid4(), uuid4()


def read(ids: Mapping[str, UUID | None], names: Collection[str] = ()) -> TopicsRead:
    return {*ids, *names}, {topic: TopicAssignment(topic, topic_id, {}) for topic, topic_id in ids.items()}


class Reader:
    """Answers when a test says so."""

    def __init__(self, answer: TopicsRead | Exception) -> None:
        self.answer = answer
        self.may_answer = trio.Event()
        self.asked: list[set[str]] = []

    async def __call__(self, topics: Collection[str]) -> TopicsRead:
        self.asked.append(set(topics))
        await self.may_answer.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def creation(ids: Mapping[str, UUID | None]) -> Creation:
    return Creation({topic: TopicAssignment(topic, topic_id, {}) for topic, topic_id in ids.items()})


def end(made: Creation, *, is_written: bool = True) -> Creation:
    made.is_written = is_written
    made.ended.set()
    return made


async def answer(ahead: TopicsAhead) -> TopicsRead | None:
    taken = ahead.take()
    return None if taken is None else await taken.read()


async def test_read_waits_for_the_answer_and_has_it_once() -> None:
    reader = Reader(read({"a": A}, {"other"}))
    ahead = TopicsAhead(reader)
    taken: list[TopicsRead | None] = []

    async def take() -> None:
        taken.append(await answer(ahead))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ahead.read, creation({"a": A}))
        await trio.testing.wait_all_tasks_blocked()
        ahead.notified()
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        assert taken == []
        ahead.notified()  # the answer, which comes later, has this change too
        reader.may_answer.set()
    assert taken == [reader.answer]
    assert reader.asked == [{"a"}]
    assert ahead.take() is None


@pytest.mark.parametrize("is_written", [True, False])
async def test_what_was_written_is_known_before_it_is_read(is_written: bool) -> None:
    ahead = TopicsAhead(Reader(read({"a": A})))
    made, known = creation({"a": A}), list[Mapping[str, TopicAssignment]]()

    async def take() -> None:
        taken = ahead.take()
        assert taken is not None
        known.append(await taken.written())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ahead.read, made)
        await trio.testing.wait_all_tasks_blocked()
        ahead.notified()
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        assert known == []
        end(made, is_written=is_written)
        await trio.testing.wait_all_tasks_blocked()
        assert known == [made.topics if is_written else {}]
        nursery.cancel_scope.cancel()


async def taken_after(reader: Reader, events: int, *, is_due: bool = False) -> TopicsRead | None:
    reader.may_answer.set()
    ahead = TopicsAhead(reader)
    if is_due:
        ahead.notified()
        ahead.notified()
    made = end(creation({"a": A, "b": B}))
    await ahead.read(made)
    for _ in range(events):
        ahead.notified()
    taken = ahead.take()
    assert taken is not None
    found = await taken.read()
    if events + is_due > 1:
        assert found is None
    assert await taken.written() == ({} if events + is_due > 1 else made.topics)
    return found


async def test_neither_is_used_after_a_second_event() -> None:
    found = read({"a": A, "b": B})
    assert [await taken_after(Reader(found), events) for events in range(4)] == [found, found, None, None]
    assert [await taken_after(Reader(found), events, is_due=True) for events in range(2)] == [found, None]
    ahead = TopicsAhead(reader := Reader(found))
    reader.may_answer.set()
    ahead.notified()
    assert ahead.take() is None
    await ahead.read(creation({"a": A, "b": B}))
    ahead.notified()
    assert await answer(ahead) == found


async def test_the_event_of_an_early_read_needs_no_other() -> None:
    reader = Reader(found := read({"a": A}))
    ahead = TopicsAhead(reader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ahead.read, end(creation({"a": A})), is_early=True))
        await trio.testing.wait_all_tasks_blocked()
        taken = ahead.take()
        assert taken is not None
        assert [ahead.notified() for _ in range(2)] == [False, True]  # a second is of another change
        assert ahead.is_due
        reader.may_answer.set()
        assert await taken.read() == found
    assert ahead.notified()
    await ahead.read(end(creation({"a": A})), is_early=True)
    assert ahead.notified()  # it has been read
    await ahead.read(creation({"a": A}))
    assert ahead.notified()


@pytest.mark.parametrize(
    "wrong",
    [
        read({"a": A}),
        read({"a": A}, {"b"}),
        ({"a"}, read({"a": A, "b": B})[1]),
        read({"a": A, "b": A}),
        read({"a": A, "b": None}),
        NoNode("/brokers/topics"),
    ],
)
async def test_an_answer_without_what_was_written_is_not_used(wrong: TopicsRead | StoreError) -> None:
    assert await taken_after(Reader(wrong), 1) is None


async def test_clear_and_cancel() -> None:
    reader = Reader(read({"a": A}))
    ahead = TopicsAhead(reader)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ahead.read, creation({"a": A}))
        await trio.testing.wait_all_tasks_blocked()
        ahead.clear()
        assert ahead.take() is None
        nursery.start_soon(ahead.read, creation({"a": A}))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await answer(ahead) is None  # does not wait for ever


def new_topics(names: Sequence[str], zk: KafkaZkClient, broker: int = 1) -> list[NewTopic]:
    return [NewTopic(name, {0: (broker,)}, {}, zk.new_uuid()) for name in names]


async def test_reads_of_a_creation(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of the names for each creation, which is sent before the event comes; then all is watched."""
    async with world() as w:
        controller = await w.start_controller(1)
        node = w.nodes[1]
        plain, reads = node.store.get_children, list[bool]()
        is_there = False

        async def get_children(paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
            if list(paths) == [znodes.TOPICS]:
                reads.append(is_there)
            return await plain(paths, watch=watch)

        monkeypatch.setattr(node.store, "get_children", get_children)
        watched = node.store.on_watch

        def on_watch(event: object) -> None:
            nonlocal is_there
            is_there = True
            watched(event)  # type: ignore[arg-type]

        monkeypatch.setattr(node.store, "on_watch", on_watch)
        for number in range(3):
            is_there = False
            assert await admin.write_topics(node.zk, new_topics([f"t{number}", f"u{number}"], node.zk)) == {}
            await w.settle()
            assert await w.state(f"t{number}") == (1, 0, (1,))
            assert await w.state(f"u{number}") == (1, 0, (1,))
        assert reads == [False] * 3
        reads.clear()
        assert await admin.write_topics(node.zk, []) == {}  # as for a request that only validates
        assert reads == []
        is_there = False
        await admin.write_topics(node.zk, new_topics([f"many{n}" for n in range(MOST + 1)], node.zk))
        await w.settle()
        assert await w.state(f"many{MOST}") == (1, 0, (1,))
        assert set(reads) == {True}
        found, added = await admin.plan_partitions(w.zk, "t2", 2, None, random=Random(0))
        await admin.add_partitions(w.zk, found, added)
        await w.create_topic("foreign", {0: [2]})
        await w.settle()
        assert await w.state("foreign") == (2, 0, (2,))
        assert len(controller.context.topic_assignments("t2")) == 2
        assert list(await admin.write_topics(node.zk, new_topics(["foreign", "new"], node.zk))) == ["foreign"]
        await w.settle()
        assert await w.state("new") == (1, 0, (1,))
        await w.create_topic("last", {0: [2]})
        assert await w.state("last") == (2, 0, (2,))


async def test_topics_of_this_node_are_created_before_their_read_is_answered(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else has changed is found out when that is answered."""
    async with world() as w, trio.open_nursery() as nursery:
        controller = await w.start_controller(1)
        node = w.nodes[1]
        plain, may_answer = node.store.get_children, trio.Event()

        async def get_children(paths: Sequence[str], *, watch: bool = False) -> list[list[str] | StoreError]:
            answers = await plain(paths, watch=watch)
            if list(paths) == [znodes.TOPICS]:
                await may_answer.wait()
            return answers

        monkeypatch.setattr(node.store, "get_children", get_children)
        nursery.start_soon(admin.write_topics, node.zk, new_topics(["ours"], node.zk))
        await trio.sleep(1)
        await w.create_topic("foreign", {0: [2]})
        await trio.sleep(1)
        assert controller.context.topics == {"ours"}
        assert await w.state("ours") == (1, 0, (1,))
        may_answer.set()
        await w.settle()
        assert await w.state("foreign") == (2, 0, (2,))


async def test_without_ids_topics_are_read_after_the_event(autojump_clock: MockClock) -> None:
    async with world() as w:
        controller = await w.start_controller(1)
        zk = w.nodes[1].zk
        await admin.write_topics(zk, [NewTopic("t", {0: (2,)}, {}, None)])
        await w.settle()
        assert await w.state("t") == (2, 0, (2,))
        assert controller.context.topic_ids.keys() == {"t"}


@pytest.mark.parametrize("seed", range(100))
async def test_random_creations_and_deletions(autojump_clock: MockClock, seed: int) -> None:
    """By the controller's own node and by others, at random times, also while ZooKeeper cannot be reached."""
    random = Random(seed)
    names = [f"t{number}" for number in range(40)]
    async with trio.open_nursery() as of_server, world(server=MemoryZooKeeper(nursery=of_server)) as w:
        controller = await w.start_controller(1)
        zk = w.nodes[1].zk

        async def change(by: KafkaZkClient) -> None:
            await trio.sleep(random.random() * 0.05)
            chosen = random.sample(names, random.randint(1, 2))  # by two at a time, too
            if random.random() < 0.1:
                chosen = []  # a request whose topics were all refused
            if not chosen or random.random() < 0.75:
                await admin.write_topics(by, new_topics(chosen, by, random.randint(1, 3)))
            else:
                for name in chosen:  # and not created again: a controller need not notice that
                    names.remove(name)
                await trio.sleep(0.02)
                for name in chosen:
                    await by.delete_path(znodes.topic_path(name))

        async def trouble() -> None:
            for _ in range(random.randint(0, 3)):
                await trio.sleep(random.random() * 0.05)
                store = w.nodes[1].store
                random.choice([w.server.mute, w.server.disconnect])(store)
                await trio.sleep(random.random() * 0.01)
                w.server.reconnect(store)

        async with trio.open_nursery() as nursery:
            w.nodes[1].store.delay_s = random.choice([0, 0.001, 0.003])
            w.nodes[1].zk.new_uuid = w.new_uuid
            nursery.start_soon(trouble)
            for _ in range(random.randint(5, 40)):
                nursery.start_soon(change, random.choice([zk, w.zk]))
        await trio.sleep(10)
        await w.settle()
        there = await w.zk.get_topic_assignments(await w.zk.get_topics(watch=False))
        assert controller.context.topics == there.keys()
        assert controller.context.topic_ids == {name: found.topic_id for name, found in there.items()}
        for name, found in there.items():
            assert controller.context.topic_assignments(name) == found.partitions, name
            partitions = [TopicPartition(name, p) for p in found.partitions]
            states = await w.zk.get_partition_states(partitions)
            assert states == {tp: controller.context.leadership[tp] for tp in partitions}
        of_server.cancel_scope.cancel()
