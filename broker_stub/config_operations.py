"""Apply the changes of AlterConfigs and IncrementalAlterConfigs to a configuration (rules B7.27-B7.29). Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kce.broker_stub.config_entries import BrokerSettings, broker_config_def
from kce.broker_stub.errors import ApiException, InvalidConfig, InvalidRequest
from kce.wire.configuration import (
    TLS_STORES,
    TOPIC_CONFIGS,
    UNTYPED,
    ConfigDef,
    ConfigError,
    ConfigType,
    Dynamic,
    broker_config,
    check_topic_config,
    list_of,
)
from kce.wire.steps import STEP_MASK, Steps

_OF_LISTENER: Final = "listener.name."
_NULL: Final = "Null value not supported for : "


class OpType(enum.IntEnum):
    """Operation of an IncrementalAlterConfigs entry."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS: Final = frozenset(OpType)


class Change(NamedTuple):
    name: str
    op: int
    value: str | None


def check_changes(changes: Sequence[Change]) -> Steps[None]:
    """What is wrong whatever the resource is. Raises InvalidRequest."""
    names, nulls = set(), []
    for i, (name, op, value) in enumerate(changes, 1):
        names.add(name)
        if value is None and op != OpType.DELETE:
            nulls.append(name)
        if not i & STEP_MASK:
            yield
    if len(names) < len(changes):
        raise InvalidRequest("Error due to duplicate config keys")
    if nulls:
        raise InvalidRequest(f"{_NULL}{', '.join(nulls)}")


def changed_topic_config(config: Mapping[str, str], changes: Iterable[Change]) -> Steps[dict[str, str]]:
    """The topic's new configuration, to be checked. Raises ApiException."""
    return _changed(config, changes, TOPIC_CONFIGS.get)


def check_topic_values(changed: Mapping[str, str], broker: BrokerSettings) -> None:
    """Raises InvalidConfig."""
    try:
        check_topic_config(changed, broker.inherited_values)
    except ConfigError as e:
        raise InvalidConfig(e.words) from None


def changed_broker_config(
    config: Mapping[str, str], changes: Sequence[Change], *, for_all_brokers: bool
) -> Steps[dict[str, str]]:
    """The new dynamic configuration of one broker or of all. Raises ApiException.

    Each setting may change, and may have its value; `dynamic_config` says whether all of them go together.
    """
    for i, change in enumerate(changes, 1):
        if change.op not in _OPERATIONS:
            raise InvalidRequest(f"Unknown operations type {change.op}")
        if not i & STEP_MASK:
            yield
    changed = yield from _changed(config, changes, broker_config_def)
    for i, name in enumerate(changed, 1):
        _check_dynamic(name, for_all_brokers=for_all_brokers)
        if not i & STEP_MASK:
            yield
    for i, (name, _, _) in enumerate(changes, 1):
        if name in changed:
            _check_value(name, changed[name])
        if not i & STEP_MASK:
            yield
    return changed


def known_settings(settings: Mapping[str, str]) -> Steps[dict[str, str]]:
    """Those that Kafka knows: nothing depends on the others, and a client decides how many there are."""
    known = {}
    for i, (name, value) in enumerate(settings.items(), 1):
        if broker_config(name) is not None:
            known[name] = value
        if not i & STEP_MASK:
            yield
    return known


def _check_value(name: str, value: str) -> None:
    known = broker_config_def(name)
    try:
        if known is not None:
            known.parse(value)
    except ConfigError as e:
        raise InvalidRequest(e.words) from None  # as Kafka does (KAFKA-13609)


def _check_dynamic(name: str, *, for_all_brokers: bool) -> None:
    """Whether a setting may change while a broker runs (rule B7.29). Raises InvalidRequest."""
    known = broker_config(name)
    if known is None or name in UNTYPED:
        return  # a plugin's setting
    if not name.startswith(_OF_LISTENER) and known.dynamic is Dynamic.STATIC:
        raise InvalidRequest(f"Cannot update these configs dynamically: Set({name})")
    if name in TLS_STORES:
        raise InvalidRequest(
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            f"HashSet({name})"
        )
    if for_all_brokers and known.dynamic is not Dynamic.CLUSTER:
        raise InvalidRequest(
            f"Cannot update these configs at default cluster level, broker id must be specified: Set({name})"
        )


def _changed(
    config: Mapping[str, str], changes: Iterable[Change], definition: Callable[[str], ConfigDef | None]
) -> Steps[dict[str, str]]:
    changed = dict(config)
    for i, (name, op, value) in enumerate(changes, 1):
        if op == OpType.DELETE:
            changed.pop(name, None)
        elif value is None:
            raise InvalidRequest(f"{_NULL}{name}")
        elif op == OpType.SET:
            changed[name] = value
        elif op in (OpType.APPEND, OpType.SUBTRACT):
            changed[name] = _changed_list(name, op, value, changed.get(name), definition(name))
        else:
            raise ApiException(f"Unknown operations type {op}")
        if not i & STEP_MASK:
            yield
    return changed


def _changed_list(name: str, op: int, value: str, now: str | None, known: ConfigDef | None) -> str:
    """Append to the current value or subtract from it; a setting without a value starts from its default."""
    if known is None:
        raise ApiException(f"key not found: {name}")
    if known.type is not ConfigType.LIST:
        raise InvalidConfig(f"{name} is not a list: it can only be set or deleted")
    entries = list_of(known.default or "" if now is None else now)
    given = list_of(value)
    if op == OpType.APPEND:
        present = set(entries)
        return ",".join(entries + [one for one in given if one not in present])
    removed = set(given)
    return ",".join(one for one in entries if one not in removed)
