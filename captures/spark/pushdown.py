"""Filters pushed down by Spark, as predicates on rows and as connections and APIs that need not be read.

Null is as in SQL: a comparison with it is not true, and neither is its negation.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kce.captures.tables.rows import Table

_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
    StringStartsWith: lambda value, part: value.startswith(part),
    StringEndsWith: lambda value, part: value.endswith(part),
    StringContains: lambda value, part: part in value,
}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Condition(NamedTuple):
    """``test(value of column)``, optionally negated; ``value`` None is a test for null."""

    column: str
    kind: type[Filter]
    value: Any
    negated: bool

    def holds(self, value: Any) -> bool:
        if self.kind is IsNull:
            return (value is None) is not self.negated
        if self.kind is EqualNullSafe:
            return (value == self.value) is not self.negated
        if value is None or self.value is None:
            return False
        return _COMPARISONS[self.kind](value, self.value) is not self.negated

    def among(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """``holds`` for an array of numbers without null."""
        if self.kind is IsNull or self.value is None:
            return np.full(len(values), self.holds(0))
        if self.kind is In:
            found = np.isin(values, list(self.value))
        else:
            compare: Callable[[Any, Any], npt.NDArray[np.bool_]] = _COMPARISONS.get(self.kind, operator.eq)
            found = compare(values, self.value)
        return found ^ self.negated


class Wanted:
    """All of ``conditions`` must hold. Pickled into every task."""

    def __init__(self, conditions: Collection[Condition] = ()) -> None:
        self.conditions = tuple(conditions)

    def rows(self, table: Table) -> Callable[[tuple[Any, ...]], bool] | None:
        """A predicate on rows of ``table``; None accepts all."""
        names = [column.name for column in table.columns]
        tests = [(names.index(condition.column), condition.holds) for condition in self.conditions]
        if not tests:
            return None
        return lambda row: all(holds(row[at]) for at, holds in tests)

    def values(self, column: str) -> Callable[[Any], bool] | None:
        """A predicate on the values of one column; None accepts all."""
        tests = [condition.holds for condition in self.conditions if condition.column == column]
        return (lambda value: all(holds(value) for holds in tests)) if tests else None

    def numbers(self, columns: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.bool_]:
        """A mask of the rows that these columns (numbers without null) do not exclude."""
        known = [condition for condition in self.conditions if condition.column in columns]
        masks = [condition.among(columns[condition.column]) for condition in known]
        return np.logical_and.reduce(masks) if masks else np.ones(len(next(iter(columns.values()))), np.bool_)


def conditions(filters: Iterable[Filter], table: Table) -> tuple[list[Condition], list[Filter]]:
    """(filters applied here exactly, filters left to Spark). Columns are numbers, texts, times and booleans."""
    types = {column.name: column.type for column in table.columns}
    taken: list[Condition] = []
    left: list[Filter] = []
    for given in filters:
        condition = _condition(given, types)
        if condition is None:
            left.append(given)
        else:
            taken.append(condition)
    return taken, left


def _condition(given: Filter, types: dict[str, pa.DataType]) -> Condition | None:
    negated = isinstance(given, Not)
    inner: Any = given.child if isinstance(given, Not) else given
    kind = type(inner)
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in types:
        return None
    column, arrow = path[0], types[path[0]]
    if kind in (IsNull, IsNotNull):
        return Condition(column, IsNull, None, negated is not (kind is IsNotNull))
    if kind not in _COMPARISONS and kind is not EqualNullSafe:
        return None
    if pa.types.is_nested(arrow) or pa.types.is_binary(arrow) or pa.types.is_floating(arrow):
        return None  # NaN and binary comparison are left to Spark
    value = inner.value
    if kind is In:
        if None in value:
            return None  # NOT IN with null is left to Spark
        value = frozenset(_literal(v, arrow) for v in value)
    else:
        value = _literal(value, arrow)
    return Condition(column, kind, value, negated)


def _literal(value: Any, arrow: pa.DataType) -> Any:
    """The value as in rows, where times are microseconds."""
    if not pa.types.is_timestamp(arrow) or value is None:
        return value
    moment = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)
