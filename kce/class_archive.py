"""Archives of Java classes, parsed and verified once (class data sharing): a JVM starts faster from one.

`make setup` writes them. A JVM ignores an archive of other jars or of another Java.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: for a program that writes an archive: it takes ten seconds where nothing is wrong
WRITING_TIMEOUT_S = 180


def location(name: str, *of: object) -> Path:
    """Where the archive is of the classes that ``of`` tells apart, for the Java of JAVA_HOME or PATH."""
    java = _java()
    changed_ns = java.stat().st_mtime_ns if java.exists() else 0
    what = " ".join(map(str, (java.resolve(), changed_ns, *of)))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-controller-emulator"
    return folder / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsa"


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")


def can_be_written() -> bool:
    """Whether Java maps the archive of its own classes, on which others build. Some installations have none."""
    command = [str(_java()), "-Xshare:on", "-version"]
    return not subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


@contextmanager
def writing(archive: Path) -> Iterator[Path]:
    """Yields a path in a folder of its own; what is written there becomes ``archive``, if there is no error."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        written = Path(folder, archive.name)
        yield written
        written.replace(archive)


def run(command: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float = WRITING_TIMEOUT_S) -> None:
    """Run a program until it and all that it started have closed stdout.

    They are killed after ``timeout_s``. Raises subprocess.TimeoutExpired, CalledProcessError.
    """
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        process_group=0,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output)
