"""What `kce replay` prints of requests, responses and verdicts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

import click

from kce import wire
from kce.captures.exchanges.pairing import Request
from kce.captures.exchanges.render import Renderer
from kce.captures.replay.asking import Target
from kce.captures.replay.recording import Recording, Step
from kce.captures.replay.replay import Outcome, Verdict, target_of
from kce.harness import recorded_layout


def show_requests(
    steps: list[Step],
    targets: dict[int | None, Target],
    rewrite: Callable[[Request], wire.Message],
    recording: Recording,
) -> int:
    """What would be sent to whom; the exit code."""
    renderer = Renderer(recording.cluster)
    for step in sorted(steps, key=lambda step: step.request.place):
        host, port = target_of(step, targets)
        request = dataclasses.replace(step.request, body=rewrite(step.request))
        click.echo(f"{renderer.line(request)} => {host}:{port}")
    click.echo(f"kce: {len(steps)} requests would be sent; {len(recording.left_out)} cannot be", err=True)
    return 0


def show_topics(topics: recorded_layout.Topics) -> None:
    """What would be created first."""
    for topic, partitions in topics.items():
        led = ", ".join(f"{partition} by {replicas[0]}" for partition, replicas in sorted(partitions.items()))
        click.echo(f"kce: topic {topic} would be created if it is missing; partitions led: {led}", err=True)


def show_answers(steps: list[Step], recording: Recording) -> int:
    """What an impersonated broker would answer; the exit code."""
    renderer = Renderer(recording.cluster)
    answers = [step.response for step in steps if step.response is not None]
    for response in sorted(answers, key=lambda response: response.request.place):
        click.echo(f"{renderer.line(response.request)} <= {renderer.line(response)}")
    click.echo(f"kce: {len(answers)} responses for matching requests", err=True)
    return 0


def show_outcomes(outcomes: list[Outcome], left_out: int) -> int:
    """The answers that differ from those in the capture, and how many there are of each verdict; the exit code."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    for outcome in outcomes:
        if outcome.verdict in (Verdict.DIFFERENT, Verdict.MISSING):
            click.echo(str(outcome))
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    sent = len(outcomes) - counts[Verdict.UNSENT]
    click.echo(
        f"{sent} requests replayed: {verdicts}"
        + (f"; {left_out} in the capture could not be replayed" if left_out else "")
    )
    return 1 if counts[Verdict.DIFFERENT] or counts[Verdict.MISSING] else 0
