"""Producer ids for idempotent producers, handed out from blocks that the controller allocates (rules B3.57-B3.59)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

import wire
from broker_stub.alter_partition_manager import ControllerChannel
from wire import AllocateProducerIdsRequest, AllocateProducerIdsResponse, ErrorCode

logger = logging.getLogger("broker_stub.producer_ids")

RETRY_SECONDS: Final = 0.05
_API_KEY, (_, _LAST_VERSION) = AllocateProducerIdsRequest.__api_key__, AllocateProducerIdsRequest.__versions__


class ProducerIdManager:
    """Owns what is left of the current block. No id is handed out twice, by whichever broker or incarnation."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        channel: ControllerChannel,
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel
        self._spawn = spawn
        self._left = iter(range(0))
        self._is_asking = False

    def next_id(self) -> int | None:
        """None while a block is being asked for."""
        found = next(self._left, None)
        if found is None and not self._is_asking:
            self._is_asking = True
            self._spawn(self._ask)
        return found

    async def _ask(self) -> None:
        try:
            await self._ask_until_allocated()
        except wire.UnsupportedVersion as e:  # a controller before Kafka 3.0; the next producer makes us ask again
            logger.warning("no producer ids: %s", e)
        finally:
            self._is_asking = False

    async def _ask_until_allocated(self) -> None:
        while True:
            block = await self._allocated()
            if block is not None:
                self._left = iter(block)
                return
            await trio.sleep(RETRY_SECONDS)

    async def _allocated(self) -> range | None:
        """A new block; None where the controller refused, say for a broker epoch that it does not know yet."""

        def build(version: int) -> AllocateProducerIdsRequest:
            return AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())

        response = await self._channel.request(_API_KEY, _LAST_VERSION, build, _error_codes)
        assert isinstance(response, AllocateProducerIdsResponse)
        if response.error_code != ErrorCode.NONE:
            logger.warning("AllocateProducerIds was refused: %s", wire.error_name(response.error_code))
            return None
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)


def _error_codes(response: wire.Message) -> Iterable[int]:
    assert isinstance(response, AllocateProducerIdsResponse)
    return (response.error_code,)
