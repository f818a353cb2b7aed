"""Sends ISR changes to the controller: AlterPartition, one request in flight (rules 9.51-9.57).

Items that are submitted while a request is in flight go into the next request together. An item stays pending until it
has a response: after a top-level error the same items are resent 50 ms later, after a lost connection or controller
to the next controller. Retries never end.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import trio

from kce import wire
from kce.wire import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
    ErrorCode,
)
from kce.wire.control import NO_TOPIC_ID
from kce.wire.metadata_version import IBP_2_8_IV0, IBP_3_2_IV0, MetadataVersion
from kce.wire.vocabulary import RECOVERED, RECOVERING, TopicPartition
from kce.zookeeper.model import BrokerId, LeaderAndIsr

log = logging.getLogger(__name__)

#: before a retry after a top-level error (rule 9.52)
RETRY_SECONDS: Final = 0.05

ALTER_PARTITION: Final = AlterPartitionRequest.__api_key__
MAX_VERSION_WITH_TOPIC_IDS: Final = 3
MAX_VERSION_WITHOUT: Final = 1
FIRST_VERSION_WITH_RECOVERY_STATE: Final = 1
FIRST_VERSION_WITH_BROKER_EPOCHS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """The state that a leader proposes for its partition.

    ``controller_epoch`` is the epoch of the controller that elected the leader (rule 1.53).
    """

    partition: TopicPartition
    topic_id: uuid.UUID
    controller_epoch: int
    leader_and_isr: LeaderAndIsr


#: the committed state, or an error code
Result: TypeAlias = LeaderAndIsr | int
Callback: TypeAlias = Callable[[Result], None]


class ControllerChannel(Protocol):
    """Sends requests to the current controller."""

    async def request(
        self,
        api_key: int,
        max_version: int,
        build: Callable[[int], wire.Message],
        error_codes: Callable[[wire.Message], Iterable[int]],
    ) -> wire.Message:
        """The response to ``build(version)``; retries with the next controller until there is one.

        Raises wire.UnsupportedVersion if the controller supports no version from 0 to ``max_version``.
        """


class AlterPartitionManager:
    """Owns the pending items. ``submit`` may be called from any task of the same trio run."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        channel: ControllerChannel,
        metadata_version: MetadataVersion,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel
        self._metadata_version = metadata_version
        self._pending: dict[TopicPartition, tuple[AlterPartitionItem, Callback]] = {}
        self._submitted = trio.Event()

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool:
        """Send the item; ``callback`` gets the result, once.

        Returns False and does nothing while another item for the partition is pending: Kafka fails such an item at
        once with OPERATION_NOT_ATTEMPTED (rule 9.51).
        """
        if item.partition in self._pending:
            return False
        self._pending[item.partition] = item, callback
        self._submitted.set()
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send items until cancelled."""
        task_status.started()
        while True:
            await self._submitted.wait()
            self._submitted = trio.Event()
            while self._pending:
                if not await self._send():
                    await trio.sleep(RETRY_SECONDS)

    async def _send(self) -> bool:
        """Send one request with all pending items; False if it must be resent."""
        items = tuple(item for item, _ in self._pending.values())
        with_ids = self._metadata_version >= IBP_2_8_IV0 and all(item.topic_id != NO_TOPIC_ID for item in items)
        broker_epoch = self._broker_epoch()
        try:
            response = await self._channel.request(
                ALTER_PARTITION,
                MAX_VERSION_WITH_TOPIC_IDS if with_ids else MAX_VERSION_WITHOUT,  # rule 8.20
                lambda version: self._build(items, broker_epoch, version),
                _error_codes,
            )
        except wire.WireError as e:
            log.warning("AlterPartition could not be sent: %s", e)
            return False
        assert isinstance(response, AlterPartitionResponse)
        if response.error_code != ErrorCode.NONE:  # rule 9.54: every top-level error is retried
            log.warning("AlterPartition was refused: %s", wire.error_name(response.error_code))
            return False
        self._complete(items, response)
        return True

    def _build(self, items: tuple[AlterPartitionItem, ...], broker_epoch: int, version: int) -> AlterPartitionRequest:
        topics: dict[tuple[str, uuid.UUID], list[AlterPartitionRequestPartitionData]] = {}
        with_recovery_state = version >= FIRST_VERSION_WITH_RECOVERY_STATE and self._metadata_version >= IBP_3_2_IV0
        with_epochs = version >= FIRST_VERSION_WITH_BROKER_EPOCHS
        for item in items:
            wanted = item.leader_and_isr
            topics.setdefault((item.partition.topic, item.topic_id), []).append(
                AlterPartitionRequestPartitionData(
                    partition_index=item.partition.partition,
                    leader_epoch=wanted.leader_epoch,
                    new_isr=() if with_epochs else wanted.isr,
                    # broker epochs stay -1: in ZooKeeper mode only the controller knows them (rule 9.53)
                    new_isr_with_epochs=tuple(BrokerState(broker_id=i) for i in wanted.isr) if with_epochs else (),
                    leader_recovery_state=wanted.recovery_state if with_recovery_state else RECOVERED,
                    partition_epoch=wanted.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=broker_epoch,
            topics=tuple(
                AlterPartitionRequestTopicData(topic_name=name, topic_id=topic_id, partitions=tuple(partitions))
                for (name, topic_id), partitions in topics.items()
            ),
        )

    def _complete(self, items: tuple[AlterPartitionItem, ...], response: AlterPartitionResponse) -> None:
        """Complete the items in the response; the others stay pending and are resent (rule 9.55)."""
        names = {item.topic_id: item.partition.topic for item in items}
        responses: dict[TopicPartition, AlterPartitionResponsePartitionData] = {}
        for topic in response.topics:
            name = topic.topic_name or names.get(topic.topic_id)
            if name is None:
                log.warning("The AlterPartition response has topic id %s, which was not in the request", topic.topic_id)
                continue
            for partition in topic.partitions:
                responses[TopicPartition(name, partition.partition_index)] = partition
        for item in items:
            partition_response = responses.get(item.partition)
            if partition_response is None:
                continue
            _, callback = self._pending.pop(item.partition)  # before the callback, which may submit the next one
            try:
                callback(_result(partition_response))
            except Exception:
                log.exception("the new state of %s could not be applied", item.partition)


def _result(response: AlterPartitionResponsePartitionData) -> Result:
    if response.error_code != ErrorCode.NONE:
        return response.error_code
    if response.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.UNKNOWN_SERVER_ERROR  # rule 9.55
    return LeaderAndIsr(
        leader=BrokerId(response.leader_id),
        isr=tuple(map(BrokerId, response.isr)),
        leader_epoch=response.leader_epoch,
        recovery_state=response.leader_recovery_state,
        partition_epoch=response.partition_epoch,
    )


def _error_codes(response: wire.Message) -> Iterable[int]:
    """Every error code in the response: NOT_CONTROLLER anywhere means looking for the controller again (rule 9.56)."""
    assert isinstance(response, AlterPartitionResponse)
    yield response.error_code
    for topic in response.topics:
        for partition in topic.partitions:
            yield partition.error_code
