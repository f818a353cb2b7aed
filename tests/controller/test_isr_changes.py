"""AlterPartition and ISR notifications (sections 11i and 11k of docs/controller-semantics.md; CI-39, CI-41..CI-44)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kce import wire
from kce.controller.iteration_order import table_order
from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.control import partition_states
from kce.zookeeper import znodes
from kce.zookeeper.model import BrokerId, Leadership, TopicPartition
from kce.zookeeper.store import Create, SetData
from tests.controller import requests
from tests.controller.conformance.cluster import event_thread_blocked
from tests.controller.support import World, texts, world


async def ask(
    w: World,
    controller: KafkaController,
    topic_id: uuid.UUID,
    isr: tuple[int, ...],
    *,
    broker: int = 1,
    broker_epoch: int | None = None,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    recovery: int = 0,
    version: int = 3,
    topic_name: str = "t",
    partition: int = 0,
) -> wire.AlterPartitionResponse:
    epoch = controller.context.broker_epochs.get(broker, -1) if broker_epoch is None else broker_epoch  # type: ignore[call-overload]
    fields: dict[str, Any] = {"new_isr": isr} if version < 3 else {}
    if version >= 3:
        fields["new_isr_with_epochs"] = tuple(wire.BrokerState(broker_id=r) for r in isr)
    wanted = wire.AlterPartitionRequestPartitionData(
        partition_index=partition,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        leader_recovery_state=recovery,
        **fields,
    )
    where = {"topic_name": topic_name} if version < 2 else {"topic_id": topic_id}
    request = wire.AlterPartitionRequest(
        broker_id=broker,
        broker_epoch=epoch,
        topics=(wire.AlterPartitionRequestTopicData(partitions=(wanted,), **where),),  # type: ignore[arg-type]
    )
    answers: list[wire.AlterPartitionResponse] = []
    requests.alter_partition(controller, request, version, answers.append)
    await w.settle()
    assert len(answers) == 1
    return answers[0]


def only(response: wire.AlterPartitionResponse) -> wire.AlterPartitionResponsePartitionData:
    ((partition,),) = (topic.partitions for topic in response.topics)
    return partition


async def test_what_could_not_be_written_is_not_read_again(autojump_clock: MockClock) -> None:  # rules 11.78, 11.79
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        path = "/brokers/topics/t/partitions/0/state"
        other = {"version": 1, "leader": 3, "leader_epoch": 0, "controller_epoch": 1, "isr": [3]}
        await w.store.write([SetData(path, json.dumps(other).encode())])
        refused = only(await ask(w, controller, topic_id, (1, 2)))
        assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
        known = controller.context.leadership[TopicPartition("t", 0)].leader_and_isr
        assert (known.leader, known.isr, known.partition_epoch) == (1, (1, 2, 3), 0)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_a_leader_shrinks_and_expands_its_isr(autojump_clock: MockClock, version: int) -> None:  # 11.78-11.81
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        w.take()
        response = await ask(w, controller, topic_id, (1, 3), version=version)
        assert response.topics[0].topic_name == ("t" if version < 2 else "")
        assert response.topics[0].topic_id == (topic_id if version >= 2 else uuid.UUID(int=0))
        done = only(response)
        assert (done.error_code, done.leader_id, done.leader_epoch, done.isr, done.partition_epoch) == (
            0,
            1,
            0,
            (1, 3),
            1,
        )
        assert await w.state("t") == (1, 0, (1, 3))
        assert texts(w.take(), 3) == ["UMR alive=[1, 2, 3] t-0:1@0[1, 3]"]  # no LeaderAndIsr (11.80)
        response = await ask(w, controller, topic_id, (1, 3, 2), partition_epoch=1, version=version)
        assert only(response).partition_epoch == 2
        assert await w.state("t") == (1, 0, (1, 3, 2))


async def test_resending_is_idempotent(autojump_clock: MockClock) -> None:  # rule 11.75; CI-39, CI-41
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        first = only(await ask(w, controller, topic_id, (1, 3)))
        assert first.partition_epoch == 1
        for partition_epoch in (0, 1):
            assert only(await ask(w, controller, topic_id, (1, 3), partition_epoch=partition_epoch)) == first
        reordered = only(await ask(w, controller, topic_id, (3, 1)))
        assert reordered.error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_reassignments_complete_in_the_order_of_a_table(autojump_clock: MockClock) -> None:  # rules 11.17, 11.79
    partitions = [TopicPartition("t", p) for p in range(6)]
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {p: [1] for p in range(6)})
        requests.alter_partition_reassignments(controller, dict.fromkeys(partitions, (1, 3)), lambda _: None)
        await w.settle()
        w.take()
        asked = tuple(
            wire.AlterPartitionRequestPartitionData(
                partition_index=p,
                leader_epoch=1,
                partition_epoch=1,
                new_isr_with_epochs=(wire.BrokerState(broker_id=1), wire.BrokerState(broker_id=3)),
            )
            for p in range(6)
        )
        topic = wire.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=asked)
        epoch = controller.context.broker_epochs[BrokerId(1)]
        request = wire.AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=(topic,))
        requests.alter_partition(controller, request, 3, lambda _: None)
        await w.settle()
        completed = [
            TopicPartition(state.topic, state.partition)
            for sent in w.take()
            if sent.broker == 1 and isinstance(sent.message, wire.LeaderAndIsrRequest)
            for state in partition_states(sent.message)
        ]
        assert list(dict.fromkeys(completed)) == table_order(partitions) != partitions


async def test_an_unchanged_isr_completes_a_reassignment(autojump_clock: MockClock) -> None:  # rules 11.17, 11.75
    """One that failed between the ISR and its completion."""
    tp = TopicPartition("t", 0)
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1]})
        requests.alter_partition_reassignments(controller, {tp: (3,)}, lambda _: None)
        await w.settle()
        (state,) = (await w.zk.get_partition_states([tp])).values()
        assert isinstance(state, Leadership)
        joined = state.leader_and_isr._replace(isr=(BrokerId(1), BrokerId(3)))
        path = "/brokers/topics/t/partitions/0/state"
        await w.store.write([SetData(path, znodes.encode_partition_state(Leadership(joined, state.controller_epoch)))])
        now = joined._replace(partition_epoch=joined.partition_epoch + 1)
        controller.context.put_leadership(tp, Leadership(now, state.controller_epoch))
        asked = await ask(
            w, controller, topic_id, (1, 3), leader_epoch=now.leader_epoch, partition_epoch=now.partition_epoch
        )
        assert only(asked).error_code == ErrorCode.NONE
        assert controller.context.replicas(tp) == (3,)


async def test_a_moved_controller_learns_nothing_from_the_requests_of_brokers(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:  # rules 2.18, 3.27, 11.78
    """As Kafka's it answers, and goes on as a zombie until the watch of /controller fires."""
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        epochs = controller.context.broker_epochs
        codes: list[tuple[str, int]] = []

        def alter_partition(name: str, isr: tuple[int, ...]) -> None:
            wanted = wire.AlterPartitionRequestPartitionData(
                new_isr_with_epochs=tuple(wire.BrokerState(broker_id=i) for i in isr)
            )
            topic = wire.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=(wanted,))
            request = wire.AlterPartitionRequest(broker_id=1, broker_epoch=epochs[BrokerId(1)], topics=(topic,))
            requests.alter_partition(controller, request, 3, lambda answer: codes.append((name, answer.error_code)))

        w.take()
        async with event_thread_blocked(w, controller):
            alter_partition("shrink", (1, 2))
            requests.controlled_shutdown(
                controller, 3, epochs[BrokerId(3)], lambda answer: codes.append(("shut down", answer.error_code))
            )
            alter_partition("unchanged", (1, 2, 3))
            await w.store.write([SetData("/controller_epoch", b"7"), SetData("/controller", b'{"brokerid":99}')])
        assert codes == [
            ("shrink", ErrorCode.UNKNOWN_SERVER_ERROR),
            ("shut down", ErrorCode.STALE_CONTROLLER_EPOCH),
            ("unchanged", ErrorCode.NONE),
        ]
        assert "UMR alive=[1, 2, 3] t-0:1@0[1, 2, 3]" in texts(w.take(), 1)
        assert not controller.is_active
        assert "failed" not in caplog.text.replace("AlterPartition of broker 1 failed", "")
        assert await w.state("t") == (1, 0, (1, 2, 3))


