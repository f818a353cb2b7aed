"""Records of one broker: what its handlers answer, at once and later.

Covers: broker_stub/replication/*.py, broker_stub/handlers/produce.py, broker_stub/handlers/fetch.py,
broker_stub/handlers/fetch_responses.py, broker_stub/handlers/list_offsets.py, broker_stub/handlers/delete_records.py,
broker_stub/log/lookup.py, broker_stub/followers.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from kce import wire
from kce.broker_stub.errors import KafkaStorageError
from kce.broker_stub.handlers import list_offsets, offset_for_leader_epoch
from kce.broker_stub.handlers.fetch import HANDLER as FETCH
from kce.broker_stub.log import Isolation, Log, Origin
from kce.broker_stub.reactor.request import Action
from kce.broker_stub.replication import data_plane
from kce.broker_stub.replication.fetcher_manager import fetcher_id
from kce.broker_stub.replication.reading import FetchParams, PartitionFetch
from kce.wire import Codec, CorruptRecord, ErrorCode, Record, RecordBatch
from kce.wire.vocabulary import TopicPartition
from tests.broker_stub.log.support import NOW_MS, marker, produced
from tests.broker_stub.replication.support import A0, a_node, batch, fetch_request, produce_request, values_of
from tests.broker_stub.support import ID_A, ID_B, lai_state, leader_and_isr, stop_replica, umr_state, update_metadata

kafka = pytest.mark.kafka


@kafka("PRT-1")
@pytest.mark.parametrize("version", range(12))
async def test_every_version_produces(version: int) -> None:
    async with a_node() as node:
        await node.lead(replicas=(1,))
        for expected in (0, 2):
            answer = await node.produce(batch(b"a", b"b", magic=2 if version >= 3 else 1), version=version, acks=-1)
            assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, expected, -1)
        assert node.log.high_watermark == 4


@pytest.mark.parametrize("version", range(18))
async def test_every_version_fetches(version: int) -> None:
    async with a_node() as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(b"a", b"b", codec=Codec.GZIP))
        data = await node.fetch(1, version=version)
        assert (data.error_code, data.high_watermark) == (0, 2)
        (found,) = wire.read_records(data.records or b"").batches
        assert found.magic == {0: 0, 1: 0, 2: 1, 3: 1}.get(version, 2)
        assert [record.value for record in found.records] == [b"a", b"b"]


@pytest.mark.parametrize("is_offline", [False, True])
async def test_the_first_records_of_several_logs(
    is_offline: bool, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are made, which takes flushes, in turns with other requests; afterwards the append takes one step."""
    turns: list[int] = []
    of_others = 0
    make = Log.make_files

    def slowly(log: Log) -> None:
        turns.append(of_others)
        mock_clock.jump(1)
        if is_offline:
            raise KafkaStorageError("the disk is gone")
        make(log)

    monkeypatch.setattr(Log, "make_files", slowly)
    entries = tuple(wire.PartitionProduceData(index=i, records=batch(b"a")) for i in range(3))
    request = wire.ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=(wire.TopicProduceData(name="a", partition_data=entries),)
    )

    async def others() -> None:
        nonlocal of_others
        while True:
            of_others += 1
            await trio.lowlevel.checkpoint()

    async with a_node() as node, trio.open_nursery() as nursery:
        await node.ask(update_metadata(*[umr_state(i) for i in range(3)]))
        await node.ask(leader_and_isr(*[lai_state(i, is_new=True, replicas=(1,), isr=(1,)) for i in range(3)]))
        nursery.start_soon(others)
        for _ in range(2):
            answer = await node.ask(request, 9)
            assert [p.error_code for p in answer.responses[0].partition_responses] == [0, 0, 0]
        assert len(turns) == 3
        assert turns[2] > turns[0]
        nursery.cancel_scope.cancel()


async def test_acks_0_has_no_response() -> None:
    """Rule B3.36: an error closes the connection."""
    async with a_node() as node:
        await node.lead()
        for topic, action in (("a", Action.NO_OP), ("b", Action.CLOSE_CONNECTION)):
            request, captured = node.request(produce_request(batch(b"x"), acks=0, topic=topic), 9)
            assert node.apis.handle(request) is None
            assert captured.response is not None
            assert captured.response.action is action
        assert node.log.log_end_offset == 1


