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

#: a request has bytes that are not UTF-8 in its place
BAD_TEXT: Final = "\N{WARNING SIGN}"
#: partitions of the topics that are there
TOPICS: Final = {"t1": 3, "t2": 1, "c1": 1}
#: APIs of clients, and how often each is chosen
CLIENTS: Final = {
    **{api.name: 1 for api in BY_KEY.values() if api.key in {0, 1, 2, 3, *range(8, 52), 57, 60, 61, 65, 66}},
    "Produce": 6, "Fetch": 6, "ListOffsets": 3, "OffsetCommit": 3, "OffsetFetch": 2, "JoinGroup": 4, "SyncGroup": 3,
    "Heartbeat": 2, "LeaveGroup": 2, "InitProducerId": 4, "AddPartitionsToTxn": 4, "AddOffsetsToTxn": 2, "EndTxn": 4,
    "TxnOffsetCommit": 2, "SaslHandshake": 0, "SaslAuthenticate": 0,
}  # fmt: skip
#: the same, where ACLs may not be changed: Kafka closes the connection for codes of ACLs that are none, whoever asks
RESTRICTED: Final = {**CLIENTS, "DescribeAcls": 0, "CreateAcls": 0, "DeleteAcls": 0}
#: of controllers, and what shows what came of it
CONTROLLERS: Final = {
    "LeaderAndIsr": 6, "UpdateMetadata": 6, "StopReplica": 3, "Metadata": 3, "ListOffsets": 3, "Produce": 3, "Fetch": 2,
    "OffsetForLeaderEpoch": 2, "DeleteRecords": 1, "DescribeLogDirs": 1, "DescribeProducers": 1,
}  # fmt: skip
#: of administrators who may do everything, and whose changes are made
ADMINS: Final = {
    "CreateAcls": 4, "DescribeAcls": 4, "DeleteAcls": 2, "AlterClientQuotas": 5, "DescribeClientQuotas": 5,
    "AlterUserScramCredentials": 3, "DescribeUserScramCredentials": 3, "AlterConfigs": 2, "IncrementalAlterConfigs": 6,
    "DescribeConfigs": 6, "CreateTopics": 2, "DeleteTopics": 1, "CreatePartitions": 1, "Metadata": 1,
    "AlterPartitionReassignments": 1, "ListPartitionReassignments": 1, "ElectLeaders": 1, "DescribeCluster": 1,
}  # fmt: skip
#: below, Kafka fills what it converts up with bytes that clients ignore
_FIRST_VERSIONS: Final = {"Fetch": 4}
#: an array of these is not empty: Kafka never answers, or keeps topics without partitions in the answer
_NEVER_EMPTY: Final = frozenset(
    {"transactions", "groups", "partitions", "partition_indexes", "partition_data", "configuration_keys"}
    | {"partition_states"}
)
_NO_ID: Final = uuid.UUID(int=0)
UNKNOWN_ID: Final = uuid.UUID(int=77)


class Given(NamedTuple):
    """What a twin has given: ``kind`` is topic, member, producer, epoch, session, directory or broker epoch."""

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


def asked(api: str, version: int, body: Node) -> Asked:
    """Without fields that the version lacks."""
    return Asked(api, body.cls.__api_key__, version, _of_version(body, version))


def _of_version(value: Any, version: int) -> Any:
    if isinstance(value, list):
        return [_of_version(one, version) for one in value]
    if not isinstance(value, Node):
        return value
    names = {field.name for field in value.cls.__fields__ if version in field.versions}
    return Node(value.cls, {name: _of_version(of, version) for name, of in value.values.items() if name in names})


