"""Options and helpers that several commands share."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kce.captures.exchanges.ports import NO_PORTS, Ports, listener_ports
from kce.harness.errors import HarnessError

if TYPE_CHECKING:  # commands that read captures need neither nodes nor ZooKeeper
    from rich.console import Console

    from kce.zookeeper.kafka_zk_client import KafkaZkClient
    from kce.zookeeper.store.kazoo import KazooStore

CONNECTION_TIMEOUT_MS = 6_000

F = TypeVar("F", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A range without nan and infinity: nan is in every range of click, and neither is a time to wait."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found:g} is not a finite number.", param, ctx)
        return found


def parsed(parse: Callable[[str], int]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that parses an option's values; a ValueError of ``parse`` is a usage error."""

    def convert(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(text) for text in value)
            return None if value is None else parse(value)
        except ValueError as e:
            raise click.BadParameter(str(e)) from None

    return convert


def check_span(since_ns: int | None, until_ns: int | None) -> None:
    """Raises UsageError for --since and --until between which there is no time."""
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise click.UsageError("--since must be before --until")


def cluster_option(function: F) -> F:
    return click.option(
        "--cluster",
        "cluster_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="NAME|FILE",
        help="The cluster of `kce up --name NAME`, its pid, or the file that `kce up --ready-file FILE` wrote. Not "
        "needed if only one cluster of yours is running.",
    )(function)


def zookeeper_option(function: F) -> F:
    return click.option(
        "--zookeeper",
        metavar="HOST:PORT[/CHROOT]",
        help="Use this ZooKeeper instead of that of a running `kce up`.",
    )(function)


def http_port_option(function: F) -> F:
    return click.option(
        "--http-port", type=click.IntRange(0, 65535),
        help="Serve commands over HTTP (docs/http.md) on this port of 127.0.0.1; 0 is a free one. --ready-file has the "
        "address and the token.",
    )(function)  # fmt: skip


def json_option(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True,
        help="When ready, print what --ready-file has as one line of JSON, and all else on stderr.",
    )(function)  # fmt: skip


def command_config_option(function: F) -> F:
    """Add ``--command-config``, as Kafka's tools have it."""
    return click.option(
        "--command-config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="Kafka's client properties: security.protocol, ssl.*, sasl.mechanism, sasl.jaas.config.",
    )(function)  # fmt: skip


def settings_options(function: F) -> F:
    """Add the options that ``node_settings`` reads."""
    function = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A Kafka property for every node. Repeatable."
    )(function)
    return click.option(
        "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="A server.properties file for every node; --set overrides it.",
    )(function)  # fmt: skip


def log_level_option(function: F) -> F:
    """Add ``--log-level``."""
    return click.option(
        "--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING"]), default="INFO", show_default=True,
        help="Of the nodes' logs.",
    )(function)  # fmt: skip


#: settings of a file that the cluster sets for each node
_OF_THE_CLUSTER = ("broker.id", "listeners", "advertised.listeners", "zookeeper.connect", "log.dir", "log.dirs")


def node_settings(config: Path | None, settings: Iterable[str]) -> dict[str, str]:
    """The properties of the file, without those that differ by node, and of the options.

    Raises HarnessError for the file, UsageError for the options.
    """
    found = {}
    if config is not None:
        found = properties_of_file(config)
        for key in _OF_THE_CLUSTER:
            if found.pop(key, None) is not None:
                click.echo(f"kce: warning: {config}: {key} is ignored: each node gets its own", err=True)
    given = properties(settings)
    for key, instead in (("broker.id", "each node gets its own"), ("zookeeper.connect", "use --zookeeper")):
        if key in given:
            raise click.UsageError(f"--set {key}={given[key]}: {instead}")
    return found | given


def properties_of_file(config: Path, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """A server.properties file and what overrides it, with the values of their variables.

    Raises HarnessError if it cannot be read, ConfigError for what cannot be.
    """
    from kce.harness.config_providers import resolved
    from kce.wire.configuration.property_file import parse_properties

    try:
        text = config.read_text(encoding="latin-1")
    except OSError as e:
        raise HarnessError(f"{config} cannot be read: {e.strerror or e}") from None
    return resolved(parse_properties(text) | dict(overrides or {}))


def port_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int]:
    """A callback for ``9092,9093``."""
    if not value:
        return []
    try:
        ports = [int(text) for text in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of ports, such as 9092,9093") from None
    if not all(0 < port < 65_536 for port in ports):
        raise click.BadParameter(f"{value!r}: ports are from 1 to 65535")
    return ports


def _listener_ports(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Ports:
    try:
        return listener_ports(value) if value else NO_PORTS
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


def ports_option(function: F) -> F:
    return click.option(
        "--ports", callback=_listener_ports, metavar="PORT[=PLANE],...",
        help="The brokers' ports, optionally with their plane, control or data; other connections are left out. "
        "Usually not needed: Kafka traffic is recognised.",
    )(function)  # fmt: skip


def print_utf8() -> None:
    """What is printed is in UTF-8 from here on, whatever the locale says: JSON is, and HTML says so.

    Bytes of a file's name that are not UTF-8 are escaped, in the way that JSON has.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def plain_console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr, that does not wrap lines where that is not a terminal."""
    from rich.console import Console  # here, and in others: slow to import, and few commands need it

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 500)


def properties(settings: Iterable[str], option: str = "--set") -> dict[str, str]:
    """``key=value`` texts as a mapping. Raises UsageError, which names the ``option``."""
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} {setting}: not KEY=VALUE, as in {option} num.io.threads=4")
        found[key.strip()] = value.strip()
    return found


def _zookeeper_of(zookeeper: str | None, cluster_file: Path | None) -> str:
    """The given ZooKeeper, or that of the running cluster. Raises HarnessError."""
    from kce.harness.running import find_cluster

    return zookeeper or str(find_cluster(cluster_file)["zookeeper"])


@contextlib.asynccontextmanager
async def connected_store(
    zookeeper: str | None, cluster_file: Path | None, *, session_timeout_ms: int = 10_000, create_chroot: bool = True
) -> AsyncIterator[KazooStore]:
    """A session at the given ZooKeeper, or at that of the running cluster. Raises HarnessError."""
    from kce.zookeeper.store import StoreUnavailable
    from kce.zookeeper.store.kazoo import KazooStore

    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    try:
        store = await KazooStore.connect(
            _zookeeper_of(zookeeper, cluster_file),
            session_timeout_ms=session_timeout_ms,
            connection_timeout_ms=CONNECTION_TIMEOUT_MS,
            create_chroot=create_chroot,
        )
    except StoreUnavailable as e:
        raise HarnessError(str(e)) from None
    try:
        yield store
    finally:
        await store.aclose()


@contextlib.asynccontextmanager
async def connected(zookeeper: str | None, cluster_file: Path | None) -> AsyncIterator[KafkaZkClient]:
    """A client for the znodes of an existing Kafka cluster. Raises HarnessError, also if there is none."""
    from kce.zookeeper.kafka_zk_client import KafkaZkClient
    from kce.zookeeper.znodes import BROKER_IDS

    where = _zookeeper_of(zookeeper, cluster_file)
    async with connected_store(where, None, create_chroot=False) as store:
        if (await store.exists([BROKER_IDS]))[0] is None:
            raise HarnessError(f"there is no Kafka cluster in ZooKeeper at {where}: it has no {BROKER_IDS}")
        yield KafkaZkClient(store, now_ms=lambda: time.time_ns() // 1_000_000, new_uuid=uuid.uuid4)
