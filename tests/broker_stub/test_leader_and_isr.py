"""LeaderAndIsr, partition by partition (rules 9.13-9.29). The broker is 1, replicas are 1, 2 and 3.

Covers: broker_stub/replica_manager.py.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub import TopicPartition
from kce.broker_stub.handlers.kafka_apis import KafkaApis
from kce.broker_stub.handlers.leader_and_isr import HANDLER
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC
from kce.broker_stub.ports import NoTopicSettings
from kce.wire import ErrorCode
from tests.broker_stub.logs import FailingLogManager
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    NO_ID,
    Node,
    codes,
    lai_state,
    leader_and_isr,
    stop_replica,
    umr_state,
    ungrouped_leader_and_isr,
    update_metadata,
)

A0 = TopicPartition("a", 0)


async def _code(node: Node, state, topic_id=ID_A, **more) -> int:
    answer = await node.ask(leader_and_isr(state, topic_id=topic_id, **more))
    assert answer.error_code == ErrorCode.NONE
    ((_, code),) = codes(answer).items()
    return code


def _epochs(node: Node) -> tuple[int, int, int]:
    partition = node.partition()
    return partition.leader, partition.leader_epoch, partition.partition_epoch


async def _node(**more) -> Node:
    """A node that knows brokers 1, 2 and 3 as alive."""
    node = Node(**more)
    await node.ask(update_metadata())
    return node


async def _following(**state) -> Node:
    node = await _node()
    await _code(node, lai_state(leader=2, **state))
    return node


async def test_an_unknown_partition_is_created_as_leader() -> None:  # rules 9.13, 9.16, 9.22
    node = Node()
    state = lai_state(
        leader_epoch=4, partition_epoch=7, isr=(1, 2), adding_replicas=(3,), removing_replicas=(2,), is_new=True
    )
    assert await _code(node, state) == ErrorCode.NONE
    partition = node.partition()
    assert partition.is_leader
    assert _epochs(node) == (1, 4, 7)
    assert (partition.isr, partition.replicas) == ((1, 2), (1, 2, 3))
    assert (partition.adding_replicas, partition.removing_replicas) == ((3,), (2,))
    assert partition.controller_epoch == 1
    assert node.logs.has_log(A0)


async def test_a_new_log_gets_the_topic_id() -> None:
    node = Node()
    assert await _code(node, lai_state()) == ErrorCode.NONE
    assert node.logs.topic_id(A0) == ID_A


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_log_keeps_its_topic_id(leader) -> None:  # rule 9.14
    """The second node has the first one's logs."""
    first = await _node()
    assert await _code(first, lai_state(leader=leader)) == ErrorCode.NONE
    assert first.partition().topic_id == first.logs.topic_id(A0) == ID_A
    second = await _node(log_manager=first.logs)
    assert await _code(second, lai_state(leader=leader), topic_id=ID_B) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (second.partition().topic_id, second.partition().leader) == (ID_A, -1)
    assert await _code(second, lai_state(leader=leader), topic_id=NO_ID) == ErrorCode.NONE
    assert second.partition().topic_id == second.logs.topic_id(A0) == ID_A
    assert second.partition().leader == leader


@pytest.mark.kafka("PT-2")
async def test_an_unchanged_leader_is_followed_again_in_a_larger_leader_epoch_only() -> None:  # rules 9.18, 9.19
    applied = []

    class Watching:
        def partition_changed(self, partition) -> None:
            applied.append(partition.leader_epoch)

        def metadata_changed(self, controller_epoch) -> None:
            pass

    node = await _node(isr_policy=Watching())
    assert await _code(node, lai_state(leader=2, leader_epoch=1)) == ErrorCode.NONE
    assert await _code(node, lai_state(leader=2, leader_epoch=4)) == ErrorCode.NONE
    assert await _code(node, lai_state(leader=2, leader_epoch=4)) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert applied == [1, 4]


async def test_a_follower_stores_leader_and_assignment_but_no_isr() -> None:  # rules 9.16, 9.23
    node = await _following(leader_epoch=3, partition_epoch=5)
    partition = node.partition()
    assert not partition.is_leader
    assert _epochs(node) == (2, 3, 5)
    assert (partition.isr, partition.replicas, partition.topic_id) == ((), (1, 2, 3), ID_A)


