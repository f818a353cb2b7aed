"""`kce controller`: one controller for a cluster of other brokers, real ones for example."""

from __future__ import annotations

from pathlib import Path

import click

from kce.harness.cli.options import log_level_option, node_settings, settings_options
from kce.harness.cli.serving import serve_node
from kce.harness.node import CONTROLLER_ONLY

EPILOG = """\b
Examples:
  kce controller --zookeeper 127.0.0.1:2181                      beside brokers whose listener is PLAINTEXT
  kce controller --zookeeper zk:2181/kafka --listener DATA --control-listener CONTROL
  kce controller --zookeeper zk:2181 --set inter.broker.protocol.version=2.8

The node registers in /brokers/ids so that brokers reach it for AlterPartition and ControlledShutdown. As controller it
never gives itself replicas, and moves those that a real broker places on it, as of __consumer_offsets, to brokers.

To a real Kafka controller it is a broker like any other. While one is active, new topics may have replicas on this
node, which keeps their records in memory unless log.dirs is set. Such replicas stay, also under this controller, until
they are reassigned. To be safe, start it before the brokers, so that it is the first controller, or give topics their
replicas.
"""


@click.command(epilog=EPILOG)
@click.option("--zookeeper", required=True, metavar="HOST:PORT[/CHROOT]", help="The ZooKeeper of the cluster.")
@click.option("--id", "node_id", type=click.IntRange(0), default=1000, show_default=True, help="The node's broker id.")
@click.option(
    "--listener", default="PLAINTEXT", show_default=True, metavar="NAME",
    help="The brokers' inter.broker.listener.name.",
)  # fmt: skip
@click.option("--control-listener", metavar="NAME", help="The brokers' control.plane.listener.name, if they have one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on and to advertise.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the listener; 0 is a free one.")
@settings_options
@log_level_option
def controller(
    zookeeper: str,
    node_id: int,
    listener: str,
    control_listener: str | None,
    host: str,
    port: int,
    config: Path | None,
    settings: tuple[str, ...],
    log_level: str,
) -> int:
    """Contend for controller in a cluster of other brokers until Ctrl-C.

    While it is active it drives them: elections, topics, reassignments. It gets no replicas.
    """
    names = [listener, *([control_listener] if control_listener else [])]
    properties = {
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        **node_settings(config, settings),
        "broker.id": str(node_id),
        "zookeeper.connect": zookeeper,
        "listeners": ",".join(f"{name}://{host}:{port if name == listener else 0}" for name in names),
        "inter.broker.listener.name": listener,
        CONTROLLER_ONLY: "true",
    }
    if control_listener:
        properties["control.plane.listener.name"] = control_listener
    return serve_node(properties, log_level, lambda node: f"Node {node.id} contends for /controller.")
