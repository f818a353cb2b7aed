"""Whole answers, each field of them. What APIs answer when a request fails as a whole is in test_error_responses.py.

Covers: broker_stub/handlers/*.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.errors import VerificationFailed
from kce.broker_stub.handlers import fetch, list_offsets, produce
from kce.broker_stub.handlers.base import Services
from kce.broker_stub.log import Isolation, Log
from kce.broker_stub.reactor.request import Action
from kce.broker_stub.replication.fetch_session import Wanted
from kce.broker_stub.replication.reading import isolation_of
from kce.wire import Codec, ErrorCode
from kce.wire.vocabulary import TopicPartition, topic_name_problem
from tests.broker_stub.log.support import produced
from tests.broker_stub.replication.support import RecordNode, a_node, batch, fetch_request, produce_request, values_of
from tests.broker_stub.support import (
    ID_A,
    ID_B,
    NO_ID,
    Node,
    answer_of,
    lai_state,
    leader_and_isr,
    umr_broker,
    umr_state,
    update_metadata,
)
from tests.broker_stub.test_admin_handlers import Active, Store, creatable, parked


def without_records(answer: Any) -> Any:
    """The fetch response, and the records of each partition."""
    records = [data.records for topic in answer.responses for data in topic.partitions]
    topics = tuple(
        replace(topic, partitions=tuple(replace(data, records=None) for data in topic.partitions))
        for topic in answer.responses
    )
    return replace(answer, responses=topics), records


def fetched(number: int = 0, **fields: Any) -> wire.FetchResponsePartitionData:
    return wire.FetchResponsePartitionData(partition_index=number, **{"aborted_transactions": None, **fields})


def fetch_response(*partitions: wire.FetchResponsePartitionData, version: int, **more: Any) -> wire.FetchResponse:
    named: dict[str, Any] = {"topic": "a"} if version < 13 else {"topic_id": ID_A}
    return wire.FetchResponse(responses=(wire.FetchableTopicResponse(partitions=partitions, **named),), **more)


def refused(number: int, code: ErrorCode, **more: Any) -> wire.FetchResponsePartitionData:
    return fetched(number, error_code=code, high_watermark=-1, **more)


def unknown(number: int, code: ErrorCode) -> wire.FetchResponsePartitionData:
    return refused(number, code, aborted_transactions=())


async def two_partitions(node: RecordNode) -> None:
    """a-0 and a-5 are led here, a-1 by broker 2, which is alive; a-2 by broker 3, and is not hosted here."""
    states = [umr_state(number, replicas=(1,), isr=(1,)) for number in (0, 5)]
    states += [umr_state(1, leader=2, leader_epoch=7), umr_state(2, leader=3)]
    await node.ask(update_metadata(*states, alive=(1, umr_broker(2, rack="r"), umr_broker(3, ["CONTROL"]))))
    hosted = [lai_state(number, replicas=(1,), isr=(1,), is_new=True) for number in (0, 5)]
    answer = await node.ask(leader_and_isr(*hosted, lai_state(1, leader=2, leader_epoch=7, is_new=True)))
    assert answer.error_code == 0


@pytest.mark.parametrize("version", [4, 5, 11, 12, 15, 16, 17])
async def test_fetch(version: int) -> None:  # rules B4.2, B4.12, B4.18, B4.19
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))
        request = fetch_request(version=version, partitions=(0, 1, 2, 9))
        answer, records = without_records(await node.ask(request, version))
        assert [bool(data) for data in records] == [True, False, False, False]
        told = version >= 16
        leads = {1: (2, 7), 2: (3, 0)}
        follower = {
            number: {"current_leader": wire.FetchResponseLeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)}
            if told
            else {}
            for number, (leader, epoch) in leads.items()
        }
        of_0 = {"log_start_offset": 0} if version >= 5 else {}
        reachable = wire.FetchResponseNodeEndpoint(node_id=2, host="host2", port=9021, rack="r")
        assert answer == fetch_response(
            fetched(0, high_watermark=1, last_stable_offset=1, **of_0),
            # from version 11 on a consumer may read from a follower
            refused(1, ErrorCode.NOT_LEADER_OR_FOLLOWER, **follower[1])
            if version < 11
            else fetched(1, high_watermark=0, last_stable_offset=0, log_start_offset=0),
            refused(2, ErrorCode.NOT_LEADER_OR_FOLLOWER, **follower[2]),
            unknown(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            version=version,
        )
        if told:
            of_leader = fetch_request(version=version, partitions=(1, 2), epoch=3)
            answer, _ = without_records(await node.ask(of_leader, version))
            assert answer == fetch_response(
                refused(1, ErrorCode.FENCED_LEADER_EPOCH, **follower[1]),
                refused(2, ErrorCode.NOT_LEADER_OR_FOLLOWER, **follower[2]),
                version=version,
                node_endpoints=(reachable,),
            )


async def test_values_of_a_fetch_that_no_client_sends() -> None:
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))
        # every negative epoch means none, as in Kafka
        assert (await node.fetch(epoch=-5, last_fetched_epoch=-7)).error_code == ErrorCode.NONE
        for limits in ({"max_bytes": -1}, {"partition_max_bytes": -1}):
            assert await node.fetch(0, **limits) == refused(0, ErrorCode.UNKNOWN_SERVER_ERROR, records=b"")
            assert (await node.fetch(1, **limits)).error_code == ErrorCode.NONE
            assert (await node.fetch(2, **limits)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        # the next one has a limit of 0, and its first batch
        answer = await node.ask(fetch_request(0, max_bytes=-1, partitions=(2, 0)), 12)
        found = {data.partition_index: data for of in answer.responses for data in of.partitions}
        assert (found[2].error_code, found[0].error_code) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE)
        assert found[0].records


async def test_fetch_of_unknown_topics_and_sessions() -> None:  # rules B4.2, B4.25 to B4.27
    async with a_node() as node:
        await two_partitions(node)
        request = fetch_request(version=13, session_id=0, session_epoch=0)
        (topic,) = request.topics
        both = replace(request, topics=(topic, replace(topic, topic_id=ID_B)))
        entries = tuple(replace(topic.partitions[0], partition=number) for number in (9, 0))
        refused_first = replace(request, topics=(replace(topic, partitions=entries), *both.topics[1:]))
        for replica, expected in ((-1, [(0, 0), (0, 100), (9, 3)]), (2, [(0, 6), (9, 3), (0, 100)])):
            asked = replace(refused_first, replica_id=replica)
            answer = await node.ask(asked, 13)
            found = [(data.partition_index, data.error_code) for of in answer.responses for data in of.partitions]
            assert (replica, found) == (replica, expected)
        answer, _ = without_records(await node.ask(both, 13))
        session = answer.session_id
        assert session > 0
        assert answer == wire.FetchResponse(
            session_id=session,
            responses=(
                wire.FetchableTopicResponse(
                    topic_id=ID_A,
                    partitions=(fetched(0, high_watermark=0, last_stable_offset=0, log_start_offset=0),),
                ),
                wire.FetchableTopicResponse(topic_id=ID_B, partitions=(unknown(0, ErrorCode.UNKNOWN_TOPIC_ID),)),
            ),
        )
        for known, epoch, code in (
            (session, 9, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            (session + 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ):
            wrong = replace(request, session_id=known, session_epoch=epoch)
            assert await node.ask(wrong, 13) == wire.FetchResponse(error_code=code)
        empty = (await node.ask(replace(request, topics=()), 13)).session_id
        assert empty > 0
        goes_on = replace(request, session_id=empty, session_epoch=1, topics=())
        assert await node.ask(goes_on, 13) == wire.FetchResponse()
        assert await node.ask(goes_on, 13) == wire.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        nothing = replace(request, session_id=session, session_epoch=1, topics=(), max_wait_ms=60_000)
        forgets = replace(
            nothing, forgotten_topics_data=(wire.ForgottenTopic(topic_id=ID_B, partitions=(0,)),), max_wait_ms=0
        )
        assert await node.ask(forgets, 13) == wire.FetchResponse(session_id=session)


@pytest.mark.parametrize(("level", "expected"), [(0, 1), (1, 0)])
async def test_idle_partitions_are_read_at_the_isolation_level_of_the_fetch(
    autojump_clock: MockClock, level: int, expected: int
) -> None:  # rule B4.1
    """The session's next fetch names none, and waits; then a transaction begins."""
    async with a_node(transaction_partition_verification_enable="false") as node:
        await node.lead()
        first = await node.ask(fetch_request(isolation=level, session_id=0, session_epoch=0), 12)
        goes_on = replace(
            fetch_request(isolation=level, max_wait_ms=5000, session_id=first.session_id, session_epoch=1), topics=()
        )
        answers = []

        async def ask() -> None:
            answers.append(await node.ask(goes_on, 12))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            pending = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
            written = await node.ask(replace(produce_request(pending), transactional_id="t"), 9)
            assert written.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        records = [data.records for answer in answers for of in answer.responses for data in of.partitions]
        assert sum(map(bool, records)) == expected
        unknown_level = replace(goes_on, isolation_level=2, session_epoch=2)
        assert (await node.ask(unknown_level, 12)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_session_that_reads_at_another_isolation_level_reads_everything_again() -> None:  # rule B4.1
    async with a_node(transaction_partition_verification_enable="false") as node:
        await node.lead()
        pending = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
        await node.ask(replace(produce_request(pending), transactional_id="t"), 9)
        first = await node.ask(fetch_request(isolation=1, session_id=0, session_epoch=0), 12)
        assert first.responses[0].partitions[0].records == b""
        goes_on = replace(fetch_request(isolation=0, session_id=first.session_id, session_epoch=1), topics=())
        second = await node.ask(goes_on, 12)
        assert values_of(second.responses[0].partitions[0]) == [b"v"]


async def test_a_fetch_that_another_of_its_session_overtakes(autojump_clock: MockClock) -> None:  # rule B4.31
    async with a_node() as node:
        await two_partitions(node)
        first = await node.ask(fetch_request(session_id=0, session_epoch=0), 12)
        nothing = replace(fetch_request(max_wait_ms=5000, session_id=first.session_id, session_epoch=1), topics=())
        answers = []

        async def ask(message: wire.FetchRequest) -> None:
            answers.append(await node.ask(message, 12))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, nothing)
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, replace(nothing, session_epoch=2, max_wait_ms=0))
        assert answers == [
            wire.FetchResponse(session_id=first.session_id),
            wire.FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=first.session_id),
        ]