_NAMES: Final = [
    "t1",
    "t1",
    "t1",
    "t2",
    "t2",
    "c1",
    "missing",
    "bad/name",
    "",
    "..",
    "x" * 249,
    "x" * 250,
    "new1",
    f"t{BAD_TEXT}",
]
_HOSTED: Final = ["t1", "t1", "t2", "c1", "missing", "new1"]
_INTERNAL: Final = ["__consumer_offsets", "__transaction_state"]
GROUPS: Final = ["g1", "g1", "g2", "g3", "", " ", f"g{BAD_TEXT}"]
TRANSACTIONS: Final = ["tx1", "tx2", "tx3", "", f"tx{BAD_TEXT}"]
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
    "CreateTopics.partition_index": [0, 0, 0, 1, 2, 100],
    # a name that is no path fails the request, but in Kafka only after what came before was done
    "CreatePartitions.name": [*_HOSTED, "bad/name", "x" * 250],
    "JoinGroup.name": ["range", "roundrobin", "range", ""],
    "AlterUserScramCredentials.name": ["alice", "bob", "", "nobody", f"u{BAD_TEXT}"],
    "DescribeUserScramCredentials.name": ["alice", "bob", "", "nobody"],
    "AlterConfigs.name": _SETTINGS, "IncrementalAlterConfigs.name": _SETTINGS,
    "CreateTopics.CreatableTopicConfig.name": _SETTINGS,
    "value": ["compact", "delete", "1000", "-1", "0", "abc", "", "true", "lz4", "compact,delete", "1:1", "*", None],
    "AlterClientQuotas.value": [0.0, 1.0, 1e6, 1.5, -1.0, 1e300, 0.001],
    "partition": _NUMBERS, "partition_index": _NUMBERS, "partition_indexes": _NUMBERS, "index": _NUMBERS,
    "partitions": [0, 0, 1, 2, 3, -1],
    "group_id": GROUPS, "group": GROUPS, "groups": GROUPS, "groups_names": GROUPS,
    "AlterClientQuotas.key": ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "bogus", ""],
    "key": GROUPS + TRANSACTIONS, "coordinator_keys": GROUPS + TRANSACTIONS, "key_type": [0, 0, 1, 1, 2, -1, 5],
    "transactional_id": TRANSACTIONS, "transactional_ids": TRANSACTIONS,
    "v3_and_below_transactional_id": TRANSACTIONS,
    "topic_id": [Given("topic", "t1"), Given("topic", "t2"), Given("topic", "c1"), UNKNOWN_ID],
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
    "current_leader_epoch": _LEADER_EPOCHS, "OffsetForLeaderEpoch.leader_epoch": _LEADER_EPOCHS,
    "OffsetCommit.committed_leader_epoch": _LEADER_EPOCHS, "last_fetched_epoch": [-1, -1, 0, 5],
    "fetch_offset": _OFFSETS, "offset": _OFFSETS, "committed_offset": _OFFSETS, "log_start_offset": _OFFSETS,
    "timestamp": [-1, -2, -3, -4, -5, -6, 0, 1000, 1_700_000_000_000, 2**63 - 1],
    "max_num_offsets": [1, 1, 2, 0], "isolation_level": [0, 0, 1, 2], "acks": [-1, -1, 1, 1, 2],
    "protocol_type": ["consumer", "consumer", "consumer", "connect", ""], "protocol_name": ["range", None],
    "assignment": [_SUBSCRIPTION], "metadata": [_SUBSCRIPTION],
    "states_filter": ["Stable", "Empty", "Dead", "stable", "Bogus", "", "PreparingRebalance"],
    "state_filters": ["Ongoing", "Empty", "Bogus", ""], "types_filter": ["classic", "consumer", "Classic", "bogus", ""],
    "AlterConfigs.resource_type": [2, 2, 4, 8, 4, 99],  # Kafka takes unknown ones for the same
    "IncrementalAlterConfigs.resource_type": [2, 2, 4, 8, 4, 0, 1, 99, -1],
    "DescribeConfigs.resource_type": [2, 2, 4, 4, 16, 2, 4, 99, -1],
    "resource_type": _CODES, "resource_type_filter": _CODES, "operation": _CODES, "permission_type": _CODES,
    "pattern_type_filter": _CODES, "resource_pattern_type": _CODES,
    "resource_name": ["t1", "t2", "c1", "1", "", "2", "missing", "bad/name", "abc", f"r{BAD_TEXT}", ".."],
    "resource_name_filter": ["t1", "*", "", None],
    "config_operation": [0, 1, 2, 3, 4, -1],
    "configuration_keys": ["cleanup.policy", "max.message.bytes", "bogus", "log.cleaner.threads", ""],
    "election_type": [0, 1, 2, -1], "endpoint_type": [1, 1, 2, 0],
    "principal": ["User:alice", "User:*", "bogus", "", f"User:{BAD_TEXT}"],
    "principal_filter": ["User:alice", "bogus", None],
    "host": ["*", "127.0.0.1", ""], "host_filter": ["*", "", None],
    "path": [Given("directory"), "/nonexistent", "relative"],
    "entity_type": ["user", "client-id", "ip", "bogus", ""],
    "entity_name": ["alice", "app", None, "127.0.0.1", "no address", ""], "match": ["alice", "app", None],
    "match_type": [0, 1, 2, 3, -1], "feature": ["metadata.version", "bogus", ""], "upgrade_type": [1, 2, 3, 0],
    "mechanism": [0, 1, 2, 3, -1], "iterations": [4096, 8192, 1, 0, -1, 16_385],
    "salt": [b"abc", b"", b"x" * 32], "salted_password": [b"abc", b"", b"x" * 32], "hmac": [b"abc"],
    "client_software_name": ["app", "", "bad name!"], "client_software_version": ["1", "", "1 2"],
    "committed_metadata": ["", None, "m", "x" * 5000], "retention_time_ms": [-1, -1, 100_000],
    # of controllers
    "LeaderAndIsr.topic_name": _HOSTED, "UpdateMetadata.topic_name": _HOSTED, "StopReplica.topic_name": _HOSTED,
    "StopReplica.name": _HOSTED, "LeaderAndIsr.partition_index": [0, 0, 1, 2, 3], "controller_id": [1, 1, 9],
    "UpdateMetadata.partition_index": [0, 0, 1, 2, 3], "is_kraft_controller": [False],
    "broker_epoch": [-1, Given("broker epoch"), Given("broker epoch", "-1"), Given("broker epoch", "+1")],
    "leader": [1, 1, 1, 2, -1, -2], "isr": [1, 1, 2], "LeaderAndIsr.replicas": [1, 1, 1, 2, 3],
    "UpdateMetadata.replicas": [1, 1, 1, 2, 3], "offline_replicas": [1, 2], "adding_replicas": [2, 3],
    "removing_replicas": [3], "partition_epoch": [0, 1, 2, 5, -1], "zk_version": [0, 1, 2, 5, -1],
    "leader_recovery_state": [0, 0, 0, 1], "type": [0, 1], "delete_partitions": [False, False, True],
    "delete_partition": [False, False, True], "host_name": ["127.0.0.1"], "LeaderAndIsr.port": [1],
    "LeaderAndIsr.broker_id": [1, 2], "UpdateMetadata.id": [1, 1, 2], "UpdateMetadata.host": ["127.0.0.1"],
    "UpdateMetadata.port": [1], "listener": ["DATA", "CONTROL"], "security_protocol": [0],
    "expiry_time_period_ms": [-1, 0, 1000], "max_lifetime_ms": [-1, 0, 1000], "renew_period_ms": [-1, 0, 1000],
}  # fmt: skip
#: instead, of administrators; quotas are so large that nobody is throttled
_OF_ADMINS: Final[Mapping[str, Sequence[Any]]] = {
    "validate_only": [False, False, False, True], "AlterClientQuotas.remove": [False, False, True],
    "AlterClientQuotas.value": [1e6, 1e6, 1e9, 12_345.0, 12_345.5, -1.0, 0.0],
    "entity_type": ["user", "user", "client-id", "client-id", "ip", "bogus"],
    "entity_name": ["alice", "bob/ä", "app", "app", None, "127.0.0.1"],
    "match": ["alice", "bob/ä", "app", "app", None, "127.0.0.1"], "match_type": [0, 0, 1, 2, 2],
    "AlterClientQuotas.key": [
        "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
        "connection_creation_rate", "bogus",
    ],
    "resource_type": [2, 2, 2, 3, 4, 5], "resource_type_filter": [1, 1, 2, 2, 3, 4, 5],
    "operation": [1, 2, 3, 3, 4, 8, 10], "permission_type": [1, 2, 3, 3],
    "resource_pattern_type": [3, 3, 4], "pattern_type_filter": [1, 2, 2, 3, 3, 4],
    "CreateAcls.resource_name": ["t1", "t", "t2", "*", "kafka-cluster", "1", "a/b"],
    "resource_name_filter": ["t1", "t1", "t12", "*", None, None, "kafka-cluster", "a/b"],
    "principal": ["User:alice", "User:*", "User:bob", "Group:x"],
    "principal_filter": ["User:alice", "User:*", None, None],
    "host": ["*", "127.0.0.1"], "host_filter": ["*", None, None],
    "AlterUserScramCredentials.name": ["alice", "bob", "c d"],
    "DescribeUserScramCredentials.name": ["alice", "bob", "c d", "x"],
    "mechanism": [1, 1, 2, 2, 0], "iterations": [4096, 8192, 16_384, 1],
    "config_operation": [0, 0, 1, 2, 3], "resource_name": ["t1", "t2", "c1", "1", "", "missing"],
    "AlterConfigs.resource_type": [2, 2, 4], "IncrementalAlterConfigs.resource_type": [2, 2, 4],
    "DescribeConfigs.resource_type": [2, 2, 4], "configuration_keys": [
        "cleanup.policy", "max.message.bytes", "min.insync.replicas", "num.io.threads", "background.threads",
        "segment.ms", "compression.type", "leader.replication.throttled.replicas", "flush.messages",
    ],
}  # fmt: skip
#: of an element that is told apart by two values
_PAIRS: Final = ({"resource_name"}, {"topic_name", "partition_index"})
_OF_CONTROLLERS: Final = ("LeaderAndIsr", "UpdateMetadata", "StopReplica")
#: epochs of controllers and leaders, which grow by one in so many requests
_GROWING: Final = {"controller_epoch": 25, "leader_epoch": 8}
_IDS: Final = {
    **{name: Given("topic", name) for name in TOPICS},
    **{name: uuid.uuid5(_NO_ID, name) for name in ("missing", "new1")},
}
#: of other fields, by type
_BY_TYPE: Final[Mapping[str, Sequence[Any]]] = {
    "bool": [False, True], "int8": [-1, 0, 1, 2, 3, 5], "int16": [-1, 0, 1, 2, 100],
    "int32": [-(2**31), -2, -1, 0, 1, 2, 5, 100, 2**31 - 1], "int64": [-(2**63), -2, -1, 0, 1, 5, 1000, 2**63 - 1],
    "string": ["", "a", "x"], "bytes": [b"abc"], "uuid": [_NO_ID],
}  # fmt: skip
_EMPTY: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b""}


