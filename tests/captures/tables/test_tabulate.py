"""The columns: one definition, and a document that follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures.analysis_rows import ANALYSES
from captures.decode import Decoder
from captures.exchanges import Request, Response
from captures.pcap import CaptureFile
from captures.rows import DECODED, TABLES, WRITTEN
from captures.schema_document import schema_json, schema_markdown
from captures.tabulate import decoded_row, quality_row
from tests.captures.samples import CAPTURES


def test_the_document_is_up_to_date():
    document = Path(__file__).parents[2] / "docs" / "schema.md"
    assert document.read_text() == schema_markdown(), "run: python -m captures.schema_document > docs/schema.md"


def test_names_are_unique_and_every_table_says_what_a_row_is():
    names = [table.name for table in (*TABLES, *ANALYSES)]
    assert len(names) == len(set(names))
    for table in (*TABLES, *ANALYSES):
        columns = [column.name for column in table.columns]
        assert len(columns) == len(set(columns)), table.name
        assert table.doc


def test_the_schema_file_has_every_table_that_is_written():
    assert set(schema_json()["tables"]) == {table.name for table in (*WRITTEN, *ANALYSES)}


@pytest.mark.parametrize("name", CAPTURES)
def test_every_exchange_fits_the_schema(name):
    with CaptureFile(CAPTURES[name]) as capture:
        messages = list(Decoder(capture).messages())
    rows = [decoded_row(m.request, m) for m in messages if isinstance(m, Response)]
    rows += [decoded_row(m, None) for m in messages if isinstance(m, Request)]
    batch = DECODED.batch([*rows, quality_row("{}")])
    assert batch.num_rows == len(rows) + 1
    control = [row for row in batch.to_pylist() if row["is_control"]]
    assert all(row["controller_epoch"] >= 1 for row in control)
    assert all(len(row["states"]) == row["partition_count"] for row in control)
    assert all(row["live_brokers"] for row in control if row["api"] == "UpdateMetadata")
