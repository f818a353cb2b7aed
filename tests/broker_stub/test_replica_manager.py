"""What the replica manager tells the ISR policy and the log manager, in order; what replication makes of it.

Covers: broker_stub/replica_manager.py, broker_stub/replication/replication.py, broker_stub/replication/isr.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.partition import Partition
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.support import (
    NO_ID,
    Node,
    codes,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_broker,
    umr_state,
    update_metadata,
)

A0, A1, A2 = (TopicPartition("a", number) for number in range(3))


class Policy:
    """Records each call, with the partition's leader and whether it has a log then."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, what: str, partition: Partition) -> None:
        self.calls.append((what, partition.topic_partition.partition, partition.leader, partition.log is not None))

    def partition_changed(self, partition: Partition) -> None:
        self._note("changed", partition)

    def topic_id_changed(self, partition: Partition) -> None:
        self._note("topic id", partition)

    def partition_stopped(self, partition: Partition) -> None:
        self._note("stopped", partition)

    def metadata_changed(self, controller_epoch: int) -> None:
        self.calls.append(("metadata", controller_epoch))


class Logs(MemoryLogManager):
    """Records deletions."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.calls = calls

    def delete_log(self, partition: TopicPartition) -> None:
        self.calls.append(("delete", partition.partition))
        super().delete_log(partition)

    def checkpoint_deletions(self) -> None:
        self.calls.append(("checkpoint",))
        super().checkpoint_deletions()


async def test_what_it_tells() -> None:  # rules 9.13 to 9.34
    policy = Policy()
    node = Node(isr_policy=policy, log_manager=Logs(policy.calls))

    async def told(*messages: Any) -> list[tuple[Any, ...]]:
        policy.calls.clear()
        for message in messages:
            await node.ask(message)
        return list(policy.calls)

    assert await told(update_metadata(controller_epoch=3)) == [("metadata", 3)]
    assert await told(update_metadata(controller_epoch=2)) == []
    states = (lai_state(0), lai_state(1, leader=2), lai_state(2, leader=7), lai_state(3, replicas=(2,)))
    assert await told(leader_and_isr(*states, controller_epoch=3)) == [
        ("changed", 0, 1, True), ("changed", 1, 2, True)
    ]  # fmt: skip
    assert await told(leader_and_isr(*states, controller_epoch=2)) == []
    without_id = leader_and_isr(lai_state(0), lai_state(1, leader=2), topic_id=NO_ID, controller_epoch=3)
    assert await told(without_id) == [("topic id", 1, 2, True)]
    fenced = (lai_state(0, leader_epoch=9, partition_epoch=9), lai_state(1, leader=3, leader_epoch=9))
    assert await told(leader_and_isr(*fenced, controller_epoch=3)) == [("changed", 0, 1, True), ("changed", 1, 3, True)]
    stop = stop_replica((0, 8, True), (1, 9, False), (4, 9, False), controller_epoch=3)
    assert await told(stop) == [("stopped", 1, 3, True), ("checkpoint",)]
    delete = stop_replica((0, 9, True), (4, 9, True), controller_epoch=4)
    assert await told(delete) == [("changed", 0, -1, False), ("delete", 0), ("delete", 4), ("checkpoint",)]
    assert await told(stop_replica((1, 9, True), controller_epoch=3)) == []
    assert node.replicas.controller_epoch == 4
    policy.calls.clear()
    for _ in range(2):
        node.replicas.mark_offline(A1)
    assert policy.calls == [("changed", 1, -1, False)]
    assert node.replicas.offline_partitions == {A1}
    assert list(node.replicas.partitions) == [A2, TopicPartition("a", 3)]
    assert codes(await node.ask(stop_replica((1, 9, True), controller_epoch=4))) == {
        ("a", 1): ErrorCode.KAFKA_STORAGE_ERROR
    }


async def test_a_log_that_fails_while_its_role_changes(monkeypatch: pytest.MonkeyPatch) -> None:  # rules 9.24, 9.68
    policy = Policy()
    node = Node(isr_policy=policy)
    failures: list[int] = []
    node.replicas._on_log_dir_failure = lambda: failures.append(len(policy.calls))
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(0), lai_state(1)))
    policy.calls.clear()

    def fail(self: Partition, state: Any, topic_id: Any, now_ms: float) -> bool:
        if self.topic_partition == A0:
            raise KafkaStorageError("broken")
        return make_leader(self, state, topic_id, now_ms)

    make_leader = Partition.make_leader
    monkeypatch.setattr(Partition, "make_leader", fail)
    answer = await node.ask(leader_and_isr(lai_state(0, leader_epoch=1), lai_state(1, leader_epoch=1)))
    assert list(codes(answer).values()) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert policy.calls == [("changed", 0, -1, False), ("changed", 1, 1, True)]
    assert failures == [2]


async def test_what_replication_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:  # rules B5.1, B5.3, B5.6, B5.41
    node = Node()
    replication, calls = node.replication, list[tuple[Any, ...]]()

    def note(what: str, *values: Any) -> None:
        calls.append((what, *values))

    for part, methods in (
        (replication.fetchers, ("follow", "stop", "stop_idle", "update_topic_id", "reconsider")),
        (replication.isr, ("partition_changed", "shrink_laggards")),
        (replication.data_plane, ("became_leader", "role_changed")),
    ):
        for method in methods:
            monkeypatch.setattr(part, method, lambda *values, method=method: note(method, *values))
    await node.ask(update_metadata(alive=(1, umr_broker(2), umr_broker(3, ["CONTROL"]))))

    async def after(*states: Any, **more: Any) -> list[tuple[Any, ...]]:
        calls.clear()
        assert set(codes(await node.ask(leader_and_isr(*states, **more))).values()) == {0}
        return list(calls)

    led = await after(lai_state(0))
    zero = node.partition(0)
    assert led == [("partition_changed", zero), ("stop", [A0]), ("stop_idle",), ("became_leader", zero)]
    followed = await after(lai_state(1, leader=2, leader_epoch=6))
    one = node.partition(1)
    endpoint = node.cache.snapshot.endpoint(2, "DATA")
    assert endpoint is not None
    assert followed == [
        ("partition_changed", one),
        ("follow", A1, one.log, 2, 6, endpoint, one.requested_topic_id),
        ("stop_idle",),
        ("role_changed", one),
    ]
    unreachable = await after(lai_state(1, leader=3, leader_epoch=7))
    assert unreachable == [("partition_changed", one), ("stop", [A1]), ("stop_idle",), ("role_changed", one)]
    assert await after(lai_state(1, leader=3, leader_epoch=7), topic_id=NO_ID) == [("update_topic_id", A1, None)]
    calls.clear()
    await node.ask(stop_replica((1, 7, False)))
    assert calls == [("stop", [A1]), ("stop_idle",), ("role_changed", one)]
    calls.clear()
    await node.ask(update_metadata(umr_state(0)))
    assert calls == []


async def test_who_lags_on_command(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    replication, calls = node.replication, list[tuple[Any, ...]]()
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(0), lai_state(1, leader=2)))
    for part, method in ((replication.fetchers, "reconsider"), (replication.isr, "shrink_laggards")):
        monkeypatch.setattr(part, method, lambda *values, method=method: calls.append((method, *values)))

    def lag(partition: TopicPartition, broker_id: int, wanted: bool) -> list[tuple[Any, ...]]:
        calls.clear()
        replication.lag(partition, broker_id, wanted)
        return list(calls)

    zero, one = node.partition(0), node.partition(1)
    assert lag(A0, 2, True) == [("shrink_laggards", zero)]
    assert zero.followers.laggards == {2}
    assert lag(A0, 3, True) == [("shrink_laggards", zero)]
    assert lag(A0, 2, False) == [("shrink_laggards", zero)]
    assert zero.followers.laggards == {3}
    assert (replication._is_held(A0), replication._is_held(A1)) == (False, False)
    assert lag(A1, 1, True) == [("reconsider", A1)]
    assert (replication._is_held(A1), one.followers.laggards) == (True, {1})
    assert lag(A1, 3, True) == []  # its leader sees to it
    assert lag(A1, 1, False) == [("reconsider", A1)]
    assert not replication._is_held(A1)
    assert lag(A2, 1, True) == []  # not hosted yet
    assert replication._is_held(A2)
    await node.ask(leader_and_isr(lai_state(2)))
    assert node.partition(2).followers.laggards == {1}


async def test_who_lagged_before_the_partition_was_led_leaves_the_isr_at_once() -> None:
    node = Node()
    await node.ask(update_metadata())
    node.replication.lag(A0, 3, True)
    await node.ask(leader_and_isr(lai_state(0)))
    assert node.submitter.proposed == [(1, 2)]


async def test_what_follows_a_committed_change_of_the_isr(monkeypatch: pytest.MonkeyPatch) -> None:  # rules 9.58, 12.10
    node = Node()
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(0, isr=(1, 2, 3))))
    policy, partition, calls = node.replication.isr, node.partition(0), list[str]()
    policy.isr_changed = lambda changed: calls.append(f"changed {changed.isr}")
    monkeypatch.setattr(policy, "shrink_laggards", lambda changed: calls.append("laggards"))

    def answered(isr: tuple[int, ...], result: Any = None) -> tuple[list[str], tuple[int, int, int]]:
        calls.clear()
        policy._submit(partition, isr)
        proposed = node.submitter.submitted[-1][0].leader_and_isr
        epoch = partition.partition_epoch + 1
        node.submitter.answer(A0, proposed.with_partition_epoch(epoch) if result is None else result)
        return list(calls), (policy.expands, policy.shrinks, policy.failures)

    assert answered((1, 2)) == (["changed (1, 2)", "laggards"], (0, 1, 0))
    assert answered((1, 2, 3)) == (["changed (1, 2, 3)", "laggards"], (1, 1, 0))
    assert answered((1, 3, 2)) == (["changed (1, 3, 2)", "laggards"], (1, 1, 0))
    assert answered((1,), ErrorCode.OPERATION_NOT_ATTEMPTED) == ([], (1, 1, 1))
    assert node.submitter.proposed == [(1, 2), (1, 2, 3), (1, 3, 2), (1,)]
    assert answered((1,), ErrorCode.UNKNOWN_SERVER_ERROR) == ([], (1, 1, 2))
    assert node.submitter.proposed[-2:] == [(1,), (1,)]  # proposed again


async def test_who_is_in_the_isr_of_a_new_leader_has_caught_up(autojump_clock: MockClock) -> None:  # rule 9.45
    node = Node()
    await trio.sleep(5)
    await node.ask(leader_and_isr(lai_state(0, isr=(1, 2))))
    followers = node.partition(0).followers
    known = {broker: follower for broker in (2, 3) if (follower := followers.get(broker)) is not None}
    now_ms = pytest.approx(trio.current_time() * 1000)
    assert {broker: follower.caught_up_ms for broker, follower in known.items()} == {2: now_ms, 3: -math.inf}
    followers.was_idle_until(3, trio.current_time() * 1000)
    assert known[3].caught_up_ms == -math.inf, "its epoch has just begun"
    assert now_ms == 5000


async def test_whose_requests_go_on_first(monkeypatch: pytest.MonkeyPatch) -> None:  # rules B2.17, B2.23, 2f
    """Readers, then who waits for followers to have written, or to have deleted; writers when a leader has gone."""
    node = Node()
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(lai_state(0)))
    plane, calls = node.replication.data_plane, list[str]()
    for name in ("fetch", "produce", "delete"):
        purgatory = getattr(plane, f"{name}_purgatory")
        monkeypatch.setitem(purgatory.watchers, A0, {})
        monkeypatch.setattr(purgatory, "check_and_complete", lambda key, name=name: calls.append(name))

    def after(action: Any, *values: Any) -> list[str]:
        calls.clear()
        action(*values)
        return list(calls)

    partition = node.partition(0)
    for moved, expected in ((True, ["fetch", "produce", "delete"]), (False, ["fetch"])):
        monkeypatch.setattr(plane, "_advance", lambda partition, moved=moved: moved)
        assert after(plane.appended, [partition]) == expected
        assert after(plane.isr_changed, partition) == (expected if moved else [])
        assert after(plane.became_leader, partition) == (expected if moved else [])
        assert after(plane.role_changed, partition) == ["produce", "fetch"]
    assert after(plane.high_watermark_moved, A0) == ["fetch", "produce", "delete"]
