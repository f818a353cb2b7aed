"""What a node asks of the kernel's scheduler."""

from __future__ import annotations

import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kce.harness.world.scheduling import ask_for_short_slices
from tests.harness.scheduler import HAS_SLICES, attributes


@pytest.mark.skipif(not HAS_SLICES, reason="the scheduler has no slices that can be asked for")
def test_a_thread_asks_for_short_slices_and_for_nothing_else() -> None:
    def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        os.setpriority(os.PRIO_PROCESS, 0, 3)  # of this thread
        before = attributes()
        assert ask_for_short_slices()
        return before, attributes()

    with ThreadPoolExecutor(1) as thread:
        before, after = thread.submit(ask).result()
    assert before["nice"] == 3
    assert after == {**before, "slice": 100_000}


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("linux", "another")])
def test_elsewhere_nothing_is_asked_for(system: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert not ask_for_short_slices()
