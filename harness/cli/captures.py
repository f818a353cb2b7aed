"""`kce decode` and `kce analyze`: decode and analyse captures."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from rich.console import Console
from rich.progress import Progress

from kce.captures.errors import CaptureError
from kce.captures.exchanges import selection
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.decode import Decoder, Source
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.exchanges.ports import Ports
from kce.captures.exchanges.render import Renderer, json_line
from kce.captures.exchanges.summary import Summary
from kce.captures.files.locations import expand
from kce.captures.files.pcap import CaptureFile
from kce.captures.tcp.incident import Incident
from kce.captures.tcp.tls import Decrypted
from kce.extras import SPARK, require
from kce.harness.cli.options import ports_option
from kce.harness.interrupts import remove_on_exit, temporary_files
from kce.harness.java import find_java

#: Maximum size of a capture on stdin that must be read twice (for --broker) and is kept on disk.
MAX_SPOOLED_BYTES = 4 * 1024**3

#: Smaller files are read before a progress bar would show.
_PROGRESS_FROM_BYTES = 8 * 1024**2
_PROGRESS_EVERY = 500

if TYPE_CHECKING:
    from kce.captures.spark.analyses.analysis import Thresholds

_FILE = "-"


def each(parse: Callable[[str], int]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that parses an option's values; a ValueError of ``parse`` is a usage error."""

    def convert(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(text) for text in value)
            return None if value is None else parse(value)
        except ValueError as e:
            raise click.BadParameter(str(e)) from None

    return convert


@click.command(
    epilog="""\b
Examples:
  kce decode incident.pcapng
  kce decode broker-*.pcapng s3://bucket/broker-4.pcap.zst
  kce decode incident.pcap.gz --api LeaderAndIsr --api UpdateMetadata --broker 2
  kce decode incident.pcapng --since 2026-11-21T02:45:22 --until 2026-11-21T02:45:23.5 --json | jq .body
  kce decode incident.pcapng --summary
  tcpdump -i lo -w - tcp | kce decode -

The exit code is 1 if a file is not a capture, is damaged or truncated, or holds something other than the
traffic of a ZooKeeper-mode Kafka cluster. What could be decoded is still printed.
"""
)
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines with the full bodies.")
@click.option(
    "--api", "apis", multiple=True, metavar="NAME", callback=each(selection.api_key),
    help="Only this API, such as LeaderAndIsr, in any case; may be repeated.",
)  # fmt: skip
@click.option(
    "--broker", "brokers", multiple=True, metavar="ID|HOST:PORT",
    help="Only requests to this broker and its responses; may be repeated. Ids are learnt from UpdateMetadata.",
)  # fmt: skip
@click.option(
    "--since", "--from", "since_ns", metavar="TIME", callback=each(selection.time_ns),
    help="Only from this time on (ISO 8601, UTC if it names no zone).",
)  # fmt: skip
@click.option(
    "--until", "--to", "until_ns", metavar="TIME", callback=each(selection.time_ns), help="Only before this time."
)
@click.option(
    "--summary", is_flag=True, help="Print counts by API, controllers by epoch and brokers instead of messages."
)
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
    ports: Ports,
    tls_keys: str | None,
    show_payloads: bool,
) -> int:
    """Print every request and response in a capture, one line each, in the order of the packets that complete them.

    FILES are pcap or pcapng, plain or compressed with gzip or zstd: paths, globs, URIs of remote storage, or - for
    standard input. Several files are one incident: a packet captured by several hosts is printed once, and times are
    those of the first host's clock.
    """
    names = expand(files)
    if len(names) > 1 and _FILE in names:
        raise CaptureError("standard input cannot be one of several files")
    if tls_keys is not None and len(names) > 1:
        raise CaptureError("--tls-keys needs a single file")
    file = names[0]
    with opened(names, tls_keys, twice=bool(brokers)) as open_capture:
        cluster = _learn(open_capture(), ports) if brokers else None
        try:
            wanted = selection.Selection(
                api_keys=apis, brokers=brokers, cluster=cluster, since_ns=since_ns, until_ns=until_ns
            )
        except ValueError as e:
            raise click.UsageError(f"{', '.join(names)}: {e}") from None
        with closing(open_capture()) as capture:
            decoder = Decoder(capture, ports)
            if summary:
                return _summarise(capture, decoder, wanted)
            renderer = Renderer(decoder.cluster, colour=sys.stdout.isatty())
            try:
                for message in _with_progress(capture, decoder.messages()):
                    if message in wanted:
                        line = (
                            json_line(message, decoder.cluster, payloads=show_payloads)
                            if as_json
                            else renderer.line(message)
                        )
                        sys.stdout.write(line + "\n")
                        if file == _FILE:
                            sys.stdout.flush()  # for a live capture
                sys.stdout.flush()
            except BrokenPipeError:  # `kce decode ... | head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
    for line in (decoder.quality.summary(), *decoder.quality.lines()):
        click.echo(f"kce: {line}", err=True)
    return 0 if decoder.quality.sound else 1


