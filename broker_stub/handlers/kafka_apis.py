"""The dispatch table, API key -> handler, for ApiVersions and the reactor."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from kce import wire
from kce.broker_stub.errors import error_code
from kce.broker_stub.finalized_features import FinalizedFeatureCache
from kce.broker_stub.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    consumer_groups,
    create_acls,
    create_partitions,
    create_topics,
    delegation_tokens,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    fetch,
    find_coordinator,
    forwarded,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl,
    stop_replica,
    sync_group,
    txn_offset_commit,
    update_features,
    update_metadata,
    write_txn_markers,
)
from kce.broker_stub.handlers.base import Handler, Services
from kce.broker_stub.handlers.served_apis import ServedApis
from kce.broker_stub.reactor import Request
from kce.broker_stub.reactor.request import RequestQuota, Sharing
from kce.wire.long_messages import distinct, joined, parts
from kce.wire.primitives import UNLIMITED
from kce.wire.steps import Steps, finish

_KEY_AND_VERSION: Final = struct.Struct(">hh")
_CORRELATION_ID: Final = struct.Struct(">i")
#: where it begins in a request, behind its length

#: clients repeat short requests, but for the correlation id; that many are remembered with what they mean
REPEATED_REQUESTS: Final = 1024
REPEATED_BYTES: Final = 128
#: how requests begin that are hardly ever the same
_SELDOM_REPEATED: Final = tuple(
    request.__api_key__.to_bytes(2)
    for request in (wire.FetchRequest, wire.JoinGroupRequest, wire.SyncGroupRequest, wire.LeaveGroupRequest)
)
API_VERSIONS: Final = wire.ApiVersionsRequest.__api_key__

HANDLERS: Final[tuple[Handler[Any], ...]] = (
    metadata.HANDLER,
    leader_and_isr.HANDLER,
    stop_replica.HANDLER,
    update_metadata.HANDLER,
    api_versions.HANDLER,
    create_topics.HANDLER,
    delete_topics.HANDLER,
    create_partitions.HANDLER,
    describe_configs.HANDLER,
    alter_configs.HANDLER,
    incremental_alter_configs.HANDLER,
    describe_cluster.HANDLER,
    elect_leaders.HANDLER,
    find_coordinator.HANDLER,
    init_producer_id.HANDLER,
    update_features.HANDLER,
    produce.HANDLER,
    fetch.HANDLER,
    list_offsets.HANDLER,
    offset_for_leader_epoch.HANDLER,
    delete_records.HANDLER,
    describe_log_dirs.HANDLER,
    alter_replica_log_dirs.HANDLER,
    describe_producers.HANDLER,
    join_group.HANDLER,
    sync_group.HANDLER,
    heartbeat.HANDLER,
    leave_group.HANDLER,
    offset_commit.HANDLER,
    offset_fetch.HANDLER,
    offset_delete.HANDLER,
    list_groups.HANDLER,
    describe_groups.HANDLER,
    delete_groups.HANDLER,
    add_partitions_to_txn.HANDLER,
    add_offsets_to_txn.HANDLER,
    end_txn.HANDLER,
    write_txn_markers.HANDLER,
    txn_offset_commit.HANDLER,
    describe_transactions.HANDLER,
    list_transactions.HANDLER,
    describe_client_quotas.HANDLER,
    alter_client_quotas.HANDLER,
    describe_acls.HANDLER,
    create_acls.HANDLER,
    delete_acls.HANDLER,
    envelope.HANDLER,
    *consumer_groups.HANDLERS,
    *delegation_tokens.HANDLERS,
    alter_user_scram_credentials.HANDLER,
    describe_user_scram_credentials.HANDLER,
    sasl.HANDSHAKE,
    sasl.AUTHENTICATE,
    *forwarded.HANDLERS,
)


def served_apis(features: FinalizedFeatureCache | None = None) -> ServedApis:
    return ServedApis(tuple(sorted((h.versions for h in HANDLERS), key=lambda entry: entry.api_key)), features)


class KafkaApis:
    """The APIs of one broker for its reactor; both planes share it."""

    def __init__(self, services: Services, handlers: Iterable[Handler[Any]] = HANDLERS) -> None:
        self._services = services
        self._handlers = {handler.api_key: handler for handler in handlers}
        self._handle = {key: handler.handle for key, handler in self._handlers.items()}
        self._versions = {key: handler.request.__versions__ for key, handler in self._handlers.items()}
        #: by the first four bytes of requests that are served: API key and version
        self._decoders: dict[bytes, Callable[[bytes, int], tuple[wire.Header, wire.Message]]] = {}
        self._checks = {key: handler.check for key, handler in self._handlers.items() if handler.check is not None}
        is_on = services.authorization.is_on
        self._needs = {key: h.needs for key, h in self._handlers.items() if is_on and h.needs is not None}
        self._repeated: dict[bytes, tuple[wire.Header, wire.Message]] = {}
        self.request_quota: RequestQuota | None = None
        self.sharing: Mapping[int, Sharing] = {
            key: h.sharing(services) for key, h in self._handlers.items() if h.sharing is not None
        }
        services.quotas.on_requests_limited = self._charge_requests

    def _charge_requests(self) -> None:
        """A client has a limit of request time: after each request it may have to wait."""
        self.request_quota = self._services.quotas
        self.sharing = {}

    def decode(self, frame: bytes, max_elements: int = UNLIMITED) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError (rule B1.35), wire.TooManyElements."""
        if len(frame) > REPEATED_BYTES or frame.startswith(_SELDOM_REPEATED):
            return self._decode(frame, max_elements)
        same = frame[:4] + frame[8:]
        known = self._repeated.get(same)
        if known is None:
            if len(self._repeated) >= REPEATED_REQUESTS:
                self._repeated.clear()
            known = self._repeated[same] = self._decode(frame)
            return known
        (api_key, version, _, client_id), message = known
        return wire.Header(api_key, version, _CORRELATION_ID.unpack_from(frame, 4)[0], client_id), message

    def decode_in_steps(self, frame: bytes) -> Steps[tuple[wire.Header, wire.Message]]:
        """Decode a frame that ``decode`` found too long, for a served API."""
        try:
            found = yield from wire.decode_request_in_steps(frame)
        except wire.DecodeError as e:
            found = yield from wire.decode_like_kafka(frame, e)
        return self._checked(found)

    def _decode(self, frame: bytes, max_elements: int = UNLIMITED) -> tuple[wire.Header, wire.Message]:
        decode = self._decoders.get(frame[:4])
        if decode is None:
            if len(frame) < _KEY_AND_VERSION.size:
                return wire.decode_request(frame)  # raises the error
            api_key, api_version = _KEY_AND_VERSION.unpack_from(frame)
            self.check_served(api_key, api_version)
            decode = self._handlers[api_key].decode
            if api_version in self._versions[api_key]:
                self._decoders[frame[:4]] = decode
        try:
            found = decode(frame, max_elements)
        except wire.DecodeError as e:
            found = finish(wire.decode_like_kafka(frame, e, max_elements))
        return self._checked(found) if found[0].api_key in self._checks else found

    def _checked(self, found: tuple[wire.Header, wire.Message]) -> tuple[wire.Header, wire.Message]:
        """Raises wire.DecodeError."""
        header, message = found
        check = self._checks.get(header.api_key)
        if check is not None:
            check(header.api_version, message)
        return found

    def check_served(self, api_key: int, api_version: int) -> None:
        """Raises UnknownApiKey, UnsupportedVersion (rules B1.35, B1.36). Any version of ApiVersions passes."""
        versions = self._versions.get(api_key)
        if versions is not None and (versions.first <= api_version <= versions.last or api_key == API_VERSIONS):
            return
        try:
            name = wire.api(api_key).name
            error: wire.DecodeError = wire.UnsupportedVersion(
                f"{name} is not served by this broker" if versions is None else f"only versions {versions} are served"
            )
        except wire.UnknownApiKey as e:
            error = e
        error.api_key, error.api_version = api_key, api_version
        raise error

    def handle(self, request: Request) -> Awaitable[None] | None:
        api_key = request.context.header.api_key
        if api_key in self._needs:
            self._services.authorization.check_cluster(request.context, self._needs[api_key])
        return self._handle[api_key](request, request.message, self._services)

    def error_response(self, request: Request, error: Exception) -> wire.Message | None:
        handler = self._handlers[request.context.header.api_key]
        return handler.error_response(request.message, request.context, error_code(error))

    def error_response_in_steps(self, request: Request, error: Exception) -> Steps[wire.Message | None]:
        """Of a long request, whose error response is long as a rule."""
        handler = self._handlers[request.context.header.api_key]
        code = error_code(error)
        if handler.errors_in_steps is not None:
            return (yield from handler.errors_in_steps(request.message, request.context, code))
        if not handler.has_errors_of_parts:
            return handler.error_response(request.message, request.context, code)
        cut = parts(request.message)
        answers = ((handler.error_response(part, request.context, code), depth) for part, depth in cut)
        whole = yield from joined(answers, handler.levels_left_out)
        if whole is not None and handler.distinct_errors is not None:
            return (yield from distinct(whole, "results", handler.distinct_errors))
        return whole
