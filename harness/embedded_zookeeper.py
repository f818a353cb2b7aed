"""Runs a real ZooKeeper on loopback, from the jars inside the pyspark package.

async with embedded_zookeeper(folder) as address: ...   # "127.0.0.1:41234"
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, nullcontext
from pathlib import Path

import trio

from kce.extras import require
from kce.harness import class_archive
from kce.harness.errors import HarnessError
from kce.harness.guard import Guard
from kce.java import find_java

#: sessions are granted in multiples of it: a session timeout may be as short as two ticks
TICK_MS = 250
START_TIMEOUT_S = 60
#: options of Java for a short-lived ZooKeeper: it starts fast, and does not wait for its disk
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
#: what ZooKeeper uses of the folder with its jars: Java searches all that it is given, and that takes a fifth of a
#: server's start
_USED_JARS = (
    "zookeeper-*", "slf4j-api-*", "log4j-api-*", "log4j-core-*", "log4j-slf4j*-impl-*", "metrics-core-*",
    "snappy-java-*", "commons-*", "javax.servlet-api-*", "jackson-*", "netty-*",
)  # fmt: skip
_TRIES = 5
_LOGGING = """status=error
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n%ex
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


def spark_jars() -> Path:
    """The folder of jars in the pyspark package. Raises MissingExtra, HarnessError."""
    require("pyspark", purpose="an embedded ZooKeeper")
    spec = importlib.util.find_spec("pyspark")
    where = Path(spec.submodule_search_locations[0]) / "jars" if spec and spec.submodule_search_locations else None
    if where is None or not list(where.glob("zookeeper-3*.jar")):
        raise HarnessError(
            f"the pyspark package has no ZooKeeper among its jars ({where}): reinstall it with `make setup`"
        )
    return where


def _class_path(jars: Path) -> str:
    return os.pathsep.join(str(jar) for pattern in _USED_JARS for jar in sorted(jars.glob(f"{pattern}.jar")))


def archive(jars: Path) -> Path:
    """Where the archive of ZooKeeper's classes is, if `make setup` has written it."""
    return class_archive.location("zookeeper", _class_path(jars))


