"""`kce decode --summary` on the fast path: what ``Summary`` counts of the messages of ``BulkDecoder``.

Ordinary messages are counted as rows. Messages are made of control requests, and of responses with an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.pairing import Request, Response
from kce.captures.exchanges.selection import Selection
from kce.captures.exchanges.summary import Summary
from kce.captures.fast import body_programs as p
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.bulk import Rows
from kce.captures.fast.messages import BulkDecoder
from kce.captures.fast.sheets import Sheet, among, sheets
from kce.wire.registry import CONTROL_REQUESTS

_CONTROL_REQUESTS = among(CONTROL_REQUESTS)
_VERSION_BITS = 16


def count(decoder: BulkDecoder, summary: Summary, wanted: Selection) -> Iterator[None]:
    """Count all wanted messages, in steps. The decoder's cluster learns no planes of plain requests."""
    for sheet in sheets(decoder):
        items = sheet.kept(wanted)
        is_plain = _is_plain(sheet, items)
        first = 0
        while summary.is_empty and first < len(items):  # the first message says when it begins
            _count(decoder, summary, wanted, sheet.message(int(items[first])))
            first += 1
        items, is_plain = items[first:], is_plain[first:]
        for item in items[~is_plain].tolist():
            _count(decoder, summary, wanted, sheet.message(item))
        _count_rows(sheet, items[is_plain], summary)
        yield


def _count(decoder: BulkDecoder, summary: Summary, wanted: Selection, message: Request | Response) -> None:
    decoder.cluster.observe(message)
    if message in wanted:
        summary.count([message])


def _is_plain(sheet: Sheet, items: Rows) -> npt.NDArray[np.bool_]:
    """Which of the items are rows of requests that are no controller's, or of responses without an error."""
    requests, responses = sheet.window.requests, sheet.window.responses
    is_plain = items >= 0
    rows = items[is_plain]
    is_failure = (responses[:, f.NOTED + p.ERROR_CODE] != 0) | (responses[:, f.NOTED + p.PARTITION_ERRORS] != 0)
    failed = np.concatenate([np.zeros(len(requests), np.bool_), is_failure])[rows]
    of_controller = _CONTROL_REQUESTS[requests[sheet.asked(rows), f.KEY]]
    is_plain[is_plain] = ~np.where(rows < len(requests), of_controller, failed)
    return is_plain


def _count_rows(sheet: Sheet, rows: Rows, summary: Summary) -> None:
    requests, times = sheet.window.requests, sheet.row_times()
    asks = rows < len(requests)
    asked = sheet.asked(rows)
    kinds = requests[asked, f.KEY] << _VERSION_BITS | requests[asked, f.VERSION]
    waited_ns = times[rows] - times[asked]
    for kind in np.unique(kinds).tolist():
        of_kind = kinds == kind
        answers = of_kind & ~asks
        key, version = kind >> _VERSION_BITS, kind & (1 << _VERSION_BITS) - 1
        summary.add(
            key, version, requests=int(np.count_nonzero(of_kind & asks)), responses=int(np.count_nonzero(answers)),
            slowest_ns=int(waited_ns[answers].max(initial=0)), last_ns=int(times[rows][of_kind].max()),
        )  # fmt: skip
