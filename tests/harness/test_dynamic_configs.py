"""Settings of brokers that change while they run, in a cluster in memory (B10, rules B1.10, B1.57, B7.29, B7.30).

Covers: broker_stub/topic_configs.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from kce import wire
from kce.broker_stub.security.config import login_module
from kce.broker_stub.security.sasl_client import SaslClient
from kce.harness import Cluster
from kce.harness.links import Links
from kce.harness.node import Node
from kce.harness.node_links import NodeLinks
from kce.harness.world import memory
from kce.wire import ErrorCode
from kce.wire.transport import AuthenticationRefused
from kce.wire.vocabulary import Endpoint, TopicPartition
from kce.zookeeper.kafka_zk_client import KafkaZkClient
from tests.certificates import plain_users
from tests.clusters import node

BROKER = 4
SET, DELETE = 0, 1


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    properties = {"log.retention.hours": "2", "log.segment.bytes": "5000"}
    async with Cluster(2, world=memory(seed=5), properties=properties) as cluster:
        await cluster.wait_for_controller()
        await cluster.create_topic("plain", assignment={0: [1, 2]})
        await cluster.create_topic("own", assignment={0: [1, 2]}, config={"segment.bytes": "7000"})
        await until(cluster, "segment_bytes", "plain", (5000, 5000))
        await until(cluster, "segment_bytes", "own", (7000, 7000))
        yield cluster


async def ask(at: Node, message: wire.Message, version: int) -> Any:
    host, _, port = at.bound_addresses()["DATA"].rpartition(":")
    link = await at.links.dial(host, int(port), to=-1, listener="")
    await link.send_frame(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))
    answer = wire.decode_response(await link.receive_frame(), api_key=message.__api_key__, api_version=version)[1]
    await link.aclose()
    return answer


async def alter(cluster: Cluster, broker: str, at: int = 1, /, **changes: str | None) -> tuple[ErrorCode, str | None]:
    """Of one broker, or of all (""); None deletes. Underscores become dots."""
    configs = tuple(
        wire.IncrementalAlterConfigsRequestAlterableConfig(
            name=name.replace("_", "."), config_operation=DELETE if value is None else SET, value=value
        )
        for name, value in changes.items()
    )
    resource = wire.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER, resource_name=broker, configs=configs
    )
    answer = await ask(node(cluster, at), wire.IncrementalAlterConfigsRequest(resources=(resource,)), 1)
    return ErrorCode(answer.responses[0].error_code), answer.responses[0].error_message


def log_config(cluster: Cluster, topic: str, at: int = 1) -> Any:
    logs = node(cluster, at).logs
    assert logs is not None
    return logs.logs[TopicPartition(topic, 0)].config


async def until(cluster: Cluster, name: str, topic: str, wanted: tuple[Any, Any]) -> None:
    """Wait until the setting of the topic's logs is that at brokers 1 and 2."""

    async def reached() -> bool:
        return all(  # a node that has just started has no logs yet
            (logs := node(cluster, at).logs) is not None
            and (found := logs.logs.get(TopicPartition(topic, 0))) is not None
            and getattr(found.config, name) == value
            for at, value in zip((1, 2), wanted, strict=True)
        )

    await cluster.wait_until(reached, f"{name} of {topic} to be {wanted}")


async def test_the_defaults_of_logs_change_by_broker_before_cluster_before_file(cluster: Cluster) -> None:
    assert (log_config(cluster, "plain").segment_bytes, log_config(cluster, "own").segment_bytes) == (5000, 7000)
    assert await alter(cluster, "", log_segment_bytes="6000") == (ErrorCode.NONE, None)
    await until(cluster, "segment_bytes", "plain", (6000, 6000))
    assert await alter(cluster, "2", 2, log_segment_bytes="6500") == (ErrorCode.NONE, None)
    await until(cluster, "segment_bytes", "plain", (6000, 6500))
    assert (log_config(cluster, "own").segment_bytes, log_config(cluster, "own", 2).segment_bytes) == (7000, 7000)
    await alter(cluster, "", log_segment_bytes=None)
    await until(cluster, "segment_bytes", "plain", (5000, 6500))
    await alter(cluster, "2", 2, log_segment_bytes=None)
    await until(cluster, "segment_bytes", "plain", (5000, 5000))


