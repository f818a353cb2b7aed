"""An archive of Spark's classes: ``archive_classes`` writes it, brief local sessions map it if it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from kce import class_archive

#: An environment variable: where the JVM is to write the archive.
WRITTEN_TO = "KCE_CLASS_ARCHIVE_WRITTEN_TO"


def location(flags: str) -> Path:
    """Where the archive is for a JVM with ``flags``."""
    return class_archive.location("spark", Path(pyspark.__file__).parent, pyspark.__version__, flags)


def options(flags: str) -> str:
    """JVM options to use the archive for a JVM with ``flags``; none if there is no archive."""
    if written_to := os.environ.get(WRITTEN_TO):
        return f'"-XX:ArchiveClassesAtExit={written_to}"'
    archive = location(flags)
    # silent: the JVM would report an archive that it ignores on stdout
    return f'-Xlog:disable "-XX:SharedArchiveFile={archive}"' if archive.is_file() else ""
