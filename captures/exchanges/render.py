"""Messages as lines of text and as JSON."""

from __future__ import annotations

import datetime
import functools
import itertools
from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring as quoted

from kce import wire
from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.pairing import Peers, Request, Response
from kce.captures.tcp.segments import endpoint_text
from kce.wire import control, error_name
from kce.wire.control import partition_count, partition_states
from kce.wire.json_text import compact, json_text
from kce.wire.outline import outline
from kce.wire.vocabulary import LEADER_DURING_DELETE

#: Partitions listed in a line; of more, only their number.
MAX_PARTITIONS = 4

#: Connections whose texts are kept.
_MAX_CONNECTIONS = 10_000

#: top-level fields that are left out: the error is shown first, throttling is of no interest
SHOWN_ELSEWHERE = frozenset({"error_code", "throttle_time_ms"})

_DIM, _BOLD, _RED, _CYAN, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[36m", "\x1b[0m"


def time_text(time_ns: int) -> str:
    """UTC, ISO 8601, with microseconds."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    try:
        return f"{_second(seconds)}.{ns // 1000:06d}Z"
    except (ValueError, OverflowError, OSError):
        return f"@{seconds}.{ns // 1000:06d}"


@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%dT%H:%M:%S}"


def printable(text: str) -> str:
    """``text`` with control characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Renderer:
    """Lines of text, aligned to the widest connection so far."""

    def __init__(self, cluster: Cluster, *, colour: bool = False) -> None:
        self._cluster = cluster
        self._colour = colour
        self.width = 0  # of the widest
        self._kinds: dict[tuple[str, int, bool], str] = {}
        self._ends: dict[tuple[Peers, str], str] = {}  # as far as known in the cluster's revision
        self._revision = cluster.revision

    def line(self, message: Request | Response) -> str:
        request = message if isinstance(message, Request) else message.request
        asks = request is message
        peers = self.peers(request.peers, "->" if asks else "<-")
        self.width = max(self.width, len(peers))
        what = self.describe(message)
        time, kind = time_text(message.place.time_ns), self.kind(request.api_name, request.version, asks)
        if self._colour:
            time = self._paint(_DIM, time)
        line = f"{time} {message.place.packet:>7} {peers:<{self.width}} {kind} #{request.correlation_id:<5} {what}"
        return line if what else line.rstrip()

    def describe(self, message: Request | Response) -> str:
        """What a line says behind the correlation id."""
        what = self._request(message) if isinstance(message, Request) else self._response(message)
        if message.error is not None:
            what = _join(what, self._paint(_RED, f"not decoded: {message.error}"))
        if message.left_over:
            what = _join(what, self._paint(_RED, f"{message.left_over} bytes left over behind the body"))
        return what

    def kind(self, api: str, version: int, asks: bool) -> str:
        if (found := self._kinds.get((api, version, asks))) is None:
            name = self._paint(_BOLD if asks else _CYAN, f"{f'{api} v{version}':<20}")
            found = self._kinds[api, version, asks] = f"{'request ' if asks else 'response'} {name}"
        return found

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._colour else text

    def peers(self, peers: Peers, arrow: str) -> str:
        if self._revision != self._cluster.revision or len(self._ends) > _MAX_CONNECTIONS:
            self._ends.clear()
            self._revision = self._cluster.revision
        if (found := self._ends.get((peers, arrow))) is None:
            found = self._ends[peers, arrow] = self._both_ends(peers, arrow)
        return found

    def _both_ends(self, peers: Peers, arrow: str) -> str:
        listener = self._cluster.listener_at(peers.server)
        whose = "" if listener is None else f" (broker {listener.broker_id} {printable(listener.name)})"
        return f"{endpoint_text(*peers.client)} {arrow} {endpoint_text(*peers.server)}{whose}"

    def _request(self, request: Request) -> str:
        client = "" if request.client_id is None else f"client {request.client_id!r}"
        body = printable(describe_request(request.body, self._cluster))
        return _join(client, body, "" if request.answered else "acks 0")

    def _response(self, response: Response) -> str:
        error, details = describe_response(response, self._cluster)
        if error not in ("", "NONE"):
            error = self._paint(_RED, error)
        return _join(error, f"{response.latency_ns / 1e6:.3f} ms", printable(details))


def describe_request(body: wire.Message | None, cluster: Cluster) -> str:
    """Epochs, topics and partitions of a request, abbreviated."""
    match body:
        case None:
            return ""
        case wire.LeaderAndIsrRequest() | wire.StopReplicaRequest():
            return _join(_control(body), _partitions(body))
        case wire.UpdateMetadataRequest():
            live = f"brokers {_ids(sorted(broker.id for broker in body.live_brokers))}"
            return _join(_control(body), live, _partitions(body))
        case wire.ControlledShutdownRequest():
            return f"broker {body.broker_id} broker epoch {body.broker_epoch}"
        case wire.AlterPartitionRequest():
            partitions = [
                f"{t.topic_name or cluster.topic_name(t.topic_id)}-{p.partition_index} leader epoch {p.leader_epoch} "
                f"isr {_ids(p.new_isr or [broker.broker_id for broker in p.new_isr_with_epochs])}"
                for t in body.topics
                for p in t.partitions
            ]
            return _join(f"broker {body.broker_id} broker epoch {body.broker_epoch}", _some(partitions))
        case wire.MetadataRequest():
            if body.topics is None:
                return "all topics"
            return "topics " + _some([t.name or cluster.topic_name(t.topic_id) for t in body.topics])
        case wire.ApiVersionsRequest():
            return _join(body.client_software_name, body.client_software_version)
        case wire.ProduceRequest():
            sent = [f"{t.name}-{p.index} {_records(p.records)}" for t in body.topic_data for p in t.partition_data]
            return _join(f"acks {body.acks}", _some(sent))
        case wire.FetchRequest():
            replica = max(body.replica_id, body.replica_state.replica_id)
            wanted = [
                f"{t.topic or cluster.topic_name(t.topic_id)}-{p.partition} from {p.fetch_offset}"
                for t in body.topics
                for p in t.partitions
            ]
            return _join("" if replica < 0 else f"replica {replica}", _some(wanted))
        case _:
            return _scalars(body)


def describe_response(response: Response, cluster: Cluster) -> tuple[str, str]:
    """(name of the top-level error or "", other details, abbreviated)."""
    body, code = response.body, response.error_code
    error = "" if code is None else error_name(code)
    match body:
        case None:
            return error, ""
        case wire.LeaderAndIsrResponse() | wire.StopReplicaResponse():
            return error, _some([f"{t}-{p} {error_name(c)}" for t, p, c in partition_errors(response) if c])
        case wire.ControlledShutdownResponse():
            left = [f"{p.topic_name}-{p.partition_index}" for p in body.remaining_partitions]
            return error, "remaining " + _some(left) if left else ""
        case wire.AlterPartitionResponse():
            partitions = [
                f"{t.topic_name or cluster.topic_name(t.topic_id)}-{p.partition_index} "
                + (
                    error_name(p.error_code)
                    if p.error_code
                    else f"isr {_ids(p.isr)} partition epoch {p.partition_epoch}"
                )
                for t in body.topics
                for p in t.partitions
            ]
            return error, _some(partitions)
        case wire.MetadataResponse():
            leaders = [
                f"{t.name or cluster.topic_name(t.topic_id)}"
                + (f" {error_name(t.error_code)}" if t.error_code else f" {len(t.partitions)} partitions")
                for t in body.topics
            ]
            controller = f"controller {body.controller_id}"
            return error, _join(f"brokers {_ids(sorted(b.node_id for b in body.brokers))}", controller, _some(leaders))
        case wire.ApiVersionsResponse():
            return error, f"{len(body.api_keys)} APIs"
        case wire.ProduceResponse():
            appended = [
                f"{t.name}-{p.index} " + (error_name(p.error_code) if p.error_code else f"at {p.base_offset}")
                for t in body.responses
                for p in t.partition_responses
            ]
            return error, _some(appended)
        case wire.FetchResponse():
            fetched = [
                f"{t.topic or cluster.topic_name(t.topic_id)}-{p.partition_index} "
                + (error_name(p.error_code) if p.error_code else f"{_records(p.records)}, hw {p.high_watermark}")
                for t in body.responses
                for p in t.partitions
            ]
            return error, _some(fetched)
        case _:
            return error, _scalars(body)


def partition_errors(response: Response) -> list[tuple[str, int, int]]:
    """(topic, partition, error code) of a LeaderAndIsr or StopReplica response."""
    return control.partition_errors(response.body, control.topic_names(response.request.body))


class JsonRenderer:
    """Lines of JSON, as docs/decode.md describes them; ``payloads`` as in ``wire.as_dict``."""

    def __init__(self, cluster: Cluster, *, payloads: bool = False) -> None:
        self._cluster = cluster
        self._payloads = payloads
        self._connections: dict[Peers, str] = {}
        self._revision = cluster.revision

    def line(self, message: Request | Response) -> str:
        request = message if isinstance(message, Request) else message.request
        place, body, client_id = message.place, message.body, request.client_id
        shown = "null" if body is None else json_text(body, message.version, payloads=self._payloads)
        error = "null" if message.error is None else quoted(message.error)
        line = (
            f'{{"kind":"{"request" if request is message else "response"}","file":{quoted(place.file)},"packet":'
            f'{place.packet},"time":{place.time_ns / 1e9!r},"connection":{self._connection(request.peers)},"api":"'
            f'{request.api_name}","api_key":{request.api_key},"version":{request.version},"correlation_id":'
            f'{request.correlation_id},"client_id":{"null" if client_id is None else quoted(client_id)},"bytes":'
            f'{message.frame_bytes},"body":{shown},"error":{error},"left_over":{message.left_over}'
        )
        if isinstance(message, Response):
            return f'{line},"request_packet":{request.place.packet},"latency_ms":{message.latency_ns / 1e6!r}}}'
        return line + "}"

    def _connection(self, peers: Peers) -> str:
        if self._revision != self._cluster.revision or len(self._connections) > _MAX_CONNECTIONS:
            self._connections.clear()
            self._revision = self._cluster.revision
        if (found := self._connections.get(peers)) is None:
            listener = self._cluster.listener_at(peers.server)
            found = self._connections[peers] = compact({
                "number": peers.connection,
                "client": endpoint_text(*peers.client),
                "server": endpoint_text(*peers.server),
                "broker": None if listener is None else listener.broker_id,
                "listener": None if listener is None else listener.name,
                "plane": self._cluster.plane(peers.server),
            })  # fmt: skip
        return found


def _control(body: control.ControlRequest) -> str:
    kraft = " (KRaft)" if body.is_kraft_controller else ""
    return f"controller {body.controller_id}{kraft} epoch {body.controller_epoch} broker epoch {body.broker_epoch}"


def _partitions(body: control.ControlRequest) -> str:
    return _first(map(_state, partition_states(body)), partition_count(body))


def _state(p: control.PartitionState) -> str:
    """One partition of a control request."""
    text = f"{p.topic}-{p.partition}"
    if p.leader == LEADER_DURING_DELETE:  # takes the partition out of the brokers' caches (rule 8.9)
        return f"{text} deleted"
    if p.leader is not None:
        text += f" leader {p.leader} epoch {p.leader_epoch} isr {_ids(p.isr or ())}"
    elif p.leader_epoch is not None:
        text += f" epoch {p.leader_epoch}"
    return text + (" new" if p.is_new else "") + (" delete" if p.delete else "")


def _scalars(body: wire.Message) -> str:
    """Top-level numbers and strings of a body that differ from their defaults."""
    shown = []
    for field in body.__fields__:
        value = getattr(body, field.name)
        if type(value) in (int, str, bool) and value != field.default and field.name not in SHOWN_ELSEWHERE:
            shown.append(f"{field.name} {value!r}")
    return _join(*shown)


def _records(records: bytes | None) -> str:
    held = outline(records)
    if held is None:
        return "no records"
    count = "" if held["records"] is None else f"{held['records']} records in "
    return f"{count}{held['bytes']} bytes"


def _some(items: Sequence[str]) -> str:
    return _first(items, len(items))


def _first(items: Iterable[str], count: int) -> str:
    """The first items, and the number of others."""
    shown = "; ".join(itertools.islice(items, MAX_PARTITIONS))
    return f"{shown}; and {count - MAX_PARTITIONS} more" if count > MAX_PARTITIONS else shown


def _ids(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def _join(*parts: str) -> str:
    return ", ".join(filter(None, parts))
