"""Handle SIGINT, SIGTERM and SIGHUP in a `kce` command.

By default they end the process at once, with one line and no traceback; its child processes are stopped, and the
folders of ``remove_on_exit`` are removed. A command that has more to clean up runs in Trio by ``run``: there the
signals cancel it.

`kce` installs the handlers before it imports anything else, so this module imports little.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # the module typing takes longer to import than all of these
if TYPE_CHECKING:
    from types import FrameType
    from typing import TypeVar, TypeVarTuple

    import psutil

    T = TypeVar("T")
    Args = TypeVarTuple("Args")

#: the exit code of a process that a signal has ended is this plus the signal's number, as in a shell
EXIT_SIGNAL = 128
LINE = "kce: interrupted"
#: stderr
_LAST_STANDARD_STREAM = 2
#: how long child processes have to end after SIGTERM
CHILDREN_TIMEOUT_S = 5.0
_RESOURCE_TRACKER = "multiprocessing.resource_tracker"
_CLEAR_LINE_AND_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"

_to_remove: list[str] = []
#: a copy of stderr, which is elsewhere while Spark's JVM starts
_stderr = 2


class Interrupted(BaseException):
    """A signal has ended ``run``. ``code`` is the exit code for the process."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = EXIT_SIGNAL + number


def _signals() -> list[signal.Signals]:
    """`nohup` has SIGHUP ignored, and so it stays."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def exit_at_once() -> None:
    """From now on the signals end the process at once."""
    global _stderr
    _stderr = os.dup(2)
    for number in _signals():
        signal.signal(number, _exit)


@contextmanager
def remove_on_exit(*folders: str) -> Iterator[None]:
    """Remove these folders if a signal ends the process during the block."""
    _to_remove.extend(folders)
    try:
        yield
    finally:
        for folder in folders:
            _to_remove.remove(folder)


@contextmanager
def temporary_files() -> Iterator[None]:
    """Temporary files of the block are in one folder, which is removed at its end, also by a signal."""
    import tempfile

    folder = tempfile.mkdtemp(prefix="kce-")
    before = tempfile.tempdir
    with remove_on_exit(folder):
        tempfile.tempdir = folder
        chosen = os.environ.get("MPLCONFIGDIR", "")
        if not _can_matplotlib_keep_files(chosen):
            # otherwise it makes a folder in ours, and fails at exit to remove it again
            os.environ["MPLCONFIGDIR"] = os.path.join(folder, "matplotlib")
        try:
            yield
        finally:
            tempfile.tempdir = before
            os.environ["MPLCONFIGDIR"] = chosen  # none if empty
            remove(folder)


def _can_matplotlib_keep_files(chosen: str) -> bool:
    """Whether it can write in its folders, or make them."""
    homes = ("XDG_CONFIG_HOME", "~/.config"), ("XDG_CACHE_HOME", "~/.cache")
    of_homes = [os.environ.get(variable) or os.path.expanduser(default) for variable, default in homes]
    for path in [chosen] if chosen else [os.path.join(home, "matplotlib") for home in of_homes]:
        while path != os.path.dirname(path) and not os.path.exists(path):
            path = os.path.dirname(path)
        if not os.access(path, os.W_OK | os.X_OK):
            return False
    return True


def _exit(number: int, frame: FrameType | None) -> None:
    for each in _signals():
        signal.signal(each, signal.SIG_IGN)
    _print_last_line()
    try:
        if "subprocess" in sys.modules:
            _stop_children()
    except AttributeError:  # psutil is being imported just now: there are no children yet
        pass
    finally:
        for folder in _to_remove:
            remove(folder)
        os._exit(EXIT_SIGNAL + number)


def open_standard_streams() -> None:
    """Those that are closed (`kce ... >&-`) lead nowhere: else the next file that is opened would take their place, and
    get what is printed. What the encoding of stdout lacks is escaped, as on stderr."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_STREAM:
        os.set_inheritable(nowhere, True)
    os.close(nowhere)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays
    if sys.stdout.errors in ("strict", "surrogateescape"):  # the latter with LC_ALL=C
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def remove(folder: str) -> None:
    """With all it has."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _print_last_line() -> None:
    """Before it, other threads, which still run, lose what they print to."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, RuntimeError, ValueError, AttributeError):  # closed, or interrupted while it flushes
            continue
    try:
        last, nowhere = os.dup(_stderr), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os.write(last, (_CLEAR_LINE_AND_SHOW_CURSOR if os.isatty(last) else b"") + f"{LINE}\n".encode())
    except OSError:
        return


def _stop_children() -> None:
    """SIGTERM to all descendants, and SIGKILL to those that are still there after CHILDREN_TIMEOUT_S.

    The resource tracker of multiprocessing ignores SIGTERM. It ends with the processes that it serves, and then removes
    their semaphores.
    """
    import psutil

    children = [
        child
        for child in psutil.Process().children(recursive=True)
        if _RESOURCE_TRACKER not in " ".join(_command(child))
    ]
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        for child in children:
            try:
                stop(child)
            except psutil.Error:  # it has ended
                continue
        _, children = psutil.wait_procs(children, CHILDREN_TIMEOUT_S)


def _command(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has ended."""
    import psutil

    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _print_line() -> None:
    print(LINE, file=sys.stderr)


def run(
    function: Callable[[*Args], Awaitable[T]],
    *args: *Args,
    on_signal: Callable[[], None] = _print_line,
    on_another: Callable[[], None] = lambda: None,
) -> T:
    """Run ``function`` as trio.run does. A signal cancels it and calls ``on_signal``; then `run` raises Interrupted.

    ``on_another`` is called at each further signal, until the function has ended.
    """
    import trio

    from kce.harness.world.clock import MonotonicClock

    received: list[int] = []

    async def main() -> T:
        results: list[T] = []
        errors: list[Exception] = []
        with trio.open_signal_receiver(*_signals()) as signals:
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()

                async def cancel_on_signal() -> None:
                    async for number in signals:
                        (on_another if received else on_signal)()
                        received.append(number)
                        scope.cancel()

                nursery.start_soon(cancel_on_signal)
                with scope:
                    try:
                        results.append(await function(*args))
                    except Exception as e:  # noqa: BLE001 - raised again outside the nursery, which would wrap it
                        errors.append(e)
                nursery.cancel_scope.cancel()
        if received and not results:
            raise Interrupted(received[0])
        for error in errors:
            raise error
        return results[0]

    return trio.run(main, clock=MonotonicClock())
