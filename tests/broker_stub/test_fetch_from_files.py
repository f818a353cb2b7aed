"""Records go from the file of a segment to the socket of a consumer, and are read only if somebody needs to see them.

Covers: wire/payload.py.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from kce import wire
from kce.broker_stub import Endpoint
from kce.broker_stub.log import Log
from kce.broker_stub.security.config import TlsConfig
from kce.broker_stub.topic_stats import BrokerTopicStats
from kce.captures.files.pcap import CaptureFile
from kce.captures.record.recorder import Recorder
from kce.harness.faults import Rule
from kce.harness.links import Links, Selection
from kce.harness.node_links import NodeLinks
from kce.harness.world import RealWorld, real_disk
from kce.harness.world.real_disk import RealDisk, RealSlice
from kce.harness.world.tls import Tls, listeners_tls
from tests.broker_stub.log.support import batch
from tests.broker_stub.logs import MemoryLogManager
from tests.broker_stub.replication.support import A0, fetch_request, produce_request
from tests.broker_stub.support import (
    ONE_LISTENER,
    Client,
    config,
    connect,
    lai_state,
    leader_and_isr,
    running_broker,
    stop_replica,
    umr_state,
    update_metadata,
)
from tests.certificates import authority

VALUE = os.urandom(1_000_000)
#: more records of that size than the buffers of a connection hold
MANY = 16
WHOLE = 1 << 30


class Host:
    """A broker with its logs on the disk, which leads a-0, and a client."""

    def __init__(
        self,
        disk: RealDisk,
        logs: MemoryLogManager,
        links: Links,
        endpoint: Endpoint,
        client: Client,
        stats: BrokerTopicStats,
    ) -> None:
        self.disk = disk
        self.logs = logs
        self.links = links
        self.endpoint = endpoint
        self.client = client
        self.stats = stats

    @property
    def log(self) -> Log:
        return self.logs.logs[A0]

    async def lead(self, *partitions: int) -> None:
        for number in partitions:
            one = {"leader": 1, "isr": (1,), "replicas": (1,)}
            await self.client.ask(update_metadata(umr_state(number, **one)), 7)
            answer = await self.client.ask(leader_and_isr(lai_state(number, is_new=True, **one)), 6)
            assert answer.error_code == 0

    async def fill(self, records: int, size: int = len(VALUE), partition: int = 0) -> bytes:
        """Append batches of one record; what the log has then."""
        for i in range(records):
            produce = produce_request(batch(b"%d" % i + VALUE[:size]), partition=partition)
            answer = await self.client.ask(produce, 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        return bytes(self.logs.logs[A0._replace(partition=partition)].read_bytes(0, WHOLE))

    async def fetch(self, offset: int = 0, version: int = 12, **more: Any) -> wire.FetchResponsePartitionData:
        answer = await self.client.ask(whole(offset, version, **more), version)
        return answer.responses[0].partitions[0]  # type: ignore[no-any-return]

    async def begin_fetch(self) -> bytes:
        """What of a response has arrived while the rest has no room."""
        assert isinstance(self.client.stream, trio.SocketStream)
        self.client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # which grows no more
        await self.client.send(whole(), version=12)
        begin = await self.client.stream.receive_some(1000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert self.slices == 1
        return bytes(begin)

    async def rest(self) -> bytes:
        """What arrives until the broker closes the connection."""
        data = bytearray()
        while more := await self.client.stream.receive_some():
            data += more
        return bytes(data)

    @property
    def slices(self) -> int:
        """Those that the broker has."""
        return len(self.disk._slices)


def whole(offset: int = 0, version: int = 12, **more: Any) -> wire.FetchRequest:
    return fetch_request(offset, version=version, **{"max_bytes": WHOLE, "partition_max_bytes": WHOLE, **more})


@asynccontextmanager
async def host(folder: Path, *, recorder: Recorder | None = None, tls: bool = False) -> AsyncIterator[Host]:
    secured = {"listener.security.protocol.map": "DATA:SSL", **authority().of_node()} if tls else {}
    given = config(base={**ONE_LISTENER, **secured})
    disk, node = RealDisk(), NodeLinks(RealWorld(), Links(), 1, tls=listeners_tls(given.security))
    node.recorder = recorder
    logs = MemoryLogManager(disk=disk, log_dirs=(str(folder),))
    await logs.load()
    async with running_broker(given, bind=node.bind, log_manager=logs) as broker:
        (endpoint,) = broker.endpoints
        async with connect(endpoint) as client:
            if tls:
                client.stream = Tls(TlsConfig.of_client(authority().trust())).connecting(client.stream, endpoint.host)
            running = Host(disk, logs, node.links, endpoint, client, broker.replication.data_plane.stats)
            await running.lead(0)
            with trio.fail_after(30):
                yield running


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_disk, "MIN_SLICE_BYTES", 32_768)


class Seen:
    """``read``: bytes of slices that were read. ``sent``: bytes that went to a socket without that."""

    read = 0
    sent = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found, read, send = Seen(), RealSlice.read, RealSlice.send

    def counted_read(self: RealSlice) -> bytes:
        data = read(self)
        found.read += len(data)
        return data

    def counted_send(self: RealSlice, sock: int, begin: int, size: int) -> int:
        sent = send(self, sock, begin, size)
        found.sent += sent
        return sent

    monkeypatch.setattr(RealSlice, "read", counted_read)
    monkeypatch.setattr(RealSlice, "send", counted_send)
    return found


@pytest.mark.parametrize("version", [4, 11, 12, 17])
async def test_a_consumer_gets_what_the_file_has(version: int, tmp_path: Path, seen: Seen) -> None:
    async with host(tmp_path) as h:
        expected = await h.fill(3, 50_000)
        seen.read = 0
        data = await h.fetch(version=version)
        assert bytes(data.records or b"") == expected
        assert (data.error_code, data.high_watermark) == (0, 3)
        assert (seen.sent, seen.read) == (len(expected), 0)
        data = await h.fetch(1, version, partition_max_bytes=60_000, isolation=1)
        size = len(expected) // 3
        assert bytes(data.records or b"") == expected[size : size + 60_000]
        assert (data.aborted_transactions, seen.read, h.slices) == ((), 0, 0)


@pytest.mark.parametrize("version", [4, 12, 17])
async def test_a_fetch_of_very_many_partitions_has_the_records(version: int, tmp_path: Path, seen: Seen) -> None:
    """Its answer is made in steps; the slices stay where they are."""
    async with host(tmp_path) as h:
        await h.lead(1)
        expected = [await h.fill(1, size, number) for number, size in enumerate((50_000, 10))]
        seen.read = 0
        await h.client.send(whole(version=version, partitions=(0, *range(2, 2000), 1)), version=version)
        answer = await h.client.receive()
        found = {data.partition_index: data for data in answer.responses[0].partitions}
        assert len(found) == 2000
        assert [bytes(found[number].records or b"") for number in (0, 1)] == expected
        assert {found[number].error_code for number in range(2, 2000)} == {3}
        assert (seen.sent, seen.read) == (len(expected[0]), 0)
        assert h.stats.of("a").bytes_out == sum(map(len, expected))


@pytest.mark.parametrize("version", range(4))
async def test_what_must_be_converted_is_read(version: int, tmp_path: Path, seen: Seen) -> None:
    async with host(tmp_path) as h:
        await h.fill(1, 50_000)
        seen.read = 0
        data = await h.fetch(version=version)
        (found,) = wire.read_records(data.records or b"").batches
        assert (found.magic < 2, found.records[0].value) == (True, b"0" + VALUE[:50_000])
        assert (seen.sent, seen.read > 50_000) == (0, True)


async def test_large_and_small_slices_of_several_requests(tmp_path: Path, seen: Seen) -> None:
    async with host(tmp_path) as h:
        await h.lead(1, 2, 3)
        expected = [await h.fill(1, size, number) for number, size in enumerate((50_000, 10, 40_000, 0))]
        seen.read = 0
        await h.client.send(whole(partitions=(0, 1, 2, 3)), whole(1), whole(partitions=(3, 2)), version=12)
        for wanted in (expected, [b""], [expected[3], expected[2]]):
            answer = await h.client.receive()
            assert [bytes(data.records or b"") for data in answer.responses[0].partitions] == wanted
        assert (seen.sent, seen.read) == (len(expected[0]) + 2 * len(expected[2]), 0)


async def test_whoever_looks_at_frames_sees_the_records(tmp_path: Path, seen: Seen) -> None:
    """A rule and a subscriber that come while a consumer reads; when they are gone, nothing is read again."""
    async with host(tmp_path) as h:
        expected = await h.fill(2, 50_000)
        links = h.links
        rule = Rule(api="Fetch", is_request=False, segments=4096)
        for look in (False, True, False):
            seen.read = seen.sent = 0
            if look:
                links.add(rule)
                with links.subscribe(Selection(api="Fetch", is_request=False)) as frames:
                    data = await h.fetch()
                    message: Any = (await anext(frames)).message()
                assert bytes(message.responses[0].partitions[0].records) == expected
                links.remove(rule)
            else:
                data = await h.fetch()
            assert bytes(data.records or b"") == expected
            assert (seen.read, seen.sent) == ((len(expected), 0) if look else (0, len(expected)))


async def test_a_rule_that_comes_while_records_are_sent_applies_to_the_next_frame(tmp_path: Path) -> None:
    async with host(tmp_path) as h:
        expected = await h.fill(MANY)
        begin = await h.begin_fetch()
        h.links.add(Rule(api="Fetch", is_request=False, drop=True))
        h.client._frames.receive_data(begin)
        answer = await h.client.receive()
        assert bytes(answer.responses[0].partitions[0].records) == expected
        versions = wire.ApiVersionsRequest(client_software_name="c", client_software_version="1")
        await h.client.send(whole(), versions, version=3)
        h.client._sent.pop(0)
        assert (await h.client.receive()).error_code == 0


async def test_a_recording_has_the_records(tmp_path: Path, seen: Seen) -> None:
    recorder = Recorder(tmp_path / "c.pcapng")
    async with host(tmp_path / "logs", recorder=recorder) as h:
        expected = await h.fill(1, 50_000)
        seen.read = 0
        assert bytes((await h.fetch()).records or b"") == expected
        assert (seen.read, seen.sent) == (len(expected), 0)
    recorder.close()
    with CaptureFile(tmp_path / "c.pcapng") as capture:
        recorded = b"".join(packet.data for packet in capture)
    assert recorded.count(expected[100:1000]) == 2  # produced and fetched


async def test_over_tls_records_are_read(tmp_path: Path, seen: Seen) -> None:
    async with host(tmp_path, tls=True) as h:
        expected = await h.fill(2, 50_000)
        seen.read = 0
        assert bytes((await h.fetch()).records or b"") == expected
        assert (seen.read, seen.sent, h.slices) == (len(expected), 0, 0)


async def test_a_slow_reader_gets_all_of_a_partition_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    async with host(tmp_path) as h:
        expected = await h.fill(MANY)
        folder = h.log.folder
        begin = await h.begin_fetch()
        async with connect(h.endpoint) as other:
            answer = await other.ask(stop_replica((0, 0, True)), 3)
            assert answer.error_code == 0
        assert not h.disk.exists(folder)
        for name in h.disk.folders(str(tmp_path)):
            h.disk.delete(f"{tmp_path}/{name}")
        h.client._frames.receive_data(begin)
        answer = await h.client.receive()
        assert bytes(answer.responses[0].partitions[0].records) == expected
        assert h.slices == 0


async def test_records_that_are_cut_off_meanwhile_end_the_connection(tmp_path: Path) -> None:
    """The frame is too short for its length, so that no consumer takes it for records."""
    async with host(tmp_path) as h:
        expected = await h.fill(MANY)
        begin = await h.begin_fetch()
        h.log.truncate_to(MANY - 1)
        h.log.append_as_leader(batch(VALUE), leader_epoch=0)
        arrived = begin + await h.rest()
        assert len(arrived) < int.from_bytes(arrived[:4], "big")
        assert arrived[4:].find(expected[:100]) > 0
        assert h.slices == 0


async def test_a_connection_that_ends_gives_back_its_file(tmp_path: Path) -> None:
    async with host(tmp_path) as h:
        await h.fill(MANY)
        await h.begin_fetch()
        await h.client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert h.slices == 0
    async with host(tmp_path / "cancelled") as h:
        await h.fill(MANY)
        await h.begin_fetch()
    assert h.slices == 0
