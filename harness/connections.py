"""The framed connections of a node, which pass every frame to its links (see `kce.harness.links`)."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakSet

import trio

from kce import wire
from kce.broker_stub.ports import FrameMemory
from kce.captures.record.recorder import ConnectionTap, Recorder, Side
from kce.harness.links import CLOSE, Ending, FrameEvent, Links, Passage
from kce.harness.world.port import Connected, PartsStream
from kce.harness.world.tls import SecuredStream, Tls, handshake
from kce.wire.transport import ConnectionLost

_CHUNK_BYTES = 65536
#: requests of a connection whose answers are awaited; nodes here have one at a time
_MAX_UNANSWERED = 64
_BUSY_S = 0.001
#: client ids of nodes: of a controller and of who asks it, of a fetcher
_NODE = re.compile(r"(\d{1,9})|broker-(\d{1,9})-fetcher-\d+", re.ASCII)


class Owner(Protocol):
    """The node that a connection belongs to (harness.node_links.NodeLinks)."""

    links: Links
    node_id: int
    now_ns: Callable[[], int]
    recorder: Recorder | None
    accepted: WeakSet[Link]


class Link:
    """One connection of a node, framed (broker_stub.ports.Link and wire.transport.FramedConnection).

    ``peer`` is the node at the other end, None where that is a client or not known before it speaks.
    """

    def __init__(
        self,
        node: Owner,
        connected: Connected,
        *,
        listener: str,
        peer: int | None,
        accepted: bool,
        max_frame_bytes: int = wire.DEFAULT_MAX_FRAME_BYTES,
        memory: FrameMemory | None = None,
        tls: Tls | None = None,
        host: str = "",
    ) -> None:
        """``tls``: the connection is secured by ``secure``; a client's end expects ``host``'s certificate."""
        self.local = connected.local
        self.remote = connected.remote
        #: trio.current_time() when bytes last came, or a rule last let a frame in
        self.last_received = trio.current_time()
        self._node = node
        self._links = node.links
        self._stream = connected.stream
        self._secured: SecuredStream | None = None
        if tls is not None:
            self._stream = self._secured = (
                tls.accepting(connected.stream) if accepted else tls.connecting(connected.stream, host)
            )
        #: the stream, if it sends what is stored without reading it, and what it can without waiting
        self._parts_stream = self._stream if isinstance(self._stream, PartsStream) else None
        self._buffer = wire.FrameBuffer(max_frame_bytes)
        self._memory = memory
        #: of ``memory``, for the next frame; None as long as nothing was taken
        self._taken: int | None = None
        self._listener = listener
        self._peer = peer
        self._accepted = accepted
        #: of another end of this very cluster, which observes what passes
        self._observed_there = not accepted and peer in self._links.members
        #: headers of requests that passed while somebody looked, and were not answered yet
        self._unanswered: deque[wire.Header] = deque(maxlen=_MAX_UNANSWERED)
        #: responses of rules to requests behind others that are unanswered
        self._replies: deque[tuple[wire.Header, bytes]] = deque()
        #: how many responses rules are being applied to
        self._responding = 0
        #: received and not yet handed out; more than one frame only where a rule made them
        self._ready: deque[bytes] = deque()
        #: frames that a rule puts behind the next one
        self._after_next: list[bytes] = []
        #: a rule lets nothing pass any more
        self._is_half_open = False
        #: so many seconds later this end learns that the peer has closed, and the peer that this end has
        self._slow_close_s = self.slow_close_s = 0.0
        #: held by who writes frames that somebody looks at: rules reply while another task sends
        self._writing: trio.Lock | None = None
        self._tap: ConnectionTap | None = None
        if accepted:
            node.accepted.add(self)
        if accepted and node.recorder is not None:
            self._tap = node.recorder.connection(self.remote, self.local)
        #: the rest of a frame of `send_nowait`
        self._unsent: bytes | memoryview = b""
        #: frames are neither counted nor recorded
        self._is_plain = memory is None and self._tap is None

    @property
    def unanswered(self) -> Sequence[wire.Header]:
        """Of the requests that passed while somebody looked, those without a response, the oldest first."""
        return tuple(self._unanswered)

    @property
    def buffered_bytes(self) -> int:
        """Received, and not yet handed out as a frame."""
        return len(self._buffer)

    async def secure(self) -> bytes | None:
        """See broker_stub.ports.Link."""
        return None if self._secured is None else await handshake(self._secured)

    def limit_frames(self, max_frame_bytes: int) -> int:
        """See broker_stub.ports.Link."""
        before, self._buffer.max_frame_bytes = self._buffer.max_frame_bytes, max_frame_bytes
        return before

    async def receive(self) -> bytes | None:
        """The next frame; None when the peer has closed.

        Raises wire.LimitExceeded for a length out of bounds, trio.BrokenResourceError.
        """
        while not self._ready:
            frame = await self._receive_frame()
            if frame is None:
                return None
            if not self._links.observed or self._observed_there:
                if self._tap is not None:
                    self._tap.sent("client", wire.frame(frame))
                return frame
            await self._observe(frame, incoming=True)
        return self._ready.popleft()

    async def _receive_frame(self) -> bytes | None:
        """Receive a frame and record it."""
        try:
            while (frame := self._buffer.next_frame() if self._memory is None else await self._next_frame()) is None:
                data = await self._stream.receive_some(_CHUNK_BYTES)
                self.last_received = trio.current_time()
                if not data:
                    await trio.sleep(self._slow_close_s)
                    self._record_rest()
                    return None
                self._buffer.receive_data(data)
        except wire.LimitExceeded:
            self._record_rest()
            raise
        except trio.BrokenResourceError:
            if self._tap is not None:
                self._tap.abort("client")
            raise
        return frame

    async def _next_frame(self) -> bytes | None:
        """The next frame, for which memory is taken."""
        assert self._memory is not None
        if self._taken is None:
            announced = self._buffer.announced_bytes()
            if announced is None:
                return None
            await self._memory.take(announced)
            self._taken = announced
        return self._handed_out(self._buffer.next_frame())

    def _handed_out(self, frame: bytes | None) -> bytes | None:
        if frame is not None:
            self._taken = None
        return frame

    def receive_nowait(self) -> bytes | None:
        """The next frame, if it was received with an earlier one. None while somebody looks at frames: `receive` lets
        them look."""
        if self._links.observed or self._ready:
            return self._ready.popleft() if self._ready else None
        try:
            if self._is_plain:
                return self._buffer.next_frame()
            if self._memory is not None and self._taken is None:
                announced = self._buffer.announced_bytes()
                if announced is None or not self._memory.try_take(announced):
                    return None
                self._taken = announced
            frame = self._handed_out(self._buffer.next_frame())
        except wire.LimitExceeded:  # raised again by ``receive``
            return None
        if frame is not None and self._tap is not None:
            self._tap.sent("client", wire.frame(frame))
        return frame

    async def wait_for_input(self) -> bool:
        """See broker_stub.ports.Link."""
        stream = self._parts_stream
        if stream is None or self._links.observed or self._ready or len(self._buffer):
            return False
        await stream.wait_for_input()
        return True

    def stop_waiting(self) -> None:
        """See broker_stub.ports.Link."""
        assert self._parts_stream is not None
        self._parts_stream.stop_waiting()

    async def send(self, *payloads: wire.Payload) -> None:
        """Send frames in one write. What is stored is read only if somebody looks, or the stream needs it.

        Raises trio.BrokenResourceError. After a failed or cancelled call the connection is to be closed.
        """
        is_observed = self._links.observed and not self._observed_there
        unseen = None if is_observed or self._tap is not None else self._parts_stream
        if unseen is not None and wire.Parts in map(type, payloads):
            await unseen.send_parts(wire.frame_parts(payloads))
            return
        frames = [payload if isinstance(payload, bytes) else _read(payload) for payload in payloads]
        if is_observed:
            for frame in frames:
                await self._observe(frame, incoming=False)
        elif self._is_plain:
            await self._stream.send_all(wire.frames(frames))
        else:
            await self._send_now(frames)

    def send_nowait(self, payload: wire.Payload) -> bool:
        """See broker_stub.ports.Link."""
        stream = self._parts_stream
        if stream is None or not self._is_plain or self._links.observed or not isinstance(payload, bytes):
            return False
        data = wire.frame(payload)
        try:
            sent = stream.send_nowait(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # met again by `send`
            return False
        self._unsent = memoryview(data)[sent:] if sent else b""
        return sent > 0

    @property
    def is_unsent(self) -> bool:
        """See broker_stub.ports.Link."""
        return len(self._unsent) > 0

    async def flush(self) -> None:
        """See broker_stub.ports.Link."""
        if self.is_unsent:
            unsent, self._unsent = self._unsent, b""
            await self._write(unsent)

    async def _send_now(self, payloads: Sequence[bytes], segments: int | None = None, cut: int | None = None) -> None:
        """Write frames at once, or in pieces of ``segments`` bytes; only the first ``cut`` bytes."""
        data = wire.frames(payloads)[:cut]
        self._writing = self._writing or trio.Lock()
        async with self._writing:
            try:
                if self._tap is not None:  # first, so that in a file no answer precedes its request
                    for framed in (data,) if cut is not None else map(wire.frame, payloads):
                        self._tap.sent("server", framed)
                step = segments or len(data)
                for at in range(0, len(data), step):
                    await self._write(data[at : at + step])
            except BaseException:
                if self._tap is not None:
                    self._tap.abort("server")
                raise

    async def _write(self, data: bytes | memoryview) -> None:
        await self.flush()
        while True:
            try:
                return await self._stream.send_all(data)
            except trio.BusyResourceError:  # by a send that began before there were rules, which does not wait
                await trio.sleep(_BUSY_S)

    async def aclose(self) -> None:
        """Never fails, does not wait for the peer, and cannot be cancelled."""
        if self._tap is not None:
            self._tap.close("server")
        if self._memory is not None and self._taken is not None:
            self._memory.give_back(self._taken)
            self._taken = None
        if not self._accepted:
            self._links.dialled.pop(self.local, None)
        self._node.accepted.discard(self)
        if self._parts_stream is not None:
            self._parts_stream.close()
        else:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    # as a connection to another node

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        """Send ``payload`` and ``rest`` as one frame. ``rest`` is not copied if nobody looks. Raises ConnectionLost."""
        try:
            if not self._is_plain or (self._links.observed and not self._observed_there):
                await self.send(b"".join((payload, rest)))
            else:
                await self._stream.send_all(wire.frame_prefix(len(payload) + len(rest)) + payload)
                if rest:
                    await self._stream.send_all(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost("the connection broke while sending") from e

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, wire.LimitExceeded."""
        try:
            frame = await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost("the connection broke while receiving") from e
        if frame is None:
            raise ConnectionLost("the peer closed the connection")
        return frame

    # what passes

    async def _observe(self, frame: bytes, *, incoming: bool) -> None:
        """Apply the rules to a frame, and forward what they leave: to the node if it came, else to the peer."""
        event = self._event(frame, incoming=incoming)
        if event is None or event.is_request:
            await self._pass_on(event, frame, incoming=incoming)
        else:
            self._responding += 1
            try:
                await self._pass_on(event, frame, incoming=incoming)
            finally:
                self._responding -= 1
        if self._replies:
            await self._send_replies()

    async def _pass_on(self, event: FrameEvent | None, frame: bytes, *, incoming: bool) -> None:
        passage = None if event is None else await self._links.apply_rules(event)
        if event is not None:
            self._links.publish(event)
        if self._is_half_open:
            if event is not None and event.is_request:
                self._answer_here(event.header, None)
            return
        if passage is None:
            await self._forward([frame], incoming=incoming)
        else:
            is_kept = passage.reply is not None or not passage.frames or passage.ending is Ending.HALF_OPEN
            if event is not None and event.is_request and is_kept:
                if passage.reply is not None and self._tap is not None:
                    self._tap.sent("client", wire.frame(frame))  # the requester sent it: its response has a request
                self._answer_here(event.header, passage.reply)
            await self._follow(passage, incoming=incoming)
        if self._after_next and (passage is None or not passage.after_next):
            delayed, self._after_next = self._after_next, []
            await self._forward(delayed, incoming=incoming)

    async def _forward(self, frames: list[bytes], *, incoming: bool, segments: int | None = None) -> None:
        for frame in frames:
            if incoming:
                if self._tap is not None:
                    self._tap.sent("client", wire.frame(frame))
                self._ready.append(frame)
                self.last_received = trio.current_time()  # a rule may have held it
            else:
                await self._send_now([frame], segments)

    async def _follow(self, passage: Passage, *, incoming: bool) -> None:
        """Do what rules have decided. Raises trio.BrokenResourceError where they end the connection."""
        if incoming:
            self._slow_close_s = passage.slow_close or self._slow_close_s
        else:
            self.slow_close_s = passage.slow_close or self.slow_close_s
        if passage.ending is CLOSE:
            if not incoming and passage.cut:
                await self._send_now(passage.frames, cut=passage.cut)
            await trio.aclose_forcefully(self._stream)
            raise trio.BrokenResourceError("a rule broke the connection")
        if passage.ending is not None:
            self._is_half_open = True
        elif passage.after_next:
            self._after_next += passage.frames
        else:
            await self._forward(passage.frames, incoming=incoming, segments=passage.segments)

    def _answer_here(self, header: wire.Header, reply: bytes | None) -> None:
        """A rule keeps a request from the broker; ``reply`` is its response, if it gets one."""
        if reply is not None:
            self._replies.append((header, reply))
        elif header in self._unanswered:
            self._unanswered.remove(header)

    async def _send_replies(self) -> None:
        """Send the responses of rules, each after those to earlier requests: clients rely on the order.

        They go to the requester: the peer of an accepted connection, else this node.
        """
        while self._replies and not self._responding and not self._is_half_open:
            header, reply = self._replies[0]
            if header in self._unanswered:
                if self._unanswered[0] != header:
                    return
                self._unanswered.popleft()
            self._replies.popleft()
            await self._forward([reply], incoming=not self._accepted)

    def _event(self, frame: bytes, *, incoming: bool) -> FrameEvent | None:
        """The event of a frame; None if the header is not Kafka's or the answered request is unknown."""
        is_request = incoming == self._accepted
        if is_request:
            try:
                header = wire.decode_request_header(frame)
            except wire.DecodeError:
                return None
            if not _is_unacknowledged(header, frame):
                self._unanswered.append(header)
            if self._accepted and self._peer is None:
                self._peer = self._identify(header)
        else:
            answered = answered_request(frame, self._unanswered)
            if answered is None:
                return None
            header = answered
        ours, theirs = self._node.node_id, self._peer
        source, destination = (theirs, ours) if incoming else (ours, theirs)
        return FrameEvent(self._node.now_ns(), source, destination, self._listener, is_request, header, frame)

    def _identify(self, header: wire.Header) -> int | None:
        """The dialling node: exact within a process, otherwise inferred from the client id of a node."""
        known = self._links.dialled.get(self.remote)
        if known is not None:
            return known
        named = _NODE.fullmatch(header.client_id or "")
        node_id = None if named is None else int(named[1] or named[2])
        return node_id if node_id in self._links.members else None

    def _record_rest(self) -> None:
        """Received bytes that form no frame."""
        if self._tap is not None:
            side: Side = "client"
            if rest := self._buffer.rest():
                self._tap.sent(side, rest)
            self._tap.finish(side)


def _read(payload: wire.Parts) -> bytes:
    """Raises trio.BrokenResourceError if what is stored is gone."""
    try:
        return payload.read()
    except OSError as e:
        raise trio.BrokenResourceError(f"what is to be sent cannot be read: {e}") from e


def answered_request(frame: bytes, unanswered: deque[wire.Header]) -> wire.Header | None:
    """Take the request of a response out of ``unanswered``, with earlier ones: a broker answers in order.

    None for the response to a request that is not among them.
    """
    correlation_id = int.from_bytes(frame[:4], "big", signed=True)
    if all(header.correlation_id != correlation_id for header in unanswered):
        return None
    while (header := unanswered.popleft()).correlation_id != correlation_id:
        continue
    return header


def _is_unacknowledged(header: wire.Header, frame: bytes) -> bool:
    """Whether this is a Produce request with acks=0, which gets no response."""
    if header.api_key != wire.ProduceRequest.__api_key__:
        return False
    try:
        _, message = wire.decode_request(frame)
    except wire.DecodeError:
        return False
    return isinstance(message, wire.ProduceRequest) and message.acks == 0
