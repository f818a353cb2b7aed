"""What a broker needs of others, as Protocols that whoever starts it hands in: connections, taps, a controller.

Nothing in this package opens an outgoing socket or knows the controller; both come through here, so that recording and
faults can be put in between and the same broker runs with any controller, or none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import trio

from broker_stub.alter_partition_manager import AlterPartitionItem
from broker_stub.errors import ApiError
from wire import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownResponse,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
)
from wire.vocabulary import ElectionType, FeatureUpdate, TopicPartition


class ConnectionLost(ConnectionError):
    """The other side closed the connection, or it broke."""


class FramedConnection(Protocol):
    """A connection to another node on which whole frames travel (without their lengths)."""

    async def send_frame(self, payload: bytes) -> None:
        """Raises ConnectionLost."""

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, also when the peer has closed."""

    async def aclose(self) -> None:
        """Never fails and does not wait for the peer."""


#: Opens a connection to (host, port); raises OSError (ConnectionLost is one) where that is not possible.
Dial: TypeAlias = Callable[[str, int], Awaitable[FramedConnection]]

#: Wraps an accepted connection, say to record it. Whatever it returns is read, written and closed in its place.
Tap: TypeAlias = Callable[[trio.SocketStream], trio.abc.Stream]


def no_tap(stream: trio.SocketStream) -> trio.abc.Stream:
    """The connection as it is."""
    return stream


class IsrStore(Protocol):
    """ZooKeeper, as a leader needs it where it changes ISRs itself (rules 1.32, 1.53)."""

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        """Write it if the partition epoch is still that of ``item``; the new one, or None where it is another."""

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        """Tell the controller that their states have changed."""


#: what became of one thing that was asked for: NONE or an error, and an explanation
Outcome: TypeAlias = tuple[ErrorCode, str]


class LogDirEvents(Protocol):
    """Where a broker says that a log directory has failed (rules 1.33, 9.68)."""

    async def log_dir_failed(self) -> None:
        """May raise what the metadata store raises."""


class Reassignment(Protocol):
    """A partition's replicas, those being added included, and which come and go."""

    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def adding(self) -> Sequence[int]: ...
    @property
    def removing(self) -> Sequence[int]: ...


class ProducerIds(Protocol):
    """``first`` to ``last``, both included."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


class ControllerPort(Protocol):
    """This node's controller module, as its request handlers see it.

    All return at once and raise nothing. ``reply`` is called at most once, later or before they return, from a task
    of the same trio run; never when the controller dropped the event (rule 3.38), and the requester then times out.
    """

    @property
    def is_active(self) -> bool:
        """Whether this node believes to be the controller (rule 2.5)."""

    def is_queued_for_deletion(self, topic: str) -> bool: ...

    def alter_partition(
        self, request: AlterPartitionRequest, api_version: int, reply: Callable[[AlterPartitionResponse], None]
    ) -> None: ...

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ControlledShutdownResponse], None]
    ) -> None: ...

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        reply: Callable[[Mapping[TopicPartition, Outcome] | Outcome], None],
    ) -> None:
        """``targets``: partition -> its replicas to be, None to cancel. One outcome for all: none was looked at."""

    def list_partition_reassignments(
        self,
        partitions: Collection[TopicPartition] | None,
        reply: Callable[[Mapping[TopicPartition, Reassignment] | Outcome], None],
    ) -> None:
        """Of ``partitions``, or of all if None."""

    def elect_leaders(
        self,
        partitions: Collection[TopicPartition],
        election_type: ElectionType,
        reply: Callable[[Mapping[TopicPartition, int | Outcome]], None],
    ) -> None:
        """The leader that was elected for each partition, or why none was."""

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ProducerIds | ErrorCode], None]
    ) -> None: ...

    def update_features(
        self,
        updates: Sequence[FeatureUpdate],
        reply: Callable[[Mapping[str, Outcome] | Outcome], None],
        *,
        validate_only: bool,
    ) -> None:
        """By feature. One outcome for all: none was looked at."""


#: asked just before partitions are created: may there be so many more?
Permit = Callable[[int], bool]


def always(partitions: int) -> bool:
    return True


class AdminPort(Protocol):
    """Topics and configurations in the metadata store, for those requests that need no controller to decide.

    Each may raise what the store raises; the request is then answered with UNKNOWN_SERVER_ERROR.
    """

    async def create_topic(
        self,
        topic: CreatableTopic,
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        config_error: Callable[[Mapping[str, str]], str | None],
        permit: Permit = always,
    ) -> CreatableTopicResult:
        """Rules 10.3-10.7, 10.11. ``brokers``: id -> rack of those alive; ``config_error``: what is wrong with a
        config; ``permit``: whether there may be so many partitions more."""

    async def create_partitions(
        self, topic: CreatePartitionsTopic, *, validate_only: bool, permit: Permit = always
    ) -> tuple[CreatePartitionsTopicResult, range]:
        """Rules 10.11, 10.13-10.16: the answer, and the numbers of the partitions that were added."""

    async def delete_topic(self, topic: str) -> ErrorCode:
        """Rule 10.36."""

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        """What is set for an entity (rule 1.34): ``kind`` is "topics" or "brokers"."""

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace it, and tell every broker (rules 1.35, 1.54)."""


