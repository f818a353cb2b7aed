"""What members of a group may see of commits, owners and generations.

Covers: harness/commit_history.py.
"""

from __future__ import annotations

import pytest

from kce.harness.commit_history import NOTHING, CommitHistory
from kce.wire.vocabulary import TopicPartition

TP = TopicPartition("t", 0)


class Found(list[tuple[str, str]]):
    def __call__(self, invariant: str, subject: object, text: str) -> None:
        self.append((invariant, text))


@pytest.fixture
def found() -> Found:
    return Found()


@pytest.fixture
def history(found: Found) -> CommitHistory:
    made = CommitHistory(found)
    for offset in range(9):
        made.read(TP, offset)
    return made


def commit(history: CommitHistory, offset: int, generation: int = 1) -> None:
    history.accepted(TP, history.begin(TP, offset, generation))


def test_the_last_commit_is_read(history: CommitHistory, found: Found) -> None:
    history.fetched(TP, NOTHING, history.now())
    commit(history, 3)
    commit(history, 5)
    history.fetched(TP, 5, history.now())
    assert (found, history.acknowledged) == ([], 2)
    history.fetched(TP, 3, history.now())
    history.fetched(TP, NOTHING, history.now())
    assert found == [
        ("offsets", "3 is committed of t-0, where [5] can be"), ("offsets", "-1 is committed of t-0, where [5] can be"),
    ]  # fmt: skip


def test_a_commit_without_an_answer_may_be_read_at_any_time(history: CommitHistory, found: Found) -> None:
    history.begin(TP, 2, 1)
    history.fetched(TP, NOTHING, history.now())
    history.fetched(TP, 2, history.now())
    commit(history, 3)
    history.fetched(TP, 2, history.now())
    history.fetched(TP, 3, history.now())
    assert found == []


def test_of_commits_at_the_same_time_each_may_be_the_last(history: CommitHistory, found: Found) -> None:
    first, second = history.begin(TP, 2, 1), history.begin(TP, 4, 2)
    history.accepted(TP, second)
    history.accepted(TP, first)
    history.fetched(TP, 2, history.now())
    history.fetched(TP, 4, history.now())
    assert found == []


def test_a_refused_commit_is_not_read(history: CommitHistory, found: Found) -> None:
    history.refused(TP, history.begin(TP, 2, 1))
    history.fetched(TP, 2, history.now())
    assert [invariant for invariant, _ in found] == ["offsets"]


def test_a_member_sees_what_was_committed_before_its_generation(history: CommitHistory, found: Found) -> None:
    commit(history, 2)
    history.assigning(2)
    commit(history, 4)
    for offset in (2, 4):
        history.fetched(TP, offset, history.assigned(2))
    assert found == []
    history.fetched(TP, NOTHING, history.assigned(2))
    assert [text for _, text in found] == ["-1 is committed of t-0, where [2, 4] can be"]


def test_what_is_committed_was_read(history: CommitHistory, found: Found) -> None:
    commit(history, 11)
    history.fetched(TP, 11, history.now())
    assert [text for _, text in found] == ["11 is committed of t-0, but no member has read the record at 9"]


def test_an_older_generation_is_not_heard(history: CommitHistory, found: Found) -> None:
    commit(history, 1, generation=1)
    before = history.begin(TP, 1, 1)
    history.assigning(2)
    commit(history, 1)  # nobody knows that it is written
    history.written(2)
    history.accepted(TP, before)  # it was under way
    assert found == []
    commit(history, 2, generation=1)
    assert [text for _, text in found] == ["a commit of generation 1 for t-0 was accepted after generation 2"]


def test_generations_begin_again_while_nothing_is_committed(history: CommitHistory, found: Found) -> None:
    history.written(3)
    commit(history, 1, generation=1)  # the group was forgotten
    commit(history, 2, generation=2)
    history.written(3)
    commit(history, 3, generation=3)
    assert found == []
    commit(history, 4, generation=2)
    assert [text for _, text in found] == ["a commit of generation 2 for t-0 was accepted after generation 3"]


def test_the_first_commit_that_is_accepted_is_of_a_generation_that_is_written(
    history: CommitHistory, found: Found
) -> None:
    commit(history, 1, generation=3)
    commit(history, 2, generation=2)
    assert [text for _, text in found] == ["a commit of generation 2 for t-0 was accepted after generation 3"]


def test_a_partition_has_one_owner_in_a_generation(history: CommitHistory, found: Found) -> None:
    first, again = history.assigning(1), history.assigning(1)
    assert first != again
    history.owns(first, "a", [TP])
    history.owns(first, "a", [TP])
    history.owns(again, "b", [TP])  # of a coordinator that has lost the first
    assert found == []
    history.owns(again, "a", [TP])
    assert found == [("assigned", "b and a both own t-0 in one generation")]
