"""A broker's settings: Kafka's own property names, defaults and rules, checked once and then fixed.

`BrokerConfig.from_properties` reads what a server.properties file would hold. Each refusal is one line that names the
key, the value and what is allowed. Settings of Kafka's that nothing here uses are accepted silently, so that a real
broker's file can be used as it is; a name that Kafka does not have is warned about.

House rule: a listener without a host is on 127.0.0.1, where Kafka would take every interface (rule B1.14). A stub is
not to be reachable from outside by oversight: who wants that writes 0.0.0.0, and an advertised address with it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker_stub.config_keys import is_known, nearest
from wire.metadata_version import MetadataVersion
from wire.vocabulary import SECURITY_PROTOCOLS, Endpoint

logger = logging.getLogger("broker_stub.config")

SHORT_MAX: Final = 2**15 - 1
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
NO_BROKER_ID: Final = -1
DEFAULT_HOST: Final = "127.0.0.1"
WILDCARD_HOSTS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - named to be refused

_LISTENER: Final = re.compile(r"(?P<name>[^:/]+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*?)\]?:(?P<port>\d+)")

_RESERVED: Final = "reserved.broker.max.id"
_RESERVED_RANGE: Final = (1000, 0)  # the default, and the least

#: keys that promise a limit which is not kept here: silence about them would be a lie
_NOT_OFFERED: Final = ("max.connections", "max.connections.per.ip.overrides", "max.connection.creation.rate")


class ConfigError(ValueError):
    """A setting is not acceptable. The text is one line: key, value, what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings in use; each is named as Kafka names it, units included."""

    broker_id: int  # NO_BROKER_ID: it is found or generated when the broker starts (rule B11.7)
    reserved_broker_max_id: int  # generated ids are above it (rule 1.31)
    log_dirs: tuple[str, ...]  # none unless they are given: Kafka's own default is not ours to write to
    broker_rack: str | None
    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]  # port 0: the port that the listener of that name is bound to
    inter_broker_listener_name: str
    control_plane_listener_name: str | None
    num_network_threads: Mapping[str, int]  # by listener
    num_io_threads: int
    queued_max_requests: int
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int | None  # None: no connection is closed for being idle
    max_connections_per_ip: int
    request_timeout_ms: int
    controller_socket_timeout_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    replica_lag_time_max_ms: int
    inter_broker_protocol_version: MetadataVersion
    num_partitions: int
    default_replication_factor: int
    delete_topic_enable: bool
    originals: Mapping[str, str]  # what was given, used here or not

    @property
    def controller_listener_name(self) -> str:
        """Where a controller talks to this broker, and this broker to the controller (rules 8.28, 9.57)."""
        return self.control_plane_listener_name or self.inter_broker_listener_name

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Raises ConfigError."""
        for key in properties:
            if not is_known(key):
                meant = nearest(key)
                logger.warning("Kafka has no setting %s%s", key, f"; did you mean {meant}?" if meant else "")
        read = _Properties(properties)
        for key in _NOT_OFFERED:
            if read.text(key) not in (None, "", str(INT_MAX)):
                raise read.refusal(key, "this limit is not offered here: leave the setting out")
        protocols = _security_protocols(read)
        listeners = _listeners(read, "listeners", "PLAINTEXT://:9092", protocols)
        advertised = _advertised_listeners(read, listeners, protocols)
        inter_broker = _inter_broker_listener_name(read, advertised)
        return cls(
            broker_id=_broker_id(read),
            reserved_broker_max_id=read.integer(_RESERVED, *_RESERVED_RANGE),
            log_dirs=tuple(read.names("log.dirs") or read.names("log.dir")),
            broker_rack=read.text("broker.rack"),
            listeners=listeners,
            advertised_listeners=advertised,
            inter_broker_listener_name=inter_broker,
            control_plane_listener_name=_control_plane_listener_name(read, advertised, inter_broker),
            num_network_threads={e.listener: _network_threads(read, e.listener) for e in listeners},
            num_io_threads=read.integer("num.io.threads", 8, 1),
            queued_max_requests=read.integer("queued.max.requests", 500, 1),
            socket_request_max_bytes=read.integer("socket.request.max.bytes", 104_857_600, 1),
            socket_listen_backlog_size=read.integer("socket.listen.backlog.size", 50, 1),
            connections_max_idle_ms=_connections_max_idle_ms(read),
            max_connections_per_ip=read.integer("max.connections.per.ip", INT_MAX, 1),
            request_timeout_ms=read.integer("request.timeout.ms", 30_000, 1),
            controller_socket_timeout_ms=read.integer("controller.socket.timeout.ms", 30_000, 1),
            controller_quota_window_num=read.integer("controller.quota.window.num", 11, 1),
            controller_quota_window_size_seconds=read.integer("controller.quota.window.size.seconds", 1, 1),
            controlled_shutdown_enable=read.boolean("controlled.shutdown.enable", default=True),
            controlled_shutdown_max_retries=read.integer("controlled.shutdown.max.retries", 3, 0),
            controlled_shutdown_retry_backoff_ms=read.integer(
                "controlled.shutdown.retry.backoff.ms", 5000, 0, LONG_MAX
            ),
            replica_lag_time_max_ms=_replica_lag_time_max_ms(read),
            inter_broker_protocol_version=_inter_broker_protocol_version(read),
            num_partitions=read.integer("num.partitions", 1, 1),
            default_replication_factor=read.integer("default.replication.factor", 1, 1, SHORT_MAX),
            delete_topic_enable=read.boolean("delete.topic.enable", default=True),
            originals=dict(properties),
        )