def _summarise(capture: CaptureFile | Source, decoder: Decoder, wanted: selection.Selection) -> int:
    counted = Summary()
    counted.count(message for message in _with_progress(capture, decoder.messages()) if message in wanted)
    for line in counted.lines(decoder.cluster, decoder.quality):
        click.echo(line)
    return 0 if decoder.quality.sound else 1


@contextmanager
def opened(names: list[str], tls_keys: str | None, *, twice: bool) -> Iterator[Callable[[], CaptureFile | Source]]:
    """A function that opens the files; standard input is spooled to disk if it is opened ``twice``."""
    if len(names) > 1:
        yield lambda: Incident(names)
    elif tls_keys is not None:
        yield lambda: Decrypted(names[0], tls_keys)
    elif names[0] != _FILE:
        yield lambda: CaptureFile(names[0])
    elif not twice:
        yield lambda: CaptureFile(sys.stdin.buffer, "standard input")
    else:
        with tempfile.TemporaryFile() as spool:
            _spool(sys.stdin.buffer, spool)

            def again() -> CaptureFile:
                spool.seek(0)
                return CaptureFile(spool, "standard input")

            yield again


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


def _with_progress(
    capture: CaptureFile | Source, messages: Iterator[Request | Response]
) -> Iterator[Request | Response]:
    """Show a progress bar for a long file, unless output goes to the terminal."""
    if not isinstance(capture, CaptureFile):
        yield from messages
        return
    progress = capture.progress
    if progress is None or progress[1] < _PROGRESS_FROM_BYTES or sys.stdout.isatty() or not sys.stderr.isatty():
        yield from messages
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(capture.name, total=progress[1])
        for count, message in enumerate(messages):
            if count % _PROGRESS_EVERY == 0 and (progress := capture.progress) is not None:
                bar.update(task, completed=progress[0])
            yield message


FORMATS = ("text", "html", "json", "parquet", "markdown")

#: Severities that ``--fail-on`` counts.
_FAILS = {"alarm": ("alarm",), "finding": ("alarm", "warning")}


