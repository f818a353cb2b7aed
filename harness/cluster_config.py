"""The configuration of a cluster, and of each of its nodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kce.harness.errors import HarnessError
from kce.harness.node import CONTROLLER_ONLY, METRICS_PORT
from kce.wire.configuration import ConfigError, Properties, list_of
from kce.zookeeper.client_config import ZooKeeperClientConfig

#: names of a node's listeners
CONTROL, DATA = "CONTROL", "DATA"
SESSION_TIMEOUT_MS = 6000


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """``properties`` are Kafka's and apply to every node, those of ``nodes`` to one; None removes one that the cluster
    sets. Racks are given to the nodes in turn. ``controllers`` are the nodes that take no replicas.
    In `log.dirs`, {id} is the node's id, because each node needs its own. The default is in the cluster's data folder.

    A port is that of the first node, and the others count up; None is an ephemeral port.
    """

    node_ids: range
    processes: bool
    zookeeper_port: int | None
    control_port: int | None
    data_port: int | None
    metrics_port: int | None
    properties: Mapping[str, str | None]
    log_level: str
    nodes: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)
    racks: Sequence[str] = ()
    controllers: Collection[int] = ()
    zookeepers: int = 1

    def check(self) -> list[str]:
        """Warnings for settings without effect. Raises HarnessError for those that no node can start with."""
        if self.zookeepers < 1:
            raise HarnessError(f"zookeepers={self.zookeepers}: a cluster needs one")
        for node_id in self.nodes:
            if node_id not in self.node_ids:
                raise HarnessError(f"nodes={{{node_id}: ...}}: there is no node {node_id} in {list(self.node_ids)}")
        for properties in (self.properties, *self.nodes.values()):
            for name, value in properties.items():
                if value is not None and not isinstance(value, str):
                    raise HarnessError(f"{name}={value!r}: a property is a text, as in a file, or None")
        if "broker.id" in self.properties and len(self.node_ids) > 1:
            raise HarnessError(f"broker.id={self.properties['broker.id']}: each node has its own, from first_id on")
        if self.node_ids and self.node_ids.start < 0:
            raise HarnessError(f"first_id={self.node_ids.start}: a broker id is 0 or more")
        warnings: dict[str, None] = {}
        advertised: dict[str, int] = {}
        for node_id in self.node_ids:
            read = Properties(self.node_properties(node_id, ""))
            try:
                warnings.update(dict.fromkeys(read.check()))
            except ConfigError as e:
                raise HarnessError(str(e)) from None
            for listener in list_of(read.given("advertised.listeners") or ""):
                address = listener.partition("://")[2]
                other = advertised.setdefault(address, node_id)
                if other != node_id and not address.endswith(":0"):
                    raise HarnessError(
                        f"nodes {other} and {node_id} advertise the same address {address}: give each node its own "
                        "advertised.listeners by nodes={id: {...}}"
                    )
        return list(warnings)

    def node_properties(self, node_id: int, zookeeper_connect: str, folder: str = "") -> dict[str, str]:
        """The server.properties of one node. ``folder`` has its log directory by default."""
        offset = node_id - self.node_ids.start
        control = self.control_port + offset if self.control_port else 0
        data = self.data_port + offset if self.data_port else 0
        properties = {
            "broker.id": str(node_id),
            "listeners": f"{CONTROL}://127.0.0.1:{control},{DATA}://127.0.0.1:{data}",
            "listener.security.protocol.map": f"{CONTROL}:PLAINTEXT,{DATA}:PLAINTEXT",
            "control.plane.listener.name": CONTROL,
            "inter.broker.listener.name": DATA,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "auto.leader.rebalance.enable": "false",  # leaders move on command only, and topics are made on command
            "auto.create.topics.enable": "false",
            # as in the file of Kafka's distribution: groups and transactions work on few nodes, and at once
            "offsets.topic.replication.factor": str(self._internal_replicas),
            "transaction.state.log.replication.factor": str(self._internal_replicas),
            "group.initial.rebalance.delay.ms": "0",
            **self.properties,
            **self.nodes.get(node_id, {}),
            "zookeeper.connect": zookeeper_connect,
        }
        if self.racks:
            properties.setdefault("broker.rack", self.racks[offset % len(self.racks)])
        if node_id in self.controllers:
            properties[CONTROLLER_ONLY] = "true"
        if self.metrics_port:
            properties[METRICS_PORT] = str(self.metrics_port + offset)
        given = {key: text for key, text in properties.items() if text is not None}
        if not properties.keys() & {"log.dir", "log.dirs"}:
            given["log.dirs"] = f"{folder}/kafka-logs-{{id}}"
        for key in ("log.dirs", "log.dir"):
            if key in given:
                given[key] = given[key].replace("{id}", str(node_id))
        return given

    @property
    def _internal_replicas(self) -> int:
        return max(1, min(3, len(self.node_ids) - len(self.controllers)))

    def zookeeper_client(self, zookeeper_connect: str) -> ZooKeeperClientConfig:
        """The cluster's own connection: like its nodes', but with its own session timeout. Raises ConfigError."""
        properties = {
            "zookeeper.connection.timeout.ms": str(SESSION_TIMEOUT_MS),
            **self.node_properties(self.node_ids.start, zookeeper_connect),
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
        }
        return ZooKeeperClientConfig.from_properties(properties)
