"""The `num.io.threads` of a plane as tasks: each handles one request after the other (rules B1.28-B1.32)."""

from __future__ import annotations

import logging

import trio

from kce.broker_stub.reactor.metrics import RequestMetrics
from kce.broker_stub.reactor.request_channel import Apis, Request, RequestChannel

log = logging.getLogger(__name__)


class HandlerPool:
    """A fixed number of handler tasks on one request queue. Handlers park requests that must wait."""

    def __init__(self, name: str, size: int, channel: RequestChannel, apis: Apis, metrics: RequestMetrics) -> None:
        self.name = name
        self.size = size
        self._channel = channel
        self._apis = apis
        self._metrics = metrics

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until the channel is shut down. The nursery runs the handler tasks."""
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
                log.exception("%s failed", request)
                self._fail(request, e)
            finally:
                request.handled()

    def _fail(self, request: Request, error: Exception) -> None:
        try:
            request.fail(error)
        except Exception:  # even the error response failed
            log.exception("%s: the error response failed", request)
            if not request.answered:
                request.close_connection()
