"""The properties of a cluster's nodes, and of the cluster's own connection to ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from kce.harness.cluster_config import ClusterConfig
from kce.wire.configuration import ConfigError


def cluster_config(properties: dict[str, str | None] | None = None, **ports: int) -> ClusterConfig:
    """Nodes 5 and 6."""
    fields: dict[str, Any] = dict.fromkeys(("zookeeper_port", "control_port", "data_port", "metrics_port"))
    return ClusterConfig(
        node_ids=range(5, 7), processes=False, properties=properties or {}, log_level="INFO", **{**fields, **ports}
    )


def test_ports_count_up_by_node() -> None:
    config = cluster_config(control_port=9000, data_port=9100, metrics_port=9200)
    first, second = (config.node_properties(node_id, "zk:2181/c") for node_id in (5, 6))
    assert first["listeners"] == "CONTROL://127.0.0.1:9000,DATA://127.0.0.1:9100"
    assert second["listeners"] == "CONTROL://127.0.0.1:9001,DATA://127.0.0.1:9101"
    assert (first["kce.metrics.port"], second["kce.metrics.port"]) == ("9200", "9201")
    assert (second["broker.id"], second["zookeeper.connect"]) == ("6", "zk:2181/c")


def test_ports_are_ephemeral_by_default() -> None:
    properties = cluster_config().node_properties(5, "zk")
    assert properties["listeners"] == "CONTROL://127.0.0.1:0,DATA://127.0.0.1:0"
    assert "kce.metrics.port" not in properties


def test_properties_override_and_remove_those_of_the_cluster() -> None:
    given = {"num.io.threads": "3", "control.plane.listener.name": None, "zookeeper.connect": "elsewhere"}
    properties = cluster_config(given).node_properties(5, "zk")
    assert properties["num.io.threads"] == "3"
    assert "control.plane.listener.name" not in properties
    assert properties["zookeeper.connect"] == "zk"


def test_the_session_of_the_cluster_does_not_depend_on_those_of_its_nodes() -> None:
    client = cluster_config({"zookeeper.session.timeout.ms": "100"}).zookeeper_client("zk:2181")
    assert (client.connect_string, client.session_timeout_ms, client.connection_timeout_ms) == ("zk:2181", 6000, 6000)
    client = cluster_config({"zookeeper.connection.timeout.ms": "300"}).zookeeper_client("zk:2181")
    assert (client.session_timeout_ms, client.connection_timeout_ms) == (6000, 300)


def test_a_bad_connection_timeout_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connection\.timeout\.ms=soon"):
        cluster_config({"zookeeper.connection.timeout.ms": "soon"}).zookeeper_client("zk:2181")
