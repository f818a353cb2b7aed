"""A follower's connection to one leader (rules B5.10, B5.11, B5.40)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import trio

from kce import wire
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.log.leader_epochs import UNDEFINED, EpochEnd
from kce.broker_stub.node_client import NodeClient
from kce.broker_stub.replication.fetch_session import NO_SESSION
from kce.broker_stub.replication.follower_session import FollowerFetch, FollowerSession
from kce.wire import (
    ErrorCode,
    FetchRequest,
    FetchResponse,
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
from kce.wire.single_fetch import REQUESTS, Answered, Asked, Fetched, decode_response, encode_request
from kce.wire.transport import ConnectionLost, Dial
from kce.wire.vocabulary import Endpoint, TopicPartition, by_topic

T = TypeVar("T")

#: the first version of Fetch with the state of the replica
_REPLICA_STATE_SINCE: Final = 15


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """The leader's answer: where an epoch ends."""

    error: int
    end: EpochEnd


class LeaderConnection:
    """Owns at most one connection. Every request raises OSError, TooSlowError or wire.WireError, and it is closed then.

    Whoever has a request in progress calls ``give_up`` after its ``deadline``: a cancel scope costs a tenth of a fetch.
    """

    def __init__(self, leader: int, endpoint: Endpoint, dial: Dial, config: BrokerConfig, client_id: str) -> None:
        self.endpoint = endpoint
        self._leader = leader
        self._dial = dial
        self._config = config
        self._client_id = client_id
        self._encoded_client_id = client_id.encode()
        self._fetch_version = config.inter_broker_protocol_version.fetch_version
        self._client: NodeClient | None = None
        #: of the request in progress
        self.deadline = math.inf
        self._session = FollowerSession(config.replica_fetch_max_bytes)

    @property
    def sent(self) -> Mapping[TopicPartition, FollowerFetch]:
        """What the leader knows that we want."""
        return self._session.sent

    async def _request(
        self, message: FetchRequest | ListOffsetsRequest | OffsetForLeaderEpochRequest, version: int
    ) -> object:
        """Send a request without ApiVersions: `inter.broker.protocol.version` decides the version (rule B5.11)."""
        return await self._ask(lambda client: client.request(message, version))

    async def _ask(self, ask: Callable[[NodeClient], Awaitable[T]]) -> T:
        self.deadline = trio.current_time() + self._config.replica_socket_timeout_ms / 1000
        try:
            if self._client is None:
                with trio.fail_at(self.deadline):
                    connection = await self._dial(
                        self.endpoint.host, self.endpoint.port, to=self._leader, listener=self.endpoint.listener
                    )
                self._client = NodeClient(connection, self._client_id)
            return await ask(self._client)
        except BaseException:
            await self.aclose()
            raise
        finally:
            self.deadline = math.inf

    async def give_up(self) -> None:
        """The request in progress fails with ConnectionLost."""
        if self._client is not None:
            await self._client.aclose()

    async def aclose(self) -> None:
        client, self._client = self._client, None
        self._session.lost()
        if client is not None:
            with suppress(OSError):  # it is given up anyway
                await client.aclose()

    async def fetch(
        self, changed: Mapping[TopicPartition, FollowerFetch], forgotten: Collection[TopicPartition], broker_epoch: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Fetch the partitions of the session: ``sent``, of which these have changed or are not fetched any more.

        Partitions of which the leader has nothing to say are missing from the answer (rule B4.29).
        """
        config, session, latest = self._config, self._session, self._fetch_version
        listed = session.changes_of_a_topic(changed, forgotten, latest) if latest in REQUESTS else None
        if listed is not None:
            return await self._fetch_of_a_topic(listed, broker_epoch)
        request, version = session.request(changed, forgotten, latest)
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
        return await self._answered(response, version)

    async def _fetch_of_a_topic(
        self, listed: Mapping[TopicPartition, FollowerFetch], broker_epoch: int
    ) -> Mapping[TopicPartition, Fetched]:
        """Fetch in a session in which nothing but ``listed``, of one topic, has changed."""
        config, version = self._config, self._fetch_version
        topic, topic_id = next((partition.topic, fetch.topic_id) for partition, fetch in listed.items())
        assert topic_id is not None
        encoded_id = topic_id.bytes
        asked = [
            Asked(
                partition.partition, fetch.leader_epoch, fetch.offset, fetch.last_fetched_epoch,
                fetch.log_start_offset, config.replica_fetch_max_bytes,
            )
            for partition, fetch in listed.items()
        ]  # fmt: skip

        def encode(correlation_id: int) -> bytes:
            return encode_request(
                config.replica_fetch_wait_max_ms, config.replica_fetch_min_bytes,
                config.replica_fetch_response_max_bytes, *self._session.id_and_epoch, encoded_id, asked,
                config.broker_id, broker_epoch, api_version=version, correlation_id=correlation_id,
                client_id=self._encoded_client_id,
            )  # fmt: skip

        async def ask(client: NodeClient) -> tuple[int, list[Answered]] | wire.Message:
            frame = await client.exchange(encode)
            found = decode_response(frame, encoded_id)
            if found is not None:
                return found
            return wire.decode_response(frame, api_key=FetchRequest.__api_key__, api_version=version)[1]

        response = await self._ask(ask)
        if not isinstance(response, tuple):
            return await self._answered(response, version)
        session_id, found = response
        self._session.answered(session_id)
        return {TopicPartition(topic, data.partition_index): data for data in found}

    async def _answered(self, response: object, version: int) -> Mapping[TopicPartition, Fetched]:
        assert isinstance(response, FetchResponse)
        session = self._session
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            session.answered(NO_SESSION)
            return {}
        if response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH:
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
        """Error code and offset, for a timestamp of `lookup`: the earliest or the latest.

        An answer without an offset is an error, too: the follower tries again.
        """
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
        for data in (data for topic in response.topics for data in topic.partitions):
            offset = next(iter(data.old_style_offsets), UNDEFINED) if version == 0 else data.offset
            if offset >= 0 or data.error_code != ErrorCode.NONE:
                return data.error_code, offset
        return ErrorCode.UNKNOWN_SERVER_ERROR, UNDEFINED
