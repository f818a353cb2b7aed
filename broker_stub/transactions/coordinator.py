"""The transaction coordinator of one broker: what each request of a transactional id does (sections 4, 5, 8 and 11).

No method awaits. Those with a callback call it once, before they return or later; an error of Kafka is a result, any
other is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from kce.broker_stub.errors import Refused
from kce.broker_stub.internal_topics import TRANSACTION_STATE_TOPIC
from kce.broker_stub.producer_ids import ProducerIdManager
from kce.broker_stub.transaction_config import TransactionConfig
from kce.broker_stub.transactions.manager import Owned, TransactionManager
from kce.broker_stub.transactions.markers import MarkerSender
from kce.broker_stub.transactions.metadata import (
    NONE,
    IllegalTransition,
    TransactionMetadata,
    TransactionState,
    Values,
)
from kce.wire import ErrorCode
from kce.wire.steps import STEP_MASK, Steps
from kce.wire.vocabulary import TopicPartition

log = logging.getLogger(__name__)

OnDone: TypeAlias = Callable[[ErrorCode], None]
_STATES: Final = {state.label: state for state in TransactionState}


class InitResult(NamedTuple):
    """Producer id and epoch are -1 with an error."""

    error: ErrorCode
    producer_id: int = NONE
    producer_epoch: int = NONE


class Listed(NamedTuple):
    """``unknown_states``: of the filter."""

    error: ErrorCode
    unknown_states: tuple[str, ...] = ()
    found: tuple[TransactionMetadata, ...] = ()


class TransactionCoordinator:
    """The ``run`` of its manager and that of its markers run what is not done within a request (rule T1.10)."""

    def __init__(
        self,
        config: TransactionConfig,
        manager: TransactionManager,
        markers: MarkerSender,
        producer_ids: ProducerIdManager,
    ) -> None:
        self.manager = manager
        self.markers = markers
        self.is_active = True
        self._config = config
        self._producer_ids = producer_ids
        manager.on_loaded = self._loaded
        manager.abort_timed_out = self.abort_timed_out

    # the partitions of __transaction_state

    def became_leader(self, partition: TopicPartition, leader_epoch: int) -> None:
        """Rules T6.15, T13.1."""
        if partition.topic == TRANSACTION_STATE_TOPIC:
            self.markers.forget(partition.partition)
            self.manager.load(partition.partition, leader_epoch)

    def resigned(self, partition: TopicPartition, leader_epoch: int | None) -> None:
        """Rules T6.15, T9.16."""
        if partition.topic == TRANSACTION_STATE_TOPIC:
            self.manager.unload(partition.partition)
            self.markers.forget(partition.partition)

    def partitions_deleted(self, partitions: Sequence[TopicPartition]) -> None:
        """Their markers are not needed; that is seen when they are sent (rule T13.2)."""

    # InitProducerId

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: tuple[int, int] | None,
        on_done: Callable[[InitResult], None],
    ) -> None:
        """``expected``: producer id and epoch that the request gives. Raises IllegalTransition (section 4)."""
        try:
            owned, metadata, new = self._prepare_init(transactional_id, timeout_ms, expected)
        except Refused as e:
            on_done(InitResult(e.code))
            return
        if new.state is TransactionState.PREPARE_EPOCH_FENCE:  # rules T4.9, T4.10
            self._end(
                metadata, owned.coordinator_epoch, commit=False, fence=new.producer_epoch,
                on_done=lambda code: on_done(InitResult(code or ErrorCode.CONCURRENT_TRANSACTIONS)),
            )  # fmt: skip
            return

        def appended(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                on_done(InitResult(code, new.producer_id, new.producer_epoch))
            else:
                on_done(InitResult(code))

        self.manager.append(metadata, owned.coordinator_epoch, new, appended)

    def _prepare_init(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None
    ) -> tuple[Owned, TransactionMetadata, Values]:
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        owned = self._gate(transactional_id)
        metadata = owned.ids.get(transactional_id)
        now = self.manager.now_ms()
        if metadata is None:  # rules T4.3, T4.4
            values = Values(producer_id=next(self._new_ids()), timeout_ms=timeout_ms, last_update_ms=now)
            metadata = owned.ids[transactional_id] = TransactionMetadata(transactional_id, values)
        return owned, metadata, metadata.prepare_init(timeout_ms, expected, self._new_ids(), now)

    def _new_ids(self) -> Iterator[int]:
        """Raises Refused while there is none (rule T3.2)."""
        producer_id = self._producer_ids.next_id()
        if producer_id is None:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        yield producer_id

    # AddPartitionsToTxn, AddOffsetsToTxn

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Collection[TopicPartition],
        on_done: OnDone,
    ) -> None:
        """Rules T5.4 to T5.7."""
        added = frozenset(partitions)
        try:
            owned, metadata = self._known(transactional_id, producer_id, epoch)
            _check_not_ending(metadata, or_pending=True)
        except Refused as e:
            on_done(e.code)
            return
        values = metadata.values
        if values.state is TransactionState.ONGOING and added <= values.partitions:
            on_done(ErrorCode.NONE)
            return
        new = metadata.prepare_add(added, self.manager.now_ms())
        self.manager.append(metadata, owned.coordinator_epoch, new, on_done)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether they are in the transaction (rule T10.9)."""
        try:
            _, metadata = self._known(transactional_id, producer_id, epoch)
            _check_not_ending(metadata, or_pending=False)
        except Refused as e:
            return dict.fromkeys(partitions, e.code)
        return {
            partition: ErrorCode.NONE if partition in metadata.values.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _gate(self, transactional_id: str) -> Owned:
        if not self.is_active:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        return self.manager.owned(transactional_id)

    def _known(self, transactional_id: str, producer_id: int, epoch: int) -> tuple[Owned, TransactionMetadata]:
        """Raises Refused (rules T5.4, T5.8)."""
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        owned = self._gate(transactional_id)
        metadata = owned.ids.get(transactional_id)
        if metadata is None or metadata.values.producer_id != producer_id:
            raise Refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if metadata.values.producer_epoch != epoch:
            raise Refused(ErrorCode.PRODUCER_FENCED)
        return owned, metadata

    # EndTxn

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, on_done: OnDone) -> None:
        """Rules T5.8 to T5.12. Answered when the decision is durable."""
        try:
            owned, metadata = self._known(transactional_id, producer_id, epoch)
            done = _ended_already(metadata, commit=commit)
        except Refused as e:
            on_done(e.code)
            return
        if done:
            on_done(ErrorCode.NONE)
        else:
            self._end(metadata, owned.coordinator_epoch, commit=commit, on_done=on_done)

    def _end(
        self,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        *,
        commit: bool,
        on_done: OnDone,
        fence: int | None = None,
    ) -> None:
        """Of an ongoing transaction; ``fence``: the epoch of the fence that is pending (rules T4.9, T4.12)."""
        new = metadata.prepare_end(commit=commit, now_ms=self.manager.now_ms(), fence=fence)

        def appended(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._prepared(metadata, coordinator_epoch)
            elif fence is not None and self.manager.is_current(metadata.transactional_id, coordinator_epoch):
                metadata.fence_failed = True
            on_done(code)

        self.manager.append(metadata, coordinator_epoch, new, appended)

    def _prepared(self, metadata: TransactionMetadata, coordinator_epoch: int) -> None:
        """The decision is in the log: have the markers written (rules T2.5, T5.10)."""
        complete = metadata.prepare_complete(self.manager.now_ms())
        self.markers.send(_Ending(self.manager, self.markers, metadata, coordinator_epoch, complete))

    def _loaded(self, coordinator_epoch: int, metadata: TransactionMetadata) -> None:
        """Rule T9.14."""
        self._prepared(metadata, coordinator_epoch)

    # what happens by itself

    def abort_timed_out(self) -> None:
        """Rules T8.1 to T8.4."""
        now = self.manager.now_ms()
        for metadata in [found for found in self.manager.all_ids() if found.is_timed_out(now)]:
            try:
                owned = self._gate(metadata.transactional_id)
                fence = metadata.prepare_fence().producer_epoch
            except (Refused, IllegalTransition) as e:
                log.warning("%r is timed out and cannot be aborted: %s", metadata, e)
                continue
            log.info("%r is timed out, and aborted", metadata)
            self._end(metadata, owned.coordinator_epoch, commit=False, fence=fence, on_done=lambda code: None)

    # DescribeTransactions, ListTransactions

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Raises Refused (rules T11.1, T11.2)."""
        if not self.is_active:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST)
        metadata = self.manager.owned(transactional_id).ids.get(transactional_id)
        if metadata is None or metadata.values.state is TransactionState.DEAD:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return metadata

    def list_transactions(
        self, states: Collection[str] = (), producer_ids: Collection[int] = (), longer_than_ms: int = NONE
    ) -> Steps[Listed]:
        """Rules T11.3 to T11.5."""
        if not self.is_active:
            return Listed(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.manager.is_loading:
            return Listed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        wanted, unknown, producers = set(), dict[str, None](), set()
        for i, name in enumerate(states, 1):
            if name in _STATES:
                wanted.add(_STATES[name])
            else:
                unknown[name] = None
            if not i & STEP_MASK:
                yield
        for i, producer_id in enumerate(producer_ids, 1):
            producers.add(producer_id)
            if not i & STEP_MASK:
                yield
        now = self.manager.now_ms()
        found = []
        for i, metadata in enumerate(tuple(self.manager.all_ids()), 1):
            if (
                metadata.values.state is not TransactionState.DEAD
                and (not states or metadata.values.state in wanted)
                and (not producers or metadata.values.producer_id in producers)
                and (longer_than_ms < 0 or now - metadata.values.start_ms > longer_than_ms)
            ):
                found.append(metadata)
            if not i & STEP_MASK:
                yield
        return Listed(ErrorCode.NONE, tuple(unknown), tuple(found))


def _check_not_ending(metadata: TransactionMetadata, *, or_pending: bool) -> None:
    """Raises Refused (rules T5.4, T10.9)."""
    if metadata.values.state.is_preparing or (or_pending and metadata.pending is not None):
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)


def _ended_already(metadata: TransactionMetadata, *, commit: bool) -> bool:
    """Whether that was done before; False if it is to be done. Raises Refused (rule T2.6)."""
    if metadata.pending is not None:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    state = metadata.values.state
    if state is TransactionState.ONGOING:
        return False
    wanted = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if state is wanted:
        raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state is wanted.completed:
        return True
    raise Refused(ErrorCode.INVALID_TXN_STATE)


class _Ending:
    """A transaction whose markers are sent: see ``markers.Ending``."""

    def __init__(
        self,
        manager: TransactionManager,
        markers: MarkerSender,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        complete: Values,
    ) -> None:
        self._manager = manager
        self._markers = markers
        self._metadata = metadata
        self._complete = complete
        self.coordinator_epoch = coordinator_epoch
        self.transactional_id = metadata.transactional_id
        self.state_partition = manager.partition_of(metadata.transactional_id)
        self.producer_id = complete.producer_id
        self.producer_epoch = complete.producer_epoch
        self.committed = complete.state is TransactionState.COMPLETE_COMMIT

    @property
    def is_current(self) -> bool:
        return self._manager.is_current(self.transactional_id, self.coordinator_epoch)

    @property
    def remaining(self) -> Collection[TopicPartition]:
        return self._metadata.values.partitions

    def marker_written(self, partition: TopicPartition) -> None:
        self._metadata.marker_written(partition)

    def finished(self) -> None:
        """Rules T6.12, T6.13."""
        self._manager.append(
            self._metadata, self.coordinator_epoch, self._complete, self._appended, retries=_is_unavailable
        )

    def _appended(self, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE and _is_unavailable(code) and self.is_current:
            self._markers.finish_later(self)


def _is_unavailable(code: ErrorCode) -> bool:
    return code is ErrorCode.COORDINATOR_NOT_AVAILABLE