_NOT_CONTROLLER: Final[Outcome] = ErrorCode.NOT_CONTROLLER, "this broker is not the controller"


class NoController:
    """A controller module that is not active, and never will be."""

    is_active = False

    def is_queued_for_deletion(self, topic: str) -> bool:
        return False

    def alter_partition(
        self, request: AlterPartitionRequest, api_version: int, reply: Callable[[AlterPartitionResponse], None]
    ) -> None:
        reply(AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER))  # rule 9.70

    def controlled_shutdown(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ControlledShutdownResponse], None]
    ) -> None:
        reply(ControlledShutdownResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH))  # rules 9.69, 11.41

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        reply: Callable[[Mapping[TopicPartition, Outcome] | Outcome], None],
    ) -> None:
        reply(_NOT_CONTROLLER)

    def list_partition_reassignments(
        self,
        partitions: Collection[TopicPartition] | None,
        reply: Callable[[Mapping[TopicPartition, Reassignment] | Outcome], None],
    ) -> None:
        reply(_NOT_CONTROLLER)

    def elect_leaders(
        self,
        partitions: Collection[TopicPartition],
        election_type: ElectionType,
        reply: Callable[[Mapping[TopicPartition, int | Outcome]], None],
    ) -> None:
        reply(dict.fromkeys(partitions, _NOT_CONTROLLER))

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, reply: Callable[[ProducerIds | ErrorCode], None]
    ) -> None:
        reply(ErrorCode.NOT_CONTROLLER)

    def update_features(
        self,
        updates: Sequence[FeatureUpdate],
        reply: Callable[[Mapping[str, Outcome] | Outcome], None],
        *,
        validate_only: bool,
    ) -> None:
        reply(_NOT_CONTROLLER)


class NoStore:
    """The administration of a broker without a metadata store: nothing is set, and nothing can be."""

    async def create_topic(
        self,
        topic: CreatableTopic,
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        config_error: Callable[[Mapping[str, str]], str | None],
        permit: Permit = always,
    ) -> CreatableTopicResult:
        raise _no_store()

    async def create_partitions(
        self, topic: CreatePartitionsTopic, *, validate_only: bool, permit: Permit = always
    ) -> tuple[CreatePartitionsTopicResult, range]:
        raise _no_store()

    async def delete_topic(self, topic: str) -> ErrorCode:
        raise _no_store()

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        return {}

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        raise _no_store()


def _no_store() -> ApiError:
    return ApiError("this broker has no metadata store")
