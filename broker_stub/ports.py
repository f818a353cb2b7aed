"""What a broker needs from outside, as Protocols: connections, stores, a controller; its disk is in `disk`. Its owner
passes them in.

Nothing in this package opens a socket or imports the controller. So connections can be recorded and disturbed, and the
same broker runs with any controller or none. Outgoing connections come from `wire.transport.Dial`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from kce.broker_stub.alter_partition_manager import AlterPartitionItem
from kce.broker_stub.errors import ApiException
from kce.broker_stub.security.config import ListenerSecurity
from kce.wire import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    ErrorCode,
    Message,
)
from kce.wire.payload import Payload
from kce.wire.vocabulary import NO_LEADER, TopicPartition

#: host and port
Address: TypeAlias = tuple[str, int]


class InTurns(Protocol):
    """Whose turn it is to deal with input."""

    def call(self, work: Callable[[], None]) -> None:
        """Call it, now or later."""

    def end_slice(self) -> None:
        """All whose input was found by one look for it have been passed to ``call``."""


class FrameMemory(Protocol):
    """The memory pool for received frames."""

    def try_take(self, count: int) -> bool: ...

    async def take(self, count: int) -> None: ...

    def give_back(self, count: int) -> None: ...


class Link(Protocol):
    """An accepted connection that carries whole frames, without their length prefixes.

    It reserves memory for a frame once it knows the length, before it receives the rest. The receiver of the frame
    releases the memory; the link releases what it reserved for an incomplete frame.
    """

    @property
    def local(self) -> Address: ...
    @property
    def remote(self) -> Address: ...
    @property
    def last_received(self) -> float:
        """trio.current_time() of the last received bytes."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes received after the last complete frame."""

    async def secure(self) -> bytes | None:
        """Do the TLS handshake, on a listener with TLS, before anything else.

        Returns the client's verified certificate in DER, if it has shown one. Raises trio.BrokenResourceError.
        """

    def limit_frames(self, max_frame_bytes: int) -> int:
        """Change the limit of received frames; returns that before."""

    async def receive(self) -> bytes | None:
        """The next frame; None if the peer has closed. Raises wire.LimitExceeded, trio.BrokenResourceError."""

    def receive_nowait(self) -> bytes | None:
        """The next frame, if it has come and nothing speaks against handing it out now."""

    async def wait_for_input(self, on_input: Callable[[], bool], turns: InTurns) -> None:
        """Call ``on_input``, not in this task, whenever there is something to ``receive_nowait``. It must not raise.

        Returns when it returns False, when ``stop_waiting`` is called, when only ``receive`` can tell what has come,
        and at once if the link cannot call. Raises trio.ClosedResourceError.
        """

    def stop_waiting(self) -> None:
        """End the ``wait_for_input`` of another task."""

    async def send(self, *payloads: Payload) -> None:
        """Send frames, in one write if nothing speaks against it. Raises trio.BrokenResourceError."""

    def send_nowait(self, *payloads: Payload) -> bool:
        """Send frames if that need not wait, and whether they were sent; who is told so calls ``flush`` before it sends
        more, if there ``is_unsent`` something."""

    @property
    def is_unsent(self) -> bool:
        """Whether there is something to ``flush``."""

    async def flush(self) -> None:
        """Send what ``send_nowait`` could not send without waiting. Raises trio.BrokenResourceError."""

    async def aclose(self) -> None:
        """Does not wait for the peer, and cannot be cancelled."""


class ListeningSocket(Protocol):
    """A bound server socket."""

    @property
    def address(self) -> Address: ...

    def listen(self, backlog: int) -> None:
        """Accept connections from now on. Raises OSError."""

    async def accept(self) -> Link:
        """Raises OSError."""

    def close(self) -> None: ...


class Bind(Protocol):
    """Binds a server socket for a listener. ``max_frame_bytes`` limits received frames, ``memory`` all together."""

    async def __call__(
        self, host: str, port: int, *, listener: str, max_frame_bytes: int, memory: FrameMemory | None = None
    ) -> ListeningSocket:
        """Raises OSError."""


class TlsPort(Protocol):
    """The keys and certificates of the listeners with TLS, which may change while the broker runs."""

    def check(self, security: Mapping[str, ListenerSecurity]) -> None:
        """Whether listeners may have these. Raises ConfigError."""

    def use(self, security: Mapping[str, ListenerSecurity]) -> None:
        """New connections of these listeners have these from now on. Raises ConfigError, and changes nothing then."""

    def reload(self) -> None:
        """Read the files of the stores again. Raises ConfigError, and changes nothing then."""


class NoTls:
    """A broker whose listeners are not secured by itself."""

    def check(self, security: Mapping[str, ListenerSecurity]) -> None: ...

    def use(self, security: Mapping[str, ListenerSecurity]) -> None: ...

    def reload(self) -> None: ...


