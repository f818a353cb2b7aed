"""The pictures of the report, as SVG that stands in the page: no scripts, no fonts, nothing to load."""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from captures.spark.findings import Controller, Latency, LatencyCount, LeadershipChange, RequestCount, Tick

INK, MUTED, GRID, PAPER = "#1d2733", "#5b6773", "#dde2e8", "#ffffff"
BAR, ALARM = "#e3eaf2", "#b3261e"
CONTROL_COLOURS = {"LeaderAndIsr": "#1f5fa8", "UpdateMetadata": "#7fa6cf", "StopReplica": "#c47f17"}
BROKER_COLOURS = ("#1f5fa8", "#c47f17", "#3c8a5a", "#8450a0", "#a8476b", "#4b8f99", "#7a6a3a", "#5566c0")
NO_LEADER_COLOUR = ALARM
JOINED = "#3c8a5a"

#: Rows that one picture shows; more would be too small to read.
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


def controller_timeline(controllers: Sequence[Controller], ticks: Sequence[Tick]) -> str | None:
    """Epochs as bars over time, their control requests as ticks, refused ones marked."""
    if not controllers:
        return None
    shown = controllers[-MAX_ROWS:]
    rows = {(c.controller_epoch, c.controller_id): i for i, c in enumerate(shown)}
    shown_ticks = [t for t in ticks if (t.controller_epoch, t.controller_id) in rows]
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.62 * len(shown) + 1.0)
        span = max(c.last_time for c in shown) - min(c.first_time for c in shown)
        least = max(span.total_seconds(), 0.001) / 86400 / 250  # so that a single request is still to be seen
        for controller, row in zip(shown, range(len(shown)), strict=True):
            begin, end = _x(controller.first_time), _x(controller.last_time)
            axes.barh(row, max(end - begin, least), left=begin, height=0.62, color=BAR, zorder=1)
        for api, colour in CONTROL_COLOURS.items():
            of_api = [
                t for t in ticks if t.api == api and not t.fenced and (t.controller_epoch, t.controller_id) in rows
            ]
            at = [rows[t.controller_epoch, t.controller_id] for t in of_api]
            offset = {"LeaderAndIsr": -0.17, "UpdateMetadata": 0.0, "StopReplica": 0.17}[api]
            axes.vlines(
                [_x(t.time) for t in of_api], [y + offset - 0.075 for y in at], [y + offset + 0.075 for y in at],
                color=colour, linewidth=1.3, zorder=2,
            )  # fmt: skip
        fenced = [t for t in shown_ticks if t.fenced]
        axes.scatter(
            [_x(t.time) for t in fenced], [rows[t.controller_epoch, t.controller_id] for t in fenced],
            marker="x", s=42, linewidths=1.8, color=ALARM, zorder=3,
        )  # fmt: skip
        axes.set_yticks(range(len(shown)), [f"epoch {c.controller_epoch}: controller {c.controller_id}" for c in shown])
        axes.invert_yaxis()
        _time_axis(axes)
        legend = [Line2D([], [], color=colour, linewidth=2.5, label=api) for api, colour in CONTROL_COLOURS.items()]
        if fenced:
            legend.append(
                Line2D([], [], color=ALARM, marker="x", linestyle="none", markeredgewidth=1.8, label="refused as stale")
            )
        _legend(axes, legend)
        return _svg(figure, "timeline", "Epochs of controllers over time with their control requests")


def leadership_timeline(changes: Sequence[LeadershipChange], end: datetime.datetime | None) -> str | None:
    """Who led each partition when: one row each, coloured by leader."""
    moved = {(c.topic, c.topic_id, c.partition) for c in changes if c.from_leader is not None and c.to_leader != -2}
    keys = sorted(moved, key=lambda key: (key[0], key[2], key[1] or ""))[:MAX_ROWS]
    if not keys:
        return None
    leaders = sorted({c.to_leader for c in changes if c.to_leader >= 0})
    colours = {leader: BROKER_COLOURS[i % len(BROKER_COLOURS)] for i, leader in enumerate(leaders)} | {-1: PAPER}
    last = max([c.time for c in changes] + ([end] if end is not None else []))
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.27 * len(keys) + 1.0)
        for row, key in enumerate(keys):
            of_key = [c for c in changes if (c.topic, c.topic_id, c.partition) == key]
            for change, until in zip(of_key, [*(c.time for c in of_key[1:]), last], strict=True):
                if change.to_leader == -2:
                    continue  # nothing is drawn of what is deleted
                begin = _x(change.time)
                headless = change.to_leader == -1
                axes.barh(
                    row, _x(until) - begin, left=begin, height=0.66, color=colours[change.to_leader],
                    edgecolor=NO_LEADER_COLOUR if headless else PAPER, linewidth=1.0 if headless else 0.6,
                    hatch="////" if headless else None, zorder=2,
                )  # fmt: skip
        axes.set_yticks(range(len(keys)), [f"{topic}-{partition}" for topic, _, partition in keys])
        axes.invert_yaxis()
        _time_axis(axes)
        legend = [Patch(color=colours[leader], label=f"broker {leader}") for leader in leaders]
        if any(c.to_leader == -1 for c in changes):
            legend.append(Patch(facecolor=PAPER, edgecolor=NO_LEADER_COLOUR, hatch="////", label="no leader"))
        _legend(axes, legend)
        return _svg(figure, "leadership", "Leader of each partition over time")


