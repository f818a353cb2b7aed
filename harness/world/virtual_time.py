"""Makes a Trio run deterministic: virtual time, and the order of tasks from a seed.

This is the only module that touches Trio's internals. Trio orders runnable tasks at random, by a generator of its own,
and has a switch for tests that makes the order depend on that generator alone. The clock is Trio's MockClock, which
jumps to the next deadline when every task is blocked. In a run that has another clock it replaces that clock: every
deadline is shifted, so that timeouts keep the time that they have left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio._core import _run


@contextmanager
def deterministic(seed: int) -> Iterator[None]:
    """Inside, the current run is deterministic, and time passes only while every task waits for it.

    Nothing in the run may wait for a thread, a process or a socket meanwhile: virtual time would run past it.
    """
    with _seeded_scheduling(seed), _virtual_clock():
        yield


@contextmanager
def _seeded_scheduling(seed: int) -> Iterator[None]:
    switch, state = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r.getstate()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = switch  # type: ignore[misc]
        _run._r.setstate(state)


@contextmanager
def _virtual_clock() -> Iterator[None]:
    import trio.testing  # it imports pytest where that is installed, which takes a node a third of its start

    runner = _run.GLOBAL_RUN_CONTEXT.runner
    real = runner.clock
    if isinstance(real, trio.testing.MockClock):
        yield
        return
    virtual = trio.testing.MockClock(autojump_threshold=0)
    _replace_clock(runner, virtual, autojump_threshold=0)
    try:
        yield
    finally:
        _replace_clock(runner, real, autojump_threshold=math.inf)


def _replace_clock(runner: _run.Runner, clock: trio.abc.Clock, *, autojump_threshold: float) -> None:
    difference = clock.current_time() - runner.clock.current_time()
    registered = [
        scope for deadline, _, scope in runner.deadlines._heap if scope._registered_deadline == deadline < math.inf
    ]
    runner.clock = clock
    runner.clock_autojump_threshold = autojump_threshold
    for scope in dict.fromkeys(registered):
        scope.deadline += difference
