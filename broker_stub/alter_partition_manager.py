"""Asks the controller for ISR changes: AlterPartition, one request in flight (rules 9.51-9.57).

Items gather while a request is under way and then leave together. An item stays until it is answered: a request that
fails as a whole is sent again with the same items 50 ms later, one whose connection or controller is lost goes to the
next controller, for ever.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import trio

import wire
from broker_stub.control_requests import NO_TOPIC_ID
from wire import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
    ErrorCode,
)
from wire.metadata_version import IBP_2_8_IV0, IBP_3_2_IV0, MetadataVersion
from wire.vocabulary import TopicPartition

logger = logging.getLogger("broker_stub.alter_partition")

#: after a request that was refused as a whole (rule 9.52)
RETRY_SECONDS: Final = 0.05

ALTER_PARTITION: Final = AlterPartitionRequest.__api_key__
MAX_VERSION_WITH_TOPIC_IDS: Final = 3
MAX_VERSION_WITHOUT: Final = 1
FIRST_VERSION_WITH_RECOVERY_STATE: Final = 1
FIRST_VERSION_WITH_BROKER_EPOCHS: Final = 3
RECOVERY_STATES: Final = frozenset({0, 1})  # RECOVERED, RECOVERING


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionItem:
    """The state that a leader wants its partition to have, and the epochs under which it leads.

    ``controller_epoch`` is that of the controller which made ``leader`` the leader (rule 1.53).
    """

    partition: TopicPartition
    topic_id: uuid.UUID
    leader: int
    controller_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    leader_recovery_state: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAndIsr:
    """What the controller wrote."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    leader_recovery_state: int
    partition_epoch: int


Result: TypeAlias = LeaderAndIsr | int  # an error code
Callback: TypeAlias = Callable[[Result], None]


class ControllerChannel(Protocol):
    """A way to the controller, whichever broker that is now."""

    async def request(
        self,
        api_key: int,
        max_version: int,
        build: Callable[[int], wire.Message],
        error_codes: Callable[[wire.Message], Iterable[int]],
    ) -> wire.Message:
        """The controller's answer to ``build(version)``, however many controllers it takes.

        Raises wire.UnsupportedVersion when the controller has no version in common with 0 to ``max_version``.
        """


class AlterPartitionManager:
    """Owns the items that are not yet answered. ``submit`` is called from anywhere in the same trio run."""

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
        self._unanswered: dict[TopicPartition, tuple[AlterPartitionItem, Callback]] = {}
        self._submitted = trio.Event()

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool:
        """Have ``callback`` called once with the result.

        False, and nothing is done, while another item for the partition is unanswered: Kafka fails such an item at
        once with OPERATION_NOT_ATTEMPTED (rule 9.51).
        """
        if item.partition in self._unanswered:
            return False
        self._unanswered[item.partition] = item, callback
        self._submitted.set()
        return True

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send until cancelled."""
        task_status.started()
        while True:
            await self._submitted.wait()
            self._submitted = trio.Event()
            while self._unanswered:
                if not await self._send():
                    await trio.sleep(RETRY_SECONDS)

    async def _send(self) -> bool:
        """One request with all that is there now; False if it has to be sent again."""
        items = tuple(item for item, _ in self._unanswered.values())
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
            logger.warning("AlterPartition cannot be sent: %s", e)
            return False
        assert isinstance(response, AlterPartitionResponse)
        if response.error_code != ErrorCode.NONE:  # rule 9.54: every such error is tried again
            logger.warning("AlterPartition was refused: %s", wire.error_name(response.error_code))
            return False
        self._complete(items, response)
        return True

    def _build(self, items: tuple[AlterPartitionItem, ...], broker_epoch: int, version: int) -> AlterPartitionRequest:
        topics: dict[tuple[str, uuid.UUID], list[AlterPartitionRequestPartitionData]] = {}
        says_recovery = version >= FIRST_VERSION_WITH_RECOVERY_STATE and self._metadata_version >= IBP_3_2_IV0
        with_epochs = version >= FIRST_VERSION_WITH_BROKER_EPOCHS
        for item in items:
            topics.setdefault((item.partition.topic, item.topic_id), []).append(
                AlterPartitionRequestPartitionData(
                    partition_index=item.partition.partition,
                    leader_epoch=item.leader_epoch,
                    new_isr=() if with_epochs else item.isr,
                    # their epochs stay -1: in ZooKeeper mode nobody but the controller knows them (rule 9.53)
                    new_isr_with_epochs=tuple(BrokerState(broker_id=i) for i in item.isr) if with_epochs else (),
                    leader_recovery_state=item.leader_recovery_state if says_recovery else 0,
                    partition_epoch=item.partition_epoch,
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
        """Answer the items that the response answers; the others stay, and are sent again (rule 9.55)."""
        names = {item.topic_id: item.partition.topic for item in items}
        answers: dict[TopicPartition, AlterPartitionResponsePartitionData] = {}
        for topic in response.topics:
            name = topic.topic_name or names.get(topic.topic_id)
            if name is None:
                logger.warning("AlterPartition was answered for topic id %s, which was not asked about", topic.topic_id)
                continue
            for partition in topic.partitions:
                answers[TopicPartition(name, partition.partition_index)] = partition
        for item in items:
            answer = answers.get(item.partition)
            if answer is None:
                continue
            _, callback = self._unanswered.pop(item.partition)  # before the callback, which may submit the next one
            try:
                callback(_result(answer))
            except Exception:
                logger.exception("the new state of %s could not be taken over", item.partition)


def _result(answer: AlterPartitionResponsePartitionData) -> Result:
    if answer.error_code != ErrorCode.NONE:
        return answer.error_code
    if answer.leader_recovery_state not in RECOVERY_STATES:
        return ErrorCode.UNKNOWN_SERVER_ERROR  # rule 9.55
    return LeaderAndIsr(
        leader=answer.leader_id,
        leader_epoch=answer.leader_epoch,
        isr=answer.isr,
        leader_recovery_state=answer.leader_recovery_state,
        partition_epoch=answer.partition_epoch,
    )


def _error_codes(response: wire.Message) -> Iterable[int]:
    """Every error code in the answer: NOT_CONTROLLER anywhere means to look for another controller (rule 9.56)."""
    assert isinstance(response, AlterPartitionResponse)
    yield response.error_code
    for topic in response.topics:
        for partition in topic.partitions:
            yield partition.error_code