async def test_a_broker_outside_the_assignment_refuses_but_keeps_the_entry() -> None:  # rule 9.17
    node = Node()
    assert await _code(node, lai_state(replicas=(2, 3), leader=2)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _epochs(node) == (-1, -1, 0)
    assert not node.logs.has_log(A0)
    assert await _code(node, lai_state()) == ErrorCode.NONE


async def test_an_older_leader_epoch_is_stale_controller_epoch() -> None:  # rule 9.18
    node = Node()
    await _code(node, lai_state(leader_epoch=5, partition_epoch=5))
    assert await _code(node, lai_state(leader=2, leader_epoch=4, partition_epoch=9)) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert _epochs(node) == (1, 5, 5)


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_repeated_leader_epoch_is_refused_with_any_partition_epoch(leader) -> None:  # rule 9.19
    node = await _node()
    await _code(node, lai_state(leader=leader, leader_epoch=5, partition_epoch=5))
    for partition_epoch in (4, 5, 6):
        again = lai_state(leader=leader, leader_epoch=5, partition_epoch=partition_epoch, isr=(1,), replicas=(1, 2))
        assert await _code(node, again) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert _epochs(node) == (leader, 5, 5)
    assert node.partition().replicas == (1, 2, 3)
    assert node.partition().isr == ((1, 2, 3) if leader == 1 else ())
    assert await _code(node, lai_state(leader=3, leader_epoch=6, partition_epoch=7)) == ErrorCode.NONE
    assert _epochs(node) == (3, 6, 7)


async def test_a_log_from_before_topic_ids_gets_one() -> None:
    node = Node()
    node.logs.get_or_create_log(A0, is_new=True, topic_id=None)
    assert (node.logs.has_log(A0), node.logs.topic_id(A0)) == (True, None)
    assert await _code(node, lai_state(is_new=True)) == ErrorCode.NONE
    assert node.logs.topic_id(A0) == ID_A


@pytest.mark.parametrize("leader_epoch", [0, 1])
async def test_a_repeated_leader_epoch_may_add_the_topic_id(leader_epoch) -> None:  # rule 9.19
    """A larger epoch may, too."""
    node = Node()
    answer = await node.ask(leader_and_isr(lai_state()), 4)
    assert codes(answer) == {("a", 0): ErrorCode.NONE}
    assert (node.logs.has_log(A0), node.logs.topic_id(A0)) == (True, None)
    assert await _code(node, lai_state(leader_epoch=leader_epoch)) == ErrorCode.NONE
    assert node.logs.topic_id(A0) == ID_A
    assert await _code(node, lai_state(leader_epoch=leader_epoch)) == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_a_repeated_leader_epoch_without_topic_id_is_accepted_by_followers_only() -> None:  # rule 9.19
    follower = await _following()
    assert await _code(follower, lai_state(leader=2), topic_id=NO_ID) == ErrorCode.NONE
    assert follower.partition().topic_id == ID_A
    leader = Node()
    await _code(leader, lai_state())
    assert await _code(leader, lai_state(), topic_id=NO_ID) == ErrorCode.STALE_CONTROLLER_EPOCH


@pytest.mark.kafka("RMT-31")
@pytest.mark.parametrize("leader_epoch", [4, 5, 6])
async def test_a_different_topic_id_is_refused_before_the_epoch_check(leader_epoch) -> None:  # rule 9.14
    node = Node()
    await _code(node, lai_state(leader_epoch=5))
    state = lai_state(leader_epoch=leader_epoch)
    assert await _code(node, state, topic_id=ID_B) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert (node.partition().topic_id, node.partition().leader_epoch) == (ID_A, 5)


async def test_a_request_without_topic_id_matches_any_id() -> None:  # rule 9.14
    node = Node()
    await _code(node, lai_state(leader_epoch=5))
    assert await _code(node, lai_state(leader_epoch=6), topic_id=NO_ID) == ErrorCode.NONE
    assert (node.partition().topic_id, node.partition().leader_epoch) == (ID_A, 6)


@pytest.mark.parametrize(("version", "topic_id"), [(7, NO_ID), (0, ID_A), (1, ID_A), (2, ID_A), (4, ID_A)])
async def test_requests_without_topic_ids_leave_the_log_without_one(version, topic_id) -> None:
    node = Node()
    for leader_epoch in (0, 1):
        flat = ungrouped_leader_and_isr(lai_state(topic="a", leader_epoch=leader_epoch))
        grouped = leader_and_isr(lai_state(leader_epoch=leader_epoch), topic_id=topic_id)
        answer = await node.ask(flat if version < 2 else grouped, version)
        assert set(codes(answer).values()) == {ErrorCode.NONE}
        assert node.partition().is_leader
        assert (node.logs.has_log(A0), node.logs.topic_id(A0)) == (True, None)


async def test_the_topic_id_survives_a_restart() -> None:  # rule 9.14
    before = Node()
    await _code(before, lai_state())
    after = Node(log_manager=before.logs)
    assert await _code(after, lai_state(leader_epoch=9), topic_id=ID_B) == ErrorCode.INCONSISTENT_TOPIC_ID
    assert await _code(after, lai_state(leader_epoch=1)) == ErrorCode.NONE


async def test_a_kraft_request_may_repeat_the_leader_epoch() -> None:  # rule 9.19
    node = Node()
    await _code(node, lai_state(leader_epoch=5, isr=(1,)))
    answer = await node.ask(leader_and_isr(lai_state(leader_epoch=5, isr=(1, 2)), is_kraft_controller=True))
    assert codes(answer) == {(ID_A, 0): 0}
    assert node.partition().isr == (1, 2)
    older = leader_and_isr(lai_state(leader_epoch=4), is_kraft_controller=True)
    assert codes(await node.ask(older)) == {(ID_A, 0): 11}


@pytest.mark.kafka("PT-34")
async def test_a_leader_skips_an_older_partition_epoch_without_an_error() -> None:  # rule 9.22
    node = Node()
    await _code(node, lai_state(leader_epoch=5, partition_epoch=5))
    assert await _code(node, lai_state(leader_epoch=6, partition_epoch=4, isr=(1,))) == ErrorCode.NONE
    assert not node.partition().make_leader(lai_state(leader_epoch=5, partition_epoch=4, isr=(1,)), ID_A, 0)
    assert _epochs(node) == (1, 5, 5)
    assert node.partition().isr == (1, 2, 3)


@pytest.mark.kafka("PT-35")
async def test_a_follower_skips_an_older_partition_epoch_without_an_error() -> None:  # rule 9.23
    node = await _following(leader_epoch=5, partition_epoch=5)
    assert await _code(node, lai_state(leader=3, leader_epoch=6, partition_epoch=4)) == ErrorCode.NONE
    assert not node.partition().make_follower(lai_state(leader=2, leader_epoch=5, partition_epoch=4), ID_A)
    assert _epochs(node) == (2, 5, 5)
    repeated = lai_state(leader=2, leader_epoch=5, partition_epoch=5)
    assert await _code(node, repeated) == ErrorCode.STALE_CONTROLLER_EPOCH
    assert _epochs(node) == (2, 5, 5)


async def test_an_equal_partition_epoch_is_not_older() -> None:  # rule 9.22
    node = Node()
    await _code(node, lai_state(leader_epoch=5, partition_epoch=5))
    assert await _code(node, lai_state(leader_epoch=6, partition_epoch=5)) == ErrorCode.NONE
    assert _epochs(node) == (1, 6, 5)


async def test_a_recovering_partition_is_recovered_at_once() -> None:  # rule 9.22
    node = Node()
    assert await _code(node, lai_state(isr=(1,), replicas=(1,), leader_recovery_state=1)) == ErrorCode.NONE
    assert node.partition().propose_isr((1,)).leader_and_isr.recovery_state == 0


async def test_a_dead_leader_is_not_followed_without_an_error(caplog) -> None:  # rule 9.23
    node = Node()
    await node.ask(update_metadata(alive=(1, 3)))
    assert await _code(node, lai_state(leader=2, leader_epoch=5)) == ErrorCode.NONE
    assert await _code(node, lai_state(leader=-1, leader_epoch=5)) == ErrorCode.NONE
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "[Broker id=1] Not following leader 2 of a-0: it is not alive", "[Broker id=1] a-0 has no leader to follow"
    ]  # fmt: skip
    assert _epochs(node) == (-1, -1, 0)
    assert node.logs.has_log(A0)
    await node.ask(update_metadata(alive=(1, 2, 3)))
    assert await _code(node, lai_state(leader=2, leader_epoch=5)) == ErrorCode.NONE
    assert _epochs(node) == (2, 5, 0)


