"""The properties of a cluster's nodes, and of the cluster's own connection to ZooKeeper."""

from __future__ import annotations

from typing import Any

import pytest

from kce.harness import Cluster, HarnessError, SettingWarning
from kce.harness.cluster_config import ClusterConfig
from kce.harness.world import memory
from kce.wire.configuration import ConfigError


def cluster_config(properties: dict[str, str | None] | None = None, **others: Any) -> ClusterConfig:
    """Nodes 5 and 6."""
    fields: dict[str, Any] = dict.fromkeys(("zookeeper_port", "control_port", "data_port", "metrics_port"))
    fields |= {"node_ids": range(5, 7), "processes": False, "log_level": "INFO", **others}
    return ClusterConfig(properties=properties or {}, **fields)


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


def test_properties_of_one_node() -> None:
    config = cluster_config({"num.io.threads": "3"}, nodes={6: {"num.io.threads": "4", "broker.rack": "b"}})
    first, second = (config.node_properties(node_id, "zk") for node_id in (5, 6))
    assert (first["num.io.threads"], first.get("broker.rack")) == ("3", None)
    assert (second["num.io.threads"], second["broker.rack"]) == ("4", "b")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"properties": {"num.io.threads": 3}}, r"num\.io\.threads=3: a property is a text"),
        ({"nodes": {5: {"delete.topic.enable": True}}}, r"delete\.topic\.enable=True: a property is a text"),
        ({"properties": {"broker.id": "5"}}, r"broker\.id=5: each node has its own, from first_id on"),
        ({"node_ids": range(-1, 2)}, "first_id=-1: a broker id is 0 or more"),
        ({"nodes": {9: {}}}, r"there is no node 9 in \[5, 6\]"),
        ({"properties": {"security.providers": "A"}}, r"security\.providers=A: this protection does not exist here"),
        (
            {"properties": {"advertised.listeners": "CONTROL://127.0.0.1:0,DATA://127.0.0.1:9"}},
            r"nodes 5 and 6 advertise the same address 127\.0\.0\.1:9",
        ),
    ],
)
def test_settings_that_no_cluster_can_start_with(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(HarnessError, match=error):
        cluster_config(**arguments).check()


async def test_a_setting_without_effect_is_a_warning() -> None:
    with pytest.warns(SettingWarning, match=r"num\.io\.thread has no effect.*did you mean num\.io\.threads\?"):
        Cluster(1, world=memory(), properties={"num.io.thread": "4"})


async def test_addresses_of_ipv6_are_in_brackets_as_clients_take_them() -> None:
    advertised = "CONTROL://127.0.0.1:0,DATA://[::1]:7777"
    async with Cluster(1, world=memory(), nodes={1: {"advertised.listeners": advertised}}) as cluster:
        assert cluster.bootstrap_servers() == "[::1]:7777"


async def test_a_node_behind_a_proxy_keeps_its_own_ports() -> None:
    """It advertises the proxy's address, also after a restart."""
    advertised = "CONTROL://127.0.0.1:0,DATA://127.0.0.1:7777"
    async with Cluster(1, world=memory(), nodes={1: {"advertised.listeners": advertised}}) as cluster:
        (member,) = cluster.members
        before = dict(member.bound)
        await cluster.restart(1)
        assert (member.addresses["DATA"], member.bound) == ("127.0.0.1:7777", before)
        assert before["DATA"] != "127.0.0.1:7777"
