"""Exchanges as rows of the tables that ``captures.rows`` defines."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, Literal

import wire
from captures.cluster import Cluster, announced_listeners
from captures.exchanges import Request, Response
from captures.pcap import Packet
from captures.render import describe_request, describe_response, partition_errors
from captures.rows import CONNECTIONS, DECODED, LIVE_BROKER, PARTITION_STATE, Column
from captures.segments import Place, Segment, address_text, endpoint_text
from captures.tcp_streams import Endpoint
from wire import error_name
from wire.registry import CONTROL_REQUESTS

#: Of larger requests the evidence tells the first partitions; of each body at most so many characters.
MAX_EVIDENCE_PARTITIONS = 50
MAX_EVIDENCE_TEXT = 8000

#: what a broker asks the controller in its own name and epoch
BROKERS_TO_CONTROLLER = (wire.ControlledShutdownRequest, wire.AlterPartitionRequest, wire.AllocateProducerIdsRequest)

#: the requests that make up the control plane, and those that make a group rebalance
_OF_INTEREST = frozenset({*CONTROL_REQUESTS, 11, 13, 14, *(cls.__api_key__ for cls in BROKERS_TO_CONTROLLER)})
_NO_CLUSTER = Cluster()

#: Whether exchanges come with what a report shows of them, and that with payloads and secrets.
Evidence = Literal["none", "redacted", "payloads"]


def connection_text(one: Endpoint, other: Endpoint) -> str:
    """``10.0.0.1:40001 - 10.0.0.2:9092``, the same for both directions."""
    return " - ".join(_endpoint(*end) for end in sorted((one, other)))


def body_json(message: Request | Response, *, payloads: bool = False) -> str | None:
    """The decoded body as `kce decode --json` writes it: unless asked for, payloads and secrets are but sizes in it."""
    if message.body is None:
        return None
    plain = wire.as_dict(message.body, message.version, payloads=payloads)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def packet_row(file: str, packet: Packet, segment: Segment | str) -> tuple[Any, ...]:
    """A row of PACKETS."""
    common = (file, packet.number, packet.time_ns // 1000, packet.time_ns)
    cut = packet.wire_bytes - len(packet.data)
    if isinstance(segment, str):
        return (*common, segment, *(None,) * 9, cut, None)
    return (
        *common,
        None,
        connection_text((segment.source, segment.source_port), (segment.destination, segment.destination_port)),
        address_text(segment.source),
        segment.source_port,
        address_text(segment.destination),
        segment.destination_port,
        segment.sequence,
        segment.acknowledgement,
        segment.flags,
        segment.payload,
        segment.cut,
        None,
    )


def frame_row(message: Request | Response, body: str | None = None) -> tuple[Any, ...]:
    """A row of FRAMES."""
    asks = isinstance(message, Request)
    request = message if isinstance(message, Request) else message.request
    return (
        *_place(message.place),
        *_peers(request),
        not asks,
        request.api_key,
        request.api_name,
        request.version,
        request.correlation_id,
        request.client_id,
        message.frame_bytes,
        *((None, None) if asks else _place(request.place)[:2]),
        message.error_code if isinstance(message, Response) else None,
        message.error,
        body,
    )


def exchange_row(request: Request, response: Response | None) -> tuple[Any, ...]:
    """A row of EXCHANGES."""
    body = request.body
    return (
        *_place(request.place),
        *_peers(request),
        request.api_key,
        request.api_name,
        request.version,
        request.correlation_id,
        request.client_id,
        request.frame_bytes,
        request.error,
        request.answered,
        request.api_key in CONTROL_REQUESTS,
        getattr(body, "controller_id", None),
        getattr(body, "controller_epoch", None),
        getattr(body, "is_kraft_controller", None),
        body.broker_id if isinstance(body, BROKERS_TO_CONTROLLER) else None,
        getattr(body, "broker_epoch", None),
        _partition_count(body),
        getattr(body, "group_id", None),
        getattr(None if response is None else response.body, "generation_id", getattr(body, "generation_id", None)),
        *_response(response),
    )


def partition_rows(request: Request, response: Response | None) -> list[tuple[Any, ...]]:
    """Rows of PARTITIONS: none for what is no control request."""
    states = _partition_states(request, response)
    if states is None:
        return []
    body = request.body
    server, server_port = request.peers.server
    common = (
        *_place(request.place),
        connection_text(request.peers.client, request.peers.server),
        request.api_key,
        request.api_name,
        request.version,
        address_text(server),
        server_port,
        getattr(body, "controller_id", None),
        getattr(body, "controller_epoch", None),
        None if response is None else getattr(response.body, "error_code", None),
    )
    return [common + state for state in states]


def decoded_row(request: Request, response: Response | None, evidence: Evidence = "none") -> tuple[Any, ...]:
    """A row of DECODED."""
    states = _partition_states(request, response)
    live = None
    if isinstance(request.body, wire.UpdateMetadataRequest):
        live = [(b.broker_id, b.name, b.host, b.port, b.rack) for b in announced_listeners(request.body)]
    return (
        *exchange_row(request, response),
        None if states is None else [_struct(PARTITION_STATE, state) for state in states],
        None if live is None else [_struct(LIVE_BROKER, broker) for broker in live],
        evidence_of(request, response, evidence),
        None,
        None,
    )


def quality_row(quality: str) -> tuple[Any, ...]:
    """The row of DECODED that carries a task's counts."""
    return (None,) * (len(DECODED.columns) - 1) + (quality,)


