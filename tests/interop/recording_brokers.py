"""Brokers that record what a controller sends them, and agree to everything but what they are told to refuse."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from kce import wire
from kce.wire.framing import FrameBuffer, frame
from kce.zookeeper.model import BrokerId, Endpoint, RegisteredBroker, TopicPartition


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request, as it arrived."""

    header: wire.Header
    message: wire.Message


@dataclass(slots=True)
class RecordingBroker:
    """One broker: a control listener, at which it answers at once. Its DATA endpoint is a number that nobody uses."""

    id: int
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
                        await stream.send_all(frame(self._answer(request)))
            except trio.BrokenResourceError:
                return

    def _answer(self, request: bytes) -> bytes:
        header, message = wire.decode_request(request)
        self.received.append(Recorded(header, message))
        match message:
            case wire.LeaderAndIsrRequest():
                answer: wire.Message = self._of_leader_and_isr(message)
            case wire.StopReplicaRequest():
                answer = self._of_stop_replica(message)
            case wire.UpdateMetadataRequest():
                answer = wire.UpdateMetadataResponse()
            case _:
                raise AssertionError(f"a controller sent {type(message).__name__}")
        return wire.encode_response(answer, api_version=header.api_version, correlation_id=header.correlation_id)

    def _of_leader_and_isr(self, message: wire.LeaderAndIsrRequest) -> wire.LeaderAndIsrResponse:
        return wire.LeaderAndIsrResponse(
            topics=tuple(
                wire.LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=tuple(
                        wire.LeaderAndIsrPartitionError(
                            partition_index=p.partition_index,
                            error_code=self._error(TopicPartition(topic.topic_name, p.partition_index)),
                        )
                        for p in topic.partition_states
                    ),
                )
                for topic in message.topic_states
            )
        )

    def _of_stop_replica(self, message: wire.StopReplicaRequest) -> wire.StopReplicaResponse:
        refused = wire.ErrorCode.KAFKA_STORAGE_ERROR if self.refuses_deletion else wire.ErrorCode.NONE
        return wire.StopReplicaResponse(
            partition_errors=tuple(
                wire.StopReplicaPartitionError(
                    topic_name=topic.topic_name,
                    partition_index=p.partition_index,
                    error_code=refused if p.delete_partition else wire.ErrorCode.NONE,
                )
                for topic in message.topic_states
                for p in topic.partition_states
            )
        )

    def _error(self, tp: TopicPartition) -> int:
        return wire.ErrorCode.KAFKA_STORAGE_ERROR if tp in self.failed else wire.ErrorCode.NONE
