"""Fetch sessions live as in real Kafka.

Covers: tests/interop/session_twins.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.session_twins import run

pytestmark = pytest.mark.slow

STEPS = 500


async def test_fetch_sessions_are_answered_alike(tmp_path: Path) -> None:  # rules B2.18, B4.5, B4.24 to B4.30
    reports = await run(tmp_path, seed=1, steps=STEPS)
    assert not reports, "\n".join(reports)
