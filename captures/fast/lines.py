"""`kce decode`'s lines of text on the fast path: what ``Renderer`` says of the messages of ``BulkDecoder``, in order.

A kernel prints lines from frames. What it cannot describe, control requests above all, is decoded and described by the
renderer first, and the kernel puts that text into the line. So it stops only before a request that teaches the cluster
names or addresses (LeaderAndIsr, UpdateMetadata), for messages of the slow path, and for odd values.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import numpy as np

from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.pairing import Peers, Request, Response
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
_NO_TEXTS = [-1, -1]
_HALVES = struct.Struct(">qq").unpack


def lines(decoder: BulkDecoder, renderer: Renderer, wanted: Selection) -> Iterator[bytes]:
    """The lines of all wanted messages in UTF-8, one or many at a time. The decoder's cluster learns no planes."""
    printer = _Printer(decoder, renderer, wanted)
    for sheet in sheets(decoder):
        yield from printer.print(sheet, sheet.kept(wanted))


class _Names:
    """Texts that the cluster's next revision may change: both ends of connections, the names of topics by id."""

    def __init__(self, cluster: Cluster, renderer: Renderer, texts: Texts) -> None:
        self._cluster = cluster
        self._renderer = renderer
        self._texts = texts
        self._revision = cluster.revision
        self._ends: dict[Peers, list[int]] = {}  # in both directions
        self._topics = 0
        self.topics = np.full((64, 3), -1, np.int64)

    @property
    def valid(self) -> bool:
        return self._revision == self._cluster.revision

    def ends(self, talks: list[Peers]) -> Rows:
        """The texts of a window's connections, of which those that are not known yet are -1."""
        return np.array([self._ends.get(peers, _NO_TEXTS) for peers in talks], np.int64).reshape(-1, 2)

    def add_ends(self, peers: Peers) -> list[int]:
        ends = [self._texts.add(self._renderer.peers(peers, arrow)) for arrow in ("->", "<-")]
        self._ends[peers] = ends
        return ends

    def add_topic(self, topic_id: bytes) -> None:
        self._topics += 1
        if 2 * self._topics > len(self.topics):
            known = self.topics[self.topics[:, 2] >= 0]
            self.topics = np.full((2 * len(self.topics), 3), -1, np.int64)
            for row in known:
                self.topics[topic_place(self.topics, row[0], row[1])] = row
        high, low = _HALVES(topic_id)
        name = printable(self._cluster.topic_name(uuid.UUID(bytes=topic_id)))
        self.topics[topic_place(self.topics, high, low)] = high, low, self._texts.add(name)


class _Printer:
    def __init__(self, decoder: BulkDecoder, renderer: Renderer, wanted: Selection) -> None:
        self._cluster = decoder.cluster
        self._renderer = renderer
        self._wanted = wanted
        self._forget()
        self._out = np.zeros(_OUT_BYTES, np.uint8)
        self._values = np.zeros(COLUMNS, np.int64)
        self._stack = np.zeros((16, 6), np.int64)

    def print(self, sheet: Sheet, items: Rows) -> Iterator[bytes]:
        if self._programs.texts.size > _MAX_TEXTS_BYTES:
            self._forget()
        ends = self._names.ends(sheet.window.talks)
        for part, said in self._described(sheet, items):
            if len(part):
                yield from self._write(sheet, part, said, ends)

    def _forget(self) -> None:
        self._programs = TextPrograms(self._renderer)
        self._names = self._no_names()

    def _no_names(self) -> _Names:
        return _Names(self._cluster, self._renderer, self._programs.texts)

    def _described(self, sheet: Sheet, items: Rows) -> Iterator[tuple[Rows, Rows]]:
        """Parts of ``items`` that teach nothing behind their first, and the texts of those that the renderer describes.

        A part is printed before the next one teaches. What is of the slow path is the last of its part.
        """
        said = np.full(len(items), n.UNSAID)
        begin = 0
        for index in sheet.described(items).tolist():
            item = int(items[index])
            if item < 0:
                yield items[begin : index + 1], said[begin : index + 1]
                begin = index + 1
                continue
            message = sheet.message(item)
            if isinstance(message, Request) and self._cluster.news(message.body) is not None:
                yield items[begin:index], said[begin:index]
                begin = index
                self._cluster.observe(message)
            said[index] = n.UNWANTED
            if message in self._wanted:
                said[index] = self._programs.texts.add(self._renderer.describe(message))
        yield items[begin:], said[begin:]

    def _write(self, sheet: Sheet, items: Rows, said: Rows, ends: Rows) -> Iterator[bytes]:
        window, renderer, programs = sheet.window, self._renderer, self._programs
        texts = programs.texts
        index, why = 0, n.OTHER
        while why != n.ALL:
            if not self._names.valid:
                self._names = self._no_names()
                ends[:] = -1
            words = Words(texts.bytes, texts.rows, self._names.topics)
            why, index, end, renderer.width = n.write(
                items, said, index, window.packets, window.requests, window.responses, window.data, ends,
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
                ends[talk] = self._names.add_ends(window.talks[talk])
            elif why == n.NO_TOPIC:
                at = int(self._values[UNKNOWN_TOPIC])
                self._names.add_topic(window.data[at : at + 16].tobytes())
            elif why == n.NO_ROOM and not end:
                self._out = np.concatenate([self._out, self._out])

    def tell(self, message: Request | Response) -> Iterator[bytes]:
        """The line of a message, if it is wanted; what it teaches is learnt."""
        self._cluster.observe(message)
        if message in self._wanted:
            yield f"{self._renderer.line(message)}\n".encode()
