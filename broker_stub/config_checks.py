"""Settings that depend on each other: what Kafka's KafkaConfig refuses when a broker starts. Pure."""

from __future__ import annotations

from ipaddress import ip_address

from kce.wire.configuration import ConfigError, Properties
from kce.wire.metadata_version import MetadataVersion
from kce.wire.vocabulary import Endpoint

#: of the buffer, for each thread of the cleaner
_LEAST_DEDUPE_BYTES = 1024 * 1024


def check_combinations(read: Properties) -> None:
    """Raises ConfigError."""
    _check_node_id(read)
    _check_retention(read)
    _check_cleaner(read)
    _check_replica_waits(read)
    _check_authentication_delay(read)
    _check_message_format(read)


def _check_node_id(read: Properties) -> None:
    node, broker = read.integer("node.id"), read.integer("broker.id")
    if None not in (read.given("node.id"), read.given("broker.id")) and node != broker:
        raise read.refusal("node.id", f"must be {broker}, which is broker.id")


def _check_retention(read: Properties) -> None:
    for key in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if read.given(key) is not None:  # the finest unit counts
            if read.integer(key) == 0:
                raise ConfigError(
                    f"{key}=0: must be unlimited (-1) or at least 1",
                    "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
                )
            return


def _check_cleaner(read: Properties) -> None:
    key, threads = "log.cleaner.dedupe.buffer.size", read.integer("log.cleaner.threads")
    if threads == 0:
        raise read.refusal("log.cleaner.threads", "must be at least 1")
    if read.integer(key) // threads <= _LEAST_DEDUPE_BYTES:
        raise ConfigError(
            f"{key}={read.integer(key)}: must be more than {_LEAST_DEDUPE_BYTES} for each cleaner thread",
            f"requirement failed: {key} must be at least 1MB per cleaner thread.",
        )


def _check_replica_waits(read: Properties) -> None:
    wait = read.integer("replica.fetch.wait.max.ms")
    for key in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if wait > read.integer(key):
            raise ConfigError(f"{key}={read.integer(key)}: must be at least replica.fetch.wait.max.ms, which is {wait}")


def _check_authentication_delay(read: Properties) -> None:
    key, other = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    delay, idle = read.integer(key), read.integer(other)
    if 0 <= idle <= delay:
        raise ConfigError(f"{key}={delay}: must be less than {other}, which is {idle}")


def _check_message_format(read: Properties) -> None:
    """Rule B3.23."""
    key = "log.message.format.version"
    protocol, wanted = version_of(read, "inter.broker.protocol.version"), version_of(read, key)
    if protocol.record_version < wanted.record_version:
        raise ConfigError(f"{key}={wanted}: must be at most {protocol}, which is inter.broker.protocol.version")


def version_of(read: Properties, key: str) -> MetadataVersion:
    """Raises ConfigError."""
    try:
        return MetadataVersion.parse(read.required(key))
    except ValueError as e:
        raise read.refusal(key, str(e)) from None


def may_share_port(endpoints: list[Endpoint]) -> bool:
    """Two listeners may have one port, one with an IPv4 and one with an IPv6 address."""
    try:
        return sorted(ip_address(e.host).version for e in endpoints) == [4, 6]
    except ValueError:
        return False
