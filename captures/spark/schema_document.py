"""``docs/schema.md`` and the schema file of `kce analyze --out`, out of the definitions of all tables."""

from __future__ import annotations

from typing import Any

from kce.captures.spark.analyses import ANALYSES
from kce.captures.tables.rows import SCHEMA_VERSION, TABLES, WRITTEN

_ANALYSES = tuple(analysis.table for analysis in ANALYSES.values())


def schema_markdown() -> str:
    """docs/schema.md."""
    lines = [
        "# Columns",
        "",
        f"Schema version {SCHEMA_VERSION}. Made by `make docs`; do not edit.",
        "",
        '`spark.read.format("kafka-capture").option("level", LEVEL).load(paths)` gives the tables `packets`, `frames`,',
        "`exchanges` and `partitions`, the last three with a column `_corrupt_record` (string) at their end: what is",
        "wrong with a file or, in a row that has other columns, with that message. `readStream` gives the same.",
        "`kce analyze --out DIR` writes one Parquet folder per table, but for `packets` and `frames`, and",
        "`DIR/_schema.json`, which holds the version and the columns:",
        f'`{{"schema_version": {SCHEMA_VERSION}, "tables": {{"exchanges": [{{"name": ...}}]}}}}`.',
        "",
        "Times are UTC. Any column may be null where its value is not known.",
    ]
    for table in (*TABLES, *_ANALYSES):
        lines += ["", f"## {table.name}", "", table.doc, "", "| column | type | |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.type} | {column.doc} |" for column in table.columns]
    return "\n".join(lines) + "\n"


def schema_json() -> dict[str, Any]:
    """What `kce analyze --out` writes beside its tables."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tables": {
            table.name: [{"name": c.name, "type": str(c.type), "doc": c.doc} for c in table.columns]
            for table in (*WRITTEN, *_ANALYSES)
        },
    }


if __name__ == "__main__":
    print(schema_markdown(), end="")
