"""Apply the changes of AlterConfigs and IncrementalAlterConfigs to a configuration (rules B7.27-B7.29). Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from kce.broker_stub.config_checks import check_combinations
from kce.broker_stub.config_entries import BrokerSettings, broker_config_def
from kce.broker_stub.errors import InvalidConfig, InvalidRequest
from kce.wire.configuration import (
    TOPIC_CONFIGS,
    ConfigDef,
    ConfigError,
    ConfigType,
    Dynamic,
    Properties,
    broker_config,
    check_topic_config,
    list_of,
)

#: numbers of threads, which change by half or by double at most
_THREADS: Final = frozenset({
    "background.threads", "log.cleaner.threads", "num.io.threads", "num.network.threads",
    "num.recovery.threads.per.data.dir", "num.replica.fetchers",
})  # fmt: skip

#: limits of a listener are positive, though the broker's may be 0 (rules B1.47, B1.50)
_POSITIVE: Final = (".max.connections", ".max.connection.creation.rate")


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
        raise InvalidConfig(e.words) from None
    return changed


def changed_broker_config(
    config: Mapping[str, str], changes: Iterable[Change], broker: BrokerSettings, *, for_all_brokers: bool
) -> dict[str, str]:
    """Return the new dynamic configuration of one broker or of all. Raises InvalidRequest, InvalidConfig.

    ``broker``: the settings now of the broker that checks.
    """
    changes = list(changes)
    for change in changes:
        if broker_config(change.name) is None:
            continue  # a plugin's setting
        known = broker_config_def(change.name)
        if known is None or known.dynamic is Dynamic.STATIC:
            raise InvalidRequest(f"Cannot update these configs dynamically: Set({change.name})")
        if for_all_brokers and known.dynamic is Dynamic.BROKER:
            raise InvalidRequest(f"Cannot update these configs at default cluster level: Set({change.name})")
        if known.type is ConfigType.PASSWORD and change.op != OpType.DELETE:
            raise InvalidRequest(f"{change.name} must be stored encrypted, which needs password.encoder.secret")
    changed = _changed(config, changes, broker_config_def)
    for name in {change.name for change in changes} & changed.keys():
        known = broker_config_def(name)
        try:
            if known is not None:
                known.parse(changed[name])
        except ConfigError as e:
            raise InvalidRequest(e.words) from None  # as Kafka does (KAFKA-13609)
        if name.startswith("listener.name.") and name.endswith(_POSITIVE) and int(changed[name]) <= 0:
            raise InvalidRequest(f"Invalid {name.split('.', 3)[-1]} {changed[name]}")
        if name in _THREADS:
            _check_threads(name, int(changed[name]), int(next(broker.synonyms(name)).value or 1))
    defaults, own = (changed, broker.dynamic) if for_all_brokers else (broker.dynamic_default, changed)
    try:
        check_combinations(Properties({**broker.static, **defaults, **own}))
    except ConfigError as e:
        raise InvalidRequest(e.words) from None
    return changed


def _check_threads(name: str, wanted: int, now: int) -> None:
    """Rule B1.10. Raises InvalidRequest."""
    problem = None
    if wanted < 1:
        problem = "value should be at least 1"
    elif wanted < now // 2:
        problem = f"value should be at least half the current value {now}"
    elif wanted > now * 2:
        problem = f"value should not be greater than double the current value {now}"
    if problem is not None:
        text = f"Dynamic thread count update validation failed for {name}={wanted}, {problem}"
        # Kafka puts the error in the place of the value, and a text in that of the name
        raise InvalidRequest(
            f"Invalid value org.apache.kafka.common.config.ConfigException: {text} "
            "for configuration Invalid dynamic configuration"
        )


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
