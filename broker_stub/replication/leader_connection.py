"""A follower's connection to one leader (rules B5.10, B5.11, B5.40)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.node_client import NodeClient
from kce.wire import (
    ErrorCode,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    ReplicaState,
    error_name,
)
from kce.wire.transport import ConnectionLost, Dial
from kce.wire.vocabulary import Endpoint, TopicPartition, by_topic

#: the first version of Fetch with topic ids, and with the state of the replica
_IDS_SINCE: Final = 13
_REPLICA_STATE_SINCE: Final = 15


class FollowerFetch(NamedTuple):
    """A follower's fetch of one partition."""

    topic_id: UUID | None
    offset: int
    log_start_offset: int
    leader_epoch: int
    last_fetched_epoch: int


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """The leader's answer: where an epoch ends."""

    error: int
    end: EpochEnd


class LeaderConnection:
    """Owns at most one connection. Every method raises OSError, TooSlowError or wire.WireError, and is closed then."""

    def __init__(self, leader: int, endpoint: Endpoint, dial: Dial, config: BrokerConfig, client_id: str) -> None:
        self.endpoint = endpoint
        self._leader = leader
        self._dial = dial
        self._config = config
        self._client_id = client_id
        self._client: NodeClient | None = None

    async def _request(
        self, message: FetchRequest | ListOffsetsRequest | OffsetForLeaderEpochRequest, version: int
    ) -> object:
        """Send a request without ApiVersions: `inter.broker.protocol.version` decides the version (rule B5.11)."""
        try:
            with trio.fail_after(self._config.replica_socket_timeout_ms / 1000):
                if self._client is None:
                    connection = await self._dial(
                        self.endpoint.host, self.endpoint.port, to=self._leader, listener=self.endpoint.listener
                    )
                    self._client = NodeClient(connection, self._client_id)
                return await self._client.request(message, version)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def fetch(
        self, partitions: Mapping[TopicPartition, FollowerFetch], broker_epoch: int
    ) -> dict[TopicPartition, FetchResponsePartitionData]:
        config = self._config
        version = config.inter_broker_protocol_version.fetch_version
        ids = {partition.topic: fetch.topic_id for partition, fetch in partitions.items()}
        if None in ids.values():
            version = min(version, _IDS_SINCE - 1)
        names = {topic_id: topic for topic, topic_id in ids.items()}
        topics = tuple(
            FetchTopic(
                topic=topic,
                **({"topic_id": ids[topic]} if version >= _IDS_SINCE else {}),  # type: ignore[arg-type]
                partitions=tuple(
                    FetchPartition(
                        partition=number,
                        current_leader_epoch=fetch.leader_epoch,
                        fetch_offset=fetch.offset,
                        last_fetched_epoch=fetch.last_fetched_epoch if version >= 12 else UNDEFINED,
                        log_start_offset=fetch.log_start_offset,
                        partition_max_bytes=config.replica_fetch_max_bytes,
                    )
                    for number, fetch in numbered.items()
                ),
            )
            for topic, numbered in by_topic(partitions).items()
        )
        has_state = version >= _REPLICA_STATE_SINCE
        request = FetchRequest(
            replica_id=-1 if has_state else config.broker_id,
            replica_state=ReplicaState(replica_id=config.broker_id, replica_epoch=broker_epoch)
            if has_state
            else ReplicaState(),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            topics=topics,
        )
        response = await self._request(request, version)
        assert isinstance(response, FetchResponse)
        if response.error_code != ErrorCode.NONE:
            await self.aclose()
            raise ConnectionLost(f"Fetch failed with {error_name(response.error_code)}")
        return {
            TopicPartition(names[topic.topic_id] if version >= _IDS_SINCE else topic.topic, data.partition_index): data
            for topic in response.responses
            if version < _IDS_SINCE or topic.topic_id in names
            for data in topic.partitions
        }

    async def end_offsets(self, epochs: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, EpochAnswer]:
        """Look up where epochs end: partition -> (current leader epoch, requested epoch)."""
        version = self._config.inter_broker_protocol_version.offset_for_leader_epoch_version
        assert version is not None
        request = OffsetForLeaderEpochRequest(
            replica_id=self._config.broker_id,
            topics=tuple(
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=tuple(
                        OffsetForLeaderPartition(partition=number, current_leader_epoch=current, leader_epoch=epoch)
                        for number, (current, epoch) in numbered.items()
                    ),
                )
                for topic, numbered in by_topic(epochs).items()
            ),
        )
        response = await self._request(request, version)
        assert isinstance(response, OffsetForLeaderEpochResponse)
        return {
            TopicPartition(topic.topic, data.partition): EpochAnswer(
                data.error_code, EpochEnd(data.leader_epoch, data.end_offset)
            )
            for topic in response.topics
            for data in topic.partitions
        }

    async def offset(self, partition: TopicPartition, leader_epoch: int, timestamp: int) -> tuple[int, int]:
        """Error code and offset, for a timestamp of `lookup`: the earliest or the latest."""
        version = self._config.inter_broker_protocol_version.list_offsets_version
        request = ListOffsetsRequest(
            replica_id=self._config.broker_id,
            topics=(
                ListOffsetsTopic(
                    name=partition.topic,
                    partitions=(
                        ListOffsetsPartition(
                            partition_index=partition.partition, current_leader_epoch=leader_epoch, timestamp=timestamp
                        ),
                    ),
                ),
            ),
        )
        response = await self._request(request, version)
        assert isinstance(response, ListOffsetsResponse)
        (data,) = response.topics[0].partitions
        if version == 0:
            return data.error_code, data.old_style_offsets[0] if data.old_style_offsets else UNDEFINED
        return data.error_code, data.offset