@pytest.mark.parametrize(
    ("setting", "value", "name", "wanted"),
    [
        ("message_max_bytes", "999", "max_message_bytes", 999),
        ("min_insync_replicas", "2", "min_insync_replicas", 2),
        ("log_retention_ms", "77", "retention_ms", 77),  # finer than the file's hours
        ("log_retention_ms", "-1", "retention_ms", None),
        ("log_retention_bytes", "88", "retention_bytes", 88),
        ("log_cleanup_policy", "compact", "is_compact", True),
        ("log_cleaner_min_cleanable_ratio", "0.25", "min_cleanable_dirty_ratio", 0.25),
        ("log_message_downconversion_enable", "false", "message_downconversion_enable", False),
        ("log_roll_ms", "1234", "segment_ms", 1234),
    ],
)
async def test_settings_that_the_logs_take_over(
    cluster: Cluster, setting: str, value: str, name: str, wanted: object
) -> None:
    before = getattr(log_config(cluster, "own"), name)
    assert await alter(cluster, "", **{setting: value}) == (ErrorCode.NONE, None)
    for topic in ("plain", "own"):
        await until(cluster, name, topic, (wanted, wanted))
    await alter(cluster, "", **{setting: None})
    await until(cluster, name, "own", (before, before))


async def test_a_new_topic_and_a_changed_one_have_the_dynamic_defaults(cluster: Cluster) -> None:
    await alter(cluster, "", message_max_bytes="999")
    await until(cluster, "max_message_bytes", "plain", (999, 999))
    await cluster.create_topic("new", assignment={0: [1, 2]}, config={"segment.bytes": "7000"})
    await until(cluster, "max_message_bytes", "new", (999, 999))
    await until(cluster, "segment_bytes", "new", (7000, 7000))


async def test_a_node_that_starts_has_them(cluster: Cluster) -> None:
    await alter(cluster, "", log_segment_bytes="6000")
    await until(cluster, "segment_bytes", "plain", (6000, 6000))
    await cluster.restart(2)
    await until(cluster, "segment_bytes", "plain", (6000, 6000))


async def test_the_cleaner_and_the_handlers_change(cluster: Cluster) -> None:
    running = node(cluster, 1)
    channel = running.broker.socket_server.planes[-1].channel
    assert running.logs is not None
    assert channel.handlers == 8
    changes = {"num_io_threads": "5", "log_cleaner_backoff_ms": "7", "log_cleaner_dedupe_buffer_size": "2000000"}
    capacity = running.logs._cleaner._capacity
    assert await alter(cluster, "1", **changes) == (ErrorCode.NONE, None)

    async def changed() -> bool:
        return channel.handlers == 5

    await cluster.wait_until(changed, "5 handlers")
    assert running.logs._config.log_cleaner_backoff_ms == 7
    assert running.logs._cleaner._capacity < capacity
    assert node(cluster, 2).broker.socket_server.planes[-1].channel.handlers == 8


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"log_retention_ms": "0"},
         "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log_cleaner_dedupe_buffer_size": "1048576"},
         "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."),
        ({"log_segment_bytes": "13"},
         "Invalid value 13 for configuration log.segment.bytes: Value must be at least 14"),
        ({"log_retention_hours": "1"}, "Cannot update these configs dynamically: Set(log.retention.hours)"),
    ],
)  # fmt: skip
async def test_refusals_change_nothing(cluster: Cluster, changes: dict[str, str], why: str) -> None:
    before = log_config(cluster, "plain")
    assert await alter(cluster, "1", **changes) == (ErrorCode.INVALID_REQUEST, why)
    assert log_config(cluster, "plain") == before


def listeners(node: Node, *added: str) -> dict[str, str]:
    """Settings that add these listeners, on any port."""
    given = [f"{e.listener}://{e.host}:{e.port}" for e in node.broker.socket_server.bound_listeners()]
    return {
        "listeners": ",".join((*given[:2], *(f"{name}://127.0.0.1:0" for name in added))),
        "listener_security_protocol_map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT,EXTRA:PLAINTEXT",
    }


async def wait_for_registered(cluster: Cluster, wanted: set[str]) -> Endpoint:
    """Until broker 1 is registered with these listeners; the last of them, as every broker knows it."""

    async def is_registered() -> bool:
        found = await client.get_broker(1)
        return found is not None and {e.listener for e in found.endpoints} == wanted

    client = KafkaZkClient(cluster.store, now_ms=lambda: 0)
    await cluster.wait_until(is_registered, f"listeners {wanted} to be registered")
    found = await client.get_broker(1)
    assert found is not None

    async def is_known() -> bool:
        snapshots = [node(cluster, at).broker.metadata_cache.snapshot for at in (1, 2)]
        known = [snapshot.alive_brokers.get(1) for snapshot in snapshots]
        return all(broker is not None and set(broker.endpoints) == wanted for broker in known)

    await cluster.wait_until(is_known, f"listeners {wanted} to be known")
    return found.endpoints[-1]


