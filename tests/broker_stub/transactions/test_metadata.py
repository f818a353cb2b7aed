"""One transactional id (section 2 of the transaction rules)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kce.broker_stub.errors import Refused
from kce.broker_stub.transactions.metadata import IllegalTransition, TransactionMetadata, TransactionState, Values
from kce.wire import ErrorCode
from kce.wire.vocabulary import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
STATES = [s for s in TransactionState if s not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)]
EMPTY, ONGOING, PC, PA, CC, CA = STATES
LAST = 2**15 - 1


def metadata(state: TransactionState = EMPTY, epoch: int = 3, **more: object) -> TransactionMetadata:
    partitions = frozenset() if state.is_at_rest else frozenset({A})
    values = Values(
        producer_id=10, producer_epoch=epoch, timeout_ms=1000, last_update_ms=5, state=state, partitions=partitions,
        start_ms=-1 if state is EMPTY else 4,
    )  # fmt: skip
    return TransactionMetadata("t", values._replace(**more))  # type: ignore[arg-type]


def no_ids() -> Iterator[int]:
    raise AssertionError("no new producer id is needed")
    yield


#: rule T2.3: from -> to
LEGAL = {
    EMPTY: {"init", "add", "dead"},
    ONGOING: {"add", "commit", "abort", "fence"},
    PC: {"complete"},
    PA: {"complete"},
    CC: {"init", "add", "dead"},
    CA: {"init", "add", "dead"},
}
TRANSITIONS = {
    "add": lambda m: m.prepare_add(frozenset({B}), 9),
    "commit": lambda m: m.prepare_end(commit=True, now_ms=9),
    "abort": lambda m: m.prepare_end(commit=False, now_ms=9),
    "complete": lambda m: m.prepare_complete(9),
    "dead": lambda m: m.prepare_dead(),
    "fence": lambda m: m.prepare_fence(),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_legal_and_illegal_transitions(state: TransactionState, name: str) -> None:  # rules T2.3, T2.4
    m = metadata(state)
    if name in LEGAL[state]:
        new = TRANSITIONS[name](m)
        assert (m.pending, m.values.state) == (new.state, state), "nothing is visible before it is in the log"
        for other in TRANSITIONS.values():
            with pytest.raises(IllegalTransition):
                other(m)
    else:
        with pytest.raises(IllegalTransition):
            TRANSITIONS[name](m)
        assert m.pending is None


def test_a_life() -> None:  # rules T2.7 to T2.10
    m = metadata(EMPTY, epoch=-1)
    m.complete(m.prepare_init(2000, None, no_ids(), 10))
    assert m.values == metadata().values._replace(producer_epoch=0, timeout_ms=2000, last_update_ms=10,
                               last_producer_id=10)  # fmt: skip
    m.complete(m.prepare_add(frozenset({A}), 20))
    m.complete(m.prepare_add(frozenset({B}), 30))
    assert (m.values.start_ms, m.values.last_update_ms, m.values.partitions) == (20, 30, {A, B})
    m.complete(m.prepare_end(commit=True, now_ms=40))
    done = m.prepare_complete(50)
    assert (m.values.state, m.pending, m.values.partitions) == (PC, CC, {A, B})
    m.marker_written(A)
    assert m.values.partitions == {B}
    m.complete(done)
    assert (m.values.state, m.pending, m.values.partitions, m.values.start_ms) == (CC, None, frozenset(), 20)
    m.complete(m.prepare_init(2000, None, no_ids(), 60))
    assert (m.values.producer_epoch, m.values.start_ms) == (1, 20)  # rule T2.9


@pytest.mark.parametrize(
    ("epoch", "last", "expected", "result"),
    [
        (3, -1, None, (4, -1)),
        (3, 2, (10, 3), (4, 3)),
        (3, 2, (10, 2), (3, 2)),
        (3, -1, (10, 2), ErrorCode.PRODUCER_FENCED),
        (3, 2, (10, 4), ErrorCode.PRODUCER_FENCED),
        (3, 2, (11, 3), ErrorCode.PRODUCER_FENCED),
        (-1, -1, (11, 7), (0, -1)),
        (LAST - 2, -1, None, (LAST - 1, -1)),
    ],
)
def test_the_next_epoch(
    epoch: int, last: int, expected: tuple[int, int] | None, result: object
) -> None:  # rules T4.5, T4.6
    m = metadata(CA, epoch=epoch, last_producer_epoch=last)
    if isinstance(result, ErrorCode):
        with pytest.raises(Refused) as refused:
            m.prepare_init(1, expected, no_ids(), 9)
        assert refused.value.code is result
        assert m.pending is None
    else:
        new = m.prepare_init(1, expected, no_ids(), 9)
        assert (new.producer_epoch, new.last_producer_epoch) == result


def test_an_exhausted_epoch_rotates_the_producer_id() -> None:  # rules T4.13, T4.16
    m = metadata(CC, epoch=LAST - 1)
    m.complete(m.prepare_init(1, (10, LAST - 1), iter([77]), 9))
    v = m.values
    assert (v.producer_id, v.producer_epoch, v.last_producer_id, v.last_producer_epoch) == (77, 0, 10, LAST - 1)
    m.complete(m.prepare_init(1, (10, LAST - 1), no_ids(), 9))
    assert (m.values.producer_id, m.values.producer_epoch) == (77, 0)
    with pytest.raises(Refused):  # once only
        m.prepare_init(1, (10, LAST - 1), no_ids(), 9)


def test_after_the_last_fence() -> None:  # rules T4.14, T4.15
    m = metadata(ONGOING, epoch=LAST - 1)
    m.complete(m.prepare_end(commit=False, now_ms=9, fence=m.prepare_fence().producer_epoch))
    assert m.values.producer_epoch == LAST
    m.complete(m.prepare_complete(9))
    with pytest.raises(IllegalTransition):
        m.prepare_init(1, (10, LAST - 1), no_ids(), 9)
    assert m.prepare_init(1, None, iter([77]), 9).producer_id == 77
    with pytest.raises(IllegalTransition):
        metadata(ONGOING, epoch=LAST).prepare_fence()


def test_a_fence_that_failed_is_repeated_with_its_epoch() -> None:  # rule T4.12
    m = metadata(ONGOING)
    for _ in range(3):
        fence = m.prepare_fence().producer_epoch
        end = m.prepare_end(commit=False, now_ms=9, fence=fence)
        assert (fence, m.values.producer_epoch, end.producer_epoch) == (4, 4, 4)
        m.pending, m.fence_failed = None, True  # its append failed
    m.complete(m.prepare_end(commit=False, now_ms=9))
    m.prepare_complete(9)
    assert not m.fence_failed


@pytest.mark.parametrize("state", [PC, PA])
def test_markers_must_be_written_first(state: TransactionState) -> None:  # rules T2.6, T4.8
    with pytest.raises(Refused) as refused:
        metadata(state).prepare_init(1, None, no_ids(), 9)
    assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
    with pytest.raises(IllegalTransition):
        metadata(state.completed).marker_written(A)


def test_what_does_not_follow() -> None:  # rule T2.7
    changes: list[tuple[TransactionState, str, dict[str, object]]] = [
        (EMPTY, "add", {"producer_id": 11}), (EMPTY, "add", {"producer_epoch": 4}), (EMPTY, "add", {"timeout_ms": 1}),
        (ONGOING, "add", {"partitions": frozenset({B})}), (ONGOING, "commit", {"partitions": frozenset({A, B})}),
        (ONGOING, "abort", {"start_ms": 5}), (PC, "complete", {"start_ms": -1}), (PC, "complete", {"state": CA}),
        (EMPTY, "dead", {}), (ONGOING, "fence", {}),
    ]  # fmt: skip
    for state, name, changed in changes:
        m = metadata(state)
        new = TRANSITIONS[name](m)._replace(**changed)  # type: ignore[arg-type]
        with pytest.raises(IllegalTransition):
            m.complete(new)
    m = metadata(EMPTY)
    new = m.prepare_init(1, None, no_ids(), 9)
    for wrong in ({"producer_epoch": 5}, {"partitions": frozenset({A})}, {"start_ms": 3}):
        with pytest.raises(IllegalTransition):
            m.complete(new._replace(**wrong))  # type: ignore[arg-type]
    with pytest.raises(IllegalTransition):  # nothing is pending
        metadata().complete(metadata().values)


def test_time() -> None:  # rules T8.1, T8.8
    m = metadata(ONGOING)
    assert [m.is_timed_out(now) for now in (1004, 1005)] == [False, True]
    assert not m.is_expired(2**40, 0)
    m.prepare_fence()
    assert not m.is_timed_out(1005)
    for state in (EMPTY, CC, CA):
        m = metadata(state)
        assert not m.is_timed_out(2**40)
        assert [m.is_expired(now, 100) for now in (104, 105)] == [False, True]
        m.prepare_dead()
        assert not m.is_expired(105, 100)


#: of each transition from a state: what the id will be
MADE = {
    "init": (EMPTY, lambda m: m.prepare_init(2000, (10, 3), no_ids(), 9),
             {"timeout_ms": 2000, "producer_epoch": 4, "last_producer_epoch": 3, "partitions": frozenset(),
              "start_ms": -1, "last_update_ms": 9}),
    "rotate": (EMPTY, lambda m: m.prepare_init(2000, None, iter([77]), 9),
               {"timeout_ms": 2000, "producer_id": 77, "producer_epoch": 0, "last_producer_epoch": -1,
                "partitions": frozenset(), "start_ms": -1, "last_update_ms": 9}),
    "fence": (TransactionState.PREPARE_EPOCH_FENCE, TRANSITIONS["fence"],
              {"producer_epoch": 4, "last_producer_epoch": -1}),
    "add": (ONGOING, TRANSITIONS["add"], {"partitions": frozenset({A, B}), "start_ms": 4, "last_update_ms": 9}),
    "begin": (ONGOING, TRANSITIONS["add"], {"partitions": frozenset({A, B}), "start_ms": 9, "last_update_ms": 9}),
    "commit": (PC, TRANSITIONS["commit"], {"last_update_ms": 9}),
    "abort": (PA, TRANSITIONS["abort"], {"last_update_ms": 9}),
    "complete": (CC, TRANSITIONS["complete"], {"partitions": frozenset(), "last_update_ms": 9}),
    "dead": (TransactionState.DEAD, TRANSITIONS["dead"], {"partitions": frozenset()}),
}  # fmt: skip
FROM = {"init": CC, "rotate": CA, "begin": CA, "complete": PC, "dead": CC}


@pytest.mark.parametrize("name", MADE)
def test_all_that_a_transition_changes(name: str) -> None:  # rules T2.5, T2.7, T2.9, T2.10
    state, prepare, changed = MADE[name]
    known = {"last_producer_id": 8, "last_producer_epoch": 2, "partitions": frozenset({A}), "start_ms": 4}
    m = metadata(FROM.get(name, ONGOING), LAST - 1 if name == "rotate" else 3, **known)
    old = m.values
    new = prepare(m)
    assert new == old._replace(state=state, last_producer_id=10, **changed)
    assert (m.values, m.pending) == (old, state)
    if state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        return
    m.complete(new)
    kept = {"start_ms": 4} if state is EMPTY else {"last_producer_id": 8, "last_producer_epoch": 2}
    assert (m.values, m.pending) == (new._replace(**kept), None)


def test_which_producer_may_follow() -> None:  # rule T2.7
    for change, follows in (
        ({}, True), ({"producer_epoch": 3}, True), ({"producer_epoch": 0}, False), ({"producer_epoch": 2}, False),
        ({"producer_epoch": 0, "producer_id": 11}, True), ({"producer_epoch": 5, "producer_id": 11}, False),
    ):  # fmt: skip
        m = metadata(CC)
        new = m.prepare_init(1, None, no_ids(), 9)._replace(**change)  # type: ignore[arg-type]
        if follows:
            m.complete(new)
        else:
            with pytest.raises(IllegalTransition):
                m.complete(new)
            assert m.pending is EMPTY


def test_a_producer_that_there_is_not() -> None:
    m = metadata(EMPTY, epoch=-1)
    for change in (m.prepare_dead, lambda: m.prepare_add(frozenset({A}), 9)):
        m.values = m.values._replace(producer_id=-1 if change == m.prepare_dead else 10)
        with pytest.raises(IllegalTransition, match="cannot have producer"):
            change()
        assert m.pending is None
    m.values = m.values._replace(producer_id=0)
    assert m.prepare_dead().state is TransactionState.DEAD  # without an epoch, too
    assert metadata(EMPTY, epoch=0, producer_id=0).prepare_add(frozenset({A}), 9).producer_epoch == 0


def test_the_last_producer_stays_when_a_transaction_is_completed() -> None:  # rule T2.7
    m = metadata(PC, 3, last_producer_id=8, last_producer_epoch=2)
    new = MADE["complete"][1](m)
    m.complete(new._replace(last_producer_id=9, last_producer_epoch=1))
    assert (m.values.last_producer_id, m.values.last_producer_epoch) == (8, 2)
