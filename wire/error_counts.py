"""Counts the error codes in a response, for a broker's `ErrorsPerSec`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kce.wire.errors import ErrorCode
from kce.wire.schema import Message, Struct


def error_counts(response: Message) -> dict[int, int]:
    """Error code -> occurrences, NONE included: one for the response itself and one for each entry that has a code.

    A top-level code other than NONE counts for all entries. Codes below an entry with a code of its own do not count.
    AddPartitionsToTxn has a top-level code from version 4 on.
    """
    entries: dict[int, int] = {}
    for code in _entry_codes(response):
        entries[code] = entries.get(code, 0) + 1
    top_level: int | None = getattr(response, "error_code", None)
    if top_level is None or getattr(response, "results_by_topic_v3_and_below", None):
        return entries
    if top_level != ErrorCode.NONE:
        return {top_level: sum(entries.values()) + 1}
    entries[top_level] = entries.get(top_level, 0) + 1
    return entries


def _entry_codes(struct: Struct) -> Iterator[int]:
    for field in struct.__fields__:
        content = getattr(struct, field.name)
        if not isinstance(content, tuple):
            continue
        for entry in content:
            if not isinstance(entry, Struct):
                break
            code = getattr(entry, "error_code", None)
            if code is None:
                code = getattr(entry, "partition_error_code", None)
            if code is None:
                yield from _entry_codes(entry)
            else:
                yield code
