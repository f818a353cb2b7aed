"""An archive of Spark's classes, parsed and verified (class data sharing): Java starts in half the time.

``archive_classes`` writes it. Brief local sessions map it if it is there. The JVM ignores an archive of other jars or
of another Java.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pyspark

#: An environment variable: where the JVM is to write the archive.
WRITTEN_TO = "KCE_CLASS_ARCHIVE_WRITTEN_TO"


def location(flags: str) -> Path:
    """Where the archive is for a JVM with ``flags``."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    changed_ns = java.stat().st_mtime_ns if java.exists() else 0
    what = f"{java.resolve()} {changed_ns} {Path(pyspark.__file__).parent} {pyspark.__version__} {flags}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-controller-emulator"
    return folder / f"spark-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsa"


def options(flags: str) -> str:
    """JVM options to use the archive for a JVM with ``flags``; none if there is no archive."""
    if written_to := os.environ.get(WRITTEN_TO):
        return f'"-XX:ArchiveClassesAtExit={written_to}"'
    archive = location(flags)
    # silent: the JVM would report an archive that it ignores on stdout
    return f'-Xlog:disable "-XX:SharedArchiveFile={archive}"' if archive.is_file() else ""
