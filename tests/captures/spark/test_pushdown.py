"""Filters that Spark hands down select exactly the rows that Spark would."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from pyspark.sql import functions as f

from kce.captures.fast import body_programs
from kce.captures.spark.pushdown import Wanted, conditions
from kce.captures.spark.schemas import spark_schema
from kce.captures.tables.rows import LEVELS, PACKETS
from tests.captures.spark.levels import TOUR, ZOMBIE, rows, table


class TestFilters:
    TIME = datetime.datetime(2026, 11, 21, 2, 45, 22, tzinfo=datetime.UTC)
    SOMETHING = "127.0.0.1:37324 - 127.0.0.1:39235"

    @pytest.mark.parametrize(
        ("given", "holds"),
        [
            (datasource.EqualTo(("api_key",), 6), lambda r: r["api_key"] == 6),
            (datasource.In(("api_key",), (4, 6)), lambda r: r["api_key"] in (4, 6)),
            (datasource.Not(datasource.In(("api_key",), (4, 6))), lambda r: r["api_key"] not in (4, 6)),
            (datasource.GreaterThanOrEqual(("time",), TIME), lambda r: r["time"] >= TestFilters.TIME),
            (datasource.LessThan(("time",), TIME.replace(tzinfo=None)), lambda r: r["time"] < TestFilters.TIME),
            (datasource.EqualTo(("connection",), SOMETHING), lambda r: r["connection"] == TestFilters.SOMETHING),
            (datasource.StringStartsWith(("client_id",), "1"), lambda r: (r["client_id"] or "").startswith("1")),
            (datasource.IsNull(("controller_epoch",)), lambda r: r["controller_epoch"] is None),
            (datasource.IsNotNull(("controller_epoch",)), lambda r: r["controller_epoch"] is not None),
            # what is null is not unequal
            (datasource.Not(datasource.EqualTo(("error_code",), 0)), lambda r: r["error_code"] not in (None, 0)),
            (datasource.Not(datasource.EqualNullSafe(("error_code",), 0)), lambda r: r["error_code"] != 0),
            (datasource.EqualNullSafe(("error_code",), None), lambda r: r["error_code"] is None),
            (datasource.EqualTo(("is_control",), True), lambda r: r["is_control"]),
        ],
    )
    def test_taken_filters_are_exact(self, given, holds):
        taken, left = conditions([given], LEVELS["exchanges"])
        assert left == []
        found = table("exchanges", ZOMBIE, wanted=Wanted(taken))
        everything = table("exchanges", ZOMBIE)
        wanted = [row for row in everything.to_pylist() if holds(row)]
        assert 0 < len(wanted) < everything.num_rows
        assert rows(found) == rows(pa.Table.from_pylist(wanted, everything.schema))

    @pytest.mark.parametrize(
        "given",
        [
            datasource.EqualTo(("latency_ms",), 1.0),
            datasource.EqualTo(("no such column",), 1),
            datasource.EqualTo(("states", "topic"), "x"),
            datasource.In(("api_key",), (6, None)),
        ],
    )
    def test_others_are_left_to_spark(self, given):
        assert conditions([given], LEVELS["exchanges"]) == ([], [given])
        assert conditions([datasource.EqualTo(("payload",), b"x")], PACKETS)[0] == []

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions", "packets"])
    @pytest.mark.parametrize(
        "given",
        [
            datasource.EqualTo(("packet",), 386),
            datasource.Not(datasource.EqualTo(("packet",), 386)),
            datasource.In(("packet",), (386, 388)),
            datasource.GreaterThan(("time",), TIME),
            datasource.EqualNullSafe(("packet",), None),
            datasource.IsNull(("packet",)),
            datasource.IsNotNull(("packet",)),
        ],
        ids=str,
    )
    def test_rows_that_are_left_out_early_are_those_that_are_not_wanted(self, level, given, awkward):
        taken, _ = conditions([given], LEVELS[level])
        for path in (ZOMBIE, awkward):
            everything = table(level, path)
            at = [column.name for column in LEVELS[level].columns].index(taken[0].column)
            values = everything.column(at)
            values = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
            wanted = everything.filter(pa.array([taken[0].holds(value) for value in values.to_pylist()], pa.bool_()))
            assert rows(table(level, path, wanted=Wanted(taken))) == rows(wanted)

    def test_bodies_of_other_apis_are_not_looked_into(self, monkeypatch):
        looked_into = set()
        program = body_programs._program

        def watched(api, version, direction):
            looked_into.add(api.name)
            return program(api, version, direction)

        monkeypatch.setattr(body_programs, "_program", watched)
        taken, _ = conditions([datasource.In(("api_key",), (4, 6))], LEVELS["exchanges"])
        found = table("exchanges", TOUR, wanted=Wanted(taken))
        assert "UpdateMetadata" in looked_into <= {"LeaderAndIsr", "UpdateMetadata", "Produce", "Fetch"}
        everything = table("exchanges", TOUR)
        assert rows(found) == rows(
            everything.filter(pa.array([key in (4, 6) for key in everything["api_key"].to_pylist()]))
        )

    def test_other_connections_are_not_put_together(self, monkeypatch):
        from kce.captures.spark import levels

        seen = set()
        receive = levels.Assembly.receive

        def watched(self, segment):
            seen.add(frozenset((segment.source_port, segment.destination_port)))
            return receive(self, segment)

        monkeypatch.setattr(levels.Assembly, "receive", watched)
        taken, _ = conditions([datasource.EqualTo(("connection",), self.SOMETHING)], LEVELS["frames"])
        assert table("frames", ZOMBIE, wanted=Wanted(taken)).num_rows
        assert seen == {frozenset((37324, 39235))}


@pytest.mark.slow
@pytest.mark.parametrize("enabled", ["false", "true"])
def test_in_spark_filters_find_the_same_with_and_without_push_down(spark, enabled):
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        source = spark.read.format("kafka-capture").option("level", "exchanges").option("tasks", 2)
        read = source.option("pushFilters", "true").load(str(ZOMBIE))
        assert read.schema == spark_schema(LEVELS["exchanges"])
        moment = f.lit(TestFilters.TIME)
        found = read.where(
            (f.col("time") >= moment) & f.col("api_key").isin(4, 6) & f.col("connection").contains(":39235")
        )
        pushed = "Filter (" not in found._jdf.queryExecution().executedPlan().toString()
        assert pushed == (enabled == "true")
        wanted = [
            row["packet"] for row in table("exchanges", ZOMBIE).to_pylist()
            if row["time"] >= TestFilters.TIME and row["api_key"] in (4, 6) and ":39235" in row["connection"]
        ]  # fmt: skip
        assert sorted(row.packet for row in found.collect()) == sorted(wanted) != []
        whole = source.option("pushFilters", "false").load(str(ZOMBIE))
        of_control = whole.where("api_key = 6")
        counts = [whole.count(), of_control.count(), whole.count(), of_control.union(whole).count()]
        assert counts == [217, 63, 217, 280]  # Spark would keep a filter of one query for the next
        some = spark.read.format("kafka-capture").schema("api_key short, packet bigint").option("level", "exchanges")
        of_some = some.load(str(ZOMBIE)).where("api_key = 6").collect()
        assert sorted(of_some) == sorted(whole.where("api_key = 6").select("api_key", "packet").collect()) != []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
