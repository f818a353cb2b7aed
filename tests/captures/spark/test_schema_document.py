"""docs/schema.md and the schema file follow the definitions of the tables.

Covers: kce.captures.tables.rows
"""

from __future__ import annotations

from pathlib import Path

from kce.captures.spark.analyses import ANALYSES
from kce.captures.spark.schema_document import schema_json, schema_markdown
from kce.captures.tables.rows import TABLES, WRITTEN

OF_ANALYSES = [analysis.table for analysis in ANALYSES.values()]


def test_the_document_is_up_to_date():
    document = Path(__file__).parents[3] / "docs" / "schema.md"
    assert document.read_text() == schema_markdown(), (
        "run: python -m kce.captures.spark.schema_document > docs/schema.md"
    )


def test_names_are_unique_and_every_table_says_what_a_row_is():
    names = [table.name for table in (*TABLES, *OF_ANALYSES)]
    assert len(names) == len(set(names))
    for table in (*TABLES, *OF_ANALYSES):
        columns = [column.name for column in table.columns]
        assert len(columns) == len(set(columns)), table.name
        assert table.doc


def test_the_schema_file_has_every_table_that_is_written():
    assert set(schema_json()["tables"]) == {table.name for table in (*WRITTEN, *OF_ANALYSES)}