async def test_errors_and_their_precedence(autojump_clock: MockClock) -> None:  # rules 11.70-11.74; CI-43
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        await w.stop_broker(3)
        await w.settle()
        now = {"leader_epoch": 1, "partition_epoch": 1}
        assert await w.state("t") == (1, 1, (1, 2))

        async def top(**kwargs: Any) -> int:
            return (await ask(w, controller, topic_id, (1, 2), **{**now, **kwargs})).error_code

        async def code(isr: tuple[int, ...] = (1,), **kwargs: Any) -> int:
            return only(await ask(w, controller, kwargs.pop("topic_id", topic_id), isr, **{**now, **kwargs})).error_code

        epoch = controller.context.broker_epochs[1]  # type: ignore[index]
        assert await top(broker=9) == ErrorCode.STALE_BROKER_EPOCH
        assert await top(broker_epoch=epoch - 1) == ErrorCode.STALE_BROKER_EPOCH
        assert await top(broker_epoch=epoch + 1) == ErrorCode.STALE_BROKER_EPOCH
        assert await top(recovery=5) == ErrorCode.UNKNOWN_SERVER_ERROR  # rule 11.73
        assert controller.loop.failures == {"AlterPartitionReceived": 1}
        assert await code(topic_id=uuid.uuid4()) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await code(version=1, topic_name="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code(partition=9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await code(partition_epoch=2) == ErrorCode.NOT_CONTROLLER
        assert await code(leader_epoch=2) == ErrorCode.NOT_CONTROLLER
        assert await code(leader_epoch=0) == ErrorCode.FENCED_LEADER_EPOCH
        assert await code(partition_epoch=0) == ErrorCode.INVALID_UPDATE_VERSION
        assert await code(isr=(1, 2), recovery=1) == ErrorCode.INVALID_REQUEST
        assert await code(isr=(1,), recovery=1) == ErrorCode.INVALID_REQUEST
        assert await code(isr=(1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA  # CI-42
        assert await code(isr=(1, 2, 3), version=1) == ErrorCode.OPERATION_NOT_ATTEMPTED
        failed = only(await ask(w, controller, topic_id, (1, 2, 3), **now))
        assert (failed.leader_id, failed.leader_epoch, failed.isr, failed.partition_epoch) == (0, 0, (), 0)  # 13.31
        assert await w.state("t") == (1, 1, (1, 2))


async def test_a_shutting_down_broker_cannot_join(autojump_clock: MockClock) -> None:  # rule 11.46; CI-42
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        requests.controlled_shutdown(controller, 3, -1, lambda response: None)
        await w.settle()
        leader_epoch = (await w.state("t"))[1]
        response = await ask(w, controller, topic_id, (1, 2, 3), leader_epoch=leader_epoch, partition_epoch=1)
        assert only(response).error_code == ErrorCode.INELIGIBLE_REPLICA


async def test_a_state_written_behind_the_controllers_back(autojump_clock: MockClock) -> None:  # rule 11.78
    async with world() as w:
        controller = await w.start_controller(2)
        topic_id = await w.create_topic("t", {0: [1, 2, 3]})
        path = "/brokers/topics/t/partitions/0/state"
        await w.store.write([SetData(path, await w.get(path) or b"")])
        assert only(await ask(w, controller, topic_id, (1,))).error_code == ErrorCode.INVALID_UPDATE_VERSION


async def test_an_inactive_node_answers_at_once(autojump_clock: MockClock) -> None:  # rule 9.70
    async with world() as w:
        await w.start_controller(1)
        other = await w.start_controller(2)
        answers: list[wire.AlterPartitionResponse] = []
        requests.alter_partition(other, wire.AlterPartitionRequest(), 3, answers.append)
        assert answers == [wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)]


async def test_a_preempted_request_is_never_answered(autojump_clock: MockClock) -> None:  # rule 3.38
    async with world() as w:
        controller = await w.start_controller(1)
        answers: list[wire.AlterPartitionResponse] = []
        requests.alter_partition(controller, wire.AlterPartitionRequest(broker_id=1), 3, answers.append)
        controller.close()
        await w.settle()
        assert answers == []


async def test_notifications_of_older_brokers(autojump_clock: MockClock) -> None:  # rules 1.32, 11.68
    async with world() as w:
        await w.start_controller(1)
        await w.create_topic("t", {0: [2, 3]})
        w.take()
        path = "/brokers/topics/t/partitions/0/state"
        node = json.loads(await w.get(path) or b"")
        node["isr"] = [2]
        await w.store.write([SetData(path, json.dumps(node).encode())])
        notification = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
        await w.store.write([Create("/isr_change_notification/isr_change_", notification, sequential=True)])
        await w.settle()
        assert texts(w.take(), 3) == ["UMR alive=[1, 2, 3] t-0:2@0[2]"]
        assert await w.zk.get_children("/isr_change_notification") == []
        await trio.lowlevel.checkpoint()
