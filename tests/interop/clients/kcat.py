"""kcat, a program that runs once for each request: `python kcat.py HOST:PORT,...`

It sets no timestamps, and creates and deletes nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

from serving import LIMIT_S, described, serve


class Kcat:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def _run(self, *arguments: str, given: str = "") -> str:
        command = ["kcat", "-b", self._bootstrap, *arguments]
        return subprocess.run(
            command, input=given, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True, text=True
        ).stdout  # fmt: skip

    def topics(self) -> dict[str, object]:
        return {"topics": [topic["topic"] for topic in json.loads(self._run("-L", "-J"))["topics"]]}

    def produce(self, topic: str, codec: str, records: list[tuple[int, str, int]]) -> None:
        of_partitions: dict[int, list[str]] = {}
        for partition, value, _ in records:
            of_partitions.setdefault(partition, []).append(value)
        for partition, values in of_partitions.items():
            self._run(
                "-P", "-t", topic, "-p", str(partition), "-z", codec, "-k", "k", "-H", "h=1", "-X", "acks=all", "-X",
                "enable.idempotence=true", given=_lines(values),
            )  # fmt: skip

    def fetch(self, topic: str, partition: int, offset: int, count: int) -> dict[str, object]:
        printed = self._run("-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-J", "-q")
        found = [json.loads(line) for line in printed.splitlines()]
        assert len(found) == count
        return {
            "records": [
                described(r["offset"], r["payload"].encode(), r["ts"], r["key"].encode(), _pairs(r["headers"]))
                for r in found
            ]
        }

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> dict[str, object]:
        printed = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        return {"offset": int(printed.split()[-1])}  # t [0] offset 5

    def bounds(self, topic: str, partition: int) -> dict[str, object]:
        earliest, latest = (self.offset_at(topic, partition, special)["offset"] for special in (-2, -1))
        return {"earliest": earliest, "latest": latest}


def _lines(values: Iterable[str]) -> str:
    return "".join(f"{value}\n" for value in values)


def _pairs(headers: list[str]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in zip(headers[::2], headers[1::2], strict=True)]


if __name__ == "__main__":
    serve(Kcat(sys.argv[1]))
