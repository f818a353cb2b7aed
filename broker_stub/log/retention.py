"""Which segments of a log the retention deletes (rules B6.14 to B6.17): decisions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kce.broker_stub.log.segment import Segment

#: whether a segment has to go, given the one after it
Breaks: TypeAlias = Callable[[Segment, Segment | None], bool]


def deletable(segments: Sequence[Segment], high_watermark: int, log_end_offset: int, breaks: Breaks) -> int:
    """How many of the oldest segments go: up to the first that may stay, or is not replicated."""
    count = 0
    for i, segment in enumerate(segments):
        following = segments[i + 1] if i + 1 < len(segments) else None
        upper_bound = log_end_offset if following is None else following.base_offset
        if high_watermark < upper_bound or not breaks(segment, following):
            break
        if following is None and not segment.size:  # rule B6.16
            break
        count += 1
    return count


def before(log_start_offset: int) -> Breaks:
    def breaks(segment: Segment, following: Segment | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return breaks


def too_large(size: int, retention_bytes: int | None) -> Breaks:
    """``size``: bytes of all segments."""
    left = -1 if retention_bytes is None else size - retention_bytes

    def breaks(segment: Segment, following: Segment | None) -> bool:
        nonlocal left
        left -= segment.size
        return left >= 0

    return breaks


def too_old(now_ms: int, retention_ms: int | None) -> Breaks:
    def breaks(segment: Segment, following: Segment | None) -> bool:
        return retention_ms is not None and now_ms - segment.largest_timestamp_ms > retention_ms

    return breaks
