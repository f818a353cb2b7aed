"""ControlledShutdown and AlterPartition: submitted to this node's controller and parked (rules 9.69, 9.70, 3.38).

Covers: broker_stub/ports.py, broker_stub/handlers/base.py.
"""

from __future__ import annotations

import pytest

from kce import wire
from kce.wire import ErrorCode
from tests.broker_stub.support import Node, answer_of


class Later:
    """A controller that records submitted requests."""

    def __init__(self) -> None:
        self.submitted: list[tuple] = []

    def submit(self, request, api_version, reply) -> None:
        self.submitted.append((request, api_version, reply))


@pytest.mark.parametrize("version", range(4))
async def test_controlled_shutdown_without_an_active_controller(version) -> None:  # rules 9.69, 11.41
    answer = await Node().ask(wire.ControlledShutdownRequest(broker_id=2), version)
    assert answer == wire.ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)


@pytest.mark.parametrize("version", range(4))
async def test_alter_partition_without_an_active_controller(version) -> None:  # rules 9.70, 11.70
    answer = await Node().ask(wire.AlterPartitionRequest(broker_id=2), version)
    assert answer == wire.AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)


async def test_controlled_shutdown_waits_for_the_controller() -> None:  # rule 9.69
    controller = Later()
    node = Node(controller=controller)
    for version, epoch in ((1, -1), (3, 70)):
        request, captured = node.request(wire.ControlledShutdownRequest(broker_id=2, broker_epoch=70), version)
        node.apis.handle(request)
        assert not request.answered
        request, submitted_version, reply = controller.submitted.pop()
        assert submitted_version == version
        assert (request.broker_id, request.broker_epoch) == (2, epoch)  # rule 13.26: no epoch before version 2
        remaining = (wire.RemainingPartition(topic_name="a", partition_index=1),)
        reply(wire.ControlledShutdownResponse(remaining_partitions=remaining))
        assert answer_of(captured, 7, version).remaining_partitions == remaining


async def test_alter_partition_waits_for_the_controller() -> None:  # rule 9.70
    controller = Later()
    node = Node(controller=controller)
    message = wire.AlterPartitionRequest(broker_id=2, broker_epoch=70)
    request, captured = node.request(message, 2)
    node.apis.handle(request)
    assert not request.answered
    request, version, reply = controller.submitted.pop()
    assert (request, version) == (message, 2)
    reply(wire.AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    assert answer_of(captured, 56, 2).error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_a_reply_that_cannot_be_encoded_becomes_an_error_response() -> None:
    controller = Later()
    node = Node(controller=controller)
    request, captured = node.request(wire.ControlledShutdownRequest(broker_id=2), 3)
    node.apis.handle(request)
    controller.submitted.pop()[-1](wire.ControlledShutdownResponse(error_code=2**40))
    assert answer_of(captured, 7, 3).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_replying_twice_raises() -> None:
    controller = Later()
    node = Node(controller=controller)
    request, _ = node.request(wire.ControlledShutdownRequest(broker_id=2), 3)
    node.apis.handle(request)
    reply = controller.submitted.pop()[-1]
    reply(wire.ControlledShutdownResponse())
    with pytest.raises(RuntimeError, match="answered already"):
        reply(wire.ControlledShutdownResponse())
