"""`kce broker`: one broker from a server.properties file of Kafka's."""

from __future__ import annotations

from pathlib import Path

import click

from kce.harness.cli.options import log_level_option, properties, properties_of_file
from kce.harness.cli.serving import serve_node

EPILOG = """\b
Examples:
  kce broker --config server.properties
  kce broker --config server.properties --override broker.id=1 \\
      --override listeners=PLAINTEXT://:9093 --override log.dirs=/tmp/kafka-logs-1
  kce broker --config server.properties --override zookeeper.connect=zk:2181/kafka

\b
The file is that of a Kafka 3.9 distribution (config/server.properties, ZooKeeper mode), as it is. What matters most:
  zookeeper.connect     the cluster that it joins, beside real brokers, too; Kafka's file has localhost:2181
  broker.id             its number; without one it gets a free one
  listeners             where it listens; by default PLAINTEXT://:9092, and without a host on 127.0.0.1 only
  advertised.listeners  what clients and brokers connect to, if that is another address
  log.dirs              its records; without them they are kept in memory

Like Kafka's, it contends for controller. A setting that Kafka does not have, or that has no effect here, is a warning
with the nearest name that there is; an impossible value ends the command with one line and exit code 2. Settings may
change while it runs, with kafka-configs. docs/configuration.md lists all of them and what they do here.

For a whole cluster with its ZooKeeper there is `kce up`, which takes such a file, too.
"""


@click.command(epilog=EPILOG)
@click.option(
    "--config", required=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Kafka's server.properties.",
)  # fmt: skip
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE",
    help="A property that overrides the file's, as for kafka-server-start. Repeatable.",
)  # fmt: skip
@log_level_option
def broker(config: Path, overrides: tuple[str, ...], log_level: str) -> int:
    """Run one broker until Ctrl-C, which shuts it down as Kafka does: its leaders move away first. That may take some
    seconds where there is no controller; a second Ctrl-C gives it up.

    The exit code is 0 then; it is 1 if the broker cannot start or cannot go on, 2 for a setting that cannot be.
    """
    settings = properties_of_file(config, properties(overrides, "--override"))
    return serve_node(
        settings, log_level,
        lambda node: f"Broker {node.id} is up: {', '.join(map(str, node.broker.endpoints))}.",
    )  # fmt: skip
