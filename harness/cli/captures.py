"""`kce decode` and `kce analyze`: decode and analyse captures."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

import click

from kce.captures.errors import CaptureError
from kce.captures.exchanges import selection
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.decode import Decoder, Source
from kce.captures.exchanges.ports import Ports
from kce.captures.exchanges.render import JsonRenderer, Renderer
from kce.captures.exchanges.summary import Summary
from kce.captures.files.following import Following
from kce.captures.files.locations import expand, location_bytes
from kce.captures.files.pcap import CaptureFile
from kce.captures.tcp.incident import Incident
from kce.extras import MissingExtra
from kce.harness.cli.options import check_span, parsed, ports_option, print_utf8

if TYPE_CHECKING:
    from kce.captures.fast.messages import BulkDecoder

#: Maximum size of a capture on stdin that must be read twice (for --broker) and is kept on disk.
MAX_SPOOLED_BYTES = 4 * 1024**3

#: Smaller files are decoded before the fast path has been loaded.
BULK_FROM_BYTES = 8 * 1024**2

#: Smaller files are read before a progress bar would show.
_PROGRESS_FROM_BYTES = 8 * 1024**2
_PROGRESS_EVERY_S = 0.1

_FILE = "-"

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

T = TypeVar("T")


@click.command(
    epilog="""\b
Examples:
  kce decode incident.pcapng
  kce decode broker-*.pcapng s3://bucket/broker-4.pcap.zst
  kce decode incident.pcap.gz --api LeaderAndIsr --api UpdateMetadata --broker 2
  kce decode incident.pcapng --since 2026-11-21T02:45:22 --until 2026-11-21T02:45:23.5 --json | jq .body
  kce decode incident.pcapng --summary
  tcpdump -i lo -w - tcp | kce decode -
  kce decode traffic.pcapng --follow                while kce capture writes it

