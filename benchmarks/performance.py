"""docs/performance.md: a table and a picture of the ratios of each area."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.rows import KAFKA, number, spread

HEAD = """# Performance

`make benchmarks` generates this page. Each row was measured beside its peer in the same run. A ratio above 1 is better
than the peer, whether more or less of the unit is better. Ranges are the least and the greatest of the repeats.
"""


def write_page(folder: Path, areas: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Write performance.md and performance/AREA.svg into ``folder``. ``areas``: title and results by name."""
    lines = [HEAD]
    for name, (title, result) in areas.items():
        rows = result["rows"]
        took = f", {result['minutes']} minutes" if "minutes" in result else ""
        lines += [
            f"\n## {title}\n",
            f"`python -m benchmarks.{name}`, {result['date']}, {result['machine']}{took}.\n",
            f"![ratios](performance/{name}.svg)\n",
            *(["![growth](performance/growth.svg)\n"] if name == "controller" else []),
            "| | ours | range | peer | | range | ratio |",
            "|---|---|---|---|---|---|---|",
            *(_line(row, found) for row, found in rows.items()),
        ]
        _draw(folder / "performance" / f"{name}.svg", rows)
        if name == "controller":
            _draw_growth(folder / "performance" / "growth.svg", rows)
    (folder / "performance.md").write_text("\n".join(lines) + "\n")


def _line(name: str, row: dict[str, Any]) -> str:
    cells = [f"`{name}`", f"{number(row['value'])} {row['unit']}", spread(row["spread"]), row["peer"]]
    if row["ratio"] is None:
        cells += ["", "", ""]
    else:
        cells += [number(row["peer_value"]), spread(row["peer_spread"]), f"{row['ratio']:.2f}"]
    return f"| {' | '.join(cells)} |"


def _draw_growth(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Seconds by number of partitions, on logarithmic axes: what grows linearly is a line of slope one."""
    with mpl.rc_context({"svg.hashsalt": "performance", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for what, colour in (("failover", "#2a7f62"), ("broker-death", "#30638e")):
            measured = {int(name.split("/")[1]): row for name, row in rows.items() if name.startswith(f"{what}/")}
            sizes = sorted(measured)
            axes.plot(sizes, [measured[n]["value"] for n in sizes], "o-", color=colour, label=what)
            beside = [n for n in sizes if measured[n]["peer"] == KAFKA and measured[n]["peer_value"] is not None]
            seconds = [measured[n]["peer_value"] for n in beside]
            axes.plot(beside, seconds, "s--", color=colour, alpha=0.6, label=f"{what}, {KAFKA}")
        axes.set(xscale="log", yscale="log", xlabel="partitions", ylabel="seconds")
        axes.grid(which="both", alpha=0.2)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _draw(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    """Horizontal bars of the ratios on a logarithmic axis; 1 is the peer."""
    drawn = {name: row for name, row in rows.items() if row["ratio"] is not None}
    path.parent.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "performance", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 0.8 + 0.26 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        ratios = [row["ratio"] for row in drawn.values()]
        labels = [f"{name}  ({row['peer']})" for name, row in drawn.items()]
        colours = ["#2a7f62" if ratio >= 1 else "#c0562f" for ratio in ratios]
        axes.barh(labels, [ratio - 1 for ratio in ratios], left=1, color=colours)
        axes.axvline(1, color="#444444", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(min(0.5, *ratios) / 1.5, max(2.0, *ratios) * 2)
        axes.invert_yaxis()
        axes.set_xlabel("times as good as the peer")
        axes.xaxis.set_major_formatter("{x:g}")
        for at, ratio in enumerate(ratios):
            axes.annotate(
                f"{ratio:.2f}", (max(ratio, 1), at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.tick_params(axis="y", labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
