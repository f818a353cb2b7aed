"""Random requests, sensible ones and odd ones, are answered as real Kafka answers them.

Covers: tests/interop/random_requests.py, tests/interop/twins.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop.random_requests import CLIENTS, CONTROLLERS, RESTRICTED
from tests.interop.twins import differences, run

STEPS = 500


@pytest.mark.slow
@pytest.mark.parametrize("weights", [CLIENTS, RESTRICTED, CONTROLLERS], ids=["clients", "with ACLs", "controllers"])
async def test_random_requests_are_answered_alike(tmp_path: Path, weights: Mapping[str, int]) -> None:
    reports = await run(tmp_path, seed=1, steps=STEPS, weights=weights, restricted=weights is RESTRICTED)
    assert not reports, "\n".join(reports)


def test_differences_are_found() -> None:
    kafkas = {"error_code": 0, "topics": [{"name": "a", "partitions": [1, 2]}, {"name": "b", "partitions": []}]}
    assert list(differences(kafkas, kafkas)) == []
    ours = {"error_code": 3, "topics": [{"name": "a", "partitions": [1]}, {"name": "c", "partitions": []}]}
    assert list(differences(kafkas, ours)) == [
        ".error_code: Kafka's 0, ours 3",
        ".topics[0].partitions: Kafka's [1, 2], ours [1]",
        ".topics[1].name: Kafka's b, ours c",
    ]
    assert list(differences(kafkas, "closed")) == [f"answer: Kafka's {kafkas}, ours closed"]
