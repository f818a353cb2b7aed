"""API keys, names, versions and header versions of Kafka 3.9, and the message definitions of each API.

62 APIs belong to ZooKeeper-mode brokers (rule B1.61). The others are for KRaft nodes only, and are listed so that their
traffic can be named.
"""

from __future__ import annotations

import functools
import importlib
import re
from typing import Any, Literal

from kce.wire import errors
from kce.wire.schema import Message, Versions

Direction = Literal["request", "response"]


class ApiKey:
    """One API: ``key``, Kafka's ``name``, its ``versions`` in Kafka 3.9, and which of them are ``flexible``.

    ``zk_broker``: ZooKeeper-mode brokers serve it; otherwise only KRaft nodes do.
    """

    __slots__ = ("flexible", "key", "name", "versions", "zk_broker")

    def __init__(self, key: int, name: str, versions: str, flexible: str, *, zk_broker: bool = True) -> None:
        self.key = key
        self.name = name
        self.versions = Versions.parse(versions)
        self.flexible = Versions.parse(flexible)
        self.zk_broker = zk_broker

    def __repr__(self) -> str:
        return f"<{self.name} ({self.key}) {self.versions}>"

    @property
    def module(self) -> str:
        """The module in ``wire.messages`` for its definition."""
        return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", self.name).lower()

    def request_header_version(self, version: int) -> int:
        """Rule 13.3. Only ControlledShutdown 0 has a header without client id (rule 13.4)."""
        if self.key == CONTROLLED_SHUTDOWN and version == 0:
            return 0
        return 2 if version >= self.flexible.first and self.flexible.last >= 0 else 1

    def response_header_version(self, version: int) -> int:
        """Rule 13.3. ApiVersions always has header 0, so that any client can decode it (rule B1.39)."""
        if self.key == API_VERSIONS:
            return 0
        return self.request_header_version(version) // 2