async def test_fetch_of_old_versions() -> None:  # rules B4.18, B4.20
    async with a_node({"compression.type": "zstd"}) as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))
        assert await node.ask(fetch_request(version=9, partitions=(0, 5)), 9) == fetch_response(
            *(
                wire.FetchResponsePartitionData(
                    partition_index=number, error_code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, high_watermark=-1
                )
                for number in (0, 5)
            ),
            version=9,
        )
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))
        for version, magic in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2)):
            data = await node.fetch(version=version)
            assert data.records is not None
            assert (data.records[16], data.high_watermark, data.error_code) == (magic, 1, 0)
        node.replicas.mark_offline(node.partition().topic_partition)
        for version, code in ((5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)):
            answer, _ = without_records(await node.ask(fetch_request(version=version), version))
            assert answer == fetch_response(refused(0, code), version=version)


@pytest.mark.parametrize(("version", "limit"), [(2, 0), (3, 1)])
async def test_the_first_batch_is_returned_whole_from_version_3_on(version: int, limit: int) -> None:  # rule B4.15
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x" * 100))
        data = await node.fetch(version=version, partition_max_bytes=50)
        assert bool(data.records) == bool(limit)


async def test_a_partition_that_fails_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # rule B4.23
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))

        def fail(self: Log, *values: Any, **more: Any) -> Any:
            if self is node.log:
                raise RuntimeError("a bug")
            return plain(self, *values, **more)

        plain = Log.read
        monkeypatch.setattr(Log, "read", fail)
        answer = await node.ask(fetch_request(version=12, partitions=(0, 5)), 12)
        codes = [(data.partition_index, data.error_code) for data in answer.responses[0].partitions]
        assert codes == [(0, ErrorCode.UNKNOWN_SERVER_ERROR), (5, 0)]
        assert "a-0 could not be read" in caplog.text
        plain = Log.append_as_leader
        monkeypatch.setattr(Log, "append_as_leader", fail)
        data = tuple(wire.PartitionProduceData(index=number, records=batch(b"x")) for number in (5, 0))
        request = replace(produce_request(b""), topic_data=(wire.TopicProduceData(name="a", partition_data=data),))
        assert await node.ask(request, 9) == produce_response(
            wire.PartitionProduceResponse(index=5, log_start_offset=0),
            wire.PartitionProduceResponse(
                index=0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, base_offset=-1, log_start_offset=0
            ),
        )
        assert "records for a-0 could not be appended" in caplog.text


