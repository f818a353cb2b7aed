"""`kce decode`'s lines of text on the fast path: what ``Renderer`` says of the messages of ``BulkDecoder``, in order.

Kernels print ordinary messages from their frames. Every other message is made and given to the renderer, above all what
teaches the cluster (LeaderAndIsr and UpdateMetadata requests), after which names that were looked up are forgotten.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import numpy as np

from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.pairing import Request, Response
from kce.captures.exchanges.render import Renderer, printable
from kce.captures.exchanges.selection import Selection
from kce.captures.fast import frame_kernels as f
from kce.captures.fast import line_kernels as n
from kce.captures.fast.bulk import Rows
from kce.captures.fast.messages import BulkDecoder
from kce.captures.fast.sheets import Sheet, sheets
from kce.captures.fast.text_kernels import Words, topic_place
from kce.captures.fast.text_programs import COLUMNS, UNKNOWN_TOPIC, TextPrograms, Texts

_OUT_BYTES, _MAX_TEXTS_BYTES = 1024 * 1024, 4 * 1024 * 1024
_HALVES = struct.Struct(">qq").unpack


def lines(decoder: BulkDecoder, renderer: Renderer, wanted: Selection) -> Iterator[bytes]:
    """The lines of all wanted messages in UTF-8, one or many at a time. The decoder's cluster learns no planes."""
    printer = _Printer(decoder, renderer, wanted)
    for sheet in sheets(decoder):
        yield from printer.print(sheet, sheet.kept(wanted))


class _Names:
    """Texts that may change: the ends of a window's connections in both directions, the names of topics by id."""

    def __init__(self, cluster: Cluster, connections: int) -> None:
        self._cluster = cluster
        self.revision = cluster.revision
        self.ends = np.full((connections, 2), -1, np.int64)
        self.topics = np.full((64, 3), -1, np.int64)
        self._topics = 0

    def add_topic(self, topic_id: bytes, texts: Texts) -> None:
        self._topics += 1
        if 2 * self._topics > len(self.topics):
            known = self.topics[self.topics[:, 2] >= 0]
            self.topics = np.full((2 * len(self.topics), 3), -1, np.int64)
            for row in known:
                self.topics[topic_place(self.topics, row[0], row[1])] = row
        high, low = _HALVES(topic_id)
        name = printable(self._cluster.topic_name(uuid.UUID(bytes=topic_id)))
        self.topics[topic_place(self.topics, high, low)] = high, low, texts.add(name)


class _Printer:
    def __init__(self, decoder: BulkDecoder, renderer: Renderer, wanted: Selection) -> None:
        self._cluster = decoder.cluster
        self._renderer = renderer
        self._wanted = wanted
        self._programs = TextPrograms(renderer)
        self._out = np.zeros(_OUT_BYTES, np.uint8)
        self._values = np.zeros(COLUMNS, np.int64)
        self._stack = np.zeros((16, 6), np.int64)

    def print(self, sheet: Sheet, items: Rows) -> Iterator[bytes]:
        if self._programs.texts.size > _MAX_TEXTS_BYTES:
            self._programs = TextPrograms(self._renderer)
        window, renderer, programs, texts = sheet.window, self._renderer, self._programs, self._programs.texts
        names = _Names(self._cluster, len(window.talks))
        words = Words(texts.bytes, texts.rows, names.topics)
        index, why = 0, n.OTHER
        while why != n.ALL:
            if names.revision != self._cluster.revision:
                names = _Names(self._cluster, len(window.talks))
            if why != n.OTHER or words.topics is not names.topics:
                words = Words(texts.bytes, texts.rows, names.topics)
            why, index, end, renderer.width = n.write(
                items, index, window.packets, window.requests, window.responses, window.data, names.ends,
                programs.ids, programs.starts, programs.code, programs.values,
                words, self._out, renderer.width, self._values, self._stack,
            )  # fmt: skip
            if end:
                yield self._out[:end].tobytes()
            if why == n.OTHER:
                yield from self.tell(sheet.message(int(items[index])))
                index += 1
            elif why == n.NO_PROGRAM:
                programs.write(*sheet.request_row(int(items[index]))[[f.KEY, f.VERSION]].tolist())
            elif why == n.NO_ENDS:
                talk = int(sheet.request_row(int(items[index]))[f.TALK])
                names.ends[talk] = [texts.add(renderer.peers(window.talks[talk], arrow)) for arrow in ("->", "<-")]
            elif why == n.NO_TOPIC:
                at = int(self._values[UNKNOWN_TOPIC])
                names.add_topic(window.data[at : at + 16].tobytes(), texts)
            elif why == n.NO_ROOM and not end:
                self._out = np.concatenate([self._out, self._out])

    def tell(self, message: Request | Response) -> Iterator[bytes]:
        """The line of a message, if it is wanted; what it teaches is learnt."""
        self._cluster.observe(message)
        if message in self._wanted:
            yield f"{self._renderer.line(message)}\n".encode()