async def test_listeners_come_and_go_without_a_restart(cluster: Cluster) -> None:  # B10, rules 1.23, B1.57
    running = node(cluster, 1)
    epoch = running.broker.broker_epoch
    assert await alter(cluster, "1", **listeners(running, "EXTRA")) == (ErrorCode.NONE, None)
    extra = await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})
    link = await running.links.dial(extra.host, extra.port, to=-1, listener="")
    request = wire.encode_request(wire.MetadataRequest(topics=()), api_version=12, correlation_id=1, client_id="c")
    await link.send_frame(request)
    answer = wire.decode_response(await link.receive_frame(), api_key=3, api_version=12)[1]
    assert isinstance(answer, wire.MetadataResponse)
    assert [(b.node_id, b.port) for b in answer.brokers] == [(1, extra.port)]  # who else has that listener?
    assert await alter(cluster, "1", **listeners(running)) == (ErrorCode.NONE, None)
    assert await link.receive() is None
    await wait_for_registered(cluster, {"CONTROL", "DATA"})
    with pytest.raises(ConnectionRefusedError):
        await running.links.dial(extra.host, extra.port, to=-1, listener="")
    assert running.broker.broker_epoch == epoch
    assert running.broker.socket_server.quotas.total == 2  # from its controller, and this test's


async def test_a_listener_whose_port_is_taken_is_left_out(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    running, taken = node(cluster, 1), node(cluster, 2).addresses()["DATA"]
    changes = listeners(running)
    changes["listeners"] += f",EXTRA://{taken}"
    assert await alter(cluster, "1", **changes) == (ErrorCode.NONE, None)

    async def is_told() -> bool:
        return f"listener EXTRA cannot bind {taken}" in caplog.text

    await cluster.wait_until(is_told, "the error in the log")
    assert set(running.addresses()) == {"CONTROL", "DATA"}
    assert await alter(cluster, "1", **listeners(running, "EXTRA")) == (ErrorCode.NONE, None)
    await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})


async def test_a_node_starts_with_the_listeners_that_it_had(cluster: Cluster) -> None:
    assert await alter(cluster, "1", **listeners(node(cluster, 1), "EXTRA")) == (ErrorCode.NONE, None)
    await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})
    for _ in range(2):
        await cluster.restart(1)
        await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})
    await alter(cluster, "1", listeners=None, listener_security_protocol_map=None)
    await wait_for_registered(cluster, {"CONTROL", "DATA"})


async def test_other_addresses_are_advertised(cluster: Cluster) -> None:  # rule 1.23
    given = node(cluster, 1).addresses()
    advertised = f"CONTROL://{given['CONTROL']},DATA://elsewhere.example:7"
    assert await alter(cluster, "1", advertised_listeners=advertised) == (ErrorCode.NONE, None)

    async def is_known() -> bool:
        found = node(cluster, 2).broker.metadata_cache.snapshot.endpoint(1, "DATA")
        return found is not None and (found.host, found.port) == ("elsewhere.example", 7)

    await cluster.wait_until(is_known, "the new address to be known")
    code, why = await alter(cluster, "1", advertised_listeners=f"DATA://{given['DATA']}")
    assert (code, "CONTROL" in str(why)) == (ErrorCode.INVALID_REQUEST, True)


async def test_network_threads_come_and_go(cluster: Cluster) -> None:  # rule B1.10
    running = node(cluster, 1)
    (acceptor,) = running.broker.socket_server.planes[-1].acceptors
    before = [processor.processor_id for processor in acceptor.processors]
    assert await alter(cluster, "", num_network_threads="5") == (ErrorCode.NONE, None)

    async def has(threads: int) -> bool:
        return len(acceptor.processors) == threads

    await cluster.wait_until(lambda: has(5), "5 threads")
    assert [processor.processor_id for processor in acceptor.processors[:3]] == before
    host, _, port = running.addresses()["DATA"].rpartition(":")
    links = [await running.links.dial(host, int(port), to=-1, listener="") for _ in range(5)]
    metrics = running.broker.socket_server.metrics

    async def are_served() -> bool:
        return all(processor.connections for processor in acceptor.processors)

    await cluster.wait_until(are_served, "a connection in each thread")
    open_connections = metrics.connections_open
    doomed = sum(len(processor.connections) for processor in acceptor.processors[3:])
    assert await alter(cluster, "1", listener_name_data_num_network_threads="3") == (ErrorCode.NONE, None)
    await cluster.wait_until(lambda: has(3), "3 threads")

    async def are_closed() -> bool:
        return metrics.connections_open <= open_connections - doomed

    await cluster.wait_until(are_closed, "the connections of two threads to end")
    assert len(node(cluster, 2).broker.socket_server.planes[-1].acceptors[0].processors) == 5
    for link in links:
        await link.aclose()
    code, why = await alter(cluster, "1", listener_name_data_num_network_threads="7")
    assert (code, "double the current value 3" in str(why)) == (ErrorCode.INVALID_REQUEST, True)


