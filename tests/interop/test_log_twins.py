"""Kafka's log layer and ours do the same, and leave the same files.

Covers: tests/interop/log_twins.py, tests/interop/log_rounds.py, tests/interop/log_damage.py,
tests/interop/log_layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.log_layers import KafkaLogs
from tests.interop.log_twins import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLogs]:
    with KafkaLogs(tmp_path_factory.mktemp("kafka") / "log") as running:
        yield running


@pytest.mark.parametrize("seed", range(1, 8))
async def test_logs_are_the_same(kafka: KafkaLogs, tmp_path: Path, seed: int) -> None:
    assert await run(kafka, tmp_path, seed=seed)


@pytest.mark.parametrize("seed", range(1, 7))
async def test_compacted_logs_are_the_same(kafka: KafkaLogs, tmp_path: Path, seed: int) -> None:
    assert await run(kafka, tmp_path, seed=seed, compact=True)