API_KEYS: tuple[ApiKey, ...] = (
    ApiKey(0, "Produce", "0-11", "9+"),
    ApiKey(1, "Fetch", "0-17", "12+"),
    ApiKey(2, "ListOffsets", "0-9", "6+"),
    ApiKey(3, "Metadata", "0-12", "9+"),
    ApiKey(4, "LeaderAndIsr", "0-7", "4+"),
    ApiKey(5, "StopReplica", "0-4", "2+"),
    ApiKey(6, "UpdateMetadata", "0-8", "6+"),
    ApiKey(7, "ControlledShutdown", "0-3", "3+"),
    ApiKey(8, "OffsetCommit", "0-9", "8+"),
    ApiKey(9, "OffsetFetch", "0-9", "6+"),
    ApiKey(10, "FindCoordinator", "0-6", "3+"),
    ApiKey(11, "JoinGroup", "0-9", "6+"),
    ApiKey(12, "Heartbeat", "0-4", "4+"),
    ApiKey(13, "LeaveGroup", "0-5", "4+"),
    ApiKey(14, "SyncGroup", "0-5", "4+"),
    ApiKey(15, "DescribeGroups", "0-5", "5+"),
    ApiKey(16, "ListGroups", "0-5", "3+"),
    ApiKey(17, "SaslHandshake", "0-1", "none"),
    ApiKey(18, "ApiVersions", "0-4", "3+"),
    ApiKey(19, "CreateTopics", "0-7", "5+"),
    ApiKey(20, "DeleteTopics", "0-6", "4+"),
    ApiKey(21, "DeleteRecords", "0-2", "2+"),
    ApiKey(22, "InitProducerId", "0-5", "2+"),
    ApiKey(23, "OffsetForLeaderEpoch", "0-4", "4+"),
    ApiKey(24, "AddPartitionsToTxn", "0-5", "3+"),
    ApiKey(25, "AddOffsetsToTxn", "0-4", "3+"),
    ApiKey(26, "EndTxn", "0-4", "3+"),
    ApiKey(27, "WriteTxnMarkers", "0-1", "1+"),
    ApiKey(28, "TxnOffsetCommit", "0-4", "3+"),
    ApiKey(29, "DescribeAcls", "0-3", "2+"),
    ApiKey(30, "CreateAcls", "0-3", "2+"),
    ApiKey(31, "DeleteAcls", "0-3", "2+"),
    ApiKey(32, "DescribeConfigs", "0-4", "4+"),
    ApiKey(33, "AlterConfigs", "0-2", "2+"),
    ApiKey(34, "AlterReplicaLogDirs", "0-2", "2+"),
    ApiKey(35, "DescribeLogDirs", "0-4", "2+"),
    ApiKey(36, "SaslAuthenticate", "0-2", "2+"),
    ApiKey(37, "CreatePartitions", "0-3", "2+"),
    ApiKey(38, "CreateDelegationToken", "0-3", "2+"),
    ApiKey(39, "RenewDelegationToken", "0-2", "2+"),
    ApiKey(40, "ExpireDelegationToken", "0-2", "2+"),
    ApiKey(41, "DescribeDelegationToken", "0-3", "2+"),
    ApiKey(42, "DeleteGroups", "0-2", "2+"),
    ApiKey(43, "ElectLeaders", "0-2", "2+"),
    ApiKey(44, "IncrementalAlterConfigs", "0-1", "1+"),
    ApiKey(45, "AlterPartitionReassignments", "0", "0+"),
    ApiKey(46, "ListPartitionReassignments", "0", "0+"),
    ApiKey(47, "OffsetDelete", "0", "none"),
    ApiKey(48, "DescribeClientQuotas", "0-1", "1+"),
    ApiKey(49, "AlterClientQuotas", "0-1", "1+"),
    ApiKey(50, "DescribeUserScramCredentials", "0", "0+"),
    ApiKey(51, "AlterUserScramCredentials", "0", "0+"),
    ApiKey(52, "Vote", "0-1", "0+", zk_broker=False),
    ApiKey(53, "BeginQuorumEpoch", "0-1", "1+", zk_broker=False),
    ApiKey(54, "EndQuorumEpoch", "0-1", "1+", zk_broker=False),
    ApiKey(55, "DescribeQuorum", "0-2", "0+", zk_broker=False),
    ApiKey(56, "AlterPartition", "0-3", "0+"),
    ApiKey(57, "UpdateFeatures", "0-1", "0+"),
    ApiKey(58, "Envelope", "0", "0+"),
    ApiKey(59, "FetchSnapshot", "0-1", "0+", zk_broker=False),
    ApiKey(60, "DescribeCluster", "0-1", "0+"),
    ApiKey(61, "DescribeProducers", "0", "0+"),
    ApiKey(62, "BrokerRegistration", "0-4", "0+", zk_broker=False),
    ApiKey(63, "BrokerHeartbeat", "0-1", "0+", zk_broker=False),
    ApiKey(64, "UnregisterBroker", "0", "0+", zk_broker=False),
    ApiKey(65, "DescribeTransactions", "0", "0+"),
    ApiKey(66, "ListTransactions", "0-1", "0+"),
    ApiKey(67, "AllocateProducerIds", "0", "0+"),
    ApiKey(68, "ConsumerGroupHeartbeat", "0", "0+"),
    ApiKey(69, "ConsumerGroupDescribe", "0", "0+"),
    ApiKey(70, "ControllerRegistration", "0", "0+", zk_broker=False),
    ApiKey(71, "GetTelemetrySubscriptions", "0", "0+", zk_broker=False),
    ApiKey(72, "PushTelemetry", "0", "0+", zk_broker=False),
    ApiKey(73, "AssignReplicasToDirs", "0", "0+", zk_broker=False),
    ApiKey(74, "ListClientMetricsResources", "0", "0+", zk_broker=False),
    ApiKey(75, "DescribeTopicPartitions", "0", "0+", zk_broker=False),
    ApiKey(76, "ShareGroupHeartbeat", "0", "0+", zk_broker=False),
    ApiKey(77, "ShareGroupDescribe", "0", "0+", zk_broker=False),
    ApiKey(78, "ShareFetch", "0", "0+", zk_broker=False),
    ApiKey(79, "ShareAcknowledge", "0", "0+", zk_broker=False),
    ApiKey(80, "AddRaftVoter", "0", "0+", zk_broker=False),
    ApiKey(81, "RemoveRaftVoter", "0", "0+", zk_broker=False),
    ApiKey(82, "UpdateRaftVoter", "0", "0+", zk_broker=False),
    ApiKey(83, "InitializeShareGroupState", "0", "0+", zk_broker=False),
    ApiKey(84, "ReadShareGroupState", "0", "0+", zk_broker=False),
    ApiKey(85, "WriteShareGroupState", "0", "0+", zk_broker=False),
    ApiKey(86, "DeleteShareGroupState", "0", "0+", zk_broker=False),
    ApiKey(87, "ReadShareGroupStateSummary", "0", "0+", zk_broker=False),
)

BY_KEY = {api.key: api for api in API_KEYS}
BY_NAME = {api.name: api for api in API_KEYS}

METADATA = BY_NAME["Metadata"].key
LEADER_AND_ISR = BY_NAME["LeaderAndIsr"].key
STOP_REPLICA = BY_NAME["StopReplica"].key
UPDATE_METADATA = BY_NAME["UpdateMetadata"].key
CONTROLLED_SHUTDOWN = BY_NAME["ControlledShutdown"].key
API_VERSIONS = BY_NAME["ApiVersions"].key
ALTER_PARTITION = BY_NAME["AlterPartition"].key

#: requests from a controller to brokers (rule 13.5)
CONTROL_REQUESTS = frozenset({LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA})


def api(api_key: int) -> ApiKey:
    """The API with that key. Raises UnknownApiKey."""
    try:
        return BY_KEY[api_key]
    except KeyError:
        raise errors.UnknownApiKey(f"no API has key {api_key}") from None


@functools.cache
def message_module(api_key: int) -> Any | None:
    """The module that defines the API's messages, or None if there is no definition."""
    name = f"kce.wire.messages.{api(api_key).module}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        return None


@functools.cache
def message_class(api_key: int, direction: Direction) -> type[Message] | None:
    """The message class of an API, or None if there is no definition."""
    module = message_module(api_key)
    return None if module is None else getattr(module, api(api_key).name + direction.capitalize())


def check_version(known: ApiKey, version: int) -> None:
    """Raise UnsupportedVersion if Kafka 3.9 does not have this version of the API."""
    if version not in known.versions:
        raise errors.UnsupportedVersion(f"{known.name} has versions {known.versions}, not {version}")
