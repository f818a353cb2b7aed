"""Shared parts of the report's pictures, which are SVG inside the page: nothing to load.

Colours, a figure of the page's width, a time axis, a legend, and ``svg``. The analyses draw (``spark/analyses``).
"""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

INK, MUTED, GRID, PAPER = "#1d2733", "#5b6773", "#dde2e8", "#ffffff"
BAR, ALARM = "#e3eaf2", "#b3261e"
CONTROL_COLOURS = {"LeaderAndIsr": "#1f5fa8", "UpdateMetadata": "#7fa6cf", "StopReplica": "#c47f17"}
OTHER_API = "#a9b4bf"
BROKER_COLOURS = ("#1f5fa8", "#c47f17", "#3c8a5a", "#8450a0", "#a8476b", "#4b8f99", "#7a6a3a", "#5566c0")
NO_LEADER = ALARM
JOINED = "#3c8a5a"

#: Maximum rows of a picture.
MAX_ROWS = 40

_WIDTH = 10.0
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
}


def style() -> AbstractContextManager[None]:
    """A context with the page's style."""
    return mpl.rc_context(_STYLE)


def figure(height: float) -> tuple[Figure, Axes]:
    made = Figure(figsize=(_WIDTH, height), layout="constrained")
    return made, made.subplots()


def days(time: datetime.datetime) -> float:
    """Days since 1970, as matplotlib counts them."""
    return time.timestamp() / 86400


def time_axis(axes: Axes) -> None:
    begin, end = axes.get_xlim()
    seconds = (end - begin) * 86400
    form = "%H:%M:%S.%f" if seconds < 8 else "%H:%M:%S" if seconds < 86400 else "%d %b %H:%M"
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=4, maxticks=9))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(lambda at, _: _clock(at, form))
    axes.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.01)


def _clock(at: float, form: str) -> str:
    text = datetime.datetime.fromtimestamp(round(at * 86400, 3), datetime.UTC).strftime(form)
    return text[:-3] if form.endswith("%f") else text


def line(colour: str, label: str) -> Artist:
    """A legend entry, like the next three."""
    return Line2D([], [], color=colour, linewidth=2.5, label=label)


def marker(colour: str, shape: str, label: str, **properties: Any) -> Artist:
    return Line2D([], [], color=colour, marker=shape, linestyle="none", label=label, **properties)


def patch(colour: str, label: str) -> Artist:
    return Patch(color=colour, label=label)


def hatched(colour: str, label: str) -> Artist:
    return Patch(facecolor=PAPER, edgecolor=colour, hatch="////", label=label)


def legend(axes: Axes, handles: Sequence[Any]) -> None:
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=8, frameon=False, fontsize=8.5,
        borderpad=0.2, handlelength=1.4, columnspacing=1.6, labelcolor=MUTED,
    )  # fmt: skip


def duration(ms: float) -> str:
    """``250 µs``, ``4 ms``, ``1.5 s``."""
    if ms >= 1000:
        return f"{ms / 1000:g} s"
    return f"{ms:g} ms" if ms >= 1 else f"{ms * 1000:g} µs"


def svg(drawn: Figure, name: str, label: str) -> str:
    """The figure as an SVG element. ``name`` makes its ids unique in the page, ``label`` describes it."""
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):  # reproducible and unique ids
        drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = re.sub(r'<g id="[^"]*"', "<g", element)  # ids of groups are unused and would repeat
    view = rf'<svg \1 role="img" aria-label="{label}">'
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', view, element, count=1)