class Requests:
    """Makes requests. ``versions``: of the APIs, which both brokers serve. ``weights``: by API."""

    def __init__(
        self, random: Random, versions: Mapping[int, tuple[int, int]], weights: Mapping[str, int], now_ms: int
    ) -> None:
        self._random = random
        self._versions = versions
        self._weights = weights
        self._values = {**_VALUES, **_OF_ADMINS} if weights is ADMINS else _VALUES
        self._now_ms = now_ms
        self._step = 0

    def next(self) -> Asked:
        keys = list(self._versions)
        (key,) = self._random.choices(keys, [self._weights.get(BY_KEY[key].name, 0) for key in keys])
        api, (first, last) = BY_KEY[key].name, self._versions[key]
        version = self._random.randint(max(first, _FIRST_VERSIONS.get(api, 0)), last)
        cls = message_class(key, "request")
        assert cls is not None
        self._step += 1
        return Asked(api, key, version, self._node(cls, api, version))

    def _node(self, cls: type[Any], api: str, version: int) -> Node:
        random, values = self._random, {}
        for field in cls.__fields__:
            if version not in field.versions or (version in field.tagged and random.random() < 0.8):
                continue
            can_be_null = version in field.nullable
            if field.array:
                may = can_be_null and field.name not in _NEVER_EMPTY and api != "DescribeLogDirs"
                values[field.name] = None if may and random.random() < 0.15 else self._some(cls, field, api, version)
            else:
                value = self._one(cls, field, api, version)
                values[field.name] = _EMPTY[field.type.name] if value is None and not can_be_null else value
        if {"topic_name", "topic_id"} <= values.keys():
            name = values["topic_name"]
            values["topic_id"] = _IDS[name] if random.random() < 0.85 else uuid.uuid5(UNKNOWN_ID, name)
        return Node(cls, values)

    def _some(self, cls: type[Any], field: Any, api: str, version: int) -> list[Any]:
        """Different in their first values, by which they are told apart."""
        least = int(field.name in _NEVER_EMPTY)
        made = [self._one(cls, field, api, version) for _ in range(self._random.choice([least, 1, 1, 1, 2, 3]))]
        names = {}
        for value in made:
            plain = (
                [v for v in value.values.values() if not isinstance(v, list)] if isinstance(value, Node) else [value]
            )
            is_pair = isinstance(value, Node) and any(pair <= value.values.keys() for pair in _PAIRS)
            names[repr(plain[: 2 if is_pair else 1])] = value
        return [value for value in names.values() if value is not None] or made[:least]

    def _one(self, cls: type[Any], field: Any, api: str, version: int) -> Any:
        if isinstance(field.type, type):
            return self._node(field.type, api, version)
        if field.name == "records":
            return _records(self._random, self._now_ms)
        for name in (f"{api}.{cls.__name__}.{field.name}", f"{api}.{field.name}", field.name):
            if name in self._values:
                return self._random.choice(self._values[name])
        if api in _OF_CONTROLLERS and field.name in _GROWING:
            return self._step // _GROWING[field.name] + self._random.choice([0, 0, 0, 0, 1, 1, 2, -1])
        return self._random.choice(_BY_TYPE[field.type.name])


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