@pytest.mark.kafka("RMT-33")
@pytest.mark.parametrize("leader", [1, 2])
async def test_a_log_that_cannot_be_created_makes_the_partition_offline(leader) -> None:  # rules 9.13, 9.24
    node = await _node(log_manager=FailingLogManager())
    node.logs.broken.add(A0)
    assert await _code(node, lai_state(leader=leader)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert A0 in node.replicas.offline_partitions
    assert A0 not in node.replicas.partitions
    node.logs.broken.clear()
    for state in (lai_state(leader_epoch=9), lai_state(leader=2, leader_epoch=9), lai_state(replicas=(2,))):
        assert await _code(node, state, topic_id=ID_B) == ErrorCode.KAFKA_STORAGE_ERROR  # and nothing else


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize(("is_new", "expected"), [(False, ErrorCode.KAFKA_STORAGE_ERROR), (True, ErrorCode.NONE)])
async def test_only_a_new_replica_may_be_created_while_a_directory_is_offline(leader, is_new, expected) -> None:  # 9.24
    node = Node(log_manager=FailingLogManager())
    await node.ask(update_metadata())
    node.logs.offline = True
    assert await _code(node, lai_state(leader=leader, is_new=is_new)) == expected


@pytest.mark.kafka("RMT-36")
async def test_a_failed_directory_is_notified_once_per_request() -> None:  # rule 9.68
    """The broker goes on with its other partitions."""
    node = Node(log_manager=FailingLogManager())
    notified = []
    node.replicas._on_log_dir_failure = lambda: notified.append(sorted(node.replicas.offline_partitions))
    await node.ask(update_metadata())
    await node.ask(leader_and_isr(*(lai_state(i) for i in range(4))))
    assert notified == []
    node.logs.broken |= {A0, TopicPartition("a", 2)}
    await node.ask(leader_and_isr(*(lai_state(i, leader=2 if i == 2 else 1, leader_epoch=1) for i in range(4))))
    await node.ask(leader_and_isr(*(lai_state(i, leader_epoch=2) for i in range(4))))
    assert notified == [[A0, TopicPartition("a", 2)]]
    assert {p.partition: it.leader_epoch for p, it in node.replicas.partitions.items()} == {1: 2, 3: 2}


async def test_leaders_are_made_before_followers() -> None:  # rule 9.20
    order = []

    class Watching:
        def partition_changed(self, partition) -> None:
            order.append(partition.topic_partition.partition)

        def metadata_changed(self, controller_epoch) -> None:
            pass

    node = Node(isr_policy=Watching())
    await node.ask(update_metadata())
    states = [lai_state(index, leader=leader) for index, leader in enumerate((2, 1, 3, 1))]
    answer = await node.ask(leader_and_isr(*states))
    assert order == [1, 3, 0, 2]
    assert codes(answer) == {(ID_A, index): 0 for index in range(4)}


async def test_one_failing_partition_does_not_affect_the_others() -> None:
    node = Node()
    await _code(node, lai_state(0, leader_epoch=5))
    states = (lai_state(0, leader_epoch=4), lai_state(1), lai_state(2, replicas=(3,)))
    answer = await node.ask(leader_and_isr(*states))
    assert (answer.error_code, codes(answer)) == (0, {(ID_A, 0): 11, (ID_A, 1): 0, (ID_A, 2): 3})
    assert node.partition(1).is_leader


async def test_the_last_of_two_states_for_a_partition_applies() -> None:
    node = Node()
    answer = await node.ask(leader_and_isr(lai_state(leader_epoch=5), lai_state(leader_epoch=3)))
    assert codes(answer) == {(ID_A, 0): 0}
    assert _epochs(node) == (1, 3, 0)


@pytest.mark.parametrize("version", range(8))
async def test_every_version_is_accepted_and_answered_in_its_layout(version) -> None:  # rules 9.27, 13.8, 13.13
    node = Node()
    ungrouped = ungrouped_leader_and_isr(lai_state(0, topic="a"), lai_state(3, topic="b"))
    topics = (
        wire.LeaderAndIsrTopicState(topic_name="a", topic_id=ID_A, partition_states=(lai_state(0),)),
        wire.LeaderAndIsrTopicState(topic_name="b", topic_id=ID_B, partition_states=(lai_state(3),)),
    )
    grouped = wire.LeaderAndIsrRequest(controller_epoch=1, topic_states=topics)
    answer = await node.ask(ungrouped if version < 2 else grouped, version)
    expected = {("a", 0): 0, ("b", 3): 0} if version < 5 else {(ID_A, 0): 0, (ID_B, 3): 0}
    assert codes(answer) == expected
    assert node.partition(0, "a").is_leader
    assert node.partition(3, "b").is_leader


async def test_topics_without_id_share_one_entry_of_the_response() -> None:  # rules 9.27, 13.14
    topics = tuple(
        wire.LeaderAndIsrTopicState(topic_name=name, partition_states=(lai_state(index),))
        for index, name in enumerate("ab")
    )
    answer = await Node().ask(wire.LeaderAndIsrRequest(controller_epoch=1, topic_states=topics))
    assert [(t.topic_id, [e.partition_index for e in t.partition_errors]) for t in answer.topics] == [(NO_ID, [0, 1])]


async def test_an_empty_request_gets_an_empty_response() -> None:
    answer = await Node().ask(wire.LeaderAndIsrRequest(controller_epoch=3))
    assert answer == wire.LeaderAndIsrResponse()


@pytest.mark.kafka("RMT-7")
async def test_a_full_request_is_handled_like_an_incremental_one() -> None:  # rule 9.29
    """A broker that is not being migrated keeps partitions of which the request says nothing."""
    node = await _node()
    await _code(node, lai_state(0))
    full = leader_and_isr(lai_state(1), lai_state(2, leader=2), type=2, is_kraft_controller=True)
    assert set(codes(await node.ask(full)).values()) == {ErrorCode.NONE}
    assert [node.partition(i).leader for i in range(3)] == [1, 1, 2]


async def test_a_deleted_partition_starts_without_state() -> None:
    node = Node()
    await _code(node, lai_state(leader_epoch=5, partition_epoch=5))
    await node.ask(stop_replica((0, -2, True)))
    assert await _code(node, lai_state(), topic_id=ID_B) == ErrorCode.NONE
    assert _epochs(node) == (1, 0, 0)


async def test_each_decision_is_logged_in_the_state_change_log(caplog) -> None:
    caplog.set_level(logging.DEBUG, "state.change.logger")
    node = Node()
    await node.ask(leader_and_isr(lai_state(0, leader_epoch=5), lai_state(1, replicas=(2,))))
    await node.ask(update_metadata(umr_state()))
    first, second, request, third, _ = [r.getMessage() for r in caplog.records]
    assert first.startswith("[Broker id=1] LeaderAndIsr of controller 9 epoch 1 correlation id 5 for a-0: leader 1")
    assert first.endswith("accepted")
    assert second.endswith("a-1: leader 1 leader epoch 0 (known -1) partition epoch 0 isr (1, 2, 3): "
                           "UNKNOWN_TOPIC_OR_PARTITION")  # fmt: skip
    accepted = (
        "LeaderAndIsr of controller 9 epoch 1, broker epoch -1, correlation id 5, connection connection: accepted"
    )
    assert request.endswith(accepted)
    assert "UpdateMetadata of controller 9 epoch 1" in third


class Settings(NoTopicSettings):
    """``done``: what is to be read soon, and what is read first."""

    def __init__(self, node: Node) -> None:
        self.done: list[object] = []
        self._hosted = node.replicas.partitions
        node.services = replace(node.services, topic_settings=self)
        node.apis = KafkaApis(node.services)

    def expect(self, topics: Collection[str]) -> None:
        if topics:
            self.done.append(set(topics))

    async def read(self, topics: Collection[str]) -> None:
        await trio.lowlevel.checkpoint()
        self.done.append((*topics, len(self._hosted)))


async def test_a_request_that_no_handler_takes_reads_no_settings(recwarn: pytest.WarningsRecorder) -> None:
    """Its connection ended before."""
    node = Node()
    settings = Settings(node)
    message: Any = leader_and_isr(lai_state(replicas=(1,), isr=(1,)), topic=GROUP_METADATA_TOPIC)
    request: Any = None
    waits: Any = HANDLER.handle(request, message, node.services)
    waits.close()
    del waits
    gc.collect()
    assert [warning.message for warning in recwarn.list] == []  # of a coroutine that was never awaited
    assert settings.done == [{GROUP_METADATA_TOPIC}]


async def test_settings_are_not_read_for_a_request_that_is_fenced() -> None:
    node = Node()
    settings = Settings(node)
    node.replicas.controller_epoch = node.broker_epoch = 7
    for stale in ({"controller_epoch": 6}, {"controller_epoch": 7, "broker_epoch": 0}):
        request = leader_and_isr(lai_state(replicas=(1,), isr=(1,)), topic="none", **stale)
        assert (await node.ask(request)).error_code != ErrorCode.NONE
    assert settings.done == []


async def test_settings_of_new_topics_are_read_soon_and_those_of_internal_ones_first() -> None:
    node = Node()
    settings = Settings(node)
    for topic, topic_id in ((GROUP_METADATA_TOPIC, ID_B), ("a", ID_A)):
        for _ in range(2):  # of topics that are hosted they are known
            answer = await node.ask(leader_and_isr(lai_state(replicas=(1,), isr=(1,)), topic=topic, topic_id=topic_id))
            assert answer.error_code == 0
    assert settings.done == [{GROUP_METADATA_TOPIC}, (GROUP_METADATA_TOPIC, 0), {"a"}]
    assert node.partition().is_leader
