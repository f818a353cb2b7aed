"""The settings of topics, for their logs (rule B7.30)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kce.broker_stub.log import LogConfig
from kce.wire.configuration import ConfigError

log = logging.getLogger(__name__)


class TopicConfigs:
    """Topics without settings of their own share one `LogConfig`. ``broker``: the settings in the broker's file."""

    def __init__(self, broker: Mapping[str, str]) -> None:
        """Raises ConfigError."""
        self._static = self._broker = broker
        self._default = LogConfig.of({}, broker)
        self._given: dict[str, Mapping[str, str]] = {}
        self._topics: dict[str, LogConfig] = {}

    def of(self, topic: str) -> LogConfig:
        return self._topics.get(topic, self._default)

    def changed(self, topic: str, config: Mapping[str, str]) -> bool:
        """Whether they are others than before. Settings that cannot be read are left as they were."""
        before = self.of(topic)
        try:
            if config:
                self._topics[topic] = LogConfig.of(config, self._broker)
                self._given[topic] = config
            else:
                self._topics.pop(topic, None)
                self._given.pop(topic, None)
        except ConfigError as e:
            log.error("the settings of topic %s are ignored: %s", topic, e)
        return self.of(topic) != before

    def broker_changed(self, config: Mapping[str, str]) -> bool:
        """The broker's dynamic settings are these; whether the settings of any topic may be others than before.

        Settings that cannot be read are left as they were.
        """
        broker = {**self._static, **config}
        try:
            default = LogConfig.of({}, broker)
            topics = {topic: LogConfig.of(given, broker) for topic, given in self._given.items()}
        except ConfigError as e:
            log.error("the dynamic defaults of topics are ignored: %s", e)
            return False
        before = self._default, self._topics
        self._broker, self._default, self._topics = broker, default, topics
        return before != (default, topics)
