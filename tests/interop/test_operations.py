"""Real Kafka brokers obey our controller: the short form of ``make interop``."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.interop.operations import SHORT, peers, run_all
from tests.interop.refusals import EXPECTED, refusals

pytestmark = pytest.mark.slow


async def test_real_brokers_obey_us(zookeeper: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with peers(f"{zookeeper}/obey", tmp_path, ours=True) as p:
        try:
            await run_all(p, SHORT)
        finally:
            for o in p.outcomes:
                print(f"{o.operation}: {o.seen} ({o.seconds:.1f} s)")
    assert [o.operation for o in p.outcomes] == [name for name, _ in SHORT]
    logs = [broker.log for broker in p.brokers.values()]
    assert refusals(logs).keys() <= EXPECTED.keys()
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
