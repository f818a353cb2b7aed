"""Followers fetch: one task for each leader and fetcher id (section 5).

A partition is TRUNCATING until the follower knows where its log diverges from the leader's, then FETCHING. With
`inter.broker.protocol.version` 2.7-IV1 and later the leader's Fetch responses report the divergence (rule B5.8).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import trio

from kce import wire
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.errors import ApiException, CorruptMessage, KafkaStorageError
from kce.broker_stub.log import Log
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.log.lookup import EARLIEST, LATEST
from kce.broker_stub.ports import NoTopicSettings, TopicSettings
from kce.broker_stub.replication.copying import append_copied
from kce.broker_stub.replication.follower_session import FollowerFetch
from kce.broker_stub.replication.leader_connection import LeaderConnection
from kce.broker_stub.replication.throttle import ReplicationQuota
from kce.wire import ErrorCode
from kce.wire.single_fetch import Fetched
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint, TopicPartition

log = logging.getLogger(__name__)

#: what the leader knows is compared with the logs that often
RECHECK_S: Final = 30.0
#: what the connection raises
LOST: Final = (OSError, trio.TooSlowError, wire.WireError)


class PartitionFailed(Exception):
    """The partition is not fetched any more, until the next LeaderAndIsr (rule B5.15)."""


@dataclass(slots=True)
class FetchState:
    """The state of one partition. ``offset``: of the next record; ``is_truncating``: rules B5.7, B5.8."""

    log: Log
    leader_epoch: int
    offset: int
    is_truncating: bool
    #: of the last LeaderAndIsr
    topic_id: UUID | None
    #: trio.current_time() until which it is not fetched (rule B5.17)
    delayed_until: float = -math.inf
    #: how many committed records it lacked when it was last fetched; -1 if that is unknown
    lag: int = -1

    @property
    def last_fetched_epoch(self) -> int:
        latest = self.log.latest_epoch
        return UNDEFINED if latest is None else latest


@dataclass(frozen=True, slots=True)
class FollowerPort:
    """A fetcher's access to its broker. Call ``high_watermark_moved`` for a followed partition."""

    config: BrokerConfig
    dial: Dial
    broker_epoch: Callable[[], int]
    high_watermark_moved: Callable[[TopicPartition], None]
    #: whether the fetcher must not fetch a partition
    is_held: Callable[[TopicPartition], bool] = lambda partition: False
    #: of what is fetched
    quota: ReplicationQuota = field(default_factory=lambda: ReplicationQuota(1, 1))
    topic_settings: TopicSettings = field(default_factory=NoTopicSettings)
    #: so many bytes of a partition were appended
    fetched: Callable[[TopicPartition, int], None] = lambda partition, size: None


