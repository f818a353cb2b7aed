"""Nodes that die by SIGKILL at one chosen operation: `python -m tests.harness.doomed_node`.

It reads JSON lines on stdin and forks a node for each, so that all is imported once: {"properties": {...}, "trace":
path, "point": [when, what, nth] or null}. It answers on stdout with the process id. The node writes a JSON line to the
trace for each point that it passes once SIGUSR1 has come, ["before" or "after", what, which time], and for each state
of a partition that it sends, {"topic": ..., ...}. At ``point`` it kills itself.

A point is a read of ZooKeeper, a write (what ZooKeeper does at once, or not at all), or a control request: before it is
given to TCP, and after.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import trio

from kce import wire
from kce.harness.connections import Link
from kce.harness.node import Node
from kce.zookeeper.store import MultiFailed, Op, OpResult
from kce.zookeeper.store.kazoo import KazooStore

PR_SET_PDEATHSIG = 1
CONTROL_REQUESTS = (4, 5, 6)
ARMED = "armed"


class Fate:
    """The point where the node ends, and the points that it passed."""

    def __init__(self, trace: str, point: list[Any] | None) -> None:
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._point = point
        self._armed = False
        self._times: collections.Counter[tuple[str, str]] = collections.Counter()

    def tell(self, line: object) -> None:
        os.write(self._trace, json.dumps(line).encode() + b"\n")

    def arm(self) -> None:
        self._armed = True
        self.tell(ARMED)

    def point(self, when: str, what: str) -> None:
        if not self._armed:
            return
        place = [when, what, self._times[when, what]]
        self._times[when, what] += 1
        self.tell(place)
        if place == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


def doom_store(fate: Fate) -> None:
    """Every store of this process."""
    multi = KazooStore.multi

    async def struck(self: KazooStore, groups: Sequence[Sequence[Op]]) -> list[list[OpResult] | MultiFailed]:
        if not groups:
            return []
        what = "write of " + ", ".join(sorted({type(op).__name__ for group in groups for op in group}))
        fate.point("before", what)
        answers = await multi(self, groups)
        fate.point("after", what)
        return answers

    KazooStore.multi = struck  # type: ignore[method-assign]
    for name in ("get_data", "exists", "get_children"):
        setattr(KazooStore, name, _doomed_read(fate, name, getattr(KazooStore, name)))


def _doomed_read(fate: Fate, name: str, read: Any) -> Any:
    async def struck(self: KazooStore, paths: Sequence[str], **options: Any) -> Any:
        if paths:
            fate.point("before", name)
        return await read(self, paths, **options)

    return struck


def doom_connections(fate: Fate) -> None:
    """Every connection of this process on which it sends control requests."""
    send_frame, send_nowait = Link.send_frame, Link.send_nowait

    def control_request(payload: bytes) -> str | None:
        """Its name; what it says is told."""
        if int.from_bytes(payload[:2], "big") not in CONTROL_REQUESTS:
            return None
        _, message = wire.decode_request(payload)
        what = type(message).__name__
        fate.point("before", what)
        if isinstance(message, wire.LeaderAndIsrRequest):
            for topic in message.topic_states:
                for p in topic.partition_states:
                    fate.tell({
                        "topic": topic.topic_name, "partition": p.partition_index, "leader": p.leader, "isr": p.isr,
                        "leader_epoch": p.leader_epoch, "partition_epoch": p.partition_epoch,
                    })  # fmt: skip
        return what

    async def struck(self: Link, payload: bytes, rest: bytes | memoryview = b"") -> None:
        payload += rest
        what = control_request(payload)
        await send_frame(self, payload)
        if what is not None:
            fate.point("after", what)

    def struck_at_once(self: Link, *payloads: wire.Payload) -> bool:
        what = None
        if not self._accepted and len(payloads) == 1 and isinstance(payloads[0], bytes):
            what = control_request(payloads[0])
        is_sent = send_nowait(self, *payloads)
        if what is not None and is_sent:
            fate.point("after", what)
        return is_sent

    Link.send_frame, Link.send_nowait = struck, struck_at_once  # type: ignore[method-assign]


async def live(properties: dict[str, str], fate: Fate) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Node(properties).run)
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                fate.arm()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forked
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # and they do not outlive us
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        fate = Fate(order["trace"], order["point"])
        doom_store(fate)
        doom_connections(fate)
        trio.run(live, order["properties"], fate)
        os._exit(0)


if __name__ == "__main__":
    main()
