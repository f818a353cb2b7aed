"""CI-39 to CI-44: AlterPartition (section 14 of docs/controller-semantics.md; rules of section 11k)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from trio.testing import MockClock

from kce.controller.kafka_controller import KafkaController
from kce.wire import ErrorCode
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import RECOVERED, RECOVERING
from kce.zookeeper.model import BrokerId, TopicPartition
from tests.controller.conformance.bench import TP
from tests.controller.conformance.cluster import alter_partition, propose_isr, start, stop
from tests.controller.support import World, world


def current(controller: KafkaController, tp: TopicPartition = TP) -> tuple[int, ...]:
    """(error, leader, leader epoch, ISR, recovery, partition epoch) of a success that returns the cached state."""
    now = controller.context.leadership[tp].leader_and_isr
    return (0, now.leader, now.leader_epoch, *now.isr, now.recovery_state, now.partition_epoch)


def summary(answer: Any) -> tuple[int, ...]:
    return (
        answer.error_code,
        answer.leader_id,
        answer.leader_epoch,
        *answer.isr,
        answer.leader_recovery_state,
        answer.partition_epoch,
    )


@pytest.mark.kafka("CI-39")
@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("ibp", ["2.7", "2.8", "3.2", "3.9"])
async def test_no_change(autojump_clock: MockClock, ibp: str, version: int) -> None:  # rules 11.71, 11.74, 11.81
    by_id = version >= 2
    async with world([1], ibp=MetadataVersion.parse(ibp)) as w:
        controller = await w.start_controller(0)
        topic_id = await w.create_topic("t", {0: [1]})
        response = await alter_partition(w, controller, [1], version=version)
        assert response.error_code == 0
        (topic,) = response.topics
        assert (topic.topic_name, topic.topic_id) == (("", topic_id) if by_id else ("t", uuid.UUID(int=0)))
        (answer,) = topic.partitions
        assert summary(answer) == current(controller) == (0, 1, 0, 1, RECOVERED, 0)
        assert await w.state("t") == (1, 0, (1,))


@pytest.mark.kafka("CI-40")
@pytest.mark.parametrize("version", [2, 3])
async def test_requests_by_id_after_a_downgrade(autojump_clock: MockClock, version: int) -> None:  # rules 4.7, 11.71
    async with world([1]) as w:
        await w.start_controller(0)
        topic_id = await w.create_topic("t", {0: [1]})
        await stop(w, 0)
        w.ibp = MetadataVersion.parse("2.7")
        controller = await w.start_controller(0)
        assert controller.context.topic_ids == {"t": topic_id}
        response = await alter_partition(w, controller, [1], topic_id=topic_id, version=version)
        (topic,) = response.topics
        assert (response.error_code, topic.topic_name, topic.topic_id) == (0, "", topic_id)
        assert summary(topic.partitions[0]) == current(controller)


@pytest.mark.kafka("CI-41")
async def test_a_resent_request_succeeds_without_another_bump(autojump_clock: MockClock) -> None:  # rule 11.74
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [1, 2]})
        first = await propose_isr(w, controller, [1])
        assert summary(first) == (0, 1, 0, 1, RECOVERED, 1)
        for partition_epoch in (0, 1):
            assert await propose_isr(w, controller, [1], partition_epoch=partition_epoch) == first
        assert current(controller) == summary(first)


@pytest.mark.kafka("CI-42")
@pytest.mark.parametrize(
    ("version", "code"),
    [
        (0, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (1, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (2, ErrorCode.INELIGIBLE_REPLICA),
        (3, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
async def test_a_dead_broker_is_not_let_in(autojump_clock: MockClock, version: int, code: ErrorCode) -> None:  # 11.74
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        topic_id = await w.create_topic("t", {0: [1, 2]})
        await stop(w, 2)
        assert await w.state("t") == (1, 1, (1,))
        response = await alter_partition(w, controller, [1, 2], version=version)
        (topic,) = response.topics
        named = ("", topic_id) if version >= 2 else ("t", uuid.UUID(int=0))
        assert (response.error_code, topic.topic_name, topic.topic_id) == (0, *named)
        assert [summary(answer) for answer in topic.partitions] == [(code, 0, 0, 0, 0)]
        assert controller.context.leadership[TP].leader_and_isr.isr == (1,)
        assert await w.state("t") == (1, 1, (1,))
        await start(w, 2)
        assert (await propose_isr(w, controller, [1, 2], version=version)).error_code == 0
        assert await w.state("t") == (1, 1, (1, 2))


class Asker:
    """Asks for ISR [1], as the leader 1 of the partition would but for what the test says otherwise."""

    def __init__(self, w: World, controller: KafkaController) -> None:
        self._w = w
        self._controller = controller

    async def code(self, isr: tuple[int, ...] = (1,), **fields: Any) -> int:
        """The error code of the one partition; a failure returns nothing else (rule 11.79)."""
        response = await alter_partition(self._w, self._controller, isr, **fields)
        assert response.error_code == 0
        ((answer,),) = (topic.partitions for topic in response.topics)
        if answer.error_code:
            assert summary(answer) == (answer.error_code, 0, 0, 0, 0)
        return int(answer.error_code)

    async def top(self, **fields: Any) -> int:
        response = await alter_partition(self._w, self._controller, [1], **fields)
        assert response.topics == ()
        return int(response.error_code)

    async def fenced(self) -> None:
        """What is refused whatever the recovery state; each case breaks all that is judged after it as well."""
        w, context = self._w, self._controller.context
        now = context.leadership[TP].leader_and_isr
        own = context.broker_epochs[BrokerId(1)]
        before = await w.state("t")
        assert await self.top(broker=9, broker_epoch=1) == ErrorCode.STALE_BROKER_EPOCH
        for epoch in (own - 1, own + 1):
            assert await self.top(broker_epoch=epoch, leader_epoch=0) == ErrorCode.STALE_BROKER_EPOCH
        assert await self.code(topic_id=uuid.UUID(int=5), leader_epoch=99) == ErrorCode.UNKNOWN_TOPIC_ID
        assert await self.code(topic="nope", version=1, leader_epoch=99) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for version in (1, 3):
            unknown = await self.code(partition=7, version=version, leader_epoch=99)
            assert unknown == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        newer, older = now.partition_epoch + 1, now.partition_epoch - 1
        for wrong in ({"recovery": RECOVERED}, {"recovery": RECOVERING}, {"isr": (1, 9), "recovery": RECOVERING}):
            for epochs, code in (
                ({"partition_epoch": newer}, ErrorCode.NOT_CONTROLLER),
                ({"leader_epoch": now.leader_epoch + 1}, ErrorCode.NOT_CONTROLLER),
                ({"leader_epoch": now.leader_epoch + 1, "partition_epoch": older}, ErrorCode.NOT_CONTROLLER),
                ({"leader_epoch": now.leader_epoch - 1, "partition_epoch": newer}, ErrorCode.NOT_CONTROLLER),
                ({"leader_epoch": now.leader_epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
                ({"leader_epoch": now.leader_epoch - 1, "partition_epoch": older}, ErrorCode.FENCED_LEADER_EPOCH),
                ({"partition_epoch": older}, ErrorCode.INVALID_UPDATE_VERSION),
            ):
                # the same ISR is answered as it is when only the partition epoch is old (rule 11.74)
                isr = wrong.get("isr") or ((1, 2) if code is ErrorCode.INVALID_UPDATE_VERSION else (1,))
                assert await self.code(**{**wrong, **epochs, "isr": isr}) == code, (wrong, epochs)
        assert await self.code((1, 9), recovery=RECOVERING) == ErrorCode.INVALID_REQUEST
        assert await self.code((1, 9)) == ErrorCode.INELIGIBLE_REPLICA
        assert await self.code((1, 9), version=1) == ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await w.state("t") == before


@pytest.mark.kafka("CI-43")
async def test_errors(autojump_clock: MockClock) -> None:  # rules 11.70-11.74
    async with world([1, 2]) as w:
        controller = await w.start_controller(0)
        await w.create_topic("t", {0: [1, 2]})
        await stop(w, 2)  # so that there are older epochs
        asker = Asker(w, controller)
        await asker.fenced()
        assert await asker.code((1,), recovery=RECOVERING) == ErrorCode.INVALID_REQUEST  # it has recovered
        for invalid in (2, 25):
            assert await asker.top(recovery=invalid) == ErrorCode.UNKNOWN_SERVER_ERROR  # rule 11.73
        await start(w, 2)
        assert await asker.code((1, 2)) == 0
        assert await w.state("t") == (1, 1, (1, 2))
        controller.context.shutting_down.add(BrokerId(2))
        assert await asker.code((2, 1)) == ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.kafka("CI-44")
async def test_errors_after_an_unclean_election(autojump_clock: MockClock) -> None:  # rules 11.70-11.74
    async with world([1, 2]) as w:
        controller = await w.start_controller(0, unclean_leader_election_enable=True)
        await w.create_topic("t", {0: [1, 2]})
        await stop(w, 1)
        await stop(w, 2)
        await start(w, 1)
        assert current(controller) == (0, 1, 3, 1, RECOVERING, 3)
        asker = Asker(w, controller)
        await asker.fenced()
        before = current(controller)
        assert summary(await propose_isr(w, controller, [1], recovery=RECOVERING)) == before  # no change
        await start(w, 2)
        assert await asker.code((1, 2), recovery=RECOVERING) == ErrorCode.INVALID_REQUEST
        assert current(controller) == before
        assert await asker.code((1,), recovery=RECOVERED) == 0
        assert current(controller) == (0, 1, 3, 1, RECOVERED, 4)
