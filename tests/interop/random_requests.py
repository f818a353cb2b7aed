"""Random requests of all APIs that clients use, with values that mean something and values that no client sends.

What only one broker knows (ids that it gave) is a ``Given``, which each twin replaces by its own.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from kce.wire.registry import BY_KEY, message_class
from tests.broker_stub.log.support import batch

#: partitions of the topics that are there
TOPICS: Final = {"t1": 3, "t2": 1, "c1": 1}
#: of brokers and controllers, of logins, and of what is asked of an active controller by brokers
LEFT_OUT: Final = frozenset(
    {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition", "AllocateProducerIds"}
    | {"SaslHandshake", "SaslAuthenticate", "Envelope", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
)
#: how often an API is chosen, if not once
_WEIGHTS: Final = {
    "Produce": 6, "Fetch": 6, "ListOffsets": 3, "OffsetCommit": 3, "OffsetFetch": 2, "JoinGroup": 4, "SyncGroup": 3,
    "Heartbeat": 2, "LeaveGroup": 2, "InitProducerId": 4, "AddPartitionsToTxn": 4, "AddOffsetsToTxn": 2, "EndTxn": 4,
    "TxnOffsetCommit": 2,
}  # fmt: skip
#: below, Kafka fills what it converts up with bytes that clients ignore
_FIRST_VERSIONS: Final = {"Fetch": 4}
#: an array of these is not empty: Kafka never answers, or keeps topics without partitions in the answer
_NEVER_EMPTY: Final = frozenset(
    {"transactions", "groups", "partitions", "partition_indexes", "partition_data", "configuration_keys"}
)
_NO_ID: Final = uuid.UUID(int=0)
_UNKNOWN_ID: Final = uuid.UUID(int=77)


class Given(NamedTuple):
    """What a twin has given: ``kind`` is topic, member, producer, epoch, session or directory."""

    kind: str
    of: str = ""


class Node(NamedTuple):
    """A message or struct, whose values are nodes, lists of nodes, ``Given``s or plain."""

    cls: type[Any]
    values: Mapping[str, Any]


class Asked(NamedTuple):
    api: str
    key: int
    version: int
    body: Node


_NAMES: Final = ["t1", "t1", "t1", "t2", "t2", "c1", "missing", "bad/name", "", "..", "x" * 249, "x" * 250, "new1"]
_INTERNAL: Final = ["__consumer_offsets", "__transaction_state"]
_GROUPS: Final = ["g1", "g1", "g2", "g3", "", " "]
_TRANSACTIONS: Final = ["tx1", "tx2", "tx3", ""]
_PRODUCERS: Final = [Given("producer", "tx1"), Given("producer", "tx1"), Given("producer", "tx2"), -1, 0, 12345]
_EPOCHS: Final = [Given("epoch", "tx1"), Given("epoch", "tx1"), 0, -1, 1, 100]
_NUMBERS: Final = [0, 0, 0, 1, 2, 3, -1, 100]
_OFFSETS: Final = [0, 0, 1, 3, 5, 100, -1, -2, 2**63 - 1]
_LEADER_EPOCHS: Final = [-1, -1, 0, 1, 100, -5]
_MEMBERS: Final = ["", Given("member", "g1"), Given("member", "g1"), Given("member", "g2"), "unknown"]
_INSTANCES: Final = [None, None, None, "i1", "i2", ""]
_GENERATIONS: Final = [-1, -1, 0, 1, 1, 2, 3, 100]
_CODES: Final = list(range(-1, 15))
#: a version 0 of the consumer protocol, without topics; Kafka hangs on other bytes
_SUBSCRIPTION: Final = struct.pack(">hii", 0, 0, -1)
_SETTINGS: Final = [
    "cleanup.policy", "max.message.bytes", "min.insync.replicas", "bogus", "segment.bytes", "num.io.threads",
    "leader.replication.throttled.replicas", "compression.type", "unclean.leader.election.enable", "flush.messages",
    "message.timestamp.type", "background.threads", "advertised.listeners", "log.cleaner.threads", "segment.ms", "",
]  # fmt: skip
#: by field, or by API and field
_VALUES: Final[Mapping[str, Sequence[Any]]] = {
    # how much is in internal topics, and when, is not compared
    "Fetch.topic": _NAMES, "DescribeLogDirs.topic": _NAMES,
    "topic": _NAMES + _INTERNAL, "topic_name": _NAMES + _INTERNAL, "name": _NAMES + _INTERNAL,
    "DeleteTopics.topic_names": ["new1", "missing", "bad/name", "..", ""], "DeleteTopics.name": ["new1", "missing", ""],
    "JoinGroup.name": ["range", "roundrobin", "range", ""],
    "AlterUserScramCredentials.name": ["alice", "bob", "", "nobody"],
    "DescribeUserScramCredentials.name": ["alice", "bob", "", "nobody"],
    "AlterConfigs.name": _SETTINGS, "IncrementalAlterConfigs.name": _SETTINGS,
    "CreateTopics.CreatableTopicConfig.name": _SETTINGS,
    "value": ["compact", "delete", "1000", "-1", "0", "abc", "", "true", "lz4", "compact,delete", "1:1", "*", None],
    "AlterClientQuotas.value": [0.0, 1.0, 1e6, 1.5, -1.0, 1e300, 0.001],
    "partition": _NUMBERS, "partition_index": _NUMBERS, "partition_indexes": _NUMBERS, "index": _NUMBERS,
    "partitions": [0, 0, 1, 2, 3, -1],
    "group_id": _GROUPS, "group": _GROUPS, "groups": _GROUPS, "groups_names": _GROUPS,
    "AlterClientQuotas.key": ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "bogus", ""],
    "key": _GROUPS + _TRANSACTIONS, "coordinator_keys": _GROUPS + _TRANSACTIONS, "key_type": [0, 0, 1, 1, 2, -1, 5],
    "transactional_id": _TRANSACTIONS, "transactional_ids": _TRANSACTIONS,
    "v3_and_below_transactional_id": _TRANSACTIONS,
    "topic_id": [Given("topic", "t1"), Given("topic", "t2"), Given("topic", "c1"), _UNKNOWN_ID],
    "replica_directory_id": [_NO_ID],
    "member_id": _MEMBERS, "group_instance_id": _INSTANCES,
    "generation_id": _GENERATIONS, "generation_id_or_member_epoch": _GENERATIONS,
    "session_timeout_ms": [60_000, 60_000, 300_000, 100, 2_000_000, -1],
    "rebalance_timeout_ms": [60_000, 60_000, 300_000], "transaction_timeout_ms": [60_000, 900_000, 900_001, 0, -1],
    "producer_id": _PRODUCERS, "v3_and_below_producer_id": _PRODUCERS,
    "producer_epoch": _EPOCHS, "v3_and_below_producer_epoch": _EPOCHS,
    "producer_id_filters": [0, 1, -1, 12345],
    "max_wait_ms": [0, 0, 100, -1], "min_bytes": [0, 1, 1, -1, 100_000],
    "max_bytes": [0, 1, 100, 10**6, 10**6, -1, 2**31 - 1],
    "partition_max_bytes": [0, 1, 100, 10**6, 10**6, -1, 2**31 - 1],
    "session_id": [0, 0, 0, Given("session"), 77], "session_epoch": [-1, -1, 0, 1, 2, 5],
    "replica_id": [-1, -1, -1, -2, -3, 1, 5],
    "broker_ids": [1, 1, 1, 2, -1], "replicas": [1, 1, 1, 2, -1], "num_partitions": [1, 2, -1, 0, 3, -2, 10_001],
    "count": [1, 3, 4, 5, 0, -1], "replication_factor": [1, 1, -1, 0, 2, -2],
    "timeout_ms": [0, 1000, 5000, 5000, -1], "CreateTopics.timeout_ms": [20_000], "DeleteTopics.timeout_ms": [20_000],
    "CreatePartitions.timeout_ms": [20_000],
    # what they change takes effect some time later
    "AlterConfigs.validate_only": [True], "IncrementalAlterConfigs.validate_only": [True],
    "AlterClientQuotas.validate_only": [True],
    "current_leader_epoch": _LEADER_EPOCHS, "leader_epoch": _LEADER_EPOCHS, "last_fetched_epoch": [-1, -1, 0, 5],
    "fetch_offset": _OFFSETS, "offset": _OFFSETS, "committed_offset": _OFFSETS, "log_start_offset": _OFFSETS,
    "timestamp": [-1, -2, -3, -4, -5, -6, 0, 1000, 1_700_000_000_000, 2**63 - 1],
    "max_num_offsets": [1, 1, 2, 0], "isolation_level": [0, 0, 1, 2], "acks": [-1, -1, 1, 1, 2],
    "protocol_type": ["consumer", "consumer", "consumer", "connect", ""], "protocol_name": ["range", None],
    "assignment": [_SUBSCRIPTION], "metadata": [_SUBSCRIPTION],
    "states_filter": ["Stable", "Empty", "Dead", "stable", "Bogus", "", "PreparingRebalance"],
    "state_filters": ["Ongoing", "Empty", "Bogus", ""], "types_filter": ["classic", "consumer", "Classic", "bogus", ""],
    "AlterConfigs.resource_type": [2, 2, 4, 8, 4, 16, 99],  # Kafka takes unknown ones for the same
    "IncrementalAlterConfigs.resource_type": [2, 2, 4, 8, 4, 0, 1, 16, 99, -1],
    "DescribeConfigs.resource_type": [2, 2, 4, 4, 16, 2, 4, 99, -1],
    "resource_type": _CODES, "resource_type_filter": _CODES, "operation": _CODES, "permission_type": _CODES,
    "pattern_type_filter": _CODES, "resource_pattern_type": _CODES,
    "resource_name": ["t1", "t2", "c1", "1", "", "2", "missing", "bad/name", "abc"],
    "resource_name_filter": ["t1", "*", "", None],
    "config_operation": [0, 1, 2, 3, 4, -1],
    "configuration_keys": ["cleanup.policy", "max.message.bytes", "bogus", "log.cleaner.threads", ""],
    "election_type": [0, 1, 2, -1], "endpoint_type": [1, 1, 2, 0],
    "principal": ["User:alice", "User:*", "bogus", ""], "principal_filter": ["User:alice", "bogus", None],
    "host": ["*", "127.0.0.1", ""], "host_filter": ["*", "", None],
    "path": [Given("directory"), "/nonexistent", "relative"],
    "entity_type": ["user", "client-id", "ip", "bogus", ""],
    "entity_name": ["alice", "app", None, "127.0.0.1", "no address", ""], "match": ["alice", "app", None],
    "match_type": [0, 1, 2, 3, -1], "feature": ["metadata.version", "bogus", ""], "upgrade_type": [1, 2, 3, 0],
    "mechanism": [0, 1, 2, 3, -1], "iterations": [4096, 8192, 1, 0, -1, 16_385],
    "salt": [b"abc", b"", b"x" * 32], "salted_password": [b"abc", b"", b"x" * 32], "hmac": [b"abc"],
    "client_software_name": ["app", "", "bad name!"], "client_software_version": ["1", "", "1 2"],
    "committed_metadata": ["", None, "m", "x" * 5000], "retention_time_ms": [-1, -1, 100_000],
    "expiry_time_period_ms": [-1, 0, 1000], "max_lifetime_ms": [-1, 0, 1000], "renew_period_ms": [-1, 0, 1000],
}  # fmt: skip
#: of other fields, by type
_BY_TYPE: Final[Mapping[str, Sequence[Any]]] = {
    "bool": [False, True], "int8": [-1, 0, 1, 2, 3, 5], "int16": [-1, 0, 1, 2, 100],
    "int32": [-(2**31), -2, -1, 0, 1, 2, 5, 100, 2**31 - 1], "int64": [-(2**63), -2, -1, 0, 1, 5, 1000, 2**63 - 1],
    "string": ["", "a", "x"], "bytes": [b"abc"], "uuid": [_NO_ID],
}  # fmt: skip
_EMPTY: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b""}


def asked(random: Random, versions: Mapping[int, tuple[int, int]], now_ms: int) -> Asked:
    """A request of an API and version that both brokers serve."""
    keys = [key for key in versions if BY_KEY[key].name not in LEFT_OUT]
    (key,) = random.choices(keys, [_WEIGHTS.get(BY_KEY[key].name, 1) for key in keys])
    api, (first, last) = BY_KEY[key].name, versions[key]
    version = random.randint(max(first, _FIRST_VERSIONS.get(api, 0)), last)
    cls = message_class(key, "request")
    assert cls is not None
    return Asked(api, key, version, _node(random, cls, api, version, now_ms))


def _node(random: Random, cls: type[Any], api: str, version: int, now_ms: int) -> Node:
    values: dict[str, Any] = {}
    for field in cls.__fields__:
        if version not in field.versions or (version in field.tagged and random.random() < 0.8):
            continue

        def one(field: Any = field) -> Any:
            if isinstance(field.type, type):
                return _node(random, field.type, api, version, now_ms)
            return _records(random, now_ms) if field.name == "records" else _value(random, cls, api, field)

        can_be_null = version in field.nullable
        if field.array:
            may = can_be_null and field.name not in _NEVER_EMPTY and api != "DescribeLogDirs"
            is_null = may and random.random() < 0.15
            values[field.name] = None if is_null else _some(random, one, least=field.name in _NEVER_EMPTY)
        else:
            value = one()
            if value is None and not can_be_null:
                value = _EMPTY[field.type.name]
            values[field.name] = value
    return Node(cls, values)


def _some(random: Random, one: Any, *, least: bool) -> list[Any]:
    """Different in their first values, by which they are told apart."""
    made = [one() for _ in range(random.choice([int(least), 1, 1, 1, 2, 3]))]
    names = {}
    for value in made:
        plain = [v for v in value.values.values() if not isinstance(v, list)] if isinstance(value, Node) else [value]
        is_config = isinstance(value, Node) and "resource_name" in value.values
        names[repr(plain[: 2 if is_config else 1])] = value
    return [value for value in names.values() if value is not None] or ([made[0]] if least else [])


def _value(random: Random, cls: type[Any], api: str, field: Any) -> Any:
    for name in (f"{api}.{cls.__name__}.{field.name}", f"{api}.{field.name}", field.name):
        if name in _VALUES:
            return random.choice(_VALUES[name])
    return random.choice(_BY_TYPE[field.type.name])


def _records(random: Random, now_ms: int) -> bytes:
    """Mostly one good batch; or cut, twice, of another magic, with a wrong checksum, or with a changed header."""
    good = batch(b"a", b"b", timestamp=now_ms)
    changed = bytearray(good)
    match random.choices(("good", "none", "cut", "twice", "magic", "crc", "header"), (12, 1, 1, 1, 1, 1, 4))[0]:
        case "none":
            return b""
        case "cut":
            return good[: random.randrange(1, len(good))]
        case "twice":
            return good * 2
        case "magic":
            changed[16] = random.choice([0, 1, 3, 0xFF])
        case "crc":
            changed[17] ^= 0xFF
        case "header":
            at = random.choice([0, 8, 12, 23, 43, 51, 53, 57])  # not codec and times, which Kafka finds in the records
            changed[at : at + 2] = random.choice([b"\xff\xff", b"\0\1", b"\x7f\xff"])
            changed[17:21] = struct.pack(">I", crc32c(bytes(changed[21:])))
    return bytes(changed)


def text_of(value: Any) -> str:
    """For a report."""
    match value:
        case Given():
            return f"<{value.kind} {value.of}>"
        case Node():
            return f"{value.cls.__name__}({', '.join(f'{k}={text_of(v)}' for k, v in value.values.items())})"
        case list():
            return f"[{', '.join(map(text_of, value))}]"
        case str() if len(value) > 100:
            return f"{value[:1]!r} * {len(value)}"
        case bytes():
            return value.hex()
    return repr(value)
