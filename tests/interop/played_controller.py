"""A controller that a test plays.

Partitions are in the order in which real controllers send them: that of a hash table, in which Kafka's broker has them,
too.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import trio
from kazoo.client import KazooClient

from kce import wire
from kce.controller.iteration_order import table_order
from kce.wire.framing import FrameBuffer, frame
from kce.wire.vocabulary import TopicPartition

CONTROLLER: Final = 9
#: higher than that of the real one, whose requests are refused from then on
_EPOCH: Final = 1000
#: more than partition epochs grow by within a leader epoch
_PARTITION_EPOCHS: Final = 1000
T = TypeVar("T")


class State(NamedTuple):
    """Who leads a partition, in which epoch, who is in sync, and where its replicas are."""

    leader: int
    epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]


async def take_over(zookeeper: str) -> None:
    """Let the real controller resign; brokers that ask it learn that it is none."""
    data = json.dumps({"version": 2, "brokerid": CONTROLLER, "timestamp": "0", "kraftControllerEpoch": -1})

    def write() -> None:
        client = KazooClient(zookeeper)
        client.start()
        try:
            client.set("/controller", data.encode())
        finally:
            client.stop()
            client.close()

    await trio.to_thread.run_sync(write)


class PlayedController:
    """Takes each ISR that a leader proposes."""

    def __init__(self) -> None:
        self.port = 0
        #: of topics, by id
        self.names: Mapping[uuid.UUID, str] = {}
        #: partition, leader epoch and ISR
        self.proposed: list[tuple[str, int, int, list[int]]] = []

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._connection, [listener])

    async def _connection(self, stream: trio.SocketStream) -> None:
        buffer = FrameBuffer()
        async with stream:
            with suppress(trio.BrokenResourceError):
                async for data in stream:
                    buffer.receive_data(data)
                    while (request := buffer.next_frame()) is not None:
                        header, message = wire.decode_request(request)
                        answer = wire.encode_response(
                            self._answer(message), api_version=header.api_version, correlation_id=header.correlation_id
                        )
                        await stream.send_all(frame(answer))

    def _answer(self, message: wire.Message) -> wire.Message:
        match message:
            case wire.ApiVersionsRequest():
                served = (wire.ApiVersionsRequest, wire.AlterPartitionRequest)
                keys = tuple(wire.ApiVersion(api_key=cls.__api_key__, max_version=3) for cls in served)
                return wire.ApiVersionsResponse(api_keys=keys)
            case wire.AlterPartitionRequest():
                return wire.AlterPartitionResponse(
                    topics=tuple(
                        wire.AlterPartitionResponseTopicData(
                            topic_id=topic.topic_id,
                            partitions=tuple(self._taken(topic, proposal) for proposal in topic.partitions),
                        )
                        for topic in message.topics
                    )
                )
        raise AssertionError(f"a broker sent {type(message).__name__}")

    def _taken(
        self, topic: wire.AlterPartitionRequestTopicData, proposal: wire.AlterPartitionRequestPartitionData
    ) -> wire.AlterPartitionResponsePartitionData:
        isr = tuple(broker.broker_id for broker in proposal.new_isr_with_epochs)
        name = self.names.get(topic.topic_id, str(topic.topic_id))
        self.proposed.append((name, proposal.partition_index, proposal.leader_epoch, sorted(isr)))
        return wire.AlterPartitionResponsePartitionData(
            partition_index=proposal.partition_index, leader_id=1, leader_epoch=proposal.leader_epoch, isr=isr,
            partition_epoch=proposal.partition_epoch + 1,
        )  # fmt: skip


def sender(broker_epoch: int) -> dict[str, Any]:
    """The fields that all requests of a controller have."""
    return {"controller_id": CONTROLLER, "controller_epoch": _EPOCH, "broker_epoch": broker_epoch}


def update_metadata(
    broker_epoch: int, topic: str, topic_id: uuid.UUID, states: Mapping[int, State], ports: Mapping[int, int]
) -> wire.UpdateMetadataRequest:
    """``ports``: of the brokers that are alive."""
    brokers = tuple(
        wire.UpdateMetadataBroker(
            id=broker,
            endpoints=tuple(
                wire.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener=name, security_protocol=0)
                for name in ("DATA", "CONTROL")
            ),
        )
        for broker, port in ports.items()
    )
    partitions = tuple(
        wire.UpdateMetadataPartitionState(
            partition_index=number, controller_epoch=_EPOCH, leader=led.leader, leader_epoch=led.epoch,
            isr=tuple(led.isr), zk_version=max(led.epoch, 0) * _PARTITION_EPOCHS, replicas=tuple(led.replicas),
        )
        for number, led in _in_order(topic, states)
    )  # fmt: skip
    of_topic = wire.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=partitions)
    return wire.UpdateMetadataRequest(**sender(broker_epoch), topic_states=(of_topic,), live_brokers=brokers)


def leader_and_isr(
    broker_epoch: int, topic: str, topic_id: uuid.UUID, states: Mapping[int, State], ports: Mapping[int, int]
) -> wire.LeaderAndIsrRequest:
    """Partitions in their first epoch are new."""
    partitions = tuple(
        wire.LeaderAndIsrPartitionState(
            partition_index=number, controller_epoch=_EPOCH, leader=led.leader, leader_epoch=led.epoch,
            isr=tuple(led.isr), partition_epoch=led.epoch * _PARTITION_EPOCHS, replicas=tuple(led.replicas),
            is_new=led.epoch == 0,
        )
        for number, led in _in_order(topic, states)
    )  # fmt: skip
    of_topic = wire.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=partitions)
    live = tuple(
        wire.LeaderAndIsrLiveLeader(broker_id=broker, host_name="127.0.0.1", port=port)
        for broker, port in ports.items()
    )
    return wire.LeaderAndIsrRequest(**sender(broker_epoch), topic_states=(of_topic,), live_leaders=live)


def stop_replica(broker_epoch: int, topic: str, epochs: Mapping[int, int], *, delete: bool) -> wire.StopReplicaRequest:
    """``epochs``: of the leaders, by partition."""
    partitions = tuple(
        wire.StopReplicaPartitionState(partition_index=number, leader_epoch=epoch, delete_partition=delete)
        for number, epoch in _in_order(topic, epochs)
    )
    of_topic = wire.StopReplicaTopicState(topic_name=topic, partition_states=partitions)
    return wire.StopReplicaRequest(**sender(broker_epoch), topic_states=(of_topic,))


def _in_order(topic: str, of: Mapping[int, T]) -> list[tuple[int, T]]:
    ordered = table_order(TopicPartition(topic, number) for number in of)
    return [(place.partition, of[place.partition]) for place in ordered]
