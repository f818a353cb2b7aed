"""One process that reads a capture, against tshark, dpkt and scapy, in one run, on traffic whose truth is known.

    python -m benchmarks.captures [--small 200] [--large 1000] [--repeats 3] [--folder DIR] [--json FILE]

single/...    a fresh process from the file to all exchanges, control bodies decoded, as Arrow; against
              `tshark -Y kafka -T fields`, which prints frame number, time, API, version, correlation and client id
packets/...   Arrow rows of all packets, with payloads; against dpkt, which walks them to TCP's payload (and against
              scapy, on the first packets only: it takes minutes). Without what a process takes to start: each reads
              the first packets before its time begins
spark-...     the exchanges by API in Spark's local[2] (``benchmarks.captures_spark``), against the same tshark: warm
              (the second of two runs in a session, tshark's columns only), warm-all (all columns),
              shuffle (segments shuffled by connection; both the second run, too) and cold (from nothing)
memory/...    the largest resident size of these processes
decode/...    `kce decode` and `kce decode --json` of a file of 60 MB against `tshark -Y kafka` and `tshark -Y kafka -T
              json`, in processor time (user and system), as each is one process
analyze/...   `kce analyze` of a file of 20 MB, its start included, and a further one in the same process; against
              the goals of 10 and 3 seconds

The traffic is small requests and answers, of which some hundred thousand pass a second in a broker: Produce requests
of 300 bytes on 20 connections and a control request for every hundredth, each answer acknowledged, one packet in a
thousand sent twice; 190 bytes a packet, as in captures of real Kafka. Each measurement starts a new process, ours
right after its peer. Values are medians; a ratio is the median of the repeats' ratios. All counts are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rows import Row, report
from benchmarks.traffic import CONTROL_PORT, generate

TRAFFIC: dict[str, Any] = {"connections": 20, "request": 300, "acknowledge": True, "again_every": 1000}
SCAPY_PACKETS = 20_000
ANALYZED_BYTES, DECODED_BYTES = 20_000_000, 60_000_000

KCE = "import sys; from kce.harness.cli import main; sys.exit(main())"

TSHARK_FIELDS = (
    "frame.number", "frame.time_epoch", "kafka.api_key", "kafka.api_version", "kafka.correlation_id", "kafka.client_id",
)  # fmt: skip


class Run(NamedTuple):
    seconds: float
    peak_bytes: int
    output: bytes
    cpu_seconds: float


def run(*command: str) -> Run:
    """A process from its start to its end. It starts none itself, so its own peak is that of all."""
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
        output.seek(0)
        return Run(seconds, usage.ru_maxrss * 1024, output.read(), usage.ru_utime + usage.ru_stime)


def ours(what: str, file: Path) -> Run:
    return run(sys.executable, "-m", "benchmarks.captures", "--do", what, str(file))


def tshark(file: Path) -> Run:
    fields = [argument for name in TSHARK_FIELDS for argument in ("-e", name)]
    return run(
        "tshark", "-r", str(file), "-d", f"tcp.port=={CONTROL_PORT},kafka", "-Y", "kafka", "-T", "fields", *fields
    )


# what a fresh process does


def do_exchanges(file: str) -> None:
    from kce.captures.fast.columns import read_exchanges

    exchanges: Counter[str] = Counter()
    partitions = answered = 0
    for batch, states in read_exchanges(file):
        for counted in batch.column("api").value_counts().to_pylist():
            exchanges[counted["values"]] += counted["counts"]
        answered += len(batch) - batch.column("response_packet").null_count
        partitions += len(states)
    print(json.dumps({"exchanges": exchanges, "answered": answered, "partitions": partitions}))


def do_analyze(file: str) -> None:
    """Seconds of the second analysis in a process."""
    from kce.captures.spark import analyze

    for _ in range(2):
        begin = time.perf_counter()
        analyze([file])
        seconds = time.perf_counter() - begin
    print(seconds)


def our_packets(file: str) -> Iterator[int]:
    from kce.captures.fast.packet_columns import packet_batches
    from kce.captures.files.pcap import CaptureFile

    with CaptureFile(file) as capture:
        yield from map(len, packet_batches(capture))


def dpkt_packets(file: str) -> Iterator[int]:
    import dpkt

    with Path(file).open("rb") as stream:
        for _, data in dpkt.pcap.Reader(stream):
            yield isinstance(dpkt.ethernet.Ethernet(data).data.data.data, bytes)


def scapy_packets(file: str) -> Iterator[int]:
    from scapy.layers.inet import TCP
    from scapy.utils import PcapReader

    with PcapReader(file) as reader:
        yield from (TCP in packet for packet in itertools.islice(reader, SCAPY_PACKETS))


def timed(packets: Callable[[str], Iterator[int]], file: str) -> None:
    """Print how many packets there are, and seconds; some are read before, so that everything is there."""
    next(packets(file))
    begin = time.perf_counter()
    count = sum(packets(file))
    print(json.dumps([count, time.perf_counter() - begin]))


DO: dict[str, Callable[[str], None]] = {
    "exchanges": do_exchanges,
    "analyze": do_analyze,
    "packets": functools.partial(timed, our_packets),
    "dpkt": functools.partial(timed, dpkt_packets),
    "scapy": functools.partial(timed, scapy_packets),
}


# measuring


def single(name: str, file: Path, truth: dict[str, Any], repeats: int) -> list[Row]:
    """Time and memory of the exchanges of a file: by tshark, one process, and Spark, in turns."""
    wanted = {api.split()[0]: count for api, count in truth["requests"].items()}

    def checked(what: str, found: dict[str, int]) -> None:
        if found != wanted:
            raise SystemExit(f"{file}: {what} finds {found}, not {wanted}")

    mine: dict[str, list[float]] = {}
    theirs: list[Run] = []
    runs: list[Run] = []
    with Session(file) if repeats > 1 else contextlib.nullcontext() as session:
        for _ in range(repeats):
            theirs.append(tshark(file))
            runs.append(ours("exchanges", file))
            found = json.loads(runs[-1].output)
            checked("our process", found["exchanges"])
            if found["answered"] != sum(wanted.values()):
                raise SystemExit(f"{file}: of {sum(wanted.values())} requests {found['answered']} were answered")
            if session is None:
                cold = run(sys.executable, "-m", "benchmarks.captures_spark", str(file), "cold")
                checked("Spark", json.loads(cold.output)["exchanges"])
                mine.setdefault("cold", []).append(cold.seconds)
            for what in WARM if session is not None else ():
                assert session is not None
                session.seconds(what)  # the second run counts
                seconds, exchanges = session.seconds(what)
                checked("Spark", exchanges)
                mine.setdefault(what, []).append(seconds)
    lines = theirs[-1].output.count(b"\n")
    print(f"{name}: {2 * sum(wanted.values()):,} frames; tshark reports {lines:,} packets with Kafka", flush=True)
    seconds_of_peer = [r.seconds for r in theirs]
    kept = [r.seconds for r in runs], seconds_of_peer
    megabytes = [r.peak_bytes / 2**20 for r in runs], [r.peak_bytes / 2**20 for r in theirs]
    measured = {f"single/{name}": ("s", *kept), f"memory/{name}": ("MiB", *megabytes)}
    measured |= {f"spark-{what}/{name}": ("s", of_it, seconds_of_peer) for what, of_it in mine.items()}
    return [
        Row(row, unit, "tshark", less=True, values=values, peer_values=of_peer)
        for row, (unit, values, of_peer) in measured.items()
    ]


#: the rows of a warm Spark session
WARM = ("warm", "warm-all", "shuffle")


class Session:
    """A process with Spark in it."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.captures_spark", str(file)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def seconds(self, what: str) -> tuple[float, dict[str, int]]:
        """How long it took, and the exchanges by API."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"Spark's process ended with {self._process.wait()}")
        measured = json.loads(line)
        return measured["seconds"], measured["exchanges"]


def packets(name: str, file: Path, truth: dict[str, Any], repeats: int) -> list[Row]:
    rates: dict[str, list[float]] = {"dpkt": [], "packets": []}
    for _ in range(repeats):
        for what, of_it in rates.items():
            count, seconds = json.loads(ours(what, file).output)
            if count != truth["packets"]:
                raise SystemExit(f"{file}: {what} finds {count} packets, not {truth['packets']}")
            of_it.append(count / seconds)
    scapy_count, scapy_seconds = json.loads(ours("scapy", file).output)
    rows = []
    for row, peer, of_peer in (
        (f"packets/{name}", "dpkt", rates["dpkt"]),
        (f"packets-scapy/{name}", "scapy", [scapy_count / scapy_seconds]),
    ):
        rows.append(Row(row, "packets/s", peer, values=rates["packets"], peer_values=of_peer))
    return rows


def decodings(file: Path, repeats: int) -> list[Row]:
    """Processor time of a line for each message, and of all fields of each message as JSON."""
    truth = generate(file, DECODED_BYTES, **TRAFFIC)
    messages = 2 * sum(truth["requests"].values())
    ours_of = ("-c", KCE, "decode", str(file))
    theirs_of = ("-r", str(file), "-d", f"tcp.port=={CONTROL_PORT},kafka", "-Y", "kafka")
    run(sys.executable, *ours_of)  # compiles the kernels
    rows = []
    for what, option, of_peer in (("text", (), ()), ("json", ("--json",), ("-T", "json"))):
        row = Row(f"decode/{what}", "CPU s", "tshark", less=True)
        for _ in range(repeats):
            row.peer_values.append(run("tshark", *theirs_of, *of_peer).cpu_seconds)
            mine = run(sys.executable, *ours_of, *option)
            if mine.output.count(b"\n") != messages:
                raise SystemExit(f"{file}: kce decode prints other than {messages} lines")
            row.values.append(mine.cpu_seconds)
        rows.append(row)
    file.unlink()
    return rows


def analyses(file: Path, repeats: int) -> list[Row]:
    generate(file, ANALYZED_BYTES, **TRAFFIC)
    ours("exchanges", file)  # compiles the kernels
    first = [run(sys.executable, "-c", KCE, "analyze", str(file)).seconds for _ in range(repeats)]
    further = [float(ours("analyze", file).output) for _ in range(repeats)]
    file.unlink()
    return [
        Row("analyze/20MB", "s", "goal", less=True, values=first, peer_values=[10.0]),
        Row("analyze-further/20MB", "s", "goal", less=True, values=further, peer_values=[3.0]),
    ]


def measure(folder: Path, args: argparse.Namespace) -> list[Row]:
    rows = decodings(folder / "decode.pcap", args.repeats)
    rows += analyses(folder / "analyze.pcap", args.repeats)
    for megabytes, repeats in ((args.small, args.repeats), (args.large, 1)):
        if not megabytes:
            continue
        name = f"{megabytes}MB" if megabytes < 1000 else f"{megabytes // 1000}GB"
        file = folder / f"{name}.pcap"
        truth = generate(file, megabytes * 1_000_000, **TRAFFIC)
        print(f"{name}: {truth['packets']:,} packets", flush=True)
        ours("exchanges", file)  # compiles the kernels
        if megabytes == args.small:
            ours("packets", file)
            rows += packets(name, file, truth, repeats)
        rows += single(name, file, truth, repeats)
        file.unlink()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=200, metavar="MB")
    parser.add_argument("--large", type=int, default=1000, metavar="MB", help="0: not")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder for the captures")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--do", choices=DO, help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.do:
        DO[args.do](args.file)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows = measure(Path(folder), args)
    report(rows, args.json)


if __name__ == "__main__":
    main()
