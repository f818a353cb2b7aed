"""ControlledShutdown and AlterPartition: handed to this node's controller and parked (rules 9.69, 9.70, 3.38)."""

from __future__ import annotations

import pytest

import wire
from tests.broker_stub.support import Node, answer_of
from wire import ErrorCode


class Later:
    """A controller that keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    def alter_partition(self, request, api_version, reply) -> None:
        self.asked.append((request, api_version, reply))

    def controlled_shutdown(self, broker_id, broker_epoch, reply) -> None:
        self.asked.append((broker_id, broker_epoch, reply))


@pytest.mark.parametrize("version", range(4))
async def test_controlled_shutdown_without_an_active_controller(version) -> None:  # rules 9.69, 11.41
    answer = await Node().ask(wire.ControlledShutdownRequest(broker_id=2), version)
    assert answer == wire.ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)


@pytest.mark.parametrize("version", range(4))
async def test_alter_partition_without_an_active_controller(version) -> None:  # rules 9.70, 11.70
    answer = await Node().ask(wire.AlterPartitionRequest(broker_id=2), version)
    assert answer == wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)


async def test_controlled_shutdown_is_answered_when_the_controller_replies() -> None:  # rule 9.69
    controller = Later()
    node = Node(controller=controller)
    for version, epoch in ((1, -1), (3, 70)):
        request, captured = node.request(wire.ControlledShutdownRequest(broker_id=2, broker_epoch=70), version)
        await node.apis.handle(request)
        assert not request.answered
        broker_id, broker_epoch, reply = controller.asked.pop()
        assert (broker_id, broker_epoch) == (2, epoch)  # rule 13.26: no epoch before version 2
        remaining = (wire.RemainingPartition(topic_name="a", partition_index=1),)
        reply(wire.ControlledShutdownResponse(remaining_partitions=remaining))
        assert answer_of(captured, 7, version).remaining_partitions == remaining


async def test_alter_partition_is_answered_when_the_controller_replies() -> None:  # rule 9.70
    controller = Later()
    node = Node(controller=controller)
    message = wire.AlterPartitionRequest(broker_id=2, broker_epoch=70)
    request, captured = node.request(message, 2)
    await node.apis.handle(request)
    assert not request.answered
    asked, version, reply = controller.asked.pop()
    assert (asked, version) == (message, 2)
    reply(wire.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    assert answer_of(captured, 56, 2).error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_a_reply_that_cannot_be_written_is_an_error_answer_and_not_the_controllers_problem() -> None:
    controller = Later()
    node = Node(controller=controller)
    request, captured = node.request(wire.ControlledShutdownRequest(broker_id=2), 3)
    await node.apis.handle(request)
    controller.asked.pop()[-1](wire.ControlledShutdownResponse(error_code=2**40))
    assert answer_of(captured, 7, 3).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_replying_twice_is_a_bug_that_is_not_hidden() -> None:
    controller = Later()
    node = Node(controller=controller)
    request, _ = node.request(wire.ControlledShutdownRequest(broker_id=2), 3)
    await node.apis.handle(request)
    reply = controller.asked.pop()[-1]
    reply(wire.ControlledShutdownResponse())
    with pytest.raises(RuntimeError, match="answered already"):
        reply(wire.ControlledShutdownResponse())