@pytest.mark.parametrize("version", [14, 15])
async def test_a_followers_fetch_says_who_it_is(version: int) -> None:  # rule B4.1
    async with a_node() as node:
        await node.lead(isr=(1, 2), replicas=(1, 2))
        await node.produce(batch(b"x"))
        data = await node.fetch(version=version, replica=2, epoch=0)
        assert (data.error_code, bool(data.records)) == (0, True)
        follower = node.partition().followers.get(2)
        assert follower is not None
        assert follower.leader_end_offset == 1


async def test_the_brokers_limit_is_that_of_consumers_and_followers() -> None:  # rule B4.5
    async with a_node(fetch_max_bytes="1024") as node:
        await node.lead(isr=(1,), replicas=(1, 2))
        for _ in range(2):
            await node.produce(batch(b"x" * 600))
        sizes = [len((await node.fetch(replica=replica, epoch=0)).records or b"") for replica in (-1, 2)]
        assert sizes == [1024, 1024]
        assert node.log.size > 1200


async def test_isolation() -> None:  # rule B4.1
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))
        for level, aborted in ((0, None), (1, ())):
            assert (await node.fetch(isolation=level)).aborted_transactions == aborted
        for replica in (-1, 1):
            answer = await node.ask(fetch_request(version=12, isolation=2, replica=replica, partitions=(0, 9)), 12)
            codes = {data.partition_index: data.error_code for data in answer.responses[0].partitions}
            assert codes == dict.fromkeys((0, 9), ErrorCode.UNKNOWN_SERVER_ERROR)
            assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        # no partition is read
        answer = await node.ask(fetch_request(version=12, isolation=2, partitions=(9,)), 12)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for replica, aborted in ((-2, ()), (-3, None), (-4, ())):
            assert (await node.fetch(isolation=1, replica=replica)).aborted_transactions == aborted
    of = Isolation.HIGH_WATERMARK, Isolation.COMMITTED
    assert tuple(isolation_of(level, is_consumer=True) for level in (0, 1)) == of
    assert {isolation_of(level, is_consumer=False) for level in (0, 1)} == {Isolation.LOG_END}


