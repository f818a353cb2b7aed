"""BrokerConfig: Kafka's names, defaults and rules; every error is one line."""

from __future__ import annotations

import logging

import pytest

from kce.broker_stub import BrokerConfig, Endpoint
from kce.broker_stub.connection_limits import ConnectionLimits
from kce.wire.configuration import ConfigError, broker_config
from kce.wire.metadata_version import MetadataVersion
from tests.broker_stub.support import TWO_LISTENERS


def _config(**properties: str) -> BrokerConfig:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return BrokerConfig.from_properties({"broker.id": "1", **given})


def test_defaults_are_kafkas_except_for_the_host() -> None:
    c = BrokerConfig.from_properties({"broker.id": "1"})
    assert c.listeners == c.advertised_listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert (c.inter_broker_listener_name, c.control_plane_listener_name, c.broker_rack) == ("PLAINTEXT", None, None)
    assert c.controller_listener_name == "PLAINTEXT"
    assert (c.num_network_threads, c.num_io_threads, c.queued_max_requests) == ({"PLAINTEXT": 3}, 8, 500)
    assert (c.socket_request_max_bytes, c.socket_listen_backlog_size) == (104_857_600, 50)
    assert (c.connections_max_idle_ms, c.connection_limits) == (600_000, ConnectionLimits())
    assert (c.request_timeout_ms, c.controller_socket_timeout_ms) == (30_000, 30_000)
    assert (c.controlled_shutdown_enable, c.controlled_shutdown_max_retries) == (True, 3)
    assert c.controlled_shutdown_retry_backoff_ms == 5000
    assert c.inter_broker_protocol_version == MetadataVersion.parse("3.9-IV0")


def test_control_plane_and_data_plane() -> None:
    c = BrokerConfig.from_properties({**TWO_LISTENERS, "broker.id": "1", "broker.rack": " r1 "})
    assert [str(e) for e in c.listeners] == ["CONTROL://127.0.0.1:0", "DATA://127.0.0.1:0"]
    assert (c.control_plane_listener_name, c.inter_broker_listener_name) == ("CONTROL", "DATA")
    assert c.controller_listener_name == "CONTROL"
    assert c.broker_rack == "r1"


def test_listener_names_are_upper_case_and_spaces_are_ignored() -> None:
    c = _config(
        listeners=" control://h1:1 , data://[::1]:2 ",
        listener_security_protocol_map="control:plaintext, Data : PLAINTEXT",
        inter_broker_listener_name="data",
        control_plane_listener_name=" CONTROL ",
    )
    assert c.listeners == (Endpoint("CONTROL", "PLAINTEXT", "h1", 1), Endpoint("DATA", "PLAINTEXT", "::1", 2))
    assert str(c.listeners[1]) == "DATA://[::1]:2"
    assert (c.control_plane_listener_name, c.inter_broker_listener_name) == ("CONTROL", "DATA")


def test_a_blank_host_is_loopback_and_the_wildcard_must_be_explicit() -> None:
    assert _config(listeners="PLAINTEXT://:0").listeners[0].host == "127.0.0.1"
    (both,) = _config(listeners="PLAINTEXT://[::]:1").advertised_listeners
    assert (both.host, both.address) == ("::", "[::]:1")
    c = _config(listeners="PLAINTEXT://0.0.0.0:0", advertised_listeners="PLAINTEXT://a.example:19092")
    assert c.listeners[0].host == "0.0.0.0"
    assert c.advertised_listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "a.example", 19092),)


def test_network_threads_can_be_set_per_listener() -> None:  # rule B1.2
    properties = {**TWO_LISTENERS, "broker.id": "1", "num.network.threads": "5"}
    c = BrokerConfig.from_properties({**properties, "listener.name.data.num.network.threads": "7"})
    assert c.num_network_threads == {"CONTROL": 5, "DATA": 7}


def test_security_inter_broker_protocol_names_the_inter_broker_listener() -> None:
    assert _config(security_inter_broker_protocol="PLAINTEXT").inter_broker_listener_name == "PLAINTEXT"


