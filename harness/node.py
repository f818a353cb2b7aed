"""A node: a stub broker and a controller contender that share one ZooKeeper session, as they do in Kafka.

node = Node(properties)
await nursery.start(node.run)      # registered, contending, serving
await node.shutdown()              # says goodbye to the controller first; `run` returns
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import trio

from broker_stub import BindError, Broker, BrokerConfig, ConfigError
from captures.recorder import Recorder, record_accepted
from controller.config import ControllerConfig
from controller.controller import Controller
from controller.kafka_zk_client import KafkaZkClient
from controller.metrics import Metric, MetricName
from controller.model import Broker as RegisteredBroker
from controller.model import BrokerId, Endpoint
from controller.store import MetadataStore, SessionState, StoreUnavailable
from controller.store.metered import MeteredStore
from controller.store.zookeeper import KazooStore
from controller.zk_admin_manager import ZkAdminManager
from controller.zk_registration import BrokerIdInUse
from harness import prometheus
from harness.broker_metadata import BrokerMetadata, check_cluster_id, choose_broker_id, read_metadata, write_metadata
from harness.broker_metrics import broker_metrics
from harness.errors import HarnessError, plain_error
from harness.faults import Hold
from harness.feature_listener import FinalizedFeatureChangeListener
from harness.transport import Dialer
from harness.zk_isr_store import ZkIsrStore, ZkLogDirEvents
from harness.zookeeper_client import ZooKeeperClientConfig, boolean, integer

log = logging.getLogger(__name__)

DRAIN_SECONDS = 3.0
METRICS_PORT = "kce.metrics.port"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def controller_config(
    broker: BrokerConfig, zookeeper: ZooKeeperClientConfig, properties: Mapping[str, str]
) -> ControllerConfig:
    """The controller's part of a server.properties. Raises ValueError."""
    return ControllerConfig(
        broker_id=BrokerId(broker.broker_id),
        inter_broker_listener_name=broker.inter_broker_listener_name,
        control_plane_listener_name=broker.control_plane_listener_name,
        inter_broker_protocol_version=broker.inter_broker_protocol_version,
        delete_topic_enable=boolean(properties, "delete.topic.enable", default=True),
        unclean_leader_election_enable=boolean(properties, "unclean.leader.election.enable", default=False),
        auto_leader_rebalance_enable=boolean(properties, "auto.leader.rebalance.enable", default=True),
        leader_imbalance_check_interval_seconds=integer(properties, "leader.imbalance.check.interval.seconds", 300),
        leader_imbalance_per_broker_percentage=integer(
            properties, "leader.imbalance.per.broker.percentage", 10, minimum=0
        ),
        request_timeout_ms=broker.request_timeout_ms,
        controller_socket_timeout_ms=broker.controller_socket_timeout_ms,
        zookeeper_connection_timeout_ms=zookeeper.connection_timeout_ms,
    )


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{METRICS_PORT}={text} is no port from 0 to 65535")
    return int(text)


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

    The names are Kafka's, but for `kce.metrics.port`: where Prometheus finds the node's metrics, nowhere without it,
    on an ephemeral port if it is 0.
    """

    def __init__(self, properties: Mapping[str, str], *, record: Path | None = None) -> None:
        """Raises HarnessError for a setting that cannot be."""
        self.properties = dict(properties)
        metrics_port = self.properties.pop(METRICS_PORT, None)
        try:
            self._metrics_port = None if metrics_port is None else _port(metrics_port)
            self._min_insync_replicas = integer(self.properties, "min.insync.replicas", 1)
            self.config = BrokerConfig.from_properties(self.properties)
            self._zookeeper = ZooKeeperClientConfig.from_properties(self.properties)
            self._controller_config = controller_config(self.config, self._zookeeper, self.properties)
        except KeyError as e:
            raise HarnessError(f"the setting {e.args[0]} is missing") from None
        except (ConfigError, ValueError) as e:
            raise HarnessError(str(e)) from None
        self._record = record
        self._recorder: Recorder | None = None
        self._scope = trio.CancelScope()
        self.hold = Hold()
        self.store: KazooStore | None = None
        #: where the metrics are served
        self.metrics_port: int | None = None

    @property
    def id(self) -> int:
        """-1 until ``run`` has found or generated it, where none is configured."""
        return self.config.broker_id

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """From connecting to ZooKeeper to the end of ``shutdown``, in the order of rule 2.1.

        Raises HarnessError when a port is taken, ZooKeeper cannot be reached, or the id is in use or contradicted.
        Cancelling it is the death of the process; ``abandon`` beforehand makes that a death that ZooKeeper has to find
        out by itself.
        """
        try:
            self.store = await self._zookeeper.connect()
        except StoreUnavailable as e:
            raise HarnessError(str(e)) from None
        try:
            with self._scope:
                await self._serve(self.store, task_status)
        except (BindError, BrokerIdInUse, BaseExceptionGroup) as e:
            error = plain_error(e, BindError, BrokerIdInUse, HarnessError)
            raise HarnessError(str(error)) if isinstance(error, (BindError, BrokerIdInUse)) else error from None
        finally:
            await self.store.aclose()
            if self._recorder is not None:
                self._recorder.close()

    async def _serve(self, store: MetadataStore, task_status: trio.TaskStatus[None]) -> None:
        """Its nursery holds the broker, the controller's event loop and the controller's channels."""
        metered = MeteredStore(store)
        zk = KafkaZkClient(metered, now_ms=now_ms)
        await zk.make_top_level_paths()
        cluster_id = await zk.get_or_create_cluster_id()
        await self._identify(zk, cluster_id)
        async with trio.open_nursery() as nursery:
            self.controller = Controller(
                self._controller_config,
                zk,
                Dialer(gate=self.hold),
                nursery,
                register=self._register,
                on_client_config=lambda kind, name, config: self.broker.client_quotas.changed(kind, name, config),
                wait_for_features=lambda *wanted: self.broker.finalized_features.wait_until_epoch(*wanted),
            )
            self.broker = Broker(
                self.config,
                dial=Dialer(),
                cluster_id=cluster_id,
                controller=self.controller,
                admin=ZkAdminManager(zk, self.config.inter_broker_protocol_version, Random()),
                tap=self._tap,
                isr_store=ZkIsrStore(zk),
                log_dir_events=ZkLogDirEvents(zk, self.id),
            )
            self._zk = zk
            latency = MetricName("kafka.server", "ZooKeeperClientMetrics", "ZooKeeperRequestLatencyMs")
            self.controller.metrics.add(latency, metered.latency)
            await self._serve_metrics(nursery)
            await self._follow_features(nursery)
            await nursery.start(self.broker.run)
            self._start_recording()
            await zk.check_endpoints_free(self._registration())
            await self._register()
            write_metadata(self.config.log_dirs, BrokerMetadata(cluster_id, self.id))
            await nursery.start(self.controller.run)
            self.broker.enable_request_processing()
            log.info("node %d is up: %s", self.id, ", ".join(self.addresses().values()))
            task_status.started()

    async def _follow_features(self, nursery: trio.Nursery) -> None:
        if not self._controller_config.inter_broker_protocol_version.supports_feature_versioning:
            return
        listener = FinalizedFeatureChangeListener(self._zk, self.broker.finalized_features)
        controller_told = self._zk.store.on_session

        def told(state: SessionState) -> None:
            controller_told(state)
            listener.session_changed(state)

        self._zk.store.on_session = told
        await nursery.start(listener.run)

    async def _identify(self, zk: KafkaZkClient, cluster_id: str) -> None:
        """Settle the broker's id (rule B11.7). Raises HarnessError."""
        known = read_metadata(self.config.log_dirs)
        check_cluster_id(self.config, cluster_id, known)
        broker_id = await choose_broker_id(zk, self.config, known)
        self.config = replace(self.config, broker_id=broker_id)
        self._controller_config = replace(self._controller_config, broker_id=BrokerId(broker_id))

    async def _serve_metrics(self, nursery: trio.Nursery) -> None:
        if self._metrics_port is None:
            return
        try:
            self.metrics_port = await nursery.start(prometheus.serve, self._metrics, self._metrics_port)
        except OSError as e:
            raise BindError(f"metrics of node {self.id} cannot be served on port {self._metrics_port}: {e}") from e
        log.info("metrics of node %d are at http://127.0.0.1:%d/metrics", self.id, self.metrics_port)

    def _metrics(self) -> Iterator[tuple[MetricName, Metric]]:
        yield from self.controller.metrics.items()
        yield from broker_metrics(self.broker, self._min_insync_replicas)

    def _registration(self) -> RegisteredBroker:
        endpoints = tuple(Endpoint(e.listener, e.security_protocol, e.host, e.port) for e in self.broker.endpoints)
        return RegisteredBroker(BrokerId(self.id), endpoints, self.config.broker_rack)

    async def _register(self) -> None:
        epoch = await self._zk.register_broker(
            self._registration(), self._controller_config.inter_broker_protocol_version
        )
        self.broker.broker_epoch = epoch
        log.info("node %d is registered with broker epoch %d", self.id, epoch)

    def addresses(self) -> dict[str, str]:
        """host:port by listener name."""
        return {e.listener: f"{e.host}:{e.port}" for e in self.broker.endpoints}

    def status(self) -> NodeStatus:
        """What the node's controller module believes, right or wrong."""
        return NodeStatus(
            believes_active=self.controller.is_active,
            controller_epoch=self.controller.context.epoch if self.controller.is_settled else 0,
            unanswered={int(broker): size for broker, size in self.controller.channels.queue_sizes().items()},
        )

    def _start_recording(self) -> None:
        if self._record is not None:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            where = ", ".join(
                f"{'control' if name == self.config.control_plane_listener_name else 'data'} {address} ({name})"
                for name, address in self.addresses().items()
            )
            self._recorder = Recorder(self._record, comment=f"node {self.id}: {where}")

    def _tap(self, stream: trio.SocketStream) -> trio.abc.Stream:
        return stream if self._recorder is None else record_accepted(self._recorder, stream)

    async def shutdown(self, *, controlled: bool = True) -> None:
        """Controlled shutdown if enabled, then stop serving, resign, and end the session (rules 2.21, 11.48, 11.49)."""
        if controlled:
            await self.broker.shutdown(DRAIN_SECONDS)
        else:
            await self.broker.socket_server.shutdown(DRAIN_SECONDS)
        self.controller.close()
        await self.controller.stopped.wait()
        self._scope.cancel()

    async def abandon(self) -> None:
        """Die without a word: the session lives on in ZooKeeper until it expires."""
        if self.store is not None:
            self.store.abandon()
        self._scope.cancel()