@pytest.mark.parametrize(
    ("code", "records", "more"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, batch(), {"topic": "b"}),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, batch(), {"partition": 7}),
        (ErrorCode.INVALID_REQUIRED_ACKS, batch(), {"acks": 2}),
        (ErrorCode.INVALID_RECORD, b"", {}),
        (ErrorCode.INVALID_RECORD, batch() * 2, {}),
        (ErrorCode.INVALID_RECORD, batch(magic=1), {}),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, batch(codec=Codec.ZSTD), {"version": 6}),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, batch(codec=Codec.ZSTD) * 2, {"version": 6}),
        (ErrorCode.INVALID_RECORD, batch() + batch(codec=Codec.ZSTD), {"version": 6}),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, produced(1, 0, transactional=True), {}),
        (ErrorCode.CORRUPT_MESSAGE, batch()[:-1] + b"x", {}),
        (ErrorCode.MESSAGE_TOO_LARGE, batch(bytes(2000)), {}),
        (ErrorCode.NOT_ENOUGH_REPLICAS, batch(), {"acks": -1}),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, produced(9, 5), {}),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorCode) else "",
)
async def test_what_is_refused(code: ErrorCode, records: bytes, more: dict[str, Any]) -> None:
    """Sections 3a, 3b: nothing of it reaches the log."""
    async with a_node({"max.message.bytes": "1000", "min.insync.replicas": "2"}) as node:
        await node.lead()
        await node.produce(produced(9, 0))
        answer = await node.produce(records, **more)
        assert (ErrorCode(answer.error_code), answer.base_offset) == (code, -1)
        assert node.log.log_end_offset == 1


async def test_only_a_coordinator_writes_markers() -> None:
    async with a_node() as node:
        await node.lead()
        answers: list[Any] = []
        for origin in (Origin.CLIENT, Origin.COORDINATOR):
            node.replication.appends.append({A0: marker(5, committed=True)}, 1, 0, answers.append, origin=origin)
        assert [answer[A0][1] for answer in answers] == [ErrorCode.INVALID_RECORD, ErrorCode.NONE]


async def test_only_what_a_log_refused_has_its_start() -> None:  # rule B3.22
    async with a_node() as node:
        await node.lead()
        await node.ask(update_metadata(umr_state(), topic="__consumer_offsets", topic_id=ID_B))
        never_appended: list[tuple[bytes, dict[str, Any]]] = [
            (b"", {"topic": "b"}), (b"", {}), (batch(b"a"), {"acks": 2}),
            (batch(b"a"), {"topic": "__consumer_offsets"}),
        ]  # fmt: skip
        for records, more in never_appended:
            refused = await node.produce(records, **more)
            assert refused.error_code != ErrorCode.NONE
            assert (more, refused.log_start_offset, refused.error_message) == (more, -1, None)
        await node.produce(batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0))
        late = await node.produce(batch(b"a", producer_id=5, producer_epoch=0, base_sequence=70))
        assert (late.error_code, late.log_start_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)


