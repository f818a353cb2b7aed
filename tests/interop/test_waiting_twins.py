"""Requests that wait are answered by the same, and with the same, as in real Kafka.

Covers: tests/interop/waiting_twins.py, tests/interop/waiting_twin.py, tests/interop/waiting_script.py,
tests/interop/fetching.py, tests/interop/played_controller.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.waiting_twins import run

pytestmark = pytest.mark.slow

STEPS = 150


async def test_requests_that_wait_are_answered_alike(tmp_path: Path) -> None:  # rules B2.12 to B2.26, 2f
    reports = await run(tmp_path, seed=2, steps=STEPS)
    assert not reports, "\n".join(reports)
