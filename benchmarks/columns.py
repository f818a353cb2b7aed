"""Partition states per second of columns (`kce.wire.columns`), compared with Kafka's generated Java codec in one run.

    python benchmarks/columns.py [--sizes 1000 100000] [--seconds 0.3] [--repeats 5] [--json FILE]

Kafka 3.9.1's LeaderAndIsrRequestData and UpdateMetadataRequestData read the same bodies into objects, and write them
into a new buffer. Both run on the same core in turn, warm. Topics have 100 partitions; rows named small-topics have 1,
3 or 10. Each partition has three replicas; one in twenty has a replica out of sync.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.rows import Row, report
from benchmarks.wire import cluster
from kce import wire
from kce.java import find_java
from kce.wire.headers import read_request_header
from kce.wire.registry import BY_NAME
from tests.interop.kafka_jars import kafka_jars

CASES = (("LeaderAndIsr", 4), ("LeaderAndIsr", 7), ("UpdateMetadata", 5), ("UpdateMetadata", 8))
SMALL_TOPICS = (1, 3, 10)
PROGRAM = Path(__file__).parent / "java" / "KafkaCodec.java"
WARM_UP_S = 2.0


class Java:
    """The Java program, on the core of this process."""

    def __init__(self) -> None:
        command = [find_java(), "-Xmx3g", "-cp", f"{kafka_jars()}/*", str(PROGRAM)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Java:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def seconds(self, direction: str, key: int, version: int, body: Path, at_least: float) -> float:
        """Seconds of one encoding or decoding, measured for ``at_least`` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(direction, key, version, body, at_least, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"Java ended with {self._process.wait()}")
        return float(line.split()[0])


def seconds(function: Callable[[], object], at_least: float) -> float:
    begin = now = time.perf_counter()
    for times in itertools.count(1):
        function()
        now = time.perf_counter()
        if now - begin >= at_least:
            return (now - begin) / times
    raise AssertionError


def measure(
    java: Java, api: str, version: int, partitions: int, of_topic: int, args: argparse.Namespace
) -> Iterator[Row]:
    frame = wire.encode_request(
        cluster(api, partitions, of_topic), api_version=version, correlation_id=1, client_id="c"
    )
    key = BY_NAME[api].key
    columns = wire.columns(key, version, [frame])
    if wire.from_columns(key, version, columns) != [frame]:
        raise SystemExit(f"{api} {version}: the columns' bytes are not the rows'")
    ours = {
        "decode": lambda: wire.columns(key, version, [frame]),
        "encode": lambda: wire.from_columns(key, version, columns),
    }
    suffix = "" if of_topic == 100 else f"/small-topics-{of_topic}"
    with tempfile.NamedTemporaryFile() as file:
        file.write(frame[read_request_header(frame)[2] :])
        file.flush()
        for direction, function in ours.items():
            row = Row(f"columns/{api}/{version}/{partitions}/{direction}{suffix}", "states/s", "Kafka's Java codec")
            java.seconds(direction, key, version, Path(file.name), WARM_UP_S)
            for _ in range(args.repeats):
                theirs = java.seconds(direction, key, version, Path(file.name), args.seconds)
                row.peer_values.append(partitions / theirs)
                row.values.append(partitions / seconds(function, args.seconds))
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000], help="partitions")
    parser.add_argument("--seconds", type=float, default=0.3, help="time of each repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # and of Java, which inherits it
    rows: list[Row] = []
    with Java() as java:
        for api, version in CASES:
            for partitions in args.sizes:
                rows += measure(java, api, version, partitions, 100, args)
            for of_topic in SMALL_TOPICS:
                rows += measure(java, api, version, max(args.sizes), of_topic, args)
    report(rows, args.json)


if __name__ == "__main__":
    main()
