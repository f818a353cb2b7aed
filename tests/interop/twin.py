"""One of two brokers that are asked the same, and what of its answers has to be the same.

Answers are compared field by field: what is different for good (addresses, ids, times, texts of errors) is left out,
names replace ids, and arrays have no order, which in Kafka is often that of a hash table.
"""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import trio

from kce import wire
from kce.wire import ErrorCode
from kce.wire.batch_header import read_headers
from tests.interop.damage import Damage
from tests.interop.random_requests import BAD_TEXT, UNKNOWN_ID, Asked, Given, Node

#: the second has so much longer to answer, if the first has answered
PATIENCE_S: Final = 20.0
#: after that an answer of neither is none: a member that waits for others
_WAITING_S: Final = 3.0
_NO_ANSWER: Final = "no answer"
#: in damaged requests in the place of what brokers gave: both get the same bytes
_STRANGE: Final[Mapping[str, Any]] = {
    "member": f"twin-{UNKNOWN_ID}", "producer": 77, "epoch": 0, "session": 77, "directory": "/nowhere",
    "broker epoch": -1,
}  # fmt: skip
_LEFT_OUT: Final = frozenset(
    {"throttle_time_ms", "host", "port", "cluster_id", "session_id", "usable_bytes", "total_bytes", "client_host"}
    | {"client_id", "batch_index_error_message", "documentation"}
)
_PARTITIONS: Final = ("partitions", "results_by_partition", "partition_responses", "partition_result")
#: only their sign is compared
_SIGNS: Final = frozenset(
    {"log_append_time_ms", "last_timestamp", "transaction_start_time_ms", "timestamp", "finalized_features_epoch"}
)
#: tell the elements of an array apart
_NAMES: Final = (
    "name", "topic", "topic_name", "topic_id", "resource_type", "resource_name", "index", "partition_index",
    "partition_id", "partition", "group_id", "transactional_id", "producer_id", "key", "api_key", "log_dir", "user",
)  # fmt: skip
#: Kafka's requests that are never answered
_UNANSWERED: Final = {
    "WriteTxnMarkers": "markers without partitions that are here come after others",
}
_NO_ID: Final = uuid.UUID(int=0)
#: two texts to Java, the second of them a surrogate cut off
_NOT_UTF_8: Final = b"\xff\xed\xa0"
#: the version of ids that brokers make; both are asked about the same others
_RANDOM_ID: Final = 4
_UNKNOWN_SERVER_ERROR: Final = re.compile(r"error_code': -1\b")
_MEMBER: Final = re.compile(r"(twin|i[12])?-[0-9a-f-]{36}")


