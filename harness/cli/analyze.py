"""`kce analyze`: captures, analysed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from kce.captures.exchanges import selection
from kce.captures.exchanges.ports import Ports
from kce.captures.exchanges.render import printable
from kce.extras import SPARK, require
from kce.harness.cli.options import check_span, parsed, ports_option, print_utf8
from kce.harness.interrupts import remove, remove_on_exit, temporary_files

if TYPE_CHECKING:
    from kce.captures.spark.analyses.analysis import Thresholds
    from kce.captures.spark.findings import Findings

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
  kce analyze --each *.pcapng --report reports/
  kce analyze day.pcapng --since 2026-11-21T02:45:22 --until 2026-11-21T02:50

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
@click.option(
    "--each", is_flag=True,
    help="Analyse each of FILES by itself, one after the other. --report is then a folder, for a report of each.",
)  # fmt: skip
@click.option(
    "--since", "since_ns", metavar="TIME", callback=parsed(selection.time_ns),
    help="Only requests from this time on (ISO 8601, UTC if it names no zone).",
)  # fmt: skip
@click.option(
    "--until", "until_ns", metavar="TIME", callback=parsed(selection.time_ns), help="Only requests before this time."
)
@ports_option
@click.option("--show-payloads", is_flag=True, help="Include records and credentials in the evidence.")
@click.option(
    "--master", metavar="URL",
    help="Run on this Spark cluster; local[*]: by Spark on this machine, however small the captures.",
)  # fmt: skip
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
    each: bool,
    since_ns: int | None,
    until_ns: int | None,
    ports: Ports,
    show_payloads: bool,
    master: str | None,
    event_log: str | None,
) -> int:
    """Analyse captures: controllers, leaders, fenced requests, latencies, outages, and what went wrong.

    FILES are pcap or pcapng, compressed or not: paths, globs or URIs. A connection may span several files. Spark
    analyses more than 1 GB, and more than some 500,000 requests or a million partition states; it needs Java.
    """
    if comparing and (len(files) != 2 or out is not None or event_log is not None or form == "parquet"):
        raise click.UsageError("--compare takes two FILES, and neither --out, --event-log nor --format parquet")
    if each and (comparing or out is not None or event_log is not None or form == "parquet"):
        raise click.UsageError("--each takes neither --compare, --out, --event-log nor --format parquet")
    if each and report is None and form not in (None, "text"):
        raise click.UsageError("--each --format needs --report, a folder")
    if form == "text" and report is not None:
        raise click.UsageError("--report is html, json, markdown or parquet; text is always printed")
    if form == "parquet":
        if (report is None) == (out is None):
            raise click.UsageError("--format parquet writes into a folder: give --report or --out, and one of them")
        out, report = out or report, None
    check_span(since_ns, until_ns)
    require(*SPARK, purpose="`kce analyze`")
    from kce.captures.spark import analyze as run  # slow to import
    from kce.captures.spark.analyses import ANALYSES
    from kce.captures.spark.exports import rendered
    from kce.captures.spark.job import Span
    from kce.captures.spark.text import print_findings

    span = Span(since_ns, until_ns)
    if unknown := [name for name in only if name not in ANALYSES]:
        raise click.UsageError(f"--only {unknown[0]}: no such analysis; there are {', '.join(ANALYSES)}")
    if comparing:
        return _compare(files[0], files[1], report, form, fail_on, only=only, ports=ports, span=span, master=master,
                        thresholds=_thresholds(thresholds))  # fmt: skip
    if each:
        return _each(files, report, form or "html", fail_on, only=only, ports=ports, span=span, master=master,
                     payloads=show_payloads, thresholds=_thresholds(thresholds))  # fmt: skip
    # a descriptor of its own: the output of Spark's JVM is redirected meanwhile
    with (
        temporary_files(),
        _removed_if_new(out),
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _status(Console(file=terminal)) as progress,
    ):
        findings = run(
            files, report=report, form="html" if form in (None, "text") else form, out=out, overwrite=overwrite,
            only=only, payloads=show_payloads, evidence=form in ("html", "json"), ports=ports, span=span,
            master=master, event_log=event_log, progress=progress, thresholds=_thresholds(thresholds),
        )  # fmt: skip
    if report is None and form in ("html", "json", "markdown"):
        print_utf8()
        click.echo(rendered(findings, form), nl=False)
    else:
        print_findings(findings, Console())
    for what, path in (("report", report), ("tables", out)):
        if path is not None:
            click.echo(f"kce: {what} in {path}", err=True)
    return _code(findings, fail_on)


def _code(findings: Findings, fail_on: str | None) -> int:
    if not findings.quality.sound:
        return 1
    return 3 if fail_on and any(f.severity in _FAILS[fail_on] for f in findings.findings()) else 0


def _each(files: tuple[str, ...], report: str | None, form: str, fail_on: str | None, **options: Any) -> int:
    """The exit code is 1 if that of any file is, else 3 if that of any file is."""
    from kce.captures.errors import CaptureError
    from kce.captures.files.locations import expand
    from kce.captures.spark.exports import ENDINGS, check_report, write_report
    from kce.captures.spark.job import analyze_each
    from kce.captures.spark.text import print_findings

    names = expand(files)
    reports: dict[str, str] = {}
    if report is not None:
        reports = {name: os.path.join(report, f"{os.path.basename(name)}{ENDINGS[form]}") for name in names}
        if len(set(reports.values())) < len(names):
            raise click.UsageError("--each --report: two of FILES have the same name")
        try:
            os.mkdir(report)
        except FileExistsError:  # if it is no folder, that is said below
            pass
        except OSError as e:
            raise CaptureError(f"{report}: the folder cannot be made ({e.strerror})") from None
        for path in reports.values():
            check_report(path, names)
    codes = set()
    with (
        temporary_files(),
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _status(Console(file=terminal)) as progress,
    ):
        for name, found in analyze_each(names, evidence=report is not None, progress=progress, **options):
            if isinstance(found, CaptureError):
                click.echo(f"kce: {found}", err=True)
                codes.add(1)
                continue
            if name in reports:
                write_report(found, reports[name], form)
            click.echo(f"# capture {printable(name)}")
            print_findings(found, Console())
            if name in reports:
                click.echo(f"kce: report in {reports[name]}", err=True)
            codes.add(_code(found, fail_on))
    return next((code for code in (1, 3) if code in codes), 0)


def _compare(before: str, after: str, report: str | None, form: str | None, fail_on: str | None, **options: Any) -> int:
    from kce.captures.files.locations import expand
    from kce.captures.spark.compare import FORMS as FORMS_OF_COMPARISON
    from kce.captures.spark.exports import check_report, write_text
    from kce.captures.spark.job import analyze_both

    if report is not None:
        check_report(report, expand([before, after]))
    with (
        temporary_files(),
        os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal,
        _status(Console(file=terminal)) as progress,
    ):
        compared = analyze_both(before, after, progress=progress, **options)
    if report is None:
        if form in ("html", "json"):
            print_utf8()
        click.echo(FORMS_OF_COMPARISON[form or "text"](compared), nl=False)
    else:
        write_text(FORMS_OF_COMPARISON["html" if form is None else form](compared), report)
        click.echo(FORMS_OF_COMPARISON["text"](compared), nl=False)
        click.echo(f"kce: report in {report}", err=True)
    if not compared.sound:
        return 1
    return 3 if fail_on and any(f.severity in _FAILS[fail_on] for f in compared.new) else 0


@contextmanager
def _removed_if_new(out: str | None) -> Iterator[None]:
    """A signal or a failure leaves no folder with only a part of the tables, unless it was there before."""
    if out is None or Path(out).exists():
        yield
        return
    with remove_on_exit(out):
        try:
            yield
        except BaseException:
            remove(out)
            raise


def _thresholds(settings: tuple[str, ...]) -> Thresholds:
    from kce.captures.spark.analyses.analysis import THRESHOLDS

    names = [field.name for field in fields(THRESHOLDS)]
    values: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        if name not in names:
            raise click.UsageError(f"--threshold {setting}: there are {', '.join(names)}")
        try:
            values[name] = float(text)
        except ValueError:
            raise click.UsageError(f"--threshold {setting}: not NAME=VALUE, such as outage_ms=500") from None
        if not values[name] >= 0:
            raise click.UsageError(f"--threshold {setting}: not a number from 0 on")
    return replace(THRESHOLDS, **values)


@contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """Show the current step on a terminal."""
    if not console.is_terminal:
        yield lambda step: None
        return
    with console.status("starting") as status:
        yield lambda step: status.update(f"{step} …")
