"""Settings at and over their boundaries, and what Kafka 3.9.1 says of them: `kafka.server.KafkaConfig.fromProps`.

`python -m tests.harness.settings_verdicts` asks Kafka and writes settings_verdicts.jsonl beside this file: for each
case its settings and Kafka's error, or null if Kafka starts with them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kce.wire.configuration import BROKER_CONFIGS, BrokerConfigDef, ConfigType, Support
from kce.wire.configuration.definitions import LARGEST, Numbers, OneOf
from tests.interop.kafka_java import kafka_java

TABLE = Path(__file__).with_suffix(".jsonl")
#: what every case has unless it says otherwise; None: the case has no such setting
BASE: Mapping[str, str | None] = {"zookeeper.connect": "localhost:2181", "log.dirs": "/tmp/kafka-logs"}
Settings = dict[str, str | None]

_NO_NUMBERS = ("", "text", "1.5")
_NOTATIONS = (" 5 ", "0x10", "1_000", "+5", "5L", "1e3", "-0", "05")
#: one of each type, tried in every notation
_NOTED = ("num.io.threads", "log.roll.ms", "offsets.topic.replication.factor", "log.roll.hours", "log.segment.bytes")
_BOOLEANS = ("true", "TRUE", " false ", "yes", "1", "")
_DOUBLES = ("-0.1", "0", "0.0", "0.5", "1", "1.0", "1.1", "1e-3", ".5", "1d", "NaN", "Infinity", "text", "")
_WORDS = ("", "nonsense", "-1", ",", "a,b")

_MAP = "listener.security.protocol.map"
_AB = {_MAP: "A:PLAINTEXT,B:PLAINTEXT", "listeners": "A://h:1,B://h:2"}
_SASL = {_MAP: "A:SASL_PLAINTEXT", "listeners": "A://h:1", "inter.broker.listener.name": "A"}
#: settings that depend on each other
COMBINATIONS: tuple[Settings, ...] = (
    {},
    {"zookeeper.connect": None},
    {"zookeeper.connect": ""},
    {"broker.id": "1000"},
    {"broker.id": "1001"},
    {"broker.id": "1001", "broker.id.generation.enable": "false"},
    {"broker.id": "-1", "broker.id.generation.enable": "false"},
    {"broker.id": "-2", "broker.id.generation.enable": "false"},
    {"broker.id": "5", "reserved.broker.max.id": "4"},
    {"broker.id": "5", "node.id": "5"},
    {"broker.id": "5", "node.id": "6"},
    {"log.dirs": None},
    {"log.dirs": ""},
    {"log.dirs": None, "log.dir": ""},
    {"log.dirs": ",", "log.dir": "/x"},
    {"log.roll.ms": "1", "log.roll.hours": "1"},
    {"log.roll.ms": "0", "log.roll.hours": "1"},
    {"log.retention.ms": "0"},
    {"log.retention.ms": "-2"},
    {"log.retention.minutes": "0"},
    {"log.retention.minutes": "-1"},
    {"log.retention.hours": "0"},
    {"log.retention.hours": "-5"},
    {"log.retention.minutes": "-7"},
    {"log.retention.hours": "0", "log.retention.ms": "1"},
    {"log.retention.hours": "0", "log.retention.minutes": "1"},
    {"log.roll.jitter.ms": "-1"},
    {"log.roll.jitter.hours": "-1"},
    {"log.roll.ms": "5", "log.roll.jitter.ms": "6"},
    {"log.cleaner.dedupe.buffer.size": "1048576"},
    {"log.cleaner.dedupe.buffer.size": "1048577"},
    {"log.cleaner.dedupe.buffer.size": "2097152", "log.cleaner.threads": "2"},
    {"log.cleaner.dedupe.buffer.size": "2097154", "log.cleaner.threads": "2"},
    {"log.cleaner.threads": "0"},
    {"log.cleaner.threads": "127"},
    {"log.cleaner.threads": "128"},
    {"log.cleaner.dedupe.buffer.size": "1", "log.cleaner.enable": "false"},
    {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"},
    {"replica.fetch.wait.max.ms": "30000"},
    {"replica.fetch.wait.max.ms": "30001"},
    {"replica.fetch.wait.max.ms": "30001", "replica.socket.timeout.ms": "30001"},
    {"replica.fetch.wait.max.ms": "30001", "replica.lag.time.max.ms": "30001"},
    {"replica.fetch.wait.max.ms": "30001", "replica.lag.time.max.ms": "30001", "replica.socket.timeout.ms": "30001"},
    {"replica.socket.timeout.ms": "499"},
    {"replica.lag.time.max.ms": "499"},
    {"min.insync.replicas": "3", "default.replication.factor": "2"},
    {"default.replication.factor": "0"},
    {"default.replication.factor": "40000"},
    {"queued.max.request.bytes": "104857599"},
    {"queued.max.request.bytes": "104857600"},
    {"queued.max.request.bytes": "99", "socket.request.max.bytes": "100"},
    {"queued.max.request.bytes": "100", "socket.request.max.bytes": "100"},
    {"max.connections.per.ip": "0"},
    {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
    {"max.connections.per.ip.overrides": "127.0.0.1"},
    {"max.connections.per.ip.overrides": "127.0.0.1:x"},
    {"max.connections.per.ip.overrides": "127.0.0.1:5,127.0.0.2:6"},
    {"max.connections.per.ip.overrides": "127.0.0.1:-5"},
    {"max.connections.per.ip.overrides": "localhost:5"},
    {"max.connections.per.ip.overrides": ":5"},
    {"max.connections.per.ip.overrides": "::1:5"},
    {"connections.max.idle.ms": "100"},
    {"connections.max.idle.ms": "101"},
    {"connections.max.idle.ms": "0"},
    {"connections.max.idle.ms": "-1"},
    {"connections.max.idle.ms": "-5"},
    {"connection.failed.authentication.delay.ms": "0", "connections.max.idle.ms": "1"},
    {"connection.failed.authentication.delay.ms": "600000"},
    {"connection.failed.authentication.delay.ms": "599999"},
    {"inter.broker.protocol.version": "3.9"},
    {"inter.broker.protocol.version": "3.8-IV0"},
    {"inter.broker.protocol.version": "4.0-IV0"},
    {"inter.broker.protocol.version": "4.1"},
    {"inter.broker.protocol.version": "0.8.0"},
    {"inter.broker.protocol.version": "0.8.1"},
    {"inter.broker.protocol.version": "0.7"},
    {"inter.broker.protocol.version": "2.4-IV9"},
    {"inter.broker.protocol.version": "3.9.1"},
    {"inter.broker.protocol.version": "3.10"},
    {"inter.broker.protocol.version": "0.10.2", "log.message.format.version": "0.10.2"},
    {"inter.broker.protocol.version": "0.10.2"},
    {"inter.broker.protocol.version": "0.11.0"},
    {"inter.broker.protocol.version": "2.0"},
    {"inter.broker.protocol.version": "0.9.0", "log.message.format.version": "0.9.0"},
    {"inter.broker.protocol.version": "0.9.0", "log.message.format.version": "0.10.0"},
    {"log.message.format.version": "nonsense"},
    {"log.message.format.version": "4.0"},
    {"log.message.format.version": "2.8", "inter.broker.protocol.version": "2.0"},
    {"compression.type": "zstd", "inter.broker.protocol.version": "2.0"},
    {"compression.type": "zstd", "inter.broker.protocol.version": "2.1"},
    {"compression.type": "GZIP"},
    # listeners
    {"listeners": ""},
    {"listeners": "PLAINTEXT://:9092"},
    {"listeners": "PLAINTEXT://0.0.0.0:9092"},
    {"listeners": "PLAINTEXT://[::]:9092"},
    {"listeners": "PLAINTEXT://[::1]:9092"},
    {"listeners": "PLAINTEXT://::1:9092"},
    {"listeners": "PLAINTEXT://h:65535"},
    {"listeners": "PLAINTEXT://h:65536"},
    {"listeners": "PLAINTEXT://h:-1"},
    {"listeners": "PLAINTEXT://h:0"},
    {"listeners": "PLAINTEXT://h"},
    {"listeners": "PLAINTEXT:h:1"},
    {"listeners": "h:1"},
    {"listeners": "plaintext://h:1"},
    {"listeners": "PLAINTEXT://h:1,"},
    {"listeners": "PLAINTEXT://h:1, SSL://h:2"},
    {"listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"},
    {"listeners": "PLAINTEXT://h:1,SSL://h:1"},
    {"listeners": "PLAINTEXT://h:1,plaintext://h:2"},
    {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.2:1"},
    {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://[::1]:1"},
    {"listeners": "PLAINTEXT://h:0,SSL://h:0"},
    {"listeners": "UNKNOWN://h:1"},
    {"listeners": "TRACE://h:1"},
    {"listeners": "PLAINTEXT://under_score:1"},
    {"listeners": "PLAINTEXT://h/path:1"},
    {"listeners": "SSL://h:1"},
    {"listeners": "PLAINTEXT://h:99999999999"},
    {"listeners": "://h:1"},
    {"listeners": "A-B://h:1", _MAP: "A-B:PLAINTEXT", "inter.broker.listener.name": "A-B"},
    # advertised
    {"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"},
    {"advertised.listeners": "PLAINTEXT://[::]:9092"},
    {"advertised.listeners": "PLAINTEXT://h:9092"},
    {"advertised.listeners": "PLAINTEXT://:9092"},
    {"advertised.listeners": "SSL://h:9092"},
    {"advertised.listeners": "PLAINTEXT://h:0"},
    {"advertised.listeners": ""},
    {"advertised.listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"},
    {**_AB, "inter.broker.listener.name": "A", "advertised.listeners": "A://h:1,B://h:1"},
    {**_AB, "inter.broker.listener.name": "A", "advertised.listeners": "B://h:1"},
    {**_AB, "inter.broker.listener.name": "A", "advertised.listeners": "A://h:1"},
    {**_AB, "inter.broker.listener.name": "A", "listeners": "A://0.0.0.0:1,B://h:2", "advertised.listeners": "A://h:1"},
    {**_AB, "inter.broker.listener.name": "A", "listeners": "A://0.0.0.0:1,B://h:2"},
    {**_AB, "inter.broker.listener.name": "A", "advertised.listeners": "A://h:1,B://h:2,C://h:3"},
    # which listener brokers use
    _AB,
    {**_AB, "inter.broker.listener.name": "A"},
    {**_AB, "inter.broker.listener.name": "a"},
    {**_AB, "inter.broker.listener.name": "C"},
    {**_AB, "inter.broker.listener.name": ""},
    {**_AB, "inter.broker.listener.name": "A", "security.inter.broker.protocol": "PLAINTEXT"},
    {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
    {"inter.broker.listener.name": "PLAINTEXT"},
    {"security.inter.broker.protocol": "SSL"},
    {"security.inter.broker.protocol": "SSL", "listeners": "SSL://h:1"},
    {"security.inter.broker.protocol": "plaintext"},
    {"security.inter.broker.protocol": "SSL", "listeners": "SSL://h:1,PLAINTEXT://h:2"},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": "B"},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": "b"},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": "A"},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": "C"},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": ""},
    {**_AB, "inter.broker.listener.name": "A", "control.plane.listener.name": "B", "advertised.listeners": "A://h:1"},
    {"control.plane.listener.name": "PLAINTEXT"},
    # the map
    {_MAP: ""},
    {_MAP: "PLAINTEXT"},
    {_MAP: "PLAINTEXT:"},
    {_MAP: "PLAINTEXT:PLAINTEXT"},
    {_MAP: "PLAINTEXT:NONE"},
    {_MAP: "PLAINTEXT:plaintext"},
    {_MAP: "plaintext:PLAINTEXT"},
    {_MAP: "PLAINTEXT:PLAINTEXT,PLAINTEXT:SSL"},
    {_MAP: "PLAINTEXT:PLAINTEXT,plaintext:SSL"},
    {_MAP: "SSL:SSL"},
    {_MAP: "PLAINTEXT:PLAINTEXT,"},
    {_MAP: "PLAINTEXT:PLAINTEXT, SSL:SSL"},
    {_MAP: "A:B:C"},
    {_MAP: ":PLAINTEXT"},
    {_MAP: "PLAINTEXT : PLAINTEXT"},
    # SASL between brokers
    {**_SASL},
    {**_SASL, "sasl.enabled.mechanisms": "PLAIN"},
    {**_SASL, "sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"},
    {
        **_SASL,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    },
    {**_SASL, "sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
    {**_SASL, "listener.name.a.sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"},
    {"sasl.enabled.mechanisms": "NONSENSE"},
    {"sasl.mechanism.inter.broker.protocol": "NONSENSE"},
    # per listener
    {"listener.name.plaintext.max.connections": "x"},
    {"listener.name.plaintext.max.connections": "5"},
    {"listener.name.plaintext.num.network.threads": "0"},
    {"listener.name.plaintext.num.network.threads": "2"},
    {"listener.name.other.max.connections": "5"},
    {"listener.name.plaintext.nonsense": "5"},
    {"zookeeper.metadata.migration.enable": "true"},
    {"process.roles": "broker"},
    {"process.roles": "nonsense"},
    {"remote.log.storage.system.enable": "true"},
    {"unstable.api.versions.enable": "true"},
    {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"},
    {"authorizer.class.name": ""},
    {"nonsense.key": "5"},
    {"num.io.thread": "5"},
)


def cases() -> Iterator[Settings]:
    """Every honoured setting at and over its boundaries, alone; then the combinations."""
    for definition in BROKER_CONFIGS.values():
        if definition.support in (Support.LIVE, Support.HONOURED) and not definition.name.startswith("kce."):
            for text in dict.fromkeys(_texts(definition)):
                yield {definition.name: text}
    yield from COMBINATIONS


def _texts(definition: BrokerConfigDef) -> Iterator[str]:
    allowed = definition.allowed
    if definition.type in LARGEST:
        most = LARGEST[definition.type]
        yield from map(str, (-most - 2, -most - 1, -1, 0, 1, most, most + 1))
        if isinstance(allowed, Numbers):
            yield from (str(int(edge) + step) for ends in allowed.ranges for edge in ends for step in (-1, 0))
        yield from _NO_NUMBERS
        yield from _NOTATIONS if definition.name in _NOTED else ()
    elif definition.type is ConfigType.BOOLEAN:
        yield from _BOOLEANS
    elif definition.type is ConfigType.DOUBLE:
        yield from _DOUBLES
    elif isinstance(allowed, OneOf):
        yield from (*allowed.values, *(value.swapcase() for value in allowed.values), *_WORDS)
    elif definition.name not in ("log.dir", "zookeeper.connect"):
        yield from _WORDS


def whole(settings: Settings) -> dict[str, str]:
    return {key: text for key, text in {**BASE, **settings}.items() if text is not None}


def kafkas_verdicts(asked: Sequence[Settings]) -> list[str | None]:
    """Kafka's errors, None where there is none."""
    lines = ["\t".join(f"{key}={_escaped(text)}" for key, text in whole(settings).items()) for settings in asked]
    program = Path(__file__).parent / "java" / "Verdicts.java"
    ran = subprocess.run(
        [*kafka_java(), str(program)],
        input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    found = [None if line == "ok" else line for line in ran.stdout.splitlines()]
    assert len(found) == len(asked), ran.stderr[-2000:]
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(" ", "\\ ")


def recorded() -> list[tuple[Settings, str | None]]:
    return [tuple(json.loads(line)) for line in TABLE.read_text().splitlines()]


if __name__ == "__main__":
    asked = list(cases())
    lines = (json.dumps(pair, ensure_ascii=True) for pair in zip(asked, kafkas_verdicts(asked), strict=True))
    TABLE.write_text("".join(f"{line}\n" for line in lines))