async def test_a_batch_that_does_not_fit_has_no_aborted_transactions() -> None:  # rule B4.15
    async with a_node() as node:
        await two_partitions(node)
        for number in (0, 5):
            await node.ask(produce_request(batch(b"x"), partition=number), 9)
        for limit, aborted in ((1, None), (0, ())):
            answer = await node.ask(fetch_request(isolation=1, partition_max_bytes=limit, partitions=(0, 5)), 12)
            fits, other = answer.responses[0].partitions
            assert (values_of(fits), fits.aborted_transactions) == ([b"x"], ())
            assert (other.records, other.aborted_transactions) == (b"", aborted)


async def test_acks_0_has_no_answer() -> None:  # rules B3.36, B1.41
    async with a_node() as node:
        await two_partitions(node)
        for numbers, action in (
            ((0, 5), Action.NO_OP),
            ((0, 9), Action.CLOSE_CONNECTION),
            ((9,), Action.CLOSE_CONNECTION),
        ):
            data = tuple(wire.PartitionProduceData(index=number, records=batch(b"x")) for number in numbers)
            topics = (wire.TopicProduceData(name="a", partition_data=data),)
            request, captured = node.request(replace(produce_request(b"", acks=0), topic_data=topics), 9)
            files_to_make = node.apis.handle(request)
            assert (files_to_make is not None) is (numbers == (0, 5))
            if files_to_make is not None:
                await files_to_make
            assert captured.response is not None
            assert captured.response.action is action


def produce_response(*partitions: wire.PartitionProduceResponse, **more: Any) -> wire.ProduceResponse:
    return wire.ProduceResponse(
        responses=(wire.TopicProduceResponse(name="a", partition_responses=partitions),), **more
    )


@pytest.mark.parametrize("version", [7, 8, 9, 10, 11])
async def test_produce(version: int) -> None:  # rules B3.22, B3.39 to B3.43
    async with a_node() as node:
        await two_partitions(node)
        data = tuple(wire.PartitionProduceData(index=number, records=batch(b"x")) for number in (0, 1, 2, 9))
        request = replace(produce_request(b""), topic_data=(wire.TopicProduceData(name="a", partition_data=data),))
        leaders = [wire.ProduceResponseLeaderIdAndEpoch(leader_id=i, leader_epoch=e) for i, e in ((2, 7), (3, 0))]
        of_1, of_2 = ({"current_leader": leader} if version >= 10 else {} for leader in leaders)
        reachable = wire.ProduceResponseNodeEndpoint(node_id=2, host="host2", port=9021, rack="r")
        moved = {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "base_offset": -1}
        unknown = wire.PartitionProduceResponse(
            index=9, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, base_offset=-1
        )
        appended = wire.PartitionProduceResponse(index=0, log_start_offset=0)
        followed = [
            wire.PartitionProduceResponse(index=1, **moved, **of_1),
            wire.PartitionProduceResponse(index=2, **moved, **of_2),
        ]
        assert await node.ask(request, version) == produce_response(
            appended, *followed, unknown, node_endpoints=(reachable,) if version >= 10 else ()
        )
        no_acks = await node.ask(replace(request, acks=7), version)
        invalid = {"error_code": ErrorCode.INVALID_REQUIRED_ACKS, "base_offset": -1}
        assert no_acks == produce_response(
            *(wire.PartitionProduceResponse(index=number, **invalid) for number in (0, 1, 2)), unknown
        )


async def test_produce_refuses_records() -> None:  # rules B3.1, B3.9, B3.29
    async with a_node({"cleanup.policy": "compact"}) as node:
        await two_partitions(node)

        async def answered(records: bytes, version: int = 9, **more: Any) -> wire.PartitionProduceResponse:
            return await node.produce(records, version=version, **more)

        def bad(code: ErrorCode, **more: Any) -> wire.PartitionProduceResponse:
            return wire.PartitionProduceResponse(
                **{"error_code": code, "base_offset": -1, "log_start_offset": 0, **more}
            )

        one = batch(b"x")
        found = await answered(one)
        assert found == bad(
            ErrorCode.INVALID_RECORD, error_message=found.error_message, record_errors=found.record_errors
        )
        assert [error.batch_index for error in found.record_errors] == [0]
        two = one + one
        never_appended = {"log_start_offset": -1}
        for version in (3, 8):
            assert await answered(two, version) == bad(ErrorCode.INVALID_RECORD, **never_appended)
        zstd = batch(b"x", codec=Codec.ZSTD)
        assert await answered(zstd, 6) == bad(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, **never_appended)
        assert (await answered(zstd, 7)).error_code == ErrorCode.INVALID_RECORD
        # a length of one byte, a magic of 3: the whole request fails
        for corrupt in (one[:8] + b"\0\0\0\1" + one[12:], one[:16] + b"\3" + one[17:]):
            both = wire.TopicProduceData(
                name="a",
                partition_data=tuple(
                    wire.PartitionProduceData(index=index, records=records)
                    for index, records in ((0, one), (9, corrupt))
                ),
            )
            assert await node.ask(replace(produce_request(b""), topic_data=(both,)), 9) == produce_response(
                *(bad(ErrorCode.CORRUPT_MESSAGE, index=index, **never_appended) for index in (0, 9))
            )
        assert await answered(one[:-1]) == bad(ErrorCode.INVALID_RECORD, **never_appended)
        too_small = one[:8] + (20).to_bytes(4) + one[12:]  # for a batch of magic 2
        assert await answered(too_small) == bad(ErrorCode.CORRUPT_MESSAGE, **never_appended)
        transactional = produced(7, 0, 1, transactional=True)
        assert await answered(transactional) == bad(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, log_start_offset=-1
        )
        await node.ask(update_metadata(umr_state(0), topic="__consumer_offsets", topic_id=ID_B))
        assert await answered(one, topic="__consumer_offsets") == bad(
            ErrorCode.INVALID_TOPIC_EXCEPTION, log_start_offset=-1
        )


