"""The clients of test_clients.py: how each is installed, started and asked.

What is installed is kept below build/clients, in a folder that is named after what it was made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.kafka_java import kafka_java
from tests.tools import require

HERE = Path(__file__).parent
INSTALLED = HERE.parents[2] / "build" / "clients"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INSTALL_TIMEOUT_S = 300
#: longer than a driver waits for its client
ANSWER_TIMEOUT_S = 150


@dataclass(frozen=True)
class Client:
    """``command``: what starts its driver, without the bootstrap servers; it installs the client if need be."""

    command: Callable[[], list[str]]
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    codecs: tuple[str, ...] = CODECS
    has_headers: bool = True
    #: of records: it sends those that it is given; seeks by them
    sets_timestamps: bool = True
    seeks_by_time: bool = True
    is_idempotent: bool = True
    #: records that are sent again come before later ones
    keeps_order: bool = True
    #: creates and deletes topics
    administrates: bool = True
    deletes_records: bool = True


class Driver:
    """A ``with`` block that owns the process of a client. For one thread at a time."""

    def __init__(self, client: Client, bootstrap_servers: str, errors: Path) -> None:
        self._command = [*client.command(), bootstrap_servers, *client.arguments]
        self._environment = {**os.environ, **client.environment}
        self._errors = errors

    def __enter__(self) -> Self:
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=self._environment,
                process_group=0,
            )  # fmt: skip
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()

    def ask(self, do: str, **request: Any) -> Any:
        """The answer. A client that takes too long, or fails, is the end of the driver and of the test."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        too_long = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        too_long.start()
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            too_long.cancel()
        assert answer, f"{do} failed, or took {ANSWER_TIMEOUT_S} s:\n{self._errors.read_text(errors='replace')}"
        return json.loads(answer)


def installed(name: str, made_of: Sequence[Path | str], install: Callable[[Path], None]) -> Path:
    """The folder that ``install`` has filled, once for the contents of ``made_of``. Raises CalledProcessError."""
    digest = hashlib.sha256()
    for part in made_of:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
    folder = INSTALLED / f"{name}-{digest.hexdigest()[:16]}"
    if not folder.exists():
        INSTALLED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=INSTALLED) as temporary:
            unfinished = Path(temporary) / name
            unfinished.mkdir()
            install(unfinished)
            if not folder.exists():  # another process may have been faster
                unfinished.rename(folder)
    return folder


def run(*command: str, folder: Path) -> None:
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with {ran.returncode}:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
        )


def python(driver: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-W", "ignore", str(HERE / driver)]


#: xxhash is for the checksums of lz4 in message format 0
OLD_KAFKA_PYTHON = ("kafka-python==1.4.7", "six==1.17.0", "xxhash==3.5.0")


def old_kafka_python() -> list[str]:
    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        run(*pip, "--target", str(folder), *OLD_KAFKA_PYTHON, folder=folder)

    folder = installed("old-kafka-python", OLD_KAFKA_PYTHON, install)
    first = (
        "import runpy, sys; sys.argv.pop(0); sys.path[:0] = sys.argv.pop(0).split(':'); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    driver = str(HERE / "old_kafka_python.py")
    return [sys.executable, "-W", "ignore", "-c", first, f"{folder}:{HERE}", driver]


def kcat() -> list[str]:
    require("kcat")
    return python("kcat.py")()


def kafkajs(program: str = "driver.js") -> list[str]:
    node, npm = require("node"), require("npm")
    parts = [HERE / "kafkajs" / name for name in ("package.json", "package-lock.json", "driver.js", "member.js")]

    def install(folder: Path) -> None:
        for part in parts:
            shutil.copy(part, folder)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=folder)

    return [node, str(installed("kafkajs", parts, install) / program)]


def go(name: str) -> list[str]:
    """A driver in Go; ``name`` is its package."""
    compiler = require("go")
    module = HERE / "go"
    parts = [module / "go.mod", module / "go.sum", *sorted(module.glob("*/*.go"))]

    def install(folder: Path) -> None:
        output = ("-o", str(folder / "driver"))
        run(compiler, "-C", str(module), "build", "-buildvcs=false", *output, f"./{name}", folder=folder)

    return [str(installed(name, parts, install) / "driver")]


def franz_go() -> list[str]:
    return go("franz_go")


def sarama() -> list[str]:
    return go("sarama")


def java(program: str = "JavaClient.java") -> list[str]:
    return [*kafka_java(), str(HERE.parent / "java" / program)]


CLIENTS = {
    "kafka-python": Client(python("kafka_python.py")),
    "aiokafka": Client(python("aio_kafka.py")),
    "librdkafka": Client(python("confluent.py")),
    "kcat": Client(kcat, sets_timestamps=False, administrates=False, deletes_records=False),
    "kafkajs": Client(kafkajs, environment={"KAFKAJS_NO_PARTITIONER_WARNING": "1"}),
    "franz-go": Client(franz_go),
    # where a leader dies its idempotent producer gives up, with real Kafka, too, and the other one may overtake
    # records that it sends again (IBM/sarama, issue 2619)
    "sarama": Client(sarama, is_idempotent=False, keeps_order=False),
    "java": Client(java),
    # message format 1, Fetch 3
    "kafka-python-1.4.7": Client(
        old_kafka_python, ("0.10.1",), codecs=CODECS[:4], has_headers=False, is_idempotent=False, deletes_records=False
    ),
    # message format 0, Fetch 1
    "kafka-python-1.4.7-as-of-0.9": Client(
        old_kafka_python,
        ("0.9",),
        codecs=CODECS[:4],
        has_headers=False,
        sets_timestamps=False,
        seeks_by_time=False,
        is_idempotent=False,
        deletes_records=False,
    ),
}
