"""Followers ask, truncate and keep what real Kafka's do.

Covers: tests/interop/follower_twins.py, tests/interop/scripted_leaders.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.follower_twins import run


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["3.9", "2.6"])
async def test_followers_do_the_same(tmp_path: Path, protocol: str) -> None:  # rules B5.7 to B5.29, B5.40
    reports = await run(tmp_path, seed=1, steps=8, protocol=protocol)
    assert not reports, "\n".join(reports)
