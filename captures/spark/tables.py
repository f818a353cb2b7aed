"""`kce analyze --out`: one Parquet folder per table, and the schema."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame

from kce.captures.errors import CaptureError
from kce.captures.spark.analyses import ANALYSES
from kce.captures.spark.schema_document import schema_json
from kce.captures.tables.rows import CONNECTIONS, ENDPOINTS, EXCHANGES, PARTITIONS, SCHEMA_VERSION

_SCHEMA_FILE = "_schema.json"


def check_folder(out: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Make the folder. Raises CaptureError if that fails or it is not empty."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as e:
        raise CaptureError(f"{os.fspath(out)}: cannot be written ({e.strerror or e})") from None
    if not empty and not overwrite:
        raise CaptureError(f"{os.fspath(out)}: the folder is not empty; --overwrite replaces the tables in it")


def write_tables(
    out: str | os.PathLike[str], frames: Mapping[str, DataFrame], collected: Mapping[str, pa.Table]
) -> None:
    """Spark's tasks write ``frames``; the driver writes ``collected``, which are small. Replaces existing tables."""
    folder = Path(out)
    version = {"schema_version": str(SCHEMA_VERSION)}
    for table in (EXCHANGES, PARTITIONS, CONNECTIONS, ENDPOINTS, *(analysis.table for analysis in ANALYSES.values())):
        columns = [column.name for column in table.columns]
        if table.name in frames:
            path = (folder / table.name).absolute().as_uri()
            frames[table.name].select(*columns).write.mode("overwrite").parquet(path)
        if table.name not in collected:
            continue
        shutil.rmtree(folder / table.name, ignore_errors=True)
        (folder / table.name).mkdir()
        arrow = collected[table.name].select(columns).cast(table.schema).replace_schema_metadata(version)
        pyarrow.parquet.write_table(arrow, folder / table.name / "part-0.parquet")
    (folder / _SCHEMA_FILE).write_text(json.dumps(schema_json(), indent=2) + "\n")
