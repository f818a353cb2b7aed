"""The tables of settings are Kafka's own: names, types, defaults, allowed values, changes at run time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from kce.wire.configuration import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigDef
from kce.wire.configuration.definitions import LARGEST, Anything, Matching, Numbers, OneOf
from tests.interop.kafka_java import kafka_java

pytestmark = pytest.mark.slow

#: settings that Kafka reads without a definition: the authorizer's, and quotas that are only in ZooKeeper
UNDEFINED = {
    "allow.everyone.if.no.acl.found", "super.users", "follower.replication.throttled.rate",
    "leader.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second",
}  # fmt: skip
#: settings that Kafka checks elsewhere or not at all
NARROWER = {
    "authorizer.class.name",
    "broker.id", "connections.max.idle.ms", "controlled.shutdown.max.retries", "controlled.shutdown.retry.backoff.ms",
    "controller.socket.timeout.ms", "default.replication.factor", "leader.imbalance.per.broker.percentage",
    "log.flush.interval.ms", "log.flush.scheduler.interval.ms", "log.roll.jitter.ms", "log.roll.ms",
    "node.id",
    "password.encoder.cipher.algorithm", "password.encoder.key.length", "password.encoder.keyfactory.algorithm",
    "replica.fetch.wait.max.ms", "replica.lag.time.max.ms", "replica.selector.class", "request.timeout.ms",
    "ssl.enabled.protocols", "ssl.protocol",
    "zookeeper.clientCnxnSocket", "zookeeper.connection.timeout.ms", "zookeeper.session.timeout.ms",
}  # fmt: skip
#: Kafka's validators that the tables omit: versions, which `MetadataVersion.parse` checks, and non-empty texts
WIDER = re.compile(r"\[0\.8\.0, .*|non-(null|empty) (string|list)")


class Definition(NamedTuple):
    type: str
    default: str | None
    allowed: str
    dynamic: str
    is_internal: bool


@pytest.fixture(scope="module")
def kafka() -> dict[tuple[str, str], Definition]:
    ran = subprocess.run(
        [*kafka_java(), str(Path(__file__).parent / "java" / "Configs.java")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = {}
    for line in ran.stdout.splitlines():
        kind, name, type_, default, validator, dynamic, internal = line.split("\t")
        allowed = "" if validator == "null" or WIDER.fullmatch(validator) else validator
        default = None if default == "null" else default
        found[kind, name] = Definition(type_, default, allowed, dynamic, internal == "true")
    return found


def as_kafka_writes_it(definition: ConfigDef) -> str:
    """The allowed values as Kafka's validators print them."""
    allowed = definition.allowed
    if isinstance(allowed, Anything):
        return ""
    if isinstance(allowed, OneOf):
        return f"[{', '.join(allowed.values)}]"
    if isinstance(allowed, Matching):
        return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
    assert isinstance(allowed, Numbers)
    most = LARGEST.get(definition.type)
    if most is not None and allowed.ranges == ((-most - 1, most),):
        return ""
    ranges = [f"[{low},...]" if high == most else f"[{low},...,{high}]" for low, high in allowed.ranges if low != high]
    return " or ".join([*ranges, *(str(low) for low, high in allowed.ranges if low == high)])


def test_the_names_are_kafkas(kafka: dict[tuple[str, str], Definition]) -> None:
    ours = {("broker", name) for name in BROKER_CONFIGS if not name.startswith("kce.") and name not in UNDEFINED}
    assert ours | {("topic", name) for name in TOPIC_CONFIGS} == kafka.keys()


def test_types_defaults_and_changes_are_kafkas(kafka: dict[tuple[str, str], Definition]) -> None:
    for name, definition in BROKER_CONFIGS.items():
        theirs = kafka.get(("broker", name))
        if theirs is not None:
            assert (definition.type.name, definition.default) == theirs[:2], name
            assert definition.dynamic.value == theirs.dynamic, name
    for name, topic_definition in TOPIC_CONFIGS.items():
        assert (topic_definition.type.name, topic_definition.default) == kafka["topic", name][:2], name


def test_what_is_listed_is_what_kafka_lists(kafka: dict[tuple[str, str], Definition]) -> None:  # rule B7.25
    listed = {("broker", name) for name, definition in BROKER_CONFIGS.items() if definition.described}
    assert listed == {key for key, theirs in kafka.items() if key[0] == "broker" and not theirs.is_internal}


def test_allowed_values_are_kafkas(kafka: dict[tuple[str, str], Definition]) -> None:
    for kind, definitions in (("broker", BROKER_CONFIGS), ("topic", TOPIC_CONFIGS)):
        for name, definition in definitions.items():
            theirs = kafka.get((kind, name))
            if theirs is None or name in NARROWER:
                continue
            wanted = theirs.allowed.removeprefix("(case insensitive) ")
            if wanted != theirs.allowed:
                wanted = wanted.lower()
            if wanted.startswith("The default value of -1"):
                wanted = "[1,...] or -1"
            assert as_kafka_writes_it(definition) == wanted, name
