"""The layout of each message and version, as text, JSON and Markdown: fields, types, offsets.

Generated from the tables in ``wire.messages``. ``python -m kce.wire.descriptions`` prints docs/wire.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from kce.wire import errors
from kce.wire.plain import as_dict
from kce.wire.primitives import Primitive
from kce.wire.registry import API_KEYS, ApiKey, Direction, api, check_version, message_class
from kce.wire.schema import Field, Message, Struct

DIRECTIONS: tuple[Direction, ...] = ("request", "response")

_HEADERS = {
    ("request", 0): "api_key int16, api_version int16, correlation_id int32",
    ("request", 1): "api_key int16, api_version int16, correlation_id int32, client_id nullable string",
    ("request", 2): "api_key int16, api_version int16, correlation_id int32, client_id nullable string, tagged fields",
    ("response", 0): "correlation_id int32",
    ("response", 1): "correlation_id int32, tagged fields",
}


class LayoutField(NamedTuple):
    """One field in one version. ``type`` is its encoding ("compact nullable string", "array of int32").

    ``offset`` counts from the start of the body, or of the structure that contains the field. It is None for tagged
    fields, and after a field of variable size. ``tag`` is None unless the field is tagged.
    """

    name: str
    type: str
    offset: int | None
    default: Any
    tag: int | None
    fields: tuple[LayoutField, ...]


def layout(cls: type[Message], version: int) -> tuple[LayoutField, ...]:
    """The fields of a message in that version, in wire order: tagged fields last."""
    return _layout(cls, version, version in api(cls.__api_key__).flexible)


def describe(api_key: int, version: int, direction: Direction | None = None) -> str:
    """The layout of an API's request and response (or of one of them) as text: offset, field, type.

    Raises UnknownApiKey; UnsupportedVersion, also for APIs of KRaft nodes, which have no definition.
    """
    known = _defined(api_key, version)
    wanted = DIRECTIONS if direction is None else (direction,)
    return "\n\n".join("\n".join(_text(known, version, one)) for one in wanted) + "\n"


def describe_json(api_key: int, version: int) -> dict[str, Any]:
    """The layout as plain data: ``api``, ``key``, ``version``, ``flexible``, ``request`` and ``response``.

    The last two have ``name``, ``header_version`` and ``fields``, which are LayoutFields as dicts. Raises what
    ``describe`` raises.
    """
    known = _defined(api_key, version)
    layouts: dict[str, Any] = {
        "api": known.name, "key": known.key, "version": version, "flexible": version in known.flexible,
    }  # fmt: skip
    for direction in DIRECTIONS:
        cls = message_class(api_key, direction)
        assert cls is not None
        layouts[direction] = {
            "name": cls.__name__,
            "header_version": _header_version(known, version, direction),
            "fields": [_field_json(f, version) for f in layout(cls, version)],
        }
    return layouts


def _field_json(f: LayoutField, version: int) -> dict[str, Any]:
    default = as_dict(f.default, version)
    return {**f._asdict(), "default": default, "fields": [_field_json(inner, version) for inner in f.fields]}


def _defined(api_key: int, version: int) -> ApiKey:
    known = api(api_key)
    check_version(known, version)
    if message_class(api_key, "request") is None:
        raise errors.UnsupportedVersion(f"{known.name} is for KRaft nodes only and has no definition")
    return known


def _header_version(known: ApiKey, version: int, direction: Direction) -> int:
    return known.request_header_version(version) if direction == "request" else known.response_header_version(version)


# layout


def _layout(cls: type[Struct], version: int, flexible: bool) -> tuple[LayoutField, ...]:
    plain: list[LayoutField] = []
    tagged: list[LayoutField] = []
    offset: int | None = 0
    for f in cls.__fields__:
        if version not in f.versions:
            continue
        compact = flexible if f.flexible is None else version in f.flexible
        fields = () if isinstance(f.type, Primitive) else _layout(f.type, version, compact)
        type_ = _type(f, version, compact)
        if version in f.tagged:
            tagged.append(LayoutField(f.name, type_, None, f.default, f.tag, fields))
            continue
        plain.append(LayoutField(f.name, type_, offset, f.default, None, fields))
        size = _fixed_bytes(f, version, compact)
        offset = None if offset is None or size is None else offset + size
    return (*plain, *sorted(tagged, key=lambda f: f.tag or 0))


def _type(f: Field, version: int, compact: bool) -> str:
    nullable = "nullable " if version in f.nullable else ""
    element = f.type.name if isinstance(f.type, Primitive) else f.type.__name__
    variable = isinstance(f.type, Primitive) and f.type.construct is None
    if f.array:
        inner = f"compact {element}" if compact and variable else element
        return f"{'compact ' if compact else ''}{nullable}array of {inner}"
    return f"{'compact ' if compact and variable else ''}{nullable}{element}"


def _fixed_bytes(f: Field, version: int, compact: bool) -> int | None:
    """The size of a field of fixed size, or None."""
    if f.array or (version in f.nullable):
        return None
    if isinstance(f.type, Primitive):
        return f.type.min_bytes if f.type.construct is not None else None
    if compact:
        return None  # tagged fields may follow
    sizes = [_fixed_bytes(inner, version, compact) for inner in f.type.__fields__ if version in inner.versions]
    return None if None in sizes else sum(size for size in sizes if size is not None)


# text


def _text(known: ApiKey, version: int, direction: Direction) -> Iterator[str]:
    cls = message_class(known.key, direction)
    assert cls is not None
    header_version = _header_version(known, version, direction)
    yield f"{cls.__name__} {version} (API key {known.key}{', flexible' if version in known.flexible else ''})"
    yield f"  header {header_version}: {_HEADERS[direction, header_version]}"
    rows = list(_rows(layout(cls, version), version in known.flexible, 0))
    width = max((len(name) for _, name, _ in rows), default=0)
    for offset, name, type_ in rows:
        yield f"  {offset:>6}  {name:<{width}}  {type_}".rstrip()
    if not rows:
        yield "          (no body)"


def _rows(fields: tuple[LayoutField, ...], flexible: bool, depth: int) -> Iterator[tuple[str, str, str]]:
    """(offset, indented name, type); offsets inside an array element begin with +."""
    indent = "  " * depth
    for f in fields:
        if f.tag is None:
            offset = "" if f.offset is None else f"{'+' if depth else ''}{f.offset}"
            yield offset, indent + f.name, f.type
            yield from _rows(f.fields, flexible, depth + 1) if f.fields else ()
    if flexible:
        yield "", f"{indent}tagged fields", ""
        for f in fields:
            if f.tag is not None:
                yield "", f"{indent}  {f.name}", f"tag {f.tag}: {f.type}"
                yield from _rows(f.fields, flexible, depth + 2) if f.fields else ()


# docs/wire.md


def markdown() -> str:
    """docs/wire.md: every field of every message in all versions."""
    defined = [known for known in API_KEYS if known.zk_broker]
    lines = [
        "# Messages",
        "",
        "Generated by `python -m kce.wire.descriptions > docs/wire.md` (`make docs`); do not edit.",
        "`kce schema LeaderAndIsr 7` shows one version, with offsets.",
        "",
        f"The {len(defined)} APIs of a ZooKeeper-mode broker of Kafka 3.9, in all versions that it accepts.",
        "Flexible versions (KIP-482) have compact lengths and tagged fields. The columns versions and null list the",
        "versions that have a field (`3+`: from 3 on), and those in which it may be null. A version that lacks an",
        "*ignorable* field drops its value; any other field must then have its default (rule 13.2).",
        "",
        "| key | API | versions | flexible |",
        "|---|---|---|---|",
        *(f"| {a.key} | [{a.name}](#{a.name.lower()}) | {a.versions} | {a.flexible} |" for a in defined),
    ]
    for known in defined:
        lines += ["", f"## {known.name}", ""]
        lines += [f"API key {known.key}, versions {known.versions}, flexible {known.flexible}. `{_path(known)}`"]
        for direction in DIRECTIONS:
            cls = message_class(known.key, direction)
            assert cls is not None
            lines += ["", f"### {cls.__name__}", ""]
            rows = list(_markdown_rows(cls, ""))
            if rows:
                lines += ["| field | type | versions | null | default | |", "|---|---|---|---|---|---|", *rows]
            else:
                lines.append("No fields.")
    return "\n".join(lines) + "\n"


def _path(known: ApiKey) -> str:
    return f"wire/messages/{known.module}.py"


def _markdown_rows(cls: type[Struct], before: str) -> Iterator[str]:
    for f in cls.__fields__:
        element = f.type.name if isinstance(f.type, Primitive) else f.type.__name__
        notes = [f"tag {f.tag} in {f.tagged}"] if f.tag is not None else []
        notes += ["ignorable"] if f.ignorable else []
        notes += [f"flexible {f.flexible}"] if f.flexible is not None else []
        path = f"{before}{f.name}{'[]' if f.array else ''}"
        null = "" if f.nullable.last < f.nullable.first else str(f.nullable)
        yield (f"| `{path}` | {element} | {f.versions} | {null} | {_default(f.default)} | {', '.join(notes)} |")
        if not isinstance(f.type, Primitive):
            yield from _markdown_rows(f.type, path + ".")


def _default(value: Any) -> str:
    """A default to show: not the zero value of its type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: ""}[value]
    if isinstance(value, (int, float, str)) and value:
        return json.dumps(value)
    return ""


if __name__ == "__main__":
    print(markdown(), end="")
