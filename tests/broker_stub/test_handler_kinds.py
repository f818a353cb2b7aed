"""The kinds of handlers: at once, in steps, later; and what becomes of one that fails (rule B1.31)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kce import wire
from kce.broker_stub.authorization import NO_AUTHORIZATION
from kce.broker_stub.errors import InvalidRequest, Refused
from kce.broker_stub.groups.coordinator import FetchedOffset
from kce.broker_stub.handlers import (
    add_partitions_to_txn,
    alter_configs,
    delete_records,
    describe_configs,
    incremental_alter_configs,
    list_offsets,
    long_answers,
    offset_fetch,
    produce,
    write_txn_markers,
)
from kce.broker_stub.handlers.base import (
    STEPS_AT_ONCE,
    Answer,
    Handler,
    answering,
    answering_in_steps,
    answering_later,
    respond_to,
    with_settings,
)
from kce.broker_stub.handlers.long_answers import Arrays, answering_each, answering_each_later
from kce.broker_stub.ports import NoStore
from kce.pauses import Paced
from kce.wire import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    ErrorCode,
    HeartbeatResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kce.wire.steps import Steps
from kce.wire.vocabulary import TopicPartition

MESSAGE, ANSWER = object(), HeartbeatResponse(error_code=5)


class Asked:
    """A request that remembers how it was answered."""

    context = "context"
    is_long = False

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.steps_in_turns = self.pauses = 0

    def __repr__(self) -> str:
        return "the request"

    def respond(self, *answer: Any) -> None:
        self.done.append(answer)

    def fail(self, error: Exception) -> None:
        self.done.append(error)

    async def respond_in_turns(self, *answer: Any) -> None:
        self.respond(*answer)

    async def fail_in_turns(self, error: Exception) -> None:
        self.fail(error)

    async def pause(self, began: float) -> float:
        self.pauses += 1
        await trio.lowlevel.checkpoint()
        return began

    async def in_turns(self, steps: Steps[Answer]) -> Answer:
        while True:
            await trio.lowlevel.checkpoint()
            try:
                next(steps)
            except StopIteration as e:
                answer: Answer = e.value
                return answer
            self.steps_in_turns += 1


def test_an_answer_at_once() -> None:
    asked: Any = Asked()
    seen: list[Any] = []

    def respond(*given: Any) -> HeartbeatResponse:
        seen.append(given)
        return ANSWER

    services: Any = "services"
    answering(respond)(asked, MESSAGE, services)
    assert (seen, asked.done) == ([(MESSAGE, "context", "services")], [(ANSWER,)])


@pytest.mark.parametrize(("count", "in_turns"), [(0, 0), (STEPS_AT_ONCE - 1, 0), (STEPS_AT_ONCE, 0), (12, 4)])
async def test_an_answer_in_steps(count: int, in_turns: int) -> None:
    """The first are made at once; the rest in turns with other requests."""
    asked: Any = Asked()

    def respond(*given: Any) -> Steps[Answer]:
        assert given == (MESSAGE, "context", "services")
        for _ in range(count):
            yield
        return Answer(ANSWER, {5: 1})

    services: Any = "services"
    rest = answering_in_steps(respond)(asked, MESSAGE, services)
    assert (rest is None) == (count < STEPS_AT_ONCE)
    if rest is not None:
        assert asked.done == []
        await rest
    assert (asked.done, asked.steps_in_turns) == ([(ANSWER, {5: 1})], in_turns)


@pytest.mark.parametrize(("count", "in_turns"), [(0, 0), (128, 0), (129, 0), (2000, 8)])
async def test_the_elements_of_a_long_answer_are_made_in_steps(count: int, in_turns: int) -> None:
    """As one answer: the same bytes, the same errors."""
    asked: Any = Asked()
    asked.context = SimpleNamespace(header=SimpleNamespace(api_key=DescribeGroupsRequest.__api_key__, api_version=5))
    message = DescribeGroupsRequest(groups=tuple(map(str, range(count))))

    def respond(message: DescribeGroupsRequest, *_: Any) -> DescribeGroupsResponse:
        groups = [
            DescribeGroupsResponseDescribedGroup(group_id=name, error_code=int(name) % 3) for name in message.groups
        ]
        return DescribeGroupsResponse(groups=tuple(groups))

    services: Any = "services"
    rest = answering_each(respond, Arrays("groups", "groups"))(asked, message, services)
    if rest is not None:
        await rest
    ((answer, *errors),) = asked.done
    whole = respond(message)
    encoded = [wire.encode_response(made, api_version=5, correlation_id=1) for made in (answer, whole)]
    assert encoded[0] == encoded[1]
    assert errors in ([], [wire.error_counts(whole)])
    assert asked.steps_in_turns == in_turns


def partitions_asked(counts: list[int], version: int) -> Any:
    asked: Any = Asked()
    header = SimpleNamespace(api_key=ListOffsetsRequest.__api_key__, api_version=version)
    asked.context = SimpleNamespace(header=header)
    asked.message = ListOffsetsRequest(
        topics=tuple(
            ListOffsetsTopic(
                name=f"t{t}",
                partitions=tuple(ListOffsetsPartition(partition_index=p, timestamp=-1) for p in range(count)),
            )
            for t, count in enumerate(counts)
        )
    )
    return asked


@pytest.mark.parametrize(
    ("counts", "in_turns"),
    [
        ([], 0),
        ([128], 0),
        ([40, 40, 40], 0),
        ([129], 0),
        ([2000], 8),
        ([0, 5, 1500, 0, 127, 128, 129, 300, 0], 14),
        ([3] * 1000, 24),
        ([0] * 1500, 4),
    ],
)
async def test_what_is_within_elements_of_a_long_answer_is_made_in_steps(counts: list[int], in_turns: int) -> None:
    asked = partitions_asked(counts, 5)

    def respond(message: ListOffsetsRequest, *_: Any) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=p.partition_index, error_code=p.partition_index % 3
                        )
                        for p in topic.partitions
                    ),
                )
                for topic in message.topics
            )
        )

    services: Any = "services"
    handle = answering_each(respond, Arrays("topics", "topics"), Arrays("partitions", "partitions"))
    rest = handle(asked, asked.message, services)
    if rest is not None:
        await rest
    ((answer, *errors),) = asked.done
    whole = respond(asked.message)
    encoded = [wire.encode_response(made, api_version=5, correlation_id=1) for made in (answer, whole)]
    assert encoded[0] == encoded[1]
    assert errors in ([], [wire.error_counts(whole)])
    assert asked.steps_in_turns == in_turns


@pytest.mark.parametrize("counts", [[1500], [10] * 150])
async def test_offsets_of_repeated_partitions_in_a_long_request(counts: list[int]) -> None:
    """A partition that is asked for twice is refused each time, however far apart that is."""
    asked = partitions_asked(counts, 1)
    first = asked.message.topics[0].partitions[:1]
    asked.message = replace(
        asked.message, topics=(*asked.message.topics, ListOffsetsTopic(name="t0", partitions=first))
    )

    def refuse(partition: Any) -> None:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    services: Any = SimpleNamespace(authorization=NO_AUTHORIZATION, data_plane=SimpleNamespace(partition=refuse))
    rest = list_offsets.HANDLER.handle(asked, asked.message, services)
    assert rest is not None
    await rest
    ((answer, errors),) = asked.done
    whole = list_offsets.respond(asked.message, asked.context, services)
    encoded = [wire.encode_response(made, api_version=1, correlation_id=1) for made in (answer, whole)]
    assert encoded[0] == encoded[1]
    assert errors == {ErrorCode.INVALID_REQUEST: 2, ErrorCode.NOT_LEADER_OR_FOLLOWER: 1499}


@pytest.mark.parametrize(("count", "is_long"), [(0, False), (128, False), (129, True), (1000, True)])
async def test_the_elements_of_a_long_answer_that_is_given_later(count: int, is_long: bool) -> None:
    """A short request is parked. Both pause at each element here, and at what is not one."""
    asked: Any = Asked()
    header = SimpleNamespace(api_key=DescribeGroupsRequest.__api_key__, api_version=5)
    asked.context = SimpleNamespace(header=header, turns=SimpleNamespace(pause=asked.pause))
    message = DescribeGroupsRequest(groups=tuple(map(str, range(count))))

    async def each(
        message: DescribeGroupsRequest, *_: Any
    ) -> AsyncGenerator[DescribeGroupsResponseDescribedGroup | None, None]:
        yield None
        for name in message.groups:
            await trio.lowlevel.checkpoint()
            yield DescribeGroupsResponseDescribedGroup(group_id=name, error_code=int(name) % 3)

    async with trio.open_nursery() as nursery:
        services: Any = SimpleNamespace(spawn=nursery.start_soon)
        rest = answering_each_later(each, DescribeGroupsResponse, Arrays("groups", "groups"))(asked, message, services)
        assert (rest is not None) == is_long
        if rest is not None:
            await rest
    ((answer, errors),) = asked.done
    whole = DescribeGroupsResponse(groups=tuple([group async for group in each(message) if group is not None]))
    encoded = [wire.encode_response(made, api_version=5, correlation_id=1) for made in (answer, whole)]
    assert encoded[0] == encoded[1]
    assert (errors or wire.error_counts(whole)) == wire.error_counts(whole)
    assert asked.pauses == count + 1


@pytest.mark.parametrize(
    "handler", [describe_configs.HANDLER, alter_configs.HANDLER, incremental_alter_configs.HANDLER]
)
async def test_many_settings_are_read_and_changed_with_pauses(handler: Handler[Any]) -> None:
    asked: Any = Asked()
    version = handler.request.__versions__.last
    header = SimpleNamespace(api_key=handler.api_key, api_version=version)
    asked.context = SimpleNamespace(header=header, paced=Paced)
    (resources,) = (f for f in handler.request.__fields__ if f.name == "resources")
    topic = resources.type(resource_type=2, resource_name="a!")
    message = handler.request(resources=(topic,) * 300)
    services: Any = SimpleNamespace(
        authorization=NO_AUTHORIZATION,
        admin=NoStore(),
        config=SimpleNamespace(broker_id=1, originals={}),
        metadata_cache=SimpleNamespace(snapshot=SimpleNamespace(topics={})),
    )
    rest: Any = handler.handle(asked, message, services)
    await rest
    ((_, errors),) = asked.done
    assert sum(errors.values()) == 300
    assert asked.pauses > 300


@pytest.mark.parametrize(("topics", "count"), [(2, 1000), (1000, 2), (1, 10)])
async def test_records_for_many_partitions_are_sorted_and_answered_in_steps(
    topics: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 1 of each topic is here and fails, the others are unknown."""
    monkeypatch.setattr(produce, "_check_shape", lambda *_: None)
    asked: Any = Asked()
    asked.context = SimpleNamespace(
        header=SimpleNamespace(api_key=ProduceRequest.__api_key__, api_version=9, client_id=""), listener="L"
    )
    data = tuple(PartitionProduceData(index=number % count, records=None) for number in range(count + 3))
    names = [f"t{n}" for n in range(topics)]
    topic_data = tuple(TopicProduceData(name=name, partition_data=data) for name in names)
    message = ProduceRequest(acks=1, topic_data=topic_data)
    code, failure = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    results: dict[TopicPartition, Any] = {}

    def append(records: dict[TopicPartition, bytes], acks: int, timeout_ms: int, respond: Callable[..., None]) -> None:
        results.update(dict.fromkeys(records, (failure, failure.code)))
        respond(results)

    async with trio.open_nursery() as nursery:
        services: Any = SimpleNamespace(
            authorization=NO_AUTHORIZATION,
            spawn=nursery.start_soon,
            topic_settings=SimpleNamespace(unread=()),
            metadata_cache=SimpleNamespace(
                snapshot=SimpleNamespace(partition=lambda p: p if p.partition == 1 else None)
            ),
            appends=SimpleNamespace(append=append, files_made=lambda _: iter(())),
            quotas=SimpleNamespace(produce=SimpleNamespace(enabled=False)),
        )
        rest = produce.HANDLER.handle(asked, message, services)
        if rest is not None:
            await rest
    ((answer, *errors),) = asked.done
    numbers = [number for number in range(count) if number != 1]
    unknown = dict.fromkeys(itertools.starmap(TopicPartition, itertools.product(names, numbers)), code)
    whole = produce.response(results, unknown, asked.context, services)
    encoded = [wire.encode_response(made, api_version=9, correlation_id=1) for made in (answer, whole)]
    assert encoded[0] == encoded[1]
    assert errors in ([], [wire.error_counts(whole)])
    assert (asked.steps_in_turns > 0) == (topics * count > 10)


