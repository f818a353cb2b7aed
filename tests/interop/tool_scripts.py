"""What is run with each of Kafka's command-line tools, and how what they print is made comparable.

A script is a list of runs, the same against two clusters of brokers 1, 2 and 3. A run may prepare what the next ones
need; what it prints is compared, but for what differs by itself: addresses, ids, times, folders, rates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.interop.tools import ELECTION, REASSIGN, TOPICS

CONFIGS = "kafka.admin.ConfigCommand"
ACLS = "kafka.admin.AclCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
PRODUCER = "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
API_VERSIONS = "kafka.admin.BrokerApiVersionsCommand"
CLUSTERS = "org.apache.kafka.tools.ClusterTool"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLIENT_METRICS = "org.apache.kafka.tools.ClientMetricsCommand"
LATENCY = "org.apache.kafka.tools.EndToEndLatency"
STREAMS_RESET = "org.apache.kafka.tools.StreamsResetter"


#: an argument that stands for the bootstrap servers
SERVERS = "{servers}"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a tool: its class, its arguments besides the bootstrap servers, what it reads."""

    tool: str
    arguments: tuple[str, ...]
    reads: str = ""
    #: the name of the option with the bootstrap servers, if these are not among the arguments, as ``SERVERS``
    bootstrap: str = "--bootstrap-server"
    #: whether its lines come in any order
    is_unordered: bool = False

    def __str__(self) -> str:
        return f"{self.tool.rsplit('.', 1)[1]} {' '.join(self.arguments)}"


def run(
    tool: str, *arguments: str, reads: str = "", bootstrap: str = "--bootstrap-server", is_unordered: bool = False
) -> Run:
    return Run(tool, arguments, reads, bootstrap, is_unordered)


