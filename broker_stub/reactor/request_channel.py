"""The bounded request queue of a plane and its handlers (rules B1.3-B1.5, B1.22, B1.28-B1.32).

A handler is not a task: it is the right to handle a request, of which there are `num.io.threads`. A request is handled
in the task of its connection, at once if a handler is free. If none is, it waits in the queue; if the queue is full,
it waits before the queue, and its processor is blocked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable
from typing import Protocol

import trio

from kce.broker_stub.errors import ApiException
from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request import Apis, Request

log = logging.getLogger(__name__)


class Sender(Protocol):
    """The processor of a request."""

    def block(self) -> None:
        """Neither read nor write, until ``unblock``."""

    def unblock(self) -> None: ...


def failed_again(request: Request) -> None:
    """Call where the error response has failed, too."""
    log.exception("%s: the error response failed", request)
    if not request.answered:
        request.close_connection()


class _Waiting:
    """A request without a handler."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.has_handler = False
        self.woken = trio.Event()


class RequestChannel:
    """The FIFO queue of ``capacity`` requests for ``handlers`` handlers. Handlers park requests that must wait."""

    def __init__(self, capacity: int, handlers: int, apis: Apis, metrics: RequestMetrics) -> None:
        self.capacity = capacity
        self.handlers = handlers
        self._apis = apis
        self._metrics = metrics
        #: handlers that are; less than 0 while some are to end
        self.free = handlers
        self._queue: deque[_Waiting] = deque()
        #: before the queue: at most one for each processor
        self._blocked: deque[_Waiting] = deque()

    @property
    def request_queue_size(self) -> int:
        return len(self._queue)

    def resize(self, handlers: int) -> None:
        """Have so many handlers from now on; those that are too many end with their requests."""
        more, self.handlers = handlers - self.handlers, handlers
        self.free += min(more, 0)
        for _ in range(more):
            self._release_handler()

    async def handle(self, request: Request, sender: Sender) -> None:
        """Handle a request, waiting for a handler, and in it."""
        try:
            await self._take_handler(sender)
            request.dequeued()
            try:
                if request.waits is None and self.begin(request):
                    return
                assert request.waits is not None
                try:
                    await request.waits
                except Exception as e:  # noqa: BLE001 - logged there
                    await self._failed_in_turns(request, e)
                request.handled_at = request.clock()
            finally:
                self._release_handler()
        finally:
            request.release()

    def begin(self, request: Request) -> bool:
        """Call the API; a handler must be ``free``. False if the request must wait in it: it needs ``handle``."""
        waits: Awaitable[None] | None = None
        try:
            waits = self._apis.handle(request)
        except Exception as e:  # noqa: BLE001 - logged there
            if request.is_long:
                waits = self._failed_in_turns(request, e)
            else:
                self._failed(request, e)
        if waits is not None:
            request.waits = waits
            return False
        request.handled_at = request.clock()
        return True

    def _failed(self, request: Request, error: Exception) -> None:  # rules B1.31, B1.41
        self._log(request, error)
        try:
            request.fail(error)
        except Exception:  # noqa: BLE001 - logged there
            failed_again(request)

    async def _failed_in_turns(self, request: Request, error: Exception) -> None:
        self._log(request, error)
        try:
            await request.fail_in_turns(error)
        except Exception:  # noqa: BLE001 - logged there
            failed_again(request)

    def _log(self, request: Request, error: Exception) -> None:
        if isinstance(error, ApiException):
            log.info("%s is refused: %s", request, error)
        else:
            self._metrics.handler_errors += 1
            log.exception("%s failed", request, exc_info=error)

    async def _take_handler(self, sender: Sender) -> None:
        if self.free > 0:
            self.free -= 1
            return
        waiting = _Waiting(sender)
        if len(self._queue) < self.capacity:
            self._queue.append(waiting)
        else:
            self._blocked.append(waiting)
            sender.block()
        try:
            await waiting.woken.wait()
        except trio.Cancelled:
            self._give_up(waiting)
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        if waiting.has_handler:
            self._release_handler()
        elif waiting in self._blocked:
            self._blocked.remove(waiting)
            waiting.sender.unblock()
        else:
            self._queue.remove(waiting)
            self._admit()

    def _release_handler(self) -> None:
        """Pass it to the first request of the queue, if there is one; it goes if there are too many now."""
        if self.free < 0 or not self._queue:
            self.free += 1
            return
        first = self._queue.popleft()
        first.has_handler = True
        first.woken.set()
        self._admit()

    def _admit(self) -> None:
        """There is room in the queue."""
        if self._blocked:
            admitted = self._blocked.popleft()
            self._queue.append(admitted)
            admitted.sender.unblock()
