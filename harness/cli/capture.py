"""`kce capture`: live traffic into pcapng."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from kce.captures.record.live import BUFFER_BYTES, LiveSource, RotatingWriter, record
from kce.captures.record.packet_filter import MAX_PORTS
from kce.captures.record.wireshark import write_beside
from kce.harness.cli.options import FiniteRange, port_list

_STDOUT = "-"
#: what the kernel takes, a signed number of 32 bits
_MAX_BUFFER_MB = 2047


def _ports(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    ports = port_list(ctx, param, value)
    if len(ports) > MAX_PORTS:
        raise click.BadParameter(f"{value!r}: up to {MAX_PORTS} ports")
    return ports


@click.command(
    epilog="""\b
Examples:
  kce capture traffic.pcapng --interface lo --ports 9092,9093
  kce capture incident.pcapng --interface any --rotate-mb 100 --keep 20
  kce capture - --ports 9092 | kce decode -

It needs Linux, and root or CAP_NET_RAW. Ctrl-C stops it. Packets that the kernel drops are counted, also in FILE.
"""
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--interface", "-i", default="any", show_default=True, help="A network interface, or any.")
@click.option("--ports", callback=_ports, metavar="PORT,...", help="Only TCP to or from these ports.")
@click.option("--rotate-mb", type=click.IntRange(min=1), help="Start a new file after this many MiB.")
@click.option(
    "--rotate-seconds", type=FiniteRange(min=0, min_open=True), help="Start a new file after this many seconds."
)
@click.option("--keep", type=click.IntRange(min=1), help="Keep only this many rotated files.")
@click.option("--packets", type=click.IntRange(min=1), help="Stop after this many packets.")
@click.option("--seconds", type=FiniteRange(min=0, min_open=True), help="Stop after this many seconds.")
@click.option(
    "--buffer-mb", type=click.IntRange(1, _MAX_BUFFER_MB), default=BUFFER_BYTES >> 20, show_default=True,
    help="Size of the kernel buffer.",
)  # fmt: skip
@click.option("--wireshark", is_flag=True, help="Also write FILE.lua, which names --ports to Wireshark and tshark.")
def capture(
    file: str,
    interface: str,
    ports: list[int],
    rotate_mb: int | None,
    rotate_seconds: float | None,
    keep: int | None,
    packets: int | None,
    seconds: float | None,
    buffer_mb: int,
    wireshark: bool,
) -> int:
    """Write the packets of a network interface to FILE, a pcapng, until Ctrl-C. - is standard output.

    With --rotate-mb or --rotate-seconds the files are FILE-00001.pcapng and so on; the one being written ends in .part.
    """
    if keep is not None and rotate_mb is None and rotate_seconds is None:
        raise click.UsageError("--keep needs --rotate-mb or --rotate-seconds")
    if wireshark and not ports:
        raise click.UsageError("--wireshark needs --ports")
    if file == _STDOUT:
        if wireshark or rotate_mb is not None or rotate_seconds is not None:
            raise click.UsageError("standard output takes neither --wireshark nor --rotate-mb nor --rotate-seconds")
        if sys.stdout.isatty():
            raise click.UsageError("standard output is a terminal: name a FILE, or pipe it into a command")
    max_bytes = None if rotate_mb is None else rotate_mb << 20
    comment = f"captured on {interface}" + (f", ports {', '.join(map(str, ports))}" if ports else "")
    with LiveSource(interface, ports, buffer_bytes=buffer_mb << 20) as source, _stop_requests(seconds) as stop:
        target = sys.stdout.buffer if file == _STDOUT else file
        writer = RotatingWriter(target, [comment], max_bytes=max_bytes, max_seconds=rotate_seconds, keep=keep)
        if wireshark:
            write_beside(file, ports)
        click.echo(f"kce: capturing on {interface}; Ctrl-C ends it", err=True)
        written = record(source, writer, stop=stop, max_packets=packets)
    if source.went_down:
        times = "once" if source.went_down == 1 else f"{source.went_down} times"
        click.echo(f"kce: {interface} went down {times} meanwhile", err=True)
    files = (
        "standard output"
        if file == _STDOUT
        else f"{file}"
        if len(writer.files) == 1
        else f"{writer.files[0]} to {writer.files[-1]}"
    )
    kept = ", older files removed" if keep is not None and len(writer.files) == keep else ""
    click.echo(
        f"kce: {written:,} packets captured, {source.dropped:,} dropped by the kernel; in {files}{kept}", err=True
    )
    return 0


@contextmanager
def _stop_requests(seconds: float | None) -> Iterator[int]:
    """A file descriptor that becomes readable on Ctrl-C, SIGTERM, SIGHUP, or after ``seconds``."""
    readable, writable = os.pipe()

    def stop(*_: object) -> None:
        os.write(writable, b"x")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    timer = None if seconds is None else threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
    if timer is not None:
        timer.start()
    try:
        yield readable
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(readable)
        os.close(writable)
