"""Releases of Apache Kafka, fetched from Maven Central by the Ivy inside pyspark's jars.

Needs Java and nothing else. Jars are cached below $XDG_CACHE_HOME (~/.cache) and fetched once a machine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kce.harness.embedded_zookeeper import spark_jars
from kce.java import find_java


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Kafka, and what it takes to run it with Java 17. ``has_control_plane``: since 2.2 (KIP-291)."""

    version: str
    #: organisation, name and revision
    artifacts: tuple[tuple[str, str, str], ...]
    inter_broker_protocol_version: str
    has_control_plane: bool = True
    is_idempotent: bool = True

    @property
    def protocol(self) -> dict[str, str]:
        """Properties of brokers of 3.9 beside it; before 0.11 the format of records follows (rule B3.23)."""
        version = self.inter_broker_protocol_version
        formats = {"log.message.format.version": version} if version.startswith("0.10") else {}
        return {"inter.broker.protocol.version": version} | formats


VERSION = "3.9.1"
RELEASES = {
    release.version: release
    for release in (
        Release(
            VERSION,
            (
                ("org.apache.kafka", "kafka_2.13", VERSION),
                ("org.apache.kafka", "kafka-tools", VERSION),
                ("org.slf4j", "slf4j-reload4j", "1.7.36"),
            ),
            "3.9",
        ),
        Release(
            "2.8.2",
            (("org.apache.kafka", "kafka_2.13", "2.8.2"), ("org.slf4j", "slf4j-log4j12", "1.7.30")),
            "2.8",
        ),
        Release(
            "2.3.1",
            (
                ("org.apache.kafka", "kafka_2.12", "2.3.1"),
                ("org.slf4j", "slf4j-log4j12", "1.7.26"),
                ("org.apache.zookeeper", "zookeeper", "3.4.12"),  # its own, 3.4.14, cannot connect on Java 17
            ),
            "2.3",
        ),
        Release(
            "1.1.1",
            (("org.apache.kafka", "kafka_2.12", "1.1.1"), ("org.slf4j", "slf4j-log4j12", "1.7.25")),
            "1.1",
            has_control_plane=False,
        ),
        Release(
            "0.10.2.2",
            (("org.apache.kafka", "kafka_2.12", "0.10.2.2"), ("javax.xml.bind", "jaxb-api", "2.3.1")),
            "0.10.2",
            has_control_plane=False,
            is_idempotent=False,
        ),
    )
}
_STREAMS = (
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.apache.kafka", "connect-runtime", VERSION),
    ("org.apache.kafka", "connect-file", VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
_IVY = """<ivy-module version="2.0"><info organisation="kce" module="kafka"/><dependencies>
{dependencies}
</dependencies></ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->default" force="true"/>'


def kafka_jars(version: str = VERSION) -> Path:
    """The folder with Kafka's jars, fetched if this machine does not have it yet."""
    return _fetched(f"kafka-{version}", RELEASES[version].artifacts)


def streams_jars() -> Path:
    """The folder with the jars of Kafka Streams and Kafka Connect, fetched if this machine does not have it yet."""
    return _fetched(f"streams-{VERSION}", _STREAMS)


def _fetched(name: str, artifacts: Sequence[tuple[str, str, str]]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-controller-emulator"
    folder = cache / name
    folder.mkdir(parents=True, exist_ok=True)
    with (cache / "ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes of Ivy break each other's downloads
        done = folder / ".complete"
        if not done.exists():
            _fetch(name, artifacts, folder, cache / "ivy")
            done.touch()
    return folder


def _fetch(name: str, artifacts: Sequence[tuple[str, str, str]], folder: Path, cache: Path) -> None:
    ivy = folder / "ivy.xml"
    ivy.write_text(_IVY.format(dependencies="\n".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)))
    (jar,) = spark_jars().glob("ivy-*.jar")
    command = [find_java(), "-jar", str(jar), "-cache", str(cache), "-ivy", str(ivy)]
    ran = subprocess.run(
        [*command, "-retrieve", f"{folder}/[artifact]-[revision].[ext]"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if ran.returncode or not list(folder.glob("kafka-clients-*.jar")):
        raise RuntimeError(f"{name} could not be fetched from Maven Central:\n{ran.stdout[-2000:]}{ran.stderr}")
