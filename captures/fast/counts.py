"""`kce decode --summary` on the fast path: what ``Summary`` counts of the messages of ``BulkDecoder``.

Ordinary messages are counted as rows. Messages are made of control requests, and of responses with an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.selection import Selection
from kce.captures.exchanges.summary import Summary
from kce.captures.fast import body_programs as p
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.bulk import Rows
from kce.captures.fast.messages import BulkDecoder
from kce.captures.fast.sheets import Sheet, sheets
from kce.wire.registry import CONTROL_REQUESTS


def count(decoder: BulkDecoder, summary: Summary, wanted: Selection) -> Iterator[None]:
    """Count all wanted messages, in steps. The decoder's cluster learns no planes of plain requests."""
    for sheet in sheets(decoder):
        items = sheet.kept(wanted)
        is_plain = _is_plain(sheet, items)
        for index, item in enumerate(items.tolist()):
            if summary.is_empty:  # the first message says when it begins
                is_plain[index] = False
            elif is_plain[index]:
                continue
            message = sheet.message(item)
            decoder.cluster.observe(message)
            if message in wanted:
                summary.count([message])
        _count_rows(sheet, items[is_plain], summary)
        yield


def _is_plain(sheet: Sheet, items: Rows) -> npt.NDArray[np.bool_]:
    """Which of the items are rows of requests that are no controller's, or of responses without an error."""
    requests, responses = sheet.window.requests, sheet.window.responses
    special = np.concatenate([
        np.isin(requests[:, f.KEY], list(CONTROL_REQUESTS)),
        (responses[:, f.NOTED + p.ERROR_CODE] != 0) | (responses[:, f.NOTED + p.PARTITION_ERRORS] != 0),
    ])  # fmt: skip
    is_plain = items >= 0
    is_plain[is_plain] = ~special[items[is_plain]]
    return is_plain


def _count_rows(sheet: Sheet, rows: Rows, summary: Summary) -> None:
    requests, times = sheet.window.requests, sheet.row_times()
    asks = rows < len(requests)
    asked = sheet.asked(rows)
    kinds = requests[asked][:, [f.KEY, f.VERSION]]
    waited_ns = times[rows] - times[asked]
    for key, version in np.unique(kinds, axis=0).tolist():
        of_kind = (kinds[:, 0] == key) & (kinds[:, 1] == version)
        answers = of_kind & ~asks
        summary.add(
            key, version, requests=int(np.count_nonzero(of_kind & asks)), responses=int(np.count_nonzero(answers)),
            slowest_ns=int(waited_ns[answers].max(initial=0)), last_ns=int(times[rows][of_kind].max()),
        )  # fmt: skip
