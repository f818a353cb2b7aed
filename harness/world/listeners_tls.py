"""The TLS of a node's listeners while it runs: their stores may be replaced, for connections from then on.

A store is replaced only if who knows the old one may trust the new one (rule B9.38): the key store keeps its subject
and its names, and on the inter-broker listener each of the two understands the other.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kce.broker_stub.security.config import ListenerSecurity, TlsConfig
from kce.broker_stub.security.ssl_principal import alternative_names, subject_of
from kce.harness.world.tls import Tls
from kce.harness.world.tls_failures import tls_failure
from kce.wire.configuration import ConfigError

_CONFIG_EXCEPTION = "org.apache.kafka.common.config.ConfigException"
#: a handshake in memory takes fewer turns of its two ends
_TURNS = 20


class ListenersTls:
    """``current``: by listener, for those with TLS (broker_stub.ports.TlsPort)."""

    def __init__(self, security: Mapping[str, ListenerSecurity], inter_broker_listener: str) -> None:
        """Raises ConfigError, also if brokers with these stores would not trust each other (rule B9.38)."""
        self._inter_broker_listener = inter_broker_listener
        self.current: dict[str, Tls] = {}
        self.use(security)
        between = self.current.get(inter_broker_listener)
        if between is not None:
            try:
                _check_handshake(between, between)
            except ssl.SSLError as e:
                raise ConfigError(
                    f"listener {inter_broker_listener}: brokers cannot connect to each other with its stores: {e}"
                ) from None

    def check(self, security: Mapping[str, ListenerSecurity]) -> None:
        """Raises ConfigError."""
        self._changed(security)

    def use(self, security: Mapping[str, ListenerSecurity]) -> None:
        """Raises ConfigError."""
        changed = self._changed(security)
        for listener in [name for name in self.current if name not in security]:
            del self.current[listener]
        self.current.update(changed)

    def reload(self) -> None:
        """Raises ConfigError."""
        changed = {}
        for listener, now in self.current.items():
            if _has_files(now.config):
                then = self._checked(listener, now, Tls(now.config))
                if then.stores != now.stores:
                    changed[listener] = then
        self.current.update(changed)

    def _changed(self, security: Mapping[str, ListenerSecurity]) -> dict[str, Tls]:
        """Of new listeners, and of those with other stores. Raises ConfigError."""
        changed = {}
        for listener, each in security.items():
            now = self.current.get(listener)
            if each.tls is None:
                continue
            if now is None:
                changed[listener] = _usable(Tls(each.tls))
            elif _stores(each.tls) != _stores(now.config):
                config = replace(now.config, key_store=each.tls.key_store, trust_store=each.tls.trust_store)
                changed[listener] = self._checked(listener, now, Tls(config))
        return changed

    def _checked(self, listener: str, now: Tls, then: Tls) -> Tls:
        """``then``, if it may replace ``now``. Raises ConfigError."""
        try:
            _usable(then)
            _check_replaceable(now, then)
            if listener == self._inter_broker_listener:
                _check_handshake(now, then)
                _check_handshake(then, now)
        except ConfigError as e:
            failure = f"{_CONFIG_EXCEPTION}: {e.words}"
        except ssl.SSLError as e:
            failure = f"javax.net.ssl.SSLHandshakeException: {tls_failure(e)}"
        else:
            return then
        raise ConfigError(f"Validation of dynamic config update of SSLFactory failed: {failure}")


def _stores(config: TlsConfig) -> tuple[object, object]:
    return config.key_store, config.trust_store


def _has_files(config: TlsConfig) -> bool:
    """Whether none is missing, as one that is being replaced is."""
    stores = (config.key_store, config.trust_store)
    return all(Path(store.location).exists() for store in stores if store is not None and store.location)


def _usable(tls: Tls) -> Tls:
    """Raises ConfigError."""
    tls.server_context()
    tls.client_context()
    return tls


def _check_replaceable(now: Tls, then: Tls) -> None:
    """Raises ConfigError."""
    if now.stores.trusted is None and then.stores.trusted is not None:
        raise ConfigError("Cannot add SSL truststore to an existing listener for which no truststore was configured.")
    old, new = now.stores.own, then.stores.own
    if old is None or new is None:
        return
    before, after = subject_of(old.certificate), subject_of(new.certificate)
    if before.lower() != after.lower() and not then.config.allows_dn_changes:
        raise ConfigError(f"Keystore DistinguishedName does not match:  existing={{DN={before}}}, new={{DN={after}}}")
    if then.config.allows_san_changes:
        return
    if missing := alternative_names(old.certificate) - alternative_names(new.certificate):
        names = ", ".join(sorted(name.decode("latin-1") if kind == 0x82 else name.hex() for kind, name in missing))
        raise ConfigError(f"Keystore SubjectAltNames do not match: the new store lacks {names}")


def _check_handshake(server: Tls, client: Tls) -> None:
    """Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    clients = client.context_of_client(verifies_host=False)
    ends = [
        clients.wrap_bio(to_client, to_server),
        server.server_context().wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_TURNS):
        for end in list(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)
    if ends:
        raise ssl.SSLError(ssl.SSL_ERROR_SSL, "the handshake does not end")
