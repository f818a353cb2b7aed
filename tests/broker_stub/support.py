"""Shared by the tests of the broker: a node without sockets, a client with one, short forms of requests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import trio

from kce import wire
from kce.broker_stub import Broker, BrokerConfig, Endpoint, TopicPartition
from kce.broker_stub.alter_partition_manager import AlterPartitionItem, Callback, ControllerChannel
from kce.broker_stub.authorization import Authorization
from kce.broker_stub.auto_topic_creation import AutoTopicCreation
from kce.broker_stub.dynamic_config import DynamicConfig
from kce.broker_stub.groups.coordinator import GroupCoordinator
from kce.broker_stub.groups.manager import GroupManager
from kce.broker_stub.groups.storage import ReplicatedOffsetsLog
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.handlers.kafka_apis import KafkaApis, served_apis
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.ports import Address, AdminPort, ControllerPort, NoController, NoStore
from kce.broker_stub.producer_ids import ControllerProducerIds, ProducerIdManager
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.reactor import Apis, ConnectionContext, Request, RequestContext, SocketServer
from kce.broker_stub.reactor.connection import Connection
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request import Action, RequestQuota, Sharing
from kce.broker_stub.reactor.turns import Turns
from kce.broker_stub.replica_manager import IsrPolicy, ReplicaManager
from kce.broker_stub.replication.isr import ItemSubmitter
from kce.broker_stub.replication.replication import Replication
from kce.broker_stub.replication.throttle import ReplicationQuotas
from kce.broker_stub.security import ANONYMOUS, KafkaPrincipal
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.config import PLAINTEXT
from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.transactions.coordinator import TransactionCoordinator
from kce.broker_stub.transactions.manager import TransactionManager
from kce.broker_stub.transactions.markers import MarkerSender
from kce.broker_stub.transactions.storage import ReplicatedTransactionLog
from kce.broker_stub.transactions.verification import TransactionVerification
from kce.broker_stub.transactions.verifier import PartitionVerifier
from kce.harness.connections import Link
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.world import Connected, RealWorld
from kce.wire.steps import Steps
from kce.wire.transport import ConnectionLost, Dial, FramedConnection
from tests.broker_stub.logs import MemoryLogManager

ID_A = uuid.UUID(int=0xA)
ID_B = uuid.UUID(int=0xB)
NO_ID = uuid.UUID(int=0)

TWO_LISTENERS = {
    "listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0",
    "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT",
    "control.plane.listener.name": "CONTROL",
    "inter.broker.listener.name": "DATA",
}
ONE_LISTENER = {
    "listeners": "DATA://127.0.0.1:0",
    "listener.security.protocol.map": "DATA:PLAINTEXT",
    "inter.broker.listener.name": "DATA",
}


def config(broker_id: int = 1, base: dict[str, str] = TWO_LISTENERS, **properties: str) -> BrokerConfig:
    """Underscores become dots: ``num_io_threads="2"``."""
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return BrokerConfig.from_properties({"broker.id": str(broker_id), **base, **given})


# -- control requests -------------------------------------------------------------------------------------------------


def lai_state(
    partition: int = 0,
    *,
    topic: str = "",
    leader: int = 1,
    leader_epoch: int = 0,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    partition_epoch: int = 0,
    **more: Any,
) -> wire.LeaderAndIsrPartitionState:
    return wire.LeaderAndIsrPartitionState(
        topic_name=topic,
        partition_index=partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=isr,
        replicas=replicas,
        partition_epoch=partition_epoch,
        **more,
    )


def leader_and_isr(
    *states: wire.LeaderAndIsrPartitionState,
    topic: str = "a",
    topic_id: uuid.UUID = ID_A,
    controller_epoch: int = 1,
    broker_epoch: int = -1,
    **more: Any,
) -> wire.LeaderAndIsrRequest:
    """Grouped, for versions from 2 on."""
    topics = (wire.LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=states),)
    return wire.LeaderAndIsrRequest(
        controller_id=9, controller_epoch=controller_epoch, broker_epoch=broker_epoch, topic_states=topics, **more
    )


def ungrouped_leader_and_isr(
    *states: wire.LeaderAndIsrPartitionState, controller_epoch: int = 1
) -> wire.LeaderAndIsrRequest:
    return wire.LeaderAndIsrRequest(
        controller_id=9, controller_epoch=controller_epoch, ungrouped_partition_states=states
    )


def stop_replica(
    *states: tuple[int, int, bool], topic: str = "a", controller_epoch: int = 1, broker_epoch: int = -1
) -> wire.StopReplicaRequest:
    """(partition, leader epoch, delete); for versions from 3 on."""
    partitions = tuple(
        wire.StopReplicaPartitionState(partition_index=index, leader_epoch=epoch, delete_partition=delete)
        for index, epoch, delete in states
    )
    return wire.StopReplicaRequest(
        controller_id=9,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=(wire.StopReplicaTopicState(topic_name=topic, partition_states=partitions),),
    )


def umr_state(
    partition: int = 0,
    *,
    leader: int = 1,
    leader_epoch: int = 0,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    **more: Any,
) -> wire.UpdateMetadataPartitionState:
    return wire.UpdateMetadataPartitionState(
        partition_index=partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=isr,
        replicas=replicas,
        **more,
    )


def umr_broker(
    broker_id: int, listeners: Iterable[str] = ("CONTROL", "DATA"), rack: str | None = None
) -> wire.UpdateMetadataBroker:
    """Each listener has its own port: 9000 + 10 * id for the first, one more for the second."""
    endpoints = tuple(
        wire.UpdateMetadataEndpoint(host=f"host{broker_id}", port=9000 + 10 * broker_id + i, listener=name)
        for i, name in enumerate(listeners)
    )
    return wire.UpdateMetadataBroker(id=broker_id, endpoints=endpoints, rack=rack)


def update_metadata(
    *states: wire.UpdateMetadataPartitionState,
    topic: str = "a",
    topic_id: uuid.UUID = ID_A,
    alive: Iterable[int | wire.UpdateMetadataBroker] = (1, 2, 3),
    controller_id: int = 9,
    controller_epoch: int = 1,
    broker_epoch: int = -1,
) -> wire.UpdateMetadataRequest:
    topics = (wire.UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=states),)
    return wire.UpdateMetadataRequest(
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=topics if states else (),
        live_brokers=tuple(umr_broker(b) if isinstance(b, int) else b for b in alive),
    )


# -- a node without sockets -------------------------------------------------------------------------------------------


class RecordingSubmitter:
    """Replaces AlterPartitionManager: keeps proposals until the test answers them."""

    def __init__(self) -> None:
        self.submitted: list[tuple[AlterPartitionItem, Callback]] = []
        self.unanswered: dict[TopicPartition, Callback] = {}

    def submit(self, item: AlterPartitionItem, callback: Callback) -> bool:
        if item.partition in self.unanswered:
            return False
        self.submitted.append((item, callback))
        self.unanswered[item.partition] = callback
        return True

    def answer(self, partition: TopicPartition, result: Any) -> None:
        self.unanswered.pop(partition)(result)

    @property
    def proposed(self) -> list[tuple[int, ...]]:
        return [item.leader_and_isr.isr for item, _ in self.submitted]


class Captured:
    """Replaces a processor: captures the response of a handler."""

    def __init__(self) -> None:
        self.response: Request | None = None
        self.answered = trio.Event()

    def send_response(self, response: Request) -> None:
        self.response = response
        self.answered.set()


class Node:
    """A broker without sockets; requests and responses are still encoded and decoded.

    What followers fetch changes ISRs unless there is another ``isr_policy``; nothing is fetched from other brokers.
    """

    def __init__(
        self,
        *,
        broker_id: int = 1,
        log_manager: LogManager | None = None,
        controller: ControllerPort | None = None,
        admin: AdminPort | None = None,
        nursery: trio.Nursery | None = None,
        channel: ControllerChannel | None = None,
        submitter: ItemSubmitter | None = None,
        isr_policy: IsrPolicy | None = None,
        dial: Dial | None = None,
        authorizer: AclAuthorizer | None = None,
        tokens: DelegationTokenManager | None = None,
        **properties: str,
    ) -> None:
        self.config = config(broker_id, **properties)
        self.dynamic_config = DynamicConfig(self.config, Random(4))
        self.dynamic_config.is_started = True
        #: of the connections of requests from now on
        self.principal = ANONYMOUS
        self.token_authenticated = False
        self.broker_epoch = -1
        self.cache = MetadataCache(broker_id)
        self.logs: Any = log_manager or MemoryLogManager()
        self.submitter = RecordingSubmitter()
        limits = self.config.connection_limits
        self.quotas = ClientQuotas(
            limits.samples,
            limits.sample_seconds,
            self.config.controller_quota_window_num,
            self.config.controller_quota_window_size_seconds,
        )
        self.replication = Replication(
            self.config, self.cache, submitter or self.submitter, lambda: self.replicas, self.logs, dial or no_dial,
            lambda: self.broker_epoch, Random(1), ReplicationQuotas(self.config),
        )  # fmt: skip
        self.replicas = ReplicaManager(broker_id, self.cache, self.logs, isr_policy or self.replication)
        groups = self.config.groups
        self.groups = GroupCoordinator(
            groups,
            GroupManager(
                groups,
                self.config.inter_broker_protocol_version,
                ReplicatedOffsetsLog(groups, self.replication.appends),
                self.logs.now_ms,
                groups.offsets_topic_num_partitions,
            ),
            self.replication.timer,
            Random(2),
        )
        self.producer_ids = ProducerIdManager(
            ControllerProducerIds(broker_id, lambda: self.broker_epoch, channel or NoChannel()).allocate, self._spawn
        )
        transactions = self.config.transactions
        self.transactions = TransactionCoordinator(
            transactions,
            TransactionManager(
                transactions,
                ReplicatedTransactionLog(transactions, self.replication.appends),
                self.logs.now_ms,
                transactions.transaction_state_log_num_partitions,
                self.config.request_timeout_ms,
            ),
            MarkerSender(self.config, self.cache, dial or no_dial),
            self.producer_ids,
        )
        self.verifier = PartitionVerifier(
            self.config, self.cache, self.transactions.manager.partition_of, dial or no_dial
        )
        self.replication.appends.verifies_transactions = transactions.partition_verification_enable
        self.replicas.coordinators = (self.groups, self.transactions)
        admin = admin or NoStore()
        self.services = Services(
            config=self.config,
            dynamic_config=self.dynamic_config,
            cluster_id="cluster",
            served_apis=served_apis(),
            metadata_cache=self.cache,
            replica_manager=self.replicas,
            log_manager=self.logs,
            controller=controller or NoController(),
            admin=admin,
            broker_epoch=lambda: self.broker_epoch,
            producer_ids=self.producer_ids,
            quotas=self.quotas,
            data_plane=self.replication.data_plane,
            appends=self.replication.appends,
            log_dir_moves=self.replication.log_dir_moves,
            leader_quota=self.replication.quotas.leader,
            groups=self.groups,
            transactions=self.transactions,
            verification=TransactionVerification(self.replication.appends, self.verifier),
            topic_creation=AutoTopicCreation(self.config, self.cache, admin, self._spawn),
            authorization=Authorization(authorizer),
            tokens=tokens,
            spawn=self._spawn,
        )
        self.apis = KafkaApis(self.services)
        self._nursery = nursery

    def _spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "a request that waits needs a nursery"
        self._nursery.start_soon(run)

    async def ask(self, message: wire.Message, version: int | None = None, *, listener: str = "DATA") -> Any:
        """The response; an exception of a handler becomes the API's error response, as in the handler pool."""
        if version is None:
            version = message.__versions__.last
        request, captured = self.request(message, version, listener=listener)
        try:
            waits = self.apis.handle(request)
            if waits is not None:
                await waits
        except Exception as e:  # noqa: BLE001
            request.fail(e)
        await captured.answered.wait()
        return answer_of(captured, message.__api_key__, version)

    def request(
        self,
        message: wire.Message,
        version: int,
        *,
        listener: str = "DATA",
        client_id: str | None = "test",
        correlation_id: int = 5,
        principal: KafkaPrincipal | None = None,
    ) -> tuple[Request, Captured]:
        encoded = wire.encode_request(message, api_version=version, correlation_id=correlation_id, client_id=client_id)
        header, decoded = wire.decode_request(encoded)
        captured = Captured()
        context = ConnectionContext(
            "connection", listener, "127.0.0.1", principal or self.principal, self.token_authenticated
        )
        request = Request(
            RequestContext(header, context),
            decoded,
            connection=Connection(context, link(NoStream()), NoOwner()),
            responder=captured,
            apis=self.apis,
            now=trio.current_time(),
            size=len(encoded),
        )
        return request, captured

    def partition(self, index: int = 0, topic: str = "a") -> Any:
        return self.replicas.partitions[TopicPartition(topic, index)]