async def test_list_offsets_and_epochs() -> None:  # rules B7.15 to B7.18, B5.24
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"))

        async def offset(timestamp: int, version: int, number: int = 0, **more: Any) -> Any:
            entry = wire.ListOffsetsPartition(partition_index=number, timestamp=timestamp, **more)
            topic = wire.ListOffsetsTopic(name="a", partitions=(entry,))
            answer = await node.ask(wire.ListOffsetsRequest(replica_id=-1, topics=(topic,)), version)
            (found,) = answer.topics[0].partitions
            assert answer == wire.ListOffsetsResponse(
                topics=(wire.ListOffsetsTopicResponse(name="a", partitions=(found,)),)
            )
            return found

        def answer(**more: Any) -> wire.ListOffsetsPartitionResponse:
            return wire.ListOffsetsPartitionResponse(**more)

        for version, epoch in ((3, -1), (4, 0)):
            assert await offset(-1, version) == answer(offset=1, leader_epoch=epoch)
            assert await offset(-2, version) == answer(offset=0, leader_epoch=epoch)
        unsupported = answer(error_code=ErrorCode.UNSUPPORTED_VERSION)
        for timestamp, since in ((-3, 7), (-4, 8), (-5, 9)):
            assert await offset(timestamp, since - 1) == unsupported
            assert (await offset(timestamp, since)).error_code == ErrorCode.NONE
        assert await offset(-6, 9) == unsupported
        # before the partition is looked for
        assert await offset(-3, 6, 9) == answer(partition_index=9, error_code=ErrorCode.UNSUPPORTED_VERSION)
        entry = wire.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topics = (wire.ListOffsetsTopic(name="a", partitions=(entry,)),)
        for replica, code in ((-1, ErrorCode.UNKNOWN_SERVER_ERROR), (-2, ErrorCode.NONE)):
            request = wire.ListOffsetsRequest(replica_id=replica, isolation_level=2, topics=topics)
            assert (await node.ask(request, 9)).topics[0].partitions[0].error_code == code
        assert await offset(-5, 9) == answer()
        assert await offset(2**60, 9) == answer()
        assert await offset(-1, 9, 1) == answer(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await offset(-1, 9, current_leader_epoch=5) == answer(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)

        async def end(epoch: int, number: int = 0, current: int = -1) -> Any:
            entry = wire.OffsetForLeaderPartition(partition=number, leader_epoch=epoch, current_leader_epoch=current)
            topic = wire.OffsetForLeaderTopic(topic="a", partitions=(entry,))
            answer = await node.ask(wire.OffsetForLeaderEpochRequest(replica_id=-1, topics=(topic,)), 4)
            (found,) = answer.topics[0].partitions
            assert answer.topics == (wire.OffsetForLeaderTopicResult(topic="a", partitions=(found,)),)
            return found

        await node.ask(update_metadata(umr_state(6)))
        await node.ask(leader_and_isr(lai_state(6, is_new=True)))
        assert await offset(-1, 9, 6) == answer(partition_index=6, offset=0, leader_epoch=0)  # nothing is behind

        ends = wire.OffsetForLeaderEpochResponseEpochEndOffset
        assert await end(0) == ends(leader_epoch=0, end_offset=1)
        await node.produce(batch(b"x", b"y"), partition=5)
        assert await end(0, 5) == ends(partition=5, leader_epoch=0, end_offset=2)
        assert await end(3) == ends()
        assert await end(0, 1) == ends(partition=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await end(0, 0, 4) == ends(error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)


async def test_delete_records() -> None:  # rules B6.20, B2.24
    async with a_node() as node:
        await two_partitions(node)
        await node.ask(update_metadata(umr_state(0), topic="__consumer_offsets", topic_id=ID_B))
        await node.produce(batch(b"x", b"y"))
        wanted = (("a", ((0, 1), (1, 0), (9, 0))), ("__consumer_offsets", ((0, 0),)))
        request = wire.DeleteRecordsRequest(
            timeout_ms=1000,
            topics=tuple(
                wire.DeleteRecordsTopic(
                    name=name,
                    partitions=tuple(wire.DeleteRecordsPartition(partition_index=n, offset=o) for n, o in partitions),
                )
                for name, partitions in wanted
            ),
        )
        result = wire.DeleteRecordsPartitionResult
        answer = await node.ask(request, 2)
        found = {topic.name: sorted(topic.partitions, key=lambda data: data.partition_index) for topic in answer.topics}
        assert found == {
            "a": [
                result(low_watermark=1),
                result(partition_index=1, low_watermark=-1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
                result(partition_index=9, low_watermark=-1, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ],
            "__consumer_offsets": [result(low_watermark=-1, error_code=ErrorCode.INVALID_TOPIC_EXCEPTION)],
        }


COORDINATORS: Final = (umr_state(0, leader=1), umr_state(1, leader=2), umr_state(2, leader=7))


async def test_find_coordinator() -> None:  # rules G1.4, G1.9, G1.10
    """Keys "b", "c" and "d" belong to partitions 2, 0 and 1."""
    node = Node(**{"offsets.topic.num.partitions": "3"})
    alive = (umr_broker(1), umr_broker(2, ["CONTROL"]))
    node.cache.update(update_metadata(*COORDINATORS, topic="__consumer_offsets", alive=alive))
    none = {"node_id": -1, "port": -1, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    found = {"node_id": 1, "host": "host1", "port": 9011}
    for version in (4, 6):
        answer = await node.ask(wire.FindCoordinatorRequest(coordinator_keys=("b", "c", "d")), version)
        assert answer == wire.FindCoordinatorResponse(
            coordinators=(
                wire.Coordinator(key="b", **none), wire.Coordinator(key="c", **found), wire.Coordinator(key="d", **none)
            )
        )  # fmt: skip
    for version in (1, 3):
        answer = await node.ask(wire.FindCoordinatorRequest(key="c"), version)
        assert answer == wire.FindCoordinatorResponse(error_message="NONE", **found)
        answer = await node.ask(wire.FindCoordinatorRequest(key="b"), version)
        assert answer == wire.FindCoordinatorResponse(error_message="COORDINATOR_NOT_AVAILABLE", **none)
    refusal = await node.ask(wire.FindCoordinatorRequest(key="b", key_type=2), 3)
    assert refusal == wire.FindCoordinatorResponse(
        error_code=ErrorCode.INVALID_REQUEST, error_message="INVALID_REQUEST", node_id=-1, port=-1
    )


async def test_init_producer_id() -> None:  # rules B3.57 to B3.60
    async with trio.open_nursery() as nursery:

        class Channel:
            async def request(self, *args: Any) -> wire.Message:
                return wire.AllocateProducerIdsResponse(producer_id_start=70, producer_id_len=2)

        node = Node(nursery=nursery, channel=Channel())

        async def ask(**more: Any) -> Any:
            return await node.ask(wire.InitProducerIdRequest(**{"transactional_id": None, **more}), 5)

        def refusal(code: ErrorCode) -> wire.InitProducerIdResponse:
            return wire.InitProducerIdResponse(error_code=code, producer_epoch=-1)

        assert await ask() == refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await wait_all_tasks_blocked()
        assert [await ask(), await ask(producer_id=5, producer_epoch=3)] == [
            wire.InitProducerIdResponse(producer_id=70), wire.InitProducerIdResponse(producer_id=71)
        ]  # fmt: skip
        invalid = refusal(ErrorCode.INVALID_REQUEST)
        assert [await ask(producer_id=5), await ask(producer_epoch=3), await ask(transactional_id="")] == [invalid] * 3
        assert await ask(transactional_id="t") == refusal(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


async def test_changed_settings() -> None:  # rules B7.27, B7.28
    async with trio.open_nursery() as nursery:
        node = Node(controller=Active(), admin=Store(), nursery=nursery)
        node.cache.update(update_metadata(umr_state(0)))
        cases = [
            (2, "a", ErrorCode.NONE, None),
            (2, "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'b' does not exist."),
            (2, "", ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
            (4, "7", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 7"),
            (
                16,
                "x",
                ErrorCode.INVALID_REQUEST,
                "AlterConfigs is only supported for topics and brokers, but resource type is CLIENT_METRICS",
            ),
            *[(2, "c", ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")] * 2,
        ]
        altered, incremented = (
            tuple(make(resource_type=kind, resource_name=name) for kind, name, *_ in cases)
            for make in (
                wire.AlterConfigsRequestAlterConfigsResource,
                wire.IncrementalAlterConfigsRequestAlterConfigsResource,
            )
        )

        def expected(make: Any) -> Any:
            return tuple(
                make(error_code=code, error_message=text, resource_type=kind, resource_name=name)
                for kind, name, code, text in cases
            )

        assert await node.ask(wire.AlterConfigsRequest(resources=altered), 2) == wire.AlterConfigsResponse(
            responses=expected(wire.AlterConfigsResponseAlterConfigsResourceResponse)
        )
        answer = await node.ask(wire.IncrementalAlterConfigsRequest(resources=incremented), 1)
        assert answer == wire.IncrementalAlterConfigsResponse(
            responses=expected(wire.IncrementalAlterConfigsResponseAlterConfigsResourceResponse)
        )


async def test_described_settings() -> None:  # rules B7.25, B7.26
    async with trio.open_nursery() as nursery:
        node = Node(controller=Active(), admin=Store(), nursery=nursery)
        node.cache.update(update_metadata(umr_state(0)))
        node.services.admin.configs["topics", "a"] = {"retention.ms": "7"}  # type: ignore[attr-defined]

        async def ask(kind: int, name: str, *keys: str, version: int = 4) -> Any:
            resource = wire.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys or None
            )
            request = wire.DescribeConfigsRequest(resources=(resource,), include_synonyms=version > 0)
            return (await node.ask(request, version)).results

        synonyms = [("retention.ms", "7", 1)]
        retention = {"name": "retention.ms", "value": "7"}
        described = {"resource_type": 2, "resource_name": "a", "error_message": ""}
        assert await ask(2, "a", "retention.ms") == (
            wire.DescribeConfigsResult(
                configs=(
                    wire.DescribeConfigsResourceResult(
                        **retention,
                        config_source=1,
                        config_type=5,
                        documentation=None,
                        synonyms=tuple(wire.DescribeConfigsSynonym(name=n, value=v, source=s) for n, v, s in synonyms),
                    ),
                ),
                **described,
            ),
        )
        assert await ask(2, "a", "retention.ms", "segment.bytes", version=0) == (
            wire.DescribeConfigsResult(
                configs=(
                    wire.DescribeConfigsResourceResult(**retention),
                    wire.DescribeConfigsResourceResult(name="segment.bytes", value="1073741824"),
                ),
                **described,
            ),
        )
        for kind, name, code, why in (
            (
                2,
                "?",
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic name is invalid: {topic_name_problem('?')}",
            ),
            (2, "b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
            (4, "2", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 or empty string, but received 2"),
            (
                16,
                "g",
                ErrorCode.INVALID_REQUEST,
                "Config type client-metrics is only supported on KRaft clusters",
            ),
            (16, "", ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty"),
            (4, "x", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
            (8, "", ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
            (8, "2", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 2"),
        ):
            assert await ask(kind, name) == (
                wire.DescribeConfigsResult(error_code=code, error_message=why, resource_type=kind, resource_name=name),
            )


async def test_topics_that_cannot_be_changed() -> None:  # rules 10.12, 10.36
    async with trio.open_nursery() as nursery:
        controller = Active()
        controller.deleting = {"a"}
        node = Node(controller=controller, admin=Store(), nursery=nursery, delete_topic_enable="false")
        topics = tuple(wire.CreatePartitionsTopic(name=name, count=2) for name in ("a", "b", "b"))
        result = wire.CreatePartitionsTopicResult
        answer = await node.ask(wire.CreatePartitionsRequest(topics=topics, timeout_ms=1000), 3)
        assert answer == wire.CreatePartitionsResponse(
            results=(
                result(
                    name="a", error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, error_message="topic a is being deleted"
                ),
                result(name="b", error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic in request."),
            )
        )
        for version, code in ((2, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)):
            answer = await node.ask(wire.DeleteTopicsRequest(topic_names=("a",)), version)
            assert answer == wire.DeleteTopicsResponse(
                responses=(wire.DeletableTopicResult(name="a", error_code=code),)
            )


@pytest.mark.parametrize(
    ("timeout_ms", "code"), [(-1, ErrorCode.REQUEST_TIMED_OUT), (0, ErrorCode.REQUEST_TIMED_OUT), (1, 0)]
)
async def test_what_is_done_at_once_needs_some_time_nevertheless(
    timeout_ms: int, code: int
) -> None:  # 10.8, 10.16, 10.36
    """As in Kafka, which does not look when it must not wait."""

    class Quick(Store):
        async def delete_topics(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
            node.cache.update(update_metadata(umr_state(0, leader=-2)))
            return dict.fromkeys(topics, ErrorCode.NONE)

        async def create_topics(self, topics: Any, brokers: Any, **more: Any) -> Any:
            node.cache.update(update_metadata(umr_state(0), topic="b", topic_id=ID_B))
            return await super().create_topics(topics, brokers, **more)

    async with trio.open_nursery() as nursery:
        node = Node(controller=Active(), admin=Quick(), nursery=nursery)
        node.cache.update(update_metadata(umr_state(0), umr_state(1), topic="c"))
        node.cache.update(update_metadata(umr_state(0)))
        created = await node.ask(wire.CreateTopicsRequest(topics=(creatable("b"),), timeout_ms=timeout_ms), 7)
        assert [topic.error_code for topic in created.topics] == [code]
        grown = wire.CreatePartitionsTopic(name="c", count=2)
        more = await node.ask(wire.CreatePartitionsRequest(topics=(grown,), timeout_ms=timeout_ms), 3)
        assert [topic.error_code for topic in more.results] == [code]
        deleted = await node.ask(wire.DeleteTopicsRequest(topic_names=("a",), timeout_ms=timeout_ms), 5)
        assert deleted.responses == (wire.DeletableTopicResult(name="a", error_code=code),)


async def test_errors_of_metadata_are_counted() -> None:
    node = Node(auto_create_topics_enable="false")
    node.cache.update(update_metadata(umr_state(0), umr_state(1), umr_state(2, leader=9)))
    for _ in range(2):  # encoded, then remembered
        topics = tuple(wire.MetadataRequestTopic(name=name) for name in ("a", "x", "y", "a b"))
        request, _captured = node.request(wire.MetadataRequest(topics=topics), 12)
        node.apis.handle(request)
        assert request._errors == {
            ErrorCode.NONE: 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 2, ErrorCode.INVALID_TOPIC_EXCEPTION: 1,
            ErrorCode.LEADER_NOT_AVAILABLE: 1,
        }  # fmt: skip


async def test_log_directories() -> None:  # rule B7.22
    async with a_node() as node:
        await two_partitions(node)
        await node.produce(batch(b"x"), partition=5)
        sizes = {number: found.size for (_, number), found in node.record_logs.logs.items()}
        assert sizes[5] > sizes[0] == 0
        partition = wire.DescribeLogDirsPartition
        answer = await node.ask(wire.DescribeLogDirsRequest(topics=None), 4)
        assert answer == wire.DescribeLogDirsResponse(
            results=(
                wire.DescribeLogDirsResult(
                    log_dir="/logs",
                    total_bytes=-1,
                    usable_bytes=-1,
                    topics=(
                        wire.DescribeLogDirsTopic(
                            name="a",
                            partitions=tuple(
                                partition(partition_index=number, partition_size=size) for number, size in sizes.items()
                            ),
                        ),
                    ),
                ),
            )
        )


async def test_metadata_of_a_hundred_topics_is_answered_at_once() -> None:
    node = Node()
    names = [f"t{number}" for number in range(100)]
    for name in names:
        node.cache.update(update_metadata(umr_state(0), topic=name, topic_id=NO_ID))
    for named in (None, tuple(wire.MetadataRequestTopic(name=name) for name in names)):
        request, captured = node.request(wire.MetadataRequest(topics=named), 9)
        assert node.apis.handle(request) is None
        assert [topic.name for topic in answer_of(captured, 3, 9).topics] == names


async def test_new_partitions_are_answered_when_all_have_leaders() -> None:  # rule 10.16
    async with trio.open_nursery() as nursery:
        node = Node(controller=Active(), admin=Store(), nursery=nursery)
        node.cache.update(update_metadata(umr_state(0)))
        topics = (wire.CreatePartitionsTopic(name="a", count=2),)
        answer = await parked(node, wire.CreatePartitionsRequest(topics=topics, timeout_ms=60_000), 3)
        node.cache.update(update_metadata(umr_state(1)))
        await wait_all_tasks_blocked()
        assert answer() == wire.CreatePartitionsResponse(results=(wire.CreatePartitionsTopicResult(name="a"),))


async def test_created_topics_are_answered_with_their_settings() -> None:  # rule 10.9
    async with trio.open_nursery() as nursery:
        node = Node(controller=Active(), admin=Store(), nursery=nursery)
        topics = (creatable("a", retention_ms="7"), creatable("b"))
        answer = await node.ask(wire.CreateTopicsRequest(topics=topics, validate_only=True), 7)
        found = [{c.name: (c.value, c.config_source) for c in topic.configs} for topic in answer.topics]
        assert [settings["retention.ms"] for settings in found] == [("7", 1), ("604800000", 5)]


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_an_offset_that_is_not_available(version: int, code: ErrorCode) -> None:  # rule B7.15
    assert list_offsets._code(ErrorCode.OFFSET_NOT_AVAILABLE, version) == code
    assert list_offsets._code(ErrorCode.FENCED_LEADER_EPOCH, version) == ErrorCode.FENCED_LEADER_EPOCH


async def test_a_session_is_told_the_name_of_a_topic_id() -> None:  # rule B4.2
    async with a_node() as node:
        await node.lead()
        told: list[tuple[Any, str]] = []
        fetching: Any = SimpleNamespace(resolved=lambda wanted, name: told.append((wanted, name)))
        denied: Any = SimpleNamespace(whole=False, by_topic=False)
        known, unknown = (Wanted("", topic_id, 0, 5, 6, 7, 8, 9) for topic_id in (ID_A, uuid.UUID(int=77)))
        named = Wanted("a", None, 0, 5, 6, 7, 8, 9)
        found = list(fetch._requested(fetching, [known, unknown, named], denied, node.services))
        assert told == [(known, "a")]
        assert [one.fetch.partition for one in found] == [TopicPartition(name, 0) for name in ("a", "", "a")]
        assert [one.answer and one.answer.error for one in found] == [None, ErrorCode.UNKNOWN_TOPIC_ID, None]


def test_a_partition_that_is_not_verified_names_its_leader() -> None:  # rules B3.22, T10.10
    failed = VerificationFailed(ErrorCode.INVALID_TXN_STATE, "no")
    answer = produce._answer(TopicPartition("a", 3), failed, failed.code, (3, 7), cast(Services, None))
    assert answer == wire.PartitionProduceResponse(
        index=3, error_code=failed.code, base_offset=-1, error_message="no",
        current_leader=wire.ProduceResponseLeaderIdAndEpoch(leader_id=3, leader_epoch=7),
    )  # fmt: skip
