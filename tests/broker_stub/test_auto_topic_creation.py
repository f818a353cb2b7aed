"""Topics that Metadata requests create (rules B7.11-B7.13); those of coordinators: test_coordinator_requests.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from kce import wire
from kce.broker_stub.ports import NoStore
from kce.wire import CreatableTopicResult, ErrorCode
from tests.broker_stub.support import NO_ID, Node, answer_of, umr_broker, umr_state, update_metadata

kafka = pytest.mark.kafka


class Store(NoStore):
    """Creates topics once ``is_open``, with the results of ``errors``."""

    def __init__(self) -> None:
        self.created: list[wire.CreatableTopic] = []
        self.brokers: list[dict[int, str | None]] = []
        self.errors: dict[str, ErrorCode] = {}
        self.is_open = trio.Event()
        self.failure: Exception | None = None

    async def create_topics(self, topics, brokers, *, validate_only, permit) -> list[CreatableTopicResult]:
        assert not validate_only
        assert all(permit(topic.num_partitions) for topic in topics)
        self.created += topics
        self.brokers.append(dict(brokers))
        await self.is_open.wait()
        if self.failure is not None:
            raise self.failure
        return [CreatableTopicResult(name=t.name, error_code=self.errors.get(t.name, ErrorCode.NONE)) for t in topics]


@pytest.fixture
def store() -> Store:
    made = Store()
    made.is_open.set()
    return made


@pytest.fixture
async def node(store: Store) -> AsyncIterator[Node]:
    async with trio.open_nursery() as nursery:
        node = Node(admin=store, nursery=nursery, num_partitions="6", default_replication_factor="2")
        node.cache.update(update_metadata(umr_state(0), alive=(umr_broker(1, rack="x"), umr_broker(2))))
        yield node
        nursery.cancel_scope.cancel()


def named(*names: str, **more: Any) -> wire.MetadataRequest:
    return wire.MetadataRequest(topics=tuple(wire.MetadataRequestTopic(name=name) for name in names), **more)


def errors(answer: wire.MetadataResponse) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in answer.topics}


@pytest.mark.parametrize("version", range(13))
async def test_a_missing_topic_is_created(node: Node, store: Store, version: int) -> None:
    answer = await node.ask(named("a", "new"), version)
    assert errors(answer) == {"a": ErrorCode.NONE, "new": ErrorCode.LEADER_NOT_AVAILABLE}
    (topic,) = [topic for topic in answer.topics if topic.name == "new"]
    assert (topic.topic_id, topic.partitions, topic.is_internal) == (NO_ID, (), False)
    assert [(t.name, t.num_partitions, t.replication_factor) for t in store.created] == [("new", 6, 2)]
    assert store.brokers == [{1: "x", 2: None}]


@pytest.mark.parametrize(
    "request_",
    [named("new", allow_auto_topic_creation=False), named("a"), named(), wire.MetadataRequest(topics=None)],
    ids=["not allowed", "it is there", "no topic", "all topics"],
)
async def test_nothing_is_created(node: Node, store: Store, request_: wire.MetadataRequest) -> None:
    assert errors(await node.ask(request_)).get("new", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert store.created == []


async def test_an_invalid_name_is_not_created(node: Node, store: Store) -> None:
    answer = await node.ask(named("a b", "new"))
    assert errors(answer) == {
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION, "new": ErrorCode.LEADER_NOT_AVAILABLE,
    }  # fmt: skip
    assert [topic.name for topic in store.created] == ["new"]


@pytest.mark.parametrize("name", ["new", "__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize(
    ("result", "answered"),
    [
        pytest.param(ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.LEADER_NOT_AVAILABLE, marks=kafka("TAC-3")),
        pytest.param(ErrorCode.REQUEST_TIMED_OUT, ErrorCode.LEADER_NOT_AVAILABLE, marks=kafka("TAC-4")),
        pytest.param(ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_FACTOR, marks=kafka("TAC-2")),
        pytest.param(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, marks=kafka("TAC-5")),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION),
    ],
)
async def test_results_of_the_creation(
    node: Node, store: Store, name: str, result: ErrorCode, answered: ErrorCode
) -> None:
    store.errors[name] = result
    answer = await node.ask(named(name, "other"))
    assert errors(answer) == {name: answered, "other": ErrorCode.LEADER_NOT_AVAILABLE}
    internal = {topic.name: (topic.is_internal, topic.partitions) for topic in answer.topics}
    assert internal == {name: (name != "new", ()), "other": (False, ())}


async def test_a_topic_that_is_being_created_is_not_created_again(node: Node, store: Store) -> None:
    store.is_open = trio.Event()
    first, captured = node.request(named("new"), 12)
    node.apis.handle(first)
    second, meanwhile = node.request(named("new"), 12)
    await trio.testing.wait_all_tasks_blocked()
    node.apis.handle(second)
    await trio.testing.wait_all_tasks_blocked()
    assert errors(answer_of(meanwhile, 3, 12)) == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert captured.response is None
    store.is_open.set()
    await captured.answered.wait()
    assert errors(answer_of(captured, 3, 12)) == {"new": ErrorCode.LEADER_NOT_AVAILABLE}
    assert len(store.created) == 1
    assert errors(await node.ask(named("new"))) == {"new": ErrorCode.LEADER_NOT_AVAILABLE}  # it asks the store again
    assert len(store.created) == 2


async def test_a_store_that_fails_fails_the_request_and_not_the_next(node: Node, store: Store) -> None:
    store.failure = RuntimeError("no session")
    assert errors(await node.ask(named("new"))) == {"new": ErrorCode.UNKNOWN_SERVER_ERROR}
    store.failure = None
    assert errors(await node.ask(named("new"))) == {"new": ErrorCode.LEADER_NOT_AVAILABLE}


@kafka("TKA-5")
async def test_internal_topics_have_their_own_settings(node: Node, store: Store) -> None:
    answer = await node.ask(named("__consumer_offsets", "__transaction_state"))
    not_yet = ErrorCode.LEADER_NOT_AVAILABLE
    assert errors(answer) == {"__consumer_offsets": not_yet, "__transaction_state": not_yet}
    assert [(topic.is_internal, topic.partitions) for topic in answer.topics] == [(True, ()), (True, ())]
    created = {t.name: (t.num_partitions, t.replication_factor) for t in store.created}
    assert created == {"__consumer_offsets": (50, 3), "__transaction_state": (50, 3)}


async def test_what_is_created_counts_against_the_quota_and_is_never_refused(node: Node, store: Store) -> None:
    node.quotas.changed("clients", "test", {"controller_mutation_rate": "0.001"})
    for name in ("new", "newer"):
        assert errors(await node.ask(named(name))) == {name: ErrorCode.LEADER_NOT_AVAILABLE}
    request, _ = node.request(named(), 12)
    quota = node.quotas.mutations(request.context, strict=True)
    assert not quota.record(1)  # 12 partitions were more than the tokens
