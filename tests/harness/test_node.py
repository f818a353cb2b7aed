"""Settings that a node refuses, each with one line that names the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kce.broker_stub import BrokerConfig
from kce.broker_stub.log.manager_config import LogManagerConfig
from kce.broker_stub.replication.throttle import ALTER_LOG_DIRS_RATE, FOLLOWER_RATE, LEADER_RATE, ReplicationQuotas
from kce.harness import HarnessError
from kce.harness.node import Node, controller_config
from kce.wire.configuration import BROKER_CONFIGS, TOPIC_CONFIGS, Support
from kce.zookeeper.client_config import ZooKeeperClientConfig

GIVEN = {"broker.id": "1", "zookeeper.connect": "127.0.0.1:1"}
#: read only where there are certificates
OF_CERTIFICATES = {
    "zookeeper.ssl.keystore.password", "zookeeper.ssl.keystore.type", "zookeeper.ssl.truststore.type",
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("zookeeper.set.acl", "true", "zookeeper.set.acl=true needs an identity"),
        ("leader.imbalance.check.interval.seconds", "0", "leader.imbalance.check.interval.seconds=0: must be"),
        ("inter.broker.protocol.version", "0.7", "inter.broker.protocol.version=0.7"),
    ],
)
def test_refusals(key: str, text: str, expected: str) -> None:
    with pytest.raises(HarnessError) as caught:
        Node(GIVEN | {key: text})
    assert str(caught.value).startswith(expected)


def test_protections_that_are_off() -> None:
    Node(GIVEN | {"zookeeper.set.acl": "false", "zookeeper.ssl.client.enable": "false"})


def test_nothing_can_be_had_without_zookeeper() -> None:
    with pytest.raises(HarnessError, match=r"the setting zookeeper\.connect is missing"):
        Node({"broker.id": "1"})


class Recording(dict[str, str]):
    """Records which settings are read."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def read_for_topics(properties: Mapping[str, str]) -> None:
    """What the logs of topics without settings of their own take from the broker."""
    for definition in TOPIC_CONFIGS.values():
        if definition.support is Support.LIVE and definition.name != "unclean.leader.election.enable":
            for name, _ in definition.synonyms:
                properties.get(name)


def test_the_table_of_settings_names_all_readers() -> None:
    rates = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE, ALTER_LOG_DIRS_RATE), "1")  # not asked for where there is none
    given = GIVEN | rates | {
        "zookeeper.ssl.client.enable": "true", "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "delegation.token.master.key": "secret", "password.encoder.secret": "secret",
    }  # fmt: skip

    secured = {  # the settings of TLS and SASL are read for listeners that have them
        "listeners": "PLAINTEXT://127.0.0.1:0,S://127.0.0.1:0", "ssl.keystore.type": "PEM", "ssl.keystore.key": "key",
        "ssl.keystore.certificate.chain": "chain", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "ca",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,S:SASL_SSL", "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.s.oauthbearer.sasl.jaas.config":
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="admin";',
    }  # fmt: skip
    broker, zookeeper = BrokerConfig.from_properties(given), ZooKeeperClientConfig.from_properties(given)

    def read_for_broker(properties: Mapping[str, str]) -> None:
        """What is there when it starts, and what is only dynamic."""
        BrokerConfig.from_properties(properties)
        ReplicationQuotas(broker).broker_config_changed(properties)

    readers: dict[str, Callable[[Mapping[str, str]], object]] = {
        "broker": read_for_broker,
        "zookeeper": ZooKeeperClientConfig.from_properties,
        "controller": lambda properties: controller_config(broker, zookeeper, properties),
        "node": Node,
        "logs": LogManagerConfig.of,
        "topics": read_for_topics,
    }
    refused = {name for name, definition in BROKER_CONFIGS.items() if definition.support is Support.REFUSED}
    for reader, parse in readers.items():
        properties = Recording(given | secured if reader == "broker" else given)
        parse(properties)
        found = {key for key in properties.read if not key.startswith("listener.name.")} - refused
        named = {name for name, definition in BROKER_CONFIGS.items() if reader in definition.readers}
        assert found == named - OF_CERTIFICATES, reader
    assert {name for definition in BROKER_CONFIGS.values() for name in definition.readers} == readers.keys()
