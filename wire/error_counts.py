"""Counts the error codes in a response, for a broker's `ErrorsPerSec`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from kce.wire.errors import ErrorCode
from kce.wire.schema import Message, Struct
from kce.wire.steps import STEP_MASK, Steps

_NAMES: Final = ("error_code", "partition_error_code")
#: responses in which a code and those below it count
_DEEP: Final = frozenset({"MetadataResponse", "OffsetFetchResponse"})
_ONE_FOR_ALL: Final = frozenset({"LeaderAndIsrResponse", "StopReplicaResponse"})
#: where entries have the codes in some versions, and the response has none then
_IN_ENTRIES: Final = {
    "AddPartitionsToTxnResponse": "results_by_topic_v3_and_below",
    "FindCoordinatorResponse": "coordinators",
    "OffsetFetchResponse": "groups",
}
#: of structures: the names of the fields with codes, and of the code in each entry; None if those are further down
Arrays: TypeAlias = tuple[tuple[str, str | None], ...]
_arrays: dict[type[Struct], Arrays] = {}
#: responses with a code of their own and no others: most
_has_only_own: dict[type[Message], bool] = {}
#: of a response with one code, by that code
_once: dict[int, Mapping[int, int]] = {}


def error_counts(response: Message) -> Mapping[int, int]:
    """Error code -> occurrences, NONE included: one for the response itself and one for each entry that has a code.

    In LeaderAndIsr and StopReplica a top-level code other than NONE counts for all entries. Codes below an entry with
    a code of its own count in Metadata and OffsetFetch only. Responses with one code share the mapping for it.
    """
    cls = response.__class__
    if _has_only_own.get(cls):
        code = response.error_code  # type: ignore[attr-defined]
        return _once.get(code) or _once.setdefault(code, {code: 1})
    counts: dict[int, int] = {}
    if _arrays_of(cls):
        for code in _entries(response, deep=cls.__name__ in _DEEP):
            if code is not None:
                counts[code] = counts.get(code, 0) + 1
    elif cls.__name__ not in _IN_ENTRIES and hasattr(response, "error_code"):
        _has_only_own[cls] = True
    return _with_own_code(response, counts)


def error_counts_in_steps(response: Message) -> Steps[dict[int, int]]:
    """``error_counts`` with pauses, for long responses."""
    counts: dict[int, int] = {}
    for i, code in enumerate(_entries(response, deep=type(response).__name__ in _DEEP), 1):
        if code is not None:
            counts[code] = counts.get(code, 0) + 1
        if not i & STEP_MASK:
            yield
    return _with_own_code(response, counts)


def _with_own_code(response: Message, counts: dict[int, int]) -> dict[int, int]:
    code = own_code(response)
    if code is None:
        return counts
    if code != ErrorCode.NONE and type(response).__name__ in _ONE_FOR_ALL:
        return {code: sum(counts.values()) + 1}
    counts[code] = counts.get(code, 0) + 1
    return counts


def own_code(response: Message) -> int | None:
    """The code of the response itself, if it counts: some versions of a few responses have codes in entries only."""
    entries = _IN_ENTRIES.get(type(response).__name__)
    return None if entries and getattr(response, entries) else getattr(response, "error_code", None)


def _entries(struct: Struct, *, deep: bool) -> Iterator[int | None]:
    """The code of each entry; None of one that has only entries with codes."""
    for name, code in _arrays_of(type(struct)):
        for entry in getattr(struct, name) or ():
            if not isinstance(entry, Struct):  # it is encoded already
                break
            yield None if code is None else getattr(entry, code)
            if code is None or deep:
                yield from _entries(entry, deep=deep)


def _arrays_of(cls: type[Struct]) -> Arrays:
    found = _arrays.get(cls)
    if found is None:
        arrays = [field for field in cls.__fields__ if field.array and _is_struct(field.type)]
        found = _arrays[cls] = tuple(
            (field.name, code) for field in arrays if (code := _code(field.type)) or _arrays_of(field.type)
        )
    return found


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _code(cls: type[Struct]) -> str | None:
    names = {field.name for field in cls.__fields__}
    return next((name for name in _NAMES if name in names), None)
