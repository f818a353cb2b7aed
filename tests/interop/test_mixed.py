"""Ten random steps on a cluster of our brokers and real Kafka's; `make interop` takes a hundred."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import mixed
from tests.interop.kafka_jars import RELEASES, VERSION

pytestmark = pytest.mark.slow
SEED, STEPS = 7, 10


async def test_no_record_is_lost_and_all_logs_are_the_same(zookeeper: str, tmp_path: Path) -> None:
    outcomes, records = await mixed.run(
        f"{zookeeper}/mixed", tmp_path, RELEASES[VERSION], seed=SEED, steps=STEPS, on_outcome=print
    )
    assert len(outcomes) == STEPS
    assert records > STEPS * mixed.RECORDS
