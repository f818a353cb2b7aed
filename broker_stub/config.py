"""A broker's configuration under Kafka's names, with Kafka's defaults and rules; checked once, then immutable.

`BrokerConfig.from_properties` takes the content of a server.properties file. An error is one line: key, value, what is
allowed. A key without effect logs a warning, so that a real broker's file works; one that promises a limit or a
protection that does not exist here is an error.

A listener without a host binds 127.0.0.1, where Kafka binds every interface (rule B1.14), so that a stub is not
reachable from outside by accident. To expose it, configure 0.0.0.0 and an advertised address.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kce.broker_stub.config_checks import check_combinations, may_share_port, version_of
from kce.broker_stub.connection_limits import ConnectionLimits
from kce.broker_stub.group_config import GroupConfig
from kce.broker_stub.security.authorizer import AuthorizerConfig
from kce.broker_stub.security.config import ListenerSecurity, has_own_client_auth, listener_security
from kce.broker_stub.security.password_encoder import PasswordEncoder
from kce.broker_stub.security.tokens import TokenConfig
from kce.broker_stub.transaction_config import TransactionConfig
from kce.wire.configuration import ConfigError, Properties, list_of
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import SECURITY_PROTOCOLS, Endpoint

log = logging.getLogger(__name__)

NO_BROKER_ID: Final = -1
DEFAULT_HOST: Final = "127.0.0.1"
#: must not be advertised, unlike ::, as with Kafka
WILDCARD_HOST: Final = "0.0.0.0"  # noqa: S104 - never bound by default

_LISTENER: Final = re.compile(r"(?P<name>[^:/]+)://\[?(?P<host>[0-9a-zA-Z\-%._:]*?)\]?:(?P<port>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Each setting has Kafka's name, with underscores."""

    broker_id: int  # NO_BROKER_ID: found or generated at startup (rule B11.7)
    reserved_broker_max_id: int  # generated ids are greater (rule 1.31)
    alter_log_dirs_replication_quota_window_num: int
    alter_log_dirs_replication_quota_window_size_seconds: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    log_dirs: tuple[str, ...]  # empty unless configured: Kafka's default is not used
    broker_rack: str | None
    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...]  # port 0: the bound port of the listener
    inter_broker_listener_name: str
    control_plane_listener_name: str | None
    num_network_threads: Mapping[str, int]  # by listener
    num_io_threads: int
    queued_max_requests: int
    queued_max_request_bytes: int | None  # None: no limit
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int | None  # None: no limit
    connection_limits: ConnectionLimits
    security: Mapping[str, ListenerSecurity]  # by listener
    request_timeout_ms: int
    controller_socket_timeout_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    inter_broker_protocol_version: MetadataVersion
    auto_create_topics_enable: bool
    num_partitions: int
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    num_replica_fetchers: int
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None  # None: clients read from leaders
    replica_socket_timeout_ms: int
    groups: GroupConfig
    transactions: TransactionConfig
    authorizer: AuthorizerConfig | None  # None: everything is allowed
    tokens: TokenConfig | None  # None: there are no delegation tokens
    password_encoder: PasswordEncoder | None  # None: passwords cannot change while the broker runs
    originals: Mapping[str, str]  # the properties as given
    dynamic: Mapping[str, str] = field(default_factory=dict)  # what AlterConfigs has set

    @property
    def controller_listener_name(self) -> str:
        """The listener for requests between this broker and the controller (rules 8.28, 9.57)."""
        return self.control_plane_listener_name or self.inter_broker_listener_name

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> BrokerConfig:
        """Raises ConfigError."""
        for warning in Properties(properties).check():
            log.warning("%s", warning)
        made = cls._of(properties)
        for warning in made._warnings():
            log.warning("%s", warning)
        return made

    def _warnings(self) -> Iterator[str]:
        """Kafka's, of settings that do less than one may think."""
        read = Properties(self.originals)
        client_auth = read.text("ssl.client.auth")
        for endpoint in self.listeners if client_auth != "none" else ():
            if endpoint.security_protocol == "SASL_SSL" and not has_own_client_auth(read, endpoint.listener):
                yield (  # rule B9.3
                    f"ssl.client.auth={client_auth} has no effect on listener {endpoint.listener}, which is SASL_SSL: "
                    f"it needs listener.name.{endpoint.listener.lower()}.ssl.client.auth"
                )

    def changed(self, dynamic: Mapping[str, str]) -> BrokerConfig:
        """With other dynamic settings over the properties as given. Raises ConfigError."""
        properties = {**self.originals, **dynamic}
        Properties(properties).check(suggests=False)  # clients decide how many there are
        return replace(self._of(properties), broker_id=self.broker_id, originals=self.originals, dynamic=dict(dynamic))

    @property
    def properties(self) -> Mapping[str, str]:
        """All of them, the dynamic ones before those of the file."""
        return {**self.originals, **self.dynamic}

    @classmethod
    def _of(cls, properties: Mapping[str, str]) -> BrokerConfig:
        read = Properties(properties)
        check_combinations(read)
        protocols = _security_protocols(read)
        listeners = _listeners(read, "listeners", protocols)
        advertised = _advertised_listeners(read, listeners, protocols)
        inter_broker = _inter_broker_listener_name(read, advertised)
        control_plane = _control_plane_listener_name(read, advertised, inter_broker)
        max_idle_ms = read.integer("connections.max.idle.ms")
        return cls(
            broker_id=_broker_id(read),
            reserved_broker_max_id=read.integer("reserved.broker.max.id"),
            alter_log_dirs_replication_quota_window_num=read.integer("alter.log.dirs.replication.quota.window.num"),
            alter_log_dirs_replication_quota_window_size_seconds=read.integer(
                "alter.log.dirs.replication.quota.window.size.seconds"
            ),
            replication_quota_window_num=read.integer("replication.quota.window.num"),
            replication_quota_window_size_seconds=read.integer("replication.quota.window.size.seconds"),
            log_dirs=_log_dirs(read),
            broker_rack=read.text("broker.rack"),
            listeners=listeners,
            advertised_listeners=advertised,
            inter_broker_listener_name=inter_broker,
            control_plane_listener_name=control_plane,
            num_network_threads={
                e.listener: read.listener_integer(e.listener, "num.network.threads") for e in listeners
            },
            num_io_threads=read.integer("num.io.threads"),
            queued_max_requests=read.integer("queued.max.requests"),
            queued_max_request_bytes=_queued_max_request_bytes(read),
            socket_request_max_bytes=read.integer("socket.request.max.bytes"),
            socket_listen_backlog_size=read.integer("socket.listen.backlog.size"),
            connections_max_idle_ms=None if max_idle_ms < 0 else max_idle_ms,
            connection_limits=ConnectionLimits.from_properties(read, (e.listener for e in listeners)),
            security={
                e.listener: listener_security(
                    read,
                    e.listener,
                    e.security_protocol,
                    is_inter_broker=e.listener in (inter_broker, control_plane),
                )
                for e in listeners
            },
            request_timeout_ms=read.integer("request.timeout.ms"),
            controller_socket_timeout_ms=read.integer("controller.socket.timeout.ms"),
            controller_quota_window_num=read.integer("controller.quota.window.num"),
            controller_quota_window_size_seconds=read.integer("controller.quota.window.size.seconds"),
            controlled_shutdown_enable=read.boolean("controlled.shutdown.enable"),
            controlled_shutdown_max_retries=read.integer("controlled.shutdown.max.retries"),
            controlled_shutdown_retry_backoff_ms=read.integer("controlled.shutdown.retry.backoff.ms"),
            inter_broker_protocol_version=version_of(read, "inter.broker.protocol.version"),
            auto_create_topics_enable=read.boolean("auto.create.topics.enable"),
            num_partitions=read.integer("num.partitions"),
            default_replication_factor=read.integer("default.replication.factor"),
            delete_topic_enable=read.boolean("delete.topic.enable"),
            fetch_max_bytes=read.integer("fetch.max.bytes"),
            max_incremental_fetch_session_cache_slots=read.integer("max.incremental.fetch.session.cache.slots"),
            num_replica_fetchers=read.integer("num.replica.fetchers"),
            replica_fetch_backoff_ms=read.integer("replica.fetch.backoff.ms"),
            replica_fetch_max_bytes=read.integer("replica.fetch.max.bytes"),
            replica_fetch_min_bytes=read.integer("replica.fetch.min.bytes"),
            replica_fetch_response_max_bytes=read.integer("replica.fetch.response.max.bytes"),
            replica_fetch_wait_max_ms=read.integer("replica.fetch.wait.max.ms"),
            replica_lag_time_max_ms=read.integer("replica.lag.time.max.ms"),
            replica_selector_class=read.text("replica.selector.class"),
            replica_socket_timeout_ms=read.integer("replica.socket.timeout.ms"),
            groups=GroupConfig.from_properties(read),
            transactions=TransactionConfig.from_properties(read),
            authorizer=_authorizer(read, properties),
            tokens=TokenConfig.from_properties(read),
            password_encoder=PasswordEncoder.of(read),
            originals=_with_both_ids(properties),
        )


