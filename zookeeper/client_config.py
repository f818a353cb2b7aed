"""How a node connects to ZooKeeper: the `zookeeper.*` settings of a server.properties.

Names and meanings are Kafka's. Who a node is to ZooKeeper is told by its TLS certificate, as Kafka can do since
KIP-515; a Java login configuration (SASL) means nothing to Python, so that `zookeeper.set.acl` needs a certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller import zk_data
from controller.store.zookeeper import KazooStore

_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"
_NIO = "org.apache.zookeeper.ClientCnxnSocketNIO"
_SSL = "zookeeper.ssl"
#: what is asked for in vain: silence about it would be a lie
_NOT_OFFERED = {
    f"{_SSL}.cipher.suites": "the ciphers are those of Python's ssl module",
    f"{_SSL}.enabled.protocols": "TLS 1.2 and later are offered",
    f"{_SSL}.crl.enable": "no lists of revoked certificates are read",
    f"{_SSL}.ocsp.enable": "nobody is asked whether a certificate was revoked",
}


@dataclass(frozen=True, slots=True)
class ZooKeeperClientConfig:
    """``tls`` None is a plaintext connection. ``set_acl``: nodes belong to the identity that the certificate gives."""

    connect_string: str
    session_timeout_ms: int
    connection_timeout_ms: int
    set_acl: bool = False
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ZooKeeperClientConfig:
        """Raises KeyError without `zookeeper.connect`, ValueError for a setting that cannot be."""
        session_timeout_ms = integer(properties, "zookeeper.session.timeout.ms", 18_000)
        made = cls(
            properties["zookeeper.connect"],
            session_timeout_ms,
            integer(properties, "zookeeper.connection.timeout.ms", session_timeout_ms),  # rule 1.7
            boolean(properties, "zookeeper.set.acl", default=False),
            _tls(properties),
        )
        if made.set_acl and (made.tls is None or f"{_SSL}.keystore.location" not in properties):
            raise ValueError(
                f"zookeeper.set.acl=true needs an identity: {_SSL}.client.enable=true and {_SSL}.keystore.location"
            )
        return made

    async def connect(self) -> KazooStore:
        """Raises StoreUnavailable."""
        return await KazooStore.connect(
            self.connect_string,
            session_timeout_ms=self.session_timeout_ms,
            connection_timeout_ms=self.connection_timeout_ms,
            acls_of=zk_data.secure_acls if self.set_acl else None,  # rule 1.5
            tls=self.tls,
        )


def boolean(properties: Mapping[str, str], key: str, *, default: bool) -> bool:
    """Raises ValueError."""
    text = properties.get(key, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{key}={properties[key]} is neither true nor false")
    return text == "true"


def integer(properties: Mapping[str, str], key: str, default: int, *, minimum: int = 1) -> int:
    """Raises ValueError."""
    text = properties.get(key, str(default))
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"{key}={text} is no number from {minimum}")
    return number


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext | None:
    """Only the certificates of the trust store are trusted, those of the machine where there is none."""
    transport = properties.get("zookeeper.clientCnxnSocket")
    if transport not in (None, _NETTY, _NIO):
        raise ValueError(f"zookeeper.clientCnxnSocket={transport} is neither {_NETTY} nor {_NIO}")
    if not boolean(properties, f"{_SSL}.client.enable", default=False):
        return None
    if transport == _NIO:
        raise ValueError(f"{_SSL}.client.enable=true needs zookeeper.clientCnxnSocket={_NETTY}")
    for key, instead in _NOT_OFFERED.items():
        if properties.get(key, "false").lower() != "false":
            raise ValueError(f"{key}={properties[key]} is not offered here: {instead}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = properties.get(f"{_SSL}.endpoint.identification.algorithm", "HTTPS")
    if algorithm.upper() not in ("HTTPS", ""):
        raise ValueError(f"{_SSL}.endpoint.identification.algorithm={algorithm} is neither HTTPS nor empty")
    context.check_hostname = bool(algorithm)
    try:
        if (trusted := _pem(properties, "truststore")) is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(trusted)
        if (own := _pem(properties, "keystore")) is not None:
            # a function, so that nobody is asked on a terminal
            context.load_cert_chain(own, password=lambda: properties.get(f"{_SSL}.keystore.password", ""))
    except OSError as e:  # ssl.SSLError is one
        raise ValueError(f"{_SSL}.*: the certificates cannot be used: {e}") from None
    return context


def _pem(properties: Mapping[str, str], store: str) -> Path | None:
    location = properties.get(f"{_SSL}.{store}.location")
    if location is None:
        return None
    path = Path(location)
    kind = properties.get(f"{_SSL}.{store}.type") or path.suffix.lstrip(".")  # as ZooKeeper guesses it
    if kind.upper() != "PEM":
        raise ValueError(f"{_SSL}.{store}.location={location} is of type {kind!r}: only PEM can be read here")
    if not path.is_file():
        raise ValueError(f"{_SSL}.{store}.location={location} is no file")
    return path