class ReplicaFetcher:
    """Fetches the partitions that are added, from one leader, until cancelled."""

    def __init__(self, leader: int, fetcher_id: int, endpoint: Endpoint, port: FollowerPort) -> None:
        self.leader = leader
        self.endpoint = endpoint
        self.name = f"ReplicaFetcherThread-{fetcher_id}-{leader}"
        #: fetches, and bytes of records
        self.requests = self.bytes = 0
        self.scope = trio.CancelScope()
        self.partitions: dict[TopicPartition, FetchState] = {}
        #: removed after a failure that the next attempt would meet again
        self.failed: set[TopicPartition] = set()
        #: the leader does not know yet what to fetch of these
        self._unsent: dict[TopicPartition, None] = {}
        #: these must not be fetched any more, or not now
        self._forgotten: dict[TopicPartition, None] = {}
        self._next_check = 0.0
        self._port = port
        self._client_id = f"broker-{port.config.broker_id}-fetcher-{fetcher_id}"
        self._connection = LeaderConnection(leader, endpoint, port.dial, port.config, self._client_id)
        #: while it has nothing to do
        self._changed: trio.Event | None = None
        self._clock = trio.lowlevel.current_clock().current_time

    def __repr__(self) -> str:
        return f"<fetcher of {self.leader}, {len(self.partitions)} partitions>"

    def add(self, partition: TopicPartition, log: Log, leader_epoch: int, topic_id: UUID | None) -> None:
        """Rules B5.4, B5.5, B5.8."""
        known = self.partitions.get(partition)
        if known is not None and known.leader_epoch == leader_epoch:
            return
        self.failed.discard(partition)
        version = self._port.config.inter_broker_protocol_version
        has_epoch = version.truncates_on_fetch and log.latest_epoch is not None
        offset = log.log_end_offset if has_epoch else log.high_watermark
        self.partitions[partition] = FetchState(log, leader_epoch, offset, not has_epoch, topic_id)
        self.reconsider(partition)

    def update_topic_id(self, partition: TopicPartition, topic_id: UUID | None) -> None:
        """Rule B5.41."""
        state = self.partitions.get(partition)
        if state is not None and state.topic_id != topic_id:
            state.topic_id = topic_id
            self.reconsider(partition)

    def replace_log(self, partition: TopicPartition, log: Log) -> None:
        """``log`` has the same records in another log directory."""
        state = self.partitions.get(partition)
        if state is not None:
            state.log = log

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.partitions.pop(partition, None)
            self.failed.discard(partition)
            self._forget(partition)
        self.wake()

    def reconsider(self, partition: TopicPartition) -> None:
        """It may be fetched, or not, or otherwise."""
        self._forget(partition)
        if partition in self.partitions:
            self._unsent[partition] = None
        self.wake()

    def _forget(self, partition: TopicPartition) -> None:
        self._unsent.pop(partition, None)
        self._forgotten[partition] = None

    def wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def run(self) -> None:
        try:
            with self.scope:
                while True:
                    ready = self._ready()
                    if not ready and not self._is_fetching():
                        await self._wait()
                        continue
                    try:
                        if truncating := {tp: state for tp, state in ready.items() if state.is_truncating}:
                            await self._truncate(truncating)
                            ready = {tp: state for tp, state in self._ready().items() if not state.is_truncating}
                        await self._fetch(ready)
                    except LOST as e:
                        log.info("%r: %s", self, e or type(e).__name__)
                        self._delay(self.partitions)  # rule B5.11
        finally:
            await self._connection.aclose()

    async def give_up_slow(self, now: float) -> float:
        """Give up a request that takes too long (rule B5.11); the time when that must be asked again."""
        if self._connection.deadline > now:
            return self._connection.deadline
        log.info("%r: no answer in time", self)
        await self._connection.give_up()
        return math.inf

    def _ready(self) -> dict[TopicPartition, FetchState]:
        """The partitions of which the leader must hear."""
        now = self._clock()
        if now >= self._next_check:  # the start of a log moves by itself
            self._next_check = now + RECHECK_S
            self._unsent.update(dict.fromkeys(self.partitions))
        if self._port.quota.is_exceeded:
            self._delay([tp for tp in self._unsent if self._must_wait(tp)])
        return {
            partition: self.partitions[partition]
            for partition in self._unsent
            if self.partitions[partition].delayed_until <= now and not self._port.is_held(partition)
        }

    def _must_wait(self, partition: TopicPartition) -> bool:
        """Whether it is throttled, and not in sync (rule B8.11)."""
        return self._port.quota.is_throttled(partition) and self.partitions[partition].lag != 0

    def _is_fetching(self) -> bool:
        """Whether the leader knows of something that it may still tell."""
        sent = self._connection.sent
        return len(sent) > sum(partition in sent for partition in self._forgotten)

    async def _wait(self) -> None:
        held = (state.delayed_until for tp, state in self.partitions.items() if not self._port.is_held(tp))
        self._changed = trio.Event()
        with trio.move_on_at(min(held, default=math.inf)):
            await self._changed.wait()
        self._changed = None

    def _delay(self, partitions: Iterable[TopicPartition]) -> None:
        """Rule B5.17: twice does not extend it."""
        now = self._clock()
        for partition in partitions:
            state = self.partitions[partition]
            if state.delayed_until <= now:
                state.delayed_until = now + self._port.config.replica_fetch_backoff_ms / 1000
            self._unsent[partition] = None
            self._forgotten[partition] = None

    # truncating

    async def _truncate(self, states: Mapping[TopicPartition, FetchState]) -> None:
        """Rule B5.9."""
        version = self._port.config.inter_broker_protocol_version
        epochs = {
            partition: (state.leader_epoch, state.last_fetched_epoch)
            for partition, state in states.items()
            if version.offset_for_leader_epoch_version is not None and state.last_fetched_epoch != UNDEFINED
        }
        for partition, state in states.items():
            if partition not in epochs:
                self._guarded(partition, state, self._truncate_to, state.offset, True)
        if not epochs:
            return
        try:
            answers = await self._connection.end_offsets(epochs)
        except LOST as e:
            self._lost({partition: states[partition] for partition in epochs}, e)
            return
        for partition in epochs:
            state, answer = states[partition], answers.get(partition)
            if self.partitions.get(partition) is not state:
                continue
            if answer is None:
                self._refused(partition, state, ErrorCode.UNKNOWN_SERVER_ERROR)
            elif answer.error == ErrorCode.NONE:
                self._guarded(partition, state, self._truncate_by_epoch, answer.end)
            else:
                self._refused(partition, state, answer.error)

    def _truncate_to(self, partition: TopicPartition, state: FetchState, offset: int, is_done: bool) -> None:
        state.log.truncate_to(offset)
        state.offset = min(offset, state.log.log_end_offset)
        state.is_truncating = not is_done

    def _truncate_by_epoch(self, partition: TopicPartition, state: FetchState, leader_end: EpochEnd) -> None:
        """Rule B5.25."""
        end = state.log.log_end_offset
        if leader_end.end_offset == UNDEFINED:
            self._truncate_to(partition, state, state.offset, True)
        elif leader_end.epoch == UNDEFINED:
            self._truncate_to(partition, state, min(leader_end.end_offset, end), True)
        else:
            own = state.log.end_offset_of(leader_end.epoch)
            if own.end_offset == UNDEFINED:
                self._truncate_to(partition, state, min(leader_end.end_offset, end), True)
            elif own.epoch != leader_end.epoch:
                on_fetch = self._port.config.inter_broker_protocol_version.truncates_on_fetch
                self._truncate_to(partition, state, min(own.end_offset, end), on_fetch)
            else:
                self._truncate_to(partition, state, min(own.end_offset, leader_end.end_offset, end), True)

    # fetching

    async def _fetch(self, states: Mapping[TopicPartition, FetchState]) -> None:
        """Raises what the connection raises."""
        changed = {
            partition: FollowerFetch(
                state.topic_id, state.offset, state.log.log_start_offset, state.leader_epoch, state.last_fetched_epoch
            )
            for partition, state in states.items()
        }
        for partition in changed:
            self._unsent.pop(partition, None)
        forgotten, self._forgotten = self._forgotten, {}
        connection = self._connection
        if not changed and len(connection.sent) <= sum(partition in connection.sent for partition in forgotten):
            self._forgotten = forgotten
            return
        answers = await connection.fetch(changed, forgotten, self._port.broker_epoch())
        self.requests += 1
        if self._port.topic_settings.unread:
            await self._read_settings(answers)
        sent = connection.sent
        for partition, data in answers.items():
            state = self.partitions.get(partition)
            if state is not None and data.records and not state.log.has_files:
                await self._make_files(state)
                state = self.partitions.get(partition)
            asked = sent.get(partition)
            if state is None or asked is None or partition in self._forgotten or state.offset != asked.offset:
                continue  # rule B5.12
            self._unsent[partition] = None
            if data.error_code == ErrorCode.NONE:
                self._guarded(partition, state, self._process, data)
            elif data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(partition, state)
            else:
                self._refused(partition, state, data.error_code)

    async def _make_files(self, state: FetchState) -> None:
        """Others run after their flushes: a response may begin many logs."""
        with suppress(KafkaStorageError):  # the append meets it again
            state.log.make_files()
        await trio.lowlevel.checkpoint()

    async def _read_settings(self, answers: Mapping[TopicPartition, Fetched]) -> None:
        """Returns when the settings of topics that records are to be written to are known."""
        settings = self._port.topic_settings
        topics = {tp.topic for tp, data in answers.items() if data.records and tp.topic in settings.unread}
        if topics:
            await settings.read(topics)

    def _process(self, partition: TopicPartition, state: FetchState, data: Fetched) -> None:
        """Rules B5.13, B5.14."""
        if data.diverging_epoch.epoch >= 0:
            self._truncate_by_epoch(
                partition, state, EpochEnd(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
            )
            return
        found = state.log
        if state.offset != found.log_end_offset:
            raise PartitionFailed(f"the log ends at {found.log_end_offset}, not at {state.offset}")
        if data.records:
            appended = append_copied(found, data.records, state.leader_epoch)
            if appended.first_offset >= 0:
                state.offset = appended.last_offset + 1
            self.bytes += len(data.records)
            self._port.fetched(partition, len(data.records))
            if self._port.quota.is_throttled(partition):
                self._port.quota.record(len(data.records))
        state.lag = max(0, data.high_watermark - state.offset)
        before = found.high_watermark
        if found.set_high_watermark(data.high_watermark) != before:
            self._port.high_watermark_moved(partition)
        found.increment_log_start_offset(data.log_start_offset)

    async def _out_of_range(self, partition: TopicPartition, state: FetchState) -> None:
        """Rule B5.18."""
        try:
            await self._resolve(partition, state)
        except LOST as e:
            self._lost({partition: state}, e)

    async def _resolve(self, partition: TopicPartition, state: FetchState) -> None:
        """Raises what the connection raises."""
        found = state.log
        error, latest = await self._connection.offset(partition, state.leader_epoch, LATEST)
        if error == ErrorCode.NONE and latest < found.log_end_offset:
            self._still(partition, state, lambda: self._truncate_to(partition, state, latest, True))
            return
        if error == ErrorCode.NONE:
            error, first = await self._connection.offset(partition, state.leader_epoch, EARLIEST)
        if error != ErrorCode.NONE:
            self._still(partition, state, lambda: self._refused(partition, state, error))
            return

        def restart() -> None:
            if first > found.log_end_offset:
                found.truncate_fully(first)
            state.offset = found.log_end_offset

        self._still(partition, state, restart)

    def _still(self, partition: TopicPartition, state: FetchState, action: Callable[[], None]) -> None:
        """Run ``action`` unless the partition was removed or replaced meanwhile."""
        if self.partitions.get(partition) is state:
            self._guarded(partition, state, lambda *_: action())

    # failures

    def _guarded(
        self, partition: TopicPartition, state: FetchState, action: Callable[..., None], *arguments: object
    ) -> None:
        try:
            action(partition, state, *arguments)
        except CorruptMessage as e:
            log.warning("%s from %d: %s", partition, self.leader, e)
            self._delay([partition])
        except Exception as e:  # rule B5.15: the other partitions are fetched
            if not isinstance(e, (ApiException, PartitionFailed)):
                log.exception("%s from %d", partition, self.leader)
            self._fail(partition, e)

    def _lost(self, states: Mapping[TopicPartition, FetchState], error: Exception) -> None:
        """No fetch was lost, so only these wait (rule B5.11). The session went with the connection."""
        log.info("%r: %s", self, error or type(error).__name__)
        self._unsent.update(dict.fromkeys(self.partitions))
        self._delay([partition for partition, state in states.items() if self.partitions.get(partition) is state])

    def _refused(self, partition: TopicPartition, state: FetchState, code: int) -> None:
        """Rule B5.16."""
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            self._fail(partition, wire.error_name(code))
        else:
            log.info("%s from %d: %s", partition, self.leader, wire.error_name(code))
            self._delay([partition])

    def _fail(self, partition: TopicPartition, reason: object) -> None:
        log.warning("stopped fetching %s from %d: %s", partition, self.leader, reason)
        self.partitions.pop(partition, None)
        self._forget(partition)
        self.failed.add(partition)
