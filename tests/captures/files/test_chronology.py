"""Packets out of order in time, and clocks that are set back."""

from __future__ import annotations

import random

import pytest

from kce.captures.files.chronology import LOOKAHEAD, MAX_LATE, MAX_WRONG, StepsBack, chronological


def sort(times, lookahead=LOOKAHEAD):
    return list(chronological(times, lambda time: time, lookahead))


@pytest.mark.parametrize("places", [1, 1000, LOOKAHEAD - 1])
def test_a_displaced_item_returns_to_its_place(places):
    times = list(range(3 * LOOKAHEAD))
    times.insert(100 + places, times.pop(100))
    assert sort(times) == list(range(3 * LOOKAHEAD))


def test_items_of_one_time_keep_their_order():
    items = [(time // 3, index) for index, time in enumerate(range(100))]
    random.Random(1).shuffle(items)
    found = list(chronological(items, lambda item: item[0]))
    assert [time for time, _ in found] == sorted(time for time, _ in items)
    of_one = [item for item in items if item[0] == 7]
    assert [item for item in found if item[0] == 7] == of_one


@pytest.mark.parametrize("before", [300, 5 * LOOKAHEAD])
def test_nothing_moves_across_a_clock_that_is_set_back(before):
    times = [*range(10_000, 10_000 + before), *range(MAX_LATE + 1), *range(9_000, 9_100)]
    assert sort(times) == times


def test_each_step_is_told_once_with_the_first():
    times = [*range(100_000, 105_000), *range(5_000), *range(300)]
    steps = StepsBack()
    list(chronological([time * 10**9 for time in times], lambda time: time, steps=steps))
    (note,) = steps.notes("late.pcap")
    assert note.startswith("late.pcap: time goes back 2 times, first by 104,999.000 s at 1970-01-02T05:09:59Z")
    assert StepsBack().notes("late.pcap") == []


@pytest.mark.parametrize(("wrong", "is_told"), [(1, False), (MAX_WRONG, False), (MAX_WRONG + 1, True)])
def test_few_packets_with_a_wrong_time_are_no_clock_that_was_set_back(wrong, is_told):
    steps = StepsBack()
    times = [*range(1_000), *range(10**9, 10**9 + wrong), *range(1_000, 2_000)]
    list(chronological(times, lambda time: time, steps=steps))
    assert bool(steps.notes("damaged.pcap")) == is_told


def test_few_items_that_are_late_are_no_step():
    times = [*range(10_000, 10_300), *range(MAX_LATE)]
    assert sort(times) == sorted(times)


def test_nothing_at_all():
    assert sort([]) == []


def test_what_is_further_away_stays_behind():
    times = list(range(100))
    times.insert(90, times.pop(10))
    found = sort(times, lookahead=20)
    assert sorted(found) == list(range(100))
    assert found != sorted(found)
