"""Asks the controller to move leadership away before this broker stops (rules 11.48, B11.11-B11.14)."""

from __future__ import annotations

import logging

import trio

import wire
from broker_stub.config import BrokerConfig
from broker_stub.metadata_cache import MetadataCache
from broker_stub.node_client import NodeClient
from broker_stub.ports import Dial
from wire import ControlledShutdownRequest, ControlledShutdownResponse, ErrorCode
from wire.vocabulary import Endpoint

logger = logging.getLogger("broker_stub.controlled_shutdown")


class ControlledShutdown:
    """Owns the attempts and their connection."""

    def __init__(self, config: BrokerConfig, metadata_cache: MetadataCache, dial: Dial) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._dial = dial
        self._client: NodeClient | None = None
        self._connected_to: Endpoint | None = None

    async def run(self, broker_epoch: int) -> bool:
        """Whether the controller confirmed that nothing is led here any more. If not, shutting down goes on anyway."""
        request = ControlledShutdownRequest(broker_id=self._config.broker_id, broker_epoch=broker_epoch)
        try:
            for attempt in range(1, self._config.controlled_shutdown_max_retries + 1):
                if attempt > 1:
                    await trio.sleep(self._config.controlled_shutdown_retry_backoff_ms / 1000)
                if await self._succeeds(request):
                    logger.info("controlled shutdown succeeded at attempt %d", attempt)
                    return True
        finally:
            await self._close()
        logger.warning("proceeding to shut down without a controlled shutdown: no attempt succeeded")
        return False

    async def _succeeds(self, request: ControlledShutdownRequest) -> bool:
        try:
            client = await self._connect()
            if client is None:
                logger.info("controlled shutdown: no controller is known")
                return False
            with trio.fail_after(self._config.request_timeout_ms / 1000):
                version = self._config.inter_broker_protocol_version.controlled_shutdown_version
                response = await client.request(request, version)
        except (OSError, trio.TooSlowError, wire.WireError) as e:
            logger.info("controlled shutdown: the controller cannot be asked: %s", e or type(e).__name__)
            await self._close()
            return False
        assert isinstance(response, ControlledShutdownResponse)
        if response.error_code == ErrorCode.NONE and not response.remaining_partitions:
            return True
        logger.info(
            "controlled shutdown: the controller answers %s, %d partitions remain",
            wire.error_name(response.error_code), len(response.remaining_partitions),
        )  # fmt: skip
        return False

    async def _connect(self) -> NodeClient | None:
        """To the controller's inter-broker listener, even with a control plane (rule 9.64); None if none is known."""
        endpoint = self._metadata_cache.snapshot.controller_endpoint(self._config.inter_broker_listener_name)
        if endpoint is None:
            return None
        if self._client is None or endpoint != self._connected_to:
            await self._close()
            with trio.fail_after(self._config.controller_socket_timeout_ms / 1000):
                connection = await self._dial(endpoint.host, endpoint.port)
            self._client = NodeClient(connection, client_id=str(self._config.broker_id))
            self._connected_to = endpoint
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with trio.CancelScope(shield=True):
                await client.aclose()
