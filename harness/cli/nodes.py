"""`kce kill | pause | resume | restart | cut | heal | hold | release NODE`, and `kce delete-controller`."""

from __future__ import annotations

from pathlib import Path

import click

from kce.harness.cli.options import cluster_option
from kce.harness.running import command, find_cluster


def _of_node(name: str, help_text: str) -> click.Command:
    @click.command(name, help=help_text)
    @click.argument("node", type=int)
    @cluster_option
    def run(node: int, cluster_file: Path | None) -> int:
        click.echo(command(find_cluster(cluster_file), name, node)["text"])
        return 0

    return run


kill = _of_node("kill", "Kill a node of the running cluster (kill -9). ZooKeeper notices when its session expires.")
pause = _of_node("pause", "Suspend a node (SIGSTOP). After its session timeout it is a zombie.")
resume = _of_node("resume", "Resume a paused node (SIGCONT).")
restart = _of_node("restart", "Stop a node with controlled shutdown if it is running, then start it on its old ports.")
cut = _of_node("cut", "Cut a node off from ZooKeeper. Its session expires unless `kce heal` comes first.")
heal = _of_node("heal", "Connect a node to ZooKeeper again.")
hold = _of_node("hold", "Hold the control requests of a node. After another is elected they are a zombie's.")
release = _of_node("release", "Release the held control requests of a node.")


@click.command("delete-controller")
@cluster_option
def delete_controller(cluster_file: Path | None) -> int:
    """Delete /controller by hand: the nodes elect a new controller."""
    click.echo(command(find_cluster(cluster_file), "delete-controller")["text"])
    return 0
