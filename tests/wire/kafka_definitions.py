"""Compares Kafka's own message definitions, from its jar, with our tables: every property of every field.

Both are converted to a ``Definition``; ``differences`` lists what differs, by message and field path.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kce.wire import consumer_protocol
from kce.wire.primitives import Primitive
from kce.wire.registry import API_KEYS
from kce.wire.schema import Field, Message, Struct

VERSION = "3.9.1"


class Definition(NamedTuple):
    """One field, or a message as the field that holds everything; ``about`` are its properties, as Kafka writes them.

    Structures are named without the name of their message, which in Kafka and here sometimes stands before theirs.
    """

    name: str
    about: dict[str, Any]
    fields: tuple[Definition, ...]


def kafka_json(jar: Path) -> dict[str, dict[str, Any]]:
    """{message name: Kafka's definition} of everything in kafka-clients' ``common/message``."""
    found = {}
    with zipfile.ZipFile(jar) as z:
        for path in z.namelist():
            if path.startswith("common/message/") and path.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", z.read(path).decode(), flags=re.MULTILINE)
                definition = json.loads(text)
                found[definition["name"]] = definition
    return found


# Kafka's side


def kafka_definition(message: dict[str, Any]) -> Definition:
    """A request or response of Kafka's, or a message that is neither, as a Definition."""
    assert not message.get("latestVersionUnstable"), message["name"]
    commons = {s["name"]: s["fields"] for s in message.get("commonStructs", ())}
    about = {"versions": message["validVersions"], "flexible": message.get("flexibleVersions", "none")}
    if message["type"] != "data":
        about |= {"api_key": message["apiKey"], "direction": message["type"]}
    return Definition(
        message["name"], about, tuple(_kafka_field(f, message["name"], commons) for f in message["fields"])
    )


def _kafka_field(f: dict[str, Any], message: str, commons: dict[str, Any]) -> Definition:
    type_ = f["type"]
    element = type_.removeprefix("[]")
    array = element != type_
    fields = f.get("fields") or commons.get(element) or ()
    about = {
        "type": ("[]" if array else "") + element.removeprefix(message),
        "versions": f["versions"],
        "nullable": f.get("nullableVersions", "none"),
        "default": _kafka_default(f.get("default"), element, array, bool(fields)),
        "ignorable": f.get("ignorable", False),
        "tag": f.get("tag"),
        "tagged": f.get("taggedVersions", "none"),
        "flexible": f.get("flexibleVersions"),
    }
    return Definition(f["name"], about, tuple(_kafka_field(inner, message, commons) for inner in fields))


def _kafka_default(given: Any, element: str, array: bool, structure: bool) -> Any:
    """In the words of ``_our_default``."""
    if given is not None and str(given) == "null":
        return None
    if array:
        assert given is None
        return "empty"
    if structure:
        assert given is None
        return "defaults"
    text = "" if given is None else str(given).lower() if element == "bool" else str(given)
    match element:
        case "bool":
            return text == "true"
        case "float64":
            return float(text or 0)
        case "uuid":
            assert not text
            return "00000000-0000-0000-0000-000000000000"
        case "bytes":
            assert not text
            return "empty"
        case "records":
            return None  # Kafka's generated classes begin with null there
        case "string":
            return text
        case _:
            return int(text or "0", 0)


# our side


def our_definition(cls: type[Struct]) -> Definition:
    """A message of ours as a Definition, or a structure of the consumer protocol."""
    if issubclass(cls, Message):
        about = {
            "versions": str(cls.__versions__),
            "flexible": str(cls.__flexible__),
            "api_key": cls.__api_key__,
            "direction": cls.__direction__,
        }
    else:
        about = {"versions": str(consumer_protocol.VERSIONS), "flexible": "none"}
    return Definition(cls.__name__, about, tuple(_our_field(f, cls.__name__) for f in cls.__fields__))


def _our_field(f: Field, message: str) -> Definition:
    if isinstance(f.type, Primitive):
        element, fields = f.type.name, ()
    else:
        element = f.type.__name__.removeprefix(message)
        fields = tuple(_our_field(inner, message) for inner in f.type.__fields__)
    about = {
        "type": "[]" + element if f.array else element,
        "versions": str(f.versions),
        "nullable": str(f.nullable),
        "default": _our_default(f.default),
        "ignorable": f.ignorable,
        "tag": f.tag,
        "tagged": str(f.tagged),
        "flexible": None if f.flexible is None else str(f.flexible),
    }
    return Definition(f.name, about, fields)


def _our_default(value: Any) -> Any:
    if isinstance(value, Struct):
        return "defaults" if value == type(value)() else repr(value)
    if isinstance(value, (tuple, bytes)):
        return repr(value) if value else "empty"
    return value if value is None or isinstance(value, (int, str, float, bool)) else str(value)


# the comparison


def plain(name: str) -> str:
    """A name in which camelCase and snake_case are the same."""
    return name.replace("_", "").lower()


def differences(ours: Definition, theirs: Definition, path: str = "") -> Iterator[str]:
    """What differs, each as "Message.field.field: property is ours, Kafka has theirs"."""
    path = f"{path}.{ours.name}" if path else ours.name
    for key, value in theirs.about.items():
        # 1, True and 1.0 are different defaults
        if ours.about[key] != value or type(ours.about[key]) is not type(value):
            yield f"{path}: {key} is {ours.about[key]!r}, Kafka has {value!r}"
    names, expected = [plain(f.name) for f in ours.fields], [plain(f.name) for f in theirs.fields]
    if names != expected:
        yield f"{path}: fields are {names}, Kafka has {expected}"
        return
    for mine, other in zip(ours.fields, theirs.fields, strict=True):
        yield from differences(mine, other, path)


def registry_differences(kafka: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What differs between our table of APIs and Kafka's requests: key, name, versions, flexible, who speaks it."""
    requests = {m["apiKey"]: m for m in kafka.values() if m["type"] == "request"}
    if [a.key for a in API_KEYS] != sorted(requests):
        yield f"keys are {[a.key for a in API_KEYS]}, Kafka has {sorted(requests)}"
    for known in API_KEYS:
        theirs = requests[known.key]
        mine = (known.name + "Request", str(known.versions), str(known.flexible), known.zk_broker)
        versions, flexible = theirs["validVersions"], theirs.get("flexibleVersions", "none")
        other = (theirs["name"], versions, flexible, "zkBroker" in theirs["listeners"])
        if mine != other:
            yield f"{known.name}: {mine}, Kafka has {other}"
