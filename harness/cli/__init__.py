"""The `kce` command. Each command lives in a module of this package and is imported only when it is called."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from kce.captures.errors import CaptureError
from kce.extras import MissingExtra
from kce.garbage import no_collection
from kce.harness.actions import ACTIONS, GROUPS
from kce.harness.errors import HarnessError, InvalidArgument, plain_error
from kce.harness.interrupts import Interrupted
from kce.java import JavaMissing

# numpy's linear algebra, which no command needs, would start a thread for each core; these spin for a while
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: by section of `kce --help`: command -> "module:function" in this package, and the line that the help shows for it
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Clusters": {
        "demo": ("demo:demo", "Run a failover, a zombie and a restart; write a recording and a report."),
        "up": ("up:up", "Run ZooKeeper and a cluster of nodes, until Ctrl-C or in the background (--wait)."),
        "down": ("down:down", "End a running `kce up` or `kce proxy`."),
        "describe": ("describe:describe", "Show a cluster: controller, brokers, partitions, pending operations."),
        "topic": ("topic:topic", "Create, list, describe and delete topics."),
        "broker": ("broker:broker", "Run one broker from Kafka's server.properties, at any ZooKeeper."),
        "controller": (
            "controller:controller",
            "Run one controller for a cluster of other brokers, real ones too.",
        ),
        "proxy": ("proxy:proxy", "Run a proxy in front of a cluster, such as a real one, for faults and recordings."),
        "simulate": ("simulate:simulate_", "Run random schedules on clusters in memory and check invariants."),
    },
    "Faults": {
        **{action.words: (f"nodes:{action.words}", action.summary) for action in ACTIONS if " " not in action.words},
        **{group: (f"nodes:{group}", text) for group, text in GROUPS.items()},
        "fault": ("fault:fault", "Add, list and remove faults: rules for requests and responses."),
    },
    "Captures": {
        "capture": ("capture:capture", "Write the packets of a network interface to a pcapng."),
        "decode": ("captures:decode", "Print every request and response in a capture, one line each."),
        "analyze": ("analyze:analyze", "Explain with Spark what the control plane in captures did."),
        "replay": ("replay:replay", "Send recorded requests again and compare the responses."),
        "schema": ("schema:schema", "Show the fields of a message."),
    },
    "Elections": {
        "elect": ("elect:elect", "Contend for leadership; run a command while leading."),
        "leader": ("elect:leader", "Print the leader of an election: Flink's, ours, or Kafka's controller."),
    },
}
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}
#: so that all sections have the same two columns
_WIDEST = max(map(len, COMMANDS))

EPILOG = """\b
Examples:
  kce demo                                            failures in a cluster, explained by Spark
  kce up --brokers 3 --record traffic.pcapng          a cluster to play with; then, in another terminal:
  kce topic create orders --partitions 4 --replication-factor 3
  kce decode incident.pcapng --api LeaderAndIsr       leaders and ISRs that the controller sent
  kce schema LeaderAndIsr 7                           its fields, types and offsets
  kce analyze *.pcap.gz --report report.html          findings, with pictures

Every command has its own --help.
"""


class _ReaderLeftError(Exception):
    """The reader of a pipe has enough: `kce describe | head`. Of a BrokenPipeError click and rich make exit code 1."""


@contextlib.contextmanager
def _output_to_a_pipe() -> Iterator[None]:
    """Raises _ReaderLeftError instead of BrokenPipeError."""
    try:
        yield
    except BrokenPipeError as e:
        raise _ReaderLeftError from e
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # rich's
            raise _ReaderLeftError from e
        raise


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _output_to_a_pipe():  # of --help
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _output_to_a_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        with no_collection(freeze=True):
            command: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(_WIDEST), text) for name, (_, text) in commands.items()])


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(None, "-V", "--version", package_name="kafka-controller-emulator", prog_name="kce")
def cli() -> None:
    """The control plane of Kafka, made visible, drivable and testable.

    A controller elected through ZooKeeper drives stub brokers over TCP with epoch-stamped requests; the traffic can be
    recorded, decoded and explained.
    """


def main(argv: list[str] | None = None) -> int:
    """Run `kce` and return its exit code: 0, 1 for a failure shown in one line, 2 for wrong usage, 130 after Ctrl-C.

    See `kce.harness.interrupts` for signals.
    """
    try:
        result: Any = cli.main(argv, prog_name="kce", standalone_mode=False)
    except BaseException as e:  # noqa: BLE001 - other errors are raised again
        return _failure(plain_error(e, *SHOWN_IN_ONE_LINE, Interrupted, KeyboardInterrupt, OSError))
    return result if isinstance(result, int) else 0


#: a full disk, a quota, a limit of the size of files
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SHOWN_IN_ONE_LINE = (HarnessError, CaptureError, JavaMissing, MissingExtra)


def _failure(error: BaseException) -> int:
    from kce.wire.configuration.definitions import ConfigError

    match error:
        case click.ClickException():
            error.show()
            return error.exit_code
        case InvalidArgument() | MissingExtra() | ConfigError():
            click.echo(f"kce: {error}", err=True)
            return 2
        case HarnessError() | CaptureError() | JavaMissing():
            click.echo(f"kce: {error}", err=True)
            return 1
        case Interrupted():
            return error.code
        case click.Abort() | KeyboardInterrupt():
            return 130
        case BrokenPipeError() | _ReaderLeftError():
            _discard_output()
            return 0
        case OSError() if error.errno in _NO_ROOM:  # most often of the file that stdout is: `kce decode ... > file`
            _discard_output()
            click.echo(f"kce: cannot write: {error.strerror}", err=True)
            return 1
    raise error


def _discard_output() -> None:
    """What stdout still holds would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
