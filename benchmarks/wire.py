"""Partition states per second of the codec, compared with kio 0.5.0 and Construct (interpreted, compiled) in one run.

    python benchmarks/wire.py [--sizes 10 1000 10000 100000] [--seconds 1] [--json FILE]

Also: an UpdateMetadata encoded once for many brokers, peak memory of a large decode, and import time. Topics
have at most 100 partitions with three replicas; one partition in twenty has a replica out of sync.
"""

from __future__ import annotations

import argparse
import gc
import io
import random
import subprocess
import sys
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from kio.serial import entity_reader, entity_writer

from benchmarks.rows import Row, report
from kce import wire
from kce.wire.schema import struct_for
from tests.wire.kio_oracle import kio_class, to_kio

CASES = [("LeaderAndIsr", 2), ("LeaderAndIsr", 4), ("LeaderAndIsr", 7), ("UpdateMetadata", 5), ("UpdateMetadata", 8)]
PARTITIONS_OF_A_TOPIC = 100


def cluster(api: str, partitions: int, of_topic: int = PARTITIONS_OF_A_TOPIC) -> Any:
    """A request with that many partitions, ``of_topic`` in each topic."""
    chance = random.Random(partitions)
    grouped: list[list[Any]] = []
    for i in range(partitions):
        if i % of_topic == 0:
            grouped.append([])
        replicas = tuple(chance.sample(range(1, 11), 3))
        common: dict[str, Any] = {
            "partition_index": i % of_topic, "controller_epoch": 7, "leader": replicas[0],
            "leader_epoch": chance.randrange(50), "isr": replicas[: 2 + (chance.random() > 0.05)], "replicas": replicas,
        }  # fmt: skip
        if api == "LeaderAndIsr":
            grouped[-1].append(wire.LeaderAndIsrPartitionState(partition_epoch=i, **common))
        else:
            grouped[-1].append(wire.UpdateMetadataPartitionState(zk_version=i, **common))
    if api == "LeaderAndIsr":
        live = tuple(wire.LeaderAndIsrLiveLeader(broker_id=b, host_name="localhost", port=9092) for b in range(1, 11))
        states: Any = tuple(
            wire.LeaderAndIsrTopicState(topic_name=f"topic-{t}", topic_id=uuid.UUID(int=t), partition_states=tuple(p))
            for t, p in enumerate(grouped)
        )
        return wire.LeaderAndIsrRequest(
            controller_id=1, controller_epoch=7, broker_epoch=99, topic_states=states, live_leaders=live
        )
    states = tuple(
        wire.UpdateMetadataTopicState(topic_name=f"topic-{t}", topic_id=uuid.UUID(int=t), partition_states=tuple(p))
        for t, p in enumerate(grouped)
    )
    endpoint = wire.UpdateMetadataEndpoint(host="localhost", port=9092, listener="PLAINTEXT")
    brokers = tuple(wire.UpdateMetadataBroker(id=b, endpoints=(endpoint,)) for b in range(1, 11))
    return wire.UpdateMetadataRequest(
        controller_id=1, controller_epoch=7, broker_epoch=99, topic_states=states, live_brokers=brokers
    )


