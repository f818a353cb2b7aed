"""What happens to the frames of a connection while somebody looks: rules act on them, and subscribers see them."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import trio

from kce import wire
from kce.broker_stub.ports import Address
from kce.captures.record.recorder import ConnectionTap
from kce.harness.links import CLOSE, Ending, FrameEvent, Links, Passage

log = logging.getLogger(__name__)

#: requests of a connection whose responses are awaited; librdkafka may have any number
_MAX_UNANSWERED = 10_000
#: what rules make of a response, one after the other
Completions = Sequence[Callable[[Any], wire.Message]]
#: client ids of nodes: of a controller and of who asks it, of a fetcher
_NODE = re.compile(r"(\d{1,9})|broker-(\d{1,9})-fetcher-\d+", re.ASCII)


class Ends(Protocol):
    """Both ends of a connection (harness.connections.Link)."""

    remote: Address

    async def send_now(self, payloads: Sequence[bytes], segments: int | None = None, cut: int | None = None) -> None:
        """Write frames to the peer, in pieces of ``segments`` bytes; only the first ``cut`` bytes."""

    async def abort(self) -> None:
        """Break the connection."""

    def frame_came(self) -> None:
        """A frame has come through to the node."""


class ObservedLink:
    """The frames of one connection of a node, from the moment that somebody first looks.

    ``peer`` is the node at the other end, None where that is a client or not known before it speaks.
    """

    def __init__(
        self,
        ends: Ends,
        links: Links,
        *,
        node_id: int,
        peer: int | None,
        listener: str,
        accepted: bool,
        now_ns: Callable[[], int],
        tap: ConnectionTap | None,
    ) -> None:
        self._ends = ends
        self._links = links
        self._node_id = node_id
        self._peer = peer
        self._listener = listener
        self._accepted = accepted
        self._now_ns = now_ns
        self._tap = tap
        #: came through, and not yet handed out; more than one frame only where a rule made them
        self.ready: deque[bytes] = deque()
        #: headers of requests that passed and were not answered yet, the oldest first
        self.unanswered: deque[wire.Header] = deque(maxlen=_MAX_UNANSWERED)
        #: responses of rules to requests behind others that are unanswered
        self._replies: deque[tuple[wire.Header, bytes]] = deque()
        #: what rules add to the responses to requests that have passed
        self._completions: deque[tuple[wire.Header, Completions]] = deque(maxlen=_MAX_UNANSWERED)
        #: how many responses rules are being applied to
        self._responding = 0
        #: frames that a rule puts behind the next one, and the headers of those that are requests
        self._after_next: list[bytes] = []
        self._late: list[wire.Header] = []
        #: a rule lets nothing pass any more
        self._is_half_open = False
        #: so many seconds later this end learns that the peer has closed, and the peer that this end has
        self.incoming_slow_close_s = self.outgoing_slow_close_s = 0.0

    async def observe(self, frame: bytes, *, incoming: bool) -> None:
        """Apply the rules to a frame, and forward what they leave: to the node if it came, else to the peer.

        Raises trio.BrokenResourceError where a rule ends the connection.
        """
        event = self._event(frame, incoming=incoming)
        if event is not None and not event.is_request and self._completions:
            event = self._completed(event)
            frame = event.frame
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
            elif event is not None and passage.completions:
                self._completions.append((event.header, passage.completions))
            if passage.after_next and event is not None and event.is_request:
                self._late.append(event.header)
            await self._follow(passage, incoming=incoming)
        if self._after_next and (passage is None or not passage.after_next):
            for header in self._late:
                if header in self.unanswered:  # it is answered in its new place
                    self.unanswered.remove(header)
                    self.unanswered.append(header)
            delayed, self._after_next, self._late = self._after_next, [], []
            await self._forward(delayed, incoming=incoming)

    def _completed(self, event: FrameEvent) -> FrameEvent:
        """A response, with what rules add to it."""
        for known in self._completions:
            if known[0] is event.header:
                self._completions.remove(known)
                try:
                    message = event.message()
                    for complete in known[1]:
                        message = complete(message)
                    return replace(event, frame=event.encode(message))
                except wire.WireError as e:
                    log.warning("a rule cannot add its errors to a response to %s: %s", event.api, e)
                break
        return event

    async def _forward(self, frames: list[bytes], *, incoming: bool, segments: int | None = None) -> None:
        for frame in frames:
            if incoming:
                if self._tap is not None:
                    self._tap.sent("client", wire.frame(frame))
                self.ready.append(frame)
                self._ends.frame_came()
            else:
                await self._ends.send_now([frame], segments)

    async def _follow(self, passage: Passage, *, incoming: bool) -> None:
        """Do what rules have decided."""
        if incoming:
            self.incoming_slow_close_s = passage.slow_close or self.incoming_slow_close_s
        else:
            self.outgoing_slow_close_s = passage.slow_close or self.outgoing_slow_close_s
        if passage.ending is CLOSE:
            if not incoming and passage.cut:
                await self._ends.send_now(passage.frames, None, passage.cut)
            await self._ends.abort()
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
        elif header in self.unanswered:
            self.unanswered.remove(header)

    async def _send_replies(self) -> None:
        """Send the responses of rules, each after those to earlier requests: clients rely on the order.

        They go to the requester: the peer of an accepted connection, else this node.
        """
        while self._replies and not self._responding and not self._is_half_open:
            header, reply = self._replies[0]
            if header in self.unanswered:
                if self.unanswered[0] != header:
                    return
                self.unanswered.popleft()
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
                self.unanswered.append(header)
            if self._accepted and self._peer is None:
                self._peer = self._identify(header)
        else:
            answered = answered_request(frame, self.unanswered)
            if answered is None:
                return None
            header = answered
        ours, theirs = self._node_id, self._peer
        source, destination = (theirs, ours) if incoming else (ours, theirs)
        return FrameEvent(
            self._now_ns(), source, destination, self._listener, is_request, header, frame, self._links.topic_name
        )

    def _identify(self, header: wire.Header) -> int | None:
        """The dialling node: exact within a process, otherwise inferred from the client id of a node."""
        known = self._links.dialled.get(self._ends.remote)
        if known is not None:
            return known
        named = _NODE.fullmatch(header.client_id or "")
        node_id = None if named is None else int(named[1] or named[2])
        return node_id if node_id in self._links.members else None


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