@pytest.mark.parametrize("known", [lambda number: True, lambda number: number % 3 != 0])
@pytest.mark.parametrize(("topics", "count"), [(2, 1000), (1000, 2)])
async def test_very_many_partitions_are_added_to_a_transaction_in_steps(
    topics: int, count: int, known: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at once: the same partitions, the same bytes."""
    numbers = (*range(count), 0)
    message = AddPartitionsToTxnRequest(
        v3_and_below_topics=tuple(AddPartitionsToTxnTopic(name=f"t{n}", partitions=numbers) for n in range(topics))
    )
    added: list[list[TopicPartition]] = []

    def add(name: str, producer_id: int, epoch: int, partitions: Any, on_done: Callable[[ErrorCode], None]) -> None:
        added.append(list(dict.fromkeys(partitions)))
        on_done(ErrorCode.PRODUCER_FENCED)

    snapshot = SimpleNamespace(partition=lambda p: known(p.partition) or None)

    async def answered(asked: Any) -> tuple[bytes, Any]:
        async with trio.open_nursery() as nursery:
            services: Any = SimpleNamespace(
                authorization=NO_AUTHORIZATION,
                spawn=nursery.start_soon,
                metadata_cache=SimpleNamespace(snapshot=snapshot),
                transactions=SimpleNamespace(add_partitions=add),
            )
            rest: Any = add_partitions_to_txn.HANDLER.handle(asked, message, services)
            if rest is not None:
                await rest
        ((answer, *_),) = asked.done
        encoded = wire.encode_response(answer, api_version=1, correlation_id=1)
        return bytes(encoded), wire.error_counts(answer)

    header = SimpleNamespace(api_key=AddPartitionsToTxnRequest.__api_key__, api_version=1)
    long: Any = Asked()
    short: Any = Asked()
    long.context = short.context = SimpleNamespace(header=header)
    monkeypatch.setattr(add_partitions_to_txn, "check_supported", lambda services: None)
    in_steps = await answered(long)
    for module in (add_partitions_to_txn, long_answers):
        monkeypatch.setattr(module, "STEP_MASK", (1 << 40) - 1)
    assert in_steps == await answered(short)
    assert added[:1] == added[1:]
    assert long.steps_in_turns > 10
    assert short.steps_in_turns == 0


@pytest.mark.parametrize(
    ("version", "groups", "topics", "count"),
    [(5, 1, 2, 1000), (5, 1, 1000, 2), (1, 1, 3, 500), (8, 1500, 1, 2), (8, 2, 3, 500), (2, 1, 0, 0), (8, 3, 2, 2)],
)
async def test_very_many_offsets_are_fetched_in_steps(
    version: int, groups: int, topics: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at once; of the first topic and of every other group they are refused, and some partitions come twice."""
    numbers = (*range(count), 0)
    names = [f"t{n}" for n in range(topics)]
    if version < 8:
        of_topics = tuple(OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name in names)
        message = OffsetFetchRequest(group_id="g", topics=of_topics)
    else:
        wanted = tuple(OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name in names)
        message = OffsetFetchRequest(
            groups=tuple(OffsetFetchRequestGroup(group_id=f"g{n}", topics=wanted) for n in range(groups))
        )

    def fetch_offsets(group: str, partitions: list[TopicPartition], *, require_stable: bool) -> Any:
        if group.endswith("1"):
            return ErrorCode.NOT_COORDINATOR, {}
        return ErrorCode.NONE, {p: FetchedOffset(None, ErrorCode(p.partition % 2)) for p in partitions}

    authorization = SimpleNamespace(allows=lambda *_: True, denied_topics=lambda *_: {"t0"})
    services: Any = SimpleNamespace(authorization=authorization, groups=SimpleNamespace(fetch_offsets=fetch_offsets))

    async def answered(asked: Any) -> tuple[bytes, Any]:
        rest = offset_fetch.handle(asked, message, services)
        if rest is not None:
            await rest
        ((answer, *errors),) = asked.done
        encoded = wire.encode_response(answer, api_version=version, correlation_id=1)
        return bytes(encoded), errors[0] if errors else wire.error_counts(answer)

    header = SimpleNamespace(api_key=OffsetFetchRequest.__api_key__, api_version=version)
    long: Any = Asked()
    short: Any = Asked()
    long.context = short.context = SimpleNamespace(header=header, api_version=version)
    in_steps = await answered(long)
    monkeypatch.setattr(offset_fetch, "_FEW_GROUPS", groups)
    for name in ("is_long", "is_long_message"):
        monkeypatch.setattr(offset_fetch, name, lambda *_: False)
    assert in_steps == await answered(short)
    assert (long.steps_in_turns > 0) == (groups * topics * count >= 1500)
    assert short.steps_in_turns == 0


async def test_very_many_keys_of_settings_are_looked_up() -> None:
    """They are not searched for each setting, of which a broker has three hundred, and are read in turns."""

    class Keys(tuple[str, ...]):
        def __contains__(self, key: object) -> bool:
            raise AssertionError("searched")

    keys = Keys(("num.io.threads", "log.retention.ms", "unknown"))
    message = DescribeConfigsRequest(
        resources=(DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=keys),)
    )
    services: Any = SimpleNamespace(
        authorization=NO_AUTHORIZATION, admin=NoStore(), config=SimpleNamespace(broker_id=1, originals={})
    )
    context: Any = SimpleNamespace(paced=Paced)
    (result,) = [result async for result in describe_configs.each(message, context, services) if result is not None]
    assert {entry.name for entry in result.configs} == {"num.io.threads", "log.retention.ms"}


