"""Brokers whose partitions are as a script says, and who answer followers as Kafka does, but for faults.

A fault is a kind and its numbers. Of answers to Fetch: an ``error``; an error of the ``whole`` answer; ``close`` of the
connection instead; ``marks``, a high watermark and a start that are off; ``damage`` of a byte of the records; ``part``
of them; a ``later`` base offset; a batch of a ``newer`` leader behind them; an epoch and an end that ``diverge``. Of
answers to ListOffsets and OffsetForLeaderEpoch: an ``error``, ``close``, or a ``value`` that is off.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, TypeAlias

import trio

from kce import wire
from kce.wire import ErrorCode, Record, RecordBatch
from kce.wire.framing import FrameBuffer, frame

TOPIC: Final = "followed"
TOPIC_ID: Final = uuid.UUID("6ba7b811-9dad-41d1-80b4-00c04fd430c8")
PARTITIONS: Final = range(3)
LEADERS: Final = (2, 3)
EARLIEST, LATEST = -2, -1
#: what was asked of a partition: the API, the leader and its epoch, and what else is meant
Said: TypeAlias = tuple[Any, ...]
Fault: TypeAlias = tuple[Any, ...]
#: before an answer that says nothing
_IDLE_S: Final = 0.04
#: who asks nothing of a partition for so long has stopped
_STOPPED_S: Final = 1.5
_IDLE_ANSWERS: Final = 3
_NOW_MS: Final = 1_700_000_000_000


class _Closed(Exception):
    """The connection is closed instead of an answer."""


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    last: int
    epoch: int
    data: bytes


def a_batch(base: int, epoch: int, values: Sequence[bytes]) -> Batch:
    records = tuple(Record(offset=base + i, timestamp=_NOW_MS, key=None, value=value) for i, value in enumerate(values))
    data = wire.write_records(RecordBatch.of(*records, partition_leader_epoch=epoch))
    return Batch(base, base + len(values) - 1, epoch, data)


@dataclass(slots=True)
class Led:
    """What a leader has of a partition."""

    leader: int = LEADERS[0]
    epoch: int = 0
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    batches: list[Batch] = field(default_factory=list)

    def append(self, epoch: int, values: Sequence[bytes]) -> None:
        self.batches.append(a_batch(self.end, epoch, values))
        self.end += len(values)

    def cut(self, end: int) -> None:
        """Nothing from the batch on that has ``end``."""
        self.batches = [batch for batch in self.batches if batch.last < end]
        self.end = max([self.start] + [batch.last + 1 for batch in self.batches[-1:]])

    def raise_start(self, start: int) -> None:
        self.start = start
        self.batches = [batch for batch in self.batches if batch.last >= start]
        self.end = max(self.end, start)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """As in rule B5.23."""
        starts: dict[int, int] = {}
        for batch in self.batches:
            starts.setdefault(batch.epoch, max(batch.base, self.start))
        starts.setdefault(self.epoch, self.end)
        if epoch == max(starts):
            return epoch, self.end
        above = [start for one, start in starts.items() if one > epoch]
        if epoch < 0 or not above:
            return -1, -1
        return max([one for one in starts if one <= epoch], default=epoch), above[0]

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        for batch in self.batches:
            if batch.last >= offset and (not found or len(found) + len(batch.data) <= max_bytes):
                found += batch.data
            elif found:
                break
        return found


class Part:
    """One partition as the leaders of a twin have it, and what that twin has asked."""

    def __init__(self) -> None:
        self.led = Led()
        #: faults of the next answers to Fetch, ListOffsets and OffsetForLeaderEpoch
        self.fetches: deque[Fault] = deque()
        self.offsets: deque[Fault] = deque()
        self.ends: deque[Fault] = deque()
        self.asked: list[Said] = []
        #: answers without anything in a row
        self.idle = 0
        self.last_asked = 0.0

    def saw(self, kind: str, leader: int, epoch: int, *said: Any) -> None:
        """What an earlier leader was asked is left out: it was on its way."""
        self.last_asked = trio.current_time()
        said = kind, leader, epoch, *said
        if (leader, epoch) == (self.led.leader, self.led.epoch) and said != (self.asked or [()])[-1]:
            self.asked.append(said)
            self.idle = 0

    @property
    def is_settled(self) -> bool:
        has_stopped = trio.current_time() - self.last_asked > _STOPPED_S
        return has_stopped or (self.idle >= _IDLE_ANSWERS and not self.fetches)


@dataclass(slots=True)
class Session:
    epoch: int
    partitions: dict[int, wire.FetchPartition]
    #: high watermark and start of the log, as last answered
    told: dict[int, tuple[int, int]] = field(default_factory=dict)


class Leaders:
    """Brokers 2 and 3, for one twin."""

    def __init__(self) -> None:
        self.parts = {number: Part() for number in PARTITIONS}
        self.ports: dict[int, int] = {}
        self._sessions: dict[int, Session] = {}
        #: by leader: a fault of its last answer as a whole
        self._failed: dict[int, Fault] = {}
        #: by such a fault: whether the next fetches named a session, and its epoch
        self.renewed: dict[Fault, set[tuple[bool, int]]] = {}
        self._ids = count(1)
        #: answers wait for it
        self.thawed = trio.Event()
        self.thawed.set()

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for leader in LEADERS:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                self.ports[leader] = listener.socket.getsockname()[1]

                async def connection(stream: trio.SocketStream, leader: int = leader) -> None:
                    await self._connection(stream, leader)

                nursery.start_soon(trio.serve_listeners, connection, [listener])
            task_status.started()

    async def _connection(self, stream: trio.SocketStream, leader: int) -> None:
        buffer = FrameBuffer()
        async with stream:
            try:
                async for data in stream:
                    buffer.receive_data(data)
                    while (request := buffer.next_frame()) is not None:
                        header, message = wire.decode_request(request)
                        answer = await self._answer(leader, message, header.api_version)
                        encoded = wire.encode_response(
                            answer, api_version=header.api_version, correlation_id=header.correlation_id
                        )
                        await stream.send_all(frame(encoded))
            except (trio.BrokenResourceError, _Closed):
                return

    async def _answer(self, leader: int, message: wire.Message, version: int) -> wire.Message:
        match message:
            case wire.FetchRequest():
                return await self._fetch(leader, message, version)
            case wire.ListOffsetsRequest():
                ((topic, asked),) = [(t.name, p) for t in message.topics for p in t.partitions]
                return self._offset(leader, topic, asked)
            case wire.OffsetForLeaderEpochRequest():
                for partition in (partition for topic in message.topics for partition in topic.partitions):
                    part = self.parts[partition.partition]
                    if part.ends and part.ends[0] == ("close",):
                        part.ends.popleft()
                        raise _Closed
                return wire.OffsetForLeaderEpochResponse(
                    topics=tuple(
                        wire.OffsetForLeaderTopicResult(
                            topic=topic.topic, partitions=tuple(self._end(leader, one) for one in topic.partitions)
                        )
                        for topic in message.topics
                    )
                )
        raise AssertionError(f"a follower sent {type(message).__name__}")

    def _refusal(self, part: Part, leader: int, epoch: int) -> ErrorCode:
        if leader != part.led.leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if epoch < part.led.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH if epoch > part.led.epoch else ErrorCode.NONE

    def _offset(self, leader: int, topic: str, asked: wire.ListOffsetsPartition) -> wire.ListOffsetsResponse:
        part = self.parts[asked.partition_index]
        part.saw("offset", leader, asked.current_leader_epoch, asked.timestamp)
        error = self._refusal(part, leader, asked.current_leader_epoch)
        offset = part.led.start if asked.timestamp == EARLIEST else part.led.end
        match part.offsets.popleft() if part.offsets and not error else ():
            case ("close",):
                raise _Closed
            case ("error", error):
                pass
            case ("value", shift):
                offset = max(0, offset + shift)
        answer = wire.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index, error_code=error, offset=-1 if error else offset, timestamp=-1,
            leader_epoch=part.led.epoch,
        )  # fmt: skip
        return wire.ListOffsetsResponse(topics=(wire.ListOffsetsTopicResponse(name=topic, partitions=(answer,)),))

    def _end(
        self, leader: int, asked: wire.OffsetForLeaderPartition
    ) -> wire.OffsetForLeaderEpochResponseEpochEndOffset:
        part = self.parts[asked.partition]
        part.saw("epoch", leader, asked.current_leader_epoch, asked.leader_epoch)
        error = self._refusal(part, leader, asked.current_leader_epoch)
        epoch, end = part.led.end_of(asked.leader_epoch)
        match part.ends.popleft() if part.ends and not error else ():
            case ("error", error):
                pass
            case ("value", shift):
                epoch, end = max(-1, asked.leader_epoch - abs(shift) % 3), max(-1, end + shift)
        if error != ErrorCode.NONE:
            epoch = end = -1
        return wire.OffsetForLeaderEpochResponseEpochEndOffset(
            partition=asked.partition, error_code=error, leader_epoch=epoch, end_offset=end
        )

    async def _fetch(self, leader: int, message: wire.FetchRequest, version: int) -> wire.FetchResponse:
        listed = {partition.partition: partition for topic in message.topics for partition in topic.partitions}
        session_id, is_new = message.session_id, message.session_epoch in (0, -1)
        if leader in self._failed:
            self.renewed.setdefault(self._failed.pop(leader), set()).add((session_id != 0, message.session_epoch))
        if is_new:
            self._sessions.pop(session_id, None)
            session_id = next(self._ids) if message.session_epoch == 0 else 0
            session = self._sessions[session_id] = Session(0, listed)
        else:
            found = self._sessions.get(session_id)
            if found is None:
                return wire.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            session = found
            if message.session_epoch != session.epoch + 1:
                return wire.FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session.epoch += 1
            session.partitions |= listed
            for forgotten in message.forgotten_topics_data:
                for number in forgotten.partitions:
                    session.partitions.pop(number, None)
                    session.told.pop(number, None)
        for number, asked in session.partitions.items():
            self.parts[number].saw(
                "fetch", leader, asked.current_leader_epoch, asked.fetch_offset, asked.last_fetched_epoch,
                asked.log_start_offset,
            )  # fmt: skip
        has_waited = False
        while True:
            await self.thawed.wait()
            whole = self._whole(leader, session, is_known=message.session_id != 0)
            if whole is not None:
                self._sessions.pop(session_id, None)
                return wire.FetchResponse(error_code=whole)
            answers = {}
            for number, asked in session.partitions.items():
                told = session.told.get(number)
                answer = self._data(number, leader, asked, told)
                if answer is not None:
                    answers[number] = answer
            if answers or has_waited:
                break
            await trio.sleep(_IDLE_S)
            has_waited = True
        for number in session.partitions:
            if number not in answers:
                self.parts[number].idle += 1
        for number, answer in answers.items():
            if answer.error_code == ErrorCode.NONE:
                session.told[number] = answer.high_watermark, answer.log_start_offset
            else:
                session.told.pop(number, None)
        topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": TOPIC}
        responses = (wire.FetchableTopicResponse(**topic, partitions=tuple(answers.values())),) if answers else ()
        return wire.FetchResponse(session_id=session_id, responses=responses)

    def _whole(self, leader: int, session: Session, *, is_known: bool) -> ErrorCode | None:
        """A fault of the whole answer. ``is_known``: the follower knows the id of the session. Raises _Closed."""
        for number, asked in session.partitions.items():
            part = self.parts[number]
            if part.fetches and not self._refusal(part, leader, asked.current_leader_epoch):
                fault = part.fetches[0]
                if fault[0] in ("close", "whole"):
                    part.fetches.popleft()
                    if is_known:
                        self._failed[leader] = fault
                    if fault[0] == "close":
                        raise _Closed
                    return ErrorCode(fault[1])
        return None

    def _data(
        self, number: int, leader: int, asked: wire.FetchPartition, told: tuple[int, int] | None
    ) -> wire.FetchResponsePartitionData | None:
        """The answer, None if there is nothing to say."""
        part = self.parts[number]
        led = part.led

        def refused(error: int) -> wire.FetchResponsePartitionData:
            return wire.FetchResponsePartitionData(
                partition_index=number, error_code=error, high_watermark=-1, records=b""
            )

        refusal = self._refusal(part, leader, asked.current_leader_epoch)
        if refusal != ErrorCode.NONE:
            return refused(refusal)
        answer: dict[str, Any] = {"high_watermark": led.high_watermark, "log_start_offset": led.start, "records": b""}
        error = ErrorCode.NONE
        if asked.last_fetched_epoch >= 0:
            epoch, end = led.end_of(asked.last_fetched_epoch)
            if end < 0:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            elif epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                answer["diverging_epoch"] = wire.FetchResponseEpochEndOffset(epoch=epoch, end_offset=end)
        if not led.start <= asked.fetch_offset <= led.end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error == ErrorCode.NONE and "diverging_epoch" not in answer:
            answer["records"] = led.read(asked.fetch_offset, asked.partition_max_bytes)
        match part.fetches.popleft() if part.fetches else ():
            case ("error", error):
                pass
            case ("marks", high_watermark, start):
                answer["high_watermark"] = max(0, led.high_watermark + high_watermark)
                answer["log_start_offset"] = max(0, led.start + start)
            case ("damage", at) if answer["records"]:
                damaged = bytearray(answer["records"])
                damaged[at % len(damaged)] ^= 0x55
                answer["records"] = bytes(damaged)
            case ("part", size) if answer["records"]:
                answer["records"] = answer["records"][: size % len(answer["records"])]
            case ("later", base) if answer["records"]:
                answer["records"] = a_batch(max(0, asked.fetch_offset + base), led.epoch, [b"odd", b"odd"]).data
            case ("newer",) if error == ErrorCode.NONE and "diverging_epoch" not in answer:
                answer["records"] += a_batch(led.end, led.epoch + 1, [b"newer"]).data
            case ("diverge", epoch, end) if asked.last_fetched_epoch >= 0:
                found = wire.FetchResponseEpochEndOffset(
                    epoch=max(0, asked.last_fetched_epoch - epoch), end_offset=max(0, asked.fetch_offset - end)
                )
                answer |= {"diverging_epoch": found, "records": b""}
        if error != ErrorCode.NONE:
            return refused(error)
        is_told = told == (answer["high_watermark"], answer["log_start_offset"])
        if is_told and not answer["records"] and "diverging_epoch" not in answer:
            return None
        return wire.FetchResponsePartitionData(partition_index=number, last_stable_offset=-1, **answer)
