"""LeaderAndIsr for new partitions of a broker with two log directories, where their logs have files at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from kce import wire
from kce.broker_stub import TopicPartition
from kce.broker_stub.reactor.turns import Turns
from kce.wire import ErrorCode
from kce.wire.steps import Steps
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.support import (
    ID_A,
    Node,
    answer_of,
    codes,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    update_metadata,
)

T = TypeVar("T")
A0, A1, A2 = (TopicPartition("a", i) for i in range(3))
FILES = ("leader-epoch-checkpoint", "partition.metadata")


class InTurns(Turns):
    """Others have a turn after each step."""

    def __init__(self, others: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._others = others

    async def take(self, steps: Steps[T]) -> T:
        while True:
            try:
                next(steps)
            except StopIteration as e:
                result: T = e.value
                return result
            await self._others()


async def a_node(*log_dirs: str) -> Node:
    """One that knows brokers 1, 2 and 3 as alive."""
    node = Node(log_manager=MemoryLogManager(log_dirs=log_dirs))
    node.logs._on_offline = lambda path, partitions: [node.replicas.mark_offline(partition) for partition in partitions]
    await node.logs.load()
    await node.ask(update_metadata())
    return node


async def answer(node: Node, message: wire.Message, others: Callable[[], Awaitable[None]]) -> Any:
    version = message.__versions__.last
    request, captured = node.request(message, version)
    request.connection._owner.turns = InTurns(others)  # type: ignore[attr-defined]
    waits = node.apis.handle(request)
    if waits is not None:
        await waits
    return answer_of(captured, message.__api_key__, version)


async def nothing() -> None:
    await trio.lowlevel.checkpoint()


def contents(node: Node) -> dict[str, list[bytes | None]]:
    """What the files of each log have, by its folder."""
    disk = node.logs.disk
    folders = [f"{path}/{name}" for path in ("/a", "/b") for name in disk.folders(path)]
    return {folder: [disk.read(f"{folder}/{name}") for name in FILES] for folder in folders}


async def test_others_have_turns_between_the_files_of_new_logs() -> None:
    """Nothing is hosted yet then. Afterwards, when all changes at once, no file is touched any more."""
    node = await a_node("/a", "/b")
    seen: list[dict[str, list[bytes | None]]] = []

    async def look() -> None:
        assert not node.replicas.partitions
        seen.append(contents(node))

    states = [lai_state(0, leader_epoch=4), lai_state(1, leader=2), lai_state(2, replicas=(2, 3)), lai_state(3)]
    answered = await answer(node, leader_and_isr(*states), look)
    assert [sorted(found) for found in seen] == [["/a/a-0"], ["/a/a-0", "/b/a-1"], ["/a/a-0", "/a/a-3", "/b/a-1"]]
    epochs = {folder: found[0] for folder, found in seen[-1].items()}
    assert epochs == {"/a/a-0": b"0\n1\n4 0\n", "/b/a-1": None, "/a/a-3": b"0\n1\n0 0\n"}
    assert contents(node) == seen[-1]
    assert all(node.logs.topic_id(partition) == ID_A for partition in node.logs.logs)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(codes(answered).values()) == [ErrorCode.NONE, ErrorCode.NONE, unknown, ErrorCode.NONE]
    assert [node.partition(i).is_leader for i in (0, 1, 3)] == [True, False, True]
    await answer(node, leader_and_isr(lai_state(0, leader_epoch=5)), look)
    assert len(seen) == 3  # its log is there


async def test_with_one_directory_there_is_nothing_to_wait_for() -> None:
    node = await a_node("/a")
    turns: list[None] = []

    async def count() -> None:
        turns.append(None)

    await answer(node, leader_and_isr(lai_state(0), lai_state(1)), count)
    assert (turns, node.partition(1).is_leader) == ([], True)


async def test_a_long_answer_comes_too() -> None:
    node = await a_node("/a", "/b")
    states = [lai_state(i, replicas=(2, 3)) for i in range(3000)]
    assert len(codes(await answer(node, leader_and_isr(*states), nothing))) == 3000


async def test_logs_that_a_broker_has_when_it_starts_are_left_as_they_are_until_then() -> None:
    before = await a_node("/a", "/b")
    await answer(before, leader_and_isr(lai_state(0)), nothing)
    node = Node(log_manager=before.logs)

    async def look() -> None:
        assert sorted(contents(node)) == ["/a/a-0", "/b/a-1"]
        assert node.logs.logs[A0].latest_epoch == 0

    await answer(node, leader_and_isr(lai_state(0, leader_epoch=9), lai_state(1)), look)
    assert node.logs.logs[A0].latest_epoch == 9


async def test_the_next_controller_comes_between() -> None:
    """It deletes the topic: the rest of its logs is not made."""
    node = await a_node("/a", "/b")

    async def take_over() -> None:
        await node.ask(stop_replica((0, -2, True), controller_epoch=2))

    answered = await answer(node, leader_and_isr(lai_state(0), lai_state(1)), take_over)
    assert answered.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert (node.logs.logs, node.replicas.partitions) == ({}, {})


async def test_a_directory_fails_between() -> None:
    """Only logs that were in it are offline; what the others may not do without it is said in the end (rule 9.24)."""
    node = await a_node("/a", "/b")

    async def fail() -> None:
        if node.logs.online[0].path == "/a":
            node.logs.fail("/a")

    states = lai_state(0, is_new=True), lai_state(1, is_new=True), lai_state(2, leader=2)
    answered = await answer(node, leader_and_isr(*states), fail)
    offline = ErrorCode.KAFKA_STORAGE_ERROR
    assert list(codes(answered).values()) == [offline, ErrorCode.NONE, offline]
    assert node.replicas.offline_partitions == {A0, A2}
    assert list(node.logs.logs) == [A1]


async def test_an_offline_partition_and_one_whose_epoch_is_known_get_no_log() -> None:  # rules 9.13, 9.19
    """A partition that was not heard of has epoch -1."""
    node = await a_node("/a", "/b")
    node.replicas.offline_partitions.add(A0)
    answered = await answer(node, leader_and_isr(lai_state(0), lai_state(1, leader_epoch=-1)), nothing)
    assert list(codes(answered).values()) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert node.logs.logs == {}


async def test_settings_and_metadata_go_on_while_files_are_made() -> None:
    """What others change between is what the request meets."""
    node = await a_node("/a", "/b")
    await node.ask(update_metadata(umr_state(), alive=(1, 3)))
    turns: list[int] = []

    async def change() -> None:
        turns.append(len(node.logs.logs))
        node.logs.topic["segment.bytes"] = "2048"
        node.logs.update_config(["a"])
        await node.ask(update_metadata(umr_state(), alive=(1, 2, 3)))

    await answer(node, leader_and_isr(lai_state(0), lai_state(1, leader=2)), change)
    assert turns == [1, 2]
    assert {found.config.segment_bytes for found in node.logs.logs.values()} == {2048}
    assert node.partition(1).leader == 2  # it was not alive before
