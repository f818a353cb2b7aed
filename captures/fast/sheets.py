"""The messages of windows in order, as rows as far as nobody asks for more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kce.captures.exchanges.pairing import NoResponse, Request, Response
from kce.captures.exchanges.selection import Selection
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.body_programs import MOST_KEYS
from kce.captures.fast.bulk import Rows, Window
from kce.captures.fast.messages import BulkDecoder, due
from kce.captures.fast.text_programs import DESCRIBED_REQUESTS, DESCRIBED_RESPONSES
from kce.captures.files import packet_kernels as k
from kce.wire.registry import BY_NAME


def among(keys: Iterable[int]) -> npt.NDArray[np.bool_]:
    """Whether an API is one of these, by its key. (``np.isin`` imports much of numpy.)"""
    found = np.zeros(MOST_KEYS, np.bool_)
    found[[key for key in keys if key < MOST_KEYS]] = True
    return found


#: requests that teach the cluster names and addresses
_TEACHING = among(BY_NAME[name].key for name in ("LeaderAndIsr", "UpdateMetadata"))

_DESCRIBED_REQUESTS, _DESCRIBED_RESPONSES = among(DESCRIBED_REQUESTS), among(DESCRIBED_RESPONSES)


def sheets(decoder: BulkDecoder) -> Iterator[Sheet]:
    """All messages. Each sheet is valid until the next one."""
    held: list[Request | Response] = []
    for window in decoder.path.windows():
        sheet = Sheet(decoder, window, held)
        held = sheet.take_back() if decoder.path.assembly.waiting else []
        yield sheet
    if held:
        rows = window.requests[:0]
        yield Sheet(decoder, replace(window, requests=rows, responses=rows, messages=[]), held)


class Sheet:
    """The messages of a window, and those ``held`` before.

    ``items``, in order: rows of requests, behind these of responses, and -1 - index of messages of the slow path.
    """

    def __init__(self, decoder: BulkDecoder, window: Window, held: list[Request | Response]) -> None:
        self.window = window
        self._decoder = decoder
        self._made = held + [message for message in window.messages if not isinstance(message, NoResponse)]
        requests = [message if isinstance(message, Request) else message.request for message in self._made]
        accepted = np.flatnonzero(self._column(f.PROGRAM) >= 0)
        ids = np.concatenate([_numbers(r.correlation_id for r in requests), self._column(f.CORRELATION)[accepted]])
        of_made = _numbers(message.place.order for message in self._made)
        orders = np.concatenate([of_made, self._column(f.PACKET)[accepted] + window.first])
        items = np.concatenate([-1 - np.arange(len(self._made)), accepted])
        self.items = items[np.lexsort((ids, orders))]

    def take_back(self) -> list[Request | Response]:
        """The last items, which an older message may still precede."""
        of_made = _numbers(message.place.time_ns for message in reversed(self._made))
        times: list[int] = np.concatenate([self.row_times(), of_made])[self.items].tolist()
        end = due(times)
        items, self.items = self.items[end:], self.items[:end]
        return [self.message(item) for item in items.tolist()]

    def message(self, item: int) -> Request | Response:
        if item < 0:
            return self._made[-1 - item]
        response = item - len(self.window.requests)
        if response < 0:
            return self._decoder.request_of(self.window, item)
        return self._decoder.response_of(self.window, response)

    def request_row(self, item: int) -> Rows:
        """The row of the request that an item is, or that it answers."""
        requests = self.window.requests
        response = item - len(requests)
        row: Rows = requests[item if response < 0 else self.window.responses[response, f.PARTNER]]
        return row

    def kept(self, wanted: Selection) -> Rows:
        """Items that are wanted, that teach, and those of the slow path."""
        items, requests = self.items, self.window.requests
        is_row = items >= 0
        rows = items[is_row]
        asked = self.asked(rows)
        keys, times = requests[asked, f.KEY], self.row_times()[rows]
        is_wanted = np.array([wanted.is_to(peers.server) for peers in self.window.talks], np.bool_)
        rows_kept = is_wanted[requests[asked, f.TALK]]
        if wanted.api_keys:
            rows_kept &= among(wanted.api_keys)[keys]
        if wanted.since_ns is not None:
            rows_kept &= times >= wanted.since_ns
        if wanted.until_ns is not None:
            rows_kept &= times < wanted.until_ns
        kept = ~is_row
        kept[is_row] = rows_kept | (rows < len(requests)) & _TEACHING[keys]
        return items[kept]

    def described(self, items: Rows) -> Rows:
        """Indexes of ``items`` that only the renderer describes, and of those of the slow path."""
        is_row, rows = items >= 0, items[items >= 0]
        keys = self.window.requests[self.asked(rows), f.KEY]
        described = ~is_row
        described[is_row] = np.where(
            rows < len(self.window.requests), _DESCRIBED_REQUESTS[keys], _DESCRIBED_RESPONSES[keys]
        )
        return np.flatnonzero(described)

    def asked(self, rows: Rows) -> Rows:
        """The rows of requests that these are, or that they answer."""
        return np.concatenate([np.arange(len(self.window.requests)), self.window.responses[:, f.PARTNER]])[rows]

    def _column(self, column: int) -> Rows:
        return np.concatenate([self.window.requests[:, column], self.window.responses[:, column]])

    def row_times(self) -> Rows:
        times: Rows = self.window.packets[self._column(f.PACKET), k.TIME]
        return times


def _numbers(numbers: Iterable[int]) -> Rows:
    return np.array(list(numbers), np.int64)
