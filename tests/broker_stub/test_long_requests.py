"""No request, however many elements it has, keeps a node from its other work.

The clock advances whenever somebody looks at it, so that slices of time end; what a task does between two pauses is
counted in calls of functions, which does not depend on the machine.

Covers: broker_stub/handlers/*.py, broker_stub/handlers/long_answers.py.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import trio

from kce import wire
from kce.broker_stub.handlers import base
from kce.broker_stub.handlers.base import Handler
from kce.broker_stub.handlers.kafka_apis import HANDLERS
from kce.broker_stub.quotas.client_quota import Entity
from kce.broker_stub.reactor.turns import Turns
from kce.wire import ErrorCode
from kce.wire.schema import Field, Struct
from tests.broker_stub.replication.support import a_node
from tests.broker_stub.support import Captured, Node, answer_of
from tests.broker_stub.test_admin_handlers import Active, Store

ELEMENTS: Final = 10_000
#: between two pauses; fewer than if one was made for each element
CALLS: Final = 30_000
#: of controllers and brokers, which are believed
TRUSTED: Final = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "AlterPartition"}


class AdvancingClock(trio.abc.Clock):
    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        self._now += 0.0003
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0 if deadline < 1e9 else 0.001


class Work(trio.abc.Instrument):
    """Counts calls in each step of a task."""

    def __init__(self) -> None:
        self.most = self.calls = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.calls = 0
        sys.setprofile(self._profile)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.most = max(self.most, self.calls)

    def _profile(self, frame: object, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")


def arrays(cls: type[Struct], version: int) -> Iterator[tuple[Field, ...]]:
    """All arrays of a message, with those around them."""
    for field in cls.__fields__:
        if field.array and version in field.versions:
            yield (field,)
            if issubclass_of_struct(field.type):
                yield from ((field, *inner) for inner in arrays(field.type, version))


def issubclass_of_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def value(field: Field, number: int) -> Any:
    """Of a field; elements are different."""
    kind = field.type.name
    if kind == "string":
        return f"n{number}"
    if kind == "uuid":
        return uuid.UUID(int=number)
    if kind.startswith("int"):
        return number % 100 if kind in ("int8", "int16") else number
    return field.type.zero


def message(cls: type[Any], version: int, path: tuple[Field, ...]) -> Any:
    """With very many elements in that array, and one in each around it."""
    last = path[-1]
    if issubclass_of_struct(last.type):
        keys = [f for f in last.type.__fields__ if not f.array and version in f.versions and not f.tagged.last >= 0]
        keys = [f for f in keys if not issubclass_of_struct(f.type) and f.type.name in ("string", "uuid", "int32")][:1]
        found = tuple(last.type(**{f.name: value(f, n) for f in keys}) for n in range(ELEMENTS))
    else:
        found = tuple(value(last, n) for n in range(ELEMENTS))
    for outer, inner in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        found = (outer.type(**{inner.name: found}),)
    return cls(**{path[0].name: found})


CASES: Final = [
    pytest.param(handler, version, path, id=f"{handler.request.__name__}-{version}-{'.'.join(f.name for f in path)}")
    for handler in HANDLERS
    if handler.request.__name__.removesuffix("Request") not in TRUSTED
    for version in (handler.request.__versions__.last,)
    for path in arrays(handler.request, version)
    if (handler.request, path[0].name)
    != (wire.ListTransactionsRequest, "state_filters")  # texts are answered as they are
]


@contextmanager
def advancing_time() -> Iterator[None]:
    """In which nothing is done at once."""
    logging.disable()  # this node has no store, and says so for each element
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "STEPS_AT_ONCE", 1)
            yield
    finally:
        logging.disable(logging.NOTSET)
        sys.setprofile(None)


async def answer_in_turns(node: Node, turns: Turns, message: Any, version: int) -> Captured:
    """As a processor does. What answers may come later, or never."""
    request, captured = node.request(message, version)
    request.context = request.context._replace(turns=turns)
    request.connection._owner.turns = turns  # type: ignore[attr-defined]
    await trio.lowlevel.checkpoint()  # an instrument sees whole steps only
    try:
        waits = node.apis.handle(request)
        if waits is not None:
            await waits
    except Exception as e:  # noqa: BLE001 - as in the handler pool
        await request.fail_in_turns(e)
    with trio.move_on_after(5):  # some wait for what this node does not have
        await captured.answered.wait()
    return captured


@pytest.mark.heavy
@pytest.mark.parametrize(("handler", "version", "path"), CASES)
def test_a_long_request_is_worked_on_in_steps(handler: Handler[Any], version: int, path: tuple[Field, ...]) -> None:
    work = Work()

    async def ask() -> None:
        async with a_node() as node, trio.open_nursery() as nursery:
            turns = Turns(0.0005)
            nursery.start_soon(turns.run)
            asked = message(handler.request, version, path)
            trio.lowlevel.add_instrument(work)
            try:
                await answer_in_turns(node, turns, asked, version)
            finally:
                trio.lowlevel.remove_instrument(work)
            nursery.cancel_scope.cancel()

    with advancing_time():
        trio.run(ask, clock=AdvancingClock())
    assert work.most < CALLS


def test_very_many_protocols_of_a_member_are_read_in_steps() -> None:
    work = Work()
    protocols = tuple(wire.JoinGroupRequestProtocol(name=f"p{i}", metadata=b"") for i in range(ELEMENTS))
    asked = wire.JoinGroupRequest(group_id="g", protocol_type="consumer", protocols=protocols)
    too_many = replace(asked, protocols=protocols * 2)

    async def ask() -> None:
        async with a_node() as node, trio.open_nursery() as nursery:
            turns = Turns(0.0005)
            nursery.start_soon(turns.run)
            refused = await answer_in_turns(node, turns, too_many, 3)
            assert answer_of(refused, 11, 3).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            trio.lowlevel.add_instrument(work)
            await answer_in_turns(node, turns, asked, 9)
            trio.lowlevel.remove_instrument(work)
            nursery.cancel_scope.cancel()

    with advancing_time():
        trio.run(ask, clock=AdvancingClock())
    assert work.most < CALLS


def test_a_short_fetch_of_a_long_session_is_worked_on_in_steps() -> None:
    """So are its partitions being forgotten, and answers that a quota counts."""
    work = Work()

    async def ask() -> None:
        async with a_node() as node, trio.open_nursery() as nursery:
            turns = Turns(0.0005)
            nursery.start_soon(turns.run)
            partitions = tuple(wire.FetchPartition(partition=i, partition_max_bytes=1) for i in range(ELEMENTS))
            first = wire.FetchRequest(session_epoch=0, topics=(wire.FetchTopic(topic="none", partitions=partitions),))
            captured = await answer_in_turns(node, turns, first, 12)
            session_id = answer_of(captured, first.__api_key__, 12).session_id
            forgotten = (wire.ForgottenTopic(topic="none", partitions=tuple(range(1, ELEMENTS))),)
            answers = []
            trio.lowlevel.add_instrument(work)
            for epoch, more in enumerate([{}, {}, {"forgotten_topics_data": forgotten}], 1):
                if epoch == 2:
                    node.quotas.fetch.update(Entity(None, "test"), 1e9)
                again = wire.FetchRequest(session_id=session_id, session_epoch=epoch, **more)
                answers.append(await answer_in_turns(node, turns, again, 12))
            trio.lowlevel.remove_instrument(work)
            for captured, count in zip(answers, (ELEMENTS, ELEMENTS, 1), strict=True):
                (topic,) = answer_of(captured, first.__api_key__, 12).responses
                assert len(topic.partitions) == count
            nursery.cancel_scope.cancel()

    with advancing_time():
        trio.run(ask, clock=AdvancingClock())
    assert work.most < CALLS


def settings(cls: Any, count: int) -> tuple[Any, ...]:
    """Of plugins, as far as a broker knows."""
    return tuple(cls(name=f"k{i}", value="x") for i in range(count))


@pytest.mark.parametrize(
    "asked",
    [
        wire.AlterConfigsRequest(
            resources=(
                wire.AlterConfigsRequestAlterConfigsResource(
                    resource_type=4,
                    resource_name="1",
                    configs=settings(wire.AlterConfigsRequestAlterableConfig, ELEMENTS),
                ),
            ),
            validate_only=True,
        ),
        wire.IncrementalAlterConfigsRequest(
            resources=(
                wire.IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=4,
                    resource_name="",
                    configs=settings(wire.IncrementalAlterConfigsRequestAlterableConfig, ELEMENTS),
                ),
            ),
            validate_only=True,
        ),
        wire.DescribeConfigsRequest(
            resources=(wire.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None),) * 50,
            include_synonyms=True,
        ),
        wire.CreateTopicsRequest(
            topics=tuple(
                wire.CreatableTopic(name=f"n{i}", num_partitions=1, replication_factor=1) for i in range(3000)
            ),
            validate_only=True,
        ),
    ],
    ids=lambda asked: type(asked).__name__,
)
def test_what_a_store_lets_pass_is_worked_on_in_steps(asked: Any) -> None:
    work = Work()

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            node = Node(controller=Active(), admin=Store(), nursery=nursery)
            turns = Turns(0.0005)
            nursery.start_soon(turns.run)
            trio.lowlevel.add_instrument(work)
            captured = await answer_in_turns(node, turns, asked, asked.__versions__.last)
            trio.lowlevel.remove_instrument(work)
            answer = answer_of(captured, asked.__api_key__, asked.__versions__.last)
            assert wire.error_counts(answer).keys() == {ErrorCode.NONE}
            nursery.cancel_scope.cancel()

    with advancing_time():
        trio.run(ask, clock=AdvancingClock())
    assert work.most < 2 * CALLS  # all settings of a broker are as many calls


def lai_states(count: int, name: str = "t{}") -> tuple[wire.LeaderAndIsrTopicState, ...]:
    state = wire.LeaderAndIsrPartitionState(partition_index=0, replicas=(1,))
    return tuple(
        wire.LeaderAndIsrTopicState(topic_name=name.format(i), topic_id=uuid.UUID(int=i + 1), partition_states=(state,))
        for i in range(count)
    )


MANY: Final = 3 * ELEMENTS
STOPPED: Final = wire.StopReplicaPartitionState(partition_index=0)


@pytest.mark.parametrize(
    ("asked", "epoch", "error"),
    [
        (wire.LeaderAndIsrRequest(topic_states=lai_states(MANY)), 1, ErrorCode.STALE_CONTROLLER_EPOCH),
        (
            wire.LeaderAndIsrRequest(topic_states=lai_states(MANY) + lai_states(1, f"t{MANY - 1}")),
            0,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ),
        (
            wire.StopReplicaRequest(
                topic_states=tuple(
                    wire.StopReplicaTopicState(topic_name=f"t{i}", partition_states=(STOPPED,)) for i in range(MANY)
                )
            ),
            1,
            ErrorCode.STALE_CONTROLLER_EPOCH,
        ),
    ],
    ids=["LeaderAndIsr", "a topic twice", "StopReplica"],
)
def test_a_long_control_request_is_refused_in_steps(asked: Any, epoch: int, error: ErrorCode) -> None:
    """Who may be no controller."""
    work = Work()

    async def ask() -> None:
        async with a_node() as node, trio.open_nursery() as nursery:
            turns = Turns(0.0005)
            nursery.start_soon(turns.run)
            node.replicas.controller_epoch = epoch
            version = asked.__versions__.last
            trio.lowlevel.add_instrument(work)
            captured = await answer_in_turns(node, turns, asked, version)
            trio.lowlevel.remove_instrument(work)
            assert answer_of(captured, asked.__api_key__, version).error_code == error
            nursery.cancel_scope.cancel()

    with advancing_time():
        trio.run(ask, clock=AdvancingClock())
    assert work.most < CALLS