@click.command(
    epilog="""\b
Examples:
  kce analyze incident.pcapng
  kce analyze *.pcap.gz --report report.html --out tables/
  kce analyze ci.pcapng --only zombies --only unclean_elections --fail-on alarm
  kce analyze incident.pcapng --format markdown > incident.md
  kce analyze before.pcapng after.pcapng --compare --report comparison.html

The exit code is 1 if a file is not a capture, is damaged or truncated, or holds something other than the
traffic of a ZooKeeper-mode Kafka cluster; otherwise it is 3 for a finding that --fail-on names.
"""
)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--report", type=click.Path(), metavar="FILE",
    help="Write a report: HTML with pictures, or the --format given.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(FORMATS),
    help="Format of the report or, without --report, of the output. Parquet needs --report or --out, a folder.",
)  # fmt: skip
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write all tables as Parquet.",
)
@click.option("--overwrite", is_flag=True, help="Replace tables in the folder of --out.")
@click.option(
    "--only", multiple=True, metavar="NAME",
    help="Run only this analysis, named like its table; may be repeated.",
)  # fmt: skip
@click.option(
    "--fail-on", type=click.Choice(list(_FAILS)),
    help="Exit with 3 at an alarm; with `finding`, at an alarm or a warning.",
)  # fmt: skip
@click.option(
    "--threshold", "thresholds", multiple=True, metavar="NAME=VALUE",
    help="Thresholds of warnings: outage_ms, slow_control_ms, slow_news_ms (1000 each), "
    "isr_storm_shrinks (3); may be repeated.",
)  # fmt: skip
@click.option(
    "--compare", "comparing", is_flag=True,
    help="Show what differs between two FILES in counts, order, latencies and findings. --fail-on then counts only "
    "findings of the second.",
)  # fmt: skip
@ports_option
@click.option("--show-payloads", is_flag=True, help="Include records and credentials in the evidence.")
@click.option("--master", metavar="URL", help="Run on this Spark cluster instead of this machine.")
@click.option("--event-log", type=click.Path(file_okay=False), metavar="DIR", help="Keep Spark's event log there.")
def analyze(
    files: tuple[str, ...],
    report: str | None,
    form: str | None,
    out: str | None,
    overwrite: bool,
    only: tuple[str, ...],
    fail_on: str | None,
    thresholds: tuple[str, ...],
    comparing: bool,
    ports: Ports,
    show_payloads: bool,
    master: str | None,
    event_log: str | None,
) -> int:
    """Analyse captures with Spark: controllers, leaders, fenced requests, latencies, outages, and what went wrong.

    FILES are pcap or pcapng, compressed or not: paths, globs or URIs. A connection may span several files.
    """
    if comparing and (len(files) != 2 or out is not None or event_log is not None or form == "parquet"):
        raise click.UsageError("--compare takes two FILES, and neither --out, --event-log nor --format parquet")
    if form == "text" and report is not None:
        raise click.UsageError("--report is html, json, markdown or parquet; text is always printed")
    if form == "parquet":
        if (report is None) == (out is None):
            raise click.UsageError("--format parquet writes into a folder: give --report or --out, and one of them")
        out, report = out or report, None
    require(*SPARK, purpose="`kce analyze`")
    find_java()  # Spark finds the same one
    from kce.captures.spark import analyze as run  # slow to import
    from kce.captures.spark.analyses import ANALYSES
    from kce.captures.spark.exports import rendered
    from kce.captures.spark.text import print_findings

    if unknown := [name for name in only if name not in ANALYSES]:
        raise click.UsageError(f"--only {unknown[0]}: no such analysis; there are {', '.join(ANALYSES)}")
    if comparing:
        return _compare(files[0], files[1], report, form, fail_on, only=only, ports=ports, master=master,
                        thresholds=_thresholds(thresholds))  # fmt: skip
    # a descriptor of its own: the output of Spark's JVM is redirected meanwhile
    with (
        temporary_files(),
        _removed_if_new(out),
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _status(Console(file=terminal)) as progress,
    ):
        findings = run(
            files, report=report, form="html" if form in (None, "text") else form, out=out, overwrite=overwrite,
            only=only, payloads=show_payloads, evidence=form in ("html", "json"), ports=ports, master=master,
            event_log=event_log, progress=progress, thresholds=_thresholds(thresholds),
        )  # fmt: skip
    if report is None and form in ("html", "json", "markdown"):
        click.echo(rendered(findings, form), nl=False)
    else:
        print_findings(findings, Console())
    for what, path in (("report", report), ("tables", out)):
        if path is not None:
            click.echo(f"kce: {what} in {path}", err=True)
    if not findings.quality.sound:
        return 1
    return 3 if fail_on and any(f.severity in _FAILS[fail_on] for f in findings.findings()) else 0


def _compare(before: str, after: str, report: str | None, form: str | None, fail_on: str | None, **options: Any) -> int:
    from kce.captures.spark.compare import FORMS as FORMS_OF_COMPARISON
    from kce.captures.spark.exports import check_report, write_text
    from kce.captures.spark.job import analyze_both

    if report is not None:
        check_report(report)
    with (
        temporary_files(),
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _status(Console(file=terminal)) as progress,
    ):
        compared = analyze_both(before, after, progress=progress, **options)
    if report is None:
        click.echo(FORMS_OF_COMPARISON[form or "text"](compared), nl=False)
    else:
        write_text(FORMS_OF_COMPARISON["html" if form is None else form](compared), report)
        click.echo(FORMS_OF_COMPARISON["text"](compared), nl=False)
        click.echo(f"kce: report in {report}", err=True)
    if not compared.sound:
        return 1
    return 3 if fail_on and any(f.severity in _FAILS[fail_on] for f in compared.new) else 0


def _removed_if_new(out: str | None) -> AbstractContextManager[None]:
    """A signal leaves no folder with only a part of the tables, unless it was there before."""
    return nullcontext() if out is None or Path(out).exists() else remove_on_exit(out)


def _thresholds(settings: tuple[str, ...]) -> Thresholds:
    from kce.captures.spark.analyses.analysis import THRESHOLDS

    values: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            raise click.UsageError(f"--threshold {setting}: not NAME=VALUE, such as outage_ms=500") from None
    try:
        return replace(THRESHOLDS, **values)
    except TypeError:
        names = ", ".join(f.name for f in fields(THRESHOLDS))
        raise click.UsageError(f"--threshold {settings[-1]}: there are {names}") from None


@contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal."""
    if not console.is_terminal:
        yield lambda step: None
        return
    with console.status("starting") as status:
        yield lambda step: status.update(f"{step} …")
