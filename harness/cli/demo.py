"""`kce demo`: failures in a cluster, recorded and explained."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import click
from rich.console import Console

from kce.extras import SPARK, require
from kce.harness import interrupts
from kce.harness.cli.options import plain_console
from kce.harness.demo import Step, play
from kce.harness.errors import HarnessError
from kce.java import find_java, java_home


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo"), show_default=True,
    help="Folder for capture.pcapng and report.html.",
)  # fmt: skip
def demo(out: Path) -> int:
    """Show a cluster with failures in under a minute and a half, on real sockets with a real ZooKeeper.

    Three nodes and two topics; the active controller is killed; the next becomes a zombie and is fenced; a broker is
    restarted; /controller is deleted by hand. All of it is recorded, and the recording is explained.
    """
    require(*SPARK, purpose="`kce demo`")
    begin = time.monotonic()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    os.environ["JAVA_HOME"] = java_home(find_java())
    capture, report = out / "capture.pcapng", out / "report.html"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in (capture, report):
            old.unlink(missing_ok=True)
    except OSError as e:
        raise HarnessError(f"the folder {out} is not writable: {e.strerror or e}") from None
    progress = Console(stderr=True, highlight=False)
    with progress.status("Starting ZooKeeper and three nodes") as status:

        def report_progress(text: str) -> None:
            status.update(text)
            if not progress.is_terminal:
                progress.print(f"[{time.monotonic() - begin:4.1f} s] {text}", markup=False, soft_wrap=True)

        steps = interrupts.run(play, capture, report_progress)
        report_progress("Analysing the recording")
        from kce.captures.spark import analyze  # here, for it takes a while to import

        with interrupts.temporary_files():
            findings = analyze([str(capture)], report=str(report))
    console = plain_console()
    console.print("[bold]Steps[/]")
    for number, step in enumerate(steps, start=1):
        _print_step(console, number, step)
    console.print("\n[bold]Findings in the recording[/]")
    for sentence in findings.sentences():
        console.print(f"  - {sentence}", markup=False)
    console.print(f"\nReport     {report}\nRecording  {capture}   (kce decode {capture})")
    console.print(
        f"Again      kce replay {capture} --as controller --controller-epoch +10 --broker-epoch current --restart   "
        "(next to a new `kce up`)"
    )
    console.print(f"Took {time.monotonic() - begin:.0f} s.")
    return 0


def _print_step(console: Console, number: int, step: Step) -> None:
    console.print(f"{number:2}. {step.title}", markup=False)
    facts = []
    if step.after is not None and step.after != step.before:
        was = f"node {step.before.id} of epoch {step.before.epoch} -> " if step.before else ""
        facts.append(f"controller: {was}node {step.after.id} of epoch {step.after.epoch}")
    if step.failover_ms is not None:
        facts.append(
            f"failover: {step.failover_ms:.0f} ms from the deletion of /controller to the last of "
            f"{step.control_requests} control responses"
        )
    if step.moved:
        moves = ", ".join(f"{partition} {before}->{after}" for partition, (before, after) in step.moved.items())
        facts.append(f"leaders moved: {moves}")
    if step.zombie_epoch:
        facts.append(f"{step.fenced} of them are fenced with STALE_CONTROLLER_EPOCH")
    for fact in [*facts, *step.notes]:
        console.print(f"      {fact}", markup=False)
