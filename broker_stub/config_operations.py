"""Apply the changes of AlterConfigs and IncrementalAlterConfigs to a configuration (rules B7.27-B7.29). Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kce.broker_stub.config_entries import broker_config_def
from kce.broker_stub.errors import InvalidConfig, InvalidRequest
from kce.wire.configuration import (
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigError,
    ConfigType,
    Dynamic,
    broker_config,
    check_topic_config,
    list_of,
)


class OpType(enum.IntEnum):
    """Operation of an IncrementalAlterConfigs entry."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    op: int
    value: str | None


def changed_topic_config(config: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """Return the topic's new configuration. Raises InvalidRequest, InvalidConfig."""
    changed = _changed(config, changes, TOPIC_CONFIGS.get)
    try:
        check_topic_config(changed)
    except ConfigError as e:
        raise InvalidConfig(str(e)) from None
    return changed


def changed_broker_config(
    config: Mapping[str, str], changes: Iterable[Change], *, for_all_brokers: bool
) -> dict[str, str]:
    """Return the new dynamic configuration of one broker or of all. Raises InvalidRequest, InvalidConfig."""
    changes = list(changes)
    for change in changes:
        if broker_config(change.name) is None:
            continue  # a plugin's setting
        known = broker_config_def(change.name)
        if known is None or known.dynamic is Dynamic.STATIC:
            raise InvalidRequest(f"{change.name} cannot be changed while the broker runs")
        if for_all_brokers and known.dynamic is Dynamic.BROKER:
            raise InvalidRequest(f"{change.name} can only be set for a single broker")
        if known.type is ConfigType.PASSWORD and change.op != OpType.DELETE:
            raise InvalidRequest(f"{change.name} must be stored encrypted, which needs password.encoder.secret")
    changed = _changed(config, changes, broker_config_def)
    for name in {change.name for change in changes} & changed.keys():
        known = broker_config_def(name)
        try:
            if known is not None:
                known.parse(changed[name])
        except ConfigError as e:
            raise InvalidConfig(str(e)) from None
    return changed


def _changed(
    config: Mapping[str, str], changes: Iterable[Change], definition: Callable[[str], ConfigDef | None]
) -> dict[str, str]:
    changed = dict(config)
    seen: set[str] = set()
    for name, op, value in changes:
        if name in seen:
            raise InvalidRequest(f"{name} appears twice")
        seen.add(name)
        if op == OpType.DELETE:
            changed.pop(name, None)
        elif value is None:
            raise InvalidRequest(f"{name} has no value")
        elif op == OpType.SET:
            changed[name] = value
        elif op in (OpType.APPEND, OpType.SUBTRACT):
            changed[name] = _changed_list(name, op, value, changed.get(name), definition(name))
        else:
            raise InvalidRequest(f"{name}: unknown operation {op}")
    return changed


def _changed_list(name: str, op: int, value: str, now: str | None, known: ConfigDef | None) -> str:
    """Append to the current value or subtract from it; a setting without a value starts from its default."""
    if known is None or known.type is not ConfigType.LIST:
        raise InvalidConfig(f"{name} is not a list: it can only be set or deleted")
    entries = list_of(known.default or "" if now is None else now)
    given = list_of(value)
    if op == OpType.APPEND:
        return ",".join(entries + [one for one in given if one not in entries])
    return ",".join(one for one in entries if one not in given)
