"""Replicas move between log directories as in real Kafka.

Covers: tests/interop/directory_twins.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.directory_twins import run

pytestmark = pytest.mark.slow

STEPS = 200


async def test_moves_between_log_directories_are_told_of_alike(tmp_path: Path) -> None:  # rules B7.22, B7.23
    reports = await run(tmp_path, seed=2, steps=STEPS)
    assert not reports, "\n".join(reports)
