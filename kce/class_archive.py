"""Archives of Java classes, parsed and verified once (class data sharing): a JVM starts faster from one.

`make setup` writes them. A JVM ignores an archive of other jars or of another Java.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path


def location(name: str, *of: object) -> Path:
    """Where the archive is of the classes that ``of`` tells apart, for the Java of JAVA_HOME or PATH."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    changed_ns = java.stat().st_mtime_ns if java.exists() else 0
    what = " ".join(map(str, (java.resolve(), changed_ns, *of)))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-controller-emulator"
    return folder / f"{name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsa"