def isr_timeline(changes: Sequence[Any], bounces: Sequence[Any]) -> str | None:
    """Replicas that fell out of sync and came back, by broker over time, and brokers that came back."""
    brokers = sorted({b for c in changes for b in (*c.left, *c.joined)} | {b.broker_id for b in bounces})[:MAX_ROWS]
    if not brokers:
        return None
    rows = {broker: row for row, broker in enumerate(brokers)}
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.5 * len(brokers) + 1.0)
        for attribute, colour, below in (("left", ALARM, 0.02), ("joined", JOINED, -0.3)):
            ticks = [(_x(c.time), rows[b] + below) for c in changes for b in getattr(c, attribute) if b in rows]
            axes.vlines(
                [x for x, _ in ticks], [y for _, y in ticks], [y + 0.28 for _, y in ticks], color=colour, linewidth=1.3,
                zorder=2,
            )  # fmt: skip
        back = [b for b in bounces if b.broker_id in rows]
        axes.scatter(
            [_x(b.back_time) for b in back], [rows[b.broker_id] - 0.38 for b in back], marker="v", s=26, color=INK,
            zorder=3,
        )  # fmt: skip
        axes.set_yticks(range(len(brokers)), [f"broker {broker}" for broker in brokers])
        axes.set_ylim(len(brokers) - 0.5, -0.6)
        _time_axis(axes)
        _legend(
            axes,
            [
                Line2D([], [], color=ALARM, linewidth=2.5, label="fell out of an ISR"),
                Line2D([], [], color=JOINED, linewidth=2.5, label="came into an ISR"),
                Line2D([], [], color=INK, marker="v", linestyle="none", markersize=5, label="broker came back"),
            ],
        )
        return _svg(figure, "isr", "Replicas that left and joined in-sync replicas, by broker over time")


def requests_by_api(requests: Sequence[RequestCount]) -> str | None:
    """How many requests of each API."""
    if not requests:
        return None
    totals: dict[str, int] = {}
    for row in requests:
        totals[row.api] = totals.get(row.api, 0) + row.requests
    names = sorted(totals, key=lambda name: (-totals[name], name))[:MAX_ROWS]
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.25 * len(names) + 0.35)
        colours = [CONTROL_COLOURS.get(name, "#a9b4bf") for name in names]
        bars = axes.barh(range(len(names)), [totals[name] for name in names], height=0.66, color=colours)
        axes.bar_label(bars, [f"{totals[name]:,}" for name in names], padding=4, color=MUTED, fontsize=8.5)
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.1, y=0.02)
        return _svg(figure, "requests", "Requests by API")


def latency_distribution(latency: Sequence[Latency], counts: Sequence[LatencyCount]) -> str | None:
    """How long requests took, on a logarithmic scale: one row for each API and listener."""
    if not latency:
        return None
    shown = latency[:MAX_ROWS]
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(0.36 * len(shown) + 1.0)
        for row, measured in enumerate(shown):
            key = (measured.api, measured.version, measured.listener)
            of_row = [c for c in counts if (c.api, c.version, c.listener) == key]
            most = max((c.requests for c in of_row), default=1)
            colour = CONTROL_COLOURS.get(measured.api, "#a9b4bf")
            step = 10 ** (1 / 16)  # half a bar of the histogram, which has eight to a factor of ten
            for count in of_row:
                height = 0.12 + 0.62 * count.requests / most
                axes.bar(
                    count.ms / step, height, width=count.ms * (step - 1 / step), bottom=row + 0.37 - height,
                    align="edge", color=colour, zorder=2,
                )  # fmt: skip
            axes.plot([measured.p50_ms], [row + 0.44], marker="^", markersize=5, color=INK, zorder=3)
            axes.plot([measured.p99_ms], [row + 0.44], marker="^", markersize=5, color=ALARM, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: _milliseconds(value))
        axes.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
        axes.tick_params(axis="x", which="both", length=0)
        axes.set_yticks(range(len(shown)), [f"{m.api} {m.version} · {m.listener}" for m in shown])
        axes.set_ylim(len(shown) - 0.35, -0.55)
        _legend(
            axes,
            [
                Line2D([], [], color=INK, marker="^", linestyle="none", label="median"),
                Line2D([], [], color=ALARM, marker="^", linestyle="none", label="99th percentile"),
            ],
        )
        return _svg(figure, "latency", "Distribution of request latencies by API and listener")


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _x(time: datetime.datetime) -> float:
    """Days since 1970, as matplotlib counts them."""
    return time.timestamp() / 86400


def _time_axis(axes: Axes) -> None:
    begin, end = axes.get_xlim()
    seconds = (end - begin) * 86400
    form = "%H:%M:%S.%f" if seconds < 8 else "%H:%M:%S" if seconds < 86400 else "%d %b %H:%M"
    axes.xaxis.set_major_locator(AutoDateLocator(minticks=4, maxticks=9))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(lambda days, _: _clock(days, form))
    axes.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    axes.margins(x=0.01)


def _clock(days: float, form: str) -> str:
    text = datetime.datetime.fromtimestamp(round(days * 86400, 3), datetime.UTC).strftime(form)
    return text[:-3] if form.endswith("%f") else text


def _legend(axes: Axes, handles: Sequence[Any]) -> None:
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=8, frameon=False, fontsize=8.5,
        borderpad=0.2, handlelength=1.4, columnspacing=1.6, labelcolor=MUTED,
    )  # fmt: skip


def _milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:g} s"
    return f"{value:g} ms" if value >= 1 else f"{value * 1000:g} µs"


def _svg(figure: Figure, name: str, label: str) -> str:
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):  # the same input gives the same page, and no id occurs twice in it
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing refers to groups, and several pictures share a page
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg \1 role="img" aria-label="{label}">', svg, count=1)
