"""One broker: wires its parts, from bound ports to drained connections. It does not use ZooKeeper itself.

A request passes through the reactor like this:

 1. an acceptor accepts the connection and assigns it to the next processor of the listener
 2. the connection's task reads until its frame buffer has a complete frame, then stops reading
 3. if the data plane has used up its slice of time, the connection waits for its turn
 4. the processor checks API key and version, and decodes the request
 5. if the plane has no free handler, the request waits in its bounded queue; if that is full, the processor blocks
 6. the API is found in the table of handlers; its function fences and answers the request, or parks it
 7. the response is encoded, and passes the processor, which keeps it while it is blocked
 8. the connection handles the next request that it has received already, up to a slice of time
 9. it writes all responses at once; a slow client delays only itself
10. then it reads again

A request that need not wait goes from 2 to 9 in one task, without giving up its turn.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from random import Random

import trio

from kce.broker_stub.alter_partition_manager import AlterPartitionManager
from kce.broker_stub.authorization import Authorization
from kce.broker_stub.auto_topic_creation import AutoTopicCreation
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.controlled_shutdown import ControlledShutdown
from kce.broker_stub.dynamic_config import DynamicConfig
from kce.broker_stub.finalized_features import FinalizedFeatureCache
from kce.broker_stub.groups.coordinator import GroupCoordinator
from kce.broker_stub.groups.manager import GroupManager
from kce.broker_stub.groups.storage import ReplicatedOffsetsLog
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.handlers.kafka_apis import KafkaApis, served_apis
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.node_to_controller import NodeToControllerChannel
from kce.broker_stub.ports import (
    AdminPort,
    Bind,
    ControllerPort,
    IsrStore,
    LogDirEvents,
    NoController,
    NoStore,
    NoTopicSettings,
    TlsPort,
    TopicSettings,
)
from kce.broker_stub.producer_ids import Allocate, ControllerProducerIds, ProducerIdManager
from kce.broker_stub.quotas.administration import CONNECTION_CREATION_RATE
from kce.broker_stub.quotas.client_quotas import ClientQuotas
from kce.broker_stub.reactor import SocketServer
from kce.broker_stub.replica_manager import ReplicaManager
from kce.broker_stub.replication.replication import Replication
from kce.broker_stub.replication.throttle import ReplicationQuotas
from kce.broker_stub.security.authorizer import AclAuthorizer
from kce.broker_stub.security.credentials import CredentialCache
from kce.broker_stub.security.sasl_authenticator import SaslServices
from kce.broker_stub.security.tokens import DelegationTokenManager
from kce.broker_stub.transactions.coordinator import TransactionCoordinator
from kce.broker_stub.transactions.manager import TransactionManager
from kce.broker_stub.transactions.markers import MarkerSender
from kce.broker_stub.transactions.storage import ReplicatedTransactionLog
from kce.broker_stub.transactions.verification import TransactionVerification
from kce.broker_stub.transactions.verifier import PartitionVerifier
from kce.broker_stub.zk_alter_partition_manager import ZkAlterPartitionManager
from kce.wire.configuration import ConfigError
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint, TopicPartition

log = logging.getLogger(__name__)


class BrokerState(enum.IntEnum):
    """Rule B11.2, without the states of log recovery."""

    NOT_RUNNING = 0
    STARTING = 1
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class Broker:
    """A stub broker. Its owner registers it, sets its epoch, and enables request processing:

        await nursery.start(broker.run)            # binds the ports: register broker.endpoints
        broker.broker_epoch = czxid                # of each registration, later ones included (rule 9.7)
        broker.enable_request_processing()
        ...
        await broker.shutdown(drain_seconds)       # `run` returns

    Cancelling ``run`` simulates the death of the process: no controlled shutdown, no draining.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        bind: Bind,
        dial: Dial,
        cluster_id: str,
        log_manager: LogManager,
        random: Random,
        controller: ControllerPort | None = None,
        admin: AdminPort | None = None,
        isr_store: IsrStore | None = None,
        log_dir_events: LogDirEvents | None = None,
        topic_settings: TopicSettings | None = None,
        allocate_producer_ids: Allocate | None = None,
        replication_quotas: ReplicationQuotas | None = None,
        offsets_partitions: int | None = None,
        transaction_partitions: int | None = None,
        authorizer: AclAuthorizer | None = None,
        tokens: DelegationTokenManager | None = None,
        secrets: Random | None = None,
        tls: TlsPort | None = None,
        endpoints_changed: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """``log_manager``: it is loaded, and its owner runs it. So are ``authorizer`` and ``tokens``; without an
        authorizer all is allowed.

        ``offsets_partitions``, ``transaction_partitions``: how many `__consumer_offsets` and `__transaction_state`
        have; None if the topic does not exist yet (rules G1.3, T1.2).

        ``secrets`` makes the nonces of SCRAM, by default ``random``, which may be foreseen.

        ``isr_store`` is needed for an `inter.broker.protocol.version` before AlterPartition (rule 9.60).
        ``allocate_producer_ids`` is used with one that does not let the controller allocate them.
        ``tls``: the certificates of listeners, if ``bind`` secures any. ``endpoints_changed`` is called when
        ``endpoints`` are others while the broker runs, to be registered.
        ``replication_quotas``: told of the topics' settings by whoever made them.
        """
        self.config = config
        #: updated by the listener of configuration changes
        self.dynamic_config = DynamicConfig(config, secrets or random, tls)
        self._endpoints_changed = endpoints_changed
        self.log_manager = log_manager
        self.state = BrokerState.NOT_RUNNING
        #: czxid of our registration (rule 9.7); -1 before it, which fences nothing
        self.broker_epoch = -1
        self.metadata_cache = MetadataCache(config.broker_id)
        # one channel for each purpose, like Kafka, so that none blocks another
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
        #: updated by the listener of configuration changes
        self.client_quotas = ClientQuotas(
            config.connection_limits.samples,
            config.connection_limits.sample_seconds,
            config.controller_quota_window_num,
            config.controller_quota_window_size_seconds,
        )
        #: updated by the listener of /feature; this broker supports no features (rule 1.18)
        self.finalized_features = FinalizedFeatureCache({})
        self.alter_partition_manager: AlterPartitionManager | ZkAlterPartitionManager
        if config.inter_broker_protocol_version.supports_alter_partition:
            self.alter_partition_manager = AlterPartitionManager(
                config.broker_id,
                lambda: self.broker_epoch,
                self._channels[0],
                config.inter_broker_protocol_version,
            )
        else:
            assert isr_store is not None
            self.alter_partition_manager = ZkAlterPartitionManager(isr_store)
        topic_settings = topic_settings or NoTopicSettings()
        of_controller = ControllerProducerIds(config.broker_id, lambda: self.broker_epoch, self._channels[1])
        by_controller = config.inter_broker_protocol_version.supports_allocate_producer_ids
        own = None if by_controller else allocate_producer_ids
        self._allocates_producer_ids = own is not None
        self.producer_ids = ProducerIdManager(own or of_controller.allocate, self._spawn)
        self.replication = Replication(
            config,
            self.metadata_cache,
            self.alter_partition_manager,
            lambda: self.replica_manager,
            log_manager,
            dial,
            lambda: self.broker_epoch,
            random,
            replication_quotas or ReplicationQuotas(config),
            topic_settings,
        )
        self.replica_manager = ReplicaManager(
            config.broker_id,
            self.metadata_cache,
            log_manager,
            self.replication,
            self._log_dir_failed,
        )
        self.groups = GroupCoordinator(
            config.groups,
            GroupManager(
                config.groups,
                config.inter_broker_protocol_version,
                ReplicatedOffsetsLog(config.groups, self.replication.appends),
                log_manager.now_ms,
                offsets_partitions or config.groups.offsets_topic_num_partitions,
            ),
            self.replication.timer,
            random,
        )
        self.transactions = TransactionCoordinator(
            config.transactions,
            TransactionManager(
                config.transactions,
                ReplicatedTransactionLog(config.transactions, self.replication.appends),
                log_manager.now_ms,
                transaction_partitions or config.transactions.transaction_state_log_num_partitions,
                config.request_timeout_ms,
            ),
            MarkerSender(config, self.metadata_cache, dial),
            self.producer_ids,
        )
        self.verifier = PartitionVerifier(config, self.metadata_cache, self.transactions.manager.partition_of, dial)
        self.replication.appends.verifies_transactions = config.transactions.partition_verification_enable
        self.replica_manager.coordinators = (self.groups, self.transactions)
        admin = admin or NoStore()
        self._log_dir_events = log_dir_events
        services = Services(
            config=config,
            dynamic_config=self.dynamic_config,
            cluster_id=cluster_id,
            served_apis=served_apis(self.finalized_features),
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            log_manager=log_manager,
            controller=controller or NoController(),
            admin=admin,
            broker_epoch=lambda: self.broker_epoch,
            producer_ids=self.producer_ids,
            quotas=self.client_quotas,
            data_plane=self.replication.data_plane,
            appends=self.replication.appends,
            log_dir_moves=self.replication.log_dir_moves,
            leader_quota=self.replication.quotas.leader,
            groups=self.groups,
            transactions=self.transactions,
            verification=TransactionVerification(self.replication.appends, self.verifier),
            topic_creation=AutoTopicCreation(config, self.metadata_cache, admin, self._spawn),
            authorization=Authorization(authorizer),
            tokens=tokens,
            topic_settings=topic_settings,
            spawn=self._spawn,
        )
        #: updated by the listener of configuration changes
        self.credentials = CredentialCache()
        if tokens is not None:
            self.credentials.token_lookup = tokens.credential
        sasl = SaslServices(credentials=self.credentials, random=secrets or random, now_ms=log_manager.now_ms)
        self.socket_server = SocketServer(config, KafkaApis(services), bind, sasl)
        self.replication.timer.later = self.socket_server.data_plane.turns.later
        self._controlled_shutdown = ControlledShutdown(config, self.metadata_cache, dial)
        self._shutting_down = trio.Lock()
        self._nursery: trio.Nursery | None = None
        self.stopped = trio.Event()

    def _spawn(self, run: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None, "only a running broker handles requests"
        self._nursery.start_soon(run)

    def config_changed(self, own: Mapping[str, str], default: Mapping[str, str]) -> None:
        """The broker's own dynamic settings and the cluster's are these from now on (B10; rules B1.10, B1.52, B1.57,
        B8.11, T14.5)."""
        self.dynamic_config.by_source = BrokerSettings(self.config.originals, own, default)
        before, dynamic = self.endpoints, self.dynamic_config.decoded({**default, **own})
        try:
            logs = LogManagerConfig.of({**self.config.originals, **dynamic})
            self.dynamic_config.change(dynamic)
            self.replication.quotas.broker_config_changed(dynamic)
        except ConfigError as e:
            log.error("the dynamic configuration is not used: %s", e)
            return
        config = self.dynamic_config.current
        self.replication.appends.verifies_transactions = config.transactions.partition_verification_enable
        self.replication.fetchers.resize(config.num_replica_fetchers)
        self.log_manager.reconfigure(logs)
        self.socket_server.reconfigure(config)
        if self._nursery is not None:
            self._spawn(partial(self._follow_listeners, before))

    async def _follow_listeners(self, before: tuple[Endpoint, ...]) -> None:
        await self.socket_server.open()
        if self.endpoints != before and self._endpoints_changed is not None:
            try:
                await self._endpoints_changed()
            except Exception:  # the listeners serve whoever knows of them
                log.exception("the listeners could not be registered")

    def client_config_changed(self, kind: str, name: str, config: Mapping[str, str]) -> None:
        """``kind`` and ``name`` as in `/config/<kind>/<name>`."""
        if kind == "users":
            self.credentials.config_changed(name, config)
        if kind != "ips":
            self.client_quotas.changed(kind, name, config)
            return
        address = "127.0.0.1" if name == "localhost" else name
        try:
            rate = int(config[CONNECTION_CREATION_RATE]) if CONNECTION_CREATION_RATE in config else None
        except ValueError as e:
            log.error("the quota of /config/ips/%s is not used: %s", name, e)
        else:
            self.socket_server.quotas.ip_config_changed(address, rate)

    def _log_dir_failed(self) -> None:
        events = self._log_dir_events
        if events is None:
            return

        async def notify() -> None:
            try:
                await events.log_dir_failed()
            except Exception:  # the partitions are offline whether or not the store works
                log.exception("could not notify the controller of a failed log directory")

        self._spawn(notify)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The advertised listeners with their bound ports, for the registration (rule B11.5)."""
        ports = {endpoint.listener: endpoint.port for endpoint in self.socket_server.bound_listeners()}
        return tuple(
            e if e.port else e._replace(port=ports[e.listener])
            for e in self.dynamic_config.current.advertised_listeners
            if e.listener in ports
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bind the ports and serve until the end of ``shutdown``. Raises BindError before it reports started.

        The nursery runs the sender of AlterPartition, parked requests and the socket server, and ends with the latter.
        """
        await self.socket_server.bind()
        self.state = BrokerState.STARTING
        self.dynamic_config.is_started = True
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self.alter_partition_manager.run)
                nursery.start_soon(self.replication.run)
                nursery.start_soon(self.groups.manager.run)
                nursery.start_soon(self.transactions.manager.run)
                nursery.start_soon(self.transactions.markers.run)
                nursery.start_soon(self.verifier.run)
                await self.socket_server.run(task_status)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            for channel in self._channels:
                await channel.disconnect()
            self.state = BrokerState.NOT_RUNNING
            self.stopped.set()

    def log_directory_failed(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions were in it (rules B3.20, 9.68)."""
        for partition in partitions:
            self.replica_manager.mark_offline(partition)
        if self._nursery is not None:
            self._log_dir_failed()

    def enable_request_processing(self) -> None:
        """The last step of the startup (rule 2.1). Raises BindError."""
        if self._allocates_producer_ids:
            self.producer_ids.request_block()  # Kafka, too, has its first block from the start
        self.socket_server.enable_request_processing()
        self.state = BrokerState.RUNNING

    def hurry(self) -> None:
        """Shut down without a controlled shutdown, also if one is going on."""
        self._controlled_shutdown.give_up()

    async def shutdown(self, drain_seconds: float) -> None:
        """Do a controlled shutdown if the broker is running and has it enabled, then stop serving (rule B11.15).

        The caller removes the registration afterwards. ``drain_seconds`` limits the time for requests in progress; the
        controlled shutdown has its own limits. A second call waits for the first (rule B11.18).
        """
        async with self._shutting_down:
            self.replication.is_shutting_down = True
            if self.state is BrokerState.RUNNING and self.config.controlled_shutdown_enable:
                self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
                await self._controlled_shutdown.run(self.broker_epoch)
            self.transactions.is_active = self.groups.is_active = False  # rules G13.11, T13.7
            if self.state is not BrokerState.NOT_RUNNING:
                self.state = BrokerState.SHUTTING_DOWN
            await self.socket_server.shutdown(drain_seconds)
