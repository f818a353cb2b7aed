"""The index made in tasks: the same splits as in one process, and the planner makes none."""

from __future__ import annotations

import pytest

from kce.captures.files.index import splits
from kce.captures.files.split import WHOLE
from kce.captures.spark import indexing, reassembly, source
from kce.captures.spark.source import KafkaCapture
from kce.captures.spark.work import File
from tests.captures.samples import CAPTURES, unzipped
from tests.captures.spark.levels import ZOMBIE, table

NAMES = ("kafka-3.9.1-zombie", "kafka-2.8.2-tour")  # a pcap and a pcapng


@pytest.fixture
def captures(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(unzipped(name))
    (tmp_path / "text").write_text("no capture" * 10_000)
    return [File(name, str(tmp_path / name)) for name in (*NAMES, "text")]


@pytest.mark.slow
def test_tasks_make_the_splits_that_one_process_makes(spark, captures, monkeypatch):
    monkeypatch.setattr(indexing, "LEAST_PIECES", 2)
    jobs = spark.sparkContext.statusTracker()
    before = len(jobs.getJobIdsForGroup())
    found = indexing.indexed(spark, [*captures, File("z", str(ZOMBIE)), File("none", "/missing.pcap")], 50_000)
    assert len(jobs.getJobIdsForGroup()) == before + 1
    assert found == {file.path: splits(file.path, 50_000) for file in captures[:2]}
    assert all(len(of_file) > 2 for of_file in found.values())


@pytest.mark.slow
def test_a_piece_that_cannot_be_read_leaves_its_file_whole(spark, captures, monkeypatch):
    gone = File("gone", captures[0].path + ".gone")
    monkeypatch.setattr(indexing, "LEAST_PIECES", 2)
    monkeypatch.setattr(indexing, "cuts", lambda path, target: [(0, 10_000), (10_000, 20_000)])
    assert list(indexing.indexed(spark, [gone], 10_000)) == []


def test_the_planner_takes_the_splits_that_it_is_given(captures, monkeypatch):
    made = {file.path: splits(file.path, 20_000) for file in captures[:2]}
    option = indexing.as_option(made)
    assert indexing.from_option(option) == made
    monkeypatch.setattr(source, "splits", lambda *_: pytest.fail("the planner reads a file"))
    options = {"path": captures[0].path, "level": "packets", "maxPartitionBytes": "20000", "splits": option}
    assert [task.part for task in KafkaCapture(options).reader(None).partitions()] == made[captures[0].path]


def test_few_pieces_and_compressed_files_are_left_to_the_planner(captures, monkeypatch):
    spark = None  # no task is needed
    assert indexing.indexed(spark, captures, 50_000) == {}
    monkeypatch.setattr(indexing, "LEAST_PIECES", 1)
    assert indexing.indexed(spark, [File(name, str(path)) for name, path in CAPTURES.items()], 1000) == {}
    task, *more = KafkaCapture({"path": str(ZOMBIE), "level": "packets"}).reader(None).partitions()
    assert (task.part, more) == (WHOLE, [])


@pytest.mark.slow
def test_what_is_read_in_splits_that_tasks_made_is_the_whole(spark, captures, monkeypatch):
    monkeypatch.setattr(indexing, "LEAST_PIECES", 2)
    given = []
    monkeypatch.setattr(reassembly, "as_option", lambda made: given.append(made) or indexing.as_option(made))
    decoded = reassembly.decode(spark, [captures[0].path], 1, names=["api"], maxPartitionBytes="50000")
    assert decoded.where("api is not null").count() == table("exchanges", ZOMBIE).num_rows
    assert len(given[0][captures[0].path]) > 2
