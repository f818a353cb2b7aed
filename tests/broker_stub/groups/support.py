"""A group coordinator on a log in memory, under a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import trio
import trio.testing

from kce.broker_stub.errors import ApiException, Refused
from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.groups.coordinator import Codes, Committer, GroupCoordinator, Sync
from kce.broker_stub.groups.group import Group, GroupState
from kce.broker_stub.groups.joining import Join
from kce.broker_stub.groups.manager import GroupManager, Producer
from kce.broker_stub.groups.member import Client, JoinResult, SyncResult
from kce.broker_stub.groups.records import CommittedOffset, read_key
from kce.broker_stub.internal_log import OnAppended
from kce.broker_stub.purgatory import Timer
from kce.wire import ErrorCode, MemberIdentity
from kce.wire.configuration import Properties
from kce.wire.consumer_protocol import ConsumerProtocolSubscription, encode_consumer_protocol
from kce.wire.metadata_version import MetadataVersion
from kce.wire.record import RecordBatch
from kce.wire.records import read_records
from kce.wire.vocabulary import TopicPartition

IBP = MetadataVersion.parse("3.9")
#: when the clock of a test stands at 0
START_MS = 1_700_000_000_000
#: those of Kafka's GroupCoordinatorTest
SETTINGS = {
    "group.min.session.timeout.ms": "10",
    "group.max.session.timeout.ms": "600000",
    "group.max.size": "4",
    "group.initial.rebalance.delay.ms": "50",
}
TIMEOUT_MS = 500
DELAY_MS = 50
CONSUMER = "consumer"
GROUP = "groupId"
RANGE = (("range", b"metadata"),)
A = TopicPartition("topic", 0)


def settings(**properties: str) -> GroupConfig:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    return GroupConfig.from_properties(Properties({**SETTINGS, **given}))


def subscribed(*topics: str, version: int = 1) -> bytes:
    """What a consumer offers with a protocol."""
    return encode_consumer_protocol(ConsumerProtocolSubscription(topics=topics), version)


class MemoryOffsetsLog:
    """Appends to lists. ``error`` fails the next appends; with ``held`` they end when ``release`` is called."""

    def __init__(self) -> None:
        self.batches: dict[int, list[RecordBatch]] = {}
        self.online = True
        self.error = ErrorCode.NONE
        self.held = False
        #: of each append
        self.guards: list[object] = []
        self._waiting: list[tuple[OnAppended, int]] = []

    def is_online(self, partition: int) -> bool:
        return self.online

    def append(self, partition: int, records: bytes, on_appended: OnAppended, guard: object = None) -> None:
        self.guards.append(guard)
        if self.error is not ErrorCode.NONE and not self.held:
            on_appended(-1, self.error)
            return
        offset = self._append(partition, records)
        if self.held:
            self._waiting.append((on_appended, offset))
        else:
            on_appended(offset, ErrorCode.NONE)

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        waiting, self._waiting = self._waiting, []
        for on_appended, offset in waiting:
            on_appended(offset if error is ErrorCode.NONE else -1, error)

    def append_without_waiting(self, partition: int, records: bytes) -> None:
        if self.error is not ErrorCode.NONE:
            raise Refused(self.error)
        self._append(partition, records)

    def _append(self, partition: int, records: bytes) -> int:
        batches = self.batches.setdefault(partition, [])
        offset = batches[-1].last_offset + 1 if batches else 0
        (batch,) = read_records(records).batches
        batches.append(moved(batch, offset))
        return offset

    def read(self, partition: int) -> Iterator[RecordBatch]:
        if not self.online:
            raise ApiException("there is no log")
        yield from list(self.batches.get(partition, []))

    def records(self) -> list[tuple[Any, bytes | None]]:
        """Key and value of each record, in every partition."""
        return [
            (read_key(record.key or b""), record.value)
            for batches in self.batches.values()
            for batch in batches
            for record in batch.records
        ]


def moved(batch: RecordBatch, offset: int) -> RecordBatch:
    """The batch at that offset."""
    by = offset - batch.base_offset
    return replace(
        batch,
        base_offset=offset,
        last_offset=batch.last_offset + by,
        records=tuple(replace(record, offset=record.offset + by) for record in batch.records),
    )


class Result:
    """What a request was answered; none yet while it is parked."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)

    @property
    def is_parked(self) -> bool:
        return not self.answers

    @property
    def answer(self) -> Any:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]

    @property
    def error(self) -> ErrorCode:
        return self.answer.error  # type: ignore[no-any-return]


