"""What kazoo's connection thread runs on: no further threads, our buffered sockets, our TLS."""

from __future__ import annotations

import logging
import queue
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from kce.zookeeper.store.buffered_socket import BufferedSocket, Poller, WakeUp

log = logging.getLogger(__name__)


class _Inline(queue.Queue):  # type: ignore[type-arg]
    """A queue that runs the functions put into it, and ignores kazoo's stop marker."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if callable(item):
            try:
                item()
            except Exception:
                log.exception("a ZooKeeper callback failed")


class Handler(SequentialThreadingHandler):
    """Runs callbacks on kazoo's connection thread, and gives it buffered sockets."""

    queue_impl = _Inline

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.poller = Poller()
        #: guards the socket, its buffers, and the order of requests in flight
        self.lock = threading.RLock()
        self._tls = tls

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> BufferedSocket:
        """Use our TLS context: kazoo's would trust all certificates of the machine."""
        connected = socket.create_connection(address, timeout)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return BufferedSocket(connected, self.lock)
        try:
            return BufferedSocket(self._tls.wrap_socket(connected, server_hostname=hostname), self.lock)
        except BaseException:
            connected.close()
            raise

    def create_socket_pair(self) -> tuple[WakeUp, WakeUp]:
        wake_up = WakeUp()
        return wake_up, wake_up

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        return self.poller.wait(rlist, wlist, timeout)
