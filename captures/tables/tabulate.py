"""Exchanges as rows of the tables that ``captures.tables.rows`` defines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from kce import wire
from kce.captures.exchanges.cluster import Cluster, announced_listeners
from kce.captures.exchanges.errors import nested_errors
from kce.captures.exchanges.messages import BROKERS_TO_CONTROLLER
from kce.captures.exchanges.pairing import Peers, Request, Response
from kce.captures.exchanges.render import describe_request, describe_response, partition_errors
from kce.captures.files.pcap import Packet
from kce.captures.tables.rows import CONNECTIONS, DECODED, ERROR, LIVE_BROKER, NAMED, PARTITION_STATE, Column
from kce.captures.tcp.segments import Place, Segment, address_text, connection_text
from kce.wire import error_name
from kce.wire.control import ControlRequest, partition_count, partition_states
from kce.wire.registry import BY_NAME, CONTROL_REQUESTS

#: Evidence lists the first partitions of larger requests, and this many characters of a body.
MAX_EVIDENCE_PARTITIONS = 50
MAX_EVIDENCE_TEXT = 8000

#: requests of group rebalances
JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP = (BY_NAME[name].key for name in ("JoinGroup", "LeaveGroup", "SyncGroup"))

#: From which latency on a request is late. A Fetch waits half a second by default.
LATE_NS = {BY_NAME["Produce"].key: 100_000_000, BY_NAME["Fetch"].key: 1_000_000_000}

#: requests of the control plane and of groups
_OF_INTEREST = frozenset({
    *CONTROL_REQUESTS, *BROKERS_TO_CONTROLLER, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP,
})  # fmt: skip
_NO_CLUSTER = Cluster()

_Errors = list[tuple[str, int, int]]
_NestedErrors = list[tuple[str | None, int | None, int]]

#: Whether exchanges come with decoded bodies for the report, and these with payloads and secrets.
Evidence = Literal["none", "redacted", "payloads"]


def body_json(message: Request | Response, *, payloads: bool = False) -> str | None:
    """The decoded body as in `kce decode --json`; without ``payloads``, records and secrets are replaced by sizes."""
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
    is_request = isinstance(message, Request)
    request = message if isinstance(message, Request) else message.request
    return (
        *_place(message.place),
        *peers_columns(request.peers),
        not is_request,
        request.api_key,
        request.api_name,
        request.version,
        request.correlation_id,
        request.client_id,
        message.frame_bytes,
        *((None, None) if is_request else _place(request.place)[:2]),
        message.error_code if isinstance(message, Response) else None,
        message.error,
        body,
    )


def exchange_row(request: Request, response: Response | None) -> tuple[Any, ...]:
    """A row of EXCHANGES."""
    return _exchange_row(request, response, list(response_errors(response)))


def _exchange_row(request: Request, response: Response | None, errors: _NestedErrors) -> tuple[Any, ...]:
    body = request.body
    head = request.head if body is None else body
    return (
        *_place(request.place),
        *peers_columns(request.peers),
        request.api_key,
        request.api_name,
        request.version,
        request.correlation_id,
        request.client_id,
        request.frame_bytes,
        request.error,
        request.answered,
        request.api_key in CONTROL_REQUESTS,
        getattr(head, "controller_id", None),
        getattr(head, "controller_epoch", None),
        getattr(head, "is_kraft_controller", None),
        getattr(body, "broker_id", None) if request.api_key in BROKERS_TO_CONTROLLER else None,
        getattr(head, "broker_epoch", None),
        partition_count(body) if isinstance(body, ControlRequest) else None,
        getattr(body, "group_id", None),
        getattr(None if response is None else response.body, "generation_id", getattr(body, "generation_id", None)),
        *_response(response, errors),
    )


def partition_rows(request: Request, response: Response | None) -> list[tuple[Any, ...]]:
    """Rows of PARTITIONS; none for other than control requests."""
    states = _partition_states(request, _errors(response))
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
    errors = list(response_errors(response))
    states = _partition_states(request, _errors(response))
    live = None
    if isinstance(request.body, wire.UpdateMetadataRequest):
        live = [(b.broker_id, b.name, b.host, b.port, b.rack) for b in announced_listeners(request.body)]
    return (
        *_exchange_row(request, response, errors),
        None if states is None else [_struct(PARTITION_STATE, state) for state in states],
        None if live is None else [_struct(LIVE_BROKER, broker) for broker in live],
        error_list(response),
        partitions_hit(request, response),
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


def peers_columns(peers: Peers) -> tuple[str, str, int, str, int]:
    """connection, client, client_port, server, server_port."""
    client, server = peers.client, peers.server
    return connection_text(client, server), address_text(client[0]), client[1], address_text(server[0]), server[1]


def _place(place: Place) -> tuple[str, int, int]:
    return place.file, place.packet, place.time_ns // 1000


def _response(response: Response | None, errors: _NestedErrors) -> tuple[Any, ...]:
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
        len(errors),
    )


def _struct(columns: Iterable[Column], values: tuple[Any, ...]) -> dict[str, Any]:
    return {column.name: value for column, value in zip(columns, values, strict=True)}


def _errors(response: Response | None) -> _Errors:
    """(topic, partition, error code) of each partition in a response."""
    return [] if response is None else partition_errors(response)


def _partition_states(request: Request, errors: _Errors) -> list[tuple[Any, ...]] | None:
    """Rows of PARTITION_STATE; None for other than control requests."""
    if not isinstance(request.body, ControlRequest):
        return None
    codes = {(topic, partition): code for topic, partition, code in errors}
    return [
        (topic, None if topic_id is None else str(topic_id), partition, *state, *_answer(codes.get((topic, partition))))
        for topic, topic_id, partition, *state in partition_states(request.body)
    ]


def response_errors(response: Response | None) -> Iterable[tuple[str | None, int | None, int]]:
    """(topic, partition, error code) of each error below the top level of a response."""
    return () if response is None or response.body is None else nested_errors(response.body, response.version)


def error_list(response: Response | None) -> list[dict[str, Any]] | None:
    """ERROR structs of a response, the top level first; None if there is no error."""
    errors = list(response_errors(response))
    if response is not None and response.error_code:
        errors.insert(0, (None, None, response.error_code))
    return [_struct(ERROR, error) for error in errors] or None


def partitions_hit(request: Request, response: Response | None) -> list[dict[str, Any]] | None:
    """NAMED structs of a Produce or Fetch request that failed, was late or got no response; otherwise None."""
    if request.api_key not in LATE_NS or not request.answered:
        return None
    if response is not None and response.latency_ns < LATE_NS[request.api_key] and error_list(response) is None:
        return None
    match request.body:
        case wire.ProduceRequest() as body:
            named = [(topic.name, each.index) for topic in body.topic_data for each in topic.partition_data]
        case wire.FetchRequest() as body:
            named = [(t.topic or str(t.topic_id), each.partition) for t in body.topics for each in t.partitions]
        case _:
            return None
    return [_struct(NAMED, each) for each in named]


def has_evidence(api_key: int, evidence: Evidence) -> bool:
    """Whether ``evidence_of`` returns anything for this API."""
    return evidence == "payloads" or (evidence == "redacted" and api_key in _OF_INTEREST)


def evidence_of(request: Request, response: Response | None, evidence: Evidence) -> str | None:
    """Both bodies of an exchange that a finding cites, within limits.

    APIs other than those of the control plane and of groups need ``payloads``: they contain little else.
    """
    body = request.body
    if body is None or not has_evidence(request.api_key, evidence):
        return None
    payloads = evidence == "payloads"
    if isinstance(body, ControlRequest) and partition_count(body) > MAX_EVIDENCE_PARTITIONS:
        texts = [describe_request(body, _NO_CLUSTER)]
        texts += [describe_response(response, _NO_CLUSTER)[0]] if response is not None else []
    else:
        texts = [body_json(message, payloads=payloads) or "" for message in (request, response) if message is not None]
    return "\n".join(text if len(text) <= MAX_EVIDENCE_TEXT else f"{text[:MAX_EVIDENCE_TEXT]}..." for text in texts)


def _answer(code: int | None) -> tuple[int | None, str | None]:
    return code, None if code is None else error_name(code)
