"""Random requests, sensible ones and odd ones, are answered as real Kafka answers them.

Covers: tests/interop/random_requests.py, tests/interop/damage.py, tests/interop/twin.py, tests/interop/twins.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kce import wire
from tests.interop.random_requests import ADMINS, CLIENTS, CONTROLLERS, RESTRICTED
from tests.interop.twin import differences
from tests.interop.twins import SETTINGS, run, twins

STEPS = 500
TOPIC, BROKER = 2, 4
#: the source of what is in server.properties
STATIC = 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights", [CLIENTS, RESTRICTED, CONTROLLERS, ADMINS], ids=["clients", "with ACLs", "controllers", "administrators"]
)
async def test_random_requests_are_answered_alike(tmp_path: Path, weights: Mapping[str, int]) -> None:
    reports = await run(tmp_path, seed=1, steps=STEPS, weights=weights, restricted=weights is RESTRICTED)
    assert not reports, "\n".join(reports)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [CLIENTS, CONTROLLERS], ids=["clients", "controllers"])
async def test_damaged_requests_are_answered_alike(tmp_path: Path, weights: Mapping[str, int]) -> None:  # rule B1.35
    reports = await run(tmp_path, seed=5, steps=STEPS, weights=weights, damaged=True)
    assert not reports, "\n".join(reports)


def _with_tags(frame: bytes, at: int, tags: bytes) -> bytes:
    """``tags`` instead of none."""
    return frame[:at] + tags + frame[at:][1:]


@pytest.mark.slow
async def test_tagged_fields_of_another_version_close_the_connection(tmp_path: Path) -> None:  # rule B1.35
    of_partition = wire.FetchTopic(topic="t", partitions=(wire.FetchPartition(partition=0),))
    of_body, in_partition = -1, -5
    asked = [
        (wire.FetchRequest(), 14, of_body, b"\1\1\0", "closed"),
        (wire.FetchRequest(), 14, of_body, b"\1\2\0", ""),
        (wire.UpdateMetadataRequest(), 7, of_body, b"\1\0\1\5", "closed"),
        (wire.UpdateMetadataRequest(), 7, of_body, b"\1\1\1\5", ""),
        (wire.FetchRequest(topics=(of_partition,)), 12, in_partition, b"\1\0\0", "closed"),
        (wire.FetchRequest(topics=(of_partition,)), 12, in_partition, b"\1\1\0", ""),
    ]
    async with twins(tmp_path) as both:
        for request, version, at, tags, expected in asked:
            for twin in both:
                twin.damage = partial(_with_tags, at=at, tags=tags)
                answer = await twin.ask(request, version)
                assert answer == expected if expected else isinstance(answer, wire.Message), (twin.name, request, tags)


@pytest.mark.slow
async def test_whole_configurations_are_described_alike(tmp_path: Path) -> None:  # rules B7.25, B7.26
    """All settings of a topic and of a broker with their synonyms, but for what differs in the files of both."""
    resources = tuple(
        wire.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((TOPIC, "t1"), (BROKER, "1"))
    )
    request = wire.DescribeConfigsRequest(resources=resources, include_synonyms=True)
    found: list[dict[tuple[int, str], Any]] = []
    async with twins(tmp_path) as both:
        for twin in both:
            answer = await twin.ask(request, 4)
            assert isinstance(answer, wire.DescribeConfigsResponse)
            found.append(
                {
                    (result.resource_type, entry.name): twin.comparable(entry)
                    for result in answer.results
                    for entry in result.configs
                }
            )
    kafkas, ours = found
    assert kafkas.keys() == ours.keys()
    in_files = {key for entries in found for key, entry in entries.items() if entry["config_source"] == STATIC}
    own = {key for key in in_files if key[1] not in SETTINGS}
    assert {key: kafkas[key] for key in kafkas.keys() - own} == {key: ours[key] for key in ours.keys() - own}


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