class _Properties:
    """Typed reading of Kafka's strings."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def text(self, key: str) -> str | None:
        value = self._properties.get(key)
        return None if value is None else value.strip()

    def refusal(self, key: str, allowed: str) -> ConfigError:
        return ConfigError(f"{key}={self.text(key) or ''}: {allowed}")

    def integer(self, key: str, default: int, least: int, most: int = INT_MAX) -> int:
        text = self.text(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise self.refusal(key, f"a whole number from {least} to {most} is needed")
        return value

    def boolean(self, key: str, *, default: bool) -> bool:
        text = self.text(key)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise self.refusal(key, "true or false is needed")
        return text.lower() == "true"

    def names(self, key: str) -> list[str]:
        return [part.strip() for part in (self.text(key) or "").split(",") if part.strip()]


def _broker_id(read: _Properties) -> int:
    generated = read.boolean("broker.id.generation.enable", default=True)
    most = read.integer(_RESERVED, *_RESERVED_RANGE) if generated else INT_MAX
    if read.text("broker.id") in (None, str(NO_BROKER_ID)):
        if generated:
            return NO_BROKER_ID
        raise read.refusal("broker.id", "an id is needed where broker.id.generation.enable is false")
    allowed_by = ", which is reserved.broker.max.id" if generated else ""  # rule B11.7
    try:
        return read.integer("broker.id", 0, 0, most)
    except ConfigError as e:
        raise ConfigError(f"{e}{allowed_by}") from None


def _network_threads(read: _Properties, listener: str) -> int:
    for_all = read.integer("num.network.threads", 3, 1)
    return read.integer(f"listener.name.{listener.lower()}.num.network.threads", for_all, 1)  # rule B1.2


def _connections_max_idle_ms(read: _Properties) -> int | None:
    key = "connections.max.idle.ms"
    idle = read.integer(key, 600_000, -1, LONG_MAX)
    if idle == 0:
        raise read.refusal(key, "no connection would live: at least 1 is needed, or -1 for no limit")
    return None if idle < 0 else idle


def _replica_lag_time_max_ms(read: _Properties) -> int:
    lag = read.integer("replica.lag.time.max.ms", 30_000, 1, LONG_MAX)
    wait = read.integer("replica.fetch.wait.max.ms", 500, 0)
    if wait > lag:
        raise ConfigError(f"replica.lag.time.max.ms={lag}: must be at least replica.fetch.wait.max.ms, which is {wait}")
    return lag


def _inter_broker_protocol_version(read: _Properties) -> MetadataVersion:
    key = "inter.broker.protocol.version"
    try:
        return MetadataVersion.parse(read.text(key) or "3.9")
    except ValueError as e:
        raise ConfigError(f"{key}={read.text(key)}: {e}") from None


def _security_protocols(read: _Properties) -> dict[str, str]:
    """Listener name -> security protocol; by default each protocol's own name stands for it."""
    key = "listener.security.protocol.map"
    known = tuple(SECURITY_PROTOCOLS.values())
    entries = read.names(key)
    if not entries:
        return {name: name for name in known}
    protocols: dict[str, str] = {}
    for entry in entries:
        name, separator, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not separator or not name or protocol not in known:
            raise read.refusal(key, f"entries are LISTENER:PROTOCOL with one of {', '.join(known)}, not {entry!r}")
        if name in protocols:
            raise read.refusal(key, f"listener {name} stands there twice")
        protocols[name] = protocol
    return protocols


