"""Brokers of `benchmarks.controller`: sockets that read control requests and answer them, in one thread."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from kce import wire

#: length, key, version and correlation id
_HEAD_BYTES = 12


class Acceptors:
    """Sockets that answer control requests, in one thread. They keep only the header of a request."""

    def __init__(self, brokers: Sequence[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._answers: dict[tuple[int, int], bytes] = {}
        self._chunk = memoryview(bytearray(1 << 20))
        self._stopping = False
        self.ports: dict[int, int] = {}
        self.reset()
        for broker in brokers:
            listener = socket.create_server(("127.0.0.1", 0), backlog=16)
            listener.setblocking(False)
            self.ports[broker] = listener.getsockname()[1]
            self._selector.register(listener, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.requests: dict[str, int] = {}
        self.bytes = 0
        self.last = 0.0

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.2):
                assert isinstance(key.fileobj, socket.socket)
                if key.data is None:
                    connection, _ = key.fileobj.accept()
                    connection.setblocking(False)
                    self._selector.register(connection, selectors.EVENT_READ, [bytearray(), 0])
                else:
                    self._read(key.fileobj, key.data)

    def _read(self, connection: socket.socket, state: list[Any]) -> None:
        """``state``: the first bytes of the request, and how many of its bytes are missing. Those are not copied."""
        head, missing = state
        try:
            if missing:
                got = connection.recv_into(self._chunk, min(missing, len(self._chunk)), socket.MSG_TRUNC)
            else:
                got = connection.recv_into(self._chunk, _HEAD_BYTES - len(head))
        except BlockingIOError:
            return
        except OSError:
            got = 0
        if not got:
            self._selector.unregister(connection)
            connection.close()
            return
        self.bytes += got
        if missing:
            state[1] -= got
        else:
            head += self._chunk[:got]
            if len(head) == _HEAD_BYTES:
                state[1] = int.from_bytes(head[:4], "big") + 4 - _HEAD_BYTES
        if len(head) == _HEAD_BYTES and state[1] == 0:
            self._answer(connection, head)
            state[0] = bytearray()

    def _answer(self, connection: socket.socket, head: bytearray) -> None:
        key, version, correlation_id = struct.unpack(">hhi", head[4:12])
        answer = self._answers.get((key, version))
        if answer is None:
            response = {4: wire.LeaderAndIsrResponse, 5: wire.StopReplicaResponse, 6: wire.UpdateMetadataResponse}[key]
            answer = wire.encode_response(response(), api_version=version, correlation_id=0)
            self._answers[key, version] = answer
        connection.sendall(wire.frame(correlation_id.to_bytes(4, "big") + answer[4:]))
        name = wire.api(key).name
        self.requests[name] = self.requests.get(name, 0) + 1
        self.last = time.monotonic()
