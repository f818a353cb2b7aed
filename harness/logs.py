"""Logs of nodes, under the names and in the format that Kafka's log4j.properties gives them.

server.log        everything
controller.log    the controller: elections, brokers, topics, reassignments
state-change.log  changes of partitions and replicas, control requests and their fencing
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from pathlib import Path
from typing import Final

SERVER_LOG: Final = "server.log"
#: file -> logger whose lines go there, too
_FILES: Final = {"controller.log": "kce.controller", "state-change.log": "state.change.logger"}


class _Formatter(logging.Formatter):
    """``[time] LEVEL message (logger)``. Formats a second once, and a record once for all of its files."""

    def __init__(self) -> None:
        super().__init__()
        # each is replaced at once: kazoo's thread logs, too
        self._second: tuple[int, str] = -1, ""
        self._last: tuple[logging.LogRecord | None, str] = None, ""

    def format(self, record: logging.LogRecord) -> str:
        last = self._last
        if last[0] is not record:
            last = self._last = record, super().format(record)  # with an exception's traceback
        return last[1]

    def usesTime(self) -> bool:  # noqa: N802
        return False  # formatMessage needs no asctime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        second = self._second
        if second[0] != int(record.created):
            created = time.localtime(int(record.created))
            second = self._second = int(record.created), time.strftime("%Y-%m-%d %H:%M:%S", created)
        return f"[{second[1]},{int(record.msecs):03d}] {record.levelname} {record.message} ({record.name})"


_FORMATTER: Final = _Formatter()


def log_to_stderr(level: str) -> None:
    """The logs of this process; kazoo's only where it fails."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTER)
    logging.basicConfig(level=level, handlers=[handler])
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def log_only_what_is_shown() -> None:
    """Do not find out caller, thread and process for each line of this process (logging HOWTO, "Optimization")."""
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def log_to_folder(folder: Path) -> None:
    """Write the parts of the log that have a file of their own."""
    for name, logger in _FILES.items():
        handler = logging.FileHandler(folder / name)
        handler.setFormatter(_FORMATTER)
        logging.getLogger(logger).addHandler(handler)


def last_words(path: Path) -> str:
    """The last error in a log, or else its last line; empty if there is none. On a full disk there may be no error, and
    half a line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        has_room = shutil.disk_usage(path).free > 0
    except OSError:
        return ""
    lines = [line.strip(_FRAME) for line in lines if line.strip(_FRAME)]
    errors = [line for line in lines if "] ERROR " in line or "] CRITICAL " in line]
    if lines and not lines[-1].startswith("["):
        return lines[-1]
    if errors:
        return errors[-1]
    if not has_room:
        return "no space is left on the disk of its log"
    return lines[-1] if lines else ""


#: of the traceback of an exception group
_FRAME: Final = " \t|+-"
_TAIL_BYTES: Final = 16_384
