"""Typed reading of a server.properties file, with the defaults and the limits of ``broker_configs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kce.wire.configuration.broker_configs import BROKER_CONFIGS, broker_config, nearest
from kce.wire.configuration.definitions import ConfigError, Support, Value, list_of


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
        text = self.given(name) or BROKER_CONFIGS[name].default
        if text is None:
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

    def elements(self, name: str) -> list[str]:
        """The elements of a comma-separated list, or of its default."""
        return list_of(self.given(name) or BROKER_CONFIGS[name].default or "")

    def _value(self, name: str) -> Value | None:
        definition = BROKER_CONFIGS[name]
        text = self.given(name)
        if text is None:
            text = definition.default
        return None if text is None else definition.parse(text)

    def refusal(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"{name}={self.given(name) or ''}: {reason}")

    def check_refused(self, prefix: str) -> None:
        """Raises ConfigError for a setting below ``prefix`` that is not supported here, unless it is at its default."""
        for definition in BROKER_CONFIGS.values():
            if definition.support is Support.REFUSED and definition.name.startswith(prefix):
                text = self.given(definition.name)
                if text is not None and text.lower() not in ("", definition.default):
                    raise self.refusal(definition.name, "not supported here: leave the setting out")

    def unknown(self) -> Iterator[tuple[str, str | None]]:
        """Keys that Kafka does not have, each with the one that was probably meant."""
        for key in self._properties:
            if broker_config(key) is None:
                yield key, nearest(key)
