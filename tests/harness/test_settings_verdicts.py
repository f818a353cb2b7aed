"""What Kafka refuses when a broker starts, a node refuses, and nothing else but what is listed here.

Covers: broker_stub/config_checks.py.
"""

from __future__ import annotations

import pytest

from kce.harness.errors import HarnessError
from kce.harness.node import Node
from tests.harness.settings_verdicts import COMBINATIONS, cases, kafkas_verdicts, recorded, whole

#: settings of which a node refuses values that Kafka's configuration lets pass: docs/differences.md says why
NARROWER = {
    # classes, stores and mechanisms that there are not
    "authorizer.class.name", "replica.selector.class", "ssl.enabled.protocols", "ssl.protocol",
    "zookeeper.clientCnxnSocket", "sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol",
    "inter.broker.protocol.version", "password.encoder.cipher.algorithm", "password.encoder.key.length",
    "password.encoder.keyfactory.algorithm",
    # what lets Kafka fail later: no time at all, no replica, no port, no key
    "controlled.shutdown.retry.backoff.ms", "controller.socket.timeout.ms", "default.replication.factor",
    "log.flush.interval.ms", "log.flush.scheduler.interval.ms",
    "replica.fetch.wait.max.ms", "request.timeout.ms", "zookeeper.connect", "zookeeper.connection.timeout.ms",
    "zookeeper.session.timeout.ms", "zookeeper.set.acl",
    "listeners", "listener.security.protocol.map",
    "listener.name.plaintext.max.connections", "listener.name.plaintext.num.network.threads",
}  # fmt: skip


def refusal(settings: dict[str, str | None]) -> str | None:
    """The node's, in one line."""
    try:
        Node(whole(settings))
    except HarnessError as e:
        return str(e)
    return None


def test_what_kafka_refuses_is_refused() -> None:
    answers = [(settings, refusal(settings)) for settings, error in recorded() if error is not None]
    assert [settings for settings, answer in answers if answer is None or "\n" in answer] == []


def test_what_kafka_accepts_is_accepted() -> None:
    refused = [settings for settings, error in recorded() if error is None and refusal(settings) is not None]
    assert [settings for settings in refused if not settings.keys() & NARROWER] == []
    assert {key for settings in refused for key in settings} >= NARROWER  # each of them is needed


def test_the_table_has_every_honoured_setting() -> None:
    assert [settings for settings, _ in recorded()] == list(cases())


@pytest.mark.slow
def test_kafka_still_says_so() -> None:
    """Of the combinations, and some others."""
    known = recorded()
    asked = [*known[:: len(known) // 100], *known[-len(COMBINATIONS) :]]
    assert kafkas_verdicts([settings for settings, _ in asked]) == [error for _, error in asked]
