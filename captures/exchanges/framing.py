"""Frames out of one direction of a connection with gaps, each with the place that completes it.

A frame with missing bytes is emitted incomplete: its length is known, so framing goes on behind it. If a gap hides
where a frame ends, or a length is impossible, framing is lost until a ``Finder`` recognises a frame.
(``wire.FrameBuffer`` is for live streams, where a bad length is final.)
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kce.captures.exchanges.recognise import MAX_FRAME_BYTES, Verdict
from kce.captures.tcp.segments import Place

#: Bytes kept of a frame whose body is not wanted.
HEAD_BYTES = 64 * 1024

#: Bytes at the beginning of a frame: the correlation id, or API key and version.
ID_BYTES = 4

#: Bytes kept while searching for a frame.
MAX_LOST_BYTES = 1024 * 1024

_LENGTH = struct.Struct(">i")

Finder = Callable[[bytes, int, Collection[int], int | None], tuple[Verdict, int]]
"""(buffer, offset to begin at, offsets where packets begin, size of the gap that follows, 0 at the end of the stream,
None if more may come) -> (YES, offset of a frame) or (MORE, offset to begin at next time)."""


_Chunk = tuple[bytes, Place]


class Frame(NamedTuple):
    """A frame without its length field. ``payload`` is the kept beginning, ``lost`` the number of missing bytes.

    ``place`` is that of the packet that completed it.
    """

    payload: bytes
    length: int
    lost: int
    place: Place


class Framer:
    """Cuts one direction into frames.

    ``wants`` (first HEAD_BYTES of a longer frame, length) decides whether to keep the whole frame. ``skipped`` counts
    bytes in which no frame was recognised, ``bad_lengths`` lists impossible lengths, ``unfinished`` is set at the end
    if the last frame is incomplete. A ``patient`` framer keeps searched bytes, also across gaps, because later
    knowledge may help to find frames in them (``search``). ``believes`` (first ID_BYTES of an incomplete frame) decides
    whether it may be a frame: after a wrong guess, a bogus length would swallow everything that follows.
    """

    def __init__(
        self, find: Finder, wants: Callable[[bytes, int], bool], *, lost: bool = False, patient: bool = False,
        believes: Callable[[bytes], bool] = lambda _head: True,
    ) -> None:  # fmt: skip
        self.skipped = 0
        self.unfinished = False
        self.bad_lengths: list[tuple[int, Place]] = []
        self._find = find
        self._wants = wants
        self._believes = believes
        self._believed = True
        self._head = b""
        self._length: int | None = None
        self._body = bytearray()
        self._keep = 0
        self._seen = 0
        self._missing = 0
        self._place: Place | None = None
        self._lost = lost
        self._patient = patient
        self._chunks: list[_Chunk] = []
        self._chunk_bytes = 0
        self._look_from = 0
        self._aside: list[tuple[list[_Chunk], int]] = []  # (bytes from before a gap, size of the gap)

    @property
    def idle(self) -> bool:
        """Whether the next byte begins a frame."""
        return not (self._lost or self._head or self._length is not None)

    @property
    def waiting(self) -> bool:
        """Whether it keeps bytes in which no frame was recognised yet."""
        return bool(self._chunks or self._aside)

    @property
    def searching(self) -> bool:
        """Whether framing is lost."""
        return self._lost

    def data(self, data: bytes, place: Place) -> list[Frame]:
        """The frames that ``data`` completes."""
        return self._feed([(data, place)])

    def search(self) -> list[Frame]:
        """Search the kept bytes again, with new knowledge."""
        for index, (chunks, size) in enumerate(self._aside):
            found, at = self._look(chunks, 0, gap=size)
            if found is None:
                continue
            following = [*self._aside[index + 1 :], (self._chunks, 0)]
            self.skipped += at + _bytes_of(self._aside[:index])
            self._find_again()
            frames = self._feed(found)
            for chunks, next_size in following:
                frames += self.gap(size)
                frames += self._feed(chunks)
                size = next_size
            return frames
        self._look_from = 0
        return self._feed(self._found())

    def gap(self, size: int) -> list[Frame]:
        """``size`` bytes are missing here. Frames that end incomplete in it, and frames recognised before it."""
        frames: list[Frame] = self._last_look(size)
        if self._lost:
            if self._patient:
                self._set_aside(size)
            self._drop(len(self._chunks))
        elif self._length is not None and size <= (remaining := self._length - self._seen):
            self._missing += size
            self._seen += size
            self._believed = True
            self._keep = len(self._body)
            if size == remaining:
                self._hand_out(frames)
        else:
            if self._length is not None:
                self._missing += self._length - self._seen
                self._hand_out(frames)
            self._lose()
        return frames

    def finish(self) -> list[Frame]:
        """The stream has ended: frames that can still be recognised."""
        frames = self.search() if self._aside else []
        frames += self._last_look(0)
        self._drop(len(self._chunks))
        self.skipped += _bytes_of(self._aside)
        self._aside.clear()
        self.unfinished = bool(self._head) or self._length is not None
        self._reset()
        return frames

    def _last_look(self, gap: int) -> list[Frame]:
        """Search the kept bytes, behind which there is a gap of that size, or the end."""
        self._look_from = 0
        return self._feed(self._found(gap)) if self._chunks else []

    def _set_aside(self, size: int) -> None:
        """Put the kept bytes aside; a gap of ``size`` bytes follows them."""
        if self._chunks:
            self._aside.append((self._chunks, size))
            self._chunks, self._chunk_bytes, self._look_from = [], 0, 0
        elif self._aside:
            chunks, before = self._aside[-1]
            self._aside[-1] = chunks, before + size
        while _bytes_of(self._aside) > MAX_LOST_BYTES:
            self.skipped += _bytes_of(self._aside[:1])
            del self._aside[0]

    def _feed(self, chunks: Iterable[_Chunk]) -> list[Frame]:
        frames: list[Frame] = []
        coming = deque(chunks)
        while coming:
            data, place = coming.popleft()
            if not self._lost:
                data = self._cut(data, place, frames)
            if data:
                self._chunks.append((data, place))
                self._chunk_bytes += len(data)
                while self._chunk_bytes > MAX_LOST_BYTES and len(self._chunks) > 1:
                    self._drop(1)
                coming.extendleft(reversed(self._found()))
        return frames

    def _cut(self, data: bytes, place: Place, frames: list[Frame]) -> bytes:
        """Cut frames off ``data``. At an impossible length framing is lost, and the bytes to search are returned."""
        at, size = 0, len(data)
        while at < size:
            if self._length is None:
                if not self._head and size - at >= 4:  # usually frames and packets begin together
                    length = _LENGTH.unpack_from(data, at)[0]
                    end = at + 4 + length
                    if end <= size and length >= 4:
                        frames.append(Frame(data[at + 4 : end], length, 0, place))
                        at = end
                        continue
                taken = data[at : at + 4 - len(self._head)]
                self._head += taken
                at += len(taken)
                self._place = place if self._place is None else max(self._place, place)
                if len(self._head) == 4:
                    head = self._head
                    if not self._begin():
                        return head + data[at:]
            else:
                at = self._continue(data, at, place, frames)
                if not self._believed and len(self._body) >= ID_BYTES:
                    self._believed = True
                    if not self._believes(bytes(self._body[:ID_BYTES])):
                        begun = _LENGTH.pack(self._length or 0) + self._body
                        self._lose()
                        return begun + data[at:]
        return b""

    def _begin(self) -> bool:
        length = _LENGTH.unpack(self._head)[0]
        if not 4 <= length <= MAX_FRAME_BYTES:
            assert self._place is not None
            self.bad_lengths.append((length, self._place))
            self._lose()
            return False
        self._head = b""
        self._believed = False
        self._length = length
        self._keep = min(length, HEAD_BYTES)
        return True

    def _continue(self, data: bytes, at: int, place: Place, frames: list[Frame]) -> int:
        assert self._length is not None
        end = min(at + self._length - self._seen, len(data))
        room = self._keep - len(self._body)
        if room > 0:
            self._body += data[at : min(at + room, end)]
            if len(self._body) == HEAD_BYTES < self._length and self._wants(bytes(self._body), self._length):
                self._keep = self._length
                self._body += data[at + room : end]
        self._seen += end - at
        self._place = place if self._place is None else max(self._place, place)
        if self._seen == self._length:
            self._hand_out(frames)
        return end

    def _hand_out(self, frames: list[Frame]) -> None:
        assert self._length is not None
        assert self._place is not None
        frames.append(Frame(bytes(self._body), self._length, self._missing, self._place))
        self._reset()

    def _reset(self) -> None:
        self._head = b""
        self._believed = True
        self._length = None
        self._body = bytearray()
        self._seen = self._missing = 0
        self._place = None

    def _lose(self) -> None:
        self._reset()
        self._lost = True
        self._look_from = 0

    def _found(self, gap: int | None = None) -> list[_Chunk]:
        """The kept bytes from where a frame begins; empty while none is recognised."""
        if not self._chunks:
            return []
        found, at = self._look(self._chunks, self._look_from, gap=gap)
        if found is None:
            self._look_from = at
            if not self._patient:
                self._drop(bisect.bisect_right(_borders(self._chunks), at) - 1)
            return []
        self.skipped += at + _bytes_of(self._aside)
        self._find_again()
        return found

    def _look(self, chunks: list[_Chunk], begin: int, *, gap: int | None) -> tuple[list[_Chunk] | None, int]:
        """(``chunks`` from where a frame begins, its offset), or (None, offset to begin at next time)."""
        borders = _borders(chunks)
        verdict, at = self._find(b"".join(data for data, _ in chunks), begin, frozenset(borders), gap)
        if verdict is not Verdict.YES:
            return None, at
        return [
            (data[max(0, at - border) :], place)
            for (data, place), border in zip(chunks, borders, strict=True)
            if border + len(data) > at
        ], at

    def _find_again(self) -> None:
        """Framing is found again: the next byte begins a frame."""
        self._chunks, self._chunk_bytes, self._look_from, self._lost = [], 0, 0, False
        self._aside.clear()

    def _drop(self, count: int) -> None:
        dropped = sum(len(data) for data, _ in self._chunks[:count])
        del self._chunks[:count]
        self.skipped += dropped
        self._chunk_bytes -= dropped
        self._look_from = max(0, self._look_from - dropped)


def _borders(chunks: list[_Chunk]) -> list[int]:
    """Offset of each chunk."""
    return list(itertools.accumulate((len(data) for data, _ in chunks), initial=0))[:-1]


def _bytes_of(aside: list[tuple[list[_Chunk], int]]) -> int:
    return sum(len(data) for chunks, _ in aside for data, _ in chunks)
