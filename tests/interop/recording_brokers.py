"""Brokers that record what a controller sends them, and agree to everything but what they are told to refuse.

Their ports are the system's choice, so a client that looks for a broker of an earlier test may find one of these:
connections of anyone but the controller are closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kce import wire
from kce.wire import control
from kce.wire.framing import FrameBuffer, frame
from kce.zookeeper.model import BrokerId, Endpoint, RegisteredBroker, TopicPartition


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request, as it arrived."""

    header: wire.Header
    message: wire.Message


@dataclass(slots=True)
class RecordingBroker:
    """One broker: a control listener, at which it answers at once. Its DATA endpoint is a number that nobody uses.

    ``controller``: the id of the node that may send it requests.
    """

    id: int
    controller: int
    control_port: int = 0
    data_port: int = 0
    rack: str | None = None
    received: list[Recorded] = field(default_factory=list)
    refuses_deletion: bool = False
    #: partitions whose log directory has failed
    failed: set[TopicPartition] = field(default_factory=set)

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.control_port = listener.socket.getsockname()[1]
        self.data_port = 100 + self.id
        task_status.started()
        await trio.serve_listeners(self._connection, [listener])

    def registration(self) -> RegisteredBroker:
        endpoints = (
            Endpoint("CONTROL", "PLAINTEXT", "127.0.0.1", self.control_port),
            Endpoint("DATA", "PLAINTEXT", "127.0.0.1", self.data_port),
        )
        return RegisteredBroker(BrokerId(self.id), endpoints, self.rack)

    async def _connection(self, stream: trio.SocketStream) -> None:
        buffer = FrameBuffer()
        async with stream:
            try:
                async for data in stream:
                    buffer.receive_data(data)
                    while (request := buffer.next_frame()) is not None:
                        header, message = wire.decode_request(request)
                        if header.client_id != str(self.controller):  # rule 8.29
                            return
                        await stream.send_all(frame(self._answer(header, message)))
            except trio.BrokenResourceError:
                return

    def _answer(self, header: wire.Header, message: wire.Message) -> bytes:
        self.received.append(Recorded(header, message))
        match message:
            case wire.LeaderAndIsrRequest():
                answer: wire.Message = self._of_leader_and_isr(message, header.api_version)
            case wire.StopReplicaRequest():
                answer = self._of_stop_replica(message)
            case wire.UpdateMetadataRequest():
                answer = wire.UpdateMetadataResponse()
            case _:
                raise AssertionError(f"a controller sent {type(message).__name__}")
        return wire.encode_response(answer, api_version=header.api_version, correlation_id=header.correlation_id)

    def _of_leader_and_isr(self, message: wire.LeaderAndIsrRequest, version: int) -> wire.LeaderAndIsrResponse:
        errors = [
            (
                topic_id,
                [
                    wire.LeaderAndIsrPartitionError(
                        topic_name=topic,
                        partition_index=p.partition_index,
                        error_code=self._error(TopicPartition(topic, p.partition_index)),
                    )
                    for p in states
                ],
            )
            for topic, topic_id, states in control.topics(message)
        ]
        if version < 5:
            return wire.LeaderAndIsrResponse(partition_errors=tuple(e for _, of_topic in errors for e in of_topic))
        return wire.LeaderAndIsrResponse(
            topics=tuple(
                wire.LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=tuple(of_topic))
                for topic_id, of_topic in errors
            )
        )

    def _of_stop_replica(self, message: wire.StopReplicaRequest) -> wire.StopReplicaResponse:
        refused = wire.ErrorCode.KAFKA_STORAGE_ERROR if self.refuses_deletion else wire.ErrorCode.NONE
        return wire.StopReplicaResponse(
            partition_errors=tuple(
                wire.StopReplicaPartitionError(
                    topic_name=state.topic,
                    partition_index=state.partition,
                    error_code=refused if state.delete else wire.ErrorCode.NONE,
                )
                for state in control.partition_states(message)
            )
        )

    def _error(self, tp: TopicPartition) -> int:
        return wire.ErrorCode.KAFKA_STORAGE_ERROR if tp in self.failed else wire.ErrorCode.NONE
