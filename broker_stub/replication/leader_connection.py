"""A follower's connection to one leader (rules B5.10, B5.11, B5.40)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.node_client import NodeClient
from kce.broker_stub.replication.follower_session import FollowerFetch, FollowerSession
from kce.wire import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchResponsePartitionData,
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

#: the first version of Fetch with the state of the replica
_REPLICA_STATE_SINCE: Final = 15
_SESSION_ERRORS: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """The leader's answer: where an epoch ends."""

    error: int
    end: EpochEnd


class LeaderConnection:
    """Owns at most one connection. Every method but ``aclose`` raises OSError, TooSlowError or wire.WireError, and is
    closed then."""

    def __init__(self, leader: int, endpoint: Endpoint, dial: Dial, config: BrokerConfig, client_id: str) -> None:
        self.endpoint = endpoint
        self._leader = leader
        self._dial = dial
        self._config = config
        self._client_id = client_id
        self._client: NodeClient | None = None
        self._session = FollowerSession(config.replica_fetch_max_bytes)

    @property
    def sent(self) -> Mapping[TopicPartition, FollowerFetch]:
        """What the leader knows that we want."""
        return self._session.sent

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
        self._session.lost()
        if client is not None:
            with suppress(OSError):  # it is given up anyway
                await client.aclose()

    async def fetch(
        self, changed: Mapping[TopicPartition, FollowerFetch], forgotten: Collection[TopicPartition], broker_epoch: int
    ) -> dict[TopicPartition, FetchResponsePartitionData]:
        """Fetch the partitions of the session: ``sent``, of which these have changed or are not fetched any more.

        Partitions of which the leader has nothing to say are missing from the answer (rule B4.29).
        """
        config, session = self._config, self._session
        request, version = session.request(changed, forgotten, config.inter_broker_protocol_version.fetch_version)
        has_state = version >= _REPLICA_STATE_SINCE
        response = await self._request(
            replace(
                request,
                replica_id=-1 if has_state else config.broker_id,
                replica_state=ReplicaState(replica_id=config.broker_id, replica_epoch=broker_epoch)
                if has_state
                else ReplicaState(),
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
            ),
            version,
        )
        assert isinstance(response, FetchResponse)
        if response.error_code in _SESSION_ERRORS:  # the next request begins another session
            session.end()
            return {}
        if response.error_code != ErrorCode.NONE:
            await self.aclose()
            raise ConnectionLost(f"Fetch failed with {error_name(response.error_code)}")
        session.answered(response.session_id)
        return session.partitions_of(response, version)

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