def _with_both_ids(properties: Mapping[str, str]) -> dict[str, str]:
    """broker.id and node.id are each what the other is, if only one of them is set, as in Kafka."""
    given = properties.get("broker.id", properties.get("node.id"))
    return dict(properties) if given is None else {"broker.id": given, "node.id": given, **properties}


def _broker_id(read: Properties) -> int:  # rule B11.7
    broker_id = read.integer("broker.id" if read.given("broker.id") is not None else "node.id")
    if not read.boolean("broker.id.generation.enable"):
        if broker_id == NO_BROKER_ID:
            raise read.refusal("broker.id", "must be at least 0, because broker.id.generation.enable is false")
        return broker_id
    reserved = read.integer("reserved.broker.max.id")
    if broker_id > reserved:
        raise read.refusal("broker.id", f"must be at most {reserved}, which is reserved.broker.max.id")
    return broker_id


def _log_dirs(read: Properties) -> tuple[str, ...]:
    for key in ("log.dirs", "log.dir"):
        text = read.given(key)
        if text is not None:
            found = list_of(text)
            if not found:
                raise read.refusal(key, "must have at least one log directory")
            parts = {(path[0] == "/", *(part for part in path.split("/") if part not in ("", "."))) for path in found}
            if len(parts) < len(found):
                raise read.refusal(key, "must not have a log directory twice")  # rule B6.1
            return tuple(found)
    return ()


