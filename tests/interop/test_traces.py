"""Our controller and Kafka's send and write the same: the short form of the trace diff in ``make interop``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.trace_scripts import SHORT
from tests.interop.traces import traces_of_both

pytestmark = pytest.mark.slow


async def test_the_same_script_gives_the_same_trace(zookeeper: str, tmp_path: Path) -> None:
    found = await traces_of_both(f"{zookeeper}/traces", tmp_path, SHORT)
    assert [str(difference) for difference in found.differences] == []
    assert found.steps == len(SHORT) + 1
    assert found.identical == found.requests > 200
    assert found.identical_znodes == found.znodes > 400
    assert found.identical_answers == found.answers > 5
