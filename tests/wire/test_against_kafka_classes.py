"""Kafka's own generated classes decode every message of every version, and encode it to the same bytes."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kce.wire import consumer_protocol
from kce.wire.registry import BY_KEY
from tests.interop.kafka_java import kafka_java
from tests.wire import seeded
from tests.wire.frames import encode, header_bytes
from tests.wire.strategies import MESSAGES

pytestmark = pytest.mark.slow

EACH = 12


def bodies() -> Iterator[tuple[str, int, bytes]]:
    """(name, version, what we wrote) of seeded messages, and of one in which every field is at its default."""
    for cls, version in MESSAGES:
        chance = random.Random(f"{cls.__name__} {version}")
        flexible = version in BY_KEY[cls.__api_key__].flexible
        some = [seeded.message(chance, cls, version, unknown=flexible and i % 2 == 1) for i in range(EACH)]
        for message in (cls(), *some):
            frame = encode(message, version)
            yield cls.__name__, version, frame[header_bytes(cls, version) :]
    for name, cls in (
        ("subscription", consumer_protocol.ConsumerProtocolSubscription),
        ("assignment", consumer_protocol.ConsumerProtocolAssignment),
    ):
        for version in range(consumer_protocol.VERSIONS.last + 1):
            chance = random.Random(f"{name} {version}")
            for _ in range(EACH):
                message = seeded.message(chance, cls, version)
                yield name, version, consumer_protocol.encode_consumer_protocol(message, version)


@pytest.fixture(scope="module")
def responses() -> tuple[dict[tuple[int, int], tuple[int, int]], list[str]]:
    """({(API key, version): header versions of request and response}, the answer to each of ``bodies``), of one JVM."""
    lines = [f"{name} {version} {body.hex()}" for name, version, body in bodies()]
    ran = subprocess.run(
        [*kafka_java(), str(Path(__file__).parent / "java" / "Messages.java")],
        input="\n".join(lines), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    answers = ran.stdout.splitlines()
    headers = {}
    for line in (line for line in answers if line.startswith("H ")):
        key, version, request, response = map(int, line.split()[1:])
        headers[key, version] = request, response
    return headers, [line for line in answers if not line.startswith("H ")]


def test_kafka_reencodes_our_bytes(
    responses: tuple[dict[tuple[int, int], tuple[int, int]], list[str]],
) -> None:
    wrong = [
        (name, version, body.hex(), answer)
        for (name, version, body), answer in zip(bodies(), responses[1], strict=True)
        if answer != body.hex()
    ]
    assert wrong == []
    assert len({(name, version) for name, version, _ in bodies()}) == len(MESSAGES) + 8


def test_header_versions_match_kafka(responses: tuple[dict[tuple[int, int], tuple[int, int]], list[str]]) -> None:
    """Rules 13.3 and 13.4, of every API that Kafka 3.9 knows."""
    headers = responses[0]
    ours = {
        (api.key, version): (api.request_header_version(version), api.response_header_version(version))
        for api in BY_KEY.values()
        for version in range(api.versions.first, api.versions.last + 1)
    }
    assert ours == {key: headers[key] for key in ours}
    assert {key for key, _ in headers} == set(BY_KEY)
