"""Charts of the report as HTML on one time axis: the page sets which part of it is shown, and all lanes follow.

Times are shares of the whole span, in CSS variables: the style sheet places a mark by ``--t`` (and ``--u``, its end)
within the part from ``--a``, of the width ``--w``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from markupsafe import Markup, escape

from kce.captures.spark.analyses.analysis import Chart, Mark, Place
from kce.captures.spark.analyses.words import clock, duration
from kce.captures.spark.incidents import Incident, Step

#: The anchor of the packet in the page, if it is shown there.
Anchor = Callable[[Place], str | None]


class Axis:
    """From the first moment of a story to the last."""

    def __init__(self, times: Iterable[datetime.datetime]) -> None:
        moments = list(times)
        self.begin, self.end = min(moments), max(moments)
        self._seconds = max((self.end - self.begin).total_seconds(), 1e-6)

    @property
    def milliseconds(self) -> tuple[float, float]:
        """Since 1970, for the page's script."""
        return self.begin.timestamp() * 1000, (self.begin.timestamp() + self._seconds) * 1000

    def at(self, time: datetime.datetime) -> str:
        return f"{(time - self.begin).total_seconds() / self._seconds:.6f}"


def axis_of(charts: Iterable[Chart], incidents: Iterable[Incident]) -> Axis | None:
    """The axis that all share; None if nothing has a time."""
    marks = [mark for chart in charts for lane in chart.lanes for mark in lane.marks]
    times = [mark.begin for mark in marks] + [mark.end for mark in marks if mark.end is not None]
    times += [step.time for incident in incidents for step in incident.steps]
    return Axis(times) if times else None


def chart_html(chart: Chart, axis: Axis, anchor: Anchor) -> Markup:
    legend = "".join(f'<li><i class="k {look}"></i>{escape(text)}</li>' for look, text in chart.legend)
    lanes = "".join(
        f'<div class="lane"><span class="name">{escape(lane.label)}</span>'
        f'<div class="track">{"".join(_mark(mark, axis, anchor) for mark in lane.marks)}</div></div>'
        for lane in chart.lanes
    )
    return Markup(f'<ul class="legend">{legend}</ul><div class="chart">{lanes}</div>')  # noqa: S704 - escaped above


def _mark(mark: Mark, axis: Axis, anchor: Anchor) -> str:
    times = f"--t:{axis.at(mark.begin)}" + (f";--u:{axis.at(mark.end)}" if mark.end is not None else "")
    kind = f"m {mark.look}{'' if mark.end is None else ' span'}"
    title = escape(mark.title if mark.place is None else f"{mark.title} (packet {mark.place[1]})")
    to = None if mark.place is None else anchor(mark.place)
    if to is None:
        return f'<i class="{kind}" style="{times}" title="{title}"></i>'
    return f'<a class="{kind}" style="{times}" title="{title}" href="#{to}" tabindex="-1"></a>'


def strip_html(incident: Incident) -> Markup | None:
    """The steps of an incident to scale; None for one moment only."""
    steps = incident.steps
    axis = Axis(step.time for step in steps)
    if axis.begin == axis.end:
        return None
    parts = [
        f'<i class="m span {after.look}" style="--t:{axis.at(before.time)};--u:{axis.at(after.time)}" '
        f'title="{escape(f"{before.name} to {after.name}: {_between(before, after)}")}"></i>'
        for before, after in pairwise(steps)
    ]
    label = escape(", ".join(f"{step.name} at {clock(step.time)}" for step in steps))
    return Markup(f'<div class="strip" role="img" aria-label="{label}">{"".join(parts)}</div>')  # noqa: S704


def _between(before: Step, after: Step) -> str:
    return duration((after.time - before.time).total_seconds() * 1000)


def since_trigger(incident: Incident) -> Sequence[tuple[Step, str]]:
    """Each step and how long after the first it was."""
    return [(step, _between(incident.steps[0], step)) for step in incident.steps]
