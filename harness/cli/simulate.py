"""`kce simulate`: random schedules of operations and faults on clusters in memory, checked by invariants."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TextColumn

from kce.harness.errors import HarnessError
from kce.harness.simulation import STEPS, Result, schedule, shrunk, simulate

EXIT_VIOLATION = 3
_CHUNK = 20
#: what the length of a range can be
_MOST_SEEDS = sys.maxsize
_MOST_JOBS = 1000
#: the resource tracker would print a warning after a signal, when it removes the semaphores of the processes
_NO_WARNING = "ignore::UserWarning:multiprocessing.resource_tracker"


def _seeds(_ctx: click.Context, _param: click.Parameter, value: str) -> range:
    first, dots, last = value.partition("..")
    try:
        found = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a seed or a range such as 0..999") from None
    if not found:
        raise click.BadParameter(f"{value!r} is an empty range")
    if found[-1] - found[0] >= _MOST_SEEDS:
        raise click.BadParameter(f"{value!r} has more than {_MOST_SEEDS} seeds")
    return found


def _run_chunk(seeds: list[int], steps: int) -> list[Result]:
    """Simulate ``seeds``. What the process has loaded by then is no garbage to look for in each run."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    return [simulate(seed, schedule(seed, steps)) for seed in seeds]


@click.command(
    epilog="""\b
Examples:
  kce simulate --seeds 0..999 --jobs 2
  kce simulate --seed 4711 --trace trace.jsonl --record traffic.pcapng

A run is the same from the same seed on every machine. The exit code is 3 if an invariant was violated.
"""
)
@click.option(
    "--seeds",
    "--seed",
    "seeds",
    callback=_seeds,
    default="0..99",
    show_default=True,
    metavar="N[..M]",
    help="Seeds of the runs.",
)
@click.option("--steps", type=click.IntRange(1), default=STEPS, show_default=True, help="Operations of each run.")
@click.option(
    "--jobs", type=click.IntRange(1, _MOST_JOBS), default=1, show_default=True, help="Number of parallel processes."
)
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), help="With one seed: write each frame as JSON."
)
@click.option("--record", type=click.Path(path_type=Path, dir_okay=False), help="With one seed: record a pcapng file.")
def simulate_(seeds: range, steps: int, jobs: int, trace: Path | None, record: Path | None) -> int:
    """Simulate clusters in memory: random operations and faults from a seed, and invariants that must hold.

    Of each violation it prints the seed, the invariant, and a shorter schedule that violates it, too.
    """
    logging.disable(logging.CRITICAL)
    if len(seeds) == 1:
        try:
            result = simulate(seeds[0], schedule(seeds[0], steps), trace=trace, record=record)
        except OSError as e:
            raise HarnessError(f"{trace} cannot be written: {e.strerror or e}") from None
        for number, step in enumerate(result.steps, start=1):
            click.echo(f"{number:3}  {step}")
        return _report([result], 1, None)
    if trace is not None or record is not None:
        raise click.UsageError("--trace and --record need one seed: --seeds N")
    begin = time.monotonic()
    violating: list[Result] = []
    done = 0
    try:
        with Progress(
            *Progress.get_default_columns(), TextColumn("{task.fields[found]} violations"),
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        ) as progress:  # fmt: skip
            task = progress.add_task("Simulating", total=len(seeds), found=0)
            for results in _chunks(seeds, steps, jobs):
                done += len(results)
                violating += [result for result in results if result.violations]
                progress.update(task, completed=done, found=len(violating))
    except OSError as e:
        raise HarnessError(f"a process for the simulation cannot be started: {e}") from None
    return _report(sorted(violating, key=lambda result: result.seed), done, time.monotonic() - begin)


def _chunks(seeds: range, steps: int, jobs: int) -> Iterator[list[Result]]:
    """The results of some seeds at a time, in any order. There may be more seeds than fit into memory."""
    chunks = (list(seeds[at : at + _CHUNK]) for at in range(0, len(seeds), _CHUNK))
    if jobs == 1:
        for chunk in chunks:
            yield _run_chunk(chunk, steps)
        return
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), _NO_WARNING)))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(_run_chunk, chunk, steps) for chunk in islice(chunks, 2 * jobs)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(_run_chunk, chunk, steps) for chunk in islice(chunks, len(done))}
            for future in done:
                yield future.result()


def _report(violating: list[Result], done: int, seconds: float | None) -> int:
    found = [result for result in violating if result.violations]
    for result in found:
        click.echo(f"seed {result.seed}:")
        for violation in result.violations:
            click.echo(f"  {violation}")
        short = shrunk(result)
        click.echo(f"  {len(short.steps)} of its {len(result.steps)} steps suffice:")
        for step in short.steps:
            click.echo(f"    {step}")
    pace = "" if seconds is None else f", {60 * done / max(seconds, 0.001):.0f} a minute"
    click.echo(f"{done} run{'' if done == 1 else 's'}, {len(found)} with violations{pace}")
    return EXIT_VIOLATION if found else 0
