"""Changing the settings of a topic or a broker, up to what is to be stored (rules B7.27-B7.29). Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from broker_stub.config_defs import TOPIC_CONFIGS, ConfigDef, ConfigType, Dynamic, list_of, topic_config_problem
from broker_stub.config_entries import broker_config_def
from broker_stub.config_keys import is_known
from broker_stub.errors import InvalidConfig, InvalidRequest


class OpType(enum.IntEnum):
    """Of an IncrementalAlterConfigs entry."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    op: int
    value: str | None


def changed_topic_config(config: Mapping[str, str], changes: Iterable[Change]) -> dict[str, str]:
    """The topic's configuration afterwards. Raises InvalidRequest, InvalidConfig."""
    changed = _changed(config, changes, TOPIC_CONFIGS.get)
    if (problem := topic_config_problem(changed)) is not None:
        raise InvalidConfig(problem)
    return changed


def changed_broker_config(
    config: Mapping[str, str], changes: Iterable[Change], *, for_all_brokers: bool
) -> dict[str, str]:
    """The dynamic configuration of a broker, or of all, afterwards. Raises InvalidRequest, InvalidConfig."""
    changes = list(changes)
    for change in changes:
        known = broker_config_def(change.name)
        if known is None and not is_known(change.name):
            continue  # whatever plugins may want of it
        if known is None or known.dynamic is Dynamic.NO:
            raise InvalidRequest(f"{change.name} cannot be changed while the broker runs")
        if for_all_brokers and known.dynamic is Dynamic.BROKER:
            raise InvalidRequest(f"{change.name} can only be set for each broker by itself")
        if known.type is ConfigType.PASSWORD and change.op != OpType.DELETE:
            raise InvalidRequest(f"{change.name} is stored encrypted only, and there is no password.encoder.secret")
    changed = _changed(config, changes, broker_config_def)
    for name in {change.name for change in changes} & changed.keys():
        known = broker_config_def(name)
        if known is not None and (problem := known.problem(changed[name])) is not None:
            raise InvalidConfig(problem)
    return changed


def _changed(
    config: Mapping[str, str], changes: Iterable[Change], definition: Callable[[str], ConfigDef | None]
) -> dict[str, str]:
    changed = dict(config)
    seen: set[str] = set()
    for name, op, value in changes:
        if name in seen:
            raise InvalidRequest(f"{name} is there twice")
        seen.add(name)
        if op == OpType.DELETE:
            changed.pop(name, None)
        elif value is None:
            raise InvalidRequest(f"{name} is to be changed, but there is no value")
        elif op == OpType.SET:
            changed[name] = value
        elif op in (OpType.APPEND, OpType.SUBTRACT):
            changed[name] = _changed_list(name, op, value, changed.get(name), definition(name))
        else:
            raise InvalidRequest(f"{name}: there is no operation {op} on settings")
    return changed


def _changed_list(name: str, op: int, value: str, now: str | None, known: ConfigDef | None) -> str:
    """Without a value of its own the setting starts from its default."""
    if known is None or known.type is not ConfigType.LIST:
        raise InvalidConfig(f"{name} is no list: it can only be set or deleted")
    entries = list_of(known.default or "" if now is None else now)
    given = list_of(value)
    if op == OpType.APPEND:
        return ",".join(entries + [one for one in given if one not in entries])
    return ",".join(one for one in entries if one not in given)