def free_ports(count: int) -> list[int]:
    """So many ports that were free a moment ago. Another process may bind one first: be ready to retry."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]  # all open, so that each is another
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def free_port() -> int:
    """One of `free_ports`."""
    return free_ports(1)[0]


@asynccontextmanager
async def embedded_zookeeper(
    folder: Path, guard: Guard | None = None, *, port: int | None = None, settings: Mapping[str, str] | None = None,
    jvm: Sequence[str] = SHORT_LIVED, patience_s: float = 5,
) -> AsyncIterator[str]:  # fmt: skip
    """Run ZooKeeper with its data under ``folder``; yields host:port and stops it at the end.

    ``guard`` None is a guard of its own, ``port`` None a free one; ``settings`` are added to zoo.cfg, ``jvm`` are
    options of Java, it is killed if it takes ``patience_s`` to end. Raises HarnessError when it does not come up,
    JavaMissing without Java, MissingExtra without pyspark.
    """
    jars = spark_jars()
    java = find_java()
    with closing(Guard()) if guard is None else nullcontext(guard) as watching:
        process, address = await _start([java, *jvm], jars, folder, watching, port, settings or {})
        try:
            yield address
        finally:
            await stop(process, watching, patience_s)


async def stop(process: subprocess.Popen[bytes], guard: Guard, patience_s: float = 5) -> None:
    """SIGTERM, and SIGKILL to one that does not end by it."""
    process.terminate()
    with trio.CancelScope(shield=True), trio.move_on_after(patience_s):
        await trio.to_thread.run_sync(process.wait)
    if process.poll() is None:
        process.kill()
        process.wait()
    guard.forget(process.pid)


async def _start(
    java: Sequence[str], jars: Path, folder: Path, guard: Guard, port: int | None, settings: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], str]:
    data = folder / "data"
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise HarnessError(f"ZooKeeper's data folder {data} cannot be made: {e.strerror or e}") from None
    log_path = folder / "zookeeper.log"
    for attempt in range(_TRIES):
        chosen = port or free_port()
        before = _snapshots(data)
        process = spawn(java, jars, folder, data, chosen, log_path, settings)
        guard.watch(process.pid)
        if await _is_up(process, chosen, data, before):
            return process, f"127.0.0.1:{chosen}"
        process.kill()
        process.wait()
        guard.forget(process.pid)
        output = log_path.read_text(errors="replace")
        if port is not None and "BindException" in output:
            raise HarnessError(
                f"port {port} for ZooKeeper is in use by another process: choose another with --zookeeper-port"
            )
        if "BindException" not in output or attempt == _TRIES - 1:
            raise HarnessError(f"ZooKeeper did not start, see {log_path}: {last_line(output)}")
    raise AssertionError


def spawn(
    java: Sequence[str], jars: Path, folder: Path, data: Path, port: int, log_path: Path, settings: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server with its folder, its data, the port of its clients, and its log."""
    config = folder / "zoo.cfg"
    config.write_text(
        f"tickTime={TICK_MS}\ndataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
        "maxSessionTimeout=600000\nadmin.enableServer=false\n4lw.commands.whitelist=*\n"
        "autopurge.purgeInterval=1\nautopurge.snapRetainCount=3\n"
        + "".join(f"{key}={value}\n" for key, value in settings.items())
    )
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    archived = archive(jars)
    # a JVM that writes an archive cannot run from one; Path.is_file raises where a folder above may not be read
    is_used = os.path.isfile(archived) and not any(option.startswith("-XX:ArchiveClassesAtExit=") for option in java)
    command = [
        java[0], *([f"-XX:SharedArchiveFile={archived}"] * is_used),
        # enough for 100,000 topics with the longest of names; only what is used is taken
        "-Xmx2g", "-XX:+ExitOnOutOfMemoryError",
        "-Xshare:auto", "-XX:+UseSerialGC", "-XX:-UsePerfData",
        "-Dzookeeper.preAllocSize=1024", "-Djute.maxbuffer=10000000", *java[1:],
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "-cp", _class_path(jars), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config),
    ]  # fmt: skip
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0, cwd=folder,
            env={k: v for k, v in os.environ.items() if k not in ("JAVA_TOOL_OPTIONS", "JVMFLAGS")},
        )  # fmt: skip


def _snapshots(data: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in data.glob("version-2/snapshot.*")}


async def _is_up(process: subprocess.Popen[bytes], port: int, data: Path, before: dict[str, int]) -> bool:
    """Whether it serves our folder on that port; False if it ended or did not answer in time.

    A connection before its database is loaded kills its network threads; the snapshot that it takes at every start
    shows that the database is loaded.
    """
    with trio.move_on_after(START_TIMEOUT_S):
        while process.poll() is None:
            # it purges old snapshots before it serves
            is_loaded = not _snapshots(data).items() <= before.items()
            if is_loaded and str(data) in await four_letter_word("127.0.0.1", port, "conf"):
                return True
            await trio.sleep(0.02)
    return False


async def four_letter_word(host: str, port: int, word: str) -> str:
    """ZooKeeper's answer to a four-letter word; empty if it cannot be reached."""
    try:
        stream = await trio.open_tcp_stream(host, port)
        async with stream:
            await stream.send_all(word.encode())
            answer = b""
            while chunk := await stream.receive_some():
                answer += chunk
            return answer.decode(errors="replace")
    except (OSError, trio.BrokenResourceError):
        return ""


def last_line(output: str) -> str:
    """The last error, or else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("\t")]
    lines = [line for line in lines if " ERROR " in line] or lines
    return lines[-1] if lines else "it printed nothing"
