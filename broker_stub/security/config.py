"""How a listener is secured: the `ssl.*` and `sasl.*` settings of each, with its own prefix (section 9a).

`listener.name.<listener>.<setting>` goes before `<setting>`; what depends on the mechanism may have
`listener.name.<listener>.<mechanism>.` before it, and `sasl.jaas.config` must have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kce.broker_stub.security.jaas import LoginModule, parse_jaas
from kce.broker_stub.security.oauthbearer import UnsecuredValidator
from kce.broker_stub.security.ssl_principal import SslPrincipalMapper
from kce.wire.configuration import ConfigError, Properties

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
#: mechanism -> its login module
LOGIN_MODULES: Final[Mapping[str, str]] = {
    PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """A private key and its certificates: in the file at ``location``, or as texts in PEM."""

    type: str
    location: str | None
    password: str | None
    key_password: str | None
    key: str | None
    certificate_chain: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustStore:
    """Certificates that are trusted: in the file at ``location``, or as a text in PEM."""

    type: str
    location: str | None
    password: str | None
    certificates: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of one listener, for both ends of its connections. Without a trust store the machine's is used."""

    where: str  # for error messages
    key_store: KeyStore | None
    trust_store: TrustStore | None
    client_auth: str  # none, requested or required
    versions: tuple[str, ...]
    verifies_host: bool
    principal_mapper: SslPrincipalMapper
    #: whether a key store may be replaced, while the broker runs, by one with another subject, or with fewer names
    allows_dn_changes: bool
    allows_san_changes: bool

    @classmethod
    def of_client(cls, properties: Mapping[str, str]) -> TlsConfig:
        """That of a client's properties, which have no prefix. Raises ConfigError."""
        read = Properties(properties)
        return _tls(read, "", "the client's settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """SASL of one listener, for both ends of its connections."""

    enabled_mechanisms: tuple[str, ...]
    #: mechanism -> its entry, for those that are enabled or used between brokers
    jaas: Mapping[str, LoginModule]
    inter_broker_mechanism: str
    max_receive_size: int
    #: mechanism -> ms; 0: sessions do not end (rule B9.23)
    max_reauth_ms: Mapping[str, int]
    failed_authentication_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """How connections of a listener are secured; None is not by that."""

    tls: TlsConfig | None
    sasl: SaslConfig | None

    @property
    def is_plaintext(self) -> bool:
        return self.tls is None and self.sasl is None


#: of a listener without
PLAINTEXT: Final = ListenerSecurity(tls=None, sasl=None)


def listener_security(read: Properties, listener: str, protocol: str, *, is_inter_broker: bool) -> ListenerSecurity:
    """``is_inter_broker``: brokers connect to each other on this listener. Raises ConfigError."""
    where = f"listener {listener}"
    tls = _tls(read, listener, where) if protocol in ("SSL", "SASL_SSL") else None
    if tls is not None and protocol == "SASL_SSL" and not has_own_client_auth(read, listener):
        tls = replace(tls, client_auth="none")  # rule B9.3
    if tls is not None and tls.key_store is None:
        raise ConfigError(f"{where} uses {protocol}: ssl.keystore.location or ssl.keystore.key is missing")
    sasl = (
        _SaslSettings(read, listener).config(is_inter_broker=is_inter_broker) if protocol.startswith("SASL_") else None
    )
    return ListenerSecurity(tls=tls, sasl=sasl)


def has_own_client_auth(read: Properties, listener: str) -> bool:
    return read.given(f"listener.name.{listener.lower()}.ssl.client.auth") is not None


def _tls(read: Properties, listener: str, where: str) -> TlsConfig:
    def text(name: str) -> str | None:
        value = read.listener_value(listener, name)
        assert value is None or isinstance(value, str)
        return value or None

    versions = read.listener_value(listener, "ssl.enabled.protocols")
    assert isinstance(versions, tuple)
    if not versions:
        raise ConfigError(f"{where}: ssl.enabled.protocols is empty")
    newest = text("ssl.protocol")
    if newest == "TLSv1.2":
        versions = tuple(version for version in versions if version != "TLSv1.3") or versions
    algorithm = text("ssl.endpoint.identification.algorithm") or ""
    if algorithm.lower() not in ("", "https"):
        raise ConfigError(f"{where}: ssl.endpoint.identification.algorithm={algorithm}: must be https or empty")
    rules = text("ssl.principal.mapping.rules") or ""  # an empty list has no rule, not the default
    try:
        mapper = SslPrincipalMapper(rules)
    except ValueError as e:
        raise ConfigError(f"{where}: ssl.principal.mapping.rules={rules}: {e}") from None
    client_auth = text("ssl.client.auth")
    assert client_auth is not None
    key, chain = text("ssl.keystore.key"), text("ssl.keystore.certificate.chain")
    key_location, trust_location = text("ssl.keystore.location"), text("ssl.truststore.location")
    certificates = text("ssl.truststore.certificates")
    key_store = trust_store = None
    if key_location or key or chain:
        key_store = KeyStore(
            type=text("ssl.keystore.type") or "",
            location=key_location,
            password=text("ssl.keystore.password"),
            key_password=text("ssl.key.password"),
            key=key,
            certificate_chain=chain,
        )
        _check_store(where, "ssl.keystore", key_store.type, key_location, {"key": key, "certificate.chain": chain})
    if trust_location or certificates:
        trust_store = TrustStore(
            type=text("ssl.truststore.type") or "",
            location=trust_location,
            password=text("ssl.truststore.password"),
            certificates=certificates,
        )
        given = {"certificates": certificates}
        _check_store(where, "ssl.truststore", trust_store.type, trust_location, given)
    for prefix, is_there in (("ssl.keystore", key_location or key), ("ssl.truststore", trust_location or certificates)):
        is_pem = (text(f"{prefix}.type") or "").upper() == "PEM"
        has_password = read.listener_value(listener, f"{prefix}.password") is not None
        _check_password(where, prefix, is_there=bool(is_there), is_pem=is_pem, has_password=has_password)
    text("ssl.key.password")
    return TlsConfig(
        where=where,
        key_store=key_store,
        trust_store=trust_store,
        client_auth=client_auth,
        versions=versions,
        verifies_host=bool(algorithm),
        principal_mapper=mapper,
        allows_dn_changes=read.listener_value(listener, "ssl.allow.dn.changes") is True,
        allows_san_changes=read.listener_value(listener, "ssl.allow.san.changes") is True,
    )


def _check_password(where: str, prefix: str, *, is_there: bool, is_pem: bool, has_password: bool) -> None:
    """Raises ConfigError: Kafka's rules for the password of a store, which may be empty."""
    name = f"{prefix}.password"
    if has_password and not is_there:
        raise ConfigError(f"{where}: {name} needs {prefix}.location")
    if has_password and is_pem:
        raise ConfigError(f"{where}: {name} is not for stores of type PEM")
    if is_there and not is_pem and not has_password and prefix == "ssl.keystore":
        raise ConfigError(f"{where}: {prefix}.location needs {name}")


def _check_store(where: str, prefix: str, kind: str, location: str | None, texts: Mapping[str, str | None]) -> None:
    """Raises ConfigError: Kafka's rules for files and texts of a store."""
    if kind.upper() not in _STORE_TYPES:
        raise ConfigError(
            f"{where}: {prefix}.type={kind}: only {', '.join(_STORE_TYPES)} are supported here "
            "(keytool -importkeystore -deststoretype PKCS12 converts others)"
        )
    given = [f"{prefix}.{name}" for name, text in texts.items() if text]
    missing = [f"{prefix}.{name}" for name, text in texts.items() if not text]
    if location and given:
        raise ConfigError(f"{where}: set only one of {prefix}.location and {given[0]}")
    if given and missing:
        raise ConfigError(f"{where}: {given[0]} needs {missing[0]}")
    if given and kind.upper() != "PEM":
        raise ConfigError(f"{where}: {given[0]} needs {prefix}.type=PEM, not {kind}")


class _SaslSettings:
    """Reads those of one listener."""

    def __init__(self, read: Properties, listener: str) -> None:
        self._read = read
        self._listener = listener
        enabled = read.listener_value(listener, "sasl.enabled.mechanisms")
        assert isinstance(enabled, tuple)
        self._enabled = enabled
        self._between = read.text("sasl.mechanism.inter.broker.protocol") or ""
        self._max_receive_size = read.integer("sasl.server.max.receive.size")
        self._delay_ms = read.integer("connection.failed.authentication.delay.ms")
        self._max_reauth_ms = read.integer("connections.max.reauth.ms")
        self._common_jaas = read.given("sasl.jaas.config")

    def config(self, *, is_inter_broker: bool) -> SaslConfig:
        """Raises ConfigError."""
        if not self._enabled:
            raise ConfigError(f"listener {self._listener}: sasl.enabled.mechanisms is empty")
        used = [*self._enabled, self._between] if is_inter_broker else list(self._enabled)
        for mechanism in used:
            if mechanism not in LOGIN_MODULES:
                setting = "sasl.enabled.mechanisms" if mechanism in self._enabled else (
                    "sasl.mechanism.inter.broker.protocol"
                )  # fmt: skip
                raise ConfigError(
                    f"{setting}={mechanism}: listener {self._listener} has none but {', '.join(LOGIN_MODULES)} here"
                )
        if is_inter_broker and self._between not in self._enabled:
            raise ConfigError(
                f"sasl.mechanism.inter.broker.protocol={self._between}: must be one of sasl.enabled.mechanisms of "
                f"listener {self._listener} ({', '.join(self._enabled)})"
            )
        return SaslConfig(
            enabled_mechanisms=tuple(dict.fromkeys(self._enabled)),
            jaas={mechanism: self._jaas(mechanism) for mechanism in dict.fromkeys(used)},
            inter_broker_mechanism=self._between,
            max_receive_size=self._max_receive_size,
            max_reauth_ms={mechanism: self._reauth(mechanism) for mechanism in dict.fromkeys(used)},
            failed_authentication_delay_ms=self._delay_ms,
        )

    def _reauth(self, mechanism: str) -> int:
        value = self._read.listener_value(self._listener, "connections.max.reauth.ms", mechanism)
        assert isinstance(value, int)
        return value

    def _jaas(self, mechanism: str) -> LoginModule:
        """Rule B9.15; there are no static files of JAAS here."""
        key = f"listener.name.{self._listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        text = self._read.given(key)
        if text is None:
            hint = "; sasl.jaas.config alone is not used for listeners" if self._common_jaas else ""
            raise ConfigError(f"the setting {key} is missing{hint}")
        try:
            return login_module(mechanism, text)
        except ValueError as e:
            raise ConfigError(f"{key}: {e}") from None


def login_module(mechanism: str, text: str) -> LoginModule:
    """Parse the JAAS entry for a mechanism. Raises ValueError."""
    module = parse_jaas(text)
    if module.name != LOGIN_MODULES[mechanism]:
        raise ValueError(f"{mechanism} needs {LOGIN_MODULES[mechanism]}, not {module.name}")
    if mechanism == OAUTHBEARER:
        UnsecuredValidator.of(module.options)
    return module