@pytest.mark.parametrize(
    ("version", "expected"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_an_offset_that_is_not_available_yet(version: int, expected: ErrorCode) -> None:  # rule B7.15
    assert list_offsets._code(ErrorCode.OFFSET_NOT_AVAILABLE, version) == expected
    assert list_offsets._code(ErrorCode.NOT_LEADER_OR_FOLLOWER, version) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_bad_records_are_reported() -> None:
    """Rules B3.29, B3.43."""
    async with a_node({"cleanup.policy": "compact"}) as node:
        await node.lead()
        answer = await node.produce(batch(b"a", b"b"))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [entry.batch_index for entry in answer.record_errors] == [0, 1]
        assert "needs a key" in (answer.error_message or "")
        assert answer.log_start_offset == 0


async def test_acks_all_waits_for_the_isr(autojump_clock: MockClock) -> None:
    """Rules B2.12 to B2.17."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.lead(isr=(1, 2))
        answers: list[Any] = []

        async def produce(timeout_ms: int) -> None:
            answers.append(await node.produce(batch(b"x"), acks=-1, timeout_ms=timeout_ms))

        nursery.start_soon(produce, 5000)
        await trio.sleep(1)
        assert answers == []
        assert (await node.fetch(0)).records == b""  # a consumer does not see it yet
        assert values_of(await node.fetch(0, replica=2, epoch=0)) == [b"x"]
        assert answers == []
        await node.fetch(1, replica=2, epoch=0)
        await trio.lowlevel.checkpoint()
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0)]
        assert values_of(await node.fetch(0)) == [b"x"]
        nursery.start_soon(produce, 2000)
        await trio.sleep(3)
        assert [answer.error_code for answer in answers] == [0, ErrorCode.REQUEST_TIMED_OUT]
        assert node.log.log_end_offset == 2


@pytest.mark.parametrize("timeout_ms", [0, 100])
async def test_only_partitions_that_wait_time_out(timeout_ms: int, autojump_clock: MockClock) -> None:  # rule B2.16
    async with a_node() as node:
        await node.lead(isr=(1,), replicas=(1, 2))
        await node.ask(leader_and_isr(lai_state(1, isr=(1, 2), replicas=(1, 2))))
        await node.ask(update_metadata(*(umr_state(number, isr=(1,), replicas=(1, 2)) for number in range(3))))
        data = tuple(wire.PartitionProduceData(index=number, records=batch(b"x")) for number in range(3))
        topics = (wire.TopicProduceData(name="a", partition_data=data),)
        answer = await node.ask(wire.ProduceRequest(acks=-1, timeout_ms=timeout_ms, topic_data=topics), 9)
        assert {entry.index: entry.error_code for entry in answer.responses[0].partition_responses} == {
            0: ErrorCode.NONE, 1: ErrorCode.REQUEST_TIMED_OUT, 2: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }  # fmt: skip


async def test_an_idle_follower_that_left_the_isr_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Rules 9.43, 9.50: its last fetch was before the leader's epoch. Its broker is still alive."""
    async with a_node() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(b"a"))
        began = await node.ask(fetch_request(1, replica=2, epoch=0, session_epoch=0), 12)
        assert began.session_id > 0
        nothing_new: dict[str, Any] = {"session_id": began.session_id, "session_epoch": 1, "partitions": ()}
        await node.ask(fetch_request(replica=2, **nothing_new), 12)
        await node.lead(isr=(1,), replicas=(1, 2), epoch=1, partition_epoch=1)
        answer = await node.produce(batch(b"b"), acks=-1, timeout_ms=1000)
        assert (answer.error_code, node.log.high_watermark) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("what", ["follower", "deleted"])
async def test_who_waits_learns_that_the_leader_is_gone(what: str, autojump_clock: MockClock) -> None:
    """Section 2f."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.lead(isr=(1, 2))
        answers: list[int] = []

        async def produce() -> None:
            answers.append((await node.produce(batch(b"x"), acks=-1, timeout_ms=60_000)).error_code)

        async def fetch() -> None:
            answers.append((await node.fetch(1, replica=2, epoch=0, max_wait_ms=60_000)).error_code)

        nursery.start_soon(produce)
        await trio.sleep(0.1)
        nursery.start_soon(fetch)
        await node.fetch(0, replica=2, epoch=0)
        await trio.sleep(0.1)
        if what == "follower":
            await node.lead(leader=2, epoch=1, partition_epoch=1, isr=(2,))
        else:
            await node.ask(stop_replica((0, 1, True)))
        await trio.sleep(0.1)
        expected = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
        assert len(answers) >= 1
        assert set(answers) <= expected | {ErrorCode.NONE}


async def test_a_fetch_waits_for_records(autojump_clock: MockClock) -> None:
    """Rules B2.18 to B2.23."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.lead(replicas=(1,))
        answers: list[tuple[float, list[bytes | None]]] = []

        async def fetch(max_wait_ms: int, min_bytes: int) -> None:
            data = await node.fetch(0, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
            answers.append((trio.current_time(), values_of(data)))

        nursery.start_soon(fetch, 10_000, 1)
        nursery.start_soon(fetch, 10_000, 150)
        nursery.start_soon(fetch, 500, 10**6)
        await trio.sleep(1)
        assert answers == [(pytest.approx(0.5, abs=0.01), [])]
        await node.produce(batch(b"a"))
        await trio.sleep(1)
        assert [found for _, found in answers[1:]] == [[b"a"]]
        await node.produce(batch(b"b" * 100))
        await trio.sleep(1)
        assert [found for _, found in answers[2:]] == [[b"a", b"b" * 100]]


async def test_what_comes_while_a_session_waits_is_read_in_its_order(autojump_clock: MockClock) -> None:
    """Rules B4.15, B4.30: whichever partitions were idle."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.ask(update_metadata(*[umr_state(i) for i in range(2)]))
        await node.ask(leader_and_isr(*[lai_state(i, is_new=True, replicas=(1,), isr=(1,)) for i in range(2)]))
        began = await node.ask(fetch_request(partitions=(0, 1), session_epoch=0), 12)
        found: list[wire.FetchResponse] = []

        async def fetch() -> None:
            more: dict[str, Any] = {"session_id": began.session_id, "session_epoch": 1, "max_bytes": 1}
            found.append(await node.ask(fetch_request(partitions=(1,), max_wait_ms=60_000, min_bytes=1, **more), 12))

        nursery.start_soon(fetch)
        await trio.sleep(1)
        entries = tuple(wire.PartitionProduceData(index=i, records=batch(b"a")) for i in range(2))
        await node.ask(
            wire.ProduceRequest(
                acks=1, timeout_ms=1000, topic_data=(wire.TopicProduceData(name="a", partition_data=entries),)
            ),
            9,
        )
        await trio.sleep(1)
        (answer,) = found
        assert [(data.partition_index, bool(data.records)) for data in answer.responses[0].partitions] == [
            (0, True), (1, False),
        ]  # fmt: skip


async def test_a_fetch_beyond_the_high_watermark_is_answered_at_once(autojump_clock: MockClock) -> None:  # rule B2.19
    async with a_node() as node:
        await node.lead(isr=(1, 2))
        await node.produce(batch(b"a", b"b"))
        for offset, waits in ((0, True), (1, False), (2, False)):
            begin = trio.current_time()
            answer = await node.fetch(offset, max_wait_ms=1000)
            assert (answer.error_code, answer.high_watermark, answer.records) == (0, 0, b"")
            assert (trio.current_time() - begin >= 1) is waits


async def test_what_is_refused_before_a_read_does_not_end_a_wait(autojump_clock: MockClock) -> None:  # rule B2.18
    async with a_node() as node:
        await node.lead(replicas=(1,))
        for partitions, waits in (((9,), False), ((0, 9), True), ((9, 0), True)):
            begin = trio.current_time()
            await node.ask(fetch_request(version=12, partitions=partitions, max_wait_ms=1000), 12)
            assert (trio.current_time() - begin >= 1) is waits


async def test_the_rest_of_an_older_segment_is_answered_at_once(autojump_clock: MockClock) -> None:  # rule B2.19
    """However many bytes the fetch would wait for."""
    async with a_node({"segment.bytes": "100"}) as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(b"a"))
        await node.produce(batch(b"b"))
        for offset, waits in ((0, False), (1, True)):
            begin = trio.current_time()
            answer = await node.fetch(offset, max_wait_ms=1000, min_bytes=10_000)
            (found,) = wire.read_records(answer.records or b"").batches
            assert found.base_offset == offset
            assert (trio.current_time() - begin >= 1) is waits


@kafka("FRT-6")
@kafka("FRT-7")
async def test_current_epoch_validation() -> None:
    """Rule B4.8."""
    async with a_node() as node:
        await node.lead(epoch=5, replicas=(1,))
        for version in (11, 12, 17):
            for epoch, code in (
                (-1, 0),
                (5, 0),
                (4, ErrorCode.FENCED_LEADER_EPOCH),
                (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                assert (await node.fetch(0, epoch=epoch, version=version)).error_code == code
        await node.lead(epoch=6, leader=2, partition_epoch=1)
        for epoch, old, new in ((-1, 6, 0), (6, 6, 0), (5, 74, 74), (7, 75, 75)):
            assert (await node.fetch(0, epoch=epoch, version=10)).error_code == old
            assert (await node.fetch(0, epoch=epoch, version=12)).error_code == new


@pytest.mark.parametrize("version", [pytest.param(17, marks=kafka("FRT-4")), pytest.param(12, marks=kafka("FRT-5"))])
async def test_last_fetched_epoch_validation(version: int) -> None:
    """Rule B4.11."""
    async with a_node() as node:
        await node.lead(epoch=1, replicas=(1,))
        await node.produce(batch(*[b"x"] * 10))
        await node.lead(epoch=3, partition_epoch=1, replicas=(1,))
        await node.produce(batch(*[b"y"] * 10))
        data = await node.fetch(15, epoch=3, last_fetched_epoch=1, version=version)
        assert (data.error_code, data.records) == (0, b"")
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, 10)
        data = await node.fetch(12, epoch=3, last_fetched_epoch=2, version=version)
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (1, 10)
        assert (await node.fetch(10, epoch=3, last_fetched_epoch=1, version=version)).diverging_epoch.epoch == -1
        assert (
            await node.fetch(10, epoch=3, last_fetched_epoch=4, version=version)
        ).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@kafka("FRT-1")
async def test_broker_respects_partitions_order_and_size_limits() -> None:
    """Rules B4.14, B4.15: the first batch is always whole, later ones only if they fit."""
    async with a_node() as node:
        await node.lead(replicas=(1,))
        for value in (b"a" * 500, b"b" * 50, b"c" * 50):
            await node.produce(batch(value))
        assert values_of(await node.fetch(0, max_bytes=10, partition_max_bytes=10)) == [b"a" * 500]
        assert values_of(await node.fetch(1, partition_max_bytes=200)) == [b"b" * 50]
        assert values_of(await node.fetch(1, partition_max_bytes=300)) == [b"b" * 50, b"c" * 50]
        limited = await node.fetch(0, version=2, partition_max_bytes=100)  # a hard limit
        assert len(limited.records or b"") <= 100
        await node.ask(leader_and_isr(lai_state(1, replicas=(1,), isr=(1,))))
        await node.ask(update_metadata(umr_state(), umr_state(1)))
        await node.produce(batch(b"d"), partition=1)
        answer = await node.ask(fetch_request(0, partitions=(0, 1), max_bytes=600), 12)
        first, second = (data for topic in answer.responses for data in topic.partitions)
        assert values_of(first) == [b"a" * 500]
        assert second.records == b""
        twice = await node.ask(fetch_request(0, partitions=(0, 0)), 12)
        assert [data.partition_index for topic in twice.responses for data in topic.partitions] == [0]


async def test_what_a_fetch_is_refused() -> None:
    async with a_node() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(b"a"))
        cases: list[tuple[dict[str, Any], ErrorCode]] = [
            ({"topic": "b"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"partitions": (7,)}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"offset": 2}, ErrorCode.OFFSET_OUT_OF_RANGE),
            ({"offset": 1}, ErrorCode.NONE),
            ({"replica": 9, "epoch": 0}, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ({"replica": 9}, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ]
        for more, code in cases:
            data = await node.fetch(**more)
            assert (more, ErrorCode(data.error_code)) == (more, code)
        out = await node.fetch(2)
        assert (out.high_watermark, out.last_stable_offset, out.log_start_offset) == (-1, -1, -1)
        answer = await node.ask(fetch_request(0, session_id=77, session_epoch=3), 12)
        assert (answer.error_code, answer.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


async def test_what_a_fetch_is_refused_as_a_whole() -> None:  # rules B4.22, B4.46
    async with a_node() as node:
        await node.lead()
        request = fetch_request(3, version=12, partitions=(0, 4), session_id=7)
        response = FETCH.error_response(request, node.request(request, 12)[0].context, ErrorCode.CORRUPT_MESSAGE)
        assert (response.error_code, response.session_id) == (ErrorCode.CORRUPT_MESSAGE, 7)
        (topic,) = response.responses
        assert [(topic.topic, p.partition_index, p.error_code, p.high_watermark) for p in topic.partitions] == [
            ("a", number, ErrorCode.CORRUPT_MESSAGE, -1) for number in (0, 4)
        ]
        request = fetch_request(3, version=13, session_id=7)
        response = FETCH.error_response(request, node.request(request, 13)[0].context, ErrorCode.CORRUPT_MESSAGE)
        assert response == wire.FetchResponse(error_code=ErrorCode.CORRUPT_MESSAGE, session_id=7)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(CorruptRecord("damaged"), ErrorCode.CORRUPT_MESSAGE), (ValueError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR)],
)
async def test_a_partition_that_cannot_be_read_fails_alone(
    failure: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:  # rule B4.23
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"a"))
        plane = node.replication.data_plane
        read = data_plane.read_partition

        def failing(partition: Any, fetch: PartitionFetch, *args: Any, **more: Any) -> Any:
            if fetch.offset == 1:
                raise failure
            return read(partition, fetch, *args, **more)

        monkeypatch.setattr(data_plane, "read_partition", failing)
        params = FetchParams(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=100, isolation=Isolation.LOG_END)
        for failed in (1, 2):
            reads: list[Any] = []
            plane.fetch(params, [PartitionFetch(A0, ID_A, at, 100) for at in (1, 0)], reads.append)
            assert [found.error for found in reads[0]] == [code, ErrorCode.NONE]
            assert reads[0][1].records
            assert plane.stats.of("a").failed_fetches == failed


async def test_a_fetch_by_the_id_of_an_earlier_topic() -> None:
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"a"))
        reads: list[Any] = []
        for topic_id, code in ((ID_B, ErrorCode.INCONSISTENT_TOPIC_ID), (ID_A, 0), (None, 0)):
            params = FetchParams(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=100, isolation=Isolation.LOG_END)
            node.replication.data_plane.fetch(params, [PartitionFetch(A0, topic_id, 0, 100)], reads.append)
            assert [read.error for read in reads.pop()] == [code]


async def test_a_follower_that_catches_up_joins_the_isr_and_one_that_lags_leaves(autojump_clock: MockClock) -> None:
    """Rules 9.43 to 9.47."""
    async with a_node(replica_lag_time_max_ms="1000", replica_fetch_wait_max_ms="500") as node:
        await node.lead(isr=(1, 2))
        await node.produce(batch(b"a", b"b"))
        await node.fetch(2, replica=2, epoch=0)
        assert node.log.high_watermark == 2
        await node.fetch(1, replica=3, epoch=0)
        assert node.submitter.submitted == []
        await node.fetch(2, replica=3, epoch=0)
        item = node.submitter.submitted[-1][0]
        assert item.leader_and_isr.isr == (1, 2, 3)
        node.submitter.answer(A0, item.leader_and_isr._replace(partition_epoch=1))
        assert node.partition().isr == (1, 2, 3)
        await node.produce(batch(b"c"))
        for _ in range(4):
            await trio.sleep(0.5)
            await node.fetch(3, replica=3, epoch=0)
        item = node.submitter.submitted[-1][0]
        assert item.leader_and_isr.isr == (1, 3)
        assert node.log.high_watermark == 2  # until the change is committed, the lagging one counts
        node.submitter.answer(A0, item.leader_and_isr._replace(partition_epoch=2))
        assert (node.partition().isr, node.log.high_watermark) == ((1, 3), 3)


async def test_offsets_by_time() -> None:
    """Section 7c."""
    async with a_node({"segment.bytes": "200"}) as node:
        await node.lead(epoch=4, replicas=(1,))
        for i, timestamp in enumerate((100, 300, 200, 400)):
            made = (Record(offset=0, timestamp=timestamp, value=b"%d" % i), Record(offset=1, timestamp=timestamp + 5))
            await node.produce(wire.write_records(RecordBatch.of(*made)))

        async def offset(timestamp: int, version: int = 9, **more: Any) -> tuple[int, int, int, int]:
            entry = wire.ListOffsetsPartition(partition_index=0, timestamp=timestamp, **more)
            topic = wire.ListOffsetsTopic(name="a", partitions=(entry,))
            answer = await node.ask(wire.ListOffsetsRequest(replica_id=-1, topics=(topic,)), version)
            (data,) = answer.topics[0].partitions
            return data.error_code, data.timestamp, data.offset, data.leader_epoch

        assert [await offset(at) for at in (0, 100, 101, 106, 305, 306, 400, 406)] == [
            (0, 100, 0, 4), (0, 100, 0, 4), (0, 105, 1, 4), (0, 300, 2, 4), (0, 305, 3, 4), (0, 400, 6, 4),
            (0, 400, 6, 4), (0, -1, -1, -1),
        ]  # fmt: skip
        assert await offset(-1) == (0, -1, 8, 4)
        assert await offset(-2) == (0, -1, 0, 4)
        assert await offset(-3) == (0, 405, 7, 4)
        assert await offset(-4) == (0, -1, 0, 4)
        assert await offset(-5) == (0, -1, -1, -1)
        assert [(await offset(at, version=6))[0] for at in (-3, -4, -5)] == [ErrorCode.UNSUPPORTED_VERSION] * 3
        assert (await offset(-1, current_leader_epoch=3))[0] == ErrorCode.FENCED_LEADER_EPOCH
        topic = wire.ListOffsetsTopic(
            name="a", partitions=(wire.ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=9),)
        )
        old = await node.ask(wire.ListOffsetsRequest(replica_id=-1, topics=(topic,)), 0)
        assert old.topics[0].partitions[0].old_style_offsets == (8, 4, 0)
        node.log.set_high_watermark(3)
        assert (await offset(400))[2] == -1
        await node.lead(epoch=5, partition_epoch=1, isr=(1, 2))
        for version, code in ((9, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)):
            assert (await offset(-1, version=version))[0] == code
            assert (await offset(400, version=version))[0] == code


async def test_what_is_damaged_in_a_log(caplog: pytest.LogCaptureFixture) -> None:  # rules B4.23, B6.34
    async with a_node() as node:
        await node.lead(replicas=(1,))
        for i in range(3):
            await node.produce(batch(b"x", timestamp=NOW_MS + i))
        file = node.disk.open("/logs/a-0/00000000000000000000.log")
        content = bytearray(file.read(0, file.size))
        one = len(content) // 3
        content[one + 8 : one + 12] = bytes(4)  # the size
        file.truncate(0)
        file.append(content)
        assert (await node.fetch(1)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert [record.levelname for record in caplog.records if "a-0 could not be read" in record.message] == ["ERROR"]
        assert f"byte {one}" in caplog.text
        assert (await node.fetch(0)).error_code == 0
        entry = wire.ListOffsetsPartition(partition_index=0, timestamp=NOW_MS + 1)
        topics = (wire.ListOffsetsTopic(name="a", partitions=(entry,)),)
        answer = await node.ask(wire.ListOffsetsRequest(replica_id=-1, topics=topics), 7)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE


async def test_only_the_leader_says_where_an_epoch_ends() -> None:
    async with a_node() as node:
        await node.lead(leader=2, epoch=1)
        entry = wire.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
        request = wire.OffsetForLeaderEpochRequest(topics=(wire.OffsetForLeaderTopic(topic="a", partitions=(entry,)),))
        (topic,) = (await node.ask(request, 4)).topics
        assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_errors_of_whole_requests_name_their_partitions() -> None:  # rule B1.41
    async with a_node() as node:
        code = ErrorCode.CORRUPT_MESSAGE
        offsets = wire.ListOffsetsRequest(
            replica_id=-1,
            topics=(wire.ListOffsetsTopic(name="a", partitions=(wire.ListOffsetsPartition(partition_index=4),)),),
        )
        context = node.request(offsets, 9)[0].context
        (topic,) = list_offsets.HANDLER.error_response(offsets, context, code).topics
        assert (topic.name, topic.partitions[0].partition_index, topic.partitions[0].error_code) == ("a", 4, code)
        ends = wire.OffsetForLeaderEpochRequest(
            topics=(wire.OffsetForLeaderTopic(topic="a", partitions=(wire.OffsetForLeaderPartition(partition=4),)),)
        )
        context = node.request(ends, 4)[0].context
        (found,) = offset_for_leader_epoch.HANDLER.error_response(ends, context, code).topics
        assert (found.topic, found.partitions[0].partition, found.partitions[0].error_code) == ("a", 4, code)


async def test_ends_of_epochs() -> None:
    """Rule B5.24."""
    async with a_node() as node:
        await node.lead(epoch=1, replicas=(1,))
        await node.produce(batch(b"a", b"b"))
        await node.lead(epoch=4, partition_epoch=1, replicas=(1,))
        await node.produce(batch(b"c"))

        async def end(epoch: int, current: int = -1, topic: str = "a") -> tuple[int, int, int]:
            entry = wire.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
            requested = wire.OffsetForLeaderTopic(topic=topic, partitions=(entry,))
            answer = await node.ask(wire.OffsetForLeaderEpochRequest(replica_id=-1, topics=(requested,)), 4)
            (data,) = answer.topics[0].partitions
            return data.error_code, data.leader_epoch, data.end_offset

        assert [await end(epoch) for epoch in (0, 1, 3, 4, 5)] == [
            (0, 0, 0), (0, 1, 2), (0, 1, 2), (0, 4, 3), (0, -1, -1),
        ]  # fmt: skip
        assert (await end(1, current=3))[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert (await end(1, topic="b"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_ends_of_epochs_are_answered_by_topic() -> None:
    async with a_node() as node:
        await node.lead()
        topics = tuple(
            wire.OffsetForLeaderTopic(topic=name, partitions=(wire.OffsetForLeaderPartition(partition=0),))
            for name in ("a", "b")
        )
        answer = await node.ask(wire.OffsetForLeaderEpochRequest(topics=topics), 4)
        assert [topic.topic for topic in answer.topics] == ["a", "b"]


async def test_records_are_deleted(autojump_clock: MockClock) -> None:
    """Section 6c, rules B2.24 to B2.26."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(*[b"x"] * 5))
        await node.fetch(5, replica=2, epoch=0)

        async def delete(offset: int, topic: str = "a") -> tuple[int, int]:
            entry = wire.DeleteRecordsPartition(partition_index=0, offset=offset)
            requested = wire.DeleteRecordsTopic(name=topic, partitions=(entry,))
            answer = await node.ask(wire.DeleteRecordsRequest(topics=(requested,), timeout_ms=1000), 2)
            (data,) = answer.topics[0].partitions
            return data.error_code, data.low_watermark

        for offset, topic, code in (
            (6, "a", ErrorCode.OFFSET_OUT_OF_RANGE),
            (-2, "a", ErrorCode.OFFSET_OUT_OF_RANGE),
            (0, "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (0, "__consumer_offsets", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            assert await delete(offset, topic) == (code, -1)
        await node.ask(update_metadata(umr_state(), topic="__consumer_offsets", topic_id=ID_B))
        assert await delete(0, "__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        assert await delete(3) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert node.log.log_start_offset == 3
        answers: list[tuple[int, int]] = []

        async def wait() -> None:
            answers.append(await delete(-1))

        nursery.start_soon(wait)
        await trio.sleep(0.1)
        assert (answers, node.log.log_start_offset) == ([], 5)
        entry = wire.FetchPartition(
            partition=0, fetch_offset=5, log_start_offset=5, partition_max_bytes=100, current_leader_epoch=0
        )
        topic = wire.FetchTopic(topic="a", partitions=(entry,))
        await node.ask(wire.FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=1, topics=(topic,)), 12)
        await trio.sleep(0.1)
        assert answers == [(0, 5)]
        assert (await node.fetch(4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_topics_by_id() -> None:
    async with a_node() as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(b"a"))
        answer = await node.ask(fetch_request(0, version=13), 13)
        assert answer.responses[0].topic_id == ID_A
        unknown = wire.FetchTopic(
            topic_id=wire.control.NO_TOPIC_ID,
            partitions=(wire.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=9),),
        )
        answer = await node.ask(wire.FetchRequest(max_wait_ms=0, min_bytes=0, topics=(unknown,)), 13)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_leaders_are_reported() -> None:
    """Rules B3.41, B4.19."""
    async with a_node() as node:
        await node.lead(leader=2, epoch=3, isr=(2,))
        answer = await node.ask(produce_request(batch(b"a")), 10)
        data = answer.responses[0].partition_responses[0]
        assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (2, 3)
        assert [(found.node_id, found.host) for found in answer.node_endpoints] == [(2, "host2")]
        answer = await node.ask(fetch_request(0, version=16, epoch=2), 16)
        data = answer.responses[0].partitions[0]
        assert (data.error_code, data.current_leader.leader_id) == (ErrorCode.FENCED_LEADER_EPOCH, 2)


async def test_a_log_directory_that_fails_takes_its_partitions_along() -> None:
    async with a_node() as node:
        await node.lead(replicas=(1,))
        await node.produce(batch(b"a"))
        node.replicas.mark_offline(A0)
        assert (await node.produce(batch(b"a"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await node.fetch(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await node.fetch(0, version=5)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("topic", "partition", "fetchers", "expected"), [("a", 0, 1, 0), ("a", 0, 4, 3), ("topic", 7, 5, 1), ("a", 1, 4, 0)]
)
def test_fetcher_ids(topic: str, partition: int, fetchers: int, expected: int) -> None:
    """Rule B5.2: 31 * Java's hash of the topic + partition."""
    value = 0
    for character in topic:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    java = (31 * value + partition) & 0xFFFFFFFF
    java = java - 2**32 if java >= 2**31 else java
    assert abs(java) % fetchers == fetcher_id(TopicPartition(topic, partition), fetchers)
    if topic == "a":
        assert fetcher_id(TopicPartition(topic, partition), fetchers) == expected


async def test_who_waits_for_a_deletion_while_the_leader_goes(autojump_clock: MockClock) -> None:
    """By the timeout, with what was known when it came (rule B2.25)."""
    async with a_node() as node, trio.open_nursery() as nursery:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(b"x", b"y"))
        await node.fetch(2, replica=2, epoch=0)
        answers: list[tuple[int, int]] = []

        async def delete() -> None:
            entry = wire.DeleteRecordsPartition(partition_index=0, offset=1)
            topic = wire.DeleteRecordsTopic(name="a", partitions=(entry,))
            answer = await node.ask(wire.DeleteRecordsRequest(topics=(topic,), timeout_ms=5000), 2)
            (data,) = answer.topics[0].partitions
            answers.append((data.error_code, data.low_watermark))

        nursery.start_soon(delete)
        await trio.sleep(1)
        assert answers == []
        await node.lead(leader=2, epoch=1, partition_epoch=1, isr=(2,))
        await trio.sleep(5)
        assert answers == [(ErrorCode.REQUEST_TIMED_OUT, 0)]


@pytest.mark.parametrize(
    ("protocol", "code"),
    [("2.0", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), ("2.1-IV0", ErrorCode.NONE), ("3.9", ErrorCode.NONE)],
)
async def test_zstd_needs_2_1(protocol: str, code: ErrorCode) -> None:  # rule B3.33
    async with a_node(inter_broker_protocol_version=protocol) as node:
        await node.lead()
        assert (await node.produce(batch(b"x", codec=Codec.ZSTD))).error_code == code


async def test_fetchers_end_with_their_last_partition(autojump_clock: MockClock) -> None:  # rule B5.3
    async with a_node() as node:
        fetchers = node.replication.fetchers._fetchers
        await node.lead(leader=2, isr=(2,))
        assert [leader for leader, _ in fetchers] == [2]
        await node.lead(leader=3, epoch=1, partition_epoch=1, isr=(3,))
        assert [leader for leader, _ in fetchers] == [3]
        await node.ask(stop_replica((0, 1, False)))
        assert fetchers == {}


@pytest.mark.parametrize(("hard_limit", "sizes"), [(True, [30, 30]), (False, [170, 0])])
async def test_only_old_consumers_get_a_part_of_a_batch(hard_limit: bool, sizes: list[int]) -> None:  # rule B4.15
    """Others get the first batch whole, and of the next partition nothing."""
    async with a_node() as node:
        await node.lead()
        await node.produce(batch(b"x" * 100))
        params = FetchParams(
            replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=200, isolation=Isolation.LOG_END, hard_limit=hard_limit
        )
        fetch = PartitionFetch(A0, None, 0, 30)
        reads = node.replication.data_plane.read(params, [fetch, fetch], record_progress=False)
        assert [len(read.records) for read in reads] == sizes


async def test_what_is_written_because_of_a_fetch_is_fetched(autojump_clock: MockClock) -> None:
    """A follower lets the high watermark move; who waited for that writes at once, and the fetch must not wait."""
    async with a_node() as node:
        await node.lead(isr=(1, 2))
        plane, appends, answers = node.replication.data_plane, node.replication.appends, []

        def write_again(produced: object) -> None:
            appends.append({A0: batch(b"second")}, 1, 0, answers.append)

        appends.append({A0: batch(b"first")}, -1, 1000, write_again)
        params = FetchParams(replica_id=2, max_wait_ms=500, min_bytes=1, max_bytes=200, isolation=Isolation.LOG_END)
        reads: list[Any] = []
        plane.fetch(params, [PartitionFetch(A0, ID_A, 1, 200, 0, 0)], reads.append)
        assert len(answers) == 1
        assert [len(read.records) for (read,) in reads] == [len(batch(b"second"))]


async def test_an_append_to_one_partition_waits_for_its_replicas(autojump_clock: MockClock) -> None:
    """Its answer comes when they have the records, or after the timeout; what is refused is answered at once."""
    async with a_node() as node:
        await node.lead(isr=(1, 2))
        plane, appends, answers = node.replication.data_plane, node.replication.appends, []

        def answered(produced: object, code: ErrorCode) -> None:
            answers.append((getattr(produced, "first_offset", None), code))

        appends.append_one(A0, batch(b"a"), -1, 1000, answered)
        appends.append_one(A0, batch(b"b"), -1, 1000, answered)
        appends.append_one(A0, batch(b"c"), 1, 1000, answered)
        appends.append_one(TopicPartition("other", 0), batch(b"d"), -1, 1000, answered)
        assert answers == [(2, ErrorCode.NONE), (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        params = FetchParams(replica_id=2, max_wait_ms=0, min_bytes=1, max_bytes=200, isolation=Isolation.LOG_END)
        plane.fetch(params, [PartitionFetch(A0, ID_A, 1, 200, 0, 0)], lambda reads: None)
        assert answers[2:] == [(0, ErrorCode.NONE)]
        await trio.sleep(1.1)
        assert answers[3:] == [(1, ErrorCode.REQUEST_TIMED_OUT)]
