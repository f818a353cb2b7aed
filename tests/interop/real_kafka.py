"""Real Apache Kafka brokers on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import trio

from kce.harness.embedded_zookeeper import free_ports
from kce.harness.guard import Guard
from tests.interop.kafka_jars import RELEASES, VERSION, Release
from tests.interop.kafka_java import kafka_java

#: a node of ours beside them needs the same, or it knows other coordinators
OFFSETS_TOPIC = {"offsets.topic.num.partitions": "5", "offsets.topic.replication.factor": "1"}
START_TIMEOUT_S = 60
SHUTDOWN_TIMEOUT_S = 60
_ATTEMPTS = 3
_PORT_IS_TAKEN = "Address already in use"
#: what releases before 3.0 reflect upon
_OPEN = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util")
_LOG4J = """log4j.rootLogger={level}, out
log4j.appender.out=org.apache.log4j.FileAppender
log4j.appender.out.File={folder}/server.log
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.state.change.logger={changes}
log4j.logger.kafka.server.KafkaServer=INFO
"""


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
        jvm: Sequence[str] | None = None,
    ) -> None:
        """``jvm`` are options of Java for a broker that is measured, and logs only warnings; None is for one that lives
        for a test, and logs what it does."""
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
        level, changes = ("INFO", "TRACE") if jvm is None else ("WARN", "WARN")
        log_settings = _LOG4J.format(folder=self.folder, level=level, changes=changes)
        (self.folder / "log4j.properties").write_text(log_settings)
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
        """Try again if a connection of another process has one of its ports, which were free when it was made."""
        for _ in range(_ATTEMPTS - 1):
            if await self._has_started(timeout_s):
                return
        if not await self._has_started(timeout_s):
            raise RuntimeError(f"the ports of Kafka {self.id} are taken")

    async def _has_started(self, timeout_s: float) -> bool:
        """False if one of its ports was taken."""
        earlier = len(self.log)
        version = self.release.version
        options = ["-Dzookeeper.sasl.client=false", f"-Dlog4j.configuration=file:{self.folder / 'log4j.properties'}"]
        if version < "3":
            options += [f"--add-opens={package}=ALL-UNNAMED" for package in _OPEN]
        java = await trio.to_thread.run_sync(partial(kafka_java, *options, jvm=self._jvm, version=version))
        command = [*java, "kafka.Kafka", str(self.folder / "server.properties")]
        with (self.folder / "out.log").open("wb") as out:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0, cwd=self.folder
            )
        self._guard.watch(self._process.pid)
        with trio.fail_after(timeout_s):
            while "started (kafka.server.KafkaServer)" not in self.log[earlier:]:
                if self._process.poll() is not None:
                    out_text = (self.folder / "out.log").read_text()
                    if _PORT_IS_TAKEN in self.log[earlier:] or _PORT_IS_TAKEN in out_text:  # the latter of JMX
                        self._guard.forget(self._process.pid)
                        return False
                    raise RuntimeError(f"Kafka {self.id} ended:\n{out_text[-3000:]}\n{self.log[-3000:]}")
                await trio.sleep(0.05)
        return True

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
    jvm: Sequence[str] | None = None,
    **settings: str,
) -> AsyncIterator[dict[int, RealBroker]]:
    """Real brokers, all up, all gone at the end. ``settings`` are theirs, with _ for the dots."""
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    with closing(Guard()) as guard:
        brokers = {i: RealBroker(i, zookeeper, folder, guard, properties, release, jvm) for i in ids}
        try:
            async with trio.open_nursery() as nursery:
                for broker in brokers.values():
                    nursery.start_soon(broker.start)
            yield brokers
        finally:
            for broker in brokers.values():
                broker.kill()
