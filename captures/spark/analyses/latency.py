"""Time from request to response, by API, version and listener."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kce.captures.spark.analyses.analysis import Analysis, Auxiliary, Frames, Results, Section, Shown
from kce.captures.spark.analyses.common import as_table
from kce.captures.tables.rows import BROKER, Column, Table

TABLE = Table(
    "latency",
    "Time from request to response, by API, version and listener.",
    (
        Column("api_key", pa.int16(), ""),
        Column("api", pa.string(), ""),
        Column("version", pa.int16(), ""),
        BROKER[1],
        Column("requests", pa.int64(), "those answered"),
        Column("p50_ms", pa.float64(), ""),
        Column("p90_ms", pa.float64(), ""),
        Column("p99_ms", pa.float64(), ""),
        Column("max_ms", pa.float64(), ""),
    ),
)

COUNTS = Table(
    "latency_counts",
    "The distribution of request durations: the count of each bucket.",
    (
        Column("api", pa.string(), ""),
        Column("version", pa.int16(), ""),
        BROKER[1],
        Column("ms", pa.float64(), ""),
        Column("requests", pa.int64(), ""),
    ),
)

#: Bars of the picture in a factor of ten.
_STEPS_PER_DECADE = 8


def run(of: Frames) -> DataFrame:
    answered = of.exchanges.where("latency_ms is not null")
    shares = f.percentile("latency_ms", f.array(f.lit(0.5), f.lit(0.9), f.lit(0.99)))
    measured = (
        answered.groupBy("api_key", "api", "version", "listener")
        .agg(f.count("*").alias("requests"), shares.alias("p"), f.max("latency_ms").alias("max_ms"))
        .withColumns({name: f.col("p")[i] for i, name in enumerate(("p50_ms", "p90_ms", "p99_ms"))})
    )
    return as_table(TABLE, measured).orderBy("api_key", "version", "listener")


def latency_counts(of: Frames) -> DataFrame:
    """A histogram with a logarithmic scale."""
    step = f.floor(f.log10(f.greatest("latency_ms", f.lit(1e-3))) * _STEPS_PER_DECADE)
    counted = (
        of.exchanges.where("latency_ms is not null")
        .groupBy("api", "version", "listener", step.alias("step"))
        .agg(f.count("*").alias("requests"))
        .withColumn("ms", f.pow(f.lit(10.0), (f.col("step") + 0.5) / _STEPS_PER_DECADE))
    )
    return as_table(COUNTS, counted).orderBy("api", "version", "listener", "ms")


def picture(found: Results) -> str | None:
    """The distribution on a logarithmic scale: one row for each API and listener."""
    if not found.latency:
        return None
    from kce.captures.spark import drawing as d  # here, for matplotlib takes a while to import

    shown = found.latency[: d.MAX_ROWS]
    with d.style():
        figure, axes = d.figure(0.36 * len(shown) + 1.0)
        for row, measured in enumerate(shown):
            key = (measured.api, measured.version, measured.listener)
            of_row = [c for c in found.latency_counts if (c.api, c.version, c.listener) == key]
            most = max((c.requests for c in of_row), default=1)
            colour = d.CONTROL_COLOURS.get(measured.api, d.OTHER_API)
            half_bar = 10 ** (1 / _STEPS_PER_DECADE / 2)
            for count in of_row:
                height = 0.12 + 0.62 * count.requests / most
                axes.bar(
                    count.ms / half_bar, height, width=count.ms * (half_bar - 1 / half_bar), bottom=row + 0.37 - height,
                    align="edge", color=colour, zorder=2,
                )  # fmt: skip
            axes.plot([measured.p50_ms], [row + 0.44], marker="^", markersize=5, color=d.INK, zorder=3)
            axes.plot([measured.p99_ms], [row + 0.44], marker="^", markersize=5, color=d.ALARM, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: d.duration(value))
        axes.grid(axis="x", color=d.GRID, linewidth=0.7, zorder=0)
        axes.tick_params(axis="x", which="both", length=0)
        axes.set_yticks(range(len(shown)), [f"{m.api} {m.version} · {m.listener}" for m in shown])
        axes.set_ylim(len(shown) - 0.35, -0.55)
        d.legend(axes, [d.marker(d.INK, "^", "median"), d.marker(d.ALARM, "^", "99th percentile")])
        return d.svg(figure, "latency", "Distribution of request latencies by API and listener")


ANALYSIS = Analysis(
    table=TABLE,
    run=run,
    section=Section(
        position=70,
        heading="Latency",
        hint="From the packet that completes a request to the one that completes its response, on a logarithmic scale, "
        "by API and listener. Fetch and JoinGroup wait by design.",
        columns=(
            Shown("API", "text", lambda r: r.api),
            Shown("version", "number", lambda r: r.version),
            Shown("listener", "text", lambda r: r.listener),
            Shown("answered", "count", lambda r: r.requests),
            Shown("median", "ms", lambda r: r.p50_ms),
            Shown("90 %", "ms", lambda r: r.p90_ms),
            Shown("99 %", "ms", lambda r: r.p99_ms),
            Shown("longest", "ms", lambda r: r.max_ms),
        ),
        picture=picture,
        without_rows="No request was answered.",
    ),
    auxiliary=(Auxiliary(COUNTS, latency_counts),),
)