def plan(folder: Path, name: str, what: object) -> str:
    """The path of a file of JSON."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(what))
    return str(path)


def topics(folder: Path) -> Iterator[Run]:
    yield run(TOPICS, "--create", "--topic", "orders", "--replica-assignment", "1:2:3,2:3:1,3:1:2")
    yield run(TOPICS, "--create", "--topic", "single", "--replica-assignment", "2")
    yield run(TOPICS, "--create", "--topic", "orders", "--partitions", "1")
    yield run(TOPICS, "--create", "--topic", "orders", "--partitions", "1", "--if-not-exists")
    yield run(TOPICS, "--create", "--topic", "few", "--replica-assignment", "1", "--config", "retention.ms=1000")
    yield run(TOPICS, "--create", "--topic", "many", "--replication-factor", "4")
    yield run(TOPICS, "--create", "--topic", "bad", "--partitions", "0")
    yield run(TOPICS, "--create", "--topic", "bad", "--config", "retention.ms=soon")
    yield run(TOPICS, "--create", "--topic", "bad", "--config", "retention.milliseconds=1")
    yield run(
        TOPICS, "--create", "--topic", "bad", "--replica-assignment", "1", "--config", "remote.storage.enable=true"
    )
    yield run(TOPICS, "--create", "--topic", "a/b")
    yield run(TOPICS, "--create", "--topic", "with.dot", "--replica-assignment", "2")
    yield run(TOPICS, "--create", "--topic", "with_dot", "--replica-assignment", "2")
    yield run(TOPICS, "--list")
    yield run(TOPICS, "--list", "--exclude-internal")
    yield run(TOPICS, "--describe")
    yield run(TOPICS, "--describe", "--topic", "orders")
    yield run(TOPICS, "--describe", "--topic", "nowhere")
    for what in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        yield run(TOPICS, "--describe", f"--{what}-partitions")
    yield run(TOPICS, "--describe", "--topics-with-overrides")
    yield run(TOPICS, "--alter", "--topic", "few", "--partitions", "3", "--replica-assignment", "1,2,3")
    yield run(TOPICS, "--alter", "--topic", "few", "--partitions", "2")
    for count, added in (("4", "9"), ("5", "1"), ("4", "1:2")):  # an unknown broker, too few, and too many replicas
        yield run(TOPICS, "--alter", "--topic", "few", "--partitions", count, "--replica-assignment", f"1,2,3,{added}")
    yield run(TOPICS, "--alter", "--topic", "nowhere", "--partitions", "2")
    yield run(TOPICS, "--describe", "--topic", "few")
    yield run(TOPICS, "--delete", "--topic", "with.dot")
    yield run(TOPICS, "--delete", "--topic", "nowhere")


def configs(folder: Path) -> Iterator[Run]:
    orders = "--entity-type", "topics", "--entity-name", "orders"
    yield run(CONFIGS, "--describe", *orders)
    yield run(CONFIGS, "--describe", *orders, "--all")
    yield run(CONFIGS, "--alter", *orders, "--add-config", "retention.ms=86400000,cleanup.policy=[compact,delete]")
    yield run(CONFIGS, "--describe", *orders)
    yield run(CONFIGS, "--alter", *orders, "--add-config", "retention.ms=soon")
    yield run(CONFIGS, "--alter", *orders, "--add-config", "no.such.config=1")
    yield run(CONFIGS, "--alter", *orders, "--delete-config", "cleanup.policy")
    yield run(CONFIGS, "--alter", *orders, "--delete-config", "no.such.config")
    yield run(CONFIGS, "--describe", *orders)
    yield run(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "nowhere")
    yield run(
        CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", "nowhere", "--add-config", "retention.ms=1"
    )
    broker = "--entity-type", "brokers", "--entity-name", "2"
    yield run(CONFIGS, "--describe", *broker)
    yield run(CONFIGS, "--alter", *broker, "--add-config", "log.cleaner.threads=2")
    yield run(CONFIGS, "--alter", *broker, "--add-config", "num.network.threads=0")
    yield run(CONFIGS, "--alter", *broker, "--add-config", "broker.id=7")
    yield run(CONFIGS, "--alter", *broker, "--add-config", "log.roll.ms=-1")
    yield run(
        CONFIGS, "--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "message.max.bytes=999"
    )
    yield run(CONFIGS, "--describe", *broker)
    yield run(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-default")
    yield run(CONFIGS, "--alter", *broker, "--delete-config", "log.cleaner.threads")
    yield run(
        CONFIGS, "--alter", "--entity-type", "brokers", "--entity-default", "--delete-config", "message.max.bytes"
    )
    yield run(CONFIGS, "--describe", "--entity-type", "brokers")
    user = "--entity-type", "users", "--entity-name", "alice"
    client = "--entity-type", "clients", "--entity-name", "app"
    yield run(CONFIGS, "--alter", *user, "--add-config", "producer_byte_rate=1000,consumer_byte_rate=2000")
    yield run(CONFIGS, "--alter", *user, *client, "--add-config", "request_percentage=50")
    yield run(
        CONFIGS, "--alter", "--entity-type", "clients", "--entity-default", "--add-config", "request_percentage=7"
    )
    yield run(CONFIGS, "--alter", *client, "--add-config", "producer_byte_rate=much")
    yield run(CONFIGS, "--alter", *client, "--add-config", "no_such_rate=1")
    yield run(CONFIGS, "--describe", "--entity-type", "users")
    yield run(CONFIGS, "--describe", *user)
    yield run(CONFIGS, "--describe", "--entity-type", "users", "--entity-type", "clients")
    yield run(CONFIGS, "--describe", "--entity-type", "clients")
    yield run(CONFIGS, "--alter", *user, "--delete-config", "producer_byte_rate,consumer_byte_rate")
    yield run(CONFIGS, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=secret]")
    yield run(CONFIGS, "--describe", *user)
    yield run(CONFIGS, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
    yield run(CONFIGS, "--alter", *user, "--delete-config", "SCRAM-SHA-512")
    address = "--entity-type", "ips", "--entity-name", "10.1.2.3"
    yield run(CONFIGS, "--alter", *address, "--add-config", "connection_creation_rate=10")
    yield run(CONFIGS, "--describe", "--entity-type", "ips")
    yield run(CONFIGS, "--alter", *address, "--delete-config", "connection_creation_rate")
    logger = "--entity-type", "broker-loggers", "--entity-name", "1"
    yield run(CONFIGS, "--alter", *logger, "--add-config", "no.such.logger=LOUD")
    yield run(CONFIGS, "--alter", *logger, "--add-config", "root=LOUD")
    yield run(CONFIGS, "--alter", *logger, "--add-config", "root=ERROR")
    yield run(CONFIGS, "--alter", *logger, "--delete-config", "root")
    yield run(CONFIGS, "--alter", *broker, "--add-config", "num.io.threads=100")
    yield run(CONFIGS, "--alter", *broker, "--add-config", "num.io.threads=many")
    for refused in (
        "num.network.threads=7", "listener.name.data.num.network.threads=7", "num.replica.fetchers=3",
        "num.recovery.threads.per.data.dir=3", "background.threads=4", "log.cleaner.threads=3",
        "ssl.keystore.location=/nowhere",
        "listener.name.data.ssl.keystore.password=secret", "listener.name.data.max.connections=0",
    ):  # fmt: skip
        yield run(CONFIGS, "--alter", *broker, "--add-config", refused)
    for_all = "--entity-type", "brokers", "--entity-default"
    for of_one in ("listeners=DATA://:1", "listener.name.data.ssl.keystore.location=/nowhere"):
        yield run(CONFIGS, "--alter", *for_all, "--add-config", of_one)
    threads = "num.network.threads=4,num.replica.fetchers=2,background.threads=11,log.cleaner.threads=2"
    yield run(CONFIGS, "--alter", *broker, "--add-config", threads)
    yield run(CONFIGS, "--describe", *broker)
    names = ",".join(setting.partition("=")[0] for setting in threads.split(","))
    yield run(CONFIGS, "--alter", *broker, "--delete-config", names)


def acls(folder: Path) -> Iterator[Run]:
    yield run(ACLS, "--list", is_unordered=True)
    yield run(ACLS, "--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "", is_unordered=True)
    yield run(
        ACLS, "--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders", is_unordered=True
    )
    yield run(
        ACLS, "--add", "--deny-principal", "User:mallory", "--deny-host", "10.0.0.1", "--operation", "All",
        "--topic", "or", "--resource-pattern-type", "prefixed", is_unordered=True,
    )  # fmt: skip
    yield run(ACLS, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "*", is_unordered=True)
    yield run(
        ACLS,
        "--add",
        "--allow-principal",
        "User:bob",
        "--consumer",
        "--topic",
        "orders",
        "--group",
        "g",
        is_unordered=True,
    )
    yield run(ACLS, "--list", is_unordered=True)
    yield run(ACLS, "--list", "--topic", "orders", is_unordered=True)
    yield run(ACLS, "--list", "--topic", "orders", "--resource-pattern-type", "match", is_unordered=True)
    yield run(ACLS, "--list", "--principal", "User:alice", is_unordered=True)
    yield run(
        ACLS, "--remove", "--force", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders",
        is_unordered=True,
    )  # fmt: skip
    yield run(ACLS, "--remove", "--force", "--topic", "or", "--resource-pattern-type", "prefixed", is_unordered=True)
    yield run(ACLS, "--list", is_unordered=True)


def records(folder: Path) -> Iterator[Run]:
    lines = "".join(f"k{n}:v{n}\n" for n in range(9))
    keyed = "--property", "parse.key=true", "--property", "key.separator=:"
    yield run(PRODUCER, "--topic", "orders", *keyed, reads=lines)
    yield run(PRODUCER, "--topic", "orders", *keyed, "--compression-codec", "zstd", "--sync", reads=lines)
    shown = "--property", "print.key=true", "--property", "print.offset=true", "--property", "print.partition=true"
    for number in range(3):
        yield run(
            CONSUMER, "--topic", "orders", "--partition", str(number), "--offset", "earliest", "--timeout-ms", "2000",
            *shown,
        )  # fmt: skip
    yield run(
        CONSUMER, "--topic", "orders", "--group", "readers", "--from-beginning", "--max-messages", "18",
        "--timeout-ms", "20000", is_unordered=True,
    )  # fmt: skip
    yield run(
        PRODUCER_PERFORMANCE, "--topic", "single", "--num-records", "1000", "--record-size", "100",
        "--throughput", "-1", "--producer-props", "acks=all", bootstrap="",
    )  # fmt: skip
    yield run(CONSUMER_PERFORMANCE, "--topic", "single", "--messages", "1000", "--group", "perf", "--timeout", "20000")
    yield run(VERIFIABLE_PRODUCER, "--topic", "single", "--max-messages", "5")
    yield run(
        VERIFIABLE_CONSUMER, "--topic", "orders", "--group-id", "verified", "--max-messages", "18",
        "--reset-policy", "earliest", is_unordered=True,
    )  # fmt: skip
    for arguments in (
        ("--topic", "orders"), ("--topic-partitions", "orders:0,single:0"), ("--time", "earliest"),
        ("--topic", "orders", "--time", "max-timestamp"), ("--topic", "nowhere"),
        ("--topic", "ord.*", "--partitions", "1"),
        ("--exclude-internal-topics",), ("--topic", "orders", "--time", "1"),
    ):  # fmt: skip
        yield run(OFFSETS, *arguments)
    some = {"partitions": [{"topic": "orders", "partition": 0, "offset": 2}], "version": 1}
    yield run(DELETE_RECORDS, "--offset-json-file", plan(folder, "some", some))
    beyond = {"partitions": [{"topic": "orders", "partition": 1, "offset": 999}], "version": 1}
    yield run(DELETE_RECORDS, "--offset-json-file", plan(folder, "beyond", beyond))
    yield run(OFFSETS, "--topic", "orders", "--time", "earliest")


def groups(folder: Path) -> Iterator[Run]:
    yield run(GROUPS, "--list")
    yield run(GROUPS, "--list", "--state")
    yield run(GROUPS, "--describe", "--group", "readers")
    yield run(GROUPS, "--describe", "--group", "readers", "--members")
    yield run(GROUPS, "--describe", "--group", "readers", "--state")
    yield run(GROUPS, "--describe", "--all-groups")
    yield run(GROUPS, "--describe", "--group", "nobody")
    earliest = "--reset-offsets", "--group", "readers", "--topic", "orders", "--to-earliest"
    yield run(GROUPS, *earliest, "--dry-run")
    yield run(GROUPS, *earliest, "--execute")
    yield run(GROUPS, "--reset-offsets", "--group", "readers", "--topic", "orders:1", "--shift-by", "1", "--execute")
    yield run(GROUPS, "--reset-offsets", "--group", "readers", "--topic", "nowhere", "--to-latest", "--execute")
    yield run(GROUPS, "--describe", "--group", "readers", "--offsets")
    yield run(GROUPS, "--delete-offsets", "--group", "readers", "--topic", "orders:0")
    yield run(GROUPS, "--delete-offsets", "--group", "nobody", "--topic", "orders")
    for arguments in (
        ("--application-id", "readers", "--input-topics", "orders", "--dry-run"),
        ("--application-id", "readers", "--input-topics", "orders", "--to-latest"),
        ("--application-id", "readers", "--input-topics", "nowhere"),
        ("--application-id", "nobody"),
    ):
        yield run(STREAMS_RESET, *arguments)
    yield run(GROUPS, "--describe", "--group", "readers", "--offsets")
    yield run(GROUPS, "--delete", "--group", "readers", "--group", "nobody")
    yield run(GROUPS, "--list")


def cluster(folder: Path) -> Iterator[Run]:
    yield run(ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    yield run(ELECTION, "--election-type", "preferred", "--topic", "orders", "--partition", "0")
    yield run(ELECTION, "--election-type", "unclean", "--topic", "orders", "--partition", "1")
    yield run(ELECTION, "--election-type", "preferred", "--topic", "nowhere", "--partition", "0")
    wanted = {"topics": [{"topic": "few"}], "version": 1}
    yield run(
        REASSIGN, "--generate", "--topics-to-move-json-file", plan(folder, "wanted", wanted), "--broker-list", "2"
    )
    moved = {"version": 1, "partitions": [{"topic": "few", "partition": 0, "replicas": [2, 3]}]}
    file = "--reassignment-json-file", plan(folder, "moved", moved)
    yield run(REASSIGN, "--verify", *file)
    unknown = {"version": 1, "partitions": [{"topic": "nowhere", "partition": 0, "replicas": [2]}]}
    yield run(REASSIGN, "--execute", "--reassignment-json-file", plan(folder, "unknown", unknown))
    nobody = {"version": 1, "partitions": [{"topic": "few", "partition": 0, "replicas": [9]}]}
    yield run(REASSIGN, "--execute", "--reassignment-json-file", plan(folder, "nobody", nobody))
    yield run(REASSIGN, "--list")
    yield run(REASSIGN, "--cancel", *file)
    yield run(LOG_DIRS, "--describe", "--topic-list", "orders", "--broker-list", "1,2")
    yield run(LOG_DIRS, "--describe", "--topic-list", "nowhere", "--broker-list", "1")
    yield run(LOG_DIRS, "--describe", "--broker-list", "9")
    yield run(CLUSTERS, "cluster-id", "--bootstrap-server", SERVERS)
    yield run(CLUSTERS, "unregister", "--bootstrap-server", SERVERS, "--id", "3")
    yield run(QUORUM, "describe", "--status")
    yield run(QUORUM, "describe", "--replication")
    yield run(CLIENT_METRICS, "--list")
    yield run(CLIENT_METRICS, "--describe", "--name", "all")
    yield run(CLIENT_METRICS, "--alter", "--name", "all", "--interval", "1000")
    yield run(CLIENT_METRICS, "--delete", "--name", "all")
    yield run(FEATURES, "describe")
    yield run(FEATURES, "upgrade", "--feature", "no.such.feature=1")
    yield run(API_VERSIONS, is_unordered=True)
    yield run(TOKENS, "--create", "--max-life-time-period", "-1", "--command-config", "{empty}")
    yield run(TOKENS, "--describe", "--command-config", "{empty}")
    yield run(TRANSACTIONS, "list")
    yield run(TRANSACTIONS, "describe", "--transactional-id", "nobody's")
    yield run(TRANSACTIONS, "describe-producers", "--topic", "orders", "--partition", "0", is_unordered=True)
    yield run(TRANSACTIONS, "find-hanging", "--topic", "orders")
    yield run(LATENCY, SERVERS, "single", "10", "all", "20")
    yield run(TOPICS, "--delete", "--topic", "few")


SCRIPTS = (topics, configs, acls, records, groups, cluster)

#: differs by itself: what is shown in its place
_SAME = (
    (r"\d+\.\d+ records/sec.*|^\d{4}-\d\d-\d\d \d\d:.*", "<rates>"),
    (r"TopicId: \S+", "TopicId: <id>"),
    (r"Cluster ID: \S+", "Cluster ID: <id>"),
    (r"^\d+\t[\d.]+$|(Avg latency|Percentiles): .*", "<times>"),
    (r"\b\d{13}\b", "<ms>"),
    (r"salt=\S+", "<credential>"),
    (r"(consumer|producer|console|verifiable)-[\w.-]*[0-9a-f]{8}-[0-9a-f-]{27}", "<member>"),
    (r'"size":[1-9]\d*', '"size":<bytes>'),  # compressed
    (r'"logDir":"[^"]*"', '"logDir":"<folder>"'),
    (r"avg_throughput.*", "<rates>"),
    (r"<broker \d> +\(\d\)", "<coordinator>"),
    (r"\tat .*|^log4j:WARN .*", ""),
    (r"\.\.\. \d+ more", "<more>"),
    (r"^\d+ +\t", "<producer> "),
    (r'"name":"(offsets_committed|records_consumed)".*', r'"name":"\1"'),
)


def comparable(ran: Run, text: str, addresses: Mapping[int, str]) -> list[str]:
    """The lines, without what differs by itself, and where a failure was found."""
    for broker, address in addresses.items():
        text = text.replace(address, f"<broker {broker}>")
        text = re.sub(rf"\b{address.rpartition(':')[2]}\b", f"<port of {broker}>", text)
    for pattern, name in _SAME:
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    # VerifiableProducer waits for answers when its JVM ends, which here are many runs later
    lines = [line.strip() for line in text.splitlines() if line.strip() and "producer_send_success" not in line]
    if ran.tool == VERIFIABLE_CONSUMER:  # it polls as often as it likes
        lines = list(set(lines))
    return sorted(lines) if ran.is_unordered else lines