def connection_row(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row of DECODED that carries a row of CONNECTIONS."""
    return (*(None,) * (len(DECODED.columns) - 2), _struct(CONNECTIONS.columns, values), None)


def _peers(request: Request) -> tuple[str, str, int, str, int]:
    client, server = request.peers.client, request.peers.server
    return connection_text(client, server), address_text(client[0]), client[1], address_text(server[0]), server[1]


def _place(place: Place) -> tuple[str, int, int]:
    return place.file, place.packet, place.time_ns // 1000


def _response(response: Response | None) -> tuple[Any, ...]:
    if response is None:
        return (None,) * 9
    code = response.error_code
    return (
        *_place(response.place),
        response.frame_bytes,
        response.error,
        response.latency_ns / 1e6,
        code,
        None if code is None else error_name(code),
        sum(1 for _, _, partition_code in partition_errors(response) if partition_code),
    )


def _struct(columns: Iterable[Column], values: tuple[Any, ...]) -> dict[str, Any]:
    return {column.name: value for column, value in zip(columns, values, strict=True)}


def _partition_states(request: Request, response: Response | None) -> list[tuple[Any, ...]] | None:
    """Rows of PARTITION_STATE, or None for a request that has none."""
    errors: dict[tuple[str, int], int] = {}
    if response is not None:
        errors = {(topic, partition): code for topic, partition, code in partition_errors(response)}
    match request.body:
        case wire.LeaderAndIsrRequest() as body:
            states = [_led(p.topic_name, None, p) for p in body.ungrouped_partition_states]
            states += [_led(t.topic_name, _topic_id(t), p) for t in body.topic_states for p in t.partition_states]
        case wire.UpdateMetadataRequest() as body:
            states = [_updated(p.topic_name, None, p) for p in body.ungrouped_partition_states]
            states += [_updated(t.topic_name, _topic_id(t), p) for t in body.topic_states for p in t.partition_states]
        case wire.StopReplicaRequest() as body:
            delete = body.delete_partitions
            states = [_stopped(p.topic_name, p.partition_index, None, delete) for p in body.ungrouped_partitions]
            states += [_stopped(t.name, index, None, delete) for t in body.topics for index in t.partition_indexes]
            states += [
                _stopped(t.topic_name, p.partition_index, p.leader_epoch, p.delete_partition)
                for t in body.topic_states
                for p in t.partition_states
            ]
        case _:
            return None
    return [state + _answer(errors.get((state[0], state[2]))) for state in states]


def has_evidence(api_key: int, evidence: Evidence) -> bool:
    """Whether ``evidence_of`` tells anything of such exchanges."""
    return evidence == "payloads" or (evidence == "redacted" and api_key in _OF_INTEREST)


def evidence_of(request: Request, response: Response | None, evidence: Evidence) -> str | None:
    """What a report shows of an exchange that something is concluded from: both bodies, within limits.

    Of APIs other than those of the control plane and of groups only if payloads are asked for: they hold little else.
    """
    body = request.body
    if body is None or not has_evidence(request.api_key, evidence):
        return None
    payloads = evidence == "payloads"
    if (_partition_count(body) or 0) > MAX_EVIDENCE_PARTITIONS:
        texts = [describe_request(body, _NO_CLUSTER)]
        texts += [describe_response(response, _NO_CLUSTER)[0]] if response is not None else []
    else:
        texts = [body_json(message, payloads=payloads) or "" for message in (request, response) if message is not None]
    return "\n".join(text if len(text) <= MAX_EVIDENCE_TEXT else f"{text[:MAX_EVIDENCE_TEXT]}..." for text in texts)


def _partition_count(body: wire.Message | None) -> int | None:
    match body:
        case wire.LeaderAndIsrRequest() | wire.UpdateMetadataRequest():
            return len(body.ungrouped_partition_states) + sum(len(t.partition_states) for t in body.topic_states)
        case wire.StopReplicaRequest():
            by_topic = sum(len(t.partition_indexes) for t in body.topics)
            return len(body.ungrouped_partitions) + by_topic + sum(len(t.partition_states) for t in body.topic_states)
        case _:
            return None


def _led(topic: str, topic_id: str | None, p: wire.LeaderAndIsrPartitionState) -> tuple[Any, ...]:
    return (
        topic, topic_id, p.partition_index, p.controller_epoch, p.leader, p.leader_epoch, p.isr, p.partition_epoch,
        p.replicas, p.adding_replicas, p.removing_replicas, None, p.is_new, None,
    )  # fmt: skip


def _updated(topic: str, topic_id: str | None, p: wire.UpdateMetadataPartitionState) -> tuple[Any, ...]:
    return (
        topic, topic_id, p.partition_index, p.controller_epoch, p.leader, p.leader_epoch, p.isr, p.zk_version,
        p.replicas, None, None, p.offline_replicas, None, None,
    )  # fmt: skip


def _stopped(topic: str, partition: int, leader_epoch: int | None, delete: bool) -> tuple[Any, ...]:
    return (topic, None, partition, None, None, leader_epoch, None, None, None, None, None, None, None, delete)


def _answer(code: int | None) -> tuple[int | None, str | None]:
    return code, None if code is None else error_name(code)


def _topic_id(topic: wire.LeaderAndIsrTopicState | wire.UpdateMetadataTopicState) -> str | None:
    return str(topic.topic_id) if topic.topic_id.int else None


_endpoint = functools.lru_cache(maxsize=4096)(endpoint_text)
