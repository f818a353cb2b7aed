"""A node: a stub broker and a controller contender that share one ZooKeeper session, as they do in Kafka.

node = Node(properties)
await nursery.start(node.run)      # registered, contending, serving
await node.shutdown()              # controlled shutdown; then `run` returns
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import trio

from kce.broker_stub import BindError, Broker, BrokerConfig
from kce.broker_stub.errors import BrokerFailure
from kce.broker_stub.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kce.broker_stub.log.manager import LogManager
from kce.broker_stub.metrics import broker_metrics
from kce.broker_stub.replication.throttle import ReplicationQuotas
from kce.broker_stub.security.sasl_client import inter_broker_clients
from kce.broker_stub.zookeeper.admin_manager import ZkAdminManager
from kce.broker_stub.zookeeper.broker_metadata import (
    BrokerMetadata,
    check_cluster_id,
    choose_broker_id,
    read_metadata,
    write_metadata,
)
from kce.broker_stub.zookeeper.config_changes import ConfigChangeListener
from kce.broker_stub.zookeeper.feature_listener import FinalizedFeatureChangeListener
from kce.broker_stub.zookeeper.isr_store import ZkIsrStore, ZkLogDirEvents
from kce.broker_stub.zookeeper.producer_id_store import ZkProducerIds
from kce.broker_stub.zookeeper.topic_config_reader import TopicConfigReader
from kce.captures.errors import CaptureError
from kce.captures.record.recorder import Recorder
from kce.controller.config import ControllerConfig
from kce.controller.kafka_controller import KafkaController
from kce.harness import prometheus
from kce.harness.errors import HarnessError, NodeHalted, plain_error
from kce.harness.links import Links
from kce.harness.node_links import NodeLinks
from kce.harness.node_logs import NodeLogs
from kce.harness.node_security import NodeSecurity
from kce.harness.world import RealWorld, World, uuids
from kce.harness.world.listeners_tls import ListenersTls
from kce.harness.world.port import SECRETS
from kce.metrics import Histogram, Metric, MetricName
from kce.wire.configuration import ConfigError, Properties
from kce.wire.vocabulary import TopicPartition
from kce.zookeeper.client_config import ZooKeeperClientConfig
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from kce.zookeeper.model import BrokerId, RegisteredBroker
from kce.zookeeper.registration import BrokerIdInUse
from kce.zookeeper.store import MetadataStore, Session, SessionState, StoreUnavailable
from kce.zookeeper.store.metered import MeteredStore

log = logging.getLogger(__name__)

DRAIN_SECONDS = 3.0
METRICS_PORT = "kce.metrics.port"
CONTROLLER_ONLY = "kce.controller.only"
_SESSION_NEWS = {
    SessionState.CONNECTED: "connected to ZooKeeper at %s",
    SessionState.DISCONNECTED: "lost the connection to ZooKeeper at %s",
    SessionState.EXPIRED: "the session at ZooKeeper %s has expired",
    SessionState.ESTABLISHED: "a new session at ZooKeeper %s is established",
    SessionState.AUTH_FAILED: "ZooKeeper at %s rejects our authentication",
}
#: errors that end a node with one line
_FAILURES = (BindError, BrokerFailure, BrokerIdInUse)


def controller_config(
    broker: BrokerConfig, zookeeper: ZooKeeperClientConfig, properties: Mapping[str, str]
) -> ControllerConfig:
    """The controller's part of a server.properties. Raises ConfigError."""
    read = Properties(properties)
    return ControllerConfig(
        broker_id=BrokerId(broker.broker_id),
        inter_broker_listener_name=broker.inter_broker_listener_name,
        control_plane_listener_name=broker.control_plane_listener_name,
        inter_broker_protocol_version=broker.inter_broker_protocol_version,
        delete_topic_enable=broker.delete_topic_enable,
        unclean_leader_election_enable=read.boolean("unclean.leader.election.enable"),
        auto_leader_rebalance_enable=read.boolean("auto.leader.rebalance.enable"),
        leader_imbalance_check_interval_seconds=read.integer("leader.imbalance.check.interval.seconds"),
        leader_imbalance_per_broker_percentage=read.integer("leader.imbalance.per.broker.percentage"),
        request_timeout_ms=broker.request_timeout_ms,
        controller_socket_timeout_ms=broker.controller_socket_timeout_ms,
        zookeeper_connection_timeout_ms=zookeeper.connection_timeout_ms,
    )


