"""Java with Kafka's jars, started from an archive of their classes (class data sharing): in half the processor time.

The archive (60 MB) is written below $XDG_CACHE_HOME once a machine, in some ten seconds.
"""

from __future__ import annotations

import fcntl
import functools
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import trio

from kce.harness import class_archive
from kce.harness.embedded_zookeeper import embedded_zookeeper, free_port
from kce.java import find_java
from tests.interop.kafka_jars import VERSION, kafka_jars

#: options of a JVM that lives for a test: quick to start, small
SHORT_LIVED = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: what a JVM says of an archive that it cannot use is not among what its program prints
_LOGGING = ("-Xlog:disable", "-Xlog:all=warning:stderr")
_TRAINING = Path(__file__).parent / "java" / "Training.java"
_TIMEOUT_S = 180
_PROPERTIES = """broker.id=1
listeners=PLAINTEXT://{address}
zookeeper.connect={zookeeper}
log.dirs={folder}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4000000
"""


def class_path(version: str = VERSION) -> str:
    """Kafka's jars in an order that is always the same, as the archive requires."""
    return ":".join(sorted(map(str, kafka_jars(version).glob("*.jar"))))


def kafka_java(*options: str, jvm: Sequence[str] | None = None, version: str = VERSION) -> list[str]:
    """The command of a JVM, up to its main class or program. ``jvm`` None is for one that lives for a test."""
    if jvm is None:
        jvm = (*SHORT_LIVED, *(archived() if version == VERSION else ()))
    return [find_java(), *_LOGGING, *jvm, *options, "-cp", class_path(version)]


@functools.cache
def archived() -> tuple[str, ...]:
    """The option that maps the archive, which is written first if this machine does not have it yet."""
    if not class_archive.can_be_written():
        return ()
    archive = class_archive.location("kafka", class_path())
    archive.parent.mkdir(parents=True, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of the suite that start together wait for one
        if not archive.exists():
            # the caller's thread may run Trio
            with class_archive.writing(archive) as written, ThreadPoolExecutor(1) as thread:
                thread.submit(trio.run, _train, written).result()
    return (f"-XX:SharedArchiveFile={archive}",)


async def _train(written: Path) -> None:
    """Run a broker, clients and a tool in one JVM, which writes the archive as it ends."""
    with tempfile.TemporaryDirectory() as name:
        folder, address = Path(name), f"127.0.0.1:{free_port()}"
        properties = folder / "server.properties"
        async with embedded_zookeeper(folder / "zookeeper") as zookeeper:
            properties.write_text(_PROPERTIES.format(address=address, zookeeper=zookeeper, folder=folder))
            command = [
                find_java(), *SHORT_LIVED, f"-XX:ArchiveClassesAtExit={written}", "-cp", class_path(), str(_TRAINING),
                str(properties), address,
            ]  # fmt: skip
            ran = await trio.to_thread.run_sync(
                functools.partial(
                    subprocess.run, command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
                )
            )  # fmt: skip
    if ran.returncode:
        said = ran.stdout[-2000:] + ran.stderr[-2000:]
        raise RuntimeError(f"no archive of Kafka's classes could be written:\n{said}")