class Host:
    """A coordinator that owns every partition. ``clock`` is trio's, which the test must not let run."""

    def __init__(
        self, clock: trio.testing.MockClock, *, owns: bool = True, ibp: MetadataVersion = IBP, **properties: str
    ) -> None:
        self.clock = clock
        self.config = settings(**properties)
        self.log = MemoryOffsetsLog()
        self.timer = Timer()
        self.manager = GroupManager(self.config, ibp, self.log, self.now_ms, self.config.offsets_topic_num_partitions)
        self.coordinator = GroupCoordinator(self.config, self.manager, self.timer, Random(1))
        if owns:
            self.manager._owned.update(range(self.config.offsets_topic_num_partitions))

    @staticmethod
    def now_ms() -> int:
        return START_MS + round(trio.current_time() * 1000)

    def advance(self, milliseconds: float) -> None:
        """The time passes, and what is due happens: in steps, so that what follows from it happens in time, too."""
        end = trio.current_time() + milliseconds / 1000
        while True:
            self.timer.advance()
            left = end - trio.current_time()
            if left < 1e-6:
                return
            buckets = self.timer._buckets
            due = buckets[0].expiration_ms / 1000 - trio.current_time() if buckets else left
            self.clock.jump(min(due, left))

    async def work(self) -> None:
        """Do what waits in the background."""
        while self.manager._work:
            await self.manager._work.do_next()

    def group(self, group_id: str = GROUP) -> Group:
        return self.manager.groups[group_id]

    def state(self, group_id: str = GROUP) -> GroupState:
        return self.group(group_id).state

    # requests

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocol_type: str = CONSUMER,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        session_timeout_ms: int = TIMEOUT_MS,
        rebalance_timeout_ms: int = TIMEOUT_MS,
        requires_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> Result:
        result = Result()
        self.coordinator.join(
            Join(
                group_id=group_id,
                member_id=member_id,
                client=Client("consumer-test", "/localhost"),
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                protocol_type=protocol_type,
                protocols=protocols,
                instance_id=instance_id,
                requires_member_id=requires_member_id,
                can_skip_assignment=can_skip_assignment,
            ),
            result,
        )
        return result

    def joined(self, member_id: str = "", **more: Any) -> JoinResult:
        """The answer after the initial delay."""
        result = self.join(member_id, **more)
        if result.is_parked:
            self.advance(DELAY_MS + 1)
        answer: JoinResult = result.answer
        return answer

    def sync(
        self,
        generation: int,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocol_type: str | None = CONSUMER,
        protocol_name: str | None = "range",
    ) -> Result:
        result = Result()
        self.coordinator.sync(
            Sync(group_id, generation, member_id, instance_id, protocol_type, protocol_name, assignments or {}), result
        )
        return result

    def synced(self, generation: int, member_id: str, *args: Any, **more: Any) -> SyncResult:
        answer: SyncResult = self.sync(generation, member_id, *args, **more).answer
        return answer

    def stable(self, **more: Any) -> JoinResult:
        """A group of one, with an assignment."""
        joined = self.joined(**more)
        assert joined.error == ErrorCode.NONE
        name = joined.protocol_name
        synced = self.synced(joined.generation, joined.member_id, {joined.member_id: b""}, protocol_name=name,
                             protocol_type=joined.protocol_type)  # fmt: skip
        assert synced.error == ErrorCode.NONE
        return joined

    def heartbeat(
        self, member_id: str, generation: int, *, group_id: str = GROUP, instance_id: str | None = None
    ) -> ErrorCode:
        return self.coordinator.heartbeat(group_id, Committer(generation, member_id, instance_id))

    def leave(self, *members: str | tuple[str, str | None], group_id: str = GROUP) -> tuple[ErrorCode, list[int]]:
        """Member ids, or pairs with instance ids; the codes of the group and of each."""
        pairs = [(member, None) if isinstance(member, str) else member for member in members]
        identities = [MemberIdentity(member_id=one, group_instance_id=other) for one, other in pairs]
        error, results = self.coordinator.leave(group_id, identities)
        return error, [result.error_code for result in results]

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | CommittedOffset],
        member_id: str = "",
        generation: int = -1,
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        producer: Producer | None = None,
    ) -> Codes:
        result = Result()
        committed = {tp: o if isinstance(o, CommittedOffset) else self.offset(o) for tp, o in offsets.items()}
        self.coordinator.commit(group_id, Committer(generation, member_id, instance_id), committed, result, producer)
        codes: Codes = result.answer
        return codes

    def offset(self, offset: int, **more: Any) -> CommittedOffset:
        return CommittedOffset(offset=offset, commit_timestamp=self.now_ms(), **more)

    def fetch(
        self, *partitions: TopicPartition, group_id: str = GROUP, require_stable: bool = False
    ) -> dict[TopicPartition, tuple[int, ErrorCode]]:
        """All without partitions; offset and code of each."""
        error, found = self.coordinator.fetch_offsets(group_id, partitions or None, require_stable=require_stable)
        assert error == ErrorCode.NONE, error
        return {
            tp: (-1 if fetched.committed is None else fetched.committed.offset, fetched.error)
            for tp, fetched in found.items()
        }