class Twin:
    """One of the two brokers, a client's connection to it, and what it has given."""

    def __init__(self, name: str, address: str, directory: str, broker_epoch: int = -1) -> None:
        self.name = name
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self._stream: trio.SocketStream | None = None
        self._given: dict[Given, Any] = {Given("directory"): directory} | {
            Given("broker epoch", text): broker_epoch + int(text or 0) for text in ("", "-1", "+1")
        }
        self._names: dict[uuid.UUID, str] = {_NO_ID: "no id", UNKNOWN_ID: "an unknown id"}
        #: done to what is asked
        self.damage: Damage | None = None

    async def ask(self, message: wire.Message, version: int, *, limit_s: float = PATIENCE_S) -> wire.Message | str:
        """The answer; or "closed", or "no answer" after ``limit_s``, and then the next request has a new connection."""
        stream = await self._connected()
        request = self.encoded(message, version)
        answer = _NO_ANSWER
        with trio.move_on_after(limit_s):
            try:
                await stream.send_all(wire.frame(request))
                frame = await self._frame(stream)
            except trio.BrokenResourceError:
                frame = None
            if frame is not None:
                made = wire.decode_response(frame, api_key=message.__api_key__, api_version=version)[1]
                if self.damage is None:
                    self._learn(message, made)
                return made
            answer = "closed"
        await self.disconnect()
        return answer

    async def tell(self, message: wire.Message, version: int) -> None:
        """Send what is not answered."""
        stream = await self._connected()
        await stream.send_all(wire.frame(self.encoded(message, version)))

    async def _connected(self) -> trio.SocketStream:
        if self._stream is None:
            self._stream = await trio.open_tcp_stream(*self._address)
        return self._stream

    def encoded(self, message: wire.Message, version: int) -> bytes:
        """As it is sent."""
        request = wire.encode_request(message, api_version=version, correlation_id=1, client_id="twin")
        request = request.replace(BAD_TEXT.encode(), _NOT_UTF_8)
        return request if self.damage is None else self.damage(request)

    def another(self) -> Self:
        """A connection of its own, of who knows the same."""
        made = copy.copy(self)
        made._stream = None
        return made

    async def disconnect(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
        self._stream = None

    async def _frame(self, stream: trio.SocketStream) -> bytes | None:
        frames = wire.FrameBuffer(max_frame_bytes=1 << 30)
        while (frame := frames.next_frame()) is None:
            data = await stream.receive_some(1 << 20)
            if not data:
                return None
            frames.receive_data(data)
        return frame

    def _learn(self, message: wire.Message, answer: wire.Message) -> None:
        match answer:
            case wire.MetadataResponse() | wire.CreateTopicsResponse():
                for topic in answer.topics:
                    if not topic.error_code and topic.topic_id.version == _RANDOM_ID:
                        self._names[topic.topic_id] = topic.name or ""
                        self._given[Given("topic", topic.name or "")] = topic.topic_id
            case wire.JoinGroupResponse() if answer.member_id:
                assert isinstance(message, wire.JoinGroupRequest)
                self._given[Given("member", message.group_id)] = answer.member_id
            case wire.InitProducerIdResponse() if not answer.error_code:
                assert isinstance(message, wire.InitProducerIdRequest)
                self._given[Given("producer", message.transactional_id or "")] = answer.producer_id
                self._given[Given("epoch", message.transactional_id or "")] = answer.producer_epoch
            case wire.FetchResponse() if answer.session_id:
                self._given[Given("session")] = answer.session_id

    def made(self, value: Any) -> Any:
        """A message of a node."""
        match value:
            case Given() if self.damage is not None:
                return uuid.uuid5(UNKNOWN_ID, value.of) if value.kind == "topic" else _STRANGE[value.kind]
            case Given():
                nothing = {"topic": _NO_ID, "member": "none", "producer": 77, "epoch": 0, "session": 0}
                return self._given.get(value, nothing.get(value.kind))
            case Node():
                return value.cls(**{name: self.made(of) for name, of in value.values.items()})
            case list():
                return tuple(map(self.made, value))
        return value

    def comparable(self, value: Any, name: str = "") -> Any:
        """What both must answer, of an answer or a part of it."""
        if name == "error_message":  # an empty one is shown; without one clients have their own
            return value == ""
        match value:
            case uuid.UUID():
                return self._names.get(value, "an id" if value.version == _RANDOM_ID else str(value))
            case str():
                directory = self._given[Given("directory")]
                return _MEMBER.sub("a member", value.replace(directory, "the directory"))
            case tuple():
                found = (self.comparable(one, name) for one in value)
                return sorted((one for one in found if self.damage is None or not _has_no_partitions(one)), key=_order)
            case bytes() | bytearray() | memoryview():
                return (_without_times(value) if name == "records" else bytes(value)).hex()
            case int() if name in _SIGNS:
                return (value > 0) - (value < 0)
        if hasattr(value, "__fields__"):
            fields = (field.name for field in value.__fields__ if field.name not in _LEFT_OUT)
            return {field: self.comparable(getattr(value, field), field) for field in fields}
        return value


def _has_no_partitions(value: Any) -> bool:
    """Of a topic of which nothing was asked Kafka answers something or nothing, by API and error."""
    return isinstance(value, dict) and any(value.get(name) == [] for name in _PARTITIONS)


def _without_times(records: bytes | bytearray | memoryview) -> bytes:
    """Of batches of magic 2, also of one that is cut off, without times and checksums: those of markers differ."""
    blank = bytearray(records)
    begins = [0, *(at + header.size for at, header in read_headers(bytes(records)))]
    for begin, end in ((at + begin, at + end) for at in begins for begin, end in ((17, 21), (27, 43))):
        blank[begin:end] = bytes(len(blank[begin:end]))
    return bytes(blank)


def _order(value: Any) -> str:
    if isinstance(value, dict) and (names := [value[name] for name in _NAMES if name in value]):
        value = [names, value]
    return json.dumps(value, default=str)


def differences(kafkas: Any, ours: Any, where: str = "") -> Iterator[str]:
    """One line for each."""
    if isinstance(kafkas, dict) and isinstance(ours, dict):
        for name, value in kafkas.items():
            yield from differences(value, ours[name], f"{where}.{name}")
    elif isinstance(kafkas, list) and isinstance(ours, list) and len(kafkas) == len(ours):
        for i, (one, other) in enumerate(zip(kafkas, ours, strict=True)):
            yield from differences(one, other, f"{where}[{i}]")
    elif kafkas != ours:
        yield f"{where or 'answer'}: Kafka's {str(kafkas)[:300]}, ours {str(ours)[:300]}"


async def compare(both: Sequence[Twin], request: Asked) -> list[str]:
    """How the answers differ."""
    answers: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def ask(twin: Twin) -> None:
            answer = await twin.ask(twin.made(request.body), request.version)
            while is_concurrent(answer):  # nothing has changed yet; the end of a transaction is on its way
                await trio.sleep(0.02)
                answer = await twin.ask(twin.made(request.body), request.version)
            answers[twin.name] = twin.comparable(answer)
            done.set()

        for twin in both:
            nursery.start_soon(ask, twin)
        with trio.move_on_after(_WAITING_S):
            await done.wait()
        if not done.is_set():
            nursery.cancel_scope.cancel()
    if not answers:
        for twin in both:
            await twin.disconnect()
    kafkas = answers.get(both[0].name)
    is_damaged = both[0].damage is not None
    if kafkas == _NO_ANSWER and (request.api in _UNANSWERED or is_damaged):  # by records that are null, for example
        return []
    if is_damaged and _UNKNOWN_SERVER_ERROR.search(str(kafkas)):
        return []  # Kafka itself has failed
    return list(differences(*(answers.get(twin.name) for twin in both)))


def is_concurrent(answer: wire.Message | str) -> bool:
    return not isinstance(answer, str) and ErrorCode.CONCURRENT_TRANSACTIONS in wire.error_counts(answer)
