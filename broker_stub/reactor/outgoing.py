"""The writing side of a connection: responses to requests in progress, and the batch that leaves in one write."""

from __future__ import annotations

import math

import trio

from kce import wire
from kce.broker_stub.ports import Link
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request import CLOSE_CONNECTION, SEND, Request


class Outgoing:
    """Responses leave in the order of their requests (rules B1.19-B1.21)."""

    __slots__ = (
        "_delivered", "_expired", "_finishing", "_in_progress", "_is_closed", "_is_muted", "_last_sent", "_link",
        "_metrics", "_to_send", "clock",
    )  # fmt: skip

    def __init__(self, link: Link, metrics: RequestMetrics) -> None:
        self._link = link
        self._metrics = metrics
        #: from when a request has come until its response is written
        self._is_muted = False
        self._last_sent = -math.inf
        #: idle for too long: no response is written any more (rules B1.53, B1.59)
        self._expired = False
        self._finishing = False
        self._is_closed = False
        #: one, or some that share work
        self._in_progress: list[Request] = []
        #: how many of them are answered
        self._delivered = 0
        #: requests whose responses are in this batch
        self._to_send: list[Request] = []
        #: what trio.current_time calls
        self.clock = trio.lowlevel.current_clock().current_time

    @property
    def _must_wait(self) -> bool:
        return self._delivered < len(self._in_progress)

    def _take_responses(self) -> int:
        """Put the responses to the requests in progress into the batch, in their order; returns their size."""
        size = 0
        for request in self._in_progress:
            self._to_send.append(request)
            size += len(request.payload)
            if request.action is CLOSE_CONNECTION:
                self._finishing = True
                break
        self._in_progress.clear()
        self._delivered = 0
        return size

    async def _flush(self) -> None:
        """Write the responses of this batch."""
        if not self._to_send:
            return
        began = self._last_sent = self.clock()
        try:
            if self._expired:  # while the request was in its handler (rules B1.53, B1.59)
                return
            if payloads := self._payloads():
                await self._link.send(*payloads)
        finally:  # also if the client is gone
            self._sent(began)

    def _flush_nowait(self) -> bool:
        """Write the responses of this batch, if that need not wait."""
        began = self.clock()
        if self._expired or ((payloads := self._payloads()) and not self._link.send_nowait(*payloads)):
            return False
        self._last_sent = began
        self._sent(began)
        return not self._link.is_unsent

    def _payloads(self) -> list[wire.Payload]:
        to_send = self._to_send
        if len(to_send) == 1:
            return [to_send[0].payload] if to_send[0].action is SEND else []
        return [request.payload for request in to_send if request.action is SEND]

    def _sent(self, began: float) -> None:
        """The responses of this batch."""
        now, metrics = self.clock(), self._metrics
        for request in self._to_send:
            request.record(metrics, began, now)
        self._to_send.clear()

    def _sent_at_once(self, request: Request) -> bool:
        """Whether the response to the only request in progress was written."""
        is_wanted = len(self._in_progress) == 1 and request.action is SEND and not self._is_closed
        if not is_wanted or not self._link.send_nowait(request.payload):
            return False
        self._in_progress.clear()
        now = self._last_sent = self.clock()
        request.record(self._metrics, now, now)
        return True