class Lag(NamedTuple):
    """``broker`` does not fetch the partition, and whoever leads the partition counts it as lagging."""

    partition: TopicPartition
    broker: int


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``controller_epoch`` is 0 unless it has become controller and finished its failover.

    ``unanswered``: control requests queued or under way, by broker.
    """

    believes_active: bool
    controller_epoch: int
    unanswered: dict[int, int]


class Node:
    """One node from its properties. ``record`` is a pcapng file for the connections it accepts.

    Everything from outside comes through ``world``, by default the real one; ``links`` are those of its cluster.

    The names are Kafka's, but for two: `kce.metrics.port` serves the node's metrics for Prometheus, on an ephemeral
    port if it is 0; with `kce.controller.only` the node contends for controller and takes no replicas.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        *,
        world: World | None = None,
        links: Links | None = None,
        record: Path | None = None,
    ) -> None:
        """Raises HarnessError for a setting that cannot be."""
        self.properties = dict(properties)
        read = Properties(properties)
        for ours in (METRICS_PORT, CONTROLLER_ONLY):  # not a broker's, so that brokers do not describe it
            self.properties.pop(ours, None)
        try:
            self._controller_only = read.boolean(CONTROLLER_ONLY)
            self._metrics_port = read.optional_integer(METRICS_PORT)
            self.config = BrokerConfig.from_properties(self.properties)
            self._zookeeper = ZooKeeperClientConfig.from_properties(self.properties)
            self._controller_config = controller_config(self.config, self._zookeeper, self.properties)
            self._tls = ListenersTls(self.config.security, self.config.inter_broker_listener_name)
            self.world = world or RealWorld()
            self.now_ms = self.world.now_ms
            self.log_dirs = NodeLogs(self.config, self.properties, self.world, self.now_ms)
            secrets = self.world.random(SECRETS)
            sasl = inter_broker_clients(
                self.config.security, client_id=str(self.config.broker_id), random=secrets, now_ms=self.now_ms
            )
        except ConfigError as e:
            raise HarnessError(str(e)) from None
        links = links or Links({self.config.broker_id})
        self._secrets = secrets
        self.links = NodeLinks(self.world, links, self.config.broker_id, tls=self._tls.current, sasl=sasl)
        self._record = record
        self._scope = trio.CancelScope()
        self.store: Session | None = None
        self.is_up = False
        self._is_registered = False
        #: what lags from the start
        self.lags: set[Lag] = set()
        #: port of the metrics' HTTP server
        self.metrics_port: int | None = None

    @property
    def id(self) -> int:
        """-1 until ``run`` has found or generated it, where none is configured."""
        return self.config.broker_id

    @property
    def logs(self) -> LogManager | None:
        """None until they are loaded."""
        return self.log_dirs.manager

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run from the connection to ZooKeeper to the end of ``shutdown``, in the order of rule 2.1.

        Raises HarnessError when a port is taken, ZooKeeper cannot be reached, or the id is in use or contradicted;
        NodeHalted when its log directories have failed, and then the session lasts until it expires.
        Cancelling it closes the session; after ``abandon`` the session lasts until it expires, as after a crash.
        """
        try:
            self.store = await self.world.zookeeper(self._zookeeper)
        except StoreUnavailable as e:
            raise HarnessError(str(e)) from None
        try:
            with self._scope:
                await self._serve(self.store, task_status)
        except (*_FAILURES, BaseExceptionGroup) as e:
            error = plain_error(e, *_FAILURES, HarnessError)
            if isinstance(error, NodeHalted):
                self.store.abandon()
            raise HarnessError(str(error)) if isinstance(error, _FAILURES) else error from None
        finally:
            self.log_dirs.abandon()
            await self.store.aclose()
            if self.links.recorder is not None:
                self.links.recorder.close()

    async def _serve(self, store: MetadataStore, task_status: trio.TaskStatus[None]) -> None:
        """Its nursery holds the broker, the controller's event loop and the controller's channels."""
        latency = Histogram()
        metered = MeteredStore(store, latency.update)
        zk = KafkaZkClient(metered, now_ms=self.now_ms, new_uuid=uuids(self.world.random("uuids")))
        await zk.create_top_level_paths()
        cluster_id = await zk.get_or_create_cluster_id()
        await self._identify(zk, cluster_id)
        async with trio.open_nursery() as nursery:
            self._zk = zk
            self._quotas = ReplicationQuotas(self.config)
            reader = TopicConfigReader(zk, self.log_dirs.topic_config_changed)
            await reader.read_all(self._quotas.topic_config_changed)
            nursery.start_soon(reader.run)
            logs = await self.log_dirs.load(nursery)
            self.controller = KafkaController(
                self._controller_config,
                zk,
                self.links.dial,
                nursery,
                register=self._register,
                unclean_leader_election_enable=lambda: configs.unclean_leader_election_enable,
                wait_for_features=lambda *wanted: self.broker.finalized_features.wait_until_epoch(*wanted),
            )
            security = NodeSecurity(
                self.config,
                zk,
                is_controller=lambda: self.controller.is_active,
                jitter=self.world.random("acls").random,
                new_uuid=uuids(self._secrets),
            )
            self.broker = Broker(
                self.config,
                bind=self.links.bind,
                dial=self.links.dial,
                cluster_id=cluster_id,
                controller=self.controller,
                admin=ZkAdminManager(
                    zk,
                    self.config.inter_broker_protocol_version,
                    self.world.random("placement"),
                    self._controllers,
                    lambda: self.broker.dynamic_config.by_source.inherited_values,
                ),
                isr_store=ZkIsrStore(zk),
                allocate_producer_ids=ZkProducerIds(zk, self.id).allocate,
                log_dir_events=ZkLogDirEvents(zk, self.id),
                log_manager=logs,
                topic_settings=reader,
                replication_quotas=self._quotas,
                random=self.world.random("fetch sessions"),
                secrets=self._secrets,
                offsets_partitions=await _partition_count(zk, GROUP_METADATA_TOPIC),
                transaction_partitions=await _partition_count(zk, TRANSACTION_STATE_TOPIC),
                authorizer=security.authorizer,
                tokens=security.tokens,
                tls=self._tls,
                endpoints_changed=self._endpoints_changed,
            )
            self.links.links.topic_names[self.id] = lambda: self.broker.metadata_cache.snapshot.topic_names
            self.log_dirs.on_failed = self.broker.log_directory_failed
            for lag in self.lags:
                self.broker.replication.lag(*lag, True)
            self._on_session(self._log_session)  # after the controller has set its own listener
            self._on_session(reader.session_changed)
            self.controller.metrics.add(
                MetricName("kafka.server", "ZooKeeperClientMetrics", "ZooKeeperRequestLatencyMs"), latency
            )
            await self._serve_metrics(nursery)
            configs = ConfigChangeListener(
                zk,
                self.id,
                static_unclean=self._controller_config.unclean_leader_election_enable,
                on_unclean_election_enabled=self.controller.unclean_leader_election_enabled,
                on_client_config=self.broker.client_config_changed,
                on_broker_config=self._broker_config_changed,
                on_topic_config=self._topic_config_changed,
            )
            self._on_session(configs.session_changed)
            await nursery.start(configs.run)
            await self._follow_features(nursery)
            self._on_session(security.session_changed)
            await security.start(nursery)
            await nursery.start(self.broker.run)
            self._start_recording()
            await zk.check_endpoints_free(self._registration())
            await self._register()
            await nursery.start(self.controller.run)
            self.broker.enable_request_processing()
            log.info("node %d is up: %s", self.id, ", ".join(map(str, self.broker.endpoints)))
            self.is_up = True
            task_status.started()

    def _broker_config_changed(self, own: Mapping[str, str], default: Mapping[str, str]) -> None:
        self.log_dirs.broker_config_changed({**default, **own})
        self.broker.config_changed(own, default)

    def _topic_config_changed(self, topic: str, config: Mapping[str, str]) -> None:
        """Like Kafka's, quotas learn of changes, not of the settings that a topic is created with."""
        self._quotas.topic_config_changed(topic, config)
        self.log_dirs.topic_config_changed(topic, config)

    async def _follow_features(self, nursery: trio.Nursery) -> None:
        if not self._controller_config.inter_broker_protocol_version.supports_feature_versioning:
            return
        listener = FinalizedFeatureChangeListener(self._zk, self.broker.finalized_features)
        self._on_session(listener.session_changed)
        await nursery.start(listener.run)

    def _on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Call ``listener`` too when the session changes, after those before it."""
        earlier = self._zk.store.on_session

        def changed(state: SessionState) -> None:
            earlier(state)
            listener(state)

        self._zk.store.on_session = changed

    def _log_session(self, state: SessionState) -> None:
        where = self._zookeeper.connect_string
        level = logging.INFO if state in (SessionState.CONNECTED, SessionState.ESTABLISHED) else logging.WARNING
        log.log(level, "node %d: %s", self.id, _SESSION_NEWS[state] % where)

    async def _identify(self, zk: KafkaZkClient, cluster_id: str) -> None:
        """Settle the broker's id and store it, before anything is registered (rules B11.1, B11.7).

        Raises HarnessError.
        """
        disk, log_dirs = self.world.disk, self.config.log_dirs
        known = read_metadata(disk, log_dirs, self.log_dirs.failed_dirs)
        check_cluster_id(self.config, cluster_id, known)
        broker_id = await choose_broker_id(zk, self.config, known)
        write_metadata(disk, log_dirs, BrokerMetadata(cluster_id, broker_id), self.log_dirs.failed_dirs)
        self.config = replace(self.config, broker_id=broker_id)
        self.links.node_id = self.log_dirs.node_id = broker_id
        self._controller_config = replace(self._controller_config, broker_id=BrokerId(broker_id))

    async def _serve_metrics(self, nursery: trio.Nursery) -> None:
        if self._metrics_port is None:
            return
        try:
            self.metrics_port = await nursery.start(prometheus.serve, self._metrics, self.world, self._metrics_port)
        except OSError as e:
            raise BindError(f"metrics cannot be served on port {self._metrics_port}: {e.strerror or e}") from e
        log.info("metrics of node %d are at http://127.0.0.1:%d/metrics", self.id, self.metrics_port)

    def _metrics(self) -> Iterator[tuple[MetricName, Metric]]:
        yield from self.controller.metrics.items()
        yield from broker_metrics(self.broker)

    def _registration(self) -> RegisteredBroker:
        return RegisteredBroker(
            BrokerId(self.id), self.broker.endpoints, self.config.broker_rack, controller_only=self._controller_only
        )

    async def _endpoints_changed(self) -> None:
        """Rule 1.23."""
        if self._is_registered:
            await self._zk.update_broker(self._registration(), self._controller_config.inter_broker_protocol_version)
            log.info("node %d is registered as %s", self.id, ", ".join(map(str, self.broker.endpoints)))

    def _controllers(self) -> set[BrokerId]:
        return self.controller.context.controller_only_ids

    async def _register(self) -> None:
        epoch = await self._zk.register_broker(
            self._registration(), self._controller_config.inter_broker_protocol_version
        )
        self.broker.broker_epoch = epoch
        self._is_registered = True
        log.info("node %d is registered with broker epoch %d", self.id, epoch)

    def addresses(self) -> dict[str, str]:
        """host:port by listener name, as advertised."""
        return {e.listener: e.address for e in self.broker.endpoints}

    def bound_addresses(self) -> dict[str, str]:
        """host:port by listener name, as bound: what is advertised may be a proxy's."""
        return {e.listener: e.address for e in self.broker.socket_server.bound_listeners()}

    def status(self) -> NodeStatus:
        """The node's own view of its controller, which may be stale."""
        return NodeStatus(
            believes_active=self.controller.is_active,
            controller_epoch=self.controller.context.epoch if self.controller.is_settled else 0,
            unanswered={int(broker): size for broker, size in self.controller.channels.queue_sizes().items()},
        )

    def knows(self, brokers: Collection[int], topic: str, partitions: int) -> bool:
        """Whether its metadata has these brokers alive, and leaders of that many partitions of the topic."""
        metadata = self.broker.metadata_cache.snapshot
        led = sum(state.leader >= 0 for state in metadata.topics.get(topic, {}).values())
        return led >= partitions and metadata.alive_brokers.keys() >= set(brokers)

    def lag(self, lag: Lag, wanted: bool) -> None:
        """Let a follower lag from now on, or not any more."""
        self.broker.replication.lag(*lag, wanted)

    def _start_recording(self) -> None:
        if self._record is not None:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            where = ", ".join(
                f"{'control' if name == self.config.control_plane_listener_name else 'data'} {address} ({name})"
                for name, address in self.addresses().items()
            )
            comment = f"node {self.id}: {where}"
            try:
                self.links.recorder = Recorder(self._record, comment=comment, clock=self.links.now_ns)
            except CaptureError as e:
                raise HarnessError(str(e)) from None

    async def shutdown(self, *, controlled: bool = True) -> None:
        """Controlled shutdown if enabled, then stop serving, resign, and end the session (rules 2.21, 11.48, 11.49).

        An event of the controller that does not end, because ZooKeeper is gone, is given up. A node that is not up yet
        only ends its session. Nothing happens if it has been shut down.
        """
        if not self.is_up or self._scope.cancel_called:
            self.cancel()
            return
        if controlled:
            await self.broker.shutdown(DRAIN_SECONDS)
        else:
            await self.broker.socket_server.shutdown(DRAIN_SECONDS)
        if self.logs is not None:
            with trio.move_on_after(DRAIN_SECONDS):
                await self.broker.stopped.wait()
            self.logs.close(self.broker.broker_epoch)
        self.controller.close()
        with trio.move_on_after(DRAIN_SECONDS):
            await self.controller.stopped.wait()
        self.cancel()

    def hurry(self) -> None:
        """Let a shutdown go on without the controlled one, which waits for others."""
        if self.is_up:
            self.broker.hurry()

    def cancel(self) -> None:
        """End now: only the session is still closed."""
        self._scope.cancel()

    async def abandon(self) -> None:
        """Crash: the session lasts in ZooKeeper until it expires."""
        if self.store is not None:
            self.store.abandon()
        self.cancel()


async def _partition_count(zk: KafkaZkClient, topic: str) -> int | None:
    found = (await zk.get_topic_assignments([topic])).get(topic)
    return None if found is None else len(found.partitions)
