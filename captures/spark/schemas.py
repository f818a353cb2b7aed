"""The tables of ``captures.tables.rows`` as Spark sees them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types

from kce.captures.tables.rows import Table

_SCALARS: tuple[tuple[pa.DataType, types.DataType], ...] = (
    (pa.string(), types.StringType()),
    (pa.binary(), types.BinaryType()),
    (pa.bool_(), types.BooleanType()),
    (pa.int16(), types.ShortType()),
    (pa.int32(), types.IntegerType()),
    (pa.int64(), types.LongType()),
    (pa.float64(), types.DoubleType()),
    (pa.timestamp("us", tz="UTC"), types.TimestampType()),
)


def spark_type(arrow: pa.DataType) -> types.DataType:
    """The Spark type of an Arrow type that the tables use. Raises TypeError for others."""
    if pa.types.is_list(arrow):
        return types.ArrayType(spark_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return types.StructType([types.StructField(f.name, spark_type(f.type)) for f in arrow])
    for known, spark in _SCALARS:
        if arrow == known:
            return spark
    raise TypeError(f"no Spark type is defined for {arrow}")


def spark_schema(table: Table) -> types.StructType:
    return types.StructType([types.StructField(c.name, spark_type(c.type)) for c in table.columns])
