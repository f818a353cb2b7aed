"""`num.io.threads` of a plane as tasks: each takes a request, runs it, takes the next (rules B1.28-B1.32)."""

from __future__ import annotations

import logging

import trio

from broker_stub.reactor.metrics import RequestMetrics
from broker_stub.reactor.request_channel import Apis, Request, RequestChannel

logger = logging.getLogger("broker_stub.reactor")


class HandlerPool:
    """A fixed number of handlers on one request queue. A request that waits for another is parked, not waited for."""

    def __init__(self, name: str, size: int, channel: RequestChannel, apis: Apis, metrics: RequestMetrics) -> None:
        self.name = name
        self.size = size
        self._channel = channel
        self._apis = apis
        self._metrics = metrics

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until the channel is shut down. Its nursery holds the handlers."""
        async with trio.open_nursery() as nursery:
            for i in range(self.size):
                nursery.start_soon(self._handle_requests, name=f"{self.name}-kafka-request-handler-{i}")
            task_status.started()

    async def _handle_requests(self) -> None:
        async for request in self._channel.requests():
            request.dequeued()
            try:
                await self._apis.handle(request)
            except Exception as e:
                self._metrics.handler_errors += 1
                logger.exception("%s failed", request)
                self._fail(request, e)
            finally:
                request.handled()

    def _fail(self, request: Request, error: Exception) -> None:
        try:
            request.fail(error)
        except Exception:  # even its error answer cannot be made
            logger.exception("%s cannot be answered", request)
            if not request.answered:
                request.close_connection()