The exit code is 1 if a file is not a capture, is damaged or truncated, or holds something other than the
traffic of a ZooKeeper-mode Kafka cluster. What could be decoded is still printed.
"""
)
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines with the full bodies.")
@click.option(
    "--api", "apis", multiple=True, metavar="NAME", callback=parsed(selection.api_key),
    help="Only this API, such as LeaderAndIsr, in any case; may be repeated.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", multiple=True, metavar="ID|HOST:PORT",
    help="Only requests to this broker and its responses; may be repeated. Ids are learnt from UpdateMetadata.",
)  # fmt: skip
@click.option(
    "--since", "since_ns", metavar="TIME", callback=parsed(selection.time_ns),
    help="Only from this time on (ISO 8601, UTC if it names no zone).",
)  # fmt: skip
@click.option("--until", "until_ns", metavar="TIME", callback=parsed(selection.time_ns), help="Only before this time.")
@click.option(
    "--summary", is_flag=True, help="Print counts by API, controllers by epoch and brokers instead of messages."
)
@click.option(
    "--follow", is_flag=True,
    help="Go on with what a recorder appends to FILE, until it renames or removes it, or Ctrl-C.",
)  # fmt: skip
@ports_option
@click.option("--tls-keys", metavar="FILE", help="Decrypt TLS with this key log (SSLKEYLOGFILE); needs tshark.")
@click.option("--show-payloads", is_flag=True, help="With --json: include records and credentials, as hex.")
def decode(
    files: tuple[str, ...],
    as_json: bool,
    apis: tuple[int, ...],
    brokers: tuple[str, ...],
    since_ns: int | None,
    until_ns: int | None,
    summary: bool,
    follow: bool,
    ports: Ports,
    tls_keys: str | None,
    show_payloads: bool,
) -> int:
    """Print every request and response in a capture, one line each, in the order of the packets that complete them.

    FILES are pcap or pcapng, plain or compressed with gzip or zstd: paths, globs, URIs of remote storage, or - for
    standard input. Several files are one incident: a packet captured by several hosts is printed once, and times are
    those of the first host's clock.
    """
    check_span(since_ns, until_ns)
    if summary and as_json:
        raise click.UsageError("--summary is text: leave out --json")
    if show_payloads and not as_json:
        raise click.UsageError("--show-payloads needs --json")
    if as_json:
        print_utf8()
    names = expand(files)
    if len(names) > 1 and _FILE in names:
        raise CaptureError("standard input cannot be one of several files")
    if tls_keys is not None and len(names) > 1:
        raise CaptureError("--tls-keys needs a single file")
    file = names[0]
    if follow and (len(files) > 1 or len(names) > 1 or file == _FILE or tls_keys is not None or brokers):
        raise click.UsageError("--follow takes one file, and neither --tls-keys nor --broker")
    with followed(file) if follow else opened(names, tls_keys, twice=bool(brokers)) as open_capture:
        cluster = _learn(open_capture(), ports) if brokers else None
        try:
            wanted = selection.Selection(
                api_keys=apis, brokers=brokers, cluster=cluster, since_ns=since_ns, until_ns=until_ns
            )
        except ValueError as e:
            raise click.UsageError(f"{', '.join(names)}: {e}") from None
        with closing(open_capture()) as capture, few_collections():
            decoder = decoder_of(capture, ports)
            if summary:
                return _summarise(capture, decoder, wanted)
            try:
                for text in _with_progress(capture, _lines(decoder, wanted, as_json=as_json, payloads=show_payloads)):
                    if isinstance(text, bytes):
                        sys.stdout.buffer.write(text)
                    else:
                        sys.stdout.write(text)
                    if follow or file == _FILE:
                        sys.stdout.flush()  # for a live capture
                sys.stdout.flush()
            except BrokenPipeError:  # `kce decode ... | head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
    for line in (decoder.quality.summary(), *decoder.quality.lines()):
        click.echo(f"kce: {line}", err=True)
    return 0 if decoder.quality.sound else 1


def _lines(
    decoder: Decoder | BulkDecoder, wanted: selection.Selection, *, as_json: bool, payloads: bool
) -> Iterator[str | bytes]:
    """The lines of the wanted messages, by the fast path many in one text, encoded if that is what stdout does."""
    renderer: JsonRenderer | Renderer
    if as_json:
        renderer = JsonRenderer(decoder.cluster, payloads=payloads)
    else:
        renderer = Renderer(decoder.cluster, colour=sys.stdout.isatty())
        if not isinstance(decoder, Decoder) and not sys.stdout.isatty():
            from kce.captures.fast.lines import lines

            is_utf8 = (sys.stdout.encoding or "").lower() == "utf-8"
            yield from (text if is_utf8 else text.decode() for text in lines(decoder, renderer, wanted))
            return
    for message in decoder.messages():
        if message in wanted:
            yield renderer.line(message) + "\n"


def decoder_of(capture: CaptureFile | Source, ports: Ports) -> Decoder | BulkDecoder:
    """What decodes the capture: the fast path, if it repays its start, is installed, and its code may run."""
    if isinstance(capture, CaptureFile) and capture.is_complete and location_bytes(capture.name) >= BULK_FROM_BYTES:
        from kce.captures.files import linking

        try:
            from kce.captures.fast.messages import BulkDecoder

            if linking.is_allowed():
                _keep_freed_memory()
                return BulkDecoder(capture, ports)
        except MissingExtra:
            pass
    return Decoder(capture, ports)


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of large buffers for the next: fresh pages cost as much as decoding them."""
    import ctypes  # the fast path has imported it

    with suppress(AttributeError, OSError):  # of glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024**2)
        mallopt(_M_TRIM_THRESHOLD, 512 * 1024**2)


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage rarely: messages are many and free of cycles. At its end the process collects none."""
    atexit.register(gc.freeze)
    before = gc.get_threshold()
    gc.set_threshold(500_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _summarise(capture: CaptureFile | Source, decoder: Decoder | BulkDecoder, wanted: selection.Selection) -> int:
    counted = Summary()
    if isinstance(decoder, Decoder):
        counted.count(message for message in _with_progress(capture, decoder.messages()) if message in wanted)
    else:
        from kce.captures.fast.counts import count

        for _ in _with_progress(capture, count(decoder, counted, wanted)):
            pass
    for line in counted.lines(decoder.cluster, decoder.quality):
        click.echo(line)
    return 0 if decoder.quality.sound else 1


@contextmanager
def opened(names: list[str], tls_keys: str | None, *, twice: bool) -> Iterator[Callable[[], CaptureFile | Source]]:
    """A function that opens the files; standard input is spooled to disk if it is opened ``twice``."""
    if len(names) > 1:
        yield lambda: Incident(names)
    elif tls_keys is not None:
        from kce.captures.tcp.tls import Decrypted

        yield lambda: Decrypted(names[0], tls_keys)
    elif names[0] != _FILE:
        yield lambda: CaptureFile(names[0])
    elif not twice:
        yield lambda: CaptureFile(sys.stdin.buffer, "standard input")
    else:
        import tempfile

        with tempfile.TemporaryFile() as spool:
            _spool(sys.stdin.buffer, spool)

            def again() -> CaptureFile:
                spool.seek(0)
                return CaptureFile(spool, "standard input")

            yield again


@contextmanager
def followed(name: str) -> Iterator[Callable[[], CaptureFile | Source]]:
    """As ``opened``, of a file that grows; Ctrl-C ends the file."""
    with Following(name) as growing:
        before = signal.signal(signal.SIGINT, lambda *_: growing.stop())
        try:
            yield lambda: CaptureFile(cast("BinaryIO", growing), name)
        finally:
            signal.signal(signal.SIGINT, before)


def _spool(source: BinaryIO, spool: BinaryIO) -> None:
    size = 0
    while chunk := source.read(1024 * 1024):
        size += len(chunk)
        if size > MAX_SPOOLED_BYTES:
            raise CaptureError(f"standard input: more than {MAX_SPOOLED_BYTES >> 30} GiB; with --broker, give a file")
        spool.write(chunk)


def closing(capture: CaptureFile | Source) -> AbstractContextManager[CaptureFile | Source]:
    return capture if isinstance(capture, CaptureFile) else nullcontext(capture)


def _learn(capture: CaptureFile | Source, ports: Ports) -> Cluster:
    """Read a capture to learn about its cluster."""
    with closing(capture):
        decoder = Decoder(capture, ports)
        for _ in _with_progress(capture, decoder.messages()):
            pass
        return decoder.cluster


def _with_progress(capture: CaptureFile | Source, items: Iterator[T]) -> Iterator[T]:
    """Show a progress bar for a long file, unless output goes to the terminal."""
    if not isinstance(capture, CaptureFile):
        yield from items
        return
    progress = capture.progress
    if progress is None or progress[1] < _PROGRESS_FROM_BYTES or sys.stdout.isatty() or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console  # imported late: slow to import, and most output shows no progress
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(capture.name, total=progress[1])
        shown = 0.0
        for item in items:
            if time.monotonic() - shown > _PROGRESS_EVERY_S and (progress := capture.progress) is not None:
                bar.update(task, completed=progress[0])
                shown = time.monotonic()
            yield item
