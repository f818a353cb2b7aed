"""``docs/configuration.md``, from the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kce.wire.configuration.broker_configs import BROKER_CONFIGS
from kce.wire.configuration.definitions import LARGEST, BrokerConfigDef, ConfigDef, ConfigType, Numbers, Support
from kce.wire.configuration.topic_configs import TOPIC_CONFIGS

_HEAD: Final = """# Configuration

Made by `make docs`; do not edit.

A node takes Kafka's server.properties: `kce broker --config server.properties --override KEY=VALUE`, `kce up` with
`--config` and `--set KEY=VALUE`, `harness.Cluster(properties={...})`. All settings of Kafka 3.9 are listed here by
what they do in this project, and ours, which begin with `kce.`. A key without effect, or one that Kafka does not
have, is a warning: in the output of `kce`, as `kce.harness.SettingWarning` in a test, and in the node's log. Two
defaults are not Kafka's: a listener without a host is on 127.0.0.1, and a node without log directories keeps records
in memory.

- Default: `-` is none, `""` is empty. max is the largest value of the type.
- Values: what a setting may be, or each element of a list. Empty: any value of its type.
- Changes: where Kafka allows a change by AlterConfigs while a broker runs. *static*: nowhere; *broker*: for one broker;
  *cluster*: for one broker, and as a default for all.
- Listed: whether DescribeConfigs lists the setting also where it is not set.
"""
_SECTIONS: Final = {
    Support.LIVE: ("Live", "These take effect, also when they change while a broker runs."),
    Support.HONOURED: (
        "Honoured",
        "These take effect when a node starts. A change by AlterConfigs is stored and described, and nothing more.",
    ),
    Support.REFUSED: (
        "Refused",
        "These promise a limit that this project does not provide: a node does not start if they are not at their"
        " default. Those of `zookeeper.ssl` are checked if TLS is enabled.",
    ),
    Support.PROTECTION: (
        "Refused, because they promise a protection",
        "These promise a protection that this project does not provide: a node does not start if they are not at their"
        " default.",
    ),
    Support.IGNORED: (
        "Without effect",
        "These are accepted with a warning, unless they are at their default. Those that are listed are stored and"
        " described.",
    ),
}


def configuration_markdown() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "# Brokers"
    for support, (title, text) in _SECTIONS.items():
        yield from ("", f"## {title}", "", text, "")
        found = [definition for definition in BROKER_CONFIGS.values() if definition.support is support]
        yield from _broker_table(found)
    yield from ("", "# Topics", "", _TOPICS, "")
    yield "| setting | type | default | values | broker's settings | live |"
    yield "|---|---|---|---|---|---|"
    for topic in TOPIC_CONFIGS.values():
        behind = ", ".join(f"`{name}`" for name, _ in topic.synonyms)
        live = "yes" if topic.support is Support.LIVE else ""
        yield f"| {_columns(topic)} | {behind} | {live} |"


_TOPICS: Final = (
    "A topic may override these; otherwise the first of the broker's settings applies that is set, or else the default."
    " All are checked, stored and described. Without records only the live one has an effect."
)


def _broker_table(definitions: Iterable[BrokerConfigDef]) -> Iterator[str]:
    yield "| setting | type | default | values | changes | listed | read by |"
    yield "|---|---|---|---|---|---|---|"
    for definition in definitions:
        listed = "yes" if definition.described else ""
        readers = ", ".join(definition.readers)
        yield f"| {_columns(definition)} | {definition.dynamic.value} | {listed} | {readers} |"


def _columns(definition: ConfigDef) -> str:
    kind = definition.type
    return f"`{definition.name}` | {kind.name.lower()} | {_default(definition)} | {_allowed(definition)}"


def _default(definition: ConfigDef) -> str:
    if definition.default is None:
        return "-"
    if definition.default == str(LARGEST.get(definition.type)):
        return "max"
    return f"`{definition.default}`" if definition.default else '`""`'


def _allowed(definition: ConfigDef) -> str:
    """The allowed values without the limits of the type, which error messages include."""
    if not isinstance(definition.allowed, Numbers):
        return str(definition.allowed).removeprefix("one of ")
    return " or ".join(_range(least, most, definition.type) for least, most in definition.allowed.ranges)


def _range(least: float, most: float, kind: ConfigType) -> str:
    if least == most:
        return str(least)
    if most != LARGEST.get(kind):
        return f"{least} to {most}"
    return "" if least == -most - 1 else f"at least {least}"


if __name__ == "__main__":
    print(configuration_markdown(), end="")
