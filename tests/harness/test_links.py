"""Every frame passes the links: source and destination, rules, recording, subscribers.

Covers: harness/connections.py, harness/node_links.py, harness/observed_link.py.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from kce import wire
from kce.captures.exchanges.decode import Decoder
from kce.captures.exchanges.pairing import Request
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.harness import Cluster
from kce.harness.connections import Link
from kce.harness.embedded_zookeeper import free_port
from kce.harness.faults import Rule, hold_control_requests
from kce.harness.links import FrameEvent, Links, Selection
from kce.harness.node_links import LinkListener, NodeLinks
from kce.harness.world import RealWorld, memory
from kce.harness.world.port import Connected
from kce.wire.transport import ConnectionLost
from tests.clusters import dial

METADATA = wire.MetadataRequest(topics=None)


class Pair:
    """Node 1, which accepts, and a connection that node 2 or a client has dialled."""

    def __init__(self, links: Links, accepts: NodeLinks, listener: LinkListener, dialled: Link, accepted: Link) -> None:
        self.links = links
        self.node = accepts
        self.listener = listener
        self.dialled = dialled
        self.accepted = accepted
        self._correlation_id = 0

    async def exchange(self, client_id: str = "c", *, answered: bool = True) -> None:
        """A Metadata request and its answer."""
        self._correlation_id += 1
        request = wire.encode_request(
            METADATA, api_version=12, correlation_id=self._correlation_id, client_id=client_id
        )
        await self.dialled.send_frame(request)
        assert await self.accepted.receive() == request
        if answered:
            response = wire.encode_response(
                wire.MetadataResponse(), api_version=12, correlation_id=self._correlation_id
            )
            await self.accepted.send(response)
            assert await self.dialled.receive_frame() == response


@asynccontextmanager
async def pair(
    members: set[int] = frozenset({1, 2}),  # type: ignore[assignment]
    *,
    dialled_by: int = 2,
    recorder: Recorder | None = None,
    max_frame_bytes: int = 10_000,
) -> AsyncIterator[Pair]:
    world = memory()
    async with world.running(None, None), trio.open_nursery() as nursery:
        links = Links(members)
        accepts = NodeLinks((await world.node(1, nursery))[0], links, 1)
        accepts.recorder = recorder
        listener = await accepts.bind("127.0.0.1", 0, listener="DATA", max_frame_bytes=max_frame_bytes)
        listener.listen(5)
        dials = NodeLinks((await world.node(2, nursery))[0], links, dialled_by)
        dialled = await dials.dial(*listener.address, to=1, listener="DATA")
        yield Pair(links, accepts, listener, dialled, await listener.accept())
        await dialled.aclose()


async def frames(links: Links, count: int) -> list[FrameEvent]:
    with links.subscribe() as subscription, trio.fail_after(60):
        return [await anext(subscription) for _ in range(count)]


async def test_a_subscriber_sees_requests_and_answers_with_their_ends() -> None:
    async with pair() as p, trio.open_nursery() as nursery:
        with p.links.subscribe() as seen:
            await p.exchange()
            request, response = await anext(seen), await anext(seen)
        assert (request.source, request.destination, request.listener) == (2, 1, "DATA")
        assert (request.is_request, request.api, request.header.client_id) == (True, "Metadata", "c")
        assert request.message() == METADATA
        assert (response.source, response.destination, response.is_request) == (1, 2, False)
        assert response.header == request.header
        assert isinstance(response.message(), wire.MetadataResponse)
        assert FrameEvent.from_json(request.to_json()) == request
        nursery.cancel_scope.cancel()


async def test_a_frame_is_sent_at_once_if_nobody_looks_at_it(tmp_path: Path) -> None:
    links, recorder = Links(), Recorder(tmp_path / "c.pcapng")
    node = NodeLinks(RealWorld(), links, 1)
    listener = await node.bind("127.0.0.1", 0, listener="DATA", max_frame_bytes=100)
    listener.listen(5)
    dialled = [await node.dial(*listener.address, to=7, listener="DATA") for _ in range(2)]
    accepted = await listener.accept()
    node.recorder = recorder
    recorded = await listener.accept()
    listener.close()
    with links.subscribe():
        assert not accepted.send_nowait(b"seen")
    assert not recorded.send_nowait(b"recorded")
    assert accepted.send_nowait(b"at once")
    await accepted.flush()
    await accepted.send(b"later")
    assert [await dialled[0].receive_frame() for _ in range(2)] == [b"at once", b"later"]
    for link in (*dialled, accepted, recorded):
        await link.aclose()
    assert not accepted.send_nowait(b"closed")
    recorder.close()


async def test_a_frame_waits_for_an_authentication_that_is_due() -> None:  # rule B9.24
    """Also one that would be sent at once."""
    node = NodeLinks(RealWorld(), Links(), 1)
    listener = await node.bind("127.0.0.1", 0, listener="DATA", max_frame_bytes=100)
    listener.listen(5)
    dialled = await node.dial(*listener.address, to=7, listener="DATA")
    accepted = await listener.accept()
    listener.close()
    renewals = list[str]()

    async def renewal() -> None:
        await trio.lowlevel.checkpoint()
        renewals.append("again")

    dialled.renew_after(1000, renewal)
    assert dialled.send_nowait(b"in time")
    dialled.renew_after(0, renewal)
    assert not dialled.send_nowait(b"late")
    await dialled.send_frame(b"late")
    assert renewals == ["again"]
    assert dialled.send_nowait(b"next")
    assert [await accepted.receive() for _ in range(3)] == [b"in time", b"late", b"next"]
    for link in (dialled, accepted):
        await link.aclose()


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_end_is_known_once_all_was_received(is_reset: bool) -> None:
    node = NodeLinks(RealWorld(), Links(), 1)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        link = await node.dial(*listener.socket.getsockname(), to=7, listener="DATA")
        peer = await listener.accept()
        await peer.send_all(wire.frame(b"last"))
        if is_reset:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert not link.has_ended
    assert await link.receive_frame() == b"last"
    assert not link.has_ended
    peer.socket.close()
    await trio.lowlevel.wait_readable(link._stream.socket)  # type: ignore[attr-defined]
    assert link.has_ended
    await link.aclose()
    assert link.has_ended


async def test_a_frame_of_several_chunks_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeLinks(RealWorld(), Links(), 1)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        link = await node.dial(*listener.socket.getsockname(), to=7, listener="DATA")
    stream = wire.frame(bytes(150_000)) + wire.frame(b"next")
    asked: list[int] = []

    def receive_nowait(max_bytes: int) -> bytes:
        begin = sum(asked)
        asked.append(max_bytes)
        return stream[begin : begin + max_bytes]

    monkeypatch.setattr(link._parts_stream, "receive_nowait", receive_nowait)
    link._has_input = True
    assert [link.receive_nowait(), link.receive_nowait(), link.receive_nowait()] == [bytes(150_000), b"next", None]
    assert len(asked) == 3
    await link.aclose()


async def test_closing_cannot_be_cancelled() -> None:
    _, stream = memory_stream_pair()
    address = ("127.0.0.1", 1)
    node = NodeLinks(RealWorld(), Links([1]), 1)
    link = Link(node, Connected(stream, address, address), listener="DATA", peer=None, accepted=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        await link.aclose()
    assert not scope.cancelled_caught


async def test_each_frame_is_seen_once_though_both_ends_are_ours() -> None:
    async with pair() as p:
        with p.links.subscribe() as seen:
            for _ in range(3):
                await p.exchange()
            events = [await anext(seen) for _ in range(6)]
        assert [event.is_request for event in events] == [True, False] * 3


@pytest.mark.parametrize(
    ("client_id", "source"),
    [("2", 2), ("3", None), ("consumer-2", None), ("", None), ("broker-2-fetcher-0", 2), ("broker-3-fetcher-0", None),
     ("broker-2-fetcher-0-mine", None), ("2" * 5000, None)],
)  # fmt: skip
async def test_a_node_of_another_process_is_known_by_its_client_id(client_id: str, source: int | None) -> None:
    async with pair() as p:
        p.links.dialled.clear()
        with p.links.subscribe() as seen:
            await p.exchange(client_id)
            assert (await anext(seen)).source == source


async def test_frames_to_somebody_elses_broker_are_seen_where_they_are_dialled() -> None:
    async with pair({2}) as p:
        p.accepted._links = Links()  # that end is not ours
        with p.links.subscribe() as seen:
            await p.exchange()
            request, response = await anext(seen), await anext(seen)
        assert (request.source, request.destination, response.source) == (2, 1, 1)


async def test_answers_are_matched_across_requests_without_one() -> None:
    async with pair() as p:
        with p.links.subscribe() as seen:
            await p.exchange(answered=False)
            await p.exchange()
            assert [(await anext(seen)).header.correlation_id for _ in range(3)] == [1, 2, 2]


async def test_bytes_that_are_no_request_pass_unseen() -> None:
    async with pair() as p:
        with p.links.subscribe() as seen:
            await p.dialled.send_frame(b"\x7f\xff nonsense")
            assert await p.accepted.receive() == b"\x7f\xff nonsense"
            await p.accepted.send(b"\0\0\0\1")
            assert await p.dialled.receive_frame() == b"\0\0\0\1"
            await p.exchange()
            assert (await anext(seen)).api == "Metadata"


async def test_a_subscriber_that_is_slow_misses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kce.harness.links.SUBSCRIBER_BACKLOG", 4)
    async with pair() as p:
        with p.links.subscribe(Selection(is_request=True)) as seen:
            for _ in range(6):
                await p.exchange()
            assert seen.dropped == 2
            assert (await anext(seen)).header.correlation_id == 3


async def test_nobody_is_called_once_nobody_looks() -> None:
    async with pair() as p:
        calls: list[bool] = []
        p.links.on_subscribers = calls.append
        with p.links.subscribe(), p.links.subscribe():
            assert p.links.observed
            assert p.links.has_subscribers
        assert not p.links.observed
        assert calls == [True, False]


# rules


def event(**fields: Any) -> FrameEvent:
    header = wire.Header(api_key=4, api_version=7, correlation_id=1, client_id="1")
    defaults: dict[str, Any] = {
        "time_ns": 0, "source": 1, "destination": 2, "listener": "CONTROL", "is_request": True, "header": header,
    }  # fmt: skip
    return FrameEvent(**{**defaults, "frame": b"", **fields})


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Selection(), True),
        (Selection(api="LeaderAndIsr", source=1, to=2, listener="CONTROL"), True),
        (Selection(api={"StopReplica", "LeaderAndIsr"}), True),
        (Selection(api=["StopReplica"]), False),
        (Selection(source=2), False),
        (Selection(to=1), False),
        (Selection(listener="DATA"), False),
        (Selection(is_request=False), False),
        (Selection(is_request=None), True),
        (hold_control_requests(1), True),
        (hold_control_requests(2), False),
    ],
)
async def test_a_selection_matches_what_it_names(rule: Selection, matches: bool) -> None:
    assert rule.matches(event()) == matches


async def test_what_is_held_arrives_unchanged_once_released(nursery: trio.Nursery) -> None:
    async with pair() as p:
        rule = Rule(hold=True, api="Metadata", source=2)
        p.links.add(rule)
        assert p.links.rules == (rule,)
        done = trio.Event()

        async def exchange() -> None:
            with p.links.subscribe() as seen:
                await p.exchange()
                assert (await anext(seen)).is_request
            done.set()

        nursery.start_soon(exchange)
        held_at = trio.current_time()
        await trio.sleep(10)
        assert not done.is_set()
        rule.release()
        p.links.remove(rule)
        with trio.fail_after(1):
            await done.wait()
        assert not p.links.observed
        assert p.accepted.last_received == held_at + 10


# a cluster


async def test_a_cluster_shows_what_its_controller_sends() -> None:
    async with Cluster(3, world=memory()) as cluster:
        with cluster.links.subscribe(Selection(api="LeaderAndIsr")) as seen:
            await cluster.create_topic("t", assignment={0: [1, 2, 3]})
            sent = [await anext(seen) for _ in range(3)]
        controller = await cluster.controller()
        assert controller is not None
        assert {e.source for e in sent} == {controller.id}
        assert {e.destination for e in sent} == {1, 2, 3}
        assert {e.listener for e in sent} == {"CONTROL"}
        assert all(e.time_ns >= sent[0].time_ns for e in sent)


@pytest.mark.slow
async def test_nodes_in_processes_report_their_frames_while_somebody_subscribes() -> None:
    async with Cluster(2, processes=True) as cluster:
        controller = await cluster.wait_for_controller()
        with cluster.links.subscribe(Selection(api="LeaderAndIsr", source=controller.id)) as seen, trio.fail_after(30):
            await cluster.create_topic("t", assignment={0: [1, 2]})
            assert {(await anext(seen)).destination for _ in range(2)} == {1, 2}


# connections


async def test_a_length_out_of_bounds_is_refused_and_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "c.pcapng")
    async with pair(recorder=recorder, max_frame_bytes=1000) as p:
        await p.exchange()
        await p.dialled._stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(wire.LimitExceeded):
            await p.accepted.receive()
        await p.accepted.aclose()
        with pytest.raises(ConnectionLost, match="closed the connection"):
            await p.dialled.receive_frame()
        with pytest.raises(ConnectionLost, match="while sending"):
            await p.dialled.send_frame(b"x")
    recorder.close()
    with CaptureFile(tmp_path / "c.pcapng") as capture:
        assert b"GET / HTTP" in b"".join(packet.data for packet in capture)
    with CaptureFile(tmp_path / "c.pcapng") as capture:
        assert any(isinstance(message, Request) for message in Decoder(capture).messages())


async def test_the_end_of_the_peer_inside_a_frame_is_the_end() -> None:
    async with pair() as p:
        await p.dialled._stream.send_all(b"\0\0\0\x05abc")
        await p.dialled.aclose()
        assert await p.accepted.receive() is None
        assert p.accepted.buffered_bytes == 7


@pytest.mark.kafka("SS-36")
async def test_a_connection_that_cannot_be_set_up_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def connection(self, *arguments: Any, **options: Any) -> Any:
            raise RuntimeError("the recorder has a bug")

    async with pair() as p:
        p.node.recorder = Broken.__new__(Broken)
        lost = await p.node.dial(*p.listener.address, to=1, listener="DATA")
        with pytest.raises(ConnectionAbortedError):
            await p.listener.accept()
        assert "could not be set up" in caplog.text
        with pytest.raises(ConnectionLost):
            await lost.receive_frame()
        await p.exchange()


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("size", [1, 30_000])
async def test_a_frame_in_two_pieces_arrives_as_one(observed: bool, size: int) -> None:
    request = wire.encode_request(METADATA, api_version=12, correlation_id=1, client_id="c" * size)
    async with pair(max_frame_bytes=50_000) as p:
        seen: list[FrameEvent] = []
        with p.links.listen(seen.append) if observed else contextlib.nullcontext():
            await p.dialled.send_frame(request[:9], memoryview(request)[9:])
            assert await p.accepted.receive() == request
        assert [event.frame for event in seen] == [request] * observed


async def test_a_dialled_connection_carries_frames_and_says_when_it_is_lost() -> None:
    async def answer_once(stream: trio.SocketStream) -> None:
        buffer = wire.FrameBuffer()
        while (frame := buffer.next_frame()) is None:
            buffer.receive_data(await stream.receive_some())
        for byte in wire.frame(frame[::-1]):  # one byte at a time
            await stream.send_all(bytes([byte]))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(functools.partial(trio.serve_tcp, answer_once, 0, host="127.0.0.1"))
        connection = await dial("127.0.0.1", listener.socket.getsockname()[1])
        await connection.send_frame(b"abc")
        assert await connection.receive_frame() == b"cba"
        with pytest.raises(ConnectionError, match="closed"):
            await connection.receive_frame()
        await connection.aclose()
        nursery.cancel_scope.cancel()
    with pytest.raises(OSError, match="127"):
        await dial("127.0.0.1", free_port())