def without(message: Any, version: int) -> Any:
    """The message as decoded in that version: fields that the version lacks have their defaults."""
    return wire.decode_request(wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"))[1]


class Timings:
    """Times of interleaved repetitions, so that other load affects all candidates equally."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, *functions: Callable[[], object]) -> list[list[float]]:
        for function in functions:
            function()
        times: list[list[float]] = [[] for _ in functions]
        begin = time.perf_counter()
        while len(times[0]) < 3 or time.perf_counter() - begin < self.seconds:
            for function, spent in zip(functions, times, strict=True):
                gc.collect()
                start = time.perf_counter()
                function()
                spent.append(time.perf_counter() - start)
        return times


def repeated(function: Callable[[], object], times: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(times):
            function()

    return run


def rates(count: int, seconds: list[float]) -> list[float]:
    return [count / s for s in seconds]


def engines(api: str, version: int, partitions: int, timings: Timings) -> Iterator[Row]:
    """Encoding and decoding, compared with kio and Construct."""
    message = without(cluster(api, partitions), version)
    cls: Any = type(message)
    frame = wire.encode_request(message, api_version=version, correlation_id=1, client_id="c")
    kio_type: Any = kio_class(cls, version)
    theirs: Any = to_kio(message, kio_type)
    write: Callable[..., None] = entity_writer(kio_type)
    read: Callable[..., Any] = entity_reader(kio_type)
    buffer = io.BytesIO()
    write(buffer, theirs)
    body = buffer.getvalue()
    if not frame.endswith(body):
        raise SystemExit(f"{api} {version}: kio's bytes are not ours")
    reference = struct_for(cls, version, version in wire.api(cls.__api_key__).flexible)
    compiled = reference.compile()
    times = max(1, 2_000 // partitions)
    seldom = max(1, times // 20)
    for direction, functions in {
        "encode": (
            lambda: wire.encode_request(message, api_version=version, correlation_id=1, client_id="c"),
            lambda: write(io.BytesIO(), theirs),
            lambda: reference.build(message),
            lambda: compiled.build(message),
        ),
        "decode": (
            lambda: wire.decode_request(frame),
            lambda: read(body, 0),
            lambda: reference.parse(body),
            lambda: compiled.parse(body),
        ),
    }.items():
        ours, kio, interpreted, by_compiler = functions
        mine, peer = timings(repeated(ours, times), repeated(kio, times))
        slow = timings(repeated(interpreted, seldom), repeated(by_compiler, seldom))
        name, unit, own = f"{direction}/{api}/{version}/{partitions}", "states/s", rates(partitions * times, mine)
        yield Row(name, unit, "kio 0.5.0", values=own, peer_values=rates(partitions * times, peer))
        for how, seconds in zip(("interpreted", "compiled"), slow, strict=True):
            of_peer = rates(partitions * seldom, seconds)
            yield Row(f"{name}/{how}", unit, f"Construct {how}", values=own, peer_values=of_peer)


def memory(api: str, version: int) -> Row:
    """Peak memory per field of decoding 100,000 partitions."""
    frame = wire.encode_request(cluster(api, 100_000), api_version=version, correlation_id=1, client_id="c")
    wire.decode_request(frame)
    fields = sum(version in f.versions for f in getattr(wire, f"{api}PartitionState").__fields__)
    gc.collect()
    tracemalloc.start()
    decoded = wire.decode_request(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del decoded
    name, value = f"memory/{api}/{version}/100000", peak / 100_000 / fields
    return Row(name, "bytes/field", "the goal", less=True, values=[value], peer_values=[60.0])


def shared_body(brokers: int, partitions: int, timings: Timings) -> Row:
    """An UpdateMetadata encoded once for many brokers, compared with one encoding per broker."""
    message = cluster("UpdateMetadata", partitions)

    def shared() -> None:
        request = wire.SharedRequest(message, api_version=8, client_id="1")
        for broker in range(brokers):
            request.start(correlation_id=broker, broker_epoch=broker)

    def alone() -> None:
        for broker in range(brokers):
            wire.encode_request(message, api_version=8, correlation_id=broker, client_id="1")

    mine, peer = timings(shared, alone)
    name = f"shared/UpdateMetadata/8/{partitions}/{brokers}"
    return Row(name, "s", "encoded for each broker", less=True, values=mine, peer_values=peer)


def import_time() -> Row:
    """Milliseconds of `import kce.wire` in a new interpreter, compared with `import construct`."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"

    def measured(module: str) -> list[float]:
        runs = [
            subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, check=True)
            for _ in range(7)
        ]
        return [1000 * float(run.stdout) for run in runs]

    mine, peer = measured("kce.wire"), measured("construct")
    return Row("import", "ms", "import construct", less=True, values=mine, peer_values=peer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1_000, 10_000, 100_000], help="partitions")
    parser.add_argument("--seconds", type=float, default=1, help="time for each measurement")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    timings = Timings(arguments.seconds)
    rows = [import_time()]
    for api, version in CASES:
        for partitions in arguments.sizes:
            rows += engines(api, version, partitions, timings)
        rows.append(memory(api, version))
    for brokers in (3, 30, 300):
        rows.append(shared_body(brokers, min(10_000, max(arguments.sizes)), timings))
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
