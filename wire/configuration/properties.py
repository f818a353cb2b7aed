"""Typed reading of a server.properties file, with the defaults and the limits of ``broker_configs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from kce.wire.configuration.broker_configs import BROKER_CONFIGS, ONLY_DYNAMIC, UNDEFINED, broker_config, nearest
from kce.wire.configuration.definitions import BrokerConfigDef, ConfigError, Support, Value, list_of

#: settings that a listener may have for itself, as listener.name.<listener>.<setting>
_BY_LISTENER: Final = ("max.connection.creation.rate", "max.connections", "num.network.threads")
#: those that a listener may have for itself, and a mechanism of it, with its name in lower case before the setting
_OF_SECURITY: Final = ("connections.max.reauth.ms", "sasl.enabled.mechanisms", "sasl.jaas.config")
_REFUSALS: Final = {
    Support.REFUSED: "not supported here: leave the setting out",
    Support.PROTECTION: "this protection does not exist here: leave the setting out",
}
_ZOOKEEPER_TLS: Final = "zookeeper.ssl."


class Properties:
    """The settings of one node. Every method takes a name of ``BROKER_CONFIGS``, and raises ConfigError for a value
    that is not allowed."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def given(self, name: str) -> str | None:
        """The text in the file, stripped; None if the file has none."""
        text = self._properties.get(name)
        return None if text is None else text.strip()

    def text(self, name: str) -> str | None:
        value = self._value(name)
        assert value is None or isinstance(value, str)
        return value

    def required(self, name: str) -> str:
        """Raises ConfigError if it is missing or empty and has no default."""
        text = self.given(name)
        if text is None:
            text = BROKER_CONFIGS[name].default
        if not text:
            raise ConfigError(f"the setting {name} is missing")
        BROKER_CONFIGS[name].parse(text)
        return text

    def boolean(self, name: str) -> bool:
        value = self._value(name)
        assert isinstance(value, bool)
        return value

    def integer(self, name: str) -> int:
        value = self._value(name)
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        value = self._value(name)
        assert isinstance(value, (int, float))
        return value

    def optional_integer(self, name: str) -> int | None:
        """None if the setting is missing and has no default."""
        value = self._value(name)
        assert value is None or isinstance(value, int)
        return value

    def listener_integer(self, listener: str, name: str) -> int:
        """The listener's own setting, else the common one (rule B1.2)."""
        key = f"listener.name.{listener.lower()}.{name}"
        text = self.given(key)
        if text is None:
            return self.integer(name)
        value = replace(BROKER_CONFIGS[name], name=key).parse(text)
        assert isinstance(value, int)
        return value

    def listener_value(self, listener: str, name: str, mechanism: str = "") -> Value | None:
        """The setting of the listener's SASL mechanism, else of the listener, else the common one; None if there is
        none and no default."""
        prefix = f"listener.name.{listener.lower()}."
        keys = [f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []
        for key in (*keys, f"{prefix}{name}") if listener else ():
            if (text := self.given(key)) is not None:
                return replace(BROKER_CONFIGS[name], name=key).parse(text)
        return self._value(name)

    def elements(self, name: str) -> list[str]:
        """The elements of a comma-separated list, or of its default."""
        text = self.given(name)
        return list_of(BROKER_CONFIGS[name].default or "" if text is None else text)

    def _value(self, name: str) -> Value | None:
        definition = BROKER_CONFIGS[name]
        text = self.given(name)
        if text is None:
            text = definition.default
        return None if text is None else definition.parse(text)

    def refusal(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"{name}={self.given(name) or ''}: {reason}")

    def check(self, *, suggests: bool = True) -> list[str]:
        """Warnings for keys without effect: those that Kafka does not have, and those that this project ignores.

        ``suggests``: say which setting was probably meant, which takes 0.5 ms for each unknown one.

        Raises ConfigError for a value that is not allowed, also of a key without effect, as Kafka does, and for a key
        that promises a limit or a protection that does not exist here. A key at its
        default has the effect that it promises. Settings of TLS to ZooKeeper matter only if it is enabled:
        ``check_zookeeper_tls``.
        """
        return [warning for key in self._properties for warning in self._check(key, suggests=suggests)]

    def check_zookeeper_tls(self) -> None:
        """Raises ConfigError for a setting of TLS to ZooKeeper that is not supported here."""
        for key in self._properties:
            definition = broker_config(key)
            if key.startswith(_ZOOKEEPER_TLS) and definition is not None and definition.support in _REFUSALS:
                self._refuse(key, definition)

    def _check(self, key: str, *, suggests: bool) -> Iterator[str]:
        definition = broker_config(key)
        if definition is None:
            meant = nearest(key) if suggests else None
            yield f"{key} has no effect: Kafka has no such setting{f'; did you mean {meant}?' if meant else ''}"
            return
        if key == definition.name and key not in UNDEFINED:
            definition.parse(self._properties[key])
        if key.startswith(_ZOOKEEPER_TLS):
            return
        elif definition.support in _REFUSALS:
            self._refuse(key, definition)
        elif definition.support is Support.IGNORED:
            if self.given(key) not in ("", definition.default):
                yield f"{key}={self.given(key)} has no effect: Kafka has this setting, this project ignores it"
        elif definition.name in ONLY_DYNAMIC:
            yield f"{key} has no effect: like Kafka's, it only counts when it is set while the broker runs"
        elif key != definition.name and not _is_by_listener(definition.name):
            yield f"{key} has no effect: {definition.name} applies to all listeners here"

    def _refuse(self, key: str, definition: BrokerConfigDef) -> None:
        text = self.given(key)
        if text is not None and text.lower() not in ("", definition.default):
            raise self.refusal(key, _REFUSALS[definition.support])


def _is_by_listener(name: str) -> bool:
    return name.startswith("ssl.") or name in _BY_LISTENER or name in _OF_SECURITY
