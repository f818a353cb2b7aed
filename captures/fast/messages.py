"""``exchanges.decode.Decoder`` on the fast path: the same messages in the same order, for large captures."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from operator import itemgetter

from kce.captures.exchanges.cluster import Cluster
from kce.captures.exchanges.decode import MAX_WAIT_NS, MAX_WAITING_MESSAGES
from kce.captures.exchanges.framing import Frame
from kce.captures.exchanges.pairing import NoResponse, Peers, Request, Response, read_request, read_response
from kce.captures.exchanges.ports import NO_PORTS, Ports
from kce.captures.exchanges.quality import Quality
from kce.captures.exchanges.recognise import PRODUCE, produce_acks
from kce.captures.fast import frame_kernels as f
from kce.captures.fast.blocks import dissected
from kce.captures.fast.bulk import FastPath, Window
from kce.captures.files import packet_kernels as k
from kce.captures.files.pcap import WINDOW_BYTES, CaptureFile
from kce.captures.tcp.segments import Place
from kce.wire.codec import REFUSALS, codec_for
from kce.wire.codegen import Decode
from kce.wire.primitives import UNLIMITED
from kce.wire.registry import API_VERSIONS, BY_KEY, ApiKey, Direction, message_class

#: (order of the packet, correlation id, message): several messages of one packet are in the order of their ids
_Item = tuple[int, int, Request | Response]

#: of a request's row
_COLUMNS = [f.TALK, f.PACKET, f.AT, f.LENGTH, f.KEY, f.VERSION]

_INT16, _INT32 = struct.Struct(">h").unpack_from, struct.Struct(">i").unpack_from


class BulkDecoder:
    """Decodes one capture, once, some MiB at a time. ``quality`` and ``cluster`` as in ``Decoder``."""

    def __init__(self, capture: CaptureFile, ports: Ports = NO_PORTS, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.quality = Quality()
        self.cluster = Cluster(ports)
        self._file = capture.name
        blocks = dissected(capture, self.quality, window_bytes=window_bytes, ports=ports)
        self._kinds: dict[tuple[int, int], _Kind] = {}
        self.path = FastPath(blocks, [capture.name], self.quality, ports=ports)

    def messages(self) -> Iterator[Request | Response]:
        held: list[_Item] = []
        for window in self.path.windows():
            held += self._items(window)
            held.sort(key=itemgetter(0, 1))
            end = due([message.place.time_ns for *_, message in held]) if self.path.assembly.waiting else len(held)
            yield from self._observed(held[:end])
            del held[:end]
        yield from self._observed(held)

    def _observed(self, items: list[_Item]) -> Iterator[Request | Response]:
        for *_, message in items:
            self.cluster.observe(message)
            yield message

    def _items(self, window: Window) -> Iterator[_Item]:
        for message in window.messages:
            if isinstance(message, NoResponse):
                continue
            request = message if isinstance(message, Request) else message.request
            yield message.place.order, request.correlation_id, message
        times, numbers = window.packets[:, k.TIME].tolist(), window.packets[:, k.NUMBER].tolist()
        data, first, file, talks, kinds = window.data, window.first, self._file, window.talks, self._kinds
        columns = [f.TALK, f.PACKET, f.AT, f.LENGTH, f.KEY, f.VERSION, f.CORRELATION, f.PROGRAM, f.PARTNER]
        requests: dict[int, Request] = {}
        for index, (talk, packet, at, length, key, version, correlation_id, program, _) in enumerate(
            window.requests[:, columns].tolist()
        ):
            if program < 0:
                continue
            place = Place(first + packet, times[packet], numbers[packet], file)
            payload = data[at : at + length].tobytes()
            kind = kinds.get((key, version)) or self._kind(key, version)
            request = requests[index] = kind.request(talks[talk], place, payload)
            yield place.order, correlation_id, request
        for _, packet, at, length, _, _, correlation_id, program, partner in window.responses[:, columns].tolist():
            if program < 0:
                continue
            place = Place(first + packet, times[packet], numbers[packet], file)
            request = requests[partner]
            kind = kinds[request.api_key, request.version]
            yield place.order, correlation_id, kind.response(request, place, data[at : at + length].tobytes())

    def request_of(self, window: Window, index: int) -> Request:
        """The message of a row of requests."""
        talk, packet, at, length, key, version = window.requests[index, _COLUMNS].tolist()
        kind = self._kinds.get((key, version)) or self._kind(key, version)
        return kind.request(window.talks[talk], self._place(window, packet), window.data[at : at + length].tobytes())

    def response_of(self, window: Window, index: int) -> Response:
        """The message of a row of responses."""
        packet, at, length, partner = window.responses[index, [f.PACKET, f.AT, f.LENGTH, f.PARTNER]].tolist()
        request, payload = self.request_of(window, partner), window.data[at : at + length].tobytes()
        return self._kinds[request.api_key, request.version].response(request, self._place(window, packet), payload)

    def _place(self, window: Window, packet: int) -> Place:
        time_ns, number = window.packets[packet, [k.TIME, k.NUMBER]].tolist()
        return Place(window.first + packet, time_ns, number, self._file)

    def _kind(self, key: int, version: int) -> _Kind:
        made = self._kinds[key, version] = _Kind(key, version)
        return made


class _Kind:
    """Reads messages of one API and version that a program has accepted; what is unusual is left to the slow path."""

    def __init__(self, key: int, version: int) -> None:
        api = BY_KEY[key]
        self._key, self._version, self._api = key, version, api
        self._has_client_id = api.request_header_version(version) >= 1
        self._request_tags = api.request_header_version(version) >= 2
        self._response_tags = api.response_header_version(version) >= 1
        self._decode_request = _decoder(api, version, "request")
        self._decode_response = _decoder(api, version, "response")

    def request(self, peers: Peers, place: Place, payload: bytes) -> Request:
        client_id, at = None, 8
        if self._decode_request is not None:
            try:
                if self._has_client_id:
                    size = _INT16(payload, 8)[0]
                    at = 10 + max(size, 0)
                    client_id = None if size < 0 else payload[10:at].decode()
                if not self._request_tags or payload[at] == 0:
                    body, end = self._decode_request(payload, at + self._request_tags, UNLIMITED)
                    if end == len(payload):
                        answered = self._key != PRODUCE or body.acks != 0 or produce_acks(payload) != 0
                        return Request(
                            peers, place, self._key, self._api, self._version, _INT32(payload, 4)[0], client_id, body,
                            None, end, 0, answered,
                        )  # fmt: skip
            except REFUSALS:
                pass
        return read_request(peers, Frame(payload, len(payload), 0, place))

    def response(self, request: Request, place: Place, payload: bytes) -> Response:
        if self._decode_response is not None and (not self._response_tags or payload[4] == 0):
            try:
                body, end = self._decode_response(payload, 4 + self._response_tags, UNLIMITED)
                if end == len(payload):
                    return Response(request, place, self._version, body, None, end, 0)
            except REFUSALS:
                pass
        return read_response(request, Frame(payload, len(payload), 0, place))


def _decoder(api: ApiKey, version: int, direction: Direction) -> Decode | None:
    cls = message_class(api.key, direction)
    if cls is None or version not in api.versions or api.key == API_VERSIONS:
        return None  # the answer to an ApiVersions request may be of another version
    return codec_for(cls, version, version in api.flexible).decode


def due(times: list[int]) -> int:
    """How many of the messages of these times no older one can precede any more, though a hole may still be filled."""
    if not times:
        return 0
    old = bisect.bisect_left(times, max(times) - MAX_WAIT_NS)
    return max(old, len(times) - MAX_WAITING_MESSAGES)
