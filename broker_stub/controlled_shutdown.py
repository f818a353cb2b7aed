"""Requests a controlled shutdown, so that leadership moves away before the broker stops (11.48, B11.11-B11.14)."""

from __future__ import annotations

import logging

import trio

from kce import wire
from kce.broker_stub.config import BrokerConfig
from kce.broker_stub.metadata_cache import MetadataCache
from kce.broker_stub.node_client import NodeClient
from kce.wire import ControlledShutdownRequest, ControlledShutdownResponse, ErrorCode
from kce.wire.transport import Dial
from kce.wire.vocabulary import Endpoint

log = logging.getLogger(__name__)


class ControlledShutdown:
    """Owns the retries and their connection."""

    def __init__(self, config: BrokerConfig, metadata_cache: MetadataCache, dial: Dial) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._dial = dial
        self._client: NodeClient | None = None
        self._connected_to: Endpoint | None = None
        self._scope = trio.CancelScope()

    def give_up(self) -> None:
        """Make no further attempt, and wait for none."""
        self._scope.cancel()

    async def run(self, broker_epoch: int) -> bool:
        """Whether the controller confirmed that this broker leads nothing. The shutdown continues either way."""
        request = ControlledShutdownRequest(broker_id=self._config.broker_id, broker_epoch=broker_epoch)
        try:
            with self._scope:
                for attempt in range(1, self._config.controlled_shutdown_max_retries + 1):
                    if attempt > 1:
                        await trio.sleep(self._config.controlled_shutdown_retry_backoff_ms / 1000)
                    if await self._succeeds(request):
                        log.info("controlled shutdown succeeded on attempt %d", attempt)
                        return True
        finally:
            await self._close()
        log.warning("shutting down without a controlled shutdown: no attempt succeeded")
        return False

    async def _succeeds(self, request: ControlledShutdownRequest) -> bool:
        try:
            client = await self._connect()
            if client is None:
                log.info("controlled shutdown: no controller is known")
                return False
            with trio.fail_after(self._config.request_timeout_ms / 1000):
                version = self._config.inter_broker_protocol_version.controlled_shutdown_version
                response = await client.request(request, version)
        except (OSError, trio.TooSlowError, wire.WireError) as e:
            log.info("controlled shutdown: the request to the controller failed: %s", e or type(e).__name__)
            await self._close()
            return False
        assert isinstance(response, ControlledShutdownResponse)
        if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
            return True
        log.info(
            "controlled shutdown: the controller answered %s, %d partitions remain",
            wire.error_name(response.error_code), len(response.remaining_partitions),
        )  # fmt: skip
        return False

    async def _connect(self) -> NodeClient | None:
        """Connect to the controller's inter-broker listener (rule 9.64); None if no controller is known."""
        snapshot = self._metadata_cache.snapshot
        endpoint = snapshot.controller_endpoint(self._config.inter_broker_listener_name)
        if endpoint is None or snapshot.controller_id is None:
            return None
        if self._client is None or endpoint != self._connected_to:
            await self._close()
            with trio.fail_after(self._config.controller_socket_timeout_ms / 1000):
                connection = await self._dial(
                    endpoint.host, endpoint.port, to=snapshot.controller_id, listener=endpoint.listener
                )
            self._client = NodeClient(connection, client_id=str(self._config.broker_id))
            self._connected_to = endpoint
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
