"""Random sequences about the same logs are answered as real Kafka answers them, before and after a restart.

Covers: tests/interop/sequences.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.sequences import run

STEPS = 500


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "clean"), [(2, True), (3, False)], ids=["shut down", "killed"])
async def test_sequences_leave_the_same_logs(tmp_path: Path, seed: int, clean: bool) -> None:
    reports = await run(tmp_path, seed=seed, steps=STEPS, clean=clean)
    assert not reports, "\n".join(reports)