def answer_of(captured: Captured, api_key: int, version: int) -> Any:
    assert captured.response is not None, "not answered"
    assert captured.response.action is Action.SEND
    header, message = wire.decode_response(captured.response.payload, api_key=api_key, api_version=version)
    assert header.correlation_id == 5
    return message


class NoChannel:
    async def request(self, *args: Any) -> wire.Message:
        raise AssertionError("this test has no controller")


class NoOwner:
    """The owner of connections that do not read."""

    channel: Any = None

    def __init__(self) -> None:
        self.metrics = RequestMetrics()
        self.turns = Turns()
        self.memory = None
        self.security = PLAINTEXT
        self.sasl = None
        self.apis: Any = None

    def parse(self, connection: Connection, frame: bytes, now: float) -> Request:
        raise AssertionError

    async def parse_in_turns(self, connection: Connection, frame: bytes, now: float) -> Request:
        raise AssertionError

    async def unblocked(self) -> None:
        raise AssertionError

    def block(self) -> None:
        raise AssertionError

    def unblock(self) -> None:
        raise AssertionError


class NoStream(trio.abc.Stream):
    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError("no connection of a Node writes")

    async def wait_send_all_might_not_block(self) -> None:
        raise AssertionError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise AssertionError

    async def aclose(self) -> None:
        raise AssertionError


