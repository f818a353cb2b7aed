"""The ZooKeeper connection of a node: the `zookeeper.*` settings of a server.properties.

Names and meanings are Kafka's. A TLS certificate authenticates the node, as in KIP-515. Java login configurations
(SASL) are not supported, so `zookeeper.set.acl` needs a certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kce.wire.configuration import ConfigError, Properties
from kce.zookeeper import znodes
from kce.zookeeper.store.kazoo import KazooStore

_NETTY = "org.apache.zookeeper.ClientCnxnSocketNetty"
_NIO = "org.apache.zookeeper.ClientCnxnSocketNIO"
_SSL = "zookeeper.ssl"


@dataclass(frozen=True, slots=True)
class ZooKeeperClientConfig:
    """``tls`` None is a plaintext connection. ``set_acl``: nodes belong to the certificate's identity."""

    connect_string: str
    session_timeout_ms: int
    connection_timeout_ms: int
    set_acl: bool = False
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ZooKeeperClientConfig:
        """Raises ConfigError."""
        read = Properties(properties)
        session_timeout_ms = read.integer("zookeeper.session.timeout.ms")
        connection_timeout_ms = read.optional_integer("zookeeper.connection.timeout.ms")
        made = cls(
            read.required("zookeeper.connect"),
            session_timeout_ms,
            session_timeout_ms if connection_timeout_ms is None else connection_timeout_ms,  # rule 1.7
            read.boolean("zookeeper.set.acl"),
            _tls(read),
        )
        if made.set_acl and (made.tls is None or read.given(f"{_SSL}.keystore.location") is None):
            raise ConfigError(
                f"zookeeper.set.acl=true needs an identity: {_SSL}.client.enable=true and {_SSL}.keystore.location"
            )
        return made

    async def connect(self) -> KazooStore:
        """Raises StoreUnavailable."""
        return await KazooStore.connect(
            self.connect_string,
            session_timeout_ms=self.session_timeout_ms,
            connection_timeout_ms=self.connection_timeout_ms,
            acls_of=znodes.secure_acls if self.set_acl else None,  # rule 1.5
            tls=self.tls,
        )


def _tls(read: Properties) -> ssl.SSLContext | None:
    """Trusts only the certificates of the trust store, or those of the machine without one."""
    transport = read.text("zookeeper.clientCnxnSocket")
    if not read.boolean(f"{_SSL}.client.enable"):
        return None
    if transport == _NIO:
        raise ConfigError(f"{_SSL}.client.enable=true needs zookeeper.clientCnxnSocket={_NETTY}")
    read.check_zookeeper_tls()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = read.text(f"{_SSL}.endpoint.identification.algorithm") or ""
    if algorithm.upper() not in ("HTTPS", ""):
        raise read.refusal(f"{_SSL}.endpoint.identification.algorithm", "must be HTTPS or empty")
    context.check_hostname = bool(algorithm)
    try:
        if (trusted := _pem(read, "truststore")) is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(trusted)
        if (own := _pem(read, "keystore")) is not None:
            # a function, so that no password is requested from a terminal
            context.load_cert_chain(own, password=lambda: read.text(f"{_SSL}.keystore.password") or "")
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(f"{_SSL}.*: the certificates cannot be used: {e}") from None
    return context


def _pem(read: Properties, store: str) -> Path | None:
    location = read.text(f"{_SSL}.{store}.location")
    if location is None:
        return None
    path = Path(location)
    kind = read.text(f"{_SSL}.{store}.type") or path.suffix.lstrip(".")  # ZooKeeper's default
    if kind.upper() != "PEM":
        raise read.refusal(f"{_SSL}.{store}.location", f"its type is {kind!r}, but only PEM is supported")
    if not path.is_file():
        raise read.refusal(f"{_SSL}.{store}.location", "there is no such file")
    return path
