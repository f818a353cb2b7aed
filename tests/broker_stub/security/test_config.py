"""What a listener's settings of security must be (sections 9a to 9c)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kce.broker_stub import BrokerConfig
from kce.broker_stub.security.authorizer import CLASS_NAME, AuthorizerConfig
from kce.broker_stub.security.config import KeyStore, SaslConfig, TlsConfig, TrustStore, login_module
from kce.broker_stub.security.principal import KafkaPrincipal
from kce.broker_stub.security.ssl_principal import NoMatchingRule
from kce.wire.configuration import ConfigError, Properties
from tests.certificates import authority, plain_users, scram_login

JAAS = "listener.name.data.plain.sasl.jaas.config"
PKCS12_WITHOUT_PASSWORD = {
    "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "k", "ssl.keystore.key": "",
    "ssl.keystore.certificate.chain": "",
}  # fmt: skip
SCRAM_JAAS = "listener.name.data.scram-sha-256.sasl.jaas.config"


def given(protocol: str, **more: str) -> dict[str, str]:
    return {
        "broker.id": "1", "listeners": "DATA://:0,OTHER://:0", "inter.broker.listener.name": "DATA",
        "listener.security.protocol.map": f"DATA:{protocol},OTHER:PLAINTEXT", JAAS: plain_users(a="b"),
        "sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN", **authority().of_node(),
        **{key.replace("_", "."): value for key, value in more.items()},
    }  # fmt: skip


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_each_listener_has_its_protocol(protocol: str) -> None:  # rule B9.1
    config = BrokerConfig.from_properties(given(protocol))
    security = config.security["DATA"]
    assert (security.tls is not None, security.sasl is not None) == (protocol.endswith("SSL"), "SASL" in protocol)
    assert config.security["OTHER"].is_plaintext
    assert [e.security_protocol for e in config.listeners] == [protocol, "PLAINTEXT"]


def test_settings_of_the_listener_and_the_mechanism_go_first() -> None:
    properties = given("SASL_SSL", ssl_client_auth="required", connections_max_reauth_ms="1")
    properties |= {
        "listener.name.data.ssl.client.auth": "requested", "listener.name.data.connections.max.reauth.ms": "2",
        "listener.name.data.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", SCRAM_JAAS: scram_login("a", "b"),
        "listener.name.data.plain.connections.max.reauth.ms": "3", "ssl.protocol": "TLSv1.2",
        "ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip
    security = BrokerConfig.from_properties(properties).security["DATA"]
    assert security.tls is not None
    assert security.sasl is not None
    assert security.tls.client_auth == "requested"
    assert security.tls.versions == ("TLSv1.2",)
    assert not security.tls.verifies_host
    assert security.sasl.max_reauth_ms == {"PLAIN": 3, "SCRAM-SHA-256": 2}
    assert security.sasl.jaas["PLAIN"].options["user_a"] == "b"


@pytest.mark.parametrize(
    ("protocol", "own", "expected"),
    [("SSL", None, "required"), ("SASL_SSL", None, "none"), ("SASL_SSL", "required", "required")],
)
def test_certificates_of_sasl_clients_are_requested_by_the_listeners_own_setting_only(
    caplog: pytest.LogCaptureFixture, protocol: str, own: str | None, expected: str
) -> None:  # rule B9.3
    properties = given(protocol, ssl_client_auth="required")
    if own is not None:
        properties["listener.name.data.ssl.client.auth"] = own
    config = BrokerConfig.from_properties(properties)
    for made in (config, config.changed({"log.retention.ms": "5"})):
        tls = made.security["DATA"].tls
        assert tls is not None
        assert tls.client_auth == expected
    is_warned = "ssl.client.auth=required has no effect on listener DATA, which is SASL_SSL" in caplog.text
    assert is_warned == (expected == "none")


@pytest.mark.parametrize(
    ("protocol", "wrong", "why"),
    [
        ("SSL", {"ssl.keystore.type": "BKS"}, "ssl.keystore.type=BKS: only PEM, PKCS12, JKS are supported here"),
        ("SSL", {"ssl.keystore.location": "k"}, "set only one of ssl.keystore.location and ssl.keystore.key"),
        ("SSL", {"ssl.keystore.key": ""}, "ssl.keystore.certificate.chain needs ssl.keystore.key"),
        ("SSL", {"ssl.truststore.type": "PKCS12"}, "ssl.truststore.certificates needs ssl.truststore.type=PEM"),
        ("SSL", {"ssl.keystore.password": "x"}, "ssl.keystore.password is not for stores of type PEM"),
        ("SSL", {"ssl.truststore.password": ""}, "ssl.truststore.password is not for stores of type PEM"),
        ("SSL", {"ssl.truststore.certificates": "", "ssl.truststore.password": "x"}, "password needs ssl.truststore."),
        ("SSL", PKCS12_WITHOUT_PASSWORD, "ssl.keystore.location needs ssl.keystore.password"),
        ("SSL", {"ssl.enabled.protocols": ""}, "ssl.enabled.protocols is empty"),
        ("SSL", {"ssl.enabled.protocols": "SSLv3"}, "must be a list, each element one of TLSv1.2, TLSv1.3"),
        ("SSL", {"ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules=RULE:(: invalid"),
        ("SSL", {"ssl.endpoint.identification.algorithm": "LDAPS"}, "must be https or empty"),
        ("SSL", {"ssl.client.auth": "maybe"}, "must be one of required, requested, none"),
        ("SASL_SSL", {"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        ("SASL_SSL", {"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms=GSSAPI: listener DATA has none"),
        ("SASL_SSL", {"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "listener DATA has none but PLAIN"),
        ("SASL_SSL", {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"}, "one of sasl.enabled.mechanisms of"),
        ("SASL_SSL", {JAAS: "x"}, f"{JAAS}: after x one of required"),
        ("SASL_SSL", {JAAS: scram_login("a", "b")}, "PLAIN needs org.apache.kafka.common.security.plain.PlainLogin"),
        ("SASL_SSL", {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}, f"the setting {SCRAM_JAAS} is missing"),
    ],
)
def test_what_is_refused_in_one_line(protocol: str, wrong: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_properties(given(protocol) | wrong)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_rules_no_certificate_names_a_principal() -> None:  # rule B9.2
    """An empty list is not the default one. Measured with Kafka, which breaks such connections."""
    tls = BrokerConfig.from_properties(given("SSL")).security["DATA"].tls
    assert tls is not None
    assert tls.principal_mapper.name("CN=a") == "CN=a"
    tls = BrokerConfig.from_properties(given("SSL", ssl_principal_mapping_rules="")).security["DATA"].tls
    assert tls is not None
    with pytest.raises(NoMatchingRule):
        tls.principal_mapper.name("CN=a")


def test_who_sets_only_the_common_jaas_entry_is_told_that_it_is_not_used() -> None:  # rule B9.15
    properties = given("SASL_SSL", sasl_jaas_config=plain_users(a="b"))
    del properties[JAAS]
    with pytest.raises(ConfigError, match=r"is missing; sasl\.jaas\.config alone is not used for listeners"):
        BrokerConfig.from_properties(properties)


def test_all_that_is_known_of_a_listener() -> None:
    """From files."""
    properties = {
        "broker.id": "1", "listeners": "DATA://:0", "inter.broker.listener.name": "DATA",
        "listener.security.protocol.map": "DATA:SASL_SSL", JAAS: plain_users(a="b"), SCRAM_JAAS: scram_login("a", "b"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,PLAIN", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "sasl.server.max.receive.size": "7", "connection.failed.authentication.delay.ms": "8",
        "connections.max.reauth.ms": "9", "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "k",
        "ssl.keystore.password": "kp", "ssl.key.password": "kkp", "ssl.truststore.type": "pem",
        "ssl.truststore.location": "t", "listener.name.data.ssl.client.auth": "required",
    }  # fmt: skip
    security = BrokerConfig.from_properties(properties).security["DATA"]
    tls, sasl = security.tls, security.sasl
    assert tls is not None
    assert sasl is not None
    assert (tls.where, tls.client_auth, tls.versions, tls.verifies_host) == (
        "listener DATA", "required", ("TLSv1.2", "TLSv1.3"), True,
    )  # fmt: skip
    assert tls.key_store == KeyStore(
        type="PKCS12", location="k", password="kp", key_password="kkp", key=None, certificate_chain=None
    )
    assert tls.trust_store == TrustStore(type="pem", location="t", password=None, certificates=None)
    assert replace(sasl, jaas={}) == SaslConfig(
        enabled_mechanisms=("PLAIN", "SCRAM-SHA-256"), jaas={}, inter_broker_mechanism="SCRAM-SHA-256",
        max_receive_size=7, max_reauth_ms={"PLAIN": 9, "SCRAM-SHA-256": 9}, failed_authentication_delay_ms=8,
    )  # fmt: skip
    assert {name: module.name.rpartition(".")[2] for name, module in sasl.jaas.items()} == {
        "PLAIN": "PlainLoginModule", "SCRAM-SHA-256": "ScramLoginModule",
    }  # fmt: skip


def test_tls_of_a_client() -> None:
    plain = TlsConfig.of_client({})
    assert (plain.where, plain.key_store, plain.trust_store, plain.client_auth, plain.verifies_host) == (
        "the client's settings", None, None, "none", True,
    )  # fmt: skip
    texts = {
        "ssl.keystore.type": "PEM", "ssl.keystore.key": "k", "ssl.keystore.certificate.chain": "c",
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "t", "ssl.protocol": "TLSv1.3",
    }  # fmt: skip
    found = TlsConfig.of_client(texts)
    assert found.key_store == KeyStore(
        type="PEM", location=None, password=None, key_password=None, key="k", certificate_chain="c"
    )
    assert found.trust_store == TrustStore(type="PEM", location=None, password=None, certificates="t")
    assert found.versions == ("TLSv1.2", "TLSv1.3")
    only = TlsConfig.of_client({"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.3"})
    assert only.versions == ("TLSv1.3",)


def test_a_login_module_for_unsecured_tokens_has_its_options() -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    assert login_module("OAUTHBEARER", f"{module} a=b;").options == {"a": "b"}
    with pytest.raises(ValueError, match="AllowableClockSkewMs=x"):
        login_module("OAUTHBEARER", f"{module} unsecuredValidatorAllowableClockSkewMs=x;")


def test_there_is_one_authorizer() -> None:
    with pytest.raises(ConfigError, match=r"authorizer\.class\.name"):
        AuthorizerConfig.from_properties(Properties({"authorizer.class.name": "x.Y"}))
    assert AuthorizerConfig.from_properties(Properties({})) is None
    given = {
        "authorizer.class.name": CLASS_NAME,
        "super.users": " User:a ;Group:b:c;",
        "allow.everyone.if.no.acl.found": "true",
    }
    assert AuthorizerConfig.from_properties(Properties(given)) == AuthorizerConfig(
        frozenset({KafkaPrincipal("User", "a"), KafkaPrincipal("Group", "b:c")}), True
    )
    for user in ("a", ":a", "User:", "User"):
        with pytest.raises(ConfigError, match="is not TYPE:NAME"):
            AuthorizerConfig.from_properties(Properties({"authorizer.class.name": CLASS_NAME, "super.users": user}))