def _authorizer(read: Properties, properties: Mapping[str, str]) -> AuthorizerConfig | None:
    found = AuthorizerConfig.from_properties(read)
    own_zookeeper = next((key for key in properties if key.startswith("authorizer.zookeeper.")), None)
    if found is not None and own_zookeeper is not None:
        raise ConfigError(f"{own_zookeeper}={properties[own_zookeeper]}: ACLs are in the broker's ZooKeeper here")
    return found


def _queued_max_request_bytes(read: Properties) -> int | None:
    key, other = "queued.max.request.bytes", "socket.request.max.bytes"
    queued, one = read.integer(key), read.integer(other)
    if queued <= 0:
        return None
    if queued < one:
        raise read.refusal(key, f"must be at least {one}, which is {other}")
    return queued


def _security_protocols(read: Properties) -> dict[str, str]:
    """Listener name -> security protocol."""
    key = "listener.security.protocol.map"
    known = tuple(SECURITY_PROTOCOLS.values())
    protocols: dict[str, str] = {}
    for entry in read.elements(key):
        name, separator, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not separator or not name or protocol not in known:
            raise read.refusal(key, f"{entry!r} is not LISTENER:PROTOCOL with one of {', '.join(known)}")
        if name in protocols:
            raise read.refusal(key, f"listener {name} appears twice")
        protocols[name] = protocol
    return protocols


def _listeners(read: Properties, key: str, protocols: Mapping[str, str]) -> tuple[Endpoint, ...]:
    endpoints = tuple(_endpoint(read, key, entry, protocols) for entry in read.elements(key))
    names = [e.listener for e in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise read.refusal(key, f"each listener needs its own name, but {name} appears twice")
    if not endpoints and read.given(key) is not None:
        raise read.refusal(key, "must have at least one listener")
    if key == "listeners":  # advertised listeners may share the port of a proxy
        ports: dict[int, list[Endpoint]] = {}
        for endpoint in endpoints:
            ports.setdefault(endpoint.port, []).append(endpoint)
        for port, sharing in ports.items():
            if port and len(sharing) > 1 and not may_share_port(sharing):
                raise read.refusal(key, f"each listener needs its own port, but {port} appears twice")
    return endpoints


def _endpoint(read: Properties, key: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    match = _LISTENER.fullmatch(entry)
    if match is None or int(match["port"]) > 65535:
        raise read.refusal(key, f"{entry!r} is not LISTENER://HOST:PORT with a port up to 65535")
    name = match["name"].upper()
    protocol = protocols.get(name)
    if protocol is None:
        raise read.refusal(key, f"listener {name} has no entry in listener.security.protocol.map")
    return Endpoint(name, protocol, match["host"] or DEFAULT_HOST, int(match["port"]))


def _advertised_listeners(
    read: Properties, listeners: tuple[Endpoint, ...], protocols: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    key = "advertised.listeners"
    advertised = _listeners(read, key, protocols) or listeners
    own = [e.listener for e in listeners]
    for endpoint in advertised:
        if endpoint.listener not in own:
            raise read.refusal(key, f"listener {endpoint.listener} is not in listeners ({', '.join(own)})")
        if endpoint.host == WILDCARD_HOST:
            raise read.refusal(key, f"nobody can connect to {endpoint.host}: advertise a reachable address")
    return advertised


def _inter_broker_listener_name(read: Properties, advertised: tuple[Endpoint, ...]) -> str:
    key, other = "inter.broker.listener.name", "security.inter.broker.protocol"
    if read.given(key) == "":
        raise read.refusal(key, "must not be empty")
    if read.given(key) and read.given(other):
        raise read.refusal(key, f"set only one of {key} and {other}")
    used = other if read.given(other) else key
    return _one_of(used, (read.given(used) or read.required(other)).upper(), advertised)


def _control_plane_listener_name(
    read: Properties, advertised: tuple[Endpoint, ...], inter_broker: str
) -> str | None:  # rule 9.63
    key = "control.plane.listener.name"
    given = read.given(key)
    if given is None:
        return None
    name = _one_of(key, given.upper(), advertised)
    if given != name:  # Kafka binds it as a listener of clients, too
        raise read.refusal(key, f"must be written in capitals, as {name}")
    if name == inter_broker:
        raise read.refusal(key, "must differ from the inter-broker listener")
    return name


def _one_of(key: str, name: str, advertised: tuple[Endpoint, ...]) -> str:
    names = [e.listener for e in advertised]
    if name not in names:
        raise ConfigError(f"{key}={name}: must be one of the advertised listeners ({', '.join(names)})")
    return name