def _listeners(read: _Properties, key: str, default: str, protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    entries = read.names(key) or default.split(",")
    endpoints = tuple(_endpoint(read, key, entry, protocols) for entry in entries)
    _no_two_alike(read, key, "name", [e.listener for e in endpoints])
    if key == "listeners":  # advertised ones may share a port: a proxy's, say
        _no_two_alike(read, key, "port", [e.port for e in endpoints if e.port])
    return endpoints


def _endpoint(read: _Properties, key: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    match = _LISTENER.fullmatch(entry)
    if match is None or int(match["port"]) > 65535:
        raise read.refusal(key, f"entries are LISTENER://HOST:PORT with a port up to 65535, not {entry!r}")
    name = match["name"].upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise read.refusal(key, f"listener {name} has no entry in listener.security.protocol.map")
    if protocol != "PLAINTEXT":
        raise read.refusal(key, f"listener {name} speaks {protocol}; only PLAINTEXT is served so far")
    return Endpoint(name, protocol, match["host"] or DEFAULT_HOST, int(match["port"]))


def _no_two_alike(read: _Properties, key: str, what: str, values: list[str] | list[int]) -> None:
    for value in values:
        if values.count(value) > 1:  # type: ignore[arg-type]  # a list of one kind, asked for its own
            raise read.refusal(key, f"each listener needs a {what} of its own, {value} is there twice")


def _advertised_listeners(
    read: _Properties, listeners: tuple[Endpoint, ...], protocols: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    key = "advertised.listeners"
    advertised = _listeners(read, key, "", protocols) if read.names(key) else listeners
    own = [e.listener for e in listeners]
    for endpoint in advertised:
        if endpoint.listener not in own:
            raise read.refusal(key, f"listener {endpoint.listener} is not among those of listeners ({', '.join(own)})")
        if endpoint.host in WILDCARD_HOSTS:
            raise read.refusal(key, f"{endpoint.host} is nowhere to connect to: advertise an address others can reach")
    return advertised


def _inter_broker_listener_name(read: _Properties, advertised: tuple[Endpoint, ...]) -> str:
    key, other = "inter.broker.listener.name", "security.inter.broker.protocol"
    if read.text(key) and read.text(other):
        raise read.refusal(key, f"set only one of {key} and {other}")
    used = key if read.text(key) else other
    name = (read.text(used) or "PLAINTEXT").upper()
    return _one_of(read, key if used == key or read.text(other) is None else other, name, advertised)


def _control_plane_listener_name(
    read: _Properties, advertised: tuple[Endpoint, ...], inter_broker: str
) -> str | None:  # rule 9.63
    key = "control.plane.listener.name"
    if not read.text(key):
        return None
    name = _one_of(read, key, (read.text(key) or "").upper(), advertised)
    if name == inter_broker:
        raise read.refusal(key, "must differ from the inter-broker listener")
    return name


def _one_of(read: _Properties, key: str, name: str, advertised: tuple[Endpoint, ...]) -> str:
    names = [e.listener for e in advertised]
    if name not in names:
        raise ConfigError(f"{key}={name}: must be one of the advertised listeners ({', '.join(names)})")
    return name