async def test_partitions_are_dealt_out_to_more_fetchers(cluster: Cluster) -> None:  # B10
    await cluster.create_topic("many", assignment={number: [2, 1] for number in range(4)})
    await until(cluster, "segment_bytes", "many", (5000, 5000))
    fetchers = node(cluster, 1).broker.replication.fetchers

    async def has(threads: int) -> bool:
        return sum(bool(f.partitions) for (leader, _), f in fetchers._fetchers.items() if leader == 2) == threads

    await cluster.wait_until(lambda: has(1), "one fetcher")
    for wanted in (2, 4, 2, 1):
        assert await alter(cluster, "1", num_replica_fetchers=str(wanted)) == (ErrorCode.NONE, None)
        await cluster.wait_until(lambda wanted=wanted: has(wanted), f"{wanted} fetchers")  # type: ignore[misc]
    assert await alter(cluster, "1", num_replica_fetchers="3") == (
        ErrorCode.INVALID_REQUEST,
        "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation failed "
        "for num.replica.fetchers=3, value should not be greater than double the current value 1 "
        "for configuration Invalid dynamic configuration",
    )


async def test_a_listener_with_logins_is_added(cluster: Cluster) -> None:  # B10, rule B9.15
    """Passwords are stored encoded, and a node that starts decodes them."""
    for member in cluster.members:
        member.properties["password.encoder.secret"] = "encoder's"
        await cluster.restart(member.id)
    running, jaas = node(cluster, 1), "listener.name.extra.plain.sasl.jaas.config"
    changes = listeners(running, "EXTRA")
    changes["listener.security.protocol.map"] = "CONTROL:PLAINTEXT,DATA:PLAINTEXT,EXTRA:SASL_PLAINTEXT"
    del changes["listener_security_protocol_map"]
    changes |= {"listener.name.extra.sasl.enabled.mechanisms": "PLAIN", jaas: plain_users(admin="a", alice="secret")}
    assert await alter(cluster, "1", **changes) == (ErrorCode.NONE, None)
    await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})
    stored = await KafkaZkClient(cluster.store, now_ms=lambda: 0).get_config("brokers", "1")
    assert "PlainLoginModule" not in stored[jaas]

    async def logs_in(password: str) -> None:
        at = node(cluster, 1)
        login = (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{password}";'
        )
        client = SaslClient(
            mechanism="PLAIN", module=login_module("PLAIN", login), client_id="c", random=Random(1), now_ms=lambda: 0
        )
        host, _, port = at.addresses()["EXTRA"].rpartition(":")
        links = NodeLinks(at.world, Links(), -1, sasl={"EXTRA": client})
        await (await links.dial(host, int(port), to=-1, listener="EXTRA")).aclose()

    await logs_in("secret")
    with pytest.raises(AuthenticationRefused):
        await logs_in("wrong")
    assert await alter(cluster, "1", num_io_threads="9") == (ErrorCode.NONE, None)  # with what is stored already
    await cluster.restart(1)
    await wait_for_registered(cluster, {"CONTROL", "DATA", "EXTRA"})
    await logs_in("secret")
    refused = await alter(cluster, "1", **{jaas: plain_users(alice="another")})
    assert refused == (
        ErrorCode.INVALID_REQUEST,
        "Invalid value org.apache.kafka.common.config.ConfigException: Configs cannot be updated dynamically for "
        "existing listener ListenerName(EXTRA), restart broker or create a new listener for update "
        "for configuration Invalid dynamic configuration",
    )


async def test_without_a_secret_passwords_are_refused(cluster: Cluster) -> None:
    password = {"listener.name.data.ssl.keystore.password": "p"}
    assert await alter(cluster, "1", **password) == (
        ErrorCode.INVALID_CONFIG,
        "Invalid config value for resource ConfigResource(type=BROKER, name='1'): "
        "Password encoder secret not configured",
    )
