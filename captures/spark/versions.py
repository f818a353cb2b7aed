"""Whether the installed Spark can run this package; if not, an error says what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyspark

from kce.captures.errors import CaptureError

#: The first Spark whose Python data sources can do what is needed here.
LEAST = (4, 1)

_CORE_JAR = re.compile(r"spark-core_[\d.]+-(\d+\.\d+)\S*\.jar")


def check_versions() -> None:
    """Raise CaptureError if pyspark is too old, or SPARK_HOME holds another version than pyspark is."""
    installed = ".".join(pyspark.__version__.split(".")[:2])
    if tuple(map(int, installed.split("."))) < LEAST:
        least = ".".join(map(str, LEAST))
        raise CaptureError(f"pyspark {pyspark.__version__} is too old: kce needs Spark {least} or later")
    home = os.environ.get("SPARK_HOME")
    for jar in Path(home, "jars").glob("spark-core_*.jar") if home else ():
        found = _CORE_JAR.fullmatch(jar.name)
        if found is not None and found[1] != installed:
            raise CaptureError(
                f"SPARK_HOME={home} is Spark {found[1]}, but pyspark is {pyspark.__version__}: unset SPARK_HOME, "
                f"or let it name a Spark {installed}"
            )