def codes(response: Any) -> dict[Any, int]:
    """The error codes in a LeaderAndIsr or StopReplica response: (topic or topic id, partition) -> code."""
    flat = {(e.topic_name, e.partition_index): e.error_code for e in getattr(response, "partition_errors", ())}
    for topic in getattr(response, "topics", ()):
        flat.update({(topic.topic_id, e.partition_index): e.error_code for e in topic.partition_errors})
    return flat


# -- a client with a socket -------------------------------------------------------------------------------------------


class Client:
    """Sends and receives frames on one connection. Correlation ids start at 1."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = wire.FrameBuffer()
        self._sent: list[tuple[int, int]] = []
        self._correlation_id = 0

    def encoded(self, message: wire.Message, version: int | None = None) -> bytes:
        """The next request as a frame; ``receive`` expects its response."""
        if version is None:
            version = message.__versions__.last
        self._correlation_id += 1
        self._sent.append((message.__api_key__, version))
        return wire.frame(
            wire.encode_request(message, api_version=version, correlation_id=self._correlation_id, client_id="test")
        )

    async def send(self, *messages: wire.Message, version: int | None = None) -> None:
        """Send all requests in one write (pipelining)."""
        await self.stream.send_all(b"".join(self.encoded(message, version) for message in messages))

    async def receive(self) -> Any:
        """The next response; it must belong to the oldest pending request."""
        payload = await self.receive_frame()
        api_key, version = self._sent.pop(0)
        header, message = wire.decode_response(payload, api_key=api_key, api_version=version)
        assert header.correlation_id == self._correlation_id - len(self._sent)
        return message

    async def receive_frame(self) -> bytes:
        while (payload := self._frames.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                raise ConnectionLost("closed by the broker")
            self._frames.receive_data(data)
        return payload

    async def ask(self, message: wire.Message, version: int | None = None) -> Any:
        await self.send(message, version=version)
        return await self.receive()

    async def closed(self) -> bool:
        """Wait for the broker to close the connection; False if it sends data instead."""
        try:
            return not await self.stream.receive_some()
        except trio.BrokenResourceError:
            return True


@asynccontextmanager
async def connect(endpoint: Endpoint) -> AsyncIterator[Client]:
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream:
        yield Client(stream)


def node_links() -> NodeLinks:
    """The connections of a node on real sockets."""
    return NodeLinks(RealWorld(), Links(), 1)


def link(
    stream: trio.abc.Stream,
    local: Address = ("127.0.0.1", 9092),
    remote: Address = ("127.0.0.1", 50000),
    *,
    max_frame_bytes: int = 10_000,
) -> Link:
    """The accepted end of a connection over ``stream``."""
    return Link(
        node_links(),
        Connected(stream, local, remote),
        listener="DATA",
        peer=None,
        accepted=True,
        max_frame_bytes=max_frame_bytes,
    )


async def no_dial(host: str, port: int, *, to: int, listener: str) -> FramedConnection:
    raise ConnectionRefusedError("this test has no other nodes")


def make_broker(configuration: BrokerConfig | None = None, **more: Any) -> Broker:
    """A broker whose connections to other nodes are refused, unless ``dial`` is given."""
    defaults = {
        "bind": node_links().bind, "dial": no_dial, "cluster_id": "cluster", "log_manager": MemoryLogManager(),
        "random": Random(1),
    }  # fmt: skip
    return Broker(configuration or config(), **{**defaults, **more})


@asynccontextmanager
async def running_broker(configuration: BrokerConfig | None = None, **more: Any) -> AsyncIterator[Broker]:
    """A broker with enabled request processing; cancelled at the end unless it was shut down."""
    broker = make_broker(configuration, **more)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        broker.enable_request_processing()
        yield broker
        nursery.cancel_scope.cancel()


class ScriptedApis:
    """Replaces KafkaApis: a function of the test handles ApiVersions and Metadata requests."""

    request_quota: RequestQuota | None = None

    def __init__(self, handle: Callable[[Request], Awaitable[None] | None]) -> None:
        self._handle = handle
        self.sharing: dict[int, Sharing] = {}

    def decode(self, frame: bytes, max_elements: int) -> tuple[wire.Header, wire.Message]:
        return wire.decode_request(frame, max_elements)

    def decode_in_steps(self, frame: bytes) -> Steps[tuple[wire.Header, wire.Message]]:
        return wire.decode_request_in_steps(frame)

    def handle(self, request: Request) -> Awaitable[None] | None:
        return self._handle(request)

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        if isinstance(request.message, wire.MetadataRequest):
            return None
        return wire.ApiVersionsResponse(error_code=wire.ErrorCode.UNKNOWN_SERVER_ERROR)


@asynccontextmanager
async def running_server(
    apis: Apis, configuration: BrokerConfig | None = None, **more: Any
) -> AsyncIterator[SocketServer]:
    server = SocketServer(configuration or config(), apis, node_links().bind, **more)
    await server.bind()
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        server.enable_request_processing()
        yield server
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Run other tasks until the condition holds, for changes in the kernel that set no event."""
    with trio.fail_after(60):
        while not condition():
            await trio.lowlevel.checkpoint()


def listener(server: SocketServer, name: str = "DATA") -> Endpoint:
    return next(endpoint for endpoint in server.bound_listeners() if endpoint.listener == name)


def processors_of(server: SocketServer, name: str = "DATA") -> Iterator[Any]:
    for acceptor in server.acceptors:
        if acceptor.endpoint.listener == name:
            yield from acceptor.processors
