"""What changes a running cluster on command: one declaration for the command line, the socket and HTTP.

`Cluster` has the methods, `kce.harness.commands` calls them, `kce.harness.cli.nodes` and `kce.harness.http_api` make
commands and routes of this table. It imports nothing of the project, so that commands start fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

#: the arguments that there are: their type, and what a path of HTTP may have
ARGUMENTS: Final[Mapping[str, tuple[type, str]]] = {
    "node": (int, r"\d{1,10}"),
    "topic": (str, r"[^/]+"),
    "partition": (int, r"\d{1,10}"),
    "broker": (int, r"\d{1,10}"),
    "source": (int, r"\d{1,10}"),
    "to": (int, r"\d{1,10}"),
    "epoch": (int, r"\d{1,10}"),
    "dir": (str, r"[^/]+"),
    "seconds": (float, r"[-+.\d]+"),
}


@dataclass(frozen=True)
class Action:
    """``words`` are the command after `kce`, and its name on the socket. ``call`` is a method of `Cluster`; its
    arguments are those named in ``arguments``, in that order. ``path`` is HTTP's; arguments that it does not name are
    fields of the body. ``done`` is a sentence about what was done, and may name the method's ``result``. ``summary`` is
    a line of help, ``more`` the rest of it.
    """

    words: str
    arguments: tuple[str, ...]
    call: str
    path: str
    done: str
    summary: str
    more: str = ""
    method: str = "POST"

    @property
    def help(self) -> str:
        return f"{self.summary} {self.more}".strip()

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches paths of HTTP, with a group for each argument in them."""
        return re.compile(re.sub(r"{(\w+)}", lambda found: f"(?P<{found[1]}>{ARGUMENTS[found[1]][1]})", self.path))

    def values(self, given: Mapping[str, Any]) -> list[Any] | None:
        """The values of the arguments; None if one is missing or of another type. A whole number may be a float."""
        found = [given.get(name) for name in self.arguments]
        found = [
            float(value) if type(value) is int and ARGUMENTS[name][0] is float else value
            for name, value in zip(self.arguments, found, strict=True)
        ]
        fits = all(type(value) is ARGUMENTS[name][0] for name, value in zip(self.arguments, found, strict=True))
        return found if fits else None


def _of_node(name: str, call: str, done: str, summary: str, more: str = "") -> Action:
    return Action(name, ("node",), call, f"/nodes/{{node}}/{name}", f"node {{node}} is {done}", summary, more)


_ISR: Final = ("topic", "partition", "broker")

