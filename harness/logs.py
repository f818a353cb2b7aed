"""Logs of nodes, under the names and in the format that Kafka's log4j.properties gives them.

server.log        everything
controller.log    the controller: elections, brokers, topics, reassignments
state-change.log  changes of partitions and replicas, control requests and their fencing
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

SERVER_LOG: Final = "server.log"
#: file -> logger whose lines go there, too
_FILES: Final = {"controller.log": "kce.controller", "state-change.log": "state.change.logger"}
_FORMAT: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"


def log_to_stderr(level: str) -> None:
    """The logs of this process; kazoo's only where it fails."""
    logging.basicConfig(stream=sys.stderr, level=level, format=_FORMAT)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def log_only_what_is_shown() -> None:
    """Do not find out caller, thread and process for each line of this process (logging HOWTO, "Optimization")."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def log_to_folder(folder: Path) -> None:
    """Write the parts of the log that have a file of their own."""
    for name, logger in _FILES.items():
        handler = logging.FileHandler(folder / name)
        handler.setFormatter(logging.Formatter(_FORMAT))
        logging.getLogger(logger).addHandler(handler)


def last_words(path: Path) -> str:
    """The last error in a log, or else its last line; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.strip() for line in lines if line.strip()]
    errors = [line for line in lines if "] ERROR " in line or "] CRITICAL " in line]
    return (lines[-1:] if lines and not lines[-1].startswith("[") else errors[-1:] or lines[-1:] or [""])[0]


_TAIL_BYTES: Final = 16_384
