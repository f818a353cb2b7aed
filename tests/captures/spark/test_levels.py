"""Rows of each level: complete and the same, however files are cut and tasks share them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, ShortType, StructField, StructType

from kce.captures.errors import CaptureError
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.files.pcap import CaptureFile
from kce.captures.spark.source import KafkaCapture
from kce.captures.spark.tail import FolderTail
from kce.captures.spark.work import Share
from kce.captures.tables.rows import LEVELS
from kce.captures.tables.tabulate import decoded_row, frame_row
from tests.captures.samples import scenario, unzipped
from tests.captures.spark.levels import EVERYTHING, TOUR, ZOMBIE, rows, table


class TestLevels:
    def test_frames_are_the_messages_of_decode(self):
        with CaptureFile(ZOMBIE) as capture:
            messages = list(Decoder(capture).messages())
        found = table("frames", ZOMBIE).to_pylist()
        assert sorted(repr(tuple(row.values())[:2] + tuple(row.values())[3:-1]) for row in found) == sorted(
            repr(row[:2] + row[3:]) for row in map(frame_row, messages)
        )
        assert {row["is_response"] for row in found} == {True, False}
        requests = {(row["request_file"], row["request_packet"]) for row in found if row["is_response"]}
        assert requests <= {(row["file"], row["packet"]) for row in found if not row["is_response"]}

    def test_bodies_are_there_when_asked_for(self):
        assert set(table("frames", ZOMBIE).column("body").to_pylist()) == {None}
        bodies = [
            r
            for r in table("frames", ZOMBIE, bodies="redacted").to_pylist()
            if r["packet"] == 386 and r["api_key"] == 6
        ]
        assert '"controller_epoch":1,' in bodies[0]["body"]

    def test_exchanges_and_partitions_are_those_of_a_request_with_its_response(self):
        with CaptureFile(ZOMBIE) as capture:
            messages = list(Decoder(capture).messages())
        answered = {m.request for m in messages if isinstance(m, Response)}
        wanted = [decoded_row(m.request, m) for m in messages if isinstance(m, Response)]
        wanted += [decoded_row(m, None) for m in messages if isinstance(m, Request) and m not in answered]
        exchanges = table("exchanges", ZOMBIE)
        columns = [name for name in exchanges.column_names if not name.endswith("time")]
        at = [exchanges.column_names.index(name) for name in columns[:-1]]
        found = sorted(repr([row[name] for name in columns[:-1]]) for row in exchanges.to_pylist())
        assert found == sorted(repr([row[i] for i in at]) for row in wanted)
        partitions = table("partitions", ZOMBIE)
        assert partitions.num_rows == sum(row["partition_count"] or 0 for row in exchanges.to_pylist())

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    @pytest.mark.parametrize("given", [(ZOMBIE, TOUR), (ZOMBIE,)], ids=["two files", "one file"])
    def test_shares_make_up_the_whole(self, level, given):
        whole = table(level, *given)
        shares = [table(level, *given, share=Share(number, 3)) for number in range(3)]
        assert all(share.num_rows for share in shares)
        assert rows(pa.concat_tables(shares)) == rows(whole)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_in_bulk_or_one_by_one_rows_are_the_same(self, level, awkward):
        """Bodies are made one by one; so are the rows that have them."""
        for share in (EVERYTHING, Share(0, 2), Share(1, 2)):
            in_bulk = table(level, awkward, share=share)
            one_by_one = table(level, awkward, share=share, bodies="redacted")
            assert in_bulk.num_rows > 100 * (level != "partitions")
            assert rows(in_bulk, "body") == rows(one_by_one, "body")
            assert level != "frames" or any(row["decode_error"] for row in in_bulk.to_pylist())
        with pytest.raises(CaptureError, match=r"^.*awkward\.pcap: packet \d+: "):
            table("frames", awkward, fail_fast=True)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_in_bulk_or_one_by_one_rows_of_several_files_are_the_same(self, level, halves, awkward):
        in_bulk = table(level, *halves, awkward)
        assert rows(in_bulk, "body") == rows(table(level, *halves, awkward, bodies="redacted"), "body")
        assert set(in_bulk.column("file").to_pylist()) <= {str(path) for path in (*halves, awkward)}

    @pytest.mark.parametrize(
        ("level", "names"),
        [
            ("packets", ["payload", "packet"]),
            ("frames", ["_corrupt_record", "api", "time"]),
            ("exchanges", ["response_packet", "api", "client_id", "server_port"]),
            ("partitions", ["isr", "packet", "error", "topic"]),
        ],
    )
    def test_only_the_columns_that_are_wanted(self, level, names, awkward, tmp_path):
        (tmp_path / "cut.pcap").write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
        given = [awkward, tmp_path / "cut.pcap"]
        everything = table(level, *given)
        if "_corrupt_record" not in names:  # then there are no rows that are nothing else
            valid = everything["_corrupt_record"].is_null() if level == "packets" else everything["api_key"].is_valid()
            everything = everything.filter(valid)
        assert rows(table(level, *given, names=names)) == rows(everything.select(names))
        if level in ("frames", "exchanges"):
            with pytest.raises(CaptureError, match=r"awkward\.pcap: packet \d+: "):
                table(level, awkward, fail_fast=True, names=names)

    def test_columns_that_there_are_not(self):
        options = {"path": str(ZOMBIE), "level": "exchanges"}
        for name, error in (("offset", "offset of level exchanges is unknown"), ("api", "api .* is string, not int")):
            schema = StructType([StructField("version", ShortType()), StructField(name, IntegerType())])
            with pytest.raises(ValueError, match=error):
                KafkaCapture(options).reader(schema)

    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_a_connection_that_runs_across_files_is_whole(self, level, halves):
        places = ("file", "packet", "request_file", "request_packet", "response_file", "response_packet")
        assert rows(table(level, *halves), *places) == rows(table(level, ZOMBIE), *places)

    @pytest.mark.parametrize("level", LEVELS)
    def test_what_cannot_be_read_is_a_row_or_a_failure(self, level, tmp_path):
        (tmp_path / "cut.pcap").write_bytes(unzipped("kafka-3.9.1-zombie")[:100_000])
        (tmp_path / "bad.pcap").write_bytes(b"no capture")
        given = [tmp_path / "cut.pcap", tmp_path / "bad.pcap"]
        corrupt = [row for row in table(level, *given).to_pylist() if row["_corrupt_record"]]
        about = [row["_corrupt_record"] for row in corrupt if row.get("api_key") is None]
        assert sorted(text.split("/")[-1][:20] for text in about) == ["bad.pcap: not a capt", "cut.pcap: ends insid"]
        assert {row["packet"] is None for row in corrupt if "bad.pcap" in row["file"]} == {True}
        for path in given:
            with pytest.raises(CaptureError, match=path.name):
                table(level, path, fail_fast=True)


class TestPorts:
    OF_3 = scenario("kafka-3.9.1-zombie")["brokers"]["3"]
    PORTS = frozenset({OF_3["control"], OF_3["data"]})

    @pytest.mark.parametrize("bodies", ["none", "redacted"])
    @pytest.mark.parametrize("level", ["frames", "exchanges", "partitions"])
    def test_other_connections_are_left_out(self, level, bodies):
        of_3 = table(level, ZOMBIE, ports=self.PORTS, bodies=bodies)
        wanted = table(level, ZOMBIE, bodies=bodies)
        kept = [at for at, port in enumerate(wanted.column("server_port").to_pylist()) if port in self.PORTS]
        assert 0 < len(kept) < wanted.num_rows
        assert rows(of_3) == rows(wanted.take(kept))

    def test_in_a_folder_that_is_followed(self, halves, tmp_path):
        later, earlier = halves
        (tmp_path / "x.pcap0").symlink_to(earlier)
        (tmp_path / "x.pcap1").symlink_to(later)
        tail = FolderTail(tmp_path, "frames", fail_fast=False, bodies="none", ports=self.PORTS)
        (partition,) = tail.partitions(tail.initialOffset(), tail.latestOffset())
        found = pa.Table.from_batches(tail.read(partition))
        assert rows(found, "file", "request_file") == rows(
            table("frames", earlier, later, ports=self.PORTS), "file", "request_file"
        )

    @pytest.mark.parametrize("ports", ["kafka", "0"])
    def test_what_is_no_port(self, ports):
        with pytest.raises(ValueError, match=f"kafka-capture: ports: '{ports}'"):
            KafkaCapture({"path": str(ZOMBIE), "ports": ports}).reader(None)
