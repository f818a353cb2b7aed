"""Operations that wait for a condition or their timeout. The first cases are upstream's DelayedOperationTest."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from kce.broker_stub.purgatory import DelayedOperation, Purgatory, Timer

kafka = pytest.mark.kafka


class Operation(DelayedOperation):
    def __init__(self, delay_ms: float = 100_000) -> None:
        super().__init__(delay_ms)
        self.completable = False
        self.tried = 0
        self.ends: list[str] = []

    def try_complete(self) -> bool:
        self.tried += 1
        return self.completable and self.force_complete()

    def on_complete(self) -> None:
        self.ends.append("completed")

    def on_expiration(self) -> None:
        self.ends.append("expired")


@pytest.fixture
async def timer(nursery: trio.Nursery) -> Timer:
    made = Timer()
    nursery.start_soon(made.run)
    return made


@pytest.fixture
def purgatory(timer: Timer) -> Purgatory[str, Operation]:
    return Purgatory(timer)


@kafka("DO-1")
async def test_try_complete_else_watch(purgatory: Purgatory[str, Operation]) -> None:
    """Once before it is watched and once after, so that no change in between is missed (rule B2.2)."""
    operation = Operation()
    assert not purgatory.try_complete_or_watch(operation, ["key"])
    assert operation.tried == 2
    done = Operation()
    done.completable = True
    assert purgatory.try_complete_or_watch(done, ["key"])
    assert (done.tried, done.ends, purgatory.watched, purgatory.delayed) == (1, ["completed"], 1, 1)


async def test_what_is_known_is_not_tried(purgatory: Purgatory[str, Operation]) -> None:
    operation = Operation()
    assert not purgatory.watch(operation, ["key"])
    assert (operation.tried, purgatory.watched, purgatory.delayed) == (0, 1, 1)
    operation.completable = True
    assert purgatory.check_and_complete("key") == 1


@kafka("DO-3")
async def test_request_satisfaction(purgatory: Purgatory[str, Operation]) -> None:
    operations = {name: Operation() for name in ("test1", "test2")}
    assert purgatory.check_and_complete("test1") == 0
    for name, operation in operations.items():
        assert not purgatory.try_complete_or_watch(operation, [name])
        assert purgatory.check_and_complete(name) == 0
    for name, operation in operations.items():
        operation.completable = True
        assert [purgatory.check_and_complete(name) for _ in range(2)] == [1, 0]
        assert operation.ends == ["completed"]
    assert (purgatory.watched, purgatory.delayed, purgatory.watchers) == (0, 0, {})


@kafka("DO-4")
async def test_request_expiry(purgatory: Purgatory[str, Operation], autojump_clock: MockClock) -> None:
    soon, later = Operation(20), Operation(200_000)
    start = trio.current_time()
    for operation in (soon, later):
        assert not purgatory.try_complete_or_watch(operation, ["test1"])
    await trio.sleep_until(start + 0.0199)
    assert not soon.is_completed
    await trio.sleep_until(start + 0.0211)
    assert (soon.ends, later.is_completed, purgatory.delayed) == (["completed", "expired"], False, 1)


@kafka("DO-6")
async def test_request_purge(purgatory: Purgatory[str, Operation]) -> None:
    first, second, third = Operation(), Operation(), Operation()
    purgatory.try_complete_or_watch(first, ["test1"])
    purgatory.try_complete_or_watch(second, ["test1", "test2"])
    purgatory.try_complete_or_watch(third, ["test1", "test2", "test3"])
    assert (purgatory.delayed, purgatory.watched) == (3, 6)
    for left, operation in ((2, second), (1, third)):
        operation.completable = True
        operation.try_complete()
        assert purgatory.delayed == left
    for key, watched in (("test1", 4), ("test2", 2), ("test3", 1)):
        purgatory.check_and_complete(key)
        assert purgatory.watched == watched


@kafka("DO-7")
async def test_should_cancel_for_key_returning_cancelled_operations(
    purgatory: Purgatory[str, Operation], autojump_clock: MockClock
) -> None:
    operations = [Operation(), Operation(), Operation()]
    for operation, key in zip(operations, ("key", "key", "key2"), strict=True):
        purgatory.try_complete_or_watch(operation, [key])
    assert purgatory.cancel_for_key("key") == operations[:2]
    assert (purgatory.delayed, purgatory.watched) == (1, 1)
    await trio.sleep(1000)
    assert [operation.ends for operation in operations] == [[], [], ["completed", "expired"]]


@kafka("DO-8")
async def test_should_return_nil_operations_on_cancel_for_key_when_key_doesnt_exist(
    purgatory: Purgatory[str, Operation],
) -> None:
    assert purgatory.cancel_for_key("key") == []


async def test_the_oldest_is_completed_first(purgatory: Purgatory[str, Operation]) -> None:
    order: list[int] = []

    class Ordered(Operation):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def on_complete(self) -> None:
            order.append(self.number)

    operations = [Ordered(i) for i in range(4)]
    for operation in operations:
        purgatory.try_complete_or_watch(operation, ["key"])
    for operation in operations:
        operation.completable = operation.number != 1
    assert purgatory.check_and_complete("key") == 3
    assert order == [0, 2, 3]


async def test_an_operation_completes_once(purgatory: Purgatory[str, Operation], autojump_clock: MockClock) -> None:
    """Although its completion checks the key again, and its timeout comes."""

    class Nested(Operation):
        def on_complete(self) -> None:
            super().on_complete()
            assert purgatory.check_and_complete("key") == 0
            assert not self.force_complete()

    operation = Nested(10)
    purgatory.try_complete_or_watch(operation, ["key", "other"])
    operation.completable = True
    assert purgatory.check_and_complete("other") == 1
    assert purgatory.check_and_complete("key") == 0
    await trio.sleep(1)
    assert operation.ends == ["completed"]


async def test_a_timeout_of_zero(purgatory: Purgatory[str, Operation]) -> None:
    operation = Operation(0)
    assert purgatory.try_complete_or_watch(operation, ["key"])
    assert (operation.ends, purgatory.delayed) == (["completed", "expired"], 0)


async def test_a_timeout_begins_again(
    purgatory: Purgatory[str, Operation], timer: Timer, autojump_clock: MockClock
) -> None:
    operation = Operation(100)
    purgatory.try_complete_or_watch(operation, ["key"])
    await trio.sleep(0.06)
    purgatory.restart(operation, 100)
    assert (timer.size, purgatory.watched, purgatory.delayed) == (1, 1, 1)
    await trio.sleep(0.09)
    assert operation.ends == []
    await trio.sleep(0.02)
    assert operation.ends == ["completed", "expired"]
    assert (timer.size, purgatory.delayed) == (0, 0)


async def test_what_was_completed_elsewhere_is_purged(timer: Timer) -> None:
    """Rules B2.4, B2.5."""
    purgatory: Purgatory[str, Operation] = Purgatory(timer, purge_interval=10)
    for i in range(10):
        operation = Operation(1)
        purgatory.try_complete_or_watch(operation, [f"key{i}", "other"])
        operation.completable = True
        operation.try_complete()
    assert purgatory.watched == 20
    purgatory.try_complete_or_watch(Operation(), ["key"])
    assert purgatory.watched == 21
    last = Operation()
    purgatory.try_complete_or_watch(last, ["key"])
    last.force_complete()
    purgatory.try_complete_or_watch(Operation(), ["key"])
    assert purgatory.watched == 2


async def test_a_completion_may_check_the_same_key(purgatory: Purgatory[str, Operation]) -> None:
    first, second = Operation(), Operation()

    def completed() -> None:
        second.force_complete()
        assert purgatory.check_and_complete("key") == 0

    first.on_complete = completed  # type: ignore[method-assign]
    for operation in (first, second):
        assert not purgatory.try_complete_or_watch(operation, ["key"])
    first.completable = True
    assert purgatory.check_and_complete("key") == 1
    assert (second.ends, purgatory.watchers, purgatory.delayed) == (["completed"], {}, 0)


async def test_a_completion_may_let_another_wait_under_the_key(purgatory: Purgatory[str, Operation]) -> None:
    first, second, other = Operation(), Operation(), Operation()

    def completed() -> None:
        assert purgatory.cancel_for_key("key") == []
        assert not purgatory.try_complete_or_watch(second, ["key"])

    first.on_complete = completed  # type: ignore[method-assign]
    for operation, key in ((first, "key"), (other, "other")):
        assert not purgatory.try_complete_or_watch(operation, [key])
    first.completable = True
    assert [purgatory.check_and_complete("key") for _ in range(2)] == [1, 0]
    second.completable = True
    assert [purgatory.check_and_complete("key") for _ in range(2)] == [1, 0]
    assert (second.is_completed, purgatory.delayed, list(purgatory.watchers)) == (True, 1, ["other"])


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("end", ["at once", "later", "cancelled"])
async def test_an_operation_that_ended_leaves_no_garbage(end: str, purgatory: Purgatory[str, Operation]) -> None:
    """There is one for every produced batch: a cycle in each would keep the garbage collector at work."""
    operation = Operation()
    operation.completable = end == "at once"
    purgatory.try_complete_or_watch(operation, ["key"])
    operation.completable = True
    if end == "later":
        purgatory.check_and_complete("key")
    elif end == "cancelled":
        purgatory.cancel_for_key("key")
    left = weakref.ref(operation)
    del operation
    assert left() is None
