"""Real Apache Kafka brokers: fetched from Maven Central by the Ivy inside pyspark's jars, run on loopback.

Needs Java and nothing else. Jars are cached below $XDG_CACHE_HOME (~/.cache) and fetched once a machine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import trio

from kce.harness.embedded_zookeeper import free_ports, spark_jars
from kce.harness.guard import Guard
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
#: of a JVM that lives for a test: quick to start, small
SHORT_LIVED = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: a node of ours beside them needs the same, or it knows other coordinators
OFFSETS_TOPIC = {"offsets.topic.num.partitions": "5", "offsets.topic.replication.factor": "1"}
START_TIMEOUT_S = 60
SHUTDOWN_TIMEOUT_S = 60
_IVY = """<ivy-module version="2.0"><info organisation="kce" module="kafka"/><dependencies>
{dependencies}
</dependencies></ivy-module>
"""
_DEPENDENCY = '<dependency org="{}" name="{}" rev="{}" conf="default->default" force="true"/>'
#: what releases before 3.0 reflect upon
_OPEN = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util")
_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.FileAppender
log4j.appender.out.File={folder}/server.log
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.state.change.logger=TRACE
"""


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


class RealBroker:
    """One broker of real Kafka, started as often as one likes; ``guard`` sees to it that it never outlives the test."""

    def __init__(
        self,
        broker_id: int,
        zookeeper: str,
        folder: Path,
        guard: Guard,
        settings: Mapping[str, str] | None = None,
        release: Release = RELEASES[VERSION],
        jvm: Sequence[str] = SHORT_LIVED,
    ) -> None:
        self.id = broker_id
        self._jvm = jvm
        self.release = release
        self.folder = folder / f"kafka-{broker_id}"
        self.folder.mkdir(parents=True)
        self._guard = guard
        self.control_port, self.data_port = free_ports(2)
        listeners = f"DATA://127.0.0.1:{self.data_port}"
        control_plane = {}
        if release.has_control_plane:
            listeners = f"CONTROL://127.0.0.1:{self.control_port},{listeners}"
            control_plane = {"control.plane.listener.name": "CONTROL"}
        properties = {
            "broker.id": broker_id,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CONTROL:PLAINTEXT,DATA:PLAINTEXT",
            **control_plane,
            "inter.broker.listener.name": "DATA",
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": 4000,
            "log.dirs": self.folder / "data",
            "replica.lag.time.max.ms": 3000,
            **OFFSETS_TOPIC,
            "controlled.shutdown.retry.backoff.ms": 200,
            "log.cleaner.dedupe.buffer.size": 4000000,
            "group.initial.rebalance.delay.ms": 200,
            "auto.leader.rebalance.enable": "false",
            "auto.create.topics.enable": "false",
            "delete.topic.enable": "true",
            "inter.broker.protocol.version": release.inter_broker_protocol_version,
            **(settings or {}),
        }
        (self.folder / "server.properties").write_text("\n".join(f"{k}={v}" for k, v in properties.items()))
        (self.folder / "log4j.properties").write_text(_LOG4J.format(folder=self.folder))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.data_port}"

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        earlier = len(self.log)
        command = [
            find_java(), *self._jvm, "-Dzookeeper.sasl.client=false",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN),
            f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}",
            "-cp", f"{kafka_jars(self.release.version)}/*", "kafka.Kafka", str(self.folder / "server.properties"),
        ]  # fmt: skip
        with (self.folder / "out.log").open("wb") as out:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0, cwd=self.folder
            )
        self._guard.watch(self._process.pid)
        with trio.fail_after(timeout_s):
            while "started (kafka.server.KafkaServer)" not in self.log[earlier:]:
                if self._process.poll() is not None:
                    out_text = (self.folder / "out.log").read_text()
                    raise RuntimeError(f"Kafka {self.id} ended:\n{out_text[-3000:]}\n{self.log[-3000:]}")
                await trio.sleep(0.05)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._guard.forget(self._process.pid)

    async def shut_down(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Its own orderly end, controlled shutdown included. Raises trio.TooSlowError."""
        assert self._process is not None
        self._process.terminate()
        with trio.fail_after(timeout_s):
            await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self._guard.forget(self._process.pid)


@asynccontextmanager
async def real_brokers(
    ids: list[int],
    zookeeper: str,
    folder: Path,
    release: Release = RELEASES[VERSION],
    jvm: Sequence[str] = SHORT_LIVED,
    **settings: str,
) -> AsyncIterator[dict[int, RealBroker]]:
    """Real brokers, all up, all gone at the end. ``settings`` are theirs, with _ for the dots."""
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    with closing(Guard()) as guard:
        brokers = {i: RealBroker(i, zookeeper, folder, guard, properties, release, jvm) for i in ids}
        try:
            await trio.to_thread.run_sync(kafka_jars, release.version)
            async with trio.open_nursery() as nursery:
                for broker in brokers.values():
                    nursery.start_soon(broker.start)
            yield brokers
        finally:
            for broker in brokers.values():
                broker.kill()
