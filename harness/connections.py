"""The framed connections of a node, which pass every frame to its links (see `kce.harness.links`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol
from weakref import WeakSet

import trio

from kce import wire
from kce.broker_stub.ports import FrameMemory, InTurns
from kce.captures.record.recorder import ConnectionTap, Recorder, Side
from kce.harness.links import Links
from kce.harness.observed_link import ObservedLink
from kce.harness.world.port import Connected, PartsStream
from kce.harness.world.tls import SecuredStream, Tls, handshake
from kce.harness.world.tls_failures import tls_failure
from kce.wire.transport import ConnectionLost

_CHUNK_BYTES = 65536
#: that are read at once to complete a frame
_MOST_CHUNKS = 16
#: a copy costs less than another system call, packet and wake-up of the peer
_COPIED_BYTES = 16384
_BUSY_S = 0.001


class _AtOnce:
    """Input is dealt with when it comes."""

    def call(self, work: Callable[[], None]) -> None:
        work()

    def end_slice(self) -> None:
        pass


AT_ONCE: Final = _AtOnce()


class Owner(Protocol):
    """The node that a connection belongs to (harness.node_links.NodeLinks)."""

    links: Links
    node_id: int
    now_ns: Callable[[], int]
    recorder: Recorder | None
    accepted: WeakSet[Link]


class Link:
    """One connection of a node, framed (broker_stub.ports.Link and wire.transport.DirectConnection).

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
        self._clock = trio.lowlevel.current_clock().current_time
        self.last_received = self._clock()
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
        self._observed: ObservedLink | None = None
        #: held by who writes frames that somebody looks at: rules reply while another task sends
        self._writing: trio.Lock | None = None
        self._tap: ConnectionTap | None = None
        if accepted:
            node.accepted.add(self)
        if accepted and node.recorder is not None:
            self._tap = node.recorder.connection(self.remote, self.local)
        #: something has come that was not read
        self._has_input = False
        #: only ``receive`` can tell what has come: the end, or bytes that are no frame
        self._ends = False
        #: the rest of what `send_nowait` sends
        self._unsent: bytes | memoryview = b""
        #: see broker_stub.ports.Link
        self.is_unsent = False
        #: authenticates again with the first frame that is sent later
        self._renewal: Callable[[], Awaitable[None]] | None = None
        self._renewed_at = 0.0
        #: frames are neither counted nor recorded
        self._is_plain = memory is None and self._tap is None

    @property
    def unanswered(self) -> Sequence[wire.Header]:
        """Of the requests that passed while somebody looked, those without a response, the oldest first."""
        return () if self._observed is None else tuple(self._observed.unanswered)

    @property
    def slow_close_s(self) -> float:
        """So many seconds later the peer is to learn that this end has closed: rules have said so."""
        return 0.0 if self._observed is None else self._observed.outgoing_slow_close_s

    def _has_ready(self) -> bool:
        return self._observed is not None and bool(self._observed.ready)

    def _next_ready(self) -> bytes | None:
        """A frame that rules have let through."""
        return self._observed.ready.popleft() if self._observed is not None and self._has_ready() else None

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
        while (ready := None if self._observed is None else self._next_ready()) is None:
            frame = await self._receive_frame()
            if frame is None:
                return None
            if not self._links.observed or self._observed_there:
                if self._tap is not None:
                    self._tap.sent("client", wire.frame(frame))
                return frame
            await self._seen().observe(frame, incoming=True)
        return ready

    async def _receive_frame(self) -> bytes | None:
        """Receive a frame and record it."""
        buffer, memory = self._buffer, self._memory
        try:
            frame = buffer.next_frame() if memory is None else await self._next_frame()
            while frame is None:
                data = await self._stream.receive_some(_CHUNK_BYTES)
                self.last_received = self._clock()
                if not data:
                    await trio.sleep(0.0 if self._observed is None else self._observed.incoming_slow_close_s)
                    self._record_rest()
                    return None
                if memory is None:
                    frame = buffer.receive_frame(data)
                else:
                    buffer.receive_data(data)
                    frame = await self._next_frame()
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
        """See broker_stub.ports.Link. None while somebody looks at frames: `receive` lets them look."""
        if self._links.observed or (self._observed is not None and self._has_ready()):
            return self._next_ready()
        try:
            if self._is_plain:
                frame = self._buffer.next_frame()
                return self._read_nowait() if frame is None and self._has_input else frame
            if self._memory is not None and self._taken is None:
                announced = self._buffer.announced_bytes()
                if announced is None or not self._memory.try_take(announced):
                    return None
                self._taken = announced
            frame = self._handed_out(self._buffer.next_frame())
        except wire.LimitExceeded:  # raised again by ``receive``
            self._ends = True
            return None
        if frame is not None and self._tap is not None:
            self._tap.sent("client", wire.frame(frame))
        return frame

    def _read_nowait(self) -> bytes | None:
        """The next frame, if the bytes that have come complete it. Raises trio.BrokenResourceError."""
        assert self._parts_stream is not None
        self._has_input = False
        for _ in range(_MOST_CHUNKS):
            data = self._parts_stream.receive_nowait(_CHUNK_BYTES)
            if not data:
                self._ends = data is not None
                return None
            self.last_received = self._clock()
            frame = self._buffer.receive_frame(data)
            if frame is not None or len(data) < _CHUNK_BYTES:
                return frame
        return None

    @property
    def has_ended(self) -> bool:
        """See wire.transport.DirectConnection."""
        return self._parts_stream is not None and self._parts_stream.has_ended

    async def wait_for_input(self, on_input: Callable[[], bool], turns: InTurns = AT_ONCE) -> None:
        """See broker_stub.ports.Link."""
        stream = self._parts_stream
        if stream is None or not self._is_plain or self._links.observed or self._has_ready() or self._ends:
            return

        def on_bytes() -> bool:
            self._has_input = True
            return not self._links.observed and on_input() and not self._ends

        await stream.wait_for_input(on_bytes, turns)

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
                await self._seen().observe(frame, incoming=False)
        elif self._is_plain:
            await self._stream.send_all(wire.frames(frames))
        else:
            await self.send_now(frames)

    def send_nowait(self, *payloads: wire.Payload) -> bool:
        """See broker_stub.ports.Link."""
        stream = self._parts_stream
        if stream is None or not self._is_plain or self._links.observed:
            return False
        if self._renewal is not None and self._is_renewal_due:
            return False
        if wire.Parts in map(type, payloads):
            return False
        data = wire.frame(payloads[0]) if len(payloads) == 1 else wire.frames(payloads)  # type: ignore[arg-type]
        try:
            sent = stream.send_nowait(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):  # met again by `send`
            return False
        if 0 < sent < len(data):
            self._unsent, self.is_unsent = memoryview(data)[sent:], True
        return sent > 0

    async def flush(self) -> None:
        """See broker_stub.ports.Link."""
        if self.is_unsent:
            unsent, self._unsent, self.is_unsent = self._unsent, b"", False
            await self._write(unsent)

    async def send_now(self, payloads: Sequence[bytes], segments: int | None = None, cut: int | None = None) -> None:
        """See harness.observed_link.Ends."""
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
        # whoever holds the link must not hold these
        self._buffer.clear()
        self._unsent, self.is_unsent = b"", False
        if self._parts_stream is not None:
            self._parts_stream.close()
        else:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    # as a connection to another node

    def renew_after(self, seconds: float, renewal: Callable[[], Awaitable[None]]) -> None:
        """Then, ``renewal`` comes before the next frame that ``send_frame`` sends."""
        self._renewal, self._renewed_at = renewal, self._clock() + seconds

    @property
    def _is_renewal_due(self) -> bool:
        return self._renewal is not None and self._clock() >= self._renewed_at

    async def send_frame(self, payload: bytes, rest: bytes | memoryview = b"") -> None:
        """Send ``payload`` and ``rest`` as one frame. A large ``rest`` is not copied if nobody looks.

        Raises ConnectionLost."""
        if self._is_renewal_due:
            renewal, self._renewal = self._renewal, None
            assert renewal is not None
            await renewal()
        try:
            if not self._is_plain or (self._links.observed and not self._observed_there):
                await self.send(b"".join((payload, rest)))
                return
            prefix = wire.frame_prefix(len(payload) + len(rest))
            if len(rest) <= _COPIED_BYTES:
                await self._stream.send_all(b"".join((prefix, payload, rest)))
            else:
                await self._stream.send_all(prefix + payload)
                await self._stream.send_all(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost("the connection broke while sending") from e

    async def receive_frame(self) -> bytes:
        """Raises ConnectionLost, wire.LimitExceeded."""
        try:
            frame = await self.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as e:
            raise ConnectionLost(tls_failure(e) or "the connection broke while receiving") from e
        if frame is None:
            raise ConnectionLost("the peer closed the connection")
        return frame

    # what passes

    def _seen(self) -> ObservedLink:
        """Made when somebody first looks: most connections are never looked at, and it has its size."""
        if self._observed is None:
            self._observed = ObservedLink(
                self, self._links, node_id=self._node.node_id, peer=self._peer, listener=self._listener,
                accepted=self._accepted, now_ns=self._node.now_ns, tap=self._tap,
            )  # fmt: skip
        return self._observed

    async def abort(self) -> None:
        """See harness.observed_link.Ends."""
        await trio.aclose_forcefully(self._stream)

    def frame_came(self) -> None:
        """See harness.observed_link.Ends. A rule may have held it."""
        self.last_received = self._clock()

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
