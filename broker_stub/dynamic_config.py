"""The configuration of a running broker: the file's, and above it what AlterConfigs has set (B10).

A change is refused if the broker would not start with it, or if Kafka does not make it while a broker runs: numbers of
threads by more than half or double, the protocol of a listener that there is, its settings but for stores of TLS.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from random import Random
from typing import Final

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.config_entries import BrokerSettings
from kce.broker_stub.ports import NoTls, TlsPort
from kce.broker_stub.security.password_encoder import PasswordEncoder
from kce.extras import MissingExtra
from kce.wire.configuration import TLS_STORES, ConfigError, ConfigType, Properties, broker_config

log = logging.getLogger(__name__)

#: of the whole broker
_POOLS: Final = ("background.threads", "num.io.threads", "num.recovery.threads.per.data.dir", "num.replica.fetchers")
#: what a listener may change while it is there
#: the local retention of a log is that of the whole
_AS_WHOLE: Final = -2
_LIMITS: Final = ("max.connections", "max.connection.creation.rate")
_OF_LISTENER: Final = frozenset({*_LIMITS, "num.network.threads"}) | TLS_STORES


class DynamicConfig:
    """``current`` is in effect, ``by_source`` says where it comes from. ``is_started``: a change is no part of the
    broker's start any more."""

    def __init__(self, config: BrokerConfig, random: Random, tls: TlsPort | None = None) -> None:
        """``random`` encodes passwords."""
        self.current = config
        self.by_source = BrokerSettings(config.originals)
        self._random = random
        self.is_started = False
        self._tls = tls or NoTls()

    def decoded(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Settings as they are stored, with their passwords decoded, but for those whose value cannot be."""
        plain = {}
        for name, value in stored.items():
            known = broker_config(name)
            try:
                if known is not None:
                    known.parse(value)
                plain[name] = self._encoder().decode(value) if is_password(name) else value
            except (ValueError, MissingExtra) as e:  # ConfigError is one
                log.error("the dynamic setting %s is ignored: %s", name, e)
        return plain

    def encoded(self, plain: Mapping[str, str]) -> dict[str, str]:
        """Settings as they are stored. Raises ConfigError if a password cannot be."""
        try:
            return {
                name: self._encoder().encode(value, self._random) if is_password(name) else value
                for name, value in plain.items()
            }
        except MissingExtra as e:
            raise ConfigError(str(e)) from None

    def _encoder(self) -> PasswordEncoder:
        """Raises ConfigError."""
        encoder = self.current.password_encoder
        if encoder is None:
            raise ConfigError("Password encoder secret not configured")
        return encoder

    def check(self, dynamic: Mapping[str, str]) -> None:
        """Raises ConfigError for dynamic settings that AlterConfigs is to refuse."""
        then = self.current.changed(dynamic)
        if self.is_started:
            try:
                check_numbers(self.current, then)
                check_listeners(self.current, then)
                check_local_retention(Properties(self.current.properties), Properties(then.properties))
                self._tls.check(then.security)
            except ConfigError as e:
                raise _invalid(e) from None

    def change(self, dynamic: Mapping[str, str]) -> None:
        """These are the dynamic settings from now on. Raises ConfigError, and then nothing has changed.

        They are stored already: numbers of threads are not held to half or double of those that there are.
        """
        then = self.current.changed(dynamic)
        if self.is_started:
            check_listeners(self.current, then)
        self._tls.use(then.security)
        self.current = then

    def reload_stores(self) -> None:
        """Read the files of TLS again, which may be others. Raises ConfigError, and then the old certificates stay."""
        self._tls.reload()


def is_password(name: str) -> bool:
    known = broker_config(name)
    return known is not None and known.type is ConfigType.PASSWORD


def check_numbers(now: BrokerConfig, then: BrokerConfig) -> None:
    """Of threads and connections. Raises ConfigError."""
    read_now, read_then = Properties(now.properties), Properties(then.properties)
    for name in _POOLS:
        _check_threads(name, read_now.integer(name), read_then.integer(name))
    _check_cleaner_threads(read_now.integer("log.cleaner.threads"), read_then.integer("log.cleaner.threads"))
    for listener in now.num_network_threads.keys() & then.num_network_threads.keys():
        for name in _LIMITS:  # rules B1.47, B1.50
            limit = read_then.listener_integer(listener, name)
            if limit <= 0 and limit != read_now.listener_integer(listener, name):
                raise ConfigError(f"Invalid {name} {limit}")
        if listener != now.control_plane_listener_name:
            threads = now.num_network_threads[listener], then.num_network_threads[listener]
            _check_threads("num.network.threads", *threads)


def check_local_retention(now: Properties, then: Properties) -> None:
    """Of logs with remote parts, if it changes: not more than there is altogether. Raises ConfigError."""
    for unit, whole_now, whole in (
        ("ms", _retention_ms(now), _retention_ms(then)),
        ("bytes", now.integer("log.retention.bytes"), then.integer("log.retention.bytes")),
    ):
        name = f"log.local.retention.{unit}"
        local = then.integer(name)
        if whole < 0 or local == _AS_WHOLE or (now.integer(name), whole_now) == (local, whole):
            continue
        if local == -1:
            problem = f"must not be -1 as log.retention.{unit} value is set as {whole}."
        elif local > whole:
            problem = f"must not be more than log.retention.{unit} property value: {whole}"
        else:
            continue
        raise ConfigError(f"Invalid value {local} for configuration {name}: Value {problem}")


def _retention_ms(read: Properties) -> int:
    """The finest unit counts."""
    if read.given("log.retention.ms") is not None:
        return read.integer("log.retention.ms")
    if read.given("log.retention.minutes") is not None:
        return read.integer("log.retention.minutes") * 60_000
    return read.integer("log.retention.hours") * 3_600_000


def check_listeners(now: BrokerConfig, then: BrokerConfig) -> None:
    """Of those that stay, neither protocol nor settings change (rule B1.57). Raises ConfigError."""
    protocols = {endpoint.listener: endpoint.security_protocol for endpoint in then.listeners}
    for listener, protocol, *_ in now.listeners:
        if listener not in protocols:
            continue
        if _fixed(now, listener) != _fixed(then, listener):
            raise ConfigError(
                f"Configs cannot be updated dynamically for existing listener ListenerName({listener}), restart broker "
                "or create a new listener for update"
            )
        if protocols[listener] != protocol:
            raise ConfigError(f"Security protocol cannot be updated for existing listener ListenerName({listener})")


def _fixed(config: BrokerConfig, listener: str) -> dict[str, str]:
    """The settings of a listener's own that do not change while it is there."""
    prefix = f"listener.name.{listener.lower()}."
    own = {name.removeprefix(prefix): text for name, text in config.properties.items() if name.startswith(prefix)}
    return {name: text for name, text in own.items() if name not in _OF_LISTENER}


def _check_threads(name: str, now: int, wanted: int) -> None:
    """Rule B1.10."""
    if wanted == now:
        return
    problem = None
    if wanted < 1:
        problem = "value should be at least 1"
    elif wanted < now // 2:
        problem = f"value should be at least half the current value {now}"
    elif wanted > now * 2:
        problem = f"value should not be greater than double the current value {now}"
    if problem is not None:
        raise ConfigError(f"Dynamic thread count update validation failed for {name}={wanted}, {problem}")


def _check_cleaner_threads(now: int, wanted: int) -> None:
    if wanted < now // 2:
        raise ConfigError(f"Log cleaner threads cannot be reduced to less than half the current value {now}")
    if wanted > now * 2:
        raise ConfigError(f"Log cleaner threads cannot be increased to more than double the current value {now}")


def _invalid(error: ConfigError) -> ConfigError:
    """Kafka puts the error in the place of the value, and a text in that of the name."""
    return ConfigError(
        str(error),
        f"Invalid value org.apache.kafka.common.config.ConfigException: {error.words} "
        "for configuration Invalid dynamic configuration",
    )