class IsrStore(Protocol):
    """ISR changes that a leader writes itself (rules 1.32, 1.53)."""

    async def update_isr(self, item: AlterPartitionItem) -> int | None:
        """Write the state if the partition epoch is still that of ``item``. The new epoch, or None if it was not."""

    async def notify_isr_changes(self, partitions: Collection[TopicPartition]) -> None:
        """Notify the controller of the changed partitions."""


class LogDirEvents(Protocol):
    """Notifies the controller of failed log directories (rules 1.33, 9.68)."""

    async def log_dir_failed(self) -> None:
        """May raise what the metadata store raises."""


class ControllerPort(Protocol):
    """This node's controller module, as its request handlers see it."""

    @property
    def is_active(self) -> bool:
        """Whether this node considers itself the controller (rule 2.5)."""

    def is_queued_for_deletion(self, topic: str) -> bool: ...

    def leader(self, partition: TopicPartition) -> int:
        """The leader that this controller elected last; -1 if it knows none."""

    def submit(self, request: Message, api_version: int, reply: Callable[[Message | None], None]) -> None:
        """Submit a request to the controller. Returns at once.

        ``reply`` gets the response, or None if this node is not the controller. It is called at most once, later or
        before this returns, from a task of the same trio run. If the controller drops the event, it is never called and
        the requester times out (rule 3.38).
        """


#: whether the quota permits that many more partitions
Permit = Callable[[int], bool]


def always(partitions: int) -> bool:
    return True


class AdminPort(Protocol):
    """Topics, configurations and old offsets in the metadata store, for requests that the controller does not decide.

    Each method may raise what the store raises; the request then fails with UNKNOWN_SERVER_ERROR.
    """

    async def create_topics(
        self,
        topics: Sequence[CreatableTopic],
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        permit: Permit = always,
    ) -> list[CreatableTopicResult]:
        """Rules 10.3-10.7, 10.11: the results in the same order. ``brokers``: id -> rack of the alive brokers.

        The topics have different names.
        """

    async def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool, permit: Permit = always
    ) -> list[tuple[CreatePartitionsTopicResult, Collection[int]]]:
        """Rules 10.11, 10.13-10.16: for each topic the result, and the numbers of all partitions that there are now.

        The topics have different names.
        """

    async def delete_topics(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
        """Rule 10.36."""

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        """The configuration of an entity (rule 1.34): ``kind`` is "topics", "brokers" or "users"."""

    async def configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """Those of all entities of ``kind``, by name; without those of users' clients."""

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """Replace the configuration and notify every broker (rules 1.35, 1.54). Raises Refused."""

    async def client_configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        """All of a kind: ``kind`` is "users", "clients" or "ips". Names are as in paths, "u/clients/c" among users."""

    async def change_client_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """``change_config`` of such an entity; an empty configuration is deleted (rule B8.15)."""

    async def consumer_offset(self, group: str, partition: TopicPartition) -> int | None:
        """The offset of an old consumer (rule G7.29). Raises ValueError for one that is no number."""

    async def put_consumer_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Rule G7.16."""


class TopicSettings(Protocol):
    """The settings of topics, which are read after the broker has heard of a topic, and before anything depends on
    them."""

    @property
    def unread(self) -> Collection[str]:
        """The topics whose settings are not read yet."""

    def expect(self, topics: Collection[str]) -> None:
        """Read them soon."""

    async def read(self, topics: Collection[str]) -> None:
        """Read them now. Returns when they are read, or cannot be read now."""


class NoTopicSettings:
    """Topics have none."""

    unread: Collection[str] = ()

    def expect(self, topics: Collection[str]) -> None: ...

    async def read(self, topics: Collection[str]) -> None: ...


class NoController:
    """A controller module that is never active."""

    is_active = False

    def is_queued_for_deletion(self, topic: str) -> bool:
        return False

    def leader(self, partition: TopicPartition) -> int:
        return NO_LEADER

    def submit(self, request: Message, api_version: int, reply: Callable[[Message | None], None]) -> None:
        reply(None)


class NoStore:
    """A broker without a metadata store: configurations are empty, and changes fail."""

    async def create_topics(
        self,
        topics: Sequence[CreatableTopic],
        brokers: Mapping[int, str | None],
        *,
        validate_only: bool,
        permit: Permit = always,
    ) -> list[CreatableTopicResult]:
        raise _no_store()

    async def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool, permit: Permit = always
    ) -> list[tuple[CreatePartitionsTopicResult, Collection[int]]]:
        raise _no_store()

    async def delete_topics(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
        raise _no_store()

    async def config(self, kind: str, name: str) -> Mapping[str, str]:
        return {}

    async def configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        return {}

    async def change_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        raise _no_store()

    async def client_configs(self, kind: str) -> Mapping[str, Mapping[str, str]]:
        return {}

    async def change_client_config(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        raise _no_store()

    async def consumer_offset(self, group: str, partition: TopicPartition) -> int | None:
        raise _no_store()

    async def put_consumer_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        raise _no_store()


def _no_store() -> ApiException:
    return ApiException("this broker has no metadata store")