ACTIONS: Final = (
    _of_node(
        "kill", "kill", "killed", "Kill a node of the running cluster (kill -9).",
        "ZooKeeper notices when its session expires.",
    ),
    _of_node("pause", "pause", "paused", "Suspend a node (SIGSTOP).", "After its session timeout it is a zombie."),
    _of_node("resume", "resume", "resumed", "Resume a paused node (SIGCONT)."),
    _of_node(
        "restart", "restart", "restarted", "Stop a node if it runs, then start it.",
        "It stops with controlled shutdown, and starts on its old ports.",
    ),
    _of_node(
        "bounce", "bounce", "bounced", "Kill a node and start it again at once.",
        "Its session expires at once, and it registers with a new broker epoch.",
    ),
    _of_node(
        "expire", "expire_session", "without its ZooKeeper session", "Expire the ZooKeeper session of a node.",
        "It loses its registration, and registers again unless it is dead, paused or cut off.",
    ),
    _of_node(
        "cut", "cut_from_zookeeper", "cut off from ZooKeeper", "Cut a node off from ZooKeeper.",
        "Its session expires unless `kce heal` comes first.",
    ),
    _of_node("heal", "heal", "connected to ZooKeeper", "Connect a node to ZooKeeper again."),
    _of_node(
        "hold", "hold_control_requests", "held back: its control requests wait", "Hold the control requests of a node.",
        "After another is elected they are a zombie's.",
    ),
    _of_node("release", "release_control_requests", "released", "Release the held control requests of a node."),
    Action(
        "delete-controller", (), "delete_controller", "/controller", "/controller is deleted",
        "Delete /controller by hand.", "The nodes elect a new controller.", method="DELETE",
    ),
    Action(
        "rewrite-controller", ("node",), "rewrite_controller", "/controller", "/controller names node {node}",
        "Write another node's id into /controller, without an election.",
        "The controller resigns, and that node believes that it is controller, but has not taken over, until "
        "`kce delete-controller`.", method="PUT",
    ),
    Action(
        "delete-controller-epoch", (), "delete_controller_epoch", "/controller-epoch", "/controller_epoch is deleted",
        "Delete /controller_epoch by hand.",
        "What the controller writes is refused until `kce delete-controller`; the next one begins with epoch 1.",
        method="DELETE",
    ),
    Action(
        "rewrite-controller-epoch", ("epoch",), "rewrite_controller_epoch", "/controller-epoch",
        "/controller_epoch is {epoch}", "Rewrite /controller_epoch by hand.",
        "What the controller writes is refused until `kce delete-controller`; the next one has the epoch after this.",
        method="PUT",
    ),
    Action(
        "two-controllers", (), "second_controller", "/controller/second",
        "node {result.id} believes that it is controller, and another is elected",
        "Cut the controller off from ZooKeeper, so that another is elected.",
        "There are two until `kce heal` connects the first one again.",
    ),
    Action(
        "zombie", (), "zombie_controller", "/controller/zombie",
        "node {result.id} is a zombie: its control requests wait for `kce release {result.id}`",
        "Make the controller a zombie: another is elected, and its requests wait.",
        "`kce release` sends them, with an old controller epoch; `kce heal` lets the node find out.",
    ),
    Action(
        "link cut", ("source", "to"), "cut_link", "/links/{source}/{to}/cut",
        "what node {source} sends to node {to} waits",
        "Hold what one node sends to another.", "The other direction stays open: for a full partition cut it, too.",
    ),
    Action(
        "link heal", ("source", "to"), "heal_link", "/links/{source}/{to}/heal",
        "what node {source} sends to node {to} arrives", "Forward again what one node sends to another.",
    ),
    Action(
        "zookeeper delay", ("node", "seconds"), "delay_zookeeper", "/nodes/{node}/zookeeper/delay",
        "what node {node} sends to ZooKeeper takes {seconds} s longer",
        "Delay what a node sends to ZooKeeper by so many SECONDS, until `kce heal`.",
    ),
    Action(
        "zookeeper mute", ("node",), "mute_zookeeper", "/nodes/{node}/zookeeper/mute",
        "what ZooKeeper sends to node {node} does not arrive",
        "Drop what ZooKeeper sends to a node, until `kce heal`.",
        "Its requests are executed, but get no answer. Its client gives up the connection, and its session expires.",
    ),
    Action(
        "zookeeper kill-leader", (), "kill_zookeeper_leader", "/zookeeper/kill-leader",
        "the leader of the ZooKeeper ensemble is killed",
        "Kill the leader of the ZooKeeper ensemble (kill -9).",
        "Needs `kce up --zookeepers 3`: the other servers elect a leader.",
    ),
    Action(
        "zookeeper restart", (), "restart_zookeeper", "/zookeeper/restart", "all ZooKeeper servers run",
        "Start the ZooKeeper servers that were killed.",
    ),
    Action(
        "isr shrink", _ISR, "shrink_isr", "/topics/{topic}/partitions/{partition}/isr/shrink",
        "broker {broker} lags: it has left the ISR of {topic}-{partition}",
        "Make a follower lag, so that it leaves the ISR.",
        "It does not fetch the partition from any leader until `kce isr heal`.",
    ),
    Action(
        "isr heal", _ISR, "heal_isr", "/topics/{topic}/partitions/{partition}/isr/heal",
        "broker {broker} fetches {topic}-{partition} again",
        "Let a lagging follower fetch again and rejoin the ISR.",
    ),
    Action(
        "log-dir fail", ("node", "dir"), "fail_log_dir", "/nodes/{node}/log-dirs/fail",
        "log directory {dir} of node {node} is offline",
        "Fail a log directory of a node, as an I/O error would.",
        "Its partitions are offline there until the node restarts; without its last directory the node halts.",
    ),
    Action(
        "disk fill", ("node",), "fill_disk", "/nodes/{node}/disk/fill", "the disk of node {node} is full",
        "Fill the disk of a node.",
        "Its next write fails, and with it the log directory; without its last directory the node halts.",
    ),
    Action(
        "disk free", ("node",), "free_disk", "/nodes/{node}/disk/free", "the disk of node {node} has space",
        "Free the disk of a node.", "Failed log directories return when the node restarts.",
    ),
    Action(
        "disk slow", ("node", "seconds"), "slow_disk", "/nodes/{node}/disk/slow",
        "the disk of node {node} takes {seconds} s longer",
        "Delay each read, write and flush of a node's disk by so many SECONDS.",
        "Meanwhile the node does nothing else, but keeps its ZooKeeper session. 0 ends the delay.",
    ),
    Action(
        "clock jump", ("node", "seconds"), "jump_clock", "/nodes/{node}/clock/jump",
        "the clock of node {node} has jumped by {seconds} s",
        "Move the wall clock of a node by so many SECONDS.", "A negative number moves it back.",
    ),
)  # fmt: skip

#: the first words of commands of two words, and what their group does
GROUPS: Final = {
    "isr": "Make a follower lag, so that it leaves the ISR.",
    "log-dir": "Fail a log directory of a node.",
    "disk": "Fill, free or slow down the disk of a node.",
    "clock": "Move the clock of a node.",
    "link": "Cut the connections from one node to another.",
    "zookeeper": "Delay or mute ZooKeeper; kill and restart servers of its ensemble.",
}

BY_NAME: Final = {action.words: action for action in ACTIONS}