ONE = "listeners=DATA://127.0.0.1:0 listener.security.protocol.map=DATA:PLAINTEXT inter.broker.listener.name=DATA "
TWO = "listeners=A://:1,B://:2 listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT inter.broker.listener.name=A "


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (
            "broker.id=-1 broker.id.generation.enable=false",
            "broker.id=-1: must be at least 0, because broker.id.generation.enable is false",
        ),
        ("broker.id=x", "broker.id=x: must be a whole number from -1 to 2147483647"),
        ("broker.id=-2", "broker.id=-2: must be a whole number from -1 to"),
        ("broker.id=1001", "broker.id=1001: must be at most 1000, which is reserved.broker.max.id"),  # rule B11.7
        ("broker.id=5 reserved.broker.max.id=4", "broker.id=5: must be at most 4"),
        ("broker.id=99999999999 broker.id.generation.enable=false", "must be a whole number from -1 to 2147483647"),
        ("num.network.threads=0", "num.network.threads=0: must be a whole number from 1 to 2147483647"),
        ("listener.name.plaintext.num.network.threads=no", "listener.name.plaintext.num.network.threads=no: "),
        ("num.io.threads=1.5", "num.io.threads=1.5: "),
        ("queued.max.requests=0", "queued.max.requests=0: "),
        ("queued.max.request.bytes=1000", "queued.max.request.bytes=1000: must be at least 104857600, which is socket"),
        ("socket.request.max.bytes=2147483648", "socket.request.max.bytes=2147483648: "),
        ("socket.listen.backlog.size=0", "socket.listen.backlog.size=0: "),
        ("max.connections.per.ip=0", "max.connections.per.ip=0: "),
        ("max.connections=-1", "max.connections=-1: "),
        ("max.connections.per.ip.overrides=localhost", "'localhost' is not HOST:LIMIT"),
        ("max.connections.per.ip.overrides=h:x", "max.connections.per.ip.overrides=h:x: 'h:x' is not HOST:LIMIT"),
        ("listener.name.plaintext.max.connections=no", "listener.name.plaintext.max.connections=no: "),
        ("connections.max.idle.ms=0", "connection.failed.authentication.delay.ms=100: must be less than connections"),
        ("controlled.shutdown.enable=yes", "controlled.shutdown.enable=yes: must be true or false"),
        ("replica.lag.time.max.ms=499", "replica.lag.time.max.ms=499: must be at least replica.fetch.wait.max.ms"),
        ("inter.broker.protocol.version=3.10", "inter.broker.protocol.version=3.10: '3.10' is not a version from"),
        ("listeners=PLAINTEXT", "listeners=PLAINTEXT: 'PLAINTEXT' is not LISTENER://HOST:PORT"),
        ("listeners=PLAINTEXT://h:70000", "with a port up to 65535"),
        ("listeners=PLAINTEXT://h:-1", "is not LISTENER://HOST:PORT"),
        ("listeners=PLAINTEXT://a_b*:1", "is not LISTENER://HOST:PORT"),
        ("listeners=DATA://h:1", "listeners=DATA://h:1: listener DATA has no entry in listener.security.protocol.map"),
        (
            "listeners=SSL://h:1 security.inter.broker.protocol=SSL",
            "ssl.keystore.location or ssl.keystore.key is missing",
        ),
        (
            "listeners=PLAINTEXT://h:1,PLAINTEXT://h:2",
            "each listener needs its own name, but PLAINTEXT appears twice",
        ),
        (TWO.replace(":2", ":1"), "each listener needs its own port, but 1 appears twice"),
        (
            TWO + " control.plane.listener.name=b",
            "control.plane.listener.name=b: must be written in capitals, as B",
        ),
        ("principal.builder.class=", "principal.builder.class=: must be the name of a class"),
        ("listener.security.protocol.map=DATA", "'DATA' is not LISTENER:PROTOCOL"),
        ("listener.security.protocol.map=DATA:HTTP", "with one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ("listener.security.protocol.map=A:SSL,a:SSL", "listener A appears twice"),
        (
            TWO.replace("name=A", "name=C"),
            "inter.broker.listener.name=C: must be one of the advertised listeners (A, B)",
        ),
        (TWO.replace("inter.broker.listener.name=A", ""), "=PLAINTEXT: must be one of the advertised listeners (A, B)"),
        (TWO + "security.inter.broker.protocol=PLAINTEXT", "set only one of inter.broker.listener.name and"),
        ("security.inter.broker.protocol=SSL", "security.inter.broker.protocol=SSL: must be one of the advertised"),
        (TWO + "control.plane.listener.name=C", "control.plane.listener.name=C: must be one of the advertised"),
        (TWO + "control.plane.listener.name=A", "control.plane.listener.name=A: must differ from the inter-broker"),
        (
            TWO + "control.plane.listener.name=B advertised.listeners=A://:1",
            "must be one of the advertised listeners (A)",
        ),
        (ONE + "advertised.listeners=DATA://0.0.0.0:1", "nobody can connect to 0.0.0.0"),
        ("advertised.listeners=SASL_SSL://h:1", "listener SASL_SSL is not in listeners (PLAINTEXT)"),
        (
            "listeners=A://:1 advertised.listeners=A://:1,B://:2 inter.broker.listener.name=A "
            "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT",
            "listener B is not in listeners (A)",
        ),
    ],
)
def test_invalid_settings_are_refused_in_one_line(given, refusal) -> None:  # rule 9.63 among others
    properties = dict(pair.split("=", 1) for pair in given.split())
    properties.setdefault("broker.id", "1")
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(properties)
    assert refusal in str(caught.value)
    assert "\n" not in str(caught.value)


