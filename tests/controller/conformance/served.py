"""Stub brokers in the places of a world's fake ones: they obey the controller, and answer clients' requests."""

from __future__ import annotations

from random import Random
from typing import Any

from kce import wire
from kce.broker_stub import LogManager
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.controller.kafka_controller import KafkaController
from tests.broker_stub.support import Node, answer_of
from tests.controller.support import World


class ControllerOf:
    """The controller module of one node of a world, whichever it is by then."""

    def __init__(self, w: World, broker_id: int) -> None:
        self._w = w
        self._broker_id = broker_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._w.nodes[self._broker_id].controller, name)


def serve(w: World, broker_id: int, logs: LogManager | None = None, **properties: str) -> Node:
    """Let a stub broker answer for one that was started; it does not check its own epoch."""
    node = Node(
        broker_id=broker_id,
        log_manager=logs,
        controller=ControllerOf(w, broker_id),  # type: ignore[arg-type]
        admin=ZkAdminManager(w.zk, w.ibp, Random(broker_id)),
        nursery=w._nursery,
        **properties,
    )

    def answer(message: Any, header: wire.Header) -> wire.Message:
        """Control requests are answered without waiting."""
        request, captured = node.request(message, header.api_version)
        try:
            assert node.apis.handle(request) is None, f"{type(message).__name__} waited"
        except Exception as e:  # noqa: BLE001 - as the request channel does
            request.fail(e)
        return answer_of(captured, message.__api_key__, header.api_version)  # type: ignore[no-any-return]

    w.brokers[broker_id].answer = answer
    return node


async def served_cluster(w: World, **settings: Any) -> tuple[KafkaController, dict[int, Node]]:
    """Controller 0, and stub brokers for it and for every broker of the world."""
    await w.start_broker(0)
    nodes = {broker_id: serve(w, broker_id) for broker_id in w.brokers}
    return await w.start_controller(0, **settings), nodes


async def restart(w: World, broker_id: int, logs: LogManager | None = None) -> Node:
    """Restart the broker process with an empty cache, and with ``logs`` if given."""
    await w.start_broker(broker_id)
    node = serve(w, broker_id, logs)
    await w.settle()
    return node
