"""A short form of `make interop`'s faults while groups read and transactions copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import chaos

STEPS = 25


def test_a_seed_gives_the_same_faults_again() -> None:
    assert chaos.schedule(3, STEPS) == chaos.schedule(3, STEPS) != chaos.schedule(4, STEPS)
    assert {step.fault for step in chaos.schedule(3, STEPS)} == set(chaos.FAULTS)


@pytest.mark.slow
def test_each_record_is_copied_once_whatever_fails(tmp_path: Path) -> None:
    assert chaos.run(tmp_path, seed=9, steps=4) == 4 * chaos.EACH