def test_minus_one_disables_the_idle_timeout() -> None:
    assert _config(connections_max_idle_ms="-1").connections_max_idle_ms is None


@pytest.mark.parametrize("given", [{"broker.id": "5"}, {"node.id": "5"}, {"broker.id": "5", "node.id": "5"}])
def test_either_name_of_the_id_will_do(given: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:  # rule B11.7
    c = BrokerConfig.from_properties(given)
    assert (c.broker_id, c.originals["broker.id"], c.originals["node.id"]) == (5, "5", "5")
    assert not caplog.messages


def test_ids_above_the_reserved_ones_are_allowed_without_id_generation() -> None:  # rule B11.7
    c = BrokerConfig.from_properties({"broker.id": "5000", "broker.id.generation.enable": "false"})
    assert c.broker_id == 5000
    for unset in ({}, {"broker.id": "-1"}):
        assert BrokerConfig.from_properties(unset).broker_id == -1  # found or generated at startup


@pytest.mark.parametrize("log_dirs", ["/a,/a", "/a,/b,/a/", "a,./a"])
def test_a_log_directory_is_not_there_twice(log_dirs: str) -> None:  # rule B6.1
    with pytest.raises(ConfigError, match="must not have a log directory twice"):
        BrokerConfig.from_properties({"broker.id": "1", "log.dirs": log_dirs})
    assert BrokerConfig.from_properties({"broker.id": "1", "log.dirs": "/a,/b"}).log_dirs == ("/a", "/b")


def test_unused_kafka_settings_log_a_warning_unless_they_are_at_their_default(caplog) -> None:
    _config(zookeeper_connect="localhost:2181", log_dirs="/tmp/x", max_connections_per_ip_overrides="")
    BrokerConfig.from_properties({"broker.id": "1", "max.connections": str(2**31 - 1), "background.threads": "10"})
    assert not caplog.records
    unused = {"listener.name.data.ssl.keymanager.algorithm": "k", "log.cleaner.threads": "2"}
    BrokerConfig.from_properties({"broker.id": "1", **unused})
    assert [record.getMessage().partition(" has no effect")[0] for record in caplog.records] == [
        f"{key}={value}" for key, value in unused.items()
    ]


@pytest.mark.parametrize(
    ("key", "warning"),
    [
        ("num.io.thread", "num.io.thread has no effect: Kafka has no such setting; did you mean num.io.threads?"),
        (
            "zookeper.connect",
            "zookeper.connect has no effect: Kafka has no such setting; did you mean zookeeper",
        ),
        ("listener.name.data.foo", "listener.name.data.foo has no effect: Kafka has no such setting"),
        ("qqqqq", "qqqqq has no effect: Kafka has no such setting"),
    ],
)
def test_unknown_settings_log_a_warning(caplog, key, warning) -> None:
    BrokerConfig.from_properties({"broker.id": "1", key: "1"})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(warning)
    assert broker_config(key) is None


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("offsets.commit.required.acks", "4", "must be from -1 to 3, which is offsets.topic.replication.factor"),
        ("offsets.commit.required.acks", "-2", "must be from -1 to 3"),
        ("offsets.topic.compression.codec", "5", "must be one of 0 (none), 1 (gzip), 2 (snappy), 3 (lz4), 4 (zstd)"),
        ("group.coordinator.rebalance.protocols", "classic,consumer", "must be classic"),
        ("group.coordinator.rebalance.protocols", "consumer", "must be classic"),
    ],
)
def test_settings_of_groups_that_no_broker_starts_with(key: str, value: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties({"broker.id": "1", key: value})
    assert str(caught.value).startswith(f"{key}={value}: {what}")
    assert BrokerConfig.from_properties({"broker.id": "1", "offsets.commit.required.acks": "3"}).groups is not None


@pytest.mark.parametrize(
    ("second", "is_accepted"),
    [("[::1]:9092", True), ("127.0.0.2:9092", False), ("[::1]:9093", True), ("localhost:9092", False)],
)
def test_an_ipv4_and_an_ipv6_listener_may_have_one_port(second: str, is_accepted: bool) -> None:
    given = {
        "listeners": f"A://127.0.0.1:9092,B://{second}",
        "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
        "inter.broker.listener.name": "A",
    }
    if is_accepted:
        assert [e.listener for e in BrokerConfig.from_properties(given).listeners] == ["A", "B"]
    else:
        with pytest.raises(ConfigError, match="each listener needs its own port, but 9092 appears twice"):
            BrokerConfig.from_properties(given)