def test_who_completes_a_request_is_not_concerned_by_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    asked: Any = Asked()
    error = ValueError("of the answer")

    def fails() -> HeartbeatResponse:
        raise error

    respond_to(asked, lambda: ANSWER)
    respond_to(asked, fails)
    assert asked.done == [(ANSWER,), error]
    assert caplog.messages == ["the request failed"]


async def test_a_request_whose_error_response_fails_closes_only_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Hopeless(Asked):
        answered = False

        def fail(self, error: Exception) -> None:
            raise ValueError("of the error response")

        def close_connection(self) -> None:
            self.done.append("closed")

    def fails() -> HeartbeatResponse:
        raise ValueError("of the answer")

    async def fails_later(*_: Any) -> HeartbeatResponse:
        return fails()

    at_once: Any = Hopeless()
    later: Any = Hopeless()
    respond_to(at_once, fails)
    async with trio.open_nursery() as nursery:
        services: Any = SimpleNamespace(spawn=nursery.start_soon)
        answering_later(fails_later)(later, MESSAGE, services)
    assert (at_once.done, later.done) == (["closed"], ["closed"])
    assert caplog.messages == ["the request failed", "the request: the error response failed"] * 2


@pytest.mark.parametrize("error", [None, ValueError("of ours"), InvalidRequest("of the client's")])
async def test_an_answer_that_is_given_later(error: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    asked: Any = Asked()
    ready = trio.Event()

    async def respond(*given: Any) -> HeartbeatResponse:
        assert given == (MESSAGE, "context", services)
        await ready.wait()
        if error is not None:
            raise error
        return ANSWER

    async with trio.open_nursery() as nursery:

        def spawn(run: Callable[[], Awaitable[None]]) -> None:
            nursery.start_soon(run)

        services: Any = SimpleNamespace(spawn=spawn)
        answering_later(respond)(asked, MESSAGE, services)
        await wait_all_tasks_blocked()
        assert asked.done == []
        ready.set()
    assert asked.done == [error or (ANSWER, None)]
    assert caplog.messages == (["the request failed"] if isinstance(error, ValueError) else [])


async def test_what_depends_on_settings_has_them_read_first() -> None:
    done: list[object] = []

    class Settings:
        unread = frozenset("ab")

        async def read(self, topics: set[str]) -> None:
            await trio.lowlevel.checkpoint()
            done.append(topics)

    def handle(request: Any, message: Any, services: Any) -> None:
        done.append(message)

    services: Any = SimpleNamespace(topic_settings=Settings())
    handler = with_settings(handle, lambda message: message)
    request: Any = Asked()
    known: Any = ["c", "d"]
    assert handler(request, known, services) is None
    assert done == [known]
    new: Any = ["a", "c"]
    waits = handler(request, new, services)
    assert done == [known]
    assert waits is not None
    await waits
    assert done == [known, {"a"}, new]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (produce.HANDLER, ProduceRequest(topic_data=(TopicProduceData(name="a"),))),
        (delete_records.HANDLER, DeleteRecordsRequest(topics=(DeleteRecordsTopic(name="a"),))),
        (
            write_txn_markers.HANDLER,
            WriteTxnMarkersRequest(markers=(WritableTxnMarker(topics=(WritableTxnMarkerTopic(name="a"),)),)),
        ),
    ],
)
def test_requests_that_depend_on_settings(handler: Handler[Any], message: Any) -> None:
    services: Any = SimpleNamespace(topic_settings=SimpleNamespace(unread={"a"}))
    request: Any = None
    waits: Any = handler.handle(request, message, services)
    waits.close()
