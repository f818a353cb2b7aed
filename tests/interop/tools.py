"""Kafka's own command-line tools, in one JVM for all runs: starting one takes longer than what they do."""

from __future__ import annotations

import subprocess
import threading
import urllib.parse
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.kafka_java import kafka_java

TOOL_TIMEOUT_S = 60
TOPICS = "org.apache.kafka.tools.TopicCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


class Tools:
    """A ``with`` block that owns the JVM. Blocks whoever calls; for one thread at a time."""

    def __enter__(self) -> Self:
        command = [*kafka_java("-Xmx192m"), str(Path(__file__).parent / "java" / "Tools.java")]
        self._jvm = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._jvm:
            self._jvm.kill()

    def try_run(self, main_class: str, *arguments: str, standard_input: str = "") -> tuple[int, str]:
        """Exit status and what it printed. A run that takes too long is the end of the JVM, and of the test."""
        words = [urllib.parse.quote(word, safe="") for word in (standard_input, main_class, *arguments)]
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        too_long = threading.Timer(TOOL_TIMEOUT_S, self._jvm.kill)
        too_long.start()
        try:
            self._jvm.stdin.write(" ".join(words).encode() + b"\n")
            self._jvm.stdin.flush()
            answer = self._jvm.stdout.readline()
            assert answer, f"{main_class} {' '.join(arguments)} ended the JVM, or took {TOOL_TIMEOUT_S} s"
            status, size = map(int, answer.split())
            return status, self._jvm.stdout.read(size).decode()
        finally:
            too_long.cancel()

    def run(self, main_class: str, *arguments: str, standard_input: str = "") -> str:
        """What it printed. Raises RuntimeError when it fails."""
        status, output = self.try_run(main_class, *arguments, standard_input=standard_input)
        if status:
            raise RuntimeError(f"{main_class} {' '.join(arguments)} ended with {status}:\n{output}")
        return output
