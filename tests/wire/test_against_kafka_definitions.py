"""Our tables equal Kafka's definitions, and any change to them is detected.

Covers: wire/registry.py, wire/schema.py, wire/messages/*.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kce import wire
from kce.wire import primitives
from kce.wire.primitives import Primitive
from kce.wire.registry import API_KEYS
from kce.wire.schema import Field, Message, Struct, Versions
from tests.interop.kafka_jars import kafka_jars
from tests.wire.kafka_definitions import (
    VERSION,
    Definition,
    differences,
    kafka_definition,
    kafka_json,
    our_definition,
    registry_differences,
)
from tests.wire.strategies import MESSAGES

pytestmark = pytest.mark.slow

CLASSES = list(dict.fromkeys(cls for cls, _ in MESSAGES))


@pytest.fixture(scope="module")
def kafka() -> dict[str, dict[str, Any]]:
    return kafka_json(kafka_jars(VERSION) / f"kafka-clients-{VERSION}.jar")


@pytest.fixture(scope="module")
def theirs(kafka: dict[str, dict[str, Any]]) -> dict[str, Definition]:
    return {cls.__name__: kafka_definition(kafka[cls.__name__]) for cls in CLASSES}


def test_every_zookeeper_broker_api_is_defined(kafka: dict[str, dict[str, Any]]) -> None:
    listed = {m["name"] for m in kafka.values() if m["type"] == "request" and "zkBroker" in m["listeners"]}
    assert len(listed) == 62
    assert {cls.__name__ for cls in CLASSES} == listed | {name.removesuffix("Request") + "Response" for name in listed}


def test_api_table_matches_kafka(kafka: dict[str, dict[str, Any]]) -> None:
    assert list(registry_differences(kafka)) == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_match_kafka(cls: type[Message], theirs: dict[str, Definition]) -> None:
    assert list(differences(our_definition(cls), theirs[cls.__name__])) == []


@pytest.mark.parametrize("cls", [wire.ConsumerProtocolSubscription, wire.ConsumerProtocolAssignment])
def test_consumer_protocol_matches_kafka(cls: type[Struct], kafka: dict[str, dict[str, Any]]) -> None:
    assert list(differences(our_definition(cls), kafka_definition(kafka[cls.__name__]))) == []


# a change is noticed

KINDS = (
    "name", "type", "array", "versions", "default", "nullable", "ignorable", "tag", "tagged", "flexible",
    "field missing", "field added", "fields swapped", "message versions", "message flexible", "api key",
)  # fmt: skip
PRIMITIVES = [p for p in vars(primitives).values() if isinstance(p, Primitive)]


def structs_of(cls: type[Struct]) -> Iterator[type[Struct]]:
    """``cls`` and the structures inside it, each once."""
    seen = [cls]
    for found in seen:
        seen += [f.type for f in found.__fields__ if not isinstance(f.type, Primitive) and f.type not in seen]
    return iter(seen)


def other_versions(versions: Versions, chance: random.Random) -> Versions:
    if versions.last < versions.first:
        return Versions.parse("0+")
    first, last = versions
    changed = [Versions(first + 1, max(first + 1, last)), Versions(first, 32767 if last < 32767 else first + 3)]
    return chance.choice([*changed, Versions(first - 1, last)] if first else changed)


def other_default(f: Field, chance: random.Random) -> Any:
    match f.default:
        case bool():
            return not f.default
        case int() | float():
            return f.default + chance.choice([1, -1])
        case None:
            return f.type.zero if isinstance(f.type, Primitive) and f.type.zero is not None else ()
        case _:
            return None


def changed_field(f: Field, kind: str, chance: random.Random) -> Field:
    match kind:
        case "name":
            return f._replace(name=f.name + chance.choice("xyz"))
        case "type":
            return f._replace(type=chance.choice([p for p in PRIMITIVES if p is not f.type]))
        case "array":
            return f._replace(array=not f.array)
        case "default":
            return f._replace(default=other_default(f, chance))
        case "ignorable":
            return f._replace(ignorable=not f.ignorable)
        case "tag":
            return f._replace(tag=0 if f.tag is None else f.tag + 1)
        case "flexible":
            return f._replace(flexible=Versions.parse("none") if f.flexible is None else None)
        case _:
            return f._replace(**{kind: other_versions(getattr(f, kind), chance)})


@contextmanager
def changed(cls: type[Message], kind: str, chance: random.Random) -> Iterator[str]:
    """One change of that kind somewhere in the message; undone at the end. Yields what was done."""
    struct = chance.choice(list(structs_of(cls)))
    fields = struct.__fields__
    i = chance.randrange(len(fields)) if fields else 0
    change = f"{kind} of {struct.__name__}.{fields[i].name if fields else ''}"
    owner: Any = struct
    attribute, value = "__fields__", fields
    match kind:
        case "message versions":
            owner, attribute, value = cls, "__versions__", other_versions(cls.__versions__, chance)
        case "message flexible":
            owner, attribute, value = cls, "__flexible__", other_versions(cls.__flexible__, chance)
        case "api key":
            owner, attribute, value = cls, "__api_key__", cls.__api_key__ + 1
        case "field missing":
            value = fields[:i] + fields[i + 1 :]
        case "field added":
            value = (*fields[:i], fields[i]._replace(name="surplus"), *fields[i:])
        case "fields swapped":
            j = (i + 1) % len(fields)
            order = list(fields)
            order[i], order[j] = order[j], order[i]
            value = tuple(order)
        case _:
            value = (*fields[:i], changed_field(fields[i], kind, chance), *fields[i + 1 :])
    before = getattr(owner, attribute)
    setattr(owner, attribute, value)
    try:
        yield change
    finally:
        setattr(owner, attribute, before)


@pytest.mark.parametrize("seed", range(64))
def test_changed_table_is_detected(seed: int, theirs: dict[str, Definition]) -> None:
    """Each kind of change four times, anywhere in the 124 messages: exactly the changed messages are reported."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    least = 2 if kind == "fields swapped" else 1
    cls = chance.choice([cls for cls in CLASSES if all(len(s.__fields__) >= least for s in structs_of(cls))])
    with changed(cls, kind, chance) as change:
        noticed = {
            other.__name__: found
            for other in CLASSES
            if (found := list(differences(our_definition(other), theirs[other.__name__])))
        }
    assert list(noticed) == [cls.__name__], change
    assert list(differences(our_definition(cls), theirs[cls.__name__])) == []


def test_changed_api_table_is_detected(kafka: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    for attribute in ("name", "versions", "flexible", "zk_broker"):
        known = chance.choice(API_KEYS)
        value = getattr(known, attribute)
        other = {"name": f"{value}s", "zk_broker": not value}.get(attribute) if isinstance(value, (str, bool)) else None
        with monkeypatch.context() as patch:
            patch.setattr(known, attribute, other_versions(value, chance) if other is None else other)
            assert [text.partition(":")[0] for text in registry_differences(kafka)] == [known.name]


def test_changes_cover_every_property() -> None:
    """No property of a Field that no seeded change would touch."""
    assert set(Field._fields) <= set(KINDS)
    assert Counter(KINDS[seed % len(KINDS)] for seed in range(64)).most_common()[-1][1] == 4
