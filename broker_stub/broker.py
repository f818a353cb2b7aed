"""One broker: its parts, wired, from bound ports to drained connections. It knows no ZooKeeper.

The life of one request through the reactor:

 1. an acceptor takes the connection and hands it to the next processor of that listener
 2. the connection's task reads until its frame buffer holds a whole frame, and then reads no more
 3. the processor looks at API key and version, refuses what is not served, decodes the rest
 4. it puts the request on the plane's bounded queue; while that is full the processor stands still
 5. a handler of the plane takes it and looks its API up in the table of handlers
 6. the API's function fences it and answers; or the request is parked, and the handler is free again
 7. whoever answers encodes the response and puts it into the queue of the processor that read the request
 8. the processor gives it to the connection, or drops it if that is gone
 9. the connection's task writes it; a slow reader holds up only itself
10. only then is the next request of that connection looked at
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable

import trio

from broker_stub.alter_partition_manager import AlterPartitionManager
from broker_stub.client_quotas import ClientQuotas, ControllerMutationQuotas
from broker_stub.config import BrokerConfig
from broker_stub.controlled_shutdown import ControlledShutdown
from broker_stub.finalized_features import FinalizedFeatureCache
from broker_stub.handlers.base import Services
from broker_stub.handlers.kafka_apis import KafkaApis, served_apis
from broker_stub.isr import IsrPolicy, LiveReplicasJoin, NoIsrChanges
from broker_stub.log_manager import InMemoryLogManager, LogManager
from broker_stub.metadata_cache import MetadataCache
from broker_stub.node_to_controller import NodeToControllerChannel
from broker_stub.ports import (
    AdminPort,
    ControllerPort,
    Dial,
    IsrStore,
    LogDirEvents,
    NoController,
    NoStore,
    Tap,
    no_tap,
)
from broker_stub.producer_ids import ProducerIdManager
from broker_stub.reactor import SocketServer
from broker_stub.replica_manager import ReplicaManager
from broker_stub.zk_alter_partition_manager import ZkAlterPartitionManager
from wire.vocabulary import Endpoint

logger = logging.getLogger("broker_stub.broker")


class BrokerState(enum.IntEnum):
    """Rule B11.2, without those states that belong to logs."""

    NOT_RUNNING = 0
    STARTING = 1
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Broker:
    """A stub broker. Whoever starts it registers it, tells it its epoch, and lets clients in:

        await nursery.start(broker.run)            # ports are bound: register broker.endpoints
        broker.broker_epoch = czxid                # of every registration, also later ones (rule 9.7)
        broker.enable_request_processing()
        ...
        await broker.shutdown(drain_seconds)       # `run` returns

    Cancelling ``run`` is the death of the process: no controlled shutdown, no draining.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        dial: Dial,
        cluster_id: str,
        controller: ControllerPort | None = None,
        admin: AdminPort | None = None,
        tap: Tap = no_tap,
        log_manager: LogManager | None = None,
        isr_policy: IsrPolicy | None = None,
        isr_store: IsrStore | None = None,
        log_dir_events: LogDirEvents | None = None,
    ) -> None:
        self.config = config
        self.state = BrokerState.NOT_RUNNING
        #: czxid of our own registration (rule 9.7); -1, which fences nobody, until there is one
        self.broker_epoch = -1
        self.metadata_cache = MetadataCache(config.broker_id)
        # Kafka has a channel for each purpose too: what one of them waits for holds up no other
        self._channels = [
            NodeToControllerChannel(
                self.metadata_cache,
                config.controller_listener_name,
                dial,
                client_id=str(config.broker_id),
                request_timeout_seconds=config.request_timeout_ms / 1000,
            )
            for _ in ("AlterPartition", "AllocateProducerIds")
        ]
        #: told by whoever reads the configuration in ZooKeeper
        self.client_quotas = ClientQuotas()
        #: likewise; this broker supports no features of its own (rule 1.18)
        self.finalized_features = FinalizedFeatureCache({})
        self.alter_partition_manager: AlterPartitionManager | ZkAlterPartitionManager
        if isr_store is None or config.inter_broker_protocol_version.supports_alter_partition:
            self.alter_partition_manager = AlterPartitionManager(
                config.broker_id,
                lambda: self.broker_epoch,
                self._channels[0],
                config.inter_broker_protocol_version,
            )
        else:
            self.alter_partition_manager = ZkAlterPartitionManager(isr_store)
        self.isr_policy = isr_policy or self._default_isr_policy(isr_store)
        self.replica_manager = ReplicaManager(
            config.broker_id,
            self.metadata_cache,
            log_manager or InMemoryLogManager(),
            self.isr_policy,
            self._log_dir_failed,
        )
        self._log_dir_events = log_dir_events
        services = Services(
            config=config,
            cluster_id=cluster_id,
            served_apis=served_apis(features=self.finalized_features),
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            controller=controller or NoController(),
            admin=admin or NoStore(),
            broker_epoch=lambda: self.broker_epoch,
            producer_ids=ProducerIdManager(config.broker_id, lambda: self.broker_epoch, self._channels[1], self._spawn),
            mutation_quotas=ControllerMutationQuotas(
                self.client_quotas, config.controller_quota_window_num, config.controller_quota_window_size_seconds
            ),
            spawn=self._spawn,
        )
        self.socket_server = SocketServer(config, KafkaApis(services), tap)
        self._controlled_shutdown = ControlledShutdown(config, self.metadata_cache, dial)
        self._shutting_down = trio.Lock()
        self._nursery: trio.Nursery | None = None

    def _spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "no request is handled by a broker that does not run"
        self._nursery.start_soon(run)

    def _log_dir_failed(self) -> None:
        events = self._log_dir_events
        if events is None:
            return

        async def tell() -> None:
            try:
                await events.log_dir_failed()
            except Exception:  # whatever the store says: the partitions are offline all the same
                logger.exception("the controller could not be told of a log directory that failed")

        self._spawn(tell)

    def _default_isr_policy(self, isr_store: IsrStore | None) -> IsrPolicy:
        version = self.config.inter_broker_protocol_version
        if version.supports_alter_partition or isr_store is not None:
            return LiveReplicasJoin(self.metadata_cache, self.alter_partition_manager)
        logger.warning(
            "inter.broker.protocol.version=%s changes ISRs through ZooKeeper: without it this broker changes none",
            version,
        )
        return NoIsrChanges()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """What to register: the advertised listeners, with the ports that are really bound (rule B11.5)."""
        ports = {endpoint.listener: endpoint.port for endpoint in self.socket_server.bound_listeners()}
        return tuple(e if e.port else e._replace(port=ports[e.listener]) for e in self.config.advertised_listeners)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """From bound ports to the end of ``shutdown``. Raises BindError before it has started.

        Its nursery holds the sender of AlterPartition and the requests that wait beside the socket server, and ends
        with the latter.
        """
        await self.socket_server.bind()
        self.state = BrokerState.STARTING
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.alter_partition_manager.run)
                await self.socket_server.run(task_status)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            for channel in self._channels:
                await channel.forget()
            self.state = BrokerState.NOT_RUNNING

    def enable_request_processing(self) -> None:
        """The last step of starting (rule 2.1). Raises BindError."""
        self.socket_server.enable_request_processing()
        self.state = BrokerState.RUNNING

    async def shutdown(self, drain_seconds: float) -> None:
        """Ask the controller to move leadership away, then stop serving (rule B11.15).

        The registration is the caller's to remove, afterwards. ``drain_seconds`` bounds the requests in progress; the
        controlled shutdown has its own bounds, and is left out unless the broker was running and has it enabled. A
        second call waits for the first (rule B11.18).
        """
        async with self._shutting_down:
            if self.state is BrokerState.RUNNING and self.config.controlled_shutdown_enable:
                self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
                await self._controlled_shutdown.run(self.broker_epoch)
            if self.state is not BrokerState.NOT_RUNNING:
                self.state = BrokerState.SHUTTING_DOWN
            await self.socket_server.shutdown(drain_seconds)
