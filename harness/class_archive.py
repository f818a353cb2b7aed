"""Archives of Java classes, parsed and verified once (class data sharing): a JVM starts faster from one.

A JVM ignores an archive of other jars or of another Java.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kce.cache import cache_folder


def location(name: str, *of: object) -> Path:
    """Where the archive is of the classes that ``of`` tells apart, for the Java of JAVA_HOME or PATH."""
    java = _java()
    changed_ns = java.stat().st_mtime_ns if os.path.exists(java) else 0
    what = " ".join(map(str, (java.resolve(), changed_ns, *of)))
    return cache_folder() / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsa"


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
